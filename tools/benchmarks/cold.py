"""From the start of a process to its first result: ptxrt with and without a warm store, beside other ways.

Every row runs processes that compute one small group_norm and copy it to the host. The rows take turns, process by
process, so that a drift of the machine hits all alike; the first process of each row, which fills caches, is not timed.
No process holds the GPU beside them, as none does where a user's process is the only one.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np

from benchmarks.launch import positive
from benchmarks.report import ROOT, Kind, Measurement, Record, add_usual, heading, markdown_table, opened
from ptxrt import ops
from ptxrt.compilers import nvjitlink

__all__ = ["BASE", "BOUNDS", "HELP", "KIND", "NAME", "Row", "add_arguments", "measure", "ratios", "rows", "run"]

NAME = "cold"
HELP = "from a process's start to its first result: ptxrt with a warm and a cold store, a cubin by hand, torch, CuPy"

WARM, COLD, BASE = "ptxrt, warm store", "ptxrt, cold store", "cuda.core, cubin from a file"
BOUNDS = {BASE: 1.15, "torch": 1.0, "CuPy": 1.0}
"""How many times each row's time the warm store may take."""
_MEASURED = (
    "ptxrt/backends",
    "ptxrt/compilers",
    "ptxrt/memos.py",
    "ptxrt/ops/__init__.py",
    "ptxrt/ops/_group_norm.py",
    "ptxrt/ops/framework",
    "ptxrt/runtime",
    "ptxrt/store",
    "group_norm.ptx f32",
    "tools/benchmarks/cold.py",
    "tools/benchmarks/cold_worker.py",
)
_SHAPES = {"sim": ((1, 4, 8), 2)}
_SHAPE = (2, 320, 32, 32), 32
_MOST_ERROR, _MOST_SECONDS = 1e-4, 300.0


@dataclass(frozen=True)
class Row:
    """A row: a way of benchmarks.cold_worker, and how its processes differ from this one.

    Attributes
    ----------
    environment
        Variables that they have.
    store
        The folder of ptxrt's store; None for a new one each time.
    """

    way: str
    environment: Mapping[str, str] = field(default_factory=dict)
    store: Path | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--runs", type=positive, help="processes timed of each row (20; on sim 5)")
    add_usual(parser, "where to run", "a bound is missed, or cannot be told")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; return 1 if ``--check`` is given and a bound is missed."""
    measurement = Measurement(arguments.out, _MEASURED)
    with TemporaryDirectory(prefix="ptxrt-cold-") as folder:
        path = Path(folder)
        # In a process that has ended before the first row: while one holds the GPU, others initialise it much faster.
        with ProcessPoolExecutor(1, get_context("spawn")) as before:
            kind, file = before.submit(_write_problem, arguments.device, path).result()
        count = arguments.runs or (5 if kind == "sim" else 20)
        times, failed = measure(rows(kind, path), lambda row: cold_ms(row, file, path), count)
    device = opened(arguments.device)
    found = {name: _summary(values) for name, values in times.items()}
    record = {"runs": count, "rows": found, "failed": failed, "bounds": BOUNDS}
    print(f"{heading(device)}\n\n{_body(record)}")
    measurement.store(KIND, device, record)
    times_as_long = ratios({name: row["median_ms"] for name, row in found.items()})
    missed = [name for name, bound in BOUNDS.items() if times_as_long.get(name, bound + 1) > bound]
    return 1 if arguments.check and missed else 0


def rows(kind: str, folder: Path) -> dict[str, Row]:
    """Return the rows of a kind of device by name; `folder` is for their caches."""
    found = {
        "NumPy alone": Row("numpy"),
        WARM: Row("ptxrt", store=folder / "store"),
        COLD: Row("ptxrt"),
    }
    if kind == "cuda":
        found |= {
            BASE: Row("cuda.core"),
            "torch": Row("torch"),
            "CuPy": Row("cupy", {"CUPY_CACHE_DIR": str(folder / "cupy")}),
        }
    return found


def measure(
    asked: Mapping[str, Row], timed: Callable[[Row], float], count: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Run `count` processes of each row after one that is not counted, the rows taking turns.

    Returns
    -------
    dict, dict
        What `timed` returned for the rows that ran; the error of those that did not.
    """
    times: dict[str, list[float]] = {name: [] for name in asked}
    failed: dict[str, str] = {}
    for turn in range(count + 1):
        names = [name for name in asked if name not in failed]
        first = turn % max(1, len(names))  # so that no row always runs behind the same one
        for name in names[first:] + names[:first]:
            try:
                found_ms = timed(asked[name])
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                failed[name] = str(error)
                continue
            if turn:
                times[name].append(found_ms)
    return {name: values for name, values in times.items() if name not in failed}, failed


