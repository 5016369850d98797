"""A program: what a PTX text is once it is parsed, checked and decoded."""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxrt.places import SourcePlace, Sources
from ptxrt.sim._machine.code import Code
from ptxrt.sim._machine.layout import Param
from ptxrt.sim._text.lexer import Source
from ptxrt.sim._text.syntax import Variable

__all__ = ["Entry", "Program"]


@dataclass(frozen=True, eq=False)
class Entry:
    """A kernel.

    Attributes
    ----------
    name, params
        The entry and its parameter table.
    shared_bytes, local_bytes, const_bytes
        Static memory: a block's shared as far as the code names it, a thread's local, the module's constants.
    registers
        Declared virtual registers in 32-bit units: an upper bound of what an assembler would use.
    max_threads
        Product of ``.maxntid``, or 1024.
    required_block
        ``.reqntid``, or None.
    line
        Where it is declared, from 1.
    cluster
        Blocks of a cluster along x, y, z as ``.reqnctapercluster`` says, or None.
    """

    name: str
    params: tuple[Param, ...]
    shared_bytes: int
    local_bytes: int
    const_bytes: int
    registers: int
    max_threads: int
    required_block: tuple[int, int, int] | None
    line: int
    code: Code = field(repr=False)
    cluster: tuple[int, int, int] | None = None

    @property
    def params_bytes(self) -> int:
        """Length of the packed parameter buffer."""
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass(frozen=True, eq=False)
class Program:
    """A parsed, checked and decoded PTX text.

    Attributes
    ----------
    version
        ``.version`` as (major, minor).
    target
        ``.target`` as written: ``"sm_90a"``.
    entries
        The kernels by name.
    variables
        Module-scope variables of every space, by name.
    """

    source: Source
    version: tuple[int, int]
    target: str
    entries: dict[str, Entry]
    variables: dict[str, Variable]
    functions: dict[str, int] = field(default_factory=dict)
    """Addresses of the functions."""
    address_size: int = 64

    @property
    def sources(self) -> Sources:
        """The texts that the PTX was made of, as far as `ptxrt.sim.parse` was given them."""
        return self.source.places.sources

    def place(self, line: int) -> SourcePlace | None:
        """Return what somebody wrote that an instruction in `line` of the PTX (from 1) was made of.

        It follows ``.loc`` and ``.file``, and is None where the text does not tell.
        """
        return self.source.place(line)
