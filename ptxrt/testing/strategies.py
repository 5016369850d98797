"""Strategies of hypothesis for what kernels get wrong: sizes at boundaries, shapes of them, special values.

::

    @given(x=arrays(np.float32, shapes(2, most=4096)))
    def test_scale(x): ...
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from ptxrt.dtypes import element_type
from ptxrt.errors import InvalidArgument, shown
from ptxrt.runtime.layout import checked_shape

__all__ = ["arrays", "shapes", "sizes", "special_values"]

_VECTOR = 4
_WARP = 32
_PRIMES = (2, 3, 5, 7, 13, 31, 61, 127, 251, 509, 1021, 2039, 4093, 8191)
"""Of about each power of two the largest below it: a multiple of nothing."""


def sizes(most: int = 1024, *, least: int = 1, block: int = 256) -> st.SearchStrategy[int]:
    """Return a strategy for a number of elements, of which most are at a boundary.

    Boundaries are 1, the widths of a vector (4), a warp (32) and a block, twice a warp and a block, their neighbours on
    both sides, primes, and `least` and `most` themselves.

    Parameters
    ----------
    most, least
        Bounds, both included.
    block
        Threads of the kernel's blocks.

    Raises
    ------
    InvalidArgument
        For bounds between which there is no whole number, or a block of less than one thread.
    """
    least, most, block = _whole(least), _whole(most), _whole(block)
    if not (isinstance(least, int) and isinstance(most, int) and 0 <= least <= most):
        raise InvalidArgument(
            op="sizes", argument="most", expected=f"a whole number, {shown(least)} or more", given=shown(most)
        )
    if not (isinstance(block, int) and block >= 1):
        raise InvalidArgument(op="sizes", argument="block", expected="1 thread or more", given=shown(block))
    near = {n + by for n in (_VECTOR, _WARP, 2 * _WARP, block, 2 * block) for by in (-1, 0, 1)}
    at = sorted(n for n in {1, *near, *_PRIMES, least, most} if least <= n <= most)
    return st.sampled_from(at) | st.integers(least, most)


def shapes(axes: int, *, most: int = 4096, least: int = 1, block: int = 256) -> st.SearchStrategy[tuple[int, ...]]:
    """Return a strategy for shapes of at most so many elements, each axis as :func:`sizes` has it.

    Parameters
    ----------
    axes
        How many.
    most
        Bound of the elements in all.
    least
        Bound of each axis; 0 draws arrays without elements too.
    block
        Threads of the kernel's blocks.

    Raises
    ------
    InvalidArgument
        For numbers of which there is no shape.
    """
    axes, most, least = _whole(axes), _whole(most), _whole(least)
    if not (isinstance(axes, int) and axes >= 0):
        raise InvalidArgument(op="shapes", argument="axes", expected="0 axes or more", given=shown(axes))
    if not (isinstance(least, int) and isinstance(most, int) and least >= 0 and most >= max(least**axes, 1)):
        expected = f"{shown(least)} to the power {axes} elements, or more"
        raise InvalidArgument(op="shapes", argument="most", expected=expected, given=shown(most))
    one = sizes(most // max(least, 1) ** max(axes - 1, 0), least=least, block=block)

    @st.composite
    def shape(draw: st.DrawFn) -> tuple[int, ...]:
        found: list[int] = []
        left = most
        for later in reversed(range(axes)):
            # Cut and not drawn anew: what an axis may be does not depend on those before it, so examples shrink well.
            found.append(min(draw(one), left // max(least, 1) ** later))
            left //= max(found[-1], 1)
        return tuple(draw(st.permutations(found)))  # or the first axis would be the longest

    return shape()


def _whole(number: Any) -> Any:
    """Return a whole number of NumPy as Python's own, which it is told apart by; all else as it is."""
    return int(number) if isinstance(number, np.integer) else number


