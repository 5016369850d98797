"""``ptxrt cache path``, ``verify``, ``prune`` and ``clear``: the folder of the store, and what is wrong in it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ptxrt.commands._choosing import DURATION, seconds_in, wrong
from ptxrt.commands._store_report import spec_of
from ptxrt.commands.tables import counted, fitted, printable, size_in_words
from ptxrt.compilers import ParamInfo
from ptxrt.errors import SignatureMismatch, shown
from ptxrt.ops.framework import tuned
from ptxrt.store import FOLDERS, BinaryStore, Record, bytes_in, inside, is_entry, root_of

__all__ = ["clear", "path", "prune", "verify"]

Say = Callable[[str], None]
Complain = Callable[[str, int], int]


# path -------------------------------------------------------------------------------------------------------------


def path(store: BinaryStore, as_json: bool, say: Say) -> int:
    """Say where the store is, and the shared one; return 0 where all that is named can be used, else 1."""
    shared = None
    if store.shared is not None:
        shared = {
            "folder": str(store.shared),
            "usable": os.access(root_of(store.shared) / "entries", os.R_OK | os.X_OK),
        }
    why = store.unreadable()
    usable = store.usable and why is None
    record = {"folder": str(store.folder), "usable": usable, "max_bytes": store.max_bytes, "shared": shared}
    if as_json:
        say(json.dumps(record, indent=1))
    else:
        say(f"folder  {store.folder}")
        if why is not None:
            say(f"        {why}")
        say(f"        {'usable' if usable else 'not usable'}, at most {size_in_words(store.max_bytes)}")
        if shared is not None:
            say(f"shared  {shared['folder']}\n        {'usable' if shared['usable'] else 'no store that can be read'}")
    return 0 if usable and (shared is None or shared["usable"]) else 1


# verify -----------------------------------------------------------------------------------------------------------


def verify(store: BinaryStore, as_json: bool, say: Say) -> int:
    """Verify all entries, say what is damaged and what was left over; return 1 where anything is damaged, else 0."""
    count, current, damaged, requests = 0, 0, [], set()
    for entry in store.entries():
        count += 1
        problem = entry.problem
        if entry.record is not None:
            requests.add(entry.record.request.key())
            if problem is None and _is_current(entry.record):
                current += 1
                problem = _disagreement(entry.record)
        if problem is not None:
            damaged.append({"key": entry.key, "path": str(entry.path), "problem": problem})
    leftovers = [{"path": str(where), "what": what} for where, what in _leftovers(store, requests)]
    if as_json:
        record = {
            "folder": str(store.folder),
            "entries": count,
            "current_kernels": current,
            "damaged": damaged,
            "leftovers": leftovers,
        }
        say(json.dumps(record, indent=1))
        return 1 if damaged else 0
    for each in damaged:
        say(f"DAMAGED {each['path']}: {each['problem']}")
    if leftovers:
        say(fitted(("left over", ""), [(printable(each["path"]), each["what"]) for each in leftovers]) + "\n")
    say(
        f"{store.folder}: {counted(count, 'entry')}, {current} of them the library's kernels as they are now; "
        f"{len(damaged)} damaged; files or folders left over: {len(leftovers)}"
    )
    return 1 if damaged else 0


def _is_current(record: Record) -> bool:
    spec = spec_of(record.request)
    return spec is not None and spec.source.digest == record.request.source


def _disagreement(record: Record) -> str | None:
    """Return in words how the parameter table of a kernel of the library is not the declared one."""
    spec = spec_of(record.request)
    if spec is None:
        return None
    entry = record.binary["entries"].get(record.binary["symbols"].get(spec.entry))
    if entry is None:
        return f"{spec.entry} is not in it"
    try:
        if entry["params"] is not None:
            spec.signature.agree(spec.entry, [ParamInfo(**param) for param in entry["params"]])
    except SignatureMismatch as error:
        return str(error)
    return None


def _leftovers(store: BinaryStore, requests: set[str]) -> Iterator[tuple[Path, str]]:
    """Yield what is in the folder and no part of an entry; `requests` are the keys of the entries' requests."""
    root = root_of(store.folder)
    beside = {root.name, tuned.FILE, f"{tuned.FILE}.lock"}
    for where, names in ((store.folder, beside), (root, {*FOLDERS, store.memos.name})):
        yield from ((path, "of another version, or not ptxrt's") for path in inside(where) if path.name not in names)
    for path in inside(root / "entries"):
        for inner in inside(path) if os.path.isdir(path) else [path]:
            if not is_entry(inner):
                yield inner, "not ptxrt's"
    for name, what in (
        ("tmp", "was being written or removed: by a process that runs, or was ended"),
        ("quarantine", "was damaged, and put aside"),
        ("locks", "the lock of a compile that is under way, or of a process that was ended"),
    ):
        yield from ((path, what) for path in inside(root / name))
    for path in inside(root / "headers"):
        if path.name not in requests:
            yield path, "the headers of an entry that was removed"


# prune and clear --------------------------------------------------------------------------------------------------


def prune(
    store: BinaryStore, max_bytes: str | None, older_than: str | None, as_json: bool, say: Say, complain: Complain
) -> int:
    """Remove the least recently used entries, say what, and return the exit code."""
    bound = store.max_bytes if max_bytes is None else bytes_in(max_bytes)
    if bound is None:
        raise wrong("--max-bytes", "a number of bytes", shown(max_bytes))
    idle = None if older_than is None else seconds_in(older_than)
    if older_than is not None and idle is None:
        raise wrong("--older-than", DURATION, shown(older_than))
    left = _removed(store, lambda: store.prune(bound, idle_seconds=idle), as_json, say)
    if sum(left.values()) > bound:
        return complain(f"{size_in_words(sum(left.values()))} left in {store.folder}: {_HINDERED}", 1)
    return 0


def clear(store: BinaryStore, yes: bool, as_json: bool, say: Say, complain: Complain) -> int:
    """Remove all entries once that is confirmed, say what, and return the exit code."""
    if not yes and not (sys.stdin is not None and sys.stdin.isatty()):
        raise wrong("--yes", "--yes, since nobody can be asked here", "none")
    if not yes and not _confirmed(f"Remove all entries of {store.folder}? [y/N] "):
        return complain("nothing was removed", 1)
    left = _removed(store, store.clear, as_json, say)
    return complain(f"{counted(len(left), 'entry')} left in {store.folder}: {_HINDERED}", 1) if left else 0


_HINDERED = "another process is at it, or the folder cannot be written"


def _confirmed(question: str) -> bool:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _removed(store: BinaryStore, remove: Callable[[], int], as_json: bool, say: Say) -> dict[str, int]:
    """Remove, say which entries that was and how many bytes in all; return the bytes of each that is left."""
    before = {entry.key for entry in store.entries()}
    freed = remove()
    left = {entry.key: entry.size for entry in store.entries()}
    gone = sorted(before - left.keys())
    record: dict[str, Any] = {"folder": str(store.folder), "removed": gone, "bytes": freed, "left": len(left)}
    say(
        json.dumps(record, indent=1)
        if as_json
        else f"{store.folder}: {counted(len(gone), 'entry')} removed, {size_in_words(freed)} in all; {len(left)} left"
    )
    return left
