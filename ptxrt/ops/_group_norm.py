"""group_norm and its backward: normalise groups of channels, each image by itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import ShapeMismatch
from ptxrt.ops.framework.images import Images
from ptxrt.ops.framework.plan import Plan, beyond, kept, number, unpacked_out, whole_number
from ptxrt.ops.framework.variant import KernelSpec, Launch, Operand, PrecisionGuarantee, Scratch, Variant, Zero
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.signature import Signature

__all__ = [
    "KERNELS",
    "GroupNormArgs",
    "GroupNormBackwardArgs",
    "GroupNormBackwardDescriptor",
    "GroupNormBackwardPlan",
    "GroupNormDescriptor",
    "GroupNormPlan",
    "group_norm",
    "group_norm_backward",
]

THREADS = 256
WARP = 32
_F32 = BY_NAME["f32"]

_IMAGES = "u32 batch, u32 channels, u32 groups, u32 hw"
_SIGNATURES = {
    "group_norm_kernel": f"const f32* in_ptr, f32* out_ptr, const f32*? w_ptr, const f32*? b_ptr, {_IMAGES}, f32 eps",
    "group_norm_sums_kernel": f"const f32* in_ptr, f64* sums_ptr, {_IMAGES}, u32 slices, u64 length",
    "group_norm_split_kernel": "const f32* in_ptr, f32* out_ptr, const f32*? w_ptr, const f32*? b_ptr, "
    f"const f64* sums_ptr, {_IMAGES}, f32 eps, u32 slices, u64 length",
    "group_norm_backward_groups_kernel": "const f32* in_ptr, const f32* go_ptr, f32* gi_ptr, const f32*? w_ptr, "
    f"f64* partials_ptr, f64* statistics_ptr, {_IMAGES}, f32 eps, u32 slices, u32 length, u32 lanes",
    "group_norm_backward_sums_kernel": "const f32* in_ptr, const f32* go_ptr, f64* partials_ptr, "
    "u32 channels, u32 groups, u32 hw, u32 slices, u32 length, u32 lanes, u64 units",
    "group_norm_backward_statistics_kernel": "const f32* in_ptr, const f32*? w_ptr, const f64* partials_ptr, "
    f"f64* statistics_ptr, {_IMAGES}, f32 eps, u32 slices",
    "group_norm_backward_parameters_kernel": "const f64* partials_ptr, const f64* statistics_ptr, f32*? gw_ptr, "
    "f32* gb_ptr, u32 batch, u32 channels, u32 groups, u32 slices",
    "group_norm_backward_kernel": "const f32* in_ptr, const f32* go_ptr, f32* gi_ptr, const f32*? w_ptr, "
    f"const f64* statistics_ptr, {_IMAGES}, u32 slices, u64 length",
}
KERNELS: tuple[KernelSpec, ...] = tuple(
    KernelSpec("group_norm", name, Signature.parse(text)) for name, text in _SIGNATURES.items()
)
_BASELINE, _SUMS, _SPLIT, _BACKWARD, *_SPLIT_BACKWARD = KERNELS
_BACKWARD_SUMS, _BACKWARD_STATISTICS, _BACKWARD_PARAMETERS, _BACKWARD_INPUT = _SPLIT_BACKWARD

# The same text with blocks of one warp, for groups of few values.
_OF_ONE_WARP = tuple(
    replace(spec, entry=f"{spec.entry}_small", parameters=(("warps", "1"),))
    for spec in (_BASELINE, _BACKWARD, _BACKWARD_STATISTICS, _BACKWARD_PARAMETERS, _BACKWARD_INPUT)
)
_SMALL, _SMALL_BACKWARD, _SMALL_BACKWARD_STATISTICS, _SMALL_BACKWARD_PARAMETERS, _SMALL_BACKWARD_INPUT = _OF_ONE_WARP
KERNELS += _OF_ONE_WARP
KERNELS += tuple(spec.in_hip for spec in (_BASELINE, _BACKWARD, _BACKWARD_PARAMETERS))


@dataclass(frozen=True)
class _Problem(Images):
    """What forward and backward have in common."""

    shape: tuple[int, ...]
    groups: int
    dtype: ElementType = _F32
    eps: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        groups = whole_number(self.groups, self.op, "groups", 1)
        if self.channels % groups:
            raise ShapeMismatch(
                op=self.op,
                argument="groups",
                expected=f"a divisor of the {self.channels} channels of x",
                given=str(groups),
                fix="Every group holds equally many channels",
            )
        self._set(groups=groups, eps=number(self.eps, self.op, "eps", _F32))

    @property
    def group(self) -> int:
        """Values in a group of an image."""
        return self.channels // self.groups * self.hw


@dataclass(frozen=True)
class GroupNormDescriptor(_Problem):
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

    op = "group_norm"


@dataclass(frozen=True)
class GroupNormBackwardDescriptor(_Problem):
    """A problem of group_norm_backward; its fields are those of :class:`GroupNormDescriptor`."""

    op = "group_norm_backward"


class GroupNormArgs(NamedTuple):
    """Operands of :class:`GroupNormPlan`; without `out` the result is allocated."""

    x: Any
    weight: Any = None
    bias: Any = None
    out: Any = None


class GroupNormBackwardArgs(NamedTuple):
    """Operands of :class:`GroupNormBackwardPlan`; results that are left out are allocated."""

    grad_out: Any
    x: Any
    weight: Any = None
    grad_input: Any = None
    grad_weight: Any = None
    grad_bias: Any = None


_U32 = (1 << 32) - 1
_GRID_Y = 65535
_GUARANTEE = PrecisionGuarantee(
    math_precision="f64", accumulator="f64", deterministic=True, bit_stable_on_same_hardware=True
)


def _cut(values: int, aim: int, most: int, step: int) -> tuple[int, int]:
    """Return how many slices `values` are cut into, and their length: about `aim`, a multiple of `step`."""
    length = -(-values // min(most, -(-values // aim)))
    length = -(-length // step) * step
    return -(-values // length), length


def _refuses(problem: _Problem, device: Device) -> str | None:
    if not problem.elements:
        return None  # nothing is launched
    return beyond(problem, _U32, "the kernel's u32", "batch", "channels", "hw") or beyond(
        problem, device.properties.max_grid[0], "grid.x", "groups"
    )


def _too_wide(blocks: int, device: Device) -> str | None:
    return f"{blocks} blocks do not fit grid.x" if blocks > device.properties.max_grid[0] else None


# Forward: a block for each group --------------------------------------------------------------------------------------


def _baseline_refuses(problem: GroupNormDescriptor, device: Device) -> str | None:
    return _refuses(problem, device) or beyond(problem, _GRID_Y, "grid.y", "batch")


def _small_groups(problem: _Problem) -> bool:
    return problem.group <= 1 << 10


def _many_small_groups(problem: _Problem) -> bool:
    return _small_groups(problem) and problem.batch * problem.groups >= 1 << 11


def _whole_groups(problem: GroupNormDescriptor, small: bool) -> tuple[Launch, ...]:
    if not problem.elements:
        return ()
    sizes = (problem.batch, problem.channels, problem.groups, problem.hw, problem.eps)
    grid = (problem.groups, min(problem.batch, _GRID_Y))
    kernel, threads = (_SMALL, WARP) if small else (_BASELINE, THREADS)
    return (Launch(kernel, grid, threads, ("x", "out", "weight", "bias", *sizes)),)


def _baseline_launches(problem: GroupNormDescriptor) -> tuple[Launch, ...]:
    return _whole_groups(problem, small=False)


def _small_launches(problem: GroupNormDescriptor) -> tuple[Launch, ...]:
    return _whole_groups(problem, small=True)


def _looped_launches(problem: GroupNormDescriptor) -> tuple[Launch, ...]:
    return _whole_groups(problem, _small_groups(problem))


# Forward: several blocks for each group -------------------------------------------------------------------------------


def _few_large_groups(problem: GroupNormDescriptor) -> bool:
    return problem.batch * problem.groups < 1 << 9 and problem.group >= 1 << 15


def _slices(problem: _Problem) -> tuple[int, int]:
    """Return how many slices a group is cut into, and their length."""
    return _cut(problem.group, 1 << 13, 1 << 10, 4 * THREADS)


def _split_refuses(problem: GroupNormDescriptor, device: Device) -> str | None:
    reason = _refuses(problem, device)
    if reason or not problem.elements:
        return reason
    return _too_wide(problem.groups * _slices(problem)[0], device)


def _split_workspace(problem: GroupNormDescriptor) -> int:
    """Two f64 a slice, and two more a group."""
    return 16 * problem.batch * problem.groups * (_slices(problem)[0] + 1) if problem.elements else 0


def _split_launches(problem: GroupNormDescriptor) -> tuple[Launch, ...]:
    if not problem.elements:
        return ()
    slices, length = _slices(problem)
    sizes = (problem.batch, problem.channels, problem.groups, problem.hw)
    grid = (problem.groups * slices, min(problem.batch, _GRID_Y))
    arrays = ("x", "out", "weight", "bias")
    return (
        Launch(_SUMS, grid, THREADS, ("x", Scratch(), *sizes, slices, length)),
        Launch(_SPLIT, grid, THREADS, (*arrays, Scratch(), *sizes, problem.eps, slices, length)),
    )


class GroupNormPlan(Plan):
    """Plan of :func:`group_norm`; run it with :class:`GroupNormArgs`.

    Variants: ``baseline``, a block for each group of each image; ``small``, a warp for each, where there are many small
    ones; ``split``, several blocks for each, where there are few large ones; ``looped``, whose blocks take several
    images, for a batch that grid.y cannot hold.
    """

    op = "group_norm"
    category = "normalization"
    descriptor_type = GroupNormDescriptor
    variants = (
        Variant("looped", _GUARANTEE, _looped_launches, _refuses, lambda problem: problem.batch > _GRID_Y),
        Variant("small", _GUARANTEE, _small_launches, _refuses, _many_small_groups),
        Variant("split", _GUARANTEE, _split_launches, _split_refuses, _few_large_groups, _split_workspace),
        Variant("baseline", _GUARANTEE, _baseline_launches, _baseline_refuses),
        Variant("any batch", _GUARANTEE, _baseline_launches, _refuses).in_hip,
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


# Backward -------------------------------------------------------------------------------------------------------------


class _Units(NamedTuple):
    """How the first sums are shared out: each channel of each image is cut into slices, each for so many lanes."""

    slices: int
    length: int
    lanes: int
    total: int


def _units(problem: _Problem, aim: int) -> _Units:
    slices, length = _cut(problem.hw, aim, 1 << 12, 4 * WARP)
    lanes = next((lanes for lanes in (32, 16, 8, 4, 2) if lanes * 8 <= problem.hw), 1)
    return _Units(slices, length, lanes, problem.batch * problem.channels * slices)


def _whole_units(problem: _Problem) -> _Units:
    """Those of the variants in which one block has all of a group: short ones, so that all its warps have some."""
    return _units(problem, 1 << 9)


def _split_units(problem: _Problem) -> _Units:
    return _units(problem, 1 << 11)


def _backward_slices(problem: _Problem) -> tuple[int, int]:
    """Return how many slices a group is cut into where it is written, and their length."""
    return _cut(problem.group, 1 << 12, 1 << 20, 4 * THREADS)


def _backward_refuses(problem: GroupNormBackwardDescriptor, device: Device) -> str | None:
    return _refuses(problem, device) or beyond(problem, device.properties.max_grid[0], "grid.x", "channels")


def _split_blocks(problem: _Problem) -> int:
    units = _split_units(problem)
    return -(-units.total * units.lanes // THREADS)


def _split_backward_refuses(problem: GroupNormBackwardDescriptor, device: Device) -> str | None:
    reason = _backward_refuses(problem, device)
    if reason or not problem.elements:
        return reason
    return _too_wide(max(_split_blocks(problem), problem.groups * _backward_slices(problem)[0]), device)


def _backward_room(problem: _Problem, units: Callable[[_Problem], _Units]) -> int:
    """Return the bytes of workspace: four f64 a unit, the partial sums; behind them five a group, the statistics."""
    return 32 * units(problem).total + 40 * problem.batch * problem.groups if problem.elements else 0


_NO_GRADIENTS = (Zero("grad_weight"), Zero("grad_bias"))


def _few(partial_sums: int) -> bool:
    """Whether a warp adds them up as fast as a block does."""
    return partial_sums <= 4 * WARP


def _parameters_launch(problem: _Problem, units: _Units, few: bool) -> Launch:
    kernel, threads = (_SMALL_BACKWARD_PARAMETERS, WARP) if few else (_BACKWARD_PARAMETERS, THREADS)
    arrays = (Scratch(), Scratch(32 * units.total), "grad_weight", "grad_bias")
    sizes = (problem.batch, problem.channels, problem.groups, units.slices)
    return Launch(kernel, (problem.channels,), threads, (*arrays, *sizes))


def _whole_backward(problem: _Problem, small: bool, wide: bool = False) -> tuple[Launch | Zero, ...]:
    """Return the launches, a block of one warp for each group if `small`; the second's too, but not if `wide`."""
    if not problem.elements:
        return _NO_GRADIENTS
    units = _whole_units(problem)
    few = _few(problem.batch * units.slices) and not wide
    kernel, threads = (_SMALL_BACKWARD, WARP) if small else (_BACKWARD, THREADS)
    arrays = ("x", "grad_out", "grad_input", "weight", Scratch(), Scratch(32 * units.total))
    sizes = (problem.batch, problem.channels, problem.groups, problem.hw, problem.eps)
    cut = (units.slices, units.length, units.lanes)
    grid = (problem.groups, min(problem.batch, _GRID_Y))
    return Launch(kernel, grid, threads, (*arrays, *sizes, *cut)), _parameters_launch(problem, units, few)


