"""Texture and Surface: arrays that kernels read, filtered, or write by a handle in the place of an address."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from ptxrt.errors import DeviceMismatch, DTypeMismatch, InvalidArgument, LayoutError, ShapeMismatch, shown
from ptxrt.images import AddressMode, ImageFormat, Sampling
from ptxrt.runtime._images import Image, image_format, sampling
from ptxrt.runtime._memory import Memory
from ptxrt.runtime.array import DeviceArray, empty, to_device
from ptxrt.runtime.device import Device, as_device
from ptxrt.runtime.scalars import check_scalar
from ptxrt.runtime.stream import Stream, as_stream

if TYPE_CHECKING:
    from ptxrt.runtime.protocols import StreamLike, SupportsDLPack
    from ptxrt.runtime.signature import Parameter

__all__ = ["Surface", "Texture", "resolved_handle"]

_MEMORY_ALIGN = 512  # CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT of NVIDIA's devices
_Own = TypeVar("_Own", bound="_Handle")


class _Handle:
    """What textures and surfaces have in common: a handle, and what it keeps alive."""

    device: Device
    format: ImageFormat
    _number: int | None = None
    _bound: Image | Memory

    @property
    def handle(self) -> int:
        """The number by which kernels know it: ``cudaTextureObject_t``, ``cudaSurfaceObject_t``."""
        return self._live("handle", type(self).__name__)

    @property
    def alive(self) -> bool:
        """False once it was freed; of a texture in an array's own memory, once that was."""
        return self._number is not None and (not isinstance(self._bound, Memory) or self._bound.alive)

    def _live(self, op: str, argument: str) -> int:
        if self._number is None or not self.alive:
            name = type(self).__name__.lower()
            raise InvalidArgument(
                op=op,
                argument=argument,
                expected=f"a live {name}",
                given="one that was freed, or whose array was",
                fix=f"Free a {name}, and the array that it reads, after the last use",
            )
        return self._number

    def on(self, device: Device, op: str, argument: str, stream: Stream) -> int:
        """Return the handle for work on `stream`, or raise if it was freed, or belongs to another device."""
        number = self._live(op, argument)
        if self.device is not device:
            raise DeviceMismatch(op=op, argument=argument, expected=str(device), given=str(self.device))
        if isinstance(self._bound, Memory):
            self._bound.used_on(stream)
        if stream.capture is not None:
            stream.capture.textures.add(self)
        return number

    def free(self) -> None:
        """Wait for the device, and give it back; the texels, too, where nothing else is bound to them."""
        if self._number is not None:
            number, self._number = self._number, None
            self._destroy(number)
            del self._bound

    def _destroy(self, number: int) -> None:
        raise NotImplementedError

    def __enter__(self: _Own) -> _Own:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the driver may be gone before this object; the process gives everything back by itself.
        if not at_exit():
            self.free()

    def __reduce__(self) -> tuple[Any, ...]:
        name = type(self).__name__
        raise InvalidArgument(
            op="pickle",
            argument=name.lower(),
            expected="a host array",
            given=f"a {name}, which is a handle of a device",
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.format} on {self.device}{'' if self.alive else ', freed'}>"


