"""``ptxrt check``: what it prints and draws, its exit codes, and no traceback for a user's mistake."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Capture, Patch

import ptxrt
from ptxrt import files
from ptxrt.check.run import check
from ptxrt.commands import check as check_command
from ptxrt.commands._check_html import as_html
from ptxrt.commands._check_report import COLUMNS
from ptxrt.commands._demo_cases import SAXPY
from ptxrt.commands.cli import main
from ptxrt.compilers import nvrtc

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
SIGNATURE = "const f32* x, f32* y, u32 n, f32 a"
WORDS = ["--arg", "x=random:f32:1024", "--arg", "y=zeros:f32:1024", "--arg", "n=1024", "--arg", "a=2"]
LAUNCH = ["--grid", "4", "--block", "256"]

RACE = f"""{HEAD}
.shared .align 4 .b8 tile[128];
.visible .entry k(.param .u64 out)
{{
    .reg .u32 t, u, v;
    mov.u32 t, %tid.x;
    shl.b32 u, t, 2;
    st.shared.u32 [u], t;
    xor.b32 u, u, 4;
    ld.shared.u32 v, [u];
    ret;
}}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "saxpy.ptx"
    path.write_text(SAXPY)
    return str(path)


# The report -----------------------------------------------------------------------------------------------------


def test_the_command_prints_a_report_and_exits_with_0(file: str, capsys: Capture) -> None:
    assert main(["check", file, "--entry", "saxpy", "--signature", SIGNATURE, *LAUNCH, *WORDS]) == 0
    out = capsys.readouterr().out
    facts = dict(line.split(None, 1) for line in out.splitlines())
    assert facts["entry"] == f"saxpy, line 7 of {file}"
    assert facts["launch"] == "grid 4x1x1, block 256x1x1: 1024 threads"
    assert facts["faults"] == "none"
    assert facts["instructions"].startswith("20480 lane-instructions, 20.0 a thread")
    assert "races in shared memory" in facts["checks"]


def test_the_checks_that_cost_time_may_be_left_out(file: str, capsys: Capture) -> None:
    words = [word.replace("zeros", "empty") for word in WORDS]
    for names, code in (("none", 0), ("global-races, shuffles", 0), ("uninitialised", 1)):
        assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *words, "--checks", names]) == code
        facts = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines()[:12] if line)
        asked = "" if names == "none" else ", " + names
        assert facts["checks"] == f"memory, barriers, endless loops, races in shared memory{asked}"


def test_a_fault_exits_with_1_and_shows_the_lines_around(file: str, capsys: Capture) -> None:
    words = [word.replace("zeros:f32:1024", "zeros:f32:1000") for word in WORDS]
    assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *words]) == 1
    out, err = capsys.readouterr()
    assert "MemoryFault: saxpy, line 31: read of 4 bytes outside every allocation" in out
    assert ">    31 |     ld.global.f32 %yi, [%y];" in out
    assert err == ""


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--arg", "x=ones:f32:1"], "each parameter once"),
        (["--arg", "frob"], "NAME=ARGUMENT"),
        (["--shared", "many"], "--shared"),
        (["--budget", "-1"], "--budget"),
        (["--checks", "frob"], "all, none, or names out of uninitialised, "),
        (["--checks", "none,all"], "--checks"),
        (["--checks", "shuffels"], "Did you mean shuffles?"),
        (["--checks", ""], "--checks"),
        (["--grid", "9" * 5000], "--grid"),
        (["--seed", "9" * 5000], "--seed"),
        (["--seed", "-1"], "--seed"),
        (["--arch", "sm_90"], "arch: expected none for PTX"),
        (["--grid", "4;4"], "--grid"),
        (["--grid", "1,1,1,1"], "--grid"),
        (["--block", "4096"], "block"),
        (["--entry", "saxby"], "Did you mean saxpy"),
        (["--signature", "const f32* x"], "x"),
        (["--html", "/nowhere/at/all.html"], "--html: expected a file that can be written"),
    ],
)
def test_mistakes_exit_with_2_and_a_message(more: Any, words: str, file: str, capsys: Capture) -> None:
    assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS, *more]) == 2
    err = capsys.readouterr().err
    assert err.startswith("ptxrt: ")
    assert words in err


