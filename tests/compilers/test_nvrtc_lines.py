"""The line numbers that PTX is compiled with for sim: they change no instruction, and count in texts that are known."""

from __future__ import annotations

import difflib
import re
from itertools import product
from pathlib import Path

import pytest
from helpers import EVERYTHING, covering

from ptxrt import ops
from ptxrt.compilers import Binary, hip_on_nvrtc, nvrtc
from ptxrt.compilers._nvrtc_lines import line_option

pytestmark = pytest.mark.skipif(nvrtc.available() is not None, reason="NVRTC is not installed")

KERNEL = '#include "helper.h"\n\nextern "C" __global__ void k(float* y) {\n    y[0] = helper(y[1]);\n}\n'
HELPER = "static __device__ float helper(float v) {\n    return expf(v);\n}\n"
IN_HIP = {spec.source.name or "": spec.source for spec in ops.kernels() if spec.language == "hip"}


def compiled(text: str = KERNEL, *options: str, name: str | None = "k.cu", line_info: bool = True) -> Binary:
    return nvrtc.compile_cuda(text, "sm_90", options, name=name, output="ptx", line_info=line_info)


def files(binary: Binary) -> list[str]:
    return re.findall(r'^\s*\.file\s+\d+ "(.*)"$', binary.code.decode("ascii").replace("\t", " "), re.MULTILINE)


def instructions(ptx: bytes) -> list[str]:
    """The text without what names lines, and without blank lines."""
    text = re.sub(r"^\s*\.file.*\Z", "", ptx.decode(), flags=re.MULTILINE | re.DOTALL)
    return [line for line in text.split("\n") if line.strip() and not re.match(r"\s*\.loc\b|\$L__(tmp|func_)", line)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "helper.h").write_text(HELPER)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "options"),
    # Options and files: each of them once, of the files every third where not all is wanted.
    covering(product(list(IN_HIP)[:: 1 if EVERYTHING else 3], [(), ("--use_fast_math",)]), lambda row: row),
    ids=lambda value: value if isinstance(value, str) else "fast" if value else "",
)
def test_they_change_no_instruction(name: str, options: tuple[str, ...]) -> None:
    text = IN_HIP[name].text
    without, numbered = (
        hip_on_nvrtc.compile_hip_text(text, "sm_90", options, output="ptx", line_info=there).code
        for there in (False, True)
    )
    assert b".loc" in numbered
    assert b".loc" not in without
    assert list(difflib.unified_diff(instructions(without), instructions(numbered), n=0)) == []


def test_the_texts_are_those_that_were_written() -> None:
    binary = compiled()
    assert files(binary) == ["k.cu", "helper.h"]
    assert binary.sources.texts == (("k.cu", KERNEL), ("helper.h", HELPER))
    assert compiled(line_info=False).sources.texts == ()


def test_the_text_is_the_same_in_each_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = KERNEL.replace('#include "helper.h"', HELPER + '#line 3 "made.cu"')
    first = compiled(text)
    (folder / "further").mkdir()
    monkeypatch.chdir(folder / "further")
    again = compiled(text)
    assert files(first) == ["made.cu", "k.cu"]
    assert first.code == again.code


@pytest.mark.parametrize("name", ["gr\u00f6\u00dfe.cu", 'a "b"\\c.cu', "../up.cu", "./k.cu", "/elsewhere/k.cu", None])
def test_the_source_has_the_name_that_it_was_given(name: str | None) -> None:
    binary = compiled(KERNEL.replace('#include "helper.h"', HELPER), name=name)
    (shown,) = files(binary)
    assert shown == re.sub(
        r'["\\]|[^\x20-\x7e]',
        lambda match: "".join(f"\\{b:03o}" if b > 126 else f"\\{b:c}" for b in match[0].encode()),
        name or "kernel.cu",
    )
    assert binary.sources.texts[0][0] == (name or "kernel.cu")


def test_a_header_is_named_by_the_path_that_it_was_opened_by(folder: Path) -> None:
    (folder / "inc").mkdir()
    (folder / "helper.h").rename(folder / "inc" / "helper.h")
    for option in ("inc", str(folder / "inc")):
        binary = compiled(KERNEL, "-I", option)
        assert binary.sources.texts[1:] == ((f"{option}/helper.h", HELPER),)
        assert files(binary) == ["k.cu", f"{option}/helper.h"]


def test_headers_of_the_compiler_are_nobodys_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "inc").mkdir()
    (folder / "helper.h").rename(folder / "inc" / "helper.h")
    monkeypatch.setattr(nvrtc, "include_directories", lambda: (str(folder / "inc"),))
    binary = compiled()
    assert "inc/helper.h" in files(binary)
    assert [file for file, _ in binary.sources.texts] == ["k.cu"]
    text = 'extern "C" __global__ void k(float* y) { y[0] = __shfl_xor(y[1], 1); }'
    binary = hip_on_nvrtc.compile_hip_text(text, "sm_90", name="k.hip", output="ptx", line_info=True)
    assert files(binary) == ["k.hip", "hip/hip_runtime.h"]
    assert [file for file, _ in binary.sources.texts] == ["k.hip"]


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ((), ("-lineinfo",)),
        (("-G",), ()),
        (("--device-debug",), ()),
        (("-lineinfo",), ()),
        (("--generate-line-info",), ()),
        (("-DG", "--no-lineinfo-inlined-at"), ("-lineinfo",)),
    ],
)
def test_who_asks_for_them_already_gets_what_he_asked_for(options: tuple[str, ...], added: tuple[str, ...]) -> None:
    assert line_option(options) == added
    binary = compiled(KERNEL, *options)
    assert binary.options == options
    assert "k.cu" in files(binary)
    assert binary.code.count(b".loc") > 2
