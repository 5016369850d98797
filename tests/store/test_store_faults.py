"""Errors of the operating system at any call: never a wrong binary or an exception, and a sound store afterwards."""

from __future__ import annotations

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import Patch
from store_testing import (
    ALL,
    BINARY,
    CALLS,
    CXX,
    PTX,
    TEXT,
    Compiler,
    Faults,
    aged,
    assert_sound,
    faults_in,
    look,
    warnings,
    with_header,
)

from ptxrt.compilers import Binary
from ptxrt.store import BinaryStore, _files
from ptxrt.store import store as _store

NAMES = (*CALLS, "flock", "read", "write")
ERRORS = ("EIO", "ENOSPC", "EROFS", "EACCES", "EBUSY", "ESTALE", "EMFILE", "ENOLCK", "EDQUOT", "ENOENT", "ENOTDIR")
OTHER = replace(BINARY, code=b"other")


def life(folder: Path, expected: Binary, faults: Faults) -> None:
    """All that a store is asked for, by processes that start one after the other."""
    compiler = Compiler(expected)
    for _ in range(2):
        assert look(folder, compiler, CXX) == expected
    with faults.resting():
        for path in (*folder.glob("v1/entries/*/*/entry.json"), *folder.glob("v1/headers/*")):
            aged(path, 100)
    assert look(folder, compiler, CXX) == expected
    with faults.resting():
        for path in folder.glob("v1/entries/*/*/entry.json"):
            os.truncate(path, 10)
    store = BinaryStore(folder)
    for _ in range(2):
        assert store.binary(CXX, TEXT, compiler) == expected
    assert store.binary(PTX, TEXT, Compiler(OTHER)) == OTHER
    list(store.entries())
    store.prune(1500)
    assert store.binary(PTX, TEXT, Compiler(OTHER)) == OTHER
    store.clear()


def test_an_error_at_each_call(tmp_path: Path, header: Path, monkeypatch: Patch) -> None:
    expected = with_header(header)
    monkeypatch.setattr(_store, "_PATIENCE", 0.02)  # a file that is never where it was just opened
    with faults_in(tmp_path, monkeypatch) as faults:
        life(tmp_path / "sound", expected, faults)
        counts = {name: faults.calls.count(name) for name in NAMES}
        assert all(counts.values()), counts
        for at, name in enumerate(NAMES):
            for number in range(1, counts[name] + 1, 1 if ALL else 3):
                chosen = ERRORS if ALL else [ERRORS[(at + number) % len(ERRORS)]]
                for error in chosen:
                    for times in (1, 10**6) if ALL or number % 4 == 1 else (1,):
                        what = f"{error} from {name}, call {number}, {times} times"
                        folder = tmp_path / "store"
                        faults.plan(name, number, getattr(errno, error), times)
                        try:
                            life(folder, expected, faults)
                        except BaseException as raised:
                            raise AssertionError(what) from raised
                        assert number <= faults.calls.count(name), what
                        faults.plan("", 0, 0)
                        for request, right in ((PTX, OTHER), (CXX, expected)):
                            compiler = Compiler(right)
                            assert look(folder, compiler, request) == look(folder, compiler, request) == right, what
                            assert compiler.calls <= 1, what
                        assert [entry.problem for entry in BinaryStore(folder).entries()] == [None, None], what
                        shutil.rmtree(folder)


@pytest.mark.parametrize("error", ["ENOSPC", "EROFS", "EIO", "EDQUOT", "EACCES"])
@pytest.mark.parametrize("name", ["write", "fsync", "rename", "mkdir", "open"])
def test_a_full_or_read_only_disk_costs_one_warning(
    folder: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, name: str, error: str
) -> None:
    with faults_in(folder, monkeypatch) as faults:
        store = BinaryStore(folder)
        store.binary(replace(PTX, source="0" * 64), TEXT, Compiler())
        faults.plan(name, 1, getattr(errno, error), 10**6)
        compiler = Compiler()
        for _ in range(3):
            assert store.binary(PTX, TEXT, compiler) == BINARY
        (line,) = warnings(caplog)
        assert str(folder) in line
        assert compiler.calls == 3
        faults.plan("", 0, 0)
        assert store.binary(PTX, TEXT, compiler) == store.binary(PTX, TEXT, compiler) == BINARY
        assert compiler.calls == 4
    assert list(folder.glob("v1/quarantine/*")) == []
    if name != "open":  # without it nothing can be removed either, until prune does
        assert list(folder.glob("v1/tmp/*")) == []


