"""Channels-last arrays: [N, C, *] whose memory is a contiguous [N, *, C], in every op that takes them."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Rng, Shape, refused, skip_stand_in
from op_testing import check_error, on_device, variants, wish
from problems import Case, cases, made, operands
from tolerances import bar, relative_error

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops import references
from ptxrt.ops.framework import Limits, Schedule, parameter_type
from ptxrt.runtime.layout import channels_last, contiguous

SHAPE = (2, 6, 3, 5)
SIZES: dict[str, Any] = {
    "group_norm": {"others": [(SHAPE, 2, True)]},
    "softmax2d": {"others": [(SHAPE, True)]},
    "batch_norm": {"others": [(SHAPE, (True, False), True)]},
    "local_response_norm": {"others": [(SHAPE, True)]},
    "layer_norm": {},
    "rms_norm": {},
    "upsample_nearest2d": {},
    "grid_sample": {},
    "grid_sample_modes": {},
}
CASES = cases(SIZES)
OF_EACH_OP = list({case.plan.op: case for case in CASES if case.dtype == "f32"}.values())
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_op = pytest.mark.parametrize("case", OF_EACH_OP, ids=str)


def tensors(case: Case, device: Device) -> list[str]:
    """Return the operands of x's shape."""
    return [o.name for o in case.plan.select(device, case.problem).operands if o.shape == SHAPE]


def spread(array: Any, device: Device) -> Any:
    """Return a view with the elements of an array two apart."""
    host = array.to_host()
    wide = np.zeros((*host.shape, 2), host.dtype)
    wide[..., 0] = host
    return ptxrt.to_device(wide, device)[..., 0]


def results_of(case: Case, given: dict[str, Any]) -> list[Any]:
    results = case.call(given, None, None)
    return list(results) if isinstance(results, tuple) else [results]


# Values ---------------------------------------------------------------------------------------------------------------


@each_case
def test_results_are_those_of_contiguous_arrays_and_have_the_layout_of_x(device: Device, case: Case) -> None:
    skip_stand_in(device)
    packed = replace(case, problem=replace(case.problem, strides=()))
    first = results_of(packed, operands(packed, device))
    given = operands(case, device)
    assert given[tensors(case, device)[0]].strides == channels_last(SHAPE)
    want = case.reference(**case.inputs(np.random.default_rng(7)))
    for place, (ours, theirs, ref) in enumerate(zip(results_of(case, given), first, want, strict=False)):
        if ours is None:
            assert theirs is None
            continue
        assert ours.strides == (channels_last(SHAPE) if ours.shape == SHAPE else (1,))
        assert theirs.strides == contiguous(theirs.shape)
        if place == 0:
            check_error(case.plan.op, device, ours.to_host(), ref, case.bar(ref), case.name)
        if case.plan.op.startswith(("local_response_norm", "softmax2d")):  # in which no order is another
            assert ours.to_host().tobytes() == theirs.to_host().tobytes()
        else:
            np.testing.assert_allclose(
                ours.to_host().astype(np.float64), theirs.to_host().astype(np.float64), rtol=1e-2, atol=1e-5
            )


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_updates_the_running_statistics(device: Device, rng: Rng, training: bool) -> None:
    x, mean, var = made(rng, SHAPE, "f32"), made(rng, (6,), "f32"), np.abs(made(rng, (6,), "f32"))
    running = [ptxrt.to_device(a, device) for a in (mean, var)]
    packed = [ptxrt.to_device(a, device) for a in (mean, var)]
    ops.batch_norm(on_device(x, device, 0, channels_last(SHAPE)), None, None, *running, training=training)
    ops.batch_norm(ptxrt.to_device(x, device), None, None, *packed, training=training)
    for ours, theirs in zip(running, packed, strict=True):
        np.testing.assert_allclose(ours.to_host(), theirs.to_host(), rtol=1e-6)


