"""The calls of the operating system that a store is made of; another attempt where a file system is busy.

No file is ever changed: what is new is written under another name, flushed, and renamed. So a reader sees a whole entry
or none, whatever happens to the writer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ptxrt import files

__all__ = ["again", "inside", "is_gone", "is_passing", "read", "removed", "replace", "sizes", "write"]

_Given = TypeVar("_Given")

# What network file systems answer for a moment: a file that another host is renaming, a handle that has gone stale.
_BUSY = frozenset({errno.EBUSY, errno.ESTALE, errno.EAGAIN, errno.ETXTBSY, errno.EINTR})
_PASSING = _BUSY | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ETIMEDOUT}
_PAUSES = (0.001, 0.01, 0.05)
_AT_ONCE = 1 << 16  # more would be memory that the allocator asks the system for


def again(call: Callable[[], _Given]) -> _Given:
    """Return what `call` does; a few times more, with pauses, where the file system is busy."""
    for pause in _PAUSES:
        try:
            return call()
        except OSError as error:
            if error.errno not in _BUSY:
                raise
        time.sleep(pause)
    return call()


def is_gone(error: OSError) -> bool:
    """Return whether the error says that there is no such file."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR)


def is_passing(error: OSError) -> bool:
    """Return whether the error says nothing of the file: the file system is busy, or this process has no descriptor."""
    return error.errno in _PASSING


def read(path: str | Path) -> bytes:
    """Return a file's bytes. Read, not mapped: pages of a mapped file can vanish, which ends the process."""

    def once() -> bytes:
        # Four calls of the system, of which open() makes ten. Not blocking: a pipe in a file's place has no writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            parts = []
            while part := os.read(descriptor, _AT_ONCE):
                parts.append(part)
        finally:
            os.close(descriptor)
        return b"".join(parts)

    return again(once)


def inside(folder: Path) -> list[Path]:
    """Return what is in a folder, in order; nothing where it cannot be listed."""
    try:
        return [folder / name for name in sorted(os.listdir(folder))]
    except OSError:
        return []


def write(path: Path, data: bytes) -> None:
    """Write a new file, its bytes on the disk when this returns."""
    again(lambda: files.write(path, data, flush=True))


def replace(path: Path, data: bytes) -> None:
    """Write a file, or another in its place, in one step for readers."""
    again(lambda: files.replace(path, data, flush=True))


def sizes(path: Path) -> int:
    """Return the bytes of a file, or of all below a folder, as far as they are there and can be looked at."""
    total = 0
    below = [os.path.join(where, name) for where, _, names in os.walk(path) for name in names]
    for name in below if os.path.isdir(path) else [path]:
        with contextlib.suppress(OSError):  # gone meanwhile
            total += os.lstat(name).st_size
    return total


def removed(path: Path) -> bool:
    """Remove a file, or a folder with all that is in it; return whether nothing is left."""
    with contextlib.suppress(OSError):
        path.unlink()
    if os.path.lexists(path):
        with contextlib.suppress(OSError):  # it does not ignore all of them
            shutil.rmtree(path, ignore_errors=True)
    return not os.path.lexists(path)
