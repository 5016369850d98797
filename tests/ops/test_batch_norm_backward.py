"""batch_norm_backward: its gradients in each variant, their edges, and each of its checks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import Patch, Rng, Shape, covering, launches_by
from hypothesis import assume
from hypothesis import strategies as st
from op_testing import Array, Guarded, assert_rounded_once, check_error, for_drawn, key_of, on_device, variants, wish
from tolerances import EPSILON, bar, relative_error

import ptxrt
from ptxrt import Device, ops
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import (
    BatchNormBackwardArgs,
    BatchNormBackwardDescriptor,
    BatchNormBackwardPlan,
    batch_norm,
    batch_norm_backward,
    references,
)
from ptxrt.ops._batch_norm_passes import ColumnsConfig, SplitConfig
from ptxrt.ops._batch_norm_problem import FAMILY
from ptxrt.ops.framework import parameter_type

TRAINING = ("cached", "columns", "split", "baseline", "hip/baseline")
EVAL = ("columns", "split", "baseline", "hip/split", "hip/baseline")
RESULTS = ("grad_input", "grad_weight", "grad_bias")
# How the statistics come: computed, handed over, or running.
KINDS = ("training", "handed", "eval")
OTHERS = [name for name in FAMILY.dtypes if name != "f32"]  # the same texts: fewer cases of each
WAYS = [(kind, variant) for kind in KINDS for variant in (EVAL if kind == "eval" else TRAINING)]


def kinds_of(name: str) -> tuple[Any, Any]:
    """Return NumPy's types of a type's elements and of its vectors."""
    return BY_NAME[name].numpy, parameter_type(BY_NAME[name]).numpy


def problem(rng: Rng, shape: Shape, mean: float = 0.0, name: str = "f32") -> tuple[Array, ...]:
    """Return grad_out, x, weight, mean, var; the last two are not quite those of x."""
    kind, real = kinds_of(name)
    go = rng.standard_normal(shape).astype(kind)
    x = (rng.standard_normal(shape) + mean).astype(kind)
    w = rng.standard_normal(shape[1]).astype(real)
    given = (rng.standard_normal(shape[1]) + mean).astype(real)
    return go, x, w, given, (rng.random(shape[1]) + 0.5).astype(real)


def statistics(kind: str, values: Any) -> Any:
    """Return running_mean, running_var, batch_mean, batch_var."""
    given = values[3:]
    return {"training": (None,) * 4, "handed": (None, None, *given), "eval": (*given, None, None)}[kind]


def run(
    device: Device, values: Any, *, kind: str, variant: str | None = None, config: Any = None, eps: float = 1e-5,
    offset: int = 0, out_offset: int = 0, **how: Any,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Run the plan of `variant` on `device` into guarded outputs; return the host results."""
    go, x, w = values[:3]
    dtype = element_type(go.dtype)
    descriptor = BatchNormBackwardDescriptor(go.shape, kind != "eval", dtype, eps, kind == "handed")
    plan = BatchNormBackwardPlan.select(device, descriptor, wish(variant, config=config))
    arrays = [on_device(a, device, offset) for a in (go, x, w, *statistics(kind, values))]
    gi = Guarded(go.shape, go.dtype, device, out_offset)
    gw, gb = (Guarded(go.shape[1:2], parameter_type(dtype).numpy, device) for _ in "wb")
    results = [gi.array, None if w is None else gw.array, gb.array]
    got = plan.run(BatchNormBackwardArgs(*arrays, *results), **how)
    assert all(a is b for a, b in zip(got, results, strict=True))
    return gi.host(), None if w is None else gw.host(), gb.host()


def expected(values: Any, *, kind: str, eps: float = 1e-5) -> Any:
    mean, var, batch_mean, batch_var = statistics(kind, values)
    how: Any = {"training": kind != "eval", "eps": eps, "batch_mean": batch_mean, "batch_var": batch_var}
    return references.batch_norm_backward(*(*values[:3], mean, var), **how)


