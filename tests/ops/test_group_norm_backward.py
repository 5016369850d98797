"""group_norm_backward: its values, its edges, and each of its checks."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Patch, Rng, Shape
from hypothesis import strategies as st
from op_testing import Array, Guarded, check_error, for_drawn, key_of, on_device, variants, wish
from tolerances import EPSILON, bar, relative_error

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import (
    GroupNormBackwardArgs,
    GroupNormBackwardDescriptor,
    GroupNormBackwardPlan,
    group_norm,
    group_norm_backward,
    references,
)
from ptxrt.ops._group_norm import FAMILY, SplitBackwardConfig, WholeBackwardConfig
from ptxrt.ops.framework import parameter_type
from ptxrt.runtime.layout import channels_last

ONE_WARP = "baseline of one warp"
# Of channels-last arrays one for all, whose parts the others have too: test_every_variant.py, test_channels_last.py.
# What `teams` makes in f32 has tests of its own: test_group_norm_teams_backward.py.
LEFT_OUT = (
    "channels_last_cluster",
    "channels_last_split",
    "hip/channels_last",
    "hip/channels_last_split",
    "hip/channels_last_tickets",
    "cluster",
    "grid",  # test_group_norm_grid_backward.py
    "ring",
    "teams",
    "hip/teams",
    "few",
    "hip/few",
)
VARIANTS = [each for each in variants(GroupNormBackwardPlan) if each not in LEFT_OUT] + [ONE_WARP, f"hip/{ONE_WARP}"]
every_variant = pytest.mark.parametrize("variant", VARIANTS)
OTHERS = [name for name in FAMILY.dtypes if name != "f32"]  # the same texts: fewer cases of each
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)
RESULTS = ("grad_input", "grad_weight", "grad_bias")


def kind_of(name: str) -> Any:
    return BY_NAME[name].numpy


def parameters_of(kind: Any) -> Any:
    """Return the type of weight and its gradient, in NumPy, for that of x."""
    return parameter_type(element_type(kind)).numpy


def forced(device: Device, shape: Shape, groups: int, eps: float, variant: str, dtype: str = "f32") -> Any:
    config = WholeBackwardConfig(1, 1 << 9) if variant.endswith(ONE_WARP) else None
    strides = channels_last(shape) if "channels_last" in variant else ()
    problem = GroupNormBackwardDescriptor(shape, groups, element_type(dtype), eps, strides)
    if strides and not problem.channels_last:  # both layouts are one
        variant = variant.replace("channels_last_split", "split").replace("channels_last", "baseline")
    return GroupNormBackwardPlan.select(device, problem, wish(variant.removesuffix(" of one warp"), config=config))


def run(
    device: Device, go: Any, x: Any, w: Any = None, groups: int = 1, eps: float = 1e-5, offset: int = 0,
    variant: str | None = None,
) -> Any:  # fmt: skip
    """Run on `device` into poisoned, guarded outputs; return the host results.

    Every array lies `offset` elements behind a multiple of 256 bytes.
    """
    plan = forced(device, x.shape, groups, eps, variant, x.dtype) if variant else None
    strides = plan.operands[0].strides if plan else ()
    vector = (x.shape[1:2], parameters_of(x.dtype))
    wanted = ((x.shape, x.dtype), None if w is None else vector, vector)
    out = [None if each is None else Guarded(*each, device, offset, strides) for each in wanted]
    given = tuple(None if o is None else o.array for o in out)
    go, x, w = (on_device(a, device, offset, strides) for a in (go, x, w))
    if plan is None:
        got = group_norm_backward(go, x, w, groups, eps, out=given)
    else:
        got = plan.run(GroupNormBackwardArgs(go, x, w, *given))
    assert all(a is b for a, b in zip(got, given, strict=True))
    return tuple(None if o is None else o.host() for o in out)


def problem(rng: Rng, shape: Shape, mean: float = 0.0, name: str = "f32") -> tuple[Array, Array, Array]:
    x = (rng.standard_normal(shape) + mean).astype(kind_of(name))
    go, w = rng.standard_normal(shape).astype(x.dtype), rng.standard_normal(shape[1]).astype(parameters_of(x.dtype))
    return go, x, w


def bar_of(got: Any, want: Any, large_mean: bool = False) -> Any:
    """Return the bar of a result of its own type: the parameters' gradients are f32 where elements have 16 bits."""
    return bar("group_norm", element_type(got.dtype).name, want, large_mean=large_mean)


