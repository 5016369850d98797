"""Cases of the kernels in HIP, and how their very texts run on the host, with waves of 32 and of 64.

No kernel depends on how wide a wave is, nor on an order of threads. Each test_waves_*.py has the cases of some
families; test_waves.py has what is asked of all of them, and tests of the waves themselves. test_machine_code.py runs
what AMD's compiler makes of the texts.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import waves
from helpers import ELEMENT_NAMES, EVERYTHING, REQUIRED, Patch, covering
from op_testing import wish
from tolerances import bar, relative_error

import ptxrt
from ptxrt import ops
from ptxrt.ops.framework import blocks_in_hip, read_kernel, rows, tickets

if waves.compiler() is None:
    if "hip" in REQUIRED:
        pytest.fail("PTXRT_REQUIRE=hip, but there is no C++ compiler")
    pytest.skip("no C++ compiler", allow_module_level=True)

RUNS = list(itertools.product((32, 64), waves.SCHEDULES))
HIP = [spec for spec in ops.kernels() if spec.language == "hip"]
TEXTS = {(spec.family, spec.dtype): read_kernel(spec.family, language="hip", dtype=spec.dtype).text for spec in HIP}

# Whose machine code does not run: it takes integer atomics, reads of one lane's register, or minutes to compile.
NO_MACHINE_CODE = ("grid_sample_modes", "grid_sample_tiled_backward")

# Cases ----------------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A problem, what its plan is given, and what each output should be, with the bar of its error."""

    plan: Any
    problem: Any
    given: dict[str, Any]
    want: dict[str, tuple[Any, float]]
    counted: int = 1 << 32  # what _softmax2d._COUNTED is
    variant: str = "baseline"
    config: Any = None
    seen: Callable[[Any], Any] = np.asarray  # what of each output is compared
    of_hardware: bool = False  # whether powers are the hardware's own, of whose bits sim has NVIDIA's


Row = tuple[Callable[..., Case], tuple[Any, ...]]
"""What a case is made by, and of."""

Cases = dict[str, list[Row]]
"""Those of each family of kernels."""


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(shape)).normal(0.5, 1.5, shape).astype(dtype)


def given(**arrays: Any) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if array is not None}


def within(op: str, dtype: str = "f32", /, **results: Any) -> dict[str, tuple[Any, float]]:
    return {name: (want, bar(op, dtype, want)) for name, want in results.items() if want is not None}


def others(family: str) -> list[str]:
    """Return a family's element types but f32."""
    return sorted({spec.dtype for spec in HIP if spec.family == family} - {"f32"})


def type_of(arguments: tuple[Any, ...]) -> str:
    """Return the element type that a case of these arguments has, without making it."""
    return next((each for each in arguments if each in ELEMENT_NAMES), "f32")


# Which of them run, of each file for itself ---------------------------------------------------------------------------


def facts(row: tuple[Any, ...]) -> Iterator[Any]:
    """Each case in f32, of rows of warps in one of both norms; each kind of case in a type of each other size."""
    make, arguments, *target = row
    name = type_of(arguments)
    if name != "f32":
        yield make, ptxrt.dtypes.BY_NAME[name].size
    elif make.__name__ == "held_warps":  # whose file imports this one
        yield make, *arguments[1:]
        yield make, arguments[0], *target
    else:
        yield row


def entries(row: tuple[Any, ...]) -> Iterator[Any]:
    """As `facts`, but in f32 each kind of case and each entry."""
    make, arguments, *_ = row
    if make.__name__ == "held_warps" or type_of(arguments) != "f32":
        yield from facts(row)
    else:
        yield make
        yield from (step.kernel for step in planned(make(*arguments)).schedule.launches)


def as_machine_code(cases: Cases) -> list[Row]:
    """Return what test_machine_code.py runs; of the types of 16 bits the one that has a target of its own."""
    there = (case for family, rows in cases.items() if not family.startswith(NO_MACHINE_CODE) for case in rows)
    return covering(sorted(there, key=lambda case: type_of(case[1]) == "f16"), entries)


def each_case(cases: Cases, machine_code: list[Row]) -> pytest.MarkDecorator:
    """Return the mark of a test that runs texts; of what runs as machine code it has each kind of case."""

    def as_text(row: Row) -> Iterator[Any]:
        make, arguments = row
        if type_of(arguments) == "f32" and row in machine_code:
            yield make
        else:
            yield from facts(row)

    chosen = covering((case for rows in cases.values() for case in rows), as_text)
    return pytest.mark.parametrize(("make", "arguments"), chosen, ids=lambda v: getattr(v, "__name__", str(v)))


# Running them ---------------------------------------------------------------------------------------------------------


def few_blocks(count: int, threads: int) -> int:
    """Return two blocks at most, for a small problem."""
    return min(blocks_in_hip(count, threads), 2) if count < 1 << 20 else blocks_in_hip(count, threads)


@pytest.fixture(autouse=True)
def short_grids(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys.modules["ptxrt.ops._group_norm"], "_GRID_Y", 2)
    monkeypatch.setattr(tickets, "_BLOCKS", 3)
    for name in (
        "batch_norm",
        "batch_norm_exact",
        "group_norm",
        "softmax2d",
        "upsample_nearest2d",
    ):
        monkeypatch.setattr(sys.modules[f"ptxrt.ops._{name}"], "blocks_in_hip", few_blocks)
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "_GRID_YZ", 2)
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "blocks_in_hip", lambda *_: 3)
    monkeypatch.setattr(rows, "_SLICE", 2)
    monkeypatch.setattr(rows, "blocks_in_hip", few_blocks)
    for name in ("modes", "modes_last"):
        monkeypatch.setattr(sys.modules[f"ptxrt.ops._grid_sample_{name}"], "_GRID_YZ", 2)


def planned(case: Case) -> waves.AnyPlan:
    last = case.plan.op.startswith("group_norm") and case.problem.channels_last
    variant = "channels_last" if last and case.variant == "baseline" else case.variant
    with Patch.context() as patch:
        patch.setattr(sys.modules["ptxrt.ops._softmax2d"], "_COUNTED", case.counted)
        plan: waves.AnyPlan = case.plan.select("sim:0", case.problem, wish(f"hip/{variant}", config=case.config))
    assert plan.variant.language == "hip"
    return plan


def check(case: Case, wave: int, schedule: str, text: str | None = None) -> dict[str, Any]:
    """Run a case, or another text in the kernels' place, and hold its results to their bars; return them."""
    got = waves.run(planned(case), case.given, wave, schedule, text)
    assert set(got) == set(case.want), f"{sorted(got)} instead of {sorted(case.want)}"
    for name, (want, limit) in case.want.items():
        error = relative_error(case.seen(got[name]), want)
        assert error <= limit, f"{name}, waves of {wave}, {schedule}: error {error:.2e} above {limit:.2e}"
    return got


def check_every_run(make: Callable[..., Case], arguments: tuple[Any, ...]) -> None:
    """Check a case in waves of each width, and in each order of threads."""
    case = make(*arguments)
    # Each width and each order, not each with each; of other types each width.
    few = RUNS[::2] if case.problem.dtype.name == "f32" else (RUNS[0], RUNS[-1])
    results = [check(case, wave, schedule) for wave, schedule in (RUNS if EVERYTHING else few)]
    if planned(case).precision_guarantee.deterministic:
        for other in results[1:]:
            for name, values in results[0].items():
                assert other[name].tobytes() == values.tobytes(), name
