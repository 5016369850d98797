"""group_norm_backward by blocks that have a part of one group after another: its values, who waits, what it refuses."""

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
from ptxrt.ops import GroupNormBackwardArgs, GroupNormBackwardDescriptor, GroupNormBackwardPlan, references
from ptxrt.ops._group_norm_grid import GridConfig
from ptxrt.ops._group_norm_grid_backward import FAMILY, InGridBackward
from ptxrt.sim import _launch

pytestmark = [pytest.mark.ptx, pytest.mark.partial_barriers]
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)

# Blocks, workers, lag, teams. A slice is whole eights of vectors, and up to a channel.
CASES = [
    # One block a group; a warp with all values, and with some; as many slices as channels.
    ((2, 3, 64), 3, GridConfig(1, 32, 1, 1)),
    ((1, 2, 992), 2, GridConfig(1, 64, 2, 1)),
    ((2, 4, 128), 2, GridConfig(2, 32, 1, 1)),
    # Blocks without values; warps without values.
    ((3, 2, 128), 1, GridConfig(5, 32, 1, 1)),
    ((2, 4, 128), 2, GridConfig(8, 96, 1, 1)),
    # Several turns. Slices of two channels, of a part of one, and up to the end of one; channels of one part less.
    ((1, 4, 1000), 2, GridConfig(3, 32, 1, 1)),
    ((2, 4, 1000), 2, GridConfig(13, 32, 2, 1)),
    ((2, 9, 132), 3, GridConfig(7, 32, 1, 1)),
    ((1, 40, 36), 1, GridConfig(45, 32, 1, 1)),
    ((1, 1, 4000), 1, GridConfig(160, 32, 1, 1)),  # as many blocks as lanes look for
    # More groups than slots, by each lag; fewer groups than it; two slots.
    *(((6, 4, 128), 2, GridConfig(4, 32, lag, 1)) for lag in (1, 2, 3)),
    ((1, 2, 96), 1, GridConfig(3, 32, 3, 1)),
    ((20, 1, 960), 1, GridConfig(1, 64, 1, 8)),
    # Teams that have as many groups, more, and none.
    ((5, 4, 128), 2, GridConfig(4, 32, 2, 2)),
    ((3, 6, 264), 3, GridConfig(3, 64, 1, 4)),
    ((1, 4, 128), 2, GridConfig(4, 32, 1, 4)),
]
SMALL = GridConfig(4, 32, 1, 1)


def plan_of(device: Device, shape: Shape, groups: int, config: GridConfig, name: str, eps: float = 1e-5) -> Any:
    problem = GroupNormBackwardDescriptor(shape, groups, element_type(name), eps)
    return GroupNormBackwardPlan.select(device, problem, wish("grid", config=config))


def drawn(rng: Rng, shape: Shape, name: str, mean: float = 0.0) -> tuple[Array, Array, Array]:
    """Return grad_out, x and weight."""
    go, x = ((rng.standard_normal(shape) + shift).astype(BY_NAME[name].numpy) for shift in (0.5, mean))
    return go, x, rng.standard_normal(shape[1]).astype(np.float32)


def check(
    device: Device, arrays: Any, groups: int, config: GridConfig, *, offset: int = 0, large_mean: bool = False
) -> list[Array]:
    """Hold to the reference what is written into poisoned, guarded outputs, and return it."""
    go, x, w = arrays
    name = element_type(x.dtype).name
    shapes = (x.shape, x.dtype), None if w is None else (x.shape[1:2], np.float32), (x.shape[1:2], np.float32)
    out = [None if each is None else Guarded(each[0], each[1], device, offset) for each in shapes]
    there = [on_device(each, device, offset) for each in arrays]
    plan = plan_of(device, x.shape, groups, config, name)
    plan.run(GroupNormBackwardArgs(*there, *(None if each is None else each.array for each in out)))
    results = []
    for ours, reference in zip(out, references.group_norm_backward(go, x, w, groups), strict=True):
        assert (ours is None) == (reference is None)
        if ours is not None:
            results.append(ours.host())
            limit = bar("group_norm", element_type(ours.dtype).name, reference, large_mean=large_mean)
            check_error("group_norm grid", device, results[-1], reference, limit, (x.shape, groups, config))
    return results


