"""batch_norm by clusters of blocks: turns, shares that end early, channels side by side, and what is read twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Rng
from test_batch_norm import check as check_forward
from test_batch_norm import expected as expected_forward
from test_batch_norm import problem as forward_problem
from test_batch_norm import run as run_forward
from test_batch_norm_backward import check as check_backward
from test_batch_norm_backward import compare as compare_backward
from test_batch_norm_backward import expected as expected_backward
from test_batch_norm_backward import problem as backward_problem
from test_batch_norm_backward import run as run_backward

from ptxrt import Device, PlanPreference, Unsupported
from ptxrt.compilers import nvjitlink
from ptxrt.compilers.occupancy import occupancy
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import BatchNormBackwardDescriptor, BatchNormBackwardPlan, BatchNormDescriptor
from ptxrt.ops._batch_norm_cluster import OF_COLUMNS, SIZES, ClusterConfig, _cut, clusters, worth_clusters
from ptxrt.ops.framework import Limits

pytestmark = pytest.mark.ptx


@pytest.fixture(autouse=True)
def _clusters(device: Device) -> None:
    if device.kind == "cuda" and int(device.arch.removeprefix("sm_")) < 90:
        pytest.skip("no clusters before sm_90")


def check(
    device: Device, rng: Rng, shape: Any, config: ClusterConfig, name: str = "f32", mean: float = 0, **how: Any
) -> None:
    """Run both directions, the latter, which has no clusters of one, with statistics and without."""
    how |= {"variant": "cluster", "large_mean": mean != 0}
    check_forward(device, forward_problem(rng, shape, mean, name), training=True, config=config, **how)
    gradients = backward_problem(rng, shape, mean, name)
    for kind in ("training", "handed"):
        check_backward(device, gradients, kind=kind, config=replace(config, size=max(2, config.size)), **how)


@pytest.mark.parametrize(
    ("shape", "turns", "sizes"),
    [
        ((3, 5, 260), 2, SIZES),  # long rows: blocks that end within one, the last cluster with a turn less
        ((2, 3, 64), 3, SIZES),  # fewer units than threads, and blocks without any
        ((9, 20, 7), 2, OF_COLUMNS),  # channels side by side, and fewer images than each block would have
    ],
    ids=str,
)
def test_clusters_take_turns(device: Device, rng: Rng, shape: Any, turns: int, sizes: Any) -> None:
    for size in sizes:
        check(device, rng, shape, ClusterConfig(size, turns))


@pytest.mark.parametrize("name", ["f16", "f64"])
def test_types_take_turns(device: Device, rng: Rng, name: str) -> None:
    check(device, rng, (10, 16, 7), ClusterConfig(2, 2), name)


@pytest.mark.parametrize(("shape", "sizes"), [((3, 5, 260), SIZES), ((90, 12, 6), OF_COLUMNS[1:])], ids=str)
def test_in_f64_neither_an_outlier_in_front_costs_accuracy_nor_a_constant_in_grad_out(
    device: Device, rng: Rng, shape: Any, sizes: Any
) -> None:
    """Threads add up about values of their own."""
    values, go, x, *others = forward_problem(rng, shape, name="f64"), *backward_problem(rng, shape, name="f64")
    for array in (values[0], x):
        array[0, ::2, 0] = 1e10
    for size in sizes:
        how: Any = {"variant": "cluster", "config": ClusterConfig(size, 2)}
        check_forward(device, values, training=True, **how)
        check_backward(device, (go, x, *others), kind="training", **how)
        got = run_backward(device, (go + 1e8, x, *others), kind="training", **how)
        rounded = (go + 1e8) - np.longdouble(1e8)
        want = expected_backward((rounded, x, *others), kind="training")
        compare_backward(device, got, (*want[:2], want[2] + x[:, 0].size * np.longdouble(1e8)), f"{shape} {size}")


def test_few_values_whose_gradients_cancel_are_left_to_others(sim: Device) -> None:
    for images, fits in ((9, False), (10, True)):
        few = BatchNormBackwardDescriptor((images, 1 << 17, 7), True, BY_NAME["f64"])
        assert worth_clusters(few) == fits
        assert worth_clusters(replace(few, dtype=BY_NAME["f32"]))
    problem = BatchNormBackwardDescriptor((9, 16, 7), True, BY_NAME["f64"])
    with pytest.raises(Unsupported, match="of gradients in f64 a channel has 63 values, fewer than 64"):
        BatchNormBackwardPlan.select(sim, problem, PlanPreference(variant="cluster", config=ClusterConfig(2, 2)))


@pytest.mark.parametrize("units", [7, 8, 9, 10, 11, 12])
def test_sums_begin_while_the_last_channels_are_written(device: Device, rng: Rng, units: int) -> None:
    """A thread has so many units of each group of channels; of f16 it adds up four at a time, then single ones."""
    for name in ("f16", "f32"):
        check(device, rng, (18 * units, 64, 7), ClusterConfig(1, 2), name)


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_threads_of_upper_rows_hand_their_sums_on(device: Device, rng: Rng, name: str) -> None:
    """Of ten rows, backward five; 16 bits add up in two steps, for which shared memory has five, or three, of them."""
    check(device, rng, (23, 8, 49), ClusterConfig(2, 1), name)


@pytest.mark.parametrize("shape", [(4, 2, 9600), (1200, 4, 7)], ids=str)
def test_more_copies_than_are_under_way_when_a_thread_begins_to_add(device: Device, rng: Rng, shape: Any) -> None:
    check(device, rng, shape, ClusterConfig(2, 2))


@pytest.mark.parametrize("shape", [(3, 3, 260), (6, 8, 7)], ids=str)
def test_arrays_at_no_multiple_of_16_bytes(device: Device, rng: Rng, shape: Any) -> None:
    check(device, rng, shape, ClusterConfig(2, 2), offset=1)


@pytest.mark.parametrize("mean", [1e4, 2.0**22])
@pytest.mark.parametrize("shape", [(7, 2, 260), (9, 8, 7)], ids=str)
def test_a_mean_far_from_0(device: Device, rng: Rng, shape: Any, mean: float) -> None:
    check(device, rng, shape, ClusterConfig(2, 2), mean=mean)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("shape", [(3, 2, 64), (9, 16, 7)], ids=str)
def test_a_channel_of_one_value_gives_its_bias(device: Device, rng: Rng, shape: Any, name: str) -> None:
    x, weight, bias, *running = forward_problem(rng, shape, name=name)
    x[:] = x[:1, :, :1]
    bias[0], weight[1] = 0, np.float32(3e38)  # as exactly, and where the factor of x is infinite in f32
    got = run_forward(device, (x, weight, bias, *running), training=True, variant="cluster", config=ClusterConfig(2, 1))
    np.testing.assert_array_equal(got["y"], np.broadcast_to(bias.astype(x.dtype)[:, None], shape))
    np.testing.assert_array_equal(got["batch_var"], 0)


@pytest.mark.parametrize("shape", [(63, 2, 64), (63, 16, 7)], ids=str)
def test_one_value_beside_many_equal_ones(device: Device, rng: Rng, shape: Any) -> None:
    """Their mean, which no f32 is, must not be off by a part of what they differ from it."""
    x, *others = forward_problem(rng, shape, name="f16")
    x[:] = 1000
    x[5, :, 3] += 1
    values = (x, *others[:1], np.zeros_like(others[1]), *others[2:])
    got = run_forward(device, values, training=True, variant="cluster", config=ClusterConfig(2, 1))
    np.testing.assert_allclose(got["y"], expected_forward(values, training=True)["y"].astype(np.float16), rtol=2e-3)


@pytest.mark.parametrize("deviation", [0, 0.5])
@pytest.mark.parametrize(
    ("shape", "config"), [((2, 9, 1024), ClusterConfig(2, 2)), ((180, 16, 7), ClusterConfig(1, 2))], ids=str
)
def test_one_value_far_from_all_others(
    device: Device, rng: Rng, shape: Any, config: ClusterConfig, deviation: float
) -> None:
    """The first one, which sums are shifted by, any other of a vector, and the last one; of equal ones and others."""
    go, _, weight, *_ = gradients = backward_problem(rng, shape, name="f16")
    x = (7.3 + deviation * rng.standard_normal(shape)).astype(go.dtype)
    for channel, values in enumerate(np.moveaxis(x, 1, 0)):
        values[divmod(channel, shape[2]) if channel < 8 else (-1, -1)] = 1000
    how: Any = {"variant": "cluster", "config": config}
    check_forward(device, (x, *forward_problem(rng, shape, name="f16")[1:]), training=True, **how)
    how["config"] = replace(config, size=2)
    check_backward(device, (go, x, weight, *gradients[3:]), kind="training", **how)


@pytest.mark.parametrize("shape", [(4, 3, 64), (80, 16, 7)], ids=str)
def test_the_largest_numbers_of_f16_leave_no_sum_infinite(device: Device, rng: Rng, shape: Any) -> None:
    signs = np.sign(rng.standard_normal(shape)).astype(np.float16)
    values = forward_problem(rng, shape, name="f16")
    go, _, *others = backward_problem(rng, shape, name="f16")
    how: Any = {"variant": "cluster", "config": ClusterConfig(2, 1)}
    check_forward(device, (signs * np.float16(65504), *values[1:]), training=True, **how)
    check_backward(device, (go, signs * np.float16(65504), *others), kind="training", **how)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(4, 3, 64), (80, 16, 7)], ids=str)
def test_what_is_no_number_stays_in_its_channel(device: Device, rng: Rng, shape: Any, value: float, name: str) -> None:
    x, *others = forward_problem(rng, shape, name=name)
    x[-1, 1, 3] = value
    got = run_forward(device, (x, *others), training=True, variant="cluster", config=ClusterConfig(2, 1))
    assert np.isnan(got["y"][:, 1].astype(np.float32)).all()
    assert np.isfinite(np.delete(got["y"].astype(np.float32), 1, 1)).all()


def launch_of(problem: Any, config: ClusterConfig, max_cluster: int = 16) -> Any:
    limits = Limits.of(Device("sim:0").properties)._replace(max_cluster=max_cluster)
    return clusters(problem, config, limits, (), ())


def test_shared_memory_is_the_blocks_share() -> None:
    small = BatchNormDescriptor((3, 5, 260), True)
    assert launch_of(small, ClusterConfig(2, 1)).launches[0].shared_bytes == 4 * 392


@pytest.mark.parametrize("size", [0, 1, 4, 32])
def test_a_size_that_there_is_not_is_refused(size: int) -> None:
    refusal = launch_of(BatchNormDescriptor((4, 2, 64), True), ClusterConfig(size, 1))
    assert refusal.reason == f"no clusters are of {size} blocks"
    refusal = launch_of(BatchNormDescriptor((4, 4, 7), True), ClusterConfig(16, 1))
    assert refusal.reason == "no clusters are of 16 blocks where channels lie side by side"


def test_large_clusters_are_left_to_devices_that_have_room_for_them() -> None:
    refusal = launch_of(BatchNormDescriptor((4, 2, 64), True), ClusterConfig(16, 1), max_cluster=8)
    assert refusal.reason == "the device has no room for clusters of 16 blocks"


def test_a_number_of_a_channel_does_not_overflow() -> None:
    fits = launch_of(BatchNormDescriptor((2, (1 << 31) - 64), True), ClusterConfig(2, 1 << 20))
    assert fits.launches[0].grid == (64,)
    refusal = launch_of(BatchNormDescriptor((2, 1 << 31), True), ClusterConfig(2, 1 << 20))
    assert refusal.reason == "2147483648 channels are more than 2147483647"


def test_rows_that_no_vector_ends_with_are_refused() -> None:
    refusal = launch_of(BatchNormDescriptor((4, 3, 7), True), ClusterConfig(2, 1))
    assert "vectors of 4 values" in refusal.reason


@pytest.mark.parametrize(
    ("shape", "name", "forward", "backward"),
    [
        ((32, 64, 112, 112), "f32", (16, 2), (16, 2)),
        ((32, 64, 112, 112), "f16", (8, 1), (16, 2)),
        ((32, 256, 56, 56), "f32", (2, 4), (8, 2)),
        ((32, 256, 56, 56), "f64", (8, 2), (8, 2)),  # backward of blocks that have a multiprocessor to themselves
        ((8, 64, 112, 112), "f64", (8, 1), (8, 1)),
        ((64, 64, 56, 56), "f64", (16, 2), (16, 2)),
        ((128, 512, 7, 7), "f32", (1, 1), (2, 1)),
        ((256, 2048, 7, 7), "f32", (1, 4), (2, 8)),
        ((256, 2048, 7, 7), "f16", (1, 2), (2, 4)),
        ((32, 256, 56, 56), "f16", (2, 2), (2, 4)),
        ((128, 16, 56, 56), "f32", (16, 1), (16, 2)),  # fewer channels than turns would take
        ((1024, 20, 7, 7), "f32", (8, 1), (8, 1)),
        ((1024, 512, 7, 7), "f32", (8, 1), (8, 1)),  # side by side: no turns, however many there are
    ],
)
def test_the_choice_is_what_was_fastest(shape: Any, name: str, forward: Any, backward: Any) -> None:
    for kind, config in ((BatchNormDescriptor, forward), (BatchNormBackwardDescriptor, backward)):
        problem = kind(shape, True, BY_NAME[name])
        assert worth_clusters(problem)
        assert ClusterConfig.heuristic(problem) == ClusterConfig(*config)
        candidates = ClusterConfig.candidates(problem)
        assert candidates[0] == ClusterConfig(*config)
        assert {ClusterConfig(config[0], turns) for turns in (1, 2, 4)} <= set(candidates)


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "f64"])
def test_registers_leave_room_for_as_many_blocks_as_turns_are_made_for(name: str) -> None:
    if reason := nvjitlink.available():
        pytest.skip(reason)
    for kind in (BatchNormDescriptor, BatchNormBackwardDescriptor):
        problem = kind((8, 4, 1024), True, BY_NAME[name])
        spec = launch_of(problem, ClusterConfig(8, 1)).launches[0].kernel
        registers = nvjitlink.compile_ptx(spec.source.text, "sm_90").reports[spec.entry].registers
        assert registers is not None
        cut, held = _cut(problem, 8), occupancy("sm_90", 512, registers, 0)
        assert cut is not None
        assert held is not None
        # Forward of 16 bits one more, of clusters that would begin late: turns are as measured without it.
        more = int(problem.arrays == 1 and problem.dtype.size == 2)
        assert held.blocks == cut.at_once + more, (spec.entry, registers)


def test_a_forward_may_fit_where_its_backward_does_not() -> None:
    shape = (64, 64, 112, 112)
    assert worth_clusters(BatchNormDescriptor(shape, True))
    assert not worth_clusters(BatchNormBackwardDescriptor(shape, True))


@pytest.mark.parametrize("shape", [(32, 8, 64), (64, 64, 224, 224), (33, 1021, 49)], ids=str)
def test_few_values_and_large_channels_are_left_to_others(shape: Any) -> None:
    assert not worth_clusters(BatchNormDescriptor(shape, True))
