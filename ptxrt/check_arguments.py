"""What ``ptxrt check`` passes to a kernel: arrays from texts such as ``random:f32:8x1024``, and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from ptxrt import sim
from ptxrt.compilers.ptx_text import suggestion
from ptxrt.dtypes import BY_NAME, BY_NUMPY, ElementType, element_type
from ptxrt.errors import DTypeMismatch, InvalidArgument, OutOfDeviceMemory, ShapeMismatch
from ptxrt.signature import Parameter, Signature
from ptxrt.sim.types import TYPES

__all__ = ["FORMS", "Given", "Value", "declared"]

Array = NDArray[Any]

FORMS = "KIND:TYPE:SHAPE with KIND random, arange, zeros, ones, nan, empty or full:VALUE; file:PATH.npy; null; a number"

_ARRAY = re.compile(r"(random|arange|zeros|ones|nan|empty|full:(?P<value>[^:]+)):(?P<type>\w+):(?P<shape>[\dx]+)")
_KINDS = ("random", "arange", "zeros", "ones", "nan", "empty", "full")
_MOST_BYTES = 8 << 30


@dataclass(frozen=True)
class Value:
    """What one parameter was given.

    Attributes
    ----------
    parameter
        As declared.
    array
        The values before the launch; None for a scalar and for a null pointer.
    number
        The scalar; None for an array and for a null pointer.
    form
        As it was written, or a description.
    empty
        The array's memory stays as it was allocated: reading it before writing is a fault.
    """

    parameter: Parameter
    array: Array | None
    number: int | float | None
    form: str
    empty: bool = False

    def place(self, memory: sim.GlobalMemory) -> int:
        """Copy the array into `memory` and return its address; 0 where there is none."""
        if self.array is None:
            return 0
        address = memory.allocate(self.array.nbytes, self.parameter.name)
        if not self.empty:
            flat = np.ascontiguousarray(self.array).reshape(-1)
            memory.view(address, self.array.nbytes, writable=True)[:] = flat.view(np.uint8)
        return address

    def packed(self, memory: sim.GlobalMemory, address: int) -> int | float:
        """Return what stands in the parameter buffer."""
        if not self.parameter.pointer:
            return 0 if self.number is None else self.number
        return memory.read_only(address) if address and self.parameter.const else address

    def read(self, memory: sim.GlobalMemory, address: int) -> Array:
        """Return a copy of the array as it is in `memory` now."""
        like = np.zeros(0, np.uint8) if self.array is None else self.array
        held: Array = memory.view(address, like.nbytes).copy().view(like.dtype)
        return held.reshape(like.shape)


class Given:
    """The arguments by name, read as far as that needs no signature."""

    def __init__(self, entry: str, arguments: Mapping[str, Any]) -> None:
        self.entry = entry
        self.arguments = dict(arguments)

    def is_array(self, name: str) -> bool:
        """Tell whether an array is given for this parameter."""
        value = self.arguments.get(name)
        return isinstance(value, np.ndarray) or (isinstance(value, str) and (":" in value))

    def element(self, name: str) -> ElementType:
        """Return the element type of the array given for this parameter."""
        value = self.arguments[name]
        if isinstance(value, np.ndarray):
            return element_type(value.dtype, op=self.entry, argument=name)
        if value.startswith("file:"):
            return element_type(self._file(name, value[5:]).dtype, op=self.entry, argument=name)
        return BY_NAME[self._form(name, value)["type"]]

    def values(self, signature: Signature, seed: int) -> list[Value]:
        """Return one value a parameter.

        Raises
        ------
        InvalidArgument, DTypeMismatch, ShapeMismatch
            For what is missing, not understood, or not what the parameter is.
        """
        names = [p.name for p in signature.parameters]
        self.known(names)
        for name in names:
            if name not in self.arguments:
                raise self.missing(name)
        values = [self._value(p, index, seed) for index, p in enumerate(signature.parameters)]
        sizes = {value.parameter.name: value.number for value in values if not value.parameter.pointer}
        for value in values:
            factors = [f if isinstance(f, int) else sizes[f] for f in value.parameter.length]
            if value.array is None or not factors or any(not isinstance(f, int) for f in factors):
                continue
            least = math.prod(int(f or 0) for f in factors)
            if value.array.size < least:
                raise ShapeMismatch(
                    op=self.entry,
                    argument=value.parameter.name,
                    expected=f"at least {least} elements ({value.parameter})",
                    given=f"{value.array.size}",
                )
        return values

    def known(self, names: Sequence[str]) -> None:
        """Check that each argument is for one of these parameters."""
        for name in self.arguments:
            if name not in names:
                raise InvalidArgument(
                    op=self.entry,
                    argument=name,
                    expected=f"a parameter: {', '.join(names) or 'there is none'}",
                    given=repr(name),
                    fix=suggestion(name, names),
                )

    def missing(self, name: str, what: str = "") -> InvalidArgument:
        """Return the error for a parameter that nothing is given for."""
        return InvalidArgument(
            op=self.entry, argument=name, expected=f"{what or 'an argument'} ({FORMS})", given="nothing"
        )

    def _value(self, p: Parameter, index: int, seed: int) -> Value:
        given = self.arguments[p.name]
        if not p.pointer:
            return Value(p, None, self._number(p, given), str(given))
        if given is None or (isinstance(given, str) and given in ("null", "None")):
            if not p.nullable:
                raise InvalidArgument(
                    op=self.entry,
                    argument=p.name,
                    expected="an array",
                    given="null",
                    fix=f"A pointer that may be null is declared so: {p.type}*? {p.name}",
                )
            return Value(p, None, None, "null")
        if not self.is_array(p.name):
            raise self._wrong(p.name, f"an array for the pointer {p}")
        if isinstance(given, np.ndarray):
            array, form, empty = given, f"an array of shape {given.shape}", False
        elif given.startswith("file:"):
            array, form, empty = self._file(p.name, given[5:]), given, False
        else:
            array = self._made(p.name, given, np.random.default_rng([seed, index]))
            form, empty = given, given.startswith("empty:")
        if BY_NUMPY.get(array.dtype) is not p.type:
            raise DTypeMismatch(
                op=self.entry, argument=p.name, expected=f"{p.type} ({p.type.numpy})", given=str(array.dtype)
            )
        return Value(p, array, None, form, empty)

    def _number(self, p: Parameter, given: Any) -> int | float:
        if isinstance(given, np.generic):
            given = given.item()
        if isinstance(given, str):
            for read in (_boolean, lambda text: int(text, 0), float):
                try:
                    given = read(given.strip())
                except ValueError:
                    continue
                break
        if not isinstance(given, (int, float)):
            raise self._wrong(p.name, f"a number for {p}")
        # 2 is a float32 too, and 2.0 no integer: struct says the rest.
        return given

    def _wrong(self, name: str, wanted: str) -> InvalidArgument:
        return InvalidArgument(
            op=self.entry, argument=name, expected=f"{wanted}: {FORMS}", given=repr(self.arguments[name])
        )

    def _form(self, name: str, text: str) -> dict[str, str]:
        found = _ARRAY.fullmatch(text)
        if found is None:
            kind = text.partition(":")[0]
            fix = None if kind in _KINDS else suggestion(kind, (*_KINDS, "file"))
            raise InvalidArgument(
                op=self.entry, argument=name, expected=f"an array such as random:f32:8x1024 ({FORMS})",
                given=repr(text), fix=fix,
            )  # fmt: skip
        if found["type"] not in BY_NAME:
            raise DTypeMismatch(
                op=self.entry, argument=name, expected=f"one of {', '.join(BY_NAME)}", given=repr(found["type"])
            )
        return {key: value or "" for key, value in found.groupdict().items()} | {"kind": text.partition(":")[0]}

    def _made(self, name: str, text: str, rng: np.random.Generator) -> Array:
        form = self._form(name, text)
        kind = BY_NAME[form["type"]]
        parts = form["shape"].split("x")
        if not all(parts) or kind.size * math.prod(map(int, parts)) > _MOST_BYTES:
            raise InvalidArgument(
                op=self.entry, argument=name, expected=f"a shape such as 8x1024, at most {_MOST_BYTES} bytes in all",
                given=repr(form["shape"]),
            )  # fmt: skip
        shape = tuple(map(int, parts))
        if form["kind"] == "nan" and kind.kind != "float":
            raise DTypeMismatch(op=self.entry, argument=name, expected="a floating-point type", given=str(kind))
        if form["kind"] == "full":
            return self._full(name, form["value"], kind, shape)
        try:
            return _MAKERS[form["kind"]](rng, kind, shape)
        except MemoryError:
            raise OutOfDeviceMemory(
                f"{self.entry}: {name}: the host has no memory for {text}", op=self.entry, argument=name, given=text
            ) from None

    def _full(self, name: str, text: str, kind: ElementType, shape: tuple[int, ...]) -> Array:
        try:
            if kind.kind == "float":
                return np.full(shape, float(text)).astype(kind.numpy)
            return np.full(shape, int(text, 0), kind.numpy)
        except (ValueError, OverflowError):
            raise InvalidArgument(
                op=self.entry, argument=name, expected=f"a value of {kind} behind full:", given=repr(text)
            ) from None

    def _file(self, name: str, path: str) -> Array:
        try:
            found = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            raise InvalidArgument(
                op=self.entry, argument=name, expected="a .npy file", given=repr(path), fix=str(error)
            ) from None
        if not isinstance(found, np.ndarray):
            raise InvalidArgument(op=self.entry, argument=name, expected="one array in a .npy file", given=repr(path))
        return found


Maker = Callable[[np.random.Generator, ElementType, "tuple[int, ...]"], Array]


def _random(rng: np.random.Generator, kind: ElementType, shape: tuple[int, ...]) -> Array:
    """Return the standard normal distribution, or whole numbers from 0 to 99 (0 and 1 for bool)."""
    if kind.kind == "float":
        return rng.standard_normal(shape).astype(kind.numpy)
    return rng.integers(0, 2 if kind.name == "bool" else 100, shape).astype(kind.numpy)


_MAKERS: dict[str, Maker] = {
    "random": _random,
    "arange": lambda _, kind, shape: np.arange(math.prod(shape)).astype(kind.numpy).reshape(shape),
    "zeros": lambda _, kind, shape: np.zeros(shape, kind.numpy),
    "ones": lambda _, kind, shape: np.ones(shape, kind.numpy),
    "nan": lambda _, kind, shape: np.full(shape, np.nan).astype(kind.numpy),
    "empty": lambda _, kind, shape: np.zeros(shape, kind.numpy),
}


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def declared(entry: sim.Entry, given: Given) -> Signature:
    """Return the signature that the text's .param list has, given which parameters are passed arrays.

    Raises
    ------
    InvalidArgument
        For a parameter that nothing is given for, an array for one that cannot be a pointer, an aggregate.
    """
    parameters = []
    given.known([p.name for p in entry.params])
    for p in entry.params:
        wide = p.type in (".u64", ".b64", ".s64")
        if p.size != TYPES[p.type[1:]].size:
            raise InvalidArgument(
                op=entry.name, argument=p.name, expected="a scalar or a pointer", given=f"{p.size} bytes of {p.type}"
            )
        if p.name not in given.arguments:
            either = f"an array, if this {p.type} is a pointer, or else a number"
            raise given.missing(p.name, either if wide else f"a number for {p.type}")
        if given.is_array(p.name):
            if not wide:
                raise InvalidArgument(
                    op=entry.name, argument=p.name, expected=f"a number, as the parameter is {p.type}", given="an array"
                )
            kind = given.element(p.name)
            parameters.append(Parameter(p.name, kind, pointer=True, align=kind.size))
            continue
        parameters.append(Parameter(p.name, _scalar(p, given.arguments[p.name])))
    return Signature(tuple(parameters))


def _scalar(p: sim.Param, value: Any) -> ElementType:
    for kind in BY_NAME.values():
        if kind.ptx == p.type:
            return kind
    whole = not isinstance(value, float) and re.fullmatch(r"\s*-?(0[xX][\da-fA-F]+|\d+)\s*", str(value))
    names = {8: "u8", 16: "u16" if whole else "f16", 32: "u32" if whole else "f32", 64: "u64" if whole else "f64"}
    return BY_NAME[names[p.size * 8]]
