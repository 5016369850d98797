"""The rows of tools/bench.py ops with torch on the CPU and ptxrt on sim: both compute the same. ``make test-torch``."""

from __future__ import annotations

import time
from typing import Any

import pytest
from benchmarks import ops
from benchmarks.ops_cases import Case, cases
from benchmarks.ops_torch import bar, error, make_row, their_bar
from helpers import Patch

import ptxrt

torch: Any = pytest.importorskip("torch")

SMALL = sorted({case.small() for case in cases()}, key=lambda case: f"{case.op} {case}")


@pytest.mark.parametrize("case", SMALL, ids=lambda case: f"{case.op} {case} {case.groups}")
def test_ours_and_torchs_are_the_reference_within_their_bars(case: Case, sim: ptxrt.Device) -> None:
    row = make_row(torch, case, "cpu")
    reference, result = row.reference(), row.ours()
    assert error(torch, result, reference) <= bar(case)
    assert row.nbytes(result) > 0
    if case.family != "local_response_norm" or case.dtype not in ("f16", "bf16"):  # which torch has on GPUs alone
        assert error(torch, row.peer(lambda run: run)(), reference) <= their_bar(case)


def test_an_error_is_seen(sim: ptxrt.Device) -> None:
    row = make_row(torch, Case("group_norm_backward", (2, 32, 4, 4), groups=8), "cpu")
    reference, result = row.reference(), row.ours()
    for part in result:
        host = part.to_host().copy()
        part.copy_from(host * (1 + 1e-6))
        assert error(torch, result, reference) == pytest.approx(1e-6, rel=0.1)
        host.flat[0] = float("nan")
        part.copy_from(host)
        assert error(torch, result, reference) == float("inf")
        host.flat[0] = 1
        part.copy_from(host)
        break
    assert row.nbytes(result) == 4 * (3 * 1024 + 3 * 32)


def test_a_row_is_measured_with_torch_compiled(sim: ptxrt.Device, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PTXRT_LANGUAGE", "ptx")  # and undone afterwards
    monkeypatch.setattr(torch, "compile", lambda run, **how: run if how["fullgraph"] else None)
    case = Case("local_response_norm_backward", (1, 8, 4, 4))
    (row,) = ops.measure(torch, sim, [case], ["ptx"], 1, time.monotonic() + 60)["rows"]
    assert row["failed"] == {}
    assert row["times"].keys() == {"ptx", "eager", "compile", "copy"}
    assert row["floor"] > 0
