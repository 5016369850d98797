"""Arrays and streams of other libraries, in and out: DLPack, __cuda_array_interface__, __cuda_stream__."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import ELEMENT_NAMES, refused
from numpy.testing import assert_array_equal
from texts import SAXPY, SAXPY_SIGNATURE, source_for

import ptxrt
from ptxrt import Device
from ptxrt.backends import capsules
from ptxrt.backends.sim import BACKEND
from ptxrt.dtypes import BY_NAME

IN_DLPACK = [name for name in ELEMENT_NAMES if name != "bf16"]  # NumPy's DLPack has no bfloat16
NUMPY_2 = int(np.__version__.split(".")[0]) >= 2


def mapped(device: Device) -> int:
    """How many arrays the machine's memory holds."""
    return len(BACKEND._memory(device.ordinal).table.allocations)


def load_saxpy(device: Device) -> ptxrt.Kernel:
    return ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)


class Producer:
    """An array of another library, as far as its word goes."""

    def __init__(self, kind: int, ordinal: int = 0, error: Exception | None = None) -> None:
        self.place, self.error = (kind, ordinal), error

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.place

    def __dlpack__(self, **_: Any) -> Any:
        raise self.error or AssertionError("never asked")


class Tensor:
    """A tensor of bfloat16 in host memory, as torch has it: NumPy cannot read it, and DLPack can."""

    def __init__(self, values: np.ndarray) -> None:
        self.bits = values.view(np.uint16)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.bits.__dlpack_device__()

    def __dlpack__(self, **how: Any) -> Any:
        capsule = self.bits.__dlpack__(**how)
        capsules.set_type(capsule, capsules.BFLOAT)
        return capsule


class Interface:
    """An array that has __cuda_array_interface__ and nothing else."""

    def __init__(self, other: Any) -> None:
        self.other = other
        self.__cuda_array_interface__ = dict(other if isinstance(other, dict) else other.__cuda_array_interface__)


