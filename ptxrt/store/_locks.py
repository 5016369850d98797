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
from typing import Literal

from ptxrt.store._files import is_gone, private

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
    file = False if path in held else _taken(path, time.monotonic() + seconds)
    if file is None or file is False:
        yield file
        return
    held.add(path)
    try:
        yield True
    finally:
        held.discard(path)
        # Before it is released: the next one sees that this file is the lock of nothing any more.
        with contextlib.suppress(OSError):
            path.unlink()
        file.close()


def _taken(path: Path, deadline: float) -> io.FileIO | Literal[False] | None:
    pause, longest = _PAUSES
    while True:
        try:
            # An object, for its destructor closes it after a Ctrl-C wherever that comes.
            with contextlib.ExitStack() as unless_taken:
                file = unless_taken.enter_context(open(path, "ab", buffering=0, opener=private))
                _open.add(file)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_ino == os.stat(path).st_ino:
                    unless_taken.pop_all()
                    return file
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, longest)
        except OSError as error:
            if not (is_gone(error) and path.parent.is_dir()):
                return None


def _forget() -> None:
    # The lock belongs to the open file, which a forked child shares: it would hold what its parent releases.
    for file in list(_open):
        file.close()
    _mine.__dict__.clear()


os.register_at_fork(after_in_child=_forget)
