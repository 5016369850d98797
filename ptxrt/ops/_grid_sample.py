"""grid_sample: an image read at the points of a grid, between its pixels; and its gradients."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType, element_type
from ptxrt.errors import DTypeMismatch, InvalidArgument, ShapeMismatch, Unsupported
from ptxrt.ops.framework.plan import Plan, beyond, kept, unpacked_out
from ptxrt.ops.framework.variant import KernelSpec, Launch, Operand, PrecisionGuarantee, Scratch, Variant, Zero
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.layout import checked_shape
from ptxrt.runtime.signature import Signature

__all__ = [
    "KERNELS",
    "GridSampleArgs",
    "GridSampleBackwardArgs",
    "GridSampleBackwardDescriptor",
    "GridSampleBackwardPlan",
    "GridSampleDescriptor",
    "GridSamplePlan",
    "grid_sample",
    "grid_sample_backward",
]

_F32, _F64 = BY_NAME["f32"], BY_NAME["f64"]

# What the text is rendered with, for each element type.
_PARAMETERS = {
    "f32": {
        "bytes": "4",
        "zero": "0f00000000",
        "half": "0f3F000000",
        "one": "0f3F800000",
        "minus_one": "0fBF800000",
        "minus_two": "0fC0000000",
        "infinity": "0f7F800000",
        "widen": "cvt.f64.f32",
        "narrow": "cvt.rn.f32.f64",
    },
    "f64": {
        "bytes": "8",
        "zero": "0d0000000000000000",
        "half": "0d3FE0000000000000",
        "one": "0d3FF0000000000000",
        "minus_one": "0dBFF0000000000000",
        "minus_two": "0dC000000000000000",
        "infinity": "0d7FF0000000000000",
        "widen": "mov.f64",
        "narrow": "mov.f64",
    },
}
_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
_GRADIENTS = "const {0}* dout_ptr, const {0}* input_ptr, const {0}* grid_ptr, {0}* dinput_ptr, {0}* dgrid_ptr"
_SIGNATURES = {
    "grid_sample": f"const {{0}}* input_ptr, const {{0}}* grid_ptr, {{0}}* output_ptr, {_SIZES}",
    "grid_sample_backward": f"{_GRADIENTS}, {_SIZES}",
    "grid_sample_backward_last": f"{_GRADIENTS}, {{0}}* sums_ptr, i32 shift, {_SIZES}",
    "grid_sample_backward_fixed": (
        f"{_GRADIENTS}, u64* sums_ptr, i32 shift, const u64* largest_ptr, i32 places, {_SIZES}"
    ),
    "grid_sample_backward_collect": ("const {0}* sums_ptr, {0}* dinput_ptr, i32 shift, i32 n, i32 c, u64 plane"),
    "grid_sample_backward_collect_fixed": (
        "const u64* sums_ptr, {0}* dinput_ptr, i32 shift, const u64* largest_ptr, i32 places, i32 n, i32 c, u64 plane"
    ),
    "grid_sample_backward_clear": "u64* words_ptr, u64 count",
    "grid_sample_backward_largest": "const {0}* values_ptr, u64* largest_ptr, u64 count",
}

KERNELS: tuple[KernelSpec, ...] = tuple(
    KernelSpec(
        "grid_sample",
        f"{entry}_{name}",
        Signature.parse(signature.format(name)),
        name,
        (("type", name), *parameters.items()),
    )
    for name, parameters in _PARAMETERS.items()
    for entry, signature in _SIGNATURES.items()
)
_BY_ENTRY = {spec.entry: spec for spec in KERNELS}
KERNELS += tuple(
    _BY_ENTRY[f"{op}_{name}"].in_hip for op in ("grid_sample", "grid_sample_backward") for name in _PARAMETERS
)

_MODES = {
    "mode": ("bilinear", "nearest", "bicubic"),
    "padding_mode": ("zeros", "border", "reflection"),
    "align_corners": (False, True),
}  # the first of each is what this version has


@dataclass(frozen=True)
class GridSampleDescriptor:
    """A problem of grid_sample: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, ``[N, C, IH, IW]``.
    grid_shape
        ``[N, OH, OW, 2]``.
    dtype
        Of x, grid and y; float32 or float64.
    mode, padding_mode, align_corners
        "bilinear", "zeros", False: the others of PyTorch are Unsupported.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch, Unsupported
    """

    op: ClassVar[str] = "grid_sample"

    shape: tuple[int, ...]
    grid_shape: tuple[int, ...]
    dtype: ElementType = _F32
    mode: str = "bilinear"
    padding_mode: str = "zeros"
    align_corners: bool = False

    def __post_init__(self) -> None:
        op = self.op
        for name, field, axes in (("x", "shape", "[N, C, IH, IW]"), ("grid", "grid_shape", "[N, OH, OW, 2]")):
            shape = checked_shape(getattr(self, field), op)
            object.__setattr__(self, field, shape)
            if len(shape) != 4:
                raise ShapeMismatch(op=op, argument=name, expected=f"four axes, {axes}", given=str(shape))
        if self.grid_shape[0] != self.n or self.grid_shape[3] != 2:
            raise ShapeMismatch(
                op=op,
                argument="grid",
                expected=f"({self.n}, OH, OW, 2): a grid for each image of x, x and y of each point",
                given=str(self.grid_shape),
            )
        kind = element_type(self.dtype, op=op, argument="x")
        if kind not in (_F32, _F64):
            raise DTypeMismatch(op=op, argument="x", expected="f32 or f64", given=str(kind), fix="Convert it")
        object.__setattr__(self, "dtype", kind)
        for name, known in _MODES.items():
            given = getattr(self, name)
            if given.__class__ is not known[0].__class__ or given not in known:
                expected = " or ".join(repr(value) for value in known)
                raise InvalidArgument(op=op, argument=name, expected=expected, given=repr(given))
            if given != known[0]:
                raise Unsupported(
                    op=op, argument=name, expected=repr(known[0]), given=repr(given), fix="Only that is written so far"
                )

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
        """Rows of an image."""
        return self.shape[2]

    @property
    def iw(self) -> int:
        """Columns of an image."""
        return self.shape[3]

    @property
    def oh(self) -> int:
        """Rows of the result."""
        return self.grid_shape[1]

    @property
    def ow(self) -> int:
        """Columns of the result."""
        return self.grid_shape[2]

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Of y, ``[N, C, OH, OW]``."""
        return (self.n, self.c, self.oh, self.ow)

    @property
    def sizes(self) -> tuple[int, int, int, int, int, int]:
        """As the kernels take them."""
        return (self.n, self.c, self.ih, self.iw, self.oh, self.ow)


