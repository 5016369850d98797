"""grid_sample: an image read at the points of a grid, between its pixels; and its gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import InvalidArgument, LayoutError, ShapeMismatch, Unsupported, shown
from ptxrt.ops import _grid_sample_modes as modes
from ptxrt.ops._grid_sample_modes_last import GeneralLast
from ptxrt.ops._grid_sample_modes_tiled import GeneralTiled, HipGeneralTiled
from ptxrt.ops._grid_sample_quads import Quads
from ptxrt.ops._grid_sample_tiled import Tiled
from ptxrt.ops._grid_sample_tiled_backward import HipTiledBackward, TiledBackward
from ptxrt.ops._grid_sample_tiled_cells import TiledCells
from ptxrt.ops._grid_sample_tiled_channels import TiledChannels
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
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
    Region,
    Role,
    Schedule,
    Variant,
    Workspace,
    Zero,
    blocks_in_hip,
    checked_type,
    parameter_type,
    plan_cache,
)
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.layout import channels_last, checked_shape, contiguous, is_contiguous, same_layout, whole_numbers
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

__all__ = [
    "FAMILY",
    "GridSampleArgs",
    "GridSampleBackwardArgs",
    "GridSampleBackwardDescriptor",
    "GridSampleBackwardPlan",
    "GridSampleDescriptor",
    "GridSampleGradients",
    "GridSamplePlan",
    "grid_sample",
    "grid_sample_backward",
]

_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
_GRADIENTS = "const T* dout_ptr, const T* input_ptr, const T* grid_ptr, T* dinput_ptr, T* dgrid_ptr"
_FIXED = "const u64* largest_ptr, i32 places"
_IN_PLACE = ("f32", "f64")  # in 16 bits, atomics on grad_input would round at each addition
FAMILY = KernelFamily(
    "grid_sample",
    ("f32", "f16", "bf16", "f64"),
    {
        "grid_sample": Role(f"const T* input_ptr, const T* grid_ptr, T* output_ptr, {_SIZES}", hip=True),
        "grid_sample_last": Role(
            f"const T* input_ptr, const T* grid_ptr, T* output_ptr, i32 shift, {_SIZES}", hip=True
        ),
        "grid_sample_backward": Role(f"{_GRADIENTS}, {_SIZES}", hip=True, dtypes=_IN_PLACE),
        "grid_sample_backward_last": Role(f"{_GRADIENTS}, P* sums_ptr, i32 shift, {_SIZES}", hip=True),
        "grid_sample_backward_fixed": Role(f"{_GRADIENTS}, u64* sums_ptr, i32 shift, {_FIXED}, {_SIZES}"),
        "grid_sample_backward_collect": Role(
            "const P* sums_ptr, T* dinput_ptr, i32 shift, i32 n, i32 c, u64 plane", hip=True
        ),
        "grid_sample_backward_collect_fixed": Role(
            f"const u64* sums_ptr, T* dinput_ptr, i32 shift, {_FIXED}, i32 n, i32 c, u64 plane"
        ),
        "grid_sample_backward_largest": Role("const T* values_ptr, u64* largest_ptr, u64 planes, u64 positions"),
    },
    unnamed=None,
    targets=ROUNDING_TARGETS,
)

_PLAIN = "bilinear, zeros and align_corners=False alone"
_MODES = {
    "mode": ("bilinear", "nearest", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),  # a kernel's number of each is its place
    "align_corners": (False, True),
}


@dataclass(frozen=True)
class GridSampleDescriptor:
    """A problem of grid_sample: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, ``[N, C, IH, IW]`` or ``[N, C, ID, IH, IW]``.
    grid_shape
        ``[N, OH, OW, 2]`` or ``[N, OD, OH, OW, 3]``.
    dtype
        Of x, grid and y: float32, float64, float16 or bfloat16.
    mode
        "bilinear", "nearest" or "bicubic", the last of images only.
    padding_mode
        "zeros", "border" or "reflection".
    align_corners
        Whether -1 and 1 are the middles of the outer pixels, and not their outer edges.
    strides
        Of x, of 0 or more, in elements; those of a contiguous array if left out.

    Raises
    ------
    ShapeMismatch, LayoutError, InvalidArgument, DTypeMismatch, Unsupported
    """

    op: ClassVar[str] = "grid_sample"

    shape: tuple[int, ...]
    grid_shape: tuple[int, ...]
    dtype: ElementType = BY_NAME["f32"]
    mode: str = "bilinear"
    padding_mode: str = "zeros"
    align_corners: bool = False
    strides: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        op = self.op
        for name, field, axes in (
            ("x", "shape", "four axes, [N, C, IH, IW], or five, [N, C, ID, IH, IW]"),
            ("grid", "grid_shape", "four axes, [N, OH, OW, 2], or five, [N, OD, OH, OW, 3]"),
        ):
            shape = checked_shape(getattr(self, field), op)
            object.__setattr__(self, field, shape)
            if len(shape) not in (4, 5):
                raise ShapeMismatch(op=op, argument=name, expected=axes, given=str(shape))
        axes, coordinates = ("OD, OH, OW, 3", "x, y and z") if self.volume else ("OH, OW, 2", "x and y")
        if (len(self.grid_shape), self.grid_shape[0], self.grid_shape[-1]) != (
            len(self.shape),
            self.n,
            len(self.shape) - 2,
        ):
            raise ShapeMismatch(
                op=op,
                argument="grid",
                expected=f"({self.n}, {axes}): a grid for each image of x, {coordinates} of each point",
                given=str(self.grid_shape),
            )
        object.__setattr__(self, "dtype", checked_type(self.dtype, op, "x", modes.FAMILY.dtypes))
        for name, known in _MODES.items():
            given = getattr(self, name)
            if given.__class__ is not known[0].__class__ or given not in known:
                expected = " or ".join(repr(value) for value in known)
                raise InvalidArgument(op=op, argument=name, expected=expected, given=shown(given))
        if self.mode == "bicubic" and self.volume:
            expected = "'bilinear' or 'nearest' for a volume"
            raise Unsupported(
                op=op, argument="mode", expected=expected, given="'bicubic'", fix="Sample it slice by slice"
            )
        object.__setattr__(self, "strides", self._checked_strides())

    def _checked_strides(self) -> tuple[int, ...]:
        packed = contiguous(self.shape)
        strides = packed if self.strides == () else whole_numbers(self.strides)
        if strides is None or len(strides) != len(packed) or min(strides) < 0:
            expected = f"{len(packed)} strides of 0 or more, in elements"
            raise LayoutError(op=self.op, argument="strides", expected=expected, given=shown(self.strides))
        return packed if is_contiguous(self.shape, strides) else strides

    @property
    def volume(self) -> bool:
        """Whether it has a depth."""
        return len(self.shape) == 5

    @property
    def plain(self) -> bool:
        """Whether it is the problem of the fast kernels: contiguous images, bilinear, zeros, align_corners=False."""
        return self.default_mode and self.packed

    @property
    def default_mode(self) -> bool:
        """Whether it is an image, bilinear, zeros, align_corners=False: the mode of the fast kernels."""
        first = (self.mode, self.padding_mode, self.align_corners) == ("bilinear", "zeros", False)
        return first and not self.volume

    @property
    def packed(self) -> bool:
        """Whether x is contiguous."""
        return self.strides == contiguous(self.shape)

    @property
    def last(self) -> bool:
        """Whether the channels of each pixel of x lie side by side."""
        return same_layout(self.shape, self.strides, channels_last(self.shape))

    @property
    def way(self) -> str:
        """The mode, in the names of kernels for each."""
        return f"{'volume_' if self.volume else ''}{self.mode}"

    @property
    def padding(self) -> tuple[int, int]:
        """The padding mode's number, and align_corners, as kernels for each mode take them."""
        return _MODES["padding_mode"].index(self.padding_mode), int(self.align_corners)

    def not_plain(self, family: KernelFamily) -> Refusal | None:
        """Return why the kernels of plain problems, those of this family, cannot serve this one, or None."""
        if self.plain and self.dtype.name in family.dtypes:
            return None
        return Refusal(f"takes {' or '.join(family.dtypes)}, contiguous, {_PLAIN}")

    @property
    def n(self) -> int:
        """Images."""
        return self.shape[0]

    @property
    def c(self) -> int:
        """Channels."""
        return self.shape[1]

    @property
    def ih(self) -> int:
        """Rows of an image, or of a volume's slice."""
        return self.shape[-2]

    @property
    def iw(self) -> int:
        """Columns of an image."""
        return self.shape[-1]

    @property
    def oh(self) -> int:
        """Rows of the result."""
        return self.grid_shape[-3]

    @property
    def ow(self) -> int:
        """Columns of the result."""
        return self.grid_shape[-2]

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Of y, ``[N, C, OH, OW]`` or ``[N, C, OD, OH, OW]``."""
        return (self.n, self.c, *self.grid_shape[1:-1])

    @property
    def positions(self) -> int:
        """Of an image of the result."""
        return math.prod(self.grid_shape[1:-1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """As the kernels take them."""
        return (*self.shape, *self.grid_shape[1:-1])

    @property
    def empty(self) -> bool:
        """Whether y has no elements."""
        return not math.prod(self.out_shape)

    def kernel(self, role: str, language: str) -> KernelSpec:
        """Return an entry for this element type."""
        return FAMILY.kernel(role, self.dtype, language)

    def guarantee(self, accumulator: str | None = None, atomics: bool = False) -> PrecisionGuarantee:
        """Arithmetic is in the element type, or float32 for 16 bits; so are sums, unless said otherwise."""
        kind = parameter_type(self.dtype).name
        return PrecisionGuarantee(kind, accumulator or kind, not atomics, not atomics)


@dataclass(frozen=True)
class GridSampleBackwardDescriptor(GridSampleDescriptor):
    """A problem of grid_sample_backward; its fields are those of :class:`GridSampleDescriptor`."""

    op: ClassVar[str] = "grid_sample_backward"

    @property
    def empty(self) -> bool:
        """Whether no position adds to a gradient."""
        return not math.prod(self.shape) * math.prod(self.out_shape)

    @property
    def crowded(self) -> bool:
        """Whether many points lie on few pixels.

        The error of a pixel's sum grows with the root of how many parts it has, the bar with the image's longest side.
        """
        return self.positions > math.prod(self.shape[2:]) * max(self.shape[2:]) ** 2


class GridSampleArgs(NamedTuple):
    """Operands of :class:`GridSamplePlan`; without `out` the result is allocated."""

    x: DeviceArrayLike
    grid: DeviceArrayLike
    out: DeviceArrayLike | None = None


class GridSampleBackwardArgs(NamedTuple):
    """Operands of :class:`GridSampleBackwardPlan`; what is None of the last two is allocated."""

    grad_out: DeviceArrayLike
    x: DeviceArrayLike
    grid: DeviceArrayLike
    grad_input: DeviceArrayLike | None = None
    grad_grid: DeviceArrayLike | None = None


class GridSampleGradients(NamedTuple):
    """What :func:`grid_sample_backward` returns."""

    grad_input: DeviceArray
    grad_grid: DeviceArray


_GRID_YZ = 65535
_THREADS = 256


# Forward --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChannelsConfig(Config):
    """Knobs of the forward: the channels that a thread takes, since what it knows of its point serves them all."""

    channels: int

    @classmethod
    def heuristic(cls, problem: GridSampleDescriptor) -> ChannelsConfig:
        """As many as leave enough blocks: several for each multiprocessor of the largest devices."""
        blocks = _blocks(problem)[0] * min(problem.n, _GRID_YZ)
        enough = (count for count in _CHANNELS if blocks * -(-problem.c // count) >= _ENOUGH_BLOCKS)
        return cls(next(enough, _CHANNELS[-1]))

    @classmethod
    def candidates(cls, problem: GridSampleDescriptor) -> Sequence[ChannelsConfig]:
        """Return 8 to 64 channels."""
        best = cls.heuristic(problem)
        return (best, *(cls(count) for count in _CHANNELS[:4] if count != best.channels))


_CHANNELS = (64, 32, 16, 8, 4)
_ENOUGH_BLOCKS = 2048


def _blocks(problem: GridSampleDescriptor) -> tuple[int, int]:
    """Return how many blocks serve the positions of an image, of how many threads."""
    if problem.oh >= 32 and problem.ow >= 128:  # in tiles, as the kernel has it
        return -(-problem.ow // 32) * -(-problem.oh // (_THREADS // 32)), _THREADS
    threads = min(_THREADS, 32 * -(-problem.positions // 32))
    return -(-problem.positions // max(threads, 1)), threads


class Forward(Variant[GridSampleDescriptor, ChannelsConfig]):
    """A thread for each position and part of the channels."""

    name = "baseline"
    config_type = ChannelsConfig

    def schedule(self, problem: GridSampleDescriptor, config: ChannelsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        blocks, threads = _blocks(problem)
        if self.language == "hip":
            blocks = blocks_in_hip(blocks * threads, threads)
        grid = (blocks, min(-(-problem.c // config.channels), _GRID_YZ), min(problem.n, _GRID_YZ))
        arguments: tuple[Argument, ...] = ("x", "grid", "out", *problem.sizes)
        launch = Launch(problem.kernel("grid_sample", self.language), grid, threads, arguments)
        return Schedule((launch,), problem.guarantee())


@dataclass(frozen=True)
class WidthConfig(Config):
    """Knobs of channels-last images: the width of a block's tile of 32 points, a power of two of up to 32."""

    width: int

    @classmethod
    def heuristic(cls, problem: GridSampleDescriptor) -> WidthConfig:
        """Whole sectors are written."""
        del problem
        return cls(16)

    @classmethod
    def candidates(cls, problem: GridSampleDescriptor) -> Sequence[WidthConfig]:
        """Return twice of it, too."""
        del problem
        return cls(16), cls(32)


