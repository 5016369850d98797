"""A lock a key for all processes of a host. The death of its holder, however it comes, releases it."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

from ptxrt.files import private
from ptxrt.store._files import again

__all__ = ["locked"]

_PAUSES = (0.002, 0.1)  # the first between two attempts and the longest, seconds

_mine = threading.local()
_open: weakref.WeakSet[io.FileIO] = weakref.WeakSet()


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[bool | None]:
    """Have the lock of a file within the block, or go on without it; the file is there only as long as the lock is.

    It gives True with the lock; False where somebody else has it for longer than `seconds`, or the thread that a
    signal handler has interrupted; None where the file system has no locks, or cannot be written.
    """
    held = _mine.__dict__.setdefault("held", set())
    if path in held:
        yield False
        return
    opened: list[io.FileIO] = []  # filled by _alone, so that no Ctrl-C comes between its end and the `try` here
    alone: bool | None = False
    try:
        held.add(path)  # before it is so: a signal handler that comes in between must not wait for its own thread
        alone = _alone(path, time.monotonic() + seconds, opened)
        yield alone
    finally:
        try:
            if alone and not opened[0].closed:  # in a forked child it is closed, and the lock the parent's
                # Before it is released: the next one sees that this file is the lock of nothing any more.
                with contextlib.suppress(OSError):
                    path.unlink()
        finally:
            try:
                _close(opened)
            finally:
                held.discard(path)


def _alone(path: Path, deadline: float, opened: list[io.FileIO]) -> bool | None:
    pause, longest = _PAUSES
    while True:
        try:
            opened.append(again(lambda: io.FileIO(path, "a", opener=private)))
            _open.add(opened[0])
            fcntl.flock(opened[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, opened[0]):
                return True
        except BlockingIOError:
            pass
        except OSError:
            return None
        _close(opened)
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, longest)


def _is_at(path: Path, file: io.FileIO) -> bool:
    """Return whether the lock of a file is that of its path: its last holder may have removed it just now."""
    try:
        there = again(lambda: os.stat(path))
    except FileNotFoundError:
        return False
    return os.fstat(file.fileno()).st_ino == there.st_ino


def _close(files: list[io.FileIO]) -> None:
    while files:
        with contextlib.suppress(OSError):
            files.pop().close()


def _forget() -> None:
    # The lock belongs to the open file, which a forked child shares: it would hold what its parent releases.
    for file in list(_open):
        file.close()
    _mine.__dict__.clear()


os.register_at_fork(after_in_child=_forget)
