"""The worst errors of the ops, which their tests have measured, stored beside the times."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ptxrt
from benchmarks.measured import kernel_keys
from benchmarks.report import Kind, Measurement, Record, add_out, markdown_table, slug
from ptxrt.dtypes import BY_NAME

__all__ = ["HELP", "KIND", "NAME", "add_arguments", "run", "save_errors"]

NAME = "errors"
HELP = "store the worst errors that the ops' tests have seen: of the file that PTXRT_ERRORS named for them"

_SHORT = {str(dtype.numpy): name for name, dtype in BY_NAME.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="what the tests wrote")
    parser.add_argument("--device", default="sim:0", help="the device of its kind whose rows are stored (sim:0)")
    add_out(parser)


def run(arguments: argparse.Namespace) -> int:
    """Read the file and store the device's rows; return 2 if that cannot be."""
    try:
        device = ptxrt.Device(arguments.device)
        stored = save_errors(arguments.out, device, json.loads(arguments.file.read_text()))
    except (ptxrt.PtxrtError, OSError, json.JSONDecodeError) as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 2
    if not stored:
        print(f"bench.py: {arguments.file} has no errors of {device.kind}", file=sys.stderr)
        return 2
    for path in stored:
        print(f"stored {path}")
    return 0


def save_errors(folder: Path, device: ptxrt.Device, errors: Sequence[dict[str, Any]]) -> list[Path]:
    """Store the rows of the device's kind, and return the files' paths: none where there are no rows."""
    rows = [row for row in errors if row["device"] == device.kind]
    if not rows:
        return []
    measured = {(row["op"].split()[0].removesuffix("_backward"), row["dtype"], row["language"]) for row in rows}
    keys = [key for op, dtype, language in measured for key in kernel_keys(op, _SHORT[dtype], language)]
    return Measurement(folder, keys).save(KIND, f"{NAME}-{slug(device.name)}", device, {"errors": rows})


def _body(record: Record) -> str:
    head = ["op, result", "dtype", "device", "language", "cases", "||error|| / ||ref||", "of its bar", "worst element"]
    cells = [
        [
            *(row[name] for name in ("op", "dtype", "device", "language")),
            str(row["cases"]),
            f"{row['error']:.1e}",
            f"{row['of_bar']:.0%}",
            f"{row['element']:.1e}",
        ]
        for row in record["errors"]
    ]
    return markdown_table(head, cells)


KIND = Kind(NAME, lambda _: "Worst errors of the ops", _body)
