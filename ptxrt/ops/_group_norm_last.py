"""The variants of group_norm and its backward for channels-last arrays; the configs that those for others have too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ptxrt.ops._norm_last import LastConfig, Rows
from ptxrt.ops._norm_last_cluster import HeldTile, TileConfig
from ptxrt.ops._norm_last_held import HeldConfig, HeldRows
from ptxrt.ops._norm_last_tickets import TicketRows, TileTicketsConfig
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Argument,
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Role,
    Schedule,
    Variant,
    Workspace,
    refusal_of_warps,
)

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor, GroupNormDescriptor

    Problem: TypeAlias = GroupNormDescriptor | GroupNormBackwardDescriptor

__all__ = [
    "FAMILY",
    "ChannelsLast",
    "ChannelsLastBackward",
    "ChannelsLastClusters",
    "ChannelsLastClustersBackward",
    "ChannelsLastHeld",
    "ChannelsLastSplit",
    "ChannelsLastSplitBackward",
    "ChannelsLastTickets",
    "ChannelsLastTicketsBackward",
    "WholeConfig",
]

WARP = 32

_SIZES = "u32 batch, u32 channels, u32 groups, u32 hw"
_WHOLE = {
    "group_norm_last_kernel": "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, "
    f"{_SIZES}, P eps, u32 lanes",
    "group_norm_last_backward_groups_kernel": "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, "
    f"f64* partials_ptr, f64* statistics_ptr, {_SIZES}, P eps, u32 lanes",
}
FAMILY = KernelFamily(
    "group_norm_last",
    ("f32", "f16", "bf16", "f64"),
    {name: Role(signature, hip=True) for name, signature in _WHOLE.items()}
    # The same text with blocks of one warp, for groups of few values.
    | {f"{name}_small": Role(signature, parameters={"warps": "1"}) for name, signature in _WHOLE.items()},
    targets=ROUNDING_TARGETS,
    op="group_norm",
)


def _lanes(problem: Problem, language: str) -> int:
    """Return how many threads share a row of a group, of which at most a quarter has nothing to do."""
    units, vector = problem.channels // problem.groups, problem.vector
    if language == "ptx" and units % vector == 0:
        units //= vector
    return next(lanes for lanes in (32, 16, 8, 4, 2, 1) if 4 * units >= 3 * lanes * -(-units // lanes))


@dataclass(frozen=True)
class WholeConfig(Config):
    """Knobs of a block for each group: its warps, 1 or 8, in HIP any."""

    warps: int

    @classmethod
    def heuristic(cls, problem: Problem) -> WholeConfig:
        """One warp for a small group, where there are many."""
        return cls(problem.warps)

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[WholeConfig]:
        """Return both widths."""
        del problem
        return cls(8), cls(1)


def _whole(problem: Problem, name: str, language: str, warps: int, *arrays: Argument) -> Launch:
    """Return the launch of an entry whose blocks have a group each; on AMD they may take several in turn."""
    small = warps == 1 and language == "ptx"
    kernel = FAMILY.kernel(f"{name}_small" if small else name, problem.dtype, language)
    grid = problem.grid(problem.groups, WARP * warps, language)
    return Launch(kernel, grid, WARP * warps, (*arrays, *problem.sizes, problem.eps, _lanes(problem, language)))


class ChannelsLast(Variant["GroupNormDescriptor", WholeConfig]):
    """A block for each group of each image, which reads it twice."""

    name = "channels_last"
    config_type = WholeConfig

    def schedule(self, problem: GroupNormDescriptor, config: WholeConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := refusal_of_warps(config.warps, problem.dtype, self.language):
            return refusal
        arrays = ("x", "out", "weight", "bias")
        launch = _whole(problem, "group_norm_last_kernel", self.language, config.warps, *arrays)
        return problem.refusal(channels_last=True) or Schedule((launch,), problem.guarantee)


class ChannelsLastBackward(Variant["GroupNormBackwardDescriptor", WholeConfig]):
    """A block for each group of each image, which reads it twice: for the sums, and for grad_input."""

    name = "channels_last"
    config_type = WholeConfig

    def schedule(self, problem: GroupNormBackwardDescriptor, config: WholeConfig, limits: Limits) -> Schedule | Refusal:
        """Return the launch of the groups, and that of the parameters' gradients."""
        if refusal := refusal_of_warps(config.warps, problem.dtype, self.language):
            return refusal
        workspace, partials, statistics = problem.workspace(1)
        arrays = ("x", "grad_out", "grad_input", "weight", partials, statistics)
        launch = _whole(problem, "group_norm_last_backward_groups_kernel", self.language, config.warps, *arrays)
        parameters = problem.parameters_launch(self.language, 1, partials, statistics)
        return problem.refusal(channels_last=True) or Schedule((launch, parameters), problem.guarantee, workspace)


