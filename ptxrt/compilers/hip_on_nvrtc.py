"""HIP C++ text -> cubin or PTX, through NVRTC: what hipRTC takes, for NVIDIA's devices and the PTX machine.

The two dialects differ in few names, which a virtual ``hip/hip_runtime.h`` supplies. A wave is 32 lanes here.
"""

from __future__ import annotations

import re
from typing import Any

from ptxrt.compilers import nvrtc
from ptxrt.compilers._binary import Binary
from ptxrt.compilers._cxx_text import check_text
from ptxrt.compilers._hip_headers import digest
from ptxrt.errors import CompileError
from ptxrt.symbols import function_name

__all__ = ["HEADERS", "compile_cxx", "compile_hip_text", "compile_one", "cxx_options", "effective_options"]

# hipRTC knows these names without an include, so the text is compiled behind this header. Shuffles and votes have no
# mask in HIP: every lane of the wave takes part.
_RUNTIME = """\
#pragma once
#define __HIP_PLATFORM_NVIDIA__ 1
#define __HIPCC_RTC__ 1

template <typename T> __device__ inline T __shfl(T value, int lane, int width = warpSize) {
    return __shfl_sync(0xffffffffu, value, lane, width);
}
template <typename T> __device__ inline T __shfl_up(T value, unsigned int lanes, int width = warpSize) {
    return __shfl_up_sync(0xffffffffu, value, lanes, width);
}
template <typename T> __device__ inline T __shfl_down(T value, unsigned int lanes, int width = warpSize) {
    return __shfl_down_sync(0xffffffffu, value, lanes, width);
}
template <typename T> __device__ inline T __shfl_xor(T value, int lanes, int width = warpSize) {
    return __shfl_xor_sync(0xffffffffu, value, lanes, width);
}
// Macros, because CUDA keeps these names for functions that its newer devices do not have.
#define __ballot(predicate) ((unsigned long long)__ballot_sync(0xffffffffu, predicate))
#define __any(predicate) __any_sync(0xffffffffu, predicate)
#define __all(predicate) __all_sync(0xffffffffu, predicate)

#define HIP_DYNAMIC_SHARED(type, name) extern __shared__ type name[];

template <typename T> __device__ inline T unsafeAtomicAdd(T* address, T value) { return atomicAdd(address, value); }
"""
# Compiled into a text only where it has these types: CUDA's headers are large, and need not be installed.
_FP16 = "#pragma once\n#include <cuda_fp16.h>\ntypedef __half _Float16;\n"
_BF16 = "#pragma once\n#include <cuda_bf16.h>\ntypedef __nv_bfloat16 __hip_bfloat16;\ntypedef __nv_bfloat16 __bf16;\n"
_GROUPS = "#pragma once\n#include <cooperative_groups.h>\n"
HEADERS = {
    "hip/hip_runtime.h": _RUNTIME,
    "hip/hip_fp16.h": _FP16,
    "hip/hip_bf16.h": _BF16,
    "hip/hip_cooperative_groups.h": _GROUPS,
}
_WORDS = {
    # First, since libcu++, which it includes, has names that are macros behind hip_runtime.h.
    "hip/hip_cooperative_groups.h": re.compile(r"\bcooperative_groups\b"),
    "hip/hip_runtime.h": re.compile(""),
    "hip/hip_fp16.h": re.compile(r"\b(_Float16|__half2?)\b"),
    "hip/hip_bf16.h": re.compile(r"\b(__hip_bfloat16|__bf16)\b"),
}


def effective_options(options: tuple[str, ...] = (), name: str | None = None) -> tuple[str, ...]:
    """Return what :func:`ptxrt.compilers.nvrtc.effective_options` does, and what stands for our headers."""
    return (*nvrtc.effective_options(options, name), f"headers={digest(HEADERS)}")


def compile_hip_text(text: str, arch: str, options: tuple[str, ...] = (), **how: Any) -> Binary:
    """Compile HIP C++ for an architecture of NVIDIA; otherwise :func:`ptxrt.compilers.nvrtc.compile_cuda`."""
    check_text(text, how.get("entry") or how.get("name"), "HIP")
    before = tuple(header for header, words in _WORDS.items() if words.search(text))
    return nvrtc.compile_cuda(text, arch, options, headers=HEADERS, before=before, **how)


def cxx_options(language: str, options: tuple[str, ...], name: str | None) -> tuple[str, ...]:
    """Return what a cache key wants of a text in `language`, ``"cuda"`` or ``"hip"``."""
    return (effective_options if language == "hip" else nvrtc.effective_options)(options, name)


def compile_cxx(language: str, text: str, arch: str, **how: Any) -> Binary:
    """Compile a text in `language`, ``"cuda"`` or ``"hip"``; see :func:`ptxrt.compilers.nvrtc.compile_cuda`."""
    return (compile_hip_text if language == "hip" else nvrtc.compile_cuda)(text, arch, **how)


def compile_one(language: str, text: str, arch: str, *, entry: str | None, **how: Any) -> Binary:
    """Compile as :func:`compile_cxx` does, and where no `entry` is asked for but the text has one alone, for that.

    It is compiled once more then: the compiler tells the parameters' types of what is asked for.
    """
    binary = compile_cxx(language, text, arch, entry=entry, **how)
    if entry is not None or len(binary.entries) != 1:
        return binary
    try:
        return compile_cxx(language, text, arch, entry=function_name(next(iter(binary.entries))), **how)
    except CompileError:  # a name that no expression says, such as a lambda's
        return binary
