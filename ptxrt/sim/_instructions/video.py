"""Video instructions on one value: vadd, vsub, vabsdiff, vmin, vmax, vshl, vshr, vset, vmad, of words or parts of them.

What they give is what ptxas makes of them for sm_90, which differs from the words of the ISA at the edges:

- ``.u32.sat`` of sums and extremes stops at 0 and does not stop above; with a part of d as the result, all that is
  negative becomes the largest value of the part. A shift saturates to 32 bits, whatever part of d it goes to.
- ``.min`` and ``.max`` with c compare 64 bits, to which a sum is extended by its sign, for ``.u32`` too.
- vset compares with c by the type of its first source.
- vmad multiplies and adds signed words, for ``.u32`` too.

A merge into .h1 is as the ISA and ptxas 13.5 have it; ptxas 13.0 takes the upper half of the result.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._text.syntax import Part, Sink
from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__ = ["COMPARISONS", "field", "result"]

_FIELDS = {"": (0, 32), **{f"b{i}": (8 * i, 8) for i in range(4)}, **{f"h{i}": (16 * i, 16) for i in range(2)}}
"""By selector, the first bit and the width."""
_WORD = np.int64(0xFFFFFFFF)
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def field(word: Array, start: int, width: int, signed: bool) -> Array:
    """Return bits of a word as int64, extended by their sign or by zeros."""
    bits = (word >> np.int64(start)) & np.int64((1 << width) - 1)
    top = np.int64(1 << (width - 1) if signed else 0)
    return np.asarray((bits ^ top) - top)


def result(op: Op, kind: PtxType) -> tuple[PtxType, str]:
    """Check the first operand; return the type, and which part of the register the result goes to ("": all)."""
    operand = op.operand(0)
    if isinstance(operand, Sink) or (isinstance(operand, Part) and operand.negated):
        op.fail(f"{op.ins.name} needs a register for its result")
    return kind, operand.selector if isinstance(operand, Part) else ""


def _source(op: Op, place: int, kind: PtxType, *, whole: bool = False, negatable: bool = False) -> tuple[Getter, bool]:
    """Return the reader of a source, or of a part of it, as int64, and whether it has a minus."""
    operand, selector, negated = op.operand(place), "", False
    if isinstance(operand, Part):
        selector, negated = operand.selector, operand.negated
        if selector not in _FIELDS or (whole and selector):
            op.fail(f"there is no .{selector} of operand {place + 1} of {op.ins.name}")
        if negated and not negatable:
            op.fail(f"operand {place + 1} of {op.ins.opcode} cannot be negated")
        operand = operand.register
    read = op.source(operand, kind)
    start, width = _FIELDS[selector]
    return lambda m: field(read(m).astype(np.int64), start, width, kind.signed), negated


def _emit(op: Op, kind: PtxType, joined: str | None, value: Callable[[Machine], tuple[Array, Array]]) -> None:
    """Emit what follows the operation: the secondary one with c, or the merge into a part of c.

    `value` gives the result, of which the low 32 bits count, and what ``.min`` and ``.max`` compare, both as int64.
    """
    _, part = result(op, kind)
    if part not in _FIELDS or (part and joined):
        op.fail(f"{op.ins.opcode} has no result .{part}" + (" together with a secondary operation" if joined else ""))
    op.done(4 if part or joined else 3, 4)
    operand = op.operand(0)
    write = op.dest(operand.register if isinstance(operand, Part) else operand, kind)
    third = _source(op, 3, kind, whole=True)[0] if len(op.ins.operands) == 4 else None
    start, width = _FIELDS[part]
    mask = np.int64(((1 << width) - 1) << start)

    def step(m: Machine) -> None:
        found, compared = value(m)
        if third is not None:
            c = third(m)
            if part:
                found = (c & ~mask) | ((found << np.int64(start)) & mask)
            elif joined == "add":
                found = found + c
            elif joined:
                a, b = (compared, c) if kind.signed else (compared.view(np.uint64), c.view(np.uint64))
                found = np.where(a < b if joined == "min" else a > b, found, c)
        write(m, (found & _WORD).astype(np.uint32).view(kind.dtype))

    op.emit(step)


def _signed_word(value: Array) -> Array:
    return field(value, 0, 32, True)


_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add, "vsub": np.subtract, "vabsdiff": lambda a, b: np.abs(a - b), "vmin": np.minimum, "vmax": np.maximum,
}  # fmt: skip


@instruction(*_ARITHMETIC)
def arithmetic(op: Op) -> None:
    """Sums and extremes of words, halves and bytes."""
    compute, is_sum = _ARITHMETIC[op.ins.name], op.ins.name in ("vadd", "vsub")
    saturates, joined = op.flag("sat"), op.choice("add", "min", "max")
    kind, first, second = (op.type("u32", "s32") for _ in range(3))
    (a, _), (b, _) = _source(op, 1, first), _source(op, 2, second)
    _, width = _FIELDS.get(result(op, kind)[1], (0, 32))
    most = np.int64((1 << (width - kind.signed)) - 1)

    def value(m: Machine) -> tuple[Array, Array]:
        found = compute(a(m), b(m))
        if saturates and width < 32:
            found = np.where((found >= 0) & (found < most), found, most)
        elif saturates:
            found = np.clip(found, -most - 1, most) if kind.signed else np.maximum(found, np.int64(0))
        return found, _signed_word(found) if is_sum else found

    _emit(op, kind, joined, value)


@instruction("vshl", "vshr")
def shift(op: Op) -> None:
    """Shifts by 32 at most (.clamp), or by the amount modulo 32 (.wrap)."""
    saturates, joined, mode = op.flag("sat"), op.choice("add", "min", "max"), op.choice("clamp", "wrap")
    if mode is None:
        op.fail(f"{op.ins.name} takes .clamp or .wrap")
    kind, first = (op.type("u32", "s32") for _ in range(2))
    (a, _), (b, _) = _source(op, 1, first), _source(op, 2, op.type("u32"))
    compute = np.left_shift if op.ins.name == "vshl" else np.right_shift
    low, high = (-(1 << 31), (1 << 31) - 1) if kind.signed else (0, (1 << 32) - 1)

    def value(m: Machine) -> tuple[Array, Array]:
        amount = b(m)
        found = compute(a(m), np.minimum(amount, np.int64(32)) if mode == "clamp" else amount & np.int64(31))
        if not saturates:
            return found, found
        found = np.clip(field(found, 0, 34, True), low, high)  # the ISA's intermediate value has 34 bits
        return found, _signed_word(found)

    _emit(op, kind, joined, value)


@instruction("vset")
def compare(op: Op) -> None:
    """1 where the comparison holds, else 0."""
    joined, how = op.choice("add", "min", "max"), op.choice(*COMPARISONS)
    if how is None:
        op.fail(f"vset takes one of .{' .'.join(COMPARISONS)}")
    first, second = (op.type("u32", "s32") for _ in range(2))
    (a, _), (b, _) = _source(op, 1, first), _source(op, 2, second)

    def value(m: Machine) -> tuple[Array, Array]:
        found = COMPARISONS[how](a(m), b(m)).astype(np.int64)
        return found, found

    _emit(op, first, joined, value)


@instruction("vmad")
def multiply_add(op: Op) -> None:
    """``(a * b + c) >> scale``, with a product or c that is negated, or one more (.po)."""
    saturates, plus_one, scale = op.flag("sat"), op.flag("po"), op.choice("shr7", "shr15")
    kind, first, second = (op.type("u32", "s32") for _ in range(3))
    op.done(4)
    if result(op, kind)[1]:
        op.fail("vmad gives a whole register")
    (a, minus_a), (b, minus_b) = _source(op, 1, first, negatable=True), _source(op, 2, second, negatable=True)
    c, minus_c = _source(op, 3, TYPES["s32"], whole=True, negatable=True)
    minus = minus_a ^ minus_b
    if minus and minus_c:
        op.fail("vmad negates the product or c, not both")
    if plus_one and (minus_a or minus_b or minus_c):
        op.fail("vmad.po negates nothing")
    operand = op.operand(0)
    write = op.dest(operand, kind)
    signed = first.signed or second.signed or minus or minus_c
    places = np.int64(scale[3:] if scale else 0)

    def step(m: Machine) -> None:
        product, addend = _signed_word(a(m)) * _signed_word(b(m)), c(m)
        total = (-product if minus else product) + (-addend if minus_c else addend) + np.int64(plus_one)
        total = total >> places if signed else (total.view(np.uint64) >> places.view(np.uint64)).view(np.int64)
        if saturates:
            low, high = (-(1 << 31), (1 << 31) - 1) if signed else (0, (1 << 32) - 1)
            total = np.clip(total, low, high)
        write(m, (total & _WORD).astype(np.uint32).view(kind.dtype))

    op.emit(step)
