"""Kernel: an entry point bound to its Signature and to one device; load and launch."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ptxrt.backends import PointerParam, Resources
from ptxrt.errors import (
    DTypeMismatch,
    InvalidArgument,
    LayoutError,
    PtxrtError,
    ShapeMismatch,
    Unsupported,
    no_copy,
    shown,
)
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.binding import ArrayRule, Dims, HandleRule, LaunchStep, Rule, ScalarRule, Submit, submitter
from ptxrt.runtime.calling import Cooperative, Launcher, arranged
from ptxrt.runtime.device import Device, as_device
from ptxrt.runtime.geometry import check_cooperative, checked_geometry
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.layout import is_whole
from ptxrt.runtime.modules import LoadedModule
from ptxrt.runtime.protocols import KernelArgument, StreamLike
from ptxrt.runtime.scalars import check_scalar
from ptxrt.runtime.signature import Arguments, Parameter, Signature, Structs
from ptxrt.runtime.source import KernelSource
from ptxrt.runtime.stream import ENTERED, Stream, as_stream, checked_stream
from ptxrt.runtime.structs import check_members, packed_struct
from ptxrt.symbols import function_name

if TYPE_CHECKING:
    from numpy.typing import DTypeLike

    from ptxrt.runtime.inference import Lengths

__all__ = ["Kernel", "KernelIdentity", "load"]


def load(
    source: KernelSource,
    entry: str,
    signature: Signature | str | Callable[..., Any] | None = None,
    device: Device | str | None = None,
    options: Sequence[str] = (),
    *,
    lengths: Lengths | None = None,
    structs: Structs | None = None,
    reload: bool = False,
) -> Kernel:
    """Return an entry of `source` as a Kernel on `device`, compiled if it is not in the device's module cache.

    Parameters
    ----------
    source
        The text.
    entry
        Name of the entry; for C++ also an expression such as ``"scale<float>"``.
    signature
        What :meth:`Signature.parse` or :meth:`Signature.from_function` takes, or a Signature. Left out, the one that
        the text declares, in CUDA C++ and HIP: types from the compiler, names from the text.
    device
        The default device if left out.
    options
        For the compiler, each a string; part of the cache's key.
    lengths
        Where the signature is left out: how many elements an array has at least, ``{"x": "n", "y": "4*n"}``.
    structs
        For a signature that is a text or left out: the structs that are passed by value, as :meth:`Signature.parse`
        takes them. In C++ each field must be the member of that name, in place and size.
    reload
        Let the kernel follow the file that `source` was read from: the first launch after a change of the file, or of
        a header, compiles it anew. Where that fails, the kernel stays as it was, and a ReloadWarning has the error.

    Raises
    ------
    CompileError
        If the text does not compile, or has no such entry.
    SignatureMismatch
        If `signature` disagrees with the binary's own parameter table.
    InvalidArgument
        For arguments of the wrong kind; for PTX without a signature.
    Unsupported
        For a declaration that no signature can be made of.
    """
    if not isinstance(source, KernelSource):
        from ptxrt.compilers.ptx_text import file_hint  # noqa: PLC0415 (for the message alone)

        raise InvalidArgument(
            op="load",
            argument="source",
            expected="a KernelSource",
            given=type(source).__name__,
            fix=(isinstance(source, str) and file_hint(source)) or "KernelSource.from_file(path) reads one",
        )
    _check_entry(entry, "load")
    signature = _as_signature(signature, structs, "load")
    if not isinstance(options, (tuple, list)) or not all(isinstance(option, str) for option in options):
        raise InvalidArgument(op="load", argument="options", expected="a sequence of strings", given=shown(options))
    if signature is not None and lengths is not None:
        raise InvalidArgument(
            op="load",
            argument="lengths",
            expected="None beside a signature",
            given=shown(lengths),
            fix='Write them in the signature: "f32* x[n]"',
        )
    make: Callable[..., Kernel] = Kernel
    if reload:
        from ptxrt.runtime.reload import following  # noqa: PLC0415 (it knows this file)

        make = following(source)
    where = as_device(device)
    try:
        module = where.modules.module(source, entry, tuple(options))
        if signature is None:
            from ptxrt.runtime.inference import declared_signature  # noqa: PLC0415 (most kernels have a signature)

            signature = declared_signature(source, entry, module.binary, lengths, structs, module.names)
        return make(where, module, KernelIdentity(source, entry, signature, tuple(options)))
    finally:
        where.modules.trim()  # here, where the new Kernel holds its module


def _check_entry(entry: Any, op: str) -> None:
    if not isinstance(entry, str) or not entry:
        raise InvalidArgument(op=op, argument="entry", expected="the entry's name", given=shown(entry))


def _as_signature(
    signature: Signature | str | Callable[..., Any] | None, structs: Structs | None, op: str
) -> Signature | None:
    if structs is not None and not isinstance(signature, (str, type(None))):
        raise InvalidArgument(
            op=op,
            argument="structs",
            expected="None beside a Signature or a function, which have the dtypes",
            given=shown(structs),
        )
    if isinstance(signature, str):
        return Signature.parse(signature, structs)
    if signature is None or isinstance(signature, Signature):
        return signature
    if not callable(signature):
        raise InvalidArgument(
            op=op, argument="signature", expected="a Signature, its text, or a function", given=shown(signature)
        )
    return Signature.from_function(signature)


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
    source : KernelSource
    resources : Resources
        Registers, shared, local and constant bytes, and the threads a block may have.
    identity : KernelIdentity
        Source, entry, signature and options that it was loaded from.
    """

    _launcher = Launcher  # what kernel[grid, block] makes

    def __init__(self, device: Device, module: LoadedModule, identity: KernelIdentity) -> None:
        source, entry, signature, options = identity
        self.entry, self.device, self.source = entry, device, source
        name = module.binary.symbols.get(entry, entry)
        if name not in module.binary.entries:
            from ptxrt.compilers.ptx_text import require_entry  # noqa: PLC0415 (for the message alone)

            require_entry(name, module.binary.entries, source.name, device.arch, text=source.text)
        pointers = tuple(
            PointerParam(i, p.name, p.type.name, p.const) for i, p in enumerate(signature.parameters) if p.pointer
        )
        function = module.function(name, pointers)
        self.signature = signature = signature.placed(function.params)
        signature.agree(entry, function.params)
        check_members(module, source, entry, options, signature)
        self.identity = identity._replace(signature=signature)
        self.resources: Resources = function.resources
        self._function = function.handle
        self._module = module
        self._pool: list[Arguments] = []
        self._geometry: tuple[Any, Any, Any, Dims, int] = (None, None, None, (0, 0, 0, 0, 0, 0), 0)
        self._params, self._arity = signature.parameters, len(signature.parameters)
        # Above the static limit a kernel must be opted in, once for the most that it is ever given.
        self._opted_in = device.properties.max_shared_static - self.resources.shared_bytes
        self._submit: Submit | None = None
        self._submit_cooperative: Submit | None = None
        self._cooperative_geometry: tuple[Dims, int] | None = None  # the last that was checked
        module.add_kernel(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy would not count among those that keep the module.
        raise no_copy(self, "kernel", "Load it again")

    def __repr__(self) -> str:
        return f"<Kernel {self.entry}({self.signature}) on {self.device}>"

    @property
    def ptx(self) -> str | None:
        """The PTX that was compiled, which for C++ is NVRTC's; None on AMD's devices, whose compiler makes none."""
        return self._module.binary.ptx

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        *args: KernelArgument,
        shared_bytes: int = 0,
        stream: StreamLike | None = None,
        budget: int | None = None,
        cooperative: bool = False,
        **named: KernelArgument,
    ) -> None:
        """Check every argument, and launch; the device is not waited for.

        Parameters
        ----------
        grid, block
            The number of blocks, and of threads in a block: one number, or up to three.
        *args
            One for each parameter of the signature. A pointer takes a DeviceArray of its dtype, on this device, or
            another library's array there; a scalar takes a number that its type can hold; a struct takes a tuple or
            mapping of its fields, or a NumPy scalar of its dtype.
        **named
            Arguments by the signature's names, behind those by position. A parameter that is called as one of this
            method's own is given by position, or to ``kernel[grid, block](...)``.
        shared_bytes
            Dynamic shared memory a block; above 48 KiB the kernel is opted in.
        stream
            A Stream, or anything with ``__cuda_stream__``; if left out, the stream of a with-block around the call, or
            the device's default stream.
        budget
            On sim: how many instructions a chunk of blocks may issue before its loop counts as endless;
            PTXRT_SIM_BUDGET if left out. No other device can count them.
        cooperative
            Run all blocks at one time, so that they can wait for each other, as at cooperative_groups' ``grid.sync()``.

        Raises
        ------
        LaunchError
            For a grid, block or shared memory outside the limits of device and kernel; for a cooperative launch of more
            blocks than the device holds.
        InvalidArgument, DTypeMismatch, DeviceMismatch, ShapeMismatch, LayoutError
            For an argument that is not what the signature declares.
        """
        known_grid, known_block, known_bytes, dims, shared = self._geometry
        if grid is not known_grid or block is not known_block or shared_bytes is not known_bytes:
            dims, shared = self._configure((grid, block, shared_bytes))
        device = self.device
        queue = device.default_stream if stream is None and not ENTERED else as_stream(stream, device, self.entry)
        if named or len(args) != self._arity:
            args = arranged(self.entry, self.signature, args, named)
        if budget is not None:
            self._check_budget(budget)
        if cooperative:
            self._launch_cooperative(queue, dims, shared, budget, args)
            return
        submit = self._submit or self._made_submit()
        submit(self, queue, dims, shared, budget, args)

    if not TYPE_CHECKING:  # for a type checker a Kernel cannot be called, which is an error before the program runs

        def __call__(self, *_: Any, **__: Any) -> NoReturn:
            raise InvalidArgument(
                op=self.entry,
                argument="call",
                expected="a grid and a block",
                given="none",
                fix="Write kernel[grid, block](...), or kernel.launch(grid, block, ...)",
            )

    def __getitem__(self, config: Any) -> Launcher:
        """Return ``kernel[grid, block, shared_bytes, stream]``, which launches when it is called.

        Shared memory and stream may be left out; the four are those of :meth:`launch`, and checked here.

        Raises
        ------
        LaunchError, DeviceMismatch, InvalidArgument
            As :meth:`launch` does.
        """
        if not isinstance(config, tuple) or not 2 <= len(config) <= 4:
            raise InvalidArgument(
                op=self.entry,
                argument="kernel[...]",
                expected="grid and block, then shared_bytes and a stream, which may be left out",
                given=shown(config),
            )
        dims, shared = self._configure((config[0], config[1], config[2] if len(config) > 2 else 0))
        stream = config[3] if len(config) > 3 else None
        queue = None if stream is None else checked_stream(stream, self.device, self.entry)
        return self._launcher(self, dims, shared, queue)

    @property
    def cooperative(self) -> Cooperative:
        """``kernel.cooperative[grid, block](...)`` is ``kernel[grid, block](...)`` as a cooperative launch."""
        return Cooperative(self)

    def variable(self, name: str, dtype: DTypeLike | None = None) -> DeviceArray:
        """Return a ``__device__`` or ``__constant__`` variable of the kernel's module as an array over its memory.

        What is copied there, kernels see; it keeps the module loaded. A kernel must not write to a constant. In C++
        each entry that is loaded has a module, and with it variables, of its own, but for :meth:`sibling`; in PTX a
        text's entries share them.

        Parameters
        ----------
        name
            Its name; in C++ with namespaces where there are several of that name.
        dtype
            Its element type, where the binary does not tell: for arrays and integers in C++. For structs a structured
            NumPy dtype, or the name of one of C++'s vectors, ``"float4"``.

        Raises
        ------
        InvalidArgument
            For an unknown name; for no `dtype` where there must be one.
        DTypeMismatch
            For a `dtype` that is not the declared one, or of which the variable does not hold a whole number.
        """
        from ptxrt.runtime.variables import variable_array  # noqa: PLC0415 (few kernels are asked for one)

        return variable_array(self.device, self._module, name, dtype, f"{self.entry}.variable")

    def sibling(
        self,
        entry: str,
        signature: Signature | str | Callable[..., Any] | None = None,
        *,
        structs: Structs | None = None,
    ) -> Kernel:
        """Return another kernel of the module that this one is in: both have the same variables. Nothing is compiled.

        Parameters
        ----------
        entry
            Its name. A template must be instantiated in the text: ``template __global__ void k<float>(float*);``.
        signature, structs
            As for :func:`load`. In CUDA C++ there must be one, since the compiler has told the types of the loaded
            entry alone; it is compared as with PTX.

        Raises
        ------
        CompileError
            If the module has no such kernel.
        SignatureMismatch, InvalidArgument, Unsupported
            As for :func:`load`.
        """
        _check_entry(entry, "sibling")
        declared = _as_signature(signature, structs, "sibling")
        module, (source, *_, options) = self._module, self.identity
        binary = module.binary
        named = [symbol for symbol in binary.entries if function_name(symbol) == entry]
        if len(named) == 1:
            binary.symbols.setdefault(entry, named[0])
        elif binary.symbols.get(entry, entry) not in binary.entries:
            from ptxrt.compilers.ptx_text import require_entry  # noqa: PLC0415 (for the message alone)

            words = [function_name(symbol) for symbol in binary.entries]
            # Of overloaded ones the symbol, by which they are found.
            names = [
                word if words.count(word) == 1 else symbol for symbol, word in zip(binary.entries, words, strict=True)
            ]
            require_entry(entry, names, source.name, binary.arch, text=source.text)
        if declared is None:
            from ptxrt.runtime.inference import declared_signature  # noqa: PLC0415 (as above)

            declared = declared_signature(source, entry, binary, None, structs, module.names)
        return Kernel(self.device, module, KernelIdentity(source, entry, declared, options))

    def max_blocks_per_multiprocessor(self, block: int | Sequence[int], shared_bytes: int = 0) -> int:
        """Return how many blocks a multiprocessor (AMD's compute unit) runs at a time, as the driver says.

        Registers, shared memory and threads of a block bound it; 0 where not even one fits. On sim registers do not:
        no assembler has given the kernel real ones.

        Parameters
        ----------
        block, shared_bytes
            As for :meth:`launch`.

        Raises
        ------
        LaunchError
            For a block or shared memory that no launch could have.
        """
        dims, shared = checked_geometry(self.entry, self.device, self.resources, 1, block, shared_bytes)
        self.opt_in(shared)
        return self._most_blocks(dims, shared)

    def _most_blocks(self, dims: Dims, shared: int) -> int:
        return self.device.backend.max_blocks(self.device.ordinal, self._function, math.prod(dims[3:]), shared)

    def check_cooperative(self, dims: Dims, shared: int) -> None:
        """Raise where not all blocks of such a launch can run at one time."""
        if self._cooperative_geometry != (dims, shared):
            self.opt_in(shared)
            check_cooperative(self.entry, self.device, dims[:3], self._most_blocks(dims, shared))
            self._cooperative_geometry = dims, shared

    def _launch_cooperative(
        self, queue: Stream, dims: Dims, shared: int, budget: int | None, args: Sequence[Any]
    ) -> None:
        self.check_cooperative(dims, shared)
        submit = self._submit_cooperative
        if submit is None:
            submit = self._submit_cooperative = self._made(cooperative=True)
        submit(self, queue, dims, shared, budget, args)

    def _made_submit(self) -> Submit:
        # By the first launch: the kernels of a plan, which checks by itself, never need it.
        self._submit = self._made()
        return self._submit

    def _made(self, *, cooperative: bool = False) -> Submit:
        rules = [_rule(p, self.entry) for p in self._params]
        return submitter(self.device, rules, self.signature, self._pool, self.identity, cooperative=cooperative)

    def opt_in(self, shared_bytes: int) -> None:
        """Let the kernel have that much dynamic shared memory."""
        if shared_bytes > self._opted_in:
            self.device.backend.allow_shared(self.device.ordinal, self._function, shared_bytes)
            self._opted_in = shared_bytes

    def step(
        self, dims: Dims, shared_bytes: int, given: Sequence[tuple[int | None, Any]], *, follows: bool = False
    ) -> LaunchStep:
        """Return this kernel's part of a plan's run; see :func:`ptxrt.runtime.binding.runner`."""
        self.opt_in(shared_bytes)
        return LaunchStep(self, dims, shared_bytes, tuple(given), self.signature, self.identity, follows)

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

    def resolve_handle(self, stream: Stream, index: int, given: Any) -> int:
        """Return the handle of a texture or a surface that is alive on the kernel's device, or a number."""
        from ptxrt.runtime.textures import resolved_handle  # noqa: PLC0415 (few kernels take one)

        return resolved_handle(given, self._params[index], self.device, self.entry, stream)

    def packing_error(self, args: Sequence[Any]) -> PtxrtError:
        """Return the error for the scalar among `args` that does not pack."""
        return self.signature.explain(args, self.entry)

    def check_lengths(self, values: Sequence[Any]) -> None:
        sizes = {p.name: value for p, value in zip(self._params, values, strict=True) if not p.pointer}
        for p, array in zip(self._params, values, strict=True):
            if not p.length or array is None:
                continue
            try:
                factors = [factor if isinstance(factor, int) else operator.index(sizes[factor]) for factor in p.length]
            except TypeError:
                raise self.signature.explain(values, self.entry) from None
            if min(factors) < 0:
                raise InvalidArgument(
                    op=self.entry, argument=p.name, expected=f"a length of 0 or more ({p})", given=f"{factors}"
                )
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
        *known, dims, shared = self._geometry
        plain = all(_is_plain(part) for part in config)
        if plain and tuple(known) == config:  # equal, though not the same objects
            return dims, shared
        dims, shared = checked_geometry(self.entry, self.device, self.resources, *config)
        if plain:
            self._geometry = (*config, dims, shared)
        return dims, shared

    def _check_budget(self, budget: Any) -> None:
        if self.device.kind != "sim":
            raise Unsupported(
                op=self.entry, argument="budget", expected="a launch on sim", given=str(self.device), fix="Leave it out"
            )
        if not is_whole(budget) or budget < 1:
            raise InvalidArgument(
                op=self.entry, argument="budget", expected="a number of instructions, 1 or more", given=shown(budget)
            )


def _is_plain(part: Any) -> bool:
    """Whether part of a geometry is of ints that cannot change under our hands, nor equal what they are not (1.0)."""
    return part.__class__ is int or (part.__class__ is tuple and all(n.__class__ is int for n in part))


def _rule(p: Parameter, op: str) -> Rule:
    if p.pointer:
        return ArrayRule(p.type.numpy, not p.const, p.nullable, p.align)
    if p.kind == "struct":
        return ScalarRule(frozenset(), partial(packed_struct, p=p, op=op))
    if p.kind == "handle" or p.type.name == "u64":  # as which C++ declares a handle
        return HandleRule(p.plain)
    return ScalarRule(p.plain, partial(check_scalar, p=p, op=op))
