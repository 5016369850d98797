"""Modules of many entries: one is decoded when it is asked for, whatever its siblings are."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from large_module import large_module
from machine import HEAD, run

import ptxrt
from ptxrt import CompileError, InvalidArgument, KernelSource, MemoryFault, Unsupported, sim
from ptxrt.check.run import Report, check, compiled_program
from ptxrt.sim._text.lexer import Token
from ptxrt.sim._text.syntax import Body, Function

SIGNATURE = "f32* x, u32 n"


@pytest.fixture(scope="module")
def large() -> KernelSource:
    return KernelSource.ptx(large_module(entries=168, lines=1000), name="large.ptx")


def seconds(call: Callable[[], object]) -> float:
    """Return the time of one core that a call takes; the processor's, for others use the machine too."""
    gc.collect()
    started = time.process_time()
    call()
    return time.process_time() - started


def load(source: KernelSource, entry: str, device: str = "sim:0") -> ptxrt.Kernel:
    return ptxrt.load(source, entry, SIGNATURE, device=device)


def checked(source: KernelSource, entry: str | None) -> Report:
    return check(source, entry, SIGNATURE, grid=1, block=1, arguments={"x": np.zeros(1, np.float32), "n": 1})


# Time and memory ------------------------------------------------------------------------------------------------------


def test_one_entry_of_168_000_lines(large: KernelSource) -> None:
    assert large.text.count("\n") >= 168_000
    assert seconds(lambda: load(large, "scale_7")) < 3
    assert seconds(lambda: load(large, "scale_7")) < 0.1
    again = KernelSource.ptx(large.text[:9] + large.text[9:], name="large.ptx")
    assert seconds(lambda: load(again, "scale_7")) < 0.1
    assert min(seconds(lambda n=n: load(large, f"scale_{n}")) for n in range(8, 16)) < 0.1  # type: ignore[misc]
    assert not [one for one in gc.get_objects() if isinstance(one, Token)]


def test_an_entry_of_a_large_module_does_what_it_should(large: KernelSource) -> None:
    device = ptxrt.Device("sim:0")
    x = ptxrt.to_device(np.arange(256, dtype=np.float32), device)
    kernel = load(large, "scale_167")
    kernel.launch(1, 256, x, 256)
    assert (x.numpy() == 2 * np.arange(256)).all()
    assert kernel.resources.shared_bytes == 1024


# Siblings -------------------------------------------------------------------------------------------------------------

WGMMA = "wgmma.fence.sync.aligned;"
FAULTS = {
    "a character that PTX does not know": ("mov.u32 r, `1;", CompileError, "line 11: unexpected character"),
    "a comment in a word": ("mov.u32 r /* 1; */ 1;", CompileError, "line 11: expected ',' or ';'"),
    "grammar": ("mov.u32 r 1;", CompileError, "line 11: expected ',' or ';'"),
    "a name": ("mov.u32 [q], 1;", CompileError, "line 11: unknown register or variable q"),
    "an instruction that is not there": ("frob r;", CompileError, "line 11: unknown instruction frob"),
    "types": ("mov.f32 r, 1;", CompileError, "line 11"),
    "a label": ("bra NOWHERE;", CompileError, "line 11: unknown label NOWHERE"),
    "an instruction that the machine does not run": (WGMMA, Unsupported, "line 11: the sim does not run wgmma"),
    "a function": ("call broken, (r);", CompileError, "line 17: unknown instruction frob"),
}


def siblings(bad: str) -> str:
    """Two good entries with a bad one, whose fault stands in line 11, between them."""
    good = (
        ".entry {}(.param .u64 x, .param .u32 n) {{ .reg .u64 p;\nld.param.u64 p, [x]; st.global.f32 [p], {}; ret; }}\n"
    )
    return (
        HEAD
        + good.format("one", "1.0")
        + ".func broken(.reg .u32 a);\n.entry bad(.param .u64 x, .param .u32 n)\n{\n.reg .u32 r;\n\n"
        + f"{bad}\nret;\n}}\n"
        + good.format("two", "2.0")
        + ".func broken(.reg .u32 a) {\nfrob a; }\n"
    )


@pytest.mark.parametrize("what", FAULTS)
def test_a_sibling_does_not_matter(what: str) -> None:
    bad, kind, words = FAULTS[what]
    source = KernelSource.ptx(siblings(bad), name="siblings.ptx")
    device = ptxrt.Device("sim:0")
    x = ptxrt.to_device(np.zeros(1, np.float32), device)
    for entry, result in (("one", 1), ("two", 2)):
        load(source, entry).launch(1, 1, x, 1)
        assert x.numpy()[0] == result
        for _ in range(2):
            with pytest.raises(kind, match=words) as caught:
                load(source, "bad")
        if isinstance(caught.value, CompileError):
            assert (caught.value.kernel, caught.value.arch) == ("bad", device.arch)
            assert words in caught.value.log
    with pytest.raises(kind, match=words):
        checked(source, "bad")
    assert checked(source, "two").fault is None


