"""What an instruction's definition works with: its modifiers, its typed operands, and the steps it emits.

A definition is one function in ``ptxrt.sim._instructions``::

    @instruction("not")
    def not_(op: Op) -> None:
        kind = op.type("pred", "b16", "b32", "b64")
        op.lanewise(kind, (kind,), np.invert)

It checks the text as ptxas does, and emits what runs. A function handed to `lanewise` takes and returns arrays of shape
(lanes,) or (1,) (the same value in every lane), and never returns one of its arguments or a view of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from ptxrt.errors import CompileError, Unsupported
from ptxrt.sim._instructions.builder import Builder
from ptxrt.sim._machine.branches import Target
from ptxrt.sim._machine.code import End, Step
from ptxrt.sim._machine.protocol import Getter, Machine, Setter
from ptxrt.sim._text.specials import DYNAMIC, HALVED, SPECIAL_NEEDS, SPECIAL_TYPES
from ptxrt.sim._text.syntax import (
    Immediate,
    Instruction,
    Name,
    Negated,
    Operand,
    Pair,
    Part,
    Register,
    Sink,
    Special,
    Symbol,
    Tuple,
)
from ptxrt.sim._text.types import TYPES, Array, PtxType, agrees

__all__ = ["DEFINITIONS", "Op", "definition", "getter", "instruction", "setter"]

Compute = Callable[..., Array]
Define = Callable[["Op"], None]
_MAY_GIVE_NOTHING = frozenset(("atom", "lop3", "match", "setp"))
"""Instructions that ptxas takes with ``_`` for their whole result; a part of one may be left out of any."""
DEFINITIONS: dict[str, list[tuple[frozenset[str], Define]]] = {}
"""Every instruction by name without modifiers: definitions with the types each is for (empty: for all)."""


def instruction(*names: str, types: Sequence[str] = ()) -> Callable[[Define], Define]:
    """Register the definition of the instructions of these names, for some types or for all.

    ``"add.cc"`` is the name of add where it has the modifier .cc.
    """

    def register(define: Define) -> Define:
        for name in names:
            DEFINITIONS.setdefault(name, []).append((frozenset(types), define))
        return define

    return register


def definition(ins: Instruction) -> Define | None:
    """Return the definition for an instruction by its name and first type; None for an unknown name."""
    name = f"{ins.name}.cc" if "cc" in ins.modifiers else ins.name
    found = DEFINITIONS.get(name) or DEFINITIONS.get(ins.name)
    if found is None:
        return None
    first = next((name for name in ins.modifiers if name in TYPES), None)
    for types, define in found:
        if not types or first in types:
            return define
    # The first one's own check of types words the complaint.
    return found[0][1]


class Op:
    """One instruction being decoded."""

    def __init__(self, builder: Builder, ins: Instruction) -> None:
        self.builder = builder
        self.ins = ins
        self._left = list(ins.modifiers)

    # -- modifiers -----------------------------------------------------------------------------------------------

    def flag(self, *names: str) -> bool:
        """Tell whether one of these modifiers is there."""
        return self.choice(*names) is not None

    def choice(self, *names: str) -> str | None:
        """Return which of these modifiers is there, or None. Order does not matter, as with ptxas."""
        for place, name in enumerate(self._left):
            if name in names:
                del self._left[place]
                return name
        return None

    def drop_prefixed(self, *prefixes: str) -> None:
        """Step over modifiers that start so: hints with no effect here."""
        self._left = [name for name in self._left if not name.startswith(prefixes)]

    def type(self, *names: str) -> PtxType:
        """Return the next type modifier, which must be one of these."""
        for place, name in enumerate(self._left):
            if name in TYPES:
                if name not in names:
                    break
                del self._left[place]
                return TYPES[name]
        given = [name for name in self._left if name in TYPES]
        listed = ", ".join(f".{name}" for name in names)
        what = f"{self.ins.name} takes {listed}, not {'.' + given[0] if given else 'no type'}"
        raise self.builder.source.error(self.ins.line, what)

    def needs(self, what: str, target: int, version: tuple[int, int]) -> None:
        """Check that the text's target and version are as new as a feature of the instruction wants them."""
        module = self.builder.module
        if module.target_number < target:
            self.fail(f"{what} needs .target sm_{target} or newer, not {module.target}")
        if module.version < version:
            self.fail(f"{what} needs .version {'.'.join(map(str, version))} or newer")

    def done(self, least: int, most: int | None = None) -> None:
        """Check that no modifier is left over, and how many operands there are."""
        if self._left:
            self.fail(f"unknown modifier .{self._left[0]} of {self.ins.name}")
        count = len(self.ins.operands)
        if not least <= count <= (least if most is None else most):
            wanted = str(least) if most in (None, least) else f"{least} to {most}"
            self.fail(f"{self.ins.name} takes {wanted} operands, not {count}")

    def fail(self, problem: str) -> NoReturn:
        """Raise the CompileError for this line."""
        self.builder.source.fail(self.ins.line, problem)

    def unsupported(self, what: str) -> NoReturn:
        """Raise Unsupported for this line."""
        line = self.ins.line
        raise Unsupported(
            f"{self.builder.code.entry}: line {line}: the sim does not run {what}: "
            f"{self.builder.source.line_text(line)!r}",
            op="compile",
            argument=self.builder.code.entry,
            given=what,
        )

    # -- operands ------------------------------------------------------------------------------------------------

    def operand(self, place: int) -> Operand:
        """Return the operand at `place`, as parsed."""
        return self.ins.operands[place]

    def _unknown(self, operand: Operand) -> CompileError:
        problem = f"this kind of operand is not allowed for {self.ins.name}"
        if isinstance(operand, Name):
            problem = f"unknown register or symbol {operand.text}"
        elif isinstance(operand, Tuple):
            problem = f"a vector where {self.ins.name} takes one value"
        elif isinstance(operand, Part) and operand.negated:
            problem = "a register cannot be negated in an operand; use neg"
        elif isinstance(operand, Part):
            problem = f"{self.ins.name} takes whole registers: {operand.register.name}.{operand.selector}"
        elif isinstance(operand, Pair):
            problem = f"a pair of results where {self.ins.name} takes one value"
        return self.builder.source.error(self.ins.line, problem)

    def source(self, place: int | Operand, kind: PtxType, *, wider: bool = False, special: bool = False) -> Getter:
        """Return the reader of a source operand as an array of ``kind.dtype``.

        Parameters
        ----------
        place
            Which operand, or the operand itself.
        kind
            The type that the instruction gives it.
        wider
            The register may be wider, and is cut (ld, st, cvt).
        special
            Special registers may stand here (mov, cvt).
        """
        operand = self.operand(place) if isinstance(place, int) else place
        if isinstance(operand, Negated) and kind.kind == "pred":
            inner = self.source(operand.operand, kind)
            return lambda m: np.invert(inner(m))
        if isinstance(operand, Register):
            if not agrees(kind, operand.type, wider=wider):
                self.fail(f"{operand.name} is .{operand.type.name} where {self.ins.opcode} takes .{kind.name}")
            return getter(self.builder.register(operand), operand.type, kind)
        if isinstance(operand, Immediate):
            return getter(self.builder.constant(self.immediate(operand, kind)), kind, kind)
        if isinstance(operand, Special):
            own = SPECIAL_TYPES[operand.name]
            if operand.name in SPECIAL_NEEDS:
                self.needs(operand.name, *SPECIAL_NEEDS[operand.name])
            if not special:
                self.fail(f"{operand.name} may be read by mov and cvt only, not by {self.ins.opcode}")
            fits = kind.is_int and own.is_int and kind.bits <= own.bits
            if self.ins.name == "mov" and kind.bits < own.bits:
                fits = kind.bits == 16 and operand.name in HALVED
            if own is not kind and not fits:
                self.fail(f"{operand.name} is .{own.name} where {self.ins.opcode} takes .{kind.name}")
            if operand.name in DYNAMIC:
                name = operand.name
                return lambda m: convert_bits(m.clock(name), own, kind)
            return getter(self.builder.special(operand.name), own, kind)
        if isinstance(operand, Symbol) and special and self.ins.name == "mov" and kind.is_int and kind.bits >= 32:
            return getter(self.builder.symbol(operand, kind), kind, kind)
        raise self._unknown(operand)

    def immediate(self, operand: Immediate, kind: PtxType) -> Array:
        """Return a constant as an array of shape (1,); integers wrap to the width."""
        if kind.kind == "pred":
            if operand.is_float:
                self.fail("a floating-point constant where a predicate stands")
            return np.array([operand.value != 0], np.bool_)
        if operand.pattern is not None and kind.kind in ("b", "f") and operand.pattern[0] == kind.bits:
            return np.array([operand.pattern[1]], f"u{kind.dtype.itemsize}").view(kind.dtype)
        if operand.is_float and operand.pattern is None and kind.name == "b64":
            return np.array([operand.value], np.float64).view(kind.dtype)
        if (
            operand.is_float != kind.is_float
            or kind.kind == "packed"
            or kind.bits == 128
            or (kind.is_float and kind.bits == 16)
        ):
            what = "a floating-point" if operand.is_float else "an integer"
            self.fail(f"{what} constant where {self.ins.opcode} takes .{kind.name}")
        if kind.is_float:
            with np.errstate(all="ignore"):
                return np.array([operand.value], np.float64).astype(kind.dtype)
        value = int(operand.value) & ((1 << kind.bits) - 1)
        return np.array([value], f"u{kind.dtype.itemsize}").view(kind.dtype)

    def integer(self, place: int, *, within: tuple[int, int] | None = None) -> int:
        """Return an operand that must be an integer constant, and may have to be within bounds."""
        operand = self.operand(place)
        if not isinstance(operand, Immediate) or operand.is_float:
            self.fail(f"{self.ins.name} takes an integer constant as operand {place + 1}")
        if within is not None:
            self.bounded(place, *within)
        return int(operand.value)

    def bounded(self, place: int, least: int, most: int) -> None:
        """Check that an operand is within bounds if it is a constant."""
        operand = self.operand(place)
        if isinstance(operand, Immediate) and not least <= operand.value <= most:
            bounds = f"within {least} to {most}" if least < most else f"{least}"
            self.fail(f"operand {place + 1} of {self.ins.name} is {operand.value}, not {bounds}")

    def dest(self, place: int | Operand, kind: PtxType, *, wider: bool = False) -> Setter:
        """Return the writer of a result of ``kind.dtype``; a wider register is sign- or zero-extended."""
        operand = self.operand(place) if isinstance(place, int) else place
        if isinstance(operand, Sink):
            if isinstance(place, int) and self.ins.name not in _MAY_GIVE_NOTHING:
                self.fail(f"{self.ins.name} gives a value, which cannot be left out")
            return lambda m, value: None
        if isinstance(operand, Name):
            self.fail(f"unknown register {operand.text}")
        if not isinstance(operand, Register):
            self.fail(f"{self.ins.name} needs a register for its result")
        if not agrees(kind, operand.type, wider=wider):
            self.fail(f"{operand.name} is .{operand.type.name} where {self.ins.opcode} gives .{kind.name}")
        return setter(self.builder.register(operand), kind, operand.type)

    def label(self, name: Operand) -> Target:
        """Return the target that a branch names, or raise CompileError."""
        if not isinstance(name, Name):
            self.fail(f"{self.ins.name} takes a label")
        found = self.builder.frame.label(name.text, self.ins.scope)
        if found is None:
            self.fail(f"unknown label {name.text}")
        return found

    # -- emission ------------------------------------------------------------------------------------------------

    def emit(self, step: Step) -> None:
        """Add a step; the guard `@p` is put around it, so that it sees only the lanes that do it."""
        self.builder.emit(self.ins, step)

    def end(self, end: End) -> None:
        """End the basic block with this instruction; under a guard, the other lanes jump over it."""
        self.builder.end(self.ins, end)

    def lanewise(self, result: PtxType, sources: Sequence[PtxType], compute: Compute) -> None:
        """Emit ``operand 0 = compute(operand 1, ...)``, each of the type given, after checking all of them."""
        self.done(1 + len(sources))
        self.compute(self.dest(0, result), [self.source(place, kind) for place, kind in enumerate(sources, 1)], compute)

    def compute(self, write: Setter, read: Sequence[Getter], compute: Compute) -> None:
        """Emit one step that reads, computes and writes."""
        if len(read) == 1:
            (a,) = read
            self.emit(lambda m: write(m, compute(a(m))))
        elif len(read) == 2:
            a, b = read
            self.emit(lambda m: write(m, compute(a(m), b(m))))
        elif len(read) == 3:
            a, b, c = read
            self.emit(lambda m: write(m, compute(a(m), b(m), c(m))))
        else:
            self.emit(lambda m: write(m, compute(*[one(m) for one in read])))


