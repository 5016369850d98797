"""The texts of the kernels that come with ptxrt: Jinja templates in ``kernels_ptx/`` and ``kernels_hip/``."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ptxrt.runtime.source import KernelSource

if TYPE_CHECKING:
    import jinja2

__all__ = ["only", "read_kernel", "templates"]


def _folder(name: str) -> Path:
    # In a wheel the kernels lie inside the package, in a checkout beside it.
    package = Path(__file__).resolve().parents[2]
    return package / name if (package / name).is_dir() else package.parent / name


@cache
def read_kernel(family: str, entry: str | None = None, /, language: str = "ptx", **parameters: str) -> KernelSource:
    """Return the source of an op family that comes with ptxrt, ``read_kernel("group_norm")``.

    The file, in PTX or in HIP C++, is a Jinja template whose directives are comments: lines that begin with ``//%``;
    and ``{{ name }}`` stands for one of the `parameters`. docs/kernels.md tells how to write one. Given an `entry`,
    the others of a PTX file are left out: a first call should compile what it launches.
    """
    name = f"{family}.{language}"
    text = templates(f"kernels_{language}").get_template(name).render(parameters)
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
def templates(folder: str = "kernels_ptx") -> jinja2.Environment:
    """Return the templates of a folder."""
    import jinja2  # noqa: PLC0415 (whoever brings texts of their own needs none)

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
