"""batch_norm: normalise each channel over the whole batch; its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import InvalidArgument, ShapeMismatch
from ptxrt.ops.framework.images import Images
from ptxrt.ops.framework.plan import Plan, beyond, kept, number, unpacked_out
from ptxrt.ops.framework.variant import KernelSpec, Launch, Operand, PrecisionGuarantee, Scratch, Variant, Zero
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.signature import Signature

__all__ = [
    "KERNELS",
    "BatchNormArgs",
    "BatchNormBackwardArgs",
    "BatchNormBackwardDescriptor",
    "BatchNormBackwardPlan",
    "BatchNormDescriptor",
    "BatchNormPlan",
    "batch_norm",
    "batch_norm_backward",
]

_F32 = BY_NAME["f32"]
_U32 = (1 << 32) - 1
_GRID_Y = 65535
_SIZES = "u32 batch, u32 channels, u32 hw"
_TILES = "u32 slices, u32 images, u32 group, u32 lanes"


def _entry(name: str, parameters: str) -> KernelSpec:
    return KernelSpec("batch_norm", f"batch_norm_{name}", Signature.parse(parameters))


_KERNEL = _entry(
    "kernel",
    f"const f32* in_ptr, f32* out_ptr, const f32*? w_ptr, const f32*? b_ptr, f32* mean_ptr, f32* var_ptr, {_SIZES}, "
    "f32 eps, u32 training",
)
_RUNNING = _entry(
    "running",
    f"const f32* mean_ptr, const f32* var_ptr, f32* rmean_ptr, f32* rvar_ptr, {_SIZES}, f32 momentum",
)
_CACHED = _entry(
    "cached",
    "const f32* in_ptr, f32* out_ptr, const f32*? w_ptr, const f32*? b_ptr, f32* mean_ptr, f32* var_ptr, "
    f"f32*? rmean_ptr, f32*? rvar_ptr, {_SIZES}, f32 eps, f32 momentum",
)
_PARTIAL = _entry("partial", f"const f32* in_ptr, f64* sums_ptr, {_SIZES}, u32 slices, u64 values")
_COLUMNS = _entry("columns", f"const f32* in_ptr, f64* sums_ptr, {_SIZES}, {_TILES}")
_FINISH = _entry(
    "finish",
    "const f32* in_ptr, const f32*? w_ptr, f32* mean_ptr, f32* var_ptr, f32*? rmean_ptr, f32*? rvar_ptr, "
    f"const f32*? b_ptr, f64* coefficients_ptr, const f64* sums_ptr, {_SIZES}, f32 eps, f32 momentum, u32 slices",
)
_APPLY = _entry("apply", f"const f32* in_ptr, f32* out_ptr, const f64* coefficients_ptr, {_SIZES}, u32 images")
_EVAL = _entry(
    "eval",
    "const f32* in_ptr, f32* out_ptr, const f32*? w_ptr, const f32*? b_ptr, const f32* mean_ptr, const f32* var_ptr, "
    f"{_SIZES}, f32 eps, u32 images",
)
_GRADIENTS = "const f32* in_ptr, const f32* go_ptr, f32* gi_ptr, f32*? gw_ptr, f32*? gb_ptr, const f32*? w_ptr"
_BACKWARD = _entry(
    "backward_kernel",
    f"{_GRADIENTS}, const f32*? rmean_ptr, const f32*? rvar_ptr, {_SIZES}, f32 eps, u32 training",
)
_BACKWARD_HANDED = _entry(
    "backward_handed_kernel", f"{_GRADIENTS}, const f32* mean_ptr, const f32* var_ptr, {_SIZES}, f32 eps"
)
_BACKWARD_CACHED = _entry(
    "backward_cached", f"{_GRADIENTS}, const f32*? mean_ptr, const f32*? var_ptr, {_SIZES}, f32 eps"
)
_BACKWARD_PARTIAL = _entry(
    "backward_partial",
    f"const f32* in_ptr, const f32* go_ptr, const f32*? mean_ptr, f64* sums_ptr, {_SIZES}, u32 slices, u64 values",
)
_BACKWARD_COLUMNS = _entry(
    "backward_columns",
    f"const f32* in_ptr, const f32* go_ptr, const f32*? mean_ptr, f64* sums_ptr, {_SIZES}, {_TILES}",
)
_BACKWARD_FINISH = _entry(
    "backward_finish",
    "const f32* in_ptr, const f32*? w_ptr, const f32*? mean_ptr, const f32*? var_ptr, f32*? gw_ptr, f32*? gb_ptr, "
    f"f64* coefficients_ptr, const f64* sums_ptr, {_SIZES}, f32 eps, u32 slices",
)
_BACKWARD_APPLY = _entry(
    "backward_apply",
    f"const f32* in_ptr, const f32* go_ptr, f32* gi_ptr, const f64* coefficients_ptr, {_SIZES}, u32 images",
)
_BACKWARD_EVAL = _entry(
    "backward_eval",
    "const f32* in_ptr, const f32* go_ptr, f32* gi_ptr, const f32*? w_ptr, const f32* mean_ptr, const f32* var_ptr, "
    f"f64* sums_ptr, {_SIZES}, f32 eps, u32 slices, u64 values",
)
_BACKWARD_EVAL_COLUMNS = _entry(
    "backward_eval_columns",
    "const f32* in_ptr, const f32* go_ptr, f32* gi_ptr, const f32*? w_ptr, const f32* mean_ptr, const f32* var_ptr, "
    f"f64* sums_ptr, {_SIZES}, f32 eps, {_TILES}",
)
_BACKWARD_EVAL_FINISH = _entry(
    "backward_eval_finish",
    "const f32* mean_ptr, const f32* var_ptr, f32*? gw_ptr, f32*? gb_ptr, const f64* sums_ptr, "
    f"{_SIZES}, f32 eps, u32 slices",
)
KERNELS = (
    _KERNEL,
    _RUNNING,
    _CACHED,
    _PARTIAL,
    _COLUMNS,
    _FINISH,
    _APPLY,
    _EVAL,
    _BACKWARD,
    _BACKWARD_HANDED,
    _BACKWARD_CACHED,
    _BACKWARD_PARTIAL,
    _BACKWARD_COLUMNS,
    _BACKWARD_FINISH,
    _BACKWARD_APPLY,
    _BACKWARD_EVAL,
    _BACKWARD_EVAL_COLUMNS,
    _BACKWARD_EVAL_FINISH,
    *(spec.in_hip for spec in (_KERNEL, _RUNNING, _BACKWARD, _BACKWARD_HANDED)),
)


@dataclass(frozen=True)
class _Problem(Images):
    """What both directions' descriptors have."""

    shape: tuple[int, ...]
    training: bool
    dtype: ElementType = _F32
    eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training.__class__ is not bool:
            raise InvalidArgument(op=self.op, argument="training", expected="True or False", given=repr(self.training))
        if self.training and self.count < 2:
            raise ShapeMismatch(
                op=self.op,
                argument=self.first,
                expected="at least two values a channel in training",
                given=f"{self.shape}, which has {self.count}",
                fix="One value has no variance; training=False reads the running statistics",
            )
        self._set(eps=number(self.eps, self.op, "eps", _F32))

    @property
    def count(self) -> int:
        """M, the values of a channel."""
        return self.batch * self.hw

    @property
    def sizes(self) -> tuple[int, int, int]:
        """What every kernel is told."""
        return self.batch, self.channels, self.hw


