"""Names of C++ as people write them: ``tile`` for ``_ZZ3revE4tile``."""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Any

__all__ = ["demangled", "function_name", "plain_name", "variable_name"]

_INTERNAL = re.compile(r"\b_INTERNAL_\w+::|\(anonymous namespace\)::")  # NVRTC's and C++'s for what is static
_HIP_VECTOR = re.compile(r"HIP_vector_type<([\w ]+), (\d)U?>")
_LAMBDA = re.compile(r"\{lambda\([^{}]*\)(#\d+)\}(?:::operator\(\))?")
_OPERATOR = re.compile(r"\boperator(?:\(\)|->\*?|<=>|<<=?|>>=?|[<>]=?| )")
_BRACKETS = re.compile(r"\([^()]*\)")
_HIDE, _SHOW = str.maketrans("()<> ", "\1\2\3\4\5"), str.maketrans("\1\2\3\4\5", "()<> ")


@functools.lru_cache(maxsize=4096)
def function_name(symbol: str) -> str:
    """Return a function's name with its template arguments, and without its result and parameters.

    ``scale<float, 4>`` for ``_Z5scaleIfLi4EEvPT_``; itself where it is none of C++.
    """
    words = demangled(symbol)
    return symbol if words == symbol else _bare(words)


@functools.lru_cache(maxsize=4096)
def variable_name(symbol: str) -> str:
    """Return a variable's name, without the function it stands in; itself where it is none of C++."""
    words = demangled(symbol)
    return symbol if words == symbol else re.split("::(?![^<]*>)", _bare(words))[-1]


def _bare(words: str) -> str:
    """Return demangled words without lists of parameters, and without the type of the result in front."""
    words = _LAMBDA.sub(r"lambda\1", _INTERNAL.sub("", words))
    words, found = _OPERATOR.sub(lambda match: match[0].translate(_HIDE), words), 1
    while found:
        words, found = _BRACKETS.subn("", words)
    words = re.sub(r"( const| volatile|&)*$", "", words)
    depth = start = 0
    for at, character in enumerate(words):
        depth += (character == "<") - (character == ">")
        if character == " " and not depth:
            start = at + 1
    return words[start:].translate(_SHOW)


def demangled(symbol: str) -> str:
    """Return a C++ symbol in words, ``"scale<float>(float*)"``; itself where it is none.

    libstdc++ reads it: CUDA's Python bindings are C++, so that it is there wherever they are. Where it is not, names
    stay as they are.
    """
    functions = _libstdcxx() if symbol.startswith("_Z") else None
    if functions is None:
        return symbol
    library, free = functions
    status = ctypes.c_int()
    words = library.__cxa_demangle(symbol.encode(), None, None, ctypes.byref(status))
    if status.value or not words:
        return symbol
    try:
        return ctypes.string_at(words).decode(errors="replace")
    finally:
        free(words)


@functools.lru_cache(maxsize=1)
def _libstdcxx() -> tuple[Any, Any] | None:
    try:
        library, free = ctypes.CDLL("libstdc++.so.6"), ctypes.CDLL(None).free
    except OSError:
        return None
    # Inside of a class the name would be mangled by Python, here it is not.
    library.__cxa_demangle.restype = ctypes.c_void_p
    free.argtypes = [ctypes.c_void_p]
    return library, free


def plain_name(cxx: str) -> str:
    """Return a type's name without namespace, template arguments and const; ``float4`` for AMD's vector type."""
    if vector := _HIP_VECTOR.search(cxx):
        return vector[1].replace("unsigned ", "u").replace("signed ", "").replace(" ", "") + vector[2]
    return re.split(r"[<(]", re.sub(r".*::(?=\w+(?:<|$))", "", cxx))[0].removeprefix("const ").strip()