@pytest.mark.parametrize(("shape", "groups", "config"), CASES, ids=str)
@pytest.mark.sanitize
def test_values(device: Device, rng: Rng, shape: Shape, groups: int, config: GridConfig) -> None:
    check(device, drawn(rng, shape, "f32"), groups, config)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("config", [SMALL, GridConfig(25, 64, 3, 1), GridConfig(7, 32, 1, 3)], ids=str)
@pytest.mark.sanitize
def test_the_types_of_16_bits(device: Device, rng: Rng, name: str, config: GridConfig) -> None:
    check(device, drawn(rng, (2, 6, 536), name, 1.0), 2, config)


@every_type
def test_arrays_that_are_not_aligned_and_no_weight(device: Device, rng: Rng, name: str) -> None:
    go, x, _ = drawn(rng, (2, 4, 520), name)
    check(device, (go, x, None), 2, SMALL, offset=1)


@every_type
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_array_alone_may_be_unaligned(device: Device, rng: Rng, name: str, place: int) -> None:
    go, x, w = drawn(rng, (1, 2, 264), name)
    there = [on_device(each, device, int(place == i)) for i, each in enumerate((go, x, np.zeros_like(x)))]
    plan = plan_of(device, x.shape, 1, SMALL, name)
    got = plan.run(GroupNormBackwardArgs(there[0], there[1], on_device(w, device), there[2])).grad_input.to_host()
    want = references.group_norm_backward(go, x, w, 1)[0]
    check_error("group_norm grid", device, got, want, bar("group_norm", name, want), place)


@pytest.mark.parametrize(("name", "mean"), [("f32", 1e6), ("f16", 1e3)])
def test_a_large_offset_costs_no_accuracy(device: Device, rng: Rng, name: str, mean: float) -> None:
    check(device, drawn(rng, (2, 4, 520), name, mean), 2, SMALL, large_mean=True)


@pytest.mark.parametrize(("name", "of_x", "of_go"), [("f32", 3e37, 1e36), ("f16", 1e4, 1e4), ("bf16", 3e37, 1e36)])
def test_values_near_the_largest_do_not_overflow(
    device: Device, rng: Rng, name: str, of_x: float, of_go: float
) -> None:
    go, x, w = drawn(rng, (1, 2, 520), name)
    check(device, (go * go.dtype.type(of_go), x * x.dtype.type(of_x), w), 1, SMALL)


@pytest.mark.parametrize("deviation", [0, 0.5])
def test_one_value_far_from_all_others(device: Device, rng: Rng, deviation: float) -> None:
    """The first one, which sums are shifted by, and another one."""
    go, x, _ = drawn(rng, (2, 2, 2048), "f16")
    x[...] = 4.3 + deviation * rng.standard_normal(x.shape)
    x[0, 0, 0] = x[-1, 1, 1235] = 60000
    check(device, (go, x, None), 1, GridConfig(7, 32, 1, 1))


@every_type
def test_variance_zero_and_eps_zero_is_not_a_number(device: Device, name: str) -> None:
    """Of one group; another one beside it is what it is without it."""
    x = np.ones((2, 2, 128), BY_NAME[name].numpy)
    x[1, :, ::2] = 2
    there = on_device(x, device)
    plan = plan_of(device, x.shape, 1, SMALL, name, eps=0.0)
    got = plan.run(GroupNormBackwardArgs(there, there)).grad_input.to_host().astype(np.float64)
    assert np.isnan(got[0]).all()
    np.testing.assert_allclose(got[1], 0, atol=4e-3)


@every_type
@pytest.mark.parametrize("place", ["x", "grad_out"])
def test_the_gradient_may_be_in_place(device: Device, rng: Rng, name: str, place: str) -> None:
    go, x, w = drawn(rng, (5, 4, 328), name)
    there = {"x": on_device(x, device), "grad_out": on_device(go, device)}
    plan = plan_of(device, x.shape, 2, GridConfig(5, 32, 2, 1), name)
    got = plan.run(GroupNormBackwardArgs(there["grad_out"], there["x"], on_device(w, device), there[place]))
    for ours, want in zip(got, references.group_norm_backward(go, x, w, 2), strict=True):
        limit = bar("group_norm", element_type(ours.dtype).name, want)
        check_error("group_norm grid", device, ours.to_host(), want, limit, place)


