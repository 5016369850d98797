"""Ordinary CUDA C++ gives on sim what NumPy says, and what a GPU gives."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from cases import Case
from comparison import CASES, compare_case

import ptxrt
from ptxrt.compilers import nvrtc

each = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if reason := nvrtc.available():
        pytest.skip(reason)


def test_there_are_at_least_sixty_of_one_name_each() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.why for case in CASES if case.ulps), "a bound without a reason"
    assert sum(case.expect is not None for case in CASES) >= 60


def _nan(x: np.ndarray) -> np.ndarray:
    return np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, np.bool_)


@each
def test_on_sim(sim: ptxrt.Device, case: Case) -> None:
    found = cases.launch(case, sim)
    wanted = cases.outputs(case)
    for got, want in zip(found, found if wanted is None else wanted, strict=True):
        flat, right = got.reshape(-1), want.reshape(-1)
        if case.close:
            x, y = flat.astype(np.float64), right.astype(np.float64)
            good = (np.abs(x - y) <= case.close * np.maximum(np.abs(y), 1e-3)) | (np.isnan(x) & np.isnan(y))
        else:
            unsigned = f"u{flat.dtype.itemsize}"
            good = (flat.view(unsigned) == right.view(unsigned)) | (_nan(flat) & _nan(right))
        at = (~good).nonzero()[0]
        assert not at.size, f"{at.size} of {good.size}, the first at {at[0]}: {flat[at[0]]!r} for {right[at[0]]!r}"


@pytest.mark.cuda
@each
def test_on_a_gpu_as_on_sim(sim: ptxrt.Device, cuda: ptxrt.Device, case: Case) -> None:
    report = compare_case(case, cases.launch(case, sim), cases.launch(case, cuda))
    assert not report.wrong, f"{report.wrong} of {report.results}: {report.example}"


def test_the_comparison_sees_what_differs(sim: ptxrt.Device) -> None:
    exact = next(case for case in CASES if case.name == "float_basics")
    rough = next(case for case in CASES if case.name == "libm_expf")
    for case, step, wrong in ((exact, 1, 1), (rough, 1, 0), (rough, 100, 1)):
        results = cases.launch(case, sim)
        other = [np.copy(one) for one in results]
        at = int(np.isfinite(other[0].reshape(-1)).nonzero()[0][0])
        other[0].reshape(-1).view(np.uint32)[at] += step
        report = compare_case(case, results, other)
        assert (report.wrong, report.equal, report.worst) == (wrong, report.results - 1, step)
