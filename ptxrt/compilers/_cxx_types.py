"""The types of a kernel's parameters in C++, asked of the compiler that reads the text.

The question is a function template that is declared and never defined, with the type of the kernel's address as its
argument: ``ptxrt_type<decltype(+(saxpy))>``. The plus makes an address of a name, and leaves an address alone. NVRTC
mangles the template's name, clang writes it in a warning; either way it is
``ptxrt_type<void (*)(const float *, float *, unsigned int, float)>``, and no instruction is made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from ptxrt.compilers._binary import EntryInfo, ParamInfo

__all__ = ["TEMPLATE", "parameter_types", "parts", "typed"]

TEMPLATE = "ptxrt_type"

_WORDS = {
    "float": "f32", "double": "f64", "__half": "f16", "_Float16": "f16",
    "__nv_bfloat16": "bf16", "__hip_bfloat16": "bf16", "hip_bfloat16": "bf16", "__bf16": "bf16",
    "bool": "bool", "char": "i8", "signed char": "i8", "unsigned char": "u8", "char8_t": "u8",
    "short": "i16", "unsigned short": "u16", "char16_t": "u16",
    "int": "i32", "unsigned int": "u32", "wchar_t": "i32", "char32_t": "u32",
    "long": "i64", "unsigned long": "u64", "long long": "i64", "unsigned long long": "u64",
}  # fmt: skip
_QUALIFIERS = {"const", "volatile", "restrict", "__restrict", "__restrict__"}
_FUNCTION = re.compile(rf"{TEMPLATE}<void \(\*\)\((?P<list>.*)\)(?: noexcept)?>")


def parameter_types(words: str) -> tuple[str, ...] | None:
    """Return the types in ``ptxrt_type<void (*)(...)>`` as the compiler spells them; None where `words` has none."""
    found = _FUNCTION.search(words)
    if found is None:
        return None
    return tuple(part.strip() for part in parts(found["list"])) if found["list"] not in ("", "void") else ()


def typed(entry: EntryInfo, types: tuple[str, ...] | None) -> EntryInfo:
    """Return `entry` with the types of its parameters, where there are as many."""
    if types is None or entry.params is None or len(types) != len(entry.params):
        return entry
    return replace(entry, params=tuple(map(_typed, entry.params, types)))


def _typed(param: ParamInfo, spelled: str) -> ParamInfo:
    spelled = re.sub(r" (?=[*&])", "", spelled)
    # A reference is passed as an address is, and an array's address as that of its first element.
    words = re.sub(r"\(\*\) ?\[[^()]*\Z", "*", re.sub("&+", "*", spelled))
    if re.match(r"[^<]*(?:\(|::)\*", words):  # of a function, or of a member in its class
        return replace(param, kind=None, cxx=spelled)
    tokens = re.findall(r"\*|[^\s*]+", words)
    _unqualify(tokens)
    if tokens[-1] != "*":
        word = _WORDS.get(" ".join(tokens), "")
        # A struct and an enumeration are what the binary says: bytes, and the integer that it passes.
        kind = param.kind if not word else "float" if word.startswith(("f", "bf")) else "int"
        return replace(param, kind=kind, type=word, cxx=spelled)
    const = _unqualify(tokens := tokens[:-1])
    # An address among addresses is a number of 8 bytes.
    word = "u64" if tokens[-1] == "*" else _WORDS.get(" ".join(tokens), "")
    return replace(param, kind="pointer", type=word, const=const, cxx=spelled)


def _unqualify(tokens: list[str]) -> bool:
    """Take the qualifiers of a type itself away, and return whether const was one: in ``float const``, not in ``T*``.

    Behind the last star they are its own, in front only where there is no star.
    """
    own = set()
    while tokens[-1] in _QUALIFIERS:
        own.add(tokens.pop())
    while tokens[-1] != "*" and tokens[0] in _QUALIFIERS:
        own.add(tokens.pop(0))
    return "const" in own


def parts(text: str) -> Iterator[str]:
    """Split a list at its commas, but for those in brackets of any kind."""
    depth = start = 0
    for at, character in enumerate(text):
        if character in "(<[{":
            depth += 1
        elif character in ")>]}":
            depth -= 1
        elif character == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
