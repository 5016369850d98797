"""group_norm by `grid`: one group after another, of which each block has a slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Patch, Rng, Shape
from op_testing import Array, Guarded, check_error, on_device, wish
from tolerances import bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import (
    GroupNormArgs,
    GroupNormBackwardDescriptor,
    GroupNormDescriptor,
    GroupNormPlan,
    _group_norm_grid,
    references,
)
from ptxrt.ops._group_norm_grid import FAMILY, GridConfig, InGrid
from ptxrt.ops._group_norm_grid_backward import InGridBackward
from ptxrt.ops.framework import Limits, Refusal
from ptxrt.sim import _launch

pytestmark = [pytest.mark.ptx, pytest.mark.partial_barriers]
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)
SMALL = GridConfig(3, 32, 2, 1)
CASES: list[tuple[Shape, int, GridConfig]] = [
    # One block, with fewer vectors than workers, and one of many turns, which ends within a row of workers.
    ((1, 2, 8), 1, GridConfig(1, 32, 1, 1)),
    ((1, 3, 500), 1, GridConfig(1, 32, 3, 1)),
    # A block without values; a slice that is a part of one channel, and of several; channels of one vector.
    ((2, 4, 132), 2, GridConfig(3, 64, 1, 1)),
    ((1, 4, 1000), 1, SMALL),
    ((3, 64, 4), 2, GridConfig(2, 32, 2, 1)),
    # More groups than slots, so that the ring of slots goes around, and fewer groups than the lag; several images.
    ((7, 6, 520), 3, GridConfig(2, 32, 3, 1)),
    ((1, 2, 520), 2, GridConfig(2, 64, 3, 1)),
    # Teams that take the groups in turn, one of them with one group less, and teams without a group.
    ((3, 6, 264), 3, GridConfig(2, 32, 1, 2)),
    ((1, 3, 264), 3, GridConfig(2, 32, 2, 4)),
    # More warps than a half of one reads.
    ((2, 4, 2200), 2, GridConfig(2, 544, 2, 1)),
]


def plan_of(device: Device, shape: Shape, groups: int, config: GridConfig | None, name: str = "f32") -> Any:
    return GroupNormPlan.select(
        device, GroupNormDescriptor(shape, groups, element_type(name)), wish("grid", config=config)
    )


def problem(rng: Rng, shape: Shape, name: str = "f32", mean: float = 0.0) -> tuple[Array, Array, Array]:
    """Return x, weight and bias."""
    x = (rng.standard_normal(shape) + mean).astype(BY_NAME[name].numpy)
    w, b = (rng.standard_normal(shape[1]).astype(np.float32) for _ in "wb")
    return x, w, b


def check(
    device: Device, arrays: Any, groups: int, config: GridConfig, *, offset: int = 0, large_mean: bool = False
) -> Array:
    """Hold to the reference what it writes into a poisoned, guarded output."""
    x, w, b = arrays
    name = element_type(x.dtype).name
    out = Guarded(x.shape, x.dtype, device, offset)
    there = [on_device(each, device, offset) for each in arrays]
    plan_of(device, x.shape, groups, config, name).run(GroupNormArgs(there[0], there[1], there[2], out.array))
    want, got = references.group_norm(x, w, b, groups), out.host()
    limit = bar("group_norm", name, want, large_mean=large_mean)
    check_error("group_norm grid", device, got, want, limit, (x.shape, groups, config))
    return got


@pytest.mark.parametrize(("shape", "groups", "config"), CASES, ids=str)
@pytest.mark.sanitize
def test_values(device: Device, rng: Rng, shape: Shape, groups: int, config: GridConfig) -> None:
    check(device, problem(rng, shape), groups, config)


@pytest.mark.parametrize("name", [name for name in FAMILY.dtypes if name != "f32"])
@pytest.mark.parametrize("config", [SMALL, GridConfig(2, 64, 1, 3)], ids=str)
@pytest.mark.sanitize
def test_the_types_beside_f32(device: Device, rng: Rng, name: str, config: GridConfig) -> None:
    check(device, problem(rng, (3, 6, 1000), name), 2, config)


@every_type
@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("config", [GridConfig(5, 32, 1, 1), GridConfig(3, 32, 3, 1), GridConfig(2, 32, 2, 2)], ids=str)
def test_slices_of_blocks_that_are_not_on_the_device_are_taken_over(
    device: Device, rng: Rng, monkeypatch: Patch, name: str, most: int, config: GridConfig
) -> None:
    """To the bit; arrays are aligned, and not. Only sim can be told how many blocks are on it at a time."""
    x, w, b = problem(rng, (3, 4, 520), name, 3.0)
    want = [check(device, (x, w, b), 2, config, offset=offset) for offset in (0, 1)]
    monkeypatch.setattr(_launch, "_CHUNK_LANES", most * (config.workers + 32 * (config.lag + 1)))
    for offset in (0, 1):
        got = check(device, (x, w, b), 2, config, offset=offset)
        np.testing.assert_array_equal(got, want[offset])


def test_more_blocks_than_a_gpu_runs_at_a_time(cuda: Device, rng: Rng, monkeypatch: Patch) -> None:
    """Each has nearly all of a multiprocessor's shared memory, as if there were one for each."""
    monkeypatch.setattr(_group_norm_grid, "_MULTIPROCESSORS", 160)
    config, blocks = GridConfig(160, 32, 1, 1), cuda.properties.multiprocessors
    x, w, b = problem(rng, (2, 4, 160 * 32 * 50))
    [launch] = plan_of(cuda, x.shape, 1, config).schedule.launches
    assert launch.shared_bytes > cuda.properties.max_shared_dynamic // 2
    assert blocks < 160
    check(cuda, (x, w, b), 1, config)


