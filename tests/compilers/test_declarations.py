"""The names of parameters in a C++ text: those that are certain, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from ptxrt.compilers import Binary, EntryInfo, ParamInfo
from ptxrt.compilers._cxx_types import typed
from ptxrt.compilers.declarations import parameter_names


def names(text: str, *types: str, entry: str = "k", options: Any = (), headers: Any = ()) -> tuple[str, ...]:
    table = tuple(ParamInfo(8 * place, 8, "bits", "") for place in range(len(types)))
    entries = {"symbol": typed(EntryInfo("symbol", table), types)}
    binary = Binary(b"", "ptx", "sm_90", "test", options, "", 0.0, entries, symbols={entry: "symbol"})
    return parameter_names(text, entry, binary, headers)


@pytest.mark.parametrize(
    ("parameter", "type_", "name"),
    [
        ("float* x", "float*", "x"),
        ("const float *__restrict__ x", "float const*", "x"),
        ("float const* const x", "float const*", "x"),
        ("float x[]", "float*", "x"),
        ("float (&x)[4]", "float (&) [4]", "x"),
        ("float (*x)[2][4]", "float (*) [2][4]", "x"),
        ("void (*call)(int)", "void (*)(int)", "call"),
        ("unsigned long long n", "unsigned long long", "n"),
        ("long unsigned n = 3", "unsigned long", "n"),
        ("const int n = f(1, 2)", "int", "n"),
        ("index_t n", "int", "n"),
        ("const typename Traits<T, 4>::type n", "double", "n"),
        ("ns::Pair<int, float>* const pairs", "ns::Pair<int, float>*", "pairs"),
        ("struct Pair p", "Pair", "p"),
        ("const __grid_constant__ Pair p", "Pair", "p"),
        ("[[maybe_unused]] int n", "int", "n"),
        ("__attribute__((unused)) int n", "int", "n"),
        ("decltype(f(1)) n", "int", "n"),
        ("float** rows", "float**", "rows"),
        ("T&& x", "float&&", "x"),
        # Without a name, or with one that is not certain.
        ("int", "int", ""),
        ("unsigned long", "unsigned long", ""),
        ("float*", "float*", ""),
        ("index_t", "int", ""),
        ("float* x UNUSED", "float*", ""),
        ("float* RESTRICT x", "float*", ""),
        ("int n UNUSED", "int", ""),
        ("IN(float) x", "float", ""),
        # Not the declaration of this kernel.
        ("float* x", "double*", ""),
        ("float* x", "float", ""),
        ("int n", "float*", ""),
        ("int n", "float", ""),
        ("unsigned n", "int", ""),
    ],
)
def test_a_name_is_read_where_it_is_certain(parameter: str, type_: str, name: str) -> None:
    assert names(f"__global__ void k({parameter}) {{}}", type_) == (name,)


FLOATS = ("float*", "float*")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("__global__ void k(float* x, float* y) {}", ("x", "y")),
        ("__global__ void\nk(float* x, // float* a\n  /* , b */ float* y)\n{}", ("x", "y")),
        ("__global__ void k(float* a, float* b); __global__ void k(float* x, float* y) {}", ("x", "y")),
        ("template <> __global__ void k<float, 2>(float* x, float* y) noexcept {}", ("x", "y")),
        ("__global__ void f() { k(a, b); if (k(c, d)) {} }\n__global__ void k(float* x, float* y) {}", ("x", "y")),
        ("__global__ void ak(float* a, float* b) {}", ("", "")),
        ('const char* s = "k(float* a, float* b) {"; __global__ void k(float* x, float* y) {}', ("x", "y")),
        ('auto s = R"(k(float* a, float* b) {})"; __global__ void k(float* x, float* y) {}', ("x", "y")),
        ("__global__ void k(float* x) {}", ("", "")),
        ("__global__ void k(float* x, T... rest) {}", ("x", "")),
        ("#if A\n__global__ void k(float* x, float* y) {}\n#else\n__global__ void k(float* x, float* z) {}\n#endif",
         ("x", "")),
        # Macros.
        ("#define R __restrict__\n__global__ void k(float* R x, float* R y) {}", ("x", "y")),
        ("#define ARGS float* x, \\\n  float* y\n__global__ void k(ARGS) {}", ("x", "y")),
        ("#define P float\n#define Q P*\n__global__ void k(Q x, Q y) {}", ("x", "y")),
        ("#define b y\n__global__ void k(float* x, float* b) {}", ("x", "y")),
        ("#define x x\n__global__ void k(float* x, float* y) {}", ("", "y")),
        ("#if A\n#define b y\n#endif\n__global__ void k(float* x, float* b) {}", ("x", "")),
        ("#define b y\n#undef b\n__global__ void k(float* x, float* b) {}", ("x", "")),
        ("#define b y\n#define b z\n__global__ void k(float* x, float* b) {}", ("x", "")),
        ("#define K(n) __global__ void n(float* x, float* y)\nK(k) {}", ("", "")),
        ("#define K __global__ void k(float* x, float* y) {}\nK", ("", "")),
        ("#define k other\n__global__ void k(float* x, float* y) {}", ("", "")),
    ],
)  # fmt: skip
def test_the_definition_is_found_in_its_text(text: str, expected: Any) -> None:
    assert names(text, *FLOATS) == expected


@pytest.mark.parametrize("entry", ["k", "ns::k", "k<float, 4>", "ns::k<(a > b)>", "&k", "(k)", "&ns::k<int>"])
def test_an_entry_is_found_by_its_last_name(entry: str) -> None:
    assert names("__global__ void k(float* x) {}", "float*", entry=entry) == ("x",)


def test_macros_of_options_and_of_headers_count() -> None:
    text = "__global__ void k(float* R x, float* y) {}"
    assert names(text, *FLOATS, options=("-DR=__restrict__", "-Dy=z")) == ("x", "z")
    assert names(text, *FLOATS, options=("-DR=",), headers=["#define y z\n"]) == ("x", "")
    dead = "#if 0\n__global__ void k(float* a, float* y) {}\n#endif\n"
    assert names(dead, *FLOATS, headers=["__global__ void k(float* x, float* y) {}"]) == ("", "y")
    # It may be two parameters, and the one behind it none.
    assert (
        names("__global__ void k(A, float* y, B) {}", "float*", "float*", "float*", headers=["#define A\n"])
        == ("",) * 3
    )
