"""A parsed function to basic blocks of steps: slots, labels, guards, inlined calls."""

from __future__ import annotations

import numpy as np

from ptxrt.sim.code import GONE, Block, Code, End, SpecialStart, Step, SymbolStart, Target
from ptxrt.sim.declarations import Module, align_up
from ptxrt.sim.instructions import definition
from ptxrt.sim.lanes import Lanes
from ptxrt.sim.op import Op
from ptxrt.sim.program import Function, Instruction, Label, Name, Register, Symbol, Variable
from ptxrt.sim.spaces import Access
from ptxrt.sim.specials import SPECIAL_TYPES
from ptxrt.sim.types import PtxType
from ptxrt.sim.unsupported import UNSUPPORTED

__all__ = ["Decoder", "decode"]

_MAX_DEPTH = 32


class Frame:
    """One function as inlined at one place: its registers, parameters, labels."""

    def __init__(self, function: Function, parent: Frame | None, after: Target | None) -> None:
        self.function = function
        self.parent = parent
        self.after = after
        """Where ret goes; None in the entry, where it exits."""
        self.registers: dict[Register, int] = {}
        self.passed: dict[Variable, tuple[Frame, Variable]] = {}
        """Formal .param variables, and the caller's that stand for them."""
        self.param_words: dict[tuple[Variable, int, int], int] = {}
        self.locals: dict[Variable, int] = {}
        self.labels: dict[tuple[str, int], Target] = {
            (item.name, item.scope): Target() for item in function.body if isinstance(item, Label)
        }

    def label(self, name: str, scope: int) -> Target | None:
        """Return the label that a branch in `scope` sees."""
        while scope >= 0:
            found = self.labels.get((name, scope))
            if found is not None:
                return found
            scope = self.function.scopes[scope]
        return None

    @property
    def depth(self) -> int:
        """How many calls deep."""
        return 0 if self.parent is None else self.parent.depth + 1


