"""Arrays of other libraries, in and out, without a copy: DLPack and ``__cuda_array_interface__``.

Work is ordered on the device, never by waiting on the host:

- in: the stream that will use the array here waits for the producer's current stream, once, at the import;
- out: the consumer's stream waits for every stream that the array was used on here.

Work that is given to *another* stream after the exchange is ordered by whoever gives it.
"""

from __future__ import annotations

from typing import Any

from ptxrt.backends import capsules
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.errors import DeviceMismatch, InvalidArgument, LayoutError, PtxrtError, Unsupported
from ptxrt.runtime._memory import Memory
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.layout import MAX_AXES, contiguous, span
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike
from ptxrt.runtime.stream import as_stream

__all__ = ["as_array", "from_dlpack"]

_KINDS = {capsules.HOST: "sim", 2: "cuda", 10: "hip"}  # DLPack's device types


def from_dlpack(
    x: DeviceArrayLike, device: Device | str | None = None, *, stream: StreamLike | None = None
) -> DeviceArray:
    """Return an array over the memory of another library's array, without a copy.

    Parameters
    ----------
    x
        Anything with ``__dlpack__``, or, on a CUDA device, with ``__cuda_array_interface__``.
    device
        Where the memory is expected; the array itself says so if left out. Host memory, such as a NumPy array's, is
        that of ``sim``.
    stream
        The stream that will use the array; it waits for the producer's work. The default stream if left out.

    Raises
    ------
    InvalidArgument
        If `x` has neither protocol, or its library refuses to share it.
    DeviceMismatch
        If it lives elsewhere than on `device`.
    DTypeMismatch, LayoutError, Unsupported
        For an element type, strides or a kind of memory that ptxrt does not support.
    """
    where = None if device is None else Device(device)
    if isinstance(x, DeviceArray):
        x.check("from_dlpack", "x")
        return as_array(x[...], where, "from_dlpack", "x")
    return _imported(x, where, "from_dlpack", "x", stream)


def as_array(
    array: DeviceArrayLike | None, device: Device | None, op: str, argument: str, stream: StreamLike | None = None
) -> DeviceArray:
    """Return an operand as a DeviceArray: itself, or another library's array on the same device.

    Raises
    ------
    InvalidArgument
        For None, a number, a host array: anything that is not in a device's memory.
    DeviceMismatch
        For an array of another device.
    """
    if not isinstance(array, DeviceArray):
        shared = hasattr(array, "__dlpack_device__") or hasattr(array, "__cuda_array_interface__")
        on_host = shared and _location(array, op, argument)[0] == "sim"
        if not shared or on_host:
            where = "" if device is None else f', "{device}"'
            fix = f"Write {argument} = ptxrt.to_device({argument}{where}) before it, and {argument}.to_host() after it"
            if on_host and device is not None and device.kind == "sim":
                fix += f"; ptxrt.from_dlpack({argument}{where}) shares its memory with sim instead"
            raise InvalidArgument(
                op=op,
                argument=argument,
                expected="a DeviceArray, or a device array with DLPack or __cuda_array_interface__",
                given="None" if array is None else type(array).__name__ + (" in host memory" if on_host else ""),
                fix=fix,
            )
        array = _imported(array, device, op, argument, stream)
    if device is not None and array.device is not device:
        raise DeviceMismatch(
            op=op,
            argument=argument,
            expected=f"an array on {device}",
            given=f"one on {array.device}",
            fix="Copy it there first",
        )
    return array


def _imported(array: Any, device: Device | None, op: str, argument: str, stream: StreamLike | None) -> DeviceArray:
    kind, ordinal = _location(array, op, argument)
    where = device or Device(f"{kind}:{ordinal or 0}")
    if where.kind != kind or ordinal not in (None, where.ordinal):
        raise DeviceMismatch(
            op=op,
            argument=argument,
            expected=f"memory of {where}",
            given="host memory" if kind == "sim" else f"memory of {kind}:{'?' if ordinal is None else ordinal}",
            fix="Copy it there first",
        )
    queue = as_stream(stream, where, op)
    try:
        found = where.backend.import_array(where.ordinal, array, queue.handle)
    except PtxrtError:
        raise
    except Exception as error:  # whatever its library raises when it will not share
        raise InvalidArgument(
            op=op,
            argument=argument,
            expected="an array that its library shares",
            given=f"{type(error).__name__}: {error}",
        ) from error
    element = element_type(found.dtype, op=op, argument=argument)
    strides = contiguous(found.shape) if found.strides is None else found.strides
    memory = Memory(where, found.ptr, span(found.shape, strides) * element.size, queue, found.owner)
    if len(found.shape) > MAX_AXES:
        memory.free()  # or the error would hold it
        raise InvalidArgument(
            op=op, argument=argument, expected=f"at most {MAX_AXES} axes", given=f"{len(found.shape)}: {found.shape}"
        )
    if any(step < 0 for step in strides):
        raise LayoutError(
            op=op,
            argument=argument,
            expected="strides of 0 or more",
            given=f"{strides}, in elements",
            fix="Copy it: the copy runs forwards",
        )
    if found.ptr % element.size:
        raise LayoutError(
            op=op,
            argument=argument,
            expected=f"an address that is a multiple of {element.size}",
            given=f"{found.ptr:#x}",
        )
    return DeviceArray(memory, found.ptr, element.numpy, found.shape, strides, found.readonly)


