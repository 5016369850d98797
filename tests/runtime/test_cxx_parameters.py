"""A Signature against the parameter types of a kernel in C++, as each compiler tells them."""

from __future__ import annotations

from typing import Any

import pytest
from helpers import covering, refused

import ptxrt
from ptxrt import KernelSource
from ptxrt.compilers import hip_on_nvrtc, hiprtc, nvrtc
from ptxrt.compilers._code_object import machine_code

TYPES = """
#ifdef BF16
#include <hip/hip_bf16.h>
#endif
enum Colour { red };
struct Pair { int a; double b; };
namespace deep { struct Inner { float x; }; typedef const float* Input; }
namespace { struct Hidden { int a; }; }
template <class T, int N> struct Array { T values[N]; };
typedef float real;
template <class T> struct Traits { typedef T type; };
"""
# A parameter in C++, what agrees with it, and what does not.
PARAMETERS = [
    ("float* x", "f32*", "f64* f16* u32* i32* u8* u64 i64 f64"),
    ("float* x", "alignas(16) f32*", "const f32*"),
    ("const float* x", "const f32*", "const f64* const u32*"),
    ("const float* x", "f32*", "f64* i32*"),
    ("const volatile float* __restrict__ x", "const f32*", "const f64*"),
    ("float* const x", "f32*", "const f32*"),
    ("double* x", "f64*", "f32* u64* i64*"),
    ("int* x", "i32*", "f32* i64* i8*"),
    ("int* x", "u32*", "const u32*"),
    ("unsigned char* x", "u8*", "u16* f32*"),
    ("signed char* x", "i8*", "i16*"),
    ("char* x", "i8*", "f32*"),
    ("bool* x", "bool*", "i32* f32*"),
    ("bool* x", "u8*", "u16*"),
    ("short* x", "i16*", "f16* bf16*"),
    ("unsigned long* x", "u64*", "u32* f64*"),
    ("long long* x", "i64*", "i32* f64*"),
    ("real* x", "f32*", "f64*"),
    ("deep::Input x", "const f32*", "const f64*"),
    ("Traits<double>::type* x", "f64*", "f32*"),
    ("_Float16* x", "f16*", "bf16* f32* u16*"),
    ("const __half* x", "const f16*", "const bf16* const i16*"),
    ("__hip_bfloat16* x", "bf16*", "f16* u16* f32*"),
    # Of these an element type says nothing; whether they may be written through is known.
    ("void* x", "f32*", "const f32* u64"),
    ("const void* x", "const f64*", "f64"),
    ("Pair* x", "u8*", "const u8*"),
    ("const deep::Inner* x", "const f32*", "u64"),
    ("Hidden* x", "u8*", "const u8*"),
    ("Colour* x", "u32*", "const u32*"),
    ("Array<const int*, 2>* x", "u64*", "const u64* u64"),
    # An address among addresses is a number of 8 bytes.
    ("float** x", "u64*", "f32* f64* const u64*"),
    ("float* const* x", "const i64*", "const f32*"),
    # A reference is an address, that of an array is its first element's.
    ("float& x", "f32*", "f64* const f32* u64"),
    ("const float& x", "const f32*", "const f64*"),
    ("float (&x)[4]", "f32*", "f64* const f32*"),
    ("float (*x)[4]", "f32*", "f64* const f32*"),
    ("const float (*x)[2][4]", "const f32*", "const f64*"),
    # The address of a function, and a member's place in its class, are numbers to Python.
    ("void (*x)(int)", "u64", "u32"),
    ("int Pair::*x", "u64", "u32"),
    ("float x", "f32", "u32 i32 f64 f32*"),
    ("double x", "f64", "u64 i64 f32"),
    ("const float x", "f32", "u32"),
    ("int n", "i32", "f32 i64"),
    ("int n", "u32", "f32"),
    ("unsigned n", "u32", "f32 u64"),
    ("unsigned long n", "u64", "f64 u8*"),
    ("bool b", "bool", "u16"),
    ("char c", "i8", "i16"),
    ("_Float16 h", "f16", "bf16 u16 i16"),
    ("__half h", "f16", "bf16 u16"),
    ("__hip_bfloat16 h", "bf16", "f16 i16"),
    ("Colour c", "i32", "i64"),
    ("Array<float, 2> a", "u64", "u32"),
]


def in_hip(parameter: str) -> KernelSource:
    first = "#define BF16\n" if "bfloat16" in parameter else ""
    return KernelSource.hip(f'{first}{TYPES}\nextern "C" __global__ void k({parameter}) {{}}\n')


