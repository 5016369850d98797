"""Instructions of a warp: shfl, vote, match, activemask, redux, elect, and bar.warp.sync.

The ``.sync`` forms wait until every lane that their mask names, and that has not exited, has come to the same
instruction. Reading a lane that takes no part gives 0, as on an H200.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.code import Step
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._machine.warp_barriers import masks
from ptxrt.sim._text.syntax import Pair, Sink
from ptxrt.sim._text.types import TYPES, Array

__all__ = ["together", "warp_barrier", "whole_warps"]

_U32 = TYPES["u32"]
_B32 = TYPES["b32"]
_PRED = TYPES["pred"]
_FULL = 0xFFFFFFFF


def ballot(m: Machine, flags: Array) -> Array:
    """Return, for each active lane, the mask of its warp's active lanes whose flag is set."""
    places = m.of_active(m.origin)
    bits = np.zeros(m.blocks * m.padded, np.bool_)
    bits[places] = flags
    return np.asarray(np.packbits(bits, bitorder="little").view(np.uint32)[places >> 5])


def _converge(m: Machine, at: int, mask: Getter) -> bool:
    """Join the lanes that wait at block `at`, park those whose warp is not complete; tell whether any go on."""
    held = m.waiting.pop(at, None)
    if held is not None:
        m.activate(m.merge(held, m.active()))
    if m.idx is None:
        return True
    present = masks(m, np.arange(m.n))[m.of_active(m.origin) >> 5]
    missing = mask(m) & present & ~ballot(m, np.ones(1, np.bool_))
    incomplete = missing != 0
    if not incomplete.any():
        return True
    # A warp waits as a whole: its complete lanes would otherwise run ahead of a mask that names them.
    lanes = m.active()
    m.waiting[at] = lanes[incomplete]
    going = lanes[~incomplete]
    if not going.size:
        return False
    m.activate(going)
    return True


def _check_named(m: Machine, op: Op, mask: Getter) -> None:
    """Check, if a launch asks for it, that each lane is one of those that its mask names."""
    if "shuffles" not in m.checks:
        return
    own = (m.of_active(m.origin) & 31).astype(np.uint32)
    named = mask(m) >> own & np.uint32(1)
    if not named.all():
        first = int((named == 0).nonzero()[0][0])
        m.fault(
            op.ins, f"{op.ins.name} in a lane that its mask does not name: what it does is undefined",
            int(m.active()[first]),
        )  # fmt: skip


def together(op: Op, mask: Getter | None, step: Step) -> None:
    """Emit `step` behind the convergence that `mask` asks for; None for the old forms, which ask for none."""
    if mask is None:

        def at_once(m: Machine) -> None:
            m.synchronised_warps()
            step(m)

        op.emit(at_once)
        return
    wanted = mask
    decoder = op.builder
    decoder.start_block()
    at = decoder.here + (1 if op.ins.guard is not None else 0)
    following = at + 1

    def end(m: Machine) -> int:
        _check_named(m, op, wanted)
        if not _converge(m, at, wanted):
            return GONE
        m.synchronised_warps()
        step(m)
        return following

    op.end(end)


def whole_warps(op: Op, step: Step) -> None:
    """Emit `step`, to run for whole warps: behind the convergence of all lanes of each, none of which may be gone."""

    def whole(m: Machine) -> None:
        places = m.of_active(m.origin)
        if m.count != m.blocks * m.padded:
            count = np.bincount(places >> 5, minlength=m.blocks * m.padded >> 5)
            short = (count[places >> 5] != 32).nonzero()[0]
            if short.size:
                first = int(short[0])
                missing = 32 - int(count[places[first] >> 5])
                lanes = "1 lane is" if missing == 1 else f"{missing} lanes are"
                problem = f"{op.ins.name} in a warp of which {lanes} not there, or exited before"
                m.fault(op.ins, f"{problem}: what it does is undefined", int(m.active()[first]))
        step(m)

    every = np.full(1, _FULL, np.uint32)
    together(op, lambda m: every, whole)


