"""Selecting a plan: preferences, reasons, what a plan says of itself. The plan is made up, and launches nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from helpers import refused

import ptxrt
from ptxrt.dtypes import BY_NAME
from ptxrt.plan import KernelSpec, Operand, Plan, PlanPreference, PrecisionGuarantee, Variant
from ptxrt.signature import Signature

SURE = PrecisionGuarantee("f32", "f32", True, True)
LOOSE = PrecisionGuarantee("f32", "f32", False, False)
KERNEL = KernelSpec("none", "none", Signature.parse("f16* y"))


@dataclass(frozen=True)
class Problem:
    size: int


def never(problem: Problem, device: ptxrt.Device) -> str | None:
    return "never" if problem.size > 100 else None


class MadeUpPlan(Plan):
    op = "made_up"
    category = "test"
    descriptor_type = Problem
    variants = (
        Variant("atomic", KERNEL, LOOSE, never, lambda problem: 8),
        Variant("spacious", KERNEL, SURE, never, lambda problem: 64 * problem.size),
        Variant("slow", KernelSpec("none", "none", KERNEL.signature, language="hip"), SURE, never),
    )

    def _operands(self):
        return (Operand("y", (self.descriptor.size,), BY_NAME["f16"], written=True),)

    def _launch(self, kernel, pointers, args, queue):
        raise AssertionError("nothing is launched here")


def select(device, size=4, **wish):
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
    ],
)
def test_the_first_variant_that_meets_the_preference_is_taken(sim, wish, variant):
    assert select(sim, **wish).sku.variant == variant


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"variant": "atomic", "deterministic": True}, "atomic: is not deterministic"),
        ({"variant": "spacious", "workspace_limit": 1}, "spacious: needs 256 bytes of workspace, above the limit of 1"),
        ({"variant": "slow", "language": "ptx"}, "slow: is in hip, not in 'ptx'"),
        ({"variant": "other"}, "slow: not the variant asked for, 'other'"),
    ],
)
def test_where_none_meets_it_each_variant_has_its_reason(sim, wish, reason):
    with refused(ptxrt.Unsupported, "made_up", "descriptor", reason, "atomic: ", "spacious: ", "slow: "):
        select(sim, **wish)


def test_a_variant_may_refuse_the_problem(sim):
    with refused(ptxrt.Unsupported, "made_up", "descriptor", "atomic: never"):
        select(sim, size=101)


def test_a_plan_says_what_it_needs_and_is(sim):
    plan = select(sim, deterministic=True)
    assert plan.workspace_size == 256
    assert plan.precision_guarantee is SURE
    assert plan.sku == ("test", "made_up", "f16", sim.arch, "sim", "spacious")


@pytest.mark.parametrize("nbytes", [255, 256])
def test_a_workspace_must_have_the_bytes_that_the_plan_says(sim, monkeypatch, nbytes):
    plan = select(sim, deterministic=True)
    monkeypatch.setattr(plan, "_kernel", "loaded")
    monkeypatch.setattr(plan, "_launch", lambda *_: "launched")
    y, workspace = ptxrt.zeros(4, np.float16, sim), ptxrt.zeros(nbytes, np.uint8, sim)
    if nbytes == 256:
        assert plan.run((y,), workspace=workspace) == "launched"
    else:
        with refused(ptxrt.ShapeMismatch, "made_up", "workspace", "256"):
            plan.run((y,), workspace=workspace)


@pytest.mark.parametrize("args", [None, 7, (), (1, 2)])
def test_operands_that_are_no_sequence_of_the_right_length_are_refused(sim, args):
    with refused(ptxrt.InvalidArgument, "made_up", "args", "1 operands: y"):
        select(sim).can_implement(args)


def test_a_read_only_operand_that_is_written_is_refused(sim):
    host = np.zeros(4, np.float16)
    host.flags.writeable = False
    with refused(ptxrt.LayoutError, "made_up", "y", "read-only"):
        select(sim).can_implement((ptxrt.from_dlpack(host),))


@pytest.mark.parametrize(
    ("name", "value"),
    [("deterministic", "yes"), ("workspace_limit", 1.5), ("workspace_limit", "1"), ("language", 3), ("variant", 0)],
)
def test_a_preference_of_the_wrong_kind_is_refused(name, value):
    with refused(ptxrt.InvalidArgument, "PlanPreference", name):
        PlanPreference(**{name: value})
