"""The launches that nobody has waited for yet: an asynchronous fault can only be one of theirs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["RecentLaunches"]

_MOST = 64
_SHOWN = 8


class RecentLaunches:
    """The last launches of all threads, and which waits have ended since.

    Parameters
    ----------
    device
        The kind, for messages: ``"cuda"``.

    Attributes
    ----------
    note
        Takes ``(ordinal, stream, kernel, dims)`` of a launch, and ``(ordinal, stream, launches, ())`` of a graph's
        replay, with a list of all that it launches. It is a deque's append: every launch pays for it.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._events: deque[Any] = deque(maxlen=_MOST)
        self.note: Callable[[tuple[int, int, Any, tuple[int, ...]]], None] = self._events.append

    @contextmanager
    def waiting(self, ordinal: int, stream: int | None) -> Iterator[None]:
        """Note a wait for a stream, or for all of a device's; it counts once it has ended without an error."""
        # A list among the tuples of launches. Its place says which launches came before it, whatever other threads do.
        mark = [ordinal, stream, False]
        if self._events:
            self._events.append(mark)
        yield
        mark[2] = True

    def reason(self) -> str:
        """Return what to say of an error that a kernel left behind: which launches may still run, the latest first."""
        waited: set[tuple[int, int | None]] = set()
        found: list[str] = []
        for event in reversed(tuple(self._events)):
            ordinal, stream = event[:2]
            if (ordinal, None) in waited or (ordinal, stream) in waited:
                continue
            if event.__class__ is tuple:
                what, dims = event[2:]
                where = f"{self._device}:{ordinal}" + (f", stream {stream:#x}" if stream else "")
                replayed = what.__class__ is list
                for kernel, shape in reversed(what) if replayed else [(what, dims)]:
                    graph = ", in a graph" if replayed else ""
                    found.append(f"{kernel.entry}, grid {shape[:3]}, block {shape[3:]}, on {where}{graph}")
            elif event[2]:
                waited.add((ordinal, stream))
        words = ". A kernel launched earlier did this"
        if found:
            more = f"; and {len(found) - _SHOWN} before them" if len(found) > _SHOWN else ""
            words += f", one of those that nothing has waited for since: {'; '.join(found[:_SHOWN])}{more}"
        way_out = "Run the kernel on 'sim:0' to find the line, or set PTXRT_SHADOW=1"
        return f"{words}. The process must start anew. {way_out}"
