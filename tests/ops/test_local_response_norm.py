"""local_response_norm, forward and backward: their values, their edges, and each of their checks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from helpers import EVERYTHING, Rng, Shape, covering
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, key_of, on_device, wish
from tolerances import EPSILON, bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import (
    LocalResponseNormArgs,
    LocalResponseNormBackwardArgs,
    LocalResponseNormBackwardDescriptor,
    LocalResponseNormBackwardPlan,
    LocalResponseNormDescriptor,
    LocalResponseNormPlan,
    local_response_norm_backward,
    references,
)
from ptxrt.ops._local_response_norm import FAMILY, SLIDING_SIZES
from ptxrt.ops._local_response_norm_last import SIZES as LAST_SIZES
from ptxrt.ops.framework import parameter_type
from ptxrt.ops.framework.texts import context, read_kernel, templates
from ptxrt.testing.strategies import shapes

BAR = bar("local_response_norm", "f32")
OTHERS = [name for name in FAMILY.dtypes if name != "f32"]  # the same texts: fewer cases of each
HALVES = ("f16", "bf16")
DIRECTIONS = ("forward", "backward")
VARIANTS = ("sliding", "baseline", "hip/baseline")
DESCRIPTORS: dict[str, Any] = {"forward": LocalResponseNormDescriptor, "backward": LocalResponseNormBackwardDescriptor}
PLANS: dict[str, Any] = {"forward": LocalResponseNormPlan, "backward": LocalResponseNormBackwardPlan}


def normal(rng: np.random.Generator, shape: Any, mean: float = 0.0, name: str = "f32") -> Any:
    return (rng.standard_normal(shape) + mean).astype(BY_NAME[name].numpy)


def plan_of(
    way: str, device: Device, shape: Shape, size: int, variant: str | None = None, dtype: str = "f32", **reals: Any
) -> Any:
    if way == "backward":
        reals.pop("k", None)
    problem = DESCRIPTORS[way](shape, size, element_type(dtype), **reals)
    return PLANS[way].select(device, problem, wish(variant))


def parameter(x: Any) -> Any:
    """Return the type of denom beside `x`."""
    return parameter_type(element_type(x.dtype)).numpy


def bar_of(x: Any, want: Any) -> Any:
    return bar("local_response_norm", element_type(x.dtype).name, want)


def forward(device: Device, x: Any, size: int, variant: str | None = None, offset: int = 0, **reals: Any) -> Any:
    """Return (y, denom) of `x`, written to guarded outputs, `offset` elements from alignment."""
    out, denom = (Guarded(x.shape, kind, device, offset) for kind in (x.dtype, parameter(x)))
    plan = plan_of("forward", device, x.shape, size, variant, x.dtype, **reals)
    results = plan.run(LocalResponseNormArgs(on_device(x, device, offset), out.array, denom.array))
    assert results == (out.array, denom.array)
    return out.host(), denom.host()


def backward(
    device: Device, go: Any, x: Any, denom: Any, size: int, variant: str | None = None, offset: int = 0, **reals: Any
) -> Any:
    """Return grad_input, written to a guarded output, `offset` elements from alignment."""
    out = Guarded(x.shape, x.dtype, device, offset)
    plan = plan_of("backward", device, x.shape, size, variant, x.dtype, **reals)
    inputs = [on_device(a, device, offset) for a in (go, x, denom)]
    assert plan.run(LocalResponseNormBackwardArgs(*[*inputs, out.array])) is out.array
    return out.host()


def check(
    device: Device, rng: Rng, x: Any, size: int, variant: str | None = None, offset: int = 0, **reals: Any
) -> None:
    """Hold y, denom and grad_input to the references; backward gets the reference's denom, rounded."""
    case, name = (x.shape, size, variant, reals), element_type(x.dtype).name
    y, denom = forward(device, x, size, variant, offset, **reals)
    want_y, want_denom = references.local_response_norm(x, size, **reals)
    check_error("local_response_norm y", device, y, want_y, bar_of(x, want_y), case)
    check_error("local_response_norm denom", device, denom, want_denom, bar_of(denom, want_denom), case)
    reals.pop("k", None)
    go = normal(rng, x.shape, name=name)
    handed = want_denom.astype(parameter(x))
    got = backward(device, go, x, handed, size, variant, offset, **reals)
    want = references.local_response_norm_backward(go, x, handed, size, **reals)
    check_error("local_response_norm grad_input", device, got, want, bar_of(x, want), case)


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 7, 5, 3), 5),
        ((1, 1, 1), 1),
        ((3, 1, 40), 5),  # one channel
        ((2, 5), 3),  # no trailing axes
        ((2, 3, 0), 3),  # nothing
        ((1, 96, 31), 5),  # several chunks a position, one block
        ((1, 41, 256), 5),  # exactly one block of positions; a prime of channels
        ((1, 9, 255), 4),
        ((3, 9, 257), 2),
        ((1, 64, 2, 3, 5), 12),
        ((2, 6, 33), 6),
        ((2, 6, 32), 11),  # nearly 2 C
        ((2, 4, 17), 9),  # more than 2 C
        ((1, 2, 300), 12),
        ((1, 100, 1), 7),  # chunks of several turns that do not divide
    ],
    ids=str,
)
@pytest.mark.sanitize
def test_matches_the_reference(device: Device, rng: Rng, shape: Shape, size: int, variant: str) -> None:
    check(device, rng, normal(rng, shape), size, variant)


@pytest.mark.parametrize(
    ("shape", "size", "name", "variant"),
    covering(
        (
            (shape, size, name, variant)
            for shape, size in (
                *(((2, 7, 5, 3), 5), ((1, 1, 1), 1), ((2, 5), 3)),
                *(((1, 41, 256), 5), ((3, 9, 257), 2), ((2, 4, 17), 9)),
            )
            for name in OTHERS
            for variant in VARIANTS
        ),
        lambda row: itertools.combinations((row[0], *row[2:]), 2),
    ),
    ids=str,
)
@pytest.mark.sanitize
def test_other_types_match_the_reference(
    device: Device, rng: Rng, shape: Shape, size: int, name: str, variant: str
) -> None:
    for offset in (0, 1):
        check(device, rng, normal(rng, shape, name=name), size, variant, offset, alpha=0.5)
    check(device, rng, normal(rng, shape, name=name), size, variant, beta=0.6)


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("size", "name"),
    covering(
        itertools.product(SLIDING_SIZES, FAMILY.dtypes),
        # Each size in f32 and in another type; each of these types with a text of each parity.
        lambda row: ((row[0], row[1] == "f32"), (row[0] % 2, row[1])),
    ),
)
def test_each_sliding_size(device: Device, rng: Rng, size: int, name: str) -> None:
    for beta in (0.75, 0.6) if name == "f32" else (0.6,):
        check(device, rng, normal(rng, (2, 2 * size + 3, 19), name=name), size, "sliding", alpha=0.5, beta=beta)


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("shape", "name", "chunk"),
    [((128, 96, 55, 55), "f32", 12), ((128, 96, 55, 55), "f16", 16), ((1, 100, 1), "f32", 12), ((2, 0, 3), "f32", 1)],
)
def test_chunks_are_whole_turns(sim: Device, shape: Shape, name: str, chunk: int) -> None:
    plan = plan_of("forward", sim, shape, 5, "sliding", name)
    assert plan.config.chunk == chunk


