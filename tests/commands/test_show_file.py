"""``ptxrt show FILE``: a user's own text in PTX, CUDA C++ and HIP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import Capture, Patch, need_nvrtc

import ptxrt
from ptxrt.commands.cli import main
from ptxrt.compilers import disassembly, hip_on_nvrtc, hiprtc, nvjitlink

PTX = """.version 7.0
.target sm_70
.address_size 64
.visible .entry put(.param .u64 x, .param .f32 a) {
    .reg .b64 %x;  .reg .f32 %a;
    ld.param.u64 %x, [x];  ld.param.f32 %a, [a];
    st.global.f32 [%x], %a;
    ret;
}
.visible .entry nothing() { ret; }
"""
CXX = """template <class T> __global__ void scale(const T* x, T* y, unsigned n) {
    __shared__ T tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    y[threadIdx.x] = tile[n - threadIdx.x];
}
"""
PLAIN = "__global__ void plain(const float* x, float* y) { *y = *x; }\n"

needs_linker = pytest.mark.skipif(nvjitlink.available() is not None, reason="nvJitLink is not installed")


def file(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.fixture(autouse=True)
def _no_disassembler(monkeypatch: Patch) -> None:
    monkeypatch.setattr(disassembly, "_tool", lambda name: None)


@needs_linker
def test_ptx_is_shown_with_what_is_known_of_each_kernel(tmp_path: Path, capsys: Capture) -> None:
    assert main(["show", file(tmp_path, "put.ptx", PTX), "--arch", "sm_90"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(PTX)
    behind = shown.out[len(PTX) :]
    assert "\n// put\n" in behind
    assert "\n// nothing\n" in behind
    assert "//   1  -     a     float      4       8\n" in behind
    assert "//   none\n" in behind
    assert "//   registers a thread  " in behind
    assert "// Occupancy of a multiprocessor, sm_90, without dynamic shared memory\n" in behind
    assert "//              1024       2  64 of 64   100%  warps\n" in behind
    assert "neither nvdisasm nor cuobjdump is here. pip install nvidia-cuda-nvdisasm" in shown.err
    assert list(nvjitlink.compile_ptx(shown.out, "sm_90").entries) == ["put", "nothing"]


@needs_linker
def test_a_barrier_whose_number_is_in_a_register_takes_all_of_them(tmp_path: Path, capsys: Capture) -> None:
    text = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry meet()\n{\n    .reg .b32 %r;\n"
    text += "    mov.u32 %r, %tid.y;\n    bar.sync %r, 32;\n    ret;\n}\n"
    assert main(["show", file(tmp_path, "meet.ptx", text), "--arch", "sm_90"]) == 0
    behind = capsys.readouterr().out
    assert "//   barriers a block              16\n" in behind
    assert "//                32       4   4 of 64     6%  barriers\n" in behind
    assert "//              1024       2  64 of 64   100%  warps\n" in behind


@needs_linker
def test_one_kernel_may_be_asked_for(tmp_path: Path, capsys: Capture) -> None:
    path = file(tmp_path, "put.ptx", PTX)
    assert main(["show", path, "--arch", "sm_90", "--entry", "nothing"]) == 0
    assert "// put" not in capsys.readouterr().out
    assert main(["show", path, "--arch", "sm_90", "--entry", "nothin"]) == 1
    assert "Did you mean nothing?" in capsys.readouterr().err


def test_ptx_without_a_compiler_is_shown_with_status_0(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ptxrt.BackendUnavailable("nvJitLink: it was left at home")

    monkeypatch.setattr(nvjitlink, "compile_ptx", missing)
    assert main(["show", file(tmp_path, "put.ptx", PTX), "--arch", "sm_90"]) == 0
    shown = capsys.readouterr()
    assert "//   1  -     a     float      4       8\n" in shown.out
    assert shown.err == "ptxrt: no resources for sm_90: nvJitLink: it was left at home\n"


@pytest.mark.parametrize("suffix", ["cu", "hip"])
def test_cxx_is_shown_as_ptx_with_its_types(suffix: str, tmp_path: Path, capsys: Capture) -> None:
    need_nvrtc()
    assert main(["show", file(tmp_path, f"k.{suffix}", PLAIN), "--arch", "sm_90"]) == 0
    out = capsys.readouterr().out
    assert ".visible .entry _Z5plainPKfPf(" in out
    assert "\n// plain(float const*, float*), _Z5plainPKfPf\n" in out
    assert "//   0  float const*  -     pointer      8       0\n" in out


def test_a_template_is_shown_for_the_kernel_asked_for(tmp_path: Path, capsys: Capture) -> None:
    need_nvrtc()
    path = file(tmp_path, "k.cu", CXX)
    assert main(["show", path, "--arch", "sm_90", "--entry", "scale<double>"]) == 0
    out = capsys.readouterr().out
    assert "//   0  double const*  -     pointer      8       0\n" in out
    assert "//   shared bytes a block          2048\n//   barriers a block              1\n" in out
    assert main(["show", path, "--arch", "sm_90"]) == 1
    assert "--entry 'scale<float>'" in capsys.readouterr().err


def test_headers_beside_the_file_are_found(tmp_path: Path, capsys: Capture) -> None:
    need_nvrtc()
    (tmp_path / "n.h").write_text("#define N 4711\n")
    text = '#include "n.h"\nextern "C" __global__ void k(int* x) { *x = N; }\n'
    assert main(["show", file(tmp_path, "k.cu", text), "--arch", "sm_90"]) == 0
    assert "4711" in capsys.readouterr().out


def test_hip_for_amd_is_shown_as_it_stands(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    if reason := hiprtc.available():
        pytest.skip(reason)
    monkeypatch.setattr("ptxrt.commands._sections.disassemble", lambda code, symbol: f"00000000  s_nop {symbol}")
    text = 'extern "C" __global__ void tw(float* x) { x[threadIdx.x] *= 2; }\n'
    path = file(tmp_path, "tw.hip", text)
    assert main(["show", path, "--arch", "gfx1100"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(text)
    assert "//   VGPRs a thread  " in out
    assert "//   00000000  s_nop tw\n" in out
    assert main(["show", file(tmp_path, "tw.cu", text), "--arch", "gfx1100"]) == 2
    assert "such as sm_90" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.cu"], "No such file"),
        (["k.cpp"], ".ptx, .cu, .hip"),
        (["k.cu", "--device", "sim:0"], "Use --arch"),
        (["group_norm_kernel", "--entry", "k"], "--entry"),
    ],
)
def test_what_cannot_be_shown_exits_with_2(arguments: list[str], words: str, capsys: Capture) -> None:
    assert main(["show", *arguments]) == 2
    assert words in capsys.readouterr().err


# The disassembler's own output, of two versions of the tools, stands for them: NVIDIA's packages need not be installed.
NVDISASM = """\t.target\tsm_90
.text.other:
        /*0000*/                   NOP;
