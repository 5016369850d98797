"""Integer instructions against Python's integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from machine import apply

EDGES = [0, 1, 2, 3, 5, 7, 31, 32, 33, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x12345678, 0x7FFFFFFF,
         0x80000000, 0xDEADBEEF, 0xFFFFFFFF, 0x100000000, 0x123456789ABCDEF0, 0x7FFFFFFFFFFFFFFF, 0x8000000000000000,
         0xFFFFFFFFFFFFFFFF]  # fmt: skip


def operands(bits: int, count: int) -> list[np.ndarray]:
    mask = (1 << bits) - 1
    edges = sorted({e & mask for e in EDGES})
    grid = np.array(np.meshgrid(*[np.array(edges, np.uint64)] * min(count, 2))).reshape(min(count, 2), -1)
    rng = np.random.default_rng(count)
    extra = rng.integers(0, 1 << 63, (count, 200), dtype=np.uint64) * 2 & np.uint64(mask)
    rows = [np.concatenate([grid[i] if i < 2 else grid[0][::-1], extra[i]]) for i in range(count)]
    return [row.astype(f"u{bits // 8}") for row in rows]


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def check(code: str, kind: str, count: int, expected: Callable[..., int], result: str | None = None,
          types: tuple[str, ...] | None = None, inputs: list[np.ndarray] | None = None) -> None:  # fmt: skip
    bits = int(kind[1:])
    inputs = inputs or operands(bits, count)
    types = types or (kind,) * count
    result = result or kind
    got = apply(code, result, *inputs, types=types).view(f"u{int(result[1:]) // 8}")
    read = [
        [signed(int(v), int(t[1:])) if t[0] == "s" else int(v) for v in column]
        for column, t in zip(inputs, types, strict=True)
    ]
    mask = (1 << int(result[1:])) - 1
    want = [expected(*row) & mask for row in zip(*read, strict=True)]
    bad = [(row, hex(int(g)), hex(w)) for row, g, w in zip(zip(*read, strict=True), got, want, strict=True) if g != w]
    assert not bad, (code, bad[:5])


KINDS = ["u16", "u32", "u64", "s16", "s32", "s64"]


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic_wraps(kind: str) -> None:
    check(f"add.{kind} d, a, b;", kind, 2, lambda a, b: a + b)
    check(f"sub.{kind} d, a, b;", kind, 2, lambda a, b: a - b)
    check(f"mul.lo.{kind} d, a, b;", kind, 2, lambda a, b: a * b)
    check(f"mul.hi.{kind} d, a, b;", kind, 2, lambda a, b: (a * b) >> int(kind[1:]))
    check(f"mad.lo.{kind} d, a, b, c;", kind, 3, lambda a, b, c: a * b + c)
    check(f"mad.hi.{kind} d, a, b, c;", kind, 3, lambda a, b, c: ((a * b) >> int(kind[1:])) + c)
    check(f"min.{kind} d, a, b;", kind, 2, min)
    check(f"max.{kind} d, a, b;", kind, 2, max)
    check(f"sad.{kind} d, a, b, c;", kind, 3, lambda a, b, c: c + abs(a - b))


@pytest.mark.parametrize("kind", KINDS)
def test_division_truncates_and_by_zero_gives_ones(kind: str) -> None:
    check(f"div.{kind} d, a, b;", kind, 2, lambda a, b: trunc_div(a, b) if b else -1)
    check(f"rem.{kind} d, a, b;", kind, 2, lambda a, b: a - trunc_div(a, b) * b if b else -1)


@pytest.mark.parametrize("kind", ["u16", "u32", "s16", "s32"])
def test_wide_products(kind: str) -> None:
    wide = f"{kind[0]}{2 * int(kind[1:])}"
    check(f"mul.wide.{kind} d, a, b;", kind, 2, lambda a, b: a * b, result=wide)
    bits = int(kind[1:])
    a, b = operands(bits, 2)
    c = (a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).astype(f"u{bits // 4}")
    check(f"mad.wide.{kind} d, a, b, c;", kind, 3, lambda a, b, c: a * b + c, result=wide, types=(kind, kind, wide),
          inputs=[a, b, c])  # fmt: skip


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_abs_and_neg(kind: str) -> None:
    check(f"abs.{kind} d, a;", kind, 1, abs)
    check(f"neg.{kind} d, a;", kind, 1, lambda a: -a)


def test_saturating_add() -> None:
    check("add.sat.s32 d, a, b;", "s32", 2, lambda a, b: max(min(a + b, 2**31 - 1), -(2**31)))
    check("sub.sat.s32 d, a, b;", "s32", 2, lambda a, b: max(min(a - b, 2**31 - 1), -(2**31)))


def test_mul24() -> None:
    def low(v: int) -> int:
        return signed(v, 24)

    check("mul24.lo.s32 d, a, b;", "s32", 2, lambda a, b: low(a) * low(b))
    check("mul24.hi.u32 d, a, b;", "u32", 2, lambda a, b: ((a & 0xFFFFFF) * (b & 0xFFFFFF)) >> 16)


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic_and_shifts_clamp_at_the_width(bits: int) -> None:
    b = f"b{bits}"
    mask = (1 << bits) - 1
    for name, f in {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}.items():
        check(f"{name}.{b} d, a, b;", b, 2, f)
    check(f"not.{b} d, a;", b, 1, lambda a: ~a)
    check(f"cnot.{b} d, a;", b, 1, lambda a: int(a == 0))
    a, _ = operands(bits, 2)
    counts = np.resize(
        np.array([0, 1, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 2**31, 2**32 - 1], np.uint32), a.shape
    )
    for kind, f in (
        (f"shl.b{bits}", lambda v, n: v << min(n, 64)),
        (f"shr.u{bits}", lambda v, n: (v & mask) >> min(n, 64)),
        (f"shr.s{bits}", lambda v, n: signed(v, bits) >> min(n, 64)),
    ):
        t = "u" + str(bits)
        check(f"{kind} d, a, b;", t, 2, f, types=(t, "u32"), inputs=[a, counts])


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_bit_fields(kind: str) -> None:
    bits = int(kind[1:])
    a, b = operands(bits, 2)
    n = a.shape[0]
    rng = np.random.default_rng(1)
    pos = rng.integers(0, 256, n).astype(np.uint32) >> rng.integers(0, 4, n).astype(np.uint32)
    length = rng.integers(0, 256, n).astype(np.uint32) >> rng.integers(0, 4, n).astype(np.uint32)

    def extract(v: int, p: int, count: int) -> int:
        p, count, msb = p & 255, count & 255, bits - 1
        raw = v & ((1 << bits) - 1)
        sign = 0 if kind[0] == "u" or count == 0 else raw >> min(p + count - 1, msb) & 1
        result = 0
        for i in range(bits):
            bit = raw >> (p + i) & 1 if i < count and p + i <= msb else sign
            result |= bit << i
        return result

    check(f"bfe.{kind} d, a, b, c;", kind, 3, extract, types=(kind, "u32", "u32"), inputs=[a, pos, length])
    if kind[0] == "u":

        def insert(v: int, into: int, p: int) -> int:
            result = into
            for i in range(8):
                if p + i < bits:
                    result = result & ~(1 << (p + i)) | (v >> i & 1) << (p + i)
            return result

        small = pos & np.uint32(127)
        check(f"bfi.b{bits} d, a, b, c, 8;", f"b{bits}", 3, insert, types=(f"b{bits}", f"b{bits}", "u32"),
              inputs=[a, b, small])  # fmt: skip

    def find(v: int) -> int:
        v = ~v if v < 0 else v
        return v.bit_length() - 1

    check(f"bfind.{kind} d, a;", kind, 1, find, result="u32")
    check(f"bfind.shiftamt.{kind} d, a;", kind, 1, lambda v: bits - 1 - find(v) if find(v) >= 0 else -1, result="u32")


@pytest.mark.parametrize("bits", [32, 64])
def test_counts_and_reversal(bits: int) -> None:
    kind = f"b{bits}"
    check(f"popc.{kind} d, a;", kind, 1, lambda a: a.bit_count() if hasattr(a, "bit_count") else bin(a).count("1"),
          result="u32")  # fmt: skip
    check(f"clz.{kind} d, a;", kind, 1, lambda a: bits - a.bit_length(), result="u32")
    check(f"brev.{kind} d, a;", kind, 1, lambda a: int(f"{a:0{bits}b}"[::-1], 2))


def test_lop3_is_its_truth_table() -> None:
    for table in (0x00, 0x80, 0xE8, 0x96, 0xCA, 0xFE, 0xFF, 0x3C):

        def logic(a: int, b: int, c: int, table: int = table) -> int:
            return sum((table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | (c >> i & 1)) & 1) << i for i in range(32))

        check(f"lop3.b32 d, a, b, c, {table};", "b32", 3, logic)


def test_prmt() -> None:
    def permute(a: int, b: int, s: int) -> int:
        both = (a | b << 32).to_bytes(8, "little")
        result = 0
        for i in range(4):
            code = s >> 4 * i & 15
            byte = both[code & 7]
            if code & 8:
                byte = 0xFF if byte & 0x80 else 0
            result |= byte << 8 * i
        return result

    check("prmt.b32 d, a, b, c;", "b32", 3, permute)
    tables = {"f4e": [3, 2, 1, 0], "b4e": [5, 6, 7, 0], "rc8": [0, 0, 0, 0], "ecr": [0, 0, 0, 0], "rc16": [1, 0, 1, 0]}
    for mode, row in tables.items():
        check(f"prmt.b32.{mode} d, a, b, 0;", "b32", 2, lambda a, b, row=row: int.from_bytes(
            bytes((a | b << 32).to_bytes(8, "little")[i] for i in row), "big"))  # fmt: skip


def test_funnel_shifts() -> None:
    for way, limit in (("l", "wrap"), ("l", "clamp"), ("r", "wrap"), ("r", "clamp")):

        def shift(a: int, b: int, n: int, way: str = way, limit: str = limit) -> int:
            n = n & 31 if limit == "wrap" else min(n, 32)
            both = a | b << 32
            return both >> n if way == "r" else (both << n) >> 32

        check(f"shf.{way}.{limit}.b32 d, a, b, c;", "b32", 3, shift)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
@pytest.mark.parametrize(("code", "want"), [
    # After a difference the flag is the carry of a + ~b + 1: set where nothing was borrowed.
    ("sub.cc.@ x, a, b; addc.@ d, 0, 0;", [0, 1, 1, 1]),
    ("sub.cc.@ x, a, b; madc.lo.@ d, 0, 0, 0;", [0, 1, 1, 1]),
    ("add.cc.@ x, a, b; subc.@ d, 0, 0;", [-1, -1, -1, 0]),
    ("mad.lo.cc.@ x, a, 1, b; subc.@ d, 0, 0;", [-1, -1, -1, 0]),
    ("sub.cc.@ x, a, b; subc.cc.@ x, 0, 0; subc.@ d, 0, 0;", [-1, 0, 0, 0]),
    ("add.cc.@ x, a, b; subc.cc.@ x, b, b; addc.@ d, 0, 0;", [0, 0, 0, 1]),
])  # fmt: skip
def test_one_flag_serves_sums_and_differences(code: str, want: list[int], kind: str) -> None:
    dtype = np.dtype(f"{kind[0].replace('s', 'i')}{int(kind[1:]) // 8}")
    a, b = np.array([5, 7, 7, -1]).astype(dtype), np.array([7, 5, 7, 1]).astype(dtype)
    text = f".reg .{kind} x; " + code.replace("@", kind)
    assert apply(text, kind, a, b, types=(kind, kind)).view(dtype).tolist() == np.array(want).astype(dtype).tolist()


def test_carry_chains() -> None:
    code = """.reg .u32 al, ah, bl, bh, dl, dh;
    mov.b64 {al, ah}, a; mov.b64 {bl, bh}, b;
    %s.cc.u32 dl, al, bl; %sc.u32 dh, ah, bh; mov.b64 d, {dl, dh};"""
    check(code % ("add", "add"), "b64", 2, lambda a, b: a + b)
    check(code % ("sub", "sub"), "b64", 2, lambda a, b: a - b)
    product = """.reg .u32 al, ah, bl, bh, d0, d1;
    mov.b64 {al, ah}, a; mov.b64 {bl, bh}, b;
    mul.lo.u32 d0, al, bl; mul.hi.u32 d1, al, bl; mad.lo.cc.u32 d1, al, bh, d1; madc.lo.u32 d1, ah, bl, d1;
    mov.b64 d, {d0, d1};"""

    def expect(a: int, b: int) -> int:
        al, ah, bl, bh = a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF, b >> 32
        d1 = (al * bl >> 32) + (al * bh & 0xFFFFFFFF)
        return (al * bl & 0xFFFFFFFF) | ((d1 + (d1 >> 32) + ah * bl) & 0xFFFFFFFF) << 32

    check(product, "b64", 2, expect)


def test_selections() -> None:
    check("setp.lt.s32 q, a, b; selp.b32 d, a, b, q;", "s32", 2, min)
    check("setp.hs.u32 q, a, b; selp.u32 d, 1, 0, q;", "u32", 2, lambda a, b: int(a >= b))
    check("set.le.u32.s32 d, a, b;", "s32", 2, lambda a, b: -(a <= b), result="u32")
    check("slct.u32.s32 d, a, b, c;", "u32", 3, lambda a, b, c: a if c >= 0 else b, types=("u32", "u32", "s32"))
    for combine, f in (("and", bool.__and__), ("or", bool.__or__), ("xor", bool.__xor__)):
        code = f""".reg .pred x, y, z; .reg .u32 v; setp.gt.u32 x, c, 100;
        setp.lt.{combine}.u32 y|z, a, b, !x; selp.u32 u, 1, 0, y; selp.u32 v, 2, 0, z; or.b32 d, u, v;"""
        check(code, "u32", 3, lambda a, b, c, f=f: f(a < b, not c > 100) | f(not a < b, not c > 100) << 1)


def test_conversions_between_integers_wrap_or_saturate() -> None:
    sizes = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
    for source in sizes[2:]:
        for to in sizes:
            bits = int(to[1:])
            low, high = (0, 2**bits - 1) if to[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
            wide = to if bits > 8 else to[0] + "16"

            def wrap(a: int, to: str = to, bits: int = bits) -> int:
                return signed(a, bits) if to[0] == "s" else a & ((1 << bits) - 1)

            check(f"cvt.{to}.{source} d, a;", source, 1, wrap, result=wide)
            if bits >= int(source[1:]) + (to[0] != source[0]) and source[0] in (to[0], "u"):
                continue  # ptxas takes no .sat where every value fits
            check(f"cvt.sat.{to}.{source} d, a;", source, 1, lambda a, low=low, high=high: min(max(a, low), high),
                  result=wide)  # fmt: skip
