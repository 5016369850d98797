"""The signature of a kernel in C++, from its own declaration: types from the compiler, names from the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ptxrt.compilers import Binary, ParamInfo
from ptxrt.compilers.declarations import parameter_names
from ptxrt.compilers.ptx_text import require_entry, suggestion
from ptxrt.dtypes import VECTORS
from ptxrt.errors import InvalidArgument, Unsupported, shown
from ptxrt.runtime.signature import Signature, Structs
from ptxrt.runtime.source import KernelSource
from ptxrt.symbols import plain_name

__all__ = ["Lengths", "declared_signature", "untyped_signature"]

Lengths = Mapping[str, "str | int"]
_IN_PTX = {"float": "f", "int": "u", "bits": "u"}


def declared_signature(
    source: KernelSource,
    entry: str,
    binary: Binary,
    lengths: Lengths | None = None,
    structs: Structs | None = None,
    names: dict[str, list[str]] | None = None,
) -> Signature:
    """Return what the text declares an entry's parameters to be.

    Parameters
    ----------
    source, entry, binary
        What was asked for, and what became of it.
    lengths
        By a pointer's name, the least number of elements, as a Signature spells it: ``"n"``, ``"4*n"``, 16.
    structs
        By the name of a struct, without its namespace and template arguments, its NumPy dtype.
    names
        By entry, the names that were read for this binary before; it is added to.

    Raises
    ------
    InvalidArgument
        For PTX, which has no types of what pointers point to; for `lengths` of what is no pointer parameter.
    Unsupported
        For a parameter that no signature can declare without a word from its author.
    """
    symbol = binary.symbols.get(entry, entry)
    require_entry(symbol, binary.entries, source.name, binary.arch, text=source.text)
    params = binary.entries[symbol].params
    if source.language == "ptx":
        raise _needed(entry, params)
    if params is None or not all(p.cxx for p in params):
        raise Unsupported(
            op="load",
            argument="signature",
            expected="a signature",
            given=f"None for {entry}, whose types {binary.compiler} does not tell",
            fix='Write it: "const f32* x, f32* y, u32 n"; or compile for C++11 or later',
        )
    known = {} if names is None else names
    if entry not in known:  # headers may be large
        known[entry] = _all_named(parameter_names(source.text, entry, binary, _headers(binary)))
    named = known[entry]
    spelled = [_spelled(p, structs) for p in params]
    if "" in spelled:
        index = spelled.index("")
        found = params[index]
        guess = ", ".join(f"{word or '...'} {name}" for word, name in zip(spelled, named, strict=True))
        raise Unsupported(
            op="load",
            argument="signature",
            expected="a declaration of element types and their pointers, or a signature",
            given=f"parameter {index} of {entry}, {found.cxx} {named[index]}",
            fix=f'Write the signature: "{guess}"' + (", with structs= for a struct" if "*" not in found.cxx else ""),
        )
    arrays = [name for word, name in zip(spelled, named, strict=True) if word.endswith("*")]
    least = _checked(entry, {} if lengths is None else lengths, arrays)
    parts = [
        f"{word} {name}[{least[name]}]" if name in least else f"{word} {name}"
        for word, name in zip(spelled, named, strict=True)
    ]
    return Signature.parse(", ".join(parts), structs)


def _spelled(param: ParamInfo, structs: Structs | None) -> str:
    """Return a parameter's type in a Signature's words, empty where there are none."""
    name = plain_name(param.cxx)
    if not param.type and param.kind != "pointer" and (name in (structs or ()) or name in VECTORS):
        return name
    if not param.type or param.kind not in ("pointer", "int", "float"):
        return ""
    return f"{'const ' if param.const else ''}{param.type}*" if param.kind == "pointer" else param.type


def untyped_signature(params: Sequence[ParamInfo]) -> str:
    """Return the signature that PTX tells: numbers, addresses among them, and arrays of bytes."""

    def spelled(p: ParamInfo) -> str:
        if p.size in (1, 2, 4, 8) and p.offset % p.size == 0:
            return f"{_IN_PTX.get(p.kind or '', 'u')}{8 * p.size} {p.name}"
        return f"u8 {p.name}[{p.size}]"

    return ", ".join(map(spelled, params))


def _all_named(names: tuple[str, ...]) -> list[str]:
    """Return the names with ``arg0`` for one that is not known, by its place."""
    found: list[str] = []
    for index, name in enumerate(names):
        word = f"arg{index}"
        while word in (*names, *found):
            word += "_"
        found.append(name or word)
    return found


def _checked(entry: str, lengths: Lengths, names: list[str]) -> dict[str, str]:
    if not isinstance(lengths, Mapping):
        raise InvalidArgument(
            op="load", argument="lengths", expected='a mapping such as {"x": "n"}', given=shown(lengths)
        )
    for name, length in lengths.items():
        if name not in names:
            raise InvalidArgument(
                op="load",
                argument="lengths",
                expected=f"names of {entry}'s arrays: {', '.join(names) or 'there is none'}",
                given=shown(name),
                fix=suggestion(str(name), names),
            )
        if not isinstance(length, (str, int)) or isinstance(length, bool) or "," in str(length):
            raise InvalidArgument(
                op="load", argument="lengths", expected=f'{name}: "n", "4*n" or a number', given=shown(length)
            )
    return {name: str(length) for name, length in lengths.items()}


def _headers(binary: Binary) -> list[str]:
    """Return the texts of the headers that a compile has read, as they are now."""
    return [Path(path).read_text(errors="replace") for path in binary.included.files if Path(path).is_file()]


def _needed(entry: str, params: tuple[ParamInfo, ...] | None) -> InvalidArgument:
    begin = untyped_signature(params or ())
    return InvalidArgument(
        op="load",
        argument="signature",
        expected="a signature, since PTX does not tell what a pointer points to",
        given=f"None for {entry}({begin})",
        fix=f'Begin with "{begin}", and write an address as a pointer: "f32* x"' if begin else 'Write ""',
    )
