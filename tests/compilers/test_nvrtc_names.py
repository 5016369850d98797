"""Names and headers that NVRTC lacks: the error says what to write, and that compiles."""

from __future__ import annotations

import os
import re

import pytest
from helpers import EVERYTHING, need_nvrtc

from ptxrt.compilers import nvrtc
from ptxrt.compilers._nvrtc_names import _BUILT_IN, _CONSTANTS, _INTEGERS, _NUMBERS
from ptxrt.errors import CompileError


@pytest.fixture(autouse=True)
def _nvrtc() -> None:
    need_nvrtc()


def compiled(body: str, before: str = "") -> None:
    """Compile a kernel with this body, and these lines in front of it."""
    text = f'{before}\nextern "C" __global__ void k(float* x, int n) {{ {body} }}'
    libcuxx = any(os.path.exists(os.path.join(d, "cuda/std/cstdint")) for d in nvrtc.include_directories())
    if "<cuda/std/" in before and not libcuxx:
        pytest.skip("libcu++ is not here")
    nvrtc.compile_cuda(text, "sm_90", output="ptx")


def fix_of(body: str, before: str = "") -> str:
    with pytest.raises(CompileError) as caught:
        compiled(body, before)
    fix = caught.value.fix or ""
    assert fix in str(caught.value)
    return fix


@pytest.mark.parametrize("name", _INTEGERS)
def test_integer_types(name: str) -> None:
    fix = fix_of(f"{name} value = n; x[0] = value;")
    (plain,) = re.findall(f"^Write ([a-z ]+) for {name}\\b", fix)
    bits = {"uintptr_t": 64, "intptr_t": 64, "uchar": 8, "ushort": 16, "uint": 32, "ulong": 64}
    wanted = bits.get(name) or int(re.sub(r"\D", "", name))
    signed = "true" if name.startswith("int") else "false"
    compiled(f"static_assert(sizeof({plain}) == {wanted // 8} && (({plain})-1 < ({plain})0) == {signed});")


def test_fixed_width_types_from_libcuxx() -> None:
    assert "#include <cuda/std/cstdint>" in fix_of("uint32_t value = n; x[0] = value;")
    compiled("uint32_t value = n; x[0] = value;", before="#include <cuda/std/cstdint>")


@pytest.mark.parametrize("name", _NUMBERS)
def test_limits(name: str) -> None:
    (number,) = re.findall(f"^Write (.*) for {name}$", fix_of(f"x[0] = {name};"))
    if name.startswith(("FLT", "DBL")):
        own = {"FLT": "float", "DBL": "double"}[name[:3]]
        what = {"MAX": "max", "MIN": "min", "EPSILON": "epsilon"}[name[4:]]
        value = f"cuda::std::numeric_limits<{own}>::{what}()"
        compiled(f"static_assert({number} == {value});", before="#include <cuda/std/limits>")
    else:
        header = "cstdint" if "32" in name or "64" in name or name == "SIZE_MAX" else "climits"
        compiled(f"static_assert(({number}) == {name});", before=f"#include <cuda/std/{header}>")


@pytest.mark.parametrize("name", _CONSTANTS)
def test_constants(name: str) -> None:
    header, constant = re.findall(f"^Write (#include <.*>) first, and (\\w+) for {name}$", fix_of(f"x[0] = {name};"))[0]
    compiled(f"x[0] = {constant};", before=header)


@pytest.mark.parametrize(("kind", "header"), [("half", "cuda_fp16.h"), ("__nv_bfloat16", "cuda_bf16.h")])
@pytest.mark.parametrize("parameters", ["{}* x", "int n,\n    const {}* __restrict__ x"])
def test_a_parameter_of_a_type_without_its_header(kind: str, header: str, parameters: str) -> None:
    # NVRTC tells first of the kernel's attribute, which it takes for a variable's.
    kernel = f'extern "C" __global__ void f({parameters.format(kind)}) {{ }}'
    assert fix_of("", kernel) == f"Write #include <{header}> first"
    compiled("", f"#include <{header}>\n{kernel}")


def test_a_name_behind_another_problem_is_not_its_fix() -> None:
    assert fix_of("x[0] = undefined_thing;\nuint32_t b = n;") == ""


def test_a_constant_without_its_header() -> None:
    assert fix_of("x[0] = CUDART_PI_F;") == "Write #include <math_constants.h> first"


