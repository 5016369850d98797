"""Signature: a kernel's declared parameters. It packs arguments and agrees, or not, with a compiled binary."""

from __future__ import annotations

import ctypes
import inspect
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ptxrt.compilers import ParamInfo
from ptxrt.dtypes import BY_NAME, HANDLES, VECTORS, ElementType, alike, array_type, element_type, struct_type
from ptxrt.errors import InvalidArgument, PtxrtError, SignatureMismatch, shown
from ptxrt.runtime.scalars import scalar_error

__all__ = ["Arguments", "Parameter", "Signature", "Structs"]

_PARAMETER = re.compile(
    r"""\s*(?:alignas\(\s*(?P<align>\d+)\s*\)\s*)?
        (?P<const>const\b\s*)?
        (?P<type>[A-Za-z_]\w*)\s*
        (?P<pointer>\*)?\s*(?P<nullable>\?)?\s*
        (?P<name>[A-Za-z_]\w*)?\s*
        (?:\[(?P<length>[^\]]*)\])?\s*\Z""",
    re.VERBOSE,
)
_NUMBER = re.compile("[0-9]{1,18}")  # more than any memory has bytes, and no work to read
_Classes = frozenset[type]
_PLAIN: _Classes = frozenset(
    {int, float, bool, np.float16, np.float32, np.float64}
    | {np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64}
)
_GRAMMAR = (
    'such as "const f32* x[n], f32* y[n], u32 n, f32 a"; types: '
    + ", ".join((*BY_NAME, *HANDLES))
    + ", an array of them by value (f32 p[6]), the vectors of C++ (float4, dim3), and those of structs="
)

Structs = Mapping[str, Any]
"""Name of a struct in a signature -> structured NumPy dtype."""


@dataclass(frozen=True)
class Parameter:
    """One declared parameter.

    Attributes
    ----------
    name
        For people and messages; it takes no part in the agreement with a binary.
    type
        Of the scalar, the struct or the array by value, or of what the pointer points to.
    pointer
        Whether it is the address of an array.
    const
        The kernel reads through this pointer only.
    nullable
        None may be passed, as a null pointer.
    length
        Factors of the least number of elements: numbers, or names of integer parameters. Empty: not declared.
    align
        Bytes that the address must be a multiple of; the element's own size if not declared. Of a struct, what its
        fields want, or the compiled kernel.
    """

    name: str
    type: ElementType
    pointer: bool = False
    const: bool = False
    nullable: bool = False
    length: tuple[int | str, ...] = ()
    align: int = 1

    @property
    def size(self) -> int:
        """Bytes in the parameter buffer."""
        return 8 if self.pointer else self.type.size

    @property
    def place(self) -> int:
        """What its offset in the parameter buffer is a multiple of: its size; of a struct, `align`."""
        return self.align if self.kind == "struct" else self.size

    @cached_property
    def plain(self) -> _Classes:
        """Classes of scalars that ``struct`` packs or refuses as it should; others are for :func:`check_scalar`."""
        none: _Classes = frozenset()
        return {"bool": frozenset({bool}), "bf16": none, "texture": none, "surface": none}.get(self.type.name, _PLAIN)

    @property
    def kind(self) -> str:
        """``"pointer"``, ``"int"``, ``"float"``, ``"struct"`` or ``"handle"``."""
        return "pointer" if self.pointer else self.type.kind

    def __str__(self) -> str:
        align = f"alignas({self.align}) " if self.pointer and self.align > self.type.size else ""
        star = f"*{'?' if self.nullable else ''}" if self.pointer else ""
        length = f"[{'*'.join(map(str, self.length))}]" if self.length else ""
        kind, bracket, by_value = self.type.name.partition("[")
        return f"{align}{'const ' if self.const else ''}{kind}{star} {self.name}{length}{bracket}{by_value}"