def compare(device: Device, got: Any, want: Any, case: str = "", large_mean: bool = False) -> None:
    for name, value, reference in zip(RESULTS, got, want, strict=True):
        assert (value is None) == (reference is None), name
        if value is not None:
            limit = bar("batch_norm", element_type(value.dtype).name, reference, large_mean=large_mean)
            check_error(f"batch_norm {name}", device, value, reference, limit, case)


def check(device: Device, values: Any, *, kind: str, large_mean: bool = False, eps: float = 1e-5, **how: Any) -> Any:
    got = run(device, values, kind=kind, eps=eps, **how)
    compare(device, got, expected(values, kind=kind, eps=eps), f"{values[0].shape} {kind} {how}", large_mean)
    return got


SHAPES = [
    (4, 8, 9),
    (2, 3, 4, 4),  # whole vectors
    (3, 1),  # no trailing axes
    (2, 5, 2),
    (1, 2, 31),
    (1, 2, 32),
    (1, 2, 33),
    (1, 3, 255),
    (1, 3, 256),
    (3, 1, 257),
    (1, 2, 3, 5, 7),
    (300, 2, 1),  # more images than threads
    (3, 300, 1),  # more channels than threads
    (3, 1101),  # more channels than a block takes
    (7, 22, 49),  # vectors that lie in two channels, more channels than a block takes
    (2, 2, 1023),  # the longest row that columns takes
    (1, 3, 4099),  # many turns, a prime
    (2, 2, 4100),  # many turns of vectors, in two slices
    (3, 2, 9001),  # several slices
]


@pytest.mark.parametrize(("kind", "variant"), WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_the_reference(device: Device, rng: Rng, shape: Shape, kind: str, variant: str) -> None:
    if variant == "columns" and np.prod(shape[2:]) > 1023:
        with pytest.raises(ptxrt.Unsupported, match="is above 1023"):
            run(device, problem(rng, shape), kind=kind, variant=variant)
    else:
        check(device, problem(rng, shape), kind=kind, variant=variant)


@pytest.mark.sanitize
@pytest.mark.parametrize(("kind", "variant"), WAYS)
@pytest.mark.parametrize("shape", [(4, 8, 9), (2, 3, 260)], ids=str)
def test_a_forward_and_a_backward(device: Device, rng: Rng, shape: Shape, kind: str, variant: str) -> None:
    """The statistics handed over are those that the forward wrote."""
    go, x, w, mean, var = problem(rng, shape)
    there = ptxrt.to_device(x, device)
    if kind != "eval":
        results: Any = batch_norm(there, None, None, None, None, training=True)
        mean, var = (a.to_host() for a in results[1:])
    check(device, (go, x, w, mean, var), kind=kind, variant=variant)


LARGE = {"f32": 1e4, "f64": 1e4, "f16": 1e3, "bf16": 1e2}  # a mean beside which a deviation of 1 is seen


def test_matches_the_reference_on_drawn_shapes(device: Device) -> None:
    def body(
        batch: Any, channels: Any, hw: Any, mean: Any, offset: Any, out_offset: Any, seed: Any, way: str, name: str
    ) -> None:
        assume(way[0] == "eval" or batch * hw >= 3)  # with two values grad_input cancels to nothing
        mean, hw = min(mean, LARGE[name]), hw if name != "f64" else hw % 60 + 2  # pairs take time on sim
        values = problem(np.random.default_rng(seed), (batch, channels, hw), mean, name)
        how = {"offset": offset, "out_offset": out_offset, "variant": way[1]}
        check(device, values, kind=way[0], large_mean=mean != 0, **how)

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
        way=st.sampled_from([way for way in WAYS if way[1] in variants(BatchNormBackwardPlan, device)]),
        name=st.sampled_from(["f32", "f32", *FAMILY.dtypes]),
    )


