"""BinaryStore: compiled binaries on disk, for all processes of a user."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ptxrt.compilers import Binary, Included
from ptxrt.errors import InvalidArgument, shown
from ptxrt.events import CacheEvent, emit, log
from ptxrt.store import _files
from ptxrt.store._locks import locked
from ptxrt.store._record import SCHEMA, Damaged, Record, Request

__all__ = ["FOLDERS", "BinaryStore", "StoredEntry", "bytes_in", "current", "is_entry", "root_of"]

FOLDERS = ("entries", "headers", "locks", "tmp", "quarantine")
"""What :func:`root_of` has, beside the memos."""

_PATIENCE = 600.0  # seconds for another process's compile; more is a process that hangs
_TOUCHED = 60.0  # seconds within which a second use changes no time on disk
_ORPHANED = 3600.0  # seconds after which what was being written never will be


@dataclass(frozen=True)
class StoredEntry:
    """An entry of a store, read and verified.

    Attributes
    ----------
    key, path
        Its name, and its folder.
    record
        What its JSON says; None where it is damaged.
    problem
        How it is damaged, in words; None where it is sound.
    size
        Bytes on disk.
    last_used
        Seconds since 1970, up to a minute early.
    """

    key: str
    path: Path
    record: Record | None
    problem: str | None
    size: int
    last_used: float


def root_of(folder: Path) -> Path:
    """Return where in a store's folder is what this version of ptxrt reads and writes."""
    return folder / f"v{SCHEMA}"


