"""batch_norm and group_norm over the rows of channels-last arrays, in each way through their loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Rng, Shape, skip_stand_in
from op_testing import Guarded, check_error, on_device, variants, wish
from problems import made
from tolerances import bar

from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import references, tuning
from ptxrt.ops._batch_norm_last import ChannelsLastTickets as BatchTickets
from ptxrt.ops._batch_norm_whole import WholeConfig
from ptxrt.ops._group_norm_last import ChannelsLastTickets as GroupTickets
from ptxrt.ops._norm_last import LastConfig, Rows
from ptxrt.ops._norm_last_cluster import HeldTile, TileConfig
from ptxrt.ops._norm_last_held import HeldConfig, HeldRows
from ptxrt.ops._norm_last_tickets import TicketRows, TileTicketsConfig
from ptxrt.ops.framework import Limits, Refusal, Workspace, parameter_type
from ptxrt.runtime.layout import channels_last

# Shape, type, offset of the values, config; and by how many elements arrays miss a multiple of 16 bytes.
WAYS: list[tuple[Shape, str, float, LastConfig, int]] = [
    ((2, 92, 95), "f32", 1e4, LastConfig(16, 8, 4), 0),  # a tile that is not full, threads without a row
    ((1, 260, 61), "f32", 1e4, LastConfig(64, 4, 1), 0),  # several chunks a block
    ((1, 48, 10, 13), "f32", 0, LastConfig(16, 2, 2), 1),  # no vectors
    ((1, 37, 70), "f32", 1e4, LastConfig(16, 2, 1), 0),  # channels one by one
    ((1, 136, 130), "f16", 1e2, LastConfig(16, 4, 2), 0),
    ((1, 24, 61), "bf16", 30, LastConfig(2, 2, 2), 1),
    ((1, 40, 110), "f64", 1e4, LastConfig(16, 4, 2), 0),
    ((1, 9, 33), "f64", -1e12, LastConfig(4, 1, 1), 0),
]
HELD: list[tuple[Shape, str, float, HeldConfig, int]] = [
    ((2, 92, 95), "f32", 1e4, HeldConfig(64, 8, 4, 0), 0),  # a tile that is not full, threads without a row
    ((1, 64, 5200), "f32", 1e4, HeldConfig(256, 4, 2, 9), 0),  # more turns than a thread holds, keeps and fetches
    ((1, 48, 17, 100), "f32", 0, HeldConfig(192, 1, 0, 1), 1),  # no vectors
    ((1, 64, 9700), "f32", 1e4, HeldConfig(256, 150, 1, 2), 0),  # blocks that have several slices
    ((5, 16, 7), "f32", 1e4, HeldConfig(256, 2, 1, 0), 0),  # more tiles than blocks
    ((1, 136, 1500), "f16", 1e2, HeldConfig(256, 2, 2, 0), 0),
    ((1, 24, 61), "bf16", 30, HeldConfig(32, 2, 2, 0), 1),
    ((1, 40, 2900), "f64", 1e4, HeldConfig(80, 2, 2, 2), 0),
    ((1, 8, 33), "f64", -1e12, HeldConfig(64, 1, 1, 0), 0),
]
TILES: list[tuple[Shape, str, float, TileConfig, int]] = [
    ((2, 96, 95), "f32", 1e4, TileConfig(2, 10), 0),  # a tile that is not full, threads without a row
    ((1, 64, 1900), "f32", 1e4, TileConfig(2, 4), 0),  # more rows than are under way
    ((1, 48, 17, 100), "f32", 0, TileConfig(4, 12), 1),  # no vectors
    ((5, 16, 7), "f32", 1e4, TileConfig(8, 4), 0),  # blocks without rows
    ((1, 136, 1500), "f16", 1e2, TileConfig(8, 17), 0),
    ((1, 24, 61), "bf16", 30, TileConfig(2, 3), 1),
    ((1, 40, 700), "f64", 1e4, TileConfig(4, 5), 0),
    ((1, 8, 33), "f64", -1e12, TileConfig(2, 1), 1),
    ((1, 24, 61), "f16", 0, TileConfig(2, 3), 0),
    ((1, 8, 33), "f64", 0, TileConfig(4, 1), 0),
    ((2, 96, 95), "f32", 1e4, TileConfig(1, 10), 0),  # blocks alone
    ((5, 16, 33), "f32", 0, TileConfig(1, 4), 1),
    ((1, 136, 300), "f16", 1e2, TileConfig(1, 17), 0),
    ((1, 24, 61), "bf16", 0, TileConfig(1, 3), 0),
    ((1, 40, 300), "f64", 1e4, TileConfig(1, 5), 0),
    ((2, 96, 95), "f32", 1e4, TileConfig(1, 8, 128), 0),  # fewer threads
    ((1, 24, 61), "f16", 1e2, TileConfig(1, 3, 64), 1),
    ((5, 16, 33), "bf16", 30, TileConfig(1, 2, 128), 0),
    ((1, 40, 300), "f64", 1e4, TileConfig(1, 5, 64), 0),
]
TICKETS: list[tuple[Shape, str, float, TileTicketsConfig, int]] = [
    ((2, 92, 95), "f32", 1e4, TileTicketsConfig(160, 12, 1), 0),  # a tile that is not full, threads without a row
    ((1, 64, 1900), "f32", 1e4, TileTicketsConfig(64, 5, 1), 0),  # more rows than are under way
    ((1, 48, 17, 100), "f32", 0, TileTicketsConfig(192, 9, 1 << 20), 1),  # no vectors; all sums come first
    ((1, 128, 700), "f32", 1e4, TileTicketsConfig(512, 40, 1), 0),  # more partial sums than are read at once
    ((5, 16, 2), "f32", 1e4, TileTicketsConfig(16, 8, 1), 0),  # one slice, of fewer rows than threads
    ((1, 136, 1500), "f16", 1e2, TileTicketsConfig(256, 3, 1), 0),
    ((1, 24, 61), "bf16", 30, TileTicketsConfig(48, 2, 1), 1),
    ((1, 40, 700), "f64", 1e4, TileTicketsConfig(80, 12, 1), 0),
    ((1, 8, 33), "f64", -1e12, TileTicketsConfig(64, 1, 1), 1),
]
AnyConfig = LastConfig | HeldConfig | TileConfig | TileTicketsConfig | WholeConfig
VARIANTS = {
    LastConfig: "channels_last",
    HeldConfig: "channels_last_held",
    TileConfig: "channels_last_cluster",
    TileTicketsConfig: "channels_last_tickets",
}
ONE_OF_EACH = (LastConfig(16, 2, 2), HeldConfig(192, 1, 0, 1), TileConfig(4, 12), TileTicketsConfig(192, 4, 1))
EVERY = [*WAYS, *HELD, *TILES, *TICKETS]
each_way = pytest.mark.parametrize(("shape", "name", "mean", "config", "offset"), EVERY, ids=str)
each_way_in_eval = pytest.mark.parametrize(("shape", "name", "mean", "config", "offset"), WAYS, ids=str)


class Laid:
    """Arrays of one problem: on the device as they lie there, and exact for the reference."""

    def __init__(self, device: Device, rng: Rng, shape: Shape, name: str, mean: float, offset: int) -> None:
        self.kind, self.real = BY_NAME[name], parameter_type(BY_NAME[name])
        self.shape, self.device, self.offset, self.strides = shape, device, offset, channels_last(shape)
        x = (rng.standard_normal(shape) + mean).astype(self.kind.numpy)
        self.x, self.go = x, made(rng, shape, name) + self.kind.numpy.type(1)
        self.w, self.b = (made(rng, shape[1:2], self.real.name) for _ in "wb")
        # In f64 the reference would lose digits.
        self.exact = x.astype(np.longdouble) - mean if name == "f64" else x
        self.large = mean != 0 and self.real.name == "f32"

    def there(self, array: Any) -> Any:
        return on_device(array, self.device, self.offset, self.strides if array.shape == self.shape else None)

    def in_place(self, array: Any) -> Guarded:
        whole = Guarded(self.shape, self.kind.numpy, self.device, self.offset, self.strides)
        whole.whole[whole.first : whole.end].copy_from(np.ascontiguousarray(np.moveaxis(array, 1, -1)).ravel())
        return whole

    def check(self, op: str, got: Any, want: Any) -> None:
        name = self.kind.name if want.ndim > 1 else self.real.name
        check_error(op, self.device, got, want, bar(op.removesuffix("_backward"), name, want, large_mean=self.large))


def select(kind: Any, device: Device, problem: Any, preference: Any) -> Any:
    return kind.select(device, problem, preference)


def key_of(config: AnyConfig) -> str:
    """Return the variant of batch_norm that takes such a config, in PTX where it is in both languages."""
    return f"{'hip' if isinstance(config, TileTicketsConfig) else 'ptx'}/{VARIANTS[type(config)]}"


def keys(device: Device, name: str, config: AnyConfig) -> list[str]:
    """Return the variants; in HIP, which takes seconds to compile, of f32: test_every_variant.py has the others."""
    found = [key for key in variants(ops.BatchNormPlan, device) if key.rpartition("/")[2] == VARIANTS[type(config)]]
    return found if name == "f32" else [key for key in found if not key.startswith("hip/")] or found


def check_batch_norm(
    device: Device, rng: Rng, shape: Shape, name: str, mean: float, config: AnyConfig, offset: int, key: str
) -> None:
    """Check results in place of x and of grad_out."""
    laid = Laid(device, rng, shape, name, mean, offset)
    problem = ops.BatchNormDescriptor(shape, True, laid.kind, running=False, strides=laid.strides)
    plan = select(ops.BatchNormPlan, device, problem, wish(key, config=config))
    y = laid.in_place(laid.x)
    _, batch_mean, batch_var = plan.run(ops.BatchNormArgs(y.array, laid.there(laid.w), laid.there(laid.b), y=y.array))
    want: Any = references.batch_norm(laid.exact, laid.w, laid.b, None, None, training=True)
    laid.check("batch_norm", y.host(), want[0])
    laid.check("batch_norm", batch_var.to_host(), want[2])
    laid.check("batch_norm", batch_mean.to_host(), want[1] + (mean if name == "f64" else 0))

    if isinstance(config, HeldConfig):  # of which there is no backward
        return
    for handed in (False, True):
        backward = ops.BatchNormBackwardDescriptor(shape, True, laid.kind, handed=handed, strides=laid.strides)
        given = (batch_mean, batch_var) if handed else (None, None)
        if handed and mean:  # of a large mean the rounding alone is more than the bar
            continue
        into = laid.in_place(laid.go)
        plan = select(ops.BatchNormBackwardPlan, device, backward, wish(key, config=config))
        arrays = (into.array, laid.there(laid.x), laid.there(laid.w), None, None, *given)
        _, grad_weight, grad_bias = plan.run((*arrays, into.array, None, None))
        wants = references.batch_norm_backward(laid.go, laid.exact, laid.w, None, None, training=True)
        for got, ref in zip((into.host(), grad_weight.to_host(), grad_bias.to_host()), wants, strict=True):
            laid.check("batch_norm_backward", got, ref)


def check_running_statistics(
    device: Device, rng: Rng, shape: Shape, name: str, config: AnyConfig, offset: int, key: str
) -> None:
    laid = Laid(device, rng, shape, name, 0, offset)
    running = made(rng, shape[1:2], laid.real.name), np.abs(made(rng, shape[1:2], laid.real.name))
    there = [laid.there(a) for a in running]
    problem = ops.BatchNormDescriptor(shape, True, laid.kind, strides=laid.strides)
    plan = select(ops.BatchNormPlan, device, problem, wish(key, config=config))
    plan.run(ops.BatchNormArgs(laid.there(laid.x), laid.there(laid.w), laid.there(laid.b), *there))
    wants = references.updated_running_statistics(laid.x, *running, momentum=0.1)
    for got, want in zip(there, wants, strict=True):
        laid.check("batch_norm", got.to_host(), want)


@pytest.mark.sanitize
@each_way
def test_batch_norm(
    device: Device, rng: Rng, shape: Shape, name: str, mean: float, config: AnyConfig, offset: int
) -> None:
    """In place of x and of grad_out: the sums are those of all slices, whoever writes first."""
    skip_stand_in(device)
    for key in keys(device, name, config):
        check_batch_norm(device, rng, shape, name, mean, config, offset, key)


@pytest.mark.ptx
@pytest.mark.parametrize(("shape", "name", "mean", "config", "offset"), [*HELD, *TILES, *TICKETS], ids=str)
def test_running_statistics_of_one_launch(
    device: Device, rng: Rng, shape: Shape, name: str, mean: float, config: AnyConfig, offset: int
) -> None:
    """The block that has a tile's first slice updates them, or the first of a cluster."""
    check_running_statistics(device, rng, shape, name, config, offset, key_of(config))


