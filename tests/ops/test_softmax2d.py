"""softmax2d, forward and backward: values, edges, and each check; and the exp that it is made of, in PTX and in HIP."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, key_of, on_device, variants, wish
from tolerances import bar, relative_error

import ptxrt
from ptxrt.dtypes import BY_NAME
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
from ptxrt.ops._softmax2d import FAMILY, _tile
from ptxrt.ops.framework.texts import read_kernel, templates

VARIANTS = ["baseline", "tiled", "hip/baseline"]
BAR = bar("softmax2d", "f32")


TILED = {op: FAMILY.kernel(f"{op}_tiled_kernel", BY_NAME["f32"], "ptx") for op in ("softmax2d", "softmax2d_backward")}


class Direction(NamedTuple):
    """Forward or backward, so that one test body serves both."""

    op: str
    function: Any
    plan: Any
    descriptor: Any
    args: Any
    reference: Any
    inputs: tuple[str, ...]
    tiled: Any
    most_threads: int

    def __str__(self) -> str:
        return self.op


FORWARD = Direction(
    "softmax2d", softmax2d, Softmax2dPlan, Softmax2dDescriptor, Softmax2dArgs, references.softmax2d, ("x",),
    TILED["softmax2d"], 1024,
)  # fmt: skip
BACKWARD = Direction(
    "softmax2d_backward", softmax2d_backward, Softmax2dBackwardPlan, Softmax2dBackwardDescriptor,
    Softmax2dBackwardArgs, references.softmax2d_backward, ("grad_out", "y"), TILED["softmax2d_backward"], 512,
)  # fmt: skip
both = pytest.mark.parametrize("way", [FORWARD, BACKWARD], ids=str)
each_variant = pytest.mark.parametrize("variant", VARIANTS)


def values_for(way, rng, shape, mean=0.0, deviation=1.0):
    """Return the inputs, of the given mean; y of the backward is a softmax."""
    first, other = (rng.standard_normal((2, *shape)) * deviation + mean).astype(np.float32)
    return (first,) if way is FORWARD else (first, references.softmax2d(other).astype(np.float32))


def plan_for(way, device, shape, variant=None):
    return way.plan.select(device, way.descriptor(shape), wish(variant))


def run(way, device, inputs, variant=None, offset=0):
    """Run on `device` into a poisoned, guarded output; return the host result."""
    out = Guarded(inputs[0].shape, np.float32, device, offset)
    there = [on_device(array, device, offset) for array in inputs]
    plan = plan_for(way, device, inputs[0].shape, variant)
    assert plan.run((*there, out.array)) is out.array
    return out.host()


def check(way, device, inputs, variant=None, offset=0, at_most=BAR):
    got = run(way, device, inputs, variant, offset)
    with np.errstate(invalid="ignore"):
        want = way.reference(*inputs)
    check_error(way.op, device, got, want, at_most, (inputs[0].shape, variant, offset))
    return got


# Values -------------------------------------------------------------------------------------------------------------


@pytest.mark.sanitize
def test_softmax2d_matches_cpu_small(device, rng):
    x = rng.standard_normal((2, 5, 12)).astype(np.float32)
    y = softmax2d(ptxrt.to_device(x, device)).to_host()
    check_error("softmax2d", device, y, references.softmax2d(x), BAR)


@each_variant
def test_columns_sum_to_one(device, rng, variant):
    y = run(FORWARD, device, values_for(FORWARD, rng, (1, 8, 4)), variant)
    np.testing.assert_allclose(y.sum(axis=1, dtype=np.float64), 1, atol=8 * 2**-24)
    assert (y > 0).all()


@both
def test_length(device, rng, way):
    """The result is as long as the input, with its shape; an output of another length is refused."""
    inputs = values_for(way, rng, (2, 3, 4, 5))
    there = [ptxrt.to_device(array, device) for array in inputs]
    result = way.function(*there)
    assert (result.size, result.shape, result.dtype) == (120, (2, 3, 4, 5), np.float32)
    for length in (119, 121):
        with pytest.raises(ptxrt.ShapeMismatch, match=f"{way.op}: out"):
            way.function(*there, out=ptxrt.empty(length, np.float32, device))


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


@pytest.mark.sanitize
@both
@each_variant
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_the_reference(device, rng, way, variant, shape):
    check(way, device, values_for(way, rng, shape), variant)


@pytest.mark.ptx
@both
@pytest.mark.parametrize("shape", [(2, 1025, 9), (1, 2100, 11), (3, 4200, 8), (2, 33001, 1)], ids=str)
def test_matches_the_reference_where_a_block_holds_less_than_a_column(device, rng, way, shape):
    check(way, device, values_for(way, rng, shape), "tiled")


@both
def test_matches_the_reference_on_drawn_problems(device, way):
    def body(batch, channels, hw, variant, offset, mean, deviation, seed):
        inputs = values_for(way, np.random.default_rng(seed), (batch, channels, hw), mean, deviation)
        check(way, device, inputs, variant, offset, bar("softmax2d", "f32", large_mean=abs(mean) > 100))

    for_drawn(
        device,
        body,
        batch=st.integers(1, 5),
        channels=st.integers(1, 90),
        hw=st.integers(1, 300),
        variant=st.sampled_from(variants(way.plan, device)),
        offset=st.integers(0, 3),
        mean=st.sampled_from([0.0, 1.0, -30.0, 1e4]),
        deviation=st.sampled_from([0.01, 1.0, 5.0]),
        seed=st.integers(0, 2**32 - 1),
    )


@pytest.mark.ptx
@both
def test_any_division_into_tiles_gives_the_result(device, way):
    """The tiled kernel by itself, with tiles that the plan would not choose."""
    kernel = way.tiled.load(device)

    def body(batch, channels, hw, positions, lanes, images, seed):
        positions = min(positions, hw)
        images = images if positions == hw else 1
        inputs = values_for(way, np.random.default_rng(seed), (batch, channels, hw))
        out = Guarded(inputs[0].shape, np.float32, device)
        there = [on_device(array, device) for array in inputs]
        grid, threads = -(-batch // images) * -(-hw // positions), images * lanes * positions
        kernel.launch(grid, threads, *there, out.array, batch, channels, hw, positions, lanes)
        case = (inputs[0].shape, positions, lanes, images)
        check_error(way.op, device, out.host(), way.reference(*inputs), BAR, case, language="ptx")

    for_drawn(
        device,
        body,
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
@pytest.mark.parametrize("shape", [(2, 21, 70), (1, 500, 10)], ids=str)
def test_a_large_offset_costs_no_accuracy(device, rng, way, variant, mean, shape):
    check(way, device, values_for(way, rng, shape, mean), variant, at_most=bar("softmax2d", "f32", large_mean=True))


@pytest.mark.sanitize
@both
@each_variant
@pytest.mark.parametrize("offset", [1, 2, 3])
def test_offset_views_are_operands_like_others(device, rng, way, variant, offset):
    inputs = values_for(way, rng, (2, 36, 8))
    np.testing.assert_array_equal(run(way, device, inputs, variant, offset), run(way, device, inputs, variant))


@both
@each_variant
def test_results_are_the_same_from_run_to_run_and_device_to_device(device, rng, way, variant):
    for shape in ((2, 21, 300), (1, 300, 9), (40, 70, 1)):
        inputs = values_for(way, rng, shape, deviation=3)
        first = run(way, device, inputs, variant)
        np.testing.assert_array_equal(first, run(way, device, inputs, variant))
        # No rounding is left to a compiler in either language, so that all devices agree to the bit.
        np.testing.assert_array_equal(first, run(way, ptxrt.Device("sim:0"), inputs, variant))


# Values that are no common ones ---------------------------------------------------------------------------------------


@each_variant
@pytest.mark.parametrize("channel", [0, 4, 69])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_bad_value_spoils_its_column_alone(device, rng, variant, channel, value):
    x = rng.standard_normal((2, 70, 5)).astype(np.float32)
    x[1, channel, 3] = value
    y = check(FORWARD, device, (x,), variant)
    assert np.isnan(y[1, :, 3]).all()
    assert np.isnan(y).sum() == 70


@each_variant
@pytest.mark.parametrize("channels", [1, 5, 32, 70])
def test_a_column_of_minus_infinity_is_not_a_number(device, rng, variant, channels):
    x = rng.standard_normal((2, channels, 5)).astype(np.float32)
    x[0, :, 2] = -np.inf
    y = check(FORWARD, device, (x,), variant)
    assert np.isnan(y[0, :, 2]).all()
    assert np.isnan(y).sum() == channels


@each_variant
@pytest.mark.parametrize("channels", [2, 40])
def test_minus_infinity_beside_a_number_weighs_nothing(device, variant, channels):
    x = np.full((1, channels, 3), -np.inf, np.float32)
    x[0, -1] = (0, -3e38, 7)
    y = run(FORWARD, device, (x,), variant)
    np.testing.assert_array_equal(y[0, -1], 1)
    np.testing.assert_array_equal(y[0, :-1], 0)


@each_variant
def test_a_column_of_one_channel_is_one(device, rng, variant):
    x = (rng.standard_normal((3, 1, 50)) * 1e30).astype(np.float32)
    np.testing.assert_array_equal(run(FORWARD, device, (x,), variant), np.ones_like(x))


@each_variant
@pytest.mark.parametrize("channels", [3, 64, 1000])
def test_equal_values_give_one_over_c_rounded_once(device, variant, channels):
    x = np.full((1, channels, 2), 0.1, np.float32)
    np.testing.assert_array_equal(run(FORWARD, device, (x,), variant), np.full_like(x, 1 / channels))


@each_variant
def test_the_largest_numbers_do_not_overflow(device, variant):
    x = np.array([3.4e38, -3.4e38, 3.4e38, 0, 1e38], np.float32).reshape(1, 5, 1)
    np.testing.assert_array_equal(run(FORWARD, device, (x,), variant).ravel(), np.float32([0.5, 0, 0.5, 0, 0]))


@each_variant
def test_denormal_results_are_kept(device, rng, variant):
    x = np.zeros((1, 40, 600), np.float32)
    x[0, 1:] = rng.uniform(-104.5, -86, (39, 600))
    y = run(FORWARD, device, (x,), variant).astype(np.float64)
    want = references.softmax2d(x)
    assert (want < 2.0**-126).any()
    assert (np.abs(y - want) <= 0.501 * 2.0**-149 + want * BAR).all()
    assert (y[want > 0.51 * 2.0**-149] > 0).all()


@each_variant
def test_denormal_operands_are_kept(device, rng, variant):
    x = (rng.integers(0, 1000, (1, 6, 40)) * 1.4e-45).astype(np.float32)
    np.testing.assert_array_equal(run(FORWARD, device, (x,), variant), np.full_like(x, 1 / 6))
    y = np.full((1, 6, 40), 1e-40, np.float32)
    g = rng.standard_normal(y.shape).astype(np.float32) * 8
    got = run(BACKWARD, device, (g, y), variant).astype(np.float64)
    assert (np.abs(got - references.softmax2d_backward(g, y)) <= 1.01 * 2.0**-150).all()


@each_variant
@pytest.mark.parametrize("channel", [0, 4, 69])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operand", [0, 1])
def test_backward_puts_bad_values_where_the_formula_does(device, rng, variant, channel, value, operand):
    inputs = values_for(BACKWARD, rng, (2, 70, 5))
    inputs[operand][1, channel, 3] = value
    got = check(BACKWARD, device, inputs, variant)
    assert not np.isfinite(got[1, :, 3]).any()
    assert np.isfinite(np.delete(got.reshape(2, 70, 5)[1], 3, axis=1)).all()
    assert np.isfinite(got[0]).all()


@each_variant
@pytest.mark.parametrize("first", [np.inf, 3e38])
def test_backward_of_huge_gradients(device, variant, first):
    g = np.array([first, 2, -1e38, 0, 1e38, 5], np.float32).reshape(1, 6, 1)
    y = np.array([0.25, 0.25, 0, 0.25, 0.25, 0], np.float32).reshape(1, 6, 1)
    check(BACKWARD, device, (g, y), variant)


@each_variant
@pytest.mark.parametrize("channels", [3, 21, 300])
def test_what_cancels_in_the_backward_costs_no_accuracy(device, rng, variant, channels):
    """Of a constant gradient nothing is left but what the sum of y lacks from 1: a ten-millionth."""
    y = references.softmax2d(rng.standard_normal((2, channels, 30))).astype(np.float32)
    g = np.full_like(y, 12345.678)
    assert relative_error(run(BACKWARD, device, (g, y), variant), references.softmax2d_backward(g, y)) <= 1e-3


# Ways to call it ------------------------------------------------------------------------------------------------------


@pytest.mark.sanitize
@both
@each_variant
@pytest.mark.parametrize("shape", [(2, 21, 50), (2, 70, 9), (1, 1100, 9)], ids=str)
def test_in_place(device, rng, way, variant, shape):
    inputs = values_for(way, rng, shape)
    plan, want = plan_for(way, device, shape, variant), run(way, device, inputs, variant)
    for target in range(len(inputs)):
        there = [ptxrt.to_device(array, device) for array in inputs]
        assert plan.run((*there, there[target])) is there[target]
        np.testing.assert_array_equal(there[target].to_host(), want)


@both
@each_variant
@pytest.mark.parametrize(
    "shape", [(0, 4, 3), (2, 4, 0), (2, 0, 3), (0, 0), (3, 5, 0, 2), (1 << 33, 4, 0), (0, 1 << 33), (0, 4, 1 << 33)]
)
def test_pain25_the_empty_tensor_launches_nothing(device, monkeypatch, way, variant, shape):
    monkeypatch.setattr(device.backend, "launch", lambda *_: pytest.fail("launched"))
    result = plan_for(way, device, shape, variant).run(
        (*(ptxrt.zeros(shape, np.float32, device) for _ in way.inputs), None)
    )
    assert (result.shape, result.dtype) == (shape, np.float32)


# Checks ---------------------------------------------------------------------------------------------------------------

OPERANDS = [(way, name) for way in (FORWARD, BACKWARD) for name in (*way.inputs, "out")]
each_operand = pytest.mark.parametrize(("way", "name"), OPERANDS, ids=str)


def call(way, operands, stream=None):
    return way.function(*(operands[name] for name in way.inputs), out=operands["out"], stream=stream)


def refused(kind, way, operands, argument, device, **how):
    """Assert that the call is refused for `argument`, and that nothing was launched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device.backend, "launch", lambda *_: pytest.fail("launched"))
        with pytest.raises(kind) as caught:
            call(way, operands, **how)
    assert type(caught.value) is kind
    assert (caught.value.op, caught.value.argument) == (way.op, argument)
    return caught.value


