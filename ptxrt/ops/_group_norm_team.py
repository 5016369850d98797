"""What the variants `teams` of group_norm and its backward have in common: how a team of threads shares a group out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ptxrt.ops.framework import Config, Refusal, ceil_div

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor, GroupNormDescriptor

    Problem: TypeAlias = GroupNormDescriptor | GroupNormBackwardDescriptor

__all__ = ["LARGEST_BACKWARD", "OF_TEAMS", "THREADS", "WARP", "Team", "lanes_for", "units", "width"]

WARP, OF_TEAMS, THREADS = 32, 128, 512  # threads of a warp, of a block that has several teams, and of one at most
LARGEST_BACKWARD = 384, 20  # threads of a block that holds the most values of f32 backward, and how many each has


def width(problem: Problem) -> int:
    """Return the values that a thread reads at once: a vector of 16 bytes where groups are whole ones."""
    return 1 if problem.group % problem.vector else problem.vector


def units(problem: Problem) -> int:
    """Return how many vectors, or values, a group has."""
    return problem.group // width(problem)


def lanes_for(problem: Problem, values: int) -> int:
    """Return the least team whose threads have at most so many values, or a vector each; or the largest one."""
    lanes = ceil_div(units(problem), max(1, values // width(problem)))
    if lanes > WARP:
        return min(ceil_div(lanes, WARP) * WARP, THREADS)
    # Of two threads, if they have values: what they read together is whole sectors of 32 bytes.
    return max(1 << (lanes - 1).bit_length(), min(2, units(problem)))


@dataclass(frozen=True)
class Team(Config):
    """Knobs of a group in the registers of a team: its threads, a power of two up to a warp's, or whole warps."""

    lanes: int

    def slots(self, problem: Problem) -> int:
        """Return how many vectors, or values, a thread has at most; 0 for a team that there cannot be."""
        lanes = self.lanes
        if not 0 < lanes <= THREADS or (lanes % WARP if lanes > WARP else lanes & (lanes - 1)):
            return 0
        return ceil_div(units(problem), lanes)

    def refusal(self, problem: Problem, most: int) -> Refusal | None:
        """Return why its threads, of at most so many values, cannot have a group, or None."""
        if not (slots := self.slots(problem)):
            ways = f"a power of two of threads up to {WARP}, or whole warps up to {THREADS}"
            return Refusal(f"a group has {ways}, not {self.lanes}")
        if slots * width(problem) > most:
            return Refusal(f"{self.lanes} threads hold {self.lanes * most} values, not {problem.group}")
        return None
