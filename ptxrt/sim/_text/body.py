"""The statements of one function: declarations, scopes, labels, instructions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ptxrt.sim._text.declarations import Module, align_up
from ptxrt.sim._text.expressions import TokenStream
from ptxrt.sim._text.lexer import Token
from ptxrt.sim._text.operands import OperandReader
from ptxrt.sim._text.scopes import MAX_DIGITS, Scope, is_member, registers
from ptxrt.sim._text.specials import SPECIAL_TYPES
from ptxrt.sim._text.syntax import Body, Instruction, Label, Operand, Prototype, Register, Tuple, Variable
from ptxrt.sim._text.types import PtxType

__all__ = ["BodyReader"]

_Named = TypeVar("_Named", Register | Tuple, Variable)


class BodyReader(OperandReader):
    """Reads one function's parameters and body."""

    def __init__(self, stream: TokenStream, module: Module) -> None:
        super().__init__(stream, module)
        self.scope_count = 1
        self.function = ""
        self.found = Body()

    def formals(self, *, entry: bool) -> tuple[Variable | Register, ...]:
        """Read ``(.param .u64 a, .param .align 8 .b8 b[16])``; offsets follow natural packing.

        A vector of registers is as many parameters as it has elements.
        """
        self.stream.expect("(")
        found: list[Variable | Register] = []
        end = 0
        while self.stream.now.text != ")":
            if found:
                self.stream.expect(",")
            if not entry and self.stream.accept(".reg"):
                kind, lanes = self._register_type()
                name = self.stream.word("the name of a parameter")
                one = self._add(name, registers(name.text, kind, lanes))
                found += [part for part in one.items if isinstance(part, Register)] if isinstance(one, Tuple) else [one]
                continue
            self.stream.expect(".param")
            align = self.declare.alignment()
            kind = self.declare.type()
            self._pointer_attribute()
            name = self.stream.word("the name of a parameter")
            count = 1
            if self.stream.accept("["):
                count = self.declare.integer()
                if count <= 0:
                    self.source.fail(name.line, f"the parameter {name.text} has the length {count}")
                self.stream.expect("]")
            align = max(align, kind.size)
            offset = align_up(end, align)
            end = offset + kind.size * count
            variable = Variable(name.text, "param", kind, kind.size * count, align, offset, name.line)
            found.append(self._add(name, variable))
        self.stream.expect(")")
        return tuple(found)

    def _pointer_attribute(self) -> None:
        """Step over ``.ptr .global .align 16``: a promise about the target; every access is checked anyway."""
        if not self.stream.accept(".ptr"):
            return
        if self.stream.now.text in (".const", ".global", ".local", ".shared"):
            self.stream.take()
        self.declare.alignment()

    def _add(self, token: Token, what: _Named) -> _Named:
        if token.text == "_":
            return what
        if token.text in self.scope.names:
            self.source.fail(token.line, f"{token.text} is declared twice")
        if token.text in SPECIAL_TYPES:
            self.source.fail(token.line, f"{token.text} is a special register and cannot be declared")
        self.scope.names[token.text] = what
        return what

    def body(self, function: str, names: Mapping[str, Register | Variable | Tuple]) -> Body:
        """Read ``{ ... }`` of a function whose head declares these names."""
        self.function = function
        self.scope.names = dict(names)
        self.found.scopes[0] = -1
        opening = self.stream.expect("{")
        depth = 1
        while depth:
            token = self.stream.now
            if token.kind == "end":
                self.source.fail(opening.line, f"the body of {function} is never closed")
            if self.stream.accept("{"):
                self.scope = Scope(self.scope_count, self.scope)
                self.found.scopes[self.scope_count] = self.scope.parent.number if self.scope.parent else -1
                self.scope_count += 1
                depth += 1
            elif self.stream.accept("}"):
                depth -= 1
                if depth and self.scope.parent is not None:
                    self.scope = self.scope.parent
            else:
                self._statement(token)
        return self.found

    def _statement(self, token: Token) -> None:
        if token.kind == "dot":
            self._directive(token)
        elif token.kind == "place":  # ptxrt.sim._text.places reads it, where a place is asked for
            self.stream.skip_line()
        elif token.kind == "word" and self.stream.ahead().text == ":":
            self._label(token)
        else:
            self._instruction()

    def _directive(self, token: Token) -> None:
        if token.text == ".reg":
            self.stream.take()
            self._registers()
        elif token.text in (".shared", ".local", ".param", ".global", ".const"):
            self.stream.take()
            self._variables(token.text[1:])
        elif token.text == ".pragma":
            while not self.stream.accept(";"):
                if self.stream.take().kind == "end":
                    self.stream.fail(".pragma without ';'")
        else:
            self.stream.fail(f"unknown directive {token.text}")

    def _register_type(self) -> tuple[PtxType, int]:
        """Read ``.v4 .f32``: the type, and how many elements a vector has; 1 for none."""
        lanes = 1
        if self.stream.now.text in (".v2", ".v4"):
            lanes = int(self.stream.take().text[2:])
        kind = self.declare.type()
        if lanes > 1 and (kind.kind == "pred" or lanes * kind.bits > 128):
            self.stream.fail("a vector of registers has at most 128 bits, and no predicates")
        return kind, lanes

    def _registers(self) -> None:
        kind, lanes = self._register_type()
        units = max(1, kind.bits // 32) if kind.kind != "pred" else 0
        while True:
            name = self.stream.word("the name of a register")
            count = 1
            if self.stream.accept("<"):
                count = self._plain_integer()
                self.stream.expect(">")
                # %f<4> declares %f0 to %f3, and leaves %f itself free.
                declared = (known for known in self.scope.names if is_member(known, name.text, count))
                twice = name.text if name.text in self.scope.ranges else next(declared, None)
                if twice is not None:
                    self.source.fail(name.line, f"{twice} is declared twice")
                self.scope.ranges[name.text] = (count, kind, lanes)
            else:
                if any(is_member(name.text, stem, span[0]) for stem, span in self.scope.ranges.items()):
                    self.source.fail(name.line, f"{name.text} is declared twice")
                self._add(name, registers(name.text, kind, lanes))
            self.found.register_units += units * count * lanes
            if not self.stream.accept(","):
                break
        self.stream.expect(";")

    def _plain_integer(self) -> int:
        token = self.stream.now
        if token.kind != "int" or not token.text.isdigit():
            self.stream.fail(f"expected a number of registers, found {self.stream.found()}")
        if len(token.text) > MAX_DIGITS:
            self.stream.fail(f"{token.text:.30} registers are too many")
        self.stream.take()
        return int(token.text)

    def _variables(self, space: str) -> None:
        def place(size: int, align: int) -> int:
            if space != "local":
                return 0
            offset = align_up(self.found.local_bytes, align)
            self.found.local_bytes = offset + size
            return offset

        for variable in self.declare.variables(space, place):
            token = Token("word", variable.name, variable.line, False)
            self._add(token, variable)
            if space == "shared":
                self.found.shared.append(variable)
            elif space == "local":
                self.found.local.append(variable)
            elif space in ("global", "const"):
                # Function-scope globals live as long as the module's; the name gets the function's in front.
                self.module.variables[f"{self.function}.{variable.name}.{len(self.module.variables)}"] = variable

    def _label(self, token: Token) -> None:
        self.stream.take()
        self.stream.expect(":")
        if token.text in self.scope.labels or token.text in self.scope.names:
            self.source.fail(token.line, f"{token.text} is declared twice")
        if self.stream.now.text == ".branchtargets":
            self.stream.take()
            targets = [self.stream.word("a label").text]
            while self.stream.accept(","):
                targets.append(self.stream.word("a label").text)
            self.stream.expect(";")
            self.found.tables[token.text] = tuple(targets)
            return
        if self.stream.accept(".calltargets"):
            names = [self.stream.word("a function").text]
            while self.stream.accept(","):
                names.append(self.stream.word("a function").text)
            self.stream.expect(";")
            self.found.prototypes[token.text] = Prototype(targets=tuple(names))
            return
        if self.stream.accept(".callprototype"):
            self.found.prototypes[token.text] = self._prototype()
            return
        self.scope.labels.add(token.text)
        self.found.items.append(Label(token.text, token.line, self.scope.number))

    def _prototype(self) -> Prototype:
        """Read ``(.param .b32 _) _ (.param .b64 _) .noreturn;``; the names mean nothing."""
        self.scope = Scope(self.scope_count, self.scope)
        returns = self.formals(entry=False) if self.stream.now.text == "(" else ()
        self.stream.word("_")
        params = self.formals(entry=False) if self.stream.now.text == "(" else ()
        while self.stream.accept(".noreturn"):
            pass
        self.stream.expect(";")
        if self.scope.parent is not None:
            self.scope = self.scope.parent
        return Prototype(returns, params)

    def _instruction(self) -> None:
        guard, negated = None, False
        line = self.stream.now.line
        if self.stream.accept("@"):
            negated = self.stream.accept("!")
            name = self.stream.word("a predicate")
            guard = self.scope.find(name.text)
            if not isinstance(guard, Register):
                self.source.fail(name.line, f"unknown register {name.text}")
            if guard.type.kind != "pred":
                self.source.fail(name.line, f"the guard {name.text} is .{guard.type.name}, not a predicate")
        opcode = self.stream.word("an instruction")
        line = opcode.line
        modifiers = []
        while self.stream.now.kind == "dot":
            modifiers.append(self.stream.take().text[1:])
        operands: list[Operand] = []
        while self.stream.now.text != ";":
            if operands:
                self.stream.expect(",")
            operands.append(self.operand())
            if self.stream.now.text not in (",", ";"):
                self.stream.fail(f"expected ',' or ';', found {self.stream.found()}")
        self.stream.take()
        self.found.items.append(
            Instruction(
                opcode.text,
                tuple(modifiers),
                tuple(operands),
                guard if isinstance(guard, Register) else None,
                negated,
                line,
                self.scope.number,
            )
        )
