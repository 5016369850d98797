"""bra, brx.idx, ret, exit, trap, and the fences, which need nothing."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.addressing import address
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Name
from ptxrt.sim._text.types import TYPES

__all__: list[str] = []

_U32 = TYPES["u32"]


@instruction("bra")
def bra(op: Op) -> None:
    """Branch."""
    op.flag("uni")
    op.done(1)
    target = op.label(op.operand(0))
    op.builder.branch(op.ins, target, when=not op.ins.guard_negated)


@instruction("brx")
def brx(op: Op) -> None:
    """Branch by a table of labels."""
    if not op.flag("idx"):
        op.fail("brx is brx.idx")
    op.flag("uni")
    op.done(2)
    index = op.source(0, _U32)
    name = op.operand(1)
    table = op.builder.frame.body.tables.get(name.text) if isinstance(name, Name) else None
    if table is None:
        op.fail("brx.idx takes the label of .branchtargets, declared before it")
    targets = [op.label(Name(label)) for label in table]

    def end(m: Machine) -> int:
        chosen = m.spread(index(m))
        lanes = m.active()
        for number in np.unique(chosen):
            if int(number) >= len(targets):
                lane = int(lanes[(chosen == number).nonzero()[0][0]])
                m.memory_fault(op.ins, f"brx.idx to entry {number} of {len(targets)}", lane, int(number), 0, "")
            m.defer(targets[int(number)].block, lanes[(chosen == number).nonzero()[0]])
        return GONE

    op.end(end)


@instruction("ret", "exit")
def ret(op: Op) -> None:
    """Leave the function, or the kernel."""
    if op.ins.name == "ret":
        op.flag("uni")
    op.done(0)
    if op.ins.name == "exit":
        op.end(lambda m: m.exit())
    else:
        op.builder.leave(op.ins)


@instruction("trap", "brkpt")
def trap(op: Op) -> None:
    """Abort the launch. A breakpoint is the same where no debugger is: ptxas makes one instruction of both."""
    op.done(0)
    op.emit(lambda m: m.trap(op.ins, op.ins.name))


@instruction("membar", "fence")
def fence(op: Op) -> None:
    """Something for the race models only: every write is seen at once."""
    scope = None
    if op.flag("proxy"):
        _proxy(op)
    elif op.ins.name == "membar":
        scope = op.choice("cta", "gl", "sys")
        if scope is None:
            op.fail("membar takes .cta, .gl or .sys")
        op.done(0)
    else:
        initial = op.flag("mbarrier_init")
        order = op.choice("sc", "acq_rel", "acquire", "release")
        if order in ("acquire", "release") and not initial:
            op.needs(f"fence.{order}", 90, (8, 6))
        restricted = _restricted(op, order)
        scope = op.choice("cta", "cluster", "gpu", "sys")
        if scope is None:
            op.fail("fence takes .cta, .cluster, .gpu or .sys")
        if ((restricted or initial) and scope != "cluster") or (initial and order != "release"):
            op.fail(f"{op.ins.opcode}: such a fence is one of a .cluster{', and .release' if initial else ''}")
        op.done(0)
    wide = scope != "cta"
    op.emit(lambda m: m.fence(wide=wide))


def _restricted(op: Op, order: str | None) -> bool:
    """Tell whether a fence orders some state spaces alone, which go with what it does."""
    space = {"acquire": "cluster", "release": "cta"}.get(order or "")
    return bool(space) and op.flag(f"sync_restrict::shared::{space}")


def _proxy(op: Op) -> None:
    """Check a fence between ways to memory, all of which see the same here."""
    kinds = ("alias", "async", "async::generic", "tensormap::generic")
    kind = op.choice(*(kinds if op.ins.name == "fence" else kinds[:1]))
    if kind is None:
        op.fail(f"{op.ins.name}.proxy names no proxy such as .alias")
    if kind == "async":
        op.flag("global", "shared::cta", "shared::cluster")
    elif kind == "async::generic":
        order = op.choice("acquire", "release")
        if not _restricted(op, order) or not op.flag("cluster"):
            op.fail(f"fence.proxy.{kind} takes .acquire or .release, .sync_restrict and .cluster")
    elif kind == "tensormap::generic":
        order = op.choice("acquire", "release")
        if order is None or not op.flag("cta", "cluster", "gpu", "sys"):
            op.fail(f"fence.proxy.{kind} takes .acquire or .release, and a scope")
        if order == "acquire":
            op.done(2)
            address(op, 0, "generic")
            op.integer(1, within=(128, 128))
            return
    op.done(0)


@instruction("griddepcontrol")
def griddepcontrol(op: Op) -> None:
    """Nothing to do: launches follow each other."""
    if not op.flag("wait", "launch_dependents"):
        op.fail("griddepcontrol takes .wait or .launch_dependents")
    op.done(0)


@instruction("pmevent")
def pmevent(op: Op) -> None:
    """Nothing to do: there are no counters."""
    most = 0xFFFF if op.flag("mask") else 15
    op.done(1)
    op.integer(0, within=(0, most))


@instruction("discard", "applypriority")
def cached(op: Op) -> None:
    """Nothing to do: there are no caches."""
    op.flag("global")
    level = "L2" if op.ins.name == "discard" else "L2::evict_normal"
    if not op.flag(level):
        op.fail(f"{op.ins.name} takes .{level}")
    op.done(2)
    address(op, 0, "global" if "global" in op.ins.modifiers else "generic")
    op.integer(1, within=(128, 128))


@instruction("nanosleep")
def nanosleep(op: Op) -> None:
    """Nothing to do."""
    kind = op.type("u32")
    op.done(1)
    op.source(0, kind)