# NumPy's arrays on sim --------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "contiguous": lambda a: a,
    "transposed": lambda a: a.T,
    "strided": lambda a: a[1:, ::2],
    "broadcast": lambda a: np.broadcast_to(a[0], (3, 6)),
    "no axes": lambda a: a[1, 2, ...],
    "empty": lambda a: a[:0],
    "empty inside": lambda a: a[:, 2:2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_a_numpy_array_is_seen_as_it_lies(sim: Device, name: Any, layout: Any) -> None:
    host = LAYOUTS[layout](np.arange(24).reshape(4, 6).astype(BY_NAME[name].numpy))
    x = ptxrt.from_dlpack(host)
    assert (x.device, x.shape, x.dtype) == (sim, host.shape, host.dtype)
    if host.size:
        assert x.strides == tuple(step // host.itemsize for step in host.strides)
    assert_array_equal(x.to_host(), host)


def test_a_numpy_array_and_its_device_array_are_the_same_memory(sim: Device) -> None:
    host = np.zeros((2, 3), np.float32)
    x = ptxrt.from_dlpack(host)
    host[1, 2] = 5
    assert x.to_host()[1, 2] == 5
    x.fill_bytes(0)
    assert not host.any()


def test_a_kernel_works_on_a_numpy_array_in_place(sim: Device) -> None:
    x, y = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    load_saxpy(sim).launch(1, 64, ptxrt.from_dlpack(x), ptxrt.from_dlpack(y), 64, 2.0)
    assert_array_equal(y, 2 * x + 1)


def test_a_view_of_a_shared_array_does_not_reach_outside(sim: Device) -> None:
    host = np.zeros(8, np.float32)
    x = ptxrt.from_dlpack(host[2:6])
    with refused(ptxrt.MemoryFault, "saxpy", None):
        load_saxpy(sim).launch(1, 8, x, ptxrt.zeros(8, np.float32, sim), 8, 1.0)


def test_a_readonly_numpy_array_stays_readonly(sim: Device) -> None:
    host = np.ones(4, np.float32)
    host.flags.writeable = False
    x = ptxrt.from_dlpack(host)
    assert x.readonly
    assert_array_equal(x.to_host(), host)
    with refused(ptxrt.LayoutError, "DeviceArray.fill_bytes", "array", "imported as read-only"):
        x.fill_bytes(0)


def test_a_writable_numpy_array_stays_writable(sim: Device) -> None:
    assert not ptxrt.from_dlpack(np.ones(4, np.float32)).readonly


def test_host_memory_is_used_by_the_sim_device_that_is_asked(sim: Device) -> None:
    assert ptxrt.from_dlpack(np.ones(4), "sim:1").device is Device("sim:1")


def test_the_shared_array_lives_as_long_as_its_device_array(sim: Device) -> None:
    gc.collect()
    host = np.ones(4, np.float32)
    alive, before = weakref.ref(host), mapped(sim)
    x = ptxrt.from_dlpack(host)[1:]
    del host
    gc.collect()
    assert alive() is not None
    assert_array_equal(x.to_host(), np.ones(3))
    del x
    gc.collect()
    assert alive() is None
    assert mapped(sim) == before


def test_letting_go_of_a_shared_array_leaves_it_to_its_owner(sim: Device) -> None:
    host = np.ones(4, np.float32)
    x = ptxrt.from_dlpack(host)
    x.free()
    assert_array_equal(host, np.ones(4))
    with refused(ptxrt.InvalidArgument, "DeviceArray.to_host", "array", "free()"):
        x.to_host()


@pytest.mark.parametrize(("x", "out"), [(slice(0, 4), slice(2, 6)), (slice(2, 6), slice(0, 4))])
def test_parts_of_a_numpy_array_overlap_on_sim_as_on_the_host(sim: Device, x: Any, out: Any) -> None:
    host = np.ones((6, 2, 3, 3), np.float32)
    with refused(ptxrt.LayoutError, "softmax2d", "out", "memory not shared with x"):
        ptxrt.ops.softmax2d(ptxrt.from_dlpack(host[x]), out=ptxrt.from_dlpack(host[out]))
    assert host.all()


def test_arrays_that_overlap_and_are_no_parts_of_one_are_refused(sim: Device) -> None:
    lent = bytearray(64)
    before = mapped(sim)
    x = ptxrt.from_dlpack(np.frombuffer(lent, np.float32, 8))
    with refused(ptxrt.InvalidArgument, "from_dlpack", "x", "overlaps", "Import the whole array first"):
        ptxrt.from_dlpack(np.frombuffer(lent, np.float32))
    x.free()
    assert mapped(sim) == before


REFUSED = {
    "reversed": (np.arange(6.0)[::-1], ptxrt.LayoutError, "strides of 0 or more, given (-1,), in elements"),
    "complex": (np.ones(3, complex), ptxrt.DTypeMismatch, "one of f32"),
    "big-endian": (np.ones(3, ">f4"), ptxrt.DTypeMismatch, "one of f32"),
    "object": (np.ones(3, object), ptxrt.DTypeMismatch, "one of f32"),
    "text": (np.array(["a", ""]), ptxrt.DTypeMismatch, "one of f32"),
    "odd strides": (np.zeros(3, [("a", "f4"), ("b", "i2")])["a"], ptxrt.InvalidArgument, "no multiples of 4"),
    "masked": (np.ma.array([1.0, 2.0], mask=[True, False]), ptxrt.InvalidArgument, "elements of it are masked"),
}
if NUMPY_2:  # NumPy 1 has no more axes than we
    REFUSED["axes"] = (np.ones((1,) * 33), ptxrt.InvalidArgument, "at most 32 axes")


@pytest.mark.parametrize("case", REFUSED)
def test_a_numpy_array_that_no_kernel_can_take_is_refused_and_not_held(sim: Device, case: Any) -> None:
    host, kind, word = REFUSED[case]
    gc.collect()
    before = mapped(sim)
    with refused(kind, "from_dlpack", "x", word):
        ptxrt.from_dlpack(host)
    assert mapped(sim) == before


def test_a_masked_array_without_a_masked_element_is_shared(sim: Device) -> None:
    assert_array_equal(ptxrt.from_dlpack(np.ma.array([1.0, 2.0])).to_host(), [1, 2])


# bfloat16 on the host, which NumPy's DLPack has not ---------------------------------------------------------------

VALUES = np.arange(24, dtype=ml_dtypes.bfloat16).reshape(4, 6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_bfloat16_tensor_of_the_host_is_seen_as_it_lies(sim: Device, layout: Any) -> None:
    given = LAYOUTS[layout](VALUES)
    if not given.flags.writeable and not NUMPY_2:
        pytest.skip("NumPy 1 exports no read-only array, which this tensor is made of")
    shared = ptxrt.from_dlpack(Tensor(given), sim)
    assert shared.dtype == ml_dtypes.bfloat16
    assert_array_equal(shared.to_host(), given)


def test_a_bfloat16_tensor_of_the_host_and_its_device_array_are_the_same_memory(sim: Device) -> None:
    values = VALUES.copy()
    shared = ptxrt.from_dlpack(Tensor(values), sim)
    values[1, 2] = 100
    assert shared.to_host()[1, 2] == 100
    if NUMPY_2:  # NumPy 1 reads every DLPack as read-only
        shared.fill_bytes(0)
        assert not values.any()


def test_a_bfloat16_tensor_of_the_host_is_copied_to_a_device(device: Device) -> None:
    copied = ptxrt.to_device(Tensor(VALUES), device)
    assert copied.dtype == ml_dtypes.bfloat16
    assert_array_equal(copied.to_host(), VALUES)
    copied.copy_from(Tensor(VALUES[::-1].copy()))
    assert_array_equal(copied.to_host(), VALUES[::-1])


def test_a_tensor_of_another_devices_memory_is_not_read_as_the_hosts(device: Device) -> None:
    class Elsewhere(Tensor):
        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with refused(ptxrt.InvalidArgument, "to_device", "array", "a host array", "from_dlpack takes a device array"):
        ptxrt.to_device(Elsewhere(VALUES), device)


def test_torchs_tensors_of_the_host_are_accepted(device: Device) -> None:
    torch = pytest.importorskip("torch")
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):
        given = torch.arange(6).to(dtype).reshape(2, 3)
        wanted = np.arange(6).reshape(2, 3).astype(bool if dtype is torch.bool else np.int64)
        assert_array_equal(ptxrt.to_device(given, device).to_host().astype(wanted.dtype), wanted)
        if device.kind == "sim":
            assert_array_equal(ptxrt.from_dlpack(given.T, device).to_host().astype(wanted.dtype), wanted.T)
    ways = ("Tensor in host memory", "Write x = ptxrt.to_device(x)")
    with refused(ptxrt.InvalidArgument, "softmax2d", "x", *ways):
        ptxrt.ops.softmax2d(torch.zeros(1, 2, 3, 4))
    with refused(ptxrt.InvalidArgument, "from_dlpack", "x", "gradient", "detach"):
        ptxrt.from_dlpack(torch.zeros(3, requires_grad=True))


# From anywhere ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [None, 3, [1.0], "x", object()], ids=lambda other: type(other).__name__)
def test_what_has_no_protocol_is_refused(other: Any) -> None:
    with refused(ptxrt.InvalidArgument, "from_dlpack", "x", "__dlpack__ or __cuda_array_interface__", "to_device"):
        ptxrt.from_dlpack(other)


def test_memory_of_a_cuda_device_is_not_on_sim(sim: Device) -> None:
    with refused(ptxrt.DeviceMismatch, "from_dlpack", "x", "memory of sim:0", "memory of cuda:1"):
        ptxrt.from_dlpack(Producer(2, 1), sim)


def test_host_memory_is_not_on_cuda(cuda: Device) -> None:
    with refused(ptxrt.DeviceMismatch, "from_dlpack", "x", "memory of cuda:0", "host memory"):
        ptxrt.from_dlpack(np.ones(3), cuda)


@pytest.mark.parametrize("other", [Producer(2), Interface({"data": (512, False)})], ids=["dlpack", "interface"])
def test_cuda_memory_without_cuda_is_unavailable(other: Any) -> None:
    try:
        Device("cuda")
    except ptxrt.BackendUnavailable:
        with refused(ptxrt.BackendUnavailable, "Device", "name", "cuda:0 cannot be used"):
            ptxrt.from_dlpack(other)
    else:
        pytest.skip("there is a cuda device")


@pytest.mark.parametrize("kind", [3, 4, 11, 13])
def test_memory_of_another_kind_is_unsupported(kind: int) -> None:
    with refused(ptxrt.Unsupported, "from_dlpack", "x", "a CUDA or HIP device", f"type {kind}", "Copy"):
        ptxrt.from_dlpack(Producer(kind))


def test_the_refusal_of_the_other_library_is_shown(sim: Device) -> None:
    with refused(ptxrt.InvalidArgument, "from_dlpack", "x", "BufferError: requires grad") as caught:
        ptxrt.from_dlpack(Producer(1, error=BufferError("requires grad")))
    assert isinstance(caught.value.__cause__, BufferError)


def test_our_own_array_comes_back_as_a_view(device: Device) -> None:
    x = ptxrt.zeros((2, 3), np.float32, device)
    y = ptxrt.from_dlpack(x.T)
    assert (y.memory is x.memory, y.shape, y.strides, y.ptr) == (True, (3, 2), (1, 3), x.ptr)


def test_our_own_array_is_not_on_another_device(device: Device, other_device: Device) -> None:
    with refused(ptxrt.DeviceMismatch, "from_dlpack", "x", f"an array on {other_device}", f"one on {device}"):
        ptxrt.from_dlpack(ptxrt.zeros(3, np.float32, device), other_device)


HOSTS: Any = {
    "numpy": np.ones(64, np.float32),
    "list": [1.0] * 64,
    "number": 1.0,
    "none": None,
    "dlpack": Producer(1),
}


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("place", ["x", "y"])
def test_a_kernel_takes_no_host_array(device: Device, host: str, place: str) -> None:
    arrays = {name: ptxrt.zeros(64, np.float32, device) for name in ("x", "y")} | {place: HOSTS[host]}
    with refused(
        ptxrt.InvalidArgument, "saxpy", place, "a DeviceArray", f'Write {place} = ptxrt.to_device({place}, "{device}")'
    ):
        load_saxpy(device).launch(1, 64, arrays["x"], arrays["y"], 64, 1.0)


@pytest.mark.parametrize(
    ("host", "place"),
    # None is allowed for the others.
    [("none", "x"), *((host, place) for host in HOSTS if host != "none" for place in ("x", "weight", "bias", "out"))],
)
def test_an_op_takes_no_host_array(device: Device, host: str, place: str) -> None:
    good: dict[str, Any] = {"x": (1, 4, 16), "weight": 4, "bias": 4, "out": (1, 4, 16)}
    arrays = {name: ptxrt.zeros(shape, np.float32, device) for name, shape in good.items()} | {place: HOSTS[host]}
    where = "" if place == "x" else f', "{device}"'  # x says which device it is
    write = f"Write {place} = ptxrt.to_device({place}{where})"
    with refused(ptxrt.InvalidArgument, "group_norm", place, "a DeviceArray", write):
        ptxrt.ops.group_norm(arrays["x"], arrays["weight"], arrays["bias"], 2, out=arrays["out"])


def test_what_the_refusal_of_a_host_array_says_to_write_works(device: Device) -> None:
    host = np.arange(64, dtype=np.float32)
    kernel = load_saxpy(device)
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        kernel.launch(1, 64, host, host, 64, 1.0)
    before, after = re.findall(r"Write x = (.*) before it, and (x\S+) after it", str(caught.value))[0]
    names: dict[str, Any] = {"ptxrt": ptxrt, "x": host}
    names["x"] = eval(before, names)
    y = ptxrt.zeros(64, np.float32, device)
    kernel.launch(1, 64, names["x"], y, 64, 1.0)
    assert_array_equal(eval(after, names), host)
    assert y.to_host().any()


@pytest.mark.parametrize("kind", ["Producer", "list"])
def test_a_host_array_can_be_shared_with_sim(device: Device, kind: str) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        load_saxpy(device).launch(1, 64, HOSTS["dlpack" if kind == "Producer" else "list"], None, 64, 1.0)
    shares = '; ptxrt.from_dlpack(x, "sim:0") shares its memory with sim instead' in str(caught.value)
    assert shares == (device.kind == "sim" and kind == "Producer")
    assert f"given {kind}{' in host memory' if kind == 'Producer' else ''}." in str(caught.value)


# sim's arrays in NumPy --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", IN_DLPACK)
def test_numpy_sees_an_array_of_sim_as_it_lies(sim: Device, name: Any) -> None:
    host = np.arange(24).reshape(4, 6).astype(BY_NAME[name].numpy)
    x = ptxrt.to_device(host, sim)
    for index in (..., (slice(1, None), slice(None, None, 2)), (1, 2), slice(0, 0)):
        assert_array_equal(np.from_dlpack(x[index]), host[index])
    assert_array_equal(np.from_dlpack(x.T), host.T)
    assert np.from_dlpack(x).dtype == host.dtype


def test_numpy_and_sim_share_the_memory(sim: Device) -> None:
    x = ptxrt.zeros((2, 3), np.float32, sim)
    host = np.from_dlpack(x)
    x[1].fill_bytes(0xFF)
    assert np.isnan(host[1]).all()
    if NUMPY_2:  # NumPy 1 reads every DLPack as read-only
        host[0] = 7
        assert_array_equal(x.to_host()[0], [7, 7, 7])


def test_a_readonly_array_of_sim_is_not_writable_in_numpy(sim: Device) -> None:
    x = ptxrt.zeros((3, 1), np.float32, sim).broadcast_to((3, 4))
    try:
        host = np.from_dlpack(x)
    except BufferError:  # NumPy 1 has no read-only export
        return
    assert not host.flags.writeable
    assert host.strides == (4, 0)


def test_numpys_array_outlives_that_of_sim(sim: Device) -> None:
    x = ptxrt.to_device(np.arange(1000.0), sim)
    host = np.from_dlpack(x)
    del x
    gc.collect()
    assert_array_equal(host, np.arange(1000.0))


def test_numpy_takes_bfloat16_by_dlpack_or_refuses_it(sim: Device) -> None:
    """NumPy 2.5 takes it where ml_dtypes 0.7 has told it of the type."""
    values = np.array([1.5, -2, 0.1], ml_dtypes.bfloat16)
    x, why = ptxrt.to_device(values, sim), ""
    try:
        found = np.from_dlpack(x)
    except (BufferError, RuntimeError) as error:
        found, why = values, str(error)
    assert not why or re.search(r"[Dd][Tt]ype|DLPack", why)
    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()


def test_sim_shares_host_memory_by_dlpack_alone(sim: Device) -> None:
    x = ptxrt.zeros(3, np.float32, sim)
    assert x.__dlpack_device__() == (1, 0)
    assert not hasattr(x, "__cuda_array_interface__")


# CUDA: CuPy and torch ---------------------------------------------------------------------------------------------

TORCH_NAMES = {
    "f32": "float32",
    "f64": "float64",
    "f16": "float16",
    "bf16": "bfloat16",
    "u8": "uint8",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "bool": "bool",
}
SLEEP = 200_000_000  # cycles: about a tenth of a second


@pytest.fixture
def torch(cuda: Device) -> Any:
    found = pytest.importorskip("torch")
    if not found.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return found


@pytest.fixture
def cupy(cuda: Device) -> Any:
    return pytest.importorskip("cupy")


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_a_torch_tensor_is_seen_as_it_lies(torch: Any, cuda: Device, name: Any) -> None:
    whole = torch.arange(24, device="cuda").reshape(4, 6).to(getattr(torch, TORCH_NAMES[name]))
    for tensor in (whole, whole.T, whole[1:, ::2], whole[1, 2], whole[0].expand(3, 6)):
        x = ptxrt.from_dlpack(tensor)
        assert (x.device, x.shape, x.dtype) == (cuda, tuple(tensor.shape), BY_NAME[name].numpy)
        assert (x.ptr, x.strides) == (tensor.data_ptr(), tuple(tensor.stride()))
        assert_array_equal(x.to_host().astype(np.float64), tensor.double().cpu().numpy())


@pytest.mark.parametrize("name", TORCH_NAMES)
def test_torch_sees_our_array_as_it_lies(torch: Any, cuda: Device, name: Any) -> None:
    host = np.arange(24).reshape(4, 6).astype(BY_NAME[name].numpy)
    x = ptxrt.to_device(host, cuda)
    for view in (x, x.T, x[1:, ::2], x[1, 2]):
        tensor = torch.from_dlpack(view)
        assert tensor.dtype is getattr(torch, TORCH_NAMES[name])
        assert (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride())) == (view.ptr, view.shape, view.strides)
        assert_array_equal(tensor.double().cpu().numpy(), view.to_host().astype(np.float64))


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)], ids=str)
def test_pain25_an_empty_tensor_goes_to_torch_and_back(torch: Any, cuda: Device, shape: Any) -> None:
    x = ptxrt.from_dlpack(torch.empty(shape, device="cuda"))
    assert (x.shape, x.size, x.device) == (shape, 0, cuda)
    assert tuple(torch.from_dlpack(ptxrt.empty(shape, np.float32, cuda)).shape) == shape


