"""The operands of instructions."""

from __future__ import annotations

import re

from ptxrt.sim._text.declarations import Declarations, Module
from ptxrt.sim._text.expressions import TokenStream, written_constant
from ptxrt.sim._text.lexer import Token
from ptxrt.sim._text.scopes import Scope
from ptxrt.sim._text.specials import SPECIAL_TYPES
from ptxrt.sim._text.syntax import (
    Address,
    Immediate,
    Name,
    Negated,
    Operand,
    Pair,
    Part,
    Register,
    Sink,
    Special,
    Symbol,
    Texel,
    Tuple,
    Variable,
)

__all__ = ["OperandReader"]

_SELECTOR = re.compile(r"\.[bh][0-7]{1,4}")


class OperandReader:
    """Reads operands, by the names that the scope declares."""

    def __init__(self, stream: TokenStream, module: Module) -> None:
        self.stream = stream
        self.source = stream.source
        self.module = module
        self.declare = Declarations(stream, module)
        self.scope = Scope(0, None)

    def operand(self) -> Operand:
        """Read one operand."""
        token = self.stream.now
        if token.kind == "word" and token.text != "WARP_SZ":
            first = self._named()
            if self.stream.now.text == "|" and self.stream.ahead().kind == "word":
                self.stream.take()
                return Pair(first, self._named())
            return first
        if token.text == "!" and self.stream.ahead().kind == "word":
            self.stream.take()
            return Negated(self._named())
        if token.text == "[":
            return self._address()
        if token.text in ("{", "("):
            # A parenthesis may also open a constant expression; only a call has names in it.
            if token.text == "(" and self.stream.ahead().kind != "word" and self.stream.ahead().text not in (")", "{"):
                return self._immediate()
            vector = self._tuple("}" if token.text == "{" else ")")
            return Pair(vector, self._named()) if self.stream.accept("|") else vector
        if token.kind == "mark" and token.text == "-" and self.stream.ahead().kind == "word":
            self.stream.take()
            inner = self._named()
            if isinstance(inner, Register | Part):
                register, selector = (inner, "") if isinstance(inner, Register) else (inner.register, inner.selector)
                return Part(register, selector, negated=True)
            self.source.fail(token.line, "only a number or a register has a minus")
        return self._immediate()

    def _tuple(self, closing: str) -> Tuple:
        self.stream.take()
        items: list[Operand] = []
        while not self.stream.accept(closing):
            if items:
                self.stream.expect(",")
            if closing == ")" and self.stream.now.text == "{":
                self.stream.fail("a call takes no {...}; declare a vector of registers")
            with self.stream.nested():
                items.append(self.operand())
        return Tuple(tuple(items))

    def _immediate(self) -> Immediate:
        value, pattern = written_constant(self.stream)
        return Immediate(value, isinstance(value, float), pattern)

    def _named(self) -> Operand:
        token = self.stream.take()
        if token.text == "_":
            return Sink()
        name = token.text
        if self.stream.now.kind == "dot" and self.stream.now.glued and name + self.stream.now.text in SPECIAL_TYPES:
            return Special(name + self.stream.take().text)
        found = self.scope.find(name) or self.module.variables.get(name)
        if isinstance(found, Tuple):
            return self._element(token, found)
        if isinstance(found, Register):
            if self.stream.now.kind == "dot" and self.stream.now.glued:
                if _SELECTOR.fullmatch(self.stream.now.text):
                    return Part(found, self.stream.take().text[1:])
                self.source.fail(token.line, f"{name} is not a vector: {name}{self.stream.now.text}")
            return found
        if isinstance(found, Variable) and self.stream.accept("["):
            index = self.declare.integer()
            self.stream.expect("]")
            return Symbol(found, index * found.type.size, indexed=True)
        if isinstance(found, Variable):
            addend = self.declare.integer() if self.stream.now.text in ("+", "-") else 0
            return Symbol(found, addend)
        if name in SPECIAL_TYPES:
            return Special(name)
        if f"{name}.x" in SPECIAL_TYPES:
            return Tuple(tuple(Special(f"{name}.{axis}") for axis in "xyzw"))
        return Name(name)

    def _element(self, token: Token, vector: Tuple) -> Operand:
        """Read ``.x`` behind the name of a vector of registers; the vector itself where there is none."""
        if self.stream.now.kind != "dot" or not self.stream.now.glued:
            return vector
        letter = self.stream.take().text[1:]
        for names in ("xyzw", "rgba"):
            if len(letter) == 1 and letter in names[: len(vector.items)]:
                return vector.items[names.index(letter)]
        raise self.source.error(token.line, f"{token.text} has no element .{letter}")

    def _register_of(self, token: Token, vector: Tuple) -> Register:
        element = self._element(token, vector)
        if not isinstance(element, Register):
            self.source.fail(token.line, f"{token.text} is a vector, which is no address")
        return element

    def _address(self) -> Address | Texel:
        self.stream.expect("[")
        token = self.stream.now
        base: Register | Variable | None = None
        if token.kind == "word" and token.text != "WARP_SZ":
            self.stream.take()
            found = self.scope.find(token.text) or self.module.variables.get(token.text)
            base = self._register_of(token, found) if isinstance(found, Tuple) else found
            if base is None:
                self.source.fail(token.line, f"unknown register or variable {token.text}")
            offset = 0
            if self.stream.now.text == "+":
                self.stream.take()
                offset = self.declare.integer()
            elif self.stream.now.text == "-":
                self.stream.fail("an address takes +offset; write +-4 for a negative one")
        else:
            offset = self.declare.integer()
        if self.stream.now.text == "," and base is not None and not offset:
            return self._texel(base)
        self.stream.expect("]")
        return Address(base, offset)

    def _texel(self, handle: Register | Variable) -> Texel:
        items = []
        while self.stream.accept(","):
            with self.stream.nested():
                items.append(self.operand())
        self.stream.expect("]")
        return Texel(handle, tuple(items))