@pytest.mark.parametrize("variant", ["last", "hip/last"])
@pytest.mark.parametrize(
    ("shape", "size", "name"),
    [
        ((1, 4), 9, "f32"),  # a vector, a window of more than twice as many
        ((127, 16), 5, "f32"),  # 508 vectors, of which a block writes 510
        ((128, 16), 3, "f32"),
        ((3, 1032), 7, "f32"),  # a row in two blocks
        ((1, 8), 5, "f16"),
        ((127, 16), 9, "f16"),
        ((128, 16), 5, "f16"),
        ((3, 1032), 3, "bf16"),
    ],
    ids=str,
)
@pytest.mark.sanitize
def test_channels_side_by_side(device: Device, rng: Rng, shape: Shape, size: int, name: str, variant: str) -> None:
    for offset in (0, 1):
        check(device, rng, normal(rng, shape, name=name), size, variant, offset, alpha=0.5)


@pytest.mark.parametrize("name", ["f32", *HALVES])
@pytest.mark.parametrize("size", LAST_SIZES)
def test_channels_side_by_side_have_the_bits_of_the_baseline(sim: Device, rng: Rng, size: int, name: str) -> None:
    """Numbers whose denom f32 does not hold, or that has no root, too."""
    x, go = (normal(rng, (40, 32), name=name) for _ in "xg")
    large = 1e25 if name != "f16" else 6e4
    x[3, 5], x[7, ::9], x[11, 31], x[12], x[20, 16], x[24] = large, np.inf, np.nan, 0, -large, 1e-30
    beta = (0.25, 0.5, 0.75, 1.0)[size // 2 - 1]
    every: Any = ({"alpha": 0.5, "beta": beta, "k": 0.0}, {"alpha": 1e20, "beta": 0.75, "k": -1e-3})
    for reals in every:
        y, denom = forward(sim, x, size, "baseline", **reals)
        gradient = backward(sim, go, x, denom, size, "baseline", **reals)
        for variant in ("last", "hip/last"):
            results = (*forward(sim, x, size, variant, **reals), backward(sim, go, x, denom, size, variant, **reals))
            for got, want in zip(results, (y, denom, gradient), strict=True):
                np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("shape", "size", "name"),
    [
        ((1, 1, 1), 5, "f32"),  # a window of one channel
        ((2, 2, 31), 9, "f32"),  # more of the window outside than inside
        ((3, 5, 33), 7, "f32"),
        ((1, 4, 256), 3, "f32"),
        ((2, 3, 300), 5, "f32"),  # blocks of a row, the last not full
        ((2, 6, 35), 5, "f16"),
        ((2, 6, 35), 3, "bf16"),
    ],
    ids=str,
)
@pytest.mark.sanitize
def test_few_elements(device: Device, rng: Rng, shape: Shape, size: int, name: str) -> None:
    for offset in (0, 1):
        check(device, rng, normal(rng, shape, name=name), size, "small", offset, alpha=0.5)


