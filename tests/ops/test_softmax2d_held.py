"""The variants ``held`` of softmax2d and its backward, ``anchored``: tiles in registers of a block or of a cluster."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import Rng, Shape
from op_testing import Guarded, check_error, on_device, wish
from test_softmax2d import BACKWARD, FORWARD, Direction, both, each_type, of_each, values_for
from tolerances import bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import references
from ptxrt.ops._softmax2d_held import CLUSTERS, HeldConfig

pytestmark = pytest.mark.ptx
each_cluster = pytest.mark.parametrize("cluster", CLUSTERS)
each_forward = pytest.mark.parametrize("variant", ["held", "anchored"])


def plan_for(
    way: Direction, device: Device, shape: Shape, name: str, threads: int, cluster: int, variant: str = "held"
) -> Any:
    problem = way.descriptor(shape, element_type(name))
    return way.plan.select(device, problem, wish(variant, config=HeldConfig(threads, cluster)))


def run(
    way: Direction,
    device: Device,
    inputs: Any,
    threads: int,
    cluster: int,
    offset: int = 0,
    in_place: bool = False,
    variant: str = "held",
) -> Any:
    """Return the host result; in place is over the last input."""
    out = Guarded(inputs[0].shape, inputs[0].dtype, device, offset)
    there = [on_device(array, device, offset) for array in inputs]
    plan = plan_for(way, device, inputs[0].shape, element_type(inputs[0].dtype).name, threads, cluster, variant)
    plan.run((*there, there[-1] if in_place else out.array))
    return there[-1].to_host() if in_place else out.host()


def check(
    way: Direction,
    device: Device,
    inputs: Any,
    threads: int,
    cluster: int,
    offset: int = 0,
    large_mean: bool = False,
    variant: str = "held",
) -> Any:
    got = run(way, device, inputs, threads, cluster, offset, variant=variant)
    with np.errstate(invalid="ignore"):
        want = way.reference(*inputs)
    at_most = bar("softmax2d", element_type(inputs[0].dtype).name, want, large_mean=large_mean)
    check_error(way.op, device, got, want, at_most, (inputs[0].shape, threads, cluster, offset))
    return got


# Values ---------------------------------------------------------------------------------------------------------------

CASES = [
    ((2, 24, 7, 7), 128),  # whole images, whose rows end within 16 bytes; the last block of four has no channels
    ((2, 14, 104), 32),  # strips, the last one narrower; the last block has fewer channels
    ((1, 210, 8), 64),  # many turns, and lanes
]


@pytest.mark.sanitize
@both
@each_cluster
@each_type
def test_matches_the_reference(device: Device, rng: Rng, way: Direction, cluster: int, name: str) -> None:
    for place, (shape, threads) in enumerate(CASES):
        (launch,) = plan_for(way, device, shape, name, threads, cluster).schedule.launches
        strips, share = launch.arguments[-4:-2]
        assert place == 2 or (strips > 1) == (place == 1)
        assert launch.grid[0] == shape[0] * strips * cluster
        assert (share * (cluster - 1) >= shape[1]) == (place == 0 and cluster == 4 and name != "f64")
        check(way, device, values_for(way, rng, shape, name=name), threads, cluster)


@both
@each_cluster
@pytest.mark.parametrize("name", ["f32", "f16"])
def test_in_place_and_at_any_address(device: Device, rng: Rng, way: Direction, cluster: int, name: str) -> None:
    inputs = values_for(way, rng, (1, 24, 7, 7), name=name)
    want = check(way, device, inputs, 64, cluster).tobytes()
    assert run(way, device, inputs, 64, cluster, in_place=True).tobytes() == want
    assert run(way, device, inputs, 64, cluster, offset=1).tobytes() == want


@each_cluster
@pytest.mark.parametrize(
    ("variant", "name"), [("held", "f32"), ("held", "f64"), ("held", "f16"), ("anchored", "f32"), ("anchored", "f16")]
)
def test_values_that_are_no_common_ones(device: Device, rng: Rng, cluster: int, name: str, variant: str) -> None:
    kind, largest, tiny, smallest = of_each(name)
    x = rng.standard_normal((1, 24, 16)).astype(kind)
    x[0, 20, 0], x[0, 3, 1] = np.nan, np.inf
    x[0, :, 2] = -np.inf
    x[0, :, 3] = -np.inf  # but for one
    x[0, 13, 3] = -largest
    x[0, ::2, 4] = -np.inf
    x[0, 1:, 5] = -np.inf
    x[0, :, 6], x[0, 7, 6], x[0, 20, 6] = -largest, largest, largest
    x[0, :, 7] = 0.1
    x[0, 9, 8] = -np.log(smallest)  # the others are denormal, or nearly
    got, want = run(FORWARD, device, (x,), 32, cluster, variant=variant)[0], references.softmax2d(x)[0]
    assert np.isnan(got[:, :3]).all()
    assert np.isfinite(got[:, 3:]).all()
    np.testing.assert_array_equal(got[:, [3, 5, 6, 7]], want[:, [3, 5, 6, 7]].astype(kind))
    small = np.abs(got[:, 8].astype(np.longdouble) - want[:, 8])
    assert (want[:, 8] < tiny).any()
    assert (small <= 1.5 * np.longdouble(smallest) + want[:, 8] * np.finfo(kind).eps).all()
    np.testing.assert_allclose(got[:, 4].astype(float), want[:, 4].astype(float), rtol=2 * float(np.finfo(kind).eps))


@pytest.mark.parametrize("variant", ["held", "hip/held", "anchored"])
def test_powers_of_16_bits_reach_the_smallest_number(device: Device, variant: str) -> None:
    """That of bfloat16 is e to the power of -92.2; and the lowest number is no -inf."""
    kind = BY_NAME["bf16"].numpy
    x = np.zeros((1, 16, 16), kind)
    x[0, 1:, 0] = np.linspace(-86, -104, 15)
    x[0, :, 1], x[0, :, 2], x[0, 0, 3] = -np.inf, -3.3895e38, -np.inf
    plan = FORWARD.plan.select(device, FORWARD.descriptor(x.shape, BY_NAME["bf16"]), wish(variant))
    got = plan.run((on_device(x, device), None)).to_host().astype(float)[0]
    want = references.softmax2d(x)[0].astype(float)
    assert (np.abs(got[:, 0] - want[:, 0]) <= 2.0**-133 + want[:, 0] / 128).all()
    assert np.isnan(got[:, 1]).all()
    np.testing.assert_allclose(got[:, 2:], want[:, 2:], rtol=2**-8)


@each_forward
@each_cluster
@pytest.mark.parametrize("mean", [1e4, -1e4])
def test_a_large_offset_costs_no_accuracy(device: Device, rng: Rng, cluster: int, mean: float, variant: str) -> None:
    check(FORWARD, device, values_for(FORWARD, rng, (1, 60, 8), mean), 32, cluster, large_mean=True, variant=variant)


# Anchored -------------------------------------------------------------------------------------------------------------


@pytest.mark.sanitize
@each_cluster
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_from_an_anchor_it_matches_the_reference(device: Device, rng: Rng, cluster: int, name: str) -> None:
    for shape, threads in CASES:
        inputs = values_for(FORWARD, rng, shape, deviation=3.0, name=name)
        for offset in (0, 1):
            check(FORWARD, device, inputs, threads, cluster, offset, variant="anchored")
        inputs[0][0, :, 2] *= 12  # one column is done again, with all of its tile
        want = check(FORWARD, device, inputs, threads, cluster, variant="anchored").tobytes()
        for offset, in_place in ((0, True), (1, False)):
            got = run(FORWARD, device, inputs, threads, cluster, offset, in_place, "anchored")
            assert got.tobytes() == want


@each_cluster
@pytest.mark.parametrize("place", [3, 18, 23])
@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_no_value_is_too_far_from_its_anchor(device: Device, cluster: int, place: int, name: str) -> None:
    """Columns in which one value is more than the anchor by what keeps a sum below 2^80, by what does not, and less.

    By way of the maximum a difference is rounded, of the others as much as it is large.
    """
    above = np.array([0, 30, 54, 56, 63, 64, 65, 100, 3000, -60, -86, -104, -3000])
    kind, *_, smallest = of_each(name)
    x = np.zeros((len(above), 24, 8), kind)
    x[:, :, 5] = np.linspace(-3, 3, 24)
    x[:, place, 5] = above
    got = run(FORWARD, device, (x,), 32, cluster, variant="anchored").astype(float)
    want = references.softmax2d(x).astype(float)
    rounded = np.where(above > 52, 2.0**-24 * above, 0)[:, None, None] + 2e-7 if name == "f32" else 2.0**-8
    assert (np.abs(got - want) <= 2 * float(smallest) + want * rounded).all()


@each_cluster
def test_where_all_values_are_less_than_anchors_of_nothing(device: Device, rng: Rng, cluster: int) -> None:
    """An anchor of -inf, of the lowest number, of NaN: its column goes the other way, beside columns that need not."""
    (x,) = values_for(FORWARD, rng, (2, 24, 16))
    x[0, 0, 3], x[0, 0, 7], x[0, 0, 12], x[0, :, 13] = -np.inf, np.finfo(np.float32).min, np.nan, -np.inf
    got = check(FORWARD, device, (x,), 32, cluster, variant="anchored")
    assert np.isnan(got).all(axis=1)[0].nonzero()[0].tolist() == [12, 13]
    assert got[0, 0, 3] == got[0, 0, 7] == 0


@pytest.mark.parametrize("name", ["f32", "f16"])
@pytest.mark.parametrize("channel", [0, 17, slice(None)])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_one_column_without_common_values(device: Device, rng: Rng, name: str, channel: Any, value: float) -> None:
    """It alone sends its tile the other way."""
    (x,) = values_for(FORWARD, rng, (2, 24, 16), name=name)
    x[1, channel, 9] = value
    got = check(FORWARD, device, (x,), 32, 2, variant="anchored")
    none = not (value == -np.inf and channel != slice(None))
    assert np.isnan(got.astype(float)).any(axis=1)[1].tolist() == [none and place == 9 for place in range(16)]


@pytest.mark.parametrize("mask", [-2e6, -1e7, -1e12, -1e30, -np.inf])
def test_what_is_masked_is_0(device: Device, rng: Rng, mask: float) -> None:
    (x,) = values_for(FORWARD, rng, (1, 24, 16))
    x[0, 7, 2:] = mask
    got = check(FORWARD, device, (x,), 32, 2, variant="anchored")
    assert got[0, 7, :2].all()
    assert not got[0, 7, 2:].any()


@pytest.mark.parametrize("name", ["f32", "f16"])
@pytest.mark.parametrize("mean", [2.0**18 - 40, 2.0**18, -(2.0**19), 3e6, -1e9, 1e30])
def test_anchors_far_from_0(device: Device, rng: Rng, mean: float, name: str) -> None:
    """Beyond 2^18 it is none; a value of 16 bits is 65504 at most. Masks are far below."""
    if name == "f16":
        mean = np.sign(mean) * 6e4
    (x,) = values_for(FORWARD, rng, (1, 24, 16), mean, 8.0, name=name)
    x[0, 5:, 3], x[0, :20, 6], x[0, 7, 9] = -np.inf, 0.5, -65504
    check(FORWARD, device, (x,), 32, 2, variant="anchored")


def test_no_anchor_is_taken_of_f64(device: Device) -> None:
    with pytest.raises(ptxrt.Unsupported, match="anchored: is not for f64"):
        FORWARD.plan.select(device, FORWARD.descriptor((64, 512, 7, 7), BY_NAME["f64"]), wish("anchored"))


# As measured on an H200: shape, type, the best forward and backward, the same in HIP.
CHOICES = [
    ((64, 1000, 7, 7), "f32", "anchored held tiled tiled"),
    ((16, 256, 64, 64), "f32", "anchored held held held"),
    ((32, 128, 28, 28), "f32", "anchored held held held"),
    ((32, 128, 28, 28), "f16", "strips strips held held"),
    ((32, 91, 20, 20), "bf16", "strips strips held held"),
    # Of few channels in f32 no cluster
    ((16, 36, 128, 128), "f32", "tiled tiled baseline baseline"),
    ((16, 81, 64, 64), "f32", "tiled tiled tiled tiled"),
    ((16, 81, 64, 64), "f16", "strips strips tiled baseline"),
    ((16, 100, 28, 28), "f16", "strips strips held tiled"),  # too few columns for a thread each
    # Half lines of 16 bits rather than another variant
    ((8, 2048, 16, 16), "f16", "anchored held tiled tiled"),
    ((8, 36, 32, 32), "f32", "small small held held"),
    ((8, 36, 32, 32), "f16", "strips strips held held"),
    # Images of few positions: a block each, unless they are many
    ((256, 64, 2, 2), "f32", "small small tiled held"),
    ((257, 64, 2, 2), "f32", "tiled held tiled held"),
    ((257, 64, 2, 2), "f16", "anchored held held held"),
    ((257, 28, 3, 3), "f16", "tiled tiled tiled tiled"),  # too few values for a block
    ((128, 256, 3, 3), "f32", "tiled held tiled held"),
    # Forward of f64 in PTX some values alone
    ((16, 64, 32, 32), "f64", "held held held held"),
    ((17, 64, 32, 32), "f64", "tiled held held held"),
]


@pytest.mark.parametrize(("shape", "dtype", "best"), CHOICES, ids=str)
def test_the_choice_is_as_measured(sim: Device, shape: Shape, dtype: str, best: str) -> None:
    for (language, way), name in zip(itertools.product(("ptx", "hip"), (FORWARD, BACKWARD)), best.split(), strict=True):
        plan = way.plan.select(sim, way.descriptor(shape, BY_NAME[dtype]), wish(language=language))
        assert plan.variant.name == name, (language, way.plan.op)


@each_cluster
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_backward_puts_bad_values_where_the_formula_does(device: Device, rng: Rng, cluster: int, value: Any) -> None:
    inputs = values_for(BACKWARD, rng, (1, 24, 8))
    inputs[0][0, 20, 3] = inputs[1][0, 3, 5] = value
    got = check(BACKWARD, device, inputs, 32, cluster)
    assert np.isfinite(got).all(axis=(0, 1)).tolist() == [place not in (3, 5) for place in range(8)]


# The plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "language", "best"),
    [(FORWARD, "ptx", "tiled"), (FORWARD, "hip", "held"), (BACKWARD, "ptx", "held")],
    ids=str,
)
def test_who_serves_float64(sim: Device, way: Any, language: str, best: str) -> None:
    plan = way.plan.select(sim, way.descriptor((16, 256, 64, 64), BY_NAME["f64"]), wish(language=language))
    assert plan.variant.name == best


@both
@pytest.mark.parametrize(
    ("shape", "name", "threads", "cluster", "reason"),
    [
        ((1, 40, 64), "f32", 128, 8, r"clusters of \(1, 2, 4\) blocks, not of 8"),
        ((1, 40, 64), "f32", 1024, 1, "1024 threads are more than the 512"),
        ((1, 40, 64), "f64", 512, 1, "512 threads are more than the 256"),
        ((1, 25, 7, 7), "f32", 64, 1, "whole vectors do not fit"),
        ((1, 24, 7, 7), "f32", 32, 4, "whole vectors do not fit"),
        ((1, 1000, 7, 7), "f32", 512, 2, "registers of 2 x 512 threads"),
    ],
)
def test_what_it_does_not_take(
    sim: Device, way: Direction, shape: Shape, name: str, threads: int, cluster: int, reason: str
) -> None:
    with pytest.raises(ptxrt.Unsupported, match=reason):
        plan_for(way, sim, shape, name, threads, cluster)


@pytest.mark.parametrize(
    ("shape", "threads", "cluster"),
    [
        ((8, 21, 512, 512), 128, 1),
        ((16, 256, 64, 64), 256, 1),  # tiles are 128 bytes wide
        ((64, 512, 7, 7), 512, 2),
        ((64, 1000, 7, 7), 512, 4),
    ],
)
def test_the_smallest_wide_tile_is_taken(shape: Shape, threads: int, cluster: int) -> None:
    for way in (FORWARD, BACKWARD):
        problem = way.descriptor(shape)
        assert HeldConfig.heuristic(problem) == HeldConfig(threads, cluster)
        assert len(HeldConfig.candidates(problem)) <= 4


@both
@each_type
def test_no_block_has_more_threads_than_registers_allow(sim: Device, way: Direction, name: str) -> None:
    most = 256 if name == "f64" else 512
    for cluster in CLUSTERS:
        (launch,) = plan_for(way, sim, (1, 64, 1024), name, most, cluster).schedule.launches
        assert launch.block <= launch.kernel.load(sim).resources.max_threads == most


@both
def test_in_hip_a_block_has_the_bits_of_ptx(sim: Device, rng: Rng, way: Direction) -> None:
    for shape, threads, name in (
        ((2, 24, 7, 7), 128, "f32"),
        ((2, 14, 104), 32, "f16"),
        ((1, 210, 8), 64, "bf16"),
        ((1, 40, 14), 64, "f64"),
    ):
        inputs = values_for(way, rng, shape, deviation=4.0, name=name)
        inputs[0].flat[3:5] = -np.inf, np.nan
        results = []
        for language, offset in (("ptx", 0), ("hip", 0), ("hip", 1)):
            wanted = ptxrt.PlanPreference(language=language, variant="held", config=HeldConfig(threads, 1))
            plan = way.plan.select(sim, way.descriptor(shape, element_type(name)), wanted)
            there = [on_device(array, sim, offset) for array in inputs]
            results.append(plan.run((*there, None)).to_host().astype(np.float64))
        np.testing.assert_array_equal(results[0], results[1])
        np.testing.assert_array_equal(results[0], results[2])


@both
def test_hip_has_no_clusters(sim: Device, way: Direction) -> None:
    wanted = wish("hip/held", config=HeldConfig(128, 2))
    with pytest.raises(ptxrt.Unsupported, match="hip/held: HIP has no clusters of blocks"):
        way.plan.select(sim, way.descriptor((1, 64, 64)), wanted)


def test_a_thread_of_a_small_problem_has_few_values(sim: Device) -> None:
    for shape, values in (((2, 64, 16, 16), 8), ((2, 1, 64, 1 << 11), 32)):
        problem = FORWARD.descriptor(shape)
        assert HeldConfig.heuristic(problem).values == values
    wanted = ptxrt.PlanPreference(variant="held")
    (launch,) = FORWARD.plan.select(sim, FORWARD.descriptor((2, 64, 16, 16)), wanted).schedule.launches
    assert (launch.grid, launch.block) == ((32,), 128)