@each_way_in_eval
def test_batch_norm_in_eval(
    device: Device, rng: Rng, shape: Shape, name: str, mean: float, config: LastConfig, offset: int
) -> None:
    skip_stand_in(device)
    for key in keys(device, name, config):
        laid = Laid(device, rng, shape, name, 0, offset)
        running = made(rng, shape[1:2], laid.real.name), np.abs(made(rng, shape[1:2], laid.real.name))
        given = [laid.there(a) for a in running]
        problem = ops.BatchNormDescriptor(shape, False, laid.kind, strides=laid.strides)
        plan = select(ops.BatchNormPlan, device, problem, wish(key, config=config))
        y = laid.in_place(laid.x)
        plan.run((y.array, laid.there(laid.w), laid.there(laid.b), *given, y.array, None, None, None))
        laid.check("batch_norm", y.host(), references.batch_norm(laid.x, laid.w, laid.b, *running, training=False)[0])
        backward = ops.BatchNormBackwardDescriptor(shape, False, laid.kind, strides=laid.strides)
        plan = select(ops.BatchNormBackwardPlan, device, backward, wish(key, config=config))
        laid.go[0, 0] = -0.0
        into = laid.in_place(laid.go)
        arrays = (into.array, laid.there(laid.x), laid.there(laid.w), *given, None, None)
        _, grad_weight, grad_bias = plan.run((*arrays, into.array, None, None))
        wants = references.batch_norm_backward(laid.go, laid.x, laid.w, *running, training=False)
        if name != "f64":  # whose pairs have no sign of 0
            assert (np.signbit(into.host()[0, 0]) == (laid.w[0] > 0)).all()
        for got, ref in zip((into.host(), grad_weight.to_host(), grad_bias.to_host()), wants, strict=True):
            laid.check("batch_norm_backward", got, ref)


