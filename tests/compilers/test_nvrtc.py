"""CUDA C++ -> cubin or PTX, with the real NVRTC and no device."""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers import Patch

from ptxrt.compilers import _cuda_headers as cuda_headers
from ptxrt.compilers._options import OptionTable
from ptxrt.errors import CompileError, InvalidArgument

TEXT = """\
// __global__ void commented(float* y) {}
template <class T> __global__ void scale(const T* x, T* y, unsigned n, float a) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * (T)a;
}
extern "C" __global__ void __launch_bounds__(256, 2) plain(float* y) { y[0] = 1; }
namespace ns { __global__ void mangled(float* y) { y[0] = 2; } }
struct Pair { int a; double b; };
extern "C" __global__ void typed(Pair p, char c, bool flag, double d) {}
__device__ int helper() { return 1; }
"""


def failure(rtc: Any, text: Any, arch: str = "sm_90", options: Any = (), **names: Any) -> Any:
    with pytest.raises(CompileError) as caught:
        rtc.compile_cuda(text, arch, options, **names)
    return caught.value


def test_a_text_becomes_a_cubin_with_entries_reports_and_symbols(rtc: ModuleType) -> None:
    binary = rtc.compile_cuda(TEXT, "sm_90", entry="plain")
    assert binary.code.startswith(b"\x7fELF")
    assert (binary.kind, binary.arch) == ("cubin", "sm_90")
    assert binary.compiler == f"NVRTC {rtc.version()}"
    assert binary.symbols["plain"] == "plain"
    assert binary.reports["plain"].registers > 0
    assert "\0" not in binary.log


@pytest.mark.parametrize(
    ("entry", "part"), [("scale<float>", "scaleIf"), ("ns::mangled", "2ns7mangled"), ("plain", "plain")]
)
def test_an_entry_is_a_name_expression(rtc: ModuleType, entry: str, part: str) -> None:
    binary = rtc.compile_cuda(TEXT, "sm_90", entry=entry)
    symbol = binary.symbols[entry]
    assert part in symbol
    assert symbol in binary.entries
    assert symbol.encode() in binary.code


def test_the_parameters_of_a_cubin_are_known_with_their_kinds(rtc: ModuleType) -> None:
    binary = rtc.compile_cuda(TEXT, "sm_90", entry="scale<float>")
    scale = binary.entries[binary.symbols["scale<float>"]]
    assert [(p.offset, p.size, p.kind) for p in scale.params] == [
        (0, 8, "pointer"), (8, 8, "pointer"), (16, 4, "int"), (20, 4, "float"),
    ]  # fmt: skip
    typed = binary.entries["typed"]
    assert [(p.offset, p.size, p.kind) for p in typed.params] == [
        (0, 16, "bits"), (16, 1, "int"), (17, 1, "int"), (24, 8, "float"),
    ]  # fmt: skip


def test_without_an_entry_a_template_is_not_instantiated(rtc: ModuleType) -> None:
    assert not any("scale" in name for name in rtc.compile_cuda(TEXT, "sm_90").entries)


def test_ptx_comes_without_its_closing_nul(rtc: ModuleType) -> None:
    binary = rtc.compile_cuda(TEXT, "sm_90a", entry="plain", output="ptx")
    assert binary.kind == "ptx"
    assert b".target sm_90a" in binary.code
    assert b"\0" not in binary.code
    assert "plain" in binary.entries


def test_the_same_inputs_give_the_same_bytes(rtc: ModuleType) -> None:
    assert rtc.compile_cuda(TEXT, "sm_90").code == rtc.compile_cuda(TEXT, "sm_90").code


def test_defines_reach_the_text_in_an_order_of_their_own(rtc: ModuleType) -> None:
    text = '#if !defined(FLAG) || ON != 1\n#error no\n#endif\nextern "C" __global__ void k(TYPE* x) { x[0] = N; }'
    binary = rtc.compile_cuda(text, "sm_90", defines={"TYPE": "unsigned int", "N": 4, "FLAG": None, "ON": True})
    assert binary.options == ("-DFLAG", "-DN=4", "-DON=1", "-DTYPE=unsigned int")


