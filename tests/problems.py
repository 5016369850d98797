"""Small problems of every op in each of its element types: operands, references, and the calls of users."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tolerances import bar, grid_sample_bar

import ptxrt
from ptxrt import ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import references
from ptxrt.ops.framework import Plan, parameter_type

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
        ``call(operands, out, stream)``: the op's function; `out` as it takes it.
    """

    name: str
    plan: type[Plan[Any, Any, Any]]
    problem: Any
    inputs: Callable[[np.random.Generator], dict[str, Array | None]]
    reference: Callable[..., tuple[Any, ...]]
    call: Callable[[dict[str, Any], Any, Any], Any]

    def __str__(self) -> str:
        return self.name

    @property
    def dtype(self) -> str:
        """Of the problem, by name."""
        return str(self.problem.dtype.name)

    def bar(self, want: Array) -> float:
        """Return what the first output is held to."""
        op = self.plan.op.removesuffix("_backward")
        if op == "grid_sample":
            return float(grid_sample_bar(self.dtype, *self.problem.shape[2:]))
        return bar(op, self.dtype, want)


def made(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    """Return random values of an element type."""
    kind = BY_NAME[dtype]
    if kind.kind == "int":
        return rng.integers(0, 200, shape).astype(kind.numpy)
    return np.asarray(rng.standard_normal(shape).astype(kind.numpy))


def _vectors(rng: np.random.Generator, dtype: str, *names: str) -> dict[str, Array]:
    kind = parameter_type(BY_NAME[dtype]).numpy
    return {name: np.abs(rng.standard_normal(SHAPE[1])).astype(kind) + kind.type(0.5) for name in names}


def _group_norm(dtype: str) -> Iterator[Case]:
    yield Case(
        f"group_norm {dtype}",
        ops.GroupNormPlan,
        ops.GroupNormDescriptor(SHAPE, 4, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, SHAPE, dtype), **_vectors(rng, dtype, "weight", "bias")},
        lambda x, weight, bias: (references.group_norm(x, weight, bias, 4),),
        lambda a, out, stream: ops.group_norm(a["x"], a["weight"], a["bias"], 4, out=out, stream=stream),
    )
    yield Case(
        f"group_norm_backward {dtype}",
        ops.GroupNormBackwardPlan,
        ops.GroupNormBackwardDescriptor(SHAPE, 4, BY_NAME[dtype]),
        lambda rng: {
            "grad_out": made(rng, SHAPE, dtype),
            "x": made(rng, SHAPE, dtype),
            **_vectors(rng, dtype, "weight"),
        },
        lambda grad_out, x, weight: references.group_norm_backward(grad_out, x, weight, 4),
        lambda a, out, stream: ops.group_norm_backward(a["grad_out"], a["x"], a["weight"], 4, out=out, stream=stream),
    )


def _softmax2d(dtype: str) -> Iterator[Case]:
    yield Case(
        f"softmax2d {dtype}",
        ops.Softmax2dPlan,
        ops.Softmax2dDescriptor(SHAPE, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, SHAPE, dtype)},
        lambda x: (references.softmax2d(x),),
        lambda a, out, stream: ops.softmax2d(a["x"], out=out, stream=stream),
    )
    yield Case(
        f"softmax2d_backward {dtype}",
        ops.Softmax2dBackwardPlan,
        ops.Softmax2dBackwardDescriptor(SHAPE, BY_NAME[dtype]),
        lambda rng: {
            "grad_out": made(rng, SHAPE, dtype),
            "y": references.softmax2d(made(rng, SHAPE, dtype)).astype(BY_NAME[dtype].numpy),
        },
        lambda grad_out, y: (references.softmax2d_backward(grad_out, y),),
        lambda a, out, stream: ops.softmax2d_backward(a["grad_out"], a["y"], out=out, stream=stream),
    )


_STATISTICS = ("running_mean", "running_var", "batch_mean", "batch_var")


def _batch_norm(dtype: str) -> Iterator[Case]:
    for training in (True, False):

        def forward(a: dict[str, Any], out: Any, stream: Any, training: bool = training) -> Any:
            first = (a["x"], a["weight"], a["bias"], a["running_mean"], a["running_var"])
            return ops.batch_norm(*first, training=training, out=out, stream=stream)

        yield Case(
            f"batch_norm {'training' if training else 'eval'} {dtype}",
            ops.BatchNormPlan,
            ops.BatchNormDescriptor(SHAPE, training, BY_NAME[dtype]),
            lambda rng: {
                "x": made(rng, SHAPE, dtype),
                **_vectors(rng, dtype, "weight", "bias", "running_mean", "running_var"),
            },
            lambda training=training, **a: references.batch_norm(*a.values(), training=training),
            forward,
        )
    for kind in ("training", "handed", "eval"):
        statistics = {"training": (), "handed": ("batch_mean", "batch_var"), "eval": ("running_mean", "running_var")}

        def inputs(rng: np.random.Generator, given: tuple[str, ...] = statistics[kind]) -> dict[str, Array | None]:
            tensors = {"grad_out": made(rng, SHAPE, dtype), "x": made(rng, SHAPE, dtype)}
            vectors = _vectors(rng, dtype, "weight", *_STATISTICS)
            return {**tensors, **{name: a if name in ("weight", *given) else None for name, a in vectors.items()}}

        def call(a: dict[str, Any], out: Any, stream: Any, training: bool = kind != "eval") -> Any:
            first = (a["grad_out"], a["x"], a["weight"], a["running_mean"], a["running_var"])
            batch = {name: a[name] for name in ("batch_mean", "batch_var")}
            return ops.batch_norm_backward(*first, training=training, **batch, out=out, stream=stream)

        yield Case(
            f"batch_norm_backward {kind} {dtype}",
            ops.BatchNormBackwardPlan,
            ops.BatchNormBackwardDescriptor(SHAPE, kind != "eval", BY_NAME[dtype], handed=kind == "handed"),
            inputs,
            lambda grad_out, x, weight, running_mean, running_var, batch_mean, batch_var, kind=kind: (
                references.batch_norm_backward(
                    grad_out, x, weight, running_mean, running_var, training=kind != "eval", batch_mean=batch_mean,
                    batch_var=batch_var,
                )
            ),
            call,
        )  # fmt: skip