@pytest.mark.sanitize
@each_way
def test_group_norm(
    device: Device, rng: Rng, shape: Shape, name: str, mean: float, config: AnyConfig, offset: int
) -> None:
    skip_stand_in(device)
    groups = {92: 4, 96: 12, 260: 5, 48: 3, 37: 37, 136: 17, 24: 2, 40: 4, 9: 3, 64: 8, 128: 32, 16: 2, 8: 4}[shape[1]]
    for key in keys(device, name, config):
        wanted = wish(f"{key}_split" if isinstance(config, LastConfig) else key, config=config)
        laid = Laid(device, rng, shape, name, mean, offset)
        plan = select(
            ops.GroupNormPlan, device, ops.GroupNormDescriptor(shape, groups, laid.kind, strides=laid.strides), wanted
        )
        y = laid.in_place(laid.x)
        plan.run((y.array, laid.there(laid.w), laid.there(laid.b), y.array))
        laid.check("group_norm", y.host(), references.group_norm(laid.exact, laid.w, laid.b, groups))
        if isinstance(config, HeldConfig):  # of which there is no backward
            continue
        plan = select(
            ops.GroupNormBackwardPlan,
            device,
            ops.GroupNormBackwardDescriptor(shape, groups, laid.kind, strides=laid.strides),
            wanted,
        )
        into = laid.in_place(laid.go)
        arrays = (into.array, laid.there(laid.x), laid.there(laid.w), into.array)
        _, grad_weight, grad_bias = plan.run((*arrays, None, None))
        wants = references.group_norm_backward(laid.go, laid.exact, laid.w, groups)
        for got, ref in zip((into.host(), grad_weight.to_host(), grad_bias.to_host()), wants, strict=True):
            laid.check("group_norm_backward", got, ref)