class Last(Variant[GridSampleDescriptor, WidthConfig]):
    """Eight threads for a point, which take 16 bytes of channels that lie side by side."""

    name = "last"
    config_type = WidthConfig

    def schedule(self, problem: GridSampleDescriptor, config: WidthConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        vector, width = 16 // problem.dtype.size, config.width
        if not problem.default_mode or not problem.last or problem.c % vector:
            return Refusal(f"takes channels-last images of {vector} channels, or several times as many, and {_PLAIN}")
        if width not in (1, 2, 4, 8, 16, 32):
            return Refusal(f"a width of {width} is no power of two of up to 32")
        blocks = problem.n * -(-problem.ow // width) * -(-problem.oh // (32 // width))
        parts = 1 if blocks >= _ENOUGH_BLOCKS else min(-(-problem.c // (8 * vector)), _GRID_YZ)
        kernel = problem.kernel("grid_sample_last", self.language)
        arguments: tuple[Argument, ...] = ("x", "grid", "out", width.bit_length() - 1, *problem.sizes)
        return Schedule((Launch(kernel, (blocks, parts), _THREADS, arguments),), problem.guarantee())


class GridSamplePlan(Plan[GridSampleDescriptor, GridSampleArgs, DeviceArray]):
    """Plan of :func:`grid_sample`; run it with :class:`GridSampleArgs`.

    Variants: ``tiled``, a block for each tile of the result, which has in shared memory what its points touch of the
    image; ``tiled_cells``, the same of 16 bits with four channels side by side there; ``baseline``, a thread for each
    position and part of the channels: all for contiguous images, bilinear, zeros, align_corners=False, with the same
    bits; so has ``last``, eight threads a point, for channels-last images.
    ``general``, the third for every mode and volumes, and any strides of x; ``general_tiled``, the first for contiguous
    images, bicubic, and in PTX for volumes, bilinear, these with the same bits.
    """

    op = "grid_sample"
    category = "resampling"
    descriptor_type = GridSampleDescriptor
    variants = (
        TiledCells(),
        Tiled(),
        Last(),
        Forward(),
        GeneralTiled(),
        modes.General(),
        Last("hip"),
        Forward("hip"),
        HipGeneralTiled(),
        modes.General("hip"),
    )

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        return (
            Operand("x", problem.shape, problem.dtype, problem.strides),
            Operand("grid", problem.grid_shape, problem.dtype),
            Operand("out", problem.out_shape, problem.dtype, output=True),
        )


# Backward -------------------------------------------------------------------------------------------------------------

_MOST_PLACES = 30  # leaves 62 bits below the largest gradient
_ALL = ("grad_out", "x", "grid", "grad_input", "grad_grid")


class Direct(Variant[GridSampleBackwardDescriptor, Config]):
    """Float atomics on grad_input itself."""

    name = "baseline"

    def schedule(self, problem: GridSampleBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return zeros and one launch."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        if problem.dtype.name not in _IN_PLACE:
            return Refusal(f"atomics on {problem.dtype} would round at each addition")
        threads = 32 * min(problem.c, 8)
        grid = (blocks_in_hip(problem.n * -(-problem.positions // 32) * threads, threads),)
        kernel = problem.kernel("grid_sample_backward", self.language)
        launch = Launch(kernel, grid, threads, (*_ALL, *problem.sizes))
        return Schedule((Zero("grad_input"), launch), problem.guarantee(atomics=True))


class _Summed(Variant[GridSampleBackwardDescriptor, Config]):
    """By way of sums in the workspace, in which the channels of a pixel lie side by side in 2**shift lanes."""

    @staticmethod
    def _shift(problem: GridSampleBackwardDescriptor) -> int:
        return min((problem.c - 1).bit_length(), 5)

    def _sums(self, problem: GridSampleBackwardDescriptor) -> int:
        """Return how many there are."""
        return problem.n * problem.ih * problem.iw * max(problem.c, 1 << self._shift(problem))

    def _launches(
        self, problem: GridSampleBackwardDescriptor, add: str, collect: str, sums: Region, *scale: Argument
    ) -> tuple[Launch, Launch]:
        """Return the launches that add to the sums, and make grad_input of them."""
        shift, plane, images = self._shift(problem), problem.ih * problem.iw, min(problem.n, _GRID_YZ)
        blocks, parts = -(-problem.positions // (32 * min(8, 32 >> shift))), -(-problem.c >> shift)
        grid, tiles = (blocks, 1, images), (-(-plane >> 10 - shift), min(parts, _GRID_YZ), images)
        if self.language == "hip":
            grid = (blocks_in_hip(problem.n * blocks * _THREADS, _THREADS), 1, 1)
            tiles = (blocks_in_hip(problem.n * parts * tiles[0] * _THREADS, _THREADS), 1, 1)
        adding = (*_ALL, sums, shift, *scale, *problem.sizes)
        collecting = (sums, "grad_input", shift, *scale, problem.n, problem.c, plane)
        return (
            Launch(problem.kernel(f"grid_sample_backward_{add}", self.language), grid, _THREADS, adding),
            Launch(problem.kernel(f"grid_sample_backward_{collect}", self.language), tiles, _THREADS, collecting),
        )


class ChannelsLast(_Summed):
    """Float atomics on sums in which a pixel's channels are neighbours; float32 sums of elements of 16 bits."""

    name = "channels_last"

    def suits(self, problem: GridSampleBackwardDescriptor) -> bool:
        """Where what two more launches and passes over all pixels cost comes back; measured on an H200."""
        dense = 4 * problem.positions >= problem.ih * problem.iw and problem.positions >= _THREADS
        large = dense and problem.c > 1 and problem.n * problem.c * problem.positions >= 1 << 19
        return large or (problem.dtype.name not in _IN_PLACE and problem.c > 1)

    def schedule(self, problem: GridSampleBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return zeros and two launches."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        workspace = Workspace()
        sums = workspace.region("sums", parameter_type(problem.dtype).name, self._sums(problem))
        launches = self._launches(problem, "last", "collect", sums)
        return Schedule((Zero(sums), *launches), problem.guarantee(atomics=True), workspace)


class FixedPoint(_Summed):
    """Integer atomics on sums of two words of 64 bits, scaled by the largest gradient of their plane.

    Of an image with up to 2**places positions, a part of a sum is rounded to 122 - 2 * places bits below the power of
    two that is above the largest finite grad_out of its image and channel; what lies below is lost. Parts that are
    infinite or NaN set bits of the sum, which make it so.
    """

    name = "fixed_point"

    def suits(self, problem: GridSampleBackwardDescriptor) -> bool:
        """Many points on few pixels."""
        return problem.crowded

    def schedule(self, problem: GridSampleBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return zeros and three launches."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        if problem.positions > 1 << _MOST_PLACES:
            positions = f"oh * ow = {problem.positions} positions"
            return Refusal(f"the {positions} of an image leave a sum of integers too few bits")
        planes, places, workspace = problem.n * problem.c, (problem.positions - 1).bit_length(), Workspace()
        largest = workspace.region("largest", "u64", planes)
        sums = workspace.region("sums", "u64", 2 * self._sums(problem))
        grid = (min(-(-planes * -(-problem.positions // 1024) // 8), 4096),)
        arguments = ("grad_out", largest, planes, problem.positions)
        find = Launch(problem.kernel("grid_sample_backward_largest", self.language), grid, _THREADS, arguments)
        launches = self._launches(problem, "fixed", "collect_fixed", sums, largest, places)
        steps = (Zero(largest), Zero(sums), find, *launches)
        return Schedule(steps, problem.guarantee("2 x i64"), workspace)


class GridSampleBackwardPlan(Plan[GridSampleBackwardDescriptor, GridSampleBackwardArgs, GridSampleGradients]):
    """Plan of :func:`grid_sample_backward`; run it with :class:`GridSampleBackwardArgs`.

    Variants, by where they add up grad_input: ``tiled``, for few channels, and ``tiled_channels``, for many, in shared
    memory and then in grad_input, bilinear images; ``quads``, for few, in a workspace with 4 channels of a pixel side
    by side, by vectors; ``channels_last`` in one with all of them side by side; ``baseline`` in grad_input alone. That
    takes no 16 bits, where atomics would round at each addition: the tiled ones have a workspace of float32 then.
    ``quads`` and ``tiled`` take no f64. All use float atomics, so grad_input is not deterministic.
    ``fixed_point`` adds pairs of 64-bit integers in a workspace, for PlanPreference(deterministic=True), and where so
    many positions add to a pixel that atomics in the element type lose too much. ``general`` and
    ``general_fixed_point`` do the same in every mode, of volumes and any strides of x, a thread for each position;
    ``general_last`` does what ``channels_last`` does, bilinear and bicubic, of images and of volumes.
    grad_grid has no atomics and is deterministic in all of them.
    """

    op = "grid_sample_backward"
    category = "resampling"
    descriptor_type = GridSampleBackwardDescriptor
    result_type = GridSampleGradients
    variants = (
        FixedPoint(),
        TiledBackward(),
        Quads(),
        TiledChannels(),
        GeneralLast(),
        ChannelsLast(),
        Direct(),
        modes.GeneralFixedPoint(),
        modes.GeneralBackward(),
        HipTiledBackward(),
        GeneralLast("hip"),
        ChannelsLast("hip"),
        Direct("hip"),
        modes.GeneralFixedPoint("hip"),
        modes.GeneralBackward("hip"),
    )

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        return (
            Operand("grad_out", problem.out_shape, problem.dtype),
            Operand("x", problem.shape, problem.dtype, problem.strides),
            Operand("grid", problem.grid_shape, problem.dtype),
            Operand("grad_input", problem.shape, problem.dtype, output=True),
            Operand("grad_grid", problem.grid_shape, problem.dtype, output=True),
        )


# What users call ------------------------------------------------------------------------------------------------------


def _arrays(op: str, x: Any, grid: Any, stream: Any) -> tuple[DeviceArray, DeviceArray]:
    """Return x and grid, whose shapes make the problem, as DeviceArrays."""
    if type(x) is not DeviceArray:
        x = as_array(x, None, op, "x", stream)
    if type(grid) is not DeviceArray:
        grid = as_array(grid, x.device, op, "grid", stream)
    return x, grid


_plan = plan_cache(GridSamplePlan)
_backward_plan = plan_cache(GridSampleBackwardPlan)


def grid_sample(
    x: DeviceArrayLike,
    grid: DeviceArrayLike,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    out: DeviceArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Read images at the points of a grid.

    ``y[n, c, i, j] = sum of wy * wx * x[n, c, row, column]`` over pixels near the point (sx, sy), where
    ``sx = ((grid[n, i, j, 0] + 1) * IW - 1) / 2``, and sy likewise from grid[n, i, j, 1] and IH: -1 and 1 are the outer
    edges of the image (Jaderberg et al., Spatial Transformer Networks, 2015). With align_corners they are the middles
    of its outer pixels, ``sx = (grid[n, i, j, 0] + 1) / 2 * (IW - 1)``. All is as PyTorch has it. Along each axis:

    - bilinear takes floor(s) and the next pixel, weighted by nearness, 1 minus their distance from s;
    - nearest takes the pixel nearest to s, the even one of two;
    - bicubic takes floor(s) - 1 to floor(s) + 2, weighted by cubic convolution with a = -0.75 (Keys, 1981).

    Under padding_mode "zeros" a pixel outside of the image is 0, each by itself; so a point that is NaN, infinite or
    far away gives 0. "border" clips s to the image; NaN is read as 0. "reflection" reflects s about the outer edges of
    the image, with align_corners about the middles of the outer pixels, as often as needed; NaN and infinity are read
    as 0, and what is too large to have a fraction goes somewhere inside. Bicubic pads each of its pixels in place of s.
    A pixel inside counts even with weight 0: infinity there is NaN. An image without pixels gives 0.

    Parameters
    ----------
    x
        ``[N, C, IH, IW]``, or volumes ``[N, C, ID, IH, IW]``; float32, float64, float16 or bfloat16. In any strides,
        such as channels-last ones; the fastest kernels take contiguous images.
    grid
        ``[N, OH, OW, 2]``, of x's type: x first, then y; for volumes ``[N, OD, OH, OW, 3]``, x, y, z. Contiguous.
    mode
        "bilinear", which is trilinear in volumes, "nearest" or, of images alone, "bicubic".
    padding_mode
        "zeros", "border" or "reflection".
    align_corners
        Whether -1 and 1 are the middles of the outer pixels.
    out
        Where to write, ``[N, C, OH, OW]`` or ``[N, C, OD, OH, OW]``, contiguous, not shared with x and grid.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        y, ``[N, C, OH, OW]`` or ``[N, C, OD, OH, OW]``; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument, Unsupported
        Naming the operand; nothing has been launched then.
    """
    x, grid = _arrays("grid_sample", x, grid, stream)
    plan = _plan(x.device, x.shape, grid.shape, x.dtype, mode, padding_mode, align_corners, x.strides)
    return plan._run((x, grid, out), stream)


def grid_sample_backward(
    grad_out: DeviceArrayLike,
    x: DeviceArrayLike,
    grid: DeviceArrayLike,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    out: Sequence[DeviceArrayLike | None] | None = None,
    stream: StreamLike | None = None,
) -> GridSampleGradients:
    """Return the gradients of :func:`grid_sample` by x and by grid.

    Each pixel of a point that lies in the image gets ``grad_out * wy * wx``. grad_grid is the derivative by the point,
    in bilinear, with 0 for pixels outside, and 0 and 1 for the lower and the upper row and column::

        grad_grid.x = IW / 2 * sum over c of grad_out * (wy0 * (x01 - x00) + wy1 * (x11 - x10))
        grad_grid.y = IH / 2 * sum over c of grad_out * (wx0 * (x10 - x00) + wx1 * (x11 - x01))

    With align_corners (IW - 1) / 2 and (IH - 1) / 2 stand there. In nearest grad_grid is 0. Under border and reflection
    it is 0 along an axis where the point was clipped to the edge or is read as 0, and its sign turns with each
    reflection; in bicubic, whose pixels are padded each by itself, only where the point is read as 0.

    grad_input is added up with float atomics, in float32 for 16 bits: its last bits may differ from run to run, and
    denormals of float32 may count as 0. A plan of GridSampleBackwardPlan with PlanPreference(deterministic=True) is
    free of both. It adds pairs of 64-bit integers: of up to 2**p positions in an image, each part is rounded to at
    least 122 - 2 * p bits below the power of two that is above the largest finite grad_out of its image and channel,
    in bicubic under border and reflection 118 - 2 * p.

    Parameters
    ----------
    grad_out
        ``[N, C, OH, OW]`` or ``[N, C, OD, OH, OW]``, of x's type, contiguous.
    x, grid, mode, padding_mode, align_corners
        As for :func:`grid_sample`.
    out
        (grad_input, grad_grid): where to write, of the shapes of x and grid, contiguous, not shared with each other or
        the rest; what is in them before does not matter.
    stream
        The device's default stream if left out.

    Returns
    -------
    tuple of DeviceArray
        (grad_input, grad_grid); those of `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument, Unsupported
        Naming the operand; nothing has been launched then.
    """
    gradients = GridSampleBackwardPlan.unpacked(out)
    x, grid = _arrays("grid_sample_backward", x, grid, stream)
    plan = _backward_plan(x.device, x.shape, grid.shape, x.dtype, mode, padding_mode, align_corners, x.strides)
    return plan._run((grad_out, x, grid, *gradients), stream)
