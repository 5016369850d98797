"""group_norm_backward with a group's values in the registers of a team of threads, of several images."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import EVERYTHING, NVIDIA_GPU, Patch, Rng, Shape, refused
from op_testing import Guarded, check_error, on_device, wish
from tolerances import bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import GroupNormBackwardArgs, GroupNormBackwardDescriptor, GroupNormBackwardPlan, references
from ptxrt.ops import _group_norm_teams_backward as teams
from ptxrt.ops._group_norm_teams_backward import FAMILY, TeamBackwardConfig
from ptxrt.ops.framework import parameter_type
from ptxrt.runtime.layout import channels_last

pytestmark = pytest.mark.ptx
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)
RESULTS = ("grad_input", "grad_weight", "grad_bias")

# Shape, groups, threads of a team and slices, of f32.
CASES: list[tuple[Shape, int, int, int]] = [
    # Parts of a warp: threads with and without values, a rest of images and of groups, teams of no group.
    ((1, 32), 2, 4, 1),
    ((1, 64), 2, 4, 1),
    ((21, 64, 1), 4, 2, 1),
    ((21, 64, 1), 4, 4, 1),
    ((130, 32), 1, 4, 1),
    ((70, 32), 2, 4, 2),
    ((33, 48, 1), 3, 4, 1),
    ((9, 140, 1), 35, 1, 9),
    ((17, 44, 1), 1, 8, 2),
    ((5, 36, 3), 3, 16, 1),
    ((3, 12, 49), 6, 16, 2),
    # Whole warps, one and several; a rest of images in the last turn.
    ((7, 32, 8), 2, 32, 2),
    ((9, 40, 20), 5, 32, 2),
    ((5, 32, 49), 8, 32, 2),
    ((5, 48, 49), 16, 32, 1),
    ((3, 16, 49), 1, 96, 1),
    ((3, 16, 14, 14), 2, 192, 2),
    ((2, 40, 64), 4, 64, 1),
    ((2, 44, 9), 1, 128, 1),
    ((2, 20, 257), 1, 480, 2),
    ((1, 24, 250), 1, 512, 1),
    ((17, 32, 28), 2, 64, 2),
    # Vectors within a channel, of two, of four, and channels as long as a vector.
    ((6, 48, 2), 2, 16, 1),
    ((6, 48, 3), 2, 32, 1),
    ((6, 48, 4), 2, 32, 1),
    ((6, 48, 5), 2, 32, 1),
    ((6, 48, 7), 2, 32, 1),
    # More values a thread, in blocks of fewer threads.
    ((3, 32, 49), 2, 64, 1),
    ((4, 34, 36), 2, 32, 1),
    ((2, 32, 240), 1, 384, 1),
    # No whole vectors: each text, with threads that have fewer values, or none, and with all.
    ((9, 66), 3, 8, 1),
    ((9, 99), 3, 8, 1),
    ((40, 51, 1), 3, 8, 1),
    ((3, 33, 7), 3, 16, 1),
    ((3, 33, 7), 11, 4, 1),
    ((3, 33, 49), 11, 32, 1),
    ((3, 33, 49), 11, 64, 1),
    ((3, 35, 49), 5, 32, 3),
    ((2, 32, 15), 32, 4, 1),
    ((2, 35, 17), 7, 32, 1),
    ((2, 35, 25), 7, 32, 2),
    ((2, 33, 131), 3, 256, 1),
]

ORDINARY: list[tuple[Shape, int]] = [
    ((65536, 256), 8), ((4096, 256), 8), ((64, 512, 7, 7), 32), ((32, 2048, 7, 7), 32), ((16, 512, 197), 32),
    ((4096, 128, 5), 8), ((8, 1280, 8, 8), 32),
]  # fmt: skip


def problem(rng: Rng, shape: Shape, name: str = "f32", mean: float = 0.0, scale: float = 1.0) -> tuple[Any, ...]:
    """Return grad_out, x and weight."""
    kind = BY_NAME[name].numpy
    x = (rng.standard_normal(shape) * scale + mean).astype(kind)
    return rng.standard_normal(shape).astype(kind), x, rng.standard_normal(shape[1]).astype(np.float32)


def plan_of(
    device: Device,
    shape: Shape,
    groups: int,
    name: str,
    eps: float,
    way: Any = None,
    variant: str = "teams",
    **more: Any,
) -> Any:
    described = GroupNormBackwardDescriptor(shape, groups, BY_NAME[name], eps, **more)
    return GroupNormBackwardPlan.select(device, described, wish(variant, config=way))


def run(
    device: Device, given: Any, groups: int, way: Any = None, eps: float = 1e-5, offset: int = 0, of_weight: int = 0,
    variant: str = "teams",
) -> Any:  # fmt: skip
    """Return what is written into poisoned, guarded memory; `offset` and `of_weight`: elements off a round address."""
    go, x, w = given
    plan = plan_of(device, x.shape, groups, element_type(x.dtype).name, eps, way, variant)
    out = [Guarded(x.shape, x.dtype, device, offset)]
    out += [Guarded((x.shape[1],), np.float32, device, of_weight) for _ in range(2)]
    weight = None if w is None else on_device(w, device, of_weight)
    there = [on_device(a, device, offset) for a in (go, x)]
    results = [None if w is None and i == 1 else o.array for i, o in enumerate(out)]
    plan.run(GroupNormBackwardArgs(there[0], there[1], weight, *results))
    return tuple(None if a is None else o.host() for a, o in zip(results, out, strict=True))


def check(device: Device, given: Any, groups: int, large_mean: bool = False, eps: float = 1e-5, **how: Any) -> None:
    go, x, w = given
    want = references.group_norm_backward(go, x, w, groups, eps)
    got = run(device, given, groups, eps=eps, **how)
    for name, ours, reference in zip(RESULTS, got, want, strict=True):
        assert (ours is None) == (reference is None)
        if ours is not None:
            limit = bar("group_norm", element_type(ours.dtype).name, reference, large_mean=large_mean)
            check_error(f"group_norm_backward teams {name}", device, ours, reference, limit, (x.shape, groups, how))


def same(got: Any, want: Any) -> bool:
    return all((a is None and b is None) or a.tobytes() == b.tobytes() for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize(("shape", "groups", "lanes", "slices"), CASES, ids=str)
@pytest.mark.sanitize
def test_values(device: Device, rng: Rng, shape: Shape, groups: int, lanes: int, slices: int) -> None:
    check(device, problem(rng, shape), groups, way=TeamBackwardConfig(lanes, slices))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize(("shape", "groups", "lanes", "slices"), [
    ((21, 64), 4, 2, 1),  # the same of vectors of 8
    ((21, 96), 4, 4, 1),
    ((70, 32), 2, 2, 1),
    ((5, 96, 2), 3, 8, 1),
    ((3, 48, 3), 3, 8, 1),
    ((3, 48, 7), 2, 32, 2),
    ((3, 48, 8), 3, 16, 1),
    ((2, 32, 9), 2, 32, 1),
    ((5, 32, 49), 2, 64, 2),
    ((5, 32, 49), 2, 128, 1),
    ((3, 64, 20), 2, 96, 1),
    ((2, 32, 250), 1, 512, 1),
    ((3, 33, 15), 3, 32, 1),
    ((3, 36, 7), 3, 16, 1),
    ((3, 33, 7, 7), 3, 64, 1),
    ((2, 34, 49), 17, 16, 1),
], ids=str)  # fmt: skip
@pytest.mark.sanitize
def test_values_of_16_bits(
    device: Device, rng: Rng, name: str, shape: Shape, groups: int, lanes: int, slices: int
) -> None:
    check(device, problem(rng, shape, name), groups, way=TeamBackwardConfig(lanes, slices))


@every_type
def test_in_hip_the_bits_are_those_of_ptx(device: Device, rng: Rng, name: str) -> None:
    """Each text, of 16 bits some; each way to ask for weights; groups taken twice; arrays that lie anywhere."""
    vector = 16 // BY_NAME[name].size
    cases: list[tuple[Shape, int, TeamBackwardConfig]] = [
        *(((5, 2 * vector, 32 * slots - 1), 2, TeamBackwardConfig(32, 2)) for slots in range(1, 4 - vector // 8)),
        *(((5, 2, 32 * slots - 1), 2, TeamBackwardConfig(32, 2)) for slots in (4, 8, 12)),
        *(
            ((21, channels, lanes * slots - 1), 2, TeamBackwardConfig(lanes, 2))
            for lanes in (4, 16)
            for channels, slots in ((2 * vector, 1), (2, 4), (2, 8), *(((8, 2),) if name == "f32" else ()))
        ),
        ((69, 12 * vector), 2, TeamBackwardConfig(8, 2)),
        ((9, 140 * vector), 35, TeamBackwardConfig(4, 1)),  # blocks have room for more groups than there are
        ((33, 12 * vector), 3, TeamBackwardConfig(4, 1)),  # more teams than a block's images times its groups
        ((5, 6 * vector, 2), 2, TeamBackwardConfig(8, 1)),
        ((3, 2 * vector, 281), 2, TeamBackwardConfig(288, 2)),
        ((3, 34, 1), 2, TeamBackwardConfig(32, 1)),
        *(
            [((3, 32, 49), 2, TeamBackwardConfig(64, 1)), ((4, 34, 36), 2, TeamBackwardConfig(32, 1))]
            if name == "f32"
            else []
        ),
        ((3, 2, 131), 2, TeamBackwardConfig(64, 1)),
    ]
    for shape, groups, way in cases if EVERYTHING or NVIDIA_GPU else cases[:: 2 if name == "f32" else 5]:
        go, x, w = problem(rng, shape, name, 0.5)
        if name != "f16":
            x[0, : shape[1] // groups] *= x.dtype.type(1e30)
            x[1, : shape[1] // groups] *= x.dtype.type(1e-18)
        x[-1] += 1e6 if name == "f32" else 0
        for weight, how in ((w, {}), (None, {"offset": 1}), (w, {"of_weight": 1})):
            given = (go, x, weight)
            got, want = (run(device, given, groups, way, 0.0, variant=v, **how) for v in ("hip/teams", "teams"))
            assert same(got, want), (shape, way, how)


@pytest.mark.parametrize("name", ["f32", "f16"])
@pytest.mark.parametrize(
    ("shape", "groups", "lanes"), [((1024, 64), 4, 4), ((16, 32, 21), 4, 32), ((15, 64, 7), 1, 64)], ids=str
)
def test_as_many_images_as_a_team_may_have(
    device: Device, rng: Rng, name: str, shape: Shape, groups: int, lanes: int
) -> None:
    described = GroupNormBackwardDescriptor(shape, groups, BY_NAME[name])
    images = TeamBackwardConfig(lanes, 1).block(described).images
    way = TeamBackwardConfig(lanes, -(-shape[0] // (16 * images)))
    assert plan_of(device, shape, groups, name, 1e-5, way).config == way
    check(device, problem(rng, shape, name), groups, way=way)


@every_type
@pytest.mark.parametrize(("shape", "lanes"), [((100, 32), 4), ((8, 32, 31), 64)], ids=str)
@pytest.mark.parametrize("offset", [0, 1])
def test_no_copy_comes_before_a_group_has_been_read(
    sim: Device, rng: Rng, monkeypatch: Patch, name: str, shape: Shape, lanes: int, offset: int
) -> None:
    """Nor when its place has sums of columns: sim's checks say so, values do not."""
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    check(sim, problem(rng, shape, name), 1, way=TeamBackwardConfig(lanes, 1), offset=offset)


