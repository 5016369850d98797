"""Small problems of every op in each of its element types: operands, references, and the calls of users."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from op_testing import Guarded, key_of, on_device
from tolerances import BARS, bar, grid_sample_bar, rounded_bar

import ptxrt
from ptxrt import ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import references
from ptxrt.ops.framework import Limits, Plan, Schedule, parameter_type
from ptxrt.runtime.layout import channels_last, contiguous

Array = NDArray[Any]
SHAPE = (2, 8, 6)


@dataclass(frozen=True)
class Case:
    """One problem of one plan.

    Attributes
    ----------
    name
        Unique among the cases of all plans.
    problem
        The descriptor.
    inputs
        ``inputs(rng)``: operand's name -> host array, or None, for all that are no outputs.
    reference
        ``reference(**inputs)``: the outputs, in order, None for what there is none of.
    call
        ``call(operands, out, stream, **numbers)``: the op's function; `out` as it takes it. The numbers are arguments
        like ``eps``, in place of the problem's.
    """

    name: str
    plan: type[Plan[Any, Any, Any]]
    problem: Any
    inputs: Callable[[np.random.Generator], dict[str, Array | None]]
    reference: Callable[..., tuple[Any, ...]]
    call: Callable[..., Any]

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> str:
        """Of the problem, by name."""
        return str(self.problem.dtype.name)

    def bar(self, want: Array) -> float:
        """Return what the first output is held to."""
        op = self.plan.op if self.plan.op in BARS else self.plan.op.removesuffix("_backward")
        if op == "grid_sample":
            return rounded_bar(float(grid_sample_bar(self.dtype, *self.problem.shape[2:])), self.dtype, want)
        return bar(op, self.dtype, want)


def made(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Return random values of an element type."""
    kind = BY_NAME[dtype]
    if kind.kind == "int":
        return rng.integers(0, 200, shape).astype(kind.numpy)
    return np.asarray(rng.standard_normal(shape).astype(kind.numpy))


def _named(op: str, dtype: str, shape: tuple[int, ...], usual: tuple[int, ...] = SHAPE, last: bool = False) -> str:
    return f"{op} {dtype}" + ("" if shape == usual else f" {shape}") + (" channels-last" if last else "")


def _strides(shape: tuple[int, ...], last: bool) -> tuple[int, ...]:
    """Return the strides of a descriptor, for a contiguous array or a channels-last one."""
    return channels_last(shape) if last else ()


def _vectors(rng: np.random.Generator, dtype: str, count: int, *names: str) -> dict[str, Array]:
    kind = parameter_type(BY_NAME[dtype]).numpy
    return {name: np.abs(rng.standard_normal(count)).astype(kind) + kind.type(0.5) for name in names}


def _group_norm(dtype: str, shape: tuple[int, ...] = SHAPE, groups: int = 4, last: bool = False) -> Iterator[Case]:
    strides = _strides(shape, last)
    yield Case(
        _named("group_norm", dtype, shape, last=last),
        ops.GroupNormPlan,
        ops.GroupNormDescriptor(shape, groups, BY_NAME[dtype], strides=strides),
        lambda rng: {"x": made(rng, shape, dtype), **_vectors(rng, dtype, shape[1], "weight", "bias")},
        lambda x, weight, bias: (references.group_norm(x, weight, bias, groups),),
        lambda a, out, stream, groups=groups, **numbers: ops.group_norm(
            a["x"], a["weight"], a["bias"], groups, out=out, stream=stream, **numbers
        ),
    )
    yield Case(
        _named("group_norm_backward", dtype, shape, last=last),
        ops.GroupNormBackwardPlan,
        ops.GroupNormBackwardDescriptor(shape, groups, BY_NAME[dtype], strides=strides),
        lambda rng: {
            "grad_out": made(rng, shape, dtype),
            "x": made(rng, shape, dtype),
            **_vectors(rng, dtype, shape[1], "weight"),
        },
        lambda grad_out, x, weight: references.group_norm_backward(grad_out, x, weight, groups),
        lambda a, out, stream, groups=groups, **numbers: ops.group_norm_backward(
            a["grad_out"], a["x"], a["weight"], groups, out=out, stream=stream, **numbers
        ),
    )


