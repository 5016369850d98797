"""Files that appear whole or not at all, and JSON that vouches for itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

__all__ = ["body_of", "framed", "private", "replace", "write"]

_HEAD, _END = b'{"sha256": "', b"}\n"


def framed(field: str, body: bytes) -> bytes:
    """Return a file of JSON: `body`, JSON too, as a field of it, behind its digest, so that no bit changes unseen."""
    return b'%s%s",\n"%s": %s%s' % (_HEAD, hashlib.sha256(body).hexdigest().encode(), field.encode(), body, _END)


def body_of(field: str, data: bytes) -> bytes | None:
    """Return the `body` that :func:`framed` made a file of; None for any other file."""
    body = data[len(_HEAD) + 64 + len(field) + len('",\n"": ') : -len(_END)]
    return body if data == framed(field, body) else None


def private(path: str, flags: int) -> int:
    """Open a file that nobody else may read, and no link to one: what ``open`` takes as its `opener`."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def write(path: Path, data: bytes, *, flush: bool = False) -> None:
    """Write a new file, for this user alone; with `flush` its bytes are on the disk when this returns."""
    with open(path, "wb", opener=private) as file:
        file.write(data)
        if flush:
            file.flush()
            os.fsync(file.fileno())


def replace(path: Path, data: bytes, *, flush: bool = False) -> None:
    """Write a file, or another in its place, in one step for readers; where that fails nothing is left of it."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        write(part, data, flush=flush)
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
