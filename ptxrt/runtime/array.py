"""DeviceArray: an array in device memory; views of it; copies in and out."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, SupportsFloat, SupportsIndex

import numpy as np

from ptxrt.backends import capsules
from ptxrt.dtypes import element_type
from ptxrt.errors import DeviceMismatch, DTypeMismatch, InvalidArgument, LayoutError, ShapeMismatch, shown
from ptxrt.runtime._contents import element_bytes, values_as_text
from ptxrt.runtime._memory import Memory
from ptxrt.runtime.device import Device, as_device
from ptxrt.runtime.layout import (
    Shape,
    checked_shape,
    contiguous,
    indexed,
    is_contiguous,
    is_whole,
    span,
    unpacked,
    whole_numbers,
)
from ptxrt.runtime.protocols import StreamLike, SupportsDLPack
from ptxrt.runtime.stream import as_stream

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["DeviceArray", "empty", "full", "ones", "to_device", "zeros"]


class DeviceArray:
    """An array in device memory. Made by :func:`empty`, :func:`to_device`, :func:`ptxrt.from_dlpack` and by views.

    Attributes
    ----------
    ptr : int
        Address of the first element.
    dtype : numpy.dtype
    shape : tuple of int
    strides : tuple of int
        In elements, not bytes; 0 where an axis is broadcast.
    device : Device
    memory : Memory
        What it points into; views share it.
    readonly : bool
        Whether a kernel may not write to it.
    """

    __slots__ = ("__weakref__", "device", "dtype", "memory", "ptr", "readonly", "shape", "strides")

    def __init__(
        self, memory: Memory, ptr: int, dtype: np.dtype[Any], shape: Shape, strides: Shape, readonly: bool = False
    ) -> None:
        # Internal: trusts its arguments. Users' values come in through from_pointer, which does not.
        self.memory, self.ptr, self.dtype, self.shape, self.strides = memory, ptr, dtype, shape, strides
        self.device = memory.device
        self.readonly = readonly

    @classmethod
    def from_pointer(
        cls,
        ptr: int,
        shape: int | Sequence[int],
        dtype: DTypeLike,
        device: Device | str,
        strides: Sequence[int] | None = None,
        owner: object = None,
    ) -> DeviceArray:
        """Return an array over memory that somebody else owns.

        Parameters
        ----------
        ptr
            Device address of the first element.
        shape, strides
            Strides in elements, not negative; contiguous if left out.
        dtype, device
            What lies there, and where.
        owner
            Held as long as the array and its views are there.

        Raises
        ------
        InvalidArgument, LayoutError, DTypeMismatch
            For an impossible shape, strides, pointer or dtype. That the memory exists is not checked: the caller
            must know.
        """
        op = "DeviceArray.from_pointer"
        where, lengths, kind = as_device(device), checked_shape(shape, op), element_type(dtype, op=op)
        if not is_whole(ptr) or not 0 <= ptr < 1 << 64 or (not ptr and 0 not in lengths):
            raise InvalidArgument(op=op, argument="ptr", expected="a device address", given=shown(ptr))
        if ptr % kind.size:
            raise LayoutError(
                op=op, argument="ptr", expected=f"a multiple of {kind.size}, the size of {kind}", given=f"{ptr:#x}"
            )
        steps = contiguous(lengths) if strides is None else whole_numbers(strides)
        if steps is None or len(steps) != len(lengths) or any(step < 0 for step in steps):
            raise LayoutError(
                op=op,
                argument="strides",
                expected=f"{len(lengths)} strides of 0 or more, in elements",
                given=shown(strides),
            )
        nbytes = span(lengths, steps) * kind.size
        if ptr + nbytes > 1 << 64:
            raise LayoutError(
                op=op, argument="shape", expected="memory below the address 2**64", given=f"{nbytes} bytes at {ptr:#x}"
            )
        # Without an owner to keep alive the memory is the caller's to keep: a token stands for that promise.
        memory = Memory(where, int(ptr), nbytes, where.default_stream, owner if owner is not None else op)
        return cls(memory, int(ptr), kind.numpy, lengths, steps)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, as if contiguous."""
        return self.size * self.dtype.itemsize

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one after another in row-major order; true of an empty array."""
        return is_contiguous(self.shape, self.strides)

    def __repr__(self) -> str:
        # Waits for the streams that the memory was used on, and copies the values that are shown.
        values = values_as_text(self, "DeviceArray(")
        return f"DeviceArray({values}, shape={self.shape}, dtype={self.dtype}, device={str(self.device)!r})"

    def described(self) -> str:
        """Return what an error's message says of the array: no values, which would have to be waited for."""
        state = "" if self.memory.alive else ", freed"
        return f"<DeviceArray {self.dtype}{list(self.shape)} strides {list(self.strides)} on {self.device}{state}>"

    def __len__(self) -> int:
        if not self.shape:
            raise InvalidArgument(op="len", argument="array", expected="at least one axis", given="shape ()")
        return self.shape[0]

    def __iter__(self) -> Iterator[DeviceArray]:
        return (self[place] for place in range(len(self)))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise InvalidArgument(
            op="__array__", argument="array", expected="a host array", given=shown(self), fix="Copy it with to_host()"
        )

    def __bool__(self) -> bool:
        raise InvalidArgument(
            op="bool", argument="array", expected="a host value", given=shown(self), fix="Copy it with to_host() first"
        )

    # Views ------------------------------------------------------------------------------------------------------

    def view(self, *shape: int | Sequence[int]) -> DeviceArray:
        """Return the same elements in another shape; one length may be -1. The array must be contiguous.

        Raises
        ------
        ShapeMismatch
            If the number of elements differs.
        LayoutError
            If the array is not contiguous.
        """
        wanted = whole_numbers(unpacked(shape))
        if wanted is not None and wanted.count(-1) == 1:
            rest = math.prod(n for n in wanted if n != -1)
            free = self.size // rest if rest and self.size % rest == 0 else 0
            wanted = tuple(free if n == -1 else n for n in wanted)
        new = checked_shape(unpacked(shape) if wanted is None else wanted, "DeviceArray.view")
        if math.prod(new) != self.size:
            raise ShapeMismatch(
                op="DeviceArray.view",
                argument="shape",
                expected=f"{self.size} elements as in {self.shape}",
                given=shown(shape),
            )
        self._need_contiguous("DeviceArray.view")
        return self._view(self.ptr, new, contiguous(new))

    reshape = view
    """NumPy's name of :meth:`view`; it never copies."""

    def transpose(self, *axes: int | Sequence[int]) -> DeviceArray:
        """Return a view with the axes in another order; reversed if none are given."""
        order = tuple(unpacked(axes)) or tuple(range(self.ndim))[::-1]
        named = [a % self.ndim if -self.ndim <= a < self.ndim else -1 for a in whole_numbers(order) or ()]
        if sorted(named) != list(range(self.ndim)):
            raise InvalidArgument(
                op="DeviceArray.transpose",
                argument="axes",
                expected=f"each of {self.ndim} axes once",
                given=shown(axes),
            )
        return self._view(self.ptr, tuple(self.shape[a] for a in named), tuple(self.strides[a] for a in named))

    @property
    def T(self) -> DeviceArray:
        """The view with all axes reversed."""
        return self.transpose()

    def broadcast_to(self, shape: int | Sequence[int]) -> DeviceArray:
        """Return a read-only view in which axes of length 1, and new ones in front, are repeated with stride 0."""
        new = checked_shape(shape, "DeviceArray.broadcast_to")
        old = (1,) * (len(new) - self.ndim) + self.shape
        if len(new) < self.ndim or any(a not in (1, b) for a, b in zip(old, new, strict=True)):
            raise ShapeMismatch(
                op="DeviceArray.broadcast_to",
                argument="shape",
                expected=f"one that {self.shape} broadcasts to",
                given=str(new),
            )
        steps = (0,) * (len(new) - self.ndim) + self.strides
        steps = tuple(0 if a != b else step for a, b, step in zip(old, new, steps, strict=True))
        return self._view(self.ptr, new, steps, readonly=True)

    def __getitem__(self, index: Any) -> DeviceArray:
        """Return a view: integers, slices with positive steps, ``...`` and None."""
        offset, shape, strides = indexed(self.shape, self.strides, index)
        return self._view(self.ptr + offset * self.dtype.itemsize, shape, strides)

    def _view(self, ptr: int, shape: Shape, strides: Shape, readonly: bool = False) -> DeviceArray:
        self.check("DeviceArray view")
        return DeviceArray(self.memory, ptr, self.dtype, shape, strides, self.readonly or readonly)

    # Copies -----------------------------------------------------------------------------------------------------

    def to_host(self, stream: StreamLike | None = None) -> np.ndarray[Any, Any]:
        """Copy to a new, contiguous NumPy array, after the work on `stream`; waits for it."""
        self.check("DeviceArray.to_host")
        self._need_host_shape("DeviceArray.to_host")
        queue = as_stream(stream, self.device, "DeviceArray.to_host")
        flat = np.empty(span(self.shape, self.strides), self.dtype)
        if flat.size:
            self.device.backend.copy_out(self.device.ordinal, _bytes(flat), self.ptr, queue.handle)
        steps = tuple(step * self.dtype.itemsize for step in self.strides)
        strided = (
            np.lib.stride_tricks.as_strided(flat, self.shape, steps) if self.size else np.empty(self.shape, self.dtype)
        )
        return np.ascontiguousarray(strided).reshape(self.shape)

    numpy = to_host
    """The name that torch's users know :meth:`to_host` by; a copy on every device, sim too."""

    def copy(self, stream: StreamLike | None = None) -> DeviceArray:
        """Return a new array with the same elements on the same device, without waiting; this one must be contiguous.

        Raises
        ------
        LayoutError
            For a strided view. Copy the whole array and take the view of the copy, or go through another library.
        """
        op = "DeviceArray.copy"
        self.check(op)
        self._need_contiguous(op, fix=_THROUGH_OTHERS)
        new = empty(self.shape, self.dtype, self.device, stream=stream)
        new.copy_from(self, stream)
        return new

    def copy_from(self, source: ArrayLike | SupportsDLPack, stream: StreamLike | None = None) -> None:
        """Overwrite the elements with those of a host array, or of a device array on the same device.

        Shape and dtype must be the same, and the device side contiguous. A host array may be changed on return.
        """
        self._copy_from(source, stream, "DeviceArray.copy_from", "source")

    def _copy_from(self, source: Any, stream: StreamLike | None, op: str, argument: str) -> None:
        self.check(op, writable=True)
        self._need_contiguous(op)
        queue = as_stream(stream, self.device, op)
        values = source if isinstance(source, DeviceArray) else _host(source, op, argument)
        if values.shape != self.shape:
            raise ShapeMismatch(op=op, argument=argument, expected=str(self.shape), given=str(values.shape))
        if values.dtype != self.dtype:
            raise DTypeMismatch(op=op, argument=argument, expected=str(self.dtype), given=str(values.dtype))
        backend, ordinal = self.device.backend, self.device.ordinal
        if isinstance(values, DeviceArray):
            values.check(op, argument)
            values._need_contiguous(op, argument, fix=_THROUGH_OTHERS)
            if values.device is not self.device:
                raise DeviceMismatch(
                    op=op,
                    argument=argument,
                    expected=str(self.device),
                    given=str(values.device),
                    fix="Copy through to_host()",
                )
            start, end = self.ptr, self.ptr + self.nbytes
            if values.ptr != start and values.ptr < end and start < values.ptr + values.nbytes:
                raise LayoutError(
                    op=op,
                    argument=argument,
                    expected="memory that does not overlap the array's",
                    given=f"{self.nbytes} bytes at {values.ptr:#x}, over those at {start:#x}",
                    fix="Copy by way of a third array",
                )
            if self.size:
                backend.copy(ordinal, self.ptr, values.ptr, self.nbytes, queue.handle)
            values.memory.used_on(queue)
        elif self.size:
            backend.copy_in(ordinal, self.ptr, _bytes(np.ascontiguousarray(values)), queue.handle)
        self.memory.used_on(queue)

    def fill(self, value: SupportsFloat | SupportsIndex, stream: StreamLike | None = None) -> None:
        """Set every element to `value`, without waiting; the array must be contiguous.

        Raises
        ------
        InvalidArgument
            For a value that the dtype cannot hold: 2.5 or 2**31 for int32. Rounding to the dtype's precision is none.
        """
        self._fill(value, stream, "DeviceArray.fill")

    def _fill(self, value: Any, stream: StreamLike | None, op: str) -> None:
        self.check(op, writable=True)
        self._need_contiguous(op, fix="Fill the whole array, or launch a kernel")
        queue = as_stream(stream, self.device, op)
        element = element_bytes(value, element_type(self.dtype, op=op), op)
        backend, ordinal, ptr, nbytes = self.device.backend, self.device.ordinal, self.ptr, self.nbytes
        if nbytes and len(set(element)) == 1:
            backend.fill(ordinal, ptr, element[0], nbytes, queue.handle)
        elif nbytes:
            # Drivers fill with 1, 2 or 4 bytes, NVIDIA's and AMD's by calls of their own. Of any size, on each: the
            # first element byte by byte, and then, again and again, a copy of all that is there already.
            for place, byte in enumerate(element):
                backend.fill(ordinal, ptr + place, byte, 1, queue.handle)
            done = len(element)
            while done < nbytes:
                backend.copy(ordinal, ptr + done, ptr, min(done, nbytes - done), queue.handle)
                done *= 2
        self.memory.used_on(queue)

    def __setitem__(self, index: Any, value: ArrayLike | SupportsDLPack | DeviceArray) -> None:
        """Overwrite the elements of a contiguous view with a number, a host array, or a device array of its shape.

        A host array broadcasts as in NumPy, and must have the dtype. The work goes where that of a launch without a
        stream would go; :meth:`fill` and :meth:`copy_from` take a stream.
        """
        op = "DeviceArray[...] ="
        view = self[index]
        view.check(op, writable=True)
        view._need_contiguous(op, fix="Write to a contiguous part, x[2] or x[2:4], or launch a kernel")
        if isinstance(value, (int, float, np.generic)) and not isinstance(value, np.void):
            view._fill(value, None, op)
            return
        if not isinstance(value, DeviceArray):
            value = _host(value, op, "value")
            try:
                value = np.broadcast_to(value, view.shape)
            except ValueError:
                raise ShapeMismatch(
                    op=op, argument="value", expected=f"one that broadcasts to {view.shape}", given=str(value.shape)
                ) from None
        view._copy_from(value, None, op, "value")

    def fill_bytes(self, byte: int, stream: StreamLike | None = None) -> None:
        """Set every byte; the array must be contiguous. 0xFF in each is a NaN in every floating type."""
        op = "DeviceArray.fill_bytes"
        self.check(op, writable=True)
        self._need_contiguous(op)
        queue = as_stream(stream, self.device, op)
        if not isinstance(byte, (int, np.integer)) or not 0 <= byte <= 255:
            raise InvalidArgument(op=op, argument="byte", expected="0 to 255", given=shown(byte))
        if self.size:
            self.device.backend.fill(self.device.ordinal, self.ptr, int(byte), self.nbytes, queue.handle)
        self.memory.used_on(queue)

    def free(self) -> None:
        """Give the memory back now, in stream order, for this array and all its views; using them is an error then.

        Memory that somebody else owns is not freed; its owner is released.
        """
        self.memory.free()

    # Protocols --------------------------------------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        """DLPack's (device type, ordinal). sim's memory is host memory."""
        from ptxrt.runtime import interop  # noqa: PLC0415 (interop makes arrays, so it imports this file)

        return interop.dlpack_device(self)

    def __dlpack__(self, **how: Any) -> Any:
        """Return a DLPack capsule; the stream of the consumer waits for the streams that this array was used on."""
        from ptxrt.runtime import interop  # noqa: PLC0415

        return interop.to_dlpack(self, **how)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Version 3 of the protocol; there is none on sim, hence AttributeError there, as the protocol wants."""
        from ptxrt.runtime import interop  # noqa: PLC0415

        return interop.cuda_array_interface(self)

    # Checks -----------------------------------------------------------------------------------------------------

    def check(self, op: str, argument: str = "array", writable: bool = False) -> None:
        """Raise InvalidArgument for a freed array, LayoutError for a read-only one that would be written."""
        if not self.memory.alive:
            raise InvalidArgument(
                op=op,
                argument=argument,
                expected="a live array",
                given="one whose memory was freed with free()",
                fix="Free an array, or any view of it, after its last use",
            )
        if writable and self.readonly:
            raise LayoutError(
                op=op,
                argument=argument,
                expected="an array that may be written",
                given="a read-only one (a broadcast view, or imported as read-only)",
            )

    def _need_host_shape(self, op: str) -> None:
        """Raise InvalidArgument for a shape that no array of NumPy has, though ours holds few elements, or none."""
        if math.prod(length or 1 for length in self.shape) * self.dtype.itemsize >= 1 << 63:
            raise InvalidArgument(
                op=op,
                argument="array",
                expected="lengths that make below 2**63 bytes, those of 0 left out, as NumPy has them",
                given=f"{self.shape} of {self.dtype}",
                fix="Take the part that is wanted, or view() an empty array in another shape",
            )

    def _need_contiguous(self, op: str, argument: str = "array", fix: str | None = None) -> None:
        if not self.is_contiguous:
            raise LayoutError(
                op=op,
                argument=argument,
                expected=f"contiguous strides {contiguous(self.shape)}",
                given=str(self.strides),
                fix=fix,
            )


_THROUGH_OTHERS = (
    "Copy the whole array and take the view of the copy, or the view through torch.from_dlpack(x).contiguous(), or "
    "through the host: ptxrt.to_device(x.numpy(), x.device)"
)


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _host(array: Any, op: str, argument: str) -> np.ndarray[Any, Any]:
    try:
        if array is None:
            raise TypeError("None")
        # Where nobody has imported numpy.ma there is no masked array, and importing it takes long.
        if "numpy.ma" in sys.modules and np.ma.is_masked(array):
            raise TypeError("elements of it are masked")
        try:
            return np.asarray(array)
        except TypeError:  # torch's answer for bfloat16, which DLPack has
            if getattr(array, "__dlpack_device__", lambda: (None,))()[0] != capsules.HOST:
                raise
            return capsules.as_numpy(array.__dlpack__)
    except Exception as error:  # whatever a library raises whose array is not in host memory
        raise InvalidArgument(
            op=op,
            argument=argument,
            expected="a host array",
            given=f"{type(array).__name__}: {error}",
            fix="ptxrt.from_dlpack takes a device array",
        ) from error


def empty(
    shape: int | Sequence[int],
    dtype: DTypeLike = np.float32,
    device: Device | str | None = None,
    *,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a new array with uninitialised elements.

    Parameters
    ----------
    shape, dtype
        As in NumPy.
    device
        Device or name; the default device if left out.
    stream
        The stream whose order the allocation joins; the device's default stream if left out.

    Raises
    ------
    OutOfDeviceMemory
        If the device has not enough.
    """
    where = as_device(device)
    kind, lengths = element_type(dtype, op="empty"), checked_shape(shape, "empty")
    memory = Memory.allocate(where, math.prod(lengths) * kind.size, as_stream(stream, where, "empty"))
    return DeviceArray(memory, memory.ptr, kind.numpy, lengths, contiguous(lengths))


