"""Initial values of variables, and constants in code: bits, shapes, addresses, and what an assembler refuses too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machine import kernel, run

import ptxrt
from ptxrt import sim

HEAD = ".version 8.5\n.target sm_90\n.address_size 64\n"
# What ptxas 13.0 makes of each, as bytes in hexadecimal.
BYTES = {
    ".b32 x = 0f3f800001": "0100803f",
    ".b64 x = 1.5": "000000000000f83f",
    ".b32 x = 1.5": "0000c03f",
    ".f32 x = 0f7f800001": "0100807f",
    ".f64 x = 0d7ff0000000000001": "010000000000f07f",
    ".f32 x = 1.0 + 2.0": "00004040",
    ".u32 x[][2] = {{1},{2},{3}}": "010000000200000003000000" + 12 * "00",
    ".u32 x[2][3] = {{1,2},{3}}": "010000000200000003000000" + 12 * "00",
    ".v2 .u32 x = {1,2}": "0100000002000000",
    ".u16 x[4] = {}": 8 * "00",
    ".v2 .u16 x[2] = {{1,2},{3,4}}": "0100020003000400",
    ".u8 x[][2][2] = {{{1},{2,3}},{{4}}}": "0102030400000000",
    ".u8 x[4] = {0xFF(0x1234), 0XFF00(0x1234), 0xFF0000(0x123456), 1}": "34121201",
    ".u16 x[2] = {0xFF(0x1234+1), 0xFF00(-1)}": "3500ff00",
    ".v2 .u8 x[] = {{1,2},{3,4}}": "01020304",
}
REFUSED = {
    ".u32 x = {1}": "expected a constant",
    ".u32 x[3] = 1": "expected '{'",
    ".u32 x[2][3] = {1,2,3,4}": "expected '{'",
    ".u32 x[2][3] = {{1,2,3,4},{2,3}}": "too many",
    ".u32 x[2][2] = {{1,2},{3,4},{5,6}}": "too many",
    ".u32 x[][2] = {}": "needs a length",
    ".u32 x[2][] = {{1},{2}}": "expected a constant",
    ".v2 .u32 x[2] = {{1},{2,3}}": "has 2 values, not 1",
    ".v2 .u32 x[2] = {1,2,3,4}": "expected '{'",
    ".u32 x[2] = {{1},{2}}": "expected a constant",
    ".u8 x[2] = {1,2,}": "expected a constant",
    ".u8 x[1] = {0xFF0(0x1234)}": "no mask",
    ".u8 x[1] = {0x1FFFFFFFFFFFFFFFFFF(1)}": "does not fit 64 bits",
    ".u32 x = 1.5": "wants an integer",
    ".f32 x = 1": "wants a floating-point",
    ".b16 x = 1.5": "wants an integer",
    ".u64 x = 1.0 + 1": "between",
    ".u64 x = 1.5 ? 1 : 2": "before",
    ".u64 x = ~1.5": "of a floating-point",
    ".u64 x = (.u64) 1.5": "of a floating-point",
    ".f64 x = 1.0 / 0.0": "division by zero",
    ".f64 x = 1.0 % 2.0": "between",
}


@pytest.mark.parametrize("text", BYTES)
def test_initial_values_are_as_an_assembler_has_them(text: Any) -> None:
    variable = sim.parse(f"{HEAD}.global {text};").variables["x"]
    assert variable.data.ljust(variable.size, b"\0").hex() == BYTES[text]


@pytest.mark.parametrize("text", REFUSED)
def test_what_an_assembler_refuses_is_refused(text: Any) -> None:
    with pytest.raises(ptxrt.CompileError, match=REFUSED[text]):
        sim.parse(f"{HEAD}.global {text};")


def results(top: str, body: str, count: int = 2) -> list[int]:
    """Return what a kernel stores to %out, of 32 bits each."""
    opening = ".reg .b32 %r<4>; .reg .b64 %out, %a; .reg .f32 %f;\nld.param.u64 %out, [out];\n"
    out = np.zeros(count, np.uint32)
    run(kernel(opening + body, head=HEAD, module=top), out, block=(1, 1, 1))
    return [int(value) for value in out]


def test_a_signalling_nan_keeps_its_bits() -> None:
    code = "st.global.f32 [%out], 0f7F800001; mov.f32 %f, 0fFFA00001; st.global.f32 [%out+4], %f;"
    assert results("", code) == [0x7F800001, 0xFFA00001]
    code = "ld.const.v2.b32 {%r0, %r1}, [c]; st.global.v2.b32 [%out], {%r0, %r1};"
    assert results(".const .align 8 .f32 c[2] = {0f7F800001, 0fFFA00001};", code) == [0x7F800001, 0xFFA00001]


def test_arithmetic_of_floats_is_not_the_bits_of_the_first() -> None:
    assert results("", "mov.f32 %f, 0f3F800000 + 1.0; st.global.f32 [%out], %f;", 1) == [0x40000000]


def test_an_address_stands_byte_by_byte_in_a_packed_struct() -> None:
    values = ", ".join(f"{0xFF << 8 * byte:#x}(generic(g)+4)" for byte in range(8))
    code = "ld.global.u8 %r0, [q]; mov.u64 %a, 0;\n" + "".join(
        f"{{ .reg .b64 %b; ld.global.u8 %b, [q+{1 + byte}]; shl.b64 %b, %b, {8 * byte}; or.b64 %a, %a, %b; }}\n"
        for byte in range(8)
    )
    code += "ld.u32 %r1, [%a]; st.global.v2.u32 [%out], {%r0, %r1};"
    assert results(f".global .u32 g[2] = {{3, 5}};\n.global .u8 q[9] = {{1, {values}}};", code) == [1, 5]


@pytest.mark.parametrize("order", [".attribute(.managed) .align 8", ".align 8 .attribute(.managed)"])
def test_attribute_and_alignment_stand_in_any_order(order: str) -> None:
    variable = sim.parse(f"{HEAD}.global {order} .u32 x = 7;").variables["x"]
    assert (variable.align, variable.data) == (8, b"\7\0\0\0")


def test_a_managed_variable_of_cpp_loads() -> None:
    source = ptxrt.KernelSource.cuda("__managed__ int man = 5; __global__ void k(int* y) { y[0] = man; }")
    y = ptxrt.zeros(1, np.int32, "sim:0")
    ptxrt.load(source, "k", device="sim:0")[1, 1](y)
    assert y.to_host()[0] == 5


def test_two_scopes_of_a_line_have_globals_of_one_name() -> None:
    code = "{ .global .u32 c = 7; ld.global.u32 %r0, [c]; } { .global .u32 c = 9; ld.global.u32 %r1, [c]; }"
    assert results("", f"{code} st.global.v2.u32 [%out], {{%r0, %r1}};") == [7, 9]
