"""Problems of batch_norm and its backward, and the kernels of its main file."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import InvalidArgument, ShapeMismatch, shown
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Argument,
    F64Sums,
    ImageDescriptor,
    KernelFamily,
    KernelSpec,
    Refusal,
    Role,
    blocks_in_hip,
    number,
    parameter_type,
)

__all__ = [
    "BACKWARD_IN_ONE",
    "FAMILY",
    "IN_ONE",
    "BatchNormBackwardDescriptor",
    "BatchNormDescriptor",
    "Geometry",
    "Problem",
]

_SIZES = "u32 batch, u32 channels, u32 hw"
_TILES = "u32 slices, u32 images, u32 group, u32 lanes"
_CUT = "u32 slices, u64 values"
_VECTORS = "const P*? w_ptr, const P*? b_ptr"
_HANDED = "const P* mean_ptr, const P* var_ptr"
_INPUTS = "const T* in_ptr, const T* go_ptr"
_GRADIENTS = f"{_INPUTS}, T* gi_ptr, P*? gw_ptr, P*? gb_ptr, const P*? w_ptr"
IN_ONE = (
    f"const T* in_ptr, T* out_ptr, {_VECTORS}, P* mean_ptr, P* var_ptr, P*? rmean_ptr, P*? rvar_ptr, {_SIZES}, "
    "P eps, P momentum"
)
"""Parameters of kernels that compute the statistics and write, and of their backward."""
BACKWARD_IN_ONE = f"{_GRADIENTS}, const P*? mean_ptr, const P*? var_ptr, {_SIZES}, P eps"
_SIGNATURES = {
    "kernel": f"const T* in_ptr, T* out_ptr, {_VECTORS}, P* mean_ptr, P* var_ptr, {_SIZES}, P eps, u32 training",
    "running": f"{_HANDED}, P* rmean_ptr, P* rvar_ptr, {_SIZES}, P momentum",
    "partial": f"const T* in_ptr, f64* sums_ptr, {_SIZES}, {_CUT}",
    "columns": f"const T* in_ptr, f64* sums_ptr, {_SIZES}, {_TILES}",
    "finish": "const T* in_ptr, const P*? w_ptr, P* mean_ptr, P* var_ptr, P*? rmean_ptr, P*? rvar_ptr, "
    f"const P*? b_ptr, f64* coefficients_ptr, const f64* sums_ptr, {_SIZES}, P eps, P momentum, u32 slices",
    "apply": f"const T* in_ptr, T* out_ptr, const f64* coefficients_ptr, {_SIZES}, u32 images",
    "eval": f"const T* in_ptr, T* out_ptr, {_VECTORS}, {_HANDED}, {_SIZES}, P eps, u32 images",
    "eval_rows": f"const T* in_ptr, T* out_ptr, {_VECTORS}, {_HANDED}, {_SIZES}, P eps, u32 images",
    "backward_kernel": f"{_GRADIENTS}, const P*? rmean_ptr, const P*? rvar_ptr, {_SIZES}, P eps, u32 training",
    "backward_handed_kernel": f"{_GRADIENTS}, {_HANDED}, {_SIZES}, P eps",
    "backward_partial": f"{_INPUTS}, const P*? mean_ptr, f64* sums_ptr, {_SIZES}, {_CUT}",
    "backward_columns": f"{_INPUTS}, const P*? mean_ptr, f64* sums_ptr, {_SIZES}, {_TILES}",
    "backward_finish": "const T* in_ptr, const P*? w_ptr, const P*? mean_ptr, const P*? var_ptr, P*? gw_ptr, "
    f"P*? gb_ptr, f64* coefficients_ptr, const f64* sums_ptr, {_SIZES}, P eps, u32 slices",
    "backward_apply": f"{_INPUTS}, T* gi_ptr, const f64* coefficients_ptr, {_SIZES}, u32 images",
    "backward_eval": f"{_INPUTS}, T* gi_ptr, const P*? w_ptr, {_HANDED}, f64* sums_ptr, {_SIZES}, P eps, {_CUT}",
    "backward_eval_columns": f"{_INPUTS}, T* gi_ptr, const P*? w_ptr, {_HANDED}, f64* sums_ptr, {_SIZES}, P eps, "
    f"{_TILES}",
    "backward_eval_finish": f"{_HANDED}, P*? gw_ptr, P*? gb_ptr, const f64* sums_ptr, {_SIZES}, P eps, u32 slices",
}
_IN_HIP = (
    "kernel",
    "running",
    "eval",
    "backward_kernel",
    "backward_handed_kernel",
    "backward_eval",
    "backward_eval_finish",
)
FAMILY = KernelFamily(
    "batch_norm",
    ("f32", "f16", "bf16", "f64"),
    {f"batch_norm_{name}": Role(signature, hip=name in _IN_HIP) for name, signature in _SIGNATURES.items()},
    targets=ROUNDING_TARGETS,
)


class Geometry(F64Sums, ImageDescriptor):
    """Mixin of a descriptor: the values of a channel, as the kernels go through them."""

    @property
    def count(self) -> int:
        """M, the values of a channel."""
        return self.batch * self.hw

    @property
    def sizes(self) -> tuple[int, int, int]:
        """As the kernels take them."""
        return self.batch, self.channels, self.hw

    @property
    def places(self) -> int:
        """Of an image, that a block takes where channels lie side by side."""
        return 1024 // self.parts

    @property
    def side_by_side(self) -> int:
        """Threads of such a block, which have a vector each."""
        return self.places // self.vector


@dataclass(frozen=True)
class Problem(Geometry):
    """What both directions' descriptors have."""

    shape: tuple[int, ...]
    training: bool
    dtype: ElementType = BY_NAME["f32"]
    eps: float = 1e-5

    types = FAMILY.dtypes
    least: ClassVar[int] = 2  # values a channel, in training
    arrays: ClassVar[int]  # of x's shape, that the sums are of

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.training.__class__ is not bool:
            raise InvalidArgument(op=self.op, argument="training", expected="True or False", given=shown(self.training))
        if self.training and self.count < self.least:
            raise ShapeMismatch(
                op=self.op,
                argument=self.first,
                expected="at least two values a channel in training",
                given=f"{self.shape}, which has {self.count}",
                fix="One value has no variance; training=False reads the running statistics",
            )
        self._set(eps=number(self.eps, self.op, "eps", parameter_type(self.dtype)))

    @property
    def without_statistics(self) -> Refusal | None:
        """In eval, the answer of a variant that computes them."""
        return None if self.training else Refusal("has statistics to compute, and eval has none")

    def blocks(self, language: str) -> tuple[int]:
        """Return a grid of blocks of 256 threads, one a channel; in HIP they take turns where it launches no more."""
        return (blocks_in_hip(256 * self.channels, 256) if language == "hip" else self.channels,)

    def kernel(self, name: str, language: str) -> KernelSpec:
        """Return an entry for this element type."""
        return FAMILY.kernel(f"batch_norm_{name}", self.dtype, language)


