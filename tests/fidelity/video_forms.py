"""Forms of the video instructions: the types in all combinations; selectors, merges and what follows take turns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

__all__ = ["video"]

Line = tuple[str, str, int]
"""A form's name, its template, and how many sources it has."""

_SIGNS = ("u32", "s32")
_PARTS = ("", ".b0", ".h1", ".b3", "", ".h0", ".b2", ".b1")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_ENDS = (("", ""), (".sat", ""), (".add", ""), ("", ".b2"), (".min", ""), (".sat.max", ""), ("", ".b1"),
         (".max", ""), ("", ".h0"), (".sat.min", ""), (".sat", ".b0"))  # fmt: skip
"""What follows the types, and the part of d.

A merge into .h1 is not among them: ptxas 13.0 takes the upper half of the result for it, 13.5 the lower.
"""


def _line(opcode: str, part: str, *sources: str) -> Line:
    """Return a form by the part of d, and those of the sources, each with a minus in front where it has one."""
    named = [f"{'-' * one.startswith('-')}{{s{place}}}{one.lstrip('-')}" for place, one in enumerate(sources)]
    return (
        f"{opcode} {part}{'/'.join(sources)}".strip(),
        f"{opcode} {', '.join(['{d0}' + part, *named])};",
        len(sources),
    )


def video() -> Iterator[Line]:
    """Yield them all."""
    yield from _scalar()
    yield from _products()
    yield from _simd()


def _scalar() -> Iterator[Line]:
    names = ("vadd", "vsub", "vabsdiff", "vmin", "vmax")
    for turn, (name, d, a, b, _) in enumerate(product(names, _SIGNS, _SIGNS, _SIGNS, "123")):
        end, part = _ENDS[turn % len(_ENDS)]
        third = [""] if part or end not in ("", ".sat") else []
        yield _line(f"{name}.{d}.{a}.{b}{end}", part, _PARTS[turn % 8], _PARTS[turn // 8 % 8], *third)
    shifts = product(("vshl", "vshr"), _SIGNS, _SIGNS, ("clamp", "wrap"), (".b0", ".h1"))
    for turn, (name, d, a, mode, amount) in enumerate(shifts):
        end, part = _ENDS[turn % len(_ENDS)]
        third = [""] if part or end not in ("", ".sat") else []
        yield _line(f"{name}.{d}.{a}.u32.{mode}{end}", part, _PARTS[turn // 2 % 8], amount, *third)
    for turn, (how, a, b) in enumerate(product(_COMPARED, _SIGNS, _SIGNS)):
        end, part = (("", ""), (".add", ""), (".min", ""), ("", ".b3"), (".max", ""))[turn % 5]
        third = [""] if end or part else []
        yield _line(f"vset.{a}.{b}.{how}{end}", part, _PARTS[turn % 8], _PARTS[turn // 8 % 8], *third)


def _products() -> Iterator[Line]:
    negated = (("", "", ""), ("-", "", ""), ("", "", "-"), ("", "-", ""))
    scales = ("", ".sat", ".shr7", ".sat.shr15", ".shr15", ".sat.shr7")
    for turn, (d, a, b, _) in enumerate(product(_SIGNS, _SIGNS, _SIGNS, "12345")):
        minus = negated[turn % 4]
        plus = ".po" if turn % 8 == 4 else ""
        parts = (_PARTS[turn % 8], _PARTS[turn // 4 % 8], "")
        sources = [sign + one for sign, one in zip(minus, parts, strict=True)]
        yield _line(f"vmad.{d}.{a}.{b}{plus}{scales[turn % 6]}", "", *sources)


def _simd() -> Iterator[Line]:
    masks = {"2": ("", ".h1", ".h0", ".h10"), "4": ("", ".b3", ".b20", ".b310")}
    picks = {"2": ("", ".h32", ".h00", ".h21", ".h13"), "4": ("", ".b7654", ".b0123", ".b2222", ".b6150")}
    names = ("vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax")
    for turn, (count, name, d, a, b) in enumerate(product("24", names, _SIGNS, _SIGNS, _SIGNS)):
        opcode = f"{name}{count}.{d}.{a}.{b}{('', '.sat', '.add')[turn % 3]}"
        picked = (picks[count][turn % 5], picks[count][turn // 5 % 5], "")
        yield _line(opcode, masks[count][turn % 4], *picked)
    for turn, (count, how, a, b) in enumerate(product("24", _COMPARED, _SIGNS, _SIGNS)):
        opcode = f"vset{count}.{a}.{b}.{how}{('', '.add')[turn % 2]}"
        picked = (picks[count][turn % 5], picks[count][turn // 5 % 5], "")
        yield _line(opcode, masks[count][turn // 2 % 4], *picked)
