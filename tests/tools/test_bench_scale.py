"""python tools/bench.py scale: the shapes, the arrays, what counts as a deviation or a cliff, and what is stored."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import bench
import numpy as np
import pytest
from benchmarks import scale
from benchmarks.ops_calls import call, inputs, shapes
from helpers import Capture, Patch

import ptxrt


@pytest.mark.parametrize("of", scale.OPS, ids=lambda of: of.op)
def test_each_size_has_its_elements(of: Any) -> None:
    for power in range(10, 33):
        case = scale.case_of(of, power)
        assert math.prod(case.shape) == 1 << power
        assert case.size == case.shape[2:] or len(case.shape) == 2
    assert scale.case_of(scale.OPS[0], 19).shape == (1, 64, 64, 128)
    assert scale.case_of(scale.OPS[0], 30).shape == (1024, 64, 128, 128)


@pytest.mark.parametrize("op", ["grid_sample", "layer_norm"])
def test_a_large_array_repeats_a_small_one(sim: ptxrt.Device, monkeypatch: Patch, op: str) -> None:
    monkeypatch.setattr(scale, "_IMAGE", 11)
    case = scale.case_of(next(of for of in scale.OPS if of.op == op), 13)
    part = inputs(scale.case_of(case, 11))
    for name, array in scale._filled(case, sim):
        assert array.shape == shapes(case)[name]
        whole = array.to_host()
        times = 4 if len(whole) == case.shape[0] else 1
        assert np.array_equal(whole, np.concatenate([part[name]] * times))


@pytest.mark.parametrize(
    ("us", "found"),
    [
        ({24: 1.0, 25: 1.0, 26: 1.0}, []),
        ({24: 1.14, 25: 1.0, 26: 0.86}, []),
        ({24: 1.16, 25: 1.0, 26: 0.84}, ["2**24: 1.16 of the median", "2**26: 0.84 of the median"]),
        ({10: 9.0, 11: 5.0, 12: 3.0, 13: 3.4}, []),
        ({10: 9.0, 11: 5.0, 12: 3.0, 13: 3.5}, ["2**13: 1.17 of that at 2**12"]),
        ({12: 3.0, 14: 5.0}, []),
    ],
)
def test_what_is_found(us: Any, found: list[str]) -> None:
    assert scale.findings({str(power): each * 2**power for power, each in us.items()}, 0.0) == found


def test_a_launch_is_left_out_of_large_sizes_alone() -> None:
    times = {"10": 9.0, "11": 20.0, "24": 24.0, "25": 40.0, "26": 72.0}
    assert scale.findings(times, 0.0) == ["2**24: 1.20 of the median"]
    assert scale.findings(times, 8.0) == []


def test_it_stores_what_fits_into_memory(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("PTXRT_LANGUAGE", "hip")
    shown = []

    def small(case: Any, arrays: Any) -> Any:
        shown.append(case.shape)
        if case.shape[0] > 2:
            raise ptxrt.OutOfDeviceMemory(op="empty", argument="shape", expected="memory", given="none")
        return call(case, arrays)

    monkeypatch.setattr(scale, "call", small)
    monkeypatch.setattr(scale, "findings", lambda us, launch_us: ["2**10: odd"])
    arguments = ["scale", "--only", "rms_norm", "--sizes", "10", "13", "--runs", "2", "--device", "sim:0"]
    assert bench.main([*arguments, "--out", str(tmp_path)]) == 0
    assert bench.main([*arguments, "--out", str(tmp_path), "--check"]) == 1
    assert shown[:4] == [(1, 1024), (2, 1024), (4, 1024), (1, 1024)]
    record = json.loads((tmp_path / "scale-ptx-machine.json").read_text())
    assert [row["op"] for row in record["rows"]] == ["rms_norm", "rms_norm_backward"]
    assert all(list(row["us"]) == ["10", "11"] and min(row["us"].values()) > 0 for row in record["rows"])
    assert {*record["measured"]} == {
        *(f"rms_norm{kind}.ptx f32" for kind in ("", "_few", "_held", "_streamed", "_together")),
        *(f"ptxrt/ops/_rms_norm{kind}.py" for kind in ("", "_few", "_held", "_streamed", "_together")),
    }
    assert "2**10: odd" in (tmp_path / "scale-ptx-machine.md").read_text()
    assert bench.main(["scale", "--sizes", "12", "11", "--device", "sim:0"]) == 2
    assert "--sizes are at least 10" in capsys.readouterr().err
