"""The variant of group_norm of large groups: a block of each multiprocessor has a part of one group after another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxrt.ops.framework import (
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Role,
    Schedule,
    Variant,
    Workspace,
    Zero,
    ceil_div,
    refusal_of_threads,
)

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormDescriptor

__all__ = ["FAMILY", "GridConfig", "InGrid"]

_WARP = 32
_MOST_THREADS, _MOST_BLOCKS, _MOST_CHANNELS = 640, 160, 32
_MOST_SLOTS, _MOST_LAG, _MOST_TEAMS = 8, 3, 132
_SHARED = 216 << 10  # bytes of a multiprocessor that are sure to be there on a GPU of sm_90
_OWN = 5 << 10  # bytes of a block's own variables, and of what the hardware takes
_MULTIPROCESSORS = 132
_LARGE = {4: 2 << 20, 2: 3 << 20}  # by the bytes of an element: those of a group from which on clusters are slower
_FEW = 6  # groups; of fewer, too few are under way
_ONE_TEAM = 3 << 20  # bytes of a group of f32 whose slices are not small

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
    def heuristic(cls, problem: GroupNormDescriptor) -> GridConfig:
        """Return what was fastest on an H200: of small slices, as those of 16 bits are, several teams."""
        if problem.dtype.size == 2:
            return cls(_MULTIPROCESSORS, 128, 1, 3)
        teams = 1 if problem.group_bytes >= _ONE_TEAM else 2
        slots = cls(_MULTIPROCESSORS // teams, 384, 1, teams).slots(problem)
        return cls(_MULTIPROCESSORS // teams, 384, max(1, min(_MOST_LAG, slots - 2)), teams)

    @classmethod
    def candidates(cls, problem: GroupNormDescriptor) -> Sequence[GridConfig]:
        """Return the heuristic's, and others that have room for a group."""
        ways = [cls.heuristic(problem)]
        ways += [cls(_MULTIPROCESSORS, 512, lag, 1) for lag in (3, 2, 1)]
        ways += [cls(_MULTIPROCESSORS, workers, 1, teams) for workers, teams in ((256, 2), (128, 3))]
        ways += [cls(_MULTIPROCESSORS // teams, 384, lag, teams) for teams, lag in ((2, 3), (4, 1))]
        return tuple(dict.fromkeys(way for way in ways if way.slots(problem) > way.lag))

    def share(self, problem: GroupNormDescriptor) -> int:
        """Return the blocks of a team: no more than have a vector each of their workers, of a small group."""
        return min(self.blocks, max(1, ceil_div(_vectors(problem), self.workers)))

    def slot(self, problem: GroupNormDescriptor) -> int:
        """Return the bytes of shared memory that hold a block's slice of a group."""
        return 16 * ceil_div(_vectors(problem), self.share(problem) * self.workers) * self.workers

    def slots(self, problem: GroupNormDescriptor) -> int:
        """Return how many groups a block has slices of at a time."""
        together = ceil_div(self.blocks * self.teams, _MULTIPROCESSORS)
        return min(_MOST_SLOTS, (_SHARED // together - _OWN) // max(self.slot(problem), 1))

    def refusal(self, problem: GroupNormDescriptor) -> Refusal | None:
        """Return why there is no such launch, or None."""
        if problem.dtype.name not in FAMILY.dtypes:
            return Refusal(f"is not for {problem.dtype.name}")
        if problem.batch * problem.groups >> 31:
            return Refusal(f"{problem.batch * problem.groups} groups are above {(1 << 31) - 1}")
        if problem.hw * problem.dtype.size % 16:
            return Refusal(f"vectors of 16 bytes do not end where channels of {problem.hw} values do")
        if problem.channels // problem.groups > _MOST_CHANNELS:
            return Refusal(f"a group has more than {_MOST_CHANNELS} channels")
        if not 0 < self.blocks <= _MOST_BLOCKS:
            return Refusal(f"a team has 1 to {_MOST_BLOCKS} blocks, not {self.blocks}")
        if not 0 < self.lag <= _MOST_LAG:
            return Refusal(f"groups are written 1 to {_MOST_LAG} groups later, not {self.lag}")
        if not 0 < self.teams <= _MOST_TEAMS:
            return Refusal(f"there are 1 to {_MOST_TEAMS} teams, not {self.teams}")
        if refusal := refusal_of_threads(self.workers, _WARP, _MOST_THREADS - _WARP * (self.lag + 1)):
            return refusal
        if self.slots(problem) <= self.lag:
            return Refusal(f"{self.lag + 1} slices of a group of {problem.group} values are more than a block's memory")
        return problem.refusal(channels_last=False)


class InGrid(Variant["GroupNormDescriptor", GridConfig]):
    """Zeros for sums and claims, and one launch, which reads each value once."""

    name = "grid"
    config_type = GridConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Large groups, more than few, of which blocks hold three slices each."""
        large = problem.group_bytes >= _LARGE.get(problem.dtype.size, problem.group_bytes + 1)
        if not large or problem.batch * problem.groups < _FEW:
            return False
        config = GridConfig.heuristic(problem)
        return config.refusal(problem) is None and config.slots(problem) > 2

    def schedule(self, problem: GroupNormDescriptor, config: GridConfig, limits: Limits) -> Schedule | Refusal:
        """Return both."""
        if refusal := config.refusal(problem):
            return refusal
        slots, total = config.slots(problem), problem.batch * problem.groups
        blocks, numbers = config.share(problem) * config.teams, 2 * total * config.share(problem)
        workspace = Workspace()
        zeros = workspace.region("zeros", "f64", numbers + ceil_div(blocks, 2))
        sums, claims = zeros.part("sums", "f64", 0, numbers), zeros.part("claims", "u32", 8 * numbers, blocks)
        shape = (*problem.sizes[1:], problem.eps, total, config.teams)
        cut = (config.workers, config.slot(problem), slots, config.lag)
        launch = Launch(
            FAMILY.kernel("group_norm_grid_kernel", problem.dtype, "ptx"),
            (blocks,),
            config.workers + _WARP * (config.lag + 1),
            ("x", "out", "weight", "bias", sums, claims, *shape, *cut),
            slots * config.slot(problem),
            _OWN,
        )
        return Schedule((Zero(zeros), launch), problem.guarantee, workspace)


def _vectors(problem: GroupNormDescriptor) -> int:
    return problem.group * problem.dtype.size // 16
