"""What one launch costs the host: ptxrt with every check on, beside the same launch by other ways.

Every row runs bursts of launches with a synchronisation between bursts, so that what is timed is the call and not the
kernel; the rows "to the end" time that synchronisation too. Of graphs they have the bound, since C's call that launches
one takes less than any call from Python to the driver. The rows take turns, burst by burst, so that a drift of the
machine hits all alike.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.launch_peers import Burst, peers
from benchmarks.report import Kind, Measurement, Record, add_usual, heading, markdown_table, opened

__all__ = ["BASE", "BOUNDS", "HELP", "KIND", "NAME", "add_arguments", "measure", "positive", "ratios", "run"]

NAME = "launch"
HELP = "host cost of one launch: ptxrt, cuda.core, cuda.bindings, C, CuPy, Triton, torch"

BASE = "C cuLaunchKernel"
# Times BASE in the same run: a slower host is slower for both.
BOUNDS = {
    "ptxrt Kernel.launch": 1.55,
    "ptxrt ops.group_norm, out=": 2.0,
    "ptxrt Graph.replay, ten ops, to the end": 1.3,
}
# What else a row's time is times of.
BASES = {
    "ptxrt Graph.replay, ten ops": "C cuGraphLaunch, ten ops",
    "ptxrt Graph.replay, ten ops, to the end": "C cuGraphLaunch, ten ops, to the end",
}
_MEASURED = (
    "ptxrt/runtime",
    "ptxrt/backends",
    "ptxrt/ops/framework",
    "ptxrt/ops/_group_norm.py",
    "tools/benchmarks/launch.py",
    "tools/benchmarks/launch_peers.py",
)
_WARM_UP = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--bursts", type=positive, help="bursts timed of each row (60; on sim 5)")
    parser.add_argument("--launches", type=positive, help="launches a burst (256; on sim 16)")
    add_usual(parser, "where to run", "a bound is missed, or cannot be told")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; return 1 if ``--check`` is given and a bound is missed."""
    device = opened(arguments.device)
    on_gpu = device.kind == "cuda"
    bursts = arguments.bursts or (60 if on_gpu else 5)
    launches = arguments.launches or (256 if on_gpu else 16)

    measurement = Measurement(arguments.out, _MEASURED)
    ready, failed = _prepare(peers(device))
    times, broken = measure(ready, device.synchronize, bursts, launches)
    rows = {name: _summary(values) for name, values in times.items()}
    record = {
        "bursts": bursts,
        "launches_per_burst": launches,
        "rows": rows,
        "failed": failed | broken,
        "bounds": BOUNDS,
    }
    print(f"{heading(device)}\n\n{_body(record)}")
    measurement.store(KIND, device, record)
    above = ratios({name: row["median_us"] for name, row in rows.items()})
    missed = [name for name, bound in BOUNDS.items() if name not in above or above[name] > bound]
    return 1 if arguments.check and missed else 0


def _body(record: Record) -> str:
    rows = record["rows"]
    head = ("way to launch", "median us", "quartiles us", "least us")
    cells = [
        (name, f"{row['median_us']:.2f}", f"{row['q1_us']:.2f} to {row['q3_us']:.2f}", f"{row['min_us']:.2f}")
        for name, row in sorted(rows.items(), key=lambda item: item[1]["median_us"])
    ]
    cells += [(name, "-", error, "-") for name, error in record["failed"].items()]
    above = ratios({name: row["median_us"] for name, row in rows.items()})
    names = dict.fromkeys((*record["bounds"], *(name for name in BASES if name in above)))
    verdicts = "\n".join(_verdict(name, above.get(name), record["bounds"].get(name)) for name in names)
    unit = f"median of {record['bursts']} bursts of {record['launches_per_burst']} launches"
    return f"Host time of one launch, {unit}.\n\n{markdown_table(head, cells)}\n\n{verdicts}\n"


KIND = Kind(NAME, lambda record: f"Host cost of a launch on {record['environment']['device_name']}", _body)


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


def ratios(medians: Mapping[str, float]) -> dict[str, float]:
    """Return how many times C's launch the rows of ours take; a row without a number is left out, or without C's."""
    bases = {name: BASES.get(name, BASE) for name in (*BOUNDS, *BASES)}
    return {name: medians[name] / medians[base] for name, base in bases.items() if {name, base} <= set(medians)}


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


def _verdict(name: str, ratio: float | None, bound: float | None) -> str:
    base = BASES.get(name, BASE)
    if bound is None:
        return f"{name} is {ratio:.2f} times {base}: it has no bound"
    if ratio is None:
        return f"{name} beside {base}: not measured; the bound is {bound:g} times it"
    return f"{name} is {ratio:.2f} times {base}: {'within' if ratio <= bound else 'ABOVE'} the bound of {bound:g}"


def positive(text: str) -> int:
    """Return the whole number that an option gives, at least 1; for argparse."""
    value = int(text) if text.isascii() and text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, given {text!r}")
    return value
