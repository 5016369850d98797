"""The files that a compile of C++ has read, or looked for in vain: whether they still hold what they held.

The compiler says what it has opened. What it looked for follows from the names in the texts and from the folders that
it searches; too many of them do no harm, for a change of one only makes the next load compile once more.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Included", "may_include", "watched", "within"]

_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")
_DIRECTIVE = re.compile(r"^.*(?:#|%:|\?\?=|__has_).*$", re.MULTILINE)
_ASKING = re.compile(r"^.*#.*has_.*$", re.MULTILINE | re.IGNORECASE)
_NAME = re.compile(r'"([^"\n]+)"|<([^<>\n]+)>')
_DEFINED = re.compile(r"\b(?:defined\s*\(?|ifn?def|undef)\s*\w+")
_MACRO = re.compile(r"\bdefine\s+(\w+)\(([^()]*)\)(.*)")
_EMBED = re.compile(r"(?:#|%:|\?\?=)\s*embed\b(?!\s*[\"<])")
_IN_ASSEMBLY = re.compile(r'"[^"\n]*\.inc(?:bin|lude)\b')  # the assembler's own directives
_TICK_SECONDS = 0.02  # the clock that stamps files is up to that much late
_STEADY_SECONDS = 2.0  # the coarsest clock of a file system


@dataclass(frozen=True)
class Included:
    """What a compile depends on besides text and options.

    Attributes
    ----------
    files
        The paths of all files that were read, and of those that would have been if they had been there. A relative
        one starts from the current folder.
    known
        Whether that is all of them.
    opened
        Those that were read.
    """

    files: tuple[str, ...] = ()
    known: bool = True
    opened: tuple[str, ...] = field(default=(), compare=False)

    def digest(self) -> str:
        """Return what stands for the contents of the files as they are now; another one each time if not `known`."""
        if not self.known:
            return os.urandom(32).hex()
        return _digest_of_all(self.held())

    def key(self, text_key: str, found: Mapping[str, str | None] | None = None) -> str:
        """Return the key of a text with what the files hold now, or with what :meth:`held` has `found`."""
        held = self.digest() if found is None else _digest_of_all(found)
        return hashlib.sha256(f"{text_key} {held}".encode()).hexdigest() if held else text_key

    def held(self) -> dict[str, str | None]:
        """Return the SHA-256 of what each file holds now, None where there is no such file."""
        return {path: _digest(path) for path in self.files}

    def changed_since(self, moment: float) -> bool:
        """Return whether a file may have changed after that time (``time.time()``), while the compiler read it."""
        found = filter(None, map(_stat, self.files))
        gone = any(_stat(path) is None for path in self.opened)
        return gone or any(status.st_ctime > moment - _TICK_SECONDS for status in found)


def _digest_of_all(held: Mapping[str, str | None]) -> str:
    return hashlib.sha256(json.dumps(list(held.items())).encode("ascii")).hexdigest() if held else ""


def may_include(text: str, options: Sequence[str] = ()) -> bool:
    """Return whether a compile may read a file: the name of a directive cannot come from a macro."""
    return bool(options) or re.search("include|embed|import|incbin", _SPLICE.sub("", text)) is not None


def watched(
    text: str,
    opened: Iterable[str],
    *,
    own: Iterable[str] = (),
    search: Sequence[str] = (),
    fixed: Sequence[str] = (),
    missing: Iterable[str] = (),
) -> Included:
    """Return what a compile depends on.

    Parameters
    ----------
    text
        What was compiled.
    opened
        The files that the compiler opened, by the paths that it opened them by.
    own
        Folders in which a quoted name is looked for first; those of the opened files are added.
    search
        Folders in which all names are looked for, in order.
    fixed
        Those of `search` that belong to a compiler: their files may change with another version, their names not.
    missing
        Names that were not found.
    """
    opened = tuple(opened)
    mine = [path for path in opened if not within(path, fixed)]
    texts = [_SPLICE.sub("", part) for part in (text, *map(_read, mine))]
    lines = [line for part in texts for line in _DIRECTIVE.findall(part)]
    asking = [line for path in {*opened} - {*mine} for line in _ASKING.findall(_read(path))]
    gone = any(_stat(path) is None for path in opened)  # since the compiler read it, or it is no file
    if gone or any(map(_IN_ASSEMBLY.search, texts)) or _is_computed([*lines, *asking]):
        return Included(opened, known=False)
    names = {name for line in (*lines, *asking) for name in _names(line)}
    near = {*own, *map(os.path.dirname, mine)}
    files = {*opened, *(os.path.join(folder, name) for folder in (*near, *search) for name in (*names, *missing))}
    for path in opened:
        for index, folder in enumerate(search):
            if within(path, (folder,)):  # found there, hence in none of those before
                name = path[len(folder) :].lstrip("/")
                files.update(os.path.join(before, name) for before in (*near, *search[:index]))
    return Included(tuple(sorted(files)), opened=opened)


def _is_computed(lines: Sequence[str]) -> bool:
    """Return whether a directive asks for a file by a name that does not stand there."""
    macros = [match.groups() for line in lines if (match := _MACRO.search(line))]
    asking, before = {"__has_include", "__has_include_next", "__has_embed"}, 0
    while len(asking) > before:  # `#define HAS(name) __has_include(name)` asks for what it is given
        before, question = len(asking), _question(asking)
        asking |= {macro for macro, names, body in macros if {*question.findall(body)} & {*_listed(names)}}
    question = _question(asking)
    for line in lines:
        macro = _MACRO.search(line)
        own = _listed(macro[2]) if macro else []
        asked = question.findall(_DEFINED.sub("", macro[3] if macro else line))
        if _EMBED.search(line) or not all(word[:1] in ('"', "<") or word in own for word in asked):
            return True
    return False


def _question(asking: Iterable[str]) -> re.Pattern[str]:
    """Return what finds the uses of macros; the group is what they are given: a name's quote, a word, or nothing."""
    return re.compile(rf"\b(?:{'|'.join(asking)})\b(?:\s*\(\s*([\"<]|\w+))?")


def _listed(names: str) -> list[str]:
    return [name.strip().replace("...", "__VA_ARGS__") for name in names.split(",") if name.strip()]


def within(path: str, folders: Iterable[str]) -> bool:
    """Return whether a path is in one of these folders, or below."""
    return any(path.startswith(os.path.join(folder, "")) for folder in folders)


def _names(line: str) -> Iterator[str]:
    for quoted, bracketed in _NAME.findall(line):
        yield (quoted or bracketed).strip()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace") if _stat(path) else ""
    except OSError:
        return ""  # gone again


def _stat(path: str) -> os.stat_result | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # no such file, or nothing that could be a file's name
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _digest(path: str) -> str | None:
    """Return the digest of what a file holds, None where there is none."""
    status = _stat(path)
    if status is None:
        return None
    which = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    # A change right after the last one may leave no trace in these numbers.
    steady = time.time() - status.st_ctime > _STEADY_SECONDS
    return (_digest_of if steady else _digest_of.__wrapped__)(path, which)


@functools.lru_cache(maxsize=4096)
def _digest_of(path: str, which: tuple[int, ...]) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:  # not ours to read: the compiler could not either
        return None
