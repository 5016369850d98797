"""layer_norm and rms_norm of short rows, of which a warp has several at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Rng, refused
from op_testing import check_error, wish
from test_rows_held import (
    check_one_unaligned,
    check_without_weights,
    every_norm,
    every_type,
    forward,
    in_place,
    problem,
    select,
)
from tolerances import bar

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import references
from ptxrt.ops.framework import rows_together
from ptxrt.ops.framework.rows_held import HeldConfig
from ptxrt.ops.framework.rows_together import shares

pytestmark = pytest.mark.ptx

SHARES = [(name, *share) for name in ("f32", "f16", "bf16") for share in shares(BY_NAME[name])]


def width_of(name: str, lanes: int, slots: int) -> int:
    return lanes * slots * 16 // BY_NAME[name].size


def together(device: Device, norm: str, x: Any, *weights: Any, **how: Any) -> Any:
    return forward(device, norm, x, *weights, variant="together", **how)


def check(device: Device, norm: str, x: Any, *weights: Any, eps: float = 1e-5, large_mean: bool = False) -> Any:
    got = together(device, norm, x, *weights, eps=eps)
    want = getattr(references, norm)(x, x.shape[1:], *weights, eps=eps)
    name = ptxrt.dtypes.element_type(x.dtype).name
    check_error(norm, device, got, want, bar(norm, name, want, large_mean=large_mean), x.shape)
    return got


@every_norm
@pytest.mark.parametrize(("name", "lanes", "slots"), SHARES)
@pytest.mark.sanitize
def test_every_share_of_a_row(device: Device, rng: Rng, norm: str, name: str, lanes: int, slots: int) -> None:
    """A row, and rows to spare; scaled rows beside others; at any address; in place."""
    for count in (1, 37):
        _, x, *weights = problem(norm, rng, (count, width_of(name, lanes, slots)), name)
        if count > 1:
            x[0] += 100
        got = check(device, norm, x, *weights)
        if lanes == 32:  # whose lanes have what the threads of a block of one warp have
            held = forward(device, norm, x, *weights, variant="held", config=HeldConfig(32))
            assert got.tobytes() == held.tobytes()
        if count > 1 and name != "f16":
            x[1], x[-1], x[4] = x[1] * x.dtype.type(1e30), x[-1] * x.dtype.type(1e-18), x.dtype.type(2.0**127)
            scaled = check(device, norm, x, *weights)
            others = [0, 2, 3, *range(5, count - 1)]
            assert scaled[others].tobytes() == got[others].tobytes()
            got = scaled
        assert together(device, norm, x, *weights, offset=1).tobytes() == got.tobytes()
        for offset in (0, 1):  # by one loop and by the other
            there = in_place(device, norm, "together", x, *weights, offset=offset)
            assert there.tobytes() == got.tobytes(), f"in place, {offset}"


@every_norm
@pytest.mark.parametrize(("name", "lanes", "slots"), [share for share in SHARES if share[0] != "f32" and share[2] < 3])
@pytest.mark.sanitize
def test_warps_take_rows_in_turn(
    device: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, norm: str, name: str, lanes: int, slots: int
) -> None:
    """More turns than a warp has lots of rows under way, and fewer; among them rows that are scaled."""
    for count in (32 // lanes * 4 * 9 + 3, 32 // lanes * 4 * 3):
        _, x, *weights = problem(norm, rng, (count, width_of(name, lanes, slots)), name)
        if name == "bf16":
            x[count // 2] *= x.dtype.type(1e30)
        want = check(device, norm, x, *weights)
        with monkeypatch.context() as patch:
            patch.setattr(rows_together, "_MULTIPROCESSORS", 1)
            patch.setattr(rows_together, "_WARPS", {norm: {slots: (2, 2)}})
            for offset in (0, 1):
                assert together(device, norm, x, *weights, offset=offset).tobytes() == want.tobytes()
            assert select(device, norm, "", x, 1e-5, "together").schedule.launches[0].grid == (2,)
            assert in_place(device, norm, "together", x, *weights).tobytes() == want.tobytes()


@every_norm
@pytest.mark.parametrize("width", [64, 256, 512])
def test_no_copy_comes_before_rows_have_been_read(
    sim: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, norm: str, width: int
) -> None:
    """Sim's checks say so; values do not."""
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    monkeypatch.setattr(rows_together, "_MULTIPROCESSORS", 1)
    monkeypatch.setattr(rows_together, "_WARPS", {norm: {1: (1, 1), 2: (1, 1)}})
    _, x, *weights = problem(norm, rng, (4 * max(256 // width, 1) * 7, width), "f16")
    check(sim, norm, x, *weights)


@every_norm
@every_type
@pytest.mark.parametrize("count", [1, 5])
def test_in_place_a_row_is_read_before_it_is_written(
    sim: Device, rng: Rng, monkeypatch: pytest.MonkeyPatch, norm: str, name: str, count: int
) -> None:
    """One by one, too, where rows behind the last one are the last one: sim's checks say so."""
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    _, x, *weights = problem(norm, rng, (count, 128), name)
    want = together(sim, norm, x, *weights)
    for offset in (0, 1):
        assert in_place(sim, norm, "together", x, *weights, offset=offset).tobytes() == want.tobytes()


@every_norm
def test_one_array_alone_is_unaligned(device: Device, rng: Rng, norm: str) -> None:
    check_one_unaligned(device, norm, "together", *problem(norm, rng, (5, 64))[1:])


@every_norm
@every_type
@pytest.mark.parametrize("width", [64, 256])
def test_nan_and_infinity_spoil_no_other_row(device: Device, rng: Rng, norm: str, name: str, width: int) -> None:
    _, x, *weights = problem(norm, rng, (19, width), name)
    right = together(device, norm, x, *weights)
    x[0, 3], x[5, 0], x[18, width - 1] = np.nan, np.inf, -np.inf
    y = together(device, norm, x, *weights)
    spoiled = [0, 5, 18]
    assert np.isnan(y[spoiled].astype("f4")).any(axis=1).all()
    rest = [i for i in range(19) if i not in spoiled]
    assert y[rest].tobytes() == right[rest].tobytes()


@every_norm
@pytest.mark.parametrize("width", [64, 384])
def test_without_weights(device: Device, rng: Rng, norm: str, width: int) -> None:
    check_without_weights(device, norm, "together", problem(norm, rng, (5, width))[1:])


@every_norm
@every_type
@pytest.mark.parametrize(("mean", "scale"), [(1e4, 1.0), (0.0, 1e-3), (0.0, 100.0)])
def test_any_mean_and_deviation_costs_no_digits(
    device: Device, rng: Rng, norm: str, name: str, mean: float, scale: float
) -> None:
    _, x, *weights = problem(norm, rng, (4, 256), name, mean, scale)
    check(device, norm, x, *weights, eps=0.0, large_mean=mean > 0)


@every_norm
@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e30, 3e37])
def test_squares_need_not_be_numbers_of_f32(device: Device, rng: Rng, norm: str, scale: float) -> None:
    _, x, *weights = problem(norm, rng, (2, 128), scale=scale)
    want = getattr(references, norm)(x, (128,), *weights, eps=0.0)
    check_error(norm, device, together(device, norm, x, *weights, eps=0.0), want, 2e-7)


@every_type
def test_equal_values(device: Device, rng: Rng, name: str) -> None:
    """Whose deviation is 0, whatever they are, and in each lane's row."""
    _, x, weight, bias = problem("layer_norm", rng, (9, 96), name)
    x[1:] = np.linspace(-30, 1000, 8).astype(x.dtype)[:, None]
    got = check(device, "layer_norm", x, weight, bias)
    np.testing.assert_array_equal(got[1:], np.broadcast_to(bias.astype(x.dtype), (8, 96)))


@pytest.mark.parametrize(
    ("name", "shape", "why"),
    [
        ("f64", (2, 64), "no entries of f64"),
        ("f32", (2, 66), "rows of 66 values"),
        ("f32", (2, 8), "4 lanes or more cannot share vectors of rows of 8 values"),
        ("f16", (2, 1280), "up to 4 vectors of a row, not 5"),
        ("f32", (2, 512), "up to 3 vectors of a row, not 4"),
        ("f32", ((1 << 30) + 1, 64), "134217729 blocks are more than"),
    ],
)
def test_what_it_cannot_do(name: str, shape: tuple[int, int], why: str) -> None:
    descriptor = ops.LayerNormDescriptor(shape, shape[1:], BY_NAME[name])
    with refused(ptxrt.errors.Unsupported, "layer_norm", "descriptor", why):
        ops.LayerNormPlan.select(Device("sim:0"), descriptor, wish("together"))


@pytest.mark.parametrize(
    ("name", "width", "blocks"),
    [
        ("f32", 256, 1 << 15),
        ("f16", 768, 1 << 16),
        ("f16", 512, 132 * 12),
        ("bf16", 256, 132 * 16),
        ("f16", 64, 132 * 16),
    ],
)
def test_warps_are_as_few_as_run_at_a_time_where_they_take_turns(name: str, width: int, blocks: int) -> None:
    descriptor = ops.LayerNormDescriptor((1 << 17, width), (width,), BY_NAME[name])
    plan = ops.LayerNormPlan.select(Device("sim:0"), descriptor, wish("together"))
    assert plan.schedule.launches[0].grid == (blocks,)


@pytest.mark.parametrize(
    ("name", "shape", "variant"),
    [
        ("f32", (2048, 256), "together"),
        ("f32", (2047, 384), "held_warps"),  # a few rows
        ("f32", (8191, 64), "held_warps"),  # and values
        ("f32", (8192, 64), "together"),
        ("f32", (8192, 512), "held_warps"),
        ("f16", (2048, 1024), "streamed"),
        ("f16", (1 << 15, 1024), "together"),
        ("bf16", (2048, 512), "together"),
        ("bf16", (2048, 768), "streamed"),
        ("bf16", (1 << 15, 768), "together"),
        ("f16", (2048, 1280), "streamed"),
        ("f64", (8192, 64), "held"),
    ],
)
def test_what_is_chosen(name: str, shape: tuple[int, int], variant: str) -> None:
    descriptor = ops.LayerNormDescriptor(shape, shape[1:], BY_NAME[name])
    assert ops.LayerNormPlan.select(Device("sim:0"), descriptor, wish()).variant.name == variant
