"""The metadata of ``mma.sp``: which elements of a row the compressed matrix a holds.

A row comes in chunks, of which half the elements are there. A chunk has 4 bits of metadata: two places of 2 bits, the
low one first. Which lane has them, and at which bit, is told by the figures of the PTX ISA, "Sparse matrix storage".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxrt.sim._instructions.op import Op
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.types import Array

__all__ = ["Sparsity", "chosen"]

_ROWS = 16
_ORDERED = (0b0100, 0b1000, 0b1001, 0b1100, 0b1101, 0b1110)
_UNORDERED = tuple(value for value in range(16) if value & 3 != value >> 2)
_ONE_OF_TWO = (0b0100, 0b1110)


@dataclass(frozen=True)
class Sparsity:
    """How the metadata of one form are read.

    Attributes
    ----------
    k
        Columns of a row, before it was compressed.
    bits
        Of an element.
    ordered
        Whether the places of a chunk must ascend.
    """

    k: int
    bits: int
    ordered: bool

    @property
    def _width(self) -> int:
        """Columns of a chunk: of 32-bit elements one of two is there, of 4-bit ones two pairs of four."""
        return {32: 2, 4: 8}.get(self.bits, 4)

    @property
    def _chunks(self) -> int:
        return self.k // self._width

    @property
    def selectors(self) -> int:
        """How many selectors there are: lanes of a group of four, by those that it takes to hold the metadata."""
        return 4 // (self._chunks * _ROWS * 4 // (32 * 8))

    def indices(self, op: Op, m: Machine, metadata: Array, selector: int) -> Array:
        """Return the column of each element of a, of shape (rows, k / 2, warps).

        Raises
        ------
        SimFault
            For metadata that mean nothing.
        """
        chunk, row = np.arange(self._chunks), np.arange(_ROWS)[:, None]
        lower, half = row % 8, row // 8
        if self.bits >= 16:  # a lane has both halves of the rows, of four chunks
            lane = lower * 4 + selector * (self._chunks // 4) + chunk // 4
            shift = half * 16 + chunk % 4 * 4
        else:  # a lane has one half, of eight chunks
            lane = lower * 4 + selector * 2 + half + chunk // 8 * 2
            shift = np.broadcast_to(chunk % 8 * 4, lane.shape)
        values = metadata.reshape(-1, 32).T[lane] >> shift.astype(np.uint32)[..., None] & np.uint32(15)
        meant = _ONE_OF_TWO if self.bits == 32 else _ORDERED if self.ordered else _UNORDERED
        wrong = np.argwhere(~np.isin(values, meant))
        if wrong.size:
            at_row, at_chunk, warp = wrong[0]
            problem = f"metadata {int(values[at_row, at_chunk, warp]):#06b} of chunk {at_chunk} of row {at_row}"
            m.fault(
                op.ins,
                f"{op.ins.name} has {problem}, which is none of those that the manual gives a meaning",
                int(m.active()[warp * 32 + lane[at_row, at_chunk]]),
            )
        places = np.stack((values & np.uint32(3), values >> np.uint32(2)), 2).astype(np.intp)
        start = (chunk * self._width)[:, None, None]
        if self.bits == 32:
            columns = start + places[:, :, :1] // 2
        elif self.bits == 4:
            columns = np.stack([start + places * 2, start + places * 2 + 1], 3)
        else:
            columns = start + places
        return columns.reshape(_ROWS, self.k // 2, -1)


def chosen(b: Array, indices: Array) -> Array:
    """Return, for each row of a, the rows of b that its elements meet: (warps, rows, k / 2, n) of (warps, k, n)."""
    last = np.moveaxis(b, 0, -1)
    _, n, warps = last.shape
    return np.moveaxis(last[indices[:, :, None], np.arange(n)[:, None], np.arange(warps)], -1, 0)
