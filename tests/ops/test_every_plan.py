"""What holds of every plan: the checks of each operand and argument, workspaces, preferences, schedules."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import pytest
from helpers import Patch, Shape, launches_by, refused, skip_stand_in
from op_testing import variants, wish
from problems import Case, cases, operands, ways

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME, ElementType, struct_type
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
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    KernelFamily,
    KernelSpec,
    Launch,
    Limits,
    Operand,
    Region,
    Role,
    Schedule,
)
from ptxrt.ops.framework.texts import following
from ptxrt.ops.framework.zeros import zeros
from ptxrt.runtime.layout import contiguous

Given: TypeAlias = dict[str, Any]
CASES = cases()
ONE_EACH = list({case.plan.op: case for case in CASES if case.dtype == "f32"}.values())
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_op = pytest.mark.parametrize("case", ONE_EACH, ids=str)
# Of one kernel and of several, with a workspace and a table: what compiles anew takes time.
FEW = [case for case in ONE_EACH if case.plan.op in ("softmax2d", "group_norm_backward", "upsample_nearest2d")]
each_of_few = pytest.mark.parametrize("case", FEW, ids=str)
# One of each problem, whatever its type, which a check of an operand is the same for.
PROBLEMS = list({(case.plan, replace(case.problem, dtype=BY_NAME["f32"])): case for case in reversed(CASES)}.values())
OPERANDS = [(case, o) for case in PROBLEMS for o in case.plan.select("sim:0", case.problem).operands]


def each_operand(choose: Any = lambda o: True) -> pytest.MarkDecorator:
    """Parametrize over the operands of all problems that are given."""
    given = {case: case.inputs(np.random.default_rng()) for case in PROBLEMS}
    nothing = {case: {name for name, a in given[case].items() if a is None} for case in PROBLEMS}
    chosen = [(case, o.name) for case, o in OPERANDS if not o.absent and o.name not in nothing[case] and choose(o)]
    return pytest.mark.parametrize(("case", "name"), chosen, ids=str)


@pytest.fixture
def good(device: Device, case: Case) -> Given:
    """Operands that pass; each test spoils one."""
    if not ways(case, device):
        pytest.skip(f"{device} has no variant that takes it")
    return operands(case, device)


def plan_of(case: Case, device: Device, key: str | None = None) -> Any:
    return case.plan.select(device, case.problem, wish(key))


def operand(case: Case, name: str) -> Operand:
    return next(o for c, o in OPERANDS if c is case and o.name == name)


def spoilt(kind: type[ptxrt.PtxrtError], case: Case, device: Device, given: Given, *names: str) -> str:
    """Assert that a run is refused for one of `names`, and that nothing was launched, filled, allocated or compiled."""
    plan = plan_of(case, device)
    with Patch.context() as patch:
        launches_by(patch, device, lambda *_: pytest.fail("launch"))
        for call in ("fill", "allocate", "compile"):
            patch.setattr(device.backend, call, lambda *_, call=call, **__: pytest.fail(call))
        for attempt in (plan.can_implement, plan.run):
            with pytest.raises(ptxrt.PtxrtError) as caught:
                attempt(tuple(given.values()))
            assert type(caught.value) is kind, caught.value
            assert caught.value.op == case.plan.op
            assert caught.value.argument in names, caught.value
    return str(caught.value)


# Operands -------------------------------------------------------------------------------------------------------------


@each_case
def test_the_good_operands_pass(device: Device, case: Case, good: Given) -> None:
    plan = plan_of(case, device)
    plan.can_implement(tuple(good.values()))
    results = plan.run(tuple(good.values()))
    results = results if isinstance(results, tuple) else (results,)
    outputs = [good[o.name] for o in plan.operands if o.output]
    assert len(results) == len(outputs)
    assert all(result is output for result, output in zip(results, outputs, strict=True))


@each_operand()
def test_the_shape_of_each_operand_is_checked(device: Device, case: Case, name: str, good: Given) -> None:
    array = good[name]
    longer = [n + (axis == 0) for axis, n in enumerate(array.shape)]
    for shape in (longer, [*array.shape, 1], [array.size]) if array.ndim > 1 else (longer, [1, array.size]):
        good[name] = ptxrt.zeros(shape, array.dtype, device)
        spoilt(ptxrt.ShapeMismatch, case, device, good, name)


@each_operand()
def test_the_dtype_of_each_operand_is_checked(device: Device, case: Case, name: str, good: Given) -> None:
    kind = next(kind for kind in BY_NAME.values() if kind.numpy != good[name].dtype and kind.kind == "float")
    good[name] = ptxrt.zeros(good[name].shape, kind.numpy, device)
    spoilt(ptxrt.DTypeMismatch, case, device, good, name)


@each_operand()
def test_the_ordinal_of_each_operand_is_checked(
    device: Device, other_device: Device, case: Case, name: str, good: Given
) -> None:
    good[name] = ptxrt.zeros(good[name].shape, good[name].dtype, other_device)
    spoilt(ptxrt.DeviceMismatch, case, device, good, name)


@each_operand()
def test_the_strides_of_each_operand_are_checked(device: Device, case: Case, name: str, good: Given) -> None:
    array = good[name]
    wide = ptxrt.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype, device)
    good[name] = wide[..., ::2]
    spoilt(ptxrt.LayoutError, case, device, good, name)


@each_operand()
def test_each_operand_must_be_alive(device: Device, case: Case, name: str, good: Given) -> None:
    good[name].free()
    spoilt(ptxrt.InvalidArgument, case, device, good, name)


@each_operand()
def test_each_operand_must_be_a_device_array(device: Device, case: Case, name: str, good: Given) -> None:
    nothing = () if operand(case, name).optional else (None,)
    for wrong in (*nothing, 3, [1.0, 2.0], good[name].to_host()):
        good[name] = wrong
        spoilt(ptxrt.InvalidArgument, case, device, good, name)


@each_operand(lambda o: o.absent is None and o.written)
def test_what_is_written_is_no_broadcast_view(device: Device, case: Case, name: str, good: Given) -> None:
    array = good[name]
    good[name] = ptxrt.zeros((1,) * array.ndim, array.dtype, device).broadcast_to(array.shape)
    spoilt(ptxrt.LayoutError, case, device, good, name)


@each_operand(lambda o: o.written)
def test_what_is_written_must_overlap_no_other_operand(device: Device, case: Case, name: str, good: Given) -> None:
    ours, array = operand(case, name), good[name]
    for second, other in list(good.items()):
        if second == name or other is None:
            continue
        size = BY_NAME["f64"].size
        whole = ptxrt.empty(array.nbytes + other.nbytes + size, np.uint8, device)

        def placed(at: int, like: Any, whole: Any = whole) -> Any:
            address, kind, strides = whole.ptr + at, like.dtype, like.strides
            return ptxrt.DeviceArray.from_pointer(address, like.shape, kind, device, strides, owner=whole)

        across = {**good, name: placed(0, array), second: placed(array.nbytes - size, other)}
        spoilt(ptxrt.LayoutError, case, device, across, name, second)
        across = {**good, name: placed(other.nbytes - size, array), second: placed(0, other)}
        spoilt(ptxrt.LayoutError, case, device, across, name, second)
        same = {**good, name: placed(0, array), second: placed(0, other)}
        if second in ours.in_place or name in operand(case, second).in_place:
            plan_of(case, device).can_implement(tuple(same.values()))
        else:
            spoilt(ptxrt.LayoutError, case, device, same, name, second)
        beside = {**good, name: placed(0, array), second: placed(-(-array.nbytes // size) * size, other)}
        if array.nbytes % size == 0:
            plan_of(case, device).can_implement(tuple(beside.values()))


@pytest.mark.parametrize(("case", "name"), [(case, o.name) for case, o in OPERANDS if o.absent], ids=str)
def test_what_the_problem_has_none_of_must_be_none(device: Device, case: Case, name: str, good: Given) -> None:
    good[name] = ptxrt.zeros(operand(case, name).shape, operand(case, name).type.numpy, device)
    assert "None, since" in spoilt(ptxrt.InvalidArgument, case, device, good, name)


@each_operand(lambda o: o.needs)
def test_an_output_is_none_where_what_it_needs_is(device: Device, case: Case, name: str, good: Given) -> None:
    good[str(operand(case, name).needs)] = None
    assert "is None" in spoilt(ptxrt.InvalidArgument, case, device, good, name)
    good[name] = None
    assert getattr(plan_of(case, device).run(tuple(good.values())), name) is None


@each_op
@pytest.mark.parametrize("args", [None, 7, (), (1,) * 20])
def test_operands_that_are_no_sequence_of_the_right_length_are_refused(device: Device, case: Case, args: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument, match="args: expected"):
        plan_of(case, device).run(args)


# Streams and functions ------------------------------------------------------------------------------------------------


def outputs_of(case: Case, device: Device, good: Given) -> Any:
    """Return `out` as the op's function takes it."""
    names = [o.name for o in plan_of(case, device).operands if o.output]
    return good[names[0]] if len(names) == 1 else tuple(good[name] for name in names)


