"""The ops: each a typed function over a plan. Adding one is a file here, its kernels, its tests and a line below."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ptxrt.collector import paused
from ptxrt.ops.framework import KernelSpec, Plan, forget_plans, read_kernel

if TYPE_CHECKING:
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
    from ptxrt.ops._layer_norm import (
        LayerNormArgs,
        LayerNormBackwardArgs,
        LayerNormBackwardDescriptor,
        LayerNormBackwardPlan,
        LayerNormDescriptor,
        LayerNormGradients,
        LayerNormPlan,
        layer_norm,
        layer_norm_backward,
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
    from ptxrt.ops._rms_norm import (
        RmsNormArgs,
        RmsNormBackwardArgs,
        RmsNormBackwardDescriptor,
        RmsNormBackwardPlan,
        RmsNormDescriptor,
        RmsNormGradients,
        RmsNormPlan,
        rms_norm,
        rms_norm_backward,
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
    "LayerNormArgs",
    "LayerNormBackwardArgs",
    "LayerNormBackwardDescriptor",
    "LayerNormBackwardPlan",
    "LayerNormDescriptor",
    "LayerNormGradients",
    "LayerNormPlan",
    "LocalResponseNormArgs",
    "LocalResponseNormBackwardArgs",
    "LocalResponseNormBackwardDescriptor",
    "LocalResponseNormBackwardPlan",
    "LocalResponseNormDescriptor",
    "LocalResponseNormPlan",
    "LocalResponseNormResult",
    "RmsNormArgs",
    "RmsNormBackwardArgs",
    "RmsNormBackwardDescriptor",
    "RmsNormBackwardPlan",
    "RmsNormDescriptor",
    "RmsNormGradients",
    "RmsNormPlan",
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
    "layer_norm",
    "layer_norm_backward",
    "local_response_norm",
    "local_response_norm_backward",
    "plans",
    "read_kernel",
    "rms_norm",
    "rms_norm_backward",
    "softmax2d",
    "softmax2d_backward",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
]


# A program that calls one op needs its file alone: each is imported at the first use of one of its names, which all
# begin with the op's: group_norm_backward, GroupNormPlan.
_OPS = (
    "batch_norm",
    "grid_sample",
    "group_norm",
    "layer_norm",
    "local_response_norm",
    "rms_norm",
    "softmax2d",
    "upsample_nearest2d",
)


def __getattr__(name: str) -> Any:
    op = next((op for op in _OPS if name.lower().replace("_", "").startswith(op.replace("_", ""))), None)
    if op is None or name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with paused():
        found = globals()[name] = getattr(importlib.import_module(f"{__name__}._{op}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def kernels() -> list[KernelSpec]:
    """Return every kernel that the ops use: those of the FAMILY of each file here that has one."""
    import pkgutil  # noqa: PLC0415 (for tools and tests alone)

    names = sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name.startswith("_"))
    names.append("framework.zeros")  # which plans launch, not their schedules
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return [spec for module in modules if hasattr(module, "FAMILY") for spec in module.FAMILY.kernels()]


def plans() -> list[type[Plan[Any, Any, Any]]]:
    """Return the plans of all ops, by the op's name."""
    found = [getattr(sys.modules[__name__], name) for name in __all__ if name.endswith("Plan")]
    return sorted(found, key=lambda plan: str(plan.op))
