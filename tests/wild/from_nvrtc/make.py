"""Compile the .cu files of this folder to the .ptx files beside them: ``python make.py [OPTIONS OF NVRTC]``.

Needs no GPU, and the package nvidia-cuda-crt for mma.h.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ptxrt.compilers import nvrtc

HERE = Path(__file__).resolve().parent
OPTIONS = {"calls": ("-lineinfo", "-rdc=true"), "symbols": ("-G",)}
ARCHITECTURES = {"tensor_90": "sm_90"}


def main() -> None:
    """Write the files."""
    for path in sorted(HERE.glob("*.cu")):
        options = (*OPTIONS.get(path.stem, ()), "-default-device", *sys.argv[1:])
        arch = ARCHITECTURES.get(path.stem, "sm_80")
        made = nvrtc.compile_cuda(path.read_text(), arch, options, name=f"/src/{path.name}", output="ptx")
        text = made.code.rstrip(b"\0").decode("ascii")
        # What CUDA 12's assemblers read too, without the thousand constants of a header that nobody uses.
        text = re.sub(r"^\.version .*", ".version 8.0", text, count=1, flags=re.MULTILINE)
        text = re.sub(r"^\.global .* _ZN4cuda3std.*;\n", "", text, flags=re.MULTILINE)
        path.with_suffix(".ptx").write_text(text)


if __name__ == "__main__":
    main()
