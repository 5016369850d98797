"""What the ops cost on a GPU: ptxrt in both languages beside torch, the L2 cache cleared before each run.

Every row names the fewest bytes that the op must move: each input read once, each output written once. Its floor is the
time of those bytes at the speed of a device-to-device copy and that of an empty kernel, both measured in the same run.
Beside it stands a copy of as many bytes, which tells what the memory gives at that size.
Results are held to torch's in float64 before anything is timed. The calls of a row take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import ptxrt
from benchmarks.launch_peers import empty_kernel
from benchmarks.ops_base import Comparison, Failed, compare
from benchmarks.ops_bounds import behind, geometric_means, missed, rows_of, torch_best
from benchmarks.ops_calls import Call, timer
from benchmarks.ops_cases import TYPES, Case, cases, drawn, keys
from benchmarks.ops_compiled import compile_ahead, compiled, faults, limited, speak
from benchmarks.ops_torch import bar, error, make_row, their_bar
from benchmarks.report import Kind, Measurement, Record, add_out, markdown_table, slug

__all__ = ["HELP", "KIND", "NAME", "add_arguments", "copy_speed", "launch_time", "measure", "run", "table"]

NAME = "ops"
HELP = "time of each op on the device: ptxrt in PTX and HIP, torch eager, torch.compile; or beside another checkout's"

_LANGUAGES = ("ptx", "hip")
_ROUNDS = 3  # in which the calls of a row take turns
_AHEAD = 0.45  # of the time of a run, for compiling ahead
_ROW_SECONDS = 30.0  # for compiling a row that was not compiled ahead


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--only", default="", metavar="WORD", help="run the rows whose op or case has this in it")
    parser.add_argument("--types", nargs="+", choices=TYPES, default=TYPES, help="element types (all)")
    words = "run so many random cases of all ops instead, print where torch is faster, and store nothing"
    parser.add_argument("--drawn", type=int, default=0, metavar="COUNT", help=words)
    parser.add_argument("--seed", type=int, default=1, help="of these cases (1)")
    words = "of ptxrt's kernels (both; with --base ptx)"
    parser.add_argument("--languages", nargs="+", choices=_LANGUAGES, help=words)
    parser.add_argument("--runs", type=int, default=30, help="timed runs of each call (30)")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    words = "what is not compiled by then is left out of torch.compile's column (360)"
    parser.add_argument("--seconds", type=float, default=360.0, help=words)
    parser.add_argument("--base", type=_checkout, metavar="DIR", help="compare with the ptxrt of this checkout instead")
    parser.add_argument("--device", default="cuda:0", help="of the comparison with --base (cuda:0)")
    add_out(parser)
    words = "exit with 1 if a bound is missed; with --base, if a row is slower than the base"
    parser.add_argument("--check", action="store_true", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store, but with ``--base`` and ``--drawn``; with ``--check`` return 1 if a bound is missed."""
    if arguments.drawn and (arguments.base or arguments.only or list(arguments.types) != list(TYPES)):
        print("bench.py ops: --drawn is of all ops and types, without --only, --types and --base", file=sys.stderr)
        return 2
    if arguments.base:
        compared: list[Comparison] = []
        try:
            for language in arguments.languages or ["ptx"]:
                where = arguments.base, arguments.device
                compared += compare(*where, arguments.only, arguments.types, language, arguments.runs)
        except Failed as failed:
            print(f"bench.py ops: {failed}", file=sys.stderr)
            return 2
        return 1 if arguments.check and any(row.slower for row in compared) else 0
    started = time.monotonic()
    try:
        device = ptxrt.Device("cuda:0")
        import torch  # noqa: PLC0415 (not a dependency of ptxrt)
    except (ptxrt.PtxrtError, ImportError) as failed:
        print(f"bench.py ops needs an NVIDIA GPU and torch: {failed}", file=sys.stderr)
        return 2
    languages = list(arguments.languages or _LANGUAGES)
    if arguments.drawn:
        chosen = list(islice(drawn(arguments.seed), arguments.drawn))
    else:
        chosen = list(cases(arguments.only, arguments.types))
    measured = (key for case in chosen for key in keys(case, languages))
    measurement = None if arguments.drawn else Measurement(arguments.out, measured)
    deadline = 0.0
    if not arguments.no_compile and chosen:
        deadline = started + arguments.seconds
        done = compile_ahead(chosen, languages, _AHEAD * arguments.seconds)
        print(f"{done} of {len(chosen)} rows compiled ahead in {time.monotonic() - started:.0f} s", flush=True)
    before = os.environ.get("PTXRT_LANGUAGE")
    try:
        record = measure(torch, device, chosen, languages, arguments.runs, deadline)
    finally:
        speak(before or "")
    if measurement is None:
        print("\nSlower than torch:", *(behind(record["rows"]) or ["none"]), sep="\n")
        return 0
    lines = missed(record["rows"], languages)
    print(f"\n{_body(record)}\n{time.monotonic() - started:.0f} s")
    name = f"{NAME}{'-hip' if languages == ['hip'] else ''}-{slug(device.name)}"
    for path in measurement.save(KIND, name, device, record):
        print(f"stored {path}")
    for line in lines:
        print(f"missed: {line}")
    return 1 if arguments.check and lines else 0


