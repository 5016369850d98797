"""What a compiler hands back, and what is known of the entries in it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from ptxrt.compilers._included import Included
from ptxrt.places import Sources

__all__ = ["Binary", "EntryInfo", "ParamInfo", "Report", "VariableInfo"]


@dataclass(frozen=True)
class ParamInfo:
    """One parameter of an entry.

    Attributes
    ----------
    offset, size
        Bytes, in the entry's parameter block.
    kind
        ``"float"``, ``"int"`` or ``"pointer"`` where the declaration tells (PTX passes an address as an integer),
        ``"bits"`` for an untyped or an aggregate one (``.b32``, ``.b8 x[16]``, a struct), None where nothing is known.
    name
        As the text spells it; for messages only. Empty where there is none.
    type
        The element type in the words of a Signature, ``"f32"``: of a scalar, or of what a pointer points to. Empty
        where it is not known, or is none of those: ``void``, a struct, an enumeration.
    const
        Of a pointer: whether the kernel can only read through it; None where it is not known.
    cxx
        The whole type in the words of the C++ compiler, ``"const float *"``; empty where there is none.
    """

    offset: int
    size: int
    kind: Literal["float", "int", "pointer", "bits"] | None
    name: str = ""
    type: str = ""
    const: bool | None = None
    cxx: str = ""

    def __str__(self) -> str:
        declared = self.cxx
        if self.type and not (self.kind == "pointer" and len(re.findall("[*]|&+", self.cxx)) > 1):
            declared = f"{'const ' if self.const else ''}{self.type}{'*' if self.kind == 'pointer' else ''}"
        return f"{declared}{': ' if declared else ''}{self.kind or 'any'}, {self.size} bytes at {self.offset}"


@dataclass(frozen=True)
class EntryInfo:
    """An entry point and its parameter table; ``params`` is None where the text does not tell."""

    name: str
    params: tuple[ParamInfo, ...] | None


@dataclass(frozen=True)
class VariableInfo:
    """A variable of a module, in global or constant memory.

    Attributes
    ----------
    symbol
        Its name in the binary.
    type
        The element type in the words of a Signature, empty where the text does not tell (``.b8``, an integer in C++).
    shape
        As declared; None where that is not known.
    """

    symbol: str
    type: str = ""
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Report:
    """What the compiler reports an entry to use; a field is None where it does not tell.

    Attributes
    ----------
    registers
        32-bit registers a thread; on AMD the vector registers (VGPRs), accumulation registers included where the
        two share one file (gfx90a, gfx942, gfx950).
    spill_store_bytes, spill_load_bytes
        NVIDIA: bytes of code that spill a register, a thread.
    stack_bytes
        A thread's stack, spills included; AMD's scratch.
    shared_bytes
        What the text declares, a block, without the 1024 bytes that the system takes from sm_90 on; AMD's LDS.
    barriers
        NVIDIA: barriers of a block: one more than the highest number, all 16 where a number is in a register.
    constant_bytes
        NVIDIA: the ``.const`` variables of the whole binary, not the parameters.
    scalar_registers, accumulation_registers
        AMD: 32-bit registers a wave (SGPRs), and those a thread for matrix results (AGPRs).
    spilled_registers, spilled_scalar_registers
        AMD: how many registers of either kind are spilled.
    wave_size
        AMD: lanes a wave, 32 or 64.
    max_threads
        AMD: threads a block that the entry was compiled for.
    kernarg_bytes
        AMD: bytes of the parameter block, the hidden parameters behind the declared ones included.
    """

    registers: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    stack_bytes: int | None = None
    shared_bytes: int | None = None
    barriers: int | None = None
    constant_bytes: int | None = None
    scalar_registers: int | None = None
    accumulation_registers: int | None = None
    spilled_registers: int | None = None
    spilled_scalar_registers: int | None = None
    wave_size: int | None = None
    max_threads: int | None = None
    kernarg_bytes: int | None = None


@dataclass(frozen=True)
class Binary:
    """The outcome of one compile.

    Attributes
    ----------
    code
        The bytes; PTX without a closing NUL.
    kind
        ``"cubin"``, ``"ptx"`` or ``"hsaco"`` (AMD's code object).
    arch
        What it was compiled for, as asked: ``"sm_90"``, ``"gfx90a:sramecc+:xnack-"``.
    compiler
        Name and version: ``"nvJitLink 13.5.37"``, ``"hipRTC 7.2.53211"``.
    options
        As given to the compiler, less what is always the same: architecture, verbosity, the folders of CUDA's headers.
    log
        The compiler's own words, warnings included. Holds times, so it differs from run to run.
    seconds
        Wall clock of the compile.
    entries, reports
        By the entry's name in the binary.
    symbols
        Entry as asked -> name in the binary. Every entry's own name is in it too.
    included
        The files that the outcome depends on.
    sources
        The texts that the lines of the code count in, where it was compiled with these.
    variables
        Those in global and constant memory, by name in the binary.
    ptx
        The PTX that was given or that NVRTC made on the way; None where there was none.
    """

    code: bytes
    kind: Literal["cubin", "ptx", "hsaco"]
    arch: str
    compiler: str
    options: tuple[str, ...]
    log: str
    seconds: float
    entries: dict[str, EntryInfo] = field(default_factory=dict)
    reports: dict[str, Report] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    included: Included = field(default_factory=Included)
    sources: Sources = field(default_factory=Sources, repr=False)
    variables: dict[str, VariableInfo] = field(default_factory=dict)
    ptx: str | None = None
