"""Which of the checks that cost time a launch makes: those asked for, else two of them, for its first accesses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Patch, refused

import ptxrt
from ptxrt.sim._machine import checks, global_races

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
REGISTERS = ".reg .b64 %x;  .reg .b32 %i, %k;  .reg .pred %p;  ld.param.u64 %x, [x];  mov.u32 %i, %tid.x;\n"


def kernel(body: str) -> ptxrt.Kernel:
    text = f"{HEAD}.visible .entry k(.param .u64 x) {{\n{REGISTERS}{body}\nret;\n}}\n"
    return ptxrt.load(ptxrt.KernelSource.ptx(text), "k", "u32* x", "sim:0")


def zeros(count: int = 64) -> ptxrt.DeviceArray:
    return ptxrt.zeros(count, np.uint32, "sim:0")


UNWRITTEN = "ld.global.u32 %k, [%x];"
UNWRITTEN_SHARED = ".shared .b32 tile;  ld.shared.u32 %k, [tile];"
RACE = "st.global.u32 [%x], %i;"
# A loop of %i = 0 to 199 that reads and writes what is its own, and `behind` it.
LOOP = (
    "mad.wide.u32 %x, %i, 4, %x;  mov.u32 %k, 0;\nL: ld.global.u32 %i, [%x];  st.global.u32 [%x], %k;\n"
    "add.u32 %k, %k, 1;  setp.lt.u32 %p, %k, 200;  @%p bra L;\nld.param.u64 %x, [x];\n"
)


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: Patch) -> None:
    monkeypatch.delenv("PTXRT_SIM_CHECKS", raising=False)


@pytest.mark.parametrize("body", [UNWRITTEN, UNWRITTEN_SHARED], ids=["global", "shared"])
def test_a_read_of_what_nobody_has_written_is_found(body: str) -> None:
    with pytest.raises(ptxrt.MemoryFault, match=r"nobody has written(.|\n)*PTXRT_SIM_CHECKS=none"):
        kernel(body).launch(1, 1, ptxrt.empty(1, np.uint32, "sim:0"))


FIRST, SECOND = "setp.eq.u32 %p, %i, 0;  ", "setp.eq.u32 %p, %i, 1;  "  # of two blocks of a thread
READ, WRITE = "@%p ld.global.u32 %k, [%x];\n", "@%p st.global.u32 [%x], 7;\n"


@pytest.mark.parametrize(
    "body",
    [
        f"{FIRST}{READ}{SECOND}{READ}{WRITE}",  # the first reader is not forgotten for the second one
        f"ld.global.u32 %k, [%x];\n{FIRST}{WRITE}",  # nor the second one, who read at the same time
        f"{FIRST}{READ}membar.gl;\n{READ}{SECOND}{WRITE}",  # the later read counts, which no fence has ordered
    ],
    ids=["first", "second", "again"],
)
def test_a_write_races_with_the_read_of_another_block(body: str) -> None:
    with pytest.raises(ptxrt.DataRace, match="of global memory races with an access of block"):
        kernel(f"mov.u32 %i, %ctaid.x;\n{body}").launch(2, 1, zeros())


def test_a_later_read_counts_beside_another_threads_first_one() -> None:
    """One of two lanes reads again, which the fence has not ordered."""
    each = "mov.u32 %i, %ctaid.x;\nmov.u32 %k, %tid.x;\nmad.wide.u32 %x, %k, 4, %x;\n"
    alone = "mov.u32 %k, %tid.x;\nsetp.eq.and.u32 %p, %k, 0, %p;\n"
    body = f"{each}{FIRST}{alone}{READ}membar.gl;\n{FIRST}{READ}{SECOND}{alone}{WRITE}"
    with pytest.raises(ptxrt.DataRace, match="of global memory races with an access of block"):
        kernel(body).launch(2, 2, zeros())


def test_reads_alone_and_a_write_behind_a_fence_of_both_blocks_do_not_race() -> None:
    behind = f"mov.u32 %i, %ctaid.x;\n{FIRST}{READ}{READ}membar.gl;\n{SECOND}{WRITE}"
    kernel(behind).launch(2, 1, zeros())


def test_a_race_in_global_memory_is_found() -> None:
    with pytest.raises(ptxrt.DataRace, match=r"of global memory races(.|\n)*PTXRT_SIM_CHECKS=none"):
        kernel(RACE).launch(1, 32, zeros())


def test_the_environment_turns_them_off_and_others_on(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "none")
    kernel(RACE).launch(1, 32, zeros())
    kernel(UNWRITTEN).launch(1, 1, ptxrt.empty(1, np.uint32, "sim:0"))
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "uninitialised")
    kernel(RACE).launch(1, 32, zeros())
    with pytest.raises(ptxrt.MemoryFault) as caught:
        kernel(UNWRITTEN).launch(1, 1, ptxrt.empty(1, np.uint32, "sim:0"))
    assert "PTXRT_SIM_CHECKS" not in str(caught.value)
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "none,shuffles")
    with refused(ptxrt.InvalidArgument, "PTXRT_SIM_CHECKS", "checks", "all, none", "'none'"):
        kernel(RACE).launch(1, 1, zeros())


def test_the_checks_end_with_what_they_may_look_at(monkeypatch: Patch) -> None:
    for body, array in ((LOOP + RACE, zeros()), (LOOP + UNWRITTEN_SHARED, zeros())):
        with pytest.raises((ptxrt.DataRace, ptxrt.MemoryFault)):
            kernel(body).launch(1, 32, array)
    # 400 accesses of 32 lanes: one byte less than the loop needs, and what stands behind it is not looked at.
    monkeypatch.setattr(checks, "_BYTES", 400 * (128 + 4096))
    for body in (LOOP + RACE, LOOP + UNWRITTEN_SHARED):
        kernel(body).launch(1, 32, zeros())
    monkeypatch.setattr(checks, "_BYTES", 400 * (128 + 4096) + 1)
    for body in (LOOP + RACE, LOOP + UNWRITTEN_SHARED):
        with pytest.raises((ptxrt.DataRace, ptxrt.MemoryFault)):
            kernel(body).launch(1, 32, zeros())


def test_accesses_to_shared_memory_count_too(monkeypatch: Patch) -> None:
    monkeypatch.setattr(checks, "_BYTES", 2 * (4 + 4096))
    shared = ".shared .b32 tile;  st.shared.u32 [tile], 1;  ld.shared.u32 %k, [tile];"
    with pytest.raises(ptxrt.MemoryFault):
        kernel(UNWRITTEN).launch(1, 1, ptxrt.empty(1, np.uint32, "sim:0"))
    kernel(shared + UNWRITTEN).launch(1, 1, ptxrt.empty(1, np.uint32, "sim:0"))


def test_what_is_asked_for_has_no_end(monkeypatch: Patch) -> None:
    monkeypatch.setattr(checks, "_BYTES", 1)
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "global-races")
    with pytest.raises(ptxrt.DataRace):
        kernel(LOOP + RACE).launch(1, 32, zeros())


def test_later_chunks_and_launches_know_that_nobody_looked(monkeypatch: Patch) -> None:
    """What is written behind the end of the checks counts as written; the next launch looks anew."""
    monkeypatch.setattr(checks, "_BYTES", 1)
    own = "mov.u32 %k, %ctaid.x;  mad.lo.u32 %i, %k, 1024, %i;  mad.wide.u32 %x, %i, 4, %x;\n"
    array = ptxrt.empty(65536, np.uint32, "sim:0")
    kernel(own + "st.global.u32 [%x], %i;  ld.global.u32 %k, [%x];").launch(64, 1024, array)
    monkeypatch.undo()
    kernel(own + "ld.global.u32 %k, [%x];").launch(64, 1024, array)
    with pytest.raises(ptxrt.DataRace):
        kernel(RACE).launch(1, 32, array)


@pytest.mark.parametrize("how", [np.zeros, np.empty])
def test_memory_of_another_library_counts_as_written(how: Any) -> None:
    host = how(4, np.uint32)
    kernel(UNWRITTEN).launch(1, 1, ptxrt.from_dlpack(host, ptxrt.Device("sim:0")))


def test_arrays_whose_shadow_would_be_large_are_not_looked_at(monkeypatch: Patch) -> None:
    monkeypatch.setattr(global_races, "_LARGE", 255)
    kernel(RACE).launch(1, 32, zeros(64))
    with pytest.raises(ptxrt.DataRace):
        kernel(RACE).launch(1, 32, zeros(63))
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "global-races")
    with pytest.raises(ptxrt.DataRace):
        kernel(RACE).launch(1, 32, zeros(64))


ATOMIC = "atom.global.add.u32 %k, [%x], 1;"
PLAIN_READ, PLAIN_WRITE = "ld.global.u32 %k, [%x];", "st.global.u32 [%x], 1;"


FLAG = "st.global.u32 [%x], 7;"
PAIR = "st.global.v2.u32 [%x], {7, %i};"
# Threads 0 and 1 by instructions of their own.
TWO_LINES = "setp.eq.u32 %p, %i, 0;  @%p st.global.u32 [%x], {one};  @!%p st.global.u32 [%x], {other};"


@pytest.mark.parametrize("body", [FLAG, FLAG + FLAG, TWO_LINES.format(one=7, other=7)])
def test_threads_that_write_the_same_value_race_only_where_it_is_asked_for(body: str, monkeypatch: Patch) -> None:
    kernel(body).launch(3, 2, zeros())
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "global-races")
    with pytest.raises(ptxrt.DataRace):
        kernel(body).launch(3, 2, zeros())


@pytest.mark.parametrize("body", [RACE, PAIR, TWO_LINES.format(one=7, other=8)])
def test_threads_that_write_different_values_race(body: str) -> None:
    with pytest.raises(ptxrt.DataRace):
        kernel(body).launch(1, 2, zeros())


def test_blocks_of_other_chunks_that_write_another_value_race() -> None:
    block = "mov.u32 %i, %ctaid.x;  setp.gt.u32 %p, %i, 32;  selp.u32 %i, 8, 7, %p;  st.global.u32 [%x], %i;"
    with pytest.raises(ptxrt.DataRace):
        kernel(block).launch(64, 1024, zeros())


VOLATILE_READ = "ld.volatile.global.u32 %k, [%x];"


@pytest.mark.parametrize(("first", "second"), [(PLAIN_READ, ATOMIC), (ATOMIC, PLAIN_READ)])
def test_a_plain_read_beside_atomics_is_a_race_only_where_it_is_asked_for(
    first: str, second: str, monkeypatch: Patch
) -> None:
    kernel(first + second).launch(2, 1, zeros())
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "global-races")
    with pytest.raises(ptxrt.DataRace):
        kernel(first + second).launch(2, 1, zeros())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (PLAIN_WRITE, ATOMIC),
        (ATOMIC, PLAIN_WRITE),
        (PLAIN_READ, PLAIN_WRITE),
        (PLAIN_WRITE, PLAIN_READ),
        (PLAIN_WRITE, VOLATILE_READ),
        (VOLATILE_READ, PLAIN_WRITE),
    ],
)
def test_a_plain_write_beside_another_access_is_a_race_always(one: str, other: str) -> None:
    """Of two blocks the first does one thing, the second the other."""
    text = f"mov.u32 %i, %ctaid.x;  setp.eq.u32 %p, %i, 0;\n@!%p bra L;\n{one}\nret;\nL: {other}"
    with pytest.raises(ptxrt.DataRace):
        kernel(text).launch(2, 1, zeros())


def test_a_chunk_behind_the_end_of_the_checks_is_not_looked_at(monkeypatch: Patch) -> None:
    text = f"mov.u32 %i, %ctaid.x;  setp.lt.u32 %p, %i, 32;\n@!%p bra L;\n{PLAIN_READ}\nret;\nL: {UNWRITTEN_SHARED}"
    with pytest.raises(ptxrt.MemoryFault):
        kernel(text).launch(64, 1024, zeros())
    monkeypatch.setattr(checks, "_BYTES", 1)
    kernel(text).launch(64, 1024, zeros())
