"""batch_norm: normalise each channel over the whole batch; its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from ptxrt.dtypes import BY_NAME
from ptxrt.errors import InvalidArgument, shown
from ptxrt.ops._batch_norm_alone import Alone, ChannelsLastAlone
from ptxrt.ops._batch_norm_cached import ThreadsConfig, held
from ptxrt.ops._batch_norm_choice import (
    held_at_once,
    holding_threads,
    in_vectors,
    read_twice,
    worth_holding,
    worth_tickets,
)
from ptxrt.ops._batch_norm_cluster import ClusterConfig, clusters, worth_clusters
from ptxrt.ops._batch_norm_last import (
    ChannelsLast,
    ChannelsLastBackward,
    ChannelsLastClusters,
    ChannelsLastClustersBackward,
    ChannelsLastHeld,
    ChannelsLastTickets,
    ChannelsLastTicketsBackward,
    ChannelsLastWhole,
    ChannelsLastWholeBackward,
)
from ptxrt.ops._batch_norm_passes import (
    TURN,
    ColumnsConfig,
    EvalConfig,
    SplitConfig,
    WriteConfig,
    adders,
    odd_rows,
    short_rows,
    slice_values,
    tiles,
    too_long,
    workspace_of,
)
from ptxrt.ops._batch_norm_problem import BatchNormBackwardDescriptor, BatchNormDescriptor
from ptxrt.ops._batch_norm_small import eval_small, few_values, small
from ptxrt.ops._batch_norm_statistics import and_statistics, of_inverse
from ptxrt.ops._batch_norm_tickets import TicketsConfig, in_tickets
from ptxrt.ops.framework import (
    Argument,
    Config,
    Launch,
    Limits,
    Operand,
    Plan,
    Refusal,
    Schedule,
    Variant,
    blocks_in_hip,
    ceil_div,
    parameter_type,
    plan_cache,
)
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

__all__ = [
    "BatchNormArgs",
    "BatchNormBackwardArgs",
    "BatchNormBackwardDescriptor",
    "BatchNormBackwardPlan",
    "BatchNormDescriptor",
    "BatchNormGradients",
    "BatchNormPlan",
    "BatchNormResult",
    "batch_norm",
    "batch_norm_backward",
]


class BatchNormArgs(NamedTuple):
    """Operands of :class:`BatchNormPlan`; results that are None are allocated."""

    x: DeviceArrayLike
    weight: DeviceArrayLike | None = None
    bias: DeviceArrayLike | None = None
    running_mean: DeviceArrayLike | None = None
    running_var: DeviceArrayLike | None = None
    y: DeviceArrayLike | None = None
    batch_mean: DeviceArrayLike | None = None
    batch_var: DeviceArrayLike | None = None
    batches: DeviceArrayLike | None = None


class BatchNormBackwardArgs(NamedTuple):
    """Operands of :class:`BatchNormBackwardPlan`; results that are None are allocated."""

    grad_out: DeviceArrayLike
    x: DeviceArrayLike
    weight: DeviceArrayLike | None = None
    running_mean: DeviceArrayLike | None = None
    running_var: DeviceArrayLike | None = None
    batch_mean: DeviceArrayLike | None = None
    batch_var: DeviceArrayLike | None = None
    grad_input: DeviceArrayLike | None = None
    grad_weight: DeviceArrayLike | None = None
    grad_bias: DeviceArrayLike | None = None


class BatchNormResult(NamedTuple):
    """What :func:`batch_norm` returns; the statistics are None in eval.

    `batch_var` is the inverse deviation where that is saved.
    """

    y: DeviceArray
    batch_mean: DeviceArray | None
    batch_var: DeviceArray | None


class BatchNormGradients(NamedTuple):
    """What :func:`batch_norm_backward` returns; `grad_weight` is None where there is no weight."""

    grad_input: DeviceArray
    grad_weight: DeviceArray | None
    grad_bias: DeviceArray


# Forward -------------------------------------------------------------------------------------------------------------


class Channels(Variant[BatchNormDescriptor, Config]):
    """A block a channel, which reads it twice in training."""

    name = "baseline"

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch, and one more for the running statistics."""
        statistics = ("batch_mean", "batch_var") if problem.training else ("running_mean", "running_var")
        arguments = ("x", "y", "weight", "bias", *statistics, *problem.sizes, problem.eps, int(problem.training))
        steps = [Launch(problem.kernel("kernel", self.language), problem.blocks(self.language), 256, arguments)]
        if problem.training and problem.running and problem.momentum is not None:
            running = (*statistics, "running_mean", "running_var", *problem.sizes, problem.momentum)
            kernel = problem.kernel("running", self.language)
            blocks = blocks_in_hip if self.language == "hip" else ceil_div
            steps.append(Launch(kernel, (blocks(problem.channels, 256),), 256, running))
        return Schedule(tuple(steps), problem.guarantee)


