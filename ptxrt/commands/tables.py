"""Text on a terminal: tables, sizes, and characters that are safe to print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

__all__ = ["printable", "size_in_words", "table"]


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


def size_in_words(count: int) -> str:
    """Return a number of bytes as people say it: ``"12.5 KiB"``."""
    size, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{count} B" if units[0] == "B" else f"{size:.1f} {units[0]}"