def special_values(dtype: Any, *, finite: bool = False) -> st.SearchStrategy[Any]:
    """Return a strategy for the values of an element type that kernels get wrong, as scalars of that type.

    Of floating point: NaN, both infinities and zeros, 1, the smallest and the largest denormal, the smallest normal,
    the largest number, each with both signs; and 1e4 and its neighbours, of which sums of squares lose the digits. Of
    integers: 0, 1, -1, the bounds and their neighbours, and 1e4 with its own.

    Parameters
    ----------
    dtype
        A dtype of NumPy's, or a name of ours: ``"bf16"``.
    finite
        Whether to leave out NaN and infinities.

    Raises
    ------
    DTypeMismatch
        For a type that no kernel parameter has.
    """
    kind = element_type(dtype, op="special_values").numpy
    return st.sampled_from(_specials(kind, finite))


def _specials(kind: np.dtype[Any], finite: bool) -> list[Any]:
    wanted: list[Any]
    if kind == np.bool_:
        wanted = [False, True]
    elif kind.kind in "iu":
        bounds = np.iinfo(kind)
        low, high = int(bounds.min), int(bounds.max)
        wanted = [n for n in (0, 1, -1, low, low + 1, high - 1, high, 9999, 10000, 10001) if low <= n <= high]
    else:
        about = ml_dtypes.finfo(kind)
        tiny, normal = about.smallest_subnormal, about.smallest_normal
        both = [float(n) for n in (0, 1, tiny, normal - tiny, normal, about.max, np.inf)]
        wanted = [*both, *(-n for n in both), 9999.0, 10000.0, 10001.0, np.nan]
    # Of the type at once: an array of both 0 and 2**64 - 1 is one of float64 to NumPy.
    return [value for value in np.array(wanted, kind) if not finite or np.isfinite(value)]


@st.composite
def _arrays(
    draw: st.DrawFn, kind: np.dtype[Any], shape: Any, special: st.SearchStrategy[Any], most_special: int
) -> NDArray[Any]:
    extents = draw(shape) if isinstance(shape, st.SearchStrategy) else shape
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = np.empty(extents, kind)  # without axes NumPy's generator gives a number, which no place can be set in
    if kind == np.bool_:
        found[...] = rng.integers(0, 2, extents)
    elif kind.kind in "iu":
        bounds = np.iinfo(kind)
        found[...] = rng.integers(bounds.min, bounds.max, extents, kind, endpoint=True)
    else:
        found[...] = rng.standard_normal(extents) + draw(st.sampled_from([0.0, 1e4]))
    if found.size:
        at = st.integers(0, found.size - 1)
        for index, value in draw(st.lists(st.tuples(at, special), max_size=most_special)):
            found.flat[index] = value
    return found


def arrays(
    dtype: Any,
    shape: st.SearchStrategy[tuple[int, ...]] | Iterable[int] | int,
    *,
    special: st.SearchStrategy[Any] | None = None,
    most_special: int = 4,
) -> st.SearchStrategy[NDArray[Any]]:
    """Return a strategy for arrays: random numbers, and special values in some places.

    The numbers come of a drawn seed (of floating point: normal ones around 0 or 1e4), since to draw each would take
    long; so hypothesis makes a failing example smaller in its shape and its special values.

    Parameters
    ----------
    dtype
        A dtype of NumPy's, or a name of ours: ``"bf16"``.
    shape
        A shape, or a strategy for it such as :func:`shapes`.
    special
        What to put in places; :func:`special_values` of the type if left out.
    most_special
        In how many places at most.

    Raises
    ------
    DTypeMismatch
        For a type that no kernel parameter has.
    InvalidArgument
        For what is no shape.
    """
    kind = element_type(dtype, op="arrays").numpy
    if not isinstance(shape, st.SearchStrategy):
        shape = checked_shape(shape, "arrays")  # type: ignore[arg-type]
    return _arrays(kind, shape, special_values(kind) if special is None else special, most_special)
