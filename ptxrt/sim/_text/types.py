"""The types of PTX: what a register of each is in NumPy, and which register agrees with which instruction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

__all__ = ["TYPES", "Array", "PtxType", "agrees", "word_type"]

Array = np.ndarray[Any, np.dtype[Any]]
"""One register of all lanes, of shape (lanes,), or of shape (1,) where every lane holds the same value."""

Kind = Literal["b", "u", "s", "f", "packed", "pred"]


@dataclass(frozen=True, eq=False)
class PtxType:
    """One PTX type; a single instance of each, so ``is`` compares them.

    Attributes
    ----------
    name
        Without the dot: ``"f32"``.
    kind
        Bits, unsigned, signed, float, packed pair of 16 bits each, predicate.
    bits
        Width; 1 for a predicate.
    dtype
        How NumPy holds a register of it.
    """

    name: str
    kind: Kind
    bits: int
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.dtype.itemsize

    @property
    def is_float(self) -> bool:
        """True for one floating-point number (not a packed pair)."""
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """True for bits, unsigned and signed alike."""
        return self.kind in ("b", "u", "s")

    @property
    def signed(self) -> bool:
        """True for .s8 to .s64."""
        return self.kind == "s"

    def __repr__(self) -> str:
        return f".{self.name}"


def _table() -> dict[str, PtxType]:
    found = {"pred": PtxType("pred", "pred", 1, np.dtype(np.bool_))}
    for bits in (8, 16, 32, 64):
        found[f"b{bits}"] = PtxType(f"b{bits}", "b", bits, np.dtype(f"u{bits // 8}"))
        found[f"u{bits}"] = PtxType(f"u{bits}", "u", bits, np.dtype(f"u{bits // 8}"))
        found[f"s{bits}"] = PtxType(f"s{bits}", "s", bits, np.dtype(f"i{bits // 8}"))
    for bits in (16, 32, 64):
        found[f"f{bits}"] = PtxType(f"f{bits}", "f", bits, np.dtype(f"f{bits // 8}"))
    # No NumPy integer has 128 bits. Values of this type are copied, and never computed with.
    found["b128"] = PtxType("b128", "b", 128, np.dtype(np.complex128))
    found["bf16"] = PtxType("bf16", "f", 16, np.dtype(ml_dtypes.bfloat16))
    found["f16x2"] = PtxType("f16x2", "packed", 32, np.dtype(np.uint32))
    for name in ("bf16x2", "u16x2", "s16x2"):
        found[name] = PtxType(name, "packed", 32, np.dtype(np.uint32))
    return found


TYPES = _table()
"""Every type that the machine knows, by name."""


def word_type(size: int) -> np.dtype[Any]:
    """Return what words of so many bytes are in NumPy: unsigned integers, up to 8."""
    return np.dtype(f"u{size}") if size <= 8 else TYPES["b128"].dtype


def agrees(wanted: PtxType, register: PtxType, *, wider: bool = False) -> bool:
    """Tell whether ptxas lets a `register` stand where an instruction says `wanted`.

    Parameters
    ----------
    wanted
        The instruction's type for this operand.
    register
        The type the register was declared with.
    wider
        True for ld, st and cvt, where the register may be wider than the type.
    """
    if wanted.kind == "pred" or register.kind == "pred":
        return wanted is register
    if 128 in (wanted.bits, register.bits):
        return wanted is register
    fits = register.bits >= wanted.bits if wider else register.bits == wanted.bits
    if not fits:
        return False
    if wanted.kind == "b":
        return True
    if wanted.is_int:
        return register.is_int
    return register is wanted or register.kind == "b"
