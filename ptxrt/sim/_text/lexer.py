"""PTX text to tokens, each with its line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from ptxrt.errors import CompileError
from ptxrt.places import SourcePlace, Sources
from ptxrt.sim._text.places import Places

__all__ = ["Source", "Token", "tokenize"]

TokenKind = Literal["word", "dot", "int", "float", "string", "mark", "end"]

_TOKEN = re.compile(
    r"""
    (?P<blank>[ \t\r\f\v]+|//[^\n]*|/\*.*?\*/|\#[^\n]*)
  | (?P<newline>\n)
  | (?P<float>0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b
      |\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
  | (?P<int>0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?)
  | (?P<dot>\.[A-Za-z_][\w$]*(?:::[\w$]+)*)
  | (?P<word>%?[A-Za-z_$][\w$]*|%[0-9][\w$]*)
  | (?P<string>"(?:[^"\\\n]|\\["\\]|\\(?!["\\]))*"|"[^"\n]*")
  | (?P<mark><<|>>|<=|>=|==|!=|&&|\|\||/(?!\*)|[-+*%!~&|^?:=<>(){}\[\],;@])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class Token:
    """One token: its kind, its text, its line (from 1) and whether it touches the token before it."""

    kind: TokenKind
    text: str
    line: int
    glued: bool


class Source:
    """The text of one program, and how to complain about it."""

    def __init__(self, text: str, name: str | None, sources: Sources | None = None) -> None:
        self.text = text
        self.name = name
        self.lines = text.split("\n")
        self.places = Places(sources or Sources())
        self.entry: str | None = None
        """The function being read, for messages."""

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


def tokenize(source: Source) -> list[Token]:
    """Split the text; the last token is of kind ``end``.

    Raises
    ------
    CompileError
        For a character outside ASCII (in comments too, as assemblers refuse it) or one that PTX does not know.
    """
    text = source.text
    if not text.isascii():
        line = next(n for n, words in enumerate(text.split("\n"), 1) if not words.isascii())
        bad = next(c for c in text if not c.isascii())
        source.fail(line, f"the character {bad!r} is not ASCII, which PTX assemblers refuse even in comments")
    tokens: list[Token] = []
    line, at, end = 1, 0, len(text)
    glued = False
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            what = "a comment that never ends" if text.startswith("/*", at) else f"unexpected character {text[at]!r}"
            source.fail(line, what)
        kind = match.lastgroup
        words = match.group()
        at = match.end()
        if kind == "newline":
            line += 1
            glued = False
        elif kind == "blank":
            line += words.count("\n")
            glued = False
        else:
            tokens.append(Token(kind, words, line, glued))  # type: ignore[arg-type]
            glued = True
    tokens.append(Token("end", "", line, False))
    return tokens
