"""The element types: their size, and their spelling in NumPy, PTX and HIP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import ml_dtypes
import numpy as np

from ptxrt.errors import DTypeMismatch, shown

__all__ = ["BY_NAME", "BY_NUMPY", "ElementType", "alike", "element_type"]


@dataclass(frozen=True, eq=False)
class ElementType:
    """One element type; there is a single instance of each, so ``is`` compares them.

    Attributes
    ----------
    name
        As in a Signature: ``"f32"``.
    numpy
        The ``numpy.dtype``; bfloat16 is ``ml_dtypes.bfloat16``.
    kind
        ``"float"`` or ``"int"`` (bool counts as int, as it does in a parameter table).
    pack
        The ``struct`` code of a scalar of this type; None for bfloat16, which ``struct`` does not know.
    ptx, hip
        The type's name in PTX (``".f32"``) and in HIP or CUDA C++.
    """

    name: str
    numpy: np.dtype[Any]
    kind: Literal["float", "int"]
    pack: str | None
    ptx: str
    hip: str

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @cached_property
    def limits(self) -> tuple[int, int]:
        """The smallest and the largest value of an integer type; a floating type has none."""
        if self.name == "bool":
            return 0, 1
        found = np.iinfo(self.numpy)
        return found.min, found.max

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        # Also for deepcopy: there is a single instance of each.
        return (element_type, (self.numpy,))


_TABLE = (
    ElementType("f32", np.dtype(np.float32), "float", "f", ".f32", "float"),
    ElementType("f64", np.dtype(np.float64), "float", "d", ".f64", "double"),
    ElementType("f16", np.dtype(np.float16), "float", "e", ".f16", "_Float16"),
    ElementType("bf16", np.dtype(ml_dtypes.bfloat16), "float", None, ".bf16", "__hip_bfloat16"),
    ElementType("u8", np.dtype(np.uint8), "int", "B", ".u8", "unsigned char"),
    ElementType("u16", np.dtype(np.uint16), "int", "H", ".u16", "unsigned short"),
    ElementType("u32", np.dtype(np.uint32), "int", "I", ".u32", "unsigned int"),
    ElementType("u64", np.dtype(np.uint64), "int", "Q", ".u64", "unsigned long long"),
    ElementType("i8", np.dtype(np.int8), "int", "b", ".s8", "signed char"),
    ElementType("i16", np.dtype(np.int16), "int", "h", ".s16", "short"),
    ElementType("i32", np.dtype(np.int32), "int", "i", ".s32", "int"),
    ElementType("i64", np.dtype(np.int64), "int", "q", ".s64", "long long"),
    ElementType("bool", np.dtype(np.bool_), "int", "?", ".u8", "bool"),
)

BY_NAME = {t.name: t for t in _TABLE}
BY_NUMPY = {t.numpy: t for t in _TABLE}


def alike(one: ElementType, other: ElementType) -> bool:
    """Whether two types are the same to a binary, which does not tell the sign of an integer."""
    return one is other or (one.kind == other.kind == "int" and one.size == other.size)


def element_type(dtype: Any, *, op: str | None = None, argument: str | None = "dtype") -> ElementType:
    """Return the element type for a NumPy dtype, a NumPy scalar type or one of our names.

    Raises
    ------
    DTypeMismatch
        For a type that no kernel parameter has (complex, object, big-endian), or none; for "i8" and "u8", which NumPy
        and we read differently.
    """
    if isinstance(dtype, ElementType):
        return dtype
    if isinstance(dtype, str) and dtype in ("i8", "u8"):
        numpys = np.dtype(dtype).name
        raise DTypeMismatch(
            op=op,
            argument=argument,
            expected=f"{numpys.rstrip('64')}8 or {numpys}",
            given=f"{shown(dtype)}, which is 8 bits in a signature and 8 bytes in NumPy",
            fix="Write the one that is meant",
        )
    if isinstance(dtype, str) and dtype in BY_NAME:
        return BY_NAME[dtype]
    try:
        # NumPy makes float64 of None; here a type is never guessed.
        return BY_NUMPY[np.dtype("void" if dtype is None else dtype)]
    except (TypeError, KeyError, ValueError, SyntaxError):
        raise DTypeMismatch(
            op=op,
            argument=argument,
            expected=f"one of {', '.join(BY_NAME)}",
            given=shown(dtype),
            fix="Convert the array, for example with numpy's astype",
        ) from None
