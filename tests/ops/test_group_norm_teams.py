"""group_norm with a group's values in the registers of a team of threads."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import EVERYTHING, NVIDIA_GPU, Rng, Shape, refused
from op_testing import Guarded, check_error, on_device, wish
from tolerances import bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import GroupNormArgs, GroupNormDescriptor, GroupNormPlan, references
from ptxrt.ops._group_norm_teams import FAMILY, TeamConfig
from ptxrt.ops.framework import parameter_type
from ptxrt.runtime.layout import channels_last

pytestmark = pytest.mark.ptx
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)

# Shape, groups and threads of a team, of f32.
CASES: list[tuple[Shape, int, int]] = [
    # A vector: a thread a group, and a rest of groups in the last warp, in a warp of its own, in the last block.
    ((1, 4), 1, 1),
    ((5, 12), 3, 1),
    ((9, 32, 1), 8, 1),
    ((3, 200, 1), 50, 1),
    # Threads of a team with and without values, and teams that fill their warps or not.
    ((1, 12), 1, 2),
    ((7, 24), 2, 2),
    ((3, 36, 1), 3, 4),
    ((5, 20, 5), 1, 8),
    ((33, 16, 3), 4, 4),
    ((3, 16, 49), 8, 16),
    ((9, 28, 1), 1, 8),
    ((2, 32, 7), 2, 16),
    ((3, 64, 7), 4, 32),
    ((3, 16, 14, 14), 8, 32),
    ((5, 8, 15), 2, 32),
    # Whole warps: two, and such as are no power of two; threads without a value; all of a block's.
    ((2, 16, 49), 2, 64),
    ((1, 44, 9), 1, 96),
    ((1, 44, 9), 1, 128),
    ((1, 16, 7, 7), 1, 224),
    ((1, 300, 7), 1, 352),
    ((2, 24, 129), 1, 512),
    ((1, 16, 14, 14), 1, 512),
    # Each number of slots, with a rest in the last one and without.
    *(((2, 4 * slots, 64 - rest), 2, 32) for slots, rest in product(range(1, 9), (0, 2))),
    # Vectors within a channel, of two, of four and of two whole ones, and channels as long as a vector.
    ((2, 8, 1), 2, 1),
    ((2, 24, 2), 2, 2),
    ((2, 24, 3), 2, 2),
    ((2, 24, 4), 2, 4),
    ((2, 24, 5), 2, 4),
    # No whole vectors: each text, with threads that have fewer values, or none, and with all.
    ((1, 1, 1), 1, 1),
    ((3, 6), 3, 1),
    ((40, 3, 1), 1, 1),
    ((3, 6, 7, 7), 3, 32),
    ((3, 6, 7, 7), 3, 64),
    ((3, 6, 7, 7), 3, 96),
    ((5, 3, 7), 1, 2),
    ((5, 3, 7), 1, 4),
    ((5, 3, 7), 1, 8),
    ((5, 3, 7), 1, 32),
    ((2, 1, 127), 1, 16),
    ((2, 1, 129), 1, 16),
    ((2, 2, 255), 2, 16),
    ((2, 2, 257), 2, 16),
    ((2, 2, 511), 2, 16),
    ((1, 7, 197), 1, 128),
]

ORDINARY: list[tuple[Shape, int]] = [
    ((65536, 256), 8), ((64, 512, 7, 7), 32), ((32, 512, 14, 14), 32), ((16, 512, 197), 32), ((4096, 128, 5), 8),
]  # fmt: skip


def problem(rng: Rng, shape: Shape, name: str = "f32", mean: float = 0.0, scale: float = 1.0) -> tuple[Any, ...]:
    """Return x, weight and bias."""
    x = (rng.standard_normal(shape) * scale + mean).astype(BY_NAME[name].numpy)
    return x, *(rng.standard_normal(shape[1]).astype(np.float32) for _ in range(2))


def plan_of(
    device: Device,
    shape: Shape,
    groups: int,
    name: str,
    eps: float,
    lanes: int = 0,
    variant: str = "teams",
    **more: Any,
) -> Any:
    described = GroupNormDescriptor(shape, groups, BY_NAME[name], eps, **more)
    return GroupNormPlan.select(device, described, wish(variant, config=TeamConfig(lanes) if lanes else None))


def run(
    device: Device, x: Any, w: Any, b: Any, groups: int, lanes: int = 0, eps: float = 1e-5, offset: int = 0,
    of_weights: int = 0, variant: str = "teams",
) -> Any:  # fmt: skip
    """Return what is written into poisoned, guarded memory; `offset` and `of_weights`: elements off a round address."""
    plan = plan_of(device, x.shape, groups, element_type(x.dtype).name, eps, lanes, variant)
    out = Guarded(x.shape, x.dtype, device, offset)
    weights = [on_device(a, device, of_weights) for a in (w, b)]
    plan.run(GroupNormArgs(on_device(x, device, offset), weights[0], weights[1], out.array))
    return out.host()


def check(device: Device, given: Any, groups: int, large_mean: bool = False, eps: float = 1e-5, **how: Any) -> None:
    x, w, b = given
    want = references.group_norm(x, w, b, groups, eps)
    got = run(device, x, w, b, groups, eps=eps, **how)
    limit = bar("group_norm", element_type(got.dtype).name, want, large_mean=large_mean)
    check_error("group_norm teams", device, got, want, limit, (got.shape, groups, how))


@pytest.mark.parametrize(("shape", "groups", "lanes"), CASES, ids=str)
@pytest.mark.sanitize
def test_values(device: Device, rng: Rng, shape: Shape, groups: int, lanes: int) -> None:
    check(device, problem(rng, shape), groups, lanes=lanes)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(("shape", "groups", "lanes"), [
    ((5, 24), 3, 1),  # the same of vectors of 8
    ((5, 48, 2), 3, 2),
    ((3, 48, 3), 3, 4),
    ((3, 48, 5), 3, 8),
    ((3, 48, 7), 2, 16),
    ((3, 48, 8), 3, 8),
    ((2, 32, 9), 2, 16),
    ((2, 16, 49), 2, 32),
    ((2, 32, 49), 2, 64),
    *(((2, slots, 256 - rest), 1, 32) for slots, rest in product(range(1, 5), (0, 8))),
    ((1, 3, 5), 1, 4),
    ((3, 6, 7, 7), 3, 32),
    ((2, 4, 49), 2, 8),
    ((2, 2, 255), 2, 16),
    ((2, 2, 511), 2, 16),
], ids=str)  # fmt: skip
@pytest.mark.sanitize
def test_values_of_16_bits(device: Device, rng: Rng, name: str, shape: Shape, groups: int, lanes: int) -> None:
    check(device, problem(rng, shape, name), groups, lanes=lanes)


@every_type
def test_in_hip_the_bits_are_those_of_ptx(device: Device, rng: Rng, name: str) -> None:
    """Each text, of 16 bits some; each way to ask for weights; groups taken twice; arrays that lie anywhere."""
    vector = 16 // BY_NAME[name].size
    cases: list[tuple[Shape, int, int]] = [
        *(((3, 2 * vector, 8 * slots - 1), 2, 8) for slots in range(1, 32 // vector + 1)),
        *(((3, 2, 8 * slots - 1), 2, 8) for slots in (1, 4, 8, 16, 32)),
        ((37, 12 * vector), 4, 4),
        ((9, 2 * vector, 31), 2, 32),
        ((3, 2 * vector, 300), 2, 512),
        ((5, 6 * vector, 2), 2, 4),
        ((3, 2 * vector, 49), 2, 96),
        ((3, 2 * vector, 49), 2, 64),
        ((3, 2, 129), 2, 64),
    ]
    for shape, groups, lanes in cases if EVERYTHING or NVIDIA_GPU else cases[:: 2 if name == "f32" else 5]:
        x, w, b = problem(rng, shape, name, 0.5)
        if name != "f16":
            x[0, : shape[1] // groups] *= x.dtype.type(1e30)
            x[1, : shape[1] // groups] *= x.dtype.type(1e-30)
        x[-1] += 1e6 if name == "f32" else 0
        for bias, how in ((b, {}), (None, {"offset": 1}), (b, {"of_weights": 1})):
            got, want = (run(device, x, w, bias, groups, lanes, 0.0, variant=v, **how) for v in ("hip/teams", "teams"))
            assert got.tobytes() == want.tobytes(), (shape, lanes, how)


@every_type
@pytest.mark.parametrize("shape", [(3, 16), (3, 16, 3), (3, 48, 5), (2, 16, 49), (3, 6, 7)], ids=str)
@pytest.mark.parametrize("values", [4, 16])
@pytest.mark.sanitize
def test_no_bit_depends_on_where_the_arrays_lie(device: Device, rng: Rng, name: str, shape: Shape, values: int) -> None:
    """Nor does a null pointer differ from ones, or zeros."""
    x, w, b = problem(rng, shape, name)
    lanes = TeamConfig._of(GroupNormDescriptor(shape, 2, BY_NAME[name]), values).lanes
    for weight, bias in product((w, None), (b, None)):
        want = run(device, x, weight, bias, 2, lanes)
        ones, zeros = np.ones_like(w) if weight is None else w, np.zeros_like(b) if bias is None else b
        assert run(device, x, ones, zeros, 2, lanes).tobytes() == want.tobytes()
        for places in ((1, 0), (0, 1), (1, 1), (3, 2)):
            got = run(device, x, weight, bias, 2, lanes, offset=places[0], of_weights=places[1])
            assert got.tobytes() == want.tobytes(), places


@pytest.mark.parametrize("lanes", [16, 64])
@pytest.mark.parametrize("variant", ["teams", "hip/teams"])
def test_one_array_alone_may_be_unaligned(device: Device, rng: Rng, lanes: int, variant: str) -> None:
    x, w, b = problem(rng, (1, 4, 49))
    plan = plan_of(device, x.shape, 1, "f32", 1e-5, lanes, variant)
    for place in range(2):
        there, out = (on_device(a, device, int(place == i)) for i, a in enumerate((x, np.zeros_like(x))))
        plan.run(GroupNormArgs(there, on_device(w, device), on_device(b, device), out))
        assert out.to_host().tobytes() == run(device, x, w, b, 1, lanes).tobytes(), place


@every_type
@pytest.mark.parametrize(
    ("shape", "groups", "lanes"), [((7, 16, 3), 1, 8), ((7, 12, 7), 4, 4), ((3, 16, 49), 1, 64)], ids=str
)
@pytest.mark.parametrize("offset", [0, 1])
def test_the_result_may_be_in_place(
    device: Device, rng: Rng, name: str, shape: Shape, groups: int, lanes: int, offset: int
) -> None:
    """Of teams without a group, too, and of groups that are taken twice."""
    x, w, b = problem(rng, shape, name)
    if name != "f16":
        x[1] *= x.dtype.type(1e30)
    there = on_device(x, device, offset)
    arrays = GroupNormArgs(there, on_device(w, device), on_device(b, device), there)
    plan_of(device, shape, groups, name, 1e-5, lanes).run(arrays)
    assert there.to_host().tobytes() == run(device, x, w, b, groups, lanes).tobytes()


@every_type
@pytest.mark.parametrize(
    ("shape", "lanes"), [((9, 8, 16), 4), ((3, 8, 49), 32), ((3, 8, 98), 64), ((4, 4, 33), 8)], ids=str
)
def test_a_group_has_the_bits_that_it_has_alone(device: Device, rng: Rng, name: str, shape: Shape, lanes: int) -> None:
    """Whatever is beside it in its warp: numbers that are none, and such as are taken twice."""
    x, w, b = problem(rng, shape, name)
    per_group = shape[1] // 2
    x[0, 0, 3], x[1, -1, 0], x[1, 0, 5] = np.nan, np.inf, -np.inf
    if name != "f16":
        x[2, 0] *= x.dtype.type(1e30)
        x[2, per_group:] *= x.dtype.type(1e-30)
    y = run(device, x, w, b, 2, lanes)
    assert np.isnan(y[0, :per_group]).all()
    assert np.isnan(y[1]).all()
    for image, group in ((0, 1), (2, 0), (2, 1)):
        channels = slice(per_group * group, per_group * (group + 1))
        alone = x[image : image + 1, channels].copy()
        want = run(device, alone, w[channels].copy(), b[channels].copy(), 1, lanes)
        assert y[image : image + 1, channels].tobytes() == want.tobytes(), (image, group)


@every_type
@pytest.mark.parametrize(("mean", "scale"), [(1e4, 1.0), (0.0, 1e-3), (0.0, 100.0)])
@pytest.mark.parametrize(
    ("shape", "groups", "lanes"), [((3, 16, 5), 2, 4), ((2, 16, 49), 1, 64), ((2, 6, 49), 2, 32)], ids=str
)
def test_any_mean_and_deviation_costs_no_digits(
    device: Device, rng: Rng, name: str, mean: float, scale: float, shape: Shape, groups: int, lanes: int
) -> None:
    given = problem(rng, shape, name, mean, scale)
    check(device, given, groups, large_mean=mean > 0, eps=0.0, lanes=lanes)


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 3e37])
@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("shape", "groups", "lanes"), [((2, 16, 5), 2, 4), ((2, 16, 17), 1, 64), ((2, 6, 49), 2, 32)], ids=str
)
def test_squares_need_not_be_numbers_of_f32(
    device: Device, rng: Rng, scale: float, name: str, shape: Shape, groups: int, lanes: int
) -> None:
    """Nor need eps be one once they are scaled."""
    given = problem(rng, shape, name, scale=scale)
    check(device, given, groups, eps=0.0, lanes=lanes)
    check(device, given, groups, eps=2.0**-133 if scale < 1 else 2.0**126, lanes=lanes)


@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize("lanes", [8, 32, 64])
def test_equal_values_near_the_largest_number(device: Device, rng: Rng, name: str, lanes: int) -> None:
    x, w, b = problem(rng, (3, 16, 14), name)
    x[:2] = 2.0**127
    check(device, (x, w, b), 2, lanes=lanes)
    assert np.isnan(run(device, x, w, b, 2, lanes, eps=0.0)[:2]).all()


@pytest.mark.parametrize(("name", "value"), [("f16", 20480), ("f16", 64512), ("bf16", 1.02e5), ("bf16", -1.3e6)])
def test_equal_values_far_from_0_have_a_variance_of_0(device: Device, rng: Rng, name: str, value: float) -> None:
    """1 / n is not exact, and what it costs the square of the mean is more than eps."""
    x, w, b = problem(rng, (2, 41, 48), name)
    x[...] = value
    x[1, 3, 7] *= x.dtype.type(1.01)
    check(device, (x, w, b), 1, lanes=256)


def test_a_first_value_far_from_all_others_costs_no_digits(device: Device, rng: Rng) -> None:
    x, w, b = problem(rng, (2, 16, 49))
    x[:, ::8, 0] = 1e6
    check(device, (x, w, b), 2, lanes=32)


def test_weights_are_of_the_group_of_the_image(device: Device, rng: Rng) -> None:
    """Of many images and groups, whose quotients and rests come from a product."""
    for batch, groups in ((67, 3), (1, 257), (129, 1), (11, 31)):
        for hw in (1, 3, 7):
            check(device, problem(rng, (batch, 4 * groups, hw)), groups)


@pytest.mark.parametrize("hw", [1, 2, 3, 5, 7, 49, 197, 1021, 4095])
def test_each_value_has_the_weight_of_its_channel(device: Device, hw: int) -> None:
    per_group = min(8192 // hw, 1023)
    shape = (1, per_group, hw)
    x = np.zeros(shape, np.float32)
    b = np.arange(per_group).astype(np.float32)
    np.testing.assert_array_equal(run(device, x, None, b, 1), np.broadcast_to(b[None, :, None], shape))


@pytest.mark.parametrize(("shape", "name", "lanes", "reason"), [
    ((1, 4, 5), "f64", 4, "no kernel for f64"),
    ((1, 4, 5), "f32", 0, "a power of two of threads up to 32, or whole warps up to 512, not 0"),
    ((1, 4, 5), "f32", 3, "not 3"),
    ((1, 4, 5), "f32", 48, "not 48"),
    ((1, 4, 5), "f32", 544, "not 544"),
    ((1, 4, 258), "f32", 32, "32 threads hold 1024 values, not 1032"),
    ((1, 8, 258), "f16", 64, "64 threads hold 2048 values, not 2064"),
    ((1, 5, 1), "bf16", 1, ""),
    ((1, 11, 3), "bf16", 1, "1 threads hold 32 values, not 33"),
], ids=str)  # fmt: skip
def test_what_a_team_cannot_hold_is_refused(device: Device, shape: Shape, name: str, lanes: int, reason: str) -> None:
    described = GroupNormDescriptor(shape, 1, BY_NAME[name])
    preference = wish("teams", config=TeamConfig(lanes))
    if not reason:
        assert GroupNormPlan.select(device, described, preference).config == TeamConfig(lanes)
        return
    with refused(ptxrt.errors.Unsupported, "group_norm", "descriptor", reason):
        GroupNormPlan.select(device, described, preference)


def test_other_layouts_and_more_groups_than_a_number_has_are_refused(device: Device) -> None:
    with refused(ptxrt.errors.Unsupported, "group_norm", "descriptor", "is for contiguous arrays"):
        plan_of(device, (2, 8, 3, 3), 2, "f32", 1e-5, strides=channels_last((2, 8, 3, 3)))
    plan_of(device, ((1 << 15) - 1, 1 << 16, 1), 1 << 16, "f32", 1e-5)
    with refused(ptxrt.errors.Unsupported, "group_norm", "descriptor", "2147483648 groups of all images are more than"):
        plan_of(device, (1 << 15, 1 << 16, 1), 1 << 16, "f32", 1e-5)


@every_type
def test_every_candidate_holds_a_group_and_the_heuristic_is_one_of_them(sim: Device, name: str) -> None:
    for shape, groups in (*ORDINARY, ((2, 6, 7), 3), ((1, 1), 1), ((7, 1, 16383), 1), ((7, 8, 2048), 1)):
        described = GroupNormDescriptor(shape, groups, BY_NAME[name])
        found = TeamConfig.candidates(described)
        assert TeamConfig.heuristic(described) in found
        for config in found:
            chosen = GroupNormPlan.select(sim, described, wish("teams", config=config))
            [launch] = chosen.schedule.launches
            assert launch.block % 32 == 0
            assert launch.grid[0] * (launch.block // config.lanes) >= shape[0] * groups


def test_who_is_served(sim: Device) -> None:
    def chosen(shape: Shape, groups: int, name: str = "f32", language: str = "ptx") -> str:
        described = GroupNormDescriptor(shape, groups, BY_NAME[name])
        return str(GroupNormPlan.select(sim, described, wish(language=language)).variant.name)

    for name in FAMILY.dtypes:
        for shape, groups in ORDINARY:
            assert chosen(shape, groups, name) == "teams"
            # In HIP others are as fast of few vectors, or faster of many whole ones of 16 bits a channel.
            whole = math.prod(shape[2:]) * BY_NAME[name].size % 16 == 0
            assert whole or chosen(shape, groups, name, "hip") == "teams"
    assert [chosen((32, 512, 14, 14), 32, name, "hip") for name in ("f32", "f16")] == ["teams", "teams"]
    assert [chosen((8, 640, 16, 16), 32, name, "hip") for name in ("f32", "f16")] == ["teams", "teams"]
    assert [chosen((32, 512, 28, 28), 32, name, "hip") for name in ("f32", "f16")] == ["teams", "held"]
    assert [chosen((8, 320, 32, 32), 32, name, "hip") for name in ("f32", "f16")] == ["teams", "teams"]  # few groups
    assert [chosen((9, 320, 32, 32), 32, name, "hip") for name in ("f32", "f16")] == ["teams", "held"]
    assert [chosen((2, 128, 8, 8), 8, name, "hip") for name in ("f32", "f16")] == ["few", "few"]
    assert [chosen((3, 128, 8, 8), 8, name, "hip") for name in ("f32", "f16")] == ["teams", "teams"]  # more values
    assert chosen((1, 32, 515), 1, language="hip") == "tickets"
    assert chosen((32, 512, 16, 16), 32) == chosen((32, 512, 32, 32), 32, "f16") == "teams"
    assert chosen((32, 512, 32, 32), 32) == chosen((32, 512, 36, 32), 32, "f16") == "cluster"
    assert chosen((64, 512, 7, 7), 32, "f64") == "baseline"
    assert [chosen((2048, 32, 128), 32, name) for name in ("f32", "f64")] == ["few", "few"]
    assert [chosen((2048, 32, 256), 32, name) for name in ("f32", "f64")] == ["teams", "few"]
    assert chosen((2, 32, 8, 8), 8) == "few"


def test_its_parameters_have_the_types_of_weights() -> None:
    assert {parameter_type(BY_NAME[name]).name for name in FAMILY.dtypes} == {"f32"}
