"""How batch_norm in training runs channels-last arrays of few rows: a block holds all of them. HIP alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Refusal, Role, Schedule, refusal_of_threads

__all__ = ["FAMILY", "WholeConfig", "whole", "worth"]

_SIZES = "u32 rows, u32 channels, P eps, u32 adding"
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
_FEW_ROWS, _SOME_ROWS = 1 << 10, 1 << 11
_FEW_BLOCKS, _MANY_BLOCKS = 32, 256
_MOST_BYTES = 6 << 20  # of an array


def _held(problem: Any) -> int:
    """Return how many rows a thread has room for."""
    return 4 if problem.arrays == 2 and problem.dtype.size == 2 else 8


def worth(problem: Any) -> bool:
    """Return whether that is faster than tickets, as measured on an H200.

    Rows of channels are 16 bytes in a block, half of a sector, so many rows are slow; in the forward, where others read
    as little, more so. Few blocks leave a GPU idle, unless nothing takes long.
    """
    rows, blocks = problem.batch, problem.channels // problem.vector
    fits = problem.channels % problem.vector == 0 and rows <= _MOST_THREADS * _held(problem)
    if problem.arrays == 1:
        fits = fits and rows <= _SOME_ROWS and blocks <= _MANY_BLOCKS
    few = problem.elements * problem.dtype.size <= _MOST_BYTES
    return bool(fits and few and (blocks >= _FEW_BLOCKS or rows <= _FEW_ROWS))


@dataclass(frozen=True)
class WholeConfig(Config):
    """Knobs of a block that holds all rows: its threads, a power of two."""

    threads: int

    @classmethod
    def heuristic(cls, problem: Any) -> WholeConfig:
        """As few as hold the rows, of which one block more has room."""
        return cls(_MOST_THREADS // 2 if problem.batch <= _MOST_THREADS // 2 * _held(problem) else _MOST_THREADS)

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[WholeConfig]:
        """Return both."""
        return cls(_MOST_THREADS // 2), cls(_MOST_THREADS)


def whole(problem: Any, config: WholeConfig, arrays: tuple[Argument, ...], *scalars: Argument) -> Schedule | Refusal:
    """Return the launch of the entry that takes such arrays and, after the others, such scalars."""
    if problem.hw > 1:
        return Refusal("is for channels that lie side by side")
    if problem.channels % problem.vector:
        return Refusal(f"channels = {problem.channels} are no vectors of {problem.vector}")
    least = 32 * problem.vector
    if refusal := refusal_of_threads(config.threads, least, _MOST_THREADS):
        return refusal
    if config.threads & config.threads - 1:
        return Refusal(f"threads = {config.threads} is no power of two")
    most = config.threads * _held(problem)
    if problem.batch > most:
        return Refusal(f"{problem.batch} rows are more than the {most} that {config.threads} threads hold")
    if problem.channels >> 31:
        return Refusal(f"channels = {problem.channels} is above {(1 << 31) - 1}")
    adding = (config.threads // problem.vector).bit_length() - 1
    launch = Launch(
        FAMILY.kernel(f"{problem.op}_whole", problem.dtype, "hip"),
        (problem.channels // problem.vector,),
        config.threads,
        (*arrays, problem.batch, problem.channels, problem.eps, adding, *scalars),
    )
    return problem.without_statistics or Schedule((launch,), problem.guarantee)
