"""grid_sample forward: its values, its edges, and each of its checks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Rng, Shape
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, on_device, variants, wish
from tolerances import grid_sample_bar, relative_error, rounded_bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, BY_NUMPY
from ptxrt.ops import GridSampleArgs, GridSampleDescriptor, GridSamplePlan, grid_sample, references
from ptxrt.ops._grid_sample import FAMILY, ChannelsConfig, WidthConfig

TYPES: dict[str, Any] = {name: BY_NAME[name].numpy.type for name in FAMILY.dtypes}
HALVES = ("f16", "bf16")
OUTSIDE = [np.nan, np.inf, -np.inf, 1e30, -1e30, 3e38, 1.0e10, -2.0, 2.0]
both_types = pytest.mark.parametrize("name", ["f32", "f64"])
each_type = pytest.mark.parametrize("name", TYPES)
of_16_bits = pytest.mark.parametrize("name", HALVES)
# The general ones have their own tests in test_grid_sample_modes.py, that of cells in test_grid_sample_tiled.py. That
# for channels-last images is at the end.
VARIANTS = [key for key in variants(GridSamplePlan) if not any(way in key for way in ("general", "last", "cells"))]
each_variant = pytest.mark.parametrize("variant", VARIANTS)
LOOPS = [key for key in VARIANTS if "tiled" not in key]  # whose blocks take several images


def problem(rng: Rng, shape: Shape, size: Any, name: str = "f32", spread: float = 1.4) -> Any:
    """Return an image, and a grid of points inside and outside of it."""
    x = rng.standard_normal(shape).astype(TYPES[name])
    return x, rng.uniform(-spread, spread, (shape[0], *size, 2)).astype(TYPES[name])


def run(device: Device, variant: Any, x: Any, grid: Any, offsets: Any = (0, 0, 0)) -> Any:
    """Run into a poisoned, guarded output; check the guards; return the host result."""
    plan = select(device, x.shape, grid.shape, BY_NUMPY[x.dtype].name, variant)
    out = Guarded((*x.shape[:2], *grid.shape[1:3]), x.dtype, device, offsets[2])
    there = on_device(x, device, offsets[0]), on_device(grid, device, offsets[1])
    assert plan.run(GridSampleArgs(*there, out.array)) is out.array
    return out.host()


def check(device: Device, variant: Any, x: Any, grid: Any, **how: Any) -> None:
    name, want = BY_NUMPY[x.dtype].name, references.grid_sample(x, grid)
    bar = rounded_bar(float(grid_sample_bar(name, *x.shape[2:])), name, want)
    case = f"{x.shape} -> {grid.shape[1:3]} {variant}"
    check_error("grid_sample", device, run(device, variant, x, grid, **how), want, bar, case)


def pixels(ih: Any, iw: Any, name: str = "f32") -> Any:
    """Return the grid of all pixel centres, exact where the sizes are powers of two."""
    rows, columns = (2 * np.arange(ih) + 1) / ih - 1, (2 * np.arange(iw) + 1) / iw - 1
    return np.stack(np.meshgrid(columns, rows), axis=-1)[None].astype(TYPES[name])


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 3, 4, 5), (5, 6)),
        ((1, 1, 1, 1), (1, 1)),
        ((1, 2, 1, 7), (20, 20)),  # one row
        ((1, 2, 7, 1), (3, 11)),  # one column
        ((3, 4, 30, 20), (1, 31)),
        ((1, 5, 6, 6), (1, 32)),
        ((1, 6, 6, 6), (33, 1)),
        ((2, 7, 5, 3), (5, 51)),  # 255 positions
        ((1, 8, 5, 3), (4, 64)),
        ((1, 9, 5, 3), (1, 257)),
        ((1, 1, 3, 5), (32, 127)),  # the widest and the highest that are not in tiles
        ((1, 2, 3, 5), (31, 129)),
        ((2, 2, 3, 5), (32, 129)),
        ((1, 3, 9, 5), (33, 161)),
        ((1, 1, 4, 4), (2, 1031)),
    ],
    ids=str,
)
@both_types
@pytest.mark.sanitize
@each_variant
def test_matches_the_reference(device: Device, rng: Rng, variant: str, name: str, shape: Shape, size: Any) -> None:
    check(device, variant, *problem(rng, shape, size, name))


@pytest.mark.parametrize("channels", [*range(1, 10), 13, 64, 67])
@each_variant
def test_any_number_of_channels(device: Device, rng: Rng, variant: str, channels: Any) -> None:
    check(device, variant, *problem(rng, (2, channels, 4, 3), (3, 5)))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 9, 14, 67])
@pytest.mark.ptx
def test_parts_of_the_channels(device: Device, rng: Rng, channels: int) -> None:
    """More parts than channels, four by four with others' between, and all of them in turn."""
    x, grid = problem(rng, (2, channels, 4, 3), (3, 5))
    descriptor = GridSampleDescriptor(x.shape, grid.shape)
    results = []
    for count in (1, 4, 12, 64):
        plan = GridSamplePlan.select(device, descriptor, wish("baseline", config=ChannelsConfig(count)))
        out = Guarded((2, channels, 3, 5), x.dtype, device)
        plan.run(GridSampleArgs(on_device(x, device), on_device(grid, device), out.array))
        results.append(out.host())
    want = references.grid_sample(x, grid)
    check_error("grid_sample", device, results[0], want, float(grid_sample_bar("f32", 4, 3)), str(x.shape))
    assert all(each.tobytes() == results[0].tobytes() for each in results)


