"""group_norm forward: its values in every variant, its edges, and each of its checks."""

from __future__ import annotations

import re
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Patch, Rng, Shape
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
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import GroupNormArgs, GroupNormDescriptor, GroupNormPlan, group_norm, references
from ptxrt.ops._group_norm import FAMILY, SplitConfig
from ptxrt.ops._group_norm_last import WholeConfig
from ptxrt.ops.framework import parameter_type
from ptxrt.ops.framework.texts import read_kernel
from ptxrt.runtime.layout import channels_last

ONE_WARP = "baseline of one warp"
# Of channels-last arrays one for all, whose parts the others have too: test_every_variant.py, test_channels_last.py.
# Of whole vectors alone: test_group_norm_cluster.py, and test_registers_hold_a_group.
LEFT_OUT = (
    "channels_last_cluster",
    "channels_last_held",
    "channels_last_split",
    "hip/channels_last",
    "hip/channels_last_split",
    "hip/channels_last_tickets",
    "cluster",
    "grid",  # test_group_norm_grid.py
    "ring",
    "few",
    "hip/few",
    "hip/held",
    "hip/teams",  # whose bits are those of teams: test_group_norm_teams.py
)
VARIANTS = [each for each in variants(GroupNormPlan) if each not in LEFT_OUT] + [ONE_WARP, f"hip/{ONE_WARP}"]
every_variant = pytest.mark.parametrize("variant", VARIANTS)
OTHERS = [name for name in FAMILY.dtypes if name != "f32"]  # the same texts: fewer cases of each
every_type = pytest.mark.parametrize("name", FAMILY.dtypes)


def forced(device: Device, shape: Shape, groups: int, eps: float, variant: str, dtype: str = "f32") -> Any:
    if (variant, element_type(dtype).name) == ("teams", "f64"):
        pytest.skip("it has no entries of f64")
    config = WholeConfig(1) if variant.endswith(ONE_WARP) else None
    strides = channels_last(shape) if "channels_last" in variant else ()
    problem = GroupNormDescriptor(shape, groups, element_type(dtype), eps, strides)
    if strides and not problem.channels_last:  # both layouts are one
        variant = variant.replace("channels_last_split", "split").replace("channels_last", "baseline")
    return GroupNormPlan.select(device, problem, wish(variant.removesuffix(" of one warp"), config=config))


def run(
    device: Device, x: Any, w: Any = None, b: Any = None, groups: int = 1, eps: float = 1e-5, offset: int = 0,
    variant: str | None = None,
) -> Any:  # fmt: skip
    """Run on `device` into a poisoned, guarded output; return the host result.

    Every array lies `offset` elements behind a multiple of 256 bytes.
    """
    plan = forced(device, x.shape, groups, eps, variant, x.dtype) if variant else None
    strides = plan.operands[0].strides if plan else ()
    out = Guarded(x.shape, x.dtype, device, offset, strides)
    x, w, b = (on_device(a, device, offset, strides) for a in (x, w, b))
    if plan is None:
        assert group_norm(x, w, b, groups, eps, out=out.array) is out.array
    else:
        assert plan.run(GroupNormArgs(x, w, b, out.array)) is out.array
    return out.host()


def kind_of(name: str) -> Any:
    return BY_NAME[name].numpy


def problem(rng: Rng, shape: Shape, mean: float = 0.0, name: str = "f32") -> tuple[Array, Array, Array]:
    x = (rng.standard_normal(shape) + mean).astype(kind_of(name))
    w, b = (rng.standard_normal(shape[1]).astype(parameter_type(BY_NAME[name]).numpy) for _ in "wb")
    return x, w, b


def bar_of(x: Any, want: Any, large_mean: bool = False) -> Any:
    return bar("group_norm", element_type(x.dtype).name, want, large_mean=large_mean)


