"""The HIP kernels' very texts on the host, with waves of 32 and of 64: no kernel depends on how wide a wave is."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import exact_sums as exact
import numpy as np
import pytest
import waves
from helpers import ELEMENT_NAMES, EVERYTHING, REQUIRED, Patch, Shape, covering
from op_testing import group_norm_rounded_twice, rounded_twice, wish
from tolerances import bar, grid_sample_bar, relative_error, rounded_bar

import ptxrt
from ptxrt import ops
from ptxrt.ops import references
from ptxrt.ops._batch_norm_cached import ThreadsConfig
from ptxrt.ops._batch_norm_exact import (
    ShardBackwardDescriptor,
    ShardBackwardPlan,
    ShardDescriptor,
    ShardPlan,
    SumsBackwardDescriptor,
    SumsBackwardPlan,
    SumsDescriptor,
    SumsPlan,
)
from ptxrt.ops._batch_norm_passes import SplitConfig, WriteConfig
from ptxrt.ops._batch_norm_rounded import SliceConfig
from ptxrt.ops._grid_sample_modes_tiled import HipCellsConfig
from ptxrt.ops._grid_sample_tiled_backward import HipTiledBackwardConfig
from ptxrt.ops._group_norm_teams import TeamConfig
from ptxrt.ops._group_norm_teams_backward import TeamBackwardConfig
from ptxrt.ops._group_norm_tickets import TicketsConfig
from ptxrt.ops._norm_last import LastConfig
from ptxrt.ops._norm_last_tickets import TileTicketsConfig
from ptxrt.ops._softmax2d_held import HeldConfig as SoftmaxConfig
from ptxrt.ops._softmax2d_strips import StripsConfig
from ptxrt.ops.framework import Launch, blocks_in_hip, parameter_type, read_kernel, rows, tickets
from ptxrt.ops.framework.rows_held import HeldBackwardConfig, HeldConfig, WarpsBackwardConfig, WarpsConfig
from ptxrt.runtime.layout import channels_last, contiguous
from ptxrt.runtime.signature import Signature

if waves.compiler() is None:
    if "hip" in REQUIRED:
        pytest.fail("PTXRT_REQUIRE=hip, but there is no C++ compiler")
    pytest.skip("no C++ compiler", allow_module_level=True)

pytestmark = pytest.mark.amd

RUNS = list(itertools.product((32, 64), waves.SCHEDULES))
each_run = pytest.mark.parametrize(("wave", "schedule"), RUNS)
HIP = [spec for spec in ops.kernels() if spec.language == "hip"]
TEXTS = {(spec.family, spec.dtype): read_kernel(spec.family, language="hip", dtype=spec.dtype).text for spec in HIP}

# The cases ------------------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A problem, what its plan is given, and what each output should be, with the bar of its error."""

    plan: Any
    problem: Any
    given: dict[str, Any]
    want: dict[str, tuple[Any, float]]
    counted: int = 1 << 32  # what _softmax2d._COUNTED is
    variant: str = "baseline"
    config: Any = None
    seen: Callable[[Any], Any] = np.asarray  # what of each output is compared
    of_hardware: bool = False  # whether powers are the hardware's own, of whose bits sim has NVIDIA's


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(shape)).normal(0.5, 1.5, shape).astype(dtype)


def given(**arrays: Any) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if array is not None}


def within(op: str, dtype: str = "f32", /, **results: Any) -> dict[str, tuple[Any, float]]:
    return {name: (want, bar(op, dtype, want)) for name, want in results.items() if want is not None}


def group_norm(
    shape: Shape, groups: int, affine: bool = True, name: str = "f32", last: bool = False, variant: str = "baseline"
) -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, real = normal(*shape, dtype=kind.numpy), parameter_type(kind).numpy
    w, b = (normal(shape[1], dtype=real) + i if affine else None for i in (0, 1))
    want = within("group_norm", name, out=references.group_norm(x, w, b, groups))
    problem = ops.GroupNormDescriptor(shape, groups, kind, strides=channels_last(shape) if last else ())
    return Case(ops.GroupNormPlan, problem, given(x=x, weight=w, bias=b), want, variant=variant)


def group_norm_backward(
    shape: Shape, groups: int, affine: bool = True, name: str = "f32", last: bool = False, variant: str = "baseline"
) -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    real = parameter_type(kind)
    x, w = normal(*shape, dtype=kind.numpy), normal(shape[1], dtype=real.numpy) if affine else None
    go = x[::-1, ::-1] + normal(shape[1], *shape[2:], dtype=kind.numpy)
    grad_input, grad_weight, grad_bias = references.group_norm_backward(go, x, w, groups)
    want = within("group_norm", name, grad_input=grad_input)
    want |= within("group_norm", real.name, grad_weight=grad_weight, grad_bias=grad_bias)
    problem = ops.GroupNormBackwardDescriptor(shape, groups, kind, strides=channels_last(shape) if last else ())
    return Case(ops.GroupNormBackwardPlan, problem, given(grad_out=go, x=x, weight=w), want, variant=variant)


def exact_sums(shape: Shape, backward: bool, name: str = "f32", last: bool = False) -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, go = normal(*shape, dtype=kind.numpy), normal(*shape[::-1], dtype=kind.numpy).reshape(shape)
    for array in (x, go):  # further from each other than a window is wide
        array.flat[::7] *= 2.0**-12 if name == "f16" else 2.0**-70
        array.flat[3::7] *= 2.0**5 if name == "f16" else 2.0**50
    arrays = {"grad_out": go, "x": x, "batch_mean": normal(shape[1])} if backward else {"x": x}
    rows = exact.integers(x, go if backward else None, name)
    plan, made = (SumsBackwardPlan, SumsBackwardDescriptor) if backward else (SumsPlan, SumsDescriptor)
    problem = made(shape, kind, channels_last(shape) if last else ())
    seen = partial(exact.numbers, dtype=name)
    return Case(plan, problem, arrays, {"sums": (seen(rows), 0.0)}, variant="exact", seen=seen)


def rounded_sums(
    shape: Shape, backward: bool, name: str = "f32", values: int | None = None, last: bool = False
) -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, go = normal(*shape, dtype=kind.numpy), normal(*shape[::-1], dtype=kind.numpy).reshape(shape)
    arrays = {"grad_out": go, "x": x, "batch_mean": normal(shape[1])} if backward else {"x": x}
    rows = exact.integers(x, go if backward else None, name)
    plan, made = (SumsBackwardPlan, SumsBackwardDescriptor) if backward else (SumsPlan, SumsDescriptor)
    problem = made(shape, kind, channels_last(shape) if last else (), exact=False)
    seen = partial(exact.numbers, dtype=name)
    config = None if values is None else SliceConfig(values)
    variant = "rounded_last" if last else "rounded"
    return Case(plan, problem, arrays, {"sums": (seen(rows), 1e-14)}, variant=variant, config=config, seen=seen)


def exact_shard(shape: Shape, affine: bool = True, name: str = "f32") -> Case:
    case = batch_norm(shape, True, affine, name)
    problem = ShardDescriptor(shape, True, case.problem.dtype)
    sums = exact.integers(case.given["x"], None, name)
    return replace(case, plan=ShardPlan, problem=problem, given=case.given | {"sums": sums}, variant="exact")


def exact_backward_shard(shape: Shape, affine: bool = True, name: str = "f32") -> Case:
    case = batch_norm_backward(shape, True, True, affine, name)
    problem = ShardBackwardDescriptor(shape, True, case.problem.dtype, handed=True)
    sums = exact.integers(case.given["x"], case.given["grad_out"], name)
    return replace(case, plan=ShardBackwardPlan, problem=problem, given=case.given | {"sums": sums}, variant="exact")


def group_norm_in_tickets(backward: bool, shape: Shape, groups: int, affine: bool = True, name: str = "f32") -> Case:
    make = group_norm_backward if backward else group_norm
    config = TicketsConfig(1 << 10, 1)  # one group ahead
    return replace(make(shape, groups, affine, name, variant="tickets"), config=config)


def group_norm_in_teams(
    backward: bool, shape: Shape, groups: int, lanes: int, name: str = "f32", affine: bool = True
) -> Case:
    make = group_norm_backward if backward else group_norm
    config = TeamBackwardConfig(lanes, 1 + (shape[0] > 2)) if backward else TeamConfig(lanes)
    return replace(make(shape, groups, affine, name, variant="teams"), config=config)


def extreme_teams(backward: bool, shape: Shape, lanes: int) -> Case:
    """Groups whose squares f32 does not hold beside ones whose squares it does."""
    case = group_norm_in_teams(backward, shape, 2, lanes, affine=False)
    x = case.given["x"] * np.resize(np.array([1, 1e30, 1, 1e-18], "f4"), shape[0]).reshape(-1, *[1] * (len(shape) - 1))
    x[0, 0] *= np.float32(1e30)
    if backward:
        gradients = references.group_norm_backward(case.given["grad_out"], x, None, 2, eps=0.0)
        want = within("group_norm", "f32", **dict(zip(("grad_input", "_", "grad_bias"), gradients, strict=True)))
    else:
        want = within("group_norm", "f32", out=references.group_norm(x, None, None, 2, eps=0.0))
    return replace(case, given=case.given | {"x": x}, want=want, problem=replace(case.problem, eps=0.0))