def cold_ms(row: Row, problem: Path, folder: Path) -> float:
    """Return the milliseconds from the start of one process of a row to its result.

    Raises
    ------
    ValueError
        The process has failed, or its result is wrong.
    """
    store = row.store or Path(mkdtemp(prefix="store-", dir=folder))
    # Without its bytecode ptxrt would be compiled in each process, which the packages beside it are not.
    without = ("PTXRT_CACHE_", "PYTHONDONTWRITEBYTECODE")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    path = os.pathsep.join(filter(None, (str(ROOT), str(ROOT / "tools"), os.environ.get("PYTHONPATH"))))
    environment |= {"PYTHONPATH": path, "PTXRT_CACHE_DIR": str(store), **row.environment}
    command = [sys.executable, "-m", "benchmarks.cold_worker", row.way, str(problem)]
    started = time.monotonic_ns()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_MOST_SECONDS, check=False)
    if done.returncode:
        raise ValueError((done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1])
    answer = json.loads(done.stdout.splitlines()[-1])
    if not answer["error"] <= _MOST_ERROR:
        raise ValueError(f"its result is wrong by {answer['error']:.1e}")
    return float(answer["at"] - started) / 1e6


def ratios(medians: Mapping[str, float]) -> dict[str, float]:
    """Return how many times each bounded row's time the warm store takes; a row without a number is left out."""
    return {name: medians[WARM] / medians[name] for name in BOUNDS if WARM in medians and name in medians}


def _write_problem(name: str | None, folder: Path) -> tuple[str, Path]:
    """Write what the processes read; on CUDA the kernels that ptxrt would launch, and how it would, too.

    Returns
    -------
    str, Path
        The kind of the device, and the file.
    """
    device = opened(name)
    shape, groups = _SHAPES.get(device.kind, _SHAPE)
    problem: dict[str, Any] = {
        "device": str(device), "ordinal": device.ordinal, "shape": shape, "groups": groups,
    }  # fmt: skip
    if device.kind == "cuda":
        plan = ops.GroupNormPlan.select(device, ops.GroupNormDescriptor(shape, groups))
        problem |= {"workspace": plan.workspace_size, "launches": []}
        for number, launch in enumerate(plan.schedule.launches):
            cubin = folder / f"{number}.cubin"
            cubin.write_bytes(nvjitlink.compile_ptx(launch.kernel.source.text, device.arch).code)
            problem["launches"].append(
                {
                    "cubin": str(cubin),
                    "entry": launch.kernel.entry,
                    "grid": launch.grid,
                    "block": launch.block,
                    "shared_bytes": launch.shared_bytes,
                    "arguments": by_hand(launch),
                }
            )
    file = folder / "problem.json"
    file.write_text(json.dumps(problem))
    return device.kind, file


def by_hand(launch: ops.framework.Launch) -> list[tuple[str, Any]]:
    """Return a launch's arguments as JSON: a scalar as its NumPy type and value, an address as "", place and offset."""
    found: list[tuple[str, Any]] = []
    for parameter, value in zip(launch.kernel.signature.parameters, launch.arguments, strict=True):
        if isinstance(value, str):
            found.append(("", (value, 0)))
        elif isinstance(value, ops.framework.Region):
            found.append(("", ("workspace", value.offset)))
        else:
            found.append((parameter.type.numpy.name, value))
    return found


def _body(record: Record) -> str:
    head = ("way", "median ms", "quartiles ms", "least ms")
    cells = [
        (name, f"{row['median_ms']:.0f}", f"{row['q1_ms']:.0f} to {row['q3_ms']:.0f}", f"{row['min_ms']:.0f}")
        for name, row in sorted(record["rows"].items(), key=lambda item: item[1]["median_ms"])
    ]
    cells += [(name, "-", error, "-") for name, error in record["failed"].items()]
    found = ratios({name: row["median_ms"] for name, row in record["rows"].items()})
    verdicts = "\n".join(_verdict(name, found.get(name), bound) for name, bound in record["bounds"].items())
    return (
        f"From the start of a process to the result of its first group_norm, {record['runs']} processes a row.\n\n"
        f"{markdown_table(head, cells)}\n\n{verdicts}\n"
    )


KIND = Kind(NAME, lambda record: f"Cold start on {record['environment']['device_name']}", _body)


def _summary(values: list[float]) -> dict[str, Any]:
    q1, median, q3 = (float(number) for number in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median_ms": median, "q1_ms": q1, "q3_ms": q3, "min_ms": min(values), "runs_ms": values}


def _verdict(name: str, ratio: float | None, bound: float) -> str:
    if ratio is None:
        return f"{WARM} beside {name}: not measured; the bound is {bound:g} times it"
    return f"{WARM} takes {ratio:.2f} times {name}: {'within' if ratio <= bound else 'ABOVE'} the bound of {bound:g}"
