"""Grid, block and shared memory of a launch, against the limits of the device and of the kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ptxrt.backends import Resources
from ptxrt.errors import LaunchError, Unsupported, shown
from ptxrt.runtime.device import Device
from ptxrt.runtime.layout import whole_numbers

__all__ = ["check_cooperative", "checked_geometry"]


def checked_geometry(
    entry: str, device: Device, resources: Resources, grid: Any, block: Any, shared: Any
) -> tuple[tuple[int, int, int, int, int, int], int]:
    """Return grid and block with three axes each, and the bytes of dynamic shared memory; LaunchError for others."""

    def refused(argument: str, expected: str, given: Any) -> LaunchError:
        return LaunchError(
            op=entry,
            argument=argument,
            expected=f"{expected} on {device}",
            given=shown(given),
            fix="device.properties and kernel.resources have the limits",
        )

    def sizes(argument: str, value: Any, most: tuple[int, int, int]) -> tuple[int, int, int]:
        numbers = whole_numbers(value) or ()
        if not 1 <= len(numbers) <= 3:
            raise refused(argument, "one to three whole numbers", value)
        x, y, z = (*numbers, 1, 1)[:3]
        if not all(1 <= n <= limit for n, limit in zip((x, y, z), most, strict=True)):
            raise refused(argument, f"each at least 1 and at most {most}", value)
        return x, y, z

    limits = device.properties
    blocks, threads = sizes("grid", grid, limits.max_grid), sizes("block", block, limits.max_block)
    along = tuple(a * b for a, b in zip(blocks, threads, strict=True))
    if max(along) > limits.max_grid_threads:
        raise refused("grid", f"grid times block, at most {limits.max_grid_threads} threads along each axis", along)
    count = threads[0] * threads[1] * threads[2]
    most = min(limits.max_threads_per_block, resources.max_threads)
    if count > most:
        raise refused("block", f"at most {most} threads ({resources.registers} registers each)", count)
    if resources.shared_bytes > limits.max_shared_static:
        static = f"a kernel of at most {limits.max_shared_static} bytes of static shared memory"
        raise refused("kernel", static, resources.shared_bytes)
    available = limits.max_shared_dynamic - resources.shared_bytes
    whole = isinstance(shared, (int, np.integer)) and not isinstance(shared, bool)
    if not whole or not 0 <= shared <= available:
        raise refused("shared_bytes", f"0 to {available} beside {resources.shared_bytes} static bytes", shared)
    return (*blocks, *threads), int(shared)


def check_cooperative(entry: str, device: Device, grid: tuple[int, ...], most_each: int) -> None:
    """Check that all blocks of a grid can run at one time, where a multiprocessor holds `most_each` of them.

    Raises
    ------
    LaunchError
        For a grid with more.
    Unsupported
        For a device without cooperative launches.
    """
    if not device.properties.cooperative:
        raise Unsupported(
            op=entry, argument="cooperative", expected="a device with cooperative launches", given=str(device)
        )
    units = device.properties.multiprocessors
    blocks = math.prod(grid)
    if blocks > most_each * units:
        raise LaunchError(
            op=entry,
            argument="grid",
            expected=f"at most {most_each * units} blocks in a cooperative launch on {device}, all at one time: "
            f"{most_each} of this block and shared memory on each of {units} multiprocessors",
            given=f"{blocks}",
            fix="Launch fewer blocks and let each do more in a loop, or take smaller blocks or less shared memory",
        )