@pytest.mark.ptx
@pytest.mark.parametrize("kind", [TileConfig, TileTicketsConfig], ids=lambda kind: VARIANTS[kind])
@pytest.mark.parametrize(("name", "bad"), [("f32", np.nan), ("f32", np.inf), ("f16", np.inf), ("f64", np.nan)])
def test_a_bad_value_spoils_its_group_alone(device: Device, rng: Rng, name: str, bad: float, kind: Any) -> None:
    """In tiles of groups of three channels, which end within vectors; without weight and bias."""
    shape, groups = (2, 24, 70), 8
    laid, strides = Laid(device, rng, shape, name, 0, 0), channels_last(shape)
    vectors = {4: 3, 2: 3, 8: 6}[laid.kind.size]
    config = TileConfig(2, vectors) if kind is TileConfig else TileTicketsConfig(16 * vectors, 12, 1)
    wanted = wish(key_of(config), config=config)
    laid.x[1, 4, 33] = bad
    spoiled = np.zeros(shape, bool)
    spoiled[1, 3:6] = True
    problem = ops.GroupNormDescriptor(shape, groups, laid.kind, strides=strides)
    y = laid.in_place(laid.x)
    select(ops.GroupNormPlan, device, problem, wanted).run((y.array, None, None, y.array))
    assert (np.isnan(y.host()) == spoiled).all()
    with np.errstate(invalid="ignore"):
        want = references.group_norm(laid.x, None, None, groups)
        wants = references.group_norm_backward(laid.go, laid.x, None, groups)
    laid.check("group_norm", y.host()[~spoiled][:, None], np.asarray(want)[~spoiled][:, None])
    backward = ops.GroupNormBackwardDescriptor(shape, groups, laid.kind, strides=strides)
    into = laid.in_place(laid.go)
    arrays = (into.array, laid.there(laid.x), None, into.array, None, None)
    _, grad_weight, grad_bias = select(ops.GroupNormBackwardPlan, device, backward, wanted).run(arrays)
    assert grad_weight is None
    assert (np.isnan(into.host()) == spoiled).all()
    laid.check("group_norm_backward", into.host()[~spoiled][:, None], np.asarray(wants[0])[~spoiled][:, None])
    laid.check("group_norm_backward", grad_bias.to_host(), wants[2])


@pytest.mark.ptx
@pytest.mark.parametrize("odd", ["x", "grad_out", "result"])
@pytest.mark.parametrize("config", ONE_OF_EACH, ids=str)
def test_one_array_lies_at_no_multiple_of_16_bytes(device: Device, rng: Rng, config: AnyConfig, odd: str) -> None:
    """All others do: vectors are for arrays that all lie so."""
    shape, groups = (1, 48, 130), 3
    laid, strides = Laid(device, rng, shape, "f32", 0, 0), channels_last(shape)
    wanted = wish(key_of(config) + "_split" * isinstance(config, LastConfig), config=config)
    x = on_device(laid.x, device, int(odd == "x"), strides)
    y = Guarded(shape, laid.kind.numpy, device, int(odd == "result"), strides)
    problem = ops.GroupNormDescriptor(shape, groups, laid.kind, strides=strides)
    select(ops.GroupNormPlan, device, problem, wanted).run((x, laid.there(laid.w), laid.there(laid.b), y.array))
    laid.check("group_norm", y.host(), references.group_norm(laid.x, laid.w, laid.b, groups))
    if isinstance(config, HeldConfig):  # of which there is no backward
        return
    go = on_device(laid.go, device, int(odd == "grad_out"), strides)
    into = Guarded(shape, laid.kind.numpy, device, int(odd == "result"), strides)
    backward = ops.GroupNormBackwardDescriptor(shape, groups, laid.kind, strides=strides)
    select(ops.GroupNormBackwardPlan, device, backward, wanted).run((go, x, laid.there(laid.w), into.array, None, None))
    want = references.group_norm_backward(laid.go, laid.x, laid.w, groups)[0]
    laid.check("group_norm_backward", into.host(), want)


@pytest.mark.ptx
@pytest.mark.parametrize("config", ONE_OF_EACH, ids=str)
def test_without_weight_and_bias(device: Device, rng: Rng, config: AnyConfig) -> None:
    shape, groups, key = (2, 48, 65), 3, key_of(config)
    laid, strides = Laid(device, rng, shape, "f32", 0, 0), channels_last(shape)
    x, go = laid.there(laid.x), laid.there(laid.go)
    split = wish(key + "_split" * isinstance(config, LastConfig), config=config)
    y = select(ops.GroupNormPlan, device, ops.GroupNormDescriptor(shape, groups, strides=strides), split).run(
        ops.GroupNormArgs(x)
    )
    laid.check("group_norm", y.to_host(), references.group_norm(laid.x, None, None, groups))
    normal = ops.BatchNormDescriptor(shape, True, running=False, strides=strides)
    y = select(ops.BatchNormPlan, device, normal, wish(key, config=config)).run(ops.BatchNormArgs(x)).y
    laid.check("batch_norm", y.to_host(), references.batch_norm(laid.x, None, None, None, None, training=True)[0])
    if isinstance(config, HeldConfig):  # of which there is no backward
        return
    backward: Any = ops.GroupNormBackwardDescriptor(shape, groups, strides=strides)
    grad = select(ops.GroupNormBackwardPlan, device, backward, split).run(ops.GroupNormBackwardArgs(go, x)).grad_input
    laid.check("group_norm_backward", grad.to_host(), references.group_norm_backward(laid.go, laid.x, None, groups)[0])
    backward = ops.BatchNormBackwardDescriptor(shape, True, strides=strides)
    grad = (
        select(ops.BatchNormBackwardPlan, device, backward, wish(key, config=config))
        .run(ops.BatchNormBackwardArgs(go, x))
        .grad_input
    )
    want = references.batch_norm_backward(laid.go, laid.x, None, None, None, training=True)[0]
    laid.check("batch_norm_backward", grad.to_host(), want)


