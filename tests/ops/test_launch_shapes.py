"""The baseline entries launched by hand: in the blocks and grids that their ABI leaves open, and in some others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Rng
from op_testing import Guarded, check_error, on_device, wish
from tolerances import bar, grid_sample_bar

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import references
from ptxrt.ops._group_norm import WholeBackwardConfig
from ptxrt.ops._group_norm_last import WholeConfig
from ptxrt.ops.framework.rows import RowsBackwardConfig, RowsConfig
from ptxrt.runtime.layout import channels_last

KERNELS = {(spec.entry, spec.language): spec for spec in ops.kernels()}
in_both = pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])


def language(variant: str) -> str:
    return "ptx" if variant == "baseline" else "hip"


def launch(device: Device, variant: str, entry: str, grid: Any, block: Any, *arguments: Any) -> None:
    """Launch the entry in the variant's language."""
    KERNELS[entry, language(variant)].load(device).launch(grid, block, *arguments)


@in_both
@pytest.mark.parametrize("block", [1, 32, 33, 100, 256, 512])
def test_softmax2d_takes_blocks_of_any_size(device: Device, rng: Rng, variant: str, block: int) -> None:
    x = rng.standard_normal((2, 5, 157)).astype(np.float32)
    y, gi = (Guarded(x.shape, np.float32, device) for _ in range(2))
    there = on_device(x, device)
    grid = -(-314 // block)
    launch(device, variant, "softmax2d_kernel", grid, block, there, y.array, 314, 5, 157)
    limit = bar("softmax2d", "f32")
    check_error("softmax2d", device, y.host(), references.softmax2d(x), limit, block, language(variant))
    launch(device, variant, "softmax2d_backward_kernel", grid, block, there, y.array, gi.array, 314, 5, 157)
    want = references.softmax2d_backward(x, y.host())
    check_error("softmax2d_backward", device, gi.host(), want, limit, block, language(variant))


@in_both
@pytest.mark.parametrize("block", [1, 32, 33, 100, 256, 1024])
@pytest.mark.parametrize(("name", "dtype"), [("f32", np.float32), ("u8", np.uint8)])
def test_upsample_nearest2d_in_blocks_of_any_size(
    device: Device, rng: Rng, variant: str, block: int, name: str, dtype: Any
) -> None:
    x = rng.integers(0, 255, (2, 3, 4, 5)).astype(dtype)
    y = Guarded((2, 3, 7, 9), dtype, device)
    info = on_device(np.array([*x.shape, 60, 20, 5, 1], np.uint64), device)
    arguments = 7, 9, 4 / 7, 5 / 9, info, on_device(x, device), y.array
    launch(device, variant, f"upsample_nearest2d_{name}", -(-378 // block), block, *arguments)
    np.testing.assert_array_equal(y.host(), references.upsample_nearest2d(x, 7, 9))


@in_both
@pytest.mark.parametrize("block", [1, 32, 33, 100, 256])
def test_local_response_norm_takes_blocks_of_any_size(device: Device, rng: Rng, variant: str, block: int) -> None:
    x = rng.standard_normal((2, 7, 23)).astype(np.float32)
    y, denom, gi = (Guarded(x.shape, np.float32, device) for _ in range(3))
    there, grid, sizes = on_device(x, device), -(-322 // block), (2, 7, 23, 5, 1e-2, 0.75)
    launch(device, variant, "lrn_forward_kernel", grid, block, there, y.array, denom.array, *sizes, 1.0)
    want, want_denom = references.local_response_norm(x, 5, 1e-2)
    np.testing.assert_allclose(y.host(), want, rtol=2e-7)
    np.testing.assert_allclose(denom.host(), want_denom, rtol=2e-7)
    launch(device, variant, "lrn_backward_kernel", grid, block, there, there, denom.array, gi.array, *sizes)
    want = references.local_response_norm_backward(x, x, denom.host(), 5, 1e-2)
    check_error("local_response_norm grad_input", device, gi.host(), want, 2e-7, block, language(variant))


@in_both
@pytest.mark.parametrize("size", [(7, 9), (40, 131), (33, 129)], ids=str)
@pytest.mark.parametrize("block", [1, 33, 64, 100, 256])
def test_grid_sample_in_as_many_blocks_as_positions_need(
    device: Device, rng: Rng, variant: str, size: Any, block: int
) -> None:
    if block == 1 and size != (7, 9):
        pytest.skip("thousands of blocks tell no more")
    x = rng.standard_normal((2, 5, 6, 7)).astype(np.float32)
    grid = rng.uniform(-1.3, 1.3, (2, *size, 2)).astype(np.float32)
    x_there, grid_there = on_device(x, device), on_device(grid, device)
    sizes = 2, 5, 6, 7, *size
    for blocks in ((-(-size[0] * size[1] // block),), (2 * size[0] * size[1] // block + 1, 2, 2)):
        y = Guarded((2, 5, *size), np.float32, device)
        launch(device, variant, "grid_sample_f32", blocks, block, x_there, grid_there, y.array, *sizes)
        limit = float(grid_sample_bar("f32", 6, 7))
        want = references.grid_sample(x, grid)
        check_error("grid_sample", device, y.host(), want, limit, (size, block, blocks), language(variant))


@in_both
@pytest.mark.parametrize("blocks", [(1,), (2,), (9, 1, 2), (2, 3, 2), (40, 1, 1)], ids=str)
@pytest.mark.parametrize("block", [32, 33, 100, 255, 256])
def test_grid_sample_backward_in_any_grid_and_block(
    device: Device, rng: Rng, variant: str, blocks: Any, block: int
) -> None:
    x, go = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 11, 6, 7), (2, 11, 7, 9)))
    grid = rng.uniform(-1.3, 1.3, (2, 7, 9, 2)).astype(np.float32)
    gi, gg = ptxrt.zeros(x.shape, np.float32, device), Guarded(grid.shape, np.float32, device)
    there = (on_device(a, device) for a in (go, x, grid))
    launch(device, variant, "grid_sample_backward_f32", blocks, block, *there, gi, gg.array, 2, 11, 6, 7, 7, 9)
    want_gi, want_gg = references.grid_sample_backward(go, x, grid)
    limit, case = float(grid_sample_bar("f32", 6, 7)), (blocks, block)
    check_error("grid_sample grad_input", device, gi.to_host(), want_gi, limit, case, language(variant))
    check_error("grid_sample grad_grid", device, gg.host(), want_gg, limit, case, language(variant))


@pytest.mark.parametrize("block", [32, 64, 96, 128, 256, 1024])
def test_norms_in_hip_take_blocks_of_any_number_of_32_threads(device: Device, rng: Rng, block: int) -> None:
    x = rng.standard_normal((3, 6, 99)).astype(np.float32)
    limit, there = bar("group_norm", "f32"), on_device(x, device)
    y = Guarded(x.shape, np.float32, device)
    launch(device, "hip/baseline", "group_norm_kernel", (3, 2), block, there, y.array, None, None, 3, 6, 3, 99, 1e-5)
    check_error("group_norm", device, y.host(), references.group_norm(x, None, None, 3), limit, block, "hip")
    y, mean, var = (Guarded(shape, np.float32, device) for shape in (x.shape, (6,), (6,)))
    vectors = None, None, mean.array, var.array
    launch(device, "hip/baseline", "batch_norm_kernel", 6, block, there, y.array, *vectors, 3, 6, 99, 1e-5, 1)
    wants: Any = references.batch_norm(x, None, None, None, None, training=True)
    for got, want in zip((y, mean, var), wants, strict=True):
        np.testing.assert_allclose(got.host(), want, rtol=1e-5, atol=1e-6)
    gi, gb = Guarded(x.shape, np.float32, device), Guarded((6,), np.float32, device)
    arguments = there, there, gi.array, None, gb.array, None, None, None, 3, 6, 99, 1e-5, 1
    launch(device, "hip/baseline", "batch_norm_backward_kernel", 6, block, *arguments)
    want = references.batch_norm_backward(x, x, None, None, None, training=True)
    np.testing.assert_allclose(gi.host(), want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gb.host(), want[2], rtol=1e-5, atol=1e-5)


# Where HIP launches no more threads, threads or blocks go on in steps of the grid: here of 2 blocks.


@pytest.mark.parametrize(("tiled", "counts"), [("", (297, 6, 99)), ("tiled_", (3, 6, 99, 1, 1))])
def test_softmax2d_in_hip_in_a_smaller_grid(device: Device, rng: Rng, tiled: str, counts: Any) -> None:
    x = rng.standard_normal((3, 6, 99)).astype(np.float32)
    go, there = on_device(x[::-1].copy(), device), on_device(x, device)
    y, gi = (Guarded(x.shape, np.float32, device) for _ in range(2))
    launch(device, "hip/baseline", f"softmax2d_{tiled}kernel", 2, 64, there, y.array, *counts)
    launch(device, "hip/baseline", f"softmax2d_backward_{tiled}kernel", 2, 64, go, y.array, gi.array, *counts)
    limit = bar("softmax2d", "f32")
    check_error("softmax2d", device, y.host(), references.softmax2d(x), limit, "2 blocks", "hip")
    want = references.softmax2d_backward(x[::-1], y.host())
    check_error("softmax2d_backward", device, gi.host(), want, limit, "2 blocks", "hip")


def test_group_norm_in_hip_in_a_smaller_grid(device: Device, rng: Rng) -> None:
    x = rng.standard_normal((3, 6, 99)).astype(np.float32)
    go, there = on_device(x[::-1].copy(), device), on_device(x, device)
    y, gi, gw, gb = (Guarded(shape, np.float32, device) for shape in (x.shape, x.shape, (6,), (6,)))
    sizes, weight = (3, 6, 3, 99), ptxrt.full((6,), 1, np.float32, device)
    scratch = ptxrt.zeros(4 * 18, np.float64, device), ptxrt.zeros(5 * 9, np.float64, device)
    for entry, grid, *arguments in (
        ("kernel", (2, 2), there, y.array, None, None, *sizes, 1e-5),
        ("backward_groups_kernel", (2, 2), there, go, gi.array, weight, *scratch, *sizes, 1e-5, 1, 99, 4),
        ("backward_parameters_kernel", 2, *scratch, gw.array, gb.array, 3, 6, 3, 1),
    ):
        launch(device, "hip/baseline", f"group_norm_{entry}", grid, 64, *arguments)
    limit, what = bar("group_norm", "f32"), ("", " grad_input", " grad_weight", " grad_bias")
    wants = references.group_norm(x, None, None, 3), *references.group_norm_backward(x[::-1], x, np.ones(6), 3)
    for name, got, want in zip(what, (y, gi, gw, gb), wants, strict=True):
        check_error(f"group_norm{name}", device, got.host(), want, limit, "2 blocks", "hip")


def test_upsample_nearest2d_in_hip_in_a_smaller_grid(device: Device, rng: Rng) -> None:
    x = rng.standard_normal((3, 6, 9, 11)).astype(np.float32)
    y = Guarded((3, 6, 13, 7), np.float32, device)
    info = on_device(np.array([*x.shape, 594, 99, 11, 1], np.uint64), device)
    arguments = 13, 7, 9 / 13, 11 / 7, info, on_device(x, device), y.array
    launch(device, "hip/baseline", "upsample_nearest2d_f32", 2, 64, *arguments)
    np.testing.assert_array_equal(y.host(), references.upsample_nearest2d(x, 13, 7))


@in_both
def test_upsample_nearest2d_backward_in_a_smaller_grid(device: Device, rng: Rng, variant: str) -> None:
    go, gi = rng.standard_normal((3, 6, 13, 7)).astype(np.float32), Guarded((3, 6, 9, 11), np.float32, device)
    places = ([*np.searchsorted(references.nearest_source_indices(n, m), range(n)), m] for n, m in ((9, 13), (11, 7)))
    tables = (on_device(np.array(each, np.uint64), device) for each in places)
    arguments = on_device(go, device), gi.array, *tables, 18 * 99, 6, 9, 11, 6 * 91, 91, 7, 1
    launch(device, variant, "upsample_nearest2d_backward_f32", 2, 64, *arguments)
    np.testing.assert_allclose(gi.host(), references.upsample_nearest2d_backward(go, 9, 11), rtol=1e-6, atol=1e-6)


@pytest.mark.ptx
@pytest.mark.parametrize("block", [32, 255, 512])
def test_norms_in_ptx_refuse_blocks_that_are_not_of_256(device: Device, block: int) -> None:
    x = ptxrt.zeros((1, 2, 8), np.float32, device)
    for entry, grid, vectors, scalars in (
        ("group_norm_kernel", (1, 1), (None, None), (1, 2, 1, 8, 1e-5)),
        ("batch_norm_kernel", 2, (None, None, x, x), (1, 2, 8, 1e-5, 0)),
    ):
        with pytest.raises(ptxrt.LaunchError):
            launch(device, "baseline", entry, grid, block, x, x, *vectors, *scalars)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize(
    ("plan", "problem", "variant", "config"),
    [
        (ops.LayerNormPlan, ((8, 64), (64,)), "baseline", (RowsConfig,)),
        (ops.RmsNormPlan, ((8, 64), (64,)), "baseline", (RowsConfig,)),
        (ops.LayerNormBackwardPlan, ((8, 64), (64,)), "baseline", (RowsBackwardConfig, 16)),
        (ops.RmsNormBackwardPlan, ((8, 64), (64,)), "baseline", (RowsBackwardConfig, 16)),
        (ops.GroupNormPlan, ((2, 8, 6), 4), "baseline", (WholeConfig,)),
        (ops.GroupNormBackwardPlan, ((2, 8, 6), 4), "baseline", (WholeBackwardConfig, 512)),
        (ops.GroupNormPlan, ((2, 8, 6), 4), "channels_last", (WholeConfig,)),
        (ops.GroupNormBackwardPlan, ((2, 8, 6), 4), "channels_last", (WholeConfig,)),
    ],
    ids=lambda value: getattr(value, "op", value if isinstance(value, str) else ""),
)
def test_plans_of_norms_refuse_warps_that_no_entry_has(
    sim: Device, plan: Any, problem: Any, variant: str, config: Any, dtype: str
) -> None:
    more: Any = {"strides": channels_last(problem[0])} if variant == "channels_last" else {}
    descriptor = plan.descriptor_type(*problem, dtype=BY_NAME[dtype], **more)
    kind, *rest = config
    most = 16 if dtype == "f64" else 32
    for key, taken, refused, words in (
        (variant, (1, 8), (0, 2, 16), "1 warp or 8"),
        (f"hip/{variant}", (1, 2, most), (0, most + 1), f"1 warp to {most}"),
    ):
        for warps in taken:
            chosen = plan.select(sim, descriptor, wish(key, config=kind(warps, *rest)))
            assert all(each.block <= each.kernel.load(sim).resources.max_threads for each in chosen.schedule.launches)
        for warps in refused:
            with pytest.raises(ptxrt.Unsupported, match=f"{words}, not {warps}"):
                plan.select(sim, descriptor, wish(key, config=kind(warps, *rest)))
