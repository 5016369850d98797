"""Saying why NVRTC refused a text: the line at fault, the entry that is not there, what to write instead."""

from __future__ import annotations

import re

from ptxrt.compilers._cuda_headers import header_fix
from ptxrt.compilers._cxx_text import CxxJob
from ptxrt.compilers._logs import Problem, nvrtc_problems, ptxas_problems, summary
from ptxrt.compilers._nvrtc_names import name_fix
from ptxrt.errors import CompileError, numbered_excerpt

__all__ = ["Job", "missing_headers"]

_MISSING = re.compile(r'(?:could not|cannot) open source file "(.+?)"')
_NAME_MAP = "__nv_name_map"  # the file in which NVRTC looks a name expression up


def missing_headers(log: str) -> list[str]:
    """Return the headers that NVRTC did not find."""
    return _MISSING.findall(log)


class Job(CxxJob):
    """One compile by NVRTC."""

    def refused(self, log: str, ptx: bytes, status: str) -> CompileError:
        """Return the error for a compile that failed with this log, and PTX if it came so far."""
        problems = nvrtc_problems(log)
        own = [p for p in problems if p.file != _NAME_MAP]
        # What it says of the name expression behind the text is no line that anybody wrote.
        shown = log.partition(f"\n{_NAME_MAP}")[0] if own else ""
        if self.entry is not None and problems and not own:
            return self.no_entry(problems[0].text, shown)
        if own:
            return self.front_end(own, shown, self._fix(own), at_end="At end of source" in log)
        in_ptx = ptxas_problems(log)
        if not in_ptx:
            return self.error(f"{self.compiler} refused the text: {log or status}", log)
        # Inline asm: the line counts in the PTX that NVRTC generated, which the caller has never seen.
        if in_ptx[0].line is not None:
            log += "\n\nThe generated PTX:\n" + numbered_excerpt(ptx.decode(errors="replace"), in_ptx[0].line)
        return self.error(f"ptxas, in the PTX generated from the text: {summary(in_ptx)}", log)

    def _fix(self, problems: list[Problem]) -> str | None:
        for problem in problems:
            if header := _MISSING.search(problem.text):
                return header_fix(header[1])
            if "invalid value for --gpu-architecture" in problem.text:
                return f"{self.compiler} makes no code for {self.arch}; it knows {', '.join(self.architectures)}"
        # Where a parameter's type is unknown, what is said first is of the kernel's attribute.
        told = problems if problems[0].text.startswith('attribute "__global__" does not apply') else problems[:1]
        fixes = (name_fix(problem.text, self._line(problem)) for problem in told)
        return self.hint() or next(filter(None, fixes), None)

    def _line(self, problem: Problem) -> str:
        lines = self.text.split("\n") if problem.file == self.program_name else []
        return lines[problem.line - 1] if problem.line and problem.line <= len(lines) else ""
