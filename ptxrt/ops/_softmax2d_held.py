"""The variant of softmax2d and its backward whose registers, of a block or of a cluster of blocks, hold all values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Argument,
    Config,
    ImageDescriptor,
    KernelFamily,
    Launch,
    Limits,
    PrecisionGuarantee,
    Refusal,
    Role,
    Schedule,
    Variant,
    ceil_div,
)

__all__ = ["CLUSTERS", "FAMILY", "SECTOR", "Anchored", "Direction", "Held", "HeldConfig", "guarantee"]

SECTOR = 32
"""Bytes of memory that are read at once."""

CLUSTERS = (1, 2, 4)
"""Blocks of a cluster that the kernels are rendered for; a cluster of one is a block."""

_SMALL = 1 << 17  # elements, of which the largest devices have a thread for each
_LINE = 128  # bytes that the cache has together
_OF_A_THREAD, _FEW_CHANNELS = 32, 128  # that a thread holds; that clusters hold no sooner than threads read them twice
_FORWARD, _BACKWARD = "const T* in_ptr, T* out_ptr, ", "const T* go_ptr, const T* y_ptr, T* gi_ptr, "
_TILE = "u32 channels, u32 hw, u32 positions, u32 lanes, u32 strips, u32 share, u32 per_position, u32 per_lane"
FAMILY = KernelFamily(
    "softmax2d_held",
    ("f32", "f64", "f16", "bf16"),
    {
        f"{way}_{cluster}": Role(
            arrays + _TILE,
            hip=cluster == 1 and way != "softmax2d_anchored",
            parameters={"cluster": str(cluster)},
            dtypes=("f32", "f16", "bf16") if way == "softmax2d_anchored" else (),
            target=90 if cluster > 1 else None,
        )
        for cluster in CLUSTERS
        for way, arrays in (
            ("softmax2d_held", _FORWARD),
            ("softmax2d_anchored", _FORWARD),
            ("softmax2d_backward_held", _BACKWARD),
        )
    },
    targets=ROUNDING_TARGETS,
    op="softmax2d",
)


class Direction(NamedTuple):
    """What forward and backward differ in: the entries' name, the arrays, and the threads that registers allow."""

    name: str
    arrays: tuple[str, ...]
    threads: int

    def most_threads(self, problem: ImageDescriptor, language: str) -> int:
        """Of a block that has a thread for each column or lane: a number of f64 takes two registers."""
        threads = self.threads if language == "ptx" else min(self.threads, 512)
        return threads // 2 if problem.dtype.name == "f64" else threads


def guarantee(problem: ImageDescriptor) -> PrecisionGuarantee:
    """Arithmetic is f32 for values of 16 bits; sums are pairs of it."""
    real = "f64" if problem.dtype.name == "f64" else "f32"
    return PrecisionGuarantee(real, f"2 x {real}", deterministic=True, bit_stable_on_same_hardware=True)


def _guarantee(problem: ImageDescriptor) -> PrecisionGuarantee:
    """Return that of `held`: sums of the forward are f32 for values of 16 bits."""
    found = guarantee(problem)
    short = problem.dtype.size == 2 and not problem.op.endswith("backward")
    return replace(found, accumulator="f32") if short else found


class _Tile(NamedTuple):
    """What a block or a cluster takes, as the kernel's parameters have it."""

    positions: int
    lanes: int
    strips: int
    share: int


