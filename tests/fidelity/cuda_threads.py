"""Threads together: shared memory, shuffles, votes, atomics of every kind, scans, sorts, grids of three dimensions."""
# ruff: noqa: E501  -- a kernel keeps its lines

from __future__ import annotations

from typing import Any

import numpy as np
from cases import Case, floats, integers

__all__ = ["CASES"]

N = 1024
_GRID: dict[str, Any] = {"grid": 4, "block": 256}
_F32 = np.float32


def _ints(results: Any, dtype: Any = np.int32, n: Any = N) -> Any:
    return lambda rng: [integers(rng, n, dtype), np.zeros(results, dtype)]


def _small(rng: np.random.Generator, n: Any = N, below: int = 100) -> Any:
    return rng.integers(0, below, n).astype(np.int32)


def _tree(x: Any, width: Any) -> Any:
    """The sum that a shuffle-down by halves makes, with a rounding at each step."""
    x = x.reshape(-1, width).copy()
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = x[:, :half] + x[:, half:]
    return x[:, 0]


def _block_sums(x: Any, out: Any) -> Any:
    return [_tree(_tree(x, 32), 8)]


def _transpose(x: Any, out: Any) -> Any:
    return [x.reshape(64, 96).T.reshape(-1)]


def _histogram(x: Any, out: Any) -> Any:
    return [np.bincount(x & 63, minlength=64).astype(np.int32)]


def _atomics(x: Any, out: Any) -> Any:
    with np.errstate(over="ignore"):
        u = x.view(np.uint32)
        return [np.array([x.sum(dtype=np.int32), x.min(), x.max(), np.bitwise_and.reduce(x | 0x0F0F), np.bitwise_or.reduce(x & 0x7070),
                          np.bitwise_xor.reduce(x), u.max().view(np.int32), (-x).sum(dtype=np.int32)], np.int32)]  # fmt: skip


def _atomics64(x: Any, out: Any) -> Any:
    with np.errstate(over="ignore"):
        return [np.array([x.sum(dtype=np.int64), x.min(), x.max(), np.bitwise_and.reduce(x | 0xF0F0), np.bitwise_or.reduce(x & 0x77),
                          np.bitwise_xor.reduce(x)], np.int64)]  # fmt: skip


def _matches(x: Any, out: Any) -> Any:
    rows = x.reshape(-1, 32)
    any_of = (rows[:, :, None] == rows[:, None, :]) @ (1 << np.arange(32, dtype=np.int64))
    same = (rows == rows[:, :1]).all(1)
    return [np.stack([any_of.reshape(-1), np.repeat(np.where(same, 0xFFFFFFFF, 0), 32)], -1).astype(np.uint32)]


def _votes(x: Any, out: Any) -> Any:
    odd = (x.reshape(-1, 32) & 1).astype(bool)
    mask = odd @ (1 << np.arange(32, dtype=np.int64))
    below = [[int(m) & ((1 << lane) - 1) for lane in range(32)] for m in mask]
    rank = np.array([[bin(b).count("1") for b in row] for row in below])
    parts = [np.repeat(mask, 32), rank.reshape(-1), np.repeat(odd.any(1), 32), np.repeat(odd.all(1), 32)]
    return [np.stack(parts, -1).astype(np.uint32)]


def _redux(x: Any, out: Any) -> Any:
    rows, u = x.reshape(-1, 32), x.view(np.uint32).reshape(-1, 32)
    with np.errstate(over="ignore"):
        parts = [rows.sum(1, dtype=np.int32), rows.min(1), rows.max(1), u.max(1).view(np.int32), np.bitwise_and.reduce(rows, 1),
                 np.bitwise_or.reduce(rows, 1), np.bitwise_xor.reduce(rows, 1)]  # fmt: skip
    return [np.repeat(np.stack(parts, -1), 32, 0)]


def _stencil(x: Any, out: Any) -> Any:
    p = np.pad(x, 2, mode="edge")
    total = np.zeros(N, _F32)
    for k in range(5):
        total = total + p[k : k + N]
    return [total * _F32(0.2)]


