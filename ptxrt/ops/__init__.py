"""The ops: each a typed function over a plan. Adding one is a file here, its kernels, its tests and a line below."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from ptxrt.ops._batch_norm import (
    BatchNormArgs,
    BatchNormBackwardArgs,
    BatchNormBackwardDescriptor,
    BatchNormBackwardPlan,
    BatchNormDescriptor,
    BatchNormGradients,
    BatchNormPlan,
    BatchNormResult,
    batch_norm,
    batch_norm_backward,
)
from ptxrt.ops._grid_sample import (
    GridSampleArgs,
    GridSampleBackwardArgs,
    GridSampleBackwardDescriptor,
    GridSampleBackwardPlan,
    GridSampleDescriptor,
    GridSampleGradients,
    GridSamplePlan,
    grid_sample,
    grid_sample_backward,
)
from ptxrt.ops._group_norm import (
    GroupNormArgs,
    GroupNormBackwardArgs,
    GroupNormBackwardDescriptor,
    GroupNormBackwardPlan,
    GroupNormDescriptor,
    GroupNormGradients,
    GroupNormPlan,
    group_norm,
    group_norm_backward,
)
from ptxrt.ops._local_response_norm import (
    LocalResponseNormArgs,
    LocalResponseNormBackwardArgs,
    LocalResponseNormBackwardDescriptor,
    LocalResponseNormBackwardPlan,
    LocalResponseNormDescriptor,
    LocalResponseNormPlan,
    LocalResponseNormResult,
    local_response_norm,
    local_response_norm_backward,
)
from ptxrt.ops._softmax2d import (
    Softmax2dArgs,
    Softmax2dBackwardArgs,
    Softmax2dBackwardDescriptor,
    Softmax2dBackwardPlan,
    Softmax2dDescriptor,
    Softmax2dPlan,
    softmax2d,
    softmax2d_backward,
)
from ptxrt.ops._upsample_nearest2d import (
    UpsampleNearest2dArgs,
    UpsampleNearest2dBackwardArgs,
    UpsampleNearest2dBackwardDescriptor,
    UpsampleNearest2dBackwardPlan,
    UpsampleNearest2dDescriptor,
    UpsampleNearest2dPlan,
    upsample_nearest2d,
    upsample_nearest2d_backward,
)
from ptxrt.ops.framework import KernelSpec, Plan, forget_plans, read_kernel

__all__ = [
    "BatchNormArgs",
    "BatchNormBackwardArgs",
    "BatchNormBackwardDescriptor",
    "BatchNormBackwardPlan",
    "BatchNormDescriptor",
    "BatchNormGradients",
    "BatchNormPlan",
    "BatchNormResult",
    "GridSampleArgs",
    "GridSampleBackwardArgs",
    "GridSampleBackwardDescriptor",
    "GridSampleBackwardPlan",
    "GridSampleDescriptor",
    "GridSampleGradients",
    "GridSamplePlan",
    "GroupNormArgs",
    "GroupNormBackwardArgs",
    "GroupNormBackwardDescriptor",
    "GroupNormBackwardPlan",
    "GroupNormDescriptor",
    "GroupNormGradients",
    "GroupNormPlan",
    "LocalResponseNormArgs",
    "LocalResponseNormBackwardArgs",
    "LocalResponseNormBackwardDescriptor",
    "LocalResponseNormBackwardPlan",
    "LocalResponseNormDescriptor",
    "LocalResponseNormPlan",
    "LocalResponseNormResult",
    "Softmax2dArgs",
    "Softmax2dBackwardArgs",
    "Softmax2dBackwardDescriptor",
    "Softmax2dBackwardPlan",
    "Softmax2dDescriptor",
    "Softmax2dPlan",
    "UpsampleNearest2dArgs",
    "UpsampleNearest2dBackwardArgs",
    "UpsampleNearest2dBackwardDescriptor",
    "UpsampleNearest2dBackwardPlan",
    "UpsampleNearest2dDescriptor",
    "UpsampleNearest2dPlan",
    "batch_norm",
    "batch_norm_backward",
    "forget_plans",
    "grid_sample",
    "grid_sample_backward",
    "group_norm",
    "group_norm_backward",
    "kernels",
    "local_response_norm",
    "local_response_norm_backward",
    "plans",
    "read_kernel",
    "softmax2d",
    "softmax2d_backward",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
]


def kernels() -> list[KernelSpec]:
    """Return every kernel that the ops use: those of the FAMILY of each file here."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name.startswith("_"))
    families = [importlib.import_module(f"{__name__}.{name}").FAMILY for name in names]
    return [spec for family in families for spec in family.kernels()]


def plans() -> list[type[Plan[Any, Any, Any]]]:
    """Return the plans of all ops, by the op's name."""
    found = [value for value in globals().values() if isinstance(value, type) and issubclass(value, Plan)]
    return sorted((plan for plan in found if plan is not Plan), key=lambda plan: plan.op)
