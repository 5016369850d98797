"""Plan: one op on one problem, bound to a kernel variant of one device.

The pattern is: ``select`` a plan for a descriptor, ask ``can_implement``, own the ``workspace_size`` if wanted, and
``run`` as often as needed. An op's file says which operands there are and which kernels serve it; the checks are here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ptxrt.array import DeviceArray
from ptxrt.binding import Apart, ArrayRule, binder
from ptxrt.device import Device, as_device
from ptxrt.dtypes import ElementType
from ptxrt.errors import DTypeMismatch, InvalidArgument, LayoutError, ShapeMismatch, Unsupported
from ptxrt.interop import as_array
from ptxrt.kernel import Kernel, load
from ptxrt.layout import contiguous
from ptxrt.signature import Signature
from ptxrt.source import read_kernel
from ptxrt.stream import Stream, as_stream

__all__ = ["KernelSpec", "Operand", "Plan", "PlanPreference", "PrecisionGuarantee", "Sku", "Variant"]


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
        ``"ptx"``, or None for any.
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
    """An entry that comes with ptxrt, and its ABI."""

    family: str
    entry: str
    signature: Signature
    language: str = "ptx"

    def load(self, device: Device) -> Kernel:
        """Return the entry on `device`, through its module cache."""
        return load(read_kernel(self.family), self.entry, self.signature, device)


@dataclass(frozen=True)
class Variant:
    """One way to run an op.

    Attributes
    ----------
    name
        As PlanPreference.variant and Sku name it.
    kernel
        The entry.
    guarantee
        Its precision guarantee.
    refuses
        ``refuses(descriptor, device)`` says in words why it cannot run the problem, or None.
    workspace
        ``workspace(descriptor)``: bytes.
    """

    name: str
    kernel: KernelSpec
    guarantee: PrecisionGuarantee
    refuses: Callable[[Any, Device], str | None]
    workspace: Callable[[Any], int] = lambda _: 0


@dataclass(frozen=True)
class Operand:
    """One array of an op: contiguous, of this shape and type.

    Attributes
    ----------
    optional
        None may be passed.
    written
        The op writes it; only then can it clash with another operand.
    in_place
        Names of the operands that it may be the very same array as.
    """

    name: str
    shape: tuple[int, ...]
    type: ElementType
    optional: bool = False
    written: bool = False
    in_place: tuple[str, ...] = ()

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Contiguous, in elements."""
        return contiguous(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.type.size


class Plan(ABC):
    """Base of every op's plan.

    A subclass sets `op`, `category` and `variants`, and has :meth:`_operands` and :meth:`_launch`.

    Attributes
    ----------
    device : Device
    descriptor
        The problem.
    variant : Variant
        What was selected.
    """

    op: ClassVar[str]
    category: ClassVar[str]
    variants: ClassVar[tuple[Variant, ...]]
    descriptor_type: ClassVar[type]

    def __init__(self, device: Device, descriptor: Any, variant: Variant) -> None:
        self.device, self.descriptor, self.variant = device, descriptor, variant
        self.operands = self._operands()
        self._kernel: Kernel | None = None
        rules = [ArrayRule(o.type.numpy, o.written, o.optional, 1, o.shape, o.strides) for o in self.operands]
        apart = [
            Apart(i, j, ours.nbytes, theirs.nbytes, theirs.name in ours.in_place)
            for i, ours in enumerate(self.operands)
            for j, theirs in enumerate(self.operands)
            if ours.written and i != j
        ]
        self._bind = binder(device, rules, apart)

    @classmethod
    def select(cls, device: Device | str | None, descriptor: Any, preference: PlanPreference | None = None) -> Any:
        """Return the first variant's plan that can run `descriptor` on `device` as `preference` has it.

        Nothing is compiled before the first run.

        Raises
        ------
        Unsupported
            If there is none; the message has each variant's reason.
        """
        wish = PlanPreference() if preference is None else preference
        if not isinstance(descriptor, cls.descriptor_type) or not isinstance(wish, PlanPreference):
            wrong = wish if isinstance(descriptor, cls.descriptor_type) else descriptor
            raise InvalidArgument(
                op=f"{cls.__name__}.select",
                argument="preference" if wrong is wish else "descriptor",
                expected="a PlanPreference" if wrong is wish else f"a {cls.descriptor_type.__name__}",
                given=repr(wrong),
            )
        where = as_device(device)
        reasons = []
        for variant in cls.variants:
            reason = cls._unwanted(variant, descriptor, wish) or variant.refuses(descriptor, where)
            if reason is None:
                return cls(where, descriptor, variant)
            reasons.append(f"{variant.name}: {reason}")
        raise Unsupported(
            op=cls.op,
            argument="descriptor",
            expected="a problem and a preference that a variant can serve",
            given=f"{descriptor}; " + "; ".join(reasons),
            fix="Loosen the preference, or change the problem",
        )

    @staticmethod
    def _unwanted(variant: Variant, descriptor: Any, wish: PlanPreference) -> str | None:
        needs = variant.workspace(descriptor)
        if wish.variant is not None and wish.variant != variant.name:
            return f"not the variant asked for, {wish.variant!r}"
        if wish.language is not None and wish.language != variant.kernel.language:
            return f"is in {variant.kernel.language}, not in {wish.language!r}"
        if wish.deterministic and not variant.guarantee.deterministic:
            return "is not deterministic"
        if wish.workspace_limit is not None and needs > wish.workspace_limit:
            return f"needs {needs} bytes of workspace, above the limit of {wish.workspace_limit}"
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sku}>"

    @property
    def workspace_size(self) -> int:
        """Bytes that :meth:`run` needs beside its operands."""
        return self.variant.workspace(self.descriptor)

    @property
    def sku(self) -> Sku:
        """What this plan is."""
        element = self.operands[0].type.name
        return Sku(self.category, self.op, element, self.device.arch, self.device.kind, self.variant.name)

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        """What it says of its results."""
        return self.variant.guarantee

    def can_implement(self, args: Sequence[Any]) -> None:
        """Raise the first disagreement of `args` with the plan; return None if there is none."""
        self._check(args, self.device.default_stream)

    def run(self, args: Sequence[Any], stream: Any = None, workspace: Any = None) -> Any:
        """Check `args`, launch, and return the outputs; those that are None are allocated.

        Parameters
        ----------
        args
            The op's Args tuple.
        stream
            Where to launch; the device's default stream if left out.
        workspace
            A DeviceArray of at least `workspace_size` bytes, or None to have it allocated.

        Raises
        ------
        PtxrtError
            As :meth:`can_implement`; nothing has been launched or allocated then.
        """
        queue = self.device.default_stream if stream is None else as_stream(stream, self.device, self.op)
        pointers, _kept = self._check(args, queue)  # other libraries' arrays stay until the launch is queued
        if workspace is not None:
            self._check_workspace(workspace)
        kernel = self._kernel
        if kernel is None:
            kernel = self._kernel = self.variant.kernel.load(self.device)
        return self._launch(kernel, pointers, args, queue)

    @abstractmethod
    def _operands(self) -> tuple[Operand, ...]:
        """Return the operands, in the order of the op's Args."""

    @abstractmethod
    def _launch(self, kernel: Kernel, pointers: tuple[int, ...], args: Sequence[Any], queue: Stream) -> Any:
        """Allocate what is missing, launch, return the outputs."""

    def _check(self, args: Sequence[Any], queue: Stream) -> tuple[tuple[int, ...], tuple[DeviceArray | None, ...]]:
        """Return addresses, and the arrays that `args` stand for, or raise."""
        if not isinstance(args, Sequence) or len(args) != len(self.operands):
            raise InvalidArgument(
                op=self.op,
                argument="args",
                expected=f"{len(self.operands)} operands: {', '.join(o.name for o in self.operands)}",
                given=f"{len(args)}" if isinstance(args, Sequence) else repr(args),
            )
        return self._bind(self, queue, *args)

    def other(self, stream: Stream, index: int, given: Any) -> DeviceArray:
        """Check what is not the common case of an operand: one reason an error, in a fixed order."""
        o = self.operands[index]
        array = as_array(given, self.device, self.op, o.name, stream)
        if array.memory.alive and array.dtype is not o.type.numpy:
            raise DTypeMismatch(
                op=self.op, argument=o.name, expected=str(o.type), given=str(array.dtype), fix="Convert it"
            )
        if array.memory.alive and array.shape != o.shape:
            raise ShapeMismatch(
                op=self.op,
                argument=o.name,
                expected=str(o.shape),
                given=str(array.shape),
                fix="view() gives the same elements another shape",
            )
        array.check(self.op, o.name, writable=o.written)
        if not array.is_contiguous:
            raise LayoutError(
                op=self.op,
                argument=o.name,
                expected=f"contiguous, strides {o.strides}",
                given=f"strides {array.strides}",
                fix="Copy it into a contiguous array",
            )
        array.memory.used_on(stream)
        return array

    def clash(self, written: int, other: int, arrays: Sequence[Any]) -> None:
        ours, theirs = self.operands[written], self.operands[other]
        one, two = arrays[written], arrays[other]
        in_place = f", or {theirs.name} itself" if theirs.name in ours.in_place else ""
        raise LayoutError(
            op=self.op,
            argument=ours.name,
            expected=f"memory apart from {theirs.name}{in_place}",
            given=f"{one.nbytes} bytes at {one.ptr:#x}; {theirs.name} has {two.nbytes} at {two.ptr:#x}",
            fix="Write to an array of its own",
        )

    def _check_workspace(self, workspace: Any) -> None:
        array = as_array(workspace, self.device, self.op, "workspace")
        array.check(self.op, "workspace", writable=True)
        if array.nbytes < self.workspace_size or not array.is_contiguous:
            raise ShapeMismatch(
                op=self.op,
                argument="workspace",
                expected=f"{self.workspace_size} contiguous bytes",
                given=f"{array.nbytes}",
            )


def whole_number(value: Any, op: str, argument: str, least: int) -> int:
    """Return `value` as an int of at least `least`; InvalidArgument for anything else."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise InvalidArgument(
            op=op, argument=argument, expected=f"a whole number of at least {least}", given=repr(value)
        )
    return int(value)


def number(value: Any, op: str, argument: str, kind: ElementType) -> float:
    """Return `value` as a float of at least 0 that is finite in `kind`; InvalidArgument for anything else."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    most = float(np.finfo(kind.numpy).max)
    if not real or not 0 <= value <= most:
        raise InvalidArgument(op=op, argument=argument, expected=f"a number from 0 to {most:g}", given=repr(value))
    return float(value)
