"""What is known of the installed compilers without opening them: their versions, and where CUDA's headers are.

Opening a compiler's library takes milliseconds, AMD's a process; a program whose kernels are in the store needs their
versions alone. So what was found is in a memo, with all that it follows from: the environment, the folders in which
installing something may change the outcome, and the files that were found. It is believed where none has changed.

What it does not see, and the next compile does: a library put into a folder that the loader knows by itself with no run
of ldconfig; what a launcher of hipRTC's worker does besides; a file changed in place with its time put back.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import os
import site
import sys
from collections.abc import Iterable
from typing import Any, Literal

from ptxrt import memos

__all__ = ["Compiler", "found", "recall", "version"]

Compiler = Literal["nvJitLink", "NVRTC", "hipRTC"]

_MODULES = {"nvJitLink": "nvjitlink", "NVRTC": "nvrtc", "hipRTC": "hiprtc"}
# A library of these names that another package has loaded is taken before any that is found on disk.
_SONAMES = {
    "nvJitLink": ("libnvJitLink.so.13", "libnvJitLink.so.12"),
    "NVRTC": ("libnvrtc.so.13", "libnvrtc.so.12"),
}
_VARIABLES = (
    "CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "LD_PRELOAD",
    "HIP_PATH", "PTXRT_HIPRTC_PYTHON", "PTXRT_PYTHON", "PYTHONHOME", "PYTHONPATH", "ROCM_HOME", "ROCM_PATH",
)  # fmt: skip
_FOLDERS = ("/etc/ld.so.cache", "/usr/local", "/opt", "/opt/rocm")
_ENVIRONMENTS = 16  # that are remembered of a fact, the latest ones
_known: dict[tuple[str, str | None], str] = {}  # by the compiler, and what starts hipRTC's worker


def version(compiler: Compiler) -> str:
    """Return a compiler's version: as a memo has it, else as its library says.

    Once the library has been asked in this process, its word is what counts.

    Raises
    ------
    BackendUnavailable
        The memo does not tell, and the library is not there.
    """
    key = _key(compiler)
    if key not in _known:
        remembered = recall(compiler)
        if not isinstance(remembered, str):
            remembered = importlib.import_module(f"ptxrt.compilers.{_MODULES[compiler]}").version()
        _known.setdefault(key, remembered)
    return _known[key]


def recall(fact: str) -> Any:
    """Return what an earlier process found of a compiler or another fact; None where that may not be so any more."""
    if fact == "hipRTC" and not os.path.isfile(_launcher()):
        return None  # a command of several words, which may be anything
    entries = _entries(fact)
    entry = entries and entries.get(_environment())
    if not isinstance(entry, dict) or "value" not in entry or not isinstance(entry.get("files"), dict):
        return None
    return None if entry["files"] != _states(entry["files"]) or _loaded(fact) else entry["value"]


def found(fact: str, value: Any, files: Iterable[str]) -> None:
    """Remember a fact, and the files that tell it; JSON must be able to hold the value."""
    if fact in _MODULES:
        _known[_key(fact)] = value
    environment, entry = _environment(), {"files": _states(files), "value": value}
    entries = _entries(fact)
    if entries.pop(environment, None) != entry:
        memos.write(f"installed-{fact}", {environment: entry} | dict(list(entries.items())[: _ENVIRONMENTS - 1]))


def _key(compiler: str) -> tuple[str, str | None]:
    return compiler, os.environ.get("PTXRT_HIPRTC_PYTHON") if compiler == "hipRTC" else None


def _entries(fact: str) -> dict[str, Any]:
    """Return what the memo has of a fact, by the environment."""
    entries = memos.recall(f"installed-{fact}")
    return entries if isinstance(entries, dict) else {}


def _loaded(fact: str) -> bool:
    """Return whether a library of the compiler is in the process, so that asking it costs nothing."""
    for name in _SONAMES.get(fact, ()):
        try:
            ctypes.CDLL(name, mode=os.RTLD_NOLOAD)
        except OSError:
            continue
        return True
    return False


def _environment() -> str:
    """Return a digest of what decides where a compiler is looked for, and of the folders that are searched."""
    get = os.environ.get
    folders = [
        *_FOLDERS,
        *site.getsitepackages(),  # pip writes into it whatever it installs
        *([site.getusersitepackages()] if site.ENABLE_USER_SITE else []),
        *get("LD_LIBRARY_PATH", "").split(":"),
        *(f"{get('CONDA_PREFIX')}/{name}" for name in ("lib", "conda-meta")),
        *(f"{get(name)}/lib" for name in ("ROCM_PATH", "ROCM_HOME", "HIP_PATH")),
        _launcher(),
    ]
    # Of the folders of modules those that have the search, or AMD's; the folder of the program is another each time.
    searches = _states(f"{folder or '.'}/{name}" for folder in sys.path for name in ("cuda/pathfinder", "hip"))
    python = [sys.version, sys.executable, sys.prefix, sys.base_prefix]
    variables = [get(name) for name in _VARIABLES]
    seen = [python, variables, _states(folders), [found for found in searches.items() if found[1]]]
    return hashlib.sha256(json.dumps(seen).encode("ascii")).hexdigest()


def _launcher() -> str:
    """Return what starts hipRTC's worker: a file, as it is or quoted, or a command line of several words."""
    given = os.environ.get("PTXRT_HIPRTC_PYTHON") or sys.executable
    if given[:1] in "'\"" and given[-1:] == given[:1]:
        return given[1:-1]
    return given


def _states(files: Iterable[str]) -> dict[str, list[int] | None]:
    """Return what changes with a file: its device, inode, size and time; None where there is none."""
    states: dict[str, list[int] | None] = {}
    for file in files:
        try:
            status = os.stat(file)
        except (OSError, ValueError):
            states[file] = None
        else:
            states[file] = [status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns]
    return states