class Cached(Variant[BatchNormDescriptor, ThreadsConfig]):
    """In training: a block a channel, which reads it once into shared memory."""

    name = "cached"
    config_type = ThreadsConfig

    def heuristic(self, problem: BatchNormDescriptor) -> ThreadsConfig:
        """As measured on an H200."""
        return ThreadsConfig(holding_threads(problem, self.language))

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Where a block reads a channel as fast as several, or as a cluster; in HIP, where it holds one."""
        return worth_holding(problem, 1, self.language)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: ThreadsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        arguments = (*problem.in_one, *problem.sizes, problem.eps, problem.updated[2])
        return held(problem, self.language, config, arguments)


class Small(Variant[BatchNormDescriptor, Config]):
    """Few values, in the registers of a block a channel; in eval of a block a row."""

    name = "small"

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Where one thread's time counts."""
        return few_values(problem, self.language)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if not problem.training:
            return eval_small(problem, self.language, ("x", "y", "weight", "bias", "running_mean", "running_var"))
        count = problem.count
        scalars = (problem.updated[2], 1 / count, count / (count - 1))
        return small(problem, self.language, "batch_norm_small", problem.in_one, scalars)


class Clusters(Variant[BatchNormDescriptor, ClusterConfig]):
    """In training: a cluster of blocks a channel, which reads it once into their shared memory."""

    name = "cluster"
    config_type = ClusterConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Where the cluster's shared memory holds a channel, values are many, and a block is not enough."""
        return worth_clusters(problem) and not held_at_once(problem, 1)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: ClusterConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        return clusters(problem, config, limits, problem.in_one, (problem.eps, problem.updated[2]))


class InTickets(Variant[BatchNormDescriptor, TicketsConfig]):
    """In training: one launch, whose blocks add up slices of a channel, and soon after write those of one before."""

    name = "tickets"
    config_type = TicketsConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Channels that no block holds; of f64, large ones or many values."""
        return worth_tickets(problem)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: TicketsConfig, limits: Limits) -> Schedule | Refusal:
        """Return zeros for the counters, and a launch."""
        return in_tickets(problem, config, problem.in_one, (problem.eps, problem.updated[2]))


def _summed(
    problem: BatchNormDescriptor,
    language: str,
    config: WriteConfig,
    slices: int,
    name: str,
    grid: tuple[int, ...],
    cut: tuple[int, ...],
) -> Schedule:
    """Return the schedule of a variant that first adds up, by the entry `name`, to so many partial sums a channel."""
    workspace, sums, coefficients = workspace_of(problem, 2 * slices, 2 * problem.parts + 1)
    running_mean, running_var, momentum = problem.updated
    arrays = ("x", "weight", "batch_mean", "batch_var", running_mean, running_var, "bias", coefficients, sums)
    finish = (*arrays, *problem.sizes, problem.eps, momentum, slices)
    write = ("x", "y", coefficients, *problem.sizes, config.written)
    return Schedule(
        (
            Launch(problem.kernel(name, language), grid, adders(problem, name), ("x", sums, *problem.sizes, *cut)),
            Launch(problem.kernel("finish", language), (problem.channels,), 128, finish),
            Launch(problem.kernel("apply", language), config.grid(problem), problem.side_by_side, write),
        ),
        problem.guarantee,
        workspace,
    )


class Columns(Variant[BatchNormDescriptor, ColumnsConfig]):
    """In training: several blocks a channel, of some images each."""

    name = "columns"
    config_type = ColumnsConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Short rows, or odd ones of few channels."""
        return short_rows(problem) or odd_rows(problem)

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: ColumnsConfig, limits: Limits) -> Schedule | Refusal:
        """Return three launches."""
        cut = tiles(problem, config.added)
        grid = (ceil_div(problem.channels, cut[2]), cut[0])
        return (
            problem.without_statistics
            or too_long(problem)
            or _summed(problem, self.language, config, cut[0], "columns", grid, cut)
        )


