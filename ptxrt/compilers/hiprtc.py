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

from ptxrt.compilers._binary import Binary
from ptxrt.compilers._code_object import CodeObject, read_code_object
from ptxrt.compilers._cxx_text import Defines, check_text, define_options
from ptxrt.compilers._hip_headers import digest, virtual_headers
from ptxrt.compilers._hiprtc_faults import OWN_OPTIONS, Job, clang_problems, plain_log
from ptxrt.compilers._hiprtc_process import Lost, Worker
from ptxrt.compilers.toolkit import check_options, current_folder
from ptxrt.errors import BackendUnavailable, InvalidArgument

__all__ = ["architectures", "available", "check_target", "compile_hip", "effective_options", "version"]

_TARGET = re.compile(r"gfx(?:\d{1,2}[0-9a-f]{2}|\d{1,2}(?:-\d)?-generic)((?::[a-z]+[+-])*)")
_FLAGS = {"sramecc", "xnack"}
_ARCH_OPTIONS = {
    "offload-arch", "no-offload-arch", "offload", "gpu-architecture", "cuda-gpu-arch", "mcpu", "march", "target",
}  # fmt: skip
_FILE_OPTIONS = {
    "o", "output", "save-temps", "ftime-trace", "fsave-optimization-record", "foptimization-record-file",
    "serialize-diagnostics", "MD", "MMD", "MF", "MJ",
}  # fmt: skip
_JOINED_FILE = re.compile(r"-(?:o|MF|MJ)[^=\s]")
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


def effective_options(text: str, options: tuple[str, ...] = (), defines: Defines | None = None) -> tuple[str, ...]:
    """Return the options that the text is compiled with, less the architecture, and what stands for files.

    A cache key wants these and not `options` alone: they name our headers, and the folder that relative paths among the
    caller's options start from. Without options hipRTC follows none.
    """
    folder = (f"folder={current_folder()}",) if options else ()
    return (*_options(options, defines), *folder, f"headers={digest(virtual_headers(options))}")


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
        The source's name, for messages.

    Raises
    ------
    CompileError
        The text, an option or the target is at fault, or the worker died or was too slow
        (PTXRT_HIPRTC_TIMEOUT, in seconds; 600) while it compiled; has the log, and the line where there is one.
    InvalidArgument
        `arch` is no target's name; `options` is no tuple of str, or names an architecture or an output file; a
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
        started = time.perf_counter()
        hired = _hired()
        job = Job(text, _PROGRAM, kernel, entry, arch, given, f"hipRTC {hired.version}", hired.targets)
        if hired.targets and arch.partition(":")[0] not in hired.targets:
            raise job.unknown_target()
        if entry is not None and re.search(r'[\0-\x1f"\\\ud800-\udfff]', entry):
            raise job.no_entry("no C++ expression has these characters")
        compiled = _Compile(job, virtual_headers(options), seconds)
        log, code, found, symbols = compiled.run()
    return Binary(
        code=code,
        kind="hsaco",
        arch=arch,
        compiler=compiled.job.compiler,
        options=given,
        log=log,
        seconds=time.perf_counter() - started,
        entries=found.entries,
        reports=found.reports,
        symbols=symbols,
    )


class _Compile:
    """The one or more requests of one compile; the lock is held."""

    def __init__(self, job: Job, headers: dict[str, str], seconds: float) -> None:
        self.job = job
        self.headers = headers
        self.seconds = seconds
        self.deadline = time.monotonic() + seconds  # of all requests together

    def run(self) -> tuple[str, bytes, CodeObject, dict[str, str]]:
        """Return log, code, what the code tells, and symbols."""
        job, entry = self.job, self.job.entry
        # hipRTC looks an expression up in lines that it adds to the text, and in the binary they stay. The name of
        # an extern "C" kernel needs none.
        plain = entry is None or entry.isidentifier()
        status, log, code, lowered = self._ask(None if plain else entry)
        if not plain and job.behind_the_text(log):
            bare_status, bare_log, *_ = self._ask(None)
            if not self._failed(bare_status, bare_log):
                raise job.no_entry(clang_problems(log)[0].text, log)
            status, log = bare_status, bare_log  # a brace that is never closed shows there, too
        if self._failed(status, log):
            raise job.refused(log, status)
        found = self._read(code, log)
        if plain and entry is not None and entry not in found.entries:
            status, log, code, lowered = self._ask(entry)
            if self._failed(status, log):
                raise job.no_entry(clang_problems(log)[0].text if clang_problems(log) else status, log)
            found = self._read(code, log)
        symbols = {symbol: symbol for symbol in found.entries}
        if entry is not None:
            symbol = lowered or entry
            if symbol not in found.entries:
                raise job.no_entry("the text knows the name, but as no __global__ function", log)
            symbols[entry] = symbol
        return log, code, found, symbols

    def _ask(self, expression: str | None) -> tuple[str, str, bytes, str | None]:
        request = {
            "do": "compile",
            "name": _PROGRAM,
            "options": [f"--offload-arch={self.job.arch}", *self.job.options],
            "headers": self.headers,
            "expression": expression,
            "folder": current_folder(),
        }
        body = self.job.text.encode()
        try:
            worker = _hired().worker
            try:
                answer, code = worker.ask(request, body, seconds=self.deadline - time.monotonic())
            except Lost as lost:
                if lost.begun or lost.how != "ended":
                    raise
                # It had died before it was asked: that is no fault of the text.
                worker = _hired().worker
                answer, code = worker.ask(request, body, seconds=self.deadline - time.monotonic())
        except Lost as lost:
            if lost.how == "garbled" or (lost.how == "ended" and not lost.begun):
                raise _unusable(lost) from None
            raise self.job.lost(lost, self.seconds) from None
        status, log, lowered = (answer.get(key) for key in ("status", "log", "lowered"))
        if not isinstance(status, str) or not isinstance(log, str) or not isinstance(lowered, (str, type(None))):
            worker.close()
            raise _unusable(_garbled())
        return status, plain_log(log), code, lowered

    @staticmethod
    def _failed(status: str, log: str) -> bool:
        # 7.2 says "error: unsupported option", drops the option, and calls it a success.
        return status != "HIPRTC_SUCCESS" or bool(clang_problems(log))

    def _read(self, code: bytes, log: str) -> CodeObject:
        if not code:
            raise self.job.error(f"{self.job.compiler} made no code: an option asks for something else", log)
        try:
            return read_code_object(code)
        except InvalidArgument as error:
            raise self.job.error(f"{self.job.compiler} made no code object: {error}", log) from error


def _options(options: tuple[str, ...], defines: Defines | None) -> tuple[str, ...]:
    check_options(options, _ARCH_OPTIONS, _FILE_OPTIONS)
    for option in options:
        wrong = "no option that writes a file" if _JOINED_FILE.match(option.strip()) else None
        try:
            os.fsencode(option)
        except UnicodeEncodeError:
            wrong = "text that can be passed to a compiler"
        if wrong:
            raise InvalidArgument(op="compile", argument="options", expected=wrong, given=repr(option))
    return (*OWN_OPTIONS, *define_options(defines or {}), *options)


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
