"""Clusters: mapa, getctarank, and barrier.cluster."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.op import Op, getter, instruction
from ptxrt.sim._machine.access import RANK_SHIFT, window_of
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._text.syntax import Symbol
from ptxrt.sim._text.types import TYPES, Array, PtxType
from ptxrt.sim._text.windows import SHARED_WINDOW

__all__ = ["cluster_barrier"]

_U32 = TYPES["u32"]
_WITHIN = (1 << RANK_SHIFT) - 1


def cluster_barrier(op: Op) -> None:
    """``barrier.cluster.arrive`` and ``.wait``."""
    what = op.choice("arrive", "wait")
    if what is None:
        op.fail("barrier.cluster takes .arrive or .wait")
    order = op.choice("release", "relaxed") if what == "arrive" else op.choice("acquire")
    op.flag("aligned")
    op.done(0)
    following = op.builder.following(op.ins)
    if what == "wait":
        op.end(lambda m: m.cluster_barriers.wait(op.ins, following))
        return

    def arrive(m: Machine) -> int:
        outer = m.active()
        m.cluster_barriers.arrive(op.ins, releases=order != "relaxed")
        m.activate(outer)
        return following

    op.end(arrive)


def _address(op: Op, place: int, kind: PtxType, *, generic: bool) -> Getter:
    operand = op.operand(place)
    if isinstance(operand, Symbol):
        if operand.variable.space != "shared":
            op.fail(f"{op.ins.opcode} takes the address of a shared variable")
        return getter(op.builder.symbol(operand, kind, generic=generic), kind, kind)
    return op.source(place, kind)


def _check_shared(m: Machine, op: Op, where: Array) -> None:
    """Check that generic addresses are in shared memory."""
    bad = window_of(where) != 1
    if bad.any():
        first = int(bad.nonzero()[0][0])
        m.memory_fault(op.ins, f"{op.ins.name} of a generic address that is not one of shared memory",
                       int(m.active()[first]), int(where[first]), 0, "")  # fmt: skip


@instruction("mapa")
def mapa(op: Op) -> None:
    """The address of the same place in the shared memory of another block of the cluster."""
    generic = not op.flag("shared::cluster")
    kind = op.type("u32", "u64")
    op.done(3)
    if generic and kind.bits == 32:
        op.fail("mapa.u32 of a generic address belongs to .address_size 32")
    write, read, rank = op.dest(0, kind), _address(op, 1, kind, generic=generic), op.source(2, _U32)
    window = SHARED_WINDOW if generic else 0

    def step(m: Machine) -> None:
        where = read(m).astype(np.uint64)
        if generic:
            _check_shared(m, op, where)
        place = where & np.uint64(_WITHIN)
        # A rank that the cluster has not must not come out as another one.
        number = np.minimum(rank(m).astype(np.uint64), np.uint64(254)) + np.uint64(1)
        if m.shape.cluster_blocks == 1:  # that is the block itself, whose addresses have no rank
            number = np.where(number == 1, np.uint64(0), number)
        write(m, (place | number << np.uint64(RANK_SHIFT) | np.uint64(window)).astype(kind.dtype))

    op.emit(step)


@instruction("getctarank")
def getctarank(op: Op) -> None:
    """The rank of the block that a shared address belongs to."""
    generic = not op.flag("shared::cluster")
    kind = op.type("u32", "u64")
    op.done(2)
    write, read = op.dest(0, _U32), _address(op, 1, kind, generic=generic)

    def step(m: Machine) -> None:
        where = read(m).astype(np.uint64)
        if generic:
            _check_shared(m, op, where)
        number = where >> np.uint64(RANK_SHIFT) & np.uint64(0xFF)
        own = m.of_active(m.block) % m.shape.cluster_blocks
        write(m, np.where(number == 0, own, number.astype(np.int64) - 1).astype(np.uint32))

    op.emit(step)