@pytest.mark.parametrize("variant", TRAINING)
def test_two_values_a_channel(device: Device, variant: str) -> None:
    """x = -1, 1 and no eps: grad_input is go less its mean less x times the mean of x * go, which leaves nothing."""
    x, go = np.array([[-1.0], [1.0]], np.float32), np.array([[3.0], [5.0]], np.float32)
    got = run(device, (go, x, np.array([2.0], np.float32)), kind="training", variant=variant, eps=0.0)
    assert [a.ravel().tolist() for a in got] == [[0.0, 0.0], [2.0], [8.0]]


# Blocks with little to sum up and several images to write, as large problems have them.
SMALL_SHARES = {"columns": ColumnsConfig(4, 32), "split": SplitConfig(4, 8)}


@pytest.mark.sanitize
@pytest.mark.parametrize(
    "shape", [(3, 2, 700), (37, 3, 20), (19, 3, 7), (16, 2, 4), (17, 1, 1020), (5, 2, 1022), (9, 1030)], ids=str
)
@pytest.mark.ptx
def test_several_images_a_block_and_many_slices(device: Device, rng: Rng, shape: Shape) -> None:
    values = problem(rng, shape)
    for kind, variant in WAYS:
        if variant in SMALL_SHARES:
            check(device, values, kind=kind, variant=variant, config=SMALL_SHARES[variant])


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
    for kind, variant in WAYS:
        if variant != "columns" or np.prod(shape[2:]) <= 1023:
            config = SMALL_SHARES.get(variant) if small else None
            check(sim, values, kind=kind, variant=variant, config=config)


@pytest.mark.parametrize(("language", "variant"), [("ptx", "baseline"), ("hip", "hip/baseline")])
def test_gradients_whose_pointer_is_null_are_not_wanted(device: Device, rng: Rng, language: str, variant: str) -> None:
    values = problem(rng, (3, 4, 7))
    wanted = ("batch_norm_backward_kernel", language)
    kernel = next(k for k in ops.kernels() if (k.entry, k.language) == wanted).load(device)
    go, x, gi = (ptxrt.to_device(a, device) for a in (values[0], values[1], np.full((3, 4, 7), np.nan, np.float32)))
    kernel.launch(4, 256, x, go, gi, None, None, None, None, None, 3, 4, 7, 1e-5, 1)
    want = run(device, (values[0], values[1], None), kind="training", variant=variant)
    np.testing.assert_array_equal(gi.to_host(), want[0])


@pytest.mark.parametrize(("language", "variant"), [("ptx", "baseline"), ("hip", "hip/baseline")])
@pytest.mark.parametrize("handed", [False, True])
def test_the_kernel_writes_nothing_where_there_are_no_values(
    device: Device, language: str, variant: str, handed: bool
) -> None:
    """The plan launches nothing then, another caller may."""
    del variant  # for the devices that take no PTX
    wanted = (f"batch_norm_backward_{'handed_' if handed else ''}kernel", language)
    kernel = next(k for k in ops.kernels() if (k.entry, k.language) == wanted).load(device)
    empty, given = ptxrt.zeros((2, 4, 0), np.float32, device), ptxrt.zeros((4,), np.float32, device)
    gw, gb = (Guarded((4,), np.float32, device) for _ in "wb")
    mode = () if handed else (0,)
    kernel.launch(4, 256, empty, empty, empty, gw.array, gb.array, None, given, given, 2, 4, 0, 1e-5, *mode)
    assert np.isnan([gw.host(), gb.host()]).all()


@pytest.mark.parametrize(("kind", "variant"), WAYS)
@pytest.mark.parametrize("mean", [1e4, -1e4, 1e6])
def test_a_large_offset_costs_no_accuracy(device: Device, rng: Rng, mean: float, kind: str, variant: str) -> None:
    check(device, problem(rng, (2, 4, 31, 31), mean), kind=kind, variant=variant, large_mean=True)


@pytest.mark.parametrize("variant", TRAINING)
def test_an_outlier_in_front_costs_no_accuracy(device: Device, rng: Rng, variant: str) -> None:
    values = problem(rng, (1, 4, 1000))
    values[1][0, ::2, 0] = 1e6
    check(device, values, kind="training", variant=variant)


