"""The CPU references of the ops: NumPy, slow, in at least twice the precision of the kernels.

Every function has the argument names of its namesake in ``ptxrt.ops``, takes NumPy arrays of any float type (bfloat16
too) and leaves them as they are. Work and results are float64, or longdouble where the first operand (x, or grad_out)
is float64 or longdouble; only ``upsample_nearest2d``, which moves elements and computes none, keeps the element type.
Statistics, denom and y enter as handed, whatever their type.

Float scalars (eps, alpha, beta, k, momentum) enter as a kernel receives them: rounded to float32, unless the work is in
longdouble. Otherwise a large part of the error bar would go to the rounding of ``eps`` where the variance is small.

Statistics are two-pass. A ``ValueError`` is raised for what the ops refuse.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

__all__ = [
    "batch_norm",
    "batch_norm_backward",
    "grid_sample",
    "grid_sample_backward",
    "grid_sample_coordinates",
    "group_norm",
    "group_norm_backward",
    "layer_norm",
    "layer_norm_backward",
    "local_response_norm",
    "local_response_norm_backward",
    "nearest_source_indices",
    "rms_norm",
    "rms_norm_backward",
    "softmax2d",
    "softmax2d_backward",
    "updated_running_statistics",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
    "work_dtype",
]


def work_dtype(operand: Array) -> np.dtype[Any]:
    """Return the type that the work is done in: longdouble for a float64 or longdouble operand, else float64."""
    return np.dtype(np.longdouble if operand.dtype in (np.float64, np.longdouble) else np.float64)


def _scalar(value: float, work: np.dtype[Any]) -> Any:
    """Return a scalar parameter as the kernel gets it, in the work type."""
    return work.type(np.float32(value)) if work == np.float64 else work.type(value)


def _two_pass(values: Array) -> tuple[Any, Any]:
    """Return mean and biased variance of all values: ``sum(v)/n``, then ``sum((v - mean)^2)/n``."""
    mean = values.sum() / values.size
    return mean, ((values - mean) ** 2).sum() / values.size


def _parameter(values: Array | None, channels: int, identity: float, work: np.dtype[Any]) -> Array:
    """Return weight or bias in the work type, with None read as the identity."""
    return np.full(channels, identity, work) if values is None else values.astype(work)


def group_norm(x: Array, weight: Array | None, bias: Array | None, groups: int, eps: float = 1e-5) -> Array:
    """Group normalization of ``x`` [N, C, \\*].

    ``y = weight[c] * (x - mean) / sqrt(var + eps) + bias[c]``, mean and biased variance over the ``C/groups`` channels
    of a group and all positions, for every image by itself.

    Returns
    -------
    Array
        y, shaped as x.
    """
    work = work_dtype(x)
    channels = x.shape[1]
    if channels % groups:
        raise ValueError(f"groups ({groups}) must divide the channels ({channels})")
    w, b = _parameter(weight, channels, 1, work), _parameter(bias, channels, 0, work)
    values = x.astype(work)
    y = np.zeros(x.shape, work)
    if x.size == 0:
        return y
    per_group = channels // groups
    for image in range(x.shape[0]):
        for group in range(groups):
            own = range(group * per_group, (group + 1) * per_group)
            mean, var = _two_pass(values[image, own])
            for c in own:
                y[image, c] = w[c] * (values[image, c] - mean) / np.sqrt(var + _scalar(eps, work)) + b[c]
    return y


def group_norm_backward(
    grad_out: Array, x: Array, weight: Array | None, groups: int, eps: float = 1e-5
) -> tuple[Array, Array | None, Array]:
    """Gradients of `group_norm`.

    With ``xhat = (x - mean) / sqrt(var + eps)`` and ``d = grad_out * weight[c]``::

        grad_input  = (d - mean(d) - xhat * mean(d * xhat)) / sqrt(var + eps)      means over the group
        grad_weight = sum over n, p of grad_out * xhat
        grad_bias   = sum over n, p of grad_out

    Returns
    -------
    tuple
        (grad_input, grad_weight, grad_bias); grad_weight is None where weight is. grad_bias always comes, because the
        bias itself is no argument.
    """
    work = work_dtype(grad_out)
    channels = x.shape[1]
    if channels % groups:
        raise ValueError(f"groups ({groups}) must divide the channels ({channels})")
    w = _parameter(weight, channels, 1, work)
    values, go = x.astype(work), grad_out.astype(work)
    grad_input, grad_weight, grad_bias = np.zeros(x.shape, work), np.zeros(channels, work), np.zeros(channels, work)
    per_group = channels // groups
    for image in range(x.shape[0] if x.size else 0):
        for group in range(groups):
            own = range(group * per_group, (group + 1) * per_group)
            mean, var = _two_pass(values[image, own])
            inv = 1 / np.sqrt(var + _scalar(eps, work))
            xhat = {c: (values[image, c] - mean) * inv for c in own}
            d = {c: go[image, c] * w[c] for c in own}
            count = values[image, own].size
            mean_d = sum(d[c].sum() for c in own) / count
            mean_d_xhat = sum((d[c] * xhat[c]).sum() for c in own) / count
            for c in own:
                grad_input[image, c] = (d[c] - mean_d - xhat[c] * mean_d_xhat) * inv
                grad_weight[c] += (go[image, c] * xhat[c]).sum()
                grad_bias[c] += go[image, c].sum()
    return grad_input, None if weight is None else grad_weight, grad_bias


def _axes(normalized_shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)


def _rows(x: Array, normalized_shape: int | tuple[int, ...], *others: Array | None) -> list[Any]:
    """Return ``[rows, D]`` of x and the others in x's work type, a row being the last axes; ones in place of None."""
    axes = _axes(normalized_shape)
    if not axes or x.shape[-len(axes) :] != axes:
        raise ValueError(f"the last axes of {x.shape} are not {axes}")
    work, width = work_dtype(x), math.prod(axes)
    ones = np.ones((1, width), work)
    shape = x.size // width if width else 0, width
    return [
        ones if a is None else a.astype(work).reshape(shape if a.shape == x.shape else (1, width)) for a in (x, *others)
    ]


