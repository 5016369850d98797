"""batch_norm of few values: blocks of one warp and of several, rows that end anywhere, PTX and HIP to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Rng
from op_testing import check_error, wish
from test_batch_norm import check as check_forward
from test_batch_norm import check_any_variance
from test_batch_norm import problem as forward_problem
from test_batch_norm import run as run_forward
from test_batch_norm_backward import check as check_backward
from test_batch_norm_backward import problem as backward_problem
from test_batch_norm_backward import run as run_backward

from ptxrt import Device
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import BatchNormBackwardDescriptor, BatchNormBackwardPlan, BatchNormDescriptor, BatchNormPlan, references
from ptxrt.ops._batch_norm_small import eval_small, few_values, small

LANGUAGES = ("small", "hip/small")
SHAPES = [
    (2, 3, 1),  # the fewest values, rows of one
    (1, 2, 31),
    (4, 5, 8),  # one warp, one value a thread
    (1, 3, 33),
    (3, 2, 43),  # a value more than one warp has
    (5, 7, 100),  # threads without values
    (32, 2, 16),
    (19, 1, 27),  # a value more than four warps have
    (1, 2, 1024),  # the longest row, all that a block has
    (1024, 2, 1),
    (93, 3, 11),
]


def both_ways(device: Device, rng: Rng, shape: Any, name: str = "f32", **how: Any) -> None:
    """Check training, eval and the backward with statistics."""
    mean = 1e4 if how.get("large_mean") else 0.0
    for training in (True, False):
        check_forward(device, forward_problem(rng, shape, mean, name), training=training, **how)
    for kind in ("handed", "eval"):
        check_backward(device, backward_problem(rng, shape, mean, name), kind=kind, **how)


@pytest.mark.parametrize("variant", LANGUAGES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sizes_round_those_of_warps_rows_and_blocks(device: Device, rng: Rng, shape: Any, variant: str) -> None:
    both_ways(device, rng, shape, variant=variant)


@pytest.mark.parametrize("variant", LANGUAGES)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_types_of_16_bits(device: Device, rng: Rng, name: str, variant: str) -> None:
    both_ways(device, rng, (5, 3, 33), name, variant=variant)


@pytest.mark.parametrize("variant", LANGUAGES)
def test_arrays_at_no_multiple_of_16_bytes_and_a_large_mean(device: Device, rng: Rng, variant: str) -> None:
    both_ways(device, rng, (3, 4, 60), variant=variant, offset=1, out_offset=3)
    both_ways(device, rng, (3, 4, 60), variant=variant, large_mean=True)


@pytest.mark.parametrize("variant", LANGUAGES)
def test_vectors_that_are_absent(device: Device, rng: Rng, variant: str) -> None:
    x = forward_problem(rng, (3, 4, 60))
    check_forward(device, (x[0], None, None, None, None), training=True, variant=variant)
    check_forward(device, (x[0], None, None, *x[3:]), training=False, variant=variant)
    go = backward_problem(rng, (3, 4, 60))
    for kind in ("handed", "eval"):
        check_backward(device, (*go[:2], None, *go[3:]), kind=kind, variant=variant)


@pytest.mark.parametrize("variant", LANGUAGES)
def test_rows_longer_than_a_block_in_eval(device: Device, rng: Rng, variant: str) -> None:
    check_forward(device, forward_problem(rng, (3, 2, 1300)), training=False, variant=variant)


@pytest.mark.parametrize("variant", LANGUAGES)
def test_a_value_that_is_none_stays_in_its_channel(device: Device, rng: Rng, variant: str) -> None:
    x, *vectors = forward_problem(rng, (3, 3, 50))
    x[1, 1, 7], x[2, 2, 49] = np.nan, np.inf
    got = run_forward(device, (x, *vectors), training=True, variant=variant)
    assert np.isfinite(got["y"][:, 0]).all()
    assert np.isnan(got["y"][:, 1:]).all()
    go, x, *vectors = backward_problem(rng, (3, 3, 50))
    go[1, 1, 7], vectors[1][2] = np.nan, np.inf
    gi, gw, gb = run_backward(device, (go, x, *vectors), kind="handed", variant=variant)
    assert np.isfinite(gi[:, 0]).all()
    assert np.isnan(gi[:, 1:]).all()
    np.testing.assert_array_equal(np.isfinite(gw), [True, False, False])
    np.testing.assert_array_equal(np.isnan(gb), [False, True, False])


@pytest.mark.parametrize("variant", LANGUAGES)
@pytest.mark.parametrize("scale", [1e-30, 3e-16, 3e15, 1e30])
def test_squares_need_not_be_numbers_of_f32(device: Device, rng: Rng, scale: float, variant: str) -> None:
    """The first and the last one are behind the powers of two from and to which results are made in f32."""
    x, w, b, *_ = forward_problem(rng, (3, 3, 50))
    x *= np.float32(scale)
    want = references.batch_norm(x, w, b, None, None, training=True, eps=0.0)
    got = run_forward(device, (x, w, b, None, None), training=True, eps=0.0, variant=variant)
    check_error("batch_norm y", device, got["y"], want[0], 2e-7)


@pytest.mark.parametrize("variant", LANGUAGES)
def test_any_variance_in_eval(device: Device, rng: Rng, variant: str) -> None:
    check_any_variance(device, rng, (2, 12, 40), variant)


@pytest.mark.ptx
def test_values_that_are_equal_have_no_variance(device: Device, rng: Rng) -> None:
    x, *vectors = forward_problem(rng, (3, 3, 50))
    for variant in LANGUAGES:
        check_forward(device, (np.full_like(x, 7.7), *vectors), training=True, variant=variant)


@pytest.mark.ptx
@pytest.mark.parametrize("shape", [(5, 3, 33), (7, 4, 130)], ids=str)
def test_the_bits_are_those_of_the_other_language(device: Device, rng: Rng, shape: Any) -> None:
    values, gradients = forward_problem(rng, shape), backward_problem(rng, shape)
    for training in (True, False):
        one, other = (run_forward(device, values, training=training, variant=variant) for variant in LANGUAGES)
        assert all(np.array_equal(one[name], other[name]) for name in one)
    for kind in ("handed", "eval"):
        ones, others = (run_backward(device, gradients, kind=kind, variant=variant) for variant in LANGUAGES)
        assert all(map(np.array_equal, ones, others))


def launch_of(problem: Any) -> Any:
    return small(problem, "ptx", problem.op + "_small", (), ())


def in_eval(shape: Any, name: str = "f32") -> Any:
    return eval_small(BatchNormDescriptor(shape, False, BY_NAME[name]), "ptx", ())


@pytest.mark.parametrize(
    ("count", "threads"), [(2, 32), (128, 32), (129, 64), (256, 64), (257, 128), (513, 256), (1024, 256)]
)
def test_a_thread_has_four_values_at_most(count: int, threads: int) -> None:
    (launch,) = launch_of(BatchNormDescriptor((1, 3, count), True)).launches
    assert (launch.grid, launch.block) == ((3,), threads)


def test_what_it_cannot_do_is_refused() -> None:
    assert "1025 values a channel" in launch_of(BatchNormDescriptor((1025, 3), True)).reason
    assert "not for f64" in launch_of(BatchNormDescriptor((10, 3), True, BY_NAME["f64"])).reason
    assert "not for f64" in in_eval((10, 3), "f64").reason
    assert "elements are more than" in in_eval((1 << 12, 1 << 20)).reason
    assert "elements are more than" in launch_of(BatchNormDescriptor((1 << 10, 1 << 22), True)).reason


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("shape", "how", "best"),
    [
        ((2, 8, 64), {}, True),
        ((4, 2048, 197), {}, True),
        ((4, 2048, 197), {"dtype": BY_NAME["f16"]}, True),
        ((4, 2048, 196), {}, False),  # whole vectors
        ((4, 2048, 196), {"dtype": BY_NAME["f16"]}, False),  # half vectors
        ((4, 2048, 192), {"dtype": BY_NAME["f16"]}, False),  # whole vectors
        ((2, 8, 513), {}, False),
        ((512, 128), {}, True),  # channels that lie side by side
        ((513, 128), {}, False),
        ((513, 130), {}, True),  # and end within vectors
        ((513, 128), {"dtype": BY_NAME["f16"]}, False),
        ((2, 8, 64), {"dtype": BY_NAME["f64"]}, False),
        ((2, 64, 255), {"training": False}, True),
        ((2, 64, 256), {"training": False}, False),  # whole vectors
        ((3, 64, 255), {"training": False}, False),
        ((2, 64, 15), {"training": False}, False),
    ],
)
def test_where_it_is_the_choice(device: Device, shape: Any, how: Any, best: bool) -> None:
    plan = BatchNormPlan.select(device, BatchNormDescriptor(shape, **{"training": True, **how}), wish())
    assert (plan.variant.name == "small") == best


@pytest.mark.parametrize(
    ("shape", "name", "ptx", "hip"),
    [
        ((32, 2048), "f32", True, True),
        ((33, 2048), "f32", False, False),
        ((15, 2052), "f32", True, False),  # more channels
        ((16, 2052), "f32", False, False),
        ((511, 1026), "f32", True, True),  # that end within vectors
        ((512, 1026), "f32", False, False),
    ],
)
def test_of_channels_side_by_side_values_are_few(shape: Any, name: str, ptx: bool, hip: bool) -> None:
    problem = BatchNormDescriptor(shape, True, BY_NAME[name])
    assert [few_values(problem, language) for language in ("ptx", "hip")] == [ptx, hip]


def test_statistics_that_nobody_gave_are_left_to_others(device: Device) -> None:
    problem = BatchNormBackwardDescriptor((2, 8, 64), True)
    assert few_values(problem, "ptx")
    assert BatchNormBackwardPlan.select(device, problem).variant.name != "small"
