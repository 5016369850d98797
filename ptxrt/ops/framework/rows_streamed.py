"""Norms of wide rows, which stream through shared memory: the next ones are on their way while one is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops.framework.kernels import KernelFamily, Role
from ptxrt.ops.framework.rows import WARP, RowsDescriptor, RowsVariant
from ptxrt.ops.framework.rows_held import GUARANTEE, launch_of_columns
from ptxrt.ops.framework.schedule import Argument, Config, Launch, Limits, Refusal, Schedule, Workspace, ceil_div
from ptxrt.ops.framework.texts import ROUNDING_TARGETS
from ptxrt.ops.framework.variant import ConfigT

__all__ = ["StreamedBackward", "StreamedBackwardConfig", "StreamedConfig", "StreamedForward", "streamed_family"]

_THREADS, _FEWEST = 512, 64  # of a block at most, as many as a multiprocessor runs; and those that are worth it
_MULTIPROCESSORS = 132  # of an H200
# Where it pays, measured on an H200. Forward: values of a row, and in all, of shorter rows fewer; of so many of a row,
# whatever there is.
_WIDE, _SOME, _LAST, _VERY_WIDE = 768, 1 << 20, 1 << 25, 12288
_WIDER, _LAST_SHORTER = 1280, 1 << 24
# Backward: values of a row and in all, and of a wider row.
_WIDE_BACKWARD, _SOME_BACKWARD, _WIDER_BACKWARD, _FEWER_BACKWARD = 512, 3 << 20, 3072, 1 << 21


def streamed_family(norm: str, kernel: str, parameters: str) -> KernelFamily:
    """Return the entries of a norm: `kernel` is the signature of its forward, `parameters` of what adds up slices."""
    types = ("f32", "f16", "bf16")
    backward = (
        "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, P* partials_ptr, u64 rows, u64 width, P eps, "
        "f64 per_value"
    )
    roles = {f"{norm}_streamed_backward_parameters_kernel": Role(parameters, target=90)}
    for slots, stages in StreamedConfig.stages.items():
        given = {"slots": str(slots), "stages": str(stages), "way": "forward"}
        roles[f"{norm}_streamed_{slots}_kernel"] = Role(kernel, parameters=given, dtypes=types[1:], target=80)
    for slots, stages in StreamedBackwardConfig.stages.items():
        given = {"slots": str(slots), "stages": str(stages), "way": "backward"}
        fitting = tuple(name for name in types if slots * _vector(BY_NAME[name]) <= StreamedBackwardConfig.values)
        roles[f"{norm}_streamed_backward_{slots}_kernel"] = Role(backward, parameters=given, dtypes=fitting, target=90)
    return KernelFamily(f"{norm}_streamed", types, roles, targets=ROUNDING_TARGETS, op=norm)


def _vector(dtype: ElementType) -> int:
    """Return how many values of a type are 16 bytes."""
    return 16 // dtype.size


def _slots(problem: RowsDescriptor, threads: int) -> int:
    """Return how many vectors of a row a thread has at most."""
    return ceil_div(problem.width, _vector(problem.dtype) * threads)


@dataclass(frozen=True)
class StreamedConfig(Config):
    """Knobs of rows that stream: the threads of a block, and the blocks, which take rows in turn.

    Attributes
    ----------
    sizes
        Bytes of the element types that there are entries for.
    values
        Of a row that a thread has at most.
    stages
        Vectors of a row that a thread has -> rows that a block has room for.
    cluster
        Blocks that come together.
    most_rows
        That a block takes.
    """

    threads: int
    blocks: int
    sizes: ClassVar[tuple[int, ...]] = (2,)
    values: ClassVar[int] = 32
    stages: ClassVar[dict[int, int]] = {3: 4, 4: 4}
    cluster: ClassVar[int] = 1
    most_rows: ClassVar[int] = 1 << 62

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> StreamedConfig:
        """As many values a thread as can be, and as many blocks as run at a time, all with as many rows."""
        threads = cls._widths(problem)[0]
        rows = ceil_div(problem.rows, _MULTIPROCESSORS * (_THREADS // threads))
        return cls(threads, cls._whole(ceil_div(problem.rows, min(max(rows, 1), cls.most_rows))))

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[StreamedConfig]:
        """Return fewer and more blocks, too, and fewer values a thread."""
        threads, blocks = (plain := cls.heuristic(problem)).threads, plain.blocks
        least = ceil_div(problem.rows, cls.most_rows)
        counts = (blocks, max(least, 3 * blocks // 4), max(least, blocks // 2), 2 * blocks)
        found = [cls(threads, cls._whole(count)) for count in counts]
        return tuple(dict.fromkeys([*found, *(cls(width, blocks) for width in cls._widths(problem)[1:])]))

    @classmethod
    def _whole(cls, blocks: int) -> int:
        """Return as many, whole clusters."""
        return cls.cluster * max(1, ceil_div(blocks, cls.cluster))

    @classmethod
    def _widths(cls, problem: RowsDescriptor) -> list[int]:
        """Return the threads of a block that there are entries for, few first."""
        vector = _vector(problem.dtype)
        fitting = [slots for slots in sorted(cls.stages, reverse=True) if slots * vector <= cls.values]
        widths = dict.fromkeys(WARP * ceil_div(max(1, problem.width), WARP * vector * slots) for slots in fitting)
        able = [threads for threads in widths if threads <= _THREADS and _slots(problem, threads) in fitting]
        return [threads for threads in able if threads >= _FEWEST] or able[-1:] or [_THREADS]


@dataclass(frozen=True)
class StreamedBackwardConfig(StreamedConfig):
    """Knobs of the backward, as of the forward; blocks are pairs, and add up columns in f32, eight rows at a time."""

    sizes: ClassVar[tuple[int, ...]] = (2, 4)
    values: ClassVar[int] = 16
    stages: ClassVar[dict[int, int]] = {1: 4, 2: 3, 3: 2, 4: 2}
    cluster: ClassVar[int] = 2
    most_rows: ClassVar[int] = 64


class _Streamed(RowsVariant[ConfigT]):
    """Blocks take rows in turn, and copy the next ones while they compute one."""

    name = "streamed"

    def rows(
        self, entry: str, problem: RowsDescriptor, config: StreamedConfig, arrays: int, **given: Argument
    ) -> Launch:
        """Return the launch that has the rows, with shared memory for so many arrays of them."""
        slots = _slots(problem, config.threads)
        launch = self.launch(
            f"{entry}{slots}_kernel", problem, config.blocks, config.threads, per_value=1 / problem.width, **given
        )
        ring = 16 * arrays * slots * config.stages[slots] * config.threads
        return replace(launch, grid=(config.blocks,), shared_bytes=ring)

    def refusal(self, problem: RowsDescriptor, config: StreamedConfig) -> Refusal | None:
        """Return why these blocks cannot do it, or None."""
        vector, threads, blocks = _vector(problem.dtype), config.threads, config.blocks
        if problem.dtype.size not in config.sizes:
            return Refusal(f"there are no entries of {problem.dtype.name}")
        if problem.width % vector:
            return Refusal(f"rows of {problem.width} values are not whole vectors of {vector}")
        if threads % WARP or not 0 < threads <= _THREADS:
            return Refusal(f"a block has whole warps, up to {_THREADS} threads, not {threads}")
        if threads * config.values < problem.width:
            return Refusal(f"{threads} threads hold {threads * config.values} values, not {problem.width}")
        if (slots := _slots(problem, threads)) not in config.stages:
            return Refusal(f"a thread has {' or '.join(map(str, config.stages))} vectors of a row, not {slots}")
        if blocks < 1 or blocks % config.cluster:
            return Refusal(f"blocks are {'pairs' if config.cluster > 1 else 'at least one'}, not {blocks}")
        if (rows := ceil_div(problem.rows, blocks)) > config.most_rows:
            return Refusal(f"a block adds up {config.most_rows} rows at most, not {rows}")
        return None


class StreamedForward(_Streamed[StreamedConfig]):
    """The forward, of 16 bits."""

    config_type = StreamedConfig

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where rows are wide: of fewer values others are as fast, and of more the memory is what is waited for."""
        last = _LAST if problem.width >= _WIDER else _LAST_SHORTER
        some = problem.width >= _WIDE and _SOME <= problem.rows * problem.width <= last
        if not some and problem.width < _VERY_WIDE:
            return False
        return self.refusal(problem, StreamedConfig.heuristic(problem)) is None

    def schedule(self, problem: RowsDescriptor, config: StreamedConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := self.refusal(problem, config):
            return refusal
        return Schedule((self.rows("", problem, config, 1),), GUARANTEE)


class StreamedBackward(_Streamed[StreamedBackwardConfig]):
    """The backward: each block adds up its columns, and a cluster of two those of both.

    Parameters
    ----------
    numbers
        How many sums a column has.
    """

    config_type = StreamedBackwardConfig

    def __init__(self, family: KernelFamily, numbers: int) -> None:
        super().__init__(family)
        self.numbers = numbers

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where there is enough to copy: rows are wide, and values many."""
        some = _FEWER_BACKWARD if problem.width >= _WIDER_BACKWARD else _SOME_BACKWARD
        if problem.width < _WIDE_BACKWARD or problem.rows * problem.width < some:
            return False
        return self.refusal(problem, StreamedBackwardConfig.heuristic(problem)) is None

    def schedule(self, problem: RowsDescriptor, config: StreamedBackwardConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches."""
        if refusal := self.refusal(problem, config):
            return refusal
        slices, workspace = config.blocks // config.cluster, Workspace()
        partials = workspace.region("partials", "f32", self.numbers * problem.width * slices)
        rows = self.rows("backward_", problem, config, 2, partials_ptr=partials)
        rows = replace(rows, shared_bytes=rows.shared_bytes + 4 * self.numbers * problem.width)
        columns = launch_of_columns(self, problem, slices=slices, partials_ptr=partials)
        return Schedule((rows, columns), GUARANTEE, workspace)
