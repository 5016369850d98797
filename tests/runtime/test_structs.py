"""Structs by value: how they are declared, packed, and compared with the kernel."""

from __future__ import annotations

import copy
import pickle
import struct
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import need_hip_compilers, need_nvrtc, refused
from texts import HEAD

import ptxrt
from ptxrt import Device, Kernel, KernelSource, Signature
from ptxrt.backends import hip
from ptxrt.compilers import ParamInfo
from ptxrt.runtime.scalars import check_scalar
from ptxrt.runtime.structs import check_members, packed_struct

PAIR = np.dtype([("a", "f4"), ("b", "i4")])
WIDE = np.dtype([("flag", "?"), ("rate", "f8"), ("m", "f4", (2, 3)), ("inner", PAIR)], align=True)
FLOAT4 = np.dtype([(axis, "f4") for axis in "xyzw"])
HIP = """
namespace deep { struct Pair { float a; int b; }; }
struct Wide { bool flag; double rate; float m[2][3]; deep::Pair inner; };
struct __attribute__((packed)) Odd { char c; double d; };
class Hidden { int first; float second; };
template <class T> __global__ void k(T* y, const deep::Pair p, Wide w, int n, float4 v) {
    T values[] = {p.a, T(p.b), T(w.flag), T(w.rate), w.m[1][0], w.m[1][2], w.inner.a, T(w.inner.b), T(n), v.z};
    for (int i = 0; i < 10; i++) y[i] = values[i];
}
__global__ void odd(double* y, Odd o) { y[0] = o.c; y[1] = o.d; }
__global__ void hidden(Hidden h) {}
"""
STRUCTS = {"Pair": PAIR, "Wide": WIDE, "V": FLOAT4}


@pytest.fixture
def load(device: Device) -> Any:
    """Load an entry of the text above."""
    need_hip_compilers() if device.kind == "hip" else need_nvrtc()

    def loaded(entry: str, signature: str | None = None, structs: Any = None) -> Kernel:
        return ptxrt.load(KernelSource.hip(HIP), entry, signature, device, structs=structs)

    return loaded


def test_structs_arrive_field_by_field(device: Device, load: Any) -> None:
    kernel = load("k<float>", "f32* y, Pair p, Wide w, i32 n, V v", structs=STRUCTS)
    y = ptxrt.zeros(10, device=device)
    wide = np.array((True, 2.5, [[1, 2, 3], [4, 5, 6]], (7, 8)), WIDE)
    given: list[Any] = [
        (1.5, -3),
        (True, 2.5, [[1, 2, 3], [4, 5, 6]], (7, 8)),
        9,
        {"x": 1, "w": 4, "z": 3, "y": 2},
    ]
    expected = [1.5, -3, 1, 2.5, 4, 6, 7, 8, 9, 3]
    kernel.launch(1, 1, y, *given)
    np.testing.assert_array_equal(y.to_host(), expected)
    y.fill_bytes(0)
    kernel[1, 1](y, p=np.array((1.5, -3), PAIR), w=wide[()], n=9, v=np.array((1, 2, 3, 4), FLOAT4))
    np.testing.assert_array_equal(y.to_host(), expected)


def test_a_packed_struct_is_where_the_kernel_has_it(device: Device, load: Any) -> None:
    y = ptxrt.zeros(2, np.float64, device)
    kernel = load("odd", "f64* y, Odd o", structs={"Odd": [("c", "i1"), ("d", "f8")]})
    kernel.launch(1, 1, y, (-3, 0.25))
    assert y.to_host().tolist() == [-3, 0.25]


def test_a_declaration_in_cpp_takes_its_structs_by_name(load: Any, device: Device) -> None:
    text = HIP.replace("float4 v", "deep::Pair v").replace("v.z", "v.a")
    kernel = ptxrt.load(KernelSource.hip(text), "k<float>", device=device, structs={**STRUCTS, "Other": "V4"})
    assert str(kernel.signature) == "f32* y, Pair p, Wide w, i32 n, Pair v"
    with refused(ptxrt.Unsupported, "load", "signature", "parameter 2 of k<float>, Wide w", "with structs="):
        ptxrt.load(KernelSource.hip(text), "k<float>", device=device, structs={"Pair": PAIR})


