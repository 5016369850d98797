"""Places in the text that somebody wrote, where a compiler has made PTX of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

__all__ = ["SourcePlace", "Sources"]

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_LINE = re.compile(r'\s*#\s*(?:line\s+)?(\d+)\s*(?:"([^"]*)".*)?$')


@dataclass(frozen=True)
class SourcePlace:
    """A line of somebody's text that an instruction was made of.

    Attributes
    ----------
    file, line
        The file, and the line of it from 1, as ``#line`` says where there is one.
    function
        The function that the line stands in, as C++ spells it, less parameters: ``"twice<float>"``.
    text
        The line, stripped; None where it cannot be had.
    inlined
        Where the compiler has inlined functions: all of the way to the function that was not, innermost first. This
        place is one of them: the first, unless that is in a header of the compiler's own. Empty where nothing was
        inlined.
    """

    file: str
    line: int
    function: str = ""
    text: str | None = None
    inlined: tuple[SourcePlace, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def chain(self) -> str:
        """The way in words: ``"in helper() at k.cu:7, inlined into scale() at k.cu:20"``."""
        places = self.inlined or (self,)
        return "in " + ", inlined into ".join(f"{place.function}() at {place}" for place in places)


@dataclass(frozen=True)
class Sources:
    """The texts that somebody wrote, of which PTX was made.

    Attributes
    ----------
    texts
        Pairs: a file's name, as the PTX has it, and its text.
    """

    texts: tuple[tuple[str, str], ...] = ()

    @cached_property
    def files(self) -> Mapping[str, Mapping[int, str]]:
        """The lines of each file, from 1; numbered, and of files named, as ``#line`` says."""
        files: dict[str, dict[int, str]] = {}
        for name, whole in self.texts:
            text = whole.removesuffix("\n")
            # A comment is no directive; not splitlines, which also breaks where no compiler does.
            plain = _COMMENT_OR_STRING.sub(_without_comment, text) if "#" in text else text
            file, number = name, 1
            for line, directive in zip(text.split("\n"), plain.split("\n"), strict=True):
                files.setdefault(file, {}).setdefault(number, line.rstrip("\r"))
                number += 1
                if match := _LINE.match(directive):
                    file, number = match[2] or file, int(match[1])
        return files

    def line(self, file: str, number: int) -> str | None:
        """Return a line, stripped; None where it is not there."""
        text = self.files.get(file, {}).get(number)
        return None if text is None else text.strip()


def _without_comment(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else "\n" * match[0].count("\n")