def test_copies_that_are_under_way_need_sm_80() -> None:
    needs = {"vectors": 80, "singles": None}
    for kernel in FAMILY.kernels():
        if kernel.language == "ptx" and kernel.dtype != "bf16" and "parameters" not in kernel.entry:
            assert kernel.target == needs["singles" if "singles" in kernel.entry else "vectors"], kernel.entry


@every_type
@pytest.mark.parametrize("shape", [(5, 32), (3, 32, 3), (3, 48, 5), (3, 32, 49), (3, 34, 7)], ids=str)
@pytest.mark.parametrize("values", [4, 8])
@pytest.mark.sanitize
def test_no_bit_depends_on_where_the_arrays_lie(device: Device, rng: Rng, name: str, shape: Shape, values: int) -> None:
    """Nor does a null pointer differ from ones."""
    go, x, w = problem(rng, shape, name)
    way = TeamBackwardConfig._of(GroupNormBackwardDescriptor(shape, 2, BY_NAME[name]), values)
    for weight in (w, None):
        want = run(device, (go, x, weight), 2, way)
        assert same(run(device, (go, x, weight), 2, way), want)
        if weight is None:
            ones = run(device, (go, x, np.ones_like(w)), 2, way)
            assert same((ones[0], ones[2]), (want[0], want[2]))
        for places in ((1, 0), (0, 1), (1, 1), (3, 2)):
            got = run(device, (go, x, weight), 2, way, offset=places[0], of_weight=places[1])
            assert same(got, want), places


