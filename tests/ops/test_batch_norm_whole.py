"""batch_norm in training whose blocks hold all rows of their channels: HIP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Rng, Shape, skip_stand_in
from op_testing import wish
from test_norm_last import Laid, check_batch_norm, check_running_statistics, select

from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops._batch_norm_last import ChannelsLastWhole, ChannelsLastWholeBackward
from ptxrt.ops._batch_norm_whole import WholeConfig
from ptxrt.ops.framework import Limits, Refusal

# Shape, type, offset of the values, config; and by how many elements arrays miss a multiple of 16 bytes.
WHOLE: list[tuple[Shape, str, float, WholeConfig, int]] = [
    ((1, 8, 37), "f32", 1e4, WholeConfig(128, 1), 0),  # threads without a row
    ((1, 24, 700), "f32", 0, WholeConfig(256, 2), 1),
    ((1, 8, 1024), "f32", 1e4, WholeConfig(256, 2), 0),  # the most rows, backward
    ((1, 12, 4096), "f32", 1e4, WholeConfig(512, 1), 0),
    ((1, 16, 1021), "f32", 0, WholeConfig(512, 4), 0),
    ((1, 24, 515), "f16", 1e2, WholeConfig(256, 1), 0),
    ((1, 16, 1024), "f16", 0, WholeConfig(512, 2), 0),  # the most, backward
    ((1, 16, 61), "bf16", 30, WholeConfig(512, 1), 1),
    ((1, 6, 512), "f64", 1e4, WholeConfig(64, 1), 0),
    ((1, 16, 511), "f64", 0, WholeConfig(256, 4), 0),  # a row is not there
    ((1, 4, 33), "f64", -1e12, WholeConfig(512, 2), 1),
    ((1, 16, 29), "f32", 1e4, WholeConfig(64, 4), 0),  # fewer threads to a channel than a warp has
    ((1, 32, 32), "f16", 0, WholeConfig(64, 4), 0),  # two
]
variant_alone = pytest.mark.parametrize("variant", ["hip/channels_last_whole"])
each_way = pytest.mark.parametrize(("shape", "name", "mean", "config", "offset"), WHOLE, ids=str)


@pytest.mark.sanitize
@each_way
@variant_alone
def test_results(
    device: Device, rng: Rng, shape: Shape, name: str, mean: float, config: WholeConfig, offset: int, variant: str
) -> None:
    skip_stand_in(device)
    check_batch_norm(device, rng, shape, name, mean, config, offset, variant)


@each_way
@variant_alone
def test_running_statistics(
    device: Device, rng: Rng, shape: Shape, name: str, mean: float, config: WholeConfig, offset: int, variant: str
) -> None:
    skip_stand_in(device)
    check_running_statistics(device, rng, shape, name, config, offset, variant)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@variant_alone
def test_a_bad_value_spoils_its_channel_alone(device: Device, rng: Rng, bad: float, variant: str) -> None:
    """Where a block has its neighbours, too; without weight and bias."""
    skip_stand_in(device)
    shape, wanted = (1, 8, 90), wish(variant)
    laid = Laid(device, rng, shape, "f32", 0, 0)
    laid.x[0, 5, 33] = bad
    problem = ops.BatchNormDescriptor(shape, True, running=False, strides=laid.strides)
    y = laid.in_place(laid.x)
    select(ops.BatchNormPlan, device, problem, wanted).run(ops.BatchNormArgs(y.array, y=y.array))
    spoiled = np.zeros(shape, bool)
    spoiled[:, 5] = True
    assert (np.isnan(y.host()) == spoiled).all()
    backward = ops.BatchNormBackwardDescriptor(shape, True, strides=laid.strides)
    into = laid.in_place(laid.go)
    run = select(ops.BatchNormBackwardPlan, device, backward, wanted).run
    _, grad_weight, grad_bias = run(ops.BatchNormBackwardArgs(into.array, laid.there(laid.x), grad_input=into.array))
    assert grad_weight is None
    assert (np.isnan(into.host()) == spoiled).all()
    laid.check("batch_norm_backward", grad_bias.to_host(), laid.go.sum((0, 2), dtype=np.float64))


def test_of_other_problems_a_block_with_all_rows_says_why_it_takes_them_not() -> None:
    limits, config = Limits.of(Device("sim:0").properties), WholeConfig(512, 1)
    norm = ops.BatchNormDescriptor((640, 512), True)
    backward = ops.BatchNormBackwardDescriptor((640, 512), True, BY_NAME["f16"])
    forward, gradients = ChannelsLastWhole("hip"), ChannelsLastWholeBackward("hip")
    assert not isinstance(forward.schedule(replace(norm, shape=(8192, 512)), config, limits), Refusal)
    assert not isinstance(forward.schedule(replace(norm, shape=(4096, 512)), WholeConfig(512, 2), limits), Refusal)
    assert not isinstance(gradients.schedule(replace(backward, shape=(2048, 512)), config, limits), Refusal)
    wrong: list[tuple[Any, Any, WholeConfig, str]] = [
        (forward, replace(norm, shape=(640, 512, 3)), config, "side by side"),
        (forward, replace(norm, training=False), config, "eval has none"),
        (forward, replace(norm, shape=(640, 514)), config, "whole blocks of 4"),
        (forward, replace(norm, shape=(640, 516)), WholeConfig(512, 2), "whole blocks of 8"),
        (forward, replace(norm, shape=(8193, 512)), config, "8193 rows are more than the 8192"),
        (forward, replace(norm, shape=(4097, 512)), WholeConfig(512, 2), "4097 rows are more than the 4096"),
        (forward, replace(norm, shape=(2, 1 << 31)), config, "channels = "),
        (forward, norm, WholeConfig(32, 1), "64, 128, 256 or 512 threads, not 32"),
        (forward, norm, WholeConfig(384, 1), "512 threads, not 384"),
        (forward, norm, WholeConfig(256, 3), "1, 2 or 4 vectors"),
        (gradients, replace(backward, shape=(2049, 512)), config, "2049 rows are more than the 2048"),
        (gradients, replace(backward, shape=(1025, 512)), WholeConfig(256, 1), "1025 rows are more than the 1024"),
    ]
    for variant, problem, how, word in wrong:
        refusal = variant.schedule(problem, how, limits)
        assert isinstance(refusal, Refusal)
        assert word in refusal.reason, refusal.reason


@pytest.mark.parametrize(
    ("shape", "name", "forward", "backward"),
    [
        ((256, 8192), "f32", (64, 4), (64, 2)),
        ((257, 8192), "f32", (128, 4), (128, 2)),  # more rows than 64 threads hold
        ((1025, 8192), "f32", (256, 2), (512, 2)),
        ((64, 8200), "f32", (64, 2), (64, 2)),  # no fours of vectors
        ((64, 8196), "f32", (64, 1), (64, 1)),  # no pairs
        ((32, 8192), "f32", (64, 4), (64, 4)),
        ((33, 8192), "f32", (64, 4), (64, 2)),
        ((32, 8176), "f32", (64, 4), (64, 2)),  # below 512 blocks
        ((64, 2048), "f32", (64, 4), (64, 2)),
        ((64, 2032), "f32", (64, 2), (64, 2)),  # few blocks
        ((64, 768), "f32", (64, 2), (64, 2)),
        ((64, 760), "f32", (64, 2), (64, 1)),
        ((64, 256), "f32", (64, 2), (64, 1)),
        ((64, 248), "f32", (64, 1), (64, 1)),
        ((2048, 248), "f32", (128, 1), (256, 1)),
        ((128, 4096), "f16", (64, 4), (128, 2)),
        ((129, 4096), "f16", (128, 4), (128, 2)),
        ((257, 4096), "f16", (256, 4), (256, 2)),
        ((513, 4096), "f16", (256, 2), (512, 2)),
        ((32, 16384), "f16", (64, 4), (64, 4)),
        ((64, 496), "f16", (128, 1), (128, 1)),  # 64 threads are few for eight channels each
        ((128, 8192), "f64", (64, 4), (64, 2)),
        ((129, 8192), "f64", (128, 4), (64, 2)),
        ((257, 8192), "f64", (256, 4), (128, 2)),
        ((5000, 256), "f64", (512, 1), (512, 1)),  # none holds them
    ],
)
def test_blocks_with_all_rows_have_few_threads_and_whole_sectors(
    shape: Shape, name: str, forward: tuple[int, int], backward: tuple[int, int]
) -> None:
    kind = BY_NAME[name]
    assert WholeConfig.heuristic(ops.BatchNormDescriptor(shape, True, kind)) == WholeConfig(*forward)
    assert WholeConfig.heuristic(ops.BatchNormBackwardDescriptor(shape, True, kind)) == WholeConfig(*backward)


@pytest.mark.parametrize(
    ("shape", "name", "forward", "backward"),
    [
        ((512, 1024), "f32", "channels_last_whole", "channels_last_whole"),
        ((513, 128), "f32", "channels_last_whole", "channels_last_whole"),
        ((1024, 72), "f32", "channels_last_whole", "channels_last_whole"),
        ((2048, 64), "f32", "channels_last_whole", "channels_last_whole"),
        ((2049, 64), "f32", "channels_last_tickets", "channels_last_tickets"),  # few blocks, many rows
        ((1024, 24), "f64", "channels_last_whole", "channels_last_whole"),
        ((1025, 14), "f64", "cached", "cached"),
        ((3000, 170), "f64", "channels_last_tickets", "channels_last_whole"),
        ((3000, 200), "f64", "channels_last_tickets", "channels_last_tickets"),  # half sectors of more values
        ((4096, 320), "f32", "channels_last_whole", "channels_last_whole"),
        ((4097, 256), "f32", "channels_last_tickets", "channels_last_tickets"),  # rows that it does not hold
        ((4096, 1024), "f32", "channels_last_whole", "channels_last"),  # backward, many values by half sectors
        ((2048, 516), "f32", "channels_last_whole", "channels_last_whole"),  # half sectors of few values
        ((2049, 516), "f32", "channels_last_tickets", "channels_last_whole"),
        ((1024, 16384), "f32", "channels_last_whole", "channels_last_whole"),
        ((33, 65536), "f32", "channels_last_whole", "channels_last_whole"),
        ((1025, 16380), "f32", "channels_last", "channels_last"),
        ((2048, 256), "f16", "channels_last_whole", "channels_last_whole"),
        ((2049, 256), "f16", "channels_last_tickets", "channels_last_tickets"),
        ((512, 16384), "f16", "channels_last_whole", "channels_last_whole"),
        ((128, 512), "f32", "small", "small"),  # few values
        ((500, 1026), "f32", "small", "small"),  # channels that end within vectors
    ],
)
def test_where_blocks_with_all_rows_are_the_choice(shape: Shape, name: str, forward: str, backward: str) -> None:
    sim, kind = Device("sim:0"), BY_NAME[name]
    hip = wish(language="hip", tuned=False)
    plan = ops.BatchNormPlan.select(sim, ops.BatchNormDescriptor(shape, True, kind), hip)
    assert plan.variant.name == forward
    problem = ops.BatchNormBackwardDescriptor(shape, True, kind, handed=True)
    assert ops.BatchNormBackwardPlan.select(sim, problem, hip).variant.name == backward
