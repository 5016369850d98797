"""What one launch costs the host: ptxrt with every check on, beside the same launch by other ways.

Every row runs bursts of launches with a synchronisation between bursts, so that what is timed is the call and not the
kernel. The rows take turns, burst by burst, so that a drift of the machine hits all alike.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import ptxrt
from benchmarks.launch_peers import Burst, peers
from benchmarks.report import ROOT, environment, markdown_table, save, slug

__all__ = ["BOUNDS", "HELP", "NAME", "add_arguments", "differences", "measure", "run"]

NAME = "launch"
HELP = "host cost of one launch: ptxrt, cuda.core, cuda.bindings, C, CuPy, Triton, torch"

BASE = "cuda.core launch"
# Microseconds that a row may take above BASE.
BOUNDS = {"ptxrt Kernel.launch": 2.0, "ptxrt ops.group_norm, out=": 4.0}
_WARM_UP = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", help="where to run; the default device if left out")
    parser.add_argument("--bursts", type=_positive, help="bursts timed of each row (60; on sim 5)")
    parser.add_argument("--launches", type=_positive, help="launches a burst (256; on sim 16)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder for the .json and the .md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed, or cannot be told")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; return 1 if ``--check`` is given and a bound is missed."""
    try:
        device = ptxrt.Device(arguments.device) if arguments.device else ptxrt.default_device()
    except ptxrt.PtxrtError as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    on_gpu = device.kind == "cuda"
    bursts = arguments.bursts or (60 if on_gpu else 5)
    launches = arguments.launches or (256 if on_gpu else 16)

    ready, failed = _prepare(peers(device))
    times, broken = measure(ready, device.synchronize, bursts, launches)
    failed |= broken
    rows = {name: _summary(values) for name, values in times.items()}
    above = differences({name: row["median_us"] for name, row in rows.items()})

    unit = f"median of {bursts} bursts of {launches} launches"
    head = ("way to launch", "median us", "quartiles us", "least us")
    cells = [
        (name, f"{row['median_us']:.2f}", f"{row['q1_us']:.2f} to {row['q3_us']:.2f}", f"{row['min_us']:.2f}")
        for name, row in sorted(rows.items(), key=lambda item: item[1]["median_us"])
    ]
    cells += [(name, "-", error, "-") for name, error in failed.items()]
    body = f"Host time of one launch, {unit}.\n\n{markdown_table(head, cells)}\n"
    body += "\n" + "\n".join(_verdict(name, above.get(name)) for name in BOUNDS) + "\n"
    print(f"{device}: {device.name}, {device.arch}, driver {device.properties.driver}\n\n{body}")
    record = {
        "benchmark": NAME,
        "environment": environment(device),
        "bursts": bursts,
        "launches_per_burst": launches,
        "rows": rows,
        "failed": failed,
        "above_cuda_core_us": above,
        "bounds_us": BOUNDS,
    }
    title = f"Host cost of a launch on {device.name}"
    for path in save(arguments.out, f"{NAME}-{slug(device.name)}", title, record, body):
        print(f"stored {path}")
    missed = [name for name, bound in BOUNDS.items() if name not in above or above[name] > bound]
    return 1 if arguments.check and missed else 0


def measure(
    bursts: Mapping[str, Burst], synchronize: Callable[[], None], count: int, launches: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Time `count` bursts of each row, the rows taking turns.

    Returns
    -------
    dict, dict
        Microseconds a launch, one number a burst, of the rows that ran; the error of those that did not.
    """
    times: dict[str, list[float]] = {name: [] for name in bursts}
    failed: dict[str, str] = {}
    collecting = gc.isenabled()
    gc.disable()  # a collection would be charged to whichever row it falls on
    try:
        for turn in range(_WARM_UP + count):
            names = [name for name in bursts if name not in failed]
            first = turn % max(1, len(names))  # so that no row always runs behind the same one
            for name in names[first:] + names[:first]:
                synchronize()
                started = time.perf_counter_ns()
                try:
                    bursts[name](launches)
                except Exception as error:  # noqa: BLE001 (whatever a peer raises is its row of the table)
                    failed[name] = f"{type(error).__name__}: {error}"
                    continue
                taken = time.perf_counter_ns() - started
                if turn >= _WARM_UP:
                    times[name].append(taken / launches / 1e3)
        synchronize()
    finally:
        if collecting:
            gc.enable()
    return {name: values for name, values in times.items() if name not in failed}, failed


def differences(medians: Mapping[str, float]) -> dict[str, float]:
    """Return how far each bounded row lies above cuda.core's launch; a row without a number is left out."""
    if BASE not in medians:
        return {}
    return {name: medians[name] - medians[BASE] for name in BOUNDS if name in medians}


def _prepare(makers: Mapping[str, Callable[[], Burst]]) -> tuple[dict[str, Burst], dict[str, str]]:
    ready: dict[str, Burst] = {}
    failed: dict[str, str] = {}
    for name, make in makers.items():
        try:
            ready[name] = make()
            ready[name](3)
        except Exception as error:  # noqa: BLE001 (as in measure)
            ready.pop(name, None)
            failed[name] = f"{type(error).__name__}: {error}"
    return ready, failed


def _summary(values: Sequence[float]) -> dict[str, Any]:
    q1, median, q3 = (float(number) for number in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median_us": median, "q1_us": q1, "q3_us": q3, "min_us": min(values), "bursts_us": list(values)}


def _verdict(name: str, above: float | None) -> str:
    bound = BOUNDS[name]
    if above is None:
        return f"{name} above {BASE}: not measured; the bound is {bound:.0f} us"
    word = "within" if above <= bound else "ABOVE"
    return f"{name} is {above:.2f} us above {BASE}: {word} the bound of {bound:.0f} us"


def _positive(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, given {text!r}")
    return value