def check(
    device: Device, x: Any, w: Any, b: Any, groups: int, eps: float = 1e-5, large_mean: bool = False, **how: Any
) -> None:
    y, want = run(device, x, w, b, groups, eps, **how), references.group_norm(x, w, b, groups, eps)
    check_error("group_norm", device, y, want, bar_of(x, want, large_mean), (x.shape, groups, how))


# Values -------------------------------------------------------------------------------------------------------------


@every_variant
@pytest.mark.parametrize(
    ("shape", "groups", "eps"),
    [
        pytest.param((2, 16, 5), 4, 1e-6, id="small (2,16,hw 5,G 4,eps 1e-6)"),
        pytest.param((1, 128, 4, 4), 32, 1e-5, id="SD-VAE shape (1,128,4x4,G 32)"),
        ((2, 8), 4, 1e-5),  # no trailing axes
        ((1, 1, 1), 1, 1e-5),
        ((3, 6, 7), 6, 1e-5),  # groups = C
        ((3, 6, 7), 1, 1e-5),  # one group
        ((2, 4, 256), 2, 1e-5),
        ((1, 2, 3, 5, 7), 1, 1e-5),
        ((5, 12, 1), 3, 1e-5),  # hw = 1
        ((1, 4, 4099), 2, 1e-5),  # many turns, a prime
        ((2, 300, 1), 1, 1e-5),  # more channels than threads
        ((2, 6, 255), 2, 1e-5),
        ((2, 6, 257), 2, 1e-5),
        ((1, 2, 1020), 1, 1e-5),  # four at a time, round one turn and two of a block
        ((1, 2, 1024), 2, 1e-5),
        ((1, 2, 1028), 1, 1e-5),
        ((2, 6, 31), 3, 1e-5),  # round one turn of a warp
        ((2, 6, 32), 6, 1e-5),
        ((2, 6, 33), 6, 1e-5),
        ((1, 9, 124), 3, 1e-5),
        ((1, 9, 132), 9, 1e-5),
    ],
)
@pytest.mark.sanitize
def test_group_norm_matches_cpu(device: Device, rng: Rng, shape: Shape, groups: int, eps: float, variant: str) -> None:
    check(device, *problem(rng, shape), groups, eps, variant=variant)


@every_variant
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 16, 5), 4),
        ((2, 8), 4),
        ((1, 9, 132), 3),
        ((2, 6, 257), 2),
        ((1, 2, 2040), 1),  # eight at a time, round one turn of a block, and two of two at a time
        ((1, 2, 2056), 1),
        ((1, 3, 256), 3),  # and one of a warp
        ((1, 3, 264), 3),
    ],
    ids=str,
)
@pytest.mark.sanitize
def test_the_types_beside_f32(device: Device, rng: Rng, name: str, shape: Shape, groups: int, variant: str) -> None:
    check(device, *problem(rng, shape, name=name), groups, variant=variant)


@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((1, 1, 8191), 1),  # round one slice and two
        ((1, 1, 8192), 1),
        ((1, 1, 8193), 1),
        ((1, 2, 4098), 1),
        ((2, 4, 10000), 2),  # three slices a group, each of which begins within a channel
        ((3, 6, 4999), 2),
        ((1, 40, 256), 1),
    ],
    ids=str,
)
@pytest.mark.sanitize
@pytest.mark.ptx
def test_a_group_is_cut_into_slices(device: Device, rng: Rng, shape: Shape, groups: int) -> None:
    check(device, *problem(rng, shape), groups, variant="split")


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("hw", [4999, 5000])
@pytest.mark.ptx
def test_a_group_of_the_types_beside_f32_is_cut_into_slices(device: Device, rng: Rng, name: str, hw: int) -> None:
    check(device, *problem(rng, (2, 4, hw), name=name), 2, variant="split")


@pytest.mark.parametrize(
    ("shape", "groups"), [((1, 2, 1500000), 1), ((1, 3, 7000001), 1), ((1, 1, 1 << 24), 1)], ids=str
)
def test_more_slices_than_a_block_has_threads(cuda: Device, rng: Rng, shape: Shape, groups: int) -> None:
    check(cuda, *problem(rng, shape), groups, variant="split")


