"""The tool that compares textures of two devices sees what differs."""

from __future__ import annotations

import measure_textures
import numpy as np
from helpers import Capture, Patch

WEIGHTS = ["--device", "sim:1", "--only", "linear, weights of a ramp", "--count", "1"]


def test_two_devices_that_are_the_same(capsys: Capture) -> None:
    assert measure_textures.main(WEIGHTS) == 0
    assert "0 of   16384 differ" in capsys.readouterr().out


def test_a_difference_is_seen(monkeypatch: Patch, capsys: Capture) -> None:
    run = measure_textures.Case.on

    def on(case: measure_textures.Case, device: str) -> measure_textures.Array:
        found = run(case, device)
        found[7, 0] += 0.25 if device == "sim:0" else 0
        return found

    monkeypatch.setattr(measure_textures.Case, "on", on)
    assert measure_textures.main(WEIGHTS) == 1
    assert "1 of   16384 differ  largest difference 0.25" in capsys.readouterr().out


def test_every_case_runs_and_is_stored(tmp_path: object, capsys: Capture) -> None:
    path = f"{tmp_path}/found.npz"
    assert measure_textures.main(["--device", "sim:1", "--count", "5", "--only", "su", "--out", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    with np.load(path) as found:
        assert {name.rpartition("/")[2] for name in found} == {"places", "device", "sim"}
        assert len(found) == 3 * len(lines)
    names = [case.name for case in measure_textures.cases(5)]
    assert len(names) == len(set(names))
