"""The documents' claims about the tests are true."""

from __future__ import annotations

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