def test_torch_and_ptxrt_share_the_memory(torch: Any, cuda: Device) -> None:
    tensor = torch.zeros(8, device="cuda")
    x = ptxrt.from_dlpack(tensor)
    tensor.fill_(3)
    assert_array_equal(x.to_host(), np.full(8, 3))
    x.fill_bytes(0)
    assert not tensor.any().item()


def test_our_memory_lives_as_long_as_torchs_tensor(torch: Any, cuda: Device) -> None:
    x = ptxrt.to_device(np.arange(1000, dtype=np.float32), cuda)
    memory, tensor = weakref.ref(x), torch.from_dlpack(x)
    del x
    gc.collect()
    assert memory() is not None
    assert tensor.sum().item() == 499500
    del tensor
    gc.collect()
    assert memory() is None


def test_torchs_tensor_lives_as_long_as_our_array(torch: Any, cuda: Device) -> None:
    tensor = torch.ones(8, device="cuda")
    before = torch.cuda.memory_allocated()
    x = ptxrt.from_dlpack(tensor)[2:]
    del tensor
    assert torch.cuda.memory_allocated() == before
    assert_array_equal(x.to_host(), np.ones(6))
    del x
    assert torch.cuda.memory_allocated() < before


def test_a_complex_tensor_is_refused(torch: Any, cuda: Device) -> None:
    with refused(ptxrt.DTypeMismatch, "from_dlpack", "x", "one of f32"):
        ptxrt.from_dlpack(torch.ones(3, device="cuda", dtype=torch.complex64))