@both
@pytest.mark.parametrize("shape", [(8,), ()])
def test_there_must_be_two_axes(device, way, shape):
    arrays = [ptxrt.zeros(shape, np.float32, device) for _ in way.inputs]
    with pytest.raises(ptxrt.ShapeMismatch, match=f"{way.op}: {way.inputs[0]}: .*two axes"):
        way.function(*arrays)


# The plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.ptx
@both
@pytest.mark.parametrize(
    ("shape", "best"),
    [
        ((8, 21, 512, 512), "baseline"),
        ((1, 32, 32), "baseline"),
        ((1, 33, 32), "tiled"),
        ((1, 32, 31), "tiled"),
        ((64, 1000, 7, 7), "tiled"),
        ((3, 1, 1 << 31), "tiled"),  # more columns than a u32 counts
    ],
)
def test_the_best_variant_is_taken(device, way, shape, best):
    assert key_of(plan_for(way, device, shape).variant) == best


@both
def test_counts_that_do_not_fit_their_parameter_are_refused(device, way):
    for shape, name in (((1, 1, 1 << 32), "hw"), ((1, 1 << 32, 1), "channels")):
        with pytest.raises(ptxrt.Unsupported, match=f"({name}|total) = {1 << 32} does not fit|more than"):
            plan_for(way, device, shape)
    with pytest.raises(ptxrt.Unsupported, match=r"total = 4294967296 does not|more than"):
        plan_for(way, device, (1 << 32, 1, 1), variants(way.plan, device)[0])


