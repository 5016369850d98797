"""float64 arithmetic with one rounding, where the hardware under NumPy has no such instruction.

The quick way is error-free: Dekker's product and Knuth's sum give the exact result as a few float64 values, and the
algorithm of Boldo and Melquiond (2008) adds them with one rounding. It needs exponents away from both ends; lanes
outside that range, and directions other than to nearest, are computed in Python's exact fractions one by one.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from ptxrt.sim._instructions.rounding import odd_sum, two_sum
from ptxrt.sim._text.types import Array

__all__ = ["add64", "div64", "fma64", "mul64", "round_fraction", "sqrt64", "two_product"]

_SPLITTER = float((1 << 27) + 1)
_SMALLEST, _LARGEST = 2.0**-400, 2.0**400


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the rounded product and its exact error (Dekker), for exponents away from both ends."""
    p = a * b
    t = a * _SPLITTER
    a_high = t - (t - a)
    a_low = a - a_high
    t = b * _SPLITTER
    b_high = t - (t - b)
    b_low = b - b_high
    return p, ((a_high * b_high - p) + a_high * b_low + a_low * b_high) + a_low * b_low


def round_fraction(value: Fraction, direction: str = "rn") -> float:
    """Round an exact number to float64; overflow and underflow as IEEE 754 has them."""
    if value == 0:
        return 0.0
    magnitude = abs(value)
    # The exponent of the last bit: 53 bits, but none below 2**-1074.
    top = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** top > magnitude:
        top -= 1
    last = max(top - 52, -1074)
    scaled = magnitude / Fraction(2) ** last
    whole, rest = divmod(scaled.numerator, scaled.denominator)
    negative = value < 0
    if rest:
        twice = 2 * rest - scaled.denominator
        up = {
            "rn": twice > 0 or (twice == 0 and whole & 1 == 1),
            "rz": False,
            "rm": negative,
            "rp": not negative,
        }[direction]
        whole += up
    if whole and whole.bit_length() + last > 1024:
        to_infinity = direction in ("rn", "rm" if negative else "rp")
        result = math.inf if to_infinity else math.ldexp(float((1 << 53) - 1), 971)
    else:
        result = math.ldexp(float(whole), last)
    return -result if negative else result


def _exact_fma(a: float, b: float, c: float, direction: str) -> float:
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        product_negative = math.copysign(1.0, a) * math.copysign(1.0, b) < 0
        c_negative = math.copysign(1.0, c) < 0
        product_zero = a == 0 or b == 0
        if product_zero and c == 0 and product_negative == c_negative:
            return -0.0 if c_negative else 0.0
        return -0.0 if direction == "rm" else 0.0
    rounded = round_fraction(total, direction)
    return math.copysign(rounded, -1.0 if total < 0 else 1.0)


def _one_by_one(result: Array, at: Array, a: Array, b: Array, c: Array, direction: str) -> None:
    wide = [np.broadcast_to(x, result.shape)[at].tolist() for x in (a, b, c)]
    result[at] = [_exact_fma(x, y, z, direction) for x, y, z in zip(*wide, strict=True)]


def _in_range(x: Array) -> Array:
    size = np.abs(x)
    return (size > _SMALLEST) & (size < _LARGEST)


def _all_in_range(x: Array) -> bool:
    size = np.abs(x)
    # A NaN makes both comparisons false.
    return bool(size.min() > _SMALLEST and size.max() < _LARGEST)


def fma64(a: Array, b: Array, c: Array, direction: str = "rn") -> Array:
    """Return a*b + c of float64 values with one rounding."""
    high, low = two_product(a, b)
    top, rest = two_sum(c, low)
    sum_high, sum_low = two_sum(high, top)
    quick = sum_high + odd_sum(rest, sum_low)
    if direction == "rn" and _all_in_range(a) and _all_in_range(b) and _all_in_range(c):
        return quick
    plain = a * b + c
    safe = _in_range(a) & _in_range(b) & (_in_range(c) | (c == 0))
    # A zero factor, infinities and NaN need no rounding; the plain formula is right for them.
    simple = (a == 0) | (b == 0) | ~np.isfinite(a) | ~np.isfinite(b) | ~np.isfinite(c)
    if direction != "rn":
        result = np.array(np.broadcast_to(plain, quick.shape))
        at = (~simple | (result == 0)).nonzero()[0]
        _one_by_one(result, at, a, b, c, direction)
        return _nonfinite_c(result, a, b, c)
    result = np.where(simple, plain, quick)
    at = (~safe & ~simple).nonzero()[0]
    if at.size:
        _one_by_one(result, at, a, b, c, direction)
    return _nonfinite_c(result, a, b, c)


def _nonfinite_c(result: Array, a: Array, b: Array, c: Array) -> Array:
    """A finite product too large for float64 plus an infinity of the other sign is that infinity, not NaN."""
    wrong = np.isinf(c) & np.isfinite(a) & np.isfinite(b)
    # And a NaN addend goes before the NaN of infinity times zero.
    wrong |= np.isnan(c) & ~np.isnan(a) & ~np.isnan(b)
    return np.where(wrong, c + 0.0, result) if wrong.any() else result


def add64(a: Array, b: Array, direction: str) -> Array:
    """Return a + b of float64 values in a direction."""
    return fma64(np.ones(1), a, b, direction)


def mul64(a: Array, b: Array, direction: str) -> Array:
    """Return a * b of float64 values in a direction."""
    # The addend is a zero of the product's own sign, which changes nothing, not even the sign of a zero.
    return fma64(a, b, 0.0 * _signs(a, b), direction)


def _signs(a: Array, b: Array) -> Array:
    return np.where(np.signbit(a) != np.signbit(b), -1.0, 1.0)


def div64(a: Array, b: Array, direction: str) -> Array:
    """Return a / b of float64 values in a direction."""
    result = a / b
    at = (np.isfinite(a) & np.isfinite(b) & (b != 0) & (a != 0) & np.ones(result.shape, np.bool_)).nonzero()[0]
    wide = [np.broadcast_to(x, result.shape)[at].tolist() for x in (a, b)]
    exact = [Fraction(x) / Fraction(y) for x, y in zip(*wide, strict=True)]
    result[at] = [math.copysign(round_fraction(q, direction), -1.0 if q < 0 else 1.0) for q in exact]
    return result


def sqrt64(a: Array, direction: str) -> Array:
    """Return the square root of float64 values in a direction."""
    near = np.sqrt(a)
    for place in ((a > 0) & np.isfinite(a)).nonzero()[0].tolist():
        root, exact = float(near[place]), Fraction(float(a[place]))
        over = Fraction(root) ** 2 > exact
        under = Fraction(root) ** 2 < exact
        if over and direction in ("rz", "rm"):
            near[place] = math.nextafter(root, 0.0)
        elif under and direction == "rp":
            near[place] = math.nextafter(root, math.inf)
    return near