def test_sums_of_an_image_are_about_a_value_of_its_own(device: Device, rng: Rng) -> None:
    """Squares about a value of another image would be of the distance of both, and all else lost in their rounding."""
    skip_stand_in(device)
    shape, groups = (2, 16, 70), 4
    laid = Laid(device, rng, shape, "f32", 0, 0)
    laid.x[1] += np.float32(1e6)
    problem = ops.GroupNormDescriptor(shape, groups, strides=laid.strides)
    for key in ("hip/channels_last_split", "hip/channels_last_tickets"):
        plan = select(ops.GroupNormPlan, device, problem, wish(key))
        y = plan.run((laid.there(laid.x), laid.there(laid.w), laid.there(laid.b), None))
        laid.check("group_norm", y.to_host(), references.group_norm(laid.x, laid.w, laid.b, groups))


@pytest.mark.parametrize("name", ["f32", "f16", "f64"])
def test_bits_do_not_depend_on_what_comes_first(device: Device, rng: Rng, name: str) -> None:
    """Of tickets: all sums before all output, or one tile ahead."""
    skip_stand_in(device)
    shape, groups = (3, 24, 70), 4
    laid, results = Laid(device, rng, shape, name, 0, 0), []
    x, go, w, b = (laid.there(array) for array in (laid.x, laid.go, laid.w, laid.b))
    for lag in (1, 1 << 30):
        wanted = wish("hip/channels_last_tickets", config=TileTicketsConfig(96, 30, lag))
        problem = ops.GroupNormDescriptor(shape, groups, laid.kind, strides=laid.strides)
        y = select(ops.GroupNormPlan, device, problem, wanted).run((x, w, b, None))
        backward = ops.GroupNormBackwardDescriptor(shape, groups, laid.kind, strides=laid.strides)
        gradients = select(ops.GroupNormBackwardPlan, device, backward, wanted).run((go, x, w, None, None, None))
        results.append([array.to_host().tobytes() for array in (y, *gradients)])
    assert results[0] == results[1]


# How the work is shared out -------------------------------------------------------------------------------------------


def rows(shape: Shape, config: LastConfig | None = None, name: str = "f32") -> Rows:
    problem = ops.BatchNormDescriptor(shape, True, BY_NAME[name])
    return Rows(problem, config or LastConfig.heuristic(problem), "ptx", 1, problem.batch, 1)


