"""The code of one entry as it grows: slots, the places of local variables, basic blocks, frames of inlined calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from ptxrt.errors import Unsupported
from ptxrt.sim._instructions.polling import polls
from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.branches import Target
from ptxrt.sim._machine.code import Block, Code, End, Fork, SpecialStart, Step, SymbolStart
from ptxrt.sim._machine.outlined import Outlined, Word, words_of
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.declarations import Module, align_up
from ptxrt.sim._text.specials import RESERVED_SHARED, SPECIAL_TYPES
from ptxrt.sim._text.syntax import Function, Instruction, Label, Register, Symbol, Variable
from ptxrt.sim._text.types import TYPES, PtxType

__all__ = ["Builder", "Frame"]

_MAX_DEPTH = 32
_MAX_INLINED = 1 << 14


class Frame:
    """One function as inlined at one place: its registers, parameters, labels."""

    def __init__(self, function: Function, parent: Frame | None, after: Target | None) -> None:
        self.function = function
        self.body = function.body
        self.parent = parent
        self.after = after
        """Where ret goes; None in the entry, where it exits."""
        self.registers: dict[Register, int] = {}
        self.passed: dict[Variable, tuple[Frame, Variable]] = {}
        """Formal .param variables, and the caller's that stand for them."""
        self.homes: dict[Variable, Variable] = {}
        """Parameters of calls, and the local variables that they live in."""
        self.locals: dict[Variable, int] = {}
        self.outlined: Outlined | None = None if parent is None else parent.outlined
        """The function that is not inlined which this is, or is inlined in."""
        self.labels: dict[tuple[str, int], Target] = {
            (item.name, item.scope): Target() for item in self.body.items if isinstance(item, Label)
        }

    def label(self, name: str, scope: int) -> Target | None:
        """Return the label that a branch in `scope` sees."""
        while scope >= 0:
            found = self.labels.get((name, scope))
            if found is not None:
                return found
            scope = self.body.scopes[scope]
        return None

    @property
    def depth(self) -> int:
        """How many calls deep."""
        return 0 if self.parent is None else self.parent.depth + 1


