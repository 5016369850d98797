"""The stack of the functions that are not inlined.

Such a function has one set of slots. A call saves them for the lanes that make it, as a callee saves registers, and the
return puts them back, so that an outer activation of the same function finds what it left. Arguments and results go
through slots of their own.
"""

from __future__ import annotations

import numpy as np

from ptxrt.sim._machine.branches import GONE
from ptxrt.sim._machine.outlined import Outlined
from ptxrt.sim._machine.protocol import Lanes, Machine
from ptxrt.sim._text.syntax import Instruction
from ptxrt.sim._text.types import Array
from ptxrt.sim._text.windows import LOCAL_WINDOW

__all__ = ["CALL_STACK_BYTES", "LOCAL_STACK_BYTES", "CallStack"]

CALL_STACK_BYTES = 16 << 10
"""Saved registers that a lane may have."""
LOCAL_STACK_BYTES = 8 << 10
"""Local memory of a lane for the variables of functions that are not inlined."""


class CallStack:
    """The calls that the lanes of one chunk are in."""

    def __init__(self, lanes: Lanes) -> None:
        places = lanes.blocks * lanes.padded
        # Zeros that are never touched take no memory, and few kernels use more than the first levels.
        self._words = np.zeros((CALL_STACK_BYTES // 8, places), np.uint64)
        self._depth = np.zeros(places, np.int64)
        self._local = np.zeros(places, np.int64)

    def enter(self, m: Machine, callee: Outlined, following: int, ins: Instruction) -> int:
        """Save what the callee's slots hold for the active lanes; they will go on at `following`."""
        places = m.of_active(m.origin)
        depth, local = self._depth[places], self._local[places]
        size = -(-callee.local_bytes // 16) * 16
        self._check(m, ins, (depth + len(callee.saved) + 1) * 8, CALL_STACK_BYTES, "registers")
        self._check(m, ins, local + size, LOCAL_STACK_BYTES, "local variables")
        for place, slot in enumerate(callee.saved):
            self._words[depth + place, places] = _bits(m.of_active(m.regs[slot]) if m.regs[slot].shape[0] == m.n
                                                       else m.regs[slot])  # fmt: skip
        self._words[depth + len(callee.saved), places] = following
        self._depth[places] = depth + len(callee.saved) + 1
        self._local[places] = local + size
        base = local + m.layout.stack_base
        for slot, place, dtype, generic in callee.addresses:
            m.set(slot, (base + place + (LOCAL_WINDOW if generic else 0)).astype(f"u{dtype.itemsize}").view(dtype))
        return callee.start.block

    def _check(self, m: Machine, ins: Instruction, wanted: Array, limit: int, what: str) -> None:
        bad = (wanted > limit).nonzero()[0]
        if bad.size:
            m.memory_fault(
                ins,
                f"calls nest so deep that the {limit} bytes of stack for {what} are spent",
                int(m.active()[bad[0]]),
                int(wanted[bad[0]]),
                0,
                "",
            )

    def leave(self, m: Machine, callee: Outlined) -> int:
        """Put back what the call saved, and send the active lanes where they came from."""
        places = m.of_active(m.origin)
        depth = self._depth[places] - len(callee.saved) - 1
        self._depth[places] = depth
        self._local[places] -= -(-callee.local_bytes // 16) * 16
        for place, slot in enumerate(callee.saved):
            dtype = m.regs[slot].dtype
            word = self._words[depth + place, places]
            held = word.astype(np.bool_) if dtype == np.bool_ else word.astype(f"u{dtype.itemsize}").view(dtype)
            m.set(slot, held)
        where = self._words[depth + len(callee.saved), places]
        lanes = m.active()
        first = int(where[0])
        if (where == where[0]).all():
            return first
        for block in np.unique(where):
            m.defer(int(block), lanes[where == block])
        return GONE


def _bits(value: Array) -> Array:
    return value if value.dtype == np.bool_ else value.view(f"u{value.dtype.itemsize}")
