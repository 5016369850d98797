"""What the instructions that access memory have in common: state space, order, hints, and the address."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.op import Op, getter
from ptxrt.sim._machine.code import Step
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._text.syntax import Address, Register, Symbol, Variable
from ptxrt.sim._text.types import TYPES

__all__ = ["HINTS", "SPACES", "address", "hinted", "in_order", "is_passed", "is_strong", "space_of"]

SPACES = ("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster", "param::entry",
           "param::func")  # fmt: skip
_ORDERS = {
    "ld": ("weak", "volatile", "relaxed", "acquire", "mmio"),
    "st": ("weak", "volatile", "relaxed", "release", "mmio"),
    "atom": ("relaxed", "acquire", "release", "acq_rel"),
    "red": ("relaxed", "release"),
}
_STRONG = frozenset(("volatile", "relaxed", "acquire", "release", "mmio", "acq_rel"))
_SCOPES = ("cta", "cluster", "gpu", "sys")
_CACHE = {"ld": ("ca", "cg", "cs", "lu", "cv", "nc", "unified"), "ldu": ("unified",), "st": ("wb", "cg", "cs", "wt")}
_UNCACHED = frozenset(("ca", "cg", "cs", "lu", "cv", "wb", "wt", "volatile"))
"""Those that say themselves what the first cache does."""
_POLICY = "L2::cache_hint"
HINTS = ("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
          "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B",
          _POLICY)  # fmt: skip
_U64 = TYPES["u64"]


def space_of(op: Op) -> str:
    """Return the state space named by the modifiers, or ``generic``; steps over ordering and cache modifiers."""
    space = op.choice(*SPACES)
    name = op.ins.name
    orders = {order for order in _ORDERS.get(name, ()) if op.flag(order)}
    scope = op.choice(*_SCOPES)
    hints = set()
    while (hint := op.choice(*HINTS)) is not None:
        hints.add(hint)
    _check_hints(op, hints, space or "generic")
    if name in ("ld", "st"):
        _check_order(op, orders, scope, space or "generic")
    else:
        op.flag(*_CACHE.get(name, ()))
    return space if space == "shared::cluster" else (space or "generic").partition("::")[0]


def _check_hints(op: Op, hints: set[str], space: str) -> None:
    """Check which cache hints go with the instruction, its state space and its other modifiers."""
    given, name = set(op.ins.modifiers), op.ins.name
    if hints and space not in ("generic", "global"):
        op.fail(f"{name} takes .{min(hints)} in .global only")
    first = {hint for hint in hints if hint.startswith("L1::")}
    sizes = {hint for hint in hints if hint.endswith("B")}
    if name not in ("ld", "st"):
        unfit = hints - {_POLICY}
    elif len(first) > 1 or given & _UNCACHED:
        unfit = first
    else:
        unfit = set()
    if name == "st" or len(sizes) > 1:
        unfit |= sizes
    if "volatile" in given:
        unfit |= hints & {_POLICY}
    if unfit:
        op.fail(f"{op.ins.opcode} takes no .{min(unfit)}")


def _check_order(op: Op, orders: set[str], scope: str | None, space: str) -> None:
    """Check which order, scope and cache operator go together."""
    ordered = bool(orders - {"weak", "volatile"})
    if ordered and scope is None:
        op.fail(f"{op.ins.name}.{min(orders)} takes a scope: .cta, .cluster, .gpu or .sys")
    if scope is not None and not ordered:
        op.fail(f"{op.ins.name}.{scope} takes an order such as .relaxed")
    stem = space.partition("::")[0]
    if orders == {"volatile"} and stem == "local":
        op.needs(f"{op.ins.name}.volatile.local", 0, (9, 1))
    elif orders - {"weak"} and stem not in ("generic", "global", "shared"):
        op.fail(f"{op.ins.name}.{min(orders)} is for .global and .shared")
    if "mmio" in orders and (scope != "sys" or stem == "shared"):
        op.fail(f"{op.ins.name}.mmio is for .global, and takes .sys")
    if orders - {"weak"}:
        return
    while (cache := op.choice(*_CACHE[op.ins.name])) is not None:
        if cache == "nc" and (space != "global" or orders):
            op.fail("ld.nc is for .global, and weak without saying so")


def hinted(op: Op, operands: int) -> None:
    """Check the number of operands: one more, a cache policy, with .L2::cache_hint."""
    if _POLICY not in op.ins.modifiers:
        op.done(operands)
        return
    op.done(operands + 1)
    op.source(operands, TYPES["b64"])


def is_strong(op: Op) -> bool:
    """Tell whether the access is ordered (volatile, relaxed, ...) and so does not race with others like it."""
    return not _STRONG.isdisjoint(op.ins.modifiers)


def in_order(op: Op, step: Step) -> Step:
    """Return the step with the fences that .release and .acquire are to the race models."""
    names = op.ins.modifiers
    releases = "release" in names or "acq_rel" in names
    acquires = "acquire" in names or "acq_rel" in names
    if not releases and not acquires:
        return step
    wide = "cta" not in names

    def ordered(m: Machine) -> None:
        if releases:
            m.fence(wide=wide)
        step(m)
        if acquires:
            m.fence(wide=wide)

    return ordered


def address(op: Op, place: int, space: str) -> tuple[Getter, int]:
    """Return the reader of an address register (or of a variable's address) and the constant offset."""
    operand = op.operand(place)
    if isinstance(operand, Symbol) and operand.indexed:
        operand = Address(operand.variable, operand.addend)
    if not isinstance(operand, Address):
        op.fail(f"{op.ins.name} takes an address in brackets as operand {place + 1}")
    base = operand.base
    if isinstance(base, Register):
        kind = base.type
        if not kind.is_int or kind.bits > 64:
            op.fail(f"{base.name} is .{kind.name} and cannot hold an address")
        if kind.bits < 64 and space in ("generic", "global", "const", "param"):
            op.fail(f"{base.name} is .{kind.name}; an address of .{space} has 64 bits")
        return getter(op.builder.register(base), kind, kind), operand.offset
    if isinstance(base, Variable):
        # Parameters have no generic address without cvta.
        if space.partition("::")[0] != base.space and (space != "generic" or base.space == "param"):
            op.fail(f"{base.name} is in .{base.space}, and {op.ins.opcode} is for .{space}")
        slot = op.builder.symbol(Symbol(base, 0), _U64, generic=space == "generic")
        return getter(slot, _U64, _U64), operand.offset
    if space != "local":
        op.fail("a number can be an address in .local only")
    return getter(op.builder.constant(np.zeros(1, np.uint64)), _U64, _U64), operand.offset


def is_passed(op: Op, variable: Variable) -> bool:
    """Tell whether a variable is a parameter of a call, not of the entry."""
    function = op.builder.frame.function
    return variable.space == "param" and not (function.is_entry and variable in function.params)
