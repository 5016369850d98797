"""The check that every launch makes of its arrays, written out as straight-line Python.

A loop over the operands with its lookups would cost a good part of what a launch takes in the driver. For each kernel
and each plan one function is generated (as :mod:`dataclasses` does for ``__init__``) that tests the common case of each
array in one expression and hands everything else to its owner's slow, explaining methods. A kernel's launches, too,
and a plan's runs: each call of Python's that is saved shows.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, Protocol

import numpy as np

from ptxrt import backends
from ptxrt.errors import PtxrtError
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.device import Device
from ptxrt.runtime.signature import Arguments, Signature
from ptxrt.runtime.stream import Stream

__all__ = [
    "ArrayRule",
    "Bind",
    "BindOwner",
    "Dims",
    "DisjointPair",
    "FillStep",
    "HandleRule",
    "LaunchStep",
    "Owner",
    "Rule",
    "Run",
    "RunOwner",
    "ScalarRule",
    "Submit",
    "SubmitOwner",
    "binder",
    "runner",
    "submitter",
]

Dims = tuple[int, int, int, int, int, int]


class Owner(Protocol):
    """Whoever has a generated function: it knows the operands' names and the reasons of an error."""

    def resolve_array(self, stream: Stream, index: int, given: Any) -> DeviceArray | None:
        """Return the array that argument `index` stands for (another library's; None where that may be), or raise."""


class BindOwner(Owner, Protocol):
    """The owner of what :func:`binder` makes: a plan."""

    def raise_overlap(self, first: int, second: int, arrays: Sequence[Any]) -> None:
        """Raise for two operands that share memory and must not."""


class RunOwner(BindOwner, Protocol):
    """The owner of what :func:`runner` makes: a plan."""

    def check_absent(self, arrays: Sequence[Any]) -> None:
        """Raise for an operand that must be None beside the others."""

    def checked_workspace(self, workspace: Any, arrays: Sequence[Any], stream: Stream) -> DeviceArray:
        """Return the array that a caller's workspace is, or raise."""

    def new_output(self, index: int, arrays: Sequence[Any], stream: Stream) -> DeviceArray | None:
        """Return an array for the output `index`, or None where that must be None."""

    def new_workspace(self, stream: Stream) -> DeviceArray:
        """Return a workspace."""


class SubmitOwner(Owner, Protocol):
    """The owner of what :func:`submitter` makes: a kernel."""

    _function: Any
    _opted_in: int

    def resolve_handle(self, stream: Stream, index: int, given: Any) -> int:
        """Return the number that argument `index` stands for: a texture's handle, or a number; or raise."""

    def packing_error(self, args: Sequence[Any]) -> PtxrtError:
        """Return the error for the scalar among `args` that its parameter cannot hold."""

    def check_lengths(self, args: Sequence[Any]) -> None:
        """Raise for an array among `args` that is shorter than declared."""

    def opt_in(self, shared_bytes: int) -> None:
        """Let the kernel have that much dynamic shared memory, which is more than ever before."""


class Bind(Protocol):
    """A generated check: returns the arrays, and None for None."""

    def __call__(self, owner: BindOwner, stream: Stream, args: Sequence[Any]) -> list[Any]: ...


class Submit(Protocol):
    """A generated check that packs the arguments and launches; all but `args` has been checked before."""

    def __call__(
        self, owner: SubmitOwner, stream: Stream, dims: Dims, shared: int, budget: int | None, args: Sequence[Any]
    ) -> None: ...


class Run(Protocol):
    """A generated run of a plan: checks, allocates what is None, launches, and returns the outputs."""

    def __call__(self, owner: RunOwner, stream: Stream, args: Sequence[Any], workspace: Any) -> Any: ...


