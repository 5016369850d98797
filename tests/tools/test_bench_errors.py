"""python tools/bench.py errors: which rows of the tests' errors are stored, and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench
import pytest
from helpers import Capture


def row(device: str, op: str = "softmax2d") -> dict[str, object]:
    names = {"op": op, "dtype": "float32", "device": device, "language": "ptx"}
    return names | {"cases": 25, "error": 4.25e-8, "of_bar": 0.2125, "element": 1.5e-6, "case": "(1, 2)"}


def test_it_stores_the_rows_of_the_devices_kind_alone(tmp_path: Path, capsys: Capture) -> None:
    rows = [row("cuda"), row("sim"), row("hip"), row("sim", "grid_sample")]
    file = tmp_path / "errors.json"
    file.write_text(json.dumps(rows))
    assert bench.main(["errors", str(file), "--out", str(tmp_path / "new")]) == 0
    data, text = sorted((tmp_path / "new").iterdir())
    assert (data.name, text.name) == ("errors-ptx-machine.json", "errors-ptx-machine.md")
    record = json.loads(data.read_text())
    assert record["errors"] == [rows[1], rows[3]]
    assert record["environment"]["device"] == "sim:0"
    lines = [line for line in text.read_text().splitlines() if "softmax2d" in line]
    cells = ["softmax2d", "float32", "sim", "ptx", "25", "4.2e-08", "21%", "1.5e-06"]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] == [cells]
    assert str(text) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "device", "words"),
    [
        ("[]", "sim:0", "no errors of sim"),
        (json.dumps([row("cuda")]), "sim:0", "no errors of sim"),
        ("frob", "sim:0", "Expecting value"),
        (None, "sim:0", "No such file"),
        ("[]", "tpu:0", "tpu"),
    ],
)
def test_nothing_to_store_exits_with_2(content: Any, device: str, words: str, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "errors.json"
    if content is not None:
        file.write_text(content)
    assert bench.main(["errors", str(file), "--device", device, "--out", str(tmp_path / "new")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("bench.py: ")
    assert words in printed
    assert not (tmp_path / "new").exists()
