"""softmax2d: softmax over the channels at every position, and its backward from the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops.framework.images import Images
from ptxrt.ops.framework.plan import Plan, beyond, kept
from ptxrt.ops.framework.variant import KernelSpec, Launch, Operand, PrecisionGuarantee, Variant
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.signature import Signature

__all__ = [
    "KERNELS",
    "Softmax2dArgs",
    "Softmax2dBackwardArgs",
    "Softmax2dBackwardDescriptor",
    "Softmax2dBackwardPlan",
    "Softmax2dDescriptor",
    "Softmax2dPlan",
    "softmax2d",
    "softmax2d_backward",
]

THREADS = 256
HELD = 32
"""Channels that a thread holds in registers."""

_F32 = BY_NAME["f32"]
_FORWARD = "const f32* in_ptr, f32* out_ptr, "
_BACKWARD = "const f32* go_ptr, const f32* y_ptr, f32* gi_ptr, "
_COUNTS = "u32 total, u32 channels, u32 hw"
_TILE = "u64 batch, u32 channels, u32 hw, u32 positions, u32 lanes"

KERNELS: tuple[KernelSpec, ...] = (
    KernelSpec("softmax2d", "softmax2d_kernel", Signature.parse(_FORWARD + _COUNTS)),
    KernelSpec("softmax2d", "softmax2d_tiled_kernel", Signature.parse(_FORWARD + _TILE)),
    KernelSpec("softmax2d", "softmax2d_backward_kernel", Signature.parse(_BACKWARD + _COUNTS)),
    KernelSpec("softmax2d", "softmax2d_backward_tiled_kernel", Signature.parse(_BACKWARD + _TILE)),
)
KERNELS += (KERNELS[0].in_hip, KERNELS[2].in_hip)


@dataclass(frozen=True)
class _Problem(Images):
    """What forward and backward have in common: the shape and the element type of every operand."""

    shape: tuple[int, ...]
    dtype: ElementType = _F32

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
        Of x and y; float32.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch
    """

    op = "softmax2d"


class Softmax2dBackwardDescriptor(_Problem):
    """A problem of softmax2d_backward: pure data, hashable.

    Parameters
    ----------
    shape
        Of grad_out and y, ``[N, C, *]``.
    dtype
        Of grad_out, y and grad_input; float32.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch
    """

    op = "softmax2d_backward"
    first = "grad_out"


class Softmax2dArgs(NamedTuple):
    """Operands of :class:`Softmax2dPlan`; without `out` the result is allocated."""

    x: Any
    out: Any = None


class Softmax2dBackwardArgs(NamedTuple):
    """Operands of :class:`Softmax2dBackwardPlan`; without `out`, which is grad_input, the result is allocated."""

    grad_out: Any
    y: Any
    out: Any = None


_U32 = (1 << 32) - 1


class _Tile(NamedTuple):
    """What a block of a tiled kernel takes, and how many of these there are."""

    positions: int
    lanes: int
    images: int
    tiles: int


