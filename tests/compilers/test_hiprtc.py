"""HIP C++ -> code object, with the real hipRTC and no device; and what is refused before hipRTC is asked."""

from __future__ import annotations

import dataclasses
import os
import signal
import tempfile
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from code_objects import KERNEL, code_object
from helpers import Patch, printed_by

import ptxrt
from ptxrt.backends import get
from ptxrt.compilers import _hip_headers as hip_headers
from ptxrt.compilers import disassembly, hiprtc
from ptxrt.compilers._options import OptionTable
from ptxrt.compilers.disassembly import disassemble
from ptxrt.errors import BackendUnavailable, CompileError, InvalidArgument
from ptxrt.runtime.modules import ModuleCache

pytestmark = pytest.mark.amd

TARGETS = ("gfx90a", "gfx942", "gfx1100")
TEXT = """\
#include <hip/hip_runtime.h>
template <class T> __global__ void scale(const T* x, T* y, unsigned n, float a) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * (T)a;
}
extern "C" __global__ void __launch_bounds__(256) plain(float* y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];
}
namespace ns { __global__ void mangled(float* y) { y[0] = 2; } }
struct Pair { int a; double b; };
extern "C" __global__ void typed(Pair p, char c, bool flag, double d) {}
__device__ int helper() { return 1; }
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size(1, 64))) first(float* y, int n) {
  if ((int)threadIdx.x < n) y[threadIdx.x] *= 2;
}
"""
STACK = """extern "C" __global__ void stack(float* x, int n) {
  float y[300];
  for (int i = 0; i < 300; i++) y[i] = x[i];
  for (int i = 0; i < n; i++) y[(i * 7) % 300] += y[(i * 13) % 300];
  for (int i = 0; i < 300; i++) x[i] = y[i];
}"""


def failure(text: Any, arch: str = "gfx1100", options: Any = (), **names: Any) -> Any:
    with pytest.raises(CompileError) as caught:
        hiprtc.compile_hip(text, arch, options, **names)
    return caught.value


# Before hipRTC is asked -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arch",
    ["gfx906", "gfx90a", "gfx1100", "gfx90a:xnack-", "gfx90a:sramecc+:xnack-", "gfx9-generic", "gfx9-4-generic"],
)
def test_a_full_target_name_passes(arch: str) -> None:
    hiprtc.check_target(arch)


@pytest.mark.parametrize(
    "arch",
    ["", "90", "90a", "sm_90", "gfx", "gfx90", "GFX90a", "gfx90g", "gfx90a ", "gfx90a\n", "gfx90a:", "gfx90a:xnack",
     "gfx90a:xnack*", "gfx90a:xnack+:xnack-", "gfx90a:xnack-:xnack-", "gfx90a:sram+", "gfx90a -o x", None, 942],
)  # fmt: skip
def test_anything_else_is_no_target(arch: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        hiprtc.compile_hip(TEXT, arch)
    assert (caught.value.argument, caught.value.given) == ("arch", repr(arch))


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        (b"x", "HIP text must be a str, not bytes", None),
        (" \n", "the HIP text is empty", None),
        ("\nint a\0;", "NUL character on line 2", 2),
        ("// \udc80", "lone surrogate", 1),
    ],
)
def test_a_text_that_no_compiler_should_see_is_refused(text: Any, words: str, line: int | None) -> None:
    error = failure(text, name="mine.hip")
    assert words in str(error)
    assert (error.line, error.kernel) == (line, "mine.hip")


def test_the_options_of_a_key_tell_our_headers_and_where_quoted_ones_are_looked_for() -> None:
    options = hiprtc.effective_options(("-O2",), "mine/k.hip")
    assert options[:-2] == ("-std=c++17", "-nostdlibinc", "-O2", f"folder={os.getcwd()}")
    assert options[-2] == "quoted=mine"
    assert options[-1].startswith("headers=")


@pytest.mark.parametrize(("options", "differ"), [((), False), (("-g",), True)])
def test_the_current_folder_is_in_the_key_where_an_option_may_show_it(
    monkeypatch: Patch, tmp_path: Path, options: Any, differ: bool
) -> None:
    before = hiprtc.effective_options(options)
    monkeypatch.chdir(tmp_path)
    assert (hiprtc.effective_options(options) != before) == differ


