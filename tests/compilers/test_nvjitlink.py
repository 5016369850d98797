"""PTX -> cubin, with the real nvJitLink and no device."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from helpers import Capture, Patch

from ptxrt.compilers import Report
from ptxrt.errors import CompileError, InvalidArgument


def failure(jitlink: Any, text: Any, arch: str = "sm_90", options: Any = (), **names: Any) -> Any:
    with pytest.raises(CompileError) as caught:
        jitlink.compile_ptx(text, arch, options, **names)
    return caught.value


def sections(cubin: Any) -> list[tuple[int, str, Any]]:
    """Where the header of each section stands, the section's name, and the header."""
    table, count, names = *struct.unpack_from("<Q", cubin, 40), *struct.unpack_from("<HH", cubin, 60)
    headers = [(at, struct.unpack_from("<IIQQQQ", cubin, at)) for at in range(table, table + 64 * count, 64)]
    first = headers[names][1][4]
    return [(at, cubin[first + it[0] :].partition(b"\0")[0].decode(), it) for at, it in headers]


def multiplies_and_adds(cubin: Any) -> Any:
    """The float multiplies and adds in the first .text section, by their opcodes on sm_70 to sm_90."""
    text = next(header for _, name, header in sections(cubin) if name.startswith(".text."))
    opcodes = [struct.unpack_from("<H", cubin, at)[0] & 0x1FF for at in range(text[4], text[4] + text[5], 16)]
    known = {0x20: "FMUL", 0x21: "FADD", 0x23: "FFMA"}
    return [known[opcode] for opcode in opcodes if opcode in known]


def test_a_text_becomes_a_cubin_with_its_entries_and_its_report(jitlink: ModuleType, store: str) -> None:
    binary = jitlink.compile_ptx(store, "sm_90", name="mine.ptx", entry="store")
    assert binary.code.startswith(b"\x7fELF")
    assert (binary.kind, binary.arch, binary.options) == ("cubin", "sm_90", ())
    assert binary.compiler == f"nvJitLink {jitlink.version()}"
    assert [(p.size, p.kind) for p in binary.entries["store"].params] == [(8, "int"), (4, "float")]
    assert binary.symbols == {"store": "store"}
    report = binary.reports["store"]
    assert report.registers > 0
    assert report == Report(report.registers, 0, 0, 0, 0, 0, 0)
    assert 0 < binary.seconds < 60


def test_the_report_counts_shared_and_constant_bytes(jitlink: ModuleType, store: str) -> None:
    text = store.replace(".visible", ".const .align 4 .b8 table[400];\n.visible").replace(
        "  ret;",
        "  .shared .align 4 .b8 tile[1024];\n"
        "  .reg .b32 %s<3>;\n"
        "  mov.u32 %s1, tile;\n  shl.b32 %s2, %r1, 2;\n  add.u32 %s1, %s1, %s2;\n  st.shared.f32 [%s1], %f1;\n"
        "  bar.sync 0;\n  ld.shared.f32 %f2, [tile+8];\n  ld.const.f32 %f3, [table];\n  add.f32 %f2, %f2, %f3;\n"
        "  st.global.f32 [%d2], %f2;\n  ret;",
    )
    report = jitlink.compile_ptx(text, "sm_90").reports["store"]
    assert (report.shared_bytes, report.constant_bytes) == (1024, 400)


def test_spills_are_reported(jitlink: ModuleType, head: str) -> None:
    loads = "".join(f"  ld.volatile.global.f32 %f{i}, [%d1+{4 * i}];\n" for i in range(1, 100))
    stores = "".join(f"  st.volatile.global.f32 [%d1+{4 * i}], %f{i};\n" for i in range(1, 100))
    text = (
        f"{head}.visible .entry k(.param .u64 x)\n{{\n  .reg .f32 %f<100>;\n  .reg .b64 %d<2>;\n"
        f"  ld.param.u64 %d1, [x];\n{loads}{stores}  ret;\n}}\n"
    )
    report = jitlink.compile_ptx(text, "sm_90", ("-maxrregcount=32",)).reports["k"]
    assert report.registers <= 32
    assert min(report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) > 0


