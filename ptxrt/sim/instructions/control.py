"""bra, brx.idx, call, ret, exit, trap, and the fences, which need nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxrt.sim.code import GONE, Step, Target
from ptxrt.sim.op import Getter, Op, Setter, getter, instruction, setter
from ptxrt.sim.program import Function, Instruction, Name, Operand, Register, Symbol, Tuple, Variable
from ptxrt.sim.types import TYPES

if TYPE_CHECKING:
    from ptxrt.sim.decode import Frame
    from ptxrt.sim.lanes import Lanes

__all__: list[str] = []

_U32 = TYPES["u32"]


@instruction("bra")
def bra(op: Op) -> None:
    """Branch."""
    op.flag("uni")
    op.done(1)
    target = op.decoder.label(op, op.operand(0))
    op.decoder.branch(op.ins, target, when=not op.ins.guard_negated)


@instruction("brx")
def brx(op: Op) -> None:
    """Branch by a table of labels."""
    if not op.flag("idx"):
        op.fail("brx is brx.idx")
    op.flag("uni")
    op.done(2)
    index = op.source(0, _U32)
    name = op.operand(1)
    table = op.decoder.frame.function.tables.get(name.text) if isinstance(name, Name) else None
    if table is None:
        op.fail("brx.idx takes the label of .branchtargets, declared before it")
    targets = [op.decoder.label(op, Name(label)) for label in table]

    def end(m: Lanes) -> int:
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
    op.flag("uni")
    op.done(0)
    if op.ins.name == "exit":
        op.end(lambda m: m.exit())
    else:
        op.decoder.ret(op.ins)


@instruction("trap")
def trap(op: Op) -> None:
    """Abort the launch."""
    op.done(0)
    op.emit(lambda m: m.trap(op.ins))


@instruction("call")
def call(op: Op) -> None:
    """Call a function: its body is decoded here once more."""
    op.flag("uni")
    op.done(1, 4)
    operands = list(op.ins.operands)
    returns = operands.pop(0) if isinstance(operands[0], Tuple) else Tuple(())
    name = operands.pop(0) if operands else None
    given = operands.pop(0) if operands else Tuple(())
    if isinstance(name, (Register, Symbol)) or operands:
        op.unsupported("an indirect call")
    if not isinstance(name, Name) or not isinstance(returns, Tuple) or not isinstance(given, Tuple):
        op.fail("call takes (results), a function, (arguments)")
    function = op.decoder.module.functions.get(name.text)
    if function is None:
        op.fail(f"unknown function {name.text}")
    if not function.defined:
        op.unsupported(f"a call of {name.text}, which the text declares and does not define")
    if op.decoder.too_deep(function):
        op.unsupported(f"a recursive call of {name.text}")
    if len(returns.items) != len(function.returns) or len(given.items) != len(function.params):
        op.fail(f"{name.text} takes {len(function.params)} arguments and gives {len(function.returns)} results")
    skip = Target()
    if op.ins.guard is not None:
        op.decoder.branch(op.ins, skip, when=op.ins.guard_negated)
    _inline(op, function, returns.items, given.items)
    op.decoder.bind(skip)


def _inline(op: Op, function: Function, returns: tuple[Operand, ...], given: tuple[Operand, ...]) -> None:
    decoder = op.decoder
    after = Target()
    frame = decoder.new_frame(function, after)
    for formal, actual in zip(function.params, given, strict=True):
        _pass(op, frame, formal, actual)
    for formal, actual in zip(function.returns, returns, strict=True):
        if isinstance(formal, Variable):
            _pass(op, frame, formal, actual)
    decoder.inline(frame)
    decoder.bind(after)
    for formal, actual in zip(function.returns, returns, strict=True):
        if isinstance(formal, Register):
            read = getter(decoder.register_in(frame, formal), formal.type, formal.type)
            decoder.emit(_plain(op.ins), _copy(read, op.dest(actual, formal.type)))


def _pass(op: Op, frame: Frame, formal: Variable | Register, actual: Operand) -> None:
    """Let a formal parameter stand for the caller's variable, or copy a register or constant into it."""
    if isinstance(formal, Variable):
        if isinstance(actual, Symbol) and actual.variable.space == "param":
            frame.passed[formal] = (op.decoder.frame, actual.variable)
            return
        held = TYPES[f"b{formal.type.bits}"]
        slot = op.decoder.param_word_in(frame, formal, 0, held)
        write = setter(slot, formal.type, held)
    else:
        write = setter(op.decoder.register_in(frame, formal), formal.type, formal.type)
    op.decoder.emit(_plain(op.ins), _copy(op.source(actual, formal.type), write))


def _copy(read: Getter, write: Setter) -> Step:
    return lambda m: write(m, np.copy(read(m)))


def _plain(ins: Instruction) -> Instruction:
    """Return the instruction without its guard: the branch around a guarded call has dealt with that."""
    return Instruction(ins.name, ins.modifiers, ins.operands, None, False, ins.line, ins.scope)


@instruction("membar", "fence")
def fence(op: Op) -> None:
    """Nothing to do: every write is seen at once."""
    if op.flag("proxy"):
        op.drop_prefixed("")
    op.flag("sc", "acq_rel", "acquire", "release", "mbarrier_init")
    op.drop_prefixed("sync_restrict", "proxy", "tensormap")
    if not op.flag("cta", "cluster", "gpu", "sys", "gl") and op.ins.name == "membar":
        op.fail("membar takes .cta, .gl or .sys")
    op.done(0, 2)


@instruction("nanosleep")
def nanosleep(op: Op) -> None:
    """Nothing to do."""
    kind = op.type("u32")
    op.done(1)
    op.source(0, kind)
