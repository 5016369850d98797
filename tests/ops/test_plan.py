"""Plans: what select takes, what a run checks, allocates and launches. The ops here are made up."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers import Patch, refused

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops._batch_norm_cluster import ClusterConfig
from ptxrt.ops.framework import (
    Config,
    KernelSpec,
    Launch,
    Operand,
    Plan,
    PlanPreference,
    PrecisionGuarantee,
    Refusal,
    Schedule,
    Variant,
    Workspace,
    Zero,
    forget_plans,
    number,
    plan_cache,
)
from ptxrt.runtime.signature import Signature

SURE = PrecisionGuarantee("f32", "f32", True, True)
LOOSE = PrecisionGuarantee("f32", "f32", False, False)


@dataclass(frozen=True)
class Problem:
    size: int
    dtype: ElementType = BY_NAME["f16"]
    empty: bool = False


@dataclass(frozen=True)
class Knob(Config):
    turns: int

    @classmethod
    def heuristic(cls, problem: Any) -> Any:
        return cls(problem.size)


class MadeUp(Variant[Any, Any]):
    """A variant that launches nothing."""

    def __init__(
        self, name: str, guarantee: Any, workspace: int = 0, language: str = "ptx", suits: bool = True
    ) -> None:
        super().__init__(language)
        self.name = name  # type: ignore[misc]
        self.guarantee, self.workspace, self.suiting = guarantee, workspace, suits

    def suits(self, problem: Any) -> Any:
        return self.suiting or problem.size < 3

    def schedule(self, problem: Any, config: Any, limits: Any) -> Any:
        if problem.size > 100:
            return Refusal("never")
        workspace = Workspace()
        workspace.region("bytes", "u8", self.workspace * problem.size)
        return Schedule((), self.guarantee, workspace)


class Turning(MadeUp):
    config_type = Knob


class MadeUpPlan(Plan[Problem, Any, Any]):
    op = "made_up"
    category = "test"
    descriptor_type = Problem
    variants = (
        MadeUp("atomic", LOOSE, 2),
        Turning("spacious", SURE, 64),
        MadeUp("slow", SURE, language="hip"),
        MadeUp("tiny", SURE, suits=False),
    )

    def _operands(self) -> Any:
        return (Operand("y", (self.descriptor.size,), BY_NAME["f16"], written=True, output=True),)


def select(device: Device, size: int = 4, **wish: Any) -> Any:
    return MadeUpPlan.select(device, Problem(size), PlanPreference(**wish))


@pytest.mark.parametrize(
    ("wish", "variant"),
    [
        ({}, "atomic"),
        ({"deterministic": True}, "spacious"),
        ({"deterministic": True, "workspace_limit": 256}, "spacious"),
        ({"deterministic": True, "workspace_limit": 255}, "slow"),
        ({"workspace_limit": 8}, "atomic"),
        ({"workspace_limit": 7}, "slow"),
        ({"language": "hip"}, "slow"),
        ({"language": "ptx"}, "atomic"),
        ({"variant": "spacious"}, "spacious"),
        ({"variant": "tiny"}, "tiny"),
    ],
)
def test_the_first_variant_that_meets_the_preference_is_selected(sim: Device, wish: Any, variant: str) -> None:
    assert select(sim, **wish).key.variant == variant


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"variant": "atomic", "deterministic": True}, "atomic: is not deterministic"),
        ({"variant": "spacious", "workspace_limit": 1}, "spacious: needs 256 bytes of workspace, above the limit of 1"),
        ({"variant": "slow", "language": "ptx"}, "hip/slow: is in hip, not in 'ptx'"),
        ({"variant": "other"}, ": not the variant asked for, 'other'"),
    ],
)
def test_where_none_meets_it_each_variant_that_is_wanted_has_its_reason(sim: Device, wish: Any, reason: str) -> None:
    """All have, where none is wanted; those of the same reason stand together."""
    with refused(ptxrt.Unsupported, "made_up", "descriptor", reason) as caught:
        select(sim, **wish)
    listed = {name for name in ("ptx/atomic", "ptx/spacious", "hip/slow") if name in str(caught.value)}
    wanted = {f"ptx/{name}" for name in ("atomic", "spacious") if wish["variant"] == name}
    assert listed == (wanted or {"ptx/atomic", "ptx/spacious", "hip/slow"})
    assert str(caught.value).count(reason) == 1


def test_a_device_is_given_no_language_that_it_does_not_take(sim: Device, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sim.backend, "languages", ("hip",))
    assert select(sim).key.variant == "slow"
    with refused(ptxrt.Unsupported, "made_up", "descriptor", "atomic: is in ptx, which sim:0 does not take"):
        select(sim, variant="atomic")


@pytest.mark.parametrize(("language", "variant"), [("hip", "slow"), ("ptx", "atomic"), ("", "atomic")])
def test_the_environment_names_the_language_where_nothing_else_does(
    sim: Device, monkeypatch: Patch, language: str, variant: str
) -> None:
    monkeypatch.setenv("PTXRT_LANGUAGE", language)
    assert MadeUpPlan.select(sim, Problem(4)).key.variant == variant
    assert select(sim, workspace_limit=8).key.variant == variant
    assert select(sim, language="ptx").key.variant == "atomic"


def test_a_language_of_the_environment_that_is_none_is_refused(sim: Device, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_LANGUAGE", "HIP")
    with refused(ptxrt.InvalidArgument, "PTXRT_LANGUAGE", "environment", "ptx or hip", "'HIP'"):
        MadeUpPlan.select(sim, Problem(4))


def test_a_variant_may_refuse_the_problem(sim: Device) -> None:
    with refused(ptxrt.Unsupported, "made_up", "descriptor", "atomic: never"):
        select(sim, size=101)


def test_a_plan_says_what_it_needs_and_is(sim: Device) -> None:
    plan = select(sim, deterministic=True)
    assert plan.workspace_size == 256
    assert plan.precision_guarantee is SURE
    assert plan.key == plan.sku == ("test", "made_up", "f16", sim.arch, "sim", "spacious", "ptx")


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_a_plan_is_neither_copied_nor_pickled(sim: Device, again: Any) -> None:
    with refused(ptxrt.InvalidArgument, "copy", "plan", "the object itself", "MadeUpPlan", "Select it again"):
        again(select(sim))


@pytest.mark.parametrize("nbytes", [255, 256])
def test_a_workspace_must_have_the_bytes_that_the_plan_says(sim: Device, nbytes: int) -> None:
    plan = select(sim, deterministic=True)
    y, workspace = ptxrt.zeros(4, np.float16, sim), ptxrt.zeros(nbytes, np.uint8, sim)
    if nbytes == 256:
        assert plan.run((y,), workspace=workspace) is y
    else:
        with refused(ptxrt.ShapeMismatch, "made_up", "workspace", "256"):
            plan.run((y,), workspace=workspace)


def test_a_workspace_with_strides_is_told_so(sim: Device) -> None:
    y, wide = ptxrt.zeros(4, np.float16, sim), ptxrt.zeros(512, np.uint8, sim)
    with refused(ptxrt.ShapeMismatch, "made_up", "workspace", "256 contiguous bytes", "given 256 with strides (2,)"):
        select(sim, deterministic=True).run((y,), workspace=wide[::2])


@pytest.mark.parametrize("start", [0, 128])
def test_a_workspace_must_not_overlap_the_operands(sim: Device, start: int) -> None:
    whole = ptxrt.zeros(512, np.uint8, sim)
    y = ptxrt.DeviceArray.from_pointer(whole.ptr + start, 4, np.float16, sim, owner=whole)
    with refused(ptxrt.LayoutError, "made_up", "workspace", "not shared with the operands"):
        select(sim, deterministic=True).run((y,), workspace=whole[:256])
    select(sim, deterministic=True).run((y,), workspace=whole[256:])


def test_a_workspace_may_end_where_an_operand_begins(sim: Device) -> None:
    whole = ptxrt.zeros(512, np.uint8, sim)
    y = ptxrt.DeviceArray.from_pointer(whole.ptr + 256, 4, np.float16, sim, owner=whole)
    select(sim, deterministic=True).run((y,), workspace=whole[:256])


def test_the_stream_of_a_run_waits_for_the_producer_of_its_workspace(sim: Device, monkeypatch: Patch) -> None:
    plan, workspace = select(sim, deterministic=True), ptxrt.zeros(256, np.uint8, sim)
    seen: Any = []
    monkeypatch.setattr("ptxrt.ops.framework.plan.as_array", lambda array, *_: seen.append(_) or array)
    stream = sim.create_stream()
    plan.run((None,), stream, workspace)
    assert set(seen) == {(sim, "made_up", "workspace", stream)}  # a first run checks before it loads, and once more


def test_a_remedy_is_said_where_it_is_one(sim: Device) -> None:
    plan = select(sim)
    with refused(ptxrt.ShapeMismatch, "made_up", "y", "view()"):
        plan.can_implement((ptxrt.zeros((2, 2), np.float16, sim),))
    with refused(ptxrt.ShapeMismatch, "made_up", "y") as caught:
        plan.can_implement((ptxrt.zeros(5, np.float16, sim),))
    assert "view()" not in str(caught.value)


def test_a_read_only_operand_that_is_written_is_refused(sim: Device) -> None:
    host = np.zeros(4, np.float16)
    host.flags.writeable = False
    with refused(ptxrt.LayoutError, "made_up", "y", "read-only"):
        select(sim).can_implement((ptxrt.from_dlpack(host),))


@pytest.mark.parametrize(
    ("name", "value"),
    [("deterministic", "yes"), ("workspace_limit", 1.5), ("workspace_limit", "1"), ("language", 3), ("variant", 0)],
)
def test_a_preference_of_the_wrong_kind_is_refused(name: str, value: Any) -> None:
    with refused(ptxrt.InvalidArgument, "PlanPreference", name):
        PlanPreference(**{name: value})


@pytest.mark.parametrize("descriptor", [None, 4, Problem, type("Like", (Problem,), {})(4)], ids=repr)
def test_a_plan_takes_descriptors_of_its_own_op_alone(sim: Device, descriptor: Any) -> None:
    with refused(ptxrt.InvalidArgument, "MadeUpPlan.select", "descriptor", "a Problem"):
        MadeUpPlan.select(sim, descriptor)


def test_a_variant_that_suits_comes_before_one_in_front_that_does_not(sim: Device) -> None:
    class Reversed(MadeUpPlan):
        variants = MadeUpPlan.variants[::-1]  # type: ignore[assignment]

    assert Reversed.select(sim, Problem(4)).variant.name == "slow"
    assert Reversed.select(sim, Problem(2)).variant.name == "tiny"


# What a run launches -------------------------------------------------------------------------------------------------

SHIFT = """
// y[i] = table[i] + x[i] + by, and work[i] = x[i]; one block of n threads.
.version 7.0
.target sm_70
.address_size 64

