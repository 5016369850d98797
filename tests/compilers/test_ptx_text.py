"""What a PTX text says of itself."""

from __future__ import annotations

from typing import Any

import pytest

from ptxrt.compilers import EntryInfo, ParamInfo
from ptxrt.compilers.ptx_text import entries_of, output_arch, require_entry, scan
from ptxrt.errors import CompileError


def params(declarations: str, head: str) -> tuple[tuple[int, int, str | None], ...] | None:
    found = scan(f"{head}.visible .entry k({declarations}) {{ ret; }}").entries["k"].params
    return None if found is None else tuple((p.offset, p.size, p.kind) for p in found)


def test_reads_version_target_and_address_size_with_their_lines() -> None:
    header = scan("// made by hand\n.version 8.7\n.target sm_90a, debug\n.address_size 64\n")
    assert (header.version, header.target, header.address_size) == ((8, 7), "sm_90a", 64)
    assert (header.version_line, header.target_line) == (2, 3)


def test_address_size_is_none_where_the_text_has_none() -> None:
    assert scan(".version 7.0\n.target sm_75\n").address_size is None


def test_a_typed_parameter_has_its_kind_and_its_name(store: str) -> None:
    expected = (ParamInfo(0, 8, "int", "x"), ParamInfo(8, 4, "float", "a"))
    assert scan(store).entries == {"store": EntryInfo("store", expected)}


@pytest.mark.parametrize(
    ("declarations", "expected"),
    [
        ("", ()),
        (".param .u8 a, .param .u64 b, .param .u8 c, .param .f16 d",
         ((0, 1, "int"), (8, 8, "int"), (16, 1, "int"), (18, 2, "float"))),
        (".param .f64 a", ((0, 8, "float"),)),
        (".param .s16 a", ((0, 2, "int"),)),
        (".param .b32 a", ((0, 4, "bits"),)),
        (".param .u8 a, .param .align 8 .b8 s[16], .param .u32 n", ((0, 1, "int"), (8, 16, "bits"), (24, 4, "int"))),
        (".param .f32 x[4]", ((0, 16, "bits"),)),
        (".param .b8 x[2][3], .param .b8 y[0x10]", ((0, 6, "bits"), (6, 16, "bits"))),
        (".param .u32 n, .param .u64 .ptr .global .align 64 p", ((0, 4, "int"), (8, 8, "int"))),
        (".param .u32 n, .param .u64 .ptr .align 1 p", ((0, 4, "int"), (8, 8, "int"))),
        (".param .f32 a, .param .v4 .f32 v", ((0, 4, "float"), (16, 16, "bits"))),
        ("\n .param.u64 a,\t// the output\n .param .u32 n /* , .param .u32 not_this */\n",
         ((0, 8, "int"), (8, 4, "int"))),
    ],
)  # fmt: skip
def test_parameters_lie_at_their_natural_offsets(declarations: str, expected: Any, head: str) -> None:
    assert params(declarations, head) == expected


@pytest.mark.parametrize("declarations", [".param .texref t", ".param .b8 x[4*(2+2)]", ".param .b8 x[]", "nonsense"])
def test_parameters_that_the_scan_cannot_read_are_none_and_not_a_guess(declarations: str, head: str) -> None:
    assert params(declarations, head) is None


def test_an_entry_without_parentheses_has_no_parameters(head: str) -> None:
    assert scan(head + ".entry k { ret; }").entries["k"].params == ()


def test_a_parameter_list_that_never_closes_is_none(head: str) -> None:
    assert scan(head + ".entry k(.param .u32 n").entries["k"].params is None


def test_entries_in_comments_and_strings_are_none(head: str) -> None:
    text = head + '// .entry a()\n/* .entry b()\n.version 9.9 */\n.file 1 ".entry c()"\n.visible .entry d() { ret; }\n'
    header = scan(text)
    assert list(header.entries) == ["d"]
    assert header.version == (7, 0)


def test_a_comment_before_the_header_does_not_shift_its_lines() -> None:
    assert scan("/* .version 1.0\n .target sm_10 */\n.version 7.0\n.target sm_75").version_line == 3


def test_all_entries_are_found_weak_and_hidden_ones_too(head: str) -> None:
    text = head + ".weak .entry a() { ret; }\n.entry _Z1bv() .maxntid 256 { ret; }\n.func f() { ret; }\n"
    assert list(entries_of(text)) == ["a", "_Z1bv"]