def _split_backward(problem: _Problem) -> tuple[Launch | Zero, ...]:
    if not problem.elements:
        return _NO_GRADIENTS
    units, (slices, length) = _split_units(problem), _backward_slices(problem)
    partials, statistics = Scratch(), Scratch(32 * units.total)
    sizes = (problem.batch, problem.channels, problem.groups, problem.hw)
    images = min(problem.batch, _GRID_Y)
    few = _few(problem.channels // problem.groups * units.slices)
    gather, gatherers = (_SMALL_BACKWARD_STATISTICS, WARP) if few else (_BACKWARD_STATISTICS, THREADS)
    write, writers = (_SMALL_BACKWARD_INPUT, WARP) if _small_groups(problem) else (_BACKWARD_INPUT, THREADS)
    return (
        Launch(
            _BACKWARD_SUMS,
            (_split_blocks(problem),),
            THREADS,
            ("x", "grad_out", partials, *sizes[1:], units.slices, units.length, units.lanes, units.total),
        ),
        Launch(
            gather,
            (problem.groups, images),
            gatherers,
            ("x", "weight", partials, statistics, *sizes, problem.eps, units.slices),
        ),
        _parameters_launch(problem, units, _few(problem.batch * units.slices)),
        Launch(
            write,
            (problem.groups * slices, images),
            writers,
            ("x", "grad_out", "grad_input", "weight", statistics, *sizes, slices, length),
        ),
    )


def _large_groups(problem: _Problem) -> bool:
    return problem.group > 1 << 14


class GroupNormBackwardPlan(Plan):
    """Plan of :func:`group_norm_backward`; run it with :class:`GroupNormBackwardArgs`.

    Variants: ``baseline``, in which a block reads its group of an image twice, for the sums and for grad_input;
    ``small``, a warp for each group, where there are many small ones; ``split``, where groups are large: a pass for the
    sums, one for grad_input. In all of them one more pass adds up grad_weight and grad_bias from what each image gives.
    """

    op = "group_norm_backward"
    category = "normalization"
    descriptor_type = GroupNormBackwardDescriptor
    variants = (
        Variant(
            "small",
            _GUARANTEE,
            lambda problem: _whole_backward(problem, small=True),
            _backward_refuses,
            _many_small_groups,
            lambda problem: _backward_room(problem, _whole_units),
        ),
        Variant(
            "split",
            _GUARANTEE,
            _split_backward,
            _split_backward_refuses,
            _large_groups,
            lambda problem: _backward_room(problem, _split_units),
        ),
        Variant(
            "baseline",
            _GUARANTEE,
            lambda problem: _whole_backward(problem, small=False),
            _backward_refuses,
            workspace=lambda problem: _backward_room(problem, _whole_units),
        ),
        Variant(
            "wide",
            _GUARANTEE,
            lambda problem: _whole_backward(problem, small=False, wide=True),
            _backward_refuses,
            workspace=lambda problem: _backward_room(problem, _whole_units),
        ).in_hip,
    )
    descriptor: GroupNormBackwardDescriptor

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        channels = (problem.channels,)
        return (
            Operand("grad_out", problem.shape, problem.dtype),
            Operand("x", problem.shape, problem.dtype),
            Operand("weight", channels, _F32, optional=True),
            Operand("grad_input", problem.shape, problem.dtype, output=True, in_place=("grad_out", "x")),
            Operand("grad_weight", channels, _F32, output=True, needs="weight"),
            Operand("grad_bias", channels, _F32, output=True),
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


@kept
def backward_plan_of(device: Device, shape: tuple[int, ...], dtype: Any, groups: int, eps: float) -> Plan:
    plan: Plan = GroupNormBackwardPlan.select(device, GroupNormBackwardDescriptor(shape, groups, dtype, eps))
    return plan


def group_norm_backward(
    grad_out: Any, x: Any, weight: Any, groups: int, eps: float = 1e-5, *, out: Any = None, stream: Any = None
) -> Any:
    """Return the gradients of :func:`group_norm`.

    With ``xhat = (x - mean) / sqrt(var + eps)`` and ``d = grad_out * weight[c]``, means over the group::

        grad_input = (d - mean(d) - xhat * mean(d * xhat)) / sqrt(var + eps)
        grad_weight[c] = sum over n, p of grad_out * xhat
        grad_bias[c] = sum over n, p of grad_out

    the derivatives of its formula by the chain rule, mean and var being functions of x, and computed from it again.

    Parameters
    ----------
    grad_out, x
        ``[N, C, *]``, float32, contiguous.
    weight
        ``[C]``, float32, or None for ones.
    groups
        Divides C.
    eps
        Added to the variance.
    out
        (grad_input, grad_weight, grad_bias): where to write, or None for what is to be allocated. grad_input may be
        grad_out or x; grad_weight is None if weight is.
    stream
        The device's default stream if left out.

    Returns
    -------
    tuple
        (grad_input, grad_weight, grad_bias): of x's shape, and twice ``[C]``; grad_weight is None if weight is. The
        latter two are zeros where x is empty.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    op = GroupNormBackwardPlan.op
    if x.__class__ is not DeviceArray:
        x = as_array(x, None, op, "x", stream)
    outputs = unpacked_out(out, ("grad_input", "grad_weight", "grad_bias"), op)
    plan = backward_plan_of(x.device, x.shape, x.dtype, groups, eps)
    return plan.run((grad_out, x, weight, *outputs), stream)
