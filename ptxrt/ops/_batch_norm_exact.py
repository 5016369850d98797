"""batch_norm in training over a batch that is spread over ranks: the same bits however it was cut.

A rank adds its shard up exactly, into integers; these are added up over all ranks; and each rank makes of the sums,
which are then the whole batch's, what it needs for its shard. So there are two plans a direction, one before the
all-reduce and one behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ptxrt.distributed import as_communicator
from ptxrt.dtypes import BY_NAME, ElementType, element_type
from ptxrt.errors import DeviceMismatch, InvalidArgument, Unsupported, shown
from ptxrt.ops._batch_norm import BatchNormBackwardPlan, BatchNormGradients, BatchNormPlan, BatchNormResult
from ptxrt.ops._batch_norm_passes import WriteConfig
from ptxrt.ops._batch_norm_problem import FAMILY as BATCH_NORM
from ptxrt.ops._batch_norm_problem import BatchNormBackwardDescriptor, BatchNormDescriptor, Geometry
from ptxrt.ops._batch_norm_rounded import VARIANTS as ROUNDED
from ptxrt.ops._batch_norm_statistics import counted, handed_inverse, inverse_saved
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Argument,
    Config,
    KernelFamily,
    Launch,
    Limits,
    Operand,
    Plan,
    PrecisionGuarantee,
    Refusal,
    Region,
    Role,
    Schedule,
    Variant,
    Workspace,
    Zero,
    blocks_in_hip,
    ceil_div,
    parameter_type,
    plan_cache,
)
from ptxrt.runtime.array import DeviceArray, empty
from ptxrt.runtime.protocols import StreamLike
from ptxrt.runtime.stream import as_stream

__all__ = ["FAMILY", "backward_over_ranks", "over_ranks"]

_SIZES = "u32 batch, u32 channels, u32 hw"
_INPUTS = "const T* in_ptr, const T* go_ptr"
_FINISH = "const i64* sums_ptr, const P*? w_ptr"
_SIGNATURES = {
    "exact_sums": f"const T* in_ptr, i64* sums_ptr, {_SIZES}, u64 values",
    "backward_exact_sums": f"{_INPUTS}, const P* mean_ptr, i64* sums_ptr, {_SIZES}, u64 values",
    "exact_columns": "const T* in_ptr, i64* sums_ptr, u32 batch, u32 channels, u64 values",
    "backward_exact_columns": f"{_INPUTS}, const P* mean_ptr, i64* sums_ptr, u32 batch, u32 channels, u64 values",
    "exact_finish": f"{_FINISH}, P* mean_ptr, P* var_ptr, P*? rmean_ptr, P*? rvar_ptr, const i64*? batches_ptr, "
    "const P*? b_ptr, f64* coefficients_ptr, u32 channels, P eps, P momentum",
    "backward_exact_finish": f"{_FINISH}, const P* mean_ptr, const P* var_ptr, P*? gw_ptr, P* gb_ptr, "
    "f64* coefficients_ptr, u32 channels, P eps",
    "exact_apply": f"const T* in_ptr, T* out_ptr, const f64* coefficients_ptr, {_SIZES}",
    "backward_exact_apply": f"{_INPUTS}, T* gi_ptr, const f64* coefficients_ptr, {_SIZES}",
}
FAMILY = KernelFamily(
    "batch_norm_exact",
    ("f32", "f16", "bf16"),
    {
        # In PTX batch_norm's own apply does it, and in HIP the sums of rows.
        f"batch_norm_{name}": Role(signature, hip=not name.endswith("columns"), ptx=not name.endswith("apply"))
        for name, signature in _SIGNATURES.items()
    },
    targets=ROUNDING_TARGETS,
    op="batch_norm",
)
_MOST_A_THREAD = 256  # values, whose sums are exact
_MOST_SLICES = (1 << 16) - 1
_MOST_BLOCKS = 1 << 14
_EXACT = PrecisionGuarantee("f64", "exact", deterministic=True, bit_stable_on_same_hardware=True)


# Before the all-reduce -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumsDescriptor(Geometry):
    """The sums of a shard's x, of any number of values; `exact`: as integers, or else each rank's in float64."""

    shape: tuple[int, ...]
    dtype: ElementType = BY_NAME["f32"]
    strides: tuple[int, ...] = ()
    exact: bool = True

    op = "batch_norm"
    types = FAMILY.dtypes
    backward: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if element_type(self.dtype, op=self.op, argument=self.first).name == "f64":
            raise Unsupported(
                op=self.op,
                argument="communicator",
                expected="None for float64, whose sums of squares would have some 4200 bits a channel",
                given="a communicator",
                fix="Convert to float32",
            )
        super().__post_init__()
        if self.exact.__class__ is not bool:
            raise InvalidArgument(op=self.op, argument="exact", expected="True or False", given=shown(self.exact))

    @property
    def read(self) -> tuple[str, ...]:
        """The operands that the sums are of, as the kernels take them."""
        return ("x", "grad_out", "batch_mean") if self.backward else ("x",)

    @property
    def turn(self) -> str:
        """What stands before the names of the kernels of this direction."""
        return "backward_" if self.backward else ""

    @property
    def rows(self) -> int:
        """Integers a channel; the kernels' text says what they are."""
        return 10 if self.dtype.name == "f16" else 32


