"""cp.async and its groups."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.addressing import address
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.memory import READ_ONLY_BIT
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._machine.spaces import locate
from ptxrt.sim._machine.words import read_words
from ptxrt.sim._text.syntax import Negated, Register
from ptxrt.sim._text.types import TYPES, Array

__all__: list[str] = []

_MASK64 = (1 << 64) - 1


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
    where = op.choice("ca", "cg")
    op.flag("L2::64B", "L2::128B", "L2::256B")
    hinted = op.flag("L2::cache_hint")
    spaces = [name for name in op.ins.modifiers if name in ("shared", "shared::cta", "global")]
    if not op.flag("shared", "shared::cta") or not op.flag("global") or spaces[-1] != "global":
        op.fail("cp.async copies from .global to .shared")
    op.done(3 + hinted, 4 + hinted)
    if hinted:
        op.source(len(op.ins.operands) - 1, TYPES["b64"])
    size = op.integer(2)
    if size not in (4, 8, 16):
        op.fail(f"cp.async copies 4, 8 or 16 bytes, not {size}")
    if where is None or (where == "cg" and size != 16):
        op.fail("cp.async takes .ca, or .cg for 16 bytes")
    to, to_offset = address(op, 0, "shared")
    source, source_offset = address(op, 1, "global")
    wanted = None if len(op.ins.operands) == 3 + hinted else _bytes_wanted(op, size)
    reading = op.builder.access(op.ins, "global", size, 4, False, source_offset)
    writing = op.builder.access(op.ins, "shared", size, 4, True, to_offset)
    announced, writing = writing._replace(pending=True), writing._replace(arrives=True)

    def step(m: Machine) -> None:
        where = to(m)
        locate(m, announced, where)
        if wanted is None:
            values = [m.spread(value) for value in read_words(m, reading, source(m), 4)]
        else:
            values = _read_some(m, reading, m.spread(source(m)), m.spread(wanted(m)))
        m.copies.start(m, writing, where, values)

    op.emit(step)


def _bytes_wanted(op: Op, size: int) -> Getter:
    """Return the reader of how many bytes come from the source, zeros after them: given in bytes, or all or none."""
    operand = op.operand(3)
    if isinstance(operand, Negated) or (isinstance(operand, Register) and operand.type.kind == "pred"):
        ignored = op.source(3, TYPES["pred"])
        return lambda m: np.where(ignored(m), np.uint32(0), np.uint32(size))
    op.bounded(3, 0, size)
    return op.source(3, TYPES["u32"])


def _read_some(m: Machine, access: Access, where: Array, wanted: Array) -> list[Array]:
    """Read pieces of which some lanes want a part or nothing, and touch no memory that is not asked for."""
    _check_wanted(m, access, where, wanted)
    found = np.zeros((m.count, access.size), np.uint8)
    outer_idx, outer_count, active = m.idx, m.count, m.active()

    def read(lanes: Array, size: int, place: int) -> None:
        if lanes.size:
            m.activate(active[lanes])
            part = access._replace(size=size, offset=access.offset + place)
            words = m.spread(read_words(m, part, where[lanes], size)[0])
            found[lanes, place : place + size] = words.view(np.uint8).reshape(-1, size)
            m.idx, m.count = outer_idx, outer_count

    for place in range(0, access.size, 4):
        read((wanted >= place + 4).nonzero()[0], 4, place)
        for rest in range(3):
            read(((wanted > place + rest) & (wanted < place + 4)).nonzero()[0], 1, place + rest)
    return list(np.ascontiguousarray(found.view(np.uint32).T))


def _check_wanted(m: Machine, access: Access, where: Array, wanted: Array) -> None:
    """Check that no lane asks for more bytes than it copies, and that its source is aligned as the whole piece."""
    address = where + np.uint64(access.offset & _MASK64)
    for bad, problem in (
        (wanted > access.size, f"cp.async of {access.size} bytes that reads more"),
        ((wanted > 0) & ((address & np.uint64(access.size - 1)) != 0),
         f"cp.async of {access.size} bytes from an address that is not a multiple of {access.size}"),
    ):  # fmt: skip
        if bad.any():
            first = int(bad.nonzero()[0][0])
            at = int(address[first]) & ~READ_ONLY_BIT
            m.memory_fault(access.ins, problem, int(m.active()[first]), at, access.size, m.memory.describe(at))
