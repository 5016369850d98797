"""What a kernel may not do, and what the report says about it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from helpers import Patch
from machine import HEAD, OLD_HEAD, kernel, run

from ptxrt import sim
from ptxrt.errors import DataRace, Deadlock, InvalidArgument, MemoryFault, OutOfDeviceMemory

START = """.reg .u32 t, v; .reg .u64 p, o; .reg .pred q; .reg .f32 f;
mov.u32 t, %tid.x; ld.param.u64 p, [out]; mul.wide.u32 o, t, 4; add.u64 p, p, o; mov.u32 v, 1;
"""


def fault(body: str, params: str = ".param .u64 out", *args: object, module: str = "", **options: Any) -> MemoryFault:
    """Run, expect a MemoryFault of the line marked with FAULT, and return it."""
    text = kernel(START + body, params, module=module)
    with pytest.raises(MemoryFault) as caught:
        run(text, *args, **options)
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "FAULT" in words)
    assert caught.value.line == line, caught.value
    assert "FAULT" in caught.value.text
    assert caught.value.entry == "k"
    return caught.value


def test_reading_past_the_end_names_thread_block_address_and_allocation() -> None:
    memory = sim.GlobalMemory()
    address = memory.allocate(100)
    body = "mov.u32 v, %ctaid.x; mul.wide.u32 o, v, 64; add.u64 p, p, o;\nld.global.u32 v, [p]; // FAULT"
    error = fault(body, ".param .u64 out", address, memory=memory, grid=(3, 1, 1), block=(16, 1, 1))  # fmt: skip
    assert (error.thread, error.block) == ((9, 0, 0), (1, 0, 0))
    assert (error.address, error.size) == (address + 100, 4)
    assert error.nearest == f"0 bytes past the end of allocation {address:#x} of 100 bytes"
    assert memory.view(address, 100)[0] == 0xCD


@pytest.mark.parametrize(("code", "offset", "size"), [
    ("ld.global.u32 v, [p+-64]; // FAULT", -64, 4), ("st.global.u32 [p+40000], v; // FAULT", 40000, 4),
    ("ld.global.u16 v, [p+126]; ld.global.u32 v, [p+126]; // FAULT", 126, 4),
    ("ld.global.v2.u32 {v, v}, [p+4]; // FAULT", 4, 8),
    ("atom.global.add.u32 v, [p+200], v; // FAULT", 200, 4), ("ld.u32 v, [p+128]; // FAULT", 128, 4),
])  # fmt: skip
def test_accesses_outside_across_and_misaligned(code: str, offset: int, size: int) -> None:
    memory = sim.GlobalMemory()
    address = memory.allocate(128)
    error = fault("setp.ne.u32 q, t, 0; @q ret;\n" + code, ".param .u64 out", address, memory=memory)
    assert (error.address, error.size) == (address + offset, size)


def test_an_access_across_the_end() -> None:
    memory = sim.GlobalMemory()
    address = memory.allocate(6)
    error = fault("ld.global.u32 v, [p]; // FAULT", ".param .u64 out", address, memory=memory)
    assert error.thread == (1, 0, 0)
    assert "across the end" in str(error)


def test_null_pointers_and_freed_memory() -> None:
    memory = sim.GlobalMemory()
    assert "null pointer" in str(fault("ld.global.u32 v, [p]; // FAULT", ".param .u64 out", 0, memory=memory))
    address = memory.allocate(4096)
    memory.free(address)
    error = fault("ld.global.u32 v, [p]; // FAULT", ".param .u64 out", address, memory=memory)
    assert error.nearest == f"inside freed allocation {address:#x} of 4096 bytes"


def test_read_only_pointers_can_be_read_and_not_written() -> None:
    memory = sim.GlobalMemory()
    address = memory.allocate(128)
    alias = memory.read_only(address)
    out = memory.allocate(128)
    body = "ld.param.u64 p, [in_a]; ld.global.u32 v, [p];\n%s // FAULT"
    for code in ("st.global.u32 [p], v;", "atom.global.add.u32 v, [p], 1;", "st.u32 [p], v;"):
        error = fault(body % code, ".param .u64 out, .param .u64 in_a", out, alias, memory=memory)
        assert error.address == address
        assert "const" in str(error)
    run(kernel(START + body.replace("// FAULT", "") % "st.global.u32 [p], v;", ".param .u64 out, .param .u64 in_a"),
        out, address, memory=memory)  # fmt: skip
    # One array both ways: each lane's addresses may come from either.
    both = (
        "ld.param.u64 p, [in_a]; and.b32 v, t, 1; setp.eq.u32 q, v, 0; @q ld.param.u64 p, [out]; ld.global.u32 v, [p];"
    )
    run(kernel(START + both, ".param .u64 out, .param .u64 in_a"), address, alias, memory=memory)


def test_read_only_host_arrays() -> None:
    source = np.arange(32, dtype=np.uint32)
    source.flags.writeable = False
    assert "read" in str(fault("ld.global.u32 v, [p];\nst.global.u32 [p], v; // FAULT", ".param .u64 out", source))


def test_constants_cannot_be_written() -> None:
    body = "mov.u64 p, table;\nst.global.u32 [p], v; // FAULT"
    assert ".const" in str(fault(body, ".param .u64 out", 0, module=".const .u32 table[2] = {1, 2};"))


@pytest.mark.parametrize(("code", "nearest"), [
    ("ld.shared.u32 v, [s+16]; // FAULT", "0 bytes past the end of s of 16 bytes"),
    ("st.shared.u32 [s+-4], v; // FAULT", "4 bytes before s of 16 bytes"),
    ("mov.u32 v, s;"
     " mad.lo.u32 v, t, 4, v;\natom.shared.add.u32 v, [v], 1; // FAULT", "0 bytes past the end of s of 16 bytes"),
    ("ld.shared.u32 v, [s+2]; // FAULT", "2 bytes into s of 16 bytes"),
    ("mov.u64 p, s; cvta.shared.u64 p, p;\nld.u32 v, [p+20]; // FAULT", "4 bytes past the end of s of 16 bytes"),
])  # fmt: skip
def test_shared_memory_is_its_variables_only(code: str, nearest: str) -> None:
    error = fault(".shared .align 4 .b8 s[16];\n" + code, ".param .u64 out", 0)
    assert error.nearest == nearest


def test_shared_memory_of_one_block_is_not_anothers() -> None:
    error = fault(".shared .u32 s[4]; .reg .u32 c; mov.u32 c, %ctaid.x; shl.b32 c, c, 3; mov.u32 v, s;\n"
                  "add.u32 v, v, c;\nld.shared.u32 v, [v]; // FAULT", ".param .u64 out", 0, grid=(8, 1, 1))  # fmt: skip
    assert error.block == (2, 0, 0)


def test_local_memory_and_parameters_have_ends() -> None:
    error = fault(".local .u32 l[2]; st.local.u32 [l+4], v;\nst.local.u32 [l+8], v; // FAULT", ".param .u64 out", 0)
    assert error.nearest == "0 bytes past the end of l of 8 bytes"
    error = fault("ld.param.u32 v, [out+8]; // FAULT", ".param .u64 out", 0)
    assert error.nearest == "0 bytes past the end of out of 8 bytes"


def test_memory_works_on_after_a_fault() -> None:
    memory = sim.GlobalMemory()
    address = memory.allocate(128)
    fault("ld.global.u32 v, [p+128]; // FAULT", ".param .u64 out", address, memory=memory)
    run(kernel(START + "st.global.u32 [p], t;"), address, memory=memory)
    assert memory.view(address, 128).view(np.uint32).tolist() == list(range(32))


def test_divergent_faults_name_the_right_lane() -> None:
    memory = sim.GlobalMemory()
    address = memory.allocate(128)
    body = "setp.lt.u32 q, t, 20; @q bra OK; add.u64 p, p, 4000;\nst.global.u32 [p], v; // FAULT\nOK:"
    error = fault(body, ".param .u64 out", address, memory=memory, grid=(2, 1, 1), block=(32, 2, 1))  # fmt: skip
    assert (error.thread, error.block, error.address) == ((20, 0, 0), (0, 0, 0), address + 4080)


# -- barriers and endless loops ------------------------------------------------------------------------------------


def deadlock(body: str, **options: Any) -> Deadlock:
    text = kernel(START + body)
    with pytest.raises(Deadlock) as caught:
        run(text, np.zeros(64, np.uint32), **options)
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "DEADLOCK" in words)
    assert caught.value.line == line, caught.value
    return caught.value


def test_threads_at_different_barriers() -> None:
    error = deadlock(
        "setp.lt.u32 q, t, 5; @q bra A;\nbar.sync 1; bra B;\nA: bar.sync 0; // DEADLOCK\nB:", block=(64, 1, 1)
    )
    assert "5 threads wait at barrier 0 for 64" in str(error)
    assert error.thread == (0, 0, 0)


def test_fewer_threads_than_the_count() -> None:
    error = deadlock("bar.sync 2, 96; // DEADLOCK", block=(64, 1, 1))
    assert "for 96" in str(error)


def test_shuffles_that_nobody_joins() -> None:
    error = deadlock("setp.lt.u32 q, t, 5; @!q bra B;\nshfl.sync.idx.b32 v, t, 0, 31, -1; // DEADLOCK\nB: bar.sync 0;")
    assert "mask" in str(error)


def test_warp_barriers_that_nobody_joins() -> None:
    deadlock("setp.lt.u32 q, t, 5; @!q bra B;\nbar.warp.sync -1; // DEADLOCK\nB: bar.sync 0;")


def test_exited_threads_do_not_count_at_a_barrier() -> None:
    run(
        kernel(START + "setp.lt.u32 q, t, 40; @q ret; bar.sync 0; st.global.u32 [p], v;"),
        np.zeros(64, np.uint32),
        block=(64, 1, 1),
    )


@pytest.mark.parametrize("lanes", [1, 1024])
def test_an_endless_loop_is_found_in_time(lanes: int) -> None:
    start = time.perf_counter()
    deadlock("L: add.u32 v, v, 1; setp.ne.u32 q, t, 5000;\n@q bra L; // DEADLOCK", block=(lanes, 1, 1), budget=100_000)
    deadlock("L: bra L; // DEADLOCK", block=(lanes, 1, 1), budget=1000)
    assert time.perf_counter() - start < 10


def test_the_budget_comes_from_the_environment(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_SIM_BUDGET", "500")
    assert "500" in str(deadlock("L: bra L; // DEADLOCK"))


# -- races -----------------------------------------------------------------------------------------------------------


RACE_HEAD = HEAD.replace("8.0", "8.6")
RACE = """.reg .u32 t, v, w, a; .reg .u64 p, o, x, y; .reg .b128 k; .reg .pred q; .shared .align 16 .u32 s[64];
mov.u32 t, %tid.x; mov.u32 a, s; mad.lo.u32 a, t, 4, a; mov.u32 v, 1;
"""


@pytest.mark.parametrize(("code", "distance"), [
    ("st.shared.u32 [s], t; // RACE", 0),
    ("st.shared.v2.u32 [s], {v, t}; // RACE", 0),
    ("setp.eq.u32 q, t, 0; @q st.shared.u32 [s], v;\nsetp.eq.u32 q, t, 1; @q st.shared.u32 [s], 2; // RACE", -1),
    ("st.shared.u32 [s], v;\nld.shared.u32 v, [s]; // RACE", -1),
    ("setp.eq.u32 q, t, 0; @q st.shared.u32 [s], v; bar.sync 0; setp.eq.u32 q, t, 1; @q ld.shared.u32 w, [s];\n"
     "setp.eq.u32 q, t, 2; @q st.shared.u32 [s], v; // RACE", -1),
    ("setp.eq.u32 q, t, 0; @q atom.shared.exch.b32 w, [s], 1;\n"
     "setp.eq.u32 q, t, 1; @q st.shared.u32 [s], v; // RACE", -1),
    # The last of those that wrote the same goes on: by one instruction, and by several.
    ("st.shared.u32 [s], v; setp.eq.u32 q, t, 63;\n@q st.shared.u32 [s], 2; // RACE", -1),
    ("setp.eq.u32 q, t, 0; @q st.shared.u32 [s], v; setp.eq.u32 q, t, 1;\n@q st.shared.u32 [s], v;\n"
     "@q st.shared.u32 [s], 2; // RACE", -2),
    ("cvt.u64.u32 x, t; mov.b128 k, {x, x};\nst.shared.b128 [s], k; // RACE", 0),
    ("st.shared.u32 [a], v; xor.b32 w, a, 4;\nld.shared.u32 v, [w]; // RACE", -1),
    ("ld.shared.u32 v, [s];\nst.shared.u32 [a], v; // RACE", -1),
    ("st.shared.u32 [a], v;\natom.shared.add.u32 v, [s], 1; // RACE", -1),
    ("st.shared.u32 [a], v; bar.sync 0; st.shared.u32 [a], v; bar.warp.sync -1; xor.b32 w, a, 128;\n"
     "ld.shared.u32 v, [w]; // RACE", -1),
])  # fmt: skip
def test_races_are_found(code: str, distance: int) -> None:
    text = kernel(RACE + code, head=RACE_HEAD)
    with pytest.raises(DataRace) as caught:
        run(text, 0, grid=(3, 1, 1), block=(64, 1, 1), races=True)
    line = next(n for n, words in enumerate(text.splitlines(), 1) if "RACE" in words)
    assert (caught.value.line, caught.value.other_line) == (line, line + distance)
    assert caught.value.other_thread != caught.value.thread


@pytest.mark.parametrize("code", [
    "st.shared.u32 [a], v; bar.sync 0; ld.shared.u32 v, [s]; bar.sync 0; st.shared.u32 [a], v;",
    "st.shared.u32 [a], v; bar.warp.sync -1; xor.b32 w, a, 4; ld.shared.u32 v, [w];",
    "atom.shared.add.u32 v, [s], 1; atom.shared.max.u32 v, [s], t;",
    "ld.shared.u32 v, [s]; ld.shared.u32 w, [s+4];",
    "st.shared.u32 [a], v; ld.shared.u32 v, [a]; st.shared.u32 [a], v;",
    "st.shared.u32 [a], v; shfl.sync.idx.b32 v, v, 0, 31, -1; xor.b32 w, a, 64; ld.shared.u32 v, [w];",
    "st.volatile.shared.u32 [a], v; xor.b32 w, a, 64; ld.volatile.shared.u32 v, [w];",
    # The same value, by lanes of one instruction and of several.
    "st.shared.u32 [s], v;", "st.shared.u32 [s], v; st.shared.u32 [s], v;", "st.shared.v2.u32 [s], {v, 5};",
    "setp.eq.u32 q, t, 0; @q st.shared.u32 [s], v; @!q st.shared.u32 [s], 1;",
    "st.shared.u32 [s], v; bar.sync 0; setp.eq.u32 q, t, 63; @q st.shared.u32 [s], 2;",
    "shr.u32 w, t, 5; mov.u32 a, s; mad.lo.u32 a, w, 4, a; st.shared.u32 [a], v; bar.warp.sync -1;"
    "and.b32 w, t, 31; setp.eq.u32 q, w, 31; @q st.shared.u32 [a], 2;",
    "shr.u32 w, t, 1; and.b32 a, t, 62; shl.b32 a, a, 1; st.shared.u32 [a], w;",
    "mov.u64 x, 0x8000000000000000; mov.u64 y, 0x7ff8000000000001; mov.b128 k, {x, y}; st.shared.b128 [s], k;"
    "st.shared.b128 [s], k;",
    "shr.u32 v, t, 6; mov.u64 x, s; cvta.shared.u64 x, x; setp.lt.u32 q, t, 5; @q ld.param.u64 x, [out]; st.u32 [x], v;"
    "st.u32 [x], v;",
])  # fmt: skip
def test_ordered_accesses_do_not_race(code: str) -> None:
    run(kernel(RACE + code, head=RACE_HEAD), np.zeros(64, np.uint32), grid=(3, 1, 1), block=(64, 1, 1), races=True)


# -- the memory itself -------------------------------------------------------------------------------------------------


def test_allocations_are_exact_far_from_each_other_and_not_reused() -> None:
    memory = sim.GlobalMemory(limit_bytes=10_000)
    first, second = memory.allocate(5), memory.allocate(0)
    assert first % 512 == second % 512 == 0
    assert second - first >= 4096 + 5
    assert memory.bytes_in_use == 5
    memory.free(first)
    assert memory.allocate(5) not in (first, second)
    with pytest.raises(OutOfDeviceMemory):
        memory.allocate(10_000)
    with pytest.raises(InvalidArgument):
        memory.free(first)
    with pytest.raises(InvalidArgument):
        memory.free(second + 8)
    with pytest.raises(InvalidArgument):
        memory.view(second, 1)


def test_views_are_the_bytes_themselves() -> None:
    memory = sim.GlobalMemory()
    address = memory.allocate(16)
    memory.view(address + 4, 4, writable=True)[:] = 7
    assert memory.view(address, 16).tolist() == [0xCD] * 4 + [7] * 4 + [0xCD] * 8
    with pytest.raises(ValueError, match="read-only"):
        memory.view(address, 4)[0] = 1


def test_heads_of_old_and_new_texts() -> None:
    for head in (HEAD, OLD_HEAD):
        run(kernel(START + "st.global.u32 [p], v;", head=head), np.zeros(32, np.uint32))
