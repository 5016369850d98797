"""Constant expressions and literals of PTX."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

from ptxrt.sim._text.lexer import Source, Token, tokenize

__all__ = ["TokenStream", "constant", "float_literal", "integer_literal"]

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
_BINARY: dict[str, Callable[[int, int], int]] = {
    "||": lambda a, b: int(bool(a) or bool(b)),
    "&&": lambda a, b: int(bool(a) and bool(b)),
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&": lambda a, b: a & b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "<<": lambda a, b: a << (b if 0 <= b < 64 else 64),
    ">>": lambda a, b: a >> (b if 0 <= b < 64 else 64),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    # C's division, toward zero.
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}
_STRENGTH = {operator: level for level, operators in enumerate(_LEVELS) for operator in operators}

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


def constant(stream: TokenStream, weakest: int = 0) -> int | float:
    """Read one constant expression; integers of 64 bits as in C, floats only with unary signs.

    Parameters
    ----------
    weakest
        Level of the operators that end the expression, and do not belong to it, if they are weaker.

    Raises
    ------
    CompileError
        For anything that is not a constant.
    """
    left = _unary(stream)
    while stream.now.kind == "mark" and _STRENGTH.get(stream.now.text, -1) >= weakest:
        operator = stream.take()
        right = constant(stream, _STRENGTH[operator.text] + 1)
        if isinstance(left, float) or isinstance(right, float):
            stream.source.fail(operator.line, f"{operator.text!r} between floating-point constants")
        if operator.text in ("/", "%") and right == 0:
            stream.source.fail(operator.line, "division by zero in a constant expression")
        left = _wrapped(_BINARY[operator.text](left, right))
    return left


def _wrapped(value: int) -> int:
    """Return a number of 64 bits, signed or not; what is neither wraps to an unsigned one."""
    return value if -(1 << 63) <= value < 1 << 64 else value & ((1 << 64) - 1)


def _unary(stream: TokenStream) -> int | float:
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
        return value
    if token.kind == "float":
        return float_literal(stream.take().text)
    if token.text == "WARP_SZ":
        stream.take()
        return 32
    raise stream.source.error(token.line, f"expected a constant, found {stream.found()}")


def _signed(stream: TokenStream, sign: Token) -> int | float:
    value = _unary(stream)
    if sign.text == "+":
        return value
    if sign.text == "-":
        return -value if isinstance(value, float) else _wrapped(-value)
    if isinstance(value, float):
        stream.source.fail(sign.line, f"{sign.text!r} of a floating-point constant")
    return _wrapped(~value) if sign.text == "~" else int(not value)


def _parenthesised(stream: TokenStream) -> int | float:
    if stream.now.kind == "dot" and stream.now.text in (".s64", ".u64"):
        stream.take()
        stream.expect(")")
        return _unary(stream)
    value = constant(stream)
    stream.expect(")")
    return value
