"""upsample_nearest2d and its backward: resize images by repeating or dropping rows and columns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import LayoutError, ShapeMismatch, shown
from ptxrt.ops.framework import (
    Argument,
    Config,
    KernelFamily,
    KernelSpec,
    Launch,
    Limits,
    Operand,
    Plan,
    PrecisionGuarantee,
    Refusal,
    Role,
    Schedule,
    Variant,
    blocks_in_hip,
    checked_type,
    parameter_type,
    plan_cache,
    reciprocal,
    whole_number,
)
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.layout import checked_shape, span, whole_numbers
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

__all__ = [
    "FAMILY",
    "UpsampleNearest2dArgs",
    "UpsampleNearest2dBackwardArgs",
    "UpsampleNearest2dBackwardDescriptor",
    "UpsampleNearest2dBackwardPlan",
    "UpsampleNearest2dDescriptor",
    "UpsampleNearest2dPlan",
    "upsample_nearest2d",
    "upsample_nearest2d_backward",
]

THREADS = 256
_MOST_PLACES = 1 << 28  # of the tables of a plan, 2 GiB
_FLOATS = ("f32", "f64", "f16", "bf16")
_TYPES = (*_FLOATS, "u8", "u32")
_FACTORS = (2, 3, 4)  # to how many columns a column was copied, in the entry for whole factors
_SHORT_ABI = (
    "const T* src, T* dst, u32 plane, u32 across, u32 by_row, u32 row_factor, u32 column_factor, "
    "u32 plane_stride, u32 row_stride, u32 column_stride"
)
_NARROW_ABI = (
    "const T* src, T* dst, u32 count, u32 across, u32 across_factor, u32 across_shift, u32 rows, "
    "u32 column_factor, u64 run_stride, u32 row_stride, u32 column_stride"
)
_PIECES = {16: 1, 8: 1, 4: 2, 2: 4}  # bytes of a piece -> how many of them a thread of the narrow entries has
_OF_SIZE = {1: "u8", 2: "f16", 4: "u32", 8: "f64"}  # bytes -> the type whose entry moves elements of so many
_BACKWARD_WIDTHS = (8, 4, 2)  # bytes of a piece of grad_input, of which a thread has 8 bytes


def _of_at_most(width: int, types: tuple[str, ...]) -> tuple[str, ...]:
    """Return the types whose elements are of no more bytes."""
    return tuple(name for name in types if BY_NAME[name].size <= width)


FAMILY = KernelFamily(
    "upsample_nearest2d",
    _TYPES,
    {
        "upsample_nearest2d": Role(
            "u64 w_out, u64 h_out, f64 w_scale, f64 h_scale, const u64* info, const T* src, T* dst", hip=True
        ),
        "upsample_nearest2d_short": Role(_SHORT_ABI),
        "upsample_nearest2d_short_4": Role(_SHORT_ABI),
        "upsample_nearest2d_banded": Role(
            "const T* src, T* dst, u32 threads, u32 chunks, u32 bands, u32 height, "
            "u32 channels, u32 out_h, u32 out_w, u32 in_h, u32 in_w, f64 row_scale, f64 column_scale, "
            "u64 image_stride, u64 channel_stride, u64 row_stride, u32 column_stride"
        ),
        "upsample_nearest2d_tables": Role(
            "const T* src, T* dst, const u32* rows_ptr, const u32* columns_ptr, u32 threads, u32 chunks, u32 bands, "
            "u32 height, u32 windows, u32 channels, u32 out_h, u64 image_stride, u64 channel_stride, u32 row_bytes",
            hip=True,
        ),
        **{
            f"upsample_nearest2d_narrow_{width}": Role(
                _NARROW_ABI, hip=True, dtypes=_of_at_most(width, _TYPES), ptx_alone=("f32", "bf16")
            )
            for width in _PIECES
        },
        "upsample_nearest2d_backward": Role(
            "const T* go_ptr, T* gi_ptr, const u64* rows_ptr, const u64* columns_ptr, u64 total, u64 channels, "
            "u64 in_h, u64 in_w, u64 image_stride, u64 channel_stride, u64 row_stride, u64 column_stride",
            hip=True,
            dtypes=_FLOATS,
        ),
        "upsample_nearest2d_backward_factors": Role(
            "const T* go_ptr, T* gi_ptr, u32 threads, u32 chunks, u32 channels, u32 in_h, u32 rows, u32 columns, "
            " u64 image_stride, u64 channel_stride, u64 row_stride",
            hip=True,
            dtypes=_FLOATS,
        ),
        **{
            f"upsample_nearest2d_backward_short_{factor}": Role(
                "const T* go_ptr, T* gi_ptr, u32 plane, u32 across, u32 by_row, u32 plane_stride, u32 row_stride",
                dtypes=_FLOATS,
            )
            for factor in _FACTORS
        },
        **{
            f"upsample_nearest2d_backward_narrow_{factor}_{width}": Role(
                "const T* go_ptr, T* gi_ptr, u32 count, u32 across, u32 across_factor, u32 across_shift, "
                "u64 run_stride, u32 row_stride",
                hip=True,
                dtypes=_of_at_most(width, _FLOATS),
            )
            for factor in _FACTORS
            for width in _BACKWARD_WIDTHS
        },
    },
    unnamed=None,
)


class _Problem:
    """What forward and backward have in common: images of any strides, `first`, and another size of image.

    Attributes
    ----------
    op, first
        For messages: the op, and the operand that has this shape and these strides.
    target
        The fields that are the other size.
    types
        Names of the element types that the op has.
    """

    op: ClassVar[str]
    first: ClassVar[str]
    target: ClassVar[tuple[str, str]]
    types: ClassVar[tuple[str, ...]]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: ElementType

    def __post_init__(self) -> None:
        op, first = self.op, self.first
        shape = checked_shape(self.shape, op)
        if len(shape) != 4:
            raise ShapeMismatch(op=op, argument=first, expected="four axes, [N, C, H, W]", given=str(shape))
        strides = whole_numbers(self.strides)
        if strides is None or len(strides) != 4 or min(strides) < 0:
            expected = "four strides of 0 or more, in elements"
            raise LayoutError(op=op, argument="strides", expected=expected, given=shown(self.strides))
        for name in self.target:
            object.__setattr__(self, name, whole_number(getattr(self, name), op, name, self._least(shape)))
        if 0 in shape[2:] and 0 not in shape[:2]:
            raise ShapeMismatch(
                op=op,
                argument=first,
                expected="H and W of at least 1",
                given=str(shape),
                fix="There is nothing to read for the output's elements",
            )
        kind = checked_type(self.dtype, op, first, self.types, between=", ")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "dtype", kind)

    def _least(self, shape: tuple[int, ...]) -> int:
        """Return the least of the other size."""
        del shape
        return 1

    @property
    def result_shape(self) -> tuple[int, int, int, int]:
        """Of what is written: ``[N, C]`` and the other size."""
        height, width = (getattr(self, name) for name in self.target)
        return self.shape[0], self.shape[1], height, width

    @property
    def steps(self) -> tuple[int, ...]:
        """The strides, but 0 on an axis of length 1, whose stride says nothing and may be any number."""
        return tuple(0 if n == 1 else step for n, step in zip(self.shape, self.strides, strict=True))

    @property
    def read_bytes(self) -> int:
        """Bytes from the first element that is read to the end of the last."""
        return span(self.shape, self.strides) * self.dtype.size

    @property
    def empty(self) -> bool:
        """Whether what is written has no elements."""
        return not math.prod(self.result_shape)


@dataclass(frozen=True)
class UpsampleNearest2dDescriptor(_Problem):
    """A problem of upsample_nearest2d: pure data, hashable.

    Parameters
    ----------
    shape, strides
        Of x, ``[N, C, H, W]``; strides of 0 or more, in elements.
    out_h, out_w
        At least 1.
    dtype
        Of x and y: any element type.

    Raises
    ------
    ShapeMismatch, LayoutError, InvalidArgument, DTypeMismatch
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    out_h: int
    out_w: int
    dtype: ElementType = BY_NAME["f32"]

    op = "upsample_nearest2d"
    first = "x"
    target = ("out_h", "out_w")
    types = tuple(BY_NAME)

    @property
    def in_h(self) -> int:
        """H."""
        return self.shape[2]

    @property
    def in_w(self) -> int:
        """W."""
        return self.shape[3]

    @property
    def scales(self) -> tuple[float, float]:
        """H / out_h and W / out_w, each rounded once."""
        return self.in_h / self.out_h, self.in_w / self.out_w

    @property
    def row_span(self) -> int:
        """Elements from the first of a row of x to its last."""
        return (self.in_w - 1) * self.steps[3]

    def kernel(self, role: str, language: str) -> KernelSpec:
        """Return an entry for elements of this size: bits are moved, of whatever type."""
        here = FAMILY.roles[role]
        named = self.dtype.name in FAMILY.dtypes and (language == "ptx" or self.dtype.name not in here.ptx_alone)
        return FAMILY.kernel(role, self.dtype if named else BY_NAME[_OF_SIZE[self.dtype.size]], language)


