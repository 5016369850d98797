"""upsample_nearest2d: candle's rule bit for bit, in each type, on any strides; and each of its checks.

Every pair of sizes (in, out) up to (64, 128) runs on the PTX machine along either axis, in one variant of PTX along the
one and in the other along the other, the types in turn; on a GPU each of them also runs in all six types as users have
it. In HIP, where one function finds rows and columns, every pair runs along one of the axes.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import pytest
from helpers import EVERYTHING, Patch, Rng, Shape, refused, skip_stand_in
from hypothesis import strategies as st
from op_testing import Guarded, check_error, for_drawn, key_of, on_device, variants, wish

import ptxrt
from ptxrt import Device
from ptxrt.dtypes import BY_NAME, BY_NUMPY
from ptxrt.ops import (
    UpsampleNearest2dArgs,
    UpsampleNearest2dDescriptor,
    UpsampleNearest2dPlan,
    references,
    upsample_nearest2d,
)
from ptxrt.ops._upsample_nearest2d import ShortConfig, TablesConfig, _pieces
from ptxrt.ops.framework import KernelSpec, Refusal
from ptxrt.ops.framework.texts import read_kernel
from ptxrt.runtime.layout import contiguous

OP = "upsample_nearest2d"
TYPES = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "u8": np.dtype(np.uint8),
    "u32": np.dtype(np.uint32),
}
Pair: TypeAlias = tuple[int, int]
VARIANTS = ("short", "banded", "baseline", "hip/baseline")
NARROW = ("narrow", "hip/narrow")
each_variant = pytest.mark.parametrize("variant", VARIANTS)
each_narrow = pytest.mark.parametrize("variant", NARROW)
types = pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)

indices = functools.cache(lambda *sizes: np.array(references.nearest_source_indices(*sizes)))


def any_bits(rng: Rng, shape: Shape, dtype: Any) -> Any:
    """Return elements of any bits: NaNs with payloads, denormals and all."""
    return rng.integers(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), np.uint8).view(dtype)


def wanted(x: Any, out_h: int, out_w: int) -> Any:
    """Return what references.upsample_nearest2d does, quicker."""
    return x[:, :, indices(x.shape[2], out_h)[:, None], indices(x.shape[3], out_w)]


def same_bits(got: Any, want: Any, case: object = "") -> None:
    assert got.dtype == want.dtype
    got, want = (np.ascontiguousarray(a).view(f"u{a.dtype.itemsize}") for a in (got, want))
    np.testing.assert_array_equal(got, want, str(case))


def plan_for(x: Any, out_h: int, out_w: int, variant: str | None = None) -> Any:
    problem = UpsampleNearest2dDescriptor(x.shape, x.strides, out_h, out_w, x.dtype)
    try:
        return UpsampleNearest2dPlan.select(x.device, problem, wish(variant))
    except ptxrt.Unsupported:
        if variant not in ("short", "tables", "hip/tables", *NARROW):  # which take some problems
            raise
        return UpsampleNearest2dPlan.select(x.device, problem)


def run(x: Any, out_h: int, out_w: int, variant: str | None = None, offset: int = 0) -> Any:
    """Run on a device array, into an output that shows what was written, `offset` elements behind a round address."""
    y = Guarded((*x.shape[:2], out_h, out_w), x.dtype, x.device, offset)
    assert plan_for(x, out_h, out_w, variant).run(UpsampleNearest2dArgs(x, y.array)) is y.array
    return y.host()


# Values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.sanitize
@each_variant
@types
@pytest.mark.parametrize(
    ("shape", "out"),
    [
        ((2, 3, 4, 5), (8, 10)),
        ((1, 1, 1, 1), (1, 1)),
        ((1, 1, 1, 1), (9, 33)),
        ((3, 1, 5, 4), (15, 12)),
        ((1, 4, 3, 8), (3, 8)),  # the same size
        ((2, 2, 7, 11), (3, 5)),  # down
        ((1, 2, 9, 3), (2, 16)),  # down and up
    ],
)
def test_matches_the_reference(device: Device, rng: Rng, dtype: Any, variant: str, shape: Shape, out: Pair) -> None:
    x = rng.integers(1, 255, shape).astype(dtype)
    got = run(ptxrt.to_device(x, device), *out, variant)
    check_error(OP, device, got, references.upsample_nearest2d(x, *out), 0.0, (shape, out, variant))


@each_variant
@types
@pytest.mark.parametrize("width", [2, 15, 16, 17, 31, 32, 33, 64, 255, 256, 257, 1021])
def test_widths_around_vectors_and_blocks(device: Device, rng: Rng, dtype: Any, variant: str, width: int) -> None:
    x = any_bits(rng, (1, 2, 3, 37), dtype)
    same_bits(run(ptxrt.to_device(x, device), 5, width, variant), wanted(x, 5, width))


@each_variant
@types
@pytest.mark.parametrize(
    ("in_h", "out_h"), [(1, 64), (2, 25), (3, 9), (3, 10), (4, 16), (5, 24), (6, 43), (3, 24), (2, 17), (40, 13)]
)
def test_heights_around_the_bands(device: Device, rng: Rng, dtype: Any, variant: str, in_h: int, out_h: int) -> None:
    x = any_bits(rng, (2, 3, in_h, 6), dtype)
    same_bits(run(ptxrt.to_device(x, device), out_h, 16, variant), wanted(x, out_h, 16))


@each_variant
@pytest.mark.parametrize("name", ["f64", "f16", "u8"])
def test_many_blocks_and_planes(device: Device, rng: Rng, name: str, variant: str) -> None:
    x = any_bits(rng, (67, 131, 5, 6), TYPES[name])
    same_bits(run(ptxrt.to_device(x, device), 17, 32, variant), wanted(x, 17, 32))


@each_variant
def test_a_million_columns_or_rows(device: Device, rng: Rng, variant: str) -> None:
    x = any_bits(rng, (1, 1, 1, 999_983), TYPES["u8"])
    same_bits(run(ptxrt.to_device(x, device), 1, 1_000_003, variant), wanted(x, 1, 1_000_003))
    tall = np.ascontiguousarray(x.transpose(0, 1, 3, 2))
    same_bits(run(ptxrt.to_device(tall, device), 1_000_003, 1, variant), wanted(tall, 1_000_003, 1))


@each_variant
@types
def test_every_bit_pattern_of_16_bits_and_some_of_others(device: Device, rng: Rng, dtype: Any, variant: str) -> None:
    x = any_bits(rng, (1, 1, 256, 256), dtype)
    if dtype.itemsize == 2:
        x = np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(x.shape)
    elif dtype.kind == "f":
        bits = f"u{dtype.itemsize}"
        quiet = np.array(np.nan, dtype).view(bits)
        x.view(bits)[0, 0, :16, 0] = [0, 1, 2, 1 << (8 * dtype.itemsize - 1), *(quiet + np.arange(12, dtype=bits))]
        x.view(bits)[0, 0, 16:28, 0] = quiet // 2 + np.arange(12, dtype=bits)
        signalling = np.array(np.inf, dtype).view(bits) + np.arange(1, 5, dtype=bits)
        x.view(bits)[0, 0, 28:32, 0] = signalling
    same_bits(run(ptxrt.to_device(x, device), 257, 272, variant), wanted(x, 257, 272))


@each_variant
def test_the_double_product_and_no_other_rule(device: Device, variant: str) -> None:
    x = np.arange(30, dtype=np.uint8)
    for shape, out in (((1, 1, 30, 1), (44, 1)), ((1, 1, 1, 30), (1, 44))):
        y = run(ptxrt.to_device(x.reshape(shape), device), *out, variant).ravel()
        assert (y[22], 22 * 30 // 44) == (14, 15)


@each_variant
def test_rows_are_the_third_axis_and_columns_the_fourth(device: Device, variant: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(1, 1, 2, 3)
    y = run(ptxrt.to_device(x, device), 4, 3, variant)[0, 0]
    np.testing.assert_array_equal(y, [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]])


@pytest.mark.sanitize
@each_variant
@pytest.mark.parametrize("name", BY_NAME)
def test_elements_of_every_type_are_moved_by_the_entry_of_their_size(
    device: Device, rng: Rng, name: str, variant: str
) -> None:
    kind = BY_NAME[name]
    x = any_bits(rng, (2, 3, 5, 7), kind.numpy)
    there = ptxrt.to_device(x, device)
    for view in (there, there[:, 1:, ::2, 1:]):
        shown = x if view is there else x[:, 1:, ::2, 1:]
        for out in ((10, 16), (4, 9)):
            same_bits(run(view, *out, variant, 1), wanted(shown, *out))
    (launch,) = plan_for(there, 10, 16, variant).schedule.launches
    moved = launch.kernel.signature.parameters[-1 if "baseline" in variant else 1].type
    assert (moved is kind) if name in TYPES else (moved.size == kind.size)


# Columns: one or two windows for 16 bytes of y, elements repeated evenly and unevenly, fewer columns, short rows.
TABLES = [(16, 32), (16, 48), (20, 112), (8, 48), (32, 48), (64, 16), (48, 64), (12, 16)]


@pytest.mark.sanitize
@pytest.mark.parametrize("variant", ["tables", "hip/tables"])
@types
def test_tables(device: Device, rng: Rng, dtype: Any, variant: str) -> None:
    took = []
    for (in_w, out_w), (in_h, out_h), height, offset in zip(
        TABLES, [(3, 6), (2, 7), (5, 5), (30, 44), (9, 4), (1, 3), (2, 18), (4, 12)], [4, 3, 8, 7, 1, 2, 16, 5],
        [0, 0, 0, 1, 0, 0, 3, 0], strict=True,
    ):  # fmt: skip
        x = any_bits(rng, (2, 2, in_h, in_w), dtype)
        problem = UpsampleNearest2dDescriptor(x.shape, contiguous(x.shape), out_h, out_w, x.dtype)
        preference = wish(variant, config=TablesConfig(height))
        try:
            plan = UpsampleNearest2dPlan.select(device, problem, preference)
        except ptxrt.Unsupported:
            assert dtype.itemsize < 4, "any two elements may be neighbours"
            continue
        for shift in {0, offset}:
            y = Guarded((2, 2, out_h, out_w), dtype, device, shift)
            plan.run(UpsampleNearest2dArgs(on_device(x, device, shift), y.array))
            same_bits(y.host(), wanted(x, out_h, out_w), (in_w, out_w, in_h, out_h, height, shift))
        took.append(plan.schedule.launches[0].arguments[8])
    assert len(took) >= 5
    assert set(took) == ({1, 2} if dtype.itemsize < 4 else {1})


@pytest.mark.parametrize(
    ("shape", "strides", "out_w", "name", "reason"),
    [
        ((1, 1, 4, 8), (32, 32, 8, 1), 12, "u8", "whole numbers of 16 bytes"),
        ((1, 1, 4, 6), (24, 24, 6, 1), 16, "u8", "two words"),
        ((1, 1, 4, 4), (16, 16, 4, 1), 16, "u8", "two words"),
        ((1, 1, 4, 8), (36, 36, 9, 1), 16, "u8", "two words"),
        ((1, 1, 4, 8), (32, 32, 1, 4), 16, "u8", "two words"),
        ((1, 1, 4, 64), (256, 256, 64, 1), 16, "u8", "eight bytes"),
        ((1, 1, 1 << 33, 4), (0, 0, 0, 1), 4, "u32", "in_h"),
        ((1, 1, 2, 4), (0, 0, 1 << 30, 1), 4, "u32", "row_bytes"),
        ((1, 1, 2, 5), (0, 0, 0, 1 << 28), 4, "u32", "bytes of a row"),
        ((1 << 16, 1 << 16, 1, 1), (0, 0, 0, 0), 4, "u32", "threads"),
        ((1, 1, 1, 1), (0, 0, 0, 0), 1 << 28, "u32", "tables hold"),
    ],
    ids=str,
)
def test_what_tables_do_not_take(sim: Device, shape: Shape, strides: Any, out_w: int, name: str, reason: str) -> None:
    problem = UpsampleNearest2dDescriptor(shape, strides, shape[2] if shape[2] < 9 else 3, out_w, BY_NAME[name])
    with refused(ptxrt.Unsupported, OP, "descriptor", "tables: ", reason):
        UpsampleNearest2dPlan.select(sim, problem, wish("tables"))


def narrow_views(x: Any, device: Device) -> Iterator[Any]:
    """Return arrays and what they show, by name: rows in one run and in several, elements apart, odd addresses."""
    h = x.shape[2]
    yield "one run", ptxrt.to_device(x, device), x
    yield "behind", on_device(x, device, 1), x
    yield "some channels", ptxrt.to_device(x, device)[:, 1:], x[:, 1:]
    yield "some images", ptxrt.to_device(x, device)[1:], x[1:]
    padded = np.concatenate([x, x[..., :1]], 3)
    yield "padded rows", ptxrt.to_device(padded, device)[..., 1:], padded[..., 1:]
    yield "padded planes", ptxrt.to_device(x, device)[:, :, : max(h - 1, 1)], x[:, :, : max(h - 1, 1)]
    turned = ptxrt.to_device(np.ascontiguousarray(x.transpose(0, 1, 3, 2)), device).transpose(0, 1, 3, 2)
    yield "columns first", turned, x
    one = np.ascontiguousarray(x[:1, :1])
    yield "one plane for all", ptxrt.to_device(one, device).broadcast_to(x.shape), np.broadcast_to(one, x.shape)


@pytest.mark.sanitize
@each_narrow
@types
def test_narrow_pieces(device: Device, rng: Rng, dtype: Any, variant: str) -> None:
    """Each bit, in pieces of each width, of rows copied once and more, of columns by any factor."""
    widths = set()
    for (h, w), rows, out_w in (
        ((3, 5), 2, 10), ((3, 5), 3, 15), ((2, 4), 4, 16), ((2, 3), 3, 9), ((5, 33), 2, 66), ((2, 10), 3, 30),
        ((2, 6), 1, 14), ((2, 4), 2, 24), ((1, 2), 2, 4), ((1, 1), 7, 2), ((3, 2), 5, 1), ((2, 8), 2, 16),
        ((2, 7), 1, 4),
    ):  # fmt: skip
        for k, (view, there, shown) in enumerate(narrow_views(any_bits(rng, (2, 3, h, w), dtype), device)):
            out = shown.shape[2] * rows, out_w
            plan = plan_for(there, *out, variant)
            if plan.variant.name != "narrow":
                assert dtype.itemsize == 1, view
                assert out_w % 2, view
                continue
            widths.add(int(plan.schedule.launches[0].kernel.entry.split("_")[-2]))
            same_bits(run(there, *out, variant, k % 3), wanted(shown, *out), (h, w, out, view))
    assert widths == {width for width in (2, 4, 8, 16) if width >= dtype.itemsize}


@pytest.mark.sanitize
@each_narrow
@types
def test_narrow_pieces_around_the_ends_of_blocks(device: Device, rng: Rng, dtype: Any, variant: str) -> None:
    for width, pieces in ((16, 1), (8, 1), (4, 2), (2, 4)):
        if width < dtype.itemsize:
            continue
        for more in (-1, 0, 1, 64):
            x = any_bits(rng, (1, 1, 64 * pieces + more, 1), dtype)
            out = 2 * x.shape[2], width // dtype.itemsize
            (launch,) = plan_for(ptxrt.to_device(x, device), *out, variant).schedule.launches
            assert (launch.kernel.entry.split("_")[-2], launch.block) == (str(width), 64)
            same_bits(run(ptxrt.to_device(x, device), *out, variant), wanted(x, *out), (width, more))


def test_every_piece_finds_its_row() -> None:
    """The product and its shift are the quotient: at both ends of rows, of the first and of the last there may be."""
    last = (1 << 31) - 1
    for across in (*range(1, 70), 127, 128, 129, 1000, 65535, 65536, 65537, (1 << 30) - 1, 1 << 30, (1 << 30) + 1):
        counted = _pieces(across, 1, 1, 1)
        assert not isinstance(counted, Refusal)
        _, _, factor, shift = counted[0]
        assert factor < 1 << 32
        near = {row * across + by for row in (1, 2, 3, last // across - 1, last // across) for by in (-1, 0)}
        for piece in {0, last, *(piece for piece in near if 0 <= piece <= last)}:
            assert piece * factor >> shift == piece // across, (piece, across)
    assert isinstance(_pieces(1, (1 << 31) - 1024, 1, 1), Refusal)
    assert not isinstance(_pieces(1, (1 << 31) - 1025, 1, 1), Refusal)


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("shape", "out", "name", "height"),
    [
        ((21, 256, 20, 20), (40, 40), "f16", 2),  # odd rows of 16 bits
        ((21, 256, 20, 20), (40, 40), "u8", 4),
        ((21, 256, 16, 16), (32, 32), "f16", 4),
        ((21, 256, 36, 36), (72, 72), "f16", 4),  # not as short
        ((1, 256, 20, 20), (40, 40), "f16", 1),
    ],
)
def test_of_how_many_rows_a_thread_of_tables_has_a_piece(
    shape: Shape, out: tuple[int, int], name: str, height: int
) -> None:
    problem = UpsampleNearest2dDescriptor(shape, contiguous(shape), *out, BY_NAME[name])
    assert TablesConfig.heuristic(problem) == TablesConfig(height)


def test_what_narrow_pieces_are_for(device: Device) -> None:
    for shape, out, name, variant in (
        ((8, 64, 33, 33), (66, 66), "f32", "narrow"),
        ((8, 64, 33, 33), (66, 66), "f16", "narrow"),
        ((4, 32, 100, 100), (300, 300), "f16", "narrow"),
        ((16, 256, 20, 20), (40, 40), "f16", "narrow"),
        ((16, 256, 20, 20), (40, 40), "u8", "narrow"),
        ((16, 256, 24, 24), (48, 48), "u8", "tables"),
        ((16, 256, 20, 20), (40, 40), "f32", "narrow"),
        ((8, 256, 64, 64), (128, 128), "f16", "narrow"),
        ((16, 256, 20, 20), (40, 40), "f64", "narrow"),
        ((20, 256, 20, 20), (40, 40), "f16", "narrow"),
        ((21, 256, 20, 20), (40, 40), "f16", "tables"),  # many odd rows of 16 bits
        ((64, 256, 16, 16), (32, 32), "f16", "narrow"),
        ((64, 256, 32, 32), (64, 64), "f16", "narrow"),
        ((21, 256, 20, 20), (40, 40), "f32", "narrow"),
        ((8, 64, 33, 33), (67, 66), "f16", "banded"),
        ((8, 64, 33, 33), (99, 99), "u8", "banded"),
    ):
        problem = UpsampleNearest2dDescriptor(shape, contiguous(shape), *out, BY_NAME[name])
        plan = UpsampleNearest2dPlan.select(device, problem, wish(language="ptx"))
        assert plan.variant.name == variant, (shape, out, name)
        if variant != "banded":  # of which HIP has none
            plan = UpsampleNearest2dPlan.select(device, problem, wish(language="hip"))
            assert plan.variant.name == variant, (shape, out, name)
    for shape, strides, out, name, reason in (
        ((1, 1, 3, 3), (9, 9, 3, 1), (6, 9), "u8", "of 2 bytes"),
        ((1, 1, 3, 3), (9, 9, 3, 1), (7, 6), "f32", "as often"),
        ((1, 1, 1, 3), (9, 9, 3, 1), (1, 1 << 16), "f32", "16 bits"),
        ((2, 2, 2, 2), (100, 10, 3, 1), (4, 4), "f32", "at one stride"),
        ((1, 1, 2, 1), (0, 0, 1 << 30, 0), (2, 1), "f32", "row_stride"),
        ((1, 1, 1, 2), (0, 0, 0, 1 << 30), (1, 2), "f32", "column_stride"),
        ((1, 1, 1, 1), (0, 0, 0, 0), (1 << 30, 1), "f32", "band"),
        ((1, 1, (1 << 28) + 1, 1), (0, 0, 0, 0), ((1 << 28) + 1, 1), "f32", "as often"),
        ((1 << 16, 1 << 15, 1, 1), (0, 0, 0, 0), (1, 1), "f32", "31 bits"),
        ((3, 1, 2, 1), (1 << 61, 0, 1, 1), (2, 1), "f32", "64-bit offsets"),
    ):
        problem = UpsampleNearest2dDescriptor(shape, strides, *out, BY_NAME[name])
        with refused(ptxrt.Unsupported, OP, "descriptor", reason):
            UpsampleNearest2dPlan.select(device, problem, wish("narrow"))


# Every pair of sizes, and layouts -------------------------------------------------------------------------------------

PAIRS = [(small, large) for small in range(1, 65) for large in range(1, 129)]


def check_pairs(device: Device, rng: Rng, monkeypatch: Patch, launches: Any) -> None:
    """Run each of `launches`: the pairs of its rows and of its columns, then the variants and types for both."""
    monkeypatch.setattr(KernelSpec, "load", functools.cache(KernelSpec.load))  # half of what a new plan costs
    images = {name: any_bits(rng, (1, 1, 66, 68), dtype) for name, dtype in TYPES.items()}
    there = {name: ptxrt.to_device(image, device) for name, image in images.items()}
    for (in_h, out_h), (in_w, out_w), kinds in launches:
        for variant, name in kinds:
            view = (..., slice(1, 1 + in_h), slice(3, 3 + in_w))
            x = there[name][view]
            y = plan_for(x, out_h, out_w, variant).run((x, None)).to_host()
            same_bits(y, wanted(images[name][view], out_h, out_w), (name, variant, in_h, out_h, in_w, out_w))


@pytest.mark.ptx
def test_every_pair_of_sizes_up_to_64_and_128(device: Device, rng: Rng, monkeypatch: Patch) -> None:
    """Launch k has pair k for its rows, and for its columns one of the other parity: on sim, in the other variant.

    Without PTXRT_TEST_ALL=1 sim has every fourth k alone, so each second pair, for rows or for columns.
    """
    names = list(TYPES)
    launches = []
    every = EVERYTHING or device.kind != "sim"
    for k, rows in enumerate(PAIRS):
        if k % 4 and not every:
            continue
        j = k if every else k // 4
        kinds: list[tuple[str | None, str]] = [(("banded", "baseline")[j % 2], names[j // 2 % 6])]
        if device.kind != "sim":
            kinds += [(None, name) for name in names]
        launches.append((rows, PAIRS[(5 * k + 4097) % len(PAIRS)], kinds))
    check_pairs(device, rng, monkeypatch, launches)


def test_the_pairs_of_sizes_are_all_there_on_either_axis_in_either_variant() -> None:
    columns = [(5 * k + 4097) % len(PAIRS) for k in range(len(PAIRS))]
    assert sorted(columns) == list(range(len(PAIRS)))
    assert all((k - other) % 2 for k, other in enumerate(columns))


def test_a_quarter_of_the_pairs_of_sizes_in_hip(device: Device, rng: Rng, monkeypatch: Patch) -> None:
    skip_stand_in(device)
    quarter = PAIRS[1::4]  # whose rule is one product in float64, as in PTX
    halves = zip(quarter[: len(quarter) // 2], quarter[len(quarter) // 2 :], strict=False)
    launches = [(rows, columns, [("hip/baseline", list(TYPES)[k % 6])]) for k, (rows, columns) in enumerate(halves)]
    check_pairs(device, rng, monkeypatch, launches)


def layouts(x: Any, device: Device) -> Iterator[Any]:
    """Return views on a device by name, with what they show: the same elements where the view repeats none."""
    n, c, h, w = x.shape
    wide = np.zeros((n, c, 2 * h + 1, 3 * w + 2), x.dtype)
    wide[:, :, 1::2, 2::3] = x
    padded = np.concatenate([x[:1], x, x[:1]])
    there = functools.partial(ptxrt.to_device, device=device)
    yield "contiguous", there(x), x
    yield "one element behind", on_device(x, device, 1), x
    yield "channels last", there(np.ascontiguousarray(x.transpose(0, 2, 3, 1))).transpose(0, 3, 1, 2), x
    yield "transposed", there(np.ascontiguousarray(x.transpose(3, 2, 1, 0))).transpose(3, 2, 1, 0), x
    yield "images and channels swapped", there(np.ascontiguousarray(x.transpose(1, 0, 2, 3))).transpose(1, 0, 2, 3), x
    yield "steps", there(wide)[:, :, 1::2, 2::3], x
    yield "images within", there(padded)[1:-1], x
    for axis in range(4):
        one = np.ascontiguousarray(x.take([0], axis))
        yield f"broadcast along {axis}", there(one).broadcast_to(x.shape), np.broadcast_to(one, x.shape)
    one = np.ascontiguousarray(x[:1, :1, :1, :1])
    yield "one element", there(one).broadcast_to(x.shape), np.broadcast_to(one, x.shape)
    flat = there(x.ravel())
    overlapping = ptxrt.DeviceArray.from_pointer(flat.ptr, (2, 1, h, w), x.dtype, device, (0, 5, 1, 1), flat)
    windows = np.lib.stride_tricks.sliding_window_view(x.ravel(), w)[:h]
    yield "windows", overlapping, np.broadcast_to(windows, (2, 1, h, w))


@each_variant
@types
def test_each_layout_of_the_input(device: Device, rng: Rng, dtype: Any, variant: str) -> None:
    for name, there, shown in layouts(any_bits(rng, (2, 3, 5, 7), dtype), device):
        for out in ((10, 16), (4, 9)):
            same_bits(run(there, *out, variant), wanted(shown, *out), name)


@pytest.mark.sanitize
@each_variant
@types
def test_each_alignment_of_the_output(device: Device, rng: Rng, dtype: Any, variant: str) -> None:
    x = any_bits(rng, (2, 1, 3, 7), dtype)
    there = ptxrt.to_device(x, device)
    for offset in range(1, 16 // dtype.itemsize + 1):
        for out in ((7, 32), (6, 5)):
            same_bits(run(there, *out, variant, offset), wanted(x, *out), offset)


def test_500_drawn_pairs_of_pairs_in_each_layout(device: Device, rng: Rng) -> None:
    """On CUDA each case runs in all types and variants; elsewhere these take turns."""
    for k in range(500):
        in_h, in_w = rng.integers(1, 65, 2)
        out_h, out_w = map(int, rng.integers(1, 129, 2))
        kinds = [(name, variant) for name in TYPES for variant in variants(UpsampleNearest2dPlan, device)]
        for name, variant in kinds if device.kind == "cuda" else [kinds[k % len(kinds)]]:
            x = any_bits(rng, (2, 1, in_h, in_w), TYPES[name])
            every = layouts(x, device)
            layout, there, shown = next(chosen for i, chosen in enumerate(every) if i == k % 13)
            same_bits(
                run(there, out_h, out_w, variant, k % 3),
                wanted(shown, out_h, out_w),
                (name, variant, layout, in_h, in_w),
            )


def test_drawn_problems(device: Device) -> None:
    def body(shape: Shape, out: Pair, name: str, variant: str, offset: Any, order: Any, seed: Any) -> None:
        x = any_bits(np.random.default_rng(seed), tuple(shape[axis] for axis in order), TYPES[name])
        back = np.argsort(order)
        there = on_device(x, device, offset[0]).transpose(*back.tolist())
        same_bits(run(there, *out, variant, offset[1]), wanted(x.transpose(back), *out))

    for_drawn(
        device,
        body,
        shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 40), st.integers(1, 40)),
        out=st.tuples(st.integers(1, 70), st.integers(1, 70)),
        name=st.sampled_from(sorted(TYPES)),
        variant=st.sampled_from((*variants(UpsampleNearest2dPlan, device), None)),
        offset=st.tuples(st.integers(0, 3), st.integers(0, 3)),
        order=st.permutations(range(4)),
        seed=st.integers(0, 2**32 - 1),
    )


# Large ----------------------------------------------------------------------------------------------------------------


def on_torch(view: Any, rows: Any, columns: Any) -> Any:
    """Return a torch image resized by index tables, as the kernel should."""
    import torch

    rows, columns = (torch.from_numpy(indices(*sizes)).to(view.device) for sizes in (rows, columns))
    return view.index_select(0, rows).index_select(1, columns)


LARGE = [
    ("u8", (2, 2), (33_000, 33_008)),  # 2^32 elements and more, 16 bytes at once
    ("u8", (2, 2), (33_001, 33_007)),  # one at once
    ("u8", (1, 1), (66_000, 66_000)),  # in one plane
    ("f64", (1, 2), (33_000, 33_000)),  # 2^31, and 2^34 bytes
]


@each_variant
@pytest.mark.parametrize(("name", "planes", "out"), LARGE, ids=str)
def test_outputs_past_2_to_the_32_elements(torch_with: Any, name: str, planes: Any, out: Pair, variant: str) -> None:
    torch = torch_with(40 << 30)
    dtype = {"u8": torch.uint8, "f64": torch.float64}[name]
    x = torch.randint(0, 256, (*planes, 123, 457), device="cuda").to(dtype)
    there = ptxrt.from_dlpack(x)
    y = torch.from_dlpack(plan_for(there, *out, variant).run((there, None)))
    for n in range(planes[0]):
        for c in range(planes[1]):
            assert torch.equal(y[n, c], on_torch(x[n, c], (123, out[0]), (457, out[1]))), (n, c)


def test_planes_past_2_to_the_32(torch_with: Any) -> None:
    torch = torch_with(12 << 30)
    x = torch.randint(0, 256, (1, 65_536, 1, 1), device="cuda").to(torch.uint8)
    there = ptxrt.from_dlpack(x).broadcast_to((65_540, 65_536, 1, 1))
    plan = plan_for(there, 1, 1)
    assert key_of(plan.variant) == "baseline"
    y = torch.from_dlpack(plan.run((there, None)))
    assert torch.equal(y.view(65_540, 65_536), x.view(1, 65_536).expand(65_540, 65_536))


@each_variant
@pytest.mark.parametrize(
    "strides",
    [
        (5 << 30, 1 << 30, 300 << 20, 40 << 20),
        (3, 11, (5 << 30) // 4, 2),
        (1 << 20, 5 << 30, 7, 1 << 10),
        (5 << 30, 1, 0, 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["u8", "f32"])
def test_strides_whose_offsets_exceed_2_to_the_32(torch_with: Any, name: str, strides: Any, variant: str) -> None:
    torch = torch_with(60 << 30)
    shape, out = (2, 2, 5, 4), (9, 8)
    count = 1 + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
    assert count > 1 << 32
    base = torch.empty(count, dtype={"u8": torch.uint8, "f32": torch.float32}[name], device="cuda")
    base.view(torch.uint8).random_()
    x = base.as_strided(shape, strides)
    there = ptxrt.from_dlpack(x)
    y = plan_for(there, *out, variant).run((there, None)).to_host()
    same_bits(y, wanted(x.contiguous().cpu().numpy(), *out))


def test_column_strides_above_32_bits(torch_with: Any) -> None:
    torch = torch_with(24 << 30)
    base = torch.empty(3 << 31, dtype=torch.uint8, device="cuda").random_()
    x = base.as_strided((1, 2, 3, 3), (0, 5, 7, (3 << 30) - 64))
    want = wanted(x.contiguous().cpu().numpy(), 4, 6)
    plan = plan_for(ptxrt.from_dlpack(x), 4, 6, "baseline")
    assert key_of(plan.variant) == "baseline"
    same_bits(plan.run((ptxrt.from_dlpack(x), None)).to_host(), want)


# Checks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 3, 0, 5), (2, 3, 4, 0), (1, 1, 0, 0)])
def test_an_image_without_elements_has_nothing_to_read(device: Device, shape: Shape) -> None:
    with refused(ptxrt.ShapeMismatch, OP, "x", "at least 1"):
        upsample_nearest2d(ptxrt.zeros(shape, np.float32, device), 8, 10)


# Plans ----------------------------------------------------------------------------------------------------------------

SHAPE = (2, 3, 4, 5)
STRIDES = (60, 20, 5, 1)


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("shape", "out", "name", "height"),
    [
        ((8, 256, 64, 64), (128, 128), "f32", 2),  # rows of y that are one row of x
        ((8, 256, 64, 64), (128, 128), "f64", 2),
        ((8, 256, 64, 64), (128, 128), "f16", 4),
        ((8, 256, 64, 64), (128, 128), "u8", 8),
        ((4, 64, 135, 240), (405, 720), "bf16", 6),
        ((4, 64, 135, 240), (405, 720), "u32", 3),
        ((1, 64, 16, 16), (512, 512), "u8", 8),
        ((1, 3, 64, 64), (128, 128), "u8", 2),  # small
        ((8, 256, 64, 64), (96, 96), "f32", 2),
        ((8, 256, 64, 64), (96, 127), "f64", 2),
        ((8, 256, 64, 64), (192, 127), "u8", 1),  # few columns to a row, and those not side by side
    ],
)
def test_how_many_rows_a_thread_takes(device: Device, shape: Shape, out: Pair, name: str, height: int) -> None:
    problem = UpsampleNearest2dDescriptor(shape, contiguous(shape), *out, BY_NAME[name])
    (launch,) = UpsampleNearest2dPlan.select(device, problem, wish("banded")).schedule.launches
    place = [p.name for p in launch.kernel.signature.parameters].index("height")
    assert launch.arguments[place] == height


def test_equal_problems_are_equal() -> None:
    one = UpsampleNearest2dDescriptor(SHAPE, STRIDES, 8, 10, BY_NAME["f16"])
    given: Any = (list(SHAPE), list(STRIDES), np.int64(8), 10, np.float16)
    other = UpsampleNearest2dDescriptor(*given)
    assert one == other
    assert hash(one) == hash(other)
    assert UpsampleNearest2dDescriptor(SHAPE, STRIDES, 8, 10).dtype.name == "f32"


@pytest.mark.parametrize("strides", [None, (1, 2, 3), (1, 2, 3, -1), (1, 2, 3, 4.0), "abcd", (1, 2, 3, True)])
def test_a_descriptor_wants_strides(strides: Any) -> None:
    with refused(ptxrt.LayoutError, OP, "strides", "four strides"):
        UpsampleNearest2dDescriptor(SHAPE, strides, 8, 10)


@pytest.mark.parametrize("dtype", [None, np.complex64, np.complex128])
def test_a_descriptor_wants_one_of_the_types(dtype: Any) -> None:
    with refused(ptxrt.DTypeMismatch, OP, "x"):
        UpsampleNearest2dDescriptor(SHAPE, STRIDES, 8, 10, dtype)


def test_the_stride_of_an_axis_of_one_element_says_nothing(device: Device, rng: Rng) -> None:
    x = any_bits(rng, (1, 3, 4, 1), TYPES["u32"])
    there = ptxrt.to_device(x, device)
    odd = ptxrt.DeviceArray.from_pointer(there.ptr, x.shape, x.dtype, device, (1 << 70, 4, 1, 1 << 70), there)
    for variant in variants(UpsampleNearest2dPlan, device):
        same_bits(run(odd, 8, 4, variant), wanted(x, 8, 4))
    assert plan_for(there, 8, 4).run((odd, None)).shape == (1, 3, 8, 4)


@pytest.mark.ptx
def test_few_elements_take_the_short_kernel(device: Device) -> None:
    for shape, out, short in (((2, 64, 16, 16), (32, 32), True), ((2, 64, 16, 16), (33, 32), False)):
        problem = UpsampleNearest2dDescriptor(shape, contiguous(shape), *out)
        plan = UpsampleNearest2dPlan.select(device, problem, ptxrt.PlanPreference(language="ptx"))
        assert (plan.variant.name == "short") == short
    for shape, strides, out, reason in (
        ((2, 2, 4, 4), (100, 16, 4, 1), (8, 8), "at one stride"),
        ((2, 2, 4, 4), (1 << 29, 1 << 28, 1 << 28, 1), (8, 8), "x_bytes"),
        ((2, 1, 1, 1), (0, 0, 0, 0), (1 << 15, 1 << 16), "elements"),
        ((1, 1, 1, 1), (0, 0, 0, 0), (1, 1 << 18), "by_row"),
        ((1, 1, 1, 1), (0, 0, 0, 0), (1, 1 << 17), "no factors"),
        ((1, 1, 1, 1), (0, 0, 0, 0), (1 << 5, (1 << 18) - 4), "by_row"),
    ):
        problem = UpsampleNearest2dDescriptor(shape, strides, *out)
        with refused(ptxrt.Unsupported, OP, "descriptor", reason):
            UpsampleNearest2dPlan.select(device, problem, wish("short"))


@pytest.mark.ptx
def test_threads_of_the_short_kernel(device: Device) -> None:
    """One element each where that makes no more than a few threads of a multiprocessor; blocks for many of these."""
    for shape, out, each, grid, block in (
        ((1, 32, 8, 8), (16, 16), 1, (4, 32), 64),
        ((2, 64, 8, 8), (16, 16), 1, (1, 128), 256),
        ((2, 64, 16, 16), (32, 32), 4, (1, 128), 256),
        ((1, 32, 16, 16), (32, 64), 4, (4, 32), 128),
        ((2, 64, 16, 16), (30, 30), 1, (4, 128), 256),
        ((1, 1, 3, 3), (6, 6), 1, (1, 1), 64),
    ):
        plan = UpsampleNearest2dPlan.select(device, UpsampleNearest2dDescriptor(shape, contiguous(shape), *out))
        (launch,) = plan.schedule.launches
        assert (plan.config, launch.grid[:2], launch.block) == (ShortConfig(each), grid, block), (shape, out)
    for each, out_w in ((2, 8), (4, 6)):
        problem = UpsampleNearest2dDescriptor((1, 1, 4, 4), (16, 16, 4, 1), 8, out_w)
        with refused(ptxrt.Unsupported, OP, "descriptor", f"threads of {each}"):
            preference = ptxrt.PlanPreference(variant="short", language="ptx", config=ShortConfig(each))
            UpsampleNearest2dPlan.select(device, problem, preference)


@pytest.mark.ptx
@pytest.mark.sanitize
@types
def test_four_neighbours_a_thread(device: Device, rng: Rng, dtype: Any) -> None:
    """More threads than a block has and fewer, steps of any kind, and places that vectors are not for."""
    preference = ptxrt.PlanPreference(variant="short", language="ptx", config=ShortConfig(4))
    for shape, out in (((2, 3, 5, 7), (9, 20)), ((1, 2, 30, 11), (44, 28)), ((3, 1, 9, 8), (2, 4))):
        x = any_bits(rng, shape, dtype)
        turned = ptxrt.to_device(np.ascontiguousarray(x.transpose(0, 1, 3, 2)), device).transpose(0, 1, 3, 2)
        for there, offset in ((ptxrt.to_device(x, device), 0), (on_device(x, device, 1), 1), (turned, 2)):
            problem = UpsampleNearest2dDescriptor(shape, there.strides, *out, dtype)
            y = Guarded((*shape[:2], *out), dtype, device, offset)
            UpsampleNearest2dPlan.select(device, problem, preference).run(UpsampleNearest2dArgs(there, y.array))
            same_bits(y.host(), wanted(x, *out), (shape, out, offset))


@pytest.mark.ptx
@pytest.mark.parametrize("axis", [0, 1])
def test_the_short_kernel_has_every_place_that_the_product_has(device: Device, axis: int) -> None:
    """Lengths up to 48, where factors are found; 30 to 44 among others, at 22 of which integers differ."""
    refusals = 0
    for length in range(1, 49, 3 if device.kind == "sim" else 1):
        for count in (1, 2, 7, 16, 30, 31, 44, 48):
            x = np.arange(length, dtype=np.uint8).reshape((1, 1, length, 1) if axis == 0 else (1, 1, 1, length))
            out = (count, 1) if axis == 0 else (1, count)
            plan = plan_for(ptxrt.to_device(x, device), *out, "short")
            refusals += plan.variant.name != "short"
            same_bits(plan.run((ptxrt.to_device(x, device), None)).to_host(), wanted(x, *out), (length, count))
    assert refusals <= 3


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("shape", "strides", "out", "reason"),
    [
        ((1, 1, 1, 5), (0, 0, 0, 1 << 30), (1, 5), "row_span"),
        ((1, 1, 1 << 32, 1), (0, 0, 0, 0), (1, 1), "in_h"),
        ((1, 1, 1, 1 << 32), (0, 0, 0, 0), (1, 1), "in_w"),
        ((1, 1, 1, 1), (0, 0, 0, 0), (1 << 32, 1), "out_h"),
        ((1, 1, 1, 1), (0, 0, 0, 0), (1, 1 << 32), "out_w"),
        ((1 << 16, 1 << 16, 1, 1), (0, 0, 0, 0), (1, 1), "threads"),
    ],
)
def test_what_does_not_fit_the_banded_kernel_goes_to_the_baseline(
    device: Device, shape: Shape, strides: Any, out: Pair, reason: str
) -> None:
    problem = UpsampleNearest2dDescriptor(shape, strides, *out, BY_NAME["f16"])
    assert key_of(UpsampleNearest2dPlan.select(device, problem).variant) in ("short", "narrow", "baseline")
    with refused(ptxrt.Unsupported, OP, "descriptor", reason, "u32"):
        UpsampleNearest2dPlan.select(device, problem, wish("banded"))


def test_what_fits_no_kernel_has_its_reasons(device: Device) -> None:
    problem = UpsampleNearest2dDescriptor((2, 1, 1, 1), (1 << 62, 0, 0, 0), 1, 1)
    with refused(ptxrt.Unsupported, OP, "descriptor", "baseline: ", "banded: ", "64-bit offsets"):
        UpsampleNearest2dPlan.select(device, problem)


@pytest.mark.ptx
def test_what_needs_more_blocks_than_ptx_has_is_left_to_hip(device: Device) -> None:
    problem = UpsampleNearest2dDescriptor((1, 1, 1, 1), (0, 0, 0, 0), 1 << 20, 1 << 20)
    with refused(ptxrt.Unsupported, OP, "descriptor", "baseline: ", "banded: ", "grid.x"):
        UpsampleNearest2dPlan.select(device, problem, wish(language="ptx"))
    assert key_of(UpsampleNearest2dPlan.select(device, problem).variant) == "hip/baseline"


def load_baseline(variant: Any, dtype: Any, device: Device) -> Any:
    """Return the entry that others launch, as a kernel by itself."""
    name = BY_NUMPY[dtype].name
    signature = f"u64 w_out, u64 h_out, f64 w_scale, f64 h_scale, const u64* info, const {name}* src, {name}* dst"
    language = variant.rpartition("/")[0] or "ptx"
    return ptxrt.load(read_kernel(OP, language=language, dtype=name), f"{OP}_{name}", signature, device)


@types
@pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])
def test_the_baseline_has_the_abi_that_others_launch(device: Device, rng: Rng, dtype: Any, variant: str) -> None:
    kernel = load_baseline(variant, dtype, device)
    x = any_bits(rng, (2, 3, 4, 5), dtype)
    y = Guarded((2, 3, 7, 9), dtype, device)
    info = ptxrt.to_device(np.array([*SHAPE, *STRIDES], np.uint64), device)
    kernel.launch(2, 256, 7, 9, 4 / 7, 5 / 9, info, ptxrt.to_device(x, device), y.array)
    same_bits(y.host(), wanted(x, 7, 9))


@pytest.mark.parametrize("variant", ["baseline", "hip/baseline"])
def test_what_a_scale_takes_outside_is_the_last_row_and_column(device: Device, rng: Rng, variant: str) -> None:
    x = any_bits(rng, SHAPE, TYPES["u32"])
    y = Guarded((2, 3, 7, 9), x.dtype, device)
    info = ptxrt.to_device(np.array([*SHAPE, *STRIDES], np.uint64), device)
    load_baseline(variant, x.dtype, device).launch(2, 256, 7, 9, 1.0, 3.5, info, ptxrt.to_device(x, device), y.array)
    rows, columns = np.array([0, 1, 2, 3, 3, 3, 3]), np.array([0, 3, 4, 4, 4, 4, 4, 4, 4])
    same_bits(y.host(), x[:, :, rows[:, None], columns])
