"""The special registers, and what each lane of a chunk reads from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxrt.sim.types import TYPES, Array, PtxType

__all__ = ["DYNAMIC", "SPECIAL_TYPES", "Shape", "special_values"]

_U32 = TYPES["u32"]
_U64 = TYPES["u64"]
_PLAIN = ("laneid", "warpid", "nwarpid", "smid", "nsmid", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge",
          "lanemask_gt", "clock", "clock_hi", "globaltimer_lo", "globaltimer_hi", "dynamic_smem_size",
          "total_smem_size")  # fmt: skip

SPECIAL_TYPES: dict[str, PtxType] = {
    **{f"%{name}.{axis}": _U32 for name in ("tid", "ntid", "ctaid", "nctaid") for axis in "xyz"},
    **{f"%{name}": _U32 for name in _PLAIN},
    "%gridid": _U64,
    "%clock64": _U64,
    "%globaltimer": _U64,
}
"""Every special register that the machine has, with its type."""

DYNAMIC = frozenset({"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"})
"""Those that are read anew each time: they count the instructions that the chunk has executed."""


@dataclass(frozen=True)
class Shape:
    """The shape of one launch."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_static: int
    shared_total: int

    @property
    def threads(self) -> int:
        """Threads a block."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        """Warps a block, the last one perhaps not full."""
        return -(-self.threads // 32)

    @property
    def blocks(self) -> int:
        """Blocks of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    def block_index(self, number: int) -> tuple[int, int, int]:
        """Return (x, y, z) of a block by its number in the grid."""
        return (
            number % self.grid[0],
            number // self.grid[0] % self.grid[1],
            number // (self.grid[0] * self.grid[1]),
        )

    def thread_index(self, number: int) -> tuple[int, int, int]:
        """Return (x, y, z) of a thread by its number in the block."""
        x, y, _ = self.block
        return number % x, number // x % y, number // (x * y)


def _uint(value: int) -> Array:
    return np.array([value & 0xFFFFFFFF], np.uint32)


def special_values(name: str, shape: Shape, first_block: int, blocks: int) -> Array:
    """Return the values for the threads of `blocks` blocks from `first_block`, or shape (1,) where all agree."""
    stem, _, axis = name[1:].partition(".")
    if axis:
        place = "xyz".index(axis)
        if stem == "ntid":
            return _uint(shape.block[place])
        if stem == "nctaid":
            return _uint(shape.grid[place])
        sizes = shape.block if stem == "tid" else shape.grid
        if sizes[place] == 1:
            return _uint(0)
        if stem == "tid":
            number = np.arange(shape.threads, dtype=np.int64)
        else:
            number = np.arange(first_block, first_block + blocks, dtype=np.int64)
        for size in sizes[:place]:
            number //= size
        if place < 2:
            number %= sizes[place]
        index = number.astype(np.uint32)
        if stem == "tid":
            return np.tile(index, blocks)
        return index if blocks == 1 else np.repeat(index, shape.threads)
    if stem in ("smid", "gridid"):
        return np.zeros(1, SPECIAL_TYPES[name].dtype)
    plain = {
        "nsmid": 1,
        "nwarpid": 64,
        "dynamic_smem_size": shape.shared_total - shape.shared_static,
        "total_smem_size": shape.shared_total,
    }
    if stem in plain:
        return _uint(plain[stem])
    number = np.arange(shape.threads, dtype=np.uint32)
    if stem == "warpid":
        return np.tile(number >> np.uint32(5), blocks)
    lane = number & np.uint32(31)
    bit = np.left_shift(np.uint32(1), lane)
    masks = {
        "laneid": lane,
        "lanemask_eq": bit,
        "lanemask_lt": bit - np.uint32(1),
        "lanemask_le": (bit - np.uint32(1)) | bit,
        "lanemask_gt": ~((bit - np.uint32(1)) | bit),
        "lanemask_ge": ~(bit - np.uint32(1)),
    }
    return np.tile(masks[stem], blocks)