class BinaryStore:
    """Compiled binaries in a folder, shared by the processes of a user.

    An entry is a folder with the raw binary, which the vendors' tools open, and ``entry.json``, which says all that is
    known of it; docs/cache.md has the schema. It appears whole, never changes, and is verified whenever it is read. One
    process at a time compiles for a key, and the others wait. What is damaged is put aside and compiled once more; a
    disk that is full or may not be written costs one warning, and the binaries stay in memory.

    Parameters
    ----------
    folder
        Where; made at the first use, for its owner alone.
    max_bytes
        Past it the least recently used entries go.
    shared
        Another store's folder, which is read and never written.
    """

    def __init__(self, folder: Path, *, max_bytes: int = 512 << 20, shared: Path | None = None) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.shared = shared
        self._root = root_of(folder)
        self._usable: bool | None = None
        self._warned = False
        self._bytes = max_bytes + 1  # as of the last time that this process looked, so it looks at its first entry

    def __repr__(self) -> str:
        return f"<BinaryStore {self.folder}>"

    @property
    def memos(self) -> Path:
        """The folder of :mod:`ptxrt.memos`."""
        return self._root / "memos"

    # Finding and storing ------------------------------------------------------------------------------------------

    def binary(self, request: Request, text: str, compile: Callable[[], Binary]) -> Binary:
        """Return the stored outcome of a request, or have it compiled, for all processes once, and store it.

        Parameters
        ----------
        request
            What is asked for.
        text
            The source's.
        compile
            Compiles it. What it raises is raised, and not stored.
        """
        began = time.perf_counter()
        found = self.find(request, text)
        took = time.perf_counter() - began
        emit(CacheEvent("miss" if found is None else "hit", "disk", request.key(), request.shown, took))
        if found is not None:
            return found
        if not self.usable:
            return compile()
        with locked(self._root / "locks" / request.key(), _PATIENCE) as alone:
            # Another process may have stored it meanwhile; and nobody stores now what is taken for damaged.
            found = self.find(request, text, mend=alone is not False)
            if found is not None:
                return found
            since = time.time()
            binary = compile()
            self._put(request, binary, since)
        return binary

    def find(self, request: Request, text: str, *, mend: bool = False) -> Binary | None:
        """Return the stored outcome of a request, None where there is none.

        Parameters
        ----------
        request, text
            As for :meth:`binary`.
        mend
            Put aside what is damaged. Without it that counts as not there.
        """
        text_key = request.key()
        for root, ours in self._roots():
            path = listed = f"{root}/headers/{text_key}"  # a Path is slow to make
            try:
                key, headers = (text_key, {}) if request.language == "ptx" else _key(listed, text_key)
                path = _place(root, key)
                read = _read(path, key)
                if read is None:
                    continue
                record, code = read
                if record.headers == headers:  # the list of files that was looked at is a hint
                    found = record.made(code, text)
                    if ours:
                        _touch(f"{path}/entry.json")
                        if headers:
                            _touch(listed)
                    return found
            except Damaged as damage:
                if ours and mend:
                    self._put_aside(Path(path), damage)
                elif not ours:
                    self._warn(f"{path} is damaged ({damage}), and another one is compiled")
        return None

    def _roots(self) -> Iterator[tuple[Path, bool]]:
        if self.usable:
            yield self._root, True
        if self.shared is not None:
            yield root_of(self.shared), False

    def _put(self, request: Request, binary: Binary, began: float) -> None:
        """Store an outcome, unless a file may have changed since its compile began: then nobody knows what it read."""
        included, headers = binary.included, binary.included.held()
        key = included.key(request.key())
        if not included.known or included.changed_since(began):
            return
        if not request.compiler.startswith(binary.compiler):
            return  # another version than a memo said: the next process has it right
        record = Record.of(key, request, binary, headers)
        encoded = record.encoded()
        size = record.size + len(encoded)
        if size > self.max_bytes:
            return  # it would push out all others, and then go itself
        part = self._root / "tmp" / f"{key}.{os.getpid()}.{os.urandom(4).hex()}"
        try:
            part.mkdir(mode=0o700)
            if headers:  # first: an entry that is not found would be of no use
                listed = part / "headers"
                _files.write(listed, "\0".join(headers).encode("utf-8", "surrogatepass"))
                _files.again(lambda: listed.replace(self._root / "headers" / request.key()))
            _files.write(part / record.file, binary.code)
            _files.write(part / "entry.json", encoded)
            place = Path(_place(self._root, key))
            place.parent.mkdir(mode=0o700, exist_ok=True)
            try:
                _files.again(lambda: part.rename(place))
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            self._bytes += size
            if self._bytes > self.max_bytes:
                self.prune()
        except OSError as error:
            self._warn(f"{self.folder} cannot be written ({error}): what is compiled stays in memory")
            self._usable = None  # looked at anew next time: somebody may have removed the folder
        finally:
            _files.removed(part)

    def _put_aside(self, path: Path, damage: Damaged) -> None:
        aside = self._root / "quarantine" / f"{path.name}.{time.time_ns()}"
        try:
            _files.again(lambda: path.rename(aside))
        except OSError as error:
            if not os.path.lexists(path):
                return  # another process was first
            self._warn(f"{path} is damaged ({damage}) and cannot be put aside ({error}); it is compiled once more")
        else:
            why = f"{damage}; it is put aside as {aside} and compiled once more"
            emit(CacheEvent("quarantine", "disk", path.name, str(path), error=why))

    # The folder ---------------------------------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        """Whether the folder is there, or could be made, and is this user's alone to write; else the log says why."""
        if self._usable is None:
            self._usable = self._made()
        return self._usable

    def _made(self) -> bool:
        """Make the folders; return whether they are this user's alone to write."""
        try:
            for folder in (self.folder, self._root):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                status = folder.stat()
                if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                    self._warn(
                        f"{folder} belongs to another user, or one may write to it, who could put code there. It is "
                        f"not used: make it yours alone (chmod 700), or name another folder in PTXRT_CACHE_DIR"
                    )
                    return False
        except OSError as error:
            self._warn(
                f"{self.folder} cannot be made ({error}): what is compiled stays in memory. "
                f"Name another folder in PTXRT_CACHE_DIR"
            )
            return False
        try:
            for name in FOLDERS:
                (self._root / name).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:  # what is there is read all the same
            self._warn(f"{self.folder} cannot be written ({error}): what is compiled stays in memory")
        return True

    def _warn(self, words: str) -> None:
        """Say what is wrong with the disk, once a process."""
        if not self._warned:
            self._warned = True
            log().warning("the store of compiled kernels: %s", words)

    # Upkeep -------------------------------------------------------------------------------------------------------

    def entries(self) -> Iterator[StoredEntry]:
        """Yield all entries, each read and verified; one that another process removes meanwhile is passed over."""
        for path in filter(is_entry, self._paths()):
            last_used = _changed(path / "entry.json")
            problem, read = None, None
            try:
                read = _read(path, path.name)
                if read is None:
                    continue
                read[0].made(read[1], "")
            except Damaged as damage:
                problem = str(damage)
            yield StoredEntry(path.name, path, read[0] if read else None, problem, _files.sizes(path), last_used)

    def unreadable(self) -> str | None:
        """Return in words which of its folders cannot be listed, None where all can; what is in one counts as gone."""
        folders = [self.folder, self._root, self.memos, *(self._root / name for name in FOLDERS)]
        for folder in (*folders, *_files.inside(self._root / "entries")):
            try:
                os.listdir(folder)
            except OSError as error:
                if not _files.is_gone(error):
                    return f"{folder} cannot be read: {error.strerror}"
        return None

    def _paths(self) -> list[Path]:
        return [path for folder in _files.inside(self._root / "entries") for path in _files.inside(folder)]

    def prune(self, max_bytes: int | None = None, *, idle_seconds: float | None = None) -> int:
        """Remove what no process will finish, what was put aside, then the least recently used entries.

        Parameters
        ----------
        max_bytes
            How much may stay; the store's own bound if None.
        idle_seconds
            An entry that was not used for longer goes in any case.

        Returns
        -------
        Bytes
            That were removed.
        """
        bound = self.max_bytes if max_bytes is None else max_bytes
        with locked(self._root / "locks" / "prune", 0) as alone:
            if alone is False:  # another process is at it: two would remove more than has to go
                return 0
            return self._prune(bound, 0.0 if idle_seconds is None else time.time() - idle_seconds)

    def _prune(self, bound: int, oldest: float) -> int:
        freed = self._remove_leftovers()
        found = [(0.0, path) for path in _files.inside(self._root / "quarantine")]
        found += [(_changed(path / "entry.json"), path) for path in self._paths()]
        for folder in (self._root / "headers", self.memos):
            found += [(_changed(path), path) for path in _files.inside(folder)]
        sizes = {path: _files.sizes(path) for _, path in found}
        total = sum(sizes.values())
        for used, path in sorted(found):
            if total <= bound and used >= oldest:
                break
            # Also where it is gone already, or cannot go: for that no other one has to.
            total -= sizes[path]
            freed += self._remove(path)
            if not os.path.lexists(path):
                emit(CacheEvent("evict", "disk", path.name, str(path)))
        self._bytes = total
        return freed

    def _remove_leftovers(self) -> int:
        """Remove what processes have left that were ended while they wrote; return the bytes."""
        old = time.time() - _ORPHANED
        for path in _files.inside(self._root / "locks"):
            if _changed(path) < old:
                with locked(path, 0) as alone:
                    if alone is not False:
                        _files.removed(path)
        return sum(self._remove(path) for path in _files.inside(self._root / "tmp") if _changed(path) < old)

    def _remove(self, path: Path) -> int:
        """Remove an entry in one step, for readers; return its bytes, 0 where it stays."""
        size = _files.sizes(path)
        gone = self._root / "tmp" / f"{path.name[:64]}.{os.urandom(4).hex()}"
        with contextlib.suppress(OSError):
            path.rename(gone)
        return size if _files.removed(gone) and not os.path.lexists(path) else 0

    def clear(self) -> int:
        """Remove all entries; return how many bytes that was. A compile that is under way stores its outcome still."""
        folders = (self._root / "quarantine", self._root / "headers", self.memos)
        others = [path for folder in folders for path in _files.inside(folder)]
        return sum(self._remove(path) for path in (*self._paths(), *others)) + self._remove_leftovers()


