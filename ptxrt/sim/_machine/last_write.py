"""The last write to one byte of global memory, for whoever asks where a value came from."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.allocations import Allocation
from ptxrt.sim._machine.protocol import Lanes, Spaces
from ptxrt.sim._text.types import Array

__all__ = ["LastWrite"]


class LastWrite:
    """Watches a byte in the place of the race model of global memory.

    Attributes
    ----------
    line
        Of the text, the instruction that wrote it last; None where none did.
    thread, block
        Who did.
    """

    def __init__(self, address: int) -> None:
        self.address = address
        self.line: int | None = None
        self.thread: tuple[int, int, int] | None = None
        self.block: tuple[int, int, int] | None = None

    def begin(self, m: Lanes) -> None:
        """Start a chunk."""

    def barrier(self, blocks: Array | None) -> None:
        """Pass a barrier."""

    def warp_sync(self, m: Lanes) -> None:
        """Synchronise warps."""

    def fence(self, m: Lanes, *, wide: bool) -> None:
        """Pass a fence."""

    def check(self, m: Spaces, access: Access, allocation: Allocation, at: Array, part: Array | None) -> None:
        """Note an access of the active lanes (or of a part of them) at these bytes of an allocation."""
        byte = self.address - allocation.base
        if not access.writes or not allocation.start <= self.address < allocation.end:
            return
        hits = np.flatnonzero((at <= byte) & (byte < at + access.size))
        if hits.size:
            lanes = m.active() if part is None else m.active()[part]
            # One address for all lanes: any of them may be the last, and here it is the last.
            lane = lanes[hits[-1]] if at.shape[0] == lanes.shape[0] else lanes[-1]
            self.line = access.ins.line
            self.thread, self.block = m.place(int(lane))