@of_16_bits
@pytest.mark.parametrize(
    ("shape", "size"), [((2, 3, 4, 5), (5, 6)), ((1, 9, 5, 3), (1, 257)), ((2, 1, 3, 5), (33, 161))], ids=str
)
@pytest.mark.sanitize
@each_variant
def test_a_result_of_16_bits_is_one_rounding_of_that_of_f32(
    device: Device, rng: Rng, variant: str, name: str, shape: Shape, size: Any
) -> None:
    x, grid = problem(rng, shape, size, name)
    want = run(device, variant, x.astype(np.float32), grid.astype(np.float32)).astype(TYPES[name])
    for offset in (0, 1):  # of a grid whose points lie in words, and of one whose do not
        assert run(device, variant, x, grid, (1, offset, 1)).tobytes() == want.tobytes()


@each_type
def test_drawn_shapes(device: Device, name: str) -> None:
    def body(n: Any, c: Any, ih: Any, iw: Any, oh: Any, ow: Any, variant: str, seed: Any) -> None:
        rng = np.random.default_rng(seed)
        check(device, variant, *problem(rng, (n, c, ih, iw), (oh, ow), name), offsets=tuple(rng.integers(0, 4, 3)))

    few = st.integers(1, 9)
    for_drawn(
        device, body, n=st.integers(1, 3), c=few, ih=few, iw=few, oh=few, ow=st.integers(1, 140),
        variant=st.sampled_from([key for key in variants(GridSamplePlan, device) if key in VARIANTS]),
        seed=st.integers(0, 2**32 - 1),
    )  # fmt: skip


@each_type
@each_variant
def test_at_the_pixels_the_result_is_the_image(device: Device, rng: Rng, variant: str, name: str) -> None:
    x, _ = problem(rng, (1, 3, 8, 16), (1, 1), name)
    np.testing.assert_array_equal(run(device, variant, x, pixels(8, 16, name)), x)


@each_variant
def test_the_first_of_a_point_is_x(device: Device, variant: str) -> None:
    x = np.arange(8, dtype=np.float32).reshape(1, 1, 2, 4)
    assert (
        run(device, variant, x, np.array([[[[0.75, -0.5]]]], np.float32)).item() == 3
    )  # the last column, the first row


@each_variant
def test_the_border_fades_to_zero(device: Device, variant: str) -> None:
    x = np.full((1, 1, 2, 2), 8, np.float32)
    grid = np.array([[-1, -0.5], [1, -0.5], [-1, -1], [-1.5, -0.5], [1.5, 0.5], [1, 1]], np.float32).reshape(1, 1, 6, 2)
    np.testing.assert_array_equal(run(device, variant, x, grid).ravel(), [4, 4, 2, 0, 0, 2])


@pytest.mark.filterwarnings("ignore:overflow")
@each_type
@pytest.mark.parametrize("axis", [0, 1])
@each_variant
def test_a_point_outside_reads_nothing_and_gives_zero(device: Device, variant: str, name: str, axis: int) -> None:
    values = [*OUTSIDE, 1e300, -1e300] if name == "f64" else OUTSIDE
    x = np.full((1, 5, 3, 4), np.nan, TYPES[name])  # whatever is read shows
    grid = np.zeros((1, 1, len(values), 2), TYPES[name])
    grid[0, 0, :, axis] = values
    y = run(device, variant, x, grid)
    np.testing.assert_array_equal(y, np.zeros_like(y))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@each_variant
