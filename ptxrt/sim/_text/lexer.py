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

TokenKind = Literal[
    "word", "dot", "int", "float", "string", "mark", "place", "braces", "newline", "blank", "end", "wrong"
]

_HIDDEN = r"//[^\n]*|/\*.*?\*/|\#[^\n]*"
_STRING = r'"(?:[^"\\\n]|\\["\\]|\\(?!["\\]))*"|"[^"\n]*"'
_PLACE = rf'\.(?:loc|file)\b[^\n/"]*(?:(?:{_STRING})[^\n/"]*)*'
_KINDS = {
    "place": _PLACE,
    "dot": r"\.(?:[A-Za-z_][\w$]*(?:::[\w$]+)*|[123]d\b)",
    "word": r"%?[A-Za-z_$][\w$]*|%[0-9][\w$]*",
    "mark": r"<<|>>|<=|>=|==|!=|&&|\|\||/(?![*/])|[-+*%!~&|^?:=<>(){}\[\],;@]",
    "newline": r"\n",
    "float": r"0[fF][0-9a-fA-F]{8}\b|0[dD][0-9a-fA-F]{16}\b"
    r"|\d+\.\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+",
    "int": r"0[xX][0-9a-fA-F]+U?|0[bB][01]+U?|\d+U?",
    "blank": _HIDDEN,
    "string": _STRING,
    "wrong": r"/\*|.",
}
_KIND = re.compile("|".join(f"(?P<{kind}>{text})" for kind, text in _KINDS.items()), re.DOTALL | re.ASCII)
_SPACE_AND_TOKEN = re.compile(rf"([ \t\r\f\v]*)({'|'.join(_KINDS.values())}|\Z)", re.DOTALL | re.ASCII)
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
    tokens: list[Token] = []
    kinds: dict[str, TokenKind] = {}  # by text: most stand there many times
    new, add = tuple.__new__, tokens.append
    glued = False
    for space, found in _SPACE_AND_TOKEN.findall(text):
        kind = kinds.get(found)
        if kind is None:
            kind = kinds[found] = _kind(found)
        if kind == "newline":
            line += 1
            glued = False
        elif kind == "blank":
            line += found.count("\n")
            glued = False
        elif kind == "end":
            break
        elif kind == "wrong":
            if found == "/*":
                raise source.error(line, "a comment that never ends")
            what = "" if found.isascii() else ", which may stand in comments alone"
            raise source.error(line, f"unexpected character {found!r}{what}")
        else:
            add(new(Token, (kind, found, line, glued and not space)))
            glued = True
    add(Token("end", "", line, False))
    return tokens


def _kind(text: str) -> TokenKind:
    match = _KIND.fullmatch(text)
    return match.lastgroup if match else "end"  # type: ignore[return-value]


def outline(source: Source) -> list[Token]:
    """Split the whole text, with each outermost pair of braces as one token.

    A brace that is never closed is a token as any, for whoever reads on to say so.

    Raises
    ------
    CompileError
        As for :func:`tokenize`, outside of the braces.
    """
    text, tokens, line = source.text, list[Token](), 1
    at = behind = 0
    while (match := _BRACE.search(text, behind)) is not None:
        start, behind = match.span()
        if match[0] != "{" or (closing := _closing(text, start)) is None:
            continue
        tokens += tokenize(source, text[at:start], line)[:-1]
        line += text.count("\n", at, start)
        tokens.append(Token("braces", text[start:closing], line, False))
        line += text.count("\n", start, closing)
        at = behind = closing
    return tokens + tokenize(source, text[at:], line)


def blanked(text: str) -> str:
    """Return a text without its comments, strings, ``.loc`` and ``.file``."""
    return _BLANK.sub(" ", text)


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
