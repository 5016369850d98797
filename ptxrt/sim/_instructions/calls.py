"""call: a body decoded in place where that is possible, else a call of code that stands once."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.addressing import is_passed
from ptxrt.sim._instructions.builder import Builder, Frame
from ptxrt.sim._instructions.op import Op, getter, instruction, setter
from ptxrt.sim._instructions.system_calls import SYSTEM
from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.branches import GONE, Target
from ptxrt.sim._machine.code import Step
from ptxrt.sim._machine.outlined import Outlined, Word
from ptxrt.sim._machine.protocol import Getter, Machine, Setter
from ptxrt.sim._machine.words import read_words, write_words
from ptxrt.sim._text.syntax import Function, Instruction, Name, Operand, Prototype, Register, Symbol, Tuple, Variable
from ptxrt.sim._text.types import TYPES, PtxType

__all__ = ["give_back", "receive"]

_U64 = TYPES["u64"]


@instruction("call")
def call(op: Op) -> None:
    """Call a function by its name, or by a pointer."""
    op.flag("uni")
    op.done(1, 4)
    operands = list(op.ins.operands)
    returns = operands.pop(0) if isinstance(operands[0], Tuple) else Tuple(())
    name = operands.pop(0) if operands else None
    given = operands.pop(0) if operands and isinstance(operands[0], Tuple) else Tuple(())
    if not isinstance(returns, Tuple) or not isinstance(given, Tuple):
        op.fail("call takes (results), a function, (arguments)")
    results, arguments = _elements(returns), _elements(given)
    skip = Target()
    if op.ins.guard is not None:
        op.builder.branch(op.ins, skip, when=op.ins.guard_negated)
    if isinstance(name, Register):
        _by_pointer(op, name, operands, results, arguments)
    elif isinstance(name, Name) and not operands:
        _by_name(op, name.text, results, arguments)
    else:
        op.fail("call takes (results), a function, (arguments)")
    op.builder.bind(skip)


def _elements(listed: Tuple) -> tuple[Operand, ...]:
    """Return the operands with each vector of registers as its elements."""
    return tuple(part for one in listed.items for part in (one.items if isinstance(one, Tuple) else (one,)))


def _by_name(op: Op, name: str, returns: tuple[Operand, ...], given: tuple[Operand, ...]) -> None:
    function = op.builder.module.functions.get(name)
    if function is None:
        op.fail(f"unknown function {name}")
    if not function.defined:
        if name not in SYSTEM:
            op.unsupported(f"a call of {name}, which the text declares and does not define")
        _by_system(op, name, function, returns, given)
        return
    if function.is_entry:
        op.fail(f"{name} is an .entry and cannot be called")
    _check(op, name, function, returns, given)
    if op.builder.can_inline(function):
        _inline(op, function, returns, given)
        return
    callee = op.builder.outlined(function)
    for step in _arguments(op, callee.params, function.params, given):
        op.builder.emit(_plain(op.ins), step)
    following = op.builder.here + 1
    op.builder.close(lambda m: m.calls.enter(m, callee, following, op.ins), op.ins)
    for step in _results(op, callee.returns, function.returns, returns):
        op.builder.emit(_plain(op.ins), step)


def _by_system(op: Op, name: str, function: Function, returns: tuple[Operand, ...], given: tuple[Operand, ...]) -> None:
    params, results, define = SYSTEM[name]
    if _sizes(function) != (params, results):
        op.fail(f"{name} has parameters of {params} bytes and results of {results}, not {_sizes(function)}")
    _check(op, name, function, returns, given)
    sources = [_source(op, actual, formal.type) for formal, actual in zip(function.params, given, strict=True)]
    run = define(op, sources)

    def without_result(m: Machine) -> None:
        run(m)

    step: Step = without_result
    for formal, actual in zip(function.returns, returns, strict=True):
        if isinstance(actual, Symbol) and is_passed(op, actual.variable):
            step = _store(op.builder, op.ins, actual.variable, actual.addend, formal.type, run)
        else:
            step = _copy(run, op.dest(actual, formal.type))
    op.builder.emit(_plain(op.ins), step)


def _check(
    op: Op, name: str, called: Function | Prototype, returns: tuple[Operand, ...], given: tuple[Operand, ...]
) -> None:
    if len(returns) != len(called.returns) or len(given) != len(called.params):
        op.fail(f"{name} takes {len(called.params)} arguments and gives {len(called.returns)} results")
    for formal, actual in zip((*called.params, *called.returns), (*given, *returns), strict=True):
        if isinstance(actual, Symbol) and is_passed(op, actual.variable) and isinstance(formal, Variable):
            if actual.variable.size != formal.size:
                op.fail(f"{actual.variable.name} has {actual.variable.size} bytes where {name} takes {formal.size}")
        elif isinstance(formal, Variable) and formal.size != formal.type.size:
            op.fail(f"{name} takes an array of {formal.size} bytes, which must be a .param variable")


def _inline(op: Op, function: Function, returns: tuple[Operand, ...], given: tuple[Operand, ...]) -> None:
    builder = op.builder
    after = Target()
    frame = builder.new_frame(function, after)
    for formal, actual in zip(function.params, given, strict=True):
        _pass(op, frame, formal, actual)
    back = []
    for formal, actual in zip(function.returns, returns, strict=True):
        if isinstance(formal, Variable) and isinstance(actual, Symbol):
            _pass(op, frame, formal, actual)
        else:
            back.append((formal, actual))
    builder.inline(frame)
    builder.bind(after)
    for formal, actual in back:
        read = _reader(op, frame, formal)
        builder.emit(_plain(op.ins), _copy(read, op.dest(actual, formal.type)))


def _pass(op: Op, frame: Frame, formal: Variable | Register, actual: Operand) -> None:
    """Let a formal parameter stand for the caller's variable, or copy a register or constant into it."""
    if isinstance(formal, Variable) and isinstance(actual, Symbol) and is_passed(op, actual.variable):
        frame.passed[formal] = (op.builder.frame, actual.variable)
        return
    read = _source(op, actual, formal.type)
    outer, op.builder.frame = op.builder.frame, frame
    if isinstance(formal, Variable):
        step = _store(op.builder, op.ins, formal, 0, formal.type, read)
    else:
        step = _copy(read, setter(op.builder.register(formal), formal.type, formal.type))
    op.builder.frame = outer
    op.builder.emit(_plain(op.ins), step)


