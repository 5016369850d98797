"""The variant of group_norm_backward whose teams of threads hold a group of any hw in their registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ptxrt.dtypes import BY_NAME
from ptxrt.ops._group_norm_team import LARGEST_BACKWARD, OF_TEAMS, THREADS, WARP, Team, lanes_for, width
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
    Workspace,
    ceil_div,
)

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor

__all__ = ["FAMILY", "InTeamsBackward", "TeamBackwardConfig"]

_SINGLES = (4, 8, 12)  # values of a thread, where groups are no whole vectors
# Threads of a block at most, where more have too few registers; values of a thread at most.
_THREADS_OF_MORE, _VALUES = LARGEST_BACKWARD
_OF_16_BITS, _OF_PARTS = 16, 8  # the same of vectors of 16 bits, and of a part of a warp
_USUAL = 8  # values of a thread, where these are enough for a block
_PARTS = (4, 16)  # lanes of a part of a warp at most: exchanges take as many steps as these need
_OF_PART, _OF_WARPS = 4, 2  # groups under way or read, of vectors in PTX: of a team within a warp, of one of warps
_OWN_BYTES = 2048  # of shared memory that a block takes beside them, at most
_COPYING = 80  # sm_80, which copies that are under way need
_TURNS = 16  # images of a team at most: so many terms are added up in f32
_ENOUGH = 128  # blocks of most threads that teams take another image for: nearly one a multiprocessor of an H200
_SLICES = 65535  # along y of a grid
_COLUMNS, _OF_PARAMETERS = 8, 512  # channels and threads of a block that adds up slices
_FEW, _FEW_CHANNELS = 16, 32  # a gradient of fewer values, or those of all channels, may be what is left of terms

_GUARANTEE = PrecisionGuarantee("f32", "f64", deterministic=True, bit_stable_on_same_hardware=True)

_TYPES = ("f32", "f16", "bf16")
_SHARE = (
    "u32 batch, u32 groups, u32 per_group, u32 hw, u32 lanes, u32 shift, u32 at_once, u32 images, u32 readers, "
    "u32 pitch, u32 rounds, u32 round_pitch, u32 per_hw, u64 row"
)
_TEAMS = (
    f"const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, P* partials_ptr, {_SHARE}, P eps, f64 per_value"
)


def _vector(dtype: str) -> int:
    return 16 // BY_NAME[dtype].size


def _most(dtype: str, width: int, whole: bool) -> int:
    """Return how many values a thread has at most, as registers are few; whether teams are whole warps."""
    if not whole or width == 1:
        return _SINGLES[-1] if whole else _OF_PARTS
    return _OF_16_BITS if BY_NAME[dtype].size == 2 else _VALUES


def _part(lanes: int) -> int:
    """Return how many lanes the entry takes at most that takes so many: 4, 16, or 0 for whole warps."""
    return next((most for most in _PARTS if lanes <= most), 0)


def _stages(part: int) -> int:
    return _OF_PART if part else _OF_WARPS


def _entry(slots: int, width: int, part: int) -> str:
    """Return the name of the entry for so many slots, and so many lanes."""
    kind = ("singles_" if width == 1 else "") + (f"parts{part}_" if part else "")
    return f"group_norm_backward_teams_{slots}_{kind}kernel"


FAMILY = KernelFamily(
    "group_norm_teams_backward",
    _TYPES,
    {
        "group_norm_backward_teams_parameters_kernel": Role(
            "const P* partials_ptr, P*? gw_ptr, P* gb_ptr, u64 width, u64 slices", hip=True
        )
    }
    | {
        _entry(slots, width, part): Role(
            _TEAMS,
            hip=True,
            parameters={"slots": str(slots), "part": str(part)}
            | ({"width": "1"} if width == 1 else {"stages": str(_stages(part))}),
            dtypes=dtypes,
            target=None if width == 1 else _COPYING,
        )
        for part in (0, *_PARTS)
        for width, numbers in ((0, range(1, 6)), (1, _SINGLES))
        for slots in numbers
        if (dtypes := tuple(n for n in _TYPES if slots * (width or _vector(n)) <= _most(n, width, not part)))
    },
    targets=ROUNDING_TARGETS,
    op="group_norm",
)


class _Block(NamedTuple):
    """What a block has at a time: its threads, and the teams of so many groups of so many images."""

    threads: int
    groups: int
    images: int


@dataclass(frozen=True)
class TeamBackwardConfig(Team):
    """Knobs of a group in the registers of a team: its threads, as of the forward, and the slices of images."""

    slices: int

    @classmethod
    def heuristic(cls, problem: GroupNormBackwardDescriptor) -> TeamBackwardConfig:
        """8 values a thread, or as few more as a block can hold the group with."""
        each = width(problem)
        fewest, most = max(1, _USUAL // each), _most(problem.dtype.name, each, True) // each
        ways = [(slots, cls._of(problem, slots * each)) for slots in range(fewest, most + 1)]
        fit = (way for slots, way in ways if way.slots(problem) <= slots and _refusal(problem, way) is None)
        return next(fit, ways[0][1])

    @classmethod
    def candidates(cls, problem: GroupNormBackwardDescriptor) -> Sequence[TeamBackwardConfig]:
        """Return few values a thread to many, and half and twice as many slices."""
        first = cls.heuristic(problem)
        others = [cls._of(problem, values) for values in (4, 8, 16)]
        others += [cls(first.lanes, ceil_div(first.slices, 2)), cls(first.lanes, 2 * first.slices)]
        found = (first, *others)
        return tuple(dict.fromkeys(way for way in found if way == first or _refusal(problem, way) is None))

    @classmethod
    def _of(cls, problem: GroupNormBackwardDescriptor, values: int) -> TeamBackwardConfig:
        """Return the least team whose threads have at most so many values, or the largest one; slices fill a GPU."""
        lanes = lanes_for(problem, min(values, _most(problem.dtype.name, width(problem), True)))
        block = cls(lanes, 1).block(problem)
        turns = max(1, ceil_div(problem.batch, block.images))
        blocks = turns * ceil_div(problem.groups, block.groups)
        each = max(1, min(blocks // (_ENOUGH * max(1, THREADS // block.threads)), _TURNS))
        return cls(lanes, ceil_div(turns, 1 << (each.bit_length() - 1)))

    def block(self, problem: GroupNormBackwardDescriptor) -> _Block:
        """Return what a block has at a time: groups that lie side by side, and images if it has room for all groups."""
        if self.lanes > WARP:
            return _Block(self.lanes, 1, 1)
        teams = OF_TEAMS // self.lanes
        groups = ceil_div(problem.groups, ceil_div(problem.groups, teams))
        return _Block(OF_TEAMS, groups, max(1, min(teams // groups, problem.batch)))


class InTeamsBackward(Variant["GroupNormBackwardDescriptor", TeamBackwardConfig]):
    """A launch of teams of threads, which read a group once into registers, and one for the parameters' gradients."""

    name = "teams"
    config_type = TeamBackwardConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Where registers hold a group, and gradients are not what is left of a few values that cancel."""
        few = problem.group < _FEW or problem.channels < _FEW_CHANNELS
        return not few and _refusal(problem, TeamBackwardConfig.heuristic(problem)) is None

    def schedule(
        self, problem: GroupNormBackwardDescriptor, config: TeamBackwardConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return both launches."""
        if refusal := _refusal(problem, config):
            return refusal
        slots, lanes, slices, block = config.slots(problem), config.lanes, config.slices, config.block(problem)
        if width(problem) == 1:
            slots = next(some for some in _SINGLES if some >= slots)
        kernel = FAMILY.kernel(_entry(slots, width(problem), _part(lanes)), problem.dtype, self.language)
        workspace, channels, hw = Workspace(), problem.channels, problem.hw
        partials = workspace.region("partials", "f32", 2 * channels * slices)
        per_group, together = channels // problem.groups, block.groups * problem.group
        # The terms of a channel that a block adds up: those of its images, or of its places in each of these.
        terms, places = (block.images, (together, 1, 0)) if hw == 1 else (hw, (1, block.images, together))
        readers = min(WARP, block.threads // (block.groups * per_group), ceil_div(terms, 4))
        arguments = (
            *("x", "grad_out", "grad_input", "weight", partials, problem.batch, problem.groups, per_group, hw),
            *(lanes, lanes.bit_length() - 1 if lanes <= WARP else 31, block.groups, block.images),
            *(max(1, readers).bit_length() - 1, *places, ceil_div(1 << 31, hw), channels * hw),
            *(problem.eps, 1 / problem.group),
        )
        grid = (ceil_div(problem.groups, block.groups), slices)
        copies = self.language == "ptx" and width(problem) > 1
        ring = 32 * slots * _stages(_part(lanes)) * block.threads if copies else 0
        parameters = FAMILY.kernel("group_norm_backward_teams_parameters_kernel", problem.dtype, self.language)
        last = (partials, "grad_weight", "grad_bias", channels, slices)
        return Schedule(
            (
                Launch(kernel, grid, block.threads, arguments, ring, _OWN_BYTES),
                Launch(parameters, (ceil_div(channels, _COLUMNS),), _OF_PARAMETERS, last),
            ),
            _GUARANTEE,
            workspace,
        )


def _refusal(problem: GroupNormBackwardDescriptor, config: TeamBackwardConfig) -> Refusal | None:
    """Return why a team cannot have a group, or None."""
    if problem.dtype.name not in FAMILY.dtypes:
        return Refusal(f"no kernel for {problem.dtype.name}")
    if problem.batch >> 31 or problem.channels >> 31:
        return Refusal(f"{problem.batch} images of {problem.channels} channels: neither may be {1 << 31}")
    if refusal := config.refusal(problem, _most(problem.dtype.name, width(problem), config.lanes >= WARP)):
        return refusal
    values, each = config.slots(problem) * width(problem), width(problem)
    fewer = _SINGLES[-2] if each == 1 else _OF_16_BITS if problem.dtype.size == 2 else _SINGLES[-1]
    if values > fewer and config.lanes > _THREADS_OF_MORE:
        return Refusal(f"blocks of more than {_THREADS_OF_MORE} threads hold {fewer} values a thread, not {values}")
    images = config.block(problem).images * config.slices
    if not 0 < config.slices <= _SLICES or images * _TURNS < problem.batch:
        return Refusal(
            f"{config.slices} slices of {problem.batch} images are none, more than {_SLICES}, or a team has more than "
            f"{_TURNS} images"
        )
    return problem.refusal(channels_last=False)