class Arguments:
    """A parameter buffer with its table of addresses, as ``cuLaunchKernel`` wants them; used by one launch at a time.

    Attributes
    ----------
    raw
        The values at their natural offsets, then the table.
    size
        Bytes of the values.
    table
        Address of the ``void*[]`` that points at each value.
    budget
        Most instructions of the launch, where the device counts them.
    kernel
        What they are for: of a :class:`ptxrt.runtime.kernel.Kernel` its ``identity``.
    follows
        Whether the kernel waits by itself for the launch before its own, and may begin while that one ends.
    """

    __slots__ = ("budget", "follows", "kernel", "raw", "size", "table")

    def __init__(self, offsets: Sequence[int], size: int, kernel: Any = None) -> None:
        self.kernel = kernel
        self.follows = False
        start = -(-size // 8) * 8
        self.raw = ctypes.create_string_buffer(start + 8 * max(1, len(offsets)))
        self.size = size
        self.budget: int | None = None
        base = ctypes.addressof(self.raw)
        self.table = base + start
        struct.pack_into(f"{len(offsets)}Q", self.raw, start, *(base + offset for offset in offsets))

    def bytes(self) -> bytes:
        """Return the packed values."""
        return self.raw.raw[: self.size]

    def copy(self) -> Arguments:
        """Return the same values in a buffer of their own, for a launch that comes later."""
        base = ctypes.addressof(self.raw)
        start = self.table - base
        count = (len(self.raw) - start) // 8 if self.size else 0
        offsets = [address - base for address in struct.unpack_from(f"{count}Q", self.raw, start)]
        new = Arguments(offsets, self.size, self.kernel)
        ctypes.memmove(new.raw, self.raw, self.size)
        new.budget, new.follows = self.budget, self.follows
        return new


@dataclass(frozen=True)
class Signature:
    """The parameters of a kernel, in order.

    Build it with :meth:`parse` or :meth:`from_function`. Equal signatures compare and hash equal.
    """

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        for p in self.parameters:
            if self.names.count(p.name) > 1:
                raise _malformed(str(self), f"the name {p.name!r} twice")
            for factor in p.length:
                of = next((q for q in self.parameters if q.name == factor), None)
                if isinstance(factor, str) and (of is None or of.pointer or of.type.kind != "int"):
                    raise _malformed(str(self), f"length {factor!r} of {p.name!r}, which is no integer parameter")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters' names."""
        return tuple(p.name for p in self.parameters)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Offset of each parameter in the parameter buffer, in bytes."""
        offsets, end = [], 0
        for p in self.parameters:
            offsets.append(-(-end // p.place) * p.place)
            end = offsets[-1] + p.size
        return tuple(offsets)

    @cached_property
    def pack_into(self) -> Callable[..., None]:
        """``pack_into(buffer, 0, *values)``: pointers as integers, scalars range-checked by ``struct``."""
        return self.packing(len(self.parameters))

    def packing(self, count: int) -> Callable[..., None]:
        """Return what :attr:`pack_into` is for the first `count` parameters; it leaves the rest of the buffer alone."""
        # The standard layout '<' with its gaps written out: the native one would lay out by itself, but turns a
        # float that is too large into an infinity without a word.
        codes, end = "<", 0
        for p, offset in zip(self.parameters[:count], self.offsets, strict=False):
            codes += "x" * (offset - end) + ("Q" if p.pointer else p.type.pack or "H")
            end = offset + p.size
        return struct.Struct(codes).pack_into

    @classmethod
    def parse(cls, text: str, structs: Structs | None = None) -> Signature:
        """Read a signature such as ``"const f32* x, f32* y, u32 n, f32 a"``.

        A pointer may declare a length, ``f32* y[n]`` or ``const f32* w[4*n]`` (then the array must be contiguous and
        hold at least that many elements), an alignment, ``alignas(16) f32* y``, and that None is allowed,
        ``const f32*? w``. An array by value is ``f32 p[6]``; the vectors of C++ go by their names, ``float4 v``.

        Parameters
        ----------
        text
            The parameters.
        structs
            Structs that are passed by value: name -> structured NumPy dtype, ``{"Params": np.dtype(...)}`` for
            ``"f32* x, Params p"``. A name that C++ has for a vector means the struct then.

        Raises
        ------
        InvalidArgument
            If the text is none.
        DTypeMismatch
            For a dtype that is no struct of element types.
        """
        known = _struct_types(structs)
        if not isinstance(text, str):
            raise InvalidArgument(op="Signature.parse", argument="text", expected="a string", given=shown(text))
        if not text.strip():
            return cls(())
        return cls(tuple(_parameter(part, index, text, known) for index, part in enumerate(text.split(","))))

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> Signature:
        """Read the annotations of a Python function, which is never called.

        Each is a string in the language of :meth:`parse` without the name (``x: "const f32*[n]"``), or, for a scalar,
        a NumPy type (``n: np.uint32``); for a struct by value, its structured dtype.

        Raises
        ------
        InvalidArgument
            If an annotation is missing or not understood.
        """
        op = "Signature.from_function"
        try:
            declared = inspect.signature(function)
        except (TypeError, ValueError):
            raise InvalidArgument(
                op=op, argument="function", expected="a Python function", given=shown(function)
            ) from None
        parameters = []
        for index, (name, value) in enumerate(declared.parameters.items()):
            note = value.annotation
            if note is value.empty or value.kind in (value.VAR_POSITIONAL, value.VAR_KEYWORD):
                given = (
                    f"no annotation for {name!r}" if note is value.empty else f"'{value}', which is not one parameter"
                )
                raise _malformed(str(declared), given)
            if isinstance(note, str):
                note = _annotation(note, function)
            known = {}
            if getattr(note, "names", None):
                note, known = "struct", {"struct": struct_type("struct", note, op=op)}
            elif not isinstance(note, str):
                note = element_type(note, op=op, argument=name).name
            parameters.append(replace(_parameter(note, index, note, known), name=name))
        return cls(tuple(parameters))

    def __str__(self) -> str:
        return ", ".join(map(str, self.parameters))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Signature, (self.parameters,))  # without what is cached: a Struct does not pickle

    def placed(self, table: Sequence[ParamInfo]) -> Signature:
        """Return the signature with each struct where a binary has it, if an alignment could be the reason.

        A struct in C++ may be aligned more than its fields want (``float4``), or less (a packed one).
        """
        if all(p.kind != "struct" for p in self.parameters):
            return self
        parameters, end = list(self.parameters), 0
        for index, (p, found) in enumerate(zip(self.parameters, table, strict=False)):
            if p.kind == "struct":
                aligns = [p.align, *(1 << power for power in range(12))]
                align = next((a for a in aligns if -(-end // a) * a == found.offset), p.align)
                parameters[index] = replace(p, align=align)
            end = found.offset + found.size
        return Signature(tuple(parameters))

    def arguments(self, kernel: Any = None) -> Arguments:
        """Return a new parameter buffer for this signature, which `kernel` will be launched with."""
        size = self.offsets[-1] + self.parameters[-1].size if self.parameters else 0
        return Arguments(self.offsets, size, kernel)

    def explain(self, values: Sequence[Any], op: str) -> PtxrtError:
        """Return the error for the first scalar among `values` that does not pack."""
        for p, value in zip(self.parameters, values, strict=True):
            if p.pointer:
                continue
            try:
                if p.type.pack is not None:
                    struct.pack(f"<{p.type.pack}", value)
            except (struct.error, OverflowError, TypeError, ValueError):
                return scalar_error(p, value, op)
        return InvalidArgument(op=op, argument="arguments", expected=str(self), given=shown(tuple(values)))

    def describe(self, index: int) -> str:
        """Return a parameter as tables have it: as declared, with class, size and place."""
        p = self.parameters[index]
        return f"{p}: {p.kind}, {p.size} bytes at {self.offsets[index]}"

    def agrees(self, index: int, found: ParamInfo) -> bool:
        """Return whether a binary's parameter is the declared one of `index`, as far as the binary and its text tell.

        Place and size are the same. So is the class: PTX passes an address as an integer of 8 bytes, C++ tells a
        pointer from one. Where the element type is known, floats have the same one, integers (bool among them) the same
        size: signs are not compared. A kernel that may write through a pointer must not be declared to read only.
        """
        p = self.parameters[index]
        if (p.size, self.offsets[index]) != (found.size, found.offset):
            return False
        if found.kind in (None, "bits"):
            return True
        if p.kind == "handle":
            return found.kind == "int"
        if p.pointer and found.kind == "int":
            return not found.type  # PTX
        same = not found.type or alike(p.type, BY_NAME[found.type])
        return found.kind == p.kind and same and not (p.const and found.const is False)

    def agree(self, entry: str, table: Sequence[ParamInfo]) -> None:
        """Compare with a binary's own parameter table: count, order, size and, where it tells, class.

        Raises
        ------
        SignatureMismatch
            With both tables side by side.
        """
        rows, wrong = [], len(self.parameters) != len(table)
        for index in range(max(len(self.parameters), len(table))):
            mine, theirs, mark = "(none)", "(none)", "!"
            if index < len(self.parameters):
                mine = self.describe(index)
            if index < len(table):
                t = table[index]
                theirs = str(t)
            if index < min(len(self.parameters), len(table)):
                mark = " " if self.agrees(index, t) else "!"
            wrong |= mark == "!"
            rows.append((mark, mine, theirs))
        if not wrong:
            return
        width = max(len("declared"), *(len(mine) for _, mine, _ in rows))
        lines = [f"       {'declared':{width}}   compiled kernel"]
        lines += [f"  {mark} {i:2d} {mine:{width}}   {theirs}" for i, (mark, mine, theirs) in enumerate(rows)]
        raise SignatureMismatch(
            f"{entry}: the declared signature disagrees with the compiled kernel's own parameter table\n"
            + "\n".join(lines)
            + "\nDeclare the parameters as the kernel's text has them, in order and width",
            op="load",
            argument=entry,
            expected="; ".join(theirs for *_, theirs in rows),
            given=str(self),
        )


def _struct_types(structs: Structs | None) -> dict[str, ElementType]:
    op = "Signature.parse"
    if structs is not None and not isinstance(structs, Mapping):
        raise InvalidArgument(
            op=op, argument="structs", expected='a mapping such as {"Params": dtype}', given=shown(structs)
        )
    for name in structs or ():
        if not isinstance(name, str) or not name.isidentifier() or name in (*BY_NAME, *HANDLES, "const", "alignas"):
            raise InvalidArgument(op=op, argument="structs", expected="a name of no other type", given=shown(name))
    return {name: struct_type(name, dtype, op=op) for name, dtype in (structs or {}).items()}


def _parameter(part: str, index: int, whole: str, structs: Mapping[str, ElementType]) -> Parameter:
    match = _PARAMETER.match(part)
    if match is None:
        raise _malformed(whole, shown(part.strip()))
    found = match.groupdict()
    name, pointer = found["type"], bool(found["pointer"])
    kind = BY_NAME.get(name) or HANDLES.get(name) or structs.get(name) or VECTORS.get(name)
    if kind is None:
        raise _malformed(whole, f"the type {shown(found['type'])}")
    if kind.kind in ("struct", "handle") and pointer:
        raise _malformed(
            whole, f"{shown(part.strip())}: a {kind.kind} is passed by value; an array has an element type"
        )
    if found["align"] and not _NUMBER.fullmatch(found["align"]):
        raise _malformed(whole, f"an alignment of {shown(found['align'])}")
    align = int(found["align"] or 1)
    if not pointer and (found["const"] or found["nullable"] or found["align"]):
        raise _malformed(whole, f"{shown(part.strip())}: const, alignas and '?' belong to pointers")
    if not pointer and found["length"] is not None:
        kind, found["length"] = _array(kind, found["length"], part, whole), None
    if align < 1 or align & (align - 1):
        raise _malformed(whole, f"an alignment of {align}, which is no power of two")
    factors = [] if found["length"] is None else [factor.strip() for factor in found["length"].split("*")]
    if not all(_NUMBER.fullmatch(factor) or re.fullmatch(r"[A-Za-z_]\w*", factor) for factor in factors):
        raise _malformed(whole, f"the length {shown(found['length'])}")
    return Parameter(
        name=found["name"] or f"arg{index}",
        type=kind,
        pointer=pointer,
        const=bool(found["const"]),
        nullable=bool(found["nullable"]),
        length=tuple(int(factor) if _NUMBER.fullmatch(factor) else factor for factor in factors),
        align=max(align, kind.alignment),
    )


def _array(element: ElementType, length: str, part: str, whole: str) -> ElementType:
    """Return the type of an array by value; a kernel's parameters have at most 32764 bytes."""
    length = length.strip()
    if element.kind in ("struct", "handle") or not re.fullmatch("[1-9][0-9]{0,4}", length):
        raise _malformed(whole, f"{shown(part.strip())}: an array by value is of element types, its length a number")
    return array_type(element, int(length))


def _annotation(note: str, function: Callable[..., Any]) -> Any:
    """Undo `from __future__ import annotations`: a text arrives quoted once more, a NumPy type as its name."""
    note = note.strip().strip("'\"")
    first, *rest = note.split(".")
    found = getattr(inspect.unwrap(function), "__globals__", {}).get(first)
    if note in BY_NAME or note in HANDLES or found is None:
        return note
    for name in rest:
        found = getattr(found, name, None)
    return note if found is None else found


def _malformed(text: str, given: str) -> InvalidArgument:
    return InvalidArgument(op="Signature", argument=shown(text), expected=_GRAMMAR, given=given)
