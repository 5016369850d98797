"""``ptxrt check``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ptxrt import files
from ptxrt.check.arguments import FORMS
from ptxrt.check.run import check
from ptxrt.commands._check_html import as_html
from ptxrt.commands._check_report import as_json, as_text
from ptxrt.compilers.ptx_text import suggestion
from ptxrt.errors import InvalidArgument, PtxrtError
from ptxrt.runtime.source import KernelSource
from ptxrt.sim import CHECKS

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "add_call", "call_of", "run"]

_NUMBER = "[0-9]{1,19}"

HELP = "run a kernel on the PTX machine with every check on, and count what its lines do"
DESCRIPTION = (
    "Run one kernel of a .ptx, .cu or .hip file with every check on, and report. Exits with 1 on a fault, with 2 if "
    "the kernel does not compile or an argument is wrong. No GPU is needed. An ARGUMENT is "
    f"{FORMS}. SHAPE is 1024 or 8x128x1024, TYPE f32, bf16, u32, i64 and so on; random is the standard normal "
    "distribution, or whole numbers from 0 to 99; empty is memory that nobody has written yet, as an output is. "
    "For example: ptxrt check saxpy.ptx --grid 4 --block 256 --arg x=random:f32:1024 --arg y=zeros:f32:1024 "
    "--arg n=1024 --arg a=2 --counts"
)


def add_call(command: argparse.ArgumentParser) -> None:
    """Add what says which kernel is to run, and on what."""
    command.add_argument("file", metavar="FILE", help="a text in PTX (.ptx), CUDA C++ (.cu) or HIP (.hip)")
    command.add_argument(
        "--entry",
        help='the kernel; may be left out where there is one only; a template with its arguments, "add<float, 4>"',
    )
    command.add_argument("--signature", help='such as "const f32* x, f32* y, u32 n"; else as the text declares it')
    command.add_argument("--grid", required=True, metavar="X[,Y[,Z]]", help="blocks")
    command.add_argument("--block", required=True, metavar="X[,Y[,Z]]", help="threads a block")
    command.add_argument("--arg", metavar="NAME=ARGUMENT", action="append", default=[], help="one for each parameter")
    command.add_argument("--shared", metavar="BYTES", default="0", help="dynamic shared memory a block")
    command.add_argument("--cooperative", action="store_true", help="all blocks at one time: they wait for each other")
    command.add_argument("--budget", metavar="N", help="instructions after which a loop counts as endless")
    command.add_argument("--seed", metavar="N", default="0", help="of the random arrays")
    command.add_argument("--arch", help="what to compile C++ for (sm_90)")


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ptxrt check``."""
    add_call(command)
    command.add_argument(
        "--checks",
        metavar="NAMES",
        default="all",
        help="of the checks that cost time, those to make, separated by commas: all, none, " + ", ".join(CHECKS),
    )
    command.add_argument("--counts", action="store_true", help="count instructions, sectors, bank conflicts by line")
    command.add_argument("--html", metavar="FILE", help="write the text with its counts drawn beside it")
    command.add_argument("--json", action="store_true", help="the report as a JSON object")


def call_of(given: argparse.Namespace) -> dict[str, Any]:
    """Return what :func:`ptxrt.check.check` takes, of the arguments that :func:`add_call` adds.

    Raises
    ------
    InvalidArgument
        For what is not understood.
    """
    arguments = {}
    for pair in given.arg:
        name, equals, value = pair.partition("=")
        if not equals or not name or name in arguments:
            wanted = "NAME=ARGUMENT" if name not in arguments else "each parameter once"
            raise InvalidArgument(op="check", argument="--arg", expected=wanted, given=repr(pair))
        arguments[name] = value
    return {
        "entry": given.entry,
        "signature": given.signature,
        "grid": _whole("--grid", given.grid, most=3),
        "block": _whole("--block", given.block, most=3),
        "arguments": arguments,
        "shared_bytes": _whole("--shared", given.shared)[0],
        "cooperative": given.cooperative,
        "budget": None if given.budget is None else _whole("--budget", given.budget)[0],
        "seed": _whole("--seed", given.seed)[0],
        "arch": given.arch,
    }


def run(given: argparse.Namespace, say: Callable[[str], None], complain: Callable[[str, int], int]) -> int:
    """Check, print through `say`, complain through `complain`, and return the exit code."""
    try:
        call = call_of(given)
        page = None if given.html is None else _page(given.html)
        source = KernelSource.from_file(given.file)
        counts = given.counts or given.html is not None
        # What the kernel prints is no part of a JSON object.
        with contextlib.redirect_stdout(sys.stderr) if given.json else contextlib.nullcontext():
            report = check(source, checks=_checks(given.checks), counts=counts, **call)
    except PtxrtError as error:
        return complain(str(error), 2)
    except MemoryError:
        return complain("this machine has not enough memory for the arrays and the launch", 2)
    say(as_json(report) if given.json else as_text(report))
    code = 0 if report.fault is None else 1
    if page is not None:
        try:
            files.replace(page, as_html(report).encode(), mode=0o666)
        except OSError as error:
            return complain(f"cannot write {given.html}: {_reason(error)}", code or 2)
    return code


def _page(name: str) -> Path:
    """Return where ``--html`` is written, behind all links.

    Raises
    ------
    InvalidArgument
        If it cannot be.
    """
    try:
        page = Path(os.path.realpath(name))
        files.writable(page)
    except (OSError, ValueError) as error:
        expected, reason = "a file that can be written", f"{name}: {_reason(error)}"
        raise InvalidArgument(
            op="check", argument="--html", expected=expected, given=reason, fix="Name another"
        ) from error
    return page


def _reason(error: OSError | ValueError) -> str:
    """Return why a file cannot be opened; a ValueError is a NUL or half a character in its name."""
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def _checks(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if names == ["none"]:
        return []
    unknown = [name for name in names if name not in ("all", *CHECKS)]
    if unknown:
        raise InvalidArgument(
            op="check",
            argument="--checks",
            expected=f"all, none, or names out of {', '.join(CHECKS)}",
            given=repr(text),
            fix=suggestion(unknown[0], CHECKS),
        )
    return names


def _whole(option: str, text: str, most: int = 1) -> tuple[int, ...]:
    """Return the whole numbers of ``4``, ``4,2`` or ``4x2x1``."""
    parts = text.replace("x", ",").split(",")
    if len(parts) > most or not all(re.fullmatch(_NUMBER, part) for part in parts):
        wanted = "a whole number" if most == 1 else "one to three whole numbers, such as 4 or 4,2,1"
        raise InvalidArgument(op="check", argument=option, expected=wanted, given=repr(text))
    return tuple(map(int, parts))
