"""Loading a kernel and launching it: what goes through, and each check by itself."""

from __future__ import annotations

import copy
import pickle
import re
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import Patch, refused
from texts import CONSTANT, DYNAMIC_SHARED, HEAD, NOTHING, SAXPY, SAXPY_SIGNATURE, source_for, store_params

import ptxrt
from ptxrt import Device, DeviceArray, Kernel, KernelSource
from ptxrt.compilers import nvrtc


@pytest.fixture(scope="module")
def saxpy(device: Device) -> Kernel:
    return ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)


@pytest.fixture
def x(device: Device) -> DeviceArray:
    return ptxrt.to_device(np.arange(1000, dtype=np.float32), device)


@pytest.fixture
def y(device: Device) -> DeviceArray:
    return ptxrt.to_device(np.ones(1000, np.float32), device)


@pytest.mark.ptx
def test_dynamic_shared_memory_begins_where_the_text_says_or_is_refused(device: Device) -> None:
    """Behind 16 bytes of the entry's own. nvJitLink 13.0 does not keep more than 16 bytes of the alignment."""
    text = (
        f"{HEAD}.extern .shared .align 128 .b8 memory[];\n.visible .entry k(.param .u64 x)\n{{\n"
        "  .shared .align 16 .b32 own[4];\n  .reg .b32 %r<3>;\n  .reg .b64 %d<2>;\n"
        "  ld.param.u64 %d1, [x];\n  cvta.to.global.u64 %d1, %d1;\n  mov.u32 %r1, memory;\n  mov.u32 %r2, own;\n"
        "  st.shared.u32 [%r2], 7;\n  st.shared.u32 [%r1], 7;\n  st.global.u32 [%d1], %r1;\n  ret;\n}\n"
    )
    out = ptxrt.ones(1, np.uint32, device)
    try:
        kernel = ptxrt.load(KernelSource.ptx(text), "k", "u32* x", device)
    except ptxrt.CompileError as error:
        assert "does not keep the alignment of memory" in str(error)  # noqa: PT017 (either is right)
        return
    kernel.launch(1, 1, out, shared_bytes=128)
    assert out.to_host()[0] % 128 == 0


