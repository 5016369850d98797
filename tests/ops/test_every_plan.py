"""What holds of every plan: the checks of each operand, workspaces, preferences, schedules, remembered plans."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
from helpers import Patch, Shape
from op_testing import Guarded, check_error, key_of, on_device, variants, wish
from problems import Case, cases, operands

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME
from ptxrt.ops.framework import Launch, Limits, Operand, Region, Schedule

Given: TypeAlias = dict[str, Any]
CASES = cases()
ONE_EACH = list({case.plan.op: case for case in CASES if case.dtype == "f32"}.values())
each_case = pytest.mark.parametrize("case", CASES, ids=str)
each_op = pytest.mark.parametrize("case", ONE_EACH, ids=str)
OPERANDS = [(case, o) for case in CASES for o in case.plan.select("sim:0", case.problem).operands]


def each_operand(choose: Any = lambda o: True) -> pytest.MarkDecorator:
    """Parametrize over the operands of all cases that are given."""
    nothing = {case: {name for name, a in case.inputs(np.random.default_rng()).items() if a is None} for case in CASES}
    chosen = [(case, o.name) for case, o in OPERANDS if not o.absent and o.name not in nothing[case] and choose(o)]
    return pytest.mark.parametrize(("case", "name"), chosen, ids=str)


@pytest.fixture
def good(device: Device, case: Case) -> Given:
    """Operands that pass; each test spoils one."""
    return operands(case, device)


def plan_of(case: Case, device: Device, key: str | None = None) -> Any:
    return case.plan.select(device, case.problem, wish(key))


def operand(case: Case, name: str) -> Operand:
    return next(o for c, o in OPERANDS if c is case and o.name == name)


def refused(kind: type[ptxrt.PtxrtError], case: Case, device: Device, given: Given, *names: str) -> str:
    """Assert that a run is refused for one of `names`, and that nothing was launched, filled, allocated or compiled."""
    plan = plan_of(case, device)
    with Patch.context() as patch:
        for call in ("launch", "fill", "allocate", "compile"):
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
        refused(ptxrt.ShapeMismatch, case, device, good, name)


@each_operand()
def test_the_dtype_of_each_operand_is_checked(device: Device, case: Case, name: str, good: Given) -> None:
    kind = next(kind for kind in BY_NAME.values() if kind.numpy != good[name].dtype and kind.kind == "float")
    good[name] = ptxrt.zeros(good[name].shape, kind.numpy, device)
    refused(ptxrt.DTypeMismatch, case, device, good, name)


@each_operand()
def test_the_ordinal_of_each_operand_is_checked(
    device: Device, other_device: Device, case: Case, name: str, good: Given
) -> None:
    good[name] = ptxrt.zeros(good[name].shape, good[name].dtype, other_device)
    refused(ptxrt.DeviceMismatch, case, device, good, name)


@each_operand()
def test_the_strides_of_each_operand_are_checked(device: Device, case: Case, name: str, good: Given) -> None:
    array = good[name]
    wide = ptxrt.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype, device)
    good[name] = wide[..., ::2]
    refused(ptxrt.LayoutError, case, device, good, name)


@each_operand()
def test_each_operand_must_be_alive(device: Device, case: Case, name: str, good: Given) -> None:
    good[name].free()
    refused(ptxrt.InvalidArgument, case, device, good, name)


@each_operand()
def test_each_operand_must_be_a_device_array(device: Device, case: Case, name: str, good: Given) -> None:
    nothing = () if operand(case, name).optional else (None,)
    for wrong in (*nothing, 3, [1.0, 2.0], good[name].to_host()):
        good[name] = wrong
        refused(ptxrt.InvalidArgument, case, device, good, name)


@each_operand(lambda o: o.absent is None and o.written)
def test_what_is_written_is_no_broadcast_view(device: Device, case: Case, name: str, good: Given) -> None:
    array = good[name]
    good[name] = ptxrt.zeros((1,) * array.ndim, array.dtype, device).broadcast_to(array.shape)
    refused(ptxrt.LayoutError, case, device, good, name)


@each_operand(lambda o: o.written)
def test_what_is_written_must_overlap_no_other_operand(device: Device, case: Case, name: str, good: Given) -> None:
    ours, array = operand(case, name), good[name]
    for second, other in list(good.items()):
        if second == name or other is None:
            continue
        size = BY_NAME["f64"].size
        whole = ptxrt.empty(array.nbytes + other.nbytes + size, np.uint8, device)

        def placed(at: int, like: Any, whole: Any = whole) -> Any:
            return ptxrt.DeviceArray.from_pointer(whole.ptr + at, like.shape, like.dtype, device, owner=whole)

        across = {**good, name: placed(0, array), second: placed(array.nbytes - size, other)}
        refused(ptxrt.LayoutError, case, device, across, name, second)
        across = {**good, name: placed(other.nbytes - size, array), second: placed(0, other)}
        refused(ptxrt.LayoutError, case, device, across, name, second)
        same = {**good, name: placed(0, array), second: placed(0, other)}
        if second in ours.in_place or name in operand(case, second).in_place:
            plan_of(case, device).can_implement(tuple(same.values()))
        else:
            refused(ptxrt.LayoutError, case, device, same, name, second)
        beside = {**good, name: placed(0, array), second: placed(-(-array.nbytes // size) * size, other)}
        if array.nbytes % size == 0:
            plan_of(case, device).can_implement(tuple(beside.values()))


@pytest.mark.sanitize
@each_operand(lambda o: o.in_place)
def test_in_place_gives_the_same_bits(device: Device, case: Case, name: str) -> None:
    for key in variants(case.plan, device):
        try:
            plan = plan_of(case, device, key)
        except ptxrt.Unsupported:
            continue
        want = operands(case, device)
        plan.run(tuple(want.values()))
        for other in operand(case, name).in_place:
            given = operands(case, device)
            given[name] = given[other]
            plan.run(tuple(given.values()))
            for o in plan.operands:
                if o.output and not o.absent:
                    assert given[o.name].to_host().tobytes() == want[o.name].to_host().tobytes(), (key, o.name, other)


@pytest.mark.parametrize(("case", "name"), [(case, o.name) for case, o in OPERANDS if o.absent], ids=str)
def test_what_the_problem_has_none_of_must_be_none(device: Device, case: Case, name: str, good: Given) -> None:
    good[name] = ptxrt.zeros(operand(case, name).shape, operand(case, name).type.numpy, device)
    assert "None, since" in refused(ptxrt.InvalidArgument, case, device, good, name)


@each_operand(lambda o: o.needs)
def test_an_output_is_none_where_what_it_needs_is(device: Device, case: Case, name: str, good: Given) -> None:
    good[str(operand(case, name).needs)] = None
    assert "is None" in refused(ptxrt.InvalidArgument, case, device, good, name)
    good[name] = None
    assert getattr(plan_of(case, device).run(tuple(good.values())), name) is None


@each_op
@pytest.mark.parametrize("args", [None, 7, (), (1,) * 20])
def test_operands_that_are_no_sequence_of_the_right_length_are_refused(device: Device, case: Case, args: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument, match="args: expected"):
        plan_of(case, device).run(args)


# Streams and functions ------------------------------------------------------------------------------------------------


def outputs_of(case: Case, good: Given) -> Any:
    """Return `out` as the op's function takes it."""
    names = [o.name for c, o in OPERANDS if c is case and o.output]
    return good[names[0]] if len(names) == 1 else tuple(good[name] for name in names)


