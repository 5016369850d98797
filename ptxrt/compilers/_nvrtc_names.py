"""What to write for the names and headers of C, C++ and CUDA that other compilers know at once, and NVRTC does not."""

from __future__ import annotations

import re

__all__ = ["name_fix", "standard_header"]

_UNKNOWN = re.compile(r'(?:identifier "(?P<plain>\w+)" is undefined|namespace "std" has no member "(?P<std>\w+)")')

_INTEGERS = {
    **{f"{sign}int{bits}_t": f"{word}{kind}" for sign, word in (("u", "unsigned "), ("", ""))
       for bits, kind in ((16, "short"), (32, "int"), (64, "long long"))},
    "uint8_t": "unsigned char", "int8_t": "signed char", "uintptr_t": "unsigned long long", "intptr_t": "long long",
    "uchar": "unsigned char", "ushort": "unsigned short", "uint": "unsigned int", "ulong": "unsigned long",
}  # fmt: skip

_NUMBERS = {
    "FLT_MAX": "3.402823466e+38f", "FLT_MIN": "1.175494351e-38f", "FLT_EPSILON": "1.192092896e-07f",
    "DBL_MAX": "1.7976931348623157e+308", "DBL_MIN": "2.2250738585072014e-308", "DBL_EPSILON": "2.2204460492503131e-16",
    "INT_MAX": "2147483647", "INT_MIN": "(-2147483647 - 1)", "UINT_MAX": "4294967295u",
    "INT32_MAX": "2147483647", "INT32_MIN": "(-2147483647 - 1)", "UINT32_MAX": "4294967295u",
    "LLONG_MAX": "9223372036854775807ll", "LLONG_MIN": "(-9223372036854775807ll - 1)", "ULLONG_MAX": "~0ull",
    "INT64_MAX": "9223372036854775807ll", "INT64_MIN": "(-9223372036854775807ll - 1)", "UINT64_MAX": "~0ull",
    "SIZE_MAX": "~0ull", "CHAR_BIT": "8", "UCHAR_MAX": "255", "USHRT_MAX": "65535", "SHRT_MAX": "32767",
}  # fmt: skip

_CONSTANTS = {
    "INFINITY": "CUDART_INF_F", "NAN": "CUDART_NAN_F", "HUGE_VALF": "CUDART_INF_F", "HUGE_VAL": "CUDART_INF",
    "M_PI": "CUDART_PI", "M_PI_2": "CUDART_PIO2", "M_PI_4": "CUDART_PIO4", "M_2_PI": "CUDART_2_OVER_PI",
    "M_LN2": "CUDART_LN2", "M_LOG2E": "CUDART_L2E", "M_SQRT2": "CUDART_SQRT_TWO", "M_SQRT1_2": "CUDART_SQRT_HALF",
}  # fmt: skip

_CUDA_NAMES = {
    "math_constants.h": r"CUDART_\w+",
    "cuda_fp16.h": r"half2?|__half2?(_raw)?|__\w*half\w*|__h(add|sub|mul|fma|div|neg|abs|max|min|eq|ne|lt|le|gt|ge)2?",
    "cuda_bf16.h": r"(__)?nv_bfloat162?|__\w*bfloat16\w*",
    "cuda_fp8.h": r"__nv_fp8\w*",
    "cuComplex.h": r"cu(Float|Double)?Complex|make_cu\w*Complex|cuC(add|sub|mul|div|real|imag|abs|fma)f?",
    "curand_kernel.h": r"curand\w*",
}