def hold(device: Device, got: Any, want: Any, case: Any, large_mean: bool = False) -> None:
    for name, ours, reference in zip(RESULTS, got, want, strict=True):
        assert (ours is None) == (reference is None)
        if ours is not None:
            limit = bar_of(ours, reference, large_mean)
            check_error(f"group_norm_backward {name}", device, ours, reference, limit, case)


def check(
    device: Device, go: Any, x: Any, w: Any, groups: int, eps: float = 1e-5, large_mean: bool = False, **how: Any
) -> None:
    got = run(device, go, x, w, groups, eps, **how)
    want = references.group_norm_backward(go, x, w, groups, eps)
    hold(device, got, want, (x.shape, groups, eps, how), large_mean)


# Values -------------------------------------------------------------------------------------------------------------


@every_variant
@pytest.mark.parametrize(
    ("shape", "groups", "eps"),
    [
        pytest.param((2, 16, 5), 4, 1e-6, id="small (2,16,hw 5,G 4,eps 1e-6)"),
        pytest.param((1, 128, 4, 4), 32, 1e-5, id="SD-VAE shape (1,128,4x4,G 32)"),
        ((2, 8), 2, 1e-5),  # no trailing axes
        ((3, 6, 7), 6, 1e-5),  # groups = C
        ((3, 6, 7), 1, 1e-5),  # one group
        ((1, 2, 3, 5, 7), 1, 1e-5),
        ((5, 12, 1), 3, 1e-5),  # hw = 1
        ((2, 300, 1), 1, 1e-5),
        ((1, 1, 300), 1, 1e-5),
        ((2, 6, 170), 1, 1e-5),  # round 1024 values a group: a warp or a block for them
        ((2, 4, 256), 1, 1e-5),
        ((2, 5, 205), 1, 1e-5),
        ((2, 4, 260), 1, 1e-5),
        ((1, 4, 4099), 2, 1e-5),  # slices of channels and of groups
        ((1, 2, 2048), 1, 1e-5),
        ((1, 2, 2049), 2, 1e-5),
        ((1, 3, 2052), 3, 1e-5),
        ((2, 4, 5000), 1, 1e-5),
        ((2, 4, 4999), 2, 1e-5),
        ((1, 33, 40), 1, 1e-5),  # channels of a group: round a warp, four, a block
        ((1, 128, 3), 1, 1e-5),
        ((1, 129, 3), 1, 1e-5),
        ((1, 257, 4), 1, 1e-5),
        ((1, 600, 2), 2, 1e-5),
        ((257, 2, 3), 1, 1e-5),  # images of a channel: round a block
        ((600, 1, 5), 1, 1e-5),
    ],
)
@pytest.mark.sanitize
def test_group_norm_backward_matches_cpu(
    device: Device, rng: Rng, shape: Shape, groups: int, eps: float, variant: str
) -> None:
    check(device, *problem(rng, shape), groups, eps, variant=variant)


@every_variant
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 16, 5), 4),
        ((2, 8), 2),
        ((1, 4, 1029), 2),
        ((1, 2, 2064), 1),
        ((1, 9, 132), 3),
        ((1, 3, 264), 3),
        ((1, 129, 3), 1),
        ((129, 2, 3), 1),
    ],
    ids=str,
)
@pytest.mark.sanitize
def test_the_types_beside_f32(device: Device, rng: Rng, name: str, shape: Shape, groups: int, variant: str) -> None:
    check(device, *problem(rng, shape, name=name), groups, variant=variant)


@every_variant
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("hw", [7, 8, 24, 64, 256])
def test_numbers_of_lanes_in_the_types_beside_f32(device: Device, rng: Rng, name: str, hw: int, variant: str) -> None:
    check(device, *problem(rng, (3, 6, hw), name=name), 3, variant=variant)