@pytest.mark.parametrize("defines", [{"1N": 4}, {"A B": None}, {"": 1}, {3: 4}])
def test_a_macro_has_a_name(rtc: ModuleType, defines: Any) -> None:
    with pytest.raises(InvalidArgument, match="a macro's name"):
        rtc.compile_cuda(TEXT, "sm_90", defines=defines)


@pytest.mark.parametrize("value", ["a\nb", "\ud800", 2.5, b"x"])
def test_a_macros_value_is_one_line_or_an_int(rtc: ModuleType, value: Any) -> None:
    with pytest.raises(InvalidArgument, match="a str of one line, an int or None"):
        rtc.compile_cuda(TEXT, "sm_90", defines={"N": value})


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        (b"x", "must be a str, not bytes", None),
        (" \n", "empty", None),
        ("\nint a\0;", "NUL character on line 2", 2),
        ("// \udc80", "lone surrogate", 1),
        (".version 7.0\n.target sm_75\n", "It looks like PTX", 1),
        ("\n\n__global__ void k() { int x = ; }", "expected an expression", 3),
        ("\n#error not today\n", "not today", 2),
        ('#line 1 "other.h"\nint = 3;', "other.h, line 1", None),
        ("__global__ void k() {\n", 'expected a "}"', 1),
        ("#include <cuda/never_there>", "nvidia-cuda-cccl", 1),
        ("#include <cuda_never_there.h>", "nvidia-cuda-runtime", 1),
        ("#include <crt/never_there.h>", "nvidia-cuda-crt", 1),
        ("#include <stdint.h>", "Leave stdint.h out", 1),
        ("#include <mine/never_there.h>", "('-I/folder/of/mine/never_there.h',)", 1),
    ],
)
def test_a_fault_in_the_text_is_a_compile_error_with_its_line(
    rtc: ModuleType, text: Any, words: str, line: int | None
) -> None:
    error = failure(rtc, text, name="mine.cu")
    assert words in str(error)
    assert (error.line, error.kernel) == (line, "mine.cu")
    if error.log:
        assert error.log in str(error)


def test_non_ascii_in_a_comment_is_fine(rtc: ModuleType) -> None:
    assert rtc.compile_cuda("// \u00b5s\n" + TEXT, "sm_90").entries


def test_a_fault_in_inline_assembly_shows_the_generated_ptx(rtc: ModuleType) -> None:
    error = failure(rtc, 'extern "C" __global__ void k() { asm volatile("bogus %r1;"); }')
    assert "in the PTX generated from the text" in str(error)
    assert "bogus %r1;" in error.log
    assert error.line is None


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("pl\ud800n", r"no C\+\+ expression has these characters"),
        ("plain\n", r"no C\+\+ expression has these characters"),
        ("plain\0", r"no C\+\+ expression has these characters"),
        ("plane", r"no entry 'plane' .*the text has scale, plain, mangled, typed.*Did you mean plain\?"),
        ("scale", r"Name its template arguments: scale<\.\.\.>"),
        ("scale<floot>", 'identifier "floot" is undefined'),
        ("helper", "no entry 'helper'"),
        ("commented", "no entry 'commented'"),
    ],
)
def test_a_missing_entry_names_those_there_are(rtc: ModuleType, entry: str, words: str) -> None:
    error = failure(rtc, TEXT, entry=entry)
    with pytest.raises(CompileError, match="(?s)" + words):
        raise error
    assert error.given == entry
    assert error.expected == ["scale", "plain", "mangled", "typed"]


