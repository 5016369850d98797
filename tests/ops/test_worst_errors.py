"""What is recorded of the ops' errors: the worst of each kind, and the same from one process as from two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import op_testing
import pytest
from helpers import ROOT, Patch

import ptxrt


@pytest.fixture
def none_yet(monkeypatch: Patch) -> None:
    monkeypatch.setattr(op_testing, "_WORST", {})


def test_the_worst_of_each_kind_is_recorded_with_its_case(none_yet: Any, sim: ptxrt.Device) -> None:
    for error, case in ((1e-3, "one"), (3e-3, "two"), (2e-3, "three")):
        op_testing.check_error("an op", sim, np.array([1 + error], np.float32), [1.0], 1e-2, case, language="hip")
    (row,) = op_testing.worst_errors()
    assert {name: row[name] for name in ("op", "dtype", "device", "language", "cases", "case")} == {
        "op": "an op",
        "dtype": "float32",
        "device": "sim",
        "language": "hip",
        "cases": 3,
        "case": "two",
    }
    assert row["error"] == pytest.approx(3e-3, rel=1e-3)
    assert row["of_bar"] == pytest.approx(0.3, rel=1e-3)
    op_testing.check_error("an op", sim, np.array([1.0], np.float32), [1.0], 1e-2, language="ptx")
    assert [(row["language"], row["cases"]) for row in op_testing.worst_errors()] == [("hip", 3), ("ptx", 1)]


def test_an_error_above_the_bar_fails_and_is_recorded(none_yet: Any, sim: ptxrt.Device) -> None:
    with pytest.raises(AssertionError, match=r"above 1\.00e-03"):
        op_testing.check_error("an op", sim, np.array([1.5], np.float32), [1.0], 1e-3, language="ptx")
    assert op_testing.worst_errors()[0]["error"] == 0.5


def test_two_processes_tell_what_one_tells(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    found = []
    for name, options in (("one", ["-n", "0"]), ("two", ["-n", "2", "--dist", "worksteal"])):
        path = tmp_path / name
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "tests/ops/test_rms_norm.py"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PTXRT_ERRORS": str(path)}
        chosen = [*command, "-k", "sim and large_mean and (f32 or f64)"]
        subprocess.run(chosen, cwd=ROOT, env=environment, check=True, timeout=300)
        found.append(json.loads(path.read_text()))
    assert found[0] == found[1]
    assert {row["language"] for row in found[0]} == {"ptx", "hip"}
