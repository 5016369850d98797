"""Integers: arithmetic of every width, bit tricks, hashes, conversions between integers."""
# ruff: noqa: E501  -- a kernel keeps its lines

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Case, integers

__all__ = ["CASES"]

N = 1024
_GRID: dict[str, Any] = {"grid": 4, "block": 256}


def _pair(dtype: Any, *, zero: bool = True) -> Any:
    return lambda rng: [integers(rng, N, dtype), integers(rng, N, dtype, zero=zero)]


def _binary(name: str, kind: str, dtype: Any, body: str, expect: Any, *, results: int = 2, zero: bool = True) -> Case:
    def make(rng: np.random.Generator) -> Any:
        return [*_pair(dtype, zero=zero)(rng), np.zeros((N, results), dtype)]

    def both(a: Any, b: Any, out: Any) -> Any:
        return [np.stack(expect(a, b), -1)]

    return Case(name, f"const {kind}* a, const {kind}* b, {kind}* out", body, make=make, expect=both, **_GRID)


def _truncated(a: Any, b: Any) -> Any:
    """Quotient and remainder as C has them, from Python's integers."""
    x, y = a.astype(object), b.astype(object)
    quotient = np.array(
        [abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in zip(x, y, strict=True)], object
    )
    wrap = 1 << (8 * a.dtype.itemsize)
    both = quotient % wrap, (x - quotient * y) % wrap
    return [part.astype(f"u{a.dtype.itemsize}").view(a.dtype) for part in both]


_DIVIDE = "out[2 * i] = a[i] / b[i]; out[2 * i + 1] = a[i] % b[i];"
_WRAP = np.iinfo(np.int64).min


def _divisible(dtype: Any) -> Any:
    """The quotient of the least number and -1 is undefined in C."""

    def make(rng: np.random.Generator) -> Any:
        a, b = integers(rng, N, dtype), integers(rng, N, dtype, zero=False)
        b = np.where((a == np.iinfo(dtype).min) & (b == -1), dtype(7), b)
        return [a, b, np.zeros((N, 2), dtype)]

    return make


def _signed_division(name: str, kind: str, dtype: Any) -> Case:
    expect = lambda a, b, out: [np.stack(_truncated(a, b), -1)]  # noqa: E731
    signature = f"const {kind}* a, const {kind}* b, {kind}* out"
    return Case(name, signature, _DIVIDE, make=_divisible(dtype), expect=expect, **_GRID)


def _high(a: Any, b: Any) -> Any:
    whole = a.astype(object) * b.astype(object)
    return [(whole >> 64 & (2**64 - 1)).astype(np.uint64), (whole & (2**64 - 1)).astype(np.uint64)]


def _popc(x: Any, bits: Any) -> Any:
    return np.array([bin(int(v) & ((1 << bits) - 1)).count("1") for v in x])


def _clz(x: Any, bits: Any) -> Any:
    return np.array([bits - (int(v) & ((1 << bits) - 1)).bit_length() for v in x])


def _ffs(x: Any, bits: Any) -> Any:
    return np.array([((v & -v).bit_length()) for v in (int(v) & ((1 << bits) - 1) for v in x)])


def _brev(x: Any, bits: Any) -> Any:
    return np.array([int(f"{int(v) & ((1 << bits) - 1):0{bits}b}"[::-1], 2) for v in x], np.uint64)


def _counts(a: Any, b: Any, out: Any) -> Any:
    rows = [_popc(a, 32), _clz(a, 32), _ffs(a, 32), _brev(a, 32), _popc(b, 64), _clz(b, 64), _ffs(b, 64), _brev(b, 64)]
    return [np.stack([row.astype(np.uint64) for row in rows], -1)]


def _funnel(a: Any, b: Any, c: Any, out: Any) -> Any:
    x, y, n = (v.astype(np.uint64) for v in (a, b, c))
    both = y << np.uint64(32) | x
    wrap, clamp, half, mask = n & np.uint64(31), np.minimum(n, np.uint64(32)), np.uint64(32), np.uint64(2**32 - 1)
    rows = [both << wrap >> half, both << clamp >> half, both >> wrap & mask, both >> clamp & mask]
    return [np.stack(rows, -1)]


