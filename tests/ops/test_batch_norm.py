"""batch_norm forward: its values in each variant, its edges, and each of its checks."""

from __future__ import annotations

import itertools
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Patch, Rng, Shape, covering, launches_by
from hypothesis import assume
from hypothesis import strategies as st
from op_testing import (
    Array,
    Guarded,
    assert_rounded_once,
    check_error,
    for_drawn,
    group_norm_rounded_twice,
    key_of,
    on_device,
    variants,
    wish,
)
from tolerances import bar, relative_error

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import BatchNormArgs, BatchNormDescriptor, BatchNormPlan, batch_norm, references
from ptxrt.ops._batch_norm_passes import ColumnsConfig, EvalConfig, SplitConfig, WriteConfig, tiles
from ptxrt.ops._batch_norm_problem import FAMILY
from ptxrt.ops.framework import parameter_type

TRAINING = ("cached", "columns", "split", "baseline", "hip/baseline")
EVAL = ("elementwise", "baseline", "hip/baseline")
WAYS = [(True, variant) for variant in TRAINING] + [(False, variant) for variant in EVAL]
OTHERS = [name for name in FAMILY.dtypes if name != "f32"]  # the same texts: fewer cases of each


def kinds_of(name: str) -> tuple[Any, Any]:
    """Return NumPy's types of a type's elements and of its vectors."""
    return BY_NAME[name].numpy, parameter_type(BY_NAME[name]).numpy


def problem(rng: Rng, shape: Shape, mean: float = 0.0, name: str = "f32") -> tuple[Array, ...]:
    """Return x, weight, bias, running_mean, running_var."""
    kind, real = kinds_of(name)
    x = (rng.standard_normal(shape) + mean).astype(kind)
    w, b = (rng.standard_normal(shape[1]).astype(real) for _ in "wb")
    running = (rng.standard_normal(shape[1]) + mean).astype(real)
    return x, w, b, running, (rng.random(shape[1]) + 0.5).astype(real)


def run(
    device: Device, values: Any, *, training: bool, variant: str | None = None, config: Any = None,
    momentum: float = 0.1, eps: float = 1e-5, offset: int = 0, out_offset: int = 0, **how: Any,
) -> dict[str, Array]:  # fmt: skip
    """Run the plan of `variant` on `device` into guarded outputs; return the host results, by name."""
    x, *vectors = values
    dtype = element_type(x.dtype)
    descriptor = BatchNormDescriptor(x.shape, training, dtype, eps, momentum, vectors[2] is not None)
    plan = BatchNormPlan.select(device, descriptor, wish(variant, config=config))
    arrays = [on_device(a, device, offset) for a in (x, *vectors)]
    y = Guarded(x.shape, x.dtype, device, out_offset)
    mean, var = (Guarded(x.shape[1:2], parameter_type(dtype).numpy, device) for _ in "mv")
    results = [y.array, *(each.array if training else None for each in (mean, var))]
    got = plan.run(BatchNormArgs(*arrays, *results), **how)
    assert all(a is b for a, b in zip(got, results, strict=True))
    host = {"y": y.host()}
    if training:
        host |= {"batch_mean": mean.host(), "batch_var": var.host()}
    if vectors[2] is not None:
        host |= {"running_mean": arrays[3].to_host(), "running_var": arrays[4].to_host()}
    return host


def expected(values: Any, *, training: bool, momentum: float = 0.1, eps: float = 1e-5) -> Any:
    x, w, b, running_mean, running_var = values
    y, mean, var = references.batch_norm(x, w, b, running_mean, running_var, training=training, eps=eps)
    want = {"y": y} | ({"batch_mean": mean, "batch_var": var} if training else {})
    if running_mean is not None:
        after = (running_mean, running_var)
        if training:
            after = references.updated_running_statistics(x, running_mean, running_var, momentum=momentum)
        want |= dict(zip(("running_mean", "running_var"), after, strict=True))
    return want


def compare(device: Device, got: Any, want: Any, case: str = "", large_mean: bool = False) -> None:
    assert got.keys() == want.keys()
    for name, value in got.items():
        limit = bar("batch_norm", element_type(value.dtype).name, want[name], large_mean=large_mean)
        check_error(f"batch_norm {name}", device, value, want[name], limit, case)


def check(
    device: Device, values: Any, *, training: bool, large_mean: bool = False, momentum: float = 0.1, eps: float = 1e-5,
    **how: Any,
) -> dict[str, Array]:  # fmt: skip
    got = run(device, values, training=training, momentum=momentum, eps=eps, **how)
    want = expected(values, training=training, momentum=momentum, eps=eps)
    compare(device, got, want, f"{values[0].shape} {how}", large_mean)
    if not training:
        for name, before in zip(("running_mean", "running_var"), values[3:], strict=True):
            np.testing.assert_array_equal(got[name], before)
    return got


