"""group_norm: normalise groups of channels, each image by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

from ptxrt.array import DeviceArray
from ptxrt.device import Device
from ptxrt.dtypes import BY_NAME, ElementType, element_type
from ptxrt.errors import DTypeMismatch, ShapeMismatch
from ptxrt.interop import as_array
from ptxrt.layout import checked_shape
from ptxrt.plan import Plan, beyond, kept, number, whole_number
from ptxrt.signature import Signature
from ptxrt.variant import KernelSpec, Launch, Operand, PrecisionGuarantee, Variant

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


_U32 = (1 << 32) - 1
_GRID_Y = 65535


def _refuses(problem: GroupNormDescriptor, device: Device) -> str | None:
    return beyond(problem, _U32, "the kernel's u32", "batch", "channels", "hw") or beyond(
        problem, device.properties.max_grid[0], "grid.x", "groups"
    )


def _baseline_refuses(problem: GroupNormDescriptor, device: Device) -> str | None:
    return _refuses(problem, device) or beyond(problem, _GRID_Y, "grid.y", "batch")


def _launches(problem: GroupNormDescriptor) -> tuple[Launch, ...]:
    if not math.prod(problem.shape):
        return ()
    sizes = (problem.batch, problem.channels, problem.groups, problem.hw, problem.eps)
    grid = (problem.groups, min(problem.batch, _GRID_Y))
    return (Launch(KERNELS[0], grid, THREADS, ("x", "out", "weight", "bias", *sizes)),)


_GUARANTEE = PrecisionGuarantee(
    math_precision="f32", accumulator="f64", deterministic=True, bit_stable_on_same_hardware=True
)


class GroupNormPlan(Plan):
    """Plan of :func:`group_norm`; run it with :class:`GroupNormArgs`.

    Variants: ``baseline``, a block for each group of each image; ``looped``, whose blocks take several images, for a
    batch that grid.y cannot hold.
    """

    op = "group_norm"
    category = "normalization"
    descriptor_type = GroupNormDescriptor
    variants = (
        Variant("baseline", _GUARANTEE, _launches, _baseline_refuses),
        Variant("looped", _GUARANTEE, _launches, _refuses),
    )
    descriptor: GroupNormDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        channels = (problem.channels,)
        return (
            Operand("x", problem.shape, problem.dtype),
            Operand("weight", channels, _F32, optional=True),
            Operand("bias", channels, _F32, optional=True),
            Operand("out", problem.shape, problem.dtype, output=True, in_place=("x",)),
        )


@kept
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
    plan = plan_of(x.device, x.shape, x.dtype, groups, eps)
    return plan.run((x, weight, bias, out), stream)
