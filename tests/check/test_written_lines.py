"""A fault of C++ names the line that was written: kernels with one planted fault each, and the same without it.

In ``faulty/`` the line at fault ends in ``// fault``, the other party of a race in ``// other``; FIXED takes the fault
away.
"""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import pytest

import ptxrt
from ptxrt.check.run import Report, check
from ptxrt.commands._check_html import as_html
from ptxrt.commands._check_report import as_json, as_text
from ptxrt.compilers import hip_on_nvrtc, nvrtc

pytestmark = pytest.mark.skipif(nvrtc.available() is not None, reason="NVRTC is not installed")

FOLDER = Path(__file__).parent / "faulty"
SHUFFLE = hip_on_nvrtc.HEADERS["hip/hip_runtime.h"].split("__shfl_down_sync")[0].count("\n") + 1
# The kind, and the way of inlined calls, where there is one.
FAULTS = {
    "template.cu": ("MemoryFault", "in window<float, 4>() at {here}, inlined into kernel<float>() at {file}:18"),
    "inlined.cu": (
        "MemoryFault",
        "in difference() at {here}, inlined into slope() at {file}:14, inlined into kernel() at {file}:20",
    ),
    "macro.cu": ("MemoryFault", ""),
    "header.cu": ("MemoryFault", "in right_of() at {here}, inlined into kernel() at {file}:6"),
    "lambda.cu": (
        "MemoryFault",
        "in kernel::lambda#1() at {here}, inlined into each<kernel::lambda#1>() at {file}:4, "
        "inlined into kernel() at {file}:13",
    ),
    "generated.cu": ("MemoryFault", ""),
    "unrolled.cu": ("MemoryFault", ""),
    "race.cu": ("DataRace", "in reversed<float>() at {here}, inlined into kernel() at {file}:12"),
    "uninitialised.cu": ("MemoryFault", ""),
    "table.cu": ("MemoryFault", ""),
    "deadlock.cu": ("Deadlock", "in meet() at {here}, inlined into kernel() at {file}:15"),
    "shuffle.hip": (
        "SimFault",
        f"in __shfl_down<float>() at hip/hip_runtime.h:{SHUFFLE}, inlined into neighbour() at {{here}}, "
        "inlined into kernel() at {file}:15",
    ),
}
CASES = [(name, language) for name in FAULTS for language in ("cuda", "hip") if name.endswith((".cu", language))]


def run(path: Path, language: str, *, grid: int = 1, **defines: Any) -> Report:
    source = getattr(ptxrt.KernelSource, language)(path.read_text(), defines, name=path.name)
    entry = "kernel<float>" if path.name == "template.cu" else "kernel"
    arguments = {"x": "random:f32:64", "y": "empty:f32:64", "n": 64}
    return check(source, entry, "const f32* x, f32* y, i32 n", grid=grid, block=64, arguments=arguments, counts=True)


def marked(name: str, word: str) -> tuple[str, int]:
    """Return the file that has the mark, and the number of the line, as its #line says."""
    file = "neighbours.h" if name == "header.cu" else name
    lines = (FOLDER / file).read_text().split("\n")
    (number,) = (n for n, text in enumerate(lines, 1) if text.endswith(f"// {word}"))
    if name == "generated.cu":
        return "model.txt", number - lines.index('#line 200 "model.txt"') - 2 + 200
    return file, number


@pytest.fixture(autouse=True)
def in_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)


@pytest.mark.parametrize(("name", "language"), CASES)
def test_a_planted_fault_names_the_line_that_was_written(name: str, language: str) -> None:
    kind, chain = FAULTS[name]
    report = run(FOLDER / name, language)
    fault = report.fault
    assert fault is not None
    assert type(fault).__name__ == kind, fault
    place = fault.source_place
    assert place is not None
    assert (place.file, place.line) == marked(name, "fault")
    assert place.text is not None
    assert place.text.endswith("// fault")
    assert bool(place.inlined) == bool(chain)
    words = chain.format(here=place, file=name)
    assert not words or place.chain == words
    # The line that was written comes first, that of the PTX behind it.
    message = str(fault)
    assert message.startswith(f"kernel{'<float>' * (name == 'template.cu')}, {place}: ")
    ptx = " ".join(report.text.split("\n")[fault.line - 1].split())
    assert message.index(place.text) < message.index(f"\n  PTX line {fault.line}: {ptx}\n")
    assert words in message
    assert "_Z" not in message
    shown, *_ = re.findall(r"^> +(\d+) \| (.*)$", as_text(report), re.MULTILINE)
    assert (int(shown[0]), shown[1].strip()) == (place.line, place.text)


@pytest.mark.parametrize(("name", "language"), CASES)
def test_the_same_kernel_without_its_fault_is_clean(name: str, language: str) -> None:
    assert run(FOLDER / name, language, FIXED=1).fault is None