@dataclass(frozen=True)
class GridSampleBackwardDescriptor(GridSampleDescriptor):
    """A problem of grid_sample_backward, told by x and grid like :class:`GridSampleDescriptor`."""

    op: ClassVar[str] = "grid_sample_backward"


class GridSampleArgs(NamedTuple):
    """Operands of :class:`GridSamplePlan`; without `out` the result is allocated."""

    x: Any
    grid: Any
    out: Any = None


class GridSampleBackwardArgs(NamedTuple):
    """Operands of :class:`GridSampleBackwardPlan`; what is None of the last two is allocated."""

    grad_out: Any
    x: Any
    grid: Any
    grad_input: Any = None
    grad_grid: Any = None


_I32 = (1 << 31) - 1
_GRID_YZ = 65535
_THREADS = 256
_ENOUGH_BLOCKS = 2048  # several for each multiprocessor of the largest devices


class _GridSamplePlan(Plan):
    """What both plans share: their arithmetic is in the element type of the problem."""

    category = "resampling"
    descriptor: GridSampleDescriptor

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        """What it says of its results."""
        stated, kind = self.variant.guarantee, self.descriptor.dtype.name
        return replace(
            stated, math_precision=kind, accumulator=kind if stated.accumulator == "f32" else stated.accumulator
        )


def _kernel(problem: GridSampleDescriptor, entry: str) -> KernelSpec:
    return _BY_ENTRY[f"{entry}_{problem.dtype.name}"]


def _no_i32(problem: GridSampleDescriptor) -> str | None:
    return beyond(problem, _I32, "the kernel's i32", "n", "c", "ih", "iw", "oh", "ow")


def _too_large(problem: GridSampleDescriptor, device: Device, blocks: int) -> str | None:
    return _no_i32(problem) or (
        f"oh * ow = {problem.oh * problem.ow} does not fit grid.x" if blocks > device.properties.max_grid[0] else None
    )


# Forward --------------------------------------------------------------------------------------------------------------


