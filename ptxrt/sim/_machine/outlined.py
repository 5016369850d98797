"""Functions that are not inlined, for recursion and function pointers: their code stands once, behind the entry's."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ptxrt.sim._machine.branches import Target
from ptxrt.sim._text.syntax import Function, Register, Variable
from ptxrt.sim._text.types import TYPES, PtxType

__all__ = ["Outlined", "Word", "words_of"]


@dataclass(frozen=True)
class Word:
    """A part of an argument or a result on its way: its place in the parameter, its type, and the slot it goes in."""

    offset: int
    type: PtxType
    slot: int


def words_of(formal: Variable | Register) -> list[tuple[int, PtxType]]:
    """Return the words that a parameter is passed in: its offset and type, for each."""
    if isinstance(formal, Register):
        return [(0, formal.type)]
    found = []
    at, size = 0, min(formal.align, 8)
    while at < formal.size:
        while at + size > formal.size:
            size //= 2
        found.append((at, TYPES[f"b{8 * size}"]))
        at += size
    return found


@dataclass(eq=False)
class Outlined:
    """A function whose code stands once.

    Attributes
    ----------
    start
        Its first block.
    params, returns
        The words of each parameter and result.
    saved
        Slots that a call saves.
    addresses
        Slots that a call fills with addresses of local variables: slot, place, dtype, generic or not.
    local_bytes
        Local memory of one activation.
    """

    function: Function
    start: Target
    params: list[list[Word]]
    returns: list[list[Word]]
    saved: list[int] = field(default_factory=list)
    addresses: list[tuple[int, int, np.dtype[np.generic], bool]] = field(default_factory=list)
    local_bytes: int = 0
