"""Data races in the shared memory of a cluster: between threads of different blocks, or of one in another's memory.

Every granule of shared memory remembers its last writer and two readers, one of its own block and one of another. An
access comes behind another block's earlier one if barrier.cluster lies between: the earlier thread arrived after its
access, and the later one has waited since, or a thread of its block has, with a barrier of the block behind that. Of a
read that is enough. What was written the other block sees only if it was released, too: the writer arrived with
.release, or a thread of its block did so behind a barrier of the block, or the writer's warp has passed a fence since.
Two accesses of which one is a write, not both strong, and that are in no such order, race, unless the warps of both
have passed a fence, an acquire or a release since the earlier one. Writes of the same value to the same bytes do not
race. Of two warps of one block, in another's memory, a barrier of the block is enough; so it is in their own, where
one of them goes by an address of mapa, of which :class:`Races` knows nothing.

Simplifications, all on the lenient side: an arrival with .release counts for all barriers since the write; fences of a
warp are those of all of its lanes; and of the readers of a kind one is remembered.
"""

from __future__ import annotations

import numpy as np

from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.equal_values import equal_among, equal_to_memory
from ptxrt.sim._machine.protocol import Spaces
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["ClusterRaces"]


_HIGH = 32
_LOW = (1 << _HIGH) - 1
_STRONG, _MAPPED, _EVENT = 1, 2, 2
"""Below a thread: whether its access was strong, and by an address of mapa; the event begins at bit _EVENT."""


class _Last:
    """Who last made an access of one kind to each granule, and what had gone before.

    Two words for each: the system has to clear every page of them that is touched, which takes longer than the looks.

    Attributes
    ----------
    who
        The thread's place in the chunk, plus 1, above the number of the access; 0 where there was none.
    when
        How often the thread had arrived at the cluster's barrier, above how often its block had passed one of its own.
    """

    def __init__(self, granules: int) -> None:
        self.who, self.when = np.zeros(granules, np.int64), np.zeros(granules, np.int64)


