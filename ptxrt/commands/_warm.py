"""``ptxrt cache warm``: compile into the store what later processes will load, for any architecture, with no GPU."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import wait
from typing import NamedTuple

from tqdm import tqdm

from ptxrt import ops
from ptxrt.backends import Backend, get
from ptxrt.commands._choosing import wrong
from ptxrt.commands._store_report import open_store
from ptxrt.commands.tables import counted, size_in_words
from ptxrt.compilers import Binary, hiprtc
from ptxrt.compilers.ptx_text import require_entry, scan, suggestion
from ptxrt.errors import PtxrtError, shown
from ptxrt.ops.framework import KernelSpec
from ptxrt.ops.framework.plan import preferred_language
from ptxrt.runtime.compiling import compiled, request_for, stored
from ptxrt.runtime.device import devices
from ptxrt.runtime.source import KernelSource
from ptxrt.store import Request

__all__ = ["Job", "jobs_of_file", "jobs_of_ops", "run", "wanted_architectures"]

# What a device of AMD reports behind its processor, by LLVM's table of AMDGPU's target features, in this order.
_BOTH = ("gfx906", "gfx908", "gfx90a", "gfx940", "gfx941", "gfx942", "gfx950")
_XNACK = ("gfx900", "gfx902", "gfx904", "gfx909", "gfx90c", "gfx1010", "gfx1011", "gfx1012", "gfx1013")
_FLAGS = {**dict.fromkeys(_BOTH, ":sramecc+:xnack-"), **dict.fromkeys(_XNACK, ":xnack-")}
_NOT_STORED = "it was compiled, but not stored: the folder cannot be written, or its headers cannot be known"
_SHOWN = 5


@dataclass(frozen=True)
class Job:
    """One compile: what, the entry that is asked for, the options, and the architecture with its flags."""

    what: KernelSpec | KernelSource
    entry: str
    arch: str
    options: tuple[str, ...] = ()

    @property
    def source(self) -> KernelSource:
        """The text; a kernel of the library is rendered by the process that compiles it."""
        return self.what.source if isinstance(self.what, KernelSpec) else self.what

    @property
    def backend(self) -> Backend:
        """That of a device of this architecture."""
        return get("hip" if self.arch.startswith("gfx") else "cuda")

    def request(self) -> Request:
        """Return what a load on such a device asks for.

        Raises
        ------
        PtxrtError
            If the backend does not take the language, or has no compiler for it; for an option that is refused.
        """
        return request_for(self.backend, self.source, self.entry, self.options, self.arch, self.arch)


class Outcome(NamedTuple):
    """Of a job: whether it had to be compiled, the bytes of code, and what went wrong."""

    compiled: bool
    size: int
    error: str | None


# What is compiled ---------------------------------------------------------------------------------------------------


def wanted_architectures(given: str | None) -> list[str]:
    """Return the architectures in ``"sm_90,gfx1100"``; without one those of the GPUs here.

    Raises
    ------
    InvalidArgument
        For a name that no device has, and where neither a name nor a GPU is there.
    """
    if given is None:
        found = list(dict.fromkeys(device.arch for device in devices() if device.kind != "sim"))
        if not found:
            fix = "Name them: --arch sm_90,gfx942:sramecc+:xnack-"
            raise wrong("--arch", "one, since there is no GPU here", "none", fix)
        return found
    architectures = list(dict.fromkeys(given.split(",")))
    for arch in architectures:
        if arch.startswith("gfx"):
            hiprtc.check_target(arch)
            processor = arch.partition(":")[0]
            whole = "gfx1100" if "generic" in arch else processor + _FLAGS.get(processor, "")
            if arch.replace("+", "-") != whole.replace("+", "-"):
                raise wrong("--arch", f"the whole name that a device reports, such as {whole}", repr(arch))
        elif not re.fullmatch("sm_[0-9]{2,3}", arch):
            raise wrong("--arch", "names as devices report them, such as sm_90 or gfx1100, with commas", repr(arch))
    return architectures


def jobs_of_ops(names: Sequence[str], architectures: Sequence[str]) -> list[Job]:
    """Return all kernels that plans can select on devices of these architectures: of the named ops, or of all.

    On NVIDIA's these are the ones in PTX, or in the language that PTXRT_LANGUAGE names.

    Raises
    ------
    InvalidArgument
        For an op that there is not.
    """
    known = sorted({spec.op for spec in ops.kernels()})
    for name in names:
        if name not in known:
            raise wrong("OP", f"one of {', '.join(known)}", repr(name), suggestion(name, known))
    return [
        Job(spec, spec.entry, arch)
        for arch in architectures
        for spec in ops.kernels()
        if (not names or not {spec.op, *spec.also}.isdisjoint(names)) and _runs_on(spec, arch)
    ]


def _runs_on(spec: KernelSpec, arch: str) -> bool:
    if arch.startswith("gfx"):
        return spec.language == "hip"
    return spec.language == (preferred_language() or "ptx") and int(arch[3:]) >= (spec.target or 0)


def jobs_of_file(
    path: str,
    entries: Sequence[str],
    options: Sequence[str],
    defines: Mapping[str, str | None],
    architectures: Sequence[str],
) -> list[Job]:
    """Return the kernels of a file. PTX is compiled whole, C++ for one entry at a time.

    Raises
    ------
    InvalidArgument
        If the file cannot be read; for C++ without an entry.
    CompileError
        For PTX without such an entry.
    """
    source = KernelSource.from_file(path, defines)
    if source.language == "ptx":
        there = scan(source.text, source.name).entries
        for entry in entries:
            require_entry(entry, there, source.name, text=source.text)
        entries = [*entries, *there][:1]
    elif not entries:
        raise wrong("--entry", "the kernels of a file in C++, which is compiled for one at a time", "none")
    return [Job(source, entry, arch, tuple(options)) for arch in architectures for entry in entries]


# The compiles -------------------------------------------------------------------------------------------------------


def _outcome(job: Job) -> Outcome:
    """Have a job's binary in the store, as a load would; this runs in a process of its own."""
    compiles = []

    def compile() -> Binary:
        compiles.append(job)
        return compiled(job.backend, source, request)

    try:
        source, request = job.source, job.request()
        size = len(stored(job.backend, source, request, compile).code)
        is_there = open_store().find(request, source.text) is not None
    except PtxrtError as error:
        return Outcome(bool(compiles), 0, str(error))
    return Outcome(bool(compiles), size, None if is_there else _NOT_STORED)


