"""A kernel's text is made once: the next process has it from a memo, unless what it is made of has changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers import ROOT, Patch

from ptxrt import memos
from ptxrt.ops.framework import texts
from ptxrt.runtime.source import KernelSource

ENTRY = "group_norm_kernel"


def read(dtype: str = "f32", **parameters: str) -> KernelSource:
    """Return the text as a new process reads it."""
    texts.templates.cache_clear()
    return texts.read_kernel.__wrapped__("group_norm", ENTRY, dtype=dtype, **parameters)


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: Patch) -> Iterator[Path]:
    """A copy of the kernels in PTX, which are read from there, with memos."""
    shutil.copytree(ROOT / "kernels_ptx", tmp_path / "kernels_ptx")
    monkeypatch.setattr(texts, "_folder", lambda name: tmp_path / name)
    memos.use(tmp_path / "memos")
    yield tmp_path / "kernels_ptx"
    memos.use(None)
    texts.templates.cache_clear()


def test_the_memo_has_the_text_and_no_template_is_read(kernels: Path, monkeypatch: Patch) -> None:
    made = [read(), read("f16"), read(warps="1")]
    assert len({source.text for source in made}) == 3
    assert kernels
    monkeypatch.setattr("jinja2.Environment.get_template", None)
    assert [read(), read("f16"), read(warps="1")] == made


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [("group_norm.ptx", "// group_norm,", "// Groups,"), ("macros.jinja", "bar.sync", "barrier.sync")],
)
def test_after_a_change_of_a_file_the_text_is_made_anew(kernels: Path, name: str, old: str, new: str) -> None:
    before, file = read().text, kernels / name
    file.write_text(file.read_text().replace(old, new))
    assert read().text == before.replace(old, new) != before
    assert len(list((kernels.parent / "memos").iterdir())) == 1


def test_a_memo_that_is_none_does_not_matter(kernels: Path) -> None:
    before = read().text
    (memo,) = (kernels.parent / "memos").iterdir()
    for value in (3, {}, {"made of": texts._made_of("group_norm.ptx", "ptx"), "text": 3}):
        memos.write(memo.stem, value)
        assert read().text == before
    memo.write_text("{")
    assert read().text == before
