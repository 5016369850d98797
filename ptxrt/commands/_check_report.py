"""A check's report as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from ptxrt import sim
from ptxrt.check.arguments import Value
from ptxrt.check.lines import declared_at, excerpt, listing
from ptxrt.check.run import Report
from ptxrt.commands.tables import table
from ptxrt.errors import SimFault
from ptxrt.places import SourcePlace
from ptxrt.symbols import function_name

__all__ = ["COLUMNS", "as_json", "as_text", "cells", "facts", "fault_text"]

COLUMNS: Mapping[str, str] = {
    "issued": "warp-instructions issued",
    "active": "lanes of a warp that took part, on average, of 32",
    "asked": "bytes of global memory that the lanes asked for",
    "sectors": "32-byte sectors of global memory, summed over the requests of warps",
    "least": "the fewest sectors that would have held the same bytes",
    "eff": "least by sectors",
    "conflicts": "turns of shared memory above those needed without bank conflicts",
    "serial": "turns that atomics of a warp to one address waited for each other",
}
"""The columns of the table, and what each is; docs/sim.md has the formulas."""


def cells(line: sim.LineCounts) -> dict[str, str]:
    """Return a line's counts in words, by column; empty where there is nothing to count."""
    return {
        "issued": f"{line.issued}",
        "active": "" if line.active is None else f"{line.active:.1f}",
        "asked": f"{line.global_bytes}" if line.global_requests else "",
        "sectors": f"{line.sectors}" if line.global_requests else "",
        "least": f"{line.least_sectors}" if line.global_requests else "",
        "eff": "" if line.efficiency is None else f"{100 * line.efficiency:.0f}%",
        "conflicts": f"{line.conflicts}" if line.shared_requests else "",
        "serial": f"{line.atomic_extra}" if line.atomic_extra else "",
    }


def facts(report: Report) -> list[tuple[str, str]]:
    """Return what a report begins with: entry, parameters, resources, launch, checks, in words."""
    entry, place = report.entry, declared_at(report)
    line, file = (entry.line, report.name) if place is None else (place.line, place.file)
    rows = [
        ("entry", f"{function_name(entry.name)}, line {line} of {file}"),
        ("compiler", report.compiler),
        ("signature", f"{report.signature}" + (" (as the text declares it)" if report.signature_from_text else "")),
        *((f"  {value.parameter.name}", _value(value, report)) for value in report.values),
        (
            "resources",
            f"{entry.registers} registers of 32 bits declared, {entry.shared_bytes} bytes static shared, "
            f"{entry.local_bytes} local, {entry.const_bytes} constant",
        ),
        ("launch", _launch(report)),
        ("checks", ", ".join(report.checks)),
        ("faults", "none" if report.fault is None else "1, and the launch ended there"),
    ]
    if report.launch is not None:
        run = report.launch
        each = run.lane_instructions / run.threads
        rows.append(("instructions", f"{run.lane_instructions} lane-instructions, {each:.1f} a thread"))
    return rows


def _value(value: Value, report: Report) -> str:
    if value.array is None:
        return value.form
    words = f"{value.form}, {value.array.nbytes} bytes"
    if unwritten := report.unwritten.get(value.parameter.name):
        words += f"; {unwritten} of {value.array.size} elements were never written"
    return words


def _launch(report: Report) -> str:
    threads = report.block[0] * report.block[1] * report.block[2]
    blocks = report.grid[0] * report.grid[1] * report.grid[2]
    text = f"grid {_dims(report.grid)}, block {_dims(report.block)}: {blocks * threads} threads"
    if report.shared_bytes:
        text += f", {report.shared_bytes} bytes of dynamic shared memory"
    if report.cooperative:
        text += ", cooperative"
    return text


def _dims(sizes: tuple[int, int, int]) -> str:
    return "x".join(map(str, sizes))