@every_variant
def test_matches_the_reference_on_drawn_shapes(device: Device, variant: str) -> None:
    def body(batch: Any, groups: Any, per_group: Any, hw: Any, offset: Any, name: str, seed: Any) -> None:
        x, w, b = problem(np.random.default_rng(seed), (batch, groups * per_group, hw), name=name)
        check(device, x, w, b, groups, variant=variant, offset=offset)

    for_drawn(
        device,
        body,
        batch=st.integers(1, 4),
        groups=st.integers(1, 5),
        per_group=st.integers(1, 9),
        hw=st.integers(1, 40).map(lambda n: 8 * n) | st.integers(1, 300),
        offset=st.integers(0, 3) | st.just(8),
        name=st.sampled_from(FAMILY.dtypes),
        seed=st.integers(0, 2**32 - 1),
    )


@every_variant
@pytest.mark.parametrize(
    ("mean", "name"),
    [*((mean, "f32") for mean in (1e4, -1e4, 1e6)), (1e3, "f16"), (1e2, "bf16"), (1e4, "f64"), (-1e12, "f64")],
)
def test_a_large_offset_costs_no_accuracy(device: Device, rng: Rng, mean: Any, name: str, variant: str) -> None:
    shape = (2, 8, 33, 31) if name == "f32" else (2, 8, 83)
    x, w, b = problem(rng, shape, mean, name)
    if name != "f64":
        check(device, x, w, b, 4, large_mean=True, variant=variant)
        return
    # Less the mean, which is exact, the reference loses no digits to it: so the bar is that without a mean.
    want = references.group_norm(x.astype(np.longdouble) - mean, w, b, 4)
    y = run(device, x, w, b, 4, variant=variant)
    check_error("group_norm", device, y, want, bar("group_norm", "f64"), (shape, mean))


@every_variant
@pytest.mark.parametrize(("name", "outlier"), [("f32", 1e6), ("f16", 6e4), ("bf16", 1e6), ("f64", 1e10)])
def test_an_outlier_in_front_costs_no_accuracy(
    device: Device, rng: Rng, name: str, outlier: float, variant: str
) -> None:
    x, w, b = problem(rng, (1, 4, 1000), name=name)
    x[0, ::2, 0] = outlier
    check(device, x, w, b, 2, variant=variant)


@every_variant
@every_type
def test_weight_and_bias_may_be_absent(device: Device, rng: Rng, name: str, variant: str) -> None:
    x, w, b = problem(rng, (2, 6, 10), name=name)
    ones, zeros = np.ones_like(w), np.zeros_like(b)
    full = run(device, x, ones, zeros, 3, variant=variant)
    np.testing.assert_array_equal(run(device, x, None, None, 3, variant=variant), full)
    np.testing.assert_array_equal(
        run(device, x, w, None, 3, variant=variant), run(device, x, w, zeros, 3, variant=variant)
    )
    np.testing.assert_array_equal(
        run(device, x, None, b, 3, variant=variant), run(device, x, ones, b, 3, variant=variant)
    )


@every_variant
@every_type
def test_one_value_a_group_gives_the_bias(device: Device, rng: Rng, name: str, variant: str) -> None:
    x, w, b = problem(rng, (3, 5, 1), name=name)
    want = np.broadcast_to(b.astype(x.dtype)[None, :, None], x.shape)
    np.testing.assert_array_equal(run(device, x, w, b, 5, variant=variant), want)


@every_variant
@every_type
def test_equal_values_give_the_bias(device: Device, name: str, variant: str) -> None:
    x = np.full((2, 4, 100), 0.1, kind_of(name))
    b = np.arange(4).astype(parameter_type(BY_NAME[name]).numpy)
    y = run(device, x, None, b, 2, variant=variant)
    np.testing.assert_array_equal(y, np.broadcast_to(b[None, :, None], x.shape))


