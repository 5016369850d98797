"""The module cache of a device: hits, one compile for all who wait, failures, bounds, what it tells of itself."""

from __future__ import annotations

import gc
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch, refused
from texts import CONSTANT, HEAD, SAXPY, SAXPY_SIGNATURE, source_for

import ptxrt
from ptxrt import Device, KernelSource, ModuleCache
from ptxrt.errors import shown


def constant(value: int, device: Device) -> KernelSource:
    return source_for(CONSTANT, device, name=f"constant{value}", value=value)


def load(device: Device, value: int) -> ptxrt.Kernel:
    return ptxrt.load(constant(value, device), "constant", "u32* out", device)


def run(kernel: ptxrt.Kernel) -> int:
    out = ptxrt.zeros(1, np.uint32, kernel.device)
    kernel.launch(1, 1, out)
    return int(out.to_host()[0])


def test_the_second_load_is_a_hit(device: Device, clean_modules: ModuleCache) -> None:
    before = clean_modules.stats()
    first = load(device, 1)
    between = clean_modules.stats()
    second = load(device, 1)
    after = clean_modules.stats()
    assert (between.misses - before.misses, between.compiles - before.compiles) == (1, 1)
    assert (after.hits - between.hits, after.misses - between.misses, after.compiles - between.compiles) == (1, 0, 0)
    assert after.compile_seconds == between.compile_seconds > before.compile_seconds
    assert run(first) == run(second) == 1


