"""What textures and surfaces are made of: images, which are arrays of texels, and how a texture reads one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

__all__ = ["ADDRESS_MODES", "FILTERS", "AddressMode", "ImageFormat", "Sampling"]

AddressMode = Literal["clamp", "wrap", "mirror", "border"]
ADDRESS_MODES: tuple[AddressMode, ...] = ("clamp", "wrap", "mirror", "border")
FILTERS = ("point", "linear")


@dataclass(frozen=True)
class ImageFormat:
    """Size and element type of an image.

    Attributes
    ----------
    dtype
        Of a channel.
    channels
        Of a texel: 1, 2 or 4.
    width, height, depth
        Texels along x, y and z; 0 where there is no such axis. The depth of a layered image is its number of layers.
    layered
        Whether it is a stack of images of one or two axes.
    """

    dtype: np.dtype[Any]
    channels: int
    width: int
    height: int = 0
    depth: int = 0
    layered: bool = False

    @property
    def axes(self) -> int:
        """Axes of a place in it, besides that of the layers."""
        return 1 + bool(self.height) + (bool(self.depth) and not self.layered)

    @property
    def geometry(self) -> str:
        """The modifier in PTX: ``"2d"``, ``"a2d"``."""
        return f"{'a' if self.layered else ''}{self.axes}d"

    @property
    def texel_bytes(self) -> int:
        """Bytes of a texel."""
        return self.channels * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of the texels along x."""
        return self.width * self.texel_bytes

    @property
    def rows(self) -> int:
        """Rows of texels, over y, z and the layers."""
        return max(1, self.height) * max(1, self.depth)

    @property
    def nbytes(self) -> int:
        """Bytes of all texels."""
        return self.rows * self.row_bytes

    def __str__(self) -> str:
        sizes = " x ".join(str(n) for n in (self.depth, self.height, self.width) if n)
        channels = "" if self.channels == 1 else f" of {self.channels} channels"
        return f"{sizes} texels{channels} of {self.dtype}{', layered' if self.layered else ''}"


@dataclass(frozen=True)
class Sampling:
    """How a texture reads its image; the words are those of :class:`ptxrt.Texture`.

    Attributes
    ----------
    address_modes
        Along x, y and z.
    linear
        Whether texels are interpolated.
    normalized_coords
        Whether coordinates go from 0 to 1.
    normalized_float
        Whether integers are read as floats from 0, or -1, to 1.
    border
        What is read outside of the image, by channel.
    """

    address_modes: tuple[AddressMode, AddressMode, AddressMode] = ("clamp", "clamp", "clamp")
    linear: bool = False
    normalized_coords: bool = False
    normalized_float: bool = False
    border: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
