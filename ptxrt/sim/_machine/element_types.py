"""What a signature says of the elements of arrays, and the accesses that contradict it.

PTX gives a type to an access and none to memory. An access of one floating-point type to an array that is declared
with another is a fault: the kernel computes with bits that mean something else. Whatever else moves bytes (integers,
``.b32``, vectors) may move elements of any type.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ptxrt.sim._machine.allocations import Allocation, Table
from ptxrt.sim._machine.layout import Param
from ptxrt.sim._machine.memory import READ_ONLY_BIT
from ptxrt.sim._text.types import Array, PtxType

__all__ = ["ArrayParam", "Elements", "declared_elements", "float_type"]

_FLOATS = frozenset(("f16", "bf16", "f32", "f64"))


class ArrayParam(NamedTuple):
    """A parameter that points to an array, as a signature declares it.

    Attributes
    ----------
    offset
        Its place in the packed parameters.
    name, element
        The array's name, and the type of its elements: ``"f32"``.
    const
        Whether the kernel must not write through the pointer.
    """

    offset: int
    name: str
    element: str
    const: bool = False


def float_type(kind: PtxType) -> str:
    """Return the floating-point type that an access of this type works with; empty for none."""
    name = kind.name.removesuffix("x2")
    return name if name in _FLOATS else ""


class Elements:
    """The arrays that begin in one allocation, each up to the next."""

    def __init__(self, arrays: Sequence[tuple[int, ArrayParam]]) -> None:
        self._arrays = [array for _, array in arrays]
        self._starts = np.array([start for start, _ in arrays], np.int64)
        self._contradicted: dict[str, Array] = {}

    def contradicted(self, element: str, at: Array) -> tuple[int, ArrayParam] | None:
        """Return the first of these places whose array has another floating-point type, with the array; or None."""
        wrong = self._contradicted.get(element)
        if wrong is None:
            flags = [array.element in _FLOATS and array.element != element for array in self._arrays]
            wrong = self._contradicted[element] = np.array([*flags, False])  # the last for what is before all of them
        if not wrong.any():
            return None
        array = np.searchsorted(self._starts, at, side="right") - 1
        bad = wrong[array].nonzero()[0]
        return (int(bad[0]), self._arrays[int(array[bad[0]])]) if bad.size else None


def declared_elements(
    table: Table, params: bytes, declared: Iterable[Param], arrays: Sequence[ArrayParam], accessed: set[str]
) -> dict[Allocation, Elements]:
    """Return what is declared of each allocation that a parameter points into.

    Nothing is said of an allocation that a number points into as well, nor of places that two arrays of different
    types share.

    Parameters
    ----------
    params, declared
        The packed parameters of the launch, and the entry's table of them.
    accessed
        The floating-point types of the code's accesses; where none can contradict an array, the result is empty.
    """
    if not accessed or not any(array.element in _FLOATS and accessed != {array.element} for array in arrays):
        return {}
    by_offset = {array.offset: array for array in arrays}
    found: dict[Allocation, dict[int, ArrayParam]] = {}
    unknown = set()
    for param in declared:
        address = int.from_bytes(params[param.offset : param.offset + param.size], "little") & ~READ_ONLY_BIT
        allocation = table.find(address) if param.size == 8 else None
        if allocation is None:
            continue
        array = by_offset.get(param.offset)
        if array is None:
            unknown.add(allocation)
            continue
        starts = found.setdefault(allocation, {})
        held = starts.setdefault(address - allocation.base, array)
        if held.element != array.element:
            starts[address - allocation.base] = array._replace(element="")
    return {one: Elements(sorted(starts.items())) for one, starts in found.items() if one not in unknown}
