"""The special registers, and what each lane of a chunk reads from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__ = ["DYNAMIC", "SPECIAL_TYPES", "Shape", "special_values"]

_U32 = TYPES["u32"]
_U64 = TYPES["u64"]
_PLAIN = ("laneid", "warpid", "nwarpid", "smid", "nsmid", "lanemask_eq", "lanemask_le", "lanemask_lt", "lanemask_ge",
          "lanemask_gt", "clock", "clock_hi", "globaltimer_lo", "globaltimer_hi", "dynamic_smem_size",
          "total_smem_size", "aggr_smem_size", "cluster_ctarank", "cluster_nctarank")  # fmt: skip

_AXES = ("tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid")

SPECIAL_TYPES: dict[str, PtxType] = {
    **{f"%{name}.{axis}": _U32 for name in _AXES for axis in "xyzw"},
    **{f"%{name}": _U32 for name in _PLAIN},
    **{f"%envreg{number}": _U32 for number in range(32)},
    "%gridid": _U64,
    "%is_explicit_cluster": TYPES["pred"],
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
    cluster: tuple[int, int, int] = (1, 1, 1)
    is_cluster: bool = False
    """Whether the kernel asks for clusters; without, each block is one of its own."""

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
        """Return (x, y, z) of a block by its number in the grid; the blocks of a cluster have numbers in a row."""
        x, y, z = (int(self.block_axis(np.array([number]), axis)[0]) for axis in range(3))
        return x, y, z

    @property
    def cluster_blocks(self) -> int:
        """Blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]

    def block_axis(self, number: Array, axis: int) -> Array:
        """Return one coordinate of blocks by their numbers in the grid."""
        return self.cluster_axis(number, axis) * self.cluster[axis] + self.rank_axis(number, axis)

    def cluster_axis(self, number: Array, axis: int) -> Array:
        """Return one coordinate of the blocks' clusters."""
        return _axis(
            number // self.cluster_blocks, [n // c for n, c in zip(self.grid, self.cluster, strict=True)], axis
        )

    def rank_axis(self, number: Array, axis: int) -> Array:
        """Return one coordinate of blocks in their cluster."""
        return _axis(number % self.cluster_blocks, self.cluster, axis)

    def thread_index(self, number: int) -> tuple[int, int, int]:
        """Return (x, y, z) of a thread by its number in the block."""
        x, y, _ = self.block
        return number % x, number // x % y, number // (x * y)


def _axis(number: Array, sizes: Sequence[int], axis: int) -> Array:
    for size in sizes[:axis]:
        number = number // size
    return number % sizes[axis] if axis < 2 else number


def _uint(value: int) -> Array:
    return np.array([value & 0xFFFFFFFF], np.uint32)


def special_values(name: str, shape: Shape, first_block: int, blocks: int) -> Array:
    """Return the values for the threads of `blocks` blocks from `first_block`, or shape (1,) where all agree."""
    stem, _, axis = name[1:].partition(".")
    if axis:
        if axis == "w":
            return _uint(0)
        place = "xyz".index(axis)
        if stem == "ntid":
            return _uint(shape.block[place])
        counts = {
            "nctaid": shape.grid[place],
            "cluster_nctaid": shape.cluster[place],
            "nclusterid": shape.grid[place] // shape.cluster[place],
        }
        if stem in counts:
            return _uint(counts[stem])
        if stem == "tid":
            if shape.block[place] == 1:
                return _uint(0)
            index = _axis(np.arange(shape.threads, dtype=np.int64), shape.block, place)
            return np.tile(index.astype(np.uint32), blocks)
        of_block: dict[str, tuple[int, Callable[[Array, int], Array]]] = {
            "ctaid": (shape.grid[place], shape.block_axis),
            "clusterid": (shape.grid[place] // shape.cluster[place], shape.cluster_axis),
            "cluster_ctaid": (shape.cluster[place], shape.rank_axis),
        }
        most, find = of_block[stem]
        if most == 1:
            return _uint(0)
        index = find(np.arange(first_block, first_block + blocks, dtype=np.int64), place).astype(np.uint32)
        return index if blocks == 1 else np.repeat(index, shape.threads)
    if stem == "is_explicit_cluster":
        return np.array([shape.is_cluster])
    if stem == "cluster_ctarank":
        if shape.cluster_blocks == 1:
            return _uint(0)
        rank = np.arange(first_block, first_block + blocks) % shape.cluster_blocks
        return np.repeat(rank.astype(np.uint32), shape.threads)
    if stem in ("smid", "gridid") or stem.startswith("envreg"):
        return np.zeros(1, SPECIAL_TYPES[name].dtype)
    plain = {
        "nsmid": 1,
        "nwarpid": 64,
        "dynamic_smem_size": shape.shared_total - shape.shared_static,
        "total_smem_size": shape.shared_total,
        "aggr_smem_size": shape.shared_total,
        "cluster_nctarank": shape.cluster_blocks,
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
