"""AMD's machine code as text, through the LLVM of hip-python's extra `compiler`. Needs no device and no driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ptxrt.compilers._code_object import machine_code, read_code_object
from ptxrt.errors import BackendUnavailable, InvalidArgument

__all__ = ["disassemble"]

_SCRIPT = Path(__file__).with_name("_disassembly_worker.py")
_FIX = 'Install it: pip install "hip-python[compiler]>=10", which brings rocm-bindings-compiler'


def disassemble(code: bytes, entry: str) -> str:
    """Return a kernel's instructions, one a line, each behind its address.

    LLVM runs in a process of its own: it ends the one that names it a processor it does not know.

    Parameters
    ----------
    code
        A code object.
    entry
        The kernel's name in it.

    Raises
    ------
    InvalidArgument
        `code` is no code object, or `entry` no kernel of it.
    BackendUnavailable
        The package rocm-bindings-compiler is not installed, or does not know the processor.
    """
    found = read_code_object(code)
    address, instructions = machine_code(code, entry)
    if entry not in found.reports:
        raise InvalidArgument(
            op="disassemble", argument="entry", expected=f"one of {', '.join(found.reports)}", given=repr(entry)
        )
    processor = found.target.partition(":")[0]
    # From gfx10 on a wave has 32 lanes unless the kernel was compiled for 64; before, always 64.
    wide = found.reports[entry].wave_size == 64 and processor[3:5] in ("10", "11", "12")
    request = {"processor": processor, "features": "+wavefrontsize64" if wide else "", "address": address}
    try:
        done = subprocess.run(
            [sys.executable, str(_SCRIPT)],
            input=json.dumps({**request, "code": instructions.hex()}),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unavailable(f"its process did not answer ({error})", "") from error
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no word"])[-1]
        missing = "ImportError" in words or "ModuleNotFoundError" in words
        raise _unavailable(f"LLVM cannot be used ({words})", _FIX if missing else f"It may not know {processor}")
    return done.stdout.rstrip("\n")


def _unavailable(what: str, fix: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"disassembly: {what}. {fix}", op="disassembly", expected="rocm-bindings-compiler", given=what, fix=fix
    )