@pytest.mark.ptx
@both
def test_more_tiles_than_a_grid_has_blocks_are_refused(device, way):
    with pytest.raises(ptxrt.Unsupported, match=r"\d+ blocks do not fit grid\.x"):
        plan_for(way, device, (1 << 42, 1, 1))


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
def test_counts_that_fit_are_taken(device, way, shape):
    # A u32 counts the columns of a kernel with a thread for each, and in HIP the threads along x as well.
    most = {"baseline": (1 << 32) - 1, "hip/baseline": (1 << 32) - 256}
    for variant in variants(way.plan, device):
        if shape[0] * shape[2] <= most.get(variant, math.inf):
            (launch,) = plan_for(way, device, shape, variant).schedule.steps
            assert 1 <= launch.grid[0] < 1 << 31
            assert 1 <= launch.block <= (way.most_threads if variant == "tiled" else 256)
            assert launch.grid[0] * launch.block >= shape[0] * shape[2]


@both
def test_hip_has_fewer_than_2_to_the_32_threads_along_x(device, way):
    assert key_of(plan_for(way, device, ((1 << 32) - 256, 1, 1), "hip/baseline").variant) == "hip/baseline"
    with pytest.raises(ptxrt.Unsupported, match=r"hip/baseline: .*more than 4294967295 along x"):
        plan_for(way, device, ((1 << 32) - 255, 1, 1), "hip/baseline")


