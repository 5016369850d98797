"""CUDA C++ text -> cubin or PTX, through NVRTC. Needs no device and no driver."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping
from typing import Any, Literal

from ptxrt.compilers.binary import Binary
from ptxrt.compilers.cuda_headers import include_directories
from ptxrt.compilers.logs import resource_reports
from ptxrt.compilers.nvrtc_faults import Job
from ptxrt.compilers.ptx_text import entries_of
from ptxrt.compilers.toolkit import check_arch, check_options, exact_version, load_bindings
from ptxrt.errors import BackendUnavailable, CompileError, InvalidArgument

__all__ = ["architectures", "available", "compile_cuda", "effective_options", "include_directories", "version"]

Defines = Mapping[str, "str | int | None"]


def available() -> str | None:
    """Return None where NVRTC can be used, else the reason in words, with what to install."""
    try:
        _library()
    except BackendUnavailable as error:
        return str(error)
    return None


@functools.lru_cache(maxsize=1)
def version() -> str:
    """Return NVRTC's version, ``"13.5.37"``, or ``"13.5"`` where the third number cannot be told."""
    _, major, minor = _library().nvrtcVersion()
    return exact_version("nvrtc", major, minor)


@functools.lru_cache(maxsize=1)
def architectures() -> tuple[str, ...]:
    """Return the architectures that this NVRTC makes code for, without suffixes."""
    status, numbers = _library().nvrtcGetSupportedArchs()
    return () if int(status) else tuple(f"sm_{number}" for number in numbers)


def effective_options(text: str, options: tuple[str, ...] = (), defines: Defines | None = None) -> tuple[str, ...]:
    """Return the options that the text is compiled with, less the architecture: defines, the caller's, header paths.

    A cache key of CUDA text wants these and not `options` alone, since the headers found are part of the outcome.
    """
    check_options(options)
    return (
        *_define_options(defines or {}),
        *options,
        # Behind the caller's own, so that -I wins; and only where an #include could use them.
        *(f"--include-path={d}" for d in (include_directories() if "#include" in text else ())),
    )


def compile_cuda(
    text: str,
    arch: str,
    options: tuple[str, ...] = (),
    *,
    defines: Defines | None = None,
    entry: str | None = None,
    name: str | None = None,
    output: Literal["cubin", "ptx"] = "cubin",
) -> Binary:
    """Compile CUDA C++.

    Parameters
    ----------
    text
        The C++.
    arch
        The architecture: ``"sm_90"``, ``"sm_90a"``. With ``output="ptx"`` the virtual one of the same number.
    options
        Options of NVRTC: ``("--std=c++20", "-use_fast_math")``.
    defines
        Macros: name -> value, None for one without a value.
    entry
        The kernel, as a C++ name expression: ``"saxpy"``, ``"ns::scale<float, 4>"``. It makes NVRTC instantiate a
        template, and ``symbols[entry]`` of the result is its name in the binary. None: all kernels that are no
        templates.
    name
        The source's name, for messages.
    output
        ``"cubin"`` or ``"ptx"``.

    Raises
    ------
    CompileError
        The text, an option or the architecture is at fault; has the log, and the line where there is one.
    InvalidArgument
        `arch` is no architecture's name; `options` is no tuple of str, or names an architecture or an output file; a
        macro's name or value cannot be one; `output` is neither of the two.
    BackendUnavailable
        NVRTC is not installed.
    """
    check_arch(arch)
    if output not in ("cubin", "ptx"):
        raise InvalidArgument(op="compile", argument="output", expected="'cubin' or 'ptx'", given=repr(output))
    kernel = entry or name
    _check_text(text, kernel)
    given = effective_options(text, options, defines)
    target = f"-arch={arch}" if output == "cubin" else f"-arch=compute_{arch[3:]}"
    # ptxas tells registers and spills only when asked to; asking changes no instruction.
    verbose = ("--ptxas-options=-v",) if output == "cubin" else ()
    library = _library()
    compiler = f"NVRTC {version()}"
    job = Job(text, name or "kernel.cu", kernel, entry, arch, given, compiler, architectures())
    started = time.perf_counter()
    status, program = library.nvrtcCreateProgram(text.encode(), job.program_name.encode(errors="replace"), 0, [], [])
    if int(status):
        raise job.error(f"{compiler} took no text: {_words(library, status)}")
    try:
        if entry is not None:
            library.nvrtcAddNameExpression(program, entry.encode())
        flags = [option.encode() for option in (target, *verbose, *given)]
        (status,) = library.nvrtcCompileProgram(program, len(flags), flags)
        printed = _read(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog, program)
        log = printed.decode(errors="replace").strip("\0 \n")
        ptx = _read(library.nvrtcGetPTXSize, library.nvrtcGetPTX, program)
        if int(status):
            raise job.refused(log, ptx, _words(library, status))
        code = ptx if output == "ptx" else _read(library.nvrtcGetCUBINSize, library.nvrtcGetCUBIN, program)
        lowered = library.nvrtcGetLoweredName(program, entry.encode())[1] if entry is not None else None
    finally:
        library.nvrtcDestroyProgram(program)
    if not code:
        raise job.error(f"{compiler} made no {output}: an option asks for something else", log)
    # The cubin does not tell a float from an int; the PTX on the way to it does.
    entries = entries_of(ptx.decode(errors="replace"))
    symbols = {found: found for found in entries}
    if entry is not None:
        symbol = lowered.decode() if lowered else entry
        if symbol not in entries:
            raise job.no_entry("the text knows the name, but as no __global__ function", log)
        symbols[entry] = symbol
    return Binary(
        code=code,
        kind=output,
        arch=arch,
        compiler=compiler,
        options=given,
        log=log,
        seconds=time.perf_counter() - started,
        entries=entries,
        reports=resource_reports(log),
        symbols=symbols,
    )