@pytest.fixture(scope="module", params=["NVRTC", "hipRTC"])
def compiled(request: pytest.FixtureRequest) -> Any:
    """How a text's entry is compiled, by the compiler alone, and its parameters."""
    if request.param == "hipRTC":
        request.getfixturevalue("hiprtc_there")
    elif reason := nvrtc.available():
        pytest.skip(reason)

    def parameters(text: Any, entry: str = "k", language: str = "hip", **how: Any) -> Any:
        if request.param == "hipRTC":
            binary = hiprtc.compile_hip(text, "gfx1100", entry=entry, **how)
        else:
            binary = hip_on_nvrtc.compile_cxx(language, text, "sm_90", entry=entry, **how)
        return binary, binary.entries[binary.symbols[entry or "k"]].params

    return parameters


@pytest.mark.parametrize(
    ("compiled", "parameter", "agrees", "others"),
    # Each with NVRTC, which is quick; with hipRTC each type.
    covering(
        [(compiler, *row) for compiler in ("NVRTC", "hipRTC") for row in PARAMETERS],
        lambda row: [row if row[0] == "NVRTC" else row[2]],
    ),
    indirect=["compiled"],
    ids=str,
)
def test_a_parameter_agrees_with_its_own_type_alone(compiled: Any, parameter: Any, agrees: Any, others: Any) -> None:
    if any(word in parameter for word in ("half", "_Float16", "bfloat16")) and not nvrtc.include_directories():
        pytest.skip("no CUDA headers here")
    _, table = compiled(in_hip(parameter).text)
    ptxrt.Signature.parse(f"{agrees} x").agree("k", table)
    for other in (f"const {word.removeprefix('const ')}" if const else word for word, const in _words(others)):
        with pytest.raises(ptxrt.SignatureMismatch):
            ptxrt.Signature.parse(f"{other} x").agree("k", table)


def _words(others: Any) -> Any:
    parts = others.replace("const ", "const+").split()
    return [(part.replace("const+", "const "), part.startswith("const+")) for part in parts]


def test_a_wrong_element_type_is_a_mismatch_at_load_with_both_in_words(device: ptxrt.Device) -> None:
    if device.kind != "hip" and (reason := nvrtc.available()):
        pytest.skip(reason)
    text = TYPES + 'extern "C" __global__ void k(const double* x, Pair* y, float** z, unsigned n, Pair p, float a) {}\n'
    wrong = "const f32* x, u8* y, f32* z, u32 n, f32 p, u32 a"
    with refused(ptxrt.SignatureMismatch, "load", "k") as caught:
        ptxrt.load(KernelSource.hip(text), "k", wrong, device)
    rows = [" ".join(line.split()) for line in str(caught.value).splitlines()[2:8]]
    assert rows[0] == "! 0 const f32* x: pointer, 8 bytes at 0 const f64*: pointer, 8 bytes at 0"
    assert rows[1] == "1 u8* y: pointer, 8 bytes at 8 Pair*: pointer, 8 bytes at 8"
    assert rows[2].startswith("! 2 f32* z: pointer, 8 bytes at 16 float*")
    assert rows[3] == "3 u32 n: int, 4 bytes at 24 u32: int, 4 bytes at 24"
    assert rows[4] == "! 4 f32 p: float, 4 bytes at 28 Pair: bits, 16 bytes at 32"
    assert rows[5] == "! 5 u32 a: int, 4 bytes at 32 f32: float, 4 bytes at 48"


def test_a_kernel_that_agrees_loads_and_runs(device: ptxrt.Device) -> None:
    if device.kind != "hip" and (reason := nvrtc.available()):
        pytest.skip(reason)
    import numpy as np

    text = """extern "C" __global__ void k(const float* x, double* y, int n) {
      if (threadIdx.x < n) y[threadIdx.x] = x[threadIdx.x];
    }"""
    kernel = ptxrt.load(KernelSource.hip(text), "k", "const f32* x, f64* y, u32 n", device)
    x, y = ptxrt.to_device(np.arange(3, dtype=np.float32), device), ptxrt.zeros(3, np.float64, device)
    kernel.launch(1, 32, x, y, 3)
    assert y.to_host().tolist() == [0, 1, 2]