def warp_barrier(op: Op) -> None:
    """``bar.warp.sync mask``."""
    if not op.flag("sync"):
        op.fail("bar.warp takes .sync")
    op.done(1)
    wanted = op.source(0, _B32)
    following = op.builder.following(op.ins)

    def end(m: Machine) -> int:
        _check_named(m, op, wanted)
        return m.warp_barriers.sync(op.ins, wanted(m), following)

    op.end(end)


def _whole(m: Machine, value: Array) -> tuple[Array, Array]:
    """Return values and activity by padded place in the chunk; the value is 0 where nobody is active."""
    places = m.of_active(m.origin)
    held = np.zeros(m.blocks * m.padded, value.dtype)
    held[places] = value
    active = np.zeros(m.blocks * m.padded, np.bool_)
    active[places] = True
    return held, active


@instruction("shfl")
def shfl(op: Op) -> None:
    """Read another lane of the warp."""
    sync = op.flag("sync")
    way = op.choice("up", "down", "bfly", "idx")
    kind = op.type("b32")
    if way is None:
        op.fail("shfl takes .up, .down, .bfly or .idx")
    if not sync and op.builder.module.target_number >= 70:
        op.fail("shfl without .sync is gone from sm_70 on")
    op.done(5 if sync else 4)
    first = op.operand(0)
    pair = first if isinstance(first, Pair) else None
    if isinstance(pair.first if pair else first, Sink):
        op.fail("shfl gives a value, which cannot be left out")
    write = op.dest(pair.first if pair else first, kind)
    write_flag = op.dest(pair.second, _PRED) if pair else None
    value, offset, limits = op.source(1, kind), op.source(2, _U32), op.source(3, _U32)
    mask = op.source(4, _U32) if sync else None

    def step(m: Machine) -> None:
        places = m.of_active(m.origin)
        lane = places & 31
        by = offset(m).astype(np.int64) & 31
        c = limits(m).astype(np.int64)
        segment, clamp = c >> 8 & 31, c & 31
        low = lane & segment
        high = low | (clamp & ~segment)
        if way == "up":
            source = lane - by
            inside = source >= high
        else:
            source = lane + by if way == "down" else lane ^ by if way == "bfly" else low | (by & ~segment)
            inside = source <= high
        held, active = _whole(m, value(m))
        at = np.where(inside, (places & ~31) + (source & 31), places)
        if "shuffles" in m.checks and not active[at].all():
            first = int(np.invert(active[at]).nonzero()[0][0])
            m.fault(
                op.ins,
                f"{op.ins.name} reads lane {int(at[first]) & 31} of its warp, which takes no part: the value is "
                "undefined (0 on an H200)",
                int(m.active()[first]),
            )
        write(m, held[at])
        if write_flag is not None:
            write_flag(m, m.spread(np.asarray(inside)))

    together(op, mask, step)


@instruction("vote")
def vote(op: Op) -> None:
    """What the lanes of a warp say together."""
    sync = op.flag("sync")
    how = op.choice("all", "any", "uni", "ballot")
    if how is None:
        op.fail("vote takes .all, .any, .uni or .ballot")
    if not sync and op.builder.module.target_number >= 70:
        op.fail("vote without .sync is gone from sm_70 on")
    result = op.type("b32") if how == "ballot" else op.type("pred")
    op.done(3 if sync else 2)
    write, flags = op.dest(0, result), op.source(1, _PRED)
    mask = op.source(2, _U32) if sync else None

    def step(m: Machine) -> None:
        wanted = mask(m) if mask is not None else np.full(1, _FULL, np.uint32)
        yes = ballot(m, flags(m)) & wanted
        if how == "ballot":
            write(m, yes)
            return
        voters = ballot(m, np.ones(1, np.bool_)) & wanted
        if how == "any":
            write(m, yes != 0)
        elif how == "all":
            write(m, yes == voters)
        else:
            write(m, (yes == voters) | (yes == 0))

    together(op, mask, step)


@instruction("activemask")
def activemask(op: Op) -> None:
    """The lanes of the warp that run this together."""
    kind = op.type("b32")
    op.done(1)
    write = op.dest(0, kind)
    op.emit(lambda m: write(m, ballot(m, np.ones(1, np.bool_))))