def _laplace(x: Any, out: Any) -> Any:
    g = np.pad(x.reshape(32, 32), 1)
    return [((g[:-2, 1:-1] + g[2:, 1:-1]) + (g[1:-1, :-2] + g[1:-1, 2:]) - _F32(4) * g[1:-1, 1:-1]).reshape(-1)]


def _cube(out: Any) -> Any:
    z, y, x = np.meshgrid(range(6), range(8), range(12), indexing="ij")
    return [(x + 100 * y + 10000 * z).reshape(-1).astype(np.int32)]


def _rank_sort(x: Any, out: Any) -> Any:
    return [np.sort(x.reshape(4, 256), 1).reshape(-1)]


def _compact(x: Any, out: Any, count: Any) -> Any:
    positive = [row[row > 0] for row in x.reshape(4, 256)]
    rows = np.zeros((4, 256), np.int32)
    for row, values in zip(rows, positive, strict=True):
        row[: len(values)] = values
    return [rows.reshape(-1), np.array([len(values) for values in positive], np.int32)]


def _wrap_counter(out: Any) -> Any:
    return [np.array([1024 % 301, (-1024) % 301], np.uint32)]


_SHUFFLES = (
    "int v = x[i], *o = out + 6 * i; o[0] = __shfl_sync(~0u, v, (threadIdx.x * 7 + 3) & 31); o[1] = __shfl_up_sync(~0u, v, 3);"
    "o[2] = __shfl_down_sync(~0u, v, 5); o[3] = __shfl_xor_sync(~0u, v, 9); o[4] = __shfl_xor_sync(~0u, v, 3, 8); o[5] = __shfl_up_sync(~0u, v, 2, 16);"
)


def _shuffled(x: Any, out: Any) -> Any:
    lane = np.arange(32)
    picks = [(lane * 7 + 3) & 31, np.where(lane >= 3, lane - 3, lane), np.where(lane + 5 < 32, lane + 5, lane), lane ^ 9, lane ^ 3,
             np.where(lane % 16 >= 2, lane - 2, lane)]  # fmt: skip
    rows = x.reshape(-1, 32)
    return [np.stack([rows[:, pick].reshape(-1) for pick in picks], -1)]


