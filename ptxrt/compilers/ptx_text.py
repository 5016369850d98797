"""What a PTX text says of itself: version, target, entries and their parameters.

A light scan, not an assembler: it reads the directives that matter before a compile and leaves every instruction to
the assembler. Grammar: PTX ISA, "Directives" and "Kernel Function Parameters".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ptxrt.compilers._binary import EntryInfo, ParamInfo
from ptxrt.errors import CompileError

__all__ = [
    "NAME",
    "PtxHeader",
    "blanked",
    "entries_of",
    "file_hint",
    "listed",
    "output_arch",
    "require_entry",
    "scan",
    "suggestion",
]

_MOST_LISTED = 20
_HIDDEN = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\[^\n]|[^"\\\n])*"?', re.DOTALL)
_NOT_ASCII = re.compile("[^\0-\x7f]")
_HALF = re.compile("[\ud800-\udfff]")
_VERSION = re.compile(r"\.version\s+(\d{1,9})\.(\d{1,9})(?![\w.])")
_TARGET = re.compile(r"\.target\s+([A-Za-z]\w*)")
_ADDRESS_SIZE = re.compile(r"\.address_size\s+(\d{1,9})(?!\d)")
NAME = r"[A-Za-z_$%][\w$]*"
"""A name in PTX, as a regular expression."""
_ENTRY = re.compile(rf"\.entry\s+({NAME})\s*")
_PARAM = re.compile(
    r"\s*\.param\s*(?:\.align\s+(?P<align>\d{1,9})\s*)?(?:\.v(?P<lanes>[248])\s*)?\.(?P<type>[a-z]+\d+(?:x2)?)"
    # The .align after .ptr is that of the memory pointed to, not of the parameter.
    r"(?:\s*\.ptr(?:\s*\.(?:global|shared|local|const))?(?:\s*\.align\s+\d+)?)?"
    rf"\s+(?P<name>{NAME})\s*(?P<dims>(?:\[[^\]]*\]\s*)*)"
)
_SIZES = {f"{letter}{bits}": bits // 8 for letter in "bus" for bits in (8, 16, 32, 64)} | {
    "b128": 16, "f16": 2, "bf16": 2, "f32": 4, "f64": 8, "f16x2": 4, "bf16x2": 4,
}  # fmt: skip


@dataclass(frozen=True)
class PtxHeader:
    """The directives of a PTX text.

    Attributes
    ----------
    version
        ``.version`` as (major, minor).
    target
        The first ``.target``: ``"sm_52"``, ``"sm_90a"``.
    address_size
        32 or 64, None where the text has no ``.address_size``.
    entries
        By name, with parameters at their natural offsets.
    version_line, target_line
        Where they stand, counted from 1.
    """

    version: tuple[int, int]
    target: str
    address_size: int | None
    entries: dict[str, EntryInfo]
    version_line: int
    target_line: int


def scan(text: str, name: str | None = None) -> PtxHeader:
    """Read the header of a PTX text; comments and strings are passed over.

    Parameters
    ----------
    text
        The PTX.
    name
        The kernel's or the source's name, for messages.

    Raises
    ------
    CompileError
        The text is not a ``str``, is empty, holds a character outside ASCII that is in no comment (in one, the
        assembler decides), half a character, or a NUL (the assembler would stop reading there, in silence), or has no
        readable ``.version`` or ``.target``. The error has ``line`` wherever there is one.
    """
    _check_characters(text, name)
    plain = blanked(text)
    version = _VERSION.search(plain)
    if version is None:
        raise _no_version(text, plain, name)
    target = _TARGET.search(plain)
    if target is None:
        raise CompileError(
            "the PTX text has no readable .target directive",
            kernel=name,
            line=_line(plain, version.start()),
            source=text,
            expected=".target sm_NN",
            fix="Put .target after .version; a low one (sm_75) runs on every newer GPU",
        )
    address_size = _ADDRESS_SIZE.search(plain)
    return PtxHeader(
        version=(int(version[1]), int(version[2])),
        target=target[1],
        address_size=int(address_size[1]) if address_size else None,
        entries=_entries(plain),
        version_line=_line(plain, version.start()),
        target_line=_line(plain, target.start()),
    )


def entries_of(text: str) -> dict[str, EntryInfo]:
    """Return the entries of a PTX text that a compiler wrote; no check is made of it."""
    return _entries(blanked(text))


def blanked(text: str) -> str:
    """Return a PTX text with spaces in the place of its comments and strings."""
    return _HIDDEN.sub(_blank, text)


def require_entry(
    entry: str, entries: Iterable[str], kernel: str | None = None, arch: str | None = None, *, text: str = ""
) -> None:
    """Raise CompileError unless `entry` is one of `entries`; the message names those there are.

    With the `text` it also tells whether the name is that of a ``.func``.
    """
    names = list(entries)
    if entry in names:
        return
    there_are = f"the text has {listed(names)}" if names else "the text has no entry at all"
    fix = suggestion(entry, names)
    if fix is None and re.search(rf"\.func\b[^{{;]*?(?<![\w$]){re.escape(entry)}(?![\w$])", blanked(text)):
        fix = f"{entry} is a .func: only an .entry can be launched"
    raise CompileError(
        f"no entry {entry!r}: {there_are}", kernel=kernel or entry, arch=arch, expected=names, given=entry, fix=fix
    )


def listed(names: Sequence[str]) -> str:
    """Return names as a message lists them: the first ones, and of many how many they are."""
    more = f" ... ({len(names)})" if len(names) > _MOST_LISTED else ""
    return ", ".join(names[:_MOST_LISTED]) + more


def suggestion(word: str, words: Iterable[str]) -> str | None:
    """Return "Did you mean ...?" for the names close to `word`, None where there is none."""
    import difflib  # noqa: PLC0415 (for messages alone)

    close = difflib.get_close_matches(word, list(words), n=3)
    return f"Did you mean {' or '.join(close)}?" if close else None


def file_hint(text: str) -> str | None:
    """Return what to do about a text that looks like a file's name, None for any other."""
    found = re.fullmatch(r"[^\n{};]+\.(ptx|cuh?|hip|cpp|cc|cxx|hpp|h|txt)", text.strip())
    if not found:
        return None
    if found[1] in ("ptx", "cu", "hip"):
        return f"It looks like a file's name: KernelSource.from_file({text.strip()!r}) reads it"
    return f"It looks like a file's name: pass what is in it, Path({text.strip()!r}).read_text()"


