"""A Binary comes back from the disk as it was compiled, in every field."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_testing import BINARY, CXX, PTX, TEXT
from texts import SAXPY

from ptxrt import KernelSource
from ptxrt.backends import get
from ptxrt.compilers import Binary, EntryInfo, Included, ParamInfo, Report, VariableInfo, hiprtc, nvjitlink, nvrtc
from ptxrt.places import Sources
from ptxrt.runtime.compiling import compiled, request_for
from ptxrt.store import BinaryStore

CXX_TEXT = """
#include "mine.h"
__device__ float4 table[4][2];
__constant__ int limit = 5;
template <typename T> __global__ void twice(T *x, const int n) { if (threadIdx.x < n) x[threadIdx.x] *= FACTOR; }
"""


def _cxx(language: str) -> Callable[[Path], KernelSource]:
    make: Callable[..., KernelSource] = getattr(KernelSource, language)
    return lambda folder: make(CXX_TEXT, {"UNUSED": "a b"}, name=str(folder / "k é.cu"))


COMPILES: dict[str, tuple[str, Callable[[Path], KernelSource], str, str, tuple[str, ...], Any]] = {
    "PTX": ("cuda", lambda _: KernelSource.ptx(SAXPY), "saxpy", "sm_90", ("-O3",), nvjitlink),
    "C++ to a cubin": ("cuda", _cxx("cuda"), "twice<float>", "sm_90", ("--use_fast_math",), nvrtc),
    "C++ for sim": ("sim", _cxx("cuda"), "twice<float>", "sm_90", (), nvrtc),
    "HIP by NVRTC": ("cuda", _cxx("hip"), "twice<double>", "sm_80", (), nvrtc),
    "HIP for sim": ("sim", _cxx("hip"), "twice<double>", "sm_80", (), nvrtc),
    "HIP by hipRTC": ("hip", _cxx("hip"), "twice<float>", "gfx90a:sramecc+:xnack-", ("-O3",), hiprtc),
}


@pytest.mark.parametrize("what", COMPILES)
def test_every_field_of_a_compile_comes_back(what: str, folder: Path, header: Path) -> None:
    name, make, entry, arch, options, compiler = COMPILES[what]
    if reason := compiler.available():
        pytest.skip(reason)
    header.write_text("#define FACTOR 2\n")
    time.sleep(0.03)
    backend, source = get(name), make(header.parent)
    request = request_for(backend, source, entry, options, arch, name)
    binary = compiled(backend, source, request)
    BinaryStore(folder).binary(request, source.text, lambda: binary)
    found = BinaryStore(folder).find(request, source.text)
    assert found is not None
    for field in dataclasses.fields(Binary):
        before, after = getattr(binary, field.name), getattr(found, field.name)
        assert after == before, field.name
        assert type(after) is type(before)
        if field.name != "included":  # which of its files were opened matters during the compile alone
            assert repr(after) == repr(before), field.name
    (stored,) = BinaryStore(folder).entries()
    assert stored.record is not None
    assert stored.record.request == request
    assert (stored.path / f"kernel.{binary.kind}").read_bytes() == binary.code  # which the vendors' tools open
    assert set(stored.record.headers) == set(binary.included.files)
    assert (str(header) in stored.record.headers) == (what != "PTX")
    if source.language != "ptx":
        assert binary.symbols
        assert binary.entries


texts = st.text(st.characters(exclude_categories=()), max_size=8)  # halves of characters too
names = st.one_of(texts, st.sampled_from(["scale<float, 4>", "größe", "\x00", "\n", '"', "\\u0041", "__proto__"]))
paths = texts.filter(lambda name: "\0" not in name)
numbers = st.integers(-(2**70), 2**70)
optional = st.one_of(st.none(), numbers)
params = st.builds(
    ParamInfo,
    numbers,
    numbers,
    st.sampled_from(["float", "int", "pointer", "bits", None]),
    names,
    names,
    st.sampled_from([True, False, None]),
    names,
)
binaries = st.builds(
    Binary,
    code=st.binary(max_size=50),
    kind=st.sampled_from(["cubin", "ptx", "hsaco"]),
    arch=names,
    compiler=names,
    options=st.lists(names, max_size=3).map(tuple),
    log=names,
    seconds=st.floats(allow_nan=False),
    entries=st.dictionaries(
        names, st.builds(EntryInfo, names, st.one_of(st.none(), st.lists(params, max_size=2).map(tuple))), max_size=2
    ),
    reports=st.dictionaries(
        names, st.builds(Report, **{field.name: optional for field in dataclasses.fields(Report)}), max_size=2
    ),
    symbols=st.dictionaries(names, names, max_size=2),
    sources=st.builds(Sources, st.lists(st.tuples(names, names), max_size=2).map(tuple)),
    variables=st.dictionaries(
        names,
        st.builds(VariableInfo, names, names, st.one_of(st.none(), st.lists(numbers, max_size=2).map(tuple))),
        max_size=2,
    ),
    included=st.builds(
        Included, st.lists(texts.filter(lambda name: "\0" not in name), max_size=3, unique=True).map(tuple)
    ),
    ptx=st.one_of(st.none(), names),
)


@given(binary=binaries, name=st.one_of(st.none(), names), entry=names, options=st.lists(names, max_size=2).map(tuple))
def test_any_binary_comes_back(tmp_path_factory: Any, binary: Binary, name: Any, entry: str, options: Any) -> None:
    folder = tmp_path_factory.mktemp("store") / "store"
    request = replace(
        CXX,
        compiler=binary.compiler,
        name=name,
        entry=entry,
        options=options,
        defines=(("A", entry),),
        effective=options,
    )
    assert BinaryStore(folder).binary(request, TEXT, lambda: binary) == binary
    found = BinaryStore(folder).find(request, TEXT)
    assert found == binary
    assert repr(found) == repr(binary)
    (stored,) = BinaryStore(folder).entries()
    assert stored.record is not None
    assert (stored.problem, stored.record.request) == (None, request)


def test_the_text_of_ptx_is_not_stored_again(folder: Path) -> None:
    marker = "// a text that is long enough to be found\n"
    BinaryStore(folder).binary(PTX, marker, lambda: replace(BINARY, ptx=marker))
    assert not any(marker.strip().encode() in path.read_bytes() for path in folder.rglob("*") if path.is_file())
    found = BinaryStore(folder).find(PTX, marker)
    assert found is not None
    assert found.ptx == marker


@pytest.mark.parametrize(
    "change",
    [
        {"backend": "sim"},
        {"language": "hip"},
        {"source": "0" * 64},
        {"options": ("-G",)},
        {"arch": "sm_121"},
        {"arch": "sm_90a"},
        {"arch": "gfx906"},
        {"arch": "gfx908"},
        {"arch": "gfx90a:xnack-"},
        {"arch": "gfx90a:xnack+"},
        {"compiler": "NVRTC 13.0.2"},
        {"entry": "other"},
        {"effective": ("-I/other",)},
    ],
    ids=str,
)
def test_pain5_and_6_all_that_the_outcome_depends_on_is_in_the_key(folder: Path, change: Any) -> None:
    for before in (CXX, replace(CXX, arch="sm_120"), replace(CXX, arch="gfx90a")):
        BinaryStore(folder).binary(before, TEXT, lambda: replace(BINARY, compiler=CXX.compiler))
        assert BinaryStore(folder).find(before, TEXT)
        other = replace(before, **change)
        assert other.key() != before.key()
        assert BinaryStore(folder).find(other, TEXT) is None


def test_parts_of_a_key_do_not_run_into_each_other() -> None:
    ways = [("a", "b"), ("ab",), ("a b",), ("a,b",), ('a", "b',), ("", "ab"), ()]
    assert len({replace(CXX, options=way).key() for way in ways}) == len(ways)
    assert len({replace(CXX, options=way, effective=()).key() for way in ways}) == len(ways)
    assert replace(CXX, options=("x",), effective=()).key() != replace(CXX, options=(), effective=("x",)).key()


def test_another_version_of_ptxrt_or_of_the_layout_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {CXX.key()}
    for name, value in (("__version__", "9.9.9"), ("SCHEMA", 99)):
        with monkeypatch.context() as patch:
            patch.setattr(f"ptxrt.store._record.{name}", value)
            keys.add(CXX.key())
    assert len(keys) == 3


def test_of_ptx_which_is_compiled_whole_the_entry_is_no_part_of_the_key() -> None:
    assert replace(PTX, entry="other").key() == replace(PTX, name="n").key() == PTX.key()
