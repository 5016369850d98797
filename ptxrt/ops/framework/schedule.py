"""Schedule: how a variant runs one problem, as plain data: its launches, its workspace, its precision."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np

from ptxrt.backends import DeviceProperties
from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import InvalidArgument, shown
from ptxrt.ops.framework.kernels import KernelSpec
from ptxrt.ops.framework.texts import FOLLOWING_TARGET

__all__ = [
    "ALIGN",
    "Argument",
    "Config",
    "Launch",
    "Limits",
    "PrecisionGuarantee",
    "Refusal",
    "Region",
    "Schedule",
    "Step",
    "Workspace",
    "Zero",
    "blocks_in_hip",
    "ceil_div",
    "in_slices",
    "reciprocal",
    "refusal_of_threads",
    "refusal_of_warps",
]

ALIGN = 256
"""A workspace, and each of its regions, begins at a multiple of this many bytes."""

_HIP_THREADS = (1 << 32) - 1  # AMD's limit; the same everywhere, so that one device takes what another does
_LARGE = 132  # multiprocessors, of an H100 with all its parts and of an H200
_OWN = 1024  # bytes of shared memory left to an entry's own variables, beside what its launch asks for


def ceil_div(count: int, size: int) -> int:
    """Return how many parts of `size` hold `count`."""
    return -(-count // size)


def reciprocal(divisor: int) -> tuple[int, int]:
    """Return a factor and a shift: (i * factor) >> shift is i // divisor for i < 2^31."""
    shift = 31 + (divisor - 1).bit_length()
    return ceil_div(1 << shift, divisor), shift


