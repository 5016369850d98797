"""What is on the disk is not what was written, or not what belongs there: never a wrong binary, and it heals."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from store_testing import ALL, BINARY, CXX, PTX, TEXT, Compiler, assert_sound, look, warnings, with_header

from ptxrt import files
from ptxrt.compilers import Binary
from ptxrt.store import BinaryStore

OTHER = replace(BINARY, code=b"another code")


def entry_of(folder: Path) -> Path:
    (found,) = folder.glob("v1/entries/*/*")
    return found


def assert_mended(folder: Path, caplog: pytest.LogCaptureFixture, path: Path, expected: Binary = BINARY) -> None:
    """Hold a store to it that the damage costs one recompile, and one log line with the path."""
    compiler = Compiler(expected)
    assert look(folder, compiler) == expected
    assert compiler.calls == 1
    (line,) = warnings(caplog)
    assert str(path) in line
    assert len(list(folder.glob("v1/quarantine/*"))) == 1
    assert look(folder, compiler) == expected
    assert (compiler.calls, warnings(caplog)) == (1, [])
    assert_sound(folder, expected=expected)
    shutil.rmtree(folder / "v1" / "quarantine")


def test_pain4_a_binary_that_was_changed_is_put_aside_and_compiled_once_more(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    look(folder, Compiler())
    damaged = entry_of(folder) / "kernel.cubin"
    damaged.write_bytes(damaged.read_bytes()[::-1])
    assert_mended(folder, caplog, damaged.parent)


@pytest.mark.parametrize("name", ["kernel.cubin", "entry.json"])
def test_cut_off_at_every_length(folder: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    look(folder, Compiler())
    path = entry_of(folder) / name
    sound = path.read_bytes()
    for length in range(0, len(sound), 1 if ALL or name == "kernel.cubin" else 29):
        path.write_bytes(sound[:length])
        assert BinaryStore(folder).find(PTX, TEXT) is None, f"{length} bytes of {name}"
    assert_mended(folder, caplog, path.parent)
    for left_out in (1, 2, 3, 4):
        os.truncate(path, path.stat().st_size - left_out)
        assert_mended(folder, caplog, path.parent)


def bits(size: int, step: int) -> Iterator[tuple[int, int]]:
    """Places in a file, and in each a bit of its own."""
    drawn = random.Random(5)
    for at in range(0, size, 1 if ALL else step):
        yield at, 1 << drawn.randrange(8)


@pytest.mark.parametrize(("name", "step"), [("kernel.cubin", 1), ("entry.json", 13)])
def test_a_bit_of_every_byte(folder: Path, name: str, step: int) -> None:
    look(folder, Compiler())
    path = entry_of(folder) / name
    sound = path.read_bytes()
    for at, bit in bits(len(sound), step):
        path.write_bytes(bytes([*sound[:at], sound[at] ^ bit, *sound[at + 1 :]]))
        assert BinaryStore(folder).find(PTX, TEXT) is None, f"byte {at} of {name}"
        (entry,) = BinaryStore(folder).entries()
        assert entry.problem
    path.write_bytes(sound)
    assert BinaryStore(folder).find(PTX, TEXT) == BINARY


def test_a_bit_of_a_large_entry(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    large = replace(BINARY, code=random.Random(1).randbytes(300_000), log="x" * 5000)
    look(folder, Compiler(large))
    for name, at in (("kernel.cubin", 299_999), ("kernel.cubin", 131_072), ("entry.json", 4000)):
        path = entry_of(folder) / name
        data = bytearray(path.read_bytes())
        data[at] ^= 0x10
        path.write_bytes(data)
        assert_mended(folder, caplog, path.parent, large)


def list_of(folder: Path) -> Path:
    (found,) = folder.glob("v1/headers/*")
    return found


@pytest.mark.parametrize("form", ["cut off", "a bit"])
def test_a_list_of_headers_that_was_changed(folder: Path, header: Path, form: str) -> None:
    expected = with_header(header)
    look(folder, Compiler(expected), CXX)
    sound = list_of(folder).read_bytes()
    ways = [sound[:length] for length in range(len(sound))]
    if form == "a bit":
        ways = [bytes([*sound[:at], sound[at] ^ bit, *sound[at + 1 :]]) for at, bit in bits(len(sound), 1)]
    for data in ways:
        list_of(folder).write_bytes(data)
        compiler = Compiler(expected)
        assert look(folder, compiler, CXX) == look(folder, compiler, CXX) == expected
        assert compiler.calls == 1
        assert list_of(folder).read_bytes() == sound
    assert_sound(folder, CXX, expected)


def test_an_entry_of_another_key_in_its_place(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    look(folder, Compiler())
    mine = entry_of(folder)
    shutil.move(mine, folder / "saved")
    look(folder, Compiler(OTHER), replace(PTX, source="0" * 64))
    shutil.move(entry_of(folder), mine)
    assert_mended(folder, caplog, mine)


def test_the_binary_of_another_entry(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    look(folder, Compiler())
    (entry_of(folder) / "kernel.cubin").write_bytes(BINARY.code[:-1] + b"\0")
    assert_mended(folder, caplog, entry_of(folder))


def _other_schemas() -> list[Callable[[dict[str, Any]], object]]:
    fields = [
        *(("", name) for name in ("key", "request", "headers", "created", "file", "sha256", "size", "binary")),
        *(("request", name) for name in ("options", "defines", "effective", "backend")),
        *(("binary", name) for name in ("options", "entries", "reports", "variables", "sources", "kind", "ptx")),
    ]
    changes: list[Callable[[dict[str, Any]], object]] = []

    def change(part: str, how: Callable[[dict[str, Any]], object]) -> None:
        changes.append(lambda held: how(held[part] if part else held))

    for part, name in fields:
        change(part, lambda held, name=name: held.pop(name))  # type: ignore[misc]
    for part in ("", "request", "binary"):
        change(part, lambda held: held.update(new=1))
    values: tuple[Any, ...] = (None, 5, "x", [5], {"a": 5}, [[1]])
    for value in values:
        for name in ("entries", "reports", "variables", "sources"):
            change("binary", lambda held, name=name, value=value: held.update({name: value}))  # type: ignore[misc]
        for name in ("file", "key"):
            change("", lambda held, name=name, value=value: held.update({name: value}))  # type: ignore[misc]
    return changes


def test_another_schema(folder: Path) -> None:
    look(folder, Compiler())
    path = entry_of(folder) / "entry.json"
    sound = path.read_bytes()
    for number, change in enumerate(_other_schemas()):
        held = json.loads(sound)["entry"]
        change(held)
        path.write_bytes(files.framed("entry", json.dumps(held).encode()))
        assert BinaryStore(folder).find(PTX, TEXT) in (None, BINARY), number
        list(BinaryStore(folder).entries())
    for data in (b"", b"{}", b"[]", b"null", b"[" * 100_000, b"\0" * 1000, b"\xff\xfe"):
        path.write_bytes(data)
        assert BinaryStore(folder).find(PTX, TEXT) is None
    path.write_bytes(sound)
    assert_sound(folder)


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "something").write_text("of somebody")


def _dangling(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere" / "at all")


def _circle(path: Path) -> None:
    path.symlink_to(path)


FOREIGN: dict[str, Callable[[Path], object]] = {
    "a folder": _folder,
    "an empty folder": lambda path: path.mkdir(),
    "a file": lambda path: path.write_text("of somebody"),
    "a dangling link": _dangling,
    "a circle of links": _circle,
    "a pipe": os.mkfifo,
}


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("what", FOREIGN)
@pytest.mark.parametrize("name", ["", "kernel.cubin", "entry.json"])
def test_something_else_in_the_place_of_an_entry_or_its_file(
    folder: Path, caplog: pytest.LogCaptureFixture, name: str, what: str
) -> None:
    look(folder, Compiler())
    path = entry_of(folder)
    removed(path / name)
    FOREIGN[what](path / name)
    assert_mended(folder, caplog, path)


@pytest.mark.parametrize("name", ["kernel.cubin", "entry.json"])
def test_a_file_that_is_missing(folder: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    look(folder, Compiler())
    (entry_of(folder) / name).unlink()
    assert_mended(folder, caplog, entry_of(folder))


@pytest.mark.parametrize("what", FOREIGN)
def test_something_else_in_the_place_of_a_list_of_headers(
    folder: Path, header: Path, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    expected = with_header(header)
    look(folder, Compiler(expected), CXX)
    path = list_of(folder)
    path.unlink()
    FOREIGN[what](path)
    compiler = Compiler(expected)
    assert look(folder, compiler, CXX) == look(folder, compiler, CXX) == expected
    assert compiler.calls == 1
    assert all(str(path) in line for line in warnings(caplog))
    assert_sound(folder, CXX, expected)


def test_a_link_in_the_place_of_a_lock_makes_no_file_elsewhere(folder: Path, tmp_path: Path) -> None:
    look(folder, Compiler(), replace(PTX, source="0" * 64))
    (folder / "v1" / "locks" / PTX.key()).symlink_to(tmp_path / "elsewhere")
    assert look(folder, Compiler()) == BINARY
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("what", FOREIGN)
def test_something_else_in_the_place_of_a_lock(folder: Path, what: str) -> None:
    look(folder, Compiler(), replace(PTX, source="0" * 64))
    path = folder / "v1" / "locks" / PTX.key()
    FOREIGN[what](path)
    compiler = Compiler()
    assert look(folder, compiler) == look(folder, compiler) == BINARY
    assert compiler.calls == 1


@pytest.mark.parametrize("what", ["a file", "a dangling link", "a pipe"])
@pytest.mark.parametrize(
    "name", ["", "v1", *(f"v1/{name}" for name in ["entries", "headers", "locks", "tmp", "quarantine"])]
)
def test_something_else_in_the_place_of_a_folder(
    folder: Path, header: Path, caplog: pytest.LogCaptureFixture, name: str, what: str
) -> None:
    expected = with_header(header)
    (folder / name).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    FOREIGN[what](folder / name)
    store, compiler = BinaryStore(folder), Compiler(expected)
    for _ in range(3):
        assert store.binary(CXX, TEXT, compiler) == expected
    lines = warnings(caplog)
    assert len(lines) == 1
    assert str(folder) in lines[0]
    list(store.entries())
    store.prune(0)
    store.clear()


@pytest.mark.parametrize("what", FOREIGN)
def test_something_else_among_the_entries(folder: Path, what: str) -> None:
    look(folder, Compiler())
    for path in (
        folder / "else",
        folder / "v1" / "else",
        *(folder / "v1" / name / "else" for name in ("entries", "headers", "locks", "tmp", "quarantine")),
        entry_of(folder).parent / "else",
        entry_of(folder) / "else",
    ):
        FOREIGN[what](path)
    compiler = Compiler()
    assert look(folder, compiler) == BINARY
    assert compiler.calls == 0
    store = BinaryStore(folder)
    assert [entry.problem for entry in store.entries() if entry.key == PTX.key()] == [None]
    store.prune()
    assert look(folder, compiler) == BINARY
    assert compiler.calls == 0
    store.clear()
    assert list(store.entries()) == []


def test_a_damaged_entry_is_put_aside_by_the_one_who_compiles(folder: Path) -> None:
    look(folder, Compiler())
    (entry_of(folder) / "entry.json").write_bytes(b"")
    assert BinaryStore(folder).find(PTX, TEXT) is None  # somebody else may be storing it now
    assert list(folder.glob("v1/quarantine/*")) == []
    assert BinaryStore(folder).find(PTX, TEXT, mend=True) is None
    assert len(list(folder.glob("v1/quarantine/*"))) == 1


def test_what_goes_wrong_with_this_process_is_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import resource

    look(folder, Compiler())
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    compiler = Compiler()
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))  # no file can be opened any more
    try:
        assert look(folder, compiler) == BINARY
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert compiler.calls == 1
    assert list(folder.glob("v1/quarantine/*")) == []
    assert look(folder, compiler) == BINARY
    assert compiler.calls == 1