@functools.lru_cache(maxsize=1)
def _library() -> Any:
    return load_bindings("nvrtc", "nvrtcVersion", "NVRTC")


def _words(library: Any, status: Any) -> str:
    text = library.nvrtcGetErrorString(status)[1]
    return text.decode() if isinstance(text, bytes) else str(text)


def _read(size: Any, get: Any, program: Any) -> bytes:
    """Return one of a program's texts, less the NUL at its end; empty where there is none."""
    status, length = size(program)
    # The bindings write into the bytes object itself. Python shares the objects of length 0 and 1 through the whole
    # process, so those are never handed out: length 1 is an empty text's NUL.
    if int(status) or length < 2:
        return b""
    buffer = bytes(length)
    (status,) = get(program, buffer)
    return b"" if int(status) else buffer.removesuffix(b"\0")


def _check_text(text: object, kernel: str | None) -> None:
    if not isinstance(text, str):
        given = type(text).__name__
        raise CompileError(f"CUDA text must be a str, not {given}", kernel=kernel, expected="str", given=given)
    if not text.strip():
        raise CompileError("the CUDA text is empty", kernel=kernel, expected="CUDA C++", given=repr(text[:20]))
    # NVRTC takes a C string: it would stop reading at a NUL, in silence. A lone surrogate has no UTF-8.
    if odd := re.search("[\0\ud800-\udfff]", text):
        line = text.count("\n", 0, odd.start()) + 1
        what = "NUL character" if odd[0] == "\0" else f"lone surrogate {odd[0]!r}"
        raise CompileError(f"{what} on line {line}", kernel=kernel, line=line)


def _define_options(defines: Defines) -> tuple[str, ...]:
    options = []
    for macro, value in sorted(defines.items(), key=lambda item: str(item[0])):
        if not isinstance(macro, str) or not re.fullmatch(r"[A-Za-z_]\w*(\([\w\s,.]*\))?", macro, re.ASCII):
            raise InvalidArgument(op="compile", argument="defines", expected="a macro's name", given=repr(macro))
        if not isinstance(value, (str, int, type(None))) or (isinstance(value, str) and set(value) & set("\n\r\0")):
            expected = f"{macro}: a str of one line, an int or None"
            raise InvalidArgument(op="compile", argument="defines", expected=expected, given=repr(value))
        # int() makes 1 of True, which C++ could not read as a name.
        text = str(int(value)) if isinstance(value, int) else value
        options.append(f"-D{macro}" if text is None else f"-D{macro}={text}")
    return tuple(options)
