"""How clusters of blocks run batch_norm in training, which keep a channel's values in their shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ptxrt.ops._batch_norm_choice import held_bytes, large_and_few, too_large_and_few
from ptxrt.ops._batch_norm_problem import BACKWARD_IN_ONE, IN_ONE
from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Limits, Refusal, Role, Schedule

__all__ = ["FAMILY", "OF_COLUMNS", "SIZES", "ClusterConfig", "clusters", "worth_clusters"]

SIZES = (2, 8, 16)
"""Of a cluster, in blocks."""
OF_COLUMNS = (1, 2, 8)
"""The same, where channels lie side by side; backward all but the first."""

FAMILY = KernelFamily(
    "batch_norm_cluster",
    ("f32", "f16", "bf16", "f64"),
    {
        f"batch_norm_{direction}cluster{size}{columns}": Role(
            signature + ", u32 values" + (", u32 group, u32 lanes" if columns else ""), target=90
        )
        for direction, signature in (("", IN_ONE), ("backward_", BACKWARD_IN_ONE))
        for columns, sizes in (("", SIZES), ("_columns", OF_COLUMNS))
        for size in sizes
        if size > 1 or not direction
    },
    op="batch_norm",
)

_LONG_ROW = 256  # bytes from which a row is read as one: below, channels lie side by side
_THREADS, _FEW_THREADS = 512, 256
_MOST_CHANNELS = 64
_FEW_VALUES = 64  # of a channel, as the kernels have it
_LARGE = 224 << 10  # bytes of shared memory that a multiprocessor has
_HALF = _LARGE // 2  # so that one block reads while another one writes
_WHOLE = 228 << 10  # all that a multiprocessor has, of which a block takes what it asks for and _RESERVED
_RESERVED = 1 << 10
_MULTIPROCESSORS = 128  # about as many as such a GPU has
_LITTLE = {1: 256 << 10, 2: 640 << 10}  # arrays -> bytes of a channel, of which 8 blocks are done before 16


class _Cut(NamedTuple):
    """The channels that a cluster has at a time, and what one of its blocks has of them."""

    group: int  # 0 where a row is one channel's
    threads: int
    values: int
    shared_bytes: int
    own_bytes: int  # of sums and coefficients, which the entry declares, at most
    at_once: int  # blocks that a multiprocessor has room for, 2 at most

    def groups(self, channels: int) -> int:
        """Return how many times a cluster's channels there are."""
        return channels // (self.group or 1)


def _group(problem: Any) -> int | None:
    """Return the channels that a cluster has side by side, 0 for one whose rows are long; None where vectors cannot."""
    if problem.hw % problem.vector == 0 and problem.hw * problem.dtype.size >= _LONG_ROW:
        return 0
    base, most = problem.vector // math.gcd(problem.vector, problem.hw), _FEW_THREADS * problem.vector
    groups = [
        group
        for group in range(base, _MOST_CHANNELS + 1, base)
        if problem.channels % group == 0 and group * problem.hw <= most
    ]
    long = (group for group in groups if group * problem.hw * problem.dtype.size >= _LONG_ROW)
    return next(long, groups[-1] if groups else None)


def _alone(problem: Any) -> bool:
    """Return whether a block of long rows takes registers that leave no room for another one: gradients in f64."""
    return bool(problem.parts == 2 and problem.arrays == 2)


def _cancels(problem: Any) -> bool:
    """Return whether gradients in f64 are of so few values that less than a thread's sums lose is left of them."""
    return _alone(problem) and bool(problem.count < _FEW_VALUES)


def _sizes(problem: Any) -> tuple[int, ...]:
    return (OF_COLUMNS if problem.arrays == 1 else OF_COLUMNS[1:]) if _group(problem) else SIZES


