"""ptxrt.check.check: what is passed, what is found, and the report."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import need_nvrtc, refused

import ptxrt
from ptxrt.check.run import check
from ptxrt.commands._check_report import as_json, as_text
from ptxrt.commands._demo_cases import SAXPY
from ptxrt.compilers import nvrtc
from ptxrt.sim._machine.reports import Trap

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
SIGNATURE = "const f32* x, f32* y, u32 n, f32 a"
GOOD = {"x": "random:f32:1024", "y": "zeros:f32:1024", "n": 1024, "a": 2}
RACE = f"""{HEAD}
.shared .align 4 .b8 tile[128];
.visible .entry k(.param .u64 out)
{{
    .reg .u32 t, u, v;
    mov.u32 t, %tid.x;
    shl.b32 u, t, 2;
    st.shared.u32 [u], t;
    xor.b32 u, u, 4;
    ld.shared.u32 v, [u];
    ret;
}}
"""


def saxpy(**changes: Any) -> Any:
    how = {"grid": 4, "block": 256, "arguments": GOOD, "signature": SIGNATURE, **changes}
    return check(ptxrt.KernelSource.ptx(SAXPY, name="saxpy.ptx"), **how)


def body(text: str, params: str = "", **how: Any) -> Any:
    """Check a kernel of one block of 32 threads."""
    source = ptxrt.KernelSource.ptx(f"{HEAD}.visible .entry k({params})\n{{\n{text}\nret;\n}}\n")
    return check(source, **{"grid": 1, "block": 32, "arguments": {}, **how})


# From Python ------------------------------------------------------------------------------------------------------


def test_a_good_kernel_has_no_fault_and_its_results_are_there() -> None:
    report = saxpy()
    assert report.fault is None
    assert report.entry.name == "saxpy"
    assert (report.launch.threads, report.profile, report.signature_from_text) == (1024, None, False)
    x, y = report.arrays["x"], report.arrays["y"]
    np.testing.assert_array_equal(y, 2 * x)
    assert abs(float(x.mean())) < 0.2
    assert 0.8 < float(x.std()) < 1.2


def test_arrays_of_ones_own_are_copied() -> None:
    x, y = np.arange(1024, dtype=np.float32), np.ones(1024, np.float32)
    report = saxpy(arguments={"x": x, "y": y, "n": np.int64(1024), "a": np.float32(0.5)})
    np.testing.assert_array_equal(report.arrays["y"], x / 2 + 1)
    assert y.sum() == 1024


def test_the_seed_makes_the_arrays() -> None:
    first, again, other = saxpy(), saxpy(), saxpy(seed=1)
    np.testing.assert_array_equal(first.arrays["x"], again.arrays["x"])
    assert (first.arrays["x"] != other.arrays["x"]).any()


def test_without_a_signature_the_texts_own_parameters_are_used() -> None:
    report = saxpy(signature=None, arguments={f"{k}_ptr" if k in "xy" else k: v for k, v in GOOD.items()})
    assert report.fault is None
    assert report.signature_from_text
    assert str(report.signature) == "f32* x_ptr, f32* y_ptr, u32 n, f32 a"
    assert "(as the text declares it)" in as_text(report)


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [
        ("b32", "7", "u32"),
        ("b32", "-7", "i32"),
        ("b32", "7.5", "f32"),
        ("b16", "0.5", "f16"),
        ("b8", "7", "u8"),
        ("b64", "-1e3", "f64"),
        ("s64", "-7", "i64"),
        ("u8", "0x7", "u8"),
    ],
)
def test_untyped_scalars_follow_the_number(kind: str, number: str, name: str) -> None:
    report = body("", f".param .{kind} a", arguments={"a": number})
    assert str(report.signature) == f"{name} a"


FAULTS = {
    "outside": (".reg .u64 p; .reg .u32 v; mov.u64 p, 0;\nld.global.u32 v, [p];", ptxrt.MemoryFault, 7),
    "barrier": (
        ".reg .u32 t; .reg .pred q; mov.u32 t, %tid.x; setp.lt.u32 q, t, 16;\n@q bra ON;\nbar.sync 1;\n"
        "bra OFF;\nON:\nbar.sync 2;\nOFF:",
        ptxrt.Deadlock,
        11,
    ),
    "endless": ("AGAIN:\nbra AGAIN;", ptxrt.Deadlock, 7),
    "trap": ("\ntrap;", Trap, 7),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_is_in_the_report_with_its_line(case: Any) -> None:
    text, kind, line = FAULTS[case]
    report = body(text, budget=5000)
    assert type(report.fault) is kind
    assert (report.fault.entry, report.fault.line, report.fault.block) == ("k", line, (0, 0, 0))
    assert report.fault.text in text
    assert f"k, line {line}: " in as_text(report)
    assert f">     {line} | " in as_text(report) or f">    {line} | " in as_text(report)
    assert report.launch is None


def test_a_trap_is_a_failed_launch() -> None:
    fault = body("trap;").fault
    assert isinstance(fault, ptxrt.LaunchError)
    assert pickle.loads(pickle.dumps(fault)).line == fault.line  # type: ignore[attr-defined]


def test_the_nearest_allocation_goes_by_the_parameters_name() -> None:
    report = saxpy(arguments={**GOOD, "y": "zeros:f32:1000"})
    assert isinstance(report.fault, ptxrt.MemoryFault)
    assert str(report.fault.nearest).startswith("0 bytes past the end of y ")


def test_const_is_held_to() -> None:
    report = saxpy(signature="const f32* x, const f32* y, u32 n, f32 a")
    assert isinstance(report.fault, ptxrt.MemoryFault)
    assert "through a pointer that the Signature calls const" in str(report.fault)


def test_a_race_shows_both_lines() -> None:
    report = check(ptxrt.KernelSource.ptx(RACE), grid=1, block=32, arguments={"out": 0}, counts=True)
    text = as_text(report)
    assert isinstance(report.fault, ptxrt.DataRace)
    assert ">    13 |     ld.shared.u32 v, [u];" in text
    assert "against line 11" in text
    assert "nearest: 4 bytes into tile of 128 bytes" in text
    assert "counts up to the fault" in text


def test_an_output_that_is_read_before_it_is_written() -> None:
    arguments = {**GOOD, "y": "empty:f32:1024"}
    fault = saxpy(arguments=arguments).fault
    assert isinstance(fault, ptxrt.MemoryFault)
    assert (fault.line, "nobody has written" in str(fault)) == (31, True)
    assert saxpy(arguments=arguments, checks=()).fault is None
    assert "uninitialised" not in saxpy(checks=("global-races",)).checks


def test_two_threads_that_write_one_element() -> None:
    text = ".reg .u64 p; .reg .u32 t; mov.u32 t, %tid.x; ld.param.u64 p, [y];\nst.global.u32 [p], t;"
    how = {"grid": 2, "block": 1, "arguments": {"y": "empty:u32:1"}}
    fault = body(text, ".param .u64 y", **how).fault
    assert isinstance(fault, ptxrt.DataRace)
    assert fault.line == 7
    assert str(fault.nearest).startswith("0 bytes into y ")
    assert str(fault).count("0 bytes into y ") == 1
    assert body(text, ".param .u64 y", **how, checks=["uninitialised"]).fault is None


def test_checks_that_there_are_not() -> None:
    with pytest.raises(ptxrt.InvalidArgument, match="global-races"):
        saxpy(checks=["races"])


def test_a_grid_that_is_no_multiple_of_the_cluster() -> None:
    text = f"{HEAD.replace('sm_80', 'sm_90')}.entry k() .reqnctapercluster 2, 1, 1 {{ ret; }}"
    with pytest.raises(ptxrt.LaunchError, match="a multiple of the cluster"):
        check(ptxrt.KernelSource.ptx(text), grid=3, block=32, arguments={})
    assert check(ptxrt.KernelSource.ptx(text), grid=4, block=32, arguments={}).fault is None


# Arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "kind", "values"),
    [
        ("zeros:f32:2x3", "f32", np.zeros((2, 3), np.float32)),
        ("ones:i8:4", "i8", np.ones(4, np.int8)),
        ("arange:u16:2x2", "u16", np.array([[0, 1], [2, 3]], np.uint16)),
        ("full:-2.5:f16:2", "f16", np.full(2, -2.5, np.float16)),
        ("full:0x10:u64:2", "u64", np.full(2, 16, np.uint64)),
        ("full:inf:f64:1", "f64", np.array([np.inf])),
        ("nan:bf16:3", "bf16", np.full(3, np.nan).astype(ml_dtypes.bfloat16)),
        ("zeros:f32:0", "f32", np.zeros(0, np.float32)),
    ],
)
def test_forms_of_arrays(form: str, kind: str, values: Any) -> None:
    found = body("", ".param .u64 p", signature=f"{kind}* p", arguments={"p": form}).arrays["p"]
    assert (found.dtype, found.shape) == (values.dtype, values.shape)
    np.testing.assert_array_equal(found.astype(np.float64), values.astype(np.float64))


@pytest.mark.parametrize("kind", ["f16", "bf16", "f64", "i8", "u64", "bool"])
def test_random_arrays_of_every_type(kind: str) -> None:
    found = body("", ".param .u64 p", signature=f"{kind}* p", arguments={"p": f"random:{kind}:500"}).arrays["p"]
    values = found.astype(np.float64)
    assert np.isfinite(values).all()
    assert len(set(values.tolist())) > 1
    assert kind in ("f16", "bf16", "f64") or (values.min() >= 0 and values.max() < 100)


def test_arrays_from_files(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1024, dtype=np.float32))
    report = saxpy(arguments={**GOOD, "x": f"file:{tmp_path / 'x.npy'}"})
    assert report.arrays["y"][7] == 14


def test_null_pointers_where_they_are_declared() -> None:
    assert body("", ".param .u64 p", signature="f32*? p", arguments={"p": "null"}).fault is None
    with pytest.raises(ptxrt.InvalidArgument, match=r"f32\*\? p"):
        body("", ".param .u64 p", signature="f32* p", arguments={"p": None})


KINDS: dict[str, tuple[Any, ...]] = {
    "source": (None, "saxpy"),
    "entry": (5, b"saxpy", ["saxpy"]),
    "signature": (5, ["f32* x"]),
    "arguments": (None, 5, [("x", 1)]),
    "checks": (None, 5, [5]),
    "arch": (90, b"sm_90"),
}


@pytest.mark.parametrize("argument", KINDS)
def test_an_argument_of_another_kind_is_refused(argument: str) -> None:
    good: dict[str, Any] = {"source": ptxrt.KernelSource.ptx(SAXPY), "grid": 1, "block": 1, "arguments": {}}
    for value in KINDS[argument]:
        with refused(ptxrt.InvalidArgument, "check", argument, repr(value)):
            check(**{**good, argument: value})


@pytest.mark.parametrize("argument", ["grid", "block"])
@pytest.mark.parametrize("value", [b"a", {1}, 1.0, True, (10**5000,)], ids=range(5))
def test_a_grid_or_a_block_is_of_whole_numbers_within_the_limits(argument: str, value: Any) -> None:
    with refused(ptxrt.LaunchError, "saxpy", argument):
        saxpy(**{argument: value})


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"n": 10**5000}, ptxrt.InvalidArgument, "an integer of 16610 bits"),
        ({"x": "randm:f32:4"}, ptxrt.InvalidArgument, "Did you mean random"),
        ({"x": "random:f33:4"}, ptxrt.DTypeMismatch, "f33"),
        ({"x": "random:f64:1024"}, ptxrt.DTypeMismatch, "float64"),
        ({"x": "random:f32:4x"}, ptxrt.InvalidArgument, "random:f32:8x1024"),
        ({"x": "random:f32:" + "9" * 5000}, ptxrt.InvalidArgument, "random:f32:8x1024"),
        ({"x": "random:f32:" + "x".join("1" * 99)}, ptxrt.InvalidArgument, "random:f32:8x1024"),
        ({"x": "random:f32:99999999x99999999"}, ptxrt.InvalidArgument, "at most"),
        ({"x": "random:f32"}, ptxrt.InvalidArgument, "random:f32:8x1024"),
        ({"x": "full:x:f32:4"}, ptxrt.InvalidArgument, "values that f32 can hold, given 'full:x:f32:4'"),
        ({"x": "full:1e39:f32:4"}, ptxrt.InvalidArgument, "values that f32 can hold"),
        ({"x": "full:1e5:f16:4"}, ptxrt.InvalidArgument, "values that f16 can hold"),
        ({"x": "full:1e39:bf16:4"}, ptxrt.InvalidArgument, "values that bf16 can hold"),
        ({"x": "full:300:u8:4"}, ptxrt.InvalidArgument, "values that u8 can hold"),
        ({"x": "full:-1:u32:4"}, ptxrt.InvalidArgument, "values that u32 can hold"),
        ({"x": "arange:u8:257"}, ptxrt.InvalidArgument, "values that u8 can hold"),
        ({"x": "full:2:bool:4"}, ptxrt.InvalidArgument, "values that bool can hold"),
        ({"x": "arange:bool:3"}, ptxrt.InvalidArgument, "values that bool can hold"),
        ({"x": "arange:f16:70000"}, ptxrt.InvalidArgument, "values that f16 can hold"),
        ({"x": "file:nowhere.npy"}, ptxrt.InvalidArgument, "No such file"),
        ({"x": "file:."}, ptxrt.InvalidArgument, "Is a directory"),
        ({"x": f"file:{__file__}"}, ptxrt.InvalidArgument, "a .npy file of one array, as numpy.save writes it"),
        ({"x": 5}, ptxrt.InvalidArgument, "an array for the pointer"),
        ({"n": "ten"}, ptxrt.InvalidArgument, "a number for u32 n"),
        ({"n": "zeros:u32:1"}, ptxrt.InvalidArgument, "a number for u32 n"),
        ({"n": -1}, ptxrt.InvalidArgument, "fits u32"),
        ({"n": "1.5"}, ptxrt.InvalidArgument, "an integer that fits u32"),
        ({"a": "1e300"}, ptxrt.InvalidArgument, "fits f32"),
        ({"a": "random:f32"}, ptxrt.InvalidArgument, "a number for f32 a, given 'random:f32'"),
        ({"a": None}, ptxrt.InvalidArgument, "a number for f32 a, given None"),
        ({"n": ""}, ptxrt.InvalidArgument, "a number for u32 n, given ''"),
        ({"m": 1}, ptxrt.InvalidArgument, "a parameter: x, y, n, a"),
    ],
)
def test_arguments_that_are_refused(changes: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=re.escape(words)):
        saxpy(arguments={**GOOD, **changes})


def test_an_argument_that_no_parameter_has() -> None:
    with pytest.raises(ptxrt.InvalidArgument, match=r"a parameter: out, given 'x'\. A signature can give"):
        body("", ".param .u64 out", arguments={"x": 1})
    with pytest.raises(ptxrt.InvalidArgument, match=r"given 'oit'. Did you mean out\?"):
        body("", ".param .u64 out", arguments={"oit": 1})
    with pytest.raises(ptxrt.InvalidArgument, match=r"a parameter: there is none, given 'x'$"):
        body("", arguments={"x": 1})


def test_a_null_pointer_needs_no_signature() -> None:
    report = body("", ".param .u64 p", arguments={"p": "null"})
    assert (str(report.signature), report.fault, report.arrays) == ("u8*? p", None, {})
    assert body("", ".param .b64 p", arguments={"p": None}).fault is None
    with pytest.raises(ptxrt.InvalidArgument, match=r"a number, as the parameter is \.u32, given None"):
        body("", ".param .u32 p", arguments={"p": None})


def test_a_file_that_is_larger_than_memory(tmp_path: Path) -> None:
    with (tmp_path / "x.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 50,)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(ptxrt.OutOfDeviceMemory, match="the host has no memory for file:"):
        saxpy(arguments={**GOOD, "x": f"file:{tmp_path / 'x.npy'}"})


def test_an_argument_that_is_missing() -> None:
    with pytest.raises(ptxrt.InvalidArgument, match=r"y: expected an array for the pointer f32\* y .*, given nothing"):
        saxpy(arguments={name: value for name, value in GOOD.items() if name != "y"})
    with pytest.raises(ptxrt.InvalidArgument, match=r"or null, if this \.u64 is a pointer, or else a number"):
        body("", ".param .u64 p")
    with pytest.raises(ptxrt.InvalidArgument, match=r"a number, as the parameter is \.u32"):
        body("", ".param .u32 n", arguments={"n": "zeros:f32:1"})
    with pytest.raises(ptxrt.InvalidArgument, match="16 bytes by value"):
        body("", ".param .b8 s[16]", arguments={"s": 1})


def test_lengths_are_held_to() -> None:
    signature = "const f32* x[n], f32* y[2*n], u32 n, f32 a"
    with pytest.raises(ptxrt.ShapeMismatch, match="at least 2048 elements"):
        saxpy(signature=signature)
    assert saxpy(signature=signature, arguments={**GOOD, "y": "zeros:f32:2048"}).fault is None


def test_a_signature_that_is_not_the_texts() -> None:
    with pytest.raises(ptxrt.SignatureMismatch, match="declared"):
        saxpy(signature="const f32* x, f32* y, f32 n, u32 a")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"grid": 0}, "grid: expected each at least 1"),
        ({"grid": (1, 65536)}, "grid: "),
        ({"block": (1025,)}, "block: "),
        ({"block": (64, 32)}, "at most 1024 threads, given (64, 32, 1), 2048. Launch smaller blocks"),
        ({"block": (1, 1, 1, 1)}, "one to three whole numbers"),
        ({"block": 1.5}, "one to three whole numbers"),
        ({"shared_bytes": 1 << 20}, "shared_bytes: "),
        ({"shared_bytes": -1}, "shared_bytes: "),
    ],
)
def test_launches_that_no_device_takes(changes: Any, words: str) -> None:
    with pytest.raises(ptxrt.LaunchError, match=re.escape(words)):
        saxpy(**changes)


@pytest.mark.parametrize("changes", [{"budget": 0}, {"budget": True}, {"seed": -1}, {"seed": 0.5}, {"arch": "sm_90"}])
def test_options_that_are_refused(changes: Any) -> None:
    with pytest.raises(ptxrt.InvalidArgument, match=f"^saxpy: {next(iter(changes))}: "):
        saxpy(**changes)


def test_a_grid_of_numpys_numbers() -> None:
    assert saxpy(grid=np.int64(4), block=(np.uint32(256), 1)).block == (256, 1, 1)


def test_a_kernel_that_no_launch_can_serve_is_no_fault_of_a_run() -> None:
    with pytest.raises(ptxrt.LaunchError, match="local memory"):
        body(".local .b8 much[1000000];")


def test_maxntid_and_reqntid_are_held_to() -> None:
    with pytest.raises(ptxrt.LaunchError, match=r"at most 16 threads.*smaller blocks, or raise the kernel's \.maxntid"):
        check(ptxrt.KernelSource.ptx(f"{HEAD}.entry k() .maxntid 16 {{ ret; }}"), grid=1, block=32, arguments={})
    for block in (8, 32):
        with pytest.raises(ptxrt.LaunchError, match=r"as \.reqntid says, .*Launch blocks of that shape, or write"):
            check(ptxrt.KernelSource.ptx(f"{HEAD}.entry k() .reqntid 16 {{ ret; }}"), grid=1, block=block, arguments={})


def test_the_entry_may_be_left_out_where_there_is_one() -> None:
    two = ptxrt.KernelSource.ptx(f"{HEAD}.entry one() {{ ret; }}\n.entry two() {{ ret; }}")
    with pytest.raises(ptxrt.InvalidArgument, match="one of one, two"):
        check(two, grid=1, block=1, arguments={})
    assert check(two, "two", grid=1, block=1, arguments={}).entry.name == "two"
    with pytest.raises(ptxrt.CompileError, match="Did you mean two"):
        check(two, "tow", grid=1, block=1, arguments={})


def test_dynamic_shared_memory() -> None:
    text = ".reg .u32 t; mov.u32 t, %tid.x; shl.b32 t, t, 2;\nst.shared.u32 [t], t;"
    assert isinstance(body(text).fault, ptxrt.MemoryFault)
    assert body(text, shared_bytes=128).fault is None


@pytest.mark.skipif(nvrtc.available() is not None, reason="NVRTC is not installed")
@pytest.mark.parametrize("language", ["cuda", "hip"])
def test_cpp_text(language: str) -> None:
    text = "template <class T> __global__ void twice(T* x, int n) { int i = threadIdx.x; if (i < n) x[i] *= 2; }"
    source = getattr(ptxrt.KernelSource, language)(text, name="twice.cpp")
    report = check(source, "twice<double>", "f64* x, i32 n", grid=1, block=32, arguments={"x": "arange:f64:9", "n": 9})
    np.testing.assert_array_equal(report.arrays["x"], 2.0 * np.arange(9))
    assert "twice<double>, line 1 of twice.cpp" in as_text(report)


def test_counts_by_line_stand_beside_the_text() -> None:
    text = as_text(saxpy(counts=True))
    number = 1 + SAXPY[: SAXPY.index("ld.global.f32 %xi")].count("\n")
    (row,) = re.findall(rf"^ *{number} +(.*?) +ld\.global\.f32 %xi, \[%x\];$", text, re.MULTILINE)
    assert row.split() == ["32", "32.0", "4096", "128", "128", "100%"]
    (total,) = re.findall(r"^ *all +(.*)$", text, re.MULTILINE)
    assert total.split() == ["640", "32.0", "12288", "384", "384", "100%"]
    assert "conflicts" not in text  # no shared memory, no column


# C++ without a signature ----------------------------------------------------------------------------------------------

SCALE = """
__global__ void scale(const float* x, float* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
"""
SCALED: dict[str, Any] = {"grid": 1, "block": 32, "arguments": {"x": "ones:f32:20", "y": "empty:f32:20", "n": 20}}


@pytest.mark.parametrize("entry", [None, "scale"])
def test_a_kernel_in_cxx_is_called_by_its_own_names(entry: str | None) -> None:
    need_nvrtc()
    report = check(ptxrt.KernelSource.cuda(SCALE), entry, **SCALED)
    assert str(report.signature) == "const f32* x, f32* y, u32 n"
    assert (report.fault, report.signature_from_text) == (None, True)
    np.testing.assert_array_equal(report.arrays["y"], np.full(20, 2, np.float32))


def test_a_template_is_called_by_its_own_names() -> None:
    need_nvrtc()
    text = "template <class T> __global__ void fill(T* y, T value) { y[threadIdx.x] = value; }"
    call: Any = {"grid": 1, "block": 4, "arguments": {"y": "empty:f64:4", "value": 2.5}}
    report = check(ptxrt.KernelSource.cuda(text), "fill<double>", **call)
    assert str(report.signature) == "f64* y, f64 value"
    np.testing.assert_array_equal(report.arrays["y"], np.full(4, 2.5))


def test_null_for_a_pointer_in_cxx_may_be_null() -> None:
    need_nvrtc()
    text = "__global__ void maybe(float* y) { if (y) y[0] = 1; }"
    report = check(ptxrt.KernelSource.cuda(text), grid=1, block=1, arguments={"y": None})
    assert str(report.signature) == "f32*? y"


@pytest.mark.parametrize(
    "signature", ["const f64* x, f32* y, u32 n", "const f32* x, f32* y, f32 n", "const f32* x, const f32* y, u32 n"]
)
def test_a_signature_of_other_types_than_the_cxx_has_is_refused(signature: str) -> None:
    need_nvrtc()
    with pytest.raises(ptxrt.SignatureMismatch):
        check(ptxrt.KernelSource.cuda(SCALE), "scale", signature, **SCALED)


def test_elements_that_the_launch_leaves_unwritten_are_counted() -> None:
    need_nvrtc()
    source = ptxrt.KernelSource.cuda(SCALE.replace("i < n", "i + 3 < n"))
    report = check(source, **SCALED)
    assert (report.fault, report.unwritten) == (None, {"y": 3})
    assert "empty:f32:20, 80 bytes; 3 of 20 elements were never written" in as_text(report)
    assert as_json(report).count('"unwritten": {') == 1
    whole = check(ptxrt.KernelSource.cuda(SCALE), **SCALED)
    assert whole.unwritten == {"y": 0}
    assert "never written" not in as_text(whole)
    assert check(source, checks=(), **SCALED).unwritten == {}


def test_a_text_of_a_template_alone_says_how_it_is_named() -> None:
    need_nvrtc()
    text = "template <class T> __global__ void fill(T* y, T value) { y[threadIdx.x] = value; }"
    with refused(ptxrt.InvalidArgument, "check", "entry", "as in scale<float, 4>"):
        check(ptxrt.KernelSource.cuda(text), grid=1, block=4, arguments={"y": "empty:f64:4", "value": 2.5})
    with pytest.raises(ptxrt.CompileError) as caught:
        check(ptxrt.KernelSource.cuda(text), "fil<double>", grid=1, block=4, arguments={})
    assert "Did you mean fill<double>" in str(caught.value)
    assert "__nv_name_map" not in str(caught.value)


@pytest.mark.parametrize(
    "changes", [{"block": 2048}, {"block": "x"}, {"shared_bytes": 1 << 30}, {"budget": 0}, {"cooperative": True}]
)
def test_an_error_names_a_template_as_it_is_written(changes: dict[str, Any]) -> None:
    need_nvrtc()
    text = "template <class T> __global__ void fill(T* y, T value) { y[threadIdx.x] = value; }"
    how: dict[str, Any] = {"grid": 1 << 20, "block": 4, "arguments": {"y": "empty:f64:4", "value": 2.5}, **changes}
    with pytest.raises(ptxrt.PtxrtError) as caught:
        check(ptxrt.KernelSource.cuda(text), "fill<double>", **how)
    assert str(caught.value).startswith("fill<double>: ")


def test_errors_over_arguments_have_the_kernels_plain_name() -> None:
    need_nvrtc()
    with refused(ptxrt.InvalidArgument, "scale", "z", "x, y, n"):
        check(ptxrt.KernelSource.cuda(SCALE), **{**SCALED, "arguments": {**SCALED["arguments"], "z": 1}})


def test_the_address_of_a_copy_that_is_refused_is_the_arrays_own() -> None:
    """A const array is passed with a bit of its own, which no fault shows."""
    body = """
    .reg .b64 %x;  .reg .b32 %n;
    .shared .align 16 .b8 tile[16];
    ld.param.u64 %x, [x];  mov.u32 %n, 16;
    cp.async.cg.shared.global [tile], [%x+2], 16, %n;
    ret;"""
    text = f".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x)\n{{{body}\n}}\n"
    report = check(ptxrt.KernelSource.ptx(text), "k", "const f32* x", grid=1, block=1, arguments={"x": "ones:f32:8"})
    fault = report.fault
    assert isinstance(fault, ptxrt.MemoryFault)
    assert fault.address is not None
    assert fault.nearest is not None
    assert fault.nearest.startswith("2 bytes into x")
    assert f"{fault.address - 2:#x}" in fault.nearest
