"""Which lane holds which element of wmma's matrices, in which register, and in which pieces it moves them.

The PTX ISA leaves this open. Here it is as in the code that ptxas 12.9 and 13.0 make for sm_70 to sm_90:

- From sm_75 on, and integers on sm_72, the matrices are put together of the fragments of mma.sync, 16 or 8 rows of a, 8
  columns of b, 16 x 8 or 8 x 8 elements of c. A product of .m8n32k16 is computed transposed, and so are its fragments;
  on sm_72 and sm_75 its sums of .s32 are not. Of .f16 a and b fill eight registers: what is over holds the same again.
- On sm_70 and sm_72 .f16 and .f32 lie as in mma.m8n8k4: four groups of eight lanes have 8 x 8 elements of c each,
  and their own copies of the rows of a and the columns of b.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from ptxrt.sim._instructions import fragments
from ptxrt.sim._instructions.fragments import Fragment
from ptxrt.sim._text.types import Array

__all__ = ["BITS", "Layout", "Piece", "layout"]

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "u8": 8, "s8": 8, "u4": 4, "s4": 4, "b1": 1, "s32": 32}
"""Of an element, by its type."""

_MOST = 16
"""Bytes that a lane moves at once."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Neighbours in memory that each lane moves together.

    Attributes
    ----------
    across, along
        For each of 32 lanes: which row (column, where the matrix lies column by column), and which byte of it.
    first, size
        The bytes of a lane's registers that they are.
    """

    across: Array
    along: Array
    first: int
    size: int


@dataclass(frozen=True, eq=False)
class Layout:
    """The elements of a matrix as the lanes of a warp hold them.

    Attributes
    ----------
    rows, columns
        Of the element at each place, of shape (registers, 32 lanes, parts of a register from the low bits).
    shape
        Rows and columns of the matrix.
    bits
        Of an element.
    by_rows
        Whether memory has the matrix row by row, or column by column.
    copies
        How often the registers are there, one after the other.
    """

    rows: Array
    columns: Array
    shape: tuple[int, int]
    bits: int
    by_rows: bool
    copies: int = 1

    @property
    def registers(self) -> int:
        """How many each lane has."""
        return len(self.rows) * self.copies

    @cached_property
    def fragment(self) -> Fragment:
        """The first copy as a fragment; where an element has several places, with one of them."""
        places = np.empty((*self.shape, 1), np.intp)
        places[self.rows, self.columns, 0] = np.arange(self.rows.size).reshape(self.rows.shape)
        return Fragment(places, self.bits, self.rows.shape[0])

    @cached_property
    def turned(self) -> bool:
        """Whether pairs of 16-bit elements lie across memory: then the lanes move their registers transposed."""
        along = self.columns if self.by_rows else self.rows
        return self.bits == 16 and bool((along[:, 0, 0] == along[:, 0, 1]).all())

    @cached_property
    def pieces(self) -> list[Piece]:
        """In what pieces the lanes move the first copy."""
        rows, columns = self.rows, self.columns
        if self.turned:
            rows, columns = (
                one.reshape(-1, 8, 8).swapaxes(1, 2).reshape(self.rows.shape) for one in (rows, columns)
            )  # fmt: skip
        # From here on a place is a byte at least.
        step, size = max(8 // self.bits, 1), max(self.bits // 8, 1)
        across, along = ((x[..., ::step].swapaxes(1, 2).reshape(-1, 32))
                         for x in ((rows, columns) if self.by_rows else (columns, rows)))  # fmt: skip
        along = along * self.bits // 8
        found, place = [], 0
        while place < len(along):
            count = 1
            while count * size < _MOST and _continues(across, along, place, count, size):
                count *= 2
            found.append(Piece(across[place], along[place], place * size, count * size))
            place += count
        return found


def _continues(across: Array, along: Array, place: int, count: int, size: int) -> bool:
    """Tell whether twice as many places as `count` from `place` on are neighbours in memory, in all lanes."""
    places = slice(place, place + 2 * count)
    steps = np.arange(2 * count)[:, None] * size
    return len(along) >= place + 2 * count and bool(
        (across[places] == across[place]).all() and (along[places] == along[place] + steps).all()
    )


@cache
def layout(role: str, sizes: tuple[int, int, int], kind: str, arch: int, *, by_rows: bool) -> Layout:
    """Return the layout of a matrix.

    Parameters
    ----------
    role
        ``"a"``, ``"b"``, or ``"c"`` for c and d.
    sizes
        m, n and k of the product.
    kind
        The type of its elements.
    arch
        The number of the architecture.
    by_rows
        Whether memory has it row by row: on sm_70 and sm_72 the lanes hold a and b otherwise then.
    """
    m, n, k = sizes
    shape = {"a": (m, k), "b": (k, n), "c": (m, n)}[role]
    bits = BITS[kind]
    if arch < 75 and kind in ("f16", "f32"):
        rows, columns = _in_quarters(role, m, n, bits, by_rows=by_rows)
        return Layout(rows, columns, shape, bits, by_rows)
    if (m, n) == (8, 32) and not (kind == "s32" and arch < 80):
        columns, rows = _of_fragments({"a": "b", "b": "a", "c": "c"}[role], n, m, k, bits)
    else:
        rows, columns = _of_fragments(role, m, n, k, bits)
    copies = 8 // len(rows) if kind == "f16" and role != "c" else 1
    return Layout(rows, columns, shape, bits, by_rows, copies)


def _of_fragments(role: str, m: int, n: int, k: int, bits: int) -> tuple[Array, Array]:
    """Return rows and columns at the places of several fragments of mma.sync, one after the other."""
    height, width = min(m, 16), 8
    if role == "a":
        one = fragments.left(height, k, bits)
        corners = [(top, 0) for top in range(0, m, height)]
    elif role == "b":
        one = fragments.right(k, width, bits)
        corners = [(0, left) for left in range(0, n, width)]
    else:
        one = fragments.accumulator(height, width, bits)
        corners = [(top, left) for top in range(0, m, height) for left in range(0, n, width)]
    elements = np.argsort(one.places, axis=None).reshape(one.registers, 32, one.parts)
    rows, columns = np.divmod(elements, one.places.shape[1])
    return (
        np.concatenate([rows + top for top, _ in corners]),
        np.concatenate([columns + left for _, left in corners]),
    )


def _in_quarters(role: str, m: int, n: int, bits: int, *, by_rows: bool) -> tuple[Array, Array]:
    """Return rows and columns as lanes hold them in four groups, lanes 4 q to 4 q + 3 and those 16 further."""
    lane = np.arange(32)[:, None]
    quarter, upper = lane % 16 // 4, lane // 16 * 4
    top = 8 * (quarter if m == 32 else quarter % 2 if m == 16 else 0 * quarter)
    left = 8 * (quarter if n == 32 else quarter // 2 if n == 16 else 0 * quarter)
    if role == "c" and bits == 32:
        element = np.arange(8).reshape(8, 1, 1)
        rows, columns = (lane & 1) + (element & 2) + upper + top, (element & 4) + (lane & 2) + (element & 1) + left
    elif role == "c":
        rows, columns = lane % 4 + upper + top, np.arange(8).reshape(4, 1, 2) + left
    else:
        element = np.arange(16).reshape(8, 1, 2)
        outer, inner = lane % 4 + upper, element
        if by_rows is not (role == "a"):
            outer, inner = element % 4 + upper, element // 4 * 4 + lane % 4
        rows, columns = (outer + top, inner) if role == "a" else (inner, outer + left)
    rows, columns = np.broadcast_arrays(rows, columns)
    return rows, columns
