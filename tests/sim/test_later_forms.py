"""Forms that few kernels use: packed integers, vectors of registers and atomics, cache policies, 128 and 256 bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from machine import apply, kernel, run

from ptxrt import sim
from ptxrt.errors import CompileError, MemoryFault

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"
WIDE_HEAD = HEAD.replace("8.6", "8.8").replace("sm_90", "sm_100a")
PAIRS = np.array([0x00010002, 0xFFFF8000, 0x7FFF0003, 0x80000000], np.uint32)
OTHER = np.array([0x00050001, 0x00018000, 0x0001FFFE, 0x7FFFFFFF], np.uint32)


@pytest.mark.parametrize(("code", "want"), [
    ("add.u16x2", [0x00060003, 0x00000000, 0x80000001, 0xFFFFFFFF]),
    ("add.s16x2", [0x00060003, 0x00000000, 0x80000001, 0xFFFFFFFF]),
    ("min.u16x2", [0x00010001, 0x00018000, 0x00010003, 0x7FFF0000]),
    ("max.u16x2", [0x00050002, 0xFFFF8000, 0x7FFFFFFE, 0x8000FFFF]),
    ("min.s16x2", [0x00010001, 0xFFFF8000, 0x0001FFFE, 0x8000FFFF]),
    ("max.s16x2", [0x00050002, 0x00018000, 0x7FFF0003, 0x7FFF0000]),
    ("min.relu.s16x2", [0x00010001, 0x00000000, 0x00010000, 0x00000000]),
    ("max.relu.s16x2", [0x00050002, 0x00010000, 0x7FFF0003, 0x7FFF0000]),
])  # fmt: skip
def test_pairs_of_integers(code: str, want: list[int]) -> None:
    got = apply(f"{code} d, a, b;", "b32", PAIRS, OTHER, types=("b32", "b32"), head=HEAD).view(np.uint32)
    assert got.tolist() == want


def test_integers_that_are_at_least_zero() -> None:
    a, b = np.array([-5, 3, -1, -(2**31)], np.int32), np.array([2, 7, -9, 2**31 - 1], np.int32)
    for name, want in (("min", [0, 3, 0, 0]), ("max", [2, 7, 0, 2**31 - 1])):
        got = apply(f"{name}.relu.s32 d, a, b;", "s32", a, b, types=("s32", "s32"), head=HEAD)
        assert got.view(np.int32).tolist() == want


def test_a_sum_of_an_upper_half_that_saturates() -> None:
    a = np.array([2**30, 2**30, -(2**30), -1, 2**31 - 1], np.int32)
    b = np.array([2**30, 2**30, 2**30, 1, 2**31 - 1], np.int32)
    c = np.array([2**31 - 1, 5, -(2**31), -(2**31), 0], np.int32)
    got = apply("mad.hi.sat.s32 d, a, b, c;", "s32", a, b, c, types=("s32",) * 3).view(np.int32)
    assert got.tolist() == [2**31 - 1, 2**28 + 5, -(2**31), -(2**31), 2**30 - 1]


def test_a_sum_of_an_upper_half_of_24_bits_that_saturates() -> None:
    a = np.array([2**23 - 1, 2**23 - 1, -(2**23), 2**24 + 3], np.int32)
    b = np.array([2**23 - 1, 2**23 - 1, 2**23 - 1, 2**20], np.int32)
    c = np.array([2**31 - 1, 5, -(2**31), 7], np.int32)
    got = apply("mad24.hi.sat.s32 d, a, b, c;", "s32", a, b, c, types=("s32",) * 3).view(np.int32)
    assert got.tolist() == [2**31 - 1, ((2**23 - 1) ** 2 >> 16) + 5, -(2**31), 48 + 7]
    for code in ("mad24.lo.sat.s32 d, a, b, c;", "mad24.hi.sat.u32 d, a, b, c;"):
        with pytest.raises(CompileError, match=r"mad24 takes [.]sat with [.]hi[.]s32 only"):
            apply(code, "s32", a, b, c, types=("s32",) * 3)


def test_events_of_a_mask_are_nothing() -> None:
    zero = np.zeros(1, np.int32)
    got = apply("pmevent.mask 0xff; pmevent 1; mov.b32 d, a;", "s32", zero + 7, types=("s32",)).view(np.int32)
    assert got.tolist() == [7]


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_extremes_of_magnitudes_with_both_signs(kind: str) -> None:
    dtype = np.dtype({"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}[kind])
    a = np.array([1, -1, -3, 2, -0.0, np.nan, -2], dtype)
    b = np.array([2, 2, -4, -8, 5, -1, np.nan], dtype)
    bits, nan = (np.uint32, 0x7FFFFFFF) if kind == "f32" else (np.uint16, 0x7FFF)
    for name, want, hole in (("min", [1, -1, 3, -2, -0.0], [-1, -2]), ("max", [2, -2, 4, -8, -5], [-1, -2])):
        for modifier in ("", ".NaN"):
            code = f"{name}{modifier}.xorsign.abs.{kind} d, a, b;"
            got = apply(code, kind, a, b, types=(kind, kind), head=HEAD).view(bits)
            rest = [nan, nan] if modifier else np.array(hole, dtype).view(bits).tolist()
            assert got.tolist() == [*np.array(want, dtype).view(bits).tolist(), *rest], code


def test_extremes_of_magnitudes_in_pairs() -> None:
    a, b = np.array([[1, -2]], np.float16), np.array([[-3, -1]], np.float16)
    got = apply("max.xorsign.abs.f16x2 d, a, b;", "b32", a.view(np.uint32), b.view(np.uint32), types=("b32", "b32"),
                head=HEAD)  # fmt: skip
    assert got.view(np.float16).tolist() == [-3, 2]


def test_logic_of_three_with_a_predicate_of_its_result() -> None:
    a, b = np.array([0, 1, 0, 1], np.uint32), np.array([0, 0, 1, 1], np.uint32)
    for name, want in (("or", [100, 101, 100, 101]), ("and", [0, 0, 0, 101])):
        code = f"setp.ne.u32 q, b, {'0xffff' if name == 'or' else 0}; lop3.{name}.b32 d|r, a, 0, 0, 0xF0, q;" \
            "@r add.u32 d, d, 100; @!r mov.u32 d, 0;"  # fmt: skip
        got = apply(code, "u32", a, b, types=("u32", "u32"), head=HEAD).view(np.uint32)
        assert got.tolist() == want


START = """.reg .u32 t, u, w; .reg .u64 p, o, e; .reg .f32 f, g; .reg .b16 h; .reg .pred q;
mov.u32 t, %tid.x; ld.param.u64 p, [out]; mul.wide.u32 o, t, 16; .shared .align 16 .f32 s[128];
"""


def launch(code: str, out: np.ndarray, threads: int = 32, head: str = HEAD, module: str = "", **options: Any) -> None:
    run(kernel(START + code, head=head, module=module), out, block=(threads, 1, 1), **options)


def test_vectors_of_registers() -> None:
    out = np.zeros((32, 4), np.uint32)
    out[:, :] = np.arange(128).reshape(32, 4)
    launch("add.u64 p, p, o; .reg .v4 .u32 v, x; .reg .v2 .u32 y; ld.global.v4.u32 v, [p]; add.u32 v.x, v.y, v.w;"
           "mov.v4.u32 x, {v.w, v.z, v.g, v.r}; mov.b64 o, {x.x, x.w}; mov.b64 {y.x, y.y}, o; mov.u32 x.z, y.y;"
           "st.global.v4.u32 [p], x;", out)  # fmt: skip
    first = np.arange(0, 128, 4)
    assert out.tolist() == np.stack([first + 3, first + 2, 2 * first + 4, 2 * first + 4], 1).tolist()


def test_ranges_of_vectors_of_registers() -> None:
    out = np.arange(128, dtype=np.uint32)
    launch("add.u64 p, p, o; .reg .v4 .u32 v<3>; .reg .v2 .b32 y<12>; ld.global.v4.u32 v1, [p]; mov.v4.u32 v2, v1;"
           "add.u32 v2.x, v2.x, v1.w; mov.b64 o, {v2.x, v1.y}; mov.b64 y11, o; mov.v4.u32 v0, {y11.x, y11.y, 7, v2.z};"
           "st.global.v4.u32 [p], v0;", out)  # fmt: skip
    a = np.arange(128).reshape(32, 4)
    assert out.tolist() == np.stack([a[:, 0] + a[:, 3], a[:, 1], a[:, 0] * 0 + 7, a[:, 2]], 1).reshape(-1).tolist()


def test_elements_of_a_vector_that_differ_in_sign_or_are_plain_bits() -> None:
    out = np.zeros(4, np.uint32)
    launch(".reg .b32 b; .reg .s32 i; mov.b32 b, 1; mov.b32 i, 2; mov.b32 f, 3; mov.b64 o, {t, i}; mov.b64 {b, i}, o;"
           "st.global.v2.b32 [p], {i, b}; st.global.v2.b32 [p+8], {f, b};", out, threads=1)  # fmt: skip
    assert out.tolist() == [2, 0, 3, 0]


def test_registers_of_vectors_are_counted() -> None:
    for declared, units in ((".reg .v4 .u32 v;", 4), (".reg .v4 .u32 v<3>;", 12), (".reg .v2 .b64 v<3>, w;", 16)):
        assert sim.parse(kernel(declared, head=HEAD)).entries["k"].registers == units


def test_a_special_register_as_a_vector() -> None:
    out = np.zeros((4, 4), np.uint32)
    launch("add.u64 p, p, o; .reg .v4 .u32 v; mov.v4.u32 v, %tid; add.u32 v.x, v.x, 5; st.global.v4.u32 [p], v;"
           "mov.v4.u32 {_, w, _, _}, %ntid; st.global.u32 [p+12], w;", out, threads=4)  # fmt: skip
    assert out.tolist() == [[5 + t, 0, 0, 1] for t in range(4)]


def test_a_vector_of_registers_on_both_sides() -> None:
    out = np.zeros(64, np.uint32)
    launch("mul.wide.u32 o, t, 8; add.u64 p, p, o; .reg .v2 .u32 v; mov.u32 v.x, %tid.x; mov.u32 v.y, 7;"
           "mov.v2.u32 v, {v.y, v.x}; st.global.v2.u32 [p], v;", out)  # fmt: skip
    assert out.tolist() == [x for t in range(32) for x in (7, t)]


def test_elements_of_variables_by_their_index() -> None:
    out = np.zeros(32, np.float32)
    launch("mul.wide.u32 o, t, 4; add.u64 p, p, o; mov.u32 w, s; mad.lo.u32 w, t, 4, w; ld.global.f32 f, table[2];"
           "setp.eq.u32 q, t, 3; @q st.shared.f32 s[3], f; bar.sync 0; mov.u32 w, s[3]; ld.shared.f32 g, [w];"
           "st.global.f32 [p], g;", out, module=".global .f32 table[4] = {1.0, 2.0, 3.0, 4.0};")  # fmt: skip
    assert out.tolist() == [3.0] * 32


def test_cache_policies_change_nothing() -> None:
    out = np.arange(128, dtype=np.uint32)
    launch("add.u64 p, p, o; createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 e, 0.5;"
           ".reg .u32 a<4>; ld.global.L1::no_allocate.L2::cache_hint.L2::128B.v4.u32 {a0, a1, a2, a3}, [p], e;"
           "createpolicy.range.global.L2::evict_last.L2::evict_first.b64 e, [p], 16, 32;"
           "createpolicy.cvt.L2.b64 e, 0x10F0000000000000; createpolicy.fractional.L2::evict_first.b64 e;"
           "st.global.L2::cache_hint.v4.u32 [p], {a3, a2, a1, a0}, e; red.global.add.L2::cache_hint.u32 [p], 1000, e;"
           "cp.async.cg.shared.global.L2::cache_hint.L2::128B [s], [p], 16, e; cp.async.wait_all;", out,
           races=False)  # fmt: skip
    want = np.arange(128).reshape(32, 4)[:, ::-1].copy()
    want[:, 0] += 1000
    assert out.tolist() == want.reshape(-1).tolist()


def test_streaming_loads() -> None:
    out = np.arange(128, dtype=np.float32)
    launch("add.u64 p, p, o; .reg .f32 a<4>; ld.global.nc.L1::no_allocate.v4.f32 {a0, a1, a2, a3}, [p];"
           "st.global.L1::no_allocate.v4.f32 [p], {a1, a0, a3, a2};", out)  # fmt: skip
    assert out.reshape(-1, 2).tolist() == np.arange(128).reshape(-1, 2)[:, ::-1].tolist()


@pytest.mark.parametrize("code", [
    "ld.global.v8.f32 {a0, a1, a2, a3, a4, a5, a6, a7}, [p]; st.global.v8.f32 [p], {a7, a6, a5, a4, a3, a2, a1, a0};",
    "ld.global.v4.f64 {d0, d1, d2, d3}, [p]; mov.b64 {a0, a1}, d0; mov.b64 {a2, a3}, d1; mov.b64 {a4, a5}, d2;"
    "mov.b64 {a6, a7}, d3; mov.b64 d0, {a7, a6}; mov.b64 d1, {a5, a4}; mov.b64 d2, {a3, a2}; mov.b64 d3, {a1, a0};"
    "st.v4.f64 [p], {d0, d1, d2, d3};",
])  # fmt: skip
def test_256_bits_at_once(code: str) -> None:
    out = np.arange(256, dtype=np.float32)
    registers = ".reg .f32 a<8>; .reg .f64 d<4>; mul.wide.u32 o, t, 32; add.u64 p, p, o;"
    launch(registers + code, out, head=WIDE_HEAD)
    assert out.reshape(-1, 8).tolist() == np.arange(256).reshape(-1, 8)[:, ::-1].tolist()


# -- atomics -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
def test_vectors_of_atomic_sums(count: int) -> None:
    out = np.zeros(8, np.float32)
    values = ", ".join(["f", "g", "1.0", "0f40000000"][:count])
    launch(f"cvt.rn.f32.u32 f, t; neg.f32 g, f; red.global.v{count}.f32.add [p], {{{values}}};"
           f"atom.global.add.v{count}.f32 {{{', '.join(['f', 'g', '_', '_'][:count])}}}, [p+16], {{{values}}};"
           "setp.eq.u32 q, t, 0; @!q bra E; setp.neu.f32 q, f, 0.0; @q trap; E:", out)  # fmt: skip
    want = [496, -496, 32, 64][:count] + [0] * (4 - count)
    assert out.tolist() == want * 2


@pytest.mark.parametrize(("code", "dtype", "want"), [
    ("red.global.v8.f16.max.noftz [p], {h, h, h, h, h, h, h, h};", np.float16, [31] * 8),
    ("mov.b16 h, 0x3f80; red.global.add.noftz.v4.bf16 [p], {h, h, h, h};", ml_dtypes.bfloat16, [32] * 4 + [0] * 4),
    ("mov.b32 x, {h, h}; red.global.v2.f16x2.min.noftz [p], {x, x};", np.float16, [-31] * 4 + [0] * 4),
    ("mov.b32 x, {h, h}; atom.global.v4.f16x2.add.noftz {_, _, _, _}, [p], {x, x, x, x};", np.float16, [496] * 8),
])  # fmt: skip
def test_vectors_of_small_atomics(code: str, dtype: Any, want: list[float]) -> None:
    out = np.zeros(8, dtype)
    kind = "bf16" if dtype is not np.float16 else "f16"
    sign = "neg.f32 f, f;" if "min" in code else ""
    launch(f".reg .b32 x; cvt.rn.f32.u32 f, t; {sign} cvt.rn.{kind}.f32 h, f; {code}", out.view(np.uint16))
    assert out.astype(float).tolist() == want


def test_a_vector_of_atomics_has_to_be_aligned_as_a_whole() -> None:
    with pytest.raises(MemoryFault, match="not a multiple of 16"):
        launch("red.global.v4.f32.add [p+8], {f, f, f, f};", np.zeros(16, np.float32), threads=1)


@pytest.mark.parametrize("lanes", [1, 32])
def test_sums_of_denormals_vanish_in_global_memory_only(lanes: int) -> None:
    out = np.full(4, 3, np.uint32)
    launch("mov.b32 g, 5; red.global.add.f32 [p], g; mov.b32 f, 0; setp.eq.u32 q, t, 0;"
           "@q st.shared.f32 [s], f; bar.sync 0;"
           "red.shared.add.f32 [s], g; bar.sync 0; ld.shared.f32 f, [s]; @q st.global.f32 [p+4], f;"
           "mov.b32 f, 0x80c00000; @q st.global.f32 [p+8], f; mov.b32 f, 0x00800000; @q red.global.add.f32 [p+8], f;",
           out, threads=lanes)  # fmt: skip
    assert out.tolist() == [0, 5 * lanes, 0x80000000, 3]


# -- reductions and roundings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "value", "want"), [
    ("min", 0x7FC00000, -17.0), ("max", 0x7FC00000, 14.0), ("max.abs", 0x7FC00000, 17.0), ("min.abs", 0x7FC00000, 0.0),
    ("min.NaN", 0x7FC00000, None), ("max.NaN.abs", 0x7FC00000, None), ("max.NaN", 0x42000000, 32.0),
])  # fmt: skip
def test_reductions_of_floats_over_a_warp(how: str, value: int, want: float | None) -> None:
    """Of -17 to 13, and in the last lane of a given number: of a NaN, those without .NaN take no notice."""
    out = np.zeros(32, np.float32)
    launch("mul.wide.u32 o, t, 4; add.u64 p, p, o; cvt.rn.f32.u32 f, t; sub.f32 f, f, 0f41880000; setp.eq.u32 q, t, 31;"
           f"@q mov.b32 f, {value:#x}; redux.sync.{how}.f32 f, f, -1; st.global.f32 [p], f;", out,
           head=WIDE_HEAD)  # fmt: skip
    if want is None:
        assert np.isnan(out).all()
    else:
        assert out.tolist() == [min(want, 13.0) if how == "max" else want] * 32


@pytest.mark.parametrize(("way", "want"), [
    # The bits below the tenth of the mantissa: exactly half, half and even, above half, below half, negative half.
    ("rna", [0x3F802000, 0x3F804000, 0x3F802000, 0x3F800000, 0xBF802000, 0x7F800000]),
    ("rn", [0x3F800000, 0x3F804000, 0x3F802000, 0x3F800000, 0xBF800000, 0x7F800000]),
    ("rz", [0x3F800000, 0x3F802000, 0x3F800000, 0x3F800000, 0xBF800000, 0x7F7FE000]),
    ("rn.relu", [0x3F800000, 0x3F804000, 0x3F802000, 0x3F800000, 0x00000000, 0x7F800000]),
])  # fmt: skip
def test_rounding_to_tf32(way: str, want: list[int]) -> None:
    a = np.array([0x3F801000, 0x3F803000, 0x3F801001, 0x3F800FFF, 0xBF801000, 0x7F7FFFFF], np.uint32)
    got = apply(f"cvt.{way}.tf32.f32 d, a;", "b32", a.view(np.float32), types=("f32",), head=HEAD)
    assert [f"{x:#x}" for x in got.view(np.uint32)] == [f"{x:#x}" for x in want]


_PATTERNS = [
    0x3FC00000, 0x477FE000, 0x477FEFFF, 0x477FF000, 0x7F7F0000, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000,
    0x7F800001, 0xC7800000, 0xFF7FFFFF, 0xFF800000, 0xFFC12345, 0x80000000, 0x33000001, 0x00000001,
]  # fmt: skip
"""Of float32: 1.5, around the largest numbers of both halves, infinity, NaN, negative ones, zero, and small ones."""


@pytest.mark.parametrize(("to", "way", "want"), [
    ("f16", "rn", [0x3E00, *[0x7BFF] * 7, 0x7FFF, *[0xFBFF] * 3, 0x7FFF, 0x8000, 1, 0]),
    ("f16", "rz.relu", [0x3E00, *[0x7BFF] * 7, 0x7FFF, 0, 0, 0, 0x7FFF, 0, 0, 0]),
    ("bf16", "rn", [0x3FC0, 0x4780, 0x4780, 0x4780, *[0x7F7F] * 4, 0x7FFF, 0xC780, 0xFF7F, 0xFF7F, 0x7FFF, 0x8000,
                    0x3300, 0]),
    ("bf16", "rz.relu", [0x3FC0, 0x477F, 0x477F, 0x477F, *[0x7F7F] * 4, 0x7FFF, 0, 0, 0, 0x7FFF, 0, 0x3300, 0]),
])  # fmt: skip
def test_halves_that_stay_finite(to: str, way: str, want: list[int]) -> None:
    """What an H200 answers: the largest number of the sign for what is above it, and NaN for NaN."""
    head = ".version 8.1\n.target sm_80\n.address_size 64\n"
    a = np.array(_PATTERNS, np.uint32).view(np.float32)
    got = apply(f"cvt.{way}.satfinite.{to}.f32 d, a;", "b16", a, types=("f32",), head=head)
    assert got.view(np.uint16).tolist() == want
    both = apply(f"cvt.{way}.satfinite.{to}x2.f32 d, a, b;", "b32", a, a[::-1].copy(), types=("f32", "f32"), head=head)
    assert both.view(np.uint32).tolist() == [x << 16 | y for x, y in zip(want, want[::-1], strict=True)]


@pytest.mark.parametrize("code", ["cvt{}.f32.bf16 d, a;", "cvt{}.ftz.f32.bf16 d, a;"])
@pytest.mark.parametrize("way", [".rn", ".rz", ".rm", ".rp"])
def test_a_rounding_where_nothing_is_to_be_rounded(code: str, way: str) -> None:
    a = np.arange(0, 1 << 16, 37, dtype=np.uint16)
    got, want = (apply(code.format(how), "f32", a, types=("b16",), head=HEAD) for how in (way, ""))
    assert (got.view(np.uint32) == want.view(np.uint32)).all()


@pytest.mark.parametrize("code", ["cvt{}.f16.bf16 d, a;", "cvt{}.bf16.f16 d, a;"])
def test_halves_of_the_other_kind_are_rounded_to_nearest(code: str) -> None:
    a = np.arange(0, 1 << 16, 37, dtype=np.uint16)
    got, want = (apply(code.format(how), "b16", a, types=("b16",), head=HEAD) for how in ("", ".rn"))
    assert (got.view(np.uint16) == want.view(np.uint16)).all()


def test_performance_counters_are_zero() -> None:
    out = np.full(2, 7, np.uint64)
    launch("mov.u32 t, %pm3; cvt.u64.u32 o, t; st.global.u64 [p], o; mov.u64 o, %pm7_64; st.global.u64 [p+8], o;", out)
    assert out.tolist() == [0, 0]


@pytest.mark.parametrize(("code", "words"), [
    ("cvt.sat.u32.u32 t, t;", ".sat"), ("cvt.sat.s32.u16 t, t;", ".sat"), ("cvt.ftz.u32.u64 t, p;", ".ftz"),
    ("cvt.rni.ftz.u32.f16 t, h;", ".ftz"), ("cvt.rn.sat.bf16.f32 h, f;", ".sat"), ("cvt.rna.f16.f32 h, f;", ".tf32"),
    ("cvt.rm.relu.f16.f32 h, f;", ".rn or .rz"), ("cvt.rn.ftz.relu.f16.f32 h, f;", "alone"),
    ("cvt.rn.relu.f16.u32 h, t;", ".f32"), ("cvt.rn.satfinite.f16.f64 h, g;", ".f32"),
    ("cvt.rn.f16.f16 h, h;", "integer"), ("cvt.rn.ftz.f16x2.f32 t, f, f;", "neither"),
    ("cvt.rna.f32.tf32 f, t;", ".tf32 comes"), ("cvt.rn.bf16.f32 t, f;", "gives .bf16"),
    ("cvt.rn.f32.u32 f, %tid.x;", "mov"), (".shared .b32 m; cvt.u32.u32 t, m;", "not allowed"),
    ("mov.u16 h, %laneid;", ".u16"), ("mov.u32 t, %clock64;", ".u32"), ("exit.uni;", ".uni"),
    ("barrier.warp.sync -1;", ".warp"), ("bar.cluster.arrive;", ".cluster"), ("redux.add.u32 t, t, -1;", ".sync"),
    ("elect t|q, -1;", ".sync"), ("elect.sync t|_, -1;", "d.p"), ("shfl.sync.up.b32 _|q, t, 1, 0, -1;", "left out"),
    ("add.u32 _, t, t;", "left out"), ("ld.global.u32 _, [p];", "left out"),
    ("match.any.sync.b32 _, t, -1;", "left out"), ("bfe.u32 t, t, 256, 1;", "255"), ("bfe.u64 p, p, 1, 256;", "255"),
    ("bfi.b32 t, t, t, -1, 1;", "255"), ("bfi.b64 p, p, p, 1, 256;", "255"), ("bmsk.b32 t, t, t;", ".wrap"),
    ("szext.u32 t, t, t;", ".wrap"), ("mov.f64 g, 1e999;", "normal"), ("mov.f64 g, -1e-310;", "normal"),
    ("mov.f32 f, 1e999;", "normal"), ("mov.b64 p, 0f3f800000;", "constant"), ("fma.rn.f16 h, h, h, 1.5;", "constant"),
    ("shf.l.wrap.b32 t, t, t, 0f3f800000;", "constant"), ("add.sat.bf16 h, h, h;", ".sat"),
    ("min.NaN.f64 g, g, g;", ".NaN"), ("fma.rn.relu.f32 f, f, f, f;", ".relu"),
    ("fma.rn.sat.relu.f16 h, h, h, h;", ".relu"), ("mad.rn.f16 h, h, h, h;", "mad takes"),
    ("ex2.approx.bf16 h, h;", ".ftz"), ("ex2.approx.ftz.f16 h, h;", ".ftz"), ("tanh.approx.ftz.f32 f, f;", ".ftz"),
    ("dp2a.u32.u32 t, t, t, t;", ".hi"), ("dp4a.lo.u32.u32 t, t, t, t;", ".lo"),
    ("slct.ftz.f32.s32 f, f, f, t;", ".ftz"), ("setp.eq.ftz.u32 q, t, t;", ".ftz"),
    ("setp.lt.ftz.f64 q, g, g;", ".ftz"), ("set.lt.ftz.u32.s32 t, t, t;", ".ftz"),
    ("set.lt.u16.f32 h, f, f;", "no .u16"), ("set.lt.f16.bf16 h, h, h;", "no .f16"),
    ("set.lt.ftz.bf16.f32 h, f, f;", "no .bf16"), ("ld.shared.L2::64B.u32 t, [s];", ".global"),
    ("st.global.L2::64B.u32 [p], t;", "L2::64B"), ("ld.global.cg.L1::evict_last.u32 t, [p];", "L1::evict_last"),
    ("ld.global.L2::evict_last.u32 t, [p];", "32 bytes"),
    ("ld.volatile.global.L2::cache_hint.u32 t, [p], p;", "cache_hint"), ("ld.weak.global.nc.u32 t, [p];", "nc"),
    ("ld.mmio.relaxed.gpu.global.u32 t, [p];", ".sys"), ("ldu.shared.u32 t, [s];", ".global"),
    ("prefetch.global [p];", "prefetch takes"), ("prefetch.shared.L1 [s];", ".shared"),
    ("prefetchu.L2 [p];", "prefetchu"), ("cp.async.ca.global.shared [s], [p], 8;", "from .global"),
    ("cp.async.ca.shared.global [s], [p], 8, 9;", "0 to 8"), ("cp.async.ca.shared.global [s], [p], 8, p;", ".u32"),
    ("cp.async.ca.shared.global [s], [p], 8, t, p;", "operands"),
    ("cp.async.ca.shared.global.L2::cache_hint [s], [p], 8;", "operands"), ("griddepcontrol;", ".wait"),
    ("pmevent 16;", "15"), ("discard.global.L2 [p], 64;", "128"), ("fence.proxy;", "proxy"),
    ("createpolicy.fractional.L2::evict_last.b64 p, 2.0;", "fraction"), ("createpolicy.fractional.b64 p;", "priority"),
    ("isspacep.param::func q, p;", "state space"), ("fence.mbarrier_init.release.gpu;", "cluster"),
    ("fence.acquire.sync_restrict::shared::cta.cluster;", "sync_restrict"), ("suq.level.width.b32 t, [p], t;", "level"),
    ("txq.level.array_size.b32 t, [p], t;", "level"), ("sured.b.add.a1d.u32.trap [p, {t, t}], t;", "1d"),
    ("tex.grad.2d.v4.f32.f32 {f, f, f, f}, [p, {f, f}], {f, f, f, f}, {f, f, f, f};", "vectors of 2"),
])  # fmt: skip
def test_what_ptxas_does_not_let_through(code: str, words: str) -> None:
    registers = ".reg .b16 h; .reg .b32 t, s; .reg .b64 p; .reg .pred q; .reg .f32 f; .reg .f64 g;\n"
    text = kernel(registers + code, head=HEAD)
    with pytest.raises(CompileError, match=words) as caught:
        sim.parse(text)
    assert caught.value.line == 8


@pytest.mark.parametrize("code", [
    "mov.b64 p, 1.5;", "atom.global.exch.b64 p, [p], -1.5;", "cvt.sat.u32.s16 t, h;", "cvt.sat.s64.u64 p, p;",
    "atom.global.add.u32 _, [p], t;", "setp.eq.u32 _|q, t, t;", "match.any.sync.b32 t|_, t, -1;",
    "bfe.u32 t, t, 255, 255;", "mov.u16 h, %tid.x;", "cp.async.ca.shared.global [s], [p], 8, !q;",
    "mov.f64 g, 0.0e-999;", "mov.f64 g, 1e-307;", "cp.async.ca.shared.global.L2::cache_hint [s], [p], 8, t, p;",
    "membar.proxy.alias;", "fence.proxy.async.global;", "fence.proxy.tensormap::generic.acquire.gpu [p], 128;",
    "prefetch.const.tensormap [p];", "prefetchu.L1 [p];", "ld.global.L1::no_allocate.L2::256B.u32 t, [p];",
    "set.lt.u16.f16 h, h, h;", "pmevent.mask 0x1001;",
])  # fmt: skip
def test_what_ptxas_lets_through(code: str) -> None:
    registers = ".reg .b16 h; .reg .b32 t, s; .reg .b64 p; .reg .pred q; .reg .f32 f; .reg .f64 g;\n"
    assert sim.parse(kernel(registers + code, head=HEAD)).entries


@pytest.mark.parametrize(("code", "words"), [
    ("max.relu.u32 t, t, t;", ".relu"), ("min.abs.f32 f, f, g;", "together"), ("mad.lo.sat.s32 t, t, t, t;", ".sat"),
    (".reg .u16x2 x;", "expected a type"), (".reg .v4 .f64 x;", "128 bits"),
    (".reg .v2 .f32 x; mov.f32 x.w, f;", "no element"),
    (".reg .v2 .f32 x, y; mov.f32 x, y;", "mov"), (".reg .v2 .pred x<3>;", "no predicates"),
    (".reg .v2 .f32 x<3>; mov.f32 f, x3.x;", "x3"), (".reg .v2 .f32 x<3>; mov.v4.f32 x1, x2;", "4 elements"),
    (".reg .v2 .f32 x<3>; .reg .f32 x1;", "declared twice"), ("mov.u32 t, %tid;", "pack"),
    (".reg .b32 b; set.lt.ftz.bf16x2.bf16x2 b, b, b;", ".ftz"), (".reg .b32 b; set.lo.f16x2.f16x2 b, b, b;", ".lo"),
    (".reg .b32 b; set.lt.bf16x2.f16x2 b, b, b;", "set takes"), ("set.lt.f32.f16 f, h, h;", "no .f32"),
    (".reg .pred r; setp.lt.f16 q|r, h, h;", "one predicate"), ("cvt.pack.u16.s32 t, t, t;", ".sat"),
    ("cvt.pack.sat.u32.s32 t, t, t;", ".u16"), ("cvt.sat.pack.u16.s32 t, t, t;", "pack"),
    ("cvt.pack.sat.u16.s32.b32 t, t, t;", "b32"), ("cvt.pack.sat.u8.s32.b32 t, t, t;", "4 operands"),
    (".reg .b32 b; add.u16x2 b, b, 5;", "constant"),
    ("ld.global.f32 f, [p], e;", "2 operands"), ("ld.global.L2::cache_hint.f32 f, [p];", "3 operands"),
    ("ld.shared.L2::cache_hint.f32 f, [s], e;", ".global only"), ("ld.global.L1::nonsense.f32 f, [p];", "nonsense"),
    ("ld.global.L2::cache_hint.f32 f, [p], t;", ".u32"), ("red.shared.v2.f32.add [s], {f, g};", ".global only"),
    ("red.global.v8.f32.add [p], {f, f, f, f, f, f, f, f};", "2 or 4"), ("red.global.v2.u32.add [p], {t, t};", "takes"),
    ("redux.sync.min.f32 f, f, -1;", "redux"), ("cp.async.cg.shared.global [s], [p], 8;", ".cg for 16"),
])  # fmt: skip
def test_what_an_assembler_refuses(code: str, words: str) -> None:
    with pytest.raises(CompileError) as caught:
        sim.parse(kernel(START + code, head=HEAD))
    assert words in str(caught.value)


@pytest.mark.parametrize(("head", "code", "words"), [
    (".version 8.6\n.target sm_80\n", ".reg .b32 b; add.u16x2 b, b, b;", "sm_90"),
    (".version 7.8\n.target sm_90\n", ".reg .s32 i; min.relu.s32 i, i, i;", "8.0"),
    (".version 8.6\n.target sm_80\n", "min.xorsign.abs.f32 f, f, g;", "sm_86"),
    (".version 8.0\n.target sm_90\n", "red.global.v2.f32.add [p], {f, g};", "8.1"),
    (".version 8.6\n.target sm_100\n", "redux.sync.min.f32 f, f, -1;", "sm_100a"),
    (".version 8.8\n.target sm_100a\n", "ld.shared.v8.f32 {f, f, f, f, f, f, f, f}, [s];", "16 is the most"),
    (".version 8.8\n.target sm_100a\n", ".reg .b128 x; ld.global.v2.b128 {x, x}, [p];", "16 is the most"),
    (".version 8.2\n.target sm_90\n", ".reg .b128 x;", "8.3"),
    (".version 8.3\n.target sm_60\n", ".reg .b128 x;", "sm_70"),
])  # fmt: skip
def test_features_that_are_newer_than_the_text_says(head: str, code: str, words: str) -> None:
    with pytest.raises(CompileError) as caught:
        sim.parse(kernel(START + code, head=head + ".address_size 64\n"))
    assert words in str(caught.value)


# -- packs, places, halves that are compared ---------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "want"), [
    ("u16", [0x00050000, 0xFFFF0007, 0x7FFF0080, 0x00000000]),
    ("s16", [0x0005FFFF, 0x7FFF0007, 0x7FFF0080, 0x80008000]),
    ("u8", [0xBEEF0500, 0xBEEFFF07, 0xBEEFFF80, 0xBEEF0000]), ("s8", [0xBEEF05FF, 0xBEEF7F07, 0xBEEF7F7F, 0xBEEF8080]),
    ("u4", [0xADBEEF50, 0xADBEEFF7, 0xADBEEFFF, 0xADBEEF00]), ("s4", [0xADBEEF5F, 0xADBEEF77, 0xADBEEF77, 0xADBEEF88]),
    ("u2", [0xEADBEEFC, 0xEADBEEFF, 0xEADBEEFF, 0xEADBEEF0]), ("s2", [0xEADBEEF7, 0xEADBEEF5, 0xEADBEEF5, 0xEADBEEFA]),
])  # fmt: skip
def test_integers_are_narrowed_and_packed(kind: str, want: list[int]) -> None:
    a, b = np.array([5, 2**31 - 1, 32767, -(2**31)], np.int32), np.array([-1, 7, 128, -32769], np.int32)
    third = "" if kind[1:] == "16" else ", 0xdeadbeef"
    code = f"cvt.pack.sat.{kind}.s32{third and '.b32'} d, a, b{third};"
    got = apply(code, "b32", a, b, types=("s32", "s32")).view(np.uint32)
    assert [f"{x:08x}" for x in got] == [f"{x:08x}" for x in want]


@pytest.mark.parametrize(("mask", "base", "offset", "want"), [
    (0xAAAAAAAA, 3, 1, 3), (0xAAAAAAAA, 3, -1, 3), (0xAAAAAAAA, 2, 1, 3), (0xAAAAAAAA, 2, -1, 1), (0xAAAAAAAA, 3, 0, 3),
    (0xAAAAAAAA, 2, 0, -1), (0x80000001, 0, 2, 31), (0x80000001, 0, 3, -1), (0x80000001, 31, -2, 0), (0, 5, 1, -1),
    (0x80000001, 31, -3, -1), (0xFFFFFFFF, 31, 1, 31), (0xFFFFFFFF, 0, 32, 31), (0xFFFFFFFF, 0, -1, 0),
    (0xFF, 8, 1, -1), (0xFFFFFFFF, 31, -(2**31), -1), (0xFFFFFFFF, 31, -32, 0), (0x7, 2, -4, -1),
])  # fmt: skip
def test_the_nth_one_of_a_word(mask: int, base: int, offset: int, want: int) -> None:
    """In the lanes, and of constants."""
    a, b, c = np.array([mask] * 2, np.uint32), np.array([base] * 2, np.uint32), np.array([offset] * 2, np.int32)
    got = apply("fns.b32 d, a, b, c;", "b32", a, b, c, types=("b32", "u32", "s32")).view(np.int32)
    assert got.tolist() == [want, want]
    got = apply(f"fns.b32 d, {mask}, {base}, {offset};", "b32", a, types=("b32",)).view(np.int32)
    assert got.tolist() == [want, want]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_pairs_of_halves_are_compared_each(kind: str) -> None:
    dtype = np.dtype({"f16": np.float16, "bf16": ml_dtypes.bfloat16}[kind])
    a = np.array([[1, 2], [2, 1], [np.nan, 1], [-0.0, 0]], dtype).view(np.uint32).reshape(-1)
    b = np.array([[2, 1], [1, 2], [1, np.nan], [0, -0.0]], dtype).view(np.uint32).reshape(-1)
    one = int(np.array([1], dtype).view(np.uint16)[0])
    types = ("b32", "b32")
    for how, want in (("lt", [1, 2, 0, 0]), ("ltu", [1, 2, 3, 0]), ("nan", [0, 0, 3, 0]), ("ne", [3, 3, 0, 0])):
        for result, unit in ((f"{kind}x2", one), ("u32", 0xFFFF), ("s32", 0xFFFF)):
            got = apply(f"set.{how}.{result}.{kind}x2 d, a, b;", "b32", a, b, types=types, head=HEAD).view(np.uint32)
            assert got.tolist() == [unit * (flag & 1) + (unit * (flag >> 1) << 16) for flag in want]
        code = f"setp.{how}.{kind}x2 q|r, a, b; selp.u32 d, 1, 0, q; selp.u32 n, 2, 0, r; add.u32 d, d, n;"
        assert apply(code, "u32", a, b, types=types, head=HEAD).view(np.uint32).tolist() == want
    code = f"setp.gt.u32 q, t, 0; set.lt.xor.u32.{kind}x2 d, a, b, q;"
    got = apply(code, "b32", a, b, types=types, head=HEAD).view(np.uint32)
    assert got.tolist() == [0x0000FFFF, 0x0000FFFF, 0xFFFFFFFF, 0xFFFFFFFF]
    code = f"setp.lt.u32 q, t, 1; setp.gtu.and.{kind}x2 r, b, a, q; selp.u32 d, 1, 0, r;"
    assert apply(code, "u32", a, b, types=types, head=HEAD).view(np.uint32).tolist() == [1, 0, 0, 0]


def test_small_numbers_among_halves_that_are_compared() -> None:
    a, b = np.array([1e-7, 1e-7], np.float16).view(np.uint32), np.zeros(1, np.uint32)
    for ftz, want in (("", [0x3C003C00]), (".ftz", [0])):
        got = apply(f"set.gt{ftz}.f16x2.f16x2 d, a, b;", "b32", a, b, types=("b32", "b32"), head=HEAD)
        assert got.view(np.uint32).tolist() == want


# -- 128 bits ----------------------------------------------------------------------------------------------------------

QUAD = ".reg .b128 q1, q2, q3; .reg .b64 x, y; .reg .b32 b<4>; add.u64 p, p, o;"


def test_128_bits_are_packed_moved_stored_and_unpacked() -> None:
    """The bits of NaNs and of -0 among them, which must come through as they are."""
    out = np.tile(np.array([0x7FF0000000000001, 0x8000000000000000], np.uint64), 32)
    launch(QUAD + "ld.global.b128 q1, [p]; mov.b128 {x, y}, q1; mov.b128 q2, {y, x}; mov.b128 q3, q2;"
           "mov.b128 {b0, b1, b2, b3}, q3; add.u32 b2, b2, t; mov.b128 q3, {b0, b1, b2, b3};"
           "mov.u32 w, s; mad.lo.u32 w, t, 16, w; st.shared.b128 [w], q3; ld.shared.b128 q1, [w];"
           "st.global.b128 [p], q1;", out)  # fmt: skip
    assert out.reshape(-1, 2).tolist() == [[1 << 63, 0x7FF0000000000001 + t] for t in range(32)]


def test_128_bits_under_a_guard_through_generic_addresses() -> None:
    out = np.arange(64, dtype=np.uint64)
    launch(QUAD + "and.b32 u, t, 1; setp.eq.u32 q, u, 0; mov.u64 x, s; cvta.shared.u64 x, x; add.u64 x, x, o;"
           "ld.b128 q1, [p]; st.b128 [x], q1; @q mov.u64 x, p; mov.b64 y, 7; mov.b128 q2, {y, y}; @q mov.b128 q1, q2;"
           "st.b128 [x], q1; ld.b128 q3, [x]; st.global.b128 [p], q3;", out)  # fmt: skip
    assert out.reshape(-1, 2).tolist() == [[2 * t, 2 * t + 1] if t % 2 else [7, 7] for t in range(32)]


def test_128_bits_are_exchanged_and_compared_bit_by_bit() -> None:
    """Minus zero is not zero, and a NaN is itself: each lane puts its number in, when it finds the one before."""
    out = np.array([0x7FF8000000000000, 1 << 63, 5, 6], np.uint64)
    launch(".reg .b128 c, n, d; .reg .b64 x, y, z; .reg .pred r; mov.b64 x, 0x7ff8000000000000; cvt.u64.u32 z, t;"
           "shl.b64 y, 1, 63; setp.ne.u32 q, t, 0; sub.u64 o, z, 1; @q mov.b64 y, o; mov.b128 c, {x, y};"
           "mov.b128 n, {x, z}; atom.global.cas.b128 d, [p], c, n; mov.b128 {x, y}, d; setp.eq.u32 r, t, 0;"
           "@r atom.global.exch.b128 d, [p+16], d; mov.b128 {x, y}, d; @!r bra E;"
           "setp.ne.u64 q, x, 5; @q trap; E:", out, threads=4)  # fmt: skip
    assert out.tolist() == [0x7FF8000000000000, 3, 0x7FF8000000000000, 1 << 63]


@pytest.mark.parametrize("code", [
    "add.u64 q1, q1, q1;", "st.global.b64 [p], q1;", "mov.b128 q1, 5;", "ld.global.v2.b128 {q1, q2}, [p];",
    "ld.global.b128 x, [p];", "ld.global.f32 f, [q1];", "selp.b128 q1, q1, q2, q;", "atom.global.or.b128 q1, [p], q2;",
])  # fmt: skip
def test_what_128_bits_cannot(code: str) -> None:
    with pytest.raises(CompileError):
        sim.parse(kernel(START + QUAD + code, head=HEAD))


def test_an_access_of_128_bits_is_aligned() -> None:
    with pytest.raises(MemoryFault, match="not a multiple of 16"):
        launch(QUAD + "ld.global.b128 q1, [p+8];", np.zeros(32, np.uint64), threads=1)
