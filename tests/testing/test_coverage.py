"""Coverage of kernels in coverage.py's data and reports."""

from __future__ import annotations

import io
import json
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coverage import Coverage
from helpers import need_nvrtc
from kernels import CUDA, HEADER, PTX, TEST

import ptxrt
from ptxrt import sim
from ptxrt.backends.sim import COLLECTORS
from ptxrt.places import Sources
from ptxrt.testing._written import Written

Report = dict[str, Any]
CONFIG = "[run]\nplugins = ptxrt.testing.coverage\nsource = .\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with the kernels in files."""
    for name, text in (("scale.ptx", PTX), ("scale.cu", CUDA), ("twice.h", HEADER), (".coveragerc", CONFIG)):
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "none")  # the kernel in C++ races
    ptxrt.Device("sim:0").modules.clear()  # of what has this text, and another test's name
    before = [*COLLECTORS]
    yield tmp_path
    COLLECTORS[:] = before


def launch(path: str, x: list[float], a: float = 1.0, *, text: str | None = None, name: str | None = None) -> None:
    """Launch a kernel of a file on sim with 32 threads."""
    sim = ptxrt.Device("sim:0")
    if not path.endswith("ptx"):
        need_nvrtc()
    make = ptxrt.KernelSource.ptx if path.endswith("ptx") else ptxrt.KernelSource.cuda
    source = make(text or Path(path).read_text(), name=name or str(Path(path).resolve()))
    kernel = ptxrt.load(source, "scale", "f32* x[n], u32 n, f32 a", device=sim)
    kernel.launch(1, 32, ptxrt.to_device(np.array(x, np.float32), sim), len(x), a)


def measured(*calls: Callable[[], None], branch: bool = True, suffix: bool = False, **how: Any) -> Coverage:
    """Return coverage.py's run of these calls, saved."""
    cov = Coverage(branch=branch, data_suffix=suffix or None, **how)
    cov.start()
    try:
        for call in calls:
            call()
    finally:
        cov.stop()
    cov.save()
    return cov


def files(cov: Coverage) -> Report:
    """Return what coverage.py's report in JSON has on each file of kernels."""
    cov.json_report(outfile="report.json")
    found = json.loads(Path("report.json").read_text())["files"]
    return {name: found[name] for name in found if not name.endswith(".py")}


def reloaded(**how: Any) -> Coverage:
    """Return coverage.py as a command of its own finds the data."""
    cov = Coverage(**how)
    cov.load()
    return cov


PTX_LINES = [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 21, 22, 23]


@pytest.mark.parametrize("branch", [False, True])
def test_lines_of_ptx_that_ran_and_that_did_not(folder: Path, branch: bool) -> None:
    measured(lambda: launch("scale.ptx", [1.0, 2.0]), branch=branch)
    found = files(reloaded())["scale.ptx"]
    assert found["executed_lines"] + found["missing_lines"] == PTX_LINES
    assert found["missing_lines"] == [20, 21, 22, 23]


@pytest.mark.parametrize("branch", [False, True])
def test_an_instruction_whose_guard_never_held_did_not_run(folder: Path, branch: bool) -> None:
    measured(lambda: launch("scale.ptx", [-1.0, 2.0]), branch=branch)
    assert files(reloaded())["scale.ptx"]["missing_lines"] == [21]


def test_ways_of_branches(folder: Path) -> None:
    measured(lambda: launch("scale.ptx", [1.0, 2.0]))
    found = files(reloaded())["scale.ptx"]
    assert found["executed_branches"] == [[11, -11], [11, 12], [16, 17]]
    assert found["missing_branches"] == [[16, 20]]
    assert found["summary"]["num_branches"] == 4
    measured(lambda: launch("scale.ptx", [1.0] * 32))  # where no thread is outside
    assert files(reloaded())["scale.ptx"]["missing_branches"] == [[11, -11], [16, 20]]


def test_launches_add_up(folder: Path) -> None:
    measured(lambda: launch("scale.ptx", [1.0]), lambda: launch("scale.ptx", [-1.0] * 32))
    found = files(reloaded())["scale.ptx"]
    assert (found["missing_lines"], found["missing_branches"]) == ([21], [])


