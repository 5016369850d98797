"""batch_norm in training and group_norm of channels-last arrays, forward and backward: clusters hold what they read."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Limits, Refusal, Role, Schedule

__all__ = ["FAMILY", "HeldTile", "TileConfig"]

SIZES = (1, 2, 4, 8)
"""Of a cluster, in blocks."""

_THREADS = 256
_FEWER_THREADS = (128, 64)  # of a block that is a cluster by itself
_MOST_BYTES = 224 << 10  # of shared memory, of which a multiprocessor has a little more
_MULTIPROCESSORS = {1: 132, 2: 132, 4: 120, 8: 120}
"""Size of a cluster -> how many of an H200 have one at a time, about: its parts are no multiples of large ones."""

_ENDING = "u32 rows, u32 channels, u32 per_group, P eps, {}u32 across, u32 lanes, u32 room"
_FORWARD = (
    "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, P*? mean_ptr, P*? var_ptr, P*? rmean_ptr, "
    f"P*? rvar_ptr, {_ENDING.format('P momentum, ')}"
)
_BACKWARD = (
    "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, const P*? mean_ptr, const P*? var_ptr, P*? gw_ptr, "
    f"P*? gb_ptr, f64*? partials_ptr, f64*? statistics_ptr, {_ENDING.format('')}"
)


def _entry(size: int, threads: int) -> str:
    """Return what the names of a cluster's entries end with."""
    return f"cluster{size}" + (f"_{threads}" if threads < _THREADS else "")


FAMILY = KernelFamily(
    "norm_last_cluster",
    ("f32", "f16", "bf16", "f64"),
    {
        f"norm_last_{direction}{_entry(size, threads)}": Role(
            signature,
            parameters={"size": str(size)} | ({"threads": str(threads)} if threads < _THREADS else {}),
            target=90,
        )
        for size, threads in (*((size, _THREADS) for size in SIZES), *((1, fewer) for fewer in _FEWER_THREADS))
        for direction, signature in (("", _FORWARD), ("backward_", _BACKWARD))
    },
    op="batch_norm",
    also=("batch_norm_backward", "group_norm", "group_norm_backward"),
)


@dataclass(frozen=True)
class TileConfig(Config):
    """Knobs of clusters that hold tiles of channels-last arrays.

    Attributes
    ----------
    size
        Blocks of a cluster.
    across
        Vectors of 16 bytes, side by side, of a tile's rows: whole groups of channels.
    threads
        Of a block: 256, of one that is a cluster by itself 64 or 128 too.
    """

    size: int
    across: int
    threads: int = _THREADS

    @classmethod
    def heuristic(cls, problem: Any) -> TileConfig:
        """Return the one of the least cost, :attr:`HeldTile.cost`, in narrower tiles where these are faster."""
        return cls.candidates(problem)[0]

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[TileConfig]:
        """Return narrow tiles, and the four of the least cost."""
        found = sorted(cls._fitting(problem), key=lambda config: HeldTile(problem, config).cost)[:4]
        if not found:
            return (cls(SIZES[-1], 1),)
        return tuple(dict.fromkeys([HeldTile(problem, found[0]).narrow, *found]))

    @classmethod
    def fits(cls, problem: Any) -> bool:
        """Return whether clusters hold such a problem's tiles."""
        return any(True for _ in cls._fitting(problem))

    @classmethod
    def pay(cls, problem: Any, few: int, many: int | None = None) -> bool:
        """Return whether clusters are fastest, as measured on an H200: of more than `few` values small ones alone.

        Of `many` values and more none are.
        """
        if not cls.fits(problem) or (many and problem.elements >= many):
            return False
        return problem.elements <= few or cls.heuristic(problem).size <= 2

    @classmethod
    def _fitting(cls, problem: Any) -> Iterator[TileConfig]:
        geometry = _geometry(problem)
        if geometry is None:
            return
        base = math.lcm(geometry.per_group, problem.vector) // problem.vector
        most = min(problem.channels, _THREADS) // problem.vector
        widths = [base << exponent for exponent in range(6) if base << exponent < 2 * most]
        for size in SIZES:
            for across in widths:
                if not HeldTile(problem, cls(size, across)).refusal():
                    yield cls(size, across)


class _Geometry(NamedTuple):
    """Channels-last arrays as the kernels see them: images of rows of channels, of which groups are normalised."""

    images: int
    rows: int
    per_group: int


