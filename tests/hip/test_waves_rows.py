"""The texts of layer_norm and rms_norm on the host: see wave_cases.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Shape
from wave_cases import (
    Case,
    Cases,
    as_machine_code,
    check_every_run,
    each_case,
    given,
    normal,
    others,
    short_grids,  # noqa: F401
    within,
)

import ptxrt
from ptxrt import ops
from ptxrt.ops import references
from ptxrt.ops.framework import parameter_type
from ptxrt.ops.framework.rows_held import HeldBackwardConfig, HeldConfig, WarpsBackwardConfig, WarpsConfig

pytestmark = pytest.mark.amd


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


# Rows of some lanes of a warp: each number of lanes and of slots, full but for the last one. Shape, slices of the
# backward, type. There are more rows than a grid's warps have at a time, and more slices than blocks.
OF_WARPS: list[tuple[Any, ...]] = [
    *(
        ((count, width),)
        for count, width in ((24, 12), (24, 13), (24, 14), (12, 28), (12, 30), (12, 31), (9, 60), (9, 62), (9, 63))
    ),
    *(((5, width),) for width in (124, 126, 127, 252, 254, 255, 380, 508, 510, 511)),
    *(((20, width), 3) for width in (60, 62, 63, 124, 126, 127, 252, 254, 255)),
    *(
        ((7, width), 0, name)
        for name in ("f16", "bf16")
        for width in (24, 26, 28, 56, 60, 62, 120, 124, 126, 248, 252, 254, 504, 508, 510)
    ),
    *(((20, width), 3, name) for name in ("f16", "bf16") for width in (60, 62, 64, 120, 124, 126, 248, 252, 254)),
]

CASES: Cases = {
    "layer_norm": [
        (layer_norm, ((5, 133),)),
        (layer_norm, ((5, 67),)),  # a warp for a row
        (layer_norm, ((3, 700), False)),
        (backward_of_rows, ("layer_norm", (67, 9))),  # more slices than a warp adds up
        (backward_of_rows, ("layer_norm", (1, 1100), False)),
        *((layer_norm, ((5, 133), True, name)) for name in others("layer_norm")),
        *((backward_of_rows, ("layer_norm", (5, 133), True, name)) for name in others("layer_norm")),
    ],
    "rms_norm": [
        (rms_norm, ((5, 133),)),
        (rms_norm, ((5, 67),)),  # a warp for a row
        (rms_norm, ((3, 700), False)),
        (backward_of_rows, ("rms_norm", (67, 9))),  # more slices than a warp adds up
        (backward_of_rows, ("rms_norm", (1, 1100), False)),
        *((rms_norm, ((5, 133), True, name)) for name in others("rms_norm")),
        *((backward_of_rows, ("rms_norm", (5, 133), True, name)) for name in others("rms_norm")),
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
}
AS_MACHINE_CODE = as_machine_code(CASES)


@each_case(CASES, AS_MACHINE_CODE)
def test_results_do_not_depend_on_waves_nor_on_the_order_of_threads(make: Any, arguments: Any) -> None:
    check_every_run(make, arguments)
