"""How a file of HIP C++ is cut into lines of code, and the ways in which one of them is broken."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache

import jinja2

from ptxrt import ops
from ptxrt.compilers.hip_on_nvrtc import compile_hip_text
from ptxrt.ops.framework import texts

__all__ = ["FOLDER", "INCLUDES", "KINDS", "SUFFIX", "compiles", "lines"]

FOLDER, SUFFIX = "kernels_hip", ".hip"
INCLUDES = (
    *("batch_norm_parts", "block_sum", "fourth_root", "grid_sample_parts", "group_norm_loops"),
    *("local_response_norm_parts", "moments", "pairs", "power", "softmax2d_parts", "tickets", "vectors", "walk"),
)

_FUNCTION = re.compile(r"(\w+)(?:\{\{ \w+ \}\})?\(")
_STRUCT = re.compile(r"struct (\w+)")
# One operand: a name, perhaps a member, an element or a call with arguments that have no brackets of their own.
_OPERAND = r"[\w.]+(?:\[[^\[\]]*\]|\([^()]*\))?"


def lines(text: str) -> Iterator[tuple[str, int, str]]:
    """Give each line of code in a function or struct with that one's name and its number, without its comment."""
    kernel, head = None, ""
    for number, line in enumerate(text.split("\n"), 1):
        code = line.split("//")[0].strip().removesuffix("\\").strip()
        if code and not line.startswith((" ", "}", "#", "constexpr")):
            head = ""
        if not line.startswith(" "):
            kernel = None if line.startswith("}") else kernel
        if kernel and code:
            yield kernel, number, code
        elif not kernel and not line.startswith(("}", "#", "constexpr")):
            head += f" {code}"
            if code.endswith("{"):
                found = _STRUCT.search(head) or _FUNCTION.search(re.sub(r"__launch_bounds__\(\w+(, \w+)*\)", "", head))
                kernel = found[1] if found else None


def compiles(name: str, templates: jinja2.Environment) -> bool:
    """Whether the first family that the changed file changes compiles, and to something else."""
    rendered = {(spec.family, spec.dtype) for spec in ops.kernels() if spec.language == "hip"}
    for family, dtype in sorted(one for one in rendered if name in (*INCLUDES, one[0])):
        before = texts.read_kernel(family, language="hip", dtype=dtype).text
        after = templates.get_template(f"{family}{SUFFIX}").render(entry=None, **texts.context(dtype))
        if after != before:
            return _ptx(after) != _ptx(before)
    return False


@cache
def _ptx(text: str) -> bytes:
    return compile_hip_text(text, "sm_90", name="mutant", output="ptx").code


# The kinds ------------------------------------------------------------------------------------------------------------


def _swap(line: str) -> Iterator[str]:
    if found := re.search(rf"({_OPERAND}) ([-/%]) ({_OPERAND})", line):
        yield line.replace(found[0], f"{found[3]} {found[2]} {found[1]}", 1)
    if found := re.search(rf"\b(fmaf?|multiply_add)\(({_OPERAND}), ({_OPERAND}), ({_OPERAND})\)", line):
        yield line.replace(found[0], f"{found[1]}({found[2]}, {found[4]}, {found[3]})", 1)


def _drop_barrier(line: str) -> Iterator[str]:
    if "__syncthreads();" in line:
        yield line.replace("__syncthreads();", ";")


def _shift_index(line: str) -> Iterator[str]:
    if found := re.search(r"\[([^\[\]]+)\]", line):
        yield line.replace(found[0], f"[{found[1]} + 1]", 1)


def _compare(line: str) -> Iterator[str]:
    others = {" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == "}
    for before, after in others.items():
        if before in line:
            yield line.replace(before, after, 1)


def _constant(line: str) -> Iterator[str]:
    if line.startswith(("template", "__shared__")):
        return
    if found := re.search(r"(?<![\w.\[])(\d+\.\d+(?:e-?\d+)?f?)", line):
        yield line.replace(found[1], f"(2 * {found[1]} + 1)", 1)
    elif found := re.search(r"(?<![\w.])(\d+)(?![\w.])", line):
        yield line[: found.start()] + str(int(found[1]) + 1) + line[found.end() :]


def _condition(line: str) -> Iterator[str]:
    if found := re.search(r"\bif \((.*?)\)( \{$| return;| continue;| \w.*;)", line):
        yield line.replace(found[0], f"if (!({found[1]})){found[2]}", 1)
    elif found := re.search(r"(?:= |\()([\w.]+) \? ", line):
        yield line.replace(f"{found[1]} ? ", f"!{found[1]} ? ", 1)


def _operation(line: str) -> Iterator[str]:
    others = {" + ": " - ", " - ": " + ", " * ": " + ", " += ": " -= ", " && ": " || ", " || ": " && "}
    for before, after in others.items():
        if before in line:
            yield line.replace(before, after, 1)


# Assignments, sums and early ends, perhaps on a condition; not declarations, which other lines need.
_STATEMENT = re.compile(
    r"(?:if \([^;]*\) )?"
    r"(?:[\w.*]+(?:\[.*\])? [-+*/]?= .*|\(\(.*|(?:atomicAdd|block_sum)\(.*|(?<=\) )(?:return|continue)(?: [^;]*)?);$"
)


def _leave_out(line: str) -> Iterator[str]:
    if _STATEMENT.match(line):
        yield ";"


KINDS: dict[str, Callable[[str], Iterator[str]]] = {
    "operands swapped": _swap,
    "barrier dropped": _drop_barrier,
    "index shifted": _shift_index,
    "comparison changed": _compare,
    "constant changed": _constant,
    "condition turned": _condition,
    "operation changed": _operation,
    "left out": _leave_out,
}
