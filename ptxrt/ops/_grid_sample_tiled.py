"""grid_sample in shared memory: a block has a tile of the result, and there what that touches of the image."""

from __future__ import annotations

import math
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

__all__ = ["FAMILY", "Tiled"]

_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
FAMILY = KernelFamily(
    "grid_sample_tiled",
    ("f32", "f16", "bf16", "f64"),
    {
        "grid_sample_tiled": Role(
            f"const T* input_ptr, const T* grid_ptr, T* output_ptr, i32 space, i32 most, i32 part, {_SIZES}", target=80
        ),
    },
    unnamed=None,
    op="grid_sample",
)

_WIDTH = 64  # of a tile
_THREADS = 512  # at most
_ENOUGH_BLOCKS = 256
_FEW_CHANNELS = 8


@dataclass(frozen=True)
class TileConfig(Config):
    """Knobs: threads of a block, KiB of its shared memory, how many boxes fit there at least, the channels it takes."""

    threads: int
    kib: int
    boxes: int
    channels: int

    @classmethod
    def heuristic(cls, problem: GridSampleDescriptor) -> TileConfig:
        """Three blocks a multiprocessor of the largest devices; boxes of as many channels as are used at a time."""
        blocks = problem.n * _tiles(problem, 512)
        channels = 16 if blocks * -(-problem.c // 16) >= _ENOUGH_BLOCKS else 8
        boxes = min(problem.c, 4 if problem.dtype.size == 2 else 2)
        return cls(512, 72 if problem.c <= _FEW_CHANNELS else 54, boxes, channels)

    @classmethod
    def candidates(cls, problem: GridSampleDescriptor) -> Sequence[TileConfig]:
        """Return smaller tiles, too, and one with larger boxes."""
        best = cls.heuristic(problem)
        return best, replace(best, threads=256, kib=36), replace(best, kib=108)


def _points(problem: GridSampleDescriptor) -> int:
    """Return how many a thread has."""
    return 2 if problem.dtype.name == "f64" else 4


def _tiles(problem: GridSampleDescriptor, threads: int) -> int:
    """Return how many tiles an image of the result has."""
    return -(-problem.ow // _WIDTH) * -(-problem.oh // (threads // _WIDTH * _points(problem)))


class Tiled(Variant["GridSampleDescriptor", TileConfig]):
    """A block for each tile of the result and part of the channels."""

    name = "tiled"
    config_type = TileConfig

    def suits(self, problem: GridSampleDescriptor) -> bool:
        """Points that are closer together than pixels; or very many, of few channels; or many values, but of f64."""
        points, size = problem.n * problem.positions, problem.dtype.size
        many = points * problem.c >= 1 << 22
        dense = many and problem.positions >= 4 * problem.ih * problem.iw
        flat = size <= 4 and problem.c <= _FEW_CHANNELS and points >= 1 << 20
        large = points * problem.c >= {2: 4, 4: 6, 8: math.inf}[size] * (1 << 20)
        return min(problem.oh, problem.ow) >= _WIDTH and (dense or flat or large)

    def schedule(self, problem: GridSampleDescriptor, config: TileConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        if refusal := refusal_of_threads(config.threads, _WIDTH, _THREADS):
            return refusal
        size = problem.dtype.size
        nbytes = min(config.kib << 10, limits.max_shared_bytes)
        space = nbytes // size
        grid = (_tiles(problem, config.threads), -(-problem.c // config.channels), problem.n)
        arguments: tuple[Argument, ...] = ("x", "grid", "out", space, space // config.boxes, config.channels)
        arguments += problem.sizes
        kernel = FAMILY.kernel("grid_sample_tiled", problem.dtype, self.language)
        return Schedule((Launch(kernel, grid, config.threads, arguments, nbytes),), problem.guarantee())
