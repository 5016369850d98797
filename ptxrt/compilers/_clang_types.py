"""Asking clang for the types of a kernel's parameters: lines behind the text, and the answer among its warnings."""

from __future__ import annotations

import re
from collections import Counter

from ptxrt.compilers._cxx_types import TEMPLATE, parameter_types

__all__ = ["OPTIONS", "QUESTION", "answered", "question"]

QUESTION = "ptxrt"
"""What clang calls the file of the lines."""

OPTIONS = ("-Wuser-defined-warnings", "-Wno-error=user-defined-warnings")
"""So that there is an answer, and no error, whatever a caller says of warnings (but -w, which nothing undoes)."""

# diagnose_if has a group of its own, and is shown in a system header (the 3) too, where hardly another warning is. The
# blank lines end a last line that ends in a backslash; the indents tell clang's quotations of the lines from its words.
_LINES = """

# 1 "{file}" 3
 template <class T> void {template}() __attribute__((diagnose_if(true, "", "warning")));
 typedef __typeof__({template}<__typeof__(+({entry}))>()) {template}_answer;
# {line} "{program}"
"""
_SAID = re.compile(rf"^{QUESTION}:\d+:\d+: (?:fatal )?(?P<kind>\w+): .*\n?(?:[ \t].*\n?)*", re.MULTILINE)
_COUNTED = re.compile(r"^(?P<counts>\d+ (?:warning|error)s?(?: and \d+ errors?)?) generated", re.MULTILINE)


def question(text: str, entry: str, program: str) -> str:
    """Return the lines to put behind `text`, which clang knows as the file `program`."""
    line = text.count("\n") + 2
    return _LINES.format(file=QUESTION, template=TEMPLATE, entry=entry, line=line, program=program)


def answered(log: str) -> tuple[tuple[str, ...] | None, str]:
    """Return the types of the parameters, None where there is no answer, and the log as if nothing had been asked."""
    cut = Counter(match["kind"] for match in _SAID.finditer(log))

    def recounted(match: re.Match[str]) -> str:
        found = {
            kind: int(number) - cut[kind] for number, kind in re.findall(r"(\d+) (warning|error)", match["counts"])
        }
        left = [f"{number} {kind}{'s' * (number > 1)}" for kind, number in found.items() if number]
        return f"{' and '.join(left)} generated"

    rest = _COUNTED.sub(recounted, _SAID.sub("", log))
    return parameter_types(log), re.sub(r"^ generated.*\n?", "", rest, flags=re.MULTILINE).strip()