def convert_bits(value: Array, held: PtxType, wanted: PtxType) -> Array:
    """Reinterpret, or cut to the low bits; never a copy where none is needed."""
    if held.dtype == wanted.dtype:
        return value
    if held.dtype.itemsize == wanted.dtype.itemsize:
        return value.view(wanted.dtype)
    cut = value.view(f"u{held.dtype.itemsize}").astype(f"u{wanted.dtype.itemsize}")
    return cut.view(wanted.dtype)


def getter(slot: int, held: PtxType, wanted: PtxType) -> Getter:
    """Return the reader of a slot that holds `held`, as `wanted`."""
    same = held.dtype == wanted.dtype
    if same:

        def plain(m: Machine) -> Array:
            value = m.regs[slot]
            idx = m.idx
            return value if idx is None or value.shape[0] == 1 else value[idx]

        return plain
    if held.dtype.itemsize == wanted.dtype.itemsize:
        dtype = wanted.dtype

        def viewed(m: Machine) -> Array:
            value = m.regs[slot]
            idx = m.idx
            return value.view(dtype) if idx is None or value.shape[0] == 1 else value[idx].view(dtype)

        return viewed

    def cut(m: Machine) -> Array:
        value = m.regs[slot]
        idx = m.idx
        return convert_bits(value if idx is None or value.shape[0] == 1 else value[idx], held, wanted)

    return cut


def setter(slot: int, given: PtxType, held: PtxType) -> Setter:
    """Return the writer of results of type `given` to a slot that holds `held`."""
    if given.dtype == held.dtype:

        def plain(m: Machine, value: Array) -> None:
            if m.idx is None:
                m.regs[slot] = value
            else:
                m.put(slot, value)

        return plain
    dtype = held.dtype
    if given.dtype.itemsize == dtype.itemsize:

        def viewed(m: Machine, value: Array) -> None:
            if m.idx is None:
                m.regs[slot] = value.view(dtype)
            else:
                m.put(slot, value.view(dtype))

        return viewed
    narrow = np.dtype(f"{'i' if given.signed else 'u'}{given.dtype.itemsize}")
    wide = np.dtype(f"{'i' if given.signed else 'u'}{dtype.itemsize}")

    def extended(m: Machine, value: Array) -> None:
        m.set(slot, value.view(narrow).astype(wide).view(dtype))

    return extended
