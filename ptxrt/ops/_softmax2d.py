"""softmax2d: softmax over the channels at every position, and its backward from the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops._softmax2d_held import SECTOR, Anchored, Direction, Held, guarantee
from ptxrt.ops._softmax2d_small import Small
from ptxrt.ops._softmax2d_strips import Strips
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Config,
    ImageDescriptor,
    KernelFamily,
    Launch,
    Limits,
    Operand,
    Plan,
    Refusal,
    Role,
    Schedule,
    Variant,
    blocks_in_hip,
    ceil_div,
    plan_cache,
)
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

__all__ = [
    "FAMILY",
    "Softmax2dArgs",
    "Softmax2dBackwardArgs",
    "Softmax2dBackwardDescriptor",
    "Softmax2dBackwardPlan",
    "Softmax2dDescriptor",
    "Softmax2dPlan",
    "softmax2d",
    "softmax2d_backward",
]

HELD = 32
"""Channels that a thread holds in registers."""

_COUNTED = 1 << 32  # columns, which a u32 does not count
_ALL_LANES = 1 << 16  # that columns have where they are enough for a GPU
_MANY_COLUMNS = 1 << 15  # of which threads in HIP keep pace, also where they read twice
_READ_TWICE, _READ_TWICE_HALVES = 48, 100  # channels, up to which they do; of the backward of 16 bits

_FORWARD, _BACKWARD = "const T* in_ptr, T* out_ptr, ", "const T* go_ptr, const T* y_ptr, T* gi_ptr, "
_COUNTS = "u32 total, u32 channels, u32 hw"
_TILE = "u64 batch, u32 channels, u32 hw, u32 positions, u32 lanes"
_ROWS = "u64 rows, u32 per_row, u32 shift"
FAMILY = KernelFamily(
    "softmax2d",
    ("f32", "f64", "f16", "bf16"),
    {
        "softmax2d_kernel": Role(_FORWARD + _COUNTS, hip=True),
        "softmax2d_tiled_kernel": Role(_FORWARD + _TILE, hip=True),
        "softmax2d_backward_kernel": Role(_BACKWARD + _COUNTS, hip=True),
        "softmax2d_backward_tiled_kernel": Role(_BACKWARD + _TILE, hip=True),
        "softmax2d_last_kernel": Role(_FORWARD + _ROWS, hip=True),
        "softmax2d_backward_last_kernel": Role(_BACKWARD + _ROWS, hip=True),
    },
    targets=ROUNDING_TARGETS,
)


@dataclass(frozen=True)
class _Problem(ImageDescriptor):
    """What forward and backward have in common: the shape and the element type of every operand."""

    shape: tuple[int, ...]
    dtype: ElementType = BY_NAME["f32"]
    strides: tuple[int, ...] = ()

    types = FAMILY.dtypes

    @property
    def positions(self) -> int:
        """N times HW, the columns."""
        return self.batch * self.hw


class Softmax2dDescriptor(_Problem):
    """A problem of softmax2d: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, ``[N, C, *]``.
    dtype
        Of x and y.
    strides
        Of x and y, in elements: contiguous if left out, else that or channels-last.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch, LayoutError
    """

    op = "softmax2d"


class Softmax2dBackwardDescriptor(_Problem):
    """A problem of softmax2d_backward: pure data, hashable.

    Parameters
    ----------
    shape
        Of grad_out and y, ``[N, C, *]``.
    dtype
        Of grad_out, y and grad_input.
    strides
        Of all three, in elements: contiguous if left out, else that or channels-last.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch, LayoutError
    """

    op = "softmax2d_backward"
    first = "grad_out"


class Softmax2dArgs(NamedTuple):
    """Operands of :class:`Softmax2dPlan`; without `out` the result is allocated."""

    x: DeviceArrayLike
    out: DeviceArrayLike | None = None


class Softmax2dBackwardArgs(NamedTuple):
    """Operands of :class:`Softmax2dBackwardPlan`; without `out`, which is grad_input, the result is allocated."""

    grad_out: DeviceArrayLike
    y: DeviceArrayLike
    out: DeviceArrayLike | None = None


class _Tile(NamedTuple):
    """What a block of a tiled kernel takes, and how many of these there are."""

    positions: int
    lanes: int
    images: int
    tiles: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.images * self.lanes * self.positions


def _tile(problem: _Problem, threads: int, most_threads: int) -> _Tile:
    """Return the tiles: of columns split so that registers hold them, if the block then still reads whole sectors.

    A block has `threads`, about, or as many as one column needs; at most `most_threads`.
    """
    batch, channels, hw = problem.batch, problem.channels, problem.hw
    threads, sector = min(threads, most_threads), SECTOR // problem.dtype.size
    lanes = min(ceil_div(channels, HELD), most_threads // min(hw, sector))
    unit = 1 if hw % sector else sector  # where rows begin with a sector, so do strips
    columns = min(max(threads, 32 * lanes), most_threads) // lanes // unit * unit
    positions = ceil_div(ceil_div(hw, ceil_div(hw, columns)), unit) * unit
    lanes = max(lanes, min(ceil_div(channels, 8), 32 // positions))  # where channels lie side by side, so do lanes
    images = max(1, threads // (positions * lanes))  # 1 where an image has several strips: they are that wide
    return _Tile(positions, lanes, images, ceil_div(batch, images) * ceil_div(hw, positions))


_FORWARD_WAY = Direction("softmax2d", ("x", "out"), 1024)
_BACKWARD_WAY = Direction("softmax2d_backward", ("grad_out", "y", "out"), 512)


@dataclass(frozen=True)
class ThreadsConfig(Config):
    """Knobs of both variants: the threads of a block; of a tiled one about, where a column needs more."""

    threads: int

    @classmethod
    def heuristic(cls, problem: _Problem) -> ThreadsConfig:
        """As measured on an H200."""
        del problem
        return cls(128)

    @classmethod
    def candidates(cls, problem: _Problem) -> Sequence[ThreadsConfig]:
        """Return blocks of 128, 256 and 512, the last not for f64: its backward has no registers for as many."""
        most = 256 if problem.dtype.name == "f64" else 512
        return tuple(cls(threads) for threads in (128, 256, 512) if threads <= most)


class Columns(Variant[_Problem, ThreadsConfig]):
    """A thread for each column."""

    name = "baseline"
    config_type = ThreadsConfig

    def __init__(self, way: Direction, language: str = "ptx") -> None:
        super().__init__(language)
        self.way = way

    def suits(self, problem: _Problem) -> bool:
        """Columns that registers hold; in HIP, of many, some more, which it reads twice, as measured on an H200."""
        most = HELD
        if self.language == "hip" and problem.dtype.name != "f64" and problem.positions >= _MANY_COLUMNS:
            most = _READ_TWICE_HALVES if problem.dtype.size == 2 and problem.op.endswith("backward") else _READ_TWICE
        return problem.channels <= most and problem.hw >= 32

    def schedule(self, problem: _Problem, config: ThreadsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        most = self.way.most_threads(problem, self.language)
        if config.threads > most:
            return Refusal(f"{config.threads} threads are more than the {most} that a block may have")
        name = f"{self.way.name}_kernel"
        sizes: tuple[int, ...] = (problem.positions, problem.channels, problem.hw)
        blocks = ceil_div(problem.positions, config.threads)
        if self.language == "hip":
            blocks = blocks_in_hip(problem.positions, config.threads)
            if problem.positions >= _COUNTED:  # a tile of one column and one lane is a thread
                name, sizes = f"{self.way.name}_tiled_kernel", (problem.batch, problem.channels, problem.hw, 1, 1)
        kernel = FAMILY.kernel(name, problem.dtype, self.language)
        launch = Launch(kernel, (blocks,), config.threads, (*self.way.arrays, *sizes))
        return Schedule((launch,), guarantee(problem))


class Tiled(Variant[_Problem, ThreadsConfig]):
    """Several threads for each column."""

    name = "tiled"
    config_type = ThreadsConfig

    def __init__(self, way: Direction, language: str = "ptx") -> None:
        super().__init__(language)
        self.way = way

    def schedule(self, problem: _Problem, config: ThreadsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        tile = _tile(problem, config.threads, self.way.most_threads(problem, self.language))
        kernel = FAMILY.kernel(f"{self.way.name}_tiled_kernel", problem.dtype, self.language)
        sizes = (problem.batch, problem.channels, problem.hw, tile.positions, tile.lanes)
        blocks = tile.tiles
        if self.language == "hip":  # where blocks take turns
            blocks = blocks_in_hip(tile.tiles * tile.threads, tile.threads)
        return Schedule((Launch(kernel, (blocks,), tile.threads, (*self.way.arrays, *sizes)),), guarantee(problem))


@dataclass(frozen=True)
class LanesConfig(Config):
    """Knobs of columns whose channels lie side by side: the lanes of each, a power of two of up to 32."""

    lanes: int

    @classmethod
    def heuristic(cls, problem: _Problem) -> LanesConfig:
        """As few as have the registers, but for few columns, not of f64, twice as many, as measured on an H200."""
        least, *more = cls.candidates(problem)
        few = problem.dtype.size < 8 and problem.batch * least.lanes < _ALL_LANES
        few &= problem.channels // problem.vector > least.lanes
        return more[0] if more and few else least

    @classmethod
    def candidates(cls, problem: _Problem) -> Sequence[LanesConfig]:
        """Return the smallest two."""
        every = [cls(1 << shift) for shift in range(6)]
        return [config for config in every if problem.channels <= config.lanes * _registers(problem)][:2] or every[-1:]


def _registers(problem: _Problem) -> int:
    """Return how many values a thread holds of a column whose channels lie side by side."""
    return HELD // 2 if problem.dtype.name == "f64" else HELD


class Last(Variant[_Problem, LanesConfig]):
    """Lanes of a warp for each column, which take 16 bytes of channels that lie side by side."""

    name = "last"
    config_type = LanesConfig
    threads = 256

    def __init__(self, way: Direction, language: str = "ptx") -> None:
        super().__init__(language)
        self.way = way

    def schedule(self, problem: _Problem, config: LanesConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := problem.not_in_vectors:
            return refusal
        if config.lanes not in (1, 2, 4, 8, 16, 32):
            return Refusal(f"{config.lanes} lanes are no power of two of up to 32")
        if problem.channels > config.lanes * _registers(problem):
            return Refusal(f"{problem.channels} channels do not fit the registers of {config.lanes} lanes")
        kernel = FAMILY.kernel(f"{self.way.name}_last_kernel", problem.dtype, self.language)
        sizes = (problem.batch, problem.channels // problem.vector, config.lanes.bit_length() - 1)
        blocks = ceil_div(problem.batch * config.lanes, self.threads)
        return Schedule((Launch(kernel, (blocks,), self.threads, (*self.way.arrays, *sizes)),), guarantee(problem))


def _variants(way: Direction) -> tuple[Variant[Any, Any], ...]:
    in_ptx = Last(way), Columns(way), Held(way), Tiled(way)
    anchored = (Anchored(way),) if way is _FORWARD_WAY else ()
    few = Strips(way.name, way.arrays), Small(way.name, way.arrays), *anchored
    in_hip = Last(way, "hip"), Held(way, "hip"), Columns(way, "hip"), Tiled(way, "hip")
    return *few, *in_ptx, Strips(way.name, way.arrays, "hip"), *in_hip


class Softmax2dPlan(Plan[Softmax2dDescriptor, Softmax2dArgs, DeviceArray]):
    """Plan of :func:`softmax2d`; run it with :class:`Softmax2dArgs`.

    Variants: ``small``, for few values; ``strips``, a thread for a few neighbouring columns of few channels, and of
    16 bits several of them; ``last``, lanes of a warp for each column, whose channels lie side by side;
    ``baseline``, a thread for each column, best where registers hold it; ``held``, several threads for each column, of
    a block or a cluster of blocks, whose registers hold all of it, and several neighbours at a time; ``anchored``, the
    same without a maximum, as long as no value is far above the column's first; ``tiled``, several threads for each
    column of any length, and in PTX the only one for 2**32 columns and more where these are not side by side.
    """

    op = "softmax2d"
    category = "activation"
    descriptor_type = Softmax2dDescriptor
    variants = _variants(_FORWARD_WAY)

    def _operands(self) -> tuple[Operand, ...]:
        tensor = self.descriptor.shape, self.descriptor.dtype, self.descriptor.strides
        return (Operand("x", *tensor), Operand("out", *tensor, output=True, in_place=("x",)))


class Softmax2dBackwardPlan(Plan[Softmax2dBackwardDescriptor, Softmax2dBackwardArgs, DeviceArray]):
    """Plan of :func:`softmax2d_backward`; run it with :class:`Softmax2dBackwardArgs`.

    Variants: as of :class:`Softmax2dPlan`, but for ``anchored``.
    """

    op = "softmax2d_backward"
    category = "activation"
    descriptor_type = Softmax2dBackwardDescriptor
    variants = _variants(_BACKWARD_WAY)

    def _operands(self) -> tuple[Operand, ...]:
        tensor = self.descriptor.shape, self.descriptor.dtype, self.descriptor.strides
        return (
            Operand("grad_out", *tensor),
            Operand("y", *tensor),
            Operand("out", *tensor, output=True, in_place=("grad_out", "y")),
        )


_plan = plan_cache(Softmax2dPlan)
_backward_plan = plan_cache(Softmax2dBackwardPlan)


def softmax2d(
    x: DeviceArrayLike, *, out: DeviceArrayLike | None = None, stream: StreamLike | None = None
) -> DeviceArray:
    """Softmax over the channels at each position.

    ``y[n, c, p] = exp(x[n, c, p] - m) / sum_c exp(x[n, c, p] - m)`` with ``m = max_c x[n, c, p]``, as
    ``torch.softmax(x, 1)``: a column of -inf, or with NaN or +inf in it, is NaN in all of its channels.

    Parameters
    ----------
    x
        ``[N, C, *]``, float32, float64, float16 or bfloat16, contiguous or channels-last.
    out
        Where to write, of x's shape and layout; it may be x.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        y, of x's shape and layout; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    if type(x) is not DeviceArray:
        x = as_array(x, None, "softmax2d", "x", stream)
    return _plan(x.device, x.shape, x.dtype, x.strides)._run((x, out), stream)


def softmax2d_backward(
    grad_out: DeviceArrayLike,
    y: DeviceArrayLike,
    *,
    out: DeviceArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Gradient of :func:`softmax2d` from its output: ``grad_input = y * (grad_out - sum_c grad_out * y)``.

    Parameters
    ----------
    grad_out
        ``[N, C, *]``, float32, float64, float16 or bfloat16, contiguous or channels-last.
    y
        What softmax2d returned, of the same shape and layout.
    out
        Where to write grad_input, of the same shape and layout; it may be grad_out or y.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        grad_input; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    if type(grad_out) is not DeviceArray:
        grad_out = as_array(grad_out, None, "softmax2d_backward", "grad_out", stream)
    plan = _backward_plan(grad_out.device, grad_out.shape, grad_out.dtype, grad_out.strides)
    return plan._run((grad_out, y, out), stream)