def test_a_host_tensor_is_refused_by_a_kernel(torch: Any, cuda: Device) -> None:
    with refused(ptxrt.InvalidArgument, "saxpy", "x", "ptxrt.to_device"):
        load_saxpy(cuda).launch(1, 64, torch.ones(64), torch.ones(64), 64, 1.0)


def test_a_tensor_on_the_device_is_no_host_array(torch: Any, cuda: Device) -> None:
    with refused(ptxrt.InvalidArgument, "to_device", "array", "a host array", "from_dlpack"):
        ptxrt.to_device(torch.ones(3, device="cuda"), cuda)


def test_a_kernel_takes_torch_tensors(torch: Any, cuda: Device) -> None:
    x, y = torch.arange(64.0, device="cuda"), torch.ones(64, device="cuda")
    load_saxpy(cuda).launch(1, 64, x, y, 64, 2.0)
    torch.cuda.synchronize()
    assert torch.equal(y, 2 * x + 1)


def test_an_op_takes_torch_tensors(torch: Any, cuda: Device) -> None:
    x = torch.randn(2, 8, 5, 7, device="cuda")
    weight, bias = torch.randn(8, device="cuda"), torch.randn(8, device="cuda")
    y = torch.from_dlpack(ptxrt.ops.group_norm(x, weight, bias, 4))
    torch.testing.assert_close(y, torch.nn.functional.group_norm(x, 4, weight, bias), rtol=1e-5, atol=1e-5)