@pytest.mark.parametrize(
    ("name", "dtype", "words"),
    [
        ("Pair", [("b", "i4"), ("a", "f4")], ("b is not at 0 with 4 bytes; a is not at 4 with 4 bytes",)),
        ("Pair", [("a", "i4"), ("b", "i4")], ("a is a float",)),
        ("Pair", [("a", "f4"), ("b", "f4")], ("b is not a float",)),
        ("Pair", [("a", "f4"), ("bb", "i4")], ("bb is not at 4",)),
        ("Pair", [("a", "i2", 2), ("b", "i2"), ("c", "i2")], ("b is not at 4 with 2 bytes; c is not",)),
        ("Pair", [("a", "f4"), ("b", "i8")], ("Pair p: struct, 12 bytes at 8", "8 bytes at 8")),
        ("Pair", [("a", "f4")], ("Pair p: struct, 4 bytes at 8",)),
    ],
)
def test_a_dtype_that_is_not_the_struct_is_refused(load: Any, name: str, dtype: Any, words: Any) -> None:
    structs = {**STRUCTS, name: np.dtype(dtype)}
    with pytest.raises(ptxrt.SignatureMismatch) as caught:
        load("k<float>", "f32* y, Pair p, Wide w, i32 n, V v", structs=structs)
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


def test_a_struct_whose_members_cannot_be_named_is_bytes(load: Any) -> None:
    dtype = np.dtype([("first", "i4"), ("second", "f4")])
    with pytest.raises(ptxrt.SignatureMismatch, match="first"):
        load("hidden", "H h", structs={"H": dtype})
    load("hidden", "H h", structs={"H": "V8"}).launch(1, 1, struct.pack("if", 1, 2))


@pytest.mark.ptx
def test_a_struct_in_ptx_is_compared_in_size_and_place(sim: Device) -> None:
    params = ".param .u64 y, .param .align 16 .b8 p[8], .param .u32 n"
    text = f"""{HEAD}.visible .entry k({params}) {{
        .reg .b64 %y; .reg .b32 %v;
        ld.param.u64 %y, [y]; ld.param.u32 %v, [p+4]; st.global.u32 [%y], %v; ld.param.u32 %v, [n];
        st.global.u32 [%y+4], %v; ret; }}"""
    kernel = ptxrt.load(KernelSource.ptx(text), "k", Signature.parse("i32* y, P p, u32 n", {"P": PAIR}), sim)
    assert kernel.signature.offsets == (0, 16, 24)
    y = ptxrt.zeros(2, np.int32, sim)
    kernel.launch(1, 1, y, (0, -7), 5)
    assert y.to_host().tolist() == [-7, 5]
    with pytest.raises(ptxrt.SignatureMismatch, match="P p: struct, 12 bytes"):
        ptxrt.load(KernelSource.ptx(text), "k", "i32* y, P p, u32 n", sim, structs={"P": "V12"})


# Signatures ---------------------------------------------------------------------------------------------------------


def test_a_struct_is_declared_by_a_mapping_or_an_annotation() -> None:
    parsed = Signature.parse("u32 n, Pair p", {"Pair": PAIR, "Unused": WIDE})
    assert (str(parsed), parsed.offsets) == ("u32 n, Pair p", (0, 4))

    def declared(n: np.uint32, p: PAIR) -> None: ...  # type: ignore[valid-type]

    assert Signature.from_function(declared).offsets == (0, 4)
    assert str(Signature.from_function(declared)) == "u32 n, struct p"
    assert parsed == Signature.parse("u32 n, Pair p", {"Pair": np.dtype([("a", "f4"), ("b", "i4")])})
    assert parsed != Signature.parse("u32 n, Pair p", {"Pair": FLOAT4})
    assert pickle.loads(pickle.dumps(parsed)) == parsed
    assert copy.deepcopy(parsed) == parsed


@pytest.mark.parametrize(
    ("dtype", "offset"),
    [
        (PAIR, 4),
        (WIDE, 8),
        (FLOAT4, 4),
        (np.dtype("V24"), 1),
        # Packed: the size is no multiple of 8; a member is not at a multiple of 4.
        (np.dtype([("d", "f8"), ("c", "i1")]), 1),
        (np.dtype([("c", "i1"), ("i", "i4"), ("e", "i1", 3)]), 1),
    ],
)
def test_a_struct_is_aligned_as_its_fields_are(dtype: Any, offset: int) -> None:
    assert Signature.parse("u8 n, S s", {"S": dtype}).offsets == (0, offset)


