"""The variant of group_norm_backward of large groups, as :mod:`ptxrt.ops._group_norm_grid` has it of group_norm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxrt.ops._group_norm_grid import GridConfig, launch_of, suits, zeros_of
from ptxrt.ops.framework import KernelFamily, Limits, Refusal, Role, Schedule, Variant, Zero

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor

__all__ = ["FAMILY", "InGridBackward"]

FAMILY = KernelFamily(
    "group_norm_grid_backward",
    ("f32", "f16", "bf16"),
    {
        "group_norm_backward_grid_kernel": Role(
            "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, f64* partials_ptr, f64* statistics_ptr, "
            "f64* sums_ptr, u32* claims_ptr, u32 channels, u32 groups, u32 hw, P eps, u32 total, u32 teams, "
            "u32 workers, u32 run, u32 slots, u32 lag, u32 slices",
            target=90,
        )
    },
    op="group_norm",
)


class InGridBackward(Variant["GroupNormBackwardDescriptor", GridConfig]):
    """Zeros for sums and claims, a launch that reads each value once, and one for the parameters' gradients."""

    name = "grid"
    config_type = GridConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Large groups, of which blocks hold three slices each, or few."""
        return suits(problem)

    def schedule(self, problem: GroupNormBackwardDescriptor, config: GridConfig, limits: Limits) -> Schedule | Refusal:
        """Return all three."""
        if refusal := config.refusal(problem, limits):
            return refusal
        run = config.run(problem)
        slices = problem.parts_of_channel(run)
        workspace, partials, statistics = problem.workspace(slices)
        zeros, sums, claims = zeros_of(workspace, problem, config, 4)
        launch = launch_of(
            FAMILY.kernel("group_norm_backward_grid_kernel", problem.dtype, "ptx"),
            problem,
            config,
            ("x", "grad_out", "grad_input", "weight", partials, statistics, sums, claims),
            (run, config.slots(problem), config.lag, slices),
        )
        parameters = problem.parameters_launch(self.language, slices, partials, statistics)
        return Schedule((Zero(zeros), launch, parameters), problem.guarantee, workspace)
