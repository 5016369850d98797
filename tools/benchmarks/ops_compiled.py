"""torch.compile for the rows of the benchmark of the ops: ahead in many processes, then in the one that measures.

What is compiled lies in torch's cache on disk, where the measuring process finds it; ours in ptxrt's.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from types import FrameType
from typing import Any

from benchmarks.ops_calls import Call
from benchmarks.ops_cases import Case
from benchmarks.ops_torch import Row, make_row
from ptxrt.ops.framework.plan import forget_plans

__all__ = ["compile_ahead", "compiled", "faults", "limited", "speak"]


def compile_ahead(chosen: Sequence[Case], languages: Sequence[str], seconds: float) -> int:
    """Compile what the cases need, some cases a process; give up after `seconds`. Return how many were finished."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # or each process would have processes of its own
    count, done = min(len(chosen), max(1, (os.cpu_count() or 2) - 2)), 0
    with get_context("spawn").Pool(count) as pool, suppress(TimeoutError, StopIteration), limited(seconds):
        finished = pool.imap_unordered(partial(_ahead, languages), chosen)
        while True:
            next(finished)
            done += 1
    return done


def _ahead(languages: Sequence[str], case: Case) -> None:
    with suppress(Exception):  # which the process that measures raises again, and shows
        import torch  # noqa: PLC0415 (not a dependency of ptxrt)

        torch.cuda.empty_cache()  # of the case before
        row = make_row(torch, case)
        for language in languages:
            with suppress(Exception):
                speak(language)
                row.ours()
        if not faults(case):
            compiled(torch, row)()
        torch.cuda.synchronize()


def faults(case: Case) -> bool:
    """Return whether torch's compiled kernel accesses memory that is not its own, which ends a process's use of a GPU.

    compute-sanitizer's memcheck shows it with torch 2.11.0; not every run meets memory that is not there.
    """
    return case.op == "local_response_norm" and case.channels_last


def compiled(torch: Any, row: Row) -> Call:
    """Return torch's call, compiled for this shape alone. What cannot be compiled as a whole raises."""
    settings: Any = import_module("torch._functorch.config")
    settings.donated_buffer = False  # else a backward cannot run twice
    torch._dynamo.reset()  # else one code runs uncompiled from its ninth shape on
    return row.peer(partial(torch.compile, dynamic=False, fullgraph=True))


def speak(language: str) -> None:
    """Let the ops select kernels in this language from now on."""
    os.environ["PTXRT_LANGUAGE"] = language
    forget_plans()


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the body if it takes longer; in the main thread alone."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not within {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
