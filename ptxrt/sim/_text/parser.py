"""PTX text to a module: directives, variables, functions. Statements inside functions are in body.py."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ptxrt.errors import CompileError, Unsupported
from ptxrt.sim._text.body import BodyReader
from ptxrt.sim._text.declarations import Declarations, Module
from ptxrt.sim._text.expressions import TokenStream
from ptxrt.sim._text.lexer import Source, Token, outline, tokenize
from ptxrt.sim._text.syntax import Body, Function, Register, Tuple, Variable
from ptxrt.sim._text.targets import TARGETS, VERSIONS, parameter_bytes, since

__all__ = ["MAX_PTX_VERSION", "parse_module"]

MAX_PTX_VERSION = max(VERSIONS)
"""The newest ``.version`` that the machine accepts."""

_MAX_CLUSTER = 16
_LINKING = (".visible", ".extern", ".weak", ".common")
_SPACES = (".global", ".const", ".shared", ".local", ".param")
_FUNCTION_LIMITS = (".maxntid", ".reqntid", ".minnctapersm", ".maxnreg", ".maxnctapersm", ".reqnctapercluster",
                    ".explicitcluster", ".maxclusterrank", ".noreturn", ".blocksareclusters")  # fmt: skip

_LASTING = re.compile(r"\.(?<![\w.:]\.)(?:global|const)\b")
"""A declaration of such a variable; of an instruction, the dot follows a word."""


def parse_module(source: Source) -> Module:
    """Read what stands at the top level of a text; the bodies of its functions are read when they are asked for.

    Raises
    ------
    CompileError
        For the first fault there.
    Unsupported
        For a construct that is right but that the machine does not run.
    """
    if not source.text.strip():
        raise CompileError("the text is empty", kernel=source.name, line=1)
    stream = TokenStream(source, outline(source))
    if stream.now.kind == "end":
        raise CompileError("the text has nothing but comments", kernel=source.name, line=1, source=source.text)
    reader = _ModuleReader(stream)
    reader.read()
    return reader.module


class _ModuleReader:
    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        self.source = stream.source
        self.module = Module(stream.source)
        self.declare = Declarations(stream, self.module)

    def read(self) -> None:
        self.header()
        while self.stream.now.kind != "end":
            self.statement()

    def header(self) -> None:
        token = self.stream.now
        if token.text != ".version":
            self.source.fail(token.line, "not PTX: a PTX text begins with .version")
        self.stream.take()
        number = self.stream.take()
        if not re.fullmatch(r"\d{1,9}\.\d{1,9}", number.text):
            self.source.fail(number.line, f".version wants two numbers such as 8.0, not {number.text:.30}")
        major, minor = (int(part) for part in number.text.split("."))
        if (major, minor) > MAX_PTX_VERSION:
            newest = ".".join(map(str, MAX_PTX_VERSION))
            raise self.source.error(
                number.line,
                f".version {major}.{minor} is newer than {newest}, the newest that the sim reads; "
                f"write .version {newest} or less",
                expected=f"at most {newest}",
                given=f"{major}.{minor}",
            )
        if (major, minor) < min(VERSIONS):
            oldest = ".".join(map(str, min(VERSIONS)))
            self.source.fail(number.line, f".version {number.text} is older than {oldest}, the oldest that is compiled")
        if (major, minor) not in VERSIONS:
            self.source.fail(number.line, f"there is no PTX .version {number.text}")
        self.module.version = (major, minor)
        token = self.stream.now
        if token.text != ".target":
            self.source.fail(token.line, "the .version must be followed by .target")
        self.stream.take()
        target = self.stream.word("an architecture such as sm_80")
        if not re.fullmatch(r"(sm|compute)_\d+[af]?", target.text):
            self.source.fail(target.line, f".target {target.text} is not an architecture such as sm_80 or sm_90a")
        first = since(target.text)
        if first is None:
            numbers = sorted(int(name) for name in TARGETS if name.isdigit() and int(name) >= 50)
            there_are = ", ".join(f"sm_{number}" for number in numbers)
            self.source.fail(target.line, f"there is no .target {target.text}; there are {there_are}, some with a or f")
        if first > self.module.version:
            wanted = ".".join(map(str, first))
            raise self.source.error(
                target.line,
                f".version {major}.{minor} does not know .target {target.text}; write .version {wanted} or more",
                expected=f".version {wanted} or more",
                given=f"{major}.{minor}",
            )
        self.module.target = target.text
        while self.stream.accept(","):
            self.stream.word("a target option such as debug")
        if self.stream.accept(".address_size"):
            line = self.stream.now.line
            self.module.address_size = self.declare.integer()
            if self.module.address_size not in (32, 64):
                self.source.fail(line, f".address_size must be 32 or 64, not {self.module.address_size}")
            if self.module.address_size == 32:
                raise self.source.error(
                    line,
                    "the machine has addresses of 64 bits, as GPUs from sm_90 on have; write .address_size 64",
                    expected=64,
                    given=32,
                )

    def statement(self) -> None:
        token = self.stream.now
        linking = ""
        while self.stream.now.text in _LINKING:
            linking = self.stream.take().text
        word = self.stream.now.text
        if word in (".entry", ".func"):
            self.stream.take()
            self.function(word == ".entry", linking, token)
        elif word in _SPACES[:3]:
            self.stream.take()
            self.variables(word[1:], linking == ".extern", token)
        elif self.stream.now.kind == "place" and word.startswith(".file"):
            self.source.places.file(word)
            self.stream.skip_line()
        elif word == ".section":
            self.skip_section()
        elif word == ".pragma":
            self.skip_statement()
        elif word in (".version", ".target", ".address_size"):
            self.source.fail(token.line, f"{word} stands at the head of a text, once")
        elif word in (".tex", ".alias", ".callprototype") or self.stream.now.text in (".texref", ".samplerref"):
            raise Unsupported(f"line {token.line}: the sim does not run {word}", op="compile", argument=word)
        else:
            self.stream.fail(f"expected a directive, found {self.stream.found()}")

    def skip_statement(self) -> None:
        while not self.stream.accept(";"):
            if self.stream.take().kind == "end":
                self.stream.fail("a statement that never ends")

    def skip_section(self) -> None:
        self.stream.take()
        has_names = self.stream.now.text == ".debug_str"
        while self.stream.now.text[:1] != "{":
            if self.stream.take().kind == "end":
                self.stream.fail(".section without a body")
        if self.stream.now.kind == "braces" and not has_names:
            self.stream.take()
            return
        self.stream.open()
        self.stream.expect("{")
        label, data = "", bytearray()
        while not self.stream.accept("}"):
            token = self.stream.take()
            if token.kind == "end":
                self.stream.fail("'{' is never closed")
            if has_names and self.stream.accept(":"):
                self.source.places.name(label, bytes(data))
                label, data = token.text, bytearray()
            elif has_names and re.fullmatch(r"\d{1,3}", token.text):
                data.append(int(token.text) & 255)
        self.source.places.name(label, bytes(data))

    def check_new(self, name: str, line: int) -> None:
        if name in self.module.functions or name in self.module.variables:
            self.source.fail(line, f"{name} is declared twice")

    def variables(self, space: str, extern: bool, token: Token) -> None:
        # Each entry places the shared ones that its code names, once that is decoded; each memory places the others.
        for variable in self.declare.variables(space, lambda size, align: 0, extern=extern):
            self.check_new(variable.name, variable.line)
            if extern and variable.size and space != "shared":
                raise Unsupported(
                    f"line {token.line}: {variable.name} is .extern, and the sim links no other text",
                    op="compile",
                    argument=variable.name,
                )
            self.module.variables[variable.name] = variable
            if space == "shared":
                self.module.shared.append(variable)

    def function(self, is_entry: bool, linking: str, token: Token) -> None:
        returns: tuple[Variable | Register, ...] = ()
        reader = BodyReader(self.stream, self.module)
        if not is_entry and self.stream.now.text == "(":
            returns = reader.formals(entry=False)
        name = self.stream.word("the name of a function")
        self.source.entry = name.text
        earlier = self.module.functions.get(name.text)
        if name.text in self.module.variables or (earlier is not None and earlier.defined):
            self.source.fail(name.line, f"{name.text} is declared twice")
        function = Function(name.text, is_entry, name.line)
        function.returns = returns
        if self.stream.now.text == "(":
            function.params = reader.formals(entry=is_entry)
            used = max((p.offset + p.size for p in function.params if isinstance(p, Variable)), default=0)
            if is_entry and used > (most := parameter_bytes(self.module.version, self.module.target)):
                why = "" if most > 4352 else ", or 32764 from .version 8.1 on for sm_70 and newer"
                self.source.fail(name.line, f"the parameters have {used} bytes; {most} is the most{why}")
        while self.stream.now.text in _FUNCTION_LIMITS or self.stream.now.text == ".pragma":
            self.limit(function)
        if self.stream.accept(";"):
            self.module.functions.setdefault(name.text, function)
        elif self.stream.now.kind != "braces":
            reader.body(name.text, reader.scope.names)  # which says what is wrong: they are not there, or not closed
        else:
            self.module.functions[name.text] = function
            self.braces(function, reader.scope.names)
        self.source.entry = None

    def braces(self, function: Function, names: Mapping[str, Register | Variable | Tuple]) -> None:
        """Note how to read a body, and read it if it declares variables that live as long as the module."""
        _, text, line, _ = self.stream.take()
        module, source = self.module, self.source.within(function.name)

        def read() -> Body:
            stream = TokenStream(source, tokenize(source, text, line))
            return BodyReader(stream, module).body(function.name, names)

        function.text, function.read = text, read
        self.source.places.enter(function.line, function.name, text, line)
        if _LASTING.search(text):
            function.body  # noqa: B018

    def limit(self, function: Function) -> None:
        directive = self.stream.take()
        if directive.text == ".pragma":
            self.skip_statement()
            return
        if directive.text in (".noreturn", ".explicitcluster", ".blocksareclusters"):
            return
        sizes = [self.declare.integer()]
        while self.stream.accept(","):
            sizes.append(self.declare.integer())
        if directive.text in (".maxntid", ".reqntid", ".reqnctapercluster"):
            if len(sizes) > 3 or min(sizes) < 1:
                self.source.fail(directive.line, f"{directive.text} wants one to three positive sizes")
            x, y, z = (*sizes, 1, 1)[:3]
            if directive.text == ".reqnctapercluster":
                if x * y * z > _MAX_CLUSTER:
                    self.source.fail(directive.line, f"a cluster has at most {_MAX_CLUSTER} blocks, not {x * y * z}")
                function.cluster = (x, y, z)
                return
            function.max_threads = x * y * z
            if directive.text == ".reqntid":
                function.required_block = (x, y, z)