def test_text_options_and_arch_are_in_the_key(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    options = ("-O3",)
    before = clean_modules.stats().compiles
    with_options = ptxrt.load(constant(1, device), "constant", "u32* out", device, options)
    kernels = [load(device, 1), load(device, 2), with_options]
    assert clean_modules.stats().compiles == before + 3
    assert [run(k) for k in kernels] == [1, 2, 1]
    import dataclasses

    properties = dataclasses.replace(device.properties, arch="sm_80")
    monkeypatch.setattr(clean_modules, "properties", properties)
    keys = {clean_modules._request(constant(1, device), "constant", ()).key()}
    monkeypatch.undo()
    keys.add(clean_modules._request(constant(1, device), "constant", ()).key())
    assert len(keys) == 2


def test_the_compilers_version_is_in_the_key(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    now = clean_modules._request(constant(1, device), "constant", ()).key()
    monkeypatch.setattr(device.backend, "compiler", lambda language: "nvJitLink 99.9")
    assert clean_modules._request(constant(1, device), "constant", ()).key() != now


def test_the_sources_name_is_not_in_the_key(device: Device, clean_modules: ModuleCache) -> None:
    before = clean_modules.stats().compiles
    for name in ("one", "two"):
        ptxrt.load(source_for(SAXPY, device, name=name), "saxpy", SAXPY_SIGNATURE, device)
    assert clean_modules.stats().compiles <= before + 1


def slow_compiles(monkeypatch: Patch, device: Device, *gates: threading.Event) -> list[str]:
    """Make each compile of a text wait for its gate (by the number that the text stores); return who compiled."""
    compile_, seen = device.backend.compile, []

    def compile_slowly(language: Any, text: Any, arch: Any, **how: Any) -> Any:
        seen.append(how["name"])
        for number, gate in enumerate(gates):
            if how["name"] == f"constant{number}":
                gate.wait(10)
        return compile_(language, text, arch, **how)

    monkeypatch.setattr(device.backend, "compile", compile_slowly)
    return seen


def in_threads(count: int, work: Any) -> tuple[list[threading.Thread], list[Any]]:
    results: list[Any] = [None] * count

    def run_one(index: int) -> None:
        try:
            results[index] = work(index)
        except ptxrt.PtxrtError as error:
            results[index] = error

    threads = [threading.Thread(target=run_one, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    return threads, results


def test_pain16_many_threads_one_compile(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    gate = threading.Event()
    seen = slow_compiles(monkeypatch, device, gate)
    before = clean_modules.stats()
    threads, results = in_threads(16, lambda _: load(device, 0))
    time.sleep(0.2)
    gate.set()
    for thread in threads:
        thread.join(20)
    after = clean_modules.stats()
    assert seen == ["constant0"]
    assert (after.misses - before.misses, after.hits - before.hits) == (1, 15)
    assert all(run(kernel) == 0 for kernel in results)


def test_pain16_other_keys_are_not_held_up(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    gate = threading.Event()
    slow_compiles(monkeypatch, device, gate)
    threads, _ = in_threads(1, lambda _: load(device, 0))
    try:
        assert run(load(device, 1)) == 1
        assert clean_modules.stats().modules >= 1
        clean_modules.entries()
    finally:
        gate.set()
        threads[0].join(20)


def test_threads_that_load_launch_clear_and_unload_are_independent(device: Device, clean_modules: ModuleCache) -> None:
    clean_modules.max_modules = 3
    turns = 8 if device.kind == "hip" else 40  # hipRTC takes its time for each miss

    def work(seed: int) -> bool:
        order = np.random.default_rng(seed).integers(0, 6, turns)
        for value in order:
            if run(load(device, 10 + int(value))) != 10 + value:
                return False
            if value == 0:
                clean_modules.clear()
        return True

    threads, results = in_threads(6, work)
    for thread in threads:
        thread.join(60)
    assert results == [True] * 6


BROKEN_PTX = KernelSource.ptx(HEAD + ".visible .entry broken() { nonsense; }", name="broken")
BROKEN_HIP = KernelSource.hip('\n\n\nextern "C" __global__ void broken() { nonsense; }', name="broken")


def broken(device: Device) -> KernelSource:
    return BROKEN_HIP if device.kind == "hip" else BROKEN_PTX


def test_pain26_a_failure_is_remembered_with_its_error(device: Device, clean_modules: ModuleCache) -> None:
    errors = []
    before = clean_modules.stats()
    for _ in range(3):
        with pytest.raises(ptxrt.CompileError) as caught:
            ptxrt.load(broken(device), "broken", "", device)
        errors.append(caught.value)
    after = clean_modules.stats()
    assert (after.compiles - before.compiles, after.failures - before.failures) == (1, 1)
    assert len({str(error) for error in errors}) == 1
    assert errors[1] is not errors[2]
    assert [error.line for error in errors] == [4, 4, 4]


def test_pain26_clear_forgets_failures(device: Device, clean_modules: ModuleCache) -> None:
    for _ in range(2):
        with pytest.raises(ptxrt.CompileError):
            ptxrt.load(broken(device), "broken", "", device)
        clean_modules.clear()
    assert not [entry for entry in clean_modules.entries() if entry.state == "failed"]
    before = clean_modules.stats().compiles
    with pytest.raises(ptxrt.CompileError):
        ptxrt.load(broken(device), "broken", "", device)
    assert clean_modules.stats().compiles == before + 1


def test_what_is_no_fault_of_a_text_is_retried(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(device.backend, "load", lambda *_: (_ for _ in ()).throw(ptxrt.OutOfDeviceMemory("full")))
        with pytest.raises(ptxrt.OutOfDeviceMemory):
            load(device, 20)
    assert clean_modules._request(constant(20, device), "constant", ()).key() not in clean_modules._slots
    assert run(load(device, 20)) == 20


def test_a_signal_handler_may_load_that_text(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    compile_ = device.backend.compile
    kernels: list[Any] = []

    def compile_interrupted(*args: Any, **how: Any) -> Any:
        if not kernels:
            kernels.append(None)
            kernels[0] = load(device, 22)
        return compile_(*args, **how)

    monkeypatch.setattr(device.backend, "compile", compile_interrupted)
    threads, results = in_threads(1, lambda _: load(device, 22))
    threads[0].join(20)
    assert run(results[0]) == run(kernels[0]) == 22


def test_a_lost_compiler_is_not_remembered(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    lost = ptxrt.CompileError("the compiler ended while it compiled")
    lost.compiler_lost = True
    before = clean_modules.stats()
    with monkeypatch.context() as patch:
        patch.setattr(device.backend, "compile", lambda *_, **__: (_ for _ in ()).throw(lost))
        with pytest.raises(ptxrt.CompileError, match="ended while it compiled"):
            load(device, 21)
    assert run(load(device, 21)) == 21
    after = clean_modules.stats()
    assert (after.compiles - before.compiles, after.failures - before.failures) == (2, 1)


def test_waiting_threads_compile_after_an_interrupt(
    device: Device, clean_modules: ModuleCache, monkeypatch: Patch
) -> None:
    compile_, calls, gate = device.backend.compile, [], threading.Event()

    def interrupted_once(*args: Any, **how: Any) -> Any:
        calls.append(how["name"])
        if len(calls) == 1:
            gate.wait(10)
            raise ptxrt.BackendUnavailable("the library went away")
        return compile_(*args, **how)

    monkeypatch.setattr(device.backend, "compile", interrupted_once)
    threads, results = in_threads(4, lambda _: load(device, 21))
    time.sleep(0.2)
    gate.set()
    for thread in threads:
        thread.join(20)
    failed = [r for r in results if isinstance(r, ptxrt.PtxrtError)]
    assert len(failed) == 1
    assert all(run(r) == 21 for r in results if not isinstance(r, ptxrt.PtxrtError))
    run(load(device, 21))
    assert len(calls) == 2


def test_failures_are_bounded_too(device: Device, clean_modules: ModuleCache) -> None:
    clean_modules.max_modules = bound = len(clean_modules.entries()) + 5  # beside what other tests hold
    one = broken(device)
    for number in range(8):
        source = KernelSource(one.language, one.text.replace("broken", f"e{number}"))
        with pytest.raises(ptxrt.CompileError):
            ptxrt.load(source, f"e{number}", "", device)
    assert len(clean_modules.entries()) <= bound


def test_a_running_compile_is_not_unloaded(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    gate = threading.Event()
    slow_compiles(monkeypatch, device, gate)
    digest = clean_modules._request(constant(0, device), "constant", ()).key()
    threads, results = in_threads(1, lambda _: load(device, 0))
    try:
        while digest not in clean_modules._slots:
            time.sleep(0.01)
        with pytest.raises(ptxrt.InvalidArgument):
            clean_modules.unload(digest)
        clean_modules.clear()
        assert digest in clean_modules._slots
    finally:
        gate.set()
        threads[0].join(20)
    assert run(results[0]) == 0


def test_unloading_reaches_the_driver(device: Device, clean_modules: ModuleCache, monkeypatch: Patch) -> None:
    unload = device.backend.unload
    seen: Any = []
    monkeypatch.setattr(device.backend, "unload", lambda *how: (seen.append(how), unload(*how)))
    run(load(device, 60))
    gc.collect()
    clean_modules.unload(digests(clean_modules)["constant60"])
    assert len(seen) == 1


def test_the_last_use_of_an_entry_is_shown(device: Device, clean_modules: ModuleCache) -> None:
    kernel = load(device, 61)
    first = next(e for e in clean_modules.entries() if e.name == "constant61").last_used
    time.sleep(0.01)
    load(device, 61)
    assert next(e for e in clean_modules.entries() if e.name == "constant61").last_used > first
    del kernel


# Bounds -------------------------------------------------------------------------------------------------------------


def digests(cache: ModuleCache) -> dict[str | None, str]:
    return {entry.name: entry.digest for entry in cache.entries()}


def test_pain18_the_least_recently_used_module_is_unloaded_first(device: Device, clean_modules: ModuleCache) -> None:
    clean_modules.clear()
    clean_modules.max_modules = len(clean_modules.entries()) + 2
    for value in (30, 31):
        load(device, value)
    load(device, 30)
    gc.collect()
    load(device, 32)
    names = digests(clean_modules)
    assert "constant30" in names
    assert "constant31" not in names
    assert "constant32" in names


def test_pain18_the_bound_may_be_in_bytes(device: Device, clean_modules: ModuleCache) -> None:
    clean_modules.clear()
    held = clean_modules.stats().bytes
    kernel = load(device, 33)
    size = clean_modules.stats().bytes - held
    assert size > 0
    del kernel
    clean_modules.max_bytes = held + size + size // 2
    evictions = clean_modules.stats().evictions
    load(device, 34)
    assert clean_modules.stats().bytes <= clean_modules.max_bytes
    assert clean_modules.stats().evictions == evictions + 1


def test_pain18_what_a_live_kernel_holds_is_never_unloaded(device: Device, clean_modules: ModuleCache) -> None:
    clean_modules.max_modules = 1
    held = load(device, 35)
    for value in range(36, 40):
        assert run(load(device, value)) == value
    clean_modules.clear()
    with pytest.raises(ptxrt.InvalidArgument, match="live Kernel"):
        clean_modules.unload(digests(clean_modules)["constant35"])
    assert run(held) == 35


def test_pain18_unload_takes_an_unambiguous_digest(device: Device, clean_modules: ModuleCache) -> None:
    run(load(device, 40))
    gc.collect()
    digest = digests(clean_modules)["constant40"]
    clean_modules.unload(digest[:12])
    assert "constant40" not in digests(clean_modules)
    for wrong in (digest, "", "no such digest", None, 5, b"a", ("a", "b"), 10**5000):
        with pytest.raises(ptxrt.InvalidArgument, match="digest"):
            clean_modules.unload(wrong)  # type: ignore[arg-type]


def test_pain18_a_module_outlives_a_launch_in_flight(device: Device, clean_modules: ModuleCache) -> None:
    # A long launch, its Kernel gone and the module unloaded at once: the unload waits for the device.
    n = 1 << (22 if device.kind == "cuda" else 12)
    x, y = (ptxrt.to_device(np.ones(n, np.float32), device) for _ in "xy")
    kernel = ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)
    for _ in range(50 if device.kind == "cuda" else 2):
        kernel.launch(n // 256, 256, x, y, n, 0.0)
    del kernel
    gc.collect()
    clean_modules.clear()
    assert (y.to_host() == 1).all()


# What it tells of itself ---------------------------------------------------------------------------------------------


def test_an_entry_describes_its_module(device: Device, clean_modules: ModuleCache) -> None:
    kernel = load(device, 50)
    load(device, 50)
    entry = next(e for e in clean_modules.entries() if e.name == "constant50")
    assert entry.state == "loaded"
    language = "hip" if device.kind == "hip" else "ptx"
    assert entry.language == language
    assert entry.entry_names == ("constant",)
    assert entry.options == ()
    assert entry.arch == device.arch
    assert entry.compiler == device.backend.compiler(language)
    assert entry.size > 0
    assert entry.uses == 2
    assert entry.created <= entry.last_used
    assert entry.live_kernels >= 1
    assert entry.source == constant(50, device).text
    assert entry.kernels["constant"]["params"][0]["size"] == 8
    assert entry.kernels["constant"]["resources"]["registers"] == kernel.resources.registers
    assert entry["digest"] == entry.digest


def test_a_snapshot_is_stats_and_entries_as_json(device: Device, clean_modules: ModuleCache, tmp_path: Path) -> None:
    kernel = load(device, 51)
    with pytest.raises(ptxrt.CompileError):
        ptxrt.load(broken(device), "broken", "", device)
    path = tmp_path / "cache.json"
    clean_modules.snapshot(path)
    record = json.loads(path.read_text())
    assert record["schema"] == 1
    assert record["device"]["device"] == str(device)
    assert record["stats"]["compiles"] == clean_modules.stats().compiles
    by_name = {entry["name"]: entry for entry in record["entries"]}
    assert by_name["constant51"]["live_kernels"] == 1
    assert by_name["broken"]["state"] == "failed"
    assert "nonsense" in by_name["broken"]["error"]
    assert [file.name for file in tmp_path.iterdir()] == ["cache.json"]
    del kernel


def test_snapshots_to_one_path_at_once_are_whole(device: Device, clean_modules: ModuleCache, tmp_path: Path) -> None:
    kernel = load(device, 52)
    write: Any = clean_modules.snapshot
    threads, results = in_threads(6, lambda _: [write(tmp_path / "cache.json") for _ in range(10)])
    for thread in threads:
        thread.join(20)
    assert results == [[None] * 10] * 6
    json.loads((tmp_path / "cache.json").read_text())
    assert [file.name for file in tmp_path.iterdir()] == ["cache.json"]
    del kernel


@pytest.mark.parametrize("path", [None, "a\0b", "\0", "\ud800", b"a\0b", 10**5000], ids=range(6))
def test_a_snapshot_wants_a_path(device: Device, path: Any, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(ptxrt.InvalidArgument, "ModuleCache.snapshot", "path", "a file that can be written", shown(path)):
        device.modules.snapshot(path)
    assert not list(tmp_path.iterdir())


def test_a_snapshot_that_cannot_be_written_leaves_nothing(device: Device, tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "such" / "folder", tmp_path):
        with pytest.raises(ptxrt.InvalidArgument, match=r"snapshot: path"):
            device.modules.snapshot(path)
    assert not list(tmp_path.iterdir())


def test_a_cache_says_what_it_has_done(sim: Device) -> None:
    assert repr(sim.modules) == f"<ModuleCache of {sim}: {sim.modules.stats()}>"
