"""What operators see: events for callbacks and logging, ranges for profilers, snapshots by signal and at the end."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import need_nvrtc, printed_by

import ptxrt
from ptxrt import KernelSource, events
from ptxrt.events import CacheEvent

PTX = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry k(.param .u64 x)
{
    // VALUE
    ret;
}
"""
CUDA = 'extern "C" __global__ void k(float* x) { x[0] = VALUE; }'
Patch = pytest.MonkeyPatch


@pytest.fixture
def seen() -> Iterator[list[CacheEvent]]:
    """What a callback is told while the test runs."""
    told: list[CacheEvent] = []
    end = events.subscribe(told.append)
    yield told
    end()


@pytest.fixture
def store(monkeypatch: Patch, tmp_path: Path) -> Path:
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", "0")
    monkeypatch.setenv("PTXRT_CACHE_DIR", str(tmp_path / "store"))
    return tmp_path / "store"


def load(value: int) -> ptxrt.Kernel:
    source = KernelSource.ptx(PTX.replace("VALUE", str(value)), name=f"number {value}")
    return ptxrt.load(source, "k", "u64 x", ptxrt.Device("sim:0"))


def kinds(seen: list[CacheEvent]) -> list[tuple[str, str]]:
    """Kind and place of each, less what goes to make room for these loads."""
    return [(event.kind, event.where) for event in seen if event.kind != "evict"]


def test_a_compile_and_a_hit_are_told(seen: list[CacheEvent]) -> None:
    load(81)
    load(81)
    assert kinds(seen) == [("compile", "compiler"), ("hit", "memory")]
    compiled, hit = (event for event in seen if event.kind != "evict")
    assert compiled.name == hit.name == "number 81"
    assert compiled.seconds > hit.seconds > 0
    assert len(compiled.key) == len(hit.key) == 64
    assert compiled.error is None


def test_a_failed_compile_is_told_with_its_reason_and_then_remembered(seen: list[CacheEvent]) -> None:
    source = KernelSource.ptx(PTX.replace("ret;", "rot;"))
    for _ in range(2):
        with pytest.raises(ptxrt.CompileError):
            ptxrt.load(source, "k", "u64 x", ptxrt.Device("sim:0"))
    assert kinds(seen) == [("compile", "compiler"), ("hit", "memory")]
    (failed,) = (event for event in seen if event.kind == "compile")
    assert "rot" in str(failed.error)


def test_what_is_unloaded_for_others_is_told(seen: list[CacheEvent]) -> None:
    modules = ptxrt.Device("sim:0").modules
    modules.clear()
    bound = modules.max_modules
    first = load(82)
    digest = modules.entries()[-1].digest
    del first
    modules.max_modules = len(modules.entries())
    try:
        second = load(83)
    finally:
        modules.max_modules = bound
    assert second.source.name == "number 83"
    assert [event.key for event in seen if event.kind == "evict"] == [digest]


def test_the_store_is_told_of(seen: list[CacheEvent], store: Path) -> None:
    need_nvrtc()
    device = ptxrt.Device("sim:0")
    for _ in range(2):
        ptxrt.load(KernelSource.cuda(CUDA.replace("VALUE", "84")), "k", "f32* x", device)
        device.modules.clear()
    assert kinds(seen) == [("miss", "disk"), ("compile", "compiler"), ("hit", "disk")]
    assert len({event.key for event in seen if event.where != "memory"}) == 1


def test_a_damaged_binary_is_told_once(seen: list[CacheEvent], store: Path, caplog: pytest.LogCaptureFixture) -> None:
    need_nvrtc()
    device = ptxrt.Device("sim:0")
    source = KernelSource.cuda(CUDA.replace("VALUE", "85"))
    ptxrt.load(source, "k", "f32* x", device)
    (binary,) = store.glob("**/kernel.ptx")
    binary.write_bytes(binary.read_bytes()[:-1])
    device.modules.clear()
    ptxrt.load(source, "k", "f32* x", device)
    assert kinds(seen)[2:] == [("miss", "disk"), ("quarantine", "disk"), ("compile", "compiler")]
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(binary.parent) in warning.getMessage()


def test_what_a_callback_raises_hurts_no_load(caplog: pytest.LogCaptureFixture) -> None:
    def fail(event: CacheEvent) -> None:
        raise RuntimeError("mine")

    end = events.subscribe(fail)
    try:
        assert load(86).source.name == "number 86"
    finally:
        end()
    assert "RuntimeError: mine" in caplog.text


