"""What batch_norm launches beside its own kernels where it is asked to: batches counted, inverse deviations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops._batch_norm_problem import BatchNormBackwardDescriptor, BatchNormDescriptor
from ptxrt.ops.framework import (
    Argument,
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Region,
    Role,
    Schedule,
    Variant,
    Zero,
    blocks_in_hip,
    parameter_type,
)

__all__ = ["FAMILY", "and_statistics", "counted", "handed_inverse", "inverse_saved", "of_inverse"]

V = TypeVar("V", bound=Variant[Any, Any])
C = TypeVar("C", bound=Config)

THREADS = 256

FAMILY = KernelFamily(
    "batch_norm_statistics",
    ("f32", "f64"),  # of the statistics
    {
        "batch_norm_count": Role("i64* batches_ptr", hip=True, dtypes=("f32",)),
        "batch_norm_cumulative": Role(
            "const P* mean_ptr, const P* var_ptr, P* rmean_ptr, P* rvar_ptr, const i64* batches_ptr, u32 batch, "
            "u32 channels, u32 hw",
            hip=True,
        ),
        "batch_norm_inverse_deviation": Role("P* var_ptr, u32 channels, P eps", hip=True),
        "batch_norm_backward_variance": Role("const P* inverse_ptr, P* var_ptr, u32 channels", hip=True),
    },
    op="batch_norm",
)


def _launch(name: str, dtype: ElementType, language: str, channels: int, *arguments: Argument) -> Launch:
    """Return the launch of an entry with a thread a channel, for elements of `dtype`."""
    blocks = blocks_in_hip(channels, THREADS) if language == "hip" else -(-channels // THREADS)
    return Launch(FAMILY.kernel(f"batch_norm_{name}", parameter_type(dtype), language), (blocks,), THREADS, arguments)


def counted(language: str) -> Launch:
    """Return what adds 1 to the operand batches."""
    return Launch(FAMILY.kernel("batch_norm_count", BY_NAME["f32"], language), (1,), 1, ("batches",))


def cumulative(dtype: ElementType, language: str, sizes: tuple[int, int, int]) -> Launch:
    """Return what makes the running statistics the means over all batches, the last of them counted already."""
    arrays = ("batch_mean", "batch_var", "running_mean", "running_var", "batches")
    return _launch("cumulative", dtype, language, sizes[1], *arrays, *sizes)


def inverse_saved(dtype: ElementType, language: str, channels: int, eps: float) -> Launch:
    """Return what makes the operand batch_var the inverse deviation."""
    return _launch("inverse_deviation", dtype, language, channels, "batch_var", channels, eps)


def handed_inverse(schedule: Schedule, dtype: ElementType, language: str, channels: int) -> Schedule:
    """Return a schedule of kernels that read a variance, for an operand batch_var that is the inverse deviation.

    They are handed its inverse square, in the workspace, and an eps of 0.
    """
    workspace = schedule.workspace
    variance = workspace.region("variance", parameter_type(dtype).name, channels)
    first = _launch("backward_variance", dtype, language, channels, "batch_var", variance, channels)
    return replace(schedule, steps=(first, *(_reading(step, variance) for step in schedule.steps)))


def _reading(step: Launch | Zero, variance: Region) -> Launch | Zero:
    if not isinstance(step, Launch):
        return step
    names = [parameter.name for parameter in step.kernel.signature.parameters]
    arguments: list[Argument] = []
    for name, argument in zip(names, step.arguments, strict=True):
        arguments.append(variance if argument == "batch_var" else 0.0 if name == "eps" else argument)
    return replace(step, arguments=tuple(arguments))


def and_statistics(
    schedule: Callable[[V, BatchNormDescriptor, C, Limits], Schedule | Refusal],
) -> Callable[[V, BatchNormDescriptor, C, Limits], Schedule | Refusal]:
    """Let a variant do behind its own launches what else is asked for of the statistics."""

    @wraps(schedule)
    def extended(self: V, problem: BatchNormDescriptor, config: C, limits: Limits) -> Schedule | Refusal:
        found = schedule(self, problem, config, limits)
        if not problem.training or isinstance(found, Refusal):
            return found
        steps = list(found.steps)
        if problem.counted:
            steps.append(counted(self.language))
        if problem.momentum is None:
            steps.append(cumulative(problem.dtype, self.language, problem.sizes))
        if problem.save == "inverse_deviation":
            steps.append(inverse_saved(problem.dtype, self.language, problem.channels, problem.eps))
        return replace(found, steps=tuple(steps))

    return extended


def of_inverse(
    schedule: Callable[[V, BatchNormBackwardDescriptor, C, Limits], Schedule | Refusal],
) -> Callable[[V, BatchNormBackwardDescriptor, C, Limits], Schedule | Refusal]:
    """Let a variant, which reads a variance, take the inverse deviation where that is handed."""

    @wraps(schedule)
    def extended(self: V, problem: BatchNormBackwardDescriptor, config: C, limits: Limits) -> Schedule | Refusal:
        found = schedule(self, problem, config, limits)
        if not problem.handed or problem.save == "variance" or isinstance(found, Refusal):
            return found
        return handed_inverse(found, problem.dtype, self.language, problem.channels)

    return extended
