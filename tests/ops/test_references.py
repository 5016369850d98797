"""The references against closed forms, cases worked by hand, and finite differences for every backward and input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from tolerances import (
    bar,
    far_from_jumps,
    grid_sample_bar,
    half_ulp,
    relative_error,
    worst_element_error,
)

from ptxrt.ops import references as ref

Array = NDArray[Any]

ROOT2, ROOT3 = np.sqrt(np.longdouble(2)), np.sqrt(np.longdouble(3))


def normal(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def slope(loss: Callable[[Array], Any], at: Array) -> Array:
    """Return the gradient of a scalar function by central differences of fourth order, in longdouble."""
    h = np.longdouble(1e-4)
    at = at.astype(np.longdouble)
    gradient = np.zeros(at.shape, np.longdouble)
    for index in np.ndindex(*at.shape):

        def moved(steps: int, index: tuple[int, ...] = index) -> Any:
            other = at.copy()
            other[index] += steps * h
            return loss(other)

        gradient[index] = (8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * h)
    return gradient


def assert_slope(gradient: Array | None, loss: Callable[[Array], Any], at: Array) -> None:
    assert gradient is not None
    assert gradient.shape == at.shape
    assert relative_error(gradient, slope(loss, at)) < 1e-11


# ---- precision ----


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_work_up_to_f32_is_done_in_float64(dtype: Any) -> None:
    x = normal(0, 2, 4, 3).astype(dtype)
    assert ref.group_norm(x, None, None, 2).dtype == np.float64
    assert_array_equal(ref.softmax2d(x), ref.softmax2d(x.astype(np.float32)))


def test_work_on_f64_is_done_in_longdouble() -> None:
    y = ref.softmax2d(np.zeros((1, 3, 1)))
    assert y.dtype == np.longdouble
    assert_array_equal(y, np.longdouble(1) / 3)


def test_eps_of_an_f32_kernel_is_the_float32_nearest_to_it() -> None:
    x = np.array([1e-3, -1e-3], np.float32).reshape(1, 1, 2)
    spread = float(x[0, 0, 0])
    assert_allclose(
        ref.group_norm(x, None, None, 1, eps=1e-5)[0, 0, 0],
        spread / np.sqrt(spread**2 + float(np.float32(1e-5))),
        rtol=1e-15,
    )


def test_arguments_are_left_as_they_are() -> None:
    x, mean, var = normal(1, 3, 2, 4), np.zeros(2), np.ones(2)
    before = x.copy()
    ref.batch_norm(x, None, None, mean, var, training=True)
    assert_array_equal(mean, 0)
    assert_array_equal(var, 1)
    assert_array_equal(x, before)


# ---- group_norm ----


def test_group_norm_by_hand() -> None:
    # groups {1, 3, 5, 7}: mean 4, variance 5; {0, 0, 0, 4}: mean 1, variance 3
    x = np.array([[[1, 3], [5, 7], [0, 0], [0, 4]]], np.float64)
    w, b = np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 10.0, 20.0, 30.0])
    root5 = np.sqrt(np.longdouble(5))
    expected = [
        [
            [-3 / root5, -1 / root5],
            [2 / root5 + 10, 6 / root5 + 10],
            [20 - ROOT3, 20 - ROOT3],
            [30 - 4 / ROOT3, 30 + 4 * ROOT3],
        ]
    ]
    assert_allclose(ref.group_norm(x, w, b, 2, eps=0.0), expected, rtol=1e-18)


def test_group_norm_of_one_value_a_group_is_the_bias() -> None:
    x, b = normal(2, 3, 4, 1), normal(3, 4)
    assert_array_equal(ref.group_norm(x, normal(4, 4), b, 4), np.broadcast_to(b[None, :, None], x.shape))


def test_group_norm_without_weight_and_bias_is_that_with_ones_and_zeros() -> None:
    x = normal(5, 2, 6, 3)
    assert_array_equal(ref.group_norm(x, None, None, 3), ref.group_norm(x, np.ones(6), np.zeros(6), 3))


def test_group_norm_keeps_the_variance_at_a_large_mean() -> None:
    x = np.array([9999.0, 10001.0], np.float32).reshape(1, 1, 2)
    assert_allclose(ref.group_norm(x, None, None, 1, eps=0.0), [[[-1, 1]]], rtol=1e-15)


def test_group_norm_refuses_groups_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="divide"):
        ref.group_norm(normal(6, 1, 6, 2), None, None, 4)
    with pytest.raises(ValueError, match="divide"):
        ref.group_norm_backward(normal(6, 1, 6, 2), normal(6, 1, 6, 2), None, 4)


@pytest.mark.parametrize("shape", [(0, 4, 3), (2, 4, 0)])
def test_group_norm_of_nothing_is_nothing(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape)
    assert ref.group_norm(x, None, None, 2).shape == shape
    grad_input, grad_weight, grad_bias = ref.group_norm_backward(x, x, np.ones(4), 2)
    assert grad_input.shape == shape
    assert_array_equal(grad_weight, np.zeros(4))
    assert_array_equal(grad_bias, np.zeros(4))


def test_group_norm_backward_is_the_slope() -> None:
    x, go, w, b = normal(7, 2, 4, 2, 2), normal(8, 2, 4, 2, 2), normal(9, 4), normal(10, 4)
    grad_input, grad_weight, grad_bias = ref.group_norm_backward(go, x, w, 2, eps=1e-3)
    assert_slope(grad_input, lambda v: (go * ref.group_norm(v, w, b, 2, eps=1e-3)).sum(), x)
    assert_slope(grad_weight, lambda v: (go * ref.group_norm(x, v, b, 2, eps=1e-3)).sum(), w)
    assert_slope(grad_bias, lambda v: (go * ref.group_norm(x, w, v, 2, eps=1e-3)).sum(), b)


def test_group_norm_backward_without_weight() -> None:
    x, go = normal(11, 2, 4, 3), normal(12, 2, 4, 3)
    grad_input, grad_weight, grad_bias = ref.group_norm_backward(go, x, None, 2)
    assert grad_weight is None
    assert_allclose(grad_bias, go.sum(axis=(0, 2)), rtol=1e-14)
    assert_slope(grad_input, lambda v: (go * ref.group_norm(v, None, None, 2)).sum(), x)


# ---- layer_norm, rms_norm ----


def test_layer_norm_by_hand() -> None:
    # {1, 3, 5, 7}: mean 4, variance 5; {0, 0, 0, 4}: mean 1, variance 3
    x = np.array([[[1, 3], [5, 7]], [[0, 0], [0, 4]]], np.float64)
    w, b = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[0.0, 10.0], [20.0, 30.0]])
    root5 = np.sqrt(np.longdouble(5))
    expected = [
        [[-3 / root5, -2 / root5 + 10], [3 / root5 + 20, 12 / root5 + 30]],
        [[-1 / ROOT3, 10 - 2 / ROOT3], [20 - 3 / ROOT3, 30 + 12 / ROOT3]],
    ]
    assert_allclose(ref.layer_norm(x, (2, 2), w, b, eps=0.0), expected, rtol=1e-18)


def test_rms_norm_by_hand() -> None:
    x, w = np.array([[1.0, 7.0], [3.0, 4.0]]), np.array([2.0, 3.0])  # mean squares 25 and 12.5
    expected = [[np.longdouble(2) / 5, np.longdouble(21) / 5], [6 * ROOT2 / 5, 12 * ROOT2 / 5]]
    assert_allclose(ref.rms_norm(x, 2, w, eps=0.0), expected, rtol=1e-18)


def test_layer_norm_of_a_row_is_group_norm_of_a_group() -> None:
    x = normal(7, 3, 4, 5)
    assert_allclose(ref.layer_norm(x, (4, 5)), ref.group_norm(x, None, None, 1), rtol=1e-17)


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
@pytest.mark.parametrize("row", [(), (3,), (2, 5), (1, 2, 4, 5)])
def test_norms_of_rows_refuse_what_x_does_not_end_in(op: str, row: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="last axes"):
        getattr(ref, op)(normal(8, 2, 4, 5), row)


def test_layer_norm_backward_is_the_slope() -> None:
    x, w, b, go = normal(9, 3, 2, 4), normal(10, 2, 4), normal(11, 2, 4), normal(12, 3, 2, 4)
    gx, gw, gb = ref.layer_norm_backward(go, x, (2, 4), w)
    assert_slope(gx, lambda at: (go * ref.layer_norm(at, (2, 4), w, b)).sum(), x)
    assert_slope(gw, lambda at: (go * ref.layer_norm(x, (2, 4), at, b)).sum(), w)
    assert_slope(gb, lambda at: (go * ref.layer_norm(x, (2, 4), w, at)).sum(), b)


def test_rms_norm_backward_is_the_slope() -> None:
    x, w, go = normal(13, 3, 5), normal(14, 5), normal(15, 3, 5)
    gx, gw = ref.rms_norm_backward(go, x, 5, w)
    assert_slope(gx, lambda at: (go * ref.rms_norm(at, 5, w)).sum(), x)
    assert_slope(gw, lambda at: (go * ref.rms_norm(x, 5, at)).sum(), w)


# ---- softmax2d ----


def test_softmax2d_by_hand() -> None:
    x = np.log(np.array([1.0, 2.0, 5.0])).reshape(1, 3, 1, 1)
    assert_allclose(ref.softmax2d(x).ravel(), [0.125, 0.25, 0.625], rtol=1e-15)


def test_softmax2d_is_over_the_channels_of_each_position() -> None:
    x = normal(13, 2, 3, 2, 2)
    y = ref.softmax2d(x)
    for n, i, j in np.ndindex(2, 2, 2):
        e = [np.exp(np.longdouble(v)) for v in x[n, :, i, j]]
        assert_allclose(y[n, :, i, j], [v / sum(e) for v in e], rtol=1e-17)


def test_softmax2d_does_not_overflow() -> None:
    x = np.array([1000.0, 1000.0, -1e30], np.float32).reshape(1, 3, 1)
    assert_array_equal(ref.softmax2d(x).ravel(), [0.5, 0.5, 0])


@pytest.mark.parametrize("column", [(-np.inf, -np.inf), (np.nan, 1.0), (np.inf, 1.0), (-np.inf, np.nan)])
def test_softmax2d_of_a_hopeless_column_is_nan_there_alone(column: tuple[float, float]) -> None:
    x = np.zeros((1, 2, 2), np.float32)
    x[0, :, 1] = column
    y = ref.softmax2d(x)
    assert np.isnan(y[0, :, 1]).all()
    assert_array_equal(y[0, :, 0], 0.5)


def test_softmax2d_gives_no_weight_to_minus_infinity() -> None:
    x = np.array([-np.inf, 3.0, 3.0], np.float32).reshape(1, 3, 1)
    assert_array_equal(ref.softmax2d(x).ravel(), [0, 0.5, 0.5])


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 0, 2), (2, 3, 0)])
def test_softmax2d_of_nothing_is_nothing(shape: tuple[int, ...]) -> None:
    assert ref.softmax2d(np.zeros(shape)).shape == shape
    assert ref.softmax2d_backward(np.zeros(shape), np.zeros(shape)).shape == shape


def test_softmax2d_backward_is_the_slope() -> None:
    x, go = normal(14, 2, 3, 2, 2), normal(15, 2, 3, 2, 2)
    gradient = ref.softmax2d_backward(go, ref.softmax2d(x))
    assert_slope(gradient, lambda v: (go * ref.softmax2d(v)).sum(), x)


# ---- batch_norm ----


def test_batch_norm_in_training_by_hand() -> None:
    # channel 0 is {1, 3, 5, 7}: mean 4, variance 5; channel 1 is {0, 0, 0, 4}: mean 1, variance 3
    x = np.array([[[1, 3], [0, 0]], [[5, 7], [0, 4]]], np.float64)
    y, mean, var = ref.batch_norm(x, np.array([2.0, 1.0]), np.array([0.0, 1.0]), None, None, training=True, eps=0.0)
    assert_array_equal(mean, [4, 1])
    assert_array_equal(var, [5, 3])
    root5 = np.sqrt(np.longdouble(5))
    expected = [[[-6 / root5, -2 / root5], [1 - 1 / ROOT3] * 2], [[2 / root5, 6 / root5], [1 - 1 / ROOT3, 1 + ROOT3]]]
    assert_allclose(y, expected, rtol=1e-17)


def test_batch_norm_in_eval_reads_the_running_statistics() -> None:
    x = np.array([[[5.0]], [[9.0]]])
    y, mean, var = ref.batch_norm(x, None, np.array([1.0]), np.array([3.0]), np.array([4.0]), training=False, eps=0.0)
    assert_array_equal(y.ravel(), [2, 4])
    assert mean is None
    assert var is None


def test_running_statistics_move_by_the_momentum_to_the_unbiased_variance() -> None:
    x = np.array([1.0, 3.0, 5.0, 7.0]).reshape(4, 1, 1)  # mean 4, unbiased variance 20 / 3
    mean, var = ref.updated_running_statistics(x, np.array([8.0]), np.array([2.0]), momentum=0.25)
    assert_array_equal(mean, [7])
    assert_allclose(var, [0.75 * 2 + 0.25 * np.longdouble(20) / 3], rtol=1e-18)


@pytest.mark.parametrize("shape", [(1, 2, 1), (0, 2, 5), (3, 2, 0)])
def test_batch_norm_refuses_to_train_on_fewer_than_two_values(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape)
    with pytest.raises(ValueError, match="at least 2"):
        ref.batch_norm(x, None, None, None, None, training=True)
    with pytest.raises(ValueError, match="at least 2"):
        ref.batch_norm_backward(x, x, None, None, None, training=True)


def test_batch_norm_refuses_eval_without_statistics() -> None:
    x = np.zeros((2, 2, 2))
    with pytest.raises(ValueError, match="running"):
        ref.batch_norm(x, None, None, None, None, training=False)
    with pytest.raises(ValueError, match="running"):
        ref.batch_norm_backward(x, x, None, np.zeros(2), None, training=False)


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_backward_is_the_slope(training: bool) -> None:
    x, go, w, b = normal(16, 3, 2, 2, 2), normal(17, 3, 2, 2, 2), normal(18, 2), normal(19, 2)
    mean, var = normal(20, 2), normal(21, 2) ** 2 + 0.5

    def loss(x: Array, w: Array, b: Array) -> Any:
        return (go * ref.batch_norm(x, w, b, mean, var, training=training, eps=1e-3)[0]).sum()

    grad_input, grad_weight, grad_bias = ref.batch_norm_backward(go, x, w, mean, var, training=training, eps=1e-3)
    assert_slope(grad_input, lambda v: loss(v, w, b), x)
    assert_slope(grad_weight, lambda v: loss(x, v, b), w)
    assert_slope(grad_bias, lambda v: loss(x, w, v), b)


def test_batch_norm_backward_takes_the_batch_statistics_of_the_forward() -> None:
    x, go, w = normal(22, 3, 2, 4), normal(23, 3, 2, 4), normal(24, 2)
    _, mean, var = ref.batch_norm(x, w, None, None, None, training=True)
    handed = ref.batch_norm_backward(go, x, w, None, None, training=True, batch_mean=mean, batch_var=var)
    for one, other in zip(handed, ref.batch_norm_backward(go, x, w, None, None, training=True), strict=True):
        assert_array_equal(one, other)
    with pytest.raises(ValueError, match="both"):
        ref.batch_norm_backward(go, x, w, None, None, training=True, batch_mean=mean)


def test_batch_norm_backward_without_weight() -> None:
    x, go = normal(25, 3, 2, 4), normal(26, 3, 2, 4)
    plain = ref.batch_norm_backward(go, x, None, None, None, training=True)
    ones = ref.batch_norm_backward(go, x, np.ones(2), None, None, training=True)
    assert plain[1] is None
    assert_array_equal(plain[0], ones[0])
    assert_array_equal(plain[2], ones[2])


# ---- local_response_norm ----


@pytest.mark.parametrize(
    ("size", "sums"),
    [
        (1, [1, 4, 9, 16]),
        (2, [1, 1 + 4, 4 + 9, 9 + 16]),  # even: c - 1 and c
        (3, [1 + 4, 1 + 4 + 9, 4 + 9 + 16, 9 + 16]),
        (4, [1 + 4, 1 + 4 + 9, 1 + 4 + 9 + 16, 4 + 9 + 16]),  # even: c - 2 to c + 1
        (9, [30, 30, 30, 30]),
    ],
)
def test_lrn_window_by_hand(size: int, sums: list[int]) -> None:
    x = np.array([1.0, 2.0, 3.0, 4.0]).reshape(1, 4, 1)
    y, denom = ref.local_response_norm(x, size, alpha=size, beta=0.5, k=2.0)
    assert_array_equal(denom.ravel(), np.array(sums) + 2)
    assert_allclose(y.ravel(), x.ravel() / np.sqrt(np.array(sums, np.longdouble) + 2), rtol=1e-18)


def test_lrn_divides_by_the_size_at_the_edges_too() -> None:
    _, denom = ref.local_response_norm(np.full((1, 1, 1), 3.0), 5, alpha=10.0, k=0.0)
    assert_array_equal(denom, [[[18]]])


def test_lrn_refuses_size_zero() -> None:
    x = np.ones((1, 2, 2))
    with pytest.raises(ValueError, match="size"):
        ref.local_response_norm(x, 0)
    with pytest.raises(ValueError, match="size"):
        ref.local_response_norm_backward(x, x, x, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11])
def test_lrn_backward_is_the_slope(size: int) -> None:
    x, go = normal(27, 2, 5, 2), normal(28, 2, 5, 2)
    _, denom = ref.local_response_norm(x, size, alpha=0.7, beta=0.6, k=1.3)
    gradient = ref.local_response_norm_backward(go, x, denom, size, alpha=0.7, beta=0.6)
    assert_slope(gradient, lambda v: (go * ref.local_response_norm(v, size, alpha=0.7, beta=0.6, k=1.3)[0]).sum(), x)


# ---- upsample_nearest2d ----


def test_upsample_indices_by_hand() -> None:
    assert ref.nearest_source_indices(2, 4) == [0, 0, 1, 1]
    assert ref.nearest_source_indices(3, 5) == [0, 0, 1, 1, 2]  # 0, 0.6, 1.2, 1.8, 2.4
    assert ref.nearest_source_indices(5, 2) == [0, 2]
    assert ref.nearest_source_indices(1, 3) == [0, 0, 0]


def test_upsample_uses_the_double_product() -> None:
    assert ref.nearest_source_indices(30, 44)[22] == 14
    assert 22 * 30 // 44 == 15


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.uint8, np.uint32])
def test_upsample_moves_elements_of_every_type(dtype: Any) -> None:
    x = np.array([[1, 2, 3], [4, 5, 6]]).astype(dtype).reshape(1, 1, 2, 3)
    y = ref.upsample_nearest2d(x, 3, 4)
    assert y.dtype == x.dtype
    rows = [1, 1, 2, 3]  # 0, 0.75, 1.5, 2.25
    assert_array_equal(y[0, 0].astype(int), [rows, rows, [4, 4, 5, 6]])


def test_upsample_reads_any_strides() -> None:
    x = np.arange(48, dtype=np.uint32).reshape(2, 2, 3, 4)
    view = x.transpose(1, 0, 3, 2)[:, :, ::2]
    assert_array_equal(ref.upsample_nearest2d(view, 5, 7), ref.upsample_nearest2d(view.copy(), 5, 7))


def test_upsample_backward_by_hand() -> None:
    go = np.arange(1, 7, dtype=np.float32).reshape(1, 1, 2, 3)
    assert_array_equal(ref.upsample_nearest2d_backward(go, 1, 1), [[[[21]]]])
    assert_array_equal(ref.upsample_nearest2d_backward(go, 4, 2), [[[[3, 3], [0, 0], [9, 6], [0, 0]]]])
    assert ref.upsample_nearest2d_backward(go, 1, 1).dtype == np.float64


def test_upsample_refuses_sizes_of_zero() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ref.upsample_nearest2d(np.zeros((1, 1, 2, 2)), 0, 3)
    with pytest.raises(ValueError, match="nothing to read"):
        ref.upsample_nearest2d(np.zeros((1, 1, 0, 2)), 2, 3)


# ---- grid_sample ----


def centres(height: int, width: int) -> Array:
    """Return the grid whose points are the pixels' own centres, [1, height, width, 2]."""
    gx = (2 * np.arange(width) + 1) / width - 1
    gy = (2 * np.arange(height) + 1) / height - 1
    return np.stack(np.broadcast_arrays(gx[None, :], gy[:, None]), axis=-1)[None]


