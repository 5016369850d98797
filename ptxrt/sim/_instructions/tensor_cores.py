"""What a tensor core computes, bit for bit: d = a b + c on raw bits, for many tiles at a time.

Terms are float64: every product of two operands is exact there, and stays so when a power of two scales it. In a step
the largest exponent E of the terms is found in integers, each term is scaled by 2**(F - E) and truncated, and what is
left are integers, whose sum is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from ptxrt.sim._instructions.exact import fma64
from ptxrt.sim._instructions.rounding import fma32
from ptxrt.sim._instructions.tensor_core_rules import NONE, WITHOUT_F8, WITHOUT_M8N8K4, Rule, rule
from ptxrt.sim._text.types import Array

__all__ = ["Kinds", "multiply_add"]

_AT_ONCE = 128
"""Tiles: enough to make NumPy's overhead small, few enough for the caches."""

_NARROW: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
_LEAST = {"f16": -14, "bf16": -126, "e4m3": -6, "e5m2": -14}
_EIGHTHS = ("e4m3", "e5m2")
_WORDS: dict[str, np.dtype[Any]] = {"f16": np.dtype(np.uint16), "f32": np.dtype(np.uint32), "f64": np.dtype(np.uint64)}


@dataclass(frozen=True)
class Kinds:
    """The types of d, a, b and c by their PTX names.

    Of integers, whether sums saturate; of b1 the operation, ``xor`` or ``and``; of f64 the direction of rounding.
    """

    d: str
    a: str
    b: str
    c: str
    satfinite: bool = False
    operation: str = ""
    rounding: str = "rn"


def multiply_add(kinds: Kinds, a: Array, b: Array, c: Array, arch: int) -> Array:
    """Return d = a b + c of many tiles, as the tensor cores of an architecture compute it.

    Parameters
    ----------
    kinds
        The types.
    a, b, c
        The bits of shapes (tiles, m, k), (tiles, k, n) and (tiles, m, n), as unsigned integers of an element's width:
        uint8 for 8-bit floats, uint16 for f16 and bf16, uint32 for f32 and tf32, uint64 for f64. Integers are values:
        uint8 or int8 for u8, s8, u4, s4 (sign extended) and b1 (0 or 1), int32 for s32. `b` may have a matrix for each
        row of a, of shape (tiles, m, k, n). Fastest where the tiles lie closest in memory, as `fragments` gives them.
    arch
        The number of the architecture, 80 for sm_80.

    Returns
    -------
    Array
        The bits of shape (tiles, m, n), in the types of c.
    """
    if kinds.a in ("u8", "s8", "u4", "s4", "b1"):
        return _integers(kinds, a, b, c)
    # From here on the tiles come last.
    factors = np.moveaxis(a, 0, -1), np.moveaxis(b, 0, -1)[None] if b.ndim == 3 else np.moveaxis(b, 0, -1)
    addend = np.moveaxis(c, 0, -1)
    if kinds.a == "f64":
        result = _fma_chain(*factors, addend, kinds.rounding)
    elif kinds.a == "f16" and a.shape[2] == 4 and arch in WITHOUT_M8N8K4:
        result = _fours_without_tensor_cores(kinds, *factors, addend)
    elif kinds.a in _EIGHTHS and arch in WITHOUT_F8:
        result = _eighths_as_halves(kinds, *factors, addend, arch)
    else:
        result = _by_steps(kinds, *factors, addend, rule("f8" if kinds.a in _EIGHTHS else kinds.a, arch))
    return np.moveaxis(result, -1, 0)


# -- floats: (m, k, tiles), (1 or m, k, n, tiles), (m, n, tiles) ---------------------------------------------------


