"""rms_norm and its backward: divide each row, the last axes of an array, by its root mean square."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ptxrt.ops._rms_norm_apart import FAMILY as APART
from ptxrt.ops._rms_norm_few import FAMILY as FEW
from ptxrt.ops._rms_norm_held import FAMILY as HELD
from ptxrt.ops._rms_norm_streamed import FAMILY as STREAMED
from ptxrt.ops._rms_norm_together import FAMILY as TOGETHER
from ptxrt.ops.framework.rows import RowsBackward, RowsDescriptor, RowsPlan, rows_family
from ptxrt.ops.framework.rows_few import ApartBackward, FewBackward
from ptxrt.ops.framework.rows_held import HeldBackward, HeldWarpsBackward, forward_variants
from ptxrt.ops.framework.rows_streamed import StreamedBackward, StreamedForward
from ptxrt.ops.framework.rows_together import TogetherForward
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

FAMILY = rows_family(
    "rms_norm",
    kernel="const T* in_ptr, T* out_ptr, const P*? w_ptr, u64 rows, u64 width, P eps",
    backward_columns_kernel="const T* in_ptr, const T* go_ptr, const f64* statistics_ptr, f64* partials_ptr, "
    "const P*? gw_ptr, u64 rows, u64 width, u64 slices, u64 length",
    backward_parameters_kernel="const f64* partials_ptr, P*? gw_ptr, u64 width, u64 slices",
)


@dataclass(frozen=True)
class RmsNormDescriptor(RowsDescriptor):
    """A problem of rms_norm: shape and dtype of x, and as the function has them `normalized_shape` and `eps`."""

    eps: float = 1e-6

    op = "rms_norm"


class RmsNormBackwardDescriptor(RmsNormDescriptor):
    """A problem of rms_norm_backward; its fields are those of :class:`RmsNormDescriptor`."""

    op = "rms_norm_backward"


class RmsNormArgs(NamedTuple):
    """Operands of :class:`RmsNormPlan`; without `out` the result is allocated."""

    x: DeviceArrayLike
    weight: DeviceArrayLike | None = None
    out: DeviceArrayLike | None = None


class RmsNormBackwardArgs(NamedTuple):
    """Operands of :class:`RmsNormBackwardPlan`; results that are left out are allocated."""

    grad_out: DeviceArrayLike
    x: DeviceArrayLike
    weight: DeviceArrayLike | None = None
    grad_input: DeviceArrayLike | None = None
    grad_weight: DeviceArrayLike | None = None


class RmsNormGradients(NamedTuple):
    """What :func:`rms_norm_backward` returns; `grad_weight` is None where there is no weight."""

    grad_input: DeviceArray
    grad_weight: DeviceArray | None


class RmsNormPlan(RowsPlan[RmsNormDescriptor, RmsNormArgs, DeviceArray]):
    """Plan of :func:`rms_norm`; run it with :class:`RmsNormArgs`."""

    variants = (StreamedForward(STREAMED), TogetherForward(TOGETHER), *forward_variants(FAMILY, HELD))


class RmsNormBackwardPlan(RowsPlan[RmsNormBackwardDescriptor, RmsNormBackwardArgs, RmsNormGradients]):
    """Plan of :func:`rms_norm_backward`; run it with :class:`RmsNormBackwardArgs`."""

    variants = (
        FewBackward(FEW, 1),
        HeldWarpsBackward(HELD, 1),
        StreamedBackward(STREAMED, 1),
        HeldBackward(HELD, 1),
        RowsBackward(FAMILY, 1),
        ApartBackward(APART),
        HeldWarpsBackward(HELD, 1, "hip"),
        HeldBackward(HELD, 1, "hip"),
        RowsBackward(FAMILY, 1, "hip"),
    )


def rms_norm(
    x: DeviceArrayLike,
    normalized_shape: int | Sequence[int],
    weight: DeviceArrayLike | None = None,
    eps: float = 1e-6,
    *,
    out: DeviceArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Divide each row, the last axes of x, by its root mean square, then scale.

    ``y = x / sqrt(mean(x^2) + eps) * weight`` (Zhang and Sennrich, Root Mean Square Layer Normalization, 2019).

    Parameters
    ----------
    x
        Of any shape, float32, float64, float16 or bfloat16, contiguous.
    normalized_shape
        The last axes of x, at least one; an int for one.
    weight
        Of `normalized_shape`, or None for ones; float64 where x is, float32 for the rest.
    eps
        Added to the mean square; finite and at least 0.
    out
        Where to write, of x's shape; it may be x.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        y, of x's shape; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    x, plan = RmsNormPlan.of(x, normalized_shape, eps, stream)
    return plan._run((x, weight, out), stream)


def rms_norm_backward(
    grad_out: DeviceArrayLike,
    x: DeviceArrayLike,
    normalized_shape: int | Sequence[int],
    weight: DeviceArrayLike | None = None,
    eps: float = 1e-6,
    *,
    out: Sequence[DeviceArrayLike | None] | None = None,
    stream: StreamLike | None = None,
) -> RmsNormGradients:
    """Return the gradients of :func:`rms_norm`, which has the same checks and errors.

    With ``inv = 1 / sqrt(mean(x^2) + eps)`` and ``d = grad_out * weight``, by the chain rule::

        grad_input = (d - x * inv^2 * mean(d * x)) * inv        mean over the row
        grad_weight = sum of grad_out * x * inv                 over all rows

    Parameters
    ----------
    grad_out, x, normalized_shape, weight, eps, stream
        As of :func:`rms_norm`; grad_out has x's shape and type.
    out
        (grad_input, grad_weight): where to write, no input among it, or None to allocate it.

    Returns
    -------
    tuple
        (grad_input, grad_weight): of x's shape and type, and of weight's; grad_weight is None if weight is.
    """
    outputs = RmsNormBackwardPlan.unpacked(out)
    x, plan = RmsNormBackwardPlan.of(x, normalized_shape, eps, stream)
    return plan._run((grad_out, x, weight, *outputs), stream)
