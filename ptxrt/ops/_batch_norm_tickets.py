"""How batch_norm in training writes a channel while a cache still holds what was read of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxrt.ops._batch_norm_choice import in_vectors
from ptxrt.ops.framework import (
    Argument,
    Config,
    KernelFamily,
    Launch,
    Refusal,
    Role,
    Schedule,
    Tickets,
    Workspace,
    in_slices,
)

__all__ = ["FAMILY", "TicketsConfig", "in_tickets"]

FAMILY = KernelFamily(
    "batch_norm_tickets",
    ("f32", "f16", "bf16", "f64"),
    {
        "batch_norm_tickets": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, P* mean_ptr, P* var_ptr, P*? rmean_ptr, "
            "P*? rvar_ptr, f64* sums_ptr, u32* tickets_ptr, u32 batch, u32 channels, u32 hw, P eps, P momentum, "
            "u32 slices, u32 values, u32 tickets, u32 lead",
            hip=True,
            ptx=False,
        ),
        "batch_norm_backward_tickets": Role(
            "const T* in_ptr, const T* go_ptr, T* gi_ptr, P*? gw_ptr, P*? gb_ptr, const P*? w_ptr, const P*? mean_ptr, "
            "const P*? var_ptr, f64* sums_ptr, u32* tickets_ptr, u32 batch, u32 channels, u32 hw, P eps, u32 slices, "
            "u32 values, u32 tickets, u32 lead",
            hip=True,
            ptx=False,
        ),
    },
    op="batch_norm",
)

_STEP = 1 << 12  # of the values of a slice
_MOST_SLICES = 1 << 10
_FEW, _SOME, _MANY = 2 << 20, 8 << 20, 20 << 20  # values of all channels
_MOST_VALUES = (1 << 31) - 1  # of a channel


def _of_16_bits(problem: Any) -> tuple[int, int]:
    """Return a slice's steps, and the MiB that sums are ahead."""
    values = problem.channels * problem.count
    if values > _MANY:
        return 8, 32
    if problem.arrays == 1:
        return (4, 32) if values > _SOME and in_vectors(problem) else (2, 8)
    return (4, 32) if values > _FEW else (2, 16)


def _of_f32(problem: Any) -> tuple[int, int]:
    values, vectors = problem.channels * problem.count, in_vectors(problem)
    if problem.arrays == 1:
        return (4, 32) if values > _SOME and vectors else (2, 16)
    if not vectors and (problem.channels >= 768 or problem.hw < 16):
        return 4, 32
    return 2, 16 if values > _SOME else 32


def _of_f64(problem: Any) -> tuple[int, int]:
    return (4 if problem.arrays == 1 else 2), 32


@dataclass(frozen=True)
class TicketsConfig(Config):
    """Knobs of tickets: about the values of a slice, and about how many bytes the sums are ahead of the output."""

    values: int
    lag: int

    @classmethod
    def heuristic(cls, problem: Any) -> TicketsConfig:
        """As measured on an H200: larger slices where values are many."""
        values, lag = {2: _of_16_bits, 4: _of_f32, 8: _of_f64}[problem.dtype.size](problem)
        return cls(values * _STEP, lag << 20)

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[TicketsConfig]:
        """Return what was fastest for one problem or another."""
        return tuple(cls(values * _STEP, lag << 20) for values, lag in ((2, 8), (2, 16), (2, 32), (4, 32), (8, 32)))


def in_tickets(
    problem: Any, config: TicketsConfig, arrays: tuple[Argument, ...], scalars: tuple[Argument, ...]
) -> Schedule | Refusal:
    """Return the schedule, of an entry that takes such arrays and, after the sizes, such scalars."""
    if problem.count > _MOST_VALUES:
        return Refusal(f"a channel has {problem.count} values, above {_MOST_VALUES}")
    slices, values = in_slices(problem.count, config.values, _MOST_SLICES, _STEP)
    lag = -(-config.lag // (problem.arrays * problem.count * problem.dtype.size))
    tickets = Tickets(problem.channels, slices, lag)
    workspace = Workspace()
    rows = problem.channels * (slices + 1)
    sums = workspace.region("sums", "f64", 2 * problem.arrays * problem.parts * rows)
    counters, zero = tickets.region(workspace)
    launch = Launch(
        FAMILY.kernel(f"{problem.op}_tickets", problem.dtype, "hip"),
        (tickets.blocks,),
        256,
        (*arrays, sums, counters, *problem.sizes, *scalars, slices, values, *tickets.scalars),
    )
    return problem.without_statistics or Schedule((zero, launch), problem.guarantee, workspace)
