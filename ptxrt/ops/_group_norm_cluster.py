"""The variants of group_norm that read a group once: a block or a cluster of blocks holds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ptxrt.ops._group_norm_team import LARGEST_BACKWARD
from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Limits, Refusal, Role, Schedule, Variant

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor, GroupNormDescriptor

    Problem: TypeAlias = GroupNormDescriptor | GroupNormBackwardDescriptor

__all__ = ["FAMILY", "ClusterConfig", "InClusters", "InClustersBackward"]

SIZES = (1, 2, 4, 8, 16)
"""Of a cluster, in blocks. Not each GPU with clusters takes 16."""

_ENOUGH_BLOCKS = 256
_LARGE_GROUP = 1 << 20  # bytes
_TEAMS = 1 << 14  # values of the largest group of `teams`
_MANY, _HALF = 1 << 7, 1 << 6  # groups of all images that are enough for a block each, and for two each
_SHARED = 200 << 10  # bytes of a block that are sure to be there on a GPU with clusters
_ALL_SHARED = 224 << 10  # the same, of a GPU with the largest clusters

_ROLES = {
    "group_norm_cluster": "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, u32 channels, u32 groups, "
    "u32 hw, P eps, u32 run",
    "group_norm_backward_cluster": "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, f64* partials_ptr, "
    "f64* statistics_ptr, u32 channels, u32 groups, u32 hw, P eps, u32 run, u32 slices",
}
FAMILY = KernelFamily(
    "group_norm_cluster",
    ("f32", "f16", "bf16", "f64"),
    {
        f"{name}{size}_kernel": Role(signature, parameters={"size": str(size)}, target=90)
        for size in SIZES
        for name, signature in _ROLES.items()
    },
    op="group_norm",
)


@dataclass(frozen=True)
class ClusterConfig(Config):
    """Knobs of clusters: the blocks of one, and the threads of a block."""

    size: int
    threads: int

    @classmethod
    def heuristic(cls, problem: Problem) -> ClusterConfig:
        """Return what was fastest on an H100 and an H200: of large groups the largest clusters.

        Of others the fewest threads a group, of which each has at most 16 vectors, of f64 forward 24, backward 20 of
        both tensors, in blocks that fill a GPU. Of so many groups that two blocks each have a multiprocessor, those.
        """
        large, small = cls._large(problem), cls._small(problem)
        wide = problem.group_bytes >= _LARGE_GROUP and problem.dtype.name != "f64"
        if large and (wide or not small[0].holds(problem)):
            return large
        groups = problem.batch * problem.groups
        if _HALF <= groups < _MANY and problem.dtype.name != "f64" and (two := cls._by_two(problem)):
            return two
        return next((way for way in small if groups * way.size >= _ENOUGH_BLOCKS), small[-1])

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[ClusterConfig]:
        """Return the heuristic's, and others of few threads."""
        large = cls._large(problem)
        found = (cls.heuristic(problem), *cls._small(problem)[:3], *((large,) if large else ()))
        return tuple(dict.fromkeys(found))

    @classmethod
    def _by_two(cls, problem: Problem) -> ClusterConfig | None:
        """Return two large blocks for a group that is not small; forward, several small ones for the largest."""
        if problem.arrays == 1 and problem.group_bytes >= _LARGE_GROUP // 2:
            ways = [cls(8, 256), cls(16, 256)]
        else:
            ways = [cls(2, 1024)] if problem.group_bytes >= _LARGE_GROUP // 8 * problem.arrays else []
        return next((way for way in ways if way.holds(problem) and way.vectors(problem) <= 16), None)

    @classmethod
    def _large(cls, problem: Problem) -> ClusterConfig | None:
        """Return the largest cluster of the fewest threads, each with at most 16 vectors of all tensors, of f64 32."""
        ways = [cls(SIZES[-1], number) for number in cls._threads(problem)] if problem.many_groups else []
        most = 32 if problem.dtype.name == "f64" else 16
        return next((way for way in ways if way.holds(problem) and way.vectors(problem) <= most), None)

    @classmethod
    def _small(cls, problem: Problem) -> list[ClusterConfig]:
        """Return those of other sizes that hold a group, those of fewer threads first; or else the largest."""
        ways = [cls(size, number) for size in SIZES[:-1] for number in cls._threads(problem)]
        # Of as many threads a forward is faster in fewer blocks, a backward in more: as measured on an H200.
        ways.sort(key=lambda way: (way.size * way.threads, way.size if problem.arrays == 1 else way.threads))
        most = ({1: 24, 2: 32} if problem.dtype.name == "f64" else {1: 16, 2: 20})[problem.arrays]
        small = [way for way in ways if way.rows(problem) > 1 and way.vectors(problem) <= most]
        return [way for way in small if way.holds(problem)] or ways[-1:]

    @staticmethod
    def _threads(problem: Problem) -> tuple[int, ...]:
        return (128, 256, 512) if problem.dtype.name == "f64" else (256, 512, 1024)

    def run(self, problem: Problem) -> int:
        """Return the vectors of a warp, a multiple of 32."""
        vectors = problem.group * problem.dtype.size // 16
        return -(-vectors // (self.size * self.threads)) * 32

    def rows(self, problem: Problem) -> int:
        """Return the vectors of a thread of each tensor."""
        return self.run(problem) // 32

    def vectors(self, problem: Problem) -> int:
        """Return the vectors of a thread of all tensors."""
        return self.rows(problem) * problem.arrays

    def shared_bytes(self, problem: Problem) -> int:
        """Return a block's dynamic shared memory: what its threads' registers, for 16 values each, do not hold."""
        return 16 * max(0, self.vectors(problem) - problem.dtype.size) * self.threads

    def holds(self, problem: Problem) -> bool:
        """Return whether it has room for a group."""
        return self.shared_bytes(problem) <= (_SHARED if self.size < SIZES[-1] else _ALL_SHARED)

    def refusal(self, problem: Problem, limits: Limits) -> Refusal | None:
        """Return why there is no such launch, or None."""
        most = 512 if problem.dtype.name == "f64" else 1024
        if refusal := problem.refusal_of_vectors():
            return refusal
        if self.size not in SIZES:
            return Refusal(f"no clusters are of {self.size} blocks")
        if self.size > limits.max_cluster:
            return Refusal(f"the device has no room for clusters of {self.size} blocks")
        if self.threads % 32 or not 0 < self.threads <= most:
            return Refusal(f"{self.threads} threads are no full warps, or more than {most}")
        if not self.holds(problem):
            return Refusal(f"a cluster of {self.size} blocks cannot hold a group of {problem.group} values")
        return problem.refusal(channels_last=False)


class InClusters(Variant["GroupNormDescriptor", ClusterConfig]):
    """One launch, of a block or a cluster of blocks a group, which reads it once."""

    name = "cluster"
    config_type = ClusterConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Where a cluster holds a group, and groups are not small: a team is faster for less, of short channels."""
        size = problem.dtype.size
        team = problem.group <= _TEAMS and (size == 2 or (size == 4 and problem.hw < 1 << 9))
        return _suits(problem) and not team

    def schedule(self, problem: GroupNormDescriptor, config: ClusterConfig, limits: Limits) -> Schedule | Refusal:
        """Return the launch."""
        if refusal := config.refusal(problem, limits):
            return refusal
        arguments = ("x", "out", "weight", "bias", *problem.sizes[1:], problem.eps, config.run(problem))
        return Schedule((_launch(problem, config, arguments),), problem.guarantee)


class InClustersBackward(Variant["GroupNormBackwardDescriptor", ClusterConfig]):
    """A launch of a block or cluster a group, which reads it once, and one for the parameters' gradients."""

    name = "cluster"
    config_type = ClusterConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Where a cluster holds a group, and groups are not small: teams are faster for many, of short channels."""
        many = problem.batch * problem.groups >= _MANY and problem.hw < 1 << 10
        return _suits(problem) and not (
            many and problem.group <= math.prod(LARGEST_BACKWARD) and problem.dtype.size <= 4
        )

    def schedule(
        self, problem: GroupNormBackwardDescriptor, config: ClusterConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return both launches."""
        if refusal := config.refusal(problem, limits):
            return refusal
        run = config.run(problem)
        slices = problem.parts_of_channel(run)
        workspace, partials, statistics = problem.workspace(slices)
        arrays = ("x", "grad_out", "grad_input", "weight", partials, statistics)
        arguments = (*arrays, *problem.sizes[1:], problem.eps, run, slices)
        parameters = problem.parameters_launch(self.language, slices, partials, statistics)
        return Schedule((_launch(problem, config, arguments), parameters), problem.guarantee, workspace)


def _suits(problem: Problem) -> bool:
    return problem.group >= 1 << 12 and problem.hw >= 1 << 7 and ClusterConfig.heuristic(problem).holds(problem)


def _launch(problem: Problem, config: ClusterConfig, arguments: tuple[Argument, ...]) -> Launch:
    kernel = FAMILY.kernel(f"{problem.op}_cluster{config.size}_kernel", problem.dtype, "ptx")
    blocks = problem.batch * problem.groups * config.size
    own = problem.cluster_bytes(config.size)
    return Launch(kernel, (blocks,), config.threads, arguments, config.shared_bytes(problem), own)
