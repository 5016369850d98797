"""tools/find_python.py: the oldest and the newest Python that the tests can be run with."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import find_python
import pytest
from helpers import ROOT, Capture, Patch


def put(folder: Path, name: str, answer: str, status: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{answer}'\nexit {status}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: Patch) -> dict[str, Path]:
    """A machine with Pythons on its PATH and in pyenv's folder."""
    path, pyenv = tmp_path / "bin", tmp_path / "pyenv"
    made = {
        "3.9": put(path, "python3.9", "3 9 18 final"),
        "3.11": put(path, "python3.11", "3 11 2 final"),
        "shim": put(path, "python3.12", "pyenv: python3.12: command not found", 127),
        "free-threaded": put(path, "python3.13t", "3 13 5 final"),
        "3.10": put(pyenv / "versions" / "3.10.13" / "bin", "python3.10", "3 10 13 final"),
        "3.13": put(pyenv / "versions" / "3.13.0" / "bin", "python3.13", "3 13 0 final"),
        "3.15": put(pyenv / "versions" / "3.15.0a1" / "bin", "python3.15", "3 15 0 alpha"),
    }
    monkeypatch.setenv("PATH", f"{path}::/usr/nowhere")
    monkeypatch.setenv("PYENV_ROOT", str(pyenv))
    monkeypatch.setattr(sys, "executable", str(path / "python"))
    return made


def found(which: str, monkeypatch: Patch, capsys: Capture) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["find_python.py", which])
    return find_python.main(), *capsys.readouterr()


@pytest.mark.parametrize(("which", "name"), [("oldest", "3.10"), ("newest", "3.13")])
def test_the_one_asked_for_is_found_and_printed(
    machine: dict[str, Path], monkeypatch: Patch, capsys: Capture, which: str, name: str
) -> None:
    status, out, err = found(which, monkeypatch, capsys)
    assert (status, out.strip()) == (0, str(machine[name]))
    assert err.startswith(f"Python {name}.")
    assert err.endswith(f"is the {which} here, of 3 that ptxrt runs on\n")


def test_of_two_of_one_version_the_first_counts(
    machine: dict[str, Path], monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    put(tmp_path / "pyenv" / "versions" / "again" / "bin", "python3.11", "3 11 2 final")
    pythons = find_python.pythons(find_python.folders(), (3, 10))
    assert pythons[3, 11, 2] == machine["3.11"]


def test_a_machine_without_any_is_refused(machine: dict[str, Path], monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(find_python, "required", lambda: (4, 0))
    assert found("newest", monkeypatch, capsys) == (1, "", "no Python from 4.0 on\n")


def test_the_least_version_is_pyprojects() -> None:
    assert find_python.required() == (3, 10)


def test_on_this_machine_there_is_one() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "find_python.py", "newest"], capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip()).exists()
