"""What is stored says what it measured, and of which commit; of a changed checkout nothing goes to docs/results/."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bench
import gpu_check
import mutate
import pytest
from benchmarks import launch, measured, report, sim
from benchmarks.report import Kind, Measurement, NotStorable
from helpers import ROOT, Capture, Patch

import ptxrt
from ptxrt import files

KIND = Kind("test", lambda record: f"Of {record['number']}", lambda record: f"It is {record['number']}.")


def git(folder: Any, *command: Any) -> None:
    name = ["-c", "user.name=A", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *name, *command], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: Patch) -> Any:
    """A repository with one file and a folder for results; the tools take it for theirs."""
    monkeypatch.delenv("PTXRT_COMMIT", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    for module in (report, measured):
        monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "docs" / "results")
    (tmp_path / "code.py").write_text("1\n")
    return tmp_path


@pytest.fixture
def committed(checkout: Any) -> Any:
    git(checkout, "init")
    git(checkout, "add", ".")
    git(checkout, "commit", "-m", "one")
    return checkout


def save(folder: Any) -> Any:
    paths = Measurement(folder, ["code.py"]).save(KIND, "name", ptxrt.Device("sim:0"), {"number": 5})
    return json.loads(paths[0].read_text()), paths[1].read_text()


def test_a_result_of_a_commit_is_stored_with_its_commit_and_digests(committed: Any) -> None:
    record, text = save(report.RESULTS)
    head = subprocess.run(["git", "-C", committed, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    assert record["environment"]["commit"] == head.stdout.strip()
    assert (record["kind"], record["number"]) == ("test", 5)
    assert record["measured"] == measured.digests(["code.py"])
    assert text.startswith("# Of 5\n")
    assert text.endswith("\n\nIt is 5.\n")
    assert KIND.text(record) == text
    git(committed, "add", ".")
    git(committed, "commit", "-m", "results")
    (report.RESULTS / "name.md").write_text("")
    save(report.RESULTS)  # a result stored just before is no change of the checkout


def test_of_a_changed_checkout_nothing_is_stored_among_the_results(committed: Any) -> None:
    (committed / "code.py").write_text("2\n")
    for folder in (report.RESULTS, report.RESULTS / "deeper", committed / "docs" / ".." / "docs" / "results"):
        with pytest.raises(NotStorable, match="-dirty"):
            Measurement(folder, ["code.py"])
    record, _ = save(committed / "elsewhere")
    assert record["environment"]["commit"].endswith("-dirty")


def test_where_git_knows_no_commit_it_has_to_be_named(checkout: Any, monkeypatch: Patch) -> None:
    with pytest.raises(NotStorable, match="unknown"):
        Measurement(report.RESULTS, [])
    assert save(checkout / "elsewhere")[0]["environment"]["commit"] == "unknown"
    monkeypatch.setenv("PTXRT_COMMIT", "0123abc")
    assert save(report.RESULTS)[0]["environment"]["commit"] == "0123abc"


def test_what_changes_while_it_is_measured_is_not_stored(committed: Any) -> None:
    measurement = Measurement(report.RESULTS, ["code.py"])
    (committed / "code.py").write_text("2\n")
    with pytest.raises(NotStorable, match=r"code\.py changed while"):
        measurement.save(KIND, "name", ptxrt.Device("sim:0"), {"number": 5})
    assert not report.RESULTS.exists()


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_measured(committed: Any) -> None:
    folder = committed / "code.py" / "deeper"
    with pytest.raises(NotStorable, match=f"cannot write to {folder}: Not a directory. Name another"):
        Measurement(folder, ["code.py"])
    measurement = Measurement(committed / "new" / "deeper", ["code.py"])
    assert sorted(path.name for path in committed.iterdir()) == [".git", "code.py"]
    measurement.save(KIND, "name", ptxrt.Device("sim:0"), {"number": 5})


def test_a_result_is_stored_whole_or_not_at_all(committed: Any, monkeypatch: Patch) -> None:
    def full(path: Path, data: bytes, **_: Any) -> None:
        path.write_bytes(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    save(committed / "elsewhere")
    before = {path: path.read_text() for path in (committed / "elsewhere").iterdir()}
    measurement = Measurement(committed / "elsewhere", ["code.py"])
    monkeypatch.setattr(files, "write", full)
    with pytest.raises(OSError, match="No space left"):
        measurement.save(KIND, "name", ptxrt.Device("sim:0"), {"number": 6})
    assert {path: path.read_text() for path in (committed / "elsewhere").iterdir()} == before


@pytest.mark.parametrize("tool", ["launch", "sim", "ops", "gpu_check", "mutate", "fidelity"])
def test_every_tool_refuses_before_it_measures(tool: str, checkout: Any, monkeypatch: Patch, capsys: Capture) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("measured")

    device = ptxrt.Device("sim:0")
    monkeypatch.setattr(launch, "peers", never)
    monkeypatch.setattr(sim, "measure", never)
    monkeypatch.setattr(gpu_check, "_run", never)
    monkeypatch.setattr(mutate, "mutants", never)
    monkeypatch.setattr(ptxrt, "Device", lambda name: device)
    out = ["--out", str(report.RESULTS)]
    if tool == "ops":
        monkeypatch.setitem(sys.modules, "torch", object())  # which has nothing to measure with
        monkeypatch.setenv("PTXRT_LANGUAGE", "ptx")
    if tool == "fidelity":
        monkeypatch.syspath_prepend(str(ROOT / "tests" / "fidelity"))
        import fidelity

        monkeypatch.setattr(fidelity, "compare_cases", never)
        assert fidelity.main(["--device", "sim:1", *out]) == 2
    elif tool == "mutate":
        assert mutate.main(["softmax2d", *out]) == 2
    elif tool == "gpu_check":
        assert gpu_check.main(out) == 1
    else:
        assert bench.main([tool, *(["--device", "sim:0"] if tool == "launch" else []), *out]) == 2
    assert "Commit first" in capsys.readouterr().err
    assert not report.RESULTS.exists()


# Digests --------------------------------------------------------------------------------------------------------------


def test_a_file_a_folder_and_nothing_have_digests(checkout: Any) -> None:
    folder = checkout / "folder"
    folder.mkdir()
    (folder / "a.py").write_text("a")
    (folder / "notes.txt").write_text("not measured")
    before = measured.digests(["code.py", "folder", "nothing"])
    assert len(before["code.py"]) == len(before["folder"]) == 64
    assert before["nothing"] == "not there"
    assert measured.changed(before) == []
    (folder / "notes.txt").write_text("changed")
    assert measured.changed(before) == []
    (folder / "a.py").write_text("b")
    assert measured.changed(before) == ["folder"]
    (folder / "a.py").rename(folder / "b.py")
    (folder / "b.py").write_text("a")
    (checkout / "code.py").unlink()
    (checkout / "nothing").mkdir()
    (checkout / "nothing" / "new.ptx").write_text("")
    assert measured.changed(before) == ["code.py", "folder", "nothing"]


def test_a_name_is_no_content() -> None:
    first, second = ([("a", b"bc")], [("ab", b"c")])
    assert measured._sha256(first) != measured._sha256(second)


def test_the_kernels_of_a_language_and_an_element_type_have_a_digest_of_their_own() -> None:
    keys = ["grid_sample.ptx f32", "grid_sample.ptx f64", "grid_sample.hip f32", "softmax2d.ptx f32"]
    found = measured.digests([*keys, "grid_sample.ptx u8"])
    assert len({found[key] for key in keys}) == 4
    assert found["grid_sample.ptx u8"] == "not there"
    assert measured.kernel_keys("softmax2d", "f32", "ptx") == ["softmax2d.ptx f32", "ptxrt/ops/_softmax2d.py"]


def test_a_kernel_whose_rendered_text_changed_has_another_digest(monkeypatch: Patch) -> None:
    key = "softmax2d.ptx f32"
    before = measured.digests([key])
    specs = [spec for spec in ptxrt.ops.kernels() if (spec.family, spec.language) == ("softmax2d", "ptx")]
    other = SimpleNamespace(**vars(specs[0]), source=ptxrt.KernelSource.ptx(specs[0].source.text + "// more"))
    monkeypatch.setattr(measured, "_of_kernels", measured._of_kernels.__wrapped__)  # without what it remembers
    for kernels, changed in ((specs, []), ([other, *specs[1:]], [key]), (specs[1:], [key])):
        monkeypatch.setattr(ptxrt.ops, "kernels", lambda kernels=kernels: kernels)
        assert measured.changed(before) == changed


def test_a_cell_cannot_break_the_table() -> None:
    assert report.markdown_table(["a"], [["x|y\nz"]]).splitlines()[2] == r"| x\|y z |"