@pytest.mark.parametrize("mean", [1e4, -1e4])
def test_a_large_offset_costs_batch_norm_no_accuracy(device: Device, rng: Rng, mean: float) -> None:
    skip_stand_in(device)
    shape = (3, 5, 7, 41)
    x, go = (rng.standard_normal(shape) + mean).astype(np.float32), made(rng, shape, "f32")
    there, gradient = (on_device(a, device, 0, channels_last(shape)) for a in (x, go))
    y = ops.batch_norm(there, None, None, None, None, training=True)[0]
    want = references.batch_norm(x, None, None, None, None, training=True)[0]
    check_error("batch_norm", device, y.to_host(), want, bar("batch_norm", "f32", large_mean=True), (shape, mean))
    got = ops.batch_norm_backward(gradient, there, None, None, None, training=True)[0]
    want = references.batch_norm_backward(go, x, None, None, None, training=True)[0]
    limit = bar("batch_norm", "f32", large_mean=True)
    check_error("batch_norm_backward", device, got.to_host(), want, limit, (shape, mean))


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_group_norm_whose_blocks_take_images_in_turn(device: Device, rng: Rng, monkeypatch: Patch, name: str) -> None:
    monkeypatch.setattr(sys.modules["ptxrt.ops._group_norm"], "_GRID_Y", 2)
    shape, kind = (5, 4, 9), BY_NAME[name]
    strides, real = channels_last(shape), parameter_type(kind)
    x, go, w = made(rng, shape, name), made(rng, shape, name), made(rng, (4,), real.name)
    there, gradient = (on_device(a, device, 0, strides) for a in (x, go))
    weight = ptxrt.to_device(w, device)
    for key in variants(ops.GroupNormPlan, device):
        if not key.endswith("channels_last"):
            continue
        plan = ops.GroupNormPlan.select(device, ops.GroupNormDescriptor(shape, 2, kind, strides=strides), wish(key))
        assert plan.schedule.launches[0].grid[1] == 2
        want = references.group_norm(x, w, None, 2)
        y = plan.run(ops.GroupNormArgs(there, weight)).to_host()
        assert relative_error(y, want) <= bar("group_norm", name, want)
        backward = ops.GroupNormBackwardPlan.select(
            device, ops.GroupNormBackwardDescriptor(shape, 2, kind, strides=strides), wish(key)
        )
        wants = references.group_norm_backward(go, x, w, 2)
        results = backward.run(ops.GroupNormBackwardArgs(gradient, there, weight))
        for kind_of, got, ref in zip((name, real.name, real.name), results, wants, strict=True):
            assert got is not None
            assert relative_error(got.to_host(), ref) <= bar("group_norm", kind_of, ref)


def test_groups_in_hip_are_taken_in_turn(device: Device, rng: Rng, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys.modules["ptxrt.ops._group_norm"], "blocks_in_hip", lambda *_: 2)
    shape = (2, 10, 9)
    strides = channels_last(shape)
    x, go, w = made(rng, shape, "f32"), made(rng, shape, "f32"), made(rng, (10,), "f32")
    there, gradient, weight = (on_device(a, device, 0, strides) for a in (x, go, w))
    problem = ops.GroupNormDescriptor(shape, 5, strides=strides)
    plan = ops.GroupNormPlan.select(device, problem, wish("hip/channels_last"))
    assert plan.schedule.launches[0].grid == (2, 2)
    y = plan.run(ops.GroupNormArgs(there, weight)).to_host()
    assert relative_error(y, references.group_norm(x, w, None, 5)) <= bar("group_norm", "f32")
    backward = ops.GroupNormBackwardPlan.select(
        device, ops.GroupNormBackwardDescriptor(shape, 5, strides=strides), wish("hip/channels_last")
    )
    wants = references.group_norm_backward(go, x, w, 5)
    for got, ref in zip(backward.run(ops.GroupNormBackwardArgs(gradient, there, weight)), wants, strict=True):
        assert got is not None
        assert relative_error(got.to_host(), ref) <= bar("group_norm", "f32")


def test_no_more_blocks_in_hip_than_it_launches_threads() -> None:
    shape = (1, 1 << 28, 2)
    problem = ops.GroupNormDescriptor(shape, shape[1], strides=channels_last(shape))
    (variant,) = (v for v in ops.GroupNormPlan.variants if (v.name, v.language) == ("channels_last", "hip"))
    limits = Limits.of(Device("sim:0").properties, "hip")
    found = variant.schedule(problem, variant.heuristic(problem), limits)  # type: ignore[arg-type]
    assert isinstance(found, Schedule)
    assert found.launches[0].grid[0] < problem.groups
    assert found.refusal(limits) is None


# Layouts --------------------------------------------------------------------------------------------------------------


