"""Loading a program into a memory, and running a grid of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from ptxrt.errors import CompileError, InvalidArgument, LaunchError, PtxrtError
from ptxrt.sim._instructions.decode import decode
from ptxrt.sim._machine.checks import chosen
from ptxrt.sim._machine.code import Code
from ptxrt.sim._machine.global_races import GlobalRaces
from ptxrt.sim._machine.lanes import Job, Lanes
from ptxrt.sim._machine.memory import GlobalMemory, Store
from ptxrt.sim._machine.profile import Profile, instrument
from ptxrt.sim._text.declarations import align_up
from ptxrt.sim._text.lexer import Source
from ptxrt.sim._text.parser import parse_module
from ptxrt.sim._text.program import Entry, Param, Program, Variable
from ptxrt.sim._text.specials import Shape

__all__ = ["LaunchReport", "Loaded", "launch", "load", "parse", "unload"]

_CHUNK_LANES = 1 << 15
_CHUNK_BYTES = 256 << 20
_MOST_LOCAL = 512 << 10
_FREED_BYTES = 30 << 20


def parse(text: str, name: str | None = None) -> Program:
    """Parse, check and decode a PTX text.

    Parameters
    ----------
    text
        The PTX.
    name
        What messages call it where no entry is concerned.

    Raises
    ------
    CompileError
        For the first fault, with its line.
    Unsupported
        For an instruction that is right but that the machine does not run.
    """
    source = Source(text, name)
    module = parse_module(source)
    if module.address_size != 64:
        raise CompileError(
            f"the sim runs .address_size 64, not {module.address_size}",
            kernel=name,
            line=1,
            source=text,
        )
    const_bytes = sum(v.size for v in module.variables.values() if v.space == "const")
    entries = {}
    for function in module.functions.values():
        if not (function.is_entry and function.defined):
            continue
        code = decode(module, function)
        shared_bytes = _place_shared(code, module.shared)
        entries[function.name] = Entry(
            name=function.name,
            params=tuple(
                Param(p.name, f".{p.type.name}", p.size, p.align, p.offset)
                for p in function.params
                if isinstance(p, Variable)
            ),
            shared_bytes=shared_bytes,
            local_bytes=code.local_bytes,
            const_bytes=const_bytes,
            registers=function.register_units,
            max_threads=function.max_threads,
            required_block=function.required_block,
            line=function.line,
            code=code,
            cluster=function.cluster,
        )
    return Program(
        source=source,
        version=module.version,
        target=module.target,
        entries=entries,
        variables=module.variables,
        functions={name: module.function_address(name) for name in module.functions},
        address_size=module.address_size,
    )


def _place_shared(code: Code, declared: list[Variable]) -> int:
    """Place the shared variables that an entry's code names, in the order of the text; return the static bytes.

    Code that goes to shared memory by numbers alone has all of the text's: it must mean one of them.
    """
    if code.shared_accessed and not code.shared_places:
        code.shared_places = dict.fromkeys(declared, 0)
    static, alignment = 0, 16
    for variable in declared:
        if variable not in code.shared_places:
            continue
        if variable.size:
            code.shared_places[variable] = align_up(static, variable.align)
            static = code.shared_places[variable] + variable.size
        else:
            alignment = max(alignment, variable.align)
    code.dynamic_offset = align_up(static, alignment)
    for variable in code.shared_places:
        if not variable.size:
            code.shared_places[variable] = code.dynamic_offset
    return static


@dataclass(eq=False)
class Loaded:
    """A program in one memory: its module-scope .global and .const variables have addresses.

    Attributes
    ----------
    program, memory
        What is loaded where.
    addresses
        Address of each variable.
    """

    program: Program
    memory: GlobalMemory
    addresses: dict[Variable, int] = field(default_factory=dict)

    def address_of(self, name: str) -> tuple[int, int]:
        """Return address and size of a module-scope .global or .const variable.

        Raises
        ------
        InvalidArgument
            If there is none of that name.
        """
        variable = self.program.variables.get(name)
        if variable is None or variable not in self.addresses:
            raise InvalidArgument(op="load", argument=name, expected="a .global or .const variable", given="none")
        return self.addresses[variable], variable.size


def load(program: Program, memory: GlobalMemory) -> Loaded:
    """Give a program's .global and .const variables a place in `memory`, with their first values.

    Raises
    ------
    OutOfDeviceMemory
        Where they do not fit; nothing stays allocated.
    CompileError
        For an initial value that names an unknown variable.
    """
    loaded = Loaded(program, memory)
    try:
        for variable in program.variables.values():
            if variable.space in ("global", "const"):
                label = f".{variable.space} {variable.name}"
                address = memory.allocate(variable.size, label, is_const=variable.space == "const")
                loaded.addresses[variable] = address
                data = np.zeros(variable.size, np.uint8)
                data[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
                memory.view(address, variable.size, writable=True)[:] = data
        for variable, address in loaded.addresses.items():
            for place, name, addend in variable.pointers:
                target = program.variables.get(name)
                start = program.functions.get(name) if target is None else loaded.addresses.get(target)
                if start is None:
                    raise CompileError(
                        f"line {variable.line}: unknown variable {name} in the initial value of {variable.name}",
                        line=variable.line,
                        source=program.source.text,
                    )
                width = variable.type.size
                value = (start + addend) & ((1 << 8 * width) - 1)
                memory.view(address + place, width, writable=True)[:] = np.frombuffer(
                    value.to_bytes(width, "little"), np.uint8
                )
    except PtxrtError:
        unload(loaded)
        raise
    return loaded


def unload(loaded: Loaded) -> None:
    """Release the variables; the program can be loaded again."""
    for address in loaded.addresses.values():
        loaded.memory.free(address)
    loaded.addresses.clear()


@dataclass(frozen=True)
class LaunchReport:
    """What a launch did: instructions issued (each for a group of lanes), and those times their lanes."""

    instructions: int
    lane_instructions: int
    threads: int
    chunks: int


def launch(
    loaded: Loaded,
    entry: str,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    params: bytes,
    *,
    shared_bytes: int = 0,
    budget: int | None = None,
    races: bool = True,
    checks: Iterable[str] | None = None,
    profile: Profile | None = None,
) -> LaunchReport:
    """Run a grid to its end.

    Parameters
    ----------
    loaded
        What `load` gave.
    entry
        Name of the kernel.
    grid, block
        Sizes along x, y, z; the limits of a device are the caller's to check.
    params
        The packed parameters, by the offsets of ``Entry.params``.
    shared_bytes
        Dynamic shared memory.
    budget
        Instructions that a chunk of blocks may issue; None for PTXRT_SIM_BUDGET, or some ten seconds' worth.
    races
        Look for data races in shared memory; without it a kernel that lives in shared memory takes some 30% less time.
    checks
        Names of further checks to make: ``uninitialised`` (reads of bytes of global or shared memory that nobody has
        written; what a launch without this check wrote to counts as written throughout), ``global-races`` (data races
        in global memory within the launch), ``shuffles`` (shfl from a lane that takes no part), or ``all``. None for
        those that PTXRT_SIM_CHECKS names, separated by commas.
    profile
        Where to count what each line does; a fault leaves the counts up to it.

    Raises
    ------
    InvalidArgument
        For an unknown entry or check, or parameters of the wrong length.
    MemoryFault, Deadlock, DataRace
        For what the kernel does wrong. The memory can be used afterwards.
    SimFault
        For a shuffle from a lane that takes no part, if that is checked.
    LaunchError
        For the instruction trap, or a grid that is no multiple of the kernel's cluster.
    """
    program = loaded.program
    found = program.entries.get(entry)
    if found is None:
        raise InvalidArgument(
            op="launch",
            argument="entry",
            expected=f"one of {', '.join(program.entries) or 'no entry at all'}",
            given=entry,
        )
    if len(params) != found.params_bytes:
        raise InvalidArgument(
            op=entry, argument="params", expected=f"{found.params_bytes} bytes", given=f"{len(params)} bytes"
        )
    total = found.code.dynamic_offset + shared_bytes if shared_bytes else found.shared_bytes
    shape = Shape(grid, block, found.shared_bytes, total, found.cluster or (1, 1, 1), found.cluster is not None)
    if any(size % part for size, part in zip(grid, shape.cluster, strict=True)):
        raise LaunchError(op=entry, argument="grid", expected=f"a multiple of the cluster {found.cluster}", given=grid)
    if found.code.local_bytes > _MOST_LOCAL:
        raise LaunchError(
            op=entry,
            argument="local memory",
            expected=f"at most {_MOST_LOCAL} bytes a thread",
            given=found.code.local_bytes,
        )
    names = chosen(checks)
    watcher = None
    if "global-races" in names and found.code.global_word and shape.threads * shape.blocks > 1:
        watcher = GlobalRaces(shape, found.code.global_word)
    if budget is None and os.environ.get("PTXRT_SIM_BUDGET"):
        budget = _budget(os.environ["PTXRT_SIM_BUDGET"])
    store = Store(np.frombuffer(params, np.uint8))
    code = found.code if profile is None else instrument(found.code, profile)
    job = Job(program, code, shape, loaded.memory, loaded.addresses, store, budget, races, names, watcher, profile)
    instructions = lane_instructions = chunks = 0
    step = _blocks_at_once(found.code, shape)
    # glibc gives freed memory back to the system from a threshold on that follows the largest piece ever freed; without
    # this one (never touched) each instruction's result would be paged in anew, at three times the cost.
    np.empty(_FREED_BYTES, np.uint8)
    with np.errstate(all="ignore"):
        for first in range(0, shape.blocks, step):
            lanes = Lanes(job, first, min(step, shape.blocks - first))
            lanes.run()
            instructions += lanes.spent
            lane_instructions += lanes.lane_instructions
            chunks += 1
    return LaunchReport(instructions, lane_instructions, shape.blocks * shape.threads, chunks)


def _budget(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text)):
        raise InvalidArgument(
            op="PTXRT_SIM_BUDGET",
            argument="environment",
            expected="a number of instructions, 1 or more",
            given=repr(text),
        )
    return int(text)


def _blocks_at_once(code: Code, shape: Shape) -> int:
    """Return how many blocks a chunk has: enough lanes to make NumPy's overhead small, few enough for the caches."""
    lane = code.lane_bytes + code.local_bytes + 64
    # The race model holds six numbers for each granule of shared memory, 36 bytes in all, and a mark for each byte.
    shared = shape.shared_total * (2 + 36 // code.shared_word) if code.shared_word else shape.shared_total
    bytes_each = lane * shape.warps * 32 + shared
    blocks = min(_CHUNK_LANES // max(shape.threads, 1), _CHUNK_BYTES // max(bytes_each, 1))
    # The blocks of a cluster run together.
    return max(1, blocks // shape.cluster_blocks) * shape.cluster_blocks
