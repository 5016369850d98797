"""Textures and surfaces: what kernels read and write through them, and what is refused."""

from __future__ import annotations

import gc
import pickle
from typing import Any

import numpy as np
import pytest
import texels
from helpers import refused
from texels import PLACES, expected, run, tex

import ptxrt

Array = np.ndarray[Any, Any]
DTYPES = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32, np.float16, np.float32)
SHAPES = {"1d": (7,), "2d": (5, 7), "3d": (3, 5, 7), "a1d": (3, 7), "a2d": (3, 5, 7)}


pytestmark = pytest.mark.ptx  # HIP has none


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    if np.dtype(dtype).kind == "f":
        return rng.integers(-2000, 2000, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def kind_of(dtype: Any) -> str:
    return {"f": "f32", "u": "u32", "i": "s32"}[np.dtype(dtype).kind]


def as_read(found: Array, dtype: Any) -> Array:
    return found.view({"f": np.float32, "u": np.uint32, "i": np.int32}[np.dtype(dtype).kind])


def every_place(geometry: str) -> tuple[Array, Array]:
    """Return the places of all texels, x first, and their layers."""
    shape = SHAPES[geometry]
    index = np.indices(shape).reshape(len(shape), -1)
    layered = geometry.startswith("a")
    return index[int(layered) :][::-1].T, index[0] if layered else np.zeros(index.shape[1], int)


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("geometry", SHAPES)
def test_point_filtering_gives_each_texel(
    device: ptxrt.Device, geometry: str, dtype: Any, channels: int, rng: np.random.Generator
) -> None:
    layered = geometry.startswith("a")
    array = drawn(rng, (*SHAPES[geometry], *([channels] if channels > 1 else [])), dtype)
    places, layers = every_place(geometry)
    with ptxrt.Texture(array, device, channels=channels if channels > 1 else None, layered=layered) as texture:
        found = run(texture, tex(geometry, kind_of(dtype)), places + 0.375, layers=layers)
    wanted = array.reshape(-1, channels).astype(as_read(found, dtype).dtype)
    np.testing.assert_array_equal(as_read(found, dtype)[:, :channels], wanted)


@pytest.mark.parametrize("filter", ["point", "linear"])
@pytest.mark.parametrize(
    ("mode", "normalized"),
    [
        *((mode, False) for mode in ("clamp", "border", ("border", "clamp"))),
        *((mode, True) for mode in ("clamp", "border", "wrap", "mirror", ("wrap", "mirror"))),
    ],
)
def test_address_modes_and_filters(
    device: ptxrt.Device, mode: Any, filter: Any, normalized: bool, rng: np.random.Generator
) -> None:
    array = rng.standard_normal((4, 8)).astype(np.float32)
    # Whole numbers of the 256 steps between texels, a half step from where one texel gives way to the next.
    places = (rng.integers(-12 * 256, 20 * 256, (300, 2)) + 0.5) / 256
    if filter == "linear":
        places -= 0.5 / 256
    places = places / [8, 4] if normalized else places
    with ptxrt.Texture(array, device, address_mode=mode, filter=filter, normalized_coords=normalized) as texture:
        found = as_read(run(texture, tex("2d"), places), np.float32)[:, 0]
    wanted = expected(array[..., None], places.astype(np.float32), mode, filter, normalized)[:, 0]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("size", [7, 97])
def test_normalised_coordinates_that_wrap_are_cut(device: ptxrt.Device, size: int, rng: np.random.Generator) -> None:
    array = rng.standard_normal(size).astype(np.float32)
    at = (np.arange(-size, 2 * size) / size).astype(np.float32)
    places = np.concatenate([at, np.nextafter(at, np.float32(9)), np.nextafter(at, np.float32(-9))])[:, None]
    with ptxrt.Texture(array, device, address_mode="wrap", normalized_coords=True) as texture:
        found = as_read(run(texture, tex("1d"), places), np.float32)[:, 0]
    np.testing.assert_array_equal(found, expected(array[:, None], places, "wrap", "point", normalized=True)[:, 0])


@pytest.mark.parametrize("geometry", ["1d", "3d"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_linear_filtering_along_one_and_three_axes(
    device: ptxrt.Device, geometry: str, dtype: Any, rng: np.random.Generator
) -> None:
    array = (rng.standard_normal(SHAPES[geometry]) * 2.0 ** rng.integers(-4, 4, SHAPES[geometry])).astype(dtype)
    axes = len(SHAPES[geometry])
    places = rng.integers(-256, 8 * 256, (500, axes)) / 256
    with ptxrt.Texture(array, device, filter="linear") as texture:
        found = as_read(run(texture, tex(geometry), places), np.float32)[:, 0]
    np.testing.assert_array_equal(found, expected(array[..., None], places, "clamp", "linear")[:, 0])


TINY = 2.0**-23


@pytest.mark.parametrize(
    ("image", "wanted"),
    [
        # Halves away from zero.
        ([1, 1 + TINY], 1 + TINY),
        ([-1, -1 - TINY], -1 - TINY),
        # Texels are cut to 27 bits below the largest.
        ([[1, -1], [2.0**-27, 0]], 2.0**-29),
        ([[1, -1], [2.0**-28, 0]], 0),
        ([[1, -1], [-3 * 2.0**-28, 0]], -(2.0**-29)),
        # Each plane has its own largest texel; the sum of the smaller ones is cut downwards.
        ([[[1, -1]], [[2.0**-28, 0]]], 2.0**-30),
        ([[[1, 1 + TINY]], [[-(2.0**-40), -(2.0**-40)]]], 0.5),
        ([[[-1, -1 - TINY]], [[2.0**-40, 2.0**-40]]], -0.5 - TINY / 2),
    ],
)
def test_how_a_sum_is_rounded(device: ptxrt.Device, image: Any, wanted: float) -> None:
    array = np.array(image, np.float32)
    middle = [n / 2 for n in array.shape[::-1]]
    with ptxrt.Texture(array, device, filter="linear") as texture:
        found = as_read(run(texture, tex(f"{array.ndim}d"), [middle]), np.float32)[0, 0]
    assert found == wanted


def test_a_weight_has_eight_fractional_bits(device: ptxrt.Device) -> None:
    steps = np.arange(256)
    places = 0.5 + np.concatenate([steps + 0.25, steps + 0.5]) / 256
    with ptxrt.Texture(np.array([0, 1], np.float32), device, filter="linear") as texture:
        found = as_read(run(texture, tex("1d"), places[:, None]), np.float32)[:, 0]
    np.testing.assert_array_equal(found, np.concatenate([steps, steps + 1]) / 256)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
@pytest.mark.parametrize("filter", ["point", "linear"])
def test_integers_as_normalised_floats(device: ptxrt.Device, dtype: Any, filter: Any, rng: np.random.Generator) -> None:
    array = drawn(rng, (64,), dtype)
    array[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    places = np.concatenate([np.arange(64) + 0.5, rng.integers(0, 64 * 256, 400) / 256])[:, None]
    with ptxrt.Texture(array, device, normalized_float=True, filter=filter) as texture:
        found = as_read(run(texture, tex("1d"), places), np.float32)[:, 0]
    wanted = expected(array[:, None], places, "clamp", filter)[:, 0]
    np.testing.assert_array_equal(found, wanted.astype(np.float32))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_channels_that_there_are_not_are_zero(device: ptxrt.Device, dtype: Any, channels: int) -> None:
    with ptxrt.Texture(np.full((4, channels), 5, dtype), device, channels=channels) as texture:
        found = as_read(run(texture, tex("1d", kind_of(dtype)), [[0.5]], values=9), dtype)
    assert found[0].tolist() == [5] * channels + [0] * (4 - channels)


@pytest.mark.parametrize("channels", [None, 4])
def test_a_border_of_another_colour(device: ptxrt.Device, channels: int | None) -> None:
    array = np.ones((2, 2) if channels is None else (2, 2, 4), np.float32)
    border = 0.5 if channels is None else (0.25, 0.5, 0.75, 2.0)
    with ptxrt.Texture(array, device, channels=channels, address_mode="border", border=border) as texture:
        found = as_read(run(texture, tex("2d"), [(-0.5, 0.5), (0.5, 0.5), (0.5, 2.5)]), np.float32)
    outside = np.atleast_1d(np.array(border, np.float32))
    np.testing.assert_array_equal(found[:, : outside.size], [outside, np.ones(outside.size), outside])


def test_a_border_of_integers_is_zero(device: ptxrt.Device) -> None:
    with ptxrt.Texture(np.ones((2, 2), np.uint8), device, address_mode="border") as texture:
        found = run(texture, tex("2d", "u32"), [(-0.5, 0.5), (0.5, 0.5)])
    np.testing.assert_array_equal(found[:, 0], [0, 1])


def test_layers_outside_are_the_nearest(device: ptxrt.Device) -> None:
    with ptxrt.Texture(np.arange(6, dtype=np.float32).reshape(3, 2), device, layered=True) as texture:
        found = as_read(run(texture, tex("a1d"), [[0.5]] * 3, layers=[0, 2, 9]), np.float32)
    np.testing.assert_array_equal(found[:, 0], [0, 4, 4])


def test_a_gather_goes_around_the_place(device: ptxrt.Device) -> None:
    array = np.arange(2 * 24, dtype=np.float32).reshape(4, 6, 2)
    with ptxrt.Texture(array, device, channels=2) as texture:
        body = "tld4.g.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}];"
        half_a_step = 1 / 512
        places = [(2.25, 1.75), (0.0, 0.0), (2.5 - half_a_step, 1.75), (2.5 - 1.5 * half_a_step, 1.75)]
        found = as_read(run(texture, body, places), np.float32)
    second = array[..., 1]
    np.testing.assert_array_equal(found[0], [second[2, 1], second[2, 2], second[1, 2], second[1, 1]])
    np.testing.assert_array_equal(found[1], [second[0, 0]] * 4)
    np.testing.assert_array_equal(found[2], [second[2, 2], second[2, 3], second[1, 3], second[1, 2]])
    np.testing.assert_array_equal(found[3], found[0])


@pytest.mark.parametrize(
    "read",
    [
        "tex.level.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}], 0f00000000;",
        "tex.grad.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}], {a, b}, {b, a};",
        "tex.base.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}];",
        "mov.u32 r4, 0; tex.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}], {r4, r4};",
    ],
)
def test_other_forms_of_a_read_give_the_same(device: ptxrt.Device, read: str) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with ptxrt.Texture(array, device) as texture:
        np.testing.assert_array_equal(run(texture, read, [(1.5, 2.5)]), run(texture, tex("2d"), [(1.5, 2.5)]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_memory_is_read_by_number(device: ptxrt.Device, dtype: Any, rng: np.random.Generator) -> None:
    array = drawn(rng, (50, 2), dtype)
    memory = ptxrt.to_device(array, device)
    texture = ptxrt.Texture.from_memory(memory, channels=2)
    places = np.arange(-2, 52)[:, None]
    found = as_read(run(texture, tex("1d", kind_of(dtype), "s32"), places, "s32"), dtype)[:, :2]
    np.testing.assert_array_equal(found[2:-2], array)
    np.testing.assert_array_equal(found[[0, 1, -2, -1]], 0)


def test_memory_is_read_as_it_is_now(device: ptxrt.Device) -> None:
    memory = ptxrt.to_device(np.arange(4, dtype=np.float32), device)
    texture = ptxrt.Texture.from_memory(memory)
    memory.fill(7)
    found = as_read(run(texture, tex("1d", "f32", "s32"), [[2]], "s32"), np.float32)
    assert found[0, 0] == 7


def test_a_copy_is_read_as_it_was(device: ptxrt.Device) -> None:
    source = ptxrt.to_device(np.arange(4, dtype=np.float32), device)
    with ptxrt.Texture(source) as texture:
        source.fill(7)
        assert as_read(run(texture, tex("1d"), [[2.5]]), np.float32)[0, 0] == 2


CPP = """
extern "C" __global__ void mixed(
    cudaTextureObject_t image, cudaTextureObject_t memory, cudaSurfaceObject_t surface, float* y) {
    int x = threadIdx.x;
    float4 v = tex2D<float4>(image, x + 0.5f, 1.5f);
    y[x] = v.y + tex1Dfetch<int>(memory, x);
    float2 w = surf2Dread<float2>(surface, 8 * x, 0);
    surf2Dwrite(make_float2(w.y, y[x]), surface, 8 * x, 1, cudaBoundaryModeZero);
}"""


def test_a_kernel_in_cpp_takes_them_by_its_own_declaration(device: ptxrt.Device) -> None:
    kernel = ptxrt.load(ptxrt.KernelSource.cuda(CPP), "mixed", device=device)
    image = np.arange(2 * 4 * 4, dtype=np.float32).reshape(2, 4, 4)
    numbers = np.array([100, 200, 300, 400], np.int32)
    pairs = np.arange(16, dtype=np.float32).reshape(2, 4, 2)
    y = ptxrt.empty(4, device=device)
    memory = ptxrt.to_device(numbers, device)
    with (
        ptxrt.Texture(image, device, channels=4) as first,
        ptxrt.Texture.from_memory(memory) as second,
        ptxrt.Surface(pairs, device, channels=2) as surface,
    ):
        kernel[1, 4](first, second, surface, y)
        after = surface.to_host()
    wanted = image[1, :, 1] + numbers
    np.testing.assert_array_equal(y.to_host(), wanted)
    np.testing.assert_array_equal(after[0], pairs[0])
    np.testing.assert_array_equal(after[1], np.stack([pairs[0, :, 1], wanted], axis=1))


# Surfaces ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
@pytest.mark.parametrize("geometry", SHAPES)
def test_a_surface_is_written_texel_by_texel(
    device: ptxrt.Device, geometry: str, dtype: Any, rng: np.random.Generator
) -> None:
    before, after = (drawn(rng, SHAPES[geometry], dtype) for _ in range(2))
    places, layers = every_place(geometry)
    places = places * [after.itemsize, 1, 1][: places.shape[1]]
    bits = 8 * after.itemsize
    values = after.reshape(-1, 1).view(f"u{after.itemsize}").astype(np.uint32)
    place = PLACES[geometry]
    load, store = (f"{name}.b.{geometry}.b{bits}.trap" for name in ("suld", "sust"))
    body = f"{load} r4, [t, {place}]; {store} [t, {place}], r0; mov.b32 r0, r4;"
    with ptxrt.Surface(before, device, layered=geometry.startswith("a")) as surface:
        found = run(surface, body, places, "s32", layers, np.repeat(values, 4, axis=1))
        np.testing.assert_array_equal(surface.to_host(), after)
    # Several threads are at the last place.
    wanted = before.reshape(-1).view(f"u{before.itemsize}")
    np.testing.assert_array_equal(found[:-1, 0], wanted[:-1])


def test_a_texture_of_a_surface_reads_what_was_written(device: ptxrt.Device) -> None:
    surface = ptxrt.Surface(np.zeros((2, 4), np.float32), device)
    texture = ptxrt.Texture(surface, filter="linear")
    run(surface, "sust.b.2d.b32.trap [t, {a, b}], r0;", [(4, 1)], "s32", values=np.float32(3).view(np.uint32))
    assert surface.to_host().tolist() == [[0, 0, 0, 0], [0, 3, 0, 0]]
    surface.free()
    found = as_read(run(texture, tex("2d"), [(1.5, 1.5), (2.0, 1.5)]), np.float32)
    assert found[:, 0].tolist() == [3, 1.5]


@pytest.mark.parametrize(("outside", "wanted"), [("clamp", [0, 3, 8, 11]), ("zero", [0, 0, 0, 0])])
def test_a_surface_outside(device: ptxrt.Device, outside: str, wanted: list[int]) -> None:
    array = np.arange(12, dtype=np.uint32).reshape(3, 4)
    with ptxrt.Surface(array, device) as surface:
        body = f"suld.b.2d.b32.{outside} r0, [t, {{a, b}}];"
        found = run(surface, body, [(-4, 0), (16, 0), (0, 3), (16, 7)], "s32", values=99)
        assert found[:, 0].tolist() == wanted
        run(surface, "sust.b.2d.b32.zero [t, {a, b}], r0;", [(-4, 0), (16, 0), (0, 3)], "s32", values=99)
        np.testing.assert_array_equal(surface.to_host(), array)


def test_a_surface_is_copied_to_and_from(device: ptxrt.Device) -> None:
    first, second = np.arange(30, dtype=np.int8).reshape(2, 5, 3), np.ones((2, 5, 3), np.int8)
    with ptxrt.Surface(first, device) as surface:
        array = surface.to_array()
        np.testing.assert_array_equal(array.to_host(), first)
        surface.copy_from(second)
        np.testing.assert_array_equal(surface.numpy(), second)
        surface.copy_from(array)
        np.testing.assert_array_equal(surface.to_host(), first)
        with refused(ptxrt.ShapeMismatch, "Surface.copy_from", "array"):
            surface.copy_from(np.ones((2, 5), np.int8))
        with refused(ptxrt.DTypeMismatch, "Surface.copy_from", "array"):
            surface.copy_from(np.ones((2, 5, 3), np.uint8))


# What is refused -------------------------------------------------------------------------------------------------


FLAT = np.zeros((2, 4), np.float32)


@pytest.mark.parametrize("kind", [ptxrt.Texture, ptxrt.Surface])
@pytest.mark.parametrize(
    ("array", "how", "error", "argument"),
    [
        (np.zeros(4, np.float64), {}, ptxrt.DTypeMismatch, "array"),
        (np.zeros(4, np.bool_), {}, ptxrt.DTypeMismatch, "array"),
        (np.zeros((), np.float32), {}, ptxrt.ShapeMismatch, "array"),
        (np.zeros((2, 0), np.float32), {}, ptxrt.ShapeMismatch, "array"),
        (np.zeros((2, 2, 2, 2), np.float32), {}, ptxrt.ShapeMismatch, "array"),
        (np.zeros(4, np.float32), {"layered": True}, ptxrt.ShapeMismatch, "array"),
        (np.zeros((2, 3), np.float32), {"channels": 2}, ptxrt.ShapeMismatch, "array"),
        (np.zeros((2, 3), np.float32), {"channels": 3}, ptxrt.InvalidArgument, "channels"),
        (np.zeros((2, 3), np.float32), {"layered": 1}, ptxrt.InvalidArgument, "layered"),
    ],
)
def test_an_array_that_is_no_image(
    device: ptxrt.Device, kind: Any, array: Array, how: Any, error: Any, argument: str
) -> None:
    with refused(error, kind.__name__, argument):
        kind(array, device, **how)


@pytest.mark.parametrize(
    ("array", "how", "argument"),
    [
        (FLAT, {"filter": "cubic"}, "filter"),
        (FLAT.astype(np.int32), {"filter": "linear"}, "filter"),
        (FLAT, {"address_mode": "repeat"}, "address_mode"),
        (FLAT, {"address_mode": ("clamp",)}, "address_mode"),
        (FLAT, {"address_mode": ("clamp", "clamp", "x")}, "address_mode"),
        (FLAT, {"address_mode": 3}, "address_mode"),
        (FLAT, {"address_mode": "wrap"}, "address_mode"),
        (FLAT, {"address_mode": ("clamp", "mirror")}, "address_mode"),
        (FLAT, {"normalized_coords": 1}, "normalized_coords"),
        (FLAT.astype(np.uint8), {"normalized_float": 1}, "normalized_float"),
        (FLAT, {"normalized_float": True}, "normalized_float"),
        (FLAT.astype(np.int32), {"normalized_float": True}, "normalized_float"),
        (FLAT, {"border": 1.0}, "border"),
        (FLAT, {"border": (1.0, 2.0), "address_mode": "border"}, "border"),
        (FLAT, {"border": "red", "address_mode": "border"}, "border"),
        (FLAT.astype(np.int32), {"border": 1.0, "address_mode": "border"}, "border"),
    ],
)
def test_a_way_to_read_that_there_is_not(device: ptxrt.Device, array: Array, how: Any, argument: str) -> None:
    with refused(ptxrt.InvalidArgument, "Texture", argument):
        ptxrt.Texture(array, device, **how)


def test_an_array_with_gaps(device: ptxrt.Device) -> None:
    array = ptxrt.to_device(FLAT, device)
    for kind in (ptxrt.Texture, ptxrt.Surface):
        with refused(ptxrt.LayoutError, kind.__name__, "array"):
            kind(array.T)


def test_a_freed_array(device: ptxrt.Device) -> None:
    array = ptxrt.to_device(FLAT, device)
    array.free()
    with refused(ptxrt.InvalidArgument, "Texture", "array"):
        ptxrt.Texture(array)


def test_an_array_of_another_device(device: ptxrt.Device, other_device: ptxrt.Device) -> None:
    with refused(ptxrt.DeviceMismatch, "Texture", "array"):
        ptxrt.Texture(ptxrt.to_device(FLAT, other_device), device)


def test_a_surface_has_its_own_format(device: ptxrt.Device) -> None:
    with ptxrt.Surface(FLAT, device) as surface, refused(ptxrt.InvalidArgument, "Texture", "array"):
        ptxrt.Texture(surface, layered=True)
    with refused(ptxrt.InvalidArgument, "Texture", "array"):
        ptxrt.Texture(surface)


def test_memory_that_no_texture_can_read(device: ptxrt.Device) -> None:
    op, array = "Texture.from_memory", ptxrt.to_device(np.zeros((4, 256), np.float32), device)
    with refused(ptxrt.InvalidArgument, op, "array"):
        ptxrt.Texture.from_memory(np.zeros(4, np.float32))  # type: ignore[arg-type]
    with refused(ptxrt.ShapeMismatch, op, "array"):
        ptxrt.Texture.from_memory(array)
    with refused(ptxrt.LayoutError, op, "array"):
        ptxrt.Texture.from_memory(array.T[0])
    with refused(ptxrt.LayoutError, op, "array", "multiple of 512"):
        ptxrt.Texture.from_memory(array.view(-1)[1:])


# Handles and launches --------------------------------------------------------------------------------------------


def test_a_block_frees_its_texture(device: ptxrt.Device) -> None:
    with ptxrt.Texture(FLAT, device) as texture:
        assert texture.alive
        assert texture.handle > 0
    assert not texture.alive
    texture.free()
    with refused(ptxrt.InvalidArgument, "handle", "Texture"):
        assert texture.handle
    assert "freed" in repr(texture)


def test_memory_goes_with_the_last_that_is_bound_to_it(sim: ptxrt.Device) -> None:
    memory = sim.backend._memory(sim.ordinal)  # type: ignore[attr-defined]
    gc.collect()
    before = memory.bytes_in_use
    surface = ptxrt.Surface(FLAT, sim)
    texture = ptxrt.Texture(surface)
    surface.free()
    assert memory.bytes_in_use > before
    texture.free()
    assert memory.bytes_in_use == before
    texture = ptxrt.Texture.from_memory(ptxrt.empty(64, np.float32, sim))
    gc.collect()
    assert memory.bytes_in_use == before + 256
    del texture
    assert memory.bytes_in_use == before


def test_what_a_launch_refuses(device: ptxrt.Device) -> None:
    texture, surface = ptxrt.Texture(FLAT, device), ptxrt.Surface(FLAT, device)
    places, freed = [(0.5, 0.5)], ptxrt.Texture(FLAT, device)
    freed.free()
    for wrong in (surface, 5, None, FLAT):
        with refused(ptxrt.InvalidArgument, "k", "t", "ptxrt.Texture"):
            launched(texture, wrong)
    with refused(ptxrt.InvalidArgument, "k", "t", "a live texture"):
        launched(texture, freed)
    with refused(ptxrt.InvalidArgument, "k", "t", "ptxrt.Surface"):
        launched(surface, texture)
    assert run(texture, tex("2d"), places)[0, 0] == 0


def launched(bound: Any, given: Any) -> None:
    """Launch a kernel for one kind of handle with an argument of any kind."""
    kind = type(bound).__name__.lower()
    body = tex("2d") if kind == "texture" else "suld.b.2d.b32.zero r0, [t, {r0, r1}];"
    rest = [ptxrt.zeros((128, 4), np.uint32, bound.device) for _ in range(2)]
    texels.kernel(bound.device, body, "f32", kind).launch(1, 128, given, *rest)


def test_a_texture_of_another_device(device: ptxrt.Device, other_device: ptxrt.Device) -> None:
    with (
        ptxrt.Texture(FLAT, device) as texture,
        ptxrt.Texture(FLAT, other_device) as elsewhere,
        refused(ptxrt.DeviceMismatch, "k", "t"),
    ):
        launched(texture, elsewhere)


def test_a_texture_whose_array_was_freed(device: ptxrt.Device) -> None:
    array = ptxrt.zeros(4, device=device)
    texture = ptxrt.Texture.from_memory(array)
    array.free()
    with refused(ptxrt.InvalidArgument, "k", "t", "whose array was"):
        launched(texture, texture)


def test_u64_takes_a_texture_and_a_number(device: ptxrt.Device) -> None:
    text = f"{texels.HEAD}.visible .entry k(.param .u64 t, .param .u64 y)\n{{ .reg .b64 a, b; ld.param.u64 a, [t];\n"
    text += "ld.param.u64 b, [y]; st.global.u64 [b], a; ret; }\n"
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text), "k", "u64 t, u64* y", device)
    y = ptxrt.zeros(1, np.uint64, device)
    with ptxrt.Texture(FLAT, device) as texture:
        for given, wanted in [(texture, texture.handle), (7, 7), (np.uint8(9), 9), (2**64 - 1, 2**64 - 1)]:
            kernel.launch(1, 1, given, y)
            assert y.to_host()[0] == wanted
    with refused(ptxrt.InvalidArgument, "k", "t", "a live texture"):
        kernel.launch(1, 1, texture, y)
    wrongs: tuple[Any, ...] = (-1, 2**64, 1.5, "7")
    for wrong in wrongs:
        with refused(ptxrt.InvalidArgument, "k", "t", "an integer that fits u64"):
            kernel.launch(1, 1, wrong, y)


def test_a_handle_used_on_a_stream_orders_the_end_of_its_memory(device: ptxrt.Device) -> None:
    array = ptxrt.zeros(4, device=device)
    stream = device.create_stream()
    with stream:
        run(ptxrt.Texture.from_memory(array), tex("1d", "f32", "s32"), [[0]], "s32")
    assert stream.handle in array.memory.users


@pytest.mark.parametrize(
    "text",
    ["texture* t", "const texture t", "texture t[4]", "texture t, f32* y[t]", "texture? t", "alignas(8) surface s"],
)
def test_no_signature(text: str) -> None:
    with pytest.raises(ptxrt.InvalidArgument):
        ptxrt.Signature.parse(text)


def test_a_struct_is_not_called_texture() -> None:
    with refused(ptxrt.InvalidArgument, "Signature.parse", "structs"):
        ptxrt.Signature.parse("texture t", {"texture": np.dtype([("a", np.float32)])})


def test_a_signature_with_handles_is_copied_and_read_from_annotations() -> None:
    signature = ptxrt.Signature.parse("texture t, surface s, f32 a")
    assert pickle.loads(pickle.dumps(signature)) == signature
    assert str(signature) == "texture t, surface s, f32 a"

    def of(t: "texture", s: "surface", a: "f32") -> None: ...  # type: ignore[name-defined] # noqa: F821, UP037

    assert ptxrt.Signature.from_function(of) == signature


@pytest.mark.parametrize("parameter", [".param .f64 t", ".param .u32 t"])
def test_a_parameter_that_is_no_handle(device: ptxrt.Device, parameter: str) -> None:
    source = ptxrt.KernelSource.ptx(f"{texels.HEAD}.visible .entry k({parameter})\n{{ ret; }}\n")
    with refused(ptxrt.SignatureMismatch, "load", "k", "texture t: handle, 8 bytes at 0"):
        ptxrt.load(source, "k", "texture t", device)


def test_a_texture_is_not_pickled(device: ptxrt.Device) -> None:
    with ptxrt.Texture(FLAT, device) as texture, refused(ptxrt.InvalidArgument, "pickle", "texture"):
        pickle.dumps(texture)
