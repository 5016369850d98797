"""Images in global memory, and the handles by which kernels know their textures and surfaces."""

from __future__ import annotations

from dataclasses import dataclass

from ptxrt.images import ImageFormat, Sampling
from ptxrt.sim._text.types import Array

__all__ = ["Bound", "Handles", "Image"]

_FIRST = 1 << 62  # no address is as large
_ROW_ALIGN = 16  # the most bytes that a surface instruction moves


@dataclass(frozen=True)
class Image:
    """An image in global memory.

    Attributes
    ----------
    address
        Of the first texel.
    format
        Its size and type.
    is_memory
        Whether it is memory of an array itself, in one row, which tex1Dfetch alone reads.
    """

    address: int
    format: ImageFormat
    is_memory: bool = False

    @property
    def pitch(self) -> int:
        """Bytes from one row to the next."""
        return -(-self.format.row_bytes // _ROW_ALIGN) * _ROW_ALIGN

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in memory."""
        return self.format.nbytes if self.is_memory else self.format.rows * self.pitch

    def rows(self, data: Array) -> Array:
        """Return the bytes of its rows out of those that it takes, without what fills them up; not a copy."""
        return data.reshape(self.format.rows, -1)[:, : self.format.row_bytes]

    def texels(self, data: Array) -> Array:
        """Return its texels, of shape (depth or layers, height, width, channels), out of the bytes that it takes."""
        form = self.format
        values = data.view(form.dtype).reshape(form.rows, -1)[:, : form.width * form.channels]
        return values.reshape(max(1, form.depth), max(1, form.height), form.width, form.channels)


@dataclass(frozen=True, eq=False)
class Bound:
    """What a handle stands for: a texture, or a surface, which has no sampling."""

    image: Image
    sampling: Sampling | None

    @property
    def is_texture(self) -> bool:
        """Whether it is a texture."""
        return self.sampling is not None

    @property
    def reads_floats(self) -> bool:
        """Whether what is read are floats: elements, or integers read as such."""
        return self.image.format.dtype.kind == "f" or (self.sampling is not None and self.sampling.normalized_float)

    def __str__(self) -> str:
        return f"a {'texture' if self.is_texture else 'surface'} of {self.image.format}"


class Handles:
    """The textures and surfaces of one device, by handles that are never given again.

    There is no lock, since finalizers come here, too: each change is one step.
    """

    def __init__(self) -> None:
        self._bound: dict[int, Bound | None] = {}

    def add(self, bound: Bound) -> int:
        """Return a new handle."""
        handle = _FIRST + len(self._bound)
        while self._bound.setdefault(handle, bound) is not bound:
            handle += 1
        return handle

    def remove(self, handle: int) -> None:
        """Let a handle stand for nothing any more."""
        self._bound[handle] = None

    def find(self, handle: int) -> Bound | str:
        """Return what a handle stands for; in words what is wrong where it stands for nothing."""
        bound = self._bound.get(handle, "no handle of a texture or a surface")
        return "the handle of a texture or a surface that was freed" if bound is None else bound
