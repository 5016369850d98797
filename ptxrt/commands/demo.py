"""``ptxrt demo``: every op at shapes of real networks, each held against a float64 reference."""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from ptxrt import __version__
from ptxrt.commands._demo_cases import Case, cases, language
from ptxrt.commands._demo_race import TEXT, race
from ptxrt.commands.tables import columns
from ptxrt.errors import PtxrtError
from ptxrt.ops import forget_plans
from ptxrt.runtime.device import Device

__all__ = ["run"]

# The same over two lines, where a terminal is narrower than the first.
_NARROW = "{:28}  {:30}  {:>17}\n    {:>10}  {:>8}  {:>7}  {:>7}  {:>9}  {}"
_LINE = "{:28}  {:30}  {:>17}  {:>10}  {:>8}  {:>7}  {:>7}  {:>9}  {}"


def run(device: Device, say: Callable[[str], None], *, as_json: bool = False) -> int:
    """Run the demo on `device`, tell of it line by line through `say`, and return the exit code.

    With `as_json` nothing is said but an object of all results, at the end.
    """
    aloud, say = say, (lambda line: None) if as_json else say
    on_gpu = device.kind != "sim"
    say(f"ptxrt {__version__} on {device}: {device.name}, {device.arch}, driver {device.properties.driver}")
    if not on_gpu:
        say(
            "No GPU is used: this is ptxrt's PTX machine, which runs the same PTX text in NumPy, on smaller images\n"
            "and batches. Its compile is its parser, which remembers what it has read; its times say nothing about\n"
            "a GPU's."
        )
    say(f"kernels in {language(device).upper()}, compiled by {device.backend.compiler(language(device))}")
    say("")
    unit = "us" if on_gpu else "ms"
    layout = _LINE if (columns() or 150) >= 150 else _NARROW
    say(layout.format("op", "network", "shape", "compile ms", "2nd call", "error", "bar", f"warm {unit}", "").rstrip())
    rows: list[dict[str, Any]] = []
    # On stderr, and only where that is a terminal.
    hidden = sys.stderr is None or None
    with tqdm(cases(device), unit="row", leave=False, disable=hidden, file=sys.stderr) as progress:

        def tell(line: str) -> None:
            with progress.external_write_mode(file=sys.stdout):
                say(line)

        for build in progress:
            # Each row starts cold: nothing holds the modules of the rows before.
            forget_plans()
            device.modules.clear()
            rows.append(_row(device, build, tell, layout))
    passed = [row["passed"] for row in rows]
    say("")
    say(f"parity: {sum(passed)} of {len(passed)} agree with the float64 reference" + ("" if all(passed) else ": FAIL"))
    report, found = race()
    say(f"\nA kernel with a barrier left out, and what sim says of it:\n\n{TEXT}\n{report}")
    if as_json:
        record = {"version": __version__, "device": str(device), "name": device.name, "unit": unit, "rows": rows}
        aloud(json.dumps({**record, "race": report}, indent=1))
    return 0 if all(passed) and found else 1


def _row(device: Device, build: Callable[[], Case], say: Callable[[str], None], layout: str) -> dict[str, Any]:
    """Run one row, say it and return it; an error is a FAIL, and the rows behind it run still."""
    try:
        case = build()
        before = device.modules.stats()
        results = case.call()
        first = device.modules.stats()
        error = _worst_error(results, case.reference())
        forget_plans()  # so that the next call asks the module cache again
        case.call()
        second = device.modules.stats()
        warm = _microseconds(device, case.call) if device.kind != "sim" else _milliseconds(case.call)
    except PtxrtError as failure:
        say(f"FAIL: {failure}")
        return {"passed": False, "failure": str(failure)}
    cached = second.compiles == first.compiles and second.hits > first.hits
    good = cached and error <= case.bar
    compile_ms = (first.compile_seconds - before.compile_seconds) * 1e3
    say(
        layout.format(
            case.op,
            case.network,
            "x".join(map(str, case.shape)),
            f"{compile_ms:.1f}" if first.compiles > before.compiles else "0",
            "hit" if cached else "MISS",
            f"{error:.1e}",
            f"{case.bar:.0e}",
            f"{warm:.1f}",
            "pass" if good else "FAIL",
        )
    )
    return {
        "op": case.op, "network": case.network, "shape": case.shape, "compile_ms": compile_ms, "hit": cached,
        "error": error if math.isfinite(error) else None, "bar": case.bar, "warm": warm, "passed": good,
    }  # fmt: skip


def _worst_error(results: Sequence[Any], references: Sequence[Any]) -> float:
    """Return the largest ``||result - reference|| / ||reference||``, infinite where one is not a number."""
    worst = 0.0
    for result, reference in zip(results, references, strict=True):
        if result is None:
            continue
        wide = reference.astype(np.float64)
        error = float(np.linalg.norm((result.to_host() - wide).ravel()) / np.linalg.norm(wide.ravel()))
        worst = max(worst, error if math.isfinite(error) else math.inf)
    return worst


def _milliseconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _microseconds(device: Device, call: Callable[[], object]) -> float:
    """Return the median time of a call on the device, between two events of its stream."""
    stream, pairs = device.default_stream, []
    for _ in range(20):
        # None is waited for before the last is queued, so that the device does not idle between the events.
        start = stream.record()
        call()
        pairs.append((start, stream.record()))
    return statistics.median(start.elapsed_ms(end) * 1e3 for start, end in pairs)