@pytest.mark.parametrize(("kind", "variant"), WAYS)
def test_a_large_gradient_offset_costs_no_accuracy(device: Device, rng: Rng, kind: str, variant: str) -> None:
    values = problem(rng, (2, 4, 500))
    values[0][...] += 1e4
    check(device, values, kind=kind, variant=variant, large_mean=True)


@pytest.mark.parametrize(("kind", "variant"), WAYS)
def test_without_weight_there_is_no_gradient_of_it(device: Device, rng: Rng, kind: str, variant: str) -> None:
    values = problem(rng, (2, 6, 10))
    got = check(device, (values[0], values[1], None, *values[3:]), kind=kind, variant=variant)
    ones = run(device, (values[0], values[1], np.ones(6, np.float32), *values[3:]), kind=kind, variant=variant)
    assert got[1] is None
    np.testing.assert_array_equal(got[0], ones[0])
    np.testing.assert_array_equal(got[2], ones[2])


@pytest.mark.parametrize(("kind", "variant"), WAYS)
def test_eps_zero_is_allowed(device: Device, rng: Rng, kind: str, variant: str) -> None:
    check(device, problem(rng, (2, 4, 50)), kind=kind, variant=variant, eps=0.0)


@pytest.mark.parametrize("variant", TRAINING)
def test_equal_values(device: Device, rng: Rng, variant: str) -> None:
    go, x, w, *_ = problem(rng, (2, 4, 100))
    x[...] = 0.1
    got = run(device, (go, x, w), kind="training", variant=variant)
    np.testing.assert_array_equal(got[1], 0)
    want = expected((go, x, w), kind="training")
    compare(device, (got[0], None, got[2]), (want[0], None, want[2]))
    assert np.isnan(run(device, (go, x, w), kind="training", variant=variant, eps=0.0)[0]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 27], ids=["first", "later"])
@pytest.mark.parametrize(("kind", "variant"), WAYS)
def test_a_bad_value_of_x_spoils_its_channel_alone(
    device: Device, rng: Rng, value: Any, place: int, kind: str, variant: str
) -> None:
    values = problem(rng, (2, 3, 40))
    rest = [0, 2]
    x = values[1]
    x[0, 1, place] = value
    gi, gw, gb = run(device, values, kind=kind, variant=variant)
    assert not np.isfinite(gw[1])
    if kind == "eval":
        assert np.isfinite(gi).all()  # x is not in it
    else:
        assert not np.isfinite(gi[:, 1]).any()
    want = expected((values[0][:, rest], x[:, rest], *(v[rest] for v in values[2:])), kind=kind)
    compare(device, (gi[:, rest], gw[rest], gb[rest]), want)
    check_error("batch_norm grad_bias", device, gb, values[0].astype(np.float64).sum(axis=(0, 2)), 2e-7)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("kind", "variant"), WAYS)
def test_a_bad_gradient_spoils_its_channel_alone(device: Device, rng: Rng, value: Any, kind: str, variant: str) -> None:
    values = problem(rng, (2, 3, 40))
    values[0][1, 1, 5] = value
    gi, gw, gb = run(device, values, kind=kind, variant=variant)
    assert not np.isfinite(gw[1])
    assert np.array_equal(gb[1], value, equal_nan=True)
    assert not np.isfinite(gi[1, 1, 5])
    assert np.isfinite(gi[:, [0, 2]]).all()
    if kind == "eval":
        want = expected(values, kind=kind)
        compare(device, (gi, None, gb), (want[0], None, want[2]))
    else:
        assert not np.isfinite(gi[:, 1]).any()


