"""The examples of docs/testing.md run, and print what the document shows."""

from __future__ import annotations

import os
import re
import shlex

import pytest
from helpers import ROOT, need_nvrtc

from ptxrt.testing import strategies

TEXT = (ROOT / "docs" / "testing.md").read_text()
FILES = dict(re.findall(r"`([\w.]+)`:\n\n```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))
((COMMAND, SHOWN),) = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_coverage_of_the_example_is_what_the_document_shows(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_nvrtc()
    pytest.importorskip("pytest_cov")
    assert FILES.keys() == {"clip.cu", "test_clip.py", "pyproject.toml"}
    for name, text in FILES.items():
        (pytester.path / name).write_text(text)
    _, *options = shlex.split(COMMAND)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), path))))
    result = pytester.runpytest_subprocess("-p", "ptxrt.testing.pytest_plugin", "-p", "no:cacheprovider", *options)
    result.assert_outcomes(passed=1)
    dots, *table = SHOWN.splitlines()
    assert dots == "..."
    result.stdout.fnmatch_lines(table, consecutive=True)
    result.stdout.fnmatch_lines(["ptxrt: 1 tests under checks"])


def test_the_document_names_every_strategy() -> None:
    rows = re.findall(r"^\| `(\w+)\(", TEXT.partition("## Values to draw")[2], re.MULTILINE)
    assert sorted(rows) == sorted(strategies.__all__)
