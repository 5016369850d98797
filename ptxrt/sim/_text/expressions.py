"""Constant expressions and literals of PTX."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NoReturn

from ptxrt.sim._text.lexer import Source, Token

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
    "<<": lambda a, b: a << min(b, 64),
    ">>": lambda a, b: a >> min(b, 64),
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    # C's division, toward zero; the shift counts above are clamped so that no text can ask for a huge number.
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}


class TokenStream:
    """A cursor over the tokens of one text."""

    def __init__(self, source: Source, tokens: list[Token]) -> None:
        self.source = source
        self.tokens = tokens
        self.place = 0

    @property
    def now(self) -> Token:
        """The token at the cursor; the last one is of kind ``end``."""
        return self.tokens[self.place]

    def ahead(self, count: int = 1) -> Token:
        """The token `count` places further."""
        return self.tokens[min(self.place + count, len(self.tokens) - 1)]

    def take(self) -> Token:
        """Return the token at the cursor and step over it."""
        token = self.tokens[self.place]
        if token.kind != "end":
            self.place += 1
        return token

    def accept(self, text: str) -> bool:
        """Step over the token if it reads `text`."""
        if self.now.text == text and self.now.kind != "string":
            self.place += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        """Step over the token `text`, or raise CompileError."""
        if self.now.text != text or self.now.kind == "string":
            self.fail(f"expected {text!r}, found {self.found()}")
        return self.take()

    def word(self, what: str) -> Token:
        """Step over a name, or raise CompileError saying that `what` was expected."""
        if self.now.kind != "word":
            self.fail(f"expected {what}, found {self.found()}")
        return self.take()

    def found(self) -> str:
        """The token at the cursor in words."""
        return "the end of the text" if self.now.kind == "end" else repr(self.now.text)

    def fail(self, problem: str) -> NoReturn:
        """Raise CompileError at the cursor; after the end, at the last token."""
        token = self.now
        if token.kind == "end" and len(self.tokens) > 1:
            token = self.tokens[-2]
        self.source.fail(token.line, problem)


def integer_literal(text: str) -> int:
    """Return the value of a decimal, hexadecimal, octal or binary literal, U or not."""
    digits = text.rstrip("U")
    lowered = digits.lower()
    if lowered.startswith("0x"):
        return int(digits, 16)
    if lowered.startswith("0b"):
        return int(digits, 2)
    if len(digits) > 1 and digits[0] == "0":
        return int(digits, 8)
    return int(digits)


def float_literal(text: str) -> float:
    """Return the value of a decimal, 0f or 0d literal (a float32 NaN keeps its payload when narrowed again)."""
    prefix = text[:2].lower()
    if prefix == "0f":
        return float(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
    if prefix == "0d":
        return float(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
    return float(text)


def constant(stream: TokenStream, level: int = 0) -> int | float:
    """Read one constant expression; integers as in C, floats only with unary signs.

    Raises
    ------
    CompileError
        For anything that is not a constant.
    """
    if level == len(_LEVELS):
        return _unary(stream)
    left = constant(stream, level + 1)
    while stream.now.kind == "mark" and stream.now.text in _LEVELS[level]:
        operator = stream.take()
        right = constant(stream, level + 1)
        if isinstance(left, float) or isinstance(right, float):
            stream.source.fail(operator.line, f"{operator.text!r} between floating-point constants")
        if operator.text in ("/", "%") and right == 0:
            stream.source.fail(operator.line, "division by zero in a constant expression")
        left = _BINARY[operator.text](int(left), int(right))
    return left


def _unary(stream: TokenStream) -> int | float:
    token = stream.now
    if stream.accept("-"):
        return -_unary(stream)
    if stream.accept("+"):
        return _unary(stream)
    if token.text in ("~", "!") and token.kind == "mark":
        stream.take()
        value = _unary(stream)
        if isinstance(value, float):
            stream.source.fail(token.line, f"{token.text!r} of a floating-point constant")
        return ~int(value) if token.text == "~" else int(not value)
    if stream.accept("("):
        if stream.now.kind == "dot" and stream.now.text in (".s64", ".u64"):
            stream.take()
            stream.expect(")")
            return _unary(stream)
        value = constant(stream)
        stream.expect(")")
        return value
    if token.kind == "int":
        try:
            value = integer_literal(token.text)
        except ValueError:
            stream.fail(f"{token.text!r} is not a number")
        stream.take()
        if value >= 1 << 64:
            stream.source.fail(token.line, f"{token.text} does not fit 64 bits")
        return value
    if token.kind == "float":
        return float_literal(stream.take().text)
    if token.text == "WARP_SZ":
        stream.take()
        return 32
    raise stream.source.error(token.line, f"expected a constant, found {stream.found()}")