def measure(
    torch: Any,
    device: ptxrt.Device,
    chosen: Sequence[Case],
    languages: Sequence[str],
    runs: int,
    deadline: float,
) -> dict[str, Any]:
    """Return the record of the cases.

    Parameters
    ----------
    deadline
        Of :func:`time.monotonic`, after which torch.compile compiles nothing more; 0 leaves it out of all rows.
    """
    launch_us, speed = launch_time(device, runs), copy_speed(device, runs)
    rows = []
    for case in chosen:
        row: dict[str, Any] = {"op": case.op, "case": str(case), "dtype": case.dtype}
        row |= {"floor": None, "times": {}, "errors": {}, "failed": {}}
        try:
            _measure(torch, device, case, languages, runs, deadline, row)
        except Exception as failed:  # noqa: BLE001 (whatever it is, it is the row's)
            row["failed"]["row"] = _reason(failed)
        if "bytes" in row:
            row["floor"] = row["bytes"] / speed * 1e6 + launch_us
        rows.append(row)
        cells = [f"{name} {us:.1f}" for name, us in row["times"].items()]
        cells += [f"{name}: {why}" for name, why in row["failed"].items()]
        print(f"{case.op:28} {case!s:44} " + "  ".join(cells), flush=True)
        if device.kind == "cuda":
            try:
                torch.cuda.empty_cache()
            except (
                RuntimeError
            ) as gone:  # after a fault the process can use the device no more, but store what there is
                print(f"The rows behind this one are left out: {_reason(gone)}", file=sys.stderr)
                break
    return {
        "languages": list(languages),
        "runs": runs,
        "copy_bytes_per_second": speed,
        "launch_us": launch_us,
        "rows": rows,
    }


