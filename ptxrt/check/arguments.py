"""What ``ptxrt check`` passes to a kernel: arrays from texts such as ``random:f32:8x1024``, numbers, and structs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ptxrt import sim
from ptxrt.compilers.ptx_text import suggestion
from ptxrt.dtypes import BY_NAME, BY_NUMPY, ElementType, array_type, element_type, struct_type
from ptxrt.errors import DTypeMismatch, InvalidArgument, OutOfDeviceMemory, ShapeMismatch, shown
from ptxrt.runtime.signature import Parameter, Signature
from ptxrt.sim import TYPES

__all__ = ["FORMS", "Given", "Value", "declared"]

Array = NDArray[Any]

ARRAYS = "KIND:TYPE:SHAPE with KIND random, arange, zeros, ones, nan, empty or full:VALUE; or file:PATH.npy"
BY_VALUE = "the values in order, 1,2.5,3; or bytes:HEX"
FORMS = f"{ARRAYS}; null; a number; or, for a struct or an array by value, {BY_VALUE}"

_SHAPE = "[0-9]{1,19}(x[0-9]{1,19}){0,31}"
_ARRAY = re.compile(
    rf"(random|arange|zeros|ones|nan|empty|full:(?P<value>[^:]+)):(?P<type>\w+):(?P<shape>{_SHAPE})", re.ASCII
)
_KINDS = ("random", "arange", "zeros", "ones", "nan", "empty", "full")
_MOST_BYTES = 8 << 30
_NULL = ("null", "None")


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
        The scalar, or what a struct or an array by value is made of; None for an array and for a null pointer.
    form
        As it was written, or a description.
    empty
        The array's memory stays as it was allocated: reading it before writing is a fault.
    """

    parameter: Parameter
    array: Array | None
    number: Any
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

    def packed(self, memory: sim.GlobalMemory, address: int) -> Any:
        """Return what stands in the parameter buffer, of a scalar and a struct as it was given."""
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
        self._loaded: dict[str, Array] = {}

    def is_array(self, name: str) -> bool:
        """Tell whether an array is given for this parameter."""
        value = self.arguments.get(name)
        return isinstance(value, np.ndarray) or (isinstance(value, str) and ":" in value)

    def is_null(self, name: str) -> bool:
        """Tell whether a null pointer is given for this parameter."""
        value = self.arguments.get(name, "")
        return value is None or (isinstance(value, str) and value in _NULL)

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
        for p in signature.parameters:
            if p.name not in self.arguments:
                raise self.refused(p.name, _wanted(p))
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

    def known(self, names: Sequence[str], fix: str | None = None) -> None:
        """Check that each argument is for one of these parameters; `fix` is the way out where none is close."""
        for name in self.arguments:
            if name not in names:
                raise InvalidArgument(
                    op=self.entry,
                    argument=name,
                    expected=f"a parameter: {', '.join(names) or 'there is none'}",
                    given=shown(name),
                    fix=suggestion(name, names) or (fix if names else None),
                )

    def by_value(self, name: str) -> Any:
        """Return what is given for a struct or an array by value: a text is read, all else left as it is."""
        given = self.arguments.get(name)
        if not isinstance(given, str):
            return given
        if given.startswith("bytes:"):
            try:
                return bytes.fromhex(given[6:])
            except ValueError:
                raise self.refused(name, "bytes:HEX, two digits a byte") from None
        numbers = tuple(map(_number, given.split(",")))
        if None in numbers:
            raise self.refused(name, BY_VALUE)
        return numbers

    def type_by_value(self, name: str, nbytes: int, element: ElementType | None = None) -> ElementType:
        """Return a type for so many bytes by value of which the text has no more to say than perhaps the `element`.

        Raises
        ------
        InvalidArgument
            Where what is given has no such type.
        """
        given = self.by_value(name)
        if isinstance(given, np.void):
            return struct_type("struct", given.dtype, op=self.entry)
        if isinstance(given, np.ndarray):
            element = element_type(given.dtype, op=self.entry, argument=name)
        elif isinstance(given, (bytes, bytearray)):
            element = BY_NAME["u8"]
        elif element is None and isinstance(given, (tuple, list)) and nbytes in [n * len(given) for n in (1, 2, 4, 8)]:
            size = nbytes // len(given)
            fraction = size > 1 and any(isinstance(value, (float, np.floating)) for value in given)
            element = BY_NAME[f"{'f' if fraction else 'i' if min(given) < 0 else 'u'}{8 * size}"]
        if element is None:
            raise self.refused(name, f"{nbytes} bytes by value: {BY_VALUE}, all of one size")
        return array_type(element, nbytes // element.size)

    def type_of_bytes(self, name: str, nbytes: int) -> ElementType:
        """Return a type for a struct of C++ that nobody has declared: values in order would be guessed the types of.

        Raises
        ------
        InvalidArgument
            Where values are given.
        """
        if isinstance(self.by_value(name), (tuple, list)):
            raise self.refused(
                name,
                f"{nbytes} bytes by value, bytes:HEX: the types of the struct's members are not known here",
                fix='Declare them in Python, check(..., structs={"Name": dtype})',
            )
        return self.type_by_value(name, nbytes)

    def refused(self, name: str, wanted: str, fix: str | None = None) -> InvalidArgument:
        """Return the error for a parameter that takes another kind of argument."""
        given = shown(self.arguments[name]) if name in self.arguments else "nothing"
        return InvalidArgument(op=self.entry, argument=name, expected=wanted, given=given, fix=fix)

    def _value(self, p: Parameter, index: int, seed: int) -> Value:
        given = self.arguments[p.name]
        if p.kind == "struct":
            return Value(p, None, self.by_value(p.name), given if isinstance(given, str) else shown(given))
        if not p.pointer:
            number = _number(given)
            if number is None:
                raise self.refused(p.name, _wanted(p))
            return Value(p, None, number, given if isinstance(given, str) else shown(given))
        if self.is_null(p.name):
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
            raise self.refused(p.name, _wanted(p))
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

    def _form(self, name: str, text: str) -> dict[str, str]:
        found = _ARRAY.fullmatch(text)
        if found is None:
            kind = text.partition(":")[0]
            fix = None if kind in _KINDS else suggestion(kind, (*_KINDS, "file"))
            raise InvalidArgument(
                op=self.entry, argument=name, expected=f"an array such as random:f32:8x1024 ({ARRAYS})",
                given=shown(text), fix=fix,
            )  # fmt: skip
        if found["type"] not in BY_NAME:
            raise DTypeMismatch(
                op=self.entry, argument=name, expected=f"one of {', '.join(BY_NAME)}", given=shown(found["type"])
            )
        return {key: value or "" for key, value in found.groupdict().items()} | {"kind": text.partition(":")[0]}

    def _made(self, name: str, text: str, rng: np.random.Generator) -> Array:
        form = self._form(name, text)
        kind = BY_NAME[form["type"]]
        shape = tuple(map(int, form["shape"].split("x")))
        if kind.size * math.prod(shape) > _MOST_BYTES:
            raise self.refused(name, f"at most {_MOST_BYTES} bytes in all")
        if form["kind"] == "nan" and kind.kind != "float":
            raise DTypeMismatch(op=self.entry, argument=name, expected="a floating-point type", given=str(kind))
        try:
            if form["kind"] == "full":
                return np.full(shape, _in_range(_read(form["value"], kind), kind), kind.numpy)
            if form["kind"] == "arange":
                _in_range(max(math.prod(shape) - 1, 0), kind)
            return _MAKERS[form["kind"]](rng, kind, shape)
        except (ValueError, OverflowError):
            raise self.refused(name, f"values that {kind} can hold") from None
        except MemoryError:
            raise self._no_memory(name) from None

    def _no_memory(self, name: str) -> OutOfDeviceMemory:
        text = self.arguments[name]
        return OutOfDeviceMemory(
            f"{self.entry}: {name}: the host has no memory for {text}", op=self.entry, argument=name, given=text
        )

    def _file(self, name: str, path: str) -> Array:
        if name in self._loaded:
            return self._loaded[name]
        wrong = InvalidArgument(
            op=self.entry,
            argument=name,
            expected="a .npy file of one array, as numpy.save writes it",
            given=shown(path),
        )
        try:
            with open(path, "rb") as file:
                found = np.load(file, allow_pickle=False)
        except OSError as error:
            raise InvalidArgument(
                op=self.entry, argument=name, expected="a .npy file", given=shown(path), fix=error.strerror
            ) from None
        except MemoryError:
            raise self._no_memory(name) from None
        except Exception as error:  # a damaged header makes NumPy raise whatever Python's own parser does
            raise wrong from error
        if not isinstance(found, np.ndarray):
            raise wrong
        return self._loaded.setdefault(name, found)


Maker = Callable[[np.random.Generator, ElementType, "tuple[int, ...]"], Array]


def _random(rng: np.random.Generator, kind: ElementType, shape: tuple[int, ...]) -> Array:
    """Return the standard normal distribution, or whole numbers from 0 to 99 (0 and 1 for bool)."""
    if kind.kind == "float":
        drawn = rng.standard_normal(shape, np.float64 if kind.size == 8 else np.float32)
        return drawn.astype(kind.numpy, copy=False)
    return rng.integers(0, 2 if kind.name == "bool" else 100, shape, np.uint8).astype(kind.numpy, copy=False)


_MAKERS: dict[str, Maker] = {
    "random": _random,
    "arange": lambda _, kind, shape: np.arange(math.prod(shape)).astype(kind.numpy).reshape(shape),
    "zeros": lambda _, kind, shape: np.zeros(shape, kind.numpy),
    "ones": lambda _, kind, shape: np.ones(shape, kind.numpy),
    "nan": lambda _, kind, shape: np.full(shape, np.nan).astype(kind.numpy),
    "empty": lambda _, kind, shape: np.zeros(shape, kind.numpy),
}


def _read(text: str, kind: ElementType) -> int | float:
    return float(text) if kind.kind == "float" else int(text, 0)


def _in_range(value: int | float, kind: ElementType) -> Array:
    """Return a value in its type, rounded; OverflowError for one that the type cannot hold."""
    if kind.kind == "int":
        # NumPy 1 wraps what does not fit, and every NumPy takes any number for a bool.
        if not kind.limits[0] <= value <= kind.limits[1]:
            raise OverflowError
        return np.array(value, kind.numpy)
    with np.errstate(over="ignore"):
        rounded: Array = np.array(float(value)).astype(kind.numpy)
    if math.isfinite(value) and not np.isfinite(rounded):
        raise OverflowError
    return rounded


def _wanted(p: Parameter) -> str:
    if p.kind == "struct":
        return f"{BY_VALUE}, for {p}"
    if not p.pointer:
        return f"a number for {p}"
    return f"an array for the pointer {p} ({ARRAYS}{'; or null' if p.nullable else ''})"


def _number(given: Any) -> int | float | None:
    """Return the number that is given or written; None for what is none."""
    if isinstance(given, np.generic):
        given = given.item()
    if isinstance(given, str):
        for read in (_boolean, lambda text: int(text, 0), float):
            try:
                return read(given.strip())
            except ValueError:
                continue
    # 2 is a float32 too, and 2.0 no integer: struct says the rest.
    return given if isinstance(given, (int, float)) else None


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def declared(entry: sim.Entry, given: Given) -> Signature:
    """Return the signature that the text's .param list has, given which parameters are passed arrays.

    Raises
    ------
    InvalidArgument
        For a parameter that nothing is given for, an array for one that cannot be a pointer.
    """
    parameters = []
    given.known([p.name for p in entry.params], "A signature can give them other names")
    for p in entry.params:
        wide = p.type in (".u64", ".b64", ".s64")
        if p.size != TYPES[p.type[1:]].size or p.type == ".b128":
            element = next((kind for kind in BY_NAME.values() if kind.ptx == p.type), None)
            kind = given.type_by_value(p.name, p.size, element)
            parameters.append(Parameter(p.name, kind, align=p.align))
            continue
        number = _number(given.arguments.get(p.name))
        if given.is_array(p.name) and wide:
            kind = given.element(p.name)
            parameters.append(Parameter(p.name, kind, pointer=True, align=kind.size))
        elif given.is_null(p.name) and wide:
            parameters.append(Parameter(p.name, BY_NAME["u8"], pointer=True, nullable=True))
        elif number is not None:
            parameters.append(Parameter(p.name, _scalar(p, number)))
        else:
            array = f"an array ({ARRAYS}) or null, if this {p.type} is a pointer, or else a number"
            raise given.refused(p.name, array if wide else f"a number, as the parameter is {p.type}")
    return Signature(tuple(parameters))


def _scalar(p: sim.Param, number: int | float) -> ElementType:
    """Return the type of a scalar parameter; where the text gives bits alone, that of the number."""
    for kind in BY_NAME.values():
        if kind.ptx == p.type:
            return kind
    bits = p.size * 8
    letter = "f" if isinstance(number, float) and bits > 8 else "i" if number < 0 else "u"
    return BY_NAME[f"{letter}{bits}"]
