"""Data races in shared memory: who touched which bytes since the last barrier.

Every granule of shared memory remembers its last writer and two readers, each as a stamp: epoch of the block (barriers
passed), epoch of the warp (warp-wide synchronisations passed), whether the access was strong (atomic, volatile, relaxed
or more), and the thread. Two accesses of different threads in one epoch of the block, one of them a write and not both
strong, race, unless both threads are of one warp and that warp has synchronised in between, or the warps of both have
passed a fence, an acquire or a release since the earlier one. Writes of the same value to the same bytes do not race:
compilers let all lanes write what all of them hold. Of such writers two are remembered, since the last one may go on to
write something else.

Simplifications, all on the lenient side: a barrier of some of a block's threads, or a warp synchronisation of some of
its lanes, orders all of them; fences count whether or not an atomic between them hands anything over; and of many
readers two are remembered.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.equal_values import equal_among, equal_to_memory
from ptxrt.sim._machine.protocol import Spaces
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["Races"]

_EPOCH = 40
_WARP = 16
_STRONG = 1 << 15
_THREAD = (1 << 15) - 1
_READS = 128
_WARP_MASK = (1 << (_EPOCH - _WARP)) - 1


class Races:
    """The shadow of one chunk's shared memory."""

    def __init__(self, machine: Spaces, granule: int) -> None:
        self._machine = machine
        self._shift = granule.bit_length() - 1
        size = machine.shared.bytes.size >> self._shift
        self._writer, self._first, self._last = (np.zeros(size, np.int64) for _ in range(3))
        self._events: list[Instruction] = []
        """Accesses by number: an instruction gets a new one with the first access after a fence."""
        self._numbers: dict[Instruction, int] = {}
        self._block_epoch = np.ones(machine.blocks, np.int64)
        self._warp_epoch = np.zeros(machine.blocks * machine.padded // 32, np.int64)
        self._floor = self._stamp = np.zeros(0, np.int64)
        self._written = False
        """Whether anything was written since the last barrier of the whole chunk."""
        self._reads: list[tuple[Access, Array, Array, Array, Array, int]] = []
        self._write_event, self._first_event, self._last_event = (np.zeros(size, np.int32) for _ in range(3))
        self._fellow: tuple[Array, Array] | None = None
        """Stamps and events of threads that have written the same as the last writer; None until there is one."""
        self._fenced = np.zeros(machine.blocks * machine.padded // 32, np.int64)
        """How many events there were when each warp last passed a fence."""
        self._stale = True
        self._passed = 0

    def changed(self) -> None:
        """Note that the lanes' stamps are out of date: epochs have moved, or lanes have exited."""
        self._stale = True

    def _refresh(self) -> None:
        m = self._machine
        if not self._stale:
            if self._passed:
                # Barriers of whole chunks, the usual ones, move all stamps alike.
                self._floor = self._floor + (self._passed << _EPOCH)
                self._stamp = self._stamp + (self._passed << _EPOCH)
                self._passed = 0
            return
        self._stale = False
        self._passed = 0
        self._floor = self._block_epoch[m.block] << _EPOCH
        self._stamp = self._floor | (self._warp_epoch[m.origin >> 5] << _WARP) | (m.origin % m.padded)

    def barrier(self, blocks: Array | None) -> None:
        """Note that these blocks (all for None) have passed a barrier."""
        if blocks is None:
            self._block_epoch += 1
            self._passed += 1
            self._written = False
            self._reads.clear()
        else:
            self._block_epoch += blocks
            self._stale = True

    def warp_sync(self) -> None:
        """Note that the warps of the active lanes have synchronised."""
        m = self._machine
        flags = np.zeros(self._warp_epoch.shape[0], np.bool_)
        flags[m.of_active(m.origin) >> 5] = True
        self._warp_epoch += flags
        self._stale = True

    def fence(self) -> None:
        """Note that the active lanes pass a fence."""
        m = self._machine
        self._fenced[m.of_active(m.origin) >> 5] = len(self._events)
        self._numbers.clear()

    def _event(self, ins: Instruction) -> int:
        number = self._numbers.get(ins)
        if number is None:
            number = self._numbers[ins] = len(self._events)
            self._events.append(ins)
        return number

    def check(self, access: Access, place: Array) -> None:
        """Check and note an access of the active lanes at these bytes of their blocks' shared memory.

        Raises
        ------
        DataRace
            For the first lane that races with an earlier access, or with another lane of this one.
        """
        m = self._machine
        self._refresh()
        stamp, floor, block = m.of_active(self._stamp), m.of_active(self._floor), m.of_active(m.block)
        if access.strong:
            stamp = stamp | _STRONG
        event = self._event(access.ins)
        if not access.writes and not self._written:
            # Readers among themselves cannot race: they are looked at only if somebody writes before the next barrier.
            self._reads.append((access, place, block, stamp, floor, event))
            if len(self._reads) == _READS:
                self._fold()
            return
        if access.writes:
            self._fold()
            self._written = True
        where = place + block * m.shared_stride
        for at in self._granules(access, where):
            if access.writes and self._fellow is not None:
                self._against(access, place, *self._fellow, at, stamp, floor, where)
            self._against(access, place, self._writer, self._write_event, at, stamp, floor, where)
            if not access.writes:
                self._note_read(at, stamp, floor, event)
                continue
            self._against(access, place, self._first, self._first_event, at, stamp, floor)
            self._against(access, place, self._last, self._last_event, at, stamp, floor)
            self._writer[at] = stamp
            self._write_event[at] = event
            if not access.strong:
                twice = self._writer[at] != stamp
                if m.written is not None and twice.any():
                    equal = twice & equal_among(m.written, where)
                    self._note_fellows(at[equal], stamp[equal], event)
                    twice &= ~equal
                if twice.any():
                    lane = int(twice.nonzero()[0][0])
                    self._report(access, place, lane, int(self._writer[at[lane]]), access.ins)

    def _granules(self, access: Access, where: Array) -> Iterator[Array]:
        """Yield the granules that each lane touches, one after the other."""
        first = where >> self._shift
        yield first
        for further in range(1, access.size >> self._shift):
            yield first + further

    def _fold(self) -> None:
        """Note the reads that were put off."""
        reads, self._reads = self._reads, []
        for access, place, block, stamp, floor, event in reads:
            for at in self._granules(access, place + block * self._machine.shared_stride):
                self._note_read(at, stamp, floor, event)

    def _note_read(self, at: Array, stamp: Array, floor: Array, event: int) -> None:
        held = self._first[at]
        fresh = held < floor
        if fresh.all():
            # Last lane wins in one, first lane in the other: if several read, the two differ.
            self._last[at] = stamp
            self._first[at[::-1]] = stamp[::-1]
            self._first_event[at] = self._last_event[at] = event
            return
        # A thread that reads again is remembered with its later read, which fewer things have ordered.
        new = (fresh | (((held ^ stamp) & _THREAD) == 0)).nonzero()[0][::-1]
        self._first[at[new]] = stamp[new]
        self._first_event[at[new]] = event
        second = ((self._first[at] ^ stamp) & _THREAD) != 0
        update = (second | fresh).nonzero()[0]
        self._last[at[update]] = stamp[update]
        self._last_event[at[update]] = event

    def _note_fellows(self, at: Array, stamp: Array, event: Array | int) -> None:
        """Note threads whose writes have passed because another's wrote the same."""
        if self._fellow is None:
            self._fellow = np.zeros_like(self._writer), np.zeros_like(self._write_event)
        stamps, events = self._fellow
        stamps[at], events[at] = stamp, event

    def _against(
        self, access: Access, place: Array, shadow: Array, events: Array, at: Array, stamp: Array, floor: Array,
        where: Array | None = None,
    ) -> None:  # fmt: skip
        """Compare with the remembered accesses of one kind; `where` has the bytes' places in memory, if with writes."""
        held = shadow[at]
        recent = held >= floor
        if not recent.any():
            return
        lanes = recent.nonzero()[0]
        old, own = held[lanes], stamp[lanes]
        distinct = ((old ^ own) & _THREAD) != 0
        weak = (old & own & _STRONG) == 0
        same_warp = ((old ^ own) & (_THREAD & ~31)) == 0
        ordered = same_warp & ((old >> _WARP & _WARP_MASK) < (own >> _WARP & _WARP_MASK))
        bad = distinct & weak & ~ordered
        if not bad.any():
            return
        bad &= ~self._fences_between(lanes, old, events[at[lanes]])
        written = self._machine.written
        if where is not None and written is not None and bad.any():
            # What an atomic left there is not what a store may meet.
            equal = bad & ((old & _STRONG) == 0) & equal_to_memory(written, self._machine.shared, where)[lanes]
            self._note_fellows(at[lanes[equal]], old[equal], events[at[lanes[equal]]])
            bad &= ~equal
        if bad.any():
            first = int(bad.nonzero()[0][0])
            event = int(events[at[lanes[first]]])
            self._report(access, place, int(lanes[first]), int(old[first]), self._events[event])

    def _fences_between(self, lanes: Array, old: Array, event: Array) -> Array:
        """Tell for which of these active lanes its warp and the other thread's have passed a fence since the event."""
        m = self._machine
        own = m.of_active(m.origin)[lanes]
        earlier = own // m.padded * m.padded + (old & _THREAD)
        return np.asarray((self._fenced[own >> 5] > event) & (self._fenced[earlier >> 5] > event))

    def _report(self, access: Access, place: Array, lane: int, old: int, earlier: Instruction) -> None:
        m = self._machine
        m.race(
            f"{access.verb} of {access.size} bytes of shared memory races with another thread's access, "
            "with no barrier in between",
            access.ins,
            int(m.active()[lane]),
            int(place[lane if place.shape[0] > 1 else 0]),
            access.size,
            earlier,
            old & _THREAD,
        )
