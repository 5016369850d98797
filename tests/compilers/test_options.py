"""Which options go to which compiler."""

from __future__ import annotations

from typing import Any

import pytest

from ptxrt.compilers import hip_on_nvrtc, hiprtc, nvjitlink, nvrtc
from ptxrt.compilers._options import HIPRTC, NVJITLINK, NVRTC, include_folders, macro_lines
from ptxrt.errors import InvalidArgument

TABLES = {"NVRTC": NVRTC, "nvJitLink": NVJITLINK, "hipRTC": HIPRTC}


@pytest.mark.parametrize(
    ("compiler", "options"),
    [
        ("NVRTC", ()),
        ("NVRTC", ("--std=c++20", "-use_fast_math", "-lineinfo", "-G", "-maxrregcount=32")),
        ("NVRTC", ("-maxrregcount", "32", "--ftz", "true")),
        ("NVRTC", ("-DN=4", "-D", "N=4", "-D N=4", "-UN", '-DNAME="a/b.h"')),
        (
            "NVRTC",
            ("-I/a/b", "-I", "arch", "-I /a b", "-I.", "--include-path=/a", "--pre-include=a.h", "-include", "a.h"),
        ),
        ("NVRTC", ("-Xptxas=-O1", "--ptxas-options=-v,--maxrregcount=32", "-Xptxas", "-v")),
        ("NVRTC", ("--diag-suppress=177,550",)),
        ("nvJitLink", ("-O3", "-fma=0", "-Xptxas=-O1", "-time", "-lineinfo", "-maxrregcount=32")),
        ("hipRTC", ("-O3", "-Ofast", "-ffast-math", "-ffp-contract=fast", "-std=c++20", "-g", "-w")),
        ("hipRTC", ("-Wall", "-Wno-c++98-compat", "-Werror=return-type", "-Rpass-analysis=kernel-resource-usage")),
        ("hipRTC", ("-I/a", "-isystem/a", "-isystem", "/a", "-iquote.", "-include", "a.h", "-DN=4", "-UN")),
        ("hipRTC", ("-mwavefrontsize64", "-mllvm", "-amdgpu-early-inline-all=true", "--gpu-max-threads-per-block=256")),
    ],
)
def test_ordinary_options_pass(compiler: str, options: Any) -> None:
    TABLES[compiler].check(options)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("options", ["-O3", ["-O3"], None, (3,), ("-O3", None)], ids=repr)
def test_options_are_a_tuple_of_str(table: Any, options: Any) -> None:
    with pytest.raises(InvalidArgument, match="a tuple of str"):
        table.check(options)


@pytest.mark.parametrize("option", ["", "  ", "-g\0", "-DN=\ud800", "-I/a\n"], ids=repr)
def test_an_option_is_text_of_one_line(option: str) -> None:
    with pytest.raises(InvalidArgument, match="printable"):
        HIPRTC.check((option,))


def test_a_folder_need_not_be_utf_8() -> None:
    NVRTC.check(("-I/\udcff",))


@pytest.mark.parametrize(
    ("compiler", "options"),
    [
        ("NVRTC", ("-arch=sm_80",)),
        ("NVRTC", ("--gpu-architecture=sm_80",)),
        ("NVRTC", ("--gpu-architecture", "sm_80")),
        ("NVRTC", ("-arch sm_80",)),
        ("NVRTC", ("-Xptxas=-arch=sm_80",)),
        ("NVRTC", ("--ptxas-options=-v,--gpu-name=sm_80",)),
        ("nvJitLink", ("-arch=sm_80",)),
        ("hipRTC", ("--offload-arch=gfx942",)),
        ("hipRTC", ("--offload-arch",)),
        ("hipRTC", ("-mcpu=gfx942",)),
        ("hipRTC", ("-march=x",)),
        ("hipRTC", ("--target=x",)),
    ],
)
def test_an_option_names_no_architecture(compiler: str, options: Any) -> None:
    with pytest.raises(InvalidArgument, match="no architecture among the options"):
        TABLES[compiler].check(options)


# Each word is a case; a + stands between two options, a ~ for a space.
FILES = {
    "NVRTC": """
        -o -o=x -o+x --output-file=x --time=x.csv --time+x --fdevice-time-trace=x --create-pch=x --use-pch=x -pch --pch
        --pch-dir=x -pch-dir+x --options-file=x -optf+x @x -Xcudafe=--list=x -Xptxas=-o -Xptxas=--options-file=x
        -Xptxas=-v,-optf=x -Xptxas+--options-file=x --ptxas-options+-v,--options-file=x -maxrregcount=/x -G+x/y x.cu -
        ~-G -I+-pch -I- -Xnvvm=-x -bogus
        """,
    "nvJitLink": "-o -Xptxas=--options-file=x -Xptxas=-v,~-optf=x -dump=x -O3+x.ptx -Ix -bogus",
    "hipRTC": """
        -o -o~x -ox.o -save-temps --save-temps=obj -ftime-trace=x -MD -MF -MFx -include-pch+x -fpch-preprocess -emit-pch
        -fmodules -fmodule-file=x -fplugin=x -Xclang+-load -fprofile-use -fprofile-use=x --config=x @x x.hip -Wl,-o,x
        -Wa,x -Wp,-MD,x -mllvm+-stats -mllvm=-info-output-file=x -L/x -lx -T+x -B/x --rocm-path=/x -ivfsoverlay+x
        -fsanitize-ignorelist=x -imacros+x -ffp-contract=/x -isystem-after/x -I+-save-temps --version -bogus
        """,
}
CASES = [(name, tuple(case.replace("~", " ").split("+"))) for name, text in FILES.items() for case in text.split()]


@pytest.mark.parametrize(("compiler", "options"), CASES, ids=str)
def test_an_option_that_may_touch_a_file_is_refused(compiler: Any, options: Any) -> None:
    with pytest.raises(InvalidArgument, match="read and write no file but headers") as caught:
        TABLES[compiler].check(options)
    assert caught.value.given in list(map(repr, options))


def test_an_unknown_option_says_which_is_meant() -> None:
    with pytest.raises(InvalidArgument, match=r"'--use-fast-math'. Did you mean use_fast_math"):
        NVRTC.check(("--use-fast-math",))


@pytest.mark.parametrize(
    "ask",
    [
        nvrtc.effective_options,
        hip_on_nvrtc.effective_options,
        hiprtc.effective_options,
        lambda options: nvrtc.compile_cuda("int x;", "sm_90", options),
        lambda options: hip_on_nvrtc.compile_hip_text("int x;", "sm_90", options),
        lambda options: hiprtc.compile_hip("int x;", "gfx1100", options),
        lambda options: nvjitlink.compile_ptx(".version 7.0", "sm_90", options),
        nvjitlink.check_options,
    ],
)
def test_each_compiler_checks_its_options_before_it_does_anything(ask: Any) -> None:
    with pytest.raises(InvalidArgument, match="read and write no file but headers"):
        ask(("--create-pch=x",))


def test_the_folders_of_headers_are_those_of_the_options_in_their_order() -> None:
    options = ("-Ia", "-I", "b", "--include-path=c", "-isystem/d", "-I e", "-DI=f", "-iquote", "g", "-include", "h")
    assert include_folders(options) == ["a", "b", "c", "/d", "e", "g"]


def test_the_macros_that_options_define_are_lines_of_a_text() -> None:
    options = ("-DN=4", "-D", "F(x)=x=1", "--define-macro=Q", "-UN", "-Dx", "-I", "folder", "-dopt=on")
    assert macro_lines(options) == "#define N 4\n#define F(x) x=1\n#define Q\n#define x\n"