@each_case
def test_the_function_gives_the_plans_results_and_allocates_what_is_left_out(
    device: Device, case: Case, good: Given
) -> None:
    plan_of(case, device).run(tuple(good.values()))
    given = operands(case, device)
    assert case.call(given, outputs_of(case, device, given), None) is not None
    results = case.call(operands(case, device), None, device.create_stream())
    fields = results if isinstance(results, tuple) else (results,)
    names = [o.name for o in plan_of(case, device).operands if o.output]
    device.synchronize()
    for name, result in zip(names, fields, strict=True):
        assert (result is None) == (good[name] is None)
        if result is not None and plan_of(case, device).precision_guarantee.deterministic:
            assert result.to_host().tobytes() == good[name].to_host().tobytes() == given[name].to_host().tobytes()


@each_op
def test_out_names_every_output_or_none_of_it(device: Device, case: Case, good: Given) -> None:
    names = [o.name for o in plan_of(case, device).operands if o.output]
    if len(names) == 1:
        return
    results = case.call(good, (None, good[names[1]], *[None] * (len(names) - 2)), None)
    assert results[1] is good[names[1]]
    assert all((result is None) == (good[name] is None) for name, result in zip(names, results, strict=True))
    for wrong in (good[names[0]], (None,), (None,) * (len(names) + 1), "ab"):
        with pytest.raises(ptxrt.InvalidArgument) as caught:
            case.call(good, wrong, None)
        assert (caught.value.op, caught.value.argument) == (case.plan.op, "out")


@each_op
def test_a_stream_of_another_device_is_refused(device: Device, other_device: Device, case: Case, good: Given) -> None:
    stream = other_device.create_stream()
    attempts: list[Callable[[], Any]] = [
        lambda: plan_of(case, device).run(tuple(good.values()), stream),
        lambda: case.call(good, None, stream),
    ]
    for attempt in attempts:
        with pytest.raises(ptxrt.DeviceMismatch) as caught:
            attempt()
        assert (caught.value.op, caught.value.argument) == (case.plan.op, "stream")


@each_op
def test_the_operand_that_makes_the_problem_must_be_an_array(device: Device, case: Case, good: Given) -> None:
    first = next(iter(good))
    for wrong in (None, 3, np.zeros(3, np.float32)):
        with pytest.raises(ptxrt.InvalidArgument):
            case.call({**good, "x": wrong} if "x" in good else {**good, first: wrong}, None, None)


