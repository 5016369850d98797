"""mov: copies, packs, unpacks, and addresses."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.op import Op, getter, instruction
from ptxrt.sim._instructions.vectors import alike, elements, vector
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Name, Tuple
from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__: list[str] = []


@instruction("mov")
def mov(op: Op) -> None:
    """Copy; ``{a, b}`` on one side packs or unpacks."""
    count = vector(op)
    kind = op.type("pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
    op.done(2)
    to, source = op.operand(0), op.operand(1)
    if isinstance(source, Name) and source.text in op.builder.module.functions:
        if kind.bits != 64 or not kind.is_int:
            op.fail(f"the address of the function {source.text} has 64 bits")
        value = np.array([op.builder.module.addresses[source.text]], np.uint64).view(kind.dtype)
        op.compute(op.dest(0, kind), [getter(op.builder.constant(value), kind, kind)], np.copy)
        return
    if count > 1:
        moves = zip(elements(op, 0, count), elements(op, 1, count), strict=True)
        both = [(op.dest(result, kind), op.source(source, kind, special=True)) for result, source in moves]

        def each(m: Machine) -> None:
            # All are read before any is written: one may stand on both sides.
            for (write, _), value in zip(both, [np.copy(read(m)) for _, read in both], strict=True):
                write(m, value)

        op.emit(each)
    elif isinstance(source, Tuple):
        _pack(op, kind, source)
    elif isinstance(to, Tuple):
        _unpack(op, kind, to)
    else:
        op.compute(op.dest(0, kind), [op.source(1, kind, special=True)], np.copy)


def _parts(op: Op, kind: PtxType, operand: Tuple) -> PtxType:
    """Return the type of the elements of a pack."""
    count = len(operand.items)
    if kind.kind != "b" or count not in (2, 4) or kind.bits // count < 8:
        op.fail("a pack is mov.b16, .b32, .b64 or .b128 with 2 or 4 elements")
    alike(op, operand)
    return TYPES[f"b{kind.bits // count}"]


def _pack(op: Op, kind: PtxType, operand: Tuple) -> None:
    part = _parts(op, kind, operand)
    read = [op.source(item, part) for item in operand.items]

    def side_by_side(*values: Array) -> Array:
        return np.ascontiguousarray(np.stack(np.broadcast_arrays(*values), 1)).view(kind.dtype).reshape(-1)

    def compute(*values: Array) -> Array:
        result = np.zeros(1, kind.dtype)
        for place, value in enumerate(values):
            result = result | (value.astype(kind.dtype) << kind.dtype.type(place * part.bits))
        return result

    op.compute(op.dest(0, kind), read, side_by_side if kind.bits == 128 else compute)


def _unpack(op: Op, kind: PtxType, operand: Tuple) -> None:
    part = _parts(op, kind, operand)
    write = [op.dest(item, part) for item in operand.items]
    read = op.source(1, kind)

    def step(m: Machine) -> None:
        value = read(m)
        if kind.bits == 128:
            for one, column in zip(write, np.copy(value).view(part.dtype).reshape(-1, len(write)).T, strict=True):
                one(m, np.ascontiguousarray(column))
            return
        for place, one in enumerate(write):
            one(m, (value >> kind.dtype.type(place * part.bits)).astype(part.dtype))

    op.emit(step)
