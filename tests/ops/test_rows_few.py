"""The backward of layer_norm and rms_norm of few rows, in one launch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Rng, refused
from op_testing import check_error
from test_rows_held import NORMS, backward, every_norm, every_type, problem, select
from tolerances import bar

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import element_type
from ptxrt.ops import references

pytestmark = pytest.mark.ptx


every_variant = pytest.mark.parametrize("variant", ["few", "hip/apart"])


@pytest.fixture(autouse=True)
def clusters(request: pytest.FixtureRequest) -> None:
    if "device" in request.fixturenames and request.getfixturevalue("variant") == "few":
        device = request.getfixturevalue("device")
        if device.kind == "cuda" and int(device.arch.removeprefix("sm_")) < 90:
            pytest.skip("no clusters before sm_90")


def gradients(
    device: Device, variant: str, norm: str, go: Any, x: Any, w: Any, eps: float = 1e-5, offset: int = 0
) -> list[Any]:
    return backward(device, norm, go, x, w, eps, variant, offset=offset)


def check(device: Device, variant: str, norm: str, given: Any, eps: float = 1e-5, large_mean: bool = False) -> None:
    go, x, w, *_ = given
    wants = getattr(references, f"{norm}_backward")(go, x, x.shape[1:], w, eps=eps)
    for place, (a, ref) in enumerate(zip(gradients(device, variant, norm, go, x, w, eps), wants, strict=True)):
        assert (a is None) == (ref is None)
        if a is not None:
            limit = bar(norm, element_type(a.dtype).name, ref, large_mean=large_mean)
            check_error(f"{norm} gradient {place}", device, a, ref, limit, x.shape)


@every_variant
@every_norm
@pytest.mark.parametrize(
    ("rows", "width", "name"),
    [
        *((3, width, "f32") for width in (64, 128, 132, 256, 264, 384, 396, 512)),  # one vector a lane to four
        *((9, width, name) for width in (72, 256, 264, 512) for name in ("f16", "bf16")),
        *((rows, 72, "f32") for rows in (1, 128, 129, 256)),  # a row, one a warp, and several
    ],
)
@pytest.mark.sanitize
def test_few_rows_match_cpu(
    device: Device, rng: Rng, variant: str, norm: str, rows: int, width: int, name: str
) -> None:
    check(device, variant, norm, problem(norm, rng, (rows, width), name))


@every_variant
@every_norm
@every_type
@pytest.mark.parametrize(("mean", "scale"), [(1e4, 1.0), (0.0, 1e-3), (0.0, 100.0)])
def test_any_mean_and_deviation_costs_few_rows_no_digits(
    device: Device, rng: Rng, variant: str, norm: str, name: str, mean: float, scale: float
) -> None:
    check(device, variant, norm, problem(norm, rng, (4, 264), name, mean, scale), 0.0, large_mean=mean > 0)


@every_variant
@every_norm
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_squares_of_few_rows_need_not_be_numbers_of_f32(
    device: Device, rng: Rng, variant: str, norm: str, scale: float
) -> None:
    go, x, w, *_ = problem(norm, rng, (2, 128), scale=scale)
    go *= np.float32(scale)
    wants = getattr(references, f"{norm}_backward")(go, x, (128,), w, eps=0.0)
    for a, ref in zip(gradients(device, variant, norm, go, x, w, 0.0), wants, strict=True):
        check_error(f"{norm} gradient", device, a, ref, 2e-7)


@every_variant
@every_norm
@every_type
def test_few_rows_without_weights_and_at_any_address(
    device: Device, rng: Rng, variant: str, norm: str, name: str
) -> None:
    go, x, w, *_ = problem(norm, rng, (3, 136), name)
    for weight in (w, None):
        check(device, variant, norm, (go, x, weight))
        wants = gradients(device, variant, norm, go, x, weight)
        for a, b in zip(gradients(device, variant, norm, go, x, weight, offset=1), wants, strict=True):
            np.testing.assert_array_equal(a, b)


@every_variant
@every_norm
def test_nan_spoils_its_row_of_few_and_all_columns(device: Device, rng: Rng, variant: str, norm: str) -> None:
    go, x, w, *_ = problem(norm, rng, (4, 136))
    x[0, 3], go[2, 5] = np.nan, np.nan
    grad_input, grad_weight, *_ = gradients(device, variant, norm, go, x, w)
    assert np.isnan(grad_input[[0, 2]]).all()
    assert np.isfinite(grad_input[[1, 3]]).all()
    assert np.isnan(grad_weight).all()


@every_variant
@every_norm
def test_a_column_of_equal_gradients_of_few_rows_costs_no_digits(
    device: Device, rng: Rng, variant: str, norm: str
) -> None:
    rows = 1024 if variant == "few" else 256  # eight rows a warp; all that a block takes
    go = np.full((rows, 64), 1.6000991, np.float32)
    x = rng.standard_normal(go.shape).astype("f4") if norm == "layer_norm" else np.ones_like(go)
    w = np.ones(64, np.float32)
    wants = getattr(references, f"{norm}_backward")(go, x, (64,), w, eps=1e-5)
    results = gradients(device, variant, norm, go, x, w)
    check_error(f"{norm} columns", device, results[-1], wants[-1], 2e-7)


@every_variant
@every_norm
@pytest.mark.parametrize(("rows", "width", "dtype", "reason"), [
    (4, 70, "f4", "rows of 70 values are not whole vectors of 4, up to 512 values"),
    (4, 516, "f4", "rows of 516 values are not whole vectors of 4, up to 512 values"),
    (4, 64, "f8", "no entries of f64"),
    (1025, 64, "f2", "rows, not 1025"),
])  # fmt: skip
def test_what_is_not_few_short_rows_is_refused(
    sim: Device, variant: str, norm: str, rows: int, width: int, dtype: str, reason: str
) -> None:
    x = np.broadcast_to(np.zeros(1, dtype), (rows, width))
    with refused(ptxrt.errors.Unsupported, f"{norm}_backward", "descriptor", reason):
        select(sim, norm, "Backward", x, 1e-5, variant)


@every_variant
@every_norm
def test_few_rows_are_those_that_are_done_soon(sim: Device, variant: str, norm: str) -> None:
    language = "hip" if "hip" in variant else "ptx"

    def chosen(rows: int, width: int) -> str:
        problem = getattr(ops, f"{NORMS[norm]}BackwardDescriptor")((rows, width), (width,))
        plan = getattr(ops, f"{NORMS[norm]}BackwardPlan").select(sim, problem, ptxrt.PlanPreference(language=language))
        return str(plan.key.variant)

    most = 512 if language == "ptx" else 256 if norm == "rms_norm" else 128  # of 256 rows
    shapes = ((1, 28), (1, 32), (256, most), (257, 64), (256, most + 4), (60, 516))
    name = variant.removeprefix("hip/")
    short = "held" if most >= 256 else "held_warps"
    assert [chosen(*shape) for shape in shapes] == ["baseline", name, name, "held_warps", short, "held"]