def check_any_variance(device: Device, rng: Rng, shape: Shape, variant: str) -> None:
    """Check eval of 12 channels whose variances are from the least number to infinity, and below 0."""
    x, w, b, mean, _ = problem(rng, shape)
    var = np.array([1e-45, 1e-40, 2e-38, 7e-31, 9e-31, 1e-12, 1e12, 1e30, 1.5e30, 3e38, np.inf, 0.0], "f4")
    w *= np.sqrt(np.where(np.isinf(var) | (var == 0), 1, var)).astype("f4")
    along = (-1, *(1 for _ in shape[2:]))
    with np.errstate(all="ignore"):
        xhat = (x.astype("f8") - mean.reshape(along)) / np.sqrt(var.astype("f8")).reshape(along)
        want = (xhat * w.reshape(along) + b.reshape(along)).astype("f4")
    got = run(device, (x, w, b, mean, var), training=False, eps=0.0, variant=variant)["y"]
    check_error("batch_norm y", device, got[:, :-1], want[:, :-1], 2e-7)
    assert not np.isfinite(got[:, -1]).any()
    negative = run(device, (x, w, b, mean, -var), training=False, eps=0.0, variant=variant)["y"]
    assert np.isnan(negative[:, :-1]).all()


SHAPES = [
    (2, 3, 4, 4),  # whole vectors
    (2, 1),  # no trailing axes, the fewest values
    (1, 1, 2),
    (2, 5, 1),
    (1, 2, 31),
    (1, 2, 32),
    (1, 2, 33),
    (1, 3, 255),
    (1, 3, 256),
    (3, 1, 257),
    (1, 2, 3, 5, 7),
    (300, 2, 1),  # more images than threads
    (2, 300, 1),  # more channels than threads
    (2, 1100),  # more channels than a block of the writing pass takes, in vectors
    (3, 1101),  # and without
    (7, 22, 49),  # vectors that lie in two channels, more channels than a block takes
    (2, 2, 1023),  # the longest row that columns takes
    (2, 2, 1024),
    (2, 2, 1025),
    (1, 3, 4099),  # many turns, a prime
    (2, 2, 4100),  # many turns of vectors, in two slices
    (3, 2, 9001),  # several slices
    (3, 2, 9004),
]


@pytest.mark.sanitize
@pytest.mark.parametrize("variant", TRAINING)
@pytest.mark.parametrize("shape", [(4, 8, 9)], ids=str)
def test_batch_norm_training_matches_cpu_and_writes_mean_and_variance(
    device: Device, rng: Rng, shape: Shape, variant: str
) -> None:
    check(device, problem(rng, shape), training=True, variant=variant)


@pytest.mark.sanitize
@pytest.mark.parametrize("variant", EVAL)
@pytest.mark.parametrize("shape", [(2, 5, 4)], ids=str)
def test_eval_uses_running_statistics(device: Device, rng: Rng, shape: Shape, variant: str) -> None:
    check(device, problem(rng, shape), training=False, variant=variant)


@pytest.mark.parametrize("variant", TRAINING)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_training_matches_the_reference(device: Device, rng: Rng, shape: Shape, variant: str) -> None:
    if variant == "columns" and np.prod(shape[2:]) > 1023:
        with pytest.raises(ptxrt.Unsupported, match="is above 1023"):
            run(device, problem(rng, shape), training=True, variant=variant)
    else:
        check(device, problem(rng, shape), training=True, variant=variant)


@pytest.mark.parametrize("variant", EVAL)
@pytest.mark.parametrize("shape", [(1, 1, 1), *SHAPES], ids=str)
def test_eval_matches_the_reference(device: Device, rng: Rng, shape: Shape, variant: str) -> None:
    check(device, problem(rng, shape), training=False, variant=variant)


LARGE = {"f32": 1e4, "f64": 1e4, "f16": 1e3, "bf16": 1e2}  # a mean beside which a deviation of 1 is seen


def test_matches_the_reference_on_drawn_shapes(device: Device) -> None:
    def body(
        batch: Any, channels: Any, hw: Any, mean: Any, offset: Any, out_offset: Any, seed: Any, which: Any, name: str
    ) -> None:
        training, variant = which
        assume(not training or batch * hw >= 2)
        mean, hw = min(mean, LARGE[name]), hw if name != "f64" else hw % 60 + 2  # pairs take time on sim
        values = problem(np.random.default_rng(seed), (batch, channels, hw), mean, name)
        how = {"offset": offset, "out_offset": out_offset, "variant": variant}
        check(device, values, training=training, large_mean=mean != 0, **how)

    for_drawn(
        device,
        body,
        batch=st.integers(1, 6),
        channels=st.integers(1, 9),
        hw=st.integers(1, 300),
        mean=st.sampled_from([0.0, 1e4]),
        offset=st.integers(0, 4),
        out_offset=st.integers(0, 4),
        seed=st.integers(0, 2**32 - 1),
        which=st.sampled_from([way for way in WAYS if way[1] in variants(BatchNormPlan, device)]),
        name=st.sampled_from(["f32", "f32", *FAMILY.dtypes]),
    )


# Blocks with little to sum up and several images to write, as large problems have them.
SMALL_SHARES = {"columns": ColumnsConfig(4, 32), "split": SplitConfig(4, 8), "elementwise": EvalConfig(16)}


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "shape",
    [(3, 2, 700), (37, 3, 20), (19, 3, 7), (16, 2, 4), (17, 1, 1028), (5, 2, 1030), (9, 1030), (23, 22, 49)],
    ids=str,
)
@pytest.mark.ptx
def test_several_images_a_block_and_many_slices(device: Device, rng: Rng, shape: Shape) -> None:
    values = problem(rng, shape)
    for variant, config in SMALL_SHARES.items():
        if variant != "columns" or np.prod(shape[2:]) <= 1023:
            check(device, values, training=variant != "elementwise", variant=variant, config=config)


