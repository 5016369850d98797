"""local_response_norm: scale each value by the squares of its neighbours along the channels; forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops._local_response_norm_last import Last
from ptxrt.ops._local_response_norm_small import Small
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Config,
    F64Sums,
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
    number,
    parameter_type,
    plan_cache,
    whole_number,
)
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

__all__ = [
    "FAMILY",
    "LocalResponseNormArgs",
    "LocalResponseNormBackwardArgs",
    "LocalResponseNormBackwardDescriptor",
    "LocalResponseNormBackwardPlan",
    "LocalResponseNormDescriptor",
    "LocalResponseNormPlan",
    "LocalResponseNormResult",
    "Problem",
    "local_response_norm",
    "local_response_norm_backward",
]

THREADS = 256
SLIDING_SIZES = range(1, 13)
"""Window sizes that the sliding kernels are rendered for, each when it is first used."""

_TURN = 4  # channels that a thread of the sliding kernels takes at a time
_MOST_IN_HIP = {"f64": 5}  # of a window, else 8: shared memory has a place for each channel of it

_COUNTS = "u32 batch, u32 channels, u32 spatial, u32"
_SIGNATURES = {
    "forward": f"const T* in_ptr, T* out_ptr, P* denom_ptr, {_COUNTS} {{}}, P alpha, P beta, P k",
    "backward": f"const T* in_ptr, const T* go_ptr, const P* denom_ptr, T* gi_ptr, {_COUNTS} {{}}, P alpha, P beta",
}
FAMILY = KernelFamily(
    "local_response_norm",
    ("f32", "f64", "f16", "bf16"),
    {f"lrn_{way}_kernel": Role(text.format("size"), hip=True) for way, text in _SIGNATURES.items()}
    | {
        f"lrn_{way}_walking": Role(text.format("size, u32 chunk"), hip=True, ptx=False)
        for way, text in _SIGNATURES.items()
    }
    | {
        f"lrn_{way}_sliding_{size}_{by}": Role(text.format("chunk"), parameters={"size": str(size), "by": by})
        for way, text in _SIGNATURES.items()
        for size in SLIDING_SIZES
        for by in ("root", "any")
    },
    targets=ROUNDING_TARGETS,
)


@dataclass(frozen=True)
class Problem(F64Sums, ImageDescriptor):
    """What the descriptors of both directions have."""

    shape: tuple[int, ...]
    size: int
    dtype: ElementType = BY_NAME["f32"]
    alpha: float = 1e-4
    beta: float = 0.75

    types = FAMILY.dtypes
    way: ClassVar[str]
    arrays: ClassVar[tuple[str, ...]]
    reals: ClassVar[tuple[str, ...]] = ("alpha", "beta")

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = parameter_type(self.dtype)
        reals = {name: number(getattr(self, name), self.op, name, kind, signed=True) for name in self.reals}
        self._set(size=whole_number(self.size, self.op, "size", 1), **reals)

    @property
    def positions(self) -> int:
        """Of all images."""
        return self.batch * self.hw

    @property
    def extent(self) -> tuple[int, int, int]:
        """N, C and HW, as the kernels count them."""
        return self.batch, self.channels, self.hw

    @property
    def quarters(self) -> bool:
        """Whether beta, as the kernels have it, is a power that roots give: of one to four quarters."""
        return parameter_type(self.dtype).numpy.type(self.beta) in (0.25, 0.5, 0.75, 1)

    def launch(self, kernel: str, language: str, blocks: int, *sizes: int, family: KernelFamily = FAMILY) -> Schedule:
        """Return the schedule of one entry; `sizes` are its whole numbers."""
        arguments = (*self.arrays, *sizes, *(getattr(self, name) for name in self.reals))
        spec = family.kernel(f"lrn_{self.way}_{kernel}", self.dtype, language)
        return Schedule((Launch(spec, (blocks,), THREADS, arguments),), self.guarantee)


@dataclass(frozen=True)
class LocalResponseNormDescriptor(Problem):
    """A problem of local_response_norm: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, y and denom, ``[N, C, *]``.
    size
        Of the window, at least 1; it may be larger than C, even twice.
    dtype
        Of x and y.
    alpha, beta, k
        Any finite numbers, rounded to the type of denom.
    strides
        Of x, y and denom, in elements: contiguous if left out, else that or channels-last.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch, LayoutError
    """

    k: float = 1.0
    strides: tuple[int, ...] = ()

    op: ClassVar[str] = "local_response_norm"
    way: ClassVar[str] = "forward"
    arrays: ClassVar[tuple[str, ...]] = ("x", "out", "denom")
    reals: ClassVar[tuple[str, ...]] = ("alpha", "beta", "k")


@dataclass(frozen=True)
class LocalResponseNormBackwardDescriptor(Problem):
    """A problem of local_response_norm_backward: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, grad_out, denom and grad_input, ``[N, C, *]``.
    size, dtype, alpha, beta
        As of the forward.
    strides
        Of all four, in elements: contiguous if left out, else that or channels-last.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch, LayoutError
    """

    strides: tuple[int, ...] = ()

    op: ClassVar[str] = "local_response_norm_backward"
    way: ClassVar[str] = "backward"
    arrays: ClassVar[tuple[str, ...]] = ("x", "grad_out", "denom", "out")


class LocalResponseNormArgs(NamedTuple):
    """Operands of :class:`LocalResponseNormPlan`; an output that is None is allocated."""

    x: DeviceArrayLike
    out: DeviceArrayLike | None = None
    denom: DeviceArrayLike | None = None


class LocalResponseNormBackwardArgs(NamedTuple):
    """Operands of :class:`LocalResponseNormBackwardPlan`; without `out` the result is allocated."""

    grad_out: DeviceArrayLike
    x: DeviceArrayLike
    denom: DeviceArrayLike
    out: DeviceArrayLike | None = None


class LocalResponseNormResult(NamedTuple):
    """What :func:`local_response_norm` returns."""

    y: DeviceArray
    denom: DeviceArray


class Elements(Variant[Problem, Config]):
    """A thread an element, for any window."""

    name = "baseline"

    def schedule(self, problem: Problem, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        count = problem.elements
        blocks = blocks_in_hip(count, THREADS) if self.language == "hip" else -(-count // THREADS)
        return problem.launch("kernel", self.language, blocks, *problem.extent, problem.size)


def _chunks(problem: Problem, threads: int, windows: int) -> int:
    """Return in how many chunks the channels are so many threads, but no smaller ones than of some windows."""
    return min(-(-threads // max(problem.positions, 1)), max(problem.channels // (windows * problem.size), 1))


def _halved(problem: Problem, chunks: int) -> int:
    """Return all channels, half of them, a quarter, ...: the channels of at most so many chunks."""
    return max(-(-problem.channels // (1 << chunks.bit_length() - 1)), 1)


@dataclass(frozen=True)
class SlidingConfig(Config):
    """Knobs of the sliding kernels: the channels that a thread walks."""

    chunk: int

    @classmethod
    def heuristic(cls, problem: Problem) -> SlidingConfig:
        """As measured on an H200: forward twelve times its threads, of 16 bits eight times; backward one time."""
        if problem.way == "backward":
            return cls(_halved(problem, _chunks(problem, 1 << 18, 4)))
        chunks = _chunks(problem, (2 if problem.dtype.size == 2 else 3) << 20, 2)
        whole_turns = -(-problem.channels // (_TURN * chunks)) * _TURN
        return cls(max(min(whole_turns, problem.channels), 1))

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[SlidingConfig]:
        """Return all channels at once, their halves, quarters, sixths and eighths."""
        return tuple(cls(chunk) for chunk in sorted({max(-(-problem.channels // n), 1) for n in (1, 2, 4, 6, 8)}))


class WalkingConfig(SlidingConfig):
    """The same of the kernels in HIP."""

    @classmethod
    def heuristic(cls, problem: Problem) -> WalkingConfig:
        """As measured on an H200: forward six times its threads, backward two times."""
        return cls(_halved(problem, _chunks(problem, (3 if problem.way == "forward" else 1) << 19, 4)))


class Sliding(Variant[Problem, SlidingConfig]):
    """A thread for a run of channels at one position, for windows of up to 12 channels."""

    name = "sliding"

    def __init__(self, language: str = "ptx") -> None:
        super().__init__(language)
        self.config_type = SlidingConfig if language == "ptx" else WalkingConfig

    def suits(self, problem: Problem) -> bool:
        """Long rows, many elements, and more than two channels, which give a thread enough to do.

        Neighbouring threads take neighbouring positions, which an image of a few has far apart; and a small problem
        needs its elements as threads.
        """
        enough = problem.channels > 2 or (self.language == "hip" and problem.dtype.size < 8)
        return enough and problem.hw >= 8 and problem.positions * problem.channels >= 1 << 18

    def schedule(self, problem: Problem, config: SlidingConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        most = _MOST_IN_HIP.get(problem.dtype.name, 8)
        if self.language == "hip" and (problem.size > most or not problem.quarters):
            return Refusal(f"no kernel but for windows of up to {most} and beta of 1 to 4 quarters")
        if problem.size not in SLIDING_SIZES:
            return Refusal(
                f"no kernel for windows of {problem.size}, only of {SLIDING_SIZES[0]} to {SLIDING_SIZES[-1]}"
            )
        # The kernel counts positions, and bytes of a row of channels, in u32.
        for name, most in (("positions", (1 << 32) - 1 - THREADS), ("channels", (1 << 30) - 1)):
            if (value := getattr(problem, name)) > most:
                return Refusal(f"{name} = {value} does not fit the kernel's u32")
        by = "root" if problem.quarters else "any"
        blocks = -(-problem.positions // THREADS) * -(-problem.channels // config.chunk)
        if self.language == "hip":
            return problem.launch("walking", self.language, blocks, *problem.extent, problem.size, config.chunk)
        return problem.launch(f"sliding_{problem.size}_{by}", self.language, blocks, *problem.extent, config.chunk)


_VARIANTS = (Last(), Small(), Sliding(), Elements(), Last("hip"), Sliding("hip"), Elements("hip"))


class LocalResponseNormPlan(Plan[LocalResponseNormDescriptor, LocalResponseNormArgs, LocalResponseNormResult]):
    """Plan of :func:`local_response_norm`; run it with :class:`LocalResponseNormArgs`.

    Variants, which give the same bits, but for y of 16 bits: ``last``, threads that take 16 bytes of channels which lie
    side by side, for windows of 3, 5, 7 and 9 channels; ``sliding``, a thread for a run of channels at one position,
    for windows of up to 12 channels, which computes that y in float32; ``baseline``, a thread an element, for any
    window.
    """

    op = "local_response_norm"
    category = "normalization"
    descriptor_type = LocalResponseNormDescriptor
    result_type = LocalResponseNormResult
    variants = _VARIANTS

    def _operands(self) -> tuple[Operand, ...]:
        shape, kind, strides = self.descriptor.shape, self.descriptor.dtype, self.descriptor.strides
        return (
            Operand("x", shape, kind, strides),
            Operand("out", shape, kind, strides, output=True),
            Operand("denom", shape, parameter_type(kind), strides, output=True),
        )


class LocalResponseNormBackwardPlan(
    Plan[LocalResponseNormBackwardDescriptor, LocalResponseNormBackwardArgs, DeviceArray]
):
    """Plan of :func:`local_response_norm_backward`; run it with :class:`LocalResponseNormBackwardArgs`.

    Variants, which give the same bits: ``last``, ``sliding`` and ``baseline``, as of the forward. The baseline takes
    every power once for each window that it is in.
    """

    op = "local_response_norm_backward"
    category = "normalization"
    descriptor_type = LocalResponseNormBackwardDescriptor
    variants = _VARIANTS

    def _operands(self) -> tuple[Operand, ...]:
        shape, kind, strides = self.descriptor.shape, self.descriptor.dtype, self.descriptor.strides
        return (
            Operand("grad_out", shape, kind, strides),
            Operand("x", shape, kind, strides),
            Operand("denom", shape, parameter_type(kind), strides),
            Operand("out", shape, kind, strides, output=True),
        )


_plan = plan_cache(LocalResponseNormPlan)
_backward_plan = plan_cache(LocalResponseNormBackwardPlan)


def local_response_norm(
    x: DeviceArrayLike,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
    *,
    out: Sequence[DeviceArrayLike | None] | None = None,
    stream: StreamLike | None = None,
) -> LocalResponseNormResult:
    """Divide each value by a power of the mean square of its neighbours along the channels.

    ``denom[n, c, p] = sum(x[n, j, p]^2) / size * alpha + k`` over the channels j of the window
    ``[c - size // 2, c + size - size // 2)`` that there are, and ``y = x * denom^-beta`` (Krizhevsky, Sutskever and
    Hinton, ImageNet Classification with Deep Convolutional Neural Networks, 2012; the window and the division by size
    at the edges too are PyTorch's).

    It is computed in float64 and rounded once, float16 and bfloat16 from float32 once more, where the power too may be
    in float32: a square that float32 cannot hold does not make y 0, as PyTorch has it (its x^2 is infinite above
    1.8e19), and y is from the denom before it was rounded. float64 has sums of two float64, and y from the rounded
    denom; a square that float64 cannot hold, that of 1.4e154, is infinite. A denom that is not above 0, which only a k
    or alpha of at most 0 gives, is raised to -beta as C's pow does: 0 gives infinity and so y is infinite, NaN where x
    is 0; below 0 gives NaN unless beta is whole.

    Parameters
    ----------
    x
        ``[N, C, *]``, float32, float64, float16 or bfloat16, contiguous or channels-last.
    size
        Of the window, at least 1. For an even one, the window has one channel more in front of c than behind.
    alpha, beta, k
        Any finite numbers, rounded to the type of denom.
    out
        Where to write: (y, denom), both of x's shape and layout, denom float64 for float64, else float32; an element
        that is None is allocated. Neither may be x, whose values other outputs need as well.
    stream
        The device's default stream if left out.

    Returns
    -------
    tuple of DeviceArray
        (y, denom), both of x's shape and layout; those of `out` where given. The backward wants denom.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument, Unsupported
        Naming the operand; nothing has been launched then.
    """
    if type(x) is not DeviceArray:
        x = as_array(x, None, "local_response_norm", "x", stream)
    plan = _plan(x.device, x.shape, size, x.dtype, alpha, beta, k, x.strides)
    return plan._run((x, *LocalResponseNormPlan.unpacked(out)), stream)


def local_response_norm_backward(
    grad_out: DeviceArrayLike,
    x: DeviceArrayLike,
    denom: DeviceArrayLike,
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    *,
    out: DeviceArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Gradient of :func:`local_response_norm` by x.

    ``grad_out * denom^-beta - 2 * beta * alpha / size * x * sum(grad_out * x * denom^(-beta - 1))``, the sum over the
    channels whose window has c in it, ``[c + 1 - (size - size // 2), c + size // 2 + 1)``, as far as there are. It is
    computed in float64 and rounded once; in float64 itself, where the two terms cancel, what is left is what float64
    has of them. A denom of 0 gives what the powers give: infinity or NaN.

    Parameters
    ----------
    grad_out
        Gradient by y, of x's shape, type and layout.
    x
        The forward's, ``[N, C, *]``, float32, float64, float16 or bfloat16, contiguous or channels-last.
    denom
        As the forward returned it, float64 for float64, else float32, in x's layout.
    size, alpha, beta
        The forward's.
    out
        Where to write, of x's shape and layout; none of the operands, whose values other outputs need as well.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        The gradient, of x's shape and layout; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument, Unsupported
        Naming the operand; nothing has been launched then.
    """
    if type(x) is not DeviceArray:
        x = as_array(x, None, "local_response_norm_backward", "x", stream)
    plan = _backward_plan(x.device, x.shape, size, x.dtype, alpha, beta, x.strides)
    return plan._run((grad_out, x, denom, out), stream)
