"""ptxrt cache on the store on disk: each word, each rule, what it prints and its exit code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, Capture, Patch, need_nvrtc, refused, run_script
from store_testing import cache_of

import ptxrt
from ptxrt import KernelSource, ops
from ptxrt.commands import _sections, _store_report, _store_upkeep, _warm, tables
from ptxrt.commands._choosing import seconds_in
from ptxrt.commands.cache import with_word
from ptxrt.commands.cli import main
from ptxrt.compilers import Binary, EntryInfo, Included, Report, nvjitlink
from ptxrt.compilers.ptx_text import scan
from ptxrt.errors import BackendUnavailable
from ptxrt.ops.framework import KernelSpec
from ptxrt.store import BinaryStore, Request, current
from ptxrt.store._locks import locked

TEXT = (
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry {0}(.param .u64 x, .param .f32 a)\n{{\nret;\n}}\n"
)
DOCS = (ROOT / "docs" / "cache.md").read_text()

needs_linker = pytest.mark.skipif(nvjitlink.available() is not None, reason="nvJitLink is not installed")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A store of the test's own."""
    for name in ("SHARED", "MAX_BYTES"):
        monkeypatch.delenv(f"PTXRT_CACHE_{name}", raising=False)
    monkeypatch.setenv("PTXRT_CACHE_DIR", str(tmp_path / "store"))
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", "0")
    return tmp_path / "store"


def store() -> BinaryStore:
    found = current()
    assert found is not None
    return found


def put(entry: str = "first", name: str | None = "mine.ptx", **how: Any) -> str:
    """Store what a compile of a text might have given, and return its key."""
    text = how.pop("text", TEXT.format(entry))
    days = how.pop("days", 0.0)
    fields: dict[str, Any] = {"arch": "sm_90", "compiler": "nvJitLink 13.0", "language": "ptx", **how}
    source = KernelSource(fields["language"], text)
    params = fields.pop("params", scan(TEXT.format(entry)).entries[entry].params)
    included = fields.pop("included", Included())
    request = Request("cuda", source=source.digest, name=name, defines=(), entry=entry, options=(), **fields)
    binary = Binary(
        code=b"\x7fELF" + entry.encode() * 50,
        kind="cubin",
        arch=fields["arch"],
        compiler=fields["compiler"],
        options=(),
        log="ptxas info: some words",
        seconds=0.25,
        entries={entry: EntryInfo(entry, params)},
        reports={entry: Report(registers=32, shared_bytes=0)},
        symbols={entry: entry},
        included=included,
    )
    before = {each.key for each in store().entries()}
    store().binary(request, text, lambda: binary)
    (key,) = {each.key for each in store().entries()} - before
    moment = time.time() - days * 86400
    os.utime(path_of(key) / "entry.json", (moment, moment))
    return key


def path_of(key: str) -> Path:
    return store().folder / "v1" / "entries" / key[:2] / key


def damage(key: str) -> None:
    file = path_of(key) / "kernel.cubin"
    file.write_bytes(file.read_bytes()[:-1] + b"?")


def library(op: str = "softmax2d", language: str = "ptx") -> KernelSpec:
    return next(spec for spec in ops.kernels() if spec.op == op and spec.language == language)


def put_library(**how: Any) -> str:
    spec = library()
    params = scan(spec.source.text).entries[spec.entry].params
    return put(spec.entry, spec.source.name, **{"text": spec.source.text, "params": params, **how})


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    """Run ``ptxrt cache``; return the exit code and what it printed."""
    code = main(["cache", *arguments])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def printed(capsys: Capture, *arguments: str, code: int = 0) -> Any:
    """Return the JSON that it prints."""
    found, out, _ = run(capsys, *arguments, "--json")
    assert found == code
    return json.loads(out)


# Words and snapshots ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "understood"),
    [
        (["cache", "file.json", "--json"], ["cache", "snapshot", "file.json", "--json"]),
        (["cache", "--json", "file.json"], ["cache", "snapshot", "--json", "file.json"]),
        (["cache", "./list"], ["cache", "snapshot", "./list"]),
        (["cache", "list", "--json"], ["cache", "list", "--json"]),
        (["cache", "snapshot", "list"], ["cache", "snapshot", "list"]),
        (["cache", "--help"], ["cache", "--help"]),
        (["cache"], ["cache"]),
        (["kernels", "cache"], ["kernels", "cache"]),
    ],
)
def test_what_is_no_word_is_a_snapshot(given: list[str], understood: list[str]) -> None:
    assert with_word(given) == understood


def test_every_word_is_understood_and_documented(capsys: Capture) -> None:
    for word in ("path", "list", "show", "verify", "prune", "clear", "warm", "snapshot"):
        with pytest.raises(SystemExit) as left:
            main(["cache", word, "--help"])
        assert left.value.code == 0
        assert f"usage: ptxrt cache {word} " in capsys.readouterr().out
        assert f"ptxrt cache {word} " in DOCS


