"""Memos: what one process writes the next one reads, and whatever is wrong with a memo, it is as if there were none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers import Patch

from ptxrt import memos

VALUE = {"version": "13.5.37", "files": ["/a", "\udc80"], "n": [1, None]}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of the memos, which nobody has made yet."""
    memos.use(tmp_path / "cache" / "memos")
    yield tmp_path / "cache" / "memos"
    memos.use(None)


def test_what_was_written_is_recalled_and_only_this_user_can_read_it(folder: Path) -> None:
    assert memos.recall("fact") is None
    memos.write("fact", "first")
    memos.write("fact", VALUE)
    assert memos.recall("fact") == VALUE
    assert [path.name for path in folder.iterdir()] == ["fact.json"]
    modes = [path.stat().st_mode & 0o777 for path in (folder.parent, folder, folder / "fact.json")]
    assert modes == [0o700, 0o700, 0o600]
    assert json.loads((folder / "fact.json").read_text())["memo"] == ["fact", VALUE]


def test_without_a_folder_nothing_is_written(folder: Path) -> None:
    memos.use(None)
    memos.write("fact", VALUE)
    assert memos.recall("fact") is None
    assert not folder.exists()


def test_a_file_that_is_cut_or_has_a_flipped_bit_is_as_none(folder: Path) -> None:
    memos.write("fact", VALUE)
    file = folder / "fact.json"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert memos.recall("fact") is None, length
    for index in range(len(whole)):
        file.write_bytes(whole[:index] + bytes([whole[index] ^ 1]) + whole[index + 1 :])
        assert memos.recall("fact") is None, index
    file.write_bytes(whole + b"\n")
    assert memos.recall("fact") is None
    file.write_bytes(whole)
    assert memos.recall("fact") == VALUE


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _renamed(path: Path) -> None:
    memos.write("another", 1)
    path.with_name("another.json").replace(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [_pipe, _link, _renamed, _folder, Path.unlink])
def test_what_is_no_file_of_ours_is_as_none_and_is_not_waited_for(folder: Path, damage: Callable[[Path], None]) -> None:
    memos.write("fact", VALUE)
    damage(folder / "fact.json")
    assert memos.recall("fact") is None


def test_a_file_that_is_too_large_is_not_read(folder: Path, monkeypatch: Patch) -> None:
    memos.write("fact", VALUE)
    monkeypatch.setattr(memos, "_MOST_BYTES", (folder / "fact.json").stat().st_size - 1)
    assert memos.recall("fact") is None


def test_another_users_file_is_not_believed(folder: Path, monkeypatch: Patch) -> None:
    memos.write("fact", VALUE)
    somebody = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: somebody)
    assert memos.recall("fact") is None


@pytest.mark.parametrize("call", ["open", "mkdir", "replace"])
def test_a_disk_that_takes_nothing_is_no_error_and_leaves_nothing(folder: Path, call: str, monkeypatch: Patch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ptxrt.files.private" if call == "open" else f"pathlib.Path.{call}", full)
    memos.write("fact", VALUE)
    monkeypatch.undo()
    assert memos.recall("fact") is None
    assert not folder.exists() or not list(folder.iterdir())
