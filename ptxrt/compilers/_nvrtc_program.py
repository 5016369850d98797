"""One program of NVRTC: created, compiled, read out and destroyed."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Outcome", "compile_program"]

# A line of the front end's listing: `L 1 "folder/mine.h" 1` where it enters an included file. Each line of text that it
# lists has a letter in front, so no text can look like one.
_ENTERED = re.compile(rb'^L \d+ "(.+)" 1$', re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    """What a compile gave.

    Attributes
    ----------
    fault
        NVRTC's word for what went wrong, None where nothing did.
    log, ptx, cubin
        Empty where there is none. There may be PTX although the compile failed.
    symbols
        What each name expression is called in the binary, None where it was not found.
    opened
        The header files, by the paths that they were opened by; None where NVRTC did not say.
    """

    fault: str | None
    log: str = ""
    ptx: bytes = b""
    cubin: bytes = b""
    symbols: tuple[str | None, ...] = ()
    opened: tuple[str, ...] | None = ()


def compile_program(
    library: Any,
    text: str,
    name: str,
    options: Sequence[str],
    *,
    headers: Mapping[str, str],
    expressions: Sequence[str] = (),
    list_files: bool = False,
) -> Outcome:
    """Compile a text.

    Parameters
    ----------
    library
        ``cuda.bindings.nvrtc``.
    text, name
        The program's, and how messages call it.
    options
        All of them.
    headers
        Texts that stand for header files, by name.
    expressions
        Names of kernels, as C++ spells them.
    list_files
        Whether to ask which files are opened.
    """
    names, bodies = [[part.encode() for part in parts] for parts in (headers.keys(), headers.values())]
    status, program = library.nvrtcCreateProgram(text.encode(), name.encode(), len(names), bodies, names)
    if int(status):
        return Outcome(_words(library, status))
    try:
        for expression in expressions:
            library.nvrtcAddNameExpression(program, expression.encode())
        with tempfile.TemporaryFile() as listing:
            asked = (f"-Xcudafe=--list=/proc/self/fd/{listing.fileno()}",) if list_files else ()
            flags = [os.fsencode(option) for option in (*options, *asked)]
            (status,) = library.nvrtcCompileProgram(program, len(flags), flags)
            opened = _opened(listing.read(), name, headers) if list_files else ()
        log = _read(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        lowered = [library.nvrtcGetLoweredName(program, expression.encode())[1] for expression in expressions]
        return Outcome(
            fault=_words(library, status) if int(status) else None,
            log=log.decode(errors="replace").strip("\0 \n"),
            ptx=_read(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program).removesuffix(b"\0"),
            cubin=_read(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program),
            symbols=tuple(symbol.decode() if symbol else None for symbol in lowered),
            opened=opened,
        )
    finally:
        library.nvrtcDestroyProgram(program)


def _opened(listing: bytes, name: str, headers: Mapping[str, str]) -> tuple[str, ...] | None:
    if not listing.endswith(b"\n"):
        return None
    paths = dict.fromkeys(map(os.fsdecode, _ENTERED.findall(listing)))
    # Neither what comes from our memory, nor what NVRTC has in its own, nor the text after an option's header.
    return tuple(path for path in paths if path not in headers and path != name and not path.startswith("__nv_"))


def _words(library: Any, status: Any) -> str:
    text = library.nvrtcGetErrorString(status)[1]
    return text.decode() if isinstance(text, bytes) else str(text)


def _read(size: Any, get: Any, program: Any) -> bytes:
    """Return one of a program's outcomes, a text with the NUL at its end; empty where there is none."""
    status, length = size(program)
    # The bindings write into the bytes object itself. Python shares the objects of length 0 and 1 through the whole
    # process, so those are never handed out: length 1 is an empty text's NUL.
    if int(status) or length < 2:
        return b""
    buffer = bytes(length)
    (status,) = get(program, buffer)
    return b"" if int(status) else buffer
