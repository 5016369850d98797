"""The variants of batch_norm and its backward for rows of channels, which channels-last arrays are."""

from __future__ import annotations

from ptxrt.ops._batch_norm_choice import worth_holding
from ptxrt.ops._batch_norm_problem import BatchNormBackwardDescriptor, BatchNormDescriptor, Geometry
from ptxrt.ops._batch_norm_statistics import and_statistics, of_inverse
from ptxrt.ops._batch_norm_whole import WholeConfig, whole, worth
from ptxrt.ops._norm_last import LastConfig, Rows
from ptxrt.ops._norm_last_cluster import HeldTile, TileConfig
from ptxrt.ops._norm_last_held import HeldConfig, HeldRows
from ptxrt.ops._norm_last_tickets import TicketRows, TileTicketsConfig
from ptxrt.ops.framework import Limits, Refusal, Schedule, Variant, Workspace

__all__ = [
    "ChannelsLast",
    "ChannelsLastBackward",
    "ChannelsLastClusters",
    "ChannelsLastClustersBackward",
    "ChannelsLastHeld",
    "ChannelsLastTickets",
    "ChannelsLastTicketsBackward",
    "ChannelsLastWhole",
    "ChannelsLastWholeBackward",
    "many_rows",
    "rows_of",
]

_LONG = 1 << 13  # rows
_SOME_VALUES = {1: 3 << 15, 2: 1 << 16}  # arrays -> values in all, from which on the passes are faster


def rows_of(problem: Geometry, config: LastConfig, language: str) -> Rows | Refusal:
    """Return the problem as rows of channels, if it is one."""
    if problem.hw > 1:
        return Refusal("is for channels that lie side by side")
    rows = Rows(problem, config, language, 1, problem.batch, 1)
    return rows.refusal() or rows


def many_rows(problem: Geometry, few: int = 1 << 19) -> bool:
    """Return whether the passes over rows of channels pay, where values are more than a few."""
    return problem.hw == 1 and problem.elements >= few


def _long_columns(problem: BatchNormDescriptor | BatchNormBackwardDescriptor, language: str) -> bool:
    """Return whether, in training, a block a channel is slower than the passes, or none holds one; as on an H200."""
    if not problem.training or problem.hw > 1 or problem.batch < _LONG:
        return False
    some = problem.elements >= _SOME_VALUES[problem.arrays]
    return some or not worth_holding(problem, problem.arrays, language)


def _some_rows(problem: BatchNormDescriptor | BatchNormBackwardDescriptor) -> bool:
    """Return whether clusters that hold rows of channels are fastest, as measured on an H200.

    Forward ``channels_last_held`` is faster for more rows than two blocks hold 64 bytes of (32 of 16 bits), and for
    many values, unless rows are few.
    """
    if not (problem.training and problem.hw == 1 and problem.elements >= 1 << 15):
        return False
    few, many = 1 << (20 if problem.parts * problem.arrays == 4 else 21), None
    if problem.arrays == 1 and problem.batch > 1 << 9:
        many = 1 << 23 if problem.batch * problem.dtype.size <= 7 << 12 else few + 1
    return TileConfig.pay(problem, few, many)


class ChannelsLast(Variant[BatchNormDescriptor, LastConfig]):
    """Of rows of channels: sums of slices of them, and a pass that writes, which is all in eval."""

    name = "channels_last"
    config_type = LastConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Where values are many, or rows, of which a channel has too many for a block."""
        few = 1 << (19 if problem.training or self.language == "hip" else 14)
        return many_rows(problem, few) or _long_columns(problem, self.language)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: LastConfig, limits: Limits) -> Schedule | Refusal:
        """Return three launches; one in eval."""
        rows = rows_of(problem, config, self.language)
        if isinstance(rows, Refusal):
            return rows
        workspace = Workspace()
        if problem.training:
            running_mean, running_var, momentum = problem.updated
            statistics = ("batch_mean", "batch_var", running_mean, running_var)
            steps = rows.forward(workspace, "y", statistics, momentum)
        else:
            arrays = ("x", "y", "weight", "bias", "running_mean", "running_var")
            sizes = (problem.batch, problem.channels, problem.eps)
            steps = (rows.over("eval", config.written, *arrays, *sizes),)
        return Schedule(steps, problem.guarantee, workspace)


class ChannelsLastClusters(Variant[BatchNormDescriptor, TileConfig]):
    """In training, of rows of channels: one launch, a cluster for some channels, whose shared memory holds them."""

    name = "channels_last_cluster"
    config_type = TileConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Where values are neither few nor many."""
        return _some_rows(problem)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: TileConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        running_mean, running_var, momentum = problem.updated
        arrays = ("x", "y", "weight", "bias", "batch_mean", "batch_var", running_mean, running_var)
        return problem.without_statistics or HeldTile(problem, config).schedule(limits, arrays, momentum)


