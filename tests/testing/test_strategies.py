"""Strategies of hypothesis: what they draw, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

from ptxrt.dtypes import BY_NAME
from ptxrt.errors import DTypeMismatch, InvalidArgument
from ptxrt.testing.strategies import arrays, shapes, sizes, special_values


def drawn(strategy: st.SearchStrategy[Any], count: int = 400) -> list[Any]:
    """Return examples of a strategy, the same in each run."""
    found: list[Any] = []

    @settings(max_examples=count)
    @given(strategy)
    def draw(value: Any) -> None:
        found.append(value)

    draw()
    return found


@pytest.mark.parametrize("size", [1, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 509, 1000])
def test_sizes_are_at_boundaries(size: int) -> None:
    assert find(sizes(1000, block=128), lambda n: n == size) == size


def test_sizes_are_within_their_bounds_and_some_are_anything() -> None:
    found = drawn(sizes(100, least=30))
    assert min(found) == 30
    assert max(found) == 100
    assert {*found} - {30, 31, 32, 33, 61, 63, 64, 65, 100}


@pytest.mark.parametrize("axes", [0, 1, 2, 4])
@pytest.mark.parametrize("least", [0, 1, 2])
def test_shapes_have_their_axes_and_not_too_many_elements(axes: int, least: int) -> None:
    found = drawn(shapes(axes, most=300, least=least))
    assert {len(shape) for shape in found} == {axes}
    assert max(math.prod(shape) for shape in found) <= 300
    assert min((n for shape in found for n in shape), default=least) == least


def test_any_axis_of_a_shape_may_be_the_long_one() -> None:
    found = drawn(shapes(3, most=300))
    for axis in range(3):
        assert max(shape[axis] for shape in found) >= 200


FLOATS = {
    "f16": (6e-8, 65504),
    "bf16": (9.2e-41, 3.3895e38),
    "f32": (1.4e-45, 3.4028235e38),
    "f64": (5e-324, 1.7977e308),
}


@pytest.mark.parametrize("name", FLOATS)
def test_special_values_of_floats(name: str) -> None:
    kind, (tiny, largest) = BY_NAME[name].numpy, FLOATS[name]
    found = np.array(drawn(special_values(name)), np.float64)
    assert np.isnan(found).any()
    for sign in (1, -1):
        own = found[np.signbit(found) == (sign < 0)]
        assert np.isinf(own).any()
        assert (own == 0).any()
        assert np.isclose(own, sign * tiny, rtol=0.01, atol=0).any()
        denormal = np.abs(own) / float(ml_dtypes.finfo(kind).smallest_normal)
        assert ((denormal > 0.98) & (denormal < 1)).any()
        assert np.isclose(own, sign * largest, rtol=1e-4, atol=0).any()
    assert {float(kind.type(n)) for n in (9999, 10000, 10001)} <= {*found}
    assert all(type(value) is kind.type for value in drawn(special_values(kind), 20))


@pytest.mark.parametrize("name", FLOATS)
def test_finite_special_values(name: str) -> None:
    assert np.isfinite(np.array(drawn(special_values(name, finite=True)), np.float64)).all()


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("i8", {-128, -127, -1, 0, 1, 126, 127}),
        ("u16", {0, 1, 9999, 10000, 10001, 65534, 65535}),
        ("u64", {0, 1, 9999, 10000, 10001, 2**64 - 2, 2**64 - 1}),
        ("i64", {-(2**63), 1 - 2**63, -1, 0, 1, 9999, 10000, 10001, 2**63 - 2, 2**63 - 1}),
        ("bool", {False, True}),
    ],
)
def test_special_values_of_integers(name: str, wanted: set[int]) -> None:
    assert {int(value) for value in drawn(special_values(BY_NAME[name].numpy))} == wanted


@pytest.mark.parametrize("name", BY_NAME)
def test_arrays_of_every_element_type(name: str) -> None:
    for array in drawn(arrays(BY_NAME[name].numpy, shapes(2, most=64)), 20):
        assert array.dtype == BY_NAME[name].numpy
        assert array.ndim == 2
        assert array.size <= 64


def test_arrays_have_special_values_and_few_of_them() -> None:
    found = drawn(arrays("f32", (16,), special=st.just(np.float32(np.nan)), most_special=2))
    assert {int(np.isnan(array).sum()) for array in found} == {0, 1, 2}
    assert any(np.nanmean(array) > 5000 for array in found)  # and some lie around 1e4


@pytest.mark.parametrize("name", ["f32", "bf16", "int8", "bool"])
def test_arrays_without_axes_are_arrays_and_have_special_values(name: str) -> None:
    special = next(iter(drawn(special_values(name), 1)))
    for found in drawn(arrays(name, (), special=st.just(special), most_special=1), 20):
        assert isinstance(found, np.ndarray)
        assert (found.shape, found.dtype) == ((), special.dtype)
    assert find(arrays("f32", shapes(0), special=st.just(7)), lambda found: found == 7).shape == ()


def test_numbers_of_numpy_are_sizes_and_a_number_is_a_shape() -> None:
    three = np.int64(3)
    assert {*drawn(sizes(three, least=three, block=three))} == {3}
    assert {len(shape) for shape in drawn(shapes(three, most=np.int32(9), least=np.uint8(2)), 20)} == {3}
    for shape in (5, np.int64(5), [5], iter([5])):
        assert {found.shape for found in drawn(arrays("f32", shape), 5)} == {(5,)}


def test_a_failing_array_gets_small() -> None:
    found = find(arrays("f32", shapes(2, most=300)), lambda x: x.size >= 5)
    assert found.shape in [(1, 5), (5, 1)]
    assert np.isfinite(found).all()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: sizes(0),
        lambda: sizes(8, least=9),
        lambda: sizes("8"),  # type: ignore[arg-type]
        lambda: sizes(8, block=0),
        lambda: shapes(-1),
        lambda: shapes(3, most=7, least=2),
        lambda: shapes(2, block=0),
    ],
)
def test_what_cannot_be_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        wrong()


def test_an_element_type_that_there_is_not_is_refused() -> None:
    with pytest.raises(DTypeMismatch):
        special_values(np.complex64)
    with pytest.raises(DTypeMismatch):
        arrays(object, (3,))
