"""What a compile is asked for, its outcome from the store on disk, and the compile itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ptxrt.errors import CompileError, Unsupported
from ptxrt.events import CacheEvent, emit, marked
from ptxrt.store import Request, current

if TYPE_CHECKING:
    from ptxrt.backends import Backend
    from ptxrt.compilers import Binary
    from ptxrt.runtime.source import KernelSource

__all__ = ["compiled", "request_for", "stored"]


def request_for(
    backend: Backend, source: KernelSource, entry: str, options: tuple[str, ...], arch: str, device: str
) -> Request:
    """Return what is asked of the backend's compiler; `device` is for messages.

    Raises
    ------
    Unsupported
        If the backend does not take the source's language.
    """
    if source.language not in backend.languages:
        raise Unsupported(
            op="load",
            argument="source",
            expected=f"a text in {' or '.join(backend.languages)} on {device}",
            given=source.language,
        )
    return Request(
        backend=backend.name,
        language=source.language,
        source=source.digest,
        name=source.name,
        defines=source.defines,
        entry=entry,
        options=options,
        arch=arch,
        compiler=backend.compiler(source.language),
        effective=() if source.language == "ptx" else backend.effective_options(source.language, options, source.name),
    )


def stored(backend: Backend, source: KernelSource, request: Request, compile: Callable[[], Binary]) -> Binary:
    """Return the outcome of a request: from the store, or compiled and stored, where there is a store for it."""
    store = current() if source.language in backend.compiled_languages else None
    return compile() if store is None else store.binary(request, source.text, compile)


def compiled(backend: Backend, source: KernelSource, request: Request) -> Binary:
    """Compile.

    Raises
    ------
    CompileError
        The text is at fault.
    """
    began, error = time.perf_counter(), None
    try:
        with marked(f"compile {request.shown}"):
            return _compiled(backend, source, request)
    except CompileError as failed:
        error = str(failed).partition("\n")[0]
        raise
    finally:
        took = time.perf_counter() - began
        emit(CacheEvent("compile", "compiler", request.key(), request.shown, took, error))


def _compiled(backend: Backend, source: KernelSource, request: Request, *, again: bool = True) -> Binary:
    """Compile; once more if a header may have been written meanwhile: nobody knows which text the compiler saw."""
    began = time.time()
    try:
        binary = backend.compile(
            source.language,
            source.text,
            request.arch,
            options=request.options,
            defines=dict(source.defines),
            name=source.name,
            # A PTX module serves all its entries; whether the one asked for is there is seen later.
            entry=request.entry if source.language != "ptx" else None,
        )
    except CompileError as error:
        if not (again and error.included and error.included.changed_since(began)):
            raise
    else:
        if not (again and binary.included.changed_since(began)):
            return binary
    return _compiled(backend, source, request, again=False)
