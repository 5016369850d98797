"""PTX text to tokens, each with its line."""

from __future__ import annotations

import copy
import re
from functools import cached_property
from typing import Literal, NamedTuple, NoReturn

from ptxrt.errors import CompileError
from ptxrt.places import SourcePlace, Sources
from ptxrt.sim._text.places import Places

__all__ = ["Source", "Token", "blanked", "outline", "tokenize"]

TokenKind = Literal["word", "dot", "int", "float", "string", "mark", "place", "braces", "newline", "blank", "end"]

_HIDDEN = r"//[^\n]*|/\*.*?\*/|\#[^\n]*"
_STRING = r'"(?:[^"\\\n]|\\["\\]|\\(?!["\\]))*"|"[^"\n]*"'
_PLACE = rf'\.(?:loc|file)\b[^\n/"]*(?:(?:{_STRING})[^\n/"]*)*'
_TOKEN = re.compile(
    rf"""
    [ \t\r\f\v]*
    (?:
    (?P<place>{_PLACE})
  | (?P<dot>\.(?:[A-Za-z_][\w$]*(?:::[\w$]+)*|[123]d\b))
  | (?P<word>%?[A-Za-z_$][\w$]*|%[0-9][\w$]*)
  | (?P<mark><<|>>|<=|>=|==|!=|&&|\|\||/(?![*/])|[-+*%!~&|^?:=<>(){{}}\[\],;@])
  | (?P<newline>\n)
  | (?P<float>0[fF][0-9a-fA-F]{{8}}\b|0[dD][0-9a-fA-F]{{16}}\b
      |\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<blank>{_HIDDEN})
  | (?P<string>{_STRING})
  | (?P<end>\Z)
    )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_BRACE = re.compile(rf"[{{}}]|{_HIDDEN}|/\*|{_STRING}|{_PLACE}", re.DOTALL)
_BLANK = re.compile(rf"{_HIDDEN}|{_STRING}|{_PLACE}", re.DOTALL)


class Token(NamedTuple):
    """One token: its kind, its text, its line (from 1) and whether it touches the token before it.

    One of kind ``braces`` is ``{ ... }`` as a whole, not read yet; one of kind ``place`` a ``.loc`` or ``.file``.
    """

    kind: TokenKind
    text: str
    line: int
    glued: bool


class Source:
    """The text of one program, and how to complain about it."""

    def __init__(self, text: str, name: str | None, sources: Sources | None = None) -> None:
        self.text = text
        self.name = name
        self.places = Places(sources or Sources())
        self.entry: str | None = None
        """The function being read, for messages."""

    def within(self, function: str) -> Source:
        """Return the same text for what reads a function of it."""
        found = copy.copy(self)
        found.entry = function
        return found

    @cached_property
    def lines(self) -> list[str]:
        """The lines, for messages."""
        return self.text.split("\n")

    def line_text(self, line: int) -> str:
        """Return the text of `line` (from 1), stripped."""
        return self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""

    def place(self, line: int) -> SourcePlace | None:
        """Return what was written that `line` was made of, None where that is not known."""
        return self.places.at(line)

    def error(self, line: int, problem: str, *, expected: object = None, given: object = None) -> CompileError:
        """Return the CompileError for a fault of the text at `line`."""
        return CompileError(
            f"line {line}: {problem}: {self.line_text(line)!r}",
            kernel=self.entry or self.name,
            line=line,
            source=self.text,
            expected=expected,
            given=given,
        )

    def fail(self, line: int, problem: str) -> NoReturn:
        """Raise the CompileError for a fault of the text at `line`."""
        raise self.error(line, problem)


def tokenize(source: Source, text: str, line: int = 1) -> list[Token]:
    """Split a text, or a part of it that begins in `line`; the last token is of kind ``end``.

    Raises
    ------
    CompileError
        For a character that PTX does not know, and for a comment that never ends.
    """
    return _tokens(source, text, line, whole=False)


def outline(source: Source) -> list[Token]:
    """Split the whole text, with each outermost pair of braces as one token.

    A brace that is never closed is a token as any, for whoever reads on to say so.

    Raises
    ------
    CompileError
        As for :func:`tokenize`, outside of the braces.
    """
    return _tokens(source, source.text, 1, whole=True)


def blanked(text: str) -> str:
    """Return a text without its comments, strings, ``.loc`` and ``.file``."""
    return _BLANK.sub(" ", text)


def _tokens(source: Source, text: str, line: int, *, whole: bool) -> list[Token]:
    tokens: list[Token] = []
    at = 0
    glued = False
    while (match := _TOKEN.match(text, at)) is not None:
        kind: TokenKind = match.lastgroup  # type: ignore[assignment]
        start, end = match.span(kind)
        if kind == "newline":
            line += 1
            glued = False
        elif kind == "blank":
            line += text.count("\n", start, end)
            glued = False
        elif kind == "end":
            tokens.append(Token("end", "", line, False))
            return tokens
        elif whole and text[start] == "{" and (closing := _closing(text, start)) is not None:
            end = closing
            tokens.append(Token("braces", text[start:end], line, False))
            line += text.count("\n", start, end)
            glued = False
        else:
            tokens.append(Token(kind, text[start:end], line, glued and start == at))
            glued = True
        at = end
    rest = text[at:].lstrip(" \t\r\f\v")
    if rest.startswith("/*"):
        raise source.error(line, "a comment that never ends")
    what = "" if rest[0].isascii() else ", which may stand in comments alone"
    raise source.error(line, f"unexpected character {rest[0]!r}{what}")


def _closing(text: str, at: int) -> int | None:
    """Return the end of the braces that open at `at`, None where they are never closed."""
    depth = 0
    for match in _BRACE.finditer(text, at):
        found = match[0]
        if found == "{":
            depth += 1
        elif found == "}":
            depth -= 1
            if not depth:
                return match.end()
        elif found == "/*":
            return None
    return None
