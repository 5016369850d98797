"""grid_sample backward: both gradients, each variant, and each of its checks."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Rng, Shape
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, key_of, on_device, variants, wish
from test_grid_sample import HALVES, OUTSIDE, TYPES, both_types, of_16_bits, pixels
from tolerances import EPSILON, far_from_jumps, grid_sample_bar, relative_error, rounded_bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, BY_NUMPY
from ptxrt.ops import (
    GridSampleBackwardArgs,
    GridSampleBackwardDescriptor,
    GridSampleBackwardPlan,
    grid_sample,
    references,
)
from ptxrt.ops.framework import Config

# The others have their own tests in test_grid_sample_modes.py.
VARIANTS = [key for key in variants(GridSampleBackwardPlan) if "general" not in key]
each_variant = pytest.mark.parametrize("variant", VARIANTS)
OF_16_BITS = [key for key in VARIANTS if not key.endswith("baseline")]  # which would add halves
OF_64_BITS = [key for key in VARIANTS if not key.endswith(("quads", "tiled"))]  # whose sums are f32 alone
each_variant_of_64_bits = pytest.mark.parametrize("variant", OF_64_BITS)
each_variant_and_size = pytest.mark.parametrize(
    ("variant", "name"), [(key, name) for name in ("f32", "f64") for key in (VARIANTS if name == "f32" else OF_64_BITS)]
)
LOOPS = [key for key in VARIANTS if "tiled" not in key]  # whose blocks take several images
each_variant_with_loops = pytest.mark.parametrize("variant", LOOPS)
each_variant_of_16_bits = pytest.mark.parametrize("variant", OF_16_BITS)


def problem(rng: Rng, shape: Shape, size: Any, name: str = "f32", spread: float = 1.4) -> Any:
    """Return grad_out, an image, and a grid of points inside and outside of it."""
    go, x = (rng.standard_normal(s).astype(TYPES[name]) for s in ((*shape[:2], *size), shape))
    return go, x, rng.uniform(-spread, spread, (shape[0], *size, 2)).astype(TYPES[name])


def select(
    device: Device, shape: Shape, grid: Any, name: str = "f32", variant: str | None = None, **wishes: Any
) -> Any:
    descriptor = GridSampleBackwardDescriptor(shape, grid, BY_NAME[name])
    return GridSampleBackwardPlan.select(device, descriptor, wish(variant, **wishes))


def run(
    device: Device, variant: Any, go: Any, x: Any, grid: Any, offsets: Any = (0,) * 5, config: Config | None = None
) -> Any:
    """Run into poisoned, guarded outputs with a poisoned workspace; check the guards; return the host results."""
    plan = select(device, x.shape, grid.shape, BY_NUMPY[x.dtype].name, variant, config=config)
    outs = [Guarded(a.shape, a.dtype, device, o) for a, o in zip((x, grid), offsets[3:], strict=True)]
    there = [on_device(a, device, o) for a, o in zip((go, x, grid), offsets[:3], strict=True)]
    workspace = Guarded((plan.workspace_size,), np.uint8, device)
    args = GridSampleBackwardArgs(*there, *(out.array for out in outs))
    plan.run(args, workspace=workspace.array if plan.workspace_size else None)
    workspace.host()
    return tuple(out.host() for out in outs)


def check(device: Device, variant: Any, go: Any, x: Any, grid: Any, **how: Any) -> None:
    """Hold both gradients to the bar.

    Where eight points or fewer make a result, and where atomics add up what a plan would add in fixed point, sums may
    cancel: the bar is that of the sum of magnitudes.
    """
    name = BY_NUMPY[x.dtype].name
    size, points = x.shape[2:], grid.shape[1] * grid.shape[2]
    bar, case = float(grid_sample_bar(name, *size)), f"{x.shape} -> {grid.shape[1:3]} {variant}"
    keep = far_from_jumps(name, size[0], size[1], *references.grid_sample_coordinates(grid, *size))
    dx, dg = run(device, variant, go, x, grid, **how)
    want_dx, want_dg = references.grid_sample_backward(go, x, grid)
    got, want = dg[keep], want_dg[keep]
    input_bar = grid_bar = bar
    few, crowded = x.shape[0] * points <= 8, points > size[0] * size[1] * max(size) ** 2
    if (few or crowded) and variant != "fixed_point" and want_dx.any():
        magnitude, _ = references.grid_sample_backward(np.abs(go), x, grid)
        input_bar *= max(1, np.linalg.norm(magnitude.ravel()) / np.linalg.norm(want_dx.ravel()))
    input_bar = rounded_bar(input_bar, name, want_dx)
    if few and want.any():
        magnitude = np.abs(go).sum(axis=1)[keep] * np.abs(x).max() * max(size) / 2
        grid_bar *= max(1, np.linalg.norm(magnitude[want.any(axis=-1)]) / np.linalg.norm(want.astype(np.float64)))
    grid_bar = rounded_bar(grid_bar, name, want)
    of_few = " of few points" if few else ""
    of_many = " of many points a pixel" if crowded else ""
    check_error(f"grid_sample grad_input{of_few or of_many}", device, dx, want_dx, input_bar, case)
    check_error(f"grid_sample grad_grid{of_few}", device, got, want, grid_bar, case)


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
        ((1, 1, 5, 3), (1, 257)),
        ((1, 2, 5, 3), (3, 43)),  # 129 positions
        ((1, 3, 33, 32), (1, 63)),
        ((2, 33, 5, 3), (5, 7)),
        ((1, 1, 32, 33), (4, 5)),  # 1056 pixels
    ],
    ids=str,
)
@each_variant_and_size
@pytest.mark.sanitize
def test_matches_the_reference(device: Device, rng: Rng, variant: str, name: str, shape: Shape, size: Any) -> None:
    check(device, variant, *problem(rng, shape, size, name))


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 64, 65])
@each_variant
def test_any_number_of_channels(device: Device, rng: Rng, variant: str, channels: int) -> None:
    check(device, variant, *problem(rng, (2, channels, 4, 3), (3, 13)))


@each_variant_of_16_bits
@of_16_bits
@pytest.mark.parametrize(("shape", "size"), [((2, 3, 4, 5), (5, 6)), ((1, 33, 5, 3), (1, 70))], ids=str)
@pytest.mark.sanitize
def test_gradients_of_16_bits_are_one_rounding_of_those_of_f32(
    device: Device, rng: Rng, variant: str, name: str, shape: Shape, size: Any
) -> None:
    go, x, grid = problem(rng, shape, size, name)
    check(device, variant, go, x, grid)
    wide = run(device, variant, go.astype(np.float32), x.astype(np.float32), grid.astype(np.float32))
    certain = variant == "fixed_point" or device.kind == "sim"  # atomics add up in the same order
    for offset in (0, 1):
        got = run(device, variant, go, x, grid, (offset,) * 5)
        for one, other in list(zip(got, wide, strict=True))[0 if certain else 1 :]:
            assert one.tobytes() == other.astype(TYPES[name]).tobytes()


@each_variant_of_16_bits
@of_16_bits
def test_sums_of_16_bits_lose_nothing(device: Device, variant: str, name: str) -> None:
    # From 2 / eps on, one more is nothing in the type itself.
    count = int(5 / EPSILON[name])
    one = np.ones((1, 1, 1, count), TYPES[name])
    dx, _ = run(device, variant, one, one[..., :1], np.zeros((1, 1, count, 2), TYPES[name]))
    assert dx.item() == TYPES[name](count)


def test_float_atomics_in_place_take_no_16_bits(device: Device) -> None:
    for name in HALVES:
        for variant in {"baseline", "hip/baseline"} & set(variants(GridSampleBackwardPlan, device)):
            with pytest.raises(ptxrt.Unsupported, match=f"atomics on {name} would round at each addition"):
                select(device, SHAPES["x"], SHAPES["grid"], name, variant)


@both_types
def test_drawn_shapes(device: Device, name: str) -> None:
    def body(n: Any, c: Any, ih: Any, iw: Any, oh: Any, ow: Any, variant: str, seed: Any) -> None:
        rng = np.random.default_rng(seed)
        offsets = tuple(rng.integers(0, 4, 5))
        check(device, variant, *problem(rng, (n, c, ih, iw), (oh, ow), name), offsets=offsets)

    few, of_type = st.integers(1, 9), VARIANTS if name == "f32" else OF_64_BITS
    for_drawn(
        device, body, n=st.integers(1, 3), c=st.integers(1, 40), ih=few, iw=few, oh=few, ow=st.integers(1, 40),
        variant=st.sampled_from([key for key in variants(GridSampleBackwardPlan, device) if key in of_type]),
        seed=st.integers(0, 2**32 - 1),
    )  # fmt: skip


@each_variant_of_64_bits
def test_the_gradients_are_the_slopes_of_the_forward(device: Device, rng: Rng, variant: str) -> None:
    go, x, _ = problem(rng, (2, 3, 4, 5), (3, 4), "f64")
    # In cells inside, on all borders and outside, no closer than 0.1 to an integer coordinate.
    s = rng.integers(-2, 6, (2, 3, 4, 2)) + rng.uniform(0.1, 0.9, (2, 3, 4, 2))
    grid = (2 * s + 1) / np.array([5, 4]) - 1
    step = 1e-6

    def value(x: Any, grid: Any) -> Any:
        return (go * grid_sample(on_device(x, device), on_device(grid, device)).to_host()).sum()

    dx, dg = run(device, variant, go, x, grid)
    for _ in range(6):
        along_x, along_grid = rng.standard_normal(x.shape), rng.standard_normal(grid.shape)
        slope = (value(x + step * along_x, grid) - value(x - step * along_x, grid)) / (2 * step)
        np.testing.assert_allclose((dx * along_x).sum(), slope, rtol=1e-7, atol=1e-8)
        slope = (value(x, grid + step * along_grid) - value(x, grid - step * along_grid)) / (2 * step)
        np.testing.assert_allclose((dg * along_grid).sum(), slope, rtol=1e-7, atol=1e-8)


@each_variant_and_size
def test_at_integer_coordinates_the_slope_is_the_upper_sides(device: Device, rng: Rng, variant: str, name: str) -> None:
    s = np.stack(np.meshgrid(np.arange(-2.0, 10), np.arange(-2.0, 6)), axis=-1)[None]  # exact in grids of these sizes
    grid = ((2 * s + 1) / np.array([8, 4]) - 1).astype(TYPES[name])
    go, x, _ = problem(rng, (1, 3, 4, 8), grid.shape[1:3], name)
    bar = float(grid_sample_bar(name, 4, 8))
    for got, want in zip(run(device, variant, go, x, grid), references.grid_sample_backward(go, x, grid), strict=True):
        assert relative_error(got, want) <= bar


@each_variant_and_size
@pytest.mark.parametrize("axis", [0, 1])
def test_a_point_outside_has_no_gradients(device: Device, variant: str, name: str, axis: int) -> None:
    values = [*OUTSIDE, 1e300, -1e300] if name == "f64" else OUTSIDE
    shape = (1, 3, 3, 4)
    x, go = np.full(shape, np.nan, TYPES[name]), np.full((1, 3, 1, len(values)), np.inf, TYPES[name])
    grid = np.zeros((1, 1, len(values), 2), TYPES[name])
    grid[0, 0, :, axis] = values
    for gradient in run(device, variant, go, x, grid):
        np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@each_variant
@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_where_it_touches(device: Device, rng: Rng, variant: str, value: Any) -> None:
    go, x, grid = problem(rng, (1, 3, 6, 7), (3, 4))
    go[0, 1, 1, 2] = go[0, 2, 2, 3] = value
    want_dx, want_dg = references.grid_sample_backward(go, x, grid)
    dx, dg = run(device, variant, go, x, grid)
    bar = grid_sample_bar("f32", 6, 7)
    assert (~np.isfinite(want_dx)).any()
    assert relative_error(dx, want_dx) <= bar
    touched = ~np.isfinite(want_dg)
    np.testing.assert_array_equal(np.isfinite(dg), ~touched)
    assert relative_error(dg[~touched], want_dg[~touched]) <= bar


@each_variant
def test_infinities_of_both_signs_are_not_a_number(device: Device, variant: str) -> None:
    grid = np.array([[0.25, 0.25], [0.25, 0.25]], np.float32).reshape(1, 1, 2, 2)
    go = np.array([[np.inf, -np.inf], [np.inf, np.inf]], np.float32).reshape(1, 2, 1, 2)
    dx, _ = run(device, variant, go, np.ones((1, 2, 2, 2), np.float32), grid)
    assert np.isnan(dx[0, 0]).all()
    assert (dx[0, 1] == np.inf).all()


@each_variant
def test_an_infinite_gradient_is_not_a_number_where_its_weight_is_zero(device: Device, variant: str) -> None:
    want = np.zeros((1, 1, 4, 4))
    want[0, 0, 1, 2:] = np.inf, np.nan
    want[0, 0, 2, 2:] = np.nan
    for name in {"f32", *(HALVES if variant in OF_16_BITS else ()), *(("f64",) if variant in OF_64_BITS else ())}:
        go = np.where(want == np.inf, -np.inf, 0).astype(TYPES[name])
        dx, _ = run(device, variant, go, np.zeros((1, 1, 4, 4), TYPES[name]), pixels(4, 4, name))
        np.testing.assert_array_equal(dx.astype(np.float64), -want)


@each_variant
def test_bad_pixels_spoil_the_slope_of_what_touches_them_alone(device: Device, rng: Rng, variant: str) -> None:
    go, x, grid = problem(rng, (1, 2, 6, 6), (9, 9))
    x[0, 1, 2, 3] = np.nan
    _, dg = run(device, variant, go, x, grid)
    _, want = references.grid_sample_backward(go, x, grid)
    np.testing.assert_array_equal(np.isnan(dg).any(-1), np.isnan(want).any(-1))


@pytest.mark.parametrize("shape", [(2, 3, 0, 4), (2, 3, 4, 0)])
@each_variant
def test_an_image_without_pixels_has_gradients_of_zero(device: Device, rng: Rng, variant: str, shape: Shape) -> None:
    dx, dg = run(device, variant, *problem(rng, shape, (3, 5)))
    assert dx.shape == shape
    np.testing.assert_array_equal(dg, np.zeros((2, 3, 5, 2)))


@pytest.mark.parametrize(
    ("name", "size"),
    [("f32", 1.4e-45), ("f32", 1e-40), ("f32", 3e38), ("f32", 0.0), ("f64", 5e-324), ("f64", 1e-310), ("f64", 1.7e308)],
)
@each_variant
def test_gradients_of_any_size(device: Device, rng: Rng, variant: str, name: str, size: float) -> None:
    if name == "f64" and variant not in OF_64_BITS:
        return
    # At the pixels every weight is 0 or 1: each pixel gets its gradient, denormals too, and nothing is rounded.
    go = (rng.integers(-1, 2, (1, 3, 4, 8)) * TYPES[name](size)).astype(TYPES[name])
    dx, _ = run(device, variant, go, np.zeros((1, 3, 4, 8), TYPES[name]), pixels(4, 8, name))
    if name == "f32" and variant != "fixed_point":
        go = np.where((np.abs(go) < 1.2e-38) & (dx == 0), 0, go)  # float atomics may flush f32 denormals
    np.testing.assert_array_equal(dx, go)


@pytest.mark.ptx
@pytest.mark.parametrize(("name", "size"), [("f16", 2.0**-24), ("f16", 65504), ("bf16", 2.0**-133), ("bf16", 3.38e38)])
def test_gradients_of_16_bits_of_any_size(device: Device, rng: Rng, name: str, size: float) -> None:
    go = (rng.integers(-1, 2, (1, 3, 4, 8)) * size).astype(TYPES[name])
    for variant in OF_16_BITS if size > 1e-30 else ["fixed_point"]:  # float atomics may flush f32 denormals
        dx, _ = run(device, variant, go, np.zeros((1, 3, 4, 8), TYPES[name]), pixels(4, 8, name))
        np.testing.assert_array_equal(dx, go)


# Fixed point ----------------------------------------------------------------------------------------------------------


@pytest.mark.ptx
@pytest.mark.parametrize(("name", "large"), [("f32", 1e30), ("f64", 1e300), ("bf16", 1e30), ("f16", 1e3)])
def test_fixed_point_has_a_scale_for_each_plane(device: Device, rng: Rng, name: str, large: float) -> None:
    go, x, grid = problem(rng, (2, 35, 4, 4), (3, 7), name, spread=0.9)
    alone, _ = run(device, "fixed_point", go, x, grid)
    go[0, 33] = go[1, 2] = large
    dx, _ = run(device, "fixed_point", go, x, grid)
    others = np.ones((2, 35), bool)
    others[0, 33] = others[1, 2] = False
    np.testing.assert_array_equal(dx[others], alone[others])
    check(device, "fixed_point", go, x, grid)


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("name", "more"), [("f32", 40), ("f32", 60), ("f32", 88), ("f64", 40), ("f64", 60), ("bf16", 88)]
)
def test_fixed_point_holds_what_is_small_in_a_plane(device: Device, rng: Rng, name: str, more: int) -> None:
    # 4 positions: 118 bits below the largest. No two points share a pixel, so that each element has its own error.
    go, x, _ = problem(rng, (1, 2, 4, 16), (1, 4), name)
    go[0, :, 0, 1] = 2.0**more
    sx, sy = 4 * np.arange(4) + rng.uniform(0.2, 0.8, 4), rng.uniform(0.2, 1.8, 4)
    grid = (np.stack([2 * sx + 1, 2 * sy + 1], -1) / (16, 4) - 1).astype(TYPES[name]).reshape(1, 1, 4, 2)
    dx, _ = run(device, "fixed_point", go, x, grid)
    want, _ = references.grid_sample_backward(go, x, grid)
    # An error of the coordinate is one of the weight.
    near = float(grid_sample_bar(name, 4, 16)) * np.repeat(np.abs(go.astype(want.dtype)), 4, axis=3)
    assert (want != 0).sum() == 2 * 16
    assert (np.abs(dx - want) <= np.where(want != 0, near, 0) + EPSILON[name] / 2 * np.abs(want)).all()


@pytest.mark.ptx
@pytest.mark.parametrize("name", TYPES)
def test_no_bit_of_fixed_point_depends_on_the_order(device: Device, rng: Rng, name: str) -> None:
    go, x, grid = problem(rng, (1, 3, 3, 4), (5, 13), name)
    go[0, 1] *= TYPES[name](2.0**10)
    go[0, 2, 3, 4], go[0, 2, 4, 1] = np.inf, -np.inf
    dx, _ = run(device, "fixed_point", go, x, grid)
    order = rng.permutation(65)
    go, grid = go.reshape(1, 3, 65)[..., order].reshape(1, 3, 13, 5), grid.reshape(65, 2)[order].reshape(1, 13, 5, 2)
    assert run(device, "fixed_point", go, x, grid)[0].tobytes() == dx.tobytes()


@pytest.mark.ptx
def test_fixed_point_loses_what_is_far_below_the_largest(device: Device) -> None:
    # 2 positions: the largest is 2^126, below 2^127, of which 120 bits are held: down to 2^7.
    x, grid = np.zeros((1, 1, 1, 2), np.float32), np.array([[[[-0.5, 0], [0.5, 0]]]], np.float32)
    for small, held in ((2.0**7, 2.0**7), (2.0**6 + 1, 2.0**7), (2.0**5, 0)):
        dx, _ = run(device, "fixed_point", np.array([[[[2.0**126, small]]]], np.float32), x, grid)
        np.testing.assert_array_equal(dx.ravel(), [2.0**126, held])


@pytest.mark.ptx
@both_types
def test_sums_as_large_as_their_words(device: Device, name: str) -> None:
    # 64 parts just below the power of two that is above the largest; and 63 that the first word has none of, in all.
    most = np.nextafter(TYPES[name](2), TYPES[name](0))
    go = np.full((1, 2, 1, 64), most)
    go[0, 1] = [most] + [TYPES[name](2.0**-56)] * 63
    grid = np.zeros((1, 1, 64, 2), TYPES[name])
    grid[..., 0] = [-0.5] + [0.5] * 63
    for sign in (1, -1):
        dx, _ = run(device, "fixed_point", sign * go, np.zeros((1, 2, 1, 2), TYPES[name]), grid)
        np.testing.assert_array_equal(sign * dx[0, :, 0], [[most, 63 * most], [most, 63 * 2.0**-56]])


@pytest.mark.ptx
def test_the_largest_may_be_anywhere(device: Device) -> None:
    places = (0, 31, 32, 1023, 1024, 2047, 2048, 2499)
    go = np.zeros((1, 8, 1, 2500), np.float32)
    go[0, range(8), 0, places] = 3
    dx, _ = run(device, "fixed_point", go, np.zeros((1, 8, 1, 1), np.float32), np.zeros((1, 1, 2500, 2), np.float32))
    np.testing.assert_array_equal(dx.ravel(), np.full(8, 3))


def test_the_guarantee_says_what_adds_up(device: Device) -> None:
    for name, sums in (("f32", "f32"), ("f16", "f32"), ("bf16", "f32"), ("f64", "f64")):
        for variant in set(variants(GridSampleBackwardPlan, device)) & {"fixed_point", "channels_last"}:
            guarantee = select(device, SHAPES["x"], SHAPES["grid"], name, variant).precision_guarantee
            fixed = variant == "fixed_point"
            assert (guarantee.math_precision, guarantee.accumulator) == (sums, "2 x i64" if fixed else sums)
            assert guarantee.deterministic == fixed


def test_a_pixel_that_all_points_give_to(device: Device, rng: Rng) -> None:
    for variant in set(variants(GridSampleBackwardPlan, device)) & set(VARIANTS):
        go, x, _ = problem(rng, (1, 3, 4, 4), (20, 20))
        check(device, variant, np.abs(go), x, np.full((1, 20, 20, 2), 0.1, np.float32))


@pytest.mark.ptx
@pytest.mark.parametrize(("image", "size"), [((1, 1), (64, 64)), ((2, 2), (128, 128)), ((3, 1), (50, 60))], ids=str)
def test_a_tiny_image_with_many_points_keeps_the_bar(device: Device, rng: Rng, image: Any, size: Any) -> None:
    operands = problem(rng, (1, 5, *image), size, spread=0.9)
    plan = select(device, operands[1].shape, operands[2].shape)
    assert key_of(plan.variant) == "fixed_point"
    check(device, plan.key.variant, *operands)
    few = ptxrt.PlanPreference(workspace_limit=0)
    assert key_of(GridSampleBackwardPlan.select(device, plan.descriptor, few).variant) == "baseline"


@each_variant_with_loops
@pytest.mark.sanitize
def test_blocks_take_several_images_where_a_grid_is_too_small(
    device: Device, rng: Rng, monkeypatch: Patch, variant: str
) -> None:
    for module in ("_grid_sample", "_grid_sample_quads"):
        monkeypatch.setattr(sys.modules[f"ptxrt.ops.{module}"], "_GRID_YZ", 2)
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "blocks_in_hip", lambda *_: 3)
    check(device, variant, *problem(rng, (5, 70, 3, 4), (5, 7)))


@each_variant_with_loops
def test_more_images_than_grid_z_holds(cuda: Device, rng: Rng, variant: str) -> None:
    go, x, grid = problem(rng, (65537, 2, 1, 2), (1, 1))
    dx, dg = run(cuda, variant, go, x, grid)
    for part in (slice(0, 3), slice(65534, None)):
        want_dx, want_dg = references.grid_sample_backward(go[part], x[part], grid[part])
        assert relative_error(dx[part], want_dx) <= grid_sample_bar("f32", 1, 2)
        assert relative_error(dg[part], want_dg) <= grid_sample_bar("f32", 1, 2)


@each_variant
@pytest.mark.parametrize("shape", [(2, 3, 40, 30), (2, 32, 17, 9), (1, 70, 9, 33)])
def test_agrees_with_pytorch(cuda: Device, rng: Rng, variant: str, shape: Shape) -> None:
    torch = pytest.importorskip("torch")
    for name in ("f32", "f64") if variant in OF_64_BITS else ("f32",):
        go, x, grid = problem(rng, shape, (50, 140), name)
        a, b, c = (torch.tensor(v, device="cuda") for v in (go, x, grid))
        want = torch.ops.aten.grid_sampler_2d_backward(a, b, c, 0, 0, False, [True, True])
        keep = far_from_jumps(name, shape[2], shape[3], *references.grid_sample_coordinates(grid, *shape[2:]))
        dx, dg = run(cuda, variant, go, x, grid)
        bar = 2 * float(grid_sample_bar(name, *shape[2:]))
        assert relative_error(dx, want[0].cpu().numpy()) <= bar
        assert relative_error(dg[keep], want[1].cpu().numpy()[keep]) <= bar


@each_variant
def test_images_past_2_to_the_32_elements(cuda: Device, torch_with: Any, variant: str) -> None:
    shape, size = (1, 2, 46400, 46401), (40, 130)
    need = (
        4
        * int(np.prod(shape))
        * {"channels_last": 3, "hip/channels_last": 3, "quads": 4, "fixed_point": 6}.get(variant, 2)
    )
    torch = torch_with(1.1 * need)
    x = torch.zeros(shape, device="cuda")
    go = torch.randn((1, 2, *size), device="cuda")
    grid = torch.empty((1, *size, 2), device="cuda").uniform_(-0.99, 0.99)
    grid[0, -1, :, 1] = 0.9999  # in the last rows
    plan = select(cuda, shape, tuple(grid.shape), variant=variant)
    dx, dg = (torch.from_dlpack(a) for a in plan.run(GridSampleBackwardArgs(go, x, grid)))
    assert not dg.any()
    for channel in (0, 1):
        total = sum(part.sum(dtype=torch.float64) for part in dx[0, channel].split(4000))
        assert abs(total - go[0, channel].double().sum()) <= 1e-3 * go[0, channel].norm()
    # The same points of the same image, seen from its last rows alone.
    rows = 1000
    sy = ((grid[..., 1].double() + 1) * shape[2] - 1) / 2
    sx = ((grid[..., 0].double() + 1) * shape[3] - 1) / 2
    far = (sy > shape[2] - rows + 1).view(-1)
    assert far.any()
    pixel_rows, pixel_columns = sy.floor().long().view(-1)[far], sx.floor().long().view(-1)[far]
    for channel in (0, 1):
        near = sum(dx[0, channel, pixel_rows + i, pixel_columns + j] for i in range(-1, 3) for j in range(-2, 4))
        # All of a point's weight lies round it, whatever the rounding of its coordinate.
        assert relative_error(near.cpu().numpy(), go[0, channel].view(-1)[far].cpu().numpy()) < 0.05


@each_variant
def test_gradients_past_2_to_the_32_elements(cuda: Device, torch_with: Any, variant: str) -> None:
    shape, size = (2, 33, 64, 64), (8192, 8200)
    torch = torch_with(2 * 33 * 8192 * 8200 * 6)
    go = torch.zeros((2, 33, *size), device="cuda")
    x = torch.randn(shape, device="cuda")
    grid = torch.empty((2, *size, 2), device="cuda").uniform_(-1.2, 1.2)
    for row in (0, 5, 8000, 8191):
        go[:, :, row] = torch.randn((2, 33, size[1]), device="cuda")
    plan = select(cuda, shape, tuple(grid.shape), variant=variant)
    dx, dg = (torch.from_dlpack(a) for a in plan.run(GridSampleBackwardArgs(go, x, grid)))
    rows = [0, 5, 8000, 8191]
    part = go[:, :, rows].contiguous(), x, grid[:, rows].contiguous()
    want_dx, want_dg = torch.ops.aten.grid_sampler_2d_backward(*part, 0, 0, False, [True, True])
    bar = 2 * float(grid_sample_bar("f32", 64, 64))
    assert relative_error(dx.cpu().numpy(), want_dx.cpu().numpy()) <= bar
    sx, sy = references.grid_sample_coordinates(part[2].cpu().numpy(), 64, 64)
    keep = far_from_jumps("f32", 64, 64, sx, sy)
    assert relative_error(dg[:, rows].cpu().numpy()[keep], want_dg.cpu().numpy()[keep]) <= bar
    assert not dg[:, 6:7999].any()


# Checks -------------------------------------------------------------------------------------------------------------

SHAPES = {
    "grad_out": (2, 3, 6, 7),
    "x": (2, 3, 4, 5),
    "grid": (2, 6, 7, 2),
    "grad_input": (2, 3, 4, 5),
    "grad_grid": (2, 6, 7, 2),
}


# The plan -----------------------------------------------------------------------------------------------------------


@pytest.mark.ptx
def test_the_variant_suits_the_problem(device: Device) -> None:
    def chosen(shape: Shape, size: Any, **wishes: Any) -> Any:
        return select(device, shape, (shape[0], *size, 2), **wishes).key.variant

    assert chosen((8, 64, 32, 32), (32, 32)) == ("channels_last" if device.kind == "hip" else "general_last")
    assert chosen((64, 64, 32, 32), (32, 32)) == "tiled_channels"
    assert chosen((64, 64, 32, 32), (64, 64)) == "channels_last"  # many points a pixel
    assert chosen((64, 64, 32, 32), (64, 64), name="f64") == "tiled_channels"
    assert chosen((4, 3, 512, 512), (256, 256)) == "quads"
    assert chosen((4, 3, 512, 512), (512, 512)) == chosen((4, 1, 256, 256), (512, 512), name="f16") == "tiled"
    assert chosen((2, 1, 512, 512), (512, 512)) == ("tiled" if device.kind != "hip" else "baseline")
    assert (
        chosen((4, 4, 512, 512), (1025, 1025), name="f64")
        == chosen((4, 5, 512, 512), (512, 512), name="f64")
        != "tiled"
    )
    assert chosen((4, 4, 512, 512), (512, 512)) == chosen((1, 3, 512, 512), (512, 512)) == "quads"
    assert chosen((2, 1, 512, 512), (256, 256)) == "baseline"  # no channels side by side
    assert chosen((7, 64, 32, 32), (32, 32)) == "baseline"  # too few gradients
    assert chosen((4, 64, 256, 256), (127, 128)) == "baseline"  # too few points for so many pixels
    assert chosen((999, 64, 11, 11), (11, 11)) == "baseline"  # too few points to fill a block
    assert chosen((8, 64, 32, 32), (32, 32), workspace_limit=0) == "baseline"
    assert chosen((8, 64, 32, 32), (32, 32), deterministic=True) == "fixed_point"
    assert {chosen((1, 1, 4, 4), (3, 3), name=name) for name in HALVES} == {"general"}
    assert {chosen((1, 2, 4, 4), (3, 3), name=name) for name in HALVES} == {"general_last"}
    assert chosen((4, 4, 64, 64), (31, 33), name="f16") == "channels_last"  # too few points for so many pixels
    assert chosen((4, 4, 32, 32), (64, 63), name="f16") == "general_last"
    many = chosen((4, 4, 32, 32), (64, 64), name="f16")  # points a pixel
    assert many == ("general_last" if device.kind == "hip" else "channels_last")
    some = [chosen((4, c, 256, 256), (512, height)) for c, height in ((2, 512), (3, 512), (3, 256))]
    assert some == ["tiled", *(["channels_last"] * 2 if device.kind == "hip" else ["quads", "tiled"])]
    assert chosen((1, 1, 1, 1), (3, 3), name="f16") == "fixed_point"


@pytest.mark.ptx
def test_no_deterministic_variant_without_a_workspace(device: Device) -> None:
    with pytest.raises(ptxrt.Unsupported, match="fixed_point: needs 2816 bytes"):
        select(device, SHAPES["x"], SHAPES["grid"], deterministic=True, workspace_limit=256)


@pytest.mark.parametrize("axis", range(6))
def test_sizes_above_i32_are_refused(device: Device, axis: int) -> None:
    sizes = [1, 1, 1, 1, 1, 1]
    sizes[axis] = 1 << 31
    n, c, ih, iw, oh, ow = sizes
    with pytest.raises(ptxrt.Unsupported) as caught:
        select(device, (n, c, ih, iw), (n, oh, ow, 2))
    assert str(caught.value).count("i32") >= min(2, len(variants(GridSampleBackwardPlan, device)))


@pytest.mark.ptx
def test_what_a_variant_cannot_do_is_refused(device: Device) -> None:
    most = (1 << 31) - 1
    with pytest.raises(ptxrt.Unsupported, match=r"blocks do not fit grid\.x"):
        select(device, (1, 1, 1, 1), (1, most, 512, 2), variant="channels_last")
    with pytest.raises(ptxrt.Unsupported, match=r"blocks do not fit grid\.x"):
        select(device, (1, 32, most, 64), (1, 1, 1, 2), variant="channels_last")
    with pytest.raises(ptxrt.Unsupported, match="too few bits"):
        select(device, (1, 1, 1, 1), (1, 1 << 15, (1 << 15) + 1, 2), variant="fixed_point")


def test_the_baseline_takes_any_number_of_positions(device: Device) -> None:
    most = (1 << 31) - 1
    for variant in set(variants(GridSampleBackwardPlan, device)) & {"baseline", "hip/baseline"}:
        plan = select(device, (2, 9, 1, 1), (2, most, most, 2), variant=variant)
        (_, launch) = plan.schedule.steps
        assert launch.grid[0] * launch.block < 1 << 32