@pytest.mark.parametrize(
    ("small", "shape"),
    covering(
        itertools.product((False, True), ((2, 4, 31, 31), (2, 3, 5), (2, 517), (2, 2, 1026))),
        lambda row: row[1:] if row[1] == (2, 517) else (row,),  # which has many blocks either way
    ),
    ids=str,
)
def test_no_thread_touches_what_is_anothers(
    sim: Device, rng: Rng, monkeypatch: Patch, shape: Shape, small: bool
) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    values = problem(rng, shape)
    for training, variant in WAYS:
        if variant != "columns" or np.prod(shape[2:]) <= 1023:
            config = SMALL_SHARES.get(variant) if small else None
            check(sim, values, training=training, variant=variant, config=config)


@pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])  # whose running statistics are a launch of their own
@pytest.mark.parametrize("channels", [300, 513])
def test_on_sim_no_two_blocks_update_one_running_statistic(
    sim: Device, rng: Rng, monkeypatch: Patch, channels: int, variant: str
) -> None:
    """Values do not tell: blocks of one launch run in step on sim, and both write the same."""
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "global-races")
    check(sim, problem(rng, (2, channels)), training=True, variant=variant)


@pytest.mark.parametrize("variant", TRAINING)
@pytest.mark.parametrize("mean", [1e4, -1e4, 1e6])
def test_a_large_offset_costs_no_accuracy(device: Device, rng: Rng, mean: float, variant: str) -> None:
    check(device, problem(rng, (2, 4, 33, 29), mean), training=True, variant=variant, large_mean=True)


@pytest.mark.parametrize("variant", EVAL)
def test_a_large_offset_costs_no_accuracy_in_eval(device: Device, rng: Rng, variant: str) -> None:
    check(device, problem(rng, (2, 4, 33, 31), 1e4), training=False, variant=variant, large_mean=True)


@pytest.mark.parametrize("variant", TRAINING)
def test_an_outlier_in_front_costs_no_accuracy(device: Device, rng: Rng, variant: str) -> None:
    values = problem(rng, (1, 4, 1000))
    values[0][0, ::2, 0] = 1e6
    check(device, values, training=True, variant=variant)


@pytest.mark.parametrize(("training", "variant"), WAYS)
def test_weight_and_bias_may_be_absent(device: Device, rng: Rng, training: bool, variant: str) -> None:
    x, w, b, mean, var = problem(rng, (2, 6, 10))
    ones, zeros = np.ones_like(w), np.zeros_like(b)

    def y(w: Any, b: Any) -> Any:
        return run(device, (x, w, b, mean, var), training=training, variant=variant)["y"]

    np.testing.assert_array_equal(y(None, None), y(ones, zeros))
    np.testing.assert_array_equal(y(w, None), y(w, zeros))
    np.testing.assert_array_equal(y(None, b), y(ones, b))


@pytest.mark.parametrize("variant", TRAINING)
def test_training_without_running_statistics(device: Device, rng: Rng, variant: str) -> None:
    values = problem(rng, (2, 6, 10))
    got = run(device, (*values[:3], None, None), training=True, variant=variant)
    full = run(device, values, training=True, variant=variant)
    for name, value in got.items():
        np.testing.assert_array_equal(value, full[name])


@pytest.mark.parametrize("variant", TRAINING)
@pytest.mark.parametrize("momentum", [0, 0.0, 0.25, 1.0, 1])
def test_running_statistics_move_by_momentum(device: Device, rng: Rng, variant: str, momentum: float) -> None:
    values = problem(rng, (2, 6, 10))
    got = check(device, values, training=True, variant=variant, momentum=momentum)
    if momentum == 0:
        np.testing.assert_array_equal(got["running_mean"], values[3])
    if momentum == 1:
        np.testing.assert_array_equal(got["running_mean"], got["batch_mean"])


@pytest.mark.parametrize("variant", TRAINING)
def test_the_running_variance_is_the_unbiased_one(device: Device, variant: str) -> None:
    x = np.array([[1.0], [3.0]], np.float32)  # mean 2, biased variance 1, unbiased 2
    zero = np.zeros(1, np.float32)
    got = run(device, (x, None, None, zero, zero.copy()), training=True, variant=variant, momentum=1.0, eps=0.0)
    assert {name: value.ravel().tolist() for name, value in got.items()} == {
        "y": [-1.0, 1.0],
        "batch_mean": [2.0],
        "batch_var": [1.0],
        "running_mean": [2.0],
        "running_var": [2.0],
    }


@pytest.mark.parametrize("variant", TRAINING)
def test_equal_values_give_the_bias(device: Device, variant: str) -> None:
    x, b = np.full((2, 4, 100), 0.1, np.float32), np.arange(4, dtype=np.float32)
    got = run(device, (x, None, b, None, None), training=True, variant=variant)
    np.testing.assert_array_equal(got["y"], np.broadcast_to(b[None, :, None], x.shape))
    np.testing.assert_array_equal(got["batch_mean"], x[0, :, 0])
    np.testing.assert_array_equal(got["batch_var"], 0)