@every_variant
@every_type
def test_variance_zero_and_eps_zero_is_not_a_number(device: Device, name: str, variant: str) -> None:
    assert np.isnan(run(device, np.ones((1, 2, 5), kind_of(name)), eps=0.0, variant=variant)).all()


@every_variant
def test_eps_zero_is_allowed(device: Device, rng: Rng, variant: str) -> None:
    check(device, *problem(rng, (2, 4, 50)), 2, eps=0.0, variant=variant)


@every_variant
@every_type
@pytest.mark.parametrize(("value", "place"), [(np.nan, 7), (np.inf, 7), (-np.inf, 7), (np.inf, 0)])
def test_one_bad_value_spoils_its_group_alone(
    device: Device, rng: Rng, value: Any, place: int, name: str, variant: str
) -> None:
    x, w, b = problem(rng, (2, 6, 40), name=name)
    x[1, 2, place] = value
    y = run(device, x, w, b, 3, variant=variant)
    assert np.isnan(y[1, 2:4]).all()
    good = np.ones(x.shape, bool)
    good[1, 2:4] = False
    want = references.group_norm(np.where(good, x, kind_of(name).type(0)), w, b, 3, 1e-5)[good]
    assert relative_error(y[good], want) <= bar_of(x, want)


@every_variant
@every_type
def test_denormals_are_preserved(device: Device, rng: Rng, name: str, variant: str) -> None:
    limits, wide = ml_dtypes.finfo(kind_of(name)), name == "f64"
    x = (rng.uniform(-1, 1, (1, 2, 64)) * float(limits.tiny)).astype(kind_of(name))
    check(device, x, None, None, 1, eps=1e-5 if wide else 0.0, variant=variant)  # f64 cannot hold their squares
    # And in the result, to half of one of them; f64 rounds the weight times the inverse root, too.
    x, smallest = problem(rng, (1, 2, 64), name=name)[0], float(limits.smallest_subnormal)
    weight = (rng.integers(1, 100, 2) * smallest).astype(parameter_type(BY_NAME[name]).numpy)
    y, want = run(device, x, weight, None, 1, variant=variant), references.group_norm(x, weight, None, 1)
    assert (np.abs(y.astype(want.dtype) - want) <= (2.5 if wide else 0.75) * smallest).all()
    assert np.count_nonzero(y) > 100


@every_variant
@pytest.mark.parametrize(("name", "size"), [("f32", 3e37), ("f16", 1e4), ("bf16", 3e37), ("f64", 1e150)])
def test_values_near_the_largest_do_not_overflow(
    device: Device, rng: Rng, name: str, size: float, variant: str
) -> None:
    x = (rng.standard_normal((1, 2, 500)) * size).astype(kind_of(name))
    check(device, x, None, None, 1, variant=variant)


@every_variant
def test_values_whose_squares_f64_cannot_hold_are_not_a_number(device: Device, rng: Rng, variant: str) -> None:
    x, w, b = problem(rng, (2, 2, 50), name="f64")
    x[1] *= 1e160
    y = run(device, x, w, b, 1, variant=variant)
    assert np.isnan(y[1]).all()
    assert np.isfinite(y[0]).all()


def leave_out_what_rounds_more_than_once(name: str, variant: str) -> None:
    if (variant, name) == ("teams", "f32"):
        pytest.skip("it computes in f32, as plan.precision_guarantee says")


@every_variant
@every_type
def test_without_weight_and_bias_a_result_is_rounded_once(device: Device, rng: Rng, name: str, variant: str) -> None:
    leave_out_what_rounds_more_than_once(name, variant)
    x, _, _ = problem(rng, (2, 6, 50), name=name)
    assert_rounded_once(run(device, x, groups=3, variant=variant), references.group_norm(x, None, None, 3))


