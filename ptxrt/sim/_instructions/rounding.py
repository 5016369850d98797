"""Floating-point arithmetic that rounds once, in the direction asked for.

Everything for float32 and narrower is computed in float64, where a product of two float32 is exact and the error of a
sum is known (Knuth's TwoSum); where the rest of a sum does not vanish it is folded into the last bit (round to odd,
Boldo and Melquiond 2008), so that the final rounding to float32 is the only one. float64 itself is in exact.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ptxrt.sim._text.types import Array

__all__ = [
    "CANONICAL_NAN",
    "DIRECTIONS",
    "canonical",
    "flush",
    "flush_result",
    "fma32",
    "lift",
    "lifted",
    "narrow",
    "odd_sum",
    "saturate",
    "two_sum",
]

DIRECTIONS = ("rn", "rz", "rm", "rp")
CANONICAL_NAN = np.array([0x7FFFFFFF], np.uint32).view(np.float32)
"""The NaN that NVIDIA's float32 arithmetic answers."""

_ONE = np.uint64(1)
_LOW = np.uint64((1 << 29) - 1)
_HALF = np.uint64(1 << 28)
_TINY = np.float32(2.0**-126)
_TINY_HALF = np.float16(2.0**-14)
_LIFT, _LIFT_HALF = 2.0**24, 2.0**11


def lift(dtype: np.dtype[Any]) -> float:
    """Return the power of two that raises the least normal number to where rounding has all its bits."""
    return _LIFT_HALF if dtype == np.float16 else _LIFT


def canonical(value: Array) -> Array:
    """Put the canonical NaN where a float32 result is NaN (in place)."""
    if value.dtype == np.float32:
        bad = np.isnan(value)
        if bad.any():
            value[bad] = CANONICAL_NAN
    return value


def flush(value: Array) -> Array:
    """Return float32, float16 or bfloat16 values with denormals turned to zeros of their sign (.ftz)."""
    small = np.abs(value) < (_TINY_HALF if value.dtype == np.float16 else _TINY)  # bfloat16 has float32's range
    if not small.any():
        return value
    return np.asarray(np.where(small, np.copysign(value.dtype.type(0), value), value))


def flush_result(result: Array, larger: Callable[[], Array]) -> Array:
    """Return results flushed as hardware does it: what is tiny before the exponent's range limits its rounding.

    A product just below the least normal number rounds up to it, and is zero all the same. `larger` computes the
    results `lift` times as large, where the range limits nothing.
    """
    least = _TINY_HALF if result.dtype == np.float16 else _TINY
    edge = np.abs(result) == least
    if edge.any():
        below = np.abs(larger()) < least * lift(result.dtype)
        result = np.where(edge & below, np.copysign(result.dtype.type(0), result), result)
    return flush(result)


def lifted(a: Array, b: Array, *addend: Array) -> tuple[Array, ...]:
    """Return factors, and an addend, whose result is `lift` times as large; the smaller factor stands it."""
    factor = a.dtype.type(lift(a.dtype))
    first = np.abs(a) <= np.abs(b)
    return np.where(first, a * factor, a), np.where(first, b, b * factor), *(c * factor for c in addend)


def saturate(value: Array) -> Array:
    """Clamp to [0, 1], NaN to +0 (.sat)."""
    held = np.minimum(np.maximum(value, value.dtype.type(0)), value.dtype.type(1))
    bad = np.isnan(value)
    # The addition turns -0, which maximum may keep, into +0.
    return np.asarray(np.where(bad, value.dtype.type(0), held + value.dtype.type(0)), value.dtype)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its exact error."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def odd_sum(a: Array, b: Array) -> Array:
    """Return the float64 sum rounded to odd: exact, or its last bit set and between the same neighbours."""
    s, e = two_sum(a, b)
    inexact = np.abs(e) > 0  # not where the sum is infinite or NaN: the error is NaN there
    if not inexact.any():
        return s
    bits = s.view(np.int64)
    # Away from zero where the error has the sum's sign, toward zero where it has the other; only if the last bit is 0.
    # In integers rather than with where, which is slow on flags without a pattern.
    step = ((e.view(np.int64) ^ bits) >> 63 << 1) + 1
    return np.asarray((bits + step * (inexact & ~bits)).view(np.float64))


def narrow(exact: Array, dtype: np.dtype[Any], direction: str = "rn") -> Array:
    """Round float64 values to a narrower type in one direction.

    The values may be exact or rounded to odd; either way the result is the correctly rounded one.
    """
    if dtype in (np.float32, np.float16):
        near = exact.astype(dtype)
    else:
        # ml_dtypes goes through float32: make that step round to odd, so that the last one decides.
        near = _odd32(exact).astype(dtype)
    if direction == "rn":
        return near
    back = near.astype(np.float64)
    if direction == "rm":
        over, under = back > exact, None
    elif direction == "rp":
        over, under = None, back < exact
    else:
        over, under = (back > exact) & (exact > 0), (back < exact) & (exact < 0)
    bits = near.view(f"i{dtype.itemsize}").copy()
    one = bits.dtype.type(1)
    if over is not None:
        bits[over] = _step(bits[over], one, down=True)
    if under is not None:
        bits[under] = _step(bits[under], one, down=False)
    return np.asarray(bits.view(dtype))