.visible .entry shift(.param .u64 table, .param .u64 x, .param .u64 y, .param .u64 work, .param .f32 by)
{
    .reg .b32 %i;
    .reg .b64 %p, %offset;
    .reg .f32 %sum, %term;
    mov.u32 %i, %tid.x;
    mul.wide.u32 %offset, %i, 4;
    ld.param.f32 %sum, [by];
    ld.param.u64 %p, [table];
    add.u64 %p, %p, %offset;
    ld.global.f32 %term, [%p];
    add.rn.f32 %sum, %sum, %term;
    ld.param.u64 %p, [x];
    add.u64 %p, %p, %offset;
    ld.global.f32 %term, [%p];
    add.rn.f32 %sum, %sum, %term;
    ld.param.u64 %p, [work];
    add.u64 %p, %p, %offset;
    st.global.f32 [%p], %term;
    ld.param.u64 %p, [y];
    add.u64 %p, %p, %offset;
    st.global.f32 [%p], %sum;
}
"""


class ShiftSpec(KernelSpec):
    @property
    def source(self) -> Any:
        return ptxrt.KernelSource.ptx(SHIFT, name="shift")


SHIFT_SPEC = ShiftSpec(
    "none", "shift", Signature.parse("const f32* table, const f32* x, f32* y, f32* work, f32 by"), "none"
)


class Shifts(Variant[Any, Any]):
    """Two launches; each has a table, a scalar and a region of the workspace of its own. A third region is zeros."""

    name = "only"

    def schedule(self, problem: Any, config: Any, limits: Any) -> Any:
        table = np.arange(problem.size, dtype=np.float32)
        workspace = Workspace()
        first, second, third = (workspace.region(name, "f32", problem.size) for name in ("first", "second", "third"))
        steps = (
            Zero("counts"),
            Zero(third),
            Launch(SHIFT_SPEC, (1,), problem.size, (table, "x", "y", second, 0.5)),
            Launch(SHIFT_SPEC, (1,), problem.size, (-table, second, "y", first, 2.0)),
        )
        return Schedule(steps, SURE, workspace)


class ShiftResult(NamedTuple):
    y: ptxrt.DeviceArray
    counts: ptxrt.DeviceArray | None
    extra: None


class ShiftPlan(Plan[Problem, Any, Any]):
    op = "shift"
    category = "test"
    descriptor_type = Problem
    result_type = ShiftResult
    variants = (Shifts(),)

    def _operands(self) -> Any:
        n, f32 = self.descriptor.size, BY_NAME["f32"]
        return (
            Operand("x", (n,), f32),
            Operand("bias", (n,), f32, optional=True),
            Operand("y", (n,), f32, output=True, in_place=("x",)),
            Operand("counts", (n,), f32, output=True, needs="bias"),
            Operand("extra", (n,), f32, output=True, absent="this op has none"),
        )


@pytest.fixture
def shift(device: Device) -> Any:
    x = np.array([1, 10, 100, 1000], np.float32)
    return ShiftPlan.select(device, Problem(4)), ptxrt.to_device(x, device), x + 2 - np.arange(4, dtype=np.float32)


@pytest.mark.ptx
def test_a_run_allocates_outputs_and_workspace_and_takes_each_step_in_order(device: Device, shift: Any) -> None:
    plan, x, want = shift
    for stream in (None, device.create_stream(), None):
        y, counts, extra = plan.run((x, x, None, None, None), stream)
        np.testing.assert_array_equal(y.to_host(stream), want)
        np.testing.assert_array_equal(counts.to_host(stream), np.zeros(4))
        assert extra is None


@pytest.mark.ptx
def test_what_a_run_on_another_stream_used_is_not_given_back_before_it_is_done(
    device: Device, shift: Any, monkeypatch: Patch
) -> None:
    plan, x, _ = shift
    waits: Any = []
    synchronize = device.backend.synchronize
    monkeypatch.setattr(device.backend, "synchronize", lambda *of: waits.append(of) or synchronize(*of))
    workspace, stream = ptxrt.empty(plan.workspace_size, np.uint8, device), device.create_stream()
    plan.run((x, None, None, None, None), stream, workspace)
    assert waits == [(device.ordinal, device.default_stream.handle)]  # the tables are there before the first launch
    for array in (x, workspace, *plan._tables):
        assert stream.handle in array.memory.users
    plan.run((x, None, None, None, None), stream, workspace)
    assert len(waits) == 1


@pytest.mark.ptx
def test_a_run_takes_the_callers_outputs_and_workspace(device: Device, shift: Any) -> None:
    plan, x, want = shift
    y, counts = (ptxrt.to_device(np.full(4, np.nan, np.float32), device) for _ in range(2))
    workspace = ptxrt.to_device(np.full(plan.workspace_size, 255, np.uint8), device)
    assert plan.run((x, x, y, counts, None), workspace=workspace) == (y, counts, None)
    np.testing.assert_array_equal(y.to_host(), want)
    np.testing.assert_array_equal(counts.to_host(), np.zeros(4))
    np.testing.assert_array_equal(workspace.to_host()[256:272].view(np.float32), x.to_host())
    np.testing.assert_array_equal(workspace.to_host()[16:256], np.full(240, 255))
    np.testing.assert_array_equal(workspace.to_host()[512:], np.zeros(16))


@pytest.mark.ptx
def test_an_operand_may_have_strides_of_its_own(device: Device) -> None:
    class Strided(ShiftPlan):
        def _operands(self) -> Any:
            x, *others = super()._operands()
            return (Operand("x", (4,), x.type, strides=(2,)), *others)

    plan, wide = Strided.select(device, Problem(4)), ptxrt.zeros(8, np.float32, device)
    plan.can_implement((wide[::2], None, None, None, None))
    with refused(ptxrt.LayoutError, "shift", "x", "strides (2,)"):
        plan.can_implement((wide[:4], None, None, None, None))
    # What lies between its elements counts as its own.
    with refused(ptxrt.LayoutError, "shift", "y", "not shared with x"):
        plan.can_implement((wide[::2], None, wide[3:7], None, None))


class Recorded:
    """A plan's `select`, counted; of sizes of 7 it raises."""

    descriptor_type = Problem

    def __init__(self) -> None:
        self.selected: list[Any] = []

    def select(self, device: Device, problem: Any) -> Any:
        self.selected.append(problem.size)
        if problem.size == 7:
            raise TypeError("seven")
        return len(self.selected)


