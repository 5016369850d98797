"""Where the warps of kernels wait, as Nsight Compute counted it: ``python tools/stalls.py SOURCE.csv``.

SOURCE.csv is what these two commands make, on a machine whose driver lets ncu read the counters::

    ncu --set full --clock-control none -o REPORT python PROGRAM
    ncu --import REPORT.ncu-rep --page source --csv > SOURCE.csv

Of each launch: how many instructions of warps ran, and what share of the samples found a warp that issued one; what
the others waited for; how many turns accesses to shared memory took, and how many they would have taken without
conflicts; how many instructions were accesses that a predicate switched off for all lanes; and the instructions at
which most samples were, in the order of the code.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Launch", "launches", "main"]

_REMEDY = "Make the file by ncu --import REPORT.ncu-rep --page source --csv > SOURCE.csv"
_STALL, _ISSUED, _SOURCE = "stall_", "stall_selected", "Source"
_SAMPLES, _RAN, _SWITCHED_ON = "# Samples", "Instructions Executed", "Predicated-On Thread Instructions Executed"
_TURNS, _LEAST_TURNS = "L1 Wavefronts Shared", "L1 Wavefronts Shared Ideal"
_ACCESSES = ("LDG", "STG", "LDS", "STS", "LDGSTS", "LDL", "STL", "ATOM", "ATOMS", "ATOMG", "RED", "REDG")


class Launch(NamedTuple):
    """A kernel's instructions, one row each, by the names of ncu's columns."""

    kernel: str
    rows: list[dict[str, str]]

    def total(self, column: str) -> float:
        """Return the sum of a column, which a report may be without."""
        return sum(_number(row, column) for row in self.rows)


def launches(lines: Iterable[str]) -> Iterator[Launch]:
    """Yield the launches of a page of sources in CSV.

    Raises
    ------
    ValueError
        If a line is before the first kernel's name and the columns' names, or has not as many cells as there are; if a
        column is missing; if there is no kernel.
    """
    found: Launch | None = None
    columns: list[str] = []
    for number, cells in enumerate(csv.reader(lines), 1):
        if cells[:1] == ["Kernel Name"] and len(cells) > 1:
            if found is not None:
                yield found
            found, columns = Launch(cells[1], []), []
        elif cells[:1] == ["Address"]:
            columns = cells
            if missing := [name for name in (_SOURCE, _SAMPLES, _RAN) if name not in columns]:
                raise ValueError(f"line {number} has no column {', '.join(missing)}")
        elif cells and (found is None or len(cells) != len(columns)):
            given = ", ".join(cells)[:60]
            raise ValueError(f"line {number} is none of ncu --page source --csv: {given}")
        elif cells and found is not None:
            found.rows.append(dict(zip(columns, cells, strict=True)))
    if found is None:
        raise ValueError("no kernels are there")
    yield found


def _number(row: Mapping[str, str], column: str) -> float:
    text = row.get(column, "").replace(",", "")
    return float(text) if text.replace(".", "", 1).isdigit() else 0.0


def _opcode(row: Mapping[str, str]) -> str:
    """Return the name of an instruction, without its guard and modifiers."""
    words = row[_SOURCE].split()
    return words[1 if words[0].startswith("@") and len(words) > 1 else 0].split(".")[0].rstrip(";") if words else ""


def _reasons(row: Mapping[str, str]) -> Counter[str]:
    names = (name for name in row if name.startswith(_STALL) and "(" not in name and name != _ISSUED)
    return Counter({name.removeprefix(_STALL): _number(row, name) for name in names})


def lines_of(launch: Launch, top: int) -> Iterator[str]:
    """Yield what is said of a launch; its `top` instructions."""
    samples, ran = launch.total(_SAMPLES), launch.total(_RAN)
    yield f"{launch.kernel}: {samples:.0f} samples, {ran:.0f} instructions of warps"
    if not samples or not ran:
        yield "  nothing was sampled"
        return
    reasons = sum((_reasons(row) for row in launch.rows), Counter())
    told = ", ".join(f"{name} {count / samples:.0%}" for name, count in reasons.most_common(5) if count)
    yield f"  issued {launch.total(_ISSUED) / samples:.0%}; waited: {told}"
    if least := launch.total(_LEAST_TURNS):
        yield f"  shared memory: {launch.total(_TURNS) / least:.2f} times the turns without conflicts"
    off = [
        row
        for row in launch.rows
        if _opcode(row) in _ACCESSES and row.get(_SWITCHED_ON) and not _number(row, _SWITCHED_ON)
    ]
    if switched_off := sum(_number(row, _RAN) for row in off):
        yield f"  accesses switched off: {switched_off / ran:.0%} of the instructions"
    places = sorted(range(len(launch.rows)), key=lambda i: -_number(launch.rows[i], _SAMPLES))[:top]
    for place in sorted(places):
        row = launch.rows[place]
        ((reason, _),) = _reasons(row).most_common(1) or [("", 0)]
        yield f"  {place:6} {_number(row, _SAMPLES) / samples:4.0%}  {reason:16} {row['Source'].strip()}"


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"0 or more, not {text!r}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is said of each launch whose kernel's name has `--only` in it."""
    parser = argparse.ArgumentParser(prog="stalls.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, metavar="SOURCE.csv", help="what ncu --page source --csv printed")
    parser.add_argument("--only", default="", metavar="TEXT", help="launches of kernels with this in their names")
    parser.add_argument("--top", type=_count, default=8, metavar="N", help="instructions of each (8)")
    words = parser.parse_args(arguments)
    try:
        with words.file.open(encoding="utf-8", newline="") as file:
            every = list(launches(file))
    except (OSError, ValueError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else error
        print(f"stalls.py: {words.file}: {why}. {_REMEDY}", file=sys.stderr)
        return 2
    found = [launch for launch in every if words.only in launch.kernel]
    if not found:
        names = ", ".join(dict.fromkeys(launch.kernel for launch in every))
        print(f"stalls.py: {words.file}: no kernel has {words.only!r} in its name; it has {names}", file=sys.stderr)
        return 2
    for launch in found:
        print(*lines_of(launch, words.top), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
