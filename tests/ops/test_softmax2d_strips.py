"""The variant ``strips`` of softmax2d and its backward: threads with neighbouring columns, alone or sharing them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Rng, Shape
from op_testing import Guarded, check_error, on_device, wish
from test_softmax2d import BACKWARD, FORWARD, Direction, both, of_each, plan_for, values_for
from test_softmax2d import run as run_any
from tolerances import bar, half_ulp

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import references
from ptxrt.ops._softmax2d_strips import FAMILY, StripsConfig

pytestmark = pytest.mark.ptx
each_half = pytest.mark.parametrize("name", ["f16", "bf16"])
each_lanes = pytest.mark.parametrize("lanes", [1, 3, 8])


def run(
    way: Direction,
    device: Device,
    inputs: Any,
    config: StripsConfig,
    offset: int = 0,
    in_place: int | None = None,
    variant: str = "strips",
    behind: int | None = None,
) -> Any:
    """Return the host result; in place is over one of the inputs; all operands have the offset, or that at `behind`."""
    shape, kind = inputs[0].shape, inputs[0].dtype
    plan = way.plan.select(device, way.descriptor(shape, element_type(kind)), wish(variant, config=config))
    by = [offset if behind in (None, place) else 0 for place in range(len(inputs) + 1)]
    there = [on_device(array, device, each) for array, each in zip(inputs, by, strict=False)]
    if in_place is not None:
        return plan.run((*there, there[in_place])).to_host()
    out = Guarded(shape, kind, device, by[-1])
    plan.run((*there, out.array))
    return out.host()


def check(
    way: Direction, device: Device, inputs: Any, config: StripsConfig, offset: int = 0, large_mean: bool = False
) -> Any:
    got = run(way, device, inputs, config, offset)
    with np.errstate(invalid="ignore"):
        want = way.reference(*inputs)
    at_most = bar("softmax2d", element_type(inputs[0].dtype).name, want, large_mean=large_mean)
    check_error(way.op, device, got, want, at_most, (inputs[0].shape, config, offset))
    return got


# Values ---------------------------------------------------------------------------------------------------------------

ALONE = [  # channels round those that an entry holds; the last tile is narrower, rows are whole vectors or not
    ((2, 1, 64), StripsConfig(4, 32)),
    ((1, 2, 260), StripsConfig(4, 64)),
    ((2, 3, 130), StripsConfig(2, 32)),
    ((1, 4, 520), StripsConfig(4, 64)),
    ((2, 7, 131), StripsConfig(4, 32)),
]
SHORT = [  # of 16 bits alone
    ((1, 8, 70), StripsConfig(2, 32)),
    ((1, 11, 66), StripsConfig(2, 32)),
    ((1, 12, 66), StripsConfig(2, 32)),
    ((2, 19, 257), StripsConfig(2, 128)),
    ((2, 20, 64), StripsConfig(2, 32)),
    ((1, 23, 62), StripsConfig(2, 32)),
    ((2, 3, 264), StripsConfig(8, 32)),
    ((1, 7, 259), StripsConfig(8, 32)),
    ((1, 4, 520), StripsConfig(8, 64)),
    ((1, 11, 68), StripsConfig(4, 32)),
    ((1, 19, 68), StripsConfig(4, 32)),
    ((1, 16, 130), StripsConfig(4, 32)),
    ((1, 21, 130), StripsConfig(4, 32)),
    ((1, 24, 130), StripsConfig(2, 64)),
    ((1, 35, 65), StripsConfig(2, 32)),
]
SHARED = [
    ((2, 36, 67), StripsConfig(2, 32, 2)),
    ((1, 9, 64), StripsConfig(2, 32, 8)),  # three threads have no channel
    ((1, 45, 130), StripsConfig(4, 32, 3)),
    ((1, 60, 66), StripsConfig(4, 64, 4)),
    ((2, 81, 64), StripsConfig(2, 32, 4)),
    ((1, 100, 72), StripsConfig(2, 64, 3)),
    ((1, 277, 65), StripsConfig(2, 32, 8)),  # the last one has fewer
]


@pytest.mark.sanitize
@both
@pytest.mark.parametrize(("shape", "config"), [*ALONE, *SHORT, *SHARED], ids=str)
def test_sizes_round_those_of_threads_and_blocks(
    device: Device, rng: Rng, way: Direction, shape: Shape, config: StripsConfig
) -> None:
    for name in ("f32", "f16", "bf16")[(shape, config) not in ALONE :]:
        inputs = values_for(way, rng, shape, deviation=3.0, name=name)
        want = check(way, device, inputs, config).tobytes()
        assert run(way, device, inputs, config, 1).tobytes() == want
    check(way, device, values_for(way, rng, shape, 1e4, name="f16"), config, large_mean=True)


@both
@pytest.mark.parametrize("config", [StripsConfig(2, 32), StripsConfig(4, 32), StripsConfig(8, 32)], ids=str)
def test_in_place_and_at_any_address(device: Device, rng: Rng, way: Direction, config: StripsConfig) -> None:
    inputs = values_for(way, rng, (2, 6, 272), name="f16")
    want = check(way, device, inputs, config).tobytes()
    for place in range(len(inputs)):
        assert run(way, device, inputs, config, in_place=place).tobytes() == want
    for offset in range(1, 9):
        assert run(way, device, inputs, config, offset).tobytes() == want


@both
def test_a_shared_column_in_place(device: Device, rng: Rng, way: Direction) -> None:
    inputs = values_for(way, rng, (2, 50, 70), name="bf16")
    config = StripsConfig(2, 32, 3)
    want = check(way, device, inputs, config).tobytes()
    for place in range(len(inputs)):
        assert run(way, device, inputs, config, in_place=place).tobytes() == want


@both
def test_of_f32_it_has_the_bits_of_the_baseline(device: Device, rng: Rng, way: Direction) -> None:
    for channels, positions in ((2, 2), (7, 4), (5, 2)):
        inputs = values_for(way, rng, (2, channels, 132), deviation=4.0)
        inputs[0][0, 1, 3], inputs[0][1, 0, 131], inputs[0][0, :, 7], inputs[0][1, 1:, 2] = (
            np.nan,
            np.inf,
            -np.inf,
            -np.inf,
        )
        got = run(way, device, inputs, StripsConfig(positions, 32))
        assert got.tobytes() == run_any(way, device, inputs, "baseline").tobytes()


@both
@pytest.mark.parametrize(
    ("names", "shape", "positions"),
    [  # each entry that HIP has: as many channels as it holds, and fewer
        (("f32",), (2, 7, 71), 2),
        (("f32",), (2, 3, 132), 4),
        (("f32",), (1, 5, 136), 4),
        (("f16", "bf16"), (2, 7, 70), 2),
        (("f16", "bf16"), (2, 19, 66), 2),
        (("f16", "bf16"), (1, 29, 65), 2),
        (("f16", "bf16"), (2, 3, 132), 4),
        (("f16", "bf16"), (2, 6, 130), 4),
        (("f16", "bf16"), (1, 11, 132), 4),
        (("f16", "bf16"), (2, 7, 264), 8),
    ],
    ids=str,
)
def test_in_hip_it_has_the_same_bits(
    device: Device, rng: Rng, way: Direction, names: tuple[str, ...], shape: Shape, positions: int
) -> None:
    for name in names:
        inputs = values_for(way, rng, shape, deviation=4.0, name=name)
        largest = of_each(name)[1] if name != "f32" else np.finfo("f4").max
        inputs[0][0, :, :9] = 0.0
        inputs[0][0, 0, :6] = np.nan, np.inf, -np.inf, largest, -largest, 91.0
        inputs[0][0, :, 6], inputs[0][0, 1:, 7], inputs[0][0, -1, 8] = -np.inf, -np.inf, np.nan
        config = StripsConfig(positions, 32)
        want = run(way, device, inputs, config).tobytes()
        for behind in (None, *range(len(inputs) + 1)):
            assert run(way, device, inputs, config, 1, None, "hip/strips", behind).tobytes() == want, (name, behind)
        for place in (None, *range(len(inputs))):
            assert run(way, device, inputs, config, 0, place, "hip/strips").tobytes() == want, (name, place)


# Values that are no common ones ---------------------------------------------------------------------------------------


@each_lanes
@each_half
def test_values_that_are_no_common_ones(device: Device, rng: Rng, name: str, lanes: int) -> None:
    kind, largest, tiny, smallest = of_each(name)
    x = rng.standard_normal((1, 23, 66)).astype(kind)
    x[0, 20, 0], x[0, 3, 1], x[0, 0, 65] = np.nan, np.inf, np.nan
    x[0, :, 2] = -np.inf
    x[0, :, 3] = -np.inf  # but for one
    x[0, 13, 3] = -largest
    x[0, ::2, 4] = -np.inf
    x[0, 1:, 5] = -np.inf
    x[0, :, 6], x[0, 7, 6], x[0, 20, 6] = -largest, largest, largest
    x[0, :, 7] = 0.1
    x[0, 9, 8] = -np.log(smallest)  # the others are denormal, or nearly
    x[0, :, 9] = -largest
    x[0, :22, 10] = -np.inf
    got, want = run(FORWARD, device, (x,), StripsConfig(2, 32, lanes))[0], references.softmax2d(x)[0]
    assert np.isnan(got.astype(float)).any(axis=0).nonzero()[0].tolist() == [0, 1, 2, 65]
    assert np.isnan(got[:, [0, 1, 2, 65]].astype(float)).all()
    exact = [3, 5, 6, 7, 9, 10]
    np.testing.assert_array_equal(got[:, exact], want[:, exact].astype(kind))
    small = np.abs(got[:, 8].astype(np.longdouble) - want[:, 8])
    assert (want[:, 8] < tiny).any()
    assert (
        small
        <= 1.5 * np.longdouble(smallest) + want[:, 8] * np.longdouble(np.finfo(kind).eps if name != "bf16" else 2**-7)
    ).all()
    np.testing.assert_allclose(got[:, 4].astype(float), want[:, 4].astype(float), rtol=2**-7)


@each_lanes
def test_powers_reach_the_smallest_number(device: Device, lanes: int) -> None:
    """That of bfloat16 is e to the power of -92.2: every result is rounded once, wherever the maximum is."""
    kind = BY_NAME["bf16"].numpy
    for place in (0, 15):
        x = np.zeros((1, 16, 64), kind)
        x[0, np.arange(16) != place, :] = np.linspace(-80, -104, 15 * 64).reshape(15, 64)
        got = run(FORWARD, device, (x,), StripsConfig(2, 32, lanes)).astype(float)
        want = references.softmax2d(x).astype(float)
        assert (np.abs(got - want) <= half_ulp(want, "bf16") * 1.01).all()
        assert (got[want > 0.51 * 2.0**-133] > 0).all()


@each_lanes
@pytest.mark.parametrize(("name", "mean"), [("f16", 6e4), ("f16", -6e4), ("bf16", 1e6), ("bf16", -3e38)])
def test_far_from_0_differences_are_exact(device: Device, rng: Rng, name: str, mean: float, lanes: int) -> None:
    """Steps of an element are up to 32 there, in f16, and larger than any power reaches in bf16."""
    x = (mean + np.abs(mean) * 2.0**-10 * rng.integers(-4, 5, (1, 20, 64))).astype(BY_NAME[name].numpy)
    got, want = run(FORWARD, device, (x,), StripsConfig(2, 32, lanes)).astype(float), references.softmax2d(x)
    np.testing.assert_allclose(got, want.astype(float), rtol=2.0**-10 if name == "f16" else 2.0**-8, atol=2e-8)


@each_half
@each_lanes
def test_a_column_of_equal_values_is_one_over_c(device: Device, name: str, lanes: int) -> None:
    for channels in (1, 3, 16, 22):
        x = np.full((1, channels, 64), 0.1, BY_NAME[name].numpy)
        got = run(FORWARD, device, (x,), StripsConfig(2, 32, lanes))
        np.testing.assert_array_equal(got, np.full_like(x, 1 / channels))


@each_lanes
@each_half
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operand", [0, 1])
def test_backward_puts_bad_values_where_the_formula_does(
    device: Device, rng: Rng, lanes: int, name: str, value: float, operand: int
) -> None:
    inputs = values_for(BACKWARD, rng, (2, 21, 65), name=name)
    for channel, column in ((0, 3), (20, 64), (9, 11)):
        inputs[operand][1, channel, column] = value
    got = check(BACKWARD, device, inputs, StripsConfig(2, 32, lanes)).astype(float)
    assert not np.isfinite(got[1][:, [3, 11, 64]]).any()
    assert np.isfinite(got).all(axis=1).sum() == 2 * 65 - 3


@each_half
@each_lanes
def test_what_cancels_backward_costs_no_accuracy(device: Device, rng: Rng, name: str, lanes: int) -> None:
    """Products of gradients that cancel, but for one small: a sum of f32 would have nothing of that."""
    g, y = values_for(BACKWARD, rng, (1, 21, 64), name=name)
    y[:, :20] = 2.0**-5
    g[:, :10], g[:, 10:20], g[:, 20], y[:, 20] = 2.0**14, -(2.0**14), 1.0, 2.0**-12
    got = run(BACKWARD, device, (g, y), StripsConfig(2, 32, lanes)).astype(float)
    want = references.softmax2d_backward(g, y).astype(float)
    np.testing.assert_allclose(got, want, rtol=2.0**-8 if name == "bf16" else 2.0**-10)
    y[:, 20], g[:, 20] = 1.0, 0.5  # d is that
    got = run(BACKWARD, device, (g, y), StripsConfig(2, 32, lanes)).astype(float)[0, 20]
    np.testing.assert_array_equal(got, 0)


@each_lanes
def test_backward_of_huge_gradients(device: Device, lanes: int) -> None:
    kind, largest, *_ = of_each("bf16")
    g = np.zeros((1, 12, 64), kind)
    y = np.full(g.shape, 0.125, kind)
    g[0, 0], g[0, 5], g[0, 11], y[0, 7] = 0.9 * largest, -largest / 3, largest / 3, 0
    check(BACKWARD, device, (g, y), StripsConfig(2, 32, lanes))


# The plan -------------------------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(
    ("shape", "name", "config", "reason"),
    [
        ((2, 3, 64), "f64", StripsConfig(2, 32), "is not for f64"),
        ((2, 3, 31), "f16", StripsConfig(2, 32), "31 positions of an image are less than a warp has threads"),
        ((2, 36, 64), "f16", StripsConfig(2, 32), "36 channels of 2 columns do not fit"),
        ((2, 8, 64), "f32", StripsConfig(2, 32), "8 channels of 2 columns do not fit"),
        ((2, 8, 64), "f32", StripsConfig(4, 32), "8 channels of 4 columns do not fit"),
        ((2, 24, 64), "f16", StripsConfig(4, 32), "24 channels of 4 columns do not fit"),
        ((2, 8, 64), "f16", StripsConfig(8, 32), "8 channels of 8 columns do not fit"),
        ((2, 3, 64), "f16", StripsConfig(3, 32), "3 channels of 3 columns do not fit"),
        ((2, 3, 64), "f16", StripsConfig(2, 96), "96 x 1 threads are no power of two"),
        ((2, 3, 64), "f16", StripsConfig(2, 16), "16 x 1 threads are no power of two"),
        ((2, 3, 64), "f16", StripsConfig(2, 32, 0), "32 x 0 threads are no power of two"),
        ((2, 30, 64), "f16", StripsConfig(2, 64, 5), "64 x 5 threads are no power of two"),
        ((2, 30, 64), "f32", StripsConfig(2, 32, 2), "share columns of 16 bits alone"),
        ((1, 1, (1 << 31) + 2), "f16", StripsConfig(2, 32), "2147483650 positions are more than 2147483648"),
        ((1 << 16, 1, 64), "f16", StripsConfig(2, 32), "65536 blocks do not fit grid.y"),
    ],
)
def test_what_it_does_not_take(
    sim: Device, way: Direction, shape: Shape, name: str, config: StripsConfig, reason: str
) -> None:
    with pytest.raises(ptxrt.Unsupported, match=f"strips: .*{reason}"):
        way.plan.select(sim, way.descriptor(shape, BY_NAME[name]), wish("strips", config=config))


@both
@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (StripsConfig(2, 32, 2), "share columns in PTX alone"),
        (StripsConfig(4, 32), "19 channels of 4 columns do not fit"),
    ],
)
def test_what_it_does_not_take_in_hip(sim: Device, way: Direction, config: StripsConfig, reason: str) -> None:
    with pytest.raises(ptxrt.Unsupported, match=f"strips: .*{reason}"):
        way.plan.select(sim, way.descriptor((2, 19, 64), BY_NAME["f16"]), wish("hip/strips", config=config))


@both
@pytest.mark.parametrize(
    ("shape", "name", "best"),
    [
        ((8, 19, 256, 512), "f16", StripsConfig(2, 128)),
        ((8, 19, 256, 512), "f32", None),
        ((2, 2, 512, 512), "f16", StripsConfig(4, 128)),
        ((2, 2, 512, 512), "f32", StripsConfig(4, 128)),
        ((2, 2, 512, 511), "f16", StripsConfig(2, 128)),
        ((1, 2, 512, 512), "bf16", StripsConfig(2, 128)),
        ((8, 2, 512, 512), "bf16", StripsConfig(8, 128)),
        ((8, 8, 512, 512), "bf16", StripsConfig(4, 128)),
        ((8, 7, 512, 512), "f32", StripsConfig(4, 128)),
        ((8, 8, 512, 512), "f32", None),
        ((8, 2, 512, 512), "f64", None),
        ((4, 3, 8, 8), "f16", StripsConfig(2, 32)),
        ((4, 3, 9, 7), "f16", None),
        ((4, 16, 16, 16), "f16", None),  # few elements
        ((8, 36, 32, 31), "f16", StripsConfig(2, 32, 2)),
        ((8, 35, 64, 64), "f16", StripsConfig(2, 128)),
        ((16, 81, 64, 64), "f16", StripsConfig(2, 32, 4)),
        ((16, 184, 64, 64), "f16", StripsConfig(2, 32, 8)),
        ((16, 185, 64, 64), "f16", None),
        ((64, 128, 31, 32), "f16", StripsConfig(2, 32, 6)),
        ((64, 128, 15, 16), "f16", None),
        ((1 << 16, 3, 8, 8), "f16", None),
    ],
)
def test_who_is_served_by_it(sim: Device, way: Direction, shape: Shape, name: str, best: StripsConfig | None) -> None:
    plan = plan_for(way, sim, shape, kind=name)
    assert (plan.config if plan.variant.name == "strips" else None) == best
    plan = way.plan.select(sim, way.descriptor(shape, BY_NAME[name]), wish(language="hip"))
    in_hip = None if best is None or best.lanes > 1 else best
    assert (plan.config if plan.variant.name == "strips" else None) == in_hip


@both
def test_every_entry_has_the_registers_for_its_threads(sim: Device, way: Direction) -> None:
    entries = [spec for spec in FAMILY.kernels() if spec.entry.startswith(way.op + "_s") and spec.language == "ptx"]
    assert len(entries) > 20
    for spec in entries:
        assert spec.load(sim).resources.max_threads == 256