@pytest.mark.parametrize("word", [("path",), ("list",), ("show", "a"), ("verify",), ("prune",), ("clear", "--yes")])
def test_a_store_that_is_switched_off_is_refused(word: Any, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", "1")
    code, out, err = run(capsys, *word)
    assert (code, out) == (2, "")
    assert "PTXRT_CACHE_DISABLE: expected 0 or nothing" in err


# path -------------------------------------------------------------------------------------------------------------


def test_path_tells_the_folder_and_its_bound(folder: Path, capsys: Capture) -> None:
    code, out, _ = run(capsys, "path")
    assert code == 0
    assert out.splitlines() == [f"folder  {folder}", "        usable, at most 512.0 MiB"]
    found = printed(capsys, "path")
    assert found == {"folder": str(folder), "usable": True, "max_bytes": 512 << 20, "shared": None}


def test_path_exits_with_1_for_a_folder_that_others_may_write_to(folder: Path, capsys: Capture) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    code, out, _ = run(capsys, "path")
    assert (code, "not usable" in out) == (1, True)


def test_path_tells_whether_the_shared_store_can_be_read(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    shared = tmp_path / "shared"
    monkeypatch.setenv("PTXRT_CACHE_SHARED", str(shared))
    assert printed(capsys, "path", code=1)["shared"] == {"folder": str(shared), "usable": False}
    (shared / "v1" / "entries").mkdir(parents=True)
    assert printed(capsys, "path")["shared"] == {"folder": str(shared), "usable": True}
    assert f"shared  {shared}\n        usable\n" in run(capsys, "path")[1]


@pytest.mark.parametrize("below", ["", "entries", "entries/xx", "quarantine"])
def test_folders_that_cannot_be_listed_are_no_empty_store(
    folder: Path, below: str, monkeypatch: Patch, capsys: Capture
) -> None:
    key = put()
    closed = folder / "v1" / below.replace("xx", key[:2])
    listdir = os.listdir

    def refusing(path: Any) -> list[str]:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refusing)
    why = f"{closed} cannot be read: Permission denied"
    for word in (("list",), ("show", key), ("verify",), ("prune",), ("clear", "--yes")):
        code, out, err = run(capsys, *word)
        assert (code, out, why in err) == (1, "", True)
    code, out, _ = run(capsys, "path")
    assert (code, f"{why}\n        not usable" in out) == (1, True)
    assert printed(capsys, "path", code=1)["usable"] is False
    assert path_of(key).is_dir()


# list -------------------------------------------------------------------------------------------------------------


def test_list_has_a_line_for_each_entry_the_least_recently_used_first(folder: Path, capsys: Capture) -> None:
    keys = [put("second", days=1), put("first", None, days=3, arch="sm_80"), put_library(days=0.5)]
    code, out, _ = run(capsys, "list")
    lines = out.splitlines()
    size = sum(each.size for each in store().entries())
    assert (code, lines[0]) == (0, f"{folder}: 3 entries, {tables.size_in_words(size)} of at most 512.0 MiB")
    cells = [re.split(r"\s{2,}", line) for line in lines[2:]]
    assert cells[0] == ["key", "op", "entries", "name", "language", "arch", "compiler", "size", "age", "idle"]
    assert [row[:7] for row in cells[1:]] == [
        [keys[1][:12], "-", "first", "-", "ptx", "sm_80", "nvJitLink 13.0"],
        [keys[0][:12], "-", "second", "mine.ptx", "ptx", "sm_90", "nvJitLink 13.0"],
        [keys[2][:12], "softmax2d", library().entry, "softmax2d.ptx", "ptx", "sm_90", "nvJitLink 13.0"],
    ]
    assert [row[9] for row in cells[1:]] == ["3.0 d", "1.0 d", "12.0 h"]


def test_an_empty_store_is_no_error(capsys: Capture) -> None:
    code, out, _ = run(capsys, "list")
    assert (code, "the store is empty" in out) == (0, True)
    assert printed(capsys, "list") == []


@pytest.mark.parametrize(("used", "shown"), [(1e15, "9999-12-31T"), (-1e15, "0001-01-01T")])
def test_a_time_that_no_calendar_has_is_shown_as_the_nearest(
    used: float, shown: str, monkeypatch: Patch, capsys: Capture
) -> None:
    key = put()
    entries = [dataclasses.replace(entry, last_used=used) for entry in store().entries()]
    monkeypatch.setattr(BinaryStore, "entries", lambda _: iter(entries))
    assert printed(capsys, "list")[0]["last_used"].startswith(shown)
    assert run(capsys, "list")[0] == 0
    assert f"last used     {shown}" in run(capsys, "show", key)[1]


def test_a_time_to_come_counts_as_now(capsys: Capture) -> None:
    put(days=-3)
    assert len(printed(capsys, "list", "--filter", "idle=..1h")) == 1
    assert printed(capsys, "list", "--filter", "idle=1h..", code=1) == []


def documented(head: str) -> set[str]:
    """The fields that docs/cache.md lists in the first table below a head."""
    section = DOCS.partition(f"## {head}\n")[2].partition("\n| ")[2].partition("\n\n")[0]
    return {
        name for row in re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
    }


def test_list_as_json_has_the_documented_fields(folder: Path, capsys: Capture) -> None:
    key = put(days=1)
    (row,) = printed(capsys, "list")
    assert row.keys() == documented("An entry as JSON")
    (entry,) = store().entries()
    assert row["path"] == str(path_of(key))
    assert (row["key"], row["entries"], row["size"], row["problem"]) == (key, ["first"], entry.size, None)


def test_the_entry_that_was_asked_for_is_named_first() -> None:
    put("second")
    (entry,) = store().entries()
    assert entry.record is not None
    entry.record.binary["symbols"].update(a="second", b="second")
    assert _store_report._row(entry)["entries"] == ["second", "a", "b"]


def test_a_damaged_entry_is_listed_with_its_damage(capsys: Capture) -> None:
    key = put()
    damage(key)
    assert f"\ndamaged\n{key[:12]}  kernel.cubin is not what was written" in run(capsys, "list")[1]
    (row,) = printed(capsys, "list", "--filter", "problem=not what was written")
    assert (row["entries"], row["arch"]) == ([], "sm_90")
    (path_of(key) / "entry.json").write_text("{}")
    (row,) = printed(capsys, "list")
    assert (row["arch"], row["created"], row["problem"]) == (
        None,
        None,
        "entry.json is not what was written: its SHA-256 differs",
    )
    assert run(capsys, "list", "--sort", "age")[0] == 0


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["op=softmax2d"], ["softmax2d.ptx"]),
        (["entry=FIRST"], ["one.ptx"]),
        (["name=one"], ["one.ptx"]),
        (["arch=sm_90"], ["softmax2d.ptx", "two.ptx"]),
        (["arch=sm_90", "name=two"], ["two.ptx"]),
        (["compiler=13.0", "language=ptx"], ["one.ptx", "softmax2d.ptx", "two.ptx"]),
        (["idle=2d.."], ["one.ptx"]),
        (["idle=..48h"], ["softmax2d.ptx", "two.ptx"]),
        (["idle=30min..2d"], ["softmax2d.ptx"]),
        (["age=..1h"], ["one.ptx", "softmax2d.ptx", "two.ptx"]),
        (["age=1h.."], []),
        (["size=..10"], []),
        (["size=10.."], ["one.ptx", "softmax2d.ptx", "two.ptx"]),
    ],
)
def test_filters_of_the_store_must_all_hold(filters: list[str], expected: list[str], capsys: Capture) -> None:
    put("first", "one.ptx", arch="sm_80", days=3)
    put("second", "two.ptx")
    put_library(days=1)
    given = [word for each in filters for word in ("--filter", each)]
    rows = printed(capsys, "list", "--sort", "name", *given, code=0 if expected else 1)
    assert [row["name"] for row in rows] == expected
    if not expected:
        assert "no entry matches" in run(capsys, "list", *given)[1]
    elif len(expected) < 3:
        assert f"\n{len(expected)} of 3 entries\n" in run(capsys, "list", *given)[1]