CASES = (
    Case("reduce_by_shuffles", "const f32* x, f32* out",
         "__shared__ float part[8]; float v = x[i]; for (int k = 16; k; k >>= 1) v += __shfl_down_sync(~0u, v, k);"
         "if (!(threadIdx.x & 31)) part[threadIdx.x >> 5] = v; __syncthreads();"
         "if (threadIdx.x < 8) { v = part[threadIdx.x]; for (int k = 4; k; k >>= 1) v += __shfl_down_sync(0xff, v, k, 8); if (!threadIdx.x) out[blockIdx.x] = v; }",
         make=lambda rng: [floats(rng, N, wild=False), np.zeros(4, _F32)], expect=_block_sums, **_GRID),
    Case("reduce_in_shared_memory", "const f64* x, f64* out",
         "__shared__ double s[256]; s[threadIdx.x] = x[i]; __syncthreads();"
         "for (int k = 128; k; k >>= 1) { if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k]; __syncthreads(); } if (!threadIdx.x) out[blockIdx.x] = s[0];",
         make=lambda rng: [floats(rng, N, np.float64, wild=False), np.zeros(4)], expect=lambda x, out: [_tree(x, 256)], **_GRID),
    Case("grid_stride_maximum", "const i32* x, i32* out, i32 n",
         "int m = -2147483647 - 1; for (int k = i; k < n; k += gridDim.x * blockDim.x) m = max(m, x[k]); atomicMax(out, m);", 3, 96,
         lambda rng: [integers(rng, 5000), np.full(1, -(2**31), np.int32), 5000], lambda x, out, n: [[x.max()]]),
    Case("scan_by_shuffles", "const i32* x, i32* out",
         "__shared__ int sums[8]; int v = x[i], lane = threadIdx.x & 31, w = threadIdx.x >> 5;"
         "for (int k = 1; k < 32; k *= 2) { int u = __shfl_up_sync(~0u, v, k); if (lane >= k) v += u; } if (lane == 31) sums[w] = v; __syncthreads();"
         "for (int k = 0; k < w; k++) v += sums[k]; out[i] = v;",
         make=_ints(N), expect=lambda x, out: [np.cumsum(x.reshape(4, 256), 1, dtype=np.int32).reshape(-1)], **_GRID),
    Case("scan_in_shared_memory", "const i64* x, i64* out",
         "__shared__ long long s[2][256]; int a = 0, t = threadIdx.x; s[0][t] = x[i]; __syncthreads();"
         "for (int k = 1; k < 256; k *= 2, a ^= 1) { s[a ^ 1][t] = t >= k ? s[a][t] + s[a][t - k] : s[a][t]; __syncthreads(); } out[i] = s[a][t];",
         make=_ints(N, np.int64), expect=lambda x, out: [np.cumsum(x.reshape(4, 256), 1).reshape(-1)], **_GRID),
    Case("blelloch_scan", "const i32* x, i32* out",
         "extern __shared__ int d[]; int t = threadIdx.x; d[2 * t] = x[2 * t]; d[2 * t + 1] = x[2 * t + 1]; int o = 1;"
         "for (int k = 128; k; k >>= 1) { __syncthreads(); if (t < k) d[o * (2 * t + 2) - 1] += d[o * (2 * t + 1) - 1]; o *= 2; }"
         "if (!t) d[255] = 0; for (int k = 1; k < 256; k *= 2) { o >>= 1; __syncthreads(); if (t < k) { int a = o * (2 * t + 1) - 1, b = o * (2 * t + 2) - 1;"
         " int u = d[a]; d[a] = d[b]; d[b] += u; } } __syncthreads(); out[2 * t] = d[2 * t]; out[2 * t + 1] = d[2 * t + 1];", 1, 128,
         lambda rng: [integers(rng, 256), np.zeros(256, np.int32)],
         lambda x, out: [np.concatenate(([0], np.cumsum(x, dtype=np.int32)[:-1]))], shared_bytes=1024),
    Case("shuffles", "const i32* x, i32* out", _SHUFFLES, make=lambda rng: [integers(rng, N), np.zeros((N, 6), np.int32)], expect=_shuffled,
         **_GRID),
    Case("shuffle_of_64_bits", "const f64* x, f64* out", "out[i] = __shfl_xor_sync(~0u, x[i], 21) + __shfl_sync(~0u, x[i], 4, 8);",
         make=lambda rng: [floats(rng, N, np.float64, wild=False), np.zeros(N)],
         expect=lambda x, out: [(r := x.reshape(-1, 32))[:, np.arange(32) ^ 21].reshape(-1) + r[:, (np.arange(32) & 24) + 4].reshape(-1)], **_GRID),
    Case("votes_and_ballots", "const i32* x, u32* out",
         "int odd = x[i] & 1; unsigned m = __ballot_sync(~0u, odd), *o = out + 4 * i; o[0] = m; o[1] = __popc(m & ((1u << (threadIdx.x & 31)) - 1));"
         "o[2] = __any_sync(~0u, odd) ? 1 : 0; o[3] = __all_sync(~0u, odd) ? 1 : 0;",
         make=lambda rng: [np.where(np.arange(N) % 64 < 32, integers(rng, N), 1).astype(np.int32), np.zeros((N, 4), np.uint32)], expect=_votes, **_GRID),
    Case("matches", "const i32* x, u32* out",
         "int all; out[2 * i] = __match_any_sync(~0u, x[i]); out[2 * i + 1] = __match_all_sync(~0u, x[i], &all); if (!all && out[2 * i + 1]) out[2 * i + 1] = 77;",
         make=lambda rng: [np.where(np.arange(N) % 96 < 32, 5, _small(rng, below=6)).astype(np.int32), np.zeros((N, 2), np.uint32)], expect=_matches, **_GRID),
    Case("warp_reductions", "const i32* x, i32* out",
         "int v = x[i], *o = out + 7 * i; o[0] = __reduce_add_sync(~0u, v); o[1] = __reduce_min_sync(~0u, v); o[2] = __reduce_max_sync(~0u, v);"
         "o[3] = __reduce_max_sync(~0u, (unsigned)v); o[4] = __reduce_and_sync(~0u, v); o[5] = __reduce_or_sync(~0u, v); o[6] = __reduce_xor_sync(~0u, v);",
         make=lambda rng: [integers(rng, N), np.zeros((N, 7), np.int32)], expect=_redux, **_GRID),
    Case("partial_warps", "const i32* x, u32* out",
         "unsigned r = 0; if (threadIdx.x % 3 == 0) { unsigned m = __activemask(); r = __ballot_sync(0x49249249u & m, x[i] > 0); } out[i] = r;",
         1, 32, lambda rng: [integers(rng, 32), np.zeros(32, np.uint32)],
         lambda x, out: [np.where(np.arange(32) % 3 == 0, sum(1 << k for k in range(0, 32, 3) if x[k] > 0), 0)]),
    Case("histogram_global", "const i32* x, i32* out", "atomicAdd(out + (x[i] & 63), 1);", make=_ints(64), expect=_histogram, **_GRID),
    Case("histogram_shared", "const i32* x, i32* out",
         "__shared__ int s[64]; if (threadIdx.x < 64) s[threadIdx.x] = 0; __syncthreads(); atomicAdd(s + (x[i] & 63), 1); __syncthreads();"
         "if (threadIdx.x < 64) atomicAdd(out + threadIdx.x, s[threadIdx.x]);", make=_ints(64), expect=_histogram, **_GRID),
    Case("atomics_32", "const i32* x, i32* out",
         "int v = x[i]; atomicAdd(out, v); atomicMin(out + 1, v); atomicMax(out + 2, v); atomicAnd(out + 3, v | 0x0f0f); atomicOr(out + 4, v & 0x7070);"
         "atomicXor(out + 5, v); atomicMax((unsigned*)out + 6, (unsigned)v); atomicSub(out + 7, v);",
         make=lambda rng: [integers(rng, N), np.array([0, 2**31 - 1, -(2**31), -1, 0, 0, 0, 0], np.int32)], expect=_atomics, **_GRID),
    Case("atomics_64", "const i64* x, i64* out",
         "long long v = x[i]; atomicAdd((unsigned long long*)out, (unsigned long long)v); atomicMin(out + 1, v); atomicMax(out + 2, v);"
         "atomicAnd((unsigned long long*)out + 3, v | 0xf0f0); atomicOr((unsigned long long*)out + 4, v & 0x77); atomicXor((unsigned long long*)out + 5, v);",
         make=lambda rng: [integers(rng, N, np.int64), np.array([0, 2**63 - 1, -(2**63), -1, 0, 0], np.int64)], expect=_atomics64, **_GRID),
    Case("atomics_of_exact_floats", "const i32* x, f32* out, f64* wide", "float v = x[i]; atomicAdd(out, v); atomicAdd(wide, (double)v * 0.5);",
         make=lambda rng: [_small(rng), np.zeros(1, _F32), np.zeros(1)],
         expect=lambda x, out, wide: [[x.sum()], [x.sum() / 2]], **_GRID),
    Case("atomics_in_shared_memory", "const i32* x, i32* out",
         "__shared__ int s[3]; __shared__ float f; if (!threadIdx.x) { s[0] = 1 << 30; s[1] = -1; s[2] = 0; f = 0; } __syncthreads();"
         "atomicMin(s, x[i]); atomicExch(s + 1, 7); atomicOr(s + 2, x[i]); atomicAdd(&f, 0.5f); __syncthreads();"
         "if (threadIdx.x < 3) out[4 * blockIdx.x + threadIdx.x] = s[threadIdx.x]; if (!threadIdx.x) out[4 * blockIdx.x + 3] = (int)f;",
         make=lambda rng: [_small(rng), np.zeros(16, np.int32)],
         expect=lambda x, out: [np.stack([(r := x.reshape(4, 256)).min(1), np.full(4, 7), np.bitwise_or.reduce(r, 1), np.full(4, 128)], -1).reshape(-1)],
         **_GRID),
    Case("atomic_wrap_around", "u32* out", "atomicInc(out, 300); atomicDec(out + 1, 300);",
         make=lambda rng: [np.zeros(2, np.uint32)], expect=_wrap_counter, **_GRID),
    Case("compare_and_swap_loop", "const f32* x, f32* out",
         "int* at = (int*)out; int old = *at, seen; do { seen = old; old = atomicCAS(at, seen, __float_as_int(fmaxf(x[i], __int_as_float(seen)))); } while (old != seen);",
         1, 128, lambda rng: [floats(rng, 128, wild=False), np.full(1, -np.inf, _F32)], lambda x, out: [[x.max()]]),
    Case("tickets", "i32* counter, u32* seen", "int t = atomicAdd(counter, 1); atomicAdd(seen + t, 1u);",
         make=lambda rng: [np.zeros(1, np.int32), np.zeros(N, np.uint32)], expect=lambda counter, seen: [[N], np.ones(N)], **_GRID),
    Case("last_block_adds_up", "const i32* x, i32* sums, u32* done, i32* out",
         "__shared__ int s[256]; __shared__ bool last; s[threadIdx.x] = x[i]; __syncthreads();"
         "if (!threadIdx.x) { int total = 0; for (int k = 0; k < 256; k++) total += s[k]; sums[blockIdx.x] = total; __threadfence();"
         " last = atomicAdd(done, 1) == gridDim.x - 1; } __syncthreads();"
         "if (last && !threadIdx.x) { __threadfence(); int total = 0; for (int k = 0; k < gridDim.x; k++) total += ((volatile int*)sums)[k]; *out = total; }",
         make=lambda rng: [_small(rng), np.zeros(4, np.int32), np.zeros(1, np.uint32), np.zeros(1, np.int32)],
         expect=lambda x, sums, done, out: [x.reshape(4, 256).sum(1), [4], [x.sum()]], **_GRID),
    Case("transpose", "const f32* x, f32* out",
         "__shared__ float t[32][33]; int c = blockIdx.x * 32 + threadIdx.x, r = blockIdx.y * 32 + threadIdx.y;"
         "for (int k = 0; k < 32; k += 8) t[threadIdx.y + k][threadIdx.x] = x[(r + k) * 96 + c]; __syncthreads();"
         "c = blockIdx.y * 32 + threadIdx.x; r = blockIdx.x * 32 + threadIdx.y;"
         "for (int k = 0; k < 32; k += 8) out[(r + k) * 64 + c] = t[threadIdx.x][threadIdx.y + k];", (3, 2), (32, 8),
         lambda rng: [floats(rng, 6144), np.zeros(6144, _F32)], _transpose),
    Case("stencil_of_five", "const f32* x, f32* out",
         "__shared__ float s[260]; int t = threadIdx.x; s[t + 2] = x[i]; if (t < 2) { s[t] = x[max(i - 2, 0)]; s[t + 258] = x[min(i + 256, 1023)]; } __syncthreads();"
         "float sum = 0; for (int k = 0; k < 5; k++) sum += s[t + k]; out[i] = sum * 0.2f;",
         make=lambda rng: [floats(rng, N, wild=False), np.zeros(N, _F32)], expect=_stencil, **_GRID),
    Case("laplace_2d", "const f32* x, f32* out",
         "int c = blockIdx.x * 16 + threadIdx.x, r = blockIdx.y * 16 + threadIdx.y; auto at = [&](int a, int b) { return a < 0 || b < 0 || a > 31 || b > 31 ? 0.0f : x[a * 32 + b]; };"
         "out[r * 32 + c] = (at(r - 1, c) + at(r + 1, c)) + (at(r, c - 1) + at(r, c + 1)) - 4.0f * at(r, c);", (2, 2), (16, 16),
         lambda rng: [floats(rng, N, wild=False), np.zeros(N, _F32)], _laplace),
    Case("three_dimensions", "i32* out",
         "int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z * blockDim.z + threadIdx.z;"
         "out[(z * gridDim.y * blockDim.y + y) * gridDim.x * blockDim.x + x] = x + 100 * y + 10000 * z;", (3, 2, 3), (4, 4, 2),
         lambda rng: [np.zeros(12 * 8 * 6, np.int32)], _cube),
    Case("bitonic_sort", "const i32* x, i32* out",
         "__shared__ int s[256]; int t = threadIdx.x; s[t] = x[i]; __syncthreads();"
         "for (int k = 2; k <= 256; k *= 2) for (int j = k / 2; j; j /= 2) { int o = t ^ j; if (o > t && (s[t] > s[o]) == !(t & k)) { int v = s[t]; s[t] = s[o]; s[o] = v; } __syncthreads(); }"
         "out[i] = s[t];", make=_ints(N), expect=_rank_sort, **_GRID),
    Case("odd_even_sort_of_doubles", "const f64* x, f64* out",
         "__shared__ double s[64]; int t = threadIdx.x; s[t] = x[t]; __syncthreads();"
         "for (int k = 0; k < 64; k++) { if ((t & 1) == (k & 1) && t < 63 && s[t] > s[t + 1]) { double v = s[t]; s[t] = s[t + 1]; s[t + 1] = v; } __syncthreads(); } out[t] = s[t];",
         1, 64, lambda rng: [floats(rng, 64, np.float64, wild=False), np.zeros(64)], lambda x, out: [np.sort(x)]),
    Case("radix_pass", "const u32* x, u32* out",
         "__shared__ unsigned s[256]; __shared__ int base; int t = threadIdx.x; s[t] = x[i]; __syncthreads();"
         "for (int b = 0; b < 32; b++) { unsigned v = s[t]; int bit = v >> b & 1, before = 0, zeros = 0; for (int k = 0; k < 256; k++) { int z = !(s[k] >> b & 1); zeros += z; if (k < t) before += z; }"
         " __syncthreads(); s[bit ? zeros + t - before : before] = v; __syncthreads(); } out[i] = s[t]; if (!t) base = 0;", 1, 256,
         lambda rng: [integers(rng, 256, np.uint32), np.zeros(256, np.uint32)], lambda x, out: [np.sort(x)]),
    Case("stream_compaction", "const i32* x, i32* out, i32* count",
         "__shared__ int offsets[9]; int v = x[i], keep = v > 0, lane = threadIdx.x & 31, w = threadIdx.x >> 5; unsigned m = __ballot_sync(~0u, keep);"
         "if (!lane) offsets[w + 1] = __popc(m); if (!threadIdx.x) offsets[0] = 0; __syncthreads(); if (!threadIdx.x) for (int k = 1; k < 9; k++) offsets[k] += offsets[k - 1]; __syncthreads();"
         "if (keep) out[blockIdx.x * 256 + offsets[w] + __popc(m & ((1u << lane) - 1))] = v; if (!threadIdx.x) count[blockIdx.x] = offsets[8];",
         make=lambda rng: [integers(rng, N), np.zeros(N, np.int32), np.zeros(4, np.int32)], expect=_compact, **_GRID),
    Case("barrier_with_counts", "const i32* x, i32* out",
         "int n = __syncthreads_count(x[i] > 0), a = __syncthreads_and(x[i] != 123456), o = __syncthreads_or(x[i] == 0); out[i] = n * 4 + (a ? 2 : 0) + (o ? 1 : 0);",
         make=_ints(N),
         expect=lambda x, out: [np.repeat((x.reshape(4, 256) > 0).sum(1) * 4 + 2 * (x.reshape(4, 256) != 123456).all(1) + (x.reshape(4, 256) == 0).any(1), 256)],
         **_GRID),
    Case("named_barriers", "const i32* x, i32* out",
         "__shared__ int s[256]; int t = threadIdx.x, h = t >> 7; s[t] = x[i];"
         'if (h) asm volatile("bar.sync 1, 128;" ::: "memory"); else asm volatile("bar.sync 2, 128;" ::: "memory"); out[i] = s[h * 128 + (127 - (t & 127))];',
         make=_ints(N), expect=lambda x, out: [x.reshape(-1, 128)[:, ::-1].reshape(-1)], **_GRID),
    Case("softmax_rows", "const f32* x, f32* out",
         "float v = x[i], m = v; for (int k = 16; k; k >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, k)); float e = expf(v - m), s = e;"
         "for (int k = 16; k; k >>= 1) s += __shfl_xor_sync(~0u, s, k); out[i] = e / s;",
         make=lambda rng: [floats(rng, N, wild=False), np.zeros(N, _F32)],
         expect=lambda x, out: [((e := np.exp((r := x.reshape(-1, 32).astype(np.float64)) - r.max(1, keepdims=True))) / e.sum(1, keepdims=True)).reshape(-1)],
         ulps=8.0, why="ex2.approx, 2 ulp, in each of 33 terms", close=1e-5, **_GRID),
)  # fmt: skip
"""The kernels of this file."""
