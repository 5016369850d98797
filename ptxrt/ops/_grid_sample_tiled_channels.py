"""grid_sample_backward for many channels: a block has the sums of what its tile touches in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxrt.ops._grid_sample_tiled_backward import summed
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
    parameter_type,
    refusal_of_threads,
)

if TYPE_CHECKING:
    from ptxrt.ops._grid_sample import GridSampleBackwardDescriptor

__all__ = ["FAMILY", "TiledChannels"]

_THREADS = 512  # of a block at most
_UNALIGNED = 48  # bytes in front of the first multiple of 64
_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
_MODE = "u32 padding, u32 align"
_GRADIENTS = "const T* dout_ptr, const T* input_ptr, const T* grid_ptr, P* sums_ptr, T* dgrid_ptr"
FAMILY = KernelFamily(
    "grid_sample_tiled_channels",
    ("f32", "f16", "bf16", "f64"),
    {"grid_sample_tiled_backward_channels": Role(f"{_GRADIENTS}, i32 pixels, i32 side, {_MODE}, {_SIZES}")},
    unnamed=None,
    targets=ROUNDING_TARGETS,
    op="grid_sample",
)


@dataclass(frozen=True)
class TiledChannelsConfig(Config):
    """Knobs: threads of a block, and KiB of its shared memory."""

    threads: int
    kib: int

    def layout(self, problem: GridSampleBackwardDescriptor, limits: Limits) -> tuple[int, int]:
        """Return the shared memory in bytes, and how many pixels it holds beside what each thread takes."""
        nbytes, each = min(self.kib << 10, limits.max_shared_bytes), 64 + 4 * parameter_type(problem.dtype).size
        return nbytes, (nbytes - _UNALIGNED - self.threads * each) // 64

    @classmethod
    def heuristic(cls, problem: GridSampleBackwardDescriptor) -> TiledChannelsConfig:
        """Two blocks a multiprocessor."""
        del problem
        return cls(512, 112)

    @classmethod
    def candidates(cls, problem: GridSampleBackwardDescriptor) -> Sequence[TiledChannelsConfig]:
        """Return smaller blocks, too."""
        del problem
        return cls(512, 112), cls(256, 55)


class TiledChannels(Variant["GridSampleBackwardDescriptor", TiledChannelsConfig]):
    """Float atomics on sums in shared memory, channels side by side; these are added to grad_input."""

    name = "tiled_channels"
    config_type = TiledChannelsConfig

    def suits(self, problem: GridSampleBackwardDescriptor) -> bool:
        """Many channels, and as many points as pixels at least; of f32 not many more, which `channels_last` does."""
        pixels, points = problem.ih * problem.iw, problem.positions
        large = problem.n * points >= 1 << 16 and min(problem.oh, problem.ow) >= 32
        dense = pixels <= points and (problem.dtype.name == "f64" or points < 4 * pixels)
        return problem.c >= 16 and dense and large

    def schedule(
        self, problem: GridSampleBackwardDescriptor, config: TiledChannelsConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return zeros and one launch."""
        if problem.way != "bilinear" or not problem.packed:
            return Refusal("takes contiguous, bilinear images alone")
        if refusal := refusal_of_threads(config.threads, 32, _THREADS):
            return refusal
        nbytes, pixels = config.layout(problem, limits)
        if pixels < 2:
            return Refusal(f"{nbytes} bytes of shared memory are too few for {config.threads} threads")
        kernel = FAMILY.kernel("grid_sample_tiled_backward_channels", problem.dtype, self.language)
        tiles = -(-problem.ow // 32) * -(-problem.oh // (config.threads // 32))
        more = (pixels, math.isqrt(pixels) // 2 * 2 or 2, *problem.padding, *problem.sizes)

        def add(sums: Argument) -> Launch:
            arguments = ("grad_out", "x", "grid", sums, "grad_grid", *more)
            return Launch(kernel, (tiles, 1, problem.n), config.threads, arguments, nbytes)

        return summed(problem, self.language, add)