def _local_response_norm(dtype: str) -> Iterator[Case]:
    yield Case(
        f"local_response_norm {dtype}",
        ops.LocalResponseNormPlan,
        ops.LocalResponseNormDescriptor(SHAPE, 5, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, SHAPE, dtype)},
        lambda x: references.local_response_norm(x, 5),
        lambda a, out, stream: ops.local_response_norm(a["x"], 5, out=out, stream=stream),
    )
    yield Case(
        f"local_response_norm_backward {dtype}",
        ops.LocalResponseNormBackwardPlan,
        ops.LocalResponseNormBackwardDescriptor(SHAPE, 5, BY_NAME[dtype]),
        lambda rng: {
            "grad_out": made(rng, SHAPE, dtype),
            "x": made(rng, SHAPE, dtype),
            "denom": 1 + np.abs(made(rng, SHAPE, parameter_type(BY_NAME[dtype]).name)),
        },
        lambda grad_out, x, denom: (references.local_response_norm_backward(grad_out, x, denom, 5),),
        lambda a, out, stream: ops.local_response_norm_backward(
            a["grad_out"], a["x"], a["denom"], 5, out=out, stream=stream
        ),
    )


def _upsample_nearest2d(dtype: str) -> Iterator[Case]:
    yield Case(
        f"upsample_nearest2d {dtype}",
        ops.UpsampleNearest2dPlan,
        ops.UpsampleNearest2dDescriptor((2, 3, 4, 5), (60, 20, 5, 1), 6, 7, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, (2, 3, 4, 5), dtype)},
        lambda x: (references.upsample_nearest2d(x, 6, 7),),
        lambda a, out, stream: ops.upsample_nearest2d(a["x"], 6, 7, out=out, stream=stream),
    )


def _grid_sample(dtype: str) -> Iterator[Case]:
    shape, grid_shape, out_shape = (2, 3, 4, 5), (2, 6, 7, 2), (2, 3, 6, 7)

    def points(rng: np.random.Generator) -> Array:
        return np.asarray(rng.uniform(-0.9, 0.9, grid_shape).astype(BY_NAME[dtype].numpy))

    yield Case(
        f"grid_sample {dtype}",
        ops.GridSamplePlan,
        ops.GridSampleDescriptor(shape, grid_shape, BY_NAME[dtype]),
        lambda rng: {"x": made(rng, shape, dtype), "grid": points(rng)},
        lambda x, grid: (references.grid_sample(x, grid),),
        lambda a, out, stream: ops.grid_sample(a["x"], a["grid"], out=out, stream=stream),
    )
    yield Case(
        f"grid_sample_backward {dtype}",
        ops.GridSampleBackwardPlan,
        ops.GridSampleBackwardDescriptor(shape, grid_shape, BY_NAME[dtype]),
        lambda rng: {"grad_out": made(rng, out_shape, dtype), "x": made(rng, shape, dtype), "grid": points(rng)},
        references.grid_sample_backward,
        lambda a, out, stream: ops.grid_sample_backward(a["grad_out"], a["x"], a["grid"], out=out, stream=stream),
    )


_OPS = {
    "group_norm": _group_norm,
    "softmax2d": _softmax2d,
    "batch_norm": _batch_norm,
    "local_response_norm": _local_response_norm,
    "upsample_nearest2d": _upsample_nearest2d,
    "grid_sample": _grid_sample,
}


def cases() -> list[Case]:
    """Return the cases of every op, in each element type that its family of kernels has."""
    dtypes: dict[str, dict[str, None]] = {}
    for spec in ops.kernels():
        dtypes.setdefault(spec.family, {})[spec.dtype] = None
    return [case for op, build in _OPS.items() for dtype in dtypes[op] for case in build(dtype)]


def operands(case: Case, device: ptxrt.Device, offset: int = 0) -> dict[str, Any]:
    """Return operands that pass, by name: the inputs, and outputs full of 0xFF; None where there is none."""
    from op_testing import on_device

    plan = case.plan.select(device, case.problem)
    host = case.inputs(np.random.default_rng(7))
    there: dict[str, Any] = {name: on_device(array, device, offset) for name, array in host.items()}
    for o in plan.operands:
        if o.output and not o.absent:
            there[o.name] = ptxrt.empty(o.shape, o.type.numpy, device)
            there[o.name].fill_bytes(0xFF)
    return {o.name: there.get(o.name) for o in plan.operands}
