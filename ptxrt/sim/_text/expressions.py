"""Constant expressions and literals of PTX."""

from __future__ import annotations

import math
import operator
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

from ptxrt.sim._text.lexer import Source, Token, tokenize

__all__ = ["TokenStream", "constant", "float_literal", "integer_literal", "written_constant"]

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    ("+", "-"),
    ("*", "/", "%"),
)
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_COMPUTE: dict[str, Callable[[Any, Any], Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_OF_WHOLES = _COMPUTE | {"%": operator.mod, "|": operator.or_, "^": operator.xor, "&": operator.and_}
_OF_FLOATS = _COMPUTE | {"/": operator.truediv}
_STRENGTH = {mark: level for level, marks in enumerate(_LEVELS) for mark in marks}

_MASK = (1 << 64) - 1
_MAX_NESTING = 64
"""Parentheses, braces or signs around one another; C asks its compilers for 63. Python's own stack ends far behind."""


class TokenStream:
    """A cursor over the tokens of one text."""

    def __init__(self, source: Source, tokens: list[Token]) -> None:
        self.source = source
        self.tokens = tokens
        self.place = 0
        self.now = tokens[0]
        """The token at the cursor; the last one is of kind ``end``."""
        self._nesting = 0

    @property
    def before(self) -> Token | None:
        """The token before the cursor."""
        return self.tokens[self.place - 1] if self.place else None

    def ahead(self, count: int = 1) -> Token:
        """The token `count` places further."""
        return self.tokens[min(self.place + count, len(self.tokens) - 1)]

    def take(self) -> Token:
        """Return the token at the cursor and step over it."""
        token = self.now
        if token.kind != "end":
            self.place += 1
            self.now = self.tokens[self.place]
        return token

    def accept(self, text: str) -> bool:
        """Step over the token if it reads `text`."""
        if self.now.text == text and self.now.kind != "string":
            self.take()
            return True
        return False

    def expect(self, text: str) -> Token:
        """Step over the token `text`, or raise CompileError."""
        if self.now.text != text or self.now.kind == "string":
            self.fail(f"expected {text!r}, found {self.found()}")
        return self.take()

    def open(self) -> None:
        """Put what braces are made of in their place, if the cursor is at some that are one token."""
        token = self.now
        if token.kind == "braces":
            self.tokens[self.place : self.place + 1] = tokenize(self.source, token.text, token.line)[:-1]
            self.now = self.tokens[self.place]

    def skip_line(self) -> None:
        """Step over the rest of a line."""
        line = self.now.line
        while self.now.line == line and self.now.kind != "end":
            self.take()

    def word(self, what: str) -> Token:
        """Step over a name, or raise CompileError saying that `what` was expected."""
        if self.now.kind != "word":
            self.fail(f"expected {what}, found {self.found()}")
        return self.take()

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Read what stands inside of something of its own kind, or raise CompileError where that nests too deep."""
        if self._nesting == _MAX_NESTING:
            self.fail(f"parentheses, braces or signs that nest too deep: {_MAX_NESTING} is the most")
        self._nesting += 1
        yield
        self._nesting -= 1

    def found(self) -> str:
        """The token at the cursor in words."""
        if self.now.kind == "end":
            return "the end of the text"
        return repr("{" if self.now.kind == "braces" else self.now.text)

    def fail(self, problem: str) -> NoReturn:
        """Raise CompileError at the cursor; after the end, at the last token."""
        token = self.now
        if token.kind == "end" and len(self.tokens) > 1:
            token = self.tokens[-2]
        self.source.fail(token.line, problem)


def integer_literal(text: str) -> int:
    """Return the value of a decimal, hexadecimal, octal or binary literal, U or not.

    Raises
    ------
    ValueError
        For a digit that is none there: 09.
    OverflowError
        For a number that does not fit 64 bits.
    """
    digits = text.rstrip("U")
    base = {"0x": 16, "0b": 2}.get(digits[:2].lower(), 8 if len(digits) > 1 and digits[0] == "0" else 10)
    # Of longer decimal numbers Python itself refuses some.
    value = int(digits, base) if base != 10 or len(digits) <= 20 else 1 << 64
    if value >= 1 << 64:
        raise OverflowError
    return value


def float_literal(text: str) -> float:
    """Return the value of a decimal, 0f or 0d literal (a float32 NaN keeps its payload when narrowed again)."""
    prefix = text[:2].lower()
    if prefix == "0f":
        return float(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    if prefix == "0d":
        return float(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
    return float(text)


def _overflows(text: str, value: float) -> bool:
    """Tell whether a decimal number is too large for a float64, or so small that it has fewer bits."""
    if text[:2].lower() in ("0f", "0d"):
        return False
    digits = text.lower().partition("e")[0]
    return math.isinf(value) or (abs(value) < sys.float_info.min and digits.strip("0.") != "")


class _Whole(NamedTuple):
    """An integer of 64 bits, .s64 or .u64, as each part of a constant expression is one of them."""

    value: int
    signed: bool

    @classmethod
    def of(cls, value: int, *, signed: bool) -> _Whole:
        """Wrap a number to 64 bits."""
        bits = value & _MASK
        return cls(bits - (1 << 64) if signed and bits >> 63 else bits, signed)


def constant(stream: TokenStream) -> int | float:
    """Read one constant expression: integers of 64 bits, .s64 or .u64 as the PTX manual has it, or floats.

    What the manual leaves open is as ptxas 13 has it: ``~`` and ``%`` make a .u64 of anything, ``? :`` has the type of
    what it takes, and a shift's count is taken modulo 64.

    Raises
    ------
    CompileError
        For anything that is not a constant.
    """
    found = _choice(stream)
    return found.value if isinstance(found, _Whole) else found


def written_constant(stream: TokenStream) -> tuple[int | float, tuple[int, int] | None]:
    """Read a constant as :func:`constant` does; return width and bits, too, of a float that is written as 0f or 0d."""
    token = stream.now
    value = constant(stream)
    width = {"0f": 32, "0d": 64}.get(token.text[:2].lower()) if token.kind == "float" else None
    return value, (width, int(token.text[2:], 16)) if width and stream.before is token else None


def _choice(stream: TokenStream) -> _Whole | float:
    """Read an expression with the weakest operator, ``? :``."""
    condition = _binary(stream, 0)
    mark = stream.now
    if not stream.accept("?"):
        return condition
    if isinstance(condition, float):
        stream.source.fail(mark.line, "a floating-point constant before '?'")
    with stream.nested():
        first = _choice(stream)
        stream.expect(":")
        second = _choice(stream)
    return first if condition.value else second


def _binary(stream: TokenStream, weakest: int) -> _Whole | float:
    """Read an expression of operators that are not weaker than a level."""
    left = _unary(stream)
    while stream.now.kind == "mark" and _STRENGTH.get(stream.now.text, -1) >= weakest:
        mark = stream.take()
        right = _binary(stream, _STRENGTH[mark.text] + 1)
        if mark.text in ("/", "%") and (right.value if isinstance(right, _Whole) else right) == 0:
            stream.source.fail(mark.line, "division by zero in a constant expression")
        if isinstance(left, _Whole) and isinstance(right, _Whole):
            left = _of_wholes(mark.text, left, right)
        elif isinstance(left, float) and isinstance(right, float) and mark.text in _COMPARE:
            left = _Whole(int(_COMPARE[mark.text](left, right)), signed=True)
        elif isinstance(left, float) and isinstance(right, float) and mark.text in _OF_FLOATS:
            left = _OF_FLOATS[mark.text](left, right)
        else:
            stream.source.fail(mark.line, f"{mark.text!r} between floating-point constants, or one and an integer")
    return left


def _of_wholes(sign: str, left: _Whole, right: _Whole) -> _Whole:
    if sign in ("&&", "||"):
        both = (bool(left.value), bool(right.value))
        return _Whole(int(all(both) if sign == "&&" else any(both)), signed=True)
    if sign in ("<<", ">>"):
        count = right.value % 64
        return _Whole.of(left.value << count if sign == "<<" else left.value >> count, signed=left.signed)
    signed = left.signed and right.signed and sign != "%"
    a, b = (_Whole.of(each.value, signed=signed).value for each in (left, right))
    if sign in _COMPARE:
        return _Whole(int(_COMPARE[sign](a, b)), signed=True)
    if sign == "/":  # toward zero, as in C
        return _Whole.of(abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1), signed=signed)
    return _Whole.of(_OF_WHOLES[sign](a, b), signed=signed)


def _unary(stream: TokenStream) -> _Whole | float:
    token = stream.now
    if token.kind == "mark" and token.text in ("-", "+", "~", "!", "("):
        stream.take()
        with stream.nested():
            return _parenthesised(stream) if token.text == "(" else _signed(stream, token)
    if token.kind == "int":
        try:
            value = integer_literal(token.text)
        except OverflowError:
            stream.fail(f"{token.text:.30} does not fit 64 bits")
        except ValueError:
            stream.fail(f"{token.text:.30} is not a number")
        stream.take()
        return _Whole(value, signed=not token.text.endswith("U") and not value >> 63)
    if token.kind == "float":
        number = float_literal(token.text)
        if _overflows(token.text, number):
            stream.fail(f"{token.text:.30} is no normal number of 64 bits")
        stream.take()
        return number
    if token.text == "WARP_SZ":
        stream.take()
        return _Whole(32, signed=True)
    raise stream.source.error(token.line, f"expected a constant, found {stream.found()}")


def _signed(stream: TokenStream, sign: Token) -> _Whole | float:
    value = _unary(stream)
    if sign.text == "+":
        return value
    if isinstance(value, float):
        if sign.text != "-":
            stream.source.fail(sign.line, f"{sign.text!r} of a floating-point constant")
        return -value
    if sign.text == "-":
        return _Whole.of(-value.value, signed=value.signed)
    return _Whole.of(~value.value, signed=False) if sign.text == "~" else _Whole(int(not value.value), signed=True)


def _parenthesised(stream: TokenStream) -> _Whole | float:
    if stream.now.kind == "dot" and stream.now.text in (".s64", ".u64"):
        cast = stream.take()
        stream.expect(")")
        value = _unary(stream)
        if isinstance(value, float):
            stream.source.fail(cast.line, f"({cast.text}) of a floating-point constant")
        return _Whole.of(value.value, signed=cast.text == ".s64")
    value = _choice(stream)
    stream.expect(")")
    return value
