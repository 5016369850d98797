"""What a plan is made of, as plain data: preferences and promises, operands, the launches of each kernel variant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ptxrt.dtypes import ElementType
from ptxrt.errors import InvalidArgument
from ptxrt.ops.framework.texts import read_kernel
from ptxrt.runtime.device import Device
from ptxrt.runtime.kernel import Kernel, load
from ptxrt.runtime.layout import contiguous, span
from ptxrt.runtime.signature import Signature
from ptxrt.runtime.source import KernelSource

__all__ = [
    "KernelSpec",
    "Launch",
    "Operand",
    "PlanPreference",
    "PrecisionGuarantee",
    "Scratch",
    "Sku",
    "Variant",
    "Zero",
]


@dataclass(frozen=True)
class PlanPreference:
    """What a plan must be.

    Attributes
    ----------
    deterministic
        Only variants whose results do not change from run to run.
    workspace_limit
        Most bytes of workspace; None for no limit.
    language
        ``"ptx"`` or ``"hip"``, or None for any.
    variant
        The only variant wanted, by name.
    """

    deterministic: bool = False
    workspace_limit: int | None = None
    language: str | None = None
    variant: str | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[type, ...]] = {
            "deterministic": (bool,),
            "workspace_limit": (int, type(None)),
            "language": (str, type(None)),
            "variant": (str, type(None)),
        }
        for name, allowed in kinds.items():
            value = getattr(self, name)
            if value.__class__ not in allowed:
                expected = " or ".join("None" if kind is type(None) else kind.__name__ for kind in allowed)
                raise InvalidArgument(op="PlanPreference", argument=name, expected=expected, given=repr(value))


@dataclass(frozen=True)
class PrecisionGuarantee:
    """What a plan says of its results.

    Attributes
    ----------
    math_precision, accumulator
        Element types of the arithmetic and of the sums, ``"f32"``.
    deterministic
        Equal inputs give equal bits from run to run.
    bit_stable_on_same_hardware
        They do so on every device of the same architecture.
    """

    math_precision: str
    accumulator: str
    deterministic: bool
    bit_stable_on_same_hardware: bool


class Sku(NamedTuple):
    """What a plan is, hashable."""

    category: str
    op: str
    element_type: str
    architecture: str
    backend: str
    variant: str


@dataclass(frozen=True)
class KernelSpec:
    """An entry that comes with ptxrt, and its ABI.

    Attributes
    ----------
    family
        The file in ``kernels_ptx/`` or ``kernels_hip/``.
    entry, signature
        Its name there, and its parameters. What serves an op's backward has "backward" in its name.
    dtype
        The element type that it is for.
    parameters
        What the file is rendered with, where one text serves several element types: pairs of name and value.
    language
        ``"ptx"`` or ``"hip"``. Entries of one name have the same parameters in both.
    """

    family: str
    entry: str
    signature: Signature
    dtype: str = "f32"
    parameters: tuple[tuple[str, str], ...] = ()
    language: str = "ptx"

    @property
    def op(self) -> str:
        """The op that it serves."""
        return self.family + ("_backward" if "backward" in self.entry else "")

    @property
    def source(self) -> KernelSource:
        """The text, as it is compiled: of a PTX family's entries this one alone."""
        return read_kernel(self.family, self.entry, self.language, **dict(self.parameters))

    @property
    def in_hip(self) -> KernelSpec:
        """The entry of the same name in HIP, which needs no parameters: C++ has templates."""
        return replace(self, language="hip", parameters=())

    def load(self, device: Device) -> Kernel:
        """Return the entry on `device`, through its module cache."""
        return load(self.source, self.entry, self.signature, device)


@dataclass(frozen=True)
class Scratch:
    """A place in the workspace: so many bytes from its start, which is at a multiple of 256."""

    offset: int = 0


@dataclass(frozen=True)
class Launch:
    """One launch: what runs, how wide, on what.

    Attributes
    ----------
    kernel
        The entry.
    grid
        Up to three numbers.
    block
        Threads in a block.
    arguments
        One a parameter of the entry: an operand by its name, a place in the workspace, a table that the plan uploads
        once, or a scalar.
    shared_bytes
        Dynamic shared memory.
    """

    kernel: KernelSpec
    grid: tuple[int, ...]
    block: int
    arguments: tuple[str | Scratch | NDArray[Any] | int | float, ...]
    shared_bytes: int = 0


@dataclass(frozen=True)
class Zero:
    """A step in a launch's place: zeros for all of an operand, where there is one."""

    operand: str


def _never(problem: Any, device: Device) -> str | None:
    del problem, device
    return None


def _always(problem: Any) -> bool:
    del problem
    return True


def _nothing(problem: Any) -> int:
    del problem
    return 0


@dataclass(frozen=True)
class Variant:
    """One way to run an op. Its functions take the descriptor, so that results do not depend on how big a device is.

    Attributes
    ----------
    name
        As PlanPreference.variant and Sku name it.
    guarantee
        Its precision guarantee.
    launches
        ``launches(descriptor)``: its steps, in order; none where there is nothing to do.
    refuses
        ``refuses(descriptor, device)`` says in words why it cannot run the problem, or None.
    suits
        ``suits(descriptor)``: whether to take it before the variants behind it. One that can run the problem and does
        not suit it is taken where no other can, and where it is asked for by name.
    workspace
        ``workspace(descriptor)``: bytes.
    language
        Of its entries, ``"ptx"`` or ``"hip"``.
    """

    name: str
    guarantee: PrecisionGuarantee
    launches: Callable[[Any], Sequence[Launch | Zero]]
    refuses: Callable[[Any, Device], str | None] = _never
    suits: Callable[[Any], bool] = _always
    workspace: Callable[[Any], int] = _nothing
    language: str = "ptx"

    @property
    def in_hip(self) -> Variant:
        """The same launches of the entries' HIP twins, as a variant called ``"hip"``."""

        def launches(problem: Any) -> tuple[Launch | Zero, ...]:
            return tuple(
                replace(step, kernel=step.kernel.in_hip) if isinstance(step, Launch) else step
                for step in self.launches(problem)
            )

        def refuses(problem: Any, device: Device) -> str | None:
            if reason := self.refuses(problem, device):
                return reason
            steps = [step for step in self.launches(problem) if isinstance(step, Launch)]
            many = any(step.grid[0] * step.block >> 32 for step in steps)
            return "HIP launches fewer than 2**32 threads along x" if many else None

        return replace(self, name="hip", language="hip", launches=launches, refuses=refuses)


@dataclass(frozen=True)
class Operand:
    """One array of an op.

    Attributes
    ----------
    strides
        In elements; contiguous if left out.
    optional
        None may be passed.
    written
        The op writes it; only then can it clash with another operand.
    output
        It is written and comes back from a run, which allocates it where it is None.
    needs
        Name of the operand without which this output is None.
    absent
        Why it must be None in this problem, in words.
    in_place
        Names of the operands that it may be the very same array as.
    """

    name: str
    shape: tuple[int, ...]
    type: ElementType
    strides: tuple[int, ...] = ()
    optional: bool = False
    written: bool = False
    output: bool = False
    needs: str | None = None
    absent: str | None = None
    in_place: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "strides", self.strides or contiguous(self.shape))
        object.__setattr__(self, "written", self.written or self.output)
        object.__setattr__(self, "optional", self.optional or self.output)

    @property
    def nbytes(self) -> int:
        """Bytes from its first element to the end of its last."""
        return span(self.shape, self.strides) * self.type.size
