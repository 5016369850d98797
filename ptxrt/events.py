"""For people who operate ptxrt: what its caches do, told to callbacks, to :mod:`logging` and to NVIDIA's profilers.

The logger is ``"ptxrt"``: compiles at the level INFO, looks into the store on disk at DEBUG, and what is wrong with
that store as a WARNING. A module that is loaded already is told to callbacks alone.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import logging

__all__ = ["CacheEvent", "emit", "log", "marked", "subscribe", "subscribers"]


@dataclass(frozen=True)
class CacheEvent:
    """Something that a cache has done.

    Attributes
    ----------
    kind
        ``"hit"``: a module or a binary was there. ``"miss"``: the store on disk does not have it. ``"compile"``: a
        compiler has run. ``"evict"``: a module was unloaded, or a binary removed, to keep within a bound.
        ``"quarantine"``: a binary was damaged and has been put aside.
    where
        ``"memory"``, a device's module cache, or ``"disk"``, the store; of a compile ``"compiler"``.
    key
        The digest.
    name
        What it is: the source's name, else the entry asked for. Of what was removed from the disk: its folder.
    seconds
        How long it took: the look, the compile. 0 for what takes no time.
    error
        The first line of the message where a compile failed; how a binary was damaged.
    """

    kind: Literal["hit", "miss", "compile", "evict", "quarantine"]
    where: Literal["memory", "disk", "compiler"]
    key: str
    name: str
    seconds: float = 0.0
    error: str | None = None

    def __str__(self) -> str:
        took = f" in {self.seconds * 1e3:.1f} ms" if self.seconds else ""
        return (
            f"{self.kind} ({self.where}): {self.name}, {self.key[:12]}{took}{f': {self.error}' if self.error else ''}"
        )


subscribers: tuple[Callable[[CacheEvent], object], ...] = ()
"""Who is told."""


def subscribe(callback: Callable[[CacheEvent], object]) -> Callable[[], None]:
    """Have a callback told of every event, in the thread that it happens in; return what ends that.

    What it raises is logged, and hurts no load. It may be called at any time, also from several threads at once.
    """
    global subscribers  # noqa: PLW0603

    def end() -> None:
        global subscribers  # noqa: PLW0603
        subscribers = tuple(each for each in subscribers if each is not told)

    def told(event: CacheEvent) -> None:  # one a call, so that a callback that subscribes twice ends once
        callback(event)

    subscribers = (*subscribers, told)
    return end


def emit(event: CacheEvent) -> None:
    """Tell an event."""
    # Where nobody has imported logging nobody can see what is below a warning.
    if event.where != "memory" and (event.kind == "quarantine" or "logging" in sys.modules):
        log().log({"compile": 20, "quarantine": 30}.get(event.kind, 10), "%s", event)  # INFO, WARNING, DEBUG
    for told in subscribers:
        try:
            told(event)
        except Exception:  # noqa: BLE001 (it is in the log)
            log().exception("a callback of ptxrt.events.subscribe raised")


def log() -> logging.Logger:
    """Return the logger; its package is imported when there is something to say."""
    import logging  # noqa: PLC0415 (few programs look at it)

    return logging.getLogger("ptxrt")


def marked(words: str) -> contextlib.AbstractContextManager[Any]:
    """Mark the block as a range for NVIDIA's profilers, where nvtx is installed and one of them is there."""
    nvtx = sys.modules.get("nvtx") or _nvtx()
    return contextlib.nullcontext() if nvtx is None else nvtx.annotate(words, domain="ptxrt")


@lru_cache(maxsize=1)
def _nvtx() -> Any:
    # Nsight names its library there. Without it the import would cost time for nothing.
    if "NVTX_INJECTION64_PATH" not in os.environ or importlib.util.find_spec("nvtx") is None:
        return None
    return importlib.import_module("nvtx")