def _cut(problem: Any, size: int) -> _Cut | None:
    group = _group(problem)
    if group is None:
        return None
    bytes_of = problem.arrays * problem.dtype.size
    if not group:
        values = -(-problem.count // (size * problem.vector)) * problem.vector
        shared = values * bytes_of
        own = (1 << 10) * problem.parts + 64
        return _Cut(group, _THREADS, values, shared, own, min(1 if _alone(problem) else 2, _LARGE // max(1, shared)))
    row = group * problem.hw
    values = -(-problem.batch // size) * row
    # Backward a thread has twice as many sums, and of 16 bits twice that: their registers leave room for fewer threads.
    threads = _THREADS if problem.arrays == 1 else _FEW_THREADS
    sums = threads * problem.vector
    narrow = problem.dtype.size == 2
    if narrow:  # those of half the rows stand there at a time
        sums = -(-(sums // max(1, row)) // 2) * row
    shared = values * bytes_of + (sums + sums // 16) * 8 * problem.parts
    own = (4 << 10) * problem.parts
    fit = 2 if problem.arrays == 2 and not narrow and 2 * (shared + own + _RESERVED) <= _WHOLE else 1
    return _Cut(group, threads, values, shared, own, fit if shared + own + _RESERVED <= _WHOLE else 0)


@dataclass(frozen=True)
class ClusterConfig(Config):
    """Knobs of clusters: the blocks of one, and the channels that it takes one after another."""

    size: int
    turns: int

    @classmethod
    def _of(cls, problem: Any, size: int) -> ClusterConfig | None:
        """Return the config of a size, None where its blocks do not hold their channels."""
        cut = _cut(problem, size)
        if cut is None or not cut.at_once:
            return None
        if size == 8 and not cut.group and cut.shared_bytes > _HALF and not _alone(problem):
            return None
        blocks, at_once = cut.groups(problem.channels) * size, _MULTIPROCESSORS * cut.at_once
        if size <= 2:  # as many as about fill a GPU surely are on it at a time
            return cls(size, -(-blocks // at_once) or 1)
        # How many larger ones are depends on its parts: two turns at most, so that one too many costs little
        many = at_once if size > 8 else 4 * at_once
        return cls(size, 1 if cut.group else max(1, min(2, blocks // many)))

    @classmethod
    def _fitting(cls, problem: Any) -> list[ClusterConfig]:
        sizes = () if _cancels(problem) else _sizes(problem)
        return [config for size in sizes if (config := cls._of(problem, size))]

    @classmethod
    def heuristic(cls, problem: Any) -> ClusterConfig:
        """Return the smallest size that holds its channels, in enough blocks, which have enough to do."""
        fitting = cls._fitting(problem)
        little = problem.dtype.size == 8 or held_bytes(problem, problem.arrays) < _LITTLE[problem.arrays]
        found = [config for config in fitting if config.size < 16 or not little] or fitting or [cls(8, 1)]
        for config in found:
            cut = _cut(problem, config.size)
            pairs = problem.arrays == 2 and config.size == 2 and problem.hw > 1
            enough = _MULTIPROCESSORS // 2 if pairs else _MULTIPROCESSORS
            if cut and cut.groups(problem.channels) * config.size >= enough:
                return config
        return found[-1]

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[ClusterConfig]:
        """Return each size that holds its channels, and other turns of it."""
        fitting = cls._fitting(problem)
        more = [cls(config.size, turns) for config in fitting for turns in (1, 2, 4)]
        return tuple(dict.fromkeys((cls.heuristic(problem), *fitting, *more)))


def worth_clusters(problem: Any) -> bool:
    """Return whether clusters are fastest: values are many, or channels few and large, and they hold one."""
    many = problem.channels * problem.count > 1 << 19 or (problem.hw > 1 and large_and_few(problem))
    worth = problem.training and many and not too_large_and_few(problem)
    return worth and bool(ClusterConfig._fitting(problem))


def clusters(
    problem: Any, config: ClusterConfig, limits: Limits, arrays: tuple[Argument, ...], scalars: tuple[Argument, ...]
) -> Schedule | Refusal:
    """Return the schedule, of an entry that takes such arrays and, after the sizes, such scalars."""
    if config.size not in _sizes(problem):
        of_columns = " where channels lie side by side" if _group(problem) else ""
        return Refusal(f"no clusters are of {config.size} blocks{of_columns}")
    if _cancels(problem):
        return Refusal(f"of gradients in f64 a channel has {problem.count} values, fewer than {_FEW_VALUES}")
    if problem.channels >> 31:  # a cluster's next channel would be one before
        return Refusal(f"{problem.channels} channels are more than {(1 << 31) - 1}")
    if config.size > limits.max_cluster:
        return Refusal(f"the device has no room for clusters of {config.size} blocks")
    cut = _cut(problem, config.size)
    if cut is None:
        return Refusal(f"vectors of {problem.vector} values do not end where channels do")
    name = f"{problem.op}_cluster{config.size}{'_columns' if cut.group else ''}"
    lanes = (cut.group, min(32, 1 << (cut.threads // cut.group).bit_length() - 1)) if cut.group else ()
    launch = Launch(
        FAMILY.kernel(name, problem.dtype, "ptx"),
        (config.size * -(-cut.groups(problem.channels) // config.turns),),
        cut.threads,
        (*arrays, *problem.sizes, *scalars, cut.values, *lanes),
        cut.shared_bytes,
        cut.own_bytes,
    )
    return problem.without_statistics or Schedule((launch,), problem.guarantee)