@pytest.mark.parametrize("way", [TeamBackwardConfig(16, 1), TeamBackwardConfig(64, 2)], ids=str)
@pytest.mark.parametrize("variant", ["teams", "hip/teams"])
def test_one_array_alone_may_be_unaligned(device: Device, rng: Rng, way: Any, variant: str) -> None:
    go, x, w = problem(rng, (3, 32, 15) if way.lanes > 32 else (3, 32, 4))
    plan = plan_of(device, x.shape, 1, "f32", 1e-5, way, variant)
    want = run(device, (go, x, w), 1, way)
    for place in range(3):
        there = [on_device(a, device, int(place == i)) for i, a in enumerate((go, x, np.zeros_like(x)))]
        got = plan.run(GroupNormBackwardArgs(there[0], there[1], on_device(w, device), there[2]))
        assert same([a.to_host() for a in got], want), place


@every_type
@pytest.mark.parametrize(
    ("shape", "groups", "way"),
    [
        ((7, 32, 3), 2, TeamBackwardConfig(16, 1)),
        ((7, 33, 7), 3, TeamBackwardConfig(32, 2)),
        ((5, 40, 20), 5, TeamBackwardConfig(32, 2)),
        ((5, 32, 49), 1, TeamBackwardConfig(256, 2)),
    ],
    ids=str,
)
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.sanitize
def test_the_result_may_be_in_place(
    device: Device, rng: Rng, name: str, shape: Shape, groups: int, way: Any, place: int
) -> None:
    """Of teams without a group, or an image, too, and of groups that are taken twice."""
    go, x, w = problem(rng, shape, name)
    if name != "f16":
        x[1] *= x.dtype.type(1e30)
    there = [on_device(a, device) for a in (go, x)]
    plan = plan_of(device, shape, groups, name, 1e-5, way)
    got = plan.run(GroupNormBackwardArgs(there[0], there[1], on_device(w, device), there[place]))
    assert same([a.to_host() for a in got], run(device, (go, x, w), groups, way))


