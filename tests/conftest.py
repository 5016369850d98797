"""Fixtures: the same test body runs on every device there is.

A test that takes `device` runs on sim always and on CUDA where present; where it is not, it is skipped and counted,
or fails if PTXRT_REQUIRE names it (PTXRT_REQUIRE=cuda on a GPU machine).
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import ptxrt

# The same examples on every run; a first call compiles, so no deadline.
settings.register_profile(
    "ptxrt", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ptxrt")

REQUIRED = os.environ.get("PTXRT_REQUIRE", "").replace(",", " ").split()


def need_device(name: str) -> ptxrt.Device:
    """Return the device, or skip; fail where PTXRT_REQUIRE wants its kind."""
    kind = name.partition(":")[0]
    try:
        return ptxrt.Device(name)
    except (ptxrt.BackendUnavailable, ptxrt.InvalidArgument) as error:
        if kind in REQUIRED:
            pytest.fail(f"PTXRT_REQUIRE={kind}, but {error}")
        pytest.skip(f"no {name}: {error}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes the fixture `cuda`, so that ``-m cuda`` is all that needs a GPU."""
    for item in items:
        if "cuda" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.cuda)


@pytest.fixture(scope="session", params=["sim:0", pytest.param("cuda:0", marks=pytest.mark.cuda)])
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
    cache = device.modules
    bounds = cache.max_modules, cache.max_bytes
    gc.collect()  # Kernels that a caught exception's traceback holds
    cache.clear()
    yield cache
    cache.max_modules, cache.max_bytes = bounds
    cache.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the worst errors of the ops; with PTXRT_ERRORS=FILE, write them there too."""
    from op_testing import worst_errors, write_worst_errors

    rows = worst_errors()
    if not rows:
        return
    terminalreporter.section("worst errors of the ops, ||error|| / ||reference||")
    for row in rows:
        terminalreporter.write_line(
            f"{row['op']:42} {row['dtype']:9} {row['device']:5} {row['cases']:6} cases  {row['error']:8.1e}"
            f"  {row['of_bar']:5.0%} of the bar  worst element {row['element']:8.1e}"
        )
    if path := os.environ.get("PTXRT_ERRORS"):
        write_worst_errors(Path(path))
