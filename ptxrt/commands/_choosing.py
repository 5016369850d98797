"""``--filter KEY=VALUE`` and ``--sort KEY``, the same for a snapshot's entries and for the store's."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ptxrt.errors import InvalidArgument, shown

__all__ = ["DURATION", "Keys", "only_one", "seconds_in", "wrong"]

Item = TypeVar("Item")

DURATION = "a time such as 30min, 12h or 7d"
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def wrong(argument: str, expected: str, given: str, fix: str | None = None) -> InvalidArgument:
    """Return the error of ``ptxrt cache`` for an argument; `given` is in words, or as :func:`repr` has it."""
    return InvalidArgument(op="cache", argument=argument, expected=expected, given=given, fix=fix)


def seconds_in(text: str) -> int | None:
    """Return the seconds of ``"7d"``; None where that is no time."""
    found = re.fullmatch(f"([0-9]{{1,9}})({'|'.join(_UNITS)})", text)
    return int(found[1]) * _UNITS[found[2]] if found else None


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,19}", text) else None


@dataclass(frozen=True)
class Keys(Generic[Item]):
    """What entries are filtered and sorted by.

    Attributes
    ----------
    texts
        Name -> text. One passes where it contains the value, whatever the case.
    numbers
        Name -> number. One passes where it is the value, or in a range: ``2..5``, ``2..`` or ``..5``, ends included.
    moments
        Name -> seconds since 1970. One passes by how long ago it was: ``7d..`` is at least seven days.
    """

    texts: Mapping[str, Callable[[Item], str]]
    numbers: Mapping[str, Callable[[Item], float]]
    moments: Mapping[str, Callable[[Item], float]]

    def __iter__(self) -> Iterator[str]:
        return iter((*self.texts, *self.numbers, *self.moments))

    def chosen(self, items: Iterable[Item], filters: Iterable[str], now: float) -> list[Item]:
        """Return those that pass every filter, each ``KEY=VALUE``.

        Raises
        ------
        InvalidArgument
            For a key that there is not, or a value that is none of its kind.
        """
        left = list(items)
        for condition in filters:
            key, equals, value = condition.partition("=")
            if not equals:
                raise wrong("--filter", "KEY=VALUE", repr(condition))
            self._known(key, "--filter")
            passes = self._passes(key, value, now)
            left = [item for item in left if passes(item)]
        return left

    def _passes(self, key: str, value: str, now: float) -> Callable[[Item], bool]:
        if key in self.texts:
            return lambda item: value.casefold() in self.texts[key](item).casefold()
        if key in self.numbers:
            bounds = _bounds(value, _whole)
            words = f"a whole number after {key}=, or a range as in 2..5, 2.. or ..5"
        else:  # no age is exactly seven days
            bounds = _bounds(value, seconds_in) if ".." in value else None
            words = f"a range after {key}=, as in 7d.. (at least), ..12h (at most) or 1h..2d; units are s, min, h, d"
        if bounds is None:
            raise wrong("--filter", words, shown(value))
        low, high = bounds
        if key in self.numbers:
            return lambda item: low <= self.numbers[key](item) <= high
        # A moment to come, of a clock that was set back since, counts as now.
        return lambda item: low <= max(now - self.moments[key](item), 0) <= high

    def ordered(self, items: list[Item], key: str | None, reverse: bool) -> list[Item]:
        """Return them by a key, moments from the youngest to the oldest; as they are without one."""
        if key is None:
            return items[::-1] if reverse else items
        self._known(key, "--sort")
        if key in self.moments:
            return sorted(items, key=lambda item: -self.moments[key](item), reverse=reverse)
        field: Callable[[Item], Any] = {**self.texts, **self.numbers}[key]
        return sorted(items, key=field, reverse=reverse)

    def _known(self, key: str, argument: str) -> None:
        keys = tuple(self)
        if key not in keys:
            close = difflib.get_close_matches(key, keys, n=2)
            raise wrong(
                argument,
                "one of " + ", ".join(keys),
                repr(key),
                fix=f"Did you mean {' or '.join(close)}?" if close else None,
            )


def _bounds(value: str, read: Callable[[str], int | None]) -> tuple[float, float] | None:
    """Return both ends of a range, of which one may be left out, or of a single value; None for anything else."""
    low, dots, high = value.partition("..")
    if not dots:
        high = low
    least, most = read(low) if low else 0, read(high) if high else math.inf
    return None if least is None or most is None or not (low or high) else (least, most)


def only_one(items: Iterable[Item], digest: Callable[[Item], str], given: str, argument: str) -> Item | None:
    """Return the one whose digest begins as given, None where none does.

    Raises
    ------
    InvalidArgument
        Where several do.
    """
    found = [item for item in items if given and digest(item).startswith(given.lower())]
    if len(found) > 1:
        raise wrong(
            argument,
            "a digest that one entry begins with",
            f"{given!r}, which {len(found)} do: " + ", ".join(digest(item)[:16] for item in found[:8]),
            fix="Give more digits",
        )
    return found[0] if found else None
