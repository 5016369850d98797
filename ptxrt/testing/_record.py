"""What a launch leaves in coverage.py's data, and how it is read again.

coverage.py keeps the numbers of lines, or pairs of them, that ran. Which could have run is a compiler's knowledge, and
is put there too, as numbers above those of lines that there are:

=====================  ==========================  ===================================
\\                      where branches are measured  else
=====================  ==========================  ===================================
line n ran             the pair (-1, n)            n
line n could have run  the pair (-1, n + COULD)    n + COULD
way a, b could run     a + COULD, b + COULD
way a, b ran           a + WENT, b + WENT
=====================  ==========================  ===================================

A way that leads out of its function has -a for b, and is moved downwards.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["MOST_LINES", "Pair", "could_run", "ran", "record"]

MOST_LINES = (1 << 17) - 1
"""Longer files are left out: coverage.py keeps a bit for each number up to the highest."""

_COULD = MOST_LINES + 1
_WENT = 2 * _COULD

Pair = tuple[int, int]


def record(
    ran: Iterable[int], went: Iterable[Pair], lines: Iterable[int], ways: Iterable[Pair]
) -> tuple[set[int], set[Pair]]:
    """Return the lines, and the pairs of them, that stand for this in the data.

    Parameters
    ----------
    ran, went
        Lines and ways that ran.
    lines, ways
        Those that could have run.
    """
    numbers = {*ran, *(line + _COULD for line in lines)}
    pairs = {(-1, number) for number in numbers}
    pairs.update(_moved(way, _COULD) for way in ways)
    pairs.update(_moved(way, _WENT) for way in went)
    return numbers, pairs


def could_run(numbers: Iterable[int], pairs: Iterable[Pair]) -> tuple[set[int], set[Pair]]:
    """Return the lines and the ways that could have run, of what the data has."""
    return (
        {number - _COULD for number in numbers if _COULD < number < _WENT},
        {_moved(pair, -_COULD) for pair in pairs if _COULD < pair[0] < _WENT},
    )


def ran(numbers: Iterable[int], pairs: Iterable[Pair]) -> tuple[set[int], set[Pair]]:
    """Return the lines and the ways that ran, of what the data has; what is so already stays."""
    return (
        {number for number in numbers if number <= MOST_LINES},
        {_moved(pair, -_WENT) if pair[0] > _WENT else pair for pair in pairs if not _COULD <= pair[0] <= _WENT},
    )


def _moved(way: Pair, by: int) -> Pair:
    line, to = way
    return line + by, to + by if to > 0 else to - by
