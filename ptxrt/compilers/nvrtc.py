"""CUDA C++ text -> cubin or PTX, through NVRTC. Needs no device and no driver."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Mapping
from typing import Any, Literal

from ptxrt.compilers._binary import Binary
from ptxrt.compilers._cuda_headers import include_directories
from ptxrt.compilers._cxx_text import Defines, check_text, define_options
from ptxrt.compilers._logs import resource_reports
from ptxrt.compilers._nvrtc_faults import Job
from ptxrt.compilers.ptx_text import entries_of
from ptxrt.compilers.toolkit import check_arch, check_options, current_folder, exact_version, load_bindings
from ptxrt.errors import BackendUnavailable, InvalidArgument

__all__ = ["architectures", "available", "compile_cuda", "effective_options", "include_directories", "version"]


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
    """Return the options that the text is compiled with, less the architecture, and what stands for files.

    A cache key of CUDA text wants these and not `options` alone, since the headers found are part of the outcome:
    CUDA's, and what relative paths, among the options or in an ``#include "..."``, lead to from the current folder.
    """
    folder = (f"folder={current_folder()}",) if options or re.search(r"#\s*include|__has_include", text) else ()
    return (*_options(text, options, defines), *folder)


def _options(text: str, options: tuple[str, ...], defines: Defines | None) -> tuple[str, ...]:
    check_options(options)
    return (
        *define_options(defines or {}),
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
    headers: Mapping[str, str] | None = None,
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
    headers
        Texts that stand for header files: name, as an ``#include`` spells it -> text.

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
    check_text(text, kernel, "CUDA")
    given = _options(text, options, defines)
    target = f"-arch={arch}" if output == "cubin" else f"-arch=compute_{arch[3:]}"
    # ptxas tells registers and spills only when asked to; asking changes no instruction.
    verbose = ("--ptxas-options=-v",) if output == "cubin" else ()
    library = _library()
    compiler = f"NVRTC {version()}"
    job = Job(text, name or "kernel.cu", kernel, entry, arch, given, compiler, architectures())
    started = time.perf_counter()
    names, bodies = [[part.encode() for part in parts] for parts in ((headers or {}).keys(), (headers or {}).values())]
    status, program = library.nvrtcCreateProgram(
        text.encode(), job.program_name.encode(errors="replace"), len(names), bodies, names
    )
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
