"""python tools/survey.py: which entries load, why the others do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import survey
from helpers import Capture, Patch

import ptxrt

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
PARAMS = ".param .u64 x, .param .f32 a, .param .align 4 .b8 p[8], .param .align 16 .b8 q[48]"
GOOD = f".visible .entry good({PARAMS}) {{ ret; }}\n"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def written(name: str, text: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return written


def only(path: str, device: str | ptxrt.Device = "sim:0") -> survey.Outcome:
    (found,) = survey.survey(Path(path), ptxrt.Device(device) if isinstance(device, str) else device)
    return found


@pytest.mark.ptx
def test_what_loads_has_the_signature_of_its_param_list(write: Any, device: ptxrt.Device) -> None:
    found = only(write("good.ptx", HEAD.replace("sm_70", "sm_75") + GOOD), device)
    assert (found.entry, found.reason, found.line) == ("good", None, None)
    assert found.signature == "u64 x, f32 a, bytes p, bytes q"
    assert found.seconds > 0


@pytest.mark.parametrize(
    ("body", "reason", "what", "line"),
    [
        (".reg .b32 %r;\nfrob.b32 %r, %r;", "instruction", "frob", 5),
        (".reg .b32 %r;\nadd.rn.b32 %r, %r, %r;", "type", ".b32", 5),
        ("wgmma.fence.sync.aligned;", "instruction", "wgmma", 4),
        (".reg .b32 %r;\n.frob 3;", "directive", ".frob", 5),
        (".reg .b33 %r;", "type", ".b33", 4),
        (".reg .f64 %d;\nmov.b32 %d, 0;", "type", ".f64", 5),
        (".reg .b32 %r;\nadd.hot.u32 %r, %r, %r;", "instruction", "add", 5),
        (".reg .b32 %r;\nredux.sync.add.u32 %r, %r, -1;", "instruction", "redux", 5),
        (".reg .b32 %r;\nmov.b32 %r 0;", "parse", "expected ',' or ';'", 5),
    ],
)
def test_each_reason_has_its_group(body: str, reason: str, what: str, line: int, write: Any) -> None:
    version, target = (".version 8.0", "sm_90a") if "wgmma" in body else (".version 7.0", "sm_70")
    head = HEAD.replace(".version 7.0", version).replace("sm_70", target)
    found = only(write("bad.ptx", f"{head}.visible .entry bad() {{ {body} ret; }}\n"))
    assert (found.reason, found.what, found.line) == (reason, what, line), found
    assert body.splitlines()[-1] in found.text


def test_a_file_that_cannot_be_read_is_one_row(write: Any) -> None:
    latin, empty, param = (
        only(write("latin.ptx", b"// \xe9\n")),
        only(write("empty.ptx", HEAD)),
        only(write("param.ptx", f"{HEAD}.visible .entry k(.param .b8 x[N]) {{ ret; }}")),
    )
    assert (latin.entry, latin.reason) == ("-", "file")
    assert (empty.entry, empty.reason) == ("-", "parse")
    assert (param.entry, param.reason, param.signature) == ("k", "parameters", None)


def test_an_error_that_is_not_ours_is_a_row_too(write: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(ptxrt, "load", lambda *_: 1 / 0)
    assert only(write("good.ptx", HEAD + GOOD)).reason == "ZeroDivisionError"


def test_paths_folders_and_patterns_name_each_file_once(write: Any, tmp_path: Path) -> None:
    one, two, deep = (write(name, HEAD) for name in ("one.ptx", "two.txt", "sub/deep.ptx"))
    names = [two, one, str(tmp_path), str(tmp_path / "s*" / "*.ptx"), "missing.ptx"]
    assert [*map(str, survey.files_of(names))] == [two, one, deep]


def test_the_report_counts_and_the_exit_status_tells(write: Any, tmp_path: Path, capsys: Capture) -> None:
    good = write("good.ptx", HEAD + GOOD)
    assert survey.main([good]) == 0
    assert capsys.readouterr().out.startswith("1 of 1 entries load, of 1 files, in ")
    write("0.ptx", f"{HEAD}.visible .entry bad() {{ wgmma.frob; }}")
    for name in ("a.ptx", "b.ptx"):
        write(name, f"{HEAD}.visible .entry bad() {{ .reg .b32 %r; frob.b32 %r; }}")
    assert survey.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["file", "entry", "reason", "line", "text", "s"]
    assert lines[6].split()[:4] == ["2", "instruction", "frob", "a.ptx:4"]
    assert lines[-1].startswith("1 of 4 entries load, of 4 files, in ")


def test_json_has_every_entry(write: Any, capsys: Capture) -> None:
    good, bad = write("good.ptx", HEAD + GOOD), write("bad.ptx", f"{HEAD}.visible .entry bad() {{ frob; }}")
    assert survey.main(["--json", good, bad]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["device"], found["counts"]) == ("sim:0", {"loads": 1, "instruction": 1})
    assert [(one["entry"], one["what"]) for one in found["entries"]] == [("good", ""), ("bad", "frob")]


@pytest.mark.parametrize("arguments", [["missing.ptx"], ["--device", "sim:99", __file__]])
def test_nothing_to_load_and_no_device_are_refused(arguments: list[str], capsys: Capture) -> None:
    assert survey.main(arguments) == 2
    assert capsys.readouterr().err.startswith("survey.py: ")
