"""Surfaces in the PTX machine: forms of the instructions, and what is at fault."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import texels
from test_texture_instructions import assembled, at_line_of
from texels import run

import ptxrt
from ptxrt import sim as machine


@pytest.fixture
def surface(sim: ptxrt.Device) -> ptxrt.Surface:
    return ptxrt.Surface(np.arange(12, dtype=np.uint32).reshape(3, 4), sim)


def test_bytes_of_several_texels_and_of_parts_of_one(surface: ptxrt.Surface) -> None:
    body = "suld.b.2d.v2.b64.trap {d0, d1}, [t, {a, b}]; mov.b64 {r0, r1}, d0; mov.b64 {r2, r3}, d1;"
    assert run(surface, body, [(0, 1)], "s32")[0].tolist() == [4, 5, 6, 7]
    body = "suld.b.2d.v2.b8.trap {h0, h1}, [t, {a, b}]; mov.b32 r0, {h0, h1};"
    assert run(surface, body, [(4, 2)], "s32")[0, 0] == 9
    run(surface, "mov.u32 r4, -1; sust.b.2d.v2.b16.trap [t, {a, b}], {r4, r0};", [(8, 0)], "s32", values=7)
    assert surface.to_host()[0].tolist() == [0, 1, 0x7FFFF, 3]


def test_rows_need_no_whole_number_of_words(sim: ptxrt.Device) -> None:
    with ptxrt.Surface(np.arange(10, dtype=np.uint8).reshape(2, 5), sim) as surface:
        found = run(surface, "suld.b.2d.b16.trap r0, [t, {a, b}];", [(2, 1), (0, 1)], "s32")
        assert found[:, 0].tolist() == [0x0807, 0x0605]
        assert surface.to_host().tolist() == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_clamping_leaves_an_access_whole_and_aligned(sim: ptxrt.Device) -> None:
    with ptxrt.Surface(np.arange(5, dtype=np.uint32), sim) as surface:
        found = run(surface, "suld.b.1d.v2.b32.clamp {r0, r1}, [t, a];", [[16], [-8], [800]], "s32")
        assert found[:, :2].tolist() == [[2, 3], [0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("dtype", "values", "wanted"),
    [
        (np.uint8, [1, 300], [1, 255]),
        (np.int16, [-5 & 0xFFFFFFFF, 40000], [-5, 32767]),
        (np.float16, np.array([0.1, 7], np.float32).view(np.uint32), np.array([0.1, 7], np.float16)),
        (np.float16, np.array([1e6, -1e6], np.float32).view(np.uint32), [65504, -65504]),
        (np.float16, np.array([65519, np.inf], np.float32).view(np.uint32), [65504, np.inf]),
        (np.float16, np.array([np.nan, -np.inf], np.float32).view(np.uint32), [np.nan, -np.inf]),
        (np.float32, np.array([0.1, 7], np.float32).view(np.uint32), np.array([0.1, 7], np.float32)),
    ],
)
def test_a_formatted_store_converts(sim: ptxrt.Device, dtype: Any, values: Any, wanted: Any) -> None:
    with ptxrt.Surface(np.zeros((2, 2), dtype), sim, channels=2) as surface:
        body = "sust.p.1d.v4.b32.trap [t, a], {r0, r1, r0, r1};"
        run(surface, body, [[1]], "s32", values=[*values, 0, 0])
        np.testing.assert_array_equal(surface.to_host(), [[0, 0], wanted])


@pytest.mark.parametrize(
    ("reduction", "dtype", "wanted"),
    [
        ("b.add.2d.u32", np.uint32, 10),
        ("b.min.2d.s32", np.int32, 1),
        ("b.max.2d.u32", np.uint32, 7),
        ("b.and.2d.b32", np.uint32, 0),
        ("b.or.2d.b32", np.uint32, 7),
    ],
)
def test_reductions(sim: ptxrt.Device, reduction: str, dtype: Any, wanted: int) -> None:
    with ptxrt.Surface(np.full((2, 2), 7, dtype), sim) as surface:
        body = f"setp.lt.u32 q, i, 2; @q sured.{reduction}.trap [t, {{a, b}}], r0;"
        run(surface, body, [(4, 1)] * 2, "s32", values=[[1, 0, 0, 0], [2, 0, 0, 0]])
        assert surface.to_host().tolist() == [[7, 7], [7, wanted]]


def test_a_reduction_by_texels_goes_by_the_surfaces_type(sim: ptxrt.Device) -> None:
    for dtype, wanted in ((np.uint32, 5), (np.int32, -1)):
        with ptxrt.Surface(np.full((1, 2), 5, dtype), sim) as surface:
            run(surface, "sured.p.min.2d.b32.trap [t, {a, b}], r0;", [(1, 0)], "s32", values=2**32 - 1)
            assert surface.to_host().tolist() == [[5, wanted]]


def test_queries(surface: ptxrt.Surface, sim: ptxrt.Device) -> None:
    body = "suq.width.b32 r0, [t]; suq.height.b32 r1, [t]; suq.array_size.b32 r2, [t];"
    assert run(surface, body, [[0]])[0, :3].tolist() == [4, 3, 0]
    with ptxrt.Surface(np.zeros((5, 3), np.int8), sim, layered=True) as layered:
        assert run(layered, body, [[0]])[0, :3].tolist() == [3, 0, 5]


# Faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "places", "where"),
    [
        ("suld.b.2d.b32.trap r0, [t, {a, b}];", [(12, 2), (-4, 0)], "at -4, 0 (x in bytes, y)"),
        ("suld.b.2d.b32.trap r0, [t, {a, b}];", [(12, 2), (16, 0)], "at 16, 0 (x in bytes, y)"),
        ("suld.b.2d.b64.trap d0, [t, {a, b}];", [(8, 2), (0, 3)], "at 0, 3 (x in bytes, y)"),
        ("sust.b.2d.b32.trap [t, {a, b}], r0;", [(12, 2), (0, -1)], "at 0, -1 (x in bytes, y)"),
        ("sust.p.2d.b32.trap [t, {a, b}], r0;", [(3, 2), (4, 0)], "at 16, 0 (x in bytes, y)"),
        ("sured.b.add.2d.u32.trap [t, {a, b}], r0;", [(12, 2), (16, 2)], "at 16, 2 (x in bytes, y)"),
        ("suld.b.2d.b32.zero r0, [t, {a, b}];", [(99, 2), (98, 2)], "at x = 99, which is not a multiple of 4"),
    ],
)
def test_places_outside_and_between(surface: ptxrt.Surface, body: str, places: Any, where: str) -> None:
    fault = at_line_of(body, surface, places, "s32")
    assert where in str(fault)
    assert fault.thread == ((0 if "multiple" in where else 1), 0, 0)
    assert surface.to_host().tolist() == np.arange(12).reshape(3, 4).tolist()


def test_a_layer_outside(sim: ptxrt.Device) -> None:
    with ptxrt.Surface(np.zeros((2, 3, 4), np.float32), sim, layered=True) as surface:
        body = "mov.u32 layer, 2;\nsuld.b.a2d.b32.trap r0, [t, {layer, a, b, b}];"
        with pytest.raises(ptxrt.errors.SimFault, match=r"at 8, 1, 2 \(x in bytes, y, layer\)"):
            run(surface, body, [(8, 1)], "s32")


def test_an_access_that_is_wider_than_the_surface(sim: ptxrt.Device) -> None:
    with ptxrt.Surface(np.zeros(2, np.uint8), sim) as surface:
        assert "outside of" in str(at_line_of("suld.b.1d.b32.clamp r0, [t, a];", surface, [[0]], "s32"))


def test_a_reduction_on_texels_that_are_no_integers(sim: ptxrt.Device) -> None:
    with ptxrt.Surface(np.zeros(2, np.float32), sim) as surface:
        fault = at_line_of("sured.p.add.1d.b32.trap [t, a], r0;", surface, [[0]], "s32")
    assert "not integers of 4 bytes" in str(fault)


@pytest.mark.parametrize(
    "body",
    [
        "suld.2d.b32.trap r0, [t, {r0, r0}];",
        "suld.b.2d.b32 r0, [t, {r0, r0}];",
        "suld.b.b32.trap r0, [t, {r0, r0}];",
        "suld.b.2d.u32.trap r0, [t, {r0, r0}];",
        "suld.b.2d.b32.trap r0, [t, {a, b}];",
        "suld.b.1d.v4.b64.trap {d0, d1, d0, d1}, [t, {r0}];",
        "suld.b.1d.v8.b8.trap {h0, h1, h0, h1, h0, h1, h0, h1}, [t, {r0}];",
        "suld.p.1d.v4.b32.trap {r0, r1, r2, r3}, [t, {r0}];",
        "sust.p.1d.v4.f32.trap [t, {r0}], {a, b, c, c};",
        "sust.b.1d.b32.trap [t, {r0}], _;",
        "sust.2d.b32.trap [t, {r0, r0}], r0;",
        "sured.b.xor.1d.b32.trap [t, r0], r0;",
        "sured.b.add.1d.s64.trap [t, r0], d0;",
        "sured.add.1d.u32.trap [t, r0], r0;",
        "sured.b.max.1d.u64.trap [t, r0], d0;",
        "suq.width.u32 r0, [t];",
    ],
)
def test_what_is_no_text(body: str) -> None:
    with pytest.raises(ptxrt.CompileError):
        machine.parse(texels.text(body))
    if "xor" not in body and "s64" not in body:  # at which nvJitLink ends the process
        with pytest.raises(ptxrt.CompileError):
            assembled(body)
