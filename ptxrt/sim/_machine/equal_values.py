"""Whether lanes that are about to write the same bytes write the same value: the race models pass that over."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._machine.allocations import Store
from ptxrt.sim._text.types import Array

__all__ = ["equal_among", "equal_to_memory"]


def _words(values: list[Array]) -> list[Array]:
    """Return the words that are written as integers: of 128 bits there are none, and each makes two."""
    if values[0].dtype.itemsize <= 8:
        return values
    return [half for value in values for half in np.ascontiguousarray(value).view(np.uint64).reshape(-1, 2).T]


def equal_to_memory(values: list[Array], store: Store, at: Array) -> Array:
    """Tell which lanes write what their bytes hold already."""
    words = _words(values)
    size = words[0].dtype.itemsize
    held, index = store.words(size), at // size
    equal = np.ones(at.shape[0], np.bool_)
    for place, value in enumerate(words):
        equal &= held[index + place] == value
    return equal


def equal_among(values: list[Array], at: Array) -> Array:
    """Tell which lanes write what all lanes write that write to the same address."""
    _, first, group = np.unique(at, return_index=True, return_inverse=True)
    other = np.zeros(at.shape[0], np.bool_)
    for value in _words(values):
        wide = np.broadcast_to(value, at.shape)
        other |= wide != wide[first[group]]
    differ = np.zeros(first.shape[0], np.bool_)
    differ[group[other]] = True
    return ~differ[group]