def _tile(problem: ImageDescriptor, config: HeldConfig) -> _Tile | None:
    """Return the tiles for blocks of up to so many threads, or None where registers do not hold them.

    Wide ones, up to whole images: the more columns lie side by side, the fewer sectors are read in vain.
    """
    if problem.empty:
        return None
    threads, cluster = config.threads, config.cluster
    channels, hw, size = problem.channels, problem.hw, problem.dtype.size
    vector = _vector(problem)
    turns = min(config.values, _held_values(problem)) // vector
    most = min(threads * vector * turns * cluster // channels, threads)
    positions, whole = hw, vector // math.gcd(hw, vector)  # of so many lanes, a turn is whole vectors
    if hw > most:
        unit, whole = (SECTOR // size if hw * size % SECTOR == 0 else vector), 1
        most = most // unit * unit
        if not most or hw % vector:
            return None
        positions = ceil_div(ceil_div(hw, ceil_div(hw, most)), unit) * unit
    if channels * hw % vector or positions < vector:
        return None
    share = ceil_div(channels, cluster * whole) * whole
    lanes = max(min(threads * vector // positions, share) // whole * whole, vector)
    fits = lanes * positions <= threads * vector and share <= lanes * turns
    return _Tile(positions, lanes, ceil_div(hw, positions), share) if fits else None


def _vector(problem: ImageDescriptor) -> int:
    """Return how many neighbours a thread takes at a time: 16 bytes, as numbers."""
    return 2 if problem.dtype.name == "f64" else 4


def _held_values(problem: ImageDescriptor) -> int:
    """Return how many values a thread holds in registers."""
    return 16 if problem.dtype.name == "f64" else 32


def _most_threads(problem: ImageDescriptor) -> int:
    return 256 if problem.dtype.name == "f64" else 512


def _wide(problem: ImageDescriptor, config: HeldConfig, *, half: bool) -> bool:
    """Return whether a tile is a whole image, or reads whole lines of memory; of a small problem sectors will do.

    So will `half` lines of 16 bits.
    """
    tile, least = _tile(problem, config), SECTOR if problem.elements <= _SMALL else _LINE
    size = max(problem.dtype.size, 4) if half else problem.dtype.size
    return tile is not None and (tile.strips == 1 or tile.positions * size >= least)


@dataclass(frozen=True)
class HeldConfig(Config):
    """Knobs: the most threads of a block, the blocks of a cluster, which has a tile, the most values of a thread."""

    threads: int
    cluster: int
    values: int = 32

    @classmethod
    def heuristic(cls, problem: ImageDescriptor) -> HeldConfig:
        """Few blocks and threads, so that tiles which are read lie beside such that are computed."""
        return cls.candidates(problem)[0]

    @classmethod
    def candidates(cls, problem: ImageDescriptor) -> Sequence[HeldConfig]:
        """Return the smallest four whose tile is wide; of a small problem those of few values a thread.

        Half lines of 16 bits are wide enough forward; backward they are the last resort: as measured on an H200.
        """
        most, half = _most_threads(problem), not problem.op.endswith("backward")
        few = [cls(128, 1, 8), cls(256, 1, 8)] if problem.elements <= _SMALL else []
        if few := [config for config in few if _wide(problem, config, half=half)]:
            return few
        every = [cls(threads, blocks) for blocks in CLUSTERS for threads in (128, 256, 512) if threads <= most]
        return [config for config in every if _wide(problem, config, half=half)][:4] or every[-1:]


class Held(Variant[ImageDescriptor, HeldConfig]):
    """A block, or a cluster of blocks, for each tile of neighbouring columns."""

    name = "held"
    config_type = HeldConfig

    def __init__(self, way: Direction, language: str = "ptx") -> None:
        super().__init__(language)
        self.way = way
        self.entry = f"{way.name}_held"

    def suits(self, problem: ImageDescriptor) -> bool:
        """Where a tile is a block's work, and wide; of f64 in PTX forward of some values, as measured on an H200.

        Nor where several blocks have a tile of few channels in f32, which threads keep pace with that read them twice.
        """
        dtype = problem.dtype.name
        least = 12 if (problem.op, dtype) == ("softmax2d", "f32") else 8
        enough = problem.channels > _OF_A_THREAD and problem.channels * problem.hw >= 1 << least
        many = (self.language, problem.op, dtype) == ("ptx", "softmax2d", "f64") and problem.elements > 1 << 20
        if not enough or many:
            return False
        config = HeldConfig.heuristic(problem)
        few = dtype == "f32" and config.cluster > 1 and problem.channels < _FEW_CHANNELS
        return not few and _wide(problem, config, half=True)

    def schedule(self, problem: ImageDescriptor, config: HeldConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        threads, cluster = config.threads, config.cluster
        if cluster not in CLUSTERS:
            return Refusal(f"there are clusters of {CLUSTERS} blocks, not of {cluster}")
        if threads > (most := _most_threads(problem)):
            return Refusal(f"{threads} threads are more than the {most} that a block may have")
        tile = _tile(problem, config)
        if tile is None:
            return Refusal(f"columns of whole vectors do not fit the registers of {cluster} x {threads} threads")
        if self.language == "hip" and cluster > 1:
            return Refusal("HIP has no clusters of blocks")
        vector = _vector(problem)
        block = tile.positions * tile.lanes // vector
        per = tuple(ceil_div(1 << 31, count) for count in (tile.positions, tile.lanes))
        kernel = FAMILY.kernel(f"{self.entry}_{cluster}", problem.dtype, self.language)
        real = 8 if problem.dtype.name == "f64" else 4
        across = 3 * cluster * tile.positions if cluster > 1 else 0
        shared = real * (2 * (vector + 1) * block + across + 2 * tile.positions)
        arguments: tuple[Argument, ...] = (*self.way.arrays, problem.channels, problem.hw, *tile, *per)
        if self.language == "hip":
            shared = 0  # its shared memory is the entry's own
        launch = Launch(kernel, (problem.batch * tile.strips * cluster,), block, arguments, shared)
        return Schedule((launch,), _guarantee(problem))


class Anchored(Held):
    """The same, forward, by powers of differences from channel 0: of values as they come, and with one exchange."""

    name = "anchored"

    def __init__(self, way: Direction) -> None:
        super().__init__(way)
        self.entry = f"{way.name}_anchored"

    def schedule(self, problem: ImageDescriptor, config: HeldConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if problem.dtype.name == "f64":
            return Refusal("is not for f64")
        return super().schedule(problem, config, limits)
