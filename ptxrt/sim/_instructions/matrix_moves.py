"""ldmatrix, stmatrix, movmatrix: matrices of 8 x 8 elements of 16 bits, spread over the lanes of a warp.

A row has 16 bytes, and lane 4 r + i holds the word i of row r. So the words of the eight rows, in their order, are what
the 32 lanes hold, in theirs. With .trans it is the transposed matrix that is spread so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from ptxrt.sim._instructions.addressing import address
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.vectors import fragment
from ptxrt.sim._instructions.warp import whole_warps
from ptxrt.sim._machine.access import Access, window_of
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._machine.words import read_words, write_words
from ptxrt.sim._text.types import TYPES, Array, word_type
from ptxrt.sim._text.windows import SHARED_WINDOW

__all__ = ["transposed"]

_B32 = TYPES["b32"]
_MASK64 = (1 << 64) - 1
_ROW = 16
"""Bytes of a row."""


@instruction("ldmatrix")
def ldmatrix(op: Op) -> None:
    """Load one, two or four matrices; lane 8 j + r gives the address of row r of matrix j."""
    count, transposes = _matrices(op)
    where, access, placed = _rows(op, 1, writes=False)
    write = [op.dest(item, _B32) for item in fragment(op, 0, count)]

    def step(m: Machine) -> None:
        with _those_who_give(m, 8 * count, where(m)) as at:
            rows = m.spread(read_words(m, access, placed(m, at), _ROW)[0])
        words = rows.view(np.uint32).reshape(-1, count, 32)
        if transposes:
            words = transposed(words)
        for place, one in enumerate(write):
            one(m, words[:, place].ravel())

    whole_warps(op, step)


@instruction("stmatrix")
def stmatrix(op: Op) -> None:
    """Store one, two or four matrices; lane 8 j + r gives the address of row r of matrix j."""
    count, transposes = _matrices(op)
    where, access, placed = _rows(op, 0, writes=True)
    read = [op.source(item, _B32) for item in fragment(op, 1, count)]

    def step(m: Machine) -> None:
        words = np.stack([m.spread(one(m)).reshape(-1, 32) for one in read], axis=1)
        if transposes:
            words = transposed(words)
        rows = words.view(word_type(_ROW)).ravel()
        with _those_who_give(m, 8 * count, where(m)) as at:
            write_words(m, access, placed(m, at), [rows])

    whole_warps(op, step)


@instruction("movmatrix")
def movmatrix(op: Op) -> None:
    """Transpose one matrix."""
    _aligned(op)
    _shape(op)
    if not op.flag("trans"):
        op.fail("movmatrix takes .trans")
    op.type("b16")
    op.done(2)
    write, read = op.dest(0, _B32), op.source(1, _B32)
    whole_warps(op, lambda m: write(m, transposed(m.spread(read(m)).reshape(-1, 32)).ravel()))


def _matrices(op: Op) -> tuple[int, bool]:
    """Return how many matrices are moved, and whether they are transposed."""
    _aligned(op)
    _shape(op)
    count = op.choice("x1", "x2", "x4")
    if count is None:
        op.fail(f"{op.ins.name} takes .x1, .x2 or .x4")
    transposes = op.flag("trans")
    op.type("b16")
    return int(count[1:]), transposes


def _aligned(op: Op) -> None:
    """Check that .sync and .aligned are there."""
    for name in ("sync", "aligned"):
        if not op.flag(name):
            op.fail(f"{op.ins.name} takes .{name}")


def _shape(op: Op) -> None:
    """Check the shape: others than .m8n8 there are on some newer targets only."""
    if op.flag("m8n8"):
        return
    shape = op.choice("m16n16", "m8n16", "m16n8")
    if shape is None:
        op.fail(f"{op.ins.name} takes .m8n8")
    module = op.builder.module
    if module.target_number < 100 or not module.target.endswith(("a", "f")):
        op.fail(f"{op.ins.name}.{shape} needs a target of its own such as sm_100a, not {module.target}")
    op.unsupported(f"{op.ins.name}.{shape}")


def _rows(op: Op, place: int, *, writes: bool) -> tuple[Getter, Access, Callable[[Machine, Array], Array]]:
    """Return the reader of the addresses of rows, the access, and what makes places in shared memory of addresses."""
    space = "shared" if op.flag("shared", "shared::cta") else "generic"
    op.done(2)
    where, offset = address(op, place, space)
    access = op.builder.access(op.ins, "shared", _ROW, _ROW, writes, offset)

    def placed(m: Machine, at: Array) -> Array:
        if space == "shared":
            return at
        generic = at.view(np.uint64)
        exact = generic + np.uint64(offset & _MASK64)
        other = window_of(exact) != SHARED_WINDOW >> 56
        if other.any():
            first = int(other.argmax())
            found = int(exact[first])
            near = m.memory.describe(found) if found < SHARED_WINDOW else "in local or parameter memory"
            problem = f"{access.verb} of {_ROW} bytes at a generic address that is not one of shared memory"
            m.memory_fault(op.ins, problem, int(m.active()[first]), found, _ROW, near)
        return np.asarray(generic - np.uint64(SHARED_WINDOW))

    return where, access, placed


@contextmanager
def _those_who_give(m: Machine, rows: int, where: Array) -> Iterator[Array]:
    """Let the lanes that give an address, the first `rows` of each warp, be the active ones; yield the addresses."""
    idx, count = m.idx, m.count
    giving = ((np.arange(count) & 31) < rows).nonzero()[0]
    m.activate(m.active()[giving])
    yield where if where.shape[0] == 1 else where[giving]
    m.idx, m.count = idx, count


def transposed(words: Array) -> Array:
    """Return what 32 lanes, the last axis, hold of the transposed matrix."""
    elements = words.view(np.uint16).reshape(-1, 8, 8).swapaxes(1, 2)
    return np.asarray(np.ascontiguousarray(elements).view(np.uint32).reshape(words.shape))
