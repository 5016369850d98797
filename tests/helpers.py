"""What several test files share: an error held to its class and fields, and a script in a process of its own."""

from __future__ import annotations

import fcntl
import hashlib
import heapq
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pytest

import ptxrt
from ptxrt.compilers import Binary, hiprtc, nvrtc

Capture: TypeAlias = pytest.CaptureFixture[str]
Patch: TypeAlias = pytest.MonkeyPatch
Rng: TypeAlias = np.random.Generator
Shape: TypeAlias = tuple[int, ...]

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = os.environ.get("PTXRT_REQUIRE", "").replace(",", " ").split()
EVERYTHING = os.environ.get("PTXRT_TEST_ALL") == "1"
"""Whether each product of kernels, types, targets and devices is tested in full: see `covering`."""
NVIDIA_GPU = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
"""Whether NVIDIA's kernel driver is here, or that of Windows under Linux."""
AMD_GPU = Path("/dev/kfd").exists()
"""Whether AMD's kernel driver is here; where it is not, tests/hip/standin.py stands in for its library."""

ELEMENT_NAMES = ("f32", "f64", "f16", "bf16", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "bool")

AMD_TARGETS = {"gfx1100": 32, "gfx90a": 64, "gfx942": 64}
"""What the kernels in HIP are compiled for and run as, with the lanes in a wave."""

_Row = TypeVar("_Row")


def covering(rows: Iterable[_Row], facts: Callable[[Any], Iterable[Hashable]]) -> list[_Row]:
    """Return rows of a matrix in which each fact of all rows is still found; all rows with ``PTXRT_TEST_ALL=1``.

    A fact is what a test has to meet somewhere: a kernel in its type, a type on a target, a kernel at the lowest
    target. What goes wrong nearly always does so for one value of a factor or one pair of values, wherever else these
    stand, so a row for each such fact finds it; the products of three and more are for the full run.

    Parameters
    ----------
    rows
        In their order the earlier one is chosen of two that are worth the same; so the choice is the same every time.
    facts
        Of a row. One of none is left out.
    """
    rows = list(rows)
    if EVERYTHING:
        return rows
    chosen, found = [], set[Hashable]()
    queue = [(-len(named), number, named) for number, row in enumerate(rows) if (named := set(facts(row)))]
    heapq.heapify(queue)  # by how many facts are new, as of when a row was last looked at
    while queue:
        worth, number, named = heapq.heappop(queue)
        if new := named - found:
            if len(new) < -worth:
                heapq.heappush(queue, (-len(new), number, new))
                continue
            chosen.append(number)
            found |= new
    return [rows[number] for number in sorted(chosen)]


def amd_targets(dtype: str) -> tuple[str, ...]:
    """Return the targets of AMD that kernels of a type are compiled for: one, so that each family is on three of them.

    With ``PTXRT_TEST_ALL=1`` f32 is on all of them.
    """
    if dtype == "f32" and EVERYTHING:
        return tuple(AMD_TARGETS)
    return ({"f64": "gfx90a", "bf16": "gfx942"}.get(dtype, "gfx1100"),)


def once_a_run(make: Callable[[], bytes], *key: str) -> Path:
    """Return a file of what `make` gives, which one process of a test run makes for all of them; `key` is its name."""
    path = Path(os.environ["TEST_RUN_FOLDER"]) / hashlib.sha256(repr(key).encode("utf-8", "surrogatepass")).hexdigest()
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            part = path.with_suffix(".part")
            part.write_bytes(make())
            part.rename(path)
    return path


def compiled_for_amd(text: str, arch: str, name: str) -> Binary:
    """Return what hipRTC makes of a HIP text: once a run."""
    file = once_a_run(lambda: pickle.dumps(hiprtc.compile_hip(text, arch, name=name)), "hipRTC", text, arch, name)
    found: Binary = pickle.loads(file.read_bytes())
    return found


def need_hip_compilers() -> None:
    """Skip, or fail where PTXRT_REQUIRE wants hipRTC, unless HIP text compiles and the stand-in can run it."""
    reason = hiprtc.available() or (None if AMD_GPU else nvrtc.available())
    if reason is None:
        return
    if "hiprtc" in REQUIRED:
        pytest.fail(f"PTXRT_REQUIRE=hiprtc, but {reason}")
    pytest.skip(reason)


def need_nvrtc() -> None:
    """Skip, or fail where PTXRT_REQUIRE wants a GPU of NVIDIA, unless CUDA C++ compiles."""
    reason = nvrtc.available()
    if reason is None:
        return
    if "cuda" in REQUIRED:
        pytest.fail(f"PTXRT_REQUIRE=cuda, but {reason}")
    pytest.skip(reason)


def with_stand_in(device: ptxrt.Device) -> dict[str, str]:
    """Return what the environment of a script must have that uses `device`, and of the processes that it starts."""
    if device.kind != "hip" or AMD_GPU:
        return {}
    # sitecustomize.py there puts the stand-in in place.
    path = filter(None, (str(ROOT / "tests" / "hip"), os.environ.get("PYTHONPATH")))
    return {"PYTHONPATH": os.pathsep.join(path), "TEST_STAND_IN": "1"}


class _Before:
    """Stands before a backend, as a watcher does; what it lacks is the backend's."""

    def __init__(self, behind: Any) -> None:
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._behind, name)


def launches_by(patch: Patch, device: ptxrt.Device, launch: Callable[..., None]) -> None:
    """Have the device's launches go to `launch`, those too that would be calls of the driver alone."""
    before: Any = _Before(device.backend)
    before.launch = launch
    patch.setattr(device, "backend", before)


@contextmanager
def refused(kind: type[ptxrt.PtxrtError], op: str | None, argument: str | None, *words: str) -> Iterator[Any]:
    """Expect exactly `kind`, with these fields, and a message in which all of `words` stand."""
    with pytest.raises(ptxrt.PtxrtError) as caught:
        yield caught
    error = caught.value
    # With messages, since pytest rewrites the asserts of test files only.
    fields = (type(error), error.op, error.argument)
    assert fields == (kind, op, argument), f"{fields} instead of {(kind, op, argument)}: {error}"
    assert not (missing := [word for word in words if word not in str(error)]), f"without {missing}: {error}"


def run_script(text: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a new interpreter, with ptxrt importable; return its exit status and what it printed."""
    before = environment.pop("PYTHONPATH", None) or os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, (str(ROOT), before)))
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def printed_by(text: str, **environment: str) -> str:
    """Run a script that must end well and without a word on stderr; return what it printed."""
    done = run_script(text, **environment)
    assert (done.returncode, done.stderr) == (0, ""), f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def skip_stand_in(device: ptxrt.Device) -> None:
    """Skip what a stand-in for an AMD GPU would only repeat: it runs the PTX that sim runs of the same text."""
    if device.kind == "hip" and not AMD_GPU:
        pytest.skip("the stand-in runs what sim runs")