@pytest.mark.parametrize(("kind", "variant"), WAYS)
def test_denormals_are_preserved(device: Device, rng: Rng, kind: str, variant: str) -> None:
    go, x, *_ = problem(rng, (2, 2, 64))
    go = (rng.integers(-100, 100, go.shape) * 1.4e-45).astype(np.float32)
    one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    got = run(device, (go, x, one, zero, one), kind=kind, variant=variant, eps=0.0)
    want = expected((go, x, one, zero, one), kind=kind, eps=0.0)
    for value, reference in zip(got, want, strict=True):
        np.testing.assert_allclose(value, reference, rtol=0, atol=0.51 * 1.4013e-45)


@pytest.mark.parametrize(("kind", "variant"), WAYS)
def test_values_near_the_largest_do_not_overflow(device: Device, rng: Rng, kind: str, variant: str) -> None:
    values = problem(rng, (1, 2, 500))
    values[0][...] *= 1e36
    values[1][...] *= 3e37
    got = run(device, values, kind=kind, variant=variant)
    want = expected(values, kind=kind)
    check_error("batch_norm grad_bias", device, got[2], want[2], 2e-7)
    if kind == "training":
        compare(device, got, want)


# The types beside f32 ------------------------------------------------------------------------------------------------

every_way = pytest.mark.parametrize(("kind", "variant"), WAYS)
every_training = pytest.mark.parametrize("variant", TRAINING)


@pytest.mark.parametrize(("kind", "variant"), [way for way in WAYS if way[0] != "handed"])
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
def test_the_types_beside_f32(device: Device, rng: Rng, name: str, shape: Shape, kind: str, variant: str) -> None:
    values = problem(rng, shape, name=name)
    if variant == "columns" and shape[2] > 1023:
        with pytest.raises(ptxrt.Unsupported, match="is above 1023" if name == "f16" else "is above 511"):
            run(device, values, kind=kind, variant=variant)
    else:
        check(device, values, kind=kind, variant=variant)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("shape", [(19, 3, 7), (18, 2, 16)], ids=str)
@pytest.mark.ptx
def test_several_images_a_block_and_many_slices_of_them(
    device: Device, rng: Rng, monkeypatch: Patch, shape: Shape, name: str
) -> None:
    monkeypatch.setenv("PTXRT_SIM_CHECKS", "all")
    values = problem(rng, shape, name=name)
    for kind, variant in WAYS:
        if variant in SMALL_SHARES:
            check(device, values, kind=kind, variant=variant, config=SMALL_SHARES[variant])


@every_way
@pytest.mark.parametrize(("name", "mean"), [("f16", 1e3), ("bf16", 1e2), ("f64", -1e12)])
def test_nor_does_a_large_offset_cost_them_accuracy(
    device: Device, rng: Rng, mean: float, name: str, kind: str, variant: str
) -> None:
    values = problem(rng, (2, 2, 28), mean, name)
    got, case = run(device, values, kind=kind, variant=variant), f"{name} {mean} {kind} {variant}"
    if name == "f64":  # less the mean, which is exact, the reference loses no digits to it
        values = values[0], values[1] - np.longdouble(mean), values[2], values[3] - np.longdouble(mean), values[4]
    compare(device, got, expected(values, kind=kind), case)


@every_way
@pytest.mark.parametrize(("name", "mean", "hw"), [("f16", 1e3, 28), ("f64", 1e8, 28), ("f64", 1e8, 36)])  # few, more
def test_nor_does_a_large_offset_of_the_gradient(
    device: Device, rng: Rng, mean: float, hw: int, name: str, kind: str, variant: str
) -> None:
    go, *rest = problem(rng, (2, 2, hw), name=name)
    go = go + go.dtype.type(mean)
    got, case = run(device, (go, *rest), kind=kind, variant=variant), f"{name} {mean} {kind} {variant}"
    want = expected((go, *rest), kind=kind)
    if name == "f64" and kind == "training":  # a constant in grad_out counts for grad_bias alone
        less = expected((go - np.longdouble(mean), *rest), kind=kind)
        want = *less[:2], less[2] + 2 * hw * np.longdouble(mean)
    compare(device, got, want, case)