class Decoder:
    """Decodes one entry."""

    def __init__(self, module: Module, entry: Function) -> None:
        self.module = module
        self.source = module.source
        self.code = Code(entry.name)
        self.frame = Frame(entry, None, None)
        self._steps: list[Step] = []
        self._last: Instruction | None = None
        self._constants: dict[tuple[str, bytes], int] = {}
        self._specials: dict[str, int] = {}
        self._carry: int | None = None
        self._place_locals(self.frame)

    # -- slots ---------------------------------------------------------------------------------------------------

    def _slot(self, start: np.ndarray | SpecialStart | SymbolStart, lane_bytes: int) -> int:
        self.code.slots.append(start)
        self.code.lane_bytes += lane_bytes
        return len(self.code.slots) - 1

    def fresh(self, kind: PtxType) -> int:
        """Return a new slot of this type, holding poison as an unwritten register does (a predicate: false)."""
        size = kind.dtype.itemsize
        start = np.zeros(1, np.bool_) if kind.kind == "pred" else np.full(size, 0xCD, np.uint8).view(kind.dtype)
        return self._slot(start, size)

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
        if name not in self._specials:
            self._specials[name] = self._slot(SpecialStart(name), SPECIAL_TYPES[name].dtype.itemsize)
        return self._specials[name]

    def symbol(self, symbol: Symbol, kind: PtxType, *, generic: bool = False) -> int:
        """Return a slot that holds a variable's address, in its space or generic."""
        variable, addend = symbol.variable, symbol.addend
        if variable in self.frame.locals:
            addend += self.frame.locals[variable] - variable.offset
        return self._slot(SymbolStart(variable, addend, kind.dtype, generic), 0)

    def carry(self) -> int:
        """Return the slot of the carry flag."""
        if self._carry is None:
            self._carry = self._slot(np.zeros(1, np.bool_), 1)
        return self._carry

    def param_word(self, variable: Variable, offset: int, kind: PtxType) -> int:
        """Return the slot behind ``[variable+offset]`` of a function's .param variable."""
        frame = self.frame
        while variable in frame.passed:
            frame, variable = frame.passed[variable]
        key = (variable, offset, kind.size)
        if key not in frame.param_words:
            frame.param_words[key] = self.fresh(kind)
        return frame.param_words[key]

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
    ) -> Access:
        """Return the description of an access in words of `word` bytes; note the finest to shared memory."""
        if space in ("shared", "generic"):
            self.code.shared_word = min(self.code.shared_word or word, word)
        return Access(ins, space, size, writes, offset, atomic, strong)

    def new_frame(self, function: Function, after: Target) -> Frame:
        """Return a frame for a call from the current one."""
        return Frame(function, self.frame, after)

    def register_in(self, frame: Frame, register: Register) -> int:
        """Return the slot of another frame's register."""
        outer, self.frame = self.frame, frame
        slot = self.register(register)
        self.frame = outer
        return slot

    def param_word_in(self, frame: Frame, variable: Variable, offset: int, kind: PtxType) -> int:
        """Return the slot of a .param variable of another frame."""
        outer, self.frame = self.frame, frame
        slot = self.param_word(variable, offset, kind)
        self.frame = outer
        return slot

    def _place_locals(self, frame: Frame) -> None:
        start = align_up(self.code.local_bytes, 16)
        for variable in frame.function.local_variables:
            frame.locals[variable] = align_up(start, variable.align) + variable.offset
            self.code.local_variables.append((variable, frame.locals[variable]))
        self.code.local_bytes = start + frame.function.local_bytes if frame.function.local_bytes else start

    # -- code ----------------------------------------------------------------------------------------------------

    def emit(self, ins: Instruction, step: Step) -> None:
        """Add a step to the current block, guarded as `ins` is."""
        if ins.guard is not None:
            step = _guarded(step, self.register(ins.guard), ins.guard_negated)
        self._steps.append(step)
        self._last = ins

    def end(self, ins: Instruction, end: End) -> None:
        """Close the current block with `end`; under a guard, lanes that do not take part jump over it."""
        if ins.guard is None:
            self.close(end, ins)
            return
        skip = Target()
        self.branch(ins, skip, when=ins.guard_negated)
        self.close(end, ins)
        self.bind(skip)

    def start_block(self) -> None:
        """Begin a new block here, so that lanes can wait in front of what comes and be joined by others."""
        self.bind(Target())

    def branch(self, ins: Instruction, target: Target, *, when: bool) -> None:
        """Close the block with a branch taken where the guard of `ins` equals `when`."""
        if ins.guard is None:
            self.close(lambda m: target.block, ins)
            return
        slot = self.register(ins.guard)
        following = len(self.code.blocks) + 1
        self.close(lambda m: m.split(slot, when, target.block, following), ins)

    def close(self, end: End, ins: Instruction | None) -> None:
        """Close the current block."""
        last = ins or self._last
        self.code.blocks.append(Block(tuple(self._steps), end, len(self._steps) + (ins is not None), last))
        self._steps = []

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
        self._place_locals(frame)
        self.function()
        self.frame = outer

    def too_deep(self, function: Function) -> bool:
        """Tell whether `function` is already being inlined, or calls nest too deep."""
        frame: Frame | None = self.frame
        while frame is not None:
            if frame.function is function:
                return True
            frame = frame.parent
        return self.frame.depth >= _MAX_DEPTH

    def function(self) -> None:
        """Decode the body of the current frame."""
        for item in self.frame.function.body:
            if isinstance(item, Label):
                self.bind(self.frame.labels[item.name, item.scope])
                continue
            define = definition(item)
            op = Op(self, item)
            if define is None:
                if item.name in UNSUPPORTED:
                    op.unsupported(item.opcode)
                op.fail(f"unknown instruction {item.name}")
            define(op)
        self.ret(None)

    def ret(self, ins: Instruction | None) -> None:
        """Close the block by leaving the function."""
        after = self.frame.after
        end: End = (lambda m: m.exit()) if after is None else (lambda m: after.block)
        if ins is None:
            self.close(end, None)
        else:
            self.end(ins, end)

    def label(self, op: Op, name: object) -> Target:
        """Return the target that a branch names, or raise CompileError."""
        if not isinstance(name, Name):
            op.fail(f"{op.ins.name} takes a label")
        found = self.frame.label(name.text, op.ins.scope)
        if found is None:
            op.fail(f"unknown label {name.text}")
        return found


def _guarded(step: Step, slot: int, negated: bool) -> Step:
    def guarded(m: Lanes) -> None:
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


def decode(module: Module, entry: Function) -> Code:
    """Check and decode one entry.

    Raises
    ------
    CompileError
        For an unknown instruction, modifier, register or label, or operands of the wrong type or number.
    Unsupported
        For instructions that the machine does not run.
    """
    module.source.entry = entry.name
    decoder = Decoder(module, entry)
    decoder.function()
    module.source.entry = None
    if any(target.block == GONE for target in decoder.frame.labels.values()):
        raise RuntimeError("a label was left without a place")
    return decoder.code
