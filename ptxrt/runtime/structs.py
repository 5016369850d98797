"""Structs by value: an argument to the bytes of its parameter, and the dtype's fields beside the members in C++."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxrt.dtypes import BY_NUMPY, VECTORS
from ptxrt.errors import CompileError, DTypeMismatch, InvalidArgument, PtxrtError, SignatureMismatch, shown
from ptxrt.runtime.scalars import check_scalar, scalar_error
from ptxrt.runtime.signature import Parameter, Signature
from ptxrt.runtime.source import KernelSource
from ptxrt.symbols import plain_name

if TYPE_CHECKING:
    from ptxrt.runtime.modules import LoadedModule

__all__ = ["check_members", "packed_struct"]

# The type of a parameter is asked of the kernel's own address: a name could be hidden, or need its namespace.
_LINES = """

template <int n, class... A> struct ptxrt_nth;
template <class T, class... A> struct ptxrt_nth<0, T, A...> { typedef T type; };
template <int n, class T, class... A> struct ptxrt_nth<n, T, A...> : ptxrt_nth<n - 1, A...> {};
template <int n, class F> struct ptxrt_parameter;
template <int n, class... A> struct ptxrt_parameter<n, void (*)(A...)> : ptxrt_nth<n, A...> {};
#ifdef __cpp_noexcept_function_type
template <int n, class... A> struct ptxrt_parameter<n, void (*)(A...) noexcept> : ptxrt_nth<n, A...> {};
#endif
template <class T> struct ptxrt_float { enum { value = 0 }; };
template <class T> struct ptxrt_float<const T> : ptxrt_float<T> {};
template <> struct ptxrt_float<float> { enum { value = 4 }; };
template <> struct ptxrt_float<double> { enum { value = 8 }; };
#ifdef __CUDACC_RTC__  // whose 12.9 and 13.0 have no __builtin_offsetof
#define ptxrt_offset(T, member) __INTADDR__(&(((T*)0)->member))
#else
#define ptxrt_offset(T, member) __builtin_offsetof(T, member)
#endif
"""
_PARAMETER = "typedef ptxrt_parameter<{index}, decltype(+({entry}))>::type ptxrt_{index};\n"
_PLACE = (
    "static_assert(ptxrt_offset(ptxrt_{index}, {field}) == {offset}"
    ' && sizeof(ptxrt_{index}::{field}) == {size}, "ptxrt: {field}: not at {offset} with {size} bytes");\n'
)
_FLOAT = 'static_assert(ptxrt_float<decltype(ptxrt_{index}::{field})>::value == {value}, "ptxrt: {field}: {words}");\n'
_SAID = re.compile(r"ptxrt: (\w+): ([\w ]+)")


def packed_struct(value: Any, p: Parameter, op: str) -> bytes:
    """Return the bytes of a struct parameter.

    Parameters
    ----------
    value
        A NumPy scalar of the parameter's dtype (``np.void``, ``np.record``, or an array without axes), a tuple with a
        value for each field, or a mapping of them; for an array a sequence; for a field that is a struct or an array
        the same. Or its bytes as they are.
    p, op
        The parameter, and the kernel's name for messages.

    Raises
    ------
    InvalidArgument, DTypeMismatch
        Under the field's name, ``"p.a"``: for a value that its type cannot hold, a missing field, an unknown one.
    """
    packed = bytearray(p.size)
    _write(packed, 0, p.type.numpy, value, p.name, op)
    return bytes(packed)


def _write(packed: bytearray, at: int, dtype: np.dtype[Any], value: Any, name: str, op: str) -> None:
    element = BY_NUMPY.get(dtype)
    if element is not None:
        p = Parameter(name, element)
        try:
            struct.pack_into(f"<{element.pack or 'H'}", packed, at, check_scalar(value, p, op))
        except (struct.error, OverflowError):
            raise scalar_error(p, value, op) from None
        return
    if isinstance(value, (bytes, bytearray)) or (dtype.names is None and dtype.subdtype is None):
        if not isinstance(value, (bytes, bytearray)) or len(value) != dtype.itemsize:
            raise _wrong(op, name, f"{dtype.itemsize} bytes", value)
        packed[at : at + dtype.itemsize] = value
        return
    if isinstance(value, (np.void, np.ndarray)) and issubclass(value.dtype.type, np.void) and not value.shape:
        if value.dtype != dtype:
            raise DTypeMismatch(op=op, argument=name, expected=f"{dtype}", given=f"{value.dtype}")
        packed[at : at + dtype.itemsize] = value.tobytes()
        return
    for key, field, offset, given in _fields(dtype, value, name, op):
        _write(packed, at + offset, field, given, key, op)


def _fields(dtype: np.dtype[Any], value: Any, name: str, op: str) -> Iterator[tuple[str, np.dtype[Any], int, Any]]:
    """Yield name, dtype, offset and value of each field, or of each element of an array."""
    if dtype.subdtype:
        base, shape = dtype.subdtype
        part = np.dtype((base, shape[1:])) if shape[1:] else base
        several = isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim)
        if not several or len(value) != shape[0]:
            raise _wrong(op, name, f"{shape[0]} values", value)
        for index, given in enumerate(value):
            yield f"{name}[{index}]", part, index * part.itemsize, given
        return
    names, places = dtype.names or (), dict(dtype.fields or {})
    fields = f"the fields {', '.join(names)}"
    if isinstance(value, Mapping):
        for key in value:
            if key not in names:
                from ptxrt.compilers.ptx_text import suggestion  # noqa: PLC0415 (for the message alone)

                fix = suggestion(str(key), names)
                raise InvalidArgument(op=op, argument=name, expected=fields, given=shown(key), fix=fix)
        if missing := [key for key in names if key not in value]:
            raise InvalidArgument(op=op, argument=name, expected=fields, given=f"no {missing[0]}")
    elif not isinstance(value, tuple) or len(value) != len(names):
        raise _wrong(op, name, f"a tuple or a mapping of {fields}, or a NumPy scalar of that dtype", value)
    for index, key in enumerate(names):
        field, offset, *_ = places[key]
        yield f"{name}.{key}", field, offset, value[key] if isinstance(value, Mapping) else value[index]


def _wrong(op: str, name: str, expected: str, given: object) -> InvalidArgument:
    return InvalidArgument(op=op, argument=name, expected=expected, given=f"{shown(given)} ({type(given).__name__})")


def check_members(
    module: LoadedModule, source: KernelSource, entry: str, options: tuple[str, ...], signature: Signature
) -> None:
    """Ask the C++ compiler whether each field of a struct parameter is the member of that name, in place and size.

    Raises
    ------
    SignatureMismatch
        With the fields that are not. Size and place of the whole struct are :meth:`Signature.agree`'s.
    """
    params = module.binary.entries[module.binary.symbols[entry]].params or ()
    asked = {
        index: p.type
        for index, (p, found) in enumerate(zip(signature.parameters, params, strict=False))
        if p.type.kind == "struct" and p.type.numpy.names and found.cxx and p.size == found.size
        if VECTORS.get(plain_name(found.cxx)) is not p.type
    }
    key = (entry, *asked.items())
    if not asked or key in module.layouts:
        return
    lines = [_LINES]
    for index, kind in asked.items():
        lines.append(_PARAMETER.format(index=index, entry=entry))
        for field, (dtype, offset, *_) in (kind.numpy.fields or {}).items():
            lines.append(_PLACE.format(index=index, field=field, offset=offset, size=dtype.itemsize))
            if dtype.kind in "iuf" and dtype.itemsize >= 4:
                value, words = (dtype.itemsize, "not a float") if dtype.kind == "f" else (0, "a float")
                lines.append(_FLOAT.format(index=index, field=field, value=value, words=words))
    try:
        module.cache.backend.compile(
            source.language,
            source.text + "".join(lines),
            module.binary.arch,
            options=options,
            defines=dict(source.defines),
            name=source.name,
            entry=entry,
        )
    except CompileError as error:
        if error.compiler_lost:
            raise
        raise _mismatch(entry, asked, error) from error
    module.layouts.add(key)


def _mismatch(entry: str, asked: Mapping[int, Any], error: CompileError) -> PtxrtError:
    said: dict[str, str] = {}
    for field, words in _SAID.findall(error.log or ""):
        said.setdefault(field, words)
    names = ", ".join(map(str, dict.fromkeys(asked.values())))
    why = "; ".join(f"{field} is {words}" for field, words in said.items()) or str(error).splitlines()[0]
    return SignatureMismatch(
        f"{entry}: the fields of {names} are not the members of the struct in the text: {why}\n"
        "Name the fields as the members are; np.dtype(..., align=True) lays them out as C++ does",
        op="load",
        argument=entry,
        expected=f"the members of {names}",
        given=why,
    )
