"""One compile for all who ask at once: threads, forked children, signal handlers, and where there are no locks."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import io
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, Patch
from store_testing import (
    ALL,
    BINARY,
    CXX,
    PTX,
    TEXT,
    Compiler,
    aged,
    assert_sound,
    in_child,
    look,
    status_of,
    with_header,
)

from ptxrt import store as package
from ptxrt.compilers import Binary
from ptxrt.store import BinaryStore, _locks
from ptxrt.store import store as module

FOLDER = str(Path(package.__file__).parent)


def lock_of(folder: Path) -> Path:
    return folder / "v1" / "locks" / PTX.key()


def is_free(path: Path) -> bool:
    """Whether another thread, which stands for another process, gets the lock at once."""
    found: list[bool | None] = []

    def ask() -> None:
        with _locks.locked(path, 0.2) as alone:
            found.append(alone)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(10)
    return found == [True]


def test_threads_that_ask_at_once_compile_once(folder: Path) -> None:
    compiler, barrier = Compiler(), threading.Barrier(8)
    results: list[Binary] = []

    def slow() -> Binary:
        time.sleep(0.05)
        return compiler()

    def ask() -> None:
        barrier.wait(10)
        results.append(look(folder, slow))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [BINARY] * 8
    assert compiler.calls == 1
    assert [path for path in folder.glob("v1/locks/*") if path.name != "prune"] == []


def test_other_keys_are_not_held_up(folder: Path) -> None:
    def slow() -> Binary:
        began = time.monotonic()
        other = replace(PTX, source="0" * 64)
        thread = threading.Thread(target=look, args=(folder, Compiler(), other))
        thread.start()
        thread.join(10)
        assert time.monotonic() - began < 5
        assert BinaryStore(folder).find(other, TEXT) == BINARY
        return BINARY

    assert look(folder, slow) == BINARY


def test_a_signal_handler_that_asks_for_the_same_does_not_wait_for_its_own_thread(
    folder: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 6.0)  # else it would be minutes
    inner = Compiler()
    began = time.monotonic()

    def interrupted() -> Binary:
        signal.raise_signal(signal.SIGUSR1)
        assert not is_free(lock_of(folder))  # the handler's end is not this one's
        return BINARY

    before = signal.signal(signal.SIGUSR1, lambda *_: look(folder, inner))
    try:
        assert look(folder, interrupted) == BINARY
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert inner.calls == 1
    assert time.monotonic() - began < 5
    assert_sound(folder)


def test_a_lock_that_the_parent_releases_is_free_though_a_child_lives(folder: Path) -> None:
    reading, writing = os.pipe()
    children = []

    def compile() -> Binary:
        children.append(in_child(lambda: os.read(reading, 1)))
        os.close(reading)
        raise ValueError("killed, say, before it could remove its lock")

    with Patch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_, **__: None)  # it does not: only closing releases
        with pytest.raises(ValueError, match="killed"):
            look(folder, compile)
    free = lock_of(folder).exists() and is_free(lock_of(folder))
    os.write(writing, b"x")
    os.close(writing)
    assert status_of(children[0]) == 0
    assert free


def test_a_child_neither_releases_nor_removes_its_parents_lock(folder: Path) -> None:
    def compile() -> Binary:
        # The child leaves the locked block as its parent does, while the parent is in it.
        child = os.fork()
        if child == 0:
            raise SystemExit(0)
        assert status_of(child) == 0
        assert not is_free(lock_of(folder))
        return BINARY

    try:
        assert look(folder, compile) == BINARY
    except SystemExit:
        os._exit(0)
    assert_sound(folder)


def test_a_forked_child_asks_for_what_its_parent_compiles(folder: Path) -> None:
    children = []
    compiler = Compiler()

    def same() -> None:
        child = Compiler()
        assert look(folder, child) == BINARY
        assert child.calls == 0  # it has waited for its parent

    def compile() -> Binary:
        children.append(in_child(same))
        time.sleep(0.1)
        return compiler()

    assert look(folder, compile) == BINARY
    assert status_of(children[0]) == 0
    assert compiler.calls == 1


@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP", "EINVAL", "ENOSYS"])
def test_without_locks_compiles_are_duplicate_and_right(folder: Path, monkeypatch: Patch, error: str) -> None:
    def none(*_: Any) -> None:
        raise OSError(getattr(errno, error), "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    barrier, compiler = threading.Barrier(6), Compiler()
    results: list[Binary] = []

    def slow() -> Binary:
        barrier.wait(10)  # all are here at once
        return compiler()

    threads = [threading.Thread(target=lambda: results.append(look(folder, slow))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [BINARY] * 6
    assert compiler.calls == 6
    assert list(folder.glob("v1/tmp/*")) == []
    assert_sound(folder)
    for path in folder.glob("v1/locks/*"):
        aged(path, 4000)
    BinaryStore(folder).prune()
    assert [path for path in folder.glob("v1/locks/*") if path.name != "prune"] == []


def test_who_has_waited_too_long_compiles(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    inner = Compiler()

    def hangs() -> Binary:
        thread = threading.Thread(target=look, args=(folder, inner))
        thread.start()
        thread.join(10)
        return BINARY

    assert look(folder, hangs) == BINARY
    assert inner.calls == 1
    assert_sound(folder)


def test_a_lock_whose_file_was_replaced_is_none(folder: Path, monkeypatch: Patch) -> None:
    # Between the open and the lock its holder removes the file, and another process makes and locks a new one.
    look(folder, Compiler(), CXX)
    path, flock = lock_of(folder), fcntl.flock
    others: list[io.FileIO] = []

    def replaced(file: Any, how: int) -> None:
        if not others:
            path.unlink()
            others.append(io.FileIO(path, "ab"))
            flock(others[0], how)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", replaced)
    with _locks.locked(path, 0.05) as alone:
        assert alone is False
    assert path.exists()
    others[0].close()
    with _locks.locked(path, 0.05) as alone:
        assert alone is True
    assert not path.exists()


def test_a_lock_that_a_dead_process_left_is_no_hindrance_and_prune_removes_it(folder: Path) -> None:
    look(folder, Compiler(), CXX)
    lock_of(folder).write_bytes(b"")
    began = time.monotonic()
    assert look(folder, Compiler()) == BINARY
    assert time.monotonic() - began < 1
    assert not lock_of(folder).exists()
    for path, age in ((lock_of(folder), 4000), (folder / "v1" / "locks" / "young", 1000)):
        path.write_bytes(b"")
        aged(path, age)
    BinaryStore(folder).prune()
    assert [path.name for path in folder.glob("v1/locks/*")] == ["young"]


def test_prune_leaves_a_lock_that_is_held(folder: Path) -> None:
    def compile() -> Binary:
        aged(lock_of(folder), 4000)
        thread = threading.Thread(target=BinaryStore(folder).prune)
        thread.start()
        thread.join(10)
        assert lock_of(folder).exists()
        assert not is_free(lock_of(folder))
        return BINARY

    look(folder, compile)


@pytest.fixture
def interrupted(monkeypatch: Patch) -> Callable[[Callable[[], object], int], bool]:
    """Run some work with a KeyboardInterrupt at the point of that number in ptxrt/store, as tests/runtime explains."""
    where = importlib.util.spec_from_file_location("interrupts", ROOT / "tests" / "runtime" / "test_interrupts.py")
    assert where is not None
    assert where.loader is not None
    interrupts = importlib.util.module_from_spec(where)
    where.loader.exec_module(interrupts)
    monkeypatch.setattr(interrupts, "FOLDER", FOLDER)
    found: Callable[[Callable[[], object], int], bool] = interrupts.interrupted
    return found


def test_ctrl_c_at_any_point_leaves_no_lock_and_no_damage(folder: Path, header: Path, interrupted: Any) -> None:
    expected = with_header(header)
    raised: list[BaseException] = []

    def work() -> None:
        try:
            look(folder, Compiler(expected), CXX)
        except KeyboardInterrupt as error:
            raised.append(error)  # as an interactive session holds it, with all frames
            raise

    for number in range(0, 10**6, 1 if ALL else 3):
        look(folder, Compiler(), PTX)
        if not interrupted(work, number) and number:
            break
        assert is_free(folder / "v1" / "locks" / CXX.key()), number
        assert _locks._mine.__dict__.get("held", set()) == set(), number
        compiler = Compiler(expected)
        assert look(folder, compiler, CXX) == look(folder, compiler, CXX) == expected
        assert compiler.calls <= 1
        assert [entry.problem for entry in BinaryStore(folder).entries()] == [None, None]
        raised.clear()
        shutil.rmtree(folder)
    assert number > 100


def test_ctrl_c_in_a_prune_or_a_clear_leaves_no_lock_and_no_damage(folder: Path, interrupted: Any) -> None:
    for work in (lambda: BinaryStore(folder).prune(0), lambda: BinaryStore(folder).clear()):
        for number in range(0, 10**6, 1 if ALL else 3):
            for name in "ab":
                look(folder, Compiler(), replace(PTX, source=name))
            if not interrupted(work, number) and number:
                break
            assert is_free(folder / "v1" / "locks" / "prune")
            assert {entry.problem for entry in BinaryStore(folder).entries()} <= {None}
            assert {path.parent.name for path in folder.glob("v1/*/*") if path.is_file()} <= {"locks"}
            shutil.rmtree(folder)
        assert number > 50