@each_op
@pytest.mark.parametrize("how", ["spread", "reversed axes", "channels last of other axes"])
def test_an_array_in_neither_layout_is_refused_with_the_remedy(device: Device, case: Case, how: str) -> None:
    given = operands(case, device)
    first = getattr(case.problem, "first", "x")
    if how == "spread":
        wrong = spread(given[first], device)
    elif how == "reversed axes":
        wrong = ptxrt.zeros(SHAPE[::-1], given[first].dtype, device).T
    else:
        wrong = ptxrt.zeros((2, 5, 3, 6), given[first].dtype, device).transpose(0, 3, 2, 1)
    words = (f"contiguous, strides {contiguous(SHAPE)}", f"channels-last, strides {channels_last(SHAPE)}", "Copy it")
    with refused(ptxrt.LayoutError, case.plan.op, first, *words, str(wrong.strides)):
        case.call({**given, first: wrong}, None, None)


@each_op
def test_every_tensor_must_have_the_layout_of_the_plan(device: Device, case: Case) -> None:
    packed = replace(case, problem=replace(case.problem, strides=()))
    for problem, other in ((case, packed), (packed, case)):
        plan = problem.plan.select(device, problem.problem)
        good, bad = operands(problem, device), operands(other, device)
        names = tensors(problem, device)
        assert len(names) > 1
        for name in names:
            strides = channels_last(SHAPE) if problem is case else contiguous(SHAPE)
            words = [f"{'channels-last' if problem is case else 'contiguous'}, strides {strides}", "Copy it into a"]
            with refused(ptxrt.LayoutError, problem.plan.op, name, *words):
                plan.run(tuple({**good, name: bad[name]}.values()))


@each_op
def test_what_the_error_says_to_pass_passes(device: Device, case: Case) -> None:
    plan, given = case.plan.select(device, case.problem), operands(case, device)
    name = tensors(case, device)[-1]
    given[name] = ptxrt.zeros(SHAPE, given[name].dtype, device)
    with pytest.raises(ptxrt.LayoutError) as caught:
        plan.run(tuple(given.values()))
    shape, axes = re.findall(r"shape (\(.*?\)).* transpose(\(.*?\))", str(caught.value))[0]
    numbers = [tuple(int(n) for n in re.findall(r"\d+", text)) for text in (shape, axes)]
    given[name] = ptxrt.zeros(numbers[0], given[name].dtype, device).transpose(numbers[1])
    plan.run(tuple(given.values()))


@pytest.mark.parametrize("shape", [(3, 5), (3, 1, 4, 5), (3, 5, 1, 1), (0, 5, 4), (3, 0, 4), (3, 5, 0, 2)], ids=str)
def test_where_both_layouts_are_one_it_is_contiguous(device: Device, shape: Shape) -> None:
    problem = ops.Softmax2dDescriptor(shape, strides=channels_last(shape))
    assert problem == ops.Softmax2dDescriptor(shape)
    assert hash(problem) == hash(ops.Softmax2dDescriptor(shape))
    assert not problem.channels_last
    x = ptxrt.zeros((shape[0], *shape[2:], shape[1]), np.float32, device)
    x = x.transpose(0, len(shape) - 1, *range(1, len(shape) - 1))
    y = ops.softmax2d(x)
    assert (y.shape, y.strides) == (shape, contiguous(shape))


@each_op
def test_the_strides_of_a_descriptor_are_those_of_a_layout(case: Case) -> None:
    assert replace(case.problem, strides=list(channels_last(SHAPE))) == case.problem
    assert replace(case.problem, strides=contiguous(SHAPE)) == replace(case.problem, strides=()) != case.problem
    for wrong in (None, 3, "ab", (1, 2), (-90, 1, -30, -6), tuple(float(n) for n in channels_last(SHAPE))):
        with pytest.raises(ptxrt.LayoutError) as caught:
            replace(case.problem, strides=wrong)
        assert (caught.value.op, caught.value.argument) == (case.plan.op, getattr(case.problem, "first", "x"))


def test_kernels_of_group_norm_are_for_one_layout(device: Device) -> None:
    # Whole vectors in either layout, and whole lines of them.
    shape, limits = (2, 8, 8, 4), Limits.of(device.properties)._replace(max_cluster=16, large=True)
    packed = ops.GroupNormDescriptor(shape, 2)
    last = replace(packed, strides=channels_last(shape))
    for plan, problems in (
        (ops.GroupNormPlan, (packed, last)),
        (ops.GroupNormBackwardPlan, tuple(ops.GroupNormBackwardDescriptor(shape, 2, strides=p.strides)
                                          for p in (packed, last))),
    ):  # fmt: skip
        for problem in problems:
            for variant in plan.variants:
                config = variant.heuristic(problem)  # type: ignore[arg-type]
                found = variant.schedule(problem, config, limits)  # type: ignore[arg-type]
                assert isinstance(found, Schedule) == (problem.channels_last == ("channels_last" in variant.name))