def test_one_bad_pixel_spoils_what_touches_it_alone(device: Device, rng: Rng, variant: str, value: Any) -> None:
    x, grid = problem(rng, (1, 2, 6, 6), (12, 12))
    x[0, 1, 2, 3] = value
    want = references.grid_sample(x, grid)
    assert 0 < (~np.isfinite(want)).sum() < 72
    assert relative_error(run(device, variant, x, grid), want) <= grid_sample_bar("f32", 6, 6)


@each_variant
def test_a_pixel_inside_counts_with_weight_zero_as_in_pytorch(device: Device, variant: str) -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 1, 2] = np.inf
    y = run(device, variant, x, pixels(4, 4))[0, 0]
    # floor is the pixel itself, floor + 1 the next with weight 0: infinity times 0 at the pixels before.
    assert y[1, 2] == np.inf
    assert np.isnan(y[[0, 0, 1], [1, 2, 1]]).all()
    assert (np.delete(y.ravel(), [1, 2, 5, 6]) == 0).all()


@each_variant
def test_a_border_pixel_counts_from_the_coordinate_minus_one_on(device: Device, variant: str) -> None:
    x = np.full((1, 1, 2, 2), np.inf, np.float32)
    below = np.nextafter(np.float32(-1.5), np.float32(-2))
    grid = np.array([[-1.5, -0.5], [-0.5, -1.5], [below, -0.5], [-0.5, below]], np.float32).reshape(1, 1, 4, 2)
    np.testing.assert_array_equal(run(device, variant, x, grid).ravel(), [np.nan, np.nan, 0, 0])


@pytest.mark.parametrize("shape", [(2, 3, 0, 4), (2, 3, 4, 0), (2, 3, 0, 0)])
@each_type
@each_variant
def test_an_image_without_pixels_is_zero(device: Device, rng: Rng, variant: str, name: str, shape: Shape) -> None:
    x, grid = problem(rng, shape, (3, 5), name)
    grid[0, 0, 0] = np.nan
    np.testing.assert_array_equal(run(device, variant, x, grid), np.zeros((2, 3, 3, 5)))


@pytest.mark.parametrize(("name", "least"), [("f32", 1.4e-45), ("f16", 2.0**-24), ("bf16", 2.0**-133), ("f64", 5e-324)])
@each_variant
def test_denormals_are_preserved(device: Device, rng: Rng, variant: str, name: str, least: float) -> None:
    x = (rng.integers(-100, 100, (1, 2, 8, 8)) * least).astype(TYPES[name])
    np.testing.assert_array_equal(run(device, variant, x, pixels(8, 8, name)), x)


@pytest.mark.parametrize(("name", "most"), [("f32", 3.4e38), ("f16", 65504), ("bf16", 3.38e38)])
@each_variant
def test_values_near_the_largest_do_not_overflow(
    device: Device, rng: Rng, variant: str, name: str, most: float
) -> None:
    x, grid = problem(rng, (1, 2, 6, 6), (9, 9), name)
    check(device, variant, np.sign(x) * TYPES[name](most), grid)


@pytest.mark.sanitize
@pytest.mark.parametrize("variant", LOOPS)
def test_blocks_take_several_images_and_larger_parts_where_a_grid_is_too_small(
    device: Device, rng: Rng, monkeypatch: Patch, variant: str
) -> None:
    x, grid = problem(rng, (5, 25, 3, 4), (2, 3))  # 25: neither part is full
    want = run(device, variant, x, grid)
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "_GRID_YZ", 2)
    plan = select(device, x.shape, grid.shape, key=variant)
    assert [launch.grid for launch in plan.schedule.steps] == [(1, 2, 2)]
    args = GridSampleArgs(on_device(x, device), on_device(grid, device))
    np.testing.assert_array_equal(plan.run(args).to_host(), want)


@pytest.mark.parametrize("variant", LOOPS)
def test_more_images_than_grid_z_holds(cuda: Device, rng: Rng, variant: str) -> None:
    x, grid = problem(rng, (65537, 1, 1, 2), (1, 1))
    y = run(cuda, variant, x, grid)
    np.testing.assert_array_equal(y[-3:], run(cuda, variant, x[-3:], grid[-3:]))
    np.testing.assert_array_equal(y[:3], run(cuda, variant, x[:3], grid[:3]))


