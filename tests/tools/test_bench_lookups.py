"""tools/bench.py lookups: the rows, what is stored, and the bounds."""

from __future__ import annotations

import json
from pathlib import Path

import bench
import pytest
from benchmarks import lookups
from helpers import Capture, Patch, need_nvrtc

from ptxrt.compilers import nvjitlink


@pytest.fixture(autouse=True)
def _little(monkeypatch: Patch) -> None:
    need_nvrtc()
    if reason := nvjitlink.available():
        pytest.skip(reason)
    monkeypatch.setattr(lookups, "_ROUNDS", 2)
    monkeypatch.setattr(lookups, "_LEAST_SECONDS", 0.001)


def test_it_prints_and_stores_every_row(tmp_path: Path, capsys: Capture) -> None:
    assert bench.main(["lookups", "--device", "sim:0", "--out", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "lookups-ptx-machine.json").read_text())
    assert set(record["rows"]) == set(lookups.BOUNDS)
    assert all(row["q3_us"] >= row["median_us"] >= row["q1_us"] > 0 for row in record["rows"].values())
    text, printed = (tmp_path / "lookups-ptx-machine.md").read_text(), capsys.readouterr().out
    for name in lookups.BOUNDS:
        assert f"| {name} " in text
        assert f"| {name} " in printed


@pytest.mark.parametrize(("bound", "code"), [(1e-9, 1), (1e9, 0)])
def test_check_says_whether_the_bounds_hold(tmp_path: Path, monkeypatch: Patch, bound: float, code: int) -> None:
    monkeypatch.setattr(lookups, "BOUNDS", dict.fromkeys(lookups.BOUNDS, bound))
    assert bench.main(["lookups", "--device", "sim:0", "--check", "--out", str(tmp_path)]) == code


def test_a_device_that_is_not_there_exits_with_2(tmp_path: Path, capsys: Capture) -> None:
    assert bench.main(["lookups", "--device", "tpu:0", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("bench.py: ")
