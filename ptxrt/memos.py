"""Memos: what a process has found out, for the next one, as small JSON files in a folder.

A memo may be lost at any time. What is there is whole and was written by this user, or it is ignored; whether it is
still true is for its reader to find out.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any

__all__ = ["recall", "use", "write"]

_MOST_BYTES = 1 << 22
_HEAD, _MIDDLE, _END = b'{"sha256": "', b'", "memo": ', b"}\n"
_START = len(_HEAD) + 64 + len(_MIDDLE)
_folder: Path | None = None


def use(folder: Path | None) -> None:
    """Have memos in `folder`, which the first one makes; None for no memos, as it is at the beginning."""
    global _folder  # noqa: PLW0603
    _folder = folder


def recall(name: str) -> Any:
    """Return what was written under a name; None where there is nothing, or nothing that can be believed."""
    if _folder is None:
        return None
    try:
        whole = _read(_folder / f"{name}.json")
        body = whole[_START : -len(_END)]
        if whole != _framed(body):
            return None
        written, value = json.loads(body)
        return value if written == name else None  # else it was renamed
    except (OSError, ValueError, TypeError, RecursionError):
        return None


def write(name: str, value: Any) -> None:
    """Write what JSON can hold under a name; readers see it whole or not at all. Where that fails nothing happens."""
    folder = _folder
    if folder is None:
        return
    part = folder / f".{name}.{os.urandom(4).hex()}.part"
    with contextlib.suppress(OSError, ValueError):
        for missing in () if folder.is_dir() else (*reversed(folder.parents), folder):
            missing.mkdir(mode=0o700, exist_ok=True)
        try:
            with open(part, "xb", opener=_private) as file:
                file.write(_framed(json.dumps([name, value]).encode("ascii")))
            part.replace(folder / f"{name}.json")
        finally:
            part.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _read(path: Path) -> bytes:
    # Not blocking, for it might be a pipe.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_size > _MOST_BYTES:
            return b""
        return file.read()


def _framed(body: bytes) -> bytes:
    return _HEAD + hashlib.sha256(body).hexdigest().encode() + _MIDDLE + body + _END
