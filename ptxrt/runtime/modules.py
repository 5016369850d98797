"""ModuleCache: what is loaded on one device.

A load is a hit, or one compile for all who wait for it: the first thread that asks for a key compiles, the others
wait for that key alone. What failed is remembered with its error.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from ptxrt.errors import CompileError, InvalidArgument, PtxrtError, Unsupported, fresh

if TYPE_CHECKING:
    from ptxrt.backends import Backend, DeviceProperties, Function
    from ptxrt.compilers import Binary, Included
    from ptxrt.runtime.source import KernelSource

__all__ = ["SCHEMA", "CacheEntry", "CacheStats", "LoadedModule", "ModuleCache"]

SCHEMA = 1
"""Version of the key and of the snapshot; both change with it."""


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


@dataclass(eq=False)
class LoadedModule:
    """A module on a device, for :class:`ptxrt.runtime.kernel.Kernel` to hold."""

    handle: Any
    binary: Binary
    functions: dict[tuple[str, tuple[int, ...]], Function] = field(default_factory=dict)
    holders: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    pins: int = 0

    @property
    def held(self) -> bool:
        """Whether a live Kernel, or one about to be made, needs the module."""
        return self.pins > 0 or len(self.holders) > 0


@dataclass(eq=False)
class _Slot:
    """A key's place in the cache. `done` is set once there is a module or an error; `entry` was asked for first."""

    source: KernelSource
    entry: str
    options: tuple[str, ...]
    arch: str
    compiler: str
    text_key: str
    created: float = field(default_factory=time.time)
    last_used: float = field(default_factory=time.time)
    uses: int = 0
    seconds: float = 0.0
    done: threading.Event = field(default_factory=threading.Event)
    module: LoadedModule | None = None
    error: PtxrtError | None = None

    @property
    def size(self) -> int:
        return len(self.module.binary.code) if self.module else 0


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
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._lock = threading.Lock()
        self._counts = {"hits": 0, "misses": 0, "compiles": 0, "failures": 0, "evictions": 0}
        self._seconds = 0.0
        self._included: dict[str, Included] = {}  # by the key of a text, what its last compile depends on

    @contextmanager
    def module(self, source: KernelSource, entry: str, options: tuple[str, ...]) -> Iterator[LoadedModule]:
        """Give the module of `source` for the time of a ``with`` block; a Kernel made there holds it from then on.

        Raises
        ------
        CompileError
            Now, or remembered from the first time; :meth:`clear` forgets it.
        """
        text_key, compiler = self._key(source, entry, options)
        while True:
            key = _with_headers(text_key, self._included.get(text_key))
            with self._lock:
                slot = self._slots.get(key)
                mine = slot is None
                if slot is None:
                    slot = self._slots[key] = _Slot(source, entry, options, self.properties.arch, compiler, text_key)
                self._slots.move_to_end(key)
            if mine:
                key = self._fill(key, slot)
            slot.done.wait()
            with self._lock:
                if self._slots.get(key) is not slot:
                    continue  # cleared or evicted while this thread waited: look again
                slot.uses += 1
                slot.last_used = time.time()
                self._counts["misses" if mine else "hits"] += 1
                if slot.module is not None:
                    slot.module.pins += 1
                    break
            if slot.error is not None:
                self._evict()  # failures count too
                raise fresh(slot.error)
        try:
            yield slot.module
        finally:
            with self._lock:
                slot.module.pins -= 1
            self._evict()

    def _key(self, source: KernelSource, entry: str, options: tuple[str, ...]) -> tuple[str, str]:
        """Return a text's key and the compiler's name and version; the key is a digest over all but the headers."""
        if source.language not in self.backend.languages:
            raise Unsupported(
                op="load",
                argument="source",
                expected=f"a text in {' or '.join(self.backend.languages)} on {self.name}",
                given=source.language,
            )
        compiler = self.backend.compiler(source.language)
        parts = [SCHEMA, source.language, source.digest, options, self.properties.arch, compiler]
        if source.language != "ptx":
            # A C++ template is instantiated for the entry asked for.
            parts += [entry, self.backend.effective_options(source.language, options, source.name)]
        return hashlib.sha256(json.dumps(parts).encode("utf-8", "surrogatepass")).hexdigest(), compiler

    def _moved(self, key: str, slot: _Slot, included: Included | None) -> str:
        """Put a slot where the next load of its text will look, now that it is known what the compiler reads."""
        new = _with_headers(slot.text_key, included)
        with self._lock:
            if included:
                self._included[slot.text_key] = included
            if new == key or self._slots.get(key) is not slot:
                return key
            # Where there is one already the headers are as they were before, and it is as good.
            new = new if new not in self._slots else secrets.token_hex(32)
            self._slots[new] = self._slots.pop(key)
            return new

    def _compiled(self, slot: _Slot, *, again: bool = True) -> Binary:
        """Compile; once more if a header may have been written meanwhile: nobody knows which text the compiler saw."""
        source, began = slot.source, time.time()
        try:
            binary = self.backend.compile(
                source.language,
                source.text,
                slot.arch,
                options=slot.options,
                defines=dict(source.defines),
                name=source.name,
                # A PTX module serves all its entries; whether the one asked for is there is seen later.
                entry=slot.entry if source.language != "ptx" else None,
            )
        except CompileError as error:
            if not (again and error.included and error.included.changed_since(began)):
                raise
        else:
            if not (again and binary.included.changed_since(began)):
                return binary
        return self._compiled(slot, again=False)

    def _fill(self, key: str, slot: _Slot) -> str:
        """Compile and load, and return the slot's key from now on."""
        started = time.perf_counter()
        try:
            try:
                binary = self._compiled(slot)
            finally:
                slot.seconds = time.perf_counter() - started
                with self._lock:
                    self._counts["compiles"] += 1
                    self._seconds += slot.seconds
            slot.module = LoadedModule(self.backend.load(self.ordinal, binary, slot.source.name), binary)
            return self._moved(key, slot, binary.included)
        except CompileError as error:
            # What the machine's parser does not know of its caller, nor has a log apart from its message.
            error.arch, error.options = error.arch or slot.arch, error.options or slot.options
            error.log = error.log or str(error)
            with self._lock:
                self._counts["failures"] += 1
            if error.compiler_lost:
                self._forget(key, slot)
                raise
            slot.error = fresh(error)
            return self._moved(key, slot, error.included)
        except BaseException:
            self._forget(key, slot)
            raise
        finally:
            slot.done.set()

    def _forget(self, key: str, slot: _Slot) -> None:
        """Let the next load try again: what happened is not the text's fault (a lost compiler, no memory, Ctrl-C)."""
        with self._lock:
            if self._slots.get(key) is slot:
                del self._slots[key]

    def stats(self) -> CacheStats:
        """Return the counts; see :class:`CacheStats`."""
        with self._lock:
            loaded = [slot for slot in self._slots.values() if slot.module]
            return CacheStats(
                **self._counts,
                compile_seconds=self._seconds,
                modules=len(loaded),
                bytes=sum(slot.size for slot in loaded),
            )

    def entries(self) -> list[CacheEntry]:
        """Return what is loaded, and what failed, the least recently used first."""
        with self._lock:
            slots = [(key, slot) for key, slot in self._slots.items() if slot.done.is_set()]
            return [self._describe(key, slot) for key, slot in slots]

    def snapshot(self, path: str | os.PathLike[str]) -> None:
        """Write device, stats and entries as JSON (docs/cache.md has the schema); the file appears whole or not at all.

        Raises
        ------
        InvalidArgument
            If the file cannot be written.
        """
        record = {
            "schema": SCHEMA,
            "created": _iso(time.time()),
            "device": {"device": self.name, **asdict(self.properties)},
            "bounds": {"max_modules": self.max_modules, "max_bytes": self.max_bytes},
            "stats": asdict(self.stats()),
            "entries": [asdict(entry) for entry in self.entries()],
        }
        part = None
        try:
            target = Path(path)
            with NamedTemporaryFile("w", dir=target.parent, prefix=f"{target.name}.", delete=False) as file:
                part = Path(file.name)
                json.dump(record, file, indent=1)
            part.replace(target)
        except (OSError, TypeError) as error:
            if part is not None:
                part.unlink(missing_ok=True)
            raise InvalidArgument(
                op="ModuleCache.snapshot",
                argument="path",
                expected="a file that can be written",
                given=f"{path}: {error}",
            ) from error

    def unload(self, digest: str) -> None:
        """Unload one module, or forget one failure, by its digest or an unambiguous beginning of it.

        Raises
        ------
        InvalidArgument
            If there is none, or a live Kernel holds it.
        """
        with self._lock:
            keys = [key for key in self._slots if digest and key.startswith(digest)]
            slot = self._slots[keys[0]] if len(keys) == 1 else None
            if slot is None or not slot.done.is_set() or (slot.module and slot.module.held):
                raise InvalidArgument(
                    op="ModuleCache.unload",
                    argument="digest",
                    expected="the digest of one module that no live Kernel holds",
                    given=f"{digest!r}, " + ("held by a live Kernel" if slot else f"which {len(keys)} modules match"),
                    fix="entries() lists the digests; drop the Kernels first, and with ops.forget_plans() the ops' own",
                )
            del self._slots[keys[0]]
        self._drop([slot])

    def clear(self) -> None:
        """Unload every module that no live Kernel holds, and forget every failure. The counts go on."""
        with self._lock:
            gone = {key: slot for key, slot in self._slots.items() if slot.done.is_set()}
            gone = {key: slot for key, slot in gone.items() if not (slot.module and slot.module.held)}
            for key in gone:
                del self._slots[key]
            self._forget_headers()
        self._drop(list(gone.values()))

    def _evict(self) -> None:
        with self._lock:
            gone = []
            count, size = len(self._slots), sum(slot.size for slot in self._slots.values())
            for key, slot in list(self._slots.items()):
                if count <= self.max_modules and size <= self.max_bytes:
                    break
                if slot.done.is_set() and not (slot.module and slot.module.held):
                    gone.append(self._slots.pop(key))
                    count, size = count - 1, size - slot.size
                    self._counts["evictions"] += 1
            if gone:
                self._forget_headers()
        self._drop(gone)

    def _forget_headers(self) -> None:
        texts = {slot.text_key for slot in self._slots.values()}
        self._included = {key: included for key, included in self._included.items() if key in texts}

    def _drop(self, slots: list[_Slot]) -> None:
        for slot in slots:
            if slot.module is not None:
                self.backend.unload(self.ordinal, slot.module.handle)

    def _describe(self, key: str, slot: _Slot) -> CacheEntry:
        module = slot.module
        functions = list(module.functions.values()) if module else []  # a Kernel may be adding to them
        return CacheEntry(
            digest=key,
            state="loaded" if module else "failed",
            name=slot.source.name,
            language=slot.source.language,
            entry_names=tuple(module.binary.symbols) if module else (slot.entry,),
            options=slot.options,
            defines=slot.source.defines,
            arch=slot.arch,
            compiler=slot.compiler,
            size=slot.size,
            created=_iso(slot.created),
            last_used=_iso(slot.last_used),
            uses=slot.uses,
            compile_seconds=slot.seconds,
            live_kernels=len(module.holders) if module else 0,
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
            error=str(slot.error) if slot.error else None,
        )

    def _lose(self, backend: Any) -> None:
        """Take the backend of a forked child; the lock may have been held by a thread that is not here any more."""
        self.backend = backend
        self._lock = threading.Lock()


def _with_headers(text_key: str, included: Included | None) -> str:
    """Return the key of a text with what the files hold now that its last compile has read or looked for."""
    held = included.digest() if included else ""
    return hashlib.sha256(f"{text_key} {held}".encode()).hexdigest() if held else text_key


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")
