"""cp.async: the bytes are read at once, and written when their thread waits for them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.protocol import Lanes, Machine
from ptxrt.sim._machine.words import write_words
from ptxrt.sim._text.types import Array

__all__ = ["AsyncCopies"]


@dataclass(eq=False)
class _Copy:
    access: Access
    places: Array
    """Of the lanes in the chunk, ascending; those of exited lanes never wait."""
    group: Array
    where: Array
    values: list[Array]


class AsyncCopies:
    """The copies that are under way in one chunk."""

    def __init__(self, lanes: Lanes) -> None:
        self._committed = np.zeros(lanes.blocks * lanes.padded, np.int64)
        self._copies: list[_Copy] = []

    def start(self, m: Machine, access: Access, where: Array, values: list[Array]) -> None:
        """Begin a copy of the active lanes, as a part of the group that each has open."""
        places = m.of_active(m.origin)
        where = m.spread(where).copy()  # the register may change, of some lanes, before they wait
        self._copies.append(_Copy(access, places, self._committed[places], where, values))

    def commit(self, m: Machine) -> None:
        """Close the open group of the active lanes."""
        self._committed[m.of_active(m.origin)] += 1

    def wait(self, m: Machine, but: int | None) -> None:
        """Complete the active lanes' groups but the last `but`; None for all copies, committed or not."""
        limit = np.full(self._committed.shape[0], -1, np.int64)
        places = m.of_active(m.origin)
        limit[places] = self._committed[places] + 1 if but is None else self._committed[places] - but
        outer_idx, outer_count = m.idx, m.count
        left = []
        for copy in self._copies:
            done = copy.group < limit[copy.places]
            if done.any():
                m.activate(m.positions()[copy.places[done]])
                write_words(m, copy.access, copy.where[done], [value[done] for value in copy.values])
            if not done.all():
                keep = ~done
                values = [value[keep] for value in copy.values]
                left.append(_Copy(copy.access, copy.places[keep], copy.group[keep], copy.where[keep], values))
        self._copies = left
        m.idx, m.count = outer_idx, outer_count
