"""What the threads of a chunk print, on its way to sys.stdout or another stream."""

from __future__ import annotations

import sys
from typing import TextIO

__all__ = ["Printed"]

_HELD = 1 << 20


class Printed:
    """What has been printed and is not written yet: block by block, and within a block as it was printed.

    All of a chunk is written when it is done, or has failed; earlier where it is more than a mebibyte, so that a loop
    that prints does not fill the memory.

    Parameters
    ----------
    output
        Where to; the sys.stdout of the moment if None.
    """

    def __init__(self, output: TextIO | None) -> None:
        self._output = output
        self._parts: dict[int, list[bytes]] = {}
        self._size = 0

    def add(self, block: int, text: bytes) -> None:
        """Note what a thread of a block prints."""
        self._parts.setdefault(block, []).append(text)
        self._size += len(text)
        if self._size > _HELD:
            self.flush()

    def flush(self) -> None:
        """Write what there is."""
        if self._size:
            whole = b"".join(text for block in sorted(self._parts) for text in self._parts[block])
            self._parts, self._size = {}, 0
            text = whole.decode(errors="backslashreplace")
            output = self._output or sys.stdout
            encoding = getattr(output, "encoding", None) or "utf-8"  # a stream of somebody else may have none
            print(text.encode(encoding, "backslashreplace").decode(encoding), end="", file=output, flush=True)
