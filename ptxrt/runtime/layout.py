"""Shapes and strides, in elements: plain arithmetic on tuples, which every array here is laid out by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, TypeGuard

import numpy as np

from ptxrt.errors import InvalidArgument, shown

__all__ = [
    "MAX_AXES",
    "Shape",
    "channels_last",
    "checked_shape",
    "contiguous",
    "indexed",
    "is_contiguous",
    "is_whole",
    "same_layout",
    "span",
    "unpacked",
    "whole_numbers",
]

Shape = tuple[int, ...]

MAX_AXES = 32
"""What every NumPy can copy back to the host."""


def contiguous(shape: Shape) -> Shape:
    """Return the row-major strides of `shape`, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def channels_last(shape: Shape) -> Shape:
    """Return the strides of ``[N, C, *]`` whose memory is a contiguous ``[N, *, C]``, in elements."""
    images, *positions, step = contiguous((shape[0], *shape[2:], shape[1]))
    return images, step, *positions


def span(shape: Shape, strides: Shape) -> int:
    """Return how many elements lie between the first and the last, both counted; 0 for an empty shape."""
    if not math.prod(shape):
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))


def is_contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether the elements lie one after another in row-major order; true of an empty shape."""
    return same_layout(shape, strides, contiguous(shape))


def same_layout(shape: Shape, first: Shape, second: Shape) -> bool:
    """Whether two strides put every element of `shape` at the same place; true of an empty shape."""
    # The stride of an axis of length 1 says nothing.
    return 0 in shape or all(n == 1 or a == b for n, a, b in zip(shape, first, second, strict=True))


def unpacked(given: tuple[int | Sequence[int], ...]) -> Sequence[int]:
    """Return the numbers that were given one by one, or as one sequence."""
    first = given[0] if len(given) == 1 else given
    return first if isinstance(first, Sequence) else (first,)  # type: ignore[return-value]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number, Python's or NumPy's; a truth value is none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def whole_numbers(given: Any) -> Shape | None:
    """Return a sequence of whole numbers as ints, None for anything else."""
    if isinstance(given, np.ndarray):
        given = given.tolist()  # an array without axes says that it can be iterated over
    if isinstance(given, (bytes, bytearray, memoryview, Set, Mapping)):  # numbers too, but not meant as such
        return None
    numbers = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(map(is_whole, numbers)):
        return None
    return tuple(int(n) for n in numbers)


def checked_shape(shape: int | Sequence[int], op: str) -> Shape:
    """Return a shape as a tuple of ints; InvalidArgument for anything else."""
    lengths = whole_numbers(shape)
    if lengths is None or len(lengths) > MAX_AXES or not all(0 <= n < 1 << 63 for n in lengths):
        expected = f"at most {MAX_AXES} lengths of 0 or more, each below 2**63"
        raise InvalidArgument(op=op, argument="shape", expected=expected, given=shown(shape))
    return lengths


def indexed(shape: Shape, strides: Shape, index: Any) -> tuple[int, Shape, Shape]:
    """Return offset, shape and strides of a view by integers, slices with positive steps, ``...`` and None.

    Raises
    ------
    InvalidArgument
        For an index that is out of range or of another kind.
    """

    def wrong(expected: str) -> InvalidArgument:
        given = f"{shown(index)} for shape {shape}"
        return InvalidArgument(op="DeviceArray[...]", argument="index", expected=expected, given=given)

    items = index if isinstance(index, tuple) else (index,)
    named = sum(1 for item in items if item is not None and item is not Ellipsis)
    if named > len(shape) or sum(item is Ellipsis for item in items) > 1:
        raise wrong(f"at most {len(shape)} indices and one ...")
    if not any(item is Ellipsis for item in items):
        items = (*items, Ellipsis)
    offset, axis = 0, 0
    lengths: list[int] = []
    steps: list[int] = []
    for item in items:
        if item is Ellipsis:
            stop = axis + len(shape) - named
            lengths += shape[axis:stop]
            steps += strides[axis:stop]
            axis = stop
            continue
        if item is None:
            lengths.append(1)
            steps.append(0)
            continue
        length, step = shape[axis], strides[axis]
        if isinstance(item, slice):
            try:
                start, end, stride = item.indices(length)
            except (TypeError, ValueError):  # a bound that is no integer, a step of 0
                stride = 0
            if stride < 1:
                raise wrong("slices with a positive step: strides are not negative here")
            count = len(range(start, end, stride))
            offset += start * step if count else 0
            lengths.append(count)
            steps.append(step * stride if count > 1 else step)  # of fewer any is right: one that DLPack can hold
        elif is_whole(item):
            if not -length <= item < length:
                raise wrong(f"an index from {-length} to {length - 1} for axis {axis}")
            offset += int(item) % length * step
        else:
            raise wrong("integers, slices, ... and None")
        axis += 1
    if len(lengths) > MAX_AXES:
        raise wrong(f"an index that leaves at most {MAX_AXES} axes")
    return offset, tuple(lengths), tuple(steps)
