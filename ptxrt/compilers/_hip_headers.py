"""The headers that a HIP text may name, for hipRTC, which comes without any and has most of their names built in."""

from __future__ import annotations

import hashlib
import os

from ptxrt.compilers._options import include_folders

__all__ = ["digest", "virtual_headers"]

_BUILT_IN = "// hipRTC has it built in.\n"
# Built in is __bf16, the type; HIP's name of it and the two conversions that every kernel needs are not.
_BF16 = """\
#pragma once
typedef __bf16 __hip_bfloat16;
static inline __device__ __hip_bfloat16 __float2bfloat16(float value) { return (__hip_bfloat16)value; }
static inline __device__ float __bfloat162float(__hip_bfloat16 value) { return (float)value; }
"""
_HEADERS = {
    "hip/hip_runtime.h": _BUILT_IN,
    "hip/hip_fp16.h": _BUILT_IN,
    "hip/hip_bf16.h": _BF16,
    "hip/hip_cooperative_groups.h": _BUILT_IN,
}


def virtual_headers(options: tuple[str, ...]) -> dict[str, str]:
    """Return name -> text of the headers to hand to hipRTC: those that no folder among the options has."""
    folders = include_folders(options)
    return {
        name: header
        for name, header in _HEADERS.items()
        if not any(os.path.exists(os.path.join(folder, name)) for folder in folders)
    }


def digest(headers: dict[str, str]) -> str:
    """Return what stands for the headers in a cache key."""
    return hashlib.sha256(repr(sorted(headers.items())).encode()).hexdigest()[:16]