@pytest.mark.sanitize
@pytest.mark.parametrize("n", [1, 31, 32, 33, 255, 256, 257, 997])
def test_a_kernel_computes_what_its_text_says_and_nothing_else(device: Device, saxpy: Kernel, n: int) -> None:
    host = np.arange(n, dtype=np.float32)
    guarded = ptxrt.to_device(np.full(n + 64, -1.0, np.float32), device)
    saxpy.launch((n + 63) // 64, 64, ptxrt.to_device(host, device), guarded[32 : 32 + n], n, 2.5)
    out = guarded.to_host()
    np.testing.assert_array_equal(out[32 : 32 + n], np.float32(2.5) * host - 1)
    assert (out[:32] == -1).all()
    assert (out[32 + n :] == -1).all()


def test_grid_and_block_are_numbers_or_sequences(device: Device, saxpy: Kernel, x: DeviceArray, y: DeviceArray) -> None:
    for grid, block in ((4, 256), ((4,), (256,)), ([4, 1], [256, 1, 1]), (np.int64(4), np.int32(256))):
        saxpy.launch(grid, block, x, y, 1000, 1.0)
    np.testing.assert_array_equal(y.to_host(), 1 + 4 * x.to_host())


def test_one_array_may_be_passed_as_const_and_not(saxpy: Kernel, y: DeviceArray) -> None:
    saxpy.launch(4, 256, y, y, 1000, 1.0)
    assert (y.to_host() == 2).all()


def test_a_kernel_without_parameters_launches(device: Device) -> None:
    ptxrt.load(source_for(NOTHING, device), "nothing", "", device).launch(1, 1)


@pytest.mark.ptx
def test_two_entries_of_one_text_share_a_module(device: Device) -> None:
    text = HEAD + ".visible .entry first() { ret; }\n.visible .entry second() { ret; }"
    before = device.modules.stats().compiles
    kernels = [ptxrt.load(KernelSource.ptx(text), name, "", device) for name in ("first", "second")]
    assert device.modules.stats().compiles == before + 1
    assert [k.entry for k in kernels] == ["first", "second"]


@pytest.fixture
def includes(device: Device) -> Any:
    """A text that includes a header, mine.h, which says what N is."""
    if device.kind != "hip" and (reason := nvrtc.available()):
        pytest.skip(reason)
    return KernelSource.hip('#include "mine.h"\nextern "C" __global__ void k(int* y) { *y = N; }')


def test_a_relative_folder_follows_chdir(device: Device, includes: Any, monkeypatch: Patch, tmp_path: Path) -> None:
    y = ptxrt.zeros(1, np.int32, device)
    for n in (4, 5):
        (tmp_path / str(n)).mkdir()
        (tmp_path / str(n) / "mine.h").write_text(f"#define N {n}\n")
        monkeypatch.chdir(tmp_path / str(n))
        ptxrt.load(includes, "k", "i32* y", device, ("-I.",)).launch(1, 1, y)
        assert y.to_host()[0] == n


def test_a_header_that_changed_is_read_anew(device: Device, includes: Any, monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    y = ptxrt.zeros(1, np.int32, device)
    for n in (6, 7):
        (tmp_path / "mine.h").write_text(f"#define N {n}\n")
        ptxrt.load(includes, "k", "i32* y", device, (f"-I{tmp_path}",)).launch(1, 1, y)
        assert y.to_host()[0] == n


# Scalars ------------------------------------------------------------------------------------------------------------

SCALARS = [
    ("u8", "u8", 200, struct.pack("B", 200)),
    ("i8", "s8", -100, struct.pack("b", -100)),
    ("u16", "u16", 65535, struct.pack("H", 65535)),
    ("i16", "s16", -32768, struct.pack("h", -32768)),
    ("u32", "u32", 2**32 - 1, struct.pack("I", 2**32 - 1)),
    ("i32", "s32", -(2**31), struct.pack("i", -(2**31))),
    ("u64", "u64", 2**64 - 1, struct.pack("Q", 2**64 - 1)),
    ("i64", "s64", -(2**63), struct.pack("q", -(2**63))),
    ("f32", "f32", 2.5, struct.pack("f", 2.5)),
    ("f64", "f64", 0.1, struct.pack("d", 0.1)),
    ("f16", "b16", 1.5, struct.pack("e", 1.5)),
    ("bf16", "b16", 3.0, np.array(3.0, ml_dtypes.bfloat16).tobytes()),
    ("bool", "u8", True, b"\1"),
]


def test_pain10_every_scalar_arrives_as_its_declared_type(device: Device) -> None:
    source = store_params(" ".join(ptx for _, ptx, *_ in SCALARS), device)
    signature = "u8* out, " + ", ".join(f"{kind} p{i}" for i, (kind, *_) in enumerate(SCALARS))
    kernel = ptxrt.load(source, "store", signature, device)
    out = ptxrt.zeros(8 * len(SCALARS), np.uint8, device)
    kernel.launch(1, 1, out, *(value for *_, value, _ in SCALARS))
    got = out.to_host().reshape(-1, 8)
    for row, (kind, _, value, expected) in zip(got, SCALARS, strict=True):
        assert bytes(row[: len(expected)]) == expected, (kind, value)


@pytest.mark.parametrize("value", [2.5, np.float64(2.5), np.float32(2.5)])
def test_pain10_a_python_float_goes_out_as_a_float32(saxpy: Kernel, x: DeviceArray, y: DeviceArray, value: Any) -> None:
    saxpy.launch(4, 256, x, y, 1000, value)
    assert y.to_host()[2] == 6.0


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("n", 2**32),
        ("n", -1),
        ("n", 1000.0),
        ("n", "1000"),
        ("n", None),
        ("a", 1e300),
        ("a", 2**200),
        ("a", "2.5"),
        ("a", 2.5j),
        ("a", None),
    ],
)
def test_a_wrong_scalar_is_refused(saxpy: Kernel, x: DeviceArray, y: DeviceArray, argument: str, value: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        saxpy.launch(4, 256, x, y, *((value, 1.0) if argument == "n" else (1000, value)))
    assert (caught.value.op, caught.value.argument) == ("saxpy", argument)
    assert ("u32" if argument == "n" else "f32") in str(caught.value)
    assert (y.to_host() == 1).all()


def test_a_masked_element_is_no_scalar(saxpy: Kernel, x: DeviceArray, y: DeviceArray) -> None:
    with refused(ptxrt.DTypeMismatch, "saxpy", "a", "a number that fits f32, given masked"):
        saxpy.launch(4, 256, x, y, 1000, np.ma.masked)
    with refused(ptxrt.DTypeMismatch, "saxpy", "n", "an integer that fits u32"):
        saxpy.launch(4, 256, x, y, np.ma.array(1000, mask=True), 1.0)
    assert (y.to_host() == 1).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e-45, 0])
def test_nan_inf_denormals_and_integers_are_floats(saxpy: Kernel, x: DeviceArray, y: DeviceArray, value: Any) -> None:
    saxpy.launch(4, 256, x, y, 1000, value)
    np.testing.assert_array_equal(y.to_host()[1], np.float32(1) + np.float32(value))


