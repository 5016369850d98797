"""Text on a terminal: tables, colour, sizes, and characters that are safe to print.

Elsewhere than on a terminal, in a pipe or a file, a table is as wide as its cells and nothing has a colour.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Literal, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "coloured",
    "columns",
    "counted",
    "first_two",
    "fitted",
    "printable",
    "size_in_words",
    "span_in_words",
    "table",
]

_LEAST = 20
_COLOURS = {r"\bpass$": "green", r"\b(FAIL|MISS|DIFFERENT)\b": "bold red", r"^ptxrt: ": "bold red"}


def printable(text: str) -> str:
    r"""Return `text` with what a terminal would obey, or could not print, spelled as ``\x1b``; line breaks stay."""
    plain = "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)
    return plain.replace("\t", "    ")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = ()) -> str:
    """Return rows under a head, in columns separated by two spaces; those numbered in `right` end at one line."""
    lines = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    numbers = set(right)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def columns() -> int | None:
    """Return how wide the terminal is to which standard output goes, None where it goes elsewhere."""
    return shutil.get_terminal_size().columns if _is_terminal(sys.stdout) else None


def fitted(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Iterable[int] = (), spare: Sequence[int] = ()
) -> str:
    """Return what :func:`table` does, with cells broken over several lines where the terminal is too narrow.

    Before that the columns numbered in `spare` are left out, one after the other, until the rest fits. A narrow first
    column is not broken: it is what the next command is given, such as a key.
    """
    rows, right = [tuple(row) for row in rows], set(right)
    plain, width = table(head, rows, right), columns()
    if width is None or max(map(len, plain.splitlines())) <= width:
        return plain
    if spare:
        stay = [index for index in range(len(head)) if index != spare[0]]
        less = [[line[index] for index in stay] for line in (head, *rows)]
        places = {index: place for place, index in enumerate(stay)}
        return fitted(less[0], less[1:], [places[i] for i in right if i in places], [places[i] for i in spare[1:]])
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    # Where that is enough, the widest column alone is broken.
    widest = max(range(len(head)), key=widths.__getitem__)
    left = width - 2 * (len(head) - 1) - (sum(widths) - widths[widest])
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for index, name in enumerate(head):
        justify: Literal["left", "right"] = "right" if index in right else "left"
        fixed = (left if index == widest else widths[index]) if left >= _LEAST else None
        whole = index == 0 and widths[0] <= width // 4
        drawn.add_column(Text(name), justify=justify, overflow="fold", width=fixed, min_width=1, no_wrap=whole)
    for row in rows:
        drawn.add_row(*map(Text, row))
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def coloured(text: str, stream: TextIO | None) -> str:
    """Return `text` with what went well or wrong in colour, for a terminal; as it is with NO_COLOR or elsewhere."""
    if not _is_terminal(stream):
        return text
    shown = Text(text)
    for words, style in _COLOURS.items():
        shown.highlight_regex(f"(?m){words}", style)
    out = io.StringIO()
    # It looks at NO_COLOR and TERM by itself.
    console = Console(file=out, force_terminal=True, width=max(map(len, text.splitlines()), default=0) + 1)
    console.print(shown, end="", soft_wrap=True)
    return out.getvalue()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def first_two(names: Sequence[str]) -> str:
    """Return names for a cell of a table: two of them, and how many more there are."""
    return ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")


def counted(count: int, noun: str) -> str:
    """Return a number with what it counts: ``"1 entry"``, ``"2 misses"``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"


def size_in_words(count: int) -> str:
    """Return a number of bytes as people say it: ``"12.5 KiB"``."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def span_in_words(seconds: float) -> str:
    """Return a time as people say it: ``"2.5 h"``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{max(seconds, 0.0):.1f} s"