@every_variant
@pytest.mark.parametrize(
    "hw", [2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 512, 516]
)
def test_every_number_of_lanes(device: Device, rng: Rng, hw: int, variant: str) -> None:
    check(device, *problem(rng, (3, 6, hw)), 3, variant=variant)


@every_variant
def test_drawn_shapes(device: Device, variant: str) -> None:
    # Not down to one or two values a group: grad_input is 0 there but for eps, and rounding in the reference too.
    def body(
        batch: Any, groups: Any, per_group: Any, hw: Any, offset: Any, weighted: Any, name: str, seed: Any
    ) -> None:
        go, x, w = problem(np.random.default_rng(seed), (batch, groups * per_group, hw), name=name)
        check(device, go, x, w if weighted else None, groups, offset=offset, variant=variant)

    for_drawn(
        device,
        body,
        batch=st.integers(1, 4),
        groups=st.integers(1, 5),
        per_group=st.integers(1, 9),
        hw=st.integers(1, 40).map(lambda n: 8 * n) | st.integers(3, 300),
        offset=st.integers(0, 3) | st.just(8),
        weighted=st.booleans(),
        name=st.sampled_from(FAMILY.dtypes),
        seed=st.integers(0, 2**32 - 1),
    )


@pytest.mark.parametrize("shape", [(1, 3, 1500000), (2, 64, 128, 128), (1, 1, 10000001), (70000, 2, 3)], ids=str)
def test_big_ones(cuda: Device, rng: Rng, shape: Shape) -> None:
    check(cuda, *problem(rng, shape), 1)


@every_variant
@pytest.mark.parametrize("mean", [1e4, -1e4, 1e6])
@pytest.mark.parametrize("shape", [(2, 8, 33, 31), (2, 8, 12), (1, 4, 5000)], ids=str)
def test_a_large_offset_costs_no_accuracy(device: Device, rng: Rng, shape: Shape, mean: float, variant: str) -> None:
    """sum(go * x) - mean * sum(go) would lose all digits here; the shifted sums lose none, in grad_weight neither."""
    check(device, *problem(rng, shape, mean), 4, large_mean=True, variant=variant)
    check(device, *problem(rng, shape, mean), 4, variant=variant)


@every_variant
@pytest.mark.parametrize(("mean", "name"), [(1e3, "f16"), (1e2, "bf16"), (1e4, "f64"), (-1e12, "f64")])
def test_nor_does_it_in_the_types_beside_f32(device: Device, rng: Rng, mean: float, name: str, variant: str) -> None:
    shape = (2, 8, 83)
    go, x, w = problem(rng, shape, mean, name)
    if name != "f64":
        check(device, go, x, w, 4, variant=variant)
        return
    # Less the mean, which is exact, the reference loses no digits to it.
    want = references.group_norm_backward(go.astype(np.longdouble), x.astype(np.longdouble) - mean, w, 4)
    hold(device, run(device, go, x, w, 4, variant=variant), want, (shape, mean))


@every_variant
@pytest.mark.parametrize(("mean", "name"), [(1e4, "f32"), (1e3, "f16"), (1e2, "bf16"), (1e4, "f64")])
def test_a_large_mean_of_grad_out_costs_no_accuracy(
    device: Device, rng: Rng, mean: float, name: str, variant: str
) -> None:
    go, x, w = problem(rng, (2, 8, 500 if name == "f32" else 80), name=name)
    check(device, go + kind_of(name).type(mean), x, w, 4, large_mean=True, variant=variant)


@every_variant
def test_what_of_a_gradient_cancels_costs_f64_no_accuracy(device: Device, rng: Rng, variant: str) -> None:
    """Where a group is a channel, a constant in grad_out counts for grad_bias alone."""
    go, x, w = problem(rng, (2, 3, 80), name="f64")
    go += 1e8
    grad_input, grad_weight, grad_bias = references.group_norm_backward(go.astype(np.longdouble) - 1e8, x, w, 3)
    want = grad_input, grad_weight, grad_bias + 160e8
    hold(device, run(device, go, x, w, 3, variant=variant), want, x.shape)


