"""python tools/bench.py ops: what it says without a GPU, and its table. What it measures is for a GPU to tell."""

from __future__ import annotations

import json
import sys

import pytest
from helpers import ROOT

sys.path.insert(0, str(ROOT / "tools"))

import bench
from benchmarks import ops


def test_the_table_compares_with_the_floor_and_with_torch():
    row = {"op": "softmax2d", "case": "2x3 f32", "floor": 50.0, "ptxrt": 80.0, "eager": 100.0, "compile": 90.0}
    line = ops.table([row, {**row, "eager": 40.0, "compile": None}]).splitlines()
    assert line[2].split("|")[3:9] == [
        " 50.0  ",
        " 80.0  ",
        " 62%                  ",
        " 100.0       ",
        " 90.0          ",
        " 1.25          ",
    ]
    assert line[3].rstrip(" |").endswith("0.50")


def test_it_says_what_it_needs(monkeypatch, capsys, tmp_path):
    import ptxrt

    def none(name: str) -> ptxrt.Device:
        raise ptxrt.BackendUnavailable(op="Device", argument=name, expected="a GPU", given="none")

    monkeypatch.setattr(ops.ptxrt, "Device", none)
    assert bench.main(["ops", "--out", str(tmp_path)]) == 2
    assert "needs an NVIDIA GPU and torch" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("language", "name"), [("ptx", "ops-nv*.json"), ("hip", "ops-hip-*.json")])
def test_it_measures_and_stores_each_row(cuda, tmp_path, monkeypatch, language, name):
    pytest.importorskip("torch")
    monkeypatch.setenv("PTXRT_LANGUAGE", "ptx")  # and undone afterwards
    arguments = ["--language", language, "--only", "group_norm", "--runs", "3", "--out", str(tmp_path)]
    assert bench.main(["ops", *arguments]) == 0
    (stored,) = tmp_path.glob(name)
    record = json.loads(stored.read_text())
    assert record["language"] == language
    rows = record["rows"]
    assert {row["op"] for row in rows} == {"group_norm", "group_norm_backward"}
    assert all(row["ptxrt"] > row["floor"] / 2 > 0 or "8x8" in row["case"] for row in rows)
    assert "GB/s" in stored.with_suffix(".md").read_text()
