"""Signature: its grammar, its layout in the parameter buffer, what packs, and agreement with a binary's own table."""

from __future__ import annotations

import copy
import ctypes
import math
import pickle
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import ELEMENT_NAMES, refused
from hypothesis import given
from hypothesis import strategies as st

import ptxrt
from ptxrt.compilers import ParamInfo
from ptxrt.dtypes import BY_NAME
from ptxrt.runtime.scalars import check_scalar
from ptxrt.runtime.signature import Signature

INTEGERS = [name for name in ELEMENT_NAMES if name[0] in "ui"]
LARGEST = {name: float(ml_dtypes.finfo(BY_NAME[name].numpy).max) for name in ("f32", "f64", "f16", "bf16")}

CTYPES = {
    "f32": ctypes.c_float,
    "f64": ctypes.c_double,
    "f16": ctypes.c_uint16,
    "bf16": ctypes.c_uint16,
    "u8": ctypes.c_uint8,
    "u16": ctypes.c_uint16,
    "u32": ctypes.c_uint32,
    "u64": ctypes.c_uint64,
    "i8": ctypes.c_int8,
    "i16": ctypes.c_int16,
    "i32": ctypes.c_int32,
    "i64": ctypes.c_int64,
    "bool": ctypes.c_bool,
}


def packed(signature: Signature, *values: object) -> bytes:
    """Pack as Kernel.launch does: what is not plain is looked at first, the buffer's layout does the rest."""
    pairs = zip(signature.parameters, values, strict=True)
    checked = [v if p.pointer or v.__class__ in p.plain else check_scalar(v, p, "k") for p, v in pairs]
    arguments = signature.arguments()
    try:
        signature.pack_into(arguments.raw, 0, *checked)
    except (struct.error, OverflowError, TypeError, ValueError):
        raise signature.explain(checked, "k") from None
    return arguments.bytes()


def scalar(name: str, value: object) -> bytes:
    return packed(Signature.parse(f"{name} v"), value)


# Grammar ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_every_type_is_read_as_scalar_and_as_pointer(name: Any) -> None:
    p, q = Signature.parse(f"{name} n, {name}* x").parameters
    assert (p.name, p.type.name, p.pointer, p.size) == ("n", name, False, BY_NAME[name].size)
    assert (q.name, q.type.name, q.pointer, q.size) == ("x", name, True, 8)


def test_const_nullable_length_and_alignment_are_read() -> None:
    (p, _, _) = Signature.parse("alignas(16) const f32*? w[4*n*m], u32 n, u32 m").parameters
    assert (p.const, p.nullable, p.length, p.align) == (True, True, (4, "n", "m"), 16)


def test_what_is_not_declared_is_the_plain_pointer() -> None:
    (p,) = Signature.parse("f64* y").parameters
    assert (p.const, p.nullable, p.length, p.align) == (False, False, (), 8)


def test_white_space_is_free() -> None:
    assert Signature.parse(" const  f32 *x [ n ] ,\n\tu32 n ") == Signature.parse("const f32* x[n], u32 n")


def test_names_may_be_left_out() -> None:
    assert [p.name for p in Signature.parse("const f32*, u32").parameters] == ["arg0", "arg1"]


@pytest.mark.parametrize("text", ["", "  \n"])
def test_the_empty_text_is_a_kernel_without_parameters(text: str) -> None:
    assert Signature.parse(text).parameters == ()
    assert packed(Signature.parse(text)) == b""


@pytest.mark.parametrize("text", ["alignas(16) const f32*? x[4*n], u32 n, bool b, bf16* y", ""])
def test_a_signature_reads_its_own_text(text: str) -> None:
    assert Signature.parse(str(Signature.parse(text))) == Signature.parse(text)


