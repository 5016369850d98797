"""The texts of group_norm on the host: see wave_cases.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Shape
from op_testing import group_norm_rounded_twice
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
from ptxrt.ops._group_norm_teams import TeamConfig
from ptxrt.ops._group_norm_teams_backward import TeamBackwardConfig
from ptxrt.ops._group_norm_tickets import TicketsConfig
from ptxrt.ops.framework import parameter_type
from ptxrt.runtime.layout import channels_last

pytestmark = pytest.mark.amd


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


def group_norm_of_16_bits(name: str, last: bool = False) -> Case:
    x, w, b, want = group_norm_rounded_twice(name)
    strides = channels_last(x.shape) if last else ()
    problem = ops.GroupNormDescriptor(x.shape, 2, ptxrt.dtypes.BY_NAME[name], eps=0.0, strides=strides)
    return Case(ops.GroupNormPlan, problem, given(x=x, weight=w, bias=b), {"out": (want, 0.0)})


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


# Groups that are no whole vectors, of each number of values that a thread has of them in the backward.
SINGLES: list[tuple[Shape, int, int]] = [
    ((21, 35, 3), 7, 4), ((21, 35, 5), 7, 4), ((3, 34, 3), 2, 16), ((3, 34, 7), 2, 16), ((3, 34, 7), 2, 32),
    ((3, 34, 13), 2, 32), ((3, 34, 21), 2, 32),
]  # fmt: skip

# Grids are short here (`short_grids`): with more than two images a block goes round.
CASES: Cases = {
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
}
AS_MACHINE_CODE = as_machine_code(CASES)


@each_case(CASES, AS_MACHINE_CODE)
def test_results_do_not_depend_on_waves_nor_on_the_order_of_threads(make: Any, arguments: Any) -> None:
    check_every_run(make, arguments)
