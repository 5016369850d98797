"""Many processes on one store: each key is compiled once in all, and whoever is killed leaves nothing that hinders."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from helpers import ROOT, Patch
from store_testing import ALL, BINARY, CXX, PTX, TEXT, Compiler, aged, in_child, look, status_of, with_header

from ptxrt import files
from ptxrt.compilers import Binary, nvjitlink
from ptxrt.store import BinaryStore, Request, _files

KEYS = [f"{number:064x}" for number in range(5)]


def binary_of(request: Request) -> Binary:
    return replace(BINARY, code=request.source.encode() * 20)


def test_pain1_and_3_64_processes_at_once_compile_each_key_once_in_all(tmp_path: Path, header: Path) -> None:
    log = tmp_path / "compiles"
    requests = [replace(PTX, source=key) for key in KEYS] + [replace(CXX, source=key) for key in KEYS]

    gate, opens = os.pipe()

    def ask(number: int) -> None:
        os.close(opens)
        os.read(gate, 1)  # until the parent, and all its children, have closed the other end
        store = BinaryStore(tmp_path / "store")
        for request in random.Random(number).sample(requests, len(requests)):
            binary = binary_of(request)
            if request.language != "ptx":
                binary = replace(with_header(header), code=binary.code)

            def compile(request: Request = request, binary: Binary = binary) -> Binary:
                file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                os.write(file, f"{request.key()}\n".encode())
                os.close(file)
                time.sleep(0.002)
                return binary

            assert store.binary(request, TEXT, compile) == binary

    children = [in_child(partial(ask, number)) for number in range(64 if ALL else 24)]
    os.close(opens)
    assert {status_of(child) for child in children} == {0}
    os.close(gate)
    assert Counter(log.read_text().split()) == {request.key(): 1 for request in requests}
    assert [entry.problem for entry in BinaryStore(tmp_path / "store").entries()] == [None] * len(requests)
    assert [path for name in ("locks", "tmp", "quarantine") for path in tmp_path.glob(f"store/v1/{name}/*")] == []


SCRIPT = """
import dataclasses, sys
import ptxrt
from ptxrt import ops
from ptxrt.backends import get
from ptxrt.runtime.modules import ModuleCache

backend = get("cuda")
backend.load = lambda *_: None  # no GPU is needed
backend.unload = lambda *_: None
properties = dataclasses.replace(ptxrt.Device("sim:0").properties, arch="sm_90")
cache = ModuleCache("cuda:0", backend, 0, properties)
kernels = [spec for spec in ops.kernels() if spec.language == "ptx"][:: int(sys.argv[1])]
sys.stdin.read()
texts = {spec.source.digest: spec for spec in kernels}
for spec in texts.values():
    assert cache.module(spec.source, spec.entry, ()).binary.reports[spec.entry].registers
print(len(texts), cache.stats().compiles, cache.stats().store_hits)
"""


def test_pain3_processes_at_once_compile_each_of_the_librarys_kernels_once_in_all(tmp_path: Path) -> None:
    if reason := nvjitlink.available():
        pytest.skip(reason)
    count, step = (64, 1) if ALL else (3, 80)
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "PTXRT_CACHE_DISABLE": "0",
        "PTXRT_CACHE_DIR": str(tmp_path / "store"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(step)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(count)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    printed = [process.communicate(timeout=600)[0].split() for process in processes]
    texts = int(printed[0][0])
    assert texts > 3
    assert sum(int(compiles) for _, compiles, _ in printed) == texts
    assert all(int(compiles) + int(hits) == texts for _, compiles, hits in printed)
    assert [entry.problem for entry in BinaryStore(tmp_path / "store").entries()] == [None] * texts


def slowly(path: Path, data: bytes) -> None:
    """Write as a slow disk does."""
    with open(path, "wb", buffering=0, opener=files.private) as file:
        for at in range(0, len(data), 400):
            file.write(data[at : at + 400])
            time.sleep(0.0005)


def test_whoever_is_killed_at_any_moment_leaves_a_sound_store(folder: Path, header: Path, monkeypatch: Patch) -> None:
    drawn = random.Random(15)
    requests = [replace(PTX, source=key) for key in KEYS[:2]] + [replace(CXX, source=KEYS[0])]
    expected = {
        request: binary_of(request) if request.language == "ptx" else with_header(header) for request in requests
    }

    def work() -> None:
        monkeypatch.setattr(_files, "write", slowly)
        while True:
            for request in requests:

                def compile(request: Request = request) -> Binary:
                    time.sleep(0.002)
                    return expected[request]

                assert look(folder, compile, request) == expected[request]
            BinaryStore(folder).prune(drawn.choice((0, 2000)))

    seen: Counter[str] = Counter()
    look(folder, Compiler(), replace(PTX, source="first"))
    for number in range(200 if ALL else 25):
        children = [in_child(work) for _ in range(2)]
        time.sleep(drawn.uniform(0.005, 0.06))
        for child in children:
            os.kill(child, signal.SIGKILL)
        assert [status_of(child) for child in children] == [-signal.SIGKILL] * 2
        seen.update(path.parent.name for name in ("tmp", "locks") for path in folder.glob(f"v1/{name}/*"))
        assert {entry.problem for entry in BinaryStore(folder).entries()} <= {None}, number
        for request in requests:
            began = time.monotonic()
            assert look(folder, Compiler(expected[request]), request) == expected[request], number
            assert time.monotonic() - began < 1, number
        drawn.random()
    assert seen["tmp"] > 3  # some were killed while they wrote
    assert seen["locks"] > 3
    for path in (*folder.glob("v1/tmp/*"), *folder.glob("v1/locks/*")):
        aged(path, 4000)
    assert list(folder.glob("v1/quarantine/*")) == []
    BinaryStore(folder).prune()
    assert [*folder.glob("v1/tmp/*"), *folder.glob("v1/locks/*")] == []
    assert len(list(BinaryStore(folder).entries())) >= len(requests)
