"""The texts of the kernels that come with ptxrt: Jinja templates in ``kernels_ptx/`` and ``kernels_hip/``."""

from __future__ import annotations

import hashlib
import math
import os
import re
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxrt import memos
from ptxrt.dtypes import BY_NAME
from ptxrt.runtime.source import KernelSource

if TYPE_CHECKING:
    import jinja2

__all__ = [
    "FOLLOWING_TARGET",
    "ROUNDING_TARGETS",
    "context",
    "following",
    "only",
    "parts_of",
    "read_kernel",
    "templates",
    "text_digest",
]

ROUNDING_TARGETS = {"bf16": 80}
"""Element type -> the number of the oldest architecture that rounds to it, where others are older: sm_80."""

FOLLOWING_TARGET = 90
"""The number of the oldest architecture on which a launch may begin while the one before it ends: sm_90."""


def _folder(name: str) -> Path:
    # In a wheel the kernels lie inside the package, in a checkout beside it.
    package = Path(__file__).resolve().parents[2]
    return package / name if (package / name).is_dir() else package.parent / name


@cache
def read_kernel(
    family: str, entry: str | None = None, /, language: str = "ptx", dtype: str = "f32", **parameters: str
) -> KernelSource:
    """Return the source of an op family that comes with ptxrt, ``read_kernel("group_norm")``.

    The file, in PTX or in HIP C++, is a Jinja template whose directives are comments: lines that begin with ``//%``;
    and ``{{ name }}`` stands for one of the `parameters`, or for what :func:`context` has of the element type.
    docs/kernels.md tells how to write one. Given an `entry`, the others are left out, in HIP but for those that a macro
    makes: a first call should compile what it launches. Files in HIP may look at `entry` to leave out more.
    """
    name = f"{family}.{language}"
    text = _remembered_text(name, entry, language, dtype, parameters)
    return KernelSource.hip(text, name=name) if language == "hip" else KernelSource.ptx(text, name=name)


def _remembered_text(name: str, entry: str | None, language: str, dtype: str, parameters: dict[str, str]) -> str:
    """Return the text as a memo has it, if that was made of the files of today: Jinja is slow to begin with."""
    memo = f"text-{_digest(repr((name, entry, dtype, sorted(parameters.items()))).encode())[:32]}"
    made_of, known = _made_of(name, language), memos.recall(memo)
    if isinstance(known, dict) and known.get("made of") == made_of and isinstance(known.get("text"), str):
        remembered: str = known["text"]
        return remembered
    if language == "ptx":
        text = _whole(name, made_of, dtype, *sorted(parameters.items()))
        text = text if entry is None else only(text, entry)
    else:
        text = templates("kernels_hip").get_template(name).render(context(dtype), entry=entry, **parameters)
        text = text if entry is None else _only_in_hip(text, entry)
    memos.write(memo, {"made of": made_of, "text": text})
    return text


@lru_cache(maxsize=4)
def _whole(name: str, made_of: str, dtype: str, *parameters: tuple[str, str]) -> str:
    """Return a text in PTX with all its entries, often asked for one after the other; `made_of` is for the cache."""
    return templates().get_template(name).render(context(dtype), **dict(parameters))


def _made_of(name: str, language: str) -> str:
    """Return a digest of all that a text is made of besides its parameters: the files, this one, Jinja."""
    folder, here = _folder(f"kernels_{language}"), Path(__file__)
    files = [folder / name, *sorted(folder.glob("*.jinja")), here, here.parents[2] / "dtypes.py"]
    parts = [_digest(file.read_bytes()) if file.is_file() else "" for file in files]
    if (jinja := find_spec("jinja2")) and jinja.origin:
        status = os.stat(jinja.origin)
        parts += [jinja.origin, str(status.st_ino), str(status.st_size), str(status.st_mtime_ns)]
    return _digest("\0".join(parts).encode("utf-8", "surrogateescape"))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def context(dtype: str) -> dict[str, Any]:
    """Return what a template knows of its element type.

    ``T`` is the element type, ``R`` that of registers which hold elements (f32 for f16 and bf16), ``P`` that of
    weights, statistics and real scalars; each has `name`, `size` in bytes, `ptx` and `hip`. ``suffix`` ends the name of
    an entry; ``target`` is the oldest target that can round to the element type.
    """
    element = BY_NAME[dtype]
    real = BY_NAME["f64" if dtype == "f64" else "f32"]
    target = f"sm_{ROUNDING_TARGETS.get(dtype, 70)}"
    return {"T": element, "R": real, "P": real, "suffix": "" if dtype == "f32" else f"_{dtype}", "target": target}