@every_type
@pytest.mark.parametrize("shape", [(2, 4, 520), (1, 4, 8)], ids=str)
def test_arrays_that_are_not_aligned(device: Device, rng: Rng, name: str, shape: Shape) -> None:
    x, w, b = problem(rng, shape, name)
    check(device, (x, w, b), 2, SMALL, offset=1)
    check(device, (x, None, None), 2, SMALL)


@pytest.mark.parametrize("place", [0, 1])
def test_one_array_alone_may_be_unaligned(device: Device, rng: Rng, place: int) -> None:
    x, w, b = problem(rng, (2, 4, 520))
    there, out = on_device(x, device, int(place == 0)), on_device(np.zeros_like(x), device, int(place == 1))
    plan_of(device, x.shape, 2, SMALL).run(GroupNormArgs(there, on_device(w, device), on_device(b, device), out))
    want = references.group_norm(x, w, b, 2)
    check_error("group_norm grid", device, out.to_host(), want, bar("group_norm", "f32"), place)


@pytest.mark.parametrize("config", [SMALL, GridConfig(40, 32, 1, 2)], ids=str)
def test_the_result_may_be_in_place(device: Device, rng: Rng, config: GridConfig) -> None:
    x, w, b = problem(rng, (5, 4, 1000))
    there, w_there, b_there = (on_device(each, device) for each in (x, w, b))
    plan_of(device, x.shape, 2, config).run(GroupNormArgs(there, w_there, b_there, there))
    want = references.group_norm(x, w, b, 2)
    check_error("group_norm grid", device, there.to_host(), want, bar("group_norm", "f32"), config)


@pytest.mark.parametrize(("name", "mean"), [("f32", 1e6), ("f32", -1e4), ("f16", 1e3), ("bf16", 100)])
def test_a_large_offset_costs_no_accuracy(device: Device, rng: Rng, name: str, mean: float) -> None:
    check(device, problem(rng, (1, 4, 1000), name, mean), 2, SMALL, large_mean=True)


@pytest.mark.parametrize(
    ("name", "factor"), [("f32", 3e37), ("f32", 1e-40), ("f16", 1e4), ("f16", 1e-6), ("bf16", 3e37)]
)
def test_values_near_the_largest_and_the_smallest(device: Device, rng: Rng, name: str, factor: float) -> None:
    x, w, b = problem(rng, (1, 4, 1000), name)
    check(device, (x * x.dtype.type(factor), w, b), 2, SMALL)


@pytest.mark.parametrize("place", [0, 3, 999])
def test_one_value_far_from_all_others(device: Device, rng: Rng, place: int) -> None:
    """Which a warp's sums are about, or none; a slice's mean is near it, or the other slices' is."""
    x, w, b = problem(rng, (1, 1, 1000))
    x[0, 0, place] = 1e6
    check(device, (x, w, b), 1, SMALL)


def test_slices_whose_means_lie_apart(device: Device, rng: Rng) -> None:
    x, w, b = problem(rng, (1, 2, 1536))
    x += np.repeat([0, 1e4, -3e4, 7e4, 5e3, 1], 256).astype(x.dtype)
    check(device, (x, w, b), 1, GridConfig(6, 64, 1, 1))


@every_type
def test_one_bad_value_spoils_its_group_alone(device: Device, rng: Rng, name: str) -> None:
    """Whichever: a NaN with all bits set is no sum that has not come."""
    x, w, b = problem(rng, (2, 4, 400), name)
    word = {4: np.uint32, 2: np.uint16}[x.dtype.itemsize]
    for bad in (np.nan, np.inf, np.full(1, -1, np.int64).astype(word).view(x.dtype)[0]):
        x[1, 2, 7] = bad
        there = [on_device(each, device) for each in (x, w, b)]
        got = np.isnan(plan_of(device, x.shape, 2, SMALL, name).run(GroupNormArgs(*there)).to_host())
        assert got[1, 2:].all()
        assert got.sum() == got[1, 2:].size


