"""DeviceArray: copies in and out, views, memory that others own, and memory given back."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import ELEMENT_NAMES, Patch, launches_by, printed_by, refused
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import ptxrt
from ptxrt import Device, DeviceArray
from ptxrt.backends.sim import BACKEND
from ptxrt.dtypes import BY_NAME
from ptxrt.errors import shown
from ptxrt.runtime.layout import contiguous

SHAPES = [(), (1,), (7,), (3, 5), (2, 1, 4), (0,), (3, 0, 2), (1, 1)]


def sample(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random bits of a type: NaNs, infinities and subnormals come by themselves."""
    dtype = BY_NAME[name].numpy
    bits = rng.integers(0, 2 if name == "bool" else 256, (*shape, dtype.itemsize), np.uint8)
    return np.ascontiguousarray(bits).view(dtype).reshape(shape)


def same_bits(one: np.ndarray, two: np.ndarray) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())


@pytest.fixture
def host(rng: np.random.Generator) -> np.ndarray:
    return rng.standard_normal((4, 3, 5)).astype(np.float32)


@pytest.fixture
def x(device: Device, host: np.ndarray) -> DeviceArray:
    return ptxrt.to_device(host, device)


# Copies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_an_array_comes_back_as_it_went(device: Device, name: Any, shape: Any, rng: np.random.Generator) -> None:
    host = sample(name, shape, rng)
    x = ptxrt.to_device(host, device)
    assert (x.shape, x.dtype, x.device, x.strides) == (shape, host.dtype, device, contiguous(shape))
    assert (x.size, x.ndim, x.nbytes, x.is_contiguous) == (host.size, host.ndim, host.nbytes, True)
    assert same_bits(x.to_host(), host)


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::-1],
        lambda a: a[::2, 1:],
        lambda a: np.broadcast_to(a[:1], a.shape),
        np.asfortranarray,
    ],
    ids=["transposed", "reversed", "strided", "broadcast", "column-major"],
)
def test_a_host_array_of_any_layout_is_copied_row_major(device: Device, host: np.ndarray, view: Any) -> None:
    x = ptxrt.to_device(view(host), device)
    assert x.strides == contiguous(x.shape)
    assert_array_equal(x.to_host(), view(host))


def test_lists_and_numbers_are_host_arrays(device: Device) -> None:
    assert_array_equal(ptxrt.to_device([[1, 2], [3, 4]], device).to_host(), [[1, 2], [3, 4]])
    assert ptxrt.to_device(2.5, device).to_host() == np.float64(2.5)


def test_the_host_array_may_be_changed_on_return(device: Device, host: np.ndarray) -> None:
    x = ptxrt.to_device(host, device)
    wanted = host.copy()
    host[...] = 0
    assert_array_equal(x.to_host(), wanted)


def test_what_comes_back_is_the_callers_to_change(x: DeviceArray, host: np.ndarray) -> None:
    back = x.to_host()
    assert back.flags.writeable
    assert back.flags.c_contiguous
    back[...] = 0
    assert_array_equal(x.to_host(), host)


def test_an_element_type_that_no_kernel_has_is_refused(device: Device) -> None:
    with refused(ptxrt.DTypeMismatch, "to_device", "array", "one of f32", "complex128", "astype"):
        ptxrt.to_device(np.ones(3, complex), device)


def test_none_is_no_host_array(device: Device) -> None:
    with refused(ptxrt.InvalidArgument, "to_device", "array", "a host array", "None"):
        ptxrt.to_device(None, device)  # type: ignore[arg-type]


def test_an_array_with_masked_elements_is_refused(device: Device) -> None:
    with refused(ptxrt.InvalidArgument, "to_device", "array", "a host array", "masked"):
        ptxrt.to_device(np.ma.array([1.0, 2.0], mask=[True, False]), device)
    assert_array_equal(ptxrt.to_device(np.ma.array([1.0, 2.0]), device).to_host(), [1, 2])


def test_a_ragged_list_is_no_host_array(device: Device) -> None:
    with refused(ptxrt.InvalidArgument, "to_device", "array", "a host array", "list: "):
        ptxrt.to_device([[1, 2], [3]], device)


def test_a_device_array_is_no_host_array(device: Device, x: DeviceArray) -> None:
    with refused(ptxrt.InvalidArgument, "to_device", "array", "a host array", "to_host()"):
        ptxrt.to_device(x, device)