def _softmax2d(dtype: str, shape: tuple[int, ...] = SHAPE, last: bool = False) -> Iterator[Case]:
    strides = _strides(shape, last)
    yield Case(
        _named("softmax2d", dtype, shape, last=last),
        ops.Softmax2dPlan,
        ops.Softmax2dDescriptor(shape, BY_NAME[dtype], strides),
        lambda rng: {"x": made(rng, shape, dtype)},
        lambda x: (references.softmax2d(x),),
        lambda a, out, stream: ops.softmax2d(a["x"], out=out, stream=stream),
    )
    yield Case(
        _named("softmax2d_backward", dtype, shape, last=last),
        ops.Softmax2dBackwardPlan,
        ops.Softmax2dBackwardDescriptor(shape, BY_NAME[dtype], strides),
        lambda rng: {
            "grad_out": made(rng, shape, dtype),
            "y": references.softmax2d(made(rng, shape, dtype)).astype(BY_NAME[dtype].numpy),
        },
        lambda grad_out, y: (references.softmax2d_backward(grad_out, y),),
        lambda a, out, stream: ops.softmax2d_backward(a["grad_out"], a["y"], out=out, stream=stream),
    )


_STATISTICS = ("running_mean", "running_var", "batch_mean", "batch_var")


def _batch_norm(
    dtype: str, shape: tuple[int, ...] = SHAPE, modes: tuple[bool, ...] = (True, False), last: bool = False
) -> Iterator[Case]:
    strides = _strides(shape, last)
    for training in modes:

        def forward(a: dict[str, Any], out: Any, stream: Any, training: Any = training, **numbers: Any) -> Any:
            first = (a["x"], a["weight"], a["bias"], a["running_mean"], a["running_var"])
            return ops.batch_norm(*first, training=training, out=out, stream=stream, **numbers)

        yield Case(
            _named(f"batch_norm {'training' if training else 'eval'}", dtype, shape, last=last),
            ops.BatchNormPlan,
            ops.BatchNormDescriptor(shape, training, BY_NAME[dtype], strides=strides),
            lambda rng: {
                "x": made(rng, shape, dtype),
                **_vectors(rng, dtype, shape[1], "weight", "bias", "running_mean", "running_var"),
            },
            lambda training=training, **a: references.batch_norm(*a.values(), training=training),
            forward,
        )
    for kind in (*(("training", "handed") if True in modes else ()), *(("eval",) if False in modes else ())):
        statistics = {"training": (), "handed": ("batch_mean", "batch_var"), "eval": ("running_mean", "running_var")}

        def inputs(rng: np.random.Generator, given: tuple[str, ...] = statistics[kind]) -> dict[str, Array | None]:
            tensors = {"grad_out": made(rng, shape, dtype), "x": made(rng, shape, dtype)}
            vectors = _vectors(rng, dtype, shape[1], "weight", *_STATISTICS)
            return {**tensors, **{name: a if name in ("weight", *given) else None for name, a in vectors.items()}}

        def call(a: dict[str, Any], out: Any, stream: Any, training: Any = kind != "eval", **numbers: Any) -> Any:
            first = (a["grad_out"], a["x"], a["weight"], a["running_mean"], a["running_var"])
            numbers |= {name: a[name] for name in ("batch_mean", "batch_var")}
            return ops.batch_norm_backward(*first, training=training, out=out, stream=stream, **numbers)

        yield Case(
            _named(f"batch_norm_backward {kind}", dtype, shape, last=last),
            ops.BatchNormBackwardPlan,
            ops.BatchNormBackwardDescriptor(
                shape, kind != "eval", BY_NAME[dtype], handed=kind == "handed", strides=strides
            ),
            inputs,
            lambda grad_out, x, weight, running_mean, running_var, batch_mean, batch_var, kind=kind: (
                references.batch_norm_backward(
                    grad_out, x, weight, running_mean, running_var, training=kind != "eval", batch_mean=batch_mean,
                    batch_var=batch_var,
                )
            ),
            call,
        )  # fmt: skip