def group_norm_of_16_bits(name: str, last: bool = False) -> Case:
    x, w, b, want = group_norm_rounded_twice(name)
    strides = channels_last(x.shape) if last else ()
    problem = ops.GroupNormDescriptor(x.shape, 2, ptxrt.dtypes.BY_NAME[name], eps=0.0, strides=strides)
    return Case(ops.GroupNormPlan, problem, given(x=x, weight=w, bias=b), {"out": (want, 0.0)})


def softmax2d(shape: Shape, name: str = "f32", variant: str = "baseline") -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x = (3 * normal(*shape)).astype(kind.numpy)
    want = within("softmax2d", name, out=references.softmax2d(x))
    return Case(ops.Softmax2dPlan, ops.Softmax2dDescriptor(shape, kind), given(x=x), want, variant=variant)


def softmax2d_backward(shape: Shape, name: str = "f32", variant: str = "baseline") -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    y, go = references.softmax2d(normal(*shape)).astype(kind.numpy), normal(*shape, dtype=kind.numpy)
    want = within("softmax2d", name, out=references.softmax2d_backward(go, y))
    problem = ops.Softmax2dBackwardDescriptor(shape, kind)
    return Case(ops.Softmax2dBackwardPlan, problem, given(grad_out=go, y=y), want, variant=variant)


def softmax2d_held(backward: bool, shape: Shape, threads: int, name: str = "f32") -> Case:
    make = softmax2d_backward if backward else softmax2d
    return replace(make(shape, name, "held"), config=SoftmaxConfig(threads, 1))


def softmax2d_strips(backward: bool, shape: Shape, positions: int, name: str = "f32") -> Case:
    case = (softmax2d_backward if backward else softmax2d)(shape, name, "strips")
    return replace(case, config=StripsConfig(positions, 32), of_hardware=not backward and name != "f32")


def softmax2d_of_many_columns(op: str, shape: Shape, name: str) -> Case:
    make = {"softmax2d": softmax2d, "softmax2d_backward": softmax2d_backward}[op]
    return replace(make(shape, name), counted=1)


def softmax2d_backward_rounded_twice(name: str) -> Case:
    go, y, want = rounded_twice(name)
    problem = ops.Softmax2dBackwardDescriptor(go.shape, ptxrt.dtypes.BY_NAME[name])
    return Case(ops.Softmax2dBackwardPlan, problem, given(grad_out=go, y=y), {"out": (want, 0.0)})


def batch_norm(shape: Shape, training: bool, affine: bool = True, name: str = "f32") -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, vector = normal(*shape, dtype=kind.numpy), normal(shape[1], dtype=parameter_type(kind).numpy)
    w, b = (vector + i if affine else None for i in (0, 1))
    mean, var = vector, np.abs(vector) + vector.dtype.type(0.5)
    results = references.batch_norm(x, w, b, mean, var, training=training)
    running = references.updated_running_statistics(x, mean, var) if training else (None, None)
    names = ("batch_mean", "batch_var", "running_mean", "running_var")
    want = within("batch_norm", name, y=results[0])
    want |= within("batch_norm", parameter_type(kind).name, **dict(zip(names, (*results[1:], *running), strict=True)))
    arrays = given(x=x, weight=w, bias=b, running_mean=mean, running_var=var)
    return Case(ops.BatchNormPlan, ops.BatchNormDescriptor(shape, training, kind), arrays, want)


def batch_norm_backward(
    shape: Shape, training: bool, handed: bool = False, affine: bool = True, name: str = "f32"
) -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, vector = normal(*shape, dtype=kind.numpy), normal(shape[1], dtype=parameter_type(kind).numpy)
    go, w = x[::-1, ::-1].copy(), vector if affine else None
    mean, var = vector, np.abs(vector) + vector.dtype.type(0.5)
    names = ("batch_mean", "batch_var") if handed else () if training else ("running_mean", "running_var")
    statistics = dict(zip(names, (mean, var), strict=False))
    how = {"running_mean": None, "running_var": None, **statistics}
    gradients = references.batch_norm_backward(go, x, w, training=training, **how)
    want = within("batch_norm", name, grad_input=gradients[0])
    want |= within("batch_norm", parameter_type(kind).name, grad_weight=gradients[1], grad_bias=gradients[2])
    problem = ops.BatchNormBackwardDescriptor(shape, training, kind, handed=handed)
    return Case(ops.BatchNormBackwardPlan, problem, given(grad_out=go, x=x, weight=w, **statistics), want)


def batch_norm_counted(shape: Shape, name: str = "f32") -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    real = parameter_type(kind)
    x, mean = normal(*shape, dtype=kind.numpy), normal(shape[1], dtype=real.numpy)
    var = np.abs(mean) + mean.dtype.type(0.5)
    results = references.batch_norm(x, None, None, None, None, training=True, save="inverse_deviation")
    running = references.updated_running_statistics(x, mean, var, momentum=None, batches=5)
    names = ("batch_mean", "batch_var", "running_mean", "running_var")
    want = within("batch_norm", name, y=results[0])
    want |= within("batch_norm", real.name, **dict(zip(names, (*results[1:], *running), strict=True)))
    want["batches"] = np.array([5]), 0.0
    arrays = given(x=x, running_mean=mean, running_var=var, batches=np.array([4]))
    problem = ops.BatchNormDescriptor(shape, True, kind, momentum=None, save="inverse_deviation", counted=True)
    return Case(ops.BatchNormPlan, problem, arrays, want)


def batch_norm_backward_of_inverse(shape: Shape, name: str = "f32") -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, mean = normal(*shape, dtype=kind.numpy), normal(shape[1], dtype=parameter_type(kind).numpy)
    go, inverse = x[::-1, ::-1].copy(), np.abs(mean) + mean.dtype.type(0.5)
    how: dict[str, Any] = {"training": True, "batch_mean": mean, "batch_var": inverse, "save": "inverse_deviation"}
    gradients = references.batch_norm_backward(go, x, None, None, None, **how)
    want = within("batch_norm", name, grad_input=gradients[0])
    want |= within("batch_norm", parameter_type(kind).name, grad_bias=gradients[2])
    problem = ops.BatchNormBackwardDescriptor(shape, True, kind, handed=True, save="inverse_deviation")
    arrays = given(grad_out=go, x=x, batch_mean=mean, batch_var=inverse)
    return Case(ops.BatchNormBackwardPlan, problem, arrays, want)


def batch_norm_by(variant: str, shape: Shape, affine: bool = True, name: str = "f32") -> Case:
    return replace(batch_norm(shape, True, affine, name), variant=variant)


def batch_norm_cached128(shape: Shape, name: str = "f32") -> Case:
    return replace(batch_norm(shape, True, True, name), variant="cached", config=ThreadsConfig(128))


def batch_norm_backward_cached128(shape: Shape, handed: bool, name: str = "f32") -> Case:
    case = batch_norm_backward(shape, True, handed, True, name)
    return replace(case, variant="cached", config=ThreadsConfig(128))


def batch_norm_in_eval(shape: Shape, name: str = "f32") -> Case:
    config = WriteConfig(8)  # images of a block, more than it reads at once
    return replace(batch_norm(shape, False, True, name), variant="elementwise", config=config)


def batch_norm_in_small_eval(shape: Shape, name: str = "f32") -> Case:
    return replace(batch_norm(shape, False, True, name), variant="small")


def batch_norm_alone(shape: Shape, affine: bool = True, name: str = "f32") -> Case:
    return replace(batch_norm(shape, False, affine, name), variant="channels_last_alone")


def batch_norm_backward_in_small(shape: Shape, training: bool, name: str = "f32") -> Case:
    return replace(batch_norm_backward(shape, training, training, True, name), variant="small")


def batch_norm_backward_in_slices(shape: Shape, name: str = "f32") -> Case:
    config = SplitConfig(written=1, values=4096)
    return replace(batch_norm_backward(shape, False, False, True, name), variant="split", config=config)


def batch_norm_backward_by(
    variant: str, shape: Shape, handed: bool = False, affine: bool = True, name: str = "f32"
) -> Case:
    return replace(batch_norm_backward(shape, True, handed, affine, name), variant=variant)


def norm_last(variant: str, shape: Shape, how: Any, name: str = "f32") -> Case:
    """Return a case of batch_norm, `how` being whether it trains, or of group_norm, of so many groups."""
    case = batch_norm(shape, how, True, name) if len(shape) == 2 else group_norm(shape, how, True, name, True)
    return replace(case, variant=variant, config=LastConfig(16, 3, 2))


