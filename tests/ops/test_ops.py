"""What holds of every op: its plans, its kernels, its functions, as users' programs name them."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import ptxrt
from ptxrt import ops

SIGNATURES = {
    "group_norm": "x, weight, bias, groups, eps=1e-05",
    "group_norm_backward": "grad_out, x, weight, groups, eps=1e-05",
    "softmax2d": "x",
    "softmax2d_backward": "grad_out, y",
    "batch_norm": "x, weight, bias, running_mean, running_var, *, training, momentum=0.1, eps=1e-05, "
    "save='variance', batches=None, communicator=None, exact=True",
    "batch_norm_backward": "grad_out, x, weight, running_mean, running_var, *, training, eps=1e-05, batch_mean=None, "
    "batch_var=None, save='variance', communicator=None, exact=True",
    "local_response_norm": "x, size, alpha=0.0001, beta=0.75, k=1.0",
    "local_response_norm_backward": "grad_out, x, denom, size, alpha=0.0001, beta=0.75",
    "upsample_nearest2d": "x, out_h, out_w",
    "upsample_nearest2d_backward": "grad_out, in_h, in_w",
    "grid_sample": "x, grid, *, mode='bilinear', padding_mode='zeros', align_corners=False",
    "grid_sample_backward": "grad_out, x, grid, *, mode='bilinear', padding_mode='zeros', align_corners=False",
    "layer_norm": "x, normalized_shape, weight=None, bias=None, eps=1e-05",
    "layer_norm_backward": "grad_out, x, normalized_shape, weight=None, eps=1e-05",
    "rms_norm": "x, normalized_shape, weight=None, eps=1e-06",
    "rms_norm_backward": "grad_out, x, normalized_shape, weight=None, eps=1e-06",
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
    "upsample_nearest2d_backward": [ops.UpsampleNearest2dBackwardDescriptor((1, 2, 3, 4), (24, 12, 4, 1), 6, 8)],
    "grid_sample": [ops.GridSampleDescriptor((1, 2, 3, 4), (1, 5, 6, 2))],
    "grid_sample_backward": [ops.GridSampleBackwardDescriptor((1, 2, 3, 4), (1, 5, 6, 2))],
    "layer_norm": [ops.LayerNormDescriptor((2, 8, 6), (8, 6))],
    "layer_norm_backward": [ops.LayerNormBackwardDescriptor((2, 8, 6), (6,))],
    "rms_norm": [ops.RmsNormDescriptor((2, 8, 6), (8, 6))],
    "rms_norm_backward": [ops.RmsNormBackwardDescriptor((2, 8, 6), (6,))],
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


# PTX has an entry for each size of a window; clusters, for groups and channels that are read once.
ALONE = (
    *("lrn_forward_last", "lrn_backward_last"),
    *("lrn_forward_walking", "lrn_backward_walking", "batch_norm_tickets", "batch_norm_backward_tickets"),
    *("batch_norm_whole", "batch_norm_backward_whole"),
    *("layer_norm_apart", "rms_norm_apart"),
    *("group_norm_cached", "group_norm_held", "group_norm_tickets", "group_norm_backward_tickets"),
    *("norm_last_tickets", "norm_last_backward_tickets"),
    *("batch_norm_exact_apply", "batch_norm_backward_exact_apply"),
    *("batch_norm_rounded_sums", "batch_norm_backward_rounded_sums"),
)


def test_an_entry_in_hip_has_a_twin_in_ptx_with_the_same_parameters() -> None:
    in_ptx = {spec.entry: spec for spec in ops.kernels() if spec.language == "ptx"}
    for spec in IN_HIP:
        if not spec.entry.startswith(ALONE):
            twin = in_ptx[spec.entry]
            assert (twin.signature, twin.dtype, twin.op) == (spec.signature, spec.dtype, spec.op), spec.entry


def test_the_baseline_entries_are_in_hip() -> None:
    assert {spec.entry for spec in IN_HIP} >= {
        "group_norm_kernel",
        "softmax2d_kernel",
        "batch_norm_kernel",
        "batch_norm_backward_kernel",
        "lrn_forward_kernel",
        "lrn_backward_kernel",
        *(f"{norm}_norm{way}_kernel" for norm in ("layer", "rms") for way in ("", "_backward")),
        *(f"upsample_nearest2d_{name}" for name in ("f32", "f64", "f16", "bf16", "u8", "u32")),
        *(f"upsample_nearest2d_backward_{name}" for name in ("f32", "f64", "f16", "bf16")),
        *(f"grid_sample{way}_{name}" for way in ("", "_backward") for name in ("f32", "f64")),
    }
