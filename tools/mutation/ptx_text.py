"""How a PTX file is cut into lines of instructions, and the ways in which one of them is broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import jinja2

from ptxrt import ops, sim
from ptxrt.ops.framework import texts

__all__ = ["FOLDER", "INCLUDES", "KINDS", "SUFFIX", "compiles", "lines"]

FOLDER, SUFFIX = "kernels_ptx", ".ptx"
INCLUDES = (
    *("batch_norm_parts", "elements", "exponential", "fourth_root", "grid_sample_parts", "group_norm_loops"),
    *("group_norm_parts", "local_response_norm_parts", "macros", "pairs", "power", "rows", "softmax2d_parts"),
)

_COMPARISONS = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq", "lo": "ls", "ls": "lo"}
_COMPARISONS |= {
    "hi": "hs",
    "hs": "hi",
    "ltu": "leu",
    "leu": "ltu",
    "gtu": "geu",
    "geu": "gtu",
    "equ": "neu",
    "neu": "equ",
}
_ORDERED = re.compile(r"(?:sub|div|rem|shl|shr|setp|set|slct|copysign|bfe|prmt)\b|mad|fma|selp")
"""Instructions whose sources do not commute; of fma and mad the last is swapped with the first."""

_MACRO = re.compile(r"\s*//%\s*(?:macro\s+(\w+)|endmacro\b)")
_ENTRY = re.compile(r"(?:\.visible\s+)?\.entry\s+(.+?)\s*\(|{{\s*entry\((?:\"(\w+)\"|(.+?)),")
"""The entry's name in PTX, or as the first argument of the macro `entry`: a string alone, or an expression."""


def lines(text: str) -> Iterator[tuple[str, int, str]]:
    """Give each line of an instruction with its kernel and number, without its comment.

    The kernel is the macro around it, else the last entry begun, less its type: one that Jinja writes may have several
    ends. Lines in front of the first entry, in no macro, are none's and not given.
    """
    entry = macro = None
    for number, line in enumerate(text.split("\n"), 1):
        if edge := _MACRO.match(line):
            macro = edge[1]
        elif not macro and (start := _ENTRY.match(line)):
            entry = (start[1] or start[2] or start[3]).replace("{{ suffix }}", "")
        kernel, code = macro or entry, line.split("//")[0].strip()
        # Not: parameters, declarations, labels, braces, calls of macros.
        if kernel and code.endswith(";") and not code.startswith((".", "{{")) and "ld.param" not in code:
            yield kernel, number, code


def compiles(name: str, templates: jinja2.Environment) -> bool:
    """Whether the first entry that the changed file changes is PTX still; if it changes none, it is no mutant."""

    @cache
    def rendered(family: str, dtype: str, parameters: tuple[tuple[str, str], ...]) -> str:
        return templates.get_template(f"{family}{SUFFIX}").render(texts.context(dtype), **dict(parameters))

    for spec in ops.kernels():
        if spec.language == "ptx" and name in (*INCLUDES, spec.family):
            text = texts.only(rendered(spec.family, spec.dtype, spec.parameters), spec.entry)
            if text != spec.source.text:
                return bool(sim.parse(text, spec.family).entries)
    return False


# The kinds ------------------------------------------------------------------------------------------------------------


def _swap(line: str) -> Iterator[str]:
    head, _, tail = line.rstrip(";").partition(" %")
    operation = head.split()[-1]
    operands = [part.strip() for part in ("%" + tail).split(",")]
    if re.match(r"setp?\.(eq|ne)\b", operation):
        return
    if _ORDERED.match(operation) and len(operands) >= 3 and "[" not in tail and "{" not in tail:
        one, two = (1, len(operands) - 1) if operation.startswith(("fma", "mad")) else (1, 2)
        operands[one], operands[two] = operands[two], operands[one]
        yield f"{head} {', '.join(operands)};"


def _drop_barrier(line: str) -> Iterator[str]:
    if re.search(r"\b(?:bar|barrier)\b", line):
        yield "// dropped"


def _shift_index(line: str) -> Iterator[str]:
    if found := re.search(r"\[(%\w+)(?:\+([^\]]*))?\]", line):
        yield line.replace(found[0], f"[{found[1]}+{found[2] or 0}+4]")


def _compare(line: str) -> Iterator[str]:
    if (found := re.search(r"\bsetp?\.(\w+)\.", line)) and (other := _COMPARISONS.get(found[1])):
        yield line.replace(found[0], found[0].replace(f".{found[1]}.", f".{other}."))


def _constant(line: str) -> Iterator[str]:
    if "shfl" in line or "bar" in line:
        return
    if found := re.search(r"(?<=[ ,])(0[fd][0-9A-Fa-f]{8,16})", line):
        # The highest bit of the exponent: 1 becomes infinite, 0 becomes 2.
        yield line.replace(found[1], found[1][:2] + format(int(found[1][2], 16) ^ 4, "X") + found[1][3:])
    elif found := re.search(r"(?<=, )(\d+)(?=[,;])", line):
        yield line[: found.start()] + str(int(found[1]) + 1) + line[found.end() :]


def _condition(line: str) -> Iterator[str]:
    if line.startswith("@!"):
        yield "@" + line[2:]
    elif line.startswith("@"):
        yield "@!" + line[1:]


def _rounding(line: str) -> Iterator[str]:
    # Of conversions to integers alone: one bit of a float64 sum shows in no float32 result.
    for before, after in ((".rzi.", ".rpi."), (".rmi.", ".rpi."), (".rni.", ".rzi.")):
        if before in line:
            yield line.replace(before, after)
            return


def _operation(line: str) -> Iterator[str]:
    for before, after in (("add.", "sub."), ("sub.", "add."), ("max.", "min."), ("min.", "max."), ("and.", "or.")):
        if re.search(rf"(?:^| ){re.escape(before)}", line) and "atom" not in line and "red" not in line:
            yield line.replace(before, after, 1).replace("sub.rn.b", "sub.rn.f")
            return


def _leave_out(line: str) -> Iterator[str]:
    if re.match(r"(?:@!?\S+ )?(?:add|sub|mul|fma|mad|mov|st|red|cvt|min|max|neg|sqrt|div|shl|and|or)\.", line):
        yield "// left out"


KINDS: dict[str, Callable[[str], Iterator[str]]] = {
    "operands swapped": _swap,
    "barrier dropped": _drop_barrier,
    "index shifted": _shift_index,
    "comparison changed": _compare,
    "constant changed": _constant,
    "condition turned": _condition,
    "rounding changed": _rounding,
    "operation changed": _operation,
    "left out": _leave_out,
}