@pytest.mark.parametrize("key", list(_store_report.KEYS))
def test_every_key_of_the_store_sorts(key: str, capsys: Capture) -> None:
    put("first", "b.ptx", days=1)
    put("second", "a.ptx", days=2)
    found = [row["name"] for row in printed(capsys, "list", "--sort", key)]
    assert sorted(found) == ["a.ptx", "b.ptx"]
    if key in ("name", "idle", "entry"):
        assert found == (["a.ptx", "b.ptx"] if key == "name" else ["b.ptx", "a.ptx"])
        assert [row["name"] for row in printed(capsys, "list", "--sort", key, "--reverse")] == found[::-1]


@pytest.mark.parametrize("value", ["7d", "7", "..", "d..", "7d..2", "1w..", "7 d..", "-1d.."])
def test_an_age_that_is_no_range_is_refused(value: str, capsys: Capture) -> None:
    code, _, err = run(capsys, "list", "--filter", f"age={value}")
    assert (code, "a range after age=, as in 7d.. (at least), ..12h (at most)" in err) == (2, True)


def test_times_have_units() -> None:
    assert [seconds_in(text) for text in ("90s", "30min", "12h", "7d")] == [90, 1800, 43200, 604800]
    assert [seconds_in(text) for text in ("", "7", "d", "7 d", "7D", "1.5h", "\u0663d", "9" * 10 + "d")] == [None] * 8


@pytest.mark.parametrize("width", [60, 80, 110, 140])
def test_the_table_fits_a_terminal_and_has_whole_keys(width: int, monkeypatch: Patch, capsys: Capture) -> None:
    key = put_library()
    monkeypatch.setattr(tables, "columns", lambda: width)
    lines = run(capsys, "list")[1].splitlines()
    assert max(map(len, lines[2:])) <= width
    (line,) = (line for line in lines if line.startswith(f"{key[:12]} "))
    assert ("nvJitLink 13.0" in line, "softmax2d.ptx" in line) == (width == 140, width >= 110)
    assert width < 80 or "softmax2d  softmax2d_kernel" in line


