"""rms_norm, forward and backward: values in every variant, width and type, and edges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Patch, Rng, Shape, refused
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, on_device, wish
from tolerances import bar

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import references
from ptxrt.ops._rms_norm import FAMILY
from ptxrt.ops.framework import parameter_type, rows
from ptxrt.ops.framework.rows import RowsBackwardConfig, RowsConfig

BASELINE = ("baseline", "hip/baseline")  # test_rows_held.py has the others
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)
every_variant = pytest.mark.parametrize("variant", BASELINE)
every_way = pytest.mark.parametrize(("variant", "warps"), [(key, warps) for key in BASELINE for warps in (8, 1)])


def problem(rng: Rng, shape: Shape, row: Shape, name: str = "f32", mean: float = 0.0) -> tuple[Any, ...]:
    """Return grad_out, x, weight."""
    kind = BY_NAME[name]
    tensors = [(rng.standard_normal(shape) + at).astype(kind.numpy) for at in (0.0, mean)]
    return (*tensors, rng.standard_normal(row).astype(parameter_type(kind).numpy))


def forward(device: Device, x: Any, row: Any, w: Any = None, eps: float = 1e-6, way: Any = (None, None)) -> Any:
    variant, warps = way
    preference = wish(variant, config=None if warps is None else RowsConfig(warps))
    plan = ops.RmsNormPlan.select(device, ops.RmsNormDescriptor(x.shape, row, element_type(x.dtype), eps), preference)
    out = Guarded(x.shape, x.dtype, device)
    plan.run(ops.RmsNormArgs(on_device(x, device), on_device(w, device), out.array))
    return out.host()


def backward(
    device: Device, go: Any, x: Any, row: Any, w: Any = None, eps: float = 1e-6, variant: Any = None, config: Any = None
) -> list[Any]:
    descriptor = ops.RmsNormBackwardDescriptor(x.shape, row, element_type(x.dtype), eps)
    plan = ops.RmsNormBackwardPlan.select(device, descriptor, wish(variant, config=config))
    results = plan.run(ops.RmsNormBackwardArgs(*(on_device(a, device) for a in (go, x, w))))
    return [None if a is None else a.to_host() for a in results]


def check_forward(device: Device, given: Any, row: Any, way: Any = (None, None)) -> None:
    _, x, w = given
    want, got = references.rms_norm(x, row, w), forward(device, x, row, w, way=way)
    check_error("rms_norm", device, got, want, bar("rms_norm", element_type(x.dtype).name, want), (x.shape, row, way))


def check_backward(device: Device, given: Any, row: Any, large_mean: bool = False, **how: Any) -> None:
    want = references.rms_norm_backward(given[0], given[1], row, given[2])
    got = backward(device, given[0], given[1], row, given[2], **how)
    for name, a, ref in zip(ops.RmsNormGradients._fields, got, want, strict=True):
        assert (a is None) == (ref is None)
        if a is not None:
            limit = bar("rms_norm", element_type(a.dtype).name, ref, large_mean=large_mean)
            check_error(f"rms_norm {name}", device, a, ref, limit, (given[1].shape, row, how))


# Values ---------------------------------------------------------------------------------------------------------------

ROWS: list[tuple[Shape, Shape]] = [
    ((3, 1), (1,)),
    ((2, 3, 4, 5), (4, 5)),
    ((2, 31), (31,)),  # round one turn of a warp
    ((5,), (5,)),  # one row
    ((2, 33), (33,)),
    ((1, 132), (132,)),  # round one turn of a warp, by vectors
    ((1, 257), (257,)),
    ((1, 1028), (1028,)),
    ((1, 2056), (2056,)),
]


@every_way
@pytest.mark.parametrize(("shape", "row"), ROWS, ids=str)
@pytest.mark.sanitize
def test_rms_norm_matches_cpu(device: Device, rng: Rng, shape: Shape, row: Shape, variant: str, warps: int) -> None:
    check_forward(device, problem(rng, shape, row), row, (variant, warps))


@every_way
@pytest.mark.parametrize(("shape", "row"), ROWS[1::2], ids=str)
def test_rms_norm_backward_matches_cpu(
    device: Device, rng: Rng, shape: Shape, row: Shape, variant: str, warps: int
) -> None:
    check_backward(device, problem(rng, shape, row), row, variant=variant, config=RowsBackwardConfig(warps, 16))


@every_way
@pytest.mark.parametrize("width", [62, 63, 64, 65, 257, 2047, 2054, 4612])  # round 64, where pairs end; turns
def test_in_f64_terms_that_cancel_cost_no_accuracy(
    device: Device, rng: Rng, width: int, variant: str, warps: int
) -> None:
    go, x, _ = problem(rng, (2, width), (width,), "f64", 1e4)
    go += 1e4  # nearly a multiple of x
    given, config = (go, x, None), RowsBackwardConfig(warps, 16)
    check_forward(device, given, width, (variant, warps))
    check_backward(device, given, width, large_mean=True, variant=variant, config=config)


@every_variant
@pytest.mark.parametrize("width", [5, 62, 63])
def test_of_few_values_in_f64_what_cancels_of_a_gradient_costs_no_accuracy(
    device: Device, rng: Rng, width: int, variant: str
) -> None:
    go, x, _ = problem(rng, (2, width), (width,), "f64")
    check_backward(device, (2 * x + 1e-3 * go, x, None), width, variant=variant)


@every_type
def test_rms_norm_of_drawn_problems(device: Device, name: str) -> None:
    def body(lead: list[int], row: list[int], seed: int, mean: float) -> None:
        given = problem(np.random.default_rng(seed), (*lead, *row), tuple(row), name, mean)
        check_forward(device, given, tuple(row))
        if np.prod(row) > 1:  # the gradient of one value is what eps leaves of it
            check_backward(device, given, tuple(row))

    lengths = st.integers(1, 12)
    for_drawn(
        device, body, lead=st.lists(lengths, max_size=2), row=st.lists(lengths, min_size=1, max_size=2),
        seed=st.integers(0, 99), mean=st.sampled_from([0.0, 3.0]),
    )  # fmt: skip


@every_type
@every_variant
def test_a_large_mean_costs_no_digits(device: Device, rng: Rng, name: str, variant: str) -> None:
    given = problem(rng, (4, 264), (264,), name, 1e4)
    check_forward(device, given, (264,), (variant, None))
    check_backward(device, given, (264,), large_mean=True, variant=variant)


@every_variant
def test_without_a_weight_it_is_ones_and_its_gradient_none(device: Device, rng: Rng, variant: str) -> None:
    for width in (20, 19):
        given = (*problem(rng, (3, width), (width,))[:2], None)
        check_forward(device, given, (width,), (variant, None))
        check_backward(device, given, (width,), variant=variant)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@every_variant
def test_of_16_bits_the_result_is_that_of_f32_rounded(device: Device, name: str, variant: str) -> None:
    """Of very many rows of two these are the ones where a single rounding, from f64, gives another value."""
    rng, kind = np.random.default_rng(7), BY_NAME[name].numpy
    x, w = rng.standard_normal((1 << 20, 2)).astype(kind), np.array([1.7, -0.3], np.float32)
    exact = references.rms_norm(x, 2, w)
    single = exact.astype(np.float32)
    towards_zero = np.where(np.abs(single) > np.abs(exact), np.nextafter(single, np.float32(0)), single)
    odd = (towards_zero.view(np.uint32) | (towards_zero != exact)).view(np.float32)  # is rounded as `exact` would be
    differ = (single.astype(kind) != odd.astype(kind)).any(axis=1)
    assert differ.any()
    got = forward(device, x[differ], 2, w, way=(variant, None))
    np.testing.assert_array_equal(got, single[differ].astype(kind))


# Edges ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f32", "f64"])
@every_variant
def test_nan_spoils_its_row_alone_and_infinity_makes_zeros_of_the_rest(
    device: Device, rng: Rng, name: str, variant: str
) -> None:
    go, x, w = problem(rng, (4, 9), (9,), name)
    x[0, 3], x[1, 0], go[2, 5] = np.nan, np.inf, np.nan
    y = forward(device, x, (9,), w, way=(variant, None))
    assert np.isnan(y).tolist() == [[True] * 9, [True] + [False] * 8, [False] * 9, [False] * 9]
    assert not y[1, 1:].any()
    grad_input, grad_weight = backward(device, go, x, (9,), w, variant=variant)
    assert (
        np.isnan(grad_input).all(axis=1).tolist() == np.isnan(grad_input).any(axis=1).tolist() == [True] * 3 + [False]
    )
    assert np.isnan(grad_weight).all()
    _, grad_weight = backward(device, go[1:], x[1:], (9,), w, variant=variant)
    assert np.isnan(grad_weight).tolist() == [i in (0, 5) for i in range(9)]


@every_variant
def test_squares_of_any_f32_are_in_range(device: Device, variant: str) -> None:
    x = np.array([[1e-40, -2e-40, 3e-45], [3e38, -1e38, 1.0]], np.float32)
    want = references.rms_norm(x, 3, eps=0.0)
    check_error("rms_norm", device, forward(device, x, 3, eps=0.0, way=(variant, None)), want, 2e-7)


@every_variant
def test_eps_counts(device: Device, variant: str) -> None:
    x, go = np.array([[1e-3, -2e-3], [2.0, 4.0]], np.float32), np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    w = np.array([1.0, 3.0], np.float32)
    want = references.rms_norm(x, 2, w, eps=0.5)
    check_error("rms_norm", device, forward(device, x, 2, w, 0.5, (variant, None)), want, 2e-7)
    grads = references.rms_norm_backward(go, x, 2, w, eps=0.5)
    for name, a, ref in zip(
        ("grad_input", "grad_weight"), backward(device, go, x, 2, w, 0.5, variant), grads, strict=True
    ):
        check_error(f"rms_norm {name}", device, a, ref, 2e-7)


def test_zeros_stay_zeros_and_are_nan_where_eps_is_0(device: Device) -> None:
    x = np.zeros((2, 8), np.float32)
    assert not forward(device, x, 8).any()
    assert np.isnan(forward(device, x, 8, eps=0.0)).all()


@pytest.mark.parametrize("name", ["f32", "f64"])
@every_variant
@pytest.mark.parametrize(("shape", "length"), [((40, 5), 1), ((40, 5), 3), ((300, 2), 1)], ids=str)
def test_columns_are_added_up_over_slices_of_any_length(
    device: Device, rng: Rng, name: str, variant: str, shape: Shape, length: int
) -> None:
    given = problem(rng, shape, shape[1:], name)  # more slices than a warp has lanes, or 8 warps
    check_backward(device, given, shape[1:], variant=variant, config=RowsBackwardConfig(1, length))


@every_way
def test_blocks_take_their_rows_in_turn(device: Device, rng: Rng, monkeypatch: Patch, variant: str, warps: int) -> None:
    go, x, w = problem(rng, (7, 303), (303,))
    config = RowsBackwardConfig(warps, 2)
    want = [forward(device, x, 303, w, way=(variant, warps)), *backward(device, go, x, 303, w, 1e-6, variant, config)]
    monkeypatch.setattr(rows, "blocks_in_hip", lambda count, threads: 3)
    got = [forward(device, x, 303, w, way=(variant, warps)), *backward(device, go, x, 303, w, 1e-6, variant, config)]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_row_that_x_does_not_end_in_is_refused(device: Device) -> None:
    x = ptxrt.zeros((2, 3, 4), "float32", device)
    with refused(ptxrt.ShapeMismatch, "rms_norm", "normalized_shape", "the last axes of x, (2, 3, 4)"):
        ops.rms_norm(x, (2, 4))
    with refused(ptxrt.ShapeMismatch, "rms_norm_backward", "normalized_shape", "the last axes of x, (2, 3, 4)"):
        ops.rms_norm_backward(x, x, 3)


def test_eps_is_1e_6_by_default(sim: Device) -> None:
    x = ptxrt.to_device(np.array([[1e-3, 2e-3]], np.float32), sim)
    assert ops.RmsNormDescriptor((2, 4), (4,)).eps == ops.RmsNormBackwardDescriptor((2, 4), (4,)).eps == 1e-6
    np.testing.assert_array_equal(ops.rms_norm(x, 2).to_host(), ops.rms_norm(x, 2, eps=1e-6).to_host())