class Surface(_Handle):
    """An image that kernels read and write texel by texel: ``surf2Dread``, ``surf2Dwrite``.

    As a context manager it is freed at the end of the block.

    Parameters
    ----------
    array
        The first texels: a host array or a contiguous DeviceArray of one to three axes, the last along x, in uint8,
        int8, uint16, int16, uint32, int32, float16 or float32. They are copied, and the copy is waited for.
    device
        Where it is made, for a host array; the default device if left out.
    channels
        1, 2 or 4, where the array has one more axis, the last, for the channels of a texel.
    layered
        Whether the first axis counts layers, which are images of one or two axes.
    stream
        In whose order a DeviceArray is read.

    Attributes
    ----------
    device : Device
    shape, dtype
        Those of the array.
    format : ImageFormat
        The same as drivers have it.

    Raises
    ------
    DTypeMismatch, ShapeMismatch, LayoutError, DeviceMismatch, InvalidArgument
        For an array, or a number of channels, that no surface has.
    Unsupported
        On HIP.
    """

    def __init__(
        self,
        array: ArrayLike | SupportsDLPack | DeviceArray,
        device: Device | str | None = None,
        *,
        channels: int | None = None,
        layered: bool = False,
        stream: StreamLike | None = None,
    ) -> None:
        source, queue = _source(array, device, stream, "Surface")
        self.device, self.shape, self.dtype = source.device, source.shape, source.dtype
        self.format = image_format(source.shape, source.dtype, channels, layered, "Surface")
        self._bound: Image = Image(source, self.format, queue, surface=True)
        self._number = self.device.backend.create_surface(self.device.ordinal, self._bound.ptr, self.format)

    def _destroy(self, number: int) -> None:
        self.device.backend.destroy_surface(self.device.ordinal, number)

    def to_array(self, stream: StreamLike | None = None) -> DeviceArray:
        """Return a new array with a copy of the texels, without waiting."""
        self._live("Surface.to_array", "surface")
        queue = as_stream(stream, self.device, "Surface.to_array")
        array = empty(self.shape, self.dtype, self.device, stream=queue)
        self._bound.copy(array, queue, into=False)
        return array

    def to_host(self, stream: StreamLike | None = None) -> np.ndarray[Any, Any]:
        """Copy the texels to a new NumPy array, after the work on `stream`; waits for it."""
        return self.to_array(stream).to_host(stream)

    numpy = to_host
    """Another name of :meth:`to_host`, as of a DeviceArray's."""

    def copy_from(self, array: ArrayLike | SupportsDLPack | DeviceArray, stream: StreamLike | None = None) -> None:
        """Overwrite the texels with those of a host array, or a DeviceArray on this device, of this shape and dtype."""
        op = "Surface.copy_from"
        self._live(op, "surface")
        source, queue = _source(array, self.device, stream, op)
        if source.shape != self.shape:
            raise ShapeMismatch(op=op, argument="array", expected=str(self.shape), given=str(source.shape))
        if source.dtype != self.dtype:
            raise DTypeMismatch(op=op, argument="array", expected=str(self.dtype), given=str(source.dtype))
        self._bound.copy(source, queue, into=True)