@pytest.mark.parametrize("variant", TRAINING)
def test_variance_zero_and_eps_zero_is_not_a_number(device: Device, variant: str) -> None:
    x = np.ones((1, 2, 5), np.float32)
    assert np.isnan(run(device, (x, None, None, None, None), training=True, variant=variant, eps=0.0)["y"]).all()


@pytest.mark.parametrize(("training", "variant"), WAYS)
def test_eps_zero_is_allowed(device: Device, rng: Rng, training: bool, variant: str) -> None:
    check(device, problem(rng, (2, 4, 50)), training=training, variant=variant, eps=0.0)


@pytest.mark.parametrize("variant", TRAINING)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 27], ids=["first", "later"])
def test_one_bad_value_spoils_its_channel_alone(device: Device, rng: Rng, value: Any, place: int, variant: str) -> None:
    values = problem(rng, (2, 6, 40))
    x = values[0]
    x[0, 2, place] = value
    got = run(device, values, training=True, variant=variant)
    assert np.isnan(got["y"][:, 2]).all()
    assert not np.isfinite(got["batch_mean"][2])
    assert np.isnan(got["batch_var"][2])
    rest = [0, 1, 3, 4, 5]
    want = expected((x[:, rest], *(v[rest] for v in values[1:])), training=True)
    got = {name: value[:, rest] if name == "y" else value[rest] for name, value in got.items()}
    compare(device, got, want)


@pytest.mark.parametrize("variant", EVAL)
def test_in_eval_one_bad_value_spoils_itself_alone(device: Device, rng: Rng, variant: str) -> None:
    values = problem(rng, (2, 3, 40))
    values[0][0, 1, 7:10] = np.nan, np.inf, -np.inf
    values[1][1] = 2.0
    got = check(device, values, training=False, variant=variant)
    np.testing.assert_array_equal(got["y"][0, 1, 7:10], [np.nan, np.inf, -np.inf])


@pytest.mark.parametrize("variant", EVAL)
def test_a_negative_running_variance_is_not_a_number(device: Device, rng: Rng, variant: str) -> None:
    values = problem(rng, (2, 3, 8))
    values[4][1] = -1.0
    y = run(device, values, training=False, variant=variant)["y"]
    assert np.isnan(y[:, 1]).all()
    assert not np.isnan(y[:, [0, 2]]).any()


@pytest.mark.parametrize("variant", TRAINING)
def test_denormals_are_preserved(device: Device, rng: Rng, variant: str) -> None:
    x = (rng.integers(-100, 100, (1, 2, 64)) * 1.4e-45).astype(np.float32)
    got = run(device, (x, None, None, None, None), training=True, variant=variant, eps=0.0)
    check_error(
        "batch_norm y", device, got["y"], references.batch_norm(x, *[None] * 4, training=True, eps=0.0)[0], 2e-7
    )


@pytest.mark.parametrize("variant", EVAL)
def test_denormals_are_preserved_in_eval(device: Device, variant: str) -> None:
    x = np.array([[[1e-45, -3e-45, 4.2e-44, 0.0, 1e-40]]], np.float32)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    np.testing.assert_array_equal(
        run(device, (x, None, None, zero, one), training=False, variant=variant, eps=0.0)["y"], x
    )


@pytest.mark.parametrize("variant", TRAINING)
def test_values_near_the_largest_do_not_overflow(device: Device, rng: Rng, variant: str) -> None:
    x = (rng.standard_normal((1, 2, 500)) * 3e37).astype(np.float32)
    got = run(device, (x, None, None, None, None), training=True, variant=variant)
    check_error("batch_norm y", device, got["y"], references.batch_norm(x, *[None] * 4, training=True)[0], 2e-7)


# The types beside f32 ------------------------------------------------------------------------------------------------

every_other = pytest.mark.parametrize("name", OTHERS)
every_way = pytest.mark.parametrize(("training", "variant"), WAYS)
every_training = pytest.mark.parametrize("variant", TRAINING)


@every_way
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("f16", (2, 9, 136)),  # more channels than a block of the writing pass takes, in vectors
        ("bf16", (1, 9, 131)),  # and without
        ("f16", (1, 1, 4104)),  # more than one turn of vectors
        ("f64", (2, 5, 104)),
        ("f64", (1, 5, 107)),
        ("f64", (1, 1, 2052)),
    ],
    ids=str,
)
def test_the_types_beside_f32(device: Device, rng: Rng, name: str, shape: Shape, training: bool, variant: str) -> None:
    values = problem(rng, shape, name=name)
    if variant == "columns" and shape[2] > 1023:
        with pytest.raises(ptxrt.Unsupported, match="is above 1023" if name == "f16" else "is above 511"):
            run(device, values, training=training, variant=variant)
    else:
        check(device, values, training=training, variant=variant)


@pytest.mark.parametrize(("name", "shape"), [("f16", (1, 8, 132)), ("f64", (1, 2, 257))], ids=str)
@pytest.mark.ptx
def test_a_block_that_begins_within_a_vector(device: Device, rng: Rng, name: str, shape: Shape) -> None:
    check(device, problem(rng, shape, name=name), training=True, variant="columns")


