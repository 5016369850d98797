"""Ctrl-C at any point of a load, or of an unload, leaves nothing behind that waits for ever or stays loaded."""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
from helpers import Patch
from texts import CONSTANT, source_for

import ptxrt
from ptxrt import Device, ModuleCache, runtime
from ptxrt.compilers import nvrtc

FOLDER = str(Path(runtime.__file__).parent)


@cache
def instructions(code: CodeType) -> tuple[dict[int, str], list[Any]]:
    """The name of each instruction by its offset, and the exception table (which 3.10 has not)."""
    found = dis.Bytecode(code)
    return {each.offset: each.opname for each in found}, list(getattr(found, "exception_entries", ()))


def handler(code: CodeType, offset: int) -> int | None:
    """Where an exception at this instruction goes."""
    return next((e.target for e in instructions(code)[1] if e.start <= offset < e.end), None)


def looks_for_signals(code: CodeType, offset: int) -> bool:
    name = instructions(code)[0][offset]
    return name.startswith("CALL") or name in ("RESUME", "JUMP_BACKWARD", "JUMP_ABSOLUTE")


def interrupted(work: Callable[[], Any], point: int) -> bool:
    """Run `work`, with a KeyboardInterrupt at the point of that number in ptxrt/runtime; False if it has not so many.

    A point is where the interpreter itself looks for signals: behind a call, at the beginning of a function, and where
    a loop turns round. Between the end of a ``with`` block and its ``__exit__`` it does not look, so there is none.

    Before the first point `work` must have run as number 0, where nothing happens: from 3.12 on a function's
    instructions are traced from its second run on, and from 3.13 on if no thread has run it untraced since.
    """
    count = 0
    last: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            code, before = frame.f_code, last.get(frame, 0)
            last[frame] = frame.f_lasti
            if looks_for_signals(code, before) and handler(code, before) == handler(code, frame.f_lasti):
                count += 1
                if count == point:
                    raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        last.clear()
    return False


def in_a_thread(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in another thread, which a lock that is still held does not let in."""
    results: list[Any] = []

    def run() -> None:
        results.append(work())

    thread = threading.Thread(target=interrupted, args=(run, 0), daemon=True)
    thread.start()
    thread.join(10)
    assert results, "the load waits for ever, or has failed"
    return results[0]


@pytest.fixture
def driver(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> list[int]:
    """The device's driver with a compiler that is done at once; the number of modules that are loaded there."""
    compiled: dict[str, Any] = {}
    compile_, load_, unload_ = device.backend.compile, device.backend.load, device.backend.unload
    loaded = [0]

    def compile_once(language: Any, text: Any, arch: Any, **how: Any) -> Any:
        if text not in compiled:
            compiled[text] = compile_(language, text, arch, **how)
        return compiled[text]

    def load(*how: Any) -> Any:
        loaded[0] += 1
        return load_(*how)

    def unload(*how: Any) -> None:
        loaded[0] -= 1
        unload_(*how)

    for name, call in (("compile", compile_once), ("load", load), ("unload", unload)):
        monkeypatch.setattr(device.backend, name, call)
    return loaded


def load(device: Device, value: int) -> ptxrt.Kernel:
    source = source_for(CONSTANT, device, name=f"constant{value}", value=value)
    return ptxrt.load(source, "constant", "u32* out", device)


def runs(device: Device, value: int) -> bool:
    out = ptxrt.zeros(1, np.uint32, device)
    load(device, value).launch(1, 1, out)
    return int(out.to_host()[0]) == value


def names(cache: ModuleCache) -> list[str | None]:
    return [entry.name for entry in cache.entries()]


def test_an_interrupted_load_leaves_nothing(device: Device, clean_modules: ModuleCache, driver: list[int]) -> None:
    interrupted(lambda: load(device, 70), 0)
    clean_modules.clear()
    before, point, lost, stopped = driver[0], 0, 0, True
    while stopped:
        point += 1
        stopped = interrupted(lambda: load(device, 70), point)
        assert in_a_thread(lambda: runs(device, 70)), point
        clean_modules.clear()
        assert "constant70" not in names(clean_modules), point
        lost += driver[0] - before
        before = driver[0]
    assert point > 50
    # One point is left: the driver has loaded the module, and its handle is on the way to who unloads it.
    assert lost <= 1


def test_an_interrupted_load_of_a_text_with_a_header_leaves_no_module_of_before(
    device: Device, clean_modules: ModuleCache, monkeypatch: Patch, tmp_path: Path
) -> None:
    if device.kind != "hip" and (reason := nvrtc.available()):
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    header, compiled, compile_ = Path("value.h"), {}, device.backend.compile
    text = '#include "value.h"\nextern "C" __global__ void k(unsigned* out) { *out = VALUE; }\n'

    def compile_once(*what: Any, **how: Any) -> Any:
        held = header.read_text()
        if held not in compiled:
            compiled[held] = compile_(*what, **how)
        return compiled[held]

    def kernel() -> Any:
        return ptxrt.load(ptxrt.KernelSource.hip(text), "k", "u32* out", device)

    def value() -> Any:
        out = ptxrt.zeros(1, np.uint32, device)
        kernel().launch(1, 1, out)
        return int(out.to_host()[0])

    monkeypatch.setattr(device.backend, "compile", compile_once)
    header.write_text("#define VALUE 70\n")
    interrupted(kernel, 0)
    point, stopped = 0, True
    while stopped:
        point += 1
        clean_modules.clear()
        header.write_text("#define VALUE 70\n")
        stopped = interrupted(kernel, point)
        header.write_text("#define VALUE 71\n")
        assert in_a_thread(value) == 71, point
    assert point > 50


@pytest.mark.parametrize("work", ["clear", "trim", "unload"])
def test_an_interrupted_unload_leaves_nothing_behind(
    device: Device, clean_modules: ModuleCache, driver: list[int], work: str
) -> None:
    def use() -> None:
        if work == "unload":
            clean_modules.unload(next(each.digest for each in clean_modules.entries() if each.name == "constant71"))
        else:
            getattr(clean_modules, work)()

    before, point, stopped = driver[0], -1, True
    while stopped or point == 0:
        point += 1
        clean_modules.max_modules = 512
        for value in (71, 72):
            assert in_a_thread(partial(runs, device, value)), point
        clean_modules.max_modules = len(clean_modules.entries()) - 2
        stopped = interrupted(use, point)
        clean_modules.clear()
        assert not {"constant71", "constant72"} & set(names(clean_modules)), point
        assert driver[0] == before, point
    assert point > 5
