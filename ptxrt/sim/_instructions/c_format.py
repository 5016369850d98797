"""The formats of printf, as CUDA knows them: what of C's is there, and the text that one thread prints."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

__all__ = ["Argument", "FormatError", "arguments", "formatted"]

Argument = int | float | bytes | None

_MOST = 1 << 20  # the bytes that a GPU holds of all that is printed
_DIRECTIVE = re.compile(
    rb"%(?:(?P<percent>%)"
    rb"|[-+ #0]*(?P<width>\*|\d*)(?:\.\d*)?(?P<size>ll|l|h)?(?P<letter>[A-Za-z]))"
)
_SIZES = {"d": ("", "h", "l", "ll"), "f": ("", "l"), "c": ("",), "s": ("",), "p": ("",)}
"""By class of conversion, the sizes that CUDA knows."""
_CLASSES = {**dict.fromkeys("diuoxX", "d"), **dict.fromkeys("fFeEgGaA", "f"), "c": "c", "s": "s", "p": "p"}
_C_TYPES: dict[str, Any] = {
    "d": ctypes.c_int, "dh": ctypes.c_int, "dl": ctypes.c_long, "dll": ctypes.c_longlong,
    "f": ctypes.c_double, "fl": ctypes.c_double, "c": ctypes.c_int, "s": ctypes.c_char_p, "p": ctypes.c_void_p,
}  # fmt: skip
_WIDTH = "d"
_DTYPES = {"d": "<i4", "dh": "<i4", "dl": "<i8", "dll": "<i8", "f": "<f8", "fl": "<f8", "c": "<i4", "p": "<u8"}
_DTYPES["s"] = "<u8"


class FormatError(ValueError):
    """A format that CUDA's printf does not know, or that asks for too much."""


@dataclass(frozen=True)
class _Conversion:
    """One conversion: its text, the kind of its argument, and whether its width is an argument too."""

    text: bytes
    kind: str
    starred: bool


@lru_cache(maxsize=256)
def _parsed(text: bytes) -> tuple[bytes | _Conversion, ...]:
    parts: list[bytes | _Conversion] = []
    at = 0
    while (percent := text.find(b"%", at)) >= 0:
        parts.append(text[at:percent])
        found = _DIRECTIVE.match(text, percent)
        letter = found["letter"].decode() if found and found["letter"] else ""
        kind = _CLASSES.get(letter, "")
        size = (found["size"] or b"").decode() if found else ""
        if found and found["percent"]:
            parts.append(b"%")
        elif not found or not kind or size not in _SIZES[kind]:
            raise FormatError(_unknown(text, percent))
        else:
            parts.append(_Conversion(found[0], kind + size, found["width"] == b"*"))
        at = found.end()
    return (*parts, text[at:])


def _unknown(text: bytes, percent: int) -> str:
    rest = re.match(rb"%[-+ #0']*[\d*$]*(?:\.[\d*]*)?(?:hh|[lhzjtLq]*)[A-Za-z%]?", text[percent:])
    directive = rest[0] if rest else b"%"
    what = f"CUDA's printf does not know {_quoted(directive)}"
    if b".*" in directive:
        return f"{what}: write the precision as a number"
    if directive == b"%":
        return f"{what} at the end of a format: write %% for a percent sign"
    if directive[-1:] in b"diuoxX" and re.search(rb"hh|[zjtLq]", directive):
        return f"{what}: convert the value to int or long long, and write %d, %u, %lld or %llu"
    return f"{what}: it has the conversions d i u o x X f F e E g G a A c s p, with the sizes h l ll of integers"


def _quoted(text: bytes) -> str:
    return repr(text.decode(errors="backslashreplace"))


def arguments(text: bytes) -> list[tuple[str, bool]]:
    """Return the dtype of each argument that a format takes, in memory in this order, and whether it is a string.

    Raises
    ------
    FormatError
        For a format that CUDA's printf does not know.
    """
    found = []
    for part in _parsed(text):
        if isinstance(part, _Conversion):
            found += [(_DTYPES[_WIDTH], False)] * part.starred
            found.append((_DTYPES[part.kind], part.kind == "s"))
    return found


def formatted(text: bytes, values: Sequence[Argument]) -> bytes:
    """Return what one thread prints; `values` has the arguments, strings as bytes, and None for a null one.

    Raises
    ------
    FormatError
        For a format that CUDA's printf does not know, or one line of more than the buffer of a GPU holds.
    """
    remaining = iter(values)
    out = []
    for part in _parsed(text):
        if isinstance(part, bytes):
            out.append(part)
            continue
        width = [cast(int, next(remaining))] if part.starred else []
        if width and abs(width[0]) > _MOST:  # which the host's printf would count, one by one
            raise _too_long(part.text)
        value = next(remaining)
        if part.kind == "s" and value is None:
            value = b"(null)"
        out.append(_converted(part.text, *map(ctypes.c_int, width), _C_TYPES[part.kind](value)))
    return b"".join(out)


_SNPRINTF = ctypes.CDLL(None).snprintf
_SNPRINTF.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p]


def _converted(text: bytes, *values: Any) -> bytes:
    """Return one conversion by the host's own printf, which formats what a GPU prints too."""
    size = 128
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = int(_SNPRINTF(buffer, size, text, *values))
        if not 0 <= length <= _MOST:
            raise _too_long(text)
        if length < size:
            return buffer.raw[:length]
        size = length + 1


def _too_long(text: bytes) -> FormatError:
    return FormatError(f"{_quoted(text)} asks for more than {_MOST} characters")
