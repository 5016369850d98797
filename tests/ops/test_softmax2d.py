"""softmax2d, forward and backward: values, edges, and each check; and the exp that it is made of, in PTX and in HIP."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from helpers import Patch, Rng, Shape
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, key_of, on_device, rounded_twice, variants, wish
from tolerances import BARS, EPSILON, bar, relative_error

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import (
    Softmax2dArgs,
    Softmax2dBackwardArgs,
    Softmax2dBackwardDescriptor,
    Softmax2dBackwardPlan,
    Softmax2dDescriptor,
    Softmax2dPlan,
    references,
    softmax2d,
    softmax2d_backward,
)
from ptxrt.ops._softmax2d import FAMILY, LanesConfig, ThreadsConfig, _tile
from ptxrt.ops.framework.texts import context, read_kernel, templates

VARIANTS = ["baseline", "tiled", "hip/baseline", "hip/tiled"]  # those that take every problem
BAR = bar("softmax2d", "f32")
TYPES = FAMILY.dtypes
OTHERS = [name for name in TYPES if name != "f32"]  # the same texts: fewer cases of each


class Direction(NamedTuple):
    """Forward or backward, so that one test body serves both."""

    op: str
    function: Any
    plan: Any
    descriptor: Any
    args: Any
    reference: Any
    inputs: tuple[str, ...]
    threads: int

    def most_threads(self, name: str) -> int:
        """Of a block, for an element type."""
        return self.threads // 2 if name == "f64" else self.threads

    def __str__(self) -> str:
        return self.op


FORWARD = Direction(
    "softmax2d", softmax2d, Softmax2dPlan, Softmax2dDescriptor, Softmax2dArgs, references.softmax2d, ("x",),
    1024,
)  # fmt: skip
BACKWARD = Direction(
    "softmax2d_backward", softmax2d_backward, Softmax2dBackwardPlan, Softmax2dBackwardDescriptor,
    Softmax2dBackwardArgs, references.softmax2d_backward, ("grad_out", "y"), 512,
)  # fmt: skip
both = pytest.mark.parametrize("way", [FORWARD, BACKWARD], ids=str)
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_type = pytest.mark.parametrize("name", TYPES)
f32_and_others = pytest.mark.parametrize("names", [["f32"], OTHERS], ids=["f32", "others"])


def kind_of(name: str) -> Any:
    return BY_NAME[name].numpy


def values_for(
    way: Direction, rng: Rng, shape: Shape, mean: float = 0.0, deviation: float = 1.0, name: str = "f32"
) -> Any:
    """Return the inputs, of the given mean; y of the backward is a softmax."""
    first, other = (rng.standard_normal((2, *shape)) * deviation + mean).astype(kind_of(name))
    return (first,) if way is FORWARD else (first, references.softmax2d(other).astype(kind_of(name)))


def plan_for(way: Direction, device: Device, shape: Shape, variant: str | None = None, kind: str = "f32") -> Any:
    return way.plan.select(device, way.descriptor(shape, element_type(kind)), wish(variant))


def run(way: Direction, device: Device, inputs: Any, variant: str | None = None, offset: int = 0) -> Any:
    """Run on `device` into a poisoned, guarded output; return the host result."""
    out = Guarded(inputs[0].shape, inputs[0].dtype, device, offset)
    there = [on_device(array, device, offset) for array in inputs]
    plan = plan_for(way, device, inputs[0].shape, variant, inputs[0].dtype)
    assert plan.run((*there, out.array)) is out.array
    return out.host()


def check(
    way: Direction, device: Device, inputs: Any, variant: str | None = None, offset: int = 0, large_mean: bool = False
) -> Any:
    got = run(way, device, inputs, variant, offset)
    with np.errstate(invalid="ignore"):
        want = way.reference(*inputs)
    at_most = bar("softmax2d", element_type(inputs[0].dtype).name, want, large_mean=large_mean)
    check_error(way.op, device, got, want, at_most, (inputs[0].shape, variant, offset))
    return got


def of_each(name: str) -> Any:
    """Return the type in NumPy, its largest number, its smallest normal one, and its smallest."""
    limits = ml_dtypes.finfo(kind_of(name))
    return kind_of(name), float(limits.max), float(limits.tiny), float(limits.smallest_subnormal)


# Values -------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("shape", "name"), [((2, 3, 264), "f32"), ((2, 19, 257), "f16"), ((1, 11, 260), "bf16")])
def test_few_channels_by_instructions_of_the_device(
    device: Device, rng: Rng, way: Direction, shape: Shape, name: str
) -> None:
    """AMD's have bits of their own; test_softmax2d_strips.py compares those that are PTX's."""
    check(way, device, values_for(way, rng, shape, deviation=3.0, name=name), "hip/strips")


@both
@pytest.mark.parametrize("variant", ["last", "hip/last"])
@pytest.mark.parametrize(
    ("shape", "lanes", "name"),
    [
        ((1, 4), 1, "f32"),
        ((1, 4), 4, "f32"),  # three lanes without a channel
        ((257, 32), 1, "f32"),  # more columns than a block has; all slots
        ((37, 132), 8, "f32"),  # lanes of different length
        ((5, 1024), 32, "f32"),
        ((9, 60), 16, "f64"),
        ((3, 32), 2, "f64"),
        ((9, 136), 8, "f16"),
        ((9, 24), 1, "bf16"),
    ],
    ids=str,
)
@pytest.mark.sanitize
def test_channels_side_by_side(
    device: Device, rng: Rng, way: Direction, shape: Shape, lanes: int, name: str, variant: str
) -> None:
    plan = way.plan.select(device, way.descriptor(shape, BY_NAME[name]), wish(variant, config=LanesConfig(lanes)))
    for offset in (0, 1):
        inputs = values_for(way, rng, shape, deviation=4.0, name=name)
        out = Guarded(shape, inputs[0].dtype, device, offset)
        plan.run((*(on_device(array, device, offset) for array in inputs), out.array))
        want = way.reference(*inputs)
        check_error(way.op, device, out.host(), want, bar("softmax2d", name, want), (shape, lanes, offset))


@pytest.mark.parametrize("variant", ["last", "hip/last"])
def test_columns_side_by_side_that_have_no_result(device: Device, rng: Rng, variant: str) -> None:
    x = rng.standard_normal((12, 16)).astype(np.float32)
    x[1], x[3, 5], x[4, 15], x[5, 2], x[7, 1:] = -np.inf, np.nan, np.inf, -np.inf, -np.inf
    got = check(FORWARD, device, (x,), variant)
    assert np.isnan(got).all(axis=1).nonzero()[0].tolist() == [1, 3, 4]
    assert got[7].tolist() == [1.0] + 15 * [0.0]
    y = got.copy()
    y[1:6], grad_out = 0.25, np.ones_like(x)
    grad_out[2, 3] = np.inf  # the sum is infinite: what it lacks is no number, and left out
    assert np.isnan(run(BACKWARD, device, (grad_out, y), variant)[2, 3])
    np.testing.assert_array_equal(np.delete(run(BACKWARD, device, (grad_out, y), variant)[2], 3), -np.inf)


@both
def test_what_channels_side_by_side_must_be(sim: Device, way: Direction) -> None:
    for shape, name, lanes, reason in (
        ((2, 8, 3), "f32", 1, "takes channels that lie side by side, a multiple of 4"),
        ((2, 6), "f32", 1, "takes channels that lie side by side, a multiple of 4"),
        ((2, 12), "f16", 1, "takes channels that lie side by side, a multiple of 8"),
        ((2, 8), "f32", 3, "3 lanes are no power of two of up to 32"),
        ((2, 36), "f32", 1, "36 channels do not fit the registers of 1 lanes"),
        ((2, 18), "f64", 1, "18 channels do not fit the registers of 1 lanes"),
    ):
        for variant in ("last", "hip/last"):
            wanted = wish(variant, config=LanesConfig(lanes))
            with pytest.raises(ptxrt.Unsupported, match=f"last: {reason}"):
                way.plan.select(sim, way.descriptor(shape, BY_NAME[name]), wanted)


@both
def test_in_ptx_and_hip_channels_side_by_side_have_the_same_bits(sim: Device, rng: Rng, way: Direction) -> None:
    for name in TYPES:
        inputs = values_for(way, rng, (5, 144), deviation=4.0, name=name)
        assert run(way, sim, inputs, "last").tobytes() == run(way, sim, inputs, "hip/last").tobytes()


@pytest.mark.sanitize
def test_softmax2d_matches_cpu_small(device: Device, rng: Rng) -> None:
    x = rng.standard_normal((2, 5, 12)).astype(np.float32)
    y = softmax2d(ptxrt.to_device(x, device)).to_host()
    check_error("softmax2d", device, y, references.softmax2d(x), BAR)


@each_variant
@each_type
def test_columns_sum_to_one(device: Device, rng: Rng, variant: str, name: str) -> None:
    y = run(FORWARD, device, values_for(FORWARD, rng, (1, 8, 4), name=name), variant)
    np.testing.assert_allclose(y.astype(np.longdouble).sum(axis=1).astype(float), 1, atol=4 * EPSILON[name])
    assert (y > 0).all()


SHAPES = [
    (1, 1, 1),
    (2, 1, 33),
    (7, 2),  # no trailing axes
    (3, 3, 3, 5, 7),
    (2, 4, 31),
    (2, 4, 32),
    (1, 4, 33),
    (2, 8, 255),
    (1, 9, 256),  # a block of the baseline
    (2, 2, 257),
    (4, 3, 700),  # many blocks
    (600, 2, 1),  # more images than a block takes
    (11, 17, 5),
    (2, 31, 9),
    (2, 32, 9),  # what a thread holds
    (2, 33, 9),
    (1, 39, 40),
    (1, 40, 33),
    (1, 41, 31),
    (5, 65, 2),
    (3, 97, 1),
    (1, 250, 64),
    (2, 1000, 7, 7),
]
SOME = [(1, 1, 1), (2, 4, 33), (11, 17, 5), (2, 33, 9), (5, 65, 2), (1, 250, 40)]


@pytest.mark.sanitize
@both
@each_variant
@pytest.mark.parametrize(
    ("shape", "name"), [(shape, "f32") for shape in SHAPES] + [(s, name) for s in SOME for name in OTHERS], ids=str
)
def test_matches_the_reference(device: Device, rng: Rng, way: Direction, variant: str, shape: Shape, name: str) -> None:
    check(way, device, values_for(way, rng, shape, name=name), variant)


@pytest.mark.ptx
@both
@pytest.mark.parametrize(
    ("shape", "name"),
    [
        ((2, 1025, 9), "f32"),
        ((1, 2100, 11), "f32"),
        ((3, 4200, 8), "f32"),
        ((2, 33001, 1), "f32"),
        ((1, 2100, 11), "f64"),
        ((2, 2300, 17), "f16"),
        ((1, 2300, 16), "bf16"),
    ],
    ids=str,
)
def test_matches_the_reference_where_a_block_holds_less_than_a_column(
    device: Device, rng: Rng, way: Direction, shape: Shape, name: str
) -> None:
    check(way, device, values_for(way, rng, shape, name=name), "tiled")


@both
@f32_and_others
def test_matches_the_reference_on_drawn_problems(device: Device, way: Direction, names: Any) -> None:
    def body(
        name: str, batch: Any, channels: Any, hw: Any, variant: str, offset: Any, mean: Any, deviation: Any, seed: Any
    ) -> None:
        inputs = values_for(way, np.random.default_rng(seed), (batch, channels, hw), mean, deviation, name)
        check(way, device, inputs, variant, offset, large_mean=abs(mean) > 100)

    for_drawn(
        device,
        body,
        name=st.sampled_from(names),
        batch=st.integers(1, 5),
        channels=st.integers(1, 90),
        hw=st.integers(1, 300),
        variant=st.sampled_from([variant for variant in variants(way.plan, device) if variant in VARIANTS]),
        offset=st.integers(0, 3),
        mean=st.sampled_from([0.0, 1.0, -30.0, 1e4]),
        deviation=st.sampled_from([0.01, 1.0, 5.0]),
        seed=st.integers(0, 2**32 - 1),
    )


@pytest.mark.ptx
@both
@f32_and_others
def test_any_division_into_tiles_gives_the_result(device: Device, way: Direction, names: Any) -> None:
    """The tiled kernel by itself, with tiles that the plan would not choose."""
    kernels = {name: FAMILY.kernel(f"{way.op}_tiled_kernel", BY_NAME[name], "ptx").load(device) for name in names}

    def body(name: str, batch: Any, channels: Any, hw: Any, positions: Any, lanes: Any, images: Any, seed: Any) -> None:
        positions = min(positions, hw)
        images = images if positions == hw and 2 * lanes * positions <= way.most_threads(name) else 1
        inputs = values_for(way, np.random.default_rng(seed), (batch, channels, hw), name=name)
        out = Guarded(inputs[0].shape, kind_of(name), device)
        there = [on_device(array, device) for array in inputs]
        grid, threads = -(-batch // images) * -(-hw // positions), images * lanes * positions
        kernels[name].launch(grid, threads, *there, out.array, batch, channels, hw, positions, lanes)
        case, want = (inputs[0].shape, positions, lanes, images), way.reference(*inputs)
        check_error(way.op, device, out.host(), want, bar("softmax2d", name, want), case, language="ptx")

    for_drawn(
        device,
        body,
        name=st.sampled_from(names),
        batch=st.integers(1, 5),
        channels=st.integers(1, 120),
        hw=st.integers(1, 40),
        positions=st.integers(1, 20),
        lanes=st.integers(1, 12),
        images=st.integers(1, 2),
        seed=st.integers(0, 2**32 - 1),
    )


@both
@each_variant
@pytest.mark.parametrize("mean", [1e4, -1e4])
@pytest.mark.parametrize(
    ("shape", "name"),
    [((2, 21, 70), "f32"), ((1, 500, 10), "f32"), ((2, 40, 20), "f64"), ((2, 40, 20), "f16"), ((2, 40, 20), "bf16")],
    ids=str,
)
def test_a_large_offset_costs_no_accuracy(
    device: Device, rng: Rng, way: Direction, variant: str, mean: float, shape: Shape, name: str
) -> None:
    check(way, device, values_for(way, rng, shape, mean, name=name), variant, large_mean=True)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_hip_rounds_to_f32_then_to_16_bits_on_every_device(device: Device, name: str) -> None:
    *inputs, want = rounded_twice(name)
    np.testing.assert_array_equal(run(BACKWARD, device, inputs, "hip/baseline"), want)


# Values that are no common ones ---------------------------------------------------------------------------------------

each_place = pytest.mark.parametrize(
    ("channel", "name"), [(0, "f32"), (4, "f32"), (69, "f32"), (69, "f64"), (4, "f16"), (4, "bf16")]
)


@each_variant
@each_place
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_bad_value_spoils_its_column_alone(
    device: Device, rng: Rng, variant: str, channel: Any, value: Any, name: str
) -> None:
    x = rng.standard_normal((2, 70, 5)).astype(kind_of(name))
    x[1, channel, 3] = value
    y = check(FORWARD, device, (x,), variant)
    assert np.isnan(y[1, :, 3]).all()
    assert np.isnan(y).sum() == 70


@each_variant
@pytest.mark.parametrize(
    ("channels", "name"), [(1, "f32"), (5, "f32"), (32, "f32"), (70, "f32"), (70, "f64"), (33, "f16"), (33, "bf16")]
)
def test_a_column_of_minus_infinity_is_a_nan(device: Device, rng: Rng, variant: str, channels: int, name: str) -> None:
    x = rng.standard_normal((2, channels, 5)).astype(kind_of(name))
    x[0, :, 2] = -np.inf
    y = check(FORWARD, device, (x,), variant)
    assert np.isnan(y[0, :, 2]).all()
    assert np.isnan(y).sum() == channels


@each_variant
@pytest.mark.parametrize("channels", [2, 40])
@each_type
def test_minus_infinity_beside_a_number_weighs_nothing(device: Device, variant: str, channels: int, name: str) -> None:
    kind, largest, _, _ = of_each(name)
    x = np.full((1, channels, 3), -np.inf, kind)
    x[0, -1] = (0, -largest, 7)
    y = run(FORWARD, device, (x,), variant)
    np.testing.assert_array_equal(y[0, -1], 1)
    np.testing.assert_array_equal(y[0, :-1], 0)


@each_variant
@each_type
def test_a_column_of_one_channel_is_one(device: Device, rng: Rng, variant: str, name: str) -> None:
    kind, largest, _, _ = of_each(name)
    x = (rng.standard_normal((3, 1, 50)) * (largest / 8)).astype(kind)
    np.testing.assert_array_equal(run(FORWARD, device, (x,), variant), np.ones_like(x))


@each_variant
@pytest.mark.parametrize(("channels", "name"), [(1000, "f32"), *((c, name) for c in (3, 64, 255) for name in TYPES)])
def test_equal_values_give_one_over_c_rounded_once(device: Device, variant: str, channels: Any, name: str) -> None:
    x = np.full((1, channels, 2), 0.1, kind_of(name))
    np.testing.assert_array_equal(run(FORWARD, device, (x,), variant), np.full_like(x, 1 / channels))


@each_variant
@each_type
def test_the_largest_numbers_do_not_overflow(device: Device, variant: str, name: str) -> None:
    kind, largest, _, _ = of_each(name)
    x = np.array([largest, -largest, largest, 0, largest / 3], kind).reshape(1, 5, 1)
    np.testing.assert_array_equal(run(FORWARD, device, (x,), variant).ravel(), np.array([0.5, 0, 0.5, 0, 0], kind))


@each_variant
@each_type
def test_denormal_results_are_preserved(device: Device, rng: Rng, variant: str, name: str) -> None:
    kind, _, tiny, smallest = of_each(name)
    x = np.zeros((1, 40, 600 if name == "f32" else 100), kind)
    x[0, 1:] = rng.uniform(np.log(smallest) - 1.2, np.log(tiny) + 1.3, x[0, 1:].shape)
    y = run(FORWARD, device, (x,), variant).astype(np.longdouble)
    want = references.softmax2d(x)
    assert (want < tiny).any()
    relative = BARS["softmax2d"].get(name, 0.501 * EPSILON[name])
    assert (np.abs(y - want) <= 0.501 * np.longdouble(smallest) + want * relative).all()
    assert (y[want > 0.51 * np.longdouble(smallest)] > 0).all()


@each_variant
@each_type
def test_denormal_operands_are_preserved(device: Device, rng: Rng, variant: str, name: str) -> None:
    kind, _, tiny, smallest = of_each(name)
    x = (rng.integers(0, 1000, (1, 6, 40)) * (tiny / 2048 if tiny / 2048 > smallest else smallest)).astype(kind)
    np.testing.assert_array_equal(run(FORWARD, device, (x,), variant), np.full_like(x, 1 / 6))
    y: Any = np.full((1, 6, 40), tiny / 100, kind)
    g = (rng.standard_normal(y.shape) * 8).astype(kind)
    got = run(BACKWARD, device, (g, y), variant).astype(np.longdouble)
    assert (np.abs(got - references.softmax2d_backward(g, y)) <= 0.505 * np.longdouble(smallest)).all()


@each_variant
@each_place
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operand", [0, 1])
def test_backward_puts_bad_values_where_the_formula_does(
    device: Device, rng: Rng, variant: str, channel: Any, value: Any, operand: int, name: str
) -> None:
    inputs = values_for(BACKWARD, rng, (2, 70, 5), name=name)
    inputs[operand][1, channel, 3] = value
    got = check(BACKWARD, device, inputs, variant)
    assert not np.isfinite(got[1, :, 3]).any()
    assert np.isfinite(np.delete(got.reshape(2, 70, 5)[1], 3, axis=1)).all()
    assert np.isfinite(got[0]).all()


@each_variant
@pytest.mark.parametrize("first", [np.inf, 0.9])
@each_type
def test_backward_of_huge_gradients(device: Device, variant: str, first: Any, name: str) -> None:
    kind, largest, _, _ = of_each(name)
    g = np.array([first * largest, 2, -largest / 3, 0, largest / 3, 5], kind).reshape(1, 6, 1)
    y = np.array([0.25, 0.25, 0, 0.25, 0.25, 0], kind).reshape(1, 6, 1)
    check(BACKWARD, device, (g, y), variant)


@each_variant
@pytest.mark.parametrize("channels", [3, 21, 300])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_what_cancels_backward_costs_no_accuracy(
    device: Device, rng: Rng, variant: str, channels: int, name: str
) -> None:
    """Of a constant gradient nothing is left but what the sum of y lacks from 1: some 1e-7, in f64 1e-16.

    What the low part of a sum lacks is an epsilon of that a channel.
    """
    y = references.softmax2d(rng.standard_normal((2, channels, 30))).astype(kind_of(name))
    g = np.full_like(y, 12345.678)
    lacking = np.apply_along_axis(lambda column: math.fsum([1, *-column]), 1, y.astype(float))
    want = y.astype(float) * g * lacking[:, None]
    assert relative_error(run(BACKWARD, device, (g, y), variant), want) <= 2 * channels * EPSILON[name]


# The plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.ptx
@both
@pytest.mark.parametrize(
    ("shape", "best"),
    [
        ((8, 21, 512, 512), "baseline"),
        ((600, 32, 32), "baseline"),
        ((600, 33, 32), "tiled, backward held"),
        ((600, 32, 31), "tiled"),
        ((64, 1000, 7, 7), "held"),
        ((64, 1001, 7, 7), "tiled"),  # whose images are no whole vectors
        ((16, 256, 64, 64), "held"),
        ((3, 1, 1 << 31), "strips"),
        ((3, 1, (1 << 31) + 1), "tiled"),  # more columns than a u32 counts
    ],
)
def test_the_best_variant_is_selected(device: Device, way: Direction, shape: Shape, best: str) -> None:
    forward, _, backward = best.partition(", backward ")
    best = forward.replace("held", "anchored") if way is FORWARD else backward or forward
    assert key_of(plan_for(way, device, shape).variant) == best


@pytest.mark.ptx
@both
@each_type
def test_no_block_has_more_threads_than_registers_allow(sim: Device, way: Direction, name: str) -> None:
    most, problem = way.most_threads(name), way.descriptor((2, 40, 300), BY_NAME[name])
    for threads in (most, most + 32):
        for variant in ("tiled", "baseline"):  # what is tiled takes as many as it may have
            wanted = wish(variant, config=ThreadsConfig(threads))
            if variant == "baseline" and threads > most:
                with pytest.raises(ptxrt.Unsupported, match=f"{threads} threads are more than the {most} that"):
                    way.plan.select(sim, problem, wanted)
                continue
            (launch,) = way.plan.select(sim, problem, wanted).schedule.launches
            assert launch.block <= launch.kernel.load(sim).resources.max_threads == most


@both
@each_type
@pytest.mark.parametrize("variant", ["tiled", "hip/tiled"])
def test_a_tile_of_several_images_has_no_more_threads_either(
    sim: Device, way: Direction, name: str, variant: str
) -> None:
    problem = way.descriptor((900, 5, 3), BY_NAME[name])
    for threads in (256, 257, 768, 1024, 1 << 40):
        plan = way.plan.select(sim, problem, wish(variant, config=ThreadsConfig(threads)))
        (launch,) = plan.schedule.launches
        assert launch.block <= launch.kernel.load(sim).resources.max_threads


@pytest.mark.ptx
@both
def test_more_tiles_than_a_grid_has_blocks_are_refused(device: Device, way: Direction) -> None:
    with pytest.raises(ptxrt.Unsupported, match=r"\d+ blocks do not fit grid\.x"):
        plan_for(way, device, (1 << 42, 1, 1), "tiled")


@both
@pytest.mark.parametrize(
    "shape",
    [
        ((1 << 32) - 1, 1, 1),
        ((1 << 32) - 256, 1, 1),
        (1, 1, (1 << 32) - 1),
        (5, 3, (1 << 32) - 1),
        (1 << 33, 100, 1),
        (1, (1 << 32) - 1, 9),
    ],
)
def test_counts_that_fit_are_accepted(device: Device, way: Direction, shape: Shape) -> None:
    # A u32 counts the columns of PTX's kernel with a thread for each. In HIP, threads take turns.
    for variant in set(VARIANTS).intersection(variants(way.plan, device)):
        if variant != "baseline" or shape[0] * shape[2] < 1 << 32:
            (launch,) = plan_for(way, device, shape, variant).schedule.steps
            assert 1 <= launch.grid[0] < 1 << 31
            assert 1 <= launch.block <= (256 if "baseline" in variant else way.threads)
            assert launch.grid[0] * launch.block >= min(shape[0] * shape[2], (1 << 32) - 256)


@both
@each_type
def test_in_hip_2_to_the_32_columns_are_counted_by_another_entry(
    device: Device, rng: Rng, way: Direction, name: str, monkeypatch: Patch
) -> None:
    for count, entry in (((1 << 32) - 1, "kernel"), (1 << 32, "tiled_kernel")):
        (launch,) = plan_for(way, device, (count, 1, 1), "hip/baseline", name).schedule.launches
        assert launch.kernel.entry.removesuffix(f"_{name}") == f"{way.op}_{entry}"
        assert launch.grid[0] * launch.block < 1 << 32
    inputs = values_for(way, rng, (3, 7, 37), name=name)
    want = run(way, device, inputs, "hip/baseline")
    monkeypatch.setattr(sys.modules["ptxrt.ops._softmax2d"], "_COUNTED", 100)
    assert check(way, device, inputs, "hip/baseline").tobytes() == want.tobytes()


@both
@pytest.mark.parametrize("channels", [1, 21, 33, 256, 257, 1000, 5000, 100_000])
@pytest.mark.parametrize("hw", [1, 2, 7, 8, 31, 40, 49, 257, 4096, 250_000])
def test_a_tile_fits_a_block_and_reads_whole_sectors(way: Direction, channels: int, hw: int) -> None:
    for name in TYPES:
        most, sector = way.most_threads(name), 32 // BY_NAME[name].size
        tile = _tile(way.descriptor((3, channels, hw), BY_NAME[name]), 256, most)
        assert tile.images * tile.lanes * tile.positions <= most
        assert tile.positions >= min(hw, sector) / 2
        assert tile.positions % sector == 0 or hw % sector
        assert tile.lanes <= channels or tile.lanes == 1
        assert tile.images == 1 or tile.positions == hw
        assert tile.tiles == -(-3 // tile.images) * -(-hw // tile.positions)
        # Registers hold the columns, or the block has as many threads as it can.
        assert 32 * tile.lanes >= channels or 2 * tile.lanes * tile.positions > most


# Large ----------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("shape", "variant", "name"),
    [
        ((3, 5, 150_000_000), "baseline", "f32"),  # past 2**31 elements
        ((2, 9, 250_000_007), "baseline", "f32"),  # past 2**32
        ((2, 9, 250_000_007), "tiled", "f32"),
        ((3, 5, 150_000_000), "hip/baseline", "f32"),
        ((2, 9, 250_000_007), "hip/baseline", "f32"),
        ((5_000_001, 900), "tiled", "f32"),
        ((3, 2, 1_500_000_001), "tiled", "f32"),  # past 2**32 columns
        ((3, 2, 1_500_000_001), "hip/baseline", "f32"),
        ((1, 3, (1 << 31) + 5), "tiled", "f32"),  # one image past 2**31 columns
        *(((2, 9, 250_000_007), variant, "f16") for variant in (*VARIANTS, "strips")),
        ((2, 9, 250_000_008), "strips", "f16"),
        *(((3, 5, 150_000_000), variant, "f64") for variant in VARIANTS),
    ],
    ids=str,
)
def test_tensors_past_2_to_the_32_elements(
    cuda: Device, torch_with: Any, way: Direction, shape: Shape, variant: str, name: str
) -> None:
    count = math.prod(shape)
    torch = torch_with(2.125 * BY_NAME[name].size * count)
    operands = [torch.empty(count, device="cuda", dtype=getattr(torch, kind_of(name).name)) for _ in way.inputs]
    for each in operands:
        each.normal_()
    for y in operands[1:]:
        y.abs_().mul_(1 / shape[1])
    channels, hw = shape[1], math.prod(shape[2:])
    columns = count // channels
    # What is at the start, at the end, and on both sides of 2**31 and 2**32, in elements and in columns.
    places = {0, columns - 300, *(p for p in (2**31, 2**32) if p < columns)}
    places |= {e // (channels * hw) * hw + e % hw for e in (2**31, 2**32) if e < count}

    def columns_at(array: Any, place: Any) -> Any:
        place = min(max(place - 150, 0), columns - 300)
        index = torch.arange(place, place + 300, device="cuda")
        first = index // hw * (channels * hw) + index % hw
        return array[first[:, None] + torch.arange(channels, device="cuda") * hw].double()

    before = {place: [columns_at(array, place) for array in operands] for place in places}
    # In place: a third array of this size would not fit.
    result = operands[0].view(shape)
    plan_for(way, cuda, shape, variant, name).run((*(array.view(shape) for array in operands), result))
    for place, values in before.items():
        if way is FORWARD:
            want = torch.softmax(values[0], 1)
        else:
            want = values[1] * (values[0] - (values[0] * values[1]).sum(1, keepdim=True))
        got, want = (array.cpu().numpy() for array in (columns_at(operands[0], place), want))
        # The reference of f64 is in f64, and has an error as large.
        assert relative_error(got, want) <= bar("softmax2d", name, want) * (2 if name == "f64" else 1), place


# exp ------------------------------------------------------------------------------------------------------------------

EXP_IN_PTX = """
//% from "exponential.jinja" import exponential with context
// y = exp(x). Grid: n / 256 blocks of 256 threads.
.version 7.0
.target sm_70
.address_size 64