def _location(array: Any, op: str, argument: str) -> tuple[str, int | None]:
    """Return the kind of device that an array lies on, and its ordinal; None for host memory, which any sim takes."""
    if hasattr(array, "__dlpack_device__"):
        try:
            code, ordinal = (int(number) for number in array.__dlpack_device__())
        except PtxrtError:
            raise
        except Exception as error:  # whatever its library raises
            raise InvalidArgument(
                op=op,
                argument=argument,
                expected="an array that says where its memory is",
                given=f"{type(error).__name__}: {error}",
            ) from error
        if code in _KINDS:
            return _KINDS[code], None if code == capsules.HOST else ordinal
        raise Unsupported(
            op=op,
            argument=argument,
            expected="memory of a CUDA or HIP device, or of the host",
            given=f"DLPack device type {code}",
            fix="Copy the array to plain device memory",
        )
    if hasattr(array, "__cuda_array_interface__"):
        ptr = int(array.__cuda_array_interface__["data"][0])
        # The address of an empty array is 0, which no device owns.
        return "cuda", Device("cuda").backend.pointer_ordinal(ptr) if ptr else None
    raise InvalidArgument(
        op=op,
        argument=argument,
        expected="an array with __dlpack__ or __cuda_array_interface__",
        given=type(array).__name__,
        fix="Copy host data with ptxrt.to_device",
    )


def dlpack_device(array: DeviceArray) -> tuple[int, int]:
    """Return DLPack's (device type, ordinal)."""
    (code,) = (code for code, kind in _KINDS.items() if kind == array.device.kind)
    return code, 0 if code == capsules.HOST else array.device.ordinal


def to_dlpack(array: DeviceArray, stream: int | None = None, **how: Any) -> Any:
    """Return a DLPack capsule of `array`; `stream` is the consumer's, as DLPack numbers them (-1: do not order)."""
    array.check("__dlpack__")
    array._need_host_shape("__dlpack__")
    if stream != -1:
        _consumer_waits(array, stream or 0)
    backend, ordinal = array.device.backend, array.device.ordinal
    if array.dtype != BY_NAME["bf16"].numpy:
        return backend.export_array(ordinal, array, array.dtype).__dlpack__(**how)
    # cuda.core does not export bfloat16, nor does NumPy before 2.5: these export bits, and the capsule gets its type.
    capsule = backend.export_array(ordinal, array, BY_NAME["u16"].numpy).__dlpack__(**how)
    capsules.set_type(capsule, capsules.BFLOAT)
    return capsule


def cuda_array_interface(array: DeviceArray) -> dict[str, Any]:
    """Return version 3 of the protocol; the default stream, named in it, waits for the others."""
    if array.device.kind != "cuda" or array.dtype.kind == "V":  # the protocol has no name for bfloat16
        raise AttributeError(f"__cuda_array_interface__: {array.dtype} on {array.device}; DLPack has it")
    array.check("__cuda_array_interface__")
    _consumer_waits(array, 0)
    size = array.dtype.itemsize
    return {
        "version": 3,
        "shape": array.shape,
        "typestr": array.dtype.str,
        "data": (array.ptr, array.readonly),
        # None is contiguous; with strides CuPy would take an empty array for some bytes at the null pointer.
        "strides": tuple(step * size for step in array.strides) if array.size else None,
        "stream": 1,
    }


def _consumer_waits(array: DeviceArray, consumer: int) -> None:
    # 0 and 1 are both the legacy default stream.
    consumer = 0 if consumer == 1 else consumer
    for user in array.memory.users:
        if user not in (consumer, 1 if consumer == 0 else consumer):
            array.device.backend.wait_stream(array.device.ordinal, consumer, user)
