"""The sums of a shard for batch_norm over ranks, rounded: batch_norm's own sums of slices, made integers.

What is added up over the ranks is what exact sums are added up as, and so is all that follows from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxrt.ops._batch_norm_last import many_rows, rows_of
from ptxrt.ops._batch_norm_passes import adders, images_added, short_rows, slice_values, tiles, too_long
from ptxrt.ops._batch_norm_problem import FAMILY as BATCH_NORM
from ptxrt.ops._norm_last import LastConfig
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Region,
    Role,
    Schedule,
    Variant,
    Workspace,
    ceil_div,
)

__all__ = ["FAMILY", "VARIANTS"]

_SIZES = "u32 batch, u32 channels, u32 hw"
_SIGNATURES = {
    "rounded_sums": f"const T* in_ptr, f64* sums_ptr, {_SIZES}, u32 slices, u32 values",
    "backward_rounded_sums": "const T* in_ptr, const T* go_ptr, const P* mean_ptr, f64* sums_ptr, "
    f"{_SIZES}, u32 slices, u32 values",
    "rounded_digits": f"const T* in_ptr, const f64* sums_ptr, i64* digits_ptr, {_SIZES}, u32 slices",
    "backward_rounded_digits": f"const P* mean_ptr, const f64* sums_ptr, i64* digits_ptr, {_SIZES}, u32 slices",
}
FAMILY = KernelFamily(
    "batch_norm_rounded",
    ("f32", "f16", "bf16"),
    {  # In PTX batch_norm's own sums do it.
        f"batch_norm_{name}": Role(signature, hip=True, ptx=name.endswith("digits"))
        for name, signature in _SIGNATURES.items()
    },
    targets=ROUNDING_TARGETS,
    op="batch_norm",
)
_MOST_VALUES = (1 << 31) - 1  # of a channel, in HIP
_ENOUGH_BLOCKS = 192
_WARPS = 4  # of a block that makes digits, with a channel each


def _sums(problem: Any, slices: int) -> tuple[Workspace, Region]:
    """Return a workspace for the sums of so many slices of each channel."""
    workspace = Workspace()
    return workspace, workspace.region("partial", "f64", (4 if problem.backward else 2) * slices * problem.channels)


def _made_digits(
    problem: Any, language: str, first: Launch, workspace: Workspace, partial: Region, slices: int
) -> Schedule | Refusal:
    """Return the launch that adds up slices, and the one that adds these up and makes digits of them."""
    if problem.exact:
        return Refusal("rounds sums, and exact ones are asked for")
    kernel = FAMILY.kernel(f"batch_norm_{problem.turn}rounded_digits", problem.dtype, language)
    arguments = (problem.read[-1], partial, "sums", *problem.sizes, slices)
    second = Launch(kernel, (ceil_div(problem.channels, _WARPS),), 32 * _WARPS, arguments)
    return Schedule((first, second), problem.guarantee, workspace)


@dataclass(frozen=True)
class SliceConfig(Config):
    """Knobs of sums over any part of a channel: its values, a multiple of 4096."""

    values: int

    @classmethod
    def heuristic(cls, problem: Any) -> SliceConfig:
        """Enough blocks, of enough work each."""
        return cls(slice_values(problem, 1 << 13))

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[SliceConfig]:
        """Return slices of 4096 values to 32768, and whole channels."""
        return tuple(cls(slice_values(problem, aim)) for aim in (1 << 12, 1 << 13, 1 << 15, problem.count))


class RoundedSlices(Variant[Any, SliceConfig]):
    """Several blocks a channel, of any part of it each."""

    name = "rounded"
    config_type = SliceConfig

    def schedule(self, problem: Any, config: SliceConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches."""
        if self.language == "hip" and problem.count > _MOST_VALUES:
            return Refusal(f"a channel has {problem.count} values, above {_MOST_VALUES}")
        slices = ceil_div(problem.count, config.values)
        workspace, partial = _sums(problem, slices)
        if self.language == "hip":
            kernel = FAMILY.kernel(f"batch_norm_{problem.turn}rounded_sums", problem.dtype, "hip")
        else:
            kernel = BATCH_NORM.kernel(f"batch_norm_{problem.turn}partial", problem.dtype, "ptx")
        arguments = (*problem.read, partial, *problem.sizes, slices, config.values)
        first = Launch(kernel, (problem.channels, slices), 256, arguments)
        return _made_digits(problem, self.language, first, workspace, partial, slices)


@dataclass(frozen=True)
class ImagesConfig(Config):
    """Knobs of sums over columns: the images of a block."""

    added: int

    @classmethod
    def heuristic(cls, problem: Any) -> ImagesConfig:
        """As many as leave enough blocks: fewer ones than where coefficients follow, as measured on an H200."""
        return cls(images_added(problem, _ENOUGH_BLOCKS))

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[ImagesConfig]:
        """Return 1 image a block to 32, at most 256 blocks."""
        least = ceil_div(problem.batch, 256)
        return tuple(cls(max(least, images)) for images in (1, 2, 4, 8, 16, 32))


class RoundedColumns(Variant[Any, ImagesConfig]):
    """Several blocks a channel, of some images each."""

    name = "rounded_columns"
    config_type = ImagesConfig

    def suits(self, problem: Any) -> bool:
        """Short rows."""
        return short_rows(problem)

    def schedule(self, problem: Any, config: ImagesConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches."""
        cut = tiles(problem, config.added)
        workspace, partial = _sums(problem, cut[0])
        kernel = BATCH_NORM.kernel(f"batch_norm_{problem.turn}columns", problem.dtype, "ptx")
        grid = (ceil_div(problem.channels, cut[2]), cut[0])
        arguments = (*problem.read, partial, *problem.sizes, *cut)
        first = Launch(kernel, grid, adders(problem, "columns"), arguments)
        return too_long(problem) or _made_digits(problem, "ptx", first, workspace, partial, cut[0])


class RoundedLast(Variant[Any, LastConfig]):
    """Of rows of channels: blocks that share the rows in chunks."""

    name = "rounded_last"
    config_type = LastConfig

    def suits(self, problem: Any) -> bool:
        """Where values are many."""
        return many_rows(problem)

    def schedule(self, problem: Any, config: LastConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches."""
        rows = rows_of(problem, config, self.language)
        if isinstance(rows, Refusal):
            return rows
        workspace, partial = _sums(problem, rows.slices)
        arguments = (*problem.read, partial, problem.batch, problem.channels, 1)
        first = rows.over(f"{problem.turn}sums", config.added, *arguments)
        return _made_digits(problem, self.language, first, workspace, partial, rows.slices)


VARIANTS = (RoundedLast(), RoundedColumns(), RoundedSlices(), RoundedLast("hip"), RoundedSlices("hip"))