def _check_save(op: str, save: str) -> None:
    if save.__class__ is not str or save not in ("variance", "inverse_deviation"):
        expected = "'variance' or 'inverse_deviation'"
        raise InvalidArgument(op=op, argument="save", expected=expected, given=shown(save))


def _checked_momentum(momentum: float, kind: ElementType) -> float:
    """Return a momentum as a float; InvalidArgument for what is no number from 0 to 1."""
    try:
        found = number(momentum, "batch_norm", "momentum", kind)
    except InvalidArgument:
        found = math.inf  # refused by bounds that are not the momentum's
    if found > 1:
        expected = "a number from 0 to 1"
        raise InvalidArgument(op="batch_norm", argument="momentum", expected=expected, given=shown(momentum))
    return found


@dataclass(frozen=True)
class BatchNormDescriptor(Problem):
    """A problem of batch_norm: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, ``[N, C, *]``; in training N times the product of the trailing axes is at least 2.
    training
        Whether the statistics are those of x, or the running ones.
    dtype
        Of x and y.
    eps
        Added to the variance; finite and at least 0.
    momentum
        From 0 to 1: the weight of the batch in the running statistics. Outside of that they would be no average, and
        the running variance could fall below 0. None for the mean over all batches that were counted.
    running
        Whether there are running statistics; without training there must be.
    save
        What the third result is, ``"variance"`` or ``"inverse_deviation"``.
    counted
        Whether the batches are counted, on the device; in training with running statistics only.
    strides
        Of x and y, in elements: contiguous if left out, else that or channels-last.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch, LayoutError
    """

    op = "batch_norm"
    arrays = 1

    momentum: float | None = 0.1
    running: bool = True
    save: str = "variance"
    counted: bool = False
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum is not None:
            self._set(momentum=_checked_momentum(self.momentum, parameter_type(self.dtype)))
        if self.running.__class__ is not bool or not (self.running or self.training):
            raise InvalidArgument(
                op="batch_norm",
                argument="running",
                expected="True or False" if self.training else "True, since eval reads the running statistics",
                given=shown(self.running),
            )
        _check_save(self.op, self.save)
        updates = self.training and self.running
        if self.counted.__class__ is not bool or (self.counted and not updates):
            raise InvalidArgument(
                op="batch_norm",
                argument="batches",
                expected="an array or None" if updates else "None, since only training with running statistics counts",
                given="an array" if self.counted is True else shown(self.counted),
            )
        if self.momentum is None and not self.counted:
            raise InvalidArgument(
                op="batch_norm",
                argument="batches" if updates else "momentum",
                expected="an int64 array that counts the batches, since momentum is None"
                if updates
                else "a number, since only training with running statistics has a mean over all batches",
                given="None",
            )

    @property
    def updated(self) -> tuple[Argument, Argument, float]:
        """The running statistics that the main kernels update, and the momentum; nulls where another launch does."""
        return (0, 0, 0.0) if self.momentum is None else ("running_mean", "running_var", self.momentum)

    @property
    def in_one(self) -> tuple[Argument, ...]:
        """The arrays of a kernel that computes the statistics and writes."""
        return "x", "y", "weight", "bias", "batch_mean", "batch_var", *self.updated[:2]


@dataclass(frozen=True)
class BatchNormBackwardDescriptor(Problem):
    """A problem of batch_norm_backward: pure data, hashable.

    Parameters
    ----------
    shape, training, dtype, eps
        As in :class:`BatchNormDescriptor`.
    handed
        Whether the batch statistics are given; in training only.
    save
        What is given beside the mean, as in :class:`BatchNormDescriptor`.
    strides
        Of grad_out, x and grad_input, in elements: contiguous if left out, else that or channels-last.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch, LayoutError
    """

    op = "batch_norm_backward"
    first = "grad_out"
    arrays = 2

    handed: bool = False
    save: str = "variance"
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.handed.__class__ is not bool or (self.handed and not self.training):
            raise InvalidArgument(
                op="batch_norm_backward",
                argument="handed",
                expected="True or False" if self.training else "False, since eval has no batch statistics",
                given=shown(self.handed),
            )
        _check_save(self.op, self.save)

    @property
    def mean_and_var(self) -> tuple[str, str]:
        """Operands that the statistics are in; where there are none, their place is null."""
        return ("batch_mean", "batch_var") if self.training else ("running_mean", "running_var")
