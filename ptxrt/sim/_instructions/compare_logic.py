"""setp, set, selp, slct."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.rounding import flush
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Pair
from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__: list[str] = []

_PRED = TYPES["pred"]
_COMPARED = ("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64", "f16", "bf16")
_ORDERED: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
_UNSIGNED = {"lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal}
_NAN: dict[str, Callable[[Array, Array], Array]] = {
    "ne": lambda a, b: (a < b) | (a > b),
    "equ": lambda a, b: ~((a < b) | (a > b)),
    "neu": np.not_equal,
    "ltu": lambda a, b: ~(a >= b),
    "leu": lambda a, b: ~(a > b),
    "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}
_HALVES = {"f16x2": "f16", "bf16x2": "bf16"}
_COMBINE = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


def _comparison(op: Op, name: str | None, kind: PtxType) -> Callable[[Array, Array], Array]:
    if name is None:
        op.fail(f"{op.ins.name} needs a comparison such as .lt")
    if kind.is_float:
        table = {**_ORDERED, **_NAN}
    elif kind.kind == "b":
        table = {"eq": np.equal, "ne": np.not_equal}
    else:
        table = {**_ORDERED, "ne": np.not_equal}
        if kind.kind == "u":
            table.update(_UNSIGNED)
    if name not in table:
        op.fail(f".{name} does not compare .{kind.name}")
    return table[name]


def _compare(op: Op) -> tuple[str | None, str | None, bool]:
    name = op.choice(*_ORDERED, *_UNSIGNED, *_NAN)
    return name, op.choice(*_COMBINE), op.flag("ftz")


def _flushed(
    op: Op, compare: Callable[[Array, Array], Array], kind: PtxType, ftz: bool
) -> Callable[[Array, Array], Array]:
    if not ftz:
        return compare
    if kind.name not in ("f32", "f16"):
        op.fail(f"{op.ins.name} takes .ftz with .f32 and .f16 only, not with .{kind.name}")
    return lambda a, b: compare(flush(a), flush(b))


@instruction("setp")
def setp(op: Op) -> None:
    """``p|q = a cmp b``; with .and .or .xor combined with a predicate; q gets the comparison's opposite."""
    if _HALVES.keys() & set(op.ins.modifiers):
        _setp_halves(op)
        return
    name, combine, ftz = _compare(op)
    kind = op.type(*_COMPARED)
    compare = _flushed(op, _comparison(op, name, kind), kind, ftz)
    op.done(4 if combine else 3)
    first = op.operand(0)
    pair = first if isinstance(first, Pair) else None
    if pair and kind.is_float and kind.bits == 16:
        op.fail(f"setp of .{kind.name} gives one predicate")
    write = op.dest(pair.first if pair else first, _PRED)
    write_opposite = op.dest(pair.second, _PRED) if pair else None
    a, b = op.source(1, kind), op.source(2, kind)
    if write_opposite is None and combine is None:
        op.compute(write, [a, b], compare)
        return
    with_third = op.source(3, _PRED) if combine else None
    mix = _COMBINE.get(combine or "")

    def step(m: Machine) -> None:
        result = compare(a(m), b(m))
        opposite = ~result
        if mix is not None and with_third is not None:
            third = with_third(m)
            result, opposite = mix(result, third), mix(opposite, third)
        write(m, result)
        if write_opposite is not None:
            write_opposite(m, opposite)

    op.emit(step)


@instruction("set")
def set_(op: Op) -> None:
    """As setp, with the answer as all ones or 1.0."""
    if _HALVES.keys() & set(op.ins.modifiers):
        _set_halves(op)
        return
    name, combine, ftz = _compare(op)
    result = op.type("u16", "s16", "u32", "s32", "f32", "f16", "bf16")
    kind = op.type(*_COMPARED)
    of_halves = kind.is_float and kind.bits == 16
    if of_halves if result.name == "f32" else not of_halves and result.is_int and result.bits == 16:
        op.fail(f"set gives no .{result.name} of .{kind.name}")
    if (of_halves and result.name == "f16" != kind.name) or (ftz and result.name == "bf16"):
        op.fail(f"set gives no .{result.name} of .{kind.name}{' with .ftz' if ftz else ''}")
    compare = _flushed(op, _comparison(op, name, kind), kind, ftz)
    mix = _COMBINE.get(combine or "")
    yes = np.array([1 if result.is_float else -1]).astype(result.dtype)
    no = np.zeros(1, result.dtype)

    def compute(a: Array, b: Array, *third: Array) -> Array:
        flags = compare(a, b)
        return np.where(mix(flags, third[0]) if mix else flags, yes, no)

    op.lanewise(result, (kind, kind, _PRED) if combine else (kind, kind), compute)


