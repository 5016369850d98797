"""One compile by hipRTC: which requests its worker gets, and what comes of their answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ptxrt.compilers._clang_types import OPTIONS, answered, question
from ptxrt.compilers._code_object import CodeObject, read_code_object
from ptxrt.compilers._cxx_types import typed
from ptxrt.compilers._hip_headers import virtual_headers
from ptxrt.compilers._hiprtc_faults import Job, clang_problems, missing_headers, plain_log
from ptxrt.compilers._included import Included, may_include, watched
from ptxrt.compilers._options import include_folders, macro_lines
from ptxrt.compilers.toolkit import current_folder
from ptxrt.errors import InvalidArgument

__all__ = ["HiprtcCompile", "HiprtcOutcome"]


@dataclass(frozen=True)
class HiprtcOutcome:
    """What a compile gave: the compiler's words, the code, what the code tells, names by entry, the files it read."""

    log: str
    code: bytes
    found: CodeObject
    symbols: dict[str, str]
    included: Included


class HiprtcCompile:
    """The one or more requests of one compile.

    Parameters
    ----------
    job
        The compile.
    options
        The caller's own.
    folder
        Where quoted headers are looked for first.
    ask
        Has a worker answer a request.
    """

    def __init__(
        self,
        job: Job,
        options: tuple[str, ...],
        folder: str,
        ask: Callable[[dict[str, Any]], tuple[dict[str, Any], bytes]],
    ) -> None:
        self.job = job
        self.options = options
        self.folder = folder
        self.ask = ask

    def run(self) -> HiprtcOutcome:
        """Compile, or raise CompileError."""
        entry = self.job.entry
        # hipRTC looks an expression up in lines that it adds to the text, and in the binary they stay. The name of
        # an extern "C" kernel needs none.
        plain = entry is None or entry.isidentifier()
        status, log, code, lowered = self._compile(None if plain else entry)
        if self.job.behind_the_text(log):
            bare_status, bare_log, *_ = self._compile(None, question_too=False)
            if not self._failed(bare_status, bare_log):
                raise self.job.no_entry(clang_problems(log)[0].text, answered(log)[1] or log)
            status, log = bare_status, bare_log  # a brace that is never closed shows there, too
        types, log = answered(log)
        if self._failed(status, log):
            raise self.job.refused(log, status)
        found = self._read(code, log)
        if plain and entry is not None and entry not in found.entries:
            status, log, code, lowered = self._compile(entry)
            if self._failed(status, log):
                why = clang_problems(log)[0].text if clang_problems(log) else status
                raise self.job.no_entry(why, answered(log)[1] or log)
            types, log = answered(log)
            found = self._read(code, log)
        symbols = {symbol: symbol for symbol in found.entries}
        if entry is not None:
            symbol = lowered or entry
            if symbol not in found.entries:
                raise self.job.no_entry("the text knows the name, but as no __global__ function", log)
            symbols[entry] = symbol
            found.entries[symbol] = typed(found.entries[symbol], types)
        return HiprtcOutcome(log, code, found, symbols, self.job.included)

    def _compile(self, expression: str | None, *, question_too: bool = True) -> tuple[str, str, bytes, str | None]:
        """Return status, log, code, and the name in the binary of the expression."""
        job = self.job
        text, options = job.text, [f"--offload-arch={job.arch}", *job.options, f"-iquote{self.folder}"]
        if question_too and job.entry is not None:
            text += question(text, job.entry, job.program_name)
            # -w would silence what is asked for, too.
            options = ["-Wno-everything" if option == "-w" else option for option in (*options, *OPTIONS)]
        reads = may_include(macro_lines(job.options) + job.text, self.options)
        answer, code = self.ask(
            {
                "do": "compile",
                "text": text,
                "name": job.program_name,
                "options": options,
                "headers": virtual_headers(self.options),
                "expression": expression,
                "folder": current_folder(),
                "list_files": reads,
            }
        )
        if reads:
            self.job = replace(job, included=self._included(answer["opened"] or [], answer["log"]))
        return answer["status"], plain_log(answer["log"]), code, answer["lowered"]

    def _included(self, opened: list[str], log: str) -> Included:
        own = [path for path in opened if plain_log(path) != path]  # in the compile's own folder
        if not own:  # hipRTC reads a header of its own at least
            return Included(known=False)
        search = [self.folder, *include_folders(self.options)]
        opened = [path for path in opened if path not in own]
        text = macro_lines(self.job.options) + self.job.text
        return watched(text, opened, own=[""], search=search, missing=missing_headers(log))

    @staticmethod
    def _failed(status: str, log: str) -> bool:
        # 7.2 says "error: unsupported option", drops the option, and calls it a success.
        return status != "HIPRTC_SUCCESS" or bool(clang_problems(log))

    def _read(self, code: bytes, log: str) -> CodeObject:
        if not code:
            raise self.job.error(f"{self.job.compiler} made no code: an option asks for something else", log)
        try:
            return read_code_object(code)
        except InvalidArgument as error:
            raise self.job.error(f"{self.job.compiler} made no code object: {error}", log) from error
