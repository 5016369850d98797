"""What every op is made of: its kernels and their schedules as data, its variants, and the plan that runs them."""

from __future__ import annotations

from ptxrt.ops.framework.descriptors import Descriptor, F64Sums, ImageDescriptor, checked_type, number, whole_number
from ptxrt.ops.framework.kernels import KernelFamily, KernelSpec, Role, parameter_type
from ptxrt.ops.framework.operands import Operand
from ptxrt.ops.framework.plan import Plan, forget_plans, plan_cache
from ptxrt.ops.framework.schedule import (
    Argument,
    Config,
    Launch,
    Limits,
    PrecisionGuarantee,
    Refusal,
    Region,
    Schedule,
    Workspace,
    Zero,
    blocks_in_hip,
    ceil_div,
    in_slices,
    reciprocal,
    refusal_of_threads,
    refusal_of_warps,
)
from ptxrt.ops.framework.texts import ROUNDING_TARGETS, read_kernel
from ptxrt.ops.framework.tickets import Tickets
from ptxrt.ops.framework.variant import PlanKey, PlanPreference, Variant

__all__ = [
    "ROUNDING_TARGETS",
    "Argument",
    "Config",
    "Descriptor",
    "F64Sums",
    "ImageDescriptor",
    "KernelFamily",
    "KernelSpec",
    "Launch",
    "Limits",
    "Operand",
    "Plan",
    "PlanKey",
    "PlanPreference",
    "PrecisionGuarantee",
    "Refusal",
    "Region",
    "Role",
    "Schedule",
    "Tickets",
    "Variant",
    "Workspace",
    "Zero",
    "blocks_in_hip",
    "ceil_div",
    "checked_type",
    "forget_plans",
    "in_slices",
    "number",
    "parameter_type",
    "plan_cache",
    "read_kernel",
    "reciprocal",
    "refusal_of_threads",
    "refusal_of_warps",
    "whole_number",
]
