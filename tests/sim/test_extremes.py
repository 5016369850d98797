"""Texts that nest deep, texts with huge numbers, and callers that have little of Python's stack left."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from helpers import Patch, refused
from machine import HEAD, kernel, run

import ptxrt
from ptxrt import sim
from ptxrt.backends.sim import SimBackend
from ptxrt.errors import CompileError

MOST = 64
NESTED: dict[str, Callable[[int], str]] = {
    "parentheses": lambda depth: HEAD + f".global .u32 a = {'(' * depth}1{')' * depth};",
    "signs": lambda depth: HEAD + f".global .u32 a = {'-' * depth}1;",
    "casts": lambda depth: HEAD + f".global .u64 a = {'(.u64)' * depth}1;",
    "operands": lambda depth: kernel(f".reg .b32 %a, %b; mov.b64 {'{' * (depth - 1)}{{%a}}{'}' * (depth - 1)}, %b;"),
}


def error_of(text: str) -> CompileError:
    with pytest.raises(CompileError) as caught:
        sim.parse(text, "the text")
    return caught.value


@pytest.mark.parametrize("what", NESTED)
def test_a_text_nests_so_deep_and_no_deeper(what: str) -> None:
    too_deep = "nest too deep"
    if what == "operands":  # there is no instruction with a vector of vectors
        assert too_deep not in str(error_of(NESTED[what](MOST)))
    else:
        sim.parse(NESTED[what](MOST))
    text = NESTED[what](MOST + 1)
    error = error_of(text)
    assert too_deep in str(error)
    assert error.line is not None
    assert len(text.splitlines()[error.line - 1]) > MOST
    assert not error.compiler_lost
    assert too_deep in str(error_of(NESTED[what](20_000)))


def with_stack(left: int, function: Callable[[], Any]) -> Any:
    """Call a function with so many of Python's frames left."""
    frame: FrameType | None = sys._getframe()
    depth = 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1

    def down(count: int) -> Any:
        return function() if count <= 0 else down(count - 1)

    return down(sys.getrecursionlimit() - depth - left)


def test_a_text_is_not_remembered_as_wrong_because_its_caller_had_too_little_stack() -> None:
    device = ptxrt.Device("sim:0")
    source = NESTED["parentheses"](50) + kernel(".reg .b32 %a; add.u32 %a, 1, 2;", head="")
    errors: list[CompileError] = []
    for left in range(20, 260, 4):
        text = ptxrt.KernelSource.ptx(f"{source}// {left}\n", name="the text")
        try:
            with_stack(left, lambda: ptxrt.load(text, "k", "u64 out", device))  # noqa: B023
        except CompileError as error:
            errors.append(error)
        except RecursionError:
            pass  # before the machine was asked
        assert ptxrt.load(text, "k", "u64 out", device).entry == "k"
    assert errors
    for each in errors:
        assert "too little of Python's stack" in str(each)
        assert "sys.setrecursionlimit" in str(each.fix)


DIGITS = "1" * 5000
HUGE = {
    ".version": HEAD.replace("8.0", f"{DIGITS}.0"),
    ".version, after the point": HEAD.replace("8.0", f"8.{DIGITS}"),
    ".version of zeros": HEAD.replace("8.0", f"8.{'0' * 5000}"),
    ".target": HEAD.replace("80", DIGITS),
    ".address_size": HEAD.replace("64", DIGITS),
    "a range of registers": kernel(f".reg .b32 %r<{DIGITS}>;"),
    "a register": kernel(f".reg .b32 %r<4>; mov.b32 %r{DIGITS}, 1;"),
    "a register beside a range": kernel(f".reg .b32 %r<4>; .reg .b32 %r{DIGITS}; mov.b32 %r{DIGITS}, %r4;"),
    "an operand": kernel(f".reg .b32 %r; mov.b32 %r, {DIGITS};"),
    "an operand in octal": kernel(f".reg .b32 %r; mov.b32 %r, 0{DIGITS};"),
    "an offset": kernel(f".reg .b32 %r; ld.local.b32 %r, [{DIGITS}];"),
    "a length": HEAD + f".global .u32 a[{DIGITS}];",
    "many lengths": HEAD + f".global .u32 a{'[0x7fffffffffffffff]' * 500};",
    "an alignment": HEAD + f".global .align {DIGITS} .u32 a;",
    "a length of a parameter": kernel("", f".param .b8 a[{DIGITS}]"),
    ".maxntid": HEAD + f".entry k() .maxntid {DIGITS} {{ ret; }}",
    "an index": kernel(f".reg .u32 %r; .shared .u32 s[4]; ld.shared.u32 %r, [s[{DIGITS}]];"),
    "an immediate of bar": kernel(f"bar.sync {DIGITS};"),
    "a vector's element": kernel(f".reg .v2 .b32 %r; mov.b32 %r.x{DIGITS}, 1;"),
    "an entry of brx": kernel(f"T: .branchtargets L{DIGITS}; brx.idx {DIGITS}, T;"),
}


