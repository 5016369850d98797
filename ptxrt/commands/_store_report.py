"""What ``ptxrt cache list`` and ``ptxrt cache show`` print of the store on disk."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import Any

from ptxrt import ops
from ptxrt.commands._choosing import Keys, only_one
from ptxrt.commands._sections import machine_code, parameters, resources
from ptxrt.commands.tables import counted, first_two, fitted, printable, size_in_words, span_in_words
from ptxrt.compilers import Binary
from ptxrt.errors import BackendUnavailable, InvalidArgument, PtxrtError
from ptxrt.ops.framework import KernelSpec
from ptxrt.runtime.modules import iso_time
from ptxrt.store import BinaryStore, Request, StoredEntry, current
from ptxrt.symbols import demangled

__all__ = ["KEYS", "listing", "open_store", "readable_store", "show", "spec_of"]

Row = dict[str, Any]
"""An entry as ``--json`` prints it; docs/cache.md has the schema."""

KEYS: Keys[Row] = Keys(
    texts={
        "key": lambda row: row["key"],
        "op": lambda row: row["op"] or "",
        "entry": lambda row: "\n".join(row["entries"]),
        "name": lambda row: row["name"] or "",
        "language": lambda row: row["language"] or "",
        "arch": lambda row: row["arch"] or "",
        "compiler": lambda row: row["compiler"] or "",
        "options": lambda row: " ".join(row["options"]),
        "problem": lambda row: row["problem"] or "",
    },
    numbers={"size": lambda row: row["size"]},
    moments={
        "age": lambda row: _moment(row["created"]),
        "idle": lambda row: _moment(row["last_used"]),
    },
)


def open_store() -> BinaryStore:
    """Return the store that the environment names.

    Raises
    ------
    InvalidArgument
        If there is none, or a variable is wrong.
    """
    store = current()
    if store is None:
        raise InvalidArgument(op="cache", argument="PTXRT_CACHE_DISABLE", expected="0 or nothing", given="'1'")
    return store


def readable_store() -> BinaryStore:
    """Return the store that the environment names, once all that is in it can be listed.

    Raises
    ------
    InvalidArgument
        As :func:`open_store`.
    PtxrtError
        If it cannot be.
    """
    store = open_store()
    why = store.unreadable()
    if why is not None:
        raise PtxrtError(op="cache", argument="store", expected="folders that can be listed", given=why)
    return store


@cache
def _library() -> dict[tuple[str, str], KernelSpec]:
    return {(f"{spec.family}.{spec.language}", spec.entry): spec for spec in ops.kernels()}


def spec_of(request: Request) -> KernelSpec | None:
    """Return the library's kernel that has the name and the entry of a request; its text may have changed since."""
    return _library().get((request.name or "", request.entry))


def _row(entry: StoredEntry) -> Row:
    request = entry.record.request if entry.record else None
    spec = spec_of(request) if request else None
    names = list(entry.record.binary["symbols"]) if entry.record and not entry.problem else []
    return {
        "key": entry.key,
        "op": spec.op if spec else None,
        "entries": sorted(names, key=lambda name: request is None or name != request.entry),
        "name": request.name if request else None,
        "language": request.language if request else None,
        "arch": request.arch if request else None,
        "compiler": request.compiler if request else None,
        "options": list(request.options) if request else [],
        "size": entry.size,
        "created": iso_time(entry.record.created) if entry.record else None,
        "last_used": iso_time(entry.last_used),
        "problem": entry.problem,
        "path": str(entry.path),
    }


def _moment(iso: str | None) -> float:
    return datetime.fromisoformat(iso).timestamp() if iso else 0.0


# list -------------------------------------------------------------------------------------------------------------


def listing(
    store: BinaryStore, *, filters: Sequence[str], sort: str | None, reverse: bool, as_json: bool
) -> tuple[str, bool]:
    """Return what ``ptxrt cache list`` prints, the least recently used first, and whether anything matched.

    Raises
    ------
    InvalidArgument
        For a filter or an order that is none.
    """
    now = time.time()
    rows = sorted(map(_row, store.entries()), key=lambda row: str(row["last_used"]))
    found = KEYS.ordered(KEYS.chosen(rows, filters, now), sort, reverse)
    matched = bool(found) or not filters
    if as_json:
        return json.dumps(found, indent=1), matched
    total, bound = sum(row["size"] for row in rows), size_in_words(store.max_bytes)
    lines = [f"{store.folder}: {counted(len(rows), 'entry')}, {size_in_words(total)} of at most {bound}", ""]
    if not found:
        return printable("\n".join([*lines, "no entry matches" if rows else "the store is empty"])), matched
    cells = [
        (
            row["key"][:12],
            row["op"] or "-",
            first_two(row["entries"]) or "-",
            row["name"] or "-",
            row["language"] or "-",
            row["arch"] or "-",
            row["compiler"] or "-",
            size_in_words(row["size"]),
            span_in_words(now - _moment(row["created"])) if row["created"] else "-",
            span_in_words(now - _moment(row["last_used"])),
        )
        for row in found
    ]
    head = ("key", "op", "entries", "name", "language", "arch", "compiler", "size", "age", "idle")
    # Each cell is made printable by itself: a line break in a name would tear the table.
    clean = [tuple(printable(cell).replace("\n", " ") for cell in row) for row in cells]
    lines.append(fitted(head, clean, (7, 8, 9), [head.index(spare) for spare in ("compiler", "name", "language")]))
    damaged = [f"{row['key'][:12]}  {row['problem']}" for row in found if row["problem"]]
    if damaged:
        lines += ["", "damaged", *damaged]
    if len(found) < len(rows):
        lines += ["", f"{len(found)} of {counted(len(rows), 'entry')}"]
    return "\n".join(printable(line) for line in lines), matched


