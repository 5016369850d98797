"""What a text declares at any level: the module being read, types, alignments, variables with their first values."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ptxrt.sim._text.expressions import TokenStream, constant
from ptxrt.sim._text.lexer import Source, blanked
from ptxrt.sim._text.syntax import Function, Variable
from ptxrt.sim._text.types import TYPES, PtxType
from ptxrt.sim._text.windows import FUNCTION_WINDOW

__all__ = ["Declarations", "Module", "align_up", "pack"]

_MAX_BYTES = 1 << 63
_CALL = re.compile(r"(?:^|[\s{}:])call(?:\.\w+)*\s*[(\w$%]|\.calltargets\b")
_WORD = re.compile(r"[\w$%]+")
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
        names = {name for variable in self.variables.values() for _, name, _ in variable.pointers}
        for function in self.functions.values():
            for statement in blanked(function.text).split(";"):
                if not _CALL.search(statement):
                    names.update(_WORD.findall(statement))
        return [f for f in self.functions.values() if f.name in names and f.defined and not f.is_entry]


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
        align = self.alignment()
        if self.stream.accept(".attribute"):
            self.skip_parentheses()
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
        count, open_ended, is_array = lanes, False, False
        while self.stream.accept("["):
            is_array = True
            if self.stream.accept("]"):
                open_ended = True
                continue
            length = self.integer()
            if length <= 0:
                self.stream.source.fail(name.line, f"the array {name.text} has the length {length}")
            count *= length
            if count * kind.size > _MAX_BYTES:
                self.stream.source.fail(name.line, f"the array {name.text} has more than 2**63 bytes")
            self.stream.expect("]")
        data = b""
        pointers: tuple[tuple[int, str, int], ...] = ()
        if self.stream.accept("="):
            if space not in ("global", "const"):
                self.stream.source.fail(name.line, f"a variable in .{space} cannot have an initial value")
            self.stream.open()
            data, pointers = self._initial(kind)
            if open_ended:
                count, open_ended = max(count, len(data) // kind.size), False
            if len(data) > count * kind.size:
                self.stream.source.fail(name.line, f"too many initial values for {name.text}")
        if open_ended and not (extern and is_array):
            self.stream.source.fail(name.line, f"the array {name.text} needs a length")
        size = 0 if open_ended else count * kind.size
        align = max(align, kind.size * lanes)
        return Variable(name.text, space, kind, size, align, place(size, align), name.line, data, pointers)

    def _initial(self, kind: PtxType) -> tuple[bytes, tuple[tuple[int, str, int], ...]]:
        data = bytearray()
        pointers: list[tuple[int, str, int]] = []
        depth = 0
        while True:
            if self.stream.accept("{"):
                depth += 1
                if self.stream.accept("}"):
                    depth -= 1
                else:
                    continue
            else:
                token = self.stream.now
                generic = token.text == "generic" and self.stream.ahead().text == "("
                if generic:
                    self.stream.take()
                    self.stream.expect("(")
                    token = self.stream.now
                if token.kind == "word" and token.text != "WARP_SZ":
                    self.stream.take()
                    if generic:
                        self.stream.expect(")")
                    addend = self.integer() if self.stream.now.text in ("+", "-") else 0
                    pointers.append((len(data), token.text, addend))
                    data += bytes(kind.size)
                else:
                    data += pack(kind, constant(self.stream), self.stream.source, token.line)
                    if generic:
                        self.stream.expect(")")
            while depth and self.stream.accept("}"):
                depth -= 1
            if not depth:
                return bytes(data), tuple(pointers)
            self.stream.expect(",")

    def skip_parentheses(self) -> None:
        """Step over ``( ... )``."""
        self.stream.expect("(")
        depth = 1
        while depth:
            token = self.stream.take()
            if token.kind == "end":
                self.stream.fail("'(' is never closed")
            depth += (token.text == "(") - (token.text == ")")


def pack(kind: PtxType, value: int | float, source: Source, line: int) -> bytes:
    """Return the bytes of a constant of this type; integers wrap, as assemblers let them."""
    if kind.is_float:
        if isinstance(value, int):
            source.fail(line, f"an integer where .{kind.name} wants a floating-point constant")
        if kind.bits == 32 and math.isnan(value):
            return struct.pack("<f", value)
        with np.errstate(all="ignore"):
            return np.array([value], np.float64).astype(kind.dtype).tobytes()
    if isinstance(value, float):
        source.fail(line, f"a floating-point constant where .{kind.name} wants an integer")
    return (int(value) & ((1 << kind.bits) - 1)).to_bytes(kind.size, "little")