@dataclass(frozen=True)
class ArrayRule:
    """What an array must be.

    Attributes
    ----------
    dtype
        Its element type.
    written
        It must not be read-only.
    nullable
        None may be passed, and becomes the address 0.
    align
        Its address must be a multiple of this; natural alignment it has anyway.
    shape, strides
        Where they are fixed; None where any will do.
    """

    dtype: np.dtype[Any]
    written: bool = False
    nullable: bool = False
    align: int = 1
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ScalarRule:
    """What becomes of a scalar: one whose class is among `plain` goes to ``struct`` as it is, others by `convert`."""

    plain: frozenset[type]
    convert: Callable[[Any], Any]


@dataclass(frozen=True)
class HandleRule:
    """What becomes of a handle: a number whose class is among `plain` goes to ``struct`` as it is."""

    plain: frozenset[type]


Rule = ArrayRule | ScalarRule | HandleRule


@dataclass(frozen=True)
class DisjointPair:
    """Two operands, by index, that must not share memory, with their bytes; `may_be_same` allows one array for both."""

    first: int
    second: int
    first_bytes: int
    second_bytes: int
    may_be_same: bool


@dataclass(frozen=True)
class LaunchStep:
    """A launch of which all but addresses is known.

    Attributes
    ----------
    kernel
        What is launched.
    dims, shared
        Of the launch.
    given
        What each parameter is given: (place, offset) an offset from the address at that place, which is an operand's
        index, or one more for the workspace; or (None, value) always the same.
    signature, identity
        The kernel's.
    follows
        Whether the kernel waits by itself for the launch before its own.
    """

    kernel: SubmitOwner
    dims: Dims
    shared: int
    given: tuple[tuple[int | None, Any], ...]
    signature: Signature
    identity: object
    follows: bool = False


@dataclass(frozen=True)
class FillStep:
    """Zeros for so many bytes at an offset from the address at a place, where there is an array."""

    place: int
    offset: int
    nbytes: int


def binder(rules: Sequence[ArrayRule], disjoint: Sequence[DisjointPair]) -> Bind:
    """Return ``bind(owner, stream, args) -> arrays``, for operands that are all arrays.

    The owner is an argument, so that it and the function make no cycle, which would keep its module loaded until the
    collector comes by.

    Parameters
    ----------
    rules
        One an argument. What does not plainly follow its rule goes to :meth:`Owner.resolve_array`; so does an array
        that was allocated on another stream, since it may be on another device, or freed.
    disjoint
        What overlaps all the same goes to :meth:`BindOwner.raise_overlap`.
    """
    lines, scope = _binding(rules, disjoint)
    bind: Bind = _compiled("bind(owner, stream, args)", [*lines, f"return [{_names(rules)}]"], scope)
    return bind


def runner(
    device: Device,
    rules: Sequence[ArrayRule],
    disjoint: Sequence[DisjointPair],
    steps: Sequence[LaunchStep | FillStep],
    outputs: Sequence[int],
    *,
    conditional: bool,
    workspace: bool,
    tables: Sequence[DeviceArray],
    result: type[tuple[Any, ...]] | None,
) -> Run:
    """Return ``run(owner, stream, args, workspace)``: checks as :func:`binder` does, and issues the steps.

    Parameters
    ----------
    rules, disjoint
        As for :func:`binder`.
    steps
        In order.
    outputs
        Which arguments are allocated where they are None, and returned.
    conditional
        Whether :meth:`RunOwner.check_absent` has something to check.
    workspace
        Whether one is needed.
    tables
        What the steps read beside their operands.
    result
        The NamedTuple of the outputs; None where there is one, which is returned alone.
    """
    lines, scope = _binding(rules, disjoint)
    arrays = f"[{_names(rules)}]"
    if conditional:
        lines += [f"owner.check_absent({arrays})"]
    lines += ["if workspace is not None:", f"    workspace = owner.checked_workspace(workspace, {arrays}, stream)"]
    for i in outputs:
        lines += [f"if a{i} is None:", f"    a{i} = owner.new_output({i}, {arrays}, stream)"]
        lines += [f"    p{i} = 0 if a{i} is None else a{i}.ptr"]
    if workspace:
        lines += ["if workspace is None:", "    workspace = owner.new_workspace(stream)"]
        lines += [f"p{len(rules)} = workspace.ptr"]
    for i, table in enumerate(tables):
        lines += [f"table{i}.memory.used_on(stream)"]
        scope |= {f"table{i}": table}
    scope |= {"device": device, "ordinal": device.ordinal}
    for i, step in enumerate(steps):
        lines += _filling(step, i, scope) if isinstance(step, FillStep) else _enqueuing(device, step, i, scope)
    # Not by the NamedTuple's own constructor, which is slower.
    found = f"[{', '.join(f'a{i}' for i in outputs)}]"
    lines += [f"return new(result, {found})" if result else f"return a{outputs[0]}"]
    scope |= {"new": tuple.__new__, "result": result}
    run: Run = _compiled("run(owner, stream, args, workspace)", lines, scope)
    return run


