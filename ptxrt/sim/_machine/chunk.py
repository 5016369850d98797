"""One chunk of blocks in execution: every thread of it is a lane, and every register is one array over the lanes.

Lanes with the same program counter form a group and run together; of several groups the one with the lowest counter
runs first, so that the ways of a branch meet again where the text lets them. Lanes in a loop that waits for memory to
change come last. A register that holds the same value in
every lane is an array of shape (1,), and costs next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TextIO

import numpy as np

from ptxrt.sim._machine.allocations import Allocation, Store
from ptxrt.sim._machine.async_copies import AsyncCopies
from ptxrt.sim._machine.barriers import Barriers
from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.call_stack import CallStack
from ptxrt.sim._machine.checks import OFF_SWITCH, Allowance
from ptxrt.sim._machine.cluster_barriers import ClusterBarriers
from ptxrt.sim._machine.cluster_races import ClusterRaces
from ptxrt.sim._machine.code import Code, SpecialStart, SymbolStart
from ptxrt.sim._machine.element_types import Elements
from ptxrt.sim._machine.global_races import GlobalRaces
from ptxrt.sim._machine.last_write import LastWrite
from ptxrt.sim._machine.memory import GlobalMemory
from ptxrt.sim._machine.printed import Printed
from ptxrt.sim._machine.profile import Profile
from ptxrt.sim._machine.races import Races
from ptxrt.sim._machine.reports import Reports
from ptxrt.sim._machine.shape import Shape
from ptxrt.sim._machine.special_values import special_values
from ptxrt.sim._machine.warp_barriers import WarpBarriers
from ptxrt.sim._text.lexer import Source
from ptxrt.sim._text.syntax import Instruction, Variable
from ptxrt.sim._text.types import Array
from ptxrt.sim._text.windows import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW

__all__ = ["Chunk", "Job"]

_TURN = 512
_PATIENCE = 64
"""Every so many blocks of divergent code, the group furthest ahead runs alone for a while: a lane may be waiting in a
loop for what another will do, and the loop may count its turns, so that it is none of those that poll."""
_POLL = 64
"""Every so many blocks of divergent code, a group whose loop waits for memory to change looks again."""


@dataclass(frozen=True, eq=False)
class Job:
    """What all chunks of one launch have in common."""

    source: Source
    code: Code
    shape: Shape
    workspace: int
    """Address of what the grid waits in; 0 where its blocks cannot wait for each other."""
    memory: GlobalMemory
    addresses: dict[Variable, int]
    params: Store
    budget: int | None
    races: bool
    elements: dict[Allocation, Elements]
    checks: frozenset[str]
    allowance: Allowance | None
    global_races: GlobalRaces | LastWrite | None
    profile: Profile | None
    output: TextIO | None
    arch: int


class Chunk(Reports):
    """The state of one chunk: what ``protocol.Machine`` stands for."""

    def __init__(self, job: Job, first_block: int, blocks: int) -> None:
        shape = job.shape
        self.source, self.layout, self.shape, self.memory = job.source, job.code, shape, job.memory
        self.params, self.addresses, self.elements = job.params, job.addresses, job.elements
        self.checks, self.profile, self.arch = job.checks, job.profile, job.arch
        self.workspace = job.workspace
        self._allowance = job.allowance
        self.written: list[Array] | None = None
        self.off_switch = None if job.allowance is None else OFF_SWITCH
        looking = job.allowance is None or job.allowance.there_is
        self.global_races = job.global_races if looking else None
        self.first_block = first_block
        self.blocks = blocks
        self.padded = shape.warps * 32
        self.n = self.count = blocks * shape.threads
        self.idx: Array | None = None
        self.block = np.repeat(np.arange(blocks), shape.threads)
        self.origin = self.block * self.padded + np.tile(np.arange(shape.threads), blocks)
        self.shared_stride = -(-max(shape.shared_total, 1) // 16) * 16
        self.shared = Store(np.full(self.shared_stride * blocks, 0xCD, np.uint8))
        self.local = Store(np.full(job.code.local_stride * blocks * self.padded, 0xCD, np.uint8))
        self.regs: list[Array] = [self._start(start) for start in job.code.slots]
        self.waiting: dict[int, Array] = {}
        self.marks = looking and "uninitialised" in job.checks
        self.shared_marks = Store(np.zeros(self.shared.bytes.size, np.uint8)) if self.marks else None
        if shape.shared_reserved:  # a GPU's system clears it
            for store, value in ((self.shared, 0), (self.shared_marks, 1)):
                if store is not None:
                    own = store.bytes.reshape(blocks, self.shared_stride)
                    own[:, shape.shared_total - shape.shared_reserved : shape.shared_total] = value
        self.watched = self.marks or self.global_races is not None
        if self.global_races is not None:
            self.global_races.begin(self)
        self.barriers = Barriers(self)
        self.warp_barriers = WarpBarriers(self)
        self.cluster_barriers = ClusterBarriers(self)
        self._calls: CallStack | None = None
        self._copies: AsyncCopies | None = None
        self.printed = Printed(job.output)
        self.races: Races | None = None
        if job.races and job.code.shared_word and shape.shared_total and shape.threads > 1:
            self.races = Races(self, job.code.shared_word)
        self.cluster_races: ClusterRaces | None = None
        if self.races is not None and shape.cluster_blocks > 1:
            self.cluster_races = ClusterRaces(self, job.code.shared_word)
        self.issued = 0
        self.lane_instructions = 0
        self._code = job.code
        self._limit = (1 << 23) // (1 + self.n // 8192) if job.budget is None else job.budget
        self._ready: dict[int, Array] = {}
        self._turns = self._polled = 0
        self._positions: Array | None = None

    def _start(self, start: Array | SpecialStart | SymbolStart) -> Array:
        if isinstance(start, SpecialStart):
            return special_values(start.name, self.shape, self.first_block, self.blocks, self.workspace)
        if isinstance(start, SymbolStart):
            variable = start.variable
            if variable.space in ("global", "const"):
                address = self.addresses[variable]
            else:
                window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}[variable.space]
                place = self.layout.shared_places.get(variable, variable.offset)
                address = place + (window if start.generic else 0)
            width = start.dtype.itemsize
            return np.array([(address + start.addend) & ((1 << 8 * width) - 1)], f"u{width}").view(start.dtype)
        return start

    @property
    def calls(self) -> CallStack:
        """The stack of the functions that are not inlined."""
        if self._calls is None:
            self._calls = CallStack(self)
        return self._calls

    @property
    def copies(self) -> AsyncCopies:
        """The asynchronous copies under way."""
        if self._copies is None:
            self._copies = AsyncCopies(self)
        return self._copies

    def looked(self, nbytes: int) -> None:
        """Count so many bytes that the checks have looked at; where there was a bound to that, they end past it."""
        if self._allowance is not None and not self._allowance.spend(nbytes):
            self.marks = self.watched = False
            self.shared_marks = self.global_races = None

    # -- what orders accesses -----------------------------------------------------------------------------------------

    def passed_barrier(self, blocks: Array | None) -> None:
        """Tell the race models that these blocks (all for None) have passed a barrier."""
        if self.races is not None:
            self.races.barrier(blocks)
        if self.cluster_races is not None:
            self.cluster_races.barrier(blocks)
        if self.global_races is not None:
            self.global_races.barrier(blocks)

    def synchronised_warps(self) -> None:
        """Tell the race models that the warps of the active lanes have synchronised."""
        if self.races is not None:
            self.races.warp_sync()
        if self.global_races is not None:
            self.global_races.warp_sync(self)

    def fence(self, *, wide: bool = True, of_barrier: bool = False) -> None:
        """Tell the race models that the active lanes pass a fence; `wide` if its scope is more than the block.

        `of_barrier`: it is what a cluster's barrier does, which the races of a cluster follow by themselves.
        """
        if self.races is not None:
            self.races.fence()
        if self.cluster_races is not None and not of_barrier:
            self.cluster_races.fence(wide=wide)
        if self.global_races is not None:
            self.global_races.fence(self, wide=wide)

    # -- registers -----------------------------------------------------------------------------------------------

    def put(self, slot: int, value: Array) -> None:
        """Write the active lanes of a slot, when not all lanes are active."""
        held = self.regs[slot]
        if held.shape[0] != self.n:
            held = self.regs[slot] = np.repeat(held, self.n)
        held[self.idx] = value

    def set(self, slot: int, value: Array) -> None:
        """Write the active lanes of a slot; the array becomes the register's."""
        if self.idx is None:
            self.regs[slot] = value
        else:
            self.put(slot, value)

    def active(self) -> Array:
        """Return the indices of the active lanes."""
        return np.arange(self.n) if self.idx is None else self.idx

    def of_active(self, per_lane: Array) -> Array:
        """Return the active lanes' part of an array over all lanes."""
        return per_lane if self.idx is None else per_lane[self.idx]

    def spread(self, value: Array) -> Array:
        """Return a value read by a getter as one of shape (active,)."""
        return value if value.shape[0] == self.count else np.repeat(value, self.count)

    def positions(self) -> Array:
        """Return the lane at each padded place of the chunk, -1 where none is (any more)."""
        if self._positions is None:
            self._positions = np.full(self.blocks * self.padded, -1, np.int64)
            self._positions[self.origin] = np.arange(self.n)
        return self._positions

    def clock(self, name: str) -> Array:
        """Return a clock register: instructions executed so far."""
        if name.endswith("_hi"):
            return np.array([self.issued >> 32 & 0xFFFFFFFF], np.uint32)
        if name in ("%clock64", "%globaltimer"):
            return np.array([self.issued], np.uint64)
        return np.array([self.issued & 0xFFFFFFFF], np.uint32)

    # -- groups --------------------------------------------------------------------------------------------------

    def activate(self, idx: Array | None) -> None:
        """Make these lanes the active ones."""
        if idx is None or idx.shape[0] == self.n:
            self.idx, self.count = None, self.n
        else:
            self.idx, self.count = idx, idx.shape[0]

    def merge(self, first: Array, second: Array) -> Array:
        """Return the union of two groups, ascending."""
        flags = np.zeros(self.n, np.bool_)
        flags[first] = True
        flags[second] = True
        return flags.nonzero()[0]

    def defer(self, block: int, idx: Array) -> None:
        """Let a group run later from `block`."""
        held = self._ready.get(block)
        self._ready[block] = idx if held is None else self.merge(held, idx)

    def split(self, slot: int, when: bool, target: int, following: int) -> int:
        """Send the active lanes whose predicate equals `when` to `target`, and go on with the others."""
        flags = self.regs[slot]
        if flags.shape[0] == 1:
            return target if bool(flags[0]) is when else following
        idx = self.idx
        if idx is not None:
            flags = flags[idx]
        yes = int(np.count_nonzero(flags))
        if yes in (0, flags.shape[0]):
            return target if (yes > 0) is when else following
        holds = flags.nonzero()[0]
        fails = np.invert(flags).nonzero()[0]
        jumping, staying = (holds, fails) if when else (fails, holds)
        if idx is not None:
            jumping, staying = idx[jumping], idx[staying]
        self.defer(target, jumping)
        self.activate(staying)
        return following

    def exit(self) -> int:
        """Take the active lanes out of the chunk."""
        if self.idx is None:
            self.n = self.count = 0
            return GONE
        stays = np.ones(self.n, np.bool_)
        stays[self.idx] = False
        remaining = stays.nonzero()[0]
        moved = np.cumsum(stays) - 1
        before = self.n
        self.regs = [value if value.shape[0] != before else value[remaining] for value in self.regs]
        self.origin = self.origin[remaining]
        self.block = self.block[remaining]
        self._positions = None
        if self.races is not None:
            self.races.changed()
        self.n = remaining.shape[0]
        self._ready = {block: moved[idx] for block, idx in self._ready.items()}
        waiting, self.waiting = self.waiting, {}
        for block, idx in waiting.items():
            # Whom they wait for may just have left.
            self.defer(block, moved[idx])
        for barriers in (self.barriers, self.warp_barriers, self.cluster_barriers):
            barriers.renumber(moved)
            barriers.release()
        return GONE

    def run(self) -> None:
        """Run until every lane has exited."""
        blocks = self._code.blocks
        budget = self._limit
        at = 0
        while True:
            block = blocks[at]
            for step in block.steps:
                step(self)
            self.issued += block.cost
            self.lane_instructions += block.cost * self.count
            if self.issued > budget:
                self._out_of_budget(block.last, budget)
            following = block.end(self)
            if self._ready or following < 0:
                following = self._choose(following)
                if following < 0:
                    return
            at = following

    def _choose(self, following: int) -> int:
        """Return the block to run next and make its group active; `following` is where the active lanes would go."""
        self._turns += 1
        if following >= 0:
            if following in self._ready:
                self.activate(self.merge(self._ready.pop(following), self.active()))
                if not self._ready:
                    return following
            chosen = self._first([*self._ready, following], following)
            if chosen == following:
                return following
            self.defer(following, self.active())
        elif self._ready:
            chosen = self._first([*self._ready], following)
        else:
            if self.n == 0:
                return GONE
            self._stalled()
        self.activate(self._ready.pop(chosen))
        return chosen

    def _first(self, groups: list[int], following: int) -> int:
        """Return which of the groups runs next, each by its block."""
        if polling := self._code.polling.intersection(groups):
            if len(polling) == len(groups) or self._turns % _POLL == 0:
                self._polled = min((block for block in polling if block > self._polled), default=min(polling))
                return self._polled
            groups = [block for block in groups if block not in polling]
        patient = self._turns % _TURN - (_TURN - _PATIENCE)
        if patient < 0 or following not in groups:
            return min(groups)
        return following if patient else max([block for block in groups if block != following] or groups)

    # -- what ends a run ---------------------------------------------------------------------------------------------

    def _out_of_budget(self, ins: Instruction | None, budget: int) -> NoReturn:
        if ins is None:
            raise RuntimeError("a block without instructions spent the budget")
        self.deadlock(
            ins,
            f"an endless loop? {budget} instructions were not enough",
            int(self.active()[0]),
            fix="Set PTXRT_SIM_BUDGET, or the launch's budget, to more if the loop does end",
        )

    def _stalled(self) -> NoReturn:
        blocks = self._code.blocks
        if self.waiting:
            at, idx = min(self.waiting.items(), key=lambda item: int(item[1][0]))
            ins = blocks[at].last
            if ins is not None:
                self.deadlock(
                    ins, f"{ins.name} waits for lanes of its warp that its mask names and that never come", int(idx[0])
                )
        if self.warp_barriers:
            self.warp_barriers.deadlock()
        if self.cluster_barriers:
            self.cluster_barriers.deadlock()
        self.barriers.deadlock()
