"""Control flow, barriers, warps, atomics, variables: what a kernel does as a whole."""

from __future__ import annotations

import re

import numpy as np
import pytest
from machine import HEAD, OLD_HEAD, kernel, run

import ptxrt
from ptxrt import sim
from ptxrt.compilers import nvjitlink
from ptxrt.errors import LaunchError

SELF = """.reg .u32 tid, nt, cta, i; .reg .u64 p, o; .reg .pred q;
mov.u32 tid, %tid.x; mov.u32 nt, %ntid.x; mov.u32 cta, %ctaid.x; mad.lo.u32 i, cta, nt, tid;
ld.param.u64 p, [out]; mul.wide.u32 o, i, 4; add.u64 p, p, o;
"""


def test_loops_end_for_each_lane_at_its_own_time() -> None:
    out = np.zeros(96, np.uint32)
    body = (
        SELF
        + """.reg .u32 n, s; mov.u32 n, 0; mov.u32 s, 0;
    LOOP: setp.ge.u32 q, n, i; @q bra END; add.u32 n, n, 1; add.u32 s, s, n; bra LOOP;
    END: st.global.u32 [p], s;"""
    )
    run(kernel(body), out, grid=(3, 1, 1))
    n = np.arange(96)
    assert out.tolist() == (n * (n + 1) // 2).tolist()


def test_branches_nest_and_meet_again() -> None:
    out = np.zeros(64, np.uint32)
    body = (
        SELF
        + """.reg .u32 r, m; .reg .pred a, b; and.b32 m, i, 1; setp.eq.u32 a, m, 0; and.b32 m, i, 2;
    setp.eq.u32 b, m, 0;
    mov.u32 r, 1;
    @a bra EVEN;
    add.u32 r, r, 10; @b bra MEET; add.u32 r, r, 100; bra MEET;
    EVEN: add.u32 r, r, 1000; @!b bra MEET; add.u32 r, r, 10000;
    MEET: add.u32 r, r, 100000; st.global.u32 [p], r;"""
    )
    report = run(kernel(body), out, block=(64, 1, 1))
    want = [100001 + ([11000, 1000][i >> 1 & 1] if i % 2 == 0 else [10, 110][i >> 1 & 1]) for i in range(64)]
    assert out.tolist() == want
    # Having met again, all lanes run the last two instructions together.
    assert report.instructions < 28


def test_barriers_inside_divergent_loops() -> None:
    out = np.zeros(128, np.uint32)
    body = (
        SELF
        + """.shared .u32 cell[2]; .reg .u32 n, v, a; mov.u32 n, 0;
    LOOP: and.b32 a, n, 1; shl.b32 a, a, 2; mov.u32 v, cell; add.u32 a, a, v;
    setp.eq.u32 q, tid, n; @q bra WRITE; bra BOTH;
    WRITE: add.u32 v, n, 7; st.shared.u32 [a], v;
    BOTH: bar.sync 0; ld.shared.u32 v, [a]; setp.eq.u32 q, tid, 63; @!q bra NEXT; mul.lo.u32 v, v, 2;
    NEXT: add.u32 n, n, 1; setp.lt.u32 q, n, 64; @q bra LOOP;
    st.global.u32 [p], v;"""
    )
    run(kernel(body), out, grid=(2, 1, 1), block=(64, 1, 1), races=True)
    assert out.tolist() == ([70] * 63 + [140]) * 2


@pytest.mark.parametrize("head", [HEAD, OLD_HEAD])
def test_block_reduction_in_shared_memory_at_module_scope(head: str) -> None:
    out = np.zeros(5, np.uint32)
    body = """.reg .pred p1, p2; .reg .u32 tid, s, a, x, y, cta; .reg .u64 o, t;
    mov.u32 tid, %tid.x; mov.u32 cta, %ctaid.x; shl.b32 a, tid, 2; mov.u32 s, sdata; add.u32 a, a, s;
    add.u32 x, tid, cta; st.shared.u32 [a], x; bar.sync 0; mov.u32 s, 128;
    LOOP: setp.lt.u32 p1, tid, s; shl.b32 y, s, 2; add.u32 y, y, a;
    @p1 ld.shared.u32 x, [y]; @p1 ld.shared.u32 y, [a]; @p1 add.u32 x, x, y; @p1 st.shared.u32 [a], x;
    bar.sync 0; shr.u32 s, s, 1; setp.ne.u32 p2, s, 0; @p2 bra LOOP;
    setp.ne.u32 p1, tid, 0; @p1 bra DONE;
    ld.param.u64 o, [out]; mul.wide.u32 t, cta, 4; add.u64 o, o, t; ld.shared.u32 x, [sdata]; st.global.u32 [o], x;
    DONE:"""
    run(kernel(body, head=head, module=".shared .align 4 .u32 sdata[256];"), out, grid=(5, 1, 1), block=(256, 1, 1),
        races=True)  # fmt: skip
    assert out.tolist() == [255 * 128 + 256 * c for c in range(5)]


def test_predicated_off_lanes_do_not_touch_memory() -> None:
    out = np.full(32, 9, np.uint32)
    body = (
        SELF
        + """.reg .u64 bad; .reg .u32 v; setp.lt.u32 q, tid, 4; mov.u64 bad, 0; mov.u32 v, 5;
    @!q mov.u64 p, bad; @q st.global.u32 [p], v; @!q mov.u32 v, 6; @q ld.global.u32 v, [p]; @q add.u32 v, v, 1;
    @q st.global.u32 [p], v;"""
    )
    run(kernel(body), out)
    assert out.tolist() == [6] * 4 + [9] * 28


def test_exited_lanes_are_gone_and_the_rest_goes_on() -> None:
    out = np.zeros(64, np.uint32)
    body = (
        SELF
        + """.reg .u32 v; and.b32 v, tid, 3; setp.eq.u32 q, v, 1; @q exit; setp.gt.u32 q, tid, 40; @q ret;
    bar.sync 0; add.u32 v, i, 1; st.global.u32 [p], v;"""
    )
    run(kernel(body), out, block=(64, 1, 1))
    assert out.tolist() == [i + 1 if i % 4 != 1 and i <= 40 else 0 for i in range(64)]


def test_special_registers() -> None:
    grid, block = (2, 3, 2), (4, 3, 5)
    threads = 60 * 12
    out = np.zeros((threads, 16), np.uint32)
    names = ["tid.x", "tid.y", "tid.z", "ctaid.x", "ctaid.y", "ctaid.z", "ntid.x", "ntid.y", "ntid.z", "nctaid.x",
             "nctaid.y", "nctaid.z", "laneid", "warpid", "lanemask_lt", "nwarpid"]  # fmt: skip
    body = """.reg .u32 r<16>, t, b, u; .reg .u64 p, o;
    mov.u32 t, %tid.z; mov.u32 u, %tid.y; mad.lo.u32 t, t, 3, u; mov.u32 u, %tid.x; mad.lo.u32 t, t, 4, u;
    mov.u32 b, %ctaid.z; mov.u32 u, %ctaid.y; mad.lo.u32 b, b, 3, u; mov.u32 u, %ctaid.x; mad.lo.u32 b, b, 2, u;
    mad.lo.u32 t, b, 60, t; ld.param.u64 p, [out]; mul.wide.u32 o, t, 64; add.u64 p, p, o;\n"""
    body += "\n".join(f"mov.u32 r{n}, %{name}; st.global.u32 [p+{4 * n}], r{n};" for n, name in enumerate(names))
    run(kernel(body), out, grid=grid, block=block)
    for b in range(12):
        for t in range(60):
            want = [t % 4, t // 4 % 3, t // 12, b % 2, b // 2 % 3, b // 6, 4, 3, 5, 2, 3, 2, t % 32, t // 32,
                    (1 << t % 32) - 1, 64]  # fmt: skip
            assert out[b * 60 + t].tolist() == want


def test_shuffles_reduce_a_warp() -> None:
    out = np.zeros(128, np.float32)
    body = (
        SELF
        + """.reg .f32 v, w; cvt.rn.f32.u32 v, i;
    shfl.sync.bfly.b32 w, v, 16, 31, -1; add.f32 v, v, w; shfl.sync.bfly.b32 w, v, 8, 31, -1; add.f32 v, v, w;
    shfl.sync.bfly.b32 w, v, 4, 31, -1; add.f32 v, v, w; shfl.sync.bfly.b32 w, v, 2, 31, -1; add.f32 v, v, w;
    shfl.sync.bfly.b32 w, v, 1, 31, -1; add.f32 v, v, w; st.global.f32 [p], v;"""
    )
    run(kernel(body), out, grid=(2, 1, 1), block=(64, 1, 1))
    assert out.tolist() == np.arange(128).reshape(-1, 32).sum(1).repeat(32).tolist()


def test_shuffle_modes_and_segments() -> None:
    def shuffle(mode: str, by: str, c: str) -> list[tuple[int, int]]:
        out = np.zeros(32, np.uint32)
        body = (
            SELF
            + f""".reg .u32 v, f; .reg .pred z; mov.u32 v, tid; shfl.sync.{mode}.b32 v|z, v, {by}, {c}, -1;
        selp.u32 f, 100, 0, z; add.u32 v, v, f; st.global.u32 [p], v;"""
        )
        run(kernel(body), out)
        return [(int(v) % 100, int(v) // 100) for v in out]

    assert shuffle("up", "3", "0") == [(i - 3, 1) if i >= 3 else (i, 0) for i in range(32)]
    assert shuffle("down", "3", "31") == [(i + 3, 1) if i < 29 else (i, 0) for i in range(32)]
    assert shuffle("idx", "5", "31") == [(5, 1)] * 32
    assert shuffle("idx", "5", "0x181f") == [(i // 8 * 8 + 5, 1) for i in range(32)]
    assert shuffle("down", "3", "0x181f") == [(i + 3, 1) if i % 8 < 5 else (i, 0) for i in range(32)]
    assert shuffle("bfly", "1", "31") == [(i ^ 1, 1) for i in range(32)]


def test_votes_matches_and_warp_reductions() -> None:
    out = np.zeros(32, np.uint32)
    body = (
        SELF
        + """.reg .u32 v, w, r; .reg .pred a, b; and.b32 v, tid, 3; setp.eq.u32 q, v, 0;
    vote.sync.ballot.b32 r, q, -1; setp.ne.u32 a, r, 0x11111111; @a trap;
    vote.sync.any.pred a, q, -1; @!a trap; vote.sync.all.pred a, q, -1; @a trap; vote.sync.uni.pred a, q, -1; @a trap;
    match.any.sync.b32 r, v, -1; shl.b32 w, 0x11111111, v; setp.ne.u32 a, r, w; @a trap;
    match.all.sync.b32 r|b, v, -1; @b trap;
    redux.sync.add.u32 r, tid, -1; setp.ne.u32 a, r, 496; @a trap;
    redux.sync.max.s32 r, tid, -1; setp.ne.u32 a, r, 31; @a trap;
    mov.u32 r, 0; @!q bra MEET; activemask.b32 r; elect.sync w|b, 0x11111111; @b add.u32 r, r, 1;
    MEET: st.global.u32 [p], r;"""
    )
    run(kernel(body, head=HEAD.replace("sm_80", "sm_90")), out)
    assert out.tolist() == [0x11111112] + [0x11111111 if i % 4 == 0 else 0 for i in range(1, 32)]


def test_warp_instructions_wait_for_the_lanes_of_their_mask() -> None:
    out = np.zeros(32, np.uint32)
    body = (
        SELF
        + """.reg .u32 v, n; mov.u32 n, tid; mov.u32 v, 0;
    LOOP: setp.eq.u32 q, n, 0; @q bra SHUFFLE; sub.u32 n, n, 1; add.u32 v, v, 2; bra LOOP;
    SHUFFLE: shfl.sync.down.b32 v, v, 1, 31, -1; st.global.u32 [p], v;"""
    )
    run(kernel(body), out)
    assert out.tolist() == [2 * (i + 1) for i in range(31)] + [62]
    body = (
        SELF
        + """.reg .u32 v; setp.lt.u32 q, tid, 16; mov.u32 v, tid; @q bra LOW;
    shfl.sync.idx.b32 v, v, 20, 31, 0xffff0000; bra MEET;
    LOW: shfl.sync.idx.b32 v, v, 3, 31, 0x0000ffff;
    MEET: st.global.u32 [p], v;"""
    )
    run(kernel(body), out)
    assert out.tolist() == [3] * 16 + [20] * 16


@pytest.mark.parametrize("gone", ["@q bra DONE", "@q exit"])
def test_a_shuffle_from_a_lane_that_takes_no_part_gives_zero(gone: str) -> None:
    """The predicate says whether the lane is in reach, not whether it takes part."""
    out = np.full(32, 77, np.uint32)
    body = (
        SELF
        + f""".reg .u32 v, w; .reg .pred z; add.u32 v, tid, 100; setp.ge.u32 q, tid, 24; {gone};
    shfl.sync.down.b32 w|z, v, 4, 31, 0x00ffffff; @!z add.u32 w, w, 1000; st.global.u32 [p], w; DONE:"""
    )
    run(kernel(body), out)
    assert out.tolist() == [100 + i + 4 for i in range(20)] + [0] * 4 + [77] * 8


def test_lanes_of_a_warp_wait_for_each_other_wherever_they_do() -> None:
    out = np.zeros(64, np.uint32)
    body = (
        SELF
        + """.shared .u32 s[64]; .reg .u32 v, a; shl.b32 a, tid, 2; mov.u32 v, s; add.u32 a, a, v; xor.b32 v, a, 4;
    .reg .u32 low; and.b32 low, tid, 1; setp.eq.u32 q, low, 0; @q bra EVEN;
    st.shared.u32 [a], tid; bar.warp.sync -1; ld.shared.u32 v, [v]; bra MEET;
    EVEN: add.u32 low, tid, 100; st.shared.u32 [a], low; bar.warp.sync -1; ld.shared.u32 v, [v];
    MEET: st.global.u32 [p], v;"""
    )
    run(kernel(body), out, block=(64, 1, 1))
    assert out.tolist() == [i + 1 if i % 2 == 0 else i + 99 for i in range(64)]
    body = (
        SELF
        + """.reg .u32 v; setp.gt.u32 q, tid, 9; @q bra REST; and.b32 v, tid, 1; setp.eq.u32 q, v, 1; @q exit;
    bar.warp.sync 0x3ff; st.global.u32 [p], tid; REST:"""
    )
    out[:] = 0
    run(kernel(body), out)
    assert out[:10].tolist() == [0, 0, 2, 0, 4, 0, 6, 0, 8, 0]


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
def test_atomics_give_each_lane_what_it_found(space: str) -> None:
    out = np.zeros((4, 64), np.uint32)
    where = {"global": ".global", "shared": ".shared", "generic": ""}[space]
    setup = {
        "global": "ld.param.u64 a, [cells]; mov.u64 b, a;",
        "shared": "mov.u64 a, sc; mov.u64 b, a;",
        "generic": "mov.u64 b, sc; cvta.shared.u64 a, b;",
    }[space]
    clear = "st.global.v4.u32" if space == "global" else "st.shared.v4.u32"
    body = (
        SELF
        + f""".shared .align 16 .u32 sc[4]; .reg .u64 a, b; .reg .u32 z, v, w; {setup} mov.u32 z, 0;
    setp.eq.u32 q, tid, 0; @q {clear} [b], {{z, z, z, z}}; bar.sync 0;
    atom{where}.add.u32 v, [a], 3; st.global.u32 [p], v;
    atom{where}.inc.u32 v, [a+4], 9; st.global.u32 [p+256], v;
    atom{where}.max.u32 v, [a+8], tid; st.global.u32 [p+512], v;
    add.u32 w, tid, 1; atom{where}.cas.b32 v, [a+12], tid, w; st.global.u32 [p+768], v;"""
    )
    cells = np.ones(4, np.uint32)
    run(kernel(body, ".param .u64 out, .param .u64 cells"), out, cells, block=(64, 1, 1), races=True)
    i = np.arange(64)
    assert out[0].tolist() == (3 * i).tolist()
    assert out[1].tolist() == (i % 10).tolist()
    assert out[2].tolist() == np.maximum(i - 1, 0).tolist()
    assert out[3].tolist() == i.tolist()
    if space == "global":
        assert cells.tolist() == [192, 4, 63, 64]


def test_float_atomics_round_one_after_the_other() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(1000).astype(np.float32)
    which = rng.integers(0, 3, 1000).astype(np.uint32)
    total, spread = np.zeros(3, np.float32), np.zeros(1000, np.float32)
    body = """.reg .u32 t, n, c, w; .reg .u64 p, o; .reg .f32 v; .reg .pred q;
    mov.u32 t, %tid.x; mov.u32 c, %ctaid.x; mad.lo.u32 t, c, 128, t; setp.ge.u32 q, t, 1000; @q exit;
    mul.wide.u32 o, t, 4; ld.param.u64 p, [x]; add.u64 p, p, o; ld.global.f32 v, [p];
    ld.param.u64 p, [spread]; add.u64 p, p, o; red.global.add.f32 [p], v;
    ld.param.u64 p, [which]; add.u64 p, p, o; ld.global.u32 w, [p]; mul.wide.u32 o, w, 4;
    ld.param.u64 p, [total]; add.u64 p, p, o; red.global.add.f32 [p], v;"""
    params = ".param .u64 x, .param .u64 which, .param .u64 total, .param .u64 spread"
    run(kernel(body, params), x, which, total, spread,
        grid=(8, 1, 1), block=(128, 1, 1))  # fmt: skip
    want = np.zeros(3, np.float32)
    for value, place in zip(x, which, strict=True):
        want[place] += value
    assert total.tolist() == want.tolist()
    assert spread.tolist() == x.tolist()


def test_vectors_packs_and_narrow_types() -> None:
    out = np.zeros((32, 4), np.uint32)
    source = np.arange(128, dtype=np.uint32) * 3
    body = """.reg .u32 t, a, b, c, d; .reg .u64 p, q, o, w; .reg .b16 l, h; .reg .s32 s;
    mov.u32 t, %tid.x; mul.wide.u32 o, t, 16; ld.param.u64 p, [out]; add.u64 p, p, o; ld.param.u64 q, [in_a];
    add.u64 q, q, o;
    ld.global.nc.L1::no_allocate.v4.u32 {a, b, c, d}, [q]; st.global.v2.u32 [p], {d, c};
    mov.b64 w, {a, b}; st.global.cs.u64 [p+8], w; mov.b32 {l, h}, b; mov.b32 b, {h, l}; st.global.b32 [p+12], b;
    ld.global.s8 s, [q]; st.global.u16 [p+8], s; ld.global.u8 a, [q]; st.global.u8 [p+10], a;"""
    run(kernel(body, ".param .u64 out, .param .u64 in_a"), out, source)
    rows = source.reshape(-1, 4)
    assert out[:, 0].tolist() == rows[:, 3].tolist()
    assert out[:, 1].tolist() == rows[:, 2].tolist()
    assert out[:, 3].tolist() == (rows[:, 1] << 16 | rows[:, 1] >> 16).astype(np.uint32).tolist()
    low = rows[:, 0].astype(np.uint8)
    got = out[:, 2].copy().view(np.uint8).reshape(-1, 4)
    assert got[:, :2].copy().view(np.int16)[:, 0].tolist() == low.view(np.int8).tolist()
    assert got[:, 2].tolist() == low.tolist()


def test_local_memory_is_a_lanes_own() -> None:
    out = np.zeros(64, np.uint32)
    body = (
        SELF
        + """.local .align 8 .b8 stack[32]; .reg .u64 a, g; .reg .u32 v;
    mov.u64 a, stack; cvta.local.u64 g, a; and.b32 v, tid, 3; mul.wide.u32 o, v, 4; add.u64 a, a, o; add.u64 g, g, o;
    st.local.u32 [a], i; ld.u32 v, [g]; add.u32 v, v, 1; st.u32 [g+4], v;
    ld.local.u32 v, [a+4]; st.global.u32 [p], v;"""
    )
    run(kernel(body), out, grid=(2, 1, 1))
    assert out.tolist() == list(range(1, 65))


def test_module_variables_keep_their_values_between_launches() -> None:
    module = """.const .align 4 .f32 table[4] = {1.5, 2.5, 0f40600000, 4.5};
    .global .align 8 .u32 counter = 5; .global .u64 pointer = generic(counter) + 0;"""
    text = kernel(""".reg .u64 a; .reg .f32 f; .reg .u32 v; ld.param.u64 a, [out]; ld.const.f32 f, [table+8];
    st.global.f32 [a], f; ld.global.u64 a, [pointer]; ld.global.u32 v, [a]; add.u32 v, v, 1; st.global.u32 [counter], v;
    ld.param.u64 a, [out]; st.global.u32 [a+4], v;""", module=module)  # fmt: skip
    memory = sim.GlobalMemory()
    loaded = sim.load(sim.parse(text), memory)
    out = memory.allocate(8)
    for turn in (6, 7):
        sim.launch(loaded, "k", (1, 1, 1), (1, 1, 1), out.to_bytes(8, "little"))
        got = memory.view(out, 8)
        assert got.view(np.float32)[0] == 3.5
        assert got.view(np.uint32)[1] == turn
    address, size = loaded.address_of("counter")
    assert memory.view(address, size).view(np.uint32)[0] == 7
    sim.unload(loaded)
    assert memory.bytes_in_use == 8


def test_dynamic_shared_memory_follows_the_static() -> None:
    out = np.zeros(2, np.uint32)
    text = kernel(""".shared .u32 fixed[3]; .reg .u32 v; .reg .u64 p; mov.u32 v, 42; st.shared.u32 [dyn+12], v;
    st.shared.u32 [fixed+8], v; mov.u32 v, dyn; ld.param.u64 p, [out]; st.global.u32 [p], v;
    ld.shared.u32 v, [dyn+12]; st.global.u32 [p+4], v;""", module=".extern .shared .align 16 .b8 dyn[];")  # fmt: skip
    run(text, out, block=(1, 1, 1), shared_bytes=16)
    assert out.tolist() == [16, 42]
    entry = sim.parse(text).entries["k"]
    assert entry.shared_bytes == 12


def test_named_barriers_pair_producers_and_consumers() -> None:
    out = np.zeros(64, np.uint32)
    body = (
        SELF
        + """.shared .u32 cell; .reg .u32 v; setp.ge.u32 q, tid, 32; @q bra CONSUMER;
    mov.u32 v, 77; setp.eq.u32 q, tid, 0; @q st.shared.u32 [cell], v; bar.arrive 3, 64; bra END;
    CONSUMER: bar.sync 3, 64; ld.shared.u32 v, [cell]; st.global.u32 [p], v;
    END:"""
    )
    run(kernel(body), out, block=(64, 1, 1), races=True)
    assert out.tolist() == [0] * 32 + [77] * 32


def test_barrier_reductions() -> None:
    out = np.zeros(96, np.uint32)
    body = (
        SELF
        + """.reg .u32 v, w; .reg .pred a, b; setp.gt.u32 q, tid, 10; bar.red.popc.u32 v, 0, q;
    bar.red.and.pred a, 1, q; bar.red.or.pred b, 0, q; selp.u32 w, 1000, 0, a; add.u32 v, v, w; selp.u32 w, 100, 0, b;
    add.u32 v, v, w; st.global.u32 [p], v;"""
    )
    run(kernel(body), out, grid=(2, 1, 1), block=(48, 1, 1))
    assert out.tolist() == [137] * 96


def test_functions_are_called_with_their_own_registers() -> None:
    module = """.func (.param .b32 r) twice(.param .b32 x) { .reg .u32 %v; ld.param.u32 %v, [x]; add.u32 %v, %v, %v;
      .reg .pred %p; setp.gt.u32 %p, %v, 20; @%p bra BIG; st.param.b32 [r+0], %v; ret;
      BIG: add.u32 %v, %v, 1000; st.param.b32 [r+0], %v; ret; }
    .func (.reg .u32 y) plus(.reg .u32 a, .reg .u32 b) { add.u32 y, a, b; ret; }"""
    body = (
        SELF
        + """.reg .u32 %v; mov.u32 %v, tid; { .param .b32 x; .param .b32 r; st.param.b32 [x+0], %v;
    call.uni (r), twice, (x); ld.param.b32 %v, [r+0]; } call (%v), plus, (%v, 5); st.global.u32 [p], %v;"""
    )
    out = np.zeros(32, np.uint32)
    run(kernel(body, module=module), out)
    assert out.tolist() == [2 * i + 5 if 2 * i <= 20 else 2 * i + 1005 for i in range(32)]


def test_branch_tables() -> None:
    out = np.zeros(32, np.uint32)
    body = (
        SELF
        + """.reg .u32 v; and.b32 v, tid, 3; T: .branchtargets A, B, C, C; brx.idx v, T;
    A: mov.u32 v, 10; bra END; B: mov.u32 v, 20; bra END; C: mov.u32 v, 30;
    END: st.global.u32 [p], v;"""
    )
    run(kernel(body), out)
    assert out.tolist() == [10, 20, 30, 30] * 8


def test_scopes_hide_registers_and_labels() -> None:
    out = np.zeros(1, np.uint32)
    body = """.reg .u32 v; .reg .u64 p; mov.u32 v, 1; { .reg .u32 v; mov.u32 v, 50; bra L; mov.u32 v, 60; L: }
    { bra L; L: add.u32 v, v, 1; } ld.param.u64 p, [out]; st.global.u32 [p], v;"""
    run(kernel(body), out, block=(1, 1, 1))
    assert out.tolist() == [2]


def test_spin_locks_make_progress() -> None:
    out = np.zeros(2, np.uint32)
    body = """.reg .u64 p; .reg .u32 v; .reg .pred q; ld.param.u64 p, [out];
    SPIN: atom.global.cas.b32 v, [p], 0, 1; setp.ne.u32 q, v, 0; @q bra SPIN;
    ld.volatile.global.u32 v, [p+4]; add.u32 v, v, 1; st.volatile.global.u32 [p+4], v;
    atom.global.exch.b32 v, [p], 0;"""
    run(kernel(body), out, block=(8, 1, 1))
    assert out.tolist() == [0, 8]


def test_trap_is_a_launch_error_with_the_line() -> None:
    with pytest.raises(LaunchError, match=r"line 11: trap"):
        run(kernel(SELF + "\ntrap;"), np.zeros(32, np.uint32))


def test_asynchronous_copies_are_there_after_the_wait() -> None:
    out, source = np.zeros(128, np.uint32), np.arange(128, dtype=np.uint32)
    body = """.shared .align 16 .b8 s[512]; .reg .u32 t, a, z; .reg .u64 g, o, p; mov.u32 t, %tid.x;
    mul.wide.u32 o, t, 16;
    ld.param.u64 g, [src]; add.u64 g, g, o; mov.u32 a, s; mad.lo.u32 a, t, 16, a; mov.u32 z, 8;
    cp.async.cg.shared.global [a], [g], 16; cp.async.commit_group; cp.async.wait_group 0;
    cp.async.ca.shared.global [a], [g], 16, z; cp.async.wait_all;
    .reg .b32 x<4>; ld.shared.v4.b32 {x0, x1, x2, x3}, [a]; ld.param.u64 p, [out]; add.u64 p, p, o;
    st.global.v4.b32 [p], {x0, x1, x2, x3};"""
    run(kernel(body, ".param .u64 out, .param .u64 src"), out, source)
    want = source.reshape(-1, 4).copy()
    want[:, 2:] = 0
    assert out.tolist() == want.reshape(-1).tolist()


def test_an_asynchronous_copy_goes_where_its_register_pointed_when_it_began() -> None:
    out, source = np.zeros(32, np.uint32), np.arange(32, dtype=np.uint32)
    body = """.shared .align 16 .b8 s[128]; .reg .u32 t, a, v; .reg .u64 g, o, p; .reg .pred q; mov.u32 t, %tid.x;
    mul.wide.u32 o, t, 4; ld.param.u64 g, [src]; add.u64 g, g, o; mov.u32 a, s; mad.lo.u32 a, t, 4, a;
    cp.async.ca.shared.global [a], [g], 4; setp.eq.u32 q, t, 0; @q add.u32 a, a, 64; cp.async.wait_all;
    @q sub.u32 a, a, 64; ld.shared.u32 v, [a]; ld.param.u64 p, [out]; add.u64 p, p, o; st.global.u32 [p], v;"""
    run(kernel(body, ".param .u64 out, .param .u64 src"), out, source)
    assert out.tolist() == source.tolist()


def test_an_entry_has_the_shared_memory_that_its_code_names() -> None:
    """As the linker counts it: what other entries of the text, or nobody, use takes no place."""
    text = """
.version 7.0
.target sm_70
.address_size 64
.shared .align 4 .b8 unused[1000];
.shared .align 4 .b8 of_both[8];
.extern .shared .align 16 .b8 dynamic[];
.func helper() { .reg .u32 v; .shared .align 8 .b8 of_helper[24]; st.volatile.shared.u32 [of_helper], 1; ret; }
.visible .entry one(.param .u64 y)
{
    .shared .align 4 .b8 mine[40000];
    .reg .u32 v;
    st.volatile.shared.u32 [mine+39996], 5;
    st.volatile.shared.u32 [of_both], 5;
    ret;
}
.visible .entry two(.param .u64 y)
{
    .shared .align 4 .b8 mine[40000];
    .reg .u32 a; .reg .u64 p;
    ld.param.u64 p, [y];
    mov.u32 a, mine;  st.global.u32 [p], a;
    mov.u32 a, of_both;  st.global.u32 [p+4], a;
    mov.u32 a, dynamic;  st.global.u32 [p+8], a;
    call helper;
    ret;
}
"""
    entries = sim.parse(text).entries
    assert {name: entry.shared_bytes for name, entry in entries.items()} == {"one": 40008, "two": 40032}
    if nvjitlink.available() is None:
        linked = re.findall(r"for '(\w+)':\n.* (\d+) bytes smem", nvjitlink.compile_ptx(text, "sm_80").log)
        assert {name: int(size) for name, size in linked} == {"one": 40008, "two": 40032}
    y = ptxrt.empty(3, np.uint32, "sim:0")
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text), "two", "u32* y", "sim:0")
    kernel.launch(1, 1, y, shared_bytes=16)
    assert list(y.to_host()) == [32, 0, 40032]
