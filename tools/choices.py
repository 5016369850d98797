"""Where what is chosen is slow: ``python tools/choices.py [--op OP ...] [--language ptx|hip] [--seconds N]``.

Draws problems as networks have them, and others beside these; times each by the variant that is selected where nothing
is tuned, and by each of the others with its own heuristic's config. What is selected and slower than another one by
more than noise is printed, the slowest first; then what takes longest beside its floor, the bytes of its operands at
the speed of a copy, and a launch. Results are not checked: tests and ``ptxrt tune`` do that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.ops import copy_speed, launch_time
from benchmarks.ops_calls import timer, words
from benchmarks.ops_cases import Case, drawn

import ptxrt
from ptxrt import PlanPreference, ops
from ptxrt.ops import tuning
from ptxrt.ops.framework import Plan
from ptxrt.ops.trials import Trial

__all__ = ["Outcome", "main", "problems"]

_NOISE, _NEAR = 1.06, 1.3
_SHOWN, _RUNS = 40, 9  # lines; of what the floor is made of


class _Unchecked(Trial):
    """A trial without the op's reference, which takes longer than all else."""

    def _reference(self, outputs: list[str]) -> dict[str, Any]:
        del outputs
        return {}


@dataclass(frozen=True)
class Outcome:
    """Microseconds of a problem by the variant that is selected, by the fastest, and of its floor."""

    words: dict[str, Any]
    selected: str
    us: float
    best: str
    best_us: float
    floor_us: float

    def __str__(self) -> str:
        problem = " ".join(str(value) for value in self.words.values())
        ratio = f"{self.us / self.best_us:.2f} x the fastest, {self.us / self.floor_us:.1f} x the floor"
        return f"{ratio}: {problem} | {self.selected} {self.us:.1f} us, {self.best} {self.best_us:.1f}"


def problems(seed: int, only: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Yield problems without end, as :func:`ptxrt.ops.tuning.problem_of` takes them, of some ops or of all."""
    return map(_problem, drawn(seed, only))


def _problem(case: Case) -> dict[str, Any]:
    """Return a case as the problem that it is."""
    given = {name: value for name, value in words(case).items() if value is not None}
    problem: dict[str, Any] = {"op": case.op, "shape": case.shape, "dtype": case.dtype} | given
    if case.op == "upsample_nearest2d_backward":
        problem["shape"] = case.result_shape
    if case.family == "grid_sample":
        problem["grid_shape"] = (case.shape[0], *case.size, len(case.size))
    if case.op == "batch_norm_backward" and case.training:
        problem["handed"] = True
    if case.channels_last:
        problem["layout"] = "channels-last"
    return problem


def _plans(first: Plan[Any, Any, Any]) -> list[Plan[Any, Any, Any]]:
    """Return what is selected, and a plan of each other variant of its language that runs the problem."""
    found = [first]
    for variant in first.variants:
        if variant.language != first.variant.language or variant.name == first.variant.name:
            continue
        wish = PlanPreference(language=variant.language, variant=variant.name, tuned=False)
        try:
            found.append(first.select(first.device, first.descriptor, wish))
        except ptxrt.Unsupported:
            continue
    return found


def _outcome(problem: dict[str, Any], device: ptxrt.Device, language: str, empty_us: float, speed: float) -> Outcome:
    """Time a problem; `empty_us` and `speed` are an empty kernel's microseconds, and a copy's bytes in each."""
    plans = _plans(tuning.heuristic(device, tuning.problem_of(problem), language))
    trial = _Unchecked(plans[0])
    timers = {plan.variant.name: timer(device, trial.run_of(plan)) for plan in plans}
    quick = {name: statistics.median(clock(2)) for name, clock in timers.items()}
    near = [name for name, us in quick.items() if us < _NEAR * min(quick.values())]
    selected = plans[0].variant.name
    times = {name: statistics.median(timers[name](5)) for name in {selected, *near}}
    best = min(times, key=times.__getitem__)
    moved = sum(operand.nbytes for operand in plans[0].operands if not operand.absent)
    return Outcome(problem, selected, times[selected], best, times[best], empty_us + moved / speed)


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0; 2 where there is no such device or op."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [plan.op for plan in ops.plans()]
    parser.add_argument("--op", action="append", choices=names, default=[], help="only this one, or these (all)")
    parser.add_argument("--language", choices=("ptx", "hip"), default="ptx", help="of the kernels (ptx)")
    parser.add_argument("--device", default="cuda:0", help="where to measure (cuda:0)")
    parser.add_argument("--seconds", type=float, default=60, help="how long to draw problems (60)")
    parser.add_argument("--seed", type=int, default=1, help="of the draw (1)")
    arguments = parser.parse_args(argv)
    try:
        device = ptxrt.Device(arguments.device)
    except ptxrt.PtxrtError as error:
        print(error, file=sys.stderr)
        return 2
    floor = launch_time(device, _RUNS), copy_speed(device, _RUNS) / 1e6
    outcomes: list[Outcome] = []
    end = time.monotonic() + arguments.seconds
    for problem in problems(arguments.seed, arguments.op):
        if time.monotonic() >= end:
            break
        outcomes.append(_outcome(problem, device, arguments.language, *floor))
    slow = sorted(outcomes, key=lambda each: each.best_us / each.us)
    print(f"{len(outcomes)} problems. Slower than another variant:")
    print("\n".join(str(each) for each in slow if each.us > _NOISE * each.best_us) or "none")
    print("Longest beside the floor:")
    print("\n".join(map(str, sorted(outcomes, key=lambda each: each.floor_us / each.us)[:_SHOWN])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
