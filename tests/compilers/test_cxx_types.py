"""What the words of a C++ compiler, and its mangled names, say of parameter types."""

from __future__ import annotations

from typing import Any

import pytest

from ptxrt.compilers import EntryInfo, ParamInfo
from ptxrt.compilers._clang_types import answered, question
from ptxrt.compilers._cxx_types import parameter_types, typed
from ptxrt.symbols import demangled


@pytest.mark.parametrize(
    ("symbol", "types"),
    [
        ("_Z10ptxrt_typeIPFvPKfPfjEEvv", ("float const*", "float*", "unsigned int")),
        ("_Z10ptxrt_typeIPFvvEEvv", ()),
        ("_Z10ptxrt_typeIPDoFvPdEEvv", ("double*",)),
        ("_Z10ptxrt_typeIPFv5ArrayIfLi2EEPFvffEEEvv", ("Array<float, 2>", "void (*)(float, float)")),
        ("_Z10ptxrt_typeIPiEvv", None),
        ("saxpy", None),
        ("_Zbogus", None),
    ],
)
def test_a_mangled_name_tells_the_types(symbol: str, types: Any) -> None:
    assert parameter_types(demangled(symbol)) == types


def test_what_is_no_symbol_stays_as_it_is() -> None:
    assert [demangled(word) for word in ("saxpy", "c", "_Zbogus", "")] == ["saxpy", "c", "_Zbogus", ""]


def test_types_are_used_only_where_there_are_as_many() -> None:
    entry = EntryInfo("k", (ParamInfo(0, 8, "int"), ParamInfo(8, 4, "int")))
    assert [p.type for p in typed(entry, ("float*", "unsigned int")).params or ()] == ["f32", "u32"]
    for types in (None, ("float*",), ("float*", "int", "int")):
        assert typed(entry, types) == entry
    assert typed(EntryInfo("k", None), ()) == EntryInfo("k", None)


@pytest.mark.parametrize(
    ("spelled", "said"),
    [
        ("const float *", "const f32*: pointer, 8 bytes at 0"),
        ("float const* const", "const f32*: pointer, 8 bytes at 0"),
        ("const volatile unsigned int *__restrict", "const u32*: pointer, 8 bytes at 0"),
        ("Pair *", "Pair*: pointer, 8 bytes at 0"),
        ("float *const *", "float*const*: pointer, 8 bytes at 0"),
        ("void (*)(int)", "void (*)(int): any, 8 bytes at 0"),
        ("int Pair::*", "int Pair::*: any, 8 bytes at 0"),
        ("Box<void (*)(int), int Pair::*> *", "Box<void (*)(int), int Pair::*>*: pointer, 8 bytes at 0"),
        ("(anonymous namespace)::Pair *", "(anonymous namespace)::Pair*: pointer, 8 bytes at 0"),
        ("float const (*) [4]", "const f32*: pointer, 8 bytes at 0"),
        ("float (&)[2][4]", "f32*: pointer, 8 bytes at 0"),
        ("const double &", "const f64*: pointer, 8 bytes at 0"),
        ("float &&", "f32*: pointer, 8 bytes at 0"),
        ("float *&", "float*&: pointer, 8 bytes at 0"),
        ("HIP_vector_type<const float *, 2>", "HIP_vector_type<const float*, 2>: bits, 8 bytes at 0"),
        ("unsigned long", "u64: int, 8 bytes at 0"),
        ("double", "f64: float, 8 bytes at 0"),
    ],
)
def test_a_type_is_shown_in_a_signatures_words_or_in_its_own(spelled: str, said: str) -> None:
    (param,) = typed(EntryInfo("k", (ParamInfo(0, 8, "bits"),)), (spelled,)).params or ()
    assert str(param) == said


NOTE = (
    "ptxrt:2:21: warning:  [-Wuser-defined-warnings]\n    2 |  typedef\n      |  ^\n"
    "ptxrt:1:54: note: from 'diagnose_if' attribute on 'ptxrt_type<void (*)(float *)>':\n    1 |  template\n"
)


@pytest.mark.parametrize(
    ("log", "rest"),
    [
        (NOTE + "1 warning generated when compiling for gfx1100.", ""),
        (f"a.h:1: warning: x\n{NOTE}2 warnings generated when compiling for gfx1100.",
         "a.h:1: warning: x\n1 warning generated when compiling for gfx1100."),
        (f"{NOTE}k:1:1: error: y\n1 warning and 1 error generated when compiling for gfx1100.",
         "k:1:1: error: y\n1 error generated when compiling for gfx1100."),
        (f"{NOTE}4 warnings and 2 errors generated when compiling for gfx1100.",
         "3 warnings and 2 errors generated when compiling for gfx1100."),
    ],
)  # fmt: skip
def test_the_log_is_as_if_nothing_had_been_asked(log: Any, rest: str) -> None:
    assert answered(log) == (("float *",), rest)


def test_a_log_without_an_answer_stays_as_it_is() -> None:
    assert answered("k:1:1: error: y\n1 error generated.") == (None, "k:1:1: error: y\n1 error generated.")


@pytest.mark.parametrize("end", ["", "\n", " \\", "\n\n"], ids=repr)
def test_the_question_leaves_the_lines_of_the_text_their_numbers(end: str) -> None:
    text = "first\nsecond" + end
    lines = (text + question(text, "k", "mine.hip")).splitlines()
    assert lines[:2] == text.splitlines()[:2]
    marks = [line for line in lines if line.startswith("# ")]
    assert marks == ['# 1 "ptxrt" 3', f'# {text.count(chr(10)) + 2} "mine.hip"']
