"""``.file``, ``.loc`` and ``.debug_str`` name what an instruction was made of, and never make a text refused."""

from __future__ import annotations

import pytest

from ptxrt import MemoryFault, sim
from ptxrt.places import Sources
from ptxrt.sim._text.places import Places

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def parsed(body: str, behind: str = "", sources: Sources | None = None) -> sim.Program:
    """A text of which the body begins in line 5."""
    return sim.parse(f"{HEAD}.visible .entry k() {{\n{body}\nret;\n}}\n{behind}", sources=sources)


def in_bytes(*names: str) -> str:
    """Names as a compiler writes them into .debug_str: labels and bytes."""
    sections = [f"$n{n}:\n.b8 {','.join(str(byte) for byte in name.encode())},0\n" for n, name in enumerate(names)]
    return ".section .debug_str {\n" + "".join(sections) + "}\n"


def test_a_loc_holds_until_the_next_one_and_for_its_function_alone() -> None:
    text = (
        f'{HEAD}.file 1 "a.cu"\n.func f() {{\n.loc 1 3 1\nret;\n}}\n'  # lines 5 to 8
        ".entry k() {\nret;\n.loc 1 9 2\nbar.sync 0;\n\nret;\n.loc 1 11 1\nret;\n}\n"
    )
    program = sim.parse(text)
    lines = {number: str(program.place(number)) for number in (7, 10, 12, 14, 16)}
    assert lines == {7: "a.cu:3", 10: "None", 12: "a.cu:9", 14: "a.cu:9", 16: "a.cu:11"}
    names = [place.function for number in (7, 12) if (place := program.place(number))]
    assert names == ["f", "k"]
    assert [program.place(number) for number in (0, 1, 4)] == [None] * 3


def test_functions_in_one_line_each() -> None:
    program = sim.parse(f'{HEAD}.file 1 "a.cu"\n.entry k() {{\n.loc 1 3 1\nret; }}\n.entry l() {{ ret; }}\n')
    assert [str(program.place(number)) for number in (7, 8)] == ["a.cu:3", "None"]


def test_a_chain_stays_in_its_function() -> None:
    loc = ".loc 1 10 3, function_name $n0, inlined_at 1 20 5\n"
    inner = ".loc 1 2 1, function_name $n1, inlined_at 1 10 3\nbar.sync 0;\nret;\n}\n"
    behind = in_bytes("mid", "inner") + '.file 1 "a.cu"\n'
    program = sim.parse(f"{HEAD}.entry k() {{\n{loc}{inner}.entry l() {{\n{inner}{behind}")
    chains = [[each.function for each in place.inlined] for number in (7, 12) if (place := program.place(number))]
    assert chains == [["inner", "mid", "k"], ["inner", "l"]]


def test_the_chain_follows_the_last_call_from_the_same_place() -> None:
    body = (
        ".loc 1 20 5\n.loc 1 10 3, function_name $n0, inlined_at 1 20 5\n"
        ".loc 1 2 1, function_name $n1, inlined_at 1 10 3\nbar.sync 0;\n"  # line 8
        ".loc 1 30 5\n.loc 1 10 3, function_name $n0, inlined_at 1 30 5\n"
        ".loc 1 2 1, function_name $n1, inlined_at 1 10 3\nbar.sync 0;"  # line 12
    )
    program = parsed(body, in_bytes("_Z3midf", "_Z5innerIfET_S0_") + '.file 1 "a.cu"\n')
    chains = [place.chain for number in (8, 12) if (place := program.place(number))]
    assert chains == [
        f"in inner<float>() at a.cu:2, inlined into mid() at a.cu:10, inlined into k() at a.cu:{line}"
        for line in (20, 30)
    ]


def test_a_function_inlined_into_itself_is_there_once() -> None:
    turn = ".loc 1 5 9, function_name $n0, inlined_at 1 5 9\n.loc 1 6 9, function_name $n1, inlined_at 1 5 9\n"
    back = ".loc 1 5 9, function_name $n0, inlined_at 1 6 9\n"
    body = ".loc 1 20 5\n.loc 1 5 9, function_name $n0, inlined_at 1 20 5\n" + 100 * (turn + back) + "bar.sync 0;"
    place = parsed(body, in_bytes("f", "g") + '.file 1 "a.cu"\n').place(6 + body.count("\n"))
    assert place is not None
    assert 2 < len(place.inlined) < 6
    assert {each.function for each in place.inlined} == {"f", "g", "k"}


def test_a_name_may_stand_behind_a_label() -> None:
    body = ".loc 1 2 1, function_name $n0 + 4, inlined_at 1 10 3\nbar.sync 0;"
    place = parsed(body, in_bytes("one\0two") + '.file 1 "a.cu"\n').place(6)
    assert place is not None
    assert [each.function for each in place.inlined] == ["two", "k"]


