"""``ptxrt verify``."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers import Capture, need_nvrtc

import ptxrt
from ptxrt.commands.cli import main

SCALE = """
__global__ void scale(const float* x, float* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
"""
CALL = ["--grid", "2", "--block", "32", "--arg", "x=random:f32:60", "--arg", "y=empty:f32:60", "--arg", "n=60"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    need_nvrtc()
    path = tmp_path / "scale.cu"
    path.write_text(SCALE)
    return path


def test_levels_that_agree(file: Path, cuda: ptxrt.Device, capsys: Capture) -> None:
    assert main(["verify", str(file), *CALL, "--device", str(cuda)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:5]] == [[f"-O{level}", "same"] for level in range(4)]
    assert lines[-1].endswith("every level of the assembler computes the same.")


def test_without_a_gpu_it_says_so(file: Path, capsys: Capture) -> None:
    assert main(["verify", str(file), *CALL, "--device", "sim:0"]) == 0
    assert capsys.readouterr().out == (
        "The PTX machine finds no fault. There is no NVIDIA GPU here to compare it with.\n"
    )


def test_a_fault_is_the_kernels(file: Path, capsys: Capture) -> None:
    file.write_text(SCALE.replace("if (i < n) ", ""))
    assert main(["verify", str(file), *CALL]) == 1
    out = capsys.readouterr().out
    assert out.startswith("MemoryFault: scale, ")
    assert "scale.cu:4" in out
    assert "It is the kernel" in out


@pytest.mark.parametrize("change", [["--arg", "z=1"], ["--grid", "x"], ["--device", "cuda:99"]])
def test_a_wrong_argument_is_exit_code_2(file: Path, capsys: Capture, change: list[str]) -> None:
    assert main(["verify", str(file), *CALL, *change]) == 2
    assert capsys.readouterr().err.startswith("ptxrt: ")