@every_variant
@pytest.mark.parametrize("hw", [5, 28])  # groups of 10 values, and of 56
def test_of_few_values_in_f64_what_cancels_of_a_gradient_costs_no_accuracy(
    device: Device, rng: Rng, hw: int, variant: str
) -> None:
    go, x, _ = problem(rng, (2, 4, hw), name="f64")
    check(device, 3 + 2 * x + 1e-3 * go, x, None, 2, variant=variant)


@every_variant
@pytest.mark.parametrize(("name", "outlier"), [("f32", 1e6), ("f16", 6e4), ("bf16", 1e6), ("f64", 1e10)])
def test_an_outlier_in_front_costs_no_accuracy(
    device: Device, rng: Rng, name: str, outlier: float, variant: str
) -> None:
    """The shift is the worst value of all."""
    go, x, w = problem(rng, (1, 4, 1000 if name == "f32" else 100), name=name)
    x[0, ::2, 0] = outlier
    check(device, go, x, w, 2, variant=variant)


@every_variant
@every_type
def test_without_weight(device: Device, rng: Rng, name: str, variant: str) -> None:
    go, x, w = problem(rng, (2, 6, 10), name=name)
    bare, full = run(device, go, x, None, 3, variant=variant), run(device, go, x, np.ones_like(w), 3, variant=variant)
    assert bare[1] is None
    np.testing.assert_array_equal(bare[0], full[0])
    np.testing.assert_array_equal(bare[2], full[2])
    grads = group_norm_backward(ptxrt.to_device(go, device), ptxrt.to_device(x, device), None, 3)
    assert grads[1] is None


@every_variant
@every_type
def test_one_value_a_group_has_no_gradient(device: Device, rng: Rng, name: str, variant: str) -> None:
    go, x, w = problem(rng, (3, 5, 1), name=name)
    grad_input, grad_weight, grad_bias = run(device, go, x, w, 5, variant=variant)
    np.testing.assert_array_equal(grad_input, np.zeros_like(x))
    np.testing.assert_array_equal(grad_weight, np.zeros_like(w))
    want = go.astype(np.longdouble).sum(axis=(0, 2))
    assert relative_error(grad_bias, want) <= bar_of(grad_bias, want)


@every_variant
@every_type
def test_equal_values(device: Device, rng: Rng, name: str, variant: str) -> None:
    """Variance 0: xhat is 0, so grad_input is what of grad_out differs from its mean, over sqrt(eps)."""
    go, _, w = problem(rng, (2, 4, 100), name=name)
    x = np.full((2, 4, 100), 0.1, go.dtype)
    check(device, go, x, w, 2, variant=variant)
    assert not run(device, go, x, w, 2, variant=variant)[1].any()


@every_variant
@every_type
def test_variance_zero_and_eps_zero_is_not_a_number(device: Device, name: str, variant: str) -> None:
    ones = np.ones((1, 2, 5), kind_of(name))
    weight = np.ones(2, parameters_of(ones.dtype))
    grad_input, grad_weight, grad_bias = run(device, ones, ones, weight, 1, eps=0.0, variant=variant)
    assert np.isnan(grad_input).all()
    assert np.isnan(grad_weight).all()
    np.testing.assert_array_equal(grad_bias, [5, 5])


@every_variant
def test_eps_zero_is_allowed(device: Device, rng: Rng, variant: str) -> None:
    check(device, *problem(rng, (2, 4, 50)), 2, eps=0.0, variant=variant)


@every_variant
@every_type
@pytest.mark.parametrize(("value", "place"), [(np.nan, 7), (np.inf, 7), (-np.inf, 7), (np.inf, 0)])
def test_a_bad_value_of_x_spoils_its_group_alone(
    device: Device, rng: Rng, value: Any, place: int, name: str, variant: str
) -> None:
    go, x, w = problem(rng, (2, 6, 40), name=name)
    x[1, 2, place] = value
    grad_input, grad_weight, grad_bias = run(device, go, x, w, 3, variant=variant)
    good = np.ones(x.shape, bool)
    good[1, 2:4] = False
    want: Any = references.group_norm_backward(go, np.where(good, x, x.dtype.type(0)), w, 3)
    assert np.isnan(grad_input[1, 2:4]).all()
    assert np.isnan(grad_weight[2:4]).all()
    channels = [0, 1, 4, 5]
    assert_close(grad_input[good], want[0][good])
    assert_close(grad_weight[channels], want[1][channels])
    assert_close(grad_bias, want[2])


