"""Pieces of global memory, and the table of those that are live at one time."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ptxrt.sim._text.types import Array, word_type

__all__ = ["Allocation", "Bounds", "Store", "Table"]

_ALIGN = 512
_GUARD = 4096


class Store:
    """Bytes, and the same bytes as wider words."""

    def __init__(self, data: Array) -> None:
        self.bytes = data
        self._words: dict[int, Array] = {}

    def words(self, size: int) -> Array:
        """Return the bytes as words of `size` bytes, a rest shorter than a word left out."""
        found = self._words.get(size)
        if found is None:
            whole = self.bytes.size // size * size
            found = self._words[size] = self.bytes[:whole].view(word_type(size))
        return found


class Allocation(Store):
    """A piece of global memory: allocated on the device, or lent by the host.

    Attributes
    ----------
    base
        The address of the first of its bytes, a multiple of 512.
    start, end
        The addresses that may be accessed, the end excluded. What the host lends may be a part of a larger array, and
        then it has its place among the bytes of all of it.
    lent
        Whether the host owns the bytes.
    heap
        Whether a kernel has them from malloc.
    """

    def __init__(self, base: int, data: Array, label: str, *, is_const: bool = False) -> None:
        super().__init__(data)
        self.base = base
        self.start, self.end = base, base + data.size
        self.label = label
        self.writable = True
        self.is_const = is_const
        self.lent = self.heap = False
        self.written: Store | bool = False
        """Which bytes have been written, a 1 for each that has; True for all of them, False for none."""

    def lend(self, start: int, end: int, *, writable: bool) -> Allocation:
        """Return the same bytes as memory of the host, of which these addresses may be accessed."""
        lent = Allocation(self.base, self.bytes, self.label)
        lent.start, lent.end, lent.writable, lent.lent, lent.written = start, end, writable, True, True
        return lent

    def __str__(self) -> str:
        return f"{self.label} {self.start:#x} of {self.size} bytes"

    @property
    def size(self) -> int:
        """Bytes that may be accessed."""
        return self.end - self.start

    @property
    def following(self) -> int:
        """Where the next allocation goes, far enough behind this one."""
        return -(-(self.base + self.bytes.size + _GUARD) // _ALIGN) * _ALIGN

    @cached_property
    def host(self) -> int:
        """The host's address of the first of the bytes."""
        return int(self.bytes.__array_interface__["data"][0])

    @property
    def host_start(self) -> int:
        """The host's address of the first byte that may be accessed."""
        return self.host + self.start - self.base

    def marks(self) -> Store | None:
        """Return the bytes' marks of having been written; None where all have been."""
        if self.written is True:
            return None
        if self.written is False:
            # Zeros that are never touched take no memory.
            self.written = Store(np.zeros(self.bytes.size, np.uint8))
        return self.written

    def host_writes(self, start: int, nbytes: int) -> None:
        """Note that the host may write so many bytes, from the byte `start` on."""
        if nbytes == self.size:
            self.written = True
        marks = self.marks()
        if marks is not None:
            marks.bytes[start : start + nbytes] = 1


class Bounds(NamedTuple):
    """The allocations of a table as arrays, in the order of their addresses."""

    starts: Array
    ends: Array
    bases: Array
    is_const: Array
    writable: Array


