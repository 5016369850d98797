"""Accesses of one floating-point type to arrays that the signature declares with another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import refused
from machine import kernel

import ptxrt
from ptxrt.check.run import check
from ptxrt.dtypes import BY_NAME

HEAD = ".version 8.1\n.target sm_90\n.address_size 64\n"
REGISTERS = """.reg .b64 %x, %y, %o, %l; .reg .b32 %t, %i; .reg .b16 %h; .reg .f32 %f; .reg .f64 %d; .reg .pred %q;
.shared .align 16 .b8 shared[16];
ld.param.u64 %x, [x]; mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 16; add.u64 %x, %x, %o;
"""


def load(code: str, signature: str, *params: str) -> ptxrt.Kernel:
    text = kernel(REGISTERS + code, ", ".join((".param .u64 x", *params)), HEAD)
    return ptxrt.load(ptxrt.KernelSource.ptx(text), "k", signature, "sim:0")


def array(element: str, count: int = 256) -> ptxrt.DeviceArray:
    return ptxrt.to_device(np.zeros(count, BY_NAME[element].numpy), "sim:0")


CONTRADICTIONS = [
    ("ld.global.f64 %d, [%x];", ("f32", "f16", "bf16")),
    ("st.global.f64 [%x], %d;", ("f32", "f16", "bf16")),
    ("ld.f64 %d, [%x];", ("f32",)),
    ("ld.global.nc.f64 %d, [%x];", ("f32",)),
    ("ld.volatile.global.f64 %d, [%x];", ("f32",)),
    ("ld.global.f32 %f, [%x];", ("f64", "f16", "bf16")),
    ("st.global.f32 [%x], %f;", ("f64", "f16", "bf16")),
    ("atom.global.add.f32 %f, [%x], %f;", ("f64", "f16")),
    ("red.global.add.f64 [%x], %d;", ("f32",)),
    ("red.global.add.noftz.f16 [%x], %h;", ("f32", "f64", "bf16")),
    ("red.global.add.noftz.bf16x2 [%x], %i;", ("f32", "f16")),
    ("red.global.add.v2.f32 [%x], {%f, %f};", ("f64",)),
    ("atom.add.f32 %f, [%x], %f;", ("f64",)),
]


@pytest.mark.parametrize(
    ("access", "element"), [(access, element) for access, elements in CONTRADICTIONS for element in elements]
)
def test_an_access_of_another_floating_point_type_is_a_fault(access: Any, element: Any) -> None:
    ours = load(f"{access} // FAULT", f"{element}* numbers")
    x = array(element)
    with refused(ptxrt.MemoryFault, "k", None, "in numbers", f"declares as {element}*", "in the signature") as caught:
        ours.launch(1, 16, x)
    error = caught.value
    assert "// FAULT" in error.text
    assert (error.thread, error.address) == ((0, 0, 0), x.ptr)
    assert not x.to_host().any()


MOVES = [
    ("ld.global.b64 %o, [%x];", ("f32", "f16", "f64", "u8")),
    ("ld.global.b32 %i, [%x];", ("f64", "f16")),
    ("st.global.u64 [%x], 0;", ("f32",)),
    ("st.global.s32 [%x], 0;", ("f64", "bf16")),
    ("ld.global.b16 %h, [%x];", ("f32", "f16", "bf16")),
    ("ld.global.v4.f32 {%f, %f, %f, %f}, [%x];", ("f32", "f16", "f64")),
    ("st.global.v2.f64 [%x], {%d, %d};", ("f32", "bf16")),
    ("ld.global.f32 %f, [%x];", ("f32", "u32", "i32", "u8", "u64", "bool")),
    ("ld.global.f64 %d, [%x];", ("f64", "u64", "u8", "u32")),
    ("atom.global.add.f64 %d, [%x], %d;", ("f64", "u64")),
    ("atom.global.exch.b64 %o, [%x], %o;", ("f32",)),
    ("red.global.add.noftz.f16x2 [%x], %i;", ("f16",)),
    ("cp.async.ca.shared.global [shared], [%x], 8; cp.async.wait_all;", ("f32", "f16")),
]


@pytest.mark.parametrize(
    ("access", "element"), [(access, element) for access, elements in MOVES for element in elements]
)
def test_an_access_that_moves_bytes_may_move_any(access: Any, element: Any) -> None:
    load(access, f"{element}* numbers").launch(1, 1, array(element))


def test_the_first_lane_that_contradicts_is_named() -> None:
    ours = load("setp.ge.u32 %q, %t, 5; @%q ld.global.f64 %d, [%x];", "f32* x, const f32* y", ".param .u64 y")
    with refused(ptxrt.MemoryFault, "k", None, "read of .f64 in x") as caught:
        ours.launch(1, 16, array("f32"), array("f32"))
    assert caught.value.thread == (5, 0, 0)


def test_an_array_that_is_left_with_a_wrong_stride_is_reported_by_its_type() -> None:
    ours = load("ld.global.f64 %d, [%x+1008];", "f32* x")
    with refused(ptxrt.MemoryFault, "k", None, "which the signature declares as f32*"):
        ours.launch(1, 32, array("f32"))  # thread 1 leaves it
    with refused(ptxrt.MemoryFault, "k", None, "outside every allocation"):
        load("ld.global.f64 %d, [%x+1008];", "f64* x").launch(1, 32, array("f64", 128))


def test_a_misaligned_access_is_reported_by_its_type() -> None:
    whole = array("f32")
    with refused(ptxrt.MemoryFault, "k", None, "which the signature declares as f32*"):
        load("ld.global.f64 %d, [%x];", "f32* x").launch(1, 1, whole[1:])


SECOND = "ld.param.u64 %y, [y]; "


def test_arrays_in_one_allocation_keep_their_types() -> None:
    workspace = array("u8", 1024)

    def part(start: int, element: str) -> ptxrt.DeviceArray:
        count = 512 // BY_NAME[element].size
        return ptxrt.DeviceArray.from_pointer(
            workspace.ptr + start, (count,), BY_NAME[element].numpy, "sim:0", owner=workspace
        )

    both = "ld.global.f32 %f, [%x]; ld.global.f64 %d, [%y];"
    load(SECOND + both, "f32* x, f64* y", ".param .u64 y").launch(1, 1, part(0, "f32"), part(512, "f64"))
    load(SECOND + both, "f32* x, f64* y", ".param .u64 y").launch(1, 1, part(512, "f32"), part(0, "f64"))
    load(SECOND + both, "f32* x, u8* y", ".param .u64 y").launch(1, 1, part(0, "f32"), part(512, "u8"))
    with refused(ptxrt.MemoryFault, "k", None, "read of .f64 in y, which the signature declares as f32*"):
        load(SECOND + both, "f32* x, f32* y", ".param .u64 y").launch(1, 1, part(0, "f32"), part(512, "f32"))
    # What lies before an array is nobody's.
    load("ld.global.f64 %d, [%x+-512];", "f32* x").launch(1, 1, part(512, "f32"))


def test_memory_that_is_passed_with_two_types_has_none() -> None:
    x = array("f32")
    numbers = ptxrt.DeviceArray.from_pointer(x.ptr, (128,), np.float64, "sim:0", owner=x)
    load("ld.global.f64 %d, [%x];", "f32* x, f64* y", ".param .u64 y").launch(1, 1, x, numbers)


def test_memory_that_a_number_points_into_has_no_type() -> None:
    x = array("f32")
    ours = load(SECOND + "ld.global.f64 %d, [%y];", "f32* x, u64 y", ".param .u64 y")
    ours.launch(1, 1, x, x.ptr + 8)
    load("ld.global.f64 %d, [%x];", "u64 x").launch(1, 1, x.ptr)


def test_null_pointers_and_const_ones_are_as_before() -> None:
    load("ld.global.f32 %f, [%x];", "f32* x, f64*? y", ".param .u64 y").launch(1, 1, array("f32"), None)
    with refused(ptxrt.MemoryFault, "k", None, "the Signature calls const"):
        load("st.global.f32 [%x], %f;", "const f32* x").launch(1, 1, array("f32"))
    with refused(ptxrt.MemoryFault, "k", None, "read of .f64 in x"):
        load("ld.global.f64 %d, [%x];", "const f32* x").launch(1, 1, array("f32"))


@pytest.mark.parametrize("signature", ["f32* x", None])
def test_a_check_reports_it_too(signature: str | None) -> None:
    source = ptxrt.KernelSource.ptx(kernel(REGISTERS + "ld.global.f64 %d, [%x];", ".param .u64 x", HEAD))
    arguments: dict[str, Any] = {"x": np.zeros(64, np.float32)}
    report = check(source, "k", signature, grid=1, block=1, arguments=arguments)
    assert "read of .f64 in x, which the signature declares as f32*" in str(report.fault)
