"""PTX text -> cubin, through nvJitLink. Needs no device and no driver.

PTX goes through here and not through the driver, because a driver refuses PTX newer than itself, while it loads the
cubin that a newer nvJitLink made of the same text.
"""

from __future__ import annotations

import functools
import time
from typing import Any

from ptxrt.compilers._binary import Binary
from ptxrt.compilers._logs import resource_reports
from ptxrt.compilers._nvjitlink_faults import explain
from ptxrt.compilers._options import NVJITLINK
from ptxrt.compilers._shared_alignment import misplaced
from ptxrt.compilers.ptx_text import require_entry, scan
from ptxrt.compilers.toolkit import check_arch, exact_version, load_bindings
from ptxrt.compilers.variables import variables_of
from ptxrt.errors import BackendUnavailable, CompileError

__all__ = ["architectures", "available", "check_options", "compile_ptx", "version"]

check_options = NVJITLINK.check
"""Raise InvalidArgument for options that are no tuple of str, or that are not known to name no file."""


def available() -> str | None:
    """Return None where nvJitLink can be used, else the reason in words, with what to install."""
    try:
        _library()
    except BackendUnavailable as error:
        return str(error)
    return None


@functools.lru_cache(maxsize=1)
def version() -> str:
    """Return nvJitLink's version, ``"13.5.37"``, or ``"13.5"`` where the third number cannot be told."""
    return exact_version("nvJitLink", *_library().version())


@functools.lru_cache(maxsize=1)
def architectures() -> tuple[str, ...]:
    """Return the architectures that this nvJitLink makes code for, without suffixes; empty where it does not tell.

    nvJitLink has no call for it. From 13.0 on it refuses an unknown architecture at once, so asking for each in turn
    is an answer, got once; before that it accepts any.
    """
    library = _library()
    if library.version()[0] < 13:
        return ()
    found = []
    for number in range(75, 160):
        try:
            library.destroy(library.create(1, [f"-arch=sm_{number}"]))
        except library.nvJitLinkError:
            continue
        found.append(f"sm_{number}")
    return tuple(found)


def compile_ptx(
    text: str, arch: str, options: tuple[str, ...] = (), *, name: str | None = None, entry: str | None = None
) -> Binary:
    """Compile PTX to a cubin.

    The same text, architecture and options give the same bytes (tried with 12.9, 13.0 and 13.5).

    Parameters
    ----------
    text
        The PTX.
    arch
        The architecture of the cubin: ``"sm_90"``, ``"sm_90a"``.
    options
        Options of nvJitLink: ``("-fma=0", "-Xptxas=-O1")``. Of -O it knows 0 and 3 only. -ftz, -prec-div and
        -prec-sqrt it applies to LTO code only: PTX says these at each instruction.
    name
        The source's name, for messages.
    entry
        An entry that must be there.

    Raises
    ------
    CompileError
        The text or an option is at fault; has the log, and the line where there is one. Or dynamic shared memory does
        not begin where its ``.align`` says, which nvJitLink 13.0 does not tell.
    InvalidArgument
        `arch` is no architecture's name; `options` is no tuple of str, or has one that may name an
        architecture or a file.
    BackendUnavailable
        nvJitLink is not installed.
    """
    check_arch(arch)
    check_options(options)
    kernel = entry or name
    header = scan(text, kernel)
    if entry is not None:
        require_entry(entry, header.entries, kernel, arch, text=text)
    library = _library()
    # -verbose makes the log tell registers and spills; it changes no instruction, only a note in the cubin.
    # -no-cache: where there is a driver nvJitLink keeps results of its own, and on a hit the log tells nothing.
    given = [f"-arch={arch}", "-verbose", "-no-cache", *options]
    if "-fma=0" in options:
        # nvJitLink itself applies -fma to LTO code only and, given PTX, ignores it in silence (12.9 to 13.5).
        given.append("-Xptxas=-fmad=false")
    started = time.perf_counter()
    try:
        handle = library.create(len(given), given)
    except library.nvJitLinkError as error:
        raise _refused(library, error, kernel, arch, options) from None
    try:
        code, log = _link(library, handle, text, name or entry or "ptx")
    except _Failed as failed:
        ours = f"nvJitLink {version()}"
        fault = explain(failed.log, failed.status, header=header, arch=arch, ours=ours, architectures=architectures)
        raise CompileError(
            fault.message,
            kernel=kernel,
            log=failed.log,
            options=options,
            arch=arch,
            line=min(fault.line, len(text.splitlines())) if fault.line else None,  # a cut text fails behind its end
            source=text,
            fix=fault.fix,
            expected=fault.expected,
            given=fault.given,
        ) from None
    finally:
        library.destroy(handle)
    if wrong := misplaced(code, text):
        raise CompileError(
            f"nvJitLink {version()} does not keep the alignment of {wrong.variable}: "
            f"in {wrong.entry} it begins at byte {wrong.place} of shared memory, behind the entry's own variables",
            kernel=kernel,
            log=log,
            options=options,
            arch=arch,
            line=wrong.line,
            source=text,
            expected=f"a multiple of {wrong.align}",
            given=str(wrong.place),
            fix="Declare .align 16 and round the address up in the kernel, or take a newer nvJitLink: 13.5 keeps it",
        )
    return Binary(
        code=code,
        kind="cubin",
        arch=arch,
        compiler=f"nvJitLink {version()}",
        options=options,
        log=log,
        seconds=time.perf_counter() - started,
        entries=header.entries,
        reports=resource_reports(log),
        symbols={entry_name: entry_name for entry_name in header.entries},
        variables=variables_of(text),
        ptx=text,
    )


