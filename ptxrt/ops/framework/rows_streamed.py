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
_SHARERS = (1, 2, 4)  # of a row, in the backward
_MULTIPROCESSORS = {1: 132, 2: 132, 4: 99}  # sharers -> how many of an H200 have blocks, for clusters of four about
# Where it pays, measured on an H200. Forward: values of a row, and in all, of shorter rows fewer; of so many of a row,
# whatever there is.
_WIDE, _SOME, _LAST, _VERY_WIDE = 768, 1 << 20, 1 << 25, 12288
_WIDER, _LAST_SHORTER = 1280, 1 << 24
# Backward: values of a row and in all, and of a wider row.
_WIDE_BACKWARD, _SOME_BACKWARD, _WIDER_BACKWARD, _FEWER_BACKWARD = 512, 3 << 20, 3072, 1 << 21
_WIDE_ROW, _FEW_ROWS = 4096, 64  # of f32, whose threads have few values each; of which four blocks share each


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
    for sharers in _SHARERS:
        for slots, stages in StreamedBackwardConfig.stages.items():
            fitting = tuple(n for n in types if slots in StreamedBackwardConfig.fitting(BY_NAME[n], sharers))
            given = {"slots": str(slots), "stages": str(stages), "way": "backward"}
            if sharers > 1:
                given["sharers"] = str(sharers)
            if fitting:
                entry = f"{norm}_streamed_backward_{_of(sharers)}{slots}_kernel"
                roles[entry] = Role(backward, parameters=given, dtypes=fitting, target=90)
    return KernelFamily(f"{norm}_streamed", types, roles, targets=ROUNDING_TARGETS, op=norm)


def _of(sharers: int) -> str:
    """Return what names of entries have of so many blocks that share a row."""
    return "" if sharers == 1 else f"of{sharers}_"


