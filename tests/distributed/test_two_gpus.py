"""batch_norm over two GPUs of one host, a process each, through NCCL: one GPU's bits, captures, and errors."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

import ptxrt

SIZE = 2
SECONDS = 300

pytestmark = pytest.mark.cuda


@pytest.fixture(scope="module", autouse=True)
def _need_two_gpus() -> None:
    if sum(device.kind == "cuda" for device in ptxrt.devices()) < SIZE:
        pytest.skip(f"fewer than {SIZE} NVIDIA GPUs")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("no torch, which starts NCCL here")


def ranks(case: str) -> list[dict[str, Any] | None]:
    """Run a case on all GPUs; return what each rank prints, None for one that ended itself."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    script = Path(__file__).with_name("gpu_rank.py")
    started = [
        subprocess.Popen(
            [sys.executable, str(script), case, str(rank), str(SIZE), str(port)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(SIZE)
    ]
    seen: list[dict[str, Any] | None] = []
    try:
        for process in started:
            out, said = process.communicate(timeout=SECONDS)
            assert process.returncode in (0, 9), said[-3000:]
            seen.append(None if process.returncode else json.loads(out.splitlines()[-1]))
    finally:
        for process in started:
            process.kill()
    return seen


def test_two_gpus_have_the_bits_of_one_and_agree_or_are_told() -> None:
    of_all: set[str] = set()
    for rank, seen in enumerate(ranks("works")):
        assert seen is not None
        assert (seen["rank"], seen["size"]) == (rank, SIZE)
        assert seen["same object"] is True
        assert seen["wrong"] == seen["wrong on a stream"] == []
        assert seen["captured"] is True
        error, runs = seen["rounded"]
        assert error < 1e-6
        of_all.update(runs)
        assert seen["nccl4py"] in (None, [])
        assert seen["device"].startswith("DeviceMismatch: batch_norm: communicator: expected one of cuda:")
        assert seen["disagree"].startswith(
            "RanksDisagree: batch_norm: communicator: expected the same eps on all ranks"
        )
        assert "0.001 on rank 0; 1.001 on rank 1" in seen["disagree"]
        assert seen["and goes on"] == ""
    assert len(of_all) == 1


@pytest.mark.parametrize("case", ["ends before a new problem", "ends before a known problem"])
def test_a_rank_that_ended_is_an_error_on_the_other(case: str) -> None:
    seen, ended = ranks(case)
    assert ended is None
    assert seen is not None
    assert seen["lost"].startswith("RankLost: ")