def test_what_stands_for_our_headers_is_in_the_key(monkeypatch: Patch) -> None:
    before = hiprtc.effective_options()
    monkeypatch.setitem(hip_headers._HEADERS, "hip/hip_bf16.h", "")
    assert hiprtc.effective_options() != before


def test_a_header_that_the_options_lead_to_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "hip").mkdir()
    (tmp_path / "hip" / "hip_bf16.h").write_text("")
    everything = hip_headers.virtual_headers(())
    names = ("hip_runtime", "hip_fp16", "hip_bf16", "hip_cooperative_groups")
    assert set(everything) == {f"hip/{name}.h" for name in names}
    for options in ((f"-I{tmp_path}",), ("-I", str(tmp_path))):
        assert set(everything) - set(hip_headers.virtual_headers(options)) == {"hip/hip_bf16.h"}


@pytest.mark.parametrize(
    ("one", "other"), [("gfx906", "gfx908"), ("gfx90a:xnack+", "gfx90a:xnack-"), ("gfx90a", "gfx90a:xnack-")]
)
def test_pain6_the_key_has_the_whole_name_of_the_target(one: str, other: str, monkeypatch: Patch) -> None:
    backend, properties = get("hip"), ptxrt.Device("sim:0").properties
    monkeypatch.setattr(backend, "compiler", lambda language: "hipRTC 7.2")
    source = ptxrt.KernelSource.hip(TEXT)
    keys = [
        ModuleCache("hip:0", backend, 0, dataclasses.replace(properties, arch=arch))._request(source, "plain", ()).key()
        for arch in (one, other, one)
    ]
    assert keys[0] == keys[2] != keys[1]


# With hipRTC ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [*TARGETS, "gfx90a:sramecc+:xnack-"])
def test_a_text_becomes_a_code_object_with_entries_reports_and_symbols(amd: ModuleType, arch: Any) -> None:
    binary = amd.compile_hip(TEXT, arch, entry="plain", name="mine.hip")
    assert binary.code.startswith(b"\x7fELF")
    assert (binary.kind, binary.arch, binary.options) == ("hsaco", arch, ("-std=c++17", "-nostdlibinc"))
    assert binary.compiler == f"hipRTC {amd.version()}"
    assert set(binary.symbols) == {"plain", "typed", "first", "_ZN2ns7mangledEPf"}
    report = binary.reports["plain"]
    assert (report.shared_bytes, report.stack_bytes, report.max_threads) == (256, 0, 256)
    assert (report.spilled_registers, report.spilled_scalar_registers) == (0, 0)
    assert report.wave_size == (64 if arch.startswith("gfx9") else 32)
    assert report.registers > 0
    assert 0 < binary.seconds < 60


def test_the_version_is_that_of_the_librarys_file(amd: ModuleType) -> None:
    assert [part.isdigit() for part in amd.version().split(".")] == [True] * 3


def test_pain6_targets_that_differ_give_code_that_differs(amd: ModuleType) -> None:
    codes = [amd.compile_hip(TEXT, arch).code for arch in ("gfx906", "gfx908", "gfx90a:xnack+", "gfx90a:xnack-")]
    assert len(set(codes)) == 4


def test_the_parameters_are_known_with_offset_and_size(amd: ModuleType) -> None:
    typed = amd.compile_hip(TEXT, "gfx1100").entries["typed"]
    assert [(p.offset, p.size, p.kind) for p in typed.params] == [
        (0, 16, "bits"), (16, 1, "bits"), (17, 1, "bits"), (24, 8, "bits"),
    ]  # fmt: skip


def test_scratch_is_reported(amd: ModuleType) -> None:
    assert amd.compile_hip(STACK, "gfx1100").reports["stack"].stack_bytes >= 1200


@pytest.mark.parametrize(
    ("entry", "symbol"),
    [("scale<float>", "_Z5scaleIfEvPKT_PS0_jf"), ("ns::mangled", "_ZN2ns7mangledEPf"), ("plain", "plain"),
     ("scale<_Float16>", "_Z5scaleIDF16_EvPKT_PS0_jf")],
)  # fmt: skip
def test_an_entry_is_a_name_expression(amd: ModuleType, entry: str, symbol: str) -> None:
    binary = amd.compile_hip(TEXT, "gfx90a", entry=entry)
    assert binary.symbols[entry] == symbol
    assert symbol in binary.entries
    assert symbol in binary.reports