def assert_close(got: Any, want: Any) -> None:
    assert relative_error(got, want) <= bar_of(got, want)


@every_variant
@every_type
@pytest.mark.parametrize(("value", "place"), [(np.nan, 7), (np.inf, 7), (-np.inf, 7), (np.inf, 0), (-np.inf, 8)])
def test_a_bad_value_of_grad_out_spoils_its_group_and_channel_alone(
    device: Device, rng: Rng, value: Any, place: int, name: str, variant: str
) -> None:
    go, x, w = problem(rng, (2, 6, 40), name=name)
    go[1, 2, place] = value
    grad_input, grad_weight, grad_bias = run(device, go, x, w, 3, variant=variant)
    good = np.ones(x.shape, bool)
    good[1, 2:4] = False
    want: Any = references.group_norm_backward(np.where(np.isfinite(go), go, x.dtype.type(0)), x, w, 3)
    assert not np.isfinite(grad_input[1, 2:4].astype(np.float64)).any()
    assert not np.isfinite(grad_weight[2])
    np.testing.assert_array_equal(grad_bias[2], grad_bias.dtype.type(value))
    others = [0, 1, 3, 4, 5]
    assert_close(grad_input[good], want[0][good])
    assert_close(grad_weight[others], want[1][others])
    assert_close(grad_bias[others], want[2][others])


@every_variant
@every_type
def test_denormals_are_preserved(device: Device, rng: Rng, name: str, variant: str) -> None:
    go, x, w = problem(rng, (1, 4, 64), name=name)
    limits, wide = ml_dtypes.finfo(kind_of(name)), name == "f64"
    tiny = (rng.uniform(-1, 1, x.shape) * float(limits.tiny)).astype(x.dtype)
    # Of x: f16's are not small beside eps, and gradients in f16 would be infinite without it.
    check(device, go, tiny, w, 2, eps=1e-5 if wide or name == "f16" else 1e-30, variant=variant)
    smallest = float(limits.smallest_subnormal)
    few = (rng.integers(-100, 100, x.shape) * smallest).astype(x.dtype)
    want: Any = references.group_norm_backward(few, x, w, 2)
    got = run(device, few, x, w, 2, variant=variant)
    for ours, reference in zip(got, want, strict=True):  # of grad_out, and so in the results
        assert (np.abs(ours.astype(reference.dtype) - reference) <= (12 if wide else 0.75) * smallest).all()
    assert np.count_nonzero(got[0]) > 100


@every_variant
@pytest.mark.parametrize(
    ("name", "of_go", "of_x"),
    [("f32", 1e36, 3e37), ("f16", 1e4, 1e4), ("bf16", 1e36, 3e37), ("f64", 1e150, 1e150)],
)
def test_values_near_the_largest_do_not_overflow(
    device: Device, rng: Rng, name: str, of_go: float, of_x: float, variant: str
) -> None:
    go, x, w = problem(rng, (1, 2, 500 if name == "f32" else 100), name=name)
    check(device, go * go.dtype.type(of_go), x * x.dtype.type(of_x), w, 1, variant=variant)


@every_variant
def test_values_whose_squares_f64_cannot_hold_are_not_a_number(device: Device, rng: Rng, variant: str) -> None:
    go, x, w = problem(rng, (2, 2, 50), name="f64")
    x[1] *= 1e160
    grad_input, grad_weight, grad_bias = run(device, go, x, w, 1, variant=variant)
    assert np.isnan(grad_input[1]).all()
    assert np.isnan(grad_weight).all()
    assert np.isfinite(grad_input[0]).all()
    assert np.isfinite(grad_bias).all()


