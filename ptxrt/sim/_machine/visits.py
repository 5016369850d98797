"""Which lines of a text ran, and which ways of its branches: what a report of coverage is made of.

A launch with Visits runs another copy of the decoded code, in which each instruction notes itself; without one nothing
is noted and nothing is slower.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from ptxrt.sim._machine.branches import Target
from ptxrt.sim._machine.code import Block, Code, End, Step
from ptxrt.sim._machine.profile import held_lanes
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Instruction

__all__ = ["Visits", "Way", "lines_and_ways"]

_BRANCHES = ("bra", "ret", "exit")


class Way(NamedTuple):
    """One of the two ways of a bra, ret or exit under a guard.

    Attributes
    ----------
    line
        Its line in the text, from 1.
    held
        Whether it is the way of lanes for which the guard holds.
    """

    line: int
    held: bool


@dataclass(eq=False)
class Visits:
    """What ran in one launch or several; hand it to `ptxrt.sim.launch`.

    Attributes
    ----------
    lines
        Lines of the text of which an instruction ran in some lane: a guard held there, or it is a branch's.
    ways
        The ways that some lane went.
    """

    lines: set[int] = field(default_factory=set)
    ways: set[Way] = field(default_factory=set)

    def noting(self, code: Code) -> Code:
        """Return a copy of decoded code that notes here what runs."""
        return replace(code, blocks=[self._noting(block) for block in code.blocks])

    def _noting(self, block: Block) -> Block:
        marks = zip(block.steps, block.marks, strict=True)
        steps = tuple(self._step(step, ins, slot) for step, (ins, slot) in marks)
        return replace(block, steps=steps, end=self._end(block) if _ends(block) else block.end)

    def _step(self, step: Step, ins: Instruction, slot: int | None) -> Step:
        def noted(m: Machine) -> None:
            self._note(m, ins, slot)
            step(m)

        return noted

    def _end(self, block: Block) -> End:
        end, ins, slot = block.end, _last(block), None if block.fork is None else block.fork.slot
        note = partial(self._note, ins=ins, slot=slot)
        if slot is not None and ins.name in _BRANCHES:
            note = partial(self._note_branch, ins=ins, slot=slot)

        def noted(m: Machine) -> int:
            note(m)
            return end(m)

        return noted

    def _note(self, m: Machine, ins: Instruction, slot: int | None) -> None:
        """Note an instruction that does nothing where its guard, in this slot, fails."""
        if slot is None or (ins.line not in self.lines and held_lanes(m, slot, ins.guard_negated)):
            self.lines.add(ins.line)

    def _note_branch(self, m: Machine, ins: Instruction, slot: int) -> None:
        self.lines.add(ins.line)
        held, failed = Way(ins.line, True), Way(ins.line, False)
        if not (held in self.ways and failed in self.ways):
            count = held_lanes(m, slot, ins.guard_negated)
            self.ways |= {held} if count == m.count else {failed} if count == 0 else {held, failed}


def lines_and_ways(code: Code) -> tuple[set[int], dict[Way, set[int | None]]]:
    """Return what `Visits` of this code can note.

    Returns
    -------
    lines
        The lines with an instruction for which the machine does something.
    ways
        The ways of each branch, and in which line lanes that go it run next, in each place where the code of its line
        stands; None is out of the function.
    """
    lines = {ins.line for block in code.blocks for ins, _ in block.marks}
    ways: dict[Way, set[int | None]] = {}
    for block in filter(_ends, code.blocks):
        ins, fork = _last(block), block.fork
        lines.add(ins.line)
        if fork is not None and ins.name in _BRANCHES:
            ways.setdefault(Way(ins.line, True), set()).add(_first_line(code, fork.held))
            ways.setdefault(Way(ins.line, False), set()).add(_first_line(code, fork.failed))
    return lines, ways


def _ends(block: Block) -> bool:
    """Tell whether a block's end is an instruction of its own."""
    return block.last is not None and block.cost > len(block.steps)


def _last(block: Block) -> Instruction:
    if block.last is None:
        raise RuntimeError("a block without instructions has no last one")
    return block.last


def _first_line(code: Code, target: Target) -> int | None:
    """Return the line of a block's first instruction; None for a block that only leaves the function."""
    block = code.blocks[target.block]
    if block.marks:
        return block.marks[0][0].line
    return _last(block).line if _ends(block) else None