@each_case
def test_the_function_gives_the_plans_results_and_allocates_what_is_left_out(
    device: Device, case: Case, good: Given
) -> None:
    plan_of(case, device).run(tuple(good.values()))
    given = operands(case, device)
    assert case.call(given, outputs_of(case, given), None) is not None
    results = case.call(operands(case, device), None, device.create_stream())
    fields = results if isinstance(results, tuple) else (results,)
    names = [o.name for c, o in OPERANDS if c is case and o.output]
    device.synchronize()
    for name, result in zip(names, fields, strict=True):
        assert (result is None) == (good[name] is None)
        if result is not None and plan_of(case, device).precision_guarantee.deterministic:
            assert result.to_host().tobytes() == good[name].to_host().tobytes() == given[name].to_host().tobytes()


@each_op
def test_out_names_every_output(device: Device, case: Case, good: Given) -> None:
    names = [o.name for o in plan_of(case, device).operands if o.output]
    if len(names) == 1:
        return
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


@each_op
def test_forgotten_plans_let_the_cache_unload(
    device: Device, case: Case, good: Given, clean_modules: ptxrt.ModuleCache
) -> None:
    case.call(good, None, None)
    ops.forget_plans()
    gc.collect()
    clean_modules.clear()
    assert not clean_modules.entries()
    case.call(good, None, None)