@every_variant
@pytest.mark.parametrize(("name", "scale"), [("f32", 1), ("f16", 1), ("bf16", 1), ("f64", 1), ("f16", 40000)])
def test_with_weight_and_bias_too(device: Device, rng: Rng, name: str, scale: int, variant: str) -> None:
    leave_out_what_rounds_more_than_once(name, variant)
    x, w, b = problem(rng, (2, 6, 52), name=name)
    got = run(device, x, w * scale, b, 3, variant=variant)
    assert_rounded_once(got, references.group_norm(x, w * scale, b, 3))
    assert np.isfinite(got).all() == (scale == 1)  # what f16 cannot hold is infinite


@every_variant
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_a_result_of_16_bits_is_that_in_f32_rounded(device: Device, name: str, variant: str) -> None:
    x, weight, bias, want = group_norm_rounded_twice(name)
    np.testing.assert_array_equal(run(device, x, weight, bias, 2, eps=0.0, variant=variant), want)


@pytest.mark.sanitize
@pytest.mark.parametrize("offset", [0, 1])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_registers_hold_a_group(device: Device, rng: Rng, name: str, offset: int) -> None:
    """Of one channel or several, in turns that are not whole ones."""
    for shape, groups in (((3, 4, 1048), 2), ((2, 3, 264), 3), ((1, 6, 40), 1)):
        values = problem(rng, shape, name=name)
        check(device, *values, groups, variant="hip/held", offset=offset)


def test_registers_hold_a_group_with_something_bad_in_it(device: Device, rng: Rng) -> None:
    x, w, b = problem(rng, (2, 4, 272), 1e4)
    x[0, 1, 3], x[1, 2, 5] = np.inf, np.nan
    y = run(device, x, w, b, 2, variant="hip/held")
    assert np.isnan(y[0, :2]).all()
    assert np.isnan(y[1, 2:]).all()
    want = references.group_norm(x, w, b, 2)
    assert relative_error(y[0, 2:], want[0, 2:]) < bar("group_norm", "f32", want, large_mean=True)


def test_what_registers_do_not_hold_is_refused(device: Device) -> None:
    for shape, name, reason in (
        ((1, 2, 20488), "f16", "do not hold"),
        ((1, 2, 1030), "f16", "do not end"),
        ((1, 2, 1024), "f64", "no kernel for f64"),
    ):
        with pytest.raises(ptxrt.Unsupported, match=reason):
            GroupNormPlan.select(device, GroupNormDescriptor(shape, 1, BY_NAME[name]), wish("hip/held"))


@pytest.mark.ptx
def test_a_batch_that_grid_y_cannot_hold_is_walked(device: Device, rng: Rng) -> None:
    x = rng.standard_normal((65537 if device.kind == "cuda" else 65536, 1, 3)).astype(np.float32)
    plan = GroupNormPlan.select(device, GroupNormDescriptor(x.shape, 1), wish("baseline"))
    assert plan.schedule.launches[0].grid == (1, 65535)
    check(device, x, None, None, 1, variant="baseline")


@pytest.mark.parametrize(("variant", "shape"), [("split", (65537, 2, 5)), ("baseline", (65537, 2, 1028))], ids=str)
def test_more_images_than_grid_y(cuda: Device, rng: Rng, variant: str, shape: Shape) -> None:
    x, w, b = problem(rng, shape)
    some = [0, 1, 65534, 65535, 65536]
    want = references.group_norm(x[some], w, b, 1)
    assert relative_error(run(cuda, x, w, b, 1, variant=variant)[some], want) <= bar("group_norm", "f32")


