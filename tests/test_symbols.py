"""C++ names as people write them."""

from __future__ import annotations

import ctypes

import pytest

from ptxrt import symbols
from ptxrt.symbols import function_name, variable_name


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("saxpy", "saxpy"),
        ("_Zbogus", "_Zbogus"),
        ("", ""),
        ("_Z5scalePKfPfi", "scale"),
        ("_Z5twiceIfET_S0_", "twice<float>"),
        ("_Z3fooILb1ELc97EEvv", "foo<true, 97>"),
        ("_ZN1A1BIiE3fooERKSt6vectorIiSaIiEE", "A::B<int>::foo"),
        ("_Z3fooPFviE", "foo"),
        ("_ZN12_GLOBAL__N_13barEv", "bar"),
        ("_ZN34_INTERNAL_00000000_4_k_cu_012c2c225innerEf", "inner"),
        ("_ZZ5scalePKfPfiENKUliE_clEi", "scale::lambda#1"),
        ("_Z3mapIZ1kPfEUlfE_EvT_S0_", "map<k::lambda#1>"),
        ("_ZNK1AixEi", "A::operator[]"),
        ("_ZNKSt4lessIiEclEii", "std::less<int>::operator()"),
        ("_ZlsR1AS0_", "operator<<"),
        ("_ZNK3FoocvfEv", "Foo::operator float"),
    ],
)
def test_a_function(symbol: str, name: str) -> None:
    assert function_name(symbol) == name


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("tile", "tile"),
        ("_ZZ3revE1t", "t"),
        ("_ZZ5twiceIfET_S0_E4tile", "tile"),
        ("_ZN2ns5tableE", "table"),
        ("_ZN34_INTERNAL_00000000_4_k_cu_012c2c225tableE", "table"),
    ],
)
def test_a_variable(symbol: str, name: str) -> None:
    assert variable_name(symbol) == name


def test_without_the_library_that_reads_them_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: object) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    for cached in (symbols._libstdcxx, function_name):
        cached.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    try:
        assert function_name("_Z5scalePKfPfi") == "_Z5scalePKfPfi"
    finally:
        for cached in (symbols._libstdcxx, function_name):
            cached.cache_clear()
