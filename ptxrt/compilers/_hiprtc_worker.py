"""The process in which hipRTC runs, and the messages that go to it and back.

hipRTC has a process of its own because some versions end the one they run in (an unknown target, ROCm 6.4 and
before), and because it may need another loader than ptxrt's interpreter. So this file runs as a script, perhaps under
another Python, and imports only the standard library and hip-python.

A message is MAGIC, two lengths, a JSON object and bytes. Requests come on standard input, answers go to what was
standard output when the process began. It ends when its standard input does, whatever it is at.
"""

from __future__ import annotations

import ctypes
import glob
import json
import os
import queue
import re
import shutil
import struct
import sys
import tempfile
import threading
from contextlib import suppress
from typing import Any, BinaryIO

__all__ = ["FOLDER", "HEAD", "MAGIC", "message"]

FOLDER = "ptxrt-hiprtc-"  # how the name of a worker's temporary folder begins
MAGIC = b"PTXRT/1\n"
HEAD = struct.Struct(">8sII")


def message(record: dict[str, Any], body: bytes = b"") -> bytes:
    """Return `record` and `body` as they go through a pipe."""
    text = json.dumps(record).encode("ascii")
    return HEAD.pack(MAGIC, len(text), len(body)) + text + body


def main() -> None:
    """Answer requests until standard input ends."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    # What a compiler prints must not get among the answers, nor may it read the requests.
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # The names of the files beside this one are not for hip-python to import. No abspath: it wants a current folder,
    # and that may have been removed.
    sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]
    sys.path += sys.argv[2:]  # ptxrt's own packages, behind this interpreter's
    # The compiler's files go where they are removed if it is killed; a launcher may run this where that folder is not.
    folder = sys.argv[1]
    if os.path.isdir(folder):
        os.environ["TMPDIR"] = folder
    inbox: queue.SimpleQueue[tuple[dict[str, Any], bytes]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, inbox, folder), daemon=True).start()
    while True:
        record, body = inbox.get()
        if record["do"] == "version":
            _answer(answers, _facts())
        else:
            _answer(answers, {"begun": True})
            _answer(answers, *_compile(record, body))


def _receive(requests: BinaryIO, inbox: queue.SimpleQueue[tuple[dict[str, Any], bytes]], folder: str) -> None:
    # A thread of its own, so that a long compile does not outlive the process that asked for it.
    try:
        while head := requests.read(HEAD.size):
            _, length, size = HEAD.unpack(head)
            inbox.put((json.loads(requests.read(length)), requests.read(size)))
    finally:  # the input has ended, perhaps in the middle of a request, or with the parent, which clears up else
        if os.path.basename(folder).startswith(FOLDER):
            shutil.rmtree(folder, ignore_errors=True)
        os._exit(0)


def _answer(answers: BinaryIO, record: dict[str, Any], body: bytes = b"") -> None:
    answers.write(message(record, body))
    answers.flush()


def _facts() -> dict[str, Any]:
    """Return what is loaded, or under "missing" and "text" what cannot be."""
    try:
        hiprtc = _hiprtc()
    except ImportError as error:
        return {"missing": "hip-python", "text": str(error)}
    try:
        _, major, minor = hiprtc.hiprtcVersion()
    except RuntimeError as error:  # hip-python loads the library at its first call
        return {"missing": "libhiprtc.so", "text": str(error)}
    # Its own version stands at 9.0 since ROCm 5; the file's name has the release. Before ROCm 6 hipRTC was a part of
    # libamdhip64.
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        found = sorted(set(re.findall(r" (/.*/lib(?:hiprtc|amdhip64)\.so\S*)", maps.read())))
    path = next((file for file in found if "libhiprtc" in file), found[0] if found else "")
    return {"version": [int(major), int(minor)], "file": path, "targets": _targets(os.path.dirname(path))}


def _hiprtc() -> Any:
    from hip import hiprtc  # noqa: PLC0415 (a failure is the answer to a request)

    return hiprtc


def _targets(folder: str) -> list[str]:
    """Return the processors that the compiler library beside hipRTC knows; empty where it cannot be asked."""
    files = {os.path.realpath(file) for file in glob.glob(f"{glob.escape(folder)}/libamd_comgr.so*")}
    if len(files) != 1:
        return []
    try:
        comgr = ctypes.CDLL(files.pop())
        count, name = ctypes.c_size_t(), ctypes.c_char_p()
        if comgr.amd_comgr_get_isa_count(ctypes.byref(count)):
            return []
        names = []
        for index in range(count.value):
            if comgr.amd_comgr_get_isa_name(ctypes.c_size_t(index), ctypes.byref(name)):
                return []
            names.append((name.value or b"").decode("ascii", "replace").partition("--")[2])
    except (OSError, AttributeError):
        return []
    return names


def _compile(record: dict[str, Any], text: bytes) -> tuple[dict[str, Any], bytes]:
    if not record["list_files"]:
        return _compiled(record, text, [])
    with tempfile.NamedTemporaryFile() as listing:
        # clang's own -H goes where nobody reads it, and -MD is silent about a compile that failed.
        asked = ["-H", "-header-include-file", listing.name, "-fshow-skipped-includes"]
        answer, code = _compiled(record, text, [part for word in asked for part in ("-Xclang", word)])
        answer["opened"] = os.fsdecode(listing.read()).splitlines()
    return answer, code


def _compiled(record: dict[str, Any], text: bytes, asked: list[str]) -> tuple[dict[str, Any], bytes]:
    hiprtc = _hiprtc()
    if record["folder"]:
        with suppress(OSError):  # one that may not be entered by its name is at most where we have been all along
            os.chdir(record["folder"])  # relative -I are the caller's
    names = [name.encode() for name in record["headers"]]
    bodies = [body.encode() for body in record["headers"].values()]
    options = [os.fsencode(option) for option in [*record["options"], *asked]]
    expression = record["expression"].encode() if record["expression"] else None
    status, program = hiprtc.hiprtcCreateProgram(text, record["name"].encode(), len(names), bodies, names)
    if status:
        return {"status": status.name, "log": "", "lowered": None}, b""
    if expression:
        hiprtc.hiprtcAddNameExpression(program, expression)
    (status,) = hiprtc.hiprtcCompileProgram(program, len(options), options)
    log = _read(hiprtc.hiprtcGetProgramLogSize, hiprtc.hiprtcGetProgramLog, program)
    code, lowered = b"", None
    if not status:
        code = _read(hiprtc.hiprtcGetCodeSize, hiprtc.hiprtcGetCode, program)
        if expression:
            failed, symbol = hiprtc.hiprtcGetLoweredName(program, expression)
            lowered = None if failed else bytes(symbol).decode("ascii", "replace")
    hiprtc.hiprtcDestroyProgram(program.createRef())
    words = log.decode(errors="replace").strip("\0 \n")
    return {"status": status.name, "log": words, "lowered": lowered}, code


def _read(size: Any, get: Any, program: Any) -> bytes:
    status, length = size(program)
    if status or not length:
        return b""
    buffer = bytearray(length)
    (status,) = get(program, buffer)
    return b"" if status else bytes(buffer)


if __name__ == "__main__":
    main()
