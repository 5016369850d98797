"""Plan: one op on one problem, bound to a kernel variant of one device.

The pattern is: ``select`` a plan for a descriptor, ask ``can_implement``, own the ``workspace_size`` if wanted, and
``run`` as often as needed. An op's file says which operands there are and which launches serve it; the checks are here.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ptxrt.dtypes import ElementType
from ptxrt.errors import DTypeMismatch, InvalidArgument, LayoutError, ShapeMismatch, Unsupported
from ptxrt.ops.framework.variant import Operand, PlanPreference, PrecisionGuarantee, Scratch, Sku, Variant, Zero
from ptxrt.runtime.array import DeviceArray, empty, to_device
from ptxrt.runtime.binding import ArrayRule, DisjointPair, binder
from ptxrt.runtime.device import Device, as_device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.kernel import Dims
from ptxrt.runtime.layout import contiguous, same_layout
from ptxrt.runtime.stream import Stream, as_stream

__all__ = ["Plan", "beyond", "forget_plans", "kept", "number", "preferred_language", "unpacked_out", "whole_number"]

_WORKSPACE_ALIGN = 256


class _Ready(NamedTuple):
    """What a plan's first run has made: its steps, and the values that they take beside the operands' addresses."""

    steps: list[tuple[Any, Dims, int, Callable[[list[Any]], Sequence[Any]]]]
    constants: list[Any]
    tables: list[DeviceArray]


class Plan(ABC):
    """Base of every op's plan.

    A subclass sets `op`, `category`, `descriptor_type` and `variants`, and has :meth:`_operands`.

    Attributes
    ----------
    device : Device
    descriptor
        The problem.
    variant : Variant
        What was selected.
    workspace_size : int
        Bytes that :meth:`run` needs beside its operands.
    """

    op: ClassVar[str]
    category: ClassVar[str]
    variants: ClassVar[tuple[Variant, ...]]
    descriptor_type: ClassVar[type]

    def __init__(self, device: Device, descriptor: Any, variant: Variant) -> None:
        self.device, self.descriptor, self.variant = device, descriptor, variant
        self.workspace_size = variant.workspace(descriptor)
        self.operands = self._operands()
        self._places = {o.name: i for i, o in enumerate(self.operands)}
        self._outputs = [i for i, o in enumerate(self.operands) if o.output]
        self._may_lack = [i for i, o in enumerate(self.operands) if o.needs or o.absent]
        self._ready: _Ready | None = None
        rules = [ArrayRule(o.type.numpy, o.written, o.optional, 1, o.shape, o.strides) for o in self.operands]
        apart = [
            DisjointPair(i, j, ours.nbytes, theirs.nbytes, theirs.name in ours.in_place)
            for i, ours in enumerate(self.operands)
            for j, theirs in enumerate(self.operands)
            if ours.written and i != j and not (theirs.written and j < i)
        ]
        self._bind = binder(device, rules, apart)

    @classmethod
    def select(cls, device: Device | str | None, descriptor: Any, preference: PlanPreference | None = None) -> Any:
        """Return the plan of the first variant that can run `descriptor` on `device` as `preference` has it.

        One that suits the problem comes before one that merely can. Nothing is compiled before the first run. Where the
        preference names neither language nor variant, PTXRT_LANGUAGE may name the language.

        Raises
        ------
        Unsupported
            If there is none; the message has each variant's reason.
        """
        wish = PlanPreference() if preference is None else preference
        for argument, given, kind in (
            ("descriptor", descriptor, cls.descriptor_type),
            ("preference", wish, PlanPreference),
        ):
            if given.__class__ is not kind:  # an op's backward may have a descriptor derived from its forward's
                raise InvalidArgument(
                    op=f"{cls.__name__}.select", argument=argument, expected=f"a {kind.__name__}", given=repr(given)
                )
        if wish.language is None and wish.variant is None:
            wish = replace(wish, language=preferred_language())
        where = as_device(device)
        able, reasons = [], []
        for variant in cls.variants:
            reason = cls._unwanted(variant, descriptor, wish, where) or variant.refuses(descriptor, where)
            if reason is None:
                able.append(variant)
            else:
                reasons.append(f"{variant.name}: {reason}")
        if not able:
            raise Unsupported(
                op=cls.op,
                argument="descriptor",
                expected="a problem and a preference that a variant can serve",
                given=f"{descriptor}; " + "; ".join(reasons),
                fix="Loosen the preference, or change the problem",
            )
        return cls(where, descriptor, next((variant for variant in able if variant.suits(descriptor)), able[0]))

    @staticmethod
    def _unwanted(variant: Variant, descriptor: Any, wish: PlanPreference, device: Device) -> str | None:
        if variant.language not in device.backend.languages:
            return f"is in {variant.language}, which {device} does not take"
        if wish.variant is not None and wish.variant != variant.name:
            return f"not the variant asked for, {wish.variant!r}"
        if wish.language is not None and wish.language != variant.language:
            return f"is in {variant.language}, not in {wish.language!r}"
        if wish.deterministic and not variant.guarantee.deterministic:
            return "is not deterministic"
        needs = variant.workspace(descriptor)
        if wish.workspace_limit is not None and needs > wish.workspace_limit:
            return f"needs {needs} bytes of workspace, above the limit of {wish.workspace_limit}"
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.sku}>"

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
            A DeviceArray of at least `workspace_size` bytes, at a multiple of 256 and apart from the operands; or
            None to have it allocated.

        Returns
        -------
        DeviceArray, or a tuple
            The output, or the outputs where the op has several.

        Raises
        ------
        PtxrtError
            As :meth:`can_implement`; nothing has been launched or allocated then.
        """
        queue = self.device.default_stream if stream is None else as_stream(stream, self.device, self.op)
        values, arrays = self._check(args, queue)  # other libraries' arrays stay until the launch is queued
        room = None if workspace is None else self._checked_workspace(workspace, arrays, queue)
        ready = self._ready or self._load()
        results: list[Any] = []
        for i in self._outputs:
            if arrays[i] is None:
                arrays[i] = self._new_output(i, arrays, queue)
                values[i] = 0 if arrays[i] is None else arrays[i].ptr
                results.append(arrays[i])
            else:
                results.append(args[i])
        if self.workspace_size:
            if room is None:
                room = empty(self.workspace_size, np.uint8, self.device, stream=queue)
            values += [room.ptr + c.offset if isinstance(c, Scratch) else c for c in ready.constants]
        else:
            values += ready.constants
        for table in ready.tables:
            table.memory.used_on(queue)
        for kernel, dims, shared_bytes, pick in ready.steps:
            kernel.enqueue(dims, shared_bytes, queue, pick(values))
        return results[0] if len(results) == 1 else tuple(results)

    @abstractmethod
    def _operands(self) -> tuple[Operand, ...]:
        """Return the operands in the order of the op's Args: what is read first, then the outputs as they come back."""

    def _load(self) -> _Ready:
        """Load the kernels, upload the tables, and note where each step finds its arguments."""
        ready = _Ready([], [], [])
        for step in self.variant.launches(self.descriptor):
            if isinstance(step, Zero):
                place = self._places[step.operand]
                zeros = _Zeros(self.device, self.operands[place].nbytes)
                ready.steps.append((zeros, (1, 1, 1, 1, 1, 1), 0, itemgetter(slice(place, place + 1))))
                continue
            kernel = step.kernel.load(self.device)
            kernel.opt_in(step.shared_bytes)
            places = [self._place(argument, ready) for argument in step.arguments]
            x, y, z = (*step.grid, 1, 1)[:3]
            ready.steps.append((kernel, (x, y, z, step.block, 1, 1), step.shared_bytes, itemgetter(*places)))
        if ready.tables:
            self.device.default_stream.synchronize()  # once in a plan's life: its first run may be on any stream
        self._ready = ready
        return ready

    def _place(self, argument: Any, ready: _Ready) -> int:
        """Return the index of an argument among the values of a run."""
        if isinstance(argument, str):
            return self._places[argument]
        if isinstance(argument, np.ndarray):
            ready.tables.append(to_device(argument, self.device))
            argument = ready.tables[-1].ptr
        ready.constants.append(argument)
        return len(self.operands) + len(ready.constants) - 1

    def _lacks(self, index: int, arrays: Sequence[Any]) -> str | None:
        """Return why an operand must be None, or None."""
        o = self.operands[index]
        return f"{o.needs} is None" if o.needs and arrays[self._places[o.needs]] is None else o.absent

    def _new_output(self, index: int, arrays: Sequence[Any], queue: Stream) -> DeviceArray | None:
        if self._lacks(index, arrays):
            return None
        return empty(self.operands[index].shape, self.operands[index].type.numpy, self.device, stream=queue)

    def _check(self, args: Sequence[Any], queue: Stream) -> tuple[list[Any], list[Any]]:
        """Return addresses, and the arrays that `args` stand for, or raise."""
        if not isinstance(args, (tuple, list)) or len(args) != len(self.operands):
            raise InvalidArgument(
                op=self.op,
                argument="args",
                expected=f"{len(self.operands)} operands: {', '.join(o.name for o in self.operands)}",
                given=f"{len(args)}" if isinstance(args, (tuple, list)) else repr(args),
            )
        values, arrays = self._bind(self, queue, *args)
        for i in self._may_lack:
            if arrays[i] is not None and (reason := self._lacks(i, arrays)):
                name = self.operands[i].name
                raise InvalidArgument(
                    op=self.op, argument=name, expected=f"None, since {reason}", given=repr(arrays[i])
                )
        return values, arrays

    def resolve_array(self, stream: Stream, index: int, given: Any) -> DeviceArray:
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
                fix="view() gives the same elements another shape" if array.size == math.prod(o.shape) else None,
            )
        array.check(self.op, o.name, writable=o.written)
        if not same_layout(o.shape, o.strides, array.strides):
            packed = o.strides == contiguous(o.shape)
            raise LayoutError(
                op=self.op,
                argument=o.name,
                expected=f"{'contiguous, ' if packed else ''}strides {o.strides}",
                given=f"strides {array.strides}",
                fix="Copy it into a contiguous array" if packed else "Select a plan for these strides",
            )
        array.memory.used_on(stream)
        return array

    def raise_overlap(self, first: int, second: int, arrays: Sequence[Any]) -> None:
        ours, theirs = self.operands[first], self.operands[second]
        one, two = arrays[first], arrays[second]
        in_place = f", or {theirs.name} itself" if theirs.name in ours.in_place else ""
        raise LayoutError(
            op=self.op,
            argument=ours.name,
            expected=f"memory apart from {theirs.name}{in_place}",
            given=f"{one.nbytes} bytes at {one.ptr:#x}; {theirs.name} has {two.nbytes} at {two.ptr:#x}",
            fix="Write to an array of its own",
        )

    def _checked_workspace(self, workspace: Any, arrays: Sequence[Any], queue: Stream) -> DeviceArray:
        array = as_array(workspace, self.device, self.op, "workspace", queue)
        array.check(self.op, "workspace", writable=True)
        need = self.workspace_size
        if array.nbytes < need or not array.is_contiguous:
            raise ShapeMismatch(
                op=self.op, argument="workspace", expected=f"{need} contiguous bytes", given=f"{array.nbytes}"
            )
        wrong = need and array.ptr % _WORKSPACE_ALIGN
        for o, operand in zip(self.operands, arrays, strict=True):
            wrong = wrong or (operand is not None and -need < array.ptr - operand.ptr < o.nbytes)
        if wrong:
            raise LayoutError(
                op=self.op,
                argument="workspace",
                expected=f"{need} bytes at a multiple of {_WORKSPACE_ALIGN}, apart from the operands",
                given=f"{array.nbytes} bytes at {array.ptr:#x}",
                fix="ptxrt.empty(plan.workspace_size, 'uint8', device) is so placed",
            )
        array.memory.used_on(queue)
        return array


