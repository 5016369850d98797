"""KernelSource: a kernel's text, its language and its digest; read from a file, or given."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ptxrt.errors import InvalidArgument, shown

__all__ = ["LANGUAGES", "KernelSource"]


LANGUAGES = {".ptx": "ptx", ".cu": "cuda", ".hip": "hip"}
"""The language of a file's text, by how the file's name ends."""

_CXX_ENTRY = re.compile(r"__global__\b(?:\s*__\w+__\s*\([^()]*\)|[^;{}()])*?\b(?!__)([A-Za-z_]\w*)\s*\(")
_ENTRY = {"ptx": re.compile(r"\.entry\s+([\w$]+)"), "cuda": _CXX_ENTRY, "hip": _CXX_ENTRY}
"""Where an entry seems to be, for people: comments and macros are not seen through."""


@dataclass(frozen=True, repr=False)
class KernelSource:
    """The text of one or more kernels. Build it with :meth:`from_file`, :meth:`ptx`, :meth:`cuda` or :meth:`hip`.

    Attributes
    ----------
    language
        ``"ptx"``, ``"cuda"`` (CUDA C++) or ``"hip"``.
    text
        As written.
    defines
        Preprocessor macros, sorted; empty for PTX.
    name
        For messages; no part of equality and digest. Quoted headers of C++ are looked for in its folder
        first, in the current one if it has none. It is ``__FILE__`` where NVRTC compiles.
    file
        The file that it was read from, with its whole path; None where the text was given. No part of equality either.
    """

    language: str
    text: str
    defines: tuple[tuple[str, str], ...] = ()
    name: str | None = field(default=None, compare=False)
    file: Path | None = field(default=None, compare=False)

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], defines: Mapping[str, str | int | None] | None = None
    ) -> KernelSource:
        """Return what is in a file: PTX in ``.ptx``, CUDA C++ in ``.cu``, HIP in ``.hip``; its name is the path.

        Parameters
        ----------
        path
            The file, in UTF-8.
        defines
            As for :meth:`cuda`; none for PTX.

        Raises
        ------
        InvalidArgument
            For a file of another kind, one that cannot be read, or is not in UTF-8; for defines with PTX.
        """
        try:
            name = os.fspath(path)
            language = LANGUAGES.get(Path(name).suffix)
        except TypeError:
            raise _unreadable("a path", shown(path)) from None
        if language is None:
            fix = "For C++ in a file of another kind: KernelSource.cuda(Path(...).read_text(), name=...), or .hip"
            raise _unreadable(f"a file that ends in {', '.join(LANGUAGES)}", shown(name), fix)
        if language == "ptx" and defines:
            raise InvalidArgument(
                op="KernelSource.from_file", argument="defines", expected="none for PTX", given=shown(defines)
            )
        macros = _macros("from_file", defines)
        try:
            # With the line ends as they are: bytes, for read_text() would translate them.
            text = Path(name).read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            fix = "Save it in UTF-8; if it is no text, compile it first"
            raise _unreadable("a text in UTF-8", f"{shown(name)}, whose byte {error.start} is none", fix) from None
        except (OSError, ValueError) as error:  # ValueError: a NUL or half a character in the path
            reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            raise _unreadable("a file that can be read", f"{shown(name)}: {reason}") from error
        return cls(language, text, macros, _name("from_file", name), Path(name).absolute())

    @classmethod
    def ptx(cls, text: str, *, name: str | None = None) -> KernelSource:
        """Return a source in PTX."""
        return cls("ptx", _text("ptx", text), (), _name("ptx", name))

    @classmethod
    def cuda(
        cls, text: str, defines: Mapping[str, str | int | None] | None = None, *, name: str | None = None
    ) -> KernelSource:
        """Return a source in CUDA C++.

        Parameters
        ----------
        text
            One translation unit. Its entry is found by its plain name, whether ``extern "C"`` or not, or by a C++
            expression such as ``"scale<float, 4>"``.
        defines
            Macros: ``{"N": 4, "FAST": None}`` is ``-DN=4 -DFAST``.
        """
        return cls("cuda", _text("cuda", text), _macros("cuda", defines), _name("cuda", name))

    @classmethod
    def hip(
        cls, text: str, defines: Mapping[str, str | int | None] | None = None, *, name: str | None = None
    ) -> KernelSource:
        """Return a source in HIP C++; see :meth:`cuda`.

        hipRTC compiles it for AMD's devices, NVRTC for NVIDIA's and for sim, where a wave is 32 lanes. No header is
        needed; ``#include <hip/hip_runtime.h>`` may stand there.
        """
        return cls("hip", _text("hip", text), _macros("hip", defines), _name("hip", name))

    def __repr__(self) -> str:
        entries = list(dict.fromkeys(_ENTRY[self.language].findall(self.text)))
        first = next((line.strip() for line in self.text.splitlines() if line.strip()), "")
        what = (
            f"entries {', '.join(entries[:5])}{', ...' if len(entries) > 5 else ''}" if entries else shown(first[:60])
        )
        name = f" {self.name}" if self.name else ""
        lines = f"{self.text.count(chr(10)) + 1} lines"
        return f"<KernelSource {self.language}{name}: {what}, {lines}, digest {self.digest[:12]}>"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of language, text and defines, in hexadecimal."""
        # JSON keeps the parts apart, and takes text that only the compiler's own error should stop.
        return hashlib.sha256(json.dumps([self.language, self.text, self.defines]).encode("ascii")).hexdigest()


def _unreadable(expected: str, given: str, fix: str | None = None) -> InvalidArgument:
    return InvalidArgument(op="KernelSource.from_file", argument="path", expected=expected, given=given, fix=fix)


def _macros(language: str, defines: Mapping[str, str | int | None] | None) -> tuple[tuple[str, str], ...]:
    pairs = {} if defines is None else defines
    wrong = None if isinstance(pairs, Mapping) else shown(pairs)
    for macro, value in () if wrong else pairs.items():
        known = isinstance(value, (str, type(None))) or (isinstance(value, int) and -(2**63) <= value < 2**64)
        if not (isinstance(macro, str) and re.fullmatch(r"[A-Za-z_]\w*", macro, re.ASCII) and known):
            wrong = f"{shown(macro)}: {shown(value)}"
    if wrong:
        raise InvalidArgument(
            op=f"KernelSource.{language}",
            argument="defines",
            expected="identifiers with a string, an integer or None each, the integer one of 64 bits",
            given=wrong,
        )
    # A macro without a value is 1; int() because C++ could not read True.
    values = {macro: "1" if value is None else value for macro, value in pairs.items()}
    flat = sorted((macro, value if isinstance(value, str) else str(int(value))) for macro, value in values.items())
    return tuple(flat)


def _name(language: str, name: str | None) -> str | None:
    if name is not None and (not isinstance(name, str) or re.search("[\0\ud800-\udfff]", name)):
        raise InvalidArgument(
            op=f"KernelSource.{language}",
            argument="name",
            expected="a str without NUL that has a UTF-8, or None",
            given=shown(name),
        )
    return name


def _text(language: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(
            op=f"KernelSource.{language}",
            argument="text",
            expected="the kernel's text, a str",
            given=type(text).__name__,
            fix="KernelSource.from_file(path) reads a file; decode bytes",
        )
    return text