def test_grid_sample_at_the_pixels_is_the_image() -> None:
    x = normal(29, 1, 2, 4, 8)
    assert_array_equal(ref.grid_sample(x, centres(4, 8)), x)


def test_grid_sample_takes_x_first() -> None:
    x = np.arange(8.0).reshape(1, 1, 2, 4)
    grid = np.array([0.75, -0.5]).reshape(1, 1, 1, 2)  # the last column, the first row
    assert ref.grid_sample(x, grid).item() == 3


def test_grid_sample_of_a_ramp_is_the_ramp() -> None:
    sx, sy = np.array([0.25, 1.5, 2.75]), np.array([0.5, 1.25, 0.125])
    x = (10 * np.arange(4)[:, None] + np.arange(4)[None, :]).astype(np.float64).reshape(1, 1, 4, 4)
    grid = np.stack([(2 * sx + 1) / 4 - 1, (2 * sy + 1) / 4 - 1], axis=-1).reshape(1, 1, 3, 2)
    assert_array_equal(ref.grid_sample(x, grid).ravel(), 10 * sy + sx)


def test_grid_sample_fades_to_zero_across_the_border() -> None:
    x = np.full((1, 1, 2, 2), 8.0)
    grid = np.array([[-1, -0.5], [1, -0.5], [-1, -1], [-1.5, -0.5], [1.5, 0.5]]).reshape(1, 1, 5, 2)
    assert_array_equal(ref.grid_sample(x, grid).ravel(), [4, 4, 2, 0, 0])


