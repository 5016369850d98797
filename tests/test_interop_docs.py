"""The arithmetic of docs/interop.md runs as written, where the library and the device are there."""

from __future__ import annotations

import re

import pytest
from helpers import ROOT, Capture

import ptxrt

SECTION = (ROOT / "docs" / "interop.md").read_text().partition("## Arithmetic\n")[2].partition("\n## ")[0]
PROGRAMS = {
    re.findall(r"^import (numpy|torch|cupy|jax)\b", text, re.MULTILINE)[0]: text
    for text in re.findall(r"^```python\n(.*?)^```$", SECTION, re.MULTILINE | re.DOTALL)
}
PRINTS = {
    "numpy": "[[20., 21., 22.],\n             [20., 21., 22.]], shape=(2, 3), dtype=float32, device='sim:0')\n(2, 3)\n",
    "torch": "[[21., 21., 21.],\n             [21., 21., 21.]], shape=(2, 3), dtype=float32, device='cuda:0') (4, 3)\n",
    "cupy": "[[20., 20., 20.],\n             [20., 20., 20.]], shape=(2, 3), dtype=float32, device='cuda:0') (2,)\n",
    "jax": "[[1., 1., 1.],\n             [1., 1., 1.]], shape=(2, 3), dtype=float32, device='cuda:0')\n",
}


@pytest.mark.parametrize("library", PRINTS)
def test_other_libraries_do_the_arithmetic(library: str, capsys: Capture) -> None:
    pytest.importorskip(library)
    text, expected = PROGRAMS[library], PRINTS[library]
    if not any(device.kind == "cuda" for device in ptxrt.devices()):
        # Shared the same way, from the host's memory; CuPy has none.
        if library == "cupy":
            pytest.skip("no CUDA device")
        text, expected = text.replace("cuda:0", "sim:0"), expected.replace("cuda:0", "sim:0")
    exec(compile(text, "docs/interop.md", "exec"), {})
    assert capsys.readouterr().out == f"DeviceArray({expected}"