@pytest.mark.parametrize(
    ("text", "words", "entry"),
    [
        (
            "__global__ void k(float* y) {} __global__ void k(double* y) {}",
            r"Say which of them: \(void \(\*\)\(its parameters' types\)\) k",
            "(void (*)(float*)) k",
        ),
        (
            "template <class T> __device__ T one(T x) { return 1; } // k(\n__global__ void k(float* y) {}"
            "__device__ float k(float y) { return one(y); }",
            r"functions of that name: call the kernel otherwise, or say which is meant: \(void \(\*\)",
            "(void (*)(float*)) k",
        ),
        (
            "template <class T> __launch_bounds__(32) __global__ void k(T* y) {} __global__ void k(float* y) {}",
            r"Name its template arguments: k<\.\.\.>",
            "k<int>",
        ),
        (
            "namespace a { __global__ void k(float* y) {} }",
            "If it stands in a namespace, name that: namespace::k",
            "a::k",
        ),
    ],
)
def test_an_entry_that_is_not_named_as_a_whole_is_told_how(rtc: ModuleType, text: str, words: str, entry: str) -> None:
    with pytest.raises(CompileError, match=words):
        raise failure(rtc, text, entry="k")
    assert entry in rtc.compile_cuda(text, "sm_90", entry=entry).symbols


def test_a_kernel_by_the_name_of_a_function_of_the_compilers_is_told_so(rtc: ModuleType) -> None:
    text = "template <class T> __device__ T one(T x) { return 1; }\n__global__ void all(float* y) { *y = one(*y); }"
    with pytest.raises(CompileError, match="The compiler has functions of that name: call the kernel otherwise"):
        raise failure(rtc, text, entry="all")


def test_a_fault_in_the_text_comes_before_a_missing_entry(rtc: ModuleType) -> None:
    assert failure(rtc, "int x = ;\n" + TEXT, entry="nope", name="mine.cu").line == 1


def test_an_option_that_this_version_does_not_know_is_named(rtc: ModuleType, monkeypatch: Patch) -> None:
    monkeypatch.setattr(rtc, "NVRTC", OptionTable("NVRTC", frozenset(["bogus"])))
    error = failure(rtc, TEXT, options=("-bogus",))
    assert "unrecognized option -bogus" in str(error)
    assert error.options == ("-bogus",)


def test_an_option_that_leaves_no_cubin_is_a_compile_error(rtc: ModuleType) -> None:
    assert "made no cubin" in str(failure(rtc, TEXT, options=("-dlto",)))


def test_an_unknown_architecture_names_those_there_are(rtc: ModuleType) -> None:
    assert "makes no code for sm_799; it knows" in str(failure(rtc, TEXT, "sm_799"))
    assert "sm_90" in rtc.architectures()


def test_an_option_that_names_an_architecture_is_refused(rtc: ModuleType) -> None:
    with pytest.raises(InvalidArgument, match="no architecture among the options"):
        rtc.compile_cuda(TEXT, "sm_90", ("--gpu-architecture=sm_80",))


def test_the_output_is_a_cubin_or_ptx(rtc: ModuleType) -> None:
    with pytest.raises(InvalidArgument, match="'cubin' or 'ptx'"):
        rtc.compile_cuda(TEXT, "sm_90", output="exe")


def counting(function: Any, calls: Any, name: Any) -> Any:
    def counted(*args: Any) -> Any:
        result = function(*args)
        calls[name] += 1
        return result

    return counted


def test_programs_are_destroyed_after_success_and_after_failure(rtc: ModuleType, monkeypatch: Patch) -> None:
    library, calls = rtc._library(), Counter[str]()
    for name in ("nvrtcCreateProgram", "nvrtcDestroyProgram"):
        monkeypatch.setattr(library, name, counting(getattr(library, name), calls, name))
    rtc.compile_cuda(TEXT, "sm_90")
    failure(rtc, "int x = ;")
    failure(rtc, TEXT, entry="nope")
    assert calls == {"nvrtcCreateProgram": 3, "nvrtcDestroyProgram": 3}


def test_threads_compile_at_once_and_get_what_one_gets(rtc: ModuleType) -> None:
    alone = {n: rtc.compile_cuda(TEXT, "sm_90", defines={"N": n}, entry="scale<float>").code for n in range(4)}
    together: dict[int, bytes] = {}

    def work(n: Any) -> None:
        together[n] = rtc.compile_cuda(TEXT, "sm_90", defines={"N": n}, entry="scale<float>").code

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_pain21_the_half_headers_are_found_where_they_are_installed(rtc: ModuleType) -> None:
    if not rtc.include_directories():
        pytest.skip("no CUDA headers here: neither nvidia-cuda-runtime nor a toolkit")
    text = (
        '#include <cuda_fp16.h>\n#include <cuda_bf16.h>\nextern "C" __global__ void k(__half* x, __nv_bfloat16* y) {}'
    )
    assert rtc.compile_cuda(text, "sm_90").entries


