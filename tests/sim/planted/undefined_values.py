# ruff: noqa: E501
"""Values that nobody has given: uninitialised memory, copies under way, and lanes that take no part in a shuffle."""

from __future__ import annotations

from planted import Planted

from ptxrt.errors import MemoryFault, SimFault


def unwritten(name: str, body: str, bad: str, good: str, **more: object) -> Planted:
    """Return a planted read of bytes that nobody has written."""
    return Planted(name, MemoryFault, "nobody has written", body, bad, good, **more)  # type: ignore[arg-type]


def under_way(name: str, body: str, bad: str, good: str) -> Planted:
    """Return a planted access to bytes to which a copy is under way."""
    return Planted(name, MemoryFault, "copy is under way", body, bad, good)


CASES = [
    unwritten("a result read before it is there", "@@\nld.global.u32 w, [p]; // FAULT", "", "st.global.u32 [p], v;"),
    unwritten("a sum that starts nowhere", "@@\nred.global.add.u32 [p], v; // FAULT", "", "st.global.u32 [p], v;"),
    unwritten("half the cells of shared memory", "@@\n@q st.shared.u32 [a], v; bar.sync 0; xor.b32 w, a, 128;\n"
              "ld.shared.u32 x, [w]; // FAULT", "setp.lt.u32 q, t, 16;", "setp.lt.u32 q, t, 64;", size=(1, 64),
              thread=(0, 0, 0)),
    unwritten("half of a word", "cvt.u16.u32 s16, v; st.global.u16 [p], s16; @@\nld.global.u32 w, [p]; // FAULT", "",
              "st.global.u16 [p+2], s16;"),
    unwritten("three of four", "mov.u32 b, s; mad.lo.u32 a, t, 16, b; st.shared.v2.u32 [a], {v, v}; "
              "st.shared.u32 [a+8], v; @@\nld.shared.v4.u32 {v, w, x, b}, [a]; // FAULT", "", "st.shared.u32 [a+12], v;",
              size=(1, 16)),
    under_way("a copy that nobody waited for", "cp.async.ca.shared.global [a], [g], 4; cp.async.commit_group;\n@@\n"
              "ld.shared.u32 x, [a]; // FAULT", "", "cp.async.wait_group 0;"),
    under_way("waiting for the wrong group", "cp.async.ca.shared.global [a], [g], 4; cp.async.commit_group; "
              "cp.async.ca.shared.global [a+128], [g], 4; cp.async.commit_group;\ncp.async.wait_group @@;\n"
              "ld.shared.u32 w, [a];\nld.shared.u32 x, [a+128]; // FAULT", "1", "0"),
    under_way("a store to where a copy is to arrive", "cp.async.ca.shared.global [a], [g], 4; cp.async.commit_group;\n@@\n"
              "st.shared.u32 [a], v; // FAULT\ncp.async.wait_all;", "", "cp.async.wait_group 0;"),
    under_way("a ring of copies that begins anew too early", "cp.async.ca.shared.global [a], [g], 4; cp.async.commit_group;\n"
              "@@\ncp.async.ca.shared.global [a], [g], 4; // FAULT\ncp.async.wait_all;", "", "cp.async.wait_all;"),
    unwritten("the last element, which the loop leaves out", "setp.lt.u32 q, i, @@; @q st.global.u32 [p], v; bar.sync 0; "
              "setp.eq.u32 e, t, 31;\n@e ld.global.u32 w, [p]; // FAULT", "63", "64", thread=(31, 0, 0), block=(1, 0, 0)),
    Planted("a shuffle from lanes that are gone", SimFault, "takes no part", "setp.ge.u32 q, t, 20; @@ exit;\n"
            "shfl.sync.down.b32 v, t, 16, 31, -1; // FAULT", "@q", "setp.gt.u32 q, t, 40; @q", (4, 0, 0)),
    Planted("a shuffle in a warp that is not full", SimFault, "lane 24 ", "shfl.sync.bfly.b32 v, t, @@, 31, -1; // FAULT",
            "16", "4", (8, 0, 0), size=(1, 24)),
]  # fmt: skip
