# ruff: noqa: E501
"""Data races in shared and in global memory."""

from __future__ import annotations

from planted import Planted

from ptxrt.errors import DataRace


def race(name: str, body: str, bad: str, good: str, **more: object) -> Planted:
    """Return a planted DataRace; which thread is caught is the machine's choice, the lines are not."""
    more = {"thread": None, "block": None, **more}
    return Planted(name, DataRace, "races", body, bad, good, **more)  # type: ignore[arg-type]


_GLOBAL = "global memory races"
CASES = [
    race("no barrier before the neighbour's cell", "st.shared.u32 [a], v; // OTHER\n@@ xor.b32 w, a, 128;\n"
         "ld.shared.u32 x, [w]; // FAULT", "", "bar.sync 0;", size=(2, 64)),
    race("all write one cell", "@@ st.shared.u32 [s], t; // FAULT OTHER", "", "setp.eq.u32 q, t, 3; @q"),
    race("no barrier in the loop of a reduction", "st.shared.u32 [a], v; bar.sync 0; mov.u32 k, 32;\n"
         "L: setp.lt.u32 q, t, k; shl.b32 w, k, 2; add.u32 w, w, a;\n@q ld.shared.u32 x, [w]; // FAULT\n"
         "@q ld.shared.u32 v, [a]; @q add.u32 v, v, x;\n@q st.shared.u32 [a], v; // OTHER\n"
         "@@ shr.u32 k, k, 1; setp.ne.u32 e, k, 0; @e bra L;", "", "bar.sync 0;", size=(2, 64)),
    race("a buffer used again too early", "mov.u32 k, 0; mov.u32 x, 0;\nL: st.shared.u32 [a], k; // FAULT\n"
         "bar.sync 0; xor.b32 w, a, 128;\nld.shared.u32 w, [w]; // OTHER\nadd.u32 x, x, w; @@\n"
         "add.u32 k, k, 1; setp.lt.u32 q, k, 3; @q bra L; st.global.u32 [p], x;", "", "bar.sync 0;", size=(1, 64)),
    race("plain counts in a histogram", "mov.u32 w, 0; st.shared.u32 [a], w; bar.sync 0; and.b32 w, t, 3; "
         "mov.u32 b, s; mad.lo.u32 w, w, 4, b;\n@@ // FAULT OTHER",
         "ld.shared.u32 x, [w]; add.u32 x, x, v; st.shared.u32 [w], x;", "red.shared.add.u32 [w], v;"),
    race("lanes of a warp in step", "st.shared.u32 [a], t; // OTHER\n@@ xor.b32 w, a, 4;\n"
         "ld.shared.u32 x, [w]; // FAULT", "", "bar.warp.sync -1;"),
    race("atomic against plain in shared memory", "setp.eq.u32 q, t, 40; @q st.shared.u32 [s], v; // OTHER\n"
         "@@\nred.shared.add.u32 [s], v; // FAULT", "", "bar.sync 0;", size=(1, 64)),
    race("copied bytes read by a neighbour", "cp.async.ca.shared.global [a], [g], 4; cp.async.commit_group; "
         "cp.async.wait_group 0; // OTHER\n@@ xor.b32 w, a, 128;\nld.shared.u32 x, [w]; // FAULT", "", "bar.sync 0;",
         size=(1, 64)),
    race("blocks write one cell", "mul.wide.u32 o, @@, 4; add.u64 z, z, o;\nst.global.u32 [z], v; // FAULT OTHER",
         "t", "i"),
    race("a plain sum over blocks", "setp.eq.u32 q, t, 0;\n@@ // FAULT OTHER", "@q st.global.u32 [z], c;",
         "@q red.global.add.u32 [z], c;"),
    race("plain read of a counter", "red.global.add.u32 [z], v; // OTHER\n@@ // FAULT", "ld.global.u32 w, [z];",
         "ld.relaxed.gpu.global.u32 w, [z];"),
    race("the next block's cell", "ld.param.u64 d, [out]; st.global.u32 [p], v; // OTHER\n"
         "xor.b32 w, i, @@; mul.wide.u32 o, w, 4; add.u64 d, d, o;\nbar.sync 0; ld.global.u32 x, [d]; // FAULT",
         "32", "1", thread=(0, 0, 0), block=(0, 0, 0)),
    race("global memory within a block", "st.global.u32 [p], v; // OTHER\n@@ xor.b32 w, i, 32; ld.param.u64 d, [out]; "
         "mul.wide.u32 o, w, 4; add.u64 d, d, o;\nld.global.u32 x, [d]; // FAULT", "", "bar.sync 0;", size=(1, 64)),
    race("the last block sums with no fence", "setp.ne.u32 q, t, 0; @q exit; mul.wide.u32 o, c, 4; ld.param.u64 p, [out]; "
         "add.u64 d, p, o;\nst.global.u32 [d], v; // OTHER\n@@ atom.global.add.u32 w, [z], 1;\n@@ setp.ne.u32 q, w, 1; "
         "@q exit;\nld.global.u32 w, [p]; // FAULT\nld.global.u32 x, [p+4];", "", "membar.gl;"),
]  # fmt: skip
