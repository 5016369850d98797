"""How far a result may be from its reference: one table, and the two measures that are held against it.

The bars are relative errors of the whole result, ``||out - ref|| / ||ref||``, the reference being in at least twice the
precision (ptxrt.ops.references).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxrt.dtypes import BY_NAME

Array = NDArray[Any]

__all__ = [
    "BARS",
    "EPSILON",
    "FOREIGN_BARS",
    "LARGE_MEAN_BARS",
    "bar",
    "far_from_jumps",
    "grid_sample_bar",
    "half_ulp",
    "relative_error",
    "rounded_bar",
    "worst_element_error",
]

# Distance from 1 to the next number of the type.
EPSILON = {"f32": 2.0**-23, "f64": 2.0**-52, "f16": 2.0**-10, "bf16": 2.0**-7}

_SIXTEEN_BIT = {"f16": (11, -14), "bf16": (8, -126)}  # significant bits, smallest normal exponent

# A handful of correctly rounded operations an element (half an epsilon each, 6e-8 in f32), and statistics whose own
# error is smaller still because they are summed in pieces: 1.7 epsilon in f32, 4.5 in f64, where 1e-15 allows for too
# the exp, log2 and pow that we write ourselves. 16-bit kernels compute in f32 and round once: no entry, see `bar`.
_NORMALIZATION = {"f32": 2e-7, "f64": 1e-15}
_EXACT = dict.fromkeys(BY_NAME, 0.0)  # elements are moved, nothing is computed

BARS: dict[str, dict[str, float]] = {
    "group_norm": _NORMALIZATION,
    "softmax2d": _NORMALIZATION,
    "batch_norm": _NORMALIZATION,
    "local_response_norm": _NORMALIZATION,
    "upsample_nearest2d": _EXACT,
    "upsample_nearest2d_backward": _NORMALIZATION,  # sums of a few elements; its own tests know each bit of larger ones
}

# Inputs of mean 1e4, deviation 1. Rounding the mean to the element type would cost 1e4 * eps / 2 = 6e-4 of a deviation
# (1e-12 in f64): these bars are met only with a mean of two parts, or with shifted data.
LARGE_MEAN_BARS = {"f32": 1e-6, "f64": 1e-14}

# Kernels written elsewhere, f32: as good as their instructions. Of the PTX manual: div.approx 2 ulp, rcp.approx and
# ex2.approx 1 to 2 ulp, sqrt.approx and lg2.approx a relative error of 2^-23 to 2^-22 (lg2's is absolute, 2^-22, near
# 1); one plain f32 mean; partial sums of 1/256 of the data. softmax2d multiplies by log2(e) in f32 before ex2, which
# costs abs(x - max) * 2^-24: 1e-6 for the differences of about 10 that carry weight. Not for large means.
FOREIGN_BARS: dict[str, float] = {
    "group_norm": 1e-6,
    "softmax2d": 2e-6,
    "batch_norm": 1e-6,
    "local_response_norm": 2e-6,
    "upsample_nearest2d": 0.0,
}


def half_ulp(values: Array, dtype: str) -> Array:
    """Return the largest error of rounding each value once to f16 or bf16, denormals included."""
    bits, smallest = _SIXTEEN_BIT[dtype]
    wide = np.asarray(values, np.float64)
    _, exponents = np.frexp(np.where(np.isfinite(wide), wide, 0))
    leading = np.where(wide == 0, smallest, np.maximum(exponents - 1, smallest))
    return np.asarray(np.ldexp(1.0, leading - bits))


def bar(op: str, dtype: str, ref: Array | None = None, *, large_mean: bool = False) -> float:
    """Return the bar of an op's forward and backward.

    Parameters
    ----------
    op
        ``"group_norm"``, ``"softmax2d"``, ``"batch_norm"``, ``"local_response_norm"``, ``"upsample_nearest2d"`` or
        ``"upsample_nearest2d_backward"``; grid_sample's depends on the sizes: `grid_sample_bar`.
    dtype
        The element type: ``"f32"``.
    ref
        The reference, which f16 and bf16 need: their bar is one rounding of the f32 result, and how much that is
        depends on the values (half an ulp each, more for denormals).
    large_mean
        The input has mean 1e4 and deviation 1.
    """
    table = BARS[op]
    if dtype in table:
        return LARGE_MEAN_BARS[dtype] if large_mean and table is _NORMALIZATION else table[dtype]
    before = LARGE_MEAN_BARS["f32"] if large_mean else table["f32"]
    if dtype not in _SIXTEEN_BIT or ref is None:
        raise ValueError(f"no bar for {op} in {dtype} without a reference")
    return rounded_bar(before, dtype, ref)


def rounded_bar(before: float, dtype: str, ref: Array) -> float:
    """Return the bar of one rounding to f16 or bf16 of what is held to `before`; in other types nothing is rounded."""
    if dtype not in _SIXTEEN_BIT:
        return before
    wide = np.asarray(ref, np.float64)
    finite = np.isfinite(wide)
    norm = np.linalg.norm(wide[finite])
    rounding = float(np.linalg.norm(half_ulp(wide[finite], dtype)) / norm) if norm else 0.0
    return before + rounding * (1 + before)


def grid_sample_bar(dtype: str, ih: int, iw: int, sx: Array | float = 0.0, sy: Array | float = 0.0) -> Any:
    """Return ``4 eps max(IW, IH, |sx|, |sy|)``, elementwise over the coordinates given (in pixels).

    A coordinate is rounded three times at the size of the image, and its error goes into the weights as it is; that of
    f16 and bf16 is computed in f32, and what their results are held to is `rounded_bar` of this. The bar
    of a whole result takes the points that touch the image, all of which have ``|s| <= size``: without sx and sy, that
    is. It is also the distance from an integer coordinate under which a point is left out where the result jumps
    (grad_grid): `far_from_jumps`.
    """
    return (
        4
        * EPSILON["f32" if dtype in _SIXTEEN_BIT else dtype]
        * np.maximum(np.maximum(ih, iw), np.maximum(np.abs(sx), np.abs(sy)))
    )


def far_from_jumps(dtype: str, ih: int, iw: int, sx: Array, sy: Array) -> NDArray[np.bool_]:
    """Return which points no rounding of the coordinate can take to another cell of the image.

    These are the points further than the bar from every integer coordinate, and those that are certainly outside: NaN,
    infinite, or more than the bar outside of the image.
    """
    with np.errstate(invalid="ignore"):
        limit = grid_sample_bar(dtype, ih, iw, sx, sy)
        near = (np.abs(sx - np.rint(sx)) <= limit) | (np.abs(sy - np.rint(sy)) <= limit)
        outside = (sx < -1 - limit) | (sx > iw + limit) | (sy < -1 - limit) | (sy > ih + limit)
    return np.asarray(~near | outside | ~np.isfinite(sx) | ~np.isfinite(sy))


def _wide(values: Any) -> Array:
    array = np.asarray(values)
    return array.astype(np.longdouble if array.dtype in (np.float64, np.longdouble) else np.float64)


def _finite_pairs(out: Any, ref: Any) -> tuple[Array, Array] | None:
    """Return the finite elements of both, or None where NaNs or infinities are not at the same places."""
    a, b = _wide(out), _wide(ref)
    if a.shape != b.shape:
        raise ValueError(f"shapes differ: {a.shape} and {b.shape}")
    finite = np.isfinite(b)
    others_agree = np.array_equal(a[~finite], b[~finite], equal_nan=True)
    if not others_agree or not np.isfinite(a[finite]).all():
        return None
    return a[finite], b[finite]


def _ratio(error: Any, size: Any) -> float:
    if error == 0:
        return 0.0
    return float(error / size) if size else float("inf")


def relative_error(out: Any, ref: Any) -> float:
    """Return ``||out - ref|| / ||ref||`` in float64, or in longdouble where float64 is measured.

    NaN and infinity must stand at the same places in both, or the error is infinite; they are left out of the norms. A
    reference of zeros has error 0 where out is zeros too, else infinity. Two empty arrays have error 0.

    Raises
    ------
    ValueError
        The shapes differ.
    """
    pairs = _finite_pairs(out, ref)
    if pairs is None:
        return float("inf")
    a, b = pairs
    return _ratio(np.sqrt(((a - b) ** 2).sum()), np.sqrt((b**2).sum()))


def worst_element_error(out: Any, ref: Any) -> float:
    """Return the largest ``|out - ref| / max(|ref|, rms(ref))`` of an element.

    It finds the single bad element that the norm of a large array hides, and does not punish the cancellation in an
    element near zero. NaN, infinity, zeros and shapes as in `relative_error`.
    """
    pairs = _finite_pairs(out, ref)
    if pairs is None:
        return float("inf")
    a, b = pairs
    if a.size == 0:
        return 0.0
    rms = np.sqrt((b**2).sum() / b.size)
    errors = np.abs(a - b)
    worst = np.argmax(errors / np.maximum(np.abs(b), rms)) if rms else np.argmax(errors)
    return _ratio(errors[worst], np.maximum(np.abs(b[worst]), rms))
