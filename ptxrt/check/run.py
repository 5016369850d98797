"""Run one kernel on the PTX machine with every check on: ``ptxrt check``, and the same from Python.

::

    from ptxrt.check.run import check

    report = check(source, "saxpy", "const f32* x, f32* y, u32 n, f32 a", grid=4, block=256,
                   arguments={"x": "random:f32:1024", "y": "zeros:f32:1024", "n": 1024, "a": 2.0}, counts=True)
    print(report.fault)

The machine is one of its own: a fresh memory, no device, no cache.
"""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from numpy.typing import NDArray

from ptxrt import sim
from ptxrt.backends.sim import blocks_at_a_time, param_table
from ptxrt.check.arguments import Given, Value, declared
from ptxrt.compilers import Binary, hip_on_nvrtc
from ptxrt.compilers.ptx_text import require_entry, scan
from ptxrt.dtypes import VECTORS
from ptxrt.errors import CompileError, InvalidArgument, LaunchError, SimFault, shown
from ptxrt.places import Sources
from ptxrt.runtime.device import Device
from ptxrt.runtime.geometry import check_cooperative
from ptxrt.runtime.inference import declared_signature
from ptxrt.runtime.layout import is_whole, whole_numbers
from ptxrt.runtime.scalars import check_scalar
from ptxrt.runtime.signature import Parameter, Signature, Structs
from ptxrt.runtime.source import KernelSource
from ptxrt.runtime.structs import packed_struct
from ptxrt.sim import CHECKS, chosen_checks
from ptxrt.symbols import function_name, plain_name

__all__ = ["ALWAYS", "CompiledProgram", "Report", "check", "compiled_program"]

ALWAYS = ("memory", "barriers", "endless loops", "races in shared memory")
"""What every launch on the machine looks for; ``ptxrt.sim.CHECKS`` has the rest."""