_BUILT_IN = (
    "max min abs fabs sqrt cbrt exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 sinh cosh "
    "tanh floor ceil round lround rint nearbyint trunc fmod fma hypot isnan isinf isfinite signbit copysign fmax fmin "
    "erf printf size_t ptrdiff_t memcpy memset"
)
_STREAMS = "cout cerr endl puts fprintf stderr stdout putchar fputs"
_LIBCUXX = {
    "limits": "numeric_limits",
    "array": "array",
    "tuple": "tuple make_tuple tie",
    "complex": "complex",
    "optional": "optional nullopt",
    "utility": "pair swap make_pair integer_sequence make_index_sequence index_sequence exchange declval",
    "type_traits": "is_same is_same_v enable_if enable_if_t conditional conditional_t is_integral is_floating_point "
    "is_integral_v is_floating_point_v remove_reference remove_reference_t true_type false_type decay decay_t",
}
_MEMBERS = {name: header for header, names in _LIBCUXX.items() for name in names.split()}

_HEADERS = {
    r"stdio\.h|cstdio|iostream": "printf is built in",
    r"assert\.h|cassert": "assert is built in",
    r"stddef\.h|cstddef": "size_t is built in",
    r"stdint\.h|cstdint|inttypes\.h": "write unsigned int for uint32_t, or #include <cuda/std/cstdint>",
    r"math\.h|cmath": "sqrtf() and its like are built in, and math_constants.h has CUDART_INF_F and CUDART_PI",
    r"float\.h|cfloat|limits\.h|climits": "write limits as numbers, or #include <cuda/std/limits>",
}


def name_fix(problem: str, line: str) -> str | None:
    """Return what to do about a problem that NVRTC reports in this line, None where it is about no such name."""
    found = _UNKNOWN.search(problem)
    if found:
        return _of_std(found["std"]) if found["std"] else _of_c(found["plain"]) or _of_cuda(found["plain"])
    if "host functions are not allowed" in problem or "__host__ function is not allowed" in problem:
        return "Leave host code out, and write __device__ in front of functions that kernels call"
    if "must be a namespace name" in problem or "must be a class or namespace name" in problem:
        if re.search(r"\bcooperative_groups\b|\bcg::", line):
            return "Write #include <cooperative_groups.h> first"
        if re.search(r"\bnvcuda\b|\bwmma::", line):
            return "Write #include <mma.h> first"
        if member := re.search(r"\bstd::(\w+)", line):
            return _of_std(member[1])
    return None


def standard_header(header: str) -> str | None:
    """Return what to do without a header of C or C++, None for one that is none of these."""
    if header in _LIBCUXX:
        return f"Write #include <cuda/std/{header}>, and cuda::std for std"
    for pattern, instead in _HEADERS.items():
        if re.fullmatch(pattern, header):
            return f"Leave {header} out: {instead}"
    return None


def _of_c(name: str) -> str | None:
    if name in _INTEGERS:
        own = ", or #include <cuda/std/cstdint> first" if name.endswith("_t") else ""
        return f"Write {_INTEGERS[name]} for {name}{own}"
    if name in _NUMBERS:
        return f"Write {_NUMBERS[name]} for {name}"
    if name in _CONSTANTS:
        return f"Write #include <math_constants.h> first, and {_CONSTANTS[name]} for {name}"
    if name in _STREAMS.split():
        return "Write printf(...), which is built in"
    if name in ("exit", "abort"):
        return "Write __trap() to end the launch with an error, or return to end the thread"
    return None


def _of_std(name: str) -> str:
    if name in _BUILT_IN.split():
        return f"Write {name} without std::, it is built in"
    if fix := _of_c(name):
        return fix
    header = _MEMBERS.get(name)
    if header is None:
        return "NVRTC has no standard library; parts of it are in libcu++, as cuda::std in the headers cuda/std/..."
    return f"Write #include <cuda/std/{header}> first, and cuda::std::{name}"


def _of_cuda(name: str) -> str | None:
    for header, pattern in _CUDA_NAMES.items():
        if re.fullmatch(pattern, name):
            return f"Write #include <{header}> first"
    if re.fullmatch(r"cuda[A-Z]\w*", name):
        return f"Leave {name} out: CUDA's host functions are not for kernels; allocate, copy and launch from Python"
    return None