def _local_response_norm(dtype: str, shape: tuple[int, ...] = SHAPE, last: bool = False) -> Iterator[Case]:
    strides = _strides(shape, last)
    yield Case(
        _named("local_response_norm", dtype, shape, last=last),
        ops.LocalResponseNormPlan,
        ops.LocalResponseNormDescriptor(shape, 5, BY_NAME[dtype], strides=strides),
        lambda rng: {"x": made(rng, shape, dtype)},
        lambda x: references.local_response_norm(x, 5),
        lambda a, out, stream, size=5, **numbers: ops.local_response_norm(
            a["x"], size, out=out, stream=stream, **numbers
        ),
    )
    yield Case(
        _named("local_response_norm_backward", dtype, shape, last=last),
        ops.LocalResponseNormBackwardPlan,
        ops.LocalResponseNormBackwardDescriptor(shape, 5, BY_NAME[dtype], strides=strides),
        lambda rng: {
            "grad_out": made(rng, shape, dtype),
            "x": made(rng, shape, dtype),
            "denom": 1 + np.abs(made(rng, shape, parameter_type(BY_NAME[dtype]).name)),
        },
        lambda grad_out, x, denom: (references.local_response_norm_backward(grad_out, x, denom, 5),),
        lambda a, out, stream, size=5, **numbers: ops.local_response_norm_backward(
            a["grad_out"], a["x"], a["denom"], size, out=out, stream=stream, **numbers
        ),
    )


_IMAGE = (2, 3, 4, 5)


def _upsample_nearest2d(dtype: str, shape: tuple[int, ...] = _IMAGE, size: tuple[int, int] = (6, 7)) -> Iterator[Case]:
    out_h, out_w = size
    yield Case(
        _named("upsample_nearest2d", dtype, shape, _IMAGE),
        ops.UpsampleNearest2dPlan,
        ops.UpsampleNearest2dDescriptor(shape, contiguous(shape), out_h, out_w, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, shape, dtype)},
        lambda x: (references.upsample_nearest2d(x, out_h, out_w),),
        lambda a, out, stream, out_h=out_h, out_w=out_w: ops.upsample_nearest2d(
            a["x"], out_h, out_w, out=out, stream=stream
        ),
    )
    if BY_NAME[dtype].kind != "float":
        return
    out_shape, (in_h, in_w) = (*shape[:2], *size), shape[2:]
    yield Case(
        _named("upsample_nearest2d_backward", dtype, shape, _IMAGE),
        ops.UpsampleNearest2dBackwardPlan,
        ops.UpsampleNearest2dBackwardDescriptor(out_shape, contiguous(out_shape), in_h, in_w, BY_NAME[dtype]),
        lambda rng: {"grad_out": made(rng, out_shape, dtype)},
        lambda grad_out: (references.upsample_nearest2d_backward(grad_out, in_h, in_w),),
        lambda a, out, stream, in_h=in_h, in_w=in_w: ops.upsample_nearest2d_backward(
            a["grad_out"], in_h, in_w, out=out, stream=stream
        ),
    )


def _grid_sample(dtype: str, shape: tuple[int, ...] = _IMAGE, size: tuple[int, int] = (6, 7)) -> Iterator[Case]:
    grid_shape, out_shape = (shape[0], *size, 2), (*shape[:2], *size)

    def points(rng: np.random.Generator) -> Array:
        return np.asarray(rng.uniform(-0.9, 0.9, grid_shape).astype(BY_NAME[dtype].numpy))

    yield Case(
        _named("grid_sample", dtype, (*shape, *size), (*_IMAGE, 6, 7)),
        ops.GridSamplePlan,
        ops.GridSampleDescriptor(shape, grid_shape, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, shape, dtype), "grid": points(rng)},
        lambda x, grid: (references.grid_sample(x, grid),),
        lambda a, out, stream, **modes: ops.grid_sample(a["x"], a["grid"], out=out, stream=stream, **modes),
    )
    yield Case(
        _named("grid_sample_backward", dtype, (*shape, *size), (*_IMAGE, 6, 7)),
        ops.GridSampleBackwardPlan,
        ops.GridSampleBackwardDescriptor(shape, grid_shape, BY_NAME[dtype]),
        lambda rng: {"grad_out": made(rng, out_shape, dtype), "x": made(rng, shape, dtype), "grid": points(rng)},
        references.grid_sample_backward,
        lambda a, out, stream, **modes: ops.grid_sample_backward(
            a["grad_out"], a["x"], a["grid"], out=out, stream=stream, **modes
        ),
    )