def _by_steps(kinds: Kinds, a: Array, b: Array, c: Array, how: Rule) -> Array:
    # Where one of c and d is f32, so is every sum; the compiler widens c before and narrows d behind.
    sums = "f32" if "f32" in (kinds.c, kinds.d) else "f16"
    if kinds.c != sums:
        c = _floats(c).astype(np.float32).view(np.uint32)
    result = np.empty(c.shape, _WORDS[sums])
    for first in range(0, c.shape[-1], _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        x, x_exponents = _decoded(kinds.a, a[..., part])
        y, y_exponents = _decoded(kinds.b, b[..., part])
        held = c[..., part]
        for start in range(0, a.shape[1], how.products):
            terms = [(x[:, k, None], y[:, k]) for k in range(start, min(start + how.products, a.shape[1]))]
            exponents = [(x_exponents[:, k, None], y_exponents[:, k]) for k in range(start, start + len(terms))]
            held = _step(sums, terms, exponents, *_decoded(sums, held), how)
        result[..., part] = held
    return result if kinds.d == sums else _bits(_floats(result).astype(np.float16))


def _step(
    to: str,
    terms: list[tuple[Array, Array]],
    exponents: list[tuple[Array, Array]],
    c: Array,
    c_exponents: Array,
    how: Rule,
) -> Array:
    """Return the bits of the sum of products and c, rounded once."""
    largest = np.maximum(c_exponents, np.int16(how.floor_f16 if to == "f16" else how.floor))
    sums = np.empty_like(largest)
    for first, second in exponents:
        np.add(first, second, out=sums)
        np.maximum(largest, sums, out=largest)
    # Without a floor, a step of nothing but zeros has no exponent; any will do.
    np.maximum(largest, np.int16(-512), out=largest)
    scale = _power(how.bits - largest)
    total = c * scale
    np.trunc(total, out=total)
    term = np.empty_like(total)
    for first, second in terms:
        np.multiply(first, second, out=term)
        term *= scale
        np.trunc(term, out=term)
        total += term
    total *= _power(largest - how.bits)
    return _rounded(total, to, how.fraction)


def _power(exponents: Array) -> Array:
    """Return powers of two by their exponents."""
    return np.asarray((exponents.astype(np.int64) + 1023 << 52).view(np.float64))


def _rounded(exact: Array, to: str, fraction: int = 23) -> Array:
    """Return the bits of float64 values as f16, to nearest even, or as f32, toward zero.

    What an H200 does: a zero is +0, even where a negative sum has become one; a sum too large for f32 is infinite.
    """
    if to == "f16":
        halves = _bits(exact.astype(np.float16))
        halves[halves == 0x8000] = 0
        return halves
    near = exact.astype(np.float32)
    bits = near.view(np.uint32)
    bits -= np.abs(near.astype(np.float64)) > np.abs(exact)
    bits &= np.uint32(0xFFFFFFFF << 23 - fraction & 0xFFFFFFFF)
    over = np.abs(exact) >= 2.0**128
    bits[over] = bits[over] & np.uint32(1 << 31) | np.uint32(0x7F800000)
    bits[np.isnan(exact)] = 0x7FFFFFFF
    bits[bits == 1 << 31] = 0
    return bits


def _decoded(kind: str, bits: Array) -> tuple[Array, Array]:
    """Return values as float64, and the exponents that they are aligned by; `NONE` for a zero."""
    if kind in _NARROW:
        values, exponents = _decoding(kind)
        return values[bits], exponents[bits]
    if kind == "tf32":
        bits = bits & np.uint32(0xFFFFE000)
    exponents = (bits >> np.uint32(23) & np.uint32(0xFF)).astype(np.int16)
    np.maximum(exponents, np.int16(1), out=exponents)
    exponents -= np.int16(127)
    exponents[bits << np.uint32(1) == 0] = NONE
    return np.ascontiguousarray(bits).view(np.float32).astype(np.float64), exponents


@cache
def _decoding(kind: str) -> tuple[Array, Array]:
    """Return value and exponent by the bits of a narrow type."""
    dtype = _NARROW[kind]
    values = np.arange(1 << 8 * dtype.itemsize, dtype=f"u{dtype.itemsize}").view(dtype).astype(np.float64)
    exponents = np.maximum(np.frexp(values)[1] - 1, _LEAST[kind]).astype(np.int16)
    exponents[values == 0] = NONE
    return values, exponents


def _eighths_as_halves(kinds: Kinds, a: Array, b: Array, c: Array, arch: int) -> Array:
    """Multiply 8-bit floats on tensor cores that have none for mma.sync.

    The compiler makes f16 of them, in two halves (the two low and the two high elements of each register), sums both
    from zero by the f16 rule, and adds c to nearest even by itself.
    """
    halves = [_decoding(kind)[0].astype(np.float16).view(np.uint16)[x] for kind, x in ((kinds.a, a), (kinds.b, b))]
    inner = Kinds(kinds.d, "f16", "f16", kinds.d)
    how = rule("f16", arch)
    total = np.zeros(c.shape, _WORDS[kinds.d])
    low = np.arange(a.shape[1]) % 4 < 2
    for part in (low, ~low):
        total = _by_steps(inner, halves[0][:, part], halves[1][:, part], total, how)
    return _bits(_floats(total) + _floats(c))


def _fours_without_tensor_cores(kinds: Kinds, a: Array, b: Array, c: Array) -> Array:
    """Multiply as m8n8k4 does from sm_80 on, which has no such tensor cores: in f32, rounded to nearest even."""
    x, y = _floats(a).astype(np.float32), _floats(b).astype(np.float32)
    pairs = [np.broadcast_arrays(x[:, k, None], y[:, k]) for k in range(4)]
    factors = [(first.ravel(), second.ravel()) for first, second in pairs]
    addend = _floats(c).astype(np.float32).ravel()
    if kinds.d == "f32":
        total = np.zeros(1, np.float32)
        for first, second in factors:
            total = fma32(first, second, total)
        total += addend
    else:
        low, high = (fma32(*factors[k + 1], np.multiply(*factors[k])) for k in (0, 2))
        total = ((addend + low) + high).astype(np.float16)
    return _bits(total.reshape(c.shape))


def _floats(bits: Array) -> Array:
    """Return the bits of f16 or f32 as such."""
    return np.ascontiguousarray(bits).view(f"f{bits.itemsize}")


def _bits(floats: Array) -> Array:
    """Return the bits of f16 or f32, of a NaN those of the one that NVIDIA's instructions answer."""
    bits: Array = floats.view(f"u{floats.itemsize}")
    bits[np.isnan(floats)] = 0x7FFF if floats.itemsize == 2 else 0x7FFFFFFF
    return bits


def _fma_chain(a: Array, b: Array, c: Array, rounding: str) -> Array:
    """Multiply f64: one fused multiply-add after the other, in the order of k.

    Of several NaN that of b comes through, before that of the sum so far, and that before a's, as on an H200.
    """
    held = c.view(np.float64).ravel()
    x, y = a.view(np.float64), b.view(np.float64)
    for k in range(a.shape[1]):
        first, second = (side.ravel() for side in np.broadcast_arrays(x[:, k, None], y[:, k]))
        total = fma64(first, second, held, rounding)
        if np.isnan(total).any():
            for source in (first, held, second):
                total = np.where(np.isnan(source), source + 0.0, total)  # the addition makes a signalling NaN quiet
        held = total
    return np.asarray(held.reshape(c.shape).view(np.uint64))


# -- integers ------------------------------------------------------------------------------------------------------


def _integers(kinds: Kinds, a: Array, b: Array, c: Array) -> Array:
    """Multiply integers; s32 wraps, or saturates."""
    # Exact: at most 256 products below 2**16.
    x, y = a.astype(np.float64), b.astype(np.float64)
    total = (np.einsum("tmk,tmkn->tmn", x, y) if b.ndim == 4 else x @ y).astype(np.int64)
    if kinds.operation == "xor":
        total = x.sum(2)[:, :, None].astype(np.int64) + y.sum(1)[:, None].astype(np.int64) - 2 * total
    total += c
    if kinds.satfinite:
        total = np.clip(total, -(1 << 31), (1 << 31) - 1)
    return total.astype(np.int32)