def layer_norm(
    x: Array,
    normalized_shape: int | tuple[int, ...],
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 1e-5,
) -> Array:
    """Layer normalization of ``x`` over its last axes: ``(x - mean) / sqrt(var + eps) * weight + bias``, var biased.

    Returns
    -------
    Array
        y, shaped as x.
    """
    values, w = _rows(x, normalized_shape, weight)
    b = 0 if bias is None else bias.astype(values.dtype).reshape(1, -1)
    return np.asarray(_standardised(values, eps)[0] * w + b).reshape(x.shape)


def _standardised(values: Array, eps: float) -> tuple[Array, Array]:
    """Return ``(x - mean) * inv`` of each row, and inv, which is ``1 / sqrt(var + eps)``."""
    statistics = [_two_pass(row) if row.size else (0, 1) for row in values]
    mean, var = (np.array([each[i] for each in statistics], values.dtype).reshape(-1, 1) for i in (0, 1))
    inv = 1 / np.sqrt(var + _scalar(eps, values.dtype))
    return (values - mean) * inv, inv


def layer_norm_backward(
    grad_out: Array, x: Array, normalized_shape: int | tuple[int, ...], weight: Array | None = None, eps: float = 1e-5
) -> tuple[Array, Array | None, Array]:
    """Gradients of `layer_norm`.

    With ``xhat = (x - mean) * inv``, ``inv = 1 / sqrt(var + eps)`` and ``d = grad_out * weight``::

        grad_input  = (d - mean(d) - xhat * mean(d * xhat)) * inv      means over the row
        grad_weight = sum of grad_out * xhat                           over all rows
        grad_bias   = sum of grad_out

    Returns
    -------
    tuple
        (grad_input, grad_weight, grad_bias); grad_weight is None where weight is.
    """
    values, go, w = _rows(x, normalized_shape, grad_out, weight)
    xhat, inv = _standardised(values, eps)
    d, n = go * w, max(values.shape[1], 1)
    means = (a.sum(axis=1, keepdims=True) / n for a in (d, d * xhat))
    grad_input = (d - next(means) - xhat * next(means)) * inv
    grad_weight = None if weight is None else (go * xhat).sum(axis=0).reshape(weight.shape)
    return grad_input.reshape(x.shape), grad_weight, go.sum(axis=0).reshape(_axes(normalized_shape))


def rms_norm(
    x: Array, normalized_shape: int | tuple[int, ...], weight: Array | None = None, eps: float = 1e-6
) -> Array:
    """Divide ``x`` by the root mean square over its last axes: ``x / sqrt(mean(x^2) + eps) * weight``.

    Returns
    -------
    Array
        y, shaped as x.
    """
    values, w = _rows(x, normalized_shape, weight)
    return np.asarray(values * _inverse_rms(values, eps) * w).reshape(x.shape)


