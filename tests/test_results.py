"""The stored results of docs/results/: which are stale (``pytest -rx`` lists them), and that nobody has touched them.

A result that is stale is an expected failure: its numbers were true, of a text that has changed since. One without
digests is so too, if it is among those that were stored before there were any.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import results
from helpers import EVERYTHING, ROOT, once_a_run

FOLDER = ROOT / "docs" / "results"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
# Measured before results had digests; who measures one again takes its name out of the file.
WITHOUT_DIGESTS = set((FOLDER / "without_digests.txt").read_text().split())
each = pytest.mark.parametrize("name", NAMES)
each_with_digests = pytest.mark.parametrize("name", sorted({*NAMES} - WITHOUT_DIGESTS))


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text())


def test_every_result_has_both_files() -> None:
    assert NAMES
    assert sorted(path.stem for path in FOLDER.glob("*.md")) == NAMES


def test_no_new_result_is_without_digests() -> None:
    assert {name for name in NAMES if "measured" not in read(name)} == WITHOUT_DIGESTS


@each
def test_it_is_of_a_commit(name: str) -> None:
    assert re.fullmatch("[0-9a-f]{7,40}", read(name)["environment"]["commit"])


@each
def test_it_is_fresh(name: str) -> None:
    if reason := results.why_stale(read(name)):
        pytest.xfail(reason)


@each_with_digests
def test_its_text_says_what_its_data_say(name: str) -> None:
    record = read(name)
    assert (FOLDER / f"{name}.md").read_text() == results.KINDS[record["kind"]].text(record)


# Each commit's tool runs for it, which takes seconds: where not all is wanted, for the newest record alone.
NEWEST = max({*NAMES} - WITHOUT_DIGESTS, key=lambda name: str(read(name)["environment"]["date"]))


@pytest.mark.parametrize("name", sorted({*NAMES} - WITHOUT_DIGESTS) if EVERYTHING else [NEWEST])
def test_it_measured_what_its_commit_has(name: str) -> None:
    record = read(name)
    commit = record["environment"]["commit"]
    keys = measured_at(commit)
    there = digests_at(commit, keys)
    if there is None:
        pytest.skip(f"git does not know {commit} here")
    said = {key: digest for key, digest in record["measured"].items() if key in keys}
    assert said
    assert said == {key: there[key] for key in said}


@cache
def measured_at(commit: str) -> tuple[str, ...]:
    """What all results of a commit were measured of, by one process; kernels in f32 alone, unless all is wanted."""
    records = [read(name) for name in {*NAMES} - WITHOUT_DIGESTS]
    keys = {key for one in records if one["environment"]["commit"] == commit for key in one["measured"]}
    return tuple(sorted(key for key in keys if EVERYTHING or key.partition(" ")[2] in ("", "f32")))


def digests_at(commit: str, keys: tuple[str, ...]) -> Any:
    """The digests of a commit's files, as that commit's own tool makes them; None where git does not know it."""
    return json.loads(once_a_run(lambda: made_at(commit, keys), "digests", commit, *keys).read_bytes())


def made_at(commit: str, keys: tuple[str, ...]) -> bytes:
    if not shutil.which("git"):
        return b"null"
    git = ["git", "-C", str(ROOT), "--no-optional-locks"]
    with TemporaryDirectory() as folder:
        archive = Path(folder) / "archive.tar"
        made = subprocess.run([*git, "archive", "-o", archive, commit], capture_output=True, check=False)
        if made.returncode:
            return b"null"
        subprocess.run(["tar", "-xf", archive, "-C", folder], check=True)
        path = os.pathsep.join((folder, f"{folder}/tools"))
        script = [sys.executable, "-m", "benchmarks.measured", *keys]
        environment = {**os.environ, "PYTHONPATH": path}
        return subprocess.run(script, cwd=folder, env=environment, capture_output=True, check=True).stdout


# The checks themselves ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({}, "no digest of what it measured"),
        ({"measured": {"nothing": "not there"}, "environment": {"commit": "0123456789"}}, ""),
        (
            {"measured": {"nothing": "0", "README.md": "1"}, "environment": {"commit": "0123456789"}},
            "stale: measured at 0123456, nothing, README.md changed since",
        ),
    ],
)
def test_why_a_result_is_stale(record: dict[str, object], why: str) -> None:
    assert results.why_stale(record) == why


def test_a_commit_that_git_does_not_know_has_no_digests() -> None:
    assert digests_at("f" * 40, ("README.md",)) is None
