"""Whose the folder is, who may read it, and the second one that is never written."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import Patch
from store_testing import (
    BINARY,
    CXX,
    PTX,
    TEXT,
    Compiler,
    assert_sound,
    in_child,
    look,
    status_of,
    warnings,
    with_header,
)

from ptxrt.compilers import Binary
from ptxrt.store import BinaryStore


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_pain20_nobody_else_may_look_into_it_whatever_the_umask(folder: Path, header: Path, umask: int) -> None:
    before = os.umask(umask)
    modes: set[tuple[str, int]] = set()

    def seen() -> None:
        for path in (folder, *folder.rglob("*")):
            modes.add(("folder" if path.is_dir() else "file", stat.S_IMODE(path.stat().st_mode)))

    class Looking(Compiler):
        def __call__(self) -> Binary:
            seen()
            return super().__call__()

    try:
        look(folder, Looking(with_header(header)), CXX)
        look(folder, Looking(), PTX)
        (damaged, _) = folder.glob("v1/entries/*/*/kernel.cubin")
        damaged.write_bytes(b"")
        look(folder, Looking(with_header(header)), CXX)
        look(folder, Looking(), PTX)
        seen()
    finally:
        os.umask(before)
    assert modes == {("folder", 0o700), ("file", 0o600)}


@pytest.mark.parametrize("below", ["", "v1"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720, 0o702, 0o1777])
def test_pain20_a_folder_that_others_may_write_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture, mode: int, below: str
) -> None:
    look(folder, Compiler(replace(BINARY, code=b"planted")))
    (folder / below).chmod(mode)
    before = sorted(folder.rglob("*"))
    store, compiler = BinaryStore(folder), Compiler()
    for _ in range(3):
        assert store.binary(PTX, TEXT, compiler) == BINARY
    assert compiler.calls == 3
    (line,) = warnings(caplog)
    assert str(folder / below) in line
    assert "chmod 700" in line
    assert "PTXRT_CACHE_DIR" in line
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("below", ["", "v1"])
def test_pain20_a_folder_of_another_owner_is_not_used(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Patch, below: str
) -> None:
    look(folder, Compiler(replace(BINARY, code=b"planted")))
    status = Path.stat

    def of_another(path: Path, **how: bool) -> os.stat_result:
        found = status(path, **how)
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:])) if path == folder / below else found

    monkeypatch.setattr(Path, "stat", of_another)
    store, compiler = BinaryStore(folder), Compiler()
    for _ in range(3):
        assert store.binary(PTX, TEXT, compiler) == BINARY
    assert compiler.calls == 3
    (line,) = warnings(caplog)
    assert "belongs to another user" in line


def as_nobody(work: Callable[[], None], *paths: Path) -> None:
    """Do it in a forked child that is not root, whom permissions do not stop; the paths become that user's."""

    def done() -> None:
        if os.geteuid() == 0:
            for path in paths:
                os.chown(path, 65534, 65534)
            os.setgid(65534)
            os.setuid(65534)
        work()

    assert status_of(in_child(done)) == 0


