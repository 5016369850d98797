"""What ``ptxrt show FILE`` prints: a user's text as PTX (for AMD as it stands), and what its compiler says of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ptxrt.commands._sections import parameters, sections
from ptxrt.commands.tables import printable
from ptxrt.compilers import Binary, ParamInfo, hip_on_nvrtc, hiprtc, nvjitlink
from ptxrt.compilers.ptx_text import output_arch, require_entry, scan
from ptxrt.errors import BackendUnavailable, CompileError, InvalidArgument, PtxrtError
from ptxrt.runtime.inference import declared_signature, untyped_signature
from ptxrt.runtime.source import KernelSource
from ptxrt.symbols import demangled, function_name

__all__ = ["run"]

_Say = Callable[[str], None]
_Complain = Callable[[str, int], int]


def run(path: str, entry: str | None, arch: str, say: _Say, complain: _Complain) -> int:
    """Print the kernels of a file, or one of them, as they are compiled for `arch`; return the exit code.

    Raises
    ------
    InvalidArgument
        For a file that cannot be read, or of a kind that ptxrt does not know, and for CUDA C++ on AMD.
    CompileError
        The text does not compile, or has no such entry.
    BackendUnavailable
        There is no compiler for a text in C++. Of PTX the text and its parameters are shown without one.
    """
    source = KernelSource.from_file(path)
    if arch.startswith("gfx"):
        if source.language != "hip":
            raise InvalidArgument(
                op="show",
                argument="--arch",
                expected=f"an architecture of NVIDIA for {path}, such as sm_90",
                given=arch,
            )
        binary = hiprtc.compile_hip(source.text, arch, entry=entry, name=source.name)
        return _tell(source.text, binary, source, entry, say, complain)
    if source.language == "ptx":
        return _ptx(source, entry, arch, say, complain)
    binary = _cxx(source, entry, arch)
    return _tell(binary.ptx or "", binary, source, entry, say, complain)


def _ptx(source: KernelSource, entry: str | None, arch: str, say: _Say, complain: _Complain) -> int:
    header = scan(source.text, source.name)
    if entry is not None:
        require_entry(entry, header.entries, source.name, text=source.text)
    try:
        target = output_arch(header.target, arch)
        binary = nvjitlink.compile_ptx(source.text, target, name=source.name, entry=entry)
    except BackendUnavailable as error:
        names = [entry] if entry else list(header.entries)
        lines = [
            line
            for name in names
            for line in (name, *parameters(header.entries[name].params, _in_ptx(header.entries[name].params)), "")
        ]
        _print(source.text, lines, say)
        return complain(f"no resources for {arch}: {error}", 0)
    return _tell(source.text, binary, source, entry, say, complain)


def _cxx(source: KernelSource, entry: str | None, arch: str) -> Binary:
    binary = hip_on_nvrtc.compile_one(source.language, source.text, arch, entry=entry, name=source.name)
    if not binary.entries:
        raise CompileError(
            "the text has no kernel that could be shown",
            kernel=source.name,
            fix="A template is instantiated for the kernel that is asked for: --entry 'scale<float>'",
        )
    return binary


def _tell(text: str, binary: Binary, source: KernelSource, entry: str | None, say: _Say, complain: _Complain) -> int:
    lines: list[str] = []
    missing: list[str] = []
    for symbol in [binary.symbols[entry]] if entry else list(binary.entries):
        behind, without = sections(binary, symbol)
        shown = demangled(symbol)
        lines += [shown if shown == symbol else f"{shown}, {symbol}"]
        signature = _signature(source, binary, symbol, entry)
        lines += ["", "Parameters", *parameters(binary.entries[symbol].params, signature), *behind, ""]
        missing += without
    _print(text, lines, say)
    return complain(missing[0], 0) if missing else 0


def _signature(source: KernelSource, binary: Binary, symbol: str, entry: str | None) -> str:
    """Return the signature that the text tells, which a load takes; empty where it tells none."""
    if source.language == "ptx":
        return _in_ptx(binary.entries[symbol].params)
    try:
        return str(declared_signature(source, entry or function_name(symbol), binary))
    except PtxrtError:
        return ""


def _in_ptx(params: Sequence[ParamInfo] | None) -> str:
    return "" if params is None else untyped_signature(params)


def _print(text: str, lines: Sequence[str], say: _Say) -> None:
    behind = "\n".join(f"// {printable(line)}".rstrip() for line in lines)
    say(text.rstrip("\n") + "\n\n" + behind.rstrip("/\n "))
