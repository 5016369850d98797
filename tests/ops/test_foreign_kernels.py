"""Kernels in the dress of other people's run unmodified: old .version and .target, module-scope shared memory, .approx.

The texts in foreign_kernels/ have the baseline ABI of each op; here it is declared and its kernels are launched through
ptxrt.load, as a user would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Rng, Shape
from tolerances import FOREIGN_BARS, far_from_jumps, grid_sample_bar, relative_error

import ptxrt
from ptxrt import Device
from ptxrt.ops import references

FOLDER = Path(__file__).parent / "foreign_kernels"
pytestmark = [pytest.mark.sanitize, pytest.mark.ptx]

BATCH_NORM = (
    "const f32* in_ptr, f32* out_ptr, const f32* w_ptr, const f32* b_ptr, f32* mean_ptr, f32* var_ptr, "
    "u32 batch, u32 channels, u32 hw, f32 eps, u32 training"
)
BATCH_NORM_BACKWARD = (
    "const f32* in_ptr, const f32* go_ptr, f32* gi_ptr, f32* gw_ptr, f32* gb_ptr, const f32* w_ptr, "
    "const f32* rmean_ptr, const f32* rvar_ptr, u32 batch, u32 channels, u32 hw, f32 eps, u32 training"
)
LRN = "u32 batch, u32 channels, u32 spatial, u32 size, f32 alpha, f32 beta"
SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"


class Entry:
    """An entry of one of the files on one device: called with host arrays, it returns those that it may write."""

    def __init__(self, device: Device, file: str, entry: str, signature: str) -> None:
        source = ptxrt.KernelSource.ptx((FOLDER / f"{file}.ptx").read_text(), name=f"{file}.ptx")
        self.kernel = ptxrt.load(source, entry, signature, device)

    def __call__(self, grid: Any, *args: Any) -> Any:
        there = [ptxrt.to_device(a, self.kernel.device) if isinstance(a, np.ndarray) else a for a in args]
        self.kernel.launch(grid, 256, *there)
        written = [not p.const and p.pointer for p in self.kernel.signature.parameters]
        outputs = [a.to_host() for a, out in zip(there, written, strict=True) if out]
        return outputs[0] if len(outputs) == 1 else outputs


def normal(rng: Rng, *shape: int, dtype: Any = np.float32) -> Any:
    return rng.standard_normal(shape).astype(dtype)


def poison(like: Any, dtype: Any = None) -> Any:
    return np.full_like(like, np.nan, dtype=dtype)


def blocks(threads: int) -> int:
    return -(-threads // 256)


@pytest.mark.parametrize(("n", "c", "hw", "groups"), [(2, 6, 5, 3), (1, 8, 100, 2), (2, 4, 1, 4), (3, 2, 300, 1)])
def test_group_norm(device: Device, rng: Rng, n: int, c: int, hw: int, groups: int) -> None:
    signature = (
        "const f32* in_ptr, f32* out_ptr, const f32* w_ptr, const f32* b_ptr, u32 batch, u32 channels, u32 groups, "
        "u32 hw, f32 eps"
    )
    entry = Entry(device, "group_norm", "group_norm_kernel", signature)
    x, w, b = normal(rng, n, c, hw), normal(rng, c), normal(rng, c)
    y = entry((groups, n), x, poison(x), w, b, n, c, groups, hw, 1e-5)
    assert relative_error(y, references.group_norm(x, w, b, groups)) <= FOREIGN_BARS["group_norm"]


@pytest.mark.parametrize(("n", "c", "hw"), [(2, 6, 150), (3, 1, 7), (1, 40, 300)])
def test_softmax2d(device: Device, rng: Rng, n: int, c: int, hw: int) -> None:
    entry = Entry(
        device, "softmax2d", "softmax2d_kernel", "const f32* in_ptr, f32* out_ptr, u32 total, u32 channels, u32 hw"
    )
    x = 5 * normal(rng, n, c, hw)
    if c > 1:
        x[0, :, 3], x[0, 1, 4], x[0, 1, 5], x[0, 1, 6] = -np.inf, np.nan, -np.inf, np.inf
    y = entry(blocks(n * hw), x, poison(x), n * hw, c, hw)
    assert relative_error(y, references.softmax2d(x)) <= FOREIGN_BARS["softmax2d"]


@pytest.mark.parametrize(("n", "c", "hw"), [(2, 3, 150), (3, 1, 7), (4, 64, 30), (300, 2, 1)])
def test_batch_norm(device: Device, rng: Rng, n: int, c: int, hw: int) -> None:
    entry = Entry(device, "batch_norm", "batch_norm_kernel", BATCH_NORM)
    x, w, b, mean, var = (
        normal(rng, n, c, hw),
        normal(rng, c),
        normal(rng, c),
        normal(rng, c),
        np.abs(normal(rng, c)) + np.float32(0.5),
    )
    y, got_mean, got_var = entry(c, x, poison(x), w, b, poison(mean), poison(var), n, c, hw, 1e-5, 1)
    want, want_mean, want_var = references.batch_norm(x, w, b, None, None, training=True)
    bar = FOREIGN_BARS["batch_norm"]
    assert relative_error(y, want) <= bar
    # A mean may cancel to nearly nothing: its error is measured against the values'.
    assert want_mean is not None
    np.testing.assert_allclose(got_mean, want_mean, rtol=0, atol=bar)
    assert relative_error(got_var, want_var) <= bar
    y, same_mean, same_var = entry(c, x, poison(x), w, b, mean, var, n, c, hw, 1e-5, 0)
    assert relative_error(y, references.batch_norm(x, w, b, mean, var, training=False)[0]) <= bar
    np.testing.assert_array_equal(same_mean, mean)
    np.testing.assert_array_equal(same_var, var)


@pytest.mark.parametrize("training", [0, 1])
@pytest.mark.parametrize(("n", "c", "hw"), [(2, 3, 150), (3, 1, 7), (4, 64, 30), (300, 2, 1)])
def test_batch_norm_backward(device: Device, rng: Rng, n: int, c: int, hw: int, training: int) -> None:
    entry = Entry(device, "batch_norm", "batch_norm_backward_kernel", BATCH_NORM_BACKWARD)
    x, go, w, mean = normal(rng, n, c, hw), normal(rng, n, c, hw), normal(rng, c), normal(rng, c)
    var = np.abs(normal(rng, c)) + np.float32(0.5)
    got = entry(c, x, go, poison(x), poison(w), poison(w), w, mean, var, n, c, hw, 1e-5, training)
    want: Any = references.batch_norm_backward(go, x, w, mean, var, training=bool(training))
    for g, r in zip(got, want, strict=True):
        # Sums over a channel cancel, so the bar is relative to the size of what is summed.
        assert np.linalg.norm(g - r) <= FOREIGN_BARS["batch_norm"] * max(np.linalg.norm(r), np.linalg.norm(go))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 20])
def test_local_response_norm(device: Device, rng: Rng, size: int) -> None:
    forward = Entry(
        device, "local_response_norm", "lrn_forward_kernel", f"const f32* x, f32* y, f32* denom, {LRN}, f32 k"
    )
    backward = Entry(
        device,
        "local_response_norm",
        "lrn_backward_kernel",
        f"const f32* x, const f32* go, const f32* d, f32* gi, {LRN}",
    )
    n, c, hw, alpha, beta, k = 2, 7, 41, 0.5, 0.6, 1.5
    x, go = normal(rng, n, c, hw), normal(rng, n, c, hw)
    bar = FOREIGN_BARS["local_response_norm"]
    y, denom = forward(blocks(x.size), x, poison(x), poison(x), n, c, hw, size, alpha, beta, k)
    want, want_denom = references.local_response_norm(x, size, alpha, beta, k)
    assert relative_error(y, want) <= bar
    assert relative_error(denom, want_denom) <= bar
    gi = backward(blocks(x.size), x, go, denom, poison(x), n, c, hw, size, alpha, beta)
    assert relative_error(gi, references.local_response_norm_backward(go, x, denom, size, alpha, beta)) <= bar


TYPES = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "u8": np.uint8,
    "u32": np.uint32,
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize(("shape", "out"), [((2, 3, 4, 5), (7, 6)), ((1, 2, 6, 4), (3, 9)), ((1, 1, 30, 2), (44, 3))])
def test_upsample_nearest2d(device: Device, rng: Rng, name: str, shape: Shape, out: Any) -> None:
    signature = f"u64 w_out, u64 h_out, f64 w_scale, f64 h_scale, const u64* info, const {name}* src, {name}* dst"
    entry = Entry(device, "upsample_nearest2d", f"upsample_nearest2d_{name}", signature)
    n, c, h, w = shape
    base = rng.integers(0, 255, (n, h, c, w)).astype(TYPES[name])
    x = base.transpose(0, 2, 1, 3)
    info = np.array([*x.shape, *(step // x.itemsize for step in x.strides)], np.uint64)
    y = np.full((n, c, *out), 77).astype(TYPES[name])
    got = entry(blocks(y.size), *out, h / out[0], w / out[1], info, base, y)
    np.testing.assert_array_equal(got, references.upsample_nearest2d(x, *out))


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize(
    ("shape", "out"),
    [
        ((2, 3, 4, 5), (5, 6)),
        ((1, 2, 1, 7), (20, 20)),
        ((1, 2, 3, 1), (4, 4)),
        ((2, 3, 30, 20), (9, 9)),
    ],
)
def test_grid_sample(device: Device, rng: Rng, name: str, shape: Shape, out: Any) -> None:
    dtype = TYPES[name]
    forward = Entry(
        device, "grid_sample", f"grid_sample_{name}", f"const {name}* x, const {name}* g, {name}* y, {SIZES}"
    )
    backward = Entry(
        device,
        "grid_sample",
        f"grid_sample_backward_{name}",
        f"const {name}* dout, const {name}* x, const {name}* g, {name}* dx, {name}* dg, {SIZES}",
    )
    n, c, ih, iw = shape
    x, go = normal(rng, *shape, dtype=dtype), normal(rng, n, c, *out, dtype=dtype)
    grid = rng.uniform(-1.6, 1.6, (n, *out, 2)).astype(dtype)
    grid[0, 0, 0, 0], grid[0, 0, 1, 1], grid[0, 0, 2, 0] = np.nan, np.inf, 1e30
    grid[0, 0, 3], grid[0, 1, 0], grid[0, 1, 1] = -1e30, -1, 1
    sizes = (n, c, ih, iw, *out)
    sx, sy = references.grid_sample_coordinates(grid, ih, iw)
    keep = far_from_jumps(name, ih, iw, sx, sy)
    bar = float(np.max(grid_sample_bar(name, ih, iw)))
    count = blocks(n * out[0] * out[1])
    y = forward(count, x, grid, poison(go), *sizes)
    assert relative_error(y, references.grid_sample(x, grid)) <= bar
    dx, dg = backward(count, go, x, grid, np.zeros_like(x), poison(grid), *sizes)
    want_dx, want_dg = references.grid_sample_backward(go, x, grid)
    assert relative_error(dx, want_dx) <= bar
    assert relative_error(dg[keep], want_dg[keep]) <= bar
