"""Snapshots of a module cache: read, and checked field by field. docs/cache.md has the schema.

:meth:`ptxrt.ModuleCache.snapshot` writes the file. Nothing here needs a device, so a snapshot can be read on another
machine than the one it tells of.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ptxrt.errors import InvalidArgument
from ptxrt.runtime.modules import SCHEMA

__all__ = ["Entry", "Snapshot", "read_snapshot"]

Entry = dict[str, Any]
Check = Callable[[Any, str], None]

_MOST_NESTED = 100  # far above what is written, and far below Python's limit, which printing the entries would reach


@dataclass(frozen=True)
class Snapshot:
    """A snapshot that was read and found well-formed.

    Attributes
    ----------
    path
        The file.
    record
        All of it, as the schema has it.
    created
        When it was written.
    """

    path: str
    record: dict[str, Any]
    created: datetime

    @property
    def entries(self) -> list[Entry]:
        """The modules, loaded and failed, the least recently used first."""
        entries: list[Entry] = self.record["entries"]
        return entries


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Read and check a snapshot.

    Fields that the schema does not have are passed over: a later version may add some without a new schema number.

    Raises
    ------
    InvalidArgument
        The file cannot be read, is no JSON, or is no snapshot of this schema; the message names the first field at
        fault.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        # ValueError: a NUL in the file's name.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise _bad(path, "a file that can be read as text", reason) from error
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad(path, "a complete JSON document", f"text that is not one ({error})") from error
    if _is_deeper(record, _MOST_NESTED):
        raise _bad(path, f"JSON with values nested at most {_MOST_NESTED} deep", "one nested deeper")
    try:
        _object(record, "the snapshot")
        _check_schema(record)
        _fields(_SNAPSHOT)(record, "")
    except _Malformed as error:
        raise _bad(path, f"a snapshot of schema {SCHEMA}: {error.expected}", error.given) from None
    return Snapshot(os.fspath(path), record, datetime.fromisoformat(record["created"]))


def _is_deeper(value: Any, depth: int) -> bool:
    """Tell whether objects and arrays are nested deeper, by no recursion."""
    level: list[Any] = [[value]]
    for _ in range(depth + 1):
        inner = (each for nest in level for each in (nest.values() if isinstance(nest, dict) else nest))
        level = [each for each in inner if isinstance(each, (dict, list))]
    return bool(level)


class _Malformed(Exception):
    """A field is not what the schema says."""

    def __init__(self, expected: str, given: str) -> None:
        super().__init__(expected, given)
        self.expected = expected
        self.given = given


def _bad(path: str | os.PathLike[str], expected: str, given: str) -> InvalidArgument:
    return InvalidArgument(
        op="cache",
        argument=os.fspath(path),
        expected=expected,
        given=given,
        fix="device.modules.snapshot(path) writes such a file",
    )


def _check_schema(record: dict[str, Any]) -> None:
    if "schema" not in record:
        raise _Malformed("a field 'schema'", "an object without one")
    _whole(record["schema"], "schema")
    if record["schema"] != SCHEMA:
        later = "a later" if record["schema"] > SCHEMA else "an earlier"
        raise _Malformed(f"schema {SCHEMA}", f"schema {record['schema']}, which {later} version of ptxrt writes")


def _kind(words: str, accept: Callable[[Any], bool]) -> Check:
    def check(value: Any, where: str) -> None:
        if not accept(value):
            shown = json.dumps(value)
            raise _Malformed(f"{where}: {words}", shown if len(shown) <= 60 else f"{shown[:57]}...")

    return check


# JSON knows numbers without end, and Python reads them; these bounds are far above anything that is written.
def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_seconds(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


_text = _kind("a string", lambda value: isinstance(value, str))
_whole = _kind("a whole number of at least 0", _is_whole)
_seconds = _kind("a number of seconds", _is_seconds)
_time = _kind("a time with its zone, as in 2026-01-31T12:00:00.000+00:00", _is_time)
_object = _kind("an object", lambda value: isinstance(value, dict))
_array = _kind("an array", lambda value: isinstance(value, list))
_digest = _kind("64 hexadecimal digits", lambda value: isinstance(value, str) and _is_digest(value))
_state = _kind("'loaded' or 'failed'", lambda value: value in ("loaded", "failed"))


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _or_null(check: Check) -> Check:
    def either(value: Any, where: str) -> None:
        if value is not None:
            check(value, where)

    return either


def _list_of(item: Check, length: int | None = None) -> Check:
    def check(value: Any, where: str) -> None:
        _array(value, where)
        if length is not None and len(value) != length:
            raise _Malformed(f"{where}: {length} items", str(len(value)))
        for index, each in enumerate(value):
            item(each, f"{where}[{index}]")

    return check


def _fields(schema: Mapping[str, Check]) -> Check:
    def check(value: Any, where: str) -> None:
        _object(value, where)
        for name, each in schema.items():
            place = f"{where}.{name}" if where else name
            if name not in value:
                raise _Malformed(f"a field {place}", "none")
            each(value[name], place)

    return check


def _dict_of(item: Check) -> Check:
    def check(value: Any, where: str) -> None:
        _object(value, where)
        for name, each in value.items():
            item(each, f"{where}.{name}")

    return check


_PARAM = {"offset": _whole, "size": _whole, "kind": _or_null(_text), "name": _text}
_RESOURCES = {
    "registers": _whole,
    "shared_bytes": _whole,
    "local_bytes": _whole,
    "constant_bytes": _whole,
    "max_threads": _whole,
    "spill_store_bytes": _or_null(_whole),
    "spill_load_bytes": _or_null(_whole),
}
_ENTRY = {
    "digest": _digest,
    "state": _state,
    "name": _or_null(_text),
    "language": _text,
    "entry_names": _list_of(_text),
    "options": _list_of(_text),
    "defines": _list_of(_list_of(_text, 2)),
    "arch": _text,
    "compiler": _text,
    "size": _whole,
    "created": _time,
    "last_used": _time,
    "uses": _whole,
    "compile_seconds": _seconds,
    "live_kernels": _whole,
    "source": _text,
    "kernels": _dict_of(_fields({"params": _list_of(_fields(_PARAM)), "resources": _fields(_RESOURCES)})),
    "error": _or_null(_text),
}
_STATS = {
    "hits": _whole,
    "misses": _whole,
    "store_hits": _whole,
    "compiles": _whole,
    "failures": _whole,
    "evictions": _whole,
    "compile_seconds": _seconds,
    "modules": _whole,
    "bytes": _whole,
}
_SNAPSHOT: dict[str, Check] = {
    "schema": _whole,
    "created": _time,
    "device": _fields({"device": _text, "name": _text, "arch": _text, "driver": _text}),
    "bounds": _fields({"max_modules": _whole, "max_bytes": _whole}),
    "stats": _fields(_STATS),
    "entries": _list_of(_fields(_ENTRY)),
}
