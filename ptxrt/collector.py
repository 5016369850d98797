"""Python's garbage collector, paused where it would find nothing, or must not run."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["paused"]

_lock = threading.RLock()  # a signal's handler may come between
_inside = 0
_collects = False


@contextmanager
def paused() -> Iterator[None]:
    """Let no collection begin within the block, in any thread; of blocks at the same time the last one ends that.

    An import makes thousands of objects that all stay: a collection meanwhile looks at everything the process has, and
    frees nothing.
    """
    global _inside, _collects  # noqa: PLW0603
    with _lock:
        if not _inside:
            _collects = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _collects:
                gc.enable()


def _forked() -> None:
    """End the pauses of threads that a forked child does not have."""
    global _lock, _inside
    if _inside and _collects:
        gc.enable()
    _lock, _inside = threading.RLock(), 0


os.register_at_fork(after_in_child=_forked)