def _reader(op: Op, frame: Frame, formal: Variable | Register) -> Getter:
    outer, op.builder.frame = op.builder.frame, frame
    if isinstance(formal, Variable):
        read = _load(op.builder, op.ins, formal, 0, formal.type)
    else:
        read = getter(op.builder.register(formal), formal.type, formal.type)
    op.builder.frame = outer
    return read


def _source(op: Op, actual: Operand, kind: PtxType) -> Getter:
    if isinstance(actual, Symbol) and is_passed(op, actual.variable):
        return _load(op.builder, op.ins, actual.variable, actual.addend, kind)
    return op.source(actual, kind, special=True)


# -- parameters in local memory ------------------------------------------------------------------------------------


def _load(builder: Builder, ins: Instruction, variable: Variable, offset: int, kind: PtxType) -> Getter:
    where = getter(builder.home(variable), _U64, _U64)
    access = Access(ins, "local", kind.size, False, offset)
    return lambda m: read_words(m, access, where(m), kind.size)[0].view(kind.dtype)


def _store(builder: Builder, ins: Instruction, variable: Variable, offset: int, kind: PtxType, read: Getter) -> Step:
    where = getter(builder.home(variable), _U64, _U64)
    access = Access(ins, "local", kind.size, True, offset)
    return lambda m: write_words(m, access, where(m), [read(m).view(f"u{kind.size}")])


def _copy(read: Getter, write: Setter) -> Step:
    return lambda m: write(m, np.copy(read(m)))


def _plain(ins: Instruction) -> Instruction:
    """Return the instruction without its guard: the branch around a guarded call has dealt with that."""
    return Instruction(ins.name, ins.modifiers, ins.operands, None, False, ins.line, ins.scope)


# -- calls of code that stands once --------------------------------------------------------------------------------


def _arguments(
    op: Op, words: list[list[Word]], formals: tuple[Variable | Register, ...], given: tuple[Operand, ...]
) -> list[Step]:
    """Return what brings the arguments on their way."""
    found = []
    for parts, formal, actual in zip(words, formals, given, strict=True):
        if isinstance(actual, Symbol) and is_passed(op, actual.variable):
            for word in parts:
                read = _load(op.builder, op.ins, actual.variable, word.offset, word.type)
                found.append(_copy(read, setter(word.slot, word.type, word.type)))
        else:
            found.append(_copy(_source(op, actual, formal.type), setter(parts[0].slot, formal.type, parts[0].type)))
    return found


