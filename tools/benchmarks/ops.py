"""What the ops cost on a GPU: ptxrt beside torch, at shapes of real networks, the L2 cache cleared before each run.

Every row names the fewest bytes that the op must move: each input read once, each output written once. Its floor is the
time of those bytes at the speed of a device-to-device copy, measured in the same run. ptxrt and torch take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import ptxrt
from benchmarks.measured import kernel_keys
from benchmarks.ops_base import Failed, compare
from benchmarks.ops_calls import Call
from benchmarks.ops_cases import cases
from benchmarks.ops_torch import make_row
from benchmarks.report import Kind, Measurement, Record, add_out, markdown_table, slug

__all__ = ["HELP", "KIND", "NAME", "add_arguments", "run", "table"]

NAME = "ops"
HELP = "time of each op on the device: ptxrt, torch eager, and torch.compile with --compile; or of another checkout's"

_CLEARED = 256 << 20  # bytes; several times any L2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--only", default="", help="run the rows whose op begins with this")
    parser.add_argument("--runs", type=int, default=30, help="timed runs of each row (30)")
    parser.add_argument("--language", choices=("ptx", "hip"), default="ptx", help="of ptxrt's kernels (ptx)")
    parser.add_argument("--compile", action="store_true", help="time torch.compile too, which takes minutes")
    parser.add_argument("--base", type=_checkout, metavar="DIR", help="compare with the ptxrt of this checkout instead")
    parser.add_argument("--device", default="cuda:0", help="of the comparison with --base (cuda:0)")
    add_out(parser)
    words = "exit with 1 if a float32 row is slower than torch eager; with --base, if one is slower than the base"
    parser.add_argument("--check", action="store_true", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; with ``--check`` return 1 if a row is slower than it may be. ``--base`` stores nothing."""
    if arguments.base:
        try:
            compared = compare(arguments.base, arguments.device, arguments.only, arguments.language, arguments.runs)
        except Failed as error:
            print(f"bench.py ops: {error}", file=sys.stderr)
            return 2
        return 1 if arguments.check and any(row.slower for row in compared) else 0
    try:
        device = ptxrt.Device("cuda:0")
        import torch  # noqa: PLC0415 (not a dependency of ptxrt)
    except (ptxrt.PtxrtError, ImportError) as error:
        print(f"bench.py ops needs an NVIDIA GPU and torch: {error}", file=sys.stderr)
        return 2
    os.environ["PTXRT_LANGUAGE"] = language = arguments.language
    chosen = list(cases(arguments.only))
    keys = [key for case in chosen for key in kernel_keys(case.family, case.dtype, language)]
    measurement = Measurement(arguments.out, keys)
    clear = torch.empty(_CLEARED, dtype=torch.uint8, device="cuda")
    speed = _copy_speed(torch, clear, arguments.runs)
    measured: list[dict[str, Any]] = []
    for case in chosen:
        made = make_row(torch, case)
        calls = {"ptxrt": made.ours, "eager": made.eager}
        if arguments.compile and made.compiled:
            calls["compile"] = partial(torch.compile(made.compiled[0]), *made.compiled[1])
        times = _times(torch, clear, calls, arguments.runs)
        measured.append({"op": case.op, "case": str(case), "floor": made.nbytes / speed * 1e6, **times})
        print(f"{case.op:28} {case!s:44} " + "  ".join(f"{name} {us:.1f}" for name, us in times.items()), flush=True)
        del made, calls
        torch.cuda.empty_cache()
    record = {"language": language, "runs": arguments.runs, "copy_bytes_per_second": speed, "rows": measured}
    print(f"\n{_body(record)}")
    name = f"{NAME}{'-hip' if language == 'hip' else ''}-{slug(device.name)}"
    for path in measurement.save(KIND, name, device, record):
        print(f"stored {path}")
    slower = [row for row in measured if "f32" in row["case"] and row["ptxrt"] > row["eager"]]
    return 1 if arguments.check and slower else 0


def _title(record: Record) -> str:
    return f"Time of the ops in {record['language'].upper()} on {record['environment']['device_name']}"


def _body(record: Record) -> str:
    text = f"Median of {record['runs']} runs in microseconds, the L2 cleared before each.\n"
    text += f"floor: the fewest bytes at the speed of a copy, {record['copy_bytes_per_second'] / 1e9:.0f} GB/s.\n\n"
    return text + table(record["rows"]) + "\n"


KIND = Kind(NAME, _title, _body)


def table(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table."""
    head = ["op", "case", "floor", "ptxrt", "of the floor's speed", "torch eager", "torch.compile", "eager / ptxrt"]
    cells = []
    for row in measured:
        numbers = [row["floor"], row["ptxrt"]]
        others = [row["eager"], row.get("compile")]
        cells.append(
            [
                row["op"],
                row["case"],
                *(f"{us:.1f}" for us in numbers),
                f"{row['floor'] / row['ptxrt']:.0%}",
                *("-" if us is None else f"{us:.1f}" for us in others),
                f"{row['eager'] / row['ptxrt']:.2f}",
            ]
        )
    return markdown_table(head, cells)


def _times(torch: Any, clear: Any, calls: dict[str, Call], count: int) -> dict[str, float]:
    """Return the median microseconds of each call; they take turns."""
    for call in calls.values():
        for _ in range(3):
            call()
    pairs: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(count):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            clear.zero_()
            start.record()
            call()
            end.record()
            pairs[name].append((start, end))
    torch.cuda.synchronize()
    return {name: statistics.median(a.elapsed_time(b) * 1e3 for a, b in events) for name, events in pairs.items()}


def _copy_speed(torch: Any, clear: Any, count: int) -> float:
    """Return the bytes a second, read and written, of a copy of 1 GiB within the device."""
    source = torch.empty(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    us = _times(torch, clear, {"copy": lambda: target.copy_(source)}, count)["copy"]
    return float(2 * source.nbytes / us * 1e6)


def _checkout(text: str) -> Path:
    folder = Path(text)
    if not (folder / "ptxrt" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"expected a checkout of ptxrt, given {text!r}, where there is no ptxrt/")
    return folder