_ROWS = (2, 8)


def _layer_norm(dtype: str, shape: tuple[int, ...] = _ROWS, row: tuple[int, ...] = (8,)) -> Iterator[Case]:
    yield Case(
        _named("layer_norm", dtype, shape, _ROWS),
        ops.LayerNormPlan,
        ops.LayerNormDescriptor(shape, row, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, shape, dtype), **_weights(rng, dtype, row, "weight", "bias")},
        lambda x, weight, bias: (references.layer_norm(x, row, weight, bias),),
        lambda a, out, stream, normalized_shape=row, **numbers: ops.layer_norm(
            a["x"], normalized_shape, a["weight"], a["bias"], out=out, stream=stream, **numbers
        ),
    )
    yield from _backward_of_rows(
        "layer_norm", ops.LayerNormBackwardPlan, ops.LayerNormBackwardDescriptor, dtype, shape, row
    )


def _rms_norm(dtype: str, shape: tuple[int, ...] = _ROWS, row: tuple[int, ...] = (8,)) -> Iterator[Case]:
    yield Case(
        _named("rms_norm", dtype, shape, _ROWS),
        ops.RmsNormPlan,
        ops.RmsNormDescriptor(shape, row, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, shape, dtype), **_weights(rng, dtype, row, "weight")},
        lambda x, weight: (references.rms_norm(x, row, weight),),
        lambda a, out, stream, normalized_shape=row, **numbers: ops.rms_norm(
            a["x"], normalized_shape, a["weight"], out=out, stream=stream, **numbers
        ),
    )
    yield from _backward_of_rows("rms_norm", ops.RmsNormBackwardPlan, ops.RmsNormBackwardDescriptor, dtype, shape, row)


def _weights(rng: np.random.Generator, dtype: str, row: tuple[int, ...], *names: str) -> dict[str, Array]:
    return {name: a.reshape(row) for name, a in _vectors(rng, dtype, math.prod(row), *names).items()}


def _backward_of_rows(
    op: str, plan: Any, descriptor: Any, dtype: str, shape: tuple[int, ...], row: tuple[int, ...]
) -> Iterator[Case]:
    yield Case(
        _named(f"{op}_backward", dtype, shape, _ROWS),
        plan,
        descriptor(shape, row, BY_NAME[dtype]),
        lambda rng: {
            "grad_out": made(rng, shape, dtype),
            "x": made(rng, shape, dtype),
            **_weights(rng, dtype, row, "weight"),
        },
        lambda grad_out, x, weight: getattr(references, f"{op}_backward")(grad_out, x, row, weight),
        lambda a, out, stream, normalized_shape=row, **numbers: getattr(ops, f"{op}_backward")(
            a["grad_out"], a["x"], normalized_shape, a["weight"], out=out, stream=stream, **numbers
        ),
    )


# Of each element type a mode, and together every one of them, every padding, and a volume.
_MODES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "f32": ({"mode": "bicubic", "padding_mode": "border", "align_corners": True}, ()),
    "f64": ({"mode": "nearest", "padding_mode": "reflection", "align_corners": False}, ()),
    "f16": ({"mode": "bilinear", "padding_mode": "zeros", "align_corners": True}, (3,)),
    "bf16": ({"mode": "bilinear", "padding_mode": "reflection", "align_corners": False}, ()),
}