@pytest.mark.parametrize(
    "dtype",
    [
        np.float32,
        "f4",
        None,
        "nonsense",
        np.dtype((">f4", 3)),
        "V0",
        *([("a", bad)] for bad in ("c8", ">f4", "O", "U4")),
    ],
)
def test_what_is_no_struct_of_element_types_is_refused(dtype: Any) -> None:
    with refused(ptxrt.DTypeMismatch, "Signature.parse", "S", "a structured NumPy dtype"):
        Signature.parse("S s", {"S": dtype})


@pytest.mark.parametrize("structs", [[("S", PAIR)], {"f32": PAIR}, {"const": PAIR}, {"a b": PAIR}, {3: PAIR}])
def test_structs_are_a_mapping_of_names_of_their_own(structs: Any) -> None:
    with refused(ptxrt.InvalidArgument, "Signature.parse", "structs"):
        Signature.parse("u32 n", structs)


def test_structs_belong_to_a_text(sim: Device) -> None:
    need_nvrtc()
    source = KernelSource.cuda("struct P { float a; int b; }; __global__ void k(P p) {}")
    with refused(ptxrt.InvalidArgument, "load", "structs", "None beside a Signature"):
        ptxrt.load(source, "k", Signature.parse("P p", {"P": PAIR}), sim, structs={"P": PAIR})


def test_members_may_be_const(load: Any, device: Device) -> None:
    text = "struct P { const float a; int b; }; __global__ void k(P p) {}"
    ptxrt.load(KernelSource.hip(text), "k", device=device, structs={"P": PAIR})


def test_a_kernel_may_be_noexcept_in_hip(hiprtc_there: None) -> None:
    source = KernelSource.hip("struct P { float a; int b; }; __global__ void k(P p) noexcept {}")
    binary = hip.BACKEND.compile("hip", source.text, "gfx1100", entry="k")
    module: Any = SimpleNamespace(binary=binary, layouts=set(), cache=SimpleNamespace(backend=hip.BACKEND))
    check_members(module, source, "k", (), Signature.parse("P p", {"P": PAIR}))
    with pytest.raises(ptxrt.SignatureMismatch, match="a is not at 4 with 4 bytes"):
        check_members(module, source, "k", (), Signature.parse("P p", {"P": [("b", "i4"), ("a", "f4")]}))


@pytest.mark.parametrize("text", ["S* s", "const S s", "alignas(16) S s", "S s[4]", "S? s", "T s"])
def test_a_struct_is_passed_by_value_alone(text: str) -> None:
    with pytest.raises(ptxrt.InvalidArgument, match="Signature"):
        Signature.parse(text, {"S": PAIR})


def test_a_struct_does_not_agree_with_a_scalar_of_its_size() -> None:
    signature = Signature.parse("S s", {"S": PAIR})
    signature.agree("k", [ParamInfo(0, 8, "bits")])
    for kind in ("int", "float", "pointer"):
        with pytest.raises(ptxrt.SignatureMismatch):
            signature.agree("k", [ParamInfo(0, 8, kind)])


# Values -------------------------------------------------------------------------------------------------------------

EVERY = np.dtype(
    [("n", "u1"), ("h", "f2"), ("b", ml_dtypes.bfloat16), ("raw", "V3"), ("pairs", PAIR, 2), ("ok", "?")], align=True
)
(PARAMETER,) = Signature.parse("S s", {"S": EVERY}).parameters


def test_a_tuple_packs_as_numpy_lays_it_out() -> None:
    packed = packed_struct((200, 1.5, 3.0, b"abc", [(1, 2), {"b": 4, "a": 3}], True), PARAMETER, "k")
    record = np.frombuffer(packed, EVERY)[0]
    assert (record["n"], record["h"], float(record["b"]), bytes(record["raw"])) == (200, 1.5, 3.0, b"abc")
    assert (record["pairs"].tolist(), record["ok"]) == ([(1, 2), (3, 4)], True)


def changed(**fields: Any) -> dict[str, Any]:
    return {"n": 0, "h": 0, "b": 0, "raw": b"abc", "pairs": [(1, 2), (3, 4)], "ok": True, **fields}


