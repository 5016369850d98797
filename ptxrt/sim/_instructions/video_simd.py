"""Video instructions on two halves or four bytes at a time: vadd2, vsub4, vavrg2, vabsdiff4, vmin2, vmax4, vset2."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.video import COMPARISONS, field, result
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Part, Register
from ptxrt.sim._text.types import TYPES, Array

__all__: list[str] = []

_U32 = TYPES["u32"]


def _average(a: Array, b: Array) -> Array:
    """Half of the sum, halves rounded away from zero."""
    total = a + b
    return np.asarray((total + (total >= 0)) >> np.int64(1))


_ARITHMETIC: dict[str, Callable[[Array, Array], Array]] = {
    "vadd": np.add, "vsub": np.subtract, "vavrg": _average, "vabsdiff": lambda a, b: np.abs(a - b),
    "vmin": np.minimum, "vmax": np.maximum,
}  # fmt: skip


def _picked(op: Op, place: int, count: int) -> list[int]:
    """Return which of the elements of a and b stand for the elements of an operand, the lowest first."""
    operand = op.operand(place)
    if not isinstance(operand, Register | Part):
        op.fail(f"{op.ins.name} takes registers")
    if isinstance(operand, Register):
        return [count * (place - 1) + number for number in range(count)]
    digits = operand.selector[1:]
    fits = operand.selector[:1] == "hb"[count // 4] and len(digits) == count and max(digits) < str(2 * count)
    if operand.negated or not fits:
        op.fail(f"operand {place + 1} of {op.ins.name} is picked by .{'h32' if count == 2 else 'b7654'} or the like")
    return [int(digit) for digit in reversed(digits)]


def _mask(op: Op, count: int) -> list[int]:
    """Return the elements that the result has, the others coming from c."""
    selector = result(op, _U32)[1] or ("h10" if count == 2 else "b3210")
    digits = selector[1:]
    descending = list(digits) == sorted(set(digits), reverse=True)
    if selector[0] != "hb"[count // 4] or max(digits) >= str(count) or not descending:
        op.fail(f"the result of {op.ins.name} is masked by .{'h1' if count == 2 else 'b310'} or the like")
    return [int(digit) for digit in digits]


def _register(op: Op, place: int) -> Register | Part:
    operand = op.operand(place)
    return operand.register if isinstance(operand, Part) else operand  # type: ignore[return-value]


@instruction(*(f"{name}{count}" for name in (*_ARITHMETIC, "vset") for count in (2, 4)))
def simd(op: Op) -> None:
    """Elements are picked from a and b together; the result's go to their places in c, or their sum is added to c."""
    name, count = op.ins.name[:-1], int(op.ins.name[-1])
    op.needs(op.ins.name, 30, (3, 1))
    width = 32 // count
    sums, saturates = op.flag("add"), name != "vset" and op.flag("sat")
    how = op.choice(*COMPARISONS) if name == "vset" else None
    if name == "vset" and how is None:
        op.fail(f"{op.ins.name} takes one of .{' .'.join(COMPARISONS)}")
    compute = _ARITHMETIC[name] if how is None else COMPARISONS[how]
    kind = op.type("u32", "s32") if how is None else _U32
    first, second = (op.type("u32", "s32") for _ in range(2))
    if sums and saturates:
        op.fail(f"{op.ins.name} takes .sat or .add, not both")
    op.done(4)
    elements = _mask(op, count)
    picked = [(_picked(op, 1, count), first), (_picked(op, 2, count), second)]
    if not isinstance(op.operand(3), Register):
        op.fail(f"{op.ins.name} takes registers")
    write = op.dest(_register(op, 0), kind)
    a, b, c = op.source(_register(op, 1), first), op.source(_register(op, 2), second), op.source(3, kind)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if kind.signed else (0, (1 << width) - 1)
    mask = np.int64((1 << width) - 1)

    def step(m: Machine) -> None:
        words = [read(m).view(np.uint32).astype(np.int64) for read in (a, b)]
        total = c(m).view(np.uint32).astype(np.int64)
        for element in elements:
            one, other = (
                field(words[places[element] // count], places[element] % count * width, width, type_.signed)
                for places, type_ in picked
            )
            found = compute(one, other).astype(np.int64)
            if saturates:
                found = np.clip(found, low, high)
            start = np.int64(element * width)
            total = total + found if sums else (total & ~(mask << start)) | ((found & mask) << start)
        write(m, (total & np.int64(0xFFFFFFFF)).astype(np.uint32).view(kind.dtype))

    op.emit(step)
