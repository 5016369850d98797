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
    refusal_of_threads,
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
_THREADS = 512  # at most
_MANY = 1 << 20  # points of a problem
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
        """Of few channels two blocks a multiprocessor, or smaller ones of few points; of more, parts of them."""
        if problem.c > _FEW_CHANNELS:
            return cls(256, 36, 8 if problem.positions < 4 * problem.ih * problem.iw else 16)
        return cls(512, 90, 4) if problem.n * problem.positions >= _MANY else cls(256, 74, 4)

    @classmethod
    def candidates(cls, problem: GridSampleDescriptor) -> Sequence[TiledCellsConfig]:
        """Return smaller boxes and tiles, too."""
        best = cls.heuristic(problem)
        if problem.c > _FEW_CHANNELS:
            return best, replace(best, channels=24 - best.channels), cls(512, 72, best.channels)
        return cls(512, 90, 4), cls(256, 74, 4), cls(256, 48, 4)


class TiledCells(Variant["GridSampleDescriptor", TiledCellsConfig]):
    """A block for each tile of the result and part of the channels; a tap of four channels is one load."""

    name = "tiled_cells"
    config_type = TiledCellsConfig

    def suits(self, problem: GridSampleDescriptor) -> bool:
        """Many points of three or four channels, or many values of channels that leave few places empty."""
        points = problem.n * problem.positions
        few = problem.c in (3, 4) and points >= 1 << 18
        large = problem.c > 2 * _FEW_CHANNELS and problem.c % 4 in (0, 3) and points * problem.c >= 1 << 22
        return min(problem.oh, problem.ow) >= _WIDTH and (few or large)

    def schedule(self, problem: GridSampleDescriptor, config: TiledCellsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        if refusal := refusal_of_threads(config.threads, 64, _THREADS):
            return refusal
        if config.channels % 4 or problem.n * problem.c >> 31:
            return Refusal("takes channels by fours, and fewer than 2**31 of all images")
        nbytes = min(config.kib << 10, limits.max_shared_bytes - _OWN)
        rows = config.threads // (_WIDTH // 4) * (_POINTS // 4)  # of a tile
        parts = -(-problem.c // config.channels)
        grid = (-(-problem.ow // _WIDTH), -(-problem.oh // rows), problem.n * parts)
        arguments: tuple[Argument, ...] = ("x", "grid", "out", nbytes // _CELL, config.channels, *problem.sizes)
        kernel = FAMILY.kernel("grid_sample_tiled_cells", problem.dtype, self.language)
        return Schedule((Launch(kernel, grid, config.threads, arguments, nbytes, _OWN),), problem.guarantee())
