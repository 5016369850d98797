"""How batch_norm in training runs channels-last arrays of few rows: a block holds all of them. HIP alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Refusal, Role, Schedule

__all__ = ["FAMILY", "WholeConfig", "whole", "worth"]

_SIZES = "u32 rows, u32 channels, P eps, u32 adding, u32 wide"
FAMILY = KernelFamily(
    "batch_norm_whole",
    ("f32", "f16", "bf16", "f64"),
    {
        "batch_norm_whole": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, P* mean_ptr, P* var_ptr, P*? rmean_ptr, "
            f"P*? rvar_ptr, {_SIZES}, P momentum",
            hip=True,
            ptx=False,
        ),
        "batch_norm_backward_whole": Role(
            "const T* in_ptr, const T* go_ptr, T* gi_ptr, P*? gw_ptr, P*? gb_ptr, const P*? w_ptr, const P*? mean_ptr, "
            f"const P*? var_ptr, {_SIZES}",
            hip=True,
            ptx=False,
        ),
    },
    op="batch_norm",
    also=("batch_norm_backward",),
)

_THREADS, _ACROSS = (64, 128, 256, 512), (1, 2, 4)  # of a block: threads, and vectors
# Where it pays, measured on an H200: forward and backward, vectors of a block -> how many blocks there are at least;
# and rows, whatever blocks there are.
_LEAST_BLOCKS = {1: {1: 0, 2: 32, 4: 128}, 2: {1: 0, 2: 96, 4: 512}}
_SOME_ROWS, _MANY_ROWS, _SHORT_COLUMN = 1 << 10, 1 << 11, 128  # the last in bytes


def _each(problem: Any) -> int:
    """Return how many rows a thread has at most."""
    one, both = {2: (8, 4), 8: (8, 8)}.get(problem.dtype.size, (16, 8))
    return both if problem.arrays == 2 else one


def worth(problem: Any) -> bool:
    """Return whether that is faster than tickets and several launches, as measured on an H200."""
    config, rows = WholeConfig.heuristic(problem), problem.batch
    if _refusal(problem, config) or rows > max(_SOME_ROWS, 128 * config.blocks(problem)):
        return False  # so few blocks leave a GPU idle
    # Rows of 16 bytes are half of a sector, and what others of a block's channels need comes twice.
    few = problem.elements <= 1 << (19 if problem.dtype.size == 8 else 21)
    return config.across > 1 or (few and (problem.arrays == 2 or rows <= _MANY_ROWS))


@dataclass(frozen=True)
class WholeConfig(Config):
    """Knobs of blocks that hold all rows of their channels.

    Attributes
    ----------
    threads
        Of a block: 64, 128, 256 or 512.
    across
        Vectors of 16 bytes, side by side, of which a block has the channels: 1, 2 or 4.
    """

    threads: int
    across: int

    @classmethod
    def heuristic(cls, problem: Any) -> WholeConfig:
        """Return the fastest, as measured on an H200."""
        return cls.candidates(problem)[0]

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[WholeConfig]:
        """Return all that hold the rows: first many vectors, where there are blocks enough, and few threads."""
        every = (cls(threads, across) for threads in _THREADS for across in _ACROSS)
        holding = [config for config in every if not _refusal(problem, config)]
        holding.sort(key=lambda config: (config._slow(problem), -config.across, config.threads))
        return tuple(holding) or (cls(_THREADS[-1], 1),)

    def blocks(self, problem: Any) -> int:
        """Return how many there are."""
        count: int = problem.channels // (problem.vector * self.across)
        return count

    def _slow(self, problem: Any) -> bool:
        few = self.blocks(problem) < _LEAST_BLOCKS[problem.arrays][self.across]
        if self.across == 4 and problem.arrays == 2:  # of both arrays' rows registers are soon full
            few |= problem.batch * problem.dtype.size > _SHORT_COLUMN
        # Vectors of 16 bits are many channels, of which few threads have each.
        least, most = 128 if problem.dtype.size == 2 and self.across < 4 else 64, 512 if self.across == 2 else 256
        return few or not least <= self.threads <= most


def _refusal(problem: Any, config: WholeConfig) -> Refusal | None:
    if problem.hw > 1:
        return Refusal("is for channels that lie side by side")
    if config.across not in _ACROSS:
        return Refusal(f"blocks have 1, 2 or 4 vectors of channels, not {config.across}")
    if problem.channels % (problem.vector * config.across):
        return Refusal(f"channels = {problem.channels} are not of whole blocks of {problem.vector * config.across}")
    if config.threads not in _THREADS:
        return Refusal(f"blocks have 64, 128, 256 or 512 threads, not {config.threads}")
    if problem.batch > (most := config.threads // config.across * _each(problem)):
        return Refusal(f"{problem.batch} rows are more than the {most} that {config.threads} threads hold")
    if problem.channels >> 31:
        return Refusal(f"channels = {problem.channels} is above {(1 << 31) - 1}")
    return None


def whole(problem: Any, config: WholeConfig, arrays: tuple[Argument, ...], *scalars: Argument) -> Schedule | Refusal:
    """Return the launch of the entry that takes such arrays and, after the others, such scalars."""
    if refusal := problem.without_statistics or _refusal(problem, config):
        return refusal
    channels = problem.vector * config.across
    adding, wide = (count.bit_length() - 1 for count in (config.threads // channels, config.across))
    launch = Launch(
        FAMILY.kernel(f"{problem.op}_whole", problem.dtype, "hip"),
        (config.blocks(problem),),
        config.threads,
        (*arrays, problem.batch, problem.channels, problem.eps, adding, wide, *scalars),
    )
    return Schedule((launch,), problem.guarantee)
