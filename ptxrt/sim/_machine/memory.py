"""The machine's global memory: allocations of their exact length, far apart, in a 64-bit address space of its own.

There is no lock: finalizers and signal handlers run in the middle of any function here, on the same thread, and both
may free and allocate memory. So what is allocated is a table that never changes. Whoever looks something up reads one
table from first to last, and a change puts the next one in its place, in one step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from ptxrt.errors import InvalidArgument, OutOfDeviceMemory
from ptxrt.sim._machine.allocations import Allocation, Table
from ptxrt.sim._machine.images import Handles
from ptxrt.sim._text.types import Array

__all__ = ["READ_ONLY_BIT", "GlobalMemory"]

BASE_ADDRESS = 0x7F00_0000_0000
READ_ONLY_BIT = 1 << 60
"""An address with this bit names the same bytes, for reading only."""

_POISON = 0xCD
_HEAP_BYTES = 8 << 20
_REMEMBERED = 65536

Result = TypeVar("Result")


class GlobalMemory:
    """Global memory of one simulated device.

    Parameters
    ----------
    limit_bytes
        What all live allocations together may hold; memory that the host lends does not count.

    Attributes
    ----------
    handles : Handles
        The textures and surfaces of the device.
    """

    def __init__(self, limit_bytes: int = 8 << 30) -> None:
        self.limit_bytes = limit_bytes
        self.handles = Handles()
        self._table = Table(BASE_ADDRESS)
        """The newest table, or one from which its successors lead there."""
        self._freed: deque[tuple[int, int, str]] = deque(maxlen=_REMEMBERED)

    @property
    def table(self) -> Table:
        """What is allocated now."""
        table = self._table
        while table.successor:
            table = table.successor["next"]
        return table

    def _change(self, change: Callable[[Table], tuple[Table, Result]]) -> Result:
        """Put the table that `change` makes in the place of the newest."""
        while True:
            before = self.table
            after, result = change(before)
            # setdefault is one step: where somebody else has put a successor there since, that one stays.
            if before.successor.setdefault("next", after) is after:
                self._table = after
                return result

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all live allocations, without what the host lends."""
        return self.table.in_use

    def allocate(self, nbytes: int, label: str = "allocation", *, is_const: bool = False) -> int:
        """Return the address of `nbytes` new bytes, a multiple of 512, filled with 0xCD.

        Raises
        ------
        InvalidArgument
            For a negative size.
        OutOfDeviceMemory
            Past the limit.
        """
        if nbytes < 0:
            raise InvalidArgument(op="allocate", argument="nbytes", expected="0 or more", given=nbytes)
        self._check_limit(self.table, nbytes)
        try:
            data = np.full(nbytes, _POISON, np.uint8)
        except MemoryError:
            raise OutOfDeviceMemory(
                f"allocate: the host has no {nbytes} bytes to lend", op="allocate", argument="nbytes", given=nbytes
            ) from None

        def add(table: Table) -> tuple[Table, int]:
            self._check_limit(table, nbytes)
            allocation = Allocation(table.next_base, data, label, is_const=is_const)
            return table.with_new(allocation, allocation.base), allocation.base

        return self._change(add)

    def _check_limit(self, table: Table, nbytes: int) -> None:
        if table.in_use + nbytes > self.limit_bytes:
            raise OutOfDeviceMemory(
                f"allocate: {nbytes} bytes asked for, {table.in_use} of {self.limit_bytes} are in use",
                op="allocate",
                argument="nbytes",
                expected=f"at most {self.limit_bytes - table.in_use}",
                given=nbytes,
            )

    def allocate_heap(self, sizes: Sequence[int]) -> list[int]:
        """Return the addresses that malloc gives threads, in one step; 0 for what is empty or does not fit any more."""

        def add(table: Table) -> tuple[Table, list[int]]:
            left = min(_HEAP_BYTES - table.heap_in_use, self.limit_bytes - table.in_use)
            base, new, addresses = table.next_base, list[Allocation](), list[int]()
            for nbytes in sizes:
                if not 0 < nbytes <= left:
                    addresses.append(0)
                    continue
                allocation = Allocation(base, np.full(nbytes, _POISON, np.uint8), "memory of malloc")
                allocation.heap = True
                new.append(allocation)
                addresses.append(base)
                left, base = left - nbytes, allocation.following
            return table.with_heap(new), addresses

        return self._change(add)

    def free_heap(self, addresses: Sequence[int]) -> int | None:
        """Free what malloc gave, in one step; null pointers are nothing to free.

        Returns
        -------
        int or None
            The place of the first address that malloc has not given, or that is free already: from there on nothing is
            freed. None if there is none.
        """

        def remove(table: Table) -> tuple[Table, tuple[list[Allocation], int | None]]:
            gone: dict[Allocation, None] = {}
            wrong = None
            for place, address in enumerate(addresses):
                found = table.find(address) if address else None
                if address and (found is None or not found.heap or found.start != address or found in gone):
                    wrong = place
                    break
                if found is not None:
                    gone[found] = None
            return table.without_heap([*gone]), ([*gone], wrong)

        freed, wrong = self._change(remove)
        self._freed.extend((one.start, one.end, one.label) for one in freed)
        return wrong

    def adopt(self, array: Array, label: str) -> int:
        """Map a C-contiguous host array, without a copy, and return its address; `free` takes it out again.

        Memory that is here already keeps its address: arrays that overlap on the host overlap here. That holds for all
        parts of one NumPy array, whichever comes first.

        Raises
        ------
        InvalidArgument
            For an array that is not C-contiguous, or that overlaps in part what is here already and is no part of the
            same NumPy array.
        """
        if not array.flags.c_contiguous:
            raise InvalidArgument(
                op="adopt", argument=label, expected="a C-contiguous array", given=f"strides {array.strides}"
            )
        whole = _whole(array)
        data = np.asarray(whole).reshape(-1, order="A").view(np.uint8) if whole.size else np.empty(0, np.uint8)
        host, nbytes, writable = _host_address(array), array.nbytes, bool(array.flags.writeable)

        def add(table: Table) -> tuple[Table, int]:
            known = _array_with(table, host, host + nbytes) if nbytes else None
            if known is not None:
                if writable and not known.bytes.flags.writeable:
                    raise _not_imported("memory of which no part is imported for reading only")
                start = known.base + host - known.host
                return table.with_part(known, start, start + nbytes, writable=writable), start
            new = Allocation(table.next_base, data, label)
            start = new.base + (host - new.host if nbytes else 0)
            return table.with_new(new.lend(start, start + nbytes, writable=writable), start), start

        return self._change(add)

    def free(self, address: int) -> None:
        """Release an allocation by the address that `allocate` or `adopt` gave.

        Memory that was adopted several times, or of which overlapping parts were, stays until the last is released.

        Raises
        ------
        InvalidArgument
            For an address that is not the start of a live allocation.
        """

        def remove(table: Table) -> tuple[Table, Allocation | None]:
            allocation = table.find(address)
            users = table.users_of(allocation)
            if allocation is None or address not in users:
                raise InvalidArgument(
                    op="free",
                    argument="address",
                    expected="the start of a live allocation",
                    given=f"{address:#x}, {self._describe(table, address)}",
                )
            return table.without(allocation, address), allocation if len(users) == 1 else None

        gone = self._change(remove)
        if gone is not None:
            self._freed.append((gone.start, gone.end, gone.label))

    def read_only(self, address: int) -> int:
        """Return another address of the same byte, through which a kernel cannot write."""
        return address | READ_ONLY_BIT

    def find(self, address: int) -> Allocation | None:
        """Return the live allocation that holds the byte (or, if it is empty, starts) at `address`."""
        table = self._table
        while table.successor:  # as the property does, without the call
            table = table.successor["next"]
        return table.find(address)

    def view(self, address: int, nbytes: int, writable: bool = False) -> Array:
        """Return the bytes themselves as uint8, not a copy.

        Raises
        ------
        InvalidArgument
            If they are not all inside one live allocation, or are to be written and are read-only.
        """
        table = self.table
        allocation = table.find(address)
        if allocation is None or nbytes < 0 or address + nbytes > allocation.end:
            raise InvalidArgument(
                op="view",
                argument="address",
                expected="bytes inside one live allocation",
                given=f"{nbytes} bytes at {address:#x}, {self._describe(table, address)}",
            )
        if writable and not allocation.writable:
            raise InvalidArgument(
                op="view", argument="address", expected="writable memory", given=f"{allocation.label}, read-only"
            )
        start = address - allocation.base
        data = allocation.bytes[start : start + nbytes]
        if writable:
            allocation.host_writes(start, nbytes)
        else:
            data = data.view()
            data.flags.writeable = False
        return data

    def describe(self, address: int) -> str:
        """Say in words where `address` lies: inside, past or before an allocation, live or freed."""
        return self._describe(self.table, address & ~READ_ONLY_BIT)

    def _describe(self, table: Table, address: int) -> str:
        inside = table.find(address)
        if inside is not None and address < inside.end:
            return f"{address - inside.start} bytes into {inside}"
        for start, end, label in reversed(self._freed.copy()):
            if start <= address < end:
                return f"inside freed {label} {start:#x} of {end - start} bytes"
        place = bisect_right(table.starts, address)
        near = []
        if place:
            before = table.allocations[place - 1]
            near.append((address - before.end, f"{address - before.end} bytes past the end of {before}"))
        if place < len(table.allocations):
            after = table.allocations[place]
            near.append((after.start - address, f"{after.start - address} bytes before {after}"))
        return min(near)[1] if near else "no memory is allocated"


