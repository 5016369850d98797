"""The variant of group_norm of large groups: a block of each multiprocessor has a part of one group after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ptxrt.ops.framework import (
    Argument,
    Config,
    KernelFamily,
    KernelSpec,
    Launch,
    Limits,
    Refusal,
    Region,
    Role,
    Schedule,
    Variant,
    Workspace,
    Zero,
    ceil_div,
    refusal_of_threads,
)

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor, GroupNormDescriptor

    Problem: TypeAlias = GroupNormDescriptor | GroupNormBackwardDescriptor

__all__ = ["FAMILY", "GridConfig", "InGrid", "launch_of", "suits", "zeros_of"]

_WARP = 32
_MOST_THREADS, _MOST_BLOCKS, _MOST_CHANNELS = 640, 160, 32
_MOST_SLOTS, _MOST_LAG, _MOST_TEAMS = 8, 3, 132
_SHARED = 216 << 10  # bytes of a multiprocessor that are sure to be there on a GPU of sm_90
_OWN = 6 << 10  # bytes of a block's own variables, and of what the hardware takes
_LINE = 8  # vectors of 16 bytes that memory moves at a time
_MULTIPROCESSORS = 132
_AHEAD = 2  # groups that a block has room for, besides those that wait to be written
_LARGE = {1: {4: 2 << 20, 2: 3 << 20}, 2: {4: 3 << 20, 2: 3 << 20}}
"""By arrays that are read and bytes of an element: those of a group from which on clusters are slower."""
_FEW, _LARGE_OF_FEW = 6, 1 << 20  # groups; bytes of a group: clusters would leave a GPU idle
_ONE_TEAM = 3 << 20  # bytes of a group, of each array, whose slices are not small

FAMILY = KernelFamily(
    "group_norm_grid",
    ("f32", "f16", "bf16"),
    {
        "group_norm_grid_kernel": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, f64* sums_ptr, u32* claims_ptr, "
            "u32 channels, u32 groups, u32 hw, P eps, u32 total, u32 teams, u32 workers, u32 slot_bytes, u32 slots, "
            "u32 lag",
            target=90,
        )
    },
    op="group_norm",
)


@dataclass(frozen=True)
class GridConfig(Config):
    """Knobs of blocks that have one group after another.

    Attributes
    ----------
    blocks
        Of a team, which share a group, at most: as many as a GPU has multiprocessors.
    workers
        Threads of a block that move values; 32 * (lag + 1) do not.
    lag
        A group is written so many groups of the team after it has been read.
    teams
        They take the groups in turn. A multiprocessor's shared memory is cut into as many parts as it then has blocks.
    """

    blocks: int
    workers: int
    lag: int
    teams: int

    @classmethod
    def heuristic(cls, problem: Problem) -> GridConfig:
        """Return what was fastest on an H200: of small slices, as those of 16 bits are, several teams."""
        if problem.dtype.size == 2 and problem.arrays == 1:
            return cls(_MULTIPROCESSORS, 128, 1, 3)
        teams = 1 if problem.group_bytes >= _ONE_TEAM * problem.arrays else 2
        slots = cls(_MULTIPROCESSORS // teams, 384, 1, teams).slots(problem)
        return cls(_MULTIPROCESSORS // teams, 384, max(1, min(_MOST_LAG, slots - _AHEAD)), teams)

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[GridConfig]:
        """Return the heuristic's, and others that have room for a group."""
        ways = [cls.heuristic(problem)]
        ways += [cls(_MULTIPROCESSORS, 512, lag, 1) for lag in (3, 2, 1)]
        ways += [cls(_MULTIPROCESSORS, workers, 1, teams) for workers, teams in ((256, 2), (128, 3))]
        ways += [cls(_MULTIPROCESSORS // teams, 384, lag, teams) for teams, lag in ((2, 3), (4, 1))]
        return tuple(dict.fromkeys(way for way in ways if way.slots(problem) > way.lag))

    def share(self, problem: Problem) -> int:
        """Return the blocks of a team: no more than have values, of a small group."""
        least = self.workers if problem.arrays == 1 else _LINE
        return min(self.blocks, max(1, ceil_div(_vectors(problem), least)))

    def run(self, problem: Problem) -> int:
        """Return the vectors of a slice, backward, which lie one behind another: whole lines."""
        return _LINE * ceil_div(_vectors(problem), self.share(problem) * _LINE)

    def working(self, problem: Problem) -> int:
        """Return the workers of a block: backward no more warps than its slice has vectors for."""
        return self.workers if problem.arrays == 1 else min(self.workers, _WARP * ceil_div(self.run(problem), _WARP))

    def slot(self, problem: Problem) -> int:
        """Return the bytes of shared memory that hold a block's slice of a group."""
        if problem.arrays == 2:
            return 32 * self.run(problem)
        return 16 * ceil_div(_vectors(problem), self.share(problem) * self.workers) * self.workers

    def slots(self, problem: Problem) -> int:
        """Return how many groups a block has slices of at a time."""
        together = ceil_div(self.blocks * self.teams, _MULTIPROCESSORS)
        return min(_MOST_SLOTS, (_SHARED // together - _OWN) // max(self.slot(problem), 1))

    def refusal(self, problem: Problem, limits: Limits | None = None) -> Refusal | None:
        """Return why there is no such launch, or None."""
        if problem.dtype.name not in FAMILY.dtypes:
            return Refusal(f"is not for {problem.dtype.name}")
        if limits is not None and not limits.large:
            return Refusal(
                "is for GPUs with as many multiprocessors as a team has blocks, since these wait for each other"
            )
        if problem.batch * problem.groups >> 31:
            return Refusal(f"{problem.batch * problem.groups} groups are above {(1 << 31) - 1}")
        if refusal := problem.refusal_of_vectors():
            return refusal
        if problem.arrays == 1 and problem.channels // problem.groups > _MOST_CHANNELS:
            return Refusal(f"a group has more than {_MOST_CHANNELS} channels")
        if not 0 < self.blocks <= _MOST_BLOCKS:
            return Refusal(f"a team has 1 to {_MOST_BLOCKS} blocks, not {self.blocks}")
        if not 0 < self.lag <= _MOST_LAG:
            return Refusal(f"groups are written 1 to {_MOST_LAG} groups later, not {self.lag}")
        if not 0 < self.teams <= _MOST_TEAMS:
            return Refusal(f"there are 1 to {_MOST_TEAMS} teams, not {self.teams}")
        if refusal := refusal_of_threads(self.workers, _WARP, _MOST_THREADS - _WARP * (self.lag + 1)):
            return refusal
        if problem.arrays == 2 and self.run(problem) > problem.hw * problem.dtype.size // 16:
            return Refusal(f"a slice of {self.run(problem)} vectors is more than a channel of {problem.hw} values")
        if self.slots(problem) <= self.lag:
            return Refusal(f"{self.lag + 1} slices of a group of {problem.group} values are more than a block's memory")
        return problem.refusal(channels_last=False)


class InGrid(Variant["GroupNormDescriptor", GridConfig]):
    """Zeros for sums and claims, and one launch, which reads each value once."""

    name = "grid"
    config_type = GridConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Large groups, of which blocks hold three slices each, or few."""
        return suits(problem)

    def schedule(self, problem: GroupNormDescriptor, config: GridConfig, limits: Limits) -> Schedule | Refusal:
        """Return both."""
        if refusal := config.refusal(problem, limits):
            return refusal
        workspace = Workspace()
        zeros, sums, claims = zeros_of(workspace, problem, config, 2)
        launch = launch_of(
            FAMILY.kernel("group_norm_grid_kernel", problem.dtype, "ptx"),
            problem,
            config,
            ("x", "out", "weight", "bias", sums, claims),
            (config.slot(problem), config.slots(problem), config.lag),
        )
        return Schedule((Zero(zeros), launch), problem.guarantee, workspace)


def suits(problem: Problem) -> bool:
    """Return whether groups are large, and, unless they are few, of those that blocks hold three slices of."""
    least, few = _LARGE[problem.arrays].get(problem.dtype.size), problem.batch * problem.groups < _FEW
    if least is None or problem.group_bytes < (_LARGE_OF_FEW if few else least):
        return False
    config = GridConfig.heuristic(problem)
    return config.refusal(problem) is None and (few or config.slots(problem) > _AHEAD)


def zeros_of(workspace: Workspace, problem: Problem, config: GridConfig, posted: int) -> tuple[Region, Region, Region]:
    """Return zeros, and what is in them: so many numbers of each slice, and what blocks claim."""
    share = config.share(problem)
    blocks, numbers = share * config.teams, posted * problem.batch * problem.groups * share
    zeros = workspace.region("zeros", "f64", numbers + ceil_div(blocks, 2))
    return zeros, zeros.part("sums", "f64", 0, numbers), zeros.part("claims", "u32", 8 * numbers, blocks)


def launch_of(
    kernel: KernelSpec, problem: Problem, config: GridConfig, arrays: tuple[Argument, ...], more: tuple[int, ...]
) -> Launch:
    """Return the launch of an entry, with what both take between their arrays and their own numbers."""
    shape = (*problem.sizes[1:], problem.eps, problem.batch * problem.groups, config.teams)
    workers = config.working(problem)
    threads, shared = workers + _WARP * (config.lag + 1), config.slots(problem) * config.slot(problem)
    arguments = (*arrays, *shape, workers, *more)
    return Launch(kernel, (config.share(problem) * config.teams,), threads, arguments, shared, _OWN)


def _vectors(problem: Problem) -> int:
    return problem.group * problem.dtype.size // 16
