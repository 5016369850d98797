"""The documents' claims about the tests are true."""

from __future__ import annotations

import io
import json
import re
import tokenize
from pathlib import Path

import ops_table
import pytest

from ptxrt.dtypes import BY_NAME

TESTS = Path(__file__).parent
DOCS = TESTS.parent / "docs"
PROSE = [*TESTS.parent.glob("*.md"), *DOCS.glob("*.md"), *(TESTS.parent / "ptxrt").rglob("*.py")]

_WORD = "(?:some|few|several|half|one|two|three|four|five|six|seven|eight|nine|ten|dozens?|hundreds?|thousands?)"
_SECONDS = r"(?:nano|micro|milli)?seconds?|minutes?"
_AGAIN = "as (?:fast|slow|long|much)|faster|slower|(?:less|more|of the) time|the (?:time|cost|speed)"
FIGURE = re.compile(
    rf"\b\d[\d.,]*[ -]?(?:[nmuµ]?s|{_SECONDS}|[kKMGT]?i?B/s)\b"
    rf"|\b{_WORD} (?:of )?(?:{_SECONDS})\b"
    rf"|\b(?:\d[\d.,]*%?|{_WORD}|twice)(?: times|x)? (?:{_AGAIN})\b"
    r"|\b\d\S* [\w-]+ (?:a|per) second\b",
    re.IGNORECASE,
)
"""A time, a rate or a ratio of times, typed by hand."""


def test_every_pain_has_its_tests_in_the_table_and_every_such_test_a_row() -> None:
    rows = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", (DOCS / "pains.md").read_text(), re.MULTILINE)
    listed = {(number, test) for number, tests in rows for test in re.findall(r"`([^`]+)`", tests)}
    there = set()
    for path in TESTS.rglob("test_*.py"):
        for name, numbers in re.findall(r"^def (test_pain(\d+(?:_and_\d+)*)\w*)", path.read_text(), re.MULTILINE):
            there |= {(number, f"{path.relative_to(TESTS)}::{name}") for number in numbers.split("_and_")}
    assert {number for number, _ in listed} == {str(n) for n in range(1, 29)}
    assert listed == there


def test_what_the_documents_link_to_is_there() -> None:
    for page in [*DOCS.glob("*.md"), TESTS.parent / "README.md"]:
        prose = re.sub(r"^```.*?^```$|`[^`\n]*`(?!\])", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for target in re.findall(r"(?:\]\(|^\[\w+\]: )(?!https?:)([^)#\n]+)", prose, re.MULTILINE):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_environment_variables_are_those_that_are_read() -> None:
    listed = set(re.findall(r"^\| `(PTXRT_\w+)` \|", (DOCS / "environment.md").read_text(), re.MULTILINE))
    ours = [TESTS / name for name in ("conftest.py", "helpers.py", "store_testing.py")]
    files = [*(TESTS.parent / "ptxrt").rglob("*.py"), *ours]
    assert listed == {name for file in files for name in re.findall(r'"(PTXRT_[A-Z_]+)"', file.read_text())}


def test_every_type_of_a_signature_is_in_its_page() -> None:
    assert set(BY_NAME) <= set(re.findall(r"`(\w+)`", (DOCS / "signatures.md").read_text()))


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    listed = set(re.findall(r"^([\w/]+)$", index, re.MULTILINE))
    assert listed == {path.stem for path in DOCS.glob("*.md")} - {"index"} | {
        f"api/{p.stem}" for p in DOCS.glob("api/*.md")
    }


def test_the_worst_errors_that_ops_md_tells_are_those_that_were_measured() -> None:
    rows = json.loads((DOCS / "results" / "errors-nvidia-h200.json").read_text())["errors"]
    ops = {
        "group_norm, batch_norm, forward and backward": r"(group|batch)_norm",
        "softmax2d, forward and backward": r"softmax2d",
        "local_response_norm, forward and backward": r"local_response_norm",
        "layer_norm, rms_norm, forward and backward": r"(layer|rms)_norm",
        "upsample_nearest2d_backward": r"upsample_nearest2d_backward",
        "upsample_nearest2d": r"upsample_nearest2d$",
        "grid_sample": r"grid_sample$",
        "grid_sample_backward": r"grid_sample(_backward| grad)",
    }
    table = (DOCS / "ops.md").read_text().partition("## Precision and determinism")[2]
    for name, pattern in ops.items():
        worst = max(row["of_bar"] for row in rows if re.match(pattern, row["op"]))
        assert re.search(rf"^\| {name} \|.*\| {worst:.0%} \|$", table, re.MULTILINE), f"{name}: {worst:.0%}"


def test_what_serves_each_op_is_as_the_variants_say() -> None:
    assert ops_table.written(ops_table.PAGE.read_text()) == ops_table.PAGE.read_text(), "python tools/ops_table.py"


def words_of_python(text: str) -> str:
    """Return the comments and the strings, docstrings among them; a full stop where there is code between."""
    words = ["."]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            words.append(token.string.lstrip("#"))
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT) and words[-1] != ".":
            words.append(".")
    return " ".join(words)


def figures(text: str) -> list[str]:
    """Return the performance figures in a text; in what a document shows of code and output there may be some."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    return FIGURE.findall(re.sub(r"\s+", " ", prose))


def test_prose_has_no_figure_of_performance() -> None:
    for path in PROSE:
        text = path.read_text()
        found = figures(words_of_python(text) if path.suffix == ".py" else text)
        assert not found, f"{path}: figures of performance are in docs/results/ alone: say it without a number"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it takes 0.3 us here", "0.3 us"),
        ("some 100ms, once", "100ms"),
        ("a 5-second start", "5-second"),
        ("at 4,800 GB/s", "4,800 GB/s"),
        ("costs four microseconds", "four microseconds"),
        ("up to twice\n    as long", "twice as long"),
        ("takes some 30% less time", "30% less time"),
        ("at three times the cost", "three times the cost"),
        ("is 1.5x faster", "1.5x faster"),
        ("20e6 lane-instructions a second", "20e6 lane-instructions a second"),
        ("before\n```\n3 ms\n```\nafter", ""),
        ("mul.wide.u32 %offset, %i, 4; sm_90; 2e-7 of 32 s8; three times; half of the threads", ""),
    ],
)
def test_what_a_figure_of_performance_is(text: str, found: str) -> None:
    assert figures(text) == ([found] if found else [])


def test_comments_and_strings_are_the_words_of_python() -> None:
    text = "x = 5.0\nseconds = 3  # some\n# ms, 10\n  # us\ny = 2  # five\nz = 1  # seconds\n'1 ms'\n"
    assert figures(words_of_python(text)) == ["10 us", "1 ms"]