def _murmur(x: Any) -> Any:
    with np.errstate(over="ignore"):
        h = x.copy()
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        return h ^ (h >> np.uint32(16))


def _fnv(data: Any, out: Any) -> Any:
    h = np.full(N, 14695981039346656037, np.uint64)
    for column in data.reshape(N, 16).T:
        h = (h ^ column.astype(np.uint64)) * np.uint64(1099511628211)
    return [h]


def _crc(data: Any, out: Any) -> Any:
    import zlib

    return [np.array([zlib.crc32(row.tobytes()) for row in data.reshape(N, 16)], np.uint32)]


def _philox(out: Any) -> Any:
    key0, key1 = 0xDEADBEEF, 0x12345678
    rows = []
    for i in range(N):
        c, k0, k1 = [i, 0, 7, 9], key0, key1
        for _ in range(10):
            p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
            c = [(p1 >> 32) ^ c[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k1, p0 & 0xFFFFFFFF]
            k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
        rows.append(c)
    return [np.array(rows, np.uint32)]


def _collatz(out: Any) -> Any:
    steps = []
    for start in range(1, N + 1):
        n, count = start, 0
        while n != 1 and count < 200:
            n, count = (3 * n + 1 if n & 1 else n // 2), count + 1
        steps.append(count)
    return [np.array(steps, np.int32)]


def _gcd(a: Any, b: Any, out: Any) -> Any:
    return [np.gcd(a, b)]


def _modpow(a: Any, b: Any, out: Any) -> Any:
    return [np.array([pow(int(x), int(y) & 0xFFFF, 1_000_000_007) for x, y in zip(a, b, strict=True)])]


def _add128(a: Any, b: Any, out: Any) -> Any:
    rows = []
    for x0, x1, y0, y1 in zip(a[::2], a[1::2], b[::2], b[1::2], strict=True):
        x, y = int(x1) << 64 | int(x0), int(y1) << 64 | int(y0)
        total, product, less = (x + y) % 2**128, x * y % 2**128, (x - y) % 2**128
        rows.append([v >> s & (2**64 - 1) for v in (total, less, product) for s in (0, 64)])
    return [np.array(rows, np.uint64)]


def _narrow(a: Any, out: Any) -> Any:
    kinds = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32)
    return [np.stack([a.astype(kind).astype(np.int64) for kind in kinds], -1)]


def _shifts(a: Any, b: Any, out: Any) -> Any:
    n = (b & 31).astype(np.int32)
    u = a.view(np.uint32)
    return [np.stack([(a << n), (a >> n), (u >> n.view(np.uint32)).view(np.int32), -a, ~a, a & b, a | b, a ^ b], -1)]


def _prmt(a: Any, b: Any, c: Any, out: Any) -> Any:
    rows = []
    for x, y, s in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        data = (y << 32 | x).to_bytes(8, "little")
        picks = [data[s >> 4 * k & 7] for k in range(4)]
        picks = [(0xFF if p & 0x80 else 0) if s >> 4 * k & 8 else p for k, p in enumerate(picks)]
        rows.append(int.from_bytes(bytes(picks), "little"))
    return [np.array(rows, np.uint32)]


def _dp4a(a: Any, b: Any, c: Any, out: Any) -> Any:
    x, y = (v.view(np.int8).reshape(N, 4).astype(np.int64) for v in (a, b))
    signed = (x * y).sum(1) + c
    p, q = (v.view(np.uint8).reshape(N, 4).astype(np.int64) for v in (a, b))
    return [np.stack([signed.astype(np.int32), ((p * q).sum(1) + c).astype(np.int32)], -1)]


def _u32s(count: Any, results: Any, dtype: Any = np.uint32) -> Any:
    return lambda rng: [*(integers(rng, N, np.uint32) for _ in range(count)), np.zeros((N, results), dtype)]


_THREE = "const u32* a, const u32* b, const u32* c, u32* out"

CASES = (
    _binary("divide_u32", "u32", np.uint32, _DIVIDE, lambda a, b: [a // b, a % b], zero=False),
    _binary("divide_u64", "u64", np.uint64, _DIVIDE, lambda a, b: [a // b, a % b], zero=False),
    _binary("divide_u16", "u16", np.uint16, _DIVIDE, lambda a, b: [a // b, a % b], zero=False),
    _signed_division("divide_i32", "i32", np.int32),
    _signed_division("divide_i64", "i64", np.int64),
    _signed_division("divide_i8", "i8", np.int8),
    Case("divide_by_constants", "const i32* a, i32* out",
         "int x = a[i]; int* o = out + 6 * i; o[0] = x / 3; o[1] = x / 7; o[2] = x / 1000; o[3] = x % 10;"
         "o[4] = x / -5; o[5] = (int)((unsigned)x / 641u);",
         make=lambda rng: [integers(rng, N), np.zeros((N, 6), np.int32)],
         expect=lambda a, out: [np.stack([*(_truncated(a, np.full(N, d))[0] for d in (3, 7, 1000)),
                                          _truncated(a, np.full(N, 10))[1], _truncated(a, np.full(N, -5))[0],
                                          (a.view(np.uint32) // 641)], -1)], **_GRID),
    _binary("multiply_high_u64", "u64", np.uint64, "out[2 * i] = __umul64hi(a[i], b[i]); out[2 * i + 1] = a[i] * b[i];",
            _high),
    _binary("multiply_high_i64", "i64", np.int64, "out[2 * i] = __mul64hi(a[i], b[i]); out[2 * i + 1] = a[i] * b[i];",
            lambda a, b: [part.view(np.int64) for part in _high(a, b)]),
    _binary("multiply_wide", "i32", np.int32,
            "long long p = (long long)a[i] * b[i]; out[2 * i] = (int)(p >> 32); out[2 * i + 1] = __mulhi(a[i], b[i]) + (int)p;",
            lambda a, b: [(a.astype(np.int64) * b >> 32).astype(np.int32),
                          ((a.astype(np.int64) * b >> 32) + a.astype(np.int64) * b).astype(np.int32)]),
    Case("arithmetic_128", "const u64* a, const u64* b, u64* out",
         "unsigned __int128 x = ((unsigned __int128)a[2 * i + 1] << 64) | a[2 * i];"
         "unsigned __int128 y = ((unsigned __int128)b[2 * i + 1] << 64) | b[2 * i];"
         "unsigned __int128 v[3] = {x + y, x - y, x * y};"
         "for (int k = 0; k < 3; k++) { out[6 * i + 2 * k] = v[k]; out[6 * i + 2 * k + 1] = v[k] >> 64; }",
         make=lambda rng: [integers(rng, 2 * N, np.uint64), integers(rng, 2 * N, np.uint64), np.zeros((N, 6), np.uint64)],
         expect=_add128, options=("--device-int128",), **_GRID),
    Case("count_bits", "const u32* a, const u64* b, u64* out",
         "unsigned x = a[i]; unsigned long long y = b[i], *o = out + 8 * i;"
         "o[0] = __popc(x); o[1] = __clz(x); o[2] = __ffs(x); o[3] = __brev(x);"
         "o[4] = __popcll(y); o[5] = __clzll(y); o[6] = __ffsll(y); o[7] = __brevll(y);",
         make=lambda rng: [integers(rng, N, np.uint32), integers(rng, N, np.uint64), np.zeros((N, 8), np.uint64)],
         expect=_counts, **_GRID),
    Case("funnel_shifts", _THREE,
         "unsigned* o = out + 4 * i; o[0] = __funnelshift_l(a[i], b[i], c[i]); o[1] = __funnelshift_lc(a[i], b[i], c[i]);"
         "o[2] = __funnelshift_r(a[i], b[i], c[i]); o[3] = __funnelshift_rc(a[i], b[i], c[i]);",
         make=_u32s(3, 4), expect=_funnel, **_GRID),
    Case("permute_bytes", _THREE, 'asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out[i]) : "r"(a[i]), "r"(b[i]), "r"(c[i]));',
         make=lambda rng: [*(integers(rng, N, np.uint32) for _ in range(3)), np.zeros(N, np.uint32)], expect=_prmt,
         **_GRID),
    Case("byte_perm_and_dot", "const i32* a, const i32* b, const i32* c, i32* out",
         "out[2 * i] = __dp4a(a[i], b[i], c[i]); out[2 * i + 1] = (int)__dp4a((unsigned)a[i], (unsigned)b[i], (unsigned)c[i]);",
         make=lambda rng: [*(integers(rng, N) for _ in range(3)), np.zeros((N, 2), np.int32)], expect=_dp4a, **_GRID),
    Case("shifts_and_logic", "const i32* a, const i32* b, i32* out",
         "int n = b[i] & 31, x = a[i], *o = out + 8 * i; o[0] = x << n; o[1] = x >> n; o[2] = (unsigned)x >> n;"
         "o[3] = -x; o[4] = ~x; o[5] = x & b[i]; o[6] = x | b[i]; o[7] = x ^ b[i];",
         make=lambda rng: [integers(rng, N), integers(rng, N), np.zeros((N, 8), np.int32)], expect=_shifts, **_GRID),
    Case("shifts_64", "const i64* a, const u32* n, i64* out",
         "long long x = a[i]; unsigned k = n[i] & 63; out[3 * i] = x << k; out[3 * i + 1] = x >> k;"
         "out[3 * i + 2] = (long long)((unsigned long long)x >> k);",
         make=lambda rng: [integers(rng, N, np.int64), integers(rng, N, np.uint32), np.zeros((N, 3), np.int64)],
         expect=lambda a, n, out: [np.stack([a << (k := (n & 63).astype(np.int64)), a >> k,
                                             (a.view(np.uint64) >> k.view(np.uint64)).view(np.int64)], -1)], **_GRID),
    Case("narrow_integers", "const i64* a, i64* out",
         "long long x = a[i], *o = out + 6 * i; o[0] = (signed char)x; o[1] = (unsigned char)x; o[2] = (short)x;"
         "o[3] = (unsigned short)x; o[4] = (int)x; o[5] = (unsigned)x;",
         make=lambda rng: [integers(rng, N, np.int64), np.zeros((N, 6), np.int64)], expect=_narrow, **_GRID),
    Case("saturating_and_average", "const i32* a, const i32* b, i32* out",
         "int x = a[i], y = b[i], s; asm(\"add.sat.s32 %0, %1, %2;\" : \"=r\"(s) : \"r\"(x), \"r\"(y));"
         "int* o = out + 5 * i; o[0] = s; o[1] = __hadd(x, y); o[2] = __rhadd(x, y); o[3] = __sad(x, y, 5); o[4] = abs(x);",
         make=lambda rng: [integers(rng, N), integers(rng, N), np.zeros((N, 5), np.int32)],
         expect=lambda a, b, out: [np.stack([np.clip(s := a.astype(np.int64) + b, -2**31, 2**31 - 1), s >> 1, (s + 1) >> 1,
                                             (abs(a.astype(np.int64) - b) + 5).astype(np.int32), np.abs(a)], -1)],
         **_GRID),
    Case("min_max_clamp", "const i64* a, const i64* b, i64* out",
         "long long x = a[i], y = b[i]; out[3 * i] = min(x, y); out[3 * i + 1] = max((unsigned long long)x, (unsigned long long)y);"
         "out[3 * i + 2] = x < -1000 ? -1000 : x > 1000 ? 1000 : x;",
         make=lambda rng: [integers(rng, N, np.int64), integers(rng, N, np.int64), np.zeros((N, 3), np.int64)],
         expect=lambda a, b, out: [np.stack([np.minimum(a, b), np.maximum(a.view(np.uint64), b.view(np.uint64)).view(np.int64),
                                             np.clip(a, -1000, 1000)], -1)], **_GRID),
    Case("murmur_finish", "const u32* a, u32* out",
         "unsigned h = a[i]; h ^= h >> 16; h *= 0x85ebca6b; h ^= h >> 13; h *= 0xc2b2ae35; h ^= h >> 16; out[i] = h;",
         make=lambda rng: [integers(rng, N, np.uint32), np.zeros(N, np.uint32)],
         expect=lambda a, out: [_murmur(a)], **_GRID),
    Case("fnv_of_rows", "const u8* data, u64* out",
         "unsigned long long h = 14695981039346656037ull; for (int k = 0; k < 16; k++) h = (h ^ data[16 * i + k]) * 1099511628211ull;"
         "out[i] = h;",
         make=lambda rng: [integers(rng, 16 * N, np.uint8), np.zeros(N, np.uint64)], expect=_fnv, **_GRID),
    Case("crc32_with_a_shared_table", "const u8* data, u32* out",
         "__shared__ unsigned table[256]; unsigned c = threadIdx.x;"
         "for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xedb88320u : c >> 1; table[threadIdx.x] = c; __syncthreads();"
         "unsigned crc = ~0u; for (int k = 0; k < 16; k++) crc = table[(crc ^ data[16 * i + k]) & 255] ^ crc >> 8; out[i] = ~crc;",
         make=lambda rng: [integers(rng, 16 * N, np.uint8), np.zeros(N, np.uint32)], expect=_crc, **_GRID),
    Case("philox", "u32* out",
         "unsigned c0 = i, c1 = 0, c2 = 7, c3 = 9, k0 = 0xdeadbeef, k1 = 0x12345678;"
         "for (int r = 0; r < 10; r++) { unsigned h0 = __umulhi(c0, 0xD2511F53u), l0 = c0 * 0xD2511F53u, h1 = __umulhi(c2, 0xCD9E8D57u),"
         " l1 = c2 * 0xCD9E8D57u; c0 = h1 ^ c1 ^ k0; c1 = l1; c2 = h0 ^ c3 ^ k1; c3 = l0; k0 += 0x9E3779B9u; k1 += 0xBB67AE85u; }"
         "out[4 * i] = c0; out[4 * i + 1] = c1; out[4 * i + 2] = c2; out[4 * i + 3] = c3;",
         make=lambda rng: [np.zeros((N, 4), np.uint32)], expect=_philox, **_GRID),
    Case("collatz", "i32* out",
         "long long n = i + 1; int count = 0; while (n != 1 && count < 200) { n = n & 1 ? 3 * n + 1 : n / 2; count++; } out[i] = count;",
         make=lambda rng: [np.zeros(N, np.int32)], expect=_collatz, **_GRID),
    Case("greatest_common_divisor", "const u32* a, const u32* b, u32* out",
         "unsigned x = a[i], y = b[i]; while (y) { unsigned t = x % y; x = y; y = t; } out[i] = x;",
         make=lambda rng: [*_pair(np.uint32)(rng), np.zeros(N, np.uint32)], expect=_gcd, **_GRID),
    Case("power_modulo", "const u32* a, const u32* b, u32* out",
         "unsigned long long base = a[i] % 1000000007u, r = 1; unsigned e = b[i] & 0xffff;"
         "for (; e; e >>= 1) { if (e & 1) r = r * base % 1000000007u; base = base * base % 1000000007u; } out[i] = r;",
         make=lambda rng: [*_pair(np.uint32)(rng), np.zeros(N, np.uint32)], expect=_modpow, **_GRID),
    Case("xorshift_stream", "u64* out",
         "unsigned long long s = 88172645463325252ull + i; for (int k = 0; k < 50; k++) { s ^= s << 13; s ^= s >> 7; s ^= s << 17; } out[i] = s;",
         make=lambda rng: [np.zeros(N, np.uint64)], **_GRID),
)  # fmt: skip
"""The kernels of this file."""
