"""How batch_norm's passes over a channel's values are shared out: functions of the problem alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ptxrt.ops._batch_norm_problem import Geometry, Problem
from ptxrt.ops.framework import Config, Refusal, Region, Workspace, ceil_div

__all__ = [
    "TURN",
    "ColumnsConfig",
    "EvalConfig",
    "SplitConfig",
    "WriteConfig",
    "adders",
    "images_added",
    "odd_rows",
    "short_rows",
    "slice_values",
    "tiles",
    "too_long",
    "workspace_of",
]

_GRID_Y = 65535
_ENOUGH_BLOCKS = 512  # more images a block, while so many blocks remain
_MULTIPROCESSORS = 132  # of an H200
_SOME_BLOCKS = 190  # one for each multiprocessor, or two
_APPLIED = 4  # images a block at most where coefficients are read, the vectors that a thread loads at once
TURN = 4096
"""Values that 256 threads load at once, four vectors each."""
_MOST_BLOCKS, _MOST_SLICES = 4096, 1024


def _images(batch: int, across: int, least: int, most: int, enough: int = _ENOUGH_BLOCKS) -> int:
    """Return how many images a block takes, which has some places of each: more, where enough blocks remain."""
    images = max(1, least)
    while images < most and across * ceil_div(batch, 2 * images) >= enough:
        images *= 2
    return images


def _group(problem: Geometry) -> int:
    """Return the channels of a block that adds up columns."""
    group = max(1, min(problem.channels, problem.places // max(1, problem.hw)))
    return group - group % problem.vector if group > problem.vector else group  # whole vectors


def slice_values(problem: Geometry, aim: int) -> int:
    """Return the values of a slice, a multiple of 4096: about `aim`, and more where slices would be many."""
    most = max(1, min(_MOST_SLICES, _MOST_BLOCKS // max(1, problem.channels)))
    slices = min(most, ceil_div(problem.count, max(1, aim))) or 1
    return ceil_div(problem.count, slices * TURN) * TURN or TURN


def images_added(problem: Geometry, enough: int = _ENOUGH_BLOCKS) -> int:
    """Return the images of a block that adds up columns: as many as leave enough blocks."""
    across = ceil_div(problem.channels, _group(problem))
    return _images(problem.batch, across, ceil_div(problem.batch, 256), 32, enough)


def tiles(problem: Geometry, added: int) -> tuple[int, int, int, int]:
    """Return slices, images and channels of a block that adds up columns, and the threads that add one channel up."""
    group = _group(problem)
    lanes = 1 << min(5, max(0, (problem.side_by_side // group).bit_length() - 1))
    return ceil_div(problem.batch, added), added, group, lanes


@dataclass(frozen=True)
class WriteConfig(Config):
    """Knobs of a pass that writes: the images of a block. In eval a block computes coefficients first."""

    written: int

    @staticmethod
    def images_written(problem: Problem, most: int = 8) -> int:
        """Return the images that pay for what a block does first; of eval, so many at most."""
        across, least = ceil_div(problem.channels * problem.hw, problem.places), ceil_div(problem.batch, _GRID_Y)
        return _images(problem.batch, across, least, _APPLIED if problem.training else most)

    @staticmethod
    def in_rows(problem: Problem) -> bool:
        """Return whether it is for the entry of rows of whole vectors, whose blocks are half as large."""
        return False

    @classmethod
    def blocks(cls, problem: Problem) -> tuple[int, int]:
        """Return the blocks of an image, and their threads."""
        threads = problem.side_by_side // (2 if cls.in_rows(problem) else 1)
        return ceil_div(problem.channels * problem.hw, threads * problem.vector), threads

    def grid(self, problem: Problem) -> tuple[int, int]:
        """Return the grid of the pass."""
        return self.blocks(problem)[0], ceil_div(problem.batch, self.written)

    @classmethod
    def of_some(cls, problem: Problem, most: int) -> int:
        """Return up to so many images, as long as each multiprocessor has a block: one thread's time counts then."""
        return _images(problem.batch, cls.blocks(problem)[0], ceil_div(problem.batch, _GRID_Y), most, _SOME_BLOCKS)

    @classmethod
    def heuristic(cls, problem: Problem) -> WriteConfig:
        """As measured on an H200."""
        most = cls.images_written(problem) if problem.dtype.size > 2 else 1
        return cls(max(most, cls.of_some(problem, _APPLIED)))

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[WriteConfig]:
        """Return 1 image a block to 16, as many as grid.y allows."""
        least = ceil_div(problem.batch, _GRID_Y)
        return tuple(cls(max(least, images)) for images in (1, 2, 4, 8, 16))


