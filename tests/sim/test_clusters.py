"""Clusters: their special registers, each other's shared memory, their barrier."""

from __future__ import annotations

import numpy as np
import pytest
from machine import HEAD, kernel, run

from ptxrt import sim
from ptxrt.errors import CompileError, DataRace, Deadlock, LaunchError, MemoryFault, SimFault

CLUSTER_HEAD = HEAD.replace("sm_80", "sm_90").replace("8.0", "8.6")
START = """.reg .u32 t, v, w, r, a; .reg .u64 p, o, g; .reg .pred q; .shared .u32 s[32];
mov.u32 t, %tid.x; mov.u32 r, %cluster_ctarank; ld.param.u64 p, [out];
mov.u32 v, %ctaid.y; mov.u32 w, %nctaid.x; mul.lo.u32 v, v, w; mov.u32 w, %ctaid.x; add.u32 v, v, w;
mad.lo.u32 v, v, 32, t; mul.wide.u32 o, v, 4; add.u64 p, p, o; shl.b32 a, t, 2; mov.u32 w, s; add.u32 a, a, w;
"""
BOTH = "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"


def clustered(body: str, size: str = "2, 1, 1") -> str:
    """Return a kernel of clusters of this size."""
    text = kernel(START + body, head=CLUSTER_HEAD)
    return text.replace("k(.param .u64 out)", f"k(.param .u64 out) .explicitcluster .reqnctapercluster {size}")


