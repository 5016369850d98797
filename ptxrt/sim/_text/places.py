"""Which line of somebody's text an instruction was made of: ``.file``, ``.loc`` and the names in ``.debug_str``.

What is read here only names places, so what cannot be read is left out, and is no fault of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field, replace

from ptxrt.places import SourcePlace, Sources
from ptxrt.symbols import function_name

__all__ = ["Places"]

_FILE = re.compile(r'\.file\s+(\d{1,9})\s+"((?:[^"\\]|\\["\\]|\\(?!["\\]))*)"')
_LOC = re.compile(
    r"\.loc\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9})(?:\s*,\s*function_name\s+([\w$]+)\s*(?:\+\s*(\d{1,9})\s*)?"
    r",\s*inlined_at\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9}))?"
)
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
class Places:
    """The places of one text, found where they are asked for.

    Attributes
    ----------
    sources
        The texts that the PTX was made of, as far as they are known.
    """

    sources: Sources = field(default_factory=Sources)
    _files: dict[int, str] = field(default_factory=dict)
    _names: dict[str, bytes] = field(default_factory=dict)
    _starts: list[int] = field(default_factory=list)
    _locs: list[_Loc | None] = field(default_factory=list)
    _functions: list[str] = field(default_factory=list)
    _latest: dict[Spot, _Loc] = field(default_factory=dict)

    def file(self, line: str) -> None:
        """Read a ``.file``."""
        if match := _FILE.search(line):
            path = _ESCAPE.sub(_character, match[2].encode())
            self._files[int(match[1])] = path.decode("utf-8", "backslashreplace")

    def name(self, label: str, data: bytes) -> None:
        """Note what stands behind a label in ``.debug_str``."""
        self._names[label] = data

    def enter(self, number: int, function: str) -> None:
        """Note that line `number` of the PTX begins a function."""
        self._latest.clear()
        self._note(number, None, function)

    def loc(self, number: int, line: str) -> None:
        """Read a ``.loc`` in line `number` of the PTX."""
        if match := _LOC.search(line):
            spot = int(match[1]), int(match[2]), int(match[3])
            found = _Loc(spot)
            if match[4]:
                name, call = (match[4], int(match[5] or 0)), (int(match[6]), int(match[7]), int(match[8]))
                outer = around = self._latest.get(call)
                while around is not None:
                    # A function that is inlined into itself: one turn tells as much as many.
                    if (around.spot, around.name, around.call) == (spot, name, call):
                        outer = around.outer
                    around = around.outer
                found = _Loc(spot, name, call, outer)
            self._latest[spot] = found
            self._note(number, found, self._functions[-1])

    def _note(self, number: int, loc: _Loc | None, function: str) -> None:
        self._starts.append(number)
        self._locs.append(loc)
        self._functions.append(function)

    def at(self, number: int) -> SourcePlace | None:
        """Return the place that line `number` of the PTX was made of, None where that is not known.

        The place is the innermost one in the texts of `sources`; where none of it is in these, the innermost of all.
        """
        index = bisect_right(self._starts, number) - 1
        loc = self._locs[index] if index >= 0 else None
        places = [] if loc is None else self._chain(loc, self._functions[index])
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


def _character(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 255]) if len(match[1]) == 3 else match[1]
