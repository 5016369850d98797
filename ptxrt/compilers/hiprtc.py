"""HIP C++ text -> AMD's code object, through hipRTC in a worker process. Needs no device and no driver.

There is one worker for the process, started at the first call. It answers one request at a time; when it has died it
is started anew. PTXRT_HIPRTC_PYTHON names the interpreter or launcher that it runs under.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import sys
import threading
import time
from typing import Any

from ptxrt.compilers._binary import Binary
from ptxrt.compilers._cxx_text import Defines, check_text, define_options, program_name
from ptxrt.compilers._hip_headers import digest, virtual_headers
from ptxrt.compilers._hiprtc_compile import HiprtcCompile
from ptxrt.compilers._hiprtc_faults import OWN_OPTIONS, Job
from ptxrt.compilers._hiprtc_process import Lost, Worker
from ptxrt.compilers._options import HIPRTC
from ptxrt.compilers.installed import found
from ptxrt.compilers.toolkit import current_folder
from ptxrt.errors import BackendUnavailable, InvalidArgument

__all__ = ["architectures", "available", "check_target", "compile_hip", "effective_options", "version"]

_TARGET = re.compile(r"gfx(?:\d{1,2}[0-9a-f]{2}|\d{1,2}(?:-\d)?-generic)((?::[a-z]+[+-])*)")
_FLAGS = {"sramecc", "xnack"}
_PROGRAM = "kernel.hip"  # a name of the caller's would become a path in the compiler's own folder
_START_SECONDS = 60.0
_lock = threading.Lock()
_worker: _Hired | None = None


class _Hired:
    """The worker, and what it said when it was started."""

    def __init__(self, worker: Worker, version: str, targets: tuple[str, ...]) -> None:
        self.worker = worker
        self.version = version
        self.targets = targets


def available() -> str | None:
    """Return None where hipRTC can be used, else the reason in words, with what to install."""
    try:
        version()
    except (BackendUnavailable, InvalidArgument) as error:  # the latter for PTXRT_HIPRTC_TIMEOUT
        return str(error)
    return None


def version() -> str:
    """Return the release that the library's file is named for, ``"7.2.53211"``; else its own word, ``"9.0"``."""
    return _facts().version


def architectures() -> tuple[str, ...]:
    """Return the processors that this hipRTC makes code for, without flags; empty where it cannot be asked."""
    return _facts().targets


def check_target(arch: str) -> None:
    """Raise InvalidArgument unless `arch` is a target's full name: ``gfx1100``, ``gfx90a:sramecc+:xnack-``."""
    match = _TARGET.fullmatch(arch) if isinstance(arch, str) else None
    flags = [flag[:-1] for flag in match[1].split(":")[1:]] if match else []
    if match is None or len(set(flags)) < len(flags) or set(flags) - _FLAGS:
        raise InvalidArgument(
            op="compile",
            argument="arch",
            expected="a name like gfx1100 or gfx90a:sramecc+:xnack-, each flag (sramecc, xnack) with + or -, once",
            given=repr(arch),
            fix="Pass the architecture that the device reports",
        )


def effective_options(options: tuple[str, ...] = (), name: str | None = None) -> tuple[str, ...]:
    """Return what a cache key wants of a text besides its digest: all options, and what else shows in the binary.

    Quoted headers are looked for first in the folder of the source's name. With options the binary may tell the current
    folder (``-g``). What the headers hold is the part of :attr:`Binary.included`, save for our own.
    """
    folder = (f"folder={current_folder()}",) if options else ()
    return (*_options(options), *folder, f"quoted={_folder(name)}", f"headers={digest(virtual_headers(options))}")


