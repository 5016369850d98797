"""upsample_nearest2d: resize images by repeating or dropping rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ptxrt.dtypes import BY_NAME, ElementType, element_type
from ptxrt.errors import DTypeMismatch, LayoutError, ShapeMismatch
from ptxrt.ops.framework.plan import Plan, beyond, kept, whole_number
from ptxrt.ops.framework.variant import KernelSpec, Launch, Operand, PrecisionGuarantee, Variant
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.layout import checked_shape, span, whole_numbers
from ptxrt.runtime.signature import Signature

__all__ = [
    "KERNELS",
    "UpsampleNearest2dArgs",
    "UpsampleNearest2dDescriptor",
    "UpsampleNearest2dPlan",
    "upsample_nearest2d",
]

THREADS = 256
TYPES = ("f32", "f64", "f16", "bf16", "u8", "u32")
_BASELINE = "u64 w_out, u64 h_out, f64 w_scale, f64 h_scale, const u64* info, const {0}* src, {0}* dst"
_BANDED = (
    "const {0}* src, {0}* dst, u32 threads, u32 chunks, u32 bands, u32 height, "
    "u32 channels, u32 out_h, u32 out_w, u32 in_h, u32 in_w, f64 row_scale, f64 column_scale, "
    "u64 image_stride, u64 channel_stride, u64 row_stride, u32 column_stride"
)


def _kernel(kind: str, name: str) -> KernelSpec:
    signature = Signature.parse((_BANDED if kind else _BASELINE).format(name))
    parameters = (("name", name), ("bits", str(8 * BY_NAME[name].size)))
    entry = "_".join(filter(None, ("upsample_nearest2d", kind, name)))
    return KernelSpec("upsample_nearest2d", entry, signature, name, parameters)


_KERNEL = {(kind, name): _kernel(kind, name) for kind in ("", "banded") for name in TYPES}
KERNELS = (*_KERNEL.values(), *(_KERNEL["", name].in_hip for name in TYPES))


@dataclass(frozen=True)
class UpsampleNearest2dDescriptor:
    """A problem of upsample_nearest2d: pure data, hashable.

    Parameters
    ----------
    shape, strides
        Of x, ``[N, C, H, W]``; strides of 0 or more, in elements.
    out_h, out_w
        At least 1.
    dtype
        Of x and y: f32, f64, f16, bf16, u8 or u32.

    Raises
    ------
    ShapeMismatch, LayoutError, InvalidArgument, DTypeMismatch
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    out_h: int
    out_w: int
    dtype: ElementType = BY_NAME["f32"]

    def __post_init__(self) -> None:
        op = "upsample_nearest2d"
        shape = checked_shape(self.shape, op)
        if len(shape) != 4:
            raise ShapeMismatch(op=op, argument="x", expected="four axes, [N, C, H, W]", given=str(shape))
        strides = whole_numbers(self.strides)
        if strides is None or len(strides) != 4 or min(strides) < 0:
            raise LayoutError(
                op=op, argument="strides", expected="four strides of 0 or more, in elements", given=repr(self.strides)
            )
        for name in ("out_h", "out_w"):
            object.__setattr__(self, name, whole_number(getattr(self, name), op, name, 1))
        if 0 in shape[2:] and 0 not in shape[:2]:
            raise ShapeMismatch(
                op=op,
                argument="x",
                expected="H and W of at least 1",
                given=str(shape),
                fix="There is nothing to read for the output's elements",
            )
        kind = element_type(self.dtype, op=op, argument="x")
        if kind.name not in TYPES:
            raise DTypeMismatch(op=op, argument="x", expected=", ".join(TYPES), given=str(kind), fix="Convert it")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "strides", strides)
        object.__setattr__(self, "dtype", kind)

    @property
    def out_shape(self) -> tuple[int, int, int, int]:
        """Of y, ``[N, C, out_h, out_w]``."""
        return self.shape[0], self.shape[1], self.out_h, self.out_w

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
    def steps(self) -> tuple[int, ...]:
        """The strides, but 0 on an axis of length 1, whose stride says nothing and may be any number."""
        return tuple(0 if n == 1 else step for n, step in zip(self.shape, self.strides, strict=True))

    @property
    def x_bytes(self) -> int:
        """Bytes from x's first element to the end of its last."""
        return span(self.shape, self.strides) * self.dtype.size

    @property
    def row_span(self) -> int:
        """Elements from the first of a row of x to its last."""
        return (self.in_w - 1) * self.steps[3]

    @property
    def blocks(self) -> int:
        """Of the baseline: an element of y a thread."""
        return -(-math.prod(self.out_shape) // THREADS)


class UpsampleNearest2dArgs(NamedTuple):
    """Operands of :class:`UpsampleNearest2dPlan`; without `out` the result is allocated."""

    x: Any
    out: Any = None


_U32 = (1 << 32) - 1
_VECTOR_BYTES = 16
# Measured on an H200: most rows a thread; chunks that are few, where columns lie apart; 16-byte pieces that are many.
_HEIGHT, _FEW, _MANY = 8, 16, 1 << 18


def _far(problem: UpsampleNearest2dDescriptor) -> str | None:
    return beyond(problem, (1 << 63) - 1, "64-bit offsets", "x_bytes")


def _baseline_refuses(problem: UpsampleNearest2dDescriptor, device: Device) -> str | None:
    return _far(problem) or beyond(problem, device.properties.max_grid[0], "grid.x", "blocks")


def _baseline(problem: UpsampleNearest2dDescriptor) -> tuple[Launch, ...]:
    if not problem.blocks:
        return ()
    info = np.array([*problem.shape, *problem.steps], np.uint64)
    arguments: tuple[Any, ...] = (problem.out_h, problem.out_w, *problem.scales, info, "x", "out")
    return (Launch(_KERNEL["", problem.dtype.name], (problem.blocks,), THREADS, arguments),)


class _Bands(NamedTuple):
    """How the threads of the banded entry share a problem; its text has the same names."""

    problem: UpsampleNearest2dDescriptor

    @property
    def columns(self) -> int:
        return _VECTOR_BYTES // self.problem.dtype.size

    @property
    def chunks(self) -> int:
        return -(-self.problem.out_w // self.columns)

    @property
    def height(self) -> int:
        if self.problem.out_w % self.columns and self.chunks < _FEW:
            return 1  # so that a warp's stores, an element a thread, are as near to each other as can be
        # Rows of y that are one row of x go together; more of them where it takes many loads to fill a thread's bytes,
        # and there is work for many threads all the same.
        same = min(max(self.problem.out_h // max(self.problem.in_h, 1), 1), _HEIGHT)
        pieces = math.prod(self.problem.out_shape[:3]) * self.chunks
        more = min(self.columns // 4, _HEIGHT // same) if pieces >= _MANY else 1
        return max(same * max(more, 1), 2)

    @property
    def bands(self) -> int:
        return -(-self.problem.out_h // self.height)

    @property
    def threads(self) -> int:
        return math.prod(self.problem.shape[:2]) * self.bands * self.chunks


def _banded_refuses(problem: UpsampleNearest2dDescriptor, device: Device) -> str | None:
    del device
    sizes = beyond(problem, _U32, "the kernel's u32", "in_h", "in_w", "out_h", "out_w", "row_span")
    return _far(problem) or sizes or beyond(_Bands(problem), _U32 - THREADS, "the kernel's u32", "threads")


def _banded(problem: UpsampleNearest2dDescriptor) -> tuple[Launch, ...]:
    bands = _Bands(problem)
    if not bands.threads:
        return ()
    counts = (bands.threads, bands.chunks, bands.bands, bands.height)
    sizes = (problem.shape[1], problem.out_h, problem.out_w, problem.in_h, problem.in_w)
    arguments: tuple[Any, ...] = ("x", "out", *counts, *sizes, *problem.scales, *problem.steps)
    return (Launch(_KERNEL["banded", problem.dtype.name], (-(-bands.threads // THREADS),), THREADS, arguments),)


# float64 is what the places of elements are computed in; the elements are moved.
_GUARANTEE = PrecisionGuarantee(
    math_precision="f64", accumulator="f64", deterministic=True, bit_stable_on_same_hardware=True
)


_PLAIN = Variant("baseline", _GUARANTEE, _baseline, _baseline_refuses)


class UpsampleNearest2dPlan(Plan):
    """Plan of :func:`upsample_nearest2d`; run it with :class:`UpsampleNearest2dArgs`.

    Variants: ``banded``, whose threads take 16 bytes of several rows of y; ``baseline``, an element of y a thread.
    """

    op = "upsample_nearest2d"
    category = "resampling"
    descriptor_type = UpsampleNearest2dDescriptor
    variants = (
        Variant("banded", _GUARANTEE, _banded, _banded_refuses),
        _PLAIN,
        _PLAIN.in_hip,
    )
    descriptor: UpsampleNearest2dDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        return (
            Operand("x", problem.shape, problem.dtype, problem.strides),
            Operand("out", problem.out_shape, problem.dtype, output=True),
        )


@kept
def plan_of(
    device: Device, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, out_h: int, out_w: int
) -> UpsampleNearest2dPlan:
    problem = UpsampleNearest2dDescriptor(shape, strides, out_h, out_w, dtype)
    plan: UpsampleNearest2dPlan = UpsampleNearest2dPlan.select(device, problem)
    return plan


def upsample_nearest2d(x: Any, out_h: int, out_w: int, *, out: Any = None, stream: Any = None) -> Any:
    """Resize each image of x to out_h x out_w, up or down, by taking the nearest element before each place.

    ``y[n, c, i, j] = x[n, c, row(i), column(j)]`` with ``row(i) = min(trunc(i * (H / out_h)), H - 1)``, and column(j)
    likewise of W and out_w; quotient and product in float64. That is the rule of candle's upsample_nearest2d, bit for
    bit; PyTorch's, of float32, takes other elements for some sizes.

    Parameters
    ----------
    x
        ``[N, C, H, W]``; float32, float64, float16, bfloat16, uint8 or uint32, in any strides. H and W are at least 1,
        unless N or C is 0.
    out_h, out_w
        At least 1.
    out
        Where to write, contiguous, apart from x.
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
    if x.__class__ is not DeviceArray:
        x = as_array(x, None, "upsample_nearest2d", "x", stream)
    plan = plan_of(x.device, x.shape, x.strides, x.dtype, out_h, out_w)
    return plan.run((x, out), stream)