@every_type
@pytest.mark.parametrize(
    ("shape", "way"),
    [
        ((9, 16, 2), TeamBackwardConfig(4, 1)),
        ((3, 8, 49), TeamBackwardConfig(32, 1)),
        ((5, 8, 98), TeamBackwardConfig(64, 2)),
        ((4, 4, 33), TeamBackwardConfig(16, 1)),
    ],
    ids=str,
)
def test_a_group_has_the_bits_that_it_has_alone(device: Device, rng: Rng, name: str, shape: Shape, way: Any) -> None:
    """Whatever is beside it in its warp, or before it: numbers that are none, and such as are taken twice."""
    go, x, w = problem(rng, shape, name)
    per_group = shape[1] // 2
    x[0, 0, 1], x[1, -1, 0], go[1, 0, 1] = np.nan, np.inf, np.inf
    if name != "f16":
        x[2, 0] *= x.dtype.type(1e30)
        x[2, per_group:] *= x.dtype.type(1e-18)
    grad_input, grad_weight, grad_bias = run(device, (go, x, w), 2, way)
    assert np.isnan(grad_input[0, :per_group]).all()
    assert not np.isfinite(grad_input[1]).any()
    assert np.isnan(grad_weight).any()
    assert grad_bias[0] == np.inf
    assert np.isfinite(grad_bias[1:]).all()
    for image, group in ((0, 1), (2, 0), (2, 1)):
        channels = slice(per_group * group, per_group * (group + 1))
        alone = [a[image : image + 1, channels].copy() for a in (go, x)]
        want = run(device, (*alone, w[channels].copy()), 1, TeamBackwardConfig(way.lanes, 1))[0]
        assert grad_input[image : image + 1, channels].tobytes() == want.tobytes(), (image, group)


