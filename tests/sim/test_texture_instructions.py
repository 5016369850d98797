"""Textures in the PTX machine: forms of the instructions, and what is at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import texels
from texels import run, tex

import ptxrt
from ptxrt import sim as machine
from ptxrt.errors import SimFault

Array = np.ndarray[Any, Any]


@pytest.fixture
def image(sim: ptxrt.Device) -> ptxrt.Texture:
    return ptxrt.Texture(np.arange(12, dtype=np.float32).reshape(3, 4), sim)


def at_line_of(
    body: str, bound: ptxrt.Texture | ptxrt.Surface, places: Any = ((0.5, 0.5),), coordinate: str = "f32"
) -> Any:
    """Run a body that is at fault, and return the fault, whose line is the first of the body."""
    with pytest.raises(SimFault) as caught:
        run(bound, body, places, coordinate)
    assert caught.value.text == body.partition("\n")[0]
    return caught.value


# What else there is --------------------------------------------------------------------------------------------------


def test_the_predicate_says_that_the_texels_are_there(image: ptxrt.Texture) -> None:
    body = "tex.2d.v4.f32.f32 {r0, r1, r2, r3}|q, [t, {a, b}]; selp.u32 r1, 7, 8, q;"
    assert run(image, body, [(2.5, 1.5)])[0, :2].tolist() == [np.float32(6).view(np.uint32), 7]


@pytest.mark.parametrize("packed", [False, True])
def test_results_in_half_precision(sim: ptxrt.Device, packed: bool) -> None:
    texture = ptxrt.Texture(np.array([[0.1, 2, 70000, -3]], np.float32), sim, channels=4)
    body = "tex.1d.v4.f16.f32 {h0, h1, h2, h3}, [t, a]; mov.b32 r0, {h0, h1}; mov.b32 r1, {h2, h3};"
    if packed:
        body = "tex.1d.v2.f16x2.f32 {r0, r1}, [t, {a}];"
    found = run(texture, body, [[0.5]])[0, :2].view(np.float16)
    np.testing.assert_array_equal(found, np.array([0.1, 2, np.inf, -3], np.float16))


def test_an_offset_is_added_in_texels(image: ptxrt.Texture) -> None:
    body = "mov.u32 r4, 1; mov.u32 r5, -1; tex.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}], {r4, r5};"
    assert run(image, body, [(0.5, 2.5), (3.5, 0.5)]).view(np.float32)[:, 0].tolist() == [5, 3]


def test_coordinates_that_are_no_places(image: ptxrt.Texture) -> None:
    found = run(image, tex("2d"), [(np.nan, 0.5), (np.inf, 0.5), (-np.inf, 2.5), (3e38, 2.5)]).view(np.float32)
    assert found[:, 0].tolist() == [0, 3, 8, 11]


def test_an_infinite_texel_of_no_weight(sim: ptxrt.Device) -> None:
    texture = ptxrt.Texture(np.array([1, np.inf, np.nan], np.float32), sim, filter="linear")
    assert run(texture, tex("1d"), [[0.5], [1.5]]).view(np.float32)[:, 0].tolist() == [1, np.inf]


def test_each_lane_has_a_texture_of_its_own(sim: ptxrt.Device) -> None:
    first, second = (ptxrt.Texture(np.full((2, 2), n, np.float32), sim) for n in (3, 4))
    body = (
        "ld.global.u64 t, [o]; setp.eq.u32 q, layer, 1; mov.u32 r0, 9;\n"
        "@!q tex.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}];"
    )
    handles = np.array([[first.handle], [second.handle], [0], [first.handle]], np.uint64).view(np.uint32)
    values = np.concatenate([handles, handles], axis=1)
    found = run(first, body, [(0.5, 0.5)] * 4, layers=[0, 0, 1, 0], values=values)[:, 0]
    assert [*found[[0, 1, 3]].view(np.float32), found[2]] == [3, 4, 3, 9]


SIZES = ("width", "height", "depth", "array_size")


@pytest.mark.parametrize(
    ("array", "how", "asked", "wanted"),
    [
        (np.zeros((3, 4), np.float32), {}, SIZES, (4, 3, 0, 0)),
        (np.zeros((2, 3, 4), np.float32), {}, SIZES, (4, 3, 2, 0)),
        (np.zeros((2, 4), np.float32), {"layered": True}, SIZES, (4, 0, 0, 2)),
        (
            np.zeros(4, np.float32),
            {"normalized_coords": True},
            ("normalized_coords", "num_mipmap_levels"),
            (1, 1),
        ),
    ],
)
def test_queries(sim: ptxrt.Device, array: Array, how: Any, asked: Any, wanted: Any) -> None:
    body = " ".join(f"txq.{name}.b32 r{n}, [t];" for n, name in enumerate(asked))
    assert tuple(run(ptxrt.Texture(array, sim, **how), body, [[0.0]])[0, : len(wanted)]) == wanted


def test_a_query_of_a_level(image: ptxrt.Texture) -> None:
    assert run(image, "mov.u32 r4, 0; txq.level.height.b32 r0, [t], r4;", [[0.0]])[0, 0] == 3


# Faults -----------------------------------------------------------------------------------------------------------


def test_no_handle(image: ptxrt.Texture) -> None:
    assert "0x5, no handle of a texture" in str(at_line_of(f"mov.u64 t, 5; {tex('2d')}", image))


def test_a_handle_that_was_freed(image: ptxrt.Texture, sim: ptxrt.Device) -> None:
    gone = ptxrt.Texture(np.zeros(4, np.float32), sim)
    body = f"mov.u64 t, {gone.handle}; {tex('2d')}"
    gone.free()
    assert "that was freed" in str(at_line_of(body, image))


def test_a_surface_is_no_texture(image: ptxrt.Texture, sim: ptxrt.Device) -> None:
    with ptxrt.Surface(np.zeros((2, 2), np.float32), sim) as surface:
        fault = at_line_of(f"mov.u64 t, {surface.handle}; {tex('2d')}", image)
    assert "which is a surface of 2 x 2 texels" in str(fault)


def test_a_texture_is_no_surface(image: ptxrt.Texture) -> None:
    assert "which is a texture of" in str(at_line_of("suld.b.1d.b32.zero r0, [t, r0];", image))


@pytest.mark.parametrize("geometry", ["1d", "3d", "a1d", "a2d"])
def test_a_texture_of_other_axes(image: ptxrt.Texture, geometry: str) -> None:
    assert "which is .2d" in str(at_line_of(tex(geometry), image))


def test_floats_are_no_integers(image: ptxrt.Texture, sim: ptxrt.Device) -> None:
    assert "which gives floats" in str(at_line_of(tex("2d", "u32"), image))
    bytes_ = np.zeros((2, 2), np.uint8)
    with ptxrt.Texture(bytes_, sim) as texture:
        assert "which gives integers" in str(at_line_of(tex("2d"), texture))
    with ptxrt.Texture(bytes_, sim, normalized_float=True) as texture:
        run(texture, tex("2d"), [(0.5, 0.5)])


def test_memory_at_float_coordinates(sim: ptxrt.Device) -> None:
    texture = ptxrt.Texture.from_memory(ptxrt.zeros(4, device=sim))
    assert "tex1Dfetch alone" in str(at_line_of(tex("1d"), texture))


def test_an_array_of_one_axis_at_whole_coordinates(sim: ptxrt.Device, image: ptxrt.Texture) -> None:
    with ptxrt.Texture(np.zeros(4, np.float32), sim) as texture:
        assert "Texture.from_memory" in str(at_line_of(tex("1d", "f32", "s32"), texture, [[0]], "s32"))
    found = run(image, tex("2d", "f32", "s32"), [(2, 1), (4, 1)], "s32").view(np.float32)
    assert found[:, 0].tolist() == [6, 0]


def test_memory_that_nobody_has_written(sim: ptxrt.Device) -> None:
    array = ptxrt.empty(4, device=sim)
    array[:2] = 1
    texture = ptxrt.Texture.from_memory(array)
    run(texture, tex("1d", "f32", "s32"), [[0], [1], [-1], [4]], "s32")
    fault = at_line_of(tex("1d", "f32", "s32"), texture, [[1], [3], [2]], "s32")
    assert isinstance(fault, ptxrt.MemoryFault)
    assert (fault.address, fault.size, fault.thread) == (array.ptr + 12, 4, (1, 0, 0))


def test_memory_that_was_freed(sim: ptxrt.Device) -> None:
    array = ptxrt.zeros(4, device=sim)
    texture = ptxrt.Texture.from_memory(array)
    handle = texture.handle
    array.free()
    second = ptxrt.Texture.from_memory(ptxrt.zeros(4, device=sim))
    fault = at_line_of(f"mov.u64 t, {handle}; {tex('1d', 'f32', 's32')}", second, [[0]], "s32")
    assert isinstance(fault, ptxrt.MemoryFault)


def test_a_fault_names_the_lane(sim: ptxrt.Device) -> None:
    texture = ptxrt.Texture(np.zeros(4, np.float32), sim)
    body = "setp.ge.u32 q, i, 3;\n@q mov.u64 t, 5;\n" + tex("1d")
    with pytest.raises(SimFault) as caught:
        run(texture, body, [[0.5]] * 5)
    assert caught.value.thread == (3, 0, 0)


# Texts ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "tex.2d.v4.u32.f32 {r0, r1, r2, r3}, [t];",
        "tex.2d.v4.u32.f32 {r0, r1, r2, r3}, [t, {a}];",
        "tex.3d.v4.u32.f32 {r0, r1, r2, r3}, [t, {a, b, c}];",
        "tex.a2d.v4.u32.f32 {r0, r1, r2, r3}, [t, {a, a, b, b}];",
        "tex.2d.v4.u32.u32 {r0, r1, r2, r3}, [t, {r0, r0}];",
        "tex.2d.v4.u32.f32 {r0, r1}, [t, {a, b}];",
        "tex.2d.v2.u32.f32 {r0, r1}, [t, {a, b}];",
        "tex.2d.v4.f16x2.f32 {r0, r1, r2, r3}, [t, {a, b}];",
        "tex.v4.u32.f32 {r0, r1, r2, r3}, [t, {a, b}];",
        "tex.2d.v4.s32.f32 {a, a, a, a}, [t, {a, b}];",
        "tex.2d.v4.u32.f32 {r0, r1, r2, r3}, [r0, {a, b}];",
        "tex.2d.v4.u32.f32 {r0, r1, r2, r3}, [a, {a, b}];",
        "tex.2d.v4.u32.f32 {r0, r1, r2, r3}, [t+8, {a, b}];",
        "tex.2d.v4.u32.f32 {r0, r1, r2, r3}, [t_, {a, b}];",
        "tex.grad.1d.v4.u32.f32 {r0, r1, r2, r3}, [t, a], a, a;",
        "tex.level.2d.v4.u32.f32 {r0, r1, r2, r3}, [t, {a, b}];",
        "tex.level.2d.v4.u32.s32 {r0, r1, r2, r3}, [t, {r0, r1}], a;",
        "tld4.2d.v4.u32.f32 {r0, r1, r2, r3}, [t, {a, b}];",
        "tld4.r.1d.v4.u32.f32 {r0, r1, r2, r3}, [t, a];",
        "tld4.r.2d.v4.u32.s32 {r0, r1, r2, r3}, [t, {r0, r1}];",
        "txq.width.u32 r0, [t];",
        "txq.width.b32 r0, t;",
        "txq.level.width.b32 r0, [t];",
        "ld.global.u32 r0, [t, {a, b}];",
        "mov.u32 {r0, r1}|q, r2;",
    ],
)
def test_what_is_no_text(body: str) -> None:
    with pytest.raises(ptxrt.CompileError):
        machine.parse(texels.text(body))
    with pytest.raises(ptxrt.CompileError):
        assembled(body)


def assembled(body: str) -> None:
    """Ask nvJitLink, as the tests of features do."""
    assemble(texels.text(body))


def assemble(text: str) -> None:
    nvjitlink = pytest.importorskip("ptxrt.compilers.nvjitlink")
    if (reason := nvjitlink.available()) is not None:
        pytest.skip(f"no nvJitLink: {reason}")
    nvjitlink.compile_ptx(text, "sm_90")


@pytest.mark.parametrize(
    "body",
    [
        "tex.cube.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b, c, c}];",
        "tex.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, t, {a, b}];",
        "tex.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}], c;",
        "txq.channel_order.b32 r0, [t];",
    ],
)
def test_what_the_machine_does_not_run(body: str) -> None:
    assembled(body)
    with pytest.raises(ptxrt.Unsupported, match="the sim does not run"):
        machine.parse(texels.text(body))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("texref", "tex.2d.v4.f32.f32 {r0, r1, r2, r3}, [v, {a, b}];"),
        ("texref", "txq.width.b32 r0, [v];"),
        ("surfref", "suld.b.1d.b32.trap r0, [v, r0];"),
    ],
)
def test_a_texture_in_a_variable(kind: str, body: str) -> None:
    def with_variable(body: str) -> str:
        return texels.text(body).replace(".visible", f".global .{kind} v;\n.visible")

    assemble(with_variable(body))
    with pytest.raises(ptxrt.Unsupported, match=r"the sim does not run .* of a variable"):
        machine.parse(with_variable(body))
    machine.parse(with_variable(tex("2d")))