@every_variant
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_a_result_of_16_bits_is_that_in_f32_rounded(device: Device, name: str, variant: str) -> None:
    """From f64 at once, what f32 rounds to the middle of two numbers would go to the nearer one."""
    half = EPSILON[name] / 2
    go = 1 + np.arange(1, 1 / EPSILON[name]) * EPSILON[name]
    weight = np.float32((1 + 3 * half) / go)
    wanted = np.float32(go * weight) == np.float32(1 + 3 * half)
    wanted &= go * weight < 1 + 3 * half
    go, weight = go[wanted][:8], weight[wanted][:8]
    x, gradients = np.zeros((2, 1, 8, 4), kind_of(name))
    x[:], gradients[0, :, 0] = [1, -1, 1, -1], go  # x is of mean 0 and variance 1; of a gradient half is left
    grad_input, _, _ = run(device, gradients, x, weight, 8, eps=0.0, variant=variant)
    middle = grad_input[0, :, 0].astype(np.float64) == 0.5 + 2 * half
    assert np.count_nonzero(middle) >= 6  # from f64 none; f32 itself may miss the middle by a last place


def test_grad_out_may_be_x(device: Device, rng: Rng) -> None:
    _, x, w = problem(rng, (2, 8, 30))
    both = ptxrt.to_device(x, device)
    got: Any = group_norm_backward(both, both, ptxrt.to_device(w, device), 4, out=(both, None, None))
    for ours, theirs in zip(got, run(device, x, x, w, 4), strict=True):
        np.testing.assert_array_equal(ours.to_host(), theirs)


@every_variant
def test_an_image_of_many_turns(device: Device, rng: Rng, monkeypatch: Patch, variant: str) -> None:
    """The loop over images, with fewer blocks than images."""
    monkeypatch.setattr(sys.modules["ptxrt.ops._group_norm"], "_GRID_Y", 2)
    for groups, hw in ((1, 5), (2, 36), (1, 1028), (2, 4100)):
        check(device, *problem(rng, (5, 4, hw)), groups, variant=variant)
    for name in OTHERS:
        check(device, *problem(rng, (5, 4, 8), name=name), 2, variant=variant)


@every_type
@pytest.mark.parametrize(("language", "variant"), [("ptx", "baseline"), ("hip", "hip/baseline")])
def test_the_kernel_writes_nothing_where_there_are_no_values(
    device: Device, language: str, variant: str, name: str
) -> None:
    """The plan launches nothing then, another caller may."""
    del variant  # for the devices that take no PTX
    kernel = FAMILY.kernel("group_norm_backward_groups_kernel", BY_NAME[name], language).load(device)
    empty, out = ptxrt.zeros((2, 4, 0), kind_of(name), device), Guarded((64,), np.float64, device)
    kernel.launch((2, 2), 256, empty, empty, empty, None, out.array[:32], out.array[32:], 2, 4, 2, 0, 1e-5, 1, 1, 1)
    assert np.isnan(out.host()).all()


def test_it_is_the_derivative_of_group_norm(device: Device, rng: Rng) -> None:
    """sum(grad_out * y) grows by grad_input along any direction, as central differences in float64 say."""
    go, x, w = problem(rng, (2, 6, 9))
    grad_input, grad_weight, _ = run(device, go, x, w, 3)
    step, along = 1e-5, rng.standard_normal(x.shape)
    wide = [(x + sign * step * along).astype(np.longdouble) for sign in (1, -1)]
    up, down = (references.group_norm(a, w, None, 3) for a in wide)
    slope = float(((up - down) * go).sum() / (2 * step))
    assert abs(slope - (grad_input * along).sum()) <= 1e-5 * np.abs(grad_input * along).sum()
    y = group_norm(ptxrt.to_device(x, device), ptxrt.to_device(w, device), None, 3).to_host()
    assert abs((grad_weight * w).sum() - (y * go).sum()) <= 1e-5 * np.abs(y * go).sum()