@pytest.mark.parametrize("case", HUGE)
def test_a_number_with_thousands_of_digits_is_an_error_of_the_text(case: Any) -> None:
    assert error_of(HUGE[case]).line
    with pytest.raises(CompileError):
        ptxrt.load(ptxrt.KernelSource.ptx(HUGE[case]), "k", "u64 out", "sim:0")


def test_a_setting_with_thousands_of_digits_is_refused(monkeypatch: Patch) -> None:
    for name in ("PTXRT_SIM_DEVICES", "PTXRT_SIM_MEMORY", "PTXRT_SIM_ARCH", "PTXRT_SIM_BUDGET"):
        monkeypatch.setenv(name, f"sm_{DIGITS}" if name == "PTXRT_SIM_ARCH" else DIGITS)
    backend = SimBackend()
    with refused(ptxrt.InvalidArgument, "PTXRT_SIM_DEVICES", "environment", "a whole number"):
        backend.device_count()
    with refused(ptxrt.InvalidArgument, "PTXRT_SIM_ARCH", "environment", "an architecture"):
        backend.properties(0)
    with refused(ptxrt.InvalidArgument, "PTXRT_SIM_MEMORY", "environment", "a whole number"):
        backend.allocate(0, 1, 0)
    with refused(ptxrt.InvalidArgument, "PTXRT_SIM_BUDGET", "environment", "a number of instructions"):
        run(kernel(""), 0)


CONSTANTS = {
    "1 << 64": 1, "1 << 70": 64, "1 << -1": 1 << 63, "1 << 63": 1 << 63, "8 >> 2": 2, "8 >> -1": 0,
    "-8 >> 65": 2**64 - 4,
    "1 + 2 * 3 == 7 && 6 / 4 == 1": 1, "~0 / 2": 2**63 - 1, "(5U - 6U) / 2": 2**63 - 1, "(-1 | 0U) / 2": 2**63 - 1,
    "(1 << 63) >> 3": 0xF << 60, "(1 << 63) / 3": 2**64 - 2**63 // 3, "-5 / 2U": 2**63 - 3, "-5 % 3": 2,
    "7 % -3": 7,
    "(9223372036854775807 + 1) / 2": 3 << 62, "((.u64)-1) >> 4": 2**60 - 1,
    "((.s64)0xffffffffffffffff) >> 4": 2**64 - 1,
    "(-1 & 1U) > -1": 0, "-1 > 0U": 1, "-1 > 0": 0, "0x8000000000000000 / -1": 0, "7 > 3 ? 1234 : 5678": 1234,
    "0 ? 1 : 0 ? 2 : 3": 3, "(1 ? -1 : 0U) / 2": 0, "1.5 + 1.0 == 2.5": 1, "1.0 / 4.0 * 8.0 < 1.5 - 0.5": 0,
    "0xffffffffffffffff * 2": 2**64 - 2, "0xffffffffffffffff + 1": 0, "-9223372036854775808 - 1": 2**63 - 1,
    "~0xffffffffffffffff": 0, "-0xffffffffffffffff": 1, "10 - 4 - 3": 3, "2 - 3": 2**64 - 1, "-7 / 2": 2**64 - 3,
    "1 | 2 ^ 3 & 1": 3, "1 < 2 == 1": 1, "(1 + 2) * 3": 9, "1 ||0 && 0": 1, "! 5 + 1": 1, " * ".join(["3"] * 500):
    pow(3, 500, 2**64),
}  # fmt: skip


@pytest.mark.parametrize("text", CONSTANTS, ids=lambda text: text[:30])
def test_constant_expressions_are_of_64_bits_as_in_c(text: Any) -> None:
    program = sim.parse(HEAD + f".global .u64 a = {text};")
    assert int.from_bytes(program.variables["a"].data, "little") == CONSTANTS[text]