def _grid_sample_modes(dtype: str, shape: tuple[int, ...] = _IMAGE, size: tuple[int, int] = (6, 7)) -> Iterator[Case]:
    modes, depth = _MODES[dtype]
    shape, out_size = (*shape[:2], *depth, *shape[2:]), (*depth, *size)
    grid_shape, out_shape = (shape[0], *out_size, len(out_size)), (*shape[:2], *out_size)
    kind = BY_NAME[dtype]
    name = f"{modes['mode']} {dtype} {(*shape, *out_size)}"

    def points(rng: np.random.Generator) -> Array:
        return np.asarray(rng.uniform(-1.6, 1.6, grid_shape).astype(kind.numpy))

    yield Case(
        f"grid_sample {name}",
        ops.GridSamplePlan,
        ops.GridSampleDescriptor(shape, grid_shape, kind, **modes),
        lambda rng: {"x": made(rng, shape, dtype), "grid": points(rng)},
        lambda x, grid: (references.grid_sample(x, grid, **modes),),
        lambda a, out, stream, **more: ops.grid_sample(a["x"], a["grid"], out=out, stream=stream, **modes | more),
    )
    yield Case(
        f"grid_sample_backward {name}",
        ops.GridSampleBackwardPlan,
        ops.GridSampleBackwardDescriptor(shape, grid_shape, kind, **modes),
        lambda rng: {"grad_out": made(rng, out_shape, dtype), "x": made(rng, shape, dtype), "grid": points(rng)},
        lambda **given: references.grid_sample_backward(**given, **modes),
        lambda a, out, stream, **more: ops.grid_sample_backward(
            a["grad_out"], a["x"], a["grid"], out=out, stream=stream, **modes | more
        ),
    )


_OPS: dict[str, Callable[..., Iterator[Case]]] = {
    "group_norm": _group_norm,
    "softmax2d": _softmax2d,
    "batch_norm": _batch_norm,
    "local_response_norm": _local_response_norm,
    "upsample_nearest2d": _upsample_nearest2d,
    "grid_sample_modes": _grid_sample_modes,
    "grid_sample": _grid_sample,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}


# Small problems in channels-last arrays, of f32.
_LAST: dict[str, tuple[Any, ...]] = {
    "group_norm": (SHAPE, 4, True),
    "softmax2d": (SHAPE, True),
    "batch_norm": (SHAPE, (False,), True),
    "local_response_norm": (SHAPE, True),
}


def cases(sizes: dict[str, dict[str, list[tuple[Any, ...]]]] | None = None) -> list[Case]:
    """Return the cases of every op, in each element type that its family of kernels has; by default, that it takes.

    Parameters
    ----------
    sizes
        Of each op, for an element type or for ``"others"``: the arguments of its cases, a shape and what goes with it
        (groups; the rows and columns of the result; the axes that are a row). By default one small shape of each; of
        f32 also channels-last.
    """
    dtypes: dict[str, dict[str, None]] = {}
    for spec in ops.kernels():
        dtypes.setdefault(spec.family, {})[spec.dtype] = None
    if sizes is None:
        dtypes["upsample_nearest2d"] |= dict.fromkeys(BY_NAME)  # by the entries of as many bytes
    found = []
    for op, build in _OPS.items():
        for dtype in dtypes[op]:
            small = [_LAST[op], ()] if dtype == "f32" and op in _LAST else [()]
            given = small if sizes is None else sizes[op].get(dtype, sizes[op].get("others", []))
            found += [case for each in given for case in build(dtype, *each)]
    return found


def operands(case: Case, device: ptxrt.Device, offset: int = 0) -> dict[str, Any]:
    """Return operands that pass, by name: the inputs, and outputs full of 0xFF; None where there is none."""
    plan = case.plan.select(device, case.problem)
    host = case.inputs(np.random.default_rng(7))
    there: dict[str, Any] = {}
    for o in plan.operands:
        if not o.output:
            there[o.name] = on_device(host.get(o.name), device, offset, o.strides)
        elif not o.absent:
            there[o.name] = Guarded(o.shape, o.type.numpy, device, strides=o.strides).array
    return {o.name: there.get(o.name) for o in plan.operands}


def ways(case: Case, device: ptxrt.Device) -> list[tuple[str, Any]]:
    """Return a variant's key and a config of it, for all that can run the case."""
    found = []
    for variant in case.plan.variants:
        if variant.language in device.backend.languages:
            for config in variant.config_type.candidates(case.problem):
                schedule = variant.schedule(case.problem, config, Limits.of(device.properties))
                if isinstance(schedule, Schedule) and schedule.refusal(Limits.of(device.properties)) is None:
                    found.append((key_of(variant), config))
    return found
