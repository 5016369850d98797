"""CUDA C++ text -> cubin or PTX, through NVRTC. Needs no device and no driver."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from ptxrt.compilers._binary import Binary
from ptxrt.compilers._cuda_headers import include_directories
from ptxrt.compilers._cxx_text import Defines, check_text, define_options, program_name
from ptxrt.compilers._cxx_types import TEMPLATE, parameter_types, typed
from ptxrt.compilers._included import Included, may_include, watched, within
from ptxrt.compilers._logs import resource_reports
from ptxrt.compilers._nvrtc_faults import Job, missing_headers
from ptxrt.compilers._nvrtc_lines import line_option, written
from ptxrt.compilers._nvrtc_program import Outcome, compile_program
from ptxrt.compilers._options import NVRTC, include_folders, macro_lines
from ptxrt.compilers.ptx_text import entries_of
from ptxrt.compilers.toolkit import check_arch, current_folder, exact_version, load_bindings
from ptxrt.compilers.variables import variables_of
from ptxrt.errors import BackendUnavailable, InvalidArgument
from ptxrt.places import Sources
from ptxrt.symbols import demangled

__all__ = ["architectures", "available", "compile_cuda", "effective_options", "include_directories", "version"]

_PROGRAM = "kernel.cu"
_TYPES_HEADER = "ptxrt/types.h"
# As a kernel, because NVRTC looks up the names of kernels and variables alone.
_TYPES = f"template <class T> __global__ void {TEMPLATE}();\n"
_WITHOUT_DECLTYPE = re.compile(r"--?std=(?:c|gnu)\+\+(?:98|03)")


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


def effective_options(options: tuple[str, ...] = (), name: str | None = None) -> tuple[str, ...]:
    """Return what a cache key wants of a text besides its digest: all options, and what else shows in the binary.

    The source's name is ``__FILE__``, and its folder is where quoted headers are looked for first. With options the
    binary may tell the current folder (``-lineinfo``). What the headers hold is the part of :attr:`Binary.included`.
    """
    folder = (f"folder={current_folder()}",) if options else ()
    return (*_options(options), *_own_folders(), *folder, f"name={program_name(name, _PROGRAM)}")


def _options(options: tuple[str, ...], defines: Defines | None = None) -> tuple[str, ...]:
    NVRTC.check(options)
    return (*define_options(defines or {}), *options)


def _own_folders() -> tuple[str, ...]:
    return tuple(f"--include-path={folder}" for folder in include_directories())


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
    before: tuple[str, ...] = (),
    line_info: bool = False,
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
        The source's name, for messages and ``__FILE__``; quoted headers are looked for in its folder first.
    output
        ``"cubin"`` or ``"ptx"``.
    headers
        Texts that stand for header files: name, as an ``#include`` spells it -> text.
    before
        Those of `headers` that are included before the text.
    line_info
        With ``output="ptx"``: whether the PTX is to have the lines that its instructions were made of, and the result
        the texts that those count in. It changes no instruction.

    Raises
    ------
    CompileError
        The text, an option or the architecture is at fault; has the log, and the line where there is one.
    InvalidArgument
        `arch` is no architecture's name; `options` is no tuple of str, or has one that may name an architecture or a
        file; a macro's name or value cannot be one; `output` is neither of the two.
    BackendUnavailable
        NVRTC is not installed.
    """
    check_arch(arch)
    if output not in ("cubin", "ptx"):
        raise InvalidArgument(op="compile", argument="output", expected="'cubin' or 'ptx'", given=repr(output))
    kernel = entry or name
    check_text(text, kernel, "CUDA")
    given = (*(f"--pre-include={header}" for header in before), *_options(options, defines))
    target = f"-arch={arch}" if output == "cubin" else f"-arch=compute_{arch[3:]}"
    # ptxas tells registers and spills only when asked to, which changes no instruction, and when it runs: beside a
    # driver NVRTC takes its outcome from the driver's cache (13.0 on an H100).
    verbose = ("--ptxas-options=-v", "--no-cache") if output == "cubin" else ()
    numbered = line_info and output == "ptx"
    library = _library()
    job = Job(text, program_name(name, _PROGRAM), kernel, entry, arch, given, f"NVRTC {version()}", architectures())
    job.check_entry()
    virtual, asked, first = dict(headers or {}), [], []
    if entry is not None:
        asked = [entry]
        if not any(map(_WITHOUT_DECLTYPE.fullmatch, options)):
            asked.append(f"{TEMPLATE}<decltype(+({entry}))>")
            virtual[_TYPES_HEADER] = _TYPES
            first = [f"--pre-include={_TYPES_HEADER}"]
    reads = may_include("".join([macro_lines(given), text, *(virtual[header] for header in before)]), options)
    started = time.perf_counter()
    outcome = compile_program(
        library,
        text,
        job.program_name,
        # CUDA's own folders behind the caller's, so that -I wins.
        (target, *verbose, *(line_option(options) if numbered else ()), *first, *given, *_own_folders()),
        headers=virtual,
        expressions=asked,
        list_files=reads,
    )
    if reads:
        job = replace(job, included=_included(job, outcome, options))
    if outcome.fault:
        raise job.refused(outcome.log, outcome.ptx, outcome.fault)
    code, sources = outcome.ptx if output == "ptx" else outcome.cubin, Sources()
    if numbered:
        ours = include_directories()
        own = [path for path in outcome.opened or () if not within(path, ours)]
        code, sources = written(code, job.program_name, text, own)
    if not code:
        raise job.error(f"{job.compiler} made no {output}: an option asks for something else", outcome.log)
    # The cubin does not tell a float from an int; the PTX on the way to it does.
    ptx = outcome.ptx.decode(errors="replace")
    entries = entries_of(ptx)
    symbols = {found: found for found in entries}
    if entry is not None:
        symbol = outcome.symbols[0] or entry
        if symbol not in entries:
            raise job.no_entry("the text knows the name, but as no __global__ function", outcome.log)
        symbols[entry] = symbol
        entries[symbol] = typed(entries[symbol], parameter_types(demangled(outcome.symbols[-1] or "")))
    return Binary(
        code=code,
        kind=output,
        arch=arch,
        compiler=job.compiler,
        options=given,
        log=outcome.log,
        seconds=time.perf_counter() - started,
        entries=entries,
        reports=resource_reports(outcome.log),
        symbols=symbols,
        included=job.included,
        sources=sources,
        variables=variables_of(ptx, signed=False),
        ptx=outcome.ptx.decode(errors="replace"),
    )


def _included(job: Job, outcome: Outcome, options: tuple[str, ...]) -> Included:
    """Return which files the compile depends on."""
    if outcome.opened is None:
        return Included(known=False)
    ours = include_directories()
    return watched(
        macro_lines(job.options) + job.text,
        outcome.opened,
        own=[os.path.dirname(job.program_name), ""],  # an option's header is looked for in the current folder
        search=[*include_folders(options), *ours],
        fixed=ours,
        missing=missing_headers(outcome.log) if outcome.fault else (),
    )


@functools.lru_cache(maxsize=1)
def _library() -> Any:
    return load_bindings("nvrtc", "nvrtcVersion", "NVRTC")