_SOME_ROWS = 64  # of an image, of which slices are worth a launch


def _rows(problem: Problem, config: LastConfig, language: str) -> Rows:
    per_group = problem.channels // problem.groups
    return Rows(problem, config, language, problem.batch, problem.hw, per_group)


def _many(problem: Problem, language: str) -> bool:
    """Return whether three launches are faster than one, as measured on an H200: groups are large, or values many.

    One has a block for each group, whose text in HIP takes single values. Slices of few rows are short.
    """
    if language == "hip":
        return problem.elements > 1 << (18 if problem.hw >= _SOME_ROWS else 20) or problem.group >= 1 << 13
    large = problem.group >= 1 << (15 if problem.dtype.size == 2 else 14)
    return large or (problem.elements > 1 << 20 and problem.hw >= _SOME_ROWS)


class ChannelsLastSplit(Variant["GroupNormDescriptor", LastConfig]):
    """Several blocks for each image: sums of each channel of a slice of its rows, and a pass that writes."""

    name = "channels_last_split"
    config_type = LastConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Where values are many."""
        return _many(problem, self.language)

    def schedule(self, problem: GroupNormDescriptor, config: LastConfig, limits: Limits) -> Schedule | Refusal:
        """Return three launches."""
        rows, workspace = _rows(problem, config, self.language), Workspace()
        refusal = problem.refusal(channels_last=True) or rows.refusal()
        steps = rows.forward(workspace, "out", (0, 0, 0, 0), 0.0)
        return refusal or Schedule(steps, problem.guarantee, workspace)


class ChannelsLastSplitBackward(Variant["GroupNormBackwardDescriptor", LastConfig]):
    """Several blocks for each image: sums of each channel of a slice of its rows, and a pass that writes grad_input."""

    name = "channels_last_split"
    config_type = LastConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Where values are many."""
        return _many(problem, self.language)

    def schedule(self, problem: GroupNormBackwardDescriptor, config: LastConfig, limits: Limits) -> Schedule | Refusal:
        """Return four launches."""
        rows = _rows(problem, config, self.language)
        workspace, partials, statistics = problem.workspace(rows.slices)
        steps = rows.backward(workspace, partials, (0, 0), (0, 0, statistics))
        parameters = problem.parameters_launch(self.language, rows.slices, partials, statistics)
        refusal = problem.refusal(channels_last=True) or rows.refusal()
        return refusal or Schedule((*steps, parameters), problem.guarantee, workspace)


