"""The texts of softmax2d, local_response_norm and upsample_nearest2d on the host: see wave_cases.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Shape
from op_testing import rounded_twice
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
from ptxrt.ops._softmax2d_held import HeldConfig
from ptxrt.ops._softmax2d_strips import StripsConfig
from ptxrt.ops.framework import parameter_type
from ptxrt.runtime.layout import contiguous

pytestmark = pytest.mark.amd


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
    return replace(make(shape, name, "held"), config=HeldConfig(threads, 1))


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


CASES: Cases = {
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
}
AS_MACHINE_CODE = as_machine_code(CASES)


@each_case(CASES, AS_MACHINE_CODE)
def test_results_do_not_depend_on_waves_nor_on_the_order_of_threads(make: Any, arguments: Any) -> None:
    check_every_run(make, arguments)