@dataclass(frozen=True)
class BatchNormDescriptor(_Problem):
    """A problem of batch_norm: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, ``[N, C, *]``; in training N times the product of the trailing axes is at least 2.
    training
        Whether the statistics are those of x, or the running ones.
    dtype
        Of x and y; float32.
    eps
        Added to the variance; finite and at least 0.
    momentum
        From 0 to 1: the weight of the batch in the running statistics. Outside of that they would be no average, and
        the running variance could fall below 0.
    running
        Whether there are running statistics; without training there must be.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch
    """

    op = "batch_norm"

    momentum: float = 0.1
    running: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        momentum = number(self.momentum, "batch_norm", "momentum", _F32)
        if momentum > 1:
            raise InvalidArgument(
                op="batch_norm", argument="momentum", expected="a number from 0 to 1", given=repr(self.momentum)
            )
        self._set(momentum=momentum)
        if self.running.__class__ is not bool or not (self.running or self.training):
            raise InvalidArgument(
                op="batch_norm",
                argument="running",
                expected="True or False" if self.training else "True, since eval reads the running statistics",
                given=repr(self.running),
            )


@dataclass(frozen=True)
class BatchNormBackwardDescriptor(_Problem):
    """A problem of batch_norm_backward: pure data, hashable.

    Parameters
    ----------
    shape, training, dtype, eps
        As in :class:`BatchNormDescriptor`.
    handed
        Whether the batch statistics are given; in training only.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch
    """

    op = "batch_norm_backward"
    first = "grad_out"

    handed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.handed.__class__ is not bool or (self.handed and not self.training):
            raise InvalidArgument(
                op="batch_norm_backward",
                argument="handed",
                expected="True or False" if self.training else "False, since eval has no batch statistics",
                given=repr(self.handed),
            )

    @property
    def mean_and_var(self) -> tuple[str, str]:
        """Operands that the statistics are in; where there are none, their place is null."""
        return ("batch_mean", "batch_var") if self.training else ("running_mean", "running_var")