@pytest.mark.parametrize(
    ("shape", "groups", "variant"),
    [
        ((5, 2, 2**29), 2, "split"),
        ((1100, 16, 2**18), 8, "grid"),
        ((1, 2, 2**31 + 8), 1, "split"),
        ((65537, 256, 257), 128, ONE_WARP),
        ((65537, 256, 257), 128, "split"),
        ((65537, 64, 1028), 32, "baseline"),
        ((1, 2, 2**31 + 8), 1, "baseline"),
        ((65537, 64, 1028), 32, "hip/baseline"),
        ((1, 2, 2**31 + 8), 1, "hip/baseline"),
    ],
    ids=str,
)
def test_tensors_past_2_to_the_32_elements(
    cuda: Device, torch_with: Any, shape: Shape, groups: int, variant: str
) -> None:
    count = int(np.prod(shape))
    torch = torch_with(16 * count)
    batch, channels, hw = shape
    x, go = (torch.empty(count, device="cuda").normal_() for _ in range(2))
    x += 3
    w = torch.randn(channels, device="cuda")
    arrays = [ptxrt.from_dlpack(a) for a in (go.view(shape), x.view(shape), w)]
    plan = forced(cuda, shape, groups, 1e-5, variant)
    got = [torch.from_dlpack(a) for a in plan.run(GroupNormBackwardArgs(*arrays))]
    limit, span = bar("group_norm", "f32"), channels // groups * hw

    def moments(group: Any) -> Any:
        """Mean and 1 / sqrt(var + eps) of a group of x, in pieces."""
        parts = x[group * span :][:span].chunk(64)
        mean = sum(part.double().sum() for part in parts) / span
        return mean, (sum(((part.double() - mean) ** 2).sum() for part in parts) / span + 1e-5).rsqrt()

    for start in (0, 2**31 - 500, 2**32 - 500, count - 1000):
        group = start // span
        mean, inv = moments(group)
        ends = [*range(group * span, (group + 1) * span, 1 << 26), (group + 1) * span]
        sums = [0.0, 0.0]
        for low, high in pairwise(ends):
            channel = torch.arange(low, high, device="cuda") // hw % channels
            d, xhat = go[low:high].double() * w[channel], (x[low:high].double() - mean) * inv
            sums = [sums[0] + d.sum() / span, sums[1] + (d * xhat).sum() / span]
        low, high = start, min(start + 1000, (group + 1) * span)
        channel = torch.arange(low, high, device="cuda") // hw % channels
        d, xhat = go[low:high].double() * w[channel], (x[low:high].double() - mean) * inv
        want = (d - sums[0] - xhat * sums[1]) * inv
        assert relative_error(got[0].view(-1)[low:high].cpu().numpy(), want.cpu().numpy()) <= limit, start
    # The parameters' gradients: of the last channel, over all images.
    weight, bias = 0.0, 0.0
    grad_rows, rows = go.view(batch, channels, hw)[:, -1], x.view(batch, channels, hw)[:, -1]
    groups_of_x = x.view(batch, groups, span)[:, -1]
    for low in range(0, batch, 1 << 13):
        part = slice(low, low + (1 << 13))
        if batch > 5:
            mean = groups_of_x[part].double().mean(dim=1, keepdim=True)
            inv = (groups_of_x[part].double().var(dim=1, keepdim=True, unbiased=False) + 1e-5).rsqrt()
        else:
            both = [moments(image * groups + groups - 1) for image in range(batch)]
            mean, inv = (torch.stack([b[i] for b in both])[:, None] for i in range(2))
        for columns in range(0, hw, 1 << 26):
            there = (part, slice(columns, columns + (1 << 26)))
            weight += ((rows[there].double() - mean) * inv * grad_rows[there]).sum()
            bias += grad_rows[there].double().sum()
    assert abs(float(got[1][-1] - weight)) <= 1e-6 * abs(float(weight))
    assert abs(float(got[2][-1] - bias)) <= 1e-6 * abs(float(bias))


# The plan -----------------------------------------------------------------------------------------------------------