# show -------------------------------------------------------------------------------------------------------------


def test_show_tells_all_that_is_known(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    header = tmp_path / "mine.h"
    header.write_text("x")
    missing = str(tmp_path / "none.h")
    time.sleep(0.05)
    key = put(language="cuda", name="mine.cu", included=Included((str(header), missing)), effective=("-I/x",))
    code, out, err = run(capsys, "show", key[:8])
    assert (code, err) == (0, "")
    facts = {
        "key": key, "binary": path_of(key) / "kernel.cubin", "name": "mine.cu", "language": "cuda", "entries": "first",
        "asked for": "first", "options": "-", "added": "-I/x", "arch": "sm_90, for cuda", "compiler": "nvJitLink 13.0",
        "compile time": "250.0 ms", "op": "-",
    }  # fmt: skip
    assert {f"{name:13} {value}" for name, value in facts.items()} <= set(out.splitlines())
    assert f"  {hashlib.sha256(b'x').hexdigest()}  {header}" in out
    assert re.search(rf"^  none there +{re.escape(missing)}$", out, re.MULTILINE)
    assert re.search(r"^ +1 +- +a +float +4 +8$", out, re.MULTILINE)
    assert re.search(r"^  registers a thread +32$", out, re.MULTILINE)
    assert "log\n  ptxas info: some words" in out
    assert "SASS" not in out


def test_show_as_json_is_the_entry_and_its_record(capsys: Capture) -> None:
    key = put()
    found = printed(capsys, "show", key)
    assert found.keys() == documented("An entry as JSON") | {"record"}
    assert found["record"] == json.loads((path_of(key) / "entry.json").read_text())["entry"]


def test_the_fields_of_entry_json_are_the_documented_ones() -> None:
    key = put()
    held = json.loads((path_of(key) / "entry.json").read_text())["entry"]
    fields = {*held, *(f"request.{name}" for name in held["request"]), *(f"binary.{name}" for name in held["binary"])}
    section = DOCS.partition("## What is in an entry\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w.]+)`", row)} == fields - {"request", "binary"}


def test_show_tells_whether_the_librarys_text_is_still_the_same(capsys: Capture) -> None:
    now, before = put_library(), put_library(text=TEXT.format(library().entry), arch="sm_80")
    assert "op            softmax2d, as it is now\n" in run(capsys, "show", now)[1]
    assert "op            softmax2d, as it was in another version\n" in run(capsys, "show", before)[1]


def test_show_disassembles_where_it_is_asked_to(monkeypatch: Patch, capsys: Capture) -> None:
    key = put()
    monkeypatch.setattr(_sections, "sass", lambda code, symbol: f"{len(code)} bytes of {symbol}")
    assert "SASS, by address\n  254 bytes of first\n" in run(capsys, "show", key, "--disassemble")[1]
    assert "SASS" not in run(capsys, "show", key)[1]

    def nothing(*_: object) -> str:
        raise BackendUnavailable("no disassembler is here")

    monkeypatch.setattr(_sections, "sass", nothing)
    code, out, err = run(capsys, "show", key, "--disassemble")
    assert (code, err, "registers a thread" in out) == (0, "ptxrt: no disassembler is here\n", True)


def test_show_says_that_an_entry_has_gone_meanwhile(monkeypatch: Patch, capsys: Capture) -> None:
    key = put()
    (entry,) = store().entries()
    (path_of(key) / "kernel.cubin").unlink()
    monkeypatch.setattr(BinaryStore, "entries", lambda _: iter([entry]))
    code, out, err = run(capsys, "show", key)
    assert (code, out) == (2, "")
    assert f"an entry that can be read, given {key}: No such file" in err


def test_show_wants_one_key(monkeypatch: Patch, capsys: Capture) -> None:
    put()
    (entry,) = store().entries()
    entries = [dataclasses.replace(entry, key=f"abc{index}") for index in range(2)]
    monkeypatch.setattr(BinaryStore, "entries", lambda _: iter(entries))
    code, out, err = run(capsys, "show", "ABC")
    assert (code, out) == (2, "")
    assert "which 2 do: abc0, abc1" in err
    assert run(capsys, "show", "abc1")[0] == 0
    assert run(capsys, "show", "abd")[:2] == (1, "no entry's key begins with abd\n")
    assert printed(capsys, "show", "", code=1) is None


def test_show_of_a_damaged_entry_tells_the_damage(capsys: Capture) -> None:
    key = put()
    damage(key)
    code, out, _ = run(capsys, "show", key)
    assert (code, "damaged       kernel.cubin is not" in out, "compiler      nvJitLink 13.0" in out) == (0, True, True)
    (path_of(key) / "entry.json").unlink()
    assert "damaged       it cannot be read" in run(capsys, "show", key)[1]