@dataclass(frozen=True)
class SumsBackwardDescriptor(SumsDescriptor):
    """The sums of a shard's grad_out and x."""

    op = "batch_norm_backward"
    first = "grad_out"
    backward = True


@dataclass(frozen=True)
class SumsConfig(Config):
    """Knobs of the sums: about the values of a slice, and those of a thread in slices that are short."""

    values: int
    a_thread: int = 8

    @classmethod
    def heuristic(cls, problem: Any) -> SumsConfig:
        """Long slices, whose sums are fewer, while enough blocks remain; and of as many blocks fewer threads."""
        total = problem.channels * problem.count
        values = max(1 << 12, min(1 << 16, 1 << (total >> 10 or 1).bit_length()))
        return cls(values, 32 if problem.channels * ceil_div(problem.count, values) >= 1 << 10 else 8)

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[SumsConfig]:
        """Return slices from 16 values a thread of 256 to 256, and fewer threads where slices are short."""
        best = cls.heuristic(problem)
        every = [cls(1 << bits) for bits in range(12, 17)] + [cls(1 << 12, each) for each in (16, 32, 64)]
        return tuple(dict.fromkeys((best, *every)))


def _summed(
    problem: SumsDescriptor, language: str, name: str, grid: tuple[int, int], threads: int, a_thread: int, *scalars: int
) -> Schedule | Refusal:
    """Return zeros for the sums, and the launch that adds to them, of `a_thread` values each at most."""
    if not problem.exact:
        return Refusal("adds up exactly, and rounded sums are asked for")
    if a_thread > _MOST_A_THREAD:
        return Refusal(f"a thread adds up {_MOST_A_THREAD} values, not {a_thread}")
    kernel = FAMILY.kernel(f"batch_norm_{problem.turn}{name}", problem.dtype, language)
    return Schedule((Zero("sums"), Launch(kernel, grid, threads, (*problem.read, "sums", *scalars))), _EXACT)


class Sums(Variant[SumsDescriptor, SumsConfig]):
    """Blocks that add up a slice of a channel each."""

    name = "exact"
    config_type = SumsConfig

    def schedule(self, problem: SumsDescriptor, config: SumsConfig, limits: Limits) -> Schedule | Refusal:
        """Return zeros for the sums, and one launch."""
        slices = ceil_div(problem.count, min(config.values, 256 * _MOST_A_THREAD))
        values = ceil_div(problem.count, 8 * slices) * 8
        threads = min(256, 32 * ceil_div(values, 32 * config.a_thread))
        sizes = (problem.batch, problem.channels, problem.hw, values)
        grid = (problem.channels, slices)
        return _summed(problem, self.language, "exact_sums", grid, threads, config.a_thread, *sizes)