class BatchNormArgs(NamedTuple):
    """Operands of :class:`BatchNormPlan`; results that are None are allocated."""

    x: Any
    weight: Any = None
    bias: Any = None
    running_mean: Any = None
    running_var: Any = None
    y: Any = None
    batch_mean: Any = None
    batch_var: Any = None


class BatchNormBackwardArgs(NamedTuple):
    """Operands of :class:`BatchNormBackwardPlan`; results that are None are allocated."""

    grad_out: Any
    x: Any
    weight: Any = None
    running_mean: Any = None
    running_var: Any = None
    batch_mean: Any = None
    batch_var: Any = None
    grad_input: Any = None
    grad_weight: Any = None
    grad_bias: Any = None


# Slices: functions of the problem alone ------------------------------------------------------------------------------

_PLACES = 1024  # of an image that a block takes where all channels lie side by side
_MOST_COLUMNS = 1023  # whose rows the kernel finds without a division
_ENOUGH_BLOCKS = 512  # more images a block, while so many blocks remain
_APPLIED = 4  # images a block at most where coefficients are read, the vectors that a thread loads at once
_ENOUGH_VALUES = 8192  # for a block that adds up a slice
_TURN = 4096  # values that 256 threads load at once, four vectors each
_MOST_BLOCKS, _MOST_SLICES = 4096, 1024