@each_op
def test_a_plan_compiles_nothing_before_its_first_good_run(
    device: Device, case: Case, good: Given, clean_modules: ptxrt.ModuleCache
) -> None:
    ops.forget_plans()
    before = clean_modules.stats().compiles
    plan = plan_of(case, device)
    plan.can_implement(tuple(good.values()))
    assert clean_modules.stats().compiles == before
    plan.run(tuple(good.values()))
    assert clean_modules.stats().compiles > before


# Values ---------------------------------------------------------------------------------------------------------------


def ways(case: Case, device: Device) -> list[tuple[str, Any]]:
    """Return a variant's key and a config of it, for all that can run the case."""
    found = []
    for variant in case.plan.variants:
        if variant.language in device.backend.languages:
            for config in variant.config_type.candidates(case.problem):
                schedule = variant.schedule(case.problem, config, Limits.of(device.properties))
                if isinstance(schedule, Schedule) and schedule.refusal(Limits.of(device.properties)) is None:
                    found.append((key_of(variant), config))
    return found


def run_guarded(case: Case, device: Device, plan: Any, unaligned: int | None = None) -> list[Any]:
    """Run on guarded outputs and a guarded workspace; return the host results. One operand may be off by an element."""
    inputs = list(case.inputs(np.random.default_rng(7)).values())
    there = [on_device(a, device, int(i == unaligned)) for i, a in enumerate(inputs)]
    outputs = [
        None if o.absent else Guarded(o.shape, o.type.numpy, device, int(len(inputs) + i == unaligned))
        for i, o in enumerate(o for o in plan.operands if o.output)
    ]
    workspace = Guarded((plan.workspace_size,), np.uint8, device)
    plan.run((*there, *(None if out is None else out.array for out in outputs)), workspace=workspace.array)
    workspace.host()
    return [None if out is None else out.host() for out in outputs]


def check_results(case: Case, device: Device, plan: Any, results: list[Any], what: object) -> None:
    want = case.reference(**case.inputs(np.random.default_rng(7)))
    for place, (got, ref) in enumerate(zip(results, want, strict=True)):
        if got is not None and place == 0:
            check_error(case.plan.op, device, got, ref, case.bar(ref), (case.name, key_of(plan.variant), what))
        elif got is not None:  # statistics and their gradients may cancel, and are held to the bar by their own tests
            np.testing.assert_allclose(got.astype(np.float64), ref.astype(np.float64), rtol=1e-4, atol=1e-4)


@pytest.mark.sanitize
@each_case
def test_every_config_of_every_variant_gives_the_result_and_writes_nothing_else(device: Device, case: Case) -> None:
    assert ways(case, device)
    for key, config in ways(case, device):
        plan = case.plan.select(device, case.problem, wish(key, config=config))
        assert plan.config == config
        check_results(case, device, plan, run_guarded(case, device, plan), config)


@each_case
def test_each_operand_alone_may_be_unaligned(device: Device, case: Case) -> None:
    for key in {key for key, _ in ways(case, device)}:
        plan = plan_of(case, device, key)
        for place in range(len(plan.operands)):
            check_results(case, device, plan, run_guarded(case, device, plan, place), place)


@each_case
def test_what_is_deterministic_has_the_same_bits_on_every_run_and_device(device: Device, case: Case) -> None:
    for key in {key for key, _ in ways(case, device)}:
        plan = plan_of(case, device, key)
        if plan.precision_guarantee.deterministic:
            first, *others = (
                [None if a is None else a.tobytes() for a in run_guarded(case, where, plan_of(case, where, key))]
                for where in (device, device, Device("sim:0"))
            )
            assert all(other == first for other in others), key


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
    assert all(f"{variant}: " in str(caught.value) for variant in case.plan.variants)


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
    (ops.GroupNormPlan, ops.GroupNormDescriptor((1, 4, 1 << 18), 2)),
    (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor((1, 64, 1 << 16), 2)),
    (ops.GroupNormBackwardPlan, ops.GroupNormBackwardDescriptor((300, 64, 7), 2)),
    *((ops.LocalResponseNormPlan, ops.LocalResponseNormDescriptor((1, 4, 9), size, beta=beta))
      for size in range(1, 13) for beta in (0.75, 0.6)),
    *((ops.LocalResponseNormBackwardPlan, ops.LocalResponseNormBackwardDescriptor((1, 4, 9), size, beta=beta))
      for size in range(1, 13) for beta in (0.75, 0.6)),
]  # fmt: skip