OUTSIDE = [np.nan, np.inf, -np.inf, 1e30, -1e30]


@pytest.mark.parametrize("value", OUTSIDE)
@pytest.mark.parametrize("axis", [0, 1])
def test_grid_sample_outside_is_zero_and_so_are_the_gradients(value: float, axis: int) -> None:
    x, grid = normal(30, 1, 2, 3, 3).astype(np.float32), np.zeros((1, 1, 1, 2), np.float32)
    grid[..., axis] = value
    assert_array_equal(ref.grid_sample(x, grid), np.zeros((1, 2, 1, 1)))
    grad_input, grad_grid = ref.grid_sample_backward(np.ones((1, 2, 1, 1), np.float32), x, grid)
    assert_array_equal(grad_input, np.zeros_like(x))
    assert_array_equal(grad_grid, np.zeros_like(grid))


@pytest.mark.parametrize("shape", [(1, 2, 0, 3), (1, 2, 3, 0)])
def test_grid_sample_of_an_empty_image_is_zero(shape: tuple[int, ...]) -> None:
    grid = np.zeros((1, 2, 2, 2))
    assert_array_equal(ref.grid_sample(np.zeros(shape), grid), np.zeros((1, 2, 2, 2)))
    _, grad_grid = ref.grid_sample_backward(np.ones((1, 2, 2, 2)), np.zeros(shape), grid)
    assert_array_equal(grad_grid, np.zeros_like(grid))


