"""Decoded code: basic blocks of steps, and what each slot of the register file starts with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ptxrt.sim._text.program import Instruction, Variable

if TYPE_CHECKING:
    from ptxrt.sim._machine.lanes import Lanes

__all__ = ["GONE", "Block", "Code", "End", "SlotStart", "Step", "Target"]

Step = Callable[["Lanes"], None]
"""One instruction over the active lanes."""

End = Callable[["Lanes"], int]
"""The last instruction of a basic block: answers the next block of the active lanes, or GONE."""

GONE = -1
"""No lane goes on: all have exited, or wait."""


@dataclass(eq=False)
class Target:
    """A place in the code, known once everything before it is decoded."""

    block: int = GONE


@dataclass(frozen=True, eq=False)
class Block:
    """A basic block.

    Attributes
    ----------
    steps, end
        What it does.
    cost
        How many instructions that is.
    last
        Its last instruction, for reports.
    marks
        Each step's instruction and the slot of its guard, for a profile.
    """

    steps: tuple[Step, ...]
    end: End
    cost: int
    last: Instruction | None
    marks: tuple[tuple[Instruction, int | None], ...] = ()


@dataclass(frozen=True)
class SpecialStart:
    """The slot holds a special register."""

    name: str


@dataclass(frozen=True)
class SymbolStart:
    """The slot holds the address of a variable, plus a constant, in this dtype; `generic` for its generic address."""

    variable: Variable
    addend: int
    dtype: np.dtype[np.generic]
    generic: bool


SlotStart = np.ndarray | SpecialStart | SymbolStart
"""What a slot holds when a chunk starts; an array of shape (1,) is a constant, or a register's poison."""


@dataclass(eq=False)
class Code:
    """The decoded body of one entry, called functions inlined."""

    entry: str
    blocks: list[Block] = field(default_factory=list)
    slots: list[SlotStart] = field(default_factory=list)
    lane_bytes: int = 0
    """Bytes of registers a lane, for the size of chunks."""
    shared_word: int = 0
    """Bytes of the narrowest access that may go to shared memory; 0 for none."""
    global_word: int = 0
    """The same for global memory."""
    float_types: set[str] = field(default_factory=set)
    """The floating-point types of accesses that may go to global memory."""
    shared_places: dict[Variable, int] = field(default_factory=dict)
    """Where in a block's shared memory each variable lies that the code names; the others of the text take no place."""
    shared_accessed: bool = False
    """Whether an access says ``.shared``, by a variable's name or by a number."""
    dynamic_offset: int = 0
    """Where dynamic shared memory begins, behind them."""
    local_bytes: int = 0
    stack_base: int = 0
    """Where in local memory the stack of functions that are not inlined begins."""
    local_variables: list[tuple[Variable, int]] = field(default_factory=list)
    """Local variables with their places, inlined functions' included."""

    @property
    def local_stride(self) -> int:
        """Bytes from one lane's local memory to the next one's, so that each is aligned."""
        return -(-self.local_bytes // 16) * 16