def _inverse_rms(values: Array, eps: float) -> Array:
    mean = (values**2).sum(axis=1, keepdims=True) / max(values.shape[1], 1)
    return np.asarray(1 / np.sqrt(mean + _scalar(eps, values.dtype)))


def rms_norm_backward(
    grad_out: Array, x: Array, normalized_shape: int | tuple[int, ...], weight: Array | None = None, eps: float = 1e-6
) -> tuple[Array, Array | None]:
    """Gradients of `rms_norm`.

    With ``inv = 1 / sqrt(mean(x^2) + eps)`` and ``d = grad_out * weight``::

        grad_input  = (d - x * inv^2 * mean(d * x)) * inv      means over the row
        grad_weight = sum of grad_out * x * inv                over all rows

    Returns
    -------
    tuple
        (grad_input, grad_weight); grad_weight is None where weight is.
    """
    values, go, w = _rows(x, normalized_shape, grad_out, weight)
    inv, d = _inverse_rms(values, eps), go * w
    mean = (d * values).sum(axis=1, keepdims=True) / max(values.shape[1], 1)
    grad_input = (d - values * inv**2 * mean) * inv
    grad_weight = None if weight is None else (go * values * inv).sum(axis=0).reshape(weight.shape)
    return grad_input.reshape(x.shape), grad_weight


def softmax2d(x: Array) -> Array:
    """Softmax over dimension 1 of ``x`` [N, C, \\*]: ``y = exp(x - max) / sum exp(x - max)``.

    A column of -inf, or with a NaN or +inf in it, is NaN in all of its channels, as with torch.softmax.
    """
    work = work_dtype(x)
    if x.size == 0:
        return np.zeros(x.shape, work)
    values = x.astype(work)
    with np.errstate(invalid="ignore"):
        e = np.exp(values - values.max(axis=1, keepdims=True))
        return np.asarray(e / e.sum(axis=1, keepdims=True))


def softmax2d_backward(grad_out: Array, y: Array) -> Array:
    """Gradient of `softmax2d` from its output: ``y * (grad_out - sum_c grad_out * y)``.

    Gradients that differ by less than they are large cancel here: so channel 0's is subtracted from all of them first,
    ``go = k + d``, and then ``go - sum(go * y) = d - sum(d * y) + k * (1 - sum(y))``.
    """
    work = work_dtype(grad_out)
    go, out = grad_out.astype(work), y.astype(work)
    finite = (np.isfinite(go) & np.isfinite(out)).all(axis=1, keepdims=True)
    k, lacking = np.where(finite, go[:, :1], 0), np.where(finite, 1 - out.sum(axis=1, keepdims=True), 0)
    d = go - k
    return np.asarray(out * (d - (d * out).sum(axis=1, keepdims=True) + k * lacking))


def _channel_count(x: Array, training: bool) -> int:
    """Return M, the values a channel has; refuse M < 2 in training."""
    count = int(math.prod((x.shape[0], *x.shape[2:])))
    if training and count < 2:
        raise ValueError(f"training needs at least 2 values a channel, not {count}")
    return count


def _channel_statistics(values: Array) -> tuple[Array, Array]:
    """Return two-pass mean and biased variance of every channel of [N, C, \\*]."""
    pairs = [_two_pass(values[:, c]) for c in range(values.shape[1])]
    return np.array([m for m, _ in pairs], values.dtype), np.array([v for _, v in pairs], values.dtype)