def blocks_in_hip(count: int, threads: int) -> int:
    """Return how many blocks of `threads` serve `count` places on AMD: where HIP launches no more, threads take turns.

    The kernel goes on in steps of its grid.
    """
    return min(ceil_div(count, threads), _HIP_THREADS // threads)


def in_slices(values: int, aim: int, most: int, step: int) -> tuple[int, int]:
    """Return how many slices `values` are cut into, and their length.

    About `aim`, and a multiple of `step`; at most about `most` slices.
    """
    length = ceil_div(values, min(most, ceil_div(values, aim)))
    length = ceil_div(length, step) * step
    return ceil_div(values, length), length


@dataclass(frozen=True)
class PrecisionGuarantee:
    """What a plan says of its results.

    Attributes
    ----------
    math_precision, accumulator
        Element types of the arithmetic and of the sums, ``"f32"``; ``"2 x f64"`` is a sum of a high and a low part.
    deterministic
        Equal inputs give equal bits from run to run.
    bit_stable_on_same_hardware
        They do so on every device of the same architecture.
    """

    math_precision: str
    accumulator: str
    deterministic: bool
    bit_stable_on_same_hardware: bool

    def as_good_as(self, other: PrecisionGuarantee) -> bool:
        """Return whether it promises all that another does: the same types, and no less of equal bits."""
        return (
            (self.math_precision, self.accumulator) == (other.math_precision, other.accumulator)
            and self.deterministic >= other.deterministic
            and self.bit_stable_on_same_hardware >= other.bit_stable_on_same_hardware
        )


class Limits(NamedTuple):
    """What a schedule may depend on of a device. How many multiprocessors it has is not: results would differ.

    Attributes
    ----------
    max_grid
        Blocks along each axis.
    max_grid_threads
        Threads along each axis of a grid.
    max_threads_per_block
        Threads of a block.
    max_shared_bytes
        Dynamic shared memory of a block, beside the 1024 bytes that an entry may have of its own.
    target
        The number of its architecture, 90 for sm_90; None on AMD.
    max_cluster
        Blocks of a cluster, where the architecture has clusters.
    large
        Whether the device has 132 multiprocessors or more, for what waits for as many blocks.
    """

    max_grid: tuple[int, int, int]
    max_grid_threads: int
    max_threads_per_block: int
    max_shared_bytes: int
    target: int | None = None
    max_cluster: int = 8
    large: bool = True

    @classmethod
    def of(cls, device: DeviceProperties, language: str = "ptx") -> Limits:
        """Return those of a device; of a kernel in HIP, which no device launches with 2**32 threads along an axis."""
        threads = min(device.max_grid_threads, _HIP_THREADS) if language == "hip" else device.max_grid_threads
        shared = device.max_shared_dynamic - _OWN
        number = re.match(r"sm_(\d+)", device.arch)
        target = int(number[1]) if number else None
        large = device.multiprocessors >= _LARGE
        return cls(device.max_grid, threads, device.max_threads_per_block, shared, target, device.max_cluster, large)


@dataclass(frozen=True)
class Region:
    """A named stretch of a workspace: `count` elements of `type`, `offset` bytes from its start."""

    name: str
    type: ElementType
    count: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return self.count * self.type.size

    def part(self, name: str, dtype: str, start: int, count: int) -> Region:
        """Return `count` elements of `dtype` within it, from byte `start` on."""
        return Region(name, BY_NAME[dtype], count, self.offset + start)


class Workspace:
    """Lays regions out one after another.

    Attributes
    ----------
    regions : list of Region
    size : int
        Bytes of all of them.
    """

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.size = 0

    def region(self, name: str, dtype: str, count: int) -> Region:
        """Return a new region behind the others, for `count` elements of `dtype`."""
        start = -(-self.size // ALIGN) * ALIGN
        region = Region(name, BY_NAME[dtype], count, start)
        self.regions.append(region)
        self.size = start + region.nbytes
        return region


Argument = str | Region | np.ndarray[Any, Any] | int | float
"""Of a launch: an operand by its name, a region of the workspace, a table that the plan uploads once, or a scalar."""


@dataclass(frozen=True)
class Launch:
    """One launch: what runs, how wide, on what.

    Attributes
    ----------
    kernel
        The entry.
    grid
        Up to three numbers.
    block
        Threads in a block.
    arguments
        One a parameter of the entry.
    shared_bytes
        Dynamic shared memory.
    own_bytes
        What the entry's own variables take of shared memory, at most.
    """

    kernel: KernelSpec
    grid: tuple[int, ...]
    block: int
    arguments: tuple[Argument, ...]
    shared_bytes: int = 0
    own_bytes: int = _OWN

    def may_follow(self, limits: Limits) -> bool:
        """Return whether it may begin while a launch before it ends: it waits for that by itself."""
        ptx = self.kernel.language == "ptx"
        return ptx and limits.target is not None and limits.target >= FOLLOWING_TARGET

    def refusal(self, limits: Limits) -> str | None:
        """Return in words what does not fit the device or the entry's own parameters, or None."""
        needs = self.kernel.target
        if needs is not None and limits.target is not None and limits.target < needs:
            return f"{self.kernel.entry} needs sm_{needs}, and this is sm_{limits.target}"
        if min(self.block, *self.grid) < 1:
            return f"a grid of {self.grid} blocks of {self.block} threads has none"
        if self.block > limits.max_threads_per_block:
            return f"{self.block} threads are more than the {limits.max_threads_per_block} that a block may have"
        for axis, blocks, most in zip("xyz", self.grid, limits.max_grid, strict=False):
            if blocks > most:
                return f"{blocks} blocks do not fit grid.{axis}, which holds {most}"
        if self.grid[0] * self.block > limits.max_grid_threads:
            return f"{self.grid[0]} blocks of {self.block} threads are more than {limits.max_grid_threads} along x"
        most = limits.max_shared_bytes + _OWN - self.own_bytes
        if self.shared_bytes > most:
            return f"{self.shared_bytes} bytes of shared memory are more than {most}"
        for parameter, value in zip(self.kernel.signature.parameters, self.arguments, strict=True):
            if value.__class__ is int and parameter.type.kind == "int":
                low, high = parameter.type.limits
                if not low <= value <= high:
                    return f"{parameter.name} = {value} does not fit the kernel's {parameter.type}"
        return None


@dataclass(frozen=True)
class Zero:
    """A step in a launch's place: zeros for all of an operand, where there is one, or of a region of the workspace.

    A plan has them made by a launch where that helps the next one (`zeros`), else by the driver.
    """

    where: str | Region


Step = Launch | Zero


@dataclass(frozen=True)
class Config:
    """The knobs of a variant, such as how many slices there are; this one has none.

    A variant with knobs derives a frozen dataclass from it, of whole numbers. Both methods see the problem alone, so
    that results do not depend on how large a device is.

    Raises
    ------
    InvalidArgument
        For a knob that is no int, or negative. What else a variant cannot take it refuses.
    """

    def __post_init__(self) -> None:
        for knob in fields(self):
            value = getattr(self, knob.name)
            if type(value) is not int or value < 0:
                raise InvalidArgument(
                    op=type(self).__name__,
                    argument=knob.name,
                    expected="an int, 0 or more",
                    given=shown(value),
                    fix=f"Take one of {type(self).__name__}.candidates(descriptor), or leave the config out",
                )

    @classmethod
    def heuristic(cls, problem: Any) -> Config:
        """Return what a plan takes where its preference names no config."""
        del problem
        return cls()

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[Config]:
        """Return all that are worth measuring, the heuristic's among them."""
        return (cls.heuristic(problem),)


@dataclass(frozen=True)
class Schedule:
    """How a variant runs one problem.

    Attributes
    ----------
    steps
        In order.
    guarantee
        What the results are.
    workspace
        The regions that the steps name.
    """

    steps: tuple[Step, ...]
    guarantee: PrecisionGuarantee
    workspace: Workspace = field(default_factory=Workspace)

    @property
    def launches(self) -> tuple[Launch, ...]:
        """The steps that launch a kernel."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    def refusal(self, limits: Limits) -> str | None:
        """Return in words why a device cannot run it, or None."""
        return next((reason for launch in self.launches if (reason := launch.refusal(limits))), None)


@dataclass(frozen=True)
class Refusal:
    """In a schedule's place: why a variant cannot run a problem, in words."""

    reason: str


def refusal_of_threads(threads: int, step: int, most: int) -> Refusal | None:
    """Return why a block is not of so many threads, or None: it takes multiples of `step`."""
    if 0 < threads <= most and threads % step == 0:
        return None
    return Refusal(f"a block has a multiple of {step} threads, up to {most}, not {threads}")


def refusal_of_warps(warps: int, dtype: ElementType, language: str) -> Refusal | None:
    """Return why a block of a norm's `baseline` is not of so many warps, or None: in PTX each number is an entry."""
    most = 16 if dtype.name == "f64" else 32
    if warps in (1, 8) or (language == "hip" and 0 < warps <= most):
        return None
    return Refusal(f"a block has {'1 warp or 8' if language == 'ptx' else f'1 warp to {most}'}, not {warps}")
