"""The variant of group_norm in HIP whose blocks hold a group in their registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxrt.ops.framework import Config, KernelFamily, Limits, Refusal, Role, Schedule, Variant

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormDescriptor

__all__ = ["FAMILY", "Held"]

_VECTORS, _BLOCKS = 5, (256, 512, 1024)  # of 16 bytes, of a thread; threads of a block

FAMILY = KernelFamily(
    "group_norm_held",
    ("f32", "f16", "bf16"),
    {
        "group_norm_held_kernel": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, u32 batch, u32 channels, u32 groups, "
            "u32 hw, P eps",
            hip=True,
            ptx=False,
        )
    },
    op="group_norm",
)


class Held(Variant["GroupNormDescriptor", Config]):
    """A block a group, which reads it once into its threads' registers."""

    name = "held"

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Groups that are not small."""
        return problem.group > 1 << 10

    def schedule(self, problem: GroupNormDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if problem.dtype.name not in FAMILY.dtypes:
            return Refusal(f"no kernel for {problem.dtype.name}")
        if refusal := problem.refusal_of_vectors():
            return refusal
        units = problem.group // problem.vector
        threads = next((threads for threads in _BLOCKS if threads * _VECTORS >= units), 0)
        if not threads:
            return Refusal(f"{_BLOCKS[-1]} threads do not hold a group of {problem.group} values")
        return problem.in_blocks(FAMILY.kernel("group_norm_held_kernel", problem.dtype, self.language), threads)