def _blocks(problem: GridSampleDescriptor) -> tuple[int, int]:
    """Return how many blocks serve the positions of an image, of how many threads."""
    if problem.oh >= 32 and problem.ow >= 128:  # in tiles, as the kernel has it
        return -(-problem.ow // 32) * -(-problem.oh // (_THREADS // 32)), _THREADS
    threads = min(_THREADS, 32 * -(-problem.oh * problem.ow // 32))
    return -(-problem.oh * problem.ow // max(threads, 1)), threads


def _refuses(problem: GridSampleDescriptor, device: Device) -> str | None:
    return _too_large(problem, device, _blocks(problem)[0]) if math.prod(problem.out_shape) else None


def _launches(problem: GridSampleDescriptor) -> tuple[Launch, ...]:
    if not math.prod(problem.out_shape):
        return ()
    blocks, threads = _blocks(problem)
    images = min(problem.n, _GRID_YZ)
    # A thread takes as many channels as leave enough blocks: what it knows of its point serves them all.
    for channels in (64, 32, 16, 8, 4):
        parts = min(-(-problem.c // channels), _GRID_YZ)
        if blocks * parts * images >= _ENOUGH_BLOCKS:
            break
    kernel = _kernel(problem, "grid_sample")
    return (Launch(kernel, (blocks, parts, images), threads, ("x", "grid", "out", *problem.sizes)),)


_BASELINE = Variant("baseline", PrecisionGuarantee("f32", "f32", True, True), _launches, _refuses)


class GridSamplePlan(_GridSamplePlan):
    """Plan of :func:`grid_sample`; run it with :class:`GridSampleArgs`.

    Variant: ``baseline``, a thread for each position and part of the channels.
    """

    op = "grid_sample"
    descriptor_type = GridSampleDescriptor
    variants = (_BASELINE, _BASELINE.in_hip)

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        return (
            Operand("x", problem.shape, problem.dtype),
            Operand("grid", problem.grid_shape, problem.dtype),
            Operand("out", problem.out_shape, problem.dtype, output=True),
        )


# Backward -------------------------------------------------------------------------------------------------------------

_MOST_PLACES = 30  # leaves 32 bits below the largest gradient
_MOST_BLOCKS = (1 << 24) - 1  # of 256 threads: HIP launches fewer than 2**32 along x; the rest takes turns
_ALL = ("grad_out", "x", "grid", "grad_input", "grad_grid")


def _empty(problem: GridSampleBackwardDescriptor) -> bool:
    return not math.prod(problem.shape) * math.prod(problem.out_shape)


_ZEROS = (Zero("grad_input"), Zero("grad_grid"))


def _tiles(problem: GridSampleBackwardDescriptor, positions: int) -> int:
    return -(-problem.oh * problem.ow // positions)


def _direct_refuses(problem: GridSampleBackwardDescriptor, device: Device) -> str | None:
    return None if _empty(problem) else _no_i32(problem)


def _direct_launches(problem: GridSampleBackwardDescriptor) -> tuple[Launch | Zero, ...]:
    if _empty(problem):
        return _ZEROS
    grid = (min(problem.n * _tiles(problem, 32), _MOST_BLOCKS),)
    kernel = _kernel(problem, "grid_sample_backward")
    return (Zero("grad_input"), Launch(kernel, grid, 32 * min(problem.c, 8), (*_ALL, *problem.sizes)))


# By way of sums in the workspace, the channels of a pixel side by side in 2**shift lanes: from byte 256 on, behind the
# largest gradient of the fixed-point variant.
_LARGEST, _SUMS = Scratch(0), Scratch(256)


def _shift(problem: GridSampleBackwardDescriptor) -> int:
    return min((problem.c - 1).bit_length(), 5)


def _summed_blocks(problem: GridSampleBackwardDescriptor) -> int:
    """Return how many blocks of the kernels with sums serve the positions of an image."""
    return _tiles(problem, 32 * min(8, 32 >> _shift(problem)))


def _workspace(problem: GridSampleBackwardDescriptor, place: int) -> int:
    """Return the bytes of a workspace whose sums have `place` bytes each, in whole words of 8."""
    places = problem.n * problem.ih * problem.iw * max(problem.c, 1 << _shift(problem))
    return 0 if _empty(problem) else 256 + -(-places * place // 8) * 8


def _summed(
    problem: GridSampleBackwardDescriptor, suffix: str, place: int, *scale: Scratch | int
) -> tuple[Launch, Launch, Launch]:
    """Return the launches that clear the sums, add to them, and make grad_input of them."""
    shift, plane, images = _shift(problem), problem.ih * problem.iw, min(problem.n, _GRID_YZ)
    words = _workspace(problem, place) // 8
    add = _kernel(problem, f"grid_sample_backward{suffix or '_last'}")
    collect = _kernel(problem, f"grid_sample_backward_collect{suffix}")
    tiles = (-(-plane >> 10 - shift), min(-(-problem.c >> shift), _GRID_YZ), images)
    return (
        _each(problem, "clear", words, Scratch(0)),
        Launch(add, (_summed_blocks(problem), 1, images), _THREADS, (*_ALL, _SUMS, shift, *scale, *problem.sizes)),
        Launch(collect, tiles, _THREADS, (_SUMS, "grad_input", shift, *scale, problem.n, problem.c, plane)),
    )


def _each(problem: GridSampleBackwardDescriptor, entry: str, count: int, *arguments: str | Scratch) -> Launch:
    kernel = _kernel(problem, f"grid_sample_backward_{entry}")
    return Launch(kernel, (min(-(-count // (4 * _THREADS)), 4096),), _THREADS, (*arguments, count))


def _summed_refuses(problem: GridSampleBackwardDescriptor, device: Device) -> str | None:
    if _empty(problem):
        return None
    most = device.properties.max_grid[0]
    return _too_large(problem, device, _summed_blocks(problem)) or (
        f"ih * iw = {problem.ih * problem.iw} does not fit grid.x" if problem.ih * problem.iw > 32 * most else None
    )


def _last_suits(problem: GridSampleBackwardDescriptor) -> bool:
    # What two more launches and passes over all pixels cost must come back; measured on an H200.
    positions = problem.oh * problem.ow
    dense = 4 * positions >= problem.ih * problem.iw and positions >= _THREADS
    return dense and problem.c > 1 and problem.n * problem.c * positions >= 1 << 19


def _last_workspace(problem: GridSampleBackwardDescriptor) -> int:
    return _workspace(problem, problem.dtype.size)


def _last_launches(problem: GridSampleBackwardDescriptor) -> tuple[Launch | Zero, ...]:
    return _ZEROS if _empty(problem) else _summed(problem, "", problem.dtype.size)


def _fixed_workspace(problem: GridSampleBackwardDescriptor) -> int:
    return _workspace(problem, 2 * problem.dtype.size)


def _fixed_refuses(problem: GridSampleBackwardDescriptor, device: Device) -> str | None:
    if problem.oh * problem.ow > 1 << _MOST_PLACES:
        return f"the oh * ow = {problem.oh * problem.ow} positions of an image leave a sum of integers too few bits"
    return _summed_refuses(problem, device)


def _fixed_suits(problem: GridSampleBackwardDescriptor) -> bool:
    # The error of a pixel's sum grows with the root of how many parts it has, the bar with the image's longer side.
    return problem.oh * problem.ow > problem.ih * problem.iw * max(problem.ih, problem.iw) ** 2


def _fixed_launches(problem: GridSampleBackwardDescriptor) -> tuple[Launch | Zero, ...]:
    if _empty(problem):
        return _ZEROS
    places = (problem.oh * problem.ow - 1).bit_length()
    clear, add, collect = _summed(problem, "_fixed", 2 * problem.dtype.size, _LARGEST, places)
    largest = _each(problem, "largest", math.prod(problem.out_shape), "grad_out", _LARGEST)
    return (Zero("grad_input"), clear, largest, add, collect)


_LOOSE = PrecisionGuarantee("f32", "f32", deterministic=False, bit_stable_on_same_hardware=False)
_FIRM = PrecisionGuarantee("f32", "i64", deterministic=True, bit_stable_on_same_hardware=True)
_DIRECT = Variant("baseline", _LOOSE, _direct_launches, _direct_refuses)


class GridSampleBackwardPlan(_GridSamplePlan):
    """Plan of :func:`grid_sample_backward`; run it with :class:`GridSampleBackwardArgs`.

    Variants: ``channels_last`` adds to grad_input in a workspace where a pixel's channels lie side by side;
    ``baseline`` in place, without a workspace. Both use float atomics, so grad_input is not deterministic.
    ``fixed_point`` adds 64-bit integers (f64: pairs of them) in a workspace, for PlanPreference(deterministic=True),
    and where so many positions add to a pixel that atomics in the element type lose too much.
    grad_grid has no atomics and is deterministic in all of them.
    """

    op = "grid_sample_backward"
    descriptor_type = GridSampleBackwardDescriptor
    variants = (
        Variant("fixed_point", _FIRM, _fixed_launches, _fixed_refuses, _fixed_suits, _fixed_workspace),
        Variant("channels_last", _LOOSE, _last_launches, _summed_refuses, _last_suits, _last_workspace),
        _DIRECT,
        _DIRECT.in_hip,
    )

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        return (
            Operand("grad_out", problem.out_shape, problem.dtype),
            Operand("x", problem.shape, problem.dtype),
            Operand("grid", problem.grid_shape, problem.dtype),
            Operand("grad_input", problem.shape, problem.dtype, output=True),
            Operand("grad_grid", problem.grid_shape, problem.dtype, output=True),
        )


# What users call ------------------------------------------------------------------------------------------------------


@kept
def plan_of(plan: type[Plan], device: Device, *problem: Any) -> Any:
    return plan.select(device, plan.descriptor_type(*problem))


def _found(plan: type[Plan], x: Any, grid: Any, modes: tuple[Any, ...], stream: Any) -> tuple[Any, Any, Any]:
    """Return the plan, and x and grid as DeviceArrays."""
    if x.__class__ is not DeviceArray:
        x = as_array(x, None, plan.op, "x", stream)
    if grid.__class__ is not DeviceArray:
        grid = as_array(grid, x.device, plan.op, "grid", stream)
    return plan_of(plan, x.device, x.shape, grid.shape, x.dtype, *modes), x, grid


def grid_sample(
    x: Any,
    grid: Any,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Read images at the points of a grid.

    ``y[n, c, i, j] = sum of wy * wx * x[n, c, row, column]`` over the four pixels round the point (sx, sy), weighted by
    nearness, ``1 - abs(sx - column)``, where ``sx = ((grid[n, i, j, 0] + 1) * IW - 1) / 2``, and sy likewise from
    grid[n, i, j, 1] and IH: -1 and 1 are the outer edges of the image (Jaderberg et al., Spatial Transformer Networks,
    2015; the coordinates are PyTorch's with align_corners=False). A pixel outside of the image is 0, each by itself; so
    a point that is NaN, infinite or far away gives 0. A pixel inside counts even with weight 0: infinity there is NaN.

    Parameters
    ----------
    x
        ``[N, C, IH, IW]``, float32 or float64, contiguous.
    grid
        ``[N, OH, OW, 2]``, of x's type: x first, then y.
    mode, padding_mode, align_corners
        "bilinear", "zeros" and False; others that PyTorch knows are Unsupported.
    out
        Where to write, ``[N, C, OH, OW]``, apart from x and grid.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        y, ``[N, C, OH, OW]``; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument, Unsupported
        Naming the operand; nothing has been launched then.
    """
    plan, x, grid = _found(GridSamplePlan, x, grid, (mode, padding_mode, align_corners), stream)
    return plan.run((x, grid, out), stream)


def grid_sample_backward(
    grad_out: Any,
    x: Any,
    grid: Any,
    *,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
    out: Any = None,
    stream: Any = None,
) -> tuple[Any, Any]:
    """Return the gradients of :func:`grid_sample` by x and by grid.

    Each pixel of a point that lies in the image gets ``grad_out * wy * wx``. With 0 for pixels outside, and 0 and 1 for
    the lower and the upper row and column::

        grad_grid.x = IW / 2 * sum over c of grad_out * (wy0 * (x01 - x00) + wy1 * (x11 - x10))
        grad_grid.y = IH / 2 * sum over c of grad_out * (wx0 * (x10 - x00) + wx1 * (x11 - x01))

    grad_input is added up with float atomics: its last bits may differ from run to run, and denormals of float32 may
    count as 0. A plan of GridSampleBackwardPlan with PlanPreference(deterministic=True) is free of both.

    Parameters
    ----------
    grad_out
        ``[N, C, OH, OW]``, of x's type.
    x, grid, mode, padding_mode, align_corners
        As for :func:`grid_sample`.
    out
        (grad_input, grad_grid): where to write, of the shapes of x and grid, apart from each other and the rest;
        what is in them before does not matter.
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
    gradients = unpacked_out(out, ("grad_input", "grad_grid"), "grid_sample_backward")
    plan, x, grid = _found(GridSampleBackwardPlan, x, grid, (mode, padding_mode, align_corners), stream)
    results: tuple[Any, Any] = plan.run((grad_out, x, grid, *gradients), stream)
    return results
