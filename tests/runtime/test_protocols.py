"""The types of other libraries' arrays and streams, as a type checker sees them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers import ROOT

GOOD = """
import numpy as np
import ptxrt

class Interface:
    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {}

class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 0)

def use(kernel: ptxrt.Kernel, x: ptxrt.DeviceArray) -> None:
    kernel.launch(1, (32, 1), x, Interface(), np.zeros(3), None, 1, 2.5, np.float32(2), stream=Stream())
    kernel.launch(1, 32, stream=x.device.default_stream)
    arrays: list[ptxrt.DeviceArrayLike] = [x, Interface(), np.zeros(3)]
    streams: list[ptxrt.StreamLike] = [Stream(), x.device.default_stream]
    for array in arrays:
        ptxrt.from_dlpack(array, stream=streams[0])
    ptxrt.to_device([1.0, 2.0], stream=streams[1]).to_host(Stream())
    x.device.default_stream.wait(Stream())
    x.device.default_stream.wait(ptxrt.Event("sim"))
"""
BAD = {
    "a text for a stream": 'kernel.launch(1, 32, stream="0")',
    "a handle for a stream": "ptxrt.zeros(3, stream=0)",
    "a text for an argument": 'kernel.launch(1, 32, "x")',
    "a list for a shared array": "ptxrt.from_dlpack([1.0])",
    "a number to wait for": "x.device.default_stream.wait(0)",
}


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What mypy says of GOOD, and of each of BAD in one line behind it."""
    pytest.importorskip("mypy")
    path = tmp_path_factory.mktemp("typed") / "program.py"
    path.write_text(GOOD + "".join(f"    {line}\n" for line in BAD.values()))
    command = [sys.executable, "-m", "mypy", "--no-error-summary", f"--cache-dir={path.parent}", str(path)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()


def test_a_type_checker_takes_what_a_launch_takes(complaints):
    lines = len(GOOD.splitlines())
    assert [each for each in complaints if "error:" in each and int(each.split(":")[1]) <= lines] == []


@pytest.mark.parametrize("mistake", BAD)
def test_a_type_checker_refuses_what_a_launch_refuses(complaints, mistake):
    line = len(GOOD.splitlines()) + 1 + list(BAD).index(mistake)
    assert [each for each in complaints if each.split(":")[1] == str(line) and "error:" in each]
