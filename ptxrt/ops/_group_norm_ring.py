"""The variants of group_norm of groups that no cluster holds: what it holds it reads once, the rest twice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Limits, Refusal, Role, Schedule, Variant

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor, GroupNormDescriptor

    Problem: TypeAlias = GroupNormDescriptor | GroupNormBackwardDescriptor

__all__ = ["FAMILY", "InRings", "InRingsBackward", "RingConfig"]

SIZES = (8, 16)
"""Of a cluster, in blocks. Not each GPU with clusters takes 16."""

MOST_SLOTS = 7
_FEW_ITEMS, _MOST_ITEMS = 16, 1 << 10

_ROLES = {
    "group_norm_ring": "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, u32 channels, u32 groups, "
    "u32 hw, P eps, u32 items, u32 slots",
    "group_norm_backward_ring": "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, f64* partials_ptr, "
    "f64* statistics_ptr, u32 channels, u32 groups, u32 hw, P eps, u32 items, u32 slots, u32 slices",
}
FAMILY = KernelFamily(
    "group_norm_ring",
    ("f32", "f16", "bf16", "f64"),
    {
        f"{name}{size}_kernel": Role(signature, parameters={"size": str(size)}, target=90)
        for size in SIZES
        for name, signature in _ROLES.items()
    },
    op="group_norm",
)


@dataclass(frozen=True)
class RingConfig(Config):
    """Knobs of rings: the blocks of a cluster, the threads of a block, and a thread's slots."""

    size: int
    threads: int
    slots: int

    @classmethod
    def heuristic(cls, problem: Problem) -> RingConfig:
        """Return the largest cluster, with all the shared memory that there is."""
        return cls(SIZES[-1], 512 if problem.dtype.name == "f64" else 1024, MOST_SLOTS)

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[RingConfig]:
        """Return both sizes."""
        return tuple(replace(cls.heuristic(problem), size=size) for size in reversed(SIZES))

    def items(self, problem: Problem) -> int:
        """Return the slots that a thread fills with its part of a group: two vectors each, of x or of both tensors."""
        vectors = problem.group * problem.dtype.size // 16 * problem.arrays
        return -(-vectors // (2 * self.size * self.threads))

    def run(self, problem: Problem) -> int:
        """Return the vectors of a warp, of each tensor."""
        return self.items(problem) * 64 // problem.arrays

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
        if not 0 < self.slots <= MOST_SLOTS:
            return Refusal(f"a ring has 1 to {MOST_SLOTS} slots, not {self.slots}")
        if self.items(problem) > _MOST_ITEMS:
            return Refusal(f"a group of {problem.group} values is more than {_MOST_ITEMS} slots a thread")
        return problem.refusal(channels_last=False)


class InRings(Variant["GroupNormDescriptor", RingConfig]):
    """One launch, of clusters that read a part of their group again."""

    name = "ring"
    config_type = RingConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Where no cluster holds a group, but half of it or nearly, and groups are many."""
        return _suits(problem)

    def schedule(self, problem: GroupNormDescriptor, config: RingConfig, limits: Limits) -> Schedule | Refusal:
        """Return the launch."""
        if refusal := config.refusal(problem, limits):
            return refusal
        return Schedule((_launch(problem, config, ("x", "out", "weight", "bias")),), problem.guarantee)


class InRingsBackward(Variant["GroupNormBackwardDescriptor", RingConfig]):
    """A launch of clusters that read a part of their group again, and one for the parameters' gradients."""

    name = "ring"
    config_type = RingConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Where no cluster holds a group, but half of it or nearly, and groups are many."""
        return _suits(problem)

    def schedule(self, problem: GroupNormBackwardDescriptor, config: RingConfig, limits: Limits) -> Schedule | Refusal:
        """Return both launches."""
        if refusal := config.refusal(problem, limits):
            return refusal
        slices = problem.parts_of_channel(config.run(problem))
        workspace, partials, statistics = problem.workspace(slices)
        arrays = ("x", "grad_out", "grad_input", "weight", partials, statistics)
        parameters = problem.parameters_launch(self.language, slices, partials, statistics)
        return Schedule((_launch(problem, config, arrays, slices), parameters), problem.guarantee, workspace)


def _suits(problem: Problem) -> bool:
    most = _FEW_ITEMS
    if problem.dtype.name == "f64":  # as measured on an H200 and an H100; backward `split` is as fast
        most = 0 if problem.arrays == 2 else 2 * _FEW_ITEMS
    held = MOST_SLOTS < RingConfig.heuristic(problem).items(problem) <= most
    return problem.many_groups and held and problem.hw >= 1 << 7


def _launch(problem: Problem, config: RingConfig, arrays: tuple[Argument, ...], *more: Argument) -> Launch:
    kernel = FAMILY.kernel(f"{problem.op}_ring{config.size}_kernel", problem.dtype, "ptx")
    arguments = (*arrays, *problem.sizes[1:], problem.eps, config.items(problem), config.slots, *more)
    blocks = problem.batch * problem.groups * config.size
    shared, own = 32 * config.slots * config.threads, problem.cluster_bytes(config.size)
    return Launch(kernel, (blocks,), config.threads, arguments, shared, own)
