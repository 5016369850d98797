"""Where CUDA's own headers are, for a run-time compiler that comes without them, and what to install for one."""

from __future__ import annotations

import functools
import importlib
import os

from ptxrt.compilers import installed
from ptxrt.compilers._nvrtc_names import standard_header
from ptxrt.compilers.toolkit import cuda_extra, standard_header_fix

__all__ = ["header_fix", "include_directories"]

_FACT = "headers"
_HEADERS = ("cuda_fp16.h", "cuda/std/type_traits")


@functools.lru_cache(maxsize=1)
def include_directories() -> tuple[str, ...]:
    """Return the folders of CUDA's own headers (cuda_fp16.h, cuda_bf16.h, and libcu++ beside them), as far as found.

    They come with the package nvidia-cuda-runtime (nvidia-cuda-cccl for libcu++) or with a toolkit, which CUDA_HOME
    or CUDA_PATH names.
    """
    known = installed.recall(_FACT)
    if isinstance(known, list):
        return tuple(known)
    folders = _search()
    installed.found(_FACT, folders, [os.path.join(folder, header) for folder in folders for header in _HEADERS])
    return tuple(folders)


def _search() -> list[str]:
    candidates: list[str] = []
    try:
        find = importlib.import_module("cuda.pathfinder").find_nvidia_header_directory
        candidates += [directory for library in ("cudart", "cccl") if (directory := find(library))]
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError):
        pass  # an older pathfinder, or none: the environment may still tell
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if root := os.environ.get(variable):
            candidates += [os.path.join(root, "include"), os.path.join(root, "include", "cccl")]
    found = [d for d in candidates if any(os.path.exists(os.path.join(d, header)) for header in _HEADERS)]
    return list(dict.fromkeys(found))


def header_fix(header: str) -> str:
    """Return what to do about a header that the compiler could not open."""
    suffix = "-cu12" if cuda_extra() == "cuda12" else ""
    if header.startswith(("cuda/", "nv/", "cub/", "thrust/")):
        return f"{header} comes with libcu++: pip install nvidia-cuda-cccl{suffix}, or set CUDA_HOME to a toolkit"
    if header.startswith("crt/"):
        return f"{header} comes with the compiler's headers: pip install nvidia-cuda-crt, or set CUDA_HOME to a toolkit"
    if header.startswith(("cuda", "cooperative_groups", "mma", "vector_", "math_", "device_", "sm_")):
        return f"{header} comes with CUDA: pip install nvidia-cuda-runtime{suffix}, or set CUDA_HOME to a toolkit"
    return (
        standard_header(header)
        or standard_header_fix(header)
        or f"Add its folder to the options: ('-I/folder/of/{header}',)"
    )
