"""What a chunk raises when a lane is at fault: always with entry, line, text, thread and block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

from ptxrt.errors import AssertionFailed, DataRace, Deadlock, LaunchError, MemoryFault, SimFault
from ptxrt.sim._machine.layout import Layout
from ptxrt.sim._machine.memory import GlobalMemory
from ptxrt.sim._machine.shape import Shape
from ptxrt.sim._text.lexer import Source
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["Reports", "Trap"]


class Trap(SimFault, LaunchError):
    """What ``trap`` raises: a launch that failed, as on a GPU, with the fields of a fault."""


class Reports(ABC):
    """The part of a chunk that words faults."""

    source: Source
    shape: Shape
    layout: Layout
    memory: GlobalMemory
    workspace: int
    first_block: int
    padded: int
    origin: Array
    off_switch: str | None
    """What to say of a fault that only a check finds that nobody has asked for."""

    @abstractmethod
    def active(self) -> Array:
        """Return the indices of the active lanes."""

    def place(self, lane: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Return thread and block index of a lane."""
        origin = int(self.origin[lane])
        return (
            self.shape.thread_index(origin % self.padded),
            self.shape.block_index(self.first_block + origin // self.padded),
        )

    def _where(self, ins: Instruction, lane: int) -> dict[str, Any]:
        """Return the fields that every fault has; `lane` counts among all lanes present."""
        thread, block = self.place(lane)
        text = self.source.line_text(ins.line)
        return {
            "entry": self.layout.entry,
            "line": ins.line,
            "text": text,
            "source_place": self.source.place(ins.line),
            "thread": thread,
            "block": block,
        }

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

    def race(
        self, problem: str, ins: Instruction, lane: int, address: int, size: int, earlier: Instruction, thread: int
    ) -> NoReturn:
        """Raise DataRace between a lane and an earlier access of a thread of the block that `problem` names."""
        total = self.shape.shared_total
        shared = address < total  # global memory begins far behind
        raise DataRace(
            problem,
            **self._where(ins, lane),
            address=address,
            size=size,
            nearest=self.layout.nearest("shared", address, total) if shared else self.memory.describe(address),
            other_line=earlier.line,
            other_place=self.source.place(earlier.line),
            other_thread=self.shape.thread_index(thread),
            fix=None if shared else self.off_switch,
        )

    def deadlock(self, ins: Instruction, problem: str, lane: int, fix: str | None = None) -> NoReturn:
        """Raise Deadlock."""
        raise Deadlock(problem, **self._where(ins, lane), fix=fix)

    def trap(self, ins: Instruction, problem: str = "trap") -> NoReturn:
        """Raise what `trap` is: the launch fails."""
        fix = "grid.sync() and the like need a cooperative launch, with cooperative=True"
        wanting = self.layout.workspace_read and not self.workspace
        raise Trap(problem, **self._where(ins, int(self.active()[0])), fix=fix if wanting else None)

    def assertion(
        self, ins: Instruction, condition: str, *, file: str, line: int, function: str, threads: int
    ) -> NoReturn:
        """Raise what `assert` is where it fails, for the first of these threads."""
        raise AssertionFailed(
            condition,
            **self._where(ins, int(self.active()[0])),
            file=file,
            file_line=line,
            function=function,
            threads=threads,
        )