def test_special_registers_of_clusters() -> None:
    out = np.zeros((4, 6, 32), np.uint32)
    names = ["%clusterid.x", "%clusterid.y", "%nclusterid.x", "%nclusterid.y", "%cluster_ctaid.x", "%cluster_ctaid.y",
             "%cluster_nctaid.x", "%cluster_nctaid.y", "%cluster_nctarank"]  # fmt: skip
    body = "mov.u32 v, r;" + "".join(f"mov.u32 w, {name}; mad.lo.u32 v, v, 8, w;" for name in names)
    body += ".reg .pred e; mov.pred e, %is_explicit_cluster; @!e trap; st.global.u32 [p], v;"
    run(clustered(body, "3, 2"), out, grid=(6, 4, 1))
    for y in range(4):
        for x in range(6):
            want = 0
            for part in (y % 2 * 3 + x % 3, x // 3, y // 2, 2, 2, x % 3, y % 2, 3, 2, 6):
                want = want * 8 + part
            assert out[y, x].tolist() == [want % 2**32] * 32


def test_a_kernel_without_clusters_has_clusters_of_one() -> None:
    body = START + "mov.u32 v, %clusterid.x; mov.u32 w, %cluster_nctarank; mad.lo.u32 v, v, 10, w; add.u32 v, v, r;" \
        ".reg .pred e; mov.pred e, %is_explicit_cluster; @e trap; st.global.u32 [p], v;"  # fmt: skip
    out = np.zeros((3, 32), np.uint32)
    run(kernel(body, head=CLUSTER_HEAD), out, grid=(3, 1, 1))
    assert out[:, 0].tolist() == [1, 11, 21]


@pytest.mark.parametrize("explicit", [False, True])
def test_the_block_of_a_cluster_of_one_finds_its_own_memory_by_mapa(explicit: bool) -> None:
    body = START + "mapa.shared::cluster.u32 w, a, r; st.shared::cluster.u32 [w], t;\n" + BOTH \
        + "cvt.u64.u32 g, a; cvta.shared.u64 g, g; mapa.u64 g, g, r; ld.u32 v, [g]; st.global.u32 [p], v;"  # fmt: skip
    out = np.zeros((2, 32), np.uint32)
    run(clustered(body.removeprefix(START), "1") if explicit else kernel(body, head=CLUSTER_HEAD), out, grid=(2, 1, 1))
    assert out.tolist() == [[*range(32)]] * 2
    with pytest.raises(MemoryFault, match="outside the 128 bytes of shared memory"):
        run(kernel(body.replace("a, r;", "a, 1;"), head=CLUSTER_HEAD), out, grid=(2, 1, 1))


@pytest.mark.parametrize("way", ["u32", "u64", "generic", "atomic"])
def test_blocks_read_and_write_each_others_shared_memory(way: str) -> None:
    """Each block adds to its neighbour's cells and reads the sum of both."""
    code = {
        "u32": "mapa.shared::cluster.u32 w, a, r; ld.shared::cluster.u32 v, [w];",
        "u64": "cvt.u64.u32 g, a; mapa.shared::cluster.u64 g, g, r; ld.shared::cluster.u32 v, [g];",
        "generic": "cvt.u64.u32 g, a; cvta.shared.u64 g, g; mapa.u64 g, g, r; ld.u32 v, [g]; getctarank.u64 w, g;"
        "setp.ne.u32 q, w, r; @q trap; isspacep.shared::cta q, g; @q trap; isspacep.shared::cluster q, g; @!q trap;",
        "atomic": "mapa.shared::cluster.u32 w, a, r; atom.shared::cluster.add.u32 v, [w], 1000;",
    }[way]
    body = f"mad.lo.u32 v, r, 100, t; st.shared.u32 [a], v; {BOTH} add.u32 r, r, 1; and.b32 r, r, 1; {code}" \
        f"{BOTH} ld.shared::cluster.u32 w, [a]; mad.lo.u32 v, v, 10000, w; st.global.u32 [p], v;"  # fmt: skip
    out = np.zeros((5, 4, 32), np.uint32)
    run(clustered(body), out, grid=(4, 5, 1), checks="all")
    t = np.arange(32)
    added = 1000 if way == "atomic" else 0
    for x in range(4):
        assert out[2, x].tolist() == ((100 * (1 - x % 2) + t) * 10000 + 100 * (x % 2) + t + added).tolist()


@pytest.mark.parametrize(("code", "words"), [
    ("mapa.shared::cluster.u32 w, a, 2;\nld.shared::cluster.u32 v, [w]; // FAULT", "outside"),
    ("mapa.shared::cluster.u32 w, a, 1;\nld.shared.u32 v, [w]; // FAULT", "outside"),
    ("mapa.shared::cluster.u32 w, a, 1;\nld.shared::cluster.u32 v, [w+128]; // FAULT", "past the end of s"),
    ("setp.eq.u32 q, r, 1; @q exit; mapa.shared::cluster.u32 w, a, 1;\nld.shared::cluster.u32 v, [w]; // FAULT",
     "exited"),
])  # fmt: skip
def test_faults_in_another_blocks_memory(code: str, words: str) -> None:
    with pytest.raises(MemoryFault, match=words) as caught:
        run(clustered(code), np.zeros(64, np.uint32), grid=(2, 1, 1))
    assert "FAULT" in caught.value.text
    assert (caught.value.thread, caught.value.block) == ((0, 0, 0), (0, 0, 0))


def test_barriers_that_a_block_never_comes_to() -> None:
    code = "setp.eq.u32 q, r, 1; @q bra L; barrier.cluster.arrive;\nbarrier.cluster.wait; // DEADLOCK\nL: bar.sync 0;" \
        "@!q bra M; bar.sync 1, 64; M:"  # fmt: skip
    with pytest.raises(Deadlock, match="never arrive") as caught:
        run(clustered(code), np.zeros(64, np.uint32), grid=(2, 1, 1))
    assert "DEADLOCK" in caught.value.text
    with pytest.raises(Deadlock, match="not arrived itself"):
        run(clustered("barrier.cluster.wait;"), np.zeros(64, np.uint32), grid=(2, 1, 1))


@pytest.mark.parametrize("between", ["", "bar.sync 0;"])
def test_a_thread_does_not_arrive_twice_without_a_wait(between: str) -> None:
    """Not even where the first arrival has completed the barrier."""
    code = f"{BOTH} barrier.cluster.arrive.relaxed; {between} setp.ne.u32 q, t, 7; @q bra L;\n" \
        "barrier.cluster.arrive; // TWICE\nL: barrier.cluster.wait; "  # fmt: skip
    with pytest.raises(SimFault, match="arrived and not yet waited") as caught:
        run(clustered(code), np.zeros(64, np.uint32), grid=(2, 1, 1))
    assert "TWICE" in caught.value.text
    assert (caught.value.thread, caught.value.block) == ((7, 0, 0), (0, 0, 0))


def test_exited_threads_count_as_arrived() -> None:
    out = np.zeros(64, np.uint32)
    run(clustered(f"setp.lt.u32 q, t, 5; @q exit; {BOTH} {BOTH} st.global.u32 [p], t;"), out, grid=(2, 1, 1))
    assert out.tolist() == [t if t >= 5 else 0 for t in range(32)] * 2


def test_grids_that_are_no_multiple_of_the_cluster() -> None:
    with pytest.raises(LaunchError, match="multiple of the cluster"):
        run(clustered(""), np.zeros(96, np.uint32), grid=(3, 1, 1))
    with pytest.raises(CompileError, match="at most 16"):
        sim.parse(clustered("", "6, 3"))


OTHER = "add.u32 r, r, 1; and.b32 r, r, 1; mapa.shared::cluster.u32 w, a, r;\n"  # the other block's cell
RELAXED = "barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.acquire.aligned;\n"
STORE, FETCH = "st.shared.u32 [a], t; // EARLIER\n", "ld.shared::cluster.u32 v, [w]; // LATER\n"
SEND, TAKE = "st.shared::cluster.u32 [w], r; // LATER\n", "ld.shared.u32 v, [a]; // EARLIER\n"
FENCE = "fence.acq_rel.cluster;\n"
# Threads of the second warp alone arrive with .release.
ONE_RELEASES = "setp.ge.u32 q, t, 32; @q bra R; barrier.cluster.arrive.relaxed.aligned; bra W;\n" \
    "R: barrier.cluster.arrive.release.aligned;\nW: barrier.cluster.wait.acquire.aligned;\n"  # fmt: skip
TO_ONE = "add.u32 r, r, 1; and.b32 r, r, 1; mov.u32 a, s; mapa.shared::cluster.u32 w, a, r;\n"  # one cell for all
MAPPED = "mapa.shared::cluster.u32 w, a, r;\n"  # the same cell, as other blocks name it
NEXT = "xor.b32 a, a, 128;\n"  # the other warp's cell
ONE_WAITS = "barrier.cluster.arrive; setp.lt.u32 q, t, 32; @q bra L; barrier.cluster.wait; L:\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (STORE + OTHER + BOTH + FETCH, None),
        (STORE + OTHER + FETCH, "no barrier.cluster"),
        (STORE + OTHER + RELAXED + FETCH, "released nothing"),
        (STORE + OTHER + FENCE + RELAXED + FETCH, None),
        (FENCE + STORE + OTHER + FETCH + FENCE, "no barrier.cluster"),
        (STORE + OTHER + FENCE + FETCH, None),  # as if a flag had been polled for, too
        # The store is there before the fence, and by the same instruction once more behind it.
        ("setp.eq.u32 q, t, t;\nL: " + STORE + "@!q bra D; " + FENCE + "setp.ne.u32 q, t, t; bra L;\nD: "
         + OTHER + FETCH, "no barrier.cluster"),
        # A store behind the arrival; reads, by which nothing is released; and stores of both blocks.
        (OTHER + "barrier.cluster.arrive; " + STORE + "barrier.cluster.wait;\n" + FETCH, "no barrier.cluster"),
        (STORE + BOTH + OTHER + TAKE + RELAXED + SEND, None),
        (STORE + BOTH + OTHER + TAKE + SEND, "no barrier.cluster"),
        (STORE + BOTH + OTHER + "ld.shared::cluster.u32 v, [w]; // EARLIER\n" + RELAXED + STORE, None),
        (STORE + BOTH + OTHER + "ld.shared::cluster.u32 v, [w]; // EARLIER\nst.shared.u32 [a], 77; // LATER\n",
         "no barrier.cluster"),
        (OTHER + "mapa.shared::cluster.u32 w, a, 0;\nst.shared::cluster.u32 [w], r; // EARLIER LATER\n",
         "no barrier.cluster"),
        (OTHER + "mapa.shared::cluster.u32 w, a, 0; st.shared::cluster.u32 [w], 7;", None),
        (OTHER + "mapa.shared::cluster.u32 w, a, 0;" + 2 * "red.shared::cluster.add.u32 [w], r;", None),
        # Half of what was stored at once, and a fence that is of the block alone.
        ("and.b32 a, a, -8; cvt.u64.u32 o, r; st.shared.u64 [a], o; // EARLIER\n" + OTHER
         + "ld.shared::cluster.u32 v, [w+4]; // LATER\n", "no barrier.cluster"),
        (STORE + OTHER + "fence.acq_rel.cta;\n" + FETCH, "no barrier.cluster"),
        # What the first warp has stored, the second one releases if a barrier of the block stands between.
        (STORE + OTHER + "bar.sync 0;\n" + ONE_RELEASES + FETCH, None),
        (STORE + OTHER + ONE_RELEASES + FETCH, "released nothing"),
        ("bar.sync 0;\n" + STORE + OTHER + ONE_RELEASES + FETCH, "released nothing"),
        # Two warps of a block in another one's memory
        (TO_ONE + "st.shared::cluster.u32 [w], t; // EARLIER LATER\n", "no barrier in between"),
        (TO_ONE + "st.shared::cluster.u32 [w], 5;", None),
        (TO_ONE + "setp.ge.u32 q, t, 32; @q st.shared::cluster.u32 [w], t; // EARLIER\n"
         "bar.warp.sync -1;\n@!q ld.shared::cluster.u32 v, [w]; // LATER\n", "no barrier in between"),
        (TO_ONE + "bar.sync 0; setp.ge.u32 q, t, 32; @q st.shared::cluster.u32 [w], t; // EARLIER\n"
         "bar.warp.sync -1;\n@!q ld.shared::cluster.u32 v, [w]; // LATER\n", "no barrier in between"),
        (TO_ONE + "setp.ge.u32 q, t, 32; @q st.shared::cluster.u32 [w], t; bar.sync 0;"
         "@!q ld.shared::cluster.u32 v, [w];", None),
        (TO_ONE + "setp.ge.u32 q, t, 32; @q st.shared::cluster.u32 [w], t; fence.acq_rel.cta;"
         "@!q ld.shared::cluster.u32 v, [w];", None),
        # The second warp waits, and the first one behind a barrier of the block, or not at all.
        (STORE + OTHER + ONE_WAITS + "bar.sync 0;\n" + FETCH, None),
        (STORE + OTHER + ONE_WAITS + FETCH, "no barrier.cluster"),
        # Two warps of a block in its own memory, of which one or both go by an address of mapa.
        (MAPPED + "st.shared::cluster.u32 [w], t; // EARLIER\n" + NEXT + "ld.shared.u32 v, [a]; // LATER\n",
         "no barrier in between"),
        (STORE + NEXT + MAPPED + FETCH, "no barrier in between"),
        (MAPPED + "ld.shared::cluster.u32 v, [w]; // EARLIER\n" + NEXT + "st.shared.u32 [a], 7; // LATER\n",
         "no barrier in between"),
        (MAPPED + "st.shared::cluster.u32 [w], t; // EARLIER\n" + NEXT + MAPPED + FETCH, "no barrier in between"),
        (MAPPED + "st.shared::cluster.u32 [w], t; bar.sync 0;" + NEXT + "ld.shared.u32 v, [a];", None),
        (MAPPED + "st.shared::cluster.u32 [w], t; ld.shared.u32 v, [a];", None),
        (MAPPED + "st.shared::cluster.u32 [w], t;" + BOTH + NEXT + MAPPED + FETCH, None),
    ],
)  # fmt: skip
def test_races_between_blocks_of_a_cluster(code: str, why: str | None) -> None:
    text, out = clustered(code).replace("s[32]", "s[64]"), np.zeros(128, np.uint32)
    if why is None:
        run(text, out, grid=(2, 1, 1), block=(64, 1, 1))
        return
    with pytest.raises(DataRace, match=why) as caught:
        run(text, out, grid=(2, 1, 1), block=(64, 1, 1))
    assert "LATER" in caught.value.text
    assert "EARLIER" in text.splitlines()[(caught.value.other_line or 0) - 1]
    run(text, out, grid=(2, 1, 1), block=(64, 1, 1), races=False)


def test_what_a_thread_released_before_it_exited_is_not_known() -> None:
    code = f"{STORE}{OTHER}setp.ge.u32 q, t, 9; @q exit; {RELAXED} add.u32 w, w, 80; {FETCH}"
    run(clustered(code), np.zeros(64, np.uint32), grid=(2, 1, 1))


@pytest.mark.parametrize(
    ("memory", "threads", "first", "then"),
    [
        ("global memory", 32, "st.global.u32 [p], t;", "xor.b64 p, p, 128; ld.global.u32 v, [p];"),  # the other block's
        ("shared memory", 64, "st.shared.u32 [a], t;", "xor.b32 a, a, 128; ld.shared.u32 v, [a];"),  # the other warp's
    ],
)
def test_a_barrier_that_all_arrive_at_relaxed_orders_nothing(memory: str, threads: int, first: str, then: str) -> None:
    def launch(barrier: str) -> None:
        text = clustered(first + barrier + then).replace("s[32]", "s[64]")
        run(text, np.zeros(128, np.uint32), grid=(2, 1, 1), block=(threads, 1, 1), checks=("global-races",))

    launch(BOTH)
    with pytest.raises(DataRace, match=memory):
        launch(RELAXED)