@pytest.mark.ptx
@pytest.mark.parametrize("name", ["f32", *HALVES])
@pytest.mark.parametrize("size", LAST_SIZES)
def test_few_elements_have_the_bits_of_the_baseline(sim: Device, rng: Rng, size: int, name: str) -> None:
    """Numbers whose denom f32 does not hold, or that has no root, too."""
    x, go = (normal(rng, (2, 12, 40), name=name) for _ in "xg")
    large = 1e25 if name != "f16" else 6e4
    x[0, 3, 5], x[1, ::9, 7], x[1, 11, 31] = large, np.inf, np.nan
    x[:, :, 12], x[0, 11, 16], x[:, :, 24] = 0, -large, 1e-30
    beta = (0.25, 0.5, 0.75, 1.0)[size // 2 - 1]
    every: Any = ({"alpha": 0.3, "beta": beta, "k": 0.0}, {"alpha": 1e20, "beta": 0.75, "k": -1e-3})
    for reals in (*every, {"alpha": 0.7, "beta": 0.75 + 2.5e-8, "k": 1.0}):  # a beta that f32 rounds to 0.75
        y, denom = forward(sim, x, size, "baseline", **reals)
        gradient = backward(sim, go, x, denom, size, "baseline", **reals)
        results = (*forward(sim, x, size, "small", **reals), backward(sim, go, x, denom, size, "small", **reals))
        for got, want in zip(results, (y, denom, gradient), strict=True):
            np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.ptx
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_few_elements_must_be(device: Device, direction: str) -> None:
    windows = r"no kernel but for windows of \(3, 5, 7, 9\) and, not of f64, beta of 1 to 4 quarters"
    for shape, size, dtype, beta, reason in (
        ((2, 8, 32), 4, "f32", 0.75, windows),
        ((2, 8, 32), 5, "f64", 0.75, windows),
        ((2, 8, 32), 5, "f32", 0.6, windows),
        ((1 << 10, 1 << 10, 1 << 12), 5, "f32", 0.75, "4294967296 elements do not fit the kernel's u32"),
    ):
        with pytest.raises(ptxrt.Unsupported, match=f"small: {reason}"):
            plan_of(direction, device, shape, size, "small", dtype, beta=beta)
    assert plan_of(direction, device, (2, 64, 16, 16), 5).variant.name == "small"
    assert plan_of(direction, device, (2, 64, 16, 16), 4).variant.name == "baseline"


@pytest.mark.ptx
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_channels_side_by_side_must_be(device: Device, direction: str) -> None:
    side_by_side = "takes channels that lie side by side, a multiple of"
    windows = r"no kernel but for windows of \(3, 5, 7, 9\) and, not of f64, beta of 1 to 4 quarters"
    for shape, size, dtype, beta, reason in (
        ((2, 8, 3), 5, "f32", 0.75, f"{side_by_side} 4"),
        ((2, 6), 5, "f32", 0.75, f"{side_by_side} 4"),
        ((2, 12), 5, "f16", 0.75, f"{side_by_side} 8"),
        ((2, 8), 4, "f32", 0.75, windows),
        ((2, 8), 5, "f64", 0.75, windows),
        ((2, 8), 5, "f32", 0.6, windows),
        ((1 << 32, 4), 5, "f32", 0.75, "4294967296 vectors do not fit the kernel's u32"),
    ):
        for variant in ("last", "hip/last"):
            with pytest.raises(ptxrt.Unsupported, match=f"last: {reason}"):
                plan_of(direction, device, shape, size, variant, dtype, beta=beta)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", HALVES)
def test_elements_of_16_bits_are_the_f32_results_rounded(device: Device, rng: Rng, name: str, variant: str) -> None:
    kind = BY_NAME[name].numpy
    x, go = (normal(rng, (2, 30, 90), name=name) for _ in "xg")
    x[0, :, ::7] *= kind.type(1e3)  # squares above the largest f16
    x[0, :, 1::7] *= kind.type(1e-4)
    for beta in (0.75, 0.6, -0.5):
        reals: Any = {"alpha": 0.5, "beta": beta}
        wide, denom = forward(device, x.astype(np.float32), 5, variant, **reals)
        y, same = forward(device, x, 5, variant, **reals)
        np.testing.assert_array_equal(same, denom)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(y, wide.astype(kind))
            got = backward(device, go, x, denom, 5, variant, **reals)
            wide = backward(device, go.astype(np.float32), x.astype(np.float32), denom, 5, variant, **reals)
            np.testing.assert_array_equal(got, wide.astype(kind))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", HALVES)
def test_a_result_of_16_bits_is_that_in_f32_rounded(device: Device, name: str, variant: str) -> None:
    """With alpha = 0 and beta = -1 results are k times an element: one that f32 rounds to the middle of two numbers."""
    middle = 1 + EPSILON[name] / 2  # goes to 1, the even one; what is above it would go to the other
    elements = 1 + np.arange(1, 1 / EPSILON[name]) * EPSILON[name]
    factors = (middle / elements).astype(np.float32).astype(np.float64)
    product = factors * elements
    first = int(np.flatnonzero((product.astype(np.float32) == middle) & (product > middle))[0])
    x = np.full((2, 3, 40), elements[first], BY_NAME[name].numpy)
    y, denom = forward(device, x, 5, variant, alpha=0.0, beta=-1.0, k=float(factors[first]))
    np.testing.assert_array_equal(y, np.ones_like(x))
    grad_input = backward(device, x, x, denom, 5, variant, alpha=0.0, beta=-1.0)
    np.testing.assert_array_equal(grad_input, np.ones_like(x))


@pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])
@pytest.mark.parametrize("size", [13, 64, 1000, 2**31, 2**32 - 1])
@pytest.mark.sanitize
def test_windows_above_the_sliding_ones(device: Device, rng: Rng, size: int, variant: str) -> None:
    check(device, rng, normal(rng, (2, 40, 9)), size, variant, alpha=0.5)


@pytest.mark.ptx
@pytest.mark.parametrize("size", [13, 2**32 - 1])
def test_windows_above_the_sliding_ones_go_to_the_baseline(device: Device, size: int) -> None:
    shape = (4, 64, 32, 32)
    assert plan_of("forward", device, shape, size).variant.name == "baseline"
    with pytest.raises(ptxrt.Unsupported, match="windows of"):
        plan_of("forward", device, shape, size, "sliding")


@pytest.mark.parametrize("variant", VARIANTS)
def test_matches_the_reference_on_drawn_problems(device: Device, variant: str) -> None:
    def body(shape: Shape, size: int, alpha: Any, beta: Any, k: Any, seed: Any, offset: Any) -> None:
        rng = np.random.default_rng(seed)
        check(device, rng, normal(rng, shape), size, variant, offset, alpha=alpha, beta=beta, k=k)

    for_drawn(
        device,
        body,
        shape=shapes(3, most=4096),
        size=st.sampled_from(SLIDING_SIZES if variant == "sliding" else range(1, 90)),
        alpha=st.sampled_from([1e-4, 0.3, 2.0]),
        beta=st.sampled_from([0.25, 0.5, 0.75, 1.0, 0.1, 1.3, 0.0, -0.5]),
        k=st.sampled_from([0.5, 1.0, 2.0]),
        seed=st.integers(0, 2**32 - 1),
        offset=st.integers(0, 3),
    )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0, 0.0, 0.01, 3.0, 10.0, -0.75, -1.0, -2.0, 40.0])
def test_every_beta_from_the_smallest_denom_to_the_largest(device: Device, rng: Rng, beta: float, variant: str) -> None:
    # denom is x^2 alone, of every magnitude: from 1e-90, of which f32 holds nothing, to 1e77, which is infinite there.
    spread = 44 if abs(beta) <= 1 else 36 / abs(beta) / 2
    x = (10.0 ** rng.uniform(-spread, min(spread, 38), 4000) * rng.choice([-1, 1], 4000)).astype(np.float32)
    x = x[x != 0].reshape(1, 1, -1)
    with np.errstate(over="ignore"):
        y, denom = forward(device, x, 1, variant, alpha=1.0, beta=beta, k=0.0)
        want_y, want_denom = references.local_response_norm(x, 1, 1.0, beta, 0.0)
        want_y, want_denom = want_y.astype(np.float32), want_denom.astype(np.float32)  # which overflow too
        # Single elements, since the largest would be all of a norm.
        np.testing.assert_allclose(y, want_y, rtol=1.3e-7, atol=2e-45)
        np.testing.assert_allclose(denom, want_denom, rtol=1.3e-7, atol=2e-45)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_channels_beside_each_other_have_denoms_of_any_magnitude(
    device: Device, rng: Rng, name: str, variant: str
) -> None:
    """Windows of one: roots are taken side by side, and one by one where f32 does not hold a denom of them."""
    x = 10.0 ** rng.uniform(-37, 37, (1, 27, 65)) * rng.choice([-1, 1], (1, 27, 65))
    x = np.where(rng.random(x.shape) < 0.5, rng.uniform(0.5, 2, x.shape), x).astype(element_type(name).numpy)
    rounding, least = (1.3e-7, 2e-45) if name == "f32" else (0.51 * EPSILON[name], 1e-40)
    for beta in (0.25, 0.5, 0.75, 1.0, 0.3):
        with np.errstate(over="ignore"):
            y, denom = forward(device, x, 1, variant, alpha=1.0, beta=beta, k=0.0)
            want_y, want_denom = references.local_response_norm(x, 1, 1.0, beta, 0.0)
            np.testing.assert_allclose(denom, want_denom.astype(np.float32), rtol=1.3e-7, atol=2e-45)
            np.testing.assert_allclose(y.astype(float), want_y, rtol=rounding, atol=least)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0, 0.3, 2.0, -1.0, -0.5])