def schedules() -> list[tuple[Any, Any, Schedule]]:
    """Return plan, problem and schedule for every case, variant and config, on no particular device."""
    limits = Limits.of(Device("sim:0").properties)
    found = []
    problems: list[tuple[Any, Any]] = [(case.plan, case.problem) for case in CASES]
    for plan, problem in LARGE:
        dtypes = {case.dtype for case in CASES if case.plan is plan}
        problems += [(plan, replace(problem, dtype=dtype)) for dtype in sorted(dtypes)]
    for plan, problem in problems:
        for variant in plan.variants:
            for config in variant.config_type.candidates(problem):
                schedule = variant.schedule(problem, config, limits)
                if isinstance(schedule, Schedule):
                    found.append((plan, problem, schedule))
    return found


def test_every_kernel_that_is_declared_is_launched() -> None:
    launched = {launch.kernel for _, _, schedule in schedules() for launch in schedule.launches}
    assert launched == set(ops.kernels())


def reads_in_eval(launch: Launch, parameter: str) -> bool:
    """Whether an entry of the baseline ABI, which writes statistics in training, is called for none."""
    names = [p.name for p in launch.kernel.signature.parameters]
    return parameter in ("mean_ptr", "var_ptr") and launch.arguments[names.index("training")] == 0


def test_every_launch_is_of_its_own_op_with_arguments_of_the_declared_types() -> None:
    for plan, problem, schedule in schedules():
        for launch in schedule.launches:
            assert launch.kernel.op == plan.op
            assert launch.kernel.dtype == problem.dtype.name
            named = {o.name: o for o in plan.select("sim:0", problem).operands}
            for parameter, argument in zip(launch.kernel.signature.parameters, launch.arguments, strict=True):
                where = (launch.kernel.entry, parameter.name)
                if isinstance(argument, str):
                    o = named[argument]
                    assert parameter.pointer, where
                    assert parameter.type is o.type, where
                    fits = o.written or parameter.const or reads_in_eval(launch, parameter.name)
                    assert fits, where
                    assert parameter.nullable or not (o.optional and (o.needs or not o.output)), where
                elif isinstance(argument, Region):
                    assert parameter.pointer, where
                    assert parameter.type is argument.type, where
                elif isinstance(argument, np.ndarray):
                    assert parameter.pointer, where
                    assert parameter.const, where
                else:
                    assert not parameter.pointer, where
                    assert isinstance(argument, int) == (parameter.type.kind == "int"), where


@each_case
def test_the_heuristics_config_is_among_the_candidates_and_hashable(case: Case) -> None:
    for variant in case.plan.variants:
        heuristic = variant.config_type.heuristic(case.problem)
        assert heuristic in variant.config_type.candidates(case.problem), variant
        hash(heuristic)


@pytest.mark.parametrize(
    ("launch", "words"),
    [
        ({"grid": (1 << 31,)}, "grid.x"),
        ({"grid": (1, 65536)}, "grid.y"),
        ({"grid": (1, 1, 65536)}, "grid.z"),
        ({"shared_bytes": 226 << 10}, ""),
        ({"shared_bytes": (226 << 10) + 1}, "shared memory"),
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
    assert reason == (None if fits else "ptx needs sm_80 for bf16, and this is sm_75")


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
def test_a_descriptor_names_the_element_type_that_its_op_does_not_have(case: Case) -> None:
    dtypes = {other.dtype for other in CASES if other.plan is case.plan}
    missing = next(name for name in ("i64", "f16") if name not in dtypes)
    with pytest.raises(ptxrt.DTypeMismatch) as caught:
        replace(case.problem, dtype=BY_NAME[missing])
    assert caught.value.op == case.plan.op
    assert all(name in str(caught.value) for name in dtypes)