@pytest.mark.sanitize
@every_other
@pytest.mark.parametrize("shape", [(19, 3, 7), (18, 2, 16)], ids=str)
@pytest.mark.ptx
def test_several_images_a_block_and_many_slices_of_them(
    device: Device, rng: Rng, monkeypatch: Patch, shape: Shape, name: str
) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    values = problem(rng, shape, name=name)
    for variant, config in SMALL_SHARES.items():
        check(device, values, training=variant != "elementwise", variant=variant, config=config)


@every_way
@pytest.mark.parametrize(("name", "mean"), [("f16", 1e3), ("bf16", 1e2), ("f64", 1e4), ("f64", -1e12)])
def test_nor_does_a_large_offset_cost_them_accuracy(
    device: Device, rng: Rng, mean: float, name: str, training: bool, variant: str
) -> None:
    values = problem(rng, (2, 2, 28), mean, name)
    got, want = run(device, values, training=training, variant=variant), expected(values, training=training)
    if name == "f64":  # less the mean, which is exact, the reference loses no digits to it
        less = [values[0].astype(np.longdouble) - mean, *values[1:3], values[3] - np.longdouble(mean), values[4]]
        exact = expected(less, training=training)
        want |= {name: exact[name] for name in exact if not name.endswith("mean")}
    compare(device, got, want, f"{name} {mean}")


@every_training
@pytest.mark.parametrize(("name", "outlier"), [("f16", 6e4), ("bf16", 1e6), ("f64", 1e10)])
def test_nor_does_an_outlier_in_front(device: Device, rng: Rng, name: str, outlier: float, variant: str) -> None:
    values = problem(rng, (1, 4, 200), name=name)
    values[0][0, ::2, 0] = outlier
    check(device, values, training=True, variant=variant)


@every_training
@pytest.mark.parametrize(("name", "size"), [("f16", 1e4), ("bf16", 3e37), ("f64", 1e150)])
def test_nor_do_they_overflow_near_the_largest(device: Device, rng: Rng, name: str, size: float, variant: str) -> None:
    """The sums and squares of these are far above what a half holds."""
    x = (rng.standard_normal((1, 2, 100)) * size).astype(kinds_of(name)[0])
    values = x, *[None] * 4
    got, want = run(device, values, training=True, variant=variant), expected(values, training=True)
    if name == "bf16":  # whose variance f32 does not hold
        assert np.isposinf(got.pop("batch_var")).all()
        want.pop("batch_var")
    compare(device, got, want)


@every_training
def test_values_whose_squares_f64_cannot_hold_are_not_a_number(device: Device, rng: Rng, variant: str) -> None:
    x = problem(rng, (2, 2, 25), name="f64")[0]
    x[:, 1] *= 1e160
    y = run(device, (x, *[None] * 4), training=True, variant=variant)["y"]
    assert np.isnan(y[:, 1]).all()
    assert np.isfinite(y[:, 0]).all()


@every_training
@pytest.mark.parametrize(("name", "value"), [("f16", 65504), ("bf16", 0.1), ("f64", 0.1)])
def test_equal_values_of_them_give_the_bias(device: Device, name: str, value: float, variant: str) -> None:
    kind, real = kinds_of(name)
    x, b = np.full((2, 3, 40), value, kind), np.arange(3).astype(real)
    got = run(device, (x, None, b, None, None), training=True, variant=variant)
    np.testing.assert_array_equal(got["y"], np.broadcast_to(b[None, :, None], x.shape))
    np.testing.assert_array_equal(got["batch_mean"], x[0, :, 0].astype(real))
    np.testing.assert_array_equal(got["batch_var"], 0)


@every_way
@every_other
def test_what_is_not_a_number_or_infinite_spoils_no_other_channel_of_them(
    device: Device, rng: Rng, name: str, training: bool, variant: str
) -> None:
    values = problem(rng, (2, 4, 24), name=name)
    x = values[0]
    x[0, 0, 0], x[1, 1, 7], x[1, 2, 5] = np.inf, np.nan, -np.inf
    got = run(device, values, training=training, variant=variant)
    if training:
        assert np.isnan(got["y"][:, :3]).all()
        assert np.isnan(got["batch_var"][:3]).all()
        assert not np.isfinite(got["batch_mean"][:3]).any()
        got = {key: value[:, 3:] if key == "y" else value[3:] for key, value in got.items()}
        compare(device, got, expected((x[:, 3:], *(v[3:] for v in values[1:])), training=True))
    else:
        compare(device, got, expected(values, training=False))


@every_way
@pytest.mark.parametrize(("name", "scale"), [("f16", 40000), ("bf16", 1), ("f64", 1)])
def test_a_result_of_them_is_rounded_once(
    device: Device, rng: Rng, name: str, scale: int, training: bool, variant: str
) -> None:
    x, w, b, *running = problem(rng, (2, 3, 26), name=name)
    w[1:] *= scale
    got = run(device, (x, w, b, *running), training=training, variant=variant)
    want = expected((x, w, b, *running), training=training)
    assert_rounded_once(got["y"], want["y"])
    assert np.isfinite(got["y"]).all() == (scale == 1)  # what f16 cannot hold is infinite
    if training:
        for key in ("batch_mean", "batch_var"):  # so are the statistics, to f32 or f64
            assert_rounded_once(got[key], want[key])


