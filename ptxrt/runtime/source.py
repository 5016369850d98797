"""KernelSource: a kernel's text, its language and its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from ptxrt.errors import InvalidArgument

__all__ = ["KernelSource"]


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
