"""local_response_norm: scale each value by the squares of its neighbours along the channels; forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops.framework.images import Images
from ptxrt.ops.framework.plan import Plan, beyond, kept, number, unpacked_out, whole_number
from ptxrt.ops.framework.variant import KernelSpec, Launch, Operand, PrecisionGuarantee, Variant
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.signature import Signature

__all__ = [
    "KERNELS",
    "LocalResponseNormArgs",
    "LocalResponseNormBackwardArgs",
    "LocalResponseNormBackwardDescriptor",
    "LocalResponseNormBackwardPlan",
    "LocalResponseNormDescriptor",
    "LocalResponseNormPlan",
    "local_response_norm",
    "local_response_norm_backward",
]

THREADS = 256
SLIDING_SIZES = range(1, 13)
"""Window sizes that the sliding kernels are rendered for, each when it is first used."""

_F32 = BY_NAME["f32"]
_FORWARD = "const f32* in_ptr, f32* out_ptr, f32* denom_ptr, {}, f32 alpha, f32 beta, f32 k"
_BACKWARD = "const f32* in_ptr, const f32* go_ptr, const f32* denom_ptr, f32* gi_ptr, {}, f32 alpha, f32 beta"


def _specs(direction: str, parameters: str) -> dict[tuple[int, str] | None, KernelSpec]:
    """Return the kernels of one direction: the baseline at None, the sliding ones at their size and kind of power."""
    family, counts = "local_response_norm", "u32 batch, u32 channels, u32 spatial, u32 {}"
    baseline = Signature.parse(parameters.format(counts.format("size")))
    sliding = Signature.parse(parameters.format(counts.format("chunk")))
    kernels: dict[tuple[int, str] | None, KernelSpec] = {None: KernelSpec(family, f"lrn_{direction}_kernel", baseline)}
    for size, by in product(SLIDING_SIZES, ("root", "any")):
        entry = f"lrn_{direction}_sliding_{size}_{by}"
        kernels[size, by] = KernelSpec(family, entry, sliding, parameters=(("size", str(size)), ("by", by)))
    return kernels


_FORWARD_KERNELS = _specs("forward", _FORWARD)
_BACKWARD_KERNELS = _specs("backward", _BACKWARD)
KERNELS: tuple[KernelSpec, ...] = (*_FORWARD_KERNELS.values(), *_BACKWARD_KERNELS.values())
KERNELS += (_FORWARD_KERNELS[None].in_hip, _BACKWARD_KERNELS[None].in_hip)


@dataclass(frozen=True)
class _Problem(Images):
    """What the descriptors of both directions have."""

    shape: tuple[int, ...]
    size: int
    dtype: ElementType = _F32
    alpha: float = 1e-4
    beta: float = 0.75

    reals: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    def __post_init__(self) -> None:
        super().__post_init__()
        reals = {name: number(getattr(self, name), self.op, name, _F32, signed=True) for name in self.reals}
        self._set(size=whole_number(self.size, self.op, "size", 1), **reals)

    @property
    def positions(self) -> int:
        """Of all images."""
        return self.batch * self.hw

    @property
    def by(self) -> str:
        """Which sliding kernels serve beta, as float32 has it."""
        return "root" if np.float32(self.beta) in (0.25, 0.5, 0.75, 1) else "any"

    @property
    def blocks(self) -> int:
        """Of the kernels with a thread an element."""
        return -(-self.positions * self.channels // THREADS)

    @property
    def chunk(self) -> int:
        """Channels that a thread of a sliding kernel walks: 1.5 million threads, but four windows' channels a chunk."""
        chunks = min(-(-(3 << 19) // max(self.positions, 1)), max(self.channels // (4 * self.size), 1))
        return max(-(-self.channels // chunks), 1)

    @property
    def sliding_blocks(self) -> int:
        """Of the sliding kernels."""
        return -(-self.positions // THREADS) * -(-self.channels // self.chunk)


@dataclass(frozen=True)
class LocalResponseNormDescriptor(_Problem):
    """A problem of local_response_norm: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, y and denom, ``[N, C, *]``.
    size
        Of the window, at least 1; it may be larger than C, even twice.
    dtype
        Of x, y and denom; float32.
    alpha, beta, k
        Any finite numbers, rounded to float32.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch
    """

    k: float = 1.0

    op: ClassVar[str] = "local_response_norm"
    reals: ClassVar[tuple[str, ...]] = ("alpha", "beta", "k")


@dataclass(frozen=True)
class LocalResponseNormBackwardDescriptor(_Problem):
    """A problem of local_response_norm_backward: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, grad_out, denom and grad_input, ``[N, C, *]``.
    size, dtype, alpha, beta
        As of the forward.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch
    """

    op: ClassVar[str] = "local_response_norm_backward"


class LocalResponseNormArgs(NamedTuple):
    """Operands of :class:`LocalResponseNormPlan`; an output that is None is allocated."""

    x: Any
    out: Any = None
    denom: Any = None


class LocalResponseNormBackwardArgs(NamedTuple):
    """Operands of :class:`LocalResponseNormBackwardPlan`; without `out` the result is allocated."""

    grad_out: Any
    x: Any
    denom: Any
    out: Any = None


_U32 = (1 << 32) - 1


def _refuses(problem: _Problem, device: Device) -> str | None:
    if not problem.elements:
        return None
    return beyond(problem, _U32, "the kernel's u32", "batch", "channels", "hw", "size") or beyond(
        problem, device.properties.max_grid[0], "grid.x", "blocks"
    )


def _sliding_refuses(problem: _Problem, device: Device) -> str | None:
    if problem.size not in SLIDING_SIZES:
        return f"no kernel for windows of {problem.size}, only of {SLIDING_SIZES[0]} to {SLIDING_SIZES[-1]}"
    del device  # 2^24 blocks of positions, times chunks that are the fewer the more positions there are, fit any grid
    limits = "the kernel's u32"
    if not problem.elements:
        return None
    return beyond(problem, _U32 - THREADS, limits, "positions") or beyond(problem, _U32 >> 2, limits, "channels")


def _sliding_suits(problem: _Problem) -> bool:
    # Neighbouring threads take neighbouring positions, which an image of a few has far apart; and a small problem needs
    # its elements as threads.
    return problem.hw >= 16 and problem.positions * problem.channels >= 1 << 18


def _launch(problem: _Problem, sliding: bool) -> tuple[Launch, ...]:
    if not problem.elements:
        return ()
    forward = isinstance(problem, LocalResponseNormDescriptor)
    kernel = (_FORWARD_KERNELS if forward else _BACKWARD_KERNELS)[(problem.size, problem.by) if sliding else None]
    grid = problem.sliding_blocks if sliding else problem.blocks
    arrays = ("x", "out", "denom") if forward else ("x", "grad_out", "denom", "out")
    counts = (problem.batch, problem.channels, problem.hw, problem.chunk if sliding else problem.size)
    reals = [getattr(problem, name) for name in problem.reals]
    return (Launch(kernel, (grid,), THREADS, (*arrays, *counts, *reals)),)


_GUARANTEE = PrecisionGuarantee(
    math_precision="f64", accumulator="f64", deterministic=True, bit_stable_on_same_hardware=True
)
_BASELINE = Variant("baseline", _GUARANTEE, lambda problem: _launch(problem, False), _refuses)
_VARIANTS = (
    Variant("sliding", _GUARANTEE, lambda problem: _launch(problem, True), _sliding_refuses, _sliding_suits),
    _BASELINE,
    _BASELINE.in_hip,
)


class LocalResponseNormPlan(Plan):
    """Plan of :func:`local_response_norm`; run it with :class:`LocalResponseNormArgs`.

    Variants, which give the same bits: ``sliding``, a thread for a run of channels at one position, for windows of up
    to 12 channels; ``baseline``, a thread an element, for any window.
    """

    op = "local_response_norm"
    category = "normalization"
    descriptor_type = LocalResponseNormDescriptor
    variants = _VARIANTS
    descriptor: LocalResponseNormDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        shape, kind = self.descriptor.shape, self.descriptor.dtype
        return (
            Operand("x", shape, kind),
            Operand("out", shape, kind, output=True),
            Operand("denom", shape, _F32, output=True),
        )


class LocalResponseNormBackwardPlan(Plan):
    """Plan of :func:`local_response_norm_backward`; run it with :class:`LocalResponseNormBackwardArgs`.

    Variants, which give the same bits: ``sliding`` and ``baseline``, as of the forward. The baseline takes every power
    once for each window that it is in.
    """

    op = "local_response_norm_backward"
    category = "normalization"
    descriptor_type = LocalResponseNormBackwardDescriptor
    variants = _VARIANTS
    descriptor: LocalResponseNormBackwardDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        shape, kind = self.descriptor.shape, self.descriptor.dtype
        return (
            Operand("grad_out", shape, kind),
            Operand("x", shape, kind),
            Operand("denom", shape, _F32),
            Operand("out", shape, kind, output=True),
        )


@kept
def plan_of(device: Device, shape: tuple[int, ...], dtype: Any, *problem: Any) -> LocalResponseNormPlan:
    size, alpha, beta, k = problem
    descriptor = LocalResponseNormDescriptor(shape, size, dtype, alpha, beta, k)
    plan: LocalResponseNormPlan = LocalResponseNormPlan.select(device, descriptor)
    return plan


@kept
def backward_plan_of(
    device: Device, shape: tuple[int, ...], dtype: Any, *problem: Any
) -> LocalResponseNormBackwardPlan:
    size, alpha, beta = problem
    descriptor = LocalResponseNormBackwardDescriptor(shape, size, dtype, alpha, beta)
    plan: LocalResponseNormBackwardPlan = LocalResponseNormBackwardPlan.select(device, descriptor)
    return plan


def local_response_norm(
    x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0, *, out: Any = None, stream: Any = None
) -> Any:
    """Divide each value by a power of the mean square of its neighbours along the channels.

    ``denom[n, c, p] = sum(x[n, j, p]^2) / size * alpha + k`` over the channels j of the window
    ``[c - size // 2, c + size - size // 2)`` that there are, and ``y = x * denom^-beta`` (Krizhevsky, Sutskever and
    Hinton, ImageNet Classification with Deep Convolutional Neural Networks, 2012; the window and the division by size
    at the edges too are PyTorch's).

    It is computed in float64 and rounded once: a square that float32 cannot hold does not make y 0, as PyTorch has it
    (its x^2 is infinite above 1.8e19), and y is from the denom before it was rounded. A denom that is not above 0,
    which only a k or alpha of at most 0 gives, is raised to -beta as C's pow does: 0 gives infinity and so y is
    infinite, NaN where x is 0; below 0 gives NaN unless beta is whole.

    Parameters
    ----------
    x
        ``[N, C, *]``, float32, contiguous.
    size
        Of the window, at least 1. For an even one, the window has one channel more in front of c than behind.
    alpha, beta, k
        Any finite numbers, rounded to float32.
    out
        Where to write: (y, denom), both of x's shape; an element that is None is allocated. Neither may be x, whose
        values other outputs need as well.
    stream
        The device's default stream if left out.

    Returns
    -------
    tuple of DeviceArray
        (y, denom), both of x's shape; those of `out` where given. The backward wants denom.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument, Unsupported
        Naming the operand; nothing has been launched then.
    """
    if x.__class__ is not DeviceArray:
        x = as_array(x, None, "local_response_norm", "x", stream)
    plan = plan_of(x.device, x.shape, x.dtype, size, alpha, beta, k)
    return plan.run((x, *unpacked_out(out, ("y", "denom"), "local_response_norm")), stream)


def local_response_norm_backward(
    grad_out: Any,
    x: Any,
    denom: Any,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    *,
    out: Any = None,
    stream: Any = None,
) -> Any:
    """Gradient of :func:`local_response_norm` by x.

    ``grad_out * denom^-beta - 2 * beta * alpha / size * x * sum(grad_out * x * denom^(-beta - 1))``, the sum over the
    channels whose window has c in it, ``[c + 1 - (size - size // 2), c + size // 2 + 1)``, as far as there are. It is
    computed in float64 and rounded once. A denom of 0 gives what the powers give: infinity or NaN.

    Parameters
    ----------
    grad_out
        Gradient by y, of x's shape, float32, contiguous.
    x
        The forward's, ``[N, C, *]``, float32, contiguous.
    denom
        As the forward returned it.
    size, alpha, beta
        The forward's.
    out
        Where to write, of x's shape; none of the operands, whose values other outputs need as well.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        The gradient, of x's shape; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument, Unsupported
        Naming the operand; nothing has been launched then.
    """
    if x.__class__ is not DeviceArray:
        x = as_array(x, None, "local_response_norm_backward", "x", stream)
    plan = backward_plan_of(x.device, x.shape, x.dtype, size, alpha, beta)
    return plan.run((grad_out, x, denom, out), stream)
