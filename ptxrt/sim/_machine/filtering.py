"""Linear filtering: weights and sums of texels, bit for bit as an H200 has them.

No manual has these rules. They were read off the values that ``python tools/measure_textures.py`` stores, and agree
with every one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from ptxrt.sim._text.types import Array

__all__ = ["WHOLE", "sum_of_floats", "sum_of_integers", "weights"]

WHOLE = 256  # all weights together
_HALF = WHOLE // 2
_FRACTION_BITS = {"float16": 14, "float32": 27}


def weights(parts: Sequence[Array]) -> Array:
    """Return the weights of the corners, in the order of ``product((0, 1), repeat=axes)``: shape (corners, lanes, 1).

    The whole is split along z, then each part along x, then along y, and rounded. A half goes to the second part; along
    y, for the first part along x, to the first.

    Parameters
    ----------
    parts
        The weight of the second texel along each axis, x first, from 0 to 255.
    """
    none = np.zeros(1, np.int64)
    x, y, z = (*parts, none, none)[:3]
    found: dict[tuple[int, ...], Array] = {}
    for c, plane in enumerate(_split(none + WHOLE, z, _HALF)):
        for a, column in enumerate(_split(plane, x, _HALF)):
            for b, weight in enumerate(_split(column, y, _HALF - 1 + a)):
                found[a, b, c] = weight
    corners = [(*corner, 0, 0)[:3] for corner in product((0, 1), repeat=len(parts))]
    return np.stack(np.broadcast_arrays(*[found[corner] for corner in corners]))[..., None]


def _split(whole: Array, part: Array, half: int) -> tuple[Array, Array]:
    second: Array = (whole * part + half) // WHOLE
    return whole - second, second


def sum_of_floats(texels: Array, by: Array, dtype: np.dtype[Any]) -> Array:
    """Return the sum of float texels, shape (corners, lanes, channels), by their weights.

    In each plane along z, texels are cut to fixed point below the largest one. The smaller of the planes' sums is cut
    to the places of the larger one, and the total is rounded to the element type, halves away from zero.
    """
    form, bits = np.finfo(dtype), _FRACTION_BITS[dtype.name]
    planes = 2 if len(texels) == 8 else 1
    # A texel of no weight adds nothing, be it infinite.
    values = np.where(by > 0, texels, 0).astype(np.float64)
    with np.errstate(invalid="ignore"):
        plain = (values * by).sum(axis=0)
    finite = np.isfinite(plain)
    values = np.where(finite, values, 0.0).reshape(-1, planes, *plain.shape)
    exponent = np.frexp(np.maximum(np.abs(values).max(axis=0), form.tiny))[1] - 1
    parts = (np.trunc(np.ldexp(values, bits - exponent)) * by.reshape(-1, planes, *by.shape[1:])).sum(axis=0)
    largest = exponent.max(axis=0)
    total = np.floor(np.ldexp(parts, exponent - largest)).sum(axis=0)
    exact = np.ldexp(total / WHOLE, largest - bits)
    return np.where(finite, _rounded(exact, form.nmant + 1, int(form.minexp)), plain).astype(np.float32)


def _rounded(values: Array, bits: int, least: int) -> Array:
    """Round to so many bits, to fewer below 2 ** least, halves away from zero."""
    step = np.maximum(np.frexp(values)[1], least + 1) - bits
    rounded: Array = np.ldexp(np.trunc(np.ldexp(values, -step) + np.copysign(0.5, values)), step)
    return rounded


def sum_of_integers(texels: Array, by: Array, dtype: np.dtype[Any]) -> Array:
    """Return the sum of integer texels by their weights, as floats from 0, or -1, to 1: it has 16 bits first."""
    total = (texels * by).sum(axis=0)
    if dtype == np.uint8:
        total = total * 257  # 255 becomes 65535
    elif dtype == np.int8:
        total = total * 258 + (total >> 12) * 32  # 127 becomes 32767
    most = np.iinfo(f"{dtype.kind}2").max
    return np.asarray(np.maximum((total + _HALF) // WHOLE, -most) / most).astype(np.float32)
