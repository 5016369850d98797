"""cvt to and from the types that no register holds alone: pairs of 8-bit floats, and tf32."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from ptxrt.sim._instructions.op import Op
from ptxrt.sim._text.types import TYPES, Array

__all__ = ["eighths", "to_tf32"]

_EIGHTHS = {"e4m3x2": np.dtype(ml_dtypes.float8_e4m3fn), "e5m2x2": np.dtype(ml_dtypes.float8_e5m2)}
_MOST = {"e4m3x2": 448.0, "e5m2x2": 57344.0}
_NAN = np.uint16(0x7F)


def eighths(op: Op, direction: str | None, *, relu: bool) -> None:
    """``cvt.rn.satfinite.e4m3x2.f32 d, a, b``, the same from .f16x2, and back to .f16x2."""
    saturates = op.flag("satfinite")
    names = [name for name in op.ins.modifiers if name in _EIGHTHS or name in TYPES]
    if direction != "rn" or len(names) != 2:
        op.fail("cvt among 8-bit floats is cvt.rn with two types")
    to, source = names
    for name in names:
        if not (op.type(name) if name in TYPES else op.flag(name)):
            op.fail(f"{op.ins.opcode} has an unknown type")
    if to in _EIGHTHS and source in ("f32", "f16x2"):
        if not saturates:
            op.fail(f"cvt to .{to} needs .satfinite")
        _to_eighths(op, to, source, relu=relu)
    elif source in _EIGHTHS and to == "f16x2" and not saturates:
        _from_eighths(op, source, relu=relu)
    else:
        op.unsupported(op.ins.opcode)


def _narrowed(value: Array, to: str, relu: bool) -> Array:
    """Return one part as an 8-bit pattern; values above the largest stop there, NaN is the canonical one."""
    wide = value.astype(np.float32)
    if relu:
        wide = np.where(wide <= 0, np.float32(0), wide)
    most = np.float32(_MOST[to])
    held = np.minimum(np.maximum(wide, -most), most).astype(_EIGHTHS[to]).view(np.uint8).astype(np.uint16)
    return np.asarray(np.where(np.isnan(wide), _NAN, held))


def _to_eighths(op: Op, to: str, source: str, *, relu: bool) -> None:
    kind = TYPES["b16"]
    if source == "f32":
        op.lanewise(
            kind,
            (TYPES["f32"], TYPES["f32"]),
            lambda a, b: _narrowed(a, to, relu) << np.uint16(8) | _narrowed(b, to, relu),
        )
        return

    def compute(a: Array) -> Array:
        parts = _narrowed(a.view(np.float16).reshape(-1, 2), to, relu)
        return np.asarray(parts[:, 1] << np.uint16(8) | parts[:, 0])

    op.lanewise(kind, (TYPES["f16x2"],), compute)


def _from_eighths(op: Op, source: str, *, relu: bool) -> None:
    def compute(a: Array) -> Array:
        parts = a.view(np.uint8).view(_EIGHTHS[source]).astype(np.float16)
        if relu:
            parts = np.where(parts <= 0, np.float16(0), parts)
        bits = parts.view(np.uint16)
        bits = np.where(np.isnan(parts), np.uint16(0x7FFF), bits)
        return np.ascontiguousarray(bits).view(np.uint32)

    op.lanewise(TYPES["f16x2"], (TYPES["b16"],), compute)


def to_tf32(op: Op, direction: str | None, *, relu: bool) -> None:
    """``cvt.rna.tf32.f32``, .rn, .rz: 10 bits of mantissa, the lower 13 bits of the register zero."""
    saturates = op.flag("satfinite")
    if direction not in ("rna", "rn", "rz") or (direction == "rna" and relu):
        op.fail("cvt to .tf32 takes .rna, or .rn or .rz with or without .relu")
    if saturates and direction != "rna":
        op.needs(op.ins.opcode, 100, (8, 6))
    if op.ins.modifiers[-2:] != ("tf32", "f32") or not op.flag("tf32"):
        op.fail("cvt to .tf32 comes from .f32")
    source = op.type("f32")
    way = direction

    def compute(a: Array) -> Array:
        bits = a.view(np.uint32)
        if way == "rna":
            rounded = bits + np.uint32(0x1000)
        elif way == "rn":
            rounded = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
        else:
            rounded = bits
        rounded = np.where(np.isfinite(a), rounded, bits) & np.uint32(0xFFFFE000)
        if saturates:
            # One step down from infinity; an H200 does the same to a NaN.
            over = (rounded & np.uint32(0x7FFFFFFF)) >= np.uint32(0x7F800000)
            rounded = np.where(over, rounded - np.uint32(0x2000), rounded)
        if relu:
            rounded = np.where(a <= 0, np.uint32(0), rounded)
        if way != "rna":  # which keeps what is left of a NaN
            rounded = np.where(np.isnan(a), np.uint32(0x7FFFE000), rounded)
        return np.asarray(rounded.astype(np.uint32))

    op.lanewise(TYPES["b32"], (source,), compute)