def is_entry(path: Path) -> bool:
    """Return whether an entry may be there, as which it is looked for; what else is in the folder is never read."""
    return re.fullmatch("[0-9a-f]{64}", path.name) is not None and path.parent.name == path.name[:2]


def _place(root: Path, key: str) -> str:
    return f"{root}/entries/{key[:2]}/{key}"


def _key(listed: str, text_key: str) -> tuple[str, dict[str, str | None]]:
    """Return an entry's name by what the files hold now that its compile read, and what that is.

    Raises
    ------
    Damaged
        If the list of these files is there and cannot be read.
    """
    try:
        files = Included(tuple(_files.read(listed).decode("utf-8", "surrogatepass").split("\0")))
    except OSError as error:
        if _files.is_gone(error) or _files.is_passing(error):
            return text_key, {}  # no headers, or nothing stored
        raise Damaged(f"it cannot be read: {error}") from error
    except ValueError as error:
        raise Damaged(f"it is no list of files: {error}") from error
    held = files.held()
    return files.key(text_key, held), held


def _read(path: str | Path, key: str) -> tuple[Record, bytes] | None:
    """Return what an entry's folder holds; None where there is none, or nobody can say now.

    Raises
    ------
    Damaged
        If it is not all there, as it was written.
    """
    try:
        record = Record.decoded(_files.read(f"{path}/entry.json"), key)
        return record, _files.read(f"{path}/{record.file}")
    except OSError as error:
        if _files.is_passing(error) or (_files.is_gone(error) and not os.path.lexists(path)):
            return None
        raise Damaged(f"it cannot be read: {error}") from error


