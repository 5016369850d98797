"""Integer arithmetic: add, sub, mul, mad, div, rem, min, max, abs, neg, sad, dp4a."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__ = ["INTS", "SIGNED", "multiply_high", "multiply_wide", "wide_type"]

INTS = ("u16", "u32", "u64", "s16", "s32", "s64")
SIGNED = ("s16", "s32", "s64")
PACKED = ("u16x2", "s16x2")


def wide_type(kind: PtxType) -> PtxType:
    """Return the type of twice the width."""
    return TYPES[f"{kind.kind}{2 * kind.bits}"]


def multiply_wide(a: Array, b: Array) -> Array:
    """Return the whole product of 16- or 32-bit integers."""
    wide = np.dtype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")
    return np.asarray(np.multiply(a, b, dtype=wide))


def multiply_high(a: Array, b: Array) -> Array:
    """Return the upper half of the product."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        whole = multiply_wide(a, b)
        return np.asarray((whole >> whole.dtype.type(bits)).astype(a.dtype))
    x, y = a.view(np.uint64), b.view(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x_low, x_high, y_low, y_high = x & low, x >> half, y & low, y >> half
    middle = x_high * y_low + (x_low * y_low >> half)
    cross = x_low * y_high + (middle & low)
    high = x_high * y_high + (middle >> half) + (cross >> half)
    if a.dtype.kind == "i":
        # Two's complement: an operand below zero counts 2**64 too much.
        high = high - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return np.asarray(high.view(a.dtype))


@instruction("add", "sub", types=INTS)
def add(op: Op) -> None:
    """``d = a + b``; .sat for .s32."""
    saturated = op.flag("sat")
    compute = np.add if op.ins.name == "add" else np.subtract
    kind = op.type(*INTS)
    if not saturated:
        op.lanewise(kind, (kind, kind), compute)
        return
    if kind.name != "s32":
        op.fail(f"{op.ins.name}.sat takes .s32")

    op.lanewise(kind, (kind, kind), lambda a, b: _saturated(a, b, compute))


def _saturated(a: Array, b: Array, compute: Callable[..., Array]) -> Array:
    exact = compute(a.astype(np.int64), b.astype(np.int64))
    return np.asarray(np.clip(exact, -(2**31), 2**31 - 1).astype(np.int32))


def _pairs(kind: PtxType, compute: Callable[..., Array]) -> Callable[..., Array]:
    """Return `compute` on the two 16-bit integers of each register."""
    half = kind.name.removesuffix("x2").replace("s", "i").replace("16", "2")

    def packed(*values: Array) -> Array:
        result = compute(*[value.view(half).reshape(-1, 2) for value in values])
        return np.ascontiguousarray(result).reshape(-1).view(np.uint32)

    return packed


@instruction("add", types=PACKED)
def add_packed(op: Op) -> None:
    """Two sums of 16 bits."""
    kind = op.type(*PACKED)
    op.needs(op.ins.opcode, 90, (8, 0))
    op.lanewise(kind, (kind, kind), _pairs(kind, np.add))


@instruction("mul", types=INTS)
def mul(op: Op) -> None:
    """``.lo``, ``.hi`` or ``.wide``."""
    part = op.choice("lo", "hi", "wide")
    kind = op.type(*INTS)
    if part is None:
        op.fail("mul of integers takes .lo, .hi or .wide")
    if part == "wide":
        if kind.bits == 64:
            op.fail("mul.wide takes 16- and 32-bit types")
        op.lanewise(wide_type(kind), (kind, kind), multiply_wide)
    else:
        op.lanewise(kind, (kind, kind), np.multiply if part == "lo" else multiply_high)


@instruction("mad", types=INTS)
def mad(op: Op) -> None:
    """``d = part of a*b, + c``."""
    part = op.choice("lo", "hi", "wide")
    saturated = op.flag("sat")
    kind = op.type(*INTS)
    if part is None:
        op.fail("mad of integers takes .lo, .hi or .wide")
    if saturated and (part != "hi" or kind.name != "s32"):
        op.fail("mad takes .sat with .hi.s32 only")
    if saturated:
        op.lanewise(kind, (kind, kind, kind), lambda a, b, c: _saturated(multiply_high(a, b), c, np.add))
    elif part == "wide":
        if kind.bits == 64:
            op.fail("mad.wide takes 16- and 32-bit types")
        wide = wide_type(kind)
        op.lanewise(wide, (kind, kind, wide), lambda a, b, c: multiply_wide(a, b) + c)
    elif part == "lo":
        op.lanewise(kind, (kind, kind, kind), lambda a, b, c: a * b + c)
    else:
        op.lanewise(kind, (kind, kind, kind), lambda a, b, c: multiply_high(a, b) + c)


def _low24(a: Array) -> Array:
    eight = a.dtype.type(8)
    return np.asarray(((a << eight) >> eight).astype(f"{a.dtype.kind}8"))


@instruction("mul24", "mad24")
def mul24(op: Op) -> None:
    """The 48-bit product of the low 24 bits: bits 0 to 31, or 16 to 47."""
    part = op.choice("lo", "hi")
    saturated = op.ins.name == "mad24" and op.flag("sat")
    kind = op.type("u32", "s32")
    if part is None:
        op.fail(f"{op.ins.name} takes .lo or .hi")
    if saturated and (part != "hi" or kind.name != "s32"):
        op.fail("mad24 takes .sat with .hi.s32 only")

    def product(a: Array, b: Array) -> Array:
        whole = _low24(a) * _low24(b)
        return np.asarray((whole >> whole.dtype.type(16) if part == "hi" else whole).astype(a.dtype))

    if op.ins.name == "mul24":
        op.lanewise(kind, (kind, kind), product)
    elif saturated:
        op.lanewise(kind, (kind, kind, kind), lambda a, b, c: _saturated(product(a, b), c, np.add))
    else:
        op.lanewise(kind, (kind, kind, kind), lambda a, b, c: product(a, b) + c)


@instruction("sad")
def sad(op: Op) -> None:
    """``d = c + |a - b|``."""
    kind = op.type(*INTS)
    op.lanewise(kind, (kind, kind, kind), lambda a, b, c: c + np.where(a < b, b - a, a - b))


def _magnitude(a: Array) -> Array:
    unsigned = a.view(f"u{a.dtype.itemsize}")
    return np.where(a < 0, np.negative(unsigned), unsigned)


def _divide(a: Array, b: Array) -> Array:
    """Toward zero; a zero divisor gives all ones, as the hardware's sequence does."""
    ones = a.dtype.type(-1) if a.dtype.kind == "i" else np.iinfo(a.dtype).max
    zero = b == 0
    if a.dtype.kind == "u":
        quotient = np.floor_divide(a, b)
    else:
        size = np.floor_divide(_magnitude(a), _magnitude(b))
        quotient = np.where((a < 0) != (b < 0), np.negative(size), size).view(a.dtype)
    return np.where(zero, np.asarray(ones, a.dtype), quotient) if zero.any() else np.asarray(quotient)


def _remainder(a: Array, b: Array) -> Array:
    """With the sign of the dividend; by zero all ones, as an H200 answers."""
    rest = a - _divide(a, b) * b
    zero = b == 0
    return np.asarray(np.where(zero, ~np.zeros(1, a.dtype), rest) if zero.any() else rest)


@instruction("div", types=INTS)
def div(op: Op) -> None:
    """Integer quotient."""
    kind = op.type(*INTS)
    op.lanewise(kind, (kind, kind), _divide)


@instruction("rem")
def rem(op: Op) -> None:
    """Remainder with the sign of the dividend."""
    kind = op.type(*INTS)
    op.lanewise(kind, (kind, kind), _remainder)


@instruction("min", "max", types=(*INTS, *PACKED))
def minimum(op: Op) -> None:
    """The smaller or larger, with .relu at least zero."""
    relu = op.flag("relu")
    kind = op.type(*INTS, *PACKED)
    if relu and kind.name not in ("s32", "s16x2"):
        op.fail(f"{op.ins.name} takes .relu with .s32 and .s16x2 only")
    if relu or kind.name in PACKED:
        op.needs(op.ins.opcode, 90, (8, 0))
    extreme = np.minimum if op.ins.name == "min" else np.maximum

    def positive(a: Array, b: Array) -> Array:
        return np.asarray(np.maximum(extreme(a, b), a.dtype.type(0)))

    compute = positive if relu else extreme
    op.lanewise(kind, (kind, kind), _pairs(kind, compute) if kind.name in PACKED else compute)


@instruction("abs", "neg", types=SIGNED)
def absolute(op: Op) -> None:
    """Absolute value or negation; the most negative number stays."""
    kind = op.type(*SIGNED)
    op.lanewise(kind, (kind,), np.absolute if op.ins.name == "abs" else np.negative)


@instruction("dp4a", "dp2a")
def dot(op: Op) -> None:
    """Dot product of four bytes (or two halves with two bytes), added to c."""
    four = op.ins.name == "dp4a"
    half = None if four else op.choice("lo", "hi")
    if half is None and not four:
        op.fail("dp2a takes .lo or .hi")
    kinds = op.type("u32", "s32"), op.type("u32", "s32")
    result = TYPES["s32"] if kinds[0].signed or kinds[1].signed else TYPES["u32"]

    def parts(value: Array, kind: PtxType, size: int) -> Array:
        return value.view(f"{'i' if kind.signed else 'u'}{size}").reshape(-1, 4 // size).astype(np.int64)

    def compute(a: Array, b: Array, c: Array) -> Array:
        x = parts(a, kinds[0], 1 if four else 2)
        y = parts(b, kinds[1], 1)
        if not four:
            y = y[:, 2:] if half == "hi" else y[:, :2]
        return np.asarray(((x * y).sum(axis=1) + c).astype(np.int64).astype(result.dtype))

    op.lanewise(result, (*kinds, result), compute)