class EvalConfig(WriteConfig):
    """The same of eval in PTX, where rows of whole vectors have an entry of their own, of half as large blocks."""

    @staticmethod
    def in_rows(problem: Problem) -> bool:
        """Return whether that entry takes the problem."""
        return problem.hw % problem.vector == 0 and problem.channels * problem.hw < problem.vector << 32

    @classmethod
    def heuristic(cls, problem: Problem) -> EvalConfig:
        """As measured on an H200: up to 4, but for f64 and rows of no whole vectors, whose coefficients take longer."""
        if problem.dtype.size <= 4 and cls.in_rows(problem):
            least = ceil_div(problem.batch, _GRID_Y)
            return cls(_images(problem.batch, cls.blocks(problem)[0], least, 4, 2 * _ENOUGH_BLOCKS))
        most = cls.images_written(problem, 16 if problem.dtype.size == 2 else 8)
        return cls(max(most, cls.of_some(problem, 2 * _APPLIED)))


@dataclass(frozen=True)
class SplitConfig(WriteConfig):
    """Knobs of sums over any part of a channel: its values, a multiple of 4096, and the images that a block writes."""

    values: int

    @classmethod
    def heuristic(cls, problem: Problem) -> SplitConfig:
        """Enough blocks, of enough work each: in training shorter slices, where they are few."""
        few = problem.training and problem.arrays * problem.channels * problem.count < 2 * _MULTIPROCESSORS * 2 * TURN
        return cls(cls.images_written(problem), slice_values(problem, TURN if few else 2 * TURN))

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[SplitConfig]:
        """Return slices of 4096 values to 32768, and those of a whole channel."""
        written = cls.images_written(problem)
        return tuple(cls(written, slice_values(problem, aim)) for aim in (TURN, 2 * TURN, 8 * TURN, problem.count))


@dataclass(frozen=True)
class ColumnsConfig(WriteConfig):
    """Knobs of sums over columns: the images of a block that adds, and of one that writes."""

    added: int

    @classmethod
    def heuristic(cls, problem: Problem) -> ColumnsConfig:
        """As many images as leave enough blocks: fewer of these where they write, too."""
        enough = _ENOUGH_BLOCKS if problem.training else _SOME_BLOCKS
        return cls(cls.images_written(problem), images_added(problem, enough))

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[ColumnsConfig]:
        """Return 1 image a block to 32, at most 256 blocks."""
        least, written = ceil_div(problem.batch, 256), cls.images_written(problem)
        return tuple(cls(written, max(least, images)) for images in (1, 4, 16, 32))


def short_rows(problem: Geometry) -> bool:
    """Return whether columns are added up."""
    return problem.hw <= 256


def odd_rows(problem: Problem) -> bool:
    """Return whether columns are added up, in training, of few channels whose rows are no whole vectors."""
    few = problem.training and problem.arrays * problem.channels <= 8
    return bool(few and problem.hw <= 1 << 10 and problem.hw % problem.vector)


def too_long(problem: Geometry) -> Refusal | None:
    """Return why the rows are too long for columns, or None."""
    most = problem.places - 1  # whose rows the kernel finds without a division
    return Refusal(f"hw = {problem.hw} is above {most}") if problem.hw > most else None


def adders(problem: Geometry, name: str) -> int:
    """Return the threads of a block that adds up, by the entry `name`."""
    return problem.side_by_side if name == "columns" else 256


def workspace_of(problem: Problem, sums: int, coefficients: int) -> tuple[Workspace, Region, Region]:
    """Return a workspace with so many sums, and so many f64 of coefficients, for each channel."""
    workspace = Workspace()
    added = workspace.region("sums", "f64", problem.parts * sums * problem.channels)
    return workspace, added, workspace.region("coefficients", "f64", coefficients * problem.channels)
