"""Every planted fault is reported as what it is, where it is; its repaired twin raises nothing, with all checks on."""

from __future__ import annotations

import struct

import memory_faults
import numpy as np
import pytest
import races
import undefined_values
import waits
from machine import HEAD
from planted import START, Planted

from ptxrt import sim
from ptxrt.errors import DataRace

CASES = [*memory_faults.CASES, *races.CASES, *waits.CASES, *undefined_values.CASES]


def text_of(case: Planted, part: str) -> str:
    """Return the whole text, broken or repaired."""
    head = HEAD.replace("8.0", "8.6").replace("sm_80", "sm_90")
    entry = f".visible .entry k(.param .u64 out, .param .u64 in_a, .param .u64 third) {case.after}"
    return f"{head}{case.module}\n{entry}\n{{\n{START}{case.body.replace('@@', part)}\nret;\n}}\n"


def run(case: Planted, text: str) -> None:
    memory = sim.GlobalMemory()

    def filled(count: int) -> int:
        address = memory.allocate(count)
        memory.view(address, count, writable=True)[:] = 0
        return address

    out, source = memory.allocate(256), filled(256)
    memory.view(source, 256, writable=True).view(np.uint32)[:] = np.arange(64)
    size = int(case.third.split()[0]) if case.third[0].isdigit() else 256
    third = filled(size)
    if case.third == "freed":
        memory.free(third)
    elif case.third == "read-only":
        third = memory.read_only(third)
    elif case.third == "lent":
        lent = np.zeros(64, np.uint32)
        lent.flags.writeable = False
        third = memory.adopt(lent, "lent")
    loaded = sim.load(sim.parse(text), memory)
    blocks, threads = case.size
    params = struct.pack("<QQQ", out, source, third)
    sim.launch(loaded, "k", (blocks, 1, 1), (threads, 1, 1), params, checks="all", **case.options)


def line_of(text: str, mark: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if mark in line.partition("//")[2])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_planted_faults_are_found(case: Planted) -> None:
    text = text_of(case, case.bad)
    with pytest.raises(case.error) as caught:
        run(case, text)
    error = caught.value
    assert type(error) is case.error
    assert error.line == line_of(text, "FAULT"), error
    assert case.words in str(error)
    assert error.entry == "k"
    if case.thread is not None:
        assert error.thread == case.thread, error
    if case.block is not None:
        assert error.block == case.block, error
    if case.error is DataRace:
        assert error.other_line == line_of(text, "OTHER"), error
        assert error.other_thread is not None


@pytest.mark.parametrize("case", CASES, ids=str)
def test_their_repaired_twins_raise_nothing(case: Planted) -> None:
    run(case, text_of(case, case.good))


def test_there_are_enough_of_them() -> None:
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)
