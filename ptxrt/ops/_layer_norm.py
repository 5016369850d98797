"""layer_norm and its backward: normalise each row, the last axes of an array, to mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ptxrt.ops._layer_norm_apart import FAMILY as APART
from ptxrt.ops._layer_norm_few import FAMILY as FEW
from ptxrt.ops._layer_norm_held import FAMILY as HELD
from ptxrt.ops._layer_norm_streamed import FAMILY as STREAMED
from ptxrt.ops._layer_norm_together import FAMILY as TOGETHER
from ptxrt.ops.framework.rows import RowsBackward, RowsDescriptor, RowsPlan, rows_family
from ptxrt.ops.framework.rows_few import ApartBackward, FewBackward
from ptxrt.ops.framework.rows_held import HeldBackward, HeldWarpsBackward, forward_variants
from ptxrt.ops.framework.rows_streamed import StreamedBackward, StreamedForward
from ptxrt.ops.framework.rows_together import TogetherForward
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

FAMILY = rows_family(
    "layer_norm",
    kernel="const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, u64 rows, u64 width, P eps",
    backward_columns_kernel="const T* in_ptr, const T* go_ptr, const f64* statistics_ptr, f64* partials_ptr, "
    "u64 rows, u64 width, u64 slices, u64 length",
    backward_parameters_kernel="const f64* partials_ptr, P*? gw_ptr, P* gb_ptr, u64 width, u64 slices",
)


class LayerNormDescriptor(RowsDescriptor):
    """A problem of layer_norm: shape and dtype of x, and as the function has them `normalized_shape` and `eps`."""

    op = "layer_norm"


class LayerNormBackwardDescriptor(LayerNormDescriptor):
    """A problem of layer_norm_backward; its fields are those of :class:`LayerNormDescriptor`."""

    op = "layer_norm_backward"


class LayerNormArgs(NamedTuple):
    """Operands of :class:`LayerNormPlan`; without `out` the result is allocated."""

    x: DeviceArrayLike
    weight: DeviceArrayLike | None = None
    bias: DeviceArrayLike | None = None
    out: DeviceArrayLike | None = None


class LayerNormBackwardArgs(NamedTuple):
    """Operands of :class:`LayerNormBackwardPlan`; results that are left out are allocated."""

    grad_out: DeviceArrayLike
    x: DeviceArrayLike
    weight: DeviceArrayLike | None = None
    grad_input: DeviceArrayLike | None = None
    grad_weight: DeviceArrayLike | None = None
    grad_bias: DeviceArrayLike | None = None


class LayerNormGradients(NamedTuple):
    """What :func:`layer_norm_backward` returns; `grad_weight` is None where there is no weight."""

    grad_input: DeviceArray
    grad_weight: DeviceArray | None
    grad_bias: DeviceArray


class LayerNormPlan(RowsPlan[LayerNormDescriptor, LayerNormArgs, DeviceArray]):
    """Plan of :func:`layer_norm`; run it with :class:`LayerNormArgs`."""

    variants = (StreamedForward(STREAMED), TogetherForward(TOGETHER), *forward_variants(FAMILY, HELD))


class LayerNormBackwardPlan(RowsPlan[LayerNormBackwardDescriptor, LayerNormBackwardArgs, LayerNormGradients]):
    """Plan of :func:`layer_norm_backward`; run it with :class:`LayerNormBackwardArgs`."""

    variants = (
        FewBackward(FEW, 2),
        HeldWarpsBackward(HELD, 2),
        StreamedBackward(STREAMED, 2),
        HeldBackward(HELD, 2),
        RowsBackward(FAMILY, 2),
        ApartBackward(APART),
        HeldWarpsBackward(HELD, 2, "hip"),
        HeldBackward(HELD, 2, "hip"),
        RowsBackward(FAMILY, 2, "hip"),
    )


def layer_norm(
    x: DeviceArrayLike,
    normalized_shape: int | Sequence[int],
    weight: DeviceArrayLike | None = None,
    bias: DeviceArrayLike | None = None,
    eps: float = 1e-5,
    *,
    out: DeviceArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Normalise each row, the last axes of x, to mean 0 and deviation 1, then scale and shift.

    ``y = (x - mean) / sqrt(var + eps) * weight + bias``, var biased (Ba, Kiros and Hinton, Layer Normalization, 2016).

    Parameters
    ----------
    x
        Of any shape, float32, float64, float16 or bfloat16, contiguous.
    normalized_shape
        The last axes of x, at least one; an int for one.
    weight, bias
        Of `normalized_shape`, or None for ones and zeros; float64 where x is, float32 for the rest.
    eps
        Added to the variance; finite and at least 0.
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
    x, plan = LayerNormPlan.of(x, normalized_shape, eps, stream)
    return plan._run((x, weight, bias, out), stream)


def layer_norm_backward(
    grad_out: DeviceArrayLike,
    x: DeviceArrayLike,
    normalized_shape: int | Sequence[int],
    weight: DeviceArrayLike | None = None,
    eps: float = 1e-5,
    *,
    out: Sequence[DeviceArrayLike | None] | None = None,
    stream: StreamLike | None = None,
) -> LayerNormGradients:
    """Return the gradients of :func:`layer_norm`, which has the same checks and errors.

    With ``inv = 1 / sqrt(var + eps)``, ``xhat = (x - mean) * inv`` and ``d = grad_out * weight``, by the chain rule::

        grad_input = (d - mean(d) - xhat * mean(d * xhat)) * inv        means over the row
        grad_weight = sum of grad_out * xhat                            over all rows
        grad_bias = sum of grad_out

    Parameters
    ----------
    grad_out, x, normalized_shape, weight, eps, stream
        As of :func:`layer_norm`; grad_out has x's shape and type.
    out
        (grad_input, grad_weight, grad_bias): where to write, no input among it, or None to allocate it.

    Returns
    -------
    tuple
        (grad_input, grad_weight, grad_bias): of x's shape and type, and twice of a weight's; grad_weight is None if
        weight is.
    """
    outputs = LayerNormBackwardPlan.unpacked(out)
    x, plan = LayerNormBackwardPlan.of(x, normalized_shape, eps, stream)
    return plan._run((grad_out, x, weight, *outputs), stream)