def test_a_race_names_both_lines() -> None:
    report = run(FOLDER / "race.cu", "cuda")
    fault = report.fault
    assert fault is not None
    other = fault.other_place
    assert other is not None
    assert (other.file, other.line) == marked("race.cu", "other")
    assert f"against {other} (PTX line {fault.other_line}), thread" in str(fault)
    assert f"    {other.line} | {other.text}\n  in reversed<float>() at {other}, inlined into kernel()" in str(fault)

    marks = [marked("race.cu", word)[1] for word in ("fault", "other")]
    assert [int(line) for line in re.findall(r"^> +(\d+) \| ", as_text(report), re.MULTILINE)] == marks


def test_variables_have_their_plain_names() -> None:
    assert "bytes into tile of 256 bytes" in str(run(FOLDER / "race.cu", "cuda").fault)
    assert "past the end of .const weights " in str(run(FOLDER / "table.cu", "cuda").fault)


@pytest.mark.parametrize("language", ["cuda", "hip"])
def test_a_launch_on_sim_names_the_line_too(language: str, device: ptxrt.Device) -> None:
    if device.kind != "sim":
        pytest.skip("a GPU finds no fault")
    source = getattr(ptxrt.KernelSource, language)((FOLDER / "header.cu").read_text(), name="header.cu")
    kernel = ptxrt.load(source, "kernel", "const f32* x, f32* y, i32 n", device=device)
    x, y = (ptxrt.zeros((64,), "f32", device=device) for _ in range(2))
    with pytest.raises(ptxrt.MemoryFault) as caught:
        kernel.launch((1,), (64,), x, y, 64)
    place = caught.value.source_place
    assert place is not None
    assert (place.file, place.line) == marked("header.cu", "fault")
    assert place.text == "return x[i + 1];  // fault"


def test_counts_are_those_of_the_lines_that_were_written() -> None:
    report = run(FOLDER / "header.cu", "cuda", FIXED=1)
    assert report.profile is not None
    record = json.loads(as_json(report))
    lines = {(line["file"], line["line"]): line for line in record["source_lines"]}
    assert {file for file, _ in lines} == {"header.cu", "neighbours.h"}
    # Each of 64 threads but the last reads its right neighbour, and all of them read x[i] and write y[i].
    assert lines[marked("header.cu", "fault")]["global_bytes"] == 4 * 63
    assert lines["header.cu", 6]["global_bytes"] == 2 * 4 * 64
    for name in ("issued", "lanes", "sectors"):
        assert sum(line[name] for line in lines.values()) == record["total"][name]
    for line in lines.values():
        assert line["issued"] == sum(report.profile.lines[n].issued for n in line["ptx"])
    text = as_text(report)
    (row,) = re.findall(r"^ *6 +(.*?) +y\[i\] = x\[i\] \+ right_of\(x, i, n\);$", text, re.MULTILINE)
    assert row.split()[2] == "512"
    _, number = marked("header.cu", "fault")
    assert re.search(rf"^neighbours.h:{number} .* return x\[i \+ 1\];  // fault$", text, re.MULTILINE)


def test_the_picture_shows_what_was_written_and_has_the_ptx_behind_it() -> None:
    report = run(FOLDER / "race.cu", "cuda")
    assert report.fault is not None
    page = as_html(report)
    _, number = marked("race.cu", "fault")
    assert re.findall(r'class="(?:idle )?bad"><td class="number">(\d+)<', page) == [f"{number}"]
    _, number = marked("race.cu", "other")
    assert re.findall(r'class="(?:idle )?second"><td class="number">(\d+)<', page) == [f"{number}"]
    rows = re.findall(r"<details><summary>(.*?)</summary><pre>(.*?)</pre></details>", page, re.DOTALL)
    assert [below for line, below in rows if "// other" in line and "st.shared.f32" in below]
    assert "st.shared" not in re.sub(r"<pre>.*?</pre>", "", page[page.index('class="counts"') :], flags=re.DOTALL)
    for line in (FOLDER / "race.cu").read_text().split("\n"):
        assert escape(line) in page
    assert "<title>kernel in race.cu</title>" in page
    assert "prefers-color-scheme: dark" in page
    assert '<meta name="viewport" content="width=device-width' in page


def test_the_picture_has_each_header_that_code_comes_from() -> None:
    assert re.findall("<h2>(.*?)</h2>", as_html(run(FOLDER / "header.cu", "cuda"))) == ["header.cu", "neighbours.h"]


def test_ptx_stays_as_it_is() -> None:
    text = (
        (
            ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry kernel() {\n  .reg .u64 %p;\n"
            '  .loc 1 7 3\n  mov.u64 %p, 0;\n  ld.global.u32 _, [%p];\n  ret;\n}\n.file 1 "a.py"\n'
        )
        .replace("_,", "%v,")
        .replace("%p;", "%p; .reg .u32 %v;", 1)
    )
    report = check(ptxrt.KernelSource.ptx(text, name="a.ptx"), grid=1, block=32, arguments={}, counts=True)
    assert str(report.fault).startswith("kernel, a.py:7: ")  # which its .loc tells, and no text of it is there
    record = json.loads(as_json(report))
    assert "source_lines" not in record
    assert record["fault"]["source_place"]["text"] is None
    assert "> " + "    8 |   ld.global.u32" in as_text(report)
    page = as_html(report)
    assert "<details>" not in page
    assert re.findall(r'class="bad"><td class="number">(\d+)<', page) == ["8"]
