"""The element types: their size, and their spelling in NumPy, PTX and HIP."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import ml_dtypes
import numpy as np

from ptxrt.errors import DTypeMismatch, shown

__all__ = [
    "BY_NAME",
    "BY_NUMPY",
    "HANDLES",
    "VECTORS",
    "ElementType",
    "alike",
    "array_type",
    "element_type",
    "handle_type",
    "struct_type",
]


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
        ``"float"``, ``"int"`` (bool counts as int, as it does in a parameter table), or ``"struct"`` for what
        :func:`struct_type` and :func:`array_type` make, or ``"handle"``, of a texture or a surface.
    pack
        The ``struct`` code of a scalar of this type; None for bfloat16, which ``struct`` does not know.
    ptx, hip
        The type's name in PTX (``".f32"``) and in HIP or CUDA C++.
    """

    name: str
    numpy: np.dtype[Any]
    kind: Literal["float", "int", "struct", "handle"]
    pack: str | None
    ptx: str
    hip: str

    @property
    def size(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @cached_property
    def alignment(self) -> int:
        """Bytes that its address is a multiple of: its size; of a struct, what its fields want."""
        return _alignment(self.numpy)

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
        if self.kind == "handle":
            return handle_type, (self.name,)
        return (struct_type, (self.name, self.numpy)) if self.kind == "struct" else (element_type, (self.numpy,))


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
HANDLES = {
    "texture": ElementType("texture", np.dtype(np.uint64), "handle", "Q", ".u64", "cudaTextureObject_t"),
    "surface": ElementType("surface", np.dtype(np.uint64), "handle", "Q", ".u64", "cudaSurfaceObject_t"),
}
"""By name, what a parameter is that names a texture or a surface; no array has such elements."""


def struct_type(name: str, dtype: Any, *, op: str | None = None) -> ElementType:
    """Return the type of a struct that is passed by value.

    Parameters
    ----------
    name
        As a Signature spells it.
    dtype
        A structured NumPy dtype, aligned or not, of element types, arrays of them and structs; an array of these; or
        ``"V24"``, bytes.

    Raises
    ------
    DTypeMismatch
        For any other dtype, and a field of a type that no kernel parameter has.
    """
    try:
        known = np.dtype("void" if dtype is None else dtype)
    except (TypeError, ValueError, SyntaxError):
        known = np.dtype("void")
    if not issubclass(known.type, np.void) or not known.itemsize or not all(map(_known, _leaves(known))):
        raise DTypeMismatch(
            op=op,
            argument=name,
            expected=f"a structured NumPy dtype with fields of {', '.join(BY_NAME)}",
            given=shown(dtype),
        )
    return _struct_type(name, known)


def array_type(element: ElementType, length: int) -> ElementType:
    """Return the type of an array that is passed by value, as a Signature spells it around its name: ``"f32[6]"``."""
    return _struct_type(f"{element.name}[{length}]", np.dtype((element.numpy, (length,))))


@functools.lru_cache(maxsize=1024)
def _struct_type(name: str, dtype: np.dtype[Any]) -> ElementType:
    return ElementType(name, dtype, "struct", f"{dtype.itemsize}s", ".b8", name)


def _leaves(dtype: np.dtype[Any]) -> Iterator[np.dtype[Any]]:
    if dtype.subdtype:
        yield from _leaves(dtype.subdtype[0])
    elif dtype.names is None:
        yield dtype
    for field, *_ in (dtype.fields or {}).values():
        yield from _leaves(field)


def _known(leaf: np.dtype[Any]) -> bool:
    return leaf in BY_NUMPY or issubclass(leaf.type, np.void)


def _alignment(dtype: np.dtype[Any]) -> int:
    if dtype.subdtype:
        return _alignment(dtype.subdtype[0])
    if dtype.names is None:
        return 1 if issubclass(dtype.type, np.void) else dtype.itemsize
    fields = [(offset, _alignment(field)) for field, offset, *_ in (dtype.fields or {}).values()]
    most = max(align for _, align in fields)
    # A packed struct may be anywhere.
    return most if dtype.itemsize % most == 0 and all(offset % align == 0 for offset, align in fields) else 1


def handle_type(name: str) -> ElementType:
    """Return the type of a parameter that is a "texture" or a "surface"."""
    return HANDLES[name]


_SCALARS = {
    "char": "i8", "uchar": "u8", "short": "i16", "ushort": "u16", "int": "i32", "uint": "u32", "long": "i64",
    "ulong": "u64", "longlong": "i64", "ulonglong": "u64", "float": "f32", "double": "f64",
}  # fmt: skip
VECTORS = {
    name: struct_type(name, np.dtype([(axis, BY_NAME[of].numpy) for axis in "xyzw"[:length]], align=True))
    for name, of, length in [
        *((f"{scalar}{length}", of, length) for scalar, of in _SCALARS.items() for length in (1, 2, 3, 4)),
        ("dim3", "u32", 3),
    ]
}
"""The vector types of CUDA C++ and HIP by their names there, with the fields x, y, z, w."""


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