@pytest.mark.parametrize(("number", "barriers"), [("0", 1), ("3", 4), ("%r", 16)])
def test_barriers_are_reported(jitlink: ModuleType, head: str, number: str, barriers: int) -> None:
    body = f"  .reg .b32 %r;\n  mov.u32 %r, %tid.y;\n  bar.sync {number}, 64;\n  ret;\n"
    text = f"{head}.visible .entry k()\n{{\n{body}}}\n"
    assert jitlink.compile_ptx(text, "sm_90").reports["k"].barriers == barriers


def test_the_same_inputs_give_the_same_bytes(jitlink: ModuleType, store: str) -> None:
    codes = {jitlink.compile_ptx(store, "sm_90", name=name).code for name in ("a.ptx", "a.ptx", "b.ptx", None)}
    assert len(codes) == 1


def test_a_second_compile_reports_as_much_as_the_first(jitlink: ModuleType, store: str) -> None:
    # nvJitLink 13.0 beside a driver answers the second from a cache of its own, with an empty log, unless forbidden.
    first, second = (jitlink.compile_ptx(store, "sm_90") for _ in range(2))
    assert second.reports == first.reports
    assert second.reports["store"].registers > 0


def test_options_reach_the_assembler(jitlink: ModuleType, head: str) -> None:
    text = (
        f"{head}.visible .entry k(.param .u64 x, .param .f32 a, .param .f32 b)\n{{\n"
        "  .reg .f32 %f<6>;\n  .reg .b64 %d<2>;\n  ld.param.u64 %d1, [x];\n  ld.param.f32 %f1, [a];\n"
        "  ld.param.f32 %f2, [b];\n  ld.global.f32 %f3, [%d1];\n  mul.f32 %f4, %f1, %f3;\n  add.f32 %f5, %f4, %f2;\n"
        "  st.global.f32 [%d1], %f5;\n  ret;\n}\n"
    )
    plain, unfused, unoptimised = (jitlink.compile_ptx(text, "sm_90", o) for o in ((), ("-fma=0",), ("-O0",)))
    assert unfused.options == ("-fma=0",)
    assert len({plain.code, unfused.code, unoptimised.code}) == 3
    assert (multiplies_and_adds(plain.code), multiplies_and_adds(unfused.code)) == (["FFMA"], ["FMUL", "FADD"])


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100"])
def test_one_text_compiles_for_every_architecture(jitlink: ModuleType, store: str, arch: str) -> None:
    assert jitlink.compile_ptx(store, arch).arch == arch


def test_a_text_without_an_entry_compiles_when_none_is_asked_for(jitlink: ModuleType, head: str) -> None:
    assert jitlink.compile_ptx(head, "sm_90").entries == {}


def test_the_version_begins_with_major_and_minor(jitlink: ModuleType) -> None:
    assert [part.isdigit() for part in jitlink.version().split(".")][:2] == [True, True]


def test_the_architectures_hold_sm_90_or_are_not_listed(jitlink: ModuleType) -> None:
    known = jitlink.architectures()
    assert "sm_90" in known or (known == () and jitlink.version().startswith("12."))


@pytest.mark.parametrize(
    ("change", "line", "words"),
    [
        (("cvta.to", "cvtaa.to"), 10, "Not a name of any known instruction: 'cvtaa'"),
        (("mov.u32 %r1", "mov.u32 %zz"), 12, "Unknown symbol '%zz'"),
        (("add.s64 %d2, %d2", "add.s64 %d2, %f1"), 14, "Arguments mismatch for instruction 'add'"),
        (("ret;", "bra NOWHERE;"), 16, "Unknown symbol 'NOWHERE'"),
        (("  ret;\n}\n", ""), 15, "is it cut off?"),
        ((".target sm_75", ".target sm_120"), 2, "Raise .version"),
    ],
)
def test_a_fault_in_the_text_is_a_compile_error_with_log_line_and_excerpt(
    jitlink: ModuleType, store: str, change: Any, line: int, words: str
) -> None:
    error = failure(jitlink, store.replace(*change), "sm_120", ("-fma=0",), name="mine.ptx")
    assert words in str(error)
    assert (error.line, error.kernel, error.options) == (line, "mine.ptx", ("-fma=0",))
    assert "ptxas" in error.log
    assert error.log in str(error)
    assert f"> {line:5d} | " in str(error)