def test_a_bool_takes_truth_values_only(device: Device) -> None:
    kernel = ptxrt.load(store_params("u8", device), "store", "u8* out, bool flag", device)
    out = ptxrt.zeros(8, np.uint8, device)
    for value in (True, np.True_, 1):
        kernel.launch(1, 1, out, value)
        assert out.to_host()[0] == 1
    for wrong in (2, 1.0, "yes"):
        with pytest.raises(ptxrt.InvalidArgument, match="flag"):
            kernel.launch(1, 1, out, wrong)  # type: ignore[arg-type]


# Arrays -------------------------------------------------------------------------------------------------------------


def test_pain11_an_array_of_another_dtype_is_refused(
    device: Device, saxpy: Kernel, x: DeviceArray, y: DeviceArray
) -> None:
    with pytest.raises(ptxrt.DTypeMismatch) as caught:
        saxpy.launch(4, 256, ptxrt.zeros(1000, np.float64, device), y, 1000, 1.0)
    assert (caught.value.op, caught.value.argument, caught.value.given) == ("saxpy", "x", "float64")
    assert "f32" in str(caught.value)


@pytest.mark.parametrize("value", [None, 0x7F0000000000, 3.0, np.zeros(1000, np.float32), [1.0]])
def test_what_is_no_device_array_is_no_pointer(saxpy: Kernel, x: DeviceArray, y: DeviceArray, value: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        saxpy.launch(4, 256, value, y, 1000, 1.0)
    assert (caught.value.op, caught.value.argument) == ("saxpy", "x")
    assert "ptxrt.to_device" in str(caught.value)


def test_a_freed_array_is_refused(device: Device, saxpy: Kernel, y: DeviceArray) -> None:
    gone = ptxrt.zeros(1000, np.float32, device)
    gone.free()
    with pytest.raises(ptxrt.InvalidArgument, match=r"saxpy: x: .*freed"):
        saxpy.launch(4, 256, gone, y, 1000, 1.0)


def test_a_read_only_array_is_refused_where_the_kernel_writes(device: Device, saxpy: Kernel, x: DeviceArray) -> None:
    wide = ptxrt.zeros(1, np.float32, device).broadcast_to(1000)
    saxpy.launch(4, 256, x, ptxrt.zeros(1000, np.float32, device), 1000, 1.0)
    with pytest.raises(ptxrt.LayoutError, match=r"saxpy: y: .*read-only"):
        saxpy.launch(4, 256, x, wide, 1000, 1.0)


def test_pain13_and_15_an_array_of_another_device_is_refused(
    device: Device, other_device: Device, saxpy: Kernel, y: DeviceArray
) -> None:
    far = ptxrt.zeros(1000, np.float32, other_device)
    with pytest.raises(ptxrt.DeviceMismatch) as caught:
        saxpy.launch(4, 256, far, y, 1000, 1.0)
    assert (caught.value.op, caught.value.argument) == ("saxpy", "x")
    assert str(device) in str(caught.value)
    assert str(other_device) in str(caught.value)


def test_pain14_a_stream_of_another_device_is_refused(
    other_device: Device, saxpy: Kernel, x: DeviceArray, y: DeviceArray
) -> None:
    with pytest.raises(ptxrt.DeviceMismatch, match=r"saxpy: stream"):
        saxpy.launch(4, 256, x, y, 1000, 1.0, stream=other_device.create_stream())
    assert (y.to_host() == 1).all()


def test_pain15_each_device_has_its_own_module(device: Device, other_device: Device) -> None:
    source = source_for(SAXPY, device)
    kernels = [ptxrt.load(source, "saxpy", SAXPY_SIGNATURE, d) for d in (device, other_device)]
    for kernel, where in zip(kernels, (device, other_device), strict=True):
        out = ptxrt.to_device(np.ones(10, np.float32), where)
        kernel.launch(1, 32, out, out, 10, 1.0)
        assert (out.to_host() == 2).all()
        assert kernel.device is where


@pytest.mark.parametrize("count", [0, 3, 5])
def test_pain12_arity_is_exact(saxpy: Kernel, x: DeviceArray, y: DeviceArray, count: int) -> None:
    arguments: list[Any] = [x, y, 1000, 1.0, 7][:count]
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        saxpy.launch(4, 256, *arguments)
    assert (caught.value.op, caught.value.argument, caught.value.given) == ("saxpy", "arguments", str(count))
    assert SAXPY_SIGNATURE in str(caught.value)


def declared(device: Device, signature: str) -> Kernel:
    return ptxrt.load(source_for(SAXPY, device), "saxpy", signature, device)


def test_a_declared_length_is_checked(device: Device, x: DeviceArray, y: DeviceArray) -> None:
    kernel = declared(device, "const f32* x[n], f32* y[2*n], u32 n, f32 a")
    kernel.launch(4, 256, x, y, 500, 1.0)
    with pytest.raises(ptxrt.ShapeMismatch) as caught:
        kernel.launch(4, 256, x, y, 501, 1.0)
    assert caught.value.argument == "y"
    assert "1002" in str(caught.value)


def test_a_declared_length_wants_a_contiguous_array(device: Device, x: DeviceArray, y: DeviceArray) -> None:
    kernel = declared(device, "const f32* x[n], f32* y, u32 n, f32 a")
    with pytest.raises(ptxrt.LayoutError, match=r"saxpy: x: .*contiguous"):
        kernel.launch(4, 256, x[::2], y, 10, 1.0)


def test_a_length_that_is_no_whole_number_is_the_scalars_fault(device: Device, x: DeviceArray, y: DeviceArray) -> None:
    kernel = declared(device, "const f32* x[n], f32* y, u32 n, f32 a")
    with pytest.raises(ptxrt.InvalidArgument, match="saxpy: n"):
        kernel.launch(4, 256, x, y, 10.5, 1.0)


def test_a_declared_alignment_is_checked(device: Device, x: DeviceArray, y: DeviceArray) -> None:
    kernel = declared(device, "alignas(16) const f32* x, f32* y, u32 n, f32 a")
    kernel.launch(4, 256, x, y, 10, 1.0)
    kernel.launch(4, 256, x[4:], y, 10, 1.0)
    with pytest.raises(ptxrt.LayoutError, match=r"saxpy: x: .*multiple of 16"):
        kernel.launch(4, 256, x[1:], y, 10, 1.0)


def test_a_nullable_pointer_takes_none(device: Device) -> None:
    kernel = ptxrt.load(store_params("b64", device), "store", "u64* out, const f32*? maybe", device)
    out = ptxrt.to_device(np.full(1, 9, np.uint64), device)
    kernel.launch(1, 1, out, None)
    assert out.to_host()[0] == 0
    given = ptxrt.zeros(4, np.float32, device)
    kernel.launch(1, 1, out, given)
    assert out.to_host()[0] != 0


def test_a_kernel_that_writes_through_its_const_pointer_is_a_fault_on_sim(sim: Device) -> None:
    kernel = ptxrt.load(KernelSource.ptx(CONSTANT.format(value=5)), "constant", "const u32* out", sim)
    out = ptxrt.zeros(4, np.uint32, sim)
    with pytest.raises(ptxrt.MemoryFault) as caught:
        kernel.launch(1, 1, out)
    assert (caught.value.entry, caught.value.address) == ("constant", out.ptr)
    assert "const" in str(caught.value)
    assert (out.to_host() == 0).all()


def test_a_library_whose_array_raises_is_no_bad_scalar(saxpy: Kernel, y: DeviceArray) -> None:
    class Odd:
        def __dlpack_device__(self) -> None:
            raise ValueError("not today")

    with pytest.raises(ptxrt.InvalidArgument, match="not today") as caught:
        saxpy.launch(4, 256, Odd(), y, 1000, 1.0)  # type: ignore[arg-type]
    assert caught.value.argument == "x"


# Grid, block, shared memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "grid", "block"),
    [
        ("grid", 0, 1),
        ("grid", (1, 0), 1),
        ("grid", -1, 1),
        ("grid", (1, 1, 1, 1), 1),
        ("grid", (), 1),
        ("grid", 1.5, 1),
        ("grid", "1", 1),
        ("grid", None, 1),
        ("grid", np.ones(2), 1),
        ("grid", b"a", 1),
        ("grid", {1, 2}, 1),
        ("grid", (10**5000,), 1),
        ("block", 1, 0),
        ("block", 1, 1025),
        ("block", 1, (32, 33)),
        ("block", 1, True),
    ],
)
def test_a_grid_or_block_outside_the_limits_is_refused(
    saxpy: Kernel, x: DeviceArray, y: DeviceArray, argument: str, grid: Any, block: Any
) -> None:
    with pytest.raises(ptxrt.LaunchError) as caught:
        saxpy.launch(grid, block, x, y, 1000, 1.0)
    assert (caught.value.op, caught.value.argument) == ("saxpy", argument)
    assert (y.to_host() == 1).all()


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize("argument", ["grid", "block"])
def test_each_axis_has_its_own_limit(saxpy: Kernel, x: DeviceArray, y: DeviceArray, argument: str, axis: int) -> None:
    limits = getattr(saxpy.device.properties, f"max_{argument}")
    size = [1, 1, 1]
    size[axis] = limits[axis] + 1
    with refused(ptxrt.LaunchError, "saxpy", argument, f"each at least 1 and at most {limits}"):
        saxpy.launch(*((size, 1) if argument == "grid" else (1, size)), x, y, 1000, 1.0)


