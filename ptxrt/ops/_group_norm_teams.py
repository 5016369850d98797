"""The variant of group_norm whose teams of threads hold a group of any hw in their registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxrt.dtypes import BY_NAME
from ptxrt.ops._group_norm_team import OF_TEAMS, WARP, Team, lanes_for, width
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    KernelFamily,
    Launch,
    Limits,
    PrecisionGuarantee,
    Refusal,
    Role,
    Schedule,
    Variant,
    ceil_div,
)

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormDescriptor

__all__ = ["FAMILY", "InTeams", "TeamConfig"]

_VALUES = 32  # of a thread at most, where groups are whole vectors
_SINGLES = (4, 8, 16, 32)  # values of a thread, where they are not
_IN_PART = 12  # of a thread where a team is part of a warp, about
_LARGE, _MANY = 1 << 13, 1 << 8  # values of a group; groups
_FEW = 1 << 18  # values that are done sooner by as many threads as there can be

_GUARANTEE = PrecisionGuarantee("f32", "f64", deterministic=True, bit_stable_on_same_hardware=True)

_TYPES = ("f32", "f16", "bf16")
_SHARE = "u32 count, u32 groups, u32 per_group, u32 hw, u32 lanes, u32 shift, u32 per_block, u32 per_hw, u64 per_groups"
_TEAMS = f"const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, {_SHARE}, P eps, f64 per_value"


def _slots(dtype: str) -> int:
    return _VALUES * BY_NAME[dtype].size // 16


FAMILY = KernelFamily(
    "group_norm_teams",
    _TYPES,
    {
        f"group_norm_teams_{slots}_kernel": Role(
            _TEAMS,
            hip=True,
            parameters={"slots": str(slots)},
            dtypes=tuple(name for name in _TYPES if slots <= _slots(name)),
        )
        for slots in range(1, max(map(_slots, _TYPES)) + 1)
    }
    | {
        f"group_norm_teams_{slots}_singles_kernel": Role(
            _TEAMS, hip=True, parameters={"slots": str(slots), "width": "1"}
        )
        for slots in _SINGLES
    },
    targets=ROUNDING_TARGETS,
    op="group_norm",
)


@dataclass(frozen=True)
class TeamConfig(Team):
    """Knobs of a group in the registers of a team, which are its threads."""

    @classmethod
    def heuristic(cls, problem: GroupNormDescriptor) -> TeamConfig:
        """As many values as a thread holds; in a part of a warp fewer, and in a small problem, which is done sooner."""
        if problem.batch * problem.groups * problem.group < _FEW:
            return cls._of(problem, 4)
        part, many = cls._of(problem, _IN_PART), cls._of(problem, _VALUES)
        return part if part.lanes < WARP else cls(max(many.lanes, WARP))

    @classmethod
    def candidates(cls, problem: GroupNormDescriptor) -> Sequence[TeamConfig]:
        """Return few values a thread to many."""
        others = (cls._of(problem, values) for values in (4, 8, 16, 32))
        return tuple(dict.fromkeys((cls.heuristic(problem), *others)))

    @classmethod
    def _of(cls, problem: GroupNormDescriptor, values: int) -> TeamConfig:
        """Return the least team whose threads have at most so many values, or the largest one."""
        return cls(lanes_for(problem, min(values, _most_values(problem))))


def _most_values(problem: GroupNormDescriptor) -> int:
    """Return how many values a thread has at most."""
    return _VALUES if width(problem) > 1 else _SINGLES[-1]


class InTeams(Variant["GroupNormDescriptor", TeamConfig]):
    """One launch, which reads a group once into registers: of a part of a warp, of a warp, or of a block."""

    name = "teams"
    config_type = TeamConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Where registers hold a group. In HIP `held` is faster for many large ones, of whole vectors of 16 bits."""
        large = problem.group > _LARGE and problem.batch * problem.groups > _MANY
        large = large and problem.dtype.size == 2 and problem.hw % problem.vector == 0
        return not (self.language == "hip" and large) and _refusal(problem, TeamConfig.heuristic(problem)) is None

    def schedule(self, problem: GroupNormDescriptor, config: TeamConfig, limits: Limits) -> Schedule | Refusal:
        """Return the launch."""
        if refusal := _refusal(problem, config):
            return refusal
        slots, count, lanes = config.slots(problem), problem.batch * problem.groups, config.lanes
        if width(problem) == 1:
            slots = next(some for some in _SINGLES if some >= slots)
        entry = f"group_norm_teams_{slots}_{'singles_' if width(problem) == 1 else ''}kernel"
        kernel = FAMILY.kernel(entry, problem.dtype, self.language)
        threads = max(lanes, OF_TEAMS) if lanes <= WARP else lanes
        per_block, shift = (threads // lanes, lanes.bit_length() - 1) if lanes <= WARP else (1, 31)
        share = (count, problem.groups, problem.channels // problem.groups, problem.hw, lanes, shift, per_block)
        inverses = (ceil_div(1 << 31, problem.hw), ceil_div(1 << 63, problem.groups))
        arguments = ("x", "out", "weight", "bias", *share, *inverses, problem.eps, 1 / problem.group)
        launch = Launch(kernel, (ceil_div(count, per_block),), threads, arguments)
        return Schedule((launch,), _GUARANTEE)


def _refusal(problem: GroupNormDescriptor, config: TeamConfig) -> Refusal | None:
    """Return why a team cannot have a group, or None."""
    if problem.dtype.name not in FAMILY.dtypes:
        return Refusal(f"no kernel for {problem.dtype.name}")
    if (count := problem.batch * problem.groups) >> 31:
        return Refusal(f"{count} groups of all images are more than {(1 << 31) - 1}")
    return config.refusal(problem, _most_values(problem)) or problem.refusal(channels_last=False)