def as_text(report: Report) -> str:
    """Return what ``ptxrt check`` prints."""
    rows = facts(report)
    width = max(13, *(len(key) for key, _ in rows))
    parts = ["\n".join(f"{key:{width}} {value}" for key, value in rows)]
    if report.fault is not None:
        parts.append(fault_text(report, report.fault))
    if report.profile is not None:
        parts.append(_table(report, report.profile))
    return "\n\n".join(parts)


def fault_text(report: Report, fault: SimFault) -> str:
    """Return the fault's message and the lines around it, as they were written."""
    parts = [f"{type(fault).__name__}: {fault}", excerpt(report, fault.line, fault.source_place)]
    if fault.other_line is not None and not _near(fault, fault.other_line):
        parts.append(excerpt(report, fault.other_line, fault.other_place))
    return "\n\n".join(parts)


def _near(fault: SimFault, other_line: int) -> bool:
    """Return whether the second party of a race is among the lines around the first."""
    here, there = fault.source_place, fault.other_place
    if here is None or there is None:
        return abs(other_line - fault.line) <= 2
    return here.file == there.file and abs(here.line - there.line) <= 2


def _table(report: Report, profile: sim.Profile) -> str:
    files = listing(report)
    first = next(iter(files))
    ran = [line for lines in files.values() for line in lines if line.counts.issued]
    rows = [
        (
            f"{line.number}" if line.file == first else f"{line.file}:{line.number}",
            cells(line.counts),
            line.text.strip(),
        )
        for line in ran
    ]
    rows.append(("all", cells(profile.total()), ""))
    used = [name for name in COLUMNS if any(row[name] for _, row, _ in rows)]
    lines = [(number, *(row[name] for name in used), text) for number, row, text in rows]
    shown = table(("line", *used, "text"), lines, range(len(used) + 1))
    legend = "\n".join(f"{name:13} {COLUMNS[name]}" for name in used)
    until = "" if report.fault is None else "counts up to the fault\n"
    return f"{until}{shown}\n\n{legend}"


def as_json(report: Report) -> str:
    """Return the report as a JSON object."""
    profile, fault, run = report.profile, report.fault, report.launch
    record: dict[str, Any] = {
        "entry": report.entry.name,
        "name": report.name,
        "compiler": report.compiler,
        "signature": str(report.signature),
        "signature_from_text": report.signature_from_text,
        "arguments": {value.parameter.name: value.form for value in report.values},
        "unwritten": report.unwritten,
        "resources": {
            "registers": report.entry.registers,
            "shared_bytes": report.entry.shared_bytes,
            "local_bytes": report.entry.local_bytes,
            "constant_bytes": report.entry.const_bytes,
        },
        "grid": report.grid,
        "block": report.block,
        "shared_bytes": report.shared_bytes,
        "cooperative": report.cooperative,
        "seed": report.seed,
        "checks": report.checks,
        "seconds": report.seconds,
        "launch": None if run is None else dataclasses.asdict(run),
        "fault": None if fault is None else _fault(fault),
    }
    if profile is not None:
        record["total"] = _counts(profile.total())
        record["lines"] = {n: _counts(line) for n, line in sorted(profile.lines.items()) if line.issued}
        if report.program.sources.texts:
            record["source_lines"] = [
                {"file": line.file, "line": line.number, "text": line.text, "ptx": line.ptx, **_counts(line.counts)}
                for lines in listing(report).values()
                for line in lines
                if line.counts.issued
            ]
    return json.dumps(record, indent=1)


def _fault(fault: SimFault) -> dict[str, Any]:
    fields = ("entry", "line", "text", "thread", "block", "address", "size", "nearest", "other_line", "other_thread")
    return {
        "kind": type(fault).__name__,
        "message": str(fault),
        **{name: getattr(fault, name) for name in fields},
        "source_place": _place(fault.source_place),
        "other_place": _place(fault.other_place),
    }


def _place(place: SourcePlace | None) -> dict[str, Any] | None:
    return None if place is None else dataclasses.asdict(place)


def _counts(line: sim.LineCounts) -> dict[str, Any]:
    return {
        **dataclasses.asdict(line),
        "active": line.active,
        "efficiency": line.efficiency,
        "conflicts": line.conflicts,
    }