def norm_last_backward(variant: str, shape: Shape, how: Any, name: str = "f32") -> Case:
    if len(shape) == 2:
        case = batch_norm_backward(shape, how, how and shape[1] == 128, True, name)
    else:
        case = group_norm_backward(shape, how, True, name, True)
    return replace(case, variant=variant, config=LastConfig(16, 3, 2))


def norm_last_in_tickets(backward: bool, shape: Shape, how: Any, width: int, name: str = "f32") -> Case:
    """Return a case of batch_norm, `how` being whether it is given statistics, or of group_norm, of so many groups."""
    if len(shape) == 2:
        case = batch_norm_backward(shape, True, how, True, name) if backward else batch_norm(shape, True, True, name)
    else:
        case = (group_norm_backward if backward else group_norm)(shape, how, how > 1, name, True)
    return replace(case, variant="channels_last_tickets", config=TileTicketsConfig(width, 8, 1))


def local_response_norm(shape: Any, size: Any, name: str = "f32", variant: str = "baseline") -> Any:
    kind = ptxrt.dtypes.BY_NAME[name]
    x = 20 * normal(*shape, dtype=kind.numpy)
    y, denom = references.local_response_norm(x, size)
    want = within("local_response_norm", name, out=y)
    want |= within("local_response_norm", parameter_type(kind).name, denom=denom)
    problem = ops.LocalResponseNormDescriptor(shape, size, kind)
    return Case(ops.LocalResponseNormPlan, problem, given(x=x), want, variant=variant)


def local_response_norm_backward(shape: Any, size: Any, name: str = "f32", variant: str = "baseline") -> Any:
    kind = ptxrt.dtypes.BY_NAME[name]
    go, x = normal(*shape, dtype=kind.numpy), 20 * normal(*shape, dtype=kind.numpy)[::-1].copy()
    denom = references.local_response_norm(x, size)[1].astype(parameter_type(kind).numpy)
    want = within("local_response_norm", name, out=references.local_response_norm_backward(go, x, denom, size))
    problem = ops.LocalResponseNormBackwardDescriptor(shape, size, kind)
    return Case(ops.LocalResponseNormBackwardPlan, problem, given(grad_out=go, x=x, denom=denom), want, variant=variant)


