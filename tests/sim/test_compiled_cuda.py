"""What NVRTC makes of ordinary CUDA C++ runs too: libm's code, shuffles, atomics, structs, switches, local arrays."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from machine import run

SOURCE = r"""
extern "C" __global__ void functions(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i], *o = y + 6 * i;
    o[0] = expf(v); o[1] = logf(fabsf(v));
    o[2] = sinf(v * 1e6f); o[3] = powf(fabsf(v), 1.7f); o[4] = tanhf(v); o[5] = erff(v);
}
extern "C" __global__ void doubles(const double* x, double* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = x[i], *o = y + 6 * i;
    o[0] = exp(v); o[1] = log(fabs(v));
    o[2] = sin(v * 1e9); o[3] = pow(fabs(v), 1.7); o[4] = sqrt(fabs(v)) / 3.7; o[5] = erf(v);
}
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n) {
    __shared__ float s[16][16], t[16][17];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int k = 0; k < n; k += 16) {
        s[threadIdx.y][threadIdx.x] = a[row * n + k + threadIdx.x];
        t[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * n + column];
        __syncthreads();
        for (int j = 0; j < 16; j++) sum += s[threadIdx.y][j] * t[j][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
extern "C" __global__ void total(const float* x, float* result, int n) {
    __shared__ float partial[32];
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (int k = 16; k; k >>= 1) sum += __shfl_down_sync(~0u, sum, k);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0;
        for (int k = 16; k; k >>= 1) sum += __shfl_down_sync(~0u, sum, k);
        if (!threadIdx.x) atomicAdd(result, sum);
    }
}
struct Packed { int a[3]; double d; };
__device__ __noinline__ float helper(float x, Packed p) { return x * p.a[1] + p.d; }
__constant__ float table[4] = {1, 2, 3, 4};
__device__ int counter;
extern "C" __global__ void mixture(float* y, Packed p) {
    int i = threadIdx.x;
    float local[8];
    for (int k = 0; k < 8; k++) local[k] = k * i;
    float v = local[(i * 7) & 7] + helper(i, p) + table[i & 3];
    switch (i % 5) {
        case 0: v += 1; break;
        case 1: v *= 2; break;
        case 2: v -= 3; break;
        case 3: v /= 4; break;
        default: v = -v;
    }
    atomicAdd(&counter, 1);
    __syncthreads();
    y[i] = v + (i == 0 ? counter : 0);
}
extern "C" __global__ void integers(const long long* a, const long long* b, long long* o) {
    int i = threadIdx.x;
    o[i * 4] = a[i] / b[i]; o[i * 4 + 1] = a[i] % b[i]; o[i * 4 + 2] = __mul64hi(a[i], b[i]);
    o[i * 4 + 3] = __popcll(a[i]) + __clzll(b[i]) + __ffsll(a[i]);
}
"""


@cache
def compiled(arch: str, *options: str) -> str:
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc")
    try:
        error, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"test.cu", 0, [], [])
    except RuntimeError as missing:
        pytest.skip(f"NVRTC cannot be used: {missing}")
    given = [f"--gpu-architecture={arch}".encode(), *[option.encode() for option in options]]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
    assert int(error) == 0
    error, size = nvrtc.nvrtcGetPTXSize(program)
    text = bytearray(size)
    view = bytes(text)
    nvrtc.nvrtcGetPTX(program, view)
    nvrtc.nvrtcDestroyProgram(program)
    return view.decode().rstrip("\0")


@pytest.fixture(params=[("compute_75",), ("compute_90", "-G"), ("compute_90", "--use_fast_math")], ids=" ".join)
def text(request: pytest.FixtureRequest) -> str:
    return compiled(*request.param)


def relative(got: np.ndarray, want: np.ndarray) -> float:
    return float((np.abs(got - want) / np.maximum(np.abs(want), 1e-2)).max())


def test_libm(text: str) -> None:
    fast = "sin.approx" in text
    n = 500
    x = np.random.default_rng(0).standard_normal(n).astype(np.float32)
    out = np.zeros((n, 6), np.float32)
    run(text, x, out, n, entry="functions", grid=(4, 1, 1), block=(128, 1, 1))
    v = x.astype(np.float64)
    far = (x * np.float32(1e6)).astype(np.float64)
    erf = np.array([math.erf(value) for value in v])
    want = np.stack([np.exp(v), np.log(abs(v)), np.sin(far), abs(v) ** 1.7, np.tanh(v), erf], 1)
    if fast:  # sin.approx of a million is as wrong here as on a GPU
        assert np.abs(out[:, 2] - want[:, 2]).max() > 1e-3
        out[:, 2] = want[:, 2]
    assert relative(out, want) < (1e-5 if fast else 6e-7)
    wide = np.zeros((n, 6))
    run(text, v, wide, n, entry="doubles", grid=(4, 1, 1), block=(128, 1, 1))
    want[:, 2] = np.sin(v * 1e9)
    want[:, 4] = np.sqrt(abs(v)) / 3.7
    assert relative(wide, want) < 1e-15


def test_tiles_in_shared_memory(text: str) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((48, 48)).astype(np.float32) for _ in range(2))
    c = np.zeros((48, 48), np.float32)
    run(text, a, b, c, 48, entry="matmul", grid=(3, 3, 1), block=(16, 16, 1))
    assert np.abs(c - a.astype(np.float64) @ b).max() < 1e-5


def test_a_reduction_over_the_grid(text: str) -> None:
    x = np.random.default_rng(0).standard_normal(30_000).astype(np.float32)
    result = np.zeros(1, np.float32)
    run(text, x, result, x.size, entry="total", grid=(7, 1, 1), block=(256, 1, 1))
    assert abs(result[0] - x.astype(np.float64).sum()) < 1e-3


def test_structs_switches_calls_and_variables(text: str) -> None:
    y = np.zeros(64, np.float32)
    packed = np.array([1, 2, 3, 0], np.int32).tobytes() + np.array([0.5]).tobytes()
    run(text, y, packed, entry="mixture", block=(64, 1, 1))
    i = np.arange(64)
    v = ((i * 7) & 7) * i + 2 * i + 0.5 + (i & 3) + 1
    want = np.select([i % 5 == 0, i % 5 == 1, i % 5 == 2, i % 5 == 3], [v + 1, v * 2, v - 3, v / 4], -v)
    want[0] += 64
    assert y.tolist() == want.tolist()


def test_64_bit_integers(text: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(-(2**62), 2**62, 64) >> rng.integers(0, 50, 64)
    b = (rng.integers(-(2**62), 2**62, 64) >> rng.integers(0, 60, 64)) | 1
    out = np.zeros((64, 4), np.int64)
    run(text, a, b, out, entry="integers", block=(64, 1, 1))
    for x, y, row in zip(a.tolist(), b.tolist(), out.tolist(), strict=True):
        quotient = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        bits = bin(x & (2**64 - 1)).count("1") + 64 - (y & (2**64 - 1)).bit_length() + (x & -x).bit_length()
        assert row == [quotient, x - quotient * y, x * y >> 64, bits]