def test_what_a_torch_side_stream_is_still_writing_is_read_finished(torch: Any, cuda: Device) -> None:
    tensor = torch.zeros(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(SLEEP)
        tensor.fill_(3)
        x = ptxrt.from_dlpack(tensor)
    assert set(x.to_host()) == {3}


def test_the_stream_that_is_named_waits_for_a_torch_side_stream(torch: Any, cuda: Device) -> None:
    tensor, stream = torch.zeros(1 << 20, device="cuda"), cuda.create_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(SLEEP)
        tensor.fill_(3)
        x = ptxrt.from_dlpack(tensor, stream=stream)
    assert set(x.to_host(stream)) == {3}


def test_a_kernel_on_a_stream_waits_for_the_torch_side_stream_of_its_tensors(torch: Any, cuda: Device) -> None:
    kernel, stream = load_saxpy(cuda), cuda.create_stream()
    x, y = torch.zeros(64, device="cuda"), ptxrt.zeros(64, np.float32, cuda)
    cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(SLEEP)
        x.fill_(3)
        kernel.launch(1, 64, x, y, 64, 2.0, stream=stream)
    assert_array_equal(y.to_host(stream), np.full(64, 6))


@pytest.mark.parametrize("side", [False, True], ids=["default", "side"])
def test_torch_waits_for_the_stream_that_our_array_was_written_on(torch: Any, cuda: Device, side: bool) -> None:
    stream, consumer = cuda.create_stream(), torch.cuda.Stream() if side else torch.cuda.default_stream()
    x = ptxrt.zeros(1 << 20, np.float32, cuda)
    cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        torch.cuda._sleep(SLEEP)
    x.fill_bytes(0x41, stream)
    with torch.cuda.stream(consumer):
        tensor = torch.from_dlpack(x).clone()
    consumer.synchronize()
    assert set(tensor.view(torch.uint8).cpu().tolist()) == {0x41}


def test_torch_waits_for_our_default_stream_too(torch: Any, cuda: Device) -> None:
    consumer = torch.cuda.Stream()
    x = ptxrt.zeros(1 << 20, np.float32, cuda)
    cuda.synchronize()
    with torch.cuda.stream(torch.cuda.default_stream()):
        torch.cuda._sleep(SLEEP)
    x.fill_bytes(0x41)
    with torch.cuda.stream(consumer):
        tensor = torch.from_dlpack(x).clone()
    consumer.synchronize()
    assert set(tensor.view(torch.uint8).cpu().tolist()) == {0x41}


@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_streams_of_other_libraries_are_accepted(request: pytest.FixtureRequest, cuda: Device, library: str) -> None:
    module = request.getfixturevalue(library)
    stream = module.cuda.Stream() if library == "torch" else module.cuda.Stream(non_blocking=True)
    x = ptxrt.to_device(np.arange(64, dtype=np.float32), cuda)
    y = ptxrt.empty(64, np.float32, cuda, stream=stream)
    y.fill_bytes(0, stream)
    load_saxpy(cuda).launch(1, 64, x, y, 64, 2.0, stream=stream)
    assert_array_equal(y.to_host(stream), 2 * x.to_host())


def test_torch_takes_our_stream(torch: Any, cuda: Device) -> None:
    stream = cuda.create_stream()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.__cuda_stream__()[1])):
        torch.cuda._sleep(SLEEP // 10)
    event = stream.record()
    assert not event.done
    stream.synchronize()
    assert event.done


@pytest.mark.parametrize("name", IN_DLPACK)
def test_a_cupy_array_is_seen_as_it_lies(cupy: Any, cuda: Device, name: Any) -> None:
    whole = cupy.arange(24).reshape(4, 6).astype(BY_NAME[name].numpy)
    for array in (whole, whole.T, whole[1:, ::2], whole[1, 2], cupy.broadcast_to(whole[0], (3, 6))):
        for x in (ptxrt.from_dlpack(array), ptxrt.from_dlpack(Interface(array))):
            assert (x.device, x.shape, x.dtype, x.ptr) == (cuda, array.shape, array.dtype, array.data.ptr)
            assert_array_equal(x.to_host(), array.get())


@pytest.mark.parametrize("name", IN_DLPACK)
@pytest.mark.parametrize("door", ["from_dlpack", "asarray"])
def test_cupy_sees_our_array_as_it_lies(cupy: Any, cuda: Device, name: Any, door: str) -> None:
    host = np.arange(24).reshape(4, 6).astype(BY_NAME[name].numpy)
    x = ptxrt.to_device(host, cuda)
    for view in (x, x.T, x[1:, ::2], x[1, 2]):
        array = getattr(cupy, door)(view)
        assert (array.data.ptr, array.shape, array.dtype) == (view.ptr, view.shape, view.dtype)
        assert_array_equal(array.get(), view.to_host())


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)], ids=str)
def test_pain25_an_empty_array_goes_to_cupy_and_back(cupy: Any, cuda: Device, shape: Any) -> None:
    empty = cupy.empty(shape, cupy.float32)
    for x in (ptxrt.from_dlpack(empty), ptxrt.from_dlpack(Interface(empty))):
        assert (x.shape, x.size, x.device) == (shape, 0, cuda)
    for door in (cupy.from_dlpack, cupy.asarray):
        assert door(ptxrt.empty(shape, np.float32, cuda)).shape == shape