@every_training
def test_results_of_16_bits_know_more_of_the_mean_than_f32_has(device: Device, variant: str) -> None:
    """Of a mean of 2000.02, and deviations of 0.15, f32 would lose a place or two of what f16 has."""
    x = np.full((2, 3, 65), 2000, np.float16)
    x[1, :, [3, 20, 64]] += 1
    values = x, *[None] * 4
    y, want = run(device, values, training=True, variant=variant)["y"], expected(values, training=True)["y"]
    assert_rounded_once(y, want)


@every_way
def test_nor_do_formulas_in_f32_leave_its_range(device: Device, rng: Rng, training: bool, variant: str) -> None:
    """Deviations of a few of the smallest numbers of bf16, and of large ones with a weight that brings them back."""
    ones, kind = np.ones(2, np.float32), kinds_of("bf16")[0]
    for size, weight, eps in ((2.0**-133, 1.0, 0.0), (2.0**100, 2.0**-120, 1e-5)):
        x = (rng.integers(-9, 10, (1, 2, 40)) * size).astype(kind)
        given = ones * 0, ones * np.float32(min(size, 2.0**60)) ** 2
        values: Any = x, ones * np.float32(weight), None, *given
        if training or size > 1:
            got = run(device, values, training=training, variant=variant, eps=eps)["y"]
            compare(device, {"y": got}, {"y": expected(values, training=training, eps=eps)["y"]})


@every_way
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_a_result_of_16_bits_is_that_in_f32_rounded(device: Device, name: str, training: bool, variant: str) -> None:
    x, w, b, want = group_norm_rounded_twice(name)
    zeros, ones = np.zeros(2, np.float32), np.ones(2, np.float32)
    got = run(device, (x, w, b, zeros, ones), training=training, variant=variant, eps=0.0)
    np.testing.assert_array_equal(got["y"], want)


@every_way
@every_other
def test_denormals_of_them_are_preserved(device: Device, rng: Rng, name: str, training: bool, variant: str) -> None:
    """In x, and in the result, to half of one of them; f64 rounds the weight times the inverse root, too."""
    kind, real = kinds_of(name)
    limits, wide = ml_dtypes.finfo(kind), name == "f64"
    x, ones = problem(rng, (1, 2, 32), name=name)[0], np.ones(2, real)
    small = (rng.uniform(-1, 1, (1, 2, 32)) * float(limits.tiny)).astype(kind)
    how: Any = {"training": training, "eps": 1e-5 if wide else 0.0}  # f64 cannot hold their squares
    values: Any = small, None, None, ones * 0, ones
    compare(device, {"y": run(device, values, variant=variant, **how)["y"]}, {"y": expected(values, **how)["y"]})
    smallest = float(limits.smallest_subnormal)
    values = x, (rng.integers(1, 100, 2) * smallest).astype(real), None, ones * 0, ones
    y, want = run(device, values, training=training, variant=variant)["y"], expected(values, training=training)["y"]
    assert (np.abs(y.astype(want.dtype) - want) <= (2.5 if wide else 0.75) * smallest).all()
    assert np.count_nonzero(y) > 50


