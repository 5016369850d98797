"""What arrays and streams of other libraries have, as types: for annotations here and in users' own functions.

ptxrt's own :class:`~ptxrt.DeviceArray` and :class:`~ptxrt.Stream` have it too, so each of these types takes both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, SupportsFloat, SupportsIndex, TypeAlias

import numpy as np

__all__ = [
    "DeviceArrayLike",
    "KernelArgument",
    "StreamLike",
    "StructLike",
    "SupportsCudaArrayInterface",
    "SupportsCudaStream",
    "SupportsDLPack",
    "SupportsHandle",
]


class SupportsDLPack(Protocol):
    """An array that can be shared by DLPack: torch's, CuPy's, JAX's, NumPy's."""

    def __dlpack_device__(self) -> tuple[int, int]:
        """Return DLPack's device type, and the ordinal."""

    def __dlpack__(self, *, stream: Any = ...) -> Any:
        """Return a capsule; the consumer's `stream` waits for the producer's work."""


class SupportsCudaArrayInterface(Protocol):
    """An array that can be shared by ``__cuda_array_interface__``: numba's, CuPy's."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Address, shape, strides in bytes and type, version 3."""


class SupportsCudaStream(Protocol):
    """A stream that can be shared by ``__cuda_stream__``: torch's, CuPy's, cuda.core's."""

    def __cuda_stream__(self) -> tuple[int, int]:
        """Return the protocol's version, 0, and the driver's handle."""


class SupportsHandle(Protocol):
    """A texture or a surface: :class:`~ptxrt.Texture`, :class:`~ptxrt.Surface`."""

    @property
    def handle(self) -> int:
        """The number by which kernels know it."""


DeviceArrayLike: TypeAlias = SupportsDLPack | SupportsCudaArrayInterface
"""An array in device memory: a :class:`~ptxrt.DeviceArray`, or another library's."""

StreamLike: TypeAlias = SupportsCudaStream
"""A stream: a :class:`~ptxrt.Stream`, or another library's."""

StructLike: TypeAlias = tuple[Any, ...] | list[Any] | Mapping[str, Any] | np.void | bytes | bytearray
"""A struct by value: its fields in order or by name, a NumPy scalar of its dtype, its bytes; for an array a list."""

KernelArgument: TypeAlias = DeviceArrayLike | SupportsFloat | SupportsIndex | StructLike | SupportsHandle | None
"""What a launch takes for one parameter: an array for a pointer, None for one that may be null, a struct, a texture or
surface, a number."""
