"""Runs what the tables hold on sim and on another device, and counts what is equal: for the tests and the tool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import cases
import cuda_floats
import cuda_integers
import cuda_language
import cuda_threads
import numpy as np
import sequences
from cases import Case
from sequences import Difference, Drawing

import ptxrt

__all__ = ["CASES", "KernelReport", "SequenceReport", "compare_case", "compare_cases", "compare_sequences"]

CASES: tuple[Case, ...] = (*cuda_integers.CASES, *cuda_floats.CASES, *cuda_threads.CASES, *cuda_language.CASES)
"""Every kernel."""

_AT_ONCE = 64
_PLAIN = ("-O0",)
_KINDS = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}


# Kernels ------------------------------------------------------------------------------------------------------------


@dataclass
class KernelReport:
    """What came of one kernel.

    Attributes
    ----------
    case
        The kernel.
    results, equal
        How many values it gave, and how many were the same bit for bit.
    nans
        Values that are NaN on both devices with other payloads.
    worst
        Units in the last place of the worst of the others, as far as the absolute part of the bound does not cover it.
    wrong
        How many are above the bound.
    example
        The first of those: its place and both values.
    """

    case: Case
    results: int = 0
    equal: int = 0
    nans: int = 0
    worst: float = 0.0
    wrong: int = 0
    example: str = ""


def compare_case(case: Case, mine: list[np.ndarray], other: list[np.ndarray]) -> KernelReport:
    """Compare a kernel's results on sim with another device's."""
    report = KernelReport(case)
    for number, pair in enumerate(zip(mine, other, strict=True)):
        a, b = (one.reshape(-1) for one in pair)
        words = [np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").astype(np.uint64) for x in (a, b)]
        same = words[0] == words[1]
        wrong = ~same
        if kind := _KINDS.get(a.dtype):
            nan = np.isnan(a) & np.isnan(b) & ~same
            report.nans += int(nan.sum())
            steps, far = sequences.distance(words[0], words[1], kind)
            wrong &= ~nan & ~(steps <= case.ulps) & ~(far <= case.absolute)
            report.worst = max(report.worst, float(steps[far > case.absolute].max(initial=0.0)))
        report.results += a.size
        report.equal += int(same.sum())
        report.wrong += int(wrong.sum())
        if wrong.any() and not report.example:
            at = int(wrong.nonzero()[0][0])
            report.example = f"result {number}, element {at}: sim {a[at]!r}, device {b[at]!r}"
    return report


def compare_cases(
    chosen: Sequence[Case], sim: ptxrt.Device, other: ptxrt.Device, *, threads: int = 8
) -> list[KernelReport]:
    """Run kernels on both devices."""
    with ThreadPoolExecutor(threads) as pool:
        theirs = pool.map(lambda case: cases.launch(case, other), chosen)
        return [compare_case(case, cases.launch(case, sim), there) for case, there in zip(chosen, theirs, strict=True)]


# Sequences ----------------------------------------------------------------------------------------------------------


@dataclass
class SequenceReport:
    """What came of the drawn sequences.

    Attributes
    ----------
    kernels, instructions
        How many were drawn.
    results
        How many values of a thread were compared.
    free
        Those among them that are another NaN, where PTX does not say which.
    counts
        Instances of each form.
    differences
        Lines that differ and should not.
    optimised
        Lines that differ from what ptxas makes of them with its optimiser on, and not with it off.
    worst
        For each form with a bound, the largest distance in units of the last place, of those that the absolute part
        of the bound does not cover.
    """

    kernels: int = 0
    instructions: int = 0
    results: int = 0
    free: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    differences: list[Difference] = field(default_factory=list)
    optimised: list[Difference] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)


def _on(device: ptxrt.Device, drawings: list[Drawing], threads: int) -> Iterator[np.ndarray]:
    # ptxas takes most of the time, and lets other threads run meanwhile.
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(lambda drawing: sequences.results(drawing, device), drawings)


def compare_sequences(
    drawings: Iterable[Drawing], sim: ptxrt.Device, other: ptxrt.Device, *, threads: int = 8
) -> SequenceReport:
    """Run each drawing on both devices and compare what every thread stored.

    A kernel with a difference is compiled once more with the optimiser off: it has folded something if that is equal.
    """
    report = SequenceReport()
    waiting = list(drawings)
    while waiting:
        batch, waiting = waiting[:_AT_ONCE], waiting[_AT_ONCE:]
        for drawing, theirs in zip(batch, _on(other, batch, threads), strict=True):
            mine = sequences.results(drawing, sim)
            compared = sequences.compare(drawing, mine, theirs)
            found = compared.differences
            report.free += compared.free
            report.kernels += 1
            report.instructions += drawing.instructions
            report.results += mine.size
            report.counts.update(one.form.name for one in drawing.drawn)
            for name, far in compared.worst.items():
                report.worst[name] = max(far, report.worst.get(name, 0.0))
            if found:
                plain = sequences.compare(drawing, mine, sequences.results(drawing, other, _PLAIN))
                still = {one.drawn.slots for one in plain.differences}
                report.differences += [one for one in found if one.drawn.slots in still]
                report.optimised += [one for one in found if one.drawn.slots not in still]
    return report