_NOT_PACKED = (struct.error, TypeError, ValueError, OverflowError)


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes
    ----------
    entry : ptxrt.sim.Entry
        The kernel: its name, parameter table, resources.
    name : str
        The source's name.
    text : str
        The PTX that ran; of C++ what NVRTC made of it.
    program : ptxrt.sim.Program
        The same, parsed: its ``sources`` are the texts that were written, where it was made of these, and its ``place``
        tells the line of them that a line of the PTX was made of.
    compiler : str
        What read the text.
    signature : Signature
        As given, or as taken from the text.
    signature_from_text : bool
        Whether the signature was taken from the text's .param list.
    values : tuple of Value
        One a parameter: what was passed.
    grid, block : tuple of int
    shared_bytes : int
        Dynamic shared memory.
    cooperative : bool
        Whether all blocks ran at one time.
    seed : int
    checks : tuple of str
        What was looked for.
    fault : SimFault or None
        The fault that ended the launch.
    launch : ptxrt.sim.LaunchReport or None
        Instructions, threads; None after a fault.
    profile : ptxrt.sim.Profile or None
        Counts per line, where they were asked for.
    arrays : dict
        The arrays after the launch, by parameter.
    unwritten : dict
        Of the arrays that were given empty, by parameter: how many elements the launch left so. None after a fault, and
        where unwritten reads are not looked for.
    seconds : float
        The launch alone.
    """

    entry: sim.Entry
    name: str
    text: str
    program: sim.Program
    compiler: str
    signature: Signature
    signature_from_text: bool
    values: tuple[Value, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    cooperative: bool
    seed: int
    checks: tuple[str, ...]
    fault: SimFault | None = None
    launch: sim.LaunchReport | None = None
    profile: sim.Profile | None = None
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    unwritten: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


def check(
    source: KernelSource,
    entry: str | None = None,
    signature: Signature | str | None = None,
    *,
    grid: int | Sequence[int],
    block: int | Sequence[int],
    arguments: Mapping[str, Any],
    structs: Structs | None = None,
    shared_bytes: int = 0,
    cooperative: bool = False,
    budget: int | None = None,
    seed: int = 0,
    checks: Iterable[str] = ("all",),
    counts: bool = False,
    arch: str | None = None,
) -> Report:
    """Run a kernel once, with all checks on; a fault is in the report, and is not raised.

    Parameters
    ----------
    source
        PTX; CUDA C++ or HIP where NVRTC is installed.
    entry
        The kernel; may be left out where the text has one entry only.
    signature
        As for :func:`ptxrt.load`. Left out, it is taken from the text's .param list, and a parameter for which an
        array is given is a pointer.
    grid, block
        Blocks, and threads a block: a number, or up to three.
    arguments
        By parameter: a NumPy array, a number, None for a null pointer, or a text such as ``"random:f32:8x1024"``
        (see docs/sim.md for the forms); for a struct what a launch takes, too.
    structs
        As for :func:`ptxrt.load`.
    shared_bytes
        Dynamic shared memory a block.
    cooperative
        Run all blocks at one time, as a cooperative launch does.
    budget
        Instructions that a chunk of blocks may issue before its loop counts as endless.
    seed
        Of the random arrays.
    checks
        The checks to make besides those of every launch: ``all``, or names out of ``ptxrt.sim.CHECKS``.
    counts
        Count what each line does; the launch takes longer.
    arch
        For C++ only: what to compile for. ``sm_90``, or PTXRT_SIM_ARCH, if left out.

    Raises
    ------
    CompileError, Unsupported
        For the text.
    SignatureMismatch
        If the signature is not the text's.
    InvalidArgument, DTypeMismatch, ShapeMismatch, LaunchError
        For an argument, the grid, the block or the shared memory.
    OutOfDeviceMemory
        For arrays that are too large.
    BackendUnavailable
        For C++ without NVRTC.
    """
    _check_kinds(source, entry, signature, arguments, checks, arch)
    compiled = compiled_program(source, entry, arch)
    program, symbol = compiled.program, compiled.symbol
    name = function_name(symbol)
    found = program.entries[symbol]
    dims = _dims(name, "grid", grid), _dims(name, "block", block)
    _check_limits(name, found, *dims, shared_bytes)
    if cooperative:
        device = Device("sim:0")
        most = blocks_at_a_time(device.arch, math.prod(dims[1]), found.shared_bytes + shared_bytes)
        check_cooperative(name, device, dims[0], most)
    if budget is not None and not (is_whole(budget) and budget >= 1):
        raise InvalidArgument(op=name, argument="budget", expected="1 or more instructions", given=shown(budget))
    if not (is_whole(seed) and seed >= 0):
        raise InvalidArgument(op=name, argument="seed", expected="a whole number, 0 or more", given=shown(seed))
    if arch is not None and source.language == "ptx":
        raise InvalidArgument(op=name, argument="arch", expected="none for PTX, which names its target", given=arch)
    given = Given(name, arguments)
    from_text = signature is None
    if signature is None:
        signature = _signature(compiled, source, given, structs)
    elif isinstance(signature, str):
        signature = Signature.parse(signature, structs)
    typed = None if compiled.binary is None else compiled.binary.entries[symbol].params
    table = param_table(found) if typed is None else typed
    signature = signature.placed(table)
    signature.agree(name, table)
    values = given.values(signature, seed)
    names, _ = chosen_checks(checks)
    machine = Device("sim:0")
    memory = sim.GlobalMemory(machine.properties.total_memory)
    addresses = [value.place(memory) for value in values]
    loaded = sim.load(program, memory)
    profile = sim.Profile() if counts else None
    params = _pack(name, signature, [v.packed(memory, at) for v, at in zip(values, addresses, strict=True)])
    arrays = [
        sim.ArrayParam(offset, p.name, p.type.name, p.const)
        for p, offset in zip(signature.parameters, signature.offsets, strict=True)
        if p.pointer
    ]
    fault: SimFault | None = None
    launch: sim.LaunchReport | None = None
    started = time.perf_counter()
    try:
        launch = sim.launch(
            loaded,
            symbol,
            *dims,
            params,
            arrays=arrays,
            shared_bytes=shared_bytes,
            cooperative=cooperative,
            budget=budget,
            checks=names,
            profile=profile,
            arch=arch or machine.arch,
        )
    except SimFault as error:
        fault = error
    seconds = time.perf_counter() - started
    return Report(
        entry=found,
        name=("" if source.language == "ptx" else "the PTX of ") + (source.name or "the text"),
        text=program.source.text,
        program=program,
        compiler=compiled.compiler,
        signature=signature,
        signature_from_text=from_text,
        values=tuple(values),
        grid=dims[0],
        block=dims[1],
        shared_bytes=shared_bytes,
        cooperative=cooperative,
        seed=seed,
        checks=(*ALWAYS, *(name for name in CHECKS if name in names)),
        fault=fault,
        launch=launch,
        profile=profile,
        arrays={
            value.parameter.name: value.read(memory, address)
            for value, address in zip(values, addresses, strict=True)
            if value.array is not None
        },
        unwritten={
            value.parameter.name: _unwritten(memory, address, value)
            for value, address in zip(values, addresses, strict=True)
            if value.empty and address and fault is None and "uninitialised" in names
        },
        seconds=seconds,
    )


def _unwritten(memory: sim.GlobalMemory, address: int, value: Value) -> int:
    """Return how many elements of an array have a byte that nobody has written."""
    allocation = memory.find(address)
    marks = None if allocation is None else allocation.marks()
    return 0 if marks is None else int((marks.bytes.reshape(-1, value.parameter.type.size) == 0).any(axis=1).sum())


def _check_kinds(source: Any, entry: Any, signature: Any, arguments: Any, checks: Any, arch: Any) -> None:
    strings = isinstance(checks, Iterable) and all(isinstance(name, str) for name in checks)
    for argument, value, good, expected in (
        ("source", source, isinstance(source, KernelSource), "a KernelSource"),
        ("entry", entry, entry is None or isinstance(entry, str), "the entry's name"),
        (
            "signature",
            signature,
            signature is None or isinstance(signature, (Signature, str)),
            "a Signature, or its text",
        ),
        ("arguments", arguments, isinstance(arguments, Mapping), "a mapping from parameters to arguments"),
        ("checks", checks, strings, "names"),
        ("arch", arch, arch is None or isinstance(arch, str), "an architecture such as sm_90"),
    ):
        if not good:
            raise InvalidArgument(op="check", argument=argument, expected=expected, given=shown(value))


class CompiledProgram(NamedTuple):
    """A text as the machine runs it.

    Attributes
    ----------
    program
        Parsed.
    entry
        As it is called in the source's language.
    symbol
        The entry's name in the program.
    compiler
        What read the text.
    binary
        What NVRTC made of C++; None for PTX.
    """

    program: sim.Program
    entry: str
    symbol: str
    compiler: str
    binary: Binary | None


def compiled_program(
    source: KernelSource, entry: str | None, arch: str | None, options: tuple[str, ...] = ()
) -> CompiledProgram:
    """Return the program and one entry of it, the only one for None; `options` are for C++ alone."""
    machine = f"PTX machine {sim.MAX_PTX_VERSION[0]}.{sim.MAX_PTX_VERSION[1]}"
    binary = None
    text, symbols, sources = source.text, {}, Sources()
    if source.language != "ptx":
        binary = hip_on_nvrtc.compile_one(
            source.language,
            text,
            arch or os.environ.get("PTXRT_SIM_ARCH") or "sm_90",
            defines=dict(source.defines),
            options=options,
            entry=entry,
            name=source.name,
            output="ptx",
            line_info=True,
        )
        text, symbols, sources = binary.code.decode(), binary.symbols, binary.sources
        machine = f"{binary.compiler}, {machine}"
    else:
        scan(text, source.name)
    program = sim.parse(text, source.name, sources)
    if entry is None:
        if len(program.entries) != 1:
            found = [function_name(name) for name in program.entries]
            template = "A template is compiled for its arguments alone: name it with them, as in scale<float, 4>"
            raise InvalidArgument(
                op="check",
                argument="entry",
                expected=f"one of {', '.join(found)}" if found else "a text with an entry",
                given="none",
                fix=template if not found and "template" in source.text else None,
            )
        symbol = next(iter(program.entries))
        entry = name if (name := function_name(symbol)) in symbols else symbol
    symbol = symbols.get(entry, entry)
    require_entry(symbol, program.entries, source.name, text=text)
    program.entries[symbol].decode()
    return CompiledProgram(program, entry, symbol, machine, binary)


def _signature(compiled: CompiledProgram, source: KernelSource, given: Given, structs: Structs | None) -> Signature:
    """Return the signature that the text declares; a pointer for which null is given may be null."""
    binary = compiled.binary
    params = () if binary is None else binary.entries[compiled.symbol].params or ()
    if binary is None or not all(p.cxx for p in params):
        return declared(compiled.program.entries[compiled.symbol], given)
    unknown = {
        plain_name(p.cxx): f"V{p.size}" for p in params if not p.type and p.kind == "bits" and p.cxx not in VECTORS
    }
    signature = declared_signature(source, compiled.entry, binary, structs={**unknown, **(structs or {})})
    return Signature(tuple(_as_given(p, given) for p in signature.parameters))


def _as_given(p: Parameter, given: Given) -> Parameter:
    """Return a parameter of C++ as what is given for it asks: null, or the type of a struct that nobody declared."""
    if p.pointer and given.is_null(p.name):
        return replace(p, nullable=True)
    if p.kind == "struct" and p.type.numpy.names is None:
        return replace(p, type=given.type_of_bytes(p.name, p.size))
    return p


def _dims(name: str, argument: str, value: int | Sequence[int]) -> tuple[int, int, int]:
    sizes = whole_numbers(value) or ()
    if not 1 <= len(sizes) <= 3:
        raise LaunchError(op=name, argument=argument, expected="one to three whole numbers", given=shown(value))
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z


def _check_limits(
    name: str, entry: sim.Entry, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int
) -> None:
    limits = Device("sim:0").properties
    for argument, given, most in (("grid", grid, limits.max_grid), ("block", block, limits.max_block)):
        if not all(1 <= n <= bound for n, bound in zip(given, most, strict=True)):
            raise LaunchError(op=name, argument=argument, expected=f"each at least 1 and at most {most}", given=given)
    if entry.required_block not in (None, block):
        raise LaunchError(
            op=name,
            argument="block",
            expected=f"{entry.required_block}, as .reqntid says",
            given=block,
            fix="Launch blocks of that shape, or write another .reqntid",
        )
    threads = block[0] * block[1] * block[2]
    most_threads = min(limits.max_threads_per_block, entry.max_threads)
    if threads > most_threads:
        by_kernel = entry.max_threads < limits.max_threads_per_block
        more = ", or raise the kernel's .maxntid (in C++ __launch_bounds__)" if by_kernel else ""
        raise LaunchError(
            op=name,
            argument="block",
            expected=f"at most {most_threads} threads",
            given=f"{block}, {threads}",
            fix=f"Launch smaller blocks{more}",
        )
    if entry.cluster is not None and any(n % part for n, part in zip(grid, entry.cluster, strict=True)):
        raise LaunchError(op=name, argument="grid", expected=f"a multiple of the cluster {entry.cluster}", given=grid)
    available = limits.max_shared_dynamic - entry.shared_bytes
    if not (is_whole(shared_bytes) and 0 <= shared_bytes <= available):
        raise LaunchError(
            op=name,
            argument="shared_bytes",
            expected=f"0 to {available} beside {entry.shared_bytes} static bytes",
            given=shown(shared_bytes),
        )
    if entry.shared_bytes > limits.max_shared_static:
        raise CompileError(
            f"{entry.shared_bytes} bytes of static shared memory; {limits.max_shared_static} is the most",
            kernel=name,
            fix="Declare the rest as .extern .shared and give it as dynamic shared memory",
        )


def _pack(entry: str, signature: Signature, numbers: Sequence[Any]) -> bytes:
    arguments = signature.arguments()
    pairs = zip(signature.parameters, numbers, strict=True)
    checked = [number if p.pointer else _converted(number, p, entry) for p, number in pairs]
    try:
        signature.pack_into(arguments.raw, 0, *checked)
    except _NOT_PACKED:
        raise signature.explain(numbers, entry) from None
    return arguments.bytes()


def _converted(value: Any, p: Parameter, entry: str) -> Any:
    return packed_struct(value, p, entry) if p.kind == "struct" else check_scalar(value, p, entry)