def test_equal_signatures_are_equal_and_hash_alike() -> None:
    one, two = (Signature.parse("const f32* x, u32 n") for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Signature.parse("f32* x, u32 n")


@pytest.mark.parametrize("again", [copy.deepcopy, lambda signature: pickle.loads(pickle.dumps(signature))])
def test_a_signature_in_use_can_be_copied_and_pickled(again: Any) -> None:
    signature = Signature.parse("const bf16* x[n], u32 n")
    packed(signature, 0, 1)
    assert again(signature) == signature


MALFORMED = {
    "float x": "the type 'float'",
    "F32 x": "the type 'F32'",
    "const": "the type 'const'",
    "constf32* x": "the type 'constf32'",
    "f32* x,": "''",
    ", f32* x": "''",
    "f32** x": "'f32** x'",
    "f32* x y": "'f32* x y'",
    "f32* const x": "'f32* const x'",
    "f32* 2x": "'f32* 2x'",
    "f32* x; u32 n": "f32* x; u32 n",
    "*x": "'*x'",
    "f32* x[n": "f32* x[n",
    "f32* x[], u32 n": "the length ''",
    "f32* x[n*], u32 n": "the length 'n*'",
    "f32* x[n+1], u32 n": "the length 'n+1'",
    "f32* x[-1]": "the length '-1'",
    "f32* x[n], f32 n": "length 'n' of 'x'",
    "f32* x[y], u32* y": "length 'y' of 'x'",
    "f32* x[m], u32 n": "length 'm' of 'x'",
    "f32* x, u32 x": "the name 'x' twice",
    "const u32 n": "belong to pointers",
    "u32? n": "belong to pointers",
    "u32 n[m], u32 m": "an array by value is of element types, its length a number",
    "u32 n[0]": "its length a number",
    "u32 n[]": "its length a number",
    "u32 n[100000]": "its length a number",
    "float4 n[4]": "an array by value is of element types",
    "float5 n": "the type 'float5'",
    "alignas(8) u32 n": "belong to pointers",
    "alignas(12) f32* x": "12, which is no power of two",
    "alignas(0) f32* x": "0, which is no power of two",
    "alignas(-4) f32* x": "alignas(-4) f32* x",
}


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_signature_is_refused_with_the_part_at_fault(text: str) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        Signature.parse(text)
    assert caught.value.op == "Signature"
    assert MALFORMED[text] in str(caught.value.given)
    assert 'such as "const f32* x[n]' in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"f32* x[{'9' * 5000}]", "the length"),
        ("f32* x[1000000000000000000]", "the length '1000000000000000000'"),
        ("f32* x[\u0663]", "the length"),
        (f"alignas({'8' * 5000}) f32* x", "an alignment of"),
        ("alignas(1152921504606846976) f32* x", "an alignment of '1152921504606846976'"),
        (f"f32* {'x' * 5000} y", "x ... "),
        ("f32 \ud800", r"'f32 \ud800'"),
    ],
    ids=["length of 5000 digits", "length of 10**18", "other digits", "alignas of 5000 digits", "alignas of 2**60",
         "long", "surrogate"],
)  # fmt: skip
def test_a_number_or_a_text_out_of_all_bounds_is_refused_in_a_few_words(text: str, words: str) -> None:
    with pytest.raises(ptxrt.InvalidArgument) as caught:
        Signature.parse(text)
    assert words in str(caught.value.given)
    assert len(str(caught.value)) < 1000
    str(caught.value).encode()


def test_the_largest_length_and_alignment_are_accepted() -> None:
    text = f"alignas({2**59}) f32* x[{10**18 - 1}]"
    assert str(Signature.parse(text)) == text


@pytest.mark.parametrize("given", [None, b"u32 n", 3, ["u32 n"]], ids=repr)
def test_a_signature_is_parsed_from_text_only(given: Any) -> None:
    with refused(ptxrt.InvalidArgument, "Signature.parse", "text", "a string", repr(given)):
        Signature.parse(given)


# From a function --------------------------------------------------------------------------------------------------


def future(x: "const f32*[n]", y: "f32*", n: np.uint32, b: np.bool_, h: ml_dtypes.bfloat16, a: "f64") -> None:  # type: ignore[valid-type,name-defined]  # noqa: F722, F821, UP037
    raise AssertionError("never called")


def defined(text: str) -> Any:
    """Return the function f that `text` defines, without this file's own __future__ import."""
    scope: dict[str, Any] = {"np": np, "ml_dtypes": ml_dtypes}
    exec(compile(text, "<test>", "exec", dont_inherit=True), scope)
    return scope["f"]


