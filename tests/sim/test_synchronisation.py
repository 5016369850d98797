"""What orders the accesses of threads and what does not: fences, locks, masks, counts, scopes, copies under way."""

from __future__ import annotations

import numpy as np
import pytest
from machine import kernel, run

from ptxrt.errors import DataRace, Deadlock, MemoryFault, SimFault

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
START = """.reg .u32 t, v, w, x, a, c; .reg .u64 p, o, g, h; .reg .pred q, e; .shared .align 16 .u32 s[64];
mov.u32 t, %tid.x; mov.u32 c, %ctaid.x; ld.param.u64 h, [out]; mul.wide.u32 o, t, 4; add.u64 p, h, o;
mov.u32 a, s; mad.lo.u32 a, t, 4, a; mov.u32 v, 1;
"""


def launch(
    body: str, blocks: int = 1, threads: int = 64, after: str = "", out: np.ndarray | None = None,
    checks: tuple[str, ...] = ("global-races", "shuffles"),
) -> np.ndarray:  # fmt: skip
    """Run with the checks of races and of masks, and return the output."""
    out = np.zeros(256, np.uint32) if out is None else out
    text = kernel(START + body, head=HEAD).replace("k(.param .u64 out)", f"k(.param .u64 out) {after}")
    run(text, out, grid=(blocks, 1, 1), block=(threads, 1, 1), checks=checks)
    return out


LOCK = """
L: atom%s.cas.b32 w, [lock], 0, 1; setp.ne.u32 q, w, 0; @q bra L; %s
ld%s.u32 x, [cell]; add.u32 x, x, 1; st%s.u32 [cell], x; %s atom%s.exch.b32 w, [lock], 0;
"""


def lock(space: str, scope: str, way: str) -> str:
    """Return a spin lock around a plain sum, with fences, or with an acquire and a release."""
    fence = {"fence": f"membar.{scope};", "order": ""}.get(way, "")
    order = {"order": (".acquire", ".release")}.get(way, ("", ""))
    width = {"cta": ".cta", "gl": ".gpu"}[scope] if way == "order" else ""
    text = LOCK % (order[0] + width + space, fence, space, space, fence, order[1] + width + space)
    cells = ("s", "s+4") if space == ".shared" else ("h", "h+4")
    return text.replace("lock", cells[0]).replace("cell", cells[1])


SHARED_LOCK = "mov.u32 w, 0; setp.lt.u32 q, t, 2; @q st.shared.u32 [a], w; bar.sync 0; @@ bar.sync 0;" \
    "ld.shared.u32 x, [s+4]; st.global.u32 [p], x;"  # fmt: skip


@pytest.mark.parametrize("way", ["fence", "order", "none"])
def test_locks_in_shared_memory(way: str) -> None:
    body = SHARED_LOCK.replace("@@", lock(".shared", "cta", way))
    if way == "none":
        with pytest.raises(DataRace):
            launch(body)
    else:
        assert launch(body)[:64].tolist() == [64] * 64


@pytest.mark.parametrize("threads", [8, 64])
@pytest.mark.parametrize(("way", "scope"), [("fence", "gl"), ("order", "gl"), ("none", "gl"), ("fence", "cta"),
                                            ("order", "cta")])  # fmt: skip
def test_locks_in_global_memory(way: str, scope: str, threads: int) -> None:
    body = lock(".global", scope, way)
    if way == "none" or scope == "cta":
        with pytest.raises(DataRace):
            launch(body, 2, threads)
    else:
        assert launch(body, 2, threads)[:2].tolist() == [0, 2 * threads]
    if way != "none":
        assert launch(body, 1, threads)[:2].tolist() == [0, threads]


HAND_OVER = """mov.u32 w, 0; setp.eq.u32 q, t, 0; @q st.shared.u32 [s+4], w; bar.sync 0; setp.ge.u32 q, t, 32; @q bra C;
setp.ne.u32 q, t, 0; @q bra E; st.shared.u32 [s], v; @@ st.volatile.shared.u32 [s+4], v; bra E;
C: ld.volatile.shared.u32 w, [s+4]; setp.ne.u32 q, w, 1; @q bra C; @@ ld.shared.u32 x, [s]; E:"""