@each_op
def test_the_function_keeps_its_plan(device: Device, case: Case, good: Given, monkeypatch: Patch) -> None:
    case.call(good, None, None)
    monkeypatch.setattr(case.plan, "select", lambda *_: pytest.fail("selected again"))
    case.call(good, None, None)


@each_of_few
def test_forgotten_plans_let_the_cache_unload(
    device: Device, case: Case, good: Given, clean_modules: ptxrt.ModuleCache
) -> None:
    skip_stand_in(device)

    def cleared() -> set[str]:
        ops.forget_plans()
        gc.collect()
        clean_modules.clear()
        return {entry.digest for entry in clean_modules.entries()}

    of_others = cleared()  # which other test files hold
    case.call(good, None, None)
    assert {entry.digest for entry in clean_modules.entries()} - of_others
    assert cleared() == of_others
    case.call(good, None, None)


@each_of_few
def test_a_plan_loads_nothing_before_its_first_good_run(
    device: Device, case: Case, good: Given, clean_modules: ptxrt.ModuleCache
) -> None:
    skip_stand_in(device)
    ops.forget_plans()
    before = clean_modules.stats().misses  # a compile, or a binary out of the store
    plan = plan_of(case, device)
    plan.can_implement(tuple(good.values()))
    assert clean_modules.stats().misses == before
    plan.run(tuple(good.values()))
    assert clean_modules.stats().misses > before


# Workspaces -----------------------------------------------------------------------------------------------------------


@each_case
def test_a_workspace_is_checked(device: Device, case: Case, good: Given) -> None:
    for key in {key for key, _ in ways(case, device)}:
        plan = plan_of(case, device, key)
        need = plan.workspace_size
        attempts: list[Any] = [(7, ptxrt.InvalidArgument)]
        if need:
            whole = ptxrt.empty(need + 8, np.uint8, device)
            attempts += [(whole[:need][1:], ptxrt.ShapeMismatch), (whole[8:], ptxrt.LayoutError)]
        for workspace, kind in attempts:
            with pytest.raises(kind) as caught:
                plan.run(tuple(good.values()), workspace=workspace)
            assert (caught.value.op, caught.value.argument) == (case.plan.op, "workspace")


@each_case
def test_the_regions_of_a_workspace_do_not_overlap(case: Case) -> None:
    for variant in case.plan.variants:
        for config in variant.config_type.candidates(case.problem):
            schedule = variant.schedule(case.problem, config, Limits.of(Device("sim:0").properties))
            if isinstance(schedule, Schedule):
                end = 0
                for region in schedule.workspace.regions:
                    assert region.offset % 256 == 0
                    assert region.offset >= end
                    end = region.offset + region.nbytes
                assert schedule.workspace.size == end
                for launch in schedule.launches:
                    assert all(a.offset + a.nbytes <= end for a in launch.arguments if isinstance(a, Region))


# Selection ------------------------------------------------------------------------------------------------------------


@each_case
def test_a_plan_says_what_it_is(device: Device, case: Case) -> None:
    for key in {key for key, _ in ways(case, device)}:
        plan = plan_of(case, device, key)
        want = (case.plan.category, case.plan.op, case.dtype, device.arch, device.kind)
        assert plan.key == plan.sku == (*want, plan.variant.name, plan.variant.language)
        assert {plan.key, plan_of(case, device, key).key} == {plan.key}
        assert case.plan.op in repr(plan)
        assert plan.precision_guarantee is plan.schedule.guarantee
        if case.plan.category == "normalization":
            assert plan.precision_guarantee.accumulator == ("2 x f64" if case.dtype == "f64" else "f64")


@each_op
@pytest.mark.parametrize(
    ("preference", "reason"),
    [({"variant": "fastest"}, "'fastest'"), ({"language": "cuda"}, "'cuda'"),
     ({"config": ptxrt.ops.framework.Limits}, "")],
    ids=["variant", "language", "config"],
)  # fmt: skip
def test_a_preference_that_nothing_meets_is_refused_with_each_variants_reason(
    device: Device, case: Case, preference: Any, reason: str
) -> None:
    if "config" in preference:
        with pytest.raises(ptxrt.InvalidArgument, match="config"):
            ptxrt.PlanPreference(**preference)
        return
    with pytest.raises(ptxrt.Unsupported) as caught:
        case.plan.select(device, case.problem, ptxrt.PlanPreference(**preference))
    assert reason in str(caught.value)
    assert all(str(variant) in str(caught.value) for variant in case.plan.variants)


@each_case
def test_preferences_choose(device: Device, case: Case) -> None:
    plans = [plan_of(case, device, key) for key in dict.fromkeys(key for key, _ in ways(case, device))]
    for preference, meets in (
        (ptxrt.PlanPreference(deterministic=True), [p for p in plans if p.precision_guarantee.deterministic]),
        (ptxrt.PlanPreference(workspace_limit=0), [p for p in plans if p.workspace_size == 0]),
        (ptxrt.PlanPreference(language="ptx"), [p for p in plans if p.variant.language == "ptx"]),
        (ptxrt.PlanPreference(language="hip"), [p for p in plans if p.variant.language == "hip"]),
    ):
        if meets:
            assert case.plan.select(device, case.problem, preference).key in [plan.key for plan in meets]
        else:
            with pytest.raises(ptxrt.Unsupported):
                case.plan.select(device, case.problem, preference)


@each_op
def test_the_environment_names_the_language(device: Device, case: Case, monkeypatch: Patch) -> None:
    for language in {"ptx", "hip"} & set(device.backend.languages):
        monkeypatch.setenv("PTXRT_LANGUAGE", language)
        assert case.plan.select(device, case.problem).variant.language == language


