"""Which way of batch_norm in training is the fastest for a problem: as measured on an H200, of networks' layers.

`arrays` are those whose values are held: x alone, or x and grad_out.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "held_at_once",
    "held_bytes",
    "holding_threads",
    "in_vectors",
    "large_and_few",
    "most_in_hip",
    "read_twice",
    "too_large_and_few",
    "worth_holding",
    "worth_tickets",
]

_TWO_BLOCKS = 112 << 10  # bytes of which two blocks fit a multiprocessor, and one reads while the other writes
_LARGEST = 224 << 10  # of one block
_THREE_BLOCKS = 72 << 10  # of which three fit
_LITTLE = 40 << 10  # that one multiprocessor reads as soon as two
_ENOUGH = 96  # channels for all multiprocessors to be busy
_SOME = 64  # for most of the memory's speed
_AT_ONCE = 132  # that run at the same time, one a multiprocessor
_FEW = 16  # that leave most multiprocessors without work, forward; backward, of two arrays, twice as many
_LONG_ROW = 256  # bytes: clusters read shorter ones as one, side by side
_KEPT_IN_HIP = {128: 49 << 9, 256: 46 << 10, 512: 46 << 10}  # threads of a block -> bytes of its static shared memory
_REST_IN_HIP = (4, 2)  # values of each array that a thread's registers have besides, forward and backward; not of f64


def held_bytes(problem: Any, arrays: int) -> int:
    """Return the bytes of a channel's values."""
    nbytes: int = problem.dtype.size * arrays * problem.count
    return nbytes


def most_in_hip(problem: Any, threads: int) -> int:
    """Return the bytes of values that a block in HIP holds."""
    rest = 0 if problem.dtype.name == "f64" else _REST_IN_HIP[problem.arrays - 1]
    nbytes: int = _KEPT_IN_HIP[threads] + rest * threads * problem.arrays * problem.dtype.size
    return nbytes


def in_vectors(problem: Any) -> bool:
    """Return whether blocks that hold a channel read its rows by 16 bytes, or of 16 bits by 8."""
    width = problem.vector // 2 if problem.dtype.size == 2 else problem.vector
    return bool(problem.hw % width == 0)


def _worth_caching(problem: Any, arrays: int) -> bool:
    """Return whether one block a channel is faster than several, which read it twice."""
    nbytes, values = held_bytes(problem, arrays), problem.channels * problem.count
    if nbytes > _TWO_BLOCKS:
        return bool(arrays == 1 and nbytes <= _LARGEST and problem.channels >= 256 and problem.hw % problem.vector == 0)
    long_rows = problem.hw >= 8 and (in_vectors(problem) or arrays == 2 or values <= 10 << 20)
    return bool(long_rows or values <= 1 << 19)  # few values: the launches count


def holding_threads(problem: Any, language: str) -> int:
    """Return the threads of a block that holds a channel: few where many blocks wait, each at another time."""
    arrays, channels, count = problem.arrays, problem.channels, problem.count
    if language == "hip":
        most = 1 << 12 if problem.dtype.size == 4 else (1 << 24) // max(1, channels)
        singly = count > most and not in_vectors(problem)
        many = channels >= 128 if arrays == 2 else channels >= 512 and not singly
        few = many and held_bytes(problem, arrays) <= most_in_hip(problem, 128)
        return 128 if few else (256, 512)[arrays - 1]
    if count >= 1 << 14 and channels <= _SOME and problem.hw == 1:
        return 512
    if count > 1 << 14 and (arrays == 2 or problem.dtype.size == 4 or channels <= 256):
        return 512
    little = (32 if arrays == 1 else 38) << 10  # of which so many blocks fit that few threads are enough
    short = 1 << (12 if problem.dtype.size == 2 and in_vectors(problem) else 11)
    few = held_bytes(problem, arrays) <= little if channels >= 768 else channels >= 512 and count <= short
    return 128 if few else 256


def held_at_once(problem: Any, arrays: int) -> bool:
    """Return whether one block a channel is faster than a cluster: where many run at a time, and rows are not short."""
    nbytes, size = held_bytes(problem, arrays), problem.dtype.size
    if (
        size != 8
        and _ENOUGH <= problem.channels <= _AT_ONCE
        and nbytes <= _LARGEST
        and problem.hw % problem.vector == 0
    ):
        return True
    few = problem.channels < (_ENOUGH if arrays == 2 and nbytes > _THREE_BLOCKS else _SOME)
    if few and nbytes > _LITTLE:
        return False
    if size == 8:
        if arrays == 2:
            return nbytes <= (160 << 10 if in_vectors(problem) else _TWO_BLOCKS)
        return nbytes <= (_TWO_BLOCKS if in_vectors(problem) and problem.channels >= 256 else _TWO_BLOCKS // 2)
    if nbytes > _TWO_BLOCKS:
        return False
    if in_vectors(problem) and (problem.hw % problem.vector == 0 or problem.channels <= 256 or nbytes <= _THREE_BLOCKS):
        return True
    if problem.hw * size >= _LONG_ROW:
        return bool(arrays == 2 or problem.count <= 1 << 14)
    return bool(problem.count <= 1 << (13 if problem.channels <= 512 else 12))


def large_and_few(problem: Any) -> bool:
    """Return whether each of few channels is more than one multiprocessor reads as soon as several."""
    return bool(problem.channels <= _FEW * problem.arrays and held_bytes(problem, problem.arrays) > _LITTLE)


def too_large_and_few(problem: Any) -> bool:
    """Return whether clusters of a channel each leave most multiprocessors without work, for long."""
    return bool(problem.channels <= _FEW // 4 and held_bytes(problem, problem.arrays) > 2 << 20)


def read_twice(problem: Any) -> bool:
    """Return whether a backward in PTX that reads twice, in few instructions, is done before what holds the values."""
    few = problem.count <= 1 << 10 and problem.channels * problem.count <= 1 << 16
    return bool(problem.training and few)


def worth_holding(problem: Any, arrays: int, language: str) -> bool:
    """Return whether one block a channel, which holds its values, is the fastest."""
    if language == "hip":
        slow = problem.dtype.size == 2 and problem.channels >= 512 and problem.hw >= 16
        few = arrays == 1 or holding_threads(problem, "hip") == 128
        return few or (_worth_caching(problem, arrays) and not slow)  # else slices have tickets
    if arrays == 2 and read_twice(problem):
        return False
    if arrays == 1 and problem.channels <= _SOME and held_bytes(problem, arrays) > _THREE_BLOCKS:
        return False
    return _worth_caching(problem, arrays) or held_at_once(problem, arrays)


def worth_tickets(problem: Any) -> bool:
    """Return whether slices of a channel that no block holds have tickets; of f64, large channels or many values."""
    large = problem.count >= 1 << (11 + problem.arrays) or problem.channels * problem.count >= 1 << 23
    return bool(problem.training and (problem.dtype.size < 8 or large))