def test_a_plan_is_selected_once_until_it_is_forgotten(sim: Device) -> None:
    plan = Recorded()
    find: Any = plan_cache(plan)  # type: ignore[arg-type]
    assert [find(sim, 4), find(sim, 4), find(sim, 4.0)] == [1, 1, 2]
    forget_plans()
    assert [find(sim, 4), find(sim, 4)] == [3, 3]


def test_what_is_not_hashable_goes_on_to_the_descriptor(sim: Device) -> None:
    plan = Recorded()
    assert plan_cache(plan)(sim, [4]) == 1  # type: ignore[arg-type]
    assert plan.selected == [[4]]


def test_a_type_error_of_select_itself_is_raised_at_once(sim: Device) -> None:
    plan = Recorded()
    with pytest.raises(TypeError, match="seven"):
        plan_cache(plan)(sim, 7)  # type: ignore[arg-type]
    assert plan.selected == [7]


@pytest.mark.parametrize("out", [7, (1, 2), [1, 2, 3, 4]])
def test_an_out_for_several_is_a_tuple_of_as_many(out: Any) -> None:
    assert ShiftPlan.unpacked(None) == (None, None, None)
    three: Any = (1, 2, 3)
    assert ShiftPlan.unpacked(three) == three
    with refused(ptxrt.InvalidArgument, "shift", "out", "y, counts, extra"):
        ShiftPlan.unpacked(out)


