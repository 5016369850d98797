"""References of the kernels in from_triton/, which Triton has compiled for sm_80."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from on_tensor_cores import SUM, rounded, tf32
from tolerances import EPSILON, FOREIGN_BARS
from wild import HERE, Array, Bench, Result, Results, case

KERNELS: dict[str, dict[str, Any]] = json.loads((HERE / "from_triton" / "kernels.json").read_text())["kernels"]
LOG2E = 1.4426950408889634


class Launch:
    """Launches what a file of from_triton/ has, with the threads and the shared memory that Triton says it needs."""

    def __init__(self, bench: Bench, name: str) -> None:
        facts = KERNELS[name]
        self.kernel = bench.load(facts["entry"], facts["signature"])
        self.block, self.shared_bytes = facts["threads"], facts["shared_bytes"]
        self.constants = facts["constants"]

    def __call__(self, grid: Any, *args: Any) -> None:
        # The last two are Triton's scratch memory, which these kernels do not use.
        self.kernel.launch(grid, self.block, *args, None, None, shared_bytes=self.shared_bytes)


def softmax(x: Array, axis: int = -1) -> Array:
    power = np.exp(x.astype(float) - x.max(axis, keepdims=True))
    return np.asarray(power / power.sum(axis, keepdims=True))


@case("from_triton/softmax_rows.ptx")
def softmax_rows(bench: Bench) -> Results:
    x, y = bench.normal(7, 203), bench.empty((7, 203))
    Launch(bench, "softmax_rows")(7, bench.put(x), y, 203, 203)
    return {"y": Result(y.numpy(), softmax(x), FOREIGN_BARS["softmax2d"])}


@case("from_triton/softmax_turned.ptx")
def softmax_turned(bench: Bench) -> Results:
    x, y = bench.normal(3, 32, 64, dtype=np.float16), bench.empty((3, 64, 32), np.float16)
    Launch(bench, "softmax_turned")(3, bench.put(x), y)
    reference = softmax(x).swapaxes(1, 2)
    return {"y": Result(y.numpy(), reference, rounded(reference, "f16", FOREIGN_BARS["softmax2d"]))}


def _normal(x: Array, eps: float) -> tuple[Array, Array, Array]:
    wide = x.astype(float)
    mean = wide.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(((wide - mean) ** 2).mean(1, keepdims=True) + eps)
    return mean, rstd, (wide - mean) * rstd


@case("from_triton/layer_norm_forward.ptx")
def layer_norm_forward(bench: Bench) -> Results:
    x, w, b = bench.normal(6, 200), bench.normal(200), bench.normal(200)
    y, mean, rstd = bench.empty((6, 200)), bench.empty(6), bench.empty(6)
    Launch(bench, "layer_norm_forward")(6, bench.put(x), y, bench.put(w), bench.put(b), mean, rstd, 200, 1e-5)
    middle, scale, normal = _normal(x, 1e-5)
    bar = FOREIGN_BARS["group_norm"]
    return {
        "y": Result(y.numpy(), normal * w + b, bar),
        "mean": Result(mean.numpy(), middle[:, 0], bar),
        "rstd": Result(rstd.numpy(), scale[:, 0], bar),
    }


def _backward(bench: Bench) -> tuple[Array, Array, Array, Array, Array, Array, Array]:
    x, dy, w = bench.normal(10, 200), bench.normal(10, 200), bench.normal(200)
    mean, rstd, normal = _normal(x, 1e-5)
    return x, dy, w, np.float32(mean[:, 0]), np.float32(rstd[:, 0]), rstd, normal


@case("from_triton/layer_norm_backward.ptx")
def layer_norm_backward(bench: Bench) -> Results:
    x, dy, w, mean, rstd, scale, normal = _backward(bench)
    dx, dw, db = bench.empty((10, 200)), bench.empty((4, 200)), bench.empty((4, 200))
    inputs = [bench.put(one) for one in (dy, x, w, mean, rstd)]
    Launch(bench, "layer_norm_backward")(4, dx, *inputs, dw, db, 10, 200)
    grad = w * dy.astype(float)
    means = (normal * (normal * grad).mean(1, keepdims=True), grad.mean(1, keepdims=True))
    parts = [slice(part, None, 4) for part in range(4)]
    bar = FOREIGN_BARS["group_norm"]
    return {
        "dx": Result(dx.numpy(), (grad - means[0] - means[1]) * scale, bar),
        "dw": Result(dw.numpy(), np.array([(dy * normal)[part].sum(0) for part in parts]), bar),
        "db": Result(db.numpy(), np.array([dy.astype(float)[part].sum(0) for part in parts]), bar),
    }


@case("from_triton/layer_norm_atomic.ptx")
def layer_norm_atomic(bench: Bench) -> Results:
    x, dy, _, mean, rstd, _, normal = _backward(bench)
    dw = bench.put(np.ones(200, np.float32))
    Launch(bench, "layer_norm_atomic")(10, *(bench.put(one) for one in (dy, x, mean, rstd)), dw, 200)
    return {"dw": Result(dw.numpy(), (dy * normal).sum(0) + 1, FOREIGN_BARS["group_norm"])}


def _matmul(bench: Bench, name: str, a: Array, b: Array, dtype: Any) -> Array:
    (m, k), n = a.shape, b.shape[1]
    launch, c = Launch(bench, name), bench.empty((m, n), dtype)
    grid = (-(-m // launch.constants["BM"]), -(-n // launch.constants["BN"]))
    launch(grid, bench.put(a), bench.put(b), c, m, n, k)
    return c.numpy()


@case("from_triton/matmul_f16.ptx")
def matmul_f16(bench: Bench) -> Results:
    a, b = bench.normal(48, 96, dtype=np.float16), bench.normal(96, 80, dtype=np.float16)
    reference = a.astype(float) @ b.astype(float)
    return {"c": Result(_matmul(bench, "matmul_f16", a, b, np.float16), reference, rounded(reference, "f16"))}


@case("from_triton/matmul_f16_large.ptx")
def matmul_f16_large(bench: Bench) -> Results:
    a, b = bench.normal(128, 64, dtype=np.float16), bench.normal(64, 128, dtype=np.float16)
    return {"c": Result(_matmul(bench, "matmul_f16_large", a, b, np.float32), a.astype(float) @ b.astype(float), SUM)}


@case("from_triton/matmul_f16_sum_f16.ptx")
def matmul_f16_sum_f16(bench: Bench) -> Results:
    a, b = bench.normal(32, 64, dtype=np.float16), bench.normal(64, 64, dtype=np.float16)
    reference = a.astype(float) @ b.astype(float)
    return {"c": Result(_matmul(bench, "matmul_f16_sum_f16", a, b, np.float16), reference, EPSILON["f16"])}


@case("from_triton/matmul_bf16.ptx")
def matmul_bf16(bench: Bench) -> Results:
    bf16 = bench.empty(1, "bf16").dtype
    a, b = bench.normal(64, 64).astype(bf16), bench.normal(64, 96).astype(bf16)
    reference = a.astype(float) @ b.astype(float)
    out = _matmul(bench, "matmul_bf16", a, b, bf16)
    return {"c": Result(out, reference, rounded(reference, "bf16"))}


@case("from_triton/matmul_tf32.ptx")
def matmul_tf32(bench: Bench) -> Results:
    a, b = bench.normal(64, 96), bench.normal(96, 48)
    return {"c": Result(_matmul(bench, "matmul_tf32", a, b, np.float32), tf32(a) @ tf32(b), SUM)}


@case("from_triton/matmul_s8.ptx")
def matmul_s8(bench: Bench) -> Results:
    a, b = bench.rng.integers(-128, 128, (48, 128), np.int8), bench.rng.integers(-128, 128, (128, 64), np.int8)
    return {"c": Result(_matmul(bench, "matmul_s8", a, b, np.int32), a.astype(np.int32) @ b.astype(np.int32))}


def _attention(q: Array, k: Array, v: Array, do: Array, scale: float) -> dict[str, Array]:
    """Causal attention and its gradients, over arrays (heads, length, D)."""
    q, k, v, do = (one.astype(float) for one in (q, k, v, do))
    score = np.where(np.tri(q.shape[1], dtype=bool), q @ k.swapaxes(1, 2) * scale, -np.inf)
    p = softmax(score)
    o = p @ v
    most = score.max(2)
    ds = p * (do @ v.swapaxes(1, 2) - (o * do).sum(2, keepdims=True)) * scale
    return {
        "o": o,
        "lse": (most + np.log(np.exp(score - most[..., None]).sum(2))) * LOG2E,
        "delta": (o * do).sum(2),
        "dq": ds @ k,
        "dk": ds.swapaxes(1, 2) @ q,
        "dv": p.swapaxes(1, 2) @ do,
    }


HEADS, LENGTH, D, SCALE = 2, 96, 32, 0.125

# The weights, and their gradients, are rounded to f16 before the second product, and so is the result.
HALVES = EPSILON["f16"]


def _heads(bench: Bench) -> tuple[list[Any], dict[str, Array]]:
    """Return q, k, v and do on the device, and the reference."""
    q, k, v, do = (bench.normal(HEADS, LENGTH, D, dtype=np.float16) for _ in range(4))
    return [bench.put(one) for one in (q, k, v, do)], _attention(q, k, v, do, SCALE)


@case("from_triton/attention_forward.ptx")
def attention_forward(bench: Bench) -> Results:
    (q, k, v, _), reference = _heads(bench)
    o, lse = bench.empty((HEADS, LENGTH, D), np.float16), bench.empty((HEADS, LENGTH))
    Launch(bench, "attention_forward")((LENGTH // 32, HEADS), q, k, v, o, lse, SCALE, LENGTH)
    return {
        "o": Result(o.numpy(), reference["o"], HALVES),
        "lse": Result(lse.numpy(), reference["lse"], FOREIGN_BARS["softmax2d"]),
    }


@case("from_triton/attention_delta.ptx")
def attention_delta(bench: Bench) -> Results:
    o, do = (bench.normal(HEADS, LENGTH, D, dtype=np.float16) for _ in range(2))
    delta = bench.empty((HEADS, LENGTH))
    Launch(bench, "attention_delta")((LENGTH // 32, HEADS), bench.put(o), bench.put(do), delta, LENGTH)
    return {"delta": Result(delta.numpy(), (o.astype(float) * do).sum(2), FOREIGN_BARS["group_norm"])}


@case("from_triton/attention_backward_kv.ptx")
def attention_backward_kv(bench: Bench) -> Results:
    arrays, reference = _heads(bench)
    sums = [bench.put(reference[name].astype(np.float32)) for name in ("lse", "delta")]
    dk, dv = (bench.empty((HEADS, LENGTH, D), np.float16) for _ in range(2))
    Launch(bench, "attention_backward_kv")((LENGTH // 32, HEADS), *arrays, *sums, dk, dv, SCALE, LENGTH)
    return {"dk": Result(dk.numpy(), reference["dk"], HALVES), "dv": Result(dv.numpy(), reference["dv"], HALVES)}


@case("from_triton/attention_backward_q.ptx")
def attention_backward_q(bench: Bench) -> Results:
    arrays, reference = _heads(bench)
    sums = [bench.put(reference[name].astype(np.float32)) for name in ("lse", "delta")]
    dq = bench.empty((HEADS, LENGTH, D), np.float16)
    Launch(bench, "attention_backward_q")((LENGTH // 32, HEADS), *arrays, *sums, dq, SCALE, LENGTH)
    return {"dq": Result(dq.numpy(), reference["dq"], HALVES)}
