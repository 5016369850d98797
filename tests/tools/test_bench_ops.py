"""python tools/bench.py ops: what it says without a GPU, its table, and the comparison with another checkout on sim."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import bench
import numpy as np
import pytest
from benchmarks import ops, ops_base
from benchmarks.ops_base import Comparison, Failed
from benchmarks.ops_calls import call, inputs
from benchmarks.ops_cases import Case, cases
from benchmarks.ops_worker import HOST
from helpers import ROOT, Capture, Patch

import ptxrt


def test_the_table_compares_with_the_floor_and_with_torch() -> None:
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


def test_it_says_what_it_needs(monkeypatch: Patch, capsys: Capture, tmp_path: Path) -> None:
    import ptxrt

    def none(name: str) -> ptxrt.Device:
        raise ptxrt.BackendUnavailable(op="Device", argument=name, expected="a GPU", given="none")

    monkeypatch.setattr(ptxrt, "Device", none)
    assert bench.main(["ops", "--out", str(tmp_path)]) == 2
    assert "needs an NVIDIA GPU and torch" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("language", "name"), [("ptx", "ops-nv*.json"), ("hip", "ops-hip-*.json")])
def test_it_stores_each_row(cuda: ptxrt.Device, tmp_path: Path, monkeypatch: Patch, language: str, name: str) -> None:
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


@pytest.mark.parametrize("case", [case for case in cases() if case.dtype in ("f32", "u8")], ids=lambda c: f"{c.op} {c}")
def test_every_case_runs_on_sim_at_a_small_size(case: Case, sim: ptxrt.Device) -> None:
    small = case.small()
    arrays = {name: ptxrt.to_device(array, sim) for name, array in inputs(small).items()}
    result: Any = call(small, arrays)()
    first = result[0] if isinstance(result, tuple) else result
    assert first.shape[:2] == small.shape[:2]


def test_the_cases_are_different_by_their_names() -> None:
    assert max(Counter((case.op, str(case)) for case in cases()).values()) == 1
    assert {case.op for case in cases("softmax2d")} == {"softmax2d", "softmax2d_backward"}
    assert str(Case("group_norm", (2, 32, 8, 8), groups=8)) == "2x32x8x8 f32 G8"
    assert str(Case("batch_norm_backward", (4, 2, 7, 7))) == "4x2x7x7 f32 train"
    assert str(Case("grid_sample", (4, 3, 9, 9), "f64", size=(7, 5))) == "4x3x9x9 f64 to 7x5"


# Another checkout -----------------------------------------------------------------------------------------------------

SMALL = Case("softmax2d", (1, 9, 9, 9))


def test_it_compares_with_another_checkout_in_turns(capfd: Capture, monkeypatch: Patch) -> None:
    asked: Any = []
    ask = ops_base._Worker._ask
    monkeypatch.setattr(ops_base._Worker, "_ask", lambda self, what: asked.append((self, what)) or ask(self, what))
    monkeypatch.setattr(ops_base, "cases", lambda only: [SMALL])
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
    monkeypatch.setattr(ops_base, "cases", lambda only: [SMALL])
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


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case.op} {case}")
def test_inputs_have_the_element_type_of_the_case(case: Any) -> None:
    dtypes = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "u8": np.uint8}
    assert {array.dtype for array in inputs(case.small()).values()} == {np.dtype(dtypes[case.dtype])}


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
    rows = {(name, case): bound for name, case, _, _, bound in ops_base._rows("", small=False)}
    assert rows["upsample_nearest2d", "8x256x64x64 f32 x2"] == (0.02, 0.0)
    assert rows["upsample_nearest2d", "8x256x64x64 f16 x2"] == (np.inf, 0.0)
    assert rows["Kernel.launch", "host"] == (0.0, 0.1)
    assert rows["GroupNormPlan.select", "host"] == (0.2, 0.0)