class ClusterRaces:
    """The shadow of one chunk's shared memory, as other blocks see it."""

    def __init__(self, machine: Spaces, granule: int) -> None:
        self._machine = machine
        self._shift = granule.bit_length() - 1
        granules, places = machine.shared.bytes.size >> self._shift, machine.blocks * machine.padded
        self._writer, self._own_reader, self._other_reader = (_Last(granules) for _ in range(3))
        self._arrivals, self._waits = np.zeros(places, np.int64), np.zeros(places, np.int64)
        self._released = np.full(places, -1, np.int64)
        """The last of its arrivals with .release, of each thread."""
        self._released_by, self._waits_of = np.full((2, 2, machine.blocks), -1, np.int64)
        """The same of any thread of a block, and how often one has waited; each with the block's epoch then."""
        self._epoch = np.zeros(machine.blocks, np.int64)
        self._fenced, self._fenced_within = np.zeros((2, places // 32), np.int64)
        """How many events there were when each warp last passed a fence of more than its block, and of any scope."""
        self._events: list[Instruction] = []
        """Accesses by number: an instruction gets a new one with the first access after a fence."""
        self._numbers: dict[Instruction, int] = {}

    def barrier(self, blocks: Array | None) -> None:
        """Note that these blocks (all for None) have passed a barrier."""
        self._epoch += 1 if blocks is None else blocks

    def fence(self, *, wide: bool) -> None:
        """Note that the active lanes pass a fence; `wide` if its scope is more than their block."""
        m = self._machine
        for fenced in (self._fenced_within, self._fenced)[: 1 + wide]:
            fenced[m.of_active(m.origin) >> 5] = len(self._events)
        self._numbers.clear()

    def arrive(self, *, releases: bool) -> None:
        """Note that the active lanes arrive at the barrier of their cluster."""
        m = self._machine
        threads = m.of_active(m.origin)
        if releases:
            blocks = threads // m.padded
            self._released[threads] = self._arrivals[threads]
            self._released_by[:, blocks] = self._arrivals[threads], self._epoch[blocks]
        self._arrivals[threads] += 1

    def waited(self, threads: Array) -> None:
        """Note that these threads, by place in the chunk, have waited for the barrier that they arrived at."""
        blocks = threads // self._machine.padded
        self._waits[threads] = self._arrivals[threads]
        self._waits_of[:, blocks] = self._arrivals[threads], self._epoch[blocks]

    def check(self, access: Access, inside: Array, block: Array, *, mapped: bool = False) -> None:
        """Check and note an access of the active lanes at these bytes of these blocks' shared memory.

        `mapped`: by addresses of mapa, of some lanes at least. The others are to a block's own memory.

        Raises
        ------
        DataRace
            For the first lane that races with an earlier access.
        """
        m = self._machine
        threads = m.of_active(m.origin)
        event = self._numbers.get(access.ins)
        if event is None:
            event = self._numbers[access.ins] = len(self._events)
            self._events.append(access.ins)
        who = ((threads + 1) << _HIGH) | (event << _EVENT) | (access.strong * _STRONG) | (mapped * _MAPPED)
        own = threads // m.padded
        when = (self._arrivals[threads] << _HIGH) | self._epoch[own]
        readers = () if access.writes else ((self._own_reader, own == block), (self._other_reader, own != block))
        reads = [(reader, lanes, who[lanes], when[lanes]) for reader, lanes in readers]
        where = inside + block * m.shared_stride
        for further in range(access.size >> self._shift):
            at = (where >> self._shift) + further
            self._against(access, inside, self._writer, at, threads, mapped, where)
            if access.writes:
                self._against(access, inside, self._own_reader, at, threads, mapped)
                self._against(access, inside, self._other_reader, at, threads, mapped)
                self._writer.who[at], self._writer.when[at] = who, when
                if not access.strong:
                    self._against(access, inside, self._writer, at, threads, mapped, where, among=True)
            for reader, lanes, of_who, of_when in reads:
                reader.who[at[lanes]], reader.when[at[lanes]] = of_who, of_when

    def _against(
        self, access: Access, inside: Array, last: _Last, at: Array, threads: Array, mapped: bool,
        where: Array | None = None, *, among: bool = False,
    ) -> None:  # fmt: skip
        """Compare with the remembered accesses of one kind; `where` has the bytes' places in memory, if with writes.

        Threads of one block, neither of which went by an address of mapa, :class:`Races` compares.
        `among`: with those that other lanes of this access have just made.
        """
        padded, who = self._machine.padded, last.who[at]
        earlier = (who >> _HIGH) - 1
        near = earlier // padded == threads // padded
        looked_at = ~near | ((((who & _MAPPED) != 0) | mapped) & (earlier >> 5 != threads >> 5))
        lanes = ((earlier >= 0) & looked_at).nonzero()[0]
        if not lanes.size:
            return
        who, when, earlier = who[lanes], last.when[at[lanes]], earlier[lanes]
        threads, near = threads[lanes], near[lanes]
        own, event, weak = threads // padded, (who & _LOW) >> _EVENT, (who & _STRONG) == 0
        arrivals, passed_before = when >> _HIGH, when & _LOW
        fenced, since = (
            np.where(near, self._fenced_within[warps], self._fenced[warps]) > event
            for warps in (earlier >> 5, threads >> 5)
        )
        waits, epoch = self._waits_of[:, own]
        passed = (self._waits[threads] > arrivals) | ((waits > arrivals) & (self._epoch[own] > epoch))
        passed |= near & (self._epoch[own] > passed_before)
        bad = ~(passed | (fenced & since))
        if where is not None:
            release, epoch = self._released_by[:, earlier // padded]
            released = (self._released[earlier] >= arrivals) | ((release >= arrivals) & (epoch > passed_before))
            bad |= ~(near | fenced | released)
        if access.strong:
            bad &= weak
        if bad.any():
            # Of a thread that has exited it is not known what it released.
            bad &= self._machine.positions()[earlier] >= 0
        values = self._machine.written
        if where is not None and values is not None and bad.any():
            equal = equal_among(values, where) if among else equal_to_memory(values, self._machine.shared, where)
            bad &= ~(equal[lanes] & weak)
        if bad.any():
            first = int(bad.nonzero()[0][0])
            why = (
                "which arrived at barrier.cluster with .relaxed, and so released nothing that it had written"
                if passed[first]
                else f"with no barrier{'' if near[first] else '.cluster'} in between"
            )
            self._report(access, inside, int(lanes[first]), int(earlier[first]), self._events[int(event[first])], why)

    def _report(self, access: Access, inside: Array, lane: int, earlier: int, event: Instruction, why: str) -> None:
        m = self._machine
        rank = earlier // m.padded % m.shape.cluster_blocks
        m.race(
            f"{access.verb} of {access.size} bytes of shared memory races with an access of a thread of block {rank} "
            f"of the cluster, {why}",
            access.ins,
            int(m.active()[lane]),
            int(inside[lane if inside.shape[0] > 1 else 0]),
            access.size,
            event,
            earlier % m.padded,
        )
