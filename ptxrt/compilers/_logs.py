"""Reading what NVIDIA's compilers print: faults with their lines, and the resources that an entry uses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ptxrt.compilers._binary import Report

__all__ = ["Problem", "nvrtc_problems", "ptxas_problems", "resource_reports", "summary"]

# "ptxas application ptx input, line 70; error   : Unknown symbol '%zz'", "ptxas fatal   : ...", and the linker's
# own "error   : Undefined reference to 'f' in 'name'".
_PTXAS = re.compile(
    r"^(?:ptxas )?(?:application ptx input, line (?P<line>\d+); )?(?:error|fatal) *: +(?P<text>.+?)\s*$", re.MULTILINE
)
_ON_LINE = re.compile(r" on line (\d+)$")
_NVRTC = re.compile(
    r"^(?:(?P<file>[^\n]+?)\((?P<line>\d+)\)|At end of source|nvrtc): "
    r"(?:catastrophic )?error(?: #\S+)?: (?P<text>.+?)\s*$",
    re.MULTILINE,
)

_COMPILING = re.compile(r"Compiling entry function '(.+?)' for ")
_PROPERTIES = re.compile(r"^ptxas info +: Function properties for '?(.+?)'?$")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"^ptxas info +: Used (\d+) registers(.*)")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_GLOBAL = re.compile(r"^(ptxas )?info +: \d+ bytes gmem(.*)")
_CONST = re.compile(r"(\d+) bytes cmem\[3\]")


@dataclass(frozen=True)
class Problem:
    """One error in a log: the file (None for PTX), the line from 1 (None where it has none), the words."""

    text: str
    line: int | None = None
    file: str | None = None


def ptxas_problems(log: str) -> list[Problem]:
    """Return the errors that ptxas or the linker printed, in their order."""
    problems = []
    for match in _PTXAS.finditer(log):
        text = match["text"]
        if text.startswith("Ptx assembly aborted"):
            continue
        line = int(match["line"]) if match["line"] else None
        on_line = _ON_LINE.search(text)
        if line is None and on_line:
            line = int(on_line[1])
        problems.append(Problem(text, line))
    return problems


def nvrtc_problems(log: str) -> list[Problem]:
    """Return the errors that NVRTC's front end printed, in their order."""
    return [Problem(m["text"], int(m["line"]) if m["line"] else None, m["file"]) for m in _NVRTC.finditer(log)]


def summary(problems: Sequence[Problem]) -> str:
    """Return one sentence: all that is said of the first faulty line, and how many more errors there are."""
    first = problems[0]
    # ptxas often says "Arguments mismatch" first and the reason, "Unknown symbol '%zz'", second.
    same = [p.text for p in problems if (p.line, p.file) == (first.line, first.file)]
    where = f"line {first.line}: " if first.line is not None else ""
    more = len(problems) - len(same)
    return where + "; ".join(dict.fromkeys(same)) + (f" (and {more} more)" if more else "")


def resource_reports(log: str) -> dict[str, Report]:
    """Return each entry's resources, from a verbose log of ptxas alone or of nvJitLink."""
    values: dict[str, dict[str, int]] = {}
    constant: int | None = None
    entry = function = ""
    for line in log.splitlines():
        if match := _COMPILING.search(line):
            entry = match[1]
            values[entry] = {}
        elif match := _PROPERTIES.search(line):
            function = match[1]
        elif (match := _FRAME.search(line)) and function in values:
            keys = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            values[function].update(zip(keys, map(int, match.groups()), strict=True))
        elif (match := _USED.search(line)) and entry:
            shared, barriers = (pattern.search(match[2]) for pattern in (_SHARED, _BARRIERS))
            values[entry].update(registers=int(match[1]), shared_bytes=int(shared[1]) if shared else 0)
            if barriers:
                values[entry]["barriers"] = int(barriers[1])
        elif match := _GLOBAL.search(line):
            bank = _CONST.search(match[2])
            # From sm_90 on ptxas leaves the constants to the linker's line, so that its own silence proves nothing.
            if bank or match[1] is None:
                constant = int(bank[1]) if bank else 0
    return {name: Report(**found, constant_bytes=constant) for name, found in values.items()}
