"""Operands that are vectors, and how many elements an instruction takes."""

from __future__ import annotations

from ptxrt.sim._instructions.op import Op
from ptxrt.sim._text.syntax import Operand, Register, Sink, Tuple

__all__ = ["alike", "elements", "fragment", "vector"]


def vector(op: Op) -> int:
    """Return how many elements the modifier .v2, .v4 or .v8 says; 1 for none."""
    given = op.choice("v2", "v4", "v8")
    return int(given[1:]) if given else 1


def elements(op: Op, place: int, count: int) -> tuple[Operand, ...]:
    """Return the elements of an operand that is a vector, or the operand itself where `count` is 1."""
    operand = op.operand(place)
    if count == 1:
        if isinstance(operand, Tuple) and len(operand.items) == 1:
            return operand.items
        if isinstance(operand, Sink) and op.ins.name != "atom":
            op.fail(f"{op.ins.name} moves a value, which cannot be left out")
        return (operand,)
    if not isinstance(operand, Tuple) or len(operand.items) != count:
        op.fail(f"{op.ins.opcode} takes a vector of {count} elements")
    alike(op, operand)
    return operand.items


def fragment(op: Op, place: int, count: int) -> tuple[Operand, ...]:
    """Return the elements of an operand that is a vector even of one; their types may differ."""
    operand = op.operand(place)
    if not isinstance(operand, Tuple) or len(operand.items) != count:
        op.fail(f"{op.ins.name} takes a vector of {count} as operand {place + 1}")
    return operand.items


def alike(op: Op, operand: Tuple) -> None:
    """Check that the registers of a vector have one width, and one type but for signs and plain bits."""
    types = [item.type for item in operand.items if isinstance(item, Register)]
    kinds = {"integer" if kind.is_int else kind.name for kind in types if kind.kind != "b"}
    if len(kinds) > 1 or len({kind.bits for kind in types}) > 1:
        names = sorted({kind.name for kind in types})
        op.fail(f"the elements of a vector have one type, not {' and '.join(f'.{name}' for name in names)}")
