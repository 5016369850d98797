"""Instructions of PTX that the machine knows of and does not run."""

from __future__ import annotations

__all__ = ["UNSUPPORTED"]

# fmt: off
UNSUPPORTED = frozenset((
    "wgmma", "mbarrier", "tcgen05", "tensormap", "multimem",
    "clusterlaunchcontrol", "setmaxnreg", "istypep", "alloca", "stacksave", "stackrestore",
    "vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset", "vadd2", "vsub2",
    "vavrg2", "vabsdiff2", "vmin2", "vmax2", "vset2", "vadd4", "vsub4", "vavrg4", "vabsdiff4", "vmin4", "vmax4",
    "vset4", "brkpt", "fns",
))
# fmt: on
"""By name without modifiers. They raise Unsupported where an unknown name is a CompileError."""