@every_training
@pytest.mark.parametrize(("name", "outlier"), [("f16", 6e4), ("bf16", 1e6), ("f64", 1e10)])
def test_nor_does_an_outlier_in_front(device: Device, rng: Rng, name: str, outlier: float, variant: str) -> None:
    values = problem(rng, (1, 4, 104), name=name)
    values[1][0, ::2, 0] = outlier
    check(device, values, kind="training", variant=variant)


@every_way
def test_sums_that_a_half_cannot_hold(device: Device, rng: Rng, kind: str, variant: str) -> None:
    go, x, w, *given = problem(rng, (2, 3, 20), name="f16")
    go = np.full_like(go, 60000)
    _, grad_weight, grad_bias = run(device, (go, x, w, *given), kind=kind, variant=variant)
    want = expected((go, x, w, *given), kind=kind)
    np.testing.assert_array_equal(grad_bias, 40 * 60000)
    if kind != "training":  # where it is 0 but for rounding
        check_error("batch_norm grad_weight", device, grad_weight, want[1], bar("batch_norm", "f32"))


@every_way
@pytest.mark.parametrize("name", ["f16", "f64"])
def test_bad_values_of_them_spoil_their_channel_alone(
    device: Device, rng: Rng, name: str, kind: str, variant: str
) -> None:
    go, x, *rest = problem(rng, (2, 4, 24), name=name)
    x[0, 0, 0], x[1, 1, 7], go[1, 2, 5] = np.inf, np.nan, -np.inf
    gi, gw, gb = run(device, (go, x, *rest), kind=kind, variant=variant)
    assert not np.isfinite(gw[:3]).any()
    assert gb[2] == -np.inf
    assert np.isfinite(gi[:, :2]).all() if kind == "eval" else not np.isfinite(gi[:, :3]).any()
    want = expected((go[:, 3:], x[:, 3:], *(v[3:] for v in rest)), kind=kind)
    compare(device, (gi[:, 3:], gw[3:], gb[3:]), want)


@every_way
@pytest.mark.parametrize(("name", "scale"), [("f16", 1e6), ("f64", 1)])
def test_a_gradient_of_them_is_rounded_once(
    device: Device, rng: Rng, name: str, scale: float, kind: str, variant: str
) -> None:
    go, x, w, *given = problem(rng, (2, 3, 26), name=name)
    w[1:] *= w.dtype.type(scale)
    got = run(device, (go, x, w, *given), kind=kind, variant=variant)
    want = expected((go, x, w, *given), kind=kind)
    for value, exact in zip(got, want, strict=True):
        assert_rounded_once(value, exact)
    assert np.isfinite(got[0]).all() == (scale == 1)  # what f16 cannot hold is infinite


@pytest.mark.parametrize("variant", EVAL)
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_a_gradient_of_16_bits_is_that_in_f32_rounded(device: Device, name: str, variant: str) -> None:
    """A product a little above the middle of two numbers of the type: f32 rounds it to the middle."""
    half = EPSILON[name] / 2
    go, x = (np.ones((1, 2, 8), kinds_of(name)[0]) for _ in range(2))
    weight = np.array([1 + half, 1 + 3 * half], np.float32)  # times 1 / sqrt(1 - 2^-24), a little above 1
    values = go, x, weight, np.zeros(2, np.float32), np.full(2, 1 - 2.0**-24, np.float32)
    got = run(device, values, kind="eval", variant=variant, eps=0.0)[0]
    np.testing.assert_array_equal(got, np.broadcast_to(np.array([[[1], [1 + 4 * half]]]), go.shape))


@pytest.mark.sanitize
@pytest.mark.parametrize("kind", ["handed", "training"])
def test_registers_have_what_shared_memory_does_not_hold(device: Device, rng: Rng, kind: str) -> None:
    """Not a whole turn of the block."""
    check(device, problem(rng, (126, 1, 49)), kind=kind, variant="hip/cached")


# What is refused ------------------------------------------------------------------------------------------------------


