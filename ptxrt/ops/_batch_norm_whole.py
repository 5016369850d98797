"""How batch_norm in training runs channels-last arrays of few rows: a block holds all of them. HIP alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Refusal, Role, Schedule, refusal_of_threads

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

_MOST_THREADS = 512
_GROUP = 32  # threads, at least, that add up a channel
_CHOICES = ((256, 4), (256, 2), (512, 2), (256, 1), (512, 1))  # threads and vectors of a block, the fastest first
_FEW_ROWS, _SOME_ROWS, _MANY_ROWS = 1 << 9, 1 << 10, 1 << 11
_FEW_VECTORS = 1 << 7  # across all channels


def _most_rows(problem: Any, config: WholeConfig) -> int:
    """Return how many rows a block's threads have room for."""
    one, both = {2: (8, 4), 8: (8, 8)}.get(problem.dtype.size, (16, 8))
    return config.threads // config.across * (both if problem.arrays == 2 else one)


def worth(problem: Any) -> bool:
    """Return whether that is faster than tickets and several launches, as measured on an H200."""
    config, rows = WholeConfig.heuristic(problem), problem.batch
    blocks = problem.channels // (problem.vector * config.across)
    if problem.channels % problem.vector or rows > _most_rows(problem, config):
        return False
    if rows > _SOME_ROWS and rows >= 128 * blocks:  # so few blocks leave a GPU idle
        return False
    if rows < _FEW_ROWS and blocks > (256 if problem.dtype.size == 2 else 512):  # blocks of little work each
        return False
    # Rows of 16 bytes are half of a sector, and what others of a block's channels need comes twice.
    return config.across > 1 or (problem.elements <= 1 << 21 and (problem.arrays == 2 or rows <= _MANY_ROWS))


@dataclass(frozen=True)
class WholeConfig(Config):
    """Knobs of blocks that hold all rows of their channels.

    Attributes
    ----------
    threads
        Of a block, a power of two.
    across
        Vectors of 16 bytes, side by side, of which a block has the channels: 1, 2 or 4.
    """

    threads: int
    across: int

    @classmethod
    def heuristic(cls, problem: Any) -> WholeConfig:
        """Return the first that holds the rows; where 16 bits have few vectors, they are for as many blocks."""
        few = problem.dtype.size == 2 and problem.channels <= _FEW_VECTORS * problem.vector
        return next(config for config in cls.candidates(problem) if config.across == 1 or not few)

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[WholeConfig]:
        """Return all that hold the rows."""
        configs = tuple(cls(*choice) for choice in _CHOICES)
        return tuple(config for config in configs if not _refusal(problem, config)) or configs[-1:]


def _refusal(problem: Any, config: WholeConfig) -> Refusal | None:
    if problem.hw > 1:
        return Refusal("is for channels that lie side by side")
    if config.across not in (1, 2, 4):
        return Refusal(f"blocks have 1, 2 or 4 vectors of channels, not {config.across}")
    if problem.channels % (problem.vector * config.across):
        return Refusal(f"channels = {problem.channels} are not of whole blocks of {problem.vector * config.across}")
    if refusal := refusal_of_threads(config.threads, _GROUP * problem.vector * config.across, _MOST_THREADS):
        return refusal
    if config.threads & config.threads - 1:
        return Refusal(f"threads = {config.threads} is no power of two")
    if problem.batch > (most := _most_rows(problem, config)):
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
        (problem.channels // channels,),
        config.threads,
        (*arrays, problem.batch, problem.channels, problem.eps, adding, wide, *scalars),
    )
    return Schedule((launch,), problem.guarantee)
