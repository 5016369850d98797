"""Saying in our own words why nvJitLink refused a text, where they help more than the assembler's."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from ptxrt.compilers._logs import ptxas_problems, summary
from ptxrt.compilers.ptx_text import PtxHeader, output_arch

__all__ = ["Fault", "explain"]

_FIXES = (
    ("does not support .target", "Raise .version to one that knows the target"),
    ("Parsing error near ''", "The text ends in the middle: is it cut off?"),
    ("32-Bit", "Write .address_size 64"),
    ("non-ASCII", "Take it out of the comment, or install a newer nvJitLink: 13.5 lets it stand there"),
    ("Undefined reference", "Everything that a kernel calls must be defined in its own text"),
    ("Unresolved extern", "Everything that a kernel calls must be defined in its own text"),
    ("too much shared data", "Static shared memory ends at 48 KiB: take more as .extern .shared, through shared_bytes"),
)


@dataclass(frozen=True)
class Fault:
    """What is wrong, where, and the way out."""

    message: str
    line: int | None = None
    fix: str | None = None
    expected: object = None
    given: object = None


def explain(
    log: str, status: str, *, header: PtxHeader, arch: str, ours: str, architectures: Callable[[], tuple[str, ...]]
) -> Fault:
    """Read the error log of a failed link.

    Parameters
    ----------
    log, status
        What nvJitLink printed and returned.
    header
        What the text says of itself.
    arch
        What it was compiled for.
    ours
        The compiler's name and version.
    architectures
        What it makes code for; asked only when needed, for it takes a while.
    """
    target = header.target
    fix: str | None
    written = ".".join(map(str, header.version))
    if found := re.search(r"Unsupported \.version \S+; current version is '([\d.]+)'", log):
        return Fault(
            f"the text says .version {written}, and {ours} reads PTX up to {found[1]}",
            header.version_line,
            f"Write .version {found[1]} or lower, or install a newer nvJitLink",
            expected=f".version {found[1]} or lower",
            given=f".version {written}",
        )
    if "Unsupported .target" in log:
        known = architectures()
        there_are = f"; it knows {', '.join(known)}" if known else ""
        return Fault(
            f"the text says .target {target}, which {ours} does not know{there_are}",
            header.target_line,
            f"Write .target {arch} or older, or install a newer nvJitLink",
            expected=f".target {arch} or older",
            given=f".target {target}",
        )
    if re.search(r"SM version specified by \.target is higher|cannot be compiled (for|to future) architecture", log):
        if output_arch(target, arch) != arch:
            relation, fix = "whose own features it uses", f"Compile it for {target}: the binary runs on {arch}"
        elif target[-1].isalpha():
            relation, fix = "which runs there only", f"Write .target {arch} or older, or use an {target[:-1]} device"
        else:
            relation, fix = "which is newer", f"Write .target {arch} or older, or use an {target} device"
        return Fault(
            f"the text says .target {target}, {relation}, and this compile is for {arch}",
            header.target_line,
            fix,
            expected=f".target {arch} or older",
            given=f".target {target}",
        )
    if "does not match type" in log:
        return Fault("PTX must begin with .version, before all other directives", header.version_line)
    problems = ptxas_problems(log)
    if not problems:
        return Fault(f"{ours} refused the text: {status}")
    text = summary(problems)
    fix = next((fix for words, fix in _FIXES if words in text), None)
    return Fault(text, next((p.line for p in problems if p.line is not None), None), fix)
