"""How batch_norm runs problems of few values, which take as long as one thread waits."""

from __future__ import annotations

from typing import Any

from ptxrt.ops._batch_norm_choice import in_vectors
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Argument,
    KernelFamily,
    Launch,
    PrecisionGuarantee,
    Refusal,
    Role,
    Schedule,
    ceil_div,
)

__all__ = ["FAMILY", "eval_small", "few_values", "small"]

_STATISTICS = "const P*? w_ptr, const P*? b_ptr"
_VALUES = "u32 hw, u32 count, u32 by_row, u32 gap, P eps"
FAMILY = KernelFamily(
    "batch_norm_small",
    ("f32", "f16", "bf16"),
    {
        "batch_norm_small": Role(
            f"const T* in_ptr, T* out_ptr, {_STATISTICS}, P* mean_ptr, P* var_ptr, P*? rmean_ptr, P*? rvar_ptr, "
            f"{_VALUES}, P momentum, f64 per_value, f64 unbiased",
            hip=True,
        ),
        "batch_norm_backward_small": Role(
            "const T* in_ptr, const T* go_ptr, T* gi_ptr, P*? gw_ptr, P*? gb_ptr, const P*? w_ptr, const P* mean_ptr, "
            f"const P* var_ptr, {_VALUES}, f64 per_value, u32 training",
            hip=True,
        ),
        "batch_norm_eval_small": Role(
            f"const T* in_ptr, T* out_ptr, {_STATISTICS}, const P* mean_ptr, const P* var_ptr, u32 hw, P eps", hip=True
        ),
    },
    op="batch_norm",
    targets=ROUNDING_TARGETS,
)

_EACH, _MOST_THREADS = 4, 256
_MOST = _EACH * _MOST_THREADS  # values of a channel
_IN_ALL, _IN_EVAL = 1 << 21, {"ptx": 1 << 15, "hip": 1 << 17}
_SIDE_BY_SIDE, _FEW_CHANNELS = 1 << 16, 1 << 11  # where each value is in a sector of its own
_ALONE = {"ptx": 1 << 15, "hip": 0}  # of more channels
_OFFSETS = 1 << 32
_LEAST_ROW = 16  # elements that a warp is worth
_FORWARD = PrecisionGuarantee("f32", "f64", deterministic=True, bit_stable_on_same_hardware=True)


def few_values(problem: Any, language: str) -> bool:
    """Return whether what counts is how long one thread takes: as measured on an H100, of 16 bits on an H200.

    Where sums are added up, that is so as long as a block holds a channel. In training others read vectors at once, of
    a row or, of more values, of channels that lie side by side.
    """
    if problem.op == "batch_norm" and not problem.training:
        return bool(problem.hw >= _LEAST_ROW and problem.elements <= _IN_EVAL[language])
    most = _IN_ALL
    if problem.training and problem.hw == 1:
        if problem.channels % problem.vector:
            most >>= 2
        else:
            most = _SIDE_BY_SIDE if problem.channels <= _FEW_CHANNELS else _ALONE[language]
    elif problem.training and problem.dtype.size == 2 and problem.hw % problem.vector == 0:
        most >>= 3
    elif problem.training and language == "ptx" and in_vectors(problem):
        most >>= 2
    return bool(problem.count <= _MOST and problem.elements <= most)


def _refusal(problem: Any) -> Refusal | None:
    if problem.dtype.name == "f64":
        return Refusal("is not for f64")
    if problem.elements >= _OFFSETS:
        return Refusal(f"{problem.elements} elements are more than {_OFFSETS - 1}")
    return None


def _threads(values: int) -> int:
    """Return the threads of a block that have so many values: a power of two, and whole warps."""
    return min(_MOST_THREADS, max(32, 1 << (values - 1).bit_length()))


def small(
    problem: Any, language: str, name: str, arrays: tuple[Argument, ...], scalars: tuple[Argument, ...]
) -> Schedule | Refusal:
    """Return a launch of a block a channel, whose entry takes such scalars behind eps."""
    refusal = _refusal(problem)
    if refusal:
        return refusal
    count, hw = problem.count, problem.hw
    if count > _MOST:
        return Refusal(f"{count} values a channel are more than {_MOST}")
    rows = (hw, count, ceil_div(1 << 21, hw), (problem.channels - 1) * hw, problem.eps)
    kernel = FAMILY.kernel(name, problem.dtype, language)
    launch = Launch(kernel, (problem.channels,), _threads(ceil_div(count, _EACH)), (*arrays, *rows, *scalars))
    return Schedule((launch,), _FORWARD if problem.op == "batch_norm" else problem.guarantee)


def eval_small(problem: Any, language: str, arrays: tuple[Argument, ...]) -> Schedule | Refusal:
    """Return a launch of blocks of a row, or of a part of one."""
    refusal = _refusal(problem)
    if refusal:
        return refusal
    threads = _threads(ceil_div(problem.hw, _EACH))
    grid = (problem.channels, problem.batch, ceil_div(problem.hw, _EACH * threads))
    kernel = FAMILY.kernel("batch_norm_eval_small", problem.dtype, language)
    launch = Launch(kernel, grid, threads, (*arrays, problem.hw, problem.eps))
    return Schedule((launch,), _FORWARD)