def test_numpy_does_not_read_a_device_array_by_itself(x: DeviceArray) -> None:
    with refused(ptxrt.InvalidArgument, "__array__", "array", "to_host()"):
        np.asarray(x)


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_zeros_are_zero(device: Device, name: Any) -> None:
    assert same_bits(ptxrt.zeros((3, 2), BY_NAME[name].numpy, device).to_host(), np.zeros((3, 2), BY_NAME[name].numpy))


def test_empty_has_shape_and_type_and_float32_by_default(device: Device) -> None:
    x = ptxrt.empty((2, 3), device=device)
    assert (x.shape, x.dtype, x.strides) == ((2, 3), np.dtype(np.float32), (3, 1))


NO_SHAPES = [
    *(-1, (2, -3), 2.0, ("a",), (True,), None, [[1, 2]]),
    *(b"x", bytearray(b"x"), memoryview(b"x"), {3, 4}, {3: 4}, np.array(2.0), np.array([True]), np.ma.masked),
    *(1 << 63, 10**5000, (0, 10**5000), (0,) * 33),
]


@pytest.mark.parametrize("shape", NO_SHAPES, ids=range(len(NO_SHAPES)))
def test_a_shape_is_made_of_lengths(device: Device, shape: Any) -> None:
    with refused(ptxrt.InvalidArgument, "empty", "shape", "at most 32 lengths of 0 or more", shown(shape)):
        ptxrt.empty(shape, np.float32, device)


@pytest.mark.parametrize("shape", [3, np.int64(3), (3,), [3], np.array([3]), np.array(3)], ids=repr)
def test_a_shape_may_come_in_any_dress(device: Device, shape: Any) -> None:
    assert ptxrt.empty(shape, np.float32, device).shape == (3,)


def test_a_dtype_that_no_kernel_has_is_refused(device: Device) -> None:
    with refused(ptxrt.DTypeMismatch, "empty", "dtype", "one of f32"):
        ptxrt.empty(3, np.complex64, device)


@pytest.mark.parametrize("byte", [0, 1, 0xFF, np.uint8(7)], ids=repr)
def test_fill_bytes_sets_every_byte(device: Device, byte: Any) -> None:
    x = ptxrt.zeros((3, 2), np.uint32, device)
    x.fill_bytes(byte)
    assert set(x.to_host().tobytes()) == {int(byte)}


@pytest.mark.parametrize("byte", [-1, 256, 1.0, None], ids=repr)
def test_fill_bytes_takes_a_byte(x: DeviceArray, byte: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray.fill_bytes", "byte", "0 to 255", repr(byte)):
        x.fill_bytes(byte)


def test_fill_bytes_wants_a_contiguous_array(x: DeviceArray) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.fill_bytes", "array", "contiguous strides"):
        x[:, ::2].fill_bytes(0)


def test_fill_bytes_does_not_write_to_a_readonly_array(x: DeviceArray) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.fill_bytes", "array", "may be written", "broadcast"):
        x.broadcast_to(x.shape).fill_bytes(0)


def test_fill_bytes_of_a_view_leaves_the_rest(x: DeviceArray, host: np.ndarray) -> None:
    x[1].fill_bytes(0)
    host[1] = 0
    assert_array_equal(x.to_host(), host)


def test_fill_bytes_of_nothing_is_nothing(device: Device) -> None:
    ptxrt.empty((0, 3), np.float32, device).fill_bytes(1)


# copy_from --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "as_source", [lambda a, d: a, lambda a, d: a.T.copy().T, ptxrt.to_device], ids=["host", "strided host", "device"]
)
def test_copy_from_overwrites_the_elements(device: Device, x: DeviceArray, host: np.ndarray, as_source: Any) -> None:
    x.copy_from(as_source(-host, device))
    assert_array_equal(x.to_host(), -host)


def test_copy_from_overwrites_a_contiguous_view_alone(x: DeviceArray, host: np.ndarray) -> None:
    x[2].copy_from(np.zeros((3, 5), np.float32))
    host[2] = 0
    assert_array_equal(x.to_host(), host)


def test_copy_from_takes_a_zero_dimensional_array(device: Device) -> None:
    x = ptxrt.zeros((), np.int32, device)
    x.copy_from(np.array(5, np.int32))
    assert x.to_host() == 5


def test_copy_from_of_nothing_is_nothing(device: Device) -> None:
    x = ptxrt.empty((0, 3), np.float32, device)
    x.copy_from(np.empty((0, 3), np.float32))
    x.copy_from(ptxrt.empty((0, 3), np.float32, device))


