"""Files that appear whole or not at all, and JSON that vouches for itself."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

__all__ = ["body_of", "framed", "private", "replace", "writable", "write"]

_HEAD, _END = b'{"sha256": "', b"}\n"


def framed(field: str, body: bytes) -> bytes:
    """Return a file of JSON: `body`, JSON too, as a field of it, behind its digest, so that no bit changes unseen."""
    return b'%s%s",\n"%s": %s%s' % (_HEAD, hashlib.sha256(body).hexdigest().encode(), field.encode(), body, _END)


def body_of(field: str, data: bytes) -> bytes | None:
    """Return the `body` that :func:`framed` made a file of; None for any other file."""
    body = data[len(_HEAD) + 64 + len(field) + len('",\n"": ') : -len(_END)]
    return body if data == framed(field, body) else None


def private(path: str, flags: int, mode: int = 0o600) -> int:
    """Open a file, and no link to one: what ``open`` takes as its `opener`. By its `mode` a new one is this user's."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode)


def write(path: Path, data: bytes, *, flush: bool = False, mode: int = 0o600) -> None:
    """Write a new file, for this user alone unless `mode` says more; with `flush` its bytes are on the disk then."""
    with open(path, "wb", opener=partial(private, mode=mode)) as file:
        file.write(data)
        if flush:
            file.flush()
            os.fsync(file.fileno())


def replace(path: Path, data: bytes, *, flush: bool = False, mode: int = 0o600) -> None:
    """Write a file, or another in its place, in one step for readers; where that fails nothing is left of it."""
    with _part(path) as part:
        write(part, data, flush=flush, mode=mode)
        part.replace(path)


def writable(path: Path) -> None:
    """Raise what :func:`replace` would, and change nothing; for a pipe or a device, whose place it would take, too."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no regular file")
    with _part(path) as part:
        write(part, b"")


@contextlib.contextmanager
def _part(path: Path) -> Iterator[Path]:
    """Give a name beside a file for what is not whole yet; there is none of it afterwards."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        yield part
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
