"""Variables of a module as arrays: found by name, written and read by host and kernel."""

from __future__ import annotations

import gc
from typing import Any, cast

import numpy as np
import pytest
from helpers import need_hip_compilers, need_nvrtc, refused
from texts import HEAD

import ptxrt
from ptxrt import Device, Kernel, KernelSource
from ptxrt.compilers import nvrtc
from ptxrt.compilers.variables import variables_of

HIP = """
__constant__ float c[4];
__device__ int counter;
namespace one { __device__ double rate; __device__ float both[2]; }
namespace two { __device__ float both[2]; }
extern "C" __global__ void k(float* y) {
    int i = threadIdx.x;
    y[i] = c[i] + (float)one::rate + one::both[0] + two::both[1];
    if (i == 0) counter += 1;
}
"""
PTX = f"""{HEAD}
.visible .const .align 4 .f32 c[4];
.visible .global .u32 counter = 5;
.visible .global .align 8 .b8 raw[16];
.visible .global .f64 grid[2][3];
.visible .entry k(.param .u64 y)
{{
    .reg .b64 %y, %c;  .reg .b32 %i, %n;  .reg .f32 %v;
    ld.param.u64 %y, [y];
    mov.u32 %i, %tid.x;
    mov.u64 %c, c;
    mad.wide.u32 %c, %i, 4, %c;
    mad.wide.u32 %y, %i, 4, %y;
    ld.const.f32 %v, [%c];
    st.global.f32 [%y], %v;
    ld.global.u32 %n, [counter];
    add.u32 %n, %n, 1;
    st.global.u32 [counter], %n;
    ret;
}}
.visible .entry other() {{ ret; }}
"""


@pytest.fixture
def kernel(device: Device) -> Kernel:
    need_hip_compilers() if device.kind == "hip" else need_nvrtc()
    return ptxrt.load(KernelSource.hip(HIP), "k", "f32* y", device)


@pytest.fixture
def in_ptx(device: Device) -> Kernel:
    return ptxrt.load(KernelSource.ptx(PTX), "k", "f32* y", device)


def test_a_kernel_sees_what_the_host_writes_and_the_host_what_it_writes(device: Device, kernel: Kernel) -> None:
    c, counter, y = (
        kernel.variable("c", np.float32),
        kernel.variable("counter", np.int32),
        ptxrt.zeros(4, device=device),
    )
    assert (c.shape, counter.shape, c.dtype.name, c.device) == ((4,), (), "float32", device)
    for name in ("one::both", "two::both"):
        kernel.variable(name, np.float32).copy_from(np.array([10, 100], np.float32))
    kernel.variable("rate", np.float64).copy_from(np.array(0.5))
    counter.copy_from(np.array(7, np.int32))
    for values in ([1, 2, 3, 4], [5, 6, 7, 8]):
        c.copy_from(np.array(values, np.float32))
        kernel.launch(1, 4, y)
        np.testing.assert_array_equal(y.to_host(), np.array(values) + 110.5)
    assert counter.to_host() == 9
    assert c.view(2, 2).to_host().tolist() == [[5, 6], [7, 8]]