@each_variant
def test_agrees_with_pytorch(cuda: Device, rng: Rng, variant: str) -> None:
    torch = pytest.importorskip("torch")
    for name in ("f32", "f64"):
        x, grid = problem(rng, (2, 5, 40, 30), (50, 140), name)
        a, b = torch.tensor(x, device="cuda"), torch.tensor(grid, device="cuda")
        want = torch.nn.functional.grid_sample(a, b, align_corners=False).cpu().numpy()
        plan = select(cuda, x.shape, grid.shape, name, variant)
        y = plan.run(GridSampleArgs(a, b)).to_host()
        assert relative_error(y, want) <= 2 * grid_sample_bar(name, 40, 30)


def test_results_past_2_to_the_32_elements(torch_with: Any) -> None:
    shape, size = (2, 33, 16, 16), (8192, 8200)
    torch = torch_with(2 * 33 * 8192 * 8200 * 6)
    x = torch.randn(shape, device="cuda")
    grid = torch.empty((2, *size, 2), device="cuda").uniform_(-1.2, 1.2)
    y = torch.from_dlpack(grid_sample(x, grid))
    for image, channel, row in ((0, 0, 0), (0, 31, 8191), (0, 32, 17), (1, 0, 5), (1, 31, 8000), (1, 32, 8191)):
        rows = slice(row, row + 1)
        part = x[image : image + 1, channel : channel + 1], grid[image : image + 1, rows]
        want = torch.nn.functional.grid_sample(*part, align_corners=False)
        got = y[image, channel, row]
        assert relative_error(got.cpu().numpy(), want.view(-1).cpu().numpy()) <= 2 * grid_sample_bar("f32", 16, 16)


def test_images_past_2_to_the_32_elements(torch_with: Any) -> None:
    shape = (2, 3, 27000, 27001)
    torch = torch_with(6 * int(np.prod(shape)))
    x = torch.empty(shape, device="cuda").normal_()
    grid = torch.empty((2, 50, 130, 2), device="cuda").uniform_(-1.01, 1.01)
    y = torch.from_dlpack(grid_sample(x, grid))
    for image in (0, 1):
        for channel in (0, 2):
            part = x[image : image + 1, channel : channel + 1], grid[image : image + 1]
            want = torch.nn.functional.grid_sample(*part, align_corners=False)
            # One rounding of a coordinate may differ, at these sizes 1/1000 of a pixel.
            assert relative_error(y[image, channel].cpu().numpy(), want[0, 0].cpu().numpy()) <= 0.01


# Checks -------------------------------------------------------------------------------------------------------------

SHAPES = {"x": (2, 3, 4, 5), "grid": (2, 6, 7, 2), "out": (2, 3, 6, 7)}


def select(
    device: Device, shape: Shape = SHAPES["x"], grid: Any = SHAPES["grid"], name: str = "f32", key: str | None = None
) -> Any:
    return GridSamplePlan.select(device, GridSampleDescriptor(shape, grid, BY_NAME[name]), wish(key))


# The plan -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", range(6))
def test_sizes_above_i32_are_refused(device: Device, axis: int) -> None:
    sizes = [1, 1, 1, 1, 1, 1]
    sizes[axis] = 1 << 31
    n, c, ih, iw, oh, ow = sizes
    with pytest.raises(ptxrt.Unsupported, match="i32"):
        select(device, (n, c, ih, iw), (n, oh, ow, 2))


@pytest.mark.ptx
def test_more_blocks_than_a_grid_holds_are_refused(device: Device) -> None:
    with pytest.raises(ptxrt.Unsupported, match=r"grid\.x"):
        select(device, (1, 1, 1, 1), (1, (1 << 31) - 1, 512, 2), key="baseline")


@pytest.mark.parametrize("size", [(1 << 16, 1 << 16), (1, (1 << 31) - 1), ((1 << 31) - 1, 512)], ids=str)
def test_threads_take_turns_in_hip(device: Device, size: Any) -> None:
    plan = select(device, (3, 5, 1, 1), (3, *size, 2), key="hip/baseline")
    (launch,) = plan.schedule.launches
    assert launch.grid[0] * launch.block < 1 << 32


@pytest.mark.parametrize("size", [(3, 130), (34, 130)], ids=str)
@pytest.mark.sanitize
def test_positions_in_turns(device: Device, rng: Rng, monkeypatch: Patch, size: Any) -> None:
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "blocks_in_hip", lambda *_: 1)
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "_THREADS", 64)
    check(device, "hip/baseline", *problem(rng, (2, 3, 4, 5), size))