def upsample_nearest2d(name: str, shape: Shape, out_h: int, out_w: int, variant: str = "baseline") -> Case:
    dtype = ptxrt.dtypes.BY_NAME[name]
    x = (100 * np.abs(normal(*shape))).astype(dtype.numpy)
    strides = tuple(step // x.itemsize for step in x.strides)
    problem = ops.UpsampleNearest2dDescriptor(shape, strides, out_h, out_w, dtype)
    want = {"out": (references.upsample_nearest2d(x, out_h, out_w), 0.0)}
    return Case(ops.UpsampleNearest2dPlan, problem, given(x=x), want, variant=variant)


def upsample_nearest2d_backward(name: str, shape: Shape, in_h: int, in_w: int, variant: str = "baseline") -> Case:
    dtype = ptxrt.dtypes.BY_NAME[name]
    go = normal(*shape, dtype=dtype.numpy)
    problem = ops.UpsampleNearest2dBackwardDescriptor(shape, contiguous(shape), in_h, in_w, dtype)
    want = within("upsample_nearest2d_backward", name, out=references.upsample_nearest2d_backward(go, in_h, in_w))
    return Case(ops.UpsampleNearest2dBackwardPlan, problem, given(grad_out=go), want, variant=variant)


def points(shape: Shape, size: Shape, dtype: Any) -> Any:
    """Return a grid of points in all cells and outside, none of them close to an integer coordinate."""
    rng = np.random.default_rng(2026)
    where = (shape[0], *size, 2)
    s = rng.integers(-2, (shape[3] + 1, shape[2] + 1), where) + rng.uniform(0.1, 0.9, where)
    return ((2 * s + 1) / np.array([shape[3], shape[2]]) - 1).astype(dtype)


def grid_sample(name: str, shape: Shape, size: Shape, variant: str = "baseline") -> Case:
    dtype = ptxrt.dtypes.BY_NAME[name]
    x, grid = normal(*shape, dtype=dtype.numpy), points(shape, size, dtype.numpy)
    y = references.grid_sample(x, grid)
    want = {"out": (y, rounded_bar(float(grid_sample_bar(name, *shape[2:])), name, y))}
    strides = channels_last(shape) if variant == "last" else ()
    problem = ops.GridSampleDescriptor(shape, grid.shape, dtype, strides=strides)
    return Case(ops.GridSamplePlan, problem, given(x=x, grid=grid), want, variant=variant)


def grid_sample_backward(name: str, shape: Shape, size: Shape, variant: str = "baseline") -> Case:
    dtype = ptxrt.dtypes.BY_NAME[name]
    of = dtype.numpy
    x, go, grid = normal(*shape, dtype=of), normal(*shape[:2], *size, dtype=of), points(shape, size, of)
    limit = float(grid_sample_bar(name, *shape[2:]))
    gradients = references.grid_sample_backward(go, x, grid)
    names = ("grad_input", "grad_grid")
    want = {key: (each, rounded_bar(limit, name, each)) for key, each in zip(names, gradients, strict=True)}
    problem = ops.GridSampleBackwardDescriptor(shape, grid.shape, dtype)
    return Case(ops.GridSampleBackwardPlan, problem, given(grad_out=go, x=x, grid=grid), want, variant=variant)


def layer_norm(shape: Shape, affine: bool = True, name: str = "f32") -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, row, real = normal(*shape, dtype=kind.numpy), shape[-1:], parameter_type(kind).numpy
    w, b = (normal(*row, dtype=real) + i if affine else None for i in (0, 1))
    want = within("layer_norm", name, out=references.layer_norm(x, row, w, b))
    return Case(ops.LayerNormPlan, ops.LayerNormDescriptor(shape, row, kind), given(x=x, weight=w, bias=b), want)


def rms_norm(shape: Shape, affine: bool = True, name: str = "f32") -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, row = normal(*shape, dtype=kind.numpy), shape[-1:]
    w = normal(*row, dtype=parameter_type(kind).numpy) if affine else None
    want = within("rms_norm", name, out=references.rms_norm(x, row, w))
    return Case(ops.RmsNormPlan, ops.RmsNormDescriptor(shape, row, kind), given(x=x, weight=w), want)


def backward_of_rows(op: str, shape: Shape, affine: bool = True, name: str = "f32") -> Case:
    kind = ptxrt.dtypes.BY_NAME[name]
    x, row, real = normal(*shape, dtype=kind.numpy), shape[-1:], parameter_type(kind)
    go, w = x[::-1] + normal(*row, dtype=kind.numpy), normal(*row, dtype=real.numpy) if affine else None
    plan, descriptor = {
        "layer_norm": (ops.LayerNormBackwardPlan, ops.LayerNormBackwardDescriptor),
        "rms_norm": (ops.RmsNormBackwardPlan, ops.RmsNormBackwardDescriptor),
    }[op]
    gradients = getattr(references, f"{op}_backward")(go, x, row, w)
    want = within(op, name, grad_input=gradients[0])
    want |= within(op, real.name, **dict(zip(("grad_weight", "grad_bias"), gradients[1:], strict=False)))
    return Case(plan, descriptor(shape, row, kind), given(grad_out=go, x=x, weight=w), want)


def held(op: str, shape: Shape, threads: int, length: int = 0, affine: bool = True, name: str = "f32") -> Case:
    """The forward, or with slices of `length` rows the backward."""
    if length:
        case = backward_of_rows(op, shape, affine, name)
        return replace(case, variant="held", config=HeldBackwardConfig(threads, length))
    case = {"layer_norm": layer_norm, "rms_norm": rms_norm}[op](shape, affine, name)
    return replace(case, variant="held", config=HeldConfig(threads))


def held_warps(op: str, shape: Shape, slices: int = 0, name: str = "f32") -> Case:
    """The forward, or with so many slices the backward."""
    config: Any = WarpsBackwardConfig(slices) if slices else WarpsConfig(2, 1)
    forward = {"layer_norm": layer_norm, "rms_norm": rms_norm}[op]
    case = backward_of_rows(op, shape, name=name) if slices else forward(shape, name=name)
    return replace(case, variant="held_warps", config=config)


def rows_apart(op: str, shape: Shape, affine: bool = True, name: str = "f32") -> Case:
    return replace(backward_of_rows(op, shape, affine, name), variant="apart")


def extreme_rows_apart(op: str, shape: Shape) -> Case:
    """Rows whose squares f32 does not hold beside ones whose squares it does."""
    case = rows_apart(op, shape)
    x, go = (case.given[name].copy() for name in ("x", "grad_out"))
    scale = np.resize(np.array([1, 1e30, 1, 1, 1e-30], "f4"), shape[0])[:, None]
    x, go = x * scale, go * scale
    gradients = getattr(references, f"{op}_backward")(go, x, shape[-1:], case.given["weight"], eps=0.0)
    want = within(op, "f32", **dict(zip(case.want, gradients, strict=True)))
    return replace(case, given=case.given | {"x": x, "grad_out": go}, want=want, problem=replace(case.problem, eps=0.0))


def grid_sample_modes(mode: str, axes: int, padding: str, name: str = "f32") -> Case:
    dtype = ptxrt.dtypes.BY_NAME[name]
    shape, size = ((3, 9, 5, 7), (3, 43)) if axes == 2 else ((3, 9, 3, 5, 4), (2, 5, 13))
    x = normal(*shape, dtype=dtype.numpy)
    grid = np.random.default_rng(7).uniform(-1.6, 1.6, (3, *size, axes)).astype(dtype.numpy)
    modes: Any = {"mode": mode, "padding_mode": padding}
    y = references.grid_sample(x, grid, **modes)
    want = {"out": (y, rounded_bar(float(grid_sample_bar(name, *shape[2:])), name, y))}
    problem = ops.GridSampleDescriptor(shape, grid.shape, dtype, **modes)
    return Case(ops.GridSamplePlan, problem, given(x=x, grid=grid), want, variant="general")


def grid_sample_modes_backward(variant: str, mode: str, axes: int, padding: str, name: str = "f32") -> Case:
    case = grid_sample_modes(mode, axes, padding, name)
    x, grid, problem = case.given["x"], case.given["grid"], case.problem
    modes: Any = {"mode": mode, "padding_mode": padding}
    go = normal(*problem.out_shape, dtype=x.dtype)
    if mode == "nearest" and variant == "general_fixed_point":
        go.reshape(*go.shape[:2], -1)[:, :, 77] *= 2**20  # where it is missed as the largest, integers overflow
    limit = float(grid_sample_bar(name, *x.shape[2:]))
    gradients = references.grid_sample_backward(go, x, grid, **modes)
    want = {
        name_of: (each, rounded_bar(limit, name, each))
        for name_of, each in zip(("grad_input", "grad_grid"), gradients, strict=True)
    }
    descriptor = ops.GridSampleBackwardDescriptor(x.shape, grid.shape, problem.dtype, **modes)
    return Case(ops.GridSampleBackwardPlan, descriptor, given(grad_out=go, x=x, grid=grid), want, variant=variant)


def grid_sample_tiled_backward(
    config: tuple[int, ...], padding: str = "", name: str = "f32", shape: Shape = (2, 3, 24, 32), size: Shape = (9, 66)
) -> Case:
    case = grid_sample_backward(name, shape, size, "tiled")
    if padding:
        case = grid_sample_modes_backward("tiled", "bilinear", 2, padding, name)
    return replace(case, config=HipTiledBackwardConfig(*config))


def grid_sample_modes_tiled(
    config: tuple[int, ...], padding: str = "zeros", name: str = "f32", noise: float = 0.02, size: Shape = (9, 40)
) -> Case:
    dtype, shape = ptxrt.dtypes.BY_NAME[name], (2, 9, 12, 15)
    rows, columns = (np.linspace(-1.1, 1.1, length) for length in size)
    grid = np.stack(np.meshgrid(columns, rows), axis=-1) + noise * normal(2, *size, 2)
    x, grid = normal(*shape, dtype=dtype.numpy), grid.astype(dtype.numpy)
    modes: Any = {"mode": "bicubic", "padding_mode": padding}
    y = references.grid_sample(x, grid, **modes)
    want = {"out": (y, rounded_bar(float(grid_sample_bar(name, *shape[2:])), name, y))}
    problem = ops.GridSampleDescriptor(shape, grid.shape, dtype, **modes)
    given_to = given(x=x, grid=grid)
    return Case(ops.GridSamplePlan, problem, given_to, want, variant="general_tiled", config=HipCellsConfig(*config))


def others(family: str) -> list[str]:
    """Return a family's element types but f32."""
    return sorted({spec.dtype for spec in HIP if spec.family == family} - {"f32"})


MODES = (
    ("nearest", 2, "border"), ("bilinear", 2, "reflection"), ("bicubic", 2, "zeros"), ("bilinear", 3, "zeros"),
    ("nearest", 3, "reflection"),
)  # fmt: skip

# Rows of some lanes of a warp: each number of lanes and of slots, full but for the last one. Shape, slices of the
# backward, type. There are more rows than a grid's warps have at a time, and more slices than blocks.
OF_WARPS: list[tuple[Any, ...]] = [
    *(((count, width),) for count, width in ((24, 12), (24, 13), (12, 28), (12, 31), (9, 60), (9, 63))),
    *(((5, width),) for width in (124, 127, 252, 255, 380, 508, 511)),
    *(((20, width), 3) for width in (60, 63, 124, 127, 252, 255)),
    *(((7, width), 0, name) for name in ("f16", "bf16") for width in (24, 26, 56, 62, 120, 126, 248, 254, 504, 510)),
    *(((20, width), 3, name) for name in ("f16", "bf16") for width in (62, 64, 120, 126, 248, 254)),
]
# Groups that are no whole vectors, of each number of values that a thread has of them in the backward.
SINGLES: list[tuple[Shape, int, int]] = [
    ((21, 35, 3), 7, 4), ((21, 35, 5), 7, 4), ((3, 34, 3), 2, 16), ((3, 34, 7), 2, 16), ((3, 34, 7), 2, 32),
    ((3, 34, 13), 2, 32), ((3, 34, 21), 2, 32),
]  # fmt: skip

# Each family: what its cases are made by, and of. Grids are short here (see `short_grids`): with more than two images a
# block goes round.
CASES: dict[str, list[tuple[Callable[..., Case], tuple[Any, ...]]]] = {
    "group_norm": [
        (group_norm, ((5, 4, 67), 2)),
        (group_norm, ((1, 3, 1), 1)),
        (group_norm, ((2, 6, 700), 2, False)),
        (group_norm_backward, ((5, 6, 37), 2)),
        (group_norm_backward, ((130, 2, 3), 1)),  # more images than one warp adds up
        (group_norm_backward, ((3, 130, 3), 1)),
        (group_norm_backward, ((1, 2, 2100), 1, False)),
        *((group_norm, ((5, 4, 67), 2, True, name)) for name in others("group_norm")),
        *((group_norm_of_16_bits, (name,)) for name in ("f16", "bf16")),
        *((group_norm_backward, ((5, 6, 37), 2, True, name)) for name in others("group_norm")),
        *((group_norm_backward, ((130, 1, 3), 1, True, name)) for name in others("group_norm")),
    ],
    "group_norm_last": [
        (group_norm, ((5, 6, 37), 2, True, "f32", True)),
        (group_norm, ((1, 40, 9), 1, False, "f32", True)),  # more channels than lanes
        (group_norm_backward, ((5, 6, 37), 2, True, "f32", True)),
        (group_norm_backward, ((2, 80, 19), 2, False, "f32", True)),
        *((group_norm, ((5, 6, 37), 2, True, name, True)) for name in others("group_norm_last")),
        *((group_norm_backward, ((5, 10, 37), 2, True, name, True)) for name in others("group_norm_last")),
        *((group_norm_of_16_bits, (name, True)) for name in ("f16", "bf16")),
    ],
    # Units of vectors and of single channels, threads without a row; several turns of the rows, and slices.
    "norm_last": [
        *(
            (each, case)
            for each in (norm_last, norm_last_backward)
            for case in (
                ("channels_last", (130, 48), True),
                ("channels_last", (130, 48), False),
                ("channels_last", (43, 41), True),
                ("channels_last_split", (2, 40, 61), 10),
            )
        ),
        *(
            (each, ("channels_last", (70, 128), training, name))
            for name in others("norm_last")
            for each, training in ((norm_last, True), (norm_last, False), (norm_last_backward, True))
        ),
    ],
    # A tile that is not full, threads without a row; more rows than are under way; groups that end within vectors, and
    # one for which there are more threads than a group of lanes.
    "norm_last_tickets": [
        *(
            (norm_last_in_tickets, (backward, *case))
            for backward in (False, True)
            for case in (
                ((130, 40), False, 96),
                ((600, 16), True, 64),
                ((2, 48, 61), 16, 96),
                ((1, 32, 70), 1, 64),
            )
        ),
        *(
            (norm_last_in_tickets, (backward, *case, name))
            for name in others("norm_last_tickets")
            for backward in (False, True)
            for case in (((70, 48), False, 48), ((2, 48, 61), 6, 64))
        ),
    ],
    "batch_norm_tickets": [
        (batch_norm_by, ("tickets", (3, 2, 37))),
        (batch_norm_by, ("tickets", (17, 2, 520), False)),  # vectors, more slices than one
        (batch_norm_backward_by, ("tickets", (3, 2, 37))),
        (batch_norm_backward_by, ("tickets", (17, 2, 520), True)),
        *(
            (each, ("tickets", (3, 3, 40), *more, True, name))
            for name in others("batch_norm_tickets")
            for each, more in ((batch_norm_by, ()), (batch_norm_backward_by, (False,)))
        ),
    ],
    "group_norm_cached": [
        (group_norm, ((2, 4, 520), 2, True, "f32", False, "cached")),
        (group_norm, ((1, 2, 1601), 2, False, "f32", False, "cached")),  # single values, four a thread
        *((group_norm, ((2, 4, 520), 2, True, name, False, "cached")) for name in others("group_norm_cached")),
    ],
    "group_norm_held": [
        (group_norm, ((2, 4, 1040), 2, True, name, False, "held"))  # three turns of the block, or two
        for name in ("f32", *others("group_norm_held"))
    ],
    # Several warps of each image, and one, with more channels than warps; half a wave of 64 in another image.
    "group_norm_few": [
        *(
            (make, (shape, 2, affine, "f32", False, "few"))
            for make in (group_norm, group_norm_backward)
            for shape, affine in (((2, 4, 520), True), ((3, 12, 8), False), ((5, 4, 100), True))
        ),
        *(
            (make, ((2, 4, 208 if name == "f64" else 400), 2, True, name, False, "few"))
            for make in (group_norm, group_norm_backward)
            for name in others("group_norm_few")
        ),
    ],
    # Each number of slots, of vectors and of single values; a rest of groups, and of units; whole groups of 32 lanes.
    "group_norm_teams": [
        *((group_norm_in_teams, (False, (3, 8, 8 * slots - 1), 2, 8)) for slots in range(1, 9)),
        *((group_norm_in_teams, (False, (5, 2, 8 * slots - 1), 2, 8)) for slots in (1, 4, 8, 16, 32)),
        (group_norm_in_teams, (False, (37, 48), 4, 2)),
        (group_norm_in_teams, (False, (5, 48, 2), 2, 8, "f32", False)),  # more than two channels a vector
        *((group_norm_in_teams, (False, *shape)) for shape in (((9, 8, 31), 2, 32), ((2, 8, 98), 2, 96))),
        *((extreme_teams, (False, (4, 8, hw), lanes)) for hw, lanes in ((31, 8), (70, 64))),
        *(
            (group_norm_in_teams, (False, (3, channels, 8 * slots - 1), 2, 8, name))
            for name in others("group_norm_teams")
            for channels, numbers in ((16, (1, 2, 3, 4)), (2, (4, 8, 16, 32)))
            for slots in numbers
        ),
    ],
    # The same; two images a team, or several beside each other. Few channels' gradients may be what is left of terms.
    "group_norm_teams_backward": [
        *((group_norm_in_teams, (True, (3, 8, 32 * slots - 1), 2, 32)) for slots in range(1, 6)),
        *((group_norm_in_teams, (True, (21, 8, lanes * slots - 1), 2, lanes)) for lanes in (4, 16) for slots in (1, 2)),
        *((group_norm_in_teams, (True, *shape)) for shape in SINGLES),
        (group_norm_in_teams, (True, (69, 48), 2, 8)),
        (group_norm_in_teams, (True, (33, 48), 3, 4)),  # more teams than a block's images times its groups
        (group_norm_in_teams, (True, (5, 24, 2), 2, 8, "f32", False)),
        (group_norm_in_teams, (True, (3, 8, 281), 2, 288)),
        *((extreme_teams, (True, (4, 8, hw), lanes)) for hw, lanes in ((15, 16), (31, 32), (31, 64))),
        *(
            (group_norm_in_teams, (True, *shape, name))
            for name in others("group_norm_teams_backward")
            for shape in (
                *(((3, 16, lanes * slots - 1), 2, lanes) for lanes, slots in ((32, 1), (32, 2), (4, 1), (16, 1))),
                *SINGLES,
            )
        ),
    ],
    # More tickets than blocks; slices of whole vectors and of single values.
    "group_norm_tickets": [
        (group_norm_in_tickets, (False, (2, 4, 700), 2)),
        (group_norm_in_tickets, (False, (1, 2, 2055), 1, False)),
        (group_norm_in_tickets, (True, (2, 4, 524), 2)),
        (group_norm_in_tickets, (True, (1, 5, 3), 1, False)),
        *(
            (group_norm_in_tickets, (backward, (2, 2, 264), 1, True, name))
            for name in others("group_norm_tickets")
            for backward in (False, True)
        ),
    ],
    "softmax2d": [
        (softmax2d, ((2, 5, 7, 19),)),
        (softmax2d, ((3, 40, 100),)),
        (softmax2d_backward, ((2, 5, 7, 19),)),
        (softmax2d_backward, ((1, 40, 37),)),
        (softmax2d, ((2, 100, 30), "f32", "tiled")),
        (softmax2d_backward, ((5, 100, 30), "f32", "tiled")),  # several tiles a block
        *(  # of which registers hold a part
            (each, ((1, channels, hw), name, "tiled"))
            for name, channels, hw in (("f32", 2100, 8), ("f64", 2100, 4), ("f16", 1040, 16), ("bf16", 1040, 16))
            for each in (softmax2d, softmax2d_backward)
        ),
        *((each, ((1, 40, 37), name)) for name in others("softmax2d") for each in (softmax2d, softmax2d_backward)),
        *(
            (softmax2d_of_many_columns, (op, (2, 9, 7, 19), name))
            for name in ("f32", *others("softmax2d"))
            for op in ("softmax2d", "softmax2d_backward")
        ),
        *(
            (each, (shape, name, "last"))
            for name, shape in (
                ("f32", (37, 232)),
                ("f32", (1, 4)),
                ("f64", (9, 60)),
                ("f16", (9, 232)),
                ("bf16", (9, 232)),
            )
            for each in (softmax2d, softmax2d_backward)
        ),
        (softmax2d_backward_rounded_twice, ("f16",)),
        (softmax2d_backward_rounded_twice, ("bf16",)),
    ],
    "batch_norm": [
        (batch_norm, ((3, 3, 131), True)),
        (batch_norm, ((40, 2, 3), True, False)),
        (batch_norm, ((3, 3, 31), False)),
        (batch_norm_backward, ((3, 3, 131), True)),
        (batch_norm_backward, ((40, 2, 3), True, False, False)),
        (batch_norm_backward, ((3, 3, 31), True, True)),
        (batch_norm_backward, ((3, 3, 31), False)),
        *((batch_norm, ((3, 3, 131), True, True, name)) for name in others("batch_norm")),
        *((batch_norm_backward, ((3, 3, 131), True, False, True, name)) for name in others("batch_norm")),
        *((batch_norm_backward, ((3, 2, 97), True, True, True, name)) for name in others("batch_norm")),
        *(
            (batch_norm_in_eval, (shape, name))
            for name in ("f32", *others("batch_norm"))
            for shape in ((9, 30, 40), (17, 3, 7))  # the latter without vectors
        ),
        (batch_norm_in_eval, ((2, 3, 1030),)),
        *(
            (batch_norm_backward_in_slices, (shape, name))
            for name in ("f32", *others("batch_norm"))
            for shape in ((21, 1, 400), (3, 2, 37))  # the latter without vectors
        ),
    ],
    "batch_norm_cached": [
        *((batch_norm_cached128, ((11, 2, 36), name)) for name in ("f32", *others("batch_norm_cached"))),
        *((batch_norm_backward_cached128, ((11, 2, 37), True, name)) for name in ("f32", *others("batch_norm_cached"))),
        *((batch_norm_backward_cached128, ((11, 2, 36), False, name)) for name in ("f16", "bf16")),
        (batch_norm_by, ("cached", (3, 2, 37))),
        (batch_norm_by, ("cached", (5, 2, 520), False)),
        (batch_norm_backward_by, ("cached", (3, 2, 37))),
        (batch_norm_backward_by, ("cached", (5, 2, 520), True)),
        *(
            (batch_norm_by, ("cached", shape, True, name))
            for name in others("batch_norm_cached")
            for shape in ((6 if name == "f64" else 21, 1, 400), (29, 2, 37))  # three turns of the block
        ),
        *(
            (batch_norm_backward_by, ("cached", shape, handed, True, name))
            for name in others("batch_norm_cached")
            for shape, handed in (((6 if name == "f64" else 21, 1, 400), True), ((29, 2, 37), False))
        ),
    ],
    "batch_norm_small": [
        (batch_norm_by, ("small", (3, 3, 37))),
        (batch_norm_by, ("small", (7, 2, 100), False)),  # several warps, and threads without values
        (batch_norm_in_small_eval, ((3, 3, 37),)),
        (batch_norm_in_small_eval, ((2, 2, 1100),)),  # more blocks than one a row
        (batch_norm_backward_in_small, ((3, 3, 37), True)),
        (batch_norm_backward_in_small, ((7, 2, 100), False)),
        *((batch_norm_by, ("small", (3, 3, 37), True, name)) for name in others("batch_norm_small")),
        *((batch_norm_in_small_eval, ((3, 3, 37), name)) for name in others("batch_norm_small")),
        *((batch_norm_backward_in_small, ((3, 3, 37), True, name)) for name in others("batch_norm_small")),
    ],
    "batch_norm_alone": [
        (batch_norm_alone, ((37, 12),)),
        (batch_norm_alone, ((9, 520), False)),  # more units than a block has threads otherwise
        *((batch_norm_alone, ((37, 24), True, name)) for name in others("batch_norm_alone")),
    ],
    "batch_norm_exact": [
        (exact_shard, ((3, 3, 37),)),
        (exact_shard, ((5, 2, 1), False)),
        (exact_backward_shard, ((3, 3, 37),)),
        (exact_backward_shard, ((5, 2, 1), False)),
        *(
            (exact_sums, ((9, 2, 40), backward, "f32", backward)) for backward in (False, True)
        ),  # several values a thread
        *(
            (make, (shape, *more, name))
            for name in others("batch_norm_exact")
            for make, shape, more in (
                (exact_shard, (3, 3, 37), (True,)),
                (exact_backward_shard, (3, 3, 37), (True,)),
                (exact_sums, (5, 2, 17), (False,)),
                (exact_sums, (5, 2, 17), (True,)),
            )
        ),
    ],
    "batch_norm_rounded": [
        *((rounded_sums, ((21, 1, 400), backward)) for backward in (False, True)),  # vectors, more than a turn
        *((rounded_sums, ((9, 5, 40), backward, "f32", 8)) for backward in (False, True)),  # more slices than lanes
        *((rounded_sums, ((9, 5, 8), backward, "f32", None, True)) for backward in (False, True)),
        *(
            (rounded_sums, (shape, backward, name, 40))
            for name in others("batch_norm_rounded")
            for shape in ((5, 3, 17), (7, 2, 80))  # the latter in vectors
            for backward in (False, True)
        ),
    ],
    "batch_norm_statistics": [
        (each, ((3, 260, 2) if name == "f32" else (2, 3, 5), name))
        for name in ("f32", "f64")
        for each in (batch_norm_counted, batch_norm_backward_of_inverse)
    ],
    "local_response_norm": [
        (local_response_norm, ((2, 7, 5, 9), 5)),
        (local_response_norm, ((1, 3, 300), 4)),
        (local_response_norm_backward, ((2, 7, 5, 9), 5)),
        (local_response_norm_backward, ((1, 3, 300), 4)),
        *(
            (each, ((2, 23, 150), 5, name, "sliding"))
            for name in ("f32", "f64")
            for each in (local_response_norm, local_response_norm_backward)
        ),
        *(
            (each, ((2, 7, 60), 4, name, "sliding"))
            for name in ("f16", "bf16", "f64")
            for each in (local_response_norm, local_response_norm_backward)
        ),
        *((local_response_norm, ((2, 7, 5, 9), 5, name)) for name in others("local_response_norm")),
        *((local_response_norm_backward, ((2, 7, 5, 9), 5, name)) for name in others("local_response_norm")),
    ],
    "local_response_norm_last": [
        (each, (shape, size, name, "last"))
        for name, shape, size in (
            ("f32", (70, 32), 5),
            ("f32", (3, 12), 9),
            ("f16", (70, 64), 3),
            ("bf16", (9, 8), 7),
        )
        for each in (local_response_norm, local_response_norm_backward)
    ],
    "softmax2d_held": [
        (softmax2d_held, (backward, shape, threads, name))
        for shape, threads, name in (
            *(((2, 24, 7, 7), 128, "f32"), ((2, 14, 104), 32, "f32")),  # whole images; strips, the last one narrower
            *(((1, 24, 7, 7), 128, "f64"), ((1, 14, 104), 32, "f16"), ((1, 14, 104), 32, "bf16")),
        )
        for backward in (False, True)
    ],
    # Each entry; rows that are whole vectors and such that are not, a tile that is narrower than a block.
    "softmax2d_strips": [
        (softmax2d_strips, (backward, (2, channels, hw), positions, name))
        for names, positions, channels, hw in (
            (("f32",), 2, 6, 71),
            (("f32",), 4, 3, 132),
            (("f32",), 4, 7, 130),
            *((("f16", "bf16"), *more) for more in ((2, 7, 70), (2, 19, 65), (2, 35, 66))),
            *((("f16", "bf16"), *more) for more in ((4, 2, 132), (4, 7, 129), (4, 11, 132), (8, 5, 264))),
        )
        for name in names
        for backward in (False, True)
    ],
    "upsample_nearest2d": [
        *((upsample_nearest2d, (name, (2, 3, 5, 7), 9, 20)) for name in ("f32", "f64", "f16", "bf16", "u8", "u32")),
        (upsample_nearest2d, ("f32", (1, 1, 30, 2), 44, 1)),
        *((upsample_nearest2d, (name, (2, 3, 5, 16), 9, 48, "tables")) for name in ("f32", "f64", "u32")),
        *(
            (upsample_nearest2d, (name, (2, 3, 5, 16), 7, w, "tables"))
            for name in ("f16", "bf16", "u8")
            for w in (32, 48)
        ),
        *((upsample_nearest2d_backward, (name, (2, 3, 9, 20), 5, 31)) for name in ("f32", "f64", "f16", "bf16")),
        (upsample_nearest2d_backward, ("f32", (1, 1, 4, 4), 2, 3)),  # less elements than a block has threads
        *(
            (upsample_nearest2d_backward, (name, (2, 3, 12, 16 * w), 3, 16, "factors"))
            for name, w in (("f32", 2), ("f32", 3), ("f64", 4), ("f16", 3), ("bf16", 2))
        ),
        *(  # three pieces a row
            (upsample_nearest2d, (name, (2, 3, 5, 2), 10, 3 * width // size, "narrow"))
            for name, size in (("u32", 4), ("u8", 1), ("f16", 2), ("f64", 8))
            for width in (16, 8, 4, 2)
            if width >= size
        ),
        *(
            (upsample_nearest2d_backward, (name, (2, 3, 2 * factor, 3 * each * factor), 2, 3 * each, "narrow"))
            for name, most in (("f32", 2), ("f16", 4), ("bf16", 4), ("f64", 1))
            for factor in (2, 3, 4)
            for each in (1, 2, 4)
            if each <= most
        ),
    ],
    "grid_sample": [
        *((grid_sample, (name, (5, 6, 7, 9), (3, 43))) for name in ("f32", "f64")),
        (grid_sample, ("f32", (1, 1, 5, 3), (33, 129))),
        *((grid_sample_backward, (name, (5, 11, 7, 9), (3, 15))) for name in ("f32", "f64")),
        (grid_sample_backward, ("f32", (3, 1, 7, 9), (5, 13))),
        (grid_sample_backward, ("f32", (1, 3, 9, 5), (1, 40))),
        *(
            (grid_sample_backward, (name, (2, 50, 3, 5), (3, 15), "channels_last"))
            for name in ("f32", "f64", "f16", "bf16")
        ),
        (
            grid_sample_backward,
            ("f32", (1, 3, 33, 41), (5, 60), "channels_last"),
        ),  # several tiles, of points and pixels
        *((grid_sample, (name, (3, 5, 4, 5), (3, 13))) for name in ("f16", "bf16")),
        *((grid_sample, (name, (2, 200, 4, 5), (3, 19), "last")) for name in ("f32", "f64", "f16", "bf16")),
        (grid_sample, ("f32", (1, 1, 3, 5), (1, 800))),  # more positions than the threads of all blocks
    ],
    "layer_norm": [
        (layer_norm, ((5, 67),)),
        (layer_norm, ((3, 700), False)),
        (backward_of_rows, ("layer_norm", (67, 9))),  # more slices than a warp adds up
        (backward_of_rows, ("layer_norm", (1, 1100), False)),
        *((layer_norm, ((5, 67), True, name)) for name in others("layer_norm")),
        *((backward_of_rows, ("layer_norm", (5, 67), True, name)) for name in others("layer_norm")),
    ],
    "rms_norm": [
        (rms_norm, ((5, 67),)),
        (rms_norm, ((3, 700), False)),
        (backward_of_rows, ("rms_norm", (67, 9))),  # more slices than a warp adds up
        (backward_of_rows, ("rms_norm", (1, 1100), False)),
        *((rms_norm, ((5, 67), True, name)) for name in others("rms_norm")),
        *((backward_of_rows, ("rms_norm", (5, 67), True, name)) for name in others("rms_norm")),
    ],
    **{
        f"{op}_held": [
            (held, (op, (5, 136), 64)),
            (held, (op, (3, 400), 32, 0, False)),
            (held, (op, (67, 72), 32, 1)),  # more slices than a block adds up at once
            (held, (op, (5, 136), 64, 2, False)),
            *((held, (op, (2, 128 * slots), 32)) for slots in range(1, 9)),
            *((held, (op, (3, 128 * slots), 32, 2)) for slots in range(1, 5)),
            *((held, (op, (2, 256 * slots), 32, 0, True, name)) for name in ("f16", "bf16") for slots in range(1, 5)),
            *((held, (op, (3, 256 * slots), 32, 2, True, name)) for name in ("f16", "bf16") for slots in (1, 2)),
            *((held, (op, (3, 264), 64, length, True, name)) for name in ("f16", "bf16") for length in (0, 2)),
            *((held_warps, (op, *of)) for of in OF_WARPS),
        ]
        for op in ("layer_norm", "rms_norm")
    },
    # Rows and columns of several blocks; more rows than a block takes at once; vectors that are not there, slots.
    **{
        f"{op}_apart": [
            (rows_apart, (op, (133, 72))),
            (rows_apart, (op, (70, 136), False)),
            *((rows_apart, (op, (3, width))) for width in (264, 512)),
            (extreme_rows_apart, (op, (20, 136))),
            *((rows_apart, (op, shape, True, name)) for name in ("f16", "bf16") for shape in ((33, 72), (5, 264))),
        ]
        for op in ("layer_norm", "rms_norm")
    },
    "grid_sample_modes": [
        *(
            (grid_sample_modes_backward, (variant, *mode))
            for variant in ("general_fixed_point", "general")
            for mode in MODES
        ),
        *((grid_sample_modes, mode) for mode in MODES),
        (grid_sample_modes_backward, ("general", "bilinear", 2, "border", "f16")),
    ],
    "grid_sample_modes_last": [
        (grid_sample_modes_backward, ("general_last", *mode))
        for mode in (
            ("bilinear", 2, "reflection"),
            ("bicubic", 2, "zeros"),
            ("bilinear", 3, "border"),
            ("bilinear", 2, "zeros", "bf16"),
        )
    ],
    "grid_sample_modes_tiled": [
        (grid_sample_modes_tiled, ((64, 16, 4),)),
        (grid_sample_modes_tiled, ((128, 3, 12), "border")),  # its channels come in several goes
        (grid_sample_modes_tiled, ((96, 2, 8), "reflection", "f32", 0.1)),  # the box is cut
        (grid_sample_modes_tiled, ((64, 1, 12), "zeros", "f32", 0.6, (5, 33))),  # no box
        *((grid_sample_modes_tiled, ((256, 20, 12), "zeros", name)) for name in ("f16", "bf16")),
    ],
    "grid_sample_tiled_backward": [
        (grid_sample_tiled_backward, ((64, 1, 8),)),
        (grid_sample_tiled_backward, ((64, 0, 4),)),  # the box is cut
        (grid_sample_tiled_backward, ((64, 0, 1),)),  # no box
        (
            grid_sample_tiled_backward,
            ((128, 1, 112), "", "f32", (1, 2, 76, 70), (8, 64)),
        ),  # all that there may be of one
        (grid_sample_tiled_backward, ((32, 0, 8), "reflection")),
        *((grid_sample_tiled_backward, ((64, 0, 8), "", name)) for name in ("f16", "bf16")),
    ],
}


def type_of(arguments: tuple[Any, ...]) -> str:
    """Return the element type that a case of these arguments has, without making it."""
    return next((each for each in arguments if each in ELEMENT_NAMES), "f32")


def facts(row: tuple[Any, ...]) -> Iterator[Any]:
    """Each case in f32, of rows of warps in one of both norms; each kind of case in a type of each other size."""
    make, arguments, *target = row
    name = type_of(arguments)
    if name != "f32":
        yield make, ptxrt.dtypes.BY_NAME[name].size
    elif make is held_warps:
        yield make, *arguments[1:]
        yield make, arguments[0], *target
    else:
        yield row


def entries(row: tuple[Any, ...]) -> Iterator[Any]:
    """As `facts`, but in f32 each kind of case and each entry."""
    make, arguments, *_ = row
    if make is held_warps or type_of(arguments) != "f32":
        yield from facts(row)
    else:
        yield make
        yield from (step.kernel for step in planned(make(*arguments)).schedule.launches)


def few_blocks(count: int, threads: int) -> int:
    """Return two blocks at most, for a small problem."""
    return min(blocks_in_hip(count, threads), 2) if count < 1 << 20 else blocks_in_hip(count, threads)


@pytest.fixture(autouse=True)
def short_grids(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys.modules["ptxrt.ops._group_norm"], "_GRID_Y", 2)
    monkeypatch.setattr(tickets, "_BLOCKS", 3)
    for name in (
        "batch_norm",
        "batch_norm_exact",
        "group_norm",
        "softmax2d",
        "upsample_nearest2d",
    ):
        monkeypatch.setattr(sys.modules[f"ptxrt.ops._{name}"], "blocks_in_hip", few_blocks)
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "_GRID_YZ", 2)
    monkeypatch.setattr(sys.modules["ptxrt.ops._grid_sample"], "blocks_in_hip", lambda *_: 3)
    monkeypatch.setattr(rows, "_SLICE", 2)
    monkeypatch.setattr(rows, "blocks_in_hip", few_blocks)
    for name in ("modes", "modes_last"):
        monkeypatch.setattr(sys.modules[f"ptxrt.ops._grid_sample_{name}"], "_GRID_YZ", 2)


def planned(case: Case) -> waves.AnyPlan:
    last = case.plan.op.startswith("group_norm") and case.problem.channels_last
    variant = "channels_last" if last and case.variant == "baseline" else case.variant
    with Patch.context() as patch:
        patch.setattr(sys.modules["ptxrt.ops._softmax2d"], "_COUNTED", case.counted)
        plan: waves.AnyPlan = case.plan.select("sim:0", case.problem, wish(f"hip/{variant}", config=case.config))
    assert plan.variant.language == "hip"
    return plan


def check(case: Case, wave: int, schedule: str, text: str | None = None) -> dict[str, Any]:
    """Run a case, or another text in the kernels' place, and hold its results to their bars; return them."""
    got = waves.run(planned(case), case.given, wave, schedule, text)
    assert set(got) == set(case.want)
    for name, (want, limit) in case.want.items():
        error = relative_error(case.seen(got[name]), want)
        assert error <= limit, f"{name}, waves of {wave}, {schedule}: error {error:.2e} above {limit:.2e}"
    return got


def passes(case: Case, text: str) -> bool:
    """Return whether a text in the kernels' place passes for them, in every run."""
    try:
        for wave, schedule in RUNS:
            check(case, wave, schedule, text)
    except (AssertionError, waves.Divergence):
        return False
    return True


# The kernels ----------------------------------------------------------------------------------------------------------


# Whose machine code does not run: it takes integer atomics, reads of one lane's register, or minutes to compile.
NO_MACHINE_CODE = ("grid_sample_modes", "grid_sample_tiled_backward")
# What test_machine_code.py runs; of the types of 16 bits the one that has a target of its own.
AS_MACHINE_CODE = covering(
    sorted(
        (case for family, cases in CASES.items() if not family.startswith(NO_MACHINE_CODE) for case in cases),
        key=lambda case: type_of(case[1]) == "f16",
    ),
    entries,
)


def as_text(row: tuple[Any, ...]) -> Iterator[Any]:
    """As `facts`, but of what runs as machine code each kind of case."""
    make, arguments = row
    if type_of(arguments) == "f32" and row in AS_MACHINE_CODE:
        yield make
    else:
        yield from facts(row)


@pytest.mark.parametrize(
    ("make", "arguments"),
    covering((case for cases in CASES.values() for case in cases), as_text),
    ids=lambda v: getattr(v, "__name__", str(v)),
)
def test_results_do_not_depend_on_waves_nor_on_the_order_of_threads(make: Any, arguments: Any) -> None:
    case = make(*arguments)
    # Each width and each order, not each with each; of other types each width.
    few = RUNS[::2] if case.problem.dtype.name == "f32" else (RUNS[0], RUNS[-1])
    results = [check(case, wave, schedule) for wave, schedule in (RUNS if EVERYTHING else few)]
    if planned(case).precision_guarantee.deterministic:
        for other in results[1:]:
            for name, values in results[0].items():
                assert other[name].tobytes() == values.tobytes(), name


def test_every_kernel_in_hip_is_launched_here() -> None:
    launched = set()
    for make, arguments in (c for cases in CASES.values() for c in cases):
        plan = planned(make(*arguments))
        launched |= {s.kernel for s in plan.schedule.steps if isinstance(s, Launch)}
    # Of grid_sample's many entries those of f32, and the one that f32 has not: each type takes the same ways.
    modes = {spec for spec in HIP if spec.family.startswith("grid_sample_modes")}
    of_f32 = {spec for spec in modes if spec.dtype == "f32"}
    rounds = next(spec for spec in modes if spec.entry == "grid_sample_modes_backward_round_f16")
    assert launched - modes == set(HIP) - modes
    assert launched >= of_f32 | {rounds}


# The harness ----------------------------------------------------------------------------------------------------------

BARRIER = "__syncthreads();"


# block_sum.jinja's first is for its second call, which the kernels of some families do not make. Two of tickets.jinja's
# are for blocks that run at once, and here one runs after the other.
SPARE = {
    ("batch_norm", 0),
    ("batch_norm_cached", 0),
    ("batch_norm_rounded", 0),
    ("grid_sample_modes_tiled", 0),  # points that the box misses are read elsewhere, as right
    ("grid_sample_tiled_backward", 0),  # the same
    ("norm_last", 0),
    ("group_norm_teams_backward", 0),  # between one block's columns and the next ones, of which it has no others
    *((f"{op}_norm_tickets", number) for op in ("batch", "group") for number in (0, 3, 4)),
    ("norm_last_tickets", 1),  # that of announce(): as above
}
BARRIERS = [
    (family, i)
    for (family, dtype), text in TEXTS.items()
    if dtype == "f32"
    for i in range(text.count(BARRIER))
    if (family, i) not in SPARE
]


@pytest.mark.parametrize(
    ("family", "number"),
    # One of those of which test_machine_code.py has each.
    covering(BARRIERS, lambda row: ["" if re.match("(group|batch)_norm|grid_sample_.*backward", row[0]) else row[0]]),
)
def test_a_barrier_that_is_missing_from_a_kernel_is_noticed(family: str, number: int) -> None:
    parts = TEXTS[family, "f32"].split(BARRIER)
    text = BARRIER.join(parts[: number + 1]) + BARRIER.join(parts[number + 1 :])
    cases = [make(*arguments) for make, arguments in CASES[family]]
    assert not all(passes(case, text) for case in cases if case.problem.dtype.name == "f32")


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        (
            "if (image >= shape[0]) return;",
            "if (image >= shape[0]) { if (image + channel + i + j == shape[0]) dst[element] = 1; return; }",
            "written outside of out",
        ),
        ("dst[element] =", "const_cast<Bits*>(src)[0] += 1;\ndst[element] =", "written to x"),
    ],
)
def test_what_is_written_elsewhere_is_noticed(line: str, instead: str, said: str) -> None:
    text = TEXTS["upsample_nearest2d", "u8"]
    assert line in text
    with pytest.raises(AssertionError, match=said):
        check(upsample_nearest2d("u8", (2, 3, 5, 7), 9, 20), 32, "forward", text.replace(line, instead))