@dataclass(frozen=True)
class RowsConfig(Config):
    """Knobs of sums over columns: the values of a thread."""

    a_thread: int

    @classmethod
    def heuristic(cls, problem: Any) -> RowsConfig:
        """As many as leave enough threads."""
        most = problem.batch * problem.channels >> 17
        return cls(max(16, min(_MOST_A_THREAD, most // 8 * 8), ceil_div(problem.batch, _MOST_SLICES)))

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[RowsConfig]:
        """Return 16 values a thread to 256."""
        del problem
        return tuple(cls(values) for values in (16, 64, _MOST_A_THREAD))


class Columns(Variant[SumsDescriptor, RowsConfig]):
    """Threads that have a channel each, where channels lie side by side."""

    name = "columns"
    config_type = RowsConfig

    def suits(self, problem: SumsDescriptor) -> bool:
        """Enough channels for a warp."""
        return problem.hw == 1 and problem.channels >= 16

    def schedule(self, problem: SumsDescriptor, config: RowsConfig, limits: Limits) -> Schedule | Refusal:
        """Return zeros for the sums, and one launch."""
        if problem.hw > 1:
            return Refusal(f"rows have {problem.hw} values, and not one")
        threads = min(256, 32 * ceil_div(problem.channels, 32))
        grid = (ceil_div(problem.channels, threads), ceil_div(problem.batch, config.a_thread))
        sizes = (problem.batch, problem.channels, config.a_thread)
        return _summed(problem, self.language, "exact_columns", grid, threads, config.a_thread, *sizes)


class SumsPlan(Plan[SumsDescriptor, tuple[Any, ...], DeviceArray]):
    """Plan of the sums of a shard's x."""

    op = "batch_norm"
    category = "normalization"
    descriptor_type = SumsDescriptor
    variants = (Columns(), Sums(), Sums("hip"), *ROUNDED)

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        x = Operand("x", problem.shape, problem.dtype, problem.strides)
        sums = Operand("sums", (problem.rows, problem.channels), BY_NAME["i64"], output=True)
        if not problem.backward:
            return (x, sums)
        grad_out = Operand("grad_out", problem.shape, problem.dtype, problem.strides)
        mean = Operand("batch_mean", (problem.channels,), parameter_type(problem.dtype))
        return (grad_out, x, mean, sums)


class SumsBackwardPlan(SumsPlan):
    """Plan of the sums of a shard's grad_out and x."""

    op = "batch_norm_backward"
    descriptor_type = SumsBackwardDescriptor


# Behind it -----------------------------------------------------------------------------------------------------------


class _Shard:
    """Mixin of a descriptor of a shard, which may have no values."""

    least = 0
    types = FAMILY.dtypes
    channels: int

    @property
    def empty(self) -> bool:
        """Whether there are no channels; a shard without values has the whole batch's statistics."""
        return not self.channels


@dataclass(frozen=True)
class ShardDescriptor(_Shard, BatchNormDescriptor):
    """A shard's problem of batch_norm, in training, with the sums over all."""


@dataclass(frozen=True)
class ShardBackwardDescriptor(_Shard, BatchNormBackwardDescriptor):
    """A shard's problem of batch_norm_backward, in training, with the sums over all and the batch's statistics."""


def _coefficients(problem: Any) -> tuple[Workspace, Region]:
    workspace = Workspace()
    return workspace, workspace.region("coefficients", "f64", 4 * problem.channels)


def _finish(problem: Any, language: str, name: str, *arguments: Argument) -> Launch:
    kernel = FAMILY.kernel(f"batch_norm_{name}", problem.dtype, language)
    return Launch(kernel, (ceil_div(problem.channels, 128),), 128, arguments)


def _apply(problem: Any, config: WriteConfig, language: str, name: str, *arguments: Argument) -> tuple[Launch, ...]:
    """Return the launch that writes what has a shard's shape, if it has values."""
    if not problem.elements:
        return ()
    if language == "hip":
        kernel = FAMILY.kernel(f"batch_norm_{name.replace('apply', 'exact_apply')}", problem.dtype, language)
        blocks = min(blocks_in_hip(problem.elements, 256), _MOST_BLOCKS)
        return (Launch(kernel, (blocks,), 256, (*arguments, *problem.sizes)),)
    kernel = BATCH_NORM.kernel(f"batch_norm_{name}", problem.dtype, language)
    return (Launch(kernel, config.grid(problem), problem.side_by_side, (*arguments, *problem.sizes, config.written)),)


class Finish(Variant[ShardDescriptor, WriteConfig]):
    """Statistics and coefficients of the sums, a thread a channel, then a pass that writes."""

    name = "exact"
    config_type = WriteConfig

    def schedule(self, problem: ShardDescriptor, config: WriteConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches; one for a shard without values."""
        workspace, coefficients = _coefficients(problem)
        batches = "batches" if problem.momentum is None else 0
        running = ("running_mean", "running_var", batches)
        vectors = ("weight", "batch_mean", "batch_var", *running, "bias", coefficients)
        scalars = (problem.channels, problem.eps, problem.momentum or 0.0)
        steps: list[Launch | Zero] = [counted(self.language)] if problem.counted else []
        steps.append(_finish(problem, self.language, "exact_finish", "sums", *vectors, *scalars))
        steps += _apply(problem, config, self.language, "apply", "x", "y", coefficients)
        if problem.save == "inverse_deviation":
            steps.append(inverse_saved(problem.dtype, self.language, problem.channels, problem.eps))
        return Schedule(tuple(steps), _EXACT, workspace)


class FinishBackward(Variant[ShardBackwardDescriptor, WriteConfig]):
    """Gradients of vectors and coefficients of the sums, a thread a channel, then a pass that writes."""

    name = "exact"
    config_type = WriteConfig

    def schedule(self, problem: ShardBackwardDescriptor, config: WriteConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches; one for a shard without values."""
        workspace, coefficients = _coefficients(problem)
        vectors = ("weight", "batch_mean", "batch_var", "grad_weight", "grad_bias", coefficients)
        scalars = (problem.channels, problem.eps)
        finish = _finish(problem, self.language, "backward_exact_finish", "sums", *vectors, *scalars)
        arrays = ("x", "grad_out", "grad_input", coefficients)
        steps = (finish, *_apply(problem, config, self.language, "backward_apply", *arrays))
        found = Schedule(steps, _EXACT, workspace)
        if problem.save == "variance":
            return found
        return handed_inverse(found, problem.dtype, self.language, problem.channels)


def _with_sums(operands: tuple[Operand, ...], problem: Any, outputs: int) -> tuple[Operand, ...]:
    """Return the operands of the plan without ranks, and the sums before so many last ones."""
    rows = SumsDescriptor(problem.shape, problem.dtype, problem.strides).rows
    sums = Operand("sums", (rows, problem.channels), BY_NAME["i64"])
    return (*operands[:-outputs], sums, *operands[-outputs:])


class ShardPlan(Plan[ShardDescriptor, tuple[Any, ...], BatchNormResult]):
    """Plan of a shard's batch_norm behind the all-reduce."""

    op = "batch_norm"
    category = "normalization"
    descriptor_type = ShardDescriptor
    result_type = BatchNormResult
    variants = (Finish(), Finish("hip"))

    def _operands(self) -> tuple[Operand, ...]:
        return _with_sums(BatchNormPlan._operands(self), self.descriptor, 4)  # type: ignore[arg-type]


class ShardBackwardPlan(Plan[ShardBackwardDescriptor, tuple[Any, ...], BatchNormGradients]):
    """Plan of a shard's batch_norm_backward behind the all-reduce."""

    op = "batch_norm_backward"
    category = "normalization"
    descriptor_type = ShardBackwardDescriptor
    result_type = BatchNormGradients
    variants = (FinishBackward(), FinishBackward("hip"))

    def _operands(self) -> tuple[Operand, ...]:
        return _with_sums(BatchNormBackwardPlan._operands(self), self.descriptor, 3)  # type: ignore[arg-type]


# Both together -------------------------------------------------------------------------------------------------------

_sums = plan_cache(SumsPlan)
_backward_sums = plan_cache(SumsBackwardPlan)
_shard = plan_cache(ShardPlan)
_backward_shard = plan_cache(ShardBackwardPlan)


def over_ranks(
    given: Any,
    x: DeviceArray,
    operands: Sequence[Any],
    outputs: Sequence[Any],
    facts: dict[str, Any],
    exact: bool,
    how: Sequence[Any],
    stream: StreamLike | None,
) -> BatchNormResult:
    """Run batch_norm in training on a shard.

    Parameters
    ----------
    given
        What the caller gave as communicator.
    operands, outputs
        As of :class:`BatchNormPlan`, before and behind the sums.
    facts
        eps and momentum, which all ranks must have in common.
    exact
        Whether the sums are, which all ranks must have in common too.
    how
        The descriptor's fields behind momentum, but for the strides.
    """
    summing = _sums(x.device, x.shape, x.dtype, x.strides, exact)  # which says why there is no float64
    plan = _shard(x.device, x.shape, True, x.dtype, *facts.values(), *how, x.strides)
    result: BatchNormResult = _run(given, x, plan, summing, operands, outputs, facts, stream)
    return result


def backward_over_ranks(
    given: Any,
    x: DeviceArray,
    operands: Sequence[Any],
    outputs: Sequence[Any],
    facts: dict[str, Any],
    exact: bool,
    save: str,
    stream: StreamLike | None,
) -> BatchNormGradients:
    """Run batch_norm_backward in training on a shard; `x` is its first operand, grad_out."""
    if operands[5] is None:
        raise Unsupported(
            op="batch_norm_backward",
            argument="batch_mean",
            expected="both batch statistics with a communicator, which the forward has from all ranks",
            given="None",
            fix="Pass what batch_norm returned",
        )
    summing = _backward_sums(x.device, x.shape, x.dtype, x.strides, exact)
    plan = _backward_shard(x.device, x.shape, True, x.dtype, *facts.values(), True, save, x.strides)
    result: BatchNormGradients = _run(given, x, plan, summing, operands, outputs, facts, stream)
    return result


def _run(
    given: Any,
    x: DeviceArray,
    plan: Plan[Any, Any, Any],
    summing: SumsPlan,
    operands: Sequence[Any],
    outputs: Sequence[Any],
    facts: dict[str, Any],
    stream: StreamLike | None,
) -> Any:
    op = plan.op
    communicator = as_communicator(given, op)
    if communicator.device is not x.device:
        raise DeviceMismatch(
            op=op,
            argument="communicator",
            expected=f"one of {x.device}, where the arrays are",
            given=f"one of {communicator.device}",
        )
    queue = as_stream(stream, x.device, op)
    problem = summing.descriptor
    sums = empty((problem.rows, problem.channels), "int64", x.device, stream=queue)
    arrays = plan._check((*operands, sums, *outputs), queue)  # before the ranks meet, for both plans
    known = {"channels": problem.channels, "dtype": problem.dtype.name, "exact": problem.exact}
    communicator.agree(op, known | {name: getattr(plan.descriptor, name) for name in facts}, queue)
    # One after the other, so that they may have one workspace
    scratch = empty(max(summing.workspace_size, plan.workspace_size), "uint8", x.device, stream=queue)
    mine = (0, 1, 5, len(operands)) if problem.backward else (0, len(operands))
    summing._run([arrays[i] for i in mine], queue, scratch)
    communicator.all_reduce(sums, queue)
    return plan._run(arrays, queue, scratch)