def _halves(op: Op) -> tuple[PtxType, PtxType, Callable[..., Array]]:
    """Return the packed type, the type of each half, and what gives the flags of words, of shape (lanes, 2)."""
    name, combine, ftz = _compare(op)
    kind = TYPES["bf16x2" if "bf16x2" in op.ins.modifiers else "f16x2"]
    half = TYPES[_HALVES[kind.name]]
    compare = _flushed(op, _comparison(op, name, half), half, ftz)
    mix = _COMBINE.get(combine or "")

    def flags(a: Array, b: Array, *third: Array) -> Array:
        found = compare(a.view(half.dtype).reshape(-1, 2), b.view(half.dtype).reshape(-1, 2))
        return mix(found, third[0][:, None]) if mix else found

    return kind, half, flags


def _sources(op: Op, kind: PtxType) -> tuple[PtxType, ...]:
    return (kind, kind, _PRED) if _COMBINE.keys() & set(op.ins.modifiers) else (kind, kind)


def _setp_halves(op: Op) -> None:
    """``p|q``: what holds of the lower halves, and of the upper ones."""
    kind, _, flags = _halves(op)
    op.type(kind.name)
    kinds = _sources(op, kind)
    op.done(1 + len(kinds))
    first = op.operand(0)
    writes = [op.dest(one, _PRED) for one in ((first.first, first.second) if isinstance(first, Pair) else (first,))]
    sources = [op.source(place, kind) for place, kind in enumerate(kinds, 1)]

    def step(m: Machine) -> None:
        found = flags(*[read(m) for read in sources])
        for write, column in zip(writes, found.T, strict=False):
            write(m, np.ascontiguousarray(column))

    op.emit(step)


def _set_halves(op: Op) -> None:
    """The two answers side by side."""
    kind, half, flags = _halves(op)
    result = op.type(kind.name, "u32", "s32")
    op.type(kind.name)
    yes = np.array([1], half.dtype).view(np.uint16) if result is kind else np.array([0xFFFF], np.uint16)

    def compute(*values: Array) -> Array:
        found = flags(*values) * yes
        return np.ascontiguousarray(found).view(result.dtype).reshape(-1)

    op.lanewise(result, _sources(op, kind), compute)


def blend(flags: Array, a: Array, b: Array) -> Array:
    """Return a where the flag is set, else b; with bit masks, as NumPy's where is slow on flags without a pattern."""
    unsigned = f"u{a.dtype.itemsize}"
    mask = np.negative(flags.view(np.uint8).astype(unsigned))
    x, y = a.view(unsigned), b.view(unsigned)
    return np.asarray((y ^ ((x ^ y) & mask)).view(a.dtype))


@instruction("selp")
def selp(op: Op) -> None:
    """``d = c ? a : b``."""
    kind = op.type("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
    op.lanewise(kind, (kind, kind, _PRED), lambda a, b, c: blend(c, a, b))


@instruction("slct")
def slct(op: Op) -> None:
    """``d = c >= 0 ? a : b``; a NaN picks b."""
    ftz = op.flag("ftz")
    kind = op.type("b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
    sign = op.type("s32", "f32")
    if ftz and not sign.is_float:
        op.fail("slct takes .ftz with .f32 only")

    def compute(a: Array, b: Array, c: Array) -> Array:
        return blend((flush(c) if ftz else c) >= 0, a, b)

    op.lanewise(kind, (kind, kind, sign), compute)