# The sum of a block, in which waves are as wide as STEP and ROW have it.
SUM = """
    __shared__ float rows[8];
    float value = x[threadIdx.x];
    for (int step = STEP; step > 0; step /= 2) value += __shfl_down(value, step);
    if (threadIdx.x % ROW == 0) rows[threadIdx.x / ROW] = value;
    __syncthreads();
    if (threadIdx.x == 0) {
        *y = 0;
        for (int row = 0; row < int(blockDim.x) / ROW; ++row) *y += rows[row];
    }
"""

# What a lane gets of each, in waves of 32 and of 64: that of the last wave of 48 threads whose v is 42 and number 41.
OF_A_LANE = {
    "__shfl(v, 3)": (36, 4),
    "__shfl(v, 3, 8)": (44, 44),
    "__shfl(v, 13, 8)": (46, 46),
    "__shfl_up(v, 4)": (38, 38),
    "__shfl_up(v, 10)": (42, 32),
    "__shfl_up(v, 2, 8)": (42, 42),
    "__shfl_down(v, 3)": (45, 45),
    "__shfl_down(v, 7, 8)": (42, 42),
    "__shfl_down(v, 7)": (np.nan, np.nan),
    "__shfl_xor(v, 5)": (45, 45),
    "__shfl_xor(v, 32)": (42, 10),
    "__shfl_xor(v, 8, 8)": (34, 34),
    "__shfl_xor(v, 16, 8)": (42, 42),
    "__shfl_xor(double(v), 16)": (np.nan, np.nan),
    "__ballot(v > 47) >> 8": (0x80, 0x80 << 32),
    "__ballot(v < 3)": (0, 3),
    "__all(v > 32)": (1, 0),
    "__any(v == 1)": (0, 1),
}