def output_arch(target: str, arch: str) -> str:
    """Return what to compile a text of ``.target`` `target` for, on a device of architecture `arch`.

    That is `arch`, save for a text that asks for this architecture's own features: ``sm_90a`` on ``sm_90`` is
    compiled for ``sm_90a``, and the binary runs there.
    """
    return target if target[:-1] == arch and target[-1] in "af" else arch


def _check_characters(text: object, name: str | None) -> None:
    if not isinstance(text, str):
        raise CompileError(
            f"PTX text must be a str, not {type(text).__name__}",
            kernel=name,
            expected="str",
            given=type(text).__name__,
            fix="Decode bytes with .decode('ascii'); read a path first",
        )
    if not text.strip():
        raise CompileError("the PTX text is empty", kernel=name, expected="PTX", given=repr(text[:20]))
    if wrong := _not_ascii(text):
        at, found = wrong.start(), wrong[0]
        line, column = _line(text, at), at - text.rfind("\n", 0, at)
        raise CompileError(
            f"non-ASCII character {found!r} (U+{ord(found):04X}) at line {line}, column {column}",
            kernel=name,
            line=line,
            source=text,
            expected="ASCII",
            given=found,
            fix="It is half a character" if _HALF.match(found) else "PTX is ASCII outside of comments",
        )
    if "\0" in text:
        at = text.index("\0")
        line, column = _line(text, at), at - text.rfind("\n", 0, at)
        raise CompileError(
            f"NUL character at line {line}, column {column}",
            kernel=name,
            line=line,
            fix="The assembler stops reading at a NUL. If the text comes from a compiler, strip the one at its end",
        )


def _no_version(text: str, plain: str, name: str | None) -> CompileError:
    at = plain.find(".version")
    if at >= 0:
        line = _line(plain, at)
        return CompileError(
            "the .version directive is not readable",
            kernel=name,
            line=line,
            source=text,
            expected=".version MAJOR.MINOR",
            given=plain.split("\n")[line - 1].strip(),
        )
    looks_like_cpp = "__global__" in text or "#include" in text
    return CompileError(
        "this is not PTX: it has no .version directive",
        kernel=name,
        expected=".version MAJOR.MINOR, then .target",
        given=text.strip()[:40],
        fix="It looks like C++: use KernelSource.cuda or KernelSource.hip"
        if looks_like_cpp
        else file_hint(text) or "PTX begins with .version, .target and .address_size 64",
    )


def _blank(match: re.Match[str]) -> str:
    # Same length and line breaks, so that positions in the blanked text are those of the original.
    return "\n".join([" " * len(line) for line in match[0].split("\n")])


def _not_ascii(text: str) -> re.Match[str] | None:
    """Return the first half of a character, or else the first one outside of ASCII that is in no comment."""

    def blank(match: re.Match[str]) -> str:
        return match[0] if match[0].startswith('"') else _blank(match)

    return None if text.isascii() else _HALF.search(text) or _NOT_ASCII.search(_HIDDEN.sub(blank, text))


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _entries(plain: str) -> dict[str, EntryInfo]:
    found = {}
    for match in _ENTRY.finditer(plain):
        found[match[1]] = EntryInfo(match[1], _params(_parenthesised(plain, match.end())))
    return found


def _parenthesised(plain: str, at: int) -> str | None:
    """Return what stands in the parentheses that open at `at`, "" for none, None if they never close."""
    if not plain.startswith("(", at):
        return ""
    depth = 0
    for match in re.compile(r"[()]").finditer(plain, at):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return plain[at + 1 : match.start()]
    return None


def _params(text: str | None) -> tuple[ParamInfo, ...] | None:
    if text is None:
        return None
    params: list[ParamInfo] = []
    offset = 0
    for declaration in text.split(",") if text.strip() else ():
        match = _PARAM.fullmatch(declaration)
        if match is None or match["type"] not in _SIZES:
            return None
        align = size = _SIZES[match["type"]] * int(match["lanes"] or 1)
        try:
            for dim in re.findall(r"\[([^\]]*)\]", match["dims"]):
                size *= int(dim.strip().rstrip("uU"), 0)
        except ValueError:  # a constant expression, or no length: the assembler knows, this scan does not
            return None
        align = int(match["align"] or align)
        offset = -(-offset // align) * align
        plain_scalar = not match["lanes"] and not match["dims"].strip()
        params.append(ParamInfo(offset, size, _kind(match["type"]) if plain_scalar else "bits", match["name"]))
        offset += size
    return tuple(params)


def _kind(ptx_type: str) -> Literal["float", "int", "bits"]:
    if ptx_type in {"f16", "bf16", "f32", "f64"}:
        return "float"
    return "int" if ptx_type[0] in "us" else "bits"
