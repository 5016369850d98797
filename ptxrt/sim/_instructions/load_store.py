"""ld, st, ldu, prefetch, createpolicy, isspacep."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.addressing import (
    SPACES,
    address,
    hinted,
    in_order,
    is_passed,
    is_strong,
    space_of,
)
from ptxrt.sim._instructions.op import Op, getter, instruction
from ptxrt.sim._instructions.vectors import elements, vector
from ptxrt.sim._machine.access import RANK_SHIFT, window_of
from ptxrt.sim._machine.element_types import float_type
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._machine.words import read_words, write_words
from ptxrt.sim._text.syntax import Address, Immediate, Sink, Variable
from ptxrt.sim._text.types import TYPES, PtxType, word_type

__all__: list[str] = []

_TYPES = ("b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
_U64 = TYPES["u64"]
_PRIORITIES = ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged")


@instruction("ld", "ldu")
def ld(op: Op) -> None:
    """Load one value or a vector."""
    space, count, kind = _what(op)
    if op.ins.name == "ldu" and space not in ("generic", "global"):
        op.fail("ldu is for .global")
    write = [op.dest(item, kind, wider=True) for item in elements(op, 0, count)]
    passed = _passed(op, 1, space)
    where, offset = passed or address(op, 1, space)
    if passed:
        space = "local"
    access = op.builder.access(
        op.ins, space, kind.size * count, kind.size, False, offset, strong=is_strong(op), float_type=_moved(kind, count)
    )
    word, dtype = kind.size, kind.dtype
    if count == 1:
        single = write[0]
        op.emit(in_order(op, lambda m: single(m, read_words(m, access, where(m), word)[0].view(dtype))))
        return

    def step(m: Machine) -> None:
        for one, value in zip(write, read_words(m, access, where(m), word), strict=True):
            one(m, value.view(dtype))

    op.emit(in_order(op, step))


@instruction("st")
def st(op: Op) -> None:
    """Store one value or a vector."""
    if op.flag("async", "bulk"):
        op.unsupported(op.ins.opcode)
    space, count, kind = _what(op)
    items = elements(op, 1, count)
    if any(isinstance(item, Sink) for item in items):
        op.fail("a value to store is missing")
    read = [op.source(item, kind, wider=True) for item in items]
    passed = _passed(op, 0, space)
    if space in ("const", "param") and not passed:
        op.fail(f"st cannot write to .{space}")
    where, offset = passed or address(op, 0, space)
    if passed:
        space = "local"
    access = op.builder.access(
        op.ins, space, kind.size * count, kind.size, True, offset, strong=is_strong(op), float_type=_moved(kind, count)
    )
    unsigned = word_type(kind.size)

    def step(m: Machine) -> None:
        write_words(m, access, where(m), [one(m).view(unsigned) for one in read])

    op.emit(in_order(op, step))


def _what(op: Op) -> tuple[str, int, PtxType]:
    """Return the state space, how many values, and of which type."""
    space = space_of(op)
    count = vector(op)
    kind = op.type(*_TYPES)
    if kind.bits == 128:
        op.needs(op.ins.opcode, 70, (8, 3))
    hinted(op, 2)
    _check_width(op, kind, count, space)
    return space, count, kind


def _moved(kind: PtxType, count: int) -> str:
    """Return the floating-point type that ld and st name; none for a vector, in which compilers move any bytes."""
    return float_type(kind) if count == 1 else ""


def _check_width(op: Op, kind: PtxType, count: int, space: str) -> None:
    module = op.builder.module
    newer = module.target_number >= 100 and module.version >= (8, 8)
    wide = newer and kind.size in (4, 8) and space in ("generic", "global")
    if kind.size * count > (32 if wide else 16) or (count == 8 and kind.size != 4):
        op.fail(
            f"{op.ins.opcode} moves {kind.size * count} bytes; 16 is the most "
            "(32 in .global from .target sm_100 and .version 8.8 on)"
        )
    evicted = next((name for name in op.ins.modifiers if name.startswith("L2::evict")), None)
    if evicted and kind.size * count != 32:
        op.fail(f"{op.ins.name} takes .{evicted} with vectors of 32 bytes only")


def _passed(op: Op, place: int, space: str) -> tuple[Getter, int] | None:
    """Return address and offset in local memory where the operand is a parameter of a call: those live there."""
    operand = op.operand(place)
    if space != "param" or not isinstance(operand, Address) or not isinstance(operand.base, Variable):
        return None
    if not is_passed(op, operand.base):
        return None
    return getter(op.builder.home(operand.base), _U64, _U64), operand.offset


_LEVELS = {"L1": ("generic", "global", "local"), "L2": ("generic", "global", "local"),
           "L2::evict_last": ("generic", "global"), "L2::evict_normal": ("generic", "global"),
           "tensormap": ("generic", "const", "param")}  # fmt: skip
"""What prefetch brings in, and from which state spaces."""


@instruction("prefetch", "prefetchu")
def prefetch(op: Op) -> None:
    """Nothing to do: there are no caches."""
    uniform = op.ins.name == "prefetchu"
    space = op.choice("global", "local", "const", "param") or "generic"
    level = op.choice(*_LEVELS) or ""
    if uniform and (space, level) != ("generic", "L1"):
        op.fail("prefetchu is prefetchu.L1")
    if space not in _LEVELS.get(level, ()):
        op.fail(f"prefetch takes one of .{' .'.join(_LEVELS)} in fitting state spaces, not {op.ins.opcode}")
    op.done(1)
    address(op, 0, space)


@instruction("createpolicy")
def createpolicy(op: Op) -> None:
    """A cache policy: a value that means nothing here."""
    how = op.choice("fractional", "range", "cvt")
    kind = op.type("b64")
    if not op.flag(*(("L2",) if how == "cvt" else _PRIORITIES)):
        op.fail(f"createpolicy takes {'.L2' if how == 'cvt' else 'a priority such as .L2::evict_last'}")
    op.flag(*_PRIORITIES)
    op.flag("global")
    write = op.dest(0, kind)
    if how == "fractional":
        op.done(1, 2)
        if len(op.ins.operands) == 2:
            share = op.operand(1)
            if isinstance(share, Immediate) and not 0 < share.value <= 1:
                op.fail(f"the fraction of createpolicy is {share.value}, not above 0 and at most 1")
            op.source(1, TYPES["f32"])
    elif how == "range":
        op.done(4)
        address(op, 1, "global")
        for place in (2, 3):
            op.source(place, TYPES["u32"])
    elif how == "cvt":
        op.done(2)
        op.source(1, kind)
    else:
        op.fail("createpolicy takes .fractional, .range or .cvt")
    op.emit(lambda m: write(m, np.zeros(1, kind.dtype)))


@instruction("isspacep")
def isspacep(op: Op) -> None:
    """Tell whether a generic address is in a state space."""
    space = op.choice(*(space for space in SPACES if space != "param::func"))
    if space is None:
        op.fail("isspacep names a state space")
    op.done(2)
    write, read = op.dest(0, TYPES["pred"]), op.source(1, _U64)
    if space in ("shared", "shared::cta"):

        def own(m: Machine) -> None:
            value = read(m)
            rank = (value >> np.uint64(RANK_SHIFT) & np.uint64(0xFF)).astype(np.int64) - 1
            here = m.of_active(m.block) % m.shape.cluster_blocks
            write(m, (window_of(value) == 1) & ((rank < 0) | (rank == here)))

        op.emit(own)
    elif space == "const":

        def constant(m: Machine) -> None:
            value = read(m)
            found = np.zeros(value.shape[0], np.bool_)
            for variable, base in m.addresses.items():
                if variable.space == "const":
                    found |= (value >= np.uint64(base)) & (value < np.uint64(base + variable.size))
            write(m, found)

        op.emit(constant)
    else:
        number = {"shared::cluster": 1, "local": 2, "param": 4}.get(
            space.partition("::")[0] if "param" in space else space, 0
        )
        op.compute(write, [read], lambda a: window_of(a) == np.uint64(number))