def test_data_files_are_combined(folder: Path) -> None:
    measured(lambda: launch("scale.ptx", [1.0]), suffix=True)
    measured(lambda: launch("scale.ptx", [-1.0] * 32), suffix=True)
    assert not (folder / ".coverage").exists()
    combined = Coverage()
    combined.combine()
    combined.save()
    found = files(reloaded())["scale.ptx"]
    assert (found["missing_lines"], found["missing_branches"]) == ([21], [])


def test_a_run_reports_itself(folder: Path) -> None:
    assert files(measured(lambda: launch("scale.ptx", [1.0])))["scale.ptx"]["missing_lines"] == [20, 21, 22, 23]


CUDA_LINES = {3, 4, 6, 7, 8, 9}


def test_lines_of_cuda_and_of_its_headers(folder: Path) -> None:
    measured(lambda: launch("scale.cu", [1.0, 2.0], 2.0))
    found = files(reloaded())
    kernel, header = found["scale.cu"], found["twice.h"]
    assert {*kernel["executed_lines"], *kernel["missing_lines"]} >= CUDA_LINES
    assert kernel["missing_lines"] == [8, 9]
    assert (header["executed_lines"], header["missing_lines"]) == ([2, 3], [])
    assert [7, 8] in kernel["missing_branches"]
    assert [way for way in kernel["executed_branches"] if way[0] == 4] == [[4, 6], [4, 11]]
    measured(lambda: launch("scale.cu", [1.0, 2.0], 0.0))
    assert files(reloaded())["scale.cu"]["missing_lines"] == []


INLINED = """\
__device__ inline void bump(float *x) {
    unsigned i = threadIdx.x;
    x[i] = x[i] + 1.0f;
}
extern "C" __global__ void scale(float *x, unsigned n, float a) {
    if (threadIdx.x >= n) return;
    if (a > 1.0f)
        bump(x);
    float sum = 0.0f;
    for (unsigned k = 0; k < n; k++) sum += x[k];
    if (a < 0.0f)
        x[0] = sum;
}
"""


def test_a_call_that_was_inlined_ran_where_its_function_did(folder: Path) -> None:
    (folder / "inlined.cu").write_text(INLINED)
    measured(lambda: launch("inlined.cu", [1.0]))
    assert {3, 8, 12} <= {*files(reloaded())["inlined.cu"]["missing_lines"]}
    measured(lambda: launch("inlined.cu", [1.0], 2.0))
    found = files(reloaded())["inlined.cu"]
    assert {3, 8} <= {*found["executed_lines"]}
    assert found["missing_lines"] == [12]


def test_a_loop_in_one_line_has_no_way_to_itself(folder: Path) -> None:
    (folder / "inlined.cu").write_text(INLINED)
    measured(lambda: launch("inlined.cu", [1.0]))
    found = files(reloaded())["inlined.cu"]
    assert not [way for way in found["executed_branches"] + found["missing_branches"] if way[0] == way[1]]


COMPILED = """\
.version 7.0
.target sm_70
.address_size 64
.file 1 "a.cu"
.file 2 "b.h"
.visible .entry k() {
    .reg .pred q; .reg .b32 t;
    .loc 1 1 0
    mov.u32 t, %tid.x;
    setp.eq.u32 q, t, 0;
    @q bra THERE;
    .loc 1 0 0
    add.u32 t, t, 1;
    .loc 1 2 0
    add.u32 t, t, 1;
    @q bra INSIDE;
THERE:
    .loc 1 3 0
    add.u32 t, t, 1;
INSIDE:
    .loc 2 1 0
    add.u32 t, t, 1;
    ret;
}
"""