KERNELS = {
    "any_width": SUM.replace("STEP", "warpSize / 2").replace("ROW", "warpSize"),
    "step_of_32": SUM.replace("STEP", "16").replace("ROW", "warpSize"),
    "all_of_64": SUM.replace("STEP", "32").replace("ROW", "64"),
    "two_barriers": "if (threadIdx.x < 7) __syncthreads();\nelse\n__syncthreads();",
    "half_a_shuffle": "float v = x[0];\nif (threadIdx.x < 7) v = __shfl_xor(v, 1);\n__syncthreads();",
    "two_votes": "if (threadIdx.x < 7) __any(1);\nelse\n__all(1);",
    "too_wide": "*y = __shfl_xor(x[0], 1, 128);",
    "odd_width": "*y = __shfl_xor(x[0], 1, 24);",
    "a_lane": "float v = x[threadIdx.x], got;\n"
    + "".join(f"got = {get};\nif (v == 42) y[{i}] = got;\n" for i, get in enumerate(OF_A_LANE)),
    "half_ends": "if (threadIdx.x % 2) return;\n__syncthreads();\n*y = __all(threadIdx.x % 2 == 0);",
    "order": "__shared__ int last;\ny[atomicAdd(&last, 1) + 1] = threadIdx.x;",  # -1, being poison, at first
    "blocks": "y[y[0] == y[0]] = blockIdx.x;",  # y[0], which is NaN at first, then y[1]
    "reads_before": "__shared__ float v;\n*y = threadIdx.x ? *y : v;\nv = 1;",
}


