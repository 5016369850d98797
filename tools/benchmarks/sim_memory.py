"""Launch saxpy on the PTX machine over as many elements as the argument says, and print the peak memory in bytes."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

import numpy as np

import ptxrt
from ptxrt.commands._demo_cases import SAXPY


def main(elements: int) -> None:
    """Launch once, check the result, print."""
    device = ptxrt.Device("sim:0")
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(SAXPY), "saxpy", "const f32* x, f32* y, u32 n, f32 a", device)
    x = ptxrt.to_device(np.ones(elements, np.float32), device)
    y = ptxrt.to_device(np.ones(elements, np.float32), device)
    kernel.launch(-(-elements // 256), 256, x, y, elements, 2.0)
    if y.to_host().min() != 3:
        sys.exit("wrong result")
    print(_peak())


def _peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    try:  # ru_maxrss begins with what the process had that started this one
        return 1024 * int(re.findall(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[0])
    except OSError:  # macOS, whose ru_maxrss is in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main(int(sys.argv[1]))
