"""C++ as a kernel's text: checks before a compiler sees it, its macros, and the entries that it seems to have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ptxrt.compilers._included import Included
from ptxrt.compilers._logs import Problem, summary
from ptxrt.compilers.ptx_text import file_hint, listed, suggestion
from ptxrt.errors import CompileError, InvalidArgument, shown

__all__ = ["CxxJob", "Defines", "check_text", "define_options", "hidden", "program_name"]

Defines = Mapping[str, "str | int | None"]

_HIDDEN = re.compile(
    r'R"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"|//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"?', re.DOTALL
)
_PARENTHESES = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
# What may stand between: a return type, __launch_bounds__(256, 2), __attribute__((amdgpu_waves_per_eu(2))).
_GLOBAL = re.compile(r"__global__\b(?:\s*__\w+__\s*" + _PARENTHESES + r"|[^;{}()])*?\b([A-Za-z_]\w*)\s*\(")


def check_text(text: object, kernel: str | None, language: str) -> None:
    """Raise CompileError for what is no text of `language`, ``"CUDA"`` or ``"HIP"``, before a compiler sees it."""
    if not isinstance(text, str):
        given = type(text).__name__
        raise CompileError(f"{language} text must be a str, not {given}", kernel=kernel, expected="str", given=given)
    if not text.strip():
        raise CompileError(
            f"the {language} text is empty", kernel=kernel, expected=f"{language} C++", given=repr(text[:20])
        )
    # The compilers take a C string: they would stop reading at a NUL, in silence. A lone surrogate has no UTF-8.
    if odd := re.search("[\0\ud800-\udfff]", text):
        line = text.count("\n", 0, odd.start()) + 1
        what = "NUL character" if odd[0] == "\0" else f"lone surrogate {odd[0]!r}"
        raise CompileError(f"{what} on line {line}", kernel=kernel, line=line)


def define_options(defines: Defines) -> tuple[str, ...]:
    """Return ``-D`` options in an order of their own.

    Raises
    ------
    InvalidArgument
        For a macro's name or value that cannot be one.
    """
    options = []
    for macro, value in sorted(defines.items(), key=lambda item: str(item[0])):
        if not isinstance(macro, str) or not re.fullmatch(r"[A-Za-z_]\w*(\([\w\s,.]*\))?", macro, re.ASCII):
            raise InvalidArgument(op="compile", argument="defines", expected="a macro's name", given=shown(macro))
        odd = isinstance(value, str) and re.search("[\n\r\0\ud800-\udfff]", value)
        large = isinstance(value, int) and not -(2**63) <= value < 2**64
        if odd or large or not isinstance(value, (str, int, type(None))):
            expected = f"{macro}: a str of one line, an int or None; an int has 64 bits"
            raise InvalidArgument(op="compile", argument="defines", expected=expected, given=shown(value))
        # int() makes 1 of True, which C++ could not read as a name.
        text = str(int(value)) if isinstance(value, int) else value
        options.append(f"-D{macro}" if text is None else f"-D{macro}={text}")
    return tuple(options)


def program_name(name: str | None, default: str) -> str:
    """Return what a compiler calls a source: its name, in characters that a path may have."""
    return re.sub(r"[\0-\x1f\ud800-\udfff]", "?", name or default)


@dataclass(frozen=True)
class CxxJob:
    """One compile: what it was asked, and by which compiler."""

    text: str
    program_name: str
    kernel: str | None
    entry: str | None
    arch: str
    options: tuple[str, ...]
    compiler: str
    architectures: tuple[str, ...]
    included: Included = field(default_factory=Included)

    def check_entry(self) -> None:
        """Raise CompileError for an entry that could not be handed to a compiler."""
        if self.entry is not None and re.search("[\0-\x1f\ud800-\udfff]", self.entry):
            raise self.no_entry("no C++ expression has these characters")

    def no_entry(self, why: str, log: str = "") -> CompileError:
        """Return the error for an entry that the text does not define."""
        names = list(dict.fromkeys(self._globals()))
        there_are = f"the text has {listed(names)}" if names else "the text has no __global__ function"
        bare = re.split(r"[<(]", self.entry or "")[0].split("::")[-1].strip()
        rest = (self.entry or "").partition(bare)[2] if bare else ""
        # NVRTC's words and clang's, for a template without its arguments among others.
        which = f"(void (*)(its parameters' types)) {bare}"
        is_template = re.search(rf"\btemplate\s*<[^;{{}}]*\b{re.escape(bare)}\s*\(", hidden(self.text))
        if "function template" in why or ("overloaded function" in why and is_template):
            fix: str | None = f"Name its template arguments: {bare}<...>"
        elif "overloaded function" in why and self._globals().count(bare) == 1:
            fix = f"The compiler has functions of that name: call the kernel otherwise, or say which is meant: {which}"
        elif "overloaded function" in why:
            fix = f"Say which of them: {which}"
        elif bare in names and ("undefined" in why or "undeclared" in why):
            fix = f"If it stands in a namespace, name that: namespace::{bare}{rest}"
        else:
            fix = suggestion(f"{bare}{rest}", [f"{name}{rest}" for name in names if name != bare])
        message = f"no entry {self.entry!r} ({why}); {there_are}"
        return self.error(message, log, fix=fix, expected=names, given=self.entry)

    def front_end(
        self, problems: Sequence[Problem], log: str, fix: str | None, *, at_end: bool = False
    ) -> CompileError:
        """Return the error for what a compiler's front end says; `at_end` of the text, where it names no file."""
        first, line = problems[0], None
        message = summary(problems)
        if first.file == self.program_name:
            line = first.line
        elif first.file is not None:
            message = f"{first.file}, {message}"
        elif at_end:
            line = len(self.text.splitlines())
            message = f"at the end of the text: {message}"
        else:
            message = f"{self.compiler}: {message}"
        return self.error(message, log, line=line, fix=fix)

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
        error = CompileError(
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
        error.included = self.included
        return error

    def hint(self) -> str | None:
        """Return what to do about a text that is PTX, or a file's name; None where it is neither."""
        if re.search(r"^\s*\.version\s+\d", self.text, re.MULTILINE):
            return "It looks like PTX: use KernelSource.ptx"
        return file_hint(self.text)

    def _globals(self) -> list[str]:
        """Return the name of each ``__global__`` function, as often as there is one."""
        return [match[1] for match in _GLOBAL.finditer(hidden(self.text))]


def hidden(text: str) -> str:
    """Return a text without its comments and strings."""
    return _HIDDEN.sub(" ", text)
