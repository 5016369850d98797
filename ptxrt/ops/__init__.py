"""The ops: each a typed function over a plan. Adding one is a file here, its kernels, its tests and a line below."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

from ptxrt.ops.group_norm import GroupNormArgs, GroupNormDescriptor, GroupNormPlan, group_norm
from ptxrt.plan import KernelSpec

__all__ = ["GroupNormArgs", "GroupNormDescriptor", "GroupNormPlan", "forget_plans", "group_norm", "kernels"]


def kernels() -> list[KernelSpec]:
    """Return every kernel that the ops use: the KERNELS of each file here."""
    return [spec for file in _files() for spec in file.KERNELS]


def forget_plans() -> None:
    """Let go of the plans that the functions here keep, so that a module cache can unload their kernels."""
    for file in _files():
        file.plan_of.cache_clear()


def _files() -> list[ModuleType]:
    names = sorted(info.name for info in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