def _begin() -> None:
    """Leave Ctrl-C to the parent, and end when it has ended, however that came."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_behind, args=(parent.sentinel,), daemon=True).start()


def _end_behind(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _outcomes(jobs: Sequence[Job], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from map(_outcome, jobs)
        return
    spawned = multiprocessing.get_context("spawn")  # a forked child has no driver
    pool = ProcessPoolExecutor(processes, spawned, initializer=_begin)
    try:
        yield from pool.map(_outcome, jobs, chunksize=4)
    except BrokenProcessPool as error:
        fix = "More memory, or fewer processes with --jobs, may help"
        raise PtxrtError(
            op="cache", argument="warm", expected="compilers that end", given=str(error), fix=fix
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def run(
    jobs: Sequence[Job],
    processes: str | None,
    as_json: bool,
    say: Callable[[str], None],
    complain: Callable[[str, int], int],
) -> int:
    """Compile, say what was done, complain of what failed, and return the exit code.

    Raises
    ------
    InvalidArgument
        For a number of processes that is none, and where there is nothing to compile.
    PtxrtError
        If there is no compiler, or it does not take the language; before any compile.
    """
    if processes is None:
        workers = len(os.sched_getaffinity(0))
    elif re.fullmatch("[1-9][0-9]{0,3}", processes):
        workers = int(processes)
    else:
        raise wrong("--jobs", "a number of processes", shown(processes))
    if not jobs:
        raise wrong("warm", "a kernel for one of the architectures", "none")
    store = open_store()
    if not store.usable:
        return complain(f"{store.folder} cannot be used", 1)
    for first in {job.arch: job for job in jobs}.values():
        first.request()
    done, failed, size = [0, 0], [], 0
    with tqdm(
        zip(jobs, _outcomes(jobs, min(workers, len(jobs))), strict=True),
        total=len(jobs), unit="kernel", leave=False, disable=sys.stderr is None or None, file=sys.stderr,
    ) as progress:  # fmt: skip
        for job, outcome in progress:
            size += outcome.size
            if outcome.error is None:
                done[outcome.compiled] += 1
            else:
                failed.append({"entry": job.entry, "arch": job.arch, "error": outcome.error})
    there, new = done
    if as_json:
        record = {
            "folder": str(store.folder),
            "kernels": len(jobs),
            "compiled": new,
            "present": there,
            "failed": failed,
        }
        say(json.dumps(record, indent=1))
    else:
        architectures = ", ".join(dict.fromkeys(job.arch for job in jobs))
        say(
            f"{store.folder}: {counted(len(jobs), 'kernel')} for {architectures}: {new} compiled, "
            f"{there} there before, {len(failed)} failed; {size_in_words(size)} of code"
        )
    for each in islice(failed, _SHOWN):
        complain(f"{each['entry']} for {each['arch']}: {each['error'].splitlines()[0]}", 1)
    if len(failed) > _SHOWN:
        complain(f"and {len(failed) - _SHOWN} more", 1)
    if size > store.max_bytes:
        return complain(
            f"that is more than the {size_in_words(store.max_bytes)} that PTXRT_CACHE_MAX_BYTES allows: part of it "
            f"was removed again",
            1,
        )
    return 1 if failed else 0
