"""grid_sample in shared memory: a block has a tile of the result, and there what that touches of the image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
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

__all__ = ["FAMILY", "Tiled"]

_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
FAMILY = KernelFamily(
    "grid_sample_tiled",
    ("f32", "f16", "bf16", "f64"),
    {
        "grid_sample_tiled": Role(
            f"const T* input_ptr, const T* grid_ptr, T* output_ptr, i32 space, i32 side, {_SIZES}"
        ),
    },
    unnamed=None,
    targets=ROUNDING_TARGETS,
    op="grid_sample",
)

_WIDTH = 64  # of a tile


@dataclass(frozen=True)
class TileConfig(Config):
    """Knobs: threads of a block, KiB of its shared memory, and the channels that it takes."""

    threads: int
    kib: int
    channels: int

    @classmethod
    def heuristic(cls, problem: GridSampleDescriptor) -> TileConfig:
        """Several blocks a multiprocessor of the largest devices, for f64 one."""
        return cls(1024, 220, 64) if problem.dtype.name == "f64" else cls(512, 60, 32)

    @classmethod
    def candidates(cls, problem: GridSampleDescriptor) -> Sequence[TileConfig]:
        """Return both, of any type."""
        del problem
        return cls(512, 60, 32), cls(1024, 220, 64)


class Tiled(Variant["GridSampleDescriptor", TileConfig]):
    """A block for each tile of the result and part of the channels."""

    name = "tiled"
    config_type = TileConfig

    def suits(self, problem: GridSampleDescriptor) -> bool:
        """Many points that are closer together than pixels; or very many, of few channels of f32."""
        points = problem.n * problem.positions
        dense = problem.positions >= 4 * problem.ih * problem.iw and points * problem.c >= 1 << 22
        flat = problem.dtype.name == "f32" and problem.c <= 8 and points >= 1 << 20
        return min(problem.oh, problem.ow) >= _WIDTH and (dense or flat)

    def schedule(self, problem: GridSampleDescriptor, config: TileConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        size = problem.dtype.size
        nbytes, vector = min(config.kib << 10, limits.max_shared_bytes), 16 // size
        space = nbytes // size
        side = math.isqrt(space) // vector * vector  # the width of a box that does not fit
        points = 4 if problem.dtype.name == "f64" else 8  # of a thread
        tiles = -(-problem.ow // _WIDTH) * -(-problem.oh // (config.threads // _WIDTH * points))
        grid = (tiles, -(-problem.c // config.channels), problem.n)
        arguments: tuple[Argument, ...] = ("x", "grid", "out", space, side, *problem.sizes)
        kernel = FAMILY.kernel("grid_sample_tiled", problem.dtype, self.language)
        return Schedule((Launch(kernel, grid, config.threads, arguments, nbytes),), problem.guarantee())
