"""A report's lines as they were written, each with what the PTX made of it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ptxrt.check.run import Report
from ptxrt.errors import numbered_excerpt
from ptxrt.places import SourcePlace
from ptxrt.sim import LineCounts

__all__ = ["Line", "declared_at", "excerpt", "lines_of", "listing"]


@dataclass
class Line:
    """One line of a text.

    Attributes
    ----------
    file, number, text
        Which; the number counts from 1.
    counts
        The sum over the PTX that was made of it.
    ptx
        The lines of that PTX that have an instruction of the kernel; empty where the text is PTX itself.
    """

    file: str
    number: int
    text: str
    counts: LineCounts = field(default_factory=LineCounts)
    ptx: list[int] = field(default_factory=list)


def lines_of(text: str) -> list[str]:
    """Return the lines as they are counted: form feeds and the like end none."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n")


def listing(report: Report) -> Mapping[str, list[Line]]:
    """Return the lines of each file, that of the source first, the others as far as the kernel has code of them.

    Of PTX that is the text itself, of C++ what was written. PTX of no line of it stands in a file of its own.
    """
    profile = {} if report.profile is None else report.profile.lines
    ptx = lines_of(report.text)
    if not report.program.sources.texts:
        return {
            report.name: [Line(report.name, n, text, profile.get(n) or LineCounts()) for n, text in enumerate(ptx, 1)]
        }
    found = {
        file: {n: Line(file, n, text) for n, text in lines.items()}
        for file, lines in report.program.sources.files.items()
    }
    for number, counts in sorted(profile.items()):
        place = report.program.place(number) or SourcePlace(report.name, number, text=ptx[number - 1])
        lines = found.setdefault(place.file, {})
        line = lines.setdefault(place.line, Line(place.file, place.line, place.text or ""))
        line.counts.add(counts)
        line.ptx.append(number)
    first = report.program.sources.texts[0][0]
    return {
        file: [lines[n] for n in sorted(lines)]
        for file, lines in sorted(found.items(), key=lambda item: item[0] != first)
        if file == first or any(line.ptx for line in lines.values())
    }


def declared_at(report: Report) -> SourcePlace | None:
    """Return where a kernel in C++ begins, None where that is not known."""
    if not report.program.sources.texts:
        return None
    lines = range(report.entry.line, 1 + len(lines_of(report.text)))
    first = next(filter(None, map(report.program.place, lines)), None)
    return first and (first.inlined or (first,))[-1]


def excerpt(report: Report, line: int, place: SourcePlace | None) -> str:
    """Return the lines around a place, or where its text is not there, around `line` of the PTX."""
    if place is None or place.text is None:
        return numbered_excerpt(report.text, line)
    return numbered_excerpt(report.program.sources.files[place.file], place.line)
