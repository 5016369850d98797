"""Comparing what a GPU computed with what the PTX machine did."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxrt.dtypes import BY_NUMPY

__all__ = ["TOLERANCES", "Difference", "first_difference", "is_exact"]

Array = NDArray[Any]

TOLERANCES = {"f16": 2.0**-8, "bf16": 2.0**-5, "f32": 2.0**-17, "f64": 2.0**-42}
"""By element type, what two results may differ by, relative to the largest value of the array.

It is for kernels whose results are not exact: the order of a float's atomics is any on a GPU, and ``.approx`` is within
an ulp or two there. Some hundred of such errors are within it; those of a wrong instruction are not.
"""

# What makes results differ from a GPU's without an error: approximations, and atomics on floats, whose order is any.
_INEXACT = re.compile(
    r"\.(?:approx|full)\b|\b(?:atom|red)\.[\w.:]*\.(?:f16|f16x2|bf16|bf16x2|f32|f64)\b|\bex2\.|\btanh\."
)
_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@lru_cache(maxsize=256)
def is_exact(text: str) -> bool:
    """Tell whether a text of PTX has nothing but what the PTX machine computes bit for bit as a GPU does."""
    return _INEXACT.search(_COMMENTS.sub("", text)) is None


@dataclass(frozen=True)
class Difference:
    """The first element in which two arrays differ.

    Attributes
    ----------
    index
        Of the element, in row-major order.
    expected, given
        Its values.
    count
        How many elements differ.
    """

    index: int
    expected: Any
    given: Any
    count: int


def first_difference(expected: Array, given: Array, *, exact: bool) -> Difference | None:
    """Return the first element that differs: in a bit if `exact`, else by more than :data:`TOLERANCES` allow.

    Any NaN equals any other: which one an operation answers is the hardware's freedom.

    Parameters
    ----------
    expected, given
        Of one shape and element type.
    """
    one, two = (np.ascontiguousarray(array).reshape(-1) for array in (expected, given))
    different = (one.view(np.uint8) != two.view(np.uint8)).reshape(one.size, -1).any(axis=1)
    kind = BY_NUMPY[one.dtype]
    if kind.kind == "float" and different.any():
        a, b = (array.astype(np.float64) for array in (one, two))
        different &= ~(np.isnan(a) & np.isnan(b))
        if not exact:
            finite = np.abs(a[np.isfinite(a)])
            bound = TOLERANCES[kind.name] * (finite.max() if finite.size else 0.0)
            with np.errstate(invalid="ignore"):  # infinities
                different &= ~((a == b) | (np.abs(a - b) <= bound))
    places = np.flatnonzero(different)
    if not places.size:
        return None
    first = int(places[0])
    return Difference(first, one[first], two[first], int(places.size))