.visible .entry exponentials(.param .u64 x_ptr, .param .u64 y_ptr)
{
    .reg .b32 %i, %block;
    .reg .b64 %x, %y, %offset;
    .reg .{{ R.name }} %v;
    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %y, [y_ptr];
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %i, %block, 256, %i;
    mul.wide.u32 %offset, %i, {{ R.size }};
    add.u64 %x, %x, %offset;
    add.u64 %y, %y, %offset;
    ld.global.{{ R.name }} %v, [%x];
    {{ exponential("%v", "%v") }}
    st.global.{{ R.name }} [%y], %v;
}
"""
EXP_IN_HIP = """
extern "C" __global__ void exponentials(const Real* x_ptr, Real* y_ptr) {
    const unsigned int i = blockIdx.x * 256 + threadIdx.x;
    y_ptr[i] = exponential(x_ptr[i]);
}
"""
each_exp = pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])
each_real = pytest.mark.parametrize("name", ["f32", "f64"])


def exponentials(device: Device, x: Any, variant: Any) -> Any:
    """Return what a variant's exp makes of `x`."""
    name = element_type(x.dtype).name
    if variant == "hip/baseline":
        text = read_kernel("softmax2d", language="hip", dtype=name).text + EXP_IN_HIP
        source = ptxrt.KernelSource.hip(text, name="exp")
    else:
        source = ptxrt.KernelSource.ptx(templates().from_string(EXP_IN_PTX).render(context(name)), name="exp")
    kernel = ptxrt.load(source, "exponentials", f"const {name}* x_ptr, {name}* y_ptr", device)
    padded = np.zeros(-(-x.size // 256) * 256, x.dtype)
    padded[: x.size] = x
    y = ptxrt.empty(padded.shape, x.dtype, device)
    kernel.launch(padded.size // 256, 256, ptxrt.to_device(padded, device), y)
    return y.to_host()[: x.size]


def exact_exp(x: Any) -> Any:
    return np.exp(x.astype(np.longdouble))


RANGES = {
    "f32": [(-1e-3, 0), (-1, 0), (-2, -1), (-20, -2), (-87.5, -20), (-104.5, -87), (0, 64), (-1e6, -104)],
    "f64": [(-1e-3, 0), (-1, 0), (-2, -1), (-20, -2), (-708.5, -20), (-746.5, -708), (0, 600), (-1e300, -745)],
}


@each_exp
@pytest.mark.parametrize(("name", "low", "high"), [(name, *ends) for name, ranges in RANGES.items() for ends in ranges])
def test_exp_is_within_nine_tenths_of_an_ulp(
    device: Device, rng: Rng, variant: str, name: str, low: Any, high: Any
) -> None:
    x = rng.uniform(low, high, 60_000).astype(kind_of(name))
    got, want = exponentials(device, x, variant), exact_exp(x)
    ulp = np.spacing(want.astype(kind_of(name))).astype(np.longdouble)
    assert (np.abs(got - want) <= 0.9 * ulp).all()
    np.testing.assert_array_equal(got, exponentials(Device("sim:0"), x, "baseline"))


@each_exp
@each_real
def test_exp_where_the_results_are_denormal(device: Device, variant: str, name: str) -> None:
    kind, _, tiny, smallest = of_each(name)
    powers = np.arange(-np.log2(tiny), 2 - np.log2(smallest), 0.125)
    x = (np.log(2.0) * -powers).astype(kind)
    got, want = exponentials(device, x, variant), exact_exp(x)
    least = np.longdouble(smallest)
    assert (got[want > 0.51 * least] > 0).all()
    assert (np.abs(got - want) <= 0.501 * least + want * EPSILON[name]).all()


@each_exp
@pytest.mark.parametrize(
    ("name", "edges"),
    [
        ("f32", [(1e-45, 1), (-1e-45, 1), (-1e-10, 1), (-3.4e38, 0), (-104, 0), (-103.9, 2.0**-149)]),
        ("f64", [(5e-324, 1), (-5e-324, 1), (-1e-20, 1), (-1.7e308, 0), (-745.14, 0), (-745.13, 2.0**-1074)]),
    ],
)
def test_exp_at_its_edges(device: Device, variant: str, name: str, edges: Any) -> None:
    edges = [(0, 1), (-0.0, 1), (-np.inf, 0), (np.nan, np.nan), *edges]
    x, want = np.array(edges, kind_of(name)).T
    np.testing.assert_array_equal(exponentials(device, x, variant), want)


@each_exp
@each_real
def test_exp_of_what_is_not_above_zero_is_not_above_one(device: Device, variant: str, name: str) -> None:
    kind, _, _, smallest = of_each(name)
    tiny = -kind.type(smallest) * 2.0 ** np.arange(0, -np.log2(smallest))
    assert (exponentials(device, tiny.astype(kind), variant) <= 1).all()
    x = -np.arange(0, 20000).astype(kind) * kind.type(EPSILON[name] / 2)
    y = exponentials(device, x, variant)
    assert (y <= 1).all()
    assert (np.diff(y) <= 0).all()


@pytest.mark.parametrize(
    ("columns", "channels", "name", "lanes"),
    [
        (1 << 16, 8, "f32", 1),
        ((1 << 16) - 1, 8, "f32", 2),  # few columns
        ((1 << 16) - 1, 4, "f32", 1),  # of one vector
        ((1 << 16) - 1, 8, "f64", 1),
        (1 << 14, 128, "f32", 4),
        ((1 << 14) - 1, 128, "f16", 8),
        (1, 1024, "f32", 32),
    ],
)
def test_of_few_columns_more_lanes_have_each(columns: int, channels: int, name: str, lanes: int) -> None:
    problem = Softmax2dDescriptor((columns, channels), BY_NAME[name])
    assert LanesConfig.heuristic(problem) == LanesConfig(lanes)