@each_op
def test_a_plan_takes_descriptors_and_preferences_alone(device: Device, case: Case) -> None:
    for argument, given in (("descriptor", (case.problem, None)), ("preference", (case.problem, "fast"))):
        descriptor: Any = given[0]
        preference: Any = given[1]
        if argument == "descriptor":
            descriptor = next(other.problem for other in ONE_EACH if other.plan is not case.plan)
        with pytest.raises(ptxrt.InvalidArgument) as caught:
            case.plan.select(device, descriptor, preference)
        assert caught.value.argument == argument


# Schedules ------------------------------------------------------------------------------------------------------------

# Beside the small cases: problems that other entries serve.
LARGE: list[tuple[Any, Any]] = [
    (ops.GroupNormPlan, ops.GroupNormDescriptor((256, 64, 8), 32)),  # more groups of a warp than blocks run at a time
    *((plan, kind(shape, groups))
      for plan, kind in ((ops.GroupNormPlan, ops.GroupNormDescriptor),
                         (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor))
      for shape, groups in (((2, 8, 16), 4), ((2, 64, 32, 32), 4), ((8, 320, 64, 64), 32), ((1, 512, 128, 128), 32))),
    (ops.BatchNormPlan, ops.BatchNormDescriptor((2, 8, 64, 64), True)),
    (ops.BatchNormPlan, ops.BatchNormDescriptor((2, 8, 8), False)),
    *((ops.GroupNormPlan, ops.GroupNormDescriptor((2, 2, hw), 2))  # each number of slots of teams
      for hw in (24, 36, 48, 56, 63, 64)),
    *((ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor((2, 2, hw), 2)) for hw in (9, 16, 33, 40, 263, 312)),
    *((ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor((7, 32, hw), 1)) for hw in (192, 240)),
    *((plan, kind((2, 128 * slots), (128 * slots,)))  # an entry for each number of slots
      for plan, kind in ((ops.LayerNormPlan, ops.LayerNormDescriptor), (ops.RmsNormPlan, ops.RmsNormDescriptor),
                         (ops.LayerNormBackwardPlan, ops.LayerNormBackwardDescriptor),
                         (ops.RmsNormBackwardPlan, ops.RmsNormBackwardDescriptor))
      for slots in range(1, 9)),
    *((plan, kind((9, width), (width,)))  # and for each number of lanes that have a row
      for plan, kind in ((ops.LayerNormPlan, ops.LayerNormDescriptor), (ops.RmsNormPlan, ops.RmsNormDescriptor))
      for width in (16, 32, 48, 64, 96, 192, 256)),
    *((plan, kind((9, width), (width,)))  # and of eights and of words
      for plan, kind in ((ops.LayerNormPlan, ops.LayerNormDescriptor), (ops.RmsNormPlan, ops.RmsNormDescriptor))
      for width in (2, 6, 18, 30, 34, 66, 130, 258, 3, 4, 9, 12, 25, 36, 47, 68, 95, 132, 255, 260, 511)),
    *((plan, kind((9, width), (width,)))
      for plan, kind in ((ops.LayerNormBackwardPlan, ops.LayerNormBackwardDescriptor),
                         (ops.RmsNormBackwardPlan, ops.RmsNormBackwardDescriptor))
      for width in (64, 62, 126, 254, 63, 68, 125, 132, 253)),
    (ops.BatchNormPlan, ops.BatchNormDescriptor((4096, 320), True)),
    (ops.BatchNormBackwardPlan, ops.BatchNormBackwardDescriptor((2, 8, 64, 64), True)),
    *((plan, kind(shape))
      for plan, kind in ((ops.Softmax2dPlan, ops.Softmax2dDescriptor),
                         (ops.Softmax2dBackwardPlan, ops.Softmax2dBackwardDescriptor))
      for shape in ((16, 256, 64, 64), (64, 1000, 7, 8), (2, 82, 64, 64),
                    *((2, channels, 64) for channels in (3, 7, 11, 19, 23, 35)))),
    (ops.UpsampleNearest2dPlan, ops.UpsampleNearest2dDescriptor((1, 1, 16, 32), (512, 512, 32, 1), 32, 64)),
    (ops.UpsampleNearest2dBackwardPlan,
     ops.UpsampleNearest2dBackwardDescriptor((1, 1, 32, 64), (2048, 2048, 64, 1), 16, 32)),
    *((ops.UpsampleNearest2dBackwardPlan,
       ops.UpsampleNearest2dBackwardDescriptor((1, 1, 12, 12), (144, 144, 12, 1), size, size)) for size in (3, 4)),
    # Rows of each width that narrow pieces have.
    *((ops.UpsampleNearest2dPlan, ops.UpsampleNearest2dDescriptor((1, 1, 2, 1), (2, 2, 1, 1), 4, width))
      for width in (1, 2, 4, 8, 16)),
    *((ops.UpsampleNearest2dBackwardPlan,
       ops.UpsampleNearest2dBackwardDescriptor((1, 1, factor, width * factor), (0, 0, width * factor, 1), 1, width))
      for factor in (2, 3, 4) for width in (1, 2, 4)),
    (ops.BatchNormPlan, ops.BatchNormDescriptor((2, 8, 6), False, strides=(48, 1, 8))),
    *((plan, kind((rows, 8), True))
      for plan, kind in ((ops.BatchNormPlan, ops.BatchNormDescriptor),
                         (ops.BatchNormBackwardPlan, ops.BatchNormBackwardDescriptor))
      for rows in (300, 20000)),
    *((plan, kind(shape, True))  # blocks alone, of fewer threads
      for plan, kind in ((ops.BatchNormPlan, ops.BatchNormDescriptor),
                         (ops.BatchNormBackwardPlan, ops.BatchNormBackwardDescriptor))
      for shape in ((64, 4096), (256, 8192), (256, 2048))),
    *((plan, kind((2, width), (width,)))  # rows that blocks share
      for plan, kind in ((ops.LayerNormBackwardPlan, ops.LayerNormBackwardDescriptor),
                         (ops.RmsNormBackwardPlan, ops.RmsNormBackwardDescriptor))
      for width in (12288, 16384, 32768)),
    *((plan, kind((1, 16, 3, 3), strides=(144, 1, 48, 16)))
      for plan, kind in ((ops.Softmax2dPlan, ops.Softmax2dDescriptor),
                         (ops.Softmax2dBackwardPlan, ops.Softmax2dBackwardDescriptor))),
    *((plan, kind((1, 16, 9), size, strides=(144, 1, 16)))
      for plan, kind in ((ops.LocalResponseNormPlan, ops.LocalResponseNormDescriptor),
                         (ops.LocalResponseNormBackwardPlan, ops.LocalResponseNormBackwardDescriptor))
      for size in (3, 5, 7, 9)),
    (ops.GridSamplePlan, ops.GridSampleDescriptor((1, 16, 4, 4), (1, 4, 4, 2), strides=(256, 1, 64, 16))),
    (ops.GroupNormPlan, ops.GroupNormDescriptor((1, 4, 1 << 18), 2)),
    (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor((1, 64, 1 << 16), 2)),
    (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor((300, 64, 7), 2)),
    (ops.BatchNormPlan,
     ops.BatchNormDescriptor((2, 8, 6), True, momentum=None, save="inverse_deviation", counted=True)),
    (ops.BatchNormBackwardPlan, ops.BatchNormBackwardDescriptor((10, 16, 7), True)),
    (ops.BatchNormBackwardPlan,
     ops.BatchNormBackwardDescriptor((2, 8, 6), True, handed=True, save="inverse_deviation")),
    (ops.LayerNormBackwardPlan, ops.LayerNormBackwardDescriptor((1 << 13, 8), (8,))),
    (ops.RmsNormBackwardPlan, ops.RmsNormBackwardDescriptor((1 << 13, 8), (8,))),
    (ops.GroupNormPlan, ops.GroupNormDescriptor((2, 4, 3), 2, strides=(12, 1, 4))),
    (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor((2, 4, 3), 2, strides=(12, 1, 4))),
    *((ops.LocalResponseNormPlan, ops.LocalResponseNormDescriptor((1, 4, 9), size, beta=beta))
      for size in range(1, 13) for beta in (0.75, 0.6)),
    *((ops.LocalResponseNormBackwardPlan, ops.LocalResponseNormBackwardDescriptor((1, 4, 9), size, beta=beta))
      for size in range(1, 13) for beta in (0.75, 0.6)),
    (ops.Softmax2dPlan, ops.Softmax2dDescriptor((1 << 32, 1, 1))),
    *((plan, kind((1, channels, 8)))
      for plan, kind in ((ops.Softmax2dPlan, ops.Softmax2dDescriptor),
                         (ops.Softmax2dBackwardPlan, ops.Softmax2dBackwardDescriptor))
      for channels in (40, 100)),
    (ops.Softmax2dBackwardPlan, ops.Softmax2dBackwardDescriptor((1 << 32, 1, 1))),
    *((plan, kind((1, 1, *size), (1, *size, len(size)), mode=mode, padding_mode="border"))
      for plan, kind in ((ops.GridSamplePlan, ops.GridSampleDescriptor),
                         (ops.GridSampleBackwardPlan, ops.GridSampleBackwardDescriptor))
      for size, modes in (((2, 2), ("bilinear", "nearest", "bicubic")), ((2, 2, 2), ("bilinear", "nearest")))
      for mode in modes),
]  # fmt: skip