def test_texts_that_do_not_compile_exit_with_2(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "bad.ptx"
    for text, words in (("frob", ".version"), (SAXPY.replace("fma.rn", "fma.frob"), "line 32")):
        path.write_text(text)
        assert main(["check", str(path), "--signature", SIGNATURE, *LAUNCH, *WORDS]) == 2
        assert words in capsys.readouterr().err
    path.write_text("caf\u00e9\n" + SAXPY, "utf-8")
    assert main(["check", str(path), *LAUNCH]) == 2
    assert "PTX is ASCII" in capsys.readouterr().err
    path.write_text("")
    assert main(["check", str(path), *LAUNCH]) == 2
    assert "the PTX text is empty" in capsys.readouterr().err


def test_files_that_cannot_be_read_exit_with_2(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "bad.ptx"
    path.write_bytes(b"\xff\xfe")
    for name, words in ((path, "byte 0"), (tmp_path / "none.ptx", "No such file"), (tmp_path, ".ptx, .cu, .hip")):
        assert main(["check", str(name), *LAUNCH]) == 2
        err = capsys.readouterr().err
        assert err.startswith("ptxrt: KernelSource.from_file: path: ")
        assert f"'{name}'" in err
        assert words in err


@pytest.mark.parametrize("name", ["a\0b.ptx", "\ud800.ptx"], ids=ascii)
def test_names_that_no_file_has_exit_with_2(file: str, name: str, capsys: Capture) -> None:
    read, written = ["check", name, *LAUNCH], ["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS, "--html", name]
    array = ["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS[2:], "--arg", f"x=file:{name}"]
    for command, words in ((read, "can be read"), (written, "can be written"), (array, "x: expected a .npy file")):
        assert main(command) == 2
        err = capsys.readouterr().err
        assert err.startswith("ptxrt: ")
        assert words in err


HEADER = b"{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }"
DAMAGED = {
    "cut off": HEADER[:30],
    "no Python": HEADER.replace(b"'<f4'", b"'<f4"),
    "too large a number": HEADER.replace(b"4,", b"1" + b"0" * 30 + b","),
    "too long a number": HEADER.replace(b"4,", b"9" * 5000 + b","),
    "no number": HEADER.replace(b"4,", b"True,"),
    "less than there should be": HEADER.replace(b"4,", b"1024,"),
    "nested": b"-" * 5000 + b"1",
    "another dtype": HEADER.replace(b"'<f4'", b"[[[]]]"),
    "objects": HEADER.replace(b"<f4", b"|O"),
    "nothing": b"",
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_array_file_exits_with_2(file: str, tmp_path: Path, capsys: Capture, what: Any) -> None:
    path = tmp_path / "x.npy"
    header = DAMAGED[what]
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(16))
    assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS[2:], "--arg", f"x=file:{path}"]) == 2
    assert "x: expected a .npy file of one array, as numpy.save writes it" in capsys.readouterr().err


def test_an_archive_is_no_array(file: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "x.npy"
    np.savez(tmp_path / "x.npz", np.zeros(4))
    for damaged in (False, True):
        path.write_bytes((tmp_path / "x.npz").read_bytes().replace(b"PK\1\2" if damaged else b"", b""))
        assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS[2:], "--arg", f"x=file:{path}"]) == 2
        assert "x: expected a .npy file of one array" in capsys.readouterr().err


def test_too_little_memory_exits_with_2(file: str, capsys: Capture, monkeypatch: Patch) -> None:
    def run_out(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("ptxrt.commands.check.check", run_out)
    assert main(["check", file, *LAUNCH, *WORDS]) == 2
    assert "not enough memory" in capsys.readouterr().err


def test_json(file: str, capsys: Capture) -> None:
    assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS, "--counts", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["entry"], record["fault"], record["total"]["sectors"]) == ("saxpy", None, 384)
    assert record["lines"]["30"]["global_bytes"] == 4096
    words = [word.replace("zeros:f32:1024", "zeros:f32:1000") for word in WORDS]
    assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *words, "--json"]) == 1
    fault = json.loads(capsys.readouterr().out)["fault"]
    assert (fault["kind"], fault["line"], fault["thread"]) == ("MemoryFault", 31, [232, 0, 0])


