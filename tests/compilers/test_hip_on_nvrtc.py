"""HIP C++ through NVRTC: what the virtual headers make of HIP's own names, run on the PTX machine and on CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Patch, refused

import ptxrt
from ptxrt import KernelSource
from ptxrt.compilers import hip_on_nvrtc, nvrtc

pytestmark = pytest.mark.usefixtures("nvrtc_there")
LANES = np.arange(32)


@pytest.fixture(scope="module")
def nvrtc_there() -> None:
    if reason := nvrtc.available():
        pytest.skip(reason)


@pytest.fixture(params=["sim", pytest.param("cuda", marks=pytest.mark.cuda)])
def device(request: pytest.FixtureRequest) -> Any:
    """Where NVRTC's output runs."""
    return request.getfixturevalue(request.param)


def of_a_wave(device: ptxrt.Device, body: Any, dtype: Any, x: Any) -> Any:
    """Run `body`, which makes `y` of the lane's `x`, for one wave; return every lane's y."""
    names = {"f4": ("float", "f32"), "f8": ("double", "f64"), "i4": ("int", "i32"), "u8": ("unsigned long long", "u64")}
    name, declared = names[dtype]
    text = f"""
        extern "C" __global__ void k(const {name}* in, {name}* out) {{
            const int lane = threadIdx.x;
            {name} x = in[lane], y = 0;
            {body}
            out[lane] = y;
        }}"""
    kernel = ptxrt.load(KernelSource.hip(text), "k", f"const {declared}* x, {declared}* y", device)
    there, out = ptxrt.to_device(x.astype(dtype), device), ptxrt.empty(32, np.dtype(dtype), device)
    kernel.launch(1, 32, there, out)
    return out.to_host()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u8"])
@pytest.mark.parametrize(
    ("call", "source"),
    [
        ("__shfl(x, 5)", np.full(32, 5)),
        ("__shfl(x, lane + 1)", (LANES + 1) % 32),
        ("__shfl(x, 3, 8)", LANES // 8 * 8 + 3),
        ("__shfl_up(x, 2)", np.where(LANES < 2, LANES, LANES - 2)),
        ("__shfl_up(x, 2, 16)", np.where(LANES % 16 < 2, LANES, LANES - 2)),
        ("__shfl_down(x, 3)", np.where(LANES > 28, LANES, LANES + 3)),
        ("__shfl_down(x, 3, 8)", np.where(LANES % 8 > 4, LANES, LANES + 3)),
        ("__shfl_xor(x, 1)", LANES ^ 1),
        ("__shfl_xor(x, 16)", LANES ^ 16),
        ("__shfl_xor(x, 4, 8)", LANES ^ 4),
    ],
)
def test_shuffles_have_no_mask(device: ptxrt.Device, call: str, source: Any, dtype: str) -> None:
    x = (LANES * 1000003 + 7) << (33 if dtype in ("f8", "u8") else 0)
    np.testing.assert_array_equal(of_a_wave(device, f"y = {call};", dtype, x), x[source].astype(dtype))


@pytest.mark.parametrize(
    ("call", "each"),
    [
        ("__ballot(x > 28) >> 29", 7),
        ("sizeof(__ballot(x > 28))", 8),  # as for a wave of 64
        ("__any(x == 31)", 1),
        ("__any(x == 32)", 0),
        ("__all(x < 32)", 1),
        ("__all(x < 31)", 0),
        ("warpSize", 32),
    ],
)
def test_votes_have_no_mask(device: ptxrt.Device, call: str, each: int) -> None:
    assert set(of_a_wave(device, f"y = {call};", "u8", LANES)) == {each}


@pytest.mark.parametrize("kind", ["float", "double"])
def test_unsafe_atomics_are_atomics(device: ptxrt.Device, kind: str) -> None:
    text = f"""extern "C" __global__ void add({kind}* sum) {{ unsafeAtomicAdd(sum, ({kind})threadIdx.x); }}"""
    sum_ = ptxrt.zeros(1, kind.replace("float", "float32").replace("double", "float64"), device)
    ptxrt.load(KernelSource.hip(text), "add", f"{'f32' if kind == 'float' else 'f64'}* sum", device).launch(2, 64, sum_)
    assert sum_.to_host()[0] == 64 * 63


def test_dynamic_shared_memory_has_hips_name_of_it(device: ptxrt.Device) -> None:
    text = """
        extern "C" __global__ void reverse(float* y) {
            HIP_DYNAMIC_SHARED(float, tile)
            tile[threadIdx.x] = y[threadIdx.x];
            __syncthreads();
            y[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
        }"""
    y = ptxrt.to_device(LANES.astype(np.float32), device)
    ptxrt.load(KernelSource.hip(text), "reverse", "f32* y", device).launch(1, 32, y, shared_bytes=128)
    np.testing.assert_array_equal(y.to_host(), LANES[::-1])


@pytest.mark.parametrize("include", ["", "#include <hip/hip_runtime.h>\n", '#include "hip/hip_runtime.h"\n'])
def test_the_runtime_header_may_be_included_and_need_not(device: ptxrt.Device, include: str) -> None:
    text = include + 'extern "C" __global__ void k(int* y) { int any = __any(1); if (!threadIdx.x) *y = any; }'
    y = ptxrt.zeros(1, np.int32, device)
    ptxrt.load(KernelSource.hip(text), "k", "i32* y", device).launch(1, 32, y)
    assert y.to_host()[0] == 1


def test_templates_are_found_by_expression_and_defines_are_set(device: ptxrt.Device) -> None:
    text = "template <typename T, int N> __global__ void fill(T* y) { y[threadIdx.x] = N * FACTOR; }"
    y = ptxrt.zeros(32, np.float64, device)
    source = KernelSource.hip(text, {"FACTOR": 5})
    ptxrt.load(source, "fill<double, 3>", "f64* y", device).launch(1, 32, y)
    assert (y.to_host() == 15).all()


def test_platform_macros_tell_where_the_text_is_compiled(device: ptxrt.Device) -> None:
    text = """
        #if defined(__HIP_PLATFORM_AMD__) || !defined(__HIP_PLATFORM_NVIDIA__) || !defined(__HIPCC_RTC__)
        #error not as expected
        #endif
        extern "C" __global__ void k() {}"""
    assert ptxrt.load(KernelSource.hip(text), "k", "", device).entry == "k"


def test_a_fault_has_the_line_of_the_text() -> None:
    with pytest.raises(ptxrt.CompileError) as caught:
        ptxrt.load(KernelSource.hip('extern "C" __global__ void f() {\n  undeclared = 1;\n}'), "f", "", "sim:0")
    assert caught.value.line == 2
    assert ">     2 |   undeclared = 1;" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "header"), [("_Float16", "cuda_fp16.h"), ("__half", "cuda_fp16.h"), ("__bf16", "cuda_bf16.h")]
)
def test_pain21_half_types_are_cudas_or_the_error_names_the_package(kind: str, header: str) -> None:
    text = f'extern "C" __global__ void k({kind}* y) {{ y[threadIdx.x] = 1.5f; }}'
    if nvrtc.include_directories():
        name = "bf16" if kind == "__bf16" else "f16"
        y = ptxrt.zeros(32, name, "sim:0")
        ptxrt.load(KernelSource.hip(text), "k", f"{name}* y", "sim:0").launch(1, 32, y)
        assert set(y.to_host().view(np.uint16)) == {0x3FC0 if kind == "__bf16" else 0x3E00}
    else:
        with pytest.raises(ptxrt.CompileError, match=f"{header}.*\n.*pip install nvidia-cuda-runtime"):
            ptxrt.load(KernelSource.hip(text), "k", "u16* y", "sim:0")


