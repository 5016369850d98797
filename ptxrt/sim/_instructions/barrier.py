"""bar and barrier: the barriers of a block, and bar.warp.sync."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.cluster import cluster_barrier
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.warp import warp_barrier
from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.protocol import Getter, Machine, Reduction
from ptxrt.sim._text.syntax import Immediate
from ptxrt.sim._text.types import TYPES, Array

__all__: list[str] = []

_U32 = TYPES["u32"]
_PRED = TYPES["pred"]


@instruction("bar", "barrier")
def bar(op: Op) -> None:
    """``.sync``, ``.arrive`` and ``.red`` over the threads of a block."""
    if op.ins.name == "barrier" and op.flag("cluster"):
        cluster_barrier(op)
        return
    if op.ins.name == "bar" and op.flag("warp"):
        warp_barrier(op)
        return
    op.flag("cta")
    what = op.choice("sync", "arrive", "red")
    if op.ins.name == "barrier":
        op.flag("aligned")
    if what == "sync":
        op.done(1, 2)
        number, count = _number(op, 0), _count(op, 1)
        following = op.builder.following(op.ins)
        op.end(lambda m: _each(m, op, number, count, lambda n, c: m.barriers.sync(op.ins, n, c, following)))
    elif what == "arrive":
        op.done(2)
        number, count = _number(op, 0), _count(op, 1)
        following = op.builder.following(op.ins)

        def arrive(m: Machine) -> int:
            def one(n: int, c: int | None) -> int:
                m.barriers.arrive(n, c or 0)
                return following

            outer = m.active()
            _each(m, op, number, count, one)
            m.activate(outer)
            return following

        op.end(arrive)
    elif what == "red":
        _red(op)
    else:
        op.fail(f"{op.ins.name} takes .sync, .arrive or .red")


def _number(op: Op, place: int) -> Getter:
    operand = op.operand(place)
    if isinstance(operand, Immediate) and not 0 <= operand.value <= 15:
        op.fail(f"barrier {operand.value} is not within 0 to 15")
    return op.source(place, _U32)


def _count(op: Op, place: int) -> Getter | None:
    if place >= len(op.ins.operands):
        return None
    operand = op.operand(place)
    if isinstance(operand, Immediate) and (operand.value <= 0 or operand.value % 32):
        op.fail(f"the number of threads at a barrier is a multiple of 32, not {operand.value}")
    return op.source(place, _U32)


def _each(m: Machine, op: Op, number: Getter, count: Getter | None, act: Callable[[int, int | None], int]) -> int:
    """Call `act` for each barrier that the active lanes name, with those lanes active."""
    numbers = number(m)
    counts = count(m) if count is not None else None
    _check(m, op, numbers > 15, numbers, "a barrier is within 0 to 15, and this names {}")
    if counts is not None:
        _check(m, op, (counts == 0) | (counts % 32 != 0), counts,
               "the number of threads at a barrier is a multiple of 32, not {}")  # fmt: skip
    if numbers.shape[0] == 1 and (counts is None or counts.shape[0] == 1):
        return act(int(numbers[0]), None if counts is None else int(counts[0]))
    lanes = m.active()
    both = m.spread(numbers).astype(np.int64)
    if counts is not None:
        both = both | m.spread(counts).astype(np.int64) << 8
    different = np.unique(both)
    result = GONE
    for one in different.tolist():
        m.activate(lanes[(both == one).nonzero()[0]])
        result = act(one & 15, None if counts is None else one >> 8)
    return result if len(different) == 1 else GONE


def _check(m: Machine, op: Op, bad: Array, values: Array, problem: str) -> None:
    if bad.any():
        first = int(bad.nonzero()[0][0])
        m.fault(op.ins, problem.format(int(values[first])), int(m.active()[first]))


def _red(op: Op) -> None:
    kind = op.choice("popc", "and", "or")
    if kind is None:
        op.fail(f"{op.ins.name}.red takes .popc, .and or .or")
    result = op.type("u32") if kind == "popc" else op.type("pred")
    op.done(3, 4)
    write = op.dest(0, result)
    number = _number(op, 1)
    count = _count(op, 2) if len(op.ins.operands) == 4 else None
    read = op.source(len(op.ins.operands) - 1, _PRED)
    following = op.builder.following(op.ins)
    reduction = Reduction("popc" if kind == "popc" else "and" if kind == "and" else "or", write)

    def end(m: Machine) -> int:
        return _each(
            m, op, number, count, lambda n, c: m.barriers.sync(op.ins, n, c, following, reduction, m.spread(read(m)))
        )

    op.end(end)
