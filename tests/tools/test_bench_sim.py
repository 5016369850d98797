"""python tools/bench.py sim: rows, bounds, what is stored."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import bench
import pytest
from benchmarks import sim
from benchmarks.sim_kernels import CASES, Case
from helpers import Capture, Patch

from ptxrt.compilers import nvrtc


def case(which: str, **changes: Any) -> Case:
    (found,) = (one for one in CASES if one.name == which)
    return dataclasses.replace(found, **changes)


def test_it_prints_and_stores_its_rows(tmp_path: Path, capsys: Capture) -> None:
    few = ["--repeats", "1", "--elements", "4096", "--out", str(tmp_path)]
    assert bench.main(["sim", "--only", "batch_norm", *few]) == 0
    out = capsys.readouterr().out
    record = json.loads((tmp_path / "sim-ptx-machine.json").read_text())
    assert list(record["rows"]) == ["batch_norm", "batch_norm backward"]
    row = record["rows"]["batch_norm"]
    assert row["lane_instructions"] > 64 * row["threads"]
    assert row["lane_instructions_per_second"] == row["lane_instructions"] / row["seconds"]
    assert 10 << 20 < record["peak_bytes"] < sim.MEMORY_BOUND
    assert record["environment"]["commit"]
    assert "| batch_norm backward |" in (tmp_path / "sim-ptx-machine.md").read_text()
    assert "within the bound of 2 GiB" in out


def test_check_fails_if_a_bound_is_missed_or_not_measured(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    slow = case("group_norm of kernels_ptx", name="slow", seconds=1e-9)
    bad = case("group_norm of kernels_ptx", name="bad", text=lambda: "frob")
    good = case("group_norm of kernels_ptx", name="good", rate=False)
    monkeypatch.setattr(sim, "CASES", (slow, bad, good))
    monkeypatch.setattr(sim, "peak_memory", lambda _: None)
    assert bench.main(["sim", "--check", "--repeats", "1", "--out", str(tmp_path)]) == 1
    record = json.loads((tmp_path / "sim-ptx-machine.json").read_text())
    assert record["missed"] == ["bad", "slow", "peak memory"]
    assert record["failed"]["bad"].startswith("CompileError")
    assert "MISSED" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--repeats", "--elements"])
def test_numbers_below_one_are_refused(option: str, tmp_path: Path) -> None:
    assert bench.main(["sim", option, "0", "--out", str(tmp_path)]) == 2


def test_the_bounds_are_those_of_the_plan() -> None:
    bounded = {(one.name, one.shape): one.seconds for one in CASES if one.seconds is not None}
    assert bounded == {
        ("group_norm", "8x128x1024"): 0.2,
        ("softmax2d", "8x256x4096"): 0.5,
        ("matmul by Triton, mma.sync, f16", "256x256x256"): 2.0,
    }
    assert sum(one.rate for one in CASES) == 10


@pytest.mark.skipif(nvrtc.available() is not None, reason="NVRTC is not installed")
def test_the_matmul_is_a_row() -> None:
    row = sim.measure(case("matmul by NVRTC"), 1)
    assert row["threads"] == 256 * 256
    assert row["bound_rate"] is None
    assert row["within"]
