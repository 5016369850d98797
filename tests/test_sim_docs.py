"""The examples of docs/sim.md run, and print what the document shows."""

from __future__ import annotations

import argparse
import dataclasses
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT, Capture, Patch

import ptxrt
from ptxrt import sim
from ptxrt.check.arguments import FORMS
from ptxrt.check.run import check
from ptxrt.commands import check as check_command
from ptxrt.commands._check_report import COLUMNS
from ptxrt.commands.cli import main
from ptxrt.compilers import nvrtc
from ptxrt.sim._machine.checks import CHECKS

TEXT = (ROOT / "docs" / "sim.md").read_text()
COMMANDS = [
    found
    for block in re.findall(r"^```console\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    for found in re.findall(r"^\$ ptxrt (.*?)\n(.*?)^\[(\d)\]$", block, re.MULTILINE | re.DOTALL)
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: Patch) -> None:
    """The kernels of the document, and the two that it tells how to make, in the current folder."""
    texts = dict(re.findall(r"`(\w+\.(?:ptx|cu))`[^`]*```(?:ptx|cpp)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
    assert len(texts) == TEXT.count("\n```ptx\n") + TEXT.count("\n```cpp\n")
    lines = texts["reverse.ptx"].splitlines(keepends=True)
    texts["fixed.ptx"] = "".join([*lines[:23], "    bar.sync 0;\n", *lines[23:]])
    texts["narrow.ptx"] = texts["tiled.ptx"].replace(", 33, ", ", 32, ")
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def test_there_are_three_examples_and_two_of_them_go_on_to_the_fix() -> None:
    assert [int(code) for *_, code in COMMANDS] == [1, 0, 1, 0, 0, 0]


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("command", "shown", "code"), COMMANDS, ids=[command.split()[1] for command, *_ in COMMANDS])
def test_a_command_prints_what_the_document_shows(command: Any, shown: Any, code: Any, capsys: Capture) -> None:
    if ".cu " in command and nvrtc.available() is not None:
        pytest.skip("NVRTC is not installed")
    assert main(shlex.split(command)) == int(code)
    printed = capsys.readouterr().out
    # A line of three dots stands for any lines.
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in shown.splitlines())
    assert re.fullmatch(pattern, printed), printed


def test_the_example_in_python_prints_what_its_comments_say(capsys: Capture) -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    exec(text, {})
    printed = capsys.readouterr().out.splitlines()
    wanted = re.findall(r"^print.*  # (.*)$", text, re.MULTILINE)
    assert len(printed) == len(wanted) == 2
    for line, words in zip(printed, wanted, strict=True):
        assert line.startswith(words.removesuffix("..."))


@pytest.mark.parametrize(
    ("name", "instruction"),
    [
        (
            "`mma`",
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {f,f,f,f}, {r,r,r,r}, {r,r}, {f,f,f,f};",
        ),
        ("`wmma`", "wmma.load.a.sync.aligned.row.m16n16k16.f16 {r, r, r, r, r, r, r, r}, [d];"),
        ("`wgmma`", "wgmma.fence.sync.aligned;"),
        ("`ldmatrix`", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {r}, [d];"),
        ("`stmatrix`", "stmatrix.sync.aligned.m8n8.x1.shared.b16 [d], {r};"),
        ("`mbarrier`", "mbarrier.init.shared::cta.b64 [d], 1;"),
        ("bulk copies", "cp.async.bulk.global.shared::cta.bulk_group [d], [d], 16;"),
        ("video instructions", "vadd.u32.u32.u32 r, r, r;"),
    ],
)
def test_what_the_machine_does_not_run_is_said_with_the_line(name: str, instruction: str) -> None:
    assert name in TEXT
    head = ".version 8.6\n.target sm_90a\n.address_size 64\n.entry k()\n{\n.reg .b32 r; .reg .b64 d; .reg .f32 f;\n"
    with pytest.raises(ptxrt.Unsupported, match="line 7: the sim does not run"):
        check(ptxrt.KernelSource.ptx(f"{head}{instruction}\nret;\n}}\n"), grid=1, block=32, arguments={})


def test_every_option_is_there() -> None:
    command = argparse.ArgumentParser(add_help=False)
    check_command.add_arguments(command)
    options = [option for action in command._actions for option in action.option_strings]
    assert len(options) >= 13
    for option in options:
        assert f"`{option}" in TEXT, option


def test_the_tables_are_complete() -> None:
    for name in CHECKS:
        assert f"| `{name}` |" in TEXT
    for name in COLUMNS:
        assert re.search(rf"^\| {name}\b", TEXT, re.MULTILINE), name
    for count in dataclasses.fields(sim.LineCounts):
        assert re.search(rf"`{count.name}`|^\| {count.name}\b", TEXT, re.MULTILINE), count.name
    for kind in re.findall(r"\b(random|arange|zeros|ones|nan|empty|full)\b", FORMS):
        assert f"`{kind}" in TEXT