def test_a_version_too_new_names_both_versions_and_the_fix(jitlink: ModuleType, store: str) -> None:
    error = failure(jitlink, store.replace("7.0", "99.9"))
    assert error.line == 1
    assert error.given == ".version 99.9"
    assert "the text says .version 99.9, and nvJitLink" in str(error)
    assert "or lower, or install a newer nvJitLink" in error.fix


def test_an_unknown_target_names_it_and_the_fix(jitlink: ModuleType, store: str) -> None:
    error = failure(jitlink, store.replace("sm_75", "sm_999"))
    assert (error.line, error.given) == (2, ".target sm_999")
    there_are = ", ".join(jitlink.architectures())
    assert f"does not know{f'; it knows {there_are}' if there_are else ''}" in str(error)
    assert "Write .target sm_90 or older" in error.fix


def test_a_target_newer_than_the_architecture_names_both(jitlink: ModuleType, store: str) -> None:
    error = failure(jitlink, store.replace("sm_75", "sm_90").replace("7.0", "8.0"), "sm_80")
    assert error.line == 2
    assert "the text says .target sm_90, which is newer, and this compile is for sm_80" in str(error)


def test_a_target_of_another_architectures_own_features_names_both(jitlink: ModuleType, store: str) -> None:
    error = failure(jitlink, store.replace("sm_75", "sm_90a").replace("7.0", "8.7"), "sm_100")
    assert error.line == 2
    assert "the text says .target sm_90a, which runs there only, and this compile is for sm_100" in str(error)


def test_a_target_of_this_architectures_own_features_says_how_to_compile_it(jitlink: ModuleType, store: str) -> None:
    text = store.replace("sm_75", "sm_90a").replace("7.0", "8.0")
    assert "Compile it for sm_90a: the binary runs on sm_90" in str(failure(jitlink, text, "sm_90"))
    assert jitlink.compile_ptx(text, "sm_90a").arch == "sm_90a"


@pytest.mark.parametrize("arch", ["sm_20", "sm_799"])
def test_an_arch_that_nvjitlink_has_not_is_named(jitlink: ModuleType, store: str, arch: str, capfd: Capture) -> None:
    error = failure(jitlink, store, arch)
    assert error.arch == arch
    if not jitlink.version().startswith("12."):
        assert f"makes no code for {arch}" in str(error)
        assert "sm_90" in error.expected


def test_an_option_that_nvjitlink_does_not_take_is_named(jitlink: ModuleType, store: str) -> None:
    error = failure(jitlink, store, options=("-lineinfo", "-O2"))
    assert error.given == "-O2"
    assert "does not take the options -O2" in str(error)


def test_a_missing_entry_is_refused_before_the_compile(jitlink: ModuleType, store: str) -> None:
    error = failure(jitlink, store, entry="stroe")
    assert "the text has store" in str(error)
    assert (error.log, error.kernel) == ("", "stroe")


def test_a_function_that_is_nowhere_defined_is_a_compile_error(jitlink: ModuleType, store: str) -> None:
    text = store.replace(".visible", ".extern .func foo();\n.visible").replace("ret;", "call foo;\n  ret;")
    assert "must be defined in its own text" in str(failure(jitlink, text))


def test_too_much_static_shared_memory_names_the_limit(jitlink: ModuleType, store: str) -> None:
    assert "48 KiB" in str(failure(jitlink, store.replace("{\n", "{\n.shared .b8 tile[60000];\n")))


OWN = "  .shared .align 16 .b32 own[4];\n  .reg .b32 %r<2>;\n  mov.u32 %r1, own;\n  st.shared.u32 [%r1], 7;\n"


def two_entries(head: str, align: int) -> str:
    """Return a text of two entries with 16 bytes of their own; one has dynamic shared memory, too."""
    dynamic = f".extern .shared .align {align} .b8 memory[];\n"
    with_it = f".visible .entry with_it() {{\n{OWN}  mov.u32 %r1, memory;\n  st.shared.u32 [%r1], 7;\n  ret;\n}}\n"
    return f"{head}{dynamic}{with_it}.visible .entry without() {{\n{OWN}  ret;\n}}\n"