@pytest.mark.ptx
def test_ptx_tells_types_and_shapes(device: Device, in_ptx: Kernel) -> None:
    if device.kind == "hip":
        pytest.skip("no PTX there")
    y = ptxrt.zeros(4, device=device)
    in_ptx.variable("c").copy_from(np.arange(4, dtype=np.float32))
    before = int(in_ptx.variable("counter").to_host())
    in_ptx.launch(1, 1, y)
    assert in_ptx.variable("counter").to_host() == before + 1 >= 6
    assert in_ptx.variable("counter", np.int32).dtype == np.int32
    assert in_ptx.variable("grid").shape == (2, 3)
    assert in_ptx.variable("raw", np.float64).shape == (2,)
    # A text's entries have one module.
    other = ptxrt.load(KernelSource.ptx(PTX), "other", "", device)
    assert other.variable("counter").ptr == in_ptx.variable("counter").ptr


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("name", "dtype", "kind", "argument", "words"),
    [
        ("cc", None, ptxrt.InvalidArgument, "name", "c, counter, raw, grid, given 'cc'. Did you mean c?"),
        ("", None, ptxrt.InvalidArgument, "name", "one of the module's"),
        (3, None, ptxrt.InvalidArgument, "name", "given 3"),
        ("raw", None, ptxrt.InvalidArgument, "dtype", 'kernel.variable("raw", np.float32)'),
        ("raw", np.complex64, ptxrt.DTypeMismatch, "dtype", "one of f32"),
        ("c", np.int32, ptxrt.DTypeMismatch, "dtype", "f32, as c is declared, given i32"),
        ("counter", np.uint64, ptxrt.DTypeMismatch, "dtype", "u32, as counter is declared, given u64"),
    ],
)
def test_what_is_no_variable_is_refused(
    sim: Device, name: Any, dtype: Any, kind: Any, argument: str, words: str
) -> None:
    kernel = ptxrt.load(KernelSource.ptx(PTX), "k", "f32* y", sim)
    with refused(kind, "k.variable", argument, words):
        kernel.variable(name, dtype)


def test_a_name_of_several_variables_wants_its_namespace(kernel: Kernel) -> None:
    with refused(ptxrt.InvalidArgument, "k.variable", "name", "one::both", "two::both", "which is 2 of them"):
        kernel.variable("both", np.float32)
    with refused(ptxrt.InvalidArgument, "k.variable", "name", "Did you mean c") as caught:
        kernel.variable("count", np.int32)
    assert ".kd" not in str(caught.value), "AMD's descriptor of a kernel is no variable"


def test_the_variables_of_headers_do_not_stand_in_the_way(sim: Device) -> None:
    need_nvrtc()
    text = """
        namespace cuda { namespace std { __device__ int value = 1, digits = 3; } }  // as headers have
        namespace mine { __device__ int value = 2; }
        __global__ void k(int* y) { y[0] = cuda::std::value + cuda::std::digits + mine::value; }"""
    kernel = ptxrt.load(KernelSource.cuda(text), "k", device=sim)
    for name, held in (("value", 2), ("std::value", 1), ("digits", 3)):
        assert kernel.variable(name, np.int32).to_host() == held
    with refused(ptxrt.InvalidArgument, "k.variable", "name", "variables: mine::value, given 'valve'"):
        kernel.variable("valve", np.int32)


def test_of_very_many_variables_a_few_are_listed(sim: Device) -> None:
    many = "".join(f".visible .global .u32 v{number};\n" for number in range(99))
    kernel = ptxrt.load(KernelSource.ptx(f"{HEAD}{many}.visible .entry k() {{ ret; }}"), "k", "", sim)
    with refused(ptxrt.InvalidArgument, "k.variable", "name", "v0, v1, ", ", v19 ... (99), given 'x'"):
        kernel.variable("x")


def test_a_type_that_does_not_divide_the_bytes_is_refused(sim: Device) -> None:
    text = f"{HEAD}.visible .global .b8 odd[10];\n.visible .entry k() {{ ret; }}"
    kernel = ptxrt.load(KernelSource.ptx(text), "k", "", sim)
    assert kernel.variable("odd", np.uint16).shape == (5,)
    with refused(ptxrt.DTypeMismatch, "k.variable", "dtype", "the 10 bytes of odd, given f32"):
        kernel.variable("odd", np.float32)


def test_an_integer_in_cpp_wants_a_type(kernel: Kernel) -> None:
    with refused(ptxrt.InvalidArgument, "k.variable", "dtype", "4 bytes, which the binary does not tell"):
        kernel.variable("counter")


