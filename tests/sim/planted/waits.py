# ruff: noqa: E501
"""Barriers that not all reach, and loops that do not end."""

from __future__ import annotations

from planted import Planted

from ptxrt.errors import Deadlock


def wait(name: str, words: str, body: str, bad: str, good: str, **more: object) -> Planted:
    """Return a planted Deadlock."""
    return Planted(name, Deadlock, words, body, bad, good, **more)  # type: ignore[arg-type]


_SHORT = {"options": {"budget": 20_000}}
CASES = [
    wait("barriers in both branches", "at barrier 0 for 64", "setp.lt.u32 q, t, 5; @!q bra B;\n"
         "bar.sync 0; // FAULT\nbra C;\nB: bar.sync @@;\nC:", "1", "0", size=(1, 64)),
    wait("a count that is too large", "for 96", "bar.sync 2, @@; // FAULT", "96", "64", size=(2, 64)),
    wait("a producer that never arrives", "for 64", "setp.ge.u32 q, t, 32; @q bra C;\n@@ bra END;\n"
         "C: bar.sync 3, 64; // FAULT\nEND:", "", "bar.arrive 3, 64;", size=(1, 64), thread=(32, 0, 0)),
    wait("one turn of a loop less", "barrier 1", "mov.u32 x, 3; setp.eq.u32 q, t, 0; @@\nL: bar.sync 0;\n"
         "add.u32 k, k, 1; setp.lt.u32 e, k, x; @e bra L;\nbar.sync 1; // FAULT", "@q mov.u32 x, 2;", "", size=(1, 64)),
    wait("a mask of lanes that never come", "mask", "setp.lt.u32 q, t, 16; @!q bra B;\n"
         "shfl.sync.idx.b32 v, t, 0, 31, @@; // FAULT\nB: bar.sync 0;", "0xffffffff", "0x0000ffff"),
    wait("a warp barrier that half the warp passes by", "mask", "setp.lt.u32 q, t, 16; @!q bra B;\n"
         "bar.warp.sync @@; // FAULT\nB: bar.sync 0;", "0xffffffff", "0x0000ffff"),
    wait("a block that leaves its cluster alone", "never arrive", "mov.u32 w, %cluster_ctarank; setp.eq.u32 q, w, 1; @@\n"
         "barrier.cluster.arrive;\nW: barrier.cluster.wait; // FAULT", "@q bra W;", "", size=(2, 64),
         after=".reqnctapercluster 2, 1, 1"),
    wait("a counter that never counts", "endless", "L: add.u32 x, x, 1;\n@@ setp.lt.u32 q, k, 10;\n@q bra L; // FAULT",
         "", "add.u32 k, k, 1;", **_SHORT),
    wait("a step over the end", "endless", "L: add.u32 k, k, @@; setp.ne.u32 q, k, 100;\n@q bra L; // FAULT", "3", "4",
         **_SHORT),
    wait("a flag that nobody sets", "endless", "setp.eq.u32 q, t, 5;\n@@\nL: ld.volatile.global.u32 w, [z]; "
         "setp.eq.u32 e, w, 0;\n@e bra L; // FAULT", "", "@q st.volatile.global.u32 [z], v;", **_SHORT, size=(1, 32)),
    wait("a lock that is never given back", "endless", "L: atom.global.cas.b32 w, [z], 0, 1; setp.ne.u32 q, w, 0;\n"
         "@q bra L; // FAULT\n@@", "", "atom.global.exch.b32 w, [z], 0;", **_SHORT, size=(1, 8), thread=(1, 0, 0)),
]  # fmt: skip