# Not among the cases, whose references know nothing of ranks: tests/distributed/ has them.
OVER_RANKS: list[tuple[Any, Any]] = [
    (plan, made(BY_NAME[dtype]))
    for dtype in ("f32", "f16", "bf16")
    for plan, made in (
        (SumsPlan, lambda kind: SumsDescriptor((2, 8), kind)),
        (SumsBackwardPlan, lambda kind: SumsBackwardDescriptor((2, 8), kind)),
        (SumsPlan, lambda kind: SumsDescriptor((2, 8), kind, exact=False)),
        (SumsBackwardPlan, lambda kind: SumsBackwardDescriptor((2, 8), kind, exact=False)),
        (ShardPlan, lambda kind: ShardDescriptor((2, 8, 6), True, kind)),
        (ShardBackwardPlan, lambda kind: ShardBackwardDescriptor((2, 8, 6), True, kind, handed=True)),
    )
]


@cache
def schedules() -> list[tuple[Any, Any, Schedule]]:
    """Return plan, problem and schedule for every case, variant and config, on no particular device."""
    limits = Limits.of(Device("sim:0").properties)
    found = []
    problems: list[tuple[Any, Any]] = [(case.plan, case.problem) for case in CASES]
    for plan, problem in LARGE:
        dtypes = {case.dtype for case in CASES if case.plan is plan}
        problems += [(plan, replace(problem, dtype=BY_NAME[dtype])) for dtype in sorted(dtypes)]
    for plan, problem in [*problems, *OVER_RANKS]:
        for variant in plan.variants:
            for config in variant.config_type.candidates(problem):
                schedule = variant.schedule(problem, config, limits)
                if isinstance(schedule, Schedule):
                    found.append((plan, problem, schedule))
    return found


def test_every_kernel_that_is_declared_is_launched() -> None:
    launched = {launch.kernel for _, _, schedule in schedules() for launch in schedule.launches}
    assert launched | {zeros("x", 1).kernel} == set(ops.kernels())


def followers() -> set[KernelSpec]:
    """Return the entries that some plan launches behind another one, on sm_90."""
    limits = Limits.of(Device("sim:0").properties)
    return {
        step.kernel
        for _, _, schedule in schedules()
        for step in schedule.steps[1:]
        if isinstance(step, Launch) and step.may_follow(limits)
    }