def test_a_preference_names_the_config_and_with_it_the_variants_that_have_such_knobs(sim: Device) -> None:
    assert select(sim, variant="spacious").config == Knob(4)
    assert select(sim, variant="spacious", config=Knob(9)).config == Knob(9)
    assert select(sim, config=Knob(9)).key.variant == "spacious"
    with refused(ptxrt.Unsupported, "made_up", "descriptor", "ptx/atomic: takes a Config, not a Knob"):
        select(sim, variant="atomic", config=Knob(9))


def test_regions_begin_at_multiples_of_256_and_a_part_lies_within() -> None:
    workspace = Workspace()
    assert (workspace.size, workspace.regions) == (0, [])
    first, second = workspace.region("first", "f64", 3), workspace.region("second", "u8", 1)
    assert [(r.offset, r.nbytes) for r in (first, second)] == [(0, 24), (256, 1)]
    assert workspace.size == 257
    part = first.part("middle", "f32", 8, 2)
    assert (part.offset, part.nbytes, part.type) == (8, 8, BY_NAME["f32"])


@pytest.mark.parametrize(
    "value", [3, 0.25, -0.0, np.uint8(3), np.float16(0.25), np.float32(3.4e38), np.longdouble(0.25)]
)
def test_any_kind_of_number_is_a_number(value: Any) -> None:
    found = number(value, "op", "eps", BY_NAME["f32"])
    assert (type(found), found) == (float, float(value))