class Texture(_Handle):
    """An image that kernels read by coordinates: ``tex1D``, ``tex2D``, ``tex3D``, ``tex2DLayered``, ``tex2Dgather``.

    As a context manager it is freed at the end of the block.

    Parameters
    ----------
    array
        What :class:`Surface` takes, which is copied; or a Surface, whose image it reads, without a copy.
    device, channels, layered, stream
        As for :class:`Surface`; left out for a Surface.
    address_mode
        What is read outside of the image: "clamp", the nearest texel; "border", `border`; with normalised coordinates
        also "wrap", the image again, and "mirror", the image again, every second time reversed. One for all axes, or
        one for each, x first.
    filter
        "point", the texel that the coordinates are in, or "linear", between the centres of texels. Linear filtering is
        for values that are read as floats.
    normalized_coords
        Coordinates go from 0 to 1, and not from 0 to the size.
    normalized_float
        Integers of 8 and 16 bits are read as floats from 0 to 1, signed ones from -1 to 1.
    border
        A number, or one for each channel, for the address mode "border"; zeros if left out.

    Attributes
    ----------
    device : Device
    format : ImageFormat
    sampling : Sampling
        How it is read.

    Raises
    ------
    DTypeMismatch, ShapeMismatch, LayoutError, DeviceMismatch, InvalidArgument
        For an array that no texture has, and for a way to read it that NVIDIA's hardware does not have.
    Unsupported
        On HIP.
    """

    def __init__(
        self,
        array: ArrayLike | SupportsDLPack | DeviceArray | Surface,
        device: Device | str | None = None,
        *,
        channels: int | None = None,
        layered: bool = False,
        address_mode: AddressMode | Sequence[AddressMode] = "clamp",
        filter: str = "point",
        normalized_coords: bool = False,
        normalized_float: bool = False,
        border: float | Sequence[float] | None = None,
        stream: StreamLike | None = None,
    ) -> None:
        op = "Texture"
        how = (address_mode, filter, normalized_coords, normalized_float, border)
        if isinstance(array, Surface):
            array._live(op, "array")
            if (device, channels, layered, stream) != (None, None, False, None):
                raise InvalidArgument(
                    op=op,
                    argument="array",
                    expected="no device, channels, layered or stream beside a Surface, which has them",
                    given=shown((device, channels, layered, stream)),
                )
            self._make(array._bound, array.device, array.format, sampling(array.format, *how, op))
            return
        source, queue = _source(array, device, stream, op)
        form = image_format(source.shape, source.dtype, channels, layered, op)
        read = sampling(form, *how, op)
        self._make(Image(source, form, queue, surface=False), source.device, form, read)

    @classmethod
    def from_memory(cls, array: DeviceArray, *, channels: int | None = None, normalized_float: bool = False) -> Texture:
        """Return a texture that reads the memory of an array itself, for ``tex1Dfetch`` alone: there is no copy.

        What is outside of the array reads as zeros. The texture keeps the memory alive, but not from ``array.free()``.

        Parameters
        ----------
        array
            A contiguous DeviceArray of one axis, at an address that is a multiple of 512, as that of a new array is.
        channels
            1, 2 or 4, where there is a second axis, for the channels of a texel.
        normalized_float
            As for a Texture.
        """
        op = "Texture.from_memory"
        if not isinstance(array, DeviceArray):
            raise InvalidArgument(op=op, argument="array", expected="a DeviceArray", given=shown(array))
        _check_source(array, op)
        form = image_format(array.shape, array.dtype, channels, False, op)
        if form.axes != 1:
            raise ShapeMismatch(
                op=op, argument="array", expected="one axis, and one for the channels", given=f"shape {array.shape}"
            )
        if array.ptr % _MEMORY_ALIGN:
            raise LayoutError(
                op=op,
                argument="array",
                expected=f"an address that is a multiple of {_MEMORY_ALIGN}",
                given=f"{array.ptr:#x}",
                fix="Bind the whole array, and add to the index in the kernel",
            )
        new = cls.__new__(cls)
        read = sampling(form, "clamp", "point", False, normalized_float, None, op)
        new._make(array.memory, array.device, form, read, array.ptr)
        return new

    def _make(
        self, bound: Image | Memory, device: Device, form: ImageFormat, read: Sampling, address: int | None = None
    ) -> None:
        self.device, self.format, self.sampling, self._bound = device, form, read, bound
        self._number = device.backend.create_texture(
            device.ordinal, bound.ptr if address is None else address, form, read, is_memory=address is not None
        )

    def _destroy(self, number: int) -> None:
        self.device.backend.destroy_texture(self.device.ordinal, number)


def _source(array: Any, device: Device | str | None, stream: StreamLike | None, op: str) -> tuple[DeviceArray, Stream]:
    """Return a contiguous array on the device, and the stream in whose order it is read."""
    if not isinstance(array, DeviceArray):
        queue = as_stream(stream, as_device(device), op)
        return to_device(array, queue.device, stream=queue), queue
    _check_source(array, op)
    if device is not None and as_device(device) is not array.device:
        raise DeviceMismatch(
            op=op,
            argument="array",
            expected=str(as_device(device)),
            given=str(array.device),
            fix="Copy through to_host()",
        )
    return array, as_stream(stream, array.device, op)


def _check_source(array: DeviceArray, op: str) -> None:
    array.check(op)
    if not array.is_contiguous:
        raise LayoutError(op=op, argument="array", expected="a contiguous array", given=f"strides {array.strides}")


def resolved_handle(given: Any, p: Parameter, device: Device, op: str, stream: Stream) -> int:
    """Return the handle that a launch on `stream` takes for the parameter `p`; a number for one that takes numbers."""
    kinds: dict[str, type[_Handle]] = {"texture": Texture, "surface": Surface}
    wanted = kinds.get(p.type.name)
    if isinstance(given, wanted or _Handle):
        return given.on(device, op, p.name, stream)
    if wanted is None:
        number: int = check_scalar(given, p, op)
        return number
    raise InvalidArgument(
        op=op,
        argument=p.name,
        expected=f"a ptxrt.{wanted.__name__}",
        given=shown(given),
        fix=f"Make one of an array: ptxrt.{wanted.__name__}(array). Another library's handle is a number, for a u64",
    )
