"""Plan: one op on one problem, bound to a variant's schedule for one device.

The pattern is: ``select`` a plan for a descriptor, ask ``can_implement``, own the ``workspace_size`` if wanted, and
``run`` as often as needed. An op's file says which operands there are and which variants serve it; the checks are here.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from ptxrt.errors import DTypeMismatch, InvalidArgument, LayoutError, ShapeMismatch, Unsupported, no_copy, shown
from ptxrt.ops.framework import tuned
from ptxrt.ops.framework.descriptors import Descriptor
from ptxrt.ops.framework.operands import Operand
from ptxrt.ops.framework.schedule import (
    ALIGN,
    Config,
    Launch,
    Limits,
    PrecisionGuarantee,
    Refusal,
    Region,
    Schedule,
    Step,
    Zero,
)
from ptxrt.ops.framework.variant import PlanKey, PlanPreference, Variant
from ptxrt.ops.framework.zeros import SMALL, zeros
from ptxrt.runtime.array import DeviceArray, empty, to_device
from ptxrt.runtime.binding import ArrayRule, DisjointPair, FillStep, LaunchStep, Run, binder, runner
from ptxrt.runtime.device import Device, as_device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.layout import channels_last, contiguous, same_layout
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike
from ptxrt.runtime.stream import ENTERED, Stream, as_stream

__all__ = ["Plan", "forget_plans", "plan_cache", "preferred_language"]

DescriptorT = TypeVar("DescriptorT", bound=Descriptor)
ArgsT = TypeVar("ArgsT", bound=Sequence[Any])
ResultT = TypeVar("ResultT")
PlanT = TypeVar("PlanT", bound="Plan[Any, Any, Any]")

CACHED_PLANS = 256
"""Plans of each op that its function keeps."""


_NOTHING = Schedule((), PrecisionGuarantee("none", "none", deterministic=True, bit_stable_on_same_hardware=True))


class Plan(ABC, Generic[DescriptorT, ArgsT, ResultT]):
    """Base of every op's plan, generic in its descriptor, its arguments, and what a run returns.

    A subclass sets `op`, `category`, `descriptor_type` and `variants`, `result_type` where an op has several outputs,
    and has :meth:`_operands`.

    Attributes
    ----------
    device : Device
    descriptor
        The problem.
    variant : Variant
        What was selected.
    schedule : Schedule
        How the variant runs the problem.
    config : Config
        The variant's knobs.
    chosen_by : str
        Where variant and config come from: ``"heuristic"``; ``"preference"``, which named the config; or the file of
        the tuned choice.
    workspace_size : int
        Bytes that :meth:`run` needs beside its operands.
    """

    op: ClassVar[str]
    category: ClassVar[str]
    variants: ClassVar[tuple[Variant[Any, Any], ...]]
    descriptor_type: type[DescriptorT]
    result_type: Any = None

    def __init__(
        self,
        device: Device,
        descriptor: DescriptorT,
        variant: Variant[DescriptorT, Any],
        config: Config,
        schedule: Schedule,
        chosen_by: str = "heuristic",
    ) -> None:
        self.device, self.descriptor, self.variant, self.config = device, descriptor, variant, config
        self.chosen_by = chosen_by
        self.operands = self._operands()
        if descriptor.empty:
            schedule = replace(schedule, steps=tuple(Zero(o.name) for o in self.operands if o.output))
        self.schedule, self.workspace_size = schedule, schedule.workspace.size
        self._places = {o.name: i for i, o in enumerate(self.operands)}
        self._outputs = [i for i, o in enumerate(self.operands) if o.output]
        self._conditional = [i for i, o in enumerate(self.operands) if o.needs or o.absent]
        self._go: Run | None = None
        self._tables: list[DeviceArray] = []  # of what the kernels read beside the operands
        self._rules = [ArrayRule(o.type.numpy, o.written, o.optional, 1, o.shape, o.strides) for o in self.operands]
        self._disjoint = [
            DisjointPair(i, j, ours.nbytes, theirs.nbytes, theirs.name in ours.in_place)
            for i, ours in enumerate(self.operands)
            for j, theirs in enumerate(self.operands)
            if ours.written and i != j and not (theirs.written and j < i)
        ]
        self._bind = binder(self._rules, self._disjoint)

    @classmethod
    def select(
        cls: type[PlanT], device: Device | str | None, descriptor: DescriptorT, preference: PlanPreference | None = None
    ) -> PlanT:
        """Return the plan of the first variant that can run `descriptor` on `device` as `preference` has it.

        One that suits the problem comes before one that merely can run it; what was tuned for such a problem
        (docs/tuning.md) comes before both, if it promises as much of the results. Nothing is compiled before the first
        run.
        Where the preference names no language, PTXRT_LANGUAGE may name it.

        Raises
        ------
        Unsupported
            If there is none; the message has the reasons of the variants that the preference wants; of all, if of none.
        InvalidArgument
            For a descriptor of another op, or a preference that is none.
        """
        wish = PlanPreference() if preference is None else preference
        for argument, given, kind in (
            ("descriptor", descriptor, cls.descriptor_type),
            ("preference", wish, PlanPreference),
        ):
            if given.__class__ is not kind:  # an op's backward may have a descriptor derived from its forward's
                raise InvalidArgument(
                    op=f"{cls.__name__}.select", argument=argument, expected=f"a {kind.__name__}", given=shown(given)
                )
        if wish.language is None and (language := preferred_language()):
            wish = replace(wish, language=language)
        where = as_device(device)
        reasons: list[str] = []
        unwanted: dict[str, list[str]] = {}
        for variant in sorted(cls.variants, key=lambda each: not each.suits(descriptor)):
            config = variant.heuristic(descriptor) if wish.config is None else wish.config
            found = cls._schedule(where, descriptor, wish, variant, config)
            if isinstance(found, Schedule):
                break
            if wish.refusal(variant):
                unwanted.setdefault(found.reason, []).append(str(variant))
            else:
                reasons.append(f"{variant}: {found.reason}")
        else:
            raise Unsupported(
                op=cls.op,
                argument="descriptor",
                expected="a problem and a preference that a variant can serve",
                given="; ".join([shown(descriptor), *(reasons or _together(unwanted))]),
                fix="Loosen the preference, or change the problem",
            )
        if wish.config is not None:
            return cls(where, descriptor, variant, config, found, "preference")
        if wish.tuned and not descriptor.empty:
            for path, other, knobs in tuned.choices(where, cls.op, cls.variants, descriptor, wish.language):
                better = cls._schedule(where, descriptor, wish, other, knobs)
                if isinstance(better, Schedule) and better.guarantee.as_good_as(found.guarantee):
                    return cls(where, descriptor, other, knobs, better, path)
        return cls(where, descriptor, variant, config, found)

    @classmethod
    def _schedule(
        cls,
        device: Device,
        descriptor: DescriptorT,
        wish: PlanPreference,
        variant: Variant[DescriptorT, Any],
        config: Config,
    ) -> Schedule | Refusal:
        """Return how a variant runs a problem on a device as a preference has it, or why it does not."""
        if variant.language not in device.backend.languages:
            return Refusal(f"is in {variant.language}, which {device} does not take")
        if reason := wish.refusal(variant):
            return Refusal(reason)
        limits = Limits.of(device.properties, variant.language)
        try:
            found = _NOTHING if descriptor.empty else variant.schedule(descriptor, config, limits)
        except ZeroDivisionError:
            if 0 not in vars(config).values():
                raise
            return Refusal(f"has no schedule for {config}, of which a number is 0")
        if isinstance(found, Schedule) and (reason := found.refusal(limits) or wish.refusal_of(found)):
            return Refusal(reason)
        return found

    @classmethod
    def unpacked(cls, out: Sequence[DeviceArrayLike | None] | None) -> Sequence[DeviceArrayLike | None]:
        """Return the arrays of an `out` that stands for several outputs; Nones where it is None."""
        names = cls.result_type._fields
        if out is None:
            return (None,) * len(names)
        if not isinstance(out, (tuple, list)) or len(out) != len(names):
            raise InvalidArgument(
                op=cls.op,
                argument="out",
                expected=f"a tuple of {len(names)}: {', '.join(names)}",
                given=f"{len(out)}" if isinstance(out, (tuple, list)) else shown(out),
            )
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        # It has generated functions, and kernels, which a copy would share.
        raise no_copy(self, "plan", "Select it again, of the same descriptor, which may be pickled")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key}>"

    @property
    def key(self) -> PlanKey:
        """What this plan is, hashable."""
        return PlanKey(
            self.category,
            self.op,
            self.descriptor.dtype.name,
            self.device.arch,
            self.device.kind,
            self.variant.name,
            self.variant.language,
        )

    @property
    def sku(self) -> PlanKey:
        """The same as `key`: stock keeping unit, its name in the pattern that plans follow."""
        return self.key

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        """What it says of its results."""
        return self.schedule.guarantee

    def can_implement(self, args: ArgsT) -> None:
        """Raise the first disagreement of `args` with the plan; return None if there is none."""
        self._check(self._counted(args), self.device.default_stream)

    def run(self, args: ArgsT, stream: StreamLike | None = None, workspace: DeviceArrayLike | None = None) -> ResultT:
        """Check `args`, launch, and return the outputs; those that are None are allocated.

        Parameters
        ----------
        args
            The op's Args tuple.
        stream
            Where to launch; the device's default stream if left out.
        workspace
            A DeviceArray of at least `workspace_size` bytes, at a multiple of 256 and not shared with the operands; or
            None to have it allocated.

        Returns
        -------
        DeviceArray, or a NamedTuple of the op
            The output, or the outputs where the op has several. Where `args` has another library's array for one, it is
            a DeviceArray over the same memory.

        Raises
        ------
        PtxrtError
            As :meth:`can_implement`; nothing has been launched or allocated then.
        """
        return self._run(self._counted(args), stream, workspace)

    def _run(
        self, args: Sequence[Any], stream: StreamLike | None = None, workspace: DeviceArrayLike | None = None
    ) -> ResultT:
        """Run with as many operands as there are: the ops' functions have counted them by themselves."""
        if stream is None and not ENTERED:
            queue = self.device.default_stream
        else:
            queue = as_stream(stream, self.device, self.op)
        go = self._go
        if go is None:
            args = self._check(args, queue)
            if workspace is not None:
                workspace = self.checked_workspace(workspace, args, queue)
            go = self._go = self._load()
        result: ResultT = go(self, queue, args, workspace)
        return result

    @abstractmethod
    def _operands(self) -> tuple[Operand, ...]:
        """Return the operands in the order of the op's Args: what is read first, then the outputs as they come back."""

    def _load(self) -> Run:
        """Load the kernels, upload the tables, and return what runs the steps."""
        limits = Limits.of(self.device.properties)
        planned = self.schedule.steps
        steps: list[LaunchStep | FillStep] = []
        tables: list[DeviceArray] = []
        for each, behind in zip(planned, (*planned[1:], None), strict=False):  # planned may be empty
            step = self._zeros(each, behind, limits) if isinstance(each, Zero) else each
            if isinstance(step, FillStep):
                steps.append(step)
                continue
            x, y, z = (*step.grid, 1, 1)[:3]
            given = [self._given(argument, tables) for argument in step.arguments]
            follows = bool(steps) and isinstance(steps[-1], LaunchStep) and step.may_follow(limits)
            kernel = step.kernel.load(self.device, follows=follows)
            steps.append(kernel.step((x, y, z, step.block, 1, 1), step.shared_bytes, given, follows=follows))
        if tables:
            self.device.default_stream.synchronize()  # once in a plan's life: its first run may be on any stream
        self._tables = tables
        return runner(
            self.device,
            self._rules,
            self._disjoint,
            steps,
            self._outputs,
            conditional=bool(self._conditional),
            workspace=self.workspace_size > 0,
            tables=tables,
            result=self.result_type if len(self._outputs) > 1 else None,
        )

    def _zeros(self, step: Zero, behind: Step | None, limits: Limits) -> Launch | FillStep:
        """Return what makes zeros: a launch where few are wanted and the next step may follow it, else a memset."""
        place, offset = self._place(step.where)
        nbytes = step.where.nbytes if isinstance(step.where, Region) else self.operands[place].nbytes
        if nbytes in SMALL and isinstance(behind, Launch) and behind.may_follow(limits):
            return zeros(step.where, nbytes)
        return FillStep(place, offset, nbytes)

    def _place(self, where: str | Region) -> tuple[int, int]:
        """Return the place of an operand, or of the workspace, which comes behind them, with an offset."""
        return (len(self.operands), where.offset) if isinstance(where, Region) else (self._places[where], 0)

    def _given(self, argument: Any, tables: list[DeviceArray]) -> tuple[int | None, Any]:
        """Return the place of an argument with an offset; None with one that never changes."""
        if isinstance(argument, (str, Region)):
            return self._place(argument)
        if isinstance(argument, np.ndarray):
            tables.append(to_device(argument, self.device, stream=self.device.default_stream))
            argument = tables[-1].ptr
        return None, argument

    def _reason_for_none(self, index: int, arrays: Sequence[Any]) -> str | None:
        """Return why an operand must be None, or None."""
        o = self.operands[index]
        return f"{o.needs} is None" if o.needs and arrays[self._places[o.needs]] is None else o.absent

    def new_output(self, index: int, arrays: Sequence[Any], queue: Stream) -> DeviceArray | None:
        if self._reason_for_none(index, arrays):
            return None
        o = self.operands[index]
        array = empty(o.shape, o.type.numpy, self.device, stream=queue)
        array.strides = o.strides  # as densely: those of a contiguous array, or of a channels-last one
        return array

    def _counted(self, args: Any) -> Sequence[Any]:
        """Return `args`, which must be as many as the operands."""
        if (args.__class__ is not tuple and not isinstance(args, (tuple, list))) or len(args) != len(self.operands):
            raise InvalidArgument(
                op=self.op,
                argument="args",
                expected=f"{len(self.operands)} operands: {', '.join(o.name for o in self.operands)}",
                given=f"{len(args)}" if isinstance(args, (tuple, list)) else shown(args),
            )
        counted: Sequence[Any] = args
        return counted

    def _check(self, args: Sequence[Any], queue: Stream) -> list[Any]:
        """Raise what is wrong with as many operands as there are; return their arrays."""
        arrays: list[Any] = self._bind(self, queue, args)  # other libraries' arrays stay until the launch is queued
        self.check_absent(arrays)
        return arrays

    def check_absent(self, arrays: Sequence[Any]) -> None:
        """Raise for an operand that must be None here."""
        for i in self._conditional:
            if arrays[i] is not None and (reason := self._reason_for_none(i, arrays)):
                name = self.operands[i].name
                raise InvalidArgument(
                    op=self.op, argument=name, expected=f"None, since {reason}", given=shown(arrays[i])
                )

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
            kind, fix = "", "Select a plan for these strides"
            if o.strides == contiguous(o.shape):
                kind, fix = "contiguous, ", "Copy it into a contiguous array"
            elif len(o.shape) > 2 and o.strides == channels_last(o.shape):
                kind = "channels-last, "
                axes = (0, len(o.shape) - 1, *range(1, len(o.shape) - 1))
                fix = f"Copy it into an array of shape {(o.shape[0], *o.shape[2:], o.shape[1])}, and pass that array's "
                fix += f"transpose{axes}"
            raise LayoutError(
                op=self.op,
                argument=o.name,
                expected=f"{kind}strides {o.strides}",
                given=f"strides {array.strides}",
                fix=fix,
            )
        array.memory.used_on(stream)
        return array

    def new_workspace(self, stream: Stream) -> DeviceArray:
        return empty(self.workspace_size, np.uint8, self.device, stream=stream)

    def raise_overlap(self, first: int, second: int, arrays: Sequence[Any]) -> None:
        ours, theirs = self.operands[first], self.operands[second]
        one, two = arrays[first], arrays[second]
        in_place = f", or {theirs.name} itself" if theirs.name in ours.in_place else ""
        raise LayoutError(
            op=self.op,
            argument=ours.name,
            expected=f"memory not shared with {theirs.name}{in_place}",
            given=f"{one.nbytes} bytes at {one.ptr:#x}; {theirs.name} has {two.nbytes} at {two.ptr:#x}",
            fix="Write to an array of its own",
        )

    def checked_workspace(self, workspace: DeviceArrayLike, arrays: Sequence[Any], queue: Stream) -> DeviceArray:
        array = as_array(workspace, self.device, self.op, "workspace", queue)
        array.check(self.op, "workspace", writable=True)
        need = self.workspace_size
        if array.nbytes < need or not array.is_contiguous:
            strided = "" if array.is_contiguous else f" with strides {array.strides} in elements"
            raise ShapeMismatch(
                op=self.op, argument="workspace", expected=f"{need} contiguous bytes", given=f"{array.nbytes}{strided}"
            )
        wrong = need and array.ptr % ALIGN
        for o, operand in zip(self.operands, arrays, strict=True):
            wrong = wrong or (operand is not None and -need < array.ptr - operand.ptr < o.nbytes)
        if wrong:
            raise LayoutError(
                op=self.op,
                argument="workspace",
                expected=f"{need} bytes at a multiple of {ALIGN}, not shared with the operands",
                given=f"{array.nbytes} bytes at {array.ptr:#x}",
                fix="ptxrt.empty(plan.workspace_size, 'uint8', device) is so placed",
            )
        array.memory.used_on(queue)
        return array


