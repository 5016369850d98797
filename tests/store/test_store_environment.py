"""Where the store is, as the environment says."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from helpers import Patch, refused
from store_testing import BINARY, PTX, TEXT, Compiler, warnings

import ptxrt
from ptxrt import memos
from ptxrt.store import BinaryStore, current


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: Patch, tmp_path: Path) -> None:
    for name in ("DIR", "MAX_BYTES", "SHARED", "DISABLE"):
        monkeypatch.delenv(f"PTXRT_CACHE_{name}", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def store() -> BinaryStore:
    found = current()
    assert found is not None
    return found


def test_the_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    assert store().folder == tmp_path / "home" / ".cache" / "ptxrt"
    assert (store().max_bytes, store().shared) == (512 << 20, None)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert store().folder == tmp_path / "home" / ".cache" / "ptxrt"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # counts as none
    assert store().folder == tmp_path / "home" / ".cache" / "ptxrt"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert store().folder == tmp_path / "xdg" / "ptxrt"
    monkeypatch.setenv("PTXRT_CACHE_DIR", str(tmp_path / "mine"))
    assert store().folder == tmp_path / "mine"
    monkeypatch.setenv("PTXRT_CACHE_DIR", "~/mine")
    assert store().folder == tmp_path / "home" / "mine"
    monkeypatch.setenv("PTXRT_CACHE_DIR", "mine")
    here = store()
    monkeypatch.chdir("/")
    assert (here.folder, store().folder) == (tmp_path / "mine", Path("/mine"))
    assert not (tmp_path / "home").exists()  # looking makes nothing


def test_one_store_a_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    before = store()
    assert store() is before
    monkeypatch.setenv("PTXRT_CACHE_MAX_BYTES", "1000")
    monkeypatch.setenv("PTXRT_CACHE_SHARED", str(tmp_path / "shared"))
    assert store() is not before
    assert (store().max_bytes, store().shared) == (1000, tmp_path / "shared")
    monkeypatch.setenv("PTXRT_CACHE_SHARED", "~/shared")
    assert store().shared == tmp_path / "home" / "shared"


def test_without_home_the_users_own_counts(monkeypatch: Patch) -> None:
    monkeypatch.delenv("HOME")
    assert store().folder == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache" / "ptxrt"


def test_a_user_without_any_home_works_from_memory(
    monkeypatch: Patch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HOME")

    def unknown(_: int) -> None:
        raise KeyError("no such user")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr("ptxrt.store.store._STORES", {})
    compiler = Compiler()
    for _ in range(2):
        assert store().binary(PTX, TEXT, compiler) == BINARY
    assert compiler.calls == 2
    monkeypatch.setattr(memos, "_folder", None)
    (line,) = warnings(caplog)
    assert "PTXRT_CACHE_DIR" in line
    memos.use(store().memos)
    memos.write("something", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("given", ["-1", "1e9", "1 000", "512 MiB", "٣", "0x10", "9" * 19, " 5", "five"])
def test_a_bound_that_is_no_number_of_bytes_is_refused(monkeypatch: Patch, given: str) -> None:
    monkeypatch.setenv("PTXRT_CACHE_MAX_BYTES", given)
    with refused(ptxrt.InvalidArgument, "load", "PTXRT_CACHE_MAX_BYTES", "number of bytes"):
        current()


@pytest.mark.parametrize(("given", "bound"), [("", 512 << 20), ("0", 0), ("9" * 18, 10**18 - 1)])
def test_bounds(monkeypatch: Patch, given: str, bound: int) -> None:
    monkeypatch.setenv("PTXRT_CACHE_MAX_BYTES", given)
    assert store().max_bytes == bound


def test_a_bound_of_0_stores_nothing(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.setenv("PTXRT_CACHE_MAX_BYTES", "0")
    compiler = Compiler()
    for _ in range(2):
        assert store().binary(PTX, TEXT, compiler) == BINARY
    assert compiler.calls == 2
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("given", ["yes", "2", "true", " 1"])
def test_a_switch_that_is_neither_0_nor_1_is_refused(monkeypatch: Patch, given: str) -> None:
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", given)
    with refused(ptxrt.InvalidArgument, "load", "PTXRT_CACHE_DISABLE", "0 or 1"):
        current()


@pytest.mark.parametrize(("given", "is_none"), [("1", True), ("0", False), ("", False)])
def test_the_switch(monkeypatch: Patch, given: str, is_none: bool) -> None:
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", given)
    assert (current() is None) == is_none