def test_a_kernel_that_may_begin_early_waits_first_of_all() -> None:
    found = followers()
    assert len(found) > 30
    for kernel in found:
        text = following(kernel.source).text
        head, _, entries = text.partition(".visible .entry")
        assert re.match(r" \w+\([^{]*\{\n    griddepcontrol\.wait;\n", entries), kernel.entry
        assert text.count("griddepcontrol") == text.count(".visible .entry") == 1, kernel.entry
        version, target = re.findall(r"^\.(?:version|target) (?:sm_)?(\S+)$", head, re.MULTILINE)
        assert tuple(map(int, version.split("."))) >= (7, 8), kernel.entry
        assert int(target) >= 90, kernel.entry


@pytest.mark.parametrize(
    ("arch", "language", "expected"),
    [("sm_80", "ptx", False), ("sm_90", "ptx", True), ("sm_120a", "ptx", True), ("sm_90", "hip", False),
     ("gfx942", "hip", False)],
)  # fmt: skip
def test_where_a_launch_may_begin_early(sim: Device, arch: str, language: str, expected: bool) -> None:
    kernel = next(spec for spec in ops.kernels() if (spec.entry, spec.language) == ("softmax2d_kernel", language))
    launch = Launch(kernel, (1,), 256, ("x", "out", 1, 8, 6))
    assert launch.may_follow(Limits.of(replace(sim.properties, arch=arch), language)) == expected


@pytest.mark.parametrize(("grid", "block"), [((0,), 256), ((-64,), 256), ((1, 0), 256), ((1,), 0)])
def test_a_launch_of_nothing_is_refused(sim: Device, grid: tuple[int, ...], block: int) -> None:
    kernel = next(spec for spec in ops.kernels() if spec.entry == "softmax2d_kernel")
    launch = Launch(kernel, grid, block, ("x", "out", 1, 8, 6))
    assert "has none" in str(launch.refusal(Limits.of(sim.properties)))


def test_no_launch_leaves_an_entry_less_shared_memory_than_its_own_variables_take() -> None:
    sizes = {"b16": 2, "b32": 4, "f32": 4, "b64": 8, "f64": 8}
    launches = [launch for _, _, schedule in schedules() for launch in schedule.launches if launch.shared_bytes]
    room: dict[Any, int] = {}
    for launch in launches:
        if launch.kernel.language == "ptx":
            room[launch.kernel] = min(room.get(launch.kernel, 1 << 20), launch.own_bytes)
    assert len(room) > 100
    for kernel, own in room.items():
        declared = re.findall(r"^\s+\.shared \.align \d+ \.(\w+) \w+(?:\[(\d+)\])?;", kernel.source.text, re.M)
        assert sum(sizes[of] * int(count or 1) for of, count in declared) <= own, kernel.entry


def reads_in_eval(launch: Launch, parameter: str) -> bool:
    """Whether an entry of the baseline ABI, which writes statistics in training, is called for none."""
    names = [p.name for p in launch.kernel.signature.parameters]
    return parameter in ("mean_ptr", "var_ptr") and launch.arguments[names.index("training")] == 0


def alike(name: str, given: ElementType, moved: bool) -> bool:
    """Whether a kernel's type is that of the operand, or has its size where elements are `moved`."""
    return name == given.name or (moved and BY_NAME[name].size == given.size)


def test_every_launch_is_of_its_own_op_with_arguments_of_the_declared_types() -> None:
    for plan, problem, schedule in schedules():
        for launch in schedule.launches:
            assert plan.op in (launch.kernel.op, *launch.kernel.also)
            moved = plan is ops.UpsampleNearest2dPlan  # whatever the type, by its size
            of_statistics = launch.kernel.family == "batch_norm_statistics"  # whose types are those of statistics
            assert of_statistics or alike(launch.kernel.dtype, problem.dtype, moved)
            named = {o.name: o for o in plan.select("sim:0", problem).operands}
            for parameter, argument in zip(launch.kernel.signature.parameters, launch.arguments, strict=True):
                where = (launch.kernel.entry, parameter.name)
                if isinstance(argument, str):
                    o = named[argument]
                    assert parameter.pointer, where
                    assert alike(parameter.type.name, o.type, moved), where
                    fits = o.written or parameter.const or reads_in_eval(launch, parameter.name)
                    assert fits, where
                    assert parameter.nullable or not (o.optional and (o.needs or not o.output)), where
                elif isinstance(argument, Region):
                    assert parameter.pointer, where
                    assert parameter.type is argument.type, where
                elif isinstance(argument, np.ndarray):
                    assert parameter.pointer, where
                    assert parameter.const, where
                elif parameter.pointer:
                    assert parameter.nullable, where
                    assert argument == 0, where
                else:
                    assert isinstance(argument, int) == (parameter.type.kind == "int"), where


@each_case
def test_the_heuristics_config_is_among_the_candidates_and_hashable(case: Case) -> None:
    for variant in case.plan.variants:
        heuristic = variant.heuristic(case.problem)
        assert heuristic in variant.config_type.candidates(case.problem), variant
        hash(heuristic)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"block": 1024}, ""),
        ({"block": 1025}, "1025 threads are more than the 1024 that a block may have"),
        ({"grid": (1 << 31,)}, "grid.x"),
        ({"grid": (1, 65536)}, "grid.y"),
        ({"grid": (1, 1, 65536)}, "grid.z"),
        ({"shared_bytes": 226 << 10}, ""),
        ({"shared_bytes": (226 << 10) + 1}, "shared memory"),
        ({"shared_bytes": 219 << 10, "own_bytes": 8 << 10}, ""),
        ({"shared_bytes": (219 << 10) + 1, "own_bytes": 8 << 10}, "are more than 224256"),
        ({"arguments": ("x", "out", (1 << 32) - 1, 8, 6)}, ""),
        ({"arguments": ("x", "out", 1 << 32, 8, 6)}, "total = 4294967296 does not fit the kernel's u32"),
        ({"arguments": ("x", "out", -1, 8, 6)}, "total = -1"),
    ],
)
def test_a_launch_that_does_not_fit_says_why(sim: Device, launch: Any, words: str) -> None:
    kernel = next(spec for spec in ops.kernels() if spec.entry == "softmax2d_kernel")
    fields = {"kernel": kernel, "grid": (1,), "block": 256, "arguments": ("x", "out", 1, 8, 6), **launch}
    reason = Launch(**fields).refusal(Limits.of(sim.properties))
    assert words in str(reason) if words else reason is None