def _ceil(count: int, part: int) -> int:
    return -(-count // part)


def _slices(problem: _Problem) -> tuple[int, int]:
    """Return into how many slices a channel is cut, and the values of each: enough blocks, of enough work each."""
    most = max(1, min(_MOST_SLICES, _MOST_BLOCKS // max(1, problem.channels)))
    wanted = min(most, _ceil(problem.count, _ENOUGH_VALUES)) or 1
    values = _ceil(problem.count, wanted * _TURN) * _TURN or _TURN
    return _ceil(problem.count, values), values


def _images(batch: int, across: int, least: int, most: int) -> int:
    """Return how many images a block takes, which has 1024 places of each: more, where enough blocks remain."""
    images = max(1, least)
    while images < most and across * _ceil(batch, 2 * images) >= _ENOUGH_BLOCKS:
        images *= 2
    return images


def _written(problem: _Problem) -> tuple[tuple[int, int], int]:
    """Return the grid of a writing pass, and the images of each block.

    In eval each block computes coefficients first, which pays for many images only.
    """
    across = _ceil(problem.channels * problem.hw, _PLACES)
    images = _images(problem.batch, across, _ceil(problem.batch, _GRID_Y), _APPLIED if problem.training else 16)
    return (across, _ceil(problem.batch, images)), images


def _columns(problem: _Problem) -> tuple[tuple[int, int], tuple[int, int, int, int]]:
    """Return the grid of the sums over columns; slices, images, channels of a block, threads that add one up."""
    group = max(1, min(problem.channels, _PLACES // max(1, problem.hw)))
    if group > 4:
        group -= group % 4  # whole vectors
    across = _ceil(problem.channels, group)
    images = _images(problem.batch, across, _ceil(problem.batch, 256), 32)
    slices = _ceil(problem.batch, images)
    lanes = 1 << min(5, max(0, (256 // group).bit_length() - 1))
    return (across, slices), (slices, images, group, lanes)


def _sums_bytes(problem: _Problem, sums: int, slices: int) -> int:
    """Return bytes of the partial sums, up to where the coefficients begin."""
    return _ceil(8 * sums * problem.channels * slices, 256) * 256


# What a variant cannot do --------------------------------------------------------------------------------------------


def _refuses(problem: _Problem, device: Device) -> str | None:
    if not problem.elements:
        return None
    return beyond(problem, _U32, "the kernel's u32", "batch", "channels", "hw") or beyond(
        problem, device.properties.max_grid[0], "grid.x", "channels"
    )


def _in_training(problem: _Problem, device: Device) -> str | None:
    return _refuses(problem, device) if problem.training else "has statistics to compute, and eval has none"


def _writes(problem: _Problem, device: Device) -> str | None:
    """Refuse what a writing pass cannot do."""
    if not problem.elements:
        return None
    across = _written(problem)[0][0]
    most = device.properties.max_grid[0]
    return _refuses(problem, device) or (f"grid.x = {across} is above {most}" if across > most else None)


def _kept_bytes(problem: _Problem, arrays: int) -> int:
    return 4 * arrays * problem.count


def _too_much_to_keep(problem: _Problem, device: Device, arrays: int) -> str | None:
    need, room = _kept_bytes(problem, arrays), device.properties.max_shared_dynamic - 1024
    if need > room:
        return f"a channel's {need} bytes do not fit {room} of shared memory"
    return _in_training(problem, device)


_GUARANTEE = PrecisionGuarantee(
    math_precision="f64", accumulator="f64", deterministic=True, bit_stable_on_same_hardware=True
)


def _adds_columns(problem: _Problem, device: Device) -> str | None:
    if problem.hw > _MOST_COLUMNS:
        return f"hw = {problem.hw} is above {_MOST_COLUMNS}"
    return _writes(problem, device)


def _worth_keeping(problem: _Problem, arrays: int) -> bool:
    """Return whether one block a channel is fastest: as measured on an H200."""
    kept, values = _kept_bytes(problem, arrays), problem.channels * problem.count
    if kept > 112 << 10:  # else two blocks fit a multiprocessor, and one reads while the other writes
        return arrays == 1 and kept <= 224 << 10 and problem.channels >= 256 and problem.hw % 4 == 0
    long_rows = problem.hw >= 8 and (problem.hw % 4 == 0 or arrays == 2 or values <= 10 << 20)
    return long_rows or values <= 1 << 19  # few values: the launches count


def _short_rows(problem: _Problem) -> bool:
    return problem.hw <= 256


# Forward -------------------------------------------------------------------------------------------------------------


def _baseline(problem: BatchNormDescriptor) -> Sequence[Launch]:
    if not problem.elements:
        return ()
    statistics = ("batch_mean", "batch_var") if problem.training else ("running_mean", "running_var")
    arguments = ("x", "y", "weight", "bias", *statistics, *problem.sizes, problem.eps, int(problem.training))
    normalise = Launch(_KERNEL, (problem.channels,), 256, arguments)
    if not (problem.training and problem.running):
        return (normalise,)
    running = (*statistics, "running_mean", "running_var", *problem.sizes, problem.momentum)
    return normalise, Launch(_RUNNING, (_ceil(problem.channels, 256),), 256, running)


def _cached(problem: BatchNormDescriptor) -> Sequence[Launch]:
    if not problem.elements:
        return ()
    arrays = ("x", "y", "weight", "bias", "batch_mean", "batch_var", "running_mean", "running_var")
    arguments = (*arrays, *problem.sizes, problem.eps, problem.momentum)
    return (Launch(_CACHED, (problem.channels,), 256, arguments, _kept_bytes(problem, 1)),)


def _split(problem: BatchNormDescriptor) -> Sequence[Launch]:
    slices, values = _slices(problem)
    cut = (problem.channels, slices)
    return _summed(problem, slices, Launch(_PARTIAL, cut, 256, ("x", Scratch(), *problem.sizes, slices, values)))


def _tiled(problem: BatchNormDescriptor) -> Sequence[Launch]:
    grid, tiles = _columns(problem)
    return _summed(problem, tiles[0], Launch(_COLUMNS, grid, 256, ("x", Scratch(), *problem.sizes, *tiles)))


def _summed(problem: BatchNormDescriptor, slices: int, add: Launch) -> Sequence[Launch]:
    """Return the launches of a variant that first `add`s, to so many partial sums a channel."""
    if not problem.elements:
        return ()
    grid, images = _written(problem)
    sums, coefficients = Scratch(), Scratch(_sums_bytes(problem, 2, slices))
    arrays = ("x", "weight", "batch_mean", "batch_var", "running_mean", "running_var", "bias", coefficients, sums)
    return (
        add,
        Launch(_FINISH, (problem.channels,), 128, (*arrays, *problem.sizes, problem.eps, problem.momentum, slices)),
        Launch(_APPLY, grid, 256, ("x", "y", coefficients, *problem.sizes, images)),
    )


def _elementwise(problem: BatchNormDescriptor) -> Sequence[Launch]:
    if not problem.elements:
        return ()
    grid, images = _written(problem)
    arrays = ("x", "y", "weight", "bias", "running_mean", "running_var")
    return (Launch(_EVAL, grid, 256, (*arrays, *problem.sizes, problem.eps, images)),)


_BASELINE = Variant("baseline", _GUARANTEE, _baseline, _refuses)


class BatchNormPlan(Plan):
    """Plan of :func:`batch_norm`; run it with :class:`BatchNormArgs`.

    Variants: in training ``cached``, a block a channel that reads it once into shared memory; ``columns`` and
    ``split``, several blocks a channel, whose partial sums lie in the workspace, of some images each or of any part of
    a channel; in eval ``elementwise``; ``baseline``, a block a channel
    that reads it twice in training.
    """

    op = "batch_norm"
    category = "normalization"
    descriptor_type = BatchNormDescriptor
    variants = (
        Variant(
            "cached",
            _GUARANTEE,
            _cached,
            lambda problem, device: _too_much_to_keep(problem, device, 1),
            lambda problem: _worth_keeping(problem, 1),
        ),
        Variant(
            "columns",
            _GUARANTEE,
            _tiled,
            lambda problem, device: _in_training(problem, device) or _adds_columns(problem, device),
            _short_rows,
            workspace=lambda problem: _sums_bytes(problem, 2, _columns(problem)[1][0]) + 24 * problem.channels,
        ),
        Variant(
            "split",
            _GUARANTEE,
            _split,
            lambda problem, device: _in_training(problem, device) or _writes(problem, device),
            workspace=lambda problem: _sums_bytes(problem, 2, _slices(problem)[0]) + 24 * problem.channels,
        ),
        Variant(
            "elementwise",
            _GUARANTEE,
            _elementwise,
            lambda problem, device: "has no statistics" if problem.training else _writes(problem, device),
        ),
        _BASELINE,
        _BASELINE.in_hip,
    )
    descriptor: BatchNormDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        vector = ((problem.channels,), _F32)
        nothing_kept = None if problem.running else "the plan is of a problem without running statistics"
        no_batch = None if problem.training else "eval computes no statistics"
        return (
            Operand("x", problem.shape, problem.dtype),
            Operand("weight", *vector, optional=True),
            Operand("bias", *vector, optional=True),
            Operand(
                "running_mean",
                *vector,
                optional=not problem.running,
                written=problem.training,
                absent=nothing_kept,
            ),
            Operand(
                "running_var",
                *vector,
                optional=not problem.running,
                written=problem.training,
                absent=nothing_kept,
            ),
            Operand("y", problem.shape, problem.dtype, output=True, in_place=("x",)),
            Operand("batch_mean", *vector, output=True, absent=no_batch),
            Operand("batch_var", *vector, output=True, absent=no_batch),
        )


# Backward ------------------------------------------------------------------------------------------------------------


def _backward_steps(problem: BatchNormBackwardDescriptor) -> Sequence[Zero] | None:
    """Return what is to do where there are no values; else None."""
    if problem.elements:
        return None
    return (Zero("grad_weight"), Zero("grad_bias"))


def _backward_baseline(problem: BatchNormBackwardDescriptor) -> Sequence[Launch | Zero]:
    gradients = ("x", "grad_out", "grad_input", "grad_weight", "grad_bias", "weight")
    arguments = (*gradients, *problem.mean_and_var, *problem.sizes, problem.eps)
    if problem.handed:
        launch = Launch(_BACKWARD_HANDED, (problem.channels,), 256, arguments)
    else:
        launch = Launch(_BACKWARD, (problem.channels,), 256, (*arguments, int(problem.training)))
    return _backward_steps(problem) or (launch,)


def _backward_cached(problem: BatchNormBackwardDescriptor) -> Sequence[Launch | Zero]:
    arrays = ("x", "grad_out", "grad_input", "grad_weight", "grad_bias", "weight", *problem.mean_and_var)
    arguments = (*arrays, *problem.sizes, problem.eps)
    launch = Launch(_BACKWARD_CACHED, (problem.channels,), 512, arguments, _kept_bytes(problem, 2))
    return _backward_steps(problem) or (launch,)


def _backward_split(problem: BatchNormBackwardDescriptor) -> Sequence[Launch | Zero]:
    slices, values = _slices(problem)
    where = ((problem.channels, slices), 256)
    cut, sums, statistics = (slices, values), Scratch(), problem.mean_and_var
    if problem.training:
        add = Launch(_BACKWARD_PARTIAL, *where, ("x", "grad_out", statistics[0], sums, *problem.sizes, *cut))
    else:
        arrays = ("x", "grad_out", "grad_input", "weight", *statistics, sums)
        add = Launch(_BACKWARD_EVAL, *where, (*arrays, *problem.sizes, problem.eps, *cut))
    return _backward_summed(problem, slices, add)


def _backward_tiled(problem: BatchNormBackwardDescriptor) -> Sequence[Launch | Zero]:
    grid, tiles = _columns(problem)
    sums, statistics = Scratch(), problem.mean_and_var
    if problem.training:
        arguments = ("x", "grad_out", statistics[0], sums, *problem.sizes, *tiles)
        return _backward_summed(problem, tiles[0], Launch(_BACKWARD_COLUMNS, grid, 256, arguments))
    arrays = ("x", "grad_out", "grad_input", "weight", *statistics, sums)
    add = Launch(_BACKWARD_EVAL_COLUMNS, grid, 256, (*arrays, *problem.sizes, problem.eps, *tiles))
    return _backward_summed(problem, tiles[0], add)


def _backward_summed(problem: BatchNormBackwardDescriptor, slices: int, add: Launch) -> Sequence[Launch | Zero]:
    """Return the launches of a variant that first `add`s, to so many partial sums a channel; in eval it writes too."""
    if (steps := _backward_steps(problem)) is not None:
        return steps
    statistics, gradients, sums = problem.mean_and_var, ("grad_weight", "grad_bias"), Scratch()
    scalars = (*problem.sizes, problem.eps, slices)
    if not problem.training:
        finish = Launch(_BACKWARD_EVAL_FINISH, (problem.channels,), 128, (*statistics, *gradients, sums, *scalars))
        return add, finish
    grid, images = _written(problem)
    coefficients = Scratch(_sums_bytes(problem, 4, slices))
    arrays = ("x", "weight", *statistics, *gradients, coefficients, sums)
    return (
        add,
        Launch(_BACKWARD_FINISH, (problem.channels,), 128, (*arrays, *scalars)),
        Launch(_BACKWARD_APPLY, grid, 256, ("x", "grad_out", "grad_input", coefficients, *problem.sizes, images)),
    )


_BACKWARD_BASELINE = Variant("baseline", _GUARANTEE, _backward_baseline, _refuses)


class BatchNormBackwardPlan(Plan):
    """Plan of :func:`batch_norm_backward`; run it with :class:`BatchNormBackwardArgs`.

    Variants: in training ``cached``, a block a channel that reads x and grad_out once into shared memory; ``columns``
    and ``split``, several blocks a channel, whose partial sums lie in the workspace, of some images each or of any part
    of a channel; ``baseline``, a block a channel that reads them twice.
    """

    op = "batch_norm_backward"
    category = "normalization"
    descriptor_type = BatchNormBackwardDescriptor
    variants = (
        Variant(
            "cached",
            _GUARANTEE,
            _backward_cached,
            lambda problem, device: _too_much_to_keep(problem, device, 2),
            lambda problem: _worth_keeping(problem, 2),
        ),
        Variant(
            "columns",
            _GUARANTEE,
            _backward_tiled,
            _adds_columns,
            _short_rows,
            workspace=lambda problem: _sums_bytes(problem, 4, _columns(problem)[1][0]) + 32 * problem.channels,
        ),
        Variant(
            "split",
            _GUARANTEE,
            _backward_split,
            _writes,
            workspace=lambda problem: _sums_bytes(problem, 4, _slices(problem)[0]) + 32 * problem.channels,
        ),
        _BACKWARD_BASELINE,
        _BACKWARD_BASELINE.in_hip,
    )
    descriptor: BatchNormBackwardDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        vector = ((problem.channels,), _F32)
        not_handed = None if problem.handed else "the plan is of a problem without batch statistics"
        return (
            Operand("grad_out", problem.shape, problem.dtype),
            Operand("x", problem.shape, problem.dtype),
            Operand("weight", *vector, optional=True),
            Operand("running_mean", *vector, optional=problem.training),
            Operand("running_var", *vector, optional=problem.training),
            Operand("batch_mean", *vector, optional=not problem.handed, absent=not_handed),
            Operand("batch_var", *vector, optional=not problem.handed, absent=not_handed),
            Operand("grad_input", problem.shape, problem.dtype, output=True, in_place=("grad_out", "x")),
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


@kept
def plan_of(
    device: Device, shape: tuple[int, ...], dtype: Any, training: Any, eps: Any, momentum: Any, running: bool
) -> BatchNormPlan:
    problem = BatchNormDescriptor(shape, training, dtype, eps, momentum, running)
    plan: BatchNormPlan = BatchNormPlan.select(device, problem)
    return plan


@kept
def backward_plan_of(
    device: Device, shape: tuple[int, ...], dtype: Any, training: Any, eps: Any, handed: bool
) -> BatchNormBackwardPlan:
    problem = BatchNormBackwardDescriptor(shape, training, dtype, eps, handed)
    plan: BatchNormBackwardPlan = BatchNormBackwardPlan.select(device, problem)
    return plan


def batch_norm(
    x: Any,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    *,
    training: bool,
    momentum: float = 0.1,
    eps: float = 1e-5,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Normalise each channel to mean 0 and deviation 1, then scale and shift.

    ``y[n, c, p] = (x[n, c, p] - mean[c]) / sqrt(var[c] + eps) * weight[c] + bias[c]`` (Ioffe and Szegedy, Batch
    Normalization, 2015). In training, mean and biased variance are those of the channel's M values, over the batch and
    all positions, and the running statistics, where given, are updated in place on the device:
    ``running = (1 - momentum) * running + momentum * batch``, with the unbiased variance, M / (M - 1) of the biased
    one. In eval, the running statistics are the mean and the variance.

    Parameters
    ----------
    x
        ``[N, C, *]``, float32, contiguous; at least two values a channel in training.
    weight, bias
        ``[C]``, float32, or None for ones and zeros.
    running_mean, running_var
        ``[C]``, float32; both or neither, and both in eval.
    training
        True or False.
    momentum
        From 0 to 1; only training uses it.
    eps
        Added to the variance.
    out
        Where to write, (y, batch_mean, batch_var), each of which may be None; y may be x.
    stream
        The device's default stream if left out.

    Returns
    -------
    tuple
        (y, batch_mean, batch_var): of x's shape, and ``[C]`` each, the variance biased. The last two are None in eval.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    if x.__class__ is not DeviceArray:
        x = as_array(x, None, "batch_norm", "x", stream)
    results = unpacked_out(out, ("y", "batch_mean", "batch_var"), "batch_norm")
    running = _both("batch_norm", running_mean, running_var, "running")
    if training is False:
        _needed("batch_norm", running)
    plan = plan_of(x.device, x.shape, x.dtype, training, eps, momentum, running)
    return plan.run((x, weight, bias, running_mean, running_var, *results), stream)


def batch_norm_backward(
    grad_out: Any,
    x: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    *,
    training: bool,
    eps: float = 1e-5,
    batch_mean: Any = None,
    batch_var: Any = None,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Return the gradients of :func:`batch_norm`.

    With ``sum_go = sum(grad_out)``, ``dot = sum((x - mean) * grad_out)``, ``inv = 1 / sqrt(var + eps)`` of each channel
    (Ioffe and Szegedy, Batch Normalization, 2015, section 3)::

        grad_input  = (grad_out - sum_go / M - (x - mean) * dot / M * inv**2) * inv * weight    in training
        grad_input  = grad_out * inv * weight                                                   in eval
        grad_weight = dot * inv        grad_bias = sum_go

    Parameters
    ----------
    grad_out, x
        ``[N, C, *]``, float32, contiguous; x is what went into batch_norm.
    weight
        ``[C]``, float32, or None for ones.
    running_mean, running_var
        ``[C]``, float32; both or neither. Eval reads them, as they were in the forward; training does not.
    training
        True or False, as in the forward.
    eps
        As in the forward.
    batch_mean, batch_var
        ``[C]``, float32, what the forward returned; both or neither, in training only. Without them they are computed
        anew.
    out
        Where to write, (grad_input, grad_weight, grad_bias), each of which may be None; grad_input may be grad_out
        or x.
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
    """
    op = "batch_norm_backward"
    if grad_out.__class__ is not DeviceArray:
        grad_out = as_array(grad_out, None, op, "grad_out", stream)
    results = unpacked_out(out, ("grad_input", "grad_weight", "grad_bias"), op)
    running = _both(op, running_mean, running_var, "running")
    handed = _both(op, batch_mean, batch_var, "batch")
    if training is False:
        _needed(op, running)
        if handed:
            raise InvalidArgument(
                op=op,
                argument="batch_mean",
                expected="None, since eval has no batch statistics",
                given=repr(batch_mean),
            )
    plan = backward_plan_of(grad_out.device, grad_out.shape, grad_out.dtype, training, eps, handed)
    return plan.run((grad_out, x, weight, running_mean, running_var, batch_mean, batch_var, *results), stream)