def open_to_all(path: Path) -> None:
    """Let another user through to it: pytest's folders are their owner's alone."""
    for each in path.parents:
        if each.stat().st_uid == os.geteuid() and len(each.parts) > 2:
            each.chmod(0o755)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that another user can come to."""
    found = tmp_path / "place"
    found.mkdir()
    open_to_all(found)
    return found


@pytest.mark.parametrize("mode", [0o500, 0o000])
def test_pain19_a_home_that_cannot_be_written_or_read_costs_one_warning(
    place: Path, caplog: pytest.LogCaptureFixture, mode: int
) -> None:
    def work() -> None:
        place.chmod(mode)
        store, compiler = BinaryStore(place / ".cache" / "ptxrt"), Compiler()
        for _ in range(3):
            assert store.binary(PTX, TEXT, compiler) == BINARY
        assert compiler.calls == 3
        (line,) = warnings(caplog)
        assert str(place) in line
        assert list(store.entries()) == []
        assert store.prune(0) == store.clear() == 0

    as_nobody(work, place)


def test_what_may_not_be_read_is_put_aside_and_compiled_once_more(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def work() -> None:
        for name in ("kernel.cubin", "entry.json"):
            folder = place / f"of {name}"
            look(folder, Compiler())
            (entry,) = folder.glob("v1/entries/*/*")
            (entry / name).chmod(0)
            compiler = Compiler()
            assert look(folder, compiler) == look(folder, compiler) == BINARY
            assert compiler.calls == 1
            (line,) = warnings(caplog)
            assert str(entry) in line
            assert_sound(folder)

    as_nobody(work, place)


def test_folders_that_cannot_be_removed_or_entered_stop_nothing(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    def work() -> None:
        folder = place / "store"
        look(folder, Compiler())
        (entry,) = folder.glob("v1/entries/*/*")
        for path in (entry / "sub", folder / "v1" / "tmp" / "sub"):
            path.mkdir()
            (path / "file").write_text("x")
            path.chmod(0)
        os.utime(folder / "v1" / "tmp" / "sub", (1, 1))
        look(folder, Compiler(), replace(PTX, source="other"))
        entry.parent.chmod(0o500)
        store = BinaryStore(folder)
        for _ in range(3):
            store.prune(0)
        entry.parent.chmod(0)
        list(store.entries())
        store.prune(0)
        assert store.binary(PTX, TEXT, Compiler()) == BINARY
        entry.parent.chmod(0o700)
        store.prune(0)
        assert list(store.entries()) == []
        assert store.binary(PTX, TEXT, Compiler()) == BINARY
        assert_sound(folder)

    as_nobody(work, place)


def listing(folder: Path) -> list[tuple[str, int, int, int]]:
    def of(path: Path) -> tuple[str, int, int, int]:
        status = path.lstat()
        return str(path), status.st_mtime_ns, status.st_ctime_ns, status.st_size

    return sorted(of(path) for path in (folder, *folder.rglob("*")))


@pytest.fixture
def shared(tmp_path: Path, header: Path) -> Path:
    """A store that an image ships."""
    made = tmp_path / "shipped"
    look(made, Compiler())
    look(made, Compiler(with_header(header)), CXX)
    for path in made.rglob("entry.json"):
        os.utime(path, (1, 1))  # a use would be noted
    return made


def test_a_shared_store_is_read_and_never_written(
    folder: Path, shared: Path, header: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = listing(shared)
    compiler = Compiler()
    assert look(folder, compiler, PTX, shared=shared) == BINARY
    assert look(folder, compiler, CXX, shared=shared) == with_header(header)
    assert compiler.calls == 0
    other = replace(PTX, source="other")
    for _ in range(2):
        assert look(folder, compiler, other, shared=shared) == BINARY
    assert compiler.calls == 1
    store = BinaryStore(folder, shared=shared)
    store.prune(0)
    store.clear()
    assert listing(shared) == before
    assert warnings(caplog) == []


def test_damage_in_a_shared_store_costs_one_warning_and_a_compile_of_ones_own(
    folder: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in shared.glob("v1/entries/*/*/kernel.cubin"):
        path.write_bytes(b"damaged")
    before = listing(shared)
    compiler = Compiler()
    for _ in range(2):
        store = BinaryStore(folder, shared=shared)
        assert store.binary(PTX, TEXT, compiler) == store.binary(PTX, TEXT, compiler) == BINARY
    assert compiler.calls == 1
    (line,) = warnings(caplog)
    assert str(shared) in line
    assert listing(shared) == before


@pytest.mark.parametrize("what", ["nothing", "a file", "an empty folder"])
def test_a_shared_store_that_is_none(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, what: str) -> None:
    path = tmp_path / "none"
    if what != "nothing":
        path.mkdir() if what == "an empty folder" else path.write_text("")
    compiler = Compiler()
    for _ in range(2):
        assert look(folder, compiler, shared=path) == BINARY
    assert compiler.calls == 1
    assert warnings(caplog) == []


def test_a_shared_store_serves_where_ones_own_cannot_be(
    tmp_path: Path, shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    compiler = Compiler()
    assert look(tmp_path / "file" / "store", compiler, shared=shared) == BINARY
    assert compiler.calls == 0
