"""group_norm: normalise groups of channels, each image by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ptxrt.array import DeviceArray, empty
from ptxrt.device import Device
from ptxrt.dtypes import BY_NAME, ElementType, element_type
from ptxrt.errors import DTypeMismatch, ShapeMismatch
from ptxrt.interop import as_array
from ptxrt.kernel import Kernel
from ptxrt.layout import checked_shape
from ptxrt.plan import KernelSpec, Operand, Plan, PrecisionGuarantee, Variant, number, whole_number
from ptxrt.signature import Signature
from ptxrt.stream import Stream

__all__ = ["KERNELS", "GroupNormArgs", "GroupNormDescriptor", "GroupNormPlan", "group_norm"]

THREADS = 256
_F32 = BY_NAME["f32"]

KERNELS = (
    KernelSpec(
        "group_norm",
        "group_norm_kernel",
        Signature.parse(
            "const f32* in_ptr, f32* out_ptr, const f32*? w_ptr, const f32*? b_ptr, "
            "u32 batch, u32 channels, u32 groups, u32 hw, f32 eps"
        ),
    ),
)


@dataclass(frozen=True)
class GroupNormDescriptor:
    """A problem of group_norm: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, ``[N, C, *]``.
    groups
        At least 1, and divides C.
    dtype
        Of x and y; float32.
    eps
        Added to the variance; finite and at least 0.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch
    """

    shape: tuple[int, ...]
    groups: int
    dtype: ElementType = _F32
    eps: float = 1e-5

    def __post_init__(self) -> None:
        op = "group_norm"
        shape = checked_shape(self.shape, op)
        object.__setattr__(self, "shape", shape)
        if len(shape) < 2:
            raise ShapeMismatch(op=op, argument="x", expected="at least two axes, [N, C, *]", given=str(shape))
        groups = whole_number(self.groups, op, "groups", 1)
        if self.channels % groups:
            raise ShapeMismatch(
                op=op,
                argument="groups",
                expected=f"a divisor of the {self.channels} channels of x",
                given=str(groups),
                fix="Every group holds equally many channels",
            )
        kind = element_type(self.dtype, op=op, argument="x")
        if kind is not _F32:
            raise DTypeMismatch(op=op, argument="x", expected="f32", given=str(kind), fix="Convert it")
        for name, value in (("groups", groups), ("dtype", kind), ("eps", number(self.eps, op, "eps", _F32))):
            object.__setattr__(self, name, value)

    @property
    def batch(self) -> int:
        """N."""
        return self.shape[0]

    @property
    def channels(self) -> int:
        """C."""
        return self.shape[1]

    @property
    def hw(self) -> int:
        """Product of the trailing axes, 1 if there are none."""
        return math.prod(self.shape[2:])


class GroupNormArgs(NamedTuple):
    """Operands of :class:`GroupNormPlan`; without `out` the result is allocated."""

    x: Any
    weight: Any = None
    bias: Any = None
    out: Any = None


def _refuses(images: int | None) -> Any:
    """Return the test of a variant that gives each image its own blocks, at most `images` of them."""

    def refuses(problem: GroupNormDescriptor, device: Device) -> str | None:
        for name in ("batch", "channels", "hw"):
            if getattr(problem, name) >= 1 << 32:
                return f"{name} = {getattr(problem, name)} does not fit the kernel's u32"
        if problem.groups > device.properties.max_grid[0]:
            return f"{problem.groups} groups do not fit grid.x, {device.properties.max_grid[0]}"
        if images is not None and problem.batch > images:
            return f"a batch of {problem.batch} does not fit grid.y, {images}"
        return None

    return refuses


_GUARANTEE = PrecisionGuarantee(
    math_precision="f32", accumulator="f64", deterministic=True, bit_stable_on_same_hardware=True
)
_GRID_Y = 65535


class GroupNormPlan(Plan):
    """Plan of :func:`group_norm`; run it with :class:`GroupNormArgs`.

    Variants: ``baseline``, a block for each group of each image; ``looped``, whose blocks take several images, for a
    batch that grid.y cannot hold.
    """

    op = "group_norm"
    category = "normalization"
    descriptor_type = GroupNormDescriptor
    variants = (
        Variant("baseline", KERNELS[0], _GUARANTEE, _refuses(_GRID_Y)),
        Variant("looped", KERNELS[0], _GUARANTEE, _refuses(None)),
    )
    descriptor: GroupNormDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        self._dims = (problem.groups, min(problem.batch, _GRID_Y), 1, THREADS, 1, 1)
        self._scalars = (problem.batch, problem.channels, problem.groups, problem.hw, problem.eps)
        self._empty = not math.prod(problem.shape)
        channels = (problem.channels,)
        return (
            Operand("x", problem.shape, problem.dtype),
            Operand("weight", channels, _F32, optional=True),
            Operand("bias", channels, _F32, optional=True),
            Operand("out", problem.shape, problem.dtype, optional=True, written=True, in_place=("x",)),
        )

    def _launch(self, kernel: Kernel, pointers: tuple[int, ...], args: Sequence[Any], queue: Stream) -> Any:
        x, weight, bias, y = pointers
        out = args[3]
        if out is None:
            out = empty(self.descriptor.shape, np.float32, self.device, stream=queue)
            y = out.ptr
        if not self._empty:
            kernel.enqueue(self._dims, 0, queue, (x, y, weight, bias, *self._scalars))
        return out


@lru_cache(maxsize=256, typed=True)
def plan_of(device: Device, shape: tuple[int, ...], dtype: Any, groups: int, eps: float) -> GroupNormPlan:
    plan: GroupNormPlan = GroupNormPlan.select(device, GroupNormDescriptor(shape, groups, dtype, eps))
    return plan


def group_norm(
    x: Any, weight: Any, bias: Any, groups: int, eps: float = 1e-5, *, out: Any = None, stream: Any = None
) -> Any:
    """Normalise each group of channels of each image to mean 0 and deviation 1, then scale and shift.

    ``y[n, c, p] = (x[n, c, p] - mean) / sqrt(var + eps) * weight[c] + bias[c]``, with mean and biased variance over
    the C / groups channels of c's group and all their positions (Wu and He, Group Normalization, 2018).

    Parameters
    ----------
    x
        ``[N, C, *]``, float32, contiguous.
    weight, bias
        ``[C]``, float32, or None for ones and zeros.
    groups
        Divides C.
    eps
        Added to the variance.
    out
        Where to write, of x's shape; it may be x.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        y, of x's shape; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    if x.__class__ is not DeviceArray:
        x = as_array(x, None, "group_norm", "x", stream)
    try:
        plan = plan_of(x.device, x.shape, x.dtype, groups, eps)
    except TypeError:
        # Not hashable, hence no number.
        whole_number(groups, "group_norm", "groups", 1)
        number(eps, "group_norm", "eps", _F32)
        raise
    return plan.run((x, weight, bias, out), stream)
