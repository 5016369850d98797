"""Fixtures: the same test body runs on every device there is.

A test that takes `device` runs on sim always, on CUDA where present, and on HIP, which is a stand-in where there is no
AMD GPU (tests/hip/standin.py). What is missing (a GPU, a C compiler, hip-python, hipRTC) is a skipped test and counted,
or a failure if PTXRT_REQUIRE names it: PTXRT_REQUIRE=cuda on a GPU machine, hip, hiprtc. Tests of texts in PTX or CUDA
C++ carry the mark `ptx`, and are not collected for HIP, nor are variants of ops in PTX. PTXRT_TEST_PART=2/4 collects
each fourth test, from the second one on.
"""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import AMD_GPU, EVERYTHING, NVIDIA_GPU, REQUIRED, covering, need_hip_compilers, need_nvrtc
from hypothesis import HealthCheck, settings
from standin import StandIn, default_folder

import ptxrt
from ptxrt import memos
from ptxrt.backends import hip as hip_backend
from ptxrt.backends import sim as sim_backend

# The same examples on every run; a first call compiles, so no deadline.
settings.register_profile(
    "ptxrt",
    deadline=None,
    derandomize=True,
    max_examples=25 if EVERYTHING else 5,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ptxrt")

# What the ops' tests have loaded is large: each full garbage collection takes up to half a second, and finds nothing.
# One comes with each test file, see `_frozen_heap`, and where a test asks for it.
gc.set_threshold(50_000, 20, 1000)

# Tests count compiles, and never touch the store of whoever runs them: those of a store name a folder of their own.
os.environ["PTXRT_CACHE_DISABLE"] = "1"

# A folder of this run, for what its processes make for each other; pytest-xdist's have the environment of the first.
OWN_FOLDER = None if "TEST_RUN_FOLDER" in os.environ else tempfile.mkdtemp(prefix="ptxrt-tests-")
os.environ.setdefault("TEST_RUN_FOLDER", OWN_FOLDER or "")


def need_device(name: str) -> ptxrt.Device:
    """Return the device, or skip; fail where PTXRT_REQUIRE wants its kind."""
    kind = name.partition(":")[0]
    try:
        return ptxrt.Device(name)
    except (ptxrt.BackendUnavailable, ptxrt.InvalidArgument) as error:
        if kind in REQUIRED:
            pytest.fail(f"PTXRT_REQUIRE={kind}, but {error}")
        pytest.skip(f"no {name}: {error}")


def _put_stand_in() -> StandIn | None:
    """Put the stand-in where hip-python looks for AMD's library, before its first call; None where there is a GPU."""
    if AMD_GPU:
        return None
    stand_in = StandIn()
    try:
        stand_in.install(default_folder())
    except (ImportError, OSError, RuntimeError, subprocess.SubprocessError):
        return None  # the tests on HIP are skipped, with the backend's reason
    return stand_in


STAND_IN = _put_stand_in()


def _skip_without(backend: Any, need: Callable[[], None]) -> None:
    """Let a test of a text in C++ be skipped, or fail, as soon as it asks for a compiler that is not here."""
    compiler: Callable[[str], str] = backend.compiler

    def needed(language: str) -> str:
        if language != "ptx":
            need()
        return compiler(language)

    backend.compiler = needed


_skip_without(hip_backend.BACKEND, need_hip_compilers)
_skip_without(sim_backend.BACKEND, need_nvrtc)


def _device_of(item: Any) -> Any:
    """Return which device it is for, or which backend and language, by name."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return params.get("device", params.get("cache"))


def _says_little(item: pytest.Item) -> bool:
    """Whether it is skipped for want of a GPU, or runs on AMD's stand-in what sim runs of it."""
    device = _device_of(item)
    if device in ("cuda:0", "cuda-cuda") or "cuda" in getattr(item, "fixturenames", ()):
        return not NVIDIA_GPU and "cuda" not in REQUIRED
    return device in ("hip:0", "hip-hip") and not AMD_GPU


_OPS = [plan.op for plan in ptxrt.ops.plans() if not plan.op.endswith("_backward")]
_OF_RESULTS = tuple(f"test_{op}" for op in _OPS)


def _facts(item: Any) -> Iterator[Any]:
    """Each test of an op with each row of each list of parameters on each device, with a GPU each pair of their values.

    No pairs for variants in HIP, whose texts tests/hip runs once more. Where a device says little, each test once, but
    none of the results of an op; of every plan each op, as arguments reach the kernels.
    """
    given, test = item.callspec.params, (item.path, item.originalname, _device_of(item))
    if not _says_little(item):
        yield test  # one whose only parameter is the device has no pairs
        values = {name: value if isinstance(value, str | int | float) else id(value) for name, value in given.items()}
        for mark in item.iter_markers("parametrize"):
            names = mark.args[0].replace(",", " ").split() if isinstance(mark.args[0], str) else mark.args[0]
            yield test, *(values[name] for name in names)
        if NVIDIA_GPU and not str(given.get("variant", "")).startswith("hip/"):
            yield from ((test, pair) for pair in combinations(values.items(), 2))
        return
    if not (_device_of(item) == "hip:0" and item.path.parent.name == "ops" and item.path.name.startswith(_OF_RESULTS)):
        yield test
    if item.path.name == "test_every_plan.py" and "case" in given:
        yield item.originalname, given["device"], given["case"].plan


def _op_of(item: pytest.Item) -> str:
    """Return which op a test of the ops is of, by the names in its parameters or its file's; "" for others."""
    if item.path.parent.name != "ops":
        return ""
    return next((op for text in (item.name, item.path.name) for op in _OPS if op in text), "")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what takes the fixture `cuda`, so that ``-m cuda`` is all that needs one; leave out what HIP cannot run."""
    chosen: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        if "cuda" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cuda)
        params = item.callspec.params if hasattr(item, "callspec") else {}
        ptx = item.get_closest_marker("ptx") or not str(params.get("variant", "hip/")).startswith("hip/")
        (left_out if params.get("device") == "hip:0" and ptx else chosen).append(item)
    thin = [
        item for item in chosen if hasattr(item, "callspec") and (item.path.parent.name == "ops" or _says_little(item))
    ]
    left = set(thin).difference(covering(thin, _facts))
    part, parts = map(int, os.environ.get("PTXRT_TEST_PART", "1/1").split("/"))
    kept = [item for item in chosen if item not in left][part - 1 :: parts]
    left_out += set(chosen).difference(kept)
    chosen = kept
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    # Those of an op one after the other, so that of several processes one alone makes its kernels ready to run.
    items[:] = sorted(chosen, key=_op_of)


def pytest_collection_finish() -> None:
    """Leave the tens of thousands of collected tests out of the many garbage collections that tests ask for."""
    gc.freeze()


@pytest.fixture(scope="session", params=["sim:0", pytest.param("cuda:0", marks=pytest.mark.cuda), "hip:0"])
def device(request: pytest.FixtureRequest) -> ptxrt.Device:
    """Each device kind in turn."""
    return need_device(request.param)


@pytest.fixture(scope="session")
def other_device(device: ptxrt.Device) -> ptxrt.Device:
    """A second device of the same kind; skipped where there is one only (on CUDA that is the common case)."""
    try:
        return ptxrt.Device(f"{device.kind}:1")
    except ptxrt.InvalidArgument:
        if f"{device.kind}x2" in REQUIRED:
            pytest.fail(f"PTXRT_REQUIRE={device.kind}x2, but there is one {device.kind} device")
        pytest.skip(f"one {device.kind} device only")


@pytest.fixture(scope="session")
def cuda() -> ptxrt.Device:
    """The first CUDA device, for what CUDA alone has."""
    return need_device("cuda:0")


@pytest.fixture
def torch_with(cuda: ptxrt.Device) -> Iterator[Callable[[float], Any]]:
    """Return torch for a test that needs so many bytes of the GPU, once no test of another process does."""
    torch = pytest.importorskip("torch")
    with open(Path(tempfile.gettempdir()) / f"ptxrt-large-tests-{os.getuid()}", "w") as lock:

        def wait(nbytes: float) -> Any:
            if cuda.properties.total_memory < nbytes:
                pytest.skip(f"{int(nbytes) >> 30} GiB do not fit {cuda}")
            fcntl.flock(lock, fcntl.LOCK_EX)
            torch.manual_seed(0)
            return torch

        yield wait
        gc.collect()
        torch.cuda.empty_cache()
        cuda.trim_memory()


@pytest.fixture(scope="module", autouse=True)
def _few_checks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave sim's checks out of the ops' tests, which have many launches, but those that the environment asks for.

    test_every_variant makes them.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name == "ops" and "every_variant" not in request.path.name:
            patch.setenv("PTXRT_SIM_CHECKS", os.environ.get("PTXRT_SIM_CHECKS", "none"))
        yield


@pytest.fixture(scope="module", autouse=True)
def _store_of_the_run(request: pytest.FixtureRequest) -> Iterator[None]:
    """Have the ops' texts made and compiled once for all processes of a run, but where a test counts compiles."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.parent.name in ("ops", "hip", "distributed"):
            store = Path(os.environ["TEST_RUN_FOLDER"]) / "store"
            patch.setenv("PTXRT_CACHE_DISABLE", "0")
            patch.setenv("PTXRT_CACHE_DIR", str(store))
            patch.setattr(memos, "_folder", store / "memos")
        yield


@pytest.fixture(scope="module", autouse=True)
def _frozen_heap() -> None:
    """Leave what the tests of other files have loaded out of garbage collections, of which many tests want one."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    """The stand-in for AMD's library, its records and demanded errors cleared before and after."""
    if STAND_IN is None:
        if "hip" in REQUIRED and not AMD_GPU:
            pytest.fail("PTXRT_REQUIRE=hip, but there is no stand-in")
        pytest.skip(f"no stand-in for AMD's library: {hip_backend.BACKEND.unavailable() or 'there is an AMD GPU'}")
    gc.collect()  # or what an earlier test left is given back in the middle of this one, which counts handles
    STAND_IN.forget()
    yield STAND_IN
    STAND_IN.forget()


@pytest.fixture(autouse=True)
def _stand_in_is_sound() -> Iterator[None]:
    """Raise here what went wrong in the stand-in itself, which no C library can pass on."""
    yield
    if STAND_IN is not None and STAND_IN.broken:
        first = STAND_IN.broken[0]
        STAND_IN.broken.clear()  # or the next test is blamed
        raise first


@pytest.fixture(scope="session")
def hiprtc_there() -> None:
    """For what needs AMD's compiler, and no device."""
    need_hip_compilers()


@pytest.fixture
def sim() -> ptxrt.Device:
    """The first device of the PTX machine."""
    return ptxrt.Device("sim:0")


@pytest.fixture
def rng() -> np.random.Generator:
    """Random numbers, the same on every run."""
    return np.random.default_rng(2026)


@pytest.fixture
def clean_modules(device: ptxrt.Device) -> Iterator[ptxrt.ModuleCache]:
    """The device's module cache, emptied of what nobody holds, its bounds put back afterwards."""
    if device.kind == "hip":
        need_hip_compilers()  # here: a thread of the test's cannot skip it
    cache = device.modules
    bounds = cache.max_modules, cache.max_bytes
    ptxrt.ops.forget_plans()
    gc.collect()  # Kernels that a caught exception's traceback holds
    gc.freeze()
    cache.clear()
    yield cache
    cache.max_modules, cache.max_bytes = bounds
    cache.clear()


def pytest_unconfigure() -> None:
    """Leave what is loaded out of the last garbage collections; the process that has made this run's folder removes it.

    These collections, pytest's and the interpreter's, take seconds.
    """
    gc.freeze()
    if OWN_FOLDER is not None:
        shutil.rmtree(OWN_FOLDER, ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take in what one of pytest-xdist's processes has seen of the ops' errors."""
    from op_testing import add_worst_errors

    add_worst_errors(getattr(node, "workeroutput", {}).get("worst_errors", []))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the ops' errors to pytest-xdist's first process, where this is one of the others."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        from op_testing import worst_errors

        output["worst_errors"] = worst_errors()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the worst errors of the ops; with PTXRT_ERRORS=FILE, write them there too."""
    from op_testing import worst_errors, write_worst_errors

    rows = worst_errors()
    if not rows:
        return
    terminalreporter.section("worst errors of the ops, ||error|| / ||reference||")
    for row in rows:
        terminalreporter.write_line(
            f"{row['op']:42} {row['dtype']:9} {row['device']:5} {row['language']:4} {row['cases']:6} cases"
            f"  {row['error']:8.1e}  {row['of_bar']:5.0%} of the bar  worst element {row['element']:8.1e}"
        )
    if path := os.environ.get("PTXRT_ERRORS"):
        write_worst_errors(Path(path))
