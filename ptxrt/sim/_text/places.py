"""Which line of somebody's text an instruction was made of: ``.file``, ``.loc`` and the names in ``.debug_str``.

What is read here only names places, so what cannot be read is left out, and is no fault of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ptxrt.places import SourcePlace, Sources
from ptxrt.symbols import function_name

__all__ = ["Places"]

_FILE = re.compile(r'\.file\s+(\d{1,9})\s+"((?:[^"\\]|\\["\\]|\\(?!["\\]))*)"')
_LOC = re.compile(
    r"\.loc\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})(?:\s*,\s*function_name\s+([\w$]+)\s*(?:\+\s*(\d{1,9})\s*)?"
    r",\s*inlined_at\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9}))?"
)
_DIRECTIVE = re.compile(r'//[^\n]*|/\*.*?\*/|#[^\n]*|\.(?:loc|file)\b[^\n]*|"[^"\n]*"', re.DOTALL)
_ESCAPE = re.compile(rb'\\([0-7]{3}|["\\])')

Spot = tuple[int, int, int]
"""File, line and column, as numbers."""


@dataclass(frozen=True)
class _Loc:
    """One ``.loc``: what was inlined stands at `spot` of a function, which was called at `call`.

    `outer` is the last ``.loc`` of the same function before it that says where `call` itself was inlined.
    """

    spot: Spot
    name: tuple[str, int] | None = None
    call: Spot | None = None
    outer: _Loc | None = None


@dataclass(eq=False)
class _Function:
    """The body of a function, which begins in `line`, with its ``.loc``: the lines and what they say."""

    name: str
    text: str
    line: int
    starts: list[int] = field(default_factory=list)
    locs: list[_Loc] = field(default_factory=list)


@dataclass(eq=False)
class Places:
    """The places of one text. The body of a function is searched when a place in it is asked for.

    Attributes
    ----------
    sources
        The texts that the PTX was made of, as far as they are known.
    """

    sources: Sources = field(default_factory=Sources)
    _files: dict[int, str] = field(default_factory=dict)
    _names: dict[str, bytes] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)
    _functions: list[_Function] = field(default_factory=list)

    def file(self, line: str) -> None:
        """Read a ``.file``."""
        if match := _FILE.search(line):
            path = _ESCAPE.sub(_character, match[2].encode())
            self._files[int(match[1])] = path.decode("utf-8", "backslashreplace")

    def name(self, label: str, data: bytes) -> None:
        """Note what stands behind a label in ``.debug_str``."""
        self._names[label] = data

    def enter(self, number: int, function: str, body: str, line: int) -> None:
        """Note that line `number` of the PTX begins a function, and `line` its body; functions come in their order."""
        self._starts.append(number)
        self._functions.append(_Function(function, body, line))

    def _read(self, function: _Function) -> _Function:
        """Return the function with its ``.loc``, and read every ``.file`` in it."""
        found = replace(function, text="", starts=[], locs=[])
        latest: dict[Spot, _Loc] = {}
        number, at = function.line, 0
        for directive in _DIRECTIVE.finditer(function.text):
            if directive[0].startswith(".file"):
                self.file(directive[0])
            elif match := _LOC.match(directive[0]):
                number, at = number + function.text.count("\n", at, directive.start()), directive.start()
                loc = _loc(match, latest)
                latest[loc.spot] = loc
                found.starts.append(number)
                found.locs.append(loc)
        return found

    def at(self, number: int) -> SourcePlace | None:
        """Return the place that line `number` of the PTX was made of, None where that is not known.

        The place is the innermost one in the texts of `sources`; where none of it is in these, the innermost of all.
        """
        index = bisect_right(self._starts, number) - 1
        if index < 0:
            return None
        function = self._functions[index]
        if function.text:
            function = self._functions[index] = self._read(function)
        nearest = bisect_right(function.starts, number) - 1
        places = [] if nearest < 0 else self._chain(function.locs[nearest], function.name)
        if not places:
            return None
        written = next((place for place in places if place.file in self.sources.files), places[0])
        return replace(written, inlined=tuple(places) if len(places) > 1 else ())

    def _chain(self, loc: _Loc, function: str) -> list[SourcePlace]:
        found, at = [], loc
        while at.call is not None:
            found.append(self._place(at.spot, self._name(at)))
            at = at.outer or _Loc(at.call)
        found.append(self._place(at.spot, function))
        return [place for place in found if place is not None]

    def _name(self, loc: _Loc) -> str:
        label, offset = loc.name or ("", 0)
        return self._names.get(label, b"")[offset:].split(b"\0")[0].decode("ascii", "replace")

    def _place(self, spot: Spot, function: str) -> SourcePlace | None:
        number, line, _ = spot
        file = self._files.get(number)
        if file is None or not line:  # line 0: made by the compiler, of no line
            return None
        return SourcePlace(file, line, function_name(function), self.sources.line(file, line))


def _loc(match: re.Match[str], latest: Mapping[Spot, _Loc]) -> _Loc:
    """Return what a ``.loc`` says; `latest` has those of the function before it, the last one of each spot."""
    spot = int(match[1]), int(match[2]), int(match[3])
    if not match[4]:
        return _Loc(spot)
    name, call = (match[4], int(match[5] or 0)), (int(match[6]), int(match[7]), int(match[8]))
    outer = around = latest.get(call)
    while around is not None:
        # A function that is inlined into itself: one turn tells as much as many.
        if (around.spot, around.name, around.call) == (spot, name, call):
            outer = around.outer
        around = around.outer
    return _Loc(spot, name, call, outer)


def _character(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 255]) if len(match[1]) == 3 else match[1]
