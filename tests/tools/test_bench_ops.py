"""python tools/bench.py ops: what it says without a GPU, its table, and the comparison with another checkout on sim."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench
import numpy as np
import pytest
from benchmarks import measured, ops, ops_base, ops_bounds, ops_compiled
from benchmarks.measured import ABSENT
from benchmarks.ops_base import Comparison, Failed
from benchmarks.ops_calls import PARAMETERS, call, inputs, on_device, queued, shapes
from benchmarks.ops_cases import TYPES, Case, cases, drawn, keys
from benchmarks.ops_compiled import limited
from benchmarks.ops_worker import HOST
from helpers import ROOT, Capture, Patch

import ptxrt
from ptxrt.dtypes import BY_NAME


def row(op: Any = "softmax2d", case: Any = "2x3 f32", floor: Any = 50.0, **times: float) -> dict[str, Any]:
    return {"op": op, "case": case, "dtype": case.split()[1], "floor": floor, "times": times, "failed": {}}


def test_the_table_compares_with_the_floor_and_with_torch() -> None:
    lines = ops.table(
        [row(copy=56.0, ptx=80.0, hip=160.0, eager=100.0, compile=88.0), row(floor=40.0, ptx=50.0)]
    ).splitlines()
    first, second = ([cell.strip() for cell in line.split("|")[3:-1]] for line in lines[2:])
    assert first == ["50.0", "56.0", "80.0", "160.0", "100.0", "88.0", "1.60", "3.20", "1.10", "0.55"]
    assert second == ["40.0", "-", "50.0", "-", "-", "-", "1.25", "-", "-", "-"]


def test_a_record_of_one_language_reads_as_one_of_both() -> None:
    stored = {"op": "softmax2d", "case": "2x3 f32", "floor": 50.0, "ptxrt": 80.0, "eager": 100.0}
    old = {"language": "hip", "copy_bytes_per_second": 4e12, "rows": [stored]}
    assert ops_bounds.rows_of(old) == [row(hip=80.0, eager=100.0) | {"bytes": 200_000_000}]
    assert ops_bounds.rows_of({"rows": [row(ptx=1.0)]}) == [row(ptx=1.0)]


@pytest.mark.parametrize("late", [0, 1, 3, 6])
def test_a_run_that_the_device_came_to_before_its_end_was_queued_is_not_timed(late: int) -> None:
    asked: list[int] = []

    def once(clearings: int) -> Any:
        asked.append(clearings)
        return SimpleNamespace(done=len(asked) <= late), f"end {len(asked)}"

    if late < 6:
        found: Any = queued(once)
        assert found[1] == f"end {late + 1}"
    else:
        with pytest.raises(RuntimeError, match="longer than 32 clearings"):
            queued(once)
    assert asked == [1, 2, 4, 8, 16, 32][: late + 1]


GOOD = {"ptx": 60.0, "hip": 70.0, "eager": 200.0, "compile": 150.0}


@pytest.mark.parametrize(
    ("given", "lines"),
    [
        (row(**GOOD), []),
        (row(**{**GOOD, "ptx": 65.1}), ["ptx 1.30 x the floor, expected at most 1.3"]),
        (row(**{**GOOD, "ptx": 65.1, "copy": 55.0}), ["ptx 1.30 x the floor, a copy 1.10, expected at most 1.3"]),
        (row(case="2x3 bf16", **{**GOOD, "ptx": 72.0}), []),
        (row(case="2x3 bf16", **{**GOOD, "ptx": 72.6}), ["ptx 1.45 x the floor, expected at most 1.45"]),
        (row(case="2x3 f64", **{**GOOD, "ptx": 75.0}), []),
        (row("batch_norm", "2x3 f32 eval", **GOOD), ["ptx 1.20 x the floor, expected at most 1.15"]),
        (row("batch_norm", "2x3 f32 train", **GOOD), []),
        (row("group_norm", "1x128x512x512 f32 G32", **{**GOOD, "ptx": 74.0}), []),
        (row("upsample_nearest2d", "2x3 u8 x2", **{**GOOD, "ptx": 64.0}), []),
        (
            row("upsample_nearest2d", "2x3 f16 x2", **{**GOOD, "ptx": 66.0}),
            ["ptx 1.32 x the floor, expected at most 1.3"],
        ),
        (row("layer_norm_backward", **{**GOOD, "ptx": 81.0}), ["ptx 1.62 x the floor, expected at most 1.6"]),
        (row("grid_sample_backward", **GOOD), ["ptx 2.50 x as fast as torch, expected at least 3"]),
        (row("grid_sample_backward", "2x3 f64", **GOOD), []),
        (row("softmax2d_backward", **{**GOOD, "compile": 58.2}), ["ptx 1.03 x the better of torch"]),
        (row("softmax2d_backward", **{**GOOD, "compile": 58.3}), []),
        (row(**{**GOOD, "hip": 120.1}), ["hip 2.00 x ptx, expected at most 2"]),
        (row(**{**GOOD, "hip": 110.0, "eager": 100.0}), ["hip 1.10 x torch eager"]),
    ],
)
def test_which_bounds_a_row_misses(given: Any, lines: list[str]) -> None:
    assert [line.partition(": ")[2] for line in ops_bounds.missed([given]) if "mean" not in line] == lines


def test_the_means_are_held_too_and_what_is_not_there_is_missed() -> None:
    assert ops_bounds.missed([row(**GOOD)]) == []
    slow, halved = {**GOOD, "ptx": 62.0, "eager": 110.0}, {**GOOD, "ptx": 55.0}
    assert ops_bounds.missed([row(**slow)]) == ["geometric mean of torch's better / ptx: 1.77, expected at least 1.8"]
    assert ops_bounds.missed([row(**halved)]) == ["geometric mean of hip / ptx: 1.27, expected at most 1.25"]
    gone = row(ptx=60.0, eager=200.0) | {"failed": {"hip": "wrong"}}
    assert ops_bounds.missed([gone]) == ["softmax2d 2x3 f32: hip not measured: wrong"]
    assert ops_bounds.missed([gone], ["ptx"]) == []
    means = ops_bounds.geometric_means([row(ptx=25.0, eager=100.0, copy=20.0), row(ptx=100.0, eager=100.0, copy=80.0)])
    found = {"torch's better / ptx": 2.0, "ptx / floor": 1.0, "torch's better / copy": 2.5}
    assert means == {name: pytest.approx(mean) for name, mean in found.items()}


def test_a_row_where_torch_compile_failed_counts_in_no_mean_and_is_held_to_eager() -> None:
    alone = row(ptx=10.0, hip=15.0, eager=1000.0, copy=10.0) | {"failed": {"compile": "wrong"}}
    both = row(ptx=25.0, hip=25.0, eager=100.0, compile=50.0, copy=25.0)
    means = ops_bounds.geometric_means([alone, both])
    assert [means[f"torch's better / {name}"] for name in ("ptx", "hip", "copy")] == pytest.approx([2.0, 2.0, 2.0])
    slow = row(ptx=20.0, eager=10.0) | {"failed": {"compile": "wrong"}}
    assert any("2.00 x the better of torch" in line for line in ops_bounds.missed([slow], ["ptx"]))


def test_rows_that_were_measured_are_kept_when_the_device_is_lost(monkeypatch: Patch, capsys: Capture) -> None:
    def lost(*_: Any) -> None:
        raise RuntimeError("an illegal memory access was encountered")

    for name, value in {"launch_time": 4.0, "copy_speed": 1e12}.items():
        monkeypatch.setattr(ops, name, lambda *_, value=value: value)
    monkeypatch.setattr(ops, "_measure", lost)
    device: Any = SimpleNamespace(kind="cuda")
    torch = SimpleNamespace(cuda=SimpleNamespace(empty_cache=lost))
    rows = ops.measure(torch, device, list(cases())[:3], ["ptx"], 3, 0)["rows"]
    assert [row["failed"] for row in rows] == [{"row": "RuntimeError: an illegal memory access was encountered"}]
    assert "The rows behind this one are left out" in capsys.readouterr().err


def test_it_says_what_it_needs(monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    import ptxrt

    def none(name: str) -> ptxrt.Device:
        raise ptxrt.BackendUnavailable(op="Device", argument=name, expected="a GPU", given="none")

    monkeypatch.setattr(ptxrt, "Device", none)
    assert bench.main(["ops", "--out", str(tmp_path)]) == 2
    assert "needs an NVIDIA GPU and torch" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_it_stores_each_row(cuda: ptxrt.Device, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert bench.main(["ops", "--only", "group_norm 2x64", "--runs", "3", "--out", str(tmp_path)]) == 0
    (stored,) = tmp_path.glob("ops-nv*.json")
    record = json.loads(stored.read_text())
    assert record["launch_us"] > 0
    (row,) = record["rows"]
    assert (row["op"], row["failed"]) == ("group_norm", {})
    assert row["times"].keys() == {"ptx", "hip", "eager", "compile", "copy"}
    assert all(us > row["floor"] / 2 > 0 for us in row["times"].values())
    assert "GB/s" in stored.with_suffix(".md").read_text()


def test_its_options_choose_the_cases() -> None:
    assert {case.dtype for case in cases(types=["f64"])} == {"f64"}
    assert {case.op for case in cases("8x320x64x64 f16 G32 channels-last")} == {"group_norm"}
    assert len(list(cases())) > 150


def of_each_kind() -> list[Case]:
    """A small case in f32 of each op, mode and layout."""
    found = {(c.op, c.training, c.mode, c.padding_mode, len(c.shape), c.channels_last): c.small() for c in cases()}
    return [replace(case, dtype="f32") for case in found.values()]


@pytest.mark.parametrize("case", of_each_kind(), ids=lambda c: f"{c.op} {c}")
def test_every_case_runs_on_sim_at_a_small_size(case: Case, sim: ptxrt.Device) -> None:
    arrays = {name: on_device(case, array, sim) for name, array in inputs(case).items()}
    assert {name: array.shape for name, array in arrays.items()} == shapes(case)
    result: Any = call(case, arrays)()
    first = result[0] if isinstance(result, tuple) else result
    assert first.shape == (case.shape if case.op.endswith("backward") else case.result_shape)
    laid = first.transpose(0, 2, 3, 1) if case.channels_last and case.family != "grid_sample" else first
    assert laid.is_contiguous


def test_the_cases_are_different_by_their_names() -> None:
    assert max(Counter((case.op, str(case)) for case in cases()).values()) == 1
    assert {case.op for case in cases("softmax2d")} == {"softmax2d", "softmax2d_backward"}
    assert str(Case("group_norm", (2, 32, 8, 8), groups=8)) == "2x32x8x8 f32 G8"
    assert str(Case("batch_norm_backward", (4, 2, 7, 7))) == "4x2x7x7 f32 train"
    assert str(Case("grid_sample", (4, 3, 9, 9), "f64", size=(7, 5))) == "4x3x9x9 f64 to 7x5"
    bordered = Case("grid_sample", (4, 3, 9, 9), size=(7, 5), padding_mode="border", channels_last=True)
    assert str(bordered) == "4x3x9x9 f32 to 7x5 border channels-last"


# What is measured, with rows in torch's place -------------------------------------------------------------------------


class Calls(list[str]):
    """What was called, in which language."""

    def named(self, name: str, result: Any) -> Any:
        def call() -> Any:
            self.append(f"{name} {os.environ.get('PTXRT_LANGUAGE')}" if name == "ours" else name)
            if isinstance(result, Exception):
                raise result
            return result

        return call


SOFTMAX = Case("softmax2d", (2, 3))


@pytest.fixture
def made(monkeypatch: Patch) -> Any:
    """Return what measures one case whose calls give these results, and the calls."""

    def measured(
        ours: Any, theirs: Any, compiled: Any, deadline: float = np.inf, case: Case = SOFTMAX
    ) -> tuple[dict[str, Any], Calls]:
        calls = Calls()
        # A result is its own error, and its own number of bytes.
        row = SimpleNamespace(
            ours=calls.named("ours", ours),
            peer=lambda compiler: compiler(calls.named("eager", theirs)),
            reference=lambda: None,
            nbytes=lambda result: 1000,
        )
        monkeypatch.setenv("PTXRT_LANGUAGE", "ptx")  # and undone afterwards
        monkeypatch.setattr(ops, "make_row", lambda *_: row)
        monkeypatch.setattr(ops, "error", lambda torch, result, reference: result)
        monkeypatch.setattr(ops, "compiled", lambda torch, row: calls.named("compiled", compiled))
        monkeypatch.setattr(ops, "timer", lambda device, call: lambda count: [call() or 7.0 for _ in range(count)])
        monkeypatch.setattr(ops, "launch_time", lambda *_: 2.0)
        monkeypatch.setattr(ops, "copy_speed", lambda *_: 1e9)
        device = ptxrt.Device("sim:0")
        record = ops.measure(None, device, [case], ["ptx", "hip"], 6, deadline)
        assert (record["launch_us"], record["copy_bytes_per_second"]) == (2.0, 1e9)
        return record["rows"][0], calls

    return measured


def test_a_row_is_checked_then_timed_in_turns(made: Any) -> None:
    row, calls = made(0.0, 1e-4, 1e-5)
    names = ["ours ptx", "ours hip", "eager", "compiled"]
    assert calls == names + 3 * [name for name in names for _ in range(3)]
    assert row["errors"] == {"ptx": 0.0, "hip": 0.0, "eager": 1e-4, "compile": 1e-5}
    assert row["times"].keys() == {*row["errors"], "copy"}
    assert row["floor"] == pytest.approx(1000 / 1e9 * 1e6 + 2)
    assert (row["op"], row["case"], row["dtype"], row["failed"]) == ("softmax2d", "2x3 f32", "f32", {})


def test_what_is_wrong_or_raises_is_not_timed_and_says_why(made: Any) -> None:
    row, calls = made(3e-7, 2e-3, ValueError("no graph\nmore"))
    assert row["times"] == {}
    assert row["failed"] == {
        "ptx": "wrong: error 3.0e-07, expected at most 2.0e-07",
        "hip": "wrong: error 3.0e-07, expected at most 2.0e-07",
        "eager": "wrong: error 2.0e-03, expected at most 1.0e-03",
        "compile": "ValueError: no graph",
    }
    assert len(calls) == 4
    record = {"runs": 1, "copy_bytes_per_second": 1e9, "launch_us": 2.0, "languages": ["ptx"], "rows": [row]}
    text = ops.KIND.body(record)
    assert "- softmax2d 2x3 f32, compile: ValueError: no graph" in text
    assert "- softmax2d 2x3 f32: ptx not measured: wrong: error" in text


def test_torch_compile_is_left_out_or_says_that_its_time_is_over(made: Any) -> None:
    row, calls = made(0.0, 0.0, 0.0, 0.0)
    assert "compiled" not in calls
    assert row["times"].keys() == {"ptx", "hip", "eager", "copy"}
    row, calls = made(0.0, 0.0, 0.0, 1e-3)
    assert "compiled" not in calls
    assert row["failed"] == {"compile": "TimeoutError: the time of the run was over before it was compiled"}
    row, calls = made(0.0, 0.0, 0.0, case=Case("local_response_norm", (2, 3, 4, 5), channels_last=True))
    assert "compiled" not in calls  # whose kernel would end the run
    assert row["failed"] == {"compile": "RuntimeError: torch's compiled kernel accesses memory that is not its own"}
    assert row["times"].keys() == {"ptx", "hip", "eager", "copy"}
    with pytest.raises(TimeoutError, match="not within 0 s"), limited(0.01):
        time.sleep(5)
    with limited(5.0):
        pass


def test_what_would_end_a_process_is_not_compiled_ahead(monkeypatch: Patch) -> None:
    done: list[str] = []
    cuda = SimpleNamespace(empty_cache=lambda: None, synchronize=lambda: done.append("waited"))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(ops_compiled, "make_row", lambda *_: SimpleNamespace(ours=lambda: done.append("ours")))
    monkeypatch.setattr(ops_compiled, "compiled", lambda *_: lambda: done.append("compiled"))
    monkeypatch.setenv("PTXRT_LANGUAGE", "ptx")  # and undone afterwards
    for channels_last in (False, True):
        ops_compiled._ahead(["ptx"], Case("local_response_norm", (2, 3, 4, 5), channels_last=channels_last))
    assert done == ["ours", "compiled", "waited", "ours", "waited"]


def test_where_torch_is_faster_the_slowest_comes_first() -> None:
    slow, hip = row(ptx=60.0, hip=70.0, eager=100.0, compile=50.0), row(ptx=40.0, hip=65.0, eager=50.0)
    assert ops_bounds.behind([row(**GOOD), slow, hip, row(ptx=51.4, eager=50.0)]) == [
        "softmax2d 2x3 f32: hip 1.30 x torch eager: 65.0 us, torch 50.0, the floor 50.0",
        "softmax2d 2x3 f32: ptx 1.20 x the better of torch: 60.0 us, torch 50.0, the floor 50.0",
    ]
    alone = row(ptx=60.0, eager=50.0) | {"failed": {"compile": "wrong"}}  # which is held to eager, as bounds are
    assert len(ops_bounds.behind([alone])) == 1


@pytest.mark.parametrize("seed", range(3))
def test_cases_that_are_drawn_are_of_all_kinds_and_not_too_large(seed: int) -> None:
    found = list(islice(drawn(seed), 300))
    assert found == list(islice(drawn(seed), 300))
    assert {case.op for case in found} == {case.op for case in cases()}
    assert {case.dtype for case in found} == {"f32", "f16", "bf16", "f64"}
    assert {case.mode for case in found} == {"bilinear", "bicubic"}
    families = {case.family for case in found if case.channels_last}
    assert families == {"group_norm", "softmax2d", "batch_norm", "local_response_norm"}
    assert any(case.channels_last for case in found)
    for case in found:
        assert 1 << 14 <= np.prod(case.shape) <= 1 << 24
        assert np.prod(case.result_shape) <= 1 << 24
        assert case.family != "group_norm" or case.shape[1] % case.groups == 0
        assert not (case.channels_last and case.family == "batch_norm" and not case.training)


def test_random_cases_are_measured_and_not_stored(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    asked: list[Any] = []

    def measured(torch: Any, device: Any, chosen: Any, *rest: Any) -> dict[str, Any]:
        asked.append(chosen)
        return {"rows": [row(ptx=60.0, hip=70.0, eager=50.0)]}

    sim = ptxrt.Device("sim:0")
    monkeypatch.setenv("PTXRT_LANGUAGE", "hip")
    monkeypatch.setattr(ptxrt, "Device", lambda _: sim)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr(ops, "measure", measured)
    some = ["ops", "--drawn", "5", "--no-compile", "--out", str(tmp_path)]
    assert bench.main([*some, "--seed", "3"]) == 0
    assert asked == [list(islice(drawn(3), 5))]
    *_, head, first, second = capsys.readouterr().out.splitlines()
    assert (head, first.split(":")[0], "torch eager" in second) == ("Slower than torch:", "softmax2d 2x3 f32", False)
    assert not list(tmp_path.iterdir())
    for more in (["--only", "softmax2d"], ["--types", "f16"], ["--base", str(ROOT)]):
        assert bench.main([*some, *more]) == 2
        assert "--drawn is of all ops and types" in capsys.readouterr().err


def test_its_options_reach_what_they_are_for(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    sim = ptxrt.Device("sim:0")
    asked: list[Any] = []

    def measured(torch: Any, device: Any, chosen: Any, languages: Any, runs: int, deadline: float) -> dict[str, Any]:
        asked.append((len(chosen), {case.dtype for case in chosen}, languages, runs, deadline > 0))
        rows = [row(**{**GOOD, "ptx": 70.0})]
        return {"languages": languages, "runs": runs, "copy_bytes_per_second": 1e9, "launch_us": 2.0, "rows": rows}

    def ahead(chosen: Any, languages: Any, seconds: float) -> int:
        asked.append(seconds)
        return 7

    monkeypatch.setenv("PTXRT_LANGUAGE", "hip")
    monkeypatch.setattr(ptxrt, "Device", lambda _: sim)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr(ops, "measure", measured)
    monkeypatch.setattr(ops, "compile_ahead", ahead)
    some = ["ops", "--only", "softmax2d", "--types", "f16", "bf16", "--out", str(tmp_path)]
    assert bench.main([*some, "--languages", "hip", "--runs", "3", "--no-compile"]) == 0
    assert bench.main([*some, "--seconds", "100", "--check"]) == 1
    count = len(list(cases("softmax2d", ["f16", "bf16"])))
    assert asked == [
        (count, {"f16", "bf16"}, ["hip"], 3, False),
        pytest.approx(45.0),
        (count, {"f16", "bf16"}, ["ptx", "hip"], 30, True),
    ]
    out = capsys.readouterr().out
    assert f"7 of {count} rows compiled ahead" in out
    assert "missed: softmax2d 2x3 f32: ptx 1.40 x the floor, expected at most 1.3" in out
    assert os.environ["PTXRT_LANGUAGE"] == "hip"
    assert {path.stem for path in tmp_path.iterdir()} == {"ops-ptx-machine", "ops-hip-ptx-machine"}
    assert (tmp_path / "ops-ptx-machine.md").read_text().startswith("# Time of the ops in PTX and HIP on PTX machine")


def test_a_row_that_cannot_be_made_is_its_own_failure(made: Any, monkeypatch: Patch) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("no such kernel")

    made(0.0, 0.0, 0.0)
    monkeypatch.setattr(ops, "make_row", none)
    (row,) = ops.measure(None, ptxrt.Device("sim:0"), [SMALL], ["ptx"], 1, 0.0)["rows"]
    assert (row["failed"], row["floor"]) == ({"row": "RuntimeError: no such kernel"}, None)
    assert ops_bounds.missed([row], ["ptx"]) == [
        "softmax2d 1x9x9x9 f32: ptx not measured: RuntimeError: no such kernel"
    ]


def test_the_digests_are_of_both_languages_and_of_modes() -> None:
    found = keys(Case("grid_sample_backward", (1, 1, 2, 2), "f16"), ["ptx", "hip"])
    assert {"grid_sample.ptx f16", "grid_sample_modes.hip f16", "ptxrt/ops/_grid_sample.py"} <= {*found}
    every = [key for case in cases(types=["f32"]) for key in keys(case, ["ptx", "hip"])]
    assert ABSENT not in measured.digests([*found, *every]).values()


# Another checkout -----------------------------------------------------------------------------------------------------

SMALL = Case("softmax2d", (1, 9, 9, 9))


def test_it_compares_with_another_checkout_in_turns(capfd: Capture, monkeypatch: Patch) -> None:
    asked: Any = []
    ask = ops_base._Worker._ask
    monkeypatch.setattr(ops_base._Worker, "_ask", lambda self, what: asked.append((self, what)) or ask(self, what))
    monkeypatch.setattr(ops_base, "cases", lambda *_: [SMALL])
    assert bench.main(["ops", "--base", str(ROOT), "--device", "sim:0", "--runs", "4"]) == 0
    lines = [line.split("|")[1:-1] for line in capfd.readouterr().out.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in cells] for cells in lines[2:]]
    assert [row[0] for row in rows] == ["softmax2d", *HOST]
    number = re.compile(r"\d+\.\d+")
    assert all(number.fullmatch(cell) for row in rows for cell in row[2:6])
    base, new = asked[0][0], asked[2][0]
    assert base is not new
    assert [what for _, what in asked[:4]] == [asked[0][1], {"time": 3}] * 2
    assert [worker is new for worker, _ in asked[4:12]] == [True, False, False, True] * 2


def test_a_row_that_the_base_cannot_run_is_no_failure_but_one_of_ours_is(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(ops_base, "cases", lambda *_: [SMALL])
    monkeypatch.setattr(ops_base, "HOST", ())
    prepare = ops_base._Worker.prepare

    def run_where(number: int) -> Any:
        workers = []

        def answer(self: Any, asked: Any) -> Any:
            workers.append(self)
            return "no f16 here" if len(workers) - 1 == number else prepare(self, asked)

        monkeypatch.setattr(ops_base._Worker, "prepare", answer)
        return bench.main(["ops", "--base", str(ROOT), "--device", "sim:0", "--runs", "1", "--check"])

    assert run_where(0) == 0
    assert "not in the base: no f16 here" in capsys.readouterr().out
    assert run_where(1) == 2
    assert "no f16 here" in capsys.readouterr().err


def test_what_a_worker_raises_is_its_answer() -> None:
    with ops_base._Worker(ROOT, "sim:0", "ptx") as worker:
        assert worker.prepare({"host": "frob"}) == "KeyError: 'ptxrt frob'"
        with pytest.raises(Failed, match="IndexError"):
            worker.time(1)
        assert worker.prepare({"host": "Softmax2dPlan.select"}) == ""
        worker._process.kill()
        with pytest.raises(Failed, match="ended with"):
            worker.time(1)


def test_a_folder_without_ptxrt_is_refused(tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        bench.main(["ops", "--base", str(tmp_path)])
    assert "expected a checkout of ptxrt" in capsys.readouterr().err
    (tmp_path / "ptxrt").mkdir()
    (tmp_path / "ptxrt" / "__init__.py").write_text("raise SystemExit(3)")
    assert bench.main(["ops", "--base", str(tmp_path), "--device", "sim:0"]) == 2
    assert "ended with 3" in capsys.readouterr().err


def test_a_worker_finds_what_pythonpath_has(tmp_path: Path, monkeypatch: Patch) -> None:
    for name, text in {
        "ptxrt/__init__.py": "import only_there",
        "elsewhere/only_there.py": "raise SystemExit(7)",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "elsewhere"))
    with pytest.raises(Failed, match="ended with 7"), ops_base._Worker(tmp_path, "sim:0", "ptx"):
        pass


def test_inputs_have_the_element_type_of_the_case() -> None:
    for case in cases():
        for name, array in inputs(case.small()).items():
            single = name in PARAMETERS and case.dtype in ("f16", "bf16")
            assert array.dtype == BY_NAME["f32" if single else case.dtype].numpy, f"{case.op} {case}"


def test_another_ptxrt_than_the_folders_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "ptxrt" / "__init__.py"
    path.parent.mkdir()
    answer = {"ptxrt": "/elsewhere/ptxrt/__init__.py"}
    monkeypatch.setattr(ops_base._Worker, "_answer", lambda _: answer)
    with pytest.raises(Failed, match="is no checkout of ptxrt"), ops_base._Worker(tmp_path, "sim:0", "ptx"):
        pass
    answer["ptxrt"] = str(path)
    with ops_base._Worker(tmp_path, "sim:0", "ptx"):
        pass


@pytest.mark.parametrize(
    ("new", "slower"),
    [
        ([102.0, 102.0, 102.0], False),
        ([102.1, 102.1, 102.1], True),
        ([102.1, 101.0, 103.0], False),  # within the spread
        ([90.0, 90.0, 90.0], False),
    ],
)
def test_slower_is_more_than_the_share_and_the_spread(new: Any, slower: bool) -> None:
    row = Comparison("a", "f32", [100.0] * 3, new, share=0.02)
    assert row.slower is slower
    assert ("SLOWER" in row.cells()) is slower
    assert row.ratio == pytest.approx(np.median(new) / 100)
    assert not Comparison("a", "f16", [100.0] * 3, [500.0] * 3).slower
    assert not Comparison("a", "f32", [], [500.0] * 3, share=0.02, why="?").slower


@pytest.mark.parametrize(("more", "slower"), [(0.09, False), (0.11, True)])
def test_a_launch_has_a_bound_in_microseconds(more: float, slower: bool) -> None:
    assert Comparison("a", "host", [5.0] * 3, [5.0 + more] * 3, share=0.0, more=0.1).slower is slower


def test_check_fails_where_this_checkout_is_slower(monkeypatch: Patch) -> None:
    rows = [Comparison("a", "f32", [100.0] * 3, [200.0] * 3, share=0.02)]
    monkeypatch.setattr(ops, "compare", lambda *_: rows)
    assert bench.main(["ops", "--base", str(ROOT), "--check"]) == 1
    assert bench.main(["ops", "--base", str(ROOT)]) == 0


def test_which_rows_are_bounded_and_how() -> None:
    rows = {(name, case): bound for name, case, _, _, bound in ops_base._rows("", TYPES, small=False)}
    assert rows["upsample_nearest2d", "8x256x64x64 f32 x2"] == (0.02, 0.0)
    assert rows["upsample_nearest2d", "8x256x64x64 f16 x2"] == (np.inf, 0.0)
    assert rows["Kernel.launch", "host"] == (0.0, 0.1)
    assert rows["GroupNormPlan.select", "host"] == (0.2, 0.0)
