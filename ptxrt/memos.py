"""Memos: what a process has found out, for the next one, as small JSON files in a folder.

A memo may be lost at any time. What is there is whole and was written by this user, or it is ignored; whether it is
still true is for its reader to find out.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ptxrt import files

__all__ = ["recall", "use", "write"]

_MOST_BYTES = 1 << 22
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
        body = files.body_of("memo", _read(_folder / f"{name}.json"))
        if body is None:
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
    with contextlib.suppress(OSError, ValueError):
        for missing in () if folder.is_dir() else (*reversed(folder.parents), folder):
            missing.mkdir(mode=0o700, exist_ok=True)
        files.replace(folder / f"{name}.json", files.framed("memo", json.dumps([name, value]).encode("ascii")))


def _read(path: Path) -> bytes:
    with open(path, "rb", opener=files.private) as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or status.st_size > _MOST_BYTES:
            return b""
        return file.read()