def test_what_a_cupy_side_stream_is_still_writing_is_read_finished(cupy: Any, torch: Any, cuda: Device) -> None:
    array, stream = cupy.zeros(1 << 20, cupy.float32), cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        torch.cuda._sleep(SLEEP)
    with stream:
        array.fill(3)
        x = ptxrt.from_dlpack(array)
        y = ptxrt.from_dlpack(Interface(array), stream=cuda.create_stream())
    assert set(x.to_host()) == {3}
    assert set(y.to_host(y.memory.stream)) == {3}


def test_cupy_waits_for_the_stream_that_our_array_was_written_on(cupy: Any, torch: Any, cuda: Device) -> None:
    stream = cuda.create_stream()
    x = ptxrt.zeros(1 << 20, np.float32, cuda)
    cuda.synchronize()
    with torch.cuda.stream(torch.cuda.ExternalStream(stream.handle)):
        torch.cuda._sleep(SLEEP)
    x.fill_bytes(0x41, stream)
    with cupy.cuda.Stream(non_blocking=True):
        array = cupy.asarray(x)
        seen = set(array.view(cupy.uint8).get().tolist())
    assert seen == {0x41}


def test_bfloat16_has_no_name_in_the_cuda_array_interface(cuda: Device) -> None:
    x = ptxrt.zeros(3, ml_dtypes.bfloat16, cuda)
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.__dlpack_device__() == (2, 0)


