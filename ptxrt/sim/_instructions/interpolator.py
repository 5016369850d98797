"""The approximate functions of float32, bit for bit as a GPU's special function unit computes them.

The unit interpolates (Oberman and Siu, A High-Performance Area-Efficient Multifunction Interpolator, ARITH 2005): the
upper bits of the argument's fraction choose a segment, and of the rest x, 0 <= x < 1, it computes
start + slope * x + curve * x**2, where the square has the partial products from 2**-15 up alone. The sum is exact; what
is below the result's last bit is cut. The coefficients are those of an H200 (interpolator_tables.py).

Each function takes float32 and answers float32, with denormals as zeros on both sides (.ftz), and the canonical NaN.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from ptxrt.sim._instructions import interpolator_tables as tables
from ptxrt.sim._instructions.rounding import canonical, flush
from ptxrt.sim._text.types import Array

__all__ = [
    "cosine",
    "exp2",
    "log2",
    "reciprocal",
    "reciprocal64",
    "reciprocal_sqrt",
    "reciprocal_sqrt64",
    "sine",
    "square_root",
]

_REST = 17
_CUT = -(1 << 19)
_FRACTION = (1 << 23) - 1
_PER_TURN = np.uint32(0x3E22F983).view(np.float32)
"""1 / (2 pi)"""
_RSQRT = np.concatenate((tables.RSQRT, tables.RSQRT_ODD), axis=1)
_SQRT = np.concatenate((tables.SQRT, tables.SQRT_ODD), axis=1)
_INFINITY = np.float32(np.inf).view(np.int32)
_NAN64 = np.uint64(0x7FFFFFFF00000000).view(np.float64)


@cache
def _squares() -> Array:
    """Return (x / 2**17)**2 for each x of 17 bits, of partial products from 2**-15 up."""
    x = np.arange(1 << _REST, dtype=np.int64)
    total = np.zeros_like(x)
    for i in range(_REST):
        row = ((1 << 2 * i) & _CUT) + (((x & ((1 << i) - 1)) << (i + 1)) & _CUT)
        total += np.where(x >> i & 1, row, 0)
    return total / 2.0 ** (2 * _REST)


def _interpolate(table: Array, fraction: Array, bits: int = _REST) -> Array:
    """Return the function's exact sum at a fraction, of which so many bits are behind the segment's number."""
    start, slope, curve = table
    segment = fraction >> bits
    rest = (fraction & ((1 << bits) - 1)) << (_REST - bits)
    total = curve.take(segment) * _squares().take(rest)
    total += slope.take(segment) * (rest * 2.0**-_REST)
    total += start.take(segment)
    return np.asarray(total)


def _parts(a: Array) -> tuple[Array, Array]:
    """Return exponents, of which one is even, and fractions."""
    bits = a.view(np.uint32).astype(np.int64)
    return (bits >> 23 & 0xFF) - 127, bits & _FRACTION


def _answer(value: Array, a: Array, *, zero: float | Array, infinity: float = np.nan, signed: bool = False) -> Array:
    """Return float64 results as float32, with those at zero and infinity; NaN for NaN.

    A `signed` result has the sign of its argument.
    """
    value = np.where(a == 0, zero, np.where(np.isinf(a), infinity, value))
    result = flush(value.astype(np.float32))
    if signed:
        result = np.copysign(result, a)
    return canonical(np.where(np.isnan(a), np.float32(np.nan), result))


def _of_positive(result: Array, a: Array) -> Array:
    """Return a result that is NaN where the argument is negative."""
    return canonical(np.where(a < 0, np.float32(np.nan), result))


def reciprocal(a: Array) -> Array:
    """``1 / a``."""
    a = flush(a)
    exponent, fraction = _parts(a)
    value = np.ldexp(np.floor(_interpolate(tables.RCP, fraction, 16)), -24 - exponent)
    return _answer(value, a, zero=np.inf, infinity=0.0, signed=True)


def _root(table: Array, exponent: Array, fraction: Array) -> tuple[Array, Array]:
    """Return the mantissas, by a table for even exponents and behind it one for odd ones, and half the exponent."""
    return np.floor(_interpolate(table, fraction | (exponent & 1) << 23)), exponent >> 1


def _reciprocal_root(exponent: Array, fraction: Array) -> tuple[Array, Array]:
    """Return mantissas of 24 bits, 2**24 for a power of four, and the exponent to divide by."""
    mantissa, half = _root(_RSQRT, exponent, fraction)
    return np.where((fraction == 0) & (exponent & 1 == 0), 2.0**24, mantissa), half


def reciprocal_sqrt(a: Array) -> Array:
    """``1 / sqrt(a)``."""
    a = flush(a)
    mantissa, half = _reciprocal_root(*_parts(a))
    result = _answer(np.ldexp(mantissa, -24 - half), a, zero=np.inf, infinity=0.0)
    return _of_positive(np.where(a == 0, np.copysign(result, a), result), a)


def square_root(a: Array) -> Array:
    """``sqrt(a)``."""
    a = flush(a)
    mantissa, half = _root(_SQRT, *_parts(a))
    result = _answer(np.ldexp(mantissa, half - 23), a, zero=0.0, infinity=np.inf)
    return _of_positive(np.where(a == 0, a, result), a)


def exp2(a: Array) -> Array:
    """``2**a``: of the argument 23 bits behind the point count, and a negative one's are inverted, not negated."""
    a = flush(a)
    # Powers of 255 and more are infinite or zero, whatever is behind the point; NaN counts as one of them here.
    fixed = (np.fmin(np.abs(a), np.float32(255)) * np.float32(2**23)).astype(np.int32)
    fixed = np.where(a < 0, -fixed - ((fixed & _FRACTION) != 0), fixed)
    exponent, fraction = fixed >> 23, fixed & _FRACTION
    # The sum has the leading bit of the mantissa, which counts as one more of the exponent.
    bits = (exponent + 126 << 23) + _interpolate(tables.EX2, fraction).astype(np.int32)
    bits = np.where(exponent > 127, _INFINITY, np.where(exponent < -126, 0, bits))
    return canonical(np.where(np.isnan(a), np.float32(np.nan), bits.view(np.float32)))