def zeros(
    shape: int | Sequence[int],
    dtype: DTypeLike = np.float32,
    device: Device | str | None = None,
    *,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a new array of zeros; see :func:`empty`."""
    array = empty(shape, dtype, device, stream=stream)
    array.fill_bytes(0, stream)
    return array


def full(
    shape: int | Sequence[int],
    value: SupportsFloat | SupportsIndex,
    dtype: DTypeLike = np.float32,
    device: Device | str | None = None,
    *,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a new array with every element set to `value`; see :func:`empty` and :meth:`DeviceArray.fill`."""
    kind = element_type(dtype, op="full")
    element_bytes(value, kind, "full")  # before anything is allocated
    array = empty(shape, kind.numpy, device, stream=stream)
    array.fill(value, stream)
    return array


def ones(
    shape: int | Sequence[int],
    dtype: DTypeLike = np.float32,
    device: Device | str | None = None,
    *,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Return a new array of ones; see :func:`empty`."""
    return full(shape, 1, dtype, device, stream=stream)


def to_device(
    array: ArrayLike | SupportsDLPack, device: Device | str | None = None, *, stream: StreamLike | None = None
) -> DeviceArray:
    """Copy a host array to a device. The host array may be changed on return; it is copied row-major.

    Raises
    ------
    DTypeMismatch
        For an element type that no kernel parameter has.
    """
    host = _host(array, "to_device", "array")
    new = empty(host.shape, element_type(host.dtype, op="to_device", argument="array").numpy, device, stream=stream)
    new.copy_from(host, stream)
    return new
