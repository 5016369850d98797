"""tools/bench.py cold: its rows, what is stored, its bounds; on sim, and on CUDA where there is a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench
import pytest
from benchmarks import cold
from benchmarks.cold import BASE, COLD, WARM, Row
from helpers import Capture, Patch

import ptxrt
from ptxrt import ops


def stored(folder: Path) -> Any:
    (file,) = folder.glob("*.json")
    return json.loads(file.read_text())


def test_processes_run_on_sim_and_their_times_are_stored(tmp_path: Path, capsys: Capture) -> None:
    assert bench.main(["cold", "--device", "sim:0", "--runs", "1", "--out", str(tmp_path)]) == 0
    record = stored(tmp_path)
    assert (record["kind"], record["failed"], set(record["rows"])) == ("cold", {}, {"NumPy alone", WARM, COLD})
    times = {name: row["runs_ms"] for name, row in record["rows"].items()}
    assert all(len(values) == 1 and values[0] > 10 for values in times.values())
    out = capsys.readouterr().out
    assert f"| {WARM} " in out
    assert out.count("not measured") == len(cold.BOUNDS)
    assert "| NumPy alone " in (tmp_path / "cold-ptx-machine.md").read_text()


def test_rows_take_turns_and_the_first_turn_is_not_counted() -> None:
    log: list[str] = []

    def timed(row: Row) -> float:
        log.append(row.way)
        return float(len(log))

    times, failed = cold.measure({name: Row(name) for name in "abc"}, timed, 3)
    assert failed == {}
    turns = [log[i : i + 3] for i in range(0, len(log), 3)]
    assert turns == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
    assert times == {"a": [6.0, 8.0, 10.0], "b": [4.0, 9.0, 11.0], "c": [5.0, 7.0, 12.0]}


def test_a_row_whose_process_fails_or_is_wrong_is_told_and_the_others_run(tmp_path: Path) -> None:
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps({"device": "sim:99", "shape": (1, 4, 8), "groups": 2}))
    rows = {"broken": Row("ptxrt"), "good": Row("numpy")}
    times, failed = cold.measure(rows, lambda row: cold.cold_ms(row, problem, tmp_path), 1)
    assert list(times) == ["good"]
    assert failed["broken"].startswith("ptxrt.errors.InvalidArgument: Device: name")


def test_a_wrong_result_is_no_time(tmp_path: Path, monkeypatch: Patch) -> None:
    problem = tmp_path / "problem.json"
    problem.write_text(json.dumps({"device": "sim:0", "shape": (1, 4, 8), "groups": 2}))
    monkeypatch.setattr(cold, "_MOST_ERROR", 0.0)
    with pytest.raises(ValueError, match="wrong by"):
        cold.cold_ms(Row("numpy"), problem, tmp_path)


def test_the_warm_store_is_one_folder_and_the_cold_one_a_new_one_each_time(tmp_path: Path, monkeypatch: Patch) -> None:
    seen: list[Path] = []

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        assert command[-2] == "ptxrt"
        assert not {"PTXRT_CACHE_DISABLE", "PTXRT_CACHE_SHARED", "PYTHONDONTWRITEBYTECODE"} & env.keys()
        seen.append(Path(env["PTXRT_CACHE_DIR"]))
        return type("Done", (), {"returncode": 0, "stdout": '{"at": 0, "error": 0.0}', "stderr": ""})

    for variable in ("PTXRT_CACHE_DISABLE", "PTXRT_CACHE_SHARED", "PYTHONDONTWRITEBYTECODE"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setattr("subprocess.run", run)
    rows = cold.rows("sim", tmp_path)
    for name in (WARM, COLD, WARM, COLD):
        cold.cold_ms(rows[name], tmp_path / "problem.json", tmp_path)
    assert seen[0] == seen[2] == tmp_path / "store"
    assert len(set(seen)) == 3
    assert [list(path.iterdir()) for path in (seen[1], seen[3])] == [[], []]


@pytest.mark.parametrize(("times_as_long", "code"), [((1.14, 0.9, 0.9), 0), ((1.16, 0.9, 0.9), 1), ((1, 1.1, 0.9), 1)])
def test_check_holds_the_warm_store_to_the_other_rows(
    times_as_long: tuple[float, ...], code: int, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    times = {WARM: [300.0]} | {name: [300.0 / ratio] for name, ratio in zip(cold.BOUNDS, times_as_long, strict=True)}
    monkeypatch.setattr(cold, "measure", lambda *_: (times, {}))
    assert bench.main(["cold", "--device", "sim:0", "--check", "--out", str(tmp_path)]) == code
    assert capsys.readouterr().out.count("ABOVE the bound") == code


def test_check_fails_where_a_bound_cannot_be_told(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(cold, "measure", lambda *_: ({WARM: [1.0], BASE: [1.0]}, {"torch": "no torch"}))
    assert bench.main(["cold", "--device", "sim:0", "--check", "--out", str(tmp_path)]) == 1


def test_a_launch_by_hand_has_each_argument_in_its_width() -> None:
    problem = ops.GroupNormDescriptor((1, 2, 1 << 16), 1)
    split = ptxrt.PlanPreference(variant="split", language="ptx")
    launches = ops.GroupNormPlan.select("sim:0", problem, split).schedule.launches
    assert len(launches) == 2
    first, second = map(cold.by_hand, launches)
    assert first[:3] == [("", ("x", 0)), ("", ("workspace", 0)), ("uint32", 1)]
    assert second[:5] == [("", (name, 0)) for name in ("x", "out", "weight", "bias", "workspace")]
    assert second[9][0] == "float32"
    assert json.loads(json.dumps(second[0])) == ["", ["x", 0]]


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--runs", "x"]])
def test_numbers_that_are_none_are_refused(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        bench.main(["cold", *arguments])
    assert "whole number" in capsys.readouterr().err


def test_a_device_that_is_not_there_exits_with_2(tmp_path: Path, capsys: Capture) -> None:
    assert bench.main(["cold", "--device", "sim:99", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("bench.py: ")


@pytest.mark.cuda
def test_a_cubin_loaded_by_hand_gives_the_same_on_the_gpu(cuda: ptxrt.Device, tmp_path: Path) -> None:
    assert bench.main(["cold", "--device", str(cuda), "--runs", "1", "--out", str(tmp_path)]) == 0
    assert {WARM, COLD, BASE} <= set(stored(tmp_path)["rows"])
