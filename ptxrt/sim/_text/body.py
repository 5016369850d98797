"""The statements of one function: declarations, scopes, labels, instructions and their operands."""

from __future__ import annotations

from typing import TypeVar

from ptxrt.errors import Unsupported
from ptxrt.sim._text.declarations import Declarations, Module, align_up
from ptxrt.sim._text.expressions import TokenStream, constant
from ptxrt.sim._text.lexer import Token
from ptxrt.sim._text.program import (
    Address,
    Function,
    Immediate,
    Instruction,
    Label,
    Name,
    Negated,
    Operand,
    Pair,
    Prototype,
    Register,
    Sink,
    Special,
    Symbol,
    Tuple,
    Variable,
)
from ptxrt.sim._text.specials import SPECIAL_TYPES
from ptxrt.sim._text.types import PtxType

__all__ = ["BodyReader"]

_MAX_DIGITS = 10
"""Of the number of registers that ``%r<...>`` declares."""

_Named = TypeVar("_Named", Register, Variable, Tuple)


class _Scope:
    """The names declared between one pair of braces."""

    def __init__(self, number: int, parent: _Scope | None) -> None:
        self.number = number
        self.parent = parent
        self.names: dict[str, Register | Variable | Tuple] = {}
        self.ranges: dict[str, tuple[int, PtxType]] = {}
        self.labels: set[str] = set()

    def find(self, name: str) -> Register | Variable | Tuple | None:
        """Return what `name` means here; members of a range such as %f<8> come to be at their first use."""
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        scope: _Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            # A stem may itself end in digits (%x1<4> declares %x10 to %x13), so every split is tried.
            for cut in range(len(stem), len(name) if digits else 0):
                span = scope.ranges.get(name[:cut])
                if span is not None and _is_member(name, name[:cut], span[0]):
                    return scope.names.setdefault(name, Register(name, span[1]))
            scope = scope.parent
        return None