class Builder(ABC):
    """What the definitions of instructions build with."""

    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        self.source = module.source.within(entry.name)
        self.code = Code(entry.name)
        self.frame = Frame(entry, None, None)
        self.code.registers = self.frame.body.register_units
        self._steps: list[Step] = []
        self._marks: list[tuple[Instruction, int | None]] = []
        self._last: Instruction | None = None
        self._constants: dict[tuple[str, bytes], int] = {}
        self._specials: dict[str, int] = {}
        self._carry: int | None = None
        self._outlined: dict[Function, Outlined] = {}
        self._pending: list[Outlined] = []
        self._place_variables(self.frame)

    # -- slots ---------------------------------------------------------------------------------------------------

    def _slot(self, start: np.ndarray | SpecialStart | SymbolStart, lane_bytes: int) -> int:
        self.code.slots.append(start)
        self.code.lane_bytes += lane_bytes
        return len(self.code.slots) - 1

    def fresh(self, kind: PtxType) -> int:
        """Return a new slot of this type, holding poison as an unwritten register does (a predicate: false)."""
        slot = self._slot(poison(kind), kind.size)
        if self.frame.outlined is not None:
            if kind.bits > 64:
                function = self.frame.outlined.function
                raise Unsupported(
                    f"{function.name}, line {function.line}: the sim does not run .{kind.name} in a function that is "
                    "called by a pointer or calls itself",
                    op="compile",
                    given=f".{kind.name}",
                )
            self.frame.outlined.saved.append(slot)
        return slot

    def register(self, register: Register) -> int:
        """Return the slot of a register in the function being decoded."""
        slot = self.frame.registers.get(register)
        if slot is None:
            slot = self.frame.registers[register] = self.fresh(register.type)
        return slot

    def constant(self, value: np.ndarray) -> int:
        """Return a slot that holds a constant of shape (1,)."""
        key = (value.dtype.str + value.dtype.name, value.tobytes())
        if key not in self._constants:
            self._constants[key] = self._slot(value, 0)
        return self._constants[key]

    def special(self, name: str) -> int:
        """Return the slot of a special register."""
        self.code.reserved_shared |= name in RESERVED_SHARED
        self.code.workspace_read |= name in ("%envreg1", "%envreg2")
        if name not in self._specials:
            self._specials[name] = self._slot(SpecialStart(name), SPECIAL_TYPES[name].dtype.itemsize)
        return self._specials[name]

    def symbol(self, symbol: Symbol, kind: PtxType, *, generic: bool = False) -> int:
        """Return a slot that holds a variable's address, in its space or generic."""
        variable, addend = symbol.variable, symbol.addend
        if variable.space == "shared":
            self.code.shared_places.setdefault(variable, 0)  # placed once all are known
        if variable in self.frame.locals:
            return self._local_address(self.frame, variable, addend, kind, generic)
        return self._slot(SymbolStart(variable, addend, kind.dtype, generic), 0)

    def carry(self) -> int:
        """Return the slot of the carry flag."""
        if self._carry is None:
            self._carry = self._slot(np.zeros(1, np.bool_), 1)
        return self._carry

    def _local_address(self, frame: Frame, variable: Variable, addend: int, kind: PtxType, generic: bool) -> int:
        place = frame.locals[variable] + addend
        if frame.outlined is None:
            return self._slot(SymbolStart(variable, place - variable.offset, kind.dtype, generic), 0)
        # Each activation has its own variables; the call computes where they are.
        slot = self.fresh(kind)
        frame.outlined.addresses.append((slot, place, kind.dtype, generic))
        return slot

    def home(self, variable: Variable) -> int:
        """Return the slot with the place in local memory where a parameter of a call lives."""
        frame = self.frame
        while variable in frame.passed:
            frame, variable = frame.passed[variable]
        if variable not in frame.homes:
            home = replace(variable, space="local", offset=0)
            frame.homes[variable] = home
            self._place_local(frame, home)
        return self._local_address(frame, frame.homes[variable], 0, TYPES["u64"], False)

    def access(
        self,
        ins: Instruction,
        space: str,
        size: int,
        word: int,
        writes: bool,
        offset: int,
        *,
        atomic: bool = False,
        strong: bool = False,
        float_type: str = "",
    ) -> Access:
        """Return the description of an access in words of `word` bytes; note the finest to shared memory."""
        self.code.shared_accessed |= space in ("shared", "shared::cluster")
        if space in ("shared", "shared::cluster", "generic"):
            self.code.shared_word = min(self.code.shared_word or word, word)
        if space in ("global", "generic"):
            self.code.global_word = min(self.code.global_word or word, word)
            self.code.float_types |= {float_type} - {""}
        return Access(ins, space, size, writes, offset, atomic, strong, float_type=float_type)

    def new_frame(self, function: Function, after: Target) -> Frame:
        """Return a frame for a call from the current one."""
        return Frame(function, self.frame, after)

    def register_in(self, frame: Frame, register: Register) -> int:
        """Return the slot of another frame's register."""
        outer, self.frame = self.frame, frame
        slot = self.register(register)
        self.frame = outer
        return slot

    def _place_variables(self, frame: Frame) -> None:
        self.code.shared_declared.update(dict.fromkeys(frame.body.shared))
        start = align_up(self._local_bytes(frame), 16)
        for variable in frame.body.local:
            frame.locals[variable] = align_up(start, variable.align) + variable.offset
            if frame.outlined is None:
                self.code.local_variables.append((variable, frame.locals[variable]))
        if frame.body.local_bytes:
            self._set_local_bytes(frame, start + frame.body.local_bytes)

    def _place_local(self, frame: Frame, variable: Variable) -> None:
        frame.locals[variable] = align_up(self._local_bytes(frame), variable.align)
        self._set_local_bytes(frame, frame.locals[variable] + variable.size)
        if frame.outlined is None:
            self.code.local_variables.append((variable, frame.locals[variable]))

    def _local_bytes(self, frame: Frame) -> int:
        return self.code.local_bytes if frame.outlined is None else frame.outlined.local_bytes

    def _set_local_bytes(self, frame: Frame, value: int) -> None:
        if frame.outlined is None:
            self.code.local_bytes = value
        else:
            frame.outlined.local_bytes = value

    # -- code ----------------------------------------------------------------------------------------------------

    def emit(self, ins: Instruction, step: Step) -> None:
        """Add a step to the current block, guarded as `ins` is."""
        slot = None if ins.guard is None else self.register(ins.guard)
        if slot is not None:
            step = _guarded(step, slot, ins.guard_negated)
        self._steps.append(step)
        self._marks.append((ins, slot))
        self._last = ins

    def end(self, ins: Instruction, end: End) -> None:
        """Close the current block with `end`; under a guard, lanes that do not take part jump over it."""
        if ins.guard is None:
            self.close(end, ins)
            return
        skip = Target()
        self.branch(ins, skip, when=ins.guard_negated)
        self.close(end, ins, counted=False)  # the branch stands for it
        self.bind(skip)

    def start_block(self) -> None:
        """Begin a new block here, so that lanes can wait in front of what comes and be joined by others."""
        self.bind(Target())

    def branch(self, ins: Instruction, target: Target, *, when: bool) -> None:
        """Close the block with a branch taken where the guard of `ins` equals `when`."""
        if 0 <= target.block <= self.here and polls(self.code.blocks[target.block :], self._marks, ins):
            self.code.polling.update(range(target.block, self.here + 1))
        if ins.guard is None:
            self.close(lambda m: target.block, ins)
            return
        slot = self.register(ins.guard)
        following = len(self.code.blocks) + 1
        ways = (target, Target(following)) if when is not ins.guard_negated else (Target(following), target)
        self.close(lambda m: m.split(slot, when, target.block, following), ins, fork=Fork(slot, *ways))

    def close(self, end: End, ins: Instruction | None, *, counted: bool = True, fork: Fork | None = None) -> None:
        """Close the current block; `ins` is what its end does, and counts as an instruction of its own."""
        last = ins or self._last
        cost = len(self._steps) + (ins is not None and counted)
        self.code.blocks.append(Block(tuple(self._steps), end, cost, last, tuple(self._marks), fork))
        self._steps, self._marks = [], []

    def bind(self, target: Target) -> None:
        """Let `target` name the place reached now."""
        if self._steps:
            following = len(self.code.blocks) + 1
            self.close(lambda m: following, None)
        target.block = len(self.code.blocks)

    @property
    def here(self) -> int:
        """The number of the block being filled."""
        return len(self.code.blocks)

    def following(self, ins: Instruction) -> int:
        """Return the number of the block after the one that `ins` will end; a guard puts one more in front of it."""
        return self.here + (1 if ins.guard is None else 2)

    def inline(self, frame: Frame) -> None:
        """Decode a called function here."""
        outer, self.frame = self.frame, frame
        self._place_variables(frame)
        self.decode_body()
        self.frame = outer

    def can_inline(self, function: Function) -> bool:
        """Tell whether a call of `function` can be decoded in place: no recursion, and not too much code."""
        frame: Frame | None = self.frame
        while frame is not None:
            if frame.function is function:
                return False
            frame = frame.parent
        return self.frame.depth < _MAX_DEPTH and len(self.code.blocks) < _MAX_INLINED

    def outlined(self, function: Function) -> Outlined:
        """Return what is to be known for calling a function that stands once; its body is decoded later."""
        found = self._outlined.get(function)
        if found is None:

            def transfer(formal: Variable | Register) -> list[Word]:
                return [Word(offset, kind, self._slot(poison(kind), kind.size)) for offset, kind in words_of(formal)]

            found = Outlined(
                function, Target(), list(map(transfer, function.params)), list(map(transfer, function.returns))
            )
            self._outlined[function] = found
            self._pending.append(found)
        return found

    @abstractmethod
    def decode_body(self) -> None:
        """Decode the body of the current frame."""

    @abstractmethod
    def leave(self, ins: Instruction | None) -> None:
        """Close the block by leaving the function; `ins` is the instruction that does, None at the end of the body."""


def poison(kind: PtxType) -> np.ndarray:
    """Return what an unwritten register of this type holds; a predicate: false."""
    return np.zeros(1, np.bool_) if kind.kind == "pred" else np.full(kind.size, 0xCD, np.uint8).view(kind.dtype)


def _guarded(step: Step, slot: int, negated: bool) -> Step:
    def guarded(m: Machine) -> None:
        flags = m.regs[slot]
        if flags.shape[0] == 1:
            if bool(flags[0]) is not negated:
                step(m)
            return
        outer = m.idx
        if outer is not None:
            flags = flags[outer]
        if negated:
            flags = np.invert(flags)
        count = int(np.count_nonzero(flags))
        if count == 0:
            return
        if count == flags.shape[0]:
            step(m)
            return
        inner = flags.nonzero()[0]
        outer_count = m.count
        m.idx = inner if outer is None else outer[inner]
        m.count = count
        try:
            step(m)
        finally:
            m.idx = outer
            m.count = outer_count

    return guarded
