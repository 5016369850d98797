"""atom and red: each lane gets what it found, the lanes coming one after the other in their order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.addressing import address, hinted, in_order, space_of
from ptxrt.sim._instructions.arithmetic_float import clean, elementwise, extreme
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.rounding import flush
from ptxrt.sim._instructions.vectors import elements, vector
from ptxrt.sim._machine.element_types import float_type
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._machine.spaces import locate
from ptxrt.sim._text.types import Array, PtxType

__all__: list[str] = []

_TYPES = {
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64", "b128"),
    "cas": ("b16", "b32", "b64", "b128"),
    "inc": ("u32",),
    "dec": ("u32",),
}


# By operation, the types that come in vectors too, and by type how many elements a vector may have.
_SMALL = ("f16", "bf16", "f16x2", "bf16x2")
_VECTORS = {"add": ("f32", *_SMALL), "min": _SMALL, "max": _SMALL}
_LENGTHS = {"f32": (2, 4), "f16": (2, 4, 8), "bf16": (2, 4, 8), "f16x2": (2, 4), "bf16x2": (2, 4)}


_FAR_FROM_DENORMAL = np.float32(2.0**-100)


def _add_flushed(old: Array, value: Array) -> Array:
    total = old + value
    # No denormal can have had a part in a sum so large.
    if (np.abs(total) > _FAR_FROM_DENORMAL).all():
        return np.asarray(total)
    return flush(flush(old) + flush(value))


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


def _combine(how: str, kind: PtxType) -> Callable[[Array, Array], Array]:
    if how in ("min", "max") and (kind.is_float or kind.kind == "packed"):
        smaller = how == "min"
        return elementwise(kind, lambda old, value: clean(extreme(old, value, smaller=smaller, nan=False)))
    if kind.kind == "packed":
        return elementwise(kind, np.add)
    return _COMBINE.get(how, np.add)


def _check_vector(op: Op, kind: PtxType, count: int, space: str) -> None:
    op.needs(f"a vector of {op.ins.name}", 90, (8, 1))
    if space not in ("generic", "global"):
        op.fail(f"{op.ins.name} takes vectors in .global only")
    if count not in _LENGTHS[kind.name]:
        op.fail(f"{op.ins.name} takes .{kind.name} in vectors of {' or '.join(map(str, _LENGTHS[kind.name]))}")


@instruction("atom", "red")
def atom(op: Op) -> None:
    """Read, combine, write, in one."""
    returns = op.ins.name == "atom"
    if op.flag("async"):
        op.unsupported(op.ins.opcode)
    space = space_of(op)
    count = vector(op)
    how = op.choice(*_TYPES)
    if how is None or (not returns and how in ("exch", "cas")):
        op.fail(f"{op.ins.name} takes one of .{' .'.join(_TYPES)}")
    noftz = op.flag("noftz")
    kind = op.type(*(_TYPES[how] if count == 1 else _VECTORS.get(how, ())))
    if kind.bits == 128:
        op.needs(op.ins.opcode, 90, (8, 3))
    if noftz != (kind.name in _SMALL):
        op.fail(f"{op.ins.name}.{how}.{kind.name} {'takes no' if noftz else 'needs'} .noftz")
    place = 1 if returns else 0
    hinted(op, place + (3 if how == "cas" else 2))
    if count > 1:
        _check_vector(op, kind, count, space)
    if space not in ("generic", "global", "shared", "shared::cluster"):
        op.fail(f"{op.ins.name} is for .global and .shared")
    write = [op.dest(item, kind) for item in elements(op, 0, count)] if returns else []
    where, offset = address(op, place, space)
    value = [op.source(item, kind) for item in elements(op, place + 1, count)]
    swap = op.source(place + 2, kind) if how == "cas" else None
    access = op.builder.access(
        op.ins, space, kind.size * count, kind.size, True, offset, atomic=True, strong=True, float_type=float_type(kind)
    )
    dtype = kind.dtype
    combine = _combine(how, kind)
    flushed = how == "add" and kind.name == "f32"

    def step(m: Machine) -> None:
        values = [m.spread(one(m)) for one in value]
        swaps = m.spread(swap(m)) if swap is not None else None
        found = [np.empty(m.count, dtype) for _ in values]
        for piece in locate(m, access, where(m)):
            words = piece.store.words(kind.size).view(dtype)
            index, lanes = piece.at // kind.size, piece.lanes
            how_many = m.count if lanes is None else lanes.shape[0]
            index = np.repeat(index, how_many) if index.shape[0] == 1 else index
            # In global memory, the units that add float32 know no denormals.
            act = _add_flushed if flushed and piece.store is not m.shared else combine
            for element, all_values in enumerate(values):
                mine = all_values if lanes is None else all_values[lanes]
                if swaps is not None:
                    old = _compare_and_swap(words, index, mine, swaps if lanes is None else swaps[lanes])
                else:
                    old = _apply(words, index + element, mine, act)
                if lanes is None:
                    found[element] = old
                else:
                    found[element][lanes] = old
        for one, old in zip(write, found, strict=False):
            one(m, old)

    op.emit(in_order(op, step))


def _ranked(index: Array) -> tuple[Array, Array, Array]:
    """Return a stable order by address, the starts of equal ones in it, and how many there are of each."""
    # Numbers of which no two are the same, an address and behind it a lane, are sorted sooner than by a stable order.
    count = index.shape[0]
    bits = count.bit_length()
    both = np.sort((index.astype(np.int64) << bits) | np.arange(count))
    order, ordered = both & ((1 << bits) - 1), both >> bits
    starts = np.concatenate(([0], (ordered[1:] != ordered[:-1]).nonzero()[0] + 1))
    return order, starts, np.diff(np.concatenate((starts, [count])))


def _denormal(value: Array) -> Array:
    return np.asarray((value != 0) & (flush(value) == 0))


def _chain(combine: Callable[[Array, Array], Array], values: Array) -> Array:
    """Return what a cell holds after each of the values, the first of which is its own."""
    ufunc = combine if isinstance(combine, np.ufunc) else np.add
    # accumulate goes from left to right and rounds each time, as one atomic after the other does.
    chain = np.asarray(ufunc.accumulate(values, dtype=values.dtype))
    if combine is _add_flushed and (_denormal(values) | _denormal(chain)).any():
        for place in range(1, values.shape[0]):
            chain[place : place + 1] = combine(chain[place - 1 : place], values[place : place + 1])
    return chain


def _apply(words: Array, index: Array, values: Array, combine: Callable[[Array, Array], Array]) -> Array:
    order, starts, lengths = _ranked(index)
    old = np.empty_like(values)
    most = int(lengths.max())
    chains = combine is _add_flushed or (isinstance(combine, np.ufunc) and values.dtype.kind != "V")
    if chains and most > starts.shape[0]:
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            lanes = order[start : start + length]
            at = index[lanes[0]]
            chain = _chain(combine, np.concatenate((words[at : at + 1], values[lanes])))
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


def _same_bits(a: Array, b: Array) -> Array:
    if a.dtype.itemsize <= 8:
        return np.asarray(a == b)
    return np.asarray((a.view(np.uint64) == b.view(np.uint64)).reshape(-1, 2).all(axis=1))


def _compare_and_swap(words: Array, index: Array, wanted: Array, new: Array) -> Array:
    order, starts, lengths = _ranked(index)
    old = np.empty_like(new)
    for rank in range(int(lengths.max())):
        lanes = order[starts[lengths > rank] + rank]
        at = index[lanes]
        before = words[at]
        old[lanes] = before
        words[at] = np.where(_same_bits(before, wanted[lanes]), new[lanes], before)
    return old