@pytest.mark.parametrize("shape", [(4, 3), (4, 5, 3), (60,), (1, 4, 3, 5), ()], ids=str)
@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_copy_from_wants_the_same_shape(device: Device, x: DeviceArray, shape: Any, on_device: bool) -> None:
    source = np.zeros(shape, np.float32)
    with refused(ptxrt.ShapeMismatch, "DeviceArray.copy_from", "source", "(4, 3, 5)", str(shape)):
        x.copy_from(ptxrt.to_device(source, device) if on_device else source)


def test_copy_from_does_not_take_a_number_for_an_array_of_one(device: Device) -> None:
    with refused(ptxrt.ShapeMismatch, "DeviceArray.copy_from", "source", "(1,)", "()"):
        ptxrt.zeros(1, np.float32, device).copy_from(np.float32(3))


@pytest.mark.parametrize("on_device", [False, True], ids=["host", "device"])
def test_copy_from_wants_the_same_dtype(device: Device, x: DeviceArray, on_device: bool) -> None:
    source = np.zeros(x.shape, np.float64)
    with refused(ptxrt.DTypeMismatch, "DeviceArray.copy_from", "source", "float32", "float64"):
        x.copy_from(ptxrt.to_device(source, device) if on_device else source)


def test_copy_from_wants_a_contiguous_target(x: DeviceArray) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.copy_from", "array", "contiguous strides (2, 1)"):
        x[0, ::2, :2].copy_from(np.zeros((2, 2), np.float32))


def test_copy_from_wants_a_contiguous_source(device: Device, x: DeviceArray) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.copy_from", "source", "contiguous strides"):
        ptxrt.empty((5, 3, 4), np.float32, device).copy_from(x.T)


def test_copy_from_wants_a_target_that_may_be_written(x: DeviceArray, host: np.ndarray) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.copy_from", "array", "may be written"):
        x.broadcast_to(x.shape).copy_from(host)


def test_copy_from_wants_one_device(device: Device, other_device: Device, x: DeviceArray, host: np.ndarray) -> None:
    with refused(ptxrt.DeviceMismatch, "DeviceArray.copy_from", "source", str(device), str(other_device), "to_host()"):
        x.copy_from(ptxrt.to_device(host, other_device))


def test_copy_from_wants_a_live_source(device: Device, x: DeviceArray, host: np.ndarray) -> None:
    source = ptxrt.to_device(host, device)
    source.free()
    with refused(ptxrt.InvalidArgument, "DeviceArray.copy_from", "source", "a live array", "free()"):
        x.copy_from(source)


def test_copy_from_wants_a_live_target(x: DeviceArray, host: np.ndarray) -> None:
    x.free()
    with refused(ptxrt.InvalidArgument, "DeviceArray.copy_from", "array", "a live array", "free()"):
        x.copy_from(host)


@pytest.mark.parametrize("source", [None, [[1], [2, 3]]], ids=repr)
def test_copy_from_wants_an_array(x: DeviceArray, source: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray.copy_from", "source", "a host array", "from_dlpack"):
        x.copy_from(source)


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(3, np.float32), np.zeros((4, 3, 5), np.float64), None],
    ids=["shape", "dtype", "none"],
)
def test_a_copy_that_is_refused_has_written_nothing(x: DeviceArray, host: np.ndarray, wrong: Any) -> None:
    with pytest.raises(ptxrt.PtxrtError):
        x.copy_from(wrong)
    assert_array_equal(x.to_host(), host)


@pytest.fixture
def no_work(device: Device, monkeypatch: Patch) -> None:
    """No launch, copy or fill gets past this."""

    def refuse(*_: object) -> None:
        raise AssertionError("an empty tensor reached the driver")

    launches_by(monkeypatch, device, refuse)
    for call in ("copy", "copy_in", "copy_out", "fill", "allocate"):
        monkeypatch.setattr(device.backend, call, refuse, raising=False)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0), (0, 4)], ids=str)
@pytest.mark.usefixtures("no_work")
def test_pain25_an_empty_tensor_launches_nothing_and_gives_the_right_shape(device: Device, shape: Any) -> None:
    y = ptxrt.ops.group_norm(ptxrt.empty(shape, np.float32, device), None, None, 2)
    assert (y.shape, y.dtype, y.device) == (shape, np.dtype(np.float32), device)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)], ids=str)