@pytest.mark.parametrize(
    ("argument", "grid", "block", "shared"),
    [
        ("grid", 4.0, 256, 0),
        ("grid", (4.0,), 256, 0),
        ("block", 4, 256.0, 0),
        ("shared_bytes", 4, 256, 0.0),
        ("shared_bytes", 4, 256, True),
    ],
)
def test_what_equals_a_good_launch_but_is_no_whole_number_is_refused(
    saxpy: Kernel, x: DeviceArray, y: DeviceArray, argument: str, grid: Any, block: Any, shared: Any
) -> None:
    saxpy.launch(4, 256, x, y, 1000, 0.0)
    with pytest.raises(ptxrt.LaunchError) as caught:
        saxpy.launch(grid, block, x, y, 1000, 1.0, shared_bytes=shared)
    assert caught.value.argument == argument


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps], ids=["copy", "deepcopy", "pickle"])
def test_a_kernel_is_neither_copied_nor_pickled(saxpy: Kernel, again: Any) -> None:
    with refused(ptxrt.InvalidArgument, "copy", "kernel", "the object itself", "Load it again"):
        again(saxpy)


def test_a_list_that_changed_is_looked_at_again(saxpy: Kernel, x: DeviceArray, y: DeviceArray) -> None:
    grid = [4]
    saxpy.launch(grid, 256, x, y, 1000, 1.0)
    grid[0] = 1
    saxpy.launch(grid, 256, x, y, 1000, 1.0)
    assert (y.to_host()[:256] == 1 + 2 * x.to_host()[:256]).all()
    assert (y.to_host()[256:] == 1 + x.to_host()[256:]).all()