def test_shadow_mode_learns_that_the_machine_does_not_run_an_entry() -> None:
    source = KernelSource.ptx(siblings(WGMMA))
    assert compiled_program(source, "two", None).symbol == "two"
    with pytest.raises(Unsupported, match="wgmma"):
        compiled_program(source, "bad", None)


def test_without_an_entry_the_entries_are_listed_unread() -> None:
    with pytest.raises(InvalidArgument, match="one of one, bad, two"):
        checked(KernelSource.ptx(siblings("frob;")), None)


@pytest.mark.parametrize(
    ("sibling", "line", "words"),
    [
        (".entry l() {\nret;\n", 5, "the body of l is never closed"),
        (".entry l() {\nret;\n.entry m() { ret; }\n", 7, "unknown directive .entry"),
        (".entry l() { ret; /* }\n", 5, "a comment that never ends"),
        (".entry l() { ret; }\n}\n", 6, "expected a directive"),
        (".entry k() { frob; }\n", 5, "declared twice"),
        (".entry l(.param .u32 a, .param .u32 a) { frob; }\n", 5, "declared twice"),
        (".entry l() .frobs { frob; }\n", 5, "expected '{'"),
        (".frobs l() { frob; }\n", 5, "expected a directive"),
        (".entry l() { frob; } .global .u32 a[2] = {1, 2, 3};\n", 5, "too many initial values"),
        (".entry l() { frob; } .section .debug_str { `\n", 5, "unexpected character"),
    ],
)
def test_the_structure_of_a_text_is_that_of_all_its_entries(sibling: str, line: int, words: str) -> None:
    with pytest.raises(CompileError, match=words) as caught:
        sim.parse(HEAD + ".entry k() { ret; }\n" + sibling)
    assert caught.value.line == line


def test_a_fault_of_the_only_entry_is_one_of_the_text() -> None:
    cache = ptxrt.Device("sim:1").modules
    source = KernelSource.ptx(HEAD + ".entry k() { frob; }")
    with pytest.raises(CompileError, match="unknown instruction frob"):
        load(source, "l", "sim:1")
    assert [(one.state, one.source) for one in cache.entries() if one.source == source.text] == [
        ("failed", source.text)
    ]


@pytest.mark.parametrize(
    "words",
    [
        "// {",
        "/* { \n { */",
        "/* // */ // /* {",
        "# {",
        '.pragma "{";',
        r'.pragma "\"{";',
        '.file 1 "/home/{/a.cu"',
        '.file 1 "a.cu" {',
        ".loc 1 2 3 // {",
        "{ { } }",
        ".reg .f32 a, b; mov.b64 {a, b}, 0;",
    ],
)
def test_where_a_body_ends(words: str) -> None:
    for brace in ("{", "}"):
        text = words if words.count("}") else words.replace("{", brace)
        program = sim.parse(f"{HEAD}.entry k() {{\n{text}\n ret; }}\n.entry l() {{\nret; }}\n")
        assert list(program.entries) == ["k", "l"]
        assert [entry.line for entry in program.entries.values()] == [4, 7 + text.count("\n")]
        program.entries["k"].decode()


# What entries have of their module ------------------------------------------------------------------------------------


def test_shared_memory_is_that_of_the_entry_and_its_functions() -> None:
    text = HEAD + (
        ".func f() { .shared .u32 a[4]; .reg .u32 v; ld.shared.u32 v, [a]; ret; }\n"
        ".shared .u32 b[8];\n"
        ".entry k() { .shared .u32 c[16]; .reg .u32 v; ld.shared.u32 v, [c]; call f; call f;\n"
        "ld.shared.u32 v, [b]; ret; }\n"
        ".entry l() { .shared .u32 d[32]; .reg .u32 v; ld.shared.u32 v, [b]; ret; }\n"
        ".entry m() { .shared .u32 e[64]; .reg .u32 v; mov.u32 v, 8; ld.shared.u32 v, [v]; ret; }\n"
    )
    for order in ("klm", "mlk"):
        entries = sim.parse(text).entries
        places = {name: {v.name: at for v, at in entries[name].code.shared_places.items()} for name in order}
        assert places == {"k": {"a": 0, "b": 16, "c": 48}, "l": {"b": 0}, "m": {"b": 0, "e": 32}}
        assert [entries[name].shared_bytes for name in "klm"] == [112, 32, 288]


def test_what_a_body_declares_for_the_life_of_the_module() -> None:
    text = HEAD + (
        ".entry k() { .global .u32 count = 3; .const .u32 step = 4; .reg .u32 v, w; ld.global.u32 v, [count];\n"
        "ld.const.u32 w, [step]; add.u32 v, v, w; st.global.u32 [count], v; ret; }\n"
        ".entry l() { ret; }\n"
    )
    program = sim.parse(text)
    memory = sim.GlobalMemory()
    loaded = sim.load(program, memory)
    assert program.entries["l"].const_bytes == 4
    for expected in (7, 11):
        sim.launch(loaded, "k", (1, 1, 1), (1, 1, 1), b"")
        address, size = next((at, v.size) for v, at in loaded.addresses.items() if v.name == "count")
        assert memory.view(address, size).view(np.uint32)[0] == expected