def test_a_text_without_half_types_needs_none_of_cudas_headers(monkeypatch: Patch) -> None:
    if reason := nvrtc.available():
        pytest.skip(reason)
    monkeypatch.setattr(nvrtc, "include_directories", tuple)
    assert hip_on_nvrtc.compile_hip_text('extern "C" __global__ void k(int half) {}', "sm_90").entries


def test_what_stands_for_the_headers_is_in_the_key(monkeypatch: Patch) -> None:
    before = hip_on_nvrtc.effective_options()
    monkeypatch.setitem(hip_on_nvrtc.HEADERS, "hip/hip_runtime.h", "#pragma once\n")
    assert hip_on_nvrtc.effective_options() != before


@pytest.mark.parametrize(("options", "differ"), [((), False), (("-lineinfo",), True)])
def test_the_current_folder_is_in_the_key_where_an_option_may_show_it(
    monkeypatch: Patch, tmp_path: Path, options: Any, differ: bool
) -> None:
    before = hip_on_nvrtc.effective_options(options)
    monkeypatch.chdir(tmp_path)
    assert (hip_on_nvrtc.effective_options(options) != before) == differ


@pytest.mark.parametrize(("text", "words"), [(b"x", "HIP text must be a str"), (" ", "the HIP text is empty")])
def test_what_is_no_text_is_said_to_be_no_hip(text: Any, words: str) -> None:
    with pytest.raises(ptxrt.CompileError, match=words) as caught:
        hip_on_nvrtc.compile_hip_text(text, "sm_90", name="mine.hip", output="ptx")
    assert caught.value.kernel == "mine.hip"


@pytest.mark.parametrize("options", ["-G", ("-arch=sm_80",), ("",)], ids=repr)
def test_options_are_checked_as_for_cuda(options: Any) -> None:
    with refused(ptxrt.InvalidArgument, "compile", "options"):
        hip_on_nvrtc.compile_hip_text("int x;", "sm_90", options, output="ptx")
    with refused(ptxrt.InvalidArgument, "compile", "options"):
        hip_on_nvrtc.effective_options(options)


def test_the_same_text_as_cuda_is_another_module(sim: ptxrt.Device) -> None:
    text = 'extern "C" __global__ void k(int* y) { *y = sizeof(int); }'
    before = {entry.digest for entry in sim.modules.entries()}
    kernels = [ptxrt.load(write(text), "k", "i32* y", sim) for write in (KernelSource.hip, KernelSource.cuda)]
    assert len({entry.digest for entry in sim.modules.entries()} - before) == len(kernels)