def _parts(count: int, size: int) -> int:
    """Return how many parts of `size` it takes."""
    return -(-count // size)


def _tile(problem: _Problem, most_threads: int) -> _Tile:
    """Return the tiles: of columns split so that registers hold them, if the block then still reads whole sectors."""
    batch, channels, hw = problem.batch, problem.channels, problem.hw
    lanes = min(_parts(channels, HELD), most_threads // min(hw, 8))
    unit = 1 if hw % 8 else 8  # where rows begin with a sector, so do strips
    room = min(max(THREADS, 32 * lanes), most_threads) // lanes // unit * unit
    positions = _parts(_parts(hw, _parts(hw, room)), unit) * unit
    lanes = max(lanes, min(_parts(channels, 8), 32 // positions))  # where channels lie side by side, so do lanes
    images = max(1, THREADS // (positions * lanes))  # 1 where an image has several strips: they are that wide
    return _Tile(positions, lanes, images, _parts(batch, images) * _parts(hw, positions))


def _variants(
    plain: KernelSpec, tiled: KernelSpec, most_threads: int, pointers: tuple[str, ...]
) -> tuple[Variant, ...]:
    """Return the variants of an op; forward and backward differ in what is given here."""

    def baseline_launches(problem: _Problem) -> tuple[Launch, ...]:
        if not problem.elements:
            return ()
        sizes = (problem.positions, problem.channels, problem.hw)
        return (Launch(plain, (_parts(problem.positions, THREADS),), THREADS, (*pointers, *sizes)),)

    def tiled_launches(problem: _Problem) -> tuple[Launch, ...]:
        if not problem.elements:
            return ()
        tile = _tile(problem, most_threads)
        sizes = (problem.batch, problem.channels, problem.hw, tile.positions, tile.lanes)
        threads = tile.images * tile.lanes * tile.positions
        return (Launch(tiled, (tile.tiles,), threads, (*pointers, *sizes)),)

    def baseline_refuses(problem: _Problem, device: Device) -> str | None:
        del device  # a grid.x holds 2^31 - 1 blocks, more than these counts can ask for
        if not problem.elements:
            return None  # nothing is launched
        return beyond(problem, _U32, "the kernel's u32", "positions", "channels", "hw")

    def tiled_refuses(problem: _Problem, device: Device) -> str | None:
        if not problem.elements:
            return None
        return beyond(problem, _U32, "the kernel's u32", "channels", "hw") or beyond(
            _tile(problem, most_threads), device.properties.max_grid[0], "grid.x", "tiles"
        )

    def baseline_suits(problem: _Problem) -> bool:
        return problem.channels <= HELD and problem.hw >= 32

    guarantee = PrecisionGuarantee(
        math_precision="f32", accumulator="f32", deterministic=True, bit_stable_on_same_hardware=True
    )
    baseline = Variant("baseline", guarantee, baseline_launches, baseline_refuses, baseline_suits)
    return (baseline, Variant("tiled", guarantee, tiled_launches, tiled_refuses), baseline.in_hip)


class Softmax2dPlan(Plan):
    """Plan of :func:`softmax2d`; run it with :class:`Softmax2dArgs`.

    Variants: ``baseline``, a thread for each column, best where registers hold it; ``tiled``, several threads for each
    column, and the only one for more than 2**32 columns.
    """

    op = "softmax2d"
    category = "activation"
    descriptor_type = Softmax2dDescriptor
    variants = _variants(KERNELS[0], KERNELS[1], 1024, ("x", "out"))
    descriptor: Softmax2dDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        shape, kind = self.descriptor.shape, self.descriptor.dtype
        return (Operand("x", shape, kind), Operand("out", shape, kind, output=True, in_place=("x",)))


class Softmax2dBackwardPlan(Plan):
    """Plan of :func:`softmax2d_backward`; run it with :class:`Softmax2dBackwardArgs`.

    Variants: as of :class:`Softmax2dPlan`.
    """

    op = "softmax2d_backward"
    category = "activation"
    descriptor_type = Softmax2dBackwardDescriptor
    variants = _variants(KERNELS[2], KERNELS[3], 512, ("grad_out", "y", "out"))
    descriptor: Softmax2dBackwardDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        shape, kind = self.descriptor.shape, self.descriptor.dtype
        return (
            Operand("grad_out", shape, kind),
            Operand("y", shape, kind),
            Operand("out", shape, kind, output=True, in_place=("grad_out", "y")),
        )


@kept
def plan_of(device: Device, shape: tuple[int, ...], dtype: Any) -> Softmax2dPlan:
    plan: Softmax2dPlan = Softmax2dPlan.select(device, Softmax2dDescriptor(shape, dtype))
    return plan


@kept
def backward_plan_of(device: Device, shape: tuple[int, ...], dtype: Any) -> Softmax2dBackwardPlan:
    plan: Softmax2dBackwardPlan = Softmax2dBackwardPlan.select(device, Softmax2dBackwardDescriptor(shape, dtype))
    return plan


def softmax2d(x: Any, *, out: Any = None, stream: Any = None) -> Any:
    """Softmax over the channels at each position.

    ``y[n, c, p] = exp(x[n, c, p] - m) / sum_c exp(x[n, c, p] - m)`` with ``m = max_c x[n, c, p]``, as
    ``torch.softmax(x, 1)``: a column of -inf, or with NaN or +inf in it, is NaN in all of its channels.

    Parameters
    ----------
    x
        ``[N, C, *]``, float32, contiguous.
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
        x = as_array(x, None, "softmax2d", "x", stream)
    return plan_of(x.device, x.shape, x.dtype).run((x, out), stream)


def softmax2d_backward(grad_out: Any, y: Any, *, out: Any = None, stream: Any = None) -> Any:
    """Gradient of :func:`softmax2d` from its output: ``grad_input = y * (grad_out - sum_c grad_out * y)``.

    Parameters
    ----------
    grad_out
        ``[N, C, *]``, float32, contiguous.
    y
        What softmax2d returned, of the same shape.
    out
        Where to write grad_input, of the same shape; it may be grad_out or y.
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
    if grad_out.__class__ is not DeviceArray:
        grad_out = as_array(grad_out, None, "softmax2d_backward", "grad_out", stream)
    return backward_plan_of(grad_out.device, grad_out.shape, grad_out.dtype).run((grad_out, y, out), stream)
