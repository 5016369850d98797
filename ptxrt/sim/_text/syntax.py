"""What a PTX text is made of: registers, variables, instructions, functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from ptxrt.sim._text.types import PtxType

__all__ = [
    "Address",
    "Body",
    "Function",
    "Immediate",
    "Instruction",
    "Label",
    "Name",
    "Negated",
    "Operand",
    "Pair",
    "Part",
    "Pointer",
    "Prototype",
    "Register",
    "Sink",
    "Special",
    "Symbol",
    "Texel",
    "Tuple",
    "Variable",
    "byte_of",
]


@dataclass(frozen=True, eq=False)
class Register:
    """A declared virtual register."""

    name: str
    type: PtxType


class Pointer(NamedTuple):
    """The address of a symbol, plus an addend, at a place in initial data; or one byte of it, 0 the lowest."""

    place: int
    symbol: str
    addend: int
    byte: int | None = None


def byte_of(value: int, byte: int | None) -> int:
    """Return a byte of a value, 0 the lowest; all of the value for none."""
    return value if byte is None else value >> 8 * byte & 0xFF


@dataclass(frozen=True, eq=False)
class Variable:
    """A variable in a state space.

    Attributes
    ----------
    space
        ``global``, ``const``, ``shared``, ``local`` or ``param``.
    size
        Bytes; 0 for an ``.extern .shared`` array of no length.
    offset
        Place in its window: a thread's local memory, or the parameters of an entry; :class:`Layout` places shared ones.
    data
        Initial bytes (global and const).
    pointers
        Where an initial value names another variable.
    """

    name: str
    space: str
    type: PtxType
    size: int
    align: int
    offset: int
    line: int
    data: bytes = b""
    pointers: tuple[Pointer, ...] = ()


@dataclass(frozen=True)
class Special:
    """A special register, such as ``%tid.x``."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A number in the text; `pattern` is (width, bits) where it was written as 0f or 0d."""

    value: int | float
    is_float: bool
    pattern: tuple[int, int] | None = None


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, plus a constant; `indexed` where it stands as ``name[3]``, which may be accessed."""

    variable: Variable
    addend: int
    indexed: bool = False


@dataclass(frozen=True)
class Name:
    """A label or a function, known only at the end of its scope."""

    text: str


@dataclass(frozen=True)
class Address:
    """``[register+offset]``, ``[variable+offset]`` or ``[number]`` (base None)."""

    base: Register | Variable | None
    offset: int


@dataclass(frozen=True)
class Texel:
    """``[handle, {x, y}]``: a place in a texture or a surface; `items` is what stands behind the handle."""

    handle: Register | Variable
    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Sink:
    """The operand ``_``: a result that nobody wants."""


@dataclass(frozen=True)
class Negated:
    """``!p``."""

    operand: Operand


@dataclass(frozen=True)
class Pair:
    """``p|q``: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Part:
    """``r.h1``, ``r.b3210``: bits of a register; or with a minus, ``-r``, ``-r.h1``. Video instructions take them."""

    register: Register
    selector: str
    negated: bool = False


@dataclass(frozen=True)
class Tuple:
    """``{a, b, ...}`` or the ``(a, b)`` of a call."""

    items: tuple[Operand, ...]


Operand = Register | Special | Immediate | Symbol | Name | Address | Texel | Sink | Negated | Pair | Part | Tuple


@dataclass(frozen=True, eq=False)
class Instruction:
    """One instruction as written: ``@guard name.modifiers operands;``."""

    name: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    line: int
    scope: int

    @property
    def opcode(self) -> str:
        """The name with its modifiers."""
        return ".".join((self.name, *self.modifiers))


@dataclass(frozen=True, eq=False)
class Label:
    """A place to branch to."""

    name: str
    line: int
    scope: int


@dataclass(frozen=True)
class Prototype:
    """What ``.callprototype`` says of the functions behind a pointer; ``.calltargets`` names them instead."""

    returns: tuple[Variable | Register, ...] = ()
    params: tuple[Variable | Register, ...] = ()
    targets: tuple[str, ...] | None = None


@dataclass(eq=False)
class Body:
    """What stands between the braces of a function.

    Attributes
    ----------
    items
        The instructions and labels.
    tables, prototypes
        What ``.branchtargets``, ``.callprototype`` and ``.calltargets`` say, by their labels.
    scopes
        From the number of a scope to its parent's, so that a branch finds the label it can see.
    shared, local
        Variables declared here.
    register_units, local_bytes
        Declared registers of 32 bits, and bytes of the local variables.
    """

    items: list[Instruction | Label] = field(default_factory=list)
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict)
    prototypes: dict[str, Prototype] = field(default_factory=dict)
    scopes: dict[int, int] = field(default_factory=dict)
    shared: list[Variable] = field(default_factory=list)
    local: list[Variable] = field(default_factory=list)
    register_units: int = 0
    local_bytes: int = 0


@dataclass(eq=False)
class Function:
    """An ``.entry`` or a ``.func``: its head, and how to read what it does.

    Attributes
    ----------
    text
        Its body, from brace to brace; empty where it is declared only.
    read
        Reads that.
    """

    name: str
    is_entry: bool
    line: int
    params: tuple[Variable | Register, ...] = ()
    returns: tuple[Variable | Register, ...] = ()
    text: str = ""
    read: Callable[[], Body] = Body
    max_threads: int = 1024
    required_block: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] | None = None
    _bodies: list[Body] = field(default_factory=list)

    @property
    def defined(self) -> bool:
        """Whether it has a body."""
        return bool(self.text)

    @property
    def body(self) -> Body:
        """The body, read when first asked for; of threads that read it at the same time all have the first one's."""
        if not self._bodies:
            self._bodies.append(self.read())
        return self._bodies[0]
