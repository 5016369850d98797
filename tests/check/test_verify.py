"""A kernel on the PTX machine and as compiled at each level, compared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import need_nvrtc

import ptxrt
from ptxrt.check import Verification, verify
from ptxrt.check.compare import Difference
from ptxrt.check.levels import LEVELS, Level

SCALE = """
extern "C" __global__ void scale(const float* x, float* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i] + 1.0f;
}
"""
CALL: dict[str, Any] = {
    "grid": 2, "block": 32, "arguments": {"x": "random:f32:60", "y": "empty:f32:64", "n": 60},
}  # fmt: skip
SIGNATURE = "const f32* x[n], f32* y[n], u32 n"


@pytest.fixture(autouse=True)
def _compiler() -> None:
    need_nvrtc()


def run(text: str = SCALE, **how: Any) -> Verification:
    return verify(ptxrt.KernelSource.cuda(text), "scale", SIGNATURE, **{**CALL, **how})


def test_every_level_computes_what_the_machine_does(cuda: ptxrt.Device) -> None:
    found = run(device=cuda)
    assert [level.level for level in found.levels] == list(LEVELS)
    assert found.agrees, found.levels
    assert "every level of the assembler computes the same" in found.conclusion


def test_another_result_of_one_level_is_found(cuda: ptxrt.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = cuda.backend.compile

    def miscompiled(language: str, text: str, arch: str, **how: Any) -> Any:
        if how["options"] == ("-O2",):
            text = text.replace("0f3F800000", "0f40000000")
        return compile_(language, text, arch, **how)

    monkeypatch.setattr(cuda.backend, "compile", miscompiled)
    cuda.modules.clear()
    found = run(device=cuda)
    assert [level.agrees for level in found.levels] == [True, True, False, True]
    assert found.levels[2].differences["y"].index == 0
    assert found.levels[2].differences["y"].count == 60
    assert "-O2 compute something else than the others: the assembler" in found.conclusion
    cuda.modules.clear()


def test_without_a_gpu_the_machine_alone_is_asked() -> None:
    found = run(device="sim:0")
    assert found.device is None
    assert found.agrees
    assert "no NVIDIA GPU" in found.conclusion
    assert found.report.arrays["y"].dtype == np.float32


def test_a_kernel_with_a_fault_is_not_launched() -> None:
    found = run(SCALE.replace("if (i < n) ", ""), device=None)
    assert isinstance(found.report.fault, ptxrt.MemoryFault)
    assert not found.levels
    assert not found.agrees
    assert found.conclusion.startswith("It is the kernel")


def test_no_level_that_agrees_is_not_the_assemblers_fault() -> None:
    report = run(device="sim:0").report
    wrong = Difference(0, 1.0, 2.0, 1)
    levels = tuple(Level(level, {"y": wrong}) for level in LEVELS)
    assert "No level computes" in Verification(report, None, levels).conclusion


@pytest.mark.parametrize(("argument", "value"), [("levels", (4,)), ("levels", (0, "1"))])
def test_a_wrong_argument_is_refused(argument: str, value: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        run(**{argument: value})
    assert (caught.value.op, caught.value.argument) == ("verify", argument)


def test_amds_devices_have_no_levels() -> None:
    try:
        device = ptxrt.Device("hip:0")
    except ptxrt.BackendUnavailable as error:
        pytest.skip(str(error))
    with pytest.raises(ptxrt.InvalidArgument, match="NVIDIA GPU"):
        run(device=device)