@pytest.mark.parametrize(
    "include",
    [
        "# include <cuda_fp16.h>",
        "#\tinclude <cuda_fp16.h>",
        "%:include <cuda_fp16.h>",
        "/**/ # /**/ include <cuda_fp16.h>",
        "#define H <cuda_fp16.h>\n#include H",
    ],
)
def test_cudas_headers_are_found_however_an_include_is_written(rtc: ModuleType, include: str) -> None:
    if not rtc.include_directories():
        pytest.skip("no CUDA headers here: neither nvidia-cuda-runtime nor a toolkit")
    assert rtc.compile_cuda(f'{include}\nextern "C" __global__ void k(__half* x) {{}}', "sm_90").entries


@pytest.mark.parametrize("option", [("--pre-include=cuda_fp16.h",), ("-include", "cuda_fp16.h")])
def test_cudas_headers_are_found_by_an_option(rtc: ModuleType, option: Any) -> None:
    if not rtc.include_directories():
        pytest.skip("no CUDA headers here: neither nvidia-cuda-runtime nor a toolkit")
    assert rtc.compile_cuda('extern "C" __global__ void k(__half* x) {}', "sm_90", option).entries


def test_pain21_a_half_header_that_is_nowhere_says_what_to_install(rtc: ModuleType, monkeypatch: Patch) -> None:
    monkeypatch.setattr(rtc, "include_directories", tuple)
    error = failure(rtc, "#include <cuda_fp16.h>\n")
    assert error.line == 1
    assert "pip install nvidia-cuda-runtime" in error.fix


def test_the_options_of_a_key_tell_cudas_headers_and_the_sources_name(rtc: ModuleType, monkeypatch: Patch) -> None:
    monkeypatch.setattr(rtc, "include_directories", lambda: ("/nowhere",))
    assert rtc.effective_options() == ("--include-path=/nowhere", "name=kernel.cu")
    found = rtc.effective_options(("-lineinfo",), "mine/k.cu")
    assert found == ("-lineinfo", "--include-path=/nowhere", f"folder={os.getcwd()}", "name=mine/k.cu")


def test_the_files_that_were_read_are_known(rtc: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "mine.h").write_text("// nothing\n")
    text = '#include <mine.h>\nextern "C" __global__ void k() {}'
    for entry in ("k", None):
        included = rtc.compile_cuda(text, "sm_90", (f"-I{tmp_path}",), entry=entry).included
        assert included.known
        assert str(tmp_path / "mine.h") in included.files
    folders = ("", *(f"{folder}/" for folder in rtc.include_directories()))
    assert set(failure(rtc, text).included.files) == {f"{folder}mine.h" for folder in folders}
    assert rtc.compile_cuda(TEXT, "sm_90", entry="plain").included.files == ()


def test_the_drivers_cache_is_not_asked_as_its_answers_have_no_registers(rtc: ModuleType, monkeypatch: Patch) -> None:
    given = []
    compile_program = rtc.compile_program

    def noted(library: Any, text: Any, name: Any, options: Any, **how: Any) -> Any:
        given.append(options)
        return compile_program(library, text, name, options, **how)

    monkeypatch.setattr(rtc, "compile_program", noted)
    assert rtc.compile_cuda(TEXT, "sm_90", entry="plain").reports["plain"].registers
    assert "--no-cache" in given[0]


def test_a_compiler_that_does_not_say_what_it_read_is_not_believed(rtc: ModuleType, monkeypatch: Patch) -> None:
    compile_program = rtc.compile_program
    monkeypatch.setattr(
        rtc, "compile_program", lambda *args, **how: replace(compile_program(*args, **how), opened=None)
    )
    assert not rtc.compile_cuda("// include\n" + TEXT, "sm_90", entry="plain").included.known


def test_cuda_home_is_searched_for_headers(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_fp16.h").write_text("")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert str(tmp_path / "include") in cuda_headers.include_directories.__wrapped__()