@pytest.mark.parametrize(
    ("text", "words", "line"),
    [
        (b".version 7.0", "must be a str, not bytes", None),
        ("", "empty", None),
        (" \n\t\n", "empty", None),
        (".version 7.0\n.target sm_75\n  .caf\u00e9\n", "'\u00e9' (U+00E9) at line 3, column 7", 3),
        ('.version 7.0\n.target sm_75\n// caf\u00e9\n.file 1 "//caf\u00e9"', "at line 4, column 15", 4),
        ("/* half\n \ud800 */.version 7.0\n.target sm_75\n", "half a character", 2),
        ("\ufeff.version 7.0\n.target sm_75\n", "(U+FEFF) at line 1, column 1", 1),
        (".version 7.0\n.target sm_75\n\0", "NUL character at line 3, column 1", 3),
        (".target sm_75\n.visible .entry k() { ret; }", "no .version directive", None),
        ("// .version 7.0\n.target sm_75", "no .version directive", None),
        ('extern "C" __global__ void k() {}', "KernelSource.cuda", None),
        ("saxpy.ptx", "It looks like a file's name: KernelSource.from_file('saxpy.ptx') reads it", None),
        ("/a b/saxpy.ptx\n", "KernelSource.from_file('/a b/saxpy.ptx')", None),
        (f".version {'7' * 5000}.0\n.target sm_75", ".version directive is not readable", 1),
        (f".version 7.{'0' * 5000}\n.target sm_75", ".version directive is not readable", 1),
        ("\n.version seven\n.target sm_75", ".version directive is not readable", 2),
        (".version 7\n.target sm_75", ".version directive is not readable", 1),
        ("\n.version 7.0\n.entry k() { ret; }", "no readable .target", 2),
    ],
)
def test_what_cannot_be_ptx_is_a_compile_error_that_says_why(text: Any, words: str, line: int | None) -> None:
    with pytest.raises(CompileError) as caught:
        scan(text, "mine")
    assert words in str(caught.value)
    assert caught.value.line == line
    assert caught.value.kernel == "mine"


def test_a_number_of_5000_digits_makes_a_parameter_unknown(head: str) -> None:
    digits = "8" * 5000
    for param in (f".param .align {digits} .b8 x[4]", f".param .b8 x[{digits}]"):
        assert scan(f"{head}.entry k({param}) {{ ret; }}").entries["k"].params is None
    assert scan(f".version 7.0\n.target sm_75\n.address_size {digits}\n").address_size is None


def missing(entry: Any, entries: Any, *rest: Any, **names: Any) -> Any:
    with pytest.raises(CompileError) as caught:
        require_entry(entry, entries, *rest, **names)
    return caught.value


def test_a_missing_entry_names_those_there_are_and_the_closest() -> None:
    error = missing("saxpi", ["saxpy", "scale"], "mine.ptx", "sm_90")
    assert "no entry 'saxpi': the text has saxpy, scale" in str(error)
    assert error.fix == "Did you mean saxpy?"
    assert (error.kernel, error.arch, error.given, error.expected) == ("mine.ptx", "sm_90", "saxpi", ["saxpy", "scale"])


def test_a_missing_entry_of_many_names_some() -> None:
    names = [f"entry_{number}" for number in range(21)]
    error = missing("other", names)
    assert "entry_18, entry_19 ... (21)" in str(error)
    assert "entry_20" not in str(error)
    assert error.expected == names
    assert "entry_19" in str(missing("other", names[:20]))
    assert "..." not in str(missing("other", names[:20]))


def test_a_missing_entry_in_a_text_of_none_says_so() -> None:
    assert "no entry at all" in str(missing("k", []))


def test_a_missing_entry_that_is_a_function_says_so(head: str) -> None:
    text = head + ".visible .func (.param .b32 r) helper(.param .b32 a) { ret; }\n.entry k() { ret; }\n"
    assert missing("helper", ["k"], text=text).fix == "helper is a .func: only an .entry can be launched"
    assert missing("help", ["k"], text=text).fix is None


def test_an_entry_that_is_there_passes() -> None:
    require_entry("k", {"k": 1})


@pytest.mark.parametrize(
    ("target", "arch", "expected"),
    [
        ("sm_75", "sm_90", "sm_90"),
        ("sm_90a", "sm_90", "sm_90a"),
        ("sm_100f", "sm_100", "sm_100f"),
        ("sm_90a", "sm_100", "sm_100"),
        ("sm_9", "sm_90", "sm_90"),
    ],
)
def test_a_text_for_the_architectures_own_features_is_compiled_for_them(target: str, arch: str, expected: str) -> None:
    assert output_arch(target, arch) == expected