@every_type
@pytest.mark.parametrize(("mean", "scale"), [(1e4, 1.0), (0.0, 1e-3), (0.0, 100.0)])
@pytest.mark.parametrize(("shape", "groups"), [((3, 32, 5), 2), ((2, 32, 49), 1), ((2, 33, 49), 3)], ids=str)
def test_any_mean_and_deviation_costs_no_digits(
    device: Device, rng: Rng, name: str, mean: float, scale: float, shape: Shape, groups: int
) -> None:
    given = problem(rng, shape, name, mean, scale)
    # Of 16 bits all values of a group may be the same number: their gradients are to fit.
    check(device, given, groups, large_mean=mean > 0, eps=1e-10 if name == "f32" else 1e-5)


@every_type
@pytest.mark.parametrize("mean", [1e2, 1e4])
def test_a_large_mean_of_grad_out_costs_no_digits(device: Device, rng: Rng, name: str, mean: float) -> None:
    go, x, w = problem(rng, (3, 64, 21), name)
    go += go.dtype.type(mean)
    check(device, (go, x, w), 4, large_mean=True)


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1e18, 1e30])
@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize(("shape", "groups"), [((3, 32, 3), 2), ((3, 32, 17), 1), ((3, 33, 49), 3)], ids=str)
def test_squares_need_not_be_numbers_of_f32(
    device: Device, rng: Rng, scale: float, name: str, shape: Shape, groups: int
) -> None:
    """Of the images in turn, one of which is of ordinary values."""
    go, x, w = problem(rng, shape, name, scale=scale)
    x[1] *= x.dtype.type(1 / scale)
    check(device, (go, x, w), groups, eps=0.0)


@every_type
@pytest.mark.parametrize(("shape", "groups"), [((3, 32, 4), 2), ((3, 32, 28), 2), ((3, 34, 7), 2)], ids=str)
def test_equal_values(device: Device, rng: Rng, name: str, shape: Shape, groups: int) -> None:
    """Variance 0: xhat is 0, and eps = 0 makes no number."""
    go, x, w = problem(rng, shape, name)
    x[...] = 0.1
    got = run(device, (go, x, w), groups)
    want = references.group_norm_backward(go, x, w, groups)
    limit = bar("group_norm", name, want[0])
    check_error("group_norm_backward teams", device, got[0], want[0], limit, shape)
    assert np.abs(got[1]).max() < 1e-9
    got = run(device, (go, x, w), groups, eps=0.0)
    assert np.isnan(got[0]).all()
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[2]).all()


@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize(("shape", "groups"), [((3, 32, 4), 2), ((3, 32, 28), 2)], ids=str)
def test_equal_values_near_the_largest_number(device: Device, rng: Rng, name: str, shape: Shape, groups: int) -> None:
    """Eps, scaled as they are, is no number of f32."""
    go, x, w = problem(rng, shape, name)
    x[:2] = 2.0**127
    check(device, (go, x, w), groups)


@every_type
@pytest.mark.parametrize(
    ("shape", "groups", "way"),
    [
        ((21, 64, 1), 4, TeamBackwardConfig(4, 1)),
        ((9, 40, 24), 5, TeamBackwardConfig(32, 2)),
        ((5, 33, 3), 3, TeamBackwardConfig(16, 1)),
    ],
    ids=str,
)
def test_where_there_is_no_image_eps_0_adds_nothing(
    device: Device, rng: Rng, name: str, shape: Shape, groups: int, way: Any
) -> None:
    check(device, problem(rng, shape, name), groups, eps=0.0, way=way)


def test_the_mean_of_grad_out_has_more_digits_than_f32(device: Device, rng: Rng) -> None:
    """All sums are exact here, and so its rounding would be all that is wrong."""
    half = rng.integers(1, 9, (3, 36, 4))
    x = np.concatenate([half, -half], axis=2).astype(np.float32)
    go = (4096 + rng.integers(-8, 9, x.shape)).astype(np.float32)
    got = run(device, (go, x, None), 3, TeamBackwardConfig(32, 1))
    want = references.group_norm_backward(go, x, None, 3)
    check_error("group_norm_backward teams", device, got[0], want[0], bar("group_norm", "f32"), x.shape)