def _geometry(problem: Any) -> _Geometry | None:
    """Return that of batch_norm, whose positions are rows of one image, or of group_norm; None of another layout."""
    if problem.op.startswith("batch_norm"):
        return _Geometry(1, problem.batch, 1) if problem.hw == 1 else None
    return _Geometry(problem.batch, problem.hw, problem.channels // problem.groups) if problem.channels_last else None


@dataclass(frozen=True)
class HeldTile:
    """A tile of a problem.

    Attributes
    ----------
    problem
        A descriptor of channels-last arrays.
    config
        Of the variant.
    """

    problem: Any
    config: TileConfig

    @property
    def _geometry(self) -> _Geometry:
        return _geometry(self.problem) or _Geometry(0, 0, 1)

    @property
    def _channels(self) -> int:
        count: int = self.config.across * self.problem.vector
        return count

    @property
    def blocks(self) -> int:
        """Of all clusters."""
        count: int = self.config.size * self._geometry.images * -(-self.problem.channels // self._channels)
        return count

    @property
    def _room(self) -> int:
        """Return the bytes that a block holds: of so many rows a thread, at most."""
        rows = -(-self._geometry.rows // (self.config.size * (self.config.threads // self.config.across)))
        count: int = rows * self.problem.arrays * 16 * self.config.threads
        return count

    @property
    def _shared_bytes(self) -> int:
        problem, channels = self.problem, self._channels
        kinds, groups = 2 * problem.arrays, channels // self._geometry.per_group
        sums = 2 * self.config.threads * problem.vector + kinds * channels + (kinds * self.config.size + 4) * groups
        count: int = self._room + 8 * problem.parts * sums + (8 * channels if problem.arrays == 2 else 0)
        return count

    @property
    def cost(self) -> float:
        """About how many microseconds more than others it takes: fitted to times on an H200.

        A multiprocessor reads and writes what all of its blocks hold, and each of them takes time besides. Of pieces of
        memory below 64 bytes, or of half sectors, more is read than is wanted; arithmetic on elements of 16 bits leaves
        time for some of it.
        """
        each = -(-self.blocks // _MULTIPROCESSORS[self.config.size])
        more = {1: 2.2} if self.problem.dtype.size == 2 else {1: 3.0, 2: 1.4, 3: 1.3, 5: 1.2}
        wasted = more.get(self.config.across, 1.0)
        cost: float = self.config.size.bit_length() + each * (self.problem.arrays / 4 + self._room * wasted / 16_000)
        return cost

    @property
    def narrow(self) -> TileConfig:
        """The config of tiles that fewer threads have, with as many rows a thread, where that is faster.

        As measured on an H200: smaller blocks end, and others begin, at more different times.
        """
        size, across, half = self.config.size, self.config.across, self.problem.dtype.size == 2
        each = -(-self._geometry.rows * across // _THREADS)  # rows of a thread
        few = 2 if self.problem.dtype.size != 4 or each <= 4 else 4  # vectors, whose pieces of memory suffice
        for parts, threads, least in ((4, 64, 4), (2, 128 if each > 1 else 64, few)):
            config = TileConfig(size, across // parts, threads)
            if size == 1 and across % parts == 0 and config.across >= least:
                return config if HeldTile(self.problem, config).refusal() is None else self.config
        return TileConfig(1, 2, 128) if half and (size, across) == (1, 2) else self.config

    def refusal(self) -> Refusal | None:
        """Return why there is no such tile, or None."""
        problem, config, geometry = self.problem, self.config, _geometry(self.problem)
        if geometry is None:
            return Refusal("is for channels that lie side by side")
        if problem.channels % problem.vector:
            return Refusal(
                f"vectors of {problem.vector} values do not end where rows of {problem.channels} channels do"
            )
        if config.size not in SIZES:
            return Refusal(f"no clusters are of {config.size} blocks")
        if config.threads not in (_THREADS, *_FEWER_THREADS) or (config.size > 1 and config.threads < _THREADS):
            return Refusal(f"no clusters of {config.size} have blocks of {config.threads} threads")
        if config.across < 1 or self._channels % geometry.per_group:
            return Refusal(f"tiles of {self._channels} channels are no whole groups of {geometry.per_group}")
        if self._channels > self.config.threads:
            return Refusal(f"tiles have {self._channels} channels, above {config.threads}")
        for name, count in (("channels", problem.channels), ("rows", geometry.rows)):
            if count >> 31:
                return Refusal(f"{name} = {count} is above {(1 << 31) - 1}")
        if self._shared_bytes > _MOST_BYTES:
            return Refusal(f"tiles take {self._shared_bytes} bytes of a block's shared memory, above {_MOST_BYTES}")
        return None

    def schedule(self, limits: Limits, arrays: tuple[Argument, ...], *momentum: Argument) -> Schedule | Refusal:
        """Return the schedule of that launch alone, or why there is none."""
        launch = self.launch(limits, arrays, *momentum)
        return launch if isinstance(launch, Refusal) else Schedule((launch,), self.problem.guarantee)

    def launch(self, limits: Limits, arrays: tuple[Argument, ...], *momentum: Argument) -> Launch | Refusal:
        """Return the launch of the entry that takes such arrays, or why there is none."""
        if refusal := self.refusal():
            return refusal
        problem, config, geometry = self.problem, self.config, self._geometry
        if config.size > limits.max_cluster:
            return Refusal(f"the device has no room for clusters of {config.size} blocks")
        direction = "backward_" if problem.arrays == 2 else ""
        lanes = min(32, 1 << (self.config.threads // self._channels).bit_length() - 1)
        sizes = (geometry.rows, problem.channels, geometry.per_group, problem.eps, *momentum)
        return Launch(
            FAMILY.kernel(f"norm_last_{direction}{_entry(config.size, config.threads)}", problem.dtype, "ptx"),
            (self.blocks,),
            self.config.threads,
            (*arrays, *sizes, config.across, lanes, self._room),
            self._shared_bytes,
            0,
        )
