"""The texts of batch_norm, and of norms of channels-last arrays, on the host: see wave_cases.py."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import exact_sums as exact
import numpy as np
import pytest
from helpers import Shape
from test_waves_group_norm import group_norm, group_norm_backward
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
from ptxrt.ops._batch_norm_whole import WholeConfig
from ptxrt.ops._norm_last import LastConfig
from ptxrt.ops._norm_last_tickets import TileTicketsConfig
from ptxrt.ops.framework import parameter_type
from ptxrt.runtime.layout import channels_last

pytestmark = pytest.mark.amd


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
    return replace(
        batch_norm(shape, False, affine, name), variant="channels_last_alone" if len(shape) == 2 else "alone"
    )


def batch_norm_backward_in_small(shape: Shape, training: bool, name: str = "f32") -> Case:
    return replace(batch_norm_backward(shape, training, training, True, name), variant="small")


def batch_norm_backward_in_slices(shape: Shape, name: str = "f32") -> Case:
    config = SplitConfig(written=1, values=4096)
    return replace(batch_norm_backward(shape, False, False, True, name), variant="split", config=config)


def batch_norm_backward_by(
    variant: str, shape: Shape, handed: bool = False, affine: bool = True, name: str = "f32"
) -> Case:
    return replace(batch_norm_backward(shape, True, handed, affine, name), variant=variant)


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


def batch_norm_whole(backward: bool, shape: Shape, how: bool, threads: int, across: int, name: str = "f32") -> Case:
    """Return a case, `how` being whether the backward is given statistics, and the forward weight and bias."""
    case = batch_norm_backward(shape, True, how, True, name) if backward else batch_norm(shape, True, how, name)
    return replace(case, variant="channels_last_whole", config=WholeConfig(threads, across))


# Grids are short here (`short_grids`): with more than two images a block goes round. The kernels of "norm_last" serve
# "batch_norm_rounded", too.
CASES: Cases = {
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
    # Threads without a row, and as many rows as they hold; blocks of one vector of channels, of two and of four; few
    # threads for each channel.
    "batch_norm_whole": [
        *(
            (batch_norm_whole, (backward, *case))
            for backward in (False, True)
            for case in (
                ((37, 8), True, 128, 1),
                ((1024, 4), False, 128, 1),
                ((300, 16), True, 512, 4),
                ((61, 16), True, 64, 4),
            )
        ),
        *(
            (batch_norm_whole, (backward, *case, name))
            for name in others("batch_norm_whole")
            for backward in (False, True)
            for case in (((300, 8), True, 256, 1), ((70, 16), False, 512, 2), ((27, 32), True, 64, 4))
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
        (batch_norm_alone, ((3, 5, 12),)),
        (batch_norm_alone, ((2, 3, 520), False)),
        *((batch_norm_alone, ((3, 5, 24), True, name)) for name in others("batch_norm_alone")),
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
}
AS_MACHINE_CODE = as_machine_code(CASES)


@each_case(CASES, AS_MACHINE_CODE)
def test_results_do_not_depend_on_waves_nor_on_the_order_of_threads(make: Any, arguments: Any) -> None:
    check_every_run(make, arguments)
