"""How fast the PTX machine is on one core: lane-instructions a second for the kernels of the ops, and peak memory.

A lane-instruction is one instruction of one thread. The time is the launch alone, with the checks that every launch
makes, and the least of several: other work on the machine can only add.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import ptxrt
from benchmarks.report import ROOT, Kind, Measurement, Record, add_out, markdown_table
from benchmarks.sim_kernels import CASES, Case
from ptxrt import sim

__all__ = ["HELP", "KIND", "MEMORY_BOUND", "NAME", "RATE_BOUND", "add_arguments", "measure", "peak_memory", "run"]

NAME = "sim"
HELP = "speed of the PTX machine on one core: the kernels of the ops, a matmul, and the memory of a large launch"

RATE_BOUND = 20e6
"""Lane-instructions a second that each kernel of the ops must reach."""
MEMORY_BOUND = 2 << 30
ELEMENTS = 1 << 24
_MEASURED = ("ptxrt/sim", "tools/benchmarks/sim_kernels.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--repeats", type=int, default=5, help="launches of each kernel, of which the best counts (5)")
    parser.add_argument("--only", action="append", help="rows whose name contains this; may be given several times")
    parser.add_argument("--elements", type=int, default=ELEMENTS, help="of the launch whose memory is measured (2**24)")
    add_out(parser)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed, or cannot be told")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; return 1 if ``--check`` is given and a bound is missed."""
    if arguments.repeats < 1 or arguments.elements < 1:
        print("bench.py: --repeats and --elements are at least 1", file=sys.stderr)
        return 2
    measurement = Measurement(arguments.out, _MEASURED)
    cases = [case for case in CASES if not arguments.only or any(part in case.name for part in arguments.only)]
    rows: dict[str, dict[str, Any]] = {}
    failed: dict[str, str] = {}
    with _one_core():
        for case in cases:
            try:
                rows[case.name] = measure(case, arguments.repeats)
            except ptxrt.PtxrtError as error:  # no NVRTC, for one
                failed[case.name] = f"{type(error).__name__}: {error}".splitlines()[0]
    peak = peak_memory(arguments.elements)
    missed = [*failed, *(name for name, row in rows.items() if not row["within"])]
    if peak is None or peak > MEMORY_BOUND:
        missed.append("peak memory")

    record = {
        "repeats": arguments.repeats,
        "rows": rows,
        "failed": failed,
        "peak_bytes": peak,
        "peak_elements": arguments.elements,
        "bounds": {"lane_instructions_per_second": RATE_BOUND, "peak_bytes": MEMORY_BOUND},
        "missed": missed,
    }
    print(_body(record))
    device = ptxrt.Device("sim:0")
    measurement.store(KIND, device, record)
    if missed:
        print(f"missed: {', '.join(missed)}")
    return 1 if arguments.check and missed else 0


def _body(record: Record) -> str:
    peak, bound = record["peak_bytes"], record["bounds"]["peak_bytes"]
    size = "not measured" if peak is None else f"{peak / 2**30:.2f} GiB"
    return (
        f"Least of {record['repeats']} launches each, on one core.\n\n{_table(record['rows'], record['failed'])}\n\n"
        f"Peak memory of the process, a launch of {record['peak_elements']} threads over two arrays of f32: {size}, "
        f"{'within' if 'peak memory' not in record['missed'] else 'ABOVE'} the bound of {bound / 2**30:.0f} GiB\n"
    )


KIND = Kind(NAME, lambda _: "Speed of the PTX machine", _body)


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Launch a case `repeats` times and return its row."""
    program = sim.parse(case.text(), case.name)
    memory = sim.GlobalMemory()
    loaded = sim.load(program, memory)
    signature = ptxrt.Signature.parse(case.signature)
    times, report = [], None
    for _ in range(repeats):
        values = case.values()
        packed = [memory.adopt(value, "array") if isinstance(value, np.ndarray) else value for value in values]
        arguments = signature.arguments()
        signature.pack_into(arguments.raw, 0, *packed)
        started = time.perf_counter()
        report = sim.launch(
            loaded, case.entry, case.grid, case.block, arguments.bytes(), shared_bytes=case.shared_bytes
        )
        times.append(time.perf_counter() - started)
        for value, address in zip(values, packed, strict=True):
            if isinstance(value, np.ndarray):
                memory.free(address)
    if report is None:
        raise ValueError("no launch")
    seconds = min(times)
    rate = report.lane_instructions / seconds
    fast = not case.rate or rate >= RATE_BOUND
    return {
        "shape": case.shape,
        "threads": report.threads,
        "lane_instructions": report.lane_instructions,
        "seconds": seconds,
        "median_seconds": statistics.median(times),
        "lane_instructions_per_second": rate,
        "bound_seconds": case.seconds,
        "bound_rate": RATE_BOUND if case.rate else None,
        "within": fast and (case.seconds is None or seconds < case.seconds),
    }


def peak_memory(elements: int) -> int | None:
    """Return the most bytes that a process of its own held for a launch of `elements` threads; None if it failed."""
    script = Path(__file__).with_name("sim_memory.py")
    how = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script, str(elements)], capture_output=True, text=True, env=how, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        return None
    return int(done.stdout)


@contextmanager
def _one_core() -> Iterator[None]:
    """Keep this process on one core, where the system can."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _table(rows: dict[str, dict[str, Any]], failed: dict[str, str]) -> str:
    head = ("kernel", "shape", "million lane-instructions", "seconds", "million a second", "bound", "")
    cells: list[Sequence[str]] = []
    for name, row in rows.items():
        bounds = []
        if row["bound_seconds"] is not None:
            bounds.append(f"{row['bound_seconds']} s")
        if row["bound_rate"] is not None:
            bounds.append(f"{row['bound_rate'] / 1e6:.0f} million a second")
        cells.append(
            (
                name,
                row["shape"],
                f"{row['lane_instructions'] / 1e6:.1f}",
                f"{row['seconds']:.3f}",
                f"{row['lane_instructions_per_second'] / 1e6:.0f}",
                ", ".join(bounds) or "none",
                "within" if row["within"] else "MISSED",
            )
        )
    cells += [(name, "-", "-", "-", "-", error, "FAILED") for name, error in failed.items()]
    return markdown_table(head, cells)
