"""The store behind ptxrt.load: what one process has compiled, the next one finds, and nothing that is stale."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch, printed_by, with_stand_in
from store_testing import cache_maker, warnings

import ptxrt
from ptxrt import KernelSource, events
from ptxrt.compilers import nvrtc
from ptxrt.compilers._included import Included
from ptxrt.store import BinaryStore, current

TEXT = '#include "mine.h"\nextern "C" __global__ void k() {}\nextern "C" __global__ void NAME() {}\n'


@pytest.fixture(autouse=True)
def _on(monkeypatch: Patch, folder: Path) -> None:
    monkeypatch.setenv("PTXRT_CACHE_DISABLE", "0")
    monkeypatch.setenv("PTXRT_CACHE_DIR", str(folder))


@pytest.fixture(params=["sim-cuda", "sim-hip", "cuda-cuda", "cuda-ptx", "hip-hip"])
def process(request: pytest.FixtureRequest, monkeypatch: Patch, tmp_path: Path) -> Callable[..., Any]:
    """Return what makes a module cache that knows nothing yet, as of a process that has just started."""
    monkeypatch.chdir(tmp_path)
    return cache_maker(request.param, monkeypatch)


def define(name: str, path: str = "mine.h") -> None:
    """Write a header whose age leaves no doubt whether a compile saw it."""
    Path(path).parent.mkdir(exist_ok=True)
    Path(path).write_text(f"#define NAME {name}\n")
    time.sleep(0.03)


def names(cache: Any, options: tuple[str, ...] = (), **how: Any) -> set[str]:
    return set(cache.module(cache.source(TEXT, **how), "k", options).binary.entries) - {"k"}


def skip_ptx(cache: Any) -> Any:
    if cache.language == "ptx":
        pytest.skip("PTX has no headers")
    return cache


SCRIPT = """
import sys, numpy, ptxrt
from ptxrt.runtime import modules

stand_in, stored = getattr(sys.modules.get("sitecustomize"), "STAND_IN", None), modules.stored

def known(backend, source, request, compile):
    binary = stored(backend, source, request, compile)
    if stand_in:  # it runs the text that a code object was made of, and may have seen no compile of this one
        stand_in.know(binary, source.text, dict(defines=dict(source.defines), entry=request.entry))
    return binary

modules.stored = known
device = ptxrt.Device({device!r})
source = ptxrt.KernelSource.{language}(
    'template <typename T> __global__ void twice(T *x, int n)'
    ' {{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = x[i] * FACTOR + T(1); }}', {{"FACTOR": 3}})