class _Failed(Exception):
    """A link that failed: nvJitLink's status and its error log."""

    def __init__(self, status: str, log: str) -> None:
        super().__init__(status, log)
        self.status = status
        self.log = log


@functools.lru_cache(maxsize=1)
def _library() -> Any:
    return load_bindings("nvjitlink", "version", "nvJitLink")


def _link(library: Any, handle: int, text: str, name: str) -> tuple[bytes, str]:
    data = text.encode()
    try:
        library.add_data(handle, library.InputType.PTX, data, len(data), name)
        library.complete(handle)
        code = bytearray(library.get_linked_cubin_size(handle))
        library.get_linked_cubin(handle, code)
    except library.nvJitLinkError as error:
        log = _log(handle, library.get_error_log_size, library.get_error_log)
        raise _Failed(str(error), log) from None
    return bytes(code), _log(handle, library.get_info_log_size, library.get_info_log)


def _log(handle: int, size: Any, get: Any) -> str:
    length = size(handle)
    if not length:
        return ""
    buffer = bytearray(length)
    get(handle, buffer)
    return buffer.decode(errors="replace").rstrip("\0 \n")


def _refused(library: Any, error: Exception, kernel: str | None, arch: str, options: tuple[str, ...]) -> CompileError:
    """Say why no link could be begun: there is no handle then, hence no log."""
    ours = f"nvJitLink {version()}"
    culprits = [option for option in options if not _creates(library, f"-arch={arch}", option)]
    if _creates(library, f"-arch={arch}") and options:
        which = " ".join(culprits or options)
        return CompileError(
            f"{ours} does not take the options {which} ({error})",
            kernel=kernel,
            options=options,
            arch=arch,
            given=which,
        )
    known = architectures()
    span = f"; it makes code for {', '.join(known)}" if known else ""
    return CompileError(
        f"{ours} makes no code for {arch} ({error}){span}",
        kernel=kernel,
        options=options,
        arch=arch,
        expected=known or None,
        given=arch,
        fix="For an older GPU install an older nvJitLink (12.x still knows sm_50 to sm_72), for a newer one a newer",
    )


def _creates(library: Any, *options: str) -> bool:
    try:
        library.destroy(library.create(len(options), list(options)))
    except library.nvJitLinkError:
        return False
    return True
