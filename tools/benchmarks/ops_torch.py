"""The rows of the benchmark of the ops: each case as a call of ptxrt and one of torch, on the same tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ptxrt
from benchmarks.ops_calls import Call, call
from benchmarks.ops_cases import Case
from ptxrt import ops

__all__ = ["Row", "make_row"]


@dataclass(frozen=True)
class Row:
    """A case as it is run.

    Attributes
    ----------
    nbytes
        The fewest bytes that it must move: each input read once, each output written once.
    ours, eager
        A call each.
    compiled
        What torch.compile is given, and its arguments; None where torch cannot compile the call in question.
    """

    nbytes: int
    ours: Call
    eager: Call
    compiled: tuple[Callable[..., object], tuple[Any, ...]] | None = None


def make_row(torch: Any, case: Case) -> Row:
    """Return a case's row, its tensors made."""
    return _ROWS[case.op](torch, case)


def _ours(case: Case, **tensors: Any) -> Call:
    return call(case, {name: ptxrt.from_dlpack(tensor) for name, tensor in tensors.items()})


def _dtype(torch: Any, case: Case) -> Any:
    return {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "u8": torch.uint8}[case.dtype]


def _normal(torch: Any, case: Case, *shape: int) -> Any:
    return torch.randn(shape or case.shape, device="cuda").to(_dtype(torch, case))


def _group_norm(torch: Any, case: Case) -> Row:
    x, w, b = _normal(torch, case), *(_normal(torch, case, case.shape[1]) for _ in range(2))
    group_norm = torch.nn.functional.group_norm
    return Row(
        2 * x.nbytes,
        _ours(case, x=x, weight=w, bias=b),
        lambda: group_norm(x, case.groups, w, b),
        (group_norm, (x, case.groups, w, b)),
    )


def _group_norm_backward(torch: Any, case: Case) -> Row:
    x, go, w = _normal(torch, case), _normal(torch, case), _normal(torch, case, case.shape[1])
    n, c, hw = x.shape[0], x.shape[1], x[0, 0].numel()
    _, mean, rstd = torch.ops.aten.native_group_norm(x, w, w, n, c, hw, case.groups, 1e-5)
    backward = torch.ops.aten.native_group_norm_backward
    return Row(
        3 * x.nbytes,
        _ours(case, grad_out=go, x=x, weight=w),
        lambda: backward(go, x, mean, rstd, w, n, c, hw, case.groups, [True] * 3),
    )


def _softmax2d(torch: Any, case: Case) -> Row:
    x = _normal(torch, case)
    return Row(2 * x.nbytes, _ours(case, x=x), lambda: torch.softmax(x, 1), (torch.softmax, (x, 1)))


def _softmax2d_backward(torch: Any, case: Case) -> Row:
    go, y = _normal(torch, case), torch.softmax(_normal(torch, case), 1)
    backward = torch.ops.aten._softmax_backward_data
    return Row(3 * y.nbytes, _ours(case, grad_out=go, y=y), lambda: backward(go, y, 1, y.dtype))


def _batch_norm(torch: Any, case: Case) -> Row:
    x = _normal(torch, case)
    w, b, mean = (_normal(torch, case, case.shape[1]) for _ in range(3))
    var = torch.ones_like(mean)
    batch_norm = torch.nn.functional.batch_norm
    return Row(
        2 * x.nbytes,
        _ours(case, x=x, weight=w, bias=b, running_mean=mean, running_var=var),
        lambda: batch_norm(x, mean, var, w, b, training=case.training),
        (batch_norm, (x, mean, var, w, b, case.training)),
    )


def _batch_norm_backward(torch: Any, case: Case) -> Row:
    x, go, w = _normal(torch, case), _normal(torch, case), _normal(torch, case, case.shape[1])
    axes = [0, *range(2, len(case.shape))]
    mean, var = x.mean(axes), x.var(axes, unbiased=False)
    inv = (var + 1e-5).rsqrt()
    backward = torch.ops.aten.native_batch_norm_backward
    return Row(
        3 * x.nbytes,
        _ours(case, grad_out=go, x=x, weight=w, batch_mean=mean, batch_var=var),
        lambda: backward(go, x, w, None, None, mean, inv, True, 1e-5, [True] * 3),
    )


def _local_response_norm(torch: Any, case: Case) -> Row:
    x = _normal(torch, case)
    norm = torch.nn.functional.local_response_norm
    return Row(3 * x.nbytes, _ours(case, x=x), lambda: norm(x, 5), (norm, (x, 5)))


def _local_response_norm_backward(torch: Any, case: Case) -> Row:
    x, go = _normal(torch, case).requires_grad_(), _normal(torch, case)
    theirs = torch.nn.functional.local_response_norm(x, 5)
    _, denom = ops.local_response_norm(ptxrt.from_dlpack(x.detach()), 5)
    ours = call(case, {"grad_out": ptxrt.from_dlpack(go), "x": ptxrt.from_dlpack(x.detach()), "denom": denom})
    return Row(4 * go.nbytes, ours, lambda: torch.autograd.grad(theirs, x, go, retain_graph=True))


def _upsample_nearest2d(torch: Any, case: Case) -> Row:
    x = (100 * torch.rand(case.shape, device="cuda")).to(_dtype(torch, case))
    interpolate = torch.nn.functional.interpolate
    return Row(
        x.nbytes * (1 + case.factor**2),
        _ours(case, x=x),
        lambda: interpolate(x, scale_factor=case.factor, mode="nearest"),
        None if case.dtype == "f64" else (interpolate, (x, None, case.factor, "nearest")),
    )


def _sampled(torch: Any, case: Case) -> tuple[Any, Any]:
    """Return an image, and an affine grid over it scaled by 0.9 with noise of 0.02."""
    n, c, *_ = case.shape
    scale = 0.9 * torch.eye(2, 3, device="cuda", dtype=_dtype(torch, case)).expand(n, 2, 3)
    grid = torch.nn.functional.affine_grid(scale, [n, c, *case.size], align_corners=False)
    return _normal(torch, case), grid + 0.02 * _normal(torch, case, *grid.shape)


def _grid_sample(torch: Any, case: Case) -> Row:
    x, grid = _sampled(torch, case)
    result = x.nbytes // (case.shape[2] * case.shape[3]) * case.size[0] * case.size[1]
    sample = torch.nn.functional.grid_sample
    return Row(
        x.nbytes + grid.nbytes + result,
        _ours(case, x=x, grid=grid),
        lambda: sample(x, grid, align_corners=False),
        (sample, (x, grid, "bilinear", "zeros", False)),
    )


def _grid_sample_backward(torch: Any, case: Case) -> Row:
    x, grid = _sampled(torch, case)
    go = _normal(torch, case, *case.shape[:2], *case.size)
    backward = torch.ops.aten.grid_sampler_2d_backward
    return Row(
        2 * x.nbytes + 2 * grid.nbytes + go.nbytes,
        _ours(case, grad_out=go, x=x, grid=grid),
        lambda: backward(go, x, grid, 0, 0, False, [True, True]),
    )


_ROWS: dict[str, Callable[[Any, Case], Row]] = {
    "group_norm": _group_norm,
    "group_norm_backward": _group_norm_backward,
    "softmax2d": _softmax2d,
    "softmax2d_backward": _softmax2d_backward,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "local_response_norm": _local_response_norm,
    "local_response_norm_backward": _local_response_norm_backward,
    "upsample_nearest2d": _upsample_nearest2d,
    "grid_sample": _grid_sample,
    "grid_sample_backward": _grid_sample_backward,
}
