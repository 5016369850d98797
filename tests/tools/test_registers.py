"""python tools/registers.py: which numbers of registers it tries, and what it says of them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import registers
from helpers import Capture, Patch
from registers import Used, limited, used

from ptxrt.compilers import nvjitlink
from ptxrt.ops import tuning

TEXT = """\
.version 8.0
.target sm_90
.address_size 64
.visible .entry one(.param .u64 x, .param .u32 n)
.maxntid 256, 1, 1
.minnctapersm 4                         // 64 registers
{
    .reg .b64 %x;
    ld.param.u64 %x, [x];
    st.global.u32 [%x], 1;
    ret;
}
.visible .entry one_more() .maxnreg 32 { ret; }
"""
SMALL = [{"op": "upsample_nearest2d", "shape": [1, 2, 4, 4], "out_h": 8, "out_w": 8, "strides": [32, 16, 4, 1]}]


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.json"
    path.write_text(json.dumps(SMALL))
    return path


def say_that(monkeypatch: Patch, own: Used | None, others: dict[int, Used | None]) -> None:
    """Let the assembler say what a text uses by itself, and with each limit; others are refused."""

    def told(text: str, entry: str, arch: str) -> Used | None:
        limit = re.search(r"\.maxnreg (\d+)\n", text)
        return others.get(int(limit[1])) if limit else own

    monkeypatch.setattr(registers, "used", told)
    monkeypatch.setattr(nvjitlink, "available", lambda: None)


def test_the_limit_stands_in_the_entrys_head_alone_and_the_other_limits_are_gone() -> None:
    text = limited(TEXT, "one", 40)
    assert ".maxntid 256, 1, 1\n                         // 64 registers\n.maxnreg 40\n{\n    .reg .b64 %x;" in text
    assert text.endswith(".visible .entry one_more() .maxnreg 32 { ret; }\n")
    assert "one_more()\n.maxnreg 24\n{ ret; }" in limited(TEXT, "one_more", 24)
    assert ".minnctapersm" not in text


def test_an_entry_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="no entry two is in the text"):
        limited(TEXT, "two", 40)


def test_what_an_entry_uses_is_counted_in_a_process_of_its_own(monkeypatch: Patch) -> None:
    if reason := nvjitlink.available():
        pytest.skip(reason)
    found = used(TEXT, "one", "sm_90")
    assert found is not None
    assert found.registers > 0
    assert found.spilled == 0
    assert used(TEXT.replace("st.global", "st.nowhere"), "one", "sm_90") is None
    monkeypatch.setattr(registers, "_COUNT", [sys.executable, "-c", "import os; os.abort()"])
    assert used(TEXT, "one", "sm_90") is None


def test_numbers_that_spill_change_nothing_do_not_compile_or_cannot_be_launched_are_left_out(
    monkeypatch: Patch, capsys: Capture, problems: Path
) -> None:
    tried: set[int] = set()
    real = registers.limited

    def noted(text: str, entry: str, number: int) -> str:
        tried.add(number)
        return real(text, entry, number)

    monkeypatch.setattr(registers, "limited", noted)
    say_that(monkeypatch, Used(40, 0), {
        24: Used(24, 8), 32: Used(32, 0), 48: Used(32, 0), 56: Used(40, 0), 64: Used(600, 0),
    })  # fmt: skip
    assert registers.main(["--device", "sim:0", "--rounds", "2", "--file", str(problems)]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.startswith("upsample_nearest2d f32 contiguous ")
    assert re.fullmatch(r" {4}\w+: 40 registers [0-9.]+ us, 32 registers [0-9.]+ us(  faster)?", line)
    assert tried == {24, 32, 40, 48, 56, 64}


def test_without_the_assembler_nothing_is_measured(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(nvjitlink, "available", lambda: "nvJitLink is missing: install cuda-python")
    assert registers.main(["--device", "sim:0"]) == 2
    assert "nvJitLink is missing" in capsys.readouterr().err


def test_the_fastest_is_named_where_it_is_faster_than_noise(
    monkeypatch: Patch, capsys: Capture, problems: Path
) -> None:
    say_that(monkeypatch, Used(40, 0), {32: Used(32, 0), 48: Used(48, 0), 56: Used(56, 0)})
    for faster, *times in ((True, 10.0, 9.9, 9.0, 9.5), (False, 10.0, 9.9, 9.9, 9.95)):
        told = dict(zip((None, 32, 48, 56), times, strict=True))

        def clock(plan: Any, run: Any, told: Any = told) -> float:
            return float(told[getattr(plan.schedule.launches[0].kernel, "registers", None)])

        monkeypatch.setattr(tuning, "events_of", lambda device, clock=clock: clock)
        assert registers.main(["--device", "sim:0", "--rounds", "3", "--file", str(problems)]) == 0
        line = capsys.readouterr().out.splitlines()[1]
        assert line.endswith(": 40 registers 10.0 us, 48 registers 9.0 us  faster") is faster
        assert line.endswith("us, 32 registers 9.9 us") is not faster


def test_a_wrong_result_ends_it(monkeypatch: Patch, capsys: Capture, problems: Path) -> None:
    say_that(monkeypatch, Used(40, 0), {32: Used(32, 0)})
    real = registers.limited

    def broken(text: str, entry: str, number: int) -> str:
        return re.sub(r"(?m)^.*\bst\.global.*$", "", real(text, entry, number))

    monkeypatch.setattr(registers, "limited", broken)
    assert registers.main(["--device", "sim:0", "--file", str(problems)]) == 1
    assert "upsample_nearest2d" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "has no problem that 'softmax' matches"),
        ("{", "Expecting"),
        ([{"op": "softmax"}], "softmax2d"),
        ([5], "problem 1 of"),
        (None, "No such file"),
    ],
)
def test_nothing_to_run_is_said(given: Any, said: str, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr(nvjitlink, "available", lambda: None)
    path = tmp_path / "problems.json"
    if given is not None:
        path.write_text(given if isinstance(given, str) else json.dumps(given or SMALL))
    assert registers.main(["softmax", "--device", "sim:0", "--file", str(path)]) == 2
    assert said in capsys.readouterr().err
