"""What holds of every op: its plans, its kernels, its functions, as users' programs name them."""

from __future__ import annotations

import inspect

import pytest

import ptxrt
from ptxrt import ops
from ptxrt.variant import Launch

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

PROBLEMS = {
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


@pytest.mark.parametrize("name", SIGNATURES)
def test_each_function_is_called_as_users_programs_call_it(name):
    parameters = inspect.signature(getattr(ops, name)).parameters.values()
    plain = [p.replace(annotation=p.empty) for p in parameters if p.name not in ("out", "stream")]
    assert str(inspect.Signature(plain)) == f"({SIGNATURES[name]})"
    last = list(parameters)[-2:]
    assert [(p.name, p.kind, p.default) for p in last] == [
        ("out", inspect.Parameter.KEYWORD_ONLY, None),
        ("stream", inspect.Parameter.KEYWORD_ONLY, None),
    ]


def test_every_op_has_a_plan_and_a_function():
    assert {plan.op for plan in ops.plans()} == set(SIGNATURES)
    assert {spec.op for spec in ops.kernels()} == set(SIGNATURES)


@pytest.mark.parametrize("plan", ops.plans(), ids=lambda plan: plan.op)
def test_a_plan_launches_its_own_ops_kernels_with_an_argument_for_each_parameter(sim, plan):
    launched = set()
    for problem in PROBLEMS[plan.op]:
        for variant in plan.variants:
            if variant.refuses(problem, sim) is None:
                steps = [step for step in variant.launches(problem) if isinstance(step, Launch)]
                assert steps
                for step in steps:
                    assert step.kernel.op == plan.op
                    assert len(step.arguments) == len(step.kernel.signature.parameters)
                    launched.add(step.kernel)
    assert launched <= set(ops.kernels())


def test_entries_are_named_once():
    names = [spec.entry for spec in ops.kernels()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("plan", ops.plans(), ids=lambda plan: plan.op)
def test_no_plan_is_written_in_hip_yet(sim, plan):
    for problem in PROBLEMS[plan.op]:
        with pytest.raises(ptxrt.Unsupported, match="is in ptx, not in 'hip'"):
            plan.select(sim, problem, ptxrt.PlanPreference(language="hip"))