def kernel(name: str, body: str) -> str:
    return f'extern "C" __global__ void {name}(const float* x, float* y) {{\n{body}\n}}\n'


def launched(name: str, wave: int, schedule: str, block: int = 256, grid: int = 1) -> Any:
    """Run one of KERNELS with x = 1, 2, 3, ... and return its y."""
    x, y = np.arange(1, block + 1, dtype=np.float32), np.full(256, np.nan, np.float32)
    program = waves.compiled("".join(kernel(*each) for each in KERNELS.items()), tuple(KERNELS))
    signature = Signature.parse("const f32* x, f32* y")
    program.launch(name, signature, (grid,), block, (x.ctypes.data, y.ctypes.data), wave, schedule)
    return y


@each_run
@pytest.mark.parametrize(("name", "right"), [("any_width", (32, 64)), ("step_of_32", (32,)), ("all_of_64", (64,))])
def test_a_kernel_for_one_width_of_a_wave_is_wrong_in_another(wave: int, schedule: str, name: str, right: Any) -> None:
    assert (launched(name, wave, schedule)[0] == 256 * 257 / 2) == (wave in right)


@each_run
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("two_barriers", "for its block.*for its block"),
        ("half_a_shuffle", "for its wave.*for its block|for its block.*for its wave"),
        ("two_votes", "for its wave.*for its wave"),
        ("too_wide", "width is 128, in waves of"),
        ("odd_width", "width is 24, in waves of"),
    ],
)
def test_threads_that_do_not_meet_are_reported(wave: int, schedule: str, name: str, said: str) -> None:
    with pytest.raises(waves.Divergence, match=f"{name}, waves of {wave}, {schedule}: line .*{said}"):
        launched(name, wave, schedule)


