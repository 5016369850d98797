"""Decoded code: basic blocks of steps, and what each slot of the register file starts with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ptxrt.sim._machine.branches import Target
from ptxrt.sim._machine.layout import Layout
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Instruction, Variable

__all__ = ["Block", "Code", "End", "Fork", "SlotStart", "SpecialStart", "Step", "SymbolStart"]

Step = Callable[[Machine], None]
"""One instruction over the active lanes."""

End = Callable[[Machine], int]
"""The last instruction of a basic block: answers the next block of the active lanes, or GONE."""


@dataclass(frozen=True, eq=False)
class Fork:
    """How a guard parts the lanes at the end of a block: its slot, and where those go for which it holds, or fails."""

    slot: int
    held: Target
    failed: Target


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
    fork
        Where its end goes by a guard; None where there is none.
    """

    steps: tuple[Step, ...]
    end: End
    cost: int
    last: Instruction | None
    marks: tuple[tuple[Instruction, int | None], ...] = ()
    fork: Fork | None = None


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
class Code(Layout):
    """The decoded body of one entry, called functions inlined, and the layout of its memory."""

    blocks: list[Block] = field(default_factory=list)
    polling: set[int] = field(default_factory=set)
    """Blocks of loops that change no register which their next turn reads: these wait for memory to change."""
    slots: list[SlotStart] = field(default_factory=list)
    registers: int = 0
    """Registers that the entry declares, in units of 32 bits."""
    lane_bytes: int = 0
    """Bytes of registers a lane, for the size of chunks."""
