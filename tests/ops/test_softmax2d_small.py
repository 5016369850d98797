"""The variant ``small`` of softmax2d and its backward: blocks of 8 columns, of each number of values a thread."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import Rng, Shape
from test_softmax2d import BACKWARD, FORWARD, Direction, both, check, plan_for, run, values_for
from tolerances import relative_error

import ptxrt
from ptxrt import Device

pytestmark = pytest.mark.ptx


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "shape",
    [
        (2, 1, 5),  # columns of one value; fewer columns than a warp has lanes
        (1, 7, 32),  # fewer channels than threads of a column
        (3, 32, 33),  # all that a thread takes of 32 channels, two blocks a row
        (1, 33, 40),
        (2, 64, 31),
        (1, 65, 32),
        (2, 127, 70),
        (1, 128, 64),
    ],
    ids=str,
)
@both
def test_sizes_round_those_of_threads_and_blocks(device: Device, rng: Rng, shape: Shape, way: Direction) -> None:
    check(way, device, values_for(way, rng, shape, deviation=3.0), "small")
    check(way, device, values_for(way, rng, shape, mean=1e4), "small", 1, large_mean=True)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@both
def test_types_of_16_bits(device: Device, rng: Rng, name: str, way: Direction) -> None:
    for offset in (0, 1):
        check(way, device, values_for(way, rng, (2, 40, 45), deviation=3.0, name=name), "small", offset)


@pytest.mark.parametrize("channels", [20, 50, 100])
def test_columns_of_infinities_and_of_no_numbers(device: Device, rng: Rng, channels: int) -> None:
    (x,) = values_for(FORWARD, rng, (1, channels, 40))
    x[0, :, 3], x[0, 1, 4], x[0, 2, 5], x[0, channels - 1, 35], x[0, 3:, 6] = -np.inf, np.inf, np.nan, np.nan, -np.inf
    y = check(FORWARD, device, (x,), "small")
    assert set(np.flatnonzero(np.isnan(y).any((0, 1)))) == {3, 4, 5, 35}


def test_values_far_apart_have_denormal_results(device: Device, rng: Rng) -> None:
    (x,) = values_for(FORWARD, rng, (1, 50, 40))
    x[0, 7] += 95
    y = run(FORWARD, device, (x,), "small")
    want = FORWARD.reference(x)
    np.testing.assert_allclose(y, want, rtol=3e-7, atol=1.5e-45)
    assert 0 < y[0, 8].min() <= y[0, 8].max() < 1e-38


@both
def test_what_it_cannot_do_is_refused_and_what_it_does_best_is_its_own(device: Device, way: Direction) -> None:
    for shape, name, reason in (
        ((2, 129, 64), "f32", "129 channels are more than 128"),
        ((2, 64, 64), "f64", "is not for f64"),
        ((1 << 13, 128, 1 << 12), "f32", "4294967296 elements are more than 4294967295"),
    ):
        with pytest.raises(ptxrt.Unsupported, match=f"small: .*{reason}"):
            plan_for(way, device, shape, "small", name)
    assert plan_for(way, device, (2, 64, 16, 16)).variant.name == "small"
    assert plan_for(way, device, (2, 64, 16, 16), kind="f64").variant.name != "small"
    assert plan_for(way, device, (64, 64, 64, 64)).variant.name != "small"


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize(("channels", "channel"), [(20, 0), (64, 63), (100, 17)])
def test_backward_bad_values_are_of_their_column(
    device: Device, rng: Rng, channels: int, channel: int, operand: int, value: float
) -> None:
    inputs = values_for(BACKWARD, rng, (2, channels, 21))
    inputs[operand][1, channel, 18] = value
    got = check(BACKWARD, device, inputs, "small")
    assert not np.isfinite(got[1, :, 18]).any()
    assert np.isfinite(np.delete(got, 18, axis=2)).all()
    assert np.isfinite(got[0]).all()


@pytest.mark.parametrize("channels", [3, 64, 128])
def test_what_cancels_backward_costs_no_accuracy(device: Device, rng: Rng, channels: int) -> None:
    """Of a constant gradient nothing is left but what the sum of y lacks from 1: some 1e-7."""
    y = FORWARD.reference(rng.standard_normal((2, channels, 30))).astype(np.float32)
    g = np.full_like(y, 12345.678)
    lacking = np.apply_along_axis(lambda column: math.fsum([1, *-column]), 1, y.astype(float))
    want = y.astype(float) * g * lacking[:, None]
    assert relative_error(run(BACKWARD, device, (g, y), "small"), want) <= 2e-7
    g[0, 0], g[1, :] = 3e38, -3e38  # whose products f32 would not add up
    check(BACKWARD, device, (g, y), "small")
