"""The documents' claims about the tests are true."""

from __future__ import annotations

import json
import re
from pathlib import Path

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"


def test_every_pain_has_its_tests_in_the_table_and_every_such_test_a_row():
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", (DOCS / "pains.md").read_text(), re.MULTILINE)
    listed = {(number, test) for number, tests in rows for test in re.findall(r"`([^`]+)`", tests)}
    there = set()
    for path in TESTS.rglob("test_*.py"):
        for name in re.findall(r"^def (test_pain\d\w*)", path.read_text(), re.MULTILINE):
            numbers = re.match(r"test_pain(\d+(?:_and_\d+)*)", name)
            there |= {(number, f"{path.relative_to(TESTS)}::{name}") for number in numbers[1].split("_and_")}
    assert {number for number, _ in listed} == {str(n) for n in (6, *range(8, 19), 21, *range(23, 29))}
    assert listed == there


def test_what_the_documents_link_to_is_there():
    for page in [*DOCS.glob("*.md"), TESTS.parent / "README.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_worst_errors_that_ops_md_tells_are_those_that_were_measured():
    rows = json.loads((DOCS / "results" / "errors-nvidia-h200.json").read_text())["errors"]
    ops = {
        "group_norm, batch_norm, forward and backward": r"(group|batch)_norm",
        "softmax2d, forward and backward": r"softmax2d",
        "local_response_norm, forward and backward": r"local_response_norm",
        "upsample_nearest2d": r"upsample_nearest2d",
        "grid_sample": r"grid_sample$",
        "grid_sample_backward": r"grid_sample grad",
    }
    told = (DOCS / "ops.md").read_text().partition("## Precision and determinism")[2]
    for name, pattern in ops.items():
        worst = max(row["of_bar"] for row in rows if re.match(pattern, row["op"]))
        assert re.search(rf"^\| {name} \|.*\| {worst:.0%} \|$", told, re.MULTILINE), f"{name}: {worst:.0%}"
