"""group_norm and its backward by what reads a group once, `few` in HIP too: their values, and what they refuse."""

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
    GroupNormBackwardArgs,
    GroupNormBackwardDescriptor,
    GroupNormBackwardPlan,
    GroupNormDescriptor,
    GroupNormPlan,
    _group_norm_few,
    references,
)
from ptxrt.ops._group_norm_cluster import FAMILY, ClusterConfig
from ptxrt.ops._group_norm_ring import RingConfig
from ptxrt.ops.framework import Config, Limits, Refusal, parameter_type

pytestmark = pytest.mark.ptx
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)
both_ways = pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])


class FewInHip(Config):
    """Stands for `few` in HIP."""


VARIANTS = {ClusterConfig: "cluster", RingConfig: "ring", Config: "few", FewInHip: "hip/few"}
SMALL, RING, FEW, IN_HIP = ClusterConfig(2, 32), RingConfig(8, 32, 2), Config(), FewInHip()
of_each = pytest.mark.parametrize("config", [SMALL, RING, FEW, IN_HIP], ids=str)
of_both = pytest.mark.parametrize("config", [FEW, IN_HIP], ids=str)
OF_FEW: list[tuple[Shape, int]] = [
    # A vector a thread: one warp, and images in a block; warps that are no power of two, and all of them.
    ((1, 1, 4), 1),
    ((3, 6, 8), 2),
    ((5, 4, 100), 2),
    ((2, 4, 520), 2),
    ((32, 3, 40), 3),
    ((1, 2, 2048), 1),
]
CASES = [
    # One block: fewer vectors than lanes; a run that ends within a channel; channels in one run, and in more.
    ((1, 1, 4), 1, ClusterConfig(1, 32)),
    ((3, 6, 8), 2, ClusterConfig(1, 64)),
    ((2, 4, 1024), 2, ClusterConfig(1, 64)),
    ((1, 2, 384), 1, ClusterConfig(1, 96)),
    ((1, 3, 516), 1, ClusterConfig(1, 32)),  # in registers, behind them, and half a row
    # Clusters: blocks without values; a channel in two blocks; groups of several images.
    ((2, 3, 40), 1, ClusterConfig(8, 32)),
    ((2, 6, 260), 2, SMALL),
    ((1, 2, 2304), 1, ClusterConfig(16, 32)),
    ((3, 4, 300), 4, ClusterConfig(4, 64)),
    ((1, 5, 1028), 1, ClusterConfig(4, 32)),
    # Rings: fewer vectors than lanes; blocks without values; a channel in two blocks, and channels in one run.
    ((1, 1, 4), 1, RingConfig(8, 32, 7)),
    ((2, 3, 40), 1, RingConfig(8, 32, 7)),
    ((3, 12, 260), 2, RingConfig(8, 32, 7)),
    ((2, 5, 1028), 1, RingConfig(16, 32, 2)),
    # As many slots as items, and half an item; one slot more. Of fewer, values are read again: some, nearly all.
    ((2, 2, 2560), 1, RingConfig(8, 32, 3)),
    ((1, 7, 1100), 1, RingConfig(8, 32, 5)),
    ((2, 3, 4100), 1, RingConfig(8, 32, 5)),
    ((1, 10, 1100), 1, RingConfig(8, 32, 2)),
    ((1, 9, 1024), 1, RingConfig(8, 32, 1)),
    ((1, 3, 4100), 1, RingConfig(8, 64, 2)),
    *((*case, config) for config in (FEW, IN_HIP) for case in OF_FEW),
]


def wanted(config: Config) -> ptxrt.PlanPreference:
    return wish(VARIANTS[type(config)], config=None if config == IN_HIP else config)


def plan_of(device: Device, shape: Shape, groups: int, config: Config, name: str, backward: bool) -> Any:
    if backward:
        described = GroupNormBackwardDescriptor(shape, groups, element_type(name))
        return GroupNormBackwardPlan.select(device, described, wanted(config))
    return GroupNormPlan.select(device, GroupNormDescriptor(shape, groups, element_type(name)), wanted(config))