def batch_norm(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    *,
    training: bool,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    save: str = "variance",
) -> tuple[Array, Array | None, Array | None]:
    """Batch normalization of ``x`` [N, C, \\*].

    ``y = weight[c] * (x - mean[c]) / sqrt(var[c] + eps) + bias[c]``. In training, mean and biased variance are those of
    the M = N * HW values of the channel; in eval they are the running statistics, as handed.

    The op updates the running statistics in place; this function does not touch them (momentum is unused):
    `updated_running_statistics` says what they become.

    Returns
    -------
    tuple
        (y, batch_mean, batch_var), the last two None in eval; in place of the last ``1 / sqrt(var + eps)`` where `save`
        is ``"inverse_deviation"``.
    """
    del momentum
    work = work_dtype(x)
    channels = x.shape[1]
    _channel_count(x, training)
    w, b = _parameter(weight, channels, 1, work), _parameter(bias, channels, 0, work)
    values = x.astype(work)
    if training:
        mean, var = _channel_statistics(values)
    elif running_mean is None or running_var is None:
        raise ValueError("eval needs both running statistics")
    else:
        mean, var = running_mean.astype(work), running_var.astype(work)
    y = np.zeros(x.shape, work)
    for c in range(channels):
        y[:, c] = w[c] * (values[:, c] - mean[c]) / np.sqrt(var[c] + _scalar(eps, work)) + b[c]
    saved = 1 / np.sqrt(var + _scalar(eps, work)) if save == "inverse_deviation" else var
    return (y, mean, saved) if training else (y, None, None)


def updated_running_statistics(
    x: Array, running_mean: Array, running_var: Array, *, momentum: float | None = 0.1, batches: int = 0
) -> tuple[Array, Array]:
    """Return the running statistics after one training step of `batch_norm` on ``x``.

    ``r = (1 - momentum) * r + momentum * batch``, where the batch variance is the unbiased one (times M / (M - 1)). A
    momentum of None is 1 / `batches`, which counts this one.
    """
    work = work_dtype(x)
    count = _channel_count(x, training=True)
    mean, var = _channel_statistics(x.astype(work))
    m = 1 / work.type(batches) if momentum is None else _scalar(momentum, work)
    unbiased = var * count / (count - 1)
    return (1 - m) * running_mean.astype(work) + m * mean, (1 - m) * running_var.astype(work) + m * unbiased


def batch_norm_backward(
    grad_out: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    *,
    training: bool,
    eps: float = 1e-5,
    batch_mean: Array | None = None,
    batch_var: Array | None = None,
    save: str = "variance",
) -> tuple[Array, Array | None, Array]:
    """Gradients of `batch_norm`.

    With ``sum_go = sum go``, ``dot = sum (x - mean) * go``, ``inv = 1 / sqrt(var + eps)`` for each channel::

        training: grad_input = (go - (x - mean) * dot / M * inv^2 - sum_go / M) * inv * weight
        eval:     grad_input = go * inv * weight
        grad_weight = dot * inv        grad_bias = sum_go

    In training the batch statistics are those of x, or batch_mean and batch_var as handed where they are given;
    batch_var is inv where `save` is ``"inverse_deviation"``.

    Returns
    -------
    tuple
        (grad_input, grad_weight, grad_bias); grad_weight is None where weight is.
    """
    work = work_dtype(grad_out)
    channels = x.shape[1]
    count = _channel_count(x, training)
    w = _parameter(weight, channels, 1, work)
    values, go = x.astype(work), grad_out.astype(work)
    if (batch_mean is None) != (batch_var is None):
        raise ValueError("both batch statistics are given, or neither")
    if training and batch_mean is not None and batch_var is not None:
        mean, var = batch_mean.astype(work), batch_var.astype(work)
    elif training:
        mean, var = _channel_statistics(values)
    elif running_mean is None or running_var is None:
        raise ValueError("eval needs both running statistics")
    else:
        mean, var = running_mean.astype(work), running_var.astype(work)
    grad_input, grad_weight, grad_bias = np.zeros(x.shape, work), np.zeros(channels, work), np.zeros(channels, work)
    for c in range(channels):
        centred = values[:, c] - mean[c]
        inv = 1 / np.sqrt(var[c] + _scalar(eps, work))
        if save == "inverse_deviation" and batch_var is not None:
            inv = var[c]
        sum_go = go[:, c].sum()
        dot = (centred * go[:, c]).sum()
        if training:
            grad_input[:, c] = (go[:, c] - centred * dot / count * inv**2 - sum_go / count) * inv * w[c]
        else:
            grad_input[:, c] = go[:, c] * inv * w[c]
        grad_weight[c] = dot * inv
        grad_bias[c] = sum_go
    return grad_input, None if weight is None else grad_weight, grad_bias


