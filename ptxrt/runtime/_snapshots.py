"""PTXRT_CACHE_SNAPSHOT=FILE: snapshots of the module caches at the end of the process, and at SIGUSR1."""

from __future__ import annotations

import atexit
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from ptxrt.errors import InvalidArgument
from ptxrt.events import log

if TYPE_CHECKING:
    from ptxrt.runtime.modules import ModuleCache

__all__ = ["watch"]

_watched: list[tuple[str, ModuleCache]] = []
_process = 0


def watch(modules: ModuleCache, file: str) -> None:
    """Write a module cache's snapshot at the end of this process, and whenever it gets SIGUSR1.

    In `file`, ``%p`` is the process's number and ``%d`` the device, as in ``cuda-0``. Without ``%d`` the first device
    that is opened has the file, and the others one beside it: ``cache.cuda-1.json``.

    The signal is left alone where the program handles it itself, or opens its first device in another thread than the
    main one.
    """
    global _process  # noqa: PLW0603
    if _process != os.getpid():  # in a forked child they are the parent's
        _watched.clear()
        _process = os.getpid()
        atexit.register(_write)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR1, _write)
    device = modules.name.replace(":", "-")
    if _watched and "%d" not in file:
        stem, suffix = os.path.splitext(file)
        file = f"{stem}.{device}{suffix}"
    _watched.append((file.replace("%p", str(_process)).replace("%d", device), modules))


def _write(*_: Any) -> None:
    if _process != os.getpid():
        return
    for file, modules in list(_watched):
        try:
            modules.snapshot(file)
        except InvalidArgument as error:
            log().warning("PTXRT_CACHE_SNAPSHOT: %s", error)
