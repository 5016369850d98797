"""grid_sample_backward for many channels: a block has the sums of what its tile touches in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Limits, Refusal, Role, Schedule, Variant, Zero

if TYPE_CHECKING:
    from ptxrt.ops._grid_sample import GridSampleBackwardDescriptor

__all__ = ["FAMILY", "TiledChannels"]

_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
_GRADIENTS = "const T* dout_ptr, const T* input_ptr, const T* grid_ptr, T* dinput_ptr, T* dgrid_ptr"
FAMILY = KernelFamily(
    "grid_sample_tiled_channels",
    ("f32", "f64"),  # in 16 bits, atomics on grad_input would round at each addition
    {"grid_sample_tiled_backward_channels": Role(f"{_GRADIENTS}, i32 shift, i32 pixels, i32 side, {_SIZES}")},
    unnamed=None,
    op="grid_sample",
)


@dataclass(frozen=True)
class TiledChannelsConfig(Config):
    """Knobs: threads of a block, KiB of its shared memory, and the channels side by side, as a power of two."""

    threads: int
    kib: int
    shift: int

    def layout(self, problem: GridSampleBackwardDescriptor, limits: Limits) -> tuple[int, int]:
        """Return the shared memory in bytes, and how many pixels it holds beside what each thread takes."""
        size, nbytes = problem.dtype.size, min(self.kib << 10, limits.max_shared_bytes)
        lanes = 1 << self.shift
        each = 16 + (5 + lanes) * size
        return nbytes, (nbytes - 16 - self.threads * each) // ((lanes + 1) * size)

    @classmethod
    def heuristic(cls, problem: GridSampleBackwardDescriptor) -> TiledChannelsConfig:
        """Two blocks a multiprocessor; of f64 more pixels or more channels, whichever there are more of."""
        few = problem.dtype.name == "f64" and problem.positions < 4 * problem.ih * problem.iw
        return cls(512, 110, 3 if few else 4)

    @classmethod
    def candidates(cls, problem: GridSampleBackwardDescriptor) -> Sequence[TiledChannelsConfig]:
        """Return 8 and 16 channels side by side."""
        del problem
        return cls(512, 110, 3), cls(512, 110, 4)


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
        if refusal := problem.not_plain(FAMILY):
            return refusal
        nbytes, pixels = config.layout(problem, limits)
        if pixels < 1:
            return Refusal(f"{nbytes} bytes of shared memory are too few for {config.threads} threads")
        kernel = FAMILY.kernel("grid_sample_tiled_backward_channels", problem.dtype, self.language)
        tiles = -(-problem.ow // 32) * -(-problem.oh // (config.threads // 32))
        arguments: tuple[Argument, ...] = (
            *("grad_out", "x", "grid", "grad_input", "grad_grid"),
            *(config.shift, pixels, math.isqrt(pixels)),
            *problem.sizes,
        )
        launch = Launch(kernel, (tiles, 1, problem.n), config.threads, arguments, nbytes)
        return Schedule((Zero("grad_input"), launch), problem.guarantee(atomics=True))