@pytest.mark.parametrize(("body", "header"), [
    ("half h = __float2half(x[0]);", "cuda_fp16.h"), ("__half2 h; x[0] = __low2float(h);", "cuda_fp16.h"),
    ("x[0] = __half2float(0);", "cuda_fp16.h"), ("__nv_bfloat16 h = __float2bfloat16(x[0]);", "cuda_bf16.h"),
    ("x[0] = __bfloat162float(1.f);", "cuda_bf16.h"), ("__nv_fp8_e4m3 h;", "cuda_fp8.h"),
    ("cuFloatComplex c;", "cuComplex.h"), ("namespace cg = cooperative_groups;", "cooperative_groups.h"),
])  # fmt: skip
def test_cuda_headers(body: str, header: str) -> None:
    assert fix_of(body) == f"Write #include <{header}> first"
    compiled(body, before=f"#include <{header}>")


@pytest.mark.parametrize(("body", "header"), [
    ("nvcuda::wmma::layout_t a;", "mma.h"), ("curandState s;", "curand_kernel.h"),
])  # fmt: skip
def test_headers_that_need_more(body: str, header: str) -> None:
    assert fix_of(body) == f"Write #include <{header}> first"


@pytest.mark.parametrize("name", _BUILT_IN.split())
def test_functions_without_std(name: str) -> None:
    given = {"printf": '"a"', "memcpy": "x, x, 4", "memset": "x, 0, 4", "fma": "1.f, 1.f, 1.f", "size_t": "1",
             "ptrdiff_t": "1", "abs": "n"}  # fmt: skip
    two = ("max", "min", "pow", "atan2", "fmod", "hypot", "copysign", "fmax", "fmin")
    arguments = given.get(name, "1.f, 2.f" if name in two else "1.f")
    assert fix_of(f"(void)std::{name}({arguments});") == f"Write {name} without std::, it is built in"
    compiled(f"(void){name}({arguments});")


@pytest.mark.parametrize(("body", "after", "header"), [
    ("x[0] = std::numeric_limits<float>::max();", "x[0] = cuda::std::numeric_limits<float>::max();", "limits"),
    ("std::array<int, 3> a;", "cuda::std::array<int, 3> a;", "array"),
    ("std::pair<int, int> a;", "cuda::std::pair<int, int> a;", "utility"),
    ("std::tuple<int> a(1);", "cuda::std::tuple<int> a(1);", "tuple"),
    ("std::complex<float> a;", "cuda::std::complex<float> a;", "complex"),
    ("std::optional<int> a;", "cuda::std::optional<int> a;", "optional"),
    ("x[0] = std::is_same<int, int>::value;", "x[0] = cuda::std::is_same<int, int>::value;", "type_traits"),
])  # fmt: skip
def test_what_libcuxx_has_of_std(body: str, after: str, header: str) -> None:
    name = re.findall(r"std::(\w+)", body)[0]
    assert fix_of(body) == f"Write #include <cuda/std/{header}> first, and cuda::std::{name}"
    assert fix_of("", f"#include <{header}>") == f"Write #include <cuda/std/{header}>, and cuda::std for std"
    if header in ("limits", "array") or EVERYTHING:  # others take a second
        compiled(after, before=f"#include <cuda/std/{header}>")


@pytest.mark.parametrize(("body", "words"), [
    ("std::vector<int> v;", "parts of it are in libcu++"), ("std::cout << 1;", "printf"), ('puts("a");', "printf"),
    ('fprintf(stderr, "a");', "printf"), ("std::uint32_t u = 1;", "Write unsigned int for uint32_t"),
    ("exit(1);", "__trap()"), ("cudaMalloc(&x, 4);", "allocate, copy and launch from Python"),
])  # fmt: skip
def test_what_is_not_there(body: str, words: str) -> None:
    assert words in fix_of(body)


def test_host_code() -> None:
    assert "write __device__ in front of functions" in fix_of("", before="int half_of(int n) { return n / 2; }")
    compiled("", before="__device__ int half_of(int n) { return n / 2; }")


@pytest.mark.parametrize(("header", "words"), [
    ("stdio.h", "printf is built in"), ("cstdio", "printf is built in"), ("iostream", "printf is built in"),
    ("assert.h", "assert is built in"), ("cassert", "assert is built in"), ("cstddef", "size_t is built in"),
    ("stdint.h", "write unsigned int for uint32_t, or #include <cuda/std/cstdint>"), ("cstdint", "cuda/std/cstdint"),
    ("cmath", "math_constants.h"), ("cfloat", "cuda/std/limits"), ("limits.h", "cuda/std/limits"),
    ("vector", "no standard headers"),
])  # fmt: skip
def test_standard_headers(header: str, words: str) -> None:
    fix = fix_of("", before=f"#include <{header}>")
    assert fix.startswith(f"Leave {header} out: ")
    assert words in fix


@pytest.mark.parametrize("body", ["x[0] = halfway;", "x[0] = uint33_t;", "x[0] = std;", "y::z();", "cudart();"])
def test_other_names_have_no_fix(body: str) -> None:
    with pytest.raises(CompileError) as caught:
        compiled(body)
    assert caught.value.fix is None
