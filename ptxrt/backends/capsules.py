"""DLPack's capsules, read and changed in place: what NumPy cannot say of memory that is none of the host's.

NumPy makes and takes capsules of host memory. It never looks at the memory itself, so for another device's address its
capsule is right but for the device, and, for bfloat16, which it has not, for the type.
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["BFLOAT", "HOST", "UINT", "set_device", "set_type", "type_code"]

HOST = 1
"""DLPack's device type of host memory."""
UINT, BFLOAT = 1, 4
"""Its type codes of unsigned integers and of bfloat16."""

# dlpack.h: DLTensor is {void* data; {i32 type, i32 id} device; i32 ndim; {u8 code; u8 bits; u16 lanes} dtype; ...}; it
# is at the head of DLManagedTensor, and 32 bytes into DLManagedTensorVersioned.
_DEVICE, _CODE, _VERSIONED = 8, 20, 32


def set_device(capsule: Any, code: int, ordinal: int) -> None:
    """Set where the memory of a capsule lies, one that nobody has taken yet."""
    (ctypes.c_int32 * 2).from_address(_tensor(capsule) + _DEVICE)[:] = [code, ordinal]


def type_code(capsule: Any) -> int:
    """Return the type code of a capsule."""
    return ctypes.c_uint8.from_address(_tensor(capsule) + _CODE).value


def set_type(capsule: Any, code: int) -> None:
    """Set the type code of a capsule that nobody has taken yet; the bits stay what they are."""
    ctypes.c_uint8.from_address(_tensor(capsule) + _CODE).value = code


def _tensor(capsule: Any) -> int:
    """Return the address of a capsule's DLTensor."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    if "dltensor_versioned" in repr(capsule):
        return int(pointer(capsule, b"dltensor_versioned")) + _VERSIONED
    return int(pointer(capsule, b"dltensor"))