kernel = ptxrt.load(source, "twice<float>", "f32* x, i32 n", device)
x = ptxrt.to_device(numpy.arange(100, dtype="f4"), device)
kernel.launch(1, 128, x, 100)
stats = device.modules.stats()
print(x.to_host().tobytes().hex(), stats.compiles, stats.store_hits)
"""


@pytest.mark.parametrize(("device", "language"), [("sim:0", "cuda"), ("hip:0", "hip")])
def test_pain7_a_second_process_compiles_nothing_and_has_the_same_result(
    request: pytest.FixtureRequest, folder: Path, device: str, language: str
) -> None:
    if device == "hip:0":
        request.getfixturevalue("stand_in")
        request.getfixturevalue("hiprtc_there")
    elif reason := nvrtc.available():
        pytest.skip(reason)
    script = SCRIPT.format(device=device, language=language)
    environment = with_stand_in(ptxrt.Device(device))
    first, second = (
        printed_by(script, PTXRT_CACHE_DIR=str(folder), PYTHONHASHSEED=seed, **environment).split() for seed in "12"
    )
    assert first[0] == second[0] == (np.arange(100, dtype="f4") * 3 + 1).tobytes().hex()
    assert first[1:3] == ["1", "0"]
    assert second[1:3] == ["0", "1"]


def test_a_header_that_changes_is_a_compile_and_one_that_changes_back_a_hit(process: Callable[..., Any]) -> None:
    skip_ptx(process())
    seen = set()
    for name in ("one", "one", "two", "two", "one", "two"):
        define(name)
        cache = process()
        assert names(cache) == {name}
        assert cache.stats().compiles == (name not in seen)
        seen.add(name)


def test_a_header_that_appears_earlier_or_goes_is_a_compile(process: Callable[..., Any]) -> None:
    skip_ptx(process())
    define("late", "late/mine.h")
    options = ("-Iearly", "-Ilate")
    assert names(process(), options) == {"late"}
    define("early", "early/mine.h")
    assert names(process(), options) == {"early"}
    os.unlink("early/mine.h")
    cache = process()
    assert names(cache, options) == {"late"}
    assert cache.stats().compiles == 0


def during_the_compile(monkeypatch: Patch, work: Callable[[], object]) -> None:
    """Have work done once, right after a compiler has named the files that it has read."""
    real = Included.held
    waiting = [work]

    def held(included: Included) -> Any:
        if included.files and waiting:
            waiting.pop()()
        return real(included)

    monkeypatch.setattr(Included, "held", held)


@pytest.mark.parametrize("how", ["changes", "is removed"])
def test_a_header_that_changes_between_compile_and_store_leaves_no_entry(
    process: Callable[..., Any], monkeypatch: Patch, how: str
) -> None:
    cache = skip_ptx(process())
    define("early", "early/mine.h")
    define("late", "late/mine.h")
    options = ("-Iearly", "-Ilate")
    during_the_compile(
        monkeypatch,
        lambda: (
            os.unlink("early/mine.h") if how == "is removed" else Path("early/mine.h").write_text("#define NAME x\n")
        ),
    )
    names(cache, options)
    time.sleep(0.03)
    expected = {"late"} if how == "is removed" else {"x"}
    assert names(process(), options) == expected
    assert names(process(), options) == expected


def test_a_list_of_another_time_serves_nothing_stale(process: Callable[..., Any], folder: Path) -> None:
    skip_ptx(process())
    define("one")
    names(process())
    (listed,) = folder.glob("v1/headers/*")
    before = listed.read_bytes()
    Path("mine.h").write_text('#include "deep.h"\n')
    define("two", "deep.h")
    assert names(process()) == {"two"}
    listed.write_bytes(before)  # as of the header without that include
    define("three", "deep.h")
    assert names(process()) == {"three"}


def ptx(name: str) -> str:
    return f".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry {name}() {{ ret; }}\n"


def load(cache: Any, text: str = "", options: tuple[str, ...] = (), entry: str = "k", **how: Any) -> Any:
    text = text or (ptx(entry) if cache.language == "ptx" else f'extern "C" __global__ void {entry}() {{}}\n')
    cache.module(cache.source(text, **how), entry, options)
    return cache.stats().compiles, cache.stats().store_hits


def test_all_that_matters_is_another_entry_and_nothing_else(process: Callable[..., Any]) -> None:
    cache = process()
    cxx = cache.language != "ptx"
    arch = "gfx90a:xnack+" if cache.name == "hip:0" else "sm_80"
    option = {"hip": "-ffast-math", "cuda": "--use_fast_math", "sim": "--use_fast_math"}[cache.backend.name]
    ways: list[Callable[[], Any]] = [
        lambda: load(process()),
        lambda: load(process(arch)),
        lambda: load(process(), options=(option,) if cxx else ("-O3",)),
        lambda: load(process(), entry="other"),
    ]
    if cxx:
        ways.append(lambda: load(process(), defines={"A": 1}))
    for way in ways:
        assert way() == (1, 0)
    for way in ways:
        assert way() == (0, 1)


def test_another_version_of_the_compiler_or_of_ptxrt_is_another_entry(
    process: Callable[..., Any], monkeypatch: Patch
) -> None:
    backend = process().backend
    assert load(process()) == (1, 0)
    with monkeypatch.context() as patch:
        compiler = backend.compiler
        patch.setattr(backend, "compiler", lambda language: compiler(language) + ".1")
        assert load(process()) == (1, 0)
    with monkeypatch.context() as patch:
        patch.setattr("ptxrt.store._record.__version__", "9.9.9")
        assert load(process()) == (1, 0)
    assert load(process()) == (0, 1)


def test_a_failed_compile_is_not_stored(process: Callable[..., Any], folder: Path) -> None:
    for _ in range(2):
        cache = process()
        with pytest.raises(ptxrt.CompileError):
            load(cache, "this is no kernel")
        assert (cache.stats().failures, cache.stats().store_hits) == (1, 0)
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_sim_reads_ptx_itself_and_stores_none(folder: Path) -> None:
    device = ptxrt.Device("sim:0")
    ptxrt.load(KernelSource.ptx(ptx("of_the_store")), "of_the_store", "", device)
    assert not folder.exists()


def test_pain22_hits_misses_place_and_size_can_be_asked(process: Callable[..., Any], folder: Path) -> None:
    told: list[events.CacheEvent] = []
    end = events.subscribe(told.append)
    try:
        for _ in range(2):
            cache = process()
            load(cache)
    finally:
        end()
    stats = cache.stats()
    assert (stats.misses, stats.store_hits, stats.compiles) == (1, 1, 0)
    assert [(event.kind, event.where) for event in told] == [("miss", "disk"), ("compile", "compiler"), ("hit", "disk")]
    assert all(event.seconds > 0 for event in told)
    store = current()
    assert store is not None
    assert str(folder) in repr(store)
    (entry,) = store.entries()
    assert entry.size == sum(path.stat().st_size for path in entry.path.iterdir())
    assert abs(entry.last_used - time.time()) < 600
    assert entry.record is not None
    assert entry.record.request.entry == "k"


def test_damage_is_a_warning_and_a_compile(
    process: Callable[..., Any], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load(process()) == (1, 0)
    (path,) = folder.glob("v1/entries/*/*/kernel.*")
    path.write_bytes(path.read_bytes()[:-1])
    assert load(process()) == (1, 0)
    (line,) = warnings(caplog)
    assert str(path.parent) in line
    assert load(process()) == (0, 1)
    assert [entry.problem for entry in BinaryStore(folder).entries()] == [None]
