"""Looking at arrays and writing to them: repr, numpy, copy, fill, full, ones, reshape, x[...] = y."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import ELEMENT_NAMES, Patch, refused
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import ptxrt
from ptxrt import Device, DeviceArray
from ptxrt.dtypes import BY_NAME
from ptxrt.errors import shown

# What an array looks like -----------------------------------------------------------------------------------------


def looks(x: DeviceArray, host: np.ndarray) -> None:
    """Check that the values are printed as NumPy prints those of a host array."""
    values = np.array2string(host, separator=", ", prefix="DeviceArray(")
    tail = f"shape={host.shape}, dtype={host.dtype}, device='{x.device}')"
    assert repr(x) == str(x) == f"DeviceArray({values}, {tail}"


SHAPES = [(), (1,), (7,), (3, 5), (0,), (3, 0, 2), (1000,), (1001,), (2000, 3), (3, 2000), (40, 50), (12, 3, 7, 20),
          (5000, 1), (7, 7, 7, 7), (6, 200), (2,) * 9]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["f32", "f64", "bf16", "i32", "bool"])
def test_values_are_shown_as_numpy_shows_them(
    device: Device, shape: tuple[int, ...], name: str, rng: np.random.Generator
) -> None:
    host = (rng.standard_normal(shape) * 100).astype(BY_NAME[name].numpy)
    looks(ptxrt.to_device(host, device), host)


@pytest.mark.parametrize("view", [
    lambda a: a.T, lambda a: a[:, ::7], lambda a: a[::3, 5], lambda a: a[4:6], lambda a: a[..., None],
    lambda a: a[3, 4],
], ids=["transposed", "strided", "column", "rows", "new axis", "element"])  # fmt: skip
def test_views_are_shown_as_numpy_shows_them(device: Device, view: Any) -> None:
    host = np.arange(300 * 40, dtype=np.float32).reshape(300, 40)
    looks(view(ptxrt.to_device(host, device)), view(host))


@pytest.mark.parametrize("shape", [(2**50,), (2**40, 2**40), (3, 2**40, 2)], ids=str)
def test_a_view_that_repeats_more_than_the_host_holds_is_shown(device: Device, shape: tuple[int, ...]) -> None:
    one = ptxrt.ones(1, device=device)
    shown_as = repr(one.broadcast_to(shape))
    rows = [min(length, 4096) for length in shape]
    assert shown_as.partition(", shape=")[0] == repr(one.broadcast_to(rows)).partition(", shape=")[0]


def test_numpys_print_options_are_followed(device: Device) -> None:
    host = np.linspace(0, 1, 60, dtype=np.float64)
    x = ptxrt.to_device(host, device)
    for threshold, edge, precision in ((10, 1, 8), (10, 5, 8), (1000, 3, 2)):
        with np.printoptions(threshold=threshold, edgeitems=edge, precision=precision):
            looks(x, host)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(1, 4), st.integers(0, 30))
def test_any_cut_is_numpys(shape: list[int], edge: int, threshold: int) -> None:
    host = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    with np.printoptions(edgeitems=edge, threshold=threshold):
        looks(ptxrt.to_device(host, "sim:0"), host)


def copied(device: Device, monkeypatch: Patch) -> list[int]:
    """Return a list that gets the bytes of each copy to the host."""
    sizes: list[int] = []
    copy_out = device.backend.copy_out

    def counted(ordinal: int, host: memoryview, ptr: int, stream: int) -> None:
        sizes.append(len(host))
        copy_out(ordinal, host, ptr, stream)

    monkeypatch.setattr(device.backend, "copy_out", counted)
    return sizes


@pytest.mark.parametrize(("shape", "most"), [((1 << 20,), 100), ((4096, 256), 1000), ((64, 64, 256), 4000)], ids=str)
def test_only_the_edges_are_copied(device: Device, monkeypatch: Patch, shape: tuple[int, ...], most: int) -> None:
    x = ptxrt.zeros(shape, np.float32, device)
    sizes = copied(device, monkeypatch)
    repr(x)
    assert 0 < sum(sizes) <= most
    repr(x.T)
    repr(x[::2])
    assert sum(sizes) < 1 << 16


def test_what_is_shown_whole_is_copied_at_once(device: Device, monkeypatch: Patch) -> None:
    x = ptxrt.zeros((10, 100), np.float64, device)
    sizes = copied(device, monkeypatch)
    repr(x)
    assert sizes == [8000]


def test_a_short_row_is_copied_at_once(device: Device, monkeypatch: Patch) -> None:
    x = ptxrt.zeros((100, 40), np.float32, device)
    sizes = copied(device, monkeypatch)
    repr(x)
    assert sizes == [160] * 7


def test_many_axes_are_not_read(device: Device, monkeypatch: Patch) -> None:
    x = ptxrt.zeros((2,) * 12, np.float32, device)
    sizes = copied(device, monkeypatch)
    assert repr(x).startswith("DeviceArray(<many axes>, shape=(2, 2, ")
    assert not sizes
    # Of fewer axes the first and the last of each are shown, instead of three.
    assert repr(ptxrt.zeros((9,) * 6, np.float32, device)).count("0.") == 2**6


def test_a_freed_array_is_shown_without_values(device: Device) -> None:
    x = ptxrt.zeros((2, 3), np.float32, device)
    x.free()
    assert repr(x) == f"DeviceArray(<freed>, shape=(2, 3), dtype=float32, device='{device}')"


def test_a_repr_raises_no_error_of_the_device(device: Device, monkeypatch: Patch) -> None:
    x = ptxrt.zeros(3, np.float32, device)

    def broken(*_: Any) -> None:
        raise ptxrt.DriverError("the device is gone")

    monkeypatch.setattr(device.backend, "copy_out", broken)
    assert repr(x) == f"DeviceArray(<DriverError when read>, shape=(3,), dtype=float32, device='{device}')"


def test_a_repr_sees_the_work_of_every_stream(device: Device) -> None:
    side = ptxrt.Stream(device)
    x = ptxrt.zeros(1 << 20, np.int32, device)
    device.synchronize()
    for value in range(5):
        x.fill(value, side)
    assert repr(x).startswith("DeviceArray([4, 4, 4, ..., 4, 4, 4], ")


def test_a_repr_disturbs_no_graph_that_is_being_captured(cuda: Device) -> None:
    driver: Any = pytest.importorskip("cuda.bindings.driver")
    x = ptxrt.full(3, 1, np.int32, cuda)
    side = ptxrt.Stream(cuda)
    y = ptxrt.full(3, 2, np.int32, cuda, stream=side)
    cuda.synchronize()
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL
    assert int(driver.cuStreamBeginCapture(side.handle, mode)[0]) == 0
    y.fill_bytes(0, side)
    assert "[1, 1, 1]" in repr(x)
    assert "<its stream is being captured>" in repr(y)
    status, graph = driver.cuStreamEndCapture(side.handle)
    assert int(status) == 0
    driver.cuGraphDestroy(graph)
    assert "[2, 2, 2]" in repr(y)  # what was captured has not run


def test_nothing_is_read_where_a_stream_is_being_captured(device: Device, monkeypatch: Patch) -> None:
    x = ptxrt.zeros(3, np.float32, device)
    sizes = copied(device, monkeypatch)
    monkeypatch.setattr(device.backend, "looking", lambda ordinal, streams: nullcontext(streams != (0,)))
    assert repr(x).startswith("DeviceArray(<its stream is being captured>, ")
    assert not sizes


def test_an_errors_message_reads_no_values(device: Device, monkeypatch: Patch) -> None:
    x = ptxrt.zeros(3, np.float32, device)
    sizes = copied(device, monkeypatch)
    assert shown(x) == f"<DeviceArray float32[3] strides [1] on {device}>"
    with pytest.raises(ptxrt.InvalidArgument, match="<DeviceArray float32"):
        bool(x)
    assert not sizes


# numpy, reshape, copy ---------------------------------------------------------------------------------------------


def test_numpy_copies_on_every_device(device: Device) -> None:
    x = ptxrt.to_device(np.arange(4, dtype=np.float32), device)
    host = x.numpy()
    host[0] = 9
    assert_array_equal(x.numpy(), [0, 1, 2, 3])


def test_reshape_is_a_view(device: Device) -> None:
    x = ptxrt.to_device(np.arange(6, dtype=np.int32), device)
    assert x.reshape(2, -1).ptr == x.ptr
    assert_array_equal(x.reshape((3, 2)).numpy(), np.arange(6).reshape(3, 2))


def test_a_copy_is_memory_of_its_own(device: Device) -> None:
    x = ptxrt.to_device(np.arange(6, dtype=np.float32).reshape(2, 3), device)
    y = x[1:].copy()
    assert (y.shape, y.dtype, y.device, y.strides) == ((1, 3), x.dtype, device, (3, 1))
    x.fill(0)
    assert_array_equal(y.numpy(), [[3, 4, 5]])
    assert ptxrt.empty((0, 2), np.float32, device).copy().shape == (0, 2)


def test_a_copy_of_a_read_only_array_may_be_written(sim: Device) -> None:
    host = np.arange(3, dtype=np.float32)
    host.flags.writeable = False
    y = ptxrt.from_dlpack(host, sim).copy()
    y.fill(1)
    assert (y.numpy().tolist(), host.tolist()) == ([1, 1, 1], [0, 1, 2])


def test_a_strided_view_is_not_copied(device: Device) -> None:
    x = ptxrt.zeros((3, 4), np.float32, device)
    with refused(ptxrt.LayoutError, "DeviceArray.copy", "array", "contiguous", "ptxrt.to_device(x.numpy(), x.device)"):
        x.T.copy()
    assert ptxrt.to_device(x.T.numpy(), x.device).shape == (4, 3)  # the remedy


def test_a_copy_is_ordered_on_its_stream(device: Device) -> None:
    stream = ptxrt.Stream(device)
    x = ptxrt.zeros(1 << 20, np.int32, device)
    stream.wait(device.default_stream)
    x.fill(5, stream)
    y = x.copy(stream)
    assert y.memory.stream is stream
    assert (y.to_host(stream) == 5).all()


# fill, full, ones -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1000, 4097])
@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_fill_sets_every_element_and_no_other(device: Device, name: str, size: int) -> None:
    dtype = BY_NAME[name].numpy
    x = ptxrt.zeros(size + 2, dtype, device)
    value = 1 if name == "bool" else 101
    x[1:-1].fill(value)
    assert x.numpy().tolist() == [0, *[value] * size, 0]


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_full_and_ones(device: Device, name: str) -> None:
    dtype = BY_NAME[name].numpy
    assert_array_equal(ptxrt.full((2, 3), 1, dtype, device).numpy(), np.full((2, 3), 1, dtype))
    assert_array_equal(ptxrt.ones((2, 3), dtype, device).numpy(), np.ones((2, 3), dtype))
    assert ptxrt.full((0, 3), 1, dtype, device).shape == (0, 3)


def test_a_value_is_rounded_to_the_dtype_once(device: Device) -> None:
    for value in (0.1, -1e-30, float("nan"), float("-inf"), 1 + 2**-8 + 2**-40):
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
            got = ptxrt.full(3, value, dtype, device).numpy().astype(np.float64)
            exact = np.float64(value)
            if dtype is not ml_dtypes.bfloat16:
                assert_array_equal(got, np.full(3, exact.astype(dtype), np.float64))
    assert float(ptxrt.full((), 1 + 2**-8 + 2**-40, ml_dtypes.bfloat16, device).numpy()) == 1 + 2**-7


@pytest.mark.parametrize(("dtype", "value"), [
    (np.int32, 2.5), (np.int32, 2**31), (np.uint8, -1), (np.float32, 1e39), (np.float16, 1e6), (np.bool_, 2),
    (np.float32, "1"), (np.float32, None), (np.float32, [1.0]), (np.int64, 1.0),
])  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(device: Device, dtype: Any, value: Any) -> None:
    x = ptxrt.zeros(3, dtype, device)
    with refused(ptxrt.InvalidArgument, "DeviceArray.fill", "value", "that fits"):
        x.fill(value)
    with refused(ptxrt.InvalidArgument, "full", "value", "that fits"):
        ptxrt.full(3, value, dtype, device)
    assert not x.numpy().any()


def test_full_that_is_refused_allocates_nothing(monkeypatch: Patch, sim: Device) -> None:
    monkeypatch.setattr(sim.backend, "allocate", None)
    with pytest.raises(ptxrt.InvalidArgument):
        ptxrt.full(3, 2.5, np.int32, sim)


def test_fill_wants_a_contiguous_array_that_may_be_written(device: Device) -> None:
    x = ptxrt.zeros((2, 4), np.float32, device)
    with refused(ptxrt.LayoutError, "DeviceArray.fill", "array", "contiguous", "launch a kernel"):
        x[:, 1].fill(1)
    with refused(ptxrt.LayoutError, "DeviceArray.fill", "array", "may be written"):
        x.broadcast_to(x.shape).fill(1)
    x.free()
    with refused(ptxrt.InvalidArgument, "DeviceArray.fill", "array", "freed"):
        x.fill(1)


def test_fill_is_ordered_on_its_stream_and_its_memory_is_held_for_it(device: Device) -> None:
    stream = ptxrt.Stream(device)
    x = ptxrt.zeros(3, np.float64, device)
    device.synchronize()  # the zeros are written on the default stream
    x.fill(2.5, stream)
    assert stream.handle in x.memory.users
    assert x.to_host(stream).tolist() == [2.5] * 3


# x[...] = y -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "value"), [
    (..., 7), (1, 2.5), (slice(1, 3), np.arange(15, dtype=np.float32).reshape(3, 5)), ((2, 1), -1),
    ((0, 1, slice(1, 4)), np.ones(3, np.float32)), (..., np.arange(5, dtype=np.float32)), ((3, 2, 4), np.float64(0.5)),
    (slice(0, 0), 3), ((), np.float32(4)), ((1, 2, 3), np.array(8, np.float32)),
], ids=str)  # fmt: skip
def test_assignment_is_numpys(device: Device, index: Any, value: Any) -> None:
    host = np.arange(60, dtype=np.float32).reshape(4, 3, 5)
    x = ptxrt.to_device(host, device)
    x[index] = value
    host[index] = value
    assert_array_equal(x.numpy(), host)


def test_assignment_of_a_device_array(device: Device) -> None:
    x, y = ptxrt.zeros((3, 4), np.float32, device), ptxrt.full(4, 2, np.float32, device)
    x[1] = y
    assert x.numpy().sum(1).tolist() == [0, 8, 0]
    with refused(ptxrt.ShapeMismatch, "DeviceArray[...] =", "value", "(3, 4)", "(4,)"):
        x[...] = y


def test_assignment_to_a_strided_view_is_refused(device: Device) -> None:
    x = ptxrt.zeros((3, 4), np.float32, device)
    for value in (1, np.ones(3, np.float32), ptxrt.ones(3, np.float32, device)):
        with refused(ptxrt.LayoutError, "DeviceArray[...] =", "array", "contiguous", "x[2:4], or launch a kernel"):
            x[:, 1] = value
    assert not x.numpy().any()


@pytest.mark.parametrize(("value", "kind", "words"), [
    (np.ones(3, np.float32), ptxrt.ShapeMismatch, "broadcasts to (2, 4)"), (np.ones(4), ptxrt.DTypeMismatch, "float64"),
    (None, ptxrt.InvalidArgument, "NoneType"), ("1", ptxrt.DTypeMismatch, "<U1"), (1e39, ptxrt.InvalidArgument, "f32"),
], ids=str)  # fmt: skip
def test_an_assignment_that_cannot_be_is_refused(device: Device, value: Any, kind: Any, words: str) -> None:
    x = ptxrt.zeros((2, 4), np.float32, device)
    with refused(kind, "DeviceArray[...] =", "value", words):
        x[...] = value
    assert not x.numpy().any()


def test_assignment_to_what_may_not_be_written(device: Device) -> None:
    x = ptxrt.zeros((2, 4), np.float32, device)
    with refused(ptxrt.LayoutError, "DeviceArray[...] =", "array", "may be written"):
        x.broadcast_to((3, 2, 4))[0] = 1
    x.free()
    with refused(ptxrt.InvalidArgument, "DeviceArray view", "array", "freed"):
        x[0] = 1


def test_a_repr_keeps_nothing_alive(device: Device) -> None:
    x = ptxrt.zeros(3, np.float32, device)
    repr(x)
    gc.collect()
    assert len(x.memory.users) == 1