class Table:
    """The live allocations at one time. It never changes: each of its methods returns the next table.

    Attributes
    ----------
    starts, allocations
        Ascending addresses where allocations start, and the allocations.
    users
        For each allocation the addresses that were given out for it and that are still to be freed.
    next_base
        Where the next allocation goes: addresses only grow, so that one that was freed never comes back.
    in_use, heap_in_use
        Bytes of all allocations but those that the host lends, and of those that kernels have from malloc.
    successor
        Under "next", the table that has taken the place of this one.
    """

    def __init__(self, next_base: int) -> None:
        self.starts: list[int] = []
        self.allocations: list[Allocation] = []
        self.users: list[tuple[int, ...]] = []
        self.next_base = next_base
        self.in_use = self.heap_in_use = 0
        self.successor: dict[str, Table] = {}

    def with_new(self, allocation: Allocation, user: int) -> Table:
        """Return the table with an allocation at `next_base`."""
        end = len(self.starts)
        table = self._spliced(slice(end, end), [allocation], [(user,)])
        table.next_base = allocation.following
        return table

    def with_heap(self, allocations: list[Allocation]) -> Table:
        """Return the table with what kernels have from malloc, the first at `next_base`, the others behind it."""
        end = len(self.starts)
        table = self._spliced(slice(end, end), allocations, [(one.base,) for one in allocations])
        table.next_base = allocations[-1].following if allocations else self.next_base
        return table

    def without_heap(self, gone: list[Allocation]) -> Table:
        """Return the table without these, which kernels have from malloc."""
        missing = set(gone)
        left = [place for place, one in enumerate(self.allocations) if one not in missing]
        users = [self.users[place] for place in left]
        return self._spliced(slice(None), [self.allocations[place] for place in left], users)

    def with_part(self, array: Allocation, start: int, end: int, *, writable: bool) -> Table:
        """Return the table with another part of an array of the host, in one with the parts that it overlaps."""
        first, last = bisect_right(self.starts, start) - 1, bisect_left(self.starts, end)
        if first < 0 or self.allocations[first].end <= start:
            first += 1
        old, users = self.allocations[first:last], [user for one in self.users[first:last] for user in one]
        if len(old) == 1 and old[0].start <= start and end <= old[0].end and old[0].writable >= writable:
            merged = old[0]
        else:
            start_of_all, end_of_all = min([start, *(one.start for one in old)]), max([end, *(one.end for one in old)])
            writable = writable or any(one.writable for one in old)
            merged = array.lend(start_of_all, end_of_all, writable=writable)
        return self._spliced(slice(first, last), [merged], [(*users, start)])

    def users_of(self, allocation: Allocation | None) -> tuple[int, ...]:
        """Return the addresses given out for an allocation of the table; none for None."""
        return () if allocation is None else self.users[bisect_left(self.starts, allocation.start)]

    def without(self, allocation: Allocation, user: int) -> Table:
        """Return the table with a user less; the last one takes the allocation with it."""
        place = bisect_left(self.starts, allocation.start)
        users = list(self.users[place])
        users.remove(user)
        left = slice(place, place + 1)
        if users:
            return self._spliced(left, [self.allocations[place]], [tuple(users)])
        return self._spliced(left, [], [])

    def _spliced(self, places: slice, allocations: list[Allocation], users: list[tuple[int, ...]]) -> Table:
        table = Table(self.next_base)
        table.starts, table.allocations, table.users = [*self.starts], [*self.allocations], [*self.users]
        old = self.allocations[places]
        in_use = self.in_use - sum(one.size for one in old if not one.lent)
        table.in_use = in_use + sum(one.size for one in allocations if not one.lent)
        heap_in_use = self.heap_in_use - sum(one.size for one in old if one.heap)
        table.heap_in_use = heap_in_use + sum(one.size for one in allocations if one.heap)
        table.starts[places] = [one.start for one in allocations]
        table.allocations[places] = allocations
        table.users[places] = users
        return table

    def find(self, address: int) -> Allocation | None:
        """Return the allocation that holds the byte (or, if it is empty, starts) at `address`."""
        place = bisect_right(self.starts, address) - 1
        if place < 0:
            return None
        allocation = self.allocations[place]
        return allocation if address < allocation.end or address == allocation.start else None

    @cached_property
    def bounds(self) -> Bounds:
        """The same as arrays."""
        return Bounds(
            np.array(self.starts, np.uint64),
            np.array([one.end for one in self.allocations], np.uint64),
            np.array([one.base for one in self.allocations], np.uint64),
            np.array([one.is_const for one in self.allocations], np.bool_),
            np.array([one.writable for one in self.allocations], np.bool_),
        )