def test_a_device_may_limit_the_threads_along_an_axis(sim: Device) -> None:
    kernel = next(spec for spec in ops.kernels() if spec.entry == "softmax2d_kernel")
    limits = Limits.of(sim.properties)._replace(max_grid_threads=(1 << 32) - 1)
    for blocks, fits in (((1 << 24) - 1, True), (1 << 24, False)):
        reason = Launch(kernel, (blocks,), 256, ("x", "out", 1, 8, 6)).refusal(limits)
        assert (reason is None) == fits


@pytest.mark.parametrize(
    ("language", "arch", "fits"),
    [("ptx", "sm_75", False), ("ptx", "sm_80", True), ("ptx", "sm_120a", True), ("hip", "sm_75", True),
     ("hip", "gfx942", True)],
)  # fmt: skip
def test_an_element_type_may_need_a_newer_architecture(sim: Device, language: str, arch: str, fits: bool) -> None:
    kernel = next(spec for spec in ops.kernels() if (spec.entry, spec.language) == ("softmax2d_kernel_bf16", language))
    limits = Limits.of(replace(sim.properties, arch=arch), language)
    reason = Launch(kernel, (1,), 256, ("x", "out", 1, 8, 6)).refusal(limits)
    assert reason == (None if fits else "softmax2d_kernel_bf16 needs sm_80, and this is sm_75")


@pytest.mark.parametrize(
    ("role", "dtype", "language", "target"),
    [("any", "f32", "ptx", None), ("any", "bf16", "ptx", 80), ("new", "f32", "ptx", 90), ("new", "bf16", "ptx", 90),
     ("new", "bf16", "hip", None)],
)  # fmt: skip
def test_a_role_may_need_a_newer_architecture_than_its_type(role: str, dtype: str, language: str, target: Any) -> None:
    roles = {"any": Role("const T* x"), "new": Role("const T* x", hip=True, target=90)}
    family = KernelFamily("made_up", ("f32", "bf16"), roles, targets=ROUNDING_TARGETS)
    assert family.kernel(role, BY_NAME[dtype], language).target == target


# Descriptors ----------------------------------------------------------------------------------------------------------


@each_op
@pytest.mark.parametrize("shape", [None, "ab", (2, -8, 3), (2, 8.0), (2, True), 5.5])
def test_a_descriptor_wants_a_shape(case: Case, shape: Shape) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        replace(case.problem, shape=shape)
    assert (caught.value.op, caught.value.argument) == (case.plan.op, "shape")


@each_op
def test_a_descriptor_is_hashable_data_whose_shape_may_be_a_list(case: Case) -> None:
    same = replace(case.problem, shape=list(case.problem.shape))
    assert same == case.problem
    assert hash(same) == hash(case.problem)


@each_op
def test_the_function_refuses_the_element_types_that_its_op_does_not_have(
    device: Device, case: Case, good: Given
) -> None:
    dtypes = {other.dtype for other in CASES if other.plan is case.plan}
    first = getattr(case.problem, "first", "x")
    for name in BY_NAME.keys() - dtypes:
        with refused(ptxrt.DTypeMismatch, case.plan.op, first, *dtypes):
            replace(case.problem, dtype=BY_NAME[name])
        with refused(ptxrt.DTypeMismatch, case.plan.op, first, *dtypes):
            case.call({**good, first: ptxrt.zeros(good[first].shape, BY_NAME[name].numpy, device)}, None, None)


@each_op
def test_a_descriptor_refuses_a_struct_that_has_the_name_of_its_element_type(case: Case) -> None:
    with refused(ptxrt.DTypeMismatch, case.plan.op, getattr(case.problem, "first", "x")):
        replace(case.problem, dtype=struct_type(case.dtype, [("a", np.float32)]))


@each_op
def test_the_function_refuses_too_few_axes(device: Device, case: Case, good: Given) -> None:
    if case.plan.op in NORMS_OF_ROWS:  # which take any that end in a row
        return
    first, axes = getattr(case.problem, "first", "x"), len(case.problem.shape)
    for shape in ((8,), (), *(((2, 3, 4), (1, 2, 3, 4, 5, 6)) if axes == 4 else ())):
        with refused(ptxrt.ShapeMismatch, case.plan.op, first, f"{'four' if axes == 4 else 'two'} axes, [N, C, "):
            case.call({**good, first: ptxrt.zeros(shape, good[first].dtype, device)}, None, None)


@each_op
@pytest.mark.parametrize("shape", [(2, 1, 1 << 32), (2, (1 << 32) + 1, 1), (1 << 32, 1, 1)], ids=str)
def test_counts_that_do_not_fit_their_parameter_are_refused(device: Device, case: Case, shape: Shape) -> None:
    if len(case.problem.shape) == 3:
        keys: list[Any] = variants(case.plan, device) if "tiled" in variants(case.plan) else [None]
        problem = replace(case.problem, shape=shape, **({"groups": 1} if hasattr(case.problem, "groups") else {}))
        for key in keys:
            if key not in ("tiled", "hip/tiled", "hip/baseline") or shape[0] == 2:  # whose batch may be of any size
                with pytest.raises(ptxrt.Unsupported, match=r"not fit|more than|less than|side by side"):
                    case.plan.select(device, problem, wish(key))