def test_where_the_ways_of_compiled_code_lead(folder: Path) -> None:
    texts = ("a.cu", "one\ntwo\nthree\n"), ("b.h", "first\n"), ("c.h", "nothing of which is left\n")
    for name, text in texts:
        Path(name).write_text(text)
    written = Written(sim.parse(COMPILED, "a.cu", Sources(texts)))
    assert written.paths == (str(folder / "a.cu"), str(folder / "b.h"))
    lines, ways = written.all_of(str(folder / "a.cu"))
    # Instructions of no line belong to what comes next; what is in another file is out of the function.
    assert (lines, ways) == ({1, 2, 3}, {(1, 2), (1, 3), (2, 3), (2, -2)})
    assert written.all_of(str(folder / "b.h")) == ({1}, set())


def test_an_entry_that_the_machine_does_not_run_has_no_lines(folder: Path) -> None:
    """They could not run here; those of its siblings count, loaded or not."""
    bodies = (("a", "wgmma.fence.sync.aligned;"), ("b", ""))
    text = PTX + "".join(f"\n.entry {name}() {{\n{code}\nret;\n}}\n" for name, code in bodies)
    found = []
    for one in (PTX, text):
        Path("scale.ptx").write_text(one)
        found.append(Written(sim.parse(one, "scale.ptx")).all_of(str(folder / "scale.ptx"))[0])
    assert found[1] - found[0] == {text.count("\n") - 1}


def test_a_text_that_is_not_the_files_is_left_out(folder: Path) -> None:
    measured(
        lambda: launch("scale.ptx", [1.0], text=PTX + "// more\n"),
        lambda: launch("scale.ptx", [1.0], name="no such file.ptx"),
        lambda: launch("scale.cu", [1.0], text="#line 7\n" + CUDA),
    )
    assert files(reloaded()).keys() <= {"twice.h"}


def test_lines_that_line_numbers_by_itself_are_left_out(folder: Path) -> None:
    (folder / "made.cu").write_text('#line 7 "grammar.y"\n' + CUDA)
    measured(lambda: launch("made.cu", [1.0]))
    assert files(reloaded()).keys() == {"twice.h"}


def test_what_is_not_to_be_measured_is_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / ".coveragerc").write_text(CONFIG.replace("source = .\n", ""))
    within = folder / "lib" / "some_package"
    within.mkdir(parents=True)
    (within / "__init__.py").write_text("")
    (within / "scale.ptx").write_text(PTX + "// a text of its own\n")
    calls = lambda: launch("scale.ptx", [1.0]), lambda: launch("lib/some_package/scale.ptx", [1.0])
    measured(*calls, source=["lib"])
    assert files(reloaded()).keys() == {"lib/some_package/scale.ptx"}
    monkeypatch.syspath_prepend(folder / "lib")
    measured(*calls, source_pkgs=["some_package"])
    assert files(reloaded()).keys() == {"lib/some_package/scale.ptx"}
    measured(*calls)
    cov = reloaded()
    cov.set_option("report:omit", ["*/some_package/*"])
    assert files(cov).keys() == {"scale.ptx"}
    monkeypatch.setattr("ptxrt.testing._collect._NOT_OURS", [str(folder / "lib")])  # as if that were site-packages
    measured(*calls)
    assert files(reloaded()).keys() == {"scale.ptx"}


def test_a_header_without_instructions_is_no_file_of_a_report(folder: Path) -> None:
    (folder / "twice.h").write_text("#define twice(value, a) ((value) * 2 * (a))\n")
    measured(lambda: launch("scale.cu", [1.0], 2.0))
    assert files(reloaded()).keys() == {"scale.cu"}


@pytest.mark.parametrize("more", ["", "relative_files = true\n"])
def test_a_test_may_change_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str) -> None:
    (folder / ".coveragerc").write_text(CONFIG.replace("= .", "= kernels") + more)
    path = folder / "kernels" / "scale.ptx"
    path.parent.mkdir()
    path.write_text(PTX)

    def moved() -> None:
        with monkeypatch.context() as patch:
            patch.chdir("/")
            launch(str(path), [1.0])

    measured(moved)
    assert files(reloaded())["kernels/scale.ptx"]["missing_lines"] == [20, 21, 22, 23]