class Split(Variant[BatchNormDescriptor, SplitConfig]):
    """In training: several blocks a channel, of any part of it each."""

    name = "split"
    config_type = SplitConfig

    @and_statistics
    def schedule(self, problem: BatchNormDescriptor, config: SplitConfig, limits: Limits) -> Schedule | Refusal:
        """Return three launches."""
        slices = ceil_div(problem.count, config.values)
        grid = (problem.channels, slices)
        return problem.without_statistics or _summed(
            problem, self.language, config, slices, "partial", grid, (slices, config.values)
        )


class Elementwise(Variant[BatchNormDescriptor, WriteConfig]):
    """In eval: a pass that writes."""

    name = "elementwise"

    def __init__(self, language: str = "ptx") -> None:
        super().__init__(language)
        self.config_type = EvalConfig if language == "ptx" else WriteConfig

    def schedule(self, problem: BatchNormDescriptor, config: WriteConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if problem.training:
            return Refusal("has no statistics")
        if problem.channels >> 31:
            return Refusal(f"channels = {problem.channels} is above {(1 << 31) - 1}")
        arrays = ("x", "y", "weight", "bias", "running_mean", "running_var")
        arguments = (*arrays, *problem.sizes, problem.eps, config.written)
        kernel = problem.kernel("eval_rows" if config.in_rows(problem) else "eval", self.language)
        _, threads = config.blocks(problem)
        return Schedule((Launch(kernel, config.grid(problem), threads, arguments),), problem.guarantee)


class BatchNormPlan(Plan[BatchNormDescriptor, BatchNormArgs, BatchNormResult]):
    """Plan of :func:`batch_norm`; run it with :class:`BatchNormArgs`.

    Variants, in training: ``cluster``, a cluster of blocks a channel, which reads it once into their shared memory;
    ``cached``, a block a channel that does so; ``columns`` and ``split``, several blocks a channel, whose partial sums
    lie in the workspace, of some images each or of any part of a channel; in HIP ``tickets``, these in one launch,
    whose blocks write a channel soon after they have read it. In eval ``alone``, of rows of whole vectors, whose
    threads share nothing, and ``elementwise``. Where channels lie side by side, and values are many,
    ``channels_last_held``, in training, from sm_90: one launch, whose blocks hold what they read last; in HIP
    ``channels_last_whole``, where rows are few, and ``channels_last_tickets``, where values are neither few nor many;
    ``channels_last``: passes over rows of channels.
    ``baseline``: a block a channel that reads it twice in training.
    """

    op = "batch_norm"
    category = "normalization"
    descriptor_type = BatchNormDescriptor
    result_type = BatchNormResult
    variants = (
        Alone(),
        Small(),
        ChannelsLastAlone(),
        ChannelsLastClusters(),
        ChannelsLastHeld(),
        ChannelsLast(),
        Clusters(),
        Cached(),
        Columns(),
        Split(),
        Elementwise(),
        Channels(),
        Alone("hip"),
        Small("hip"),
        ChannelsLastAlone("hip"),
        ChannelsLastWhole("hip"),
        ChannelsLastTickets("hip"),
        ChannelsLast("hip"),
        Cached("hip"),
        InTickets("hip"),
        Elementwise("hip"),
        Channels("hip"),
    )

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        vector = ((problem.channels,), parameter_type(problem.dtype))
        no_running = None if problem.running else "the plan is of a problem without running statistics"
        no_batch = None if problem.training else "eval computes no statistics"
        no_counter = None if problem.counted else "the plan is of a problem that counts no batches"
        running = partial(
            Operand,
            shape=vector[0],
            type=vector[1],
            optional=not problem.running,
            written=problem.training,
            absent=no_running,
        )
        return (
            Operand("x", problem.shape, problem.dtype, problem.strides),
            Operand("weight", *vector, optional=True),
            Operand("bias", *vector, optional=True),
            running("running_mean"),
            running("running_var"),
            Operand("y", problem.shape, problem.dtype, problem.strides, output=True, in_place=("x",)),
            Operand("batch_mean", *vector, output=True, absent=no_batch),
            Operand("batch_var", *vector, output=True, absent=no_batch),
            Operand("batches", (1,), BY_NAME["i64"], optional=not problem.counted, written=True, absent=no_counter),
        )


# Backward ------------------------------------------------------------------------------------------------------------

_GRADIENTS_OF = ("x", "grad_out", "grad_input", "grad_weight", "grad_bias", "weight")


class ChannelsBackward(Variant[BatchNormBackwardDescriptor, Config]):
    """A block a channel, which reads x and grad_out twice."""

    name = "baseline"

    @of_inverse
    def schedule(self, problem: BatchNormBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        arguments: tuple[Argument, ...] = (*_GRADIENTS_OF, *problem.mean_and_var, *problem.sizes, problem.eps)
        name = "backward_handed_kernel" if problem.handed else "backward_kernel"
        arguments += () if problem.handed else (int(problem.training),)
        kernel = problem.kernel(name, self.language)
        return Schedule((Launch(kernel, problem.blocks(self.language), 256, arguments),), problem.guarantee)


class CachedBackward(Variant[BatchNormBackwardDescriptor, ThreadsConfig]):
    """In training: a block a channel, which reads x and grad_out once into shared memory."""

    name = "cached"
    config_type = ThreadsConfig

    def heuristic(self, problem: BatchNormBackwardDescriptor) -> ThreadsConfig:
        """As measured on an H200."""
        return ThreadsConfig(holding_threads(problem, self.language))

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Where a block reads a channel as fast as several, or as a cluster; not what is best read twice."""
        return worth_holding(problem, 2, self.language)

    @of_inverse
    def schedule(
        self, problem: BatchNormBackwardDescriptor, config: ThreadsConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return one launch."""
        arguments = (*_GRADIENTS_OF, *problem.mean_and_var, *problem.sizes, problem.eps)
        return held(problem, self.language, config, arguments)


class SmallBackward(Variant[BatchNormBackwardDescriptor, Config]):
    """Few values, of statistics that are given: a block a channel, whose threads have them in registers."""

    name = "small"

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Where one thread's time counts."""
        return few_values(problem, self.language)

    @of_inverse
    def schedule(self, problem: BatchNormBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if problem.training and not problem.handed:
            return Refusal("is for statistics that are given")
        arrays = (*_GRADIENTS_OF, *problem.mean_and_var)
        scalars = (1 / max(1, problem.count), int(problem.training))
        return small(problem, self.language, "batch_norm_backward_small", arrays, scalars)


class ClustersBackward(Variant[BatchNormBackwardDescriptor, ClusterConfig]):
    """In training: a cluster of blocks a channel, which reads x and grad_out once into their shared memory."""

    name = "cluster"
    config_type = ClusterConfig

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Where the cluster's shared memory holds a channel, values are many, and one block or two readings slower."""
        return worth_clusters(problem) and not held_at_once(problem, 2) and not read_twice(problem)

    @of_inverse
    def schedule(
        self, problem: BatchNormBackwardDescriptor, config: ClusterConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return one launch."""
        return clusters(problem, config, limits, (*_GRADIENTS_OF, *problem.mean_and_var), (problem.eps,))


class InTicketsBackward(Variant[BatchNormBackwardDescriptor, TicketsConfig]):
    """In training: one launch, whose blocks add up slices of a channel, and soon after write those of one before."""

    name = "tickets"
    config_type = TicketsConfig

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Channels that no block holds; of f64, large ones or many values."""
        return worth_tickets(problem)

    @of_inverse
    def schedule(
        self, problem: BatchNormBackwardDescriptor, config: TicketsConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return zeros for the counters, and a launch."""
        arrays = (*_GRADIENTS_OF, *problem.mean_and_var)
        return in_tickets(problem, config, arrays, (problem.eps,))


def _backward_summed(
    problem: BatchNormBackwardDescriptor,
    language: str,
    config: WriteConfig,
    slices: int,
    name: str,
    grid: tuple[int, int],
    cut: tuple[int, ...],
) -> Schedule:
    """Return the schedule of a variant that first adds up, by the entry `name`, to so many partial sums a channel."""
    workspace, sums, coefficients = workspace_of(problem, 4 * slices, 4 * problem.parts)
    threads = adders(problem, name)
    statistics: tuple[Argument, ...] = problem.mean_and_var
    scalars: tuple[Argument, ...] = (*problem.sizes, problem.eps, slices)

    def launch(name: str, grid: tuple[int, ...], block: int, *arguments: Argument) -> Launch:
        return Launch(problem.kernel(f"backward_{name}", language), grid, block, arguments)

    if problem.training:
        gradients = ("grad_weight", "grad_bias", coefficients)
        written = (coefficients, *problem.sizes, config.written)
        steps: tuple[Launch, ...] = (
            launch(name, grid, threads, "x", "grad_out", statistics[0], sums, *problem.sizes, *cut),
            launch("finish", (problem.channels,), 128, "x", "weight", *statistics, *gradients, sums, *scalars),
            launch("apply", config.grid(problem), problem.side_by_side, "x", "grad_out", "grad_input", *written),
        )
    else:  # the first launch writes, too
        name = "eval" if name == "partial" else f"eval_{name}"
        arrays = ("x", "grad_out", "grad_input", "weight", *statistics, sums)
        steps = (
            launch(name, grid, threads, *arrays, *problem.sizes, problem.eps, *cut),
            launch("eval_finish", (problem.channels,), 128, *statistics, "grad_weight", "grad_bias", sums, *scalars),
        )
    return Schedule(steps, problem.guarantee, workspace)


class ColumnsBackward(Variant[BatchNormBackwardDescriptor, ColumnsConfig]):
    """Several blocks a channel, of some images each."""

    name = "columns"
    config_type = ColumnsConfig

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """As forward; not small channels in eval, as with split, which is faster there where it reads vectors."""
        by_split = not problem.training and in_vectors(problem) and (problem.dtype.size < 4 or problem.channels < 512)
        rows = short_rows(problem) or odd_rows(problem)
        return rows and not by_split and SplitBackward(self.language).suits(problem)

    @of_inverse
    def schedule(
        self, problem: BatchNormBackwardDescriptor, config: ColumnsConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return three launches; two in eval."""
        cut = tiles(problem, config.added)
        grid = (ceil_div(problem.channels, cut[2]), cut[0])
        return too_long(problem) or _backward_summed(problem, self.language, config, cut[0], "columns", grid, cut)


class SplitBackward(Variant[BatchNormBackwardDescriptor, SplitConfig]):
    """Several blocks a channel, of any part of it each; in HIP in eval alone."""

    name = "split"
    config_type = SplitConfig

    def heuristic(self, problem: BatchNormBackwardDescriptor) -> SplitConfig:
        """In eval in PTX whole channels, where these are many and not large: as measured on an H200."""
        usual = SplitConfig.heuristic(problem)
        whole = self.language == "ptx" and problem.channels >= 128 and problem.count <= 7 * TURN
        if problem.training or not whole:
            return usual
        return replace(usual, values=slice_values(problem, problem.count))

    def suits(self, problem: BatchNormBackwardDescriptor) -> bool:
        """Not few values, nor small channels in eval, which take one launch of the baseline."""
        if problem.training:
            return self.language == "hip" or not read_twice(problem)
        count, values = (1 << 12, 1 << 21) if self.language == "ptx" else (1 << 11, 1 << 20)
        return problem.count > count or problem.channels * problem.count > values

    @of_inverse
    def schedule(self, problem: BatchNormBackwardDescriptor, config: SplitConfig, limits: Limits) -> Schedule | Refusal:
        """Return three launches; two in eval."""
        if self.language == "hip" and problem.training:
            return Refusal("has no sums to wait for, and training has")
        if self.language == "hip" and problem.count >= 1 << 31:
            return Refusal(f"a channel has {problem.count} values, above {(1 << 31) - 1}")
        if self.language == "hip" and config.values >= 1 << 32:
            return Refusal(f"a slice has {config.values} values, above {(1 << 32) - 1}")
        slices = ceil_div(problem.count, config.values)
        grid = (problem.channels, slices)
        return _backward_summed(problem, self.language, config, slices, "partial", grid, (slices, config.values))


class BatchNormBackwardPlan(Plan[BatchNormBackwardDescriptor, BatchNormBackwardArgs, BatchNormGradients]):
    """Plan of :func:`batch_norm_backward`; run it with :class:`BatchNormBackwardArgs`.

    Variants: as of :class:`BatchNormPlan` in training, of x and grad_out; in eval ``channels_last``, ``columns``,
    ``split`` and ``baseline``.
    """

    op = "batch_norm_backward"
    category = "normalization"
    descriptor_type = BatchNormBackwardDescriptor
    result_type = BatchNormGradients
    variants = (
        SmallBackward(),
        ChannelsLastClustersBackward(),
        ChannelsLastBackward(),
        ClustersBackward(),
        CachedBackward(),
        ColumnsBackward(),
        SplitBackward(),
        ChannelsBackward(),
        SmallBackward("hip"),
        ChannelsLastWholeBackward("hip"),
        ChannelsLastTicketsBackward("hip"),
        ChannelsLastBackward("hip"),
        CachedBackward("hip"),
        InTicketsBackward("hip"),
        SplitBackward("hip"),
        ChannelsBackward("hip"),
    )

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        vector = ((problem.channels,), parameter_type(problem.dtype))
        not_handed = None if problem.handed else "the plan is of a problem without batch statistics"
        return (
            Operand("grad_out", problem.shape, problem.dtype, problem.strides),
            Operand("x", problem.shape, problem.dtype, problem.strides),
            Operand("weight", *vector, optional=True),
            Operand("running_mean", *vector, optional=problem.training),
            Operand("running_var", *vector, optional=problem.training),
            Operand("batch_mean", *vector, optional=not problem.handed, absent=not_handed),
            Operand("batch_var", *vector, optional=not problem.handed, absent=not_handed),
            Operand(
                "grad_input", problem.shape, problem.dtype, problem.strides, output=True, in_place=("grad_out", "x")
            ),
            Operand("grad_weight", *vector, output=True, needs="weight"),
            Operand("grad_bias", *vector, output=True),
        )


# The functions -------------------------------------------------------------------------------------------------------


def _both(op: str, mean: Any, var: Any, prefix: str) -> bool:
    """Return whether both statistics are given; InvalidArgument if one is."""
    if (mean is None) != (var is None):
        missing, other = ("mean", "var") if mean is None else ("var", "mean")
        raise InvalidArgument(
            op=op,
            argument=f"{prefix}_{missing}",
            expected=f"an array, since {prefix}_{other} is given",
            given="None",
            fix="Give both, or neither",
        )
    return mean is not None


def _needed(op: str, given: bool) -> None:
    if not given:
        raise InvalidArgument(
            op=op,
            argument="running_mean",
            expected="both running statistics, which eval reads",
            given="None",
            fix="Give both, or training=True",
        )


def _rounding(op: str, exact: Any, communicator: Any) -> None:
    """Refuse an `exact` that is neither True nor False with a communicator."""
    if exact is not False or communicator is None:
        raise InvalidArgument(
            op=op,
            argument="exact",
            expected="True or False" if communicator is not None else "True without a communicator, which it is about",
            given=shown(exact),
            fix=None if communicator is not None else "Leave it out, or pass the communicator",
        )


_plan = plan_cache(BatchNormPlan)
_backward_plan = plan_cache(BatchNormBackwardPlan)


def batch_norm(
    x: DeviceArrayLike,
    weight: DeviceArrayLike | None,
    bias: DeviceArrayLike | None,
    running_mean: DeviceArrayLike | None,
    running_var: DeviceArrayLike | None,
    *,
    training: bool,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    save: str = "variance",
    batches: DeviceArrayLike | None = None,
    communicator: Any = None,
    exact: bool = True,
    out: Sequence[DeviceArrayLike | None] | None = None,
    stream: StreamLike | None = None,
) -> BatchNormResult:
    """Normalise each channel to mean 0 and deviation 1, then scale and shift.

    ``y[n, c, p] = (x[n, c, p] - mean[c]) / sqrt(var[c] + eps) * weight[c] + bias[c]`` (Ioffe and Szegedy, Batch
    Normalization, 2015). In training, mean and biased variance are those of the channel's M values, over the batch and
    all positions, and the running statistics, where given, are updated in place on the device:
    ``running = (1 - momentum) * running + momentum * batch``, with the unbiased variance, M / (M - 1) of the biased
    one. In eval, the running statistics are the mean and the variance. Where momentum is None they become the mean over
    all batches that were counted: ``running = (running * (n - 1) + batch) / n`` with n = `batches`, this one counted.

    Parameters
    ----------
    x
        ``[N, C, *]``, float32, float64, float16 or bfloat16, contiguous or channels-last; at least two values a channel
        in training.
    weight, bias
        ``[C]``, or None for ones and zeros; float64 where x is, float32 for the rest, as all vectors are.
    running_mean, running_var
        ``[C]``; both or neither, and both in eval.
    training
        True or False.
    momentum
        From 0 to 1; only training uses it. None, in training with running statistics and `batches`, for the mean over
        all batches.
    eps
        Added to the variance.
    save
        What the third result is, ``"variance"`` or ``"inverse_deviation"``: the batch's biased variance, or
        ``1 / sqrt(var + eps)`` of it, as PyTorch's batch_norm saves it.
    batches
        How many batches there were, an int64 of shape [] or [1] on the device, which training with running statistics
        increments before it uses it; nothing goes to the host. Given with a momentum too it is incremented, as PyTorch
        does with num_batches_tracked, so that it is right should momentum be None later.
    communicator
        In training, of the ranks that the batch is spread over: a :class:`ptxrt.distributed.Communicator`, nccl4py's,
        or torch's process group. x is this rank's shard, of any number of values; the statistics are those of all
        ranks, NaN where there are fewer than two values a channel. Not for float64. The first call of a problem waits
        until all ranks agree on it.
    exact
        With a communicator: whether the statistics have the same bits however the batch is cut. False is faster, and
        rounds each rank's sums to float64, so that the last bits may depend on the cut.
    out
        Where to write, (y, batch_mean, batch_var), each of which may be None; y has x's layout, and may be x.
    stream
        The device's default stream if left out.

    Returns
    -------
    tuple
        (y, batch_mean, batch_var): of x's shape and layout, and ``[C]`` each, the variance biased, or in its place what
        `save` says. The last two are None in eval.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    RanksDisagree, RankLost, Unsupported
        With a communicator: on every rank, what the ranks do not have in common; a rank that has not come in time.
    """
    if type(x) is not DeviceArray:
        x = as_array(x, None, "batch_norm", "x", stream)
    results = BatchNormPlan.unpacked(out)
    if exact is not True:
        _rounding("batch_norm", exact, communicator)
    running = _both("batch_norm", running_mean, running_var, "running")
    if training is False:
        _needed("batch_norm", running)
    if batches is not None:
        batches = as_array(batches, x.device, "batch_norm", "batches", stream)
        if batches.shape == ():
            batches = batches.view((1,))
    counted = batches is not None
    if communicator is not None and training is True:
        from ptxrt.ops._batch_norm_exact import over_ranks  # noqa: PLC0415 (it knows this file)

        operands, outputs = (x, weight, bias, running_mean, running_var), (*results, batches)
        facts = {"eps": eps, "momentum": momentum}
        return over_ranks(communicator, x, operands, outputs, facts, exact, (running, save, counted), stream)
    plan = _plan(x.device, x.shape, training, x.dtype, eps, momentum, running, save, counted, x.strides)
    return plan._run((x, weight, bias, running_mean, running_var, *results, batches), stream)


def batch_norm_backward(
    grad_out: DeviceArrayLike,
    x: DeviceArrayLike,
    weight: DeviceArrayLike | None,
    running_mean: DeviceArrayLike | None,
    running_var: DeviceArrayLike | None,
    *,
    training: bool,
    eps: float = 1e-5,
    batch_mean: DeviceArrayLike | None = None,
    batch_var: DeviceArrayLike | None = None,
    save: str = "variance",
    communicator: Any = None,
    exact: bool = True,
    out: Sequence[DeviceArrayLike | None] | None = None,
    stream: StreamLike | None = None,
) -> BatchNormGradients:
    """Return the gradients of :func:`batch_norm`.

    With ``sum_go = sum(grad_out)``, ``dot = sum((x - mean) * grad_out)``, ``inv = 1 / sqrt(var + eps)`` of each channel
    (Ioffe and Szegedy, Batch Normalization, 2015, section 3)::

        grad_input  = (grad_out - sum_go / M - (x - mean) * dot / M * inv**2) * inv * weight    in training
        grad_input  = grad_out * inv * weight                                                   in eval
        grad_weight = dot * inv        grad_bias = sum_go

    Parameters
    ----------
    grad_out, x
        ``[N, C, *]``, float32, float64, float16 or bfloat16, contiguous or both channels-last; x is what went into
        batch_norm.
    weight
        ``[C]``, or None for ones; float64 where x is, float32 for the rest, as all vectors are.
    running_mean, running_var
        ``[C]``; both or neither. Eval reads them, as they were in the forward; training does not.
    training
        True or False, as in the forward.
    eps
        As in the forward.
    batch_mean, batch_var
        ``[C]``, what the forward returned; both or neither, in training only. Without them they are computed
        anew.
    save
        As in the forward: ``"inverse_deviation"`` where `batch_var` is that. Only its inverse square is used, with no
        eps, rounded to the type of the statistics: above 2**63 (eps and variance below 1e-38) that is subnormal.
    communicator
        As in the forward, with the batch statistics given: the gradients of weight and bias are sums over all ranks.
    exact
        As in the forward, whatever that was called with.
    out
        Where to write, (grad_input, grad_weight, grad_bias), each of which may be None; grad_input has x's layout,
        and may be grad_out or x.
    stream
        The device's default stream if left out.

    Returns
    -------
    tuple
        (grad_input, grad_weight, grad_bias); grad_weight is None where weight is.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    RanksDisagree, RankLost, Unsupported
        With a communicator, as in the forward.
    """
    op = "batch_norm_backward"
    if type(grad_out) is not DeviceArray:
        grad_out = as_array(grad_out, None, op, "grad_out", stream)
    results = BatchNormBackwardPlan.unpacked(out)
    if exact is not True:
        _rounding(op, exact, communicator)
    running = _both(op, running_mean, running_var, "running")
    handed = _both(op, batch_mean, batch_var, "batch")
    if training is False:
        _needed(op, running)
        if handed:
            raise InvalidArgument(
                op=op,
                argument="batch_mean",
                expected="None, since eval has no batch statistics",
                given=shown(batch_mean),
            )
    if communicator is not None and training is True:
        from ptxrt.ops._batch_norm_exact import backward_over_ranks  # noqa: PLC0415 (it knows this file)

        operands = grad_out, x, weight, running_mean, running_var, batch_mean, batch_var
        return backward_over_ranks(communicator, grad_out, operands, results, {"eps": eps}, exact, save, stream)
    layout = grad_out.strides
    plan = _backward_plan(grad_out.device, grad_out.shape, training, grad_out.dtype, eps, handed, save, layout)
    return plan._run((grad_out, x, weight, running_mean, running_var, batch_mean, batch_var, *results), stream)
