"""Kernel: an entry point bound to its Signature and to one device; load and launch."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ptxrt.backends import PointerParam, Resources
from ptxrt.compilers.ptx_text import require_entry
from ptxrt.errors import (
    DTypeMismatch,
    InvalidArgument,
    LaunchError,
    LayoutError,
    PtxrtError,
    ShapeMismatch,
    Unsupported,
    shown,
)
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.binding import ArrayRule, Fill, ScalarRule, filler
from ptxrt.runtime.device import Device, as_device
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.layout import whole_numbers
from ptxrt.runtime.modules import LoadedModule
from ptxrt.runtime.protocols import KernelArgument, StreamLike
from ptxrt.runtime.signature import Arguments, Parameter, Signature, check_scalar
from ptxrt.runtime.source import KernelSource
from ptxrt.runtime.stream import Stream, as_stream

__all__ = ["Kernel", "KernelIdentity", "load"]

Dims = tuple[int, int, int, int, int, int]


def load(
    source: KernelSource,
    entry: str,
    signature: Signature | str | Callable[..., Any],
    device: Device | str | None = None,
    options: Sequence[str] = (),
) -> Kernel:
    """Return an entry of `source` as a Kernel on `device`, compiled if it is not in the device's module cache.

    Parameters
    ----------
    source
        The text.
    entry
        Name of the entry; for C++ also an expression such as ``"scale<float>"``.
    signature
        What :meth:`Signature.parse` or :meth:`Signature.from_function` takes, or a Signature.
    device
        The default device if left out.
    options
        For the compiler, each a string; part of the cache's key.

    Raises
    ------
    CompileError
        If the text does not compile, or has no such entry.
    SignatureMismatch
        If `signature` disagrees with the binary's own parameter table.
    InvalidArgument
        For arguments of the wrong kind.
    """
    if not isinstance(source, KernelSource):
        raise InvalidArgument(
            op="load",
            argument="source",
            expected="a KernelSource",
            given=type(source).__name__,
            fix="KernelSource.ptx(text) makes one",
        )
    if not isinstance(entry, str) or not entry:
        raise InvalidArgument(op="load", argument="entry", expected="the entry's name", given=shown(entry))
    if isinstance(signature, str):
        signature = Signature.parse(signature)
    elif not isinstance(signature, Signature):
        if not callable(signature):
            raise InvalidArgument(
                op="load", argument="signature", expected="a Signature, its text, or a function", given=shown(signature)
            )
        signature = Signature.from_function(signature)
    if not isinstance(options, (tuple, list)) or not all(isinstance(option, str) for option in options):
        raise InvalidArgument(op="load", argument="options", expected="a sequence of strings", given=shown(options))
    where = as_device(device)
    try:
        module = where.modules.module(source, entry, tuple(options))
        return Kernel(where, module, KernelIdentity(source, entry, signature, tuple(options)))
    finally:
        where.modules.trim()  # here, where the new Kernel holds its module


class KernelIdentity(NamedTuple):
    """What a kernel was loaded from; nothing of the device."""

    source: KernelSource
    entry: str
    signature: Signature
    options: tuple[str, ...]


class Kernel:
    """An entry of a loaded module; made by :func:`load`. It keeps its module loaded.

    Attributes
    ----------
    entry : str
    signature : Signature
    device : Device
    resources : Resources
        Registers, shared, local and constant bytes, and the threads a block may have.
    identity : KernelIdentity
        Source, entry, signature and options that it was loaded from.
    """

    def __init__(self, device: Device, module: LoadedModule, identity: KernelIdentity) -> None:
        source, entry, signature, _ = identity
        self.identity, self.entry, self.signature, self.device = identity, entry, signature, device
        name = module.binary.symbols.get(entry, entry)
        require_entry(name, module.binary.entries, source.name, device.arch, text=source.text)
        pointers = tuple(
            PointerParam(i, p.name, p.type.name, p.const) for i, p in enumerate(signature.parameters) if p.pointer
        )
        function = module.functions.get((name, pointers))
        if function is None:
            function = device.backend.function(device.ordinal, module.handle, module.binary, name, pointers)
            module.functions[name, pointers] = function
        signature.agree(entry, function.params)
        self.resources: Resources = function.resources
        self._function = function.handle
        self._module = module
        self._pool: list[Arguments] = []
        self._geometry: tuple[Any, Dims, int] = ((None, None, None), (0, 0, 0, 0, 0, 0), 0)
        self._params = signature.parameters
        # Above the static limit a kernel must be opted in, once for the most that it is ever given.
        self._opted_in = device.properties.max_shared_static - self.resources.shared_bytes
        self._lengths = any(p.length for p in signature.parameters)
        self._fill: Fill | None = None
        module.add_kernel(self)

    def __repr__(self) -> str:
        return f"<Kernel {self.entry}({self.signature}) on {self.device}>"

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: KernelArgument,
        shared_bytes: int = 0,
        stream: StreamLike | None = None,
        budget: int | None = None,
    ) -> None:
        """Check every argument, and launch; the device is not waited for.

        Parameters
        ----------
        grid, block
            The number of blocks, and of threads in a block: one number, or up to three.
        *args
            One for each parameter of the signature. A pointer takes a DeviceArray of its dtype, on this device, or
            another library's array there; a scalar takes a number that its type can hold.
        shared_bytes
            Dynamic shared memory a block; above 48 KiB the kernel is opted in.
        stream
            A Stream, or anything with ``__cuda_stream__``; the device's default stream if left out.
        budget
            On sim: how many instructions a chunk of blocks may issue before its loop counts as endless;
            PTXRT_SIM_BUDGET if left out. No other device can count them.

        Raises
        ------
        LaunchError
            For a grid, block or shared memory outside the limits of device and kernel.
        InvalidArgument, DTypeMismatch, DeviceMismatch, ShapeMismatch, LayoutError
            For an argument that is not what the signature declares.
        """
        known, dims, shared = self._geometry
        if grid is not known[0] or block is not known[1] or shared_bytes is not known[2]:
            dims, shared = self._configure((grid, block, shared_bytes))
        device = self.device
        queue = device.default_stream if stream is None else as_stream(stream, device, self.entry)
        if len(args) != len(self._params):
            raise InvalidArgument(
                op=self.entry,
                argument="arguments",
                expected=f"{len(self._params)}: {self.signature}",
                given=f"{len(args)}",
                fix="Pass one argument for each parameter",
            )
        if budget is not None:
            self._check_budget(budget)
        pool = self._pool
        try:
            arguments = pool.pop()
        except IndexError:  # the first launch, or other threads are in theirs
            arguments = self.signature.arguments(self.identity)
        # Made by the first launch: the kernels of a plan, which checks by itself, never need it.
        fill = self._fill or self._made_fill()
        values = fill(self, queue, arguments.raw, *args)
        if self._lengths:
            self._check_lengths(values)
        if shared > self._opted_in:
            self.opt_in(shared)
        arguments.budget = budget
        device.backend.launch(device.ordinal, self._function, dims, shared, queue.handle, arguments)
        pool.append(arguments)

    def _made_fill(self) -> Fill:
        rules = [_rule(p, self.entry) for p in self._params]
        self._fill = filler(self.device, rules, self.signature.pack_into)
        return self._fill

    def opt_in(self, shared_bytes: int) -> None:
        """Let the kernel have that much dynamic shared memory."""
        if shared_bytes > self._opted_in:
            self.device.backend.allow_shared(self.device.ordinal, self._function, shared_bytes)
            self._opted_in = shared_bytes

    def enqueue(self, dims: Dims, shared_bytes: int, stream: Stream, values: Sequence[Any]) -> None:
        """Launch with values that a plan has checked: addresses in the place of arrays."""
        device, pool = self.device, self._pool
        try:
            arguments = pool.pop()
        except IndexError:
            arguments = self.signature.arguments(self.identity)
        self.signature.pack_into(arguments.raw, 0, *values)
        device.backend.launch(device.ordinal, self._function, dims, shared_bytes, stream.handle, arguments)
        pool.append(arguments)

    def resolve_array(self, stream: Stream, index: int, given: Any) -> DeviceArray | None:
        """Check what is not the common case of an array: one reason an error, in a fixed order."""
        p = self._params[index]
        if given is None and p.nullable:
            return None
        array = as_array(given, self.device, self.entry, p.name, stream)
        array.check(self.entry, p.name, writable=not p.const)
        if array.dtype is not p.type.numpy:
            raise DTypeMismatch(
                op=self.entry,
                argument=p.name,
                expected=f"{p.type} ({p.type.numpy})",
                given=str(array.dtype),
                fix="Convert the array, or declare its type in the signature and in the kernel",
            )
        if array.ptr % p.align:
            raise LayoutError(
                op=self.entry,
                argument=p.name,
                expected=f"an address that is a multiple of {p.align}",
                given=f"{array.ptr:#x}",
            )
        array.memory.used_on(stream)
        return array

    def packing_error(self, args: Sequence[Any]) -> PtxrtError:
        """Return the error for the scalar among `args` that does not pack."""
        return self.signature.explain(args, self.entry)

    def _check_lengths(self, values: Sequence[Any]) -> None:
        sizes = {p.name: value for p, value in zip(self._params, values, strict=True) if not p.pointer}
        for p, array in zip(self._params, values, strict=True):
            if not p.length or array is None:
                continue
            try:
                factors = [factor if isinstance(factor, int) else operator.index(sizes[factor]) for factor in p.length]
            except TypeError:
                raise self.signature.explain(values, self.entry) from None
            if not array.is_contiguous:
                raise LayoutError(
                    op=self.entry, argument=p.name, expected="a contiguous array", given=f"strides {array.strides}"
                )
            if array.size < math.prod(factors):
                raise ShapeMismatch(
                    op=self.entry,
                    argument=p.name,
                    expected=f"at least {math.prod(factors)} elements ({p})",
                    given=f"{array.size}, shape {array.shape}",
                )

    def _configure(self, config: tuple[Any, Any, Any]) -> tuple[Dims, int]:
        """Check grid, block and shared memory against the device and the kernel; remember the last good ones."""
        known, dims, shared = self._geometry
        plain = all(_is_plain(part) for part in config)
        if plain and known == config:  # equal, though not the same objects
            return dims, shared
        limits, resources = self.device.properties, self.resources
        grid = self._dim("grid", config[0], limits.max_grid)
        block = self._dim("block", config[1], limits.max_block)
        along = tuple(blocks * threads for blocks, threads in zip(grid, block, strict=True))
        if max(along) > limits.max_grid_threads:
            together = f"grid times block, at most {limits.max_grid_threads} threads along each axis"
            self._out_of_limits("grid", together, along)
        threads = block[0] * block[1] * block[2]
        most = min(limits.max_threads_per_block, resources.max_threads)
        if threads > most:
            self._out_of_limits("block", f"at most {most} threads ({resources.registers} registers each)", threads)
        if resources.shared_bytes > limits.max_shared_static:
            static = f"a kernel of at most {limits.max_shared_static} bytes of static shared memory"
            self._out_of_limits("kernel", static, resources.shared_bytes)
        shared = config[2]
        available = limits.max_shared_dynamic - resources.shared_bytes
        if not isinstance(shared, (int, np.integer)) or not 0 <= shared <= available:
            self._out_of_limits(
                "shared_bytes", f"0 to {available} beside {resources.shared_bytes} static bytes", shared
            )
        dims = (*grid, *block)
        if plain:
            self._geometry = (config, dims, int(shared))
        return dims, int(shared)

    def _check_budget(self, budget: Any) -> None:
        if self.device.kind != "sim":
            raise Unsupported(
                op=self.entry, argument="budget", expected="a launch on sim", given=str(self.device), fix="Leave it out"
            )
        if not isinstance(budget, (int, np.integer)) or isinstance(budget, bool) or budget < 1:
            raise InvalidArgument(
                op=self.entry, argument="budget", expected="a number of instructions, 1 or more", given=shown(budget)
            )

    def _dim(self, argument: str, value: Any, limits: tuple[int, int, int]) -> tuple[int, int, int]:
        sizes = whole_numbers(value) or ()
        if not 1 <= len(sizes) <= 3:
            self._out_of_limits(argument, "one to three whole numbers", value)
        x, y, z = (*sizes, 1, 1)[:3]
        if not all(1 <= n <= most for n, most in zip((x, y, z), limits, strict=True)):
            self._out_of_limits(argument, f"each at least 1 and at most {limits}", value)
        return x, y, z

    def _out_of_limits(self, argument: str, expected: str, given: Any) -> None:
        raise LaunchError(
            op=self.entry,
            argument=argument,
            expected=f"{expected} on {self.device}",
            given=shown(given),
            fix="device.properties and kernel.resources have the limits",
        )


def _is_plain(part: Any) -> bool:
    """Whether part of a geometry is of ints that cannot change under our hands, nor equal what they are not (1.0)."""
    return part.__class__ is int or (part.__class__ is tuple and all(n.__class__ is int for n in part))


def _rule(p: Parameter, op: str) -> ArrayRule | ScalarRule:
    if p.pointer:
        return ArrayRule(p.type.numpy, not p.const, p.nullable, p.align)
    return ScalarRule(p.plain, partial(check_scalar, p=p, op=op))
