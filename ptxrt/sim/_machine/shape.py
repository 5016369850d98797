"""The shape of a launch: its blocks, their threads, and clusters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ptxrt.sim._text.types import Array

__all__ = ["Shape"]


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
    shared_reserved: int = 0
    """Bytes at the end of a block's shared memory that are not the kernel's own."""
    shared_dynamic: int = 0
    """Bytes of shared memory that the launch asks for."""

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

    def thread_axis(self, axis: int) -> Array:
        """Return one coordinate of all threads of a block, in the order of their numbers."""
        return _axis(np.arange(self.threads, dtype=np.int64), self.block, axis)

    def thread_index(self, number: int) -> tuple[int, int, int]:
        """Return (x, y, z) of a thread by its number in the block."""
        x, y, _ = self.block
        return number % x, number // x % y, number // (x * y)


def _axis(number: Array, sizes: Sequence[int], axis: int) -> Array:
    for size in sizes[:axis]:
        number = number // size
    return number % sizes[axis] if axis < 2 else number