@pytest.mark.parametrize(
    "value",
    [-1, 10**400, 1e39, np.nan, np.inf, True, None, "1", 1j, np.array(1.0), np.float64(1e39), np.longdouble("1e400")]
    + [kind(value) for kind in (np.float16, np.float32) for value in ("nan", "inf", "-1")],
    ids=repr,
)
def test_what_is_no_number_of_the_type_is_refused(value: Any) -> None:
    with refused(ptxrt.InvalidArgument, "op", "eps", "3.40282e+38"):
        number(value, "op", "eps", BY_NAME["f32"])


@pytest.mark.parametrize(
    ("argument", "make"),
    [
        ("groups", lambda huge: ops.GroupNormDescriptor((1, 2, 3), huge)),
        ("eps", lambda huge: ops.GroupNormDescriptor((1, 2, 3), 2, eps=huge)),
        ("size", lambda huge: ops.LocalResponseNormDescriptor((1, 2, 3), huge)),
        ("out_w", lambda huge: ops.UpsampleNearest2dDescriptor((1, 1, 3, 3), (9, 9, 3, 1), 3, huge)),
        (
            "descriptor",
            lambda huge: ops.UpsampleNearest2dPlan.select(
                "sim", ops.UpsampleNearest2dDescriptor((1, 2, 3, 3), (9, huge, 3, 1), 3, 3)
            ),
        ),
        ("shape", lambda huge: ops.Softmax2dDescriptor((huge, 2))),
    ],
)
def test_numbers_that_python_does_not_print_are_refused(argument: str, make: Any) -> None:
    with pytest.raises(ptxrt.PtxrtError) as caught:
        make(10**5000)
    assert caught.value.argument == argument


