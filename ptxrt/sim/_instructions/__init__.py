"""The instructions, one file a family: what ptxas lets through and what runs, side by side."""

from __future__ import annotations

from ptxrt.sim._instructions import (
    arithmetic_float,
    arithmetic_int,
    atomics,
    barrier,
    bits,
    calls,
    carry,
    cluster,
    compare_logic,
    control,
    convert,
    copies,
    load_store,
    matrix_moves,
    mma,
    move,
    special_functions,
    surfaces,
    textures,
    warp,
    wmma,
)
from ptxrt.sim._instructions.op import definition

__all__ = [
    "arithmetic_float",
    "arithmetic_int",
    "atomics",
    "barrier",
    "bits",
    "calls",
    "carry",
    "cluster",
    "compare_logic",
    "control",
    "convert",
    "copies",
    "definition",
    "load_store",
    "matrix_moves",
    "mma",
    "move",
    "special_functions",
    "surfaces",
    "textures",
    "warp",
    "wmma",
]
