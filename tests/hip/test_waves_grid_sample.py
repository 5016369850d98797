"""The texts of grid_sample on the host: see wave_cases.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Shape
from tolerances import grid_sample_bar, rounded_bar
from wave_cases import (
    Case,
    Cases,
    as_machine_code,
    check_every_run,
    each_case,
    given,
    normal,
    short_grids,  # noqa: F401
)

import ptxrt
from ptxrt import ops
from ptxrt.ops import references
from ptxrt.ops._grid_sample_modes_tiled import HipCellsConfig
from ptxrt.ops._grid_sample_tiled_backward import HipTiledBackwardConfig
from ptxrt.runtime.layout import channels_last

pytestmark = pytest.mark.amd


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


MODES = (
    ("nearest", 2, "border"), ("bilinear", 2, "reflection"), ("bicubic", 2, "zeros"), ("bilinear", 3, "zeros"),
    ("nearest", 3, "reflection"),
)  # fmt: skip

# Grids are short here (`short_grids`): with more than two images a block goes round.
CASES: Cases = {
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
AS_MACHINE_CODE = as_machine_code(CASES)


@each_case(CASES, AS_MACHINE_CODE)
def test_results_do_not_depend_on_waves_nor_on_the_order_of_threads(make: Any, arguments: Any) -> None:
    check_every_run(make, arguments)
