"""Instructions of PTX that the machine knows of and does not run."""

from __future__ import annotations

__all__ = ["UNSUPPORTED"]

# fmt: off
UNSUPPORTED = frozenset((
    "wgmma", "mbarrier", "tcgen05", "tensormap", "multimem",
    "clusterlaunchcontrol", "setmaxnreg", "istypep", "alloca", "stacksave", "stackrestore",
))
# fmt: on
"""By name without modifiers. They raise Unsupported where an unknown name is a CompileError."""