def test_a_flag_hands_data_from_warp_to_warp_between_fences_only() -> None:
    launch(HAND_OVER.replace("@@", "membar.cta;"))
    with pytest.raises(DataRace):
        launch(HAND_OVER.replace("@@", ""))


@pytest.mark.parametrize("code", [
    # The first read is ordered before the other lane's write, the second is not.
    "ld.shared.u32 w, [a]; bar.warp.sync -1; ld.shared.u32 w, [a]; xor.b32 x, a, 4; st.shared.u32 [x], v;",
    "ld.global.u32 w, [p]; bar.warp.sync -1; ld.global.u32 w, [p]; xor.b32 x, t, 1; mul.wide.u32 o, x, 4;"
    "add.u64 g, h, o; st.global.u32 [g], v;",
    # Half the warp has come to the barrier when the other half reads what it wrote.
    "setp.lt.u32 q, t, 16; @!q bra B; st.shared.u32 [a], v; bar.warp.sync -1; bra C;"
    "B: xor.b32 x, a, 64; ld.shared.u32 w, [x]; bar.warp.sync -1; C:",
])  # fmt: skip
def test_a_warp_barrier_orders_what_was_before_it_with_what_comes_after(code: str) -> None:
    with pytest.raises(DataRace):
        launch(code, threads=32)


def test_warp_barriers_wait_for_lanes_that_name_the_same_mask() -> None:
    halves = "setp.lt.u32 q, t, 16; @!q bra B; bar.warp.sync 0xffff; bra C; B: bar.warp.sync @@; C: bar.sync 0;"
    launch(halves.replace("@@", "0xffff0000"), threads=32)
    with pytest.raises(Deadlock, match="mask"):
        launch(halves.replace("@@", "-1"), threads=32)


def test_warp_barriers_of_tiles_that_divergence_cuts() -> None:
    launch("shr.u32 x, t, 3; shl.b32 x, x, 3; mov.u32 w, 0xff; shl.b32 w, w, x; setp.lt.u32 q, t, 13; @q bra B;"
           "bar.warp.sync w; bra C; B: bar.warp.sync w; C:", threads=32)  # fmt: skip


@pytest.mark.parametrize("code", ["shfl.sync.idx.b32 w, t, 0, 31, @@;", "vote.sync.any.pred e, q, @@;",
                                  "bar.warp.sync @@;", "redux.sync.add.s32 w, t, @@;"])  # fmt: skip
def test_lanes_that_their_own_mask_does_not_name(code: str) -> None:
    body = "setp.lt.u32 q, t, 16; @!q bra B; " + code + " B:"
    launch(body.replace("@@", "0x0000ffff"), threads=32)
    with pytest.raises(SimFault, match="does not name") as caught:
        launch(body.replace("@@", "0xfffffffe"), threads=32)
    assert caught.value.thread == (0, 0, 0)


# -- barriers of a block -----------------------------------------------------------------------------------------------


def test_each_block_may_name_another_count() -> None:
    """Warp 0 of the odd blocks waits for warp 1, which writes first; the even blocks' warp 0 is alone."""
    body = """and.b32 x, c, 1; shl.b32 x, x, 5; add.u32 x, x, 32; setp.ge.u32 q, t, 32; @q bra B;
    bar.sync 1, x; setp.eq.u32 q, x, 32; @q bra E; xor.b32 w, a, 128; ld.shared.u32 w, [w]; mad.lo.u32 x, c, 32, t;
    mul.wide.u32 o, x, 4; add.u64 p, h, o; st.global.u32 [p], w; bra E;
    B: setp.eq.u32 q, x, 32; @q bra E; st.shared.u32 [a], t; bar.sync 1, 64; E:"""
    out = launch(body, 4)
    assert out[:128].reshape(4, 32).tolist() == [[0] * 32, list(range(32, 64))] * 2


def test_arrivals_in_one_block_do_not_count_in_another() -> None:
    body = "setp.eq.u32 q, c, 0; setp.ge.u32 e, t, 32; @!q bra X; @e bra Y; bar.arrive 1, 64; bra E;" \
        "Y: bar.sync 1, 64; bra E; X: @e bra Z; bar.sync 1; bra E; Z: st.shared.u32 [s], v; bar.sync 1; E:"  # fmt: skip
    launch(body.replace("[s], v", "[a], v"), 4)


