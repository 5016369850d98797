"""A kernel without a signature has the one that its C++ declares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import need_hip_compilers, need_nvrtc, refused
from texts import HEAD

import ptxrt
from ptxrt import Device, Kernel, KernelSource

SCALE = """
#define REAL T
template <class T, int N>
__global__ void __launch_bounds__(256)
scale(const REAL* __restrict__ x,   // of n elements
      REAL* y,
      unsigned n, REAL a = REAL(1))
{
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * a + N;
}
extern "C" __global__ void plain(float* x, int, bool flag) { if (flag) *x += 1; }
namespace deep { __global__ void within(double* const rows[], short s) {} }
__global__ void pointless(void* p, int n) {}
struct Pair { int a, b; };
__global__ void pairs(int n, const Pair* p) {}
"""


@pytest.fixture
def load(device: Device) -> Any:
    """Load an entry of the text above without a signature."""
    need_hip_compilers() if device.kind == "hip" else need_nvrtc()

    def loaded(entry: str, **how: Any) -> Kernel:
        return ptxrt.load(KernelSource.hip(SCALE), entry, device=device, **how)

    return loaded


@pytest.mark.parametrize(
    ("entry", "signature"),
    [
        ("scale<float, 4>", "const f32* x, f32* y, u32 n, f32 a"),
        ("scale<double, 1>", "const f64* x, f64* y, u32 n, f64 a"),
        ("plain", "f32* x, i32 arg1, bool flag"),
        ("deep::within", "const u64* rows, i16 s"),
    ],
)
def test_types_come_from_the_compiler_and_names_from_the_text(load: Any, entry: str, signature: str) -> None:
    assert str(load(entry).signature) == signature


def test_a_kernel_without_a_signature_runs(device: Device, load: Any) -> None:
    x = ptxrt.to_device(np.arange(100, dtype=np.float32), device)
    y = ptxrt.zeros(100, np.float32, device)
    load("scale<float, 4>").launch(1, 128, x, y, 100, 2.0)
    np.testing.assert_array_equal(y.to_host(), 2 * np.arange(100, dtype=np.float32) + 4)
    with refused(ptxrt.DTypeMismatch, "scale<double, 1>", "x", "f64"):
        load("scale<double, 1>").launch(1, 128, x, y, 100, 2.0)


def test_lengths_are_added_by_name(device: Device, load: Any) -> None:
    kernel = load("scale<float, 4>", lengths={"x": "n", "y": "2*n"})
    assert str(kernel.signature) == "const f32* x[n], f32* y[2*n], u32 n, f32 a"
    x = ptxrt.zeros(8, np.float32, device)
    with refused(ptxrt.ShapeMismatch, "scale<float, 4>", "y", "at least 10 elements"):
        kernel.launch(1, 32, x, x, 5, 1.0)
    signed = load("plain", lengths={"x": "16*arg1"})
    with refused(ptxrt.InvalidArgument, "plain", "x", "a length of 0 or more", "[16, -5]"):
        signed.launch(1, 32, x, -5, True)
    assert str(load("plain", lengths={"x": 16}).signature) == "f32* x[16], i32 arg1, bool flag"


@pytest.mark.parametrize(
    ("lengths", "words"),
    [
        ({"rws": "s"}, ("'rws'", "Did you mean rows?")),
        ({"rows": 1.5}, ("1.5",)),
        ({"rows": True}, ("True",)),
        ({"rows": "s], f32 b[1"}, ("rows",)),
        ("rows[s]", ("a mapping",)),
    ],
)
def test_lengths_that_are_none_are_refused(load: Any, lengths: Any, words: Any) -> None:
    with refused(ptxrt.InvalidArgument, "load", "lengths", *words):
        load("deep::within", lengths=lengths)


def test_a_length_of_a_scalar_is_refused(load: Any) -> None:
    with refused(ptxrt.InvalidArgument, "load", "lengths", "names of deep::within's arrays: rows, given 's'"):
        load("deep::within", lengths={"s": 4})


def test_lengths_stand_in_a_signature_where_there_is_one(device: Device) -> None:
    with refused(ptxrt.InvalidArgument, "load", "lengths", "beside a signature", 'f32* x[n]"'):
        ptxrt.load(KernelSource.hip(SCALE), "plain", "f32* x, i32 n, bool b", device, lengths={"x": "n"})


def test_a_pointer_without_an_element_type_wants_a_signature(load: Any) -> None:
    with refused(ptxrt.Unsupported, "load", "signature", "parameter 0 of pointless", "p", '"... p, i32 n"'):
        load("pointless")
    with refused(ptxrt.Unsupported, "load", "signature", "parameter 1 of pairs", "Pair", '"i32 n, ... p"'):
        load("pairs")


def test_a_compiler_that_is_not_asked_for_types_is_no_source_of_a_signature(sim: Device) -> None:
    need_nvrtc()
    text = "__global__ void k(float* x) {}"
    with refused(ptxrt.Unsupported, "load", "signature", "None for k", "C++11"):
        ptxrt.load(KernelSource.cuda(text), "k", device=sim, options=("--std=c++03",))


def test_a_macro_of_a_header_is_no_name(load: Any, device: Device, tmp_path: Any) -> None:
    (tmp_path / "names.h").write_text("#define b c\n#define UNUSED\n")
    text = f'#include "{tmp_path}/names.h"\n__global__ void k(float* a, float* b, float* UNUSED) {{}}'
    kernel = ptxrt.load(KernelSource.hip(text), "k", device=device)
    assert str(kernel.signature) == "f32* a, f32* arg1, f32* arg2"


def test_a_made_up_name_is_not_one_that_is_there(device: Device, load: Any) -> None:
    text = "__global__ void k(int arg1, int, int arg2_, int) {}"
    kernel = ptxrt.load(KernelSource.hip(text), "k", device=device)
    assert str(kernel.signature) == "i32 arg1, i32 arg1_, i32 arg2_, i32 arg3"


@pytest.mark.ptx
def test_ptx_wants_a_signature_and_shows_what_to_begin_with(sim: Device) -> None:
    params = ".param .u64 x, .param .b32 n, .param .f32 a, .param .align 4 .b8 p[12]"
    source = KernelSource.ptx(f"{HEAD}.visible .entry k({params}) {{ ret; }}\n.visible .entry none() {{ ret; }}")
    with refused(ptxrt.InvalidArgument, "load", "signature", 'Begin with "u64 x, u32 n, f32 a, u8 p[12]"', '"f32* x"'):
        ptxrt.load(source, "k", device=sim)
    with refused(ptxrt.InvalidArgument, "load", "signature", 'Write ""'):
        ptxrt.load(source, "none", device=sim)
    with pytest.raises(ptxrt.CompileError, match=r"no entry 'kk'.*Did you mean k"):
        ptxrt.load(source, "kk", device=sim)