FORMS = [
    ("template <class T> __global__ void k(const T* x, T a) {}", "k<double>", ["const f64*", "f64"]),
    ("template <class T, int N> __global__ void k(T (*x)[N], T* y) {}", "k<float, 4>", ["f32*", "f32*"]),
    ("template <class... T> __global__ void k(T*... x) {}", "k<float, int>", ["f32*", "i32*"]),
    ("namespace a { namespace b { __global__ void k(float* x) {} } }", "a::b::k", ["f32*"]),
    ("__global__ void k(float* x) {}", "k", ["f32*"]),
    ("__global__ void k(float* x) {}", "&k", ["f32*"]),
    ('extern "C" __global__ void __launch_bounds__(64, 2) k(float* x) {}', "k", ["f32*"]),
    ('extern "C" { __global__ void k(float* x); } __global__ void k(float* x) {}', "k", ["f32*"]),
    ("__global__ void k(float* x) {} __global__ void k(float* x, int n) {}", "k", None),
    ('extern "C" __global__ void k() {}', "k", []),
    ('extern "C" __global__ void k(void (*f)(float, int), float* x) {}', "k", ["", "f32*"]),
    ('extern "C" __global__ void k(float* x) {} // no line end', "k", ["f32*"]),
    ('extern "C" __global__ void k(float* x) {} // spliced \\', "k", ["f32*"]),
]  # fmt: skip


def words(params: Any) -> Any:
    return [f"{'const ' if p.const else ''}{p.type}{'*' if p.kind == 'pointer' else ''}" for p in params]


@pytest.mark.parametrize(("text", "entry", "expected"), FORMS, ids=[f"{row[1]}: {row[0][:30]}" for row in FORMS])
def test_however_the_kernel_is_declared(compiled: Any, text: Any, entry: Any, expected: Any) -> None:
    if expected is None:
        with pytest.raises(ptxrt.CompileError, match=r"no entry 'k'.*overload"):
            compiled(text, entry)
        return
    binary, table = compiled(text, entry)
    assert words(table) == expected
    # The question leaves nothing behind.
    assert b"ptxrt" not in binary.code
    assert "ptxrt" not in binary.log


OVERLOADED = """__global__ void k(float* x) {} __global__ void k(double* x) {}
template <class T> __global__ void t(T* x) {} template <class T, class U> __global__ void t(T* x, U* y) {}
"""


@pytest.mark.parametrize(
    ("entry", "expected"),
    [("(void (*)(float*))k", ["f32*"]), ("static_cast<void (*)(double*)>(k)", ["f64*"]), ("(t<int>)", ["i32*"]),
     ("t<int, float>", ["i32*", "f32*"]), ("(void (*)(int*))&t<int>", ["i32*"])],
)  # fmt: skip
def test_an_entry_may_be_an_expression_where_the_compiler_takes_one(
    compiled: Any, request: pytest.FixtureRequest, entry: str, expected: Any
) -> None:
    if "NVRTC" in request.node.name or entry.startswith("t<"):
        assert words(compiled(OVERLOADED, entry)[1]) == expected
        return
    with pytest.raises(ptxrt.CompileError, match="no entry") as caught:  # hipRTC looks up names alone
        compiled(OVERLOADED, entry)
    assert caught.value.log
    assert "ptxrt" not in caught.value.log


@pytest.mark.parametrize(
    ("options", "language"),
    [(("-w",), "hip"), (("-std=c++11",), "hip"), (("-std=c++20",), "hip"), (("-Werror",), "hip"), (("-w",), "cuda"),
     (("--std=c++11",), "cuda"), (("--disable-warnings",), "cuda")],
)  # fmt: skip
def test_types_are_known_with_all_options(
    compiled: Any, request: pytest.FixtureRequest, options: Any, language: str
) -> None:
    if ("hipRTC" in request.node.name) != (language == "hip"):
        pytest.skip("options of the other compiler")
    text = 'extern "C" __global__ void k(const float* x) {}'
    assert words(compiled(text, language=language, options=options)[1]) == ["const f32*"]


def test_what_the_question_costs_is_no_code(compiled: Any) -> None:
    text = 'extern "C" __global__ void k(const float* x, double* y) { y[0] = x[0]; }\n#warning hello\n'
    asked, _ = compiled(text)
    plain, _ = compiled(text, entry=None)
    assert asked.log.splitlines()[:2] == plain.log.splitlines()[:2]  # ptxas' times follow
    if asked.kind == "hsaco":  # which has a digest of the text
        assert len(asked.code) == len(plain.code)
        assert machine_code(asked.code, "k") == machine_code(plain.code, "k")
    else:
        assert asked.code == plain.code
