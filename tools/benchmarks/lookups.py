"""What it costs to find a kernel that was compiled before: in a device's module cache, and in the store on disk.

The store's rows need no GPU: what they find are cubins for sm_90, compiled into a store of the benchmark's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import ptxrt
from benchmarks.report import Kind, Measurement, Record, add_usual, markdown_table, opened
from ptxrt import KernelSource, backends, ops
from ptxrt.runtime.compiling import compiled, request_for
from ptxrt.store import BinaryStore

__all__ = ["BOUNDS", "HELP", "KIND", "NAME", "add_arguments", "run"]

NAME = "lookups"
HELP = "host cost of finding a kernel that was compiled before: in memory, on disk"

BOUNDS = {"module cache, PTX": 1.0, "store, PTX to a cubin": 200.0, "store, CUDA C++ with a header": 200.0}
"""Microseconds."""

_ARCH = "sm_90"
_MEASURED = ("ptxrt/runtime", "ptxrt/store", "ptxrt/compilers", "ptxrt/backends", "tools/benchmarks/lookups.py")
_ROUNDS, _LEAST_SECONDS = 40, 0.02
_CUDA = '#include "by.h"\nextern "C" __global__ void scale(float* x) { x[threadIdx.x] *= BY; }\n'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    add_usual(parser, "whose module cache", "a bound is missed")


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, store; return 1 if ``--check`` is given and a bound is missed."""
    device = opened(arguments.device)
    measurement = Measurement(arguments.out, _MEASURED)
    rows = {}
    with TemporaryDirectory() as folder:
        for name, look in _looks(device, Path(folder)).items():
            q1, median, q3 = (float(number) for number in np.quantile(_times(look), (0.25, 0.5, 0.75)))
            rows[name] = {"median_us": median, "q1_us": q1, "q3_us": q3}
    record = {"rows": rows, "bounds_us": BOUNDS, "rounds": _ROUNDS}
    print(_body(record))
    measurement.store(KIND, device, record)
    missed = [name for name, bound in BOUNDS.items() if rows[name]["median_us"] > bound]
    return 1 if arguments.check and missed else 0


def _looks(device: ptxrt.Device, folder: Path) -> dict[str, Callable[[], object]]:
    """Return the calls that are timed, each of which finds its kernel."""
    spec = next(spec for spec in ops.kernels() if spec.entry == "group_norm_kernel" and spec.language == "ptx")
    (folder / "by.h").write_text("#define BY 2.0f\n")
    time.sleep(0.1)  # a header written while a compile reads it is not stored
    cxx = KernelSource.cuda(_CUDA, name=str(folder / "scale.cu"))
    source = spec.source
    device.modules.module(source, spec.entry, ())
    return {
        "module cache, PTX": lambda: device.modules.module(source, spec.entry, ()),
        "store, PTX to a cubin": _stored(source, spec.entry, folder),
        "store, CUDA C++ with a header": _stored(cxx, "scale", folder),
    }


def _stored(source: KernelSource, entry: str, folder: Path) -> Callable[[], object]:
    backend = backends.get("cuda")
    request = request_for(backend, source, entry, (), _ARCH, "cuda")
    store = BinaryStore(folder / "store")
    store.binary(request, source.text, lambda: compiled(backend, source, request))

    def look() -> None:
        if store.find(request, source.text) is None:
            raise RuntimeError(f"{entry} is not in the store")

    look()
    return look


def _times(look: Callable[[], object]) -> list[float]:
    """Return microseconds a call, one number a round."""
    started, calls = time.perf_counter(), 0
    while time.perf_counter() - started < _LEAST_SECONDS:
        look()
        calls += 1
    taken = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        for _ in range(calls):
            look()
        taken.append((time.perf_counter() - started) / calls * 1e6)
    return taken


def _body(record: Record) -> str:
    bounds = record["bounds_us"]
    rows = [
        (name, f"{row['median_us']:.2f}", f"{row['q1_us']:.2f} to {row['q3_us']:.2f}", f"{bounds[name]:g}")
        for name, row in record["rows"].items()
    ]
    return markdown_table(("what is found, and where", "median us", "quartiles us", "bound us"), rows) + "\n"


KIND = Kind(NAME, lambda record: f"Finding a compiled kernel beside {record['environment']['device_name']}", _body)
