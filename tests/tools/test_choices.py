"""python tools/choices.py: the problems that it draws, and what it prints."""

from __future__ import annotations

from itertools import islice
from typing import Any

import choices
import pytest
from helpers import Capture, Patch

from ptxrt import Device, PlanPreference, Unsupported, ops
from ptxrt.ops import tuning


@pytest.mark.parametrize("language", ["ptx", "hip"])
@pytest.mark.parametrize("seed", range(3))
def test_each_problem_that_is_drawn_has_a_plan(language: str, seed: int) -> None:
    drawn = list(islice(choices.problems(seed), 150))
    for words in drawn:
        tuning.heuristic("sim:0", tuning.problem_of(words), language)
    assert {words["op"] for words in drawn} == {plan.op for plan in ops.plans()}


def test_of_one_op_alone_if_that_is_asked_for() -> None:
    assert {words["op"] for words in islice(choices.problems(1, ["softmax2d"]), 20)} == {"softmax2d"}


def _times(us: dict[str, float]) -> Any:
    """Return a timer that knows what each plan takes, by what runs it."""

    def timer(device: Device, run: Any) -> Any:
        run()
        return lambda runs: [us[_plan_of(run).variant.name]] * runs

    return timer


def _plan_of(run: Any) -> Any:
    (plan,) = (cell.cell_contents for cell in run.__closure__ if hasattr(cell.cell_contents, "variant"))
    return plan


def test_what_is_selected_and_slow_is_printed_with_the_fastest(monkeypatch: Patch, capsys: Capture) -> None:
    words = {"op": "upsample_nearest2d", "shape": [1, 2, 8, 8], "dtype": "f32", "out_h": 16, "out_w": 16}
    monkeypatch.setattr(choices, "problems", lambda seed, only: iter([words]))
    us = {"short": 7.0, "narrow": 5.0, "banded": 30.0, "tables": 6.0, "baseline": 40.0}
    monkeypatch.setattr(choices, "timer", _times(us))
    monkeypatch.setattr(choices, "launch_time", lambda device, runs: 3.4)
    monkeypatch.setattr(choices, "copy_speed", lambda device, runs: 4.2e12)
    assert choices.main(["--device", "sim:0"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "1 problems. Slower than another variant:"
    assert said[1].startswith("1.40 x the fastest, 2.1 x the floor: upsample_nearest2d [1, 2, 8, 8] f32 16 16 | short")
    assert said[1].endswith("short 7.0 us, narrow 5.0")
    assert said[2:] == ["Longest beside the floor:", said[1]]
    us["short"] = 5.2
    choices.main(["--device", "sim:0"])
    assert capsys.readouterr().out.splitlines()[1] == "none"


def test_no_such_device(capsys: Capture) -> None:
    assert choices.main(["--device", "sim:99"]) == 2
    assert "sim:99" in capsys.readouterr().err


def test_variants_that_do_not_run_the_problem_are_left_out() -> None:
    problem = tuning.problem_of({"op": "layer_norm", "shape": [2, 31], "dtype": "f64", "normalized_shape": [31]})
    first = tuning.heuristic("sim:0", problem, "ptx")
    assert [plan.variant.name for plan in choices._plans(first)] == ["baseline"]
    with pytest.raises(Unsupported):
        first.select(first.device, problem, PlanPreference(language="ptx", variant="held_warps"))
