"""Reading and writing words of any state space for the active lanes."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.protocol import Spaces
from ptxrt.sim._machine.spaces import locate
from ptxrt.sim._text.types import Array, word_type

__all__ = ["read_words", "write_words"]


def read_words(m: Spaces, access: Access, where: Array, word: int) -> list[Array]:
    """Read ``access.size // word`` unsigned words for each active lane; shape (1,) where the address is one."""
    count = access.size // word
    shift = word.bit_length() - 1
    pieces = locate(m, access, where)
    if len(pieces) == 1 and pieces[0].lanes is None:
        words = pieces[0].store.words(word)
        index = pieces[0].at >> shift if shift else pieces[0].at
        return [words.take(index + place if place else index) for place in range(count)]
    found = [np.empty(m.count, word_type(word)) for _ in range(count)]
    for piece in pieces:
        words = piece.store.words(word)
        index = piece.at >> shift
        for place in range(count):
            found[place][piece.lanes] = words.take(index + place)
    return found


def write_words(m: Spaces, access: Access, where: Array, values: list[Array]) -> None:
    """Write unsigned words for each active lane; of lanes that write to one address the last wins."""
    word = values[0].dtype.itemsize
    shift = word.bit_length() - 1
    m.written = values
    pieces = locate(m, access, where)
    m.written = None
    for piece in pieces:
        words = piece.store.words(word)
        index = piece.at >> shift if shift else piece.at
        for place, value in enumerate(values):
            part = value if piece.lanes is None or value.shape[0] == 1 else value[piece.lanes]
            words[index + place if place else index] = part[-1:] if index.shape[0] == 1 else part
