"""KernelSource: what it takes, what makes two sources different, and the kernels that come with ptxrt."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from helpers import printed_by, refused

import ptxrt
from ptxrt import KernelSource, ops
from ptxrt.compilers import nvrtc


def test_ptx_keeps_the_text_as_written() -> None:
    source = KernelSource.ptx("// text\r\n\t.version 7.0  \n")
    assert (source.language, source.text, source.defines, source.name) == (
        "ptx",
        "// text\r\n\t.version 7.0  \n",
        (),
        None,
    )


def test_cuda_keeps_text_and_defines() -> None:
    source = KernelSource.cuda("__global__ void k() {}", {"N": 4, "FAST": None, "TYPE": "float"}, name="k.cu")
    assert (source.language, source.text, source.name) == ("cuda", "__global__ void k() {}", "k.cu")
    assert dict(source.defines) == {"N": "4", "FAST": "1", "TYPE": "float"}


@pytest.mark.parametrize(
    ("value", "text"), [(None, "1"), (True, "1"), (False, "0"), (-3, "-3"), ("", ""), ("a b", "a b")]
)
def test_a_define_has_the_value_that_the_preprocessor_sees(value: Any, text: str) -> None:
    assert KernelSource.cuda("", {"M": value}).defines == (("M", text),)


def test_the_order_of_defines_plays_no_part() -> None:
    one, two = KernelSource.cuda("", {"A": 1, "B": 2}), KernelSource.cuda("", {"B": 2, "A": 1})
    assert one == two
    assert one.digest == two.digest


def test_the_name_plays_no_part() -> None:
    one, two = KernelSource.ptx("text", name="a"), KernelSource.ptx("text", name="b")
    assert (one, one.digest, hash(one)) == (two, two.digest, hash(two))


DIFFERENT = [
    KernelSource.ptx("text"),
    KernelSource.ptx("text "),
    KernelSource.cuda("text"),
    KernelSource.cuda("text", {"A": 1}),
    KernelSource.cuda("text", {"A": 2}),
    KernelSource.cuda("text", {"AA": ""}),
    KernelSource.cuda("text", {"A": "", "B": "1"}),
    KernelSource.cuda("text", {"A": "\0B=1"}),
    KernelSource.cuda("text\0A=1"),
    KernelSource.cuda("text", {"A": '", "B'}),
]


def test_what_differs_has_another_digest() -> None:
    assert len({source.digest for source in DIFFERENT}) == len(DIFFERENT)


def test_a_digest_is_a_sha256_in_hexadecimal() -> None:
    assert len(bytes.fromhex(KernelSource.ptx("text").digest)) == 32


def test_a_digest_is_the_same_in_another_process() -> None:
    script = "import ptxrt; print(ptxrt.KernelSource.cuda('text', {'B': 1, 'A': None}).digest)"
    here = KernelSource.cuda("text", {"A": None, "B": 1}).digest
    assert printed_by(script, PYTHONHASHSEED="7") == here


@pytest.mark.parametrize("text", ["µ", "\0", "\ud800"], ids=ascii)
def test_text_that_only_a_compiler_can_refuse_has_a_digest(text: str) -> None:
    assert KernelSource.ptx(text).digest != KernelSource.ptx("").digest


def test_a_source_in_use_can_be_pickled() -> None:
    source = KernelSource.cuda("text", {"A": 1}, name="n")
    digest = source.digest
    again = pickle.loads(pickle.dumps(source))
    assert (again, again.digest, again.name) == (source, digest, "n")


@pytest.mark.parametrize("language", ["ptx", "cuda", "hip"])
@pytest.mark.parametrize("text", [b"text", None, 3], ids=repr)
def test_text_is_a_str(language: str, text: Any) -> None:
    with refused(ptxrt.InvalidArgument, f"KernelSource.{language}", "text", type(text).__name__, "decode bytes"):
        getattr(KernelSource, language)(text)


@pytest.mark.parametrize(
    "defines",
    [
        ["N=4"],
        "N=4",
        {"N": 1.5},
        {"N": [1]},
        {"2N": 1},
        {"N M": 1},
        {"": 1},
        {"N=4": None},
        {"\u00b5": 1},
        {"\ud800": 1},
        {4: 1},
    ],
    ids=repr,
)
def test_defines_are_identifiers_with_values(defines: Any) -> None:
    with refused(
        ptxrt.InvalidArgument, "KernelSource.cuda", "defines", "identifiers with a string, an integer or None"
    ):
        KernelSource.cuda("", defines)


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, 10**5000], ids=["2**64", "-2**63-1", "10**5000"])
def test_a_define_is_a_number_that_the_preprocessor_knows(value: int) -> None:
    with refused(ptxrt.InvalidArgument, "KernelSource.hip", "defines", "of 64 bits", "'N': "):
        KernelSource.hip("", {"N": value})
    assert KernelSource.hip("", {"N": 2**64 - 1, "M": -(2**63)}).defines[0][1] == "-9223372036854775808"


@pytest.mark.parametrize("name", [5, b"k.cu", "\ud800", "a\0b", Path("k.cu")], ids=repr)
@pytest.mark.parametrize("language", ["ptx", "cuda", "hip"])
def test_a_name_is_text_that_can_be_written(language: str, name: Any) -> None:
    with refused(ptxrt.InvalidArgument, f"KernelSource.{language}", "name", repr(name)):
        getattr(KernelSource, language)("", name=name)


PTX = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k() { ret; }\n"
TEXTS = {"ptx": PTX, "cuda": 'extern "C" __global__ void k() {}', "hip": 'extern "C" __global__ void k() {}'}


@pytest.fixture(params=["ptx", "cuda", "hip"])
def language(request: pytest.FixtureRequest, device: ptxrt.Device) -> Any:
    """Each language that `device` takes and has a compiler for."""
    if request.param not in device.backend.languages:
        pytest.skip(f"no {request.param} on {device}")
    if request.param != "ptx" and device.kind != "hip" and (reason := nvrtc.available()):
        pytest.skip(reason)
    return request.param


@pytest.mark.parametrize("entry", ["\ud800", "k\0", "k\n", "k\ud800"], ids=repr)
def test_an_entry_that_no_text_can_have_is_an_error_to_print(device: ptxrt.Device, language: Any, entry: str) -> None:
    source = getattr(KernelSource, language)(TEXTS[language])
    with refused(ptxrt.CompileError, "compile", entry, f"no entry {entry!r}") as caught:
        ptxrt.load(source, entry, "", device)
    str(caught.value).encode()


@pytest.mark.parametrize("option", ["\ud800", "-DN=\ud800", "-I/a\0b"], ids=repr)
def test_an_option_that_no_compiler_can_be_given_is_refused(device: ptxrt.Device, language: Any, option: str) -> None:
    with refused(ptxrt.InvalidArgument, "compile", "options", repr(option)):
        ptxrt.load(getattr(KernelSource, language)(TEXTS[language]), "k", "", device, (option,))


@pytest.mark.parametrize("suffix", ["ptx", "cu", "hip", "cpp"])
def test_a_files_name_in_the_place_of_its_text_is_recognised(device: ptxrt.Device, language: Any, suffix: str) -> None:
    with refused(ptxrt.CompileError, "compile", "k" if language != "ptx" else None) as caught:
        ptxrt.load(getattr(KernelSource, language)(f"mine/saxpy.{suffix}"), "k", "", device)
    what = "pass what is in it, Path('mine/saxpy.cpp').read_text()"
    if suffix != "cpp":
        what = f"KernelSource.from_file('mine/saxpy.{suffix}') reads it"
    assert caught.value.fix == f"It looks like a file's name: {what}"


@pytest.mark.parametrize("given", ["scale.cu", "__global__ void k() {}", 5], ids=repr)
def test_load_wants_a_source_and_says_how_to_make_one(given: Any) -> None:
    with refused(ptxrt.InvalidArgument, "load", "source", "KernelSource.from_file(") as caught:
        ptxrt.load(given, "k", "")
    assert ("from_file('scale.cu')" in str(caught.value)) is (given == "scale.cu")


# Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("suffix", "made"), [("ptx", "ptx"), ("cu", "cuda"), ("hip", "hip")])
def test_a_file_has_the_language_of_its_suffix(suffix: str, made: str, tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / f"k.{suffix}"
    path.write_bytes(b"\xef\xbb\xbf// \xc2\xb5\r\n")
    source = KernelSource.from_file(path)
    assert (source.language, source.text, source.name, source.file) == (made, "// \u00b5\r\n", str(path), path)
    assert source == getattr(KernelSource, made)("// \u00b5\r\n")
    monkeypatch.chdir(tmp_path)
    relative = KernelSource.from_file(path.name)
    assert (relative.name, relative.file) == (path.name, path)


def test_a_file_may_have_defines(tmp_path: Path) -> None:
    (tmp_path / "k.cu").write_text("")
    assert KernelSource.from_file(tmp_path / "k.cu", {"N": 4}).defines == (("N", "4"),)
    with refused(ptxrt.InvalidArgument, "KernelSource.from_file", "defines", "identifiers"):
        KernelSource.from_file(tmp_path / "k.cu", {"N M": 4})
    with refused(ptxrt.InvalidArgument, "KernelSource.from_file", "defines", "none for PTX"):
        KernelSource.from_file(tmp_path / "k.ptx", {"N": 4})


@pytest.mark.parametrize("name", ["k.cpp", "k", ".cu", "k.CU"], ids=repr)
def test_a_file_of_another_kind_is_refused_with_the_remedy(name: str, tmp_path: Path) -> None:
    with refused(ptxrt.InvalidArgument, "KernelSource.from_file", "path", ".ptx, .cu, .hip", ".read_text()"):
        KernelSource.from_file(f"{tmp_path}/{name}")


@pytest.mark.parametrize("path", [5, None, b"k.cu"], ids=repr)
def test_a_path_is_a_path(path: Any) -> None:
    with refused(ptxrt.InvalidArgument, "KernelSource.from_file", "path", "expected a path", repr(path)):
        KernelSource.from_file(path)


def test_a_file_that_cannot_be_read_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "folder.cu").mkdir()
    (tmp_path / "latin.cu").write_bytes(b"// \xb5")
    for name, words in (("none.cu", "No such file"), ("folder.cu", "Is a directory"), ("a\0b.cu", "null byte")):
        with refused(ptxrt.InvalidArgument, "KernelSource.from_file", "path", "can be read", words):
            KernelSource.from_file(tmp_path / name)
    with refused(ptxrt.InvalidArgument, "KernelSource.from_file", "path", "UTF-8", "byte 3"):
        KernelSource.from_file(tmp_path / "latin.cu")


def test_a_kernel_that_comes_with_ptxrt_is_ascii() -> None:
    for spec in {(spec.family, spec.language): spec for spec in ops.kernels()}.values():
        source = spec.source
        assert (source.language, source.name) == (spec.language, f"{spec.family}.{spec.language}")
        assert source.text.isascii(), spec.entry


@pytest.mark.parametrize(("language", "text", "what"), [
    ("ptx", ".version 7.0\n.visible .entry one(.param .u64 x) { ret; }\n.entry $two() { ret; }\n", "entries one, $two"),
    ("cuda", 'extern "C" __global__ void __launch_bounds__(256, 2) k(int n) {}', "entries k"),
    ("hip", "template <class T>\n__global__ void\nscale(T* x) {}\n__global__ void k();", "entries scale, k"),
    ("cuda", "\n  // no kernel here  \nint x;", "'// no kernel here'"), ("ptx", "", "''"),
    ("cuda", "".join(f"__global__ void k{n}();\n" for n in range(9)), "entries k0, k1, k2, k3, k4, ..."),
])  # fmt: skip
def test_a_source_says_what_it_is_in_a_line(language: str, text: str, what: str) -> None:
    source = getattr(KernelSource, language)(text, name="mine")
    lines = text.count("\n") + 1
    assert repr(source) == f"<KernelSource {language} mine: {what}, {lines} lines, digest {source.digest[:12]}>"
    assert " mine:" not in repr(getattr(KernelSource, language)(text))