def test_an_image_of_many_turns(device: Device, rng: Rng, monkeypatch: Patch) -> None:
    """The loop over images, with fewer blocks than images, in every variant that has it."""
    monkeypatch.setattr(sys.modules["ptxrt.ops._group_norm"], "_GRID_Y", 2)
    for variant, hw in (
        ("baseline", 5),
        ("baseline", 1028),
        (ONE_WARP, 36),
        ("split", 33),
        ("split", 4100),
        ("hip/baseline", 5),
        ("hip/baseline", 36),
    ):
        if variant in variants(GroupNormPlan, device):
            check(device, *problem(rng, (5, 4, hw)), 2, variant=variant)
    for variant in VARIANTS:
        if variant.removesuffix(" of one warp") in variants(GroupNormPlan, device):
            for name in OTHERS:
                check(device, *problem(rng, (5, 4, 8), name=name), 2, variant=variant)


@every_type
@pytest.mark.parametrize(("language", "variant"), [("ptx", "baseline"), ("hip", "hip/baseline")])
def test_the_kernel_reads_nothing_if_there_are_no_values(
    device: Device, language: str, variant: str, name: str
) -> None:
    """The plan launches nothing then, another caller may."""
    del variant  # for the devices that take no PTX
    kernel = FAMILY.kernel("group_norm_kernel", BY_NAME[name], language).load(device)
    empty = ptxrt.zeros((2, 4, 0), kind_of(name), device)
    kernel.launch((2, 2), 256, empty, empty, None, None, 2, 4, 2, 0, 1e-5)
    device.synchronize()


# Of 64 values less k: their sum and that of their squares in pairs whose low parts are large, as many terms make them.
UNSETTLED = (1000.0, 1000 * 2.0**-21), (15640.0, 15000 * 2.0**-21)


def inverse_root_of_unsettled(count: int = 64) -> Any:
    """Return offset and 1 / sqrt(var)."""
    total, squares = (np.longdouble(high) + low for high, low in UNSETTLED)
    return total / count, 1 / np.sqrt((squares - total * total / count) / count)


@pytest.mark.ptx
def test_sums_with_large_low_parts_in_ptx(device: Device, rng: Rng) -> None:
    kernel = FAMILY.kernel("group_norm_split_kernel", BY_NAME["f64"], "ptx").load(device)
    x, k = rng.standard_normal((1, 1, 64)), 0.5
    out, sums = Guarded(x.shape, x.dtype, device), ptxrt.to_device(np.array([*sum(UNSETTLED, ()), k, k, 0, 0]), device)
    arrays = (ptxrt.to_device(x, device), out.array, None, None, sums)
    kernel.launch((1, 1), 256, *arrays, 1, 1, 1, 64, 0.0, 1, 1 << 10)
    offset, inv = inverse_root_of_unsettled()
    assert relative_error(out.host(), (x - (k + offset)) * inv) <= bar("group_norm", "f64")


def test_sums_with_large_low_parts_in_hip(device: Device) -> None:
    total, squares = (", ".join(map(str, pair)) for pair in UNSETTLED)
    text = (
        read_kernel("group_norm", language="hip", dtype="f64").text
        + f"""
extern "C" __global__ void moments_of(double* out) {{
    const Moments<Number> all = moments(Number({total}), Number({squares}), 64);
    out[0] = double(inverse_root(all.var));
    out[1] = double(all.offset);
}}"""
    )
    out = Guarded((2,), np.float64, device)
    ptxrt.load(ptxrt.KernelSource.hip(text, name="moments"), "moments_of", "f64* out", device).launch(1, 1, out.array)
    offset, inv = inverse_root_of_unsettled()
    assert relative_error(out.host(), np.array([inv, offset])) <= bar("group_norm", "f64")


