"""batch_norm by clusters of blocks: turns, shares that end early, channels side by side, and what is read twice."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import Patch, Rng
from test_batch_norm import check as check_forward
from test_batch_norm import problem as forward_problem
from test_batch_norm_backward import check as check_backward
from test_batch_norm_backward import problem as backward_problem

from ptxrt import Device
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import BatchNormBackwardDescriptor, BatchNormDescriptor, _batch_norm_cluster
from ptxrt.ops._batch_norm_cluster import SIZES, ClusterConfig, clusters, worth_clusters

pytestmark = pytest.mark.ptx


def check(device: Device, rng: Rng, shape: Any, config: ClusterConfig, name: str = "f32", **how: Any) -> None:
    """Run both directions, the latter with statistics and without."""
    if device.kind == "cuda" and int(device.arch.removeprefix("sm_")) < 90:
        pytest.skip("no clusters before sm_90")
    values = forward_problem(rng, shape, name=name)
    check_forward(device, values, training=True, variant="cluster", config=config, **how)
    gradients = backward_problem(rng, shape, name=name)
    for kind in ("training", "handed"):
        check_backward(device, gradients, kind=kind, variant="cluster", config=config, **how)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("shape", "turns"),
    [
        ((3, 5, 260), 2),  # long rows: blocks that end within one, the last cluster with a turn less
        ((2, 3, 64), 3),  # fewer units than threads, and blocks without any
        ((9, 20, 7), 2),  # channels side by side, and fewer images than each block would have
    ],
    ids=str,
)
def test_clusters_take_turns(device: Device, rng: Rng, shape: Any, turns: int, size: int) -> None:
    check(device, rng, shape, ClusterConfig(size, turns))


@pytest.mark.parametrize("name", ["f16", "f64"])
def test_types_take_turns(device: Device, rng: Rng, name: str) -> None:
    check(device, rng, (5, 16, 7), ClusterConfig(2, 2), name)


def test_threads_of_upper_rows_hand_their_sums_on(device: Device, rng: Rng) -> None:
    """Of five rows; 16 bits add up in two steps, for which shared memory has three of them."""
    check(device, rng, (11, 8, 49), ClusterConfig(2, 1), "f16")


@pytest.mark.parametrize("shape", [(4, 2, 9600), (600, 4, 7)], ids=str)
def test_more_copies_than_are_under_way_when_a_thread_begins_to_add(device: Device, rng: Rng, shape: Any) -> None:
    check(device, rng, shape, ClusterConfig(2, 2))


@pytest.mark.parametrize("shape", [(3, 3, 260), (6, 8, 7)], ids=str)
def test_arrays_at_no_multiple_of_16_bytes(device: Device, rng: Rng, shape: Any) -> None:
    check(device, rng, shape, ClusterConfig(2, 2), offset=1)


@pytest.mark.parametrize(("shape", "offset"), [((26, 1, 4000), 0), ((13, 2, 3000), 1)], ids=str)
def test_what_shared_memory_does_not_hold_is_read_twice(
    device: Device, rng: Rng, shape: Any, offset: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(_batch_norm_cluster, "_HALF", 1 << 14)
    check(device, rng, shape, ClusterConfig(8, 2), offset=offset)


def launch_of(problem: Any, config: ClusterConfig) -> Any:
    return clusters(problem, config, (), ())


def test_shared_memory_is_the_blocks_share_up_to_what_there_is() -> None:
    small = BatchNormDescriptor((3, 5, 260), True)
    assert launch_of(small, ClusterConfig(2, 1)).launches[0].shared_bytes == 4 * 392
    large = BatchNormDescriptor((32, 64, 112, 112), True)
    assert (
        launch_of(large, ClusterConfig(8, 1)).launches[0].shared_bytes == 14 * 512 * 16
    )  # so many units of each thread


@pytest.mark.parametrize("size", [0, 1, 16])
def test_a_size_that_there_is_not_is_refused(size: int) -> None:
    refusal = launch_of(BatchNormDescriptor((4, 2, 64), True), ClusterConfig(size, 1))
    assert f"no clusters are of {size} blocks" in refusal.reason


def test_rows_that_no_vector_ends_with_are_refused() -> None:
    refusal = launch_of(BatchNormDescriptor((4, 3, 7), True), ClusterConfig(2, 1))
    assert "vectors of 4 values" in refusal.reason


@pytest.mark.parametrize(
    ("shape", "name", "forward", "backward"),
    [
        ((32, 64, 112, 112), "f16", (8, 1), (8, 1)),
        ((32, 256, 56, 56), "f32", (2, 4), (8, 1)),
        ((128, 512, 7, 7), "f32", (2, 1), (2, 1)),
        ((256, 2048, 7, 7), "f32", (2, 4), (2, 8)),
        ((32, 256, 56, 56), "f16", (2, 2), (2, 4)),
    ],
)
def test_the_choice_is_what_was_fastest(shape: Any, name: str, forward: Any, backward: Any) -> None:
    for kind, config in ((BatchNormDescriptor, forward), (BatchNormBackwardDescriptor, backward)):
        problem = kind(shape, True, BY_NAME[name])
        assert worth_clusters(problem)
        assert ClusterConfig.heuristic(problem) == ClusterConfig(*config)
        assert ClusterConfig(*config) in ClusterConfig.candidates(problem)


def test_a_forward_may_fit_where_its_backward_does_not() -> None:
    shape = (32, 64, 112, 112)
    assert ClusterConfig.heuristic(BatchNormDescriptor(shape, True)) == ClusterConfig(8, 1)
    assert worth_clusters(BatchNormDescriptor(shape, True))
    assert not worth_clusters(BatchNormBackwardDescriptor(shape, True))


@pytest.mark.parametrize("shape", [(32, 8, 64), (64, 64, 224, 224), (33, 1021, 49)], ids=str)
def test_few_values_and_large_channels_are_left_to_others(shape: Any) -> None:
    assert not worth_clusters(BatchNormDescriptor(shape, True))
