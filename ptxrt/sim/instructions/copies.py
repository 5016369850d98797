"""cp.async and its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxrt.sim.instructions.data_movement import address, read_words
from ptxrt.sim.op import Getter, Op, instruction
from ptxrt.sim.program import Immediate, Register
from ptxrt.sim.spaces import Access, locate
from ptxrt.sim.types import TYPES, Array

if TYPE_CHECKING:
    from ptxrt.sim.lanes import Lanes

__all__: list[str] = []


@instruction("cp")
def cp_async(op: Op) -> None:
    """``cp.async``, ``.commit_group``, ``.wait_group`` and ``.wait_all``."""
    if not op.flag("async") or any(name.startswith(("bulk", "reduce", "mbarrier")) for name in op.ins.modifiers):
        op.unsupported(op.ins.opcode)
    if op.flag("commit_group"):
        op.done(0)
        op.emit(lambda m: m.copies.commit(m))
    elif op.flag("wait_all"):
        op.done(0)
        op.emit(lambda m: m.copies.wait(m, None))
    elif op.flag("wait_group"):
        op.done(1)
        but = op.integer(0)
        if but < 0:
            op.fail(f"cp.async.wait_group takes a number of groups, not {but}")
        op.emit(lambda m: m.copies.wait(m, but))
    else:
        _copy(op)


def _copy(op: Op) -> None:
    op.flag("ca", "cg")
    op.drop_prefixed("L1::", "L2::")
    if not op.flag("shared", "shared::cta") or not op.flag("global"):
        op.fail("cp.async copies from .global to .shared")
    op.done(3, 5)
    size = op.integer(2)
    if size not in (4, 8, 16):
        op.fail(f"cp.async copies 4, 8 or 16 bytes, not {size}")
    to, to_offset = address(op, 0, "shared")
    source, source_offset = address(op, 1, "global")
    kept = _kept(op, size)
    # Four bytes at a time where fewer than `size` are read; the whole piece is aligned all the same.
    reading = op.decoder.access(op.ins, "global", size, 4, False, source_offset)
    parts = [reading._replace(size=4, offset=source_offset + 4 * place) for place in range(size // 4)]
    writing = op.decoder.access(op.ins, "shared", size, 4, True, to_offset)
    announced = writing._replace(pending=True)

    def step(m: Lanes) -> None:
        where = to(m)
        locate(m, announced, where)
        if kept is None:
            values = [m.spread(value) for value in read_words(m, reading, source(m), 4)]
        else:
            values = _read_some(m, parts, m.spread(source(m)), m.spread(kept(m)))
        m.copies.start(m, writing, where, values)

    op.emit(step)


def _kept(op: Op, size: int) -> Getter | None:
    """Return the reader of how many bytes come from the source, zeros after them: given in bytes, or all or none."""
    if len(op.ins.operands) == 3:
        return None
    operand = op.operand(3)
    if isinstance(operand, Register) and operand.type.kind == "pred":
        ignored = op.source(3, TYPES["pred"])
        return lambda m: np.where(ignored(m), np.uint32(0), np.uint32(size))
    if isinstance(operand, Register) and operand.type.bits == 64:
        op.source(3, TYPES["u64"])  # a cache policy
        return None
    if not isinstance(operand, (Immediate, Register)):
        op.fail("cp.async takes a number of bytes as its fourth operand")
    return op.source(3, TYPES["u32"])


def _read_some(m: Lanes, parts: list[Access], where: Array, kept: Array) -> list[Array]:
    """Read words of which some lanes want a part or nothing, and touch no memory that is not asked for."""
    outer_idx, outer_count = m.idx, m.count
    active = m.active()
    found = []
    for place, part in enumerate(parts):
        value = np.zeros(outer_count, np.uint32)
        left = np.clip(kept.astype(np.int64) - 4 * place, 0, 4)
        lanes = left.nonzero()[0]
        if lanes.size:
            m.activate(active[lanes])
            mask = ((np.int64(1) << left[lanes] * 8) - 1).astype(np.uint32)
            value[lanes] = read_words(m, part, where[lanes], 4)[0] & mask
            m.idx, m.count = outer_idx, outer_count
        found.append(value)
    return found