def test_the_cuda_array_interface_is_version_3(cuda: Device) -> None:
    x = ptxrt.zeros((2, 3), np.float32, cuda)[:, 1:]
    assert x.__cuda_array_interface__ == {
        "version": 3,
        "shape": (2, 2),
        "typestr": "<f4",
        "data": (x.ptr, False),
        "strides": (12, 4),
        "stream": 1,
    }


# CUDA: the calling thread's current context --------------------------------------------------------------------------


def every_call(device: Device) -> Iterator[Callable[[], object]]:
    """One call after the other of all that touches a device."""
    x = ptxrt.to_device(np.arange(64, dtype=np.float32), device)
    stream, event = device.create_stream(), ptxrt.Event(device)
    kernel = load_saxpy(device)
    yield lambda: ptxrt.empty(64, np.float32, device, stream=stream).free()
    yield lambda: ptxrt.zeros(64, np.float32, device)
    yield lambda: x.to_host(stream)
    yield lambda: x.copy_from(np.ones(64, np.float32))
    yield lambda: x.copy_from(ptxrt.zeros(64, np.float32, device), stream)
    yield lambda: kernel.launch(1, 64, x, x, 64, 1.0)
    yield lambda: kernel.launch(1, 64, x, x, 64, 1.0, stream=stream)
    yield lambda: load_saxpy(device)
    yield lambda: ptxrt.ops.group_norm(x.view(1, 4, 16), None, None, 2)
    yield lambda: stream.record(event)
    yield lambda: device.default_stream.wait(event)
    yield lambda: stream.wait(device.default_stream)
    yield lambda: event.done
    yield event.synchronize
    yield lambda: event.elapsed_ms(stream.record())
    yield stream.synchronize
    yield device.synchronize
    yield x.__dlpack__
    yield lambda: x.__cuda_array_interface__
    yield lambda: ptxrt.from_dlpack(Interface(x))
    yield device.modules.clear
    yield device.create_stream
    yield ptxrt.devices
    yield lambda: more_than_there_is(device)