@pytest.mark.ptx
def test_static_shared_memory_counts_against_the_dynamic(device: Device) -> None:
    text = DYNAMIC_SHARED.replace(
        "{\n", "{\n    .shared .align 4 .b8 static_bytes[1024];\n    st.shared.u32 [static_bytes], 1;\n", 1
    )
    kernel = ptxrt.load(KernelSource.ptx(text), "far_end", "u32* out, u32 last", device)
    most = device.properties.max_shared_dynamic - 1024
    assert kernel.resources.shared_bytes == 1024
    out = ptxrt.zeros(1, np.uint32, device)
    kernel.launch(1, 1, out, most - 4, shared_bytes=most)
    assert out.to_host()[0] == 77
    with pytest.raises(ptxrt.LaunchError, match=rf"shared_bytes: expected 0 to {most} beside 1024"):
        kernel.launch(1, 1, out, 0, shared_bytes=most + 1)


@pytest.mark.ptx
def test_more_static_shared_memory_than_a_block_has_is_refused(device: Device) -> None:
    text = HEAD + ".visible .entry big() { .shared .align 4 .b8 s[49156]; st.shared.u32 [s], 1; ret; }"
    # The assembler sees it when compiling, the machine's parser does not.
    with pytest.raises((ptxrt.CompileError, ptxrt.LaunchError), match="shared"):
        ptxrt.load(KernelSource.ptx(text), "big", "", device).launch(1, 1)


@pytest.mark.ptx
def test_a_required_block_is_required(device: Device) -> None:
    text = HEAD + ".visible .entry exact() .reqntid 64, 1, 1 { ret; }"
    kernel = ptxrt.load(KernelSource.ptx(text), "exact", "", device)
    kernel.launch(1, 64)
    said = r"\(64, 1, 1\), as \.reqntid says, given \(32, 1, 1\)\. Launch blocks of that shape, or write another"
    with pytest.raises(ptxrt.LaunchError, match=said if device.kind == "sim" else None):
        kernel.launch(1, 32)


@pytest.mark.ptx
def test_more_threads_than_the_kernel_allows_are_refused(device: Device) -> None:
    text = HEAD + ".visible .entry few() .maxntid 64, 1, 1 { ret; }"
    kernel = ptxrt.load(KernelSource.ptx(text), "few", "", device)
    assert kernel.resources.max_threads == 64
    kernel.launch(1, 64)
    with pytest.raises(ptxrt.LaunchError, match=r"few: block: expected at most 64"):
        kernel.launch(1, 65)


def test_pain27_dynamic_shared_memory_above_48_kib_is_opted_in(device: Device) -> None:
    kernel = ptxrt.load(source_for(DYNAMIC_SHARED, device), "far_end", "u32* out, u32 last", device)
    most = device.properties.max_shared_dynamic
    for nbytes in (1024, 48 << 10, (48 << 10) + 4, most):
        out = ptxrt.zeros(1, np.uint32, device)
        kernel.launch(1, 1, out, nbytes - 4, shared_bytes=nbytes)
        assert out.to_host()[0] == 77, nbytes


