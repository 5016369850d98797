"""Arrays, bytes and C++'s vectors by value: in a signature, in a launch, and for ptxrt check and show."""

from __future__ import annotations

import copy
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Capture, need_hip_compilers, need_nvrtc, refused
from texts import HEAD

import ptxrt
from ptxrt import Device, KernelSource, Signature
from ptxrt.check import check
from ptxrt.commands.cli import main
from ptxrt.dtypes import VECTORS
from ptxrt.runtime.structs import packed_struct

# As somebody else's compiler writes structs: bytes with an alignment. y takes a word of each.
PTX = f"""{HEAD}
.visible .entry k(
    .param .u32 n, .param .align 4 .b8 p[8], .param .align 8 .b8 q[24], .param .f32 r[6], .param .u64 y)
{{
    .reg .b32 %v;  .reg .b64 %y;
    ld.param.u64 %y, [y];
    ld.param.u32 %v, [p+4];  st.global.u32 [%y], %v;
    ld.param.u32 %v, [q+20];  st.global.u32 [%y+4], %v;
    ld.param.u32 %v, [r+8];  st.global.u32 [%y+8], %v;
    ld.param.u32 %v, [n];  st.global.u32 [%y+12], %v;
    ret;
}}
"""
HIP = """
struct Pair { float a; int b[2]; };
extern "C" __global__ void k(float* y, float4 v, uint3 u, dim3 d, double2 w, const Pair p) {
    y[0] = v.w; y[1] = u.z; y[2] = d.y; y[3] = w.y; y[4] = p.b[1];
}
"""
RESULT = [2**32 - 7, 5, int(np.float32(3.5).view(np.uint32)), 9]
MIXED = np.dtype([("a", "f8"), ("b", "f4", 3), ("c", "u4")])


FLOATS = [0, 0, 3.5, 0, 0, 0]


@pytest.mark.ptx
@pytest.mark.parametrize(
    ("signature", "p", "q", "r"),
    [
        ("i32 p[2], u8 q[24], f32 r[6]", (1, -7), bytes(20) + b"\5\0\0\0", FLOATS),
        ("u8 p[8], u32 q[6], u8 r[24]", struct.pack("ii", 0, -7), [*range(6)], struct.pack("6f", *FLOATS)),
        ("int2 p, Mixed q, f32 r[6]", {"x": 1, "y": -7}, (0.5, [1, 2, 3], 5), np.array(FLOATS, np.float32)),
        (
            "int2 p, Mixed q, f32 r[6]",
            (1, -7),
            np.array((0, [1, 2, 3], 5), MIXED),
            bytearray(struct.pack("6f", *FLOATS)),
        ),
    ],
)
def test_ptx_of_others_takes_what_is_passed_by_value(device: Device, signature: str, p: Any, q: Any, r: Any) -> None:
    kernel = ptxrt.load(KernelSource.ptx(PTX), "k", f"u32 n, {signature}, u32* y", device, structs={"Mixed": MIXED})
    y = ptxrt.zeros(4, np.uint32, device)
    kernel.launch(1, 1, 9, p, q, r, y)
    assert y.to_host().tolist() == RESULT


def test_vectors_of_cxx_go_by_their_names(device: Device) -> None:
    need_hip_compilers() if device.kind == "hip" else need_nvrtc()
    source, structs = KernelSource.hip(HIP), {"Pair": [("a", "f4"), ("b", "i4", 2)]}
    told = ptxrt.load(source, "k", device=device, structs=structs)
    assert str(told.signature) == "f32* y, float4 v, uint3 u, dim3 d, double2 w, Pair p"
    y = ptxrt.zeros(5, device=device)
    told[1, 1](y, (1, 2, 3, 4), {"x": 5, "y": 6, "z": 7}, (1, 2, 1), (0, 0.25), (0, [8, 9]))
    assert y.to_host().tolist() == [4, 7, 2, 0.25, 9]
    with pytest.raises(ptxrt.SignatureMismatch, match="x is a float"):
        ptxrt.load(source, "k", "f32* y, int4 v, uint3 u, dim3 d, double2 w, u8 p[12]", device)
    with refused(
        ptxrt.Unsupported, "load", "signature", "Pair", '"f32* y, float4 v, uint3 u, dim3 d, double2 w, ... p"'
    ):
        ptxrt.load(source, "k", device=device)


def test_every_vector_is_as_large_as_in_cxx() -> None:
    sizes = {"char": 1, "short": 2, "int": 4, "long": 8, "longlong": 8}
    wanted = {f"{u}{name}{n}": n * size for name, size in sizes.items() for u in ("", "u") for n in (1, 2, 3, 4)}
    wanted |= {f"{name}{n}": n * size for name, size in (("float", 4), ("double", 8)) for n in (1, 2, 3, 4)}
    assert {name: kind.size for name, kind in VECTORS.items()} == wanted | {"dim3": 12}
    assert VECTORS["uchar2"].numpy == np.dtype([("x", "u1"), ("y", "u1")])
    assert VECTORS["double4"].numpy == np.dtype([(axis, "f8") for axis in "xyzw"])


def test_a_signature_with_them_is_printed_as_it_was_written() -> None:
    text = "f32* x[n], u32 n, f16 p[3], bf16 q[2], float4 v, u8 r[24]"
    parsed = Signature.parse(text)
    assert str(parsed) == text
    assert Signature.parse(str(parsed)) == parsed
    assert pickle.loads(pickle.dumps(parsed)) == parsed == copy.deepcopy(parsed)
    assert parsed.offsets == (0, 8, 12, 18, 24, 40)

    def declared(p: "f16[3]", v: "float4"): ...  # type: ignore  # noqa: F821, UP037

    assert str(Signature.from_function(declared)) == "f16 p[3], float4 v"


