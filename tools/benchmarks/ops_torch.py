"""The rows of the benchmark of the ops: each case as a call of ptxrt and one of torch, on the same tensors.

torch in float64, on the same values, is also the reference that results are held to before they are timed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ptxrt
from benchmarks.ops_calls import PARAMETERS, Call, call, shapes
from benchmarks.ops_cases import Case
from ptxrt import ops

__all__ = ["Compiler", "Row", "bar", "error", "make_row", "their_bar"]

Compiler = Callable[[Call], Call]
Tensors = Mapping[str, Any]

_EPS, _RMS_EPS = 1e-5, 1e-6
_MODES, _PADDINGS = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
_HALVES = ("f16", "bf16")
# One rounding to the type, relative to the largest number that it may come of.
_ROUNDING = {"f32": 2.0**-24, "f64": 2.0**-53, "f16": 2.0**-11, "bf16": 2.0**-8}


@dataclass(frozen=True)
class Row:
    """A case as it is run.

    Attributes
    ----------
    inputs
        What ours reads.
    ours
        The call of ptxrt; what it is timed with is selected where it is called.
    peer
        torch's call, given what compiles it, or leaves it as it is.
    reference
        What computes the results in float64.
    """

    inputs: Sequence[ptxrt.DeviceArray]
    ours: Call
    peer: Callable[[Compiler], Call]
    reference: Call

    def nbytes(self, result: Any) -> int:
        """Return the fewest bytes that the op must move: each input read once, each output written once."""
        return sum(array.nbytes for array in (*self.inputs, *_arrays(result)))


def make_row(torch: Any, case: Case, device: str = "cuda") -> Row:
    """Return a case's row, its tensors made on torch's `device`."""
    torch.manual_seed(7)
    t = _tensors(torch, case, device)

    def shared(name: str) -> ptxrt.DeviceArray:
        single = name in PARAMETERS and case.dtype in _HALVES
        return ptxrt.from_dlpack(t[name].float() if single else t[name])

    ours = {name: shared(name) for name in shapes(case) if name != "denom"}
    if "denom" in shapes(case):
        ours["denom"] = ops.local_response_norm(ours["x"], 5)[1]
    peer = _PEERS[case.op]

    def reference() -> Any:
        wide = {name: tensor.double() for name, tensor in t.items()}
        return peer(torch, case, wide)(lambda run: run)()

    return Row(tuple(ours.values()), call(case, ours), peer(torch, case, t), reference)


def bar(case: Case) -> float:
    """Return the largest error of our result, as `error` measures it.

    The bars of docs/ops.md, but in f64, where torch is no better a reference than what it is held against.
    """
    if case.op == "upsample_nearest2d":
        return 0.0
    computed = "f32" if case.dtype in _HALVES else case.dtype
    if case.family == "grid_sample":
        single = 4 * 2 * _ROUNDING[computed] * max(*case.shape[2:], *case.size)
    else:
        single = 2e-7 if computed == "f32" else 1e-13
    return single + (_ROUNDING[case.dtype] if case.dtype in _HALVES else 0.0)


def their_bar(case: Case) -> float:
    """Return the largest error of torch's result, which shows only that it computes the same.

    In halves torch has coordinates in halves, too, which miss pixels: there it is not held to anything.
    """
    return {"f32": 1e-3, "f64": 1e-10, "u8": 0.0}.get(case.dtype, math.inf)


def error(torch: Any, result: Any, reference: Any) -> float:
    """Return the largest ``||result - reference|| / ||reference||`` of the arrays that both have; NaN counts as inf."""
    worst = 0.0
    for given, wanted in zip(_arrays(result), _arrays(reference), strict=False):
        tensor = torch.from_dlpack(given) if isinstance(given, ptxrt.DeviceArray) else given
        wide = wanted.double()
        norms = [float(torch.linalg.vector_norm(x)) for x in (tensor.detach().double() - wide, wide)]
        found = norms[0] / norms[1] if norms[1] else norms[0]
        worst = max(worst, found if math.isfinite(found) else math.inf)
    return worst


def _arrays(result: Any) -> Sequence[Any]:
    several = result if isinstance(result, (tuple, list)) else (result,)
    return [array for array in several if array is not None]


# The tensors ----------------------------------------------------------------------------------------------------------


def _tensors(torch: Any, case: Case, device: str) -> dict[str, Any]:
    """Return the inputs; parameters in the type that torch takes them in."""
    element = {"f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64, "u8": torch.uint8}
    dtype = element.get(case.dtype, torch.float32)
    # As users have them: a model in halves has its weights in halves, but for batch_norm, which torch computes mixed.
    single = case.family == "batch_norm" and case.dtype in _HALVES
    wanted = shapes(case)

    def made(name: str) -> Any:
        kind = torch.float32 if single and name in PARAMETERS else dtype
        if name == "grid":
            return _grid(torch, case, device).to(dtype)
        if case.dtype == "u8":
            return torch.randint(0, 256, wanted[name], device=device, dtype=torch.uint8)
        values = torch.randn(wanted[name], device=device, dtype=torch.float64 if case.dtype == "f64" else torch.float32)
        values = 1 + values.abs() if name == "running_var" else values
        values = torch.softmax(values, 1) if name == "y" else values
        laid = case.channels_last and values.ndim == 4 and tuple(values.shape) == case.shape
        return values.to(kind).contiguous(memory_format=torch.channels_last if laid else torch.contiguous_format)

    t = {name: made(name) for name in wanted if name not in ("batch_mean", "batch_var", "denom")}
    if "batch_mean" in wanted:
        x = t["x"].double()
        axes = [0, *range(2, x.ndim)]
        kind = torch.float32 if single else dtype
        t["batch_mean"], t["batch_var"] = x.mean(axes).to(kind), x.var(axes, unbiased=False).to(kind)
    return t


def _grid(torch: Any, case: Case, device: str) -> Any:
    """Return an affine grid with noise of 0.02: over 0.9 of the image, and over more than it where that is padded.

    Points are moved away from where results, or gradients, jump, which no two roundings hit alike.
    """
    n, axes = case.shape[0], len(case.size)
    scale = 0.9 if case.padding_mode == "zeros" else 1.2
    theta = scale * torch.eye(axes, axes + 1, device=device, dtype=torch.float64).expand(n, axes, axes + 1)
    grid = torch.nn.functional.affine_grid(theta, [n, 1, *case.size], align_corners=False)
    grid = grid + 0.02 * torch.randn(grid.shape, device=device, dtype=torch.float64)
    lengths = torch.tensor(case.shape[:1:-1], device=device, dtype=torch.float64)
    twice = (grid + 1) * lengths - 1  # the coordinate in pixels; jumps are at the middles and the edges of pixels
    return torch.where((twice - twice.round()).abs() < 4e-3, grid + 0.5 / lengths, grid)


# torch's calls --------------------------------------------------------------------------------------------------------

Peer = Callable[[Any, Case, Tensors], Callable[[Compiler], Call]]


def _plain(run: Call) -> Callable[[Compiler], Call]:
    return lambda compiler: compiler(run)


def _group_norm(torch: Any, case: Case, t: Tensors) -> Callable[[Compiler], Call]:
    norm = torch.nn.functional.group_norm
    return _plain(lambda: norm(t["x"], case.groups, t["weight"], t["bias"]))


def _group_norm_backward(torch: Any, case: Case, t: Tensors) -> Callable[[Compiler], Call]:
    x, go, w = t["x"], t["grad_out"], t["weight"]
    n, c, hw = x.shape[0], x.shape[1], x[0, 0].numel()
    _, mean, rstd = torch.ops.aten.native_group_norm(x.contiguous(), w, w, n, c, hw, case.groups, _EPS)
    backward = torch.ops.aten.native_group_norm_backward

    # On a GPU the op takes contiguous arrays alone. torch's autograd copies others, so what it takes has the copies.
    def run() -> Any:
        return backward(go.contiguous(), x.contiguous(), mean, rstd, w, n, c, hw, case.groups, [True] * 3)

    return _plain(run)


def _softmax2d(torch: Any, _: Case, t: Tensors) -> Callable[[Compiler], Call]:
    return _plain(lambda: torch.softmax(t["x"], 1))


def _softmax2d_backward(torch: Any, _: Case, t: Tensors) -> Callable[[Compiler], Call]:
    go, y = t["grad_out"], t["y"]
    backward = torch.ops.aten._softmax_backward_data
    return _plain(lambda: backward(go, y, 1, y.dtype))


def _batch_norm(torch: Any, case: Case, t: Tensors) -> Callable[[Compiler], Call]:
    norm = torch.nn.functional.batch_norm
    given = [t[name] for name in ("x", "running_mean", "running_var", "weight", "bias")]
    return _plain(lambda: norm(*given, training=case.training))


def _batch_norm_backward(torch: Any, case: Case, t: Tensors) -> Callable[[Compiler], Call]:
    go, x, w = t["grad_out"], t["x"], t["weight"]
    backward = torch.ops.aten.native_batch_norm_backward
    if not case.training:
        mean, var = t["running_mean"], t["running_var"]
        return _plain(lambda: backward(go, x, w, mean, var, None, None, False, _EPS, [True] * 3))
    mean, inverse = t["batch_mean"], (t["batch_var"] + _EPS).rsqrt()
    return _plain(lambda: backward(go, x, w, None, None, mean, inverse, True, _EPS, [True] * 3))


def _local_response_norm(torch: Any, _: Case, t: Tensors) -> Callable[[Compiler], Call]:
    norm = torch.nn.functional.local_response_norm
    return _plain(lambda: norm(t["x"], 5))


def _local_response_norm_backward(torch: Any, _: Case, t: Tensors) -> Callable[[Compiler], Call]:
    x, go = t["x"].detach().requires_grad_(), t["grad_out"]  # torch has no backward of it but autograd's

    def made(compiler: Compiler) -> Call:
        y = compiler(lambda: torch.nn.functional.local_response_norm(x, 5))()
        return lambda: torch.autograd.grad(y, x, go, retain_graph=True)

    return made


def _layer_norm(torch: Any, _: Case, t: Tensors) -> Callable[[Compiler], Call]:
    norm = torch.nn.functional.layer_norm
    return _plain(lambda: norm(t["x"], t["x"].shape[-1:], t["weight"], t["bias"]))


def _layer_norm_backward(torch: Any, _: Case, t: Tensors) -> Callable[[Compiler], Call]:
    go, x, w = t["grad_out"], t["x"], t["weight"]
    row = list(x.shape[-1:])
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, row, w, w, _EPS)
    backward = torch.ops.aten.native_layer_norm_backward
    return _plain(lambda: backward(go, x, row, mean, rstd, w, w, [True] * 3))


def _rms_norm(torch: Any, _: Case, t: Tensors) -> Callable[[Compiler], Call]:
    norm = torch.nn.functional.rms_norm
    return _plain(lambda: norm(t["x"], t["x"].shape[-1:], t["weight"], _RMS_EPS))


def _rms_norm_backward(torch: Any, _: Case, t: Tensors) -> Callable[[Compiler], Call]:
    go, x, w = t["grad_out"], t["x"], t["weight"]
    if not x.is_cuda:  # torch has the kernel for GPUs alone
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = torch.nn.functional.rms_norm(x, x.shape[-1:], w, _RMS_EPS)
        return _plain(lambda: torch.autograd.grad(y, (x, w), go, retain_graph=True))
    row = list(x.shape[-1:])
    _, rstd = torch.ops.aten._fused_rms_norm(x, row, w, _RMS_EPS)
    backward = torch.ops.aten._fused_rms_norm_backward
    return _plain(lambda: backward(go, x, row, rstd, w, [True] * 2))


def _upsample_nearest2d(torch: Any, case: Case, t: Tensors) -> Callable[[Compiler], Call]:
    interpolate = torch.nn.functional.interpolate
    return _plain(lambda: interpolate(t["x"], scale_factor=case.factor, mode="nearest"))


def _upsample_nearest2d_backward(torch: Any, case: Case, t: Tensors) -> Callable[[Compiler], Call]:
    backward = torch.ops.aten.upsample_nearest2d_backward
    return _plain(lambda: backward(t["grad_out"], list(case.result_shape[2:]), list(case.shape), None, None))


def _grid_sample(torch: Any, case: Case, t: Tensors) -> Callable[[Compiler], Call]:
    sample = torch.nn.functional.grid_sample
    return _plain(lambda: sample(t["x"], t["grid"], case.mode, case.padding_mode, align_corners=False))


def _grid_sample_backward(torch: Any, case: Case, t: Tensors) -> Callable[[Compiler], Call]:
    go, x, grid = t["grad_out"], t["x"], t["grid"]
    mode, padding = _MODES.index(case.mode), _PADDINGS.index(case.padding_mode)
    backward = getattr(torch.ops.aten, f"grid_sampler_{len(case.size)}d_backward")
    return _plain(lambda: backward(go, x, grid, mode, padding, False, [True, True]))


_PEERS: dict[str, Peer] = {
    "group_norm": _group_norm,
    "group_norm_backward": _group_norm_backward,
    "softmax2d": _softmax2d,
    "softmax2d_backward": _softmax2d_backward,
    "batch_norm": _batch_norm,
    "batch_norm_backward": _batch_norm_backward,
    "local_response_norm": _local_response_norm,
    "local_response_norm_backward": _local_response_norm_backward,
    "layer_norm": _layer_norm,
    "layer_norm_backward": _layer_norm_backward,
    "rms_norm": _rms_norm,
    "rms_norm_backward": _rms_norm_backward,
    "upsample_nearest2d": _upsample_nearest2d,
    "upsample_nearest2d_backward": _upsample_nearest2d_backward,
    "grid_sample": _grid_sample,
    "grid_sample_backward": _grid_sample_backward,
}