# verify -----------------------------------------------------------------------------------------------------------


def test_verify_of_a_sound_store_exits_with_0(folder: Path, capsys: Capture) -> None:
    put()
    put_library()
    assert run(capsys, "verify")[:2] == (
        0,
        f"{folder}: 2 entries, 1 of them the library's kernels as they are now; "
        "0 damaged; files or folders left over: 0\n",
    )
    assert printed(capsys, "verify") == {
        "folder": str(folder), "entries": 2, "current_kernels": 1, "damaged": [], "leftovers": [],
    }  # fmt: skip


def test_verify_of_damage_exits_with_1_and_changes_nothing(folder: Path, capsys: Capture) -> None:
    put("second")
    key = put()
    damage(key)
    before = sorted(folder.rglob("*"))
    code, out, _ = run(capsys, "verify")
    assert code == 1
    assert out.startswith(f"DAMAGED {path_of(key)}: kernel.cubin is not what was written")
    (found,) = printed(capsys, "verify", code=1)["damaged"]
    assert (found["key"], found["path"]) == (key, str(path_of(key)))
    assert sorted(folder.rglob("*")) == before


def test_verify_compares_the_tables_with_todays_kernels(capsys: Capture) -> None:
    spec = library()
    params = scan(spec.source.text).entries[spec.entry].params
    assert params is not None
    put_library(arch="sm_80", params=None)  # not known
    put_library(arch="sm_75", text=TEXT.format(spec.entry), params=params[1:])  # of another text
    assert printed(capsys, "verify")["current_kernels"] == 1
    key = put_library(params=params[1:])
    (found,) = printed(capsys, "verify", code=1)["damaged"]
    assert found["key"] == key
    assert spec.entry in found["problem"]


def test_verify_compares_that_the_kernel_is_there() -> None:
    put_library()
    (entry,) = store().entries()
    assert entry.record is not None
    binary = {**entry.record.binary, "symbols": {}}
    assert (
        _store_upkeep._disagreement(dataclasses.replace(entry.record, binary=binary))
        == f"{library().entry} is not in it"
    )


def test_verify_lists_what_is_left_over(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    header = tmp_path / "mine.h"
    header.write_text("x")
    time.sleep(0.05)
    put(language="cuda", included=Included((str(header),)))
    root = folder / "v1"
    (root / "entries" / "g").mkdir()
    for name in ("tmp/a", "quarantine/b", "locks/c", "headers/d", "entries/e", "entries/g/h", "f", "../v0"):
        (root / name).write_text("")
    (root / "memos").mkdir(exist_ok=True)
    for name in ("memos/fact.json", "../tuned.json", "../tuned.json.lock"):  # which are no part of an entry either
        (root / name).write_text("")
    found = printed(capsys, "verify")["leftovers"]
    assert {os.path.relpath(each["path"], root): each["what"].split(" ")[0] for each in found} == {
        "tmp/a": "was", "quarantine/b": "was", "locks/c": "the", "headers/d": "the", "entries/e": "not",
        "entries/g/h": "not", "f": "of", "../v0": "of",
    }  # fmt: skip
    code, out, _ = run(capsys, "verify")
    assert (code, "files or folders left over: 8\n" in out) == (0, True)
    assert re.search(rf"^{root}/quarantine/b +was damaged, and put aside$", out, re.MULTILINE)


def test_verify_passes_over_a_folder_that_cannot_be_looked_at_any_more(
    folder: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    put()

    def refusing(path: Path, **_: Any) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refusing)
    monkeypatch.setattr(Path, "glob", refusing)
    assert printed(capsys, "verify")["leftovers"] == []


# prune and clear ----------------------------------------------------------------------------------------------------


def keys() -> set[str]:
    return {entry.key for entry in store().entries()}


def test_prune_removes_down_to_a_number_of_bytes(folder: Path, capsys: Capture) -> None:
    old, new = put("first", days=2), put("second", days=1)
    size = next(entry.size for entry in store().entries() if entry.key == new)
    assert printed(capsys, "prune") == {"folder": str(folder), "removed": [], "bytes": 0, "left": 2}
    found = printed(capsys, "prune", "--max-bytes", str(size + 10))
    assert (found["removed"], found["left"], keys()) == ([old], 1, {new})
    assert found["bytes"] > 100
    assert run(capsys, "prune", "--max-bytes", "0")[1].startswith(f"{folder}: 1 entry removed, ")
    assert keys() == set()


def test_prune_removes_what_was_not_used_for_long(capsys: Capture) -> None:
    old, new = put("first", days=8), put("second", days=6)
    assert printed(capsys, "prune", "--older-than", "7d")["removed"] == [old]
    assert keys() == {new}


def test_prune_keeps_to_the_bound_of_the_environment(monkeypatch: Patch, capsys: Capture) -> None:
    put()
    monkeypatch.setenv("PTXRT_CACHE_MAX_BYTES", "10")
    assert len(printed(capsys, "prune")["removed"]) == 1


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        *(("--max-bytes", value, "a number of bytes") for value in ("", "-1", "1.5", "1MiB", "\u0663", "9" * 19)),
        *(("--older-than", value, "a time such as 30min, 12h or 7d") for value in ("", "7", "week", "7d..")),
    ],
)
def test_prune_refuses_what_is_no_bound(argument: str, value: str, words: str, capsys: Capture) -> None:
    key = put(days=100)
    code, _, err = run(capsys, "prune", f"{argument}={value}")
    assert (code, f"{argument}: expected {words}" in err, keys()) == (2, True, {key})