@pytest.mark.parametrize("value", [-1, 2.0, True, "8", None])
def test_a_knob_of_a_config_is_a_whole_number(value: Any) -> None:
    with refused(ptxrt.InvalidArgument, "ClusterConfig", "turns", "an int, 0 or more", repr(value)):
        ClusterConfig(8, value)


def test_a_knob_of_0_is_refused_in_words(sim: Device) -> None:
    problem = ops.BatchNormDescriptor((4, 16, 40), True, running=False)
    with refused(ptxrt.Unsupported, "batch_norm", "descriptor", "of which a number is 0"):
        ops.BatchNormPlan.select(sim, problem, PlanPreference(variant="cluster", config=ClusterConfig(8, 0)))


def test_sim_launches_no_more_threads_than_the_kernel_takes_for_a_plan_either(sim: Device) -> None:
    """A kernel that is called by itself looks at its limits before; a plan's schedule says what they are."""
    plan = ops.Softmax2dPlan.select(
        sim, ops.Softmax2dDescriptor((1, 5, 8), BY_NAME["f64"]), PlanPreference(variant="baseline", language="ptx")
    )
    (launch,) = plan.schedule.launches
    assert launch.kernel.load(sim).resources.max_threads == 512
    plan.schedule = replace(plan.schedule, steps=(replace(launch, block=513),))
    said = "at most 512 threads", "(513, 1, 1)", "Launch smaller blocks, or raise the kernel's .maxntid"
    with refused(ptxrt.LaunchError, launch.kernel.entry, "block", *said):
        plan.run(ops.Softmax2dArgs(ptxrt.zeros((1, 5, 8), np.float64, sim)))
