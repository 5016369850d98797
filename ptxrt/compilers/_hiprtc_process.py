"""hipRTC's worker process as its parent sees it: started, asked, and given up."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ptxrt.compilers._hiprtc_worker import FOLDER, HEAD, MAGIC, message

__all__ = ["Lost", "Worker"]

_SCRIPT = Path(__file__).with_name("_hiprtc_worker.py")
_LAST_WORDS = 2000  # bytes
_LARGEST = 1 << 30  # bytes that an answer may announce


class Lost(Exception):
    """The worker gave no answer, and has been killed if it had not ended by itself.

    Attributes
    ----------
    how
        ``"ended"``, ``"late"`` or ``"garbled"``.
    status
        How it ended, in words.
    words
        The last that it printed.
    begun
        Whether it had begun with the request.
    """

    def __init__(self, how: str, status: str, words: str, begun: bool) -> None:
        super().__init__(f"{how}: {status}: {words}")
        self.how = how
        self.status = status
        self.words = words
        self.begun = begun


class _Stop(Exception):
    """Why an exchange stops: ``"ended"``, ``"late"`` or ``"garbled"``."""


class Worker:
    """One worker process.

    Parameters
    ----------
    command
        The interpreter or launcher that takes a script and its arguments.

    Raises
    ------
    OSError
        If it cannot be started.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self.command = command
        self.usable = True
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the worker)
        # Appending, so that emptying the file does not leave the worker's next words behind a hole.
        fcntl.fcntl(self._errors, fcntl.F_SETFL, fcntl.fcntl(self._errors, fcntl.F_GETFL) | os.O_APPEND)
        self._folder = tempfile.mkdtemp(prefix=FOLDER)
        try:
            self._process = subprocess.Popen(
                [*command, str(_SCRIPT), self._folder, *_own_packages()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
                # ptxrt has a cache of its own; the compiler library's would write to the home.
                env={**os.environ, "PTXRT_PYTHON": sys.executable, "AMD_COMGR_CACHE": "0"},
                # So Ctrl-C is the parent's alone, and a launcher and what it started end together.
                start_new_session=True,
            )
        except BaseException:
            self._errors.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        pipes = self._process.stdin, self._process.stdout
        self._in, self._out = (pipe.fileno() for pipe in pipes if pipe is not None)
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def alive(self) -> bool:
        """Return whether it may be asked."""
        return self.usable and self._process.poll() is None

    def ask(self, record: dict[str, Any], body: bytes = b"", *, seconds: float) -> tuple[dict[str, Any], bytes]:
        """Send a request and return the answer.

        Raises
        ------
        Lost
            There is none, or not within `seconds`. Whatever is raised, the worker cannot be used any more.
        """
        deadline = time.monotonic() + seconds
        begun = False
        # Only until there is an answer: one that nobody waits for any more would be taken for the next one's.
        self.usable = False
        try:
            os.ftruncate(self._errors.fileno(), 0)
            self._send(message(record, body), deadline)
            answer, code = self._receive(deadline)
            if answer.get("begun"):
                begun = True
                answer, code = self._receive(deadline)
        except _Stop as stop:
            how = str(stop)
            if how == "ended":
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(5)  # its pipe is closed a moment before it is gone
            status = _in_words(self._process.poll())
            words = self._last_words()
            self.close()
            raise Lost(how, status, words, begun) from None
        except BaseException:  # Ctrl-C
            self.close()
            raise
        self.usable = True
        return answer, code

    def close(self) -> None:
        """End the process and all that it started."""
        self.usable = False
        if self._errors.closed:
            return  # its number may be another's by now
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._close_files()
        shutil.rmtree(self._folder, ignore_errors=True)

    def abandon(self) -> None:
        """Let go of a worker that is the parent's, after a fork."""
        self.usable = False
        self._process.returncode = 0  # else its destructor would speak of a process still running
        self._close_files()

    def _close_files(self) -> None:
        for file in (self._process.stdin, self._process.stdout, self._errors):
            if file is not None:
                file.close()

    def _send(self, data: bytes, deadline: float) -> None:
        rest = memoryview(data)
        while rest:
            _wait(self._in, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(self._in, rest) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise _Stop("ended") from None

    def _receive(self, deadline: float) -> tuple[dict[str, Any], bytes]:
        head = self._read(len(MAGIC), deadline, MAGIC)
        _, length, size = HEAD.unpack(head + self._read(HEAD.size - len(MAGIC), deadline))
        if max(length, size) > _LARGEST:
            raise _Stop("garbled")
        text, body = self._read(length, deadline), self._read(size, deadline)
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            raise _Stop("garbled") from None
        if not isinstance(record, dict):
            raise _Stop("garbled")
        return record, body

    def _read(self, count: int, deadline: float, expected: bytes | None = None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            _wait(self._out, select.POLLIN, deadline)
            try:
                part = os.read(self._out, min(count - len(parts), 1 << 20))
            except BlockingIOError:
                continue
            if not part:
                raise _Stop("ended")
            parts += part
            if expected is not None and not expected.startswith(parts):
                raise _Stop("garbled")
        return bytes(parts)

    def _last_words(self) -> str:
        size = os.fstat(self._errors.fileno()).st_size
        words = os.pread(self._errors.fileno(), _LAST_WORDS, max(0, size - _LAST_WORDS))
        return words.decode(errors="replace").strip("\0 \n")


def _wait(fd: int, event: int, deadline: float) -> None:
    poll = select.poll()
    poll.register(fd, event)
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise _Stop("late")
        # In portions: poll takes milliseconds in 32 bits.
        if poll.poll(min(left, 1000.0) * 1000):
            return


def _own_packages() -> list[str]:
    """Return the folder of this interpreter's hip-python, for a launcher whose Python has none."""
    spec = importlib.util.find_spec("hip")
    folders = spec.submodule_search_locations if spec else None
    return [str(Path(next(iter(folders))).parent)] if folders else []


def _in_words(code: int | None) -> str:
    if code is None:
        return "still running"
    number = -code if code < 0 else code - 128  # a shell between us tells a signal so
    with suppress(ValueError):
        name = signal.Signals(number).name
        return f"killed by {name}" if code < 0 else f"exit status {code}, which is a shell's for {name}"
    return f"exit status {code}"
