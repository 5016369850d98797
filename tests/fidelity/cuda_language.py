"""The language: functions, templates, switches, tables, local arrays, constant memory, globals, types of every width."""
# ruff: noqa: E501  -- a kernel keeps its lines

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Case, floats, integers

__all__ = ["CASES"]

N = 1024
_GRID: dict[str, Any] = {"grid": 4, "block": 256}


def _ints(results: Any = N, dtype: Any = np.int32) -> Any:
    return lambda rng: [integers(rng, N, dtype), np.zeros(results, dtype)]


def _small(rng: np.random.Generator) -> Any:
    return rng.integers(-50, 50, N).astype(np.int32)


def _switch(x: Any, out: Any) -> Any:
    which = x & 15
    answers = [x + 1, x * 3, x - 7, x ^ 0x55, x >> 2, x << 3, -x, ~x, x & 0xFF, x | 0x100]
    return [np.select([which == k for k in range(10)], answers, 99)]


def _interpreter(x: Any, out: Any) -> Any:
    rows = []
    for seed in x.tolist():
        stack, pc, value = seed & 0xFFFFFFFF, 0, 1
        for _ in range(20):
            op = stack >> (pc & 28) & 7
            value = [value + 3, value * 5, value ^ 0x1234, value - pc, value >> 1, value << 2, value, 7][
                op
            ] & 0xFFFFFFFF
            pc += 4 if op < 6 else 8
        rows.append(value)
    return [np.array(rows, np.uint32).view(np.int32)]


def _fields(x: Any, out: Any) -> Any:
    u = x.view(np.uint32)
    signed = ((u >> np.uint32(3) & np.uint32(0x1F)).astype(np.int32) ^ 16) - 16
    return [
        (u & np.uint32(7)).astype(np.int32) + signed * 100 + (u >> np.uint32(8) & np.uint32(0xFFF)).astype(np.int32)
    ]


_POINTERS = """
__device__ __noinline__ int twice(int x) { return 2 * x; }
__device__ __noinline__ int square(int x) { return x * x; }
__device__ __noinline__ int less(int x) { return x - 9; }
typedef int (*Function)(int);
__device__ Function table[3] = {twice, square, less};
"""

