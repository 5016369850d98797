"""A PTX text to a program, and the program into a memory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxrt.errors import CompileError, InvalidArgument, PtxrtError
from ptxrt.places import Sources
from ptxrt.sim._instructions.decode import decode
from ptxrt.sim._machine.code import Code
from ptxrt.sim._machine.layout import Param
from ptxrt.sim._machine.memory import GlobalMemory
from ptxrt.sim._machine.program import Entry, Program
from ptxrt.sim._text.declarations import align_up
from ptxrt.sim._text.lexer import Source
from ptxrt.sim._text.parser import parse_module
from ptxrt.sim._text.syntax import Variable
from ptxrt.symbols import variable_name

__all__ = ["Loaded", "load", "parse", "unload"]


def parse(text: str, name: str | None = None, sources: Sources | None = None) -> Program:
    """Parse, check and decode a PTX text.

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
    try:
        return _parse(source)
    except RecursionError:
        error = CompileError(
            "the caller has left too little of Python's stack to read the text, which may be right",
            kernel=name,
            fix="Load the kernel from a function that is nested less deep, or raise sys.setrecursionlimit",
        )
        error.compiler_lost = True  # so that no cache remembers it
        raise error from None


def _parse(source: Source) -> Program:
    module = parse_module(source)
    if module.address_size != 64:
        raise CompileError(
            f"the sim runs .address_size 64, not {module.address_size}",
            kernel=source.name,
            line=1,
            source=source.text,
        )
    const_bytes = sum(v.size for v in module.variables.values() if v.space == "const")
    entries = {}
    for function in module.functions.values():
        if not (function.is_entry and function.defined):
            continue
        code = decode(module, function)
        code.params = tuple(
            Param(p.name, f".{p.type.name}", p.size, p.align, p.offset)
            for p in function.params
            if isinstance(p, Variable)
        )
        shared_bytes = _place_shared(code, module.shared)
        entries[function.name] = Entry(
            name=function.name,
            params=code.params,
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
                label = f".{variable.space} {variable_name(variable.name)}"
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
