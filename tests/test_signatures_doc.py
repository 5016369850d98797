"""The examples of docs/signatures.md run on sim, one after the other, and print what the document shows."""

from __future__ import annotations

import doctest
import re

from helpers import ROOT, Patch, need_nvrtc

TEXT = (ROOT / "docs" / "signatures.md").read_text()
EXAMPLES = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


def test_the_examples_print_what_is_shown(monkeypatch: Patch) -> None:
    need_nvrtc()
    monkeypatch.setenv("PTXRT_DEVICE", "sim:0")
    test = doctest.DocTestParser().get_doctest(EXAMPLES, {}, "docs/signatures.md", None, None)
    said: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=said.append)
    assert (result.failed, result.attempted > 40) == (0, True), "".join(said)


def test_every_type_and_every_form_is_there() -> None:
    from ptxrt.dtypes import BY_NAME

    assert set(BY_NAME) <= set(re.findall(r"`(\w+)`", TEXT))
    assert "```python" not in TEXT, "an example that no test runs"
