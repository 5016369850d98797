"""KernelSource: a kernel's text, its language and its digest; and the kernels that come with ptxrt."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

import jinja2

from ptxrt.errors import InvalidArgument

__all__ = ["KernelSource", "read_kernel"]


@dataclass(frozen=True)
class KernelSource:
    """The text of one or more kernels. Build it with :meth:`ptx`, :meth:`cuda` or :meth:`hip`.

    Attributes
    ----------
    language
        ``"ptx"``, ``"cuda"`` (CUDA C++) or ``"hip"``.
    text
        As written.
    defines
        Preprocessor macros, sorted; empty for PTX.
    name
        For messages; it takes no part in equality, nor in the digest.
    """

    language: str
    text: str
    defines: tuple[tuple[str, str], ...] = ()
    name: str | None = field(default=None, compare=False)

    @classmethod
    def ptx(cls, text: str, *, name: str | None = None) -> KernelSource:
        """Return a source in PTX."""
        return cls("ptx", _text("ptx", text), (), name)

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
        return cls("cuda", _text("cuda", text), _macros("cuda", defines), name)

    @classmethod
    def hip(
        cls, text: str, defines: Mapping[str, str | int | None] | None = None, *, name: str | None = None
    ) -> KernelSource:
        """Return a source in HIP C++; see :meth:`cuda`.

        hipRTC compiles it for AMD's devices, NVRTC for NVIDIA's and for sim, where a wave is 32 lanes. No header is
        needed; ``#include <hip/hip_runtime.h>`` may stand there.
        """
        return cls("hip", _text("hip", text), _macros("hip", defines), name)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of language, text and defines, in hexadecimal."""
        # JSON keeps the parts apart, and takes text that only the compiler's own error should stop.
        return hashlib.sha256(json.dumps([self.language, self.text, self.defines]).encode("ascii")).hexdigest()


def _macros(language: str, defines: Mapping[str, str | int | None] | None) -> tuple[tuple[str, str], ...]:
    pairs = {} if defines is None else defines
    wrong = None if isinstance(pairs, Mapping) else repr(pairs)
    for macro, value in () if wrong else pairs.items():
        if not (isinstance(macro, str) and macro.isidentifier() and isinstance(value, (str, int, type(None)))):
            wrong = f"{macro!r}: {value!r}"
    if wrong:
        raise InvalidArgument(
            op=f"KernelSource.{language}",
            argument="defines",
            expected="identifiers with a string, an integer or None each",
            given=wrong,
        )
    # A macro without a value is 1; int() because C++ could not read True.
    values = {macro: "1" if value is None else value for macro, value in pairs.items()}
    flat = sorted((macro, value if isinstance(value, str) else str(int(value))) for macro, value in values.items())
    return tuple(flat)


def _text(language: str, text: str) -> str:
    if not isinstance(text, str):
        raise InvalidArgument(
            op=f"KernelSource.{language}",
            argument="text",
            expected="the kernel's text, a str",
            given=type(text).__name__,
            fix="Read a file with Path.read_text(); decode bytes",
        )
    return text


def _folder(name: str) -> Path:
    # In a wheel the kernels lie inside the package, in a checkout beside it.
    package = Path(__file__).resolve().parent
    return package / name if (package / name).is_dir() else package.parent / name


@cache
def read_kernel(family: str, entry: str | None = None, /, language: str = "ptx", **parameters: str) -> KernelSource:
    """Return the source of an op family that comes with ptxrt, ``read_kernel("group_norm")``.

    The file, in PTX or in HIP C++, is a Jinja template whose directives are comments: lines that begin with ``//%``;
    and ``{{ name }}`` stands for one of the `parameters`. docs/kernels.md tells how to write one. Given an `entry`,
    the others of a PTX file are left out: a first call should compile what it launches.
    """
    name = f"{family}.{language}"
    text = _templates(f"kernels_{language}").get_template(name).render(parameters)
    if language == "hip":
        return KernelSource.hip(text, name=name)
    return KernelSource.ptx(text if entry is None else only(text, entry), name=name)


# An entry, with the comment right above it; it goes to the next one or to the end.
_ENTRY = re.compile(r"^(?://[^\n]*\n)*\.visible \.entry (\w+)\(", re.MULTILINE)


def only(text: str, entry: str) -> str:
    """Return the text without its other entries."""
    entries = list(_ENTRY.finditer(text))
    ends = [found.start() for found in entries[1:]] + [len(text)]
    own = "".join(text[e.start() : end] for e, end in zip(entries, ends, strict=True) if e[1] == entry)
    return text[: entries[0].start()] + own


@cache
def _templates(folder: str = "kernels_ptx") -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(_folder(folder), encoding="ascii"),
        undefined=jinja2.StrictUndefined,
        line_statement_prefix="//%",
        # Not Jinja's own marks, which are PTX: "{%a, %b}" is a vector of registers.
        block_start_string="/*%",
        block_end_string="%*/",
        comment_start_string="/*#",
        comment_end_string="#*/",
        keep_trailing_newline=True,
    )