class ChannelsLastHeld(Variant["GroupNormDescriptor", HeldConfig]):
    """One launch, whose blocks hold what they read last of a slice of an image's rows, until the sums are complete."""

    name = "channels_last_held"
    config_type = HeldConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Where values are many."""
        return _many(problem, self.language)

    def schedule(self, problem: GroupNormDescriptor, config: HeldConfig, limits: Limits) -> Schedule | Refusal:
        """Return zeros for the claims, and a launch."""
        rows = HeldRows(problem, config, problem.batch, problem.hw, problem.channels // problem.groups)
        refusal = problem.refusal(channels_last=True) or rows.refusal()
        return refusal or rows.schedule("out", (0, 0, 0, 0), 0.0)


def _some_rows(problem: Problem) -> bool:
    """Return whether clusters are fastest, as measured on an H200: of 16 bits, a block a group is for longer."""
    fewest = 1 << (16 if problem.dtype.size == 2 else 15)
    return problem.elements >= fewest and TileConfig.pay(problem, 1 << 22, 1 << 23)


class ChannelsLastClusters(Variant["GroupNormDescriptor", TileConfig]):
    """One launch, a cluster for some groups of an image, whose shared memory holds them."""

    name = "channels_last_cluster"
    config_type = TileConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Where values are neither few nor many."""
        return _some_rows(problem)

    def schedule(self, problem: GroupNormDescriptor, config: TileConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        return HeldTile(problem, config).schedule(limits, ("x", "out", "weight", "bias", 0, 0, 0, 0), 0.0)


class ChannelsLastClustersBackward(Variant["GroupNormBackwardDescriptor", TileConfig]):
    """A launch of clusters, each of which holds some groups of an image, and one for the parameters' gradients."""

    name = "channels_last_cluster"
    config_type = TileConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Where values are neither few nor many."""
        return _some_rows(problem)

    def schedule(self, problem: GroupNormBackwardDescriptor, config: TileConfig, limits: Limits) -> Schedule | Refusal:
        """Return both launches."""
        workspace, partials, statistics = problem.workspace(config.size)
        arrays = ("x", "grad_out", "grad_input", "weight", 0, 0, 0, 0, partials, statistics)
        launch = HeldTile(problem, config).launch(limits, arrays)
        if isinstance(launch, Refusal):
            return launch
        parameters = problem.parameters_launch(self.language, config.size, partials, statistics)
        return Schedule((launch, parameters), problem.guarantee, workspace)


def _some_tickets(problem: Problem) -> bool:
    """Return whether values are neither few nor many; of few rows, a block a group is faster for longer.

    Backward not where groups are narrow, of which it reads a sector for each value.
    """
    narrow = problem.arrays == 2 and problem.channels < 8 * problem.groups
    return TicketRows.worth(problem) and (problem.hw >= _SOME_ROWS or problem.elements > 1 << (18 if narrow else 19))


def _ticket_rows(problem: Problem, config: TileTicketsConfig) -> TicketRows | Refusal:
    rows = TicketRows(problem, config, problem.batch, problem.hw, problem.channels // problem.groups)
    return problem.refusal(channels_last=True) or rows.refusal() or rows


class ChannelsLastTickets(Variant["GroupNormDescriptor", TileTicketsConfig]):
    """One launch, whose blocks add up slices of some groups of an image, and write them soon after."""

    name = "channels_last_tickets"
    config_type = TileTicketsConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Where values are neither few nor many."""
        return _some_tickets(problem)

    def schedule(self, problem: GroupNormDescriptor, config: TileTicketsConfig, limits: Limits) -> Schedule | Refusal:
        """Return zeros for the counters, and a launch."""
        rows = _ticket_rows(problem, config)
        if isinstance(rows, Refusal):
            return rows
        workspace = Workspace()
        steps = rows.steps(workspace, rows.sums(workspace), ("x", "out", "weight", "bias", 0, 0, 0, 0), 0.0)
        return Schedule(steps, problem.guarantee, workspace)


class ChannelsLastTicketsBackward(Variant["GroupNormBackwardDescriptor", TileTicketsConfig]):
    """One launch, whose blocks add up slices of some groups of an image, and one for the parameters' gradients."""

    name = "channels_last_tickets"
    config_type = TileTicketsConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Where values are neither few nor many."""
        return _some_tickets(problem)

    def schedule(
        self, problem: GroupNormBackwardDescriptor, config: TileTicketsConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return zeros for the counters, and both launches."""
        rows = _ticket_rows(problem, config)
        if isinstance(rows, Refusal):
            return rows
        workspace, partials, statistics = problem.workspace(rows.slices)
        arrays = ("x", "grad_out", "grad_input", "weight", 0, 0, 0, 0, statistics)
        steps = rows.steps(workspace, partials, arrays)
        parameters = problem.parameters_launch(self.language, rows.slices, partials, statistics)
        return Schedule((*steps, parameters), problem.guarantee, workspace)