def test_a_first_value_far_from_all_others_costs_no_digits(device: Device, rng: Rng) -> None:
    go, x, w = problem(rng, (3, 32, 49))
    x[:, ::8, 0] = 1e6
    check(device, (go, x, w), 4)


@pytest.mark.parametrize("hw", [1, 2, 3, 4, 5, 7, 8, 9, 49, 197])
@pytest.mark.parametrize("name", ["f32", "f16"])
def test_each_channel_has_its_own_sum_and_weight(device: Device, rng: Rng, hw: int, name: str) -> None:
    """Numbers that are whole have exact sums, of which each is another one."""
    per_group = min(1000 // hw, 96) or 5
    shape = (3, 2 * per_group, hw)
    go, x, w = problem(rng, shape, name)
    go[...] = np.arange(shape[1])[None, :, None]
    got = run(device, (go, x, w), 2)
    np.testing.assert_array_equal(got[2], 3 * hw * np.arange(shape[1]).astype(np.float32))
    check(device, problem(rng, shape, name), 2)


@pytest.mark.parametrize(("batch", "groups"), [(67, 3), (1, 37), (129, 1), (11, 31), (3, 5), (40, 32)])
@pytest.mark.parametrize("hw", [1, 3])
def test_every_group_of_every_image(device: Device, rng: Rng, batch: int, groups: int, hw: int) -> None:
    check(device, problem(rng, (batch, 32 * groups, hw)), groups)


@pytest.mark.parametrize(("shape", "name", "way", "reason"), [
    ((1, 4, 5), "f64", (4, 1), "no kernel for f64"),
    ((1, 4, 5), "f32", (0, 1), "a power of two of threads up to 32, or whole warps up to 512, not 0"),
    ((1, 4, 5), "f32", (3, 1), "not 3"),
    ((1, 4, 5), "f32", (48, 1), "not 48"),
    ((1, 4, 5), "f32", (544, 1), "not 544"),
    ((1, 4, 33), "f32", (16, 1), "16 threads hold 128 values, not 132"),
    ((1, 4, 161), "f32", (32, 1), "32 threads hold 640 values, not 644"),
    ((1, 4, 1540), "f32", (416, 1), "blocks of more than 384 threads hold 12 values a thread, not 16"),
    ((1, 4, 1540), "f32", (384, 1), ""),
    ((1, 5, 921), "bf16", (416, 1), "blocks of more than 384 threads hold 8 values a thread, not 12"),
    ((1, 5, 921), "bf16", (384, 1), ""),
    ((1, 4, 1248), "f32", (416, 1), ""),
    ((1, 8, 129), "f16", (64, 1), "64 threads hold 1024 values, not 1032"),
    ((1, 11, 35), "bf16", (32, 1), "32 threads hold 384 values, not 385"),
    ((1, 5, 77), "bf16", (64, 1), ""),
    ((1, 4, 96), "f32", (32, 1), ""),
    ((1, 4, 5), "f32", (4, 0), "0 slices of 1 images"),
    ((1, 4, 5), "f32", (4, 65536), "65536 slices of 1 images"),
    ((1, 4, 5), "f32", (8, 65535), ""),
    ((17, 40, 8), "f32", (96, 1), "1 slices of 17 images"),
    ((16, 40, 8), "f32", (96, 1), ""),
], ids=str)  # fmt: skip
def test_what_a_team_cannot_hold_is_refused(
    device: Device, shape: Shape, name: str, way: tuple[int, int], reason: str
) -> None:
    described = GroupNormBackwardDescriptor(shape, 1, BY_NAME[name])
    config = TeamBackwardConfig(*way)
    preference = wish("teams", config=config)
    if not reason:
        assert GroupNormBackwardPlan.select(device, described, preference).config == config
        return
    with refused(ptxrt.errors.Unsupported, "group_norm_backward", "descriptor", reason):
        GroupNormBackwardPlan.select(device, described, preference)


def test_other_layouts_and_more_images_than_a_number_has_are_refused(device: Device) -> None:
    with refused(ptxrt.errors.Unsupported, "group_norm_backward", "descriptor", "is for contiguous arrays"):
        plan_of(device, (2, 64, 3, 3), 2, "f32", 1e-5, strides=channels_last((2, 64, 3, 3)))
    with refused(ptxrt.errors.Unsupported, "group_norm_backward", "descriptor", "2147483648 images of 32 channels"):
        plan_of(device, (1 << 31, 32, 1), 1, "f32", 1e-5)
    with refused(ptxrt.errors.Unsupported, "group_norm_backward", "descriptor", "images of 2147483648 channels"):
        plan_of(device, (1, 1 << 31, 1), 1 << 26, "f32", 1e-5)


@every_type
def test_every_candidate_holds_a_group_and_the_heuristic_is_one_of_them(sim: Device, name: str) -> None:
    for shape, groups in (*ORDINARY, ((2, 64, 7), 2), ((7, 32, 183), 1), ((7, 8, 640), 1)):
        described = GroupNormBackwardDescriptor(shape, groups, BY_NAME[name])
        found = TeamBackwardConfig.candidates(described)
        assert TeamBackwardConfig.heuristic(described) in found
        for config in found:
            first, last = GroupNormBackwardPlan.select(sim, described, wish("teams", config=config)).schedule.launches
            block = config.block(described)
            assert first.block == block.threads
            assert block.groups * block.images * config.lanes <= block.threads
            assert first.grid[0] * block.groups >= groups
            assert config.slices * block.images * 16 >= shape[0]
            assert last.grid[0] * 8 >= shape[1]


def test_who_is_served(sim: Device) -> None:
    def chosen(shape: Shape, groups: int, name: str = "f32", language: str = "ptx") -> str:
        described = GroupNormBackwardDescriptor(shape, groups, BY_NAME[name])
        return str(GroupNormBackwardPlan.select(sim, described, wish(language=language)).variant.name)

    for name in FAMILY.dtypes:
        for shape, groups in ORDINARY:
            assert chosen(shape, groups, name) == chosen(shape, groups, name, "hip") == "teams"
    assert chosen((32, 512, 16, 16), 32, language="hip") == "teams"
    assert (chosen((64, 32, 2048), 32, language="hip"), chosen((64, 32, 8192), 32, language="hip")) == (
        "teams",
        "tickets",
    )
    assert (chosen((32, 512, 16, 16), 32), chosen((32, 512, 32, 32), 32)) == ("teams", "cluster")
    assert (chosen((32, 256, 28, 28), 32), chosen((2, 256, 28, 28), 32)) == ("teams", "cluster")
    assert (chosen((16, 128, 32, 31), 32), chosen((16, 128, 32, 32), 32)) == ("teams", "cluster")
    assert chosen((64, 512, 7, 7), 32, "f64") == "baseline"
    assert chosen((2, 32, 8, 8), 8) == "few"
    # Gradients that are what is left of a few terms.
    assert (chosen((50, 64, 1), 4), chosen((50, 60, 1), 4)) == ("teams", "baseline")
    assert (chosen((50, 32, 3), 2), chosen((50, 31, 3), 1)) == ("teams", "baseline")


def test_as_many_blocks_as_fill_a_device_and_few_slices(sim: Device, monkeypatch: Patch) -> None:
    def slices(shape: Shape, groups: int) -> int:
        return TeamBackwardConfig.heuristic(GroupNormBackwardDescriptor(shape, groups, BY_NAME["f16"])).slices

    assert slices((65536, 256), 8) == 65536 // 4 // 16
    assert slices((4096, 256), 8) == 4096 // 4 // 2
    assert slices((32, 1024, 14, 14), 32) == 4
    assert slices((1 << 20, 256), 8) == (1 << 20) // 4 // 16
    assert slices((8, 1280, 8, 8), 32) == 4
    monkeypatch.setattr(teams, "_ENOUGH", 1)
    assert slices((64, 1280, 8, 8), 32) == 4
    assert sim.kind == "sim"


def test_its_parameters_have_the_types_of_weights() -> None:
    assert {parameter_type(BY_NAME[name]).name for name in FAMILY.dtypes} == {"f32"}
