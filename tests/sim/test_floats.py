"""Floating-point instructions against exact fractions: each rounds once, in its direction."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import apply

import ptxrt
from ptxrt.sim._instructions.exact import fma64, round_fraction
from ptxrt.sim._instructions.rounding import fma32, narrow

# Signalling NaN and overflow in the tests' own conversions.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

F32_EDGES = np.array(
    [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x3F800000, 0xBF800000,
     0x3F800001, 0x3F7FFFFF, 0x40490FDB, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345,
     0x34000000, 0x33800000, 0x4B800000, 0x4B000001, 0x1F800000, 0x5F800000, 0x20000001], np.uint32
).view(np.float32)  # fmt: skip
F64_EDGES = np.array(
    [0.0, -0.0, 5e-324, -5e-324, 2.2250738585072014e-308, 2.225073858507201e-308, 1.0, -1.0, 1 + 2**-52, 1 - 2**-53,
     math.pi, 1.7976931348623157e308, -1.7976931348623157e308, math.inf, -math.inf, math.nan, 2.0**-53, 2.0**53, 1e-200,
     1e200, -3e-160, 1e160, 2.0**-1000, 2.0**1000]
)  # fmt: skip
DIRECTIONS = ["rn", "rz", "rm", "rp"]


def round_to(value: Fraction, kind: np.dtype, direction: str) -> float:
    """Round an exact number to a format by hand."""
    info = ml_dtypes.finfo(kind)
    digits, least, top = info.nmant + 1, info.minexp - info.nmant, info.maxexp
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    while Fraction(2) ** exponent > size:
        exponent -= 1
    last = max(exponent - digits + 1, least)
    scaled = size / Fraction(2) ** last
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    negative = value < 0
    if direction == "rn":
        whole += rest > Fraction(1, 2) or (rest == Fraction(1, 2) and whole % 2 == 1)
    elif rest:
        whole += direction == ("rm" if negative else "rp")
    result = Fraction(whole) * Fraction(2) ** last
    if result >= Fraction(2) ** top:
        if direction in ("rn", "rm" if negative else "rp"):
            return -math.inf if negative else math.inf
        result = (Fraction(2) ** digits - 1) * Fraction(2) ** (top - digits)
    return -float(result) if negative else float(result)


def same(got: np.ndarray, want: list[float], label: str, rows: Sequence[tuple[float, ...]]) -> None:
    bad = []
    for g, w, row in zip(got.astype(np.float64).tolist(), want, rows, strict=True):
        if math.isnan(w):
            fine = math.isnan(g)
        else:
            fine = g == w and math.copysign(1, g) == math.copysign(1, w)
        if not fine:
            bad.append((row, g, w))
    assert not bad, (label, len(bad), bad[:4])


def exact_fma(a: float, b: float, c: float, kind: np.dtype, direction: str) -> float:
    if math.isnan(a) or math.isnan(b) or math.isnan(c):
        return math.nan
    if math.isinf(a) or math.isinf(b):
        product = a * b
        return product + c
    if math.isinf(c):
        return c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:
        p_sign, c_sign = math.copysign(1, a) * math.copysign(1, b), math.copysign(1, c)
        if (a == 0 or b == 0) and c == 0 and p_sign == c_sign:
            return math.copysign(0.0, c)
        return -0.0 if direction == "rm" else 0.0
    return math.copysign(round_to(total, kind, direction), -1 if total < 0 else 1)


def triples(kind: np.dtype, edges: np.ndarray, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    n = 600
    raw = [rng.integers(0, 2**63, n, dtype=np.uint64) * 2 + 1 for _ in range(3)]
    near = []
    for r in raw:
        words = (r >> np.uint64(64 - 8 * kind.itemsize)).astype(f"u{kind.itemsize}")
        near.append(words.view(kind))
    # Cancellation and halfway cases: c close to -a*b, or many orders below the last bit of it.
    a = rng.standard_normal(n).astype(kind)
    b = rng.standard_normal(n).astype(kind)
    with np.errstate(all="ignore"):
        c = (-(a.astype(np.float64) * b.astype(np.float64))).astype(kind)
        tiny = (c.astype(np.float64) * 2.0 ** -rng.integers(0, 60, n)).astype(kind)
    pick = rng.integers(0, len(edges), (3, 900))
    return [
        np.concatenate([near[0], a, a, edges[pick[0]]]),
        np.concatenate([near[1], b, np.ones(n, kind), edges[pick[1]]]),
        np.concatenate([near[2], c, tiny, edges[pick[2]]]),
    ]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fma_f32_rounds_once(direction: str) -> None:
    kind = np.dtype(np.float32)
    rows = triples(kind, F32_EDGES)
    got = apply(f"fma.{direction}.f32 d, a, b, c;", "f32", *rows, types=("f32",) * 3).view(kind)
    values = list(zip(*[r.astype(np.float64).tolist() for r in rows], strict=True))
    same(got, [exact_fma(x, y, z, kind, direction) for x, y, z in values], f"fma.{direction}.f32", values)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_fma_f64_rounds_once(direction: str) -> None:
    kind = np.dtype(np.float64)
    rows = triples(kind, F64_EDGES)
    got = apply(f"fma.{direction}.f64 d, a, b, c;", "f64", *rows, types=("f64",) * 3).view(kind)
    values = list(zip(*[r.tolist() for r in rows], strict=True))
    same(got, [exact_fma(x, y, z, kind, direction) for x, y, z in values], f"fma.{direction}.f64", values)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_fma_of_halves_rounds_once(name: str) -> None:
    kind = np.dtype(np.float16 if name == "f16" else ml_dtypes.bfloat16)
    edges = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7F80, 0xFC00, 0x7E00, 0x3F80, 0x80],
                     np.uint16).view(kind)  # fmt: skip
    rows = triples(kind, edges)
    got = apply(f"fma.rn.{name} d, a, b, c;", name, *rows, types=(name,) * 3).view(kind)
    values = list(zip(*[r.astype(np.float64).tolist() for r in rows], strict=True))
    same(got, [exact_fma(x, y, z, kind, "rn") for x, y, z in values], f"fma.rn.{name}", values)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_sums_and_products_round_in_their_direction(name: str, direction: str) -> None:
    kind = np.dtype({"f32": np.float32, "f64": np.float64}[name])
    a, _, c = triples(kind, F32_EDGES if name == "f32" else F64_EDGES, 1)
    b = triples(kind, F32_EDGES if name == "f32" else F64_EDGES, 2)[1]
    values = list(zip(a.astype(np.float64).tolist(), b.astype(np.float64).tolist(), strict=True))
    got = apply(f"mul.{direction}.{name} d, a, b;", name, a, b, types=(name,) * 2).view(kind)
    minus = [math.copysign(0.0, math.copysign(1, x) * math.copysign(1, y)) for x, y in values]
    want = [exact_fma(x, y, z, kind, direction) for (x, y), z in zip(values, minus, strict=True)]
    same(got, want, f"mul.{direction}.{name}", values)
    values = list(zip(a.astype(np.float64).tolist(), c.astype(np.float64).tolist(), strict=True))
    got = apply(f"add.{direction}.{name} d, a, b;", name, a, c, types=(name,) * 2).view(kind)
    same(got, [exact_fma(1.0, x, y, kind, direction) for x, y in values], f"add.{direction}.{name}", values)
    got = apply(f"sub.{direction}.{name} d, a, b;", name, a, c, types=(name,) * 2).view(kind)
    same(got, [exact_fma(1.0, x, -y, kind, direction) for x, y in values], f"sub.{direction}.{name}", values)


def exact_div(a: float, b: float, kind: np.dtype, direction: str) -> float:
    if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b) or a == 0 or b == 0:
        with np.errstate(all="ignore"):
            return float(np.float64(a) / np.float64(b))
    q = Fraction(a) / Fraction(b)
    return math.copysign(round_to(q, kind, direction), -1 if q < 0 else 1)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_quotients_and_roots_round_in_their_direction(name: str, direction: str) -> None:
    kind = np.dtype({"f32": np.float32, "f64": np.float64}[name])
    edges = F32_EDGES if name == "f32" else F64_EDGES
    a = triples(kind, edges, 3)[0]
    b = triples(kind, edges, 4)[1]
    values = list(zip(a.astype(np.float64).tolist(), b.astype(np.float64).tolist(), strict=True))
    got = apply(f"div.{direction}.{name} d, a, b;", name, a, b, types=(name,) * 2).view(kind)
    same(got, [exact_div(x, y, kind, direction) for x, y in values], f"div.{direction}.{name}", values)
    got = apply(f"rcp.{direction}.{name} d, a;", name, a, types=(name,)).view(kind)
    same(got, [exact_div(1.0, x, kind, direction) for x, _ in values], f"rcp.{direction}.{name}", values)
    got = apply(f"sqrt.{direction}.{name} d, a;", name, a, types=(name,)).view(kind)
    for x, root in zip(a.astype(np.float64).tolist(), got.astype(np.float64).tolist(), strict=True):
        if x < 0 or math.isnan(x):
            assert math.isnan(root)
        elif x == 0 or math.isinf(x):
            assert root == x
        else:
            square = Fraction(root) ** 2
            up = float(np.nextafter(kind.type(root), kind.type(np.inf)))
            down = float(np.nextafter(kind.type(root), kind.type(0)))
            if direction in ("rz", "rm"):
                assert square <= Fraction(x) < Fraction(up) ** 2
            elif direction == "rp":
                assert Fraction(down) ** 2 < Fraction(x) <= square
            else:
                assert ((Fraction(down) + Fraction(root)) / 2) ** 2 <= Fraction(x)
                assert Fraction(x) <= ((Fraction(up) + Fraction(root)) / 2) ** 2


@given(st.floats(width=64), st.floats(width=64), st.floats(width=64))
@settings(max_examples=300, deadline=None)
def test_fma64_of_any_numbers(a: float, b: float, c: float) -> None:
    with np.errstate(all="ignore"):
        got = fma64(np.array([a]), np.array([b]), np.array([c]))
    same(got, [exact_fma(a, b, c, np.dtype(np.float64), "rn")], "fma64", [(a, b, c)])


@given(st.floats(width=32), st.floats(width=32), st.floats(width=32), st.sampled_from(DIRECTIONS))
@settings(max_examples=300, deadline=None)
def test_fma32_of_any_numbers(a: float, b: float, c: float, direction: str) -> None:
    with np.errstate(all="ignore"):
        x, y, z = (np.array([value], np.float32) for value in (a, b, c))
        got = fma32(x, y, z, direction)
    same(got, [exact_fma(a, b, c, np.dtype(np.float32), direction)], "fma32", [(a, b, c)])


@given(st.floats(width=64, allow_nan=False, allow_infinity=False), st.sampled_from(DIRECTIONS),
       st.sampled_from([np.float32, np.float16, ml_dtypes.bfloat16]))  # fmt: skip
@settings(max_examples=300, deadline=None)
def test_narrowing_of_any_number(x: float, direction: str, kind: type) -> None:
    with np.errstate(all="ignore"):
        got = narrow(np.array([x]), np.dtype(kind), direction)
    want = round_to(Fraction(x), np.dtype(kind), direction)
    same(got, [math.copysign(want, x)], "narrow", [(x,)])


@given(st.fractions(max_denominator=10**9))
@settings(max_examples=100, deadline=None)
def test_round_fraction_agrees_with_python(x: Fraction) -> None:
    assert round_fraction(x) == float(x)


def test_the_smallest_double_rounding_case_of_fma() -> None:
    # 1 + 2**-24 + 2**-60: in float64 the last term vanishes and the rest is a tie to even.
    a = np.array([1.0], np.float32)
    c = np.array([2.0**-24], np.float32)
    b = np.array([1.0 + 2.0**-23], np.float32)
    exact = Fraction(1) + Fraction(2) ** -23 + Fraction(2) ** -24
    got = apply("fma.rn.f32 d, a, b, c;", "f32", a, b, c, types=("f32",) * 3).view(np.float32)
    assert float(got[0]) == round_to(exact, np.dtype(np.float32), "rn")
    a = np.array([1.0 + 2.0**-12], np.float32)
    c = np.array([2.0**-60], np.float32)
    got = apply("fma.rn.f32 d, a, a, c;", "f32", a, a, c, types=("f32",) * 3).view(np.float32)
    assert float(got[0]) == 1.0 + 2.0**-11 + 2.0**-23


def test_nan_is_canonical_and_denormals_are_preserved() -> None:
    a = np.array([0x7FC12345, 0x7F800000, 0x00000003], np.uint32).view(np.float32)
    b = np.array([0x3F800000, 0xFF800000, 0x00000001], np.uint32).view(np.float32)
    got = apply("add.f32 d, a, b;", "f32", a, b, types=("f32", "f32")).view(np.uint32)
    assert got.tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 4]
    got = apply("add.ftz.f32 d, a, b;", "f32", a, b, types=("f32", "f32")).view(np.uint32)
    assert got.tolist() == [0x7FFFFFFF, 0x7FFFFFFF, 0]


def test_sat_clamps_and_turns_nan_into_zero() -> None:
    a = np.array([-1.0, 0.25, 7.0, np.nan, -0.0], np.float32)
    got = apply("add.sat.f32 d, a, 0f00000000;", "f32", a, types=("f32",)).view(np.uint32)
    assert got.tolist() == np.array([0, 0.25, 1, 0, 0], np.float32).view(np.uint32).tolist()


def test_min_and_max_prefer_numbers_and_order_zeros() -> None:
    nan, inf = math.nan, math.inf
    a = np.array([nan, 1.0, nan, -0.0, 0.0, inf, 2.0], np.float32)
    b = np.array([1.0, nan, nan, 0.0, -0.0, 3.0, -5.0], np.float32)
    low = apply("min.f32 d, a, b;", "f32", a, b, types=("f32", "f32"))
    high = apply("max.f32 d, a, b;", "f32", a, b, types=("f32", "f32"))
    assert low.view(np.uint32)[2] == high.view(np.uint32)[2] == 0x7FFFFFFF
    same(low.view(np.float32), [1, 1, nan, -0.0, -0.0, 3, -5], "min", list(zip(a, b, strict=True)))
    same(high.view(np.float32), [1, 1, nan, 0.0, 0.0, inf, 2], "max", list(zip(a, b, strict=True)))
    low = apply("min.NaN.f32 d, a, b;", "f32", a, b, types=("f32", "f32"))
    same(low.view(np.float32), [nan, nan, nan, -0.0, -0.0, 3, -5], "min.NaN", list(zip(a, b, strict=True)))


def test_comparisons_know_the_unordered() -> None:
    nan = math.nan
    a = np.array([1.0, 2.0, nan, 1.0], np.float32)
    b = np.array([1.0, 1.0, 1.0, nan], np.float32)
    want = {
        "eq": [1, 0, 0, 0], "ne": [0, 1, 0, 0], "lt": [0, 0, 0, 0], "le": [1, 0, 0, 0], "gt": [0, 1, 0, 0],
        "ge": [1, 1, 0, 0], "equ": [1, 0, 1, 1], "neu": [0, 1, 1, 1], "ltu": [0, 0, 1, 1], "leu": [1, 0, 1, 1],
        "gtu": [0, 1, 1, 1], "geu": [1, 1, 1, 1], "num": [1, 1, 0, 0], "nan": [0, 0, 1, 1],
    }  # fmt: skip
    for name, flags in want.items():
        got = apply(f"setp.{name}.f32 q, a, b; selp.u32 d, 1, 0, q;", "u32", a, b, types=("f32", "f32"))
        assert got.view(np.uint32).tolist() == flags, name


@pytest.mark.parametrize("rounding", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("to", ["s32", "u32", "s64", "u64", "s16", "u8"])
def test_float_to_integer_saturates(rounding: str, to: str) -> None:
    x = np.array([0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.99, -3.99, 127.5, 255.5, 256.0, 2.0**31,
                  -(2.0**31) - 1, 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 1e30, -1e30, math.inf, -math.inf, math.nan,
                  4294967295.0, 2.0**53 + 2])  # fmt: skip
    whole: dict[str, Callable[[float], int]] = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}
    bits = int(to[1:])
    low, high = (0, (1 << bits) - 1) if to[0] == "u" else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)

    def expect(v: float, source: str) -> int:
        if math.isnan(v):
            # What an H200 answers; the manual says 0 for all.
            top = 1 << (bits - 1) if source == "f64" or bits == 64 else 0
            return top if to[0] == "u" or not top else -top
        if math.isinf(v):
            return high if v > 0 else low
        return min(max(whole[rounding](v), low), high)

    wide = to if bits > 8 else "u16"
    for source, kind in (("f64", np.float64), ("f32", np.float32)):
        values = x.astype(kind)
        got = apply(f"cvt.{rounding}.{to}.{source} d, a;", wide, values, types=(source,))
        read = got.view(("i" if to[0] == "s" else "u") + str(int(wide[1:]) // 8)).tolist()
        assert read == [expect(float(v), source) for v in values], (to, source)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_integer_to_float_rounds_once(direction: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [rng.integers(-(2**63), 2**63 - 1, 300), [0, 1, -1, 2**24 + 1, 2**53 + 1, -(2**53) - 1, 2**63 - 1]]
    )
    for name, kind in (("f32", np.float32), ("f64", np.float64)):
        for source, values in (("s64", x), ("u64", x.view(np.uint64)), ("s32", x.astype(np.int32))):
            got = apply(f"cvt.{direction}.{name}.{source} d, a;", name, values, types=(source,)).view(kind)
            want = [round_to(Fraction(v), np.dtype(kind), direction) for v in values.tolist()]
            same(got, want, f"cvt.{direction}.{name}.{source}", [(v,) for v in values.tolist()])


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_narrowing_conversions(direction: str) -> None:
    x = triples(np.dtype(np.float64), F64_EDGES, 5)[0]
    x = np.concatenate(
        [x, np.random.default_rng(0).standard_normal(500) * 10.0 ** np.random.default_rng(1).integers(-9, 5, 500)]
    )
    y = x.astype(np.float32)
    for code, source, values, kind in (
        (f"cvt.{direction}.f32.f64 d, a;", "f64", x, np.float32),
        (f"cvt.{direction}.f16.f32 d, a;", "f32", y, np.float16),
    ):
        name = "f32" if kind is np.float32 else "f16"
        got = apply(code, name, values, types=(source,)).view(kind)
        rows = [(float(v),) for v in values]

        def expect(v: float, kind: type = kind) -> float:
            return math.copysign(round_to(Fraction(v), np.dtype(kind), direction), v) if math.isfinite(v) else v

        want = [expect(v) for (v,) in rows]
        same(got, want, code, rows)


def test_widening_is_exact_down_to_the_sign_of_zero() -> None:
    half = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    for source, kind in (("f16", np.dtype(np.float16)), ("bf16", np.dtype(ml_dtypes.bfloat16))):
        values = half.view(kind)
        rows = [(float(v),) for v in values]
        got = apply(f"cvt.f32.{source} d, a;", "f32", values, types=(source,)).view(np.float32)
        same(got, [v for (v,) in rows], source, rows)
    single = triples(np.dtype(np.float32), F32_EDGES)[0]
    got = apply("cvt.f64.f32 d, a;", "f64", single, types=("f32",)).view(np.float64)
    same(got, single.astype(np.float64).tolist(), "f64", [(float(v),) for v in single])
    got = apply("cvt.f64.f16 d, a;", "f64", half.view(np.float16), types=("f16",)).view(np.float64)
    same(got, half.view(np.float16).astype(np.float64).tolist(), "f64", [(float(v),) for v in half])


def test_flushing_halves_and_clamping_below() -> None:
    a = np.array([0x0001, 0x83FF, 0x0400, 0xFE01], np.uint16)
    one = np.array([0x3C00], np.uint16).repeat(4)
    got = apply("mul.ftz.f16 d, a, b;", "f16", a, one, types=("f16", "f16")).view(np.uint16)
    assert got.tolist() == [0, 0x8000, 0x0400, 0x7FFF]
    zero = np.array([0x8000], np.uint16).repeat(4)
    got = apply("fma.rn.relu.f16 d, a, b, c;", "f16", a, one, zero, types=("f16",) * 3).view(np.uint16)
    assert got.tolist() == [1, 0, 0x0400, 0x7FFF]
    got = apply("neg.f16 d, a;", "f16", a, types=("f16",)).view(np.uint16)
    assert got.tolist() == [0x8001, 0x03FF, 0x8400, 0x7FFF]


def test_bfloat16_and_pairs() -> None:
    x = np.array([1.0, 1.00390625, 1.0117188, 3e38, -2.5, math.nan], np.float32)
    got = apply("cvt.rn.bf16.f32 d, a;", "bf16", x, types=("f32",)).view(ml_dtypes.bfloat16)
    same(got, x.astype(ml_dtypes.bfloat16).astype(float).tolist(), "cvt", [(v,) for v in x])
    got = apply("cvt.rn.f16x2.f32 d, a, b;", "b32", x, x + 1, types=("f32", "f32")).view(np.float16).reshape(-1, 2)
    with np.errstate(all="ignore"):
        same(got[:, 1], x.astype(np.float16).tolist(), "upper", [(v,) for v in x])
        same(got[:, 0], (x + 1).astype(np.float16).tolist(), "lower", [(v,) for v in x])
    a = np.array([1, 2, 3, 4], np.float16)
    got = apply("add.f16x2 d, a, b;", "b32", a.view(np.uint32), a.view(np.uint32), types=("b32", "b32"))
    assert got.view(np.float16).tolist() == [2, 4, 6, 8]


def test_integral_rounding_of_floats() -> None:
    x = np.array([0.5, 1.5, -0.5, 2.7, -2.7, 1e20, math.inf], np.float32)
    for rounding, f in (("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)):
        got = apply(f"cvt.{rounding}.f32.f32 d, a;", "f32", x, types=("f32",)).view(np.float32)
        same(got, f(x).tolist(), rounding, [(v,) for v in x])


def test_approximations() -> None:
    x = np.array([0.1, 0.5, 1.0, 2.0, 3.7, 10.0, 1e-40, 126.5], np.float32)
    wide = x.astype(np.float64)
    for name, f in (("ex2", np.exp2), ("lg2", np.log2), ("sin", np.sin), ("cos", np.cos), ("tanh", np.tanh),
                    ("rsqrt", lambda v: 1 / np.sqrt(v)), ("sqrt", np.sqrt), ("rcp", lambda v: 1 / v)):  # fmt: skip
        got = apply(f"{name}.approx.f32 d, a;", "f32", x, types=("f32",)).view(np.float32)
        with np.errstate(all="ignore"):
            np.testing.assert_allclose(
                got, f(wide).astype(np.float32), rtol=2.0**-22, atol=2.0**-16 * (name in ("sin", "cos"))
            )
    got = apply("ex2.approx.f32 d, a;", "f32", np.array([-math.inf, 0, math.inf], np.float32), types=("f32",))
    assert got.view(np.float32).tolist() == [0, 1, math.inf]
    got = apply("div.full.f32 d, a, 0f40400000;", "f32", x, types=("f32",)).view(np.float32)
    np.testing.assert_allclose(got, x / np.float32(3), rtol=2.0**-22)


def test_signs_and_properties() -> None:
    a = np.array([-1.5, 0.0, math.inf, math.nan, 1e-40], np.float32)
    assert apply("neg.f32 d, a;", "f32", a, types=("f32",)).view(np.float32)[0] == 1.5
    assert apply("abs.f32 d, a;", "f32", a, types=("f32",)).view(np.float32)[0] == 1.5
    b = np.abs(a)
    assert np.signbit(apply("copysign.f32 d, a, b;", "f32", a, b, types=("f32", "f32")).view(np.float32)[0])
    for name, flags in (("finite", [1, 1, 0, 0, 1]), ("infinite", [0, 0, 1, 0, 0]), ("notanumber", [0, 0, 0, 1, 0]),
                        ("subnormal", [0, 0, 0, 0, 1]), ("normal", [1, 1, 0, 0, 0]),
                        ("number", [1, 1, 1, 0, 1])):  # fmt: skip
        got = apply(f"testp.{name}.f32 q, a; selp.u32 d, 1, 0, q;", "u32", a, types=("f32",))
        assert got.view(np.uint32).tolist() == flags, name


@pytest.mark.parametrize(
    ("line", "operands", "result"),
    [
        # As an H200 answers: tiny before the range limits the rounding is zero, though it would round up to the least.
        ("mul.rn.ftz.f32 %d, %a, %b;", (0x3F7FFFFF, 0x00800000, 0), 0x00000000),
        ("mul.rp.ftz.f32 %d, %a, %b;", (0x3F7FFFFF, 0x00800000, 0), 0x00000000),
        ("mul.rn.ftz.f32 %d, %a, %b;", (0xBF7FFFFF, 0x00800000, 0), 0x80000000),
        ("mul.rn.ftz.f32 %d, %a, %b;", (0x3F800000, 0x00800000, 0), 0x00800000),
        ("fma.rn.ftz.f32 %d, %a, %b, %c;", (0x1A000000, 0x9A000000, 0x00800000), 0x00000000),
        ("rcp.rm.ftz.f32 %d, %a;", (0xFE800001, 0, 0), 0x80000000),
        ("rcp.rp.ftz.f32 %d, %a;", (0x7E800001, 0, 0), 0x00000000),
    ],
)
def test_ftz_looks_at_the_result_before_the_range_limits_its_rounding(line: str, operands: Any, result: int) -> None:
    text = (
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 o, .param .b32 a, .param .b32 b, "
        ".param .b32 c) { .reg .b64 %p; .reg .b32 %a, %b, %c, %d; ld.param.u64 %p, [o]; ld.param.b32 %a, [a]; "
        f"ld.param.b32 %b, [b]; ld.param.b32 %c, [c]; {line} st.global.b32 [%p], %d; ret; }}"
    )
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text), "k", "u32* o, u32 a, u32 b, u32 c", "sim:0")
    out = ptxrt.zeros(1, np.uint32, "sim:0")
    kernel.launch(1, 1, out, *operands)
    assert out.to_host()[0] == result, hex(int(out.to_host()[0]))
