"""Data races in global memory between the threads of one launch.

Every granule remembers its last writer and two readers, each with the time of the access; time counts the accesses of
the launch. Two accesses of different threads, one of them a write and not both strong (atomic, volatile, relaxed or
more), race, unless something has ordered them since the earlier one: a barrier of the block for threads of one block, a
warp-wide synchronisation for lanes of one warp, and for others that both of their blocks (in one block: both of their
warps) have passed a fence, an acquire or a release, or a barrier of the cluster. What has the scope .cta is neither
strong nor a fence to another block.

Where nobody has asked for this check, threads that write the same value to the same bytes do not race: many kernels set
a flag so.

As with shared memory, simplifications are on the lenient side: of many readers two are remembered, and fences count
whether or not an atomic between them hands anything over.
"""

from __future__ import annotations

import numpy as np

from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.allocations import Allocation
from ptxrt.sim._machine.equal_values import equal_among, equal_to_memory
from ptxrt.sim._machine.protocol import Lanes, Spaces
from ptxrt.sim._machine.shape import Shape
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["GlobalRaces"]

_STRONG, _WIDE, _THREAD = 1, 2, 2
_LARGE = 64 << 20


class _Role:
    """Who did one kind of access to each granule, and when; `who` has no elements until somebody did.

    Who is the thread's number in the launch, and two bits of strength: strong, and strong to other blocks too.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.who = np.zeros(0, np.int64)
        self.time = np.zeros(0, np.uint32)

    def note(self, at: Array, who: Array, now: int) -> None:
        if not self.who.size:
            self.who = np.zeros(self._size, np.int64)
            self.time = np.zeros(self._size, np.uint32)
        self.who[at] = who
        self.time[at] = now


class GlobalRaces:
    """The shadow of global memory for one launch.

    A check that nobody has asked for (`by_default`) passes over large arrays, whose shadow is many times as large, and
    over plain reads of what is written by atomics: loops around a compare-and-swap begin with one, and rightly so.
    """

    def __init__(self, shape: Shape, granule: int, *, by_default: bool = False) -> None:
        self._by_default = by_default
        self._shift = granule.bit_length() - 1
        self._padded = shape.warps * 32
        self._block_shift = self._padded.bit_length() - 1 if self._padded & (self._padded - 1) == 0 else None
        self._shadows: dict[Allocation, tuple[_Role, _Role, _Role]] = {}
        self._fenced = np.zeros(shape.blocks, np.uint32)
        self._events: list[Instruction] = []
        self._barrier = self._warp = self._warp_fenced = np.zeros(0, np.uint32)

    def begin(self, m: Lanes) -> None:
        """Start a chunk: barriers order the threads of one block only, and a block is in one chunk only."""
        self._barrier = np.zeros(m.blocks, np.uint32)
        self._warp = np.zeros(m.blocks * m.padded // 32, np.uint32)
        self._warp_fenced = np.zeros(m.blocks * m.padded // 32, np.uint32)

    def barrier(self, blocks: Array | None) -> None:
        """Note that these blocks (all for None) have passed a barrier."""
        self._barrier[slice(None) if blocks is None else blocks] = len(self._events)

    def warp_sync(self, m: Lanes) -> None:
        """Note that the warps of the active lanes have synchronised."""
        self._warp[m.of_active(m.origin) >> 5] = len(self._events)

    def fence(self, m: Lanes, *, wide: bool) -> None:
        """Note that the active lanes pass a fence; `wide` if its scope is more than the block."""
        self._warp_fenced[m.of_active(m.origin) >> 5] = len(self._events)
        if wide:
            self._fenced[m.first_block + m.of_active(m.block)] = len(self._events)

    def check(self, m: Spaces, access: Access, allocation: Allocation, at: Array, part: Array | None) -> None:
        """Check and note an access of the active lanes (or of a part of them) at these bytes of an allocation.

        Raises
        ------
        DataRace
            For the first lane that races with an earlier access, or with another lane of this one.
        """
        if allocation.is_const or (self._by_default and allocation.bytes.size > _LARGE):
            return
        lanes = m.active() if part is None else m.active()[part]
        if at.shape[0] != lanes.shape[0]:
            at = np.repeat(at, lanes.shape[0])
        self._events.append(access.ins)
        now = len(self._events)
        strength = 0 if not access.strong else _STRONG if "cta" in access.ins.modifiers else _STRONG | _WIDE
        own = ((m.first_block * self._padded + m.origin[lanes] + 1) << _THREAD) | strength
        writer, first, last = self._shadow(allocation)
        granule = at >> self._shift
        values = None
        if self._by_default and m.written is not None:
            values = [value if value.shape[0] == 1 or part is None else value[part] for value in m.written]
        for _ in range(access.size >> self._shift):
            self._against(m, access, at, allocation, lanes, own, writer, granule, values=values)
            if access.writes:
                self._against(m, access, at, allocation, lanes, own, first, granule, only_read=True)
                self._against(m, access, at, allocation, lanes, own, last, granule, only_read=True)
                writer.note(granule, own, now)
                twice = writer.who[granule] != own
                if strength:
                    # Only what is strong within its block meets its like from another.
                    elsewhere = self._block(writer.who[granule]) != self._block(own)
                    twice &= elsewhere & (strength & _WIDE == 0)
                if values is not None and twice.any():
                    twice &= ~equal_among(values, at)
                if twice.any():
                    lane = int(twice.nonzero()[0][0])
                    self._report(m, access, int(at[lane]), allocation, int(lanes[lane]),
                                 int(writer.who[granule[lane]]), now)  # fmt: skip
            else:
                self._note_read(m, lanes, own, first, last, granule, now)
            granule = granule + 1

    def _shadow(self, allocation: Allocation) -> tuple[_Role, _Role, _Role]:
        found = self._shadows.get(allocation)
        if found is None:
            size = (allocation.bytes.size >> self._shift) + 1
            found = self._shadows[allocation] = (_Role(size), _Role(size), _Role(size))
        return found

    def _place(self, who: Array) -> Array:
        """Return the number of a thread in the launch, each block padded to whole warps."""
        return (who >> _THREAD) - 1

    def _block(self, who: Array) -> Array:
        place = self._place(who)
        return place // self._padded if self._block_shift is None else place >> self._block_shift  # a shift is faster

    def _note_read(
        self, m: Spaces, lanes: Array, own: Array, first: _Role, last: _Role, granule: Array, now: int
    ) -> None:
        at, who = granule, own
        held = first.who[granule] if first.who.size else first.who
        if held.any():
            # A thread that reads again is remembered with its later read, which fewer things have ordered.
            again = held >> _THREAD == own >> _THREAD
            if not again.all():
                same_block = self._block(held) == m.first_block + m.block[lanes]
                fresh = (held == 0) | (same_block & (self._barrier[m.block[lanes]] >= first.time[granule]))
                new = (again | fresh).nonzero()[0]
                at, who = granule[new], own[new]
        first.note(at[::-1], who[::-1], now)
        # Where several lanes read, the first is in one and the last in the other.
        second = (first.who[granule] >> _THREAD != own >> _THREAD).nonzero()[0]
        if second.size:
            last.note(granule[second], own[second], now)

    def _against(
        self, m: Spaces, access: Access, at: Array, allocation: Allocation, lanes: Array, own: Array, role: _Role,
        granule: Array, *, only_read: bool = False, values: list[Array] | None = None,
    ) -> None:  # fmt: skip
        if not role.who.size:  # the usual case
            return
        held = role.who[granule]
        if not held.any():
            return
        # Two strong accesses of which one is strong within its block only are looked at too.
        fine = (held & own & (_STRONG | _WIDE)) == (_STRONG | _WIDE)
        if self._by_default and (only_read or not access.writes):
            fine |= ((own if access.writes else held) & _STRONG) != 0
        bad = (held != 0) & (held >> _THREAD != own >> _THREAD) & ~fine
        if values is not None and bad.any():
            bad &= ((held & _STRONG) != 0) | ~equal_to_memory(values, allocation, at)
        if not bad.any():
            return
        which = bad.nonzero()[0]
        time, lanes = role.time[granule[which]], lanes[which]
        there, here = self._place(held[which]), self._place(own[which])
        block, other_block = here // self._padded, there // self._padded
        same_block, same_warp = block == other_block, here >> 5 == there >> 5
        warp = m.origin[lanes] >> 5
        # The other's warp has a meaning only within the block, where it is in the chunk too.
        other_warp = np.where(same_block, warp + (there >> 5) - (here >> 5), warp)
        ordered = same_block & ((held[which] & own[which] & _STRONG) != 0)
        ordered |= same_block & (self._barrier[m.block[lanes]] >= time)
        ordered |= same_warp & (self._warp[warp] >= time)
        ordered |= same_block & (self._warp_fenced[warp] >= time) & (self._warp_fenced[other_warp] >= time)
        ordered |= ~same_block & (self._fenced[block] >= time) & (self._fenced[other_block] >= time)
        if ordered.all():
            return
        first = int((~ordered).nonzero()[0][0])
        self._report(m, access, int(at[which[first]]), allocation, int(lanes[first]), int(held[which[first]]),
                     int(time[first]))  # fmt: skip

    def _report(
        self, m: Spaces, access: Access, at: int, allocation: Allocation, lane: int, earlier: int, time: int
    ) -> None:
        block, thread = divmod((earlier >> _THREAD) - 1, self._padded)
        where = m.shape.block_index(block)
        m.race(
            f"{access.verb} of {access.size} bytes of global memory races with an access of block {where}, and "
            "nothing orders them",
            access.ins,
            lane,
            allocation.base + at,
            access.size,
            self._events[time - 1],
            thread,
        )
