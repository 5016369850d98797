"""What an array is as an image, and how a texture may read it: the checks of Texture and Surface, and their image."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxrt.errors import DTypeMismatch, InvalidArgument, ShapeMismatch, shown
from ptxrt.images import ADDRESS_MODES, FILTERS, AddressMode, ImageFormat, Sampling

if TYPE_CHECKING:
    from ptxrt.runtime.array import DeviceArray
    from ptxrt.runtime.layout import Shape
    from ptxrt.runtime.stream import Stream

__all__ = ["Image", "image_format", "sampling"]

_DTYPES = tuple(map(np.dtype, (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.float16, np.float32)))


class Image:
    """An image on a device with a copy of an array, given back with the last texture and surface of it."""

    def __init__(self, array: DeviceArray, form: ImageFormat, stream: Stream, *, surface: bool) -> None:
        self.device, self.format = array.device, form
        backend, ordinal = self.device.backend, self.device.ordinal
        self.ptr = backend.create_image(ordinal, form, surface=surface)
        self.copy(array, stream, into=True)
        backend.synchronize(ordinal, stream.handle)  # launches on every stream find it filled

    def copy(self, array: DeviceArray, stream: Stream, *, into: bool) -> None:
        """Copy all texels from (`into`) or to a contiguous array of their shape."""
        self.device.backend.copy_image(self.device.ordinal, self.ptr, self.format, array.ptr, stream.handle, into=into)
        array.memory.used_on(stream)

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the driver may be gone before this object; the process gives everything back by itself.
        if hasattr(self, "ptr") and not at_exit():
            self.device.backend.destroy_image(self.device.ordinal, self.ptr)


def image_format(shape: Shape, dtype: np.dtype[Any], channels: int | None, layered: bool, op: str) -> ImageFormat:
    """Return what an array is as an image, or raise for one that no image has."""
    if dtype not in _DTYPES:
        wanted = ", ".join(str(one) for one in _DTYPES)
        raise DTypeMismatch(op=op, argument="array", expected=f"one of {wanted}", given=str(dtype))
    _check_bool(op, "layered", layered)
    if channels not in (None, 1, 2, 4) or isinstance(channels, bool):
        raise InvalidArgument(op=op, argument="channels", expected="1, 2 or 4, or None", given=shown(channels))
    sizes = shape if channels is None else shape[:-1]
    if channels is not None and (not shape or shape[-1] != channels):
        raise ShapeMismatch(
            op=op, argument="array", expected=f"a last axis of {channels} channels", given=f"shape {shape}"
        )
    least, most = (2, 3) if layered else (1, 3)
    if not least <= len(sizes) <= most or 0 in sizes:
        what = f"{least} to {most} axes{' with the layers' if layered else ''}, none empty"
        also = "" if channels is None else f", and one of {channels} channels"
        raise ShapeMismatch(
            op=op,
            argument="array",
            expected=what + also,
            given=f"shape {shape}",
            fix="Where the last axis counts channels, say channels=" if channels is None else None,
        )
    width, *rest = reversed(sizes)
    depth = rest.pop() if layered or len(rest) == 2 else 0
    return ImageFormat(dtype, channels or 1, width, rest[0] if rest else 0, depth, layered)


def sampling(
    form: ImageFormat,
    address_mode: AddressMode | Sequence[AddressMode],
    filter: str,
    normalized_coords: bool,
    normalized_float: bool,
    border: float | Sequence[float] | None,
    op: str,
) -> Sampling:
    """Return how a texture reads an image, or raise for what NVIDIA's hardware does not do, or does unasked."""
    _check_bool(op, "normalized_coords", normalized_coords)
    _check_bool(op, "normalized_float", normalized_float)
    if filter not in FILTERS:
        raise InvalidArgument(op=op, argument="filter", expected="point or linear", given=shown(filter))
    if normalized_float and (form.dtype.kind == "f" or form.dtype.itemsize > 2):
        raise InvalidArgument(
            op=op,
            argument="normalized_float",
            expected="False for elements that are not integers of 8 or 16 bits",
            given=f"True for {form.dtype}",
        )
    if filter == "linear" and form.dtype.kind != "f" and not normalized_float:
        raise InvalidArgument(
            op=op,
            argument="filter",
            expected="point for integers that are read as such",
            given="linear",
            fix="Say normalized_float=True, or convert the array to float32",
        )
    modes = _modes(form, address_mode, op)
    if not normalized_coords and {"wrap", "mirror"} & set(modes):
        raise InvalidArgument(
            op=op,
            argument="address_mode",
            expected="clamp or border for coordinates that are not normalised",
            given=shown(address_mode),
            fix="Say normalized_coords=True, and divide coordinates by the size",
        )
    colour = (0.0, 0.0, 0.0, 0.0) if border is None else _border(form, border, modes, normalized_float, op)
    x, y, z = (*modes, "clamp", "clamp")[:3]
    return Sampling((x, y, z), filter == "linear", normalized_coords, normalized_float, colour)


def _modes(form: ImageFormat, given: AddressMode | Sequence[AddressMode], op: str) -> tuple[AddressMode, ...]:
    listed = (given,) * form.axes if isinstance(given, str) else given if isinstance(given, Sequence) else ()
    modes = tuple(mode for mode in listed if mode in ADDRESS_MODES)
    if len(modes) != form.axes or len(listed) != form.axes:
        raise InvalidArgument(
            op=op,
            argument="address_mode",
            expected=f"one of {', '.join(ADDRESS_MODES)}, or {form.axes} of them, x first",
            given=shown(given),
        )
    return modes


def _border(
    form: ImageFormat, given: float | Sequence[float], modes: Sequence[str], normalized_float: bool, op: str
) -> tuple[float, float, float, float]:
    numbers = (given,) * form.channels if isinstance(given, (int, float)) else given
    if "border" not in modes or (form.dtype.kind != "f" and not normalized_float):
        raise InvalidArgument(
            op=op,
            argument="border",
            expected="None, where no address mode is border, or integers are read, whose border is 0",
            given=shown(given),
        )
    if (
        not isinstance(numbers, Sequence)
        or len(numbers) != form.channels
        or not all(isinstance(n, (int, float)) for n in numbers)
    ):
        raise InvalidArgument(
            op=op, argument="border", expected=f"a number, or {form.channels}, one a channel", given=shown(given)
        )
    a, b, c, d = (*map(float, numbers), 0.0, 0.0, 0.0)[:4]
    return a, b, c, d


def _check_bool(op: str, argument: str, given: object) -> None:
    if not isinstance(given, bool):
        raise InvalidArgument(op=op, argument=argument, expected="True or False", given=shown(given))