@every_type
def test_variance_zero_and_eps_zero_is_not_a_number(device: Device, name: str) -> None:
    x = np.ones((2, 2, 40), BY_NAME[name].numpy)
    x[1, :, ::2] = 2
    described = GroupNormDescriptor(x.shape, 1, element_type(name), 0.0)
    y = GroupNormPlan.select(device, described, wish("grid", config=SMALL)).run(GroupNormArgs(on_device(x, device)))
    assert np.isnan(y.to_host()[0]).all()
    np.testing.assert_allclose(y.to_host()[1].astype(np.float64), np.where(x[1] == 2, 1, -1), atol=4e-3)


@pytest.mark.parametrize(
    ("shape", "groups", "name", "config", "reason"),
    [
        ((1, 4, 1000), 1, "f64", SMALL, "not for f64"),
        ((1, 4, 1001), 1, "f32", SMALL, "vectors of 16 bytes do not end"),
        ((1, 33, 8), 1, "f32", SMALL, "more than 32 channels"),
        ((1 << 20, 1 << 11, 4), 1 << 11, "f32", SMALL, "groups are above"),
        ((1, 4, 1000), 1, "f32", GridConfig(0, 32, 1, 1), "1 to 160 blocks, not 0"),
        ((1, 4, 1000), 1, "f32", GridConfig(161, 32, 1, 1), "1 to 160 blocks, not 161"),
        ((1, 4, 1000), 1, "f32", GridConfig(3, 32, 0, 1), "1 to 3 groups later, not 0"),
        ((1, 4, 1000), 1, "f32", GridConfig(3, 32, 4, 1), "1 to 3 groups later, not 4"),
        ((1, 4, 1000), 1, "f32", GridConfig(3, 32, 1, 0), "1 to 132 teams, not 0"),
        ((1, 4, 1000), 1, "f32", GridConfig(3, 32, 1, 133), "1 to 132 teams, not 133"),
        ((1, 4, 1000), 1, "f32", GridConfig(3, 33, 1, 1), "multiple of 32 threads, up to 576, not 33"),
        ((1, 4, 1000), 1, "f32", GridConfig(3, 544, 3, 1), "multiple of 32 threads, up to 512, not 544"),
        ((1, 4, 1000), 1, "f32", GridConfig(3, 0, 1, 1), "multiple of 32 threads, up to 576, not 0"),
        ((1, 4, 1 << 18), 1, "f32", GridConfig(60, 512, 3, 1), "more than a block's memory"),
    ],
    ids=str,
)
def test_what_it_refuses(device: Device, shape: Shape, groups: int, name: str, config: GridConfig, reason: str) -> None:
    with pytest.raises(ptxrt.Unsupported, match=reason):
        plan_of(device, shape, groups, config, name)


@pytest.mark.parametrize(
    ("variant", "descriptor"), [(InGrid(), GroupNormDescriptor), (InGridBackward(), GroupNormBackwardDescriptor)]
)
def test_a_gpu_of_fewer_multiprocessors_is_refused(device: Device, variant: Any, descriptor: Any) -> None:
    """There some blocks would not be on the device, and all wait for those that have their slices too."""
    described, limits = descriptor((1, 128, 512, 512), 32), Limits.of(device.properties)
    config = GridConfig.heuristic(described)
    assert not isinstance(variant.schedule(described, config, limits), Refusal)
    assert "with as many multiprocessors" in str(variant.schedule(described, config, limits._replace(large=False)))


def test_channels_last_arrays_are_refused() -> None:
    described = GroupNormDescriptor((2, 4, 8), 2, strides=(32, 1, 4))
    refusal = SMALL.refusal(described)
    assert isinstance(refusal, Refusal)
    assert "contiguous" in str(refusal)


@pytest.mark.parametrize("name", FAMILY.dtypes)
@pytest.mark.parametrize("shape", [(1, 128, 512, 512), (1, 512, 512, 512), (2, 512, 256, 256), (1, 64, 9, 8)], ids=str)
def test_each_candidate_has_a_launch(device: Device, name: str, shape: Shape) -> None:
    described = GroupNormDescriptor(shape, 32, element_type(name))
    for config in GridConfig.candidates(described)[1:]:
        plan = GroupNormPlan.select(device, described, wish("grid", config=config))
        [launch] = plan.schedule.launches
        assert launch.refusal(Limits.of(device.properties)) is None