# Lines that are comments, and Jinja's; not directives, which begin as comments do.
_COMMENT = re.compile(r"^[ \t]*//(?!%)[^\n]*\n|/\*#.*?#\*/", re.MULTILINE | re.DOTALL)


@cache
def text_digest(name: str) -> str | None:
    """Return the SHA-256 of a file of kernels, ``"group_norm.ptx"``, and what it includes; None if there is none.

    Of the files without their comments, which no kernel is slower by; and not rendered, which would cost a selection
    far more than reading them.
    """
    folder, found, left = _folder(f"kernels_{name.rpartition('.')[2]}"), hashlib.sha256(), [name]
    if not (folder / name).is_file():
        return None
    for file in left:  # which grows
        content = _without_comments((folder / file).read_text("ascii"))
        found.update(hashlib.sha256(file.encode()).digest() + hashlib.sha256(content.encode()).digest())
        left += [other for other in re.findall(r'"(\w+\.jinja)"', content) if other not in left]
    return found.hexdigest()


@cache  # most files are parts of many
def _without_comments(text: str) -> str:
    return _COMMENT.sub("", text)


# An entry, with the comment right above it; it goes to the next one or to the end.
_ENTRY = re.compile(r"^(?://[^\n]*\n)*\.visible \.entry (\w+)\(", re.MULTILINE)


def only(text: str, entry: str) -> str:
    """Return the text without its other entries."""
    entries = list(_ENTRY.finditer(text))
    ends = [found.start() for found in entries[1:]] + [len(text)]
    own = "".join(text[e.start() : end] for e, end in zip(entries, ends, strict=True) if e[1] == entry)
    return text[: entries[0].start()] + own


def following(source: KernelSource) -> KernelSource:
    """Return a text in PTX whose entries first of all wait until the launch before their own has ended.

    Such a launch may begin while that one ends. The wait comes before everything: nothing is read too early, nothing
    is written that is still read, and whoever waits for the launch has waited for all before it.
    """
    text = re.sub(r"^\.version (?:[1-6]\.\d|7\.[0-7])$", ".version 7.8", source.text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^\.target sm_[78]\d$", f".target sm_{FOLLOWING_TARGET}", text, count=1, flags=re.MULTILINE)
    text = re.sub(r"^(\.visible \.entry [^{]*\{)$", r"\1\n    griddepcontrol.wait;", text, flags=re.MULTILINE)
    return KernelSource.ptx(text, name=source.name)


_KERNEL_IN_HIP = re.compile(r'^extern "C" __global__ ([^{]*)\{(?:[^\n]*\}|.*?\n\})\n', re.MULTILINE | re.DOTALL)


def _only_in_hip(text: str, entry: str) -> str:
    """Return the text without its other kernels."""
    return _KERNEL_IN_HIP.sub(lambda found: found[0] if f" {entry}(" in found[1].replace("\n", " ") else "", text)


@cache
def templates(folder: str = "kernels_ptx") -> jinja2.Environment:
    """Return the templates of a folder."""
    import jinja2  # noqa: PLC0415 (whoever brings texts of their own needs none)

    environment = jinja2.Environment(
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
    environment.globals |= {"number": literal, "numbers": numbers, "inf": math.inf}
    return environment


def literal(value: float, dtype: Any) -> str:
    """Return a number as a PTX constant of f32 or f64, in hexadecimal: ``literal(0.5, f32)`` is ``"0f3F000000"``."""
    kind, word, prefix = (np.float64, np.uint64, "0d") if dtype.name == "f64" else (np.float32, np.uint32, "0f")
    digits = 2 * np.dtype(kind).itemsize
    return f"{prefix}{int(np.array(value, kind).view(word)):0{digits}X}"


def parts_of(dtype: Any) -> int:
    """Return of how many f64 a sum of elements is made: one, or for f64 elements two, a high and a low part."""
    return 2 if dtype.name == "f64" else 1


def numbers(names: str, dtype: Any) -> list[list[str]]:
    """Return each name's registers as pairs.jinja has them, one for each of a number's parts."""
    return [[f"%{name}", f"%{name}_low"][: parts_of(dtype)] for name in names.split()]