@pytest.mark.parametrize("name", ["f32", "f16", "f64"])
@pytest.mark.parametrize("shape", [(3, 1), (3, 37), (100352, 256), (12544, 2048), (4096, 320), (1 << 22, 8), (5, 5000)])
def test_every_block_has_rows_and_each_channel_of_its_tile_a_thread(shape: Shape, name: str) -> None:
    vector = 16 // BY_NAME[name].size
    unit = vector if shape[1] % vector == 0 else 1
    for config in (*LastConfig.candidates(rows(shape).problem), LastConfig(1 << 20, 1, 1)):
        blocks, (slices, across) = rows(shape, config, name)._cut(config.added)
        tiles = -(-shape[1] // unit // across)
        assert blocks == slices * tiles <= max(config.added, tiles)
        assert (slices - 1) * 4 * (256 // across) < shape[0]
        assert across * vector <= 256


@pytest.mark.parametrize("per_group", [1, 10, 64])
@pytest.mark.parametrize("name", ["f32", "f16", "f64"])
@pytest.mark.parametrize("shape", [(3, 640), (100352, 1280), (4096, 320), (1 << 22, 640)])
def test_tiles_have_whole_groups_and_slices_rows(shape: Shape, name: str, per_group: int) -> None:
    problem = ops.BatchNormDescriptor(shape, True, BY_NAME[name])
    for config in (*HeldConfig.candidates(problem), HeldConfig(16, 1, 0, 0)):
        for images in (1, 7, 300):
            held = HeldRows(problem, config, images, shape[0], per_group)
            assert held.refusal() is None
            assert held.across * problem.vector % per_group == 0
            assert held.across * problem.vector <= 256
            assert held.tiles * held.slices <= max(config.blocks, held.tiles)
            assert (held.slices - 1) * (512 // held.across) < shape[0]


def test_one_launch_fills_a_gpu() -> None:
    for shape, images, per_group in (((100352, 256), 1, 1), ((12544, 2048), 1, 1), ((4096, 320), 8, 10)):
        problem = ops.BatchNormDescriptor(shape, True)
        held = HeldRows(problem, HeldConfig.heuristic(problem), images, shape[0], per_group)
        assert 128 <= held.tiles * held.slices <= 132


def test_of_other_problems_one_launch_says_why_it_takes_them_not() -> None:
    problem = ops.BatchNormDescriptor((640, 516), True)
    config = HeldConfig.heuristic(problem)
    for wrong, per_group in (
        (replace(problem, shape=(640, 514)), 1),  # vectors
        (replace(problem, shape=(1 << 31, 4)), 1),
        (replace(problem, shape=(4, 1 << 31)), 1),
        (problem, 258),  # groups that are longer than tiles
    ):
        assert isinstance(HeldRows(wrong, config, 1, wrong.shape[0], per_group).refusal(), Refusal)
    # As long as a tile, of which both variants have the same to say.
    variants_of_tiles: Any = ((HeldRows, 256), (TicketRows, 128))
    for rows_of, most in variants_of_tiles:
        longest = replace(problem, shape=(640, 2 * most))
        assert rows_of(longest, config, 1, 640, most).refusal_of_tiles(most) is None
        assert isinstance(rows_of(longest, config, 1, 640, most + 4).refusal_of_tiles(most), Refusal)


def test_large_problems_have_some_blocks_for_each_multiprocessor() -> None:
    for shape in ((100352, 256), (12544, 2048), (262144, 128)):
        each = rows(shape)
        assert 200 <= each._cut(each.config.added)[0] <= 600


def test_of_other_problems_it_says_why_it_takes_them_not() -> None:
    limits = Limits.of(Device("sim:0").properties)
    problem = ops.BatchNormDescriptor((2, 8, 3, 3), True)
    every: Any = ops.BatchNormPlan.variants
    for variant in every:
        if variant.name == "channels_last":
            config = LastConfig.heuristic(problem)
            assert isinstance(variant.schedule(problem, config, limits), Refusal)
            for far in ((2, 1 << 31), (1 << 31, 2)):
                assert isinstance(variant.schedule(replace(problem, shape=far), config, limits), Refusal)
            assert not isinstance(variant.schedule(replace(problem, shape=(2, 8)), config, limits), Refusal)


@pytest.mark.parametrize(
    ("images", "name", "variant"),
    [
        (8, "f32", "channels_last_cluster"),
        (15, "f16", "channels_last"),
        (16, "f16", "channels_last_cluster"),
    ],
)
def test_of_how_many_values_blocks_alone_suit_group_norm(images: int, name: str, variant: str) -> None:
    sim, shape = Device("sim:0"), (images, 64, 8, 8)
    for plan, kind in (
        (ops.GroupNormPlan, ops.GroupNormDescriptor),
        (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor),
    ):
        problem: Any = kind(shape, 32, BY_NAME[name], strides=channels_last(shape))
        chosen = select(plan, sim, problem, wish(tuned=False))
        assert chosen.variant.name == variant
        assert variant == "channels_last" or chosen.config.size == 1


def _chosen(op: str, shape: Shape, name: str, language: str = "ptx", **fields: Any) -> Any:
    """Return what is chosen for a channels-last problem where nothing is tuned: of a cluster how many blocks it has."""
    handed = {"handed": True} if op == "batch_norm_backward" and fields["training"] else {}
    words = {"op": op, "shape": list(shape), "dtype": name, "layout": "channels-last"} | fields | handed
    plan = tuning.heuristic("sim:0", tuning.problem_of(words), language)
    return plan.config.size if isinstance(plan.config, TileConfig) else plan.variant.name


@pytest.mark.parametrize(
    ("shape", "name", "forward", "backward"),
    [
        ((8, 4096), "f32", "small", "small"),  # few values
        ((1024, 2048), "f32", 1, 1),
        ((2048, 2048), "f32", 1, 2),  # many, of which a block or two hold 64 bytes of each row
        ((2048, 1024), "f64", 1, 2),
        ((3136, 2048), "f32", 1, 2),
        ((6272, 1024), "f32", 2, 2),
        ((7168, 1024), "f32", 2, "channels_last"),
        ((7169, 1024), "f32", "channels_last_held", "channels_last"),  # rows that two blocks hold too little of
        ((7168, 1280), "f32", "channels_last_held", "channels_last"),  # more values
        ((12544, 512), "f16", "channels_last_held", "channels_last"),  # more rows than two blocks hold
        ((12544, 128), "f32", 8, 8),  # but few values
        ((4096, 4096), "f32", "channels_last_held", "channels_last"),  # backward, four blocks would be the cheapest
        ((512, 1 << 16), "f32", 1, 1),  # few rows
        ((513, 1 << 16), "f32", "channels_last_held", 1),
    ],
)
def test_where_clusters_hold_rows_of_batch_norm(shape: Shape, name: str, forward: Any, backward: Any) -> None:
    assert _chosen("batch_norm", shape, name, training=True) == forward
    assert _chosen("batch_norm_backward", shape, name, training=True) == backward


@pytest.mark.parametrize(
    ("shape", "name", "forward", "backward"),
    [
        ((256, 8192), "f32", (1, 4, 64), (1, 4, 64)),
        ((1024, 4096), "f32", (1, 4, 128), (1, 4, 256)),  # half as many vectors are too narrow
        ((256, 2048), "f32", (1, 2, 128), (1, 2, 128)),  # but of few rows
        ((257, 2048), "f32", (1, 4, 256), (1, 4, 256)),
        ((512, 1024), "f32", (1, 2, 256), (1, 2, 256)),
        ((64, 4096), "f16", (1, 2, 64), (1, 2, 64)),
        ((65, 4096), "f16", (1, 2, 128), (1, 2, 128)),  # more than one row a thread
        ((512, 8192), "f16", (1, 4, 128), (1, 4, 128)),
        ((256, 1024), "f16", (1, 2, 128), (1, 2, 128)),  # as many vectors, which suffice
        ((256, 2048), "f64", (1, 4, 128), (1, 4, 128)),
        ((1024, 4096), "f64", (1, 4, 128), (1, 2, 128)),
        ((2048, 1024), "f16", (2, 2, 256), (2, 2, 256)),  # of two blocks
    ],
)
def test_blocks_alone_have_few_threads(
    shape: Shape, name: str, forward: tuple[int, ...], backward: tuple[int, ...]
) -> None:
    kind = BY_NAME[name]
    assert TileConfig.heuristic(ops.BatchNormDescriptor(shape, True, kind)) == TileConfig(*forward)
    problem = ops.BatchNormBackwardDescriptor(shape, True, kind, handed=True)
    assert TileConfig.heuristic(problem) == TileConfig(*backward)


@pytest.mark.parametrize("language", ["ptx", "hip"])
def test_backward_in_eval_fewer_values_suit_it(language: str) -> None:
    found = [_chosen("batch_norm_backward", (rows, 64), "f32", language, training=False) for rows in (4095, 4096)]
    assert [name == "channels_last" for name in found] == [False, True]


@pytest.mark.parametrize(
    ("shape", "groups", "name", "forward", "backward"),
    [
        ((31, 256, 32, 32), 32, "f32", 1, 1),
        ((32, 256, 32, 32), 32, "f32", "channels_last_held", "channels_last_split"),  # many values
        ((8, 640, 32, 32), 32, "f16", 1, 1),
        ((2, 320, 64, 64), 32, "f32", 4, 8),
        ((4, 320, 64, 64), 32, "f32", 2, "channels_last_split"),  # more, which two blocks do not hold
        ((1, 288, 8, 8), 1, "f32", "channels_last_split", "channels_last_split"),  # a group that none holds, and large
        ((1, 288, 7, 7), 1, "f32", "channels_last", "channels_last"),
        ((1, 288, 8, 8), 1, "f16", "channels_last", "channels_last"),
        ((1, 512, 8, 8), 1, "f16", "channels_last_split", "channels_last_split"),
        ((64, 384, 7, 7), 1, "f16", "channels_last", "channels_last"),  # of few rows, many values
    ],
)
def test_where_clusters_hold_groups(shape: Shape, groups: int, name: str, forward: Any, backward: Any) -> None:
    assert _chosen("group_norm", shape, name, groups=groups) == forward
    assert _chosen("group_norm_backward", shape, name, groups=groups) == backward


@pytest.mark.parametrize(
    ("op", "shape", "name", "variant"),
    [
        ("group_norm", (32, 64, 7, 7), "f32", "channels_last"),  # few rows
        ("group_norm", (8, 64, 8, 8), "f32", "channels_last_tickets"),
        ("group_norm", (167, 64, 7, 7), "f32", "channels_last"),
        ("group_norm", (168, 64, 7, 7), "f32", "channels_last_tickets"),  # and many values
        ("group_norm_backward", (32, 64, 7, 7), "f16", "channels_last"),
        ("group_norm_backward", (167, 64, 7, 7), "f16", "channels_last"),
        ("group_norm_backward", (95, 56, 7, 7), "f16", "channels_last"),
        ("group_norm_backward", (96, 56, 7, 7), "f16", "channels_last_tickets"),  # of narrow groups fewer are many
        ("batch_norm", (1024, 4100), "f32", "channels_last_tickets"),  # many values of few rows
        ("batch_norm", (1025, 4100), "f32", "channels_last"),
        ("batch_norm_backward", (512, 8196), "f32", "channels_last_tickets"),
        ("batch_norm_backward", (513, 8196), "f32", "channels_last"),
    ],
)
def test_where_tickets_are_the_choice_in_hip(op: str, shape: Shape, name: str, variant: str) -> None:
    fields = {"groups": 8} if "group" in op else {"training": True}
    assert _chosen(op, shape, name, "hip", **fields) == variant


@pytest.mark.parametrize(("shape", "name"), [((1 << 15, 3), "channels_last"), (((1 << 13) - 1, 5), "cached")])
def test_many_rows_suit_it(shape: Shape, name: str) -> None:
    sim = Device("sim:0")
    assert ops.BatchNormPlan.select(sim, ops.BatchNormDescriptor(shape, True)).variant.name == name
    assert ops.BatchNormBackwardPlan.select(sim, ops.BatchNormBackwardDescriptor(shape, True)).variant.name == name


def test_fewer_values_suit_it_in_hip() -> None:
    """Whose other kernel for groups takes single values; of middle size they are for tickets, where tiles fit."""
    sim, shape = Device("sim:0"), (2, 1280, 16, 16)
    problem = ops.GroupNormDescriptor(shape, 32, strides=channels_last(shape))
    assert ops.GroupNormPlan.select(sim, problem).variant.name == "channels_last_cluster"
    assert ops.GroupNormPlan.select(sim, problem, wish(language="hip")).variant.name == "channels_last_tickets"
    wide = replace(problem, groups=2)
    assert ops.GroupNormPlan.select(sim, wide, wish(language="hip")).variant.name == "channels_last_split"


@pytest.mark.parametrize("name", ["f32", "f16", "f64"])
@pytest.mark.parametrize(
    "shape", [(2, 64, 16, 16), (8, 64, 32, 32), (4, 320, 32, 32), (64, 512, 7, 7), (3, 48, 5), (1, 128, 1 << 23)]
)
def test_tickets_cut_every_tile(shape: Shape, name: str) -> None:
    """And the kernels find a ticket's tile and slice by reciprocals."""
    kind, strides = BY_NAME[name], channels_last(shape)
    for problem in (
        ops.BatchNormDescriptor(shape, True, kind, strides=strides),
        ops.GroupNormBackwardDescriptor(shape, 16, kind, strides=strides),
    ):
        grouped = "group" in problem.op
        sizes = (shape[0], problem.hw, shape[1] // 16) if grouped else (1, problem.batch, 1)
        for config in (*TileTicketsConfig.candidates(problem), TileTicketsConfig(1 << 20, 1 << 13, 1)):
            tiles = TicketRows(problem, config, *sizes)
            assert tiles.refusal() is None
            width = tiles.across * problem.vector
            assert width % tiles.per_group == 0
            assert width <= 128
            assert (tiles.tiles - 1) * width < shape[1] <= tiles.tiles * width
            assert (tiles.slices - 1) * tiles.length < tiles.rows <= tiles.slices * tiles.length
            tickets = np.arange(tiles.images * tiles.tiles * tiles.slices, dtype=np.uint64)
            *_, by_group, by_slices, by_tiles, by_across, _, _ = launched(tiles)
            assert (tickets * np.uint64(by_slices) >> np.uint64(31) == tickets // np.uint64(tiles.slices)).all()
            tickets = tickets[: tiles.images * tiles.tiles]
            assert (tickets * np.uint64(by_tiles) >> np.uint64(31) == tickets // np.uint64(tiles.tiles)).all()
            for thread in range(257):
                assert thread * by_across >> 31 == thread // tiles.across
                assert thread * by_group >> 31 == thread // tiles.per_group


def launched(rows: TicketRows) -> tuple[Any, ...]:
    """Return the arguments of its launch."""
    workspace = Workspace()
    _, launch = rows.steps(workspace, rows.sums(workspace), ("x",))
    return launch.arguments


def test_of_other_problems_tickets_say_why_they_take_them_not() -> None:
    limits, config = Limits.of(Device("sim:0").properties), TileTicketsConfig(64, 256, 1)
    norm = ops.BatchNormDescriptor((640, 512), True)
    grouped = ops.GroupNormDescriptor((2, 512, 3, 3), 64, strides=channels_last((2, 512, 3, 3)))
    assert not isinstance(BatchTickets("hip").schedule(norm, config, limits), Refusal)
    assert not isinstance(GroupTickets("hip").schedule(grouped, config, limits), Refusal)
    wrong: list[tuple[Any, Any, TileTicketsConfig, str]] = [
        (BatchTickets("hip"), replace(norm, shape=(640, 512, 3)), config, "side by side"),
        (BatchTickets("hip"), replace(norm, training=False), config, "eval has none"),
        (BatchTickets("hip"), replace(norm, shape=(640, 514)), config, "vectors of 4"),
        (BatchTickets("hip"), replace(norm, shape=(1 << 22, 512)), config, "an image has 2147483648 values"),
        (BatchTickets("hip"), replace(norm, shape=(1 << 26, 4)), replace(config, slices=1 << 17), "too many"),
        (GroupTickets("hip"), replace(grouped, strides=()), config, "channels-last"),
        (GroupTickets("hip"), replace(grouped, groups=2), config, "have 256 channels"),
    ]
    for variant, problem, how, word in wrong:
        refusal = variant.schedule(problem, how, limits)
        assert isinstance(refusal, Refusal)
        assert word in refusal.reason


@pytest.mark.parametrize("name", ["f32", "f16", "f64"])
@pytest.mark.parametrize(
    "shape", [(2, 64, 16, 16), (8, 256, 14, 14), (8, 64, 32, 32), (4, 320, 32, 32), (32, 512, 7, 7), (3, 48, 5)]
)
def test_clusters_hold_tiles_of_whole_groups(shape: Shape, name: str) -> None:
    kind, strides = BY_NAME[name], channels_last(shape)
    for problem in (
        ops.BatchNormDescriptor(shape, True, kind, strides=strides),
        ops.BatchNormBackwardDescriptor(shape, True, kind, strides=strides),
        ops.GroupNormDescriptor(shape, 16, kind, strides=strides),
        ops.GroupNormBackwardDescriptor(shape, 16, kind, strides=strides),
    ):
        vector, per_group = problem.vector, shape[1] // 16 if "group" in problem.op else 1
        images, count = (shape[0], problem.hw) if "group" in problem.op else (1, problem.batch)
        for config in TileConfig.candidates(problem):
            tile = HeldTile(problem, config)
            assert tile.refusal() is None
            assert config.across * vector % per_group == 0
            assert tile.blocks == images * config.size * -(-shape[1] // (config.across * vector))
            vectors = tile._room // 16 // problem.arrays
            assert vectors // config.threads * (config.threads // config.across) * config.size >= count
            assert tile._shared_bytes <= 224 << 10


def test_of_other_problems_clusters_say_why_they_take_them_not() -> None:
    limits = Limits.of(Device("sim:0").properties)
    fits = ops.BatchNormDescriptor((640, 512), True)
    grouped = ops.GroupNormDescriptor((2, 512, 3, 3), 64, strides=channels_last((2, 512, 3, 3)))
    assert not isinstance(HeldTile(fits, TileConfig(8, 4)).launch(limits, ("x",) * 8, 0.0), Refusal)
    assert not HeldTile(grouped, TileConfig(8, 4)).refusal()
    for problem, config, word in (
        (replace(fits, shape=(640, 512, 3)), TileConfig(8, 4), "side by side"),
        (replace(grouped, strides=()), TileConfig(8, 4), "side by side"),
        (replace(fits, shape=(640, 514)), TileConfig(8, 4), "vectors of 4"),
        (fits, TileConfig(3, 4), "clusters are of 3"),
        (fits, TileConfig(2, 4, 128), "no clusters of 2 have blocks of 128 threads"),
        (fits, TileConfig(1, 4, 32), "no clusters of 1 have blocks of 32 threads"),
        (fits, TileConfig(1, 17, 64), "68 channels, above 64"),
        (grouped, TileConfig(8, 3), "whole groups"),
        (fits, TileConfig(8, 0), "whole groups"),
        (fits, TileConfig(8, 65), "260 channels"),
        (replace(fits, shape=(640, 1 << 31)), TileConfig(8, 4), "channels = "),
        (replace(fits, shape=(1 << 31, 512)), TileConfig(8, 4), "rows = "),
        (replace(fits, shape=(64000, 512)), TileConfig(8, 4), "shared memory"),
    ):
        refusal = HeldTile(problem, config).refusal()
        assert refusal is not None
        assert word in refusal.reason
    small = HeldTile(fits, TileConfig(8, 4)).launch(limits._replace(max_cluster=4), ("x",) * 8, 0.0)
    assert isinstance(small, Refusal)
    assert "clusters of 8" in small.reason
