"""Counts per line of the text: instructions and lanes, sectors of global memory, bank conflicts of shared memory.

A launch with a Profile runs another copy of the decoded code, in which each instruction counts itself; without one
nothing is counted and nothing is slower. docs/sim.md defines each count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import numpy as np

from ptxrt.sim._machine.access import Access, Piece
from ptxrt.sim._machine.allocations import Allocation
from ptxrt.sim._machine.code import Block, Code, Step
from ptxrt.sim._machine.protocol import Lanes, Machine
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["LineCounts", "Profile", "held_lanes", "instrument"]

SECTOR = 32
"""Bytes of the smallest piece that global memory moves."""

BANKS = 32
"""Banks of shared memory, each 4 bytes wide."""


@dataclass
class LineCounts:
    """What the instructions of one line did.

    Attributes
    ----------
    issued
        Warp-instructions: once for each warp of which a lane came by.
    lanes
        Lane-instructions: lanes that came by and whose guard held.
    global_requests, global_bytes
        Accesses to global memory, one a warp; bytes that their lanes asked for.
    sectors, least_sectors
        Distinct 32-byte sectors of each request; the fewest that its distinct bytes would fit in.
    shared_requests
        Accesses to shared memory, one a warp.
    wavefronts, least_wavefronts
        Turns that the 32 banks need for them; and without conflicts.
    atomic_extra
        Turns that atomics of one warp to one address wait for each other.
    """

    issued: int = 0
    lanes: int = 0
    global_requests: int = 0
    global_bytes: int = 0
    sectors: int = 0
    least_sectors: int = 0
    shared_requests: int = 0
    wavefronts: int = 0
    least_wavefronts: int = 0
    atomic_extra: int = 0

    @property
    def active(self) -> float | None:
        """Lanes of a warp that took part, on average, of 32."""
        return self.lanes / self.issued if self.issued else None

    @property
    def efficiency(self) -> float | None:
        """Least sectors by sectors moved: 1 is the best."""
        return self.least_sectors / self.sectors if self.sectors else None

    @property
    def conflicts(self) -> int:
        """Turns of shared memory above those that would be needed without conflicts."""
        return self.wavefronts - self.least_wavefronts

    def add_requests(self, parts: list[tuple[int, Array]]) -> None:
        """Add requests to global memory: the size of an access, and ascending addresses, one row a warp."""
        # Accesses are aligned to their size, so none crosses a sector, and no two of a part overlap but wholly.
        rows = parts[0][1] if len(parts) == 1 else _sorted(np.concatenate([rows for _, rows in parts], axis=1))
        asked = np.sum([_distinct(rows) * size for size, rows in parts], axis=0)
        self.global_requests += int(np.count_nonzero(asked))
        self.sectors += int(_distinct(rows >> _SECTOR_BITS).sum())
        self.least_sectors += int((-(-asked // SECTOR)).sum())

    def add(self, counts: LineCounts) -> None:
        """Add another line's counts."""
        for one in fields(self):
            setattr(self, one.name, getattr(self, one.name) + getattr(counts, one.name))