MANY = (1 << 17, 1 << 17, 1 << 10)
MANY_IMAGES = (1 << 17, 1 << 17, 30, 30)
IN_HIP: list[tuple[Any, Any]] = [
    (ops.GroupNormPlan, ops.GroupNormDescriptor(MANY, 1 << 17)),
    (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor(MANY, 1 << 17)),
    (ops.GroupNormPlan, ops.GroupNormDescriptor((1, 1 << 31, 9), 1 << 31)),
    (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor((1, 1 << 31, 9), 1 << 31)),
    (ops.Softmax2dPlan, ops.Softmax2dDescriptor(MANY)),
    (ops.Softmax2dBackwardPlan, ops.Softmax2dBackwardDescriptor(MANY)),
    (ops.UpsampleNearest2dPlan, ops.UpsampleNearest2dDescriptor(MANY_IMAGES, contiguous(MANY_IMAGES), 44, 44)),
    (ops.UpsampleNearest2dBackwardPlan,
     ops.UpsampleNearest2dBackwardDescriptor(MANY_IMAGES, contiguous(MANY_IMAGES), 44, 44)),
]  # fmt: skip


@pytest.mark.parametrize(("plan", "problem"), IN_HIP, ids=lambda v: getattr(v, "op", None) and v.op)
def test_in_hip_fewer_than_2_to_the_32_threads_serve_every_size(device: Device, plan: Any, problem: Any) -> None:
    for dtype in sorted({case.dtype for case in CASES if case.plan is plan}):
        chosen = plan.select(device, replace(problem, dtype=BY_NAME[dtype]), wish(language="hip"))
        for launch in chosen.schedule.launches:
            assert launch.grid[0] * launch.block < 1 << 32


@each_op
@pytest.mark.parametrize("shape", [(2**33, 0, 1), (2**33, 4, 0), (0, 2**33, 1), (0, 4, 2**33)], ids=str)
def test_an_empty_tensor_may_have_axes_of_any_length(device: Device, case: Case, shape: Shape) -> None:
    if len(case.problem.shape) == 3:
        how = {"training": False, "handed": False} if hasattr(case.problem, "handed") else {"training": False}
        problem = replace(case.problem, shape=shape, **(how if hasattr(case.problem, "training") else {}))
        for key in (None, *variants(case.plan, device)):
            assert not case.plan.select(device, problem, wish(key)).schedule.launches, key


# Arguments ------------------------------------------------------------------------------------------------------------

NO_COUNT = (0, -4, 2.0, None, "4", True, [4])
NO_NUMBER = (float("nan"), float("inf"), -float("inf"), 1e39, None, "1", [1.0], 1j, True)
MODES = {"mode": ("linear", "Bilinear", "", None, 0, b"bilinear", ["bilinear"]),
         "padding_mode": ("zero", "constant", None, 0, ["zeros"]),
         "align_corners": (0, 1, None, "False", 0.0, np.False_)}  # fmt: skip
NORMS_OF_ROWS = ("layer_norm", "layer_norm_backward", "rms_norm", "rms_norm_backward")
ARGUMENTS: list[tuple[tuple[str, ...], str, type[ptxrt.PtxrtError], Any]] = [
    (("group_norm", "group_norm_backward"), "groups", ptxrt.InvalidArgument, NO_COUNT),
    (("group_norm", "group_norm_backward"), "groups", ptxrt.ShapeMismatch, (3, 5, 16)),
    (("group_norm", "group_norm_backward", "batch_norm", "batch_norm_backward"), "eps", ptxrt.InvalidArgument,
     (*NO_NUMBER, -1e-5)),
    (NORMS_OF_ROWS, "eps", ptxrt.InvalidArgument, (*NO_NUMBER, -1e-5)),
    (NORMS_OF_ROWS, "normalized_shape", ptxrt.InvalidArgument, (20.0, None, "20", True, (20, None), [20.0])),
    (("batch_norm",), "momentum", ptxrt.InvalidArgument, (*NO_NUMBER, -0.1, 1.001)),
    (("batch_norm", "batch_norm_backward"), "training", ptxrt.InvalidArgument, (0, 1, None, "True", np.True_, [True])),
    (("local_response_norm", "local_response_norm_backward"), "size", ptxrt.InvalidArgument, NO_COUNT),
    *((("local_response_norm", "local_response_norm_backward"), name, ptxrt.InvalidArgument, (*NO_NUMBER, -1e39))
      for name in ("alpha", "beta")),
    (("local_response_norm",), "k", ptxrt.InvalidArgument, (*NO_NUMBER, -1e39)),
    *((("upsample_nearest2d",), name, ptxrt.InvalidArgument, NO_COUNT) for name in ("out_h", "out_w")),
    *((("upsample_nearest2d_backward",), name, ptxrt.InvalidArgument, NO_COUNT) for name in ("in_h", "in_w")),
    *((("grid_sample", "grid_sample_backward"), name, ptxrt.InvalidArgument, MODES[name]) for name in MODES),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "argument", "kind", "value"),
    [
        (case, argument, kind, value)
        for ops_of, argument, kind, values in ARGUMENTS
        for case in ONE_EACH
        for value in values
        if case.plan.op in ops_of
    ],
    ids=str,
)
def test_an_argument_of_the_function_is_checked(
    device: Device, case: Case, good: Given, argument: str, kind: Any, value: Any
) -> None:
    with Patch.context() as patch:
        launches_by(patch, device, lambda *_: pytest.fail("launch"))
        for call in ("fill", "allocate", "compile"):
            patch.setattr(device.backend, call, lambda *_, call=call, **__: pytest.fail(call))
        with refused(kind, case.plan.op, argument, "8 channels" if kind is ptxrt.ShapeMismatch else ""):
            case.call(good, outputs_of(case, device, good), None, **{argument: value})
