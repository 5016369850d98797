"""A PTX text to a program, and the program into a memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from ptxrt.errors import CompileError, InvalidArgument, PtxrtError
from ptxrt.places import Sources
from ptxrt.sim._instructions.decode import decode
from ptxrt.sim._machine.code import Code
from ptxrt.sim._machine.layout import Param
from ptxrt.sim._machine.memory import GlobalMemory
from ptxrt.sim._machine.program import Entry, Program
from ptxrt.sim._text.declarations import Module, align_up
from ptxrt.sim._text.lexer import Source
from ptxrt.sim._text.parser import parse_module
from ptxrt.sim._text.syntax import Function, Variable, byte_of
from ptxrt.symbols import variable_name

__all__ = ["Loaded", "load", "parse", "unload"]

_Read = TypeVar("_Read")


def parse(text: str, name: str | None = None, sources: Sources | None = None) -> Program:
    """Parse a PTX text.

    An entry is checked and decoded when it is asked for its code, so that its siblings do not matter. The only entry of
    a text is at once.

    Parameters
    ----------
    text
        The PTX.
    name
        What messages call it where no entry is concerned.
    sources
        The texts that it was made of, for the lines of faults.

    Raises
    ------
    CompileError
        For the first fault, with its line.
    Unsupported
        For an instruction that is right but that the machine does not run.
    """
    source = Source(text, name, sources)
    program = _with_stack(source, lambda: _parse(source))
    if len(program.entries) == 1:
        for entry in program.entries.values():
            entry.decode()
    return program


def _with_stack(source: Source, read: Callable[[], _Read]) -> _Read:
    try:
        return read()
    except RecursionError:
        error = CompileError(
            "the caller has left too little of Python's stack to read the text, which may be right",
            kernel=source.name,
            fix="Load the kernel from a function that is nested less deep, or raise sys.setrecursionlimit",
        )
        error.compiler_lost = True  # so that no cache remembers it
        raise error from None


def _parse(source: Source) -> Program:
    module = parse_module(source)
    const_bytes = sum(v.size for v in module.variables.values() if v.space == "const")
    return Program(
        source=source,
        version=module.version,
        target=module.target,
        entries={f.name: _entry(module, f, const_bytes) for f in module.functions.values() if f.is_entry and f.defined},
        variables=module.variables,
        functions=module.addresses,
        address_size=module.address_size,
    )


def _entry(module: Module, function: Function, const_bytes: int) -> Entry:
    params = tuple(
        Param(p.name, f".{p.type.name}", p.size, p.align, p.offset) for p in function.params if isinstance(p, Variable)
    )

    def decoded() -> Code:
        code = decode(module, function)
        code.params = params
        _place_shared(code, module.shared)
        return code

    return Entry(
        name=function.name,
        params=params,
        const_bytes=const_bytes,
        max_threads=function.max_threads,
        required_block=function.required_block,
        line=function.line,
        cluster=function.cluster,
        _decode=lambda: _with_stack(module.source, decoded),
    )


def _place_shared(code: Code, module: Iterable[Variable]) -> None:
    """Place the shared variables that an entry's code names, in the order of the text.

    Code that goes to shared memory by numbers alone has all that the module and its functions declare: it must mean one
    of them.
    """
    declared = sorted((*module, *code.shared_declared), key=lambda variable: variable.line)
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
    code.shared_bytes = static


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
                label = f".{variable.space} {variable_name(variable.name)}"
                address = memory.allocate(variable.size, label, is_const=variable.space == "const")
                loaded.addresses[variable] = address
                data = np.zeros(variable.size, np.uint8)
                data[: len(variable.data)] = np.frombuffer(variable.data, np.uint8)
                memory.view(address, variable.size, writable=True)[:] = data
        for variable, address in loaded.addresses.items():
            for place, name, addend, byte in variable.pointers:
                target = program.variables.get(name)
                start = program.functions.get(name) if target is None else loaded.addresses.get(target)
                if start is None:
                    raise CompileError(
                        f"line {variable.line}: unknown variable {name} in the initial value of {variable.name}",
                        line=variable.line,
                        source=program.source.text,
                    )
                width = variable.type.size
                value = byte_of(start + addend, byte) & ((1 << 8 * width) - 1)
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
