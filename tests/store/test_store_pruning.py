"""A store within its bound: the least recently used first, never more than has to go, and nothing stops it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import Patch
from store_testing import BINARY, CXX, PTX, TEXT, Compiler, aged, look, with_header

from ptxrt.compilers import Binary
from ptxrt.store import BinaryStore, Request, _files
from ptxrt.store import store as module

KEYS = "abcdef"


def request(name: str) -> Request:
    return replace(PTX, source=name)


def path_of(folder: Path, name: str) -> Path:
    key = request(name).key()
    return folder / "v1" / "entries" / key[:2] / key


@pytest.fixture
def filled(folder: Path) -> Path:
    """A store of six entries of about 10 kB; "a" was used last an hour ago, "b" 50 minutes ago, and so on."""
    for at, name in enumerate(KEYS):
        look(folder, Compiler(replace(BINARY, code=bytes(10_000))), request(name))
        aged(path_of(folder, name) / "entry.json", 3600 - 600 * at)
    return folder


def there(folder: Path) -> str:
    return "".join(name for name in KEYS if path_of(folder, name).exists())


def size_of(folder: Path, name: str) -> int:
    return _files.sizes(path_of(folder, name))


@pytest.mark.parametrize("count", range(7))
def test_the_least_recently_used_go_first_and_no_more_than_must(filled: Path, count: int) -> None:
    goes, stays = KEYS[:count], KEYS[count:]
    bytes_that_stay = sum(size_of(filled, name) for name in stays)
    # One byte more than these need, up to one byte less than one more needs.
    gone = sum(size_of(filled, name) for name in goes)
    assert BinaryStore(filled).prune(bytes_that_stay + (100 if goes else 0)) == gone
    assert there(filled) == stays


def test_what_was_not_used_for_long_goes_in_any_case(filled: Path) -> None:
    BinaryStore(filled).prune(idle_seconds=1700)
    assert there(filled) == "ef"


def test_a_use_counts(filled: Path) -> None:
    for name in "ac":
        assert BinaryStore(filled).find(request(name), TEXT)
    BinaryStore(filled).prune(3 * size_of(filled, "a") + 500)
    assert there(filled) == "acf"


def test_a_use_within_a_minute_changes_nothing_on_the_disk(filled: Path) -> None:
    file = path_of(filled, "f") / "entry.json"
    os.utime(file)
    aged(file, 30)
    before = file.stat().st_mtime_ns
    assert BinaryStore(filled).find(request("f"), TEXT)
    assert file.stat().st_mtime_ns == before


def test_a_use_moves_a_time_to_come_back_to_now(filled: Path) -> None:
    file = path_of(filled, "f") / "entry.json"
    aged(file, -3600)
    assert BinaryStore(filled).find(request("f"), TEXT)
    assert file.stat().st_mtime < time.time() + 60


def test_a_store_prunes_itself_when_it_has_grown_past_its_bound(filled: Path) -> None:
    bound = 4 * size_of(filled, "a")
    store = BinaryStore(filled, max_bytes=bound)
    store.binary(request("new"), TEXT, Compiler(replace(BINARY, code=bytes(9_000))))
    assert there(filled) == "def"
    store.binary(request("newer"), TEXT, Compiler(replace(BINARY, code=bytes(9_000))))
    assert there(filled) == "ef"
    assert sum(entry.size for entry in store.entries()) <= bound


def test_it_counts_what_it_writes(folder: Path) -> None:
    store = BinaryStore(folder, max_bytes=25_000)
    long = replace(BINARY, log="x" * 5_000)
    for name in "abcdefghijkl":
        store.binary(request(name), TEXT, Compiler(long))
        assert sum(entry.size for entry in store.entries()) <= 25_000


def test_what_is_larger_than_the_bound_pushes_nothing_out(filled: Path) -> None:
    store = BinaryStore(filled, max_bytes=80_000)
    compiler = Compiler(replace(BINARY, code=bytes(80_000)))
    assert store.binary(request("large"), TEXT, compiler) == compiler.binary
    assert there(filled) == KEYS


def test_what_was_put_aside_goes_first(filled: Path) -> None:
    bound = 4 * size_of(filled, "a") + 500
    (path_of(filled, "f") / "kernel.cubin").write_bytes(b"")
    assert BinaryStore(filled).find(request("f"), TEXT, mend=True) is None
    (path_of(filled, "e") / "entry.json").unlink()  # of no use to anybody
    BinaryStore(filled).prune(bound)
    assert list(filled.glob("v1/quarantine/*")) == []
    assert there(filled) == "abcd"


def test_lists_of_headers_count_and_go_with_their_entries(folder: Path, header: Path) -> None:
    expected = with_header(header)
    requests = [replace(CXX, source=name) for name in KEYS]
    for each in requests:
        look(folder, Compiler(expected), each)
    for each in requests[1:]:
        for path in (*folder.glob("v1/entries/*/*/entry.json"), folder / "v1" / "headers" / each.key()):
            aged(path, 1000)
    for path in (folder / "v1" / "headers").iterdir():
        aged(path, 1000)
    compiler = Compiler(expected)
    assert look(folder, compiler, requests[0]) == expected
    (used,) = [entry for entry in BinaryStore(folder).entries() if entry.record and entry.record.request == requests[0]]
    store = BinaryStore(folder)
    store.prune(used.size + (folder / "v1" / "headers" / requests[0].key()).stat().st_size)
    assert look(folder, compiler, requests[0]) == expected
    assert compiler.calls == 0
    assert [path.name for path in folder.glob("v1/headers/*")] == [requests[0].key()]
    store.prune(0)
    assert [path for path in folder.glob("v1/[ehqt]*/*/*") if path.exists()] == []
    assert list(folder.glob("v1/headers/*")) == []


def test_entries_that_vanish_meanwhile_cost_no_others(filled: Path, monkeypatch: Patch) -> None:
    # Another process removes the three oldest after this one has counted.
    remove = BinaryStore._remove
    other: list[bool] = []

    def slow(store: BinaryStore, path: Path) -> int:
        if not other:
            other.append(True)
            for name in "abc":
                remove(store, path_of(filled, name))
        return remove(store, path)

    monkeypatch.setattr(BinaryStore, "_remove", slow)
    bound = sum(size_of(filled, name) for name in "def")
    assert BinaryStore(filled).prune(bound) == 0
    assert there(filled) == "def"


def test_what_cannot_be_removed_stops_nothing(filled: Path, monkeypatch: Patch) -> None:
    rename = Path.rename

    def renamed(path: Path, target: Path) -> Path:
        if path.name == request("b").key():
            raise PermissionError(13, "of another user")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    gone = size_of(filled, "a") + size_of(filled, "c")
    assert BinaryStore(filled).prune(sum(size_of(filled, name) for name in "def")) == gone
    assert there(filled) == "bdef"


def test_two_that_prune_at_once_remove_no_more_than_one(filled: Path, monkeypatch: Patch) -> None:
    bound = sum(size_of(filled, name) for name in "def")
    barrier, remove = threading.Barrier(2, timeout=0.5), BinaryStore._remove

    def slow(store: BinaryStore, path: Path) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            barrier.wait()
        return remove(store, path)

    monkeypatch.setattr(BinaryStore, "_remove", slow)
    threads = [threading.Thread(target=BinaryStore(filled).prune, args=(bound,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert there(filled) == "def"


def test_one_prunes_and_the_other_has_nothing_to_do(filled: Path, monkeypatch: Patch) -> None:
    freed = []
    real = BinaryStore._prune

    def during(store: BinaryStore, *bounds: float) -> int:
        monkeypatch.setattr(BinaryStore, "_prune", real)
        thread = threading.Thread(target=lambda: freed.append(BinaryStore(filled).prune(0)))
        thread.start()
        thread.join(10)
        return real(store, *bounds)  # type: ignore[arg-type]

    monkeypatch.setattr(BinaryStore, "_prune", during)
    BinaryStore(filled).prune(10**9)
    assert freed == [0]
    assert there(filled) == KEYS


def test_what_nobody_will_finish_goes_after_an_hour(folder: Path) -> None:
    look(folder, Compiler())
    for name, age in (("old", module._ORPHANED + 60), ("young", module._ORPHANED - 60)):
        part = folder / "v1" / "tmp" / name
        part.mkdir()
        (part / "kernel.cubin").write_bytes(bytes(500))
        aged(part, age)
    (folder / "v1" / "tmp" / "link").symlink_to("nowhere")
    os.utime(folder / "v1" / "tmp" / "link", (1, 1), follow_symlinks=False)
    assert BinaryStore(folder).prune() >= 500
    assert [path.name for path in (folder / "v1" / "tmp").iterdir()] == ["young"]
    assert BinaryStore(folder).find(PTX, TEXT) == BINARY


def test_clear_removes_all_and_leaves_who_is_writing(filled: Path) -> None:
    (filled / "v1" / "tmp" / "young").mkdir()
    store = BinaryStore(filled)
    assert store.clear() > 60_000
    assert list(store.entries()) == []
    assert [path.name for path in (filled / "v1" / "tmp").iterdir()] == ["young"]


def test_a_compile_that_is_under_way_when_all_is_cleared_stores_its_outcome(folder: Path) -> None:
    def compile() -> Binary:
        BinaryStore(folder).clear()
        BinaryStore(folder).prune(0)
        return BINARY

    look(folder, compile)
    assert BinaryStore(folder).find(PTX, TEXT) == BINARY


def test_a_store_that_is_not_there_has_nothing_to_prune(folder: Path) -> None:
    store = BinaryStore(folder)
    assert (store.prune(0), store.clear(), list(store.entries())) == (0, 0, [])
    assert not folder.exists()
