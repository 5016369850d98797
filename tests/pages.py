"""The code blocks of a document, run in their order, and compared with what the document shows.

A block's kind is the word behind its fence:

- python runs, in one namespace a document; a text block right behind it is what it prints, or the error that it raises.
- pycon is read as doctest reads it, in the same namespace.
- console is calls of `ptxrt`, each with its output and its exit status in brackets.
- cpp, ptx and python behind a file's name in backticks are written to that file.

In what is shown, a line of three dots stands for any lines. Lines of the PTX are not compared, since compilers differ.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ptxrt.commands.cli import main

_BLOCK = re.compile(
    r"(?:`(\w+\.(?:ptx|cu|cuh|hip|py))`[^`]*?(?=^```(?:ptx|cpp|python)$))?"
    r"^```(\w+)\n(.*?)^```$\n(?:\n```text\n(.*?)^```$)?",
    re.MULTILINE | re.DOTALL,
)
_CALL = re.compile(r"^\$ ptxrt ((?:[^\n]*\\\n)*[^\n]*)\n(.*?)^\[(\d)\]$", re.MULTILINE | re.DOTALL)
_COMPILED = re.compile(r"(?<=PTX line )\d+(: .*)?|(?<=NVRTC )[\d.]+")


class Block(NamedTuple):
    """One code block; `shown` is what the document says that it prints."""

    file: str | None
    kind: str
    text: str
    shown: str | None


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a document."""
    return [Block(file or None, kind, code, shown or None) for file, kind, code, shown in _BLOCK.findall(text)]


def run(block: Block, names: dict[str, Any], page: str) -> None:
    """Run a block, files in the current folder; AssertionError where it does not do what is shown."""
    if block.file is not None:
        Path(block.file).write_text(block.text)
    elif block.kind == "python":
        printed = _printed(block.text, names, page, raises=block.shown is not None)
        if block.shown is not None or printed:
            same(block.shown or "", printed)
    elif block.kind == "pycon":
        test = doctest.DocTestParser().get_doctest(block.text, names, page, None, None)
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        failed = runner.run(test, out=said.append, clear_globs=False).failed
        names.update(test.globs)
        assert not failed, "".join(said)
    elif block.kind == "console":
        for command, shown, status in calls(block.text):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                assert main(shlex.split(command)) == status, out.getvalue()
            same(shown, out.getvalue())


def calls(text: str) -> Iterator[tuple[str, str, int]]:
    """Return the commands of a console block, with what they print and their exit status."""
    found = _CALL.findall(text)
    assert len(found) == text.count("$ "), f"a command without its exit status: {text}"
    return ((command.replace("\\\n", ""), shown, int(status)) for command, shown, status in found)


def same(shown: str, printed: str) -> None:
    """Compare what a document shows with what was printed."""
    shown, printed = _COMPILED.sub("?", shown), _COMPILED.sub("?", printed)
    pattern = "".join(r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in shown.splitlines())
    assert re.fullmatch(pattern, printed if not printed or printed.endswith("\n") else printed + "\n"), (
        f"shown:\n{shown}\nprinted:\n{printed}"
    )


def _printed(text: str, names: dict[str, Any], page: str, raises: bool) -> str:
    """Return what a program prints, and behind it the error that it ends with, where the document shows one."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(text, page, "exec"), names)
        except Exception as error:
            if not raises:
                raise
            print(f"{type(error).__name__}: {error}")
    return out.getvalue()