def test_slices_of_more_values_than_hip_counts_are_refused(device: Device, rng: Rng) -> None:
    """It cut their number to 32 bits, and left values out."""
    values, most = problem(rng, (2, 3, 40)), (1 << 32) - 1
    descriptor = BatchNormBackwardDescriptor((2, 3, 40), False)
    check(device, values, kind="eval", variant="hip/split", config=SplitConfig(1, most))
    with pytest.raises(ptxrt.Unsupported, match=f"a slice has {most + 1} values, above {most}"):
        BatchNormBackwardPlan.select(device, descriptor, wish("hip/split", config=SplitConfig(1, most + 1)))


@pytest.mark.parametrize("shape", [(1, 4), (1, 4, 1, 1), (0, 4, 3), (2, 4, 0)], ids=str)
def test_training_on_fewer_than_two_values_a_channel_is_refused(device: Device, shape: Shape) -> None:
    x = ptxrt.zeros(shape, np.float32, device)
    with pytest.raises(ptxrt.ShapeMismatch, match="batch_norm_backward: grad_out: ") as caught:
        batch_norm_backward(x, x, None, None, None, training=True)
    assert "two values" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "variant"), [("eval", "split"), ("handed", "split"), ("handed", "baseline"), ("handed", "hip/baseline")]
)
@pytest.mark.parametrize("shape", [(5, 2, 2**29), (1, 2, 2**31 + 8)], ids=str)
def test_tensors_past_2_to_the_32_elements(
    cuda: Device, torch_with: Any, shape: Shape, kind: str, variant: str
) -> None:
    count = int(np.prod(shape))
    torch = torch_with(14 * count)
    x, go = (torch.empty(shape, device="cuda").normal_() for _ in "xg")
    w, mean, var = (torch.tensor(pair, device="cuda") for pair in ([2.0, -3.0], [0.25, -0.5], [4.0, 0.5]))
    training = kind == "handed"
    plan = BatchNormBackwardPlan.select(
        cuda, BatchNormBackwardDescriptor(shape, training, handed=training), wish(variant)
    )
    given = (None, None, mean, var) if training else (mean, var, None, None)
    results = [torch.empty_like(a) for a in (x, w, w)]
    plan.run(BatchNormBackwardArgs(go, x, w, *given, *results))
    sums = torch.zeros(2, dtype=torch.float64, device="cuda")
    dots = torch.zeros(2, dtype=torch.float64, device="cuda")
    for c in (0, 1):
        for image in range(shape[0]):
            for xs, gs in zip(x[image, c].chunk(64), go[image, c].chunk(64), strict=True):
                sums[c] += gs.double().sum()
                dots[c] += ((xs.double() - mean[c]) * gs.double()).sum()
    inv = 1 / (var.double() + 1e-5).sqrt()
    assert relative_error(results[1].cpu().numpy(), (dots * inv).cpu().numpy()) <= 2e-7
    assert relative_error(results[2].cpu().numpy(), sums.cpu().numpy()) <= 2e-7
    gi, x, go, m = results[0].view(-1), x.view(-1), go.view(-1), shape[0] * shape[2]
    for start in (0, 2**31 - 500, 2**32 - 500, count // 2 - 500, count - 1000):
        part = slice(start, min(start + 1000, count))
        c = torch.arange(part.start, part.stop, device="cuda") // shape[2] % 2
        want = go[part].double()
        if training:
            want = want - sums[c] / m - (x[part].double() - mean[c]) * dots[c] / m * inv[c] ** 2
        want = want * inv[c] * w[c]
        assert relative_error(gi[part].cpu().numpy(), want.cpu().numpy()) <= 2e-7, start


# Checks -------------------------------------------------------------------------------------------------------------

NAMES = ("grad_out", "x", "weight", "running_mean", "running_var", "batch_mean", "batch_var", *RESULTS)
SHAPE = (2, 8, 6)


@pytest.fixture
def good(device: Device, rng: Rng) -> Any:
    """Operands that pass in training, the statistics handed over; each test spoils one."""
    go, x, w, mean, var = problem(rng, SHAPE)
    values = dict(zip(NAMES, (go, x, w, mean, var, mean, var), strict=False))
    values |= {"grad_input": np.full(SHAPE, np.nan, np.float32)}
    values |= {name: np.full(8, np.nan, np.float32) for name in ("grad_weight", "grad_bias")}
    return {name: ptxrt.to_device(value, device) for name, value in values.items()}


def call(operands: Any, training: bool = True, **how: Any) -> Any:
    return batch_norm_backward(
        *(operands[name] for name in NAMES[:5]),
        training=training,
        batch_mean=operands["batch_mean"],
        batch_var=operands["batch_var"],
        out=tuple(operands[name] for name in RESULTS),
        **how,
    )


def in_eval(operands: Any) -> Any:
    return operands | {"batch_mean": None, "batch_var": None}


def refused(kind: Any, operands: Any, argument: Any, **how: Any) -> Any:
    """Assert that the call is refused for `argument`, and that nothing was launched."""
    device = next(a.device for a in operands.values() if isinstance(a, ptxrt.DeviceArray))
    with Patch.context() as patch:
        launches_by(patch, device, lambda *_: pytest.fail("launched"))
        with pytest.raises(kind) as caught:
            call(operands, **how)
    assert type(caught.value) is kind
    assert (caught.value.op, caught.value.argument) == ("batch_norm_backward", argument)
    return caught.value


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["running_mean", "running_var"])
def test_both_running_statistics_are_given_or_neither(good: Any, name: str, training: bool) -> None:
    good[name] = None
    refused(ptxrt.InvalidArgument, good if training else in_eval(good), name, training=training)


