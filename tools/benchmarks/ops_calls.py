"""A case of the benchmarks as a call of ptxrt, with arrays made beforehand. Of ptxrt only its public names are used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ptxrt
from benchmarks.ops_cases import Case
from ptxrt import ops

__all__ = ["Call", "call", "inputs"]

Call = Callable[[], object]

_INPUTS = {
    "group_norm": "x weight bias",
    "group_norm_backward": "grad_out x weight",
    "softmax2d": "x",
    "softmax2d_backward": "grad_out y",
    "batch_norm": "x weight bias running_mean running_var",
    "batch_norm_backward": "grad_out x weight batch_mean batch_var",
    "local_response_norm": "x",
    "local_response_norm_backward": "grad_out x denom",
    "upsample_nearest2d": "x",
    "grid_sample": "x grid",
    "grid_sample_backward": "grad_out x grid",
}
_NUMPY: dict[str, type[np.generic]] = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "u8": np.uint8}


def call(case: Case, a: Mapping[str, Any]) -> Call:
    """Return a call of the op; `a` has its inputs on the device, and the outputs are allocated here."""

    def like(*names: str) -> tuple[Any, ...]:
        return tuple(ptxrt.empty(a[name].shape, a[name].dtype, a[name].device) for name in names)

    def image(height: int, width: int) -> Any:
        return ptxrt.empty((*case.shape[:2], height, width), a["x"].dtype, a["x"].device)

    given = {name: a[name] for name in _INPUTS[case.op].split()}
    height, width = case.shape[2] * case.factor, case.shape[3] * case.factor
    out: Any
    if case.op == "group_norm":
        (out,) = like("x")
        return lambda: ops.group_norm(**given, groups=case.groups, out=out)
    if case.op == "group_norm_backward":
        out = like("x", "weight", "weight")
        return lambda: ops.group_norm_backward(**given, groups=case.groups, out=out)
    if case.op == "softmax2d":
        (out,) = like("x")
        return lambda: ops.softmax2d(**given, out=out)
    if case.op == "softmax2d_backward":
        (out,) = like("y")
        return lambda: ops.softmax2d_backward(**given, out=out)
    if case.op == "batch_norm":
        out = (*like("x"), *(like("weight", "weight") if case.training else (None, None)))
        return lambda: ops.batch_norm(**given, training=case.training, out=out)
    if case.op == "batch_norm_backward":
        out = like("x", "weight", "weight")
        return lambda: ops.batch_norm_backward(**given, running_mean=None, running_var=None, training=True, out=out)
    if case.op == "local_response_norm":
        out = like("x", "x")
        return lambda: ops.local_response_norm(**given, size=5, out=out)
    if case.op == "local_response_norm_backward":
        (out,) = like("x")
        return lambda: ops.local_response_norm_backward(**given, size=5, out=out)
    if case.op == "upsample_nearest2d":
        out = image(height, width)
        return lambda: ops.upsample_nearest2d(**given, out_h=height, out_w=width, out=out)
    if case.op == "grid_sample":
        out = image(*case.size)
        return lambda: ops.grid_sample(**given, out=out)
    out = like("x", "grid")
    return lambda: ops.grid_sample_backward(**given, out=out)


def inputs(case: Case) -> dict[str, NDArray[Any]]:
    """Return the inputs of a case, by name, as torch's rows have them: random, the grid smooth with some noise."""
    rng = np.random.default_rng(7)
    dtype = _NUMPY[case.dtype]
    # Repeated, since what is timed does not depend on the values.
    block = rng.standard_normal(1 << 20).astype(dtype)

    def values(name: str) -> NDArray[Any]:
        batch, channels = case.shape[:2]
        if name == "grid":
            axes = [np.linspace(-0.9, 0.9, length) for length in case.size]
            smooth = np.stack(np.meshgrid(*axes, indexing="ij")[::-1], axis=-1).astype(dtype)
            return np.asarray(smooth + dtype(0.02) * np.resize(block, (batch, *smooth.shape)))
        if name in ("x", "y", "grad_out", "denom"):
            sampled = name == "grad_out" and case.family == "grid_sample"
            shape = (*case.shape[:2], *case.size) if sampled else case.shape
        else:
            shape = (channels,)
        made = np.resize(block, shape)
        return dtype(1) + np.abs(made) if name in ("denom", "running_var", "batch_var") else made

    return {name: values(name) for name in _INPUTS[case.op].split()}