def _binding(rules: Sequence[ArrayRule], disjoint: Sequence[DisjointPair]) -> tuple[list[str], dict[str, Any]]:
    """Return the lines that check arrays, of which each has its address then, and the names that they use."""
    lines, values, scope = _checks(rules)
    lines += [f"p{i} = {value}" for i, value in enumerate(values)]
    # Sizes are names, so that plans of other sizes have the same text, which is compiled once.
    for i, pair in enumerate(disjoint):
        p, q = f"p{pair.first}", f"p{pair.second}"
        same = f"{p} != {q} and " if pair.may_be_same else ""
        lines += [f"if below{i} < {p} - {q} < above{i} and {same}{p} and {q}:"]
        lines += [f"    owner.raise_overlap({pair.first}, {pair.second}, [{_names(rules)}])"]
        scope |= {f"below{i}": -pair.first_bytes, f"above{i}": pair.second_bytes}
    return [*_unpacking(rules), *lines], scope


def _filling(step: FillStep, i: int, scope: dict[str, Any]) -> list[str]:
    """Return the lines of a step; `scope` gets the names that they use."""
    scope |= {f"offset{i}": step.offset, f"nbytes{i}": step.nbytes}
    fill = f"device.backend.fill(ordinal, p{step.place} + offset{i}, 0, nbytes{i}, stream.handle)"
    return [f"if p{step.place}:", f"    {fill}"] if step.nbytes else []


def _enqueuing(device: Device, step: LaunchStep, i: int, scope: dict[str, Any]) -> list[str]:
    """Return the lines of a step, as :func:`_filling` does."""
    # Scalars come last as a rule, and are the same at each launch: a buffer has them from the beginning.
    count = max((at + 1 for at, (place, _) in enumerate(step.given) if place is not None), default=0)
    values = []
    for at, (place, what) in enumerate(step.given[:count]):
        values.append(f"v{i}_{at}" if place is None else f"p{place} + v{i}_{at}" if what else f"p{place}")
        scope |= {f"v{i}_{at}": what}

    def made() -> Arguments:
        arguments = step.signature.arguments(step.identity)
        arguments.follows = step.follows
        step.signature.pack_into(arguments.raw, 0, *(what if place is None else 0 for place, what in step.given))
        return arguments

    names = {"pool": [], "made": made, "pack_into": step.signature.packing(count), "dims": step.dims}
    names |= {"shared": step.shared, "kernel": step.kernel}
    scope |= {f"{name}{i}": value for name, value in names.items()}
    numbers = [f"d{i}_{at}" for at in range(6)]
    scope |= dict(zip(numbers, step.dims, strict=True))
    function, dims, shared = f"kernel{i}._function", f"dims{i}", f"shared{i}"
    by_backend = [_LAUNCH.format("launch", function, dims, shared)]
    return [
        *_popping(f"pool{i}", f"made{i}"),
        _packing(f"pack_into{i}", values),
        *_launching(device, by_backend, [], scope, (function, ", ".join(numbers), dims, shared), follows=step.follows),
        f"pool{i}.append(arguments)",
    ]