@both
@pytest.mark.parametrize("channels", [1, 21, 33, 256, 257, 1000, 5000, 100_000])
@pytest.mark.parametrize("hw", [1, 2, 7, 8, 31, 40, 49, 257, 4096, 250_000])
def test_a_tile_fits_a_block_and_reads_whole_sectors(way, channels, hw):
    tile = _tile(way.descriptor((3, channels, hw)), 256, way.most_threads)
    assert tile.images * tile.lanes * tile.positions <= way.most_threads
    assert tile.positions >= min(hw, 8) / 2
    assert tile.positions % 8 == 0 or hw % 8
    assert tile.lanes <= channels or tile.lanes == 1
    assert tile.images == 1 or tile.positions == hw
    assert tile.tiles == -(-3 // tile.images) * -(-hw // tile.positions)
    # Registers hold the columns, or the block has as many threads as it can.
    assert 32 * tile.lanes >= channels or 2 * tile.lanes * tile.positions > way.most_threads


@both
def test_a_descriptor_names_the_dtype_it_does_not_have(way):
    with pytest.raises(ptxrt.DTypeMismatch, match=f"{way.op}: {way.inputs[0]}"):
        way.descriptor((2, 8, 3), "f64")


# Large ----------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("shape", "variant"),
    [
        ((3, 5, 150_000_000), "baseline"),  # past 2**31 elements
        ((2, 9, 250_000_007), "baseline"),  # past 2**32
        ((2, 9, 250_000_007), "tiled"),
        ((3, 5, 150_000_000), "hip/baseline"),
        ((2, 9, 250_000_007), "hip/baseline"),
        ((5_000_001, 900), "tiled"),
        ((3, 2, 1_500_000_001), "tiled"),  # past 2**32 columns
        ((1, 3, (1 << 31) + 5), "tiled"),  # one image past 2**31 columns
    ],
    ids=str,
)
def test_tensors_past_2_to_the_32_elements(cuda, torch_with, way, shape, variant):
    count = math.prod(shape)
    torch = torch_with(8.5 * count)
    operands = [torch.empty(count, device="cuda").normal_() for _ in way.inputs]
    for y in operands[1:]:
        y.abs_().mul_(1 / shape[1])
    channels, hw = shape[1], math.prod(shape[2:])
    columns = count // channels
    # What is at the start, at the end, and on both sides of 2**31 and 2**32, in elements and in columns.
    places = {0, columns - 300, *(p for p in (2**31, 2**32) if p < columns)}
    places |= {e // (channels * hw) * hw + e % hw for e in (2**31, 2**32) if e < count}

    def columns_at(array, place):
        place = min(max(place - 150, 0), columns - 300)
        index = torch.arange(place, place + 300, device="cuda")
        first = index // hw * (channels * hw) + index % hw
        return array[first[:, None] + torch.arange(channels, device="cuda") * hw].double()

    before = {place: [columns_at(array, place) for array in operands] for place in places}
    # In place: a third array of this size would not fit.
    result = operands[0].view(shape)
    plan_for(way, cuda, shape, variant).run((*(array.view(shape) for array in operands), result))
    for place, values in before.items():
        if way is FORWARD:
            want = torch.softmax(values[0], 1)
        else:
            want = values[1] * (values[0] - (values[0] * values[1]).sum(1, keepdim=True))
        got = columns_at(operands[0], place)
        assert relative_error(got.cpu().numpy().astype(np.float32), want.cpu().numpy()) <= BAR, place


# exp ------------------------------------------------------------------------------------------------------------------

EXP_IN_PTX = """
//% from "macros.jinja" import exp_f32
// y = exp(x). Grid: n / 256 blocks of 256 threads.
.version 7.0
.target sm_70
.address_size 64

.visible .entry exponentials(.param .u64 x_ptr, .param .u64 y_ptr)
{
    .reg .b32 %i, %block;
    .reg .b64 %x, %y, %offset;
    .reg .f32 %v;
    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %y, [y_ptr];
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %i, %block, 256, %i;
    mul.wide.u32 %offset, %i, 4;
    add.u64 %x, %x, %offset;
    add.u64 %y, %y, %offset;
    ld.global.f32 %v, [%x];
    {{ exp_f32("%v", "%v") }}
    st.global.f32 [%y], %v;
}
"""
EXP_IN_HIP = """
extern "C" __global__ void exponentials(const float* x_ptr, float* y_ptr) {
    const unsigned int i = blockIdx.x * 256 + threadIdx.x;
    y_ptr[i] = exponential(x_ptr[i]);
}
"""
each_exp = pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])