def test_a_descriptor_takes_lists_and_names() -> None:
    same = GridSampleDescriptor([1, 1, 1, 1], [1, 1, 1, 2], "f32")  # type: ignore[arg-type]
    assert same == GridSampleDescriptor((1, 1, 1, 1), (1, 1, 1, 2))
    hash(same)


# Channels-last images -------------------------------------------------------------------------------------------------


def of_channels_last(device: Device, variant: str, x: Any, grid: Any, width: int, offset: int = 0) -> Any:
    """Return the host result, written to a guarded output."""
    n, c = x.shape[:2]
    there = on_device(np.moveaxis(x, 1, -1).copy(), device, offset).transpose(0, 3, 1, 2)
    descriptor = GridSampleDescriptor(x.shape, grid.shape, BY_NAME[BY_NUMPY[x.dtype].name], strides=there.strides)
    plan = GridSamplePlan.select(device, descriptor, wish(variant, config=WidthConfig(width)))
    out = Guarded((n, c, *grid.shape[1:3]), x.dtype, device, offset)
    plan.run(GridSampleArgs(there, on_device(grid, device, offset), out.array))
    return out.host()


@pytest.mark.parametrize("variant", ["last", "hip/last"])
@pytest.mark.parametrize(
    ("shape", "size", "width", "name"),
    [
        ((2, 8, 5, 7), (9, 19), 16, "f32"),  # the last tiles are narrower, and lower
        ((1, 136, 4, 4), (3, 33), 8, "f32"),  # parts in both places in turn, the last one of 8 channels
        ((1, 4, 3, 5), (17, 5), 32, "f32"),
        ((1, 36, 4, 4), (2, 3), 1, "f64"),
        ((2, 136, 3, 5), (3, 9), 4, "f16"),
        ((1, 8, 3, 5), (5, 17), 16, "bf16"),
    ],
    ids=str,
)
@pytest.mark.sanitize
def test_channels_last_images(
    device: Device, rng: Rng, monkeypatch: Patch, shape: Shape, size: Any, width: int, name: str, variant: str
) -> None:
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "_GRID_YZ", 1)  # a block takes all parts
    x, grid = problem(rng, shape, size, name)
    x[0, :, 0, 0] = np.inf  # counts with a weight of 0, too, but not where it is outside
    grid[0, 0, 0], grid[0, 1, 1], grid[0, 1, 2] = np.nan, (np.inf, 0), (-1, 1)
    for offset in (0, 1):
        want = run(device, "baseline" if variant == "last" else "hip/baseline", x, grid)
        got = of_channels_last(device, variant, x, grid, width, offset)
        np.testing.assert_array_equal(got.astype(np.float64), want.astype(np.float64))


def test_few_points_are_sampled_in_parts_by_blocks_of_their_own(sim: Device) -> None:
    for images, parts in ((1, 3), (2048, 1)):
        problem = GridSampleDescriptor((images, 68, 4, 4), (images, 2, 16, 2), strides=(1088, 1, 272, 68))
        for variant in ("last", "hip/last"):
            (launch,) = GridSamplePlan.select(sim, problem, wish(variant)).schedule.launches
            assert launch.grid == (images, parts)


def test_what_channels_last_images_must_be(sim: Device) -> None:
    last = (144, 1, 36, 12)
    cases: Any = (
        ((), 12, "f32", 16, {}, "takes channels-last images of 4 channels, or several times as many, and bilinear"),
        ((120, 1, 30, 10), 10, "f32", 16, {}, "takes channels-last images of 4 channels"),
        (last, 12, "f16", 16, {}, "takes channels-last images of 8 channels"),
        (last, 12, "f32", 16, {"mode": "nearest"}, "takes channels-last images of 4 channels"),
        (last, 12, "f32", 24, {}, "a width of 24 is no power of two of up to 32"),
    )
    for strides, c, name, width, modes, reason in cases:
        problem = GridSampleDescriptor((2, c, 4, 3), (2, 5, 6, 2), BY_NAME[name], strides=strides, **modes)
        for variant in ("last", "hip/last"):
            wanted = wish(variant, config=WidthConfig(width))
            with pytest.raises(ptxrt.Unsupported, match=f"last: {reason}"):
                GridSamplePlan.select(sim, problem, wanted)