@pytest.mark.parametrize(
    ("shape", "forward", "backward"),
    [
        ((8, 512, 50, 50), "channels_last_held", "channels_last_split"),
        ((8, 514, 17, 17), "channels_last_split", "channels_last_split"),
        ((8, 512, 17, 17), "channels_last_cluster", "channels_last_cluster"),
        (SHAPE, "channels_last", "channels_last"),
    ],
)
def test_many_values_are_split(shape: Shape, forward: str, backward: str) -> None:
    strides = channels_last(shape)
    sim = Device("sim:0")
    problems = (
        ops.GroupNormDescriptor(shape, 2, strides=strides),
        ops.GroupNormBackwardDescriptor(shape, 2, strides=strides),
    )
    assert ops.GroupNormPlan.select(sim, problems[0]).variant.name == forward
    assert ops.GroupNormBackwardPlan.select(sim, problems[1]).variant.name == backward


def test_an_array_of_another_library_is_used_as_it_lies(sim: Device, rng: Rng) -> None:
    host = np.ascontiguousarray(rng.standard_normal((2, 3, 5, 6)).astype(np.float32))
    x = host.transpose(0, 3, 1, 2)  # as a channels-last tensor of PyTorch says of itself
    shared = ptxrt.from_dlpack(x)
    assert shared.strides == channels_last(x.shape)
    out = np.zeros_like(host).transpose(0, 3, 1, 2)
    ops.softmax2d(shared, out=ptxrt.from_dlpack(out))
    assert relative_error(out, references.softmax2d(x)) <= bar("softmax2d", "f32")


def test_tensors_of_torch_in_channels_last(cuda: Device) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(2, 6, 3, 5, device="cuda").to(memory_format=torch.channels_last)
    y = ops.group_norm(x, None, None, 2)
    assert y.strides == tuple(x.stride())
    want = references.group_norm(x.cpu().numpy(), None, None, 2)
    assert relative_error(y.to_host(), want) <= bar("group_norm", "f32")


@pytest.mark.parametrize(
    "variant",
    ["channels_last", "channels_last_held", "channels_last_split", "hip/channels_last", "hip/channels_last_split"],
)
def test_tensors_past_2_to_the_32_elements(cuda: Device, torch_with: Any, variant: str) -> None:
    """Against the contiguous kernels, which have a test of their own."""
    shape, groups, kind = (2, 8, 2**28 + 8), 2, BY_NAME["f16"]
    torch = torch_with(13 * int(np.prod(shape)))
    strides = channels_last(shape)

    def tensor() -> Any:
        memory = torch.empty((2, shape[2], 8), device="cuda", dtype=torch.float16)
        return memory.normal_().permute(0, 2, 1)

    def same(got: Any, want: Any) -> None:
        ours, theirs = (torch.from_dlpack(a) for a in (got, want))
        for start in (0, 2**27, shape[2] - 1000):
            piece = slice(start, start + 1000)
            ref = theirs[..., piece].double().cpu().numpy()
            assert relative_error(ours[..., piece].double().cpu().numpy(), ref) <= 2 * bar("group_norm", "f16", ref)

    weight = ptxrt.from_dlpack(torch.randn(8, device="cuda"))
    x, go = tensor(), tensor()
    last = [ptxrt.from_dlpack(a) for a in (go, x)]
    packed = [ptxrt.from_dlpack(a.contiguous()) for a in (go, x)]
    problem = ops.GroupNormDescriptor(shape, groups, kind, strides=strides)
    plan = ops.GroupNormPlan.select(cuda, problem, wish(variant))
    same(plan.run(ops.GroupNormArgs(last[1], weight)), ops.group_norm(packed[1], weight, None, groups))
    backward = ops.GroupNormBackwardPlan.select(
        cuda,
        ops.GroupNormBackwardDescriptor(shape, groups, kind, strides=strides),
        wish(variant.removesuffix("_held")),  # which has none
    )
    got = backward.run(ops.GroupNormBackwardArgs(last[0], last[1], weight))
    want = ops.group_norm_backward(packed[0], packed[1], weight, groups)
    same(got.grad_input, want.grad_input)
    for ours, theirs in ((got.grad_weight, want.grad_weight), (got.grad_bias, want.grad_bias)):
        assert ours is not None
        assert theirs is not None
        assert relative_error(ours.to_host(), theirs.to_host()) <= 2 * bar("group_norm", "f32")
