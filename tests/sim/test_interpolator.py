"""The approximate functions, bit for bit as on an H200: digests of its results, on a GPU every mantissa."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from machine import HEAD, apply

import ptxrt

_HOPPER = HEAD.replace("sm_80", "sm_90")
_DRAWN = 1 << 17

MEASURED = {
    "ex2.approx.ftz.f32": "358727c0b192",
    "ex2.approx.f32": "2ee355095269",
    "rcp.approx.ftz.f32": "98d028640ddf",
    "rcp.approx.f32": "026e712ba4f9",
    "rsqrt.approx.ftz.f32": "5f518918fb1e",
    "rsqrt.approx.f32": "2c83495bf5fe",
    "sqrt.approx.ftz.f32": "c06413ca4c58",
    "sqrt.approx.f32": "952c0e9cc311",
    "lg2.approx.ftz.f32": "7816dbafee95",
    "lg2.approx.f32": "04166259637a",
    "sin.approx.ftz.f32": "2a93ede7c25c",
    "sin.approx.f32": "2a93ede7c25c",
    "cos.approx.ftz.f32": "8cebfddf26dc",
    "cos.approx.f32": "8cebfddf26dc",
    "div.full.f32": "e5248f624e14",
    "div.full.ftz.f32": "38405345be11",
    "div.approx.f32": "7a248d61068b",
    "div.approx.ftz.f32": "8b46b03876e3",
    "ex2.approx.f16": "0b1bab5ab5e9",
    "ex2.approx.ftz.bf16": "b70d00fc43d8",
    "rcp.approx.ftz.f64": "37c4658e62a0",
    "rsqrt.approx.ftz.f64": "54adc80088d6",
}
"""By instruction, the SHA-256 of an H200's results for any bits at all: denormals, infinities and NaN too."""

MEASURED_OF_MEDIUM = {
    "ex2.approx.ftz.f32": "35079c783d17",
    "sin.approx.ftz.f32": "cafd5e3e98b9",
    "cos.approx.ftz.f32": "4f841f381c01",
    "lg2.approx.ftz.f32": "37711c07ea29",
    "div.full.f32": "b4bc56fadf5b",
}
"""The same for numbers between 2**-15 and 2**17, of both signs."""


def _words(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(5))
    first, second = (generator.integers(0, 1 << 32, count, dtype=np.uint64).astype(np.uint32) for _ in range(2))
    return first, second


def _medium(words: np.ndarray) -> np.ndarray:
    return np.asarray(words & np.uint32(0x8FFFFFFF) | np.uint32(0x38000000))


def _digest(name: str, first: np.ndarray, second: np.ndarray) -> str:
    kind = name.rpartition(".")[2]
    if kind == "f64":
        first = first.astype(np.uint64) << np.uint64(32) | second.astype(np.uint64)
    elif kind.endswith("16"):
        first = np.arange(1 << 16, dtype=np.uint16)
    inputs = (first, second) if name.startswith("div") else (first,)
    operands = "a, b" if name.startswith("div") else "a"
    got = apply(f"{name} d, {operands};", kind, *inputs, types=(kind,) * len(inputs), head=_HOPPER)
    return hashlib.sha256(got.tobytes()).hexdigest()[:12]


@pytest.mark.parametrize("name", MEASURED)
def test_results_are_those_of_an_h200(name: str) -> None:
    assert _digest(name, *_words(_DRAWN)) == MEASURED[name]


@pytest.mark.parametrize("name", MEASURED_OF_MEDIUM)
def test_results_of_ordinary_numbers_are_those_of_an_h200(name: str) -> None:
    assert _digest(name, *map(_medium, _words(_DRAWN))) == MEASURED_OF_MEDIUM[name]


_KERNEL = """{head}
.visible .entry k(.param .u64 y, .param .u32 first)
{{
    .reg .b32 %t, %n, %c, %first;  .reg .b64 %y, %at;  .reg .f32 %x;
    ld.param.u64 %y, [y];  ld.param.u32 %first, [first];
    mov.u32 %t, %tid.x;  mov.u32 %n, %ntid.x;  mov.u32 %c, %ctaid.x;  mad.lo.u32 %t, %c, %n, %t;
    mad.wide.u32 %at, %t, 4, %y;
    add.u32 %first, %first, %t;  mov.b32 %x, %first;
    {name} %x, %x;
    st.global.f32 [%at], %x;
    ret;
}}"""


@pytest.mark.parametrize("start", [0.125, 0.5, 1.0, 2.0, -1.0, -8.0])
@pytest.mark.parametrize("name", ["ex2", "rcp", "rsqrt", "sqrt", "lg2", "sin", "cos"])
def test_every_mantissa(cuda: ptxrt.Device, name: str, start: float) -> None:
    count, first = 1 << 23, int(np.float32(start).view(np.uint32))
    source = ptxrt.KernelSource.ptx(_KERNEL.format(head=_HOPPER, name=f"{name}.approx.ftz.f32"))
    found = []
    for device in (cuda, ptxrt.Device("sim:0")):
        y = ptxrt.empty((count,), np.uint32, device=device)
        ptxrt.load(source, "k", "u32* y, u32 first", device=device).launch(count // 256, 256, y, first)
        found.append(y.numpy())
    np.testing.assert_array_equal(found[0], found[1])