def test_a_struct_of_somebody_with_a_vectors_name_is_theirs() -> None:
    (p,) = Signature.parse("float4 v", {"float4": [("a", "f8")]}).parameters
    assert p.size == 8


@pytest.mark.parametrize(
    ("text", "value", "argument", "words"),
    [
        ("f32 p[3]", (1, 2), "p", "3 values, given (1, 2) (tuple)"),
        ("f32 p[3]", 1.0, "p", "3 values"),
        ("i32 p[3]", (1, 2, 2**31), "p[2]", "fits i32"),
        ("u8 p[3]", b"ab", "p", "3 bytes, given b'ab' (bytes)"),
        ("float4 v", (1, 2, 3), "v", "the fields x, y, z, w"),
        ("float4 v", bytes(15), "v", "16 bytes"),
        ("float4 v", (1, 2, 3, "4"), "v.w", "f32"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(text: str, value: Any, argument: str, words: str) -> None:
    (p,) = Signature.parse(text).parameters
    with refused(ptxrt.InvalidArgument, "k", argument, words):
        packed_struct(value, p, "k")


# ptxrt check and show -------------------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "k.ptx").write_text(PTX)
    return str(tmp_path / "k.ptx")


def test_show_prints_a_signature_that_a_load_takes(path: str, sim: Device, capsys: Capture) -> None:
    assert main(["show", path, "--arch", "sm_90"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "signature: " in line]
    signature = line.partition("signature: ")[2]
    assert signature == "u32 n, u8 p[8], u8 q[24], u8 r[24], u64 y"
    ptxrt.load(KernelSource.from_file(path), "k", signature, sim)


CALL = {"n": 9, "p": "1,-7", "q": "bytes:" + "00" * 20 + "05000000", "r": "1,2,3.5,4,5,6", "y": "zeros:u32:4"}


@pytest.mark.parametrize(
    ("changed", "signature", "declared"),
    [
        ({}, None, "i32 p[2], u8 q[24], f32 r[6]"),
        ({"p": (1, -7), "q": np.array((0, [1, 2, 3], 5), MIXED)[()]}, None, "i32 p[2], struct q, f32 r[6]"),
        ({"p": np.array([1, -7], np.int32), "q": bytes(20) + b"\5\0\0\0"}, None, "i32 p[2], u8 q[24], f32 r[6]"),
        ({"q": (0, (1, 2, 3), 5)}, "int2 p, Mixed q, f32 r[6]", "int2 p, Mixed q, f32 r[6]"),
    ],
)
def test_check_takes_them(path: str, changed: Any, signature: str | None, declared: str) -> None:
    given = None if signature is None else f"u32 n, {signature}, u32* y"
    report = check(
        KernelSource.from_file(path), "k", given, grid=1, block=1, arguments=CALL | changed, structs={"Mixed": MIXED}
    )
    assert (report.fault, str(report.signature)) == (None, f"u32 n, {declared}, u32* y")
    assert report.arrays["y"].tolist() == RESULT


def test_the_command_takes_them(path: str, capsys: Capture) -> None:
    pairs = [word for name, value in CALL.items() for word in ("--arg", f"{name}={value}")]
    assert main(["check", path, "--grid", "1", "--block", "1", *pairs]) == 0
    assert "bytes:0000000000" in capsys.readouterr().out


def test_check_takes_structs_of_cxx() -> None:
    need_nvrtc()
    whole = "bytes:" + struct.pack("<fii", 0, 8, 9).hex()
    arguments = {"v": "1,2,3,4", "u": "5,6,7", "d": "1,2,1", "w": "0,0.25", "p": whole, "y": "zeros:f32:5"}
    report = check(KernelSource.hip(HIP), "k", grid=1, block=1, arguments=arguments)
    assert str(report.signature) == "f32* y, float4 v, uint3 u, dim3 d, double2 w, u8 p[12]"
    assert report.arrays["y"].tolist() == [4, 7, 2, 0.25, 9]
    structs = {"Pair": [("a", "f4"), ("b", "i4", 2)]}
    report = check(
        KernelSource.hip(HIP), "k", grid=1, block=1, arguments=arguments | {"p": (0, [8, -9])}, structs=structs
    )
    assert report.arrays["y"].tolist() == [4, 7, 2, 0.25, -9]
    with refused(ptxrt.InvalidArgument, "k", "p", "bytes:HEX", "0,8,9", "structs="):
        check(KernelSource.hip(HIP), "k", grid=1, block=1, arguments=arguments | {"p": "0,8,9"})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("q", "bytes:0", "bytes:HEX, two digits a byte"),
        ("p", "1,x", "the values in order"),
        ("p", "1,2,3", "8 bytes by value"),
        ("p", "", "the values in order"),
        ("q", "bytes:00", "24 bytes"),
        ("r", "1,2", "6 values"),
    ],
)
def test_what_is_wrong_for_check_is_refused(path: str, name: str, value: str, words: str) -> None:
    with refused(ptxrt.InvalidArgument, "k", name, words):
        check(KernelSource.from_file(path), grid=1, block=1, arguments=CALL | {name: value})