def compile_hip(
    text: str,
    arch: str,
    options: tuple[str, ...] = (),
    *,
    defines: Defines | None = None,
    entry: str | None = None,
    name: str | None = None,
) -> Binary:
    """Compile HIP C++.

    hipRTC needs no ``#include``; ``hip/hip_runtime.h``, ``hip/hip_fp16.h`` and ``hip/hip_bf16.h`` may be named.

    Parameters
    ----------
    text
        The C++.
    arch
        The target with its feature flags, as the device reports it: ``"gfx1100"``, ``"gfx90a:sramecc+:xnack-"``.
    options
        Options of clang: ``("-O2", "-ffast-math")``.
    defines
        Macros: name -> value, None for one without a value.
    entry
        The kernel, by its plain name or as a C++ name expression: ``"saxpy"``, ``"ns::scale<float, 4>"``. It makes
        hipRTC instantiate a template, and ``symbols[entry]`` of the result is its name in the binary. None: all
        kernels that are no templates.
    name
        The source's name, for messages; quoted headers are looked for in its folder first.

    Raises
    ------
    CompileError
        The text, an option or the target is at fault, or the worker died or was too slow
        (PTXRT_HIPRTC_TIMEOUT, in seconds; 600) while it compiled; has the log, and the line where there is one.
    InvalidArgument
        `arch` is no target's name; `options` is no tuple of str, or has one that may name an architecture or a file; a
        macro's name or value cannot be one.
    BackendUnavailable
        hipRTC, hip-python or the interpreter for them are not there.
    """
    check_target(arch)
    kernel = entry or name
    check_text(text, kernel, "HIP")
    given = _options(options, defines)
    seconds = _timeout()
    with _lock:
        started = time.monotonic()
        hired = _hired()
        job = Job(text, _PROGRAM, kernel, entry, arch, given, f"hipRTC {hired.version}", hired.targets)
        if hired.targets and arch.partition(":")[0] not in hired.targets:
            raise job.unknown_target()
        job.check_entry()
        if re.search(r'["\\]', entry or ""):  # hipRTC puts it in quotes of its own
            raise job.no_entry("no C++ expression has these characters")
        deadline = started + seconds  # of all requests together

        def ask(request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
            return _answer(job, request, deadline, seconds)

        outcome = HiprtcCompile(job, options, _folder(name), ask).run()
    return Binary(
        code=outcome.code,
        kind="hsaco",
        arch=arch,
        compiler=job.compiler,
        options=given,
        log=outcome.log,
        seconds=time.monotonic() - started,
        entries=outcome.found.entries,
        reports=outcome.found.reports,
        symbols=outcome.symbols,
        included=outcome.included,
        variables=outcome.found.variables,
    )


def _answer(job: Job, request: dict[str, Any], deadline: float, seconds: float) -> tuple[dict[str, Any], bytes]:
    """Have the worker compile; the lock is held."""
    body, worker = request.pop("text").encode(), _hired().worker
    try:
        try:
            answer, code = worker.ask(request, body, seconds=deadline - time.monotonic())
        except Lost as lost:
            if lost.begun or lost.how != "ended":
                raise
            # It had died before it was asked: that is no fault of the text.
            worker = _hired().worker
            answer, code = worker.ask(request, body, seconds=deadline - time.monotonic())
    except Lost as lost:
        if lost.how == "garbled" or (lost.how == "ended" and not lost.begun):
            raise _unusable(lost) from None
        raise job.lost(lost, seconds) from None
    kinds: dict[str, Any] = {"status": str, "log": str, "lowered": (str, type(None)), "opened": (list, type(None))}
    if not all(isinstance(answer.get(key), kind) for key, kind in kinds.items()):
        worker.close()
        raise _unusable(_garbled())
    return answer, code


def _options(options: tuple[str, ...], defines: Defines | None = None) -> tuple[str, ...]:
    HIPRTC.check(options)
    return (*OWN_OPTIONS, *define_options(defines or {}), *options)


def _folder(name: str | None) -> str:
    return os.path.dirname(program_name(name, "")) or "."


def _timeout() -> float:
    given = os.environ.get("PTXRT_HIPRTC_TIMEOUT") or "600"
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e9:
        raise InvalidArgument(op="compile", argument="PTXRT_HIPRTC_TIMEOUT", expected="seconds", given=repr(given))
    return seconds


# The worker -------------------------------------------------------------------------------------------------------


def _facts() -> _Hired:
    """Return the worker for what it said; without waiting for a compile of another thread, where there is one."""
    hired = _worker
    if hired is not None and hired.worker.command == _command():
        return hired
    with _lock:
        return _hired()


def _hired() -> _Hired:
    """Return the running worker, or a new one; the lock is held."""
    global _worker  # noqa: PLW0603
    command = _command()
    if _worker is not None and _worker.worker.alive() and _worker.worker.command == command:
        return _worker
    if _worker is not None:
        _worker.worker.close()
        _worker = None
    seconds = min(_timeout(), _START_SECONDS)
    try:
        worker = Worker(command)
    except OSError as error:
        raise _missing(f"{shlex.join(command)} cannot be started ({error})", command[0], _LAUNCHER_FIX) from error
    try:
        facts, _ = worker.ask({"do": "version"}, seconds=seconds)
    except Lost as lost:
        raise _unusable(lost) from None
    if "missing" in facts:
        worker.close()
        what, words = str(facts["missing"]), str(facts.get("text")).partition("\n")[0]
        raise _missing(f"{what} cannot be loaded by {shlex.join(command)} ({words})", what, _FIXES.get(what, ""))
    numbers, file, targets = (facts.get(key) for key in ("version", "file", "targets"))
    if not (isinstance(numbers, list) and isinstance(file, str) and isinstance(targets, list)):
        worker.close()
        raise _unusable(_garbled())
    in_name = re.search(r"\.so\.(\d+(?:\.\d+)+)$", file)
    _worker = _Hired(worker, in_name[1] if in_name else ".".join(map(str, numbers)), tuple(map(str, targets)))
    found("hipRTC", _worker.version, [file])
    return _worker


def _command() -> tuple[str, ...]:
    given = os.environ.get("PTXRT_HIPRTC_PYTHON") or shlex.quote(sys.executable)
    try:
        command = (given,) if os.path.isfile(given) else tuple(shlex.split(given))  # a path may have a space
    except ValueError as error:
        raise _missing(f"PTXRT_HIPRTC_PYTHON is no command: {given!r} ({error})", given, _LAUNCHER_FIX) from None
    if not command:
        raise _missing(f"PTXRT_HIPRTC_PYTHON is no command: {given!r}", given, _LAUNCHER_FIX)
    return command


_LAUNCHER_FIX = (
    "PTXRT_HIPRTC_PYTHON names the Python, or a launcher for it, that can load hipRTC; in a checkout `make hiprtc` "
    "makes one"
)
_FIXES = {
    "hip-python": "It must be 7.2 or newer, in the Python that PTXRT_HIPRTC_PYTHON starts, or in ptxrt's own where "
    'that is not set. Install it there: pip install "ptxrt[hip]"',
    "libhiprtc.so": "It comes with ROCm, 6.0 or newer (gfx950 and gfx12 with 6.4); ROCM_PATH names its folder, "
    "for hip-python 7.2 LD_LIBRARY_PATH must. Without ROCm, `make hiprtc` in a checkout fetches it, and "
    "PTXRT_HIPRTC_PYTHON then names its launcher",
}


def _garbled() -> Lost:
    return Lost("garbled", "", "", True)


def _unusable(lost: Lost) -> BackendUnavailable:
    """Return the error for a worker that never worked, or is none."""
    how = {
        "ended": f"ended before it answered: {lost.status}",
        "late": f"did not answer within {_START_SECONDS:g} s, or PTXRT_HIPRTC_TIMEOUT if that is less",
        "garbled": "gave an answer that is none of ptxrt's worker",
    }[lost.how]
    words = f"; its last words: {lost.words}" if lost.words else ""
    return _missing(f"{shlex.join(_command())} {how}{words}", lost.how, _LAUNCHER_FIX)


def _missing(what: str, given: str, fix: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"hipRTC: {what}. {fix}", op="hipRTC", expected="hip-python and libhiprtc.so", given=given, fix=fix
    )


@atexit.register
def _end() -> None:
    if _worker is not None:
        _worker.worker.close()


def _lose_worker() -> None:
    # The parent's pipes came along in a fork; two processes on them would get each other's answers.
    global _worker, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    if _worker is not None:
        _worker.worker.abandon()
        _worker = None


os.register_at_fork(after_in_child=_lose_worker)