def test_an_array_of_a_variable_keeps_its_module_loaded(device: Device, kernel: Kernel) -> None:
    c = ptxrt.load(KernelSource.hip(HIP + "// alone\n"), "k", "f32* y", device).variable("c", np.float32)
    gc.collect()
    device.modules.clear()
    gc.collect()
    c.copy_from(np.ones(4, np.float32))
    assert c.to_host().tolist() == [1, 1, 1, 1]
    view = c[1:]
    c.free()
    with pytest.raises(ptxrt.InvalidArgument, match="free"):
        view.to_host()


def test_a_kernel_that_writes_to_a_constant_is_a_fault_on_sim(sim: Device) -> None:
    text = PTX.replace("st.global.f32 [%y], %v;", "mov.f32 %v, 0f00000000; st.global.f32 [%y], %v;")
    kernel = ptxrt.load(KernelSource.ptx(text), "k", "f32* y", sim)
    with pytest.raises(ptxrt.MemoryFault, match=r"\.const c"):
        kernel.launch(1, 1, kernel.variable("c"))


PARTS = """
struct Part { float weight; int at[2]; };
__constant__ Part parts[3];
__device__ float4 corner;
static __device__ int hidden = 5;
namespace { __constant__ float rates[2] = {0.5f, 0.25f}; }
namespace deep { static __constant__ double factor = 2; }
extern "C" __global__ void k(float* y) {
    y[0] = parts[2].weight; y[1] = parts[1].at[1]; y[2] = corner.z; y[3] = rates[1]; y[4] = deep::factor; y[5] = hidden;
    hidden += 1;
}
__global__ void turn() { corner.z = -corner.z; }
template <class T> __global__ void halved(T* y) { *y = corner.z / 2; }
template __global__ void halved<float>(float* y);
"""
PART = np.dtype([("weight", "f4"), ("at", "i4", 2)])


@pytest.fixture
def parts(device: Device) -> Kernel:
    need_hip_compilers() if device.kind == "hip" else need_nvrtc()
    return ptxrt.load(KernelSource.hip(PARTS), "k", "f32* y", device)


def test_structs_and_vectors_are_set_and_read(device: Device, parts: Kernel) -> None:
    table, corner = parts.variable("parts", PART), parts.variable("corner", "float4")
    assert (table.shape, corner.shape) == ((3,), ())
    table.copy_from(np.array([(1, (2, 3)), (4, (5, 6)), (7, (8, 9))], PART))
    table[2] = np.array((10, (8, 9)), PART)[()]
    corner[...] = np.array((1, 2, 3, 4), corner.dtype)
    y = ptxrt.zeros(6, device=device)
    parts.launch(1, 1, y)
    assert y.to_host()[:3].tolist() == [10, 6, 3]
    assert table.to_host()["at"].tolist() == [[2, 3], [5, 6], [8, 9]]
    assert corner.to_host()["w"] == 4
    table.fill_bytes(0)
    parts.launch(1, 1, y)
    assert y.to_host()[:2].tolist() == [0, 0]


def test_static_variables_and_those_of_a_nameless_namespace(device: Device, parts: Kernel) -> None:
    if device.kind == "hip":
        pytest.skip("AMD's code objects have no symbols of them")
    y = ptxrt.zeros(6, device=device)
    hidden, rates = parts.variable("hidden", np.int32), parts.variable("rates", np.float32)
    hidden.fill(5)
    parts.launch(1, 1, y)
    assert (y.to_host()[3:].tolist(), int(hidden.to_host())) == ([0.25, 2, 5], 6)
    rates[1] = 0.125
    parts.variable("factor", np.float64).fill(3)
    hidden.fill(9)
    parts.launch(1, 1, y)
    assert y.to_host()[3:].tolist() == [0.125, 3, 9]


