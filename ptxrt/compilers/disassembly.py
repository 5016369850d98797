"""Machine code as text: AMD's through the LLVM of hip-python's extra `compiler`, NVIDIA's through its own programs.

Needs no device and no driver.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ptxrt.compilers._code_object import machine_code, read_code_object
from ptxrt.errors import BackendUnavailable, InvalidArgument

__all__ = ["disassemble", "sass"]

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
    done = _run([sys.executable, str(_SCRIPT)], json.dumps({**request, "code": instructions.hex()}))
    if done.returncode:
        words = (done.stderr.strip().splitlines() or ["no word"])[-1]
        missing = "ImportError" in words or "ModuleNotFoundError" in words
        raise _unavailable(f"LLVM cannot be used ({words})", _FIX if missing else f"It may not know {processor}")
    return done.stdout.rstrip("\n")


def sass(code: bytes, entry: str) -> str:
    """Return the instructions of a kernel in a cubin, one a line.

    Raises
    ------
    BackendUnavailable
        Neither nvdisasm nor cuobjdump is here, in NVIDIA's wheels or in a toolkit, or it does not read the cubin.
    """
    tool = _tool("nvdisasm") or _tool("cuobjdump")
    if tool is None:
        raise _unavailable("neither nvdisasm nor cuobjdump is here", "pip install nvidia-cuda-nvdisasm")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        whole = Path(tool).name.startswith("nvdisasm")
        done = _run([tool, *(["--print-code"] if whole else ["--dump-sass", "--function", entry]), file.name])
    if done.returncode:
        raise _unavailable(f"{tool} does not read this cubin ({done.stderr.strip()})", "A newer one may")
    text = done.stdout
    if whole:
        # Of the whole binary; each function's part begins with its label.
        text = text.partition(f"\n.text.{entry}:\n")[2].partition("\n//----")[0]
    # The address and the instruction; cuobjdump writes the bits behind them, and on a line of their own.
    found = re.findall(r"^(\.L_\w+:)|^\s*(/\*[0-9a-f]{4,}\*/)\s+(\S.*?)\s*(?:/\* 0x.*)?$", text, re.MULTILINE)
    return "\n".join(label or f"  {address}  {instruction}" for label, address, instruction in found)


def _tool(name: str) -> str | None:
    """Return the path of one of CUDA's programs: of NVIDIA's wheels, of a toolkit, or found on PATH."""
    try:
        find = importlib.import_module("cuda.pathfinder").find_nvidia_binary_utility
    except (ImportError, AttributeError):
        return shutil.which(name)
    found: str | None = find(name) or shutil.which(name)
    return found


def _run(command: list[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, input=given, capture_output=True, text=True, errors="replace", timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unavailable(f"its process did not answer ({error})", "") from error


def _unavailable(what: str, fix: str) -> BackendUnavailable:
    return BackendUnavailable(
        f"disassembly: {what}. {fix}", op="disassembly", expected="a disassembler", given=what, fix=fix
    )
