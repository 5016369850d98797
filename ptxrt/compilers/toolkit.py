"""What the compilers share: the check of an architecture; for CUDA's, finding the libraries, naming what to install."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

from ptxrt.compilers.installed import found
from ptxrt.errors import BackendUnavailable, InvalidArgument

__all__ = [
    "check_arch",
    "cuda_extra",
    "current_folder",
    "exact_version",
    "load_bindings",
    "standard_header_fix",
]

_ARCH = re.compile(r"sm_[1-9]\d{1,2}[af]?")
_OF_C = (
    "assert|complex|ctype|errno|fenv|float|inttypes|limits|locale|math|setjmp|signal|stdarg|stdbool|stddef|stdint|stdio|"
    "stdlib|string|time|uchar|wchar|wctype"
)
_OF_CXX = (
    "algorithm|any|array|atomic|bit|bitset|chrono|compare|complex|concepts|deque|exception|functional|initializer_list|"
    "iomanip|iostream|iterator|limits|map|memory|new|numbers|numeric|optional|queue|random|ratio|set|span|sstream|stack|"
    "stdexcept|string|string_view|thread|tuple|type_traits|typeinfo|unordered_map|unordered_set|utility|variant|vector"
)
_STANDARD_HEADER = re.compile(rf"(?:{_OF_C})\.h|c(?:{_OF_C})|{_OF_CXX}")


def check_arch(arch: str) -> None:
    """Raise InvalidArgument unless `arch` is a real architecture's name: ``sm_90``, ``sm_90a``, ``sm_100f``."""
    if not isinstance(arch, str) or not _ARCH.fullmatch(arch):
        raise InvalidArgument(
            op="compile",
            argument="arch",
            expected="a name like sm_90, sm_90a or sm_100f",
            given=repr(arch),
            fix="Pass the architecture that the device reports",
        )


def current_folder() -> str | None:
    """Return the folder that relative paths start from; None where it has been removed: nothing relative is meant."""
    try:
        return os.getcwd()
    except OSError:
        return None


def standard_header_fix(header: str) -> str | None:
    """Return what to do about a header of C's or C++'s own that is not there, None for any other header."""
    if not _STANDARD_HEADER.fullmatch(header):
        return None
    return (
        f"Leave {header} out: NVRTC and hipRTC have no standard headers. sqrtf() and its like are built in; write "
        "unsigned int for uint32_t, and constants as numbers"
    )


def cuda_extra() -> str:
    """Return the extra of ptxrt that goes with the installed cuda-bindings: ``"cuda12"`` or ``"cuda13"``."""
    from importlib import metadata  # noqa: PLC0415 (it brings half of the package email along)

    try:
        return "cuda12" if metadata.version("cuda-bindings").startswith("12.") else "cuda13"
    except metadata.PackageNotFoundError:
        return "cuda13"


def load_bindings(module: str, probe: str, library: str) -> Any:
    """Import ``cuda.bindings.<module>`` and call its function `probe`, which loads the library itself.

    Raises
    ------
    BackendUnavailable
        The Python package or the library is not there; the message names what to install.
    """
    try:
        bindings = importlib.import_module(f"cuda.bindings.{module}")
        getattr(bindings, probe)()
    # A library that is missing shows at the first call, as pathfinder's DynamicLibNotFoundError, a RuntimeError.
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        what = "the package cuda-bindings" if isinstance(error, ImportError) else f"the library {library}"
        reason = str(error).strip().partition("\n")[0]
        raise BackendUnavailable(
            f'{library}: {what} cannot be loaded ({reason}). Install it: pip install "ptxrt[{cuda_extra()}]"',
            op=library,
            expected=f"{library} and cuda-bindings",
            given=reason,
            fix=f'pip install "ptxrt[{cuda_extra()}]"',
        ) from error
    return bindings


def exact_version(library: str, major: int, minor: int) -> str:
    """Return ``"13.5.37"`` where the file or its package tells the third number, else ``"13.5"``.

    The libraries themselves tell two numbers only, but two releases of one minor version may generate different code,
    so a cache key wants the third.
    """
    short = f"{major}.{minor}"
    try:
        path = importlib.import_module("cuda.pathfinder").load_nvidia_dynamic_lib(library).abs_path or ""
    except (ImportError, AttributeError, OSError, RuntimeError):
        return short
    exact = _third_number(library, short, os.path.realpath(path))
    if path:
        found({"nvJitLink": "nvJitLink", "nvrtc": "NVRTC"}[library], exact, [path])
    return exact


def _third_number(library: str, short: str, path: str) -> str:
    from importlib import metadata  # noqa: PLC0415 (as above)

    if in_name := re.search(r"\.so\.(\d+\.\d+\.\d+)$", path):  # a toolkit's own file
        return in_name[1] if in_name[1].startswith(f"{short}.") else short
    package = {"nvJitLink": "nvidia-nvjitlink", "nvrtc": "nvidia-cuda-nvrtc"}[library]
    for name in (package, f"{package}-cu{short.partition('.')[0]}"):
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        root = Path(os.path.realpath(str(distribution.locate_file(""))))
        if distribution.version.startswith(f"{short}.") and Path(path).is_relative_to(root):
            return distribution.version
    return short