def problem(rng: Rng, shape: Shape, name: str, mean: float = 0.0) -> tuple[Array, ...]:
    """Return x, grad_out, weight and bias."""
    kind, vector = BY_NAME[name].numpy, parameter_type(BY_NAME[name]).numpy
    x, go = ((rng.standard_normal(shape) + shift).astype(kind) for shift in (mean, 0.5))
    return x, go, *(rng.standard_normal(shape[1]).astype(vector) for _ in range(2))


def check(
    device: Device, arrays: Any, groups: int, config: Config, backward: bool, *, offset: int = 0,
    large_mean: bool = False,
) -> None:  # fmt: skip
    """Hold to the reference what a cluster writes into poisoned, guarded outputs."""
    x, go, w, b = arrays
    name = element_type(x.dtype).name
    plan = plan_of(device, x.shape, groups, config, name, backward)
    parameters = ((x.shape[1],), parameter_type(BY_NAME[name]).numpy)
    shapes = [(x.shape, x.dtype), None if w is None else parameters, parameters] if backward else [(x.shape, x.dtype)]
    out = [None if each is None else Guarded(each[0], each[1], device, offset) for each in shapes]
    given = [None if each is None else each.array for each in out]
    x_there, go_there, w_there, b_there = (on_device(each, device, offset) for each in arrays)
    if backward:
        plan.run(GroupNormBackwardArgs(go_there, x_there, w_there, *given))
        want: Any = references.group_norm_backward(go, x, w, groups)
    else:
        plan.run(GroupNormArgs(x_there, w_there, b_there, *given))
        want = (references.group_norm(x, w, b, groups),)
    for ours, reference in zip(out, want, strict=True):
        assert (ours is None) == (reference is None)
        if ours is not None:
            got = ours.host()
            limit = bar("group_norm", element_type(got.dtype).name, reference, large_mean=large_mean)
            check_error("group_norm cluster", device, got, reference, limit, (x.shape, groups, config))


@both_ways
@pytest.mark.parametrize(("shape", "groups", "config"), CASES, ids=str)
@pytest.mark.sanitize
def test_values(device: Device, rng: Rng, shape: Shape, groups: int, config: Config, backward: bool) -> None:
    check(device, problem(rng, shape, "f32"), groups, config, backward)


@both_ways
@pytest.mark.parametrize("name", [name for name in FAMILY.dtypes if name != "f32"])
@pytest.mark.parametrize("config", [ClusterConfig(1, 32), SMALL, ClusterConfig(16, 32), RING, FEW, IN_HIP], ids=str)
@pytest.mark.sanitize
def test_the_types_beside_f32(device: Device, rng: Rng, name: str, config: Config, backward: bool) -> None:
    shape = {FEW: (2, 6, 40), IN_HIP: (2, 6, 40), RING: (2, 6, 2184)}.get(config, (2, 6, 280))
    check(device, problem(rng, shape, name), 2, config, backward)


@both_ways
@every_type
@of_each
def test_arrays_that_are_not_aligned(device: Device, rng: Rng, config: Config, name: str, backward: bool) -> None:
    x, go, _, _ = problem(rng, (1, 4, 520), name)
    check(device, (x, go, None, None), 4, config, backward, offset=1)


@both_ways
@pytest.mark.parametrize(("name", "mean"), [("f32", 1e6), ("f16", 1e3), ("f64", 1e4)])
@of_each
def test_a_large_offset_costs_no_accuracy(
    device: Device, rng: Rng, config: Config, name: str, mean: float, backward: bool
) -> None:
    check(device, problem(rng, (1, 4, 520), name, mean), 4, config, backward, large_mean=True)


