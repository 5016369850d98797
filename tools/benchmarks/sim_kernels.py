"""The kernels that the benchmark of the PTX machine runs: those of the ops, and matmuls that NVRTC and Triton make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import ROOT
from ptxrt.compilers import nvrtc
from ptxrt.ops.framework.texts import read_kernel

__all__ = ["CASES", "Case"]

_THREADS = 256
_IMAGE = "u32 batch, u32 channels, u32 spatial, u32 size, f32 alpha, f32 beta"
_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"

_MATMUL = """
// c = a @ b, all N x N and row by row, in tiles of 16 x 16 through shared memory.
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int n)
{
    __shared__ float as[16][16], bs[16][16];
    int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
    float sum = 0;
    for (int tile = 0; tile < n; tile += 16) {
        as[threadIdx.y][threadIdx.x] = a[row * n + tile + threadIdx.x];
        bs[threadIdx.y][threadIdx.x] = b[(tile + threadIdx.y) * n + column];
        __syncthreads();
        for (int k = 0; k < 16; k++) sum += as[threadIdx.y][k] * bs[k][threadIdx.x];
        __syncthreads();
    }
    c[row * n + column] = sum;
}
"""


@dataclass(frozen=True)
class Case:
    """A row.

    Attributes
    ----------
    name, shape
        For people.
    text
        Returns the PTX.
    entry, signature
        As for `ptxrt.load`.
    grid, block
        Of the launch.
    values
        Returns the arguments, arrays and numbers; made anew from a seed.
    seconds
        What the launch may take, where that is bounded.
    rate
        Whether the bound of lane-instructions a second holds for it: for the kernels of the ops it does.
    shared_bytes
        Dynamic shared memory a block.
    """

    name: str
    shape: str
    text: Callable[[], str]
    entry: str
    signature: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    values: Callable[[], list[Any]]
    seconds: float | None = None
    rate: bool = True
    shared_bytes: int = 0


def _file(path: Path) -> Callable[[], str]:
    return lambda: path.read_text("ascii")


def _foreign(name: str) -> Callable[[], str]:
    return _file(ROOT / "tests" / "ops" / "foreign_kernels" / f"{name}.ptx")


def _normal(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape, np.float32)


def _empty(*shape: int) -> Any:
    return np.full(shape, np.nan, np.float32)


def _grid(threads: int) -> tuple[int, int, int]:
    return -(-threads // _THREADS), 1, 1


def _group_norm(name: str, text: Callable[[], str], seconds: float | None) -> Case:
    n, c, hw, groups = 8, 128, 1024, 32
    return Case(
        name, f"{n}x{c}x{hw}", text, "group_norm_kernel",
        "const f32* x, f32* y, const f32* w, const f32* b, u32 batch, u32 channels, u32 groups, u32 hw, f32 eps",
        (groups, n, 1), (_THREADS, 1, 1),
        lambda: [_normal(n, c, hw), _empty(n, c, hw), _normal(c), _normal(c), n, c, groups, hw, 1e-5],
        seconds,
    )  # fmt: skip


def _softmax2d() -> Case:
    n, c, hw = 8, 256, 4096
    return Case(
        "softmax2d", f"{n}x{c}x{hw}", _foreign("softmax2d"), "softmax2d_kernel",
        "const f32* x, f32* y, u32 total, u32 channels, u32 hw", _grid(n * hw), (_THREADS, 1, 1),
        lambda: [_normal(n, c, hw), _empty(n, c, hw), n * hw, c, hw], 0.5,
    )  # fmt: skip


def _batch_norm(n: int = 8, c: int = 64, hw: int = 1024) -> list[Case]:
    tail = "u32 batch, u32 channels, u32 hw, f32 eps, u32 training"
    scalars = [n, c, hw, 1e-5, 1]
    return [
        Case(
            "batch_norm", f"{n}x{c}x{hw}", _foreign("batch_norm"), "batch_norm_kernel",
            f"const f32* x, f32* y, const f32* w, const f32* b, f32* mean, f32* var, {tail}", (c, 1, 1),
            (_THREADS, 1, 1), lambda: [_normal(n, c, hw), _empty(n, c, hw), *map(_normal, [c] * 4), *scalars],
        ),
        Case(
            "batch_norm backward", f"{n}x{c}x{hw}", _foreign("batch_norm"), "batch_norm_backward_kernel",
            f"const f32* x, const f32* go, f32* gi, f32* gw, f32* gb, const f32* w, const f32* mean, const f32* var, "
            f"{tail}", (c, 1, 1), (_THREADS, 1, 1),
            lambda: [_normal(n, c, hw), _normal(n, c, hw), _empty(n, c, hw), *map(_normal, [c] * 5), *scalars],
        ),
    ]  # fmt: skip


def _lrn(n: int = 4, c: int = 64, hw: int = 1024) -> list[Case]:
    scalars = [n, c, hw, 5, 1e-4, 0.75]
    large = (n, c, hw)
    return [
        Case(
            "local_response_norm", f"{n}x{c}x{hw}", _foreign("local_response_norm"), "lrn_forward_kernel",
            f"const f32* x, f32* y, f32* denom, {_IMAGE}, f32 k", _grid(n * c * hw), (_THREADS, 1, 1),
            lambda: [_normal(*large), _empty(*large), _empty(*large), *scalars, 2.0],
        ),
        Case(
            "local_response_norm backward", f"{n}x{c}x{hw}", _foreign("local_response_norm"), "lrn_backward_kernel",
            f"const f32* x, const f32* go, const f32* d, f32* gi, {_IMAGE}", _grid(n * c * hw), (_THREADS, 1, 1),
            lambda: [_normal(*large), _normal(*large), 2 + abs(_normal(*large)), _empty(*large), *scalars],
        ),
    ]  # fmt: skip


def _upsample(n: int = 2, c: int = 32, side: int = 64) -> Case:
    info = [n, c, side, side, c * side * side, side * side, side, 1]
    return Case(
        "upsample_nearest2d", f"{n}x{c}x{side}x{side} to {2 * side}x{2 * side}", _foreign("upsample_nearest2d"),
        "upsample_nearest2d_f32",
        "u64 w_out, u64 h_out, f64 w_scale, f64 h_scale, const u64* info, const f32* src, f32* dst",
        _grid(4 * n * c * side * side), (_THREADS, 1, 1),
        lambda: [2 * side, 2 * side, 0.5, 0.5, np.array(info, np.uint64), _normal(n, c, side, side),
                 _empty(n, c, 2 * side, 2 * side)],
    )  # fmt: skip


def _grid_sample(n: int = 2, c: int = 16, side: int = 128) -> list[Case]:
    sizes = [n, c, side, side, side, side]
    image = (n, c, side, side)

    def points() -> Any:
        return np.random.default_rng(5).uniform(-1.1, 1.1, (n, side, side, 2)).astype(np.float32)

    return [
        Case(
            "grid_sample", f"{n}x{c}x{side}x{side}", _foreign("grid_sample"), "grid_sample_f32",
            f"const f32* x, const f32* g, f32* y, {_SIZES}", _grid(n * side * side), (_THREADS, 1, 1),
            lambda: [_normal(*image), points(), _empty(*image), *sizes],
        ),
        Case(
            "grid_sample backward", f"{n}x{c}x{side}x{side}", _foreign("grid_sample"), "grid_sample_backward_f32",
            f"const f32* dout, const f32* x, const f32* g, f32* dx, f32* dg, {_SIZES}", _grid(n * side * side),
            (_THREADS, 1, 1),
            lambda: [_normal(*image), _normal(*image), points(), np.zeros(image, np.float32), points(), *sizes],
        ),
    ]  # fmt: skip


def _matmul(n: int = 256) -> Case:
    return Case(
        "matmul by NVRTC", f"{n}x{n}x{n}",
        lambda: nvrtc.compile_cuda(_MATMUL, "sm_90", output="ptx", name="matmul.cu").code.decode("ascii"), "matmul",
        "const f32* a, const f32* b, f32* c, i32 n", (n // 16, n // 16, 1), (16, 16, 1),
        lambda: [_normal(n, n), _normal(n, n), _empty(n, n), n], rate=False,
    )  # fmt: skip


def _matmul_on_tensor_cores(n: int = 256) -> Case:
    def half() -> Any:
        return _normal(n, n).astype(np.float16)

    return Case(
        "matmul by Triton, mma.sync, f16", f"{n}x{n}x{n}",
        _file(ROOT / "tests" / "wild" / "from_triton" / "matmul_f16_large.ptx"), "matmul",
        "const f16* a, const f16* b, f32* c, i32 m, i32 n, i32 k, u64 scratch, u64 profile",
        (n // 128, n // 128, 1), (256, 1, 1), lambda: [half(), half(), _empty(n, n), n, n, n, 0, 0], 2.0, rate=False,
        shared_bytes=32768,
    )  # fmt: skip


CASES = (
    _group_norm("group_norm", _foreign("group_norm"), 0.2),
    _group_norm("group_norm of kernels_ptx", lambda: read_kernel("group_norm").text, None),
    _softmax2d(),
    *_batch_norm(),
    *_lrn(),
    _upsample(),
    *_grid_sample(),
    _matmul(),
    _matmul_on_tensor_cores(),
)
"""Every row of the benchmark that takes time."""