def test_backward_from_the_smallest_denom_to_the_largest(device: Device, rng: Rng, beta: float, variant: str) -> None:
    denom = np.concatenate([10.0 ** rng.uniform(-44, 38, 2000), 2.0 ** np.arange(-149, 128)]).astype(np.float32)
    denom = denom[denom > 0].reshape(1, 1, -1)
    x, go = normal(rng, denom.shape), normal(rng, denom.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        got = backward(device, go, x, denom, 1, variant, alpha=1e-3, beta=beta)
        want = references.local_response_norm_backward(go, x, denom, 1, 1e-3, beta)
        scale = np.abs(go * denom.astype(np.float64) ** -beta)  # what cancels is measured by what it is the rest of
        fits = (np.abs(want) < 3.4e38) & (scale < 1e300)
        assert (np.abs(got - want)[fits] <= 6e-8 * np.abs(want[fits]) + 1e-11 * scale[fits] + 1e-45).all()
        assert not np.isfinite(got[np.abs(want) > 3.5e38]).any()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0, 0.3, 3.0, -0.5])
def test_f64_from_the_smallest_denom_to_the_largest(device: Device, rng: Rng, beta: float, variant: str) -> None:
    # Single elements. That of a denom is off by a rounding or two, which beta multiplies; a power by 1.5 ulp.
    x = 10.0 ** rng.uniform(-160, 150 / max(beta, 1), 1000).reshape(1, 1, -1) * rng.choice([-1, 1], 1000)
    with np.errstate(over="ignore"):
        y, denom = forward(device, x, 1, variant, alpha=1.0, beta=beta, k=0.0)
        want_y, want_denom = references.local_response_norm(x, 1, 1.0, beta, 0.0)
        lost = 5e-324 / np.maximum(want_denom, 5e-324) * abs(beta)  # of a denormal denom, relative to y
        usual = (lost < 0.1) & (want_denom**-beta < 1e308)
        rtol = (3 + 2 * abs(beta)) * EPSILON["f64"] / 2
        np.testing.assert_allclose(denom, want_denom.astype(np.float64), rtol=3e-16, atol=5e-324)
        assert (np.abs(y - want_y) <= (rtol + 2 * lost) * np.abs(want_y) + 5e-324)[usual].all()
        denom = np.concatenate([denom[denom > 0], 2.0 ** np.arange(-1074, 1024.0)]).reshape(1, 1, -1)
        go, v = (normal(rng, denom.shape, name="f64") for _ in "gx")
        got = backward(device, go, v, denom, 1, variant, alpha=1e-3, beta=beta)
        want = references.local_response_norm_backward(go, v, denom, 1, 1e-3, beta)
        terms = np.abs(go * denom.astype(np.longdouble) ** -beta)  # what cancels is measured by what it is the rest of
        terms += np.abs(2 * beta * 1e-3 * v * v * go * denom.astype(np.longdouble) ** (-beta - 1))
        fits = terms < 1e300
        assert fits.mean() > 0.5
        assert (np.abs(got - want)[fits] <= 1e-15 * terms[fits] + 2e-323).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0])
def test_powers_of_f64_by_roots_are_rounded_once(device: Device, rng: Rng, beta: float, variant: str) -> None:
    # Single elements. The gradient of ones is denom^-beta where alpha is 0, all but denom^(-beta - 1) where x is large.
    ones = np.ones((1, 1, 20_000))
    for most, x, alpha in ((127, 1.0, 0.0), (0, 2.0**20, 1.0)):
        denom = np.exp2(rng.uniform(-126, most, ones.shape))
        got = backward(device, ones, x * ones, denom, 1, variant, alpha=alpha, beta=beta)
        want = references.local_response_norm_backward(ones, x * ones, denom, 1, alpha, beta)
        roundings = 2 if alpha else 1  # of the power, and of what follows
        assert (np.abs(got - want) / np.abs(want)).max() < 1.002 * roundings * EPSILON["f64"] / 2


@pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])
def test_sums_of_f64_lose_nothing_in_large_windows(device: Device, variant: str) -> None:
    # Equal squares: each addition would round the same way.
    x = np.full((1, 120, 1), 1.1)
    check(device, np.random.default_rng(1), x, 239, variant, alpha=1.0, k=0.0)
    got = backward(device, x, x, np.ones_like(x), 239, variant, alpha=1e3)
    want = references.local_response_norm_backward(x, x, np.ones_like(x), 239, 1e3)
    check_error("local_response_norm grad_input", device, got, want, bar_of(x, want), "equal terms")


@pytest.mark.parametrize("variant", VARIANTS)
def test_terms_of_f64_that_cancel_leave_what_f64_has_of_them(device: Device, rng: Rng, variant: str) -> None:
    x, go = (normal(rng, (1, 3, 200), name="f64") for _ in "xg")
    denom = forward(device, x, 1, variant, alpha=1e3, beta=0.6, k=0.01)[1]
    got = backward(device, go, x, denom, 1, variant, alpha=1e3, beta=0.6)
    want = references.local_response_norm_backward(go, x, denom, 1, 1e3, 0.6)
    terms = np.abs(go) * denom**-0.6
    assert (np.abs(got - want) <= 2e-15 * terms).all()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e200])
