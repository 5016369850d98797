"""What the tests of the store share: requests, binaries, a compiler that counts, and calls that fail."""

from __future__ import annotations

import builtins
import fcntl
import hashlib
import io
import logging
import os
import pathlib
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from helpers import Patch, need_hip_compilers, need_nvrtc

import ptxrt
from ptxrt import KernelSource, files
from ptxrt.backends import get
from ptxrt.compilers import Binary, EntryInfo, Included, ParamInfo, Report, VariableInfo
from ptxrt.places import Sources
from ptxrt.runtime.modules import ModuleCache
from ptxrt.store import BinaryStore, Request, _files

ALL = os.environ.get("PTXRT_TEST_ALL") == "1"
"""Whether the long forms of the tests run."""

PTX = Request("cuda", "ptx", hashlib.sha256(b"PTX").hexdigest(), None, (), "k", (), "sm_90", "nvJitLink 13.0.1")
CXX = replace(PTX, language="cuda", source=hashlib.sha256(b"C++").hexdigest(), compiler="NVRTC 13.0.1")

BINARY = Binary(
    code=bytes(range(100)),
    kind="cubin",
    arch="sm_90",
    compiler="nvJitLink 13.0.1",
    options=("-O3",),
    log="ptxas info",
    seconds=0.25,
    entries={"k": EntryInfo("k", (ParamInfo(0, 8, "pointer", "x", "f32", True, "const float *"),))},
    reports={"k": Report(registers=12, spill_store_bytes=0)},
    symbols={"k": "k"},
    variables={"v": VariableInfo("v", "f32", (3, 4))},
    ptx="the text",
)
TEXT = "the text"


def with_header(header: Path) -> Binary:
    """Return what a compile of C++ gives that has read one header, and looked for another one."""
    paths = (str(header), str(header.parent / "absent.h"))
    return replace(
        BINARY,
        compiler=CXX.compiler,
        included=Included(paths, opened=paths[:1]),
        sources=Sources((("k.cu", "int x;\n"),)),
        ptx="of C++",
    )


def aged(path: Path, seconds: float) -> None:
    """Let a file have been written so many seconds ago."""
    moment = path.lstat().st_mtime - seconds
    os.utime(path, (moment, moment))


@dataclass
class Compiler:
    """Gives one binary, and counts."""

    binary: Binary = BINARY
    calls: int = 0

    def __call__(self) -> Binary:
        self.calls += 1
        return self.binary


def look(folder: Path, compiler: Callable[[], Binary], request: Request = PTX, **how: Any) -> Binary:
    """Ask as a process would that has just started."""
    return BinaryStore(folder, **how).binary(request, TEXT, compiler)


def assert_sound(folder: Path, request: Request = PTX, expected: Binary = BINARY) -> None:
    """Hold a store to it that all its entries are sound, and that nobody has to compile again."""
    assert [entry.problem for entry in BinaryStore(folder).entries() if entry.problem] == []
    compiler = Compiler(expected)
    for _ in range(2):
        assert look(folder, compiler, request) == expected
    assert compiler.calls <= 1, "it is not found again"
    assert [entry.problem for entry in BinaryStore(folder).entries()] == [None]


def in_child(work: Callable[[], object]) -> int:
    """Return the process of a forked child that does `work`, and ends with 0 if that raised nothing."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)
    return child


def status_of(child: int) -> int:
    """Wait for a child's end, and return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def cache_of(patch: Patch, name: str, arch: str) -> ModuleCache:
    """Return the module cache of a device that is not here, in a process that has just started.

    What it would load is put aside.
    """
    backend = get(name)
    patch.setattr(backend, "load", lambda *_: None)
    patch.setattr(backend, "unload", lambda *_: None)
    return ModuleCache(f"{name}:0", backend, 0, replace(ptxrt.Device("sim:0").properties, arch=arch))


def cache_maker(which: str, patch: Patch) -> Callable[..., Any]:
    """Return what makes such a cache for ``"sim-cuda"``, a backend and a language, an architecture if one is given.

    It has the language, and what makes a text in it: `cache.source`. The test is skipped without the compiler.
    """
    name, language = which.split("-")
    need_hip_compilers() if name == "hip" else need_nvrtc()

    def made(arch: str = "gfx1100" if name == "hip" else "sm_90") -> Any:
        cache: Any = cache_of(patch, name, arch)
        cache.source, cache.language = getattr(KernelSource, language), language
        return cache

    return made


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged since the last call that a user sees."""
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return found


@dataclass
class Faults:
    """Calls of the operating system that raise, of files below a folder, in one thread of tests.

    `calls` has the names of all calls since the last :meth:`plan`, in order.
    """

    folder: Path
    calls: list[str] = field(default_factory=list)
    active: bool = True
    _name: str = ""
    _number: int = 0
    _times: int = 0
    _error: int = 0

    def plan(self, name: str, number: int, error: int, times: int = 1) -> None:
        """Let the call of that name and number, from 1, and the `times` - 1 next ones, fail so; "" is no call."""
        self.calls, self._name, self._number, self._times, self._error = [], name, number, times, error

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Let no call fail in the block, nor be counted."""
        self.active = False
        yield
        self.active = True

    def meet(self, name: str) -> None:
        if not self.active:
            return
        self.calls.append(name)
        if name == self._name and self._number <= self.calls.count(name) < self._number + self._times:
            raise OSError(self._error, os.strerror(self._error), str(self.folder / "injected"))


class _File(io.BytesIO):
    """A file whose writes may fail in their midst."""

    def __init__(self, faults: Faults, file: Any) -> None:
        super().__init__()
        self.faults, self.file = faults, file

    def write(self, data: Any) -> int:
        self.file.write(data[: len(data) // 2])
        self.file.flush()
        self.faults.meet("write")
        return int(self.file.write(data[len(data) // 2 :]))

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return int(self.file.fileno())

    def close(self) -> None:
        self.file.close()
        super().close()


CALLS = ("open", "mkdir", "rename", "replace", "unlink", "stat", "lstat", "utime", "listdir", "fsync", "fstat", "read")


@contextmanager
def faults_in(folder: Path, patch: Patch) -> Iterator[Faults]:
    """Put :class:`Faults` in place; none fails until one is planned."""
    faults = Faults(folder)
    below = str(folder)

    def failing(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made(*args: Any, **how: Any) -> Any:
            if isinstance(args[0], (int, io.FileIO)) or str(args[0]).startswith(below):
                faults.meet(name)
            return call(*args, **how)

        return made

    def opened(path: Any, *args: Any, **how: Any) -> Any:
        file = builtins.open(path, *args, **how)  # noqa: SIM115
        return _File(faults, file) if str(path).startswith(below) else file

    with patch.context() as here:
        accessor = getattr(pathlib, "_normal_accessor", None)  # of Python 3.10
        for name in CALLS:
            call = failing(name, getattr(os, name))
            here.setattr(os, name, call)
            if hasattr(accessor, name):
                here.setattr(accessor, name, call, raising=False)
        here.setattr(fcntl, "flock", failing("flock", fcntl.flock))
        for module in (_files, files):
            here.setattr(module, "open", opened, raising=False)
        here.setattr(time, "sleep", lambda _: None)
        yield faults