def test_a_mangled_kernel_is_found_by_its_plain_name(amd: ModuleType) -> None:
    assert amd.compile_hip("__global__ void k(float* x) {}", "gfx1100", entry="k").symbols["k"] == "_Z1kPf"


def test_the_same_inputs_give_the_same_bytes_in_another_process_too(amd: ModuleType) -> None:
    script = """
        import hashlib
        from ptxrt.compilers import hiprtc
        text = 'extern "C" __global__ void k(float* x) { x[0] = 1; }'
        print(hashlib.sha256(hiprtc.compile_hip(text, "gfx90a").code).hexdigest())
    """
    assert printed_by(script) == printed_by(script)


def test_defines_reach_the_text(amd: ModuleType) -> None:
    text = '#if !defined(FLAG) || ON != 1\n#error no\n#endif\nextern "C" __global__ void k(TYPE* x) { x[0] = N; }'
    binary = amd.compile_hip(text, "gfx942", defines={"TYPE": "unsigned int", "N": 4, "FLAG": None, "ON": True})
    assert binary.options == ("-std=c++17", "-nostdlibinc", "-DFLAG", "-DN=4", "-DON=1", "-DTYPE=unsigned int")


@pytest.mark.parametrize("arch", TARGETS)
def test_pain21_half_and_bfloat16_need_no_header_of_rocm(amd: ModuleType, arch: Any) -> None:
    text = """
    #include <hip/hip_runtime.h>
    #include <hip/hip_fp16.h>
    #include <hip/hip_bf16.h>
    extern "C" __global__ void k(__half* h, _Float16* f, __bf16* b, __hip_bfloat16* c) {
      h[0] = __hadd(h[1], __float2half(1.0f));
      f[0] = f[1] + (_Float16)1;
      c[0] = __float2bfloat16(__bfloat162float(b[1]) + 1.0f);
    }"""
    assert "k" in amd.compile_hip(text, arch).entries


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        (".version 7.0\n.target sm_75\n", "It looks like PTX", 1),
        ("\n\n__global__ void k() { int x = ; }", "expected expression", 3),
        ("\n#error not today\n", "not today", 2),
        ('#line 1 "other.h"\nint = 3;', "other.h, line 1", None),
        ("__global__ void k() {\n", "expected '}'", 1),
        ("#include <mine/never_there.h>", "('-I/folder/of/mine/never_there.h',)", 1),
        ("#include <hip/never_there.h>", "('-I/opt/rocm/include',)", 1),
        ('__global__ void k() { asm volatile("bogus v0"); }', "invalid instruction", 1),
        ("__global__ void k() { __shared__ int x[40000]; x[threadIdx.x] = 1; __syncthreads(); if (x[3]) x[4] = 2; }",
         "exceeds limit", 1),
        ("__device__ void nope(); __global__ void k() { nope(); }", "undefined", None),
    ],
)  # fmt: skip
@pytest.mark.parametrize("entry", [None, "k", "k<float>"])
def test_a_fault_in_the_text_is_a_compile_error_with_its_line(
    amd: ModuleType, text: str, words: str, line: int | None, entry: str | None
) -> None:
    error = failure(text, name="mine.hip", entry=entry)
    assert words in str(error)
    assert error.line == line or (entry == "k<float>" and "no entry" in str(error))
    assert error.log.strip() in str(error)
    assert "comgr" not in error.log


def test_the_source_lines_around_the_fault_are_numbered(amd: ModuleType) -> None:
    assert ">     3 | int x = ;" in str(failure("// one\n// two\nint x = ;\n// four"))


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("plane", r"no entry 'plane' .*the text has scale, plain, mangled, typed, first.*Did you mean plain\?"),
        ("scale", r"Name its template arguments: scale<\.\.\.>"),
        ("scale<floot>", "use of undeclared identifier 'floot'"),
        ("helper", "no entry 'helper' .the text knows the name, but as no __global__ function"),
        ('a"b', "no C.. expression has these characters"),
        ("a\nb", "no C.. expression has these characters"),
        ("\ud800", "no C.. expression has these characters"),
    ],
)
def test_a_missing_entry_names_those_there_are(amd: ModuleType, entry: str, words: str) -> None:
    error = failure(TEXT, entry=entry)
    with pytest.raises(CompileError, match="(?s)" + words):
        raise error
    assert (error.given, error.expected) == (entry, ["scale", "plain", "mangled", "typed", "first"])