@pytest.mark.parametrize("given", [-1, 1.5, 227 * 1024 + 1, 1 << 40])
def test_pain27_more_shared_memory_than_there_is_names_the_limit(device: Device, given: Any) -> None:
    kernel = ptxrt.load(source_for(DYNAMIC_SHARED, device), "far_end", "u32* out, u32 last", device)
    most = {"sim": 227 << 10, "cuda": device.properties.max_shared_dynamic, "hip": 64 << 10}[device.kind]
    with pytest.raises(ptxrt.LaunchError, match=rf"far_end: shared_bytes: expected 0 to {most} "):
        kernel.launch(1, 1, ptxrt.zeros(1, np.uint32, device), 0, shared_bytes=given)


LOOP = HEAD + ".visible .entry loop(.param .u64 out) { again: bra again; }"


def test_a_budget_bounds_a_launch_on_sim(sim: Device) -> None:
    kernel = ptxrt.load(KernelSource.ptx(LOOP), "loop", "u32* out", sim)
    out = ptxrt.zeros(1, np.uint32, sim)
    with pytest.raises(ptxrt.Deadlock) as caught:
        kernel.launch(1, 1, out, budget=1000)
    assert (caught.value.entry, caught.value.line) == ("loop", 4)
    assert run_constant(sim) == 5


def test_a_budget_is_that_of_one_launch(sim: Device) -> None:
    counts = """{ .reg .pred %p; .reg .b32 %n; mov.u32 %n, 0;
        again: add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 1000; @%p bra again; ret; }"""
    kernel = ptxrt.load(KernelSource.ptx(f"{HEAD}.visible .entry counts() {counts}"), "counts", "", sim)
    kernel.launch(1, 1)
    with pytest.raises(ptxrt.Deadlock):
        kernel.launch(1, 1, budget=100)
    kernel.launch(1, 1)
    kernel.launch(1, 1, budget=10_000)


def run_constant(device: Device) -> Any:
    kernel = ptxrt.load(source_for(CONSTANT, device, value=5), "constant", "u32* out", device)
    out = ptxrt.zeros(1, np.uint32, device)
    kernel.launch(1, 1, out, budget=100 if device.kind == "sim" else None)
    return out.to_host()[0]


@pytest.mark.parametrize("budget", [0, -1, 1.5, "many", True])
def test_a_budget_is_a_number_of_instructions(sim: Device, budget: Any) -> None:
    kernel = ptxrt.load(KernelSource.ptx(LOOP), "loop", "u32* out", sim)
    with pytest.raises(ptxrt.InvalidArgument, match="loop: budget"):
        kernel.launch(1, 1, ptxrt.zeros(1, np.uint32, sim), budget=budget)


@pytest.mark.parametrize("budget", ["0", "-1", "many", "²", "9" * 5000], ids=range(5))
def test_a_budget_of_the_environment_is_one_too(sim: Device, monkeypatch: Patch, budget: Any) -> None:
    kernel = ptxrt.load(KernelSource.ptx(LOOP), "loop", "u32* out", sim)
    monkeypatch.setenv("PTXRT_SIM_BUDGET", budget)
    with refused(ptxrt.InvalidArgument, "PTXRT_SIM_BUDGET", "environment", "1 or more"):
        kernel.launch(1, 1, ptxrt.zeros(1, np.uint32, sim))


def test_a_budget_is_refused_where_nobody_counts(cuda: Device) -> None:
    kernel = ptxrt.load(KernelSource.ptx(LOOP), "loop", "u32* out", cuda)
    with pytest.raises(ptxrt.Unsupported, match="loop: budget"):
        kernel.launch(1, 1, ptxrt.zeros(1, np.uint32, cuda), budget=100)


# Loading ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "signature",
    [
        "const f32* x, f32* y, u32 n",
        "const f32* x, f32* y, u32 n, f32 a, u32 extra",
        # A table of AMD's has sizes, but no types.
        pytest.param("const f32* x, f32* y, f32 a, u32 n", marks=pytest.mark.ptx),
        "const f32* x, f32* y, u64 n, f32 a",
        "const f32* x, u32 n, f32* y, f32 a",
        "",
    ],
)
def test_pain12_a_signature_that_the_binary_contradicts_shows_both_side_by_side(device: Device, signature: str) -> None:
    with pytest.raises(ptxrt.SignatureMismatch) as caught:
        declared(device, signature)
    message = str(caught.value)
    assert (caught.value.op, caught.value.argument) == ("load", "saxpy")
    assert re.search(r"declared +compiled kernel", message)
    assert re.search(rf"{'bits|any|float' if device.kind == 'hip' else 'float'}, 4 bytes at 20", message)