@instruction("elect")
def elect(op: Op) -> None:
    """One lane of the mask, the lowest."""
    if not op.flag("sync"):
        op.fail("elect takes .sync")
    op.done(2)
    first = op.operand(0)
    if not isinstance(first, Pair) or isinstance(first.second, Sink):
        op.fail("elect.sync gives d|p")
    write, write_flag, mask = op.dest(first.first, _B32), op.dest(first.second, _PRED), op.source(1, _U32)

    def step(m: Machine) -> None:
        voters = ballot(m, np.ones(1, np.bool_)) & mask(m)
        lowest = voters & (~voters + np.uint32(1))
        leader = (np.frexp(lowest.astype(np.float64))[1] - 1).astype(np.uint32)
        write(m, leader)
        write_flag(m, leader == (m.of_active(m.origin) & 31))

    together(op, mask, step)


@instruction("match")
def match(op: Op) -> None:
    """Which lanes of the mask hold the same value."""
    how = op.choice("any", "all")
    if not op.flag("sync"):
        op.fail("match takes .sync")
    kind = op.type("b32", "b64")
    if how is None:
        op.fail("match takes .any or .all")
    op.done(3)
    first = op.operand(0)
    pair = first if isinstance(first, Pair) else None
    if pair and how == "any" and not isinstance(pair.second, Sink):
        op.fail("match.any gives no predicate")
    if how == "any" and isinstance(pair.first if pair else first, Sink):
        op.fail("match.any gives a value, which cannot be left out")
    write = op.dest(pair.first if pair else first, _B32)
    write_flag = op.dest(pair.second, _PRED) if pair else None
    value, mask = op.source(1, kind), op.source(2, _U32)

    def step(m: Machine) -> None:
        own = m.spread(value(m))
        held, active = _whole(m, own)
        base = m.of_active(m.origin) & ~31
        same = np.zeros(m.count, np.uint32)
        voters = np.zeros(m.count, np.uint32)
        for lane in range(32):
            voters |= active[base + lane].astype(np.uint32) << np.uint32(lane)
            same |= (active[base + lane] & (held[base + lane] == own)).astype(np.uint32) << np.uint32(lane)
        wanted = mask(m)
        if how == "any":
            write(m, same & wanted)
            return
        agreed = (same & wanted) == (voters & wanted)
        write(m, np.where(agreed, voters & wanted, np.uint32(0)))
        if write_flag is not None:
            write_flag(m, agreed)

    together(op, mask, step)


_REDUCE: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@instruction("redux")
def redux(op: Op) -> None:
    """Reduction over the lanes of the mask."""
    if not op.flag("sync"):
        op.fail("redux takes .sync")
    how = op.choice(*_REDUCE)
    if how is None:
        op.fail(f"redux.sync takes one of .{' .'.join(_REDUCE)}")
    absolute, keeps_nan = op.flag("abs"), op.flag("NaN")
    if how in ("min", "max") and op.builder.module.target_number >= 100:
        kind = op.type("u32", "s32", "f32")
    else:
        kind = op.type("b32") if how in ("and", "or", "xor") else op.type("u32", "s32")
    if kind.is_float and not op.builder.module.target.endswith(("a", "f")):
        op.fail(f"redux.sync.{how}.f32 needs a target of its own such as sm_100a, not {op.builder.module.target}")
    if (absolute or keeps_nan) and not kind.is_float:
        op.fail("redux.sync takes .abs and .NaN with .f32 only")
    op.done(3)
    write, value, mask = op.dest(0, kind), op.source(1, kind), op.source(2, _U32)
    combine = _REDUCE[how]
    if kind.is_float and not keeps_nan:
        combine = np.fmin if how == "min" else np.fmax

    def step(m: Machine) -> None:
        own = m.spread(np.abs(value(m)) if absolute else value(m))
        held, active = _whole(m, own)
        places = m.of_active(m.origin)
        base = places & ~31
        wanted = mask(m)
        result = own
        for lane in range(32):
            at = base + lane
            part = active[at] & ((wanted >> np.uint32(lane) & np.uint32(1)) != 0) & (at != places)
            result = np.where(part, combine(result, held[at]), result)
        write(m, np.array(result))

    together(op, mask, step)