def test_pain19_a_disk_that_is_read_only_from_the_start_costs_one_warning(
    folder: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    with faults_in(folder, monkeypatch) as faults:
        faults.plan("mkdir", 1, errno.EROFS, 10**6)
        store, compiler = BinaryStore(folder), Compiler()
        for _ in range(3):
            assert store.binary(PTX, TEXT, compiler) == BINARY
        assert compiler.calls == 3
        (line,) = warnings(caplog)
        assert str(folder) in line
        assert "stays in memory" in line


def test_a_store_on_a_read_only_disk_serves_what_it_has(
    folder: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    look(folder, Compiler())
    (folder / "v1" / "quarantine").rmdir()  # as an older ptxrt left it
    with faults_in(folder, monkeypatch) as faults:

        def read_only(name: str) -> None:
            Faults.meet(faults, name)
            if name in ("mkdir", "rename", "replace", "unlink", "utime"):
                raise OSError(errno.EROFS, "read-only")

        monkeypatch.setattr(faults, "meet", read_only)
        compiler = Compiler()
        assert look(folder, compiler) == BINARY
        assert compiler.calls == 0
        assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("error", ["EBUSY", "ESTALE", "ETXTBSY"])
@pytest.mark.parametrize("name", ["open", "read", "write", "fsync", "rename", "replace"])
def test_pain2_a_file_system_that_is_busy_for_a_while_is_asked_again(
    folder: Path, header: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, name: str, error: str
) -> None:
    expected = with_header(header)
    with faults_in(folder, monkeypatch) as faults:
        for number in (1, 2, 3, 4):
            compiler = Compiler(expected)
            faults.plan(name, number, getattr(errno, error), 3)
            assert look(folder, compiler, CXX) == look(folder, compiler, CXX) == expected
            assert compiler.calls == 1, number
            faults.plan("", 0, 0)
            BinaryStore(folder).clear()
    assert warnings(caplog) == []


@pytest.mark.parametrize("error", ["EBUSY", "ESTALE", "EMFILE", "ENOMEM"])
@pytest.mark.parametrize("name", ["open", "read"])
def test_pain2_a_read_that_fails_for_long_is_a_miss_and_no_damage(
    folder: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, name: str, error: str
) -> None:
    look(folder, Compiler())
    with faults_in(folder, monkeypatch) as faults:
        compiler = Compiler()
        faults.plan(name, 1, getattr(errno, error), 10**6)
        assert look(folder, compiler) == BINARY
        assert compiler.calls == 1
        faults.plan("", 0, 0)
        assert look(folder, compiler) == BINARY
        assert compiler.calls == 1
    assert list(folder.glob("v1/quarantine/*")) == []


@pytest.mark.parametrize("error", ["EIO", "EACCES", "EPERM", "EISDIR"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_file_that_cannot_be_read_is_put_aside(
    folder: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture, call: int, error: str
) -> None:
    look(folder, Compiler())
    (entry,) = folder.glob("v1/entries/*/*")
    with monkeypatch.context() as patch:
        read = _files.read
        name = ("entry.json", "kernel.cubin")[call - 1]
        bad = (entry / name).stat().st_ino

        def failing(path: str) -> bytes:
            if Path(path).name == name and os.stat(path).st_ino == bad:
                raise OSError(getattr(errno, error), "unreadable", str(path))
            return read(path)

        patch.setattr(_files, "read", failing)
        compiler = Compiler()
        assert look(folder, compiler) == look(folder, compiler) == BINARY
        assert compiler.calls == 1
        (line,) = warnings(caplog)
        assert str(entry) in line
        assert len(list(folder.glob("v1/quarantine/*"))) == 1
    assert_sound(folder)


def test_what_is_written_is_on_the_disk_before_it_has_its_name(folder: Path, header: Path, monkeypatch: Patch) -> None:
    with faults_in(folder, monkeypatch) as faults:
        look(folder, Compiler(with_header(header)), CXX)
        order = [name for name in faults.calls if name in ("write", "fsync", "rename", "replace")]
    assert order == ["write", "fsync", "replace", "write", "fsync", "write", "fsync", "rename"]


def test_a_folder_that_is_removed_under_a_process_is_made_again(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, compiler = BinaryStore(folder), Compiler()
    store.binary(PTX, TEXT, compiler)
    shutil.rmtree(folder)
    for _ in range(3):
        assert store.binary(PTX, TEXT, compiler) == BINARY
    assert compiler.calls <= 3
    assert_sound(folder)
    assert len(warnings(caplog)) == 1


def test_a_compile_that_fails_is_not_stored(folder: Path) -> None:
    def failing() -> Binary:
        raise ValueError("the text is at fault")

    for _ in range(2):
        with pytest.raises(ValueError, match="at fault"):
            look(folder, failing)
    assert [path for path in folder.rglob("*") if path.is_file()] == []
    assert_sound(folder)
