"""The files that a program was made of, and which of their lines and branches those of its PTX are."""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from ptxrt import sim
from ptxrt.errors import CompileError, Unsupported
from ptxrt.places import SourcePlace
from ptxrt.testing._record import MOST_LINES, Pair

__all__ = ["Written"]

Key = TypeVar("Key")
Value = TypeVar("Value")


class Written:
    """What in files a program was made of; files whose text is not what was compiled are left out.

    Attributes
    ----------
    paths
        The files, by their real paths; without those of which nothing was compiled.
    """

    def __init__(self, program: sim.Program) -> None:
        self._lines: dict[str, dict[int, set[int]]] = {}
        self._ways: dict[str, dict[sim.Way, set[Pair]]] = {}
        lines: set[int] = set()
        ways: dict[sim.Way, set[int | None]] = defaultdict(set)
        for entry in program.entries.values():
            try:
                entry_lines, entry_ways = sim.lines_and_ways(entry.code)
            except (CompileError, Unsupported):  # it cannot run here, so none of its lines is missed
                continue
            lines |= entry_lines
            for way, to in entry_ways.items():
                ways[way] |= to
        if program.sources.texts:
            self._add_compiled(program, lines, ways)
        elif program.source.name and (path := _file(program.source.name, program.source.text)):
            self._lines[path] = {line: {line} for line in lines}
            self._ways[path] = {way: {(way.line, to or -way.line) for to in all_to} for way, all_to in ways.items()}
        self.paths = tuple(path for path, found in self._lines.items() if found)

    def _add_compiled(self, program: sim.Program, lines: set[int], ways: dict[sim.Way, set[int | None]]) -> None:
        sources = program.sources
        paths = {
            name: path
            for name, text in sources.texts
            # Else #line says that lines are another's.
            if list(sources.files[name]) == list(range(1, text.removesuffix("\n").count("\n") + 2))
            and (path := _file(name, text))
        }
        for path in paths.values():
            self._lines[path], self._ways[path] = defaultdict(set), defaultdict(set)
        ordered, places = sorted(lines), {line: program.place(line) for line in lines}

        def next_place(line: int) -> SourcePlace | None:
            """What the compiler has made of no line belongs to what comes next."""
            return next((places[n] for n in ordered[bisect_left(ordered, line) :] if places[n]), None)

        for line, place in places.items():
            # A line that calls an inlined function ran where one of its instructions did.
            for one in () if place is None else place.inlined or (place,):
                if one.file in paths:
                    self._lines[paths[one.file]][line].add(one.line)
        for way, all_to in ways.items():
            start = places[way.line]
            if start is None or start.file not in paths:
                continue
            for to in all_to:
                end = None if to is None else next_place(to)
                there = end.line if end is not None and end.file == start.file else -start.line
                if there != start.line:  # else a loop in one line, which coverage.py has no word for
                    self._ways[paths[start.file]][way].add((start.line, there))

    def of(self, path: str, lines: Iterable[int], ways: Iterable[sim.Way]) -> tuple[set[int], set[Pair]]:
        """Return which lines of a file, and pairs of lines, these lines and ways of the PTX are."""
        return _union(self._lines[path], lines), _union(self._ways[path], ways)

    def all_of(self, path: str) -> tuple[set[int], set[Pair]]:
        """Return the lines of a file that have instructions, and the ways of its branches."""
        return self.of(path, self._lines[path], self._ways[path])


def _union(sets: Mapping[Key, set[Value]], keys: Iterable[Key]) -> set[Value]:
    return set().union(*(sets.get(key, ()) for key in keys))


def _file(name: str, text: str) -> str | None:
    """Return the path of the file that has this text; None where the name is no such file's."""
    try:
        held = Path(name).read_text("utf-8")
    except (OSError, ValueError):
        return None
    same = held == text.replace("\r\n", "\n") and held.count("\n") < MOST_LINES
    return os.path.realpath(name) if same else None
