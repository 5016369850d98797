"""What README.md says of code and errors is what happens, on sim."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from helpers import ROOT, Capture, Patch

import ptxrt

README = (ROOT / "README.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# ">>> call", then what it raises, up to the next call or the end of the indented block.
ERRORS = re.findall(r"^    >>> (.*)\n((?:    (?!>>>).*\n)+)", README, re.MULTILINE)


@pytest.fixture
def names(monkeypatch: Patch, capsys: Capture) -> dict[str, Any]:
    """The names that the first kernel's program leaves behind."""
    monkeypatch.setenv("PTXRT_DEVICE", "sim:0")
    space: dict[str, Any] = {}
    exec(compile(PROGRAM, "README.md", "exec"), space)
    assert capsys.readouterr().out.startswith("[ 0.   2.5  5.   7.5 10. ] Resources(registers=")
    return space


def test_the_first_kernel_runs_as_written(names: dict[str, Any]) -> None:
    np.testing.assert_array_equal(names["x"].to_host(), np.arange(5) * np.float32(2.5))


def test_the_first_kernel_has_20_lines() -> None:
    assert len([line for line in PROGRAM.splitlines() if line.strip()]) == 20


def test_errors_are_shown_as_they_are(names: dict[str, Any]) -> None:
    assert len(ERRORS) == 3
    for call, shown in ERRORS:
        with pytest.raises(ptxrt.PtxrtError) as caught:
            eval(call, names)
        said = f"{type(caught.value).__name__}: {caught.value}"
        assert shown.split() == said.split()


def test_every_file_it_links_to_is_there() -> None:
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_environment_variables_are_those_that_are_read() -> None:
    listed = set(re.findall(r"^\| `(PTXRT_\w+)` \|", README, re.MULTILINE))
    files = [*(ROOT / "ptxrt").rglob("*.py"), ROOT / "tests" / "conftest.py", ROOT / "tests" / "helpers.py"]
    assert listed == {name for file in files for name in re.findall(r'"(PTXRT_[A-Z_]+)"', file.read_text())}
