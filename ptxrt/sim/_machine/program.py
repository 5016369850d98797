"""A program: what a PTX text is once it is parsed; its entries are decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ptxrt.places import SourcePlace, Sources
from ptxrt.sim._machine.code import Code
from ptxrt.sim._machine.layout import Param
from ptxrt.sim._text.lexer import Source
from ptxrt.sim._text.syntax import Variable

__all__ = ["Entry", "Program"]


@dataclass(eq=False)
class Entry:
    """A kernel. What its head says is known at once; the rest is when its body is decoded, which :meth:`decode` does.

    Attributes
    ----------
    name, params
        The entry and its parameter table.
    const_bytes
        The module's constants.
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
    const_bytes: int
    max_threads: int
    required_block: tuple[int, int, int] | None
    line: int
    cluster: tuple[int, int, int] | None
    _decode: Callable[[], Code] = field(repr=False)
    _code: Code | None = field(default=None, repr=False)

    def decode(self) -> Code:
        """Return what runs: the body read, checked and decoded, which the first call does.

        Raises
        ------
        CompileError
            For the first fault of the body, or of a function that it calls, with its line.
        Unsupported
            For an instruction that is right but that the machine does not run.
        """
        # Threads that ask at the same time decode each for itself: a lock would be held for seconds, over a fork too.
        found = self._code
        if found is None:
            found = self._code = self._decode()
        return found

    @property
    def code(self) -> Code:
        """What :meth:`decode` returns."""
        return self.decode()

    @property
    def shared_bytes(self) -> int:
        """Static shared memory of a block, as far as the code names it."""
        return self.code.shared_bytes

    @property
    def local_bytes(self) -> int:
        """Local memory of a thread."""
        return self.code.local_bytes

    @property
    def registers(self) -> int:
        """Declared virtual registers in 32-bit units: an upper bound of what an assembler would use."""
        return self.code.registers

    @property
    def params_bytes(self) -> int:
        """Length of the packed parameter buffer."""
        return max((p.offset + p.size for p in self.params), default=0)


@dataclass(frozen=True, eq=False)
class Program:
    """A parsed PTX text.

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
