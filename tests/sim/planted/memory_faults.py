# ruff: noqa: E501
"""Accesses outside, across an end, misaligned, after a free, and writes to what is const."""

from __future__ import annotations

from planted import Planted

from ptxrt.errors import MemoryFault

_LAST = ((31, 0, 0), (1, 0, 0))


def memory(
    name: str, words: str, body: str, bad: str, good: str, thread: int = 0, block: int = 0, **more: object
) -> Planted:
    """Return a planted MemoryFault."""
    return Planted(name, MemoryFault, words, body, bad, good, (thread, 0, 0), (block, 0, 0), **more)  # type: ignore[arg-type]


CASES = [
    memory("read past the end", "0 bytes past the end", "setp.lt.u32 q, i, 63;\n@@ // FAULT\nst.global.u32 [p], v;",
           "ld.global.u32 v, [g+4];", "@q ld.global.u32 v, [g+4];", 31, 1),
    memory("write past the end", "outside every", "@@ // FAULT", "st.global.u32 [p+256], v;", "st.global.u32 [p], v;"),
    memory("no guard for the rest", "past the end", "@@ @q bra END;\nld.global.u32 v, [g]; // FAULT\nst.global.u32 [p], v;"
           "\nEND:", "setp.ge.u32 q, i, 96;", "setp.ge.u32 q, i, 64;", 0, 2, size=(3, 32)),
    memory("read before the start", "outside every", "setp.ne.u32 q, i, 0;\n@@ // FAULT\nst.global.u32 [p], v;",
           "ld.global.u32 v, [g+-4];", "@q ld.global.u32 v, [g+-4];"),
    memory("one turn of a loop too many", "past the end", "mov.u32 x, 0;\nL: ld.global.u32 w, [h]; // FAULT\n"
           "add.u32 x, x, w; add.u64 h, h, 4; add.u32 k, k, 1;\n@@ @q bra L;\nst.global.u32 [p], x;",
           "setp.le.u32 q, k, 64;", "setp.lt.u32 q, k, 64;"),
    memory("across the end", "across the end", "@@ // FAULT", "ld.global.u32 v, [z+248];", "ld.global.u16 v, [z+248];",
           third="250 bytes"),
    memory("misaligned word", "not a multiple of 4", "@@ // FAULT", "ld.global.u32 v, [g+2];", "ld.global.u16 v, [g+2];"),
    memory("misaligned vector", "not a multiple of 16", "mul.wide.u32 o, t, @@; add.u64 h, h, o;\n"
           "ld.global.v4.u32 {v, w, x, b}, [h]; // FAULT", "8", "16", 1, size=(1, 16)),
    memory("null pointer", "null pointer", "@@\nst.global.u32 [p], v; // FAULT", "mov.u64 p, 0;", ""),
    memory("after free", "inside freed", "setp.eq.u32 q, t, 40;\n@@ ld.global.u32 v, [z]; // FAULT", "", "@q",
           third="freed"),
    memory("write to const", ".const", "mov.u64 d, table;\n@@ // FAULT", "st.global.u32 [d], v;",
           "ld.const.u32 v, [d];", module=".const .u32 table[4] = {1, 2, 3, 4};"),
    memory("write through a const pointer", "calls const", "@@ // FAULT", "st.global.u32 [z], v;", "ld.global.u32 v, [z];",
           third="read-only"),
    memory("write to lent memory", "host lent", "@@ // FAULT", "red.global.add.u32 [z], v;", "ld.global.u32 v, [z];",
           third="lent"),
    memory("past the end of shared memory", "past the end of s", "@@ // FAULT", "st.shared.u32 [a+256], v;",
           "st.shared.u32 [a+124], v;"),
    memory("stride of eight in shared memory", "outside the 256 bytes", "mov.u32 a, s; mad.lo.u32 a, t, @@, a;\n"
           "st.shared.u32 [a], v; // FAULT", "16", "8", 16),
    memory("misaligned in shared memory", "not a multiple of 8", "@@ mov.u32 a, s; add.u32 a, a, x; setp.eq.u32 q, t, 0;\n"
           "@q st.shared.v2.u32 [a], {v, v}; // FAULT", "mov.u32 x, 4;", "mov.u32 x, 8;"),
    memory("generic pointer out of shared memory", "past the end of s", "mov.u64 d, s; cvta.shared.u64 d, d; "
           "mul.wide.u32 o, t, @@; add.u64 d, d, o;\nst.u32 [d], v; // FAULT", "12", "8", 22),
    memory("local array too short", "local", ".local .u32 l[4]; mov.u64 d, l; rem.u32 w, t, @@; mul.wide.u32 o, w, 4;\n"
           "add.u64 d, d, o; st.local.u32 [d], v; // FAULT", "5", "4", 4),
    memory("atomic out of the counters", "past the end", "mul.wide.u32 o, @@, 4; add.u64 z, z, o;\n"
           "red.global.add.u32 [z], v; // FAULT", "i", "t", 0, 1, third="128 bytes"),
    memory("unsigned index below zero", "outside every", "sub.u32 w, i, 1; @@\nadd.u64 h, h, o; "
           "ld.global.u32 v, [h]; // FAULT", "mul.wide.u32 o, w, 4;", "max.s32 w, w, 0; mul.wide.u32 o, w, 4;"),
    memory("pointer to no function", "no function", "mov.u64 d, fun; @@\n"
           "P: .callprototype _ (.param .b32 _);\ncall d, (v), P; // FAULT", "add.u64 d, d, 4;", "",
           module=".func fun(.param .b32 x) { ret; }"),
]  # fmt: skip
