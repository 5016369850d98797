"""What ``ptxrt cache snapshot`` prints: the entries filtered, sorted, as a table, one in full, or as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from ptxrt.commands._choosing import Keys, only_one
from ptxrt.commands._snapshot import Entry, Snapshot, read_snapshot
from ptxrt.commands.tables import counted, first_two, fitted, printable, size_in_words, span_in_words, table

__all__ = ["KEYS", "inspect"]


# What --filter and --sort call a field.
KEYS: Keys[Entry] = Keys(
    texts={
        "digest": lambda entry: entry["digest"],
        "state": lambda entry: entry["state"],
        "name": lambda entry: entry["name"] or "",
        "language": lambda entry: entry["language"],
        "entry": lambda entry: "\n".join(entry["entry_names"]),
        "options": lambda entry: " ".join(entry["options"]),
        "defines": lambda entry: " ".join("=".join(pair) for pair in entry["defines"]),
        "arch": lambda entry: entry["arch"],
        "compiler": lambda entry: entry["compiler"],
        "error": lambda entry: entry["error"] or "",
    },
    numbers={
        "size": lambda entry: entry["size"],
        "uses": lambda entry: entry["uses"],
        "live": lambda entry: entry["live_kernels"],
        "compile_ms": lambda entry: entry["compile_seconds"] * 1e3,
    },
    moments={
        "age": lambda entry: datetime.fromisoformat(entry["created"]).timestamp(),
        "idle": lambda entry: datetime.fromisoformat(entry["last_used"]).timestamp(),
    },
)


def inspect(
    path: str | os.PathLike[str],
    *,
    filters: Sequence[str] = (),
    sort: str | None = None,
    reverse: bool = False,
    entry: str | None = None,
    as_json: bool = False,
) -> tuple[str, bool]:
    """Return what ``ptxrt cache snapshot`` prints, and whether anything matched.

    Parameters
    ----------
    path
        The snapshot.
    filters
        ``KEY=VALUE`` each, all of which must hold; see :class:`Keys`. ``entry=`` looks at every entry's name.
    sort, reverse
        One of :data:`KEYS`, and whether from the last to the first. The file's order is the least recently used
        first.
    entry
        Show one entry in full: its digest, or an unambiguous beginning of it.
    as_json
        The entries as a JSON array, as they are in the file.

    Raises
    ------
    InvalidArgument
        For a file that is no snapshot, a key that there is not, a digest that several entries begin with.
    """
    snapshot = read_snapshot(path)
    now = snapshot.created.timestamp()
    found = KEYS.ordered(KEYS.chosen(snapshot.entries, filters, now), sort, reverse)
    if entry is not None:
        one = only_one(found, lambda each: str(each["digest"]), entry, "--entry")
        found = [one] if one else []
    matched = bool(found) or (entry is None and not filters)
    if as_json:
        return json.dumps(found, indent=1), matched
    if entry is not None:
        return _in_full(found[0], snapshot) if found else f"no entry's digest begins with {entry}", matched
    return _listing(snapshot, found), matched


# Printing ---------------------------------------------------------------------------------------------------------


def _abi_table(params: Sequence[Mapping[str, Any]]) -> str:
    """Return a kernel's own parameter table, one line a parameter; `params` as in a snapshot."""
    rows = [
        (str(i), p["name"] or "-", p["kind"] or "any", f"{p['size']}", f"{p['offset']}") for i, p in enumerate(params)
    ]
    return table(("#", "name", "class", "bytes", "offset"), rows, (0, 3, 4)) if rows else "no parameters"


