"""This checkout's ops beside those of another checkout, in one run: ``python tools/bench.py ops --base DIR``.

Each checkout has a process of its own, and they take turns, round by round, so that a drift of the clocks hits both.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import numpy as np

from benchmarks.ops_cases import cases
from benchmarks.ops_worker import HOST
from benchmarks.report import ROOT, markdown_table

__all__ = ["Comparison", "Failed", "compare"]

_SHARE_OF_A_RUN, _SHARE_OF_A_SELECTION, _MORE_US_OF_A_LAUNCH = 0.02, 0.2, 0.1


class Failed(Exception):
    """A checkout cannot run what it was asked to."""


@dataclass(frozen=True)
class Comparison:
    """A row: what one thing costs in both checkouts.

    Attributes
    ----------
    name, case
        What was run.
    base, new
        Microseconds, a number a round: the median of the round's runs. Empty where the base cannot run it.
    share, more
        This checkout may be slower by `share` of the base and by `more` microseconds, beside the spread; a `share` of
        infinity is no bound.
    why
        What the base said where it cannot run it.
    """

    name: str
    case: str
    base: Sequence[float]
    new: Sequence[float]
    share: float = np.inf
    more: float = 0.0
    why: str = ""

    @property
    def ratio(self) -> float:
        """The median, over the rounds, of new to base."""
        return float(np.median(np.divide(self.new, self.base)))

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles of the rounds' differences, in microseconds."""
        low, high = np.quantile(np.subtract(self.new, self.base), (0.25, 0.75))
        return float(high - low) / 2

    @property
    def slower(self) -> bool:
        """Whether this checkout is slower than the bound and the spread allow."""
        if not self.base or np.isinf(self.share):
            return False
        difference = float(np.median(np.subtract(self.new, self.base)))
        return difference > self.share * float(np.median(self.base)) + self.more + self.spread

    def cells(self) -> list[str]:
        """Return its row of the table."""
        if not self.base:
            return [self.name, self.case, "-", f"{np.median(self.new):.2f}", "-", "-", f"not in the base: {self.why}"]
        medians = [f"{np.median(us):.2f}" for us in (self.base, self.new)]
        verdict = "SLOWER" if self.slower else ""
        return [self.name, self.case, *medians, f"{self.ratio:.3f}", f"{self.spread:.2f}", verdict]


def compare(base: Path, device: str, only: str, types: Collection[str], language: str, rounds: int) -> list[Comparison]:
    """Time the cases that `only` and `types` choose, a launch, and the selection of plans; print the table.

    Raises
    ------
    Failed
        If a checkout's process does not start, or this checkout's cannot run a row.
    """
    rows = []
    with ExitStack() as stack:
        old, new = (stack.enter_context(_Worker(folder, device, language)) for folder in (base, ROOT))
        for name, case, asked, runs, bound in _rows(only, types, small=device.startswith("sim")):
            why = old.prepare(asked)
            if failed := new.prepare(asked):
                raise Failed(f"{name} {case}: {failed}")
            times: dict[_Worker, list[float]] = {old: [], new: []}
            for turn in range(rounds):
                both = [new] if why else [old, new]
                for worker in both if turn % 2 else reversed(both):
                    times[worker].append(float(np.median(worker.time(runs))))
            rows.append(Comparison(name, case, times[old], times[new], *bound, why=why))
            print("  ".join(rows[-1].cells()), flush=True)
    head = ["what", "case", "base us", "new us", "new / base", "spread us", ""]
    print(f"\n{markdown_table(head, [row.cells() for row in rows])}")
    return rows


def _rows(
    only: str, types: Collection[str], *, small: bool
) -> Iterator[tuple[str, str, dict[str, Any], int, tuple[float, float]]]:
    """Give name, case, what the workers are asked, runs a round, and the bound as share and microseconds."""
    for case in cases(only, types):
        chosen = case.small() if small else case
        share = _SHARE_OF_A_RUN if case.dtype == "f32" else np.inf
        yield case.op, str(chosen), {"case": asdict(chosen)}, 1 if small else 5, (share, 0.0)
    for name in HOST:
        bound = (_SHARE_OF_A_SELECTION, 0.0) if name.endswith(".select") else (0.0, _MORE_US_OF_A_LAUNCH)
        yield name, "host", {"host": name}, 4 if small else 128, bound


class _Worker:
    """A process with the ptxrt of a checkout, and the tools of this one."""

    def __init__(self, folder: Path, device: str, language: str) -> None:
        self.folder = folder.resolve()
        path = os.pathsep.join(filter(None, (str(ROOT / "tools"), os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ops_worker", device],
            cwd=self.folder,  # where -m looks first
            env={**os.environ, "PYTHONPATH": path, "PTXRT_LANGUAGE": language},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._questions, self._answers = cast("IO[str]", self._process.stdin), cast("IO[str]", self._process.stdout)

    def __enter__(self) -> _Worker:
        found = Path(self._answer()["ptxrt"])
        if not found.is_relative_to(self.folder):
            raise Failed(f"{self.folder} is no checkout of ptxrt: {found} was imported there")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()

    def prepare(self, asked: dict[str, Any]) -> str:
        """Make a row ready and run it once; return why that cannot be, or nothing."""
        for question in (asked, {"time": 3}):
            told = self._ask(question)
            if isinstance(told, dict):
                return str(told["error"])
        return ""

    def time(self, count: int) -> list[float]:
        """Return what the row that is ready takes."""
        told = self._ask({"time": count})
        if isinstance(told, dict):
            raise Failed(str(told["error"]))
        return [float(us) for us in told]

    def _ask(self, question: dict[str, Any]) -> Any:
        with suppress(BrokenPipeError):  # a process that has ended gives no answer either
            self._questions.write(json.dumps(question) + "\n")
            self._questions.flush()
        return self._answer()

    def _answer(self) -> Any:
        if not (line := self._answers.readline()):
            raise Failed(f"the process in {self.folder} ended with {self._process.wait()}")
        return json.loads(line)