@both_ways
@pytest.mark.parametrize(("name", "of_x", "of_go"), [("f32", 3e37, 1e36), ("f16", 1e4, 1e4), ("bf16", 3e37, 1e36)])
@of_each
def test_values_near_the_largest_do_not_overflow(
    device: Device, rng: Rng, config: Config, name: str, of_x: float, of_go: float, backward: bool
) -> None:
    x, go, w, _ = problem(rng, (1, 2, 520), name)
    check(device, (x * x.dtype.type(of_x), go * go.dtype.type(of_go), w, None), 1, config, backward)


@both_ways
@pytest.mark.parametrize("deviation", [0, 0.5])
@of_each
def test_one_value_far_from_all_others(
    device: Device, rng: Rng, config: Config, deviation: float, backward: bool
) -> None:
    """The first one, which sums are shifted by, and another one; of as many values as show in the y of f16."""
    x, go, *_ = problem(rng, (2, 2, 2048) if backward else (2, 2, 4096), "f16")
    if config in (FEW, IN_HIP) and backward:
        x, go = x[:1], go[:1]
    x[...] = 4.3 + deviation * rng.standard_normal(x.shape)
    x[0, 0, 0] = x[-1, 1, 1235] = 60000
    check(device, (x, go, None, None), 1, RingConfig(8, 64, 3) if config == RING else config, backward)


@both_ways
@every_type
@of_each
def test_variance_zero_and_eps_zero_is_not_a_number(device: Device, config: Config, name: str, backward: bool) -> None:
    """Of one group; another one beside it is what it is without it."""
    kind = element_type(name)
    x = np.ones((2, 2, 40), kind.numpy)
    x[1, :, ::2] = 2
    there = on_device(x, device)
    if backward:
        described = GroupNormBackwardDescriptor(x.shape, 1, kind, 0.0)
        plan: Any = GroupNormBackwardPlan.select(device, described, wanted(config))
        y = plan.run(GroupNormBackwardArgs(there, there)).grad_input
    else:
        plan = GroupNormPlan.select(device, GroupNormDescriptor(x.shape, 1, kind, 0.0), wanted(config))
        y = plan.run(GroupNormArgs(there))
    assert np.isnan(y.to_host()[0]).all()
    want = np.zeros_like(x[1]) if backward else np.where(x[1] == 2, 1, -1)
    np.testing.assert_allclose(y.to_host()[1].astype(np.float64), want, atol=4e-3)


@both_ways
@every_type
@pytest.mark.parametrize("shape", [(2, 6, 40), (3, 4, 104), (1, 8, 16)], ids=str)
def test_few_values_give_the_bits_of_the_other_language(
    device: Device, rng: Rng, name: str, shape: Shape, backward: bool
) -> None:
    x, go, w, b = (on_device(each, device) for each in problem(rng, shape, name, 3.0))
    arrays: Any = GroupNormBackwardArgs(go, x, w) if backward else GroupNormArgs(x, w, b)
    results = [plan_of(device, shape, 2, config, name, backward).run(arrays) for config in (FEW, IN_HIP)]
    one, other = ([each.to_host().tobytes() for each in (got if backward else (got,))] for got in results)
    assert one == other


@every_type
@pytest.mark.parametrize("shape", [(5, 6, 8), (4, 4, 24), (9, 2, 64)], ids=str)
@pytest.mark.sanitize
def test_several_images_of_a_block_have_the_bits_of_one(
    device: Device, rng: Rng, name: str, shape: Shape, monkeypatch: Patch
) -> None:
    """Of more groups than blocks run at a time: warps without an image, one whose values are bad, at any address."""
    x, _, w, b = problem(rng, shape, name, 3.0)
    x[1, 0, 0] = np.nan
    results = []
    for most, offset in ((1 << 30, 0), (0, 0), (0, 1)):
        monkeypatch.setattr(_group_norm_few, "_AT_ONCE", most)
        plan = plan_of(device, shape, 2, FEW, name, backward=False)
        [launch] = plan.schedule.launches
        assert launch.kernel.entry.startswith("group_norm_few_kernel" if most else "group_norm_few_images_kernel")
        out = Guarded(shape, x.dtype, device, offset)
        there = [on_device(each, device, offset) for each in (x, w, b)]
        plan.run(GroupNormArgs(there[0], there[1], there[2], out.array))
        got = out.host()
        results.append((np.isnan(got).tobytes(), np.where(np.isnan(got), 0, got).tobytes()))  # a NaN's bits are free
    assert results[1:] == results[:1] * 2
    [launch] = plan_of(device, (3, *shape[1:]), 2, FEW, name, backward=False).schedule.launches
    assert launch.kernel.entry.startswith("group_norm_few_kernel")  # of fewer images some warps would have none


