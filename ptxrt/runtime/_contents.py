"""What an array holds: its values as text, of which the edges alone are read, and one value as bytes."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxrt.dtypes import ElementType
from ptxrt.errors import PtxrtError
from ptxrt.runtime.layout import span
from ptxrt.runtime.scalars import check_scalar
from ptxrt.runtime.signature import Parameter, Signature

if TYPE_CHECKING:
    from ptxrt.runtime.array import DeviceArray

__all__ = ["element_bytes", "values_as_text"]

_MOST_SHOWN = 2000
_AT_ONCE = 256  # bytes that one copy brings as fast as a few of them


def element_bytes(value: Any, element: ElementType, op: str) -> bytes:
    """Return a number as an element, by the rules of a launch's scalars; InvalidArgument for what does not fit."""
    parameter = Parameter("value", element)
    signature = Signature((parameter,))
    arguments = signature.arguments()
    try:
        signature.pack_into(arguments.raw, 0, check_scalar(value, parameter, op))
    except (struct.error, OverflowError):
        raise signature.explain((value,), op) from None
    return arguments.bytes()


def values_as_text(array: DeviceArray, prefix: str) -> str:
    """Return the values as NumPy prints them, cut as NumPy cuts them; words in <> where they cannot be read.

    Of an array that is cut, the edges alone are copied. A graph that is being captured is not disturbed.
    """
    if not array.memory.alive:
        return "<freed>"
    if not array.size:
        return "[]"  # as NumPy, of any shape, some of which it has not
    options = np.get_printoptions()
    edge = None if array.size <= options["threshold"] else int(options["edgeitems"])
    while edge is not None and math.prod(min(n, 2 * edge) for n in array.shape) > _MOST_SHOWN:
        if edge == 1:
            return "<many axes>"
        edge -= 1
    device = array.device
    try:
        with device.backend.looking(device.ordinal, array.memory.users) as readable:
            if not readable:
                return "<its stream is being captured>"
            part = _edges(array, edge)
    except PtxrtError as error:  # such as a kernel's fault, which every later call of the driver tells
        return f"<{type(error).__name__} when read>"
    # NumPy leaves out what is behind the first `edge` of an axis and before the last, and prints all below a threshold.
    cut = edge is not None
    return np.array2string(
        part, separator=", ", prefix=prefix, threshold=0 if cut else max(part.size, 1), edgeitems=edge if cut else None
    )


def _edges(array: DeviceArray, edge: int | None) -> np.ndarray[Any, Any]:
    """Return a host array in which each axis longer than twice `edge` has its ends, and one value between them."""
    whole = edge is None or max(array.shape, default=0) <= 2 * edge
    length = span(array.shape, array.strides)
    # Of a view that repeats a few elements the whole may be more than the host has.
    if max(length, array.size) * array.dtype.itemsize <= _AT_ONCE or (whole and length <= 4 * array.size):
        host = array.to_host(array.device.default_stream)
        for axis, length in enumerate(host.shape):
            host = host.take(_places(length, edge), axis)
        return host
    if edge is None or array.ndim > 1 or array.strides[0] != 1:
        return np.stack([_edges(array[place], edge) for place in _places(array.shape[0], edge)])
    return np.concatenate([_edges(array[: edge + 1], None), _edges(array[array.size - edge :], None)])


def _places(length: int, edge: int | None) -> list[int]:
    if edge is None or length <= 2 * edge:
        return list(range(length))
    return [*range(edge + 1), *range(length - edge, length)]  # NumPy leaves the one in the middle out
