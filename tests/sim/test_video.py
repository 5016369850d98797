"""Video instructions: of parts of words, with saturation, merges and secondary operations, and on two or four elements.

The values at the edges are those of ptxas's code for sm_90; where they are not the ISA's, a comment says so.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from machine import apply, kernel, run

from ptxrt import sim
from ptxrt.errors import CompileError, LaunchError

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
A, B, C = 0x12F48081, 0xFFFFFFFE, 0x80000005
"""Bytes of A from the lowest: 0x81, 0x80, 0xf4, 0x12."""


def result(code: str, a: int = A, b: int = B, c: int = C) -> int:
    """Return d as an unsigned number, the operands being registers of two lanes with different values."""
    values = [np.array([value, 1], np.uint32) for value in (a, b, c)]
    found = apply(code, "b32", *values, types=("b32",) * 3, head=HEAD).view(np.uint32)
    assert len(found) == 2
    return int(found[0])


@pytest.mark.parametrize(("code", "want"), [
    # Parts, extended by the sign of their type.
    ("vadd.u32.u32.u32 d, a.b0, b.b3;", 0x81 + 0xFF), ("vadd.u32.s32.u32 d, a.b0, b.b3;", 0xFF - 0x7F),
    ("vadd.s32.s32.s32 d, a.b1, b.b3;", 0xFFFFFF7F), ("vsub.s32.u32.s32 d, a.h1, b.h0;", 0x12F6),
    ("vadd.u32.s32.s32 d, a.h0, 5;", 0xFFFF8086), ("vadd.u32.u32.u32 d, 7, a.b2;", 0xFB),
    ("vadd.u32.u32.u32 d, a, b;", 0x12F4807F), ("vsub.u32.u32.u32 d, a, b;", 0x12F48083),
    # Sources compare by their own types, as 33 bits.
    ("vmin.s32.u32.s32 d, a, b;", B), ("vmin.s32.u32.u32 d, a, b;", A), ("vmax.u32.s32.u32 d, b, c;", C),
    ("vmax.u32.u32.s32 d, b, c;", B), ("vabsdiff.u32.u32.u32 d, a, b;", B - A),
    ("vabsdiff.u32.s32.s32 d, a, b;", A + 2),
    ("vabsdiff.s32.s32.u32 d, c, b;", 0x7FFFFFF9),
    # Saturation: of signed results at both ends; of unsigned ones at 0 alone, where the ISA has the upper end too.
    ("vadd.s32.u32.u32.sat d, a, b;", 0x7FFFFFFF), ("vsub.s32.s32.u32.sat d, c, b;", 0x80000000),
    ("vadd.s32.s32.s32.sat d, a, b;", A - 2), ("vsub.u32.u32.u32.sat d, a, b;", 0),
    ("vadd.u32.u32.u32.sat d, a, b;", A - 2),
    ("vmin.u32.s32.s32.sat d, a, b;", 0), ("vmax.s32.u32.u32.sat d, a, b;", 0x7FFFFFFF),
    ("vabsdiff.s32.u32.u32.sat d, b, 1;", 0x7FFFFFFF),
    # Merges.
    ("vadd.u32.u32.u32 d.b2, a, b, c;", 0x807F0005), ("vadd.u32.u32.u32 d.h1, a, b, c;", 0x807F0005),
    ("vadd.u32.u32.u32 d.h0, a, b, c;", 0x8000807F), ("vsub.s32.s32.s32 d.b3, 3, a.b0, c;", 0x82000005),
    ("vadd.s32.s32.s32.sat d.h0, a, 0, c;", 0x80007FFF), ("vadd.u32.u32.u32.sat d.b0, a, 0, c;", 0x800000FF),
    ("vadd.s32.s32.s32.sat d.b0, 100, 20, c;", 0x80000078), ("vadd.s32.s32.s32.sat d.b1, 100, 28, c;", 0x80007F05),
    # The ISA has -2, the least, or 0 here.
    ("vadd.s32.s32.s32.sat d.b0, b, 0, c;", 0x8000007F), ("vadd.u32.s32.s32.sat d.h0, b, 0, c;", 0x8000FFFF),
    # Secondary operations; c is of the result's type.
    ("vadd.u32.u32.u32.add d, a.b0, b.b0, c;", 0x80000005 + 0x81 + 0xFE), ("vadd.s32.u32.u32.min d, a, b, c;", C),
    ("vadd.s32.u32.u32.max d, a, b, c;", A - 2), ("vadd.u32.u32.u32.max d, a, b, c;", C),
    ("vadd.u32.u32.u32 d, a, b, c;", A - 2),
    ("vadd.u32.u32.u32.min d, a, b, c;", A - 2), ("vadd.u32.u32.u32.sat.min d, a, b, 3;", 3),
    ("vadd.s32.u32.u32.sat.max d, a, b, c;", 0x7FFFFFFF), ("vsub.u32.u32.u32.sat.max d, a, b, 9;", 9),
    # For the comparison a sum of the type u32 is extended by its sign, and c by zeros; the ISA has zeros for both.
    ("vadd.u32.u32.u32.max d, c, 1, b;", C + 1), ("vadd.u32.u32.u32.min d, c, 1, b;", B),
    ("vmin.u32.u32.u32.max d, c, b, b;", B), ("vmax.u32.u32.u32.min d, b, c, c;", C),
    ("vmin.u32.s32.s32.max d, b, 5, 7;", B), ("vmin.u32.s32.s32.sat.max d, b, 5, 7;", 7),
])  # fmt: skip
def test_sums_and_extremes(code: str, want: int) -> None:
    assert f"{result(code):#x}" == f"{want & 0xFFFFFFFF:#x}"


@pytest.mark.parametrize(("code", "want"), [
    ("vshl.u32.u32.u32.clamp d, a, 4;", 0x2F480810), ("vshl.u32.u32.u32.clamp d, a, b;", 0),
    ("vshl.u32.u32.u32.wrap d, a, 36;", 0x2F480810), ("vshl.u32.u32.u32.wrap d, a, c.b0;", 0x5E901020),
    ("vshr.s32.s32.u32.clamp d, b, 33;", 0xFFFFFFFF), ("vshr.s32.u32.u32.clamp d, b, 33;", 0),
    ("vshr.u32.s32.u32.wrap d, b, 33;", 0xFFFFFFFF), ("vshr.u32.u32.u32.wrap d, b, 33;", 0x7FFFFFFF),
    ("vshr.s32.s32.u32.clamp d, a.b0, 1;", 0xFFFFFFC0), ("vshl.s32.s32.u32.clamp d.b1, a.b0, 1, c;", 0x80000205),
    ("vshl.u32.u32.u32.clamp.add d, a.b0, 1, c;", 0x80000107), ("vshl.s32.u32.u32.clamp.min d, a.b0, 1, c;", C),
    ("vshl.u32.u32.u32.sat.clamp d, a, 4;", 0xFFFFFFFF), ("vshl.s32.s32.u32.sat.clamp d, a, 3;", 0x7FFFFFFF),
    ("vshl.s32.s32.u32.sat.clamp d, b, 3;", 0xFFFFFFF0), ("vshl.u32.s32.u32.sat.clamp d, b, 3;", 0),
    ("vshl.s32.s32.u32.sat.clamp d, c, 1;", 0x80000000), ("vshl.u32.u32.u32.sat.clamp d, 2, 32;", 0),
    # Of the shifted value 34 bits stay: a number can come out as a negative one.
    ("vshl.u32.u32.u32.sat.clamp d, a, 5;", 0), ("vshl.s32.u32.u32.sat.clamp d, a, 5;", 0x80000000),
    # To a part of d, saturation is to 32 bits; without it the comparison with c is of 64.
    ("vshl.u32.u32.u32.sat.clamp d.b0, a, 0, c;", 0x80000081), ("vshl.u32.u32.u32.clamp.max d, a, 4, b;", 0x2F480810),
    ("vshl.u32.u32.u32.sat.clamp.max d, c, 0, b;", C), ("vshr.u32.s32.u32.clamp.min d, b, 1, c;", C),
])  # fmt: skip
def test_shifts(code: str, want: int) -> None:
    assert f"{result(code):#x}" == f"{want:#x}"


@pytest.mark.parametrize(("code", "want"), [
    ("vset.u32.u32.lt d, a, b;", 1), ("vset.s32.s32.lt d, a, b;", 0), ("vset.u32.s32.gt d, a, b;", 1),
    ("vset.s32.u32.lt d, b, b;", 1), ("vset.s32.s32.eq d, a.b3, 18;", 1), ("vset.u32.u32.ne d, a.b0, a.h0;", 1),
    ("vset.u32.u32.le d, a, a;", 1), ("vset.u32.u32.ge d, a, b;", 0), ("vset.s32.s32.lt.add d, b, a, c;", C + 1),
    ("vset.u32.u32.lt.min d, a, b, c;", 1), ("vset.u32.s32.gt.max d, a, b, c;", C),
    # By its first source the secondary operation is signed; the ISA has it unsigned.
    ("vset.s32.s32.lt.min d, b, a, c;", C), ("vset.s32.u32.lt.max d, c, a, c;", 1),
    ("vset.s32.s32.lt d.b3, b, a, c;", 0x01000005),
])  # fmt: skip
def test_comparisons(code: str, want: int) -> None:
    assert f"{result(code):#x}" == f"{want:#x}"


@pytest.mark.parametrize(("code", "want"), [
    ("vmad.u32.u32.u32 d, a.b0, b.b0, c;", 0x81 * 0xFE + C), ("vmad.s32.s32.u32 d, a.b0, b.b0, c;", -0x7F * 0xFE + C),
    ("vmad.u32.u32.u32 d, -a.b0, b.b0, 9;", 9 - 0x81 * 0xFE), ("vmad.u32.u32.u32 d, a.b0, -b.b0, 9;", 9 - 0x81 * 0xFE),
    ("vmad.u32.u32.u32 d, -a.b0, -b.b0, 9;", 0x81 * 0xFE + 9), ("vmad.s32.u32.u32 d, a.b0, b.b0, -c;", 0x81 * 0xFE - C),
    ("vmad.u32.u32.u32.po d, a.b0, b.b0, 9;", 0x81 * 0xFE + 10), ("vmad.u32.u32.u32.shr7 d, a.h0, b.h0, 9;", 0x100FFFE),
    ("vmad.u32.u32.u32.po.shr15 d, a.h0, b.h0, c;", 0xFF), ("vmad.s32.s32.s32.shr15 d, a.h0, b.h0, c;", 0xFFFF0001),
    ("vmad.s32.s32.s32.shr7 d, a.b0, 1, 0;", 0xFFFFFFFF), ("vmad.s32.s32.s32.sat d, a, c, 0;", 0x80000000),
    ("vmad.s32.s32.s32.sat d, -a, c, 0;", 0x7FFFFFFF), ("vmad.s32.s32.s32.sat d, a, b, 5;", 5 - 2 * A),
    # All words are signed, where the ISA has products and c of u32.
    ("vmad.u32.u32.u32.shr7 d, b, 64, 0;", 0xFFFFFFFF), ("vmad.u32.u32.u32.sat d, b, 1, 0;", 0),
    ("vmad.u32.u32.u32.sat d, a, a, 0;", 0xFFFFFFFF), ("vmad.u32.u32.u32.sat d, 5, 6, c;", 0),
    ("vmad.u32.u32.u32.sat.shr7 d, 5, 6, c;", 0xFFFFFFFF),
])  # fmt: skip
def test_products(code: str, want: int) -> None:
    assert f"{result(code):#x}" == f"{want & 0xFFFFFFFF:#x}"


@pytest.mark.parametrize(("code", "want"), [
    ("vadd2.u32.u32.u32 d, a, b, c;", 0x12F3807F), ("vadd2.s32.s32.s32 d.h1, a, b, c;", 0x12F30005),
    ("vadd2.u32.u32.u32 d, a.h00, b.h21, c;", 0x807F9375), ("vsub2.s32.u32.u32.sat d, a, b, c;", 0x80008083),
    ("vsub2.u32.u32.u32.sat d, a, b, c;", 0), ("vadd2.u32.u32.u32.sat d, a, b, c;", 0xFFFFFFFF),
    ("vadd2.s32.s32.s32.sat d, a.h00, a.h00, c;", 0x80008000), ("vadd2.u32.u32.u32.add d, a, b, c;", C + 0x29372),
    ("vadd2.s32.s32.s32.add d.h0, a, b, c;", C - 0x7F7F - 2), ("vavrg2.s32.s32.s32 d, a, b, c;", 0x097AC03F),
    ("vavrg2.u32.u32.u32 d, a, b, c;", 0x897AC040), ("vabsdiff2.u32.u32.u32 d, a, b, c;", 0xED0B7F7D),
    ("vmin2.s32.s32.s32 d, a, b, c;", 0xFFFF8081),
    ("vmax2.s32.s32.s32 d, a, b, c;", 0x12F4FFFE), ("vmin2.s32.u32.s32 d, a, b, c;", 0xFFFFFFFE),
    ("vset2.s32.s32.lt d, a, b, c;", 0x00000001), ("vset2.u32.u32.le.add d, a, b, c;", C + 2),
    ("vset2.u32.u32.gt d.h1, a, b, c;", 0x00000005),
    ("vadd4.u32.u32.u32 d, a, b, c;", 0x11F37F7F), ("vadd4.s32.s32.s32.sat d, a, b, c;", 0x11F38080),
    ("vadd4.u32.u32.u32 d.b20, a, b, c;", 0x80F3007F), ("vsub4.u32.u32.u32 d, a.b0123, b.b7777, c;", 0x8281F513),
    ("vsub4.u32.u32.u32 d, a.b4567, b.b0000, c;", 0x7D7E7E7E), ("vavrg4.s32.s32.s32 d, a, b, c;", 0x09F9BFBF),
    ("vabsdiff4.u32.u32.u32.add d, a, b, c;", C + 0xED + 0x0B + 0x7F + 0x7D), ("vmin4.u32.u32.u32 d, a, b, c;", A),
    ("vmax4.s32.s32.s32 d, a, b, c;", 0x12FFFFFE), ("vset4.s32.s32.gt d, a, b, c;", 0x01000000),
    ("vset4.u32.u32.lt.add d.b310, a, b, c;", C + 3), ("vset4.u32.u32.ne d.b3, a, b, c;", 0x01000005),
])  # fmt: skip
def test_two_or_four_elements(code: str, want: int) -> None:
    assert f"{result(code):#x}" == f"{want & 0xFFFFFFFF:#x}"


@pytest.mark.parametrize(("code", "words"), [
    ("vadd.u32.u32 r, r, r;", "vadd takes"), ("vadd.u32.u32.u32 r.h0, r, r;", "4 operands"),
    ("vadd.u32.u32.u32.add r.h0, r, r, r;", "secondary"), ("vadd.u32.u32.u32 r.h2, r, r, r;", ".h2"),
    ("vadd.u32.u32.u32.add r, r, r;", "operands"), ("vadd.u32.u32.u32.add r, r, r, r.b0;", ".b0"),
    ("vadd.u32.u32.u32 _, r, r;", "register"), ("vadd.u32.u32.u32 r, -r, r;", "negated"),
    ("vadd.u32.u32.u32 r, r.b4, r;", ".b4"), ("vadd.u32.u32.u32 r, r.h10, r;", ".h10"),
    ("vadd.u32.u32.u32 r, f, r;", ".f32"),
    ("vadd.u32.u32.u32.max.sat.po r, r, r, r;", ".po"), ("vshl.u32.u32.u32 r, r, r;", ".clamp"),
    ("vshl.u32.u32.s32.clamp r, r, r;", "takes .u32"), ("vset.u32.s32.lo r, r, r;", "one of .eq"),
    ("vset.u32.s32.lt.sat r, r, r;", ".sat"), ("vmad.u32.u32.u32 r.h0, r, r, r;", "whole"),
    ("vmad.u32.u32.u32 r, -r, r, -r;", "not both"), ("vmad.u32.u32.u32.po r, r, -r, r;", "negates nothing"),
    ("vmad.u32.u32.u32.po r, r, r, -r;", "negates nothing"), ("vmad.u32.u32.u32 r, r, r, r.b0;", ".b0"),
    ("vmad.u32.u32.u32 r, r, r;", "4 operands"),
    ("vadd2.u32.u32.u32 r, r, r;", "4 operands"), ("vadd2.u32.u32.u32.sat.add r, r, r, r;", "not both"),
    ("vadd2.u32.u32.u32 r.h01, r, r, r;", "masked"), ("vadd2.u32.u32.u32 r.h2, r, r, r;", "masked"),
    ("vadd2.u32.u32.u32 r.b0, r, r, r;", "masked"), ("vadd2.u32.u32.u32 r, r.h0, r, r;", "picked"),
    ("vadd2.u32.u32.u32 r, r.h04, r, r;", "picked"), ("vadd2.u32.u32.u32 r, r.b10, r, r;", "picked"),
    ("vadd2.u32.u32.u32 r, -r, r, r;", "picked"), ("vadd2.u32.u32.u32 r, r, 5, r;", "registers"),
    ("vadd2.u32.u32.u32 r, r, r, 0;", "registers"), ("vadd2.u32.u32.u32.min r, r, r, r;", ".min"),
    ("vset2.u32.u32 r, r, r, r;", "one of .eq"), ("vset4.u32.u32.lt.sat r, r, r, r;", ".sat"),
    ("vadd4.u32.u32.u32 _, r, r, r;", "register"),
    ("add.u32 r, r.b0, r;", "whole registers"), ("add.u32 r, r, -r;", "use neg"), ("add.u32 r, r, -x;", "a minus"),
])  # fmt: skip
def test_what_an_assembler_refuses(code: str, words: str) -> None:
    with pytest.raises(CompileError, match=re.escape(words)):
        sim.parse(kernel(".reg .u32 r; .reg .f32 f; " + code, head=HEAD))


def test_several_elements_came_with_sm_30() -> None:
    code = ".reg .u32 r; mov.u32 r, 5; vadd.u32.u32.u32 r, r, r;"
    old = HEAD.replace("8.6", "3.1").replace("sm_90", "sm_20")
    run(kernel(code, head=old), np.zeros(1, np.uint32))
    with pytest.raises(CompileError, match="sm_30"):
        sim.parse(kernel(code + "vadd2.u32.u32.u32 r, r, r, r;", head=old))


def test_a_breakpoint_is_a_trap_where_no_debugger_is() -> None:
    text = kernel(".reg .u32 t; .reg .pred q; mov.u32 t, %tid.x; setp.eq.u32 q, t, 3;\n@q brkpt;")
    with pytest.raises(LaunchError, match="brkpt") as caught:
        run(text, 0)
    assert caught.value.thread == (3, 0, 0)  # type: ignore[attr-defined]
    run(text, 0, block=(3, 1, 1))
