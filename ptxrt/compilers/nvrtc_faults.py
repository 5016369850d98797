"""Saying why NVRTC refused a text: the line at fault, the entry that is not there, the header to install."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ptxrt.compilers.cuda_headers import header_fix
from ptxrt.compilers.logs import Problem, nvrtc_problems, ptxas_problems, summary
from ptxrt.compilers.ptx_text import suggestion
from ptxrt.errors import CompileError, numbered_excerpt

__all__ = ["Job"]

_HIDDEN = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"?', re.DOTALL)
# What may stand between: a return type, __launch_bounds__(256, 2), other attributes.
_GLOBAL = re.compile(r"__global__\b(?:\s*__\w+__\s*\([^)]*\)|[^;{}()])*?\b([A-Za-z_]\w*)\s*\(")
_NAME_MAP = "__nv_name_map"  # the file in which NVRTC looks a name expression up


@dataclass(frozen=True)
class Job:
    """One compile: what it was asked, and by which compiler."""

    text: str
    program_name: str
    kernel: str | None
    entry: str | None
    arch: str
    options: tuple[str, ...]
    compiler: str
    architectures: tuple[str, ...]

    def refused(self, log: str, ptx: bytes, status: str) -> CompileError:
        """Return the error for a compile that failed with this log, and PTX if it came so far."""
        problems = nvrtc_problems(log)
        own = [p for p in problems if p.file != _NAME_MAP]
        if self.entry is not None and problems and not own:
            return self.no_entry(problems[0].text, log)
        if own:
            return self._front_end(own, log)
        in_ptx = ptxas_problems(log)
        if not in_ptx:
            return self.error(f"{self.compiler} refused the text: {log or status}", log)
        # Inline asm: the line counts in the PTX that NVRTC generated, which the caller has never seen.
        if in_ptx[0].line is not None:
            log += "\n\nThe generated PTX:\n" + numbered_excerpt(ptx.decode(errors="replace"), in_ptx[0].line)
        return self.error(f"ptxas, in the PTX generated from the text: {summary(in_ptx)}", log)

    def no_entry(self, why: str, log: str = "") -> CompileError:
        """Return the error for an entry that the text does not define."""
        names = self._global_names()
        there_are = f"the text has {', '.join(names)}" if names else "the text has no __global__ function"
        bare = re.split(r"[<(]", self.entry or "")[0].split("::")[-1].strip()
        return self.error(
            f"no entry {self.entry!r} ({why}); {there_are}",
            log,
            fix=f"Name its template arguments: {bare}<...>"
            if "function template" in why
            else suggestion(bare, [name for name in names if name != bare]),
            expected=names,
            given=self.entry,
        )

    def error(
        self,
        message: str,
        log: str = "",
        *,
        line: int | None = None,
        fix: str | None = None,
        expected: object = None,
        given: object = None,
    ) -> CompileError:
        """Return a CompileError that knows all there is to know of this compile."""
        return CompileError(
            message,
            kernel=self.kernel,
            log=log,
            options=self.options,
            arch=self.arch,
            line=line,
            source=self.text,
            fix=fix,
            expected=expected,
            given=given,
        )

    def _front_end(self, problems: list[Problem], log: str) -> CompileError:
        first, line = problems[0], None
        message = summary(problems)
        if first.file == self.program_name:
            line = first.line
        elif first.file is not None:
            message = f"{first.file}, {message}"
        elif "At end of source" in log:
            line = len(self.text.splitlines())
            message = f"at the end of the text: {message}"
        else:
            message = f"{self.compiler}: {message}"
        return self.error(message, log, line=line, fix=self._fix(problems))

    def _fix(self, problems: list[Problem]) -> str | None:
        for problem in problems:
            if header := re.search(r'(?:could not|cannot) open source file "(.+?)"', problem.text):
                return header_fix(header[1])
            if "invalid value for --gpu-architecture" in problem.text:
                return f"{self.compiler} makes no code for {self.arch}; it knows {', '.join(self.architectures)}"
        if re.search(r"^\s*\.version\s+\d", self.text, re.MULTILINE):
            return "It looks like PTX: use KernelSource.ptx"
        return None

    def _global_names(self) -> list[str]:
        plain = _HIDDEN.sub(" ", self.text)
        return list(dict.fromkeys(match[1] for match in _GLOBAL.finditer(plain)))
