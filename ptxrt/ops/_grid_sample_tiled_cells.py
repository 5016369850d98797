"""grid_sample in shared memory, four channels side by side there: 16 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ptxrt.ops.framework import (
    Argument,
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Role,
    Schedule,
    Variant,
)

if TYPE_CHECKING:
    from ptxrt.ops._grid_sample import GridSampleDescriptor

__all__ = ["FAMILY", "TiledCells"]

_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
_POINTS = 8  # of a thread
FAMILY = KernelFamily(
    "grid_sample_tiled_cells",
    ("f16", "bf16"),
    {
        "grid_sample_tiled_cells": Role(
            f"const T* input_ptr, const T* grid_ptr, T* output_ptr, i32 space, i32 part, {_SIZES}", target=80
        ),
    },
    unnamed=None,
    op="grid_sample",
)

_FEW_CHANNELS = 4
_WIDTH = 64  # of a tile
_CELL = 8  # bytes
_OWN = 2 << 10  # bytes of shared memory, at most, that the entries have beside their cells


@dataclass(frozen=True)
class TiledCellsConfig(Config):
    """Knobs: threads of a block, KiB of its shared memory, and the channels that it takes, a multiple of 4."""

    threads: int
    kib: int
    channels: int

    @classmethod
    def heuristic(cls, problem: GridSampleDescriptor) -> TiledCellsConfig:
        """As many blocks as a multiprocessor of the largest devices has registers for: two, or four smaller ones."""
        return cls(512, 96, 16) if problem.c <= _FEW_CHANNELS else cls(256, 54, 16)

    @classmethod
    def candidates(cls, problem: GridSampleDescriptor) -> Sequence[TiledCellsConfig]:
        """Return smaller boxes and tiles, too."""
        best = cls.heuristic(problem)
        smaller = cls(256, 54, 8) if problem.c > _FEW_CHANNELS else replace(best, threads=256, kib=54)
        return best, replace(best, kib=best.kib * 3 // 4), smaller


class TiledCells(Variant["GridSampleDescriptor", TiledCellsConfig]):
    """A block for each tile of the result and part of the channels; a tap of four channels is one load."""

    name = "tiled_cells"
    config_type = TiledCellsConfig

    def suits(self, problem: GridSampleDescriptor) -> bool:
        """Very many points of three or four channels."""
        wide = min(problem.oh, problem.ow) >= _WIDTH
        return wide and problem.c in (3, 4) and problem.n * problem.positions >= 1 << 20

    def schedule(self, problem: GridSampleDescriptor, config: TiledCellsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        if config.threads % 64 or config.channels % 4 or problem.n * problem.c >> 31:
            return Refusal("takes pairs of warps, channels by fours, and fewer than 2**31 of all images")
        nbytes = min(config.kib << 10, limits.max_shared_bytes - _OWN)
        rows = config.threads // (_WIDTH // 4) * (_POINTS // 4)  # of a tile
        parts = -(-problem.c // config.channels)
        grid = (-(-problem.ow // _WIDTH), -(-problem.oh // rows), problem.n * parts)
        arguments: tuple[Argument, ...] = ("x", "grid", "out", nbytes // _CELL, config.channels, *problem.sizes)
        kernel = FAMILY.kernel("grid_sample_tiled_cells", problem.dtype, self.language)
        return Schedule((Launch(kernel, grid, config.threads, arguments, nbytes, _OWN),), problem.guarantee())
