"""What a text declares at any level: the module being read, types, alignments, variables with their first values."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ptxrt.sim._text.expressions import TokenStream, constant, written_constant
from ptxrt.sim._text.lexer import Source, Token, blanked
from ptxrt.sim._text.syntax import Function, Pointer, Variable, byte_of
from ptxrt.sim._text.types import TYPES, PtxType
from ptxrt.sim._text.windows import FUNCTION_WINDOW

__all__ = ["Declarations", "Module", "align_up", "pack"]

_MAX_BYTES = 1 << 63
_CALL = re.compile(r"(?:^|[\s{}:])call(?:\.\w+)*\s*[(\w$%]|\.calltargets\b")
_WORD = re.compile(r"[\w$%]+")
_FLOATS: dict[int, np.dtype[Any]] = {32: np.dtype(np.float32), 64: np.dtype(np.float64)}
_MASKS = [0xFF << 8 * byte for byte in range(8)]
_REFERENCES = (".texref", ".surfref", ".samplerref")  # read as 8 bytes, so that what does not use them runs


@dataclass
class Module:
    """What stands at the top level of one text."""

    source: Source
    version: tuple[int, int] = (0, 0)
    target: str = ""
    address_size: int = 64  # also where the text has none, as for the assembler on every device since sm_70
    functions: dict[str, Function] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    shared: list[Variable] = field(default_factory=list)
    """The shared variables of no function."""

    @property
    def target_number(self) -> int:
        """The number in ``.target``: 80 for sm_80."""
        return int("".join(c for c in self.target if c.isdigit()) or 0)

    @cached_property
    def addresses(self) -> dict[str, int]:
        """What a pointer to each function holds."""
        return {name: FUNCTION_WINDOW + 16 * number for number, name in enumerate(self.functions, 1)}

    @cached_property
    def addressed(self) -> list[Function]:
        """The functions that a pointer may hold: those that stand in a variable, or somewhere but in a call.

        The statements are searched and not read: a function that is not asked for may be one that cannot be read.
        """
        names = {pointer.symbol for variable in self.variables.values() for pointer in variable.pointers}
        for function in self.functions.values():
            for statement in blanked(function.text).split(";"):
                if not _CALL.search(statement):
                    names.update(_WORD.findall(statement))
        return [f for f in self.functions.values() if f.name in names and f.defined and not f.is_entry]


@dataclass(frozen=True)
class _Values:
    """The initial values of a variable, as far as they are read."""

    name: Token
    kind: PtxType
    lanes: int
    data: bytearray
    pointers: list[Pointer]


def align_up(value: int, align: int) -> int:
    """Round up to a multiple of `align`."""
    return -(-value // align) * align


class Declarations:
    """Reading of variables, shared by the module level and the functions."""

    def __init__(self, stream: TokenStream, module: Module) -> None:
        self.stream = stream
        self.module = module

    def type(self) -> PtxType:
        """Read a type such as ``.f32``."""
        token = self.stream.now
        found = TYPES.get(token.text[1:]) if token.kind == "dot" else None
        found = TYPES["b64"] if token.text in _REFERENCES else found
        if found is None or found.name in ("u16x2", "s16x2"):
            self.stream.fail(f"expected a type, found {self.stream.found()}")
        if found.bits == 128 and (self.module.version < (8, 3) or self.module.target_number < 70):
            self.stream.fail(".b128 needs .version 8.3 or newer, and .target sm_70 or newer")
        self.stream.take()
        return found

    def integer(self) -> int:
        """Read an integer constant."""
        line = self.stream.now.line
        value = constant(self.stream)
        if isinstance(value, float):
            self.stream.source.fail(line, "expected an integer")
        return int(value)

    def alignment(self) -> int:
        """Read ``.align n`` if it is there, else return 0."""
        if not self.stream.accept(".align"):
            return 0
        line = self.stream.now.line
        align = self.integer()
        if align <= 0 or align & (align - 1):
            self.stream.source.fail(line, f".align {align} is not a power of two")
        return align

    def variables(self, space: str, place: Callable[[int, int], int], *, extern: bool = False) -> list[Variable]:
        """Read ``.align n .v4 .f32 name[8] = {...}, name2;`` without the space, with the semicolon.

        `place` takes size and alignment and answers the offset in the space's window.
        """
        align = 0
        while self.stream.now.text in (".align", ".attribute"):
            if self.stream.accept(".attribute"):
                self.skip_parentheses()
            align = max(align, self.alignment())
        lanes = 1
        if self.stream.now.text in (".v2", ".v4"):
            lanes = int(self.stream.take().text[2:])
        kind = self.type()
        if kind.kind == "pred":
            self.stream.fail("a variable in memory cannot be a predicate")
        found = []
        while True:
            found.append(self._variable(space, kind, lanes, align, place, extern))
            if not self.stream.accept(","):
                break
        self.stream.expect(";")
        return found

    def _variable(
        self, space: str, kind: PtxType, lanes: int, align: int, place: Callable[[int, int], int], extern: bool
    ) -> Variable:
        name = self.stream.word("the name of a variable")
        lengths: list[int] = []
        open_ended = False
        while self.stream.accept("["):
            if not lengths and not open_ended and self.stream.accept("]"):
                open_ended = True
                continue
            length = self.integer()
            if length <= 0:
                self.stream.source.fail(name.line, f"the array {name.text} has the length {length}")
            lengths.append(length)
            if lanes * math.prod(lengths) * kind.size > _MAX_BYTES:
                self.stream.source.fail(name.line, f"the array {name.text} has more than 2**63 bytes")
            self.stream.expect("]")
        count = lanes * math.prod(lengths)
        data = bytearray()
        pointers: list[Pointer] = []
        if self.stream.accept("="):
            if space not in ("global", "const"):
                self.stream.source.fail(name.line, f"a variable in .{space} cannot have an initial value")
            self.stream.open()
            levels = [*([None] if open_ended else []), *lengths, *([lanes] if lanes > 1 else [])]
            values = _Values(name, kind, lanes, data, pointers)
            outer = self._values(values, levels)
            if open_ended and outer:
                count, open_ended = count * outer, False
        if open_ended and not extern:
            self.stream.source.fail(name.line, f"the array {name.text} needs a length")
        size = 0 if open_ended else count * kind.size
        align = max(align, kind.size * lanes)
        offset = place(size, align)
        return Variable(name.text, space, kind, size, align, offset, name.line, bytes(data), tuple(pointers))

    def _values(self, values: _Values, levels: Sequence[int | None]) -> int:
        """Read initial values, in as many braces as there are `levels`; return how many stand in the outer ones.

        They are taken one behind the other, whatever braces hold fewer of them than there is room for, as ptxas does.
        """
        if not levels:
            self._value(values)
            return 1
        name, most, count = values.name, levels[0], 0
        self.stream.expect("{")
        done = self.stream.accept("}")
        while not done:
            if len(levels) == 1:
                self._value(values)
            else:
                with self.stream.nested():
                    self._values(values, levels[1:])
            count += 1
            if most is not None and count > most:
                self.stream.source.fail(name.line, f"too many initial values for {name.text}")
            done = self.stream.accept("}")
            if not done:
                self.stream.expect(",")
        if len(levels) == 1 and values.lanes > 1 and count != values.lanes:
            vector = f"a vector of {name.text} has {values.lanes} values, not {count}"
            self.stream.source.fail(name.line, f"{vector}, in its initial value")
        return count

    def _value(self, values: _Values) -> None:
        """Read one initial value: a constant, an address, or a byte of one of these, ``0xFF00(generic(name))``."""
        stream, kind, data = self.stream, values.kind, values.data
        start, byte = stream.now, None
        if start.kind == "int" and stream.ahead().text == "(":
            mask = self.integer()
            if mask not in _MASKS:
                stream.source.fail(start.line, f"{start.text} is no mask of a byte: 0xFF, 0xFF00 and so on")
            byte = _MASKS.index(mask)
            stream.expect("(")
        if generic := stream.now.text == "generic" and stream.ahead().text == "(":
            stream.take()
            stream.expect("(")
        token = stream.now
        if token.kind == "word" and token.text != "WARP_SZ":
            stream.take()
            if generic:
                stream.expect(")")
            addend = self.integer() if stream.now.text in ("+", "-") else 0
            values.pointers.append(Pointer(len(data), token.text, addend, byte))
            data += bytes(kind.size)
        else:
            value, pattern = written_constant(stream) if byte is None else (byte_of(self.integer(), byte), None)
            data += pack(kind, value, stream.source, token.line, pattern)
            if generic:
                stream.expect(")")
        if byte is not None:
            stream.expect(")")

    def skip_parentheses(self) -> None:
        """Step over ``( ... )``."""
        self.stream.expect("(")
        depth = 1
        while depth:
            token = self.stream.take()
            if token.kind == "end":
                self.stream.fail("'(' is never closed")
            depth += (token.text == "(") - (token.text == ")")


def pack(kind: PtxType, value: int | float, source: Source, line: int, pattern: tuple[int, int] | None = None) -> bytes:
    """Return the bytes of a constant of this type; integers wrap, as assemblers let them.

    `pattern` is the width and the bits of a float that the text has in hexadecimal, a signalling NaN's too.
    """
    if isinstance(value, float):
        kept_in = kind.dtype if kind.is_float else _FLOATS.get(kind.bits) if kind.kind == "b" else None
        if kept_in is None:
            source.fail(line, f"a floating-point constant where .{kind.name} wants an integer")
        if pattern and pattern[0] == kind.bits:
            return pattern[1].to_bytes(kind.size, "little")
        if kind.bits == 32 and math.isnan(value):
            return struct.pack("<f", value)
        with np.errstate(all="ignore"):
            return np.array([value], np.float64).astype(kept_in).tobytes()
    if kind.is_float:
        source.fail(line, f"an integer where .{kind.name} wants a floating-point constant")
    return (int(value) & ((1 << kind.bits) - 1)).to_bytes(kind.size, "little")