def test_a_barrier_that_all_have_arrived_at_begins_anew() -> None:
    launch("bar.arrive 1, 64; bar.sync 0; bar.sync 1, 64;")
    with pytest.raises(Deadlock, match="for 64"):
        launch("bar.arrive 1, 64; bar.sync 0; setp.ge.u32 q, t, 32; @q bra E; bar.sync 1, 64; E: bar.sync 0;")


@pytest.mark.parametrize(("code", "words"), [
    ("mov.u32 x, 16; bar.sync x;", "names 16"), ("mov.u32 x, 0; bar.sync 1, x;", "not 0"),
    ("add.u32 x, t, 33; bar.arrive 1, x;", "not 33"),
])  # fmt: skip
def test_numbers_and_counts_of_barriers_out_of_range(code: str, words: str) -> None:
    with pytest.raises(SimFault, match=words) as caught:
        launch(code)
    assert caught.value.thread == (0, 0, 0)


def test_reductions_of_barriers_with_exited_and_divergent_threads() -> None:
    launch("setp.lt.u32 q, t, 10; @q exit; setp.ge.u32 q, t, 20; bar.red.popc.u32 x, 0, q; setp.ne.u32 e, x, 44;"
           "@e trap; bar.red.and.pred e, 0, q; @e trap; bar.red.or.pred e, 0, q; @!e trap;", 3)  # fmt: skip
    launch("setp.ge.u32 q, t, 32; @q bra E; setp.ge.u32 q, t, 20; bar.red.popc.u32 x, 1, 32, !q; setp.ne.u32 e, x, 20;"
           "@e trap; E:", 3)  # fmt: skip
    launch("setp.ge.u32 q, t, 20; @q bra B; bar.red.popc.u32 x, 1, q; bra C; B: bar.red.popc.u32 x, 1, q;"
           "C: setp.ne.u32 e, x, 44; @e trap;", 3)  # fmt: skip


def test_a_cluster_barrier_is_waited_for_once_for_each_arrival() -> None:
    both = "barrier.cluster.arrive; barrier.cluster.wait;"
    launch(both * 3, 4, after=".reqnctapercluster 2, 1, 1")
    with pytest.raises(Deadlock, match="not arrived itself"):
        launch(both + "barrier.cluster.wait;", 4, after=".reqnctapercluster 2, 1, 1")


# -- scopes ------------------------------------------------------------------------------------------------------------


def test_atomics_of_the_scope_of_a_block_race_with_another_blocks() -> None:
    launch("atom.cta.global.add.u32 w, [h], 1;", 1)
    launch("atom.global.add.u32 w, [h], 1; red.sys.global.add.u32 [h], 1;", 3)
    for code in ("atom.cta.global.add.u32 w, [h], 1;", "red.cta.global.add.u32 [h], 1; red.global.add.u32 [h], 1;"):
        with pytest.raises(DataRace, match="block"):
            launch(code, 2)


# -- copies under way --------------------------------------------------------------------------------------------------


def test_copies_read_no_byte_that_is_not_asked_for() -> None:
    """An odd number of halves: the last piece of four bytes has two of them in its array."""
    source = np.arange(1, 4, dtype=np.uint16)
    body = "setp.lt.u32 q, t, 2; mul.lo.u32 x, t, 2; sub.u32 x, 4, x; setp.ge.u32 e, t, 2; @e mov.u32 x, 0;" \
        "@q cp.async.ca.shared.global [a], [p], 4, x; cp.async.wait_all; @!q bra E; ld.shared.u32 w, [a];" \
        "setp.eq.u32 e, t, 0; @e bra A; setp.ne.u32 e, w, 3; @e trap; bra E;" \
        "A: setp.ne.u32 e, w, 0x20001; @e trap; E:"  # fmt: skip
    launch(body, out=source.view(np.uint8))