@each_run
def test_shuffles_and_votes_are_those_of_hip(wave: int, schedule: str) -> None:
    got = dict(zip(OF_A_LANE, launched("a_lane", wave, schedule, 48), strict=False))
    want = {get: values[wave == 64] for get, values in OF_A_LANE.items()}
    np.testing.assert_equal(got, {get: np.float32(value) for get, value in want.items()})


@pytest.mark.parametrize("wave", [32, 64])
def test_each_schedule_has_its_order(wave: int) -> None:
    threads = list(range(96))
    by_wave = sorted(threads, key=lambda thread: -(thread // wave))
    orders = {"forward": threads, "backward": threads[::-1], "wave by wave": by_wave}
    assert {schedule: launched("order", wave, schedule, 96)[:96].tolist() for schedule in waves.SCHEDULES} == orders
    blocks = {schedule: launched("blocks", wave, schedule, 1, 2)[:2].tolist() for schedule in waves.SCHEDULES}
    assert blocks == {"forward": [0, 1], "backward": [1, 0], "wave by wave": [0, 1]}


@each_run
def test_lanes_that_have_ended_take_no_part(wave: int, schedule: str) -> None:
    assert launched("half_ends", wave, schedule)[0] == 1


def test_shared_memory_is_poison_when_a_block_begins() -> None:
    for _ in range(2):
        assert np.isnan(launched("reads_before", 32, "forward")[0])


def test_what_the_compiler_refuses_is_reported() -> None:
    with pytest.raises(RuntimeError, match=r"text\.hip:2.*nonsense"):
        waves.Program(kernel("k", "nonsense();"), ("k",))
