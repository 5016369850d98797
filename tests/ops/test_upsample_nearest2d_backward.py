"""upsample_nearest2d_backward: sums by candle's rule, bit for bit in each type, on any strides; and its checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
from helpers import Rng, Shape, refused
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, on_device, variants, wish
from tolerances import bar

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, element_type
from ptxrt.ops import (
    UpsampleNearest2dBackwardArgs,
    UpsampleNearest2dBackwardDescriptor,
    UpsampleNearest2dBackwardPlan,
    references,
    upsample_nearest2d,
    upsample_nearest2d_backward,
)
from ptxrt.ops._upsample_nearest2d import _first_places
from ptxrt.ops.framework import parameter_type
from ptxrt.runtime.layout import contiguous

Pair: TypeAlias = tuple[int, int]
OP = "upsample_nearest2d_backward"
TYPES = ("f32", "f64", "f16", "bf16")
OF_16_BITS = ("f16", "bf16")
VARIANTS = ("baseline", "hip/baseline")
FACTORS = ("factors", "hip/factors")
NARROW = ("narrow", "hip/narrow")
OF_FACTORS = (*FACTORS, "short", *NARROW)
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_narrow = pytest.mark.parametrize("variant", NARROW)
each_type = pytest.mark.parametrize("name", TYPES)


def kind_of(name: str) -> Any:
    return BY_NAME[name].numpy


def made(rng: Rng, shape: Shape, name: str) -> Any:
    return rng.standard_normal(shape).astype(kind_of(name))


def added_up(grad_out: Any, in_h: int, in_w: int) -> Any:
    """Return the result by the rule, each bit of it: sums from +0 on in the order of grad_out, rounded once."""
    real = parameter_type(element_type(grad_out.dtype)).numpy
    sums = np.zeros((*grad_out.shape[:2], in_h, in_w), real)
    columns = references.nearest_source_indices(in_w, grad_out.shape[3])
    with np.errstate(invalid="ignore", over="ignore"):
        for i, row in enumerate(references.nearest_source_indices(in_h, grad_out.shape[2])):
            for j, column in enumerate(columns):
                sums[:, :, row, column] += grad_out[:, :, i, j].astype(real)
        return sums.astype(grad_out.dtype)


def same_bits(got: Any, want: Any, case: object = "") -> None:
    """Hold each bit to be the same, but that a NaN is any NaN."""
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want), str(case))
    got, want = (np.where(np.isnan(a), 0, a).astype(a.dtype).view(f"u{a.dtype.itemsize}") for a in (got, want))
    np.testing.assert_array_equal(got, want, str(case))


def plan_for(grad_out: Any, in_h: int, in_w: int, variant: str | None = None) -> Any:
    problem = UpsampleNearest2dBackwardDescriptor(grad_out.shape, grad_out.strides, in_h, in_w, grad_out.dtype)
    return UpsampleNearest2dBackwardPlan.select(grad_out.device, problem, wish(variant))


def run(grad_out: Any, in_h: int, in_w: int, variant: str | None = None, offset: int = 0) -> Any:
    """Run on a device array, into an output that shows what was written, `offset` elements behind a round address."""
    out = Guarded((*grad_out.shape[:2], in_h, in_w), grad_out.dtype, grad_out.device, offset)
    plan = plan_for(grad_out, in_h, in_w, variant)
    assert plan.run(UpsampleNearest2dBackwardArgs(grad_out, out.array)) is out.array
    return out.host()


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.sanitize
@each_variant
@each_type
@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((2, 3, 8, 10), (4, 5)),
        ((1, 1, 1, 1), (1, 1)),
        ((1, 2, 9, 33), (1, 1)),  # all of an image in one sum
        ((3, 1, 5, 4), (5, 4)),  # the same size
        ((2, 2, 3, 5), (7, 11)),  # elements that were copied to no place
        ((1, 1, 2, 16), (9, 3)),  # these along one axis, sums along the other
        ((1, 1, 44, 3), (30, 2)),  # where no rule of integers does
        ((5, 7, 4, 6), (3, 5)),  # more than one block
    ],
)
def test_every_bit_is_that_of_the_rule(
    device: Device, rng: Rng, name: str, variant: str, shape: Shape, size: Pair
) -> None:
    go = made(rng, shape, name)
    got = run(ptxrt.to_device(go, device), *size, variant)
    same_bits(got, added_up(go, *size), (shape, size))
    want = references.upsample_nearest2d_backward(go, *size)
    addends = -(-shape[2] // size[0]) * -(-shape[3] // size[1])
    check_error(OP, device, got, want, bar(OP, name, want) * max(1, addends / 6) ** 0.5, (shape, size, variant))


@pytest.mark.sanitize
@pytest.mark.parametrize("variant", FACTORS)
@each_type
def test_whole_factors(device: Device, rng: Rng, name: str, variant: str) -> None:
    """Each bit, of aligned vectors and of others, of rows in one turn or more."""
    vector = 16 // kind_of(name).itemsize
    for (rows, columns), wide in (((2, 2), 1), ((3, 3), 2), ((5, 4), 1), ((4, 2), 1), ((1, 3), 1)):
        size = (3, wide * vector)
        shape = (2, 3, 3 * rows, wide * vector * columns)
        padded = made(rng, (*shape[:3], shape[3] + vector), name)
        for go, there, offset in (
            (padded[..., vector:], ptxrt.to_device(padded, device)[..., vector:], 0),
            (padded[..., 1 : 1 - vector], ptxrt.to_device(padded, device)[..., 1 : 1 - vector], 1),
        ):
            same_bits(run(there, *size, variant, offset), added_up(go, *size), (shape, offset))


@pytest.mark.ptx
@pytest.mark.sanitize
@each_type
def test_few_elements(device: Device, rng: Rng, name: str) -> None:
    """Each bit, of one block a plane and of more, of rows behind each other and apart."""
    for factor, size in ((2, (5, 7)), (2, (1, 1)), (2, (3, 70)), (3, (4, 3)), (4, (2, 5))):
        shape = (2, 3, size[0] * factor, size[1] * factor)
        padded = made(rng, (*shape[:2], shape[2] + 1, shape[3] + 3), name)
        there = ptxrt.to_device(padded, device)
        for offset, part in enumerate([(..., slice(1, None), slice(3, None)), (..., slice(-1), slice(1, -2))]):
            go = padded[part]
            same_bits(run(there[part], *size, "short", offset), added_up(go, *size), (factor, size, offset))


def narrow_views(rng: Rng, shape: Shape, name: str, device: Device) -> Iterator[Any]:
    """Return arrays and what they show, by name: rows in one run and in several, vectors and odd addresses."""
    n, c, h, w = shape
    go = made(rng, shape, name)
    yield "one run", ptxrt.to_device(go, device), go
    for by in (4, 2, 1):  # the last one with an output at a round address
        yield f"{by} behind", on_device(go, device, by), go
    more = made(rng, (n, c + 2, h, w), name)
    yield "some channels", ptxrt.to_device(more, device)[:, 1:-1], more[:, 1:-1]
    padded = made(rng, (n, c, h + 1, w + 1), name)
    yield "padded rows", ptxrt.to_device(padded, device)[:, :, :-1, 1:], padded[:, :, :-1, 1:]
    one = made(rng, (1, 1, h, w), name)
    yield "one plane for all", ptxrt.to_device(one, device).broadcast_to(shape), np.broadcast_to(one, shape)


@pytest.mark.sanitize
@each_narrow
@each_type
def test_narrow_pieces(device: Device, rng: Rng, name: str, variant: str) -> None:
    """Each bit, of each factor and in pieces of each width."""
    entries = set()
    for factor in (2, 3, 4):
        for size in ((3, 5), (2, 6), (3, 4), (1, 1), (2, 33)):
            shape = (2, 3, size[0] * factor, size[1] * factor)
            for offset, (view, there, shown) in enumerate(narrow_views(rng, shape, name, device)):
                same_bits(run(there, *size, variant, offset % 3), added_up(shown, *size), (factor, size, view))
            entries.add(plan_for(there, *size, variant).schedule.launches[0].kernel.entry)
    assert len(entries) == 3 * len([width for width in (2, 4, 8) if width >= kind_of(name).itemsize])


@pytest.mark.sanitize
@each_narrow
@each_type
def test_narrow_pieces_around_the_ends_of_blocks(device: Device, rng: Rng, name: str, variant: str) -> None:
    size = kind_of(name).itemsize
    for width in (8, 4, 2):
        if width < size:
            continue
        for more, offset in ((-1, 0), (0, 0), (1, 0), (64, 0), (0, 1), (1, 1)):
            in_h, in_w = 64 * 8 // width + more, width // size
            go = made(rng, (1, 1, 2 * in_h, 2 * in_w), name)
            (launch,) = plan_for(ptxrt.to_device(go, device), in_h, in_w, variant).schedule.launches
            assert (launch.kernel.entry.split("_")[-2], launch.block) == (str(width), 64)
            got = run(on_device(go, device, offset), in_h, in_w, variant, offset)
            same_bits(got, added_up(go, in_h, in_w), (width, more, offset))


@pytest.mark.ptx
def test_what_narrow_pieces_are_for(device: Device) -> None:
    for shape, factor, name, variant in (
        ((16, 256, 20, 20), 2, "f16", "narrow"),
        ((16, 256, 20, 20), 2, "f32", "factors"),
        ((4, 32, 100, 100), 3, "f16", "narrow"),
        ((8, 64, 33, 33), 2, "f32", "narrow"),
        ((8, 64, 33, 33), 2, "bf16", "narrow"),
        ((8, 64, 33, 33), 4, "f64", "narrow"),
        ((8, 64, 33, 33), 5, "f32", "baseline"),
    ):
        out = (*shape[:2], shape[2] * factor, shape[3] * factor)
        problem = UpsampleNearest2dBackwardDescriptor(out, contiguous(out), *shape[2:], BY_NAME[name])
        for language in ("ptx", "hip"):
            plan = UpsampleNearest2dBackwardPlan.select(device, problem, wish(language=language))
            assert plan.variant.name == variant, (shape, factor, name)
            (launch,) = plan.schedule.launches
            assert variant != "narrow" or launch.block == 256, (shape, factor, name)
    for shape, strides, size, reason in (
        ((1, 1, 4, 8), (32, 32, 1, 4), (2, 4), "side by side"),
        ((2, 2, 4, 4), (100, 20, 4, 1), (2, 2), "at one stride"),
        ((1, 1, 4, 6), (24, 24, 6, 1), (2, 2), "as often"),
        ((1, 1, 5, 5), (25, 25, 5, 1), (1, 1), "as often"),
        ((1, 1, 1 << 29, 2), (0, 0, 0, 1), (1 << 28, 1), "looked at"),
        ((1, 1, 4, 4), (0, 0, 1 << 29, 1), (2, 2), "row_stride"),
        ((1 << 16, 1 << 15, 2, 2), (0, 0, 0, 1), (1, 1), "31 bits"),
        ((3, 1, 2, 2), (1 << 61, 0, 2, 1), (1, 1), "64-bit offsets"),
    ):
        with refused(ptxrt.Unsupported, OP, "descriptor", reason):
            UpsampleNearest2dBackwardPlan.select(
                device, UpsampleNearest2dBackwardDescriptor(shape, strides, *size), wish("narrow")
            )


@each_type
@pytest.mark.parametrize("variant", ["short", *NARROW])
def test_values_of_few_elements(device: Device, name: str, variant: str) -> None:
    """Sums from +0 on, row by row; a NaN is of its place alone."""
    image = np.zeros((1, 2, 4, 4), kind_of(name))
    image[0, 0] = -0.0
    large, half = {"f64": (2.0**53, 1), "f16": (2.0**14, 2.0**-10)}.get(name, (2.0**24, 1))
    image[0, 1] = [[large, -large, np.nan, 1], [half, half, 1, 1], [np.inf, 1, 3, 4], [1, 1, 5, 6]]
    got = run(ptxrt.to_device(image, device), 2, 2, variant)
    want = np.array([[[[0, 0], [0, 0]], [[2 * half, np.nan], [np.inf, 18]]]], kind_of(name))
    same_bits(got, want)
    same_bits(got, added_up(image, 2, 2))


@pytest.mark.ptx
def test_few_elements_have_a_kernel_of_their_own(device: Device) -> None:
    for shape, size, name in (
        ((2, 64, 32, 32), (16, 16), "short"),
        ((2, 64, 64, 64), (32, 32), "factors"),
        ((2, 64, 8, 8), (4, 4), "short"),
        ((2, 64, 6, 10), (3, 5), "narrow"),  # images of few elements
    ):
        problem = UpsampleNearest2dBackwardDescriptor(shape, contiguous(shape), *size)
        plan = UpsampleNearest2dBackwardPlan.select(device, problem, ptxrt.PlanPreference(language="ptx"))
        assert plan.variant.name == name
    for shape, strides, size, reason in (
        ((1, 1, 4, 8), (32, 32, 1, 4), (2, 4), "side by side"),
        ((2, 2, 4, 4), (100, 16, 4, 1), (2, 2), "at one stride"),
        ((2, 2, 4, 4), (1 << 29, 1 << 28, 1 << 28, 1), (2, 2), "grad_out_bytes"),
        ((1, 1, 1 << 29, 2), (0, 0, 0, 1), (1 << 28, 1), "looked at"),
        ((1, 1, 4, 6), (24, 24, 6, 1), (2, 2), "as often"),
        ((1, 1, 5, 5), (25, 25, 5, 1), (1, 1), "as often"),
        ((1, 1, 4, 5), (20, 20, 5, 1), (2, 2), "as often"),
    ):
        with refused(ptxrt.Unsupported, OP, "descriptor", reason):
            UpsampleNearest2dBackwardPlan.select(
                device, UpsampleNearest2dBackwardDescriptor(shape, strides, *size), wish("short")
            )


@pytest.mark.parametrize("variant", FACTORS)
@pytest.mark.parametrize(
    ("shape", "strides", "size", "reason"),
    [
        ((1, 1, 4, 8), (32, 32, 1, 4), (2, 4), "side by side"),
        ((1, 1, 4, 6), (24, 24, 6, 1), (2, 3), "16 bytes"),
        ((1, 1, 5, 8), (40, 40, 8, 1), (2, 4), "as often"),
        ((1, 1, 4, 20), (80, 80, 20, 1), (2, 4), "as often"),
        ((1 << 20, 1 << 13, 2, 8), (0, 0, 8, 1), (1, 4), "threads"),
    ],
)
def test_what_whole_factors_refuse(
    device: Device, variant: str, shape: Shape, strides: Shape, size: Pair, reason: str
) -> None:
    with refused(ptxrt.Unsupported, OP, "descriptor", reason):
        UpsampleNearest2dBackwardPlan.select(
            device, UpsampleNearest2dBackwardDescriptor(shape, strides, *size), wish(variant)
        )


@each_variant
def test_it_is_the_forward_turned_round(device: Device, rng: Rng, variant: str) -> None:
    """The sum of grad_out * forward(x) is that of backward(grad_out) * x; whole numbers have no rounding."""
    x, go = (rng.integers(-9, 9, shape).astype(np.float64) for shape in ((2, 3, 30, 11), (2, 3, 44, 7)))
    y = upsample_nearest2d(ptxrt.to_device(x, device), 44, 7).to_host()
    assert (go * y).sum() == (run(ptxrt.to_device(go, device), 30, 11, variant) * x).sum()


@each_variant
@each_type
def test_sums_are_in_the_order_of_grad_out(device: Device, name: str, variant: str) -> None:
    # Half of the step between numbers as large; f16 has no number as large beside 1.
    large, half = {"f64": (2.0**53, 1), "f16": (2.0**14, 2.0**-10)}.get(name, (2.0**24, 1))
    for image, want in (
        ([[large, half], [half, -large]], 0),
        ([[large, -large], [half, half]], 2 * half),  # `half` where columns come first
        ([[half, half], [large, -large]], 2 * half),
    ):
        got = run(ptxrt.to_device(np.array([[image]], kind_of(name)), device), 1, 1, variant)
        assert got == want


@each_variant
@each_type
def test_zeros_infinities_and_nans(device: Device, name: str, variant: str) -> None:
    inf, nan = np.inf, np.nan
    image = [[-0.0, inf, inf, nan, 1, -inf], [-0.0, inf, -inf, 2, 1, -inf]]
    go = np.array([[image]], kind_of(name))
    same_bits(run(ptxrt.to_device(go, device), 1, 6, variant), np.array([[[[0, inf, nan, nan, 2, -inf]]]], go.dtype))
    same_bits(run(ptxrt.to_device(go, device), 2, 12, variant), added_up(go, 2, 12))  # each at most copied
    assert not np.signbit(run(ptxrt.to_device(go[..., :1], device), 3, 2, variant)).any()


@each_variant
@each_type
def test_denormals_and_the_largest_numbers(device: Device, name: str, variant: str) -> None:
    kind = kind_of(name)
    limits = ml_dtypes.finfo(kind)
    least, most = (float(v) for v in (limits.smallest_subnormal, limits.max))
    image = [[least, least, most, most], [least, -3 * least, -most, most]]
    go = np.array([[image]], kind)
    want = np.array([[[[2 * least, -2 * least, 0, np.inf]]]], kind)
    same_bits(run(ptxrt.to_device(go, device), 1, 4, variant), want)


@each_variant
@pytest.mark.parametrize("name", OF_16_BITS)
def test_16_bits_are_rounded_once_and_to_even(device: Device, name: str, variant: str) -> None:
    eps, most = (2.0**-10, 65504.0) if name == "f16" else (2.0**-7, float.fromhex("0x1.fep127"))
    half_of_last = 16.0 if name == "f16" else 2.0**119
    sums = [
        ([1, eps / 2], 1), ([1 + eps, eps / 2], 1 + 2 * eps), ([-1 - eps, -eps / 2], -1 - 2 * eps),  # ties
        ([1, eps / 2, eps / 2], 1 + eps),  # 1 if each addition were rounded
        ([1, eps / 2, eps / 64], 1 + eps), ([1 + eps, eps / 2, -eps / 64], 1 + eps),  # beside ties
        ([most, half_of_last], np.inf), ([-most, -half_of_last / 2], -most), ([most, most, -most], most),
    ]  # fmt: skip
    go = np.zeros((1, len(sums), 1, 3), kind_of(name))
    for channel, (values, _) in enumerate(sums):
        go[0, channel, 0, : len(values)] = values
    got = run(ptxrt.to_device(go, device), 1, 1, variant)
    if name == "bf16":  # f32 has no sum of most and most
        got, sums = got[:, :-1], sums[:-1]
    np.testing.assert_array_equal(got.ravel().astype(np.float64), [want for _, want in sums])


# Layouts --------------------------------------------------------------------------------------------------------------


def layouts(go: Any, device: Device) -> Iterator[Any]:
    """Return views on a device by name, with what they show."""
    n, c, h, w = go.shape
    wide = np.zeros((n, c, 2 * h + 1, 3 * w + 2), go.dtype)
    wide[:, :, 1::2, 2::3] = go
    yield "one element behind", on_device(go, device, 1), go
    for name, axes in (("channels last", (0, 2, 3, 1)), ("turned round", (3, 2, 1, 0)), ("swapped", (1, 0, 2, 3))):
        packed = ptxrt.to_device(np.ascontiguousarray(go.transpose(axes)), device)
        yield name, packed.transpose(*np.argsort(axes).tolist()), go
    yield "steps", ptxrt.to_device(wide, device)[:, :, 1::2, 2::3], go
    for axis in range(4):
        one = np.ascontiguousarray(go.take([0], axis))
        shown = np.broadcast_to(one, go.shape)
        yield f"broadcast along {axis}", ptxrt.to_device(one, device).broadcast_to(go.shape), shown


@pytest.mark.sanitize
@each_variant
@each_type
def test_each_layout_of_grad_out(device: Device, rng: Rng, name: str, variant: str) -> None:
    for layout, there, shown in layouts(made(rng, (2, 3, 5, 7), name), device):
        for offset, size in ((0, (2, 3)), (1, (6, 4))):
            same_bits(run(there, *size, variant, offset), added_up(shown, *size), layout)


def test_drawn_problems(device: Device) -> None:
    def body(shape: Shape, size: Pair, name: str, variant: str, offset: int, order: Any, seed: int) -> None:
        go = made(np.random.default_rng(seed), tuple(shape[axis] for axis in order), name)
        back = np.argsort(order)
        there = on_device(go, device).transpose(*back.tolist())
        same_bits(run(there, *size, variant, offset), added_up(go.transpose(back), *size))

    for_drawn(
        device,
        body,
        shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)),
        size=st.tuples(st.integers(1, 50), st.integers(1, 50)),
        name=st.sampled_from(TYPES),
        variant=st.sampled_from(
            (*(key for key in variants(UpsampleNearest2dBackwardPlan, device) if key not in OF_FACTORS), None)
        ),
        offset=st.integers(0, 3),
        order=st.permutations(range(4)),
        seed=st.integers(0, 2**32 - 1),
    )


# The tables -----------------------------------------------------------------------------------------------------------


def test_the_tables_invert_the_forwards_product_for_every_pair_of_sizes() -> None:
    pairs = [(length, count) for length in range(1, 65) for count in range(1, 97)]
    for length, count in [*pairs, (999_983, 1_000_003), (1_000_003, 999_983), (3, 1_000_000), (1_000_000, 3)]:
        sources = np.minimum((np.arange(count) * (length / count)).astype(np.int64), length - 1)
        if count < 97 and length < 65:
            assert sources.tolist() == references.nearest_source_indices(length, count)
        table = _first_places(length, count)
        np.testing.assert_array_equal(table, np.searchsorted(sources, np.arange(length + 1)), f"{length} {count}")


def test_the_tables_of_axes_longer_than_float64_counts() -> None:
    count = (1 << 62) + 1
    for length in (1, 2, 7):
        for r, first in enumerate(_first_places(length, count).tolist()[:-1]):
            assert first == 0 or int(float(first - 1) * (length / count)) < r
            assert int(float(first) * (length / count)) >= r


# Large ----------------------------------------------------------------------------------------------------------------


@each_variant
def test_past_2_to_the_32_elements(torch_with: Any, variant: str) -> None:
    torch = torch_with(36 << 30)
    go = torch.ones((2, 2, 33_000, 33_008), device="cuda")
    got = torch.from_dlpack(plan_for(ptxrt.from_dlpack(go), 123, 457, variant).run((ptxrt.from_dlpack(go), None)))
    rows, columns = (np.diff(_first_places(*sizes).astype(int)) for sizes in ((123, 33_000), (457, 33_008)))
    assert torch.equal(got.cpu(), torch.from_numpy(np.outer(rows, columns).astype(np.float32)).expand(2, 2, 123, 457))
    del go, got
    go = torch.randn((2, 2, 16_501, 16_505), device="cuda", dtype=torch.float16)
    there = ptxrt.from_dlpack(go)
    got = torch.from_dlpack(plan_for(there, 33_000, 33_008, variant).run((there, None)))
    rows, columns = (
        torch.tensor(references.nearest_source_indices(*sizes), device="cuda")
        for sizes in ((33_000, 16_501), (33_008, 16_505))
    )
    for n, c in np.ndindex(2, 2):
        assert torch.equal(got[n, c].index_select(0, rows).index_select(1, columns), go[n, c])
        assert torch.count_nonzero(got[n, c]) == torch.count_nonzero(go[n, c])


# Checks ---------------------------------------------------------------------------------------------------------------

SHAPE = (2, 3, 4, 5)


@pytest.mark.parametrize("shape", [(2, 3, 0, 5), (2, 3, 4, 0), (1, 1, 0, 0)])
def test_an_image_without_elements_has_no_gradient(device: Device, shape: Shape) -> None:
    with refused(ptxrt.ShapeMismatch, OP, "grad_out", "at least 1"):
        upsample_nearest2d_backward(ptxrt.zeros(shape, np.float32, device), 8, 10)


def test_a_size_of_0_belongs_to_no_image_or_channel_alone() -> None:
    for shape in ((0, 3, 4, 5), (2, 0, 4, 5)):
        assert UpsampleNearest2dBackwardDescriptor(shape, contiguous(shape), 0, 0).empty
    with refused(ptxrt.InvalidArgument, OP, "in_w", "from 1"):
        UpsampleNearest2dBackwardDescriptor(SHAPE, contiguous(SHAPE), 2, 0)


def test_equal_problems_are_equal() -> None:
    one = UpsampleNearest2dBackwardDescriptor(SHAPE, contiguous(SHAPE), 8, 10, BY_NAME["f16"])
    given: Any = (list(SHAPE), list(contiguous(SHAPE)), np.int64(8), 10, np.float16)
    assert one == UpsampleNearest2dBackwardDescriptor(*given)
    assert hash(one) == hash(UpsampleNearest2dBackwardDescriptor(*given))


@pytest.mark.parametrize("strides", [None, (1, 2, 3), (1, 2, 3, -1)])
def test_a_descriptor_wants_strides(strides: Any) -> None:
    with refused(ptxrt.LayoutError, OP, "strides", "four strides"):
        UpsampleNearest2dBackwardDescriptor(SHAPE, strides, 8, 10)


@pytest.mark.parametrize(
    ("strides", "size", "reason"),
    [((1 << 62, 0, 0, 0), (1, 1), "64-bit offsets"), ((0, 0, 0, 0), (1 << 28, 1), "that tables hold")],
)
def test_what_fits_no_kernel_has_its_reasons(device: Device, strides: Any, size: Pair, reason: str) -> None:
    with refused(ptxrt.Unsupported, OP, "descriptor", "hip/baseline: ", reason):
        UpsampleNearest2dBackwardPlan.select(device, UpsampleNearest2dBackwardDescriptor(SHAPE, strides, *size))