def more_than_there_is(device: Device) -> None:
    with pytest.raises(ptxrt.OutOfDeviceMemory):
        ptxrt.empty(1 << 50, np.uint8, device)


def contexts_around(calls: Iterator[Callable[[], object]]) -> list[tuple[int, int]]:
    """The context before and after each call."""
    from cuda.bindings import driver

    def current() -> int:
        return int(driver.cuCtxGetCurrent()[1])

    seen, before = [], current()
    for call in calls:
        call()
        seen.append((before, current()))
    gc.collect()
    return [*seen, (before, current())]


def in_a_thread(work: Callable[[], list[tuple[int, int]]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: found.extend(work()))
    thread.start()
    thread.join()
    assert len(found) > 20
    return found


def test_pain13_a_thread_without_context_has_none_after_every_call(cuda: Device) -> None:
    assert set(in_a_thread(lambda: contexts_around(every_call(cuda)))) == {(0, 0)}


def test_pain13_a_context_that_is_current_stays_current(cuda: Device) -> None:
    from cuda.bindings import driver

    def work() -> list[tuple[int, int]]:
        _, context = driver.cuDevicePrimaryCtxRetain(0)
        driver.cuCtxSetCurrent(context)
        return contexts_around(every_call(cuda))

    ((before, after),) = set(in_a_thread(work))
    assert before == after != 0


@pytest.mark.two_devices
def test_pain13_the_context_of_another_device_stays_current(cuda: Device) -> None:
    from cuda.bindings import driver

    try:
        other = Device("cuda:1")
    except ptxrt.InvalidArgument:
        pytest.skip("one cuda device only")

    def work() -> list[tuple[int, int]]:
        _, context = driver.cuDevicePrimaryCtxRetain(0)
        driver.cuCtxSetCurrent(context)
        return contexts_around(every_call(other))

    ((before, after),) = set(in_a_thread(work))
    assert before == after != 0


def test_an_array_at_an_odd_address_is_refused(cuda: Device) -> None:
    class Odd:
        x = ptxrt.zeros(8, np.float32, cuda)
        __cuda_array_interface__ = {**x.__cuda_array_interface__, "data": (x.ptr + 2, False), "shape": (4,)}  # noqa: RUF012

    with refused(ptxrt.LayoutError, "from_dlpack", "x", "multiple of 4"):
        ptxrt.from_dlpack(Odd())