def test_grid_sample_backward_is_the_slope() -> None:
    x, go = normal(31, 2, 3, 4, 5), normal(32, 2, 3, 3, 4)
    # in cells inside, on all borders and outside, no closer than 0.1 to an integer coordinate
    rng = np.random.default_rng(33)
    s = rng.integers(-2, 6, (2, 3, 4, 2)) + rng.uniform(0.1, 0.9, (2, 3, 4, 2))
    grid = (2 * s + 1) / np.array([5, 4]) - 1
    grad_input, grad_grid = ref.grid_sample_backward(go, x, grid)
    assert_slope(grad_input, lambda v: (go * ref.grid_sample(v, grid)).sum(), x)
    assert_slope(grad_grid, lambda v: (go * ref.grid_sample(x, v)).sum(), grid)


@pytest.mark.parametrize("modes", [{"mode": "cubic"}, {"padding_mode": "edge"}], ids=str)
def test_grid_sample_refuses_what_it_does_not_know(modes: Any) -> None:
    with pytest.raises(ValueError, match="no mode"):
        ref.grid_sample(np.zeros((1, 1, 2, 2)), centres(2, 2), **modes)


def test_grid_sample_of_a_volume_is_not_bicubic() -> None:
    with pytest.raises(ValueError, match="3 axes"):
        ref.grid_sample(np.zeros((1, 1, 2, 2, 2)), np.zeros((1, 1, 1, 1, 3)), mode="bicubic")