def test_annotations_are_read_under_the_future_import() -> None:
    wanted = Signature.parse("const f32* x[n], f32* y, u32 n, bool b, bf16 h, f64 a")
    assert Signature.from_function(future) == wanted


def test_annotations_are_read_without_the_future_import() -> None:
    function = defined("def f(x: 'const f32*[n]', n: np.uint32, h: ml_dtypes.bfloat16, b: np.bool_): ...")
    assert Signature.from_function(function) == Signature.parse("const f32* x[n], u32 n, bf16 h, bool b")


def test_the_functions_own_names_win() -> None:
    function = defined("def f(x: 'f32* y'): ...")
    assert Signature.from_function(function) == Signature.parse("f32* x")


def test_a_result_annotation_and_defaults_play_no_part() -> None:
    function = defined("def f(n: 'u32' = 4) -> None: ...")
    assert Signature.from_function(function) == Signature.parse("u32 n")


def test_a_parameter_without_annotation_is_refused() -> None:
    function = defined("def f(x: 'f32*', n): ...")
    with refused(ptxrt.InvalidArgument, "Signature", repr("(x: 'f32*', n)"), "no annotation for 'n'", "such as"):
        Signature.from_function(function)


@pytest.mark.parametrize("stars", ["*", "**"])
def test_any_number_of_parameters_is_refused(stars: str) -> None:
    function = defined(f"def f({stars}xs: 'u32'): ...")
    with refused(ptxrt.InvalidArgument, "Signature", repr(f"({stars}xs: 'u32')"), "not one parameter"):
        Signature.from_function(function)


def test_an_annotation_that_is_no_signature_is_refused() -> None:
    function = defined("def f(x: 'float*'): ...")
    with refused(ptxrt.InvalidArgument, "Signature", "'float*'", "the type 'float'"):
        Signature.from_function(function)


@pytest.mark.parametrize("note", [np.complex64, None], ids=str)
def test_an_annotation_that_is_no_element_type_is_refused(note: Any) -> None:
    def f(x: Any) -> None: ...

    f.__annotations__ = {"x": note}
    with refused(ptxrt.DTypeMismatch, "Signature.from_function", "x", "one of f32"):
        Signature.from_function(f)


@pytest.mark.parametrize("given", [3, dict], ids=repr)
def test_what_has_no_parameters_to_read_is_refused(given: Any) -> None:
    with refused(ptxrt.InvalidArgument, "Signature.from_function", "function", "a Python function"):
        Signature.from_function(given)


# Layout -----------------------------------------------------------------------------------------------------------

PARAMETERS = st.lists(st.tuples(st.sampled_from(ELEMENT_NAMES), st.booleans()), max_size=12)


def declared_as(drawn: list[tuple[str, bool]]) -> Signature:
    return Signature.parse(", ".join(f"{name}{'*' * pointer} p{i}" for i, (name, pointer) in enumerate(drawn)))


@given(PARAMETERS)
def test_the_layout_is_that_of_a_c_struct(drawn: Any) -> None:
    signature = declared_as(drawn)
    fields = [(f"p{i}", ctypes.c_void_p if pointer else CTYPES[name]) for i, (name, pointer) in enumerate(drawn)]
    structure = type("Parameters", (ctypes.Structure,), {"_fields_": fields})
    assert signature.offsets == tuple(getattr(structure, name).offset for name, _ in fields)


@given(PARAMETERS)
def test_the_table_points_at_each_value(drawn: Any) -> None:
    signature = declared_as(drawn)
    arguments = signature.arguments()
    base = ctypes.addressof(arguments.raw)
    table = (ctypes.c_uint64 * len(drawn)).from_address(arguments.table)
    assert [address - base for address in table] == list(signature.offsets)
    assert arguments.size <= arguments.table - base


def test_values_lie_at_their_offsets_and_the_gaps_are_zero() -> None:
    signature = Signature.parse("u8 a, f64 b, u16 c, f32* d")
    assert packed(signature, 1, 2.0, 3, 4) == struct.pack("<B7xdH6xQ", 1, 2.0, 3, 4)