def test_more_blocks_than_a_grid_has_are_refused(device: Device) -> None:
    for shape, groups, reason in (
        ((1, 1 << 31, 1), 1, r"blocks do not fit grid\.x"),
        ((1, 1 << 31, 1), 1 << 31, r"blocks do not fit grid\.x"),
    ):
        problem = GroupNormBackwardDescriptor(shape, groups)
        assert key_of(GroupNormBackwardPlan.select(device, problem).variant) == "hip/baseline"  # which take turns
        if "split" in variants(GroupNormBackwardPlan, device):
            with pytest.raises(ptxrt.Unsupported, match=reason):
                GroupNormBackwardPlan.select(device, problem, wish(language="ptx"))
    if "split" in variants(GroupNormBackwardPlan, device):
        with pytest.raises(ptxrt.Unsupported, match=r"blocks do not fit grid\.x"):
            forced(device, (1 << 20, 1 << 20, 256), 1, 1e-5, "split")


@pytest.mark.parametrize(
    ("shape", "groups", "variant"),
    [
        ((64, 64, 56, 56), 32, "cluster"),
        ((1, 64, 512, 512), 32, "grid"),
        ((1, 10, 512, 512), 5, "grid"),  # few, which clusters would leave a GPU idle with
        ((1, 128, 512, 512), 32, "grid"),
        ((1, 8192, 64, 64), 32, "ring"),  # which no cluster holds
        ((1, 256, 512, 512), 32, "split"),  # of which a cluster holds little
        ((2, 32, 8, 8), 8, "few"),
        ((16, 64, 16, 16), 64, "few"),
        ((17, 64, 16, 16), 64, "teams"),
        ((1, 1, 1 << 14), 1, "cluster"),
        ((1, 1, (1 << 13) - 1), 1, "baseline"),
        ((191, 1, (1 << 13) + 1), 1, "split"),
        ((192, 1, (1 << 13) + 1), 1, "baseline"),  # blocks enough
        ((1, 1, (1 << 14) + 1), 1, "split"),
        ((64, 32, 1024), 32, "teams"),
        ((128, 16, 1024), 16, ONE_WARP),
        ((127, 16, 1024), 16, "baseline"),
        ((128, 16, 1025), 16, "baseline"),
        ((65536, 1, 7), 1, ONE_WARP),
        ((65536, 1, 4096), 1, "cluster"),
    ],
)
def test_the_variant_depends_on_the_shape(device: Device, shape: Shape, groups: int, variant: str) -> None:
    plan = GroupNormBackwardPlan.select(device, GroupNormBackwardDescriptor(shape, groups), wish())
    one_warp = plan.config == WholeBackwardConfig(1, 1 << 9)
    assert key_of(plan.variant) + (" of one warp" if one_warp else "") == variant


@pytest.mark.parametrize(
    ("shape", "groups", "name", "best"),
    [
        ((8, 256, 40, 40), 32, "f16", "tickets"),
        ((16, 256, 32, 48), 32, "f32", "tickets"),
        ((16, 256, 32, 47), 32, "f32", "baseline 2048"),  # channels that are not large
        ((8, 256, 40, 40), 32, "f64", "baseline 2048"),
        ((8, 256, 32, 64), 32, "f64", "tickets"),
        ((16, 224, 40, 37), 32, "f32", "baseline 512"),  # fewer channels of a group than a block has warps
        ((4, 256, 22, 23), 4, "f64", "baseline 512"),  # channels that are shorter than a unit
    ],
    ids=str,
)
def test_of_large_groups_in_hip(device: Device, shape: Shape, groups: int, name: str, best: str) -> None:
    problem = GroupNormBackwardDescriptor(shape, groups, BY_NAME[name])
    plan = GroupNormBackwardPlan.select(device, problem, wish(language="hip"))
    assert f"{plan.variant.name} {getattr(plan.config, 'unit', '')}".rstrip() == best


@pytest.mark.parametrize(("images", "unit"), [(127, 9), (128, 11)])
def test_of_fewer_values_units_are_smaller(images: int, unit: int) -> None:
    problem = GroupNormBackwardDescriptor((images, 1, 1 << 14), 1)
    assert SplitBackwardConfig.heuristic(problem) == SplitBackwardConfig(1 << unit, 1 << 12)