def test_relative_files(folder: Path) -> None:
    (folder / ".coveragerc").write_text(CONFIG + "relative_files = true\n")
    cov = measured(lambda: launch("scale.ptx", [1.0]))
    assert "scale.ptx" in cov.get_data().measured_files()
    assert files(reloaded())["scale.ptx"]["missing_lines"] == [20, 21, 22, 23]


def test_a_line_may_be_excluded(folder: Path) -> None:
    text = PTX.replace("bra below;", "bra below; // pragma: no cover").replace(
        "neg.f32 %value, %value;", "neg.f32 %value, %value; /* pragma: no cover: never */"
    )
    (folder / "scale.ptx").write_text(text)
    measured(lambda: launch("scale.ptx", [1.0]))
    found = files(reloaded())["scale.ptx"]
    assert found["excluded_lines"] == [16, 20]
    assert found["missing_lines"] == [21, 22, 23]
    assert (found["missing_branches"], found["summary"]["num_branches"]) == ([], 2)


def test_a_fault_leaves_what_ran_up_to_it(folder: Path) -> None:
    (folder / "scale.ptx").write_text(PTX.replace("ld.global.f32 %value, [%x];", "ld.global.f32 %value, [%x+64];"))

    def faulty() -> None:
        with pytest.raises(ptxrt.MemoryFault):
            launch("scale.ptx", [1.0])

    measured(faulty)
    assert files(reloaded())["scale.ptx"]["executed_lines"] == [6, 7, 8, 9, 10, 11, 12, 13]


def test_contexts_are_the_tests_that_ran_a_line(folder: Path) -> None:
    cov = Coverage(branch=True)
    cov.start()
    for name, x in (("first", 1.0), ("second", -1.0)):
        cov.switch_context(name)
        launch("scale.ptx", [x])
    cov.stop()
    contexts = cov.get_data().contexts_by_lineno(str(folder / "scale.ptx"))
    assert {line: sorted(contexts[line]) for line in (9, 17, 20)} == {
        9: ["first", "second"],
        17: ["first"],
        20: ["second"],
    }


def test_every_report_of_coverage_py(folder: Path) -> None:
    measured(lambda: launch("scale.ptx", [1.0]))
    text = io.StringIO()
    cov = reloaded()
    cov.report(file=text, show_missing=True, include=["*.ptx"])
    assert textwrap.dedent(text.getvalue()).splitlines()[2].split(None, 6) == [
        *["scale.ptx", "17", "4", "4", "1", "76%"],
        "20-23",
    ]
    cov.xml_report(outfile="report.xml", include=["*.ptx"])
    line = '<line number="16" hits="1" branch="true" condition-coverage="50% (1/2)" missing-branches="20"/>'
    assert line in Path("report.xml").read_text()
    cov.lcov_report(outfile="report.info", include=["*.ptx"])
    info = Path("report.info").read_text()
    assert "SF:scale.ptx" in info
    assert "DA:16,1" in info
    assert "DA:20,0" in info
    cov.html_report(directory="html", include=["*.ptx"])
    (page,) = Path("html").glob("scale_ptx*.html")
    assert "no thread went from line 16 to line 20" in page.read_text()


def test_without_a_run_of_coverage_py_nothing_is_noted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(lambda: launch("scale.ptx", [1.0]))
    reloaded()
    assert len(COLLECTORS) == 1
    monkeypatch.setattr("ptxrt.sim.Visits", None)
    launch("scale.ptx", [-1.0])
    assert files(reloaded())["scale.ptx"]["missing_lines"] == [20, 21, 22, 23]


def test_pytest_cov_on_many_processes(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_cov")
    (pytester.path / "scale.ptx").write_text(PTX)
    (pytester.path / ".coveragerc").write_text(CONFIG)
    body = """
    def test_negative(): launch("scale.ptx", [-1.0])
    def test_positive(): launch("scale.ptx", [1.0])
    """
    (pytester.path / "test_within.py").write_text(textwrap.dedent(TEST) + textwrap.dedent(body))
    report = "--cov-report=term-missing"
    result = pytester.runpytest_subprocess("-n", "2", "--cov=.", "--cov-branch", report, "--cov-context=test")
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines([r"scale.ptx +17 +1 +4 +0 +95% +21"])
