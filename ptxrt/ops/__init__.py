"""The ops: each a typed function over a plan. Adding one is a file here, its kernels, its tests and a line below."""

from __future__ import annotations

import importlib
import pkgutil

from ptxrt.ops.group_norm import GroupNormArgs, GroupNormDescriptor, GroupNormPlan, group_norm
from ptxrt.plan import forget_plans
from ptxrt.variant import KernelSpec

__all__ = ["GroupNormArgs", "GroupNormDescriptor", "GroupNormPlan", "forget_plans", "group_norm", "kernels"]


def kernels() -> list[KernelSpec]:
    """Return every kernel that the ops use: the KERNELS of each file here."""
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [spec for name in names for spec in importlib.import_module(f"{__name__}.{name}").KERNELS]