def submitter(
    device: Device,
    rules: Sequence[Rule],
    signature: Signature,
    pool: list[Arguments],
    kernel: object,
    *,
    cooperative: bool = False,
) -> Submit:
    """Return ``submit(owner, stream, dims, shared, budget, args)``: checks as :func:`binder` does, packs, launches.

    Parameters
    ----------
    rules
        One an argument.
    signature
        Packs addresses and scalars. What ``struct`` refuses goes to :meth:`SubmitOwner.packing_error`.
    pool
        Parameter buffers that no launch uses now.
    kernel
        What the buffers say that they are for. It must not know the owner, or there would be a cycle.
    cooperative
        Whether the launches are.
    """
    lines, values, scope = _checks(rules)
    checked = f"({_names(rules)},)" if rules else "()"
    scope |= {"device": device, "pack_into": signature.pack_into, "pool": pool}
    scope |= {"made": partial(signature.arguments, kernel)}
    scope |= {"not_packed": (struct.error, OverflowError, TypeError, ValueError)}
    lines = [*_unpacking(rules), *lines, *_popping("pool", "made")]
    lines += ["try:", f"    {_packing('pack_into', values)}"]
    lines += ["except not_packed:", f"    raise owner.packing_error({checked}) from None"]
    if any(p.length for p in signature.parameters):
        lines += [f"owner.check_lengths({checked})"]
    lines += ["if shared > owner._opted_in:", "    owner.opt_in(shared)"]
    call, what = "launch_cooperative" if cooperative else "launch", ("owner._function", "dims", "shared")
    by_backend = ["arguments.budget = budget", _LAUNCH.format(call, *what)]
    if cooperative:
        lines += by_backend
    else:
        numbers = "x, y, z, width, height, depth"
        lines += _launching(device, by_backend, [f"{numbers} = dims"], scope, (what[0], numbers, *what[1:]))
    lines += ["pool.append(arguments)"]
    submit: Submit = _compiled("submit(owner, stream, dims, shared, budget, args)", lines, scope)
    return submit


_LAUNCH = "device.backend.{}(device.ordinal, {}, {}, {}, stream.handle, arguments)"


def _launching(
    device: Device,
    by_backend: Sequence[str],
    before: Sequence[str],
    scope: dict[str, Any],
    names: tuple[str, str, str, str],
    *,
    follows: bool = False,
) -> list[str]:
    """Return the lines that launch: `by_backend`, or the driver's call itself while nothing stands before it.

    `before` comes before that call; `scope` gets the names that the lines use; `names` are those of the function, of
    the six numbers of grid and block, of the tuple of these, and of the bytes of shared memory. To ask for the current
    context costs as much as all checks, so a thread in which it was the device's is not asked again before the driver
    refuses a launch. `follows` is a :class:`LaunchStep`'s.
    """
    backend = backends.get(device.kind)
    direct = backend.direct_launch(device.ordinal)
    if direct is None:
        return list(by_backend)
    scope |= direct._asdict() | {"backend": backend, "ordinal": device.ordinal, "thread": threading.get_ident}
    function, numbers, dims, shared = names
    call = f"call({function}, {numbers}, {shared}, stream.handle or None, arguments.table, 0)"
    if follows:
        call = f"call_following(following({dims}, {shared}, stream.handle), {function}, arguments.table, 0)"
    return [
        "me = thread()",
        "if not (here := seen[0] == me):",
        "    status, now = current()",
        "    if here := now == context:",
        "        seen[0] = me",
        "if here and device.backend is backend:",
        *(f"    {line}" for line in before),
        f"    (status,) = {call}",
        "    if status is success:",
        f"        note((ordinal, stream.handle, arguments.kernel, {dims}))",
        "    elif status in elsewhere:",
        "        seen[0] = 0",
        *(f"        {line}" for line in by_backend),
        "    else:",
        "        failed(status)",
        "else:",
        *(f"    {line}" for line in by_backend),
    ]


