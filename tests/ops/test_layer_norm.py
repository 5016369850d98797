"""layer_norm, forward and backward: values in every variant, width and type, edges, and what a row is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Patch, Rng, Shape, refused
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, on_device, wish
from tolerances import EPSILON, bar

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import references
from ptxrt.ops._layer_norm import FAMILY
from ptxrt.ops.framework import forget_plans, parameter_type, rows
from ptxrt.ops.framework.rows import RowsBackwardConfig, RowsConfig

BASELINE = ("baseline", "hip/baseline")  # test_rows_held.py has the others
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)
every_way = pytest.mark.parametrize(("variant", "warps"), [(key, warps) for key in BASELINE for warps in (8, 1)])


def problem(rng: Rng, shape: Shape, row: Shape, name: str = "f32", mean: float = 0.0) -> tuple[Any, ...]:
    """Return grad_out, x, weight, bias."""
    kind = BY_NAME[name]
    tensors = [(rng.standard_normal(shape) + at).astype(kind.numpy) for at in (0.0, mean)]
    return (*tensors, *(rng.standard_normal(row).astype(parameter_type(kind).numpy) for _ in "wb"))


def forward(
    device: Device, x: Any, row: Any, w: Any = None, b: Any = None, eps: float = 1e-5, way: Any = (None, None)
) -> Any:
    variant, warps = way
    preference = wish(variant, config=None if warps is None else RowsConfig(warps))
    plan = ops.LayerNormPlan.select(
        device, ops.LayerNormDescriptor(x.shape, row, element_type(x.dtype), eps), preference
    )
    out = Guarded(x.shape, x.dtype, device)
    plan.run(ops.LayerNormArgs(on_device(x, device), on_device(w, device), on_device(b, device), out.array))
    return out.host()


def backward(
    device: Device, go: Any, x: Any, row: Any, w: Any = None, eps: float = 1e-5, variant: Any = None, config: Any = None
) -> list[Any]:
    descriptor = ops.LayerNormBackwardDescriptor(x.shape, row, element_type(x.dtype), eps)
    plan = ops.LayerNormBackwardPlan.select(device, descriptor, wish(variant, config=config))
    results = plan.run(ops.LayerNormBackwardArgs(*(on_device(a, device) for a in (go, x, w))))
    return [None if a is None else a.to_host() for a in results]


def check_forward(device: Device, given: Any, row: Any, large_mean: bool = False, way: Any = (None, None)) -> None:
    _, x, w, b = given
    want, got = references.layer_norm(x, row, w, b), forward(device, x, row, w, b, way=way)
    limit = bar("layer_norm", element_type(x.dtype).name, want, large_mean=large_mean)
    check_error("layer_norm", device, got, want, limit, (x.shape, row, way))


def check_backward(device: Device, given: Any, row: Any, large_mean: bool = False, **how: Any) -> None:
    go, x, w, _ = given
    want = references.layer_norm_backward(go, x, row, w)
    for name, a, ref in zip(ops.LayerNormGradients._fields, backward(device, go, x, row, w, **how), want, strict=True):
        assert (a is None) == (ref is None)
        if a is not None:
            limit = bar("layer_norm", element_type(a.dtype).name, ref, large_mean=large_mean)
            check_error(f"layer_norm {name}", device, a, ref, limit, (x.shape, row, how))


# Values ---------------------------------------------------------------------------------------------------------------

ROWS: list[tuple[Shape, Shape]] = [
    ((3, 1), (1,)),
    ((5,), (5,)),  # one row
    ((2, 3, 4, 5), (4, 5)),
    ((2, 31), (31,)),  # round one turn of a warp
    ((2, 33), (33,)),
    ((1, 132), (132,)),  # round one turn of a warp, by vectors
    ((1, 255), (255,)),
    ((1, 257), (257,)),
    ((1, 1028), (1028,)),
    ((1, 2063), (2063,)),
    ((1, 2056), (2056,)),
]


@every_way
@pytest.mark.parametrize(("shape", "row"), ROWS, ids=str)
@pytest.mark.sanitize
def test_layer_norm_matches_cpu(device: Device, rng: Rng, shape: Shape, row: Shape, variant: str, warps: int) -> None:
    check_forward(device, problem(rng, shape, row), row, way=(variant, warps))


@every_way
@pytest.mark.parametrize(("shape", "row"), ROWS[::2], ids=str)
def test_layer_norm_backward_matches_cpu(
    device: Device, rng: Rng, shape: Shape, row: Shape, variant: str, warps: int
) -> None:
    check_backward(device, problem(rng, shape, row), row, variant=variant, config=RowsBackwardConfig(warps, 16))


@every_way
@pytest.mark.parametrize("width", [62, 63, 64, 65, 257, 2047, 2054, 4612])  # round 64, where pairs end; turns
def test_in_f64_neither_an_outlier_in_front_costs_accuracy_nor_a_constant_in_grad_out(
    device: Device, rng: Rng, width: int, variant: str, warps: int
) -> None:
    go, x, w, b = problem(rng, (2, width), (width,), "f64")
    x[1, 0] = 1e10
    check_forward(device, (go, x, w, b), width, way=(variant, warps))
    config = RowsBackwardConfig(warps, 16)
    check_backward(device, (go, x, w, b), width, variant=variant, config=config)
    go += 1e8  # which counts for grad_bias alone
    grad_input, _, grad_bias = references.layer_norm_backward(go.astype(np.longdouble) - 1e8, x, width)
    got = backward(device, go, x, width, variant=variant, config=config)
    for a, want in ((got[0], grad_input), (got[2], grad_bias + 2e8)):
        check_error("layer_norm gradient", device, a, want, bar("layer_norm", "f64"), (width, variant, warps))


@pytest.mark.parametrize("variant", BASELINE)
@pytest.mark.parametrize("width", [5, 62, 63])
def test_of_few_values_in_f64_what_cancels_of_a_gradient_costs_no_accuracy(
    device: Device, rng: Rng, width: int, variant: str
) -> None:
    go, x, *_ = problem(rng, (2, width), (width,), "f64")
    check_backward(device, (3 + 2 * x + 1e-3 * go, x, None, None), width, variant=variant)


@every_type
def test_layer_norm_of_drawn_problems(device: Device, name: str) -> None:
    def body(lead: list[int], row: list[int], seed: int, mean: float) -> None:
        shape, axes = (*lead, *row), tuple(row)
        given = problem(np.random.default_rng(seed), shape, axes, name, mean)
        if np.prod(axes) > 1:  # the variance of one value is 0, and its gradient what rounding leaves
            check_forward(device, given, axes)
            # Of two values all but a share of eps cancels, 1e5 times as large, which the reference of f64 rounds too.
            if name != "f64" or np.prod(axes) > 2:
                check_backward(device, given, axes)

    lengths = st.integers(1, 12)
    for_drawn(
        device, body, lead=st.lists(lengths, max_size=2), row=st.lists(lengths, min_size=1, max_size=2),
        seed=st.integers(0, 99), mean=st.sampled_from([0.0, 3.0]),
    )  # fmt: skip


@every_type
@pytest.mark.parametrize("variant", BASELINE)
def test_a_large_mean_costs_no_digits(device: Device, rng: Rng, name: str, variant: str) -> None:
    given = problem(rng, (4, 264), (264,), name, 1e4)
    check_forward(device, given, (264,), large_mean=True, way=(variant, None))
    check_backward(device, given, (264,), large_mean=True, variant=variant)


@pytest.mark.parametrize("variant", BASELINE)
def test_without_weight_and_bias_they_are_ones_and_zeros(device: Device, rng: Rng, variant: str) -> None:
    go, x, w, b = problem(rng, (3, 20), (20,))
    for weight, bias in ((None, None), (w, None), (None, b)):
        check_forward(device, (go, x, weight, bias), (20,), way=(variant, None))
    check_backward(device, (go, x, None, None), (20,), variant=variant)
    check_backward(device, (go[:, 1:].copy(), x[:, 1:].copy(), None, None), (19,), variant=variant)


@pytest.mark.parametrize("name", ["f16", "bf16"])
@pytest.mark.parametrize("variant", BASELINE)
def test_of_16_bits_the_result_is_that_of_f32_rounded(device: Device, name: str, variant: str) -> None:
    """f32 rounds y to the middle of two numbers of the type: the even one is the result; from f64, the other."""
    half = EPSILON[name] / 2
    x = np.array([[1, -1]], BY_NAME[name].numpy)  # of mean 0 and variance 1
    w, b = np.array([2.0**-40, 2.0**-40], np.float32), np.array([1 + half, 1 + 3 * half], np.float32)
    got = forward(device, x, (2,), w, b, 0.0, (variant, None))
    np.testing.assert_array_equal(got, np.array([[1, 1 + 4 * half]], x.dtype))


# Edges ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("variant", BASELINE)
def test_nan_and_infinity_spoil_their_row_alone(device: Device, rng: Rng, name: str, variant: str) -> None:
    go, x, w, b = problem(rng, (4, 9), (9,), name)
    x[0, 3], x[1, 0], go[2, 5] = np.nan, np.inf, np.nan
    y = forward(device, x, (9,), w, b, way=(variant, None))
    grad_input, grad_weight, grad_bias = backward(device, go, x, (9,), w, variant=variant)
    assert np.isnan(y).all(axis=1).tolist() == np.isnan(y).any(axis=1).tolist() == [True, True, False, False]
    spoilt = np.isnan(grad_input)
    assert spoilt.all(axis=1).tolist() == spoilt.any(axis=1).tolist() == [True, True, True, False]
    assert np.isnan(grad_weight).all()
    assert np.isnan(grad_bias).tolist() == [i == 5 for i in range(9)]


def test_equal_values_give_the_bias_and_nan_where_eps_is_0(device: Device, rng: Rng) -> None:
    _, _, w, b = problem(rng, (2, 8), (8,))
    x = np.full((2, 8), 3.1, np.float32)
    np.testing.assert_array_equal(forward(device, x, (8,), w, b), [b, b])
    assert np.isnan(forward(device, x, (8,), w, b, 0.0)).all()


@pytest.mark.parametrize("variant", BASELINE)
def test_eps_counts(device: Device, variant: str) -> None:
    x = np.array([[1e-3, -1e-3], [2.0, 4.0]], np.float32)
    go = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)
    want = references.layer_norm(x, 2, eps=0.5)
    check_error("layer_norm", device, forward(device, x, 2, eps=0.5, way=(variant, None)), want, 2e-7)
    grads = references.layer_norm_backward(go, x, 2, eps=0.5)
    check_error(
        "layer_norm grad_input", device, backward(device, go, x, 2, eps=0.5, variant=variant)[0], grads[0], 2e-7
    )


@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("variant", BASELINE)
@pytest.mark.parametrize(("shape", "length"), [((40, 5), 1), ((40, 5), 3), ((300, 2), 1)], ids=str)
def test_columns_are_added_up_over_slices_of_any_length(
    device: Device, rng: Rng, name: str, variant: str, shape: Shape, length: int
) -> None:
    given = problem(rng, shape, shape[1:], name)  # more slices than a warp has lanes, or 8 warps
    check_backward(device, given, shape[1:], variant=variant, config=RowsBackwardConfig(1, length))


@every_way
def test_blocks_take_their_rows_in_turn(device: Device, rng: Rng, monkeypatch: Patch, variant: str, warps: int) -> None:
    go, x, w, b = problem(rng, (7, 303), (303,))
    config = RowsBackwardConfig(warps, 2)
    want = [
        forward(device, x, 303, w, b, way=(variant, warps)),
        *backward(device, go, x, 303, w, 1e-5, variant, config),
    ]
    monkeypatch.setattr(rows, "blocks_in_hip", lambda count, threads: 3)
    got = [forward(device, x, 303, w, b, way=(variant, warps)), *backward(device, go, x, 303, w, 1e-5, variant, config)]
    for one, other in zip(got, want, strict=True):
        np.testing.assert_array_equal(one, other)


# What a row is --------------------------------------------------------------------------------------------------------


def test_a_row_is_an_int_or_a_tuple_of_the_last_axes(device: Device, rng: Rng) -> None:
    _, x, w, b = problem(rng, (2, 3, 4), (4,))
    there = [on_device(a, device) for a in (x, w, b)]
    results = [ops.layer_norm(there[0], row, *there[1:]).to_host() for row in (4, np.int64(4), (4,), [4])]
    assert len({y.tobytes() for y in results}) == 1
    descriptor = ops.LayerNormDescriptor((2, 3, 4), (3, 4))
    assert (descriptor.rows, descriptor.width, descriptor.op) == (2, 12, "layer_norm")


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_a_row_that_is_a_list_selects_one_plan(device: Device, monkeypatch: Patch, norm: str) -> None:
    forget_plans()
    plan = getattr(ops, {"layer_norm": "LayerNormPlan", "rms_norm": "RmsNormPlan"}[norm])
    select: Any = plan.select
    selected: list[Any] = []

    def noted(*given: Any) -> Any:
        selected.append(given)
        return select(*given)

    monkeypatch.setattr(plan, "select", noted)
    x = ptxrt.zeros((2, 3, 4), "float32", device)
    for row in ([3, 4], (3, 4), [3, 4], np.array([3, 4])):
        getattr(ops, norm)(x, row)
    assert len(selected) == 1


@pytest.mark.parametrize("row", [3, 8, (), (3,), (2, 4), (4, 3), (1, 2, 3, 4)], ids=str)
def test_a_row_that_x_does_not_end_in_is_refused(device: Device, row: Any) -> None:
    x = ptxrt.zeros((2, 3, 4), "float32", device)
    with refused(ptxrt.ShapeMismatch, "layer_norm", "normalized_shape", "the last axes of x, (2, 3, 4)"):
        ops.layer_norm(x, row)
    with refused(ptxrt.ShapeMismatch, "layer_norm_backward", "normalized_shape", "the last axes of x, (2, 3, 4)"):
        ops.layer_norm_backward(x, x, row)


def test_gradients_are_not_written_over_what_is_read(device: Device) -> None:
    x, go = ptxrt.zeros((2, 4), "float32", device), ptxrt.zeros((2, 4), "float32", device)
    for read in (x, go):
        with refused(ptxrt.LayoutError, "layer_norm_backward", "grad_input", "memory not shared"):
            ops.layer_norm_backward(go, x, 4, out=(read, None, None))


def test_counts_are_of_64_bits(sim: Device) -> None:
    for shape in ((1 << 34, 4), (2, 1 << 34)):
        row = shape[-1:]
        assert ops.LayerNormPlan.select(sim, ops.LayerNormDescriptor(shape, row)).schedule.launches
        for language in ("ptx", "hip"):
            preference = ptxrt.PlanPreference(language=language)
            assert ops.LayerNormBackwardPlan.select(sim, ops.LayerNormBackwardDescriptor(shape, row), preference)


@pytest.mark.parametrize(
    ("shape", "warps"), [((1, 128), 1), ((2047, 129), 8), ((2048, 129), 1), ((2048, 1024), 1), ((2048, 1025), 8)]
)
def test_a_warp_has_a_row_of_few_values_and_of_many_rows(shape: Shape, warps: int) -> None:
    assert RowsConfig.heuristic(ops.LayerNormDescriptor(shape, shape[1:])) == RowsConfig(warps)