def test_the_place_is_the_innermost_one_that_somebody_wrote() -> None:
    body = (
        ".loc 1 4 1\n.loc 2 90 1, function_name $n0, inlined_at 1 4 1\nbar.sync 0;\n"  # line 7
        ".loc 2 91 1\nbar.sync 0;"  # line 9
    )
    behind = in_bytes("library") + '.file 1 "a.cu"\n.file 2 "library.h"\n'
    own = parsed(body, behind, Sources((("a.cu", "one\ntwo\nthree\n  four;\n"),)))
    place = own.place(7)
    assert place is not None
    assert (str(place), place.text, place.function) == ("a.cu:4", "four;", "k")
    assert place.chain == "in library() at library.h:90, inlined into k() at a.cu:4"
    assert str(own.place(9)) == "library.h:91"
    assert str(parsed(body, behind).place(7)) == "library.h:90"


@pytest.mark.parametrize("words", ["/*\n.loc 1 9 1 */", "// .loc 1 9 1\n", "# .loc 1 9 1\n", '.pragma ".loc 1 9 1";\n'])
def test_a_loc_that_is_none(words: str) -> None:
    program = parsed(f'.file 1 "a.cu"\n.loc 1 3 1\n{words}\nbar.sync 0;')
    assert [str(program.place(number)) for number in (7, 8, 9)] == 3 * ["a.cu:3"]


def test_what_the_compiler_made_of_no_line() -> None:
    program = parsed('.file 1 "a.cu"\n.loc 1 0 0\nbar.sync 0;\n.loc 7 3 1\nbar.sync 0;')
    assert [program.place(number) for number in (7, 9)] == [None, None]
    body = ".loc 1 4 1\n.loc 1 0 0, function_name $n0, inlined_at 1 4 1\nbar.sync 0;"
    assert str(parsed(body, in_bytes("f") + '.file 1 "a.cu"\n').place(7)) == "a.cu:4"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ('"a.cu"', "a.cu"),
        ('"a.cu", 1700000000, 12', "a.cu"),
        (r'"d\303\274r \"q\"/a\\b.cu"', 'd\u00fcr "q"/a\\b.cu'),
        (r'"C:\kernels\new.cu"', r"C:\kernels\new.cu"),
        (r'"\377.cu"', r"\xff.cu"),
    ],
)
def test_the_name_of_a_file(written: str, name: str) -> None:
    for text in (f".file 3 {written}\n.loc 3 1 1\nret;", f".loc 3 1 1\nret;\n.file 3 {written}"):
        place = parsed(text).place(6 if text.startswith(".loc") else 7)
        assert place is not None
        assert place.file == name


@pytest.mark.parametrize(
    "words",
    [
        ".loc",
        ".loc 1",
        ".loc 1 2 3 4 5",
        ".loc 1 -2 3",
        ".loc 1 2 3, function_name",
        ".loc 1 2 3, function_name $none, inlined_at 1 2 3",
        ".loc 1 2 3, inlined_at 1 2 3",
        f".loc {'9' * 5000} 1 1",
        f".loc 1 {'9' * 5000} 1 // a.py",
        '.file 1 "a.cu" ; { frob',
        ".file 1",
        '.file "a.cu"',
        r'.file 1 "a.cu\"',
        '.file 1 "' + "\\\\" * 5000 + '\\"',
    ],
)
def test_odd_words_are_no_fault_of_a_text(words: str) -> None:
    program = parsed(f'.file 1 "a.cu"\n{words}\nbar.sync 0;')
    place = program.place(7)
    assert place is None or place.line == 2


@pytest.mark.parametrize("section", ["$n0: .b8 999, -1, 0x41\n.b32 $n0\n", "", ".b8 65\n", "$n0:\n$n0:\n"])
def test_odd_names_are_no_fault_of_a_text(section: str) -> None:
    body = ".loc 1 2 1, function_name $n0, inlined_at 1 4 1\nret;"
    assert parsed(body, f'.file 1 "a.cu"\n.section .debug_str {{\n{section}}}\n').place(6) is not None


def test_a_launch_without_a_fault_looks_for_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parsed('.file 1 "a.cu"\n.loc 1 4 1\nbar.sync 0;')
    looked: list[int] = []
    monkeypatch.setattr(Places, "at", lambda self, number: looked.append(number))
    loaded = sim.load(program, sim.GlobalMemory(1 << 20))
    sim.launch(loaded, "k", (4, 1, 1), (64, 1, 1), b"", checks=["all"], profile=sim.Profile())
    assert looked == []


def test_a_fault_of_ptx_by_hand_names_what_its_loc_does() -> None:
    # As Triton writes it.
    body = ".reg .b64 %p; .reg .b32 %v;\n.loc 1 20 33 // add.py:20:33\nmov.u64 %p, 0;\nld.global.u32 %v, [%p];"
    loaded = sim.load(parsed(body, '.file 1 "/home/me/add.py"\n'), sim.GlobalMemory(1 << 20))
    with pytest.raises(MemoryFault) as caught:
        sim.launch(loaded, "k", (1, 1, 1), (1, 1, 1), b"")
    assert str(caught.value).startswith("k, /home/me/add.py:20: read of 4 bytes")
    assert "\n  PTX line 8: ld.global.u32 %v, [%p];\n" in str(caught.value)
    assert (caught.value.line, caught.value.text) == (8, "ld.global.u32 %v, [%p];")
