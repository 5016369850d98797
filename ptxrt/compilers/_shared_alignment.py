"""Whether dynamic shared memory lies where a PTX text says it does.

nvJitLink 13.0 puts it right behind the own shared variables of an entry, at a multiple of 16, whatever ``.align`` says.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from ptxrt.compilers.ptx_text import NAME, blanked

__all__ = ["Misplaced", "misplaced"]

_DYNAMIC = re.compile(rf"\.extern\s+\.shared\s+\.align\s+(\d{{1,9}})\s+\.\w+\s+({NAME})")
_BODY = re.compile(rf"\.entry\s+({NAME})[^{{]*")
_BRACE = re.compile("[{}]")
_KEPT = 16  # bytes of an alignment that are always kept
_SECTION = ".nv.shared."  # of each entry: the system's bytes, from sm_90 on, and its own; dynamic ones begin behind


class Misplaced(NamedTuple):
    """An entry's dynamic shared memory that does not lie where the text says."""

    entry: str
    variable: str
    align: int
    line: int  # of its declaration, counted from 1
    place: int  # in bytes


def misplaced(code: bytes, text: str) -> Misplaced | None:
    """Return the first that there is in a cubin made of this text."""
    if not _DYNAMIC.search(text):
        return None
    plain = blanked(text)
    declared = {match[2]: match for match in _DYNAMIC.finditer(plain) if int(match[1]) > _KEPT}
    if not declared:
        return None
    own = dict(_own_bytes(code))
    for entry, body in _bodies(plain):
        for variable in re.findall(NAME, body):
            if (match := declared.get(variable)) and own.get(entry, 0) % int(match[1]):
                line = plain.count("\n", 0, match.start()) + 1
                return Misplaced(entry, variable, int(match[1]), line, own[entry])
    return None


def _bodies(plain: str) -> Iterator[tuple[str, str]]:
    for match in _BODY.finditer(plain):
        end, open_ = match.end(), 0
        for brace in _BRACE.finditer(plain, match.end()):
            open_ += 1 if brace[0] == "{" else -1
            end = brace.end()
            if not open_:
                break
        yield match[1], plain[match.end() : end]


def _own_bytes(code: bytes) -> Iterator[tuple[str, int]]:
    """Give each entry's shared memory in front of the dynamic one, by what the sections of the ELF say."""
    (start,) = struct.unpack_from("<Q", code, 0x28)
    size, count, of_names = struct.unpack_from("<3H", code, 0x3A)
    headers = [struct.unpack_from("<2I4Q", code, start + size * i) for i in range(count)]
    names = headers[of_names][4]
    for header in headers:
        first = names + header[0]
        name = code[first : code.index(b"\0", first)].decode(errors="replace")
        if name.startswith(_SECTION):
            yield name.removeprefix(_SECTION), header[5]