# Scalars ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("side", ["min", "max"])
def test_an_integer_packs_up_to_its_limits(name: Any, side: str) -> None:
    value = int(getattr(np.iinfo(BY_NAME[name].numpy), side))
    assert scalar(name, value) == np.array(value, BY_NAME[name].numpy).tobytes()


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("past", [-1, 1])
def test_an_integer_just_past_its_limits_is_refused(name: Any, past: int) -> None:
    limits = np.iinfo(BY_NAME[name].numpy)
    value = int(limits.min) - 1 if past < 0 else int(limits.max) + 1
    with refused(ptxrt.InvalidArgument, "k", "v", f"{limits.min} to {limits.max}", str(value), "wider type"):
        scalar(name, value)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("value", [2.0, 2.5, math.nan, "3", b"3", None, 3j, [3], np.float32(3)], ids=repr)
def test_what_is_no_integer_is_refused_for_an_integer(name: Any, value: Any) -> None:
    with refused(ptxrt.InvalidArgument, "k", "v", "an integer"):
        scalar(name, value)


@pytest.mark.parametrize("name", INTEGERS)
def test_numpy_integers_pack_as_pythons(name: Any) -> None:
    assert scalar(name, np.int8(5)) == scalar(name, 5)


def test_2_to_the_33_does_not_fit_a_u32() -> None:
    with refused(ptxrt.InvalidArgument, "k", "v", "0 to 4294967295", "8589934592 (int)"):
        scalar("u32", 2**33)


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_float_packs_up_to_its_largest_value(name: Any, sign: int) -> None:
    value = sign * LARGEST[name]
    assert scalar(name, value) == np.array(value, BY_NAME[name].numpy).tobytes()


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_finite_number_that_would_become_infinite_is_refused(name: str, sign: int) -> None:
    largest = LARGEST[name]
    bits = {"f32": 24, "f16": 11, "bf16": 8}[name]
    step = 2.0 ** (math.frexp(largest)[1] - bits)
    with refused(ptxrt.InvalidArgument, "k", "v", f"a number that fits {name}", "wider type"):
        scalar(name, sign * (largest + step))


@pytest.mark.parametrize("name", LARGEST)
def test_an_integer_too_large_for_any_float_is_refused(name: Any) -> None:
    with refused(ptxrt.InvalidArgument, "k", "v", f"a number that fits {name}"):
        scalar(name, 10**400)


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 5e-324])
def test_infinities_zeros_and_tiny_numbers_pack(name: Any, value: Any) -> None:
    assert scalar(name, value) == np.array(value, BY_NAME[name].numpy).tobytes()


@pytest.mark.parametrize("name", LARGEST)
def test_a_nan_packs_as_a_nan(name: Any) -> None:
    assert np.isnan(np.frombuffer(scalar(name, math.nan), BY_NAME[name].numpy)[0])


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("value", ["2.5", b"2.5", None, 1j, [2.5], object()], ids=lambda value: type(value).__name__)
def test_what_is_no_number_is_refused_for_a_float(name: Any, value: Any) -> None:
    with refused(ptxrt.InvalidArgument, "k", "v", f"a number that fits {name}"):
        scalar(name, value)


NO_NUMBERS = {
    "masked": np.ma.masked,
    "masked array": np.ma.array(2.5, mask=True),
    "masked integer": np.ma.array(3, mask=True),
    "array of one": np.array([3]),
    "array of text": np.array("2.5"),
    "array of an object": np.array(3, object),
    "complex": np.complex64(3),
    "text": np.str_("3"),
    "bytes": np.bytes_(b"3"),
    "raw": np.void(b"3"),
    "time": np.timedelta64(3, "s"),
    "bytearray": bytearray(b"3"),
    "buffer": memoryview(b"3"),
}