def _vector(dtype: ElementType) -> int:
    """Return how many values of a type are 16 bytes."""
    return 16 // dtype.size


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
    most_rows
        That a block takes.
    most_sharers
        Blocks that share a row at most.
    """

    threads: int
    blocks: int
    sizes: ClassVar[tuple[int, ...]] = (2,)
    values: ClassVar[int] = 32
    stages: ClassVar[dict[int, int]] = {3: 4, 4: 4}
    most_rows: ClassVar[int] = 1 << 62
    most_sharers: ClassVar[int] = 1

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> StreamedConfig:
        """As many values a thread as can be, and as many blocks as run at a time, all with as many rows."""
        return cls._sharing(problem, 1)

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[StreamedConfig]:
        """Return fewer and more blocks, too, and fewer values a thread."""
        plain = cls.heuristic(problem)
        blocks, least = plain.blocks, ceil_div(problem.rows, cls.most_rows)
        counts = (blocks, max(least, 3 * blocks // 4), max(least, blocks // 2), 2 * blocks)
        found = [replace(plain, blocks=plain.whole(count)) for count in counts]
        widths = cls._widths(problem, plain.sharers)[1:]
        return tuple(dict.fromkeys([*found, *(replace(plain, threads=width) for width in widths)]))

    @classmethod
    def fitting(cls, dtype: ElementType, sharers: int) -> list[int]:
        """Return how many vectors of a row a thread may have, many first: of a row that is shared more than half."""
        found = {slots: slots * _vector(dtype) for slots in sorted(cls.stages, reverse=True)}
        least = cls.values // 2 if sharers > 1 else 0
        return [slots for slots, values in found.items() if least < values <= cls.values]

    @property
    def sharers(self) -> int:
        """Blocks that share a row."""
        return 1

    @property
    def cluster(self) -> int:
        """Blocks that come together."""
        return 1

    def whole(self, blocks: int) -> int:
        """Return as many blocks, whole clusters."""
        return self.cluster * max(1, ceil_div(blocks, self.cluster))

    def slots(self, problem: RowsDescriptor) -> int:
        """Return how many vectors of a row a thread has at most."""
        return ceil_div(ceil_div(problem.width, _vector(problem.dtype) * self.sharers), self.threads)

    @classmethod
    def _sharing(cls, problem: RowsDescriptor, sharers: int) -> StreamedConfig:
        """Return the fastest config where so many blocks share a row."""
        threads = cls._widths(problem, sharers)[0]
        at_once = _MULTIPROCESSORS[sharers] * (_THREADS // threads)
        rows = min(max(ceil_div(problem.rows * sharers, at_once), 1), cls.most_rows)
        config = cls(threads, 1, *((sharers,) if sharers > 1 else ()))
        return replace(config, blocks=config.whole(sharers * ceil_div(problem.rows, rows)))

    @classmethod
    def _widths(cls, problem: RowsDescriptor, sharers: int) -> list[int]:
        """Return the threads of a block that there are entries for, few first, but for wide rows of f32."""
        fitting = cls.fitting(problem.dtype, sharers)
        vectors = ceil_div(ceil_div(max(1, problem.width), _vector(problem.dtype)), sharers)
        widths = dict.fromkeys(WARP * ceil_div(vectors, WARP * slots) for slots in fitting)
        able = [threads for threads in widths if threads <= _THREADS and ceil_div(vectors, threads) in fitting]
        if problem.dtype.size == 4 and problem.width >= _WIDE_ROW and len(able) > 1:
            able[:2] = able[1::-1]
        return [threads for threads in able if threads >= _FEWEST] or able[-1:] or [_THREADS]


@dataclass(frozen=True)
class StreamedBackwardConfig(StreamedConfig):
    """Knobs of the backward, as of the forward; blocks are pairs, and add up columns in f32, eight rows at a time.

    Attributes
    ----------
    sharers
        Blocks, a cluster, that share each row: 1, 2 or 4.
    """

    sharers: int = 1
    sizes: ClassVar[tuple[int, ...]] = (2, 4)
    values: ClassVar[int] = 16
    stages: ClassVar[dict[int, int]] = {1: 4, 2: 3, 3: 2, 4: 2}
    most_rows: ClassVar[int] = 64
    most_sharers: ClassVar[int] = _SHARERS[-1]

    @classmethod
    def heuristic(cls, problem: RowsDescriptor) -> StreamedConfig:
        """As in the forward; two blocks share rows that one has no room for, and four wider ones, or few rows."""
        held = cls.values * _THREADS
        few = problem.width > 2 * held or problem.rows <= _FEW_ROWS
        return cls._sharing(problem, 1 if problem.width <= held else 4 if few else 2)

    @classmethod
    def candidates(cls, problem: RowsDescriptor) -> Sequence[StreamedConfig]:
        """Return those of the forward, and others that share rows."""
        shared = (cls._sharing(problem, sharers) for sharers in _SHARERS)
        return tuple(dict.fromkeys([*super().candidates(problem), *shared]))

    @property
    def cluster(self) -> int:
        """Blocks that come together."""
        return max(2, self.sharers)


class _Streamed(RowsVariant[ConfigT]):
    """Blocks take rows in turn, and copy the next ones while they compute one."""

    name = "streamed"

    def rows(
        self, entry: str, problem: RowsDescriptor, config: StreamedConfig, arrays: int, **given: Argument
    ) -> Launch:
        """Return the launch that has the rows, with shared memory for so many arrays of them."""
        slots = config.slots(problem)
        launch = self.launch(
            f"{entry}{slots}_kernel", problem, config.blocks, config.threads, per_value=1 / problem.width, **given
        )
        ring = 16 * arrays * slots * config.stages[slots] * config.threads
        own = launch.own_bytes * config.sharers  # a warp's sums, of all that share a row
        return replace(launch, grid=(config.blocks,), shared_bytes=ring, own_bytes=own)

    def refusal(self, problem: RowsDescriptor, config: StreamedConfig) -> Refusal | None:
        """Return why these blocks cannot do it, or None."""
        vector, threads, blocks = _vector(problem.dtype), config.threads, config.blocks
        if problem.dtype.size not in config.sizes:
            return Refusal(f"there are no entries of {problem.dtype.name}")
        if problem.width % vector:
            return Refusal(f"rows of {problem.width} values are not whole vectors of {vector}")
        if (sharers := config.sharers) not in _SHARERS:
            return Refusal(f"1, 2 or 4 blocks share a row, not {sharers}")
        if threads % WARP or not 0 < threads <= _THREADS:
            return Refusal(f"a block has whole warps, up to {_THREADS} threads, not {threads}")
        if (held := sharers * threads * config.values) < problem.width:
            room = {"threads": threads < _THREADS, "sharers": sharers < config.most_sharers}
            knobs = " or ".join(knob for knob, more in room.items() if more)
            way = f": more {knobs} do" if knobs else ""
            return Refusal(f"{sharers * threads} threads hold {held} values, not {problem.width}{way}")
        if (slots := config.slots(problem)) not in (able := config.fitting(problem.dtype, sharers)):
            return Refusal(f"a thread has {' or '.join(map(str, able[::-1]))} vectors of a row, not {slots}")
        if blocks < 1 or blocks % config.cluster:
            together = {1: "at least one", 2: "pairs", 4: "fours"}[config.cluster]
            return Refusal(f"blocks are {together}, not {blocks}")
        if (rows := ceil_div(problem.rows * sharers, blocks)) > config.most_rows:
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
        """Where there is enough to copy: rows are wide, and values many, or rows too wide for others."""
        config = StreamedBackwardConfig.heuristic(problem)
        some = _FEWER_BACKWARD if problem.width >= _WIDER_BACKWARD else _SOME_BACKWARD
        many = problem.width >= _WIDE_BACKWARD and problem.rows * problem.width >= some
        return (many or config.sharers > 1) and self.refusal(problem, config) is None

    def schedule(self, problem: RowsDescriptor, config: StreamedBackwardConfig, limits: Limits) -> Schedule | Refusal:
        """Return two launches."""
        if refusal := self.refusal(problem, config):
            return refusal
        slices, workspace = config.blocks // config.cluster, Workspace()
        partials = workspace.region("partials", "f32", self.numbers * problem.width * slices)
        rows = self.rows(f"backward_{_of(config.sharers)}", problem, config, 2, partials_ptr=partials)
        vector = _vector(problem.dtype)
        own = vector * ceil_div(problem.width, config.sharers * vector)  # columns of a block
        rows = replace(rows, shared_bytes=rows.shared_bytes + 4 * self.numbers * own)
        columns = launch_of_columns(self, problem, slices=slices, partials_ptr=partials)
        return Schedule((rows, columns), GUARANTEE, workspace)