POINTER = (
    ".global .u64 chosen;\n"
    ".func (.reg .u32 r) one() {{ mov.u32 r, 1; ret; }}\n"
    ".func (.reg .u32 r) two() {{ mov.u32 r, 2; ret; }}\n"
    ".func (.reg .u32 r) three() {{ frob; }}\n"
    ".entry choose() {{ .reg .u64 p; {choose} st.global.u64 [chosen], p; ret; }}\n"
    ".entry bad() {{ .reg .u32 v; call (v), three; mov ` ; }}\n"
    ".entry k(.param .u64 out) {{ .reg .u64 p; .reg .u32 v; ld.global.u64 p, [chosen];\n"
    "proto: .callprototype (.reg .u32 _) _ ();\n"
    "call (v), p, (), proto; ld.param.u64 p, [out]; st.global.u32 [p], v; ret; }}\n"
)


@pytest.mark.parametrize("choose", ["mov.u64 p, two;", "L: mov .u64 p /* , one; */ , // three;\ntwo;"])
def test_a_pointer_holds_a_function_that_another_entry_has_chosen(choose: str) -> None:
    program = sim.parse(HEAD + POINTER.format(choose=choose))
    memory = sim.GlobalMemory()
    loaded = sim.load(program, memory)
    sim.launch(loaded, "choose", (1, 1, 1), (1, 1, 1), b"")
    out = memory.allocate(4)
    sim.launch(loaded, "k", (1, 1, 1), (1, 1, 1), out.to_bytes(8, "little"))
    assert memory.view(out, 4).view(np.uint32)[0] == 2


def test_a_pointer_to_a_function_that_none_chooses() -> None:
    one = HEAD + POINTER.format(choose="mov.u64 p, 1;")
    with pytest.raises(MemoryFault, match="no function of this prototype"):
        run(one, np.zeros(1, np.uint32))


# Threads --------------------------------------------------------------------------------------------------------------


def together(*calls: Callable[[], None]) -> None:
    """Run calls in a thread each, and raise what one raised."""
    raised: list[BaseException] = []
    start = threading.Barrier(len(calls))

    def one(call: Callable[[], None]) -> None:
        start.wait()
        try:
            call()
        except BaseException as error:  # noqa: BLE001 (raised below)
            raised.append(error)

    threads = [threading.Thread(target=one, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


def test_threads_that_ask_for_entries_of_one_program() -> None:
    source = KernelSource.ptx(large_module(entries=4, lines=300, functions=1, odd=WGMMA))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    results: list[float] = []

    def refused() -> None:
        with pytest.raises(Unsupported, match=r"scale_0: line \d+: the sim does not run wgmma"):
            load(source, "scale_0")

    def runs(n: int) -> None:
        x = ptxrt.to_device(np.full(256, n, np.float32), ptxrt.Device("sim:0"))
        load(source, f"scale_{n}").launch(1, 256, x, 256)
        results.extend(x.numpy().tolist())

    try:
        together(*[refused, lambda: runs(1), lambda: runs(2), lambda: runs(3)] * 2)
    finally:
        sys.setswitchinterval(interval)
    assert sorted(results) == 512 * [2] + 512 * [4] + 512 * [6]


def test_threads_that_read_one_body_have_the_same() -> None:
    both = threading.Barrier(2)

    def read() -> Body:
        both.wait(10)  # both threads have found that nobody has read it
        return Body()

    function = Function("f", False, 1, text="{}", read=read)
    bodies: list[Body] = []
    together(*2 * [lambda: bodies.append(function.body)])
    assert bodies[0] is bodies[1] is function.body


# Characters -----------------------------------------------------------------------------------------------------------


def test_comments_need_not_be_ascii() -> None:
    text = siblings("ret; // µs").replace("ret; }", "ret; /* \u2192 */ } // caf\u00e9")
    x = ptxrt.to_device(np.zeros(1, np.float32), ptxrt.Device("sim:0"))
    load(KernelSource.ptx(text), "two").launch(1, 1, x, 1)
    assert x.numpy()[0] == 2
    assert checked(KernelSource.ptx(text), "bad").fault is None


@pytest.mark.parametrize("line", ["mov.u32 r, \u0663;", "mov.u32 r, 1; \u00b5:", "\u00a0mov.u32 r, 1;"])
def test_code_is_ascii(line: str) -> None:
    with pytest.raises(CompileError, match=r"line 11: unexpected character.*comments alone"):
        sim.parse(siblings(line)).entries["bad"].decode()
