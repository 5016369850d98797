"""Errors: their fields, their messages, and that they survive pickling and being raised again."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
from helpers import refused

import ptxrt
from ptxrt import errors
from ptxrt.errors import shown
from ptxrt.places import SourcePlace

PUBLIC: list[Any] = [
    kind
    for _, kind in inspect.getmembers(ptxrt, inspect.isclass)
    if issubclass(kind, Exception) and kind not in (ptxrt.PtxrtError, ptxrt.ReloadWarning)
]
PLAIN = [kind for kind in PUBLIC if kind is not ptxrt.CompileError and not issubclass(kind, errors.SimFault)]
FAULTS = [ptxrt.MemoryFault, ptxrt.DataRace, ptxrt.Deadlock]
TEXT = "\n".join(f"line number {n}" for n in range(1, 10))

CALL = SourcePlace("k.cu", 20, "scale")
HERE = SourcePlace("k.cu", 12, "helper", "y[i] = x;", (SourcePlace("k.cu", 12, "helper"), CALL))
THERE = SourcePlace("made.cu", 14, "scale")


def fault(kind: type[errors.SimFault], **places: SourcePlace) -> errors.SimFault:
    return kind(
        "store outside every allocation",
        entry="saxpy",
        line=7,
        text="    st.global.f32 [%a], %x;",
        thread=(3, 0, 0),
        block=(1, 0, 0),
        address=0x7F0000000010,
        size=4,
        nearest="16 bytes past the end of x",
        other_line=9,
        other_thread=(4, 0, 0),
        fix="Compare the index with n first",
        **places,
    )


def test_the_op_of_a_fault_is_the_kernel_as_the_message_names_it() -> None:
    error = errors.SimFault("why", entry="_Z5scalePKfPfif", line=3, text="", thread=(0, 0, 0), block=(0, 0, 0))
    assert (error.op, error.entry) == ("scale", "_Z5scalePKfPfif")
    assert str(error).startswith("scale, line 3: why")


def compile_error() -> ptxrt.CompileError:
    return ptxrt.CompileError(
        "unknown instruction 'addd'",
        kernel="saxpy",
        log="ptxas fatal: line 5",
        options=("-O1", "-lineinfo"),
        arch="sm_90",
        line=5,
        source=TEXT,
        fix="Did you mean add.f32?",
    )


def assertion() -> ptxrt.AssertionFailed:
    return ptxrt.AssertionFailed(
        "i < n",
        file="kernel.cu",
        file_line=3,
        function="void k(int)",
        threads=2,
        entry="k",
        line=70,
        text="call.uni",
        thread=(5, 0, 0),
        block=(0, 0, 0),
    )


def every_kind() -> list[ptxrt.PtxrtError]:
    plain = [kind(op="o", argument="a", expected=(1, 2), given="g", fix="f") for kind in PLAIN]
    race = fault(ptxrt.DataRace, source_place=HERE, other_place=THERE)
    return [*plain, compile_error(), *map(fault, FAULTS), race, assertion()]


@pytest.mark.parametrize("kind", PUBLIC)
def test_every_public_error_is_a_ptxrt_error(kind: Any) -> None:
    assert issubclass(kind, ptxrt.PtxrtError)


@pytest.mark.parametrize("kind", PLAIN)
def test_the_message_is_made_of_the_fields(kind: Any) -> None:
    error = kind(op="group_norm", argument="x", expected="f32", given="f64", fix="Convert it")
    assert str(error) == "group_norm: x: expected f32, given f64. Convert it"
    assert (error.op, error.argument, error.expected, error.given, error.fix) == (
        "group_norm",
        "x",
        "f32",
        "f64",
        "Convert it",
    )


def test_a_message_of_its_own_replaces_the_composed_one() -> None:
    error = ptxrt.DriverError("cuInit: no", op="cuInit")
    assert str(error) == "cuInit: no"
    assert (error.op, error.argument, error.expected, error.given) == ("cuInit", None, None, None)


def test_fields_that_do_not_apply_are_left_out_of_the_message() -> None:
    assert str(ptxrt.InvalidArgument(expected=1, given=2)) == "expected 1, given 2"
    assert str(ptxrt.InvalidArgument(argument="x", expected=1, given=2)) == "x: expected 1, given 2"


def test_a_compile_error_shows_kernel_architecture_options_fix_lines_and_log() -> None:
    text = str(compile_error())
    assert text.startswith(
        "saxpy: unknown instruction 'addd' (for sm_90, options -O1 -lineinfo). Did you mean add.f32?"
    )
    assert ">     5 | line number 5" in text
    assert "      3 | line number 3" in text
    assert "line number 2" not in text
    assert text.endswith("ptxas fatal: line 5")


def test_a_compile_error_has_its_fields() -> None:
    error = compile_error()
    assert (error.op, error.argument, error.kernel, error.arch, error.line) == ("compile", "saxpy", "saxpy", "sm_90", 5)
    assert (error.log, error.options) == ("ptxas fatal: line 5", ("-O1", "-lineinfo"))


def test_a_log_that_the_message_has_already_is_not_repeated() -> None:
    assert str(ptxrt.CompileError("bad: ptxas fatal", log="ptxas fatal\n")) == "bad: ptxas fatal"


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_of_the_machine_names_line_thread_block_and_address(kind: Any) -> None:
    error = fault(kind)
    for word in (
        "saxpy, line 7",
        "st.global.f32",
        "(3, 0, 0)",
        "(1, 0, 0)",
        "0x7f0000000010",
        "4 bytes",
        "past the end",
    ):
        assert word in str(error)
    assert "line 9, thread (4, 0, 0)" in str(error)
    assert (error.op, error.entry, error.line, error.thread, error.block) == ("saxpy", "saxpy", 7, (3, 0, 0), (1, 0, 0))
    assert (error.address, error.size, error.other_line, error.other_thread) == (0x7F0000000010, 4, 9, (4, 0, 0))


def test_a_fault_of_what_was_compiled_names_what_was_written_first() -> None:
    error = fault(ptxrt.DataRace, source_place=HERE, other_place=THERE)
    assert (error.source_place, error.other_place, error.line, error.other_line) == (HERE, THERE, 7, 9)
    assert str(error).split("\n") == [
        "saxpy, k.cu:12: store outside every allocation",
        "     12 | y[i] = x;",
        "  in helper() at k.cu:12, inlined into scale() at k.cu:20",
        "  PTX line 7: st.global.f32 [%a], %x;",
        "  thread (3, 0, 0), block (1, 0, 0), address 0x7f0000000010, 4 bytes",
        "  nearest: 16 bytes past the end of x",
        "  against made.cu:14 (PTX line 9), thread (4, 0, 0)",
        "  Compare the index with n first",
    ]


@pytest.mark.parametrize("error", every_kind(), ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling(error: Any) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", every_kind(), ids=lambda error: type(error).__name__)
def test_an_error_survives_copying(error: Any) -> None:
    assert vars(copy.deepcopy(error)) == vars(error)


def test_a_fresh_copy_has_neither_traceback_nor_cause() -> None:
    with pytest.raises(ptxrt.CompileError) as caught:
        raise compile_error() from ValueError("the cause")
    copied = errors.fresh(caught.value)
    assert (copied.__traceback__, copied.__cause__, copied.__context__) == (None, None, None)
    assert vars(copied) == vars(caught.value)
    assert copied is not caught.value


@pytest.mark.parametrize(("line", "first", "last", "count"), [(1, 1, 3, 3), (5, 3, 7, 5), (9, 7, 9, 3)])
def test_the_excerpt_stays_within_the_text(line: int, first: int, last: int, count: int) -> None:
    rows = errors.numbered_excerpt(TEXT, line).splitlines()
    assert len(rows) == count
    assert rows[0].endswith(f"line number {first}")
    assert rows[-1].endswith(f"line number {last}")
    assert [row for row in rows if row.startswith(">")] == [f"> {line:5d} | line number {line}"]


def test_the_excerpt_counts_lines_as_compilers_do() -> None:
    # str.splitlines would also break at the form feed.
    assert "> " + f"{2:5d} | second" in errors.numbered_excerpt("// a\fb\nsecond", 2)


def test_one_handler_catches_them_all() -> None:
    with refused(ptxrt.InvalidArgument, "Device", "name", "ptxrt.devices()"):
        ptxrt.Device("toaster")


def test_a_message_may_be_of_a_number_that_python_does_not_write() -> None:
    error = errors.LaunchError(op="k", argument="grid", expected="1", given=(10**5000, 1))
    assert str(error).startswith("k: grid: expected 1, given an object of type tuple")
    assert error.given == (10**5000, 1)


class Unshown:
    def __repr__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a", "'a'"),
        (2**64, "18446744073709551616"),
        (-(10**5000), "an integer of 16610 bits"),
        ((10**5000,), "an object of type tuple, whose repr fails with ValueError"),
        (Unshown(), "an object of type Unshown, whose repr fails with RuntimeError"),
        ("\ud800", r"'\ud800'"),
        ("a" * 198, f"'{'a' * 198}'"),
        ("a" * 199, f"'{'a' * 149} ... {'a' * 39}'"),
    ],
    ids=range(8),
)
def test_any_value_can_be_shown_in_a_message(value: Any, text: str) -> None:
    assert shown(value) == text
