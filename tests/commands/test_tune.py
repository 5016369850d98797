"""``ptxrt tune``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import Capture, Patch

from ptxrt import ops
from ptxrt.commands import tables
from ptxrt.commands.cli import main
from ptxrt.ops import tuning
from ptxrt.ops.framework import forget_plans, tuned
from ptxrt.store.store import _STORES

ON_SIM = ["--device", "sim:0"]


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """The user's table, in a folder of its own; 512 threads are always the fastest."""
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", "0")
    monkeypatch.setenv("PTXRT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(tuned, "SHIPPED", tmp_path / "shipped")
    monkeypatch.setattr(
        tuning, "events_of", lambda device: lambda plan, run: 10.0 if plan.config.threads == 512 else 20.0
    )
    forget_plans()
    yield tmp_path / "cache" / "tuned.json"
    forget_plans()


def test_shapes_are_tuned_and_used_in_the_same_process(file: Path, capsys: Capture) -> None:
    problem = ops.Softmax2dDescriptor((2, 8, 6))
    assert ops.Softmax2dPlan.select("sim:0", problem).chosen_by == "heuristic"
    assert main(["tune", "softmax2d", "2x8x6", "2x9x5", *ON_SIM]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:5] == ["softmax2d", "f32", "contiguous", "ptx", "2x8x8/2"]
    assert lines[0][5:] == ["baseline", "threads=512", "10.0", "20.0"]
    assert lines[1][4] == "2x16x8/1"
    assert lines[2] == ["stored", "in", str(file)]
    assert ops.Softmax2dPlan.select("sim:0", problem).chosen_by == str(file)


@pytest.mark.parametrize(
    "arguments",
    [
        ["softmax2d", "2x8x7x6", "--dtype", "f16", *ON_SIM, "layout=channels-last"],
        ["softmax2d", "--dtype", "f16", "2x8x7x6", *ON_SIM, "layout=channels-last"],
        ["--dtype", "f16", "softmax2d", *ON_SIM, "2x8x7x6", "layout=channels-last"],
    ],
    ids=range(3),
)
def test_words_may_stand_behind_options(file: Path, arguments: list[str], monkeypatch: Patch) -> None:
    monkeypatch.setattr(tuning, "events_of", lambda device: lambda plan, run: 10.0)
    assert main(["tune", *arguments]) == 0
    (choice,) = tuned.read(file).values()
    assert choice.key[2:5] == ("softmax2d", "f16", "channels-last")


def test_an_option_that_there_is_not_is_refused_beside_words(capsys: Capture) -> None:
    for command in (["tune", "softmax2d", "--frob", "2x3"], ["kernels", "softmax2d", "2x3"]):
        with pytest.raises(SystemExit) as left:
            main(command)
        assert left.value.code == 2
        assert "unrecognized arguments: " in capsys.readouterr().err


def test_too_little_memory_exits_with_2(capsys: Capture, monkeypatch: Patch) -> None:
    def run_out(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(tuning, "tune", run_out)
    assert main(["tune", "softmax2d", "2x3", *ON_SIM]) == 2
    assert capsys.readouterr().err == "ptxrt: this machine has not enough memory\n"


def test_a_folder_that_others_may_write_to_has_no_table(file: Path, capsys: Capture) -> None:
    assert main(["tune", "softmax2d", "2x8x6", *ON_SIM]) == 0
    file.parent.chmod(0o777)
    forget_plans()
    _STORES.clear()
    assert ops.Softmax2dPlan.select("sim:0", ops.Softmax2dDescriptor((2, 8, 6))).chosen_by == "heuristic"
    assert main(["tune", "--list"]) == 1
    assert main(["tune", "softmax2d", "2x8x6", *ON_SIM]) == 2
    assert "--out: expected a file" in capsys.readouterr().err


def test_a_file_of_problems_another_table_and_json(file: Path, tmp_path: Path, capsys: Capture) -> None:
    problems = [
        {"op": "softmax2d", "shape": [1, 3, 4, 5], "layout": "channels-last", "dtype": "f64"},
        {"op": "softmax2d_backward", "shape": [1, 3, 4]},
    ]
    (tmp_path / "problems.json").write_text(json.dumps(problems))
    out = tmp_path / "new" / "table.json"
    arguments = ["--file", str(tmp_path / "problems.json"), "--out", str(out), "--dtype", "f16", "--json"]
    assert main(["tune", *arguments, *ON_SIM]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(row["key"]["dtype"], row["key"]["layout"]) for row in found] == [
        ("f64", "channels-last"),
        ("f16", "contiguous"),
    ]
    assert {choice.key.op for choice in tuned.read(out).values()} == {"softmax2d", "softmax2d_backward"}
    assert not file.exists()
    assert main(["tune", "--list", "--out", str(out), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert sorted(row["key"]["dtype"] for row in listed) == ["f16", "f64"]
    assert {row["file"] for row in listed} == {str(out)}


def test_what_is_stored_is_listed_in_the_terminals_width(file: Path, capsys: Capture, monkeypatch: Patch) -> None:
    assert main(["tune", "--list"]) == 1
    assert capsys.readouterr().out == "nothing is stored\n"
    assert main(["tune", "softmax2d", "2x8x6", *ON_SIM]) == 0
    stale = [
        tuned.Choice(
            choice.key._replace(device="NVIDIA H200"), choice.variant, choice.config, ("tiled",), {}, choice.measured
        )
        for choice in tuned.read(file).values()
    ]
    tuned.update(tuned.shipped_file("NVIDIA H200"), stale)
    capsys.readouterr()
    assert main(["tune", "--list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[0] == "device"
    assert ["yes  " in row for row in rows] == [True, False]
    assert "no, the kernels are others now" in rows[1]
    monkeypatch.setattr(tables, "columns", lambda: 100)
    assert main(["tune", "--list"]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["group_nrm", "2x4"], "Did you mean group_norm"), (["softmax2d"], "SHAPE"), ([], "--file"),
     (["softmax2d", "2x"], "SHAPE"), (["softmax2d", "2x3", "2"], "2: softmax2d"),
     (["softmax2d", "2x3", "size=5"], "'size'"), (["group_norm", "2x4", "groups=3"], "divisor"),
     (["softmax2d", "2x3", "--dtype", "u8"], "2x3: softmax2d"), (["softmax2d", "2x3", "--device", "sm:0"], "sim:0"),
     (["softmax2d", "2x3", "--device", "sim:99"], "sim:99"), (["softmax2d", "2x3", "--file", "x"], "both"),
     (["softmax2d", "2x3", "op=rms_norm"], "op: expected OP and SHAPE as words"),
     (["softmax2d", "2x3", "shape=[4,8]"], "shape: expected OP and SHAPE as words"),
     (["group_norm", "2x4", "groups=2", "groups=4"], "each field once, given groups=2 and groups=4"),
     (["--list", "softmax2d"], "--list: expected neither"), (["--list", "--file", "x"], "--list: expected neither"),
     (["softmax2d", "2x3", "--rounds", "0"], "rounds"), (["--file", "missing.json"], "missing.json")],
    ids=str,
)  # fmt: skip
def test_what_is_wrong_is_said_and_exit_code_2(file: Path, capsys: Capture, arguments: list[str], words: str) -> None:
    device = [] if "--device" in arguments else ON_SIM
    assert main(["tune", *arguments, *device]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("ptxrt: ")
    assert words in said.err
    assert said.out == ""
    assert not file.exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [("{", "JSON list"), ('{"op": "softmax2d"}', "JSON list"), ("[]", "JSON list"), ("[3]", "problem 1 of"),
     ('[{"op": "softmax2d", "shape": [2, 3]}, {"op": "softmax2d"}]', "problem 2 of")],
)  # fmt: skip
def test_a_file_that_holds_no_problems_is_exit_code_2_before_anything_runs(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, content: str, words: str
) -> None:
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: pytest.fail("has run"))
    (tmp_path / "problems.json").write_text(content)
    assert main(["tune", "--file", str(tmp_path / "problems.json"), *ON_SIM]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("out", ["problems.json/table.json", "problems.json"])
def test_a_table_that_cannot_be_written_is_exit_code_2_before_anything_runs(
    tmp_path: Path, capsys: Capture, monkeypatch: Patch, out: str
) -> None:
    monkeypatch.setattr(tuning, "tune", lambda *_, **__: pytest.fail("has run"))
    (tmp_path / "problems.json").write_text("[]")
    assert main(["tune", "softmax2d", "2x3", "--out", str(tmp_path / out), *ON_SIM]) == 2
    assert str(tmp_path / out) in capsys.readouterr().err


def test_without_a_cache_a_table_has_to_be_named(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", "1")
    assert main(["tune", "softmax2d", "2x3", *ON_SIM]) == 2
    assert "--out" in capsys.readouterr().err


def test_a_wrong_result_is_exit_code_1_and_what_was_measured_before_stays(
    file: Path, capsys: Capture, monkeypatch: Patch
) -> None:
    right = ops.references.softmax2d

    def wrong(x: Any) -> Any:
        return right(x) + (0 if x.shape == (2, 8, 6) else 1)

    monkeypatch.setattr(ops.references, "softmax2d", wrong)
    assert main(["tune", "softmax2d", "2x8x6", "2x9x5", *ON_SIM]) == 1
    assert "tiled with ThreadsConfig(threads=128)" in capsys.readouterr().err
    assert [choice.key.problem for choice in tuned.read(file).values()] == ["2x8x8/2"]
