"""The arithmetic of tensor cores, on raw bits, against the rule in Python's integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tensor_core_reference import FORMATS, NAN, Rule, sum_of_products

from ptxrt.sim._instructions.tensor_cores import Kinds, multiply_add

TILES, M, N = 10, 5, 3

RULES: dict[tuple[str, int, str], Rule] = {
    ("f16", 70, "f32"): (23, 4, None, 23),
    ("f16", 70, "f16"): (23, 4, -19, 23),
    ("f16", 75, "f32"): (24, 8, None, 23),
    ("f16", 75, "f16"): (24, 8, -20, 23),
    ("f16", 80, "f32"): (24, 8, -132, 23),
    ("f16", 86, "f16"): (24, 8, -20, 23),
    ("f16", 89, "f32"): (24, 8, -132, 23),
    ("f16", 90, "f32"): (25, 16, -133, 23),
    ("f16", 90, "f16"): (25, 16, -21, 23),
    ("f16", 100, "f32"): (25, 16, -133, 23),
    ("bf16", 80, "f32"): (24, 8, -132, 23),
    ("bf16", 90, "f32"): (25, 16, -133, 23),
    ("tf32", 80, "f32"): (24, 4, -132, 23),
    ("tf32", 90, "f32"): (25, 8, -133, 23),
    ("e4m3", 89, "f32"): (13, 16, None, 13),
    ("e5m2", 89, "f16"): (13, 16, None, 13),
    ("e5m2", 120, "f32"): (25, 32, None, 23),
}
K = {"f16": 16, "bf16": 16, "tf32": 8, "e4m3": 32, "e5m2": 32}


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...], how: str) -> np.ndarray:
    """Draw bits: any, of ordinary size, tiny, few and so often cancelling, or among zeros and infinities."""
    held = "f32" if kind == "tf32" else kind
    width, fraction, bias = FORMATS[held]
    word = np.dtype(f"u{width // 8}")
    sign = rng.integers(0, 2, shape) << width - 1
    low = rng.integers(0, 1 << fraction, shape)
    top = (1 << width - 1 - fraction) - 1
    if how == "any":
        exponent = rng.integers(0, top, shape)
    elif how == "ordinary":
        exponent = rng.integers(bias - 3, bias + 3, shape)
    elif how == "tiny":
        exponent = rng.integers(0, 3, shape)
    elif how == "cancelling":
        exponent, low = rng.integers(bias - 1, bias + 2, shape), low & 1 | low & 1 << fraction - 1
    else:
        exponent = np.array([0, 0, bias, top])[rng.integers(0, 4, shape)]
        low = np.where(rng.random(shape) < 0.9, 0, low)
    return (sign | exponent << fraction | low).astype(word)


def compared(kinds: tuple[str, str, str, str], rule: Rule, arch: int, how: str, k: int) -> None:
    rng = np.random.default_rng(hash_of(kinds, arch, how))
    a, b = drawn(rng, kinds[1], (TILES, M, k), how), drawn(rng, kinds[2], (TILES, k, N), how)
    c = drawn(rng, kinds[0], (TILES, M, N), how)
    if how == "tiny":  # as large as the products, or a zero; for the floor
        c[: TILES // 2] &= np.array(1, c.dtype) << np.array(8 * c.itemsize - 1, c.dtype)
    with np.errstate(all="ignore"):
        given = multiply_add(Kinds(*kinds), a, b, c, arch)
    expected = [
        [[sum_of_products(kinds, a[t, i].tolist(), b[t, :, j].tolist(), int(c[t, i, j]), rule) for j in range(N)]
         for i in range(M)] for t in range(TILES)
    ]  # fmt: skip
    np.testing.assert_array_equal(given, np.array(expected, c.dtype))


def hash_of(*parts: object) -> int:
    return int.from_bytes(repr(parts).encode(), "little") % (1 << 61)


@pytest.mark.parametrize("how", ["any", "ordinary", "tiny", "cancelling", "special"])
@pytest.mark.parametrize(("kind", "arch", "to"), RULES)
def test_a_sum_is_that_of_the_rule(kind: str, arch: int, to: str, how: str) -> None:
    compared((to, kind, kind, to), RULES[kind, arch, to], arch, how, K[kind])


def halves(*values: float) -> np.ndarray:
    return np.array(values, np.float16).view(np.uint16)


def single(a: np.ndarray, b: np.ndarray, c: np.ndarray, kinds: Kinds, arch: int) -> np.ndarray:
    """Return the one element of a sum of products."""
    with np.errstate(all="ignore"):
        result = multiply_add(kinds, a.reshape(1, 1, -1), b.reshape(1, -1, 1), c.reshape(1, 1, 1), arch)
    return np.asarray(result[0, 0])


F32 = Kinds("f32", "f16", "f16", "f32")


@pytest.mark.parametrize(("arch", "expected"), [(70, 0.0), (80, 2.0**-24), (90, 2.0**-24 + 2.0**-25)])
def test_an_architecture_has_its_fractional_bits(arch: int, expected: float) -> None:
    # 1 - 1 leaves what is not cut off: of 2**-24 and 2**-25 all, the first alone, or nothing.
    a = halves(1, -1, 2.0**-12, 2.0**-13, *[0] * 4)
    b = halves(1, 1, 2.0**-12, 2.0**-12, *[0] * 4)
    result = single(a, b, np.zeros(1, np.uint32), F32, arch)
    assert result.view(np.float32)[0] == expected


@pytest.mark.parametrize(("arch", "last"), [(70, -42), (75, -44), (80, -44), (90, -46)])
def test_the_floor_of_an_f16_result(arch: int, last: int) -> None:
    # 2**-25 lies half-way between 0 and the least f16; what stands behind it counts down to 2**last.
    kinds = Kinds("f16", "f16", "f16", "f16")
    for exponent, expected in ((last, 2.0**-24), (last - 1, 0.0)):
        a, b = halves(2.0**-14, 2.0**-24, *[0] * 6), halves(2.0**-11, 2.0 ** (exponent + 24), *[0] * 6)
        assert single(a, b, halves(0), kinds, arch).view(np.float16)[0] == expected


@pytest.mark.parametrize(("arch", "last"), [(80, -156), (90, -158)])
@pytest.mark.parametrize("kind", ["bf16", "tf32"])
def test_the_floor_of_an_f32_result(kind: str, arch: int, last: int) -> None:
    # The least f32, less 2**exponent, plus 2**exponent.
    factors = {-156: (127, 1), -157: (255, 1), -158: (73, 7), -159: (33, 31)}
    kinds = Kinds("f32", kind, kind, "f32")
    for exponent, expected in ((last, 2.0**-149), (last - 1, 0.0)):
        x, y = factors[exponent]
        a = np.array([x * 2.0**-80, 2.0**-80, 0, 0], np.float32).view(np.uint32)
        b = np.array([y * 2.0 ** (exponent + 80), 2.0 ** (exponent + 80), 0, 0], np.float32).view(np.uint32)
        if kind == "bf16":
            a, b = ((side >> np.uint32(16)).astype(np.uint16) for side in (a, b))
        assert single(a, b, np.zeros(1, np.uint32), kinds, arch).view(np.float32)[0] == expected


@pytest.mark.parametrize(("arch", "last"), [(80, -150), (90, -151)])
def test_a_subnormal_c_counts_with_the_least_exponent(arch: int, last: int) -> None:
    # c is the least f32; the products make one more of it if 2**exponent is not cut off.
    for exponent, expected in ((last, 2.0**-148), (last - 1, 2.0**-149)):
        a = np.array([(2.0 ** (-149 - exponent) - 1) * 2.0**-80, 2.0**-80, 0, 0], np.float32)
        b = np.array([2.0 ** (exponent + 80)] * 2 + [0, 0], np.float32)
        kinds = Kinds("f32", "tf32", "tf32", "f32")
        result = single(a.view(np.uint32), b.view(np.uint32), np.ones(1, np.uint32), kinds, arch)
        assert result.view(np.float32)[0] == expected


@pytest.mark.parametrize("least", [-0.0, -(2.0**-24)])
def test_a_zero_is_positive_even_where_a_negative_sum_becomes_one(least: float) -> None:
    a, b = halves(*[least] + [-0.0] * 7), halves(*[2.0**-10] * 8)
    assert single(a, b, halves(-0.0), Kinds("f16", "f16", "f16", "f16"), 90) == 0
    a, b = (np.array([x * 2.0**-70] + [-0.0] * 7, np.float32).view(np.uint32) for x in (least, 2.0**-10))
    c = np.array([1 << 31], np.uint32)
    assert single(a, b, c, Kinds("f32", "tf32", "tf32", "f32"), 90) == 0


def test_an_f32_sum_that_is_too_large_is_infinite() -> None:
    a, b = (np.array([2.0**64, 0, 0, 0], np.float32).view(np.uint32) for _ in range(2))
    most = np.array([0x7F7FFFFF], np.uint32)
    kinds = Kinds("f32", "tf32", "tf32", "f32")
    assert single(a, b, np.zeros(1, np.uint32), kinds, 90) == 0x7F800000
    assert single(a ^ np.uint32(1 << 31), b, most, kinds, 90) == 0xF3800000
    assert single(np.zeros(4, np.uint32), b, most, kinds, 90) == most[0]


def test_significands_of_products_are_not_normalised() -> None:
    # 1.5 * 1.5 = 2.25 counts with exponent 0, so that 2**-25 beside it is not cut.
    a, b = halves(1.5, -1.5, 2.0**-12), halves(1.5, 1.5, 2.0**-13)
    result = single(a, b, np.zeros(1, np.uint32), F32, 90)
    assert result.view(np.float32)[0] == 2.0**-25


@pytest.mark.parametrize(("arch", "expected"), [(80, 2.0**-24), (90, 0.0)])
def test_a_long_sum_goes_through_the_results_of_its_steps(arch: int, expected: float) -> None:
    # On sm_80 the large terms have cancelled before the ninth product comes.
    a = halves(64, -64, *[0] * 6, 2.0**-12, *[0] * 7)
    b = halves(64, 64, *[0] * 6, 2.0**-12, *[0] * 7)
    assert single(a, b, np.zeros(1, np.uint32), F32, arch).view(np.float32)[0] == expected


@pytest.mark.parametrize(
    ("kinds", "c", "sums"),
    [
        (Kinds("f16", "f16", "f16", "f32"), "f32", "f32"),
        (Kinds("f32", "f16", "f16", "f16"), "f16", "f32"),
    ],
)
def test_where_c_or_d_is_f32_so_are_the_sums(kinds: Kinds, c: str, sums: str) -> None:
    rng = np.random.default_rng(1)
    a, b = (drawn(rng, "f16", shape, "any") for shape in ((9, 4, 16), (9, 16, 3)))
    addend = drawn(rng, c, (9, 4, 3), "ordinary")
    wide = addend.view(np.float16).astype(np.float32).view(np.uint32) if c == "f16" else addend
    with np.errstate(all="ignore"):
        given = multiply_add(kinds, a, b, addend, 90)
        expected = multiply_add(F32, a, b, wide, 90)
        if kinds.d == "f16":
            floats = np.ascontiguousarray(expected).view(np.float32).astype(np.float16)
            expected = np.where(np.isnan(floats), np.uint16(NAN["f16"]), floats.view(np.uint16))
    np.testing.assert_array_equal(given, expected)


@pytest.mark.parametrize(("to", "k"), [("f32", 32), ("f16", 32), ("f32", 16)])
def test_8_bit_floats_on_sm_90_are_two_sums_of_halves_and_c_behind(to: str, k: int) -> None:
    rng = np.random.default_rng(2)
    a, b = drawn(rng, "e4m3", (40, 4, k), "any"), drawn(rng, "e5m2", (40, k, 3), "any")
    a[:20] &= 0x87  # subnormal, where f16 has normal numbers
    c = drawn(rng, to, (40, 4, 3), "ordinary")
    with np.errstate(all="ignore"):
        given = multiply_add(Kinds(to, "e4m3", "e5m2", to), a, b, c, 90)
    x = a.view(ml_dtypes.float8_e4m3fn).astype(np.float16).view(np.uint16)
    y = b.view(ml_dtypes.float8_e5m2).astype(np.float16).view(np.uint16)
    floats = np.dtype(f"f{c.itemsize}")
    for t, i, j in np.ndindex(c.shape):
        total = 0
        for part in (0, 2):  # k mod 4 is 0 or 1, then 2 or 3
            at = [x for x in range(k) if x % 4 in (part, part + 1)]
            rule = RULES["f16", 90, to]
            total = sum_of_products((to, "f16", "f16", to), x[t, i, at].tolist(), y[t, at, j].tolist(), total, rule)
        expected = np.array([total], c.dtype).view(floats) + c[t, i, j : j + 1].view(floats)
        bits = NAN[to] if np.isnan(expected[0]) else int(expected.view(c.dtype)[0])
        assert int(given[t, i, j]) == bits


def test_m8n8k4_on_sm_80_adds_in_f32_to_nearest() -> None:
    one, tiny = 1.0, 2.0**-12
    a, b = halves(tiny, one, 0, 0), halves(tiny * 1.5, one, 0, 0)
    chain = single(a, b, np.zeros(1, np.uint32), F32, 80)
    assert chain.view(np.float32)[0] == 1 + 2.0**-23  # 1 + 0.75 of the last bit
    # Of f16, c comes to the first two products before the last two do.
    a, b = halves(one, 0, one, 0), halves(2.0**15, 0, -(2.0**15), 0)
    c = halves(2.0**-10)
    assert single(a, b, c, Kinds("f16", "f16", "f16", "f16"), 80).view(np.float16)[0] == 0
    assert single(a, b, c.view(np.float16).astype(np.float32).view(np.uint32), F32, 80).view(np.float32)[0] == 2.0**-10


def test_m8n8k4_of_nan_is_the_canonical_one() -> None:
    a, b = halves(np.inf, 0, 0, 0), halves(0, 0, 0, 0)
    assert single(a, b, np.zeros(1, np.uint32), F32, 80)[0] == NAN["f32"]
    assert single(a, b, halves(0), Kinds("f16", "f16", "f16", "f16"), 80)[0] == NAN["f16"]


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
def test_f64_is_a_chain_of_fused_multiply_adds(rounding: str) -> None:
    from ptxrt.sim._instructions.exact import fma64

    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((6, 4, 8)), rng.standard_normal((6, 8, 3))
    c = rng.standard_normal((6, 4, 3))
    kinds = Kinds("f64", "f64", "f64", "f64", rounding=rounding)
    bits = [x.view(np.uint64) for x in (a, b, c)]
    given = multiply_add(kinds, bits[0], bits[1], bits[2], 90).view(np.float64)
    for t, i, j in np.ndindex(c.shape):
        total = c[t, i, j : j + 1]
        for k in range(8):
            total = fma64(a[t, i, k : k + 1], b[t, k, j : j + 1], total, rounding)
        assert given[t, i, j] == total[0]


def test_of_several_nan_of_f64_one_comes_through() -> None:
    nan = [0x7FF8000000000000 + number for number in range(4)]
    one = 0x3FF0000000000000
    kinds = Kinds("f64", "f64", "f64", "f64")
    for a, b, c, expected in (
        ((nan[0], nan[1]), (one, one), one, nan[0]),  # the sum so far before a
        ((one, one), (nan[0], nan[1]), one, nan[1]),  # b before the sum so far
        ((nan[0], one), (nan[1], one), nan[2], nan[1]),
        ((nan[0], one), (one, one), nan[2], nan[2]),
        ((nan[1] - (1 << 51), one), (one, one), one, nan[1]),  # quiet at the end
    ):
        given = single(np.array(a, np.uint64), np.array(b, np.uint64), np.array(c, np.uint64), kinds, 90)
        assert given.item() == expected


def test_an_s32_sum_wraps_or_saturates() -> None:
    a, b = np.full((1, 1, 16), 127, np.int8), np.full((1, 16, 1), -128, np.int8)
    c = np.full((1, 1, 1), -(1 << 31), np.int32)
    kinds = Kinds("s32", "s8", "s8", "s32")
    assert multiply_add(kinds, a, b, c, 90)[0, 0, 0] == (1 << 31) - 16 * 127 * 128
    kinds = Kinds("s32", "s8", "s8", "s32", satfinite=True)
    assert multiply_add(kinds, a, b, c, 90)[0, 0, 0] == -(1 << 31)
    assert multiply_add(kinds, a, -b - 1, np.full((1, 1, 1), (1 << 31) - 1, np.int32), 90)[0, 0, 0] == (1 << 31) - 1


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "e4m3"])
def test_each_row_of_a_may_have_a_matrix_of_its_own(kind: str) -> None:
    rng = np.random.default_rng(4)
    a = drawn(rng, kind, (7, M, 16), "ordinary")
    b = drawn(rng, kind, (7, M, 16, N), "ordinary")
    c = drawn(rng, "f32", (7, M, N), "ordinary")
    kinds = Kinds("f32", kind, kind, "f32")
    given = multiply_add(kinds, a, b, c, 90)
    for row in range(M):
        one = multiply_add(kinds, a[:, row : row + 1], b[:, row], c[:, row : row + 1], 90)
        np.testing.assert_array_equal(given[:, row], one[:, 0])
