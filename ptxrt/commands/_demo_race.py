"""The end of the demo: a kernel with a barrier left out, and what sim says of it."""

from __future__ import annotations

import numpy as np

from ptxrt.errors import BackendUnavailable, DataRace
from ptxrt.runtime.array import to_device
from ptxrt.runtime.device import Device
from ptxrt.runtime.kernel import load
from ptxrt.runtime.source import KernelSource

__all__ = ["TEXT", "race"]

TEXT = """\
// Reverses the 256 elements of x.
extern "C" __global__ void reverse(float* x) {
    __shared__ float tile[256];
    int i = threadIdx.x;
    tile[i] = x[i];
    // Here __syncthreads() is missing.
    x[i] = tile[255 - i];
}
"""


def race() -> tuple[str, bool]:
    """Return what sim says of the kernel, and whether that is as it should be; without NVRTC, that it is missing."""
    device = Device("sim:0")
    try:
        kernel = load(KernelSource.cuda(TEXT, name="reverse.cu"), "reverse", "f32* x", device)
        kernel.launch(1, 256, to_device(np.zeros(256, np.float32), device))
    except BackendUnavailable as error:
        return f"The kernel that shows how sim finds a race is not run: {error}", True
    except DataRace as error:
        return f"{type(error).__name__}: {error}", True
    return "no race was found: FAIL", False
