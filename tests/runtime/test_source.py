"""KernelSource: what it takes, what tells two sources apart, and the kernels that come with ptxrt."""

from __future__ import annotations

import pickle

import pytest
from helpers import printed_by, refused

import ptxrt
from ptxrt import KernelSource, ops


def test_ptx_keeps_the_text_as_written():
    source = KernelSource.ptx("// text\r\n\t.version 7.0  \n")
    assert (source.language, source.text, source.defines, source.name) == (
        "ptx",
        "// text\r\n\t.version 7.0  \n",
        (),
        None,
    )


def test_cuda_keeps_text_and_defines():
    source = KernelSource.cuda("__global__ void k() {}", {"N": 4, "FAST": None, "TYPE": "float"}, name="k.cu")
    assert (source.language, source.text, source.name) == ("cuda", "__global__ void k() {}", "k.cu")
    assert dict(source.defines) == {"N": "4", "FAST": "1", "TYPE": "float"}


@pytest.mark.parametrize(
    ("value", "text"), [(None, "1"), (True, "1"), (False, "0"), (-3, "-3"), ("", ""), ("a b", "a b")]
)
def test_a_define_has_the_value_that_the_preprocessor_sees(value, text):
    assert KernelSource.cuda("", {"M": value}).defines == (("M", text),)


def test_the_order_of_defines_plays_no_part():
    one, two = KernelSource.cuda("", {"A": 1, "B": 2}), KernelSource.cuda("", {"B": 2, "A": 1})
    assert one == two
    assert one.digest == two.digest


def test_the_name_plays_no_part():
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


def test_what_differs_has_another_digest():
    assert len({source.digest for source in DIFFERENT}) == len(DIFFERENT)


def test_a_digest_is_a_sha256_in_hexadecimal():
    assert len(bytes.fromhex(KernelSource.ptx("text").digest)) == 32


def test_a_digest_is_the_same_in_another_process():
    script = "import ptxrt; print(ptxrt.KernelSource.cuda('text', {'B': 1, 'A': None}).digest)"
    here = KernelSource.cuda("text", {"A": None, "B": 1}).digest
    assert printed_by(script, PYTHONHASHSEED="7") == here


@pytest.mark.parametrize("text", ["µ", "\0", "\ud800"], ids=ascii)
def test_text_that_only_a_compiler_can_refuse_has_a_digest(text):
    assert KernelSource.ptx(text).digest != KernelSource.ptx("").digest


def test_a_source_in_use_can_be_pickled():
    source = KernelSource.cuda("text", {"A": 1}, name="n")
    digest = source.digest
    again = pickle.loads(pickle.dumps(source))
    assert (again, again.digest, again.name) == (source, digest, "n")


@pytest.mark.parametrize("language", ["ptx", "cuda", "hip"])
@pytest.mark.parametrize("text", [b"text", None, 3], ids=repr)
def test_text_is_a_str(language, text):
    with refused(ptxrt.InvalidArgument, f"KernelSource.{language}", "text", type(text).__name__, "decode bytes"):
        getattr(KernelSource, language)(text)


@pytest.mark.parametrize(
    "defines",
    [["N=4"], "N=4", {"N": 1.5}, {"N": [1]}, {"2N": 1}, {"N M": 1}, {"": 1}, {"N=4": None}, {4: 1}],
    ids=repr,
)
def test_defines_are_identifiers_with_values(defines):
    with refused(
        ptxrt.InvalidArgument, "KernelSource.cuda", "defines", "identifiers with a string, an integer or None"
    ):
        KernelSource.cuda("", defines)


@pytest.mark.parametrize("spec", ops.kernels(), ids=lambda spec: f"{spec.language}-{spec.entry}")
def test_a_kernel_that_comes_with_ptxrt_is_ascii(spec):
    source = spec.source
    assert (source.language, source.name) == (spec.language, f"{spec.family}.{spec.language}")
    assert source.text.isascii()