@pytest.mark.parametrize("name", FAMILY.dtypes)
@pytest.mark.parametrize(
    "role",
    ["apply", "eval", "backward_apply", "backward_eval", "backward_eval_columns"],
)
def test_neighbours_are_read_and_written_by_16_bytes(name: str, role: str) -> None:
    """And by 8, of 16 bits, where rows are no multiples of 16."""
    text = FAMILY.kernel(f"batch_norm_{role}", BY_NAME[name], "ptx").source.text
    word = max(32, 8 * BY_NAME[name].size)
    halves = {2} if name.endswith("16") and role == "backward_eval" else set()
    assert {(way, count, word) for way in ("ld", "st") for count in {128 // word} | halves} == {
        (way, int(count), int(bits))
        for way, count, bits in re.findall(r"(ld|st)\.global(?:\.cs)?\.v(\d)\.[bf](\d+)", text)
    }


# What is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1, 1), (0, 4, 3), (2, 4, 0)], ids=str)
def test_training_on_fewer_than_two_values_a_channel_is_refused(device: Device, shape: Shape) -> None:
    x = ptxrt.zeros(shape, np.float32, device)
    with pytest.raises(ptxrt.ShapeMismatch, match="batch_norm: x: ") as caught:
        batch_norm(x, None, None, None, None, training=True)
    assert "two values" in str(caught.value)


@pytest.mark.parametrize(("language", "variant"), [("ptx", "baseline"), ("hip", "hip/baseline")])
def test_the_kernel_writes_nothing_where_there_are_no_values(device: Device, language: str, variant: str) -> None:
    """The plan launches nothing then, another caller may."""
    del variant  # for the devices that take no PTX
    kernel = next(k for k in ops.kernels() if (k.entry, k.language) == ("batch_norm_kernel", language)).load(device)
    empty, mean, var = ptxrt.zeros((2, 4, 0), np.float32, device), *(Guarded((4,), np.float32, device) for _ in "mv")
    kernel.launch(4, 256, empty, empty, None, None, mean.array, var.array, 2, 4, 0, 1e-5, 1)
    assert np.isnan([mean.host(), var.host()]).all()


def _moments(images: Any) -> Any:
    """Return mean and biased variance of a channel's large images, in float64, by pieces."""
    parts = [part for image in images for part in image.chunk(64)]
    count = sum(part.numel() for part in parts)
    mean = sum(part.double().sum() for part in parts) / count
    return mean, sum(((part.double() - mean) ** 2).sum() for part in parts) / count


@pytest.mark.parametrize("name", FAMILY.dtypes)
def test_hip_takes_channels_for_which_blocks_take_turns(name: str) -> None:
    shape, wish = (2, 1 << 24, 1), ptxrt.PlanPreference(language="hip")
    for training in (True, False):
        forward = ops.BatchNormDescriptor(shape, training, BY_NAME[name])
        backward = ops.BatchNormBackwardDescriptor(shape, training, BY_NAME[name])
        plans: tuple[Any, ...] = (
            ops.BatchNormPlan.select("sim:0", forward, wish),
            ops.BatchNormBackwardPlan.select("sim:0", backward, wish),
        )
        for plan in plans:
            assert all(launch.grid[0] * launch.block < 1 << 32 for launch in plan.schedule.launches)


@pytest.mark.parametrize(
    ("shape", "entry"),
    [
        ((1, 8, 12), "eval_rows"),
        ((1, 8, 13), "eval"),
        ((1, (1 << 31) - 1, 8), "eval_rows"),
        ((1, (1 << 31) - 1, 12), "eval"),
    ],
    ids=str,
)
def test_eval_takes_rows_of_whole_vectors_by_themselves(sim: Device, shape: Shape, entry: str) -> None:
    plan = BatchNormPlan.select(sim, BatchNormDescriptor(shape, False), wish("elementwise"))
    assert [launch.kernel.entry for launch in plan.schedule.launches] == [f"batch_norm_{entry}"]


@pytest.mark.parametrize("variant", ["split", "baseline", "elementwise", "hip/baseline"])
@pytest.mark.parametrize(
    ("shape", "name"),
    [((5, 2, 2**29), "f32"), ((1, 2, 2**31 + 8), "f32"), ((1, 2, 2**31 + 7), "f32"), ((5, 2, 2**29), "f16")],
    ids=str,
)
def test_tensors_past_2_to_the_32_elements(
    cuda: Device, torch_with: Any, shape: Shape, name: str, variant: str
) -> None:
    count = int(np.prod(shape))
    torch = torch_with(2.5 * BY_NAME[name].size * count)
    x = torch.empty(shape, device="cuda", dtype=getattr(torch, kinds_of(name)[0].name)).normal_()
    w, b = torch.tensor([2.0, -3.0], device="cuda"), torch.tensor([0.5, 1.5], device="cuda")
    training = variant != "elementwise"
    moments = [_moments(x[:, c]) if training else (0.25, 4.0) for c in (0, 1)]
    mean, var = (torch.tensor([float(pair[i]) for pair in moments], device="cuda", dtype=torch.float64) for i in (0, 1))
    given = [None, None] if training else [mean.float(), var.float()]
    descriptor = BatchNormDescriptor(shape, training, BY_NAME[name], running=not training)
    plan = BatchNormPlan.select(cuda, descriptor, wish(variant))
    y = torch.empty_like(x)
    plan.run(BatchNormArgs(*[x, w, b, *given, y]))
    y = y.view(-1)
    x = x.view(-1)
    for start in (0, 2**31 - 500, 2**32 - 500, count // 2 - 500, count - 1000):
        part = slice(start, min(start + 1000, count))
        c = torch.arange(part.start, part.stop, device="cuda") // shape[2] % 2
        want = (x[part].double() - mean[c]) / (var[c] + 1e-5).sqrt() * w[c] + b[c]
        want = want.cpu().numpy()
        assert relative_error(y[part].cpu().numpy(), want) <= bar("batch_norm", name, want), start


# Checks -------------------------------------------------------------------------------------------------------------

NAMES = ("x", "weight", "bias", "running_mean", "running_var", "y", "batch_mean", "batch_var")
SHAPE = (2, 8, 6)


@pytest.fixture
def good(device: Device, rng: Rng) -> Any:
    """Operands that pass in training; each test spoils one."""
    values = dict(zip(NAMES, problem(rng, SHAPE), strict=False))
    values |= {"y": np.full(SHAPE, np.nan, np.float32)}
    values |= {name: np.full(8, np.nan, np.float32) for name in ("batch_mean", "batch_var")}
    return {name: ptxrt.to_device(value, device) for name, value in values.items()}


def call(operands: Any, training: bool = True, **how: Any) -> Any:
    out = tuple(operands[name] for name in NAMES[5:])
    return batch_norm(*(operands[name] for name in NAMES[:5]), training=training, out=out, **how)


def in_eval(operands: Any) -> Any:
    return operands | {"batch_mean": None, "batch_var": None}


def refused(kind: Any, operands: Any, argument: Any, **how: Any) -> Any:
    """Assert that the call is refused for `argument`, and that nothing was launched or allocated for it."""
    device = next(a.device for a in operands.values() if isinstance(a, ptxrt.DeviceArray))
    with Patch.context() as patch:
        launches_by(patch, device, lambda *_: pytest.fail("launched"))
        with pytest.raises(kind) as caught:
            call(operands, **how)
    assert type(caught.value) is kind
    assert (caught.value.op, caught.value.argument) == ("batch_norm", argument)
    return caught.value


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["running_mean", "running_var"])
def test_both_running_statistics_are_given_or_neither(good: Any, name: str, training: bool) -> None:
    good[name] = None
    refused(ptxrt.InvalidArgument, good if training else in_eval(good), name, training=training)


def test_eval_needs_the_running_statistics(good: Any) -> None:
    good["running_mean"] = good["running_var"] = None
    refused(ptxrt.InvalidArgument, in_eval(good), "running_mean", training=False)


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
def test_in_eval_running_statistics_may_be_shared(good: Any, name: str) -> None:
    good["weight"] = good[name]  # read, and not written
    call(in_eval(good), False)
    refused(ptxrt.LayoutError, good, name)


# The plan -----------------------------------------------------------------------------------------------------------


def test_a_plan_without_running_statistics_takes_none(device: Device, good: Any) -> None:
    plan = BatchNormPlan.select(device, BatchNormDescriptor(SHAPE, True, running=False))
    with pytest.raises(ptxrt.InvalidArgument, match="running_mean"):
        plan.can_implement(BatchNormArgs(**good))
    with pytest.raises(ptxrt.InvalidArgument, match="running_var"):
        plan.can_implement(BatchNormArgs(**good | {"running_mean": None}))
    plan.run(BatchNormArgs(good["x"]))


def test_a_plan_with_running_statistics_needs_both(device: Device, good: Any) -> None:
    plan = BatchNormPlan.select(device, BatchNormDescriptor(SHAPE, True))
    for name in ("running_mean", "running_var"):
        with pytest.raises(ptxrt.InvalidArgument, match=name):
            plan.can_implement(BatchNormArgs(**good | {name: None}))


@pytest.mark.ptx
def test_a_channel_that_does_not_fit_shared_memory_is_not_cached(device: Device) -> None:
    with pytest.raises(ptxrt.Unsupported, match="shared memory"):
        BatchNormPlan.select(device, BatchNormDescriptor((1, 1, 10**6), True), wish("cached"))


@pytest.mark.sanitize
@pytest.mark.parametrize(
    ("name", "shape"), [("f32", (250, 1, 49)), ("f32", (6, 1, 2048)), ("f16", (3, 1, 8176))], ids=str
)
def test_registers_have_what_shared_memory_does_not_hold(device: Device, rng: Rng, name: str, shape: Shape) -> None:
    """In vectors and without, and not a whole turn of the block."""
    check(device, problem(rng, shape, name=name), training=True, variant="hip/cached")


def test_what_they_do_not_hold_either_is_refused(device: Device) -> None:
    with pytest.raises(ptxrt.Unsupported, match="51204 bytes of values are more than 51200"):
        BatchNormPlan.select(device, BatchNormDescriptor((1, 1, 12801), True), wish("hip/cached"))


@pytest.mark.parametrize("training", [True, False])
def test_more_channels_than_a_grid_has_blocks_go_to_hip(device: Device, training: bool) -> None:
    plan = BatchNormPlan.select(device, BatchNormDescriptor((2, (1 << 31) + 1, 1), training))
    assert key_of(plan.variant) == "hip/baseline"


@pytest.mark.ptx
def test_what_a_writing_pass_cannot_hold_takes_the_baseline(device: Device) -> None:
    shape = (1, 2**20, 2**21 + 2**11)
    assert key_of(BatchNormPlan.select(device, BatchNormDescriptor(shape, False)).variant) == "baseline"
    assert key_of(BatchNormPlan.select(device, BatchNormDescriptor(shape, True)).variant) == "baseline"


@pytest.mark.parametrize("batch", [65536, 2**32 - 1])
def test_a_batch_of_any_size_fits_the_grid(batch: int) -> None:
    problem = BatchNormDescriptor((batch, 1, 1), False)
    config = WriteConfig.heuristic(problem)
    (_, down), images = config.grid(problem), config.written
    assert down <= 65535
    assert batch - images < down * images >= batch


@pytest.mark.parametrize("count", [1, 3, 4, 8191, 8192, 8193, 10**6, 2**32 - 1])
@pytest.mark.parametrize("channels", [1, 64, 5000])
def test_slices_cover_a_channel(count: int, channels: int) -> None:
    values = SplitConfig.heuristic(BatchNormDescriptor((1, channels, count), False)).values
    slices = -(-count // values)
    assert values % 4 == 0
    assert (slices - 1) * values < count <= slices * values
    assert slices <= 1024


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (2, 3, 0), (256, 2048, 49), (2**32 - 1, 1, 1), (70, 5000, 1), (3, 7, 1023)]
)
def test_columns_cover_a_problem(shape: Shape) -> None:
    problem = BatchNormDescriptor(shape, False)
    slices, images, group, lanes = tiles(problem, ColumnsConfig.heuristic(problem).added)
    assert group * shape[2] <= 1024
    assert (slices - 1) * images < shape[0] <= slices * images
    assert slices <= 256
    assert lanes in (1, 2, 4, 8, 16, 32)


@pytest.mark.parametrize(("training", "running"), [(True, None), (True, 1), (False, False)])
def test_a_descriptor_says_whether_there_are_running_statistics(training: bool, running: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument, match="running"):
        BatchNormDescriptor(SHAPE, training, running=running)
