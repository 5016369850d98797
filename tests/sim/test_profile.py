"""Counts per line, against what one counts by hand: sectors, bank conflicts, active lanes, serialised atomics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine import kernel, run

from ptxrt import sim
from ptxrt.errors import PtxrtError

REGS = ".reg .u32 t, u, v; .reg .u64 p, o; .reg .f32 f; .reg .f64 d; .reg .pred q; .reg .b32 a, b, c, e;\n"
START = REGS + "mov.u32 t, %tid.x; ld.param.u64 p, [out];\n"
# Lines 1 to 3 are the head, 5 the entry, 7 the first of the body.
FIRST = 7


def counts(body: str, *, threads: int = 32, blocks: int = 1, size: int = 1 << 16, module: str = "", **how: Any) -> Any:
    """Return the profile of `body`, each of whose lines is numbered from 1, with the counts of its lines."""
    profile = sim.Profile()
    out = how.pop("out", np.zeros(size, np.uint8))
    text = kernel(START + body, module=module)
    run(text, out, grid=(blocks, 1, 1), block=(threads, 1, 1), profile=profile, **how)
    first = FIRST + START.count("\n") + module.count("\n")
    return [profile.lines.get(first + n, sim.LineCounts()) for n in range(body.count("\n") + 1)]


def load(place: str, instruction: str) -> str:
    """Return two lines: one that makes the place of each lane in bytes, and one access there."""
    return f"{place} cvt.u64.u32 o, u; add.u64 p, p, o;\n{instruction}"


GLOBAL = {
    # name: (place of lane t, access, bytes asked for, sectors, least sectors)
    "coalesced": ("mul.lo.u32 u, t, 4;", "ld.global.f32 f, [p];", 128, 4, 4),
    "coalesced, 8 bytes": ("mul.lo.u32 u, t, 8;", "ld.global.f64 d, [p];", 256, 8, 8),
    "coalesced, 16 bytes": ("mul.lo.u32 u, t, 16;", "ld.global.v4.b32 {a, b, c, e}, [p];", 512, 16, 16),
    "bytes": ("mov.u32 u, t;", "ld.global.u8 v, [p];", 32, 1, 1),
    "backwards": ("sub.u32 u, 31, t; mul.lo.u32 u, u, 4;", "ld.global.f32 f, [p];", 128, 4, 4),
    "stride 2": ("mul.lo.u32 u, t, 8;", "ld.global.f32 f, [p];", 128, 8, 4),
    "stride 8": ("mul.lo.u32 u, t, 32;", "ld.global.f32 f, [p];", 128, 32, 4),
    "stride 32": ("mul.lo.u32 u, t, 128;", "st.global.u32 [p], t;", 128, 32, 4),
    "4 bytes off": ("mad.lo.u32 u, t, 4, 4;", "ld.global.f32 f, [p];", 128, 5, 4),
    "32 bytes off": ("mad.lo.u32 u, t, 4, 32;", "ld.global.f32 f, [p];", 128, 4, 4),
    "all the same": ("mov.u32 u, 64;", "ld.global.f32 f, [p];", 128, 1, 1),
    "pairs": ("shr.u32 u, t, 1; mul.lo.u32 u, u, 4;", "ld.global.f32 f, [p];", 128, 2, 2),
    "generic": ("mul.lo.u32 u, t, 8;", "ld.f32 f, [p];", 128, 8, 4),
    "a gap in 16 bytes": ("mul.lo.u32 u, t, 32;", "ld.global.v4.b32 {a, b, c, e}, [p];", 512, 32, 16),
    "16 bytes, 16 off": ("mad.lo.u32 u, t, 16, 16;", "ld.global.v4.b32 {a, b, c, e}, [p];", 512, 17, 16),
    "halves at both ends": ("and.b32 u, t, 1; mul.lo.u32 u, u, 8192;", "ld.global.f32 f, [p];", 128, 2, 1),
    "one value stored by all": ("mov.u32 u, 0;", "st.volatile.global.u32 [p], t;", 128, 1, 1),
    "a word that all add to": ("mov.u32 u, 0;", "red.global.add.u32 [p], t;", 128, 1, 1),
    "a word that each adds to": ("mul.lo.u32 u, t, 4;", "red.global.add.u32 [p], t;", 128, 4, 4),
}


@pytest.mark.parametrize("case", GLOBAL)
def test_sectors_of_global_memory(case: Any) -> None:
    place, access, asked, sectors, least = GLOBAL[case]
    line = counts(load(place, access))[1]
    assert (line.global_requests, line.global_bytes) == (1, asked)
    assert (line.sectors, line.least_sectors) == (sectors, least)
    assert line.efficiency == least / sectors


def test_each_warp_of_each_block_makes_a_request() -> None:
    body = load("mul.lo.u32 u, t, 4;", "ld.global.f32 f, [p];")
    line = counts(body, threads=96, blocks=5)[1]
    assert (line.issued, line.lanes, line.global_requests) == (15, 480, 15)
    assert (line.sectors, line.least_sectors) == (60, 60)


def test_the_offset_of_the_access_counts() -> None:
    line = counts(load("mul.lo.u32 u, t, 4;", "ld.global.f32 f, [p+4];"))[1]
    assert (line.sectors, line.least_sectors) == (5, 4)


def test_a_guard_takes_lanes_out_of_a_request() -> None:
    body = "setp.lt.u32 q, t, 16; mul.lo.u32 u, t, 4; cvt.u64.u32 o, u; add.u64 p, p, o;\n@q ld.global.f32 f, [p];"
    line = counts(body)[1]
    assert (line.issued, line.lanes, line.active) == (1, 16, 16)
    assert (line.global_bytes, line.sectors, line.least_sectors) == (64, 2, 2)


def test_two_allocations_in_one_request() -> None:
    memory = sim.GlobalMemory()
    table = np.zeros(2, np.uint64)
    for place in range(2):
        table[place] = memory.allocate(256, f"half {place}")
    body = load(
        "and.b32 u, t, 1; mul.lo.u32 u, u, 8;",
        "ld.global.u64 p, [p]; mul.wide.u32 o, t, 4; add.u64 p, p, o;\nld.global.f32 f, [p];",
    )
    line = counts(body, out=table.view(np.uint8), memory=memory)[2]
    assert (line.global_bytes, line.sectors, line.least_sectors) == (128, 8, 4)


def test_constants_and_parameters_are_no_global_memory() -> None:
    body = "ld.const.u32 u, [table];\nld.param.u64 o, [out];"
    for line in counts(body, module=".const .u32 table[4] = {1, 2, 3, 4};"):
        assert (line.issued, line.global_requests, line.sectors, line.shared_requests) == (1, 0, 0, 0)


SHARED = {
    # name: (place of lane t, access, wavefronts, least)
    "a word a lane": ("mul.lo.u32 u, t, 4;", "ld.shared.f32 f, [u];", 1, 1),
    "a byte a lane": ("mov.u32 u, t;", "ld.shared.u8 v, [u];", 1, 1),
    "broadcast": ("mov.u32 u, 128;", "ld.shared.f32 f, [u];", 1, 1),
    "two broadcasts in two banks": ("and.b32 u, t, 1; mul.lo.u32 u, u, 4;", "ld.shared.f32 f, [u];", 1, 1),
    "two broadcasts in one bank": ("and.b32 u, t, 1; mul.lo.u32 u, u, 128;", "ld.shared.f32 f, [u];", 2, 1),
    "2-way": ("mul.lo.u32 u, t, 8;", "ld.shared.f32 f, [u];", 2, 1),
    "odd stride": ("mul.lo.u32 u, t, 12;", "ld.shared.f32 f, [u];", 1, 1),
    "32-way": ("mul.lo.u32 u, t, 128;", "ld.shared.f32 f, [u];", 32, 1),
    "32-way store": ("mul.lo.u32 u, t, 128;", "st.shared.u32 [u], t;", 32, 1),
    "padded rows": ("mul.lo.u32 u, t, 132;", "ld.shared.f32 f, [u];", 1, 1),
    "8 bytes, by halves": ("mul.lo.u32 u, t, 8;", "ld.shared.f64 d, [u];", 2, 2),
    "8 bytes, 2-way": ("mul.lo.u32 u, t, 16;", "ld.shared.f64 d, [u];", 4, 2),
    "16 bytes, by quarters": ("mul.lo.u32 u, t, 16;", "ld.shared.v4.b32 {a, b, c, e}, [u];", 4, 4),
    "16 bytes, 2-way": ("mul.lo.u32 u, t, 32;", "ld.shared.v4.b32 {a, b, c, e}, [u];", 8, 4),
}


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("case", SHARED)
def test_bank_conflicts_of_shared_memory(case: Any, blocks: int) -> None:
    place, access, wavefronts, least = SHARED[case]
    # An odd size, so that the blocks' shared memories are at no multiple of 128 bytes from each other.
    line = counts(f"{place}\n{access}", module=".shared .align 16 .b8 tile[4240];", blocks=blocks)[1]
    assert (line.issued, line.shared_requests) == (blocks, blocks)
    assert (line.wavefronts, line.least_wavefronts) == (wavefronts * blocks, least * blocks)
    assert line.conflicts == (wavefronts - least) * blocks


def test_generic_addresses_find_the_banks_too() -> None:
    body = "cvta.shared.u64 p, tile; mul.wide.u32 o, t, 8; add.u64 p, p, o;\nld.f32 f, [p];"
    line = counts(body.replace("cvta.shared.u64 p, tile;", "mov.u64 p, tile; cvta.shared.u64 p, p;"),
                  module=".shared .align 4 .b8 tile[512];")[1]  # fmt: skip
    assert (line.wavefronts, line.conflicts, line.global_requests) == (2, 1, 0)


def test_divergent_halves_are_issued_twice() -> None:
    high = "setp.lt.u32 q, t, 16;\n@q bra LOW;\nadd.u32 u, t, 1;\nbra JOIN;\n"
    body = high + "LOW:\nadd.u32 u, t, 2;\nJOIN:\nadd.u32 v, u, 1;"
    lines = counts(body, threads=64)
    got = [(line.issued, line.lanes) for line in lines]
    # Warp 0 takes both ways, warp 1 one; behind the join all are together again.
    assert got == [(2, 64), (2, 64), (2, 48), (2, 48), (0, 0), (1, 16), (0, 0), (2, 64)]
    assert [line.active for line in lines[2:6:3]] == [24, 16]


def test_a_loop_counts_each_turn_and_the_lanes_left_in_it() -> None:
    body = "mov.u32 u, 0;\nAGAIN:\nadd.u32 u, u, 1;\nsetp.le.u32 q, u, t;\n@q bra AGAIN;"
    lines = counts(body)
    assert (lines[2].issued, lines[2].lanes, lines[2].active) == (32, 528, 16.5)
    assert (lines[4].issued, lines[4].lanes) == (32, 528)


def test_exited_lanes_and_warps_do_not_count() -> None:
    body = "setp.lt.u32 q, t, 40;\n@q ret;\nadd.u32 u, t, 1;"
    got = [(line.issued, line.lanes) for line in counts(body, threads=96)]
    assert got == [(3, 96), (3, 96), (2, 56)]


def test_a_last_warp_that_is_not_full() -> None:
    line = counts("add.u32 u, t, 1;", threads=40, blocks=2)[0]
    assert (line.issued, line.lanes, line.active) == (4, 80, 20)


def test_a_guarded_barrier_counts_once() -> None:
    lines = counts("setp.lt.u32 q, t, 64;\n@q bar.sync 1, 64;\nbar.sync 0;", threads=64)
    assert [(line.issued, line.lanes) for line in lines[1:]] == [(2, 64), (2, 64)]


def test_a_call_counts_the_lines_of_the_function() -> None:
    module = ".func twice(.reg .u32 x) { .reg .u32 y;\nadd.u32 y, x, x;\nret; }\n"
    profile = sim.Profile()
    text = kernel(START + "call twice, (t);\ncall twice, (t);", module=module)
    run(text, np.zeros(4, np.uint8), profile=profile)
    assert profile.lines[5].issued == 2


ATOMICS = {
    # name: (place of lane t, lanes behind the first at its address, in warp 0 and in warp 1)
    "one for all": ("mov.u32 u, 0;", 31, 31),
    "one each": ("mul.lo.u32 u, t, 4;", 0, 0),
    "pairs": ("shr.u32 u, t, 1; mul.lo.u32 u, u, 4;", 1, 1),
    "half on one": ("max.u32 u, t, 15; sub.u32 u, u, 15; mul.lo.u32 u, u, 4;", 15, 0),
}


@pytest.mark.parametrize("case", ATOMICS)
def test_atomics_of_a_warp_to_one_address_wait(case: Any) -> None:
    place, *extra = ATOMICS[case]
    there = counts(load(place, "red.global.add.u32 [p], 1;"), threads=64, blocks=2)[1]
    here = counts(f"{place}\nred.shared.add.u32 [u], 1;", module=".shared .u32 tile[64];", threads=64, blocks=2)[1]
    assert there.atomic_extra == here.atomic_extra == 2 * sum(extra)


READS = {1: "ld.{}.u8 v, [p];", 4: "ld.{}.f32 f, [p];", 8: "ld.{}.f64 d, [p];", 16: "ld.{}.v4.b32 {{a, b, c, e}}, [p];"}


def by_hand(places: np.ndarray, active: np.ndarray, size: int) -> dict[str, int]:
    """Count as docs/sim.md defines it, one warp and one bank after the other."""
    found = dict.fromkeys(("requests", "sectors", "least", "wavefronts", "turns"), 0)
    together = min(32, 128 // size)
    for first in range(0, len(places), 32):
        warp = [int(p) for p, on in zip(places[first : first + 32], active[first : first + 32], strict=True) if on]
        found["requests"] += bool(warp)
        found["sectors"] += len({p // 32 for p in warp})
        found["least"] += -(-len({p + i for p in warp for i in range(size)}) // 32)
    for first in range(0, len(places), together):
        lanes = range(first, min(first + together, len(places)))
        words = {(int(places[n]) + i) // 4 for n in lanes if active[n] for i in range(size)}
        found["turns"] += bool(words)
        found["wavefronts"] += max((sum(w % 32 == bank for w in words) for bank in range(32)), default=0)
    return found


@pytest.mark.parametrize("size", READS)
@pytest.mark.parametrize("threads", [32, 64, 75])
@pytest.mark.parametrize("all_active", [True, False])
def test_drawn_addresses_counted_by_hand(size: Any, threads: int, all_active: bool, rng: np.random.Generator) -> None:
    for span in (64, 2048):
        places = rng.integers(0, span // size, threads).astype(np.uint32) * np.uint32(size)
        active = np.ones(threads, bool) if all_active else rng.random(threads) < 0.6
        table = np.zeros(2048 + threads * 8, np.uint8)
        table[2048:] = np.stack([places, active.astype(np.uint32)], axis=1).reshape(-1).view(np.uint8)
        body = (
            "mul.wide.u32 o, t, 8; add.u64 o, o, p; ld.global.v2.u32 {u, v}, [o+2048]; setp.ne.u32 q, v, 0;\n"
            f"cvt.u64.u32 o, u; add.u64 p, p, o;\n@q {READS[size].format('global')}\n"
            f"mov.u64 p, tile; add.u64 p, p, o;\n@q {READS[size].format('shared')}"
        )
        lines = counts(body, threads=threads, out=table, module=".shared .align 16 .b8 tile[2048];")
        want = by_hand(places, active, size)
        there, here = lines[2], lines[4]
        assert (there.global_requests, there.sectors, there.least_sectors) == (
            want["requests"], want["sectors"], want["least"]
        )  # fmt: skip
        assert (here.shared_requests, here.wavefronts, here.least_wavefronts) == (
            want["requests"], want["wavefronts"], want["turns"]
        )  # fmt: skip
        assert there.global_bytes == size * int(active.sum())


def test_an_asynchronous_copy_counts_on_both_sides() -> None:
    body = load("mul.lo.u32 u, t, 16;", "cp.async.ca.shared.global [u], [p], 16;")
    line = counts(body, module=".shared .align 16 .b8 tile[512];")[1]
    assert (line.sectors, line.least_sectors, line.wavefronts, line.conflicts) == (16, 16, 4, 0)


@pytest.mark.parametrize(
    ("wanted", "asked", "sectors", "least"),
    # Of 16 bytes that each of 32 lanes copies, how many come from global memory.
    [
        ("mov.u32 v, 16;", 512, 16, 16),
        ("mov.u32 v, 8;", 256, 16, 8),
        ("mov.u32 v, 0;", 0, 0, 0),
        ("setp.eq.u32 q, t, 3; selp.u32 v, 16, 0, q;", 16, 1, 1),
        ("setp.lt.u32 q, t, 16; selp.u32 v, 16, 0, q;", 256, 8, 8),
    ],
)
def test_an_asynchronous_copy_of_a_part_is_one_request(wanted: str, asked: int, sectors: int, least: int) -> None:
    body = load(f"{wanted} mul.lo.u32 u, t, 16;", "cp.async.cg.shared.global [u], [p], 16, v;")
    line = counts(body, module=".shared .align 16 .b8 tile[512];")[1]
    assert (line.global_requests, line.global_bytes) == (1 if asked else 0, asked)
    assert (line.sectors, line.least_sectors) == (sectors, least)
    assert (line.shared_requests, line.wavefronts, line.conflicts) == (1, 4, 0)


def test_an_asynchronous_copy_that_has_arrived_was_counted_before() -> None:
    body = load("mul.lo.u32 u, t, 16;", "cp.async.ca.shared.global [u], [p], 16;\ncp.async.wait_all;")
    there, arrived = counts(body, module=".shared .align 16 .b8 tile[512];")[1:]
    assert (there.shared_requests, there.wavefronts, there.least_wavefronts) == (1, 4, 4)
    assert (arrived.issued, arrived.shared_requests) == (1, 0)


def test_the_total_is_the_sum_and_launches_add_up() -> None:
    profile = sim.Profile()
    out = np.zeros(128, np.uint8)
    text = kernel(START + load("mul.lo.u32 u, t, 4;", "ld.global.f32 f, [p];"))
    reports = [run(text, out, profile=profile) for _ in range(2)]
    total = profile.total()
    assert total.lanes == sum(report.lane_instructions for report in reports)
    assert total.sectors == 8
    assert sim.LineCounts().active is None
    assert sim.LineCounts().efficiency is None


def test_chunks_add_up() -> None:
    line = counts(load("mul.lo.u32 u, t, 4;", "ld.global.f32 f, [p];"), threads=1024, blocks=100)[1]
    assert (line.issued, line.lanes, line.sectors) == (3200, 102400, 12800)


def test_a_profile_changes_no_result_and_no_other_launch() -> None:
    text = kernel(START + "mul.wide.u32 o, t, 4; add.u64 p, p, o; add.u32 u, t, 7; st.global.u32 [p], u;")
    plain, counted = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    profile = sim.Profile()
    a = run(text, plain)
    b = run(text, counted, profile=profile)
    issued = profile.total().issued
    run(text, plain)
    assert a == b
    assert profile.total().issued == issued
    np.testing.assert_array_equal(plain, counted)


def up_to_fault(*lines: str) -> list[tuple[int, int, int]]:
    """Return issues, lanes and sectors of each line of a kernel that a fault ends, its array of 64 bytes."""
    profile = sim.Profile()
    with pytest.raises(PtxrtError):
        run(kernel(START + "\n".join(lines)), np.zeros(64, np.uint8), profile=profile)
    first = FIRST + START.count("\n")
    found = [profile.lines.get(first + n, sim.LineCounts()) for n in range(len(lines))]
    return [(line.issued, line.lanes, line.sectors) for line in found]


def test_a_fault_leaves_the_counts_up_to_it() -> None:
    # The instruction at fault was issued; what stands behind it in its basic block never was.
    loads = ["ld.global.f32 f, [p];", "ld.global.f32 f, [p+64];", "add.f32 f, f, f;", "bra ON;", "ON:", "bar.sync 0;"]
    assert up_to_fault(*loads) == [(1, 32, 1), (1, 32, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0), (0, 0, 0)]
    assert up_to_fault("trap;", "ld.global.f32 f, [p];") == [(1, 32, 0), (0, 0, 0)]
    guarded = ["setp.eq.u32 q, t, 3;", "@q ld.global.f32 f, [p+64];", "@q ret;"]
    assert up_to_fault(*guarded) == [(1, 32, 0), (1, 1, 0), (0, 0, 0)]
