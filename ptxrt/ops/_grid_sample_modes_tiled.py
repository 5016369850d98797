"""grid_sample's bicubic and volumes in shared memory: a block has a tile of the result, and what that touches there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxrt.ops._grid_sample_modes import SIZES
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

__all__ = ["FAMILY", "CellsConfig", "GeneralTiled", "HipCellsConfig", "HipGeneralTiled"]

_MODES = {"bicubic": "", "volume_bilinear": "volume_"}
_KINDS = {"bicubic": "bicubic images", "volume_bilinear": "bilinear volumes"}
FAMILY = KernelFamily(
    "grid_sample_modes_tiled",
    ("f32", "f16", "bf16"),
    {
        f"grid_sample_modes_tiled_{mode}": Role(
            f"const T* input_ptr, const T* grid_ptr, T* output_ptr, i32 space, i32 most, i32 part, {SIZES[sizes]}",
            hip=mode == "bicubic",
            target=80,
        )
        for mode, sizes in _MODES.items()
    },
    unnamed=None,
    op="grid_sample",
)

_POINTS = 4  # of a thread in PTX
_THREADS = 256  # at most
_OWN = 15 << 10  # bytes of shared memory, at most, that the entries in PTX have for points beside their cells
_HIP_KIB = 15  # of shared memory, for cells: AMD's devices have 64, for four blocks
_TILE, _HIP_TILE = (64, _POINTS), (32, 1)  # of an image: threads of a row, and the points of each, one below the other


@dataclass(frozen=True)
class CellsConfig(Config):
    """Knobs: threads of a block, KiB of its shared memory, and the channels that it takes, a multiple of 4."""

    threads: int
    kib: int
    channels: int

    @classmethod
    def heuristic(cls, problem: GridSampleDescriptor) -> CellsConfig:
        """As many channels as leave enough blocks, for two or more a multiprocessor of the largest devices.

        An image's boxes hold eight channels or twelve where neighbouring points are some pixels apart, which leaves a
        fifth of an H200's shared memory to its L1 cache, where boxes meet.
        """
        tiles = _tiles(problem, _THREADS, _TILE) * problem.n
        kib, blocks = (36, 512) if problem.volume else (72, 256)
        counts = (64, 32, 16) if problem.volume else (32, 16)
        enough = (count for count in counts if tiles * -(-problem.c // count) >= blocks)
        return cls(_THREADS, kib, next(enough, 8))

    @classmethod
    def candidates(cls, problem: GridSampleDescriptor) -> Sequence[CellsConfig]:
        """Return other parts of the channels and, of images, other boxes, too."""
        best = cls.heuristic(problem)
        sizes = (best.kib,) if problem.volume else (best.kib, 36, 100)
        every = (cls(_THREADS, kib, count) for kib in sizes for count in (best.channels, 8, 16, 32))
        return tuple(dict.fromkeys(every))


@dataclass(frozen=True)
class HipCellsConfig(CellsConfig):
    """The same in HIP, whose blocks have their shared memory whatever of it is used."""

    @classmethod
    def heuristic(cls, problem: GridSampleDescriptor) -> HipCellsConfig:
        """As many channels as leave enough blocks, for three a multiprocessor of the largest devices."""
        tiles = _tiles(problem, _THREADS, _HIP_TILE) * problem.n
        enough = (count for count in (64, 32, 16) if tiles * -(-problem.c // count) >= 1024)
        return cls(_THREADS, _HIP_KIB, next(enough, 8))

    @classmethod
    def candidates(cls, problem: GridSampleDescriptor) -> Sequence[HipCellsConfig]:
        """Return other parts of the channels, too."""
        best = cls.heuristic(problem)
        return tuple(dict.fromkeys(cls(_THREADS, _HIP_KIB, count) for count in (best.channels, 8, 16, 32)))


def _tiles(problem: GridSampleDescriptor, threads: int, tile: tuple[int, int]) -> int:
    """Return how many tiles a result has; `tile` is for images, as ``_TILE`` has it."""
    row, points = tile
    sides = (_POINTS, threads // 32, 32) if problem.volume else (threads // row * points, row)
    return math.prod(-(-length // side) for length, side in zip(problem.grid_shape[1:-1], sides, strict=True))


class GeneralTiled(Variant["GridSampleDescriptor", CellsConfig]):
    """A block for each tile of the result and part of the channels, bicubic or of volumes."""

    name = "general_tiled"
    config_type: type[CellsConfig] = CellsConfig
    modes: tuple[str, ...] = tuple(_MODES)
    tile = _TILE
    pixels: float = math.inf  # a plane has fewer
    own_kib = 0  # of shared memory for cells, where that is the kernel's own and not its launch's
    filled = 1 << 31  # cells of a box that a thread fills, at most: any number

    def suits(self, problem: GridSampleDescriptor) -> bool:
        """Many values, of as many channels as a cell has, and more than a tile of the result."""
        tile = (_POINTS, 8, 32) if problem.volume else (32, 64)
        wide = all(points >= side for points, side in zip(problem.grid_shape[1:-1], tile, strict=True))
        return wide and problem.c >= 4 and problem.n * problem.positions * problem.c >= 1 << 21

    def schedule(self, problem: GridSampleDescriptor, config: CellsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if problem.way not in self.modes or not problem.packed or problem.dtype.name not in FAMILY.dtypes:
            kinds = " or ".join(_KINDS[mode] for mode in self.modes)
            return Refusal(f"takes contiguous f32, f16 or bf16, {kinds} alone")
        if problem.ih * problem.iw >= self.pixels:
            return Refusal(f"takes planes of fewer than 2**{math.log2(self.pixels):.0f} pixels")
        row = 32 if problem.volume else self.tile[0]  # threads that a row of a tile has
        if refusal := refusal_of_threads(config.threads, row, _THREADS):
            return refusal
        if config.channels % 4:
            return Refusal(f"takes channels by fours, not {config.channels}")
        nbytes = min(config.kib << 10, self.own_kib << 10 or limits.max_shared_bytes - _OWN)
        space = nbytes // problem.dtype.size // (1 if problem.volume else 4)  # pixels, of a channel or of four
        grid = (_tiles(problem, config.threads, self.tile), -(-problem.c // config.channels), problem.n)
        most = min(space // 2 if problem.volume else space, self.filled * config.threads)  # of a box: two in turn
        arguments: tuple[Argument, ...] = ("x", "grid", "out", space, most, config.channels)
        arguments += (*problem.sizes, *problem.padding, *problem.strides)
        kernel = FAMILY.kernel(f"grid_sample_modes_tiled_{problem.way}", problem.dtype, self.language)
        dynamic = (0, 0) if self.own_kib else (nbytes, _OWN)
        return Schedule((Launch(kernel, grid, config.threads, arguments, *dynamic),), problem.guarantee())


class HipGeneralTiled(GeneralTiled):
    """The same in HIP, bicubic alone."""

    config_type = HipCellsConfig
    modes = ("bicubic",)
    tile = _HIP_TILE
    pixels = 1 << 30
    own_kib = _HIP_KIB
    filled = 4

    def __init__(self) -> None:
        super().__init__("hip")