@pytest.mark.parametrize(("code", "words"), [
    ("mov.u32 x, 16; @q cp.async.ca.shared.global [s], [h+4], 16, x;", "not a multiple of 16"),
    ("mov.u32 x, 20; @q cp.async.cg.shared.global [s], [h], 16, x;", "reads more"),
])  # fmt: skip
def test_copies_of_some_bytes_that_are_wrong(code: str, words: str) -> None:
    with pytest.raises(MemoryFault, match=words):
        launch("setp.eq.u32 q, t, 0; " + code)
    launch("mov.u32 x, 0; mov.u64 h, 0; setp.eq.u32 q, t, 0; @q cp.async.ca.shared.global [s], [h], 16, x;")


COPY = "cp.async.ca.shared.global [a], [p], 4;"


@pytest.mark.parametrize("code", ["ld.shared.u32 w, [a];", "st.shared.u32 [a], t;", "atom.shared.add.u32 w, [a], 1;",
                                  "cp.async.commit_group; " + COPY, "st.shared.u8 [a+3], t;",
                                  "st.shared.v2.u32 [a], {t, t};"])  # fmt: skip
@pytest.mark.parametrize("wait", ["cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 0;"])
def test_bytes_to_which_a_copy_is_under_way_are_left_alone(code: str, wait: str) -> None:
    with pytest.raises(MemoryFault, match="copy is under way") as caught:
        launch(COPY + "\n" + code, threads=1, checks=("uninitialised",))
    assert caught.value.text.strip() == code
    launch(COPY + wait + code + "cp.async.wait_all;", threads=1, checks=("uninitialised",))


def test_a_copy_that_nobody_waits_for_stays_under_way() -> None:
    with pytest.raises(MemoryFault, match="copy is under way"):
        launch(COPY + "cp.async.commit_group; cp.async.wait_group 1; ld.shared.u32 w, [a];", checks=("uninitialised",))


# -- addresses ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [
    "sub.u32 a, a, 64; st.shared.u32 [a+64], t; ld.shared.u32 w, [a+64];",
    "mov.u64 g, s; cvta.shared.u64 g, g; add.u64 g, g, o; sub.u64 g, g, 4096; st.u32 [g+4096], t; ld.u32 w, [g+4096];",
    ".local .u32 l[2]; mov.u64 g, l; cvta.local.u64 g, g; sub.u64 g, g, 64; st.u32 [g+64], t; ld.u32 w, [g+64];",
    "mov.u64 g, s; cvta.shared.u64 g, g; add.u64 g, g, o; and.b32 x, t, 1; setp.eq.u32 q, x, 0; @q mov.u64 g, p;"
    "sub.u64 g, g, 4096; st.u32 [g+4096], t; ld.u32 w, [g+4096];",
])  # fmt: skip
def test_only_register_and_offset_together_need_be_an_address(code: str) -> None:
    launch(code + "setp.ne.u32 q, w, t; @q trap;")


def test_mapa_of_what_is_not_shared() -> None:
    for code in ("mapa.u64 g, h, 1;", "getctarank.u64 w, h;"):
        with pytest.raises(MemoryFault, match="not one of shared"):
            launch(code, 2, after=".reqnctapercluster 2, 1, 1")


# -- calls -------------------------------------------------------------------------------------------------------------

SUM = """.func (.reg .u32 y) f(.reg .u32 n) { .reg .pred q; .reg .u32 m; mov.u32 y, 0; setp.eq.u32 q, n, 0; @q ret;
setp.eq.u32 q, n, 37; @q exit; sub.u32 m, n, 1; call (y), f, (m); add.u32 y, y, n; }"""


def test_divergent_recursion_that_some_threads_leave_for_good() -> None:
    out = np.zeros(64, np.uint32)
    body = START + "and.b32 x, t, 63; call (w), f, (x); bar.sync 0; st.global.u32 [p], w;"
    run(kernel(body, head=HEAD, module=SUM), out, block=(64, 1, 1))
    assert out.tolist() == [n * (n + 1) // 2 if n < 37 else 0 for n in range(64)]


def test_a_barrier_in_a_function_that_half_the_block_calls() -> None:
    body = START + "setp.lt.u32 q, t, 16; @q call b, (); bar.sync 0;"
    with pytest.raises(Deadlock, match="barrier 1") as caught:
        run(kernel(body, head=HEAD, module=".func b() {\nbar.sync 1; // HERE\n}"), 0)
    assert "HERE" in caught.value.text
