"""The variant of group_norm in HIP whose blocks hold a group in their shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxrt.ops.framework import Config, KernelFamily, Limits, Refusal, Role, Schedule, Variant

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormDescriptor

__all__ = ["FAMILY", "Cached"]

_THREADS, _BYTES = 512, 46 << 10

FAMILY = KernelFamily(
    "group_norm_cached",
    ("f32", "f16", "bf16", "f64"),
    {
        "group_norm_cached_kernel": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, u32 batch, u32 channels, u32 groups, "
            "u32 hw, P eps",
            hip=True,
            ptx=False,
        )
    },
    op="group_norm",
)


class Cached(Variant["GroupNormDescriptor", Config]):
    """A block a group, which reads it once into its shared memory."""

    name = "cached"

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Groups that are not small."""
        return problem.group > 1 << 10

    def schedule(self, problem: GroupNormDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        values = _BYTES // problem.dtype.size
        if problem.group > values:
            return Refusal(f"a group of {problem.group} values is larger than {values}")
        return problem.in_blocks(FAMILY.kernel("group_norm_cached_kernel", problem.dtype, self.language), _THREADS)