def test_json_of_a_race_and_of_a_trap(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "k.ptx"
    path.write_text(RACE)
    how = ["check", str(path), "--grid", "1", "--block", "32", "--arg", "out=null", "--json"]
    assert main(how) == 1
    fault = json.loads(capsys.readouterr().out)["fault"]
    assert (fault["kind"], fault["line"], fault["other_line"]) == ("DataRace", 13, 11)
    assert fault["nearest"] == "4 bytes into tile of 128 bytes"
    path.write_text(RACE.replace("shl.b32 u, t, 2;", "trap;"))
    assert main(how) == 1
    fault = json.loads(capsys.readouterr().out)["fault"]
    assert (fault["kind"], fault["line"], fault["text"], fault["thread"]) == ("Trap", 10, "trap;", [0, 0, 0])


# The picture ------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Checks that tags nest, and collects what a page refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: Any, attrs: Any) -> None:
        self.tags.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: Any, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: Any) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: Any) -> None:
        self.words.append(data)


def test_the_picture_is_whole_and_needs_nothing_from_elsewhere(tmp_path: Path, file: str) -> None:
    path = tmp_path / "report.html"
    assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS, "--html", str(path)]) == 0
    text = path.read_text()
    page = Page(text)
    assert page.open == []
    assert page.links == []
    assert not set(page.tags) & {"script", "link", "img", "iframe"}
    assert "url(" not in text
    assert "http" not in text
    shown = "".join(page.words)
    for line in SAXPY.splitlines():
        assert line in shown
    assert page.tags.count("tr") > len(SAXPY.splitlines())
    assert all(words in shown for words in COLUMNS.values())


def test_a_picture_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, file: str, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setattr(check_command, "check", lambda *_, **__: pytest.fail("ran"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (tmp_path / "no" / "page.html", tmp_path, pipe):
        assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS, "--html", str(path)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"ptxrt: check: --html: expected a file that can be written, given {path}: ")
    assert sorted(tmp_path.iterdir()) == [pipe, Path(file)]


def test_a_disk_that_fills_up_leaves_the_faults_exit_code_and_the_earlier_picture(
    tmp_path: Path, file: str, monkeypatch: Patch, capsys: Capture
) -> None:
    """A half of a page that is written has another name, and goes."""

    def full(path: Path, data: bytes, **_: Any) -> None:
        path.write_bytes(data[:100])
        if data:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write", full)
    page = tmp_path / "page.html"
    page.write_text("earlier")
    for count, code in ((1024, 2), (1000, 1)):
        words = [word.replace("zeros:f32:1024", f"zeros:f32:{count}") for word in WORDS]
        assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *words, "--html", str(page)]) == code
        assert "page.html: No space left on device" in capsys.readouterr().err
        assert page.read_text() == "earlier"
    assert sorted(tmp_path.iterdir()) == [page, Path(file)]


def test_a_picture_may_be_read_by_others_and_is_written_where_a_link_says(tmp_path: Path, file: str) -> None:
    page, link = tmp_path / "page.html", tmp_path / "link.html"
    link.symlink_to(page)
    before = os.umask(0o022)
    try:
        assert main(["check", file, "--signature", SIGNATURE, *LAUNCH, *WORDS, "--html", str(link)]) == 0
    finally:
        os.umask(before)
    assert link.is_symlink()
    assert stat.S_IMODE(page.stat().st_mode) == 0o644


