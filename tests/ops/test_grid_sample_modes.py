"""grid_sample in every mode, padding and alignment, of images and volumes: values, gradients, edges, strides."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Rng, Shape, refused, skip_stand_in
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, on_device, wish
from tolerances import grid_sample_bar, relative_error, rounded_bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import (
    GridSampleArgs,
    GridSampleBackwardArgs,
    GridSampleBackwardDescriptor,
    GridSampleBackwardPlan,
    GridSampleDescriptor,
    GridSamplePlan,
    _grid_sample_modes_last,
    grid_sample,
    grid_sample_backward,
    references,
)

TYPES = ("f32", "f64", "f16", "bf16")
MODES = [("bilinear", 2), ("nearest", 2), ("bicubic", 2), ("bilinear", 3), ("nearest", 3)]
PADDINGS = ("zeros", "border", "reflection")
HOW: list[dict[str, Any]] = [
    {"padding_mode": padding, "align_corners": align} for padding, align in itertools.product(PADDINGS, (False, True))
]
TILES = ["tiled", "tiled_channels"]  # of the backward, bilinear images alone
each_type = pytest.mark.parametrize("name", TYPES)
each_mode = pytest.mark.parametrize(("mode", "axes"), MODES)
each_variant = pytest.mark.parametrize("variant", ["general", "hip/general"])


def random(rng: Rng, shape: Shape, name: str) -> Any:
    return rng.standard_normal(shape).astype(BY_NAME[name].numpy)


def points(rng: Rng, shape: Shape, size: Shape, name: str, align_corners: bool = False, most: int = 3) -> Any:
    """Return a grid of points in an image and up to `most` pixels outside, far from where a mode has jumps.

    These are the whole and the half coordinates, by more than what the grid's type rounds them by.
    """
    lengths = np.array(shape[:1:-1])
    s = rng.integers(-most, lengths + most - 1, (shape[0], *size, len(lengths)))
    s = s + rng.choice([0.13, 0.63], s.shape) + rng.uniform(0, 0.24, s.shape)
    spans = lengths - 1 if align_corners else lengths
    low = 0 if align_corners else -0.5
    return (2 * (s - low) / np.maximum(spans, 1) - 1).astype(BY_NAME[name].numpy)


def problem(
    rng: Rng, name: str, axes: int, align_corners: bool = False, channels: int = 3, image: Shape = (5, 7)
) -> Any:
    """Return grad_out, x and grid."""
    shape, size = ((2, channels, *image), (3, 12)) if axes == 2 else ((2, channels, 3, 5, 4), (2, 3, 5))
    go, x = random(rng, (*shape[:2], *size), name), random(rng, shape, name)
    return go, x, points(rng, shape, size, name, align_corners)


def name_of(x: Any) -> str:
    return next(kind.name for kind in BY_NAME.values() if kind.numpy == x.dtype)


def forward(device: Device, variant: str, x: Any, grid: Any, **modes: Any) -> Any:
    """Run into a poisoned, guarded output; check the guards; return the host result."""
    there = x if isinstance(x, ptxrt.DeviceArray) else on_device(x, device)
    kind = BY_NAME[name_of(grid)]
    descriptor = GridSampleDescriptor(there.shape, grid.shape, kind, strides=there.strides, **modes)
    out = Guarded(descriptor.out_shape, kind.numpy, device, 1)
    GridSamplePlan.select(device, descriptor, wish(variant)).run(
        GridSampleArgs(there, on_device(grid, device, 1), out.array)
    )
    return out.host()


def ways(variant: str, mode: str = "bilinear", name: str = "f32", axes: int = 2) -> list[str]:
    """Return the variants of the backward that add up in other ways, where there are such."""
    last = mode != "nearest" and name != "f64"
    tiles = [] if (mode, axes) != ("bilinear", 2) else ["hip/tiled"] if variant != "general" else TILES
    more = [way for way in tiles if name != "f64" or way == "tiled_channels"]
    return [variant, f"{variant}_fixed_point", *([f"{variant}_last"] if last else []), *more]


def backward(device: Device, variant: str, go: Any, x: Any, grid: Any, config: Any = None, **modes: Any) -> Any:
    """Run into poisoned, guarded outputs with a poisoned workspace; return the host results."""
    there = x if isinstance(x, ptxrt.DeviceArray) else on_device(x, device)
    kind = BY_NAME[name_of(grid)]
    descriptor = GridSampleBackwardDescriptor(there.shape, grid.shape, kind, strides=there.strides, **modes)
    plan = GridSampleBackwardPlan.select(device, descriptor, wish(variant, config=config))
    assert plan.precision_guarantee.deterministic == variant.endswith("fixed_point")
    outs = [Guarded(shape, kind.numpy, device, 1) for shape in (there.shape, grid.shape)]
    workspace = Guarded((plan.workspace_size,), np.uint8, device)
    args = (on_device(go, device, 1), there, on_device(grid, device, 1), *(out.array for out in outs))
    plan.run(GridSampleBackwardArgs(*args), workspace=workspace.array if plan.workspace_size else None)
    workspace.host()
    return tuple(out.host() for out in outs)


def bar(name: str, shape: Shape, want: Any, most: int = 3) -> float:
    """Return the bar of a result of points up to `most` pixels outside."""
    return rounded_bar(float(grid_sample_bar(name, max(shape[2:]) + most, 0)), name, want)


def check(device: Device, variant: str, go: Any, x: Any, grid: Any, most: int = 3, **modes: Any) -> None:
    """Hold y and both gradients, of each way to add, to the bar."""
    name, case = name_of(grid), f"{modes} {x.shape} {grid.shape} {variant}"
    y = references.grid_sample(x, grid, **modes)
    got = forward(device, variant, x, grid, **modes)
    check_error("grid_sample", device, got, y, bar(name, x.shape, y, most), case)
    want = references.grid_sample_backward(go, x, grid, **modes)
    for each in want:
        each[np.abs(each) < 64 * np.finfo(each.dtype).eps] = 0  # the reference's own rounding of what cancels
    for way in ways(variant, modes["mode"], name, x.ndim - 2):
        for result, g, w in zip(
            ("grad_input", "grad_grid"), backward(device, way, go, x, grid, **modes), want, strict=True
        ):
            check_error(f"grid_sample_backward {result}", device, g, w, bar(name, x.shape, w, most), case)


# Values -------------------------------------------------------------------------------------------------------------


@each_mode
@each_type
@pytest.mark.sanitize
def test_matches_the_reference(device: Device, rng: Rng, name: str, mode: str, axes: int) -> None:
    variant = "hip/general" if device.kind == "hip" else "general"
    skip_stand_in(device)
    for how in HOW:
        check(device, variant, *problem(rng, name, axes, how["align_corners"]), mode=mode, **how)


@pytest.mark.parametrize(
    ("mode", "axes", "name"), [*((*each, "f32") for each in MODES), ("bicubic", 2, "f64"), ("bilinear", 3, "f16"),
                               ("bicubic", 2, "bf16")],
)  # fmt: skip
@pytest.mark.ptx
def test_both_languages_give_the_same_bits(device: Device, rng: Rng, name: str, mode: str, axes: int) -> None:
    for how in HOW:
        go, x, grid = problem(rng, name, axes, how["align_corners"])
        grid[0, 0, 0] = [np.nan, np.inf, 1e4][:axes]
        results = [
            (
                forward(device, f"{language}general", x, grid, mode=mode, **how),
                *backward(device, f"{language}general_fixed_point", go, x, grid, mode=mode, **how),
            )
            for language in ("", "hip/")
        ]
        for ptx, hip in zip(*results, strict=True):
            np.testing.assert_array_equal(hip.astype(np.float64), ptx.astype(np.float64))
        by_floats, _ = backward(device, "hip/general", go, x, grid, mode=mode, **how)
        want = results[0][1]
        check_error("grid_sample_backward grad_input", device, by_floats, want, bar(name, x.shape, want), how)


@pytest.mark.parametrize(
    ("mode", "axes", "name", "channels"),
    [("bilinear", 2, "f32", 37), ("bicubic", 2, "f32", 70), ("bilinear", 3, "f32", 19), ("bilinear", 2, "bf16", 9),
     ("bicubic", 2, "f16", 5)],
)  # fmt: skip
@pytest.mark.parametrize("variant", ["general_last", "hip/general_last"])
@pytest.mark.sanitize
def test_channels_side_by_side(
    device: Device, rng: Rng, monkeypatch: Patch, variant: str, mode: str, axes: int, name: str, channels: int
) -> None:
    """More chunks than one, the last short; more of them and of images than the grid holds."""
    skip_stand_in(device)
    monkeypatch.setattr(_grid_sample_modes_last, "_GRID_YZ", 1)
    go, x, grid = (np.concatenate([each, each[:1]]) for each in problem(rng, name, axes, False, channels, (9, 13)))
    how: Any = {"mode": mode, "padding_mode": "border"}
    got = backward(device, variant, go, x, grid, **how)
    for g, w in zip(got, references.grid_sample_backward(go, x, grid, **how), strict=True):
        check_error("grid_sample_backward", device, g, w, bar(name, x.shape, w), (variant, how))


def test_who_serves_many_points() -> None:
    def chosen(shape: Shape, size: Shape, dtype: str = "f32", **how: Any) -> str:
        descriptor = GridSampleBackwardDescriptor(shape, (shape[0], *size, len(size)), BY_NAME[dtype], **how)
        return GridSampleBackwardPlan.select("sim:0", descriptor, ptxrt.PlanPreference(language="ptx")).variant.name

    large: tuple[Shape, Shape] = ((2, 16, 128, 128), (128, 128))
    border: Any = {"padding_mode": "border"}
    assert chosen(*large, **border) == chosen(*large, "bf16", mode="bicubic") == "general_last"
    assert chosen((1, 2, 16, 128, 128), (16, 128, 128)) == chosen(*large, "f16") == "general_last"
    assert chosen(*large, "f64", **border) == chosen(*large, mode="nearest") == "general"
    assert chosen((2, 16, 12, 12), (12, 12), **border) == chosen((1, 1, 512, 512), (512, 512), **border) == "general"
    assert chosen((1, 64, 2, 2), (128, 128), **border) == "general_fixed_point"
    assert chosen((8, 16, 128, 128), (128, 128), **border) == "tiled_channels"
    assert chosen((4, 1, 512, 512), (512, 512), **border) == "tiled"
    assert chosen(*large) == "general_last"
    assert chosen((2, 16, 64, 64), (128, 128), "f16") == chosen((2, 16, 64, 64), (128, 128)) == "channels_last"


@pytest.mark.parametrize("variant", ["general_last", "hip/general_last"])
def test_what_channels_side_by_side_refuse(device: Device, variant: str) -> None:
    refusals: list[tuple[str, Any]] = [("f64", {}), ("f32", {"mode": "nearest"}), ("f32", {"strides": (60, 1, 10, 2)})]
    for dtype, how in refusals:
        descriptor = GridSampleBackwardDescriptor((2, 2, 6, 5), (2, 3, 4, 2), BY_NAME[dtype], **how)
        with refused(ptxrt.Unsupported, "grid_sample_backward", "descriptor", "bilinear or bicubic alone"):
            GridSampleBackwardPlan.select(device, descriptor, wish(variant))


@pytest.mark.ptx
def test_drawn_shapes(device: Device) -> None:
    def body(mode: Any, how: Any, name: str, sizes: Any, out: Any, n: int, c: int, seed: Any) -> None:
        rng = np.random.default_rng(seed)
        kind, axes = mode
        shape, size = (n, c, *sizes[:axes]), (*out[: axes - 1], 40)
        go, x = random(rng, (n, c, *size), name), random(rng, shape, name)
        check(device, "general", go, x, points(rng, shape, size, name, how["align_corners"]), mode=kind, **how)

    few = st.integers(1, 9)
    for_drawn(
        device, body, mode=st.sampled_from(MODES), how=st.sampled_from(HOW), name=st.sampled_from(TYPES),
        sizes=st.tuples(few, few, few), out=st.tuples(st.integers(1, 3), st.integers(1, 3)), n=st.integers(1, 3),
        c=st.integers(1, 9), seed=st.integers(0, 2**32 - 1),
    )  # fmt: skip


@each_variant
@each_mode
def test_at_the_pixels_the_result_is_the_image(device: Device, rng: Rng, variant: str, mode: str, axes: int) -> None:
    skip_stand_in(device)
    x = random(rng, (1, 2, 2, 4, 8)[: axes + 2], "f32")
    for how in HOW:
        align = how["align_corners"]
        lines = [2 * np.arange(n) / (n - 1) - 1 if align else (2 * np.arange(n) + 1) / n - 1 for n in x.shape[2:]]
        grid = np.stack(np.meshgrid(*lines, indexing="ij")[::-1], axis=-1)[None].astype(np.float32)
        y = forward(device, variant, x, grid, mode=mode, **how)
        if align and mode != "nearest":  # thirds are not exact
            np.testing.assert_allclose(y, x, atol=1e-5)
        else:
            np.testing.assert_array_equal(y, x)


@each_variant
def test_nearest_takes_the_even_one_of_two(device: Device, variant: str) -> None:
    x = np.arange(1, 5, dtype=np.float32).reshape(1, 1, 1, 4)
    halves = np.array([-0.5, 0.5, 1.5, 2.5, 3.5])
    grid = np.zeros((1, 1, 5, 2), np.float32)
    grid[..., 0] = (2 * halves + 1) / 4 - 1
    want = {"zeros": [1, 1, 3, 3, 0], "border": [1, 1, 3, 3, 4], "reflection": [1, 1, 3, 3, 4]}
    for padding, values in want.items():
        y = forward(device, variant, x, grid, mode="nearest", padding_mode=padding)
        np.testing.assert_array_equal(y.ravel(), values)


@each_variant
def test_a_point_in_a_volume_is_x_then_y_then_z(device: Device, variant: str) -> None:
    x = np.arange(24, dtype=np.float32).reshape(1, 1, 2, 3, 4)
    grid = np.array([0.75, -2 / 3, 0.5], np.float32).reshape(1, 1, 1, 1, 3)  # the last column, first row, last slice
    assert forward(device, variant, x, grid, mode="nearest").item() == 15


@each_variant
def test_blocks_take_turns_where_a_grid_is_too_small(
    device: Device, rng: Rng, monkeypatch: Patch, variant: str
) -> None:
    go, x, grid = (random(rng, shape, "f32") for shape in ((5, 19, 2, 150), (5, 19, 3, 4), (5, 2, 150, 2)))
    fixed = f"{variant}_fixed_point"
    want = forward(device, variant, x, grid), *backward(device, fixed, go, x, grid)
    exact = references.grid_sample(x, grid), *references.grid_sample_backward(go, x, grid)
    for one, ref in zip(want, exact, strict=True):
        assert relative_error(one, ref) <= 1e-5
    module = sys.modules["ptxrt.ops._grid_sample_modes"]
    monkeypatch.setattr(module, "_GRID_YZ", 2)
    monkeypatch.setattr(module, "blocks_in_hip", lambda count, threads: min(-(-count // threads), 1))
    got = forward(device, variant, x, grid), *backward(device, fixed, go, x, grid)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("mode", "shape", "size"),
    [
        ("bilinear", (2, 6, 9, 11), (33, 130)),
        ("nearest", (1, 5, 9, 11), (32, 128)),
        ("bicubic", (1, 2, 9, 11), (35, 131)),
        ("bilinear", (1, 3, 4, 5, 6), (17, 18, 66)),
        ("bilinear", (1, 1, 4, 5, 6), (16, 16, 63)),  # not in tiles
    ],
    ids=str,
)
@each_variant
def test_large_results_are_in_tiles(
    device: Device, rng: Rng, monkeypatch: Patch, variant: str, mode: str, shape: Shape, size: Shape
) -> None:
    skip_stand_in(device)
    x, grid = random(rng, shape, "f32"), points(rng, shape, size, "f32")
    how: Any = {"mode": mode, "padding_mode": "reflection"}
    want = references.grid_sample(x, grid, **how)
    got = forward(device, variant, x, grid, **how)
    check_error("grid_sample", device, got, want, bar("f32", shape, want), (variant, how))
    module = sys.modules["ptxrt.ops._grid_sample_modes"]
    monkeypatch.setattr(module, "blocks_in_hip", lambda count, threads: min(-(-count // threads), 3))
    np.testing.assert_array_equal(forward(device, variant, x, grid, **how), got)


@each_variant
@each_type
def test_points_beside_an_edge_and_others_in_one_warp(device: Device, rng: Rng, variant: str, name: str) -> None:
    """Taps that are all inside are read row by row, the others each by itself: with the same bits."""
    if variant != "general" and name != "f32":
        return
    for mode, shape in (("bilinear", (1, 7, 6, 9)), ("bicubic", (1, 7, 9, 8)), ("bilinear", (1, 5, 3, 4, 6))):
        x = random(rng, shape, name)
        grid = rng.uniform(-1, 1, (1, *(2,) * (len(shape) - 3), 40, len(shape) - 2)).astype(x.dtype)
        want = references.grid_sample(x, grid, mode=mode)
        got = forward(device, variant, x, grid, mode=mode)
        check_error("grid_sample", device, got, want, bar(name, shape, want), (variant, mode))


# Edges --------------------------------------------------------------------------------------------------------------


@each_variant
@each_type
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_a_point_outside_gives_zero_under_zeros(device: Device, variant: str, name: str, mode: str) -> None:
    if variant != "general" and name != "f32":
        return
    huge = {"f16": 6e4, "f64": 1e300}.get(name, 3e38)
    values = np.array([np.nan, np.inf, -np.inf, huge, -huge, 30, -30, 3.6, -3.6])
    grid = np.zeros((1, 2, len(values), 2), BY_NAME[name].numpy)
    grid[0, 0, :, 0] = grid[0, 1, :, 1] = values
    x = np.full((1, 2, 3, 4), np.nan, grid.dtype)  # whatever is read shows
    go = np.full((1, 2, 2, len(values)), np.inf, grid.dtype)
    for align in (False, True):
        assert not forward(device, variant, x, grid, mode=mode, align_corners=align).any()
        for way in ways(variant, mode, name):
            for gradient in backward(device, way, go, x, grid, mode=mode, align_corners=align):
                assert not gradient.any()


@each_variant
@each_mode
@pytest.mark.parametrize("padding", ["border", "reflection"])
def test_what_is_no_number_or_infinite_is_padded(
    device: Device, rng: Rng, variant: str, mode: str, axes: int, padding: str
) -> None:
    skip_stand_in(device)
    x = random(rng, (1, 2, 3, 5, 4)[: axes + 2], "f32")
    lines = np.array([np.nan, np.inf, -np.inf, 0.13])
    grid = np.stack(np.meshgrid(*[lines] * axes), axis=-1)[None].astype(np.float32)
    go = random(rng, (1, 2, *grid.shape[1:-1]), "f32")
    for align in (False, True):
        check(device, variant, go, x, grid, mode=mode, padding_mode=padding, align_corners=align)


@each_variant
@each_mode
@each_type
def test_a_huge_coordinate_is_somewhere_inside(device: Device, variant: str, mode: str, axes: int, name: str) -> None:
    skip_stand_in(device)
    if variant != "general" and name != "f32":
        return
    largest = {"f16": 65504.0, "f64": 1.7e308, "bf16": 3.3e38, "f32": 3.4e38}[name]
    values = largest / np.array([1, -1, 3, -7, 1e2, -1e3, 1e4, 1e6, -1e8, 3.3e9, 1e10, -1e19])
    grid = np.stack([values, *[values[::-1]] * (axes - 1)], -1).reshape(1, *(1,) * (axes - 1), -1, axes)
    grid = grid.astype(BY_NAME[name].numpy)
    x = np.ones((1, 1, 3, 5, 7)[: axes + 2], grid.dtype)
    go = np.ones((1, 1, *grid.shape[1:-1]), grid.dtype)
    for padding, align in itertools.product(("border", "reflection"), (False, True)):
        how = {"mode": mode, "padding_mode": padding, "align_corners": align}
        near = 0.02 if grid.itemsize == 2 else 1e-5
        np.testing.assert_allclose(forward(device, variant, x, grid, **how).astype(float), 1, atol=near)
        gi, gg = backward(device, variant, go, x, grid, **how)
        np.testing.assert_allclose(gi.astype(float).sum(), len(values), rtol=near)
        np.testing.assert_allclose(gg.astype(float), 0, atol=1e-4)


@each_variant
@each_mode
def test_images_of_one_pixel(device: Device, rng: Rng, variant: str, mode: str, axes: int) -> None:
    skip_stand_in(device)
    x, go = random(rng, (1, 3, *(1,) * axes), "f32"), random(rng, (1, 3, *(1,) * (axes - 1), 40), "f32")
    for how in HOW:
        check(device, variant, go, x, points(rng, x.shape, go.shape[2:], "f32", how["align_corners"]), mode=mode, **how)


@pytest.mark.parametrize("shape", [(2, 3, 0, 4), (2, 3, 4, 0), (2, 3, 0, 4, 5), (2, 3, 4, 0, 5), (2, 3, 4, 5, 0)])
def test_an_image_without_pixels_is_zero(device: Device, rng: Rng, shape: Shape) -> None:
    skip_stand_in(device)
    axes = len(shape) - 2
    grid = rng.uniform(-1, 1, (2, *(2, 3, 4)[:axes], axes)).astype(np.float32)
    grid[0, 0, 0] = np.nan
    x, go = np.empty(shape, np.float32), np.ones((2, 3, *grid.shape[1:-1]), np.float32)
    for mode, how in itertools.product([m for m, a in MODES if a == axes], HOW):
        assert not forward(
            device, "hip/general" if device.kind == "hip" else "general", x, grid, mode=mode, **how
        ).any()
        gi, gg = grid_sample_backward(*(on_device(a, device) for a in (go, x, grid)), mode=mode, **how)
        assert gi.shape == shape
        assert not gg.to_host().any()


@each_variant
def test_a_pixel_inside_counts_with_weight_zero_as_in_pytorch(device: Device, variant: str) -> None:
    x = np.zeros((1, 1, 1, 8), np.float32)
    x[0, 0, 0, 4] = np.inf
    grid = np.zeros((1, 1, 8, 2), np.float32)
    grid[..., 0] = (2 * np.arange(8) + 1) / 8 - 1
    nan = np.nan
    y = forward(device, variant, x, grid, mode="bicubic")
    np.testing.assert_array_equal(y.ravel(), [0, 0, nan, nan, np.inf, nan, 0, 0])
    y = forward(device, variant, x, grid, mode="nearest")
    np.testing.assert_array_equal(y.ravel(), x.ravel())


# Gradients ----------------------------------------------------------------------------------------------------------


@each_variant
@each_type
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_integers_hold_the_sum_of_all_parts_on_one_pixel(device: Device, variant: str, name: str, mode: str) -> None:
    skip_stand_in(device)
    if variant != "general" and name != "f32":
        return
    # Each part is just below a power of two, and all taps of bicubic fold on the pixel, with weights of either sign.
    largest = {"f16": 1.999, "bf16": 1.99}.get(name, 2 - 2.0**-20)
    grid = np.full((1, 1, 512, 2), 0.0, BY_NAME[name].numpy)
    go = np.full((1, 2, 1, 512), largest, grid.dtype)
    go[:, 1] *= -1
    x = np.ones((1, 2, 1, 1), grid.dtype)
    gi, _ = backward(
        device, f"{variant}_fixed_point", go, x, grid, mode=mode, padding_mode="border", align_corners=False
    )
    np.testing.assert_array_equal(gi.astype(np.float64).ravel(), 512 * go[0, :, 0, 0].astype(np.float64))


@each_variant
@pytest.mark.parametrize(("name", "large"), [("f32", 2.0**70), ("f64", 2.0**30), ("bf16", 2.0**70), ("f16", 2.0**15)])
def test_a_small_gradient_beside_a_large_one_is_not_lost(device: Device, variant: str, name: str, large: float) -> None:
    skip_stand_in(device)
    if variant != "general" and name != "f32":
        return
    kind = BY_NAME[name].numpy
    go, x = np.zeros((1, 2, 1, 4), kind), np.ones((1, 2, 1, 4), kind)
    go[0, 0, 0] = [large, 0.3, 5.9e-8 if name == "f16" else 1e-7, -large]
    go[0, 1, 0] = [1e-7, 1, 0, 6e-8]  # a plane with a scale of its own
    grid = np.zeros((1, 1, 4, 2), kind)
    grid[..., 0] = (2 * np.arange(4) + 1) / 4 - 1
    gi, _ = backward(device, f"{variant}_fixed_point", go, x, grid)
    np.testing.assert_array_equal(gi.astype(np.float64), go.astype(np.float64))


@each_variant
def test_gradients_that_are_infinite_or_no_numbers_spoil_what_they_touch_alone(
    device: Device, rng: Rng, variant: str
) -> None:
    go, x, grid = problem(rng, "f32", 2)
    go[0, 0, 0, :4] = np.inf, -np.inf, np.nan, np.inf
    go[1, 2, 2, :2] = np.inf
    for mode in ("nearest", "bilinear", "bicubic"):
        want, _ = references.grid_sample_backward(go, x, grid, mode=mode, padding_mode="border")
        spoilt = ~np.isfinite(want)
        assert 0 < spoilt.sum() < 40
        for way in ways(variant, mode):
            gi, _ = backward(device, way, go, x, grid, mode=mode, padding_mode="border")
            assert relative_error(gi, want) <= bar("f32", x.shape, want)


@each_variant
@pytest.mark.parametrize(("name", "count"), [("f16", 4000), ("bf16", 1000)])
def test_sums_of_16_bits_are_rounded_once(device: Device, variant: str, name: str, count: int) -> None:
    skip_stand_in(device)
    kind = BY_NAME[name].numpy
    go, x, grid = np.ones((1, 1, 1, count), kind), np.ones((1, 1, 1, 1), kind), np.zeros((1, 1, count, 2), kind)
    for way in (variant, f"{variant}_fixed_point"):
        gi, _ = backward(device, way, go, x, grid, mode="nearest")
        assert gi.item() == kind.type(count)


@each_variant
@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize(("mode", "axes"), [("bilinear", 2), ("bicubic", 2), ("bilinear", 3)])
def test_a_large_mean_costs_grad_grid_no_digits(
    device: Device, rng: Rng, variant: str, name: str, mode: str, axes: int
) -> None:
    skip_stand_in(device)
    if variant != "general" and name != "f32":
        return
    how: Any = {"mode": mode, "padding_mode": "reflection"}
    go, x, grid = problem(rng, name, axes)
    x += x.dtype.type(1e4)
    _, want = references.grid_sample_backward(go.astype(np.longdouble), x.astype(np.longdouble), grid, **how)
    for way in ways(variant, mode, name, axes):
        if way.endswith("fixed_point"):
            continue
        _, got = backward(device, way, go, x, grid, **how)
        check_error("grid_sample_backward grad_grid", device, got, want, bar(name, x.shape, want), (way, how))


# Strides ------------------------------------------------------------------------------------------------------------


@each_variant
@each_mode
def test_x_of_any_strides(device: Device, rng: Rng, variant: str, mode: str, axes: int) -> None:
    skip_stand_in(device)
    go, x, grid = problem(rng, "f32", axes)
    last = on_device(np.ascontiguousarray(np.moveaxis(x, 1, -1)), device).transpose(0, axes + 1, *range(1, axes + 1))
    part = on_device(np.repeat(np.repeat(np.repeat(x, 2, 1), 2, -2), 3, -1), device)[:, ::2, ..., ::2, ::3]
    same = on_device(x[:1, :1].copy(), device).broadcast_to(x.shape)
    for there, host in ((last, x), (part, x), (same, np.broadcast_to(x[:1, :1], x.shape))):
        assert not there.is_contiguous
        how = {"mode": mode, "padding_mode": "reflection"}
        np.testing.assert_array_equal(
            forward(device, variant, there, grid, **how), forward(device, variant, host, grid, **how)
        )
        fixed = f"{variant}_fixed_point"
        got, want = (backward(device, fixed, go, each, grid, **how) for each in (there, host))
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one, other)


@each_variant
@pytest.mark.parametrize("how", HOW, ids=str)
def test_folded_taps_of_columns_that_lie_apart(device: Device, rng: Rng, variant: str, how: Any) -> None:
    """Of columns 3 apart, the last may be as far from the first as if all lay side by side."""
    skip_stand_in(device)
    _, x, grid = problem(rng, "f32", 2, how["align_corners"])
    last = on_device(np.ascontiguousarray(np.moveaxis(x, 1, -1)), device).transpose(0, 3, 1, 2)
    y, want = (forward(device, variant, each, grid, mode="bicubic", **how) for each in (last, x))
    np.testing.assert_array_equal(y, want)


def test_the_functions_take_a_channels_last_x(device: Device, rng: Rng) -> None:
    go, x, grid = problem(rng, "f32", 2)
    last = on_device(np.ascontiguousarray(np.moveaxis(x, 1, -1)), device).transpose(0, 3, 1, 2)
    there = on_device(grid, device)
    y, want = grid_sample(last, there).to_host(), references.grid_sample(x, grid)
    assert relative_error(y, want) <= bar("f32", x.shape, want)
    gradients = grid_sample_backward(on_device(go, device), last, there)
    for got, ref in zip(gradients, references.grid_sample_backward(go, x, grid), strict=True):
        assert got.is_contiguous
        assert relative_error(got.to_host(), ref) <= bar("f32", x.shape, ref)


# Plans --------------------------------------------------------------------------------------------------------------


@pytest.mark.ptx
def test_the_fast_variants_are_selected_where_they_take_the_problem(device: Device) -> None:
    def chosen(shape: Shape = (2, 3, 4, 5), grid: Shape = (2, 6, 7, 2), deterministic: bool = False, **how: Any) -> Any:
        y = GridSamplePlan.select(device, GridSampleDescriptor(shape, grid, **how))
        wanted = ptxrt.PlanPreference(deterministic=deterministic)
        back = GridSampleBackwardPlan.select(device, GridSampleBackwardDescriptor(shape, grid, **how), wanted)
        return y.key.variant, back.key.variant

    general, fixed = ("general", "general"), ("general", "general_fixed_point")
    assert chosen() == ("baseline", "baseline")
    assert chosen(strides=(60, 20, 5, 1)) == ("baseline", "baseline")
    assert chosen(strides=(60, 1, 15, 3)) == general
    for how in ({"mode": "nearest"}, {"padding_mode": "border"}, {"align_corners": True}):
        assert chosen(**how) == general
        assert chosen(**how, deterministic=True) == fixed
    assert chosen((2, 3, 4, 5, 6), (2, 2, 3, 4, 3)) == general
    assert chosen((2, 3, 2, 2), (2, 5, 7, 2), mode="nearest") == fixed  # many points on few pixels


def test_both_languages_add_in_fixed_point(device: Device) -> None:
    for language in {"ptx", "hip"} & set(device.backend.languages):
        wanted = ptxrt.PlanPreference(deterministic=True, language=language)
        plan = GridSampleBackwardPlan.select(device, GridSampleBackwardDescriptor((2, 3, 4, 5), (2, 6, 7, 2)), wanted)
        assert (plan.key.language, plan.precision_guarantee.deterministic) == (language, True)


@pytest.mark.parametrize("descriptor", [GridSampleDescriptor, GridSampleBackwardDescriptor])
def test_what_a_descriptor_refuses(descriptor: Any) -> None:
    volume = ((2, 3, 4, 5, 6), (2, 2, 3, 4, 3))
    op = descriptor.op
    with refused(ptxrt.Unsupported, op, "mode", "volume"):
        descriptor(*volume, mode="bicubic")
    for grid in ((2, 2, 3, 4, 2), (2, 3, 4, 3), (1, 2, 3, 4, 3), (2, 3, 4, 2)):
        with refused(ptxrt.ShapeMismatch, op, "grid", "OD, OH, OW, 3"):
            descriptor(volume[0], grid)
    for shape in ((2, 3, 4), (2, 3, 4, 5, 6, 7)):
        with refused(ptxrt.ShapeMismatch, op, "x", "four axes"):
            descriptor(shape, volume[1])
    for strides in ((1, 2, 3), (60, 20, -5, 1), (60.0, 20, 5, 1), None, 4):
        with refused(ptxrt.LayoutError, op, "strides", "4 strides of 0 or more"):
            descriptor((2, 3, 4, 5), (2, 6, 7, 2), strides=strides)
    with refused(ptxrt.DTypeMismatch, op, "x", "f16"):
        descriptor(*volume, "i32")
    assert descriptor(*volume).strides == (360, 120, 30, 6, 1)


@pytest.mark.parametrize("axis", range(8))
def test_sizes_of_a_volume_above_i32_are_refused(device: Device, axis: int) -> None:
    sizes = [1] * 8
    sizes[axis] = 1 << 31
    n, c, depth, ih, iw, *out = sizes
    with pytest.raises(ptxrt.Unsupported, match="i32"):
        GridSamplePlan.select(device, GridSampleDescriptor((n, c, depth, ih, iw), (n, *out, 3)))


def test_more_positions_than_integers_hold_are_refused(device: Device) -> None:
    descriptor = GridSampleBackwardDescriptor((1, 1, 2, 2), (1, 1 << 15, (1 << 15) + 1, 2), mode="nearest")
    with pytest.raises(ptxrt.Unsupported, match="too few bits"):
        GridSampleBackwardPlan.select(device, descriptor, ptxrt.PlanPreference(deterministic=True))


@each_variant
def test_any_number_of_positions(device: Device, variant: str) -> None:
    most = (1 << 31) - 1
    shapes = (2, 9, 1, 1), (2, most, most, 2)
    for found in (
        GridSamplePlan.select(device, GridSampleDescriptor(*shapes, mode="nearest"), wish(variant)),
        GridSampleBackwardPlan.select(device, GridSampleBackwardDescriptor(*shapes, mode="nearest"), wish(variant)),
    ):
        for launch in found.schedule.launches:
            assert launch.grid[0] * launch.block < 1 << 32
