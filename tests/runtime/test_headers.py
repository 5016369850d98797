"""What a module cache does about the files that a compile of C++ reads: the right binary after any change of them.

No device is needed: each backend compiles with its own compiler, and what it would load is put aside.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import Patch
from store_testing import cache_maker

import ptxrt
from ptxrt import KernelSource
from ptxrt.compilers import _hiprtc_compile as hiprtc_compile
from ptxrt.compilers import _included, nvrtc
from ptxrt.compilers._included import Included, watched

# The header's outcome can be read off the names of the entries.
TEXT = '#include "mine.h"\nextern "C" __global__ void k() {}\nextern "C" __global__ void NAME() {}\n'


@pytest.fixture(params=["sim-cuda", "sim-hip", "cuda-cuda", "hip-hip"])
def cache(request: pytest.FixtureRequest, monkeypatch: Patch, tmp_path: Path) -> Any:
    """A cache of each backend, and in `cache.source` how to make a text for it; the current folder is a new one."""
    monkeypatch.chdir(tmp_path)
    return cache_maker(request.param, monkeypatch)()


def names(cache: Any, text: Any = TEXT, options: Any = (), **how: Any) -> Any:
    """Load, and return the names of the entries but k's."""
    return set(cache.module(cache.source(text, **how), "k", options).binary.entries) - {"k"}