@dataclass(eq=False)
class Profile:
    """The counts of one launch or several; hand it to `ptxrt.sim._launch`.

    Attributes
    ----------
    lines
        By line of the text, from 1; lines that never ran have zeros, or are missing.
    warps
        Warps that the basic block runs for which runs now.
    """

    lines: dict[int, LineCounts] = field(default_factory=dict)
    warps: int = field(default=0, repr=False)
    _parts: list[tuple[int, Array]] | None = field(default=None, repr=False)

    def line(self, number: int) -> LineCounts:
        """Return the counts of a line, made if need be."""
        return self.lines.setdefault(number, LineCounts())

    def total(self) -> LineCounts:
        """Return the sum over all lines."""
        total = LineCounts()
        for line in self.lines.values():
            total.add(line)
        return total

    def enter(self, m: Lanes) -> None:
        """Note that the active lanes begin a basic block."""
        self.warps = _warps(m)

    def global_access(self, m: Lanes, access: Access, pieces: list[Piece]) -> None:
        """Count an access of the active lanes to global memory."""
        (store, at, lanes), *more = pieces
        if more or lanes is not None:
            at = np.full(m.count, -1, np.int64)
            for store, inside, lanes in pieces:
                if isinstance(store, Allocation) and not store.is_const:
                    at[slice(None) if lanes is None else lanes] = inside + store.base
        elif not isinstance(store, Allocation) or store.is_const:
            return  # the constant cache is no business of sectors
        counts = self.line(access.ins.line)
        if at.shape[0] != m.count:
            warps = _warps(m)
            counts.global_requests += warps
            counts.global_bytes += m.count * access.size
            counts.sectors += warps
            counts.least_sectors += warps
            counts.atomic_extra += m.count - warps if access.atomic else 0
            return
        # Bases of allocations are multiples of a sector, so places in one serve as well as addresses do.
        rows = _rows(m, at, 32)
        counts.global_bytes += int(np.count_nonzero(at >= 0)) * access.size
        if access.atomic:
            counts.atomic_extra += _serial(rows)
        if self._parts is None:
            counts.add_requests([(access.size, rows)])
        else:
            self._parts.append((access.size, rows))

    def in_parts(self, step: Step, line: LineCounts) -> Step:
        """Return the step, its accesses to global memory counted as parts of one request a warp."""

        def whole(m: Machine) -> None:
            parts: list[tuple[int, Array]] = []
            self._parts = parts
            try:
                step(m)
            finally:
                self._parts = None
            if parts:
                line.add_requests(parts)

        return whole

    def shared_access(self, m: Lanes, access: Access, place: Array) -> None:
        """Count an access of the active lanes at these bytes of their blocks' shared memory."""
        if access.ins.name == "cp" and not access.pending:
            return  # what has been copied arrives, and was counted when the copy began
        counts = self.line(access.ins.line)
        if place.shape[0] != m.count:
            place = np.repeat(place, m.count)
        counts.shared_requests += _warps(m)
        # 32 lanes of up to 4 bytes go at once; of 8 bytes 16 lanes, of 16 bytes 8.
        wide = max(access.size // 4, 1)
        rows = _rows(m, place, 32 // wide) >> 2
        if wide > 1:
            rows = np.where(rows < 0, -1, rows)[:, :, None] + np.where(rows < 0, 0, 1)[:, :, None] * np.arange(wide)
            rows = _sorted(rows.reshape(rows.shape[0], -1))
        distinct = _distinct(rows)
        turns = int(np.count_nonzero(distinct))
        counts.least_wavefronts += turns
        counts.wavefronts += turns if int(distinct.max()) == 1 else _wavefronts(rows)
        if access.atomic:
            counts.atomic_extra += _serial(_rows(m, place, 32))


_SECTOR_BITS = SECTOR.bit_length() - 1


def _rows(m: Lanes, value: Array, together: int) -> Array:
    """Return values of the active lanes, one row for so many neighbours, each ascending; -1 where no lane is active."""
    if m.count == m.blocks * m.padded:
        return _sorted(value.reshape(-1, together))
    spread = np.full(m.blocks * m.padded, -1, np.int64)
    spread[m.of_active(m.origin)] = value
    return _sorted(spread.reshape(-1, together))


def _sorted(rows: Array) -> Array:
    return rows if bool((rows[:, 1:] >= rows[:, :-1]).all()) else np.sort(rows, axis=1)


def _first_of_each(rows: Array) -> Array:
    """Tell, in ascending rows, where a value that is none of the absent -1 stands for the first time."""
    first = np.empty(rows.shape, np.bool_)
    first[:, 0] = rows[:, 0] >= 0
    # What differs from the one before it is larger, hence no -1.
    np.not_equal(rows[:, 1:], rows[:, :-1], out=first[:, 1:])
    return first


def _distinct(rows: Array) -> Array:
    """Return how many different values each ascending row has, -1 left out."""
    return np.asarray(np.count_nonzero(_first_of_each(rows), axis=1))


def _wavefronts(rows: Array) -> int:
    """Return, summed over ascending rows of words, the most different words that one bank has."""
    first = _first_of_each(rows)
    bank = (rows & (BANKS - 1)) + np.arange(rows.shape[0])[:, None] * BANKS
    load = np.bincount(bank[first], minlength=rows.shape[0] * BANKS)
    return int(load.reshape(-1, BANKS).max(axis=1).sum())


def _serial(rows: Array) -> int:
    """Return, summed over ascending rows of addresses, how many lanes stand behind the first at the fullest one."""
    behind = 0
    for distance in range(1, rows.shape[1]):
        # Some address is there more than `distance` times.
        crowded = (rows[:, distance:] == rows[:, :-distance]) & (rows[:, distance:] >= 0)
        found = int(np.count_nonzero(crowded.any(axis=1)))
        if not found:
            break
        behind += found
    return behind


def instrument(code: Code, profile: Profile) -> Code:
    """Return a copy of decoded code that counts itself into `profile`."""
    return replace(code, blocks=[_instrumented(block, profile) for block in code.blocks])


def _instrumented(block: Block, profile: Profile) -> Block:
    steps: list[Step] = []
    previous = None
    for step, (ins, slot) in zip(block.steps, block.marks, strict=True):
        # cp.async that fills up with zeros reads piece by piece; and an instruction may be several steps.
        whole = profile.in_parts(step, profile.line(ins.line)) if ins.name == "cp" else step
        steps.append(whole if ins is previous else _counted(whole, profile, ins, slot))
        previous = ins
    end = block.end
    if block.last is not None and block.cost > len(block.steps):
        end = _counted(end, profile, block.last, None)
    return replace(block, steps=(profile.enter, *steps), end=end, marks=())


Result = TypeVar("Result")


def _counted(
    do: Callable[[Machine], Result], profile: Profile, ins: Instruction, slot: int | None
) -> Callable[[Machine], Result]:
    """Return what counts an instruction and does it; `slot` is its guard's, where the steps look at it themselves."""
    line, negated = profile.line(ins.line), ins.guard_negated

    def counted(m: Machine) -> Result:
        line.issued += profile.warps
        line.lanes += m.count if slot is None else held_lanes(m, slot, negated)
        return do(m)

    return counted


def held_lanes(m: Machine, slot: int, negated: bool) -> int:
    """Return for how many of the active lanes a guard holds."""
    flags = m.regs[slot]
    if flags.shape[0] == 1:
        return m.count if bool(flags[0]) is not negated else 0
    held = int(np.count_nonzero(m.of_active(flags)))
    return m.count - held if negated else held


def _warps(m: Lanes) -> int:
    """Return how many warps the active lanes belong to."""
    shape = m.shape
    if m.count == m.blocks * shape.threads:
        return m.blocks * shape.warps
    warp = m.of_active(m.origin) >> 5
    return 1 + int(np.count_nonzero(warp[1:] != warp[:-1]))