@pytest.mark.ptx
def test_an_untyped_parameter_agrees_with_any_type_of_its_size(device: Device) -> None:
    source = store_params("b32", device)
    for kind in ("u32", "i32", "f32"):
        ptxrt.load(source, "store", f"u8* out, {kind} v", device)
    with pytest.raises(ptxrt.SignatureMismatch):
        ptxrt.load(source, "store", "u8* out, u64 v", device)


def test_names_take_no_part_in_the_agreement(device: Device) -> None:
    declared(device, "const f32* left, f32* right, u32 count, f32 factor")


def test_a_signature_may_be_a_functions_annotations(device: Device, x: DeviceArray, y: DeviceArray) -> None:
    def saxpy(x: "const f32*", y: "f32*", n: np.uint32, a: "f32") -> None: ...  # type: ignore[valid-type,name-defined]  # noqa: F722, F821, UP037

    kernel = ptxrt.load(source_for(SAXPY, device), "saxpy", saxpy, device)
    kernel.launch(4, 256, x, y, 1000, 1.0)
    assert str(kernel.signature) == SAXPY_SIGNATURE


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("source", lambda d: (SAXPY, "saxpy", SAXPY_SIGNATURE, d)),
        ("entry", lambda d: (source_for(SAXPY, d), None, SAXPY_SIGNATURE, d)),
        ("entry", lambda d: (source_for(SAXPY, d), "", SAXPY_SIGNATURE, d)),
        ("signature", lambda d: (source_for(SAXPY, d), "saxpy", 4, d)),
        ("options", lambda d: (source_for(SAXPY, d), "saxpy", SAXPY_SIGNATURE, d, "-O3")),
        ("options", lambda d: (source_for(SAXPY, d), "saxpy", SAXPY_SIGNATURE, d, (3,))),
        ("options", lambda d: (source_for(SAXPY, d), "saxpy", SAXPY_SIGNATURE, d, 3)),
    ],
)
def test_load_names_the_argument_of_the_wrong_kind(device: Device, argument: str, call: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        ptxrt.load(*call(device))
    assert (caught.value.op, caught.value.argument) == ("load", argument)


@pytest.mark.ptx
def test_resources_tell_what_the_kernel_needs(device: Device) -> None:
    body = ".shared .align 4 .b8 s[512]; .reg .b32 %r; ld.shared.u32 %r, [s]; st.shared.u32 [s+4], %r; ret;"
    text = HEAD + f".visible .entry one() {{ {body} }}"
    resources = ptxrt.load(KernelSource.ptx(text), "one", "", device).resources
    assert resources.shared_bytes == 512
    assert resources.registers > 0
    assert resources.local_bytes == 0
    assert resources.max_threads == 1024
    if device.kind == "cuda":
        assert resources.spill_store_bytes == 0


# Errors in the text -------------------------------------------------------------------------------------------------

BROKEN = {
    "unknown instruction": (SAXPY.replace("fma.rn.f32", "fmaa.rn.f32"), "fmaa"),
    "unknown register": (SAXPY.replace("[%py], %v", "[%py], %w"), "%w"),
    "type mismatch": (SAXPY.replace("fma.rn.f32 %v, %s", "fma.rn.f32 %v, %px"), "fma"),
    "missing label": (SAXPY.replace("    ret;\n", "    bra nowhere;\n"), "nowhere"),
}


@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.ptx
def test_pain9_a_compile_error_has_log_line_and_numbered_source(device: Device, fault: Any) -> None:
    text, word = BROKEN[fault]
    line = next(n for n, t in enumerate(text.splitlines(), 1) if t not in SAXPY.splitlines())
    with pytest.raises(ptxrt.CompileError) as caught:
        ptxrt.load(KernelSource.ptx(text, name="broken.ptx"), "saxpy", SAXPY_SIGNATURE, device)
    error, message = caught.value, str(caught.value)
    assert error.line == line
    assert word in message
    assert f"> {line:5d} | " in message
    assert error.kernel in ("saxpy", "broken.ptx")
    assert error.arch == device.arch


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("café\n" + SAXPY, "ASCII"),
        ("__global__ void f() {}", r"\.version"),
        (SAXPY.replace(".version 7.0", ".version 99.0"), r"99\.0"),
        (SAXPY.replace("sm_70", "sm_999"), "sm_999"),
        (SAXPY[: len(SAXPY) // 2], r"saxpy|end|cut"),
        ("\0", r"NUL|character"),
    ],
)
@pytest.mark.ptx
def test_pain8_and_9_text_that_is_no_ptx_says_what_is_wrong(device: Device, text: Any, says: str) -> None:
    with pytest.raises(ptxrt.CompileError, match=says):
        ptxrt.load(KernelSource.ptx(text), "saxpy", SAXPY_SIGNATURE, device)


@pytest.mark.ptx
def test_pain8_too_new_a_version_names_the_newest_that_is_read(device: Device) -> None:
    text = SAXPY.replace(".version 7.0", ".version 99.0")
    with pytest.raises(ptxrt.CompileError, match=r"99\.0.*\b(8|9|10)\.\d"):
        ptxrt.load(KernelSource.ptx(text), "saxpy", SAXPY_SIGNATURE, device)


def test_a_missing_entry_names_those_there_are(device: Device) -> None:
    with pytest.raises(ptxrt.CompileError, match=r"saxpi.*saxpy"):
        ptxrt.load(source_for(SAXPY, device), "saxpi", SAXPY_SIGNATURE, device)
    ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device)