@pytest.mark.parametrize("name", ["batch_mean", "batch_var"])
def test_both_batch_statistics_are_given_or_neither(good: Any, name: str) -> None:
    good[name] = None
    refused(ptxrt.InvalidArgument, good, name)


def test_eval_needs_the_running_statistics(good: Any) -> None:
    good["running_mean"] = good["running_var"] = None
    refused(ptxrt.InvalidArgument, in_eval(good), "running_mean", training=False)


def test_eval_takes_no_batch_statistics(good: Any) -> None:
    refused(ptxrt.InvalidArgument, good, "batch_mean", training=False)


def test_training_needs_no_running_statistics(good: Any) -> None:
    with_them = [a.to_host() for a in call(good)]
    good["running_mean"] = good["running_var"] = None
    for one, two in zip(with_them, call(good), strict=True):
        np.testing.assert_array_equal(one, two.to_host())


# The plan -----------------------------------------------------------------------------------------------------------


def test_a_plan_takes_batch_statistics_where_it_is_of_a_problem_with_them(device: Device, good: Any) -> None:
    without = BatchNormBackwardPlan.select(device, BatchNormBackwardDescriptor(SHAPE, True))
    with_them = BatchNormBackwardPlan.select(device, BatchNormBackwardDescriptor(SHAPE, True, handed=True))
    for name in ("batch_mean", "batch_var"):
        with pytest.raises(ptxrt.InvalidArgument, match=name):
            without.can_implement(BatchNormBackwardArgs(**in_eval(good) | {name: good[name]}))
        with pytest.raises(ptxrt.InvalidArgument, match=name):
            with_them.can_implement(BatchNormBackwardArgs(**good | {name: None}))


@pytest.mark.parametrize("training", [True, False])
def test_more_channels_than_a_grid_has_blocks_go_to_hip(device: Device, training: bool) -> None:
    plan = BatchNormBackwardPlan.select(device, BatchNormBackwardDescriptor((2, (1 << 31) + 1, 1), training))
    assert key_of(plan.variant) == "hip/baseline"


@pytest.mark.parametrize(("training", "handed"), [(True, None), (True, 1), (False, True)])
def test_a_descriptor_says_whether_statistics_are_handed(training: bool, handed: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument, match="handed"):
        BatchNormBackwardDescriptor(SHAPE, training, handed=handed)