def log2(a: Array) -> Array:
    """Logarithm to the base 2: a sum in fixed point, inverted where it is negative, of which 24 bits count."""
    a = flush(a)
    exponent, fraction = _parts(a)
    fixed = np.floor(_interpolate(tables.LG2, fraction) * 2.0**17).astype(np.int64) + (exponent << 40)
    value = _cut(np.where(fixed < 0, ~fixed, fixed) >> 4) * 2.0**-36
    value = np.where(a == 1, 0.0, np.where(fixed < 0, -value, value))
    return _of_positive(_answer(value, a, zero=-np.inf, infinity=np.inf), a)


def _cut(whole: Array) -> Array:
    """Cut non-negative integers to their upper 24 bits, as float64."""
    value = whole.astype(np.float64)  # below 2**53, hence exact
    unit = np.ldexp(1.0, np.frexp(value)[1] - 24)
    return np.asarray(np.floor(value / unit) * unit)


def sine(a: Array) -> Array:
    """``sin(a)``, a in radians."""
    return _wave(a, 0)


def cosine(a: Array) -> Array:
    """``cos(a)``, a in radians."""
    return _wave(a, 1)


def _wave(a: Array, quarter: int) -> Array:
    """Return the sine of `a` and so many quarters of a turn; of the turns 25 bits behind the point count."""
    a = flush(a)
    turns = np.minimum(np.abs(np.nan_to_num(_turns(a))), 2.0**30)
    fixed = np.floor(turns * 2.0**25).astype(np.int64) + (quarter << 23)
    fraction, which = fixed & _FRACTION, fixed >> 23 & 3
    fraction = np.where(which & 1, fraction ^ _FRACTION, fraction)  # inverted, not subtracted
    value = _cut(np.floor(_interpolate(tables.SIN, fraction) * 2.0**_REST).astype(np.int64)) * 2.0 ** (-23 - _REST)
    value = np.where(which & 2, -value, value)
    return _answer(value, a, zero=1.0) if quarter else _answer(np.copysign(1.0, a) * value, a, zero=a)


def _turns(a: Array) -> Array:
    """Return a / (2 pi), rounded to float32 toward zero, as the instruction before the interpolator does."""
    exact = a.astype(np.float64) * float(_PER_TURN)
    near = exact.astype(np.float32)
    return np.where(np.abs(near) > np.abs(exact), np.nextafter(near, np.float32(0)), near).astype(np.float64)


def _upper(a: Array) -> tuple[Array, Array, Array]:
    """Return a float64 cut to its upper word, denormals as zeros, with its exponent and fraction."""
    bits = a.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)
    exponent = (bits >> np.uint64(52) & np.uint64(0x7FF)).astype(np.int64)
    bits = np.where(exponent == 0, bits & np.uint64(1 << 63), bits)
    return bits.view(np.float64), exponent - 1023, (bits >> np.uint64(29)).astype(np.int64) & _FRACTION


def _upper_answer(mantissa: Array, exponent: Array, a: Array, *, signed: bool) -> Array:
    """Return mantissa * 2**exponent with what its upper word holds; infinity for zero and zero for infinity."""
    value = np.ldexp(np.floor(mantissa / 8) * 8, exponent)
    value = np.where(np.abs(value) < np.finfo(np.float64).tiny, 0.0, value)
    value = np.where(a == 0, np.inf, np.where(np.isinf(a), 0.0, value))
    if signed:
        value = np.copysign(value, a)
    return np.where(np.isnan(a), _NAN64, value)


def reciprocal64(a: Array) -> Array:
    """``1 / a`` of float64, of which the upper words alone count, in the argument and in the result."""
    a, exponent, fraction = _upper(a)
    return _upper_answer(np.floor(_interpolate(tables.RCP, fraction, 16)), -24 - exponent, a, signed=True)


def reciprocal_sqrt64(a: Array) -> Array:
    """``1 / sqrt(a)`` of float64, upper words alone."""
    a, exponent, fraction = _upper(a)
    mantissa, half = _reciprocal_root(exponent, fraction)
    value = _upper_answer(mantissa, -24 - half, a, signed=False)
    return np.where(a == 0, np.copysign(value, a), np.where(a < 0, _NAN64, value))
