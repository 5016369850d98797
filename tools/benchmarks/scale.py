"""What an element costs, from small arrays to large ones: the ops in PTX and float32, the L2 cleared before each run.

Elements are those of x. From 2**20 on the batch grows, below that the image; layer_norm and rms_norm get more rows.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import ptxrt
from benchmarks.launch_peers import empty_kernel
from benchmarks.ops_calls import call, inputs, on_device, shapes, timer
from benchmarks.ops_cases import Case, keys
from benchmarks.ops_compiled import speak
from benchmarks.report import Kind, Measurement, Record, add_out, markdown_table

__all__ = ["HELP", "KIND", "NAME", "OPS", "add_arguments", "case_of", "findings", "run"]

NAME = "scale"
HELP = "time per element of each op in PTX, from 2**10 to 2**30 elements"

OPS = tuple(
    Case(op + turn, ())
    for turn in ("", "_backward")
    for op in (
        "group_norm",
        "batch_norm",
        "softmax2d",
        "local_response_norm",
        "layer_norm",
        "rms_norm",
        "upsample_nearest2d",
        "grid_sample",
    )
)
_LARGE = 24  # from 2**24 elements on, a size is held to their median
_DEVIATION = 0.15
_IMAGE = 20  # 2**20 elements are one image
_CHANNELS, _ROW = 6, 10  # as powers of two, of a batch of images, and of rows


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--only", default="", metavar="WORD", help="run the ops that have this in their name")
    parser.add_argument("--sizes", type=int, nargs=2, default=(10, 30), metavar=("LEAST", "MOST"), help="powers of two")
    parser.add_argument("--runs", type=int, default=10, help="timed runs of each size (10)")
    parser.add_argument("--device", default="cuda:0", help="where to run (cuda:0)")
    add_out(parser)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a size deviates, or there is a cliff")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; return 1 if ``--check`` is given and there is a finding."""
    try:
        device = ptxrt.Device(arguments.device)
    except ptxrt.PtxrtError as error:
        print(f"bench.py scale: {error}", file=sys.stderr)
        return 2
    least, most = arguments.sizes
    if not _ROW <= least <= most:
        print(
            f"bench.py scale: --sizes are at least {_ROW}, and the first is no larger than the second", file=sys.stderr
        )
        return 2
    chosen = [case for case in OPS if arguments.only in case.op]
    measurement = Measurement(arguments.out, (key for case in chosen for key in keys(case, ["ptx"])))
    rows: list[dict[str, Any]] = []
    before = os.environ.get("PTXRT_LANGUAGE")
    speak("ptx")
    try:
        launch_us = statistics.median(timer(device, empty_kernel(device))(arguments.runs))
        for case in chosen:
            rows.append({"op": case.op, "us": _times(device, case, range(least, most + 1), arguments.runs)})
            print(_line(rows[-1], launch_us), flush=True)
    finally:
        speak(before or "")
    record = {"runs": arguments.runs, "launch_us": launch_us, "rows": rows}
    print(f"\n{_body(record)}")
    measurement.store(KIND, device, record)
    return 1 if arguments.check and any(findings(row["us"], launch_us) for row in rows) else 0


def _times(device: ptxrt.Device, of: Case, sizes: Sequence[int], runs: int) -> dict[str, float]:
    """Return the median microseconds by the power of two of the elements, as far as the device's memory goes."""
    found: dict[str, float] = {}
    for power in sizes:
        case = case_of(of, power)
        try:
            run_it = call(case, dict(_filled(case, device)))
            run_it()
            found[str(power)] = statistics.median(timer(device, run_it)(runs))
        except ptxrt.OutOfDeviceMemory:
            break
    return found


def case_of(of: Case, power: int) -> Case:
    """Return the op at 2**power elements."""
    if of.family in ("layer_norm", "rms_norm"):
        return replace(of, shape=(1 << (power - _ROW), 1 << _ROW))
    image = min(power, _IMAGE) - _CHANNELS
    height, width = 1 << image // 2, 1 << (image + 1) // 2
    return replace(of, shape=(1 << max(power - _IMAGE, 0), 1 << _CHANNELS, height, width), size=(height, width))


def _filled(case: Case, device: ptxrt.Device) -> Iterator[tuple[str, ptxrt.DeviceArray]]:
    """Give the inputs by name, of which the host makes up to 2**20 elements, and the device the rest as copies."""
    count = max(1, (case.shape[0] << _IMAGE) // int(np.prod(case.shape)))
    part = replace(case, shape=(min(case.shape[0], count), *case.shape[1:]))
    for name, array in inputs(part).items():
        made = on_device(part, array, device)
        shape = shapes(case)[name]
        if made.shape == shape:
            yield name, made
            continue
        whole, done = ptxrt.empty(shape, made.dtype, device), len(made)
        whole[:done].copy_from(made)
        while done < len(whole):
            whole[done : 2 * done].copy_from(whole[:done])
            done *= 2
        yield name, whole


def findings(us: Mapping[str, float], launch_us: float) -> list[str]:
    """Return what is odd in an op's times.

    From 2**24 elements on, a size whose time per element is not within 15 % of the median of these sizes, the time of
    an empty kernel, `launch_us`, left out; below, a size whose time per element is more than 15 % above that of half
    its elements.
    """
    large = _large(us, launch_us)
    each = {int(power): time / 2 ** int(power) for power, time in us.items()} | large
    found = []
    for power, time in each.items():
        if power >= _LARGE:
            ratio, of = time / statistics.median(large.values()), "of the median"
            odd = abs(ratio - 1) > _DEVIATION
        else:
            ratio, of = time / each.get(power - 1, time), f"of that at 2**{power - 1}"
            odd = ratio > 1 + _DEVIATION
        if odd:
            found.append(f"2**{power}: {ratio:.2f} {of}")
    return found


def _large(us: Mapping[str, float], launch_us: float) -> dict[int, float]:
    """Return what an element costs of the large sizes, without the launch."""
    return {int(power): (time - launch_us) / 2 ** int(power) for power, time in us.items() if int(power) >= _LARGE}


def _line(row: Mapping[str, Any], launch_us: float) -> str:
    return f"{row['op']}: {', '.join(findings(row['us'], launch_us)) or 'no deviation, no cliff'}"


def _body(record: Record) -> str:
    rows, launch_us = record["rows"], record.get("launch_us", 0.0)
    sizes = list(dict.fromkeys(power for row in rows for power in row["us"]))
    head = ["picoseconds per element", *(f"2**{power}" for power in sizes), "median of the large", "deviations, cliffs"]
    cells = []
    for row in rows:
        each = {power: us / 2 ** int(power) * 1e6 for power, us in row["us"].items()}
        large = _large(row["us"], launch_us)
        middle = f"{statistics.median(large.values()) * 1e6:.3g}" if large else "-"
        times = (f"{each[power]:.3g}" if power in each else "-" for power in sizes)
        cells.append([row["op"], *times, middle, "; ".join(findings(row["us"], launch_us)) or "none"])
    launch = f", without the {launch_us:.1f} us of an empty kernel," if launch_us else ""
    return (
        f"Median of {record['runs']} runs, the L2 cleared before each. Large is from 2**{_LARGE} elements on: a size "
        f"deviates\nwhose time per element{launch} is not within {_DEVIATION:.0%} of their median. A smaller size is a "
        f"cliff\nwhere an element takes more than {_DEVIATION:.0%} longer than at half the size.\n\n"
        f"{markdown_table(head, cells)}\n"
    )


KIND = Kind(NAME, lambda record: f"Time per element on {record['environment']['device_name']}", _body)