def local_response_norm(
    x: Array, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> tuple[Array, Array]:
    """Local response normalization of ``x`` [N, C, \\*] over channels, by torch's rule.

    With ``half = size // 2`` and the window ``[c - half, c + size - half)`` clipped to ``[0, C)``::

        denom = sum of x^2 over the window / size * alpha + k        y = x * denom^-beta

    The division is by size at the edges too.

    Returns
    -------
    tuple
        (y, denom), both shaped as x.
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    work = work_dtype(x)
    a, b, offset = _scalar(alpha, work), _scalar(beta, work), _scalar(k, work)
    values = x.astype(work)
    channels, half = x.shape[1], size // 2
    denom = np.zeros(x.shape, work)
    for c in range(channels):
        window = range(max(c - half, 0), min(c + size - half, channels))
        denom[:, c] = (values[:, window] ** 2).sum(axis=1) / size * a + offset
    return values * denom ** (-b), denom


def local_response_norm_backward(
    grad_out: Array, x: Array, denom: Array, size: int, alpha: float = 1e-4, beta: float = 0.75
) -> Array:
    """Gradient of `local_response_norm` by x, from the denom of the forward, as handed.

    The outputs that read channel c are those of ``[c + 1 - (size - half), c + half + 1)`` clipped to ``[0, C)``::

        grad_input = go * denom^-beta - 2 * beta * alpha / size * x * sum over them of go * x * denom^(-beta - 1)
    """
    if size < 1:
        raise ValueError(f"size must be at least 1, not {size}")
    work = work_dtype(grad_out)
    a, b = _scalar(alpha, work), _scalar(beta, work)
    go, values, d = grad_out.astype(work), x.astype(work), denom.astype(work)
    channels, half = x.shape[1], size // 2
    term = go * values * d ** (-b - 1)
    grad_input = go * d ** (-b)
    for c in range(channels):
        window = range(max(c + 1 - (size - half), 0), min(c + half + 1, channels))
        grad_input[:, c] -= 2 * b * a / size * values[:, c] * term[:, window].sum(axis=1)
    return np.asarray(grad_input)


def nearest_source_indices(size_in: int, size_out: int) -> list[int]:
    """Return candle's source index of every output index along one axis.

    ``min(trunc(dst * scale), size_in - 1)`` with ``scale = size_in / size_out``, both operations in float64. No integer
    rule does for it: 30 -> 44 at 22 gives 14, where 22 * 30 // 44 is 15.
    """
    scale = float(size_in) / float(size_out)
    return [min(int(float(dst) * scale), size_in - 1) for dst in range(size_out)]


def upsample_nearest2d(x: Array, out_h: int, out_w: int) -> Array:
    """Nearest-neighbour resizing of ``x`` [N, C, H, W] to [N, C, out_h, out_w]; the element type stays the same.

    ``y[n, c, i, j] = x[n, c, rows[i], columns[j]]``, with rows and columns by `nearest_source_indices`.
    """
    height, width = x.shape[2:]
    if min(out_h, out_w) < 1:
        raise ValueError(f"target sizes must be at least 1, not {out_h} and {out_w}")
    if min(height, width) < 1:
        raise ValueError(f"an image of {height} x {width} has nothing to read")
    y = np.empty((*x.shape[:2], out_h, out_w), x.dtype)
    columns = nearest_source_indices(width, out_w)
    for i, row in enumerate(nearest_source_indices(height, out_h)):
        for j, column in enumerate(columns):
            y[:, :, i, j] = x[:, :, row, column]
    return y


def upsample_nearest2d_backward(grad_out: Array, in_h: int, in_w: int) -> Array:
    """Gradient of `upsample_nearest2d` by its input, [N, C, in_h, in_w], from ``grad_out`` [N, C, OH, OW].

    ``grad_input[n, c, rows[i], columns[j]] += grad_out[n, c, i, j]``, from zeros on, with rows and columns by
    `nearest_source_indices`.
    """
    work = work_dtype(grad_out)
    grad_input = np.zeros((*grad_out.shape[:2], in_h, in_w), work)
    columns = nearest_source_indices(in_w, grad_out.shape[3])
    for i, row in enumerate(nearest_source_indices(in_h, grad_out.shape[2])):
        for j, column in enumerate(columns):
            grad_input[:, :, row, column] += grad_out[:, :, i, j].astype(work)
    return grad_input


def grid_sample_coordinates(
    grid: Array, ih: int, iw: int, *, align_corners: bool = False, work: np.dtype[Any] | None = None
) -> tuple[Array, Array]:
    """Return where the points of ``grid`` [N, OH, OW, 2] lie in an image of ih x iw, in pixels, in the work type.

    ``sx = ((gx + 1) * IW - 1) / 2``, or ``(gx + 1) / 2 * (IW - 1)`` with align_corners; sy likewise; [N, OH, OW] each.
    """
    sy, sx = _coordinates(grid, (ih, iw), align_corners, work_dtype(grid) if work is None else work)
    return sx, sy


def _coordinates(grid: Array, sizes: tuple[int, ...], align_corners: bool, work: np.dtype[Any]) -> list[Array]:
    """Return the coordinates along each axis of an image of these sizes: the grid has the last axis first."""
    g = grid.astype(work)[..., ::-1]
    with np.errstate(invalid="ignore"):  # infinity times 0
        return [
            (g[..., axis] + 1) / 2 * (size - 1) if align_corners else ((g[..., axis] + 1) * size - 1) / 2
            for axis, size in enumerate(sizes)
        ]


def _padded(s: Array, size: int, padding_mode: str, align_corners: bool) -> tuple[Array, Array]:
    """Return coordinates as border or reflection has them, in [0, size - 1], and their derivatives: 1, -1 or 0.

    Reflection is about the middle of the outer pixels with align_corners, else about their outer edges. NaN is read as
    0 with a derivative of 0, and so is infinity under reflection.
    """
    last = size - 1
    slope = np.ones_like(s)
    if padding_mode == "reflection":
        low, span = (0.0, last) if align_corners else (-0.5, size)
        with np.errstate(invalid="ignore", divide="ignore"):
            rest = np.mod(s - low, 2 * span) if span else np.full_like(s, np.nan)
        slope = np.where(rest < span, slope, -slope)
        s = np.where(rest < span, rest, 2 * span - rest) + low
    slope = np.where((s > 0) & (s < last), slope, 0)
    return np.where(s > 0, np.minimum(s, last), 0), slope


class _Taps(NamedTuple):
    """The pixels along one axis that points are made of: all of one shape, the grid's and an axis of taps."""

    place: Array
    inside: NDArray[np.bool_]
    weight: Array
    slope: Array
    """The weight's derivative by the grid's value."""


def _taps(s: Array, size: int, mode: str, padding_mode: str, align_corners: bool) -> _Taps:
    pads = padding_mode != "zeros"
    slope = np.ones_like(s)
    if pads and mode != "bicubic":
        s, slope = _padded(s, size, padding_mode, align_corners)
    elif padding_mode == "border":
        s, slope = np.where(np.isnan(s), 0, np.clip(s, -2, size + 1)), np.where(np.isnan(s), 0, slope)
    elif padding_mode == "reflection":
        s, slope = np.where(np.isfinite(s), s, 0), np.where(np.isfinite(s), slope, 0)
    finite = np.isfinite(s)
    s = np.where(finite, s, 0)
    if mode == "nearest":
        places, weights, slopes = [np.rint(s)], [np.ones_like(s)], [np.zeros_like(s)]
    elif mode == "bilinear":
        low = np.floor(s)
        places, weights, slopes = [low, low + 1], [low + 1 - s, s - low], [-slope, slope]
    else:
        low, a = np.floor(s), -0.75
        places, t = [low + k for k in (-1, 0, 1, 2)], s - low
        weights, slopes = [], []
        for d, side in ((t + 1, 1), (t, 1), (1 - t, -1), (2 - t, -1)):
            near = ((a + 2) * d - (a + 3)) * d**2 + 1, (3 * (a + 2) * d - 2 * (a + 3)) * d
            far = ((d - 5) * d + 8) * d * a - 4 * a, ((3 * d - 10) * d + 8) * a
            weights.append(np.where(d <= 1, near[0], far[0]))
            slopes.append(np.where(d <= 1, near[1], far[1]) * side * slope)
        if pads:
            places = [_padded(place, size, padding_mode, align_corners)[0] for place in places]
    place, weight = np.stack(places, -1), np.stack(weights, -1)
    inside = finite[..., None] & (place >= 0) & (place < size)
    per_pixel = s.dtype.type(size - 1 if align_corners else size) / 2
    return _Taps(np.where(inside, place, 0).astype(np.int64), inside, weight, np.stack(slopes, -1) * per_pixel)


def _product(factors: list[Array]) -> Array:
    return np.asarray(np.multiply.reduce(factors))


def _combinations(
    x: Array, grid: Array, mode: str, padding_mode: str, align_corners: bool, work: np.dtype[Any]
) -> Iterator[tuple[Any, NDArray[np.bool_], Array, list[Array]]]:
    """Give for each combination of taps: the pixels' indices but the channel, which are inside, weights, and slopes.

    Slopes are the weights' derivatives by each of the grid's values, in its order.
    """
    known = {"bilinear", "nearest"} | ({"bicubic"} if x.ndim == 4 else set())
    if mode not in known or padding_mode not in ("zeros", "border", "reflection"):
        raise ValueError(f"no mode {mode!r} with padding {padding_mode!r} for {x.ndim - 2} axes")
    sizes = x.shape[2:]
    if 0 in sizes:
        return
    where = _coordinates(grid, sizes, align_corners, work)
    axes = [_taps(s, size, mode, padding_mode, align_corners) for s, size in zip(where, sizes, strict=True)]
    image = np.arange(x.shape[0]).reshape(-1, *(1,) * len(sizes))
    for taps in itertools.product(*(range(axis.place.shape[-1]) for axis in axes)):
        chosen = [_Taps(*(a[..., k] for a in axis)) for axis, k in zip(axes, taps, strict=True)]
        weight = _product([each.weight for each in chosen])
        slopes = [_product([each.slope if each is own else each.weight for each in chosen]) for own in reversed(chosen)]
        inside = np.logical_and.reduce([each.inside for each in chosen])
        yield (image, *(each.place for each in chosen)), inside, weight, slopes


def grid_sample(
    x: Array, grid: Array, *, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> Array:
    """Sample ``x`` [N, C, IH, IW] at the points of ``grid`` [N, OH, OW, 2] (x first, -1..1 spans the image).

    ``y[n, c, i, j]`` is the sum of ``weight * x[n, c, pixel]`` over the pixels inside, whose weights are products of
    one an axis. Along an axis, with s of `grid_sample_coordinates`:

    - bilinear: floor(s) and floor(s) + 1, weighted by 1 minus their distance from s;
    - nearest: s rounded, half to even;
    - bicubic: floor(s) - 1 to floor(s) + 2, weighted by cubic convolution with a = -0.75.

    padding_mode "border" clips s to the image, "reflection" reflects it first; in bicubic they do so with each pixel's
    place instead. Under zeros a point that is NaN, infinite or far outside gives 0; else NaN (under reflection infinity
    too) counts as the coordinate 0. Volumes, ``x`` [N, C, ID, IH, IW], have a ``grid`` [N, OD, OH, OW, 3]; no bicubic.

    Returns
    -------
    Array
        [N, C, OH, OW] or [N, C, OD, OH, OW].
    """
    work = work_dtype(x)
    values = np.moveaxis(x.astype(work), 1, -1)
    out = np.zeros((*grid.shape[:-1], x.shape[1]), work)
    with np.errstate(invalid="ignore"):
        for pixels, inside, weight, _ in _combinations(x, grid, mode, padding_mode, align_corners, work):
            out += np.where(inside[..., None], weight[..., None] * values[pixels], 0)
    return np.moveaxis(out, -1, 1)


def grid_sample_backward(
    grad_out: Array,
    x: Array,
    grid: Array,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> tuple[Array, Array]:
    """Gradients of `grid_sample` by x and by grid.

    Every pixel inside gets ``go * weight`` in grad_input. grad_grid is the sum over channels and pixels inside of
    ``go * x[pixel] *`` the weight's derivative by the grid's value: 0 in nearest, and along an axis where the padding
    has moved the coordinate to an edge or read NaN; its sign is turned where an odd number of reflections was needed.

    Returns
    -------
    tuple
        (grad_input, grad_grid), shaped as x and grid.
    """
    work = work_dtype(grad_out)
    values, go = (np.moveaxis(a.astype(work), 1, -1) for a in (x, grad_out))
    grad_input, grad_grid = np.zeros(values.shape, work), np.zeros(grid.shape, work)
    with np.errstate(invalid="ignore"):
        for pixels, inside, weight, slopes in _combinations(x, grid, mode, padding_mode, align_corners, work):
            np.add.at(grad_input, pixels, np.where(inside[..., None], go * weight[..., None], 0))
            through = (go * values[pixels]).sum(axis=-1)
            for axis, slope in enumerate(slopes if mode != "nearest" else ()):
                grad_grid[..., axis] += np.where(inside, through * slope, 0)
    return np.moveaxis(grad_input, -1, 1), grad_grid