def test_the_end_of_one_subscription_leaves_another_of_the_same_callback() -> None:
    told: list[CacheEvent] = []
    end, other = events.subscribe(told.append), events.subscribe(told.append)
    end()
    end()
    load(87)
    other()
    load(87)
    assert kinds(told) == [("compile", "compiler")]


def test_a_compile_is_logged_with_its_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="ptxrt")
    load(88)
    (record,) = [each for each in caplog.records if each.name == "ptxrt"]
    assert record.getMessage().startswith("compile (compiler): number 88, ")
    assert record.getMessage().endswith(" ms")


def test_a_profiler_gets_ranges(monkeypatch: Patch) -> None:
    ranges: list[str] = []

    class Annotate:
        def __init__(self, words: str, domain: str) -> None:
            assert domain == "ptxrt"
            self.words = words

        def __enter__(self) -> None:
            ranges.append(self.words)

        def __exit__(self, *_: object) -> None:
            ranges.append(f"end of {self.words}")

    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(annotate=Annotate))
    load(89)
    assert ranges == ["compile number 89", "end of compile number 89"]


SCRIPT = """
import os, signal, ptxrt
FIRST
source = ptxrt.KernelSource.ptx(PTX)
for device in DEVICES:
    ptxrt.load(source, "k", "u64 x", ptxrt.Device(device))
REST
"""


def run(file: Path, rest: str = "", *, first: str = "", devices: tuple[str, ...] = ("sim:0",)) -> Any:
    """Return how a process ends that loads a kernel on each device."""
    script = SCRIPT.replace("PTX", repr(PTX)).replace("DEVICES", repr(devices))
    return subprocess.run(
        [sys.executable, "-c", script.replace("FIRST", first).replace("REST", rest)],
        env={**os.environ, "PTXRT_CACHE_SNAPSHOT": str(file)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_process_leaves_a_snapshot_of_each_device(tmp_path: Path) -> None:
    assert run(tmp_path / "cache.json", devices=("sim:0", "sim:1")).returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache.json", "cache.sim-1.json"]
    assert read(tmp_path / "cache.json")["device"]["device"] == "sim:0"
    assert read(tmp_path / "cache.sim-1.json")["device"]["device"] == "sim:1"
    assert read(tmp_path / "cache.json")["stats"]["modules"] == 1


def test_a_signal_asks_for_a_snapshot_now(tmp_path: Path) -> None:
    rest = "os.kill(os.getpid(), signal.SIGUSR1); os._exit(0)"
    assert run(tmp_path / "cache.%d.%p.json", rest).returncode == 0
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("cache.sim-0.")
    assert "%p" not in path.name
    assert read(path)["stats"]["modules"] == 1


def test_a_programs_own_handler_stays(tmp_path: Path) -> None:
    own = "signal.signal(signal.SIGUSR1, lambda *_: print('mine', flush=True))"
    done = run(tmp_path / "cache.json", "os.kill(os.getpid(), signal.SIGUSR1); os._exit(7)", first=own)
    assert (done.returncode, done.stdout) == (7, "mine\n")
    assert not list(tmp_path.iterdir())


def test_a_forked_child_leaves_its_parents_snapshot_alone(tmp_path: Path) -> None:
    rest = """
import sys
child = os.fork()
if child:
    os.waitpid(child, 0)
    assert not os.path.exists(os.environ["PTXRT_CACHE_SNAPSHOT"])
else:
    sys.exit()
"""
    done = run(tmp_path / "cache.json", rest)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "cache.json").exists()


def test_a_snapshot_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    done = run(tmp_path / "none" / "cache.json")
    assert done.returncode == 0
    assert "PTXRT_CACHE_SNAPSHOT: ModuleCache.snapshot: path" in done.stderr


def test_a_callback_that_outlives_the_script_leaves_its_objects_in_peace() -> None:
    """It holds the script's names, and with them each object, until ptxrt's own modules have lost theirs."""
    script = """
        import numpy as np
        import ptxrt
        seen = []
        ptxrt.events.subscribe(lambda event: seen.append(event))
        device = ptxrt.Device("sim:0")
        array = ptxrt.ones(16, np.float32, device)
        texture = ptxrt.Texture(ptxrt.ones((4, 4), np.float32, device))
        stream = device.create_stream()
        event = stream.record()
        kernel = ptxrt.load(ptxrt.KernelSource.ptx(PTX), "k", "u64 x", device)
        with ptxrt.capture(stream) as graph:
            array.fill(2, stream)
    """
    assert printed_by(script.replace("PTX", repr(PTX))) == ""
