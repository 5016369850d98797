"""Which way of batch_norm in training is the fastest for a problem: as measured on an H200, of networks' layers.

`arrays` are those whose values are held: x alone, or x and grad_out.
"""

from __future__ import annotations

from typing import Any

__all__ = ["held_at_once", "held_bytes", "read_twice", "worth_holding", "worth_tickets"]

_TWO_BLOCKS = 112 << 10  # bytes of which two blocks fit a multiprocessor, and one reads while the other writes
_LARGEST = 224 << 10  # of one block
_LITTLE = 40 << 10  # that one multiprocessor reads as soon as two
_ENOUGH = 96  # channels for all multiprocessors to be busy
_LONG_ROW = 256  # bytes: clusters read shorter ones as one, side by side


def held_bytes(problem: Any, arrays: int) -> int:
    """Return the bytes of a channel's values."""
    nbytes: int = problem.dtype.size * arrays * problem.count
    return nbytes


def _worth_caching(problem: Any, arrays: int) -> bool:
    """Return whether one block a channel is faster than several, which read it twice."""
    nbytes, values = held_bytes(problem, arrays), problem.channels * problem.count
    if nbytes > _TWO_BLOCKS:
        return bool(arrays == 1 and nbytes <= _LARGEST and problem.channels >= 256 and problem.hw % problem.vector == 0)
    long_rows = problem.hw >= 8 and (problem.hw % problem.vector == 0 or arrays == 2 or values <= 10 << 20)
    return bool(long_rows or values <= 1 << 19)  # few values: the launches count


def held_at_once(problem: Any, arrays: int) -> bool:
    """Return whether one block a channel is faster than a cluster: where many run at a time, and rows are not short."""
    nbytes, size = held_bytes(problem, arrays), problem.dtype.size
    if size == 8 or nbytes > _TWO_BLOCKS or (problem.channels < _ENOUGH and nbytes > _LITTLE):
        return False
    if problem.hw % problem.vector == 0:
        return True
    if problem.hw * size >= _LONG_ROW:
        return bool(arrays == 2 or problem.count <= 1 << 14)
    few = problem.count <= 1 << 12 if size == 4 else problem.channels <= 512 and problem.count <= 1 << 13
    return bool(arrays == 1 and few)


def read_twice(problem: Any, language: str) -> bool:
    """Return whether a backward that reads twice, in few instructions, is done before what holds the values."""
    size, count, values = problem.dtype.size, problem.count, problem.channels * problem.count
    if not problem.training:
        return False
    if language == "hip":
        return bool(size < 8 and problem.channels >= 512 and count <= (1 << 12 if size == 2 else 1 << 11))
    if count <= 1 << 10 and values <= 1 << 16:
        return True
    if size == 8 or problem.channels < 256:
        return False
    if size == 2 and problem.channels >= 768 and problem.hw % problem.vector and problem.hw * size >= _LONG_ROW:
        return bool(count <= 1 << 14 and values <= 1 << 24)
    return bool(values <= 1 << 23 and count <= (1 << 13 if problem.channels >= 512 else 1 << 12))


def worth_holding(problem: Any, arrays: int, language: str) -> bool:
    """Return whether one block a channel, which holds its values, is the fastest."""
    if arrays == 2 and read_twice(problem, language):
        return False
    if language == "hip":
        slow = problem.dtype.size == 2 and problem.channels >= 512 and problem.hw >= 16
        return arrays == 1 or (_worth_caching(problem, arrays) and not slow)  # else slices have tickets
    return _worth_caching(problem, arrays) or held_at_once(problem, arrays)


def worth_tickets(problem: Any) -> bool:
    """Return whether slices of a channel that no block holds have tickets; of f64, large channels or many values."""
    large = problem.count >= 1 << 15 or problem.channels * problem.count >= 1 << 23
    return bool(problem.training and (problem.dtype.size < 8 or large))