def _results(
    op: Op, words: list[list[Word]], formals: tuple[Variable | Register, ...], returns: tuple[Operand, ...]
) -> list[Step]:
    """Return what puts the results where the caller wants them."""
    found = []
    for parts, formal, actual in zip(words, formals, returns, strict=True):
        if isinstance(actual, Symbol) and is_passed(op, actual.variable):
            for word in parts:
                read = getter(word.slot, word.type, word.type)
                found.append(_store(op.builder, op.ins, actual.variable, word.offset, word.type, read))
        else:
            found.append(_copy(getter(parts[0].slot, parts[0].type, formal.type), op.dest(actual, formal.type)))
    return found


def receive(builder: Builder, callee: Outlined) -> None:
    """Emit what a function does first: take its arguments from their way."""
    ins = Instruction("call", (), (), None, False, callee.function.line, 0)
    for parts, formal in zip(callee.params, callee.function.params, strict=True):
        for word in parts:
            read = getter(word.slot, word.type, word.type)
            if isinstance(formal, Variable):
                builder.emit(ins, _store(builder, ins, formal, word.offset, word.type, read))
            else:
                builder.emit(ins, _copy(read, setter(builder.register(formal), word.type, word.type)))


def give_back(builder: Builder, callee: Outlined) -> list[Step]:
    """Return what a function does last: bring its results on their way."""
    ins = Instruction("ret", (), (), None, False, callee.function.line, 0)
    found = []
    for parts, formal in zip(callee.returns, callee.function.returns, strict=True):
        for word in parts:
            if isinstance(formal, Variable):
                read = _load(builder, ins, formal, word.offset, word.type)
            else:
                read = getter(builder.register(formal), word.type, word.type)
            found.append(_copy(read, setter(word.slot, word.type, word.type)))
    return found


def _by_pointer(
    op: Op, pointer: Register, rest: list[Operand], returns: tuple[Operand, ...], given: tuple[Operand, ...]
) -> None:
    if len(rest) != 1 or not isinstance(rest[0], Name):
        op.fail("a call by pointer names a .callprototype or .calltargets")
    prototype = op.builder.frame.body.prototypes.get(rest[0].text)
    if prototype is None:
        op.fail(f"unknown .callprototype or .calltargets {rest[0].text}")
    module = op.builder.module
    if prototype.targets is None:
        _check(op, rest[0].text, prototype, returns, given)
        functions = module.addressed
    else:
        functions = []
        for name in prototype.targets:
            if name not in module.functions:
                op.fail(f"unknown function {name}")
            functions.append(module.functions[name])
            _check(op, name, functions[-1], returns, given)
    sizes = _sizes(functions[0] if prototype.targets is not None else prototype)
    read = op.source(pointer, _U64)
    callees: dict[int, tuple[Outlined, list[Step], Target]] = {}
    after = Target()
    for function in functions:
        if function.defined and _sizes(function) == sizes:
            callee = op.builder.outlined(function)
            steps = _arguments(op, callee.params, function.params, given)
            callees[module.addresses[function.name]] = (callee, steps, Target())

    def end(m: Machine) -> int:
        value, lanes = m.spread(read(m)), m.active()
        for one in np.unique(value).tolist():
            those = lanes[(value == one).nonzero()[0]]
            m.activate(those)
            if one not in callees:
                m.memory_fault(op.ins, "a call by a pointer that holds no function of this prototype", int(those[0]),
                               one, 0, "")  # fmt: skip
            callee, steps, back = callees[one]
            for step in steps:
                step(m)
            m.defer(m.calls.enter(m, callee, back.block, op.ins), those)
        return GONE

    op.builder.close(end, op.ins)
    # Each function has its results in slots of its own, hence a way back of its own.
    for callee, _, back in callees.values():
        op.builder.bind(back)
        for step in _results(op, callee.returns, callee.function.returns, returns):
            op.builder.emit(_plain(op.ins), step)
        op.builder.close(lambda m: after.block, None)
    op.builder.bind(after)


def _sizes(called: Function | Prototype) -> tuple[tuple[int, ...], tuple[int, ...]]:
    def size(formal: Variable | Register) -> int:
        return formal.size if isinstance(formal, Variable) else formal.type.size

    return tuple(map(size, called.params)), tuple(map(size, called.returns))