CASES = (
    Case("switch_table", "const i32* x, i32* out",
         "int v = x[i], r; switch (v & 15) { case 0: r = v + 1; break; case 1: r = v * 3; break; case 2: r = v - 7; break; case 3: r = v ^ 0x55; break;"
         "case 4: r = v >> 2; break; case 5: r = v << 3; break; case 6: r = -v; break; case 7: r = ~v; break; case 8: r = v & 255; break; case 9: r = v | 256; break;"
         "default: r = 99; } out[i] = r;", make=_ints(), expect=_switch, **_GRID),
    Case("small_interpreter", "const i32* x, i32* out",
         "unsigned s = x[i], v = 1; int pc = 0; for (int k = 0; k < 20; k++) { int op = s >> (pc & 28) & 7; pc += op < 6 ? 4 : 8; int was = pc - (op < 6 ? 4 : 8);"
         "switch (op) { case 0: v += 3; break; case 1: v *= 5; break; case 2: v ^= 0x1234; break; case 3: v -= was; break; case 4: v >>= 1; break; case 5: v <<= 2; break;"
         "case 6: break; default: v = 7; } } out[i] = v;", make=_ints(), expect=_interpreter, **_GRID),
    Case("function_pointers", "const i32* x, i32* out", "out[i] = table[(unsigned)x[i] % 3](x[i] & 1023);", before=_POINTERS,
         make=_ints(),
         expect=lambda x, out: [np.choose(x.view(np.uint32) % 3, [2 * (v := x & 1023), v * v, v - 9])], **_GRID),
    Case("noinline_functions", "const i32* x, f64* out",
         "Pair p = {x[i] & 255, 0.5}; out[i] = blend(p, 3) + blend(p, blend(p, 1) > 20 ? 2 : 5);",
         before="struct Pair { int n; double d; };\n__device__ __noinline__ double blend(Pair p, int k) { return p.n * p.d + k; }",
         make=lambda rng: [integers(rng, N), np.zeros(N)],
         expect=lambda x, out: [(h := (x & 255) * 0.5) + 3 + h + np.where(h + 1 > 20, 2, 5)], **_GRID),
    Case("recursion", "i32* out", "out[i] = ackermann(1 + (i & 1), i % 5) + fibonacci(i % 9);",
         before="__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }\n"
                "__device__ __noinline__ int ackermann(int m, int n) { return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1)); }",
         make=lambda rng: [np.zeros(N, np.int32)],
         expect=lambda out: [np.where((i := np.arange(N)) & 1, 2 * (i % 5) + 3, i % 5 + 2) + np.array([0, 1, 1, 2, 3, 5, 8, 13, 21])[i % 9]], **_GRID),
    Case("templates", "const f32* x, f32* out", "out[i] = power<5>(x[i]) + larger<double>(x[i], 1.5) + larger<int>((int)x[i], 2);",
         before="template <int K> __device__ float power(float v) { if constexpr (K == 0) return 1; else return v * power<K - 1>(v); }\n"
                "template <class T> __device__ float larger(T a, T b) { return a > b ? a : b; }",
         make=lambda rng: [floats(rng, N, wild=False), np.zeros(N, np.float32)], **_GRID),
    Case("local_array", "const i32* x, i32* out",
         "int a[16]; for (int k = 0; k < 16; k++) a[k] = x[(i + k) & 1023]; for (int k = 0; k < 16; k++) a[a[k] & 15] += k; int s = 0;"
         "for (int k = 0; k < 16; k++) s = s * 31 + a[k]; out[i] = s;", make=_ints(), **_GRID),
    Case("insertion_sort_in_local_memory", "const i32* x, i32* out",
         "int a[12]; for (int k = 0; k < 12; k++) { int v = x[(12 * i + k) & 1023], j = k; while (j && a[j - 1] > v) { a[j] = a[j - 1]; j--; } a[j] = v; } out[i] = a[(unsigned)x[i] % 12];",
         make=_ints(),
         expect=lambda x, out: [np.array([np.sort(x[(12 * k + np.arange(12)) & 1023])[int(x.view(np.uint32)[k]) % 12] for k in range(N)])], **_GRID),
    Case("constant_memory", "const i32* x, f32* out", "out[i] = table[x[i] & 7] * pairs[x[i] & 3].scale + pairs[x[i] >> 2 & 3].shift;",
         before="struct Affine { float scale; short shift; };\n__constant__ float table[8] = {1, 2, 4, 8, 0.5f, 0.25f, -1, 3};\n"
                "__constant__ Affine pairs[4] = {{1, 1}, {2, -2}, {0.5f, 300}, {-4, -400}};",
         make=lambda rng: [integers(rng, N), np.zeros(N, np.float32)],
         expect=lambda x, out: [np.array([1, 2, 4, 8, 0.5, 0.25, -1, 3])[x & 7] * np.array([1, 2, 0.5, -4])[x & 3] + np.array([1, -2, 300, -400])[x >> 2 & 3]], **_GRID),
    Case("global_variables", "const i32* x, i64* out",
         "atomicAdd(&total, (unsigned long long)x[i]); __syncthreads(); out[i] = matrix[x[i] & 1][x[i] >> 1 & 3] + (long long)(*pointer)[2]; if (!threadIdx.x) atomicAdd(&blocks, 1);"
         "if (x[i] == 123) out[i] = blocks;",
         before="__device__ unsigned long long total; __device__ int blocks = 5;\n__device__ short matrix[2][4] = {{1, -2, 3, -4}, {50, 60, 70, 80}};\n"
                "__device__ long long list[3] = {1, 2, 1ll << 40};\n__device__ long long (*pointer)[3] = &list;",
         make=lambda rng: [_small(rng), np.zeros(N, np.int64)],
         expect=lambda x, out: [np.array([[1, -2, 3, -4], [50, 60, 70, 80]])[x & 1, x >> 1 & 3] + (1 << 40)], **_GRID),
    Case("structures_in_memory", "u8* bytes, f64* out",
         "Record* r = (Record*)bytes + i; r->a = (char)i; r->b = (short)(i * 3); r->d = i * 0.25; r->f[1] = -i; Record c = *r; out[i] = c.a + c.b + c.d + c.f[1] + sizeof(Record);",
         before="struct Record { signed char a; short b; double d; float f[2]; };",
         make=lambda rng: [np.zeros(N * 24, np.uint8), np.zeros(N)], **_GRID),
    Case("bit_fields", "const i32* x, i32* out", "Fields f; f.whole = x[i]; out[i] = f.part.low + f.part.middle * 100 + f.part.rest;",
         before="union Fields { int whole; struct { unsigned low : 3; int middle : 5; unsigned rest : 12; } part; };", make=_ints(), expect=_fields, **_GRID),
    Case("vector_types", "const f32* x, f32* out",
         "float4 v = ((const float4*)x)[i]; float2 w = make_float2(v.x + v.w, v.y * v.z); ((float4*)out)[i] = make_float4(w.x, w.y, v.z, -v.w);",
         make=lambda rng: [floats(rng, 4 * N), np.zeros(4 * N, np.float32)],
         expect=lambda x, out: [np.stack([(v := x.reshape(-1, 4))[:, 0] + v[:, 3], v[:, 1] * v[:, 2], v[:, 2], -v[:, 3]], -1).reshape(-1)], **_GRID),
    Case("bytes_and_shorts", "const i8* a, const u16* b, i16* out, u8* low",
         "out[i] = a[i] * b[i]; low[i] = (unsigned char)(a[i] + b[i]); if (a[i] < 0) low[i] ^= 0x80;",
         make=lambda rng: [integers(rng, N, np.int8), integers(rng, N, np.uint16), np.zeros(N, np.int16), np.zeros(N, np.uint8)],
         expect=lambda a, b, out, low: [a.astype(np.int32) * b, (a.astype(np.int32) + b & 255) ^ np.where(a < 0, 0x80, 0)], **_GRID),
    Case("early_exits", "const i32* x, i32* out, i32 n",
         "if (i >= n) return; int v = x[i]; if (v & 1) { out[i] = 1; return; } for (int k = 0;; k++) { if (v >> k == 0) { out[i] = k; break; } if (k > 40) return; if (v < 0) { out[i] = -k; if (k == 3) return; } }",
         make=lambda rng: [integers(rng, N), np.zeros(N, np.int32), 1000], **_GRID),
    Case("nested_loops", "const i32* x, i32* out",
         "int s = 0; for (int a = 0; a < (x[i] & 7); a++) { for (int b = a; b < 12; b += 1 + (x[i] >> 3 & 1)) { if ((a * b) % 5 == 3) continue; s += a * b; if (s > 150) goto done; } s ^= a; } done: out[i] = s;",
         make=_ints(), **_GRID),
    Case("divergent_branches", "const i32* x, i32* out",
         "int v = x[i], r = 0; if (v & 1) { if (v & 2) r = v * 3; else { r = v / 7; if (v & 4) r ^= 0x77; } } else if (v & 8) { for (int k = 0; k < (v & 15); k++) r += k * v; } else r = -v;"
         "out[i] = r + (v > 0 ? r >> 1 : r << 1);", make=_ints(), **_GRID),
    Case("union_of_number_and_bits", "const f64* x, u32* out",
         "union { double d; unsigned w[2]; unsigned short h[4]; } u; u.d = x[i]; out[4 * i] = u.w[0]; out[4 * i + 1] = u.w[1]; out[4 * i + 2] = u.h[3]; u.h[(unsigned)i & 3] = 7; out[4 * i + 3] = u.w[1];",
         make=lambda rng: [floats(rng, N, np.float64), np.zeros((N, 4), np.uint32)], **_GRID),
    Case("inline_assembly", "const u32* a, const u32* b, u32* out",
         'unsigned lo, hi; asm("{ .reg .pred p; .reg .b32 t; add.cc.u32 t, %2, %3; addc.u32 %1, 0, 0; setp.gt.u32 p, t, %3; selp.b32 %0, t, %2, p; }"'
         ' : "=r"(lo), "=r"(hi) : "r"(a[i]), "r"(b[i])); out[2 * i] = lo; out[2 * i + 1] = hi;',
         make=lambda rng: [integers(rng, N, np.uint32), integers(rng, N, np.uint32), np.zeros((N, 2), np.uint32)],
         expect=lambda a, b, out: [np.stack([np.where((t := a + b) > b, t, a), (t < a)], -1)], **_GRID),
    Case("linked_list", "const i32* next, const i32* x, i32* out", "int at = i, s = 0; for (int k = 0; k < 64 && at >= 0; k++) { s += x[at]; at = next[at]; } out[i] = s;",
         make=lambda rng: [(p := rng.permutation(N).astype(np.int32)) * (p > 9) - (p <= 9), _small(rng), np.zeros(N, np.int32)], **_GRID),
    Case("binary_search", "const i32* x, const i32* keys, i32* out",
         "int low = 0, high = 1024; while (low < high) { int m = (low + high) / 2; if (x[m] < keys[i]) low = m + 1; else high = m; } out[i] = low;",
         make=lambda rng: [np.sort(integers(rng, N)), integers(rng, N), np.zeros(N, np.int32)],
         expect=lambda x, keys, out: [np.searchsorted(x, keys)], **_GRID),
    Case("knuth_morris_pratt", "const u8* text, i32* out",
         "const char* want = \"abab\"; int fail[4] = {0, 0, 1, 2}, state = 0, found = 0; for (int k = 0; k < 64; k++) { unsigned char c = text[(i * 3 + k) & 1023];"
         "while (state && want[state] != c) state = fail[state - 1]; if (want[state] == c) state++; if (state == 4) { found++; state = fail[3]; } } out[i] = found;",
         make=lambda rng: [rng.choice(np.frombuffer(b"abc", np.uint8), N), np.zeros(N, np.int32)], **_GRID),
)  # fmt: skip
"""The kernels of this file."""