def exponentials(device, x, variant):
    """Return what a variant's exp makes of `x`."""
    if variant == "hip/baseline":
        source = ptxrt.KernelSource.hip(read_kernel("softmax2d", language="hip").text + EXP_IN_HIP, name="exp")
    else:
        source = ptxrt.KernelSource.ptx(templates().from_string(EXP_IN_PTX).render(), name="exp")
    kernel = ptxrt.load(source, "exponentials", "const f32* x_ptr, f32* y_ptr", device)
    padded = np.zeros(-(-x.size // 256) * 256, np.float32)
    padded[: x.size] = x
    y = ptxrt.empty(padded.shape, np.float32, device)
    kernel.launch(padded.size // 256, 256, ptxrt.to_device(padded, device), y)
    return y.to_host()[: x.size]


@each_exp
@pytest.mark.parametrize(
    ("low", "high"), [(-1e-3, 0), (-1, 0), (-2, -1), (-20, -2), (-87.5, -20), (-104.5, -87), (0, 64), (-1e6, -104)]
)
def test_exp_is_within_nine_tenths_of_an_ulp(device, rng, variant, low, high):
    x = rng.uniform(low, high, 60_000).astype(np.float32)
    got, want = exponentials(device, x, variant), np.exp(x.astype(np.float64))
    ulp = np.maximum(np.spacing(want.astype(np.float32)), np.float32(2.0**-149)).astype(np.float64)
    assert (np.abs(got - want) <= 0.9 * ulp).all()
    np.testing.assert_array_equal(got, exponentials(ptxrt.Device("sim:0"), x, "baseline"))


@each_exp
def test_exp_where_the_results_are_denormal(device, variant):
    x = np.float32(np.log(2.0) * -np.arange(126, 151, 0.125))
    got, want = exponentials(device, x, variant), np.exp(x.astype(np.float64))
    assert (got[want > 0.51 * 2.0**-149] > 0).all()
    assert (np.abs(got - want) <= 0.501 * 2.0**-149 + want * 1e-7).all()


@each_exp
def test_exp_at_its_edges(device, variant):
    x = np.float32([0, -0.0, -np.inf, np.nan, 1e-45, -1e-45, -1e-10, -3.4e38, -104, -103.9, 64])
    want = [1, 1, 0, np.nan, 1, 1, 1, 0, 0, 2.0**-149, np.exp(64.0)]
    np.testing.assert_array_equal(exponentials(device, x, variant), np.float32(want))


@each_exp
def test_exp_of_what_is_not_above_zero_is_not_above_one(device, variant):
    tiny = np.nextafter(np.float32(0), np.float32(-1)) * 2.0 ** np.arange(0, 150)
    assert (exponentials(device, tiny.astype(np.float32), variant) <= 1).all()
    x = -np.arange(0, 20000, dtype=np.float32) * np.float32(2.0**-24)
    y = exponentials(device, x, variant)
    assert (y <= 1).all()
    assert (np.diff(y) <= 0).all()