def begins(jitlink: Any, monkeypatch: Patch, places: dict[str, int]) -> None:
    """Have cubins in which the dynamic shared memory of entries begins at these bytes, as nvJitLink 13.0 has it."""
    link = jitlink._link

    def linked(*given: Any) -> Any:
        code, log = link(*given)
        cubin = bytearray(code)
        for at, name, _ in sections(cubin):
            if name.startswith(".nv.shared.") and name[11:] in places:
                struct.pack_into("<Q", cubin, at + 32, places[name[11:]])
        return bytes(cubin), log

    monkeypatch.setattr(jitlink, "_link", linked)


def test_dynamic_shared_memory_that_does_not_begin_where_the_text_says_is_refused(
    jitlink: ModuleType, head: str, monkeypatch: Patch
) -> None:
    begins(jitlink, monkeypatch, {"with_it": 1040})
    error = failure(jitlink, two_entries(head, 64))
    assert "does not keep the alignment of memory: in with_it it begins at byte 1040" in str(error)
    assert "Declare .align 16 and round the address up" in str(error)
    assert (error.line, error.expected, error.given) == (head.count("\n") + 1, "a multiple of 64", "1040")


def test_other_dynamic_shared_memory_is_not(jitlink: ModuleType, head: str, monkeypatch: Patch) -> None:
    """16 bytes are always kept; an entry without dynamic memory has none that could begin anywhere."""
    begins(jitlink, monkeypatch, {"with_it": 1040, "without": 1040})
    assert set(jitlink.compile_ptx(two_entries(head, 16), "sm_90").entries) == {"with_it", "without"}
    begins(jitlink, monkeypatch, {"with_it": 1088, "without": 1040})
    assert set(jitlink.compile_ptx(two_entries(head, 64), "sm_90").entries) == {"with_it", "without"}


def test_a_version_that_is_not_the_first_directive_says_so(jitlink: ModuleType) -> None:
    assert "must begin with .version" in str(failure(jitlink, ".target sm_75\n.version 7.0\n.entry k() { ret; }"))


def test_whether_a_comment_is_ascii_the_assembler_decides(jitlink: ModuleType, store: str) -> None:
    text = store.replace("ret;", "ret; // \u00b5s")
    if tuple(map(int, jitlink.version().split("."))) >= (13, 5):
        assert list(jitlink.compile_ptx(text, "sm_90").entries) == ["store"]
    else:
        refused = failure(jitlink, text)
        assert (refused.line, "install a newer nvJitLink" in str(refused)) == (16, True)


def test_non_ascii_outside_of_comments_is_refused_whatever_the_assembler(jitlink: ModuleType, store: str) -> None:
    assert failure(jitlink, store.replace("ret;", "ret; \u00b5s")).line == 16


def test_an_option_that_names_an_architecture_is_refused(jitlink: ModuleType, store: str) -> None:
    with pytest.raises(InvalidArgument, match="no architecture among the options"):
        jitlink.compile_ptx(store, "sm_90", ("-arch=sm_80",))


def test_an_architecture_is_checked_before_the_text(jitlink: ModuleType) -> None:
    with pytest.raises(InvalidArgument, match="arch"):
        jitlink.compile_ptx("", "compute_90")


def counting(function: Any, calls: Any, name: Any) -> Any:
    def counted(*args: Any) -> Any:
        result = function(*args)
        calls[name] += 1
        return result

    return counted


def test_handles_are_destroyed_after_success_and_failure(jitlink: ModuleType, store: str, monkeypatch: Patch) -> None:
    library, calls = jitlink._library(), Counter[str]()
    for name in ("create", "destroy"):
        monkeypatch.setattr(library, name, counting(getattr(library, name), calls, name))
    jitlink.compile_ptx(store, "sm_90")
    failure(jitlink, store.replace("ret;", "bogus;"))
    failure(jitlink, store, options=("-O2",))
    assert calls["create"] == calls["destroy"] >= 2


def test_threads_compile_at_once_and_get_what_one_gets(jitlink: ModuleType, store: str) -> None:
    texts = [store.replace("store(", f"store{i}(") for i in range(8)]
    alone = [jitlink.compile_ptx(text, "sm_90").code for text in texts]
    together: dict[int, bytes] = {}

    def work(i: Any) -> None:
        together[i] = jitlink.compile_ptx(texts[i], "sm_90", entry=f"store{i}").code

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[i] for i in range(8)] == alone