def _measure(
    torch: Any,
    device: ptxrt.Device,
    case: Case,
    languages: Sequence[str],
    runs: int,
    deadline: float,
    row: dict[str, Any],
) -> None:
    """Put what each call takes into the row, and why those failed that did; a wrong result is not timed."""
    made = make_row(torch, case, "cuda" if device.kind == "cuda" else "cpu")
    reference = made.reference()
    calls: dict[str, Call] = {}
    for name in (*languages, "eager", *(["compile"] if deadline else [])):
        limit = bar(case) if name in languages else their_bar(case)
        try:
            if name in languages:
                speak(name)
                call = made.ours
                result = call()
                row["bytes"] = made.nbytes(result)
            elif name == "eager":
                call = made.peer(lambda eager: eager)
                result = call()
            elif faults(case):
                raise RuntimeError("torch's compiled kernel accesses memory that is not its own")
            elif (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError("the time of the run was over before it was compiled")
            else:
                with limited(min(_ROW_SECONDS, left)):
                    call = compiled(torch, made)
                    result = call()
            row["errors"][name] = found = error(torch, result, reference)
        except Exception as failed:  # noqa: BLE001 (as above)
            row["failed"][name] = _reason(failed)
            continue
        if found > limit:
            row["failed"][name] = f"wrong: error {found:.1e}, expected at most {limit:.1e}"
        else:
            calls[name] = call
    del reference, result
    if calls:
        source, target = (ptxrt.empty(-(-row["bytes"] // 2), np.uint8, device) for _ in range(2))
        calls["copy"] = lambda: target.copy_from(source)
    row["times"] = _times(device, calls, runs)


def _times(device: ptxrt.Device, calls: Mapping[str, Call], runs: int) -> dict[str, float]:
    """Return the median microseconds of each call; they take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            if name in _LANGUAGES:
                speak(name)
            call()  # which selects the plans
            times[name] += timer(device, call)(-(-runs // _ROUNDS))
    return {name: statistics.median(values) for name, values in times.items()}


def launch_time(device: ptxrt.Device, runs: int) -> float:
    """Return the microseconds of an empty kernel, measured as a row is."""
    return _times(device, {"launch": empty_kernel(device)}, runs)["launch"]


def copy_speed(device: ptxrt.Device, runs: int) -> float:
    """Return the bytes a second, read and written, of a copy of 1 GiB within the device."""
    source, target = (ptxrt.zeros(1 << 28 if device.kind == "cuda" else 1, np.float32, device) for _ in range(2))
    us = _times(device, {"copy": lambda: target.copy_from(source)}, runs)["copy"]
    return float(2 * source.nbytes / us * 1e6)


def _reason(failed: Exception) -> str:
    lines = str(failed).strip().splitlines()
    return f"{type(failed).__name__}: {lines[0] if lines else ''}"[:160]


# What is said of a record ---------------------------------------------------------------------------------------------


def _title(record: Record) -> str:
    languages = record.get("languages") or [record["language"]]
    return f"Time of the ops in {' and '.join(map(str.upper, languages))} on {record['environment']['device_name']}"


def _body(record: Record) -> str:
    rows = rows_of(record)
    launch = f", and an empty kernel, {record['launch_us']:.1f} us" if "launch_us" in record else ""
    text = f"Median of {record['runs']} runs in microseconds, the L2 cleared before each.\n"
    text += (
        f"floor: the fewest bytes at the speed of a copy, {record['copy_bytes_per_second'] / 1e9:.0f} GB/s{launch}.\n"
    )
    text += "copy: as many bytes read and written by a copy within the device, in the same measure.\n"
    text += "torch: the better of torch eager and torch.compile.\n\n"
    means = [(name, f"{mean:.2f}") for name, mean in geometric_means(rows).items()]
    text += markdown_table(("geometric mean", "of all rows"), means) + f"\n\n{table(rows)}\n"
    failed = [f"- {row['op']} {row['case']}, {name}: {why}" for row in rows for name, why in row["failed"].items()]
    text += "\n".join(["\nNot measured:\n", *failed, ""]) if failed else ""
    lines = missed(rows, record["languages"]) if "languages" in record else []
    return text + ("\n".join(["\nBounds that are missed:\n", *(f"- {line}" for line in lines), ""]) if lines else "")


KIND = Kind(NAME, _title, _body)


def table(measured: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table: times, and the ratios of ours to the floor and of torch's better to ours."""
    head = ["op", "case", "floor", "copy", "ptx", "hip", "torch eager", "torch.compile"]
    head += ["ptx / floor", "hip / floor", "torch / ptx", "torch / hip"]
    cells = []
    for row in measured:
        times, floor, best = row["times"], row["floor"], torch_best(row)
        ours = [times.get(language) for language in _LANGUAGES]
        cells.append(
            [
                row["op"],
                row["case"],
                *(_number(us, 1) for us in (floor, times.get("copy"), *ours, times.get("eager"), times.get("compile"))),
                *(_number(us and us / floor, 2) for us in ours),
                *(_number(us and best and best / us, 2) for us in ours),
            ]
        )
    return markdown_table(head, cells)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _checkout(text: str) -> Path:
    folder = Path(text)
    if not (folder / "ptxrt" / "__init__.py").is_file():
        raise argparse.ArgumentTypeError(f"expected a checkout of ptxrt, given {text!r}, where there is no ptxrt/")
    return folder