@pytest.mark.ptx
def test_text_typed_in_bits_throughout_loads(device: Device) -> None:
    body = "mov.b32 %r, 0f3F800000; mov.b64 %d, 0d3FF0000000000000; st.global.b32 [%p], %r; st.global.b64 [%p+8], %d;"
    # No .address_size either: it is 64 on every device that there is.
    text = ".version 7.0\n.target sm_52\n.visible .entry bits(.param .b64 o) { .reg .b64 %p, %d; .reg .b32 %r; "
    kernel = ptxrt.load(KernelSource.ptx(f"{text} ld.param.b64 %p, [o]; {body} ret; }}"), "bits", "u8* o", device)
    out = ptxrt.zeros(16, np.uint8, device)
    kernel.launch(1, 1, out)
    assert out.to_host()[:4].view(np.float32)[0] == 1
    assert out.to_host()[8:].view(np.float64)[0] == 1


@pytest.mark.parametrize("options", [("-arch=sm_80",), ("",), ("-o", "x")])
def test_an_option_that_is_none_is_refused_on_every_device(device: Device, options: Any) -> None:
    with pytest.raises(ptxrt.PtxrtError):
        ptxrt.load(source_for(SAXPY, device), "saxpy", SAXPY_SIGNATURE, device, options)


def test_a_language_that_a_device_does_not_take_is_unsupported(device: Device, monkeypatch: Patch) -> None:
    monkeypatch.setattr(device.backend, "languages", ("ptx", "hip"))
    with refused(ptxrt.Unsupported, "load", "source", f"a text in ptx or hip on {device}", "cuda"):
        ptxrt.load(KernelSource.cuda("__global__ void f() {}"), "f", "", device)


# CUDA C++ -----------------------------------------------------------------------------------------------------------

CUDA = """
template <typename T> __global__ void scale(T* x, unsigned n, T a) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= a * FACTOR;
}
extern "C" __global__ void plain(float* x) { x[threadIdx.x] += 1.0f; }
"""


@pytest.fixture(scope="module")
def needs_nvrtc() -> None:
    from ptxrt.compilers import nvrtc

    reason = nvrtc.available()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.parametrize("kind", ["float", "double"])
@pytest.mark.ptx
def test_cuda_cpp_templates_are_found_by_expression(device: Device, kind: str) -> None:
    dtype, name = {"float": (np.float32, "f32"), "double": (np.float64, "f64")}[kind]
    source = KernelSource.cuda(CUDA, {"FACTOR": 2})
    kernel = ptxrt.load(source, f"scale<{kind}>", f"{name}* x, u32 n, {name} a", device)
    x = ptxrt.to_device(np.arange(100, dtype=dtype), device)
    kernel.launch(2, 64, x, 100, 3.0)
    np.testing.assert_array_equal(x.to_host(), 6 * np.arange(100, dtype=dtype))


@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.ptx
def test_cuda_cpp_plain_names_are_found_by_name(device: Device) -> None:
    kernel = ptxrt.load(KernelSource.cuda(CUDA, {"FACTOR": 1}), "plain", "f32* x", device)
    x = ptxrt.zeros(32, np.float32, device)
    kernel.launch(1, 32, x)
    assert (x.to_host() == 1).all()


@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.ptx
def test_cuda_cpp_signatures_are_checked_for_class_too(device: Device) -> None:
    source = KernelSource.cuda(CUDA, {"FACTOR": 2})
    with pytest.raises(ptxrt.SignatureMismatch):
        ptxrt.load(source, "scale<float>", "f32* x, f32 n, f32 a", device)


@pytest.mark.usefixtures("needs_nvrtc")
@pytest.mark.ptx
def test_cuda_cpp_faults_have_a_line(device: Device) -> None:
    with pytest.raises(ptxrt.CompileError) as caught:
        ptxrt.load(KernelSource.cuda("__global__ void f() {\n  undeclared = 1;\n}"), "f", "", device)
    assert caught.value.line == 2
    assert "undeclared" in str(caught.value)