class BodyReader:
    """Reads one function's parameters and body."""

    def __init__(self, stream: TokenStream, module: Module) -> None:
        self.stream = stream
        self.source = stream.source
        self.module = module
        self.declare = Declarations(stream, module)
        self.scope = _Scope(0, None)
        self.scope_count = 1
        self.function = Function("", False, 0)

    def formals(self, *, entry: bool) -> tuple[Variable | Register, ...]:
        """Read ``(.param .u64 a, .param .align 8 .b8 b[16])``; offsets follow natural packing."""
        self.stream.expect("(")
        found: list[Variable | Register] = []
        end = 0
        while self.stream.now.text != ")":
            if found:
                self.stream.expect(",")
            if not entry and self.stream.accept(".reg"):
                kind = self.declare.type()
                name = self.stream.word("the name of a parameter")
                found.append(self._add(name, Register(name.text, kind)))
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

    def body(self, function: Function) -> None:
        """Read ``{ ... }``."""
        self.function = function
        function.scopes[0] = -1
        opening = self.stream.expect("{")
        depth = 1
        while depth:
            token = self.stream.now
            if token.kind == "end":
                self.source.fail(opening.line, f"the body of {function.name} is never closed")
            if self.stream.accept("{"):
                self.scope = _Scope(self.scope_count, self.scope)
                function.scopes[self.scope_count] = self.scope.parent.number if self.scope.parent else -1
                self.scope_count += 1
                depth += 1
            elif self.stream.accept("}"):
                depth -= 1
                if depth and self.scope.parent is not None:
                    self.scope = self.scope.parent
            else:
                self._statement(token)

    def _statement(self, token: Token) -> None:
        if token.kind == "dot":
            self._directive(token)
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
        elif token.text in (".loc", ".file"):
            while self.stream.now.line == token.line and self.stream.now.kind != "end":
                self.stream.take()
        elif token.text == ".pragma":
            while not self.stream.accept(";"):
                if self.stream.take().kind == "end":
                    self.stream.fail(".pragma without ';'")
        else:
            self.stream.fail(f"unknown directive {token.text}")

    def _registers(self) -> None:
        lanes = 1
        if self.stream.now.text in (".v2", ".v4"):
            lanes = int(self.stream.take().text[2:])
        kind = self.declare.type()
        if lanes > 1 and (kind.kind == "pred" or lanes * kind.bits > 128):
            self.stream.fail("a vector of registers has at most 128 bits, and no predicates")
        units = max(1, kind.bits // 32) if kind.kind != "pred" else 0
        while True:
            name = self.stream.word("the name of a register")
            count = lanes
            if lanes > 1:
                if self.stream.now.text == "<":
                    raise Unsupported(f"line {name.line}: the sim has no ranges of vector registers", op="compile")
                parts = tuple(Register(f"{name.text}.{axis}", kind) for axis in "xyzw"[:lanes])
                self._add(name, Tuple(parts))
            elif self.stream.accept("<"):
                count = self._plain_integer()
                self.stream.expect(">")
                # %f<4> declares %f0 to %f3, and leaves %f itself free.
                taken = name.text if name.text in self.scope.ranges else None
                members = (other for other in self.scope.names if _is_member(other, name.text, count))
                if taken := taken or next(members, None):
                    self.source.fail(name.line, f"{taken} is declared twice")
                self.scope.ranges[name.text] = (count, kind)
            else:
                if any(_is_member(name.text, stem, count) for stem, (count, _) in self.scope.ranges.items()):
                    self.source.fail(name.line, f"{name.text} is declared twice")
                self._add(name, Register(name.text, kind))
            self.function.register_units += units * count
            if not self.stream.accept(","):
                break
        self.stream.expect(";")

    def _plain_integer(self) -> int:
        token = self.stream.now
        if token.kind != "int" or not token.text.isdigit():
            self.stream.fail(f"expected a number of registers, found {self.stream.found()}")
        if len(token.text) > _MAX_DIGITS:
            self.stream.fail(f"{token.text:.30} registers are too many")
        self.stream.take()
        return int(token.text)

    def _variables(self, space: str) -> None:
        def place(size: int, align: int) -> int:
            if space != "local":
                return 0
            offset = align_up(self.function.local_bytes, align)
            self.function.local_bytes = offset + size
            return offset

        for variable in self.declare.variables(space, place):
            token = Token("word", variable.name, variable.line, False)
            self._add(token, variable)
            if space == "shared":
                self.module.shared.append(variable)
            elif space == "local":
                self.function.local_variables.append(variable)
            elif space in ("global", "const"):
                # Function-scope globals live as long as the module's; the name gets the function's in front.
                self.module.variables[f"{self.function.name}.{variable.name}.{variable.line}"] = variable

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
            self.function.tables[token.text] = tuple(targets)
            return
        if self.stream.accept(".calltargets"):
            names = [self.stream.word("a function").text]
            while self.stream.accept(","):
                names.append(self.stream.word("a function").text)
            self.stream.expect(";")
            self.function.prototypes[token.text] = Prototype(targets=tuple(names))
            return
        if self.stream.accept(".callprototype"):
            self.function.prototypes[token.text] = self._prototype()
            return
        self.scope.labels.add(token.text)
        self.function.body.append(Label(token.text, token.line, self.scope.number))

    def _prototype(self) -> Prototype:
        """Read ``(.param .b32 _) _ (.param .b64 _) .noreturn;``; the names mean nothing."""
        self.scope = _Scope(self.scope_count, self.scope)
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
            operands.append(self._operand())
            if self.stream.now.text not in (",", ";"):
                self.stream.fail(f"expected ',' or ';', found {self.stream.found()}")
        self.stream.take()
        self.function.body.append(
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

    def _operand(self) -> Operand:
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
            if token.text == "(" and self.stream.ahead().kind != "word" and self.stream.ahead().text != ")":
                return self._immediate()
            return self._tuple("}" if token.text == "{" else ")")
        if token.kind == "mark" and token.text == "-" and self.stream.ahead().kind == "word":
            self.source.fail(token.line, "a register cannot be negated in an operand; use neg")
        return self._immediate()

    def _tuple(self, closing: str) -> Tuple:
        self.stream.take()
        items: list[Operand] = []
        while not self.stream.accept(closing):
            if items:
                self.stream.expect(",")
            with self.stream.nested():
                items.append(self._operand())
        return Tuple(tuple(items))

    def _immediate(self) -> Immediate:
        text = self.stream.now.text
        value = constant(self.stream)
        width = {"0f": 32, "0d": 64}.get(text[:2].lower()) if isinstance(value, float) else None
        return Immediate(value, isinstance(value, float), (width, int(text[2:], 16)) if width else None)

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

    def _address(self) -> Address:
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
        self.stream.expect("]")
        return Address(base, offset)


def _is_member(name: str, stem: str, count: int) -> bool:
    """Whether a range of `count` registers declares `name`."""
    number = name[len(stem) :]
    if not name.startswith(stem) or not number.isdecimal() or len(number) > _MAX_DIGITS:
        return False
    return str(int(number)) == number and int(number) < count
