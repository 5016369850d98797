"""A PTX machine in NumPy: runs PTX text with no GPU, every memory access checked.

``parse`` checks and decodes a text, ``load`` gives its variables a place in a `GlobalMemory`, ``launch`` runs a grid.
What PTX leaves undefined under divergence stays undefined: a shuffle from a lane that takes no part answers the
reader's own value. ``.approx`` is computed in float64 and rounded once, so it is at least as good as any GPU's. Blocks
run in chunks, one chunk after the other in the order of the grid: a block that waits for a later one waits for ever
(Deadlock).
"""

from __future__ import annotations

from ptxrt.sim.launch import LaunchReport, Loaded, launch, load, parse, unload
from ptxrt.sim.memory import GlobalMemory
from ptxrt.sim.parser import MAX_PTX_VERSION
from ptxrt.sim.profile import LineCounts, Profile
from ptxrt.sim.program import Entry, Param, Program

__all__ = [
    "MAX_PTX_VERSION",
    "Entry",
    "GlobalMemory",
    "LaunchReport",
    "LineCounts",
    "Loaded",
    "Param",
    "Profile",
    "Program",
    "launch",
    "load",
    "parse",
    "unload",
]
