"""Which way of batch_norm in training is chosen, of layers of networks: as measured on an H200."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import Shape
from op_testing import wish

from ptxrt import Device
from ptxrt.dtypes import BY_NAME
from ptxrt.ops._batch_norm import (
    BatchNormBackwardDescriptor,
    BatchNormBackwardPlan,
    BatchNormDescriptor,
    BatchNormPlan,
)


def chosen(plan: Any, problem: Any) -> tuple[str, ...]:
    """Return the variants in PTX and in HIP."""
    plans = (plan.select(Device("sim:0"), problem, wish(language=language)) for language in ("ptx", "hip"))
    return tuple(one.variant.name for one in plans)


@pytest.mark.parametrize(
    ("shape", "name", "in_ptx", "in_hip"),
    [
        ((32, 1024, 14, 14), "f32", "cached", "cached"),
        ((32, 1024, 14, 14), "f16", "cached", "cached"),
        ((128, 256, 14, 14), "f32", "cached", "tickets"),
        ((128, 256, 14, 14), "f16", "cluster", "tickets"),  # rows that are no whole vectors, of many images
        ((256, 256, 14, 14), "f32", "cluster", "tickets"),  # of which two blocks do not fit a multiprocessor
        ((32, 512, 7, 7), "f32", "cached", "cached"),
        ((32, 2048, 7, 7), "f16", "cluster", "cached"),  # short rows of many channels
        ((64, 512, 7, 7), "f16", "cached", "cached"),
        ((256, 2048, 7, 7), "f32", "cluster", "cached"),
        ((8, 64, 56, 56), "f16", "cluster", "tickets"),  # of few channels a cluster keeps more of the GPU busy
        ((16, 64, 24, 24), "f32", "cached", "cached"),
        ((32, 64, 112, 112), "f32", "cluster", "tickets"),
        ((32, 512, 7, 7), "f64", "cluster", "cached"),
    ],
    ids=str,
)
def test_a_forward(shape: Shape, name: str, in_ptx: str, in_hip: str) -> None:
    assert chosen(BatchNormPlan, BatchNormDescriptor(shape, True, dtype=BY_NAME[name])) == (in_ptx, in_hip)


@pytest.mark.parametrize(
    ("shape", "name", "in_ptx", "in_hip"),
    [
        ((8, 1024, 14, 14), "f16", "baseline", "baseline"),
        ((8, 1024, 14, 14), "f32", "baseline", "baseline"),
        ((64, 200, 7, 7), "f32", "cluster", "cached"),  # too few channels for the baseline, and rows that are short
        ((32, 1024, 14, 14), "f32", "baseline", "cached"),
        ((32, 1024, 14, 14), "f16", "baseline", "tickets"),
        ((32, 256, 14, 14), "f32", "cached", "cached"),
        ((64, 1024, 14, 14), "f16", "baseline", "tickets"),
        ((64, 256, 14, 14), "f32", "cached", "tickets"),
        ((128, 1024, 14, 14), "f32", "cluster", "tickets"),
        ((64, 512, 7, 7), "f16", "baseline", "baseline"),
        ((128, 2048, 7, 7), "f32", "cluster", "cached"),
        ((1024, 512, 3, 3), "f16", "cluster", "cached"),
        ((8, 64, 56, 56), "f32", "cluster", "tickets"),
        ((32, 32, 12, 12), "f32", "cached", "cached"),
        ((32, 512, 7, 7), "f64", "cluster", "cached"),
    ],
    ids=str,
)
def test_a_backward(shape: Shape, name: str, in_ptx: str, in_hip: str) -> None:
    problem = BatchNormBackwardDescriptor(shape, True, dtype=BY_NAME[name])
    assert chosen(BatchNormBackwardPlan, problem) == (in_ptx, in_hip)