@pytest.fixture
def all_options(amd: ModuleType, monkeypatch: Patch) -> None:
    """Options go to the compiler unchecked, as if ptxrt knew them."""
    monkeypatch.setattr(amd, "HIPRTC", OptionTable("hipRTC", frozenset(), patterns=(".*",)))


@pytest.mark.usefixtures("all_options")
def test_an_option_that_the_compiler_drops_is_an_error() -> None:
    assert "unsupported option" in str(failure(TEXT, options=("-bogus",)))


def test_our_headers_may_be_included_by_an_option(amd: ModuleType) -> None:
    text = 'extern "C" __global__ void k(__hip_bfloat16* x) { x[0] = x[1]; }'
    assert amd.compile_hip(text, "gfx1100", ("-include", "hip/hip_bf16.h")).entries


def test_a_warning_is_none(amd: ModuleType) -> None:
    assert "#warning" in amd.compile_hip(TEXT + "#warning hello\n", "gfx1100").log.replace("[-W#warnings]", "#warning")


def test_relative_folders_are_the_callers_wherever_it_is(amd: ModuleType, tmp_path: Path, monkeypatch: Patch) -> None:
    amd.version()  # the worker runs, somewhere else
    (tmp_path / "mine.h").write_text("#define N 4\n")
    monkeypatch.chdir(tmp_path)
    text = '#include <mine.h>\nextern "C" __global__ void k(int* x) { x[0] = N; }'
    assert amd.compile_hip(text, "gfx1100", ("-I.",), entry="k").entries


def test_a_folder_that_cannot_be_entered_is_no_fault_of_the_text(amd: ModuleType, monkeypatch: Patch) -> None:
    monkeypatch.setattr(amd, "current_folder", lambda: "/nowhere")
    assert amd.compile_hip(TEXT, "gfx1100").entries


@pytest.mark.parametrize("arch", ["gfx799", "gfx799:xnack-"])
def test_an_unknown_target_names_those_there_are_and_the_next_call_works(amd: ModuleType, arch: str) -> None:
    error = failure(TEXT, arch)
    assert f"makes no code for {arch}" in str(error)
    assert "gfx90a, " in error.fix
    assert set(TARGETS) <= set(amd.architectures())
    assert amd.compile_hip(TEXT, "gfx1100").entries


@pytest.mark.parametrize(
    ("arch", "fix"),
    [("gfx799", "Try again, or for another processor"),
     ("gfx1100:xnack-", "Try again, or for gfx1100 with other flags or none")],
)  # fmt: skip
def test_a_target_that_the_compiler_itself_refuses_or_dies_of_is_a_compile_error(
    amd: ModuleType, arch: str, fix: str, monkeypatch: Patch
) -> None:
    amd.version()
    known = amd._worker.targets
    # As where the compiler library cannot be asked: then hipRTC meets the target, and before ROCm 7 dies of it.
    monkeypatch.setattr(amd._worker, "targets", () if arch == "gfx799" else known)
    error = failure(TEXT, arch)
    assert "without a word" in str(error) or "ended while it compiled: killed by" in str(error)
    assert error.fix.endswith(fix)
    assert amd.compile_hip(TEXT, "gfx1100").entries


@pytest.mark.parametrize(
    ("options", "fix"),
    [(("--version",), "without the option --version"), (("-mllvm", "-bogus"), "without the options -mllvm -bogus")],
    ids=["refused without a word", "ended"],
)
@pytest.mark.usefixtures("all_options")
def test_an_option_the_compiler_refuses_or_dies_of_is_to_be_left_out(amd: ModuleType, options: Any, fix: str) -> None:
    assert failure(TEXT, options=options, defines={"N": 4}).fix == f"Try again, or {fix}"
    assert amd.compile_hip(TEXT, "gfx1100").entries