# ---- the measures ----


def test_relative_error_by_hand() -> None:
    assert relative_error(np.array([3.0, 5.0]), np.array([3.0, 4.0])) == 0.2
    assert relative_error(np.zeros(2), np.zeros(2)) == 0
    assert relative_error(np.array([0.0, 1e-30]), np.zeros(2)) == np.inf
    assert relative_error(np.zeros((0, 3)), np.zeros((0, 3))) == 0


@pytest.mark.parametrize("measure", [relative_error, worst_element_error])
def test_measures_want_the_same_nans_and_infinities(measure: Callable[[Any, Any], float]) -> None:
    wanted = np.array([np.nan, 1.0, np.inf])
    assert measure(np.array([np.nan, 1.0, np.inf]), wanted) == 0
    for wrong in ([1.0, np.nan, np.inf], [0.0, 1.0, np.inf], [np.nan, 1.0, -np.inf], [np.nan, np.nan, np.inf]):
        assert measure(np.array(wrong), wanted) == np.inf
    with pytest.raises(ValueError, match="shapes"):
        measure(np.zeros(2), np.zeros((2, 1)))


def test_worst_element_error_finds_the_one_that_the_norm_hides() -> None:
    wanted = np.ones(10_000)
    out = wanted.copy()
    out[77] += 1e-5
    assert relative_error(out, wanted) < 2e-7
    assert_allclose(worst_element_error(out, wanted), 1e-5, rtol=1e-6)