def _step(bits: Array, one: Any, *, down: bool) -> Array:
    """Return the bit patterns of the next lower or higher numbers (of finite numbers, or the infinity to leave)."""
    sign = np.array(np.iinfo(bits.dtype).min, bits.dtype)
    magnitude = bits & ~sign
    negative = bits < 0
    if down:
        moved = np.where(negative, bits + one, bits - one)
        return np.asarray(np.where(magnitude == 0, sign | one, moved), bits.dtype)
    moved = np.where(negative, bits - one, bits + one)
    return np.asarray(np.where(magnitude == 0, one, moved), bits.dtype)


def _odd32(exact: Array) -> Array:
    near = exact.astype(np.float32)
    back = near.astype(np.float64)
    bits = near.view(np.int32)
    inexact = (back != exact) & np.isfinite(exact)
    toward = np.where(np.abs(back) > np.abs(exact), -1, 1)
    return np.where(inexact & ((bits & 1) == 0), bits + toward.astype(np.int32), bits).astype(np.int32).view(np.float32)


def fma32(a: Array, b: Array, c: Array, direction: str = "rn") -> Array:
    """Return a*b + c of float32 (or narrower) values with one rounding."""
    dtype = a.dtype
    product = np.multiply(a, b, dtype=np.float64) if dtype == np.float32 else _wide(a) * _wide(b)
    addend = _wide(c)
    if direction != "rn" or dtype != np.float32:
        return _directed_sum(product, addend, dtype, direction)
    total = product + addend
    result = total.astype(np.float32)
    # Rounding twice errs only where the first rounding hit the middle of two float32 values; below the normal range,
    # where fewer bits are left, such middles lie elsewhere.
    doubtful = ((total.view(np.uint64) & _LOW) == _HALF) | (np.abs(result) < _TINY)
    if doubtful.any():
        at = doubtful.nonzero()[0]
        result[at] = odd_sum(_pick(product, at), _pick(addend, at)).astype(np.float32)
    return result


def _directed_sum(a: Array, b: Array, dtype: np.dtype[Any], direction: str) -> Array:
    total = odd_sum(a, b)
    if direction == "rm":
        # Toward minus infinity a sum of zero is -0, unless both terms are +0.
        total = np.where((total == 0) & (np.signbit(a) | np.signbit(b)), -0.0, total)
    return narrow(total, dtype, direction)


def _wide(value: Array) -> Array:
    return value.astype(np.float64)


def _pick(value: Array, at: Array) -> Array:
    return value if value.shape[0] == 1 else value[at]


def by_residual(near: Array, sign: Array, direction: str) -> Array:
    """Move correctly rounded float32 values to another direction, by the sign of (exact - near)."""
    if direction == "rn":
        return near
    bits = near.view(np.int32).copy()
    one = np.int32(1)
    finite = ~np.isnan(near) & ~np.isnan(sign)
    if direction in ("rm", "rz"):
        over = finite & (sign < 0)
        if direction == "rz":
            over &= near > 0
        bits[over] = _step(bits[over], one, down=True)
    if direction in ("rp", "rz"):
        under = finite & (sign > 0)
        if direction == "rz":
            under &= near < 0
        bits[under] = _step(bits[under], one, down=False)
    return np.asarray(bits.view(np.float32))


def div32(a: Array, b: Array, direction: str = "rn") -> Array:
    """Return a/b of float32 values with one rounding."""
    near: Array = np.divide(a, b)
    if direction == "rn":
        return near
    wide = near.astype(np.float64)
    # In float64 the remainder is exact; where near overflowed or b is 0, inf and NaN tell their own story.
    rest = a.astype(np.float64) - wide * b.astype(np.float64)
    sign = np.sign(rest) * np.where(np.signbit(b), -1.0, 1.0)
    overflow = np.isinf(near) & np.isfinite(a) & (b != 0)
    sign = np.where(overflow, -np.sign(wide), np.where(np.isinf(near) | np.isinf(b), 0.0, sign))
    return by_residual(near, sign, direction)


def sqrt32(a: Array, direction: str = "rn") -> Array:
    """Return the square root of float32 values with one rounding."""
    near: Array = np.sqrt(a)
    if direction == "rn":
        return near
    wide = near.astype(np.float64)
    return by_residual(near, np.where(np.isinf(near), 0.0, np.sign(a.astype(np.float64) - wide * wide)), direction)


def rounded32(operation: Callable[[Array, Array], Array], direction: str) -> Callable[[Array, Array], Array]:
    """Return add, sub or mul of float32 values in a direction other than rn."""

    def compute(a: Array, b: Array) -> Array:
        x, y = a.astype(np.float64), b.astype(np.float64)
        if operation is np.multiply:
            return narrow(x * y, np.dtype(np.float32), direction)
        return _directed_sum(x, -y if operation is np.subtract else y, np.dtype(np.float32), direction)

    return compute
