"""tools/fidelity.py writes its table, and fails where something differs."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sequences
from helpers import Capture, Patch

import ptxrt
from ptxrt.compilers import nvrtc

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tool(monkeypatch: Patch) -> ModuleType:
    if reason := nvrtc.available():
        pytest.skip(reason)
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import fidelity

    return fidelity


def test_the_table_says_what_was_compared(tool: ModuleType, tmp_path: Path, capsys: Capture) -> None:
    given = [
        "--device",
        "sim:1",
        "--instructions",
        "120",
        "--kernels",
        "^(crc32|bitonic|libm_expf)",
        "--out",
        str(tmp_path),
    ]
    assert tool.main([*given, "--threads", "1"]) == 0
    record = json.loads((tmp_path / "fidelity-ptx-machine.json").read_text())
    text = (tmp_path / "fidelity-ptx-machine.md").read_text()
    assert len(record["kernels"]) == 3
    assert all(one["equal"] == one["values"] and not one["wrong"] for one in record["kernels"])
    assert record["sequences"]["instructions"] >= 120
    assert sum(record["sequences"]["counts"].values()) > 100
    assert record["environment"]["commit"]
    assert not record["sequences"]["differences"]
    assert not [word for word in ("bitonic_sort", "## Freedom", "0 differ", "driver") if word not in text]
    assert "3 kernels, 0 differ" in capsys.readouterr().out


def test_a_difference_is_exit_status_1(tool: ModuleType, tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    run = sequences.results

    def other(drawing: sequences.Drawing, device: ptxrt.Device, options: Any = ()) -> Any:
        found = run(drawing, device, options)
        if str(device) == "sim:1" and drawing.given is None:
            found[0] ^= 1 << 13
        return found

    monkeypatch.setattr(sequences, "results", other)
    given = ["--device", "sim:1", "--instructions", "50", "--kernels", "none such", "--out", str(tmp_path)]
    assert tool.main([*given, "--threads", "1"]) == 1
    assert "1 differ" in capsys.readouterr().out
    assert "None." not in (tmp_path / "fidelity-ptx-machine.md").read_text().partition("## Differences")[2]


def test_no_such_device_is_exit_status_2(tool: ModuleType, tmp_path: Path) -> None:
    assert tool.main(["--device", "sim:99", "--out", str(tmp_path)]) == 2
    assert not list(tmp_path.iterdir())
