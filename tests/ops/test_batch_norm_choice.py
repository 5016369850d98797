"""Which way of batch_norm in training is chosen, of layers of networks: as measured on an H200."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import Shape
from op_testing import wish

from ptxrt import Device
from ptxrt.dtypes import BY_NAME
from ptxrt.ops._batch_norm import BatchNormBackwardDescriptor, BatchNormBackwardPlan, BatchNormDescriptor, BatchNormPlan
from ptxrt.ops._batch_norm_tickets import TicketsConfig
from ptxrt.runtime.layout import channels_last


def chosen(plan: Any, problem: Any, knob: str = "threads", between: str = "") -> tuple[str, ...]:
    """Return the variants in PTX and in HIP, each with a knob of its config, if it has that."""
    plans = [plan.select(Device("sim:0"), problem, wish(language=language)) for language in ("ptx", "hip")]
    return tuple(f"{one.variant.name}{between}{getattr(one.config, knob, '')}".rstrip() for one in plans)


@pytest.mark.parametrize(
    ("shape", "name", "in_ptx", "in_hip"),
    [
        ((32, 1024, 14, 14), "f32", "cached128", "cached128"),
        ((32, 1024, 14, 14), "f16", "cached128", "cached128"),
        ((32, 256, 14, 14), "f32", "cached256", "cached256"),  # too few blocks for small ones
        ((128, 256, 14, 14), "f32", "cached512", "tickets"),
        ((128, 256, 14, 14), "f16", "cached512", "tickets"),
        ((256, 256, 14, 14), "f32", "cluster", "tickets"),  # of which two blocks do not fit a multiprocessor
        ((256, 256, 14, 14), "f16", "cached512", "tickets"),
        ((256, 1024, 14, 14), "f16", "cluster", "tickets"),  # many channels, of which three blocks do not fit
        ((16, 96, 28, 28), "f16", "cached256", "cached256"),  # few channels
        ((512, 1024, 6, 6), "f16", "cached256", "cached256"),  # too many values a channel for 128 threads
        ((32, 512, 7, 7), "f32", "cached128", "cached128"),
        ((64, 512, 7, 7), "f32", "cached256", "cached128"),
        ((128, 512, 7, 7), "f32", "cached256", "cached256"),
        ((32, 2048, 7, 7), "f16", "cached128", "cached128"),
        ((128, 2048, 7, 7), "f16", "cluster", "cached128"),  # short rows of many images
        ((128, 512, 7, 7), "f16", "cached256", "cached128"),  # but of fewer channels
        ((64, 512, 7, 7), "f16", "cached256", "cached128"),
        ((256, 2048, 7, 7), "f32", "cluster", "cached256"),
        ((256, 2048, 7, 7), "f16", "cluster", "cached256"),  # single values of many channels
        ((256, 1024, 7, 7), "f16", "cluster", "cached128"),
        ((8, 64, 56, 56), "f16", "cached512", "tickets"),
        ((8, 48, 56, 56), "f16", "cluster", "tickets"),  # of few channels a cluster keeps more of the GPU busy
        ((32, 512, 28, 28), "f32", "cached512", "tickets"),
        ((64, 1024, 14, 14), "f32", "cached256", "cached256"),
        ((16, 64, 24, 24), "f32", "cached256", "cached256"),
        ((32, 64, 112, 112), "f32", "cluster", "tickets"),
        ((32, 512, 7, 7), "f64", "cached128", "cached128"),
        ((256, 512, 7, 7), "f64", "cluster", "tickets"),
        ((24, 256, 16, 16), "f64", "cached256", "tickets"),
        ((14, 256, 32, 32), "f64", "cached256", "tickets"),
        ((15, 256, 32, 32), "f64", "cluster", "tickets"),  # above 112 KiB
        ((14, 255, 32, 32), "f64", "cluster", "tickets"),  # channels below 256
        ((4, 1024, 14, 14), "f16", "cached128", "small"),  # 8 bytes at a time
        ((4, 1024, 14, 14), "f32", "cached128", "small"),
        ((2, 1024, 14, 14), "f32", "small", "small"),
        ((16, 2048, 7, 7), "f32", "small", "small"),
    ],
    ids=str,
)
def test_a_forward(shape: Shape, name: str, in_ptx: str, in_hip: str) -> None:
    assert chosen(BatchNormPlan, BatchNormDescriptor(shape, True, dtype=BY_NAME[name])) == (in_ptx, in_hip)


@pytest.mark.parametrize(
    ("shape", "name", "in_ptx", "in_hip"),
    [
        ((8, 1024, 14, 14), "f16", "cached128", "cached128"),
        ((8, 1024, 14, 14), "f32", "cached128", "cached128"),
        ((32, 1024, 14, 14), "f16", "cached128", "cached128"),
        ((32, 1024, 14, 14), "f32", "cached256", "cached512"),
        ((64, 1024, 14, 14), "f16", "cached256", "tickets"),
        ((32, 256, 14, 14), "f32", "cached256", "cached512"),
        ((64, 256, 14, 14), "f32", "cached256", "tickets"),
        ((128, 256, 14, 14), "f16", "cached512", "tickets"),
        ((32, 128, 28, 28), "f32", "cached512", "tickets"),  # all channels at a time
        ((32, 136, 28, 28), "f32", "cluster", "tickets"),
        ((16, 64, 24, 24), "f32", "cached256", "tickets"),
        ((16, 96, 28, 28), "f32", "cached256", "tickets"),
        ((128, 1024, 14, 14), "f32", "cluster", "tickets"),
        ((64, 200, 7, 7), "f32", "cached256", "cached128"),
        ((128, 200, 7, 7), "f32", "cached256", "cached512"),
        ((128, 512, 7, 7), "f32", "cached256", "cached512"),
        ((128, 512, 7, 7), "f16", "cached256", "cached128"),
        ((256, 512, 7, 7), "f32", "cluster", "tickets"),
        ((32, 768, 17, 17), "f32", "cached256", "tickets"),  # rows that are not short
        ((64, 512, 7, 7), "f16", "cached256", "cached128"),
        ((64, 512, 7, 7), "f32", "cached256", "cached128"),
        ((64, 512, 9, 9), "f32", "cached256", "cached512"),  # rows that are not short
        ((32, 512, 28, 28), "f16", "cached512", "tickets"),
        ((128, 2048, 7, 7), "f32", "cluster", "cached512"),
        ((1024, 512, 3, 3), "f16", "cluster", "cached512"),
        ((8, 64, 56, 56), "f32", "cluster", "tickets"),
        ((32, 32, 12, 12), "f32", "cached256", "cached512"),
        ((1, 32, 8, 8), "f32", "baseline", "cached512"),  # few values
        ((32, 512, 7, 7), "f64", "cached128", "cached128"),
        ((256, 512, 7, 7), "f64", "cluster", "tickets"),
        ((10, 192, 32, 32), "f64", "cached256", "tickets"),
        ((11, 192, 32, 32), "f64", "cluster", "tickets"),  # above 160 KiB
        ((8, 95, 32, 32), "f64", "cluster", "tickets"),  # channels below 96
        ((7, 192, 32, 32), "f64", "cached256", "baseline"),  # smaller channels, few values
    ],
    ids=str,
)
def test_a_backward(shape: Shape, name: str, in_ptx: str, in_hip: str) -> None:
    problem = BatchNormBackwardDescriptor(shape, True, dtype=BY_NAME[name])
    assert chosen(BatchNormBackwardPlan, problem) == (in_ptx, in_hip)


@pytest.mark.parametrize(
    ("shape", "name", "knob", "forward", "backward"),
    [
        # A cluster a channel where one block would be long about it; of 8 blocks, unless these have much to do.
        ((4, 1, 32, 32), "f32", "size", "cached", "cached"),
        ((16, 1, 32, 32), "f32", "size", "cluster 8", "cluster 8"),
        ((16, 1, 32, 32), "f16", "size", "cached", "cluster 8"),
        ((16, 8, 64, 64), "f32", "size", "cluster 16", "cluster 8"),
        ((16, 8, 64, 64), "f64", "size", "cluster 8", "cluster 8"),
        ((16, 16, 32, 32), "f32", "size", "cluster 8", "cluster 8"),
        ((16, 17, 32, 32), "f32", "size", "cached", "cluster 8"),
        ((16, 32, 32, 32), "f32", "size", "cached", "cluster 2"),
        ((16, 40, 32, 32), "f32", "size", "cluster 8", "cluster 2"),
        ((256, 4, 28, 28), "f32", "size", "cluster 16", "cluster 16"),
        ((512, 4, 28, 28), "f16", "size", "cluster 16", "cluster 16"),
        ((1024, 4, 28, 28), "f16", "values", "cluster", "split 8192"),
        ((2048, 4, 28, 28), "f16", "values", "split 8192", "split 8192"),
        ((2048, 5, 28, 28), "f16", "values", "cluster", "split 8192"),
        # Odd rows: columns, or slices, which are shorter where they are few.
        ((64, 8, 27, 27), "f32", "added", "columns 1", "split"),
        ((64, 4, 27, 27), "f16", "added", "columns 1", "columns 1"),
        ((64, 5, 27, 27), "f32", "values", "columns", "split 4096"),
        ((64, 9, 27, 27), "f16", "values", "split 4096", "split 4096"),
        ((64, 1, 33, 33), "f32", "values", "split 4096", "split 4096"),
        ((64, 32, 27, 27), "f32", "values", "split 4096", "split 8192"),
        ((64, 64, 27, 27), "f16", "values", "split 8192", "split 8192"),
        ((64, 65, 27, 27), "f16", "threads", "cached 512", "split"),
        ((16, 8, 27, 27), "f32", "threads", "cached 256", "cached 256"),
    ],
    ids=str,
)
def test_few_channels(shape: Shape, name: str, knob: str, forward: str, backward: str) -> None:
    """In PTX."""
    plans = {BatchNormPlan: BatchNormDescriptor, BatchNormBackwardPlan: BatchNormBackwardDescriptor}
    found = [chosen(plan, kind(shape, True, dtype=BY_NAME[name]), knob, " ")[0] for plan, kind in plans.items()]
    assert found == [forward, backward]


@pytest.mark.parametrize(
    ("shape", "name", "forward", "backward"),
    [
        ((1, 4, 64, 64), "f32", ("cached256", "cached256"), ("cached256", "cached512")),
        (
            (2, 4, 64, 64),
            "f32",
            ("channels_last_cluster256", "channels_last_tickets"),
            ("channels_last_cluster256", "channels_last_tickets"),
        ),
        ((1, 4, 127, 127), "bf16", ("cached256", "cached256"), ("cached256", "tickets")),
        ((1, 4, 128, 128), "bf16", ("cached512", "cached256"), ("channels_last", "channels_last")),
        ((1, 3, 128, 128), "bf16", ("cached512", "cached256"), ("cached512", "tickets")),
        # Gradients of which no block holds a channel.
        ((1, 3, 128, 128), "f32", ("cached512", "tickets"), ("channels_last", "channels_last")),
        ((1, 6, 128, 128), "bf16", ("channels_last", "channels_last"), ("channels_last", "channels_last")),
        ((1, 6, 128, 127), "bf16", ("cached256", "cached256"), ("channels_last", "channels_last")),
        ((2, 20, 64, 64), "bf16", ("channels_last", "channels_last"), ("channels_last", "channels_last")),
        ((2, 20, 64, 63), "bf16", ("cached256", "cached256"), ("cached256", "cached512")),
        ((2, 3, 64, 64), "f64", ("cached256", "tickets"), ("channels_last", "channels_last")),
    ],
    ids=str,
)
def test_few_channels_side_by_side(shape: Shape, name: str, forward: Any, backward: Any) -> None:
    strides = channels_last(shape)
    of_x = BatchNormDescriptor(shape, True, dtype=BY_NAME[name], strides=strides)
    of_gradients = BatchNormBackwardDescriptor(shape, True, dtype=BY_NAME[name], strides=strides)
    assert (chosen(BatchNormPlan, of_x), chosen(BatchNormBackwardPlan, of_gradients)) == (forward, backward)


@pytest.mark.parametrize(
    ("shape", "name", "in_ptx", "in_hip"),
    [
        ((32, 512, 7, 7), "f32", "elementwise 4", "elementwise 4"),
        ((32, 512, 7, 7), "f16", "elementwise 4", "elementwise 4"),
        ((32, 2048, 7, 7), "f16", "elementwise 8", "elementwise 4"),
        ((8, 768, 17, 17), "f32", "elementwise 8", "elementwise 4"),
        ((32, 1024, 14, 14), "f32", "alone", "alone"),  # whole vectors
        ((32, 1024, 14, 14), "f16", "elementwise 8", "elementwise 4"),
        ((256, 2048, 7, 7), "f16", "elementwise 16", "elementwise 4"),  # many blocks, whose coefficients are paid for
        ((1, 32, 8, 8), "f32", "alone", "alone"),
        ((1, 32, 7, 7), "f32", "small", "small"),
    ],
    ids=str,
)
def test_a_forward_in_eval(shape: Shape, name: str, in_ptx: str, in_hip: str) -> None:
    """How many images a block writes."""
    problem = BatchNormDescriptor(shape, False, dtype=BY_NAME[name])
    assert chosen(BatchNormPlan, problem, "written", " ") == (in_ptx, in_hip)


@pytest.mark.parametrize(
    ("shape", "name", "knob", "in_ptx", "in_hip"),
    [
        ((32, 512, 7, 7), "f32", "added", "baseline", "baseline"),
        ((1, 256, 56, 56), "f32", "values", "baseline", "split 4096"),
        ((64, 960, 7, 7), "f32", "added", "columns 16", "split"),  # too many values for the baseline
        ((32, 2048, 7, 7), "f32", "added", "columns 16", "split"),
        ((32, 1024, 14, 14), "f32", "added", "columns 32", "split"),
        ((32, 1024, 14, 14), "f16", "values", "split 8192", "split 8192"),
        ((128, 256, 14, 14), "f32", "values", "split 28672", "split 8192"),
        ((128, 256, 14, 14), "f16", "values", "split 28672", "split 8192"),
        ((8, 64, 56, 56), "f32", "values", "split 8192", "split 8192"),  # few channels
        ((32, 288, 35, 35), "f16", "values", "split 8192", "split 8192"),  # large ones
        ((1, 512, 28, 28), "f16", "values", "small", "small"),
        ((4, 1024, 14, 14), "f32", "values", "small", "small"),
        ((1, 64, 112, 112), "f32", "values", "split 8192", "split 8192"),
    ],
    ids=str,
)
def test_a_backward_in_eval(shape: Shape, name: str, knob: str, in_ptx: str, in_hip: str) -> None:
    """How many images, or values, a block adds up."""
    problem = BatchNormBackwardDescriptor(shape, False, dtype=BY_NAME[name])
    assert chosen(BatchNormBackwardPlan, problem, knob, " ") == (in_ptx, in_hip)


@pytest.mark.parametrize(
    ("shape", "name", "forward", "backward"),
    [
        ((128, 1024, 14, 14), "f16", (8, 32), (8, 32)),
        ((32, 512, 28, 28), "f16", (4, 32), (4, 32)),
        ((32, 288, 35, 35), "f16", (2, 8), (4, 32)),  # no vectors
        ((8, 64, 56, 56), "f16", (2, 8), (2, 16)),
        ((32, 512, 28, 28), "f32", (4, 32), (2, 16)),
        ((32, 288, 35, 35), "f32", (2, 16), (2, 16)),
        ((128, 256, 14, 14), "f32", (2, 16), (2, 32)),
        ((32, 768, 17, 17), "f32", (2, 16), (4, 32)),  # no vectors, of many channels
        ((32, 768, 18, 18), "f32", (2, 16), (2, 32)),
        ((1024, 512, 3, 3), "f32", (2, 16), (4, 32)),  # few values a row
        ((256, 512, 7, 7), "f32", (2, 16), (2, 32)),
        ((32, 512, 28, 28), "f64", (4, 32), (2, 32)),
    ],
    ids=str,
)
def test_tickets(shape: Shape, name: str, forward: Any, backward: Any) -> None:
    """How many steps of values a slice has, and how many MiB the sums are ahead."""
    for problem, (steps, ahead) in (
        (BatchNormDescriptor(shape, True, dtype=BY_NAME[name]), forward),
        (BatchNormBackwardDescriptor(shape, True, dtype=BY_NAME[name]), backward),
    ):
        assert TicketsConfig.heuristic(problem) == TicketsConfig(steps << 12, ahead << 20)