def test_worst_element_error_does_not_punish_cancellation() -> None:
    assert worst_element_error(np.array([1.0, 2e-9]), np.array([1.0, 1e-9])) < 2e-9


@pytest.mark.parametrize(("name", "dtype"), [("f16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_half_ulp_holds_one_rounding(name: str, dtype: Any) -> None:
    values = normal(34, 4000) * np.exp2(np.random.default_rng(35).integers(-30, 10, 4000))
    values[0] = 0
    ratio = np.abs(values.astype(dtype).astype(np.float64) - values) / half_ulp(values, name)
    assert ratio.max() <= 1
    assert ratio.max() > 0.99


def test_bar_of_16_bits_is_passed_by_one_rounding_and_not_by_two_ulp() -> None:
    wanted = normal(36, 1000)
    out = wanted.astype(np.float16)
    assert relative_error(out, wanted) < bar("softmax2d", "f16", wanted)
    assert relative_error(out * np.float16(1 + 2**-9), wanted) > bar("softmax2d", "f16", wanted)


def test_bars_are_those_of_the_list() -> None:
    assert bar("group_norm", "f32") == 2e-7
    assert bar("batch_norm", "f64", large_mean=True) == 1e-14
    assert bar("upsample_nearest2d", "bf16") == 0
    assert grid_sample_bar("f32", 7, 100) == 400 * 2.0**-23
    with pytest.raises(ValueError, match="reference"):
        bar("group_norm", "f16")


def test_far_from_jumps_leaves_out_what_rounding_may_move() -> None:
    sx = np.array([0.5, 1.0, 2 + 1e-7, 1e8, np.nan, np.inf])
    assert far_from_jumps("f32", 4, 4, sx, np.full(6, 0.5)).tolist() == [True, False, False, True, True, True]
