"""tools/pictures.py: what it draws, always the same, and that the stored pictures are of the stored results."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pictures
import pytest
from helpers import ROOT

STORED = sorted(pictures.FOLDER.glob("ops-*.svg"))
PAGE = ROOT / "docs" / "measurements.md"


def row(op: str, floor: float | None, **times: float) -> dict[str, Any]:
    return {"op": op, "case": "2x3 f32", "dtype": "f32", "bytes": 1e6, "floor": floor, "times": times, "failed": {}}


RECORD = {
    "environment": {"device_name": "A & B"},
    "languages": ["ptx", "hip"],
    "copy_bytes_per_second": 1e12,
    "launch_us": 2.0,
    "rows": [
        row("softmax2d", 3.0, ptx=4.0, hip=5.0, eager=9.0),
        row("softmax2d", 3.0, ptx=4.0),
        row("batch_norm", 30.0, hip=50.0, compile=40.0),
        row("group_norm", None),
    ],
}


def drawn(folder: Path, record: object = RECORD) -> list[Path]:
    folder.mkdir(exist_ok=True)
    result = folder / "ops-a.json"
    result.write_text(json.dumps(record))
    assert pictures.main([str(result), "--out", str(folder)]) == 0
    return sorted(folder.glob("*.svg"))


def test_a_picture_has_all_that_the_record_has_and_is_always_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    first = drawn(tmp_path / "one")
    assert [path.name for path in first] == [
        f"ops-a-{name}-{theme}.svg" for name in ("ratios", "roofline") for theme in ("dark", "light")
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in drawn(tmp_path / "two")]
    assert {pictures.drawn_from(path) for path in first} == {
        ("ops-a.json", pictures.digest(tmp_path / "one/ops-a.json"))
    }
    ratios, roofline = (first[place].read_text() for place in (0, 2))
    for text in (ratios, roofline):
        assert "A &amp; B" in text
        assert pictures.THEMES["dark"].ptx in text
        assert "<dc:date>" not in text
    # A bar for each op and language with torch beside it, and a dot a row of these.
    assert [len(re.findall(rf"fill: {pictures.THEMES['dark'].ptx}", ratios))] == [1 + 1]  # the legend's
    assert [len(re.findall(rf"fill: {pictures.THEMES['dark'].hip}", ratios))] == [2 + 1]
    assert len(re.findall(r"<use [^>]*fill: " + pictures.THEMES["dark"].ptx, roofline)) == 2 + 1
    assert len(re.findall(r"<use [^>]*fill: " + pictures.THEMES["dark"].torch, roofline)) == 2 + 1


def test_a_record_of_one_language_is_drawn_as_far_as_it_goes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    old = {"op": "softmax2d", "case": "2x3 f32", "floor": 3.0, "ptxrt": 4.0, "eager": 9.0}
    record = {"environment": {"device_name": "A"}, "language": "ptx", "copy_bytes_per_second": 1e12, "rows": [old]}
    first = drawn(tmp_path, record)
    assert not any("HIP" in path.read_text() for path in first)
    assert "an empty kernel" not in first[2].read_text()


def test_the_stored_pictures_are_those_of_the_page() -> None:
    named = set(re.findall(r"pictures/(ops-[\w-]+\.svg)", PAGE.read_text()))
    assert named == {path.name for path in STORED}
    assert len(named) == len(pictures.NAMES) * len(pictures.THEMES)


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_a_stored_picture_is_of_the_stored_result(path: Path) -> None:
    name, digest = pictures.drawn_from(path)
    result = ROOT / "docs" / "results" / name
    assert path.name.startswith(result.stem)
    assert pictures.digest(result) == digest, f"Draw it again: python tools/pictures.py docs/results/{name}"
    assert path.stat().st_size < 200_000


def test_a_picture_of_nothing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.svg").write_text("<svg/>")
    with pytest.raises(ValueError, match="does not say what it was drawn from"):
        pictures.drawn_from(tmp_path / "a.svg")
