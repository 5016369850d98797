"""The examples of docs/sim.md run, and print what the document shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from helpers import ROOT

from ptxrt.check_arguments import FORMS
from ptxrt.check_report import COLUMNS
from ptxrt.cli import main
from ptxrt.sim.checks import CHECKS

TEXT = (ROOT / "docs" / "sim.md").read_text()
COMMANDS = [
    found
    for block in re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for found in re.findall(r"^\$ ptxrt (.*?)\n(.*?)^\[(\d)\]$", block, re.MULTILINE | re.DOTALL)
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch) -> None:
    """The kernels of the document, and the two that it tells how to make, in the current folder."""
    names = re.findall(r"`(\w+\.ptx)`[^`]*```ptx\n", TEXT)
    texts = dict(zip(names, re.findall(r"^```ptx\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL), strict=True))
    lines = texts["reverse.ptx"].splitlines(keepends=True)
    texts["fixed.ptx"] = "".join([*lines[:23], "    bar.sync 0;\n", *lines[23:]])
    texts["narrow.ptx"] = texts["tiled.ptx"].replace(", 33, ", ", 32, ")
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def test_there_are_two_examples_from_fault_to_fix():
    assert [int(code) for *_, code in COMMANDS] == [1, 0, 0, 0, 0]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("command", "shown", "code"), COMMANDS, ids=[command.split()[1] for command, *_ in COMMANDS])
def test_a_command_prints_what_the_document_shows(command, shown, code, capsys):
    assert main(shlex.split(command)) == int(code)
    printed = capsys.readouterr().out
    # A line of three dots stands for any lines.
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in shown.splitlines())
    assert re.fullmatch(pattern, printed), printed


def test_the_tables_are_complete():
    for name in CHECKS:
        assert f"| `{name}` |" in TEXT
    for name in COLUMNS:
        assert re.search(rf"^\| {name}\b", TEXT, re.MULTILINE), name
    for kind in re.findall(r"\b(random|arange|zeros|ones|nan|empty|full)\b", FORMS):
        assert f"`{kind}" in TEXT
