"""Barriers of a block: who is parked at which, and when they go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.protocol import Machine, Reduction
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["Barriers"]


@dataclass(eq=False)
class _Park:
    ins: Instruction
    idx: Array
    number: int
    count: int | None
    following: int
    reduction: Reduction | None
    flags: Array | None


class Barriers:
    """The sixteen barriers of each block of a chunk."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._parks: list[_Park] = []
        self._arrived: dict[int, tuple[Array, Array]] = {}
        """Per barrier: threads that came by bar.arrive in each block, and the count they named there."""

    def sync(
        self,
        ins: Instruction,
        number: int,
        count: int | None,
        following: int,
        reduction: Reduction | None = None,
        flags: Array | None = None,
    ) -> int:
        """Park the active lanes at barrier `number`; they go on at block `following`.

        Answers `following` at once where every lane of every block has come (the usual case), else GONE.
        """
        m = self._machine
        if m.idx is None and count is None and reduction is None and number not in self._arrived:
            m.passed_barrier(None)
            return following
        self._parks.append(_Park(ins, m.active(), number, count, following, reduction, flags))
        self.release()
        return GONE

    def arrive(self, number: int, count: int) -> None:
        """Count the active lanes as arrived, without parking them."""
        m = self._machine
        held, counts = self._arrived.get(number, (np.zeros(m.blocks, np.int64), np.ones(m.blocks, np.int64)))
        came = self._threads(m.active())
        counts = np.where(came > 0, count, counts)
        self._arrived[number] = (held + came, counts)
        self.release()
        if number in self._arrived:
            # A barrier that is complete with nobody waiting begins anew.
            held, counts = self._arrived[number]
            self._keep(number, held % counts, counts)

    def _keep(self, number: int, arrived: Array, counts: Array) -> None:
        if arrived.any():
            self._arrived[number] = (arrived, counts)
        else:
            self._arrived.pop(number, None)

    def _threads(self, idx: Array) -> Array:
        """Count threads per block; a warp that is all here counts 32, as the hardware counts warps."""
        m = self._machine
        warps = m.blocks * m.padded // 32
        here = np.bincount(m.origin[idx] >> 5, minlength=warps)
        live = np.bincount(m.origin >> 5, minlength=warps)
        return np.asarray(np.where((here == live) & (here > 0), 32, here).reshape(m.blocks, -1).sum(axis=1))

    def renumber(self, moved: Array) -> None:
        """Follow the lanes to their new places after others have exited."""
        for park in self._parks:
            park.idx = moved[park.idx]

    def release(self) -> None:
        """Let those blocks go on whose barriers are complete."""
        for number in sorted({park.number for park in self._parks}):
            self._release(number)

    def _release(self, number: int) -> None:
        m = self._machine
        parks = [park for park in self._parks if park.number == number]
        waiting = np.concatenate([park.idx for park in parks])
        here = np.bincount(m.block[waiting], minlength=m.blocks)
        complete = (here > 0) & (here == np.bincount(m.block, minlength=m.blocks))
        arrived = self._arrived.get(number)
        if arrived is not None or any(park.count is not None for park in parks):
            came, counts = (0, np.zeros(m.blocks, np.int64)) if arrived is None else arrived
            wanted = self._wanted(parks, np.where(np.equal(came, 0), 0, counts))
            enough = (here > 0) & (self._threads(waiting) + came >= wanted)
            complete = np.where(wanted > 0, enough, complete)
        if not complete.any():
            return
        if arrived is not None:
            self._keep(number, np.where(complete, 0, arrived[0]), arrived[1])
        values = self._reduce(parks, complete)
        m.passed_barrier(complete)
        held_idx, held_count = m.idx, m.count
        for park in parks:
            going = complete[m.block[park.idx]]
            idx = park.idx[going]
            if not idx.size:
                continue
            if park.reduction is not None and values is not None:
                m.activate(idx)
                park.reduction.write(m, values[m.block[idx]])
            m.defer(park.following, idx)
            stay = np.invert(going)
            park.idx = park.idx[stay]
            if park.flags is not None:
                park.flags = park.flags[stay]
        m.idx, m.count = held_idx, held_count
        self._parks = [park for park in self._parks if park.idx.size]

    def _wanted(self, parks: list[_Park], arrived: Array) -> Array:
        """Return the count that each block's threads have named, the least if they differ; 0 for none."""
        none = 1 << 30
        wanted = np.full(arrived.shape[0], none)
        for park in parks:
            if park.count is not None:
                blocks = self._machine.block[park.idx]
                wanted[blocks] = np.minimum(wanted[blocks], park.count)
        return np.where(wanted == none, arrived, wanted)

    def _reduce(self, parks: list[_Park], complete: Array) -> Array | None:
        kinds = {park.reduction.kind for park in parks if park.reduction is not None}
        if not kinds:
            return None
        m = self._machine
        total = np.zeros(m.blocks, np.int64)
        true = np.zeros(m.blocks, np.int64)
        for park in parks:
            if park.flags is not None:
                total += np.bincount(m.block[park.idx], minlength=m.blocks)
                true += np.bincount(m.block[park.idx[park.flags]], minlength=m.blocks)
        if "popc" in kinds:
            return true.astype(np.uint32)
        return true == total if "and" in kinds else true > 0

    def deadlock(self) -> NoReturn:
        """Raise Deadlock for the first lane that is parked for ever."""
        m = self._machine
        park = min(self._parks, key=lambda one: int(one.idx[0]))
        lane = int(park.idx[0])
        block = int(m.block[lane])
        here = int(np.count_nonzero(m.block[park.idx] == block))
        live = int(np.count_nonzero(m.block == block))
        wanted = park.count if park.count is not None else live
        lines = sorted({one.ins.line for one in self._parks if one is not park and block in m.block[one.idx]})
        elsewhere = f"; others wait at line {', '.join(map(str, lines))}" if lines else ""
        m.deadlock(
            park.ins,
            f"{here} threads wait at barrier {park.number} for {wanted}, {live} threads of the block are left, "
            f"and none of them will come{elsewhere}",
            lane,
        )
