"""The machine's global memory: allocations of their exact length, far apart, in a 64-bit address space of its own."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque

import numpy as np

from ptxrt.errors import InvalidArgument, OutOfDeviceMemory
from ptxrt.sim._text.types import Array, word_type

__all__ = ["READ_ONLY_BIT", "Allocation", "GlobalMemory", "Store"]

BASE_ADDRESS = 0x7F00_0000_0000
READ_ONLY_BIT = 1 << 60
"""An address with this bit names the same bytes, for reading only."""

_ALIGN = 512
_GUARD = 4096
_POISON = 0xCD
_REMEMBERED = 65536


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
    """A live or freed piece of global memory."""

    def __init__(self, base: int, data: Array, label: str, *, writable: bool = True, is_const: bool = False) -> None:
        super().__init__(data)
        self.base = base
        self.size = data.size
        self.label = label
        self.writable = writable
        self.is_const = is_const
        self.adopted = False
        self.written: Store | bool = True
        """Which bytes have been written, a 1 for each that has; True for all of them, False for none."""

    @property
    def end(self) -> int:
        """The first address behind it."""
        return self.base + self.size

    def marks(self) -> Store | None:
        """Return the bytes' marks of having been written; None where all have been."""
        if self.written is True:
            return None
        if self.written is False:
            # Zeros that are never touched take no memory.
            self.written = Store(np.zeros(self.size, np.uint8))
        return self.written

    def host_writes(self, start: int, nbytes: int) -> None:
        """Note that the host may write these bytes."""
        if nbytes == self.size:
            self.written = True
        marks = self.marks()
        if marks is not None:
            marks.bytes[start : start + nbytes] = 1


class GlobalMemory:
    """Global memory of one simulated device.

    Parameters
    ----------
    limit_bytes
        What all live allocations together may hold; adopted arrays do not count.
    """

    def __init__(self, limit_bytes: int = 8 << 30) -> None:
        self.limit_bytes = limit_bytes
        self._next = BASE_ADDRESS
        self._bases: list[int] = []
        self._live: list[Allocation] = []
        self._freed: deque[tuple[int, int, str]] = deque(maxlen=_REMEMBERED)
        self._in_use = 0
        self._lock = threading.RLock()

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all live allocations, without adopted arrays."""
        return self._in_use

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
        with self._lock:
            if self._in_use + nbytes > self.limit_bytes:
                raise OutOfDeviceMemory(
                    f"allocate: {nbytes} bytes asked for, {self._in_use} of {self.limit_bytes} are in use",
                    op="allocate",
                    argument="nbytes",
                    expected=f"at most {self.limit_bytes - self._in_use}",
                    given=nbytes,
                )
            try:
                data = np.full(nbytes, _POISON, np.uint8)
            except MemoryError:
                raise OutOfDeviceMemory(
                    f"allocate: the host has no {nbytes} bytes to lend", op="allocate", argument="nbytes", given=nbytes
                ) from None
            self._in_use += nbytes
            allocation = self._map(data, label, writable=True, is_const=is_const)
            allocation.written = False
            return allocation.base

    def adopt(self, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]], label: str) -> int:
        """Map a C-contiguous host array, without a copy, and return its address; `free` takes it out again.

        Raises
        ------
        InvalidArgument
            For an array that is not C-contiguous.
        """
        if not array.flags.c_contiguous:
            raise InvalidArgument(
                op="adopt", argument=label, expected="a C-contiguous array", given=f"strides {array.strides}"
            )
        data = array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)
        with self._lock:
            allocation = self._map(data, label, writable=bool(array.flags.writeable), is_const=False)
            allocation.adopted = True
            return allocation.base

    def _map(self, data: Array, label: str, *, writable: bool, is_const: bool) -> Allocation:
        base = self._next
        self._next = -(-(base + data.size + _GUARD) // _ALIGN) * _ALIGN
        allocation = Allocation(base, data, label, writable=writable, is_const=is_const)
        self._bases.append(base)  # addresses only grow, so the list stays sorted and freed ones never come back
        self._live.append(allocation)
        return allocation

    def free(self, address: int) -> None:
        """Release an allocation by the address that `allocate` or `adopt` gave.

        Raises
        ------
        InvalidArgument
            For an address that is not the start of a live allocation.
        """
        with self._lock:
            allocation = self.find(address)
            if allocation is None or allocation.base != address:
                raise InvalidArgument(
                    op="free",
                    argument="address",
                    expected="the start of a live allocation",
                    given=f"{address:#x}, {self.describe(address)}",
                )
            place = bisect_right(self._bases, address) - 1
            del self._bases[place], self._live[place]
            self._freed.append((allocation.base, allocation.end, allocation.label))
            if not allocation.adopted:
                self._in_use -= allocation.size

    def read_only(self, address: int) -> int:
        """Return another address of the same byte, through which a kernel cannot write."""
        return address | READ_ONLY_BIT

    def find(self, address: int) -> Allocation | None:
        """Return the live allocation that holds the byte (or, if it is empty, starts) at `address`."""
        with self._lock:
            place = bisect_right(self._bases, address) - 1
            if place < 0:
                return None
            allocation = self._live[place]
            return allocation if address < allocation.end or address == allocation.base else None

    def view(self, address: int, nbytes: int, writable: bool = False) -> Array:
        """Return the bytes themselves as uint8, not a copy.

        Raises
        ------
        InvalidArgument
            If they are not all inside one live allocation, or are to be written and are read-only.
        """
        with self._lock:
            allocation = self.find(address)
            if allocation is None or nbytes < 0 or address + nbytes > allocation.end:
                raise InvalidArgument(
                    op="view",
                    argument="address",
                    expected="bytes inside one live allocation",
                    given=f"{nbytes} bytes at {address:#x}, {self.describe(address)}",
                )
            if writable and not allocation.writable:
                raise InvalidArgument(
                    op="view", argument="address", expected="writable memory", given=f"{allocation.label}, read-only"
                )
            start = address - allocation.base
            data = allocation.bytes[start : start + nbytes]
            if writable:
                allocation.host_writes(start, nbytes)
            if not writable:
                data = data.view()
                data.flags.writeable = False
            return data

    def describe(self, address: int) -> str:
        """Say in words where `address` lies: inside, past or before an allocation, live or freed."""
        with self._lock:
            address &= ~READ_ONLY_BIT
            inside = self.find(address)
            if inside is not None and address < inside.end:
                return f"{address - inside.base} bytes into {inside.label} {inside.base:#x} of {inside.size} bytes"
            for base, end, label in reversed(self._freed):
                if base <= address < end:
                    return f"inside freed {label} {base:#x} of {end - base} bytes"
            place = bisect_right(self._bases, address)
            near = []
            if place:
                before = self._live[place - 1]
                past = address - before.end
                near.append(
                    (past, f"{past} bytes past the end of {before.label} {before.base:#x} of {before.size} bytes")
                )
            if place < len(self._live):
                after = self._live[place]
                gap = after.base - address
                near.append((gap, f"{gap} bytes before {after.label} {after.base:#x} of {after.size} bytes"))
            if not near:
                return "no memory is allocated"
            return min(near)[1]

    def bounds(self) -> tuple[Array, list[Allocation]]:
        """Return the sorted bases as uint64, and the allocations in that order."""
        with self._lock:
            return np.array(self._bases, np.uint64), list(self._live)
