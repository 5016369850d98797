"""batch_norm over the GPUs of a host, a process each, beside the shard alone, the all-reduce and torch's."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ptxrt
from benchmarks.distributed_model import HOP_US, MOST_RANKS, PORT, Fit, exact_bytes, gathered_bytes
from benchmarks.report import ROOT, Kind, Measurement, Record, Refused, add_out, markdown_table, opened

__all__ = ["HELP", "KIND", "NAME", "SUMS", "add_arguments", "findings", "measured", "run", "there"]

NAME = "distributed"
HELP = "batch_norm over the GPUs of this host, beside the shard alone, the all-reduce alone, and torch's SyncBatchNorm"

_KEYS = (
    *(f"batch_norm{part}.ptx {dtype}" for part in ("", "_exact", "_rounded") for dtype in ("f32", "f16")),
    *(f"ptxrt/ops/_batch_norm{part}.py" for part in ("", "_exact", "_rounded")),
    "ptxrt/distributed",
)
_SECONDS = 540
_RATIO = 1.3  # of the shard alone and the all-reduce together
SUMS = ("exact", "rounded")
"""How batch_norm adds up: with exact=True, and without."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--ranks", type=int, default=2, help="GPUs, with a process each (2)")
    parser.add_argument("--runs", type=int, default=50, help="timed runs of each (50)")
    add_out(parser)
    words = f"exit with 1 if by exact and by rounded sums a shard takes more than {_RATIO} times the shard alone and "
    words += "the all-reduce, or than torch"
    parser.add_argument("--check", action="store_true", help=words)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; return 1 if ``--check`` is given and there is a finding."""
    device = opened("cuda:0")
    if there() < arguments.ranks:
        raise Refused(f"{arguments.ranks} ranks need as many GPUs, and {there()} are there")
    measurement = Measurement(arguments.out, _KEYS)
    record = {"ranks": arguments.ranks, "runs": arguments.runs, **measured(arguments.ranks, arguments.runs)}
    print(_body(record))
    measurement.store(KIND, device, record)
    return 1 if arguments.check and any(map(findings, record["rows"])) else 0


def there() -> int:
    """Return how many GPUs there are."""
    return sum(device.kind == "cuda" for device in ptxrt.devices())


def measured(ranks: int, runs: int) -> dict[str, Any]:
    """Return what rank 0 prints; all have the same."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.distributed_worker"]
    path = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tools'}"}
    started = [
        subprocess.Popen(
            [*command, *map(str, (rank, ranks, port, runs))],
            env={**os.environ, **path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        printed = [process.communicate(timeout=_SECONDS)[0] for process in started]
    except subprocess.TimeoutExpired as error:
        raise Refused(f"the ranks have not ended after {_SECONDS} s") from error
    finally:
        for process in started:
            process.kill()
    if any(process.returncode for process in started):
        raise Refused("a rank has ended with an error")
    result: dict[str, Any] = json.loads(printed[0].splitlines()[-1])
    return result


def findings(row: Mapping[str, Any], sums: Sequence[str] = SUMS) -> list[str]:
    """Return in which bounds a row's time over ranks is not, by the fastest of some ways to add up."""
    us = row["us"]
    best = min(us[f"{kind}, {how}"] for kind in sums for how in ("ranks", "replayed"))
    ratio, beside = best / (us["alone"] + us["all-reduce"]), best / us["SyncBatchNorm"]
    found = [f"{ratio:.2f} of alone + all-reduce"] if ratio > _RATIO else []
    return found + ([f"{beside:.2f} of SyncBatchNorm"] if beside > 1 else [])


def _body(record: Record) -> str:
    fit = Fit.of(record["all_reduce"])
    cells = []
    for row in record["rows"]:
        us = row["us"]
        for kind in SUMS:
            ratio = min(us[f"{kind}, ranks"], us[f"{kind}, replayed"]) / (us["alone"] + us["all-reduce"])
            case = f"{row['turn']} {'x'.join(map(str, row['shape']))} {row['dtype']}"
            names = ("alone", f"{kind}, one rank", "all-reduce", f"{kind}, ranks", f"{kind}, replayed", "SyncBatchNorm")
            odd = "; ".join(findings(row, [kind])) or "none"
            cells.append([case, kind, str(row["bytes"]), *(f"{us[name]:.1f}" for name in names), f"{ratio:.2f}", odd])
    times = ("alone", "one rank", "all-reduce", "ranks", "ranks, replayed", "SyncBatchNorm")
    head = [
        *("shard of each rank", "sums", "bytes"),
        *(f"{name}, us" for name in times),
        *("of alone + all-reduce", "out of bounds"),
    ]
    out = [row for row in record["rows"] if findings(row)]
    alone = [
        [str(row["bytes"]), f"{row['us']:.1f}", f"{fit.all_reduce_us(row['bytes'], record['ranks']):.1f}"]
        for row in record["all_reduce"]
    ]
    ranks = [2, 8, 64, 512, MOST_RANKS]
    model = [
        [str(n), f"{fit.all_reduce_us(exact_bytes(256), n):.0f}", f"{fit.all_gather_us(gathered_bytes(256, n), n):.0f}"]
        for n in ranks
    ]
    return "\n\n".join(
        (
            f"{record['ranks']} GPUs of a host, a process each; median of {record['runs']} runs on the slowest rank, "
            "the L2 cleared before\neach. Alone is the shard's own statistics, with no communicator; one rank has the "
            "exact sums, or each rank's\nrounded ones, and no other rank. A replayed call is in a graph.",
            markdown_table(head, cells),
            f"By the faster of exact and rounded sums {len(out)} of {len(record['rows'])} shards are out of bounds.",
            f"An all-reduce of integers alone, and by the model: {fit.start_us:.1f} us and {fit.speed / 1e9:.0f} GB/s.",
            markdown_table(["bytes", "us", "by the model, us"], alone),
            f"The model beyond, of 256 channels in f32: a hop between hosts takes {HOP_US:g} us and a port has "
            f"{PORT / 1e9:g} GB/s, which\nare assumptions. SyncBatchNorm gathers each rank's statistics.",
            markdown_table(["ranks", "all-reduce of exact sums, us", "all-gather of SyncBatchNorm, us"], model),
        )
    )


KIND = Kind(NAME, lambda record: f"batch_norm over {record['ranks']} x {record['environment']['device_name']}", _body)