def test_prune_and_clear_tell_of_what_they_could_not_remove(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    put()
    with locked(folder / "v1" / "locks" / "prune", 0):
        code, out, err = run(capsys, "prune", "--max-bytes", "0")
    assert (code, "0 entries removed" in out, " left in " in err) == (1, True, True)
    monkeypatch.setattr(BinaryStore, "clear", lambda _: 0)
    code, _, err = run(capsys, "clear", "--yes")
    assert (code, "1 entry left in " in err) == (1, True)


def test_clear_removes_all(folder: Path, capsys: Capture) -> None:
    put("first")
    put("second")
    code, out, _ = run(capsys, "clear", "--yes")
    assert (code, keys()) == (0, set())
    assert re.fullmatch(rf"{folder}: 2 entries removed, .* in all; 0 left\n", out)


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_clear_asks_on_a_terminal(monkeypatch: Patch, capsys: Capture) -> None:
    put()
    for answer in ("n\n", "", "\n"):
        monkeypatch.setattr("sys.stdin", Terminal(answer))
        code, out, err = run(capsys, "clear")
        assert (code, out, len(keys())) == (1, "", 1)
        assert err.endswith("? [y/N] ptxrt: nothing was removed\n")
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert (run(capsys, "clear")[0], keys()) == (0, set())


@pytest.mark.parametrize("stdin", [StringIO("y\n"), None])
def test_clear_does_nothing_unasked_where_there_is_no_terminal(stdin: Any, monkeypatch: Patch, capsys: Capture) -> None:
    put()
    monkeypatch.setattr("sys.stdin", stdin)
    code, _, err = run(capsys, "clear")
    assert (code, "--yes: expected --yes" in err, len(keys())) == (2, True, 1)


# warm: which kernels ------------------------------------------------------------------------------------------------


def test_warm_without_an_op_is_every_kernel_that_a_device_can_run() -> None:
    count = {"ptx": 0, "hip": 0}
    for spec in ops.kernels():
        count[spec.language] += 1
    found = _warm.jobs_of_ops([], ["sm_90", "gfx1100"])
    assert [job.arch for job in found].count("sm_90") == count["ptx"]
    assert [job.arch for job in found].count("gfx1100") == count["hip"]
    assert {job.source.language for job in found[:3]} == {"ptx"}


def test_warm_of_ops_is_those_alone() -> None:
    found = _warm.jobs_of_ops(["softmax2d", "rms_norm"], ["sm_90"])
    assert {job.what.op for job in found if isinstance(job.what, KernelSpec)} == {"softmax2d", "rms_norm"}
    with refused(ptxrt.InvalidArgument, "cache", "OP", "'softmax'", "Did you mean softmax2d?"):
        _warm.jobs_of_ops(["softmax"], ["sm_90"])


def test_warm_leaves_out_what_an_architecture_is_too_old_for() -> None:
    def types(arch: str) -> set[str]:
        jobs = _warm.jobs_of_ops(["softmax2d"], [arch])
        return {job.what.dtype for job in jobs if isinstance(job.what, KernelSpec)}

    assert types("sm_80") - types("sm_75") == {"bf16"}
    assert types("gfx900:xnack-") == types("sm_80")


def test_warm_follows_the_language_that_the_ops_follow(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_LANGUAGE", "hip")
    assert {job.source.language for job in _warm.jobs_of_ops(["softmax2d"], ["sm_90"])} == {"hip"}


def test_warm_takes_the_names_that_devices_report() -> None:
    names = "sm_90,gfx942:sramecc+:xnack-,gfx1100,sm_90,gfx1010:xnack-,sm_120"
    assert _warm.wanted_architectures(names) == [*dict.fromkeys(names.split(","))]
    for arch in (
        "",
        "sm_9",
        "sm_90a",
        "sm_90,",
        "ada",
        "gfx",
        "gfx942",
        "gfx942:xnack-",
        "gfx942:xnack-:sramecc+",
        "gfx1100:xnack-",
        "gfx9-4-generic",
    ):
        with pytest.raises(ptxrt.InvalidArgument, match="expected"):
            _warm.wanted_architectures(arch)
    with refused(ptxrt.InvalidArgument, "cache", "--arch", "such as gfx90a:sramecc+:xnack-, given 'gfx90a'"):
        _warm.wanted_architectures("gfx90a")


def test_warm_is_for_the_gpus_here_if_nothing_is_named(monkeypatch: Patch, capsys: Capture) -> None:
    class Fake:
        def __init__(self, kind: str, arch: str) -> None:
            self.kind, self.arch = kind, arch

    monkeypatch.setattr(_warm, "devices", lambda: [Fake("cuda", "sm_90"), Fake("cuda", "sm_90"), Fake("sim", "sm_80")])
    assert _warm.wanted_architectures(None) == ["sm_90"]
    monkeypatch.setattr(_warm, "devices", lambda: [Fake("sim", "sm_80")])
    code, _, err = run(capsys, "warm")
    assert (code, "no GPU here" in err, "Name them: --arch sm_90" in err) == (2, True, True)


# warm: the compiles -------------------------------------------------------------------------------------------------


def only(monkeypatch: Patch, *specs: KernelSpec) -> None:
    monkeypatch.setattr(ops, "kernels", lambda: list(specs))


@needs_linker
def test_what_was_warmed_is_loaded_without_a_compile_on_nvidia(
    folder: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    spec = library()
    only(monkeypatch, spec)
    assert printed(capsys, "warm", "--arch", "sm_90", "--jobs", "1") == {
        "folder": str(folder), "kernels": 1, "compiled": 1, "present": 0, "failed": [],
    }  # fmt: skip
    for arch, compiles in (("sm_90", 0), ("sm_80", 1)):
        cache = cache_of(monkeypatch, "cuda", arch)
        assert cache.module(spec.source, spec.entry, ()).binary.arch == arch
        assert cache.stats().compiles == compiles
    code, out, _ = run(capsys, "warm", spec.op, "--arch", "sm_90", "--jobs", "1")
    assert code == 0
    assert out.startswith(f"{folder}: 1 kernel for sm_90: 0 compiled, 1 there before, 0 failed; ")


def test_what_was_warmed_is_loaded_without_a_compile_on_amd(
    hiprtc_there: None, monkeypatch: Patch, capsys: Capture
) -> None:
    spec = library(language="hip")
    only(monkeypatch, spec)
    arch = "gfx942:sramecc+:xnack-"
    assert printed(capsys, "warm", "--arch", arch, "--jobs", "1")["compiled"] == 1
    cache = cache_of(monkeypatch, "hip", arch)
    assert cache.module(spec.source, spec.entry, ()).binary.kind == "hsaco"
    assert cache.stats().compiles == 0
    assert printed(capsys, "verify")["current_kernels"] == 1


CXX = '#include "mine.h"\ntemplate <class T> __global__ void k(T* x) { *x = N + Z; }\n'


@pytest.fixture
def cxx(tmp_path: Path, monkeypatch: Patch) -> str:
    need_nvrtc()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.h").write_text("#define Z 3\n")
    (tmp_path / "mine.cu").write_text(CXX)
    time.sleep(0.05)
    return "mine.cu"


def test_a_file_is_warmed_for_the_load_that_names_the_same(cxx: str, monkeypatch: Patch, capsys: Capture) -> None:
    how = ("--entry", "k<float>", "--entry", "k<int>", "--define", "N=4", "--define", "M", "--option=-use_fast_math")
    found = printed(capsys, "warm", "--file", cxx, "--arch", "sm_90", "--jobs", "1", *how)
    assert (found["compiled"], found["failed"]) == (2, [])
    cache = cache_of(monkeypatch, "cuda", "sm_90")
    source = KernelSource.from_file(cxx, {"N": 4, "M": None})
    for entry in ("k<float>", "k<int>"):
        cache.module(source, entry, ("-use_fast_math",))
    assert cache.stats().compiles == 0
    cache.module(source, "k<float>", ())
    assert cache.stats().compiles == 1


def test_what_fails_is_named_and_the_rest_is_stored(cxx: str, capsys: Capture) -> None:
    how = ("--file", cxx, "--arch", "sm_90", "--jobs", "1", "--define", "N=4")
    code, out, err = run(capsys, "warm", *how, "--entry", "k<float>", "--entry", "nothing")
    assert (code, "1 compiled, 0 there before, 1 failed" in out) == (1, True)
    assert err.startswith("ptxrt: nothing for sm_90: nothing: no entry 'nothing'")
    assert len(err.splitlines()) == 1
    code, _, err = run(capsys, "warm", *how, *(word for n in range(7) for word in ("--entry", f"none{n}")))
    assert (code, len(err.splitlines()), err.splitlines()[-1]) == (1, 6, "ptxrt: and 2 more")


def test_what_cannot_be_stored_has_failed(cxx: str, tmp_path: Path, capsys: Capture) -> None:
    text = "#define NAME <mine.h>\n#if __has_include(NAME)\n#endif\n__global__ void k(float* x) { *x = 1; }\n"
    (tmp_path / "mine.cu").write_text(text)
    time.sleep(0.05)
    (failed,) = printed(capsys, "warm", "--file", cxx, "--entry", "k", "--arch", "sm_90", "--jobs", "1", code=1)[
        "failed"
    ]
    assert failed["error"].startswith("it was compiled, but not stored")


def test_a_store_that_cannot_be_used_is_not_warmed(folder: Path, monkeypatch: Patch, capsys: Capture) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setattr(_warm, "_outcomes", None)
    code, _, err = run(capsys, "warm", "--arch", "sm_90")
    assert (code, f"{folder} cannot be used" in err) == (1, True)


@needs_linker
def test_a_bound_that_the_kernels_exceed_is_told(monkeypatch: Patch, capsys: Capture) -> None:
    only(monkeypatch, library())
    monkeypatch.setenv("PTXRT_CACHE_MAX_BYTES", "1000")
    code, _, err = run(capsys, "warm", "--arch", "sm_90", "--jobs", "1")
    assert (code, "more than the 1000 B that PTXRT_CACHE_MAX_BYTES allows" in err) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "argument"),
    [
        (("softmax2d", "--file", "mine.cu"), "OP"),
        (("--entry", "k"), "--entry"),
        (("--option=-G",), "--option"),
        (("--define", "N"), "--define"),
        (("--file", "mine.cu"), "--entry"),
        (("softmax2d", "--jobs", "0"), "--jobs"),
        (("softmax2d", "--jobs", "many"), "--jobs"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    arguments: Any, argument: str, cxx: str, capsys: Capture
) -> None:
    code, out, err = run(capsys, "warm", "--arch", "sm_90", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"ptxrt: cache: {argument}: expected ")


def test_a_language_that_the_vendor_does_not_take_is_refused_before_any_compile(
    hiprtc_there: None, cxx: str, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setattr(_warm, "_outcomes", None)
    code, _, err = run(capsys, "warm", "--file", cxx, "--entry", "k", "--arch", "gfx1100")
    assert (code, "a text in hip on gfx1100" in err) == (1, True)


@pytest.fixture
def two(tmp_path: Path) -> list[_warm.Job]:
    """A small text for two architectures."""
    (tmp_path / "mine.ptx").write_text(TEXT.format("first"))
    return _warm.jobs_of_file(str(tmp_path / "mine.ptx"), [], [], {}, ["sm_80", "sm_90"])


def test_an_entry_that_ptx_does_not_have_is_refused(two: list[_warm.Job]) -> None:
    source = two[0].source
    assert [(job.entry, job.arch) for job in two] == [("first", "sm_80"), ("first", "sm_90")]
    with pytest.raises(ptxrt.CompileError, match="no entry"):
        _warm.jobs_of_file(str(source.file), ["second"], [], {}, ["sm_90"])


def test_nothing_to_compile_is_refused(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    (tmp_path / "none.ptx").write_text(".version 7.0\n.target sm_70\n.address_size 64\n")
    code, _, err = run(capsys, "warm", "--file", str(tmp_path / "none.ptx"), "--arch", "sm_90")
    assert (code, "expected a kernel for one of the architectures, given none" in err) == (2, True)
    only(monkeypatch, library())
    assert run(capsys, "warm", "--arch", "gfx1100")[0] == 2


@needs_linker
def test_processes_of_their_own_compile_too(two: list[_warm.Job], monkeypatch: Patch) -> None:
    assert [outcome[::2] for outcome in _warm._outcomes(two, 2)] == [(True, None), (True, None)]
    assert len(keys()) == 2


def test_a_process_that_ends_is_an_error_of_ours(two: list[_warm.Job], monkeypatch: Patch, capsys: Capture) -> None:
    class Pool:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def map(self, *_: Any, **__: Any) -> Iterator[Any]:
            raise BrokenProcessPool("it was killed")

        def shutdown(self, **how: Any) -> None:
            assert how == {"cancel_futures": True}

    monkeypatch.setattr(_warm, "ProcessPoolExecutor", Pool)
    with refused(ptxrt.PtxrtError, "cache", "warm", "it was killed", "--jobs"):
        list(_warm._outcomes(two, 2))


def test_a_warm_runs_where_standard_error_is_closed(two: list[_warm.Job], monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(_warm, "_outcomes", lambda jobs, _: (_warm.Outcome(True, 1, None) for _ in jobs))
    monkeypatch.setattr(_warm.Job, "request", lambda _: None)
    monkeypatch.setattr("sys.stderr", None)
    code, out, _ = run(capsys, "warm", "--file", str(two[0].source.file), "--arch", "sm_90", "--jobs", "1")
    assert (code, "1 compiled" in out) == (0, True)


def test_processes_end_with_the_one_that_started_them() -> None:
    done = run_script(
        """
        import multiprocessing, os, signal
        from concurrent.futures import ProcessPoolExecutor
        from ptxrt.commands import _warm
        pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), initializer=_warm._begin)
        print(pool.submit(os.getpid).result(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert done.returncode == -signal.SIGKILL
    ends = time.monotonic() + 20
    while is_running(int(done.stdout)) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not is_running(int(done.stdout))


def is_running(process: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
