"""Kernels in the dress of other compilers and authors: right on every device, and the same bits on sim as on a GPU."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import by_hand  # noqa: F401 (it adds its cases, as those below do)
import in_triton  # noqa: F401
import like_nvcc  # noqa: F401
import numpy as np
import on_tensor_cores  # noqa: F401
import on_textures  # noqa: F401
import pytest
from helpers import Patch
from tolerances import relative_error
from wild import CASES, HERE, Bench, Case

import ptxrt
from ptxrt.check.compare import first_difference, is_exact
from ptxrt.compilers import nvjitlink
from ptxrt.compilers.ptx_text import entries_of, scan
from ptxrt.sim import CHECKS_VARIABLE

pytestmark = pytest.mark.ptx

# What is any bits on a GPU, or was not measured; of .approx and .full an H200's are known (docs/sim.md).
OPEN = re.compile(r"\b(?:atom|red)\.[\w.:]*\.(?:f16|bf16|f32|f64)|\btanh\.approx|\brsqrt\.approx\.f64")

each = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assembled(path: Path) -> None:
    """Assemble a text; skip where there are letters in comments that this nvJitLink does not take."""
    text = path.read_text("utf-8")
    target = scan(text).target
    try:
        nvjitlink.compile_ptx(text, target if target[-1] == "a" else "sm_90", name=path.name)
        if int(target.strip("sm_a")) >= 75:
            nvjitlink.compile_ptx(text, target, name=path.name)
    except ptxrt.CompileError as error:
        if text.isascii() or "install a newer nvJitLink" not in str(error):
            raise
        pytest.skip(f"nvJitLink {nvjitlink.version()} takes ASCII alone, in comments too")


@each
def test_every_result_is_the_reference(case: Case, device: ptxrt.Device, monkeypatch: Patch) -> None:
    if device.kind == "cuda":
        assembled(case.file)
    monkeypatch.setenv(CHECKS_VARIABLE, "all")
    for name, result in case.results(device).items():
        if result.bar == 0:
            np.testing.assert_array_equal(result.out, result.reference, name)
        assert relative_error(result.out, result.reference) <= result.bar, name


@each
def test_sim_has_the_bits_of_the_gpu(case: Case, cuda: ptxrt.Device, sim: ptxrt.Device) -> None:
    if sim.arch != cuda.arch:
        pytest.skip(f"sim computes as {sim.arch}, {cuda} is {cuda.arch}: set PTXRT_SIM_ARCH")
    assembled(case.file)
    text = case.file.read_text("utf-8")
    exact = not OPEN.search(text) if cuda.arch == "sm_90" else is_exact(text)
    on_sim, on_gpu = (case.results(device) for device in (sim, cuda))
    for name, result in on_gpu.items():
        assert first_difference(on_sim[name].out, result.out, exact=exact) is None, name


def test_what_a_kernel_prints(device: ptxrt.Device, capfd: pytest.CaptureFixture[str]) -> None:
    bench = Bench(device, HERE / "from_nvrtc" / "printing.ptx")
    x, counts = np.array([1, -0.5, 3, -1234.5678], np.float32), bench.empty(8, np.int32)
    bench.load("report", "const f32* x, i32* counts[8], i32 n").launch(1, 8, bench.put(x), counts, 4)
    assert counts.numpy().tolist() == [0, 4, 0, 4, 0, 0, 0, 0]
    device.synchronize()
    ctypes.CDLL(None).fflush(None)  # of the driver's printf
    printed = sorted(capfd.readouterr().out.splitlines())
    assert printed == ["negative 1: -0.500 at 0x10 of x", "negative 3: -1234.568 at 0x30 of x"]


@pytest.mark.skipif(nvjitlink.available() is not None, reason="no nvJitLink")
@pytest.mark.parametrize("path", sorted(HERE.rglob("*.ptx")), ids=lambda path: path.stem)
def test_every_text_assembles(path: Path) -> None:
    assembled(path)


def test_every_entry_is_in_a_case() -> None:
    named = "".join(path.read_text() for path in (*HERE.glob("[!t]*.py"), HERE / "from_triton" / "kernels.json"))
    entries = {entry for path in HERE.rglob("*.ptx") for entry in entries_of(path.read_text("utf-8"))}
    # What prints has a test of its own; the other is in the way of its sibling.
    assert {entry for entry in entries if f'"{entry}"' not in named} == {"report", "warpgroup"}