def _changed(path: Path) -> float:
    """Return when a file was written or noted as used, seconds since 1970; 0 if it is not there."""
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _touch(file: str) -> None:
    """Note the use, for what is pruned first."""
    try:
        if abs(time.time() - os.stat(file).st_mtime) > _TOUCHED:  # it may be a moment to come
            os.utime(file)
    except OSError:
        pass


# The environment's -------------------------------------------------------------------------------------------------

_STORES: dict[tuple[str, int, str | None], BinaryStore] = {}


def current() -> BinaryStore | None:
    """Return the store that the environment names, None where PTXRT_CACHE_DISABLE is 1.

    Raises
    ------
    InvalidArgument
        If PTXRT_CACHE_MAX_BYTES is no number of bytes, or PTXRT_CACHE_DISABLE neither 0 nor 1.
    """
    disabled = os.environ.get("PTXRT_CACHE_DISABLE") or "0"
    if disabled not in ("0", "1"):
        raise _wrong("PTXRT_CACHE_DISABLE", "0 or 1", disabled)
    if disabled == "1":
        return None
    given = os.environ.get("PTXRT_CACHE_MAX_BYTES") or str(512 << 20)
    max_bytes = bytes_in(given)
    if max_bytes is None:
        raise _wrong("PTXRT_CACHE_MAX_BYTES", "a number of bytes", given)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # for XDG's specification a relative one counts as none
        base = os.path.join("~", ".cache")
    folder = _absolute(os.environ.get("PTXRT_CACHE_DIR") or os.path.join(base, "ptxrt"))
    shared = os.environ.get("PTXRT_CACHE_SHARED")
    which = (folder, max_bytes, _absolute(shared) if shared else None)
    store = _STORES.get(which)
    if store is None:
        store = BinaryStore(Path(folder), max_bytes=max_bytes, shared=Path(which[2]) if which[2] else None)
        store = _STORES.setdefault(which, store)
    return store


def bytes_in(text: str) -> int | None:
    """Return the number of bytes that a text says, None where it says none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


def _absolute(folder: str) -> str:
    """Return a folder's whole path; one that cannot be made if it is in the home of somebody who has none."""
    folder = os.path.expanduser(folder)
    return os.path.join(os.devnull, folder) if folder.startswith("~") else os.path.abspath(folder)


def _wrong(name: str, expected: str, given: str) -> InvalidArgument:
    return InvalidArgument(op="load", argument=name, expected=expected, given=shown(given), fix="Or leave it out")
