"""ModuleCache: what is loaded on one device.

A load is a hit, or one compile for all threads that wait for it: the first one that asks for a key compiles, and the
others wait for that key alone. A failed compile is remembered with its error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxrt import events, files
from ptxrt.compilers import Included
from ptxrt.errors import CompileError, InvalidArgument, fresh, shown
from ptxrt.runtime.compiling import compiled, request_for, stored

if TYPE_CHECKING:
    from ptxrt.backends import Backend, DeviceProperties, Function, PointerParam
    from ptxrt.compilers import Binary
    from ptxrt.runtime.source import KernelSource
    from ptxrt.store import Request

__all__ = ["SCHEMA", "CacheEntry", "CacheStats", "LoadedModule", "ModuleCache", "iso_time"]

SCHEMA = 1
"""Version of the snapshot."""

_NONE = Included()
_FIRST, _LAST = -62135596800.0, 253402300799.0  # of the years that a datetime has, 1 to 9999


class _Record:
    """Fields by name, ``stats["hits"]``, as well as by attribute."""

    def __getitem__(self, name: str) -> Any:
        try:
            return getattr(self, name)
        except AttributeError:
            raise KeyError(name) from None


@dataclass(frozen=True)
class CacheStats(_Record):
    """Counts since the device was opened, and what is loaded now.

    Attributes
    ----------
    hits, misses
        Loads answered by a loaded module (or by a remembered failure), and those that were not. A load that waited
        for another thread's compile is a hit.
    store_hits
        The misses whose binary was in the store on disk.
    compiles, failures
        Compiles begun, and those that failed.
    evictions
        Modules unloaded to keep within the bounds.
    compile_seconds
        Time in compilers, failures included.
    modules, bytes
        Modules loaded now, and the size of their binaries.
    """

    hits: int
    misses: int
    store_hits: int
    compiles: int
    failures: int
    evictions: int
    compile_seconds: float
    modules: int
    bytes: int


@dataclass(frozen=True)
class CacheEntry(_Record):
    """One module, loaded or failed. `kernels` has the parameter table and resources of the entries looked up so far."""

    digest: str
    state: str
    name: str | None
    language: str
    entry_names: tuple[str, ...]
    options: tuple[str, ...]
    defines: tuple[tuple[str, str], ...]
    arch: str
    compiler: str
    size: int
    created: str
    last_used: str
    uses: int
    compile_seconds: float
    live_kernels: int
    source: str
    kernels: dict[str, Any]
    error: str | None


class LoadedModule:
    """A module on a device. It is unloaded when nothing refers to it any more: its cache does, and each of its Kernels.

    So nothing has to be undone after an exception, whenever it comes (Ctrl-C may come between any two instructions).

    Attributes
    ----------
    handle
        The driver's.
    binary : Binary
    functions : dict
        The entries looked up so far, by name and by what is known of their pointers.
    names : dict
        The parameters' names of the entries that were loaded without a signature.
    layouts : set
        What the compiler has been asked of structs so far, and agreed to.
    """

    handle: Any = None

    def __init__(self, cache: ModuleCache, binary: Binary, name: str | None) -> None:
        self.cache = cache
        self.binary = binary
        self.functions: dict[tuple[str, tuple[PointerParam, ...]], Function] = {}
        self.names: dict[str, list[str]] = {}
        self.layouts: set[Any] = set()
        self._kernels: list[weakref.ref[Any]] = []
        self.handle = cache.backend.load(cache.ordinal, binary, name)

    def __del__(self, at_exit: Callable[[], bool] = sys.is_finalizing) -> None:
        # At exit the driver may be gone before this object. By way of the cache, whose backend a fork replaces.
        if self.handle is not None and not at_exit():
            self.cache.backend.unload(self.cache.ordinal, self.handle)

    def function(self, name: str, pointers: tuple[PointerParam, ...]) -> Function:
        """Return an entry, looked up once.

        Raises
        ------
        CompileError, Unsupported
            On sim, which decodes an entry of several when it is looked up. The module stays loaded for its siblings.
        """
        found = self.functions.get((name, pointers))
        if found is None:
            try:
                found = self.cache.backend.function(self.cache.ordinal, self.handle, self.binary, name, pointers)
            except CompileError as error:
                error.included = self.binary.included
                _complete(error, self.binary.arch, self.binary.options)
                raise
            self.functions[name, pointers] = found
            self.cache.owners[id(found.handle)] = self
        return found

    @property
    def live_kernels(self) -> int:
        """How many Kernels need the module."""
        return sum(kernel() is not None for kernel in self._kernels)

    def add_kernel(self, kernel: Any) -> None:
        """Count a Kernel as live as long as it is there."""
        with self.cache._lock:
            # No callback takes a dead one out: an exception could stop it, and the module would count as held for ever.
            self._kernels = [known for known in self._kernels if known() is not None] + [weakref.ref(kernel)]


@dataclass(eq=False)
class _Slot:
    """A key's place in the cache. It is empty until there is an outcome; `entry` was asked for first.

    Whoever has the lock of an empty slot fills it. A thread that is interrupted while it does, or before, leaves an
    empty slot, which the next one fills.
    """

    source: KernelSource
    request: Request
    text_key: str
    key: str
    created: float = field(default_factory=time.time)
    last_used: float = field(default_factory=time.time)
    uses: int = 0
    seconds: float = 0.0
    size: int = 0
    # A signal handler may load the same text: then the thread that it interrupted compiles once more.
    lock: threading.RLock = field(default_factory=threading.RLock)
    outcome: LoadedModule | CompileError | None = None

    @property
    def module(self) -> LoadedModule | None:
        return self.outcome if isinstance(self.outcome, LoadedModule) else None

    @property
    def held(self) -> bool:
        return self.module is not None and self.module.live_kernels > 0


class ModuleCache:
    """The modules of one device, ``device.modules``.

    Parameters
    ----------
    name
        The device's, for messages.
    backend, ordinal, properties
        The device.

    Attributes
    ----------
    max_modules, max_bytes : int
        Past either bound the least recently used modules that no live Kernel holds are unloaded. They may be set.
    """

    def __init__(self, name: str, backend: Backend, ordinal: int, properties: DeviceProperties) -> None:
        self.name = name
        self.backend = backend
        self.ordinal = ordinal
        self.properties = properties
        self.max_modules = 512
        self.max_bytes = 256 << 20
        self._slots: dict[str, _Slot] = {}
        self._lock = threading.RLock()
        self._counts = {"hits": 0, "misses": 0, "store_hits": 0, "compiles": 0, "failures": 0, "evictions": 0}
        self._seconds = 0.0
        # Key, time and whether it missed, of each use that is not counted yet: a hit needs no lock.
        self._uses: deque[tuple[str, float, bool]] = deque()
        # PTX that is loaded, by its text's digest and the options: nothing else is in its key.
        self._ready: dict[tuple[str, tuple[str, ...]], _Slot] = {}
        # The module of an entry, by the identity of its handle: for graphs, which see no more than that.
        self.owners: weakref.WeakValueDictionary[int, LoadedModule] = weakref.WeakValueDictionary()
        self._included: dict[str, Included] = {}  # by the key of a text, what its last compile depends on

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<ModuleCache of {self.name}: {stats}>"

    def module(self, source: KernelSource, entry: str, options: tuple[str, ...]) -> LoadedModule:
        """Return the module of `source`, loaded. It stays so as long as the caller refers to it.

        Raises
        ------
        CompileError
            Now, or remembered from the first time; :meth:`clear` forgets it.
        """
        began = time.perf_counter() if events.subscribers else 0.0
        slot = self._ready.get((source.digest, options))
        missed, outcome = False, slot.outcome if slot else None
        if slot is None or outcome is None:
            slot, missed, outcome = self._looked_up(source, entry, options)
        self._uses.append((slot.key, time.time(), missed))
        if began and not missed:
            took = time.perf_counter() - began
            events.emit(events.CacheEvent("hit", "memory", slot.key, slot.request.shown, took))
        if isinstance(outcome, CompileError):
            raise fresh(outcome)
        return outcome

    def _looked_up(
        self, source: KernelSource, entry: str, options: tuple[str, ...]
    ) -> tuple[_Slot, bool, LoadedModule | CompileError]:
        """Return the slot of a text, whether it had to be filled, and what is in it."""
        request = self._request(source, entry, options)
        text_key = request.key()
        while True:
            included = self._included.get(text_key, _NONE)
            key = included.key(text_key)
            with self._lock:
                if self._included.get(text_key, _NONE) is included:  # else another thread has just compiled it
                    slot = self._slots.setdefault(key, _Slot(source, request, text_key, key))
                    break
        with slot.lock:
            missed = slot.outcome is None
            return slot, missed, slot.outcome or self._fill(key, slot)

    def _request(self, source: KernelSource, entry: str, options: tuple[str, ...]) -> Request:
        return request_for(self.backend, source, entry, options, self.properties.arch, self.name)

    def _fill(self, key: str, slot: _Slot) -> LoadedModule | CompileError:
        """Compile and load; give the slot its module, or the error that is the text's fault."""
        try:
            outcome = self._outcome(slot)
            included = outcome.included if isinstance(outcome, CompileError) else outcome.binary.included
            new = (included or _NONE).key(slot.text_key)
            with self._lock:
                if self._slots.get(key) is slot:
                    del self._slots[key]
                if included:
                    self._included[slot.text_key] = included
                # Where the next load of the text looks. A slot is there already if the headers are as they were before.
                outcome = self._slots.setdefault(new, slot).outcome or outcome
                slot.size = len(outcome.binary.code) if isinstance(outcome, LoadedModule) else 0
                slot.outcome, slot.key = outcome, new
                if slot.request.language == "ptx" and slot.module:
                    self._ready[slot.source.digest, slot.request.options] = slot
        except BaseException:
            # The next load tries again: a lost compiler, no memory and Ctrl-C are not the text's fault.
            with self._lock:
                if self._slots.get(key) is slot:
                    del self._slots[key]
            raise
        return outcome

    def _outcome(self, slot: _Slot) -> LoadedModule | CompileError:
        try:
            binary = stored(self.backend, slot.source, slot.request, partial(self._compiled, slot))
            if not slot.seconds:
                with self._lock:
                    self._counts["store_hits"] += 1
            return LoadedModule(self, binary, slot.source.name)
        except CompileError as error:
            _complete(error, slot.request.arch, slot.request.options)
            with self._lock:
                self._counts["failures"] += 1
            if error.compiler_lost:
                raise
            return fresh(error)

    def _compiled(self, slot: _Slot) -> Binary:
        started = time.perf_counter()
        try:
            return compiled(self.backend, slot.source, slot.request)
        finally:
            slot.seconds = time.perf_counter() - started
            with self._lock:
                self._counts["compiles"] += 1
                self._seconds += slot.seconds

    def _count_uses(self) -> None:
        """Count the uses since the last time; to be called with the lock, by whoever wants the counts or the order."""
        while self._uses:
            key, moment, missed = self._uses.popleft()
            self._counts["misses" if missed else "hits"] += 1
            if slot := self._slots.pop(key, None):
                slot.uses, slot.last_used = slot.uses + 1, moment
                self._slots[key] = slot  # the last one is the most recently used

    def stats(self) -> CacheStats:
        """Return the counts; see :class:`CacheStats`."""
        with self._lock:
            self._count_uses()
            loaded = [slot for slot in list(self._slots.values()) if slot.module]
            return CacheStats(
                **self._counts,
                compile_seconds=self._seconds,
                modules=len(loaded),
                bytes=sum(slot.size for slot in loaded),
            )

    def entries(self) -> list[CacheEntry]:
        """Return what is loaded, and what failed, the least recently used first."""
        with self._lock:
            self._count_uses()
            return [self._describe(key, slot) for key, slot in list(self._slots.items()) if slot.outcome is not None]

    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write device, stats and entries as JSON (docs/cache.md has the schema); the file appears whole or not at all.

        Raises
        ------
        InvalidArgument
            If the file cannot be written.
        """
        record = {
            "schema": SCHEMA,
            "created": iso_time(time.time()),
            "device": {"device": self.name, **asdict(self.properties)},
            "bounds": {"max_modules": self.max_modules, "max_bytes": self.max_bytes},
            "stats": asdict(self.stats()),
            "entries": [asdict(entry) for entry in self.entries()],
        }
        try:
            files.replace(Path(path), json.dumps(record, indent=1).encode("ascii"))
        except (OSError, TypeError, ValueError) as error:  # ValueError: a NUL or half a character in the path
            raise InvalidArgument(
                op="ModuleCache.snapshot",
                argument="path",
                expected="a file that can be written",
                given=f"{shown(path)}: {error}",
            ) from error

    def unload(self, digest: str) -> None:
        """Unload one module, or forget one failure, by its digest or an unambiguous beginning of it.

        Raises
        ------
        InvalidArgument
            If there is none, or a live Kernel holds it.
        """
        with self._lock:
            self._count_uses()
            known = list(self._slots) if isinstance(digest, str) and digest else []
            keys = [key for key in known if key.startswith(digest)]
            slot = self._slots.get(keys[0]) if len(keys) == 1 else None
            if slot is None or slot.outcome is None or slot.held:
                state = "held by a live Kernel" if slot and slot.held else "still being compiled"
                raise InvalidArgument(
                    op="ModuleCache.unload",
                    argument="digest",
                    expected="the digest of one module that no live Kernel holds",
                    given=f"{shown(digest)}, " + (state if slot else f"which {len(keys)} modules match"),
                    fix="entries() lists the digests; drop the Kernels first, and with ops.forget_plans() the ops' own",
                )
            self._slots.pop(keys[0], None)
            self._forget()

    def clear(self) -> None:
        """Unload every module that no live Kernel holds, and forget every failure. The counts go on."""
        with self._lock:
            self._count_uses()
            # They are unloaded on return, when nothing refers to them, and the lock is free again.
            known = list(self._slots.items())
            unused = {key: slot for key, slot in known if slot.outcome is not None and not slot.held}
            for key in unused:
                self._slots.pop(key, None)
            self._forget()

    def trim(self) -> None:
        """Unload the least recently used modules that no live Kernel holds, until the cache is within its bounds.

        Each load does so. Remembered failures count as modules.
        """
        unused = []
        with self._lock:
            self._count_uses()
            known = [(key, slot) for key, slot in list(self._slots.items()) if slot.outcome is not None]
            count, size = len(known), sum(slot.size for _, slot in known)
            for key, slot in known:
                if count <= self.max_modules and size <= self.max_bytes:
                    break
                if not slot.held:
                    unused.append(self._slots.pop(key, slot))
                    count, size = count - 1, size - slot.size
                    self._counts["evictions"] += 1
            if unused:
                self._forget()
        for slot in unused:
            events.emit(events.CacheEvent("evict", "memory", slot.key, slot.request.shown))

    def _forget(self) -> None:
        """Let go of what belongs to slots that are there no more."""
        self._ready = {key: slot for key, slot in list(self._ready.items()) if self._slots.get(slot.key) is slot}
        texts = {slot.text_key for slot in list(self._slots.values())}
        self._included = {key: included for key, included in list(self._included.items()) if key in texts}

    def _describe(self, key: str, slot: _Slot) -> CacheEntry:
        module = slot.module
        functions = list(module.functions.values()) if module else []  # a Kernel may be adding to them
        return CacheEntry(
            digest=key,
            state="loaded" if module else "failed",
            name=slot.request.name,
            language=slot.request.language,
            entry_names=tuple(module.binary.symbols) if module else (slot.request.entry,),
            options=slot.request.options,
            defines=slot.request.defines,
            arch=slot.request.arch,
            compiler=slot.request.compiler,
            size=slot.size,
            created=iso_time(slot.created),
            last_used=iso_time(slot.last_used),
            uses=slot.uses,
            compile_seconds=slot.seconds,
            live_kernels=module.live_kernels if module else 0,
            source=slot.source.text,
            kernels={
                function.name: {
                    "params": [
                        {"offset": p.offset, "size": p.size, "kind": p.kind, "name": p.name} for p in function.params
                    ],
                    "resources": asdict(function.resources),
                }
                for function in functions
            },
            error=str(slot.outcome) if isinstance(slot.outcome, CompileError) else None,
        )

    def _after_fork(self, backend: Any) -> None:
        """Take the backend of a forked child; the lock may have been held by a thread that is not here any more."""
        self.backend = backend
        self._lock = threading.RLock()
        self._ready = {}


def _complete(error: CompileError, arch: str, options: tuple[str, ...]) -> None:
    """Add what the machine's parser does not know of its caller; nor has it a log apart from its message."""
    error.arch, error.options = error.arch or arch, error.options or options
    error.log = error.log or str(error)


def iso_time(seconds: float) -> str:
    """Return a moment, in seconds since 1970, as snapshots have it: ISO 8601, in UTC, with milliseconds.

    One outside of the years 1 to 9999, which a file can have, is the nearest in them.
    """
    return datetime.fromtimestamp(min(max(seconds, _FIRST), _LAST), timezone.utc).isoformat(timespec="milliseconds")
