"""The line numbers in the PTX that NVRTC makes, and the texts that they count in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ptxrt.compilers.toolkit import current_folder
from ptxrt.places import Sources

__all__ = ["line_option", "written"]

_HAS_LINES = re.compile(r"--?(?:lineinfo|generate-line-info|G|device-debug)")
_FILE = re.compile(rb'^(\s*\.file\s+\d+\s+")((?:[^"\\\n]|\\.)*)(?=")', re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")


def line_option(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return what asks for line numbers beside a caller's own options: nothing where they do so already."""
    return () if any(map(_HAS_LINES.fullmatch, options)) else ("-lineinfo",)


def written(ptx: bytes, program: str, text: str, headers: Iterable[str]) -> tuple[bytes, Sources]:
    """Return the PTX with its files named as they were opened, and the texts of those that are a user's.

    NVRTC puts the current folder before a name. Without it the PTX is the same wherever it is made.

    Parameters
    ----------
    ptx
        What NVRTC has made.
    program, text
        The name that it was given, and the text.
    headers
        The user's headers that were opened, by the paths that they were opened by.
    """
    folder = os.path.join(current_folder() or "/", "")
    texts = {program: text}
    known = {os.path.join(folder, path): path for path in (program, *headers)}

    def named(match: re.Match[bytes]) -> bytes:
        path = os.fsdecode(_ESCAPE.sub(_character, match[2]))
        name = known.get(path, path.removeprefix(folder))
        raw = os.fsencode(name)
        if path in known and name != program:
            texts[raw.decode("utf-8", "backslashreplace")] = _read(name)
        return match[1] + b"".join(map(_escaped, raw))

    return _FILE.sub(named, ptx), Sources(tuple(texts.items()))


def _character(match: re.Match[bytes]) -> bytes:
    return bytes([int(match[1], 8) & 255]) if len(match[1]) == 3 else match[1]


def _escaped(byte: int) -> bytes:
    """Return a byte as LLVM writes it in a string."""
    return b"\\%c" % byte if byte in b'"\\' else b"%c" % byte if 32 <= byte < 127 else b"\\%03o" % byte


def _read(path: str) -> str:
    try:
        return Path(path).read_text("utf-8", errors="replace")
    except OSError:
        return ""  # gone since it was compiled