@dataclass(frozen=True)
class UpsampleNearest2dBackwardDescriptor(_Problem):
    """A problem of upsample_nearest2d_backward: pure data, hashable.

    Parameters
    ----------
    shape, strides
        Of grad_out, ``[N, C, OH, OW]``; strides of 0 or more, in elements.
    in_h, in_w
        H and W of grad_input; at least 1, unless N or C is 0.
    dtype
        Of grad_out and grad_input: f32, f64, f16 or bf16.

    Raises
    ------
    ShapeMismatch, LayoutError, InvalidArgument, DTypeMismatch
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    in_h: int
    in_w: int
    dtype: ElementType = BY_NAME["f32"]

    op = "upsample_nearest2d_backward"
    first = "grad_out"
    target = ("in_h", "in_w")
    types = _FLOATS

    def _least(self, shape: tuple[int, ...]) -> int:
        return 0 if 0 in shape[:2] else 1


class UpsampleNearest2dArgs(NamedTuple):
    """Operands of :class:`UpsampleNearest2dPlan`; without `out` the result is allocated."""

    x: DeviceArrayLike
    out: DeviceArrayLike | None = None


_VECTOR_BYTES, _WORD_BYTES = 16, 4
# Measured on an H200: most rows a thread; chunks that are few, where columns lie apart; 16-byte pieces that are many.
_HEIGHT, _FEW, _MANY = 8, 16, 1 << 18
# Elements that are few: of y, of grad_input; and so few of y that threads are better short than few.
_ODD_ROW, _MANY_BYTES = 128, 1 << 24  # bytes of a row, of y
_SHORT, _SHORT_BACKWARD, _FEWEST = 1 << 17, 1 << 16, 1 << 15
_BLOCKS = 128  # for each of the multiprocessors of a large device about one
_LARGEST = (1 << 32) - 1
# float64 is what the places of elements are computed in; the elements are moved.
_GUARANTEE = PrecisionGuarantee("f64", "f64", deterministic=True, bit_stable_on_same_hardware=True)


def _refusal(problem: _Problem) -> Refusal | None:
    far, what = problem.read_bytes >> 63, f"{problem.first}_bytes"
    return Refusal(f"{what} = {shown(problem.read_bytes)} does not fit 64-bit offsets") if far else None


class Elements(Variant[UpsampleNearest2dDescriptor, Config]):
    """An element of y a thread."""

    name = "baseline"

    def schedule(self, problem: UpsampleNearest2dDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := _refusal(problem):
            return refusal
        info = np.array([*problem.shape, *problem.steps], np.uint64)
        arguments: tuple[Argument, ...] = (problem.out_h, problem.out_w, *problem.scales, info, "x", "out")
        kernel = problem.kernel("upsample_nearest2d", self.language)
        elements = math.prod(problem.result_shape)
        blocks = blocks_in_hip(elements, THREADS) if self.language == "hip" else -(-elements // THREADS)
        return Schedule((Launch(kernel, (blocks,), THREADS, arguments),), _GUARANTEE)


def _source_places(length: int, count: int) -> NDArray[np.int64]:
    """Return for each of `count` places along an axis of y where along that of x, `length` long, its value is from."""
    places = (np.arange(count, dtype=np.float64) * (length / count)).astype(np.int64)
    found: NDArray[np.int64] = np.minimum(places, length - 1)
    return found


def _factor(length: int, count: int) -> int | None:
    """Return what a place along y is multiplied with, and divided by 2^16, for that along x; None where nothing is."""
    if max(length, count) >> 16:
        return None
    places, wanted, high = np.arange(count), _source_places(length, count), -(-(length << 16) // count)
    return next((factor for factor in (high, high - 1) if np.array_equal(places * factor >> 16, wanted)), None)


def _spread(plane: int, planes: int) -> tuple[tuple[int, int], int]:
    """Return grid and block for so many threads a plane: as many blocks as a large device has multiprocessors."""
    fits = (threads for threads in (THREADS, 128) if threads <= plane and -(-plane // threads) * planes >= _BLOCKS)
    threads = next(fits, 64)
    return (-(-plane // threads), planes), threads


def _far_apart(problem: _Problem, across: int) -> Refusal | None:
    """Return why a kernel for few elements, `across` threads a row of the result, cannot count in 32 bits, if so."""
    (n, c), (image, channel) = problem.shape[:2], problem.steps[:2]
    if n > 1 and c > 1 and image != c * channel:
        return Refusal(f"planes of {problem.first} do not lie at one stride")
    elements = math.prod(problem.result_shape)
    by_row = problem.result_shape[2] * across**2
    for name, value in ((f"{problem.first}_bytes", problem.read_bytes), ("elements", elements), ("by_row", by_row)):
        if value >> 32:
            return Refusal(f"{name} = {shown(value)} does not fit the kernel's u32")
    return None


def _plane_step(problem: _Problem) -> int:
    """Return the elements from a plane to the next."""
    return problem.steps[1] if problem.shape[1] > 1 else problem.steps[0]


def _runs(problem: _Problem) -> tuple[int, int, int, int] | Refusal:
    """Return how many runs of rows at one stride there are, and how many rows a run has; the strides of both."""
    groups: list[tuple[int, int]] = []  # from the last axis up: rows that lie at one stride, and that
    for length, step in zip(problem.shape[2::-1], problem.steps[2::-1], strict=True):
        if length == 1:
            continue
        if groups and step == math.prod(groups[-1]):
            groups[-1] = groups[-1][0] * length, groups[-1][1]
        else:
            groups.append((length, step))
    if len(groups) > 2:
        return Refusal(f"rows of {problem.first} do not lie at one stride, or in runs at another")
    (rows, row_step), (runs, run_step) = [*groups, (1, 0), (1, 0)][:2]
    return runs, rows, run_step, row_step


def _pieces(
    across: int, rows: int, runs: int, each: int
) -> tuple[tuple[int, int, int, int], tuple[tuple[int, int], int]] | Refusal:
    """Return how the narrow entries count the pieces of a run, `across` a row; and their grid and block.

    A piece times the third number, without its last bits, of which the fourth says how many, is its row.
    """
    count = rows * across
    if (count + THREADS * max(_PIECES.values())) >> 31:
        return Refusal(f"pieces = {shown(count)} of a run do not fit 31 bits")
    return (count, across, *reciprocal(across)), _spread(-(-count // each), runs)


@dataclass(frozen=True)
class ShortConfig(Config):
    """Knobs of the kernels for few elements: how many neighbours of y a thread has, 1 or 4."""

    each: int

    @classmethod
    def heuristic(cls, problem: UpsampleNearest2dDescriptor) -> ShortConfig:
        """One, where multiprocessors have so few threads that only the longest counts; else few threads."""
        return cls(1) if math.prod(problem.result_shape) <= _FEWEST else cls.candidates(problem)[-1]

    @classmethod
    def candidates(cls, problem: UpsampleNearest2dDescriptor) -> Sequence[ShortConfig]:
        """Return 1, and 4 where rows of y are fours."""
        return (cls(1),) if problem.out_w % 4 else (cls(1), cls(4))


class Short(Variant[UpsampleNearest2dDescriptor, ShortConfig]):
    """An element of y a thread, or four neighbours, in few instructions."""

    name = "short"
    config_type = ShortConfig

    def suits(self, problem: UpsampleNearest2dDescriptor) -> bool:
        """Where what counts is how long one thread takes."""
        return math.prod(problem.result_shape) <= _SHORT

    def schedule(self, problem: UpsampleNearest2dDescriptor, config: ShortConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        across, rest = divmod(problem.out_w, config.each)
        if rest or config.each not in (1, 4):
            return Refusal(f"rows of y are not divided into threads of {config.each}: it is 1, or 4 of rows of fours")
        if refusal := _far_apart(problem, across):
            return refusal
        rows, columns = _factor(problem.in_h, problem.out_h), _factor(problem.in_w, problem.out_w)
        if rows is None or columns is None:
            return Refusal("no factors of 16 bits give the places of its rows and columns")
        plane = problem.out_h * across
        steps = (step * problem.dtype.size for step in (_plane_step(problem), *problem.steps[2:]))
        numbers = (plane, across, _LARGEST // across, rows, columns)
        arguments: tuple[Argument, ...] = ("x", "out", *numbers, *steps)
        role = "upsample_nearest2d_short" + ("_4" if config.each == 4 else "")
        kernel = problem.kernel(role, self.language)
        return Schedule((Launch(kernel, *_spread(plane, math.prod(problem.shape[:2])), arguments),), _GUARANTEE)


@dataclass(frozen=True)
class BandedConfig(Config):
    """Knobs of the banded entry: how many rows of y a thread takes, one under the other."""

    height: int

    @classmethod
    def heuristic(cls, problem: UpsampleNearest2dDescriptor) -> BandedConfig:
        """As measured on an H200."""
        columns = _VECTOR_BYTES // problem.dtype.size
        chunks = -(-problem.out_w // columns)
        if problem.out_w % columns and chunks < _FEW:
            return cls(1)  # so that a warp's stores, an element a thread, are as near to each other as can be
        # Rows of y that are one row of x go together; more of them where it takes many loads to fill a thread's bytes,
        # and there is work for many threads all the same.
        same = min(max(problem.out_h // max(problem.in_h, 1), 1), _HEIGHT)
        pieces = math.prod(problem.result_shape[:3]) * chunks
        more = min(columns // 4, _HEIGHT // same) if pieces >= _MANY else 1
        return cls(max(same * max(more, 1), 2))

    @classmethod
    def candidates(cls, problem: UpsampleNearest2dDescriptor) -> Sequence[BandedConfig]:
        """Return heights from 2 to 8, and what the heuristic says."""
        return tuple(cls(height) for height in sorted({2, 4, 8, cls.heuristic(problem).height}))


class Banded(Variant[UpsampleNearest2dDescriptor, BandedConfig]):
    """16 bytes of several rows of y a thread."""

    name = "banded"
    config_type = BandedConfig

    def schedule(
        self, problem: UpsampleNearest2dDescriptor, config: BandedConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return one launch."""
        chunks = -(-problem.out_w * problem.dtype.size // _VECTOR_BYTES)
        bands = -(-problem.out_h // config.height)
        threads = math.prod(problem.shape[:2]) * bands * chunks
        if problem.row_span >> 32:
            return Refusal(f"row_span = {problem.row_span} does not fit the kernel's u32")
        if (threads + THREADS) >> 32:
            return Refusal(f"threads = {threads} does not fit the kernel's u32")
        sizes = (problem.shape[1], problem.out_h, problem.out_w, problem.in_h, problem.in_w)
        arguments: tuple[Argument, ...] = (threads, chunks, bands, config.height, *sizes)
        arguments = ("x", "out", *arguments, *problem.scales, *problem.steps)
        kernel = problem.kernel("upsample_nearest2d_banded", self.language)
        launch = Launch(kernel, (-(-threads // THREADS),), THREADS, arguments)
        return _refusal(problem) or Schedule((launch,), _GUARANTEE)


@dataclass(frozen=True)
class TablesConfig(Config):
    """Knobs of the entry that has tables: how many rows of y a thread takes, one under the other."""

    height: int

    @classmethod
    def heuristic(cls, problem: UpsampleNearest2dDescriptor) -> TablesConfig:
        """Up to four rows, of 16 bits in odd ones two, as measured on an H200, while threads fill a large device."""
        pieces = math.prod(problem.result_shape) * problem.dtype.size // _VECTOR_BYTES
        heights = (2,) if _odd_rows(problem) else (4, 2)
        return cls(next((height for height in heights if pieces >= height << 17), 1))

    @classmethod
    def candidates(cls, problem: UpsampleNearest2dDescriptor) -> Sequence[TablesConfig]:
        """Return heights from 1 to 8."""
        return tuple(cls(height) for height in (1, 2, 4, 8))


def _odd_rows(problem: UpsampleNearest2dDescriptor) -> bool:
    """Return whether rows of y, of 16 bits, are short, and end within pieces of 64 bytes."""
    row = problem.out_w * problem.dtype.size
    return bool(problem.dtype.size == 2 and row < _ODD_ROW and row % (_ODD_ROW // 2))


def _table_of_columns(problem: UpsampleNearest2dDescriptor) -> tuple[NDArray[np.uint32], int] | Refusal:
    """Return what is read of a row of x for every 16 bytes of one of y, as the kernel has it; and how many windows."""
    size, step = problem.dtype.size, problem.steps[3]
    places = _source_places(problem.in_w, problem.out_w) * (step * size)
    if size >= _WORD_BYTES:
        table = places.reshape(-1, _VECTOR_BYTES // size)
        return np.pad(table, ((0, 0), (0, 4 - table.shape[1]))).astype(np.uint32), 1
    words, rest = divmod(problem.in_w * size, _WORD_BYTES)
    if step != 1 or rest or words < 2 or any(stride * size % _WORD_BYTES for stride in problem.steps[:3]):
        return Refusal("rows of x are not two words of 32 bits or more, side by side")
    source = (places[:, None] + np.arange(size)).reshape(-1, _VECTOR_BYTES)  # of each byte
    for windows in (1, 2):
        parts = source.reshape(len(source), windows, -1)
        starts = np.minimum(parts[:, :, 0] // _WORD_BYTES, words - 2) * _WORD_BYTES
        chosen = (parts - starts[:, :, None]).reshape(-1, 4, _WORD_BYTES)
        if chosen.max() < 2 * _WORD_BYTES:
            picks = (chosen << np.arange(0, 16, 4)).sum(axis=2).reshape(-1, 2, 2)
            picks = picks[:, :, 0] | picks[:, :, 1] << 16
            return np.hstack([starts[:, [0, -1]], picks]).astype(np.uint32), windows
    return Refusal("eight bytes of y are of more than two words of x")


class Tables(Variant[UpsampleNearest2dDescriptor, TablesConfig]):
    """16 bytes of several rows of y a thread, which finds in tables where they are from."""

    name = "tables"
    config_type = TablesConfig

    def suits(self, problem: UpsampleNearest2dDescriptor) -> bool:
        """Where elements are small, and so many are in 16 bytes that finding each would take the time."""
        return self.language == "hip" or problem.dtype.size < _WORD_BYTES

    def schedule(
        self, problem: UpsampleNearest2dDescriptor, config: TablesConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return one launch."""
        chunks, rest = divmod(problem.out_w * problem.dtype.size, _VECTOR_BYTES)
        if rest:
            return Refusal("rows of y are not whole numbers of 16 bytes")
        if problem.out_h + problem.out_w > _MOST_PLACES:
            return Refusal(f"out_h + out_w = {problem.out_h + problem.out_w} are more than tables hold")
        bands = -(-problem.out_h // config.height)
        threads = math.prod(problem.shape[:2]) * bands * chunks
        row_bytes, span_bytes = problem.steps[2] * problem.dtype.size, (problem.row_span + 1) * problem.dtype.size
        numbers = ("threads", threads + THREADS), ("row_bytes", row_bytes), ("bytes of a row", span_bytes)
        for name, value in (*numbers, ("in_h", problem.in_h)):
            if value >> 32:
                return Refusal(f"{name} = {value} does not fit the kernel's u32")
        found = _table_of_columns(problem)
        if isinstance(found, Refusal):
            return found
        rows = _source_places(problem.in_h, problem.out_h).astype(np.uint32)
        sizes = (threads, chunks, bands, config.height, found[1], problem.shape[1], problem.out_h)
        arguments: tuple[Argument, ...] = ("x", "out", rows, found[0], *sizes, *problem.steps[:2], row_bytes)
        kernel = problem.kernel("upsample_nearest2d_tables", self.language)
        launch = Launch(kernel, (-(-threads // THREADS),), THREADS, arguments)
        return _refusal(problem) or Schedule((launch,), _GUARANTEE)


class Narrow(Variant[UpsampleNearest2dDescriptor, Config]):
    """Pieces of 16 bytes or less of as many rows of y as a row of x was copied to a thread."""

    name = "narrow"

    def suits(self, problem: UpsampleNearest2dDescriptor) -> bool:
        """But for bytes in whole vectors, and many odd rows of 16 bits, which have tables of their columns."""
        size = problem.dtype.size
        if problem.out_w * size % _VECTOR_BYTES:
            return True
        many = math.prod(problem.result_shape) * size >= _MANY_BYTES
        return size > 1 and not (many and _odd_rows(problem))

    def schedule(self, problem: UpsampleNearest2dDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        size = problem.dtype.size
        row_bytes = problem.out_w * size
        width = next((width for width in _PIECES if width >= size and row_bytes % width == 0), None)
        if width is None:
            return Refusal("rows of y are not whole numbers of 2 bytes")
        rows = None if problem.in_h > _MOST_PLACES else _whole_factor(problem.in_h, problem.out_h)
        column_factor = _factor(problem.in_w, problem.out_w)
        if rows is None or column_factor is None:
            return Refusal("not every row was copied as often, or no factor of 16 bits gives the places of columns")
        runs = _runs(problem)
        if isinstance(runs, Refusal):
            return runs
        (number, lines, run_step, row_step), column_step = runs, problem.steps[3]
        pieces = _pieces(row_bytes // width, lines, number, _PIECES[width])
        if isinstance(pieces, Refusal):
            return pieces
        strides = run_step * size, row_step * size, column_step * size
        for name, value in (("row_stride", strides[1]), ("column_stride", strides[2]), ("band", rows * row_bytes)):
            if value >> 32:
                return Refusal(f"{name} = {shown(value)} bytes do not fit the kernel's u32")
        arguments: tuple[Argument, ...] = ("x", "out", *pieces[0], rows, column_factor, *strides)
        kernel = problem.kernel(f"upsample_nearest2d_narrow_{width}", self.language)
        return _refusal(problem) or Schedule((Launch(kernel, *pieces[1], arguments),), _GUARANTEE)


class UpsampleNearest2dPlan(Plan[UpsampleNearest2dDescriptor, UpsampleNearest2dArgs, DeviceArray]):
    """Plan of :func:`upsample_nearest2d`; run it with :class:`UpsampleNearest2dArgs`.

    Variants: ``short``, for few elements, one or four a thread; ``narrow``, whose threads take pieces of 16 bytes or
    less of all rows of y that are the same one of x, where each was copied to as many; ``tables``, whose threads take
    16 bytes of several rows of y and find in tables where those are from; ``banded``, whose threads compute that;
    ``baseline``, an element a thread. A plan of ``tables`` holds 4 bytes for each row of y, and 16 for each 16 bytes of
    one row.
    """

    op = "upsample_nearest2d"
    category = "resampling"
    descriptor_type = UpsampleNearest2dDescriptor
    variants = (Short(), Narrow(), Tables(), Banded(), Elements(), Narrow("hip"), Tables("hip"), Elements("hip"))

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        return (
            Operand("x", problem.shape, problem.dtype, problem.strides),
            Operand("out", problem.result_shape, problem.dtype, output=True),
        )


# Backward -------------------------------------------------------------------------------------------------------------


class UpsampleNearest2dBackwardArgs(NamedTuple):
    """Operands of :class:`UpsampleNearest2dBackwardPlan`; without `out`, which is grad_input, it is allocated."""

    grad_out: DeviceArrayLike
    out: DeviceArrayLike | None = None


def _first_places(length: int, count: int) -> NDArray[np.uint64]:
    """Return for each place along an axis of x the first along that of y that has its value from there or behind it.

    x has `length` places and y `count`, which is the last number. The forward's own product never falls from one place
    to the next: each is looked for between 0 and `count`, in halves.
    """
    places = np.arange(length, dtype=np.uint64)
    low, high = np.zeros(length, np.uint64), np.full(length, count, np.uint64)
    for _ in range(count.bit_length()):
        middle = low + (high - low) // 2
        behind = (middle.astype(np.float64) * (length / count)).astype(np.uint64) >= places
        low, high = np.where(behind, low, np.minimum(middle + 1, high)), np.where(behind, middle, high)
    return np.append(low, np.uint64(count))


def _guarantee(problem: UpsampleNearest2dBackwardDescriptor) -> PrecisionGuarantee:
    real = parameter_type(problem.dtype).name
    return PrecisionGuarantee(real, real, deterministic=True, bit_stable_on_same_hardware=True)


def _whole_factor(length: int, count: int) -> int | None:
    """Return to how many places each of `length` was copied, by the forward's own product, if all to as many."""
    factor, rest = divmod(count, length)
    if rest or not np.array_equal(_first_places(length, count), np.arange(length + 1, dtype=np.uint64) * factor):
        return None
    return factor


def _copies(problem: UpsampleNearest2dBackwardDescriptor) -> tuple[int | None, int | None] | Refusal:
    """Return how often each row and each column was copied, None where not all as often, for kernels that read rows."""
    _, _, in_h, in_w = problem.result_shape
    if problem.steps[3] != 1:
        return Refusal("columns of grad_out are not one, or do not lie side by side")
    if in_h + in_w > _MOST_PLACES:
        return Refusal(f"in_h + in_w = {in_h + in_w} are more than the {_MOST_PLACES} that are looked at")
    return _whole_factor(in_h, problem.shape[2]), _whole_factor(in_w, problem.shape[3])


class Factors(Variant[UpsampleNearest2dBackwardDescriptor, Config]):
    """16 bytes of grad_input a thread, where each place was copied a whole number of times."""

    name = "factors"

    def schedule(
        self, problem: UpsampleNearest2dBackwardDescriptor, config: Config, limits: Limits
    ) -> Schedule | Refusal:
        """Return one launch."""
        _, channels, in_h, in_w = problem.result_shape
        chunks, rest = divmod(in_w * problem.dtype.size, _VECTOR_BYTES)
        if rest:
            return Refusal("rows of grad_input are not whole numbers of 16 bytes")
        copies = _copies(problem)
        if isinstance(copies, Refusal):
            return copies
        rows, columns = copies
        if not rows or columns not in _FACTORS:
            return Refusal("not every row was copied as often, and every column 2, 3 or 4 times")
        threads = math.prod(problem.result_shape[:3]) * chunks
        if (threads + THREADS) >> 32:
            return Refusal(f"threads = {threads} does not fit the kernel's u32")
        sizes = (threads, chunks, channels, in_h, rows, columns)
        arguments: tuple[Argument, ...] = ("grad_out", "out", *sizes, *problem.steps[:3])
        kernel = FAMILY.kernel("upsample_nearest2d_backward_factors", problem.dtype, self.language)
        launch = Launch(kernel, (-(-threads // THREADS),), THREADS, arguments)
        return _refusal(problem) or Schedule((launch,), _guarantee(problem))


class ShortSums(Variant[UpsampleNearest2dBackwardDescriptor, Config]):
    """An element of grad_input a thread, in few instructions, where rows and columns were copied 2, 3 or 4 times."""

    name = "short"

    def suits(self, problem: UpsampleNearest2dBackwardDescriptor) -> bool:
        """Where what counts is how long one thread takes."""
        return math.prod(problem.result_shape) <= _SHORT_BACKWARD and problem.in_h * problem.in_w >= 16

    def schedule(
        self, problem: UpsampleNearest2dBackwardDescriptor, config: Config, limits: Limits
    ) -> Schedule | Refusal:
        """Return one launch."""
        _, _, in_h, in_w = problem.result_shape
        if refusal := _far_apart(problem, in_w):
            return refusal
        copies = _copies(problem)
        if isinstance(copies, Refusal):
            return copies
        rows, columns = copies
        if rows != columns or rows not in _FACTORS:
            return Refusal("not every row and column was copied as often, 2, 3 or 4 times")
        plane, size = in_h * in_w, problem.dtype.size
        numbers = (plane, in_w, _LARGEST // in_w, _plane_step(problem) * size, problem.steps[2] * size)
        kernel = FAMILY.kernel(f"upsample_nearest2d_backward_short_{rows}", problem.dtype, self.language)
        launch = Launch(kernel, *_spread(plane, math.prod(problem.shape[:2])), ("grad_out", "out", *numbers))
        return Schedule((launch,), _guarantee(problem))


class NarrowSums(Variant[UpsampleNearest2dBackwardDescriptor, Config]):
    """8 bytes of grad_input a thread, in pieces that rows have no rest of, where all were copied 2, 3 or 4 times."""

    name = "narrow"

    def schedule(
        self, problem: UpsampleNearest2dBackwardDescriptor, config: Config, limits: Limits
    ) -> Schedule | Refusal:
        """Return one launch."""
        in_w, size = problem.result_shape[3], problem.dtype.size
        copies = _copies(problem)
        if isinstance(copies, Refusal):
            return copies
        factor, columns = copies
        if factor != columns or factor not in _FACTORS:
            return Refusal("not every row and column was copied as often, 2, 3 or 4 times")
        runs = _runs(problem)
        if isinstance(runs, Refusal):
            return runs
        number, lines, run_step, row_step = runs
        width = next(width for width in _BACKWARD_WIDTHS if in_w * size % width == 0)
        pieces = _pieces(in_w * size // width, lines // factor, number, _BACKWARD_WIDTHS[0] // width)
        if isinstance(pieces, Refusal):
            return pieces
        if (row_step * size * factor) >> 32:
            return Refusal(f"row_stride = {shown(row_step * size)} bytes do not fit the kernel's u32")
        kernel = FAMILY.kernel(f"upsample_nearest2d_backward_narrow_{factor}_{width}", problem.dtype, self.language)
        launch = Launch(kernel, *pieces[1], ("grad_out", "out", *pieces[0], run_step * size, row_step * size))
        return _refusal(problem) or Schedule((launch,), _guarantee(problem))


class Sums(Variant[UpsampleNearest2dBackwardDescriptor, Config]):
    """An element of grad_input a thread, which adds up what it was copied to."""

    name = "baseline"

    def schedule(
        self, problem: UpsampleNearest2dBackwardDescriptor, config: Config, limits: Limits
    ) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := _refusal(problem):
            return refusal
        _, channels, in_h, in_w = problem.result_shape
        if in_h + in_w > _MOST_PLACES:
            return Refusal(f"in_h + in_w = {in_h + in_w} are more than the {_MOST_PLACES} that tables hold")
        total, (out_h, out_w) = math.prod(problem.result_shape), problem.shape[2:]
        tables = _first_places(in_h, out_h), _first_places(in_w, out_w)
        arguments: tuple[Argument, ...] = ("grad_out", "out", *tables, total, channels, in_h, in_w, *problem.steps)
        kernel = FAMILY.kernel("upsample_nearest2d_backward", problem.dtype, self.language)
        # Threads take turns in PTX too.
        launch = Launch(kernel, (blocks_in_hip(total, THREADS),), THREADS, arguments)
        return Schedule((launch,), _guarantee(problem))


class UpsampleNearest2dBackwardPlan(
    Plan[UpsampleNearest2dBackwardDescriptor, UpsampleNearest2dBackwardArgs, DeviceArray]
):
    """Plan of :func:`upsample_nearest2d_backward`; run it with :class:`UpsampleNearest2dBackwardArgs`.

    Variants: ``short``, for few elements, one a thread, where every row and column was copied 2, 3 or 4 times;
    ``factors``, whose threads take 16 bytes of grad_input and read what these are sums of by vectors, where
    every row was copied to as many rows and every column to 2, 3 or 4; ``narrow``, whose threads take 8 bytes, in
    pieces of 8, 4 or 2, where ``short`` might; ``baseline``, an element of grad_input a thread, whose plan holds
    tables, 8 bytes a row and a column of it.
    """

    op = "upsample_nearest2d_backward"
    category = "resampling"
    descriptor_type = UpsampleNearest2dBackwardDescriptor
    variants = (ShortSums(), Factors(), NarrowSums(), Sums(), Factors("hip"), NarrowSums("hip"), Sums("hip"))

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        return (
            Operand("grad_out", problem.shape, problem.dtype, problem.strides),
            Operand("out", problem.result_shape, problem.dtype, output=True),
        )


_plan = plan_cache(UpsampleNearest2dPlan)
_backward_plan = plan_cache(UpsampleNearest2dBackwardPlan)


def upsample_nearest2d(
    x: DeviceArrayLike, out_h: int, out_w: int, *, out: DeviceArrayLike | None = None, stream: StreamLike | None = None
) -> DeviceArray:
    """Resize each image of x to out_h x out_w, up or down, by taking the nearest element before each place.

    ``y[n, c, i, j] = x[n, c, row(i), column(j)]`` with ``row(i) = min(trunc(i * (H / out_h)), H - 1)``, and column(j)
    likewise of W and out_w; quotient and product in float64. That is the rule of candle's upsample_nearest2d, bit for
    bit; PyTorch's, of float32, takes other elements for some sizes.

    Parameters
    ----------
    x
        ``[N, C, H, W]`` of any element type, of 1, 2, 4 or 8 bytes, in any strides. H and W are at least 1, unless N or
        C is 0.
    out_h, out_w
        At least 1.
    out
        Where to write, contiguous, not shared with x.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        y, ``[N, C, out_h, out_w]`` of x's type; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    if type(x) is not DeviceArray:
        x = as_array(x, None, "upsample_nearest2d", "x", stream)
    plan = _plan(x.device, x.shape, x.strides, out_h, out_w, x.dtype)
    return plan._run((x, out), stream)


def upsample_nearest2d_backward(
    grad_out: DeviceArrayLike,
    in_h: int,
    in_w: int,
    *,
    out: DeviceArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Gradient of :func:`upsample_nearest2d`: each element of x gets the sum of what it was copied to.

    ``grad_input[n, c, r, s]`` is the sum of ``grad_out[n, c, i, j]`` over the i with ``row(i) = r`` and the j with
    ``column(j) = s``, by the forward's own double products, from +0 on in the order of grad_out, in float32 (float64 of
    float64); it is rounded once. An element that was copied to no place gets 0.

    Parameters
    ----------
    grad_out
        ``[N, C, OH, OW]``; float32, float64, float16 or bfloat16, in any strides. OH and OW are at least 1, unless N or
        C is 0.
    in_h, in_w
        H and W of x; at least 1, unless N or C is 0.
    out
        Where to write grad_input, contiguous, not shared with grad_out.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        grad_input, ``[N, C, in_h, in_w]`` of grad_out's type; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    if type(grad_out) is not DeviceArray:
        grad_out = as_array(grad_out, None, "upsample_nearest2d_backward", "grad_out", stream)
    plan = _backward_plan(grad_out.device, grad_out.shape, grad_out.strides, in_h, in_w, grad_out.dtype)
    return plan._run((grad_out, out), stream)
