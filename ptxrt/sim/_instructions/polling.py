"""Loops that wait for memory to change, such as the ones around ``ld.acquire`` or a compare-and-swap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ptxrt.sim._machine.code import Block
from ptxrt.sim._text.syntax import Address, Instruction, Negated, Pair, Register, Tuple

__all__ = ["polls"]

_WITHOUT_RESULT = ("st", "red", "bra", "bar", "barrier", "call")


def polls(blocks: Sequence[Block], marks: Sequence[tuple[Instruction, int | None]], back: Instruction) -> bool:
    """Tell whether a loop changes no register that its next turn reads: then only memory can end it.

    It is a guess, by the order of the text: it decides who goes first, and no result.

    Parameters
    ----------
    blocks
        Of the loop, all but the last.
    marks, back
        The last block's instructions, and the branch back.
    """
    body = [ins for block in blocks for ins, _ in block.marks] + [ins for ins, _ in marks]
    body += [block.last for block in blocks if block.last is not None and block.fork is not None] + [back]
    written: set[Register] = set()
    carried: set[Register] = set()
    for ins in body:
        if ins.name == "st" and not {"global", "shared"} & set(ins.modifiers):
            return False  # to a thread's own memory, where it may count
        results = set() if ins.name in _WITHOUT_RESULT else set(_registers(ins.operands[:1]))
        carried |= {*_registers(ins.operands[1 if results else 0 :]), *_registers((ins.guard,))} - written
        written |= results
    return not carried & written


def _registers(operands: Sequence[object]) -> Iterator[Register]:
    for operand in operands:
        if isinstance(operand, Register):
            yield operand
        elif isinstance(operand, Address):
            yield from _registers((operand.base,))
        elif isinstance(operand, Negated):
            yield from _registers((operand.operand,))
        elif isinstance(operand, Pair):
            yield from _registers((operand.first, operand.second))
        elif isinstance(operand, Tuple):
            yield from _registers(operand.items)
