"""Element types: their names, sizes and spellings, and what stands for one."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import ELEMENT_NAMES, refused

import ptxrt
from ptxrt.dtypes import BY_NAME, BY_NUMPY, element_type


def test_there_are_the_thirteen_types_of_signatures() -> None:
    assert tuple(BY_NAME) == ELEMENT_NAMES


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_a_types_size_is_what_its_name_says(name: Any) -> None:
    assert BY_NAME[name].size * 8 == int(name.lstrip("bfui") or 8) if name != "bool" else BY_NAME[name].size == 1


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_ptx_names_the_same_width(name: Any) -> None:
    assert BY_NAME[name].ptx.lstrip(".bfsu") == str(BY_NAME[name].size * 8)


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_floats_are_floats_and_everything_else_is_an_integer(name: Any) -> None:
    assert BY_NAME[name].kind == ("float" if name in ("f32", "f64", "f16", "bf16") else "int")


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_name_dtype_and_type_itself_are_all_accepted(name: Any) -> None:
    kind = BY_NAME[name]
    assert element_type(kind.numpy) is element_type(kind.numpy.type) is element_type(kind) is kind
    assert name in ("i8", "u8") or element_type(name) is kind
    assert str(kind) == name


@pytest.mark.parametrize(("name", "both"), [("i8", "int8 or int64"), ("u8", "uint8 or uint64")])
def test_a_name_that_numpy_reads_differently_is_refused(name: str, both: str) -> None:
    with refused(ptxrt.DTypeMismatch, "empty", "dtype", both):
        ptxrt.empty(4, name)


@pytest.mark.parametrize("name", ELEMENT_NAMES)
def test_copies_of_a_type_are_the_type(name: Any) -> None:
    assert pickle.loads(pickle.dumps(BY_NAME[name])) is copy.deepcopy(BY_NAME[name]) is BY_NAME[name]


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    assert BY_NAME["bf16"].numpy == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize(("given", "name"), [("q", "i64"), ("l", "i64"), ("Q", "u64"), ("<f4", "f32"), (float, "f64")])
def test_other_spellings_of_numpy_mean_the_same(given: Any, name: str) -> None:
    assert element_type(np.dtype(given)).name == name


def test_a_numpy_dtype_finds_its_type() -> None:
    assert {dtype: kind.numpy for dtype, kind in BY_NUMPY.items()} == {d: d for d in BY_NUMPY}


@pytest.mark.parametrize(
    "given",
    [np.complex64, ">f4", object, "U4", np.longdouble, "datetime64[s]", [("a", "f4")], "f4,,", "no such", {}, None, 3],
    ids=str,
)
def test_what_no_kernel_parameter_has_is_refused(given: Any) -> None:
    with refused(ptxrt.DTypeMismatch, "empty", "dtype", "f32, f64", "astype"):
        element_type(given, op="empty")


@pytest.mark.parametrize("name", [name for name in ELEMENT_NAMES if BY_NAME[name].kind == "int"])
def test_the_limits_of_an_integer_type_are_those_of_its_values(name: Any) -> None:
    kind = BY_NAME[name]
    values = (False, True) if name == "bool" else (np.iinfo(kind.numpy).min, np.iinfo(kind.numpy).max)
    assert kind.limits == values
    assert all(type(limit) is int for limit in kind.limits)