def test_a_bad_value_of_f64_spoils_its_windows_alone(device: Device, rng: Rng, value: Any, variant: str) -> None:
    x, go = (normal(rng, (1, 13, 5), name="f64") for _ in "xg")
    x[0, 6, 2] = value
    x64 = np.where(np.abs(x) == 1e200, np.inf, x)  # its square is infinite
    with np.errstate(all="ignore"):
        want, want_denom = references.local_response_norm(x64, 4)
        want[0, 6, 2] = 0.0 if value == 1e200 else np.nan
        y, denom = forward(device, x, 4, variant)
        check_error("local_response_norm y", device, y, want, bar_of(x, want), value)
        check_error("local_response_norm denom", device, denom, want_denom, bar_of(x, want_denom), value)
        got = backward(device, go, x, denom, 4, variant)
        want = references.local_response_norm_backward(go, x, denom, 4)
    check_error("local_response_norm grad_input", device, got, want, bar_of(x, want), value)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_result_is_the_reference_rounded_once(device: Device, rng: Rng, variant: str) -> None:
    x = normal(rng, (2, 30, 50))
    for beta in (0.75, 0.6):
        y, denom = forward(device, x, 5, variant, alpha=1.0, beta=beta)
        want, want_denom = references.local_response_norm(x, 5, 1.0, beta)
        assert np.mean(y != want.astype(np.float32)) < 1e-3
        np.testing.assert_array_equal(denom, want_denom.astype(np.float32))


@pytest.mark.parametrize("variant", VARIANTS)
def test_terms_that_cancel_cost_no_accuracy(device: Device, rng: Rng, variant: str) -> None:
    # alpha large and k small: what remains of the gradient is a small part of its two terms.
    for beta in (0.5, 0.6):
        check(device, rng, normal(rng, (1, 3, 200)), 1, variant, alpha=1e3, beta=beta, k=0.01)
    # With k = 0 and beta = 1/2, y is the sign of x: what remains is the rounding of the denom handed in.
    check(device, rng, normal(rng, (1, 3, 200)), 1, variant, alpha=1.0, beta=0.5, k=0.0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mean", [1e4, -1e4])
def test_a_large_mean(device: Device, rng: Rng, mean: float, variant: str) -> None:
    check(device, rng, normal(rng, (2, 20, 40), mean), 5, variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("scale", "alpha", "k"), [(1e-44, 1, 1), (1e-22, 1e6, 0), (1e15, 1, 0), (1e25, 1e-20, 1)])
def test_values_with_squares_above_f32(
    device: Device, rng: Rng, scale: float, alpha: float, k: int, variant: str
) -> None:
    x = (normal(rng, (1, 8, 40)).astype(np.float64) * scale).astype(np.float32)
    check(device, rng, x, 5, variant, alpha=alpha, k=k)


@pytest.mark.parametrize("variant", VARIANTS)
def test_nothing_of_a_large_value_stays_behind_its_window(device: Device, rng: Rng, variant: str) -> None:
    x = normal(rng, (1, 60, 33))
    x[0, 10] = 1e18
    x[0, 30, ::2] = 1e19
    y, _ = forward(device, x, 5, variant)
    want, _ = references.local_response_norm(x, 5)
    quiet = np.ones(60, bool)
    quiet[8:13] = quiet[28:33] = False
    check_error("local_response_norm y", device, y[:, quiet], want[:, quiet], BAR, "behind a large value")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("size", [1, 4, 5])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_bad_value_spoils_its_windows_alone(device: Device, rng: Rng, value: Any, size: int, variant: str) -> None:
    x, go = normal(rng, (2, 23, 9)), normal(rng, (2, 23, 9))
    x[1, 11, 4] = value
    with np.errstate(invalid="ignore"):
        want, want_denom = references.local_response_norm(x, size)
        y, denom = forward(device, x, size, variant)
        check_error("local_response_norm y", device, y, want, BAR, (value, size))
        check_error("local_response_norm denom", device, denom, want_denom, BAR, (value, size))
        handed = denom
        got = backward(device, go, x, handed, size, variant)
        want = references.local_response_norm_backward(go, x, handed, size)
    check_error("local_response_norm grad_input", device, got, want, BAR, (value, size))
    assert np.isnan(got).any()
    assert np.isfinite(got[0]).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_bad_gradient_spoils_its_windows_alone(device: Device, rng: Rng, variant: str) -> None:
    x, go = normal(rng, (1, 23, 9)), normal(rng, (1, 23, 9))
    go[0, 11, 4] = np.nan
    denom = np.ones_like(x)
    got = backward(device, go, x, denom, 4, variant)
    want = references.local_response_norm_backward(go, x, denom, 4)
    check_error("local_response_norm grad_input", device, got, want, BAR, "NaN in grad_out")
    assert np.isnan(got).sum() == 4


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("name", "beta"),
    [("f32", beta) for beta in (0.25, 0.5, 0.75, 1.0, 2.0, 0.3, 0.0, -1.0, -0.5, -2.0, 3.0, 1e30, 16777216.0)]
    + [("f64", beta) for beta in (0.25, 0.5, 0.75, 1.0, 2.0, 0.0, -1.0, -0.5, 3.0)],
)
def test_a_denom_that_is_not_above_zero_is_raised_as_torch_pow_does(
    device: Device, name: str, beta: float, variant: str
) -> None:
    # k below 0 and alpha of 0: denom is k. Infinite only in backward, to which it is handed.
    kind, tiny, rtol, atol = {"f32": (np.float32, 1e-40, 1.3e-7, 2e-45), "f64": (np.float64, 1e-40, 1e-15, 0)}[name]
    x = np.array([1.0, -2.0, 0.0, tiny], kind).reshape(1, 1, -1)
    with np.errstate(all="ignore"):
        for k in (0.0, -1.0, -4.0, -tiny, tiny, 3e38):
            y, denom = forward(device, x, 1, variant, alpha=0.0, beta=beta, k=k)
            want, want_denom = references.local_response_norm(x, 1, 0.0, beta, k)
            want = want.astype(kind)
            np.testing.assert_array_equal(denom, want_denom.astype(kind))
            np.testing.assert_allclose(y, want, rtol=rtol, atol=atol, err_msg=f"k = {k}")
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, -4.0, -tiny, tiny], kind)
        if beta == -0.5:
            special = special[special != -np.inf]  # C's pow has infinity; NumPy takes the square root, NaN
        go, ones = np.ones((1, 1, special.size), kind), np.full((1, 1, special.size), 2.0, kind)
        denom = special.reshape(1, 1, -1)
        for alpha in (0.5, -0.5):  # of one of them the infinite terms have equal signs
            got = backward(device, go, ones, denom, 1, variant, alpha=alpha, beta=beta)
            want = references.local_response_norm_backward(go, ones, denom, 1, alpha, beta)
            # Where the terms cancel (-4 for a beta of 1), what float64 rounded of them is left.
            np.testing.assert_allclose(got, want.astype(kind), rtol=rtol, atol=1e-15)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("alpha", "beta", "k"), [(-0.01, 0.75, 5.0), (0.0, 0.75, 1.0), (1e-4, 0.0, 1.0), (1, 2, 3)])