@pytest.mark.parametrize(
    ("value", "argument", "words"),
    [
        (changed(n=256), "s.n", "0 to 255, given 256"),
        (changed(n=-1), "s.n", "u8"),
        (changed(n=1.0), "s.n", "an integer"),
        (changed(h=1e6), "s.h", "f16"),
        (changed(b=1e39), "s.b", "bf16"),
        (changed(ok=2), "s.ok", "bool"),
        (changed(pairs=[(1, 2), (3, 2**31)]), "s.pairs[1].b", "i32"),
        (changed(pairs=[(1, 2)]), "s.pairs", "2 values"),
        (changed(pairs=7), "s.pairs", "2 values"),
        (changed(pairs=[(1, 2), (3,)]), "s.pairs[1]", "a tuple or a mapping of the fields a, b"),
        (changed(raw=b"abcd"), "s.raw", "3 bytes"),
        (changed(raw="abc"), "s.raw", "3 bytes"),
        (changed(oks=1), "s", "the fields n, h, b, raw, pairs, ok, given 'oks'. Did you mean ok?"),
        ({"n": 0}, "s", "given no h"),
        ((1, 2), "s", "a tuple or a mapping"),
        ([0, 0, 0, b"abc", [(1, 2), (3, 4)], True], "s", "a tuple or a mapping"),
        (7, "s", "(int)"),
        (None, "s", "(NoneType)"),
    ],
)
def test_a_value_that_does_not_fit_is_named_by_its_field(value: Any, argument: str, words: str) -> None:
    with refused(ptxrt.InvalidArgument, "k", argument, words):
        packed_struct(value, PARAMETER, "k")


def test_a_record_of_numpys_is_a_struct_and_declares_one() -> None:
    rows = np.rec.array([(1, 2), (3, 4)], dtype=PAIR)
    record, without_axes = rows[1], np.rec.array(np.array((3, 4), PAIR))
    assert (type(record), rows.dtype.type) == (np.record, np.record)
    nested = np.dtype([("n", "u1"), ("inner", rows.dtype)])
    declared = Signature.parse("Pair p, Nested q", {"Pair": rows.dtype, "Nested": nested})
    plain = Signature.parse("Pair p, Nested q", {"Pair": PAIR, "Nested": [("n", "u1"), ("inner", PAIR)]})
    assert declared.offsets == plain.offsets
    for signature in (declared, plain):
        p, q = signature.parameters
        for value in (record, without_axes):
            assert packed_struct(value, p, "k") == packed_struct((3, 4), p, "k")
            assert packed_struct((7, value), q, "k") == packed_struct((7, (3, 4)), q, "k")
        with refused(ptxrt.DTypeMismatch, "k", "p", "'a'", "'c'"):
            packed_struct(np.rec.array([(3, 4)], dtype=[("c", "f4"), ("d", "i4")])[0], p, "k")
    with refused(ptxrt.DTypeMismatch, "k", "n", "an integer that fits i32"):
        check_scalar(record, Signature.parse("i32 n").parameters[0], "k")


def test_a_record_of_another_dtype_is_refused() -> None:
    with refused(ptxrt.DTypeMismatch, "k", "s", "bfloat16", "'a'"):
        packed_struct(np.zeros((), PAIR), PARAMETER, "k")
    with refused(ptxrt.InvalidArgument, "k", "s", "a tuple or a mapping"):
        packed_struct(np.zeros(1, EVERY), PARAMETER, "k")


def test_a_launch_checks_the_fields(load: Any, device: Device) -> None:
    kernel = load("odd", "f64* y, Odd o", structs={"Odd": [("c", "i1"), ("d", "f8")]})
    with refused(ptxrt.InvalidArgument, "odd", "o.c", "-128 to 127"):
        kernel.launch(1, 1, ptxrt.zeros(2, np.float64, device), (128, 0.0))


def test_the_compiler_is_asked_once_a_module(sim: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    need_nvrtc()
    source = KernelSource.cuda("struct P { float a; int b; }; __global__ void k(P p) {} // asked once")
    ptxrt.load(source, "k", device=sim, structs={"P": PAIR})
    monkeypatch.setattr(type(sim.backend), "compile", None)
    ptxrt.load(source, "k", device=sim, structs={"P": PAIR})