# show -------------------------------------------------------------------------------------------------------------


def show(store: BinaryStore, key: str, *, disassembly: bool, as_json: bool) -> tuple[str, str, bool]:
    """Return what ``ptxrt cache show KEY`` prints, what it cannot print and why, and whether there is such an entry.

    Raises
    ------
    InvalidArgument
        For the beginning of several keys; for an entry that another process removes meanwhile.
    """
    entry = only_one(store.entries(), lambda each: each.key, key, "KEY")
    if entry is None:
        return "null" if as_json else f"no entry's key begins with {key}", "", False
    record = entry.record
    if as_json:
        return json.dumps({**_row(entry), "record": asdict(record) if record else None}, indent=1), "", True
    facts = _facts(entry)
    if record is None:
        return printable(facts), "", True
    parts = [facts]
    if record.headers:
        parts.append(
            "headers\n" + "\n".join(f"  {held or 'none there':64}  {path}" for path, held in record.headers.items())
        )
    missing = ""
    if entry.problem is None:
        binary = record.made(_code(entry, record.file), "")
        for symbol in binary.entries:
            lines, without = _of_entry(binary, symbol, disassembly)
            parts.append("\n".join(lines))
            missing = missing or without
        if record.binary["log"].strip():
            parts.append("log\n" + "\n".join(f"  {line}" for line in record.binary["log"].strip().splitlines()))
    return printable("\n\n".join(parts)), missing, True


def _code(entry: StoredEntry, file: str) -> bytes:
    try:
        return (entry.path / file).read_bytes()
    except OSError as error:
        raise InvalidArgument(
            op="ptxrt cache show",
            argument="KEY",
            expected="an entry that can be read",
            given=f"{entry.key}: {error.strerror}",
            fix="See ptxrt cache list: another process may have removed it",
        ) from error


def _facts(entry: StoredEntry) -> str:
    now, record = time.time(), entry.record
    facts = [("key", entry.key), ("path", str(entry.path))]
    if entry.problem:
        facts.append(("damaged", entry.problem))
    if record is not None:
        request, spec = record.request, spec_of(record.request)
        state = "as it is now" if spec and spec.source.digest == request.source else "as it was in another version"
        entries = [name if name == symbol else f"{name} ({symbol})" for name, symbol in _names(record.binary)]
        facts += [
            ("binary", str(entry.path / record.file)),
            ("op", f"{spec.op}, {state}" if spec else "-"),
            ("name", request.name or "-"),
            ("language", request.language),
            ("entries", ", ".join(entries) or "-"),
            ("asked for", request.entry),
            ("options", " ".join(request.options) or "-"),
            ("defines", " ".join(f"-D{key}" + (f"={value}" if value else "") for key, value in request.defines) or "-"),
            ("added", " ".join(request.effective) or "-"),
            ("arch", f"{request.arch}, for {request.backend}"),
            ("compiler", request.compiler),
            ("compile time", f"{record.binary.get('seconds', 0.0) * 1e3:.1f} ms"),
            ("source", f"SHA-256 {request.source}"),
            ("code", f"{record.size} bytes, SHA-256 {record.sha256}"),
            ("created", f"{iso_time(record.created)} ({span_in_words(now - record.created)} ago)"),
        ]
    facts.append(("last used", f"{iso_time(entry.last_used)} ({span_in_words(now - entry.last_used)} ago)"))
    return "\n".join(f"{name:13} {value}" for name, value in facts)


def _names(binary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the entries as asked for or as C++ writes them, each with its name in the binary."""
    asked = {symbol: name for name, symbol in binary["symbols"].items() if name != symbol}
    return [(asked.get(symbol) or demangled(symbol), symbol) for symbol in binary["entries"]]


def _of_entry(binary: Binary, symbol: str, disassembly: bool) -> tuple[list[str], str]:
    """Return lines on an entry, and why there is no disassembly of it; empty where that is not wanted, or is there."""
    shown = demangled(symbol)
    lines = [shown if shown == symbol else f"{shown}, {symbol}", *parameters(binary.entries[symbol].params)]
    if binary.kind == "ptx":
        return [*lines, *(["", binary.code.decode("ascii", "replace")] if disassembly else [])], ""
    lines += ["", *resources(binary, symbol)]
    try:
        return [*lines, *(["", *machine_code(binary, symbol)] if disassembly else [])], ""
    except BackendUnavailable as error:
        return lines, str(error)
