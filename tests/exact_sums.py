"""The integers that ranks add up for batch_norm, from numbers and back, by Python's own integers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def layout(dtype: str) -> tuple[int, int, int, int]:
    """Return -log2 of what an element's lowest bit counts, the first row of each sum, and how many rows there are."""
    return (24, 3, 6, 10) if dtype == "f16" else (149, 3, 13, 32)


def integers(x: Array, grad_out: Array | None = None, dtype: str = "f32") -> Array:
    """Return the rows of finite values ``[N, C, *]``: of x, or of grad_out and x."""
    least, first_a, first_p, count = layout(dtype)
    rows = np.zeros((count, x.shape[1]), np.int64)
    a = x if grad_out is None else grad_out
    for channel in range(x.shape[1]):
        ours, theirs = ([Fraction(float(value)) for value in each[:, channel].flat] for each in (a, x))
        rows[0, channel] = len(ours)
        products = [one * other for one, other in zip(ours, theirs, strict=True)]
        for first, last, values, unit in ((first_a, first_p, ours, least), (first_p, count, products, 2 * least)):
            whole = int(sum(values, Fraction()) * 2**unit)
            for row in range(first, last - 1):
                rows[row, channel] = whole & 0xFFFFFFFF
                whole >>= 32
            rows[last - 1, channel] = whole
    return rows


def wholes(rows: Array, dtype: str = "f32") -> list[tuple[int, ...]]:
    """Return what rows are, of each channel: the count, both rows of flags, and the two sums in their units."""
    _, first_a, first_p, count = layout(dtype)
    found = []
    for column in rows.T.tolist():
        sums = (column[first_a:first_p], column[first_p:count])
        found.append((*column[:3], *(sum(digit << 32 * i for i, digit in enumerate(digits)) for digits in sums)))
    return found


def numbers(rows: Array, dtype: str = "f32") -> Array:
    """Return the same as numbers, ``[5, C]``, rounded to float64."""
    unit = 2 ** layout(dtype)[0]
    found = np.zeros((5, rows.shape[1]))
    for channel, (*counts, a, p) in enumerate(wholes(rows, dtype)):
        found[:, channel] = *counts, float(Fraction(a, unit)), float(Fraction(p, unit**2))
    return found