@pytest.mark.parametrize("name", ELEMENT_NAMES)
@pytest.mark.parametrize("value", NO_NUMBERS)
def test_what_python_could_make_a_number_of_is_none_all_the_same(name: Any, value: Any) -> None:
    array = isinstance(NO_NUMBERS[value], (np.ndarray, np.generic))
    is_number = isinstance(NO_NUMBERS[value], np.number)
    with refused(ptxrt.DTypeMismatch if array and not is_number else ptxrt.InvalidArgument, "k", "v", f"fits {name}"):
        scalar(name, NO_NUMBERS[value])


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("value", [Decimal("1e400"), np.longdouble("1e400")], ids=["Decimal", "longdouble"])
def test_a_number_too_large_for_any_float_is_refused(name: Any, value: Any) -> None:
    with refused(ptxrt.InvalidArgument, "k", "v", f"a number that fits {name}"):
        scalar(name, value)


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize("value", [Decimal("-Infinity"), np.longdouble("-inf")], ids=["Decimal", "longdouble"])
def test_an_infinity_of_any_class_packs(name: Any, value: Any) -> None:
    assert scalar(name, value) == np.array(-np.inf, BY_NAME[name].numpy).tobytes()


@pytest.mark.parametrize("name", INTEGERS)
def test_an_array_without_axes_packs_as_its_number(name: Any) -> None:
    assert scalar(name, np.array(3)) == scalar(name, np.ma.array(3)) == scalar(name, 3)


@pytest.mark.parametrize("name", LARGEST)
@pytest.mark.parametrize(
    "value",
    [3, Fraction(3), Decimal(3), np.array(3.0), np.int16(3), np.float64(3), np.float16(3), ml_dtypes.bfloat16(3)],
    ids=repr,
)
def test_any_real_number_packs_as_a_float(name: Any, value: Any) -> None:
    assert scalar(name, value) == np.array(3, BY_NAME[name].numpy).tobytes()


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1 + 2**-8, 0x3F80),  # half way: to even
        (1 + 3 * 2**-8, 0x3F82),
        (1 + 2**-8 + 2**-40, 0x3F81),  # just above half way, which rounding to float32 first would forget
        (1 + 2**-8 - 2**-40, 0x3F80),
        (1 + 3 * 2**-8 - 2**-40, 0x3F81),
        (-1 - 2**-8 - 2**-40, 0xBF81),
    ],
)
def test_a_bfloat16_is_rounded_once_to_the_nearest(value: int, bits: int) -> None:
    assert scalar("bf16", value) == bits.to_bytes(2, "little")


@pytest.mark.parametrize("name", ["u8", "i32", "i64", "f32", "bf16"])
@pytest.mark.parametrize("value", [True, False])
def test_a_truth_value_of_numpy_is_a_number_as_pythons_is(name: str, value: bool) -> None:
    assert scalar(name, np.bool_(value)) == scalar(name, value) == scalar(name, int(value))


@pytest.mark.parametrize("value", [True, 1, np.bool_(True), np.uint8(1)], ids=repr)
def test_one_and_true_pack_as_true(value: Any) -> None:
    assert scalar("bool", value) == b"\1"


@pytest.mark.parametrize("value", [False, 0, np.bool_(False)], ids=repr)
def test_zero_and_false_pack_as_false(value: Any) -> None:
    assert scalar("bool", value) == b"\0"


@pytest.mark.parametrize("value", [2, -1, 1.0, "yes", None, [], np.float32(1)], ids=repr)
def test_what_is_no_truth_value_is_refused_for_a_bool(value: Any) -> None:
    with refused(ptxrt.InvalidArgument, "k", "v", "fits bool"):
        scalar("bool", value)


def test_an_array_for_a_scalar_is_a_matter_of_its_dtype() -> None:
    with refused(ptxrt.DTypeMismatch, "k", "v", "an integer that fits u32", "wider type"):
        scalar("u32", np.arange(3))


def test_the_first_scalar_at_fault_is_named() -> None:
    with refused(ptxrt.InvalidArgument, "k", "b", "0 to 255", "256"):
        packed(Signature.parse("u8 a, f32* x, u8 b, u8 c"), 1, 0, 256, 257)


# Agreement --------------------------------------------------------------------------------------------------------


def table(*rows: tuple[int, int, Any]) -> list[ParamInfo]:
    return [ParamInfo(offset, size, kind) for offset, size, kind in rows]


def test_equal_tables_agree() -> None:
    signature = Signature.parse("const f32* x, u32 n, f32 a")
    signature.agree("saxpy", table((0, 8, "int"), (8, 4, "int"), (12, 4, "float")))


