"""Extended precision: add.cc, addc, sub.cc, subc, mad.cc, madc. The carry flag is one more register of every lane.

A difference is the sum with the complement, as in hardware: the flag that it gives and takes is the carry, which is not
the borrow of which the ISA speaks.
"""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.arithmetic_int import multiply_high
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.op import getter as read_slot
from ptxrt.sim._instructions.op import setter as write_slot
from ptxrt.sim._machine.protocol import Getter, Machine, Setter
from ptxrt.sim._text.types import TYPES, Array

__all__ = ["chained"]

_KINDS = ("u32", "s32", "u64", "s64")
_PRED = TYPES["pred"]


def _flag(op: Op) -> tuple[Getter, Setter]:
    slot = op.builder.carry()
    return read_slot(slot, _PRED, _PRED), write_slot(slot, _PRED, _PRED)


@instruction("add.cc", "sub.cc", "mad.cc", "addc", "subc", "madc")
def chained(op: Op) -> None:
    """Emit an add, sub or mad that reads or writes the carry flag."""
    name = op.ins.name
    takes = name.endswith("c")
    gives = op.flag("cc")
    part = op.choice("lo", "hi") if name.startswith("mad") else None
    kind = op.type(*_KINDS)
    if name.startswith("mad") and part is None:
        op.fail(f"{name} takes .lo or .hi")
    count = 4 if part else 3
    op.done(count)
    unsigned = TYPES[f"u{kind.bits}"]
    sources = [op.source(place, kind) for place in range(1, count)]
    write = op.dest(0, unsigned)
    carry_in, carry_out = _flag(op)
    subtract = name.startswith("sub")
    dtype = unsigned.dtype

    def run(m: Machine) -> None:
        values = [source(m).view(kind.dtype) for source in sources]
        if part:
            product = values[0] * values[1] if part == "lo" else multiply_high(values[0], values[1])
            values = [product, values[2]]
        a, b = (value.view(dtype) for value in values)
        if subtract:
            b = np.invert(b)
        c = carry_in(m).astype(dtype) if takes else np.full(1, subtract, dtype)
        partial: Array = a + b
        result: Array = partial + c
        write(m, result)
        if gives:
            carry_out(m, (partial < a) | (result < partial))

    op.emit(run)