@every_type
def test_one_bad_value_of_x_spoils_its_group_alone(device: Device, rng: Rng, name: str) -> None:
    go, x, w = drawn(rng, (3, 4, 136), name)
    x[1, 2, 77] = np.nan
    plan = plan_of(device, x.shape, 2, SMALL, name)
    got = plan.run(GroupNormBackwardArgs(*(on_device(each, device) for each in (go, x, w))))
    bad = np.isnan(got.grad_input.to_host())
    assert bad[1, 2:].all()
    assert bad.sum() == bad[1, 2:].size
    assert np.isnan(got.grad_weight.to_host()).tolist() == [False, False, True, True]
    assert not np.isnan(got.grad_bias.to_host()).any()


@every_type
def test_one_bad_value_of_grad_out_spoils_its_group_and_its_channel(device: Device, rng: Rng, name: str) -> None:
    go, x, w = drawn(rng, (3, 4, 136), name)
    go[1, 2, 77] = np.inf
    plan = plan_of(device, x.shape, 2, SMALL, name)
    got = plan.run(GroupNormBackwardArgs(*(on_device(each, device) for each in (go, x, w))))
    bad = ~np.isfinite(got.grad_input.to_host().astype(np.float64))
    assert bad[1, 2:].all()
    assert bad.sum() == bad[1, 2:].size
    for each in (got.grad_weight, got.grad_bias):
        assert np.isfinite(each.to_host()).tolist() == [True, True, False, True]


# Blocks that have not begun -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "groups", "config", "at_once"),
    [
        # One block has all slices; two, with more groups than its slots.
        ("f32", (2, 4, 328), 2, GridConfig(5, 32, 1, 1), 1),
        ("f32", (5, 4, 328), 2, GridConfig(6, 32, 2, 1), 2),
        ("f32", (1, 3, 136), 1, GridConfig(5, 32, 3, 1), 3),  # fewer groups than the lag
        ("f16", (3, 4, 328), 2, GridConfig(5, 32, 1, 1), 2),
        ("bf16", (2, 4, 328), 2, GridConfig(5, 32, 1, 1), 3),
        ("f32", (4, 4, 136), 2, GridConfig(4, 32, 1, 2), 3),  # teams, one of which begins with the second block
    ],
)
@pytest.mark.parametrize("place", ["elsewhere", "x", "grad_out"])
def test_slices_of_blocks_that_have_not_begun_are_taken_over(
    sim: Device, rng: Rng, monkeypatch: Patch, name: str, shape: Shape, groups: int, config: GridConfig, at_once: int,
    place: str,
) -> None:  # fmt: skip
    """A later block does not begin before all of the earlier ones have ended: to the bit what it is of all at once."""
    arrays = drawn(rng, shape, name, 2.0)
    want = check(sim, arrays, groups, config)
    if place != "elsewhere":  # a block that begins late asks for values which others have written, and leaves
        monkeypatch.setenv("PTXRT_SIM_CHECKS", "uninitialised")
    monkeypatch.setattr(_launch, "_CHUNK_LANES", at_once * (config.workers + 32 * (config.lag + 1)))
    go, x, w = (on_device(each, sim) for each in arrays)
    plan = plan_of(sim, shape, groups, config, name)
    got = plan.run(GroupNormBackwardArgs(go, x, w, {"x": x, "grad_out": go}.get(place)))
    assert [each.to_host().tobytes() for each in got] == [each.tobytes() for each in want]


@every_type
def test_taken_over_slices_of_arrays_that_are_not_aligned(sim: Device, rng: Rng, monkeypatch: Patch, name: str) -> None:
    monkeypatch.setattr(_launch, "_CHUNK_LANES", 2 * 96)
    go, x, _ = drawn(rng, (2, 4, 328), name)
    check(sim, (go, x, None), 2, GridConfig(5, 32, 1, 1), offset=1)


