"""What a chunk raises when a lane is at fault: always with entry, line, text, thread and block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

from ptxrt.errors import DataRace, Deadlock, LaunchError, MemoryFault, SimFault
from ptxrt.sim._machine.spaces import nearest
from ptxrt.sim._text.program import Instruction
from ptxrt.sim._text.types import Array

if TYPE_CHECKING:
    from ptxrt.sim._machine.lanes import Job, Lanes

__all__ = ["Reports", "Trap"]


class Trap(SimFault, LaunchError):
    """What ``trap`` raises: a launch that failed, as on a GPU, with the fields of a fault."""


class Reports:
    """The part of Lanes that words faults."""

    job: Job
    first_block: int
    padded: int
    origin: Array

    def active(self) -> Array:
        """Return the indices of the active lanes."""
        raise NotImplementedError

    def place(self, lane: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return thread and block index of a lane."""
        origin = int(self.origin[lane])
        shape = self.job.shape
        return (
            shape.thread_index(origin % self.padded),
            shape.block_index(self.first_block + origin // self.padded),
        )

    def _where(self, ins: Instruction, lane: int) -> dict[str, Any]:
        """Return the fields that every fault has; `lane` counts among all lanes present."""
        thread, block = self.place(lane)
        text = self.job.program.source.line_text(ins.line)
        return {"entry": self.job.code.entry, "line": ins.line, "text": text, "thread": thread, "block": block}

    def memory_fault(
        self,
        ins: Instruction,
        problem: str,
        lane: int,
        address: int,
        size: int,
        nearest: str,
        fix: str | None = None,
    ) -> NoReturn:
        """Raise MemoryFault; `lane` counts among all lanes present."""
        raise MemoryFault(
            problem,
            **self._where(ins, lane),
            address=address,
            size=size,
            nearest=nearest,
            fix=fix,
        )

    def fault(self, ins: Instruction, problem: str, lane: int) -> NoReturn:
        """Raise a SimFault that is neither of memory nor a race nor a deadlock."""
        raise SimFault(problem, **self._where(ins, lane))

    def race(self, problem: str, ins: Instruction, lane: int, address: int, size: int, other: Instruction,
             other_thread: int) -> NoReturn:  # fmt: skip
        """Raise DataRace between a lane and another thread.

        For global memory `problem` says in words where that is; in shared memory, whose addresses are small, the
        variable is looked for here.
        """
        shared = address < self.job.shape.shared_total
        race = DataRace(
            problem,
            **self._where(ins, lane),
            address=address,
            size=size,
            nearest=nearest(cast("Lanes", self), "shared", address) if shared else None,
            other_line=other.line,
            other_thread=self.job.shape.thread_index(other_thread),
        )
        if not shared:
            race.nearest = self.job.memory.describe(address)
        raise race

    def deadlock(self, ins: Instruction, problem: str, lane: int, fix: str | None = None) -> NoReturn:
        """Raise Deadlock."""
        raise Deadlock(problem, **self._where(ins, lane), fix=fix)

    def trap(self, ins: Instruction, problem: str = "trap") -> NoReturn:
        """Raise what `trap` is: the launch fails."""
        raise Trap(problem, **self._where(ins, int(self.active()[0])))