def test_alpha_beta_and_k_are_any_numbers(
    device: Device, rng: Rng, alpha: float, beta: float, k: float, variant: str
) -> None:
    check(device, rng, normal(rng, (1, 9, 30)), 5, variant, alpha=alpha, beta=beta, k=k)


def test_alpha_beta_and_k_are_rounded_to_f32(device: Device, rng: Rng) -> None:
    x = normal(rng, (1, 9, 30))
    exact: dict[str, Any] = {"alpha": 0.7, "beta": 0.75 + 1e-9, "k": 1 / 3}
    rounded: dict[str, Any] = {name: float(np.float32(value)) for name, value in exact.items()}
    for a, b in zip(forward(device, x, 5, **exact), forward(device, x, 5, **rounded), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(("name", "beta"), [("f32", 0.75), ("f32", 0.6), ("f64", 0.75), ("f64", 0.6)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_bits_from_each_variant_run_and_device(
    device: Device, rng: Rng, name: str, beta: float, variant: str
) -> None:
    x, go = (normal(rng, (2, 29, 60), name=name) for _ in "xg")
    sim = Device("sim:0")
    y, denom = forward(sim, x, 5, "baseline", beta=beta, alpha=0.5)
    gradient = backward(sim, go, x, denom, 5, "baseline", beta=beta, alpha=0.5)
    for _ in range(2):
        results = forward(device, x, 5, variant, beta=beta, alpha=0.5)
        np.testing.assert_array_equal(results, (y, denom))
        got = backward(device, go, x, denom, 5, variant, beta=beta, alpha=0.5)
        np.testing.assert_array_equal(got, gradient)


def test_the_gradient_is_that_of_the_forward(device: Device, rng: Rng) -> None:
    # Central differences of the reference, so that no formula is shared.
    x, go = normal(rng, (1, 7, 3)).astype(np.float64), normal(rng, (1, 7, 3))
    for size in (4, 5):
        denom = references.local_response_norm(x, size, 0.5, 0.75, 1.0)[1].astype(np.float32)
        got = backward(device, go, x.astype(np.float32), denom, size, alpha=0.5)
        for place in np.ndindex(x.shape):
            step = np.zeros_like(x)
            step[place] = 1e-6
            there, back = (references.local_response_norm(x + s, size, 0.5, 0.75, 1.0)[0] for s in (step, -step))
            assert abs(((there - back) * go).sum() / 2e-6 - got[place]) < 1e-5


@pytest.mark.parametrize("variant", VARIANTS)
def test_many_blocks(device: Device, rng: Rng, variant: str) -> None:
    check(device, rng, normal(rng, (3, 20, 1000)), 5, variant)


@pytest.mark.parametrize(
    ("shape", "size", "variant"),
    [
        ((1, 3, 2**30 + 40), 5, "sliding"),
        ((5, 3, 2**28 + 8), 3, "baseline"),
        ((2**27 + 3, 17, 2), 5, "baseline"),  # past 2^32 where the batch is
        ((2**17, 2**15 + 8), 4, "sliding"),
        ((1, 3, 2**30 + 40), 5, "hip/baseline"),
    ],
    ids=str,
)
def test_tensors_past_2_to_the_31_and_32_elements(
    cuda: Device, torch_with: Any, shape: Shape, size: int, variant: str
) -> None:
    count = int(np.prod(shape))
    torch = torch_with(18 * count)
    x = torch.empty(shape, device="cuda").normal_()
    y, denom, got = (torch.full_like(x, float("nan")) for _ in range(3))
    to = ptxrt.from_dlpack
    forwards = plan_of("forward", cuda, shape, size, variant, alpha=0.5)
    forwards.run(LocalResponseNormArgs(to(x), to(y), to(denom)))
    backwards = plan_of("backward", cuda, shape, size, variant, alpha=0.5)
    backwards.run(LocalResponseNormBackwardArgs(to(y), to(x), to(denom), to(got)))
    spatial = int(np.prod(shape[2:]))
    image = shape[1] * spatial
    for place in {min(place, count - 1) for place in (0, 2**31 - 5, 2**32 - 5, count - 1)}:
        n, p = place // image, place % spatial
        columns = slice(max(p - 20, 0), p + 20)
        parts = [a.view(shape[0], shape[1], spatial)[n : n + 1, :, columns].cpu().numpy() for a in (x, y, denom, got)]
        want, want_denom = references.local_response_norm(parts[0], size, 0.5)
        case = (shape, size, variant, place)
        check_error("local_response_norm y", cuda, parts[1], want, BAR, case)
        check_error("local_response_norm denom", cuda, parts[2], want_denom, BAR, case)
        want = references.local_response_norm_backward(parts[1], parts[0], parts[2], size, 0.5)
        check_error("local_response_norm grad_input", cuda, parts[3], want, BAR, case)
    for result in (y, denom, got):
        assert not any(torch.isnan(part).any() for part in result.view(-1).chunk(32))


# Checks ---------------------------------------------------------------------------------------------------------------

SHAPE = (2, 8, 6)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_size_above_its_parameter_is_refused(device: Device, direction: str) -> None:
    plan_of(direction, device, SHAPE, 2**32 - 1)
    with pytest.raises(ptxrt.Unsupported, match=r"size = 4294967296 does not fit"):
        plan_of(direction, device, SHAPE, 2**32)


def test_inputs_may_be_one_array(device: Device, rng: Rng) -> None:
    x = normal(rng, SHAPE)
    there = ptxrt.to_device(np.abs(x), device)
    got = local_response_norm_backward(there, there, there, 5).to_host()
    np.testing.assert_array_equal(got, backward(device, abs(x), abs(x), abs(x), 5))


# The plan -------------------------------------------------------------------------------------------------------------


@pytest.mark.ptx
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("shape", "size", "best"),
    [
        ((8, 65, 32, 32), 5, "sliding"),
        ((8, 64, 32, 32), 5, "small"),
        ((4, 64, 32, 32), 12, "sliding"),
        ((4, 64, 32, 32), 13, "baseline"),  # no sliding kernel
        ((4, 63, 32, 32), 6, "baseline"),  # few elements
        ((1024, 64, 7), 5, "baseline"),  # few positions an image
        ((1024, 64, 8), 5, "sliding"),
        ((1024, 64, 16), 5, "sliding"),
        ((4, 64), 5, "last"),
        ((4, 64), 4, "baseline"),
    ],
    ids=str,
)
def test_the_best_variant_is_selected(device: Device, direction: str, shape: Shape, size: int, best: str) -> None:
    assert key_of(plan_of(direction, device, shape, size).variant) == best


@pytest.mark.ptx
@pytest.mark.parametrize(("shape", "best"), [((8, 64, 32, 32), "small"), ((8, 65, 32, 32), "sliding")], ids=str)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_of_16_bits_as_many_elements_are_few(device: Device, direction: str, shape: Shape, best: str) -> None:
    descriptor = DESCRIPTORS[direction](shape, 5, BY_NAME["f16"])
    assert PLANS[direction].select(device, descriptor, wish()).variant.name == best


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("channels", "name", "forward", "backward"),
    [
        (2, "f32", "small", "small"),
        (3, "bf16", "small", "small"),
        (4, "f16", "small", "sliding"),
        (5, "f32", "sliding", "sliding"),
        (2, "f64", "baseline", "baseline"),
        (3, "f64", "sliding", "sliding"),
    ],
)
def test_of_few_channels(device: Device, channels: int, name: str, forward: str, backward: str) -> None:
    """Each has more elements than are few."""
    for direction, best in (("forward", forward), ("backward", backward)):
        descriptor = DESCRIPTORS[direction]((32, channels, 128, 128), 5, BY_NAME[name])
        assert PLANS[direction].select(device, descriptor, wish()).variant.name == best


@pytest.mark.parametrize(("name", "best"), [("f32", "sliding"), ("f64", "baseline")])
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_of_two_channels_in_hip(device: Device, direction: str, name: str, best: str) -> None:
    descriptor = DESCRIPTORS[direction]((32, 2, 128, 128), 5, BY_NAME[name])
    assert PLANS[direction].select(device, descriptor, wish(language="hip")).variant.name == best


@pytest.mark.ptx
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_beta_in_f32_decides_between_roots_and_powers(device: Device, direction: str) -> None:
    for beta, by in ((0.75, "root"), (0.75 + 1e-9, "root"), (0.7500001, "any"), (1, "root"), (0, "any"), (2, "any")):
        descriptor = DESCRIPTORS[direction](SHAPE, 5, beta=beta)
        plan = PLANS[direction].select(device, descriptor, wish("sliding"))
        (launch,) = plan.schedule.steps
        assert launch.kernel.entry == f"lrn_{direction}_sliding_5_{by}"


@pytest.mark.ptx
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_what_is_too_much_for_a_sliding_kernel_goes_to_the_baseline(device: Device, direction: str) -> None:
    for shape, name in (
        ((2, 1, 1 << 31), "positions"),
        ((1, 1 << 30, 2), "channels"),
    ):
        with pytest.raises(ptxrt.Unsupported, match=f"sliding: {name} = .* does not fit"):
            plan_of(direction, device, shape, 1, "sliding")
    limit = device.properties.max_grid[0]
    assert plan_of(direction, device, (limit, 16, 16), 5).variant.name == "baseline"
    with pytest.raises(ptxrt.Unsupported, match=r"ptx/baseline: \d+ blocks do not fit grid\.x"):
        plan_of(direction, device, (limit, 16, 17), 5, "baseline")
    assert key_of(plan_of(direction, device, (limit, 16, 17), 5).variant) == "hip/baseline"  # where threads take turns


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_in_hip_threads_take_turns_where_there_are_fewer_than_elements(device: Device, direction: str) -> None:
    for images, blocks in (((1 << 24) - 1, (1 << 24) - 1), (1 << 24, (1 << 24) - 1), (1 << 26, (1 << 24) - 1)):
        plan = plan_of(direction, device, (images, 16, 16), 5, "hip/baseline")
        (launch,) = plan.schedule.steps
        assert (launch.grid, launch.block) == ((blocks,), 256)


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_threads_in_hip_take_turns(device: Device, rng: Rng, name: str) -> None:
    kind = BY_NAME[name].numpy
    x = normal(rng, (3, 7, 23), name=name)
    y, denom, got = (Guarded(x.shape, kind, device) for _ in range(3))
    there = on_device(x, device)
    forwards, backwards = (FAMILY.kernel(f"lrn_{way}_kernel", BY_NAME[name], "hip").load(device) for way in DIRECTIONS)
    forwards.launch(2, 64, there, y.array, denom.array, *x.shape, 5, 0.5, 0.75, 1.0)  # four turns, the last not full
    backwards.launch(2, 64, there, there, denom.array, got.array, *x.shape, 5, 0.5, 0.75)
    want_y, want_denom = forward(device, x, 5, "hip/baseline", alpha=0.5)
    np.testing.assert_array_equal(y.host(), want_y)
    np.testing.assert_array_equal(denom.host(), want_denom)
    np.testing.assert_array_equal(got.host(), backward(device, x, x, want_denom, 5, "hip/baseline", alpha=0.5))


@pytest.mark.parametrize("cls", DESCRIPTORS.values())
def test_a_descriptor_takes_numbers_of_numpy(cls: Any) -> None:
    assert cls((2, 8, 3), np.int64(5), alpha=np.float32(0.5)) == cls((2, 8, 3), 5, alpha=0.5)


# Powers of f64 --------------------------------------------------------------------------------------------------------

POWER_IN_PTX = """
//% from "power.jinja" import accurate_power with context
// y = x^e and x^(e - 1). Grid: n / 256 blocks of 256 threads.
.version 7.0
.target sm_70
.address_size 64

.visible .entry powers(.param .u64 x_ptr, .param .u64 e_ptr, .param .u64 y_ptr)
{
    .reg .b32 %i, %block;
    .reg .b64 %x, %e, %y, %offset;
    .reg .f64 %base, %exponent, %less, %first, %second;
    ld.param.u64 %x, [x_ptr];
    ld.param.u64 %e, [e_ptr];
    ld.param.u64 %y, [y_ptr];
    mov.u32 %i, %tid.x;
    mov.u32 %block, %ctaid.x;
    mad.lo.u32 %i, %block, 256, %i;
    mul.wide.u32 %offset, %i, 8;
    add.u64 %x, %x, %offset;
    add.u64 %e, %e, %offset;
    mul.wide.u32 %offset, %i, 16;
    add.u64 %y, %y, %offset;
    ld.global.f64 %base, [%x];
    ld.global.f64 %exponent, [%e];
    sub.rn.f64 %less, %exponent, 0d3FF0000000000000;
    {{ accurate_power(["%first", "%second"], "%base", [["%exponent"], ["%less"]]) }}
    st.global.v2.f64 [%y], {%first, %second};
}
"""
POWER_IN_HIP = """
extern "C" __global__ void powers(const Real* x_ptr, const Real* e_ptr, Real* y_ptr) {
    const unsigned int i = blockIdx.x * 256 + threadIdx.x;
    y_ptr[2 * i] = power(x_ptr[i], e_ptr[i]);
    y_ptr[2 * i + 1] = power(x_ptr[i], e_ptr[i] - 1);
}
"""
in_both = pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])


