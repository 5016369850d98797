"""grid_sample_backward of bilinear images: a block has x and the sums of what its tile touches in shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    Workspace,
    Zero,
    refusal_of_threads,
)

if TYPE_CHECKING:
    from ptxrt.ops._grid_sample import GridSampleBackwardDescriptor

__all__ = ["FAMILY", "HipTiledBackward", "HipTiledBackwardConfig", "TiledBackward", "TiledBackwardConfig", "summed"]

_GRADIENTS = "const T* dout_ptr, const T* input_ptr, const T* grid_ptr, f32* sums_ptr, T* dgrid_ptr"
_BOX = "i32 wide, i32 space, i32 side, u32 padding, u32 align"
_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
_POINTS = {"ptx": 6, "hip": 4}  # of a thread
_THREADS = 512  # at most
_MOST = 5952  # pixels of a box in HIP
FAMILY = KernelFamily(
    "grid_sample_tiled_backward",
    ("f32", "f16", "bf16"),
    {
        "grid_sample_tiled_backward": Role(f"{_GRADIENTS}, {_BOX}, {_SIZES}", hip=True, target=90),
        "grid_sample_tiled_backward_collect": Role(
            "const f32* sums_ptr, T* dinput_ptr, u64 count", hip=True, target=90, dtypes=("f16", "bf16")
        ),
    },
    unnamed=None,
    op="grid_sample",
)


@dataclass(frozen=True)
class TiledBackwardConfig(Config):
    """Knobs: threads of a block, its tile's width of ``32 << wide`` points, and KiB of its shared memory."""

    threads: int
    wide: int
    kib: int

    @classmethod
    def heuristic(cls, problem: GridSampleBackwardDescriptor) -> TiledBackwardConfig:
        """Four blocks a multiprocessor."""
        return cls(256, 1, 55)

    @classmethod
    def candidates(cls, problem: GridSampleBackwardDescriptor) -> Sequence[TiledBackwardConfig]:
        """Return larger and smaller tiles, too."""
        del problem
        return cls(256, 1, 55), cls(512, 1, 112), cls(128, 1, 27)


@dataclass(frozen=True)
class HipTiledBackwardConfig(TiledBackwardConfig):
    """The same in HIP, whose blocks have their shared memory whatever their threads."""

    @classmethod
    def heuristic(cls, problem: GridSampleBackwardDescriptor) -> HipTiledBackwardConfig:
        """As many threads as share it."""
        return cls(512, 1, 112)

    @classmethod
    def candidates(cls, problem: GridSampleBackwardDescriptor) -> Sequence[HipTiledBackwardConfig]:
        """Return that alone."""
        return (cls.heuristic(problem),)


class TiledBackward(Variant["GridSampleBackwardDescriptor", TiledBackwardConfig]):
    """Float atomics on sums in shared memory; each of these is added to those in global memory once."""

    name = "tiled"
    config_type: type[TiledBackwardConfig] = TiledBackwardConfig
    least = 1 << 19  # points

    def suits(self, problem: GridSampleBackwardDescriptor) -> bool:
        """Few channels, and many points, as many as pixels at least: of fewer a tile is far apart."""
        pixels, points = problem.ih * problem.iw, problem.positions
        dense = pixels <= points <= (2 if problem.c == 3 else 4) * pixels and min(problem.oh, problem.ow) >= 64
        return problem.c <= 3 and dense and problem.n * points >= self.least

    def schedule(
        self, problem: GridSampleBackwardDescriptor, config: TiledBackwardConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return zeros and one launch, of 16 bits two."""
        if problem.way != "bilinear" or not problem.packed or problem.dtype.name not in FAMILY.dtypes:
            return Refusal(f"takes {', '.join(FAMILY.dtypes)}, contiguous images, bilinear alone")
        if 32 << min(config.wide, 32) > _THREADS:
            return Refusal(f"takes tiles up to {_THREADS} wide")
        if refusal := refusal_of_threads(config.threads, 32 << config.wide, _THREADS):
            return refusal
        each = 4 + 2 * (problem.dtype.size if self.language == "ptx" else 2)
        space = min(config.kib << 10, limits.max_shared_bytes) // each // 4 * 4
        nbytes = each * space
        if self.language == "hip":  # there shared memory is the kernel's own
            space, nbytes = min(space, _MOST), 0
        height = _POINTS[self.language] * (config.threads // 32 >> config.wide)
        tiles = -(-problem.ow // (32 << config.wide)) * -(-problem.oh // height)
        kernel = FAMILY.kernel("grid_sample_tiled_backward", problem.dtype, self.language)
        # A box that is cut is wider than high by as much as its tile: as much of it is left on every side.
        more_columns = (32 << config.wide) - height
        side = (more_columns + math.isqrt(more_columns**2 + 4 * space)) // 2
        more = (config.wide, space, max((side - 4) // 8 * 8, 0) + 4, *problem.padding, *problem.sizes)

        def add(sums: Argument) -> Launch:
            arguments = ("grad_out", "x", "grid", sums, "grad_grid", *more)
            return Launch(kernel, (tiles, 1, problem.n), config.threads, arguments, nbytes)

        return summed(problem, self.language, add)


class HipTiledBackward(TiledBackward):
    """The same in HIP."""

    config_type = HipTiledBackwardConfig
    least = 1 << 20

    def __init__(self) -> None:
        super().__init__("hip")


def summed(problem: GridSampleBackwardDescriptor, language: str, add: Callable[[Argument], Launch]) -> Schedule:
    """Return zeros, the launch that adds to sums in the layout of x, and of 16 bits, one that rounds these."""
    workspace, count, guarantee = Workspace(), math.prod(problem.shape), problem.guarantee(atomics=True)
    if problem.dtype.size > 2:
        return Schedule((Zero("grad_input"), add("grad_input")), guarantee)
    sums = workspace.region("sums", "f32", count)
    kernel = FAMILY.kernel("grid_sample_tiled_backward_collect", problem.dtype, language)
    collect = Launch(kernel, (-(-count // 1024),), 256, (sums, "grad_input", count))
    return Schedule((Zero(sums), add(sums), collect), guarantee, workspace)