def test_a_worker_killed_at_any_moment_is_one_clear_error_or_none_and_the_next_call_works(amd: ModuleType) -> None:
    before = set(Path(tempfile.gettempdir()).glob("comgr-*"))
    for delay in (0.0, 0.01, 0.05, 0.1):
        amd.version()
        killer = threading.Timer(delay, os.kill, (amd._worker.worker._process.pid, signal.SIGKILL))
        killer.start()
        try:
            assert amd.compile_hip(TEXT, "gfx1100", entry="plain").entries
        except CompileError as error:
            assert "killed by SIGKILL" in str(error)  # noqa: PT017 (whether it comes to that is the clock's)
        killer.join()
        assert amd.compile_hip(TEXT, "gfx1100", entry="plain").entries
    assert set(Path(tempfile.gettempdir()).glob("comgr-*")) <= before


# Disassembly ------------------------------------------------------------------------------------------------------


def disassembled(amd: Any, arch: Any, options: Any = (), entry: str = "plain") -> Any:
    try:
        return disassemble(amd.compile_hip(TEXT, arch, options, entry=entry).code, entry).splitlines()
    except BackendUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("arch", TARGETS)
def test_machine_code_is_shown_by_address_to_its_end(amd: ModuleType, arch: Any) -> None:
    lines = disassembled(amd, arch)
    assert lines[-1].endswith("s_endpgm")
    assert any("s_barrier" in line for line in lines)
    assert not [line for line in lines if ".long" in line]
    addresses = [int(line.split()[0], 16) for line in lines]
    assert addresses == sorted(set(addresses))


def test_machine_code_of_a_wave_of_64_is_read_as_such(amd: ModuleType) -> None:
    masks = {options: [line for line in disassembled(amd, "gfx1100", options, "first") if "v_cmp" in line]
             for options in ((), ("-mwavefrontsize64",))}  # fmt: skip
    assert [["vcc_lo" in line for line in lines] for lines in masks.values()] == [[True], [False]]


@pytest.mark.parametrize(
    ("target", "lanes", "features"),
    [("gfx1100", 64, "+wavefrontsize64"), ("gfx1100", 32, ""), ("gfx90a:sramecc+:xnack-", 64, "")],
)
def test_the_disassembler_gets_the_processor_and_the_width_of_a_wave(
    target: str, lanes: int, features: str, monkeypatch: Patch, tmp_path: Path
) -> None:
    script = tmp_path / "worker.py"
    script.write_text(
        "import json, sys\nrequest = json.load(sys.stdin)\nprint(request['processor'], request['features'])"
    )
    monkeypatch.setattr(disassembly, "_SCRIPT", script)
    kernels = [{**KERNEL, ".wavefront_size": lanes}]
    code = code_object({"amdhsa.target": f"amdgcn-amd-amdhsa--{target}", "amdhsa.kernels": kernels})
    assert disassemble(code, "scale") == f"{target.partition(':')[0]} {features}"


def test_a_disassembler_that_fails_in_no_ones_encoding_is_said(monkeypatch: Patch, tmp_path: Path) -> None:
    script = tmp_path / "worker.py"
    script.write_text("import sys\nsys.stderr.buffer.write(b'LLVM ERROR: \\xff')\nsys.exit(1)")
    monkeypatch.setattr(disassembly, "_SCRIPT", script)
    with pytest.raises(BackendUnavailable, match="LLVM ERROR: \ufffd"):
        disassemble(code_object(), "scale")


def test_only_a_kernel_is_disassembled(amd: ModuleType) -> None:
    code = amd.compile_hip(TEXT, "gfx1100").code
    with pytest.raises(InvalidArgument, match="without instructions of nothing"):
        disassemble(code, "nothing")


@pytest.mark.parametrize("header", ["cstdint", "stdint.h", "vector"])
def test_the_machines_own_headers_are_not_seen(amd: ModuleType, header: str) -> None:
    text = f"#include <{header}>\n{TEXT}"
    with pytest.raises(CompileError, match=f"'{header}' file not found") as caught:
        amd.compile_hip(text, "gfx1100")
    assert caught.value.line == 1
    assert f"Leave {header} out" in str(caught.value.fix)
