"""The variants of group_norm in HIP that read a group again while a cache still holds it: tickets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ptxrt.ops.framework import (
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Role,
    Schedule,
    Tickets,
    Variant,
    Workspace,
    in_slices,
)

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor, GroupNormDescriptor

    Problem: TypeAlias = GroupNormDescriptor | GroupNormBackwardDescriptor

__all__ = ["FAMILY", "InTickets", "InTicketsBackward", "TicketsConfig"]

_THREADS = 256

FAMILY = KernelFamily(
    "group_norm_tickets",
    ("f32", "f16", "bf16", "f64"),
    {
        "group_norm_tickets_kernel": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, f64* sums_ptr, u32* tickets_ptr, "
            "u32 channels, u32 groups, u32 hw, P eps, u32 slices, u32 length, u32 tickets, u32 lead",
            hip=True,
            ptx=False,
        ),
        "group_norm_backward_tickets_kernel": Role(
            "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, f64* partials_ptr, f64* statistics_ptr, "
            "u32* tickets_ptr, u32 channels, u32 groups, u32 hw, P eps, u32 slices, u32 length, u32 tickets, u32 lead",
            hip=True,
            ptx=False,
        ),
    },
    op="group_norm",
)


@dataclass(frozen=True)
class TicketsConfig(Config):
    """Knobs of tickets: the values of a slice, about, and how many bytes the sums are ahead of the output, about."""

    values: int
    lag: int

    @classmethod
    def heuristic(cls, problem: Problem) -> TicketsConfig:
        """As measured on an H200 and an H100: some MB ahead, and four groups at least.

        What is on its way at a time is less than that, so that no output waits: slices of float64 are larger.
        """
        ahead = (16 if problem.arrays == 1 else 24 if problem.dtype.name == "f64" else 8) << 20
        return cls(
            1 << (14 if problem.dtype.size == 2 else 13),
            max(ahead, 4 * problem.group * problem.dtype.size * problem.arrays),
        )

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[TicketsConfig]:
        """Return the heuristic's, and slices of half and of twice as many values."""
        best = cls.heuristic(problem)
        return tuple(cls(values, best.lag) for values in (best.values, best.values // 2, 2 * best.values))

    def tickets(self, problem: Problem, slices: int) -> Tickets:
        """Return the tickets of groups of so many slices."""
        lag = -(-self.lag // (problem.group * problem.dtype.size * problem.arrays))
        return Tickets(problem.batch * problem.groups, slices, lag)


class InTickets(Variant["GroupNormDescriptor", TicketsConfig]):
    """One launch, whose blocks add up the slices of a group, and soon after write those of one before it."""

    name = "tickets"
    config_type = TicketsConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Large groups."""
        return problem.group >= 1 << 13

    def schedule(self, problem: GroupNormDescriptor, config: TicketsConfig, limits: Limits) -> Schedule | Refusal:
        """Return zeros for the counters, and the launch."""
        slices, length = in_slices(problem.group, config.values, 1 << 10, 4 * _THREADS)
        tickets = config.tickets(problem, slices)
        workspace = Workspace()
        sums = workspace.region("sums", "f64", 2 * problem.parts * tickets.groups * (slices + 1))
        counters, zero = tickets.region(workspace)
        kernel = FAMILY.kernel("group_norm_tickets_kernel", problem.dtype, self.language)
        arrays = ("x", "out", "weight", "bias", sums, counters)
        numbers = (*problem.sizes[1:], problem.eps, slices, length, *tickets.scalars)
        launch = Launch(kernel, (tickets.blocks,), _THREADS, (*arrays, *numbers))
        return problem.refusal(channels_last=False) or Schedule((zero, launch), problem.guarantee, workspace)


class InTicketsBackward(Variant["GroupNormBackwardDescriptor", TicketsConfig]):
    """One launch for grad_input, whose slices are those of channels, and one for the parameters' gradients."""

    name = "tickets"
    config_type = TicketsConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Large channels, or a few large groups of them."""
        few = problem.batch * problem.groups <= 1 << 7 and problem.group >= 1 << 14
        return problem.hw >= (1 << 9 if few else 3 << 9 if problem.dtype.size < 8 else 1 << 11)

    def schedule(
        self, problem: GroupNormBackwardDescriptor, config: TicketsConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return zeros for the counters, and both launches."""
        slices, length = in_slices(problem.hw, config.values, 1 << 20, 2 * _THREADS)
        tickets = config.tickets(problem, problem.channels // problem.groups * slices)
        workspace, partials, statistics = problem.workspace(slices)
        counters, zero = tickets.region(workspace)
        kernel = FAMILY.kernel("group_norm_backward_tickets_kernel", problem.dtype, self.language)
        arrays = ("x", "grad_out", "grad_input", "weight", partials, statistics, counters)
        numbers = (*problem.sizes[1:], problem.eps, slices, length, *tickets.scalars)
        launch = Launch(kernel, (tickets.blocks,), _THREADS, (*arrays, *numbers))
        parameters = problem.parameters_launch(self.language, slices, partials, statistics)
        return problem.refusal(channels_last=False) or Schedule(
            (zero, launch, parameters), problem.guarantee, workspace
        )
