"""One instruction's access to memory, and where its bytes are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ptxrt.sim._machine.allocations import Store
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["RANK_SHIFT", "Access", "Piece", "window_of"]

RANK_SHIFT = 24
"""In the address of another block's shared memory, the place of 1 + its rank in the cluster."""


class Access(NamedTuple):
    """What one instruction does to memory: state space (or ``generic``), bytes a lane, and the constant offset."""

    ins: Instruction
    space: str
    size: int
    writes: bool
    offset: int
    atomic: bool = False
    strong: bool = False
    pending: bool = False
    """The bytes arrive later, and have no value until then (cp.async)."""
    arrives: bool = False
    """They arrive now."""
    float_type: str = ""
    """The floating-point type that memory must have; empty for an access that moves bytes of any."""

    @property
    def verb(self) -> str:
        """The access as a noun."""
        return "atomic" if self.atomic else "write" if self.writes else "read"


class Piece(NamedTuple):
    """Lanes whose bytes lie in one store: byte offsets (shape (1,) if all the same), and which of the active lanes."""

    store: Store
    at: Array
    lanes: Array | None


def window_of(address: Array) -> Array:
    """Return which window generic addresses are in: 0 global, 1 shared, 2 local, 4 param."""
    return np.asarray((address >> np.uint64(56)) & np.uint64(7))
