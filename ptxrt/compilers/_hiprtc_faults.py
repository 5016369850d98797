"""Saying why hipRTC refused a text, or ended over it: the line at fault, the entry that is not there, the targets."""

from __future__ import annotations

import re

from ptxrt.compilers._clang_types import QUESTION
from ptxrt.compilers._cxx_text import CxxJob
from ptxrt.compilers._hiprtc_process import Lost
from ptxrt.compilers._logs import Problem
from ptxrt.compilers.toolkit import standard_header_fix
from ptxrt.errors import CompileError

__all__ = ["OWN_OPTIONS", "Job", "clang_problems", "missing_headers", "plain_log"]

# The dialect of NVRTC, which takes the same texts; hipRTC before ROCm 7 has an older one. And without the machine's own
# headers, which NVRTC has not, and which no cache key could name.
OWN_OPTIONS = ("-std=c++17", "-nostdlibinc")

_CLANG = re.compile(
    r"^(?:(?P<file>[^\s:][^:\n]*):(?P<line>\d+):\d+: |clang(?:-\d+)?: |ld\.lld: )?(?:fatal )?error: (?P<text>.+?)\s*$",
    re.MULTILINE,
)
_MISSING = re.compile(r"'(.+)' file not found")
# The compiler library works in a folder of its own, another one for each compile.
_FOLDER = re.compile(r"(?:/[^\s/:]+)*/comgr-[\w-]+/(?:input|include)/")


def plain_log(log: str) -> str:
    """Return the log without the folder that the compile ran in, so that equal texts have equal logs."""
    return _FOLDER.sub("", log)


def clang_problems(log: str) -> list[Problem]:
    """Return the errors that clang or its linker printed, in their order."""
    return [Problem(m["text"], int(m["line"]) if m["line"] else None, m["file"]) for m in _CLANG.finditer(log)]


def missing_headers(log: str) -> list[str]:
    """Return the headers that clang did not find."""
    return [match[1] for problem in clang_problems(log) if (match := _MISSING.fullmatch(problem.text))]


class Job(CxxJob):
    """One compile by hipRTC."""

    def refused(self, log: str, status: str) -> CompileError:
        """Return the error for a compile that failed with this log."""
        problems = clang_problems(log)
        if problems:
            return self.front_end(problems, log, self._fix(problems))
        if log:
            return self.error(f"{self.compiler} refused the text: {status}", log, fix=self.hint())
        return self.error(f"{self.compiler} refused {self.arch} without a word ({status})", fix=self._ways_out())

    def unknown_target(self) -> CompileError:
        """Return the error for a processor that the compiler does not list."""
        return self.error(
            f"{self.compiler} makes no code for {self.arch}",
            fix=f"It knows {', '.join(self.architectures)}",
            given=self.arch,
        )

    def lost(self, lost: Lost, seconds: float) -> CompileError:
        """Return the error for a worker that ended, or had to be ended, while it compiled."""
        error = self._late(lost, seconds) if lost.how == "late" else self._ended(lost)
        error.compiler_lost = True
        return error

    def _late(self, lost: Lost, seconds: float) -> CompileError:
        return self.error(
            f"{self.compiler} did not end within {seconds:g} s and was stopped",
            lost.words,
            fix="PTXRT_HIPRTC_TIMEOUT sets the seconds",
        )

    def _ended(self, lost: Lost) -> CompileError:
        last = f"its last words: {lost.words}" if lost.words else "it left no word"
        fix = self._ways_out()
        if "SIGKILL" in lost.status:  # nothing ends itself so
            fix = "The system kills so where memory runs out"
        elif re.match(r"hipRTC [0-6]\.", self.compiler) and not self.architectures:
            fix = f"Before ROCm 7 it ends so for a target that it does not know. {fix}"
        return self.error(f"{self.compiler} ended while it compiled: {lost.status}; {last}", lost.words, fix=fix)

    def behind_the_text(self, log: str) -> bool:
        """Return whether all errors are in our question, or on lines that hipRTC added, where it looks a name up."""
        last = self.text.count("\n") + (not self.text.endswith("\n"))
        problems = clang_problems(log)
        return bool(problems) and all(
            p.file == QUESTION or (p.file == self.program_name and (p.line or 0) > last) for p in problems
        )

    def _fix(self, problems: list[Problem]) -> str | None:
        for problem in problems:
            if header := _MISSING.fullmatch(problem.text):
                name = header[1]
                if name.startswith(("rocm", "hip")):
                    return f"{name} comes with ROCm's headers; name their folder: ('-I/opt/rocm/include',)"
                return standard_header_fix(name) or f"Add its folder to the options: ('-I/folder/of/{name}',)"
        return self.hint()

    def _ways_out(self) -> str:
        """Return what to try where the compiler gives no reason: something else than each thing that may be one."""
        processor, _, flags = self.arch.partition(":")
        ways = ["Try again"]
        if not self.architectures:  # it could not be asked; of those that it lists it refuses none
            ways.append("for another processor")
        if flags:
            ways.append(f"for {processor} with other flags or none")
        options = [option for option in self.options if option not in OWN_OPTIONS and not option.startswith("-D")]
        if options:
            ways.append(f"without the option{'s' * (len(options) > 1)} {' '.join(options)}")
        return ", or ".join(ways)
