"""A PTX machine in NumPy: runs PTX text with no GPU, every memory access checked.

``parse`` reads a text, whose entries are checked and decoded when they are asked for, ``load`` gives its variables a
place in a `GlobalMemory`, ``launch`` runs a grid. What PTX leaves undefined under divergence stays undefined: a shuffle
from a lane that takes no part answers the reader's own value. ``.approx`` is computed in float64 and rounded once, so
it is at least as good as any GPU's. Blocks run in chunks, one chunk after the other in the order of the grid: a block
that waits for a later one waits for ever (Deadlock).
"""

from __future__ import annotations

from ptxrt.sim._launch import LaunchReport, launch
from ptxrt.sim._load import Loaded, load, parse, unload
from ptxrt.sim._machine.checks import CHECKS
from ptxrt.sim._machine.checks import VARIABLE as CHECKS_VARIABLE
from ptxrt.sim._machine.checks import chosen as chosen_checks
from ptxrt.sim._machine.element_types import ArrayParam
from ptxrt.sim._machine.images import Bound, Image
from ptxrt.sim._machine.last_write import LastWrite
from ptxrt.sim._machine.layout import Param
from ptxrt.sim._machine.memory import GlobalMemory
from ptxrt.sim._machine.profile import LineCounts, Profile
from ptxrt.sim._machine.program import Entry, Program
from ptxrt.sim._machine.visits import Visits, Way, lines_and_ways
from ptxrt.sim._text.parser import MAX_PTX_VERSION
from ptxrt.sim._text.types import TYPES

__all__ = [
    "CHECKS",
    "CHECKS_VARIABLE",
    "MAX_PTX_VERSION",
    "TYPES",
    "ArrayParam",
    "Bound",
    "Entry",
    "GlobalMemory",
    "Image",
    "LastWrite",
    "LaunchReport",
    "LineCounts",
    "Loaded",
    "Param",
    "Profile",
    "Program",
    "Visits",
    "Way",
    "chosen_checks",
    "launch",
    "lines_and_ways",
    "load",
    "parse",
    "unload",
]
