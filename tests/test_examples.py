"""Every example of README.md and docs/ runs on sim, page by page, and does what the page shows."""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pages
import pytest
from helpers import ROOT, Capture, Patch, need_nvrtc

import ptxrt
from ptxrt.commands.cli import main

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = {path.name: pages.blocks(path.read_text()) for path in PAGES}
WITH_CODE = [name for name, found in BLOCKS.items() if any(b.kind in ("python", "pycon", "console") for b in found)]
ELSEWHERE = {"testing.md": "tests/testing/test_testing_docs.py"}  # its examples are runs of pytest
EDITS = {  # docs/sim.md tells these files by what is changed in another
    "fixed.ptx": (
        "reverse.ptx",
        "    st.shared.f32 [%at], %value;\n",
        "    st.shared.f32 [%at], %value;\n    bar.sync 0;\n",
    ),
    "narrow.ptx": ("tiled.ptx", ", 33, ", ", 32, "),
}
LIBRARIES = ("torch", "cupy", "jax", "pycuda")
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
TESTS = [path for path in EXAMPLES if path.name.startswith("test_")]


def gpu() -> bool:
    return any(device.kind == "cuda" for device in ptxrt.devices())


def missing(text: str) -> str | None:
    """Return what a block needs that is not here: a library, or a GPU for another library's arrays."""
    used = [name for name in LIBRARIES if re.search(rf"\b{name}\b", text)]
    absent = [name for name in used if importlib.util.find_spec(name) is None]
    if absent:
        return absent[0]
    theirs = {"cupy", "pycuda"} & set(used) or re.search(r'device="cuda"\)|cuda_stream|cuda\.Stream', text)
    return "a GPU" if theirs and not gpu() else None


@pytest.mark.parametrize("name", [name for name in WITH_CODE if name not in ELSEWHERE])
def test_a_page_does_what_it_shows(name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    need_nvrtc()
    monkeypatch.chdir(tmp_path)
    on_gpu = "cuda:0" in "".join(block.text for block in BLOCKS[name]) and gpu()
    monkeypatch.setenv("PTXRT_DEVICE", "cuda:0" if on_gpu else "sim:0")
    names: dict[str, Any] = {"__name__": "__main__"}
    ran = []
    for block in BLOCKS[name]:
        if missing(block.text) is None:
            pages.run(block if on_gpu else on_sim(block), names, name)
            ran.append(block)
        for made, (of, old, new) in EDITS.items():
            if block.file == of:
                assert block.text.count(old) > 0
                Path(made).write_text(block.text.replace(old, new))
    if not ran:
        pytest.skip("nothing of this page can run here")


def test_every_block_is_of_a_kind_that_a_test_knows() -> None:
    known = {"python", "pycon", "console", "text", "sh", "toml"}
    for name, found in BLOCKS.items():
        assert {block.kind for block in found if not block.file} <= known, f"{name}: a block that nothing runs"


def on_sim(block: pages.Block) -> pages.Block:
    """Return a block that names the first GPU with sim in its place."""
    shown = block.shown and block.shown.replace("cuda:0", "sim:0")
    return block._replace(text=block.text.replace("cuda:0", "sim:0"), shown=shown)


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path not in TESTS], ids=lambda path: path.name)
def test_a_complete_program_prints_what_it_says(path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    need_nvrtc()
    text = path.read_text()
    if needed := missing(text):
        pytest.skip(f"no {needed}")
    monkeypatch.setenv("PTXRT_DEVICE", "sim:0")
    runpy.run_path(str(path), run_name="__main__")
    shown = "".join(re.findall(r"^# prints: (.*\n)", text, re.MULTILINE))
    assert shown
    pages.same(shown, capsys.readouterr().out)


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.name)
def test_an_example_of_a_test_passes_and_fails_on_a_wrong_kernel(path: Path, tmp_path: Path) -> None:
    def outcome(text: str) -> int:
        (tmp_path / path.name).write_text(text)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
        where = {**os.environ, "PTXRT_DEVICE": "sim:0", "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, check=False, timeout=60).returncode

    text = path.read_text()
    guard = re.findall(r"^ *@%\w+ ret;\n", text, re.MULTILINE)
    assert len(guard) == 1
    assert (outcome(text), outcome(text.replace(guard[0], ""))) == (0, 1)


def test_what_only_installs_or_lists_names_what_there_is(capsys: Capture) -> None:
    """Blocks of sh are not run: what they name is there, and every command is in one of them."""
    lines = [
        shlex.split(line, comments=True)
        for found in BLOCKS.values()
        for block in found
        if block.kind == "sh"
        for line in block.text.splitlines()
    ]
    help_of = {}
    for command in {line[1] for line in lines if line[:1] == ["ptxrt"]}:
        with pytest.raises(SystemExit) as left:
            main([command, "--help"])
        assert left.value.code == 0
        help_of[command] = capsys.readouterr().out
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in filter(None, lines):
        if line[0] == "ptxrt":
            assert [word for word in line if word.startswith("--") and word not in help_of[line[1]]] == []
        elif line[0] == "make":
            assert set(line[1:]) <= set(targets)
    with pytest.raises(SystemExit):
        main(["--help"])
    commands = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert {line[1] for line in lines if line[:1] == ["ptxrt"]} == set(commands)


@pytest.mark.parametrize(
    "text",
    [
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nprint(1)\n```\n",
        "```python\n1 / 0\n```\n",
        "```python\nopen('')\n```\n\n```text\nZeroDivisionError: division by zero\n```\n",
        "```pycon\n>>> 1 + 1\n3\n```\n",
        "```console\n$ ptxrt kernels nothing-has-this\n...\n[0]\n```\n",
        "```console\n$ ptxrt devices\n...\n```\n",
    ],
)
def test_a_page_that_shows_something_else_is_noticed(text: str, monkeypatch: Patch) -> None:
    (block,) = pages.blocks(text)
    with pytest.raises((AssertionError, ZeroDivisionError)):
        pages.run(block, {}, "page")