def _host_address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _whole(array: Array) -> Array:
    """Return the NumPy array of which this one is a part, or itself, all bytes of it side by side."""
    whole, base = array, array.base
    while base is not None:
        if isinstance(base, np.ndarray):
            whole = base
        base = getattr(base, "base", None)  # of as_strided too, which puts an object of its own in between
    behind = _host_address(array) - _host_address(whole)
    side_by_side = whole.flags.forc and not whole.dtype.hasobject
    inside = behind >= 0 and behind + array.nbytes <= whole.nbytes
    return whole if side_by_side and inside and whole.flags.writeable >= array.flags.writeable else array


def _array_with(table: Table, first: int, end: int) -> Allocation | None:
    """Return an array of the host that has these bytes and is here, in parts at least; None where there is none.

    Raises
    ------
    InvalidArgument
        Where some of the bytes are accessible here, and the others have no place beside them.
    """
    having = [one for one in table.allocations if one.host <= first and end <= one.host + one.bytes.size]
    overlapping = [one for one in table.allocations if one.host_start < end and first < one.host_start + one.size]
    found = next(iter(overlapping or having), None)
    if found is not None and (found not in having or any(one.base != found.base for one in overlapping)):
        raise _not_imported("memory of which no part is imported, or of which all is a part of what is imported")
    return found


def _not_imported(expected: str) -> InvalidArgument:
    return InvalidArgument(
        op="from_dlpack",
        argument="x",
        expected=expected,
        given="an array that overlaps another import",
        fix="Import the whole array first and take parts of the result, or free the other import",
    )
