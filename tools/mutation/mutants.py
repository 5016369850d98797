"""Mutants of a kernel's text: one line changed in one way, as it stands in the file, before Jinja renders it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType

import jinja2

import ptxrt
from mutation import hip_text, ptx_text
from ptxrt.ops.framework import texts

__all__ = ["Mutant", "families", "files", "mutants", "users"]

ROOT = Path(__file__).resolve().parents[2]
_HIP = "hip/"
_TAKES_IN = re.compile(r'//% (?:include|from) "(\w+\.jinja)"')


@dataclass(frozen=True)
class Mutant:
    """One line of one kernel, changed.

    Attributes
    ----------
    family
        The file, as :func:`families` names it.
    kernel
        The entry, the macro, or the function, as the file names it.
    number
        Of the line, from 1.
    kind
        In what way it is changed.
    before, after
        The line, without the space around it.
    """

    family: str
    kernel: str
    number: int
    kind: str
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What names it in the list of equivalent ones, wherever its line has moved to."""
        return self.family, self.kernel, self.before, self.after

    @property
    def language(self) -> ModuleType:
        """The module that knows its language."""
        return _language(self.family)

    @property
    def name(self) -> str:
        """The file's name without its ending."""
        return self.family.removeprefix(_HIP)

    @property
    def path(self) -> Path:
        """The file, from the top of a checkout."""
        return _path(self.family)

    def applied(self, text: str) -> str:
        """Return the file's text with the line changed."""
        lines = text.split("\n")
        lines[self.number - 1] = lines[self.number - 1].replace(self.before, self.after)
        return "\n".join(lines)

    def compiles(self) -> bool:
        """Whether it is a text of its language still, and another program."""
        changed = jinja2.DictLoader({self.path.name: self.applied((ROOT / self.path).read_text("ascii"))})
        templates = texts.templates(self.language.FOLDER)
        loaders = [changed, *filter(None, [templates.loader])]
        templates = templates.overlay(loader=jinja2.ChoiceLoader(loaders))
        try:
            return bool(self.language.compiles(self.name, templates))
        except (ptxrt.CompileError, jinja2.TemplateError, TypeError):  # TypeError: of an expression of Jinja
            return False

    def facts(self) -> dict[str, str | int]:
        """Return what a record holds of it."""
        return dict(vars(self))


def families() -> list[str]:
    """Return the names of the files that hold kernels, what they include behind them; those in HIP as ``hip/NAME``."""
    found = []
    for prefix, language in (("", ptx_text), (_HIP, hip_text)):
        files = (ROOT / language.FOLDER).glob(f"*{language.SUFFIX}")
        found += [prefix + name for name in (*sorted(path.stem for path in files), *language.INCLUDES)]
    return found


def lines(family: str) -> Iterator[tuple[str, int, str]]:
    """Give each line of code of a file with its kernel and number."""
    found: Iterator[tuple[str, int, str]] = _language(family).lines((ROOT / _path(family)).read_text("ascii"))
    return found


def mutants(family: str, each: int, seed: int) -> list[Mutant]:
    """Return at least `each` mutants of every kernel of a file: one of each kind first, then others, as drawn."""
    language = _language(family)
    by_kernel: dict[str, list[Mutant]] = {}
    for kernel, number, line in lines(family):
        for kind, change in language.KINDS.items():
            by_kernel.setdefault(kernel, []).extend(
                Mutant(family, kernel, number, kind, line, after) for after in change(line) if after != line
            )
    chosen: list[Mutant] = []
    for kernel, all_of_it in by_kernel.items():
        draw = random.Random(f"{family} {kernel} {seed}")
        draw.shuffle(all_of_it)
        first = list({mutant.kind: mutant for mutant in reversed(all_of_it)}.values())
        others = [mutant for mutant in all_of_it if mutant not in first]
        good = (mutant for mutant in first + others if mutant.compiles())
        chosen += sorted(islice(good, max(each, len(first))), key=lambda mutant: mutant.number)
    return chosen


def files(family: str) -> list[Path]:
    """Return a file of kernels and all that it takes in, from the top of a checkout."""
    found = [_path(family)]
    for path in found:
        for name in _TAKES_IN.findall((ROOT / path).read_text("ascii")):
            if path.with_name(name) not in found:
                found.append(path.with_name(name))
    return found


def users(family: str) -> list[str]:
    """Return the names of the ops whose kernels are made of a file: one, or all that take it in."""
    language, path = _language(family), _path(family)
    prefix = _HIP if family.startswith(_HIP) else ""
    ops = [name.removeprefix(prefix) for name in families() if name.startswith(_HIP) == bool(prefix)]
    return [name for name in ops if name not in language.INCLUDES and path in files(prefix + name)]


def _language(family: str) -> ModuleType:
    return hip_text if family.startswith(_HIP) else ptx_text


def _path(family: str) -> Path:
    language, name = _language(family), family.removeprefix(_HIP)
    return Path(language.FOLDER) / (name + (".jinja" if name in language.INCLUDES else language.SUFFIX))