def _listing(snapshot: Snapshot, entries: Sequence[Entry]) -> str:
    record = snapshot.record
    device, stats, bounds = record["device"], record["stats"], record["bounds"]
    lines = [
        f"{device['device']}: {device['name']}, {device['arch']}, driver {device['driver']}; "
        f"written {record['created']}",
        f"{counted(stats['modules'], 'module')} of at most {bounds['max_modules']}, "
        f"{size_in_words(stats['bytes'])} of at most {size_in_words(bounds['max_bytes'])}; "
        f"{counted(stats['hits'], 'hit')}, {counted(stats['misses'], 'miss')}, {stats['store_hits']} of these on disk, "
        f"{counted(stats['compiles'], 'compile')} ({stats['failures']} failed) in {stats['compile_seconds']:.3f} s, "
        f"{counted(stats['evictions'], 'eviction')}",
        "",
    ]
    if not entries:
        return printable("\n".join([*lines, "no entry matches" if snapshot.entries else "the cache is empty"]))
    rows = [
        (
            entry["digest"][:12],
            entry["state"],
            entry["language"],
            _entry_names(entry),
            entry["arch"],
            entry["compiler"],
            size_in_words(entry["size"]),
            str(entry["uses"]),
            str(entry["live_kernels"]),
            f"{entry['compile_seconds'] * 1e3:.1f}",
            _age(entry["created"], snapshot.created),
        )
        for entry in entries
    ]
    head = ("digest", "state", "language", "entries", "arch", "compiler", "size", "uses", "live", "compile ms", "age")
    # Each cell is made printable by itself: a line break in a name would tear the table.
    clean = [tuple(printable(cell).replace("\n", " ") for cell in row) for row in rows]
    lines.append(fitted(head, clean, (6, 7, 8, 9, 10), [head.index(spare) for spare in ("compiler", "language")]))
    failed = [f"{each['digest'][:12]}  {each['error'].splitlines()[0]}" for each in entries if each["error"]]
    if failed:
        lines += ["", "failed", *failed]
    if len(entries) < len(snapshot.entries):
        lines += ["", f"{len(entries)} of {len(snapshot.entries)} entries"]
    return "\n".join(printable(line) for line in lines)


def _entry_names(entry: Entry) -> str:
    names = entry["entry_names"]
    if not names:
        return f"({entry['name']})" if entry["name"] else "-"
    return first_two(names)


def _in_full(entry: Entry, snapshot: Snapshot) -> str:
    facts = [
        ("digest", entry["digest"]),
        ("state", entry["state"]),
        ("name", entry["name"] or "-"),
        ("language", entry["language"]),
        ("entries", ", ".join(entry["entry_names"]) or "-"),
        ("options", " ".join(entry["options"]) or "-"),
        ("defines", " ".join(f"-D{key}" + (f"={value}" if value else "") for key, value in entry["defines"]) or "-"),
        ("arch", entry["arch"]),
        ("compiler", entry["compiler"]),
        ("size", f"{entry['size']} bytes"),
        ("created", f"{entry['created']} ({_age(entry['created'], snapshot.created)} before the snapshot)"),
        ("last used", f"{entry['last_used']} ({_age(entry['last_used'], snapshot.created)} before the snapshot)"),
        ("uses", str(entry["uses"])),
        ("live kernels", str(entry["live_kernels"])),
        ("compile time", f"{entry['compile_seconds'] * 1e3:.1f} ms"),
    ]
    parts = ["\n".join(f"{key:13} {value}" for key, value in facts)]
    for name, kernel in entry["kernels"].items():
        used = kernel["resources"]
        spills = (used["spill_store_bytes"], used["spill_load_bytes"])
        spilled = "not reported" if None in spills else f"{spills[0]} bytes stored, {spills[1]} bytes loaded"
        parts.append(
            f"{name}\n{_indent(_abi_table(kernel['params']))}\n"
            f"  registers {used['registers']}, shared {used['shared_bytes']} bytes, local {used['local_bytes']} bytes, "
            f"constant {used['constant_bytes']} bytes, at most {used['max_threads']} threads a block, spills {spilled}"
        )
    if entry["state"] == "loaded" and not entry["kernels"]:
        parts.append("no entry has been looked up yet, so no parameter table was read")
    if entry["error"]:
        parts.append(f"error\n{_indent(entry['error'])}")
    numbered = "\n".join(f"{n:6d} | {line}" for n, line in enumerate(entry["source"].splitlines(), 1))
    parts.append(f"source\n{numbered}")
    return printable("\n\n".join(parts))


def _indent(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _age(then: str, now: datetime) -> str:
    return span_in_words((now - datetime.fromisoformat(then)).total_seconds())