def powers(device: Device, bases: Any, exponents: Any, variant: str) -> Any:
    """Return bases and exponents, of two columns each, and what a variant's power makes of them."""
    x, e = (np.array(a, np.float64).ravel() for a in np.broadcast_arrays(bases, exponents))
    x, e = (np.resize(a, -(-a.size // 256) * 256) for a in (x, e))
    if variant == "hip/baseline":
        text = read_kernel("local_response_norm", language="hip", dtype="f64").text + POWER_IN_HIP
        source = ptxrt.KernelSource.hip(text, name="power")
    else:
        source = ptxrt.KernelSource.ptx(templates().from_string(POWER_IN_PTX).render(context("f64")), name="power")
    kernel = ptxrt.load(source, "powers", "const f64* x_ptr, const f64* e_ptr, f64* y_ptr", device)
    y = ptxrt.empty((x.size, 2), np.float64, device)
    kernel.launch(x.size // 256, 256, ptxrt.to_device(x, device), ptxrt.to_device(e, device), y)
    return x[:, None], np.stack([e, e - 1], axis=-1), y.to_host()


@in_both
@pytest.mark.parametrize(
    ("low", "high", "most"),
    [
        (-1074, 1024, 1.5),  # every base, denormal ones too; results that are denormal or infinite among them
        (-0.001, 0.001, 1e6),  # beside 1, where the logarithm is small
        (-2, 2, 300),
        (-0.6, 0.6, 3),
    ],
)
def test_a_power_of_f64_is_within_an_ulp_and_a_half(
    device: Device, rng: Rng, low: float, high: float, most: float, variant: str
) -> None:
    x, e, y = powers(device, np.exp2(rng.uniform(low, high, 20_000)), rng.uniform(-most, most, 20_000), variant)
    with np.errstate(over="ignore"):
        want = np.power(x.astype(np.longdouble), e.astype(np.longdouble))
        rounded = want.astype(np.float64)
    fits = np.isfinite(rounded)
    assert fits.mean() > 0.6
    ulp = np.spacing(rounded[fits]).astype(np.longdouble)
    assert (np.abs(y[fits] - want[fits]) / ulp).max() < 1.5
    np.testing.assert_array_equal(y[~fits], rounded[~fits])
    np.testing.assert_array_equal(y, powers(Device("sim:0"), x[:, 0], e[:, 0], "baseline")[2])


@in_both
def test_a_power_of_what_is_special_is_that_of_c(device: Device, variant: str) -> None:
    bases = [0, -0.0, 1, -1, 2, -2, 0.5, -0.5, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e308, -1e308, 2.0**-1022]
    exponents = [0, 1, -1, 2, -2, 0.5, -0.5, 0.75, -0.75, 3, -3, -1.75, 1e300, -1e300, -2.5, 2**24 + 1, -(2.0**53)]
    x, e, y = powers(device, np.array(bases)[:, None], exponents, variant)
    with np.errstate(all="ignore"):
        want = np.float_power(x, e)
    np.testing.assert_allclose(y, want, rtol=1e-15)
    usual = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(y[usual]), np.signbit(want[usual]))


@pytest.mark.parametrize("name", FAMILY.dtypes)
@pytest.mark.parametrize("beta", [0.25, 0.5, 0.75, 1.0])
def test_in_hip_denoms_that_f32_does_not_hold_have_the_bits_of_ptx(
    sim: Device, rng: Rng, name: str, beta: float
) -> None:
    x, go = rng.standard_normal((2, 1, 6, 40)).astype(BY_NAME[name].numpy)
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        -1.0,
        1e-42,
        2.0**-126,
        3e38,
        7.0,
        1e-20,
        1e20,
        *([1e300, 1e-310] if name == "f64" else []),
    ]
    handed = np.resize(special, x.shape).astype(parameter_type(BY_NAME[name]).numpy)
    ways = ("sliding", "hip/sliding")
    for size in (3, 5):  # windows in shared memory, and in registers
        for alpha, k in ((1e-42, 0.0), (1e38, 0.0), (0.0, 0.0), (0.0, -0.0), (0.0, -2.0), (1.0, 1e-41)):
            results = [forward(sim, x, size, way, alpha=alpha, beta=beta, k=k) for way in ways]
            for ours, theirs in zip(*results, strict=True):
                np.testing.assert_array_equal(ours.astype(np.float64), theirs.astype(np.float64))
        gradients = [backward(sim, go, x, handed, size, way, alpha=0.5, beta=beta).astype(np.float64) for way in ways]
        np.testing.assert_array_equal(*gradients)


@pytest.mark.parametrize("name", FAMILY.dtypes)
def test_in_hip_threads_walk_with_the_bits_of_ptx(sim: Device, rng: Rng, name: str) -> None:
    """In two chunks or more, the last one shorter; of each size that shared memory has places for, and each power.

    Of types beside f32 every third size; of f32 every other one, where not all is wanted.
    """
    x, go = (20 * rng.standard_normal((2, 2, 37, 30))).astype(BY_NAME[name].numpy)
    most = 5 if name == "f64" else 8
    for place, size in enumerate(range(1, most + 1, 3 if name != "f32" else 1 if EVERYTHING else 2)):
        beta = (0.25, 0.5, 0.75, 1.0)[place % 4]
        results = []
        for variant in ("sliding", "hip/sliding"):
            y, denom = forward(sim, x, size, variant, beta=beta)
            gradient = backward(sim, go, x, denom, size, variant, beta=beta)
            results.append([array.tobytes() for array in (y, denom, gradient)])
        assert results[0] == results[1], size
    for size, beta in ((most + 1, 0.75), (3, 0.6)):
        with pytest.raises(ptxrt.Unsupported, match=f"windows of up to {most} and beta of 1 to 4 quarters"):
            forward(sim, x, size, "hip/sliding", beta=beta)