def test_a_sibling_has_the_same_variables(device: Device, parts: Kernel) -> None:
    compiles = device.modules.stats().compiles
    turn, half = parts.sibling("turn", ""), parts.sibling("halved<float>", "f32* y")
    assert (turn.entry, half.device, device.modules.stats().compiles) == ("turn", device, compiles)
    parts.variable("corner", "float4").copy_from(
        np.array((1, 2, 8, 4), "f4,f4,f4,f4").astype([(a, "f4") for a in "xyzw"])
    )
    y = ptxrt.zeros(1, device=device)
    turn[1, 1]()
    half[1, 1](y)
    assert y.to_host() == -4
    assert turn.variable("corner", "float4").ptr == parts.variable("corner", "float4").ptr


def test_a_sibling_of_several_is_named_by_its_symbol(device: Device) -> None:
    need_hip_compilers() if device.kind == "hip" else need_nvrtc()
    twice = "".join(f"__global__ void twice({t}* y) {{ *y *= 2; }}" for t in ("float", "double"))
    one = ptxrt.load(KernelSource.hip(f'{twice} extern "C" __global__ void one() {{}}'), "one", "", device)
    with pytest.raises(ptxrt.CompileError, match=r"no entry 'twice': .*_Z5twicePf") as caught:
        one.sibling("twice", "f32* y")
    assert set(cast("list[str]", caught.value.expected)) == {"_Z5twicePd", "_Z5twicePf", "one"}
    y = ptxrt.ones(1, device=device)
    one.sibling("_Z5twicePf", "f32* y")[1, 1](y)
    assert y.to_host() == 2


def test_a_sibling_that_is_not_there_or_not_so(device: Device, parts: Kernel) -> None:
    with pytest.raises(
        ptxrt.CompileError, match=r"no entry 'turns': the text has .*halved<float>.*Did you mean turn\?"
    ):
        parts.sibling("turns", "")
    with pytest.raises(ptxrt.SignatureMismatch, match="halved"):
        parts.sibling("halved<float>", "f32* y, u32 n")
    with refused(ptxrt.InvalidArgument, "sibling", "entry", "the entry's name", "None"):
        parts.sibling(None, "")  # type: ignore[arg-type]
    with refused(ptxrt.InvalidArgument, "sibling", "signature", "a Signature, its text"):
        parts.sibling("turn", 3)  # type: ignore[arg-type]
    if device.kind != "hip":  # whose code objects tell the types of all entries
        with refused(ptxrt.Unsupported, "load", "signature", "Write it"):
            parts.sibling("halved<float>")


@pytest.mark.parametrize(
    ("declared", "variables"),
    [
        (".global .u32 a;", {"a": ("u32", ())}),
        (".visible .global .align 8 .s64 a[3] = {1, 2, 3};", {"a": ("i64", (3,))}),
        (".extern .const .b8 a[16];", {"a": ("", (16,))}),
        (".global .v4 .f32 a[2];", {"a": ("f32", (2, 4))}),
        (".const .f16 a[], b [ 4 ] [2] ;", {"a": ("f16", None), "b": ("f16", (4, 2))}),
        (".global .f32 a[2*2];", {"a": ("f32", None)}),
        (".global .b32 a, b = 1;", {"a": ("", ()), "b": ("", ())}),
        ("// .global .f32 a;\n.shared .f32 b[4];", {}),
        (".entry k(.param .u64 .ptr .global .align 4 p) { ld.global.f32 %f, [%r]; }", {}),
    ],
)
def test_variables_are_read_in_a_text(declared: str, variables: Any) -> None:
    found = variables_of(HEAD + declared)
    assert {name: (v.type, v.shape) for name, v in found.items()} == variables


def test_a_cpp_text_does_not_tell_signs() -> None:
    need_nvrtc()
    text = "__device__ int a; __device__ float b; __device__ unsigned char c[3]; __global__ void k() { a = b + c[1]; }"
    found = nvrtc.compile_cuda(text, "sm_90", output="ptx").variables
    assert {name: (v.type, v.shape) for name, v in found.items()} == {"a": ("", ()), "b": ("f32", ()), "c": ("", (3,))}
