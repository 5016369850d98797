"""References of the kernels in from_nvrtc/ that use tensor cores: wmma, ldmatrix, mma.sync, movmatrix, stmatrix."""

from __future__ import annotations

from typing import Any

import numpy as np
from tolerances import EPSILON, FOREIGN_BARS, half_ulp
from wild import Array, Bench, Result, Results, case

SUM = FOREIGN_BARS["group_norm"]
"""The bar of a sum in float32: a tensor core cuts each term off 24 or more bits below the largest."""


def rounded(reference: Array, dtype: str, before: float = SUM) -> float:
    """Return the bar of a result that is rounded once to f16 or bf16."""
    return before + float(np.linalg.norm(half_ulp(reference, dtype)) / np.linalg.norm(reference))


def tf32(x: Array) -> Array:
    """Return what a tensor core sees of float32: all but the 13 low bits."""
    return np.asarray((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32), float)


def _wmma(bench: Bench, entry: str, tile: tuple[int, int], left: Array, right: Array, names: tuple[str, str]) -> Array:
    """Run an entry of matrices.cu that takes b by columns, and return c."""
    (m, k), n = left.shape, right.shape[1]
    signature = "const {0}* a, const {0}* b, {1}* c, i32 n, i32 k".format(*names)
    c = bench.empty((m, n), names[1])
    grid = (m // tile[0], n // tile[1])
    bench.load(entry, signature).launch(grid, 32, bench.put(left), bench.put(np.ascontiguousarray(right.T)), c, n, k)
    return c.numpy()


def _operands(bench: Bench, m: int, n: int, k: int, dtype: Any) -> tuple[Array, Array, Array]:
    a, b = bench.normal(m, k).astype(dtype), bench.normal(k, n).astype(dtype)
    return a, b, a.astype(float) @ b.astype(float)


@case("from_nvrtc/matrices.ptx")
def wmma_floats(bench: Bench) -> Results:
    results = {}
    bf16 = bench.empty(1, "bf16").dtype
    a, b, c = _operands(bench, 32, 48, 64, np.float16)
    results["f16"] = Result(_wmma(bench, "wmma_f16", (16, 16), a, b, ("f16", "f32")), c, SUM)
    a, b, c = _operands(bench, 16, 64, 32, np.float16)
    out = _wmma(bench, "wmma_f16_wide", (8, 32), a, b, ("f16", "f16"))
    results["f16 throughout"] = Result(out, c, EPSILON["f16"])
    a, b, c = _operands(bench, 64, 16, 32, bf16)
    results["bf16"] = Result(_wmma(bench, "wmma_bf16", (32, 8), a, b, ("bf16", "f32")), c, SUM)
    a, b, _ = _operands(bench, 32, 16, 24, np.float32)
    results["tf32"] = Result(_wmma(bench, "wmma_tf32", (16, 16), a, b, ("f32", "f32")), tf32(a) @ tf32(b), SUM)
    return results


@case("from_nvrtc/matrices.ptx")
def wmma_exact(bench: Bench) -> Results:
    a, b = bench.rng.integers(-128, 128, (32, 48), np.int8), bench.rng.integers(-128, 128, (48, 16), np.int8)
    whole = _wmma(bench, "wmma_s8", (16, 16), a, b, ("i8", "i32"))
    d, e = bench.rng.integers(-99, 99, (16, 12)).astype(float), bench.rng.integers(-99, 99, (12, 24)).astype(float)
    return {
        "s8": Result(whole, a.astype(np.int32) @ b),
        "f64": Result(_wmma(bench, "wmma_f64", (8, 8), d / 8, e / 8, ("f64", "f64")), d @ e / 64),
    }


@case("from_nvrtc/matrices.ptx")
def wmma_through_shared(bench: Bench) -> Results:
    a, b, product = _operands(bench, 32, 32, 48, np.float16)
    before = bench.normal(32, 32)
    c = bench.put(before)
    kernel = bench.load("wmma_shared", "const f16* a, const f16* b, f32* c, i32 n, i32 k, f32 alpha")
    kernel.launch((2, 2), 32, bench.put(a), bench.put(b), c, 32, 48, -0.75)
    return {"c": Result(c.numpy(), before - 0.75 * product, SUM)}


@case("from_nvrtc/tensor.ptx")
def mma_f16(bench: Bench) -> Results:
    a, b, product = _operands(bench, 32, 48, 64, np.float16)
    c = bench.empty((32, 48))
    kernel = bench.load("mma_f16", "const f16* a, const f16* b, f32* c, i32 n, i32 k")
    kernel.launch((2, 3), 32, bench.put(a), bench.put(b), c, 48, 64)
    return {"c": Result(c.numpy(), product, SUM)}


@case("from_nvrtc/tensor.ptx")
def mma_narrow(bench: Bench) -> Results:
    x, w = bench.normal(16, 4), bench.normal(8, 4)
    outs = [bench.empty((16, 8)) for _ in range(2)]
    kernel = bench.load("mma_narrow", "const f32* x, const f32* w, f32* tf32, f32* bf16")
    kernel.launch(1, 32, bench.put(x), bench.put(w), *outs)
    cut = [(v.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(float) for v in (x, w)]
    return {
        "tf32": Result(outs[0].numpy(), tf32(x) @ tf32(w).T, SUM),
        "bf16": Result(outs[1].numpy(), cut[0] @ cut[1].T, SUM),
    }


@case("from_nvrtc/tensor.ptx")
def mma_exact(bench: Bench) -> Results:
    a, b = bench.rng.integers(-128, 128, (16, 16), np.int8), bench.rng.integers(0, 256, (8, 16), np.uint8)
    c = bench.empty((16, 8), np.int32)
    words = [bench.put(v.view(np.uint32)) for v in (a, b)]
    bench.load("mma_s8", "const u32* a, const u32* b, i32* c").launch(1, 32, *words, c)
    start = np.tile([[1, 2], [3, 4]], (1, 4)).repeat(8, 0)
    d, e, before = (bench.rng.integers(-99, 99, shape).astype(float) for shape in ((8, 4), (8, 4), (8, 8)))
    f = bench.put(before)
    bench.load("mma_f64", "const f64* a, const f64* b, f64* c").launch(1, 32, bench.put(d), bench.put(e), f)
    return {
        "s8": Result(c.numpy(), (a.astype(np.int32) @ b.T.astype(np.int32) + start).astype(np.int32)),
        "f64": Result(f.numpy(), d @ e.T + before),
    }


@case("from_nvrtc/tensor_90.ptx")
def turned_tiles(bench: Bench) -> Results:
    x, y = bench.normal(32, 32, dtype=np.float16), bench.empty((32, 32), np.float16)
    bench.load("turned", "const f16* x[1024], f16* y[1024]").launch(1, 32, bench.put(x), y)
    return {"y": Result(y.numpy(), x.T)}


@case("from_nvrtc/tensor_90.ptx")
def scores(bench: Bench) -> Results:
    x, y = bench.normal(16, 16, dtype=np.float16), bench.empty((16, 16), np.float16)
    bench.load("scores", "const f16* x[256], f16* y[256]").launch(1, 32, bench.put(x), y)
    score = x.astype(float) @ x.T.astype(float) / 4
    power = np.exp(score - score.max(1, keepdims=True))
    reference = power / power.sum(1, keepdims=True)
    return {"y": Result(y.numpy(), reference, rounded(reference, "f16", FOREIGN_BARS["softmax2d"]))}