# Who it is for --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "name", "config", "reason"),
    [
        ((1, 4, 128), "f64", SMALL, "is not for f64"),
        (((1 << 16) - 1, 65540, 32), "f32", SMALL, "2147581950 groups are above 2147483647"),
        ((1, 4, 130), "f32", SMALL, "do not end where channels"),
        ((1, 4, 128), "f32", GridConfig(0, 32, 1, 1), "1 to 160 blocks, not 0"),
        ((1, 4, 128), "f32", GridConfig(161, 32, 1, 1), "1 to 160 blocks, not 161"),
        ((1, 4, 128), "f32", GridConfig(4, 32, 0, 1), "1 to 3 groups later, not 0"),
        ((1, 4, 128), "f32", GridConfig(4, 32, 4, 1), "1 to 3 groups later, not 4"),
        ((1, 4, 128), "f32", GridConfig(4, 32, 1, 0), "1 to 132 teams, not 0"),
        ((1, 4, 128), "f32", GridConfig(4, 32, 1, 133), "1 to 132 teams, not 133"),
        ((1, 4, 128), "f32", GridConfig(4, 48, 1, 1), "a multiple of 32 threads, up to 576, not 48"),
        ((1, 4, 128), "f32", GridConfig(4, 544, 3, 1), "a multiple of 32 threads, up to 512, not 544"),
        ((1, 4, 128), "f32", GridConfig(1, 32, 1, 1), "a slice of 64 vectors is more than a channel of 128 values"),
        ((1, 4, 1 << 16), "f32", GridConfig(2, 32, 1, 1), "2 slices of a group of 131072 values are more than"),
    ],
    ids=str,
)
def test_what_it_cannot_do_it_refuses(device: Device, shape: Shape, name: str, config: GridConfig, reason: str) -> None:
    with pytest.raises(ptxrt.Unsupported, match=reason):
        plan_of(device, shape, shape[1] // 2, config, name)


def test_channels_last_is_refused(device: Device) -> None:
    problem = GroupNormBackwardDescriptor((1, 4, 128), 2, BY_NAME["f32"], strides=(512, 1, 4))
    with pytest.raises(ptxrt.Unsupported, match="is for contiguous arrays"):
        GroupNormBackwardPlan.select(device, problem, wish("grid", config=SMALL))


@pytest.mark.parametrize(
    ("shape", "name", "suits"),
    [
        ((1, 128, 512, 512), "f32", True),
        ((1, 128, 512, 512), "f16", True),
        ((1, 128, 512, 512), "f64", False),
        ((1, 128, 256, 256), "f32", False),  # small groups
        ((1, 32, 1024, 1024), "f32", True),
        ((1, 128, 1024, 1024), "f32", False),  # a block has no room for three slices
        ((1, 2048, 128, 128), "f32", True),
        ((1, 8192, 64, 64), "f32", False),  # nor has a channel as many values
    ],
    ids=str,
)
def test_whom_it_suits(shape: Shape, name: str, suits: bool) -> None:
    assert InGridBackward().suits(GroupNormBackwardDescriptor(shape, 32, BY_NAME[name])) is suits


@pytest.mark.parametrize(
    ("shape", "name", "config", "slots"),
    [
        ((1, 128, 512, 512), "f32", GridConfig(132, 384, 1, 1), 3),
        ((2, 64, 512, 512), "f32", GridConfig(66, 384, 1, 2), 3),
        ((1, 128, 512, 512), "f16", GridConfig(66, 384, 1, 2), 3),
        ((2, 64, 512, 512), "f16", GridConfig(66, 384, 3, 2), 6),
    ],
    ids=str,
)
def test_slices_leave_room_for_three_groups(shape: Shape, name: str, config: GridConfig, slots: int) -> None:
    problem = GroupNormBackwardDescriptor(shape, 32, BY_NAME[name])
    assert GridConfig.heuristic(problem) == config
    assert config.slots(problem) == slots
    for each in GridConfig.candidates(problem):
        assert each.refusal(problem) is None
        assert each.blocks * each.run(problem) * 16 >= problem.group * problem.dtype.size
        on_each = -(-each.blocks * each.teams // 132)
        assert on_each * (each.slots(problem) * each.slot(problem) + (6 << 10)) <= 216 << 10
