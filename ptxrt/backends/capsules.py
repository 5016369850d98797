"""DLPack's capsules, read and changed in place: what NumPy cannot say of memory that is none of the host's.

NumPy makes and takes capsules of host memory. It never looks at the memory itself, so for another device's address its
capsule is right but for the device, and, for bfloat16, which it has not, for the type.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BFLOAT", "HOST", "as_numpy", "set_device", "set_type"]

HOST = 1
"""DLPack's device type of host memory."""
BFLOAT = 4
"""Its type code of bfloat16."""

# dlpack.h: DLTensor is {void* data; {i32 type, i32 id} device; i32 ndim; {u8 code; u8 bits; u16 lanes} dtype; ...}; it
# is at the head of DLManagedTensor, and 32 bytes into DLManagedTensorVersioned.
_DEVICE, _CODE, _VERSIONED = 8, 20, 32
_UINT = 1


def as_numpy(export: Callable[..., Any]) -> NDArray[Any]:
    """Return what ``__dlpack__`` shares as an array of NumPy, whose memory NumPy has not looked at.

    Parameters
    ----------
    export
        An array's ``__dlpack__``; NumPy calls it, and gives the capsule back when its array goes.
    """
    bits = _Bits(export)
    array = np.from_dlpack(bits)
    return array.view(ml_dtypes.bfloat16) if bits.bfloat16 else array


class _Bits:
    """An exporter as NumPy takes it: on the host, and bfloat16 as integers of as many bits."""

    def __init__(self, export: Callable[..., Any]) -> None:
        self.export, self.bfloat16 = export, False

    def __dlpack__(self, **how: Any) -> Any:
        capsule = self.export(**how)
        set_device(capsule, HOST, 0)
        self.bfloat16 = ctypes.c_uint8.from_address(_tensor(capsule) + _CODE).value == BFLOAT
        if self.bfloat16:
            set_type(capsule, _UINT)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return HOST, 0


def set_device(capsule: Any, code: int, ordinal: int) -> None:
    """Set where the memory of a capsule lies, one that nobody has consumed yet."""
    (ctypes.c_int32 * 2).from_address(_tensor(capsule) + _DEVICE)[:] = [code, ordinal]


def set_type(capsule: Any, code: int) -> None:
    """Set the type code of a capsule that nobody has consumed yet; the bits stay what they are."""
    ctypes.c_uint8.from_address(_tensor(capsule) + _CODE).value = code


def _tensor(capsule: Any) -> int:
    """Return the address of a capsule's DLTensor."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if "dltensor_versioned" in repr(capsule):
        return int(pointer(capsule, b"dltensor_versioned")) + _VERSIONED
    return int(pointer(capsule, b"dltensor"))
