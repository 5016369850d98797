"""``ptxrt verify``: a kernel on the PTX machine and on a GPU, as compiled at each level of the assembler."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ptxrt.check import Level, verify
from ptxrt.commands import check as check_command
from ptxrt.commands.tables import fitted
from ptxrt.errors import PtxrtError
from ptxrt.runtime.source import KernelSource

__all__ = ["DESCRIPTION", "HELP", "add_arguments", "run"]

HELP = "is it my kernel, or the assembler? Compare the PTX machine with a GPU at -O0 to -O3"
DESCRIPTION = (
    "Run one kernel of a .ptx, .cu or .hip file on the PTX machine with every check on, then on an NVIDIA GPU as "
    "compiled at each level of the assembler, and compare the arrays. Exits with 1 on a fault or a difference, with 2 "
    "if the kernel does not compile or an argument is wrong. The arguments are those of ptxrt check."
)


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``ptxrt verify``."""
    check_command.add_call(command)
    command.add_argument("--device", help="the GPU; the first of NVIDIA's if left out, and sim:0 for none")


def run(given: argparse.Namespace, say: Callable[[str], None], complain: Callable[[str, int], int]) -> int:
    """Verify, print through `say`, complain through `complain`, and return the exit code."""
    try:
        found = verify(KernelSource.from_file(given.file), device=given.device, **check_command.call_of(given))
    except PtxrtError as error:
        return complain(str(error), 2)
    except MemoryError:
        return complain("this machine has not enough memory for the arrays and the launch", 2)
    if found.report.fault is not None:
        say(f"{type(found.report.fault).__name__}: {found.report.fault}\n")
    if found.levels:
        rows = [(f"-O{level.level}", _result(level), _words(level)) for level in found.levels]
        say(fitted((f"{found.device}", "as the PTX machine", ""), rows) + "\n")
    say(found.conclusion)
    return 0 if found.agrees else 1


def _result(level: Level) -> str:
    return "did not run" if level.error is not None else "same" if level.agrees else "DIFFERENT"


def _words(level: Level) -> str:
    if level.error is not None:
        return str(level.error).splitlines()[0]
    return "; ".join(
        f"{name}[{one.index}] is {one.given!s}, on the machine {one.expected!s}, and {one.count - 1} more differ"
        for name, one in level.differences.items()
    )
