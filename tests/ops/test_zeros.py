"""Zeros by a launch: each byte of an array and none beside it, and where plans have them made so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from op_testing import Guarded, wish

import ptxrt
from ptxrt import Device, ops
from ptxrt.ops.framework import Limits
from ptxrt.ops.framework.zeros import SMALL, zeros

COUNTS = [1, 15, 16, 17, 31, 32, 4095, 4096, 4097, 4112, 12289]


def load(device: Device, nbytes: int) -> tuple[ptxrt.Kernel, tuple[int, ...], int]:
    """Return the kernel, grid and block; skip where the device is too old for it."""
    launch = zeros("x", nbytes)
    if reason := launch.refusal(Limits.of(device.properties)):
        pytest.skip(reason)
    return launch.kernel.load(device), launch.grid, launch.block


@pytest.mark.ptx
@pytest.mark.sanitize
@pytest.mark.parametrize("offset", [0, 1, 15])
def test_every_byte_is_zero_and_none_beside(device: Device, offset: int) -> None:
    for count in COUNTS:
        kernel, grid, block = load(device, count)
        given = Guarded((count,), np.uint8, device, offset)
        kernel.launch(grid, block, given.array, count)
        assert not given.host().any(), count


@pytest.mark.ptx
def test_no_array_is_nothing(device: Device) -> None:
    kernel, grid, block = load(device, 32)
    kernel.launch(grid, block, None, 32)
    device.synchronize()


@pytest.mark.parametrize(
    ("target", "small", "fills", "launches"),
    [
        (90, SMALL, [], [False, True]),
        (90, range(1, 384), [384], [False]),  # behind a memset nothing begins early
        (90, range(1, 385), [], [False, True]),
        (80, SMALL, [384], [False]),
    ],
)
def test_a_plan_has_few_bytes_made_zeros_by_a_launch(
    sim: Device, monkeypatch: pytest.MonkeyPatch, target: int, small: range, fills: list[int], launches: list[bool]
) -> None:
    x = ptxrt.to_device(np.ones((2, 3, 4, 4), np.float32), sim)
    grid = ptxrt.to_device(np.zeros((2, 4, 4, 2), np.float32), sim)
    filled: list[int] = []
    follow: list[bool] = []
    step = ptxrt.Kernel.step
    limits, fill = Limits.of(sim.properties)._replace(target=target), sim.backend.fill
    monkeypatch.setattr(Limits, "of", lambda *_: limits)
    monkeypatch.setattr("ptxrt.ops.framework.plan.SMALL", small)

    def spy(ordinal: int, ptr: int, byte: int, nbytes: int, stream: int) -> None:
        filled.append(nbytes)
        fill(ordinal, ptr, byte, nbytes, stream)

    def made(kernel: ptxrt.Kernel, *given: Any, follows: bool) -> Any:
        follow.append(follows)
        return step(kernel, *given, follows=follows)

    monkeypatch.setattr(sim.backend, "fill", spy)
    monkeypatch.setattr(ptxrt.Kernel, "step", made)
    plan = ops.GridSampleBackwardPlan.select(
        sim, ops.GridSampleBackwardDescriptor(x.shape, grid.shape), wish("baseline")
    )
    grad_input, _ = plan.run(ops.GridSampleBackwardArgs(x, x, grid))
    assert (filled, follow) == (fills, launches)
    assert float(grad_input.to_host().sum()) == 96.0
