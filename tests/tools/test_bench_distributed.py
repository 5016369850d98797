"""python tools/bench.py distributed: the model, what counts as out of bounds, what is stored and drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench
import pictures
import pytest
from benchmarks import distributed
from benchmarks.distributed_model import GPUS_A_HOST, HOP_US, PORT, Fit, exact_bytes, gathered_bytes
from helpers import Capture, Patch

import ptxrt
from ptxrt.ops._batch_norm_exact import SumsDescriptor

FIT = Fit(10.0, 1e11)
REDUCED = [{"bytes": size, "us": 10 + size / 1e5} for size in (256, 4096, 65536, 1 << 20)]
US = {
    "alone": 50.0,
    "all-reduce": 10.0,
    "exact, one rank": 60.0,
    "exact, ranks": 100.0,
    "exact, replayed": 70.0,
    "rounded, one rank": 60.0,
    "rounded, ranks": 110.0,
    "rounded, replayed": 75.0,
    "SyncBatchNorm": 90.0,
}


def row(**us: float) -> dict[str, Any]:
    return {"turn": "forward", "shape": [2, 3, 4], "dtype": "f32", "bytes": 768, "us": US | us}


def test_a_fit_finds_the_numbers_that_times_were_made_of() -> None:
    fit = Fit.of(REDUCED)
    assert fit.start_us == pytest.approx(10)
    assert fit.speed == pytest.approx(1e11)


def test_time_grows_with_the_hosts_and_not_within_one() -> None:
    assert FIT.all_reduce_us(1e6, 2) == FIT.all_reduce_us(1e6, GPUS_A_HOST) == pytest.approx(20)
    assert FIT.all_reduce_us(0, 2 * GPUS_A_HOST) == pytest.approx(10 + 2 * HOP_US)
    assert FIT.all_reduce_us(PORT, 4 * GPUS_A_HOST) == pytest.approx(10 + 4 * HOP_US + 1e6)
    assert FIT.all_gather_us(PORT, 4 * GPUS_A_HOST) == pytest.approx(10 + 2 * HOP_US + 1e6)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_bytes_are_those_of_the_sums(dtype: str) -> None:
    problem = SumsDescriptor((2, 7, 3), ptxrt.dtypes.BY_NAME[dtype])
    assert exact_bytes(7, dtype) == 8 * 7 * problem.rows
    assert gathered_bytes(7, 3) == 3 * 15 * 4


@pytest.mark.parametrize(
    ("us", "found"),
    [
        ({}, []),
        ({"exact, ranks": 60.0}, []),
        ({"exact, replayed": 79.0}, []),  # rounded sums take less
        ({"exact, replayed": 80.0, "rounded, replayed": 79.0}, ["1.32 of alone + all-reduce"]),
        ({"SyncBatchNorm": 50.0}, ["1.40 of SyncBatchNorm"]),
    ],
)
def test_what_is_out_of_bounds(us: dict[str, float], found: list[str]) -> None:
    assert distributed.findings(row(**us)) == found


def test_what_is_out_of_bounds_of_one_way_to_add_up() -> None:
    times = row(**{"exact, replayed": 79.0})
    assert distributed.findings(times, ["exact"]) == ["1.32 of alone + all-reduce"]
    assert distributed.findings(times, ["rounded"]) == []


def test_it_stores_what_the_ranks_have_measured_and_that_is_drawn(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(distributed, "opened", lambda _: ptxrt.Device("sim:0"))
    monkeypatch.setattr(distributed, "there", lambda: 2)
    monkeypatch.setattr(
        distributed, "measured", lambda ranks, runs: {"all_reduce": REDUCED, "rows": [row(**{"exact, replayed": 90.0})]}
    )
    arguments = ["distributed", "--runs", "3", "--out", str(tmp_path)]
    assert bench.main(arguments) == 0
    assert bench.main([*arguments, "--check"]) == 0
    monkeypatch.setattr(distributed, "measured", lambda *_: {"all_reduce": REDUCED, "rows": [row(SyncBatchNorm=9.0)]})
    assert bench.main([*arguments, "--check"]) == 1
    record = json.loads((tmp_path / "distributed-ptx-machine.json").read_text())
    assert (record["ranks"], record["runs"]) == (2, 3)
    assert {"batch_norm_exact.ptx f16", "batch_norm_rounded.ptx f32"} <= record["measured"].keys()
    text = (tmp_path / "distributed-ptx-machine.md").read_text()
    assert "7.78 of SyncBatchNorm" in text
    assert "8.33 of SyncBatchNorm" in text  # of rounded sums
    assert "1 of 1 shards are out of bounds" in text
    assert "| 4096" in text
    pytest.importorskip("matplotlib")
    drawn = pictures.draw(tmp_path / "distributed-ptx-machine.json", tmp_path)
    assert [path.name for path in drawn] == [f"distributed-ptx-machine-ranks-{theme}.svg" for theme in pictures.THEMES]
    assert "4096" in drawn[0].read_text()


def test_fewer_gpus_than_ranks_are_refused(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(distributed, "opened", lambda _: ptxrt.Device("sim:0"))
    monkeypatch.setattr(distributed, "there", lambda: 1)
    assert bench.main(["distributed"]) == 2
    assert "2 ranks need as many GPUs, and 1 are there" in capsys.readouterr().err
