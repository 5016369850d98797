"""atom and red: each lane gets what it found, the lanes coming one after the other in their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import ml_dtypes
import numpy as np

from ptxrt.sim.instructions.data_movement import address, space_of
from ptxrt.sim.op import Op, instruction
from ptxrt.sim.spaces import locate
from ptxrt.sim.types import Array

if TYPE_CHECKING:
    from ptxrt.sim.lanes import Lanes

__all__: list[str] = []

_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
    "inc": ("u32",),
    "dec": ("u32",),
}
_HALVES = {"f16x2": np.dtype(np.float16), "bf16x2": np.dtype(ml_dtypes.bfloat16)}


def _add_halves(half: np.dtype[np.generic]) -> Callable[[Array, Array], Array]:
    def add(old: Array, value: Array) -> Array:
        total = old.view(half).reshape(-1, 2) + value.view(half).reshape(-1, 2)
        return np.ascontiguousarray(total).reshape(-1).view(np.uint32)

    return add


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "exch": lambda old, value: value,
    "inc": lambda old, value: np.where(old >= value, np.uint32(0), old + np.uint32(1)),
    "dec": lambda old, value: np.where((old == 0) | (old > value), value, old - np.uint32(1)),
}


@instruction("atom", "red")
def atom(op: Op) -> None:
    """Read, combine, write, in one."""
    returns = op.ins.name == "atom"
    if op.flag("async", "vec_32", "v2", "v4", "v8"):
        op.unsupported(op.ins.opcode)
    space = space_of(op)
    how = op.choice(*_TYPES)
    if how is None or (not returns and how in ("exch", "cas")):
        op.fail(f"{op.ins.name} takes one of .{' .'.join(_TYPES)}")
    noftz = op.flag("noftz")
    if any(name == "b128" for name in op.ins.modifiers):
        op.unsupported(op.ins.opcode)
    kind = op.type(*_TYPES[how])
    if noftz != (kind.name in ("f16", "bf16", *_HALVES)):
        op.fail(f"{op.ins.name}.{how}.{kind.name} {'takes no' if noftz else 'needs'} .noftz")
    place = 1 if returns else 0
    operands = place + (3 if how == "cas" else 2)
    op.done(operands, operands + 1)
    if space not in ("generic", "global", "shared", "shared::cluster"):
        op.fail(f"{op.ins.name} is for .global and .shared")
    write = op.dest(0, kind) if returns else None
    where, offset = address(op, place, space)
    value = op.source(place + 1, kind)
    swap = op.source(place + 2, kind) if how == "cas" else None
    access = op.decoder.access(op.ins, space, kind.size, kind.size, True, offset, atomic=True, strong=True)
    dtype = kind.dtype
    combine = _add_halves(_HALVES[kind.name]) if kind.name in _HALVES else _COMBINE.get(how, np.add)

    def step(m: Lanes) -> None:
        values = m.spread(value(m))
        swaps = m.spread(swap(m)) if swap is not None else None
        found = np.empty(m.count, dtype)
        at = where(m)
        for piece in locate(m, access, at):
            words = piece.store.words(kind.size).view(dtype)
            index = piece.at // kind.size
            lanes = piece.lanes
            mine = values if lanes is None else values[lanes]
            index = np.repeat(index, mine.shape[0]) if index.shape[0] == 1 else index
            if swaps is not None:
                old = _compare_and_swap(words, index, mine, swaps if lanes is None else swaps[lanes])
            else:
                old = _apply(
                    words, index, mine, combine, accumulates=isinstance(combine, np.ufunc) and dtype.kind != "V"
                )
            if lanes is None:
                found = old
            else:
                found[lanes] = old
        if write is not None:
            write(m, found)

    op.emit(step)


def _ranked(index: Array) -> tuple[Array, Array, Array]:
    """Return a stable order by address, the starts of equal ones in it, and how many there are of each."""
    order = np.argsort(index, kind="stable")
    ordered = index[order]
    starts = np.concatenate(([0], (ordered[1:] != ordered[:-1]).nonzero()[0] + 1))
    return order, starts, np.diff(np.concatenate((starts, [index.shape[0]])))


def _apply(
    words: Array, index: Array, values: Array, combine: Callable[[Array, Array], Array], *, accumulates: bool
) -> Array:
    order, starts, lengths = _ranked(index)
    old = np.empty_like(values)
    most = int(lengths.max())
    if accumulates and isinstance(combine, np.ufunc) and most > starts.shape[0]:
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            lanes = order[start : start + length]
            at = index[lanes[0]]
            # accumulate goes from left to right and rounds each time, as one atomic after the other does.
            chain = combine.accumulate(np.concatenate((words[at : at + 1], values[lanes])), dtype=values.dtype)
            old[lanes] = chain[:-1]
            words[at] = chain[-1]
        return old
    for rank in range(most):
        lanes = order[starts[lengths > rank] + rank]
        at = index[lanes]
        before = words[at]
        old[lanes] = before
        words[at] = combine(before, values[lanes])
    return old


def _compare_and_swap(words: Array, index: Array, wanted: Array, new: Array) -> Array:
    order, starts, lengths = _ranked(index)
    old = np.empty_like(new)
    for rank in range(int(lengths.max())):
        lanes = order[starts[lengths > rank] + rank]
        at = index[lanes]
        before = words[at]
        old[lanes] = before
        words[at] = np.where(before == wanted[lanes], new[lanes], before)
    return old