def _popping(pool: str, made: str) -> list[str]:
    # There is none at the first launch, nor where other threads are in theirs.
    return ["try:", f"    arguments = {pool}.pop()", "except IndexError:", f"    arguments = {made}()"]


def _packing(pack_into: str, values: Sequence[str]) -> str:
    return f"{pack_into}({', '.join(['arguments.raw', '0', *values])})"


def _checks(rules: Sequence[Rule]) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return the lines that check each argument, what each becomes, and the names that both use."""
    scope: dict[str, Any] = {"DeviceArray": DeviceArray}
    lines, values = [], [f"a{i}" for i in range(len(rules))]
    for i, rule in enumerate(rules):
        if isinstance(rule, ScalarRule):
            scope |= {f"convert{i}": rule.convert}
            lines += [_unless_plain(i, rule.plain, scope), f"    a{i} = convert{i}(a{i})"]
            continue
        if isinstance(rule, HandleRule):
            lines += [_unless_plain(i, rule.plain, scope), f"    a{i} = owner.resolve_handle(stream, {i}, a{i})"]
            continue
        scope |= {f"dtype{i}": rule.dtype, f"shape{i}": rule.shape, f"strides{i}": rule.strides}
        tests = [f"a{i}.__class__ is DeviceArray and a{i}.dtype is dtype{i}"]
        tests += [f"a{i}.shape == shape{i}"] if rule.shape is not None else []
        tests += [f"a{i}.strides == strides{i}"] if rule.strides is not None else []
        tests += [f"not a{i}.readonly"] if rule.written else []
        tests += [f"not a{i}.ptr % {rule.align}"] if rule.align > rule.dtype.itemsize else []
        # Alive, on the stream's device, which is the owner's, and not to be noted as used elsewhere.
        test = " and ".join([*tests, f"a{i}.memory.home is stream"])
        test = f"a{i} is None or ({test})" if rule.nullable else test
        lines += [f"if not ({test}):", f"    a{i} = owner.resolve_array(stream, {i}, a{i})"]
        values[i] = f"0 if a{i} is None else a{i}.ptr" if rule.nullable else f"a{i}.ptr"
    return lines, values, scope


def _unless_plain(i: int, plain: frozenset[type], scope: dict[str, Any]) -> str:
    """Return the line before what a scalar needs whose class is not among `plain`: the usual one is asked for first."""
    scope |= {f"plain{i}": plain, f"usual{i}": next((one for one in (float, int, bool) if one in plain), None)}
    return f"if a{i}.__class__ is not usual{i} and a{i}.__class__ not in plain{i}:"


def _names(rules: Sequence[object]) -> str:
    return ", ".join(f"a{i}" for i in range(len(rules)))


def _unpacking(rules: Sequence[object]) -> list[str]:
    # One sequence costs less than as many arguments, which Python would pack and unpack once more.
    return [f"{_names(rules)}, = args"] if rules else []


def _compiled(head: str, lines: Sequence[str], scope: dict[str, Any]) -> Any:
    # The scope is a closure's. Functions that share code, which remembers where globals are, would look its names up
    # anew in each call if they were globals.
    inner = "\n        ".join([f"def {head}:", *lines])
    made: dict[str, Any] = {}
    exec(_code(f"def make({', '.join(scope)}):\n    {inner}\n    return {head.partition('(')[0]}"), made)
    return made["make"](**scope)  # the text is made of indices and numbers only


@functools.lru_cache(maxsize=256)
def _code(text: str) -> CodeType:
    """Return the code of a text: kernels of the same rules share it, and compiling it is most of a binder's cost."""
    return compile(text, "<launch>", "exec")