class _Zeros:
    """What stands for a kernel in a step that writes zeros."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.device, self.nbytes = device, nbytes

    def enqueue(self, dims: Dims, shared_bytes: int, stream: Stream, values: Sequence[int]) -> None:
        del dims, shared_bytes
        if values[0] and self.nbytes:
            self.device.backend.fill(self.device.ordinal, values[0], 0, self.nbytes, stream.handle)


def preferred_language() -> str | None:
    """Return what PTXRT_LANGUAGE says, the language of the kernels that ops select; None where it is not set."""
    language = os.environ.get("PTXRT_LANGUAGE") or None
    if language not in (None, "ptx", "hip"):
        raise InvalidArgument(op="PTXRT_LANGUAGE", argument="environment", expected="ptx or hip", given=repr(language))
    return language


_FOUND: list[Callable[[], None]] = []


def kept(select: Callable[..., Any]) -> Callable[..., Any]:
    """Keep the last 256 plans that a function of an op has selected.

    What is not hashable is no number, and goes on to the descriptor, which says so.
    """
    found = lru_cache(maxsize=256, typed=True)(select)
    _FOUND.append(found.cache_clear)

    def find(*problem: Any) -> Any:
        try:
            return found(*problem)
        except TypeError:
            return select(*problem)

    return find


def forget_plans() -> None:
    """Let go of the plans that the functions of ops keep, so that a module cache can unload their kernels."""
    for forget in _FOUND:
        forget()


def unpacked_out(out: Any, names: Sequence[str], op: str) -> Sequence[Any]:
    """Return the arrays of an `out` that stands for several; Nones where it is None."""
    if out is None:
        return (None,) * len(names)
    if not isinstance(out, (tuple, list)) or len(out) != len(names):
        raise InvalidArgument(
            op=op,
            argument="out",
            expected=f"a tuple of {len(names)}: {', '.join(names)}",
            given=f"{len(out)}" if isinstance(out, (tuple, list)) else repr(out),
        )
    return out


def beyond(problem: Any, limit: int, what: str, *names: str) -> str | None:
    """Return in words which of a descriptor's counts is above `limit`, what a parameter or a grid holds; else None."""
    over = [
        f"{name} = {getattr(problem, name)} does not fit {what}" for name in names if getattr(problem, name) > limit
    ]
    return over[0] if over else None


def whole_number(value: Any, op: str, argument: str, least: int) -> int:
    """Return `value` as an int of at least `least`; InvalidArgument for anything else."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < least:
        raise InvalidArgument(
            op=op, argument=argument, expected=f"a whole number of at least {least}", given=repr(value)
        )
    return int(value)


def number(value: Any, op: str, argument: str, kind: ElementType, *, signed: bool = False) -> float:
    """Return `value` as a float that is finite in `kind`, and at least 0 unless `signed`; else InvalidArgument."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    most = float(np.finfo(kind.numpy).max)
    least = -most if signed else 0.0
    plain = float(value) if isinstance(value, np.floating) else value  # to a float16 the bound would be infinity
    if not real or not least <= plain <= most:
        expected = f"a number from {least:g} to {most:g}"
        raise InvalidArgument(op=op, argument=argument, expected=expected, given=repr(value))
    return float(plain)