class ChannelsLastHeld(Variant[BatchNormDescriptor, HeldConfig]):
    """In training, of rows of channels: one launch, whose blocks hold what they read last."""

    name = "channels_last_held"
    config_type = HeldConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Where values are many."""
        return problem.hw == 1 and problem.elements > 1 << 20

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: HeldConfig, limits: Limits) -> Schedule | Refusal:
        """Return zeros for the claims, and a launch."""
        if problem.hw > 1:
            return Refusal("is for channels that lie side by side")
        rows = HeldRows(problem, config, 1, problem.batch, 1)
        if refusal := problem.without_statistics or rows.refusal():
            return refusal
        running_mean, running_var, momentum = problem.updated
        return rows.schedule("y", ("batch_mean", "batch_var", running_mean, running_var), momentum)


def _ticket_rows(
    problem: BatchNormDescriptor | BatchNormBackwardDescriptor, config: TileTicketsConfig
) -> TicketRows | Refusal:
    """Return the problem as rows of channels, if it is one and trains."""
    if problem.hw > 1:
        return Refusal("is for channels that lie side by side")
    rows = TicketRows(problem, config, 1, problem.batch, 1)
    return problem.without_statistics or rows.refusal() or rows


def _some_tickets(problem: BatchNormDescriptor | BatchNormBackwardDescriptor) -> bool:
    """Return whether values are neither few nor many, as measured on an H200: of few rows they may be many."""
    few_rows = problem.batch * problem.dtype.size * problem.arrays <= 1 << 12
    return problem.training and (TicketRows.worth(problem) or (few_rows and problem.elements >= 1 << 20))


class ChannelsLastTickets(Variant[BatchNormDescriptor, TileTicketsConfig]):
    """In training, of rows of channels: one launch, whose blocks add up slices of tiles, and write them soon after."""

    name = "channels_last_tickets"
    config_type = TileTicketsConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Where values are neither few nor many."""
        return _some_tickets(problem)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: TileTicketsConfig, limits: Limits) -> Schedule | Refusal:
        """Return zeros for the counters, and a launch."""
        rows = _ticket_rows(problem, config)
        if isinstance(rows, Refusal):
            return rows
        running_mean, running_var, momentum = problem.updated
        arrays = ("x", "y", "weight", "bias", "batch_mean", "batch_var", running_mean, running_var)
        workspace = Workspace()
        steps = rows.steps(workspace, rows.sums(workspace), arrays, momentum)
        return Schedule(steps, problem.guarantee, workspace)


class ChannelsLastWhole(Variant[BatchNormDescriptor, WholeConfig]):
    """In training, of rows of channels: one launch, a block for a vector of channels, which holds all their rows."""

    name = "channels_last_whole"
    config_type = WholeConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Where rows are few enough."""
        return problem.training and problem.hw == 1 and worth(problem)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: WholeConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        running_mean, running_var, momentum = problem.updated
        arrays = ("x", "y", "weight", "bias", "batch_mean", "batch_var", running_mean, running_var)
        return whole(problem, config, arrays, momentum)


class ChannelsLastClustersBackward(Variant[BatchNormBackwardDescriptor, TileConfig]):
    """In training, of rows of channels: one launch, a cluster for some channels, whose shared memory holds them."""

    name = "channels_last_cluster"
    config_type = TileConfig

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Where values are neither few nor many."""
        return _some_rows(problem)

    @of_inverse
    def schedule(self, problem: BatchNormBackwardDescriptor, config: TileConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        arrays = ("x", "grad_out", "grad_input", "weight", *problem.mean_and_var, "grad_weight", "grad_bias", 0, 0)
        return problem.without_statistics or HeldTile(problem, config).schedule(limits, arrays)


class ChannelsLastTicketsBackward(Variant[BatchNormBackwardDescriptor, TileTicketsConfig]):
    """In training, of rows of channels: one launch, whose blocks add up slices of tiles, and write them soon after."""

    name = "channels_last_tickets"
    config_type = TileTicketsConfig

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Where values are neither few nor many."""
        return _some_tickets(problem)

    @of_inverse
    def schedule(
        self, problem: BatchNormBackwardDescriptor, config: TileTicketsConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return zeros for the counters, and a launch."""
        rows = _ticket_rows(problem, config)
        if isinstance(rows, Refusal):
            return rows
        arrays = ("x", "grad_out", "grad_input", "weight", *problem.mean_and_var, "grad_weight", "grad_bias", 0)
        workspace = Workspace()
        return Schedule(rows.steps(workspace, rows.sums(workspace), arrays), problem.guarantee, workspace)


class ChannelsLastWholeBackward(Variant[BatchNormBackwardDescriptor, WholeConfig]):
    """In training, of rows of channels: one launch, a block for a vector of channels, which holds all their rows."""

    name = "channels_last_whole"
    config_type = WholeConfig

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Where rows are few enough."""
        return problem.training and problem.hw == 1 and worth(problem)

    @of_inverse
    def schedule(self, problem: BatchNormBackwardDescriptor, config: WholeConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        arrays = ("x", "grad_out", "grad_input", "grad_weight", "grad_bias", "weight", *problem.mean_and_var)
        return whole(problem, config, arrays)


class ChannelsLastBackward(Variant[BatchNormBackwardDescriptor, LastConfig]):
    """Of rows of channels: sums of slices of them, and a pass that writes grad_input."""

    name = "channels_last"
    config_type = LastConfig

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Where values are many, or rows, of which a channel has too many for a block."""
        return many_rows(problem, 1 << (19 if problem.training else 18)) or _long_columns(problem, self.language)

    @of_inverse
    def schedule(self, problem: BatchNormBackwardDescriptor, config: LastConfig, limits: Limits) -> Schedule | Refusal:
        """Return three launches."""
        rows = rows_of(problem, config, self.language)
        if isinstance(rows, Refusal):
            return rows
        workspace = Workspace()
        sums, gradients = rows.sums(workspace, 4), ("grad_weight", "grad_bias", 0)
        steps = rows.backward(workspace, sums, problem.mean_and_var, gradients, training=problem.training)
        return Schedule(steps, problem.guarantee, workspace)
