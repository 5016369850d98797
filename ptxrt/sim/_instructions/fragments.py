"""Which lane holds which element of a matrix, and in which register: the fragments of mma.sync.

A fragment is an index over places. A place is (register, lane, part): the elements of a register are its parts, from
the low bits. The formulas are those of the PTX ISA, "Matrix Fragments for mma": for each lane all of them go by its
number in its group, ``lane % 4``, and by the group's, ``lane // 4``, so that one formula serves for all shapes and
widths; m8n8k4 of f16 alone has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from ptxrt.sim._text.types import Array

__all__ = ["Fragment", "accumulator", "left", "quarter_accumulator", "quarter_left", "quarter_right", "right"]

_LANE = np.arange(32)[:, None]
_GROUP, _IN_GROUP = _LANE // 4, _LANE % 4


@dataclass(frozen=True, eq=False)
class Fragment:
    """The places of a matrix's elements.

    Attributes
    ----------
    places
        Of shape (rows, columns, matrices), for each element ``(register * 32 + lane) * parts + part``. A warp holds one
        matrix, or the four of m8n8k4.
    bits
        Of an element: 1, 4, 8, 16, 32 or 64.
    registers
        How many each lane has.
    """

    places: Array
    bits: int
    registers: int

    @property
    def parts(self) -> int:
        """Elements of a register, which has 32 bits, or the 64 of an f64."""
        return max(32 // self.bits, 1)

    @cached_property
    def _elements(self) -> Array:
        """The element, counted through, at each place."""
        return np.argsort(self.places, axis=None)

    def unpack(self, registers: Sequence[Array]) -> Array:
        """Return the matrices of whole warps.

        Parameters
        ----------
        registers
            For each register, its bits in all lanes: uint32, or uint64 where an element has 64 bits.

        Returns
        -------
        Array
            Shape (matrices * warps, rows, columns), unsigned integers of the elements' width, of 8 bits where that is
            less. The tiles lie closest in memory.
        """
        warps = registers[0].size // 32
        size = max(self.bits // 8, 1)
        within = registers[0].itemsize // size
        whole = np.empty((len(registers), 32, within, warps), f"u{size}")
        for place, register in enumerate(registers):
            parts = np.ascontiguousarray(register).view(whole.dtype).reshape(warps, 32, within)
            whole[place] = parts.transpose(1, 2, 0)
        flat = whole.reshape(-1, warps)
        if self.bits >= 8:
            found = flat[self.places]
        else:
            step = 8 // self.bits
            shifts = (self.places % step * self.bits).astype(np.uint8)[..., None]
            found = flat[self.places // step] >> shifts & np.uint8((1 << self.bits) - 1)
        rows, columns, matrices, _ = found.shape
        return np.moveaxis(found.reshape(rows, columns, matrices * warps), -1, 0)

    def pack(self, matrices: Array) -> list[Array]:
        """Return the registers, as `unpack` takes them, that hold matrices of elements of 16 bits or more."""
        elements = np.moveaxis(matrices, 0, -1).reshape(self.places.size, -1)
        warps = elements.shape[1]
        ordered = elements[self._elements].reshape(self.registers, 32, self.parts, warps)
        word = f"u{self.parts * elements.itemsize}"
        return [
            np.ascontiguousarray(one.transpose(2, 0, 1)).reshape(warps * 32, self.parts).view(word)[:, 0]
            for one in ordered
        ]


def _fragment(rows: Array, columns: Array, shape: tuple[int, ...], bits: int, matrix: Array | int = 0) -> Fragment:
    """Return the fragment with the element (rows, columns) at each (register, lane, part)."""
    rows, columns, matrix = np.broadcast_arrays(rows, columns, matrix)
    places = np.empty((*shape, 1)[:3], np.intp)
    places[rows.ravel(), columns.ravel(), matrix.ravel()] = np.arange(rows.size)
    return Fragment(places, bits, rows.shape[0])


@cache
def left(m: int, k: int, bits: int) -> Fragment:
    """Return the fragment of a: registers go through the halves of m first, then along k."""
    parts = max(32 // bits, 1)
    register = np.arange(m * k // (32 * parts))[:, None, None]
    halves = m // 8
    part = np.arange(parts)
    columns = register // halves * 4 * parts + _IN_GROUP * parts + part
    return _fragment(register % halves * 8 + _GROUP, columns, (m, k), bits)


@cache
def right(k: int, n: int, bits: int) -> Fragment:
    """Return the fragment of b, whose registers go along k."""
    parts = max(32 // bits, 1)
    register = np.arange(k * n // (32 * parts))[:, None, None]
    return _fragment(register * 4 * parts + _IN_GROUP * parts + np.arange(parts), _GROUP, (k, n), bits)


@cache
def accumulator(m: int, n: int, bits: int) -> Fragment:
    """Return the fragment of c and d: pairs of neighbours, in one register of f16 or in two."""
    parts = max(32 // bits, 1)
    element = np.arange(m * n // 32).reshape(-1, 1, parts)
    return _fragment(element // 2 * 8 + _GROUP, _IN_GROUP * 2 + element % 2, (m, n), bits)


_QUARTER = _LANE % 16 // 4
_UPPER = _LANE // 16 * 4


def _quarters(rows: Array, columns: Array, shape: tuple[int, int], bits: int) -> Fragment:
    return _fragment(rows, columns, (*shape, 4), bits, _QUARTER)


@cache
def quarter_left(*, by_rows: bool) -> Fragment:
    """Return the fragment of the four a of m8n8k4, of which 4 lanes and the 4 lanes 16 further hold one."""
    element = np.arange(4).reshape(2, 1, 2)
    across, along = _IN_GROUP + _UPPER, element
    if not by_rows:
        across, along = element + _UPPER, _IN_GROUP
    return _quarters(across, along, (8, 4), 16)


@cache
def quarter_right(*, by_rows: bool) -> Fragment:
    """Return the fragment of the four b of m8n8k4."""
    element = np.arange(4).reshape(2, 1, 2)
    along, across = element, _IN_GROUP + _UPPER
    if by_rows:
        along, across = _IN_GROUP, element + _UPPER
    return _quarters(along, across, (4, 8), 16)


@cache
def quarter_accumulator(bits: int) -> Fragment:
    """Return the fragment of the four c and d of m8n8k4."""
    if bits == 16:
        return _quarters(_IN_GROUP + _UPPER, np.arange(8).reshape(4, 1, 2), (8, 8), bits)
    element = np.arange(8).reshape(8, 1, 1)
    rows = (_LANE & 1) + (element & 2) + _UPPER
    return _quarters(rows, (element & 4) + (_LANE & 2) + (element & 1), (8, 8), bits)
