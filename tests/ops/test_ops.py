"""What holds of every op: its plans, its kernels, its functions, as users' programs name them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from helpers import Rng, Shape
from op_testing import on_device, wish

import ptxrt
from ptxrt import ops
from ptxrt.ops import references
from ptxrt.ops.framework import Launch

SIGNATURES = {
    "group_norm": "x, weight, bias, groups, eps=1e-05",
    "group_norm_backward": "grad_out, x, weight, groups, eps=1e-05",
    "softmax2d": "x",
    "softmax2d_backward": "grad_out, y",
    "batch_norm": "x, weight, bias, running_mean, running_var, *, training, momentum=0.1, eps=1e-05",
    "batch_norm_backward": "grad_out, x, weight, running_mean, running_var, *, training, eps=1e-05, batch_mean=None, "
    "batch_var=None",
    "local_response_norm": "x, size, alpha=0.0001, beta=0.75, k=1.0",
    "local_response_norm_backward": "grad_out, x, denom, size, alpha=0.0001, beta=0.75",
    "upsample_nearest2d": "x, out_h, out_w",
    "grid_sample": "x, grid, *, mode='bilinear', padding_mode='zeros', align_corners=False",
    "grid_sample_backward": "grad_out, x, grid, *, mode='bilinear', padding_mode='zeros', align_corners=False",
}

PROBLEMS: dict[str, list[Any]] = {
    "group_norm": [ops.GroupNormDescriptor((2, 8, 6), 4), ops.GroupNormDescriptor((1, 4, 1 << 18), 2)],
    "group_norm_backward": [ops.GroupNormBackwardDescriptor((2, 8, 6), 4)],
    "softmax2d": [ops.Softmax2dDescriptor((2, 8, 6))],
    "softmax2d_backward": [ops.Softmax2dBackwardDescriptor((2, 8, 6))],
    "batch_norm": [ops.BatchNormDescriptor((2, 8, 6), training) for training in (True, False)],
    "batch_norm_backward": [ops.BatchNormBackwardDescriptor((2, 8, 6), training) for training in (True, False)],
    "local_response_norm": [ops.LocalResponseNormDescriptor((2, 8, 6), 5)],
    "local_response_norm_backward": [ops.LocalResponseNormBackwardDescriptor((2, 8, 6), 5)],
    "upsample_nearest2d": [ops.UpsampleNearest2dDescriptor((1, 2, 3, 4), (24, 12, 4, 1), 6, 8)],
    "grid_sample": [ops.GridSampleDescriptor((1, 2, 3, 4), (1, 5, 6, 2))],
    "grid_sample_backward": [ops.GridSampleBackwardDescriptor((1, 2, 3, 4), (1, 5, 6, 2))],
}

IN_HIP = [spec for spec in ops.kernels() if spec.language == "hip"]


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_function_is_called_as_users_programs_call_it(name: str) -> None:
    parameters = inspect.signature(getattr(ops, name)).parameters.values()
    plain = [p.replace(annotation=p.empty) for p in parameters if p.name not in ("out", "stream")]
    assert str(inspect.Signature(plain)) == f"({SIGNATURES[name]})"
    last = list(parameters)[-2:]
    assert [(p.name, p.kind, p.default) for p in last] == [
        ("out", inspect.Parameter.KEYWORD_ONLY, None),
        ("stream", inspect.Parameter.KEYWORD_ONLY, None),
    ]


def test_every_op_has_a_plan_and_a_function() -> None:
    assert {plan.op for plan in ops.plans()} == set(SIGNATURES)
    assert {spec.op for spec in ops.kernels()} == set(SIGNATURES)


def test_entries_are_named_once_in_each_language() -> None:
    names = [(spec.entry, spec.language) for spec in ops.kernels()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("plan", ops.plans(), ids=lambda plan: plan.op)
def test_every_plan_has_a_variant_in_hip_which_is_not_the_first_choice(sim: ptxrt.Device, plan: Any) -> None:
    for problem in PROBLEMS[plan.op]:
        assert plan.select(sim, problem).variant.language == "ptx"
        assert plan.select(sim, problem, ptxrt.PlanPreference(language="hip")).key.language == "hip"


@pytest.mark.parametrize("spec", IN_HIP, ids=lambda spec: spec.entry)
def test_an_entry_in_hip_has_a_twin_in_ptx_with_the_same_parameters(spec: Any) -> None:
    (twin,) = (other for other in ops.kernels() if other.language == "ptx" and other.entry == spec.entry)
    assert (twin.signature, twin.dtype, twin.op) == (spec.signature, spec.dtype, spec.op)


def test_the_baseline_entries_are_in_hip() -> None:
    assert {spec.entry for spec in IN_HIP} >= {
        "group_norm_kernel",
        "softmax2d_kernel",
        "batch_norm_kernel",
        "batch_norm_backward_kernel",
        "lrn_forward_kernel",
        "lrn_backward_kernel",
        *(f"upsample_nearest2d_{name}" for name in ("f32", "f64", "f16", "bf16", "u8", "u32")),
        *(f"grid_sample{way}_{name}" for way in ("", "_backward") for name in ("f32", "f64")),
    }


def normalisations(rng: Rng, shape: Shape) -> Iterator[Any]:
    """Give each plan of the ops on [N, C, *] with a problem, its inputs, and its reference."""
    x, go, w, b = (rng.standard_normal(s).astype(np.float32) for s in (shape, shape, shape[1], shape[1]))
    mean, var = b, np.abs(w) + np.float32(0.5)
    y, denom = (a.astype(np.float32) for a in (references.softmax2d(x), references.local_response_norm(x, 5)[1]))
    yield ops.GroupNormPlan, ops.GroupNormDescriptor(shape, 2), (x, w, b), [references.group_norm(x, w, b, 2)]
    want: Any = references.group_norm_backward(go, x, w, 2)
    yield ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor(shape, 2), (go, x, w), want
    yield ops.Softmax2dPlan, ops.Softmax2dDescriptor(shape), (x,), [references.softmax2d(x)]
    want = [references.softmax2d_backward(go, y)]
    yield ops.Softmax2dBackwardPlan, ops.Softmax2dBackwardDescriptor(shape), (go, y), want
    problem: Any = ops.BatchNormDescriptor(shape, True, running=False)
    want = references.batch_norm(x, w, b, None, None, training=True)
    yield ops.BatchNormPlan, problem, (x, w, b, None, None), want
    for training in (True, False):
        stats = (None, None) if training else (mean, var)
        want = references.batch_norm_backward(go, x, w, *stats, training=training)
        problem = ops.BatchNormBackwardDescriptor(shape, training)
        yield ops.BatchNormBackwardPlan, problem, (go, x, w, *stats, None, None), want
    want = references.local_response_norm(x, 5)
    yield ops.LocalResponseNormPlan, ops.LocalResponseNormDescriptor(shape, 5), (x,), want
    want = [references.local_response_norm_backward(go, x, denom, 5)]
    yield ops.LocalResponseNormBackwardPlan, ops.LocalResponseNormBackwardDescriptor(shape, 5), (go, x, denom), want


@pytest.mark.parametrize("shape", [(2**33, 0, 1), (2**33, 4, 0), (0, 2**33, 1)], ids=str)
@pytest.mark.parametrize(
    ("plan", "descriptor", "how"),
    [
        (ops.BatchNormPlan, ops.BatchNormDescriptor, (False,)),
        (ops.BatchNormBackwardPlan, ops.BatchNormBackwardDescriptor, (False,)),
        (ops.LocalResponseNormPlan, ops.LocalResponseNormDescriptor, (5,)),
        (ops.LocalResponseNormBackwardPlan, ops.LocalResponseNormBackwardDescriptor, (5,)),
    ],
)
def test_an_empty_tensor_may_have_axes_of_any_length(
    device: ptxrt.Device, plan: Any, descriptor: Any, how: Any, shape: Shape
) -> None:
    selected = plan.select(device, descriptor(shape, *how))
    assert not any(isinstance(step, Launch) for step in selected.schedule.steps)


@pytest.mark.parametrize("shape", [(2, 8, 64), (3, 6, 7, 9), (1, 4, 3000)], ids=str)
def test_hip_gives_the_bits_of_the_ptx_baseline(sim: ptxrt.Device, rng: Rng, shape: Shape) -> None:
    for plan, problem, inputs, want in normalisations(rng, shape):
        if plan.op == "softmax2d_backward":
            continue  # rounded once in HIP, twice in PTX
        there = [on_device(a, sim) for a in inputs]
        ptx, hip = (
            plan.select(sim, problem, wish(name)).run((*there, *[None] * len(want)))
            for name in ("baseline", "hip/baseline")
        )
        for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (ptx, hip)), strict=True):
            assert one.to_host().tobytes() == other.to_host().tobytes(), plan.op
