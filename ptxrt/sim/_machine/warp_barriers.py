"""bar.warp.sync: lanes of a warp wait for each other, wherever in the text each of them does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.protocol import Lanes, Machine
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array

__all__ = ["WarpBarriers", "masks"]


def masks(m: Lanes, lanes: Array) -> Array:
    """Return, for each warp of the chunk, the mask of its lanes among `lanes`."""
    bits = np.zeros(m.blocks * m.padded, np.bool_)
    bits[m.origin[lanes]] = True
    return np.asarray(np.packbits(bits, bitorder="little").view(np.uint32))


@dataclass(eq=False)
class _Waiting:
    ins: Instruction
    lanes: Array
    wanted: Array
    following: int


class WarpBarriers:
    """Who waits at which bar.warp.sync of one chunk."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._waiting: list[_Waiting] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def sync(self, ins: Instruction, wanted: Array, following: int) -> int:
        """Let the active lanes wait until all lanes that `wanted` names, and that have not exited, wait too."""
        m = self._machine
        if m.idx is None and not self._waiting:
            m.synchronised_warps()
            return following
        self._waiting.append(_Waiting(ins, m.active(), m.spread(wanted), following))
        self.release()
        return GONE

    def release(self) -> None:
        """Let those go on whose warp is complete."""
        if not self._waiting:
            return
        m = self._machine
        present = masks(m, np.arange(m.n))
        lanes = np.concatenate([group.lanes for group in self._waiting])
        wanted = np.concatenate([group.wanted for group in self._waiting])
        going = np.zeros(m.n, np.bool_)
        # Lanes wait for each other only where they name the same lanes.
        for mask in np.unique(wanted):
            alike = lanes[wanted == mask]
            missing = mask & present & ~masks(m, alike)
            going[alike[missing[m.origin[alike] >> 5] == 0]] = True
        if not going.any():
            return
        held_idx, held_count = m.idx, m.count
        m.activate(going.nonzero()[0])
        m.synchronised_warps()
        m.idx, m.count = held_idx, held_count
        for group in self._waiting:
            leaving = going[group.lanes]
            if leaving.any():
                m.defer(group.following, group.lanes[leaving])
                group.lanes, group.wanted = group.lanes[~leaving], group.wanted[~leaving]
        self._waiting = [group for group in self._waiting if group.lanes.size]

    def renumber(self, moved: Array) -> None:
        """Follow the lanes to their new places after others have exited."""
        for group in self._waiting:
            group.lanes = moved[group.lanes]

    def deadlock(self) -> NoReturn:
        """Raise Deadlock for the first lane that waits for ever."""
        group = min(self._waiting, key=lambda one: int(one.lanes[0]))
        self._machine.deadlock(
            group.ins,
            f"{group.ins.name} waits for lanes of its warp that its mask names and that never come",
            int(group.lanes[0]),
        )
