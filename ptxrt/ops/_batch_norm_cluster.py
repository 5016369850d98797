"""How clusters of blocks run batch_norm in training, which keep a channel's values in their shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Refusal, Role, Schedule

__all__ = ["FAMILY", "ClusterConfig", "clusters", "worth_clusters"]

SIZES = (2, 8)
"""Of a cluster, in blocks."""

_FORWARD = (
    "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, P* mean_ptr, P* var_ptr, P*? rmean_ptr, "
    "P*? rvar_ptr, u32 batch, u32 channels, u32 hw, P eps, P momentum, u32 values"
)
_BACKWARD = (
    "const T* in_ptr, const T* go_ptr, T* gi_ptr, P*? gw_ptr, P*? gb_ptr, const P*? w_ptr, const P*? mean_ptr, "
    "const P*? var_ptr, u32 batch, u32 channels, u32 hw, P eps, u32 values"
)
FAMILY = KernelFamily(
    "batch_norm_cluster",
    ("f32", "f16", "bf16", "f64"),
    {
        f"batch_norm_{direction}cluster{size}{columns}": Role(
            signature + (", u32 group, u32 lanes" if columns else ", u32 held" if size == SIZES[-1] else ""), target=90
        )
        for size in SIZES
        for direction, signature in (("", _FORWARD), ("backward_", _BACKWARD))
        for columns in ("", "_columns")
    },
    op="batch_norm",
)

_LONG_ROW = 256  # bytes from which a row is read as one: below, channels lie side by side
_THREADS, _OF_COLUMNS = 512, 256
_MOST_CHANNELS = 64
_LARGE = 224 << 10  # bytes of shared memory that a multiprocessor has
_HALF = _LARGE // 2  # so that one block reads while another one writes
_AGAIN = 112 << 10  # bytes that a block reads twice: those of all that run at a time stay in the L2 between
_MULTIPROCESSORS = 128  # about as many as such a GPU has


class _Cut(NamedTuple):
    """The channels that a cluster has at a time, and what one of its blocks has of them."""

    group: int  # 0 where a row is one channel's
    values: int
    held: int  # of these in shared memory; the rest is read twice
    again_bytes: int  # that a block reads twice
    shared_bytes: int
    at_once: int  # blocks that a multiprocessor has room for

    def groups(self, channels: int) -> int:
        """Return how many times a cluster's channels there are."""
        return channels // (self.group or 1)


def _group(problem: Any) -> int | None:
    """Return the channels that a cluster has side by side, 0 for one whose rows are long; None where vectors cannot."""
    if problem.hw % problem.vector == 0 and problem.hw * problem.dtype.size >= _LONG_ROW:
        return 0
    base, most = problem.vector // math.gcd(problem.vector, problem.hw), _OF_COLUMNS * problem.vector
    groups = [
        group
        for group in range(base, _MOST_CHANNELS + 1, base)
        if problem.channels % group == 0 and group * problem.hw <= most
    ]
    long = (group for group in groups if group * problem.hw * problem.dtype.size >= _LONG_ROW)
    return next(long, groups[-1] if groups else None)


def _cut(problem: Any, size: int) -> _Cut | None:
    group = _group(problem)
    if group is None:
        return None
    unit = problem.arrays * problem.dtype.size * problem.vector
    if group:
        values = -(-problem.batch // size) * group * problem.hw
        if problem.dtype.size == 2:  # a place of two rows: so two blocks of 256 x 2048 x 7 x 7 fit a multiprocessor
            rows = _OF_COLUMNS * problem.vector // max(1, group * problem.hw)
            extra = -(-rows // 2) * group * problem.hw * 8
        else:
            extra = _OF_COLUMNS * problem.vector * 8 * problem.parts
    else:
        values = -(-problem.count // (size * problem.vector)) * problem.vector
        extra = 0
    held = values
    if size == SIZES[-1] and not group:
        held = min(held, _HALF // (unit * _THREADS) * _THREADS * problem.vector)
    shared = held // problem.vector * unit + extra
    again = (values - held) // problem.vector * unit
    return _Cut(group, values, held, again, shared, max(1, min(3 if group else 2, _LARGE // max(1, shared))))


@dataclass(frozen=True)
class ClusterConfig(Config):
    """Knobs of clusters: the blocks of one, and the channels that it takes one after another."""

    size: int
    turns: int

    @classmethod
    def _of(cls, problem: Any, size: int) -> ClusterConfig | None:
        """Return the config of a size: turns where as many clusters as about fill a GPU surely are on it at a time."""
        cut = _cut(problem, size)
        if cut is None or cut.shared_bytes > _LARGE or cut.again_bytes > _AGAIN:
            return None
        blocks = cut.groups(problem.channels) * size
        return cls(size, -(-blocks // (_MULTIPROCESSORS * cut.at_once)) or 1 if size == SIZES[0] else 1)

    @classmethod
    def heuristic(cls, problem: Any) -> ClusterConfig:
        """Return the smallest size that holds its channels, in enough blocks."""
        small, cut = cls._of(problem, SIZES[0]), _cut(problem, SIZES[0])
        large = cls._of(problem, SIZES[-1]) or cls(SIZES[-1], 1)
        return small if small and cut and cut.groups(problem.channels) * SIZES[0] >= _MULTIPROCESSORS else large

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[ClusterConfig]:
        """Return each size that holds its channels."""
        found = [config for size in SIZES if (config := cls._of(problem, size))]
        return tuple(dict.fromkeys((*found, cls.heuristic(problem))))


def worth_clusters(problem: Any) -> bool:
    """Return whether clusters are fastest: the values are many, and what they read twice stays in the L2 between."""
    many = problem.channels * problem.count > 1 << 19
    return problem.training and many and ClusterConfig._of(problem, SIZES[-1]) is not None


def clusters(
    problem: Any, config: ClusterConfig, arrays: tuple[Argument, ...], scalars: tuple[Argument, ...]
) -> Schedule | Refusal:
    """Return the schedule, of an entry that takes such arrays and, after the sizes, such scalars."""
    if config.size not in SIZES:
        return Refusal(f"no clusters are of {config.size} blocks")
    cut = _cut(problem, config.size)
    if cut is None:
        return Refusal(f"vectors of {problem.vector} values do not end where channels do")
    name = f"{problem.op}_cluster{config.size}{'_columns' if cut.group else ''}"
    blocks = config.size * -(-cut.groups(problem.channels) // config.turns)
    own: tuple[Argument, ...] = (cut.held,) if config.size == SIZES[-1] else ()
    if cut.group:
        own = (cut.group, min(32, 1 << (_OF_COLUMNS // cut.group).bit_length() - 1))
    launch = Launch(
        FAMILY.kernel(name, problem.dtype, "ptx"),
        (blocks,),
        _OF_COLUMNS if cut.group else _THREADS,
        (*arrays, *problem.sizes, *scalars, cut.values, *own),
        cut.shared_bytes,
    )
    return problem.without_statistics or Schedule((launch,), problem.guarantee)