@pytest.mark.parametrize("declared", ["f32 a", "u32 a", "i32 a"])
@pytest.mark.parametrize("kind", ["bits", None])
def test_untyped_bits_agree_with_any_four_bytes(declared: str, kind: str | None) -> None:
    Signature.parse(declared).agree("k", table((0, 4, kind)))


def test_untyped_bits_do_not_agree_with_eight_bytes() -> None:
    with refused(ptxrt.SignatureMismatch, "load", "k", "f64 a: float, 8 bytes at 0", "bits, 4 bytes at 0"):
        Signature.parse("f64 a").agree("k", table((0, 4, "bits")))


def test_signs_and_names_play_no_part() -> None:
    Signature.parse("i64 anything, i32 goes").agree("k", [ParamInfo(0, 8, "int", "x"), ParamInfo(8, 4, "int", "n")])


def test_a_pointer_agrees_with_a_64_bit_integer() -> None:
    Signature.parse("f32* x").agree("k", table((0, 8, "int")))


def test_a_pointer_does_not_agree_with_a_double() -> None:
    with refused(ptxrt.SignatureMismatch, "load", "k", "f32* x: pointer", "float, 8 bytes"):
        Signature.parse("f32* x").agree("k", table((0, 8, "float")))


DECLARED = "const f32* x, u32 n, f32 a"
DIFFERENT = {
    "too few": table((0, 8, "int"), (8, 4, "int")),
    "too many": table((0, 8, "int"), (8, 4, "int"), (12, 4, "float"), (16, 4, "int")),
    "order": table((0, 8, "int"), (8, 4, "float"), (12, 4, "int")),
    "class": table((0, 8, "int"), (8, 4, "int"), (12, 4, "int")),
    "size": table((0, 8, "int"), (8, 4, "int"), (12, 2, "float")),
    "offset": table((0, 8, "int"), (8, 4, "int"), (16, 4, "float")),
    "none": [],
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_different_table_is_a_mismatch(case: Any) -> None:
    with refused(ptxrt.SignatureMismatch, "load", "saxpy", "declared signature disagrees", "order and width") as caught:
        Signature.parse(DECLARED).agree("saxpy", DIFFERENT[case])
    assert caught.value.given == DECLARED


def test_a_mismatch_shows_both_tables_side_by_side() -> None:
    with refused(ptxrt.SignatureMismatch, "load", "saxpy") as caught:
        Signature.parse(DECLARED).agree("saxpy", DIFFERENT["order"])
    rows = str(caught.value).splitlines()[1:5]
    assert rows[0].split() == ["declared", "compiled", "kernel"]
    assert [row.split()[0] for row in rows[1:]] == ["0", "!", "!"]
    for row, mine, theirs in zip(
        rows[1:],
        ("const f32* x: pointer, 8 bytes at 0", "u32 n: int, 4 bytes at 8", "f32 a: float, 4 bytes at 12"),
        ("int, 8 bytes at 0", "float, 4 bytes at 8", "int, 4 bytes at 12"),
        strict=True,
    ):
        assert mine in row
        assert row.endswith(theirs)
        assert row.rindex(theirs) == rows[0].index("compiled kernel")


@pytest.mark.parametrize(("case", "word"), [("too few", "(none)"), ("too many", "(none)")])
def test_a_missing_row_is_shown_as_none(case: str, word: str) -> None:
    with refused(ptxrt.SignatureMismatch, "load", "k", word):
        Signature.parse(DECLARED).agree("k", DIFFERENT[case])


@pytest.mark.parametrize("count", range(5))
def test_a_part_is_packed_where_the_whole_has_it(count: int) -> None:
    signature, values = Signature.parse("u32 n, f32* x, bool last, f64 a"), (7, 1 << 40, True, 2.5)
    whole, part = bytearray(32), bytearray(b"\xaa" * 32)
    signature.pack_into(whole, 0, *values)
    signature.packing(count)(part, 0, *values[:count])
    end = (0, 4, 16, 17, 32)[count]
    assert (part[:end], bytes(part[end:])) == (whole[:end], b"\xaa" * (32 - end))