def write(path: Any, text: Any) -> None:
    """Write a file whose age leaves no doubt whether a compile saw it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)
    time.sleep(0.03)


def define(path: Any, name: Any) -> None:
    write(path, f"#define NAME {name}\n")


def compiles(cache: Any) -> Any:
    return cache.stats().compiles


def test_an_edited_header_is_compiled_anew_and_an_unchanged_one_is_a_hit(cache: Any) -> None:
    define("mine.h", "one")
    assert names(cache) == names(cache) == {"one"}
    assert (compiles(cache), cache.stats().hits) == (1, 1)
    define("mine.h", "two")
    assert names(cache) == names(cache) == {"two"}
    assert compiles(cache) == 2


def test_a_header_that_is_as_it_was_is_a_hit(cache: Any) -> None:
    for name in ("one", "two", "one"):
        define("mine.h", name)
        assert names(cache) == {name}
    os.utime("mine.h", (1, 1))
    assert names(cache) == {"one"}
    assert compiles(cache) == 2


def test_a_change_that_leaves_size_and_time_alone_is_seen(cache: Any) -> None:
    define("mine.h", "one")
    before = os.stat("mine.h")
    assert names(cache) == {"one"}
    define("mine.h", "two")
    os.utime("mine.h", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert names(cache) == {"two"}


def test_a_header_of_a_header_counts(cache: Any) -> None:
    write("mine.h", '#include "sub/deep.h"\n')
    define("sub/deep.h", "one")
    assert names(cache) == {"one"}
    define("sub/deep.h", "two")
    assert names(cache) == {"two"}


@pytest.mark.parametrize(
    "include",
    [
        '#include "mine.h"',
        '#  include\t"mine.h"',
        '#/**/include "mine.h"',
        '#inc\\\nlude "mine.h"',
        '#\\\ninclude "mine.h"',
        '%:include "mine.h"',
        '#define MINE "mine.h"\n#include MINE',
        '/*\n*/ #include "mine.h"',
        "#include <mine.h>",
    ],
)
def test_however_an_include_is_written(cache: Any, include: str) -> None:
    text = TEXT.replace('#include "mine.h"', include)
    options = ("-I.",) if "<" in include else ()
    for name in ("one", "two"):
        define("mine.h", name)
        assert names(cache, text, options) == {name}


@pytest.mark.parametrize("options", [(), ("-I.",), ("-I", "inc/..")])
def test_the_current_folder_decides(cache: Any, options: Any, monkeypatch: Patch, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        define(tmp_path / folder / "mine.h", folder)
        (tmp_path / folder / "inc").mkdir()
    for folder in ("a", "b", "a"):
        monkeypatch.chdir(tmp_path / folder)
        assert names(cache, options=options) == {folder}
    assert compiles(cache) == 2


def test_headers_beside_the_named_source_are_found(cache: Any) -> None:
    for folder in ("a", "b"):
        define(f"{folder}/mine.h", folder)
    sources = [cache.source(TEXT, name=f"{folder}/k.cu") for folder in ("a", "b")]
    assert sources[0] == sources[1]
    assert [names(cache, name=source.name) for source in (*sources, *sources)] == [{"a"}, {"b"}] * 2
    assert compiles(cache) == 2


def test_a_header_that_an_option_includes_counts(cache: Any) -> None:
    option = "-include" if cache.name == "hip:0" else "--pre-include"
    for name in ("one", "two"):
        define("mine.h", name)
        assert names(cache, TEXT.partition("\n")[2], (option, "mine.h")) == {name}


def test_an_earlier_folder_that_gets_the_header_wins(cache: Any) -> None:
    define("late/mine.h", "late")
    os.mkdir("early")
    options = ("-Iearly", "-Ilate")
    assert names(cache, options=options) == {"late"}
    define("early/mine.h", "early")
    assert names(cache, options=options) == {"early"}
    define("mine.h", "nearest")
    assert names(cache, options=options) == {"nearest"}
    os.unlink("mine.h")
    os.unlink("early/mine.h")
    assert names(cache, options=options) == {"late"}
    assert compiles(cache) <= 4


def test_a_header_beside_the_one_that_names_it_wins(cache: Any) -> None:
    write("sub/mine.h", '#include "deep.h"\n')
    define("late/deep.h", "late")
    options = ("-Isub", "-Ilate")
    assert names(cache, options=options) == {"late"}
    define("sub/deep.h", "beside")
    assert names(cache, options=options) == {"beside"}


def test_a_missing_header_fails_until_it_is_there(cache: Any) -> None:
    for _ in range(2):
        with pytest.raises(ptxrt.CompileError, match=r"mine\.h"):
            names(cache)
    assert compiles(cache) == 1
    define("mine.h", "there")
    assert names(cache) == {"there"}
    os.unlink("mine.h")
    with pytest.raises(ptxrt.CompileError, match=r"mine\.h"):
        names(cache)
    assert (compiles(cache), cache.stats().failures) == (2, 1)


def test_a_missing_header_of_a_computed_name_fails_until_it_is_there(cache: Any) -> None:
    text = TEXT.replace('"mine.h"', "MINE")
    how = {"options": ("-I.",), "defines": {"MINE": "<mine.h>"}}
    with pytest.raises(ptxrt.CompileError, match=r"mine\.h"):
        names(cache, text, **how)
    define("mine.h", "there")
    assert names(cache, text, **how) == {"there"}


def test_a_faulty_header_fails_until_it_is_mended(cache: Any) -> None:
    write("mine.h", "#define NAME one\nint x = ;\n")
    for _ in range(2):
        with pytest.raises(ptxrt.CompileError, match=r"mine\.h, line 2"):
            names(cache)
    assert compiles(cache) == 1
    define("mine.h", "mended")
    assert names(cache) == {"mended"}


@pytest.mark.parametrize("name", ["sim-cuda"])
def test_what_the_machine_refuses_in_a_header_fails_until_mended(name: str, monkeypatch: Patch, tmp_path: Path) -> None:
    if reason := nvrtc.available():
        pytest.skip(reason)
    monkeypatch.chdir(tmp_path)
    device = ptxrt.Device("sim:0")
    source = KernelSource.cuda('#include "mine.h"\nextern "C" __global__ void k() { BODY }\n')
    write("mine.h", '#define BODY asm volatile("no.such.instruction;");\n')
    with pytest.raises(ptxrt.CompileError, match=r"no\.such"):
        ptxrt.load(source, "k", "", device)
    write("mine.h", "#define BODY\n")
    assert ptxrt.load(source, "k", "", device)


BODY = TEXT.partition("\n")[2]
CHOICE = "\n#define NAME there\n#else\n#define NAME missing\n#endif\n" + BODY


@pytest.mark.parametrize(
    "question",
    [
        '#if __has_include("mine.h")',
        '#if defined(__has_include) && __has_include ( "mine.h" )',
        '#ifdef __has_include\n#endif\n#if __has_\\\ninclude("mine.h")',
        '#define HAS(x) __has_include(x)\n#if HAS("mine.h")',
        '#define HAS(x, y) (y && __has_include(x))\n#define TWICE(z) HAS(z, 1)\n#if TWICE("mine.h")',
        '#define HAS(...) __has_include(__VA_ARGS__)\n#if HAS("mine.h")',
        '#if 0\n#elif __has_include("mine.h")',
    ],
)
def test_whether_a_header_is_there_may_be_asked(cache: Any, question: str) -> None:
    text = question + CHOICE
    assert names(cache, text) == names(cache, text) == {"missing"}
    write("mine.h", "")
    assert names(cache, text) == names(cache, text) == {"there"}
    assert compiles(cache) == 2


@pytest.mark.parametrize(
    "macros",
    [
        {"defines": {"MINE": '__has_include("mine.h")'}},
        {"options": ('-DMINE=__has_include("mine.h")',)},
        {"options": ("-D", 'MINE=__has_include("mine.h")')},
    ],
    ids=["a define", "an option", "two options"],
)
def test_a_macro_from_outside_of_the_text_may_ask(cache: Any, macros: Any) -> None:
    text = "#if MINE" + CHOICE
    assert names(cache, text, **macros) == names(cache, text, **macros) == {"missing"}
    write("mine.h", "")
    assert names(cache, text, **macros) == {"there"}
    assert compiles(cache) == 2


@pytest.mark.parametrize(
    "question",
    [
        "#define S(x) #x\n#if __has_include(S(mine.h))",
        "#define HAS(x) __has_include(x)\n#define S(x) #x\n#if HAS(S(mine.h))",
        '#define MINE "mine.h"\n#if __has_include(MINE)',
        '#define HAS __has_include\n#if HAS("mine.h")',
        '#define HAS() __has_include\n#if HAS()("mine.h")',
    ],
)
def test_a_name_that_is_computed_for_the_question_is_compiled_each_time(cache: Any, question: str) -> None:
    text = question + CHOICE
    assert names(cache, text) == names(cache, text) == {"missing"}
    assert compiles(cache) == 2
    write("mine.h", "")
    assert names(cache, text) == {"there"}


def test_a_header_that_asks_is_asked_for(cache: Any) -> None:
    write("mine.h", '#if __has_include("deep.h")' + CHOICE.removesuffix(BODY))
    assert names(cache) == names(cache) == {"missing"}
    write("deep.h", "")
    assert names(cache) == {"there"}
    assert compiles(cache) == 2


def test_one_header_under_two_names_is_two(cache: Any) -> None:
    write("mine.h", "#pragma once\n#define NAME one\n")
    os.symlink("mine.h", "alias.h")
    text = '#include "mine.h"\n#include "alias.h"\n' + TEXT.partition("\n")[2]
    assert names(cache, text) == {"one"}
    os.unlink("alias.h")
    write("alias.h", "#undef NAME\n#define NAME two\n")
    assert names(cache, text) == {"two"}


def test_a_text_without_includes_reads_nothing_in_any_folder(cache: Any, monkeypatch: Patch, tmp_path: Path) -> None:
    text = TEXT.partition("\n")[2].replace("NAME", "one")
    included = cache.module(cache.source(text), "k", ()).binary.included
    assert included == type(included)()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert names(cache, text) == {"one"}
    assert compiles(cache) == 1


def test_a_held_module_of_before_stays_and_is_counted(cache: Any) -> None:
    class Holder:
        pass

    holder = Holder()
    define("mine.h", "one")
    cache.module(cache.source(TEXT), "k", ()).add_kernel(holder)
    define("mine.h", "two")
    assert names(cache) == {"two"}
    assert [entry.live_kernels for entry in cache.entries()] == [1, 0]
    assert len({entry.digest for entry in cache.entries()}) == 2
    cache.clear()
    assert [entry.live_kernels for entry in cache.entries()] == [1]
    define("mine.h", "one")
    assert cache.module(cache.source(TEXT), "k", ()).live_kernels == 1
    assert names(cache) == {"one"}


def test_what_was_cleared_is_forgotten(cache: Any) -> None:
    define("mine.h", "one")
    assert names(cache) == {"one"}
    assert cache._included
    cache.clear()
    assert not cache._included
    assert names(cache) == {"one"}
    assert compiles(cache) == 2


def test_a_load_that_ends_while_another_one_looks_at_the_headers_is_found(cache: Any, monkeypatch: Patch) -> None:
    define("mine.h", "one")
    key_of = Included.key

    def late(included: Included, text_key: str) -> str:
        monkeypatch.setattr(Included, "key", key_of)
        key = included.key(text_key)
        assert names(cache) == {"one"}
        return key

    monkeypatch.setattr(Included, "key", late)
    assert names(cache) == {"one"}
    assert compiles(cache) == 1


def test_what_is_unloaded_one_by_one_is_forgotten(cache: Any) -> None:
    define("mine.h", "one")
    assert names(cache) == {"one"}
    cache.unload(cache.entries()[0].digest)
    assert not cache._included


def test_threads_share_a_compile_of_a_text_with_headers(cache: Any) -> None:
    define("mine.h", "one")
    found = []
    threads = [threading.Thread(target=lambda: found.append(names(cache))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [{"one"}] * 4
    assert compiles(cache) == 1


def test_a_header_written_while_the_compiler_reads_is_compiled_once_more(cache: Any, monkeypatch: Patch) -> None:
    define("mine.h", "one")
    backend, seen = cache.backend, []
    compile_ = backend.compile

    def edited_meanwhile(*args: Any, **how: Any) -> Any:
        binary = compile_(*args, **how)
        seen.append(set(binary.entries))
        if len(seen) == 1:
            Path("mine.h").write_text("#define NAME two\n")
            # What the backend knows of the files it got from the compiler; their contents are looked at later.
        return binary

    monkeypatch.setattr(backend, "compile", edited_meanwhile)
    assert names(cache) == {"two"}
    assert seen == [{"k", "one"}, {"k", "two"}]
    assert names(cache) == {"two"}
    assert len(seen) == 2


def test_a_header_that_is_removed_while_the_compiler_reads_is_not_remembered(cache: Any, monkeypatch: Patch) -> None:
    define("mine.h", "one")
    compiler = hiprtc_compile if cache.name == "hip:0" else nvrtc

    def removed_meanwhile(*args: Any, **how: Any) -> Any:
        Path("mine.h").unlink(missing_ok=True)
        return watched(*args, **how)

    monkeypatch.setattr(compiler, "watched", removed_meanwhile)
    assert names(cache) == {"one"}
    with pytest.raises(ptxrt.CompileError, match=r"mine\.h"):
        names(cache)


def test_a_hit_reads_no_header_that_has_been_still_for_a_while(cache: Any, monkeypatch: Patch) -> None:
    monkeypatch.setattr(_included, "_STEADY_SECONDS", -1.0)
    define("mine.h", "one")
    assert names(cache) == {"one"}
    reads: Any = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or b"")
    assert names(cache) == {"one"}
    assert not reads
    define("other.h", "two")
    os.replace("other.h", "mine.h")
    assert names(cache) == {"two"}
    assert set(reads) == {Path("mine.h")}


def test_a_header_that_is_set_back_while_the_compiler_reads_costs_no_module(cache: Any, monkeypatch: Patch) -> None:
    define("mine.h", "one")
    first = cache.module(cache.source(TEXT), "k", ())
    define("mine.h", "two")
    compile_ = cache.backend.compile

    def set_back_meanwhile(*args: Any, **how: Any) -> Any:
        binary = compile_(*args, **how)
        Path("mine.h").write_text("#define NAME one\n")
        return binary

    monkeypatch.setattr(cache.backend, "compile", set_back_meanwhile)
    assert cache.module(cache.source(TEXT), "k", ()) is first
    assert len(cache.entries()) == 1
    monkeypatch.setattr(cache.backend, "compile", compile_)
    assert cache.module(cache.source(TEXT), "k", ()) is first
    assert compiles(cache) == 2


@pytest.mark.parametrize(("age", "again"), [(0.0, True), (-5.0, True), (10.0, False)])
def test_a_files_numbers_stand_for_its_contents_only_once_it_is_old_enough(
    monkeypatch: Patch, tmp_path: Path, age: float, again: bool
) -> None:
    path = tmp_path / "mine.h"
    path.write_text("one")
    found = os.stat(path)
    numbers = SimpleNamespace(
        st_ctime=time.time() - age, st_dev=found.st_dev, st_ino=found.st_ino, st_size=3, st_mtime_ns=1, st_ctime_ns=1
    )
    monkeypatch.setattr(_included, "_stat", lambda path: numbers)
    included = _included.Included((str(path),))
    before = included.digest()
    path.write_text("two")
    assert (included.digest() != before) == again


def test_an_assemblers_own_include_is_compiled_each_time(cache: Any) -> None:
    text = BODY.replace("NAME", "one") + '__device__ const char* said = ".include file";\n'
    assert names(cache, text) == names(cache, text) == {"one"}
    assert compiles(cache) == 2


def test_the_name_of_the_source_is_in_the_binary_where_the_text_asks_for_it(cache: Any) -> None:
    if cache.name == "hip:0":
        pytest.skip("hipRTC gives each text one name")
    text = 'extern "C" __global__ void k(const char** y) { *y = __FILE__; }\n'
    codes = []
    for name in ("first.cu", "second.cu", "first.cu"):
        codes.append(cache.module(cache.source(text, name=name), "k", ()).binary.code)
    assert codes[0] == codes[2] != codes[1]