def test_the_picture_escapes_the_text_and_marks_the_fault() -> None:
    text = '.reg .u64 p; .reg .u32 v; mov.u64 p, 0; // <script>alert(1)</script> & "\nld.global.u32 v, [p];'
    source = ptxrt.KernelSource.ptx(f"{HEAD}.entry k()\n{{\n{text}\nret;\n}}\n")
    report = check(source, grid=1, block=32, arguments={}, counts=True)
    page = as_html(report)
    assert Page(page).open == []
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert re.findall(r'class="(?:idle )?bad"><td class="number">(\d+)<', page) == ["7"]
    assert '<div class="fault">MemoryFault' in page


def test_the_picture_is_the_same_each_time(file: str) -> None:
    source = ptxrt.KernelSource.ptx(Path(file).read_text(), name="saxpy.ptx")
    how: dict[str, Any] = {
        "grid": 4,
        "block": 256,
        "arguments": dict(word.split("=") for word in WORDS[1::2]),
        "counts": True,
    }
    first, again = (as_html(check(source, signature=SIGNATURE, **how)) for _ in range(2))
    assert first == again


def test_a_trap_marks_its_line() -> None:
    source = ptxrt.KernelSource.ptx(f"{HEAD}.entry k()\n{{\ntrap;\n}}\n")
    page = as_html(check(source, grid=1, block=32, arguments={}, counts=True))
    assert re.findall(r'class="bad"><td class="number">(\d+)<', page) == ["6"]


def test_a_race_marks_both_lines() -> None:
    page = as_html(check(ptxrt.KernelSource.ptx(RACE), grid=1, block=32, arguments={"out": 0}, counts=True))
    assert re.findall(r'class="bad"><td class="number">(\d+)<', page) == ["13"]
    assert re.findall(r'class="second"><td class="number">(\d+)<', page) == ["11"]


@pytest.mark.skipif(nvrtc.available() is not None, reason="NVRTC is not installed")
def test_headers_beside_the_file_are_found(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "n.h").write_text("#define N 4\n")
    file = tmp_path / "k.cu"
    file.write_text('#include "n.h"\nextern "C" __global__ void k(int* y) { y[threadIdx.x] = N; }\n')
    arguments = ["check", str(file), "--signature", "i32* y", "--grid", "1", "--block", "32", "--arg", "y=empty:i32:32"]
    assert main(arguments) == 0, capsys.readouterr().err


@pytest.mark.skipif(nvrtc.available() is not None, reason="NVRTC is not installed")
@pytest.mark.parametrize(("suffix", "any_lane"), [("cu", "__any_sync(-1, 1)"), ("hip", "__any(1)")])
def test_the_files_suffix_tells_the_language(tmp_path: Path, capsys: Capture, suffix: str, any_lane: str) -> None:
    file = tmp_path / f"vote.{suffix}"
    file.write_text(f'extern "C" __global__ void vote(int* y) {{ y[threadIdx.x] = {any_lane}; }}\n')
    arguments = ["check", str(file), "--signature", "i32* y", "--grid", "1", "--block", "32", "--arg", "y=empty:i32:32"]
    assert main(arguments) == 0
    assert f"vote, line 1 of {file}" in capsys.readouterr().out


@pytest.mark.skipif(nvrtc.available() is not None, reason="NVRTC is not installed")
def test_what_a_kernel_prints_is_not_in_the_json(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "say.cu"
    file.write_text('extern "C" __global__ void say(int n) { printf("n = %d\\n", n); }\n')
    assert main(["check", str(file), "--grid", "1", "--block", "1", "--arg", "n=7", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["entry"]
    assert printed.err == "n = 7\n"