//--------------------- .text.put                 --------------------------
\t.section\t.text.put,"ax",@progbits
put:
.text.put:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   BRA `(.L_x_0);

//--------------------- SYMBOLS --------------------------
        /*0000*/                   NOP;
"""
CUOBJDUMP = """\tFunction : put
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;        /* 0x00000a00ff017b82 */
                                                                 /* 0x000fe20000000800 */
        /*0010*/                   BRA 0x10;                     /* 0xfffffffc00fc7947 */
"""


@pytest.mark.parametrize(
    ("name", "output", "wanted"),
    [
        ("nvdisasm", NVDISASM, "  /*0000*/  LDC R1, c[0x0][0x28] ;\n.L_x_0:\n  /*0010*/  BRA `(.L_x_0);"),
        ("cuobjdump", CUOBJDUMP, "  /*0000*/  LDC R1, c[0x0][0x28] ;\n  /*0010*/  BRA 0x10;"),
    ],
)
def test_sass_is_the_kernels_instructions(
    name: str, output: str, wanted: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    tool = tmp_path / name
    (tmp_path / "output").write_text(output)
    tool.write_text(f"#!/bin/sh\ncat {tmp_path}/output\n")
    tool.chmod(0o755)
    monkeypatch.setattr(disassembly, "_tool", {name: str(tool)}.get)
    assert disassembly.sass(b"cubin", "put") == wanted


def test_a_disassembler_that_refuses_is_said_with_its_words(tmp_path: Path, monkeypatch: Patch) -> None:
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho 'fatal: sm_999' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(disassembly, "_tool", lambda name: str(tool))
    with pytest.raises(ptxrt.BackendUnavailable, match="fatal: sm_999"):
        disassembly.sass(b"cubin", "put")


def test_the_disassembler_is_looked_for_on_path(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.undo()
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    monkeypatch.setattr("importlib.import_module", lambda name: os)  # one without pathfinder's function
    monkeypatch.setenv("PATH", str(tmp_path))
    assert disassembly._tool("nvdisasm") == str(tool)
    assert disassembly._tool("cuobjdump") is None


def test_a_cubin_of_nvrtc_is_whole() -> None:
    """Its last byte may be a NUL that is its own: an ELF file ends where its last table does."""
    need_nvrtc()
    for text in (PLAIN, PLAIN + "__constant__ int c[3] = {1, 2, 3};"):
        code = hip_on_nvrtc.compile_cxx("cuda", text, "sm_90", entry="plain").code
        ends = [
            int.from_bytes(code[at : at + 8], "little")
            + int.from_bytes(code[size : size + 2], "little") * int.from_bytes(code[size + 2 : size + 4], "little")
            for at, size in ((32, 54), (40, 58))
        ]
        assert max(ends) == len(code)