@pytest.mark.parametrize(
    ("shape", "groups", "variant", "name"),
    [
        ((5, 2, 2**29), 2, "split", "f32"),
        ((1, 2, 2**31 + 8), 1, "split", "f32"),
        ((5, 2, 2**29), 1, "baseline", "f32"),
        ((65537, 66, 1000), 66, "baseline", "f32"),
        ((65535, 66, 1001), 66, ONE_WARP, "f32"),
        ((1100, 32, 2**17), 4, "grid", "f32"),
        ((5, 2, 2**29), 2, "hip/baseline", "f32"),
        ((65537, 66, 1000), 66, "hip/baseline", "f32"),
        *(((5, 2, 2**29), 2, variant, "f16") for variant in ("split", "baseline", "hip/baseline")),
        *(((5, 2, 2**28), 2, variant, "f64") for variant in ("split", "baseline", "hip/baseline")),  # past 2**31
    ],
    ids=str,
)
def test_tensors_past_2_to_the_32_elements(
    cuda: Device, torch_with: Any, shape: Shape, groups: Any, variant: str, name: str
) -> None:
    count, size = int(np.prod(shape)), BY_NAME[name].size
    torch = torch_with(2.5 * size * count)
    x = torch.empty(count, device="cuda", dtype=getattr(torch, kind_of(name).name)).normal_()
    real = getattr(torch, parameter_type(BY_NAME[name]).numpy.name)
    weight, bias = (torch.randn(shape[1], device="cuda", dtype=real) for _ in "wb")
    plan = forced(cuda, shape, groups, 1e-5, variant, name)
    arrays = [ptxrt.from_dlpack(a) for a in (x.view(shape), weight, bias)]
    y = torch.from_dlpack(plan.run(GroupNormArgs(*arrays))).view(-1)
    span = shape[1] // groups * shape[2]
    for start in sorted({0, 2**31 - 500, min(2**32 - 500, count - 1000), count - 1000}):
        parts = x[start // span * span :][:span].chunk(64)
        mean = sum(part.double().sum() for part in parts) / span
        var = sum(((part.double() - mean) ** 2).sum() for part in parts) / span
        # A slice may cross into the next group or channel: keep what lies in this one.
        end = min(start + 1000, (start // span + 1) * span)
        channel = torch.arange(start, end, device="cuda") // shape[2] % shape[1]
        want = ((x[start:end].double() - mean) / (var + 1e-5).sqrt() * weight[channel] + bias[channel]).cpu().numpy()
        # The reference of f64 is in f64, and has an error as large.
        at_most = bar("group_norm", name, want) * (2 if name == "f64" else 1)
        assert relative_error(y[start:end].cpu().numpy(), want) <= at_most, start


def test_a_batch_of_nearly_2_to_the_32(torch_with: Any) -> None:
    """The number of the image after a block's last one would be another image's, modulo 2**32."""
    batch = 2**32 - 1
    torch = torch_with(10 * batch)
    x, bias = torch.full((batch, 1), 3.0, device="cuda"), torch.tensor([5.0], device="cuda")
    y = torch.from_dlpack(group_norm(ptxrt.from_dlpack(x), None, ptxrt.from_dlpack(bias), 1))
    assert bool((y == 5.0).all())


# The plan -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "groups", "variant"),
    [
        ((1, 128, 512, 512), 32, "grid"),
        ((1, 256, 512, 512), 32, "grid"),
        ((1, 256, 256, 256), 32, "grid"),
        ((1, 132, 512, 512), 4, "split"),  # of 33 channels, and few
        ((1, 1056, 224, 224), 32, "ring"),  # of 33 channels, which no cluster holds
        ((1, 257, 512, 512), 257, "cluster"),
        ((1, 512, 512, 512), 32, "split"),  # of which a cluster holds little
        ((1, 20, 512, 512), 5, "grid"),  # few, which clusters would leave a GPU idle with
        ((1, 4, 256, 256), 1, "grid"),
        ((1, 3, 256, 256), 1, "cluster"),
        ((6, 4, 256, 256), 1, "cluster"),
        ((1, 1, (1 << 15) + 1), 1, "split"),
        ((511, 1, (1 << 14) + 1), 1, "split"),
        ((512, 1, (1 << 14) + 1), 1, "baseline"),  # blocks enough
        ((16, 128, 512, 512), 32, "grid"),
        ((64, 64, 56, 56), 32, "cluster"),
        ((1, 32, 128), 1, "few"),
        ((1, 32, 132), 1, "teams"),
        ((257, 32, 128), 1, "teams"),
        ((257, 32, 124), 1, "teams"),  # more than a quarter of a block's threads
        ((256, 32, 124), 1, "teams"),
        ((255, 32, 124), 1, "few"),
        ((2, 32, 8, 8), 8, "few"),
        ((64, 32, 1024), 32, "teams"),  # of many groups, all but short ones
        ((64, 32, 252), 32, "few"),
        ((1, 1, (1 << 14) - 1), 1, "teams"),
        ((1, 1, (1 << 14) + 1), 1, "split"),  # of which registers do not hold as many
        ((64, 32, 1023), 32, "teams"),
        ((64, 512, 7, 7), 32, "teams"),
        ((65536, 256), 8, "teams"),
        ((65536, 1, 4096), 1, "cluster"),
        ((0, 32, 1023), 32, "teams"),
    ],
)
def test_the_variant_depends_on_the_shape(device: Device, shape: Shape, groups: int, variant: str) -> None:
    plan = GroupNormPlan.select(device, GroupNormDescriptor(shape, groups), wish())
    assert key_of(plan.variant) == variant


@pytest.mark.ptx
@pytest.mark.parametrize(("shape", "config"), [
    ((64, 32, 1024), WholeConfig(1)),
    ((64, 32, 1025), WholeConfig(8)),
    ((63, 32, 1023), WholeConfig(8)),
    ((65536, 32, 7), WholeConfig(1)),
], ids=str)  # fmt: skip
def test_many_small_groups_have_a_warp_each(shape: Shape, config: WholeConfig) -> None:
    assert WholeConfig.heuristic(GroupNormDescriptor(shape, 32)) == config


@every_type
@pytest.mark.parametrize("role", ["kernel", "split_kernel", "backward_groups_kernel", "backward_kernel"])
def test_neighbours_are_read_and_written_by_16_bytes(name: str, role: str) -> None:
    text = FAMILY.kernel(f"group_norm_{role}", BY_NAME[name], "ptx").source.text
    found = set(re.findall(r"(ld|st)\.global\.v(\d)\.[bf](\d+)", text))
    word = max(32, 8 * BY_NAME[name].size)
    assert {(way, str(128 // word), str(word)) for way in ("ld", "st")} <= found
    assert {int(count) * int(bits) for _, count, bits in found} == {128}


@pytest.mark.ptx
def test_what_a_variant_cannot_do_it_refuses(device: Device) -> None:
    for shape, groups, variant, reason in (
        ((1, 1 << 30, 1 << 15), 1 << 30, "split", r"grid\.x"),
        ((1, 1, 1 << 32), 1, ONE_WARP, "u32"),
        ((1, 1, 1 << 32), 1, "split", "u32"),
    ):
        with pytest.raises(ptxrt.Unsupported, match=reason):
            forced(device, shape, groups, 1e-5, variant)


@pytest.mark.ptx
def test_more_groups_than_a_grid_has_blocks_are_left_to_hip(device: Device) -> None:
    problem = GroupNormDescriptor((1, 1 << 31, 1), 1 << 31)
    with pytest.raises(ptxrt.Unsupported, match=r"grid\.x"):
        GroupNormPlan.select(device, problem, wish(language="ptx"))
    assert key_of(GroupNormPlan.select(device, problem).variant) == "hip/baseline"


@pytest.mark.parametrize(
    ("images", "name", "values"),
    [(127, "f32", 12), (127, "f16", 12), (128, "f32", 13), (511, "f16", 13), (512, "f32", 13), (512, "f16", 14)],
)
def test_of_fewer_values_a_block_has_fewer(images: int, name: str, values: int) -> None:
    problem = GroupNormDescriptor((images, 1, 1 << 14), 1, BY_NAME[name])
    assert SplitConfig.heuristic(problem) == SplitConfig(1 << values)