@both_ways
@of_both
@pytest.mark.parametrize("name", FAMILY.dtypes)
def test_few_values_are_as_many_as_a_block_has_threads(
    device: Device, name: str, config: Config, backward: bool
) -> None:
    threads = 512 if name == "f64" or (backward and name != "f32") else 1024
    most = threads * 16 // BY_NAME[name].size
    plan_of(device, (1, 2, most // 2), 1, config, name, backward)
    with pytest.raises(ptxrt.Unsupported, match="are more than"):
        plan_of(device, (1, 3, most // 2), 1, config, name, backward)
    if backward:
        with pytest.raises(ptxrt.Unsupported, match="are more than"):
            plan_of(device, (2, 2, most // 2), 1, config, name, backward)


def test_few_values_of_more_groups_than_a_number_has_are_refused(device: Device) -> None:
    plan_of(device, ((1 << 16) - 1, 1 << 16, 4), 1 << 16, FEW, "f32", backward=False)
    with pytest.raises(ptxrt.Unsupported, match="4295032830 groups of all images are more than 4294967295"):
        plan_of(device, ((1 << 16) - 1, (1 << 16) + 2, 4), (1 << 16) + 2, FEW, "f32", backward=False)


@both_ways
def test_a_group_that_no_cluster_holds_is_refused(device: Device, backward: bool) -> None:
    for config in (SMALL, ClusterConfig(8, 1024)):
        with pytest.raises(ptxrt.Unsupported, match="cannot hold"):
            plan_of(device, (1, 4, 1 << 20), 1, config, "f32", backward)


@of_each
def test_the_result_may_be_in_place(device: Device, rng: Rng, config: Config) -> None:
    x, _, w, b = problem(rng, (2, 4, 700), "f32")
    there, w_there, b_there = (on_device(each, device) for each in (x, w, b))
    plan_of(device, x.shape, 2, config, "f32", False).run(GroupNormArgs(there, w_there, b_there, there))
    want = references.group_norm(x, w, b, 2)
    check_error("group_norm cluster", device, there.to_host(), want, bar("group_norm", "f32"), config)


@both_ways
@pytest.mark.parametrize("place", [0, 1, 2])
@of_each
def test_one_array_alone_may_be_unaligned(device: Device, rng: Rng, config: Config, place: int, backward: bool) -> None:
    x, go, w, b = problem(rng, (1, 2, 160), "f32")
    x_there, go_there, out = (
        on_device(each, device, int(place == i)) for i, each in enumerate((x, go, np.zeros_like(x)))
    )
    w_there, b_there = on_device(w, device), on_device(b, device)
    plan = plan_of(device, x.shape, 1, config, "f32", backward)
    if backward:
        plan.run(GroupNormBackwardArgs(go_there, x_there, w_there, out))
        want = references.group_norm_backward(go, x, w, 1)[0]
    else:
        plan.run(GroupNormArgs(x_there, w_there, b_there, out))
        want = references.group_norm(x, w, b, 1)
    check_error("group_norm cluster", device, out.to_host(), want, bar("group_norm", "f32"), place)


@pytest.mark.parametrize("place", ["x", "grad_out"])
@of_each
def test_the_gradient_may_be_in_place(device: Device, rng: Rng, config: Config, place: str) -> None:
    x, go, w, _ = problem(rng, (2, 4, 300), "f32")
    there = {"x": on_device(x, device), "grad_out": on_device(go, device)}
    plan = plan_of(device, x.shape, 2, config, "f32", True)
    got = plan.run(GroupNormBackwardArgs(there["grad_out"], there["x"], on_device(w, device), there[place]))
    want = references.group_norm_backward(go, x, w, 2)
    for ours, reference in zip(got, want, strict=True):
        check_error("group_norm cluster", device, ours.to_host(), reference, bar("group_norm", "f32"), place)


@both_ways
@every_type
@of_each
def test_one_bad_value_spoils_its_group_alone(
    device: Device, rng: Rng, config: Config, name: str, backward: bool
) -> None:
    x, go, w, b = problem(rng, (2, 4, 80), name)
    x[1, 2, 7] = np.nan
    plan = plan_of(device, x.shape, 2, config, name, backward)
    there = [on_device(each, device) for each in ((go, x, w) if backward else (x, w, b))]
    got = plan.run(GroupNormBackwardArgs(*there) if backward else GroupNormArgs(*there))
    bad = np.isnan((got.grad_input if backward else got).to_host())
    assert bad[1, 2:].all()
    assert bad.sum() == bad[1, 2:].size


@pytest.mark.parametrize(
    ("shape", "config", "reason"),
    [
        ((1, 4, 30), SMALL, "do not end where channels"),
        ((1, 4, 32), ClusterConfig(3, 32), "no clusters are of 3"),
        ((1, 4, 32), ClusterConfig(2, 48), "full warps"),
        ((1, 4, 32), ClusterConfig(2, 0), "full warps"),
        ((1, 4, 32), ClusterConfig(2, 2048), "full warps"),
        ((1, 4, 30), RING, "do not end where channels"),
        ((1, 4, 32), RingConfig(3, 32, 2), "no clusters are of 3"),
        ((1, 4, 32), RingConfig(8, 48, 2), "full warps"),
        ((1, 4, 32), RingConfig(8, 0, 2), "full warps"),
        ((1, 4, 32), RingConfig(8, 2048, 2), "full warps"),
        ((1, 4, 32), RingConfig(8, 32, 0), "1 to 7 slots"),
        ((1, 4, 32), RingConfig(8, 32, 8), "1 to 7 slots"),
        ((1, 4, 1 << 21), RING, "slots a thread"),
        ((1, 4, 30), FEW, "do not end where channels"),
    ],
)
@both_ways
def test_what_it_cannot_do_it_refuses(
    device: Device, shape: Shape, config: Config, reason: str, backward: bool
) -> None:
    with pytest.raises(ptxrt.Unsupported, match=reason):
        plan_of(device, shape, 2, config, "f32", backward)


@both_ways
@pytest.mark.parametrize("config", [ClusterConfig(16, 32), RingConfig(16, 32, 7)], ids=str)
def test_a_device_without_room_for_large_clusters_refuses_them(device: Device, config: Config, backward: bool) -> None:
    plan = plan_of(device, (1, 4, 32), 2, config, "f32", backward)
    limits = Limits.of(device.properties)
    refusal = plan.variant.schedule(plan.descriptor, config, limits._replace(max_cluster=15))
    assert isinstance(refusal, Refusal)
    assert "no room for clusters of 16 blocks" in refusal.reason


def test_threads_of_f64_have_more_registers(device: Device) -> None:
    with pytest.raises(ptxrt.Unsupported, match="full warps"):
        plan_of(device, (1, 4, 32), 2, ClusterConfig(1, 1024), "f64", False)
    with pytest.raises(ptxrt.Unsupported, match="full warps"):
        plan_of(device, (1, 4, 32), 2, RingConfig(16, 1024, 7), "f64", False)


@both_ways
@pytest.mark.parametrize("shape", [(8, 320, 64, 64), (64, 64, 56, 56), (2, 1280, 16, 16)], ids=str)
def test_every_config_covers_a_group(shape: Shape, backward: bool) -> None:
    described = (GroupNormBackwardDescriptor if backward else GroupNormDescriptor)(shape, 32)
    for config in {*ClusterConfig.candidates(described), ClusterConfig.heuristic(described)}:
        assert config.run(described) * config.size * config.threads // 32 * 4 >= described.group
        assert config.shared_bytes(described) <= 200 << 10


@pytest.mark.parametrize(
    ("plan", "shape", "best"),
    [
        (GroupNormPlan, (8, 320, 64, 64), ("cluster", ClusterConfig(2, 512))),
        (GroupNormPlan, (2, 64, 512, 512), ("cluster", ClusterConfig(16, 512))),
        (GroupNormPlan, (1, 128, 512, 512), ("ring", RingConfig(16, 512, 7))),
        (GroupNormBackwardPlan, (4, 32, 512, 512), ("cluster", ClusterConfig(16, 512))),
    ],
    ids=str,
)
def test_who_serves_float64(sim: Device, plan: Any, shape: Shape, best: tuple[str, Config]) -> None:
    chosen = plan.select(sim, plan.descriptor_type(shape, 32, BY_NAME["f64"]), wish(language="ptx"))
    assert (chosen.variant.name, chosen.config) == best


def test_float64_backward_of_large_groups_is_not_for_a_ring(sim: Device) -> None:
    problem = GroupNormBackwardDescriptor((1, 128, 512, 512), 32, BY_NAME["f64"])
    assert GroupNormBackwardPlan.select(sim, problem, wish(language="ptx")).variant.name == "split"


@pytest.mark.parametrize(
    ("shape", "groups", "name", "forward", "backward"),
    [
        # Of 64 groups two large blocks each have a multiprocessor.
        ((2, 256, 100, 100), 32, "f32", (2, 1024), (8, 256)),
        ((64, 64, 32, 32), 1, "f16", (2, 1024), (2, 1024)),
        ((4, 96, 64, 64), 16, "f32", (4, 256), (4, 256)),  # too small for that
        ((8, 64, 128, 128), 8, "f32", (8, 256), (16, 256)),
        ((8, 32, 200, 200), 8, "f32", (16, 256), (16, 512)),
        ((8, 64, 128, 128), 8, "f16", (2, 1024), (8, 256)),
        # Of more the fewest threads whose registers are not too full of both tensors.
        ((32, 512, 28, 28), 32, "f32", (1, 256), (2, 256)),
        ((32, 256, 56, 56), 32, "f32", (1, 512), (4, 256)),
        ((8, 128, 100, 152), 32, "f16", (1, 512), (4, 256)),
        ((8, 320, 64, 64), 32, "f64", (2, 512), (8, 256)),
    ],
    ids=str,
)
def test_clusters_are_as_large_as_was_measured(
    shape: Shape, groups: int, name: str, forward: Any, backward: Any
) -> None:
    found = [
        ClusterConfig.heuristic(descriptor(shape, groups, BY_NAME[name]))
        for descriptor in (GroupNormDescriptor, GroupNormBackwardDescriptor)
    ]
    assert [(config.size, config.threads) for config in found] == [forward, backward]


def test_a_backward_in_hip_of_a_few_large_groups_has_tickets(sim: Device) -> None:
    def chosen(shape: Shape, groups: int) -> str:
        described = GroupNormBackwardDescriptor(shape, groups)
        return str(GroupNormBackwardPlan.select(sim, described, wish(language="hip")).variant.name)

    assert chosen((64, 64, 32, 32), 1) == chosen((2, 640, 32, 32), 32) == chosen((8, 320, 64, 64), 32) == "tickets"
    assert chosen((64, 64, 22, 22), 1) == chosen((32, 512, 28, 28), 32) == "baseline"