def preferred_language() -> str | None:
    """Return what PTXRT_LANGUAGE says, the language of the kernels that ops select; None where it is not set."""
    language = os.environ.get("PTXRT_LANGUAGE") or None
    if language not in (None, "ptx", "hip"):
        raise InvalidArgument(op="PTXRT_LANGUAGE", argument="environment", expected="ptx or hip", given=shown(language))
    return language


_FORGET: list[Callable[[], None]] = []


def plan_cache(plan: type[PlanT]) -> Callable[..., PlanT]:
    """Return ``find(device, *problem)``: the plan of the descriptor with these fields; it keeps the last 256."""

    @lru_cache(CACHED_PLANS, typed=True)
    def select(device: Device, *problem: Any) -> PlanT:
        return plan.select(device, plan.descriptor_type(*problem))

    def find(*key: Any) -> PlanT:
        try:
            return select(*key)
        except TypeError:
            if _is_hashable(key):
                raise
            return select.__wrapped__(*key)  # the descriptor says what is wrong with that field

    _FORGET.append(select.cache_clear)
    return find


def _together(reasons: Mapping[str, Sequence[str]]) -> list[str]:
    """Return each reason behind the variants whose it is."""
    return [f"{', '.join(variants)}: {reason}" for reason, variants in reasons.items()]


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def forget_plans() -> None:
    """Let go of the plans that the functions of ops keep, so that a module cache can unload their kernels.

    Tables of tuned choices, which a process reads once, are read again by the next selection.
    """
    tuned.forget()
    for forget in _FORGET:
        forget()