@pytest.mark.usefixtures("no_work")
def test_pain25_an_empty_tensor_is_copied_and_filled_without_a_call(device: Device, shape: Any) -> None:
    x = ptxrt.to_device(np.empty(shape, np.int64), device)
    x.fill_bytes(1)
    x.copy_from(np.empty(shape, np.int64))
    x.copy_from(ptxrt.zeros(shape, np.int64, device))
    assert_array_equal(x.to_host(), np.empty(shape, np.int64))
    assert x.T.broadcast_to((2, *shape[::-1])).to_host().shape == (2, *shape[::-1])


# Views ------------------------------------------------------------------------------------------------------------


def slices(length: int) -> st.SearchStrategy[slice]:
    ends = st.none() | st.integers(-length - 2, length + 2)
    return st.builds(slice, ends, ends, st.none() | st.integers(1, 3))


@st.composite
def indexings(draw: st.DrawFn) -> tuple[tuple[int, ...], object]:
    """A shape and an index for it: integers, slices, None and at most one ..., on some of the axes."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    split = draw(st.integers(0, len(shape)))
    front = shape[: draw(st.integers(0, split))]
    back = shape[split + draw(st.integers(0, len(shape) - split)) :]
    dots = draw(st.booleans()) or bool(back)
    items: list[object] = []
    for part in (front, None, back):
        if part is None:
            items += [...] * dots
            continue
        for length in part:
            items += [None] * draw(st.integers(0, 1))
            whole = st.integers(-length, length - 1) if length else st.nothing()
            items.append(draw(whole | slices(length)))
    index = tuple(items)
    return shape, index[0] if len(index) == 1 and draw(st.booleans()) else index


@given(indexings())
def test_indexing_is_numpys(device: Device, drawn: Any) -> None:
    shape, index = drawn
    host = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    x = ptxrt.to_device(host, device)
    view, wanted = x[index], host[index]
    assert view.shape == wanted.shape
    assert view.memory is x.memory
    assert_array_equal(view.to_host(), wanted)


@given(indexings(), st.randoms(use_true_random=False))
def test_a_view_of_a_view_of_a_transposed_array_is_numpys(device: Device, drawn: Any, random: Any) -> None:
    shape, index = drawn
    host = np.arange(np.prod(shape, dtype=int), dtype=np.int16).reshape(shape)
    axes = random.sample(range(len(shape)), len(shape))
    # The index was drawn for `shape`, so the axes are put back first.
    back = np.argsort(axes).tolist()
    view, wanted = (a.transpose(*axes).transpose(*back)[index].T for a in (ptxrt.to_device(host, device), host))
    assert_array_equal(view.to_host(), wanted)


def test_strides_are_in_elements(x: DeviceArray) -> None:
    assert x.strides == (15, 5, 1)
    assert x.T.strides == (1, 5, 15)
    assert x[::2, 1].strides == (30, 1)
    assert x[1:, :, 2].ptr == x.ptr + 4 * (15 + 2)


def test_views_cost_no_memory(sim: Device) -> None:
    x = ptxrt.empty((8, 8), np.float32, sim)
    before = in_use_once_settled(sim)
    assert x[2:, ::2].T[None].broadcast_to((5, 4, 6)).memory is x.memory
    assert in_use(sim) == before


@pytest.mark.parametrize("index", [4, -5, (0, 3), (..., 5), np.int64(4)], ids=repr)
def test_an_index_outside_is_refused(x: DeviceArray, index: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray[...]", "index", "an index from", repr(index), "(4, 3, 5)"):
        x[index]


@pytest.mark.parametrize("index", [(0, 0, 0, 0), (..., ...), (slice(None),) * 4], ids=repr)
def test_too_many_indices_are_refused(x: DeviceArray, index: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray[...]", "index", "at most 3 indices and one ..."):
        x[index]


@pytest.mark.parametrize(
    "index", [slice(None, None, -1), slice(None, None, 0), slice("a", None), slice(1.5, None)], ids=repr
)
def test_a_slice_goes_forward_between_integers(x: DeviceArray, index: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray[...]", "index", "a positive step", repr(index)):
        x[index]


def test_a_step_past_the_end_leaves_one_element_and_its_stride(device: Device) -> None:
    x = ptxrt.to_device(np.arange(8, dtype=np.float32), device)[:: 2**63]
    assert (x.shape, x.strides, x.to_host().tolist()) == ((1,), (1,), [0.0])


def test_an_index_adds_no_more_axes_than_there_may_be(x: DeviceArray) -> None:
    assert x[(None,) * 29].to_host().ndim == 32
    with refused(ptxrt.InvalidArgument, "DeviceArray[...]", "index", "at most 32 axes"):
        x[(None,) * 30]


@pytest.mark.parametrize("index", ["a", 1.0, True, [0, 1], np.array([0, 1])], ids=repr)
def test_only_integers_slices_dots_and_none_are_indices(x: DeviceArray, index: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray[...]", "index", "integers, slices, ... and None"):
        x[index]


def test_the_rows_of_an_array_can_be_walked(x: DeviceArray, host: np.ndarray) -> None:
    assert len(x) == 4
    assert_array_equal(np.stack([row.to_host() for row in x]), host)


@pytest.mark.parametrize("use", [len, list], ids=["len", "list"])
def test_an_array_without_axes_has_no_rows(device: Device, use: Any) -> None:
    with refused(ptxrt.InvalidArgument, "len", "array", "at least one axis"):
        use(ptxrt.zeros((), np.float32, device))


def test_an_array_has_no_truth_value(x: DeviceArray) -> None:
    with refused(ptxrt.InvalidArgument, "bool", "array", "to_host()"):
        bool(x)


@pytest.mark.parametrize("axes", [(), (2, 0, 1), (-1, 0, 1), ((1, 0, 2),), (np.int64(2), 1, 0)], ids=repr)
def test_transpose_is_numpys(x: DeviceArray, host: np.ndarray, axes: Any) -> None:
    assert_array_equal(x.transpose(*axes).to_host(), host.transpose(*axes))
    assert_array_equal(x.T.to_host(), host.T)


@pytest.mark.parametrize(
    "axes", [(0,), (0, 1), (0, 0, 1), (0, 1, 3), (0, 1, -4), (0, 1, 1.0), ("a", 0, 1), (None,)], ids=repr
)
def test_transpose_wants_each_axis_once(x: DeviceArray, axes: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray.transpose", "axes", "each of 3 axes once", str(axes)):
        x.transpose(*axes)


@pytest.mark.parametrize("shape", [(4, 3, 5), (2, 4, 3, 5), (7, 1, 4, 3, 5)], ids=str)
def test_broadcast_to_is_numpys(x: DeviceArray, host: np.ndarray, shape: Any) -> None:
    view = x.broadcast_to(shape)
    assert_array_equal(view.to_host(), np.broadcast_to(host, shape))
    assert view.strides[: len(shape) - 3] == (0,) * (len(shape) - 3)
    assert view.readonly


@pytest.mark.parametrize(
    ("old", "new"), [((3, 1), (3, 4)), ((1,), (0,)), ((), (2, 2)), ((1, 1), 5), ((0,), (2, 0))], ids=str
)
def test_axes_of_one_are_repeated(device: Device, old: Any, new: Any) -> None:
    host = np.arange(np.prod(old, dtype=int), dtype=np.float32).reshape(old)
    if isinstance(new, int):
        host = host.reshape(-1)
    view = ptxrt.to_device(host, device).broadcast_to(new)
    assert_array_equal(view.to_host(), np.broadcast_to(host, new))


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 6), (0, 3, 5), (5,), (), 5], ids=str)
def test_a_shape_that_does_not_broadcast_is_refused(x: DeviceArray, shape: Any) -> None:
    with refused(ptxrt.ShapeMismatch, "DeviceArray.broadcast_to", "shape", "one that (4, 3, 5) broadcasts to"):
        x.broadcast_to(shape)


@pytest.mark.parametrize(
    "shape", [(60,), (5, 12), (2, 2, 3, 5), (-1,), (4, -1), ([15, 4],), (np.int64(6), -1)], ids=repr
)
def test_view_is_numpys_reshape(x: DeviceArray, host: np.ndarray, shape: Any) -> None:
    view = x.view(*shape)
    assert view.ptr == x.ptr
    assert_array_equal(view.to_host(), host.reshape(*shape))


def test_a_view_of_one_element_has_any_number_of_axes(device: Device) -> None:
    x = ptxrt.zeros((), np.float32, device)
    assert x.view(1, 1).view().view(-1).shape == (1,)


def test_an_empty_array_can_be_viewed(device: Device) -> None:
    assert ptxrt.empty((0, 3), np.float32, device).view(5, 0).shape == (5, 0)


@pytest.mark.parametrize("shape", [(59,), (7, -1), (), (0, -1), (0,)], ids=str)
def test_view_wants_the_same_number_of_elements(x: DeviceArray, shape: Any) -> None:
    with refused(ptxrt.ShapeMismatch, "DeviceArray.view", "shape", "60 elements as in (4, 3, 5)"):
        x.view(*shape)


@pytest.mark.parametrize("shape", [(-1, -1), (-2, 30), (2.0, 30), ("a", -1), (None,), (-1, True)], ids=repr)
def test_view_wants_lengths(x: DeviceArray, shape: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray.view", "shape", "lengths of 0 or more"):
        x.view(*shape)


def test_view_wants_a_contiguous_array(x: DeviceArray) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.view", "array", "contiguous strides (12, 4, 1)", "(1, 5, 15)"):
        x.T.view(60)


@pytest.mark.parametrize(
    "index", [(slice(1, 3),), (2,), (slice(0, 1), slice(1, 2)), (slice(0, 0), slice(None, None, 2))], ids=repr
)
def test_a_view_without_gaps_is_contiguous(x: DeviceArray, index: Any) -> None:
    assert x[index].is_contiguous
    assert x[index].view(-1).ndim == 1 or x[index].size == 0


# Memory that somebody else owns -------------------------------------------------------------------------------------


def test_from_pointer_sees_the_memory(device: Device, x: DeviceArray, host: np.ndarray) -> None:
    y = DeviceArray.from_pointer(x.ptr + 4, (2, 3), "f4", str(device), strides=(15, 5))
    assert (y.shape, y.strides, y.dtype, y.device) == ((2, 3), (15, 5), np.dtype("f4"), device)
    assert_array_equal(y.to_host(), host[:2, :, 1])


def test_from_pointer_is_contiguous_by_default(device: Device, x: DeviceArray, host: np.ndarray) -> None:
    y = DeviceArray.from_pointer(x.ptr, 60, np.float32, device)
    assert_array_equal(y.to_host(), host.ravel())


def test_from_pointer_writes_through(device: Device, x: DeviceArray, host: np.ndarray) -> None:
    DeviceArray.from_pointer(x.ptr, 15, np.float32, device).fill_bytes(0)
    host[0] = 0
    assert_array_equal(x.to_host(), host)


def test_from_pointer_keeps_its_owner_and_frees_nothing(device: Device, host: np.ndarray) -> None:
    class Owner:
        array: DeviceArray

    import weakref

    owner = Owner()
    owner.array = ptxrt.to_device(host, device)
    alive = weakref.ref(owner)
    y = DeviceArray.from_pointer(owner.array.ptr, host.shape, "f4", device, owner=owner)[1:]
    del owner
    assert alive() is not None
    assert_array_equal(y.to_host(), host[1:])
    y.free()
    assert alive() is None


def test_from_pointer_without_owner_frees_nothing(device: Device, x: DeviceArray, host: np.ndarray) -> None:
    y = DeviceArray.from_pointer(x.ptr, host.shape, "f4", device)
    y.free()
    assert_array_equal(x.to_host(), host)


def test_from_pointer_takes_null_for_nothing(device: Device) -> None:
    assert DeviceArray.from_pointer(0, (0, 4), "f4", device).to_host().shape == (0, 4)


@pytest.mark.parametrize("ptr", [0, -4, 1 << 64, 4.0, None, "4"], ids=repr)
def test_from_pointer_wants_an_address(device: Device, ptr: Any) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray.from_pointer", "ptr", "a device address", repr(ptr)):
        DeviceArray.from_pointer(ptr, 3, np.float32, device)


def test_from_pointer_wants_natural_alignment(device: Device, x: DeviceArray) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.from_pointer", "ptr", "a multiple of 4, the size of f32"):
        DeviceArray.from_pointer(x.ptr + 2, 3, np.float32, device)


@pytest.mark.parametrize("strides", [(1,), (1, 1, 1), (-1, 1), (1.0, 1), "ab", 1, (True, 1)], ids=repr)
def test_from_pointer_wants_strides_that_fit_the_shape(device: Device, x: DeviceArray, strides: Any) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.from_pointer", "strides", "2 strides of 0 or more, in elements"):
        DeviceArray.from_pointer(x.ptr, (2, 2), np.float32, device, strides=strides)


@pytest.mark.parametrize(("shape", "strides"), [((1 << 62, 4), None), ((2, 2), (1, 1 << 62))], ids=["shape", "strides"])
def test_from_pointer_wants_memory_that_has_addresses(device: Device, x: DeviceArray, shape: Any, strides: Any) -> None:
    with refused(ptxrt.LayoutError, "DeviceArray.from_pointer", "shape", "2**64"):
        DeviceArray.from_pointer(x.ptr, shape, np.float32, device, strides=strides)


def test_from_pointer_wants_lengths(device: Device, x: DeviceArray) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray.from_pointer", "shape", "lengths of 0 or more"):
        DeviceArray.from_pointer(x.ptr, (2, -2), np.float32, device)


def test_from_pointer_wants_an_element_type(device: Device, x: DeviceArray) -> None:
    with refused(ptxrt.DTypeMismatch, "DeviceArray.from_pointer", "dtype", "one of f32"):
        DeviceArray.from_pointer(x.ptr, 2, np.complex64, device)


def test_on_sim_an_address_outside_every_allocation_is_no_array(sim: Device) -> None:
    x = ptxrt.empty(4, np.float32, sim)
    y = DeviceArray.from_pointer(x.ptr, 5, np.float32, sim)
    with refused(ptxrt.InvalidArgument, "view", "address", "inside one live allocation", "20 bytes"):
        y.to_host()


# Memory given back --------------------------------------------------------------------------------------------------

USES: dict[str, Callable[[DeviceArray], object]] = {
    "DeviceArray.to_host": lambda a: a.to_host(),
    "DeviceArray.fill_bytes": lambda a: a.fill_bytes(0),
    "DeviceArray.copy_from": lambda a: a.copy_from(np.zeros(a.shape, a.dtype)),
    "__dlpack__": lambda a: a.__dlpack__(),
    "from_dlpack": ptxrt.from_dlpack,
}


@pytest.mark.parametrize("op", USES)
@pytest.mark.parametrize("of_view", [False, True], ids=["array", "view"])
def test_using_a_freed_array_or_a_view_of_it_is_refused(x: DeviceArray, op: str, of_view: bool) -> None:
    view = x[1]
    x.free()
    with refused(ptxrt.InvalidArgument, op, "x" if op == "from_dlpack" else "array", "a live array", "free()"):
        USES[op](view if of_view else x)


@pytest.mark.parametrize(
    "look",
    [lambda a: a[0], lambda a: a.T, lambda a: a.view(-1), lambda a: a.broadcast_to((2, 4, 3, 5))],
    ids=["index", "transpose", "view", "broadcast"],
)
def test_looking_into_a_freed_array_is_refused(x: DeviceArray, look: Any) -> None:
    x.free()
    with refused(ptxrt.InvalidArgument, "DeviceArray view", "array", "a live array", "free()"):
        look(x)


def test_freeing_a_view_frees_the_whole(x: DeviceArray) -> None:
    x[1].free()
    with refused(ptxrt.InvalidArgument, "DeviceArray.to_host", "array", "free()"):
        x.to_host()


def test_freeing_twice_is_harmless(x: DeviceArray) -> None:
    x.free()
    x.free()
    assert not x.memory.alive


def test_a_freed_array_says_so(x: DeviceArray) -> None:
    assert "freed" not in repr(x)
    x.free()
    assert "freed" in repr(x)


def test_shape_and_type_of_a_freed_array_are_still_known(x: DeviceArray) -> None:
    x.free()
    assert (x.shape, x.dtype, x.nbytes) == ((4, 3, 5), np.dtype("f4"), 240)


def test_an_array_of_another_device_is_freed_there(device: Device, other_device: Device, host: np.ndarray) -> None:
    one, two = ptxrt.to_device(host, device), ptxrt.to_device(-host, other_device)
    one.free()
    assert_array_equal(two.to_host(), -host)


def in_use(device: Device) -> int:
    return BACKEND._memory(device.ordinal).bytes_in_use


def in_use_once_settled(device: Device) -> int:
    """Return the same with nothing left in it that a collection in the middle of the test would give back."""
    gc.collect()
    return in_use(device)


def test_memory_goes_back_when_the_last_view_dies(sim: Device) -> None:
    before = in_use_once_settled(sim)
    x = ptxrt.zeros((10, 10), np.float64, sim)
    view = x[2:].T
    del x
    assert in_use(sim) == before + 800
    del view
    assert in_use(sim) == before


def test_free_gives_memory_back_at_once(sim: Device) -> None:
    before = in_use_once_settled(sim)
    x = ptxrt.zeros((10, 10), np.float64, sim)
    view = x[2:]
    x.free()
    assert in_use(sim) == before
    assert not view.memory.alive


def test_an_array_of_nothing_takes_no_memory(device: Device) -> None:
    x = ptxrt.empty((0, 7), np.float32, device)
    assert (x.ptr, x.nbytes) == (0, 0)
    x.free()


@pytest.mark.parametrize("again", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_device_memory_is_neither_pickled_nor_copied_behind_ones_back(x: DeviceArray, again: Any) -> None:
    with refused(ptxrt.InvalidArgument, "pickle", "array", "to_host()"):
        again(x)


def test_a_shallow_copy_is_a_view(x: DeviceArray, host: np.ndarray) -> None:
    y = copy.copy(x)
    assert y.memory is x.memory
    del x
    assert_array_equal(y.to_host(), host)


@pytest.mark.parametrize(
    "make",
    [
        lambda device: ptxrt.empty((0, 1 << 62, 4), np.float32, device),
        lambda device: ptxrt.empty((1 << 60, 0, 2), np.float32, device),
        lambda device: ptxrt.zeros(1, np.float32, device).broadcast_to((1 << 40, 1 << 40)),
    ],
    ids=["empty", "just too large", "repeated"],
)
def test_an_array_of_a_shape_that_numpy_has_not_stays_on_the_device(device: Device, make: Any) -> None:
    x = make(device)
    with refused(ptxrt.InvalidArgument, "DeviceArray.to_host", "array", "below 2**63 bytes", str(x.shape)):
        x.to_host()
    with refused(ptxrt.InvalidArgument, "__dlpack__", "array", "below 2**63 bytes", str(x.shape)):
        x.__dlpack__()
    assert str(x.shape) in repr(x)


def test_a_shape_that_numpy_just_has_comes_to_the_host(device: Device) -> None:
    shape = (0, 1 << 60)
    x = ptxrt.empty(shape, np.float32, device)
    assert x.to_host().shape == shape
    assert repr(x).startswith("DeviceArray([], ")


SIZES: dict[str, Any] = {
    "a driver knows": 1 << 50,
    "no driver can count": (1 << 40, 1 << 40),
    "no one can write": (1 << 62,) * 32,
}


@pytest.mark.parametrize("size", SIZES)
def test_more_memory_than_there_is_is_refused(device: Device, size: str) -> None:
    known = size == "a driver knows" and device.kind != "sim"
    with refused(ptxrt.OutOfDeviceMemory, "allocate", None if known else "nbytes"):
        ptxrt.empty(SIZES[size], np.uint8, device)
    assert ptxrt.zeros(3, np.uint8, device).to_host().sum() == 0


def test_out_of_memory_on_sim_names_the_numbers_and_the_device_works_on() -> None:
    script = """
        import numpy as np, ptxrt
        device = ptxrt.Device("sim:0")
        held = ptxrt.zeros(600, np.uint8, device)
        try:
            ptxrt.empty(401, np.uint8, device)
        except ptxrt.OutOfDeviceMemory as error:
            print(error.op, error.argument, error.expected, error.given)
        assert ptxrt.zeros(400, np.uint8, device).to_host().sum() == 0
        held.free()
        assert ptxrt.zeros(1000, np.uint8, device).nbytes == 1000
    """
    assert printed_by(script, PTXRT_SIM_MEMORY="1000") == "allocate nbytes at most 400 401"


def test_each_sim_device_has_memory_of_its_own() -> None:
    script = """
        import numpy as np, ptxrt
        arrays = [ptxrt.empty(900, np.uint8, name) for name in ("sim:0", "sim:1")]
        print(len(arrays))
    """
    assert printed_by(script, PTXRT_SIM_MEMORY="1000") == "2"


def test_bfloat16_is_that_of_ml_dtypes(device: Device) -> None:
    x = ptxrt.to_device(np.array([1.5, -2], ml_dtypes.bfloat16), device)
    assert x.dtype is np.dtype(ml_dtypes.bfloat16)
    assert x.to_host().astype(float).tolist() == [1.5, -2]


def test_a_view_of_a_read_only_view_is_read_only(device: Device) -> None:
    wide = ptxrt.zeros(3, np.float32, device).broadcast_to((2, 3))
    assert wide[0].readonly
    assert wide.transpose().readonly


def test_copying_between_overlapping_views_is_refused(device: Device) -> None:
    x = ptxrt.to_device(np.arange(8, dtype=np.float32), device)
    with refused(ptxrt.LayoutError, "DeviceArray.copy_from", "source", "does not overlap"):
        x[1:].copy_from(x[:-1])
    x.copy_from(x)
    x[4:].copy_from(x[:4])
    np.testing.assert_array_equal(x.to_host(), [0, 1, 2, 3] * 2)


def test_true_is_no_address(device: Device) -> None:
    with refused(ptxrt.InvalidArgument, "DeviceArray.from_pointer", "ptr"):
        DeviceArray.from_pointer(True, 1, np.uint8, device)
