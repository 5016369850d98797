"""The machine's global memory: what is freed and allocated in the middle of its work, and what the host lends."""

from __future__ import annotations

import gc
import random
import sys
import threading
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import pytest
from helpers import Patch

import ptxrt
from ptxrt.backends.sim import BACKEND
from ptxrt.errors import InvalidArgument, OutOfDeviceMemory
from ptxrt.sim import GlobalMemory
from ptxrt.sim._machine import allocations
from ptxrt.sim._machine import memory as memory_module

# What the collector, a signal handler or another thread does in between ---------------------------------------------


@pytest.fixture
def memory() -> GlobalMemory:
    return GlobalMemory()


Actions: TypeAlias = list[Callable[[], object]]


def found(memory: GlobalMemory, address: int) -> allocations.Allocation:
    allocation = memory.find(address)
    assert allocation is not None
    return allocation


LOOKUPS: dict[str, Callable[[GlobalMemory, int], object]] = {
    "find": lambda memory, address: found(memory, address).start,
    "view": lambda memory, address: memory.view(address, 4).tolist(),
    "describe": lambda memory, address: memory.describe(address + 1),
    "free": lambda memory, address: memory.free(address),
}


@pytest.mark.parametrize("lookup", LOOKUPS)
def test_a_lookup_finds_its_allocation_whatever_is_freed(memory: GlobalMemory, lookup: str, monkeypatch: Patch) -> None:
    before, address, behind = (memory.allocate(1 << 14, name) for name in ("before", "the one", "behind"))
    memory.view(address, 4, writable=True)[:] = [1, 2, 3, 4]
    expected = LOOKUPS[lookup](memory, address) if lookup != "free" else None
    left = [before]

    def interrupted(starts: list[int], at: int) -> int:
        place = bisect_right(starts, at)
        if left:
            memory.free(left.pop())
        return place

    monkeypatch.setattr(allocations, "bisect_right", interrupted)
    assert LOOKUPS[lookup](memory, address) == expected
    assert not left
    assert memory.find(before) is None
    assert found(memory, behind).label == "behind"
    assert (memory.find(address) is None) == (lookup == "free")


def test_bounds_and_allocations_are_of_one_moment(memory: GlobalMemory) -> None:
    addresses = [memory.allocate(8) for _ in range(3)]
    table = memory.table
    memory.free(addresses[0])
    assert table.bounds.starts.tolist() == [one.start for one in table.allocations] == addresses


@pytest.fixture
def interruption(monkeypatch: Patch) -> Iterator[Actions]:
    """What is put in this list is done in the middle of the next change, where it makes its allocation."""
    waiting: Actions = []

    class Interrupted(allocations.Allocation):
        def __init__(self, *args: Any, **how: Any) -> None:
            super().__init__(*args, **how)
            while waiting:
                waiting.pop()()

    monkeypatch.setattr(memory_module, "Allocation", Interrupted)
    yield waiting
    assert not waiting


def test_an_allocation_stands_whatever_is_freed_meanwhile(memory: GlobalMemory, interruption: Actions) -> None:
    old, inner = memory.allocate(100), []

    def handler() -> None:
        inner.append(memory.allocate(10, "inner"))
        memory.free(old)

    interruption.append(handler)
    outer = memory.allocate(1, "outer")
    assert [found(memory, address).label for address in (*inner, outer)] == ["inner", "outer"]
    assert memory.find(old) is None
    assert memory.bytes_in_use == 11


def test_the_limit_holds_whatever_is_allocated_in_the_middle(interruption: Actions) -> None:
    memory = GlobalMemory(limit_bytes=100)
    interruption.append(lambda: memory.allocate(60))
    with pytest.raises(OutOfDeviceMemory, match="60 of 100 are in use"):
        memory.allocate(60)
    assert memory.bytes_in_use == 60


def test_tables_of_the_past_are_forgotten(memory: GlobalMemory) -> None:
    memory.free(memory.allocate(8))
    assert memory._table is memory.table


def test_an_import_stands_whatever_is_allocated_meanwhile(memory: GlobalMemory, interruption: Actions) -> None:
    host, inner = np.arange(4), []
    interruption.append(lambda: inner.append(memory.adopt(host, "inner")))
    assert [memory.adopt(host, "outer")] == inner


def test_threads_allocate_and_free_at_once(memory: GlobalMemory) -> None:
    def work() -> None:
        for size in range(200):
            addresses = [memory.allocate(size) for _ in range(3)]
            assert [found(memory, address).start for address in addresses] == addresses
            for address in addresses[1:]:
                memory.free(address)

    threads = [threading.Thread(target=work) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(memory.table.allocations) == len(set(memory.table.starts)) == 800
    assert memory.bytes_in_use == 4 * sum(range(200))


class _Cycle:
    def __init__(self, arrays: list[ptxrt.DeviceArray]) -> None:
        self.arrays, self.itself = arrays, self


def test_arrays_in_reference_cycles_are_collected_at_any_moment() -> None:
    device, rng, threshold = ptxrt.Device("sim:0"), random.Random(1), gc.get_threshold()
    large = np.full(4096, -1, np.float32)
    memory = BACKEND._memory(device.ordinal)
    gc.collect()
    in_use = memory.bytes_in_use
    try:
        for number in range(3000):
            cycle = _Cycle([ptxrt.empty(8, "f32", device) for _ in range(rng.randrange(1, 4))])
            x = ptxrt.to_device(np.full(8, number, np.float32), device)
            behind = [ptxrt.to_device(large, device) for _ in range(3)]
            gc.disable()
            gc.collect(0)
            del cycle
            gc.set_threshold(rng.randrange(2, 60))
            gc.enable()
            filler: list[Any] = [[] for _ in range(rng.randrange(8))]  # the collector comes at another moment each time
            assert (x.to_host() == number).all()
            del behind, filler
    finally:
        gc.set_threshold(*threshold)
    del x
    gc.collect()
    assert memory.bytes_in_use == in_use


def test_an_allocation_that_fails_does_not_count(interruption: Actions) -> None:
    memory = GlobalMemory(limit_bytes=100)

    def fail() -> None:
        raise MemoryError

    interruption.append(fail)
    with pytest.raises(MemoryError):
        memory.allocate(60)
    assert memory.bytes_in_use == 0
    memory.allocate(60)
    with pytest.raises(OutOfDeviceMemory, match="60 of 100 are in use"):
        memory.allocate(60)
    assert memory.bytes_in_use == 60


# Memory that the host lends -----------------------------------------------------------------------------------------


def test_memory_that_is_lent_twice_has_one_address_until_both_are_freed(memory: GlobalMemory) -> None:
    host = np.arange(8)
    alive = weakref.ref(host)
    first, second = memory.adopt(host, "a"), memory.adopt(host[:], "b")
    assert first == second
    del host
    memory.free(first)
    assert memory.view(second, 64).view(np.int64).tolist() == list(range(8))
    memory.free(second)
    assert alive() is None
    with pytest.raises(InvalidArgument):
        memory.free(first)


PARTS = {
    "the whole first": [slice(0, 64), slice(8, 24)],
    "a part first": [slice(8, 24), slice(0, 64)],
    "two that overlap": [slice(8, 24), slice(16, 40)],
    "two that overlap, the later first": [slice(16, 40), slice(8, 24)],
    "two with a gap, and one over both": [slice(40, 48), slice(0, 8), slice(4, 44)],
    "two with a gap, and the whole": [slice(0, 8), slice(40, 48), slice(0, 64)],
    "side by side": [slice(0, 8), slice(8, 16)],
    "one twice, and the whole": [slice(8, 16), slice(8, 16), slice(0, 64)],
}


@pytest.mark.parametrize("kind", [np.uint8, np.float64])
@pytest.mark.parametrize("case", PARTS)
def test_parts_of_an_array_lie_to_each_other_as_on_the_host(memory: GlobalMemory, case: Any, kind: Any) -> None:
    memory.adopt(np.zeros(3), "something else")
    host = np.arange(64).astype(kind)
    size, parts = host.itemsize, PARTS[case]
    addresses = [memory.adopt(host[part], case) for part in parts]
    origin = addresses[0] - parts[0].start * size
    assert [address - origin for address in addresses] == [part.start * size for part in parts]
    for part, address in zip(parts, addresses, strict=True):
        assert np.array_equal(memory.view(address, size * (part.stop - part.start)).view(kind), host[part])
    shared = {index for part in parts for index in range(part.start, part.stop)}
    assert {index for index in range(64) if memory.find(origin + index * size)} == shared
    for address in addresses:
        assert memory.find(address) is not None
        memory.free(address)
    assert len(memory.table.allocations) == 1


def test_bytes_of_an_array_that_are_not_lent_are_out_of_reach(memory: GlobalMemory) -> None:
    host = np.zeros(64, np.uint8)
    address = memory.adopt(host[16:32], "lent")
    memory.adopt(host[40:], "more")
    assert memory.find(address - 1) is memory.find(address + 16) is None
    assert memory.describe(address + 18) == f"2 bytes past the end of lent {address:#x} of 16 bytes"
    with pytest.raises(InvalidArgument):
        memory.view(address, 17)


def test_an_array_transposed_or_seen_as_another_type_is_the_same_memory(memory: GlobalMemory) -> None:
    host = np.asfortranarray(np.zeros((4, 4), np.float32))
    assert memory.adopt(host.T, "transposed") == memory.adopt(host.T.view(np.uint32), "bits")


def test_an_array_with_strides_of_its_own_is_a_part_of_the_one_it_was_made_from(memory: GlobalMemory) -> None:
    host = np.zeros((4, 4), np.float32)
    strided = np.lib.stride_tricks.as_strided(host[1:], (4,), (4,))
    assert memory.adopt(strided, "strided") == memory.adopt(host, "whole") + 16


@pytest.mark.parametrize(("first", "second"), [(slice(2, 4), slice(0, 8)), (slice(0, 4), slice(2, 6))])
def test_memory_of_no_array_that_overlaps_in_part_is_refused(memory: GlobalMemory, first: Any, second: Any) -> None:
    lent = bytearray(64)  # NumPy does not say that two arrays over it are parts of one

    def array(part: slice) -> np.ndarray[Any, Any]:
        return np.frombuffer(lent, np.uint64, part.stop - part.start, 8 * part.start)

    address = memory.adopt(array(first), "first")
    assert memory.adopt(array(slice(3, 4)), "inside") == address + 8 * (3 - first.start)
    with pytest.raises(InvalidArgument, match="Import the whole array first"):
        memory.adopt(array(second), "second")
    assert len(memory.table.allocations) == 1
    memory.free(address)
    memory.free(address + 8 * (3 - first.start))
    memory.adopt(array(second), "second")


@pytest.mark.parametrize("third", ["of the first", "of the second"])
def test_memory_that_overlaps_two_arrays_is_refused(memory: GlobalMemory, third: str) -> None:
    lent = bytearray(64)
    first, second = np.frombuffer(lent, np.uint8, 16), np.frombuffer(lent, np.uint8)
    memory.adopt(first[:4], "beginning")
    memory.adopt(second[10:40], "middle")
    with pytest.raises(InvalidArgument, match="Import the whole array first"):
        memory.adopt(first[2:12] if third == "of the first" else second[2:12], third)


def test_an_array_whose_base_is_something_else_stands_for_itself(memory: GlobalMemory) -> None:
    class Holder:
        def __init__(self, array: np.ndarray[Any, Any], base: np.ndarray[Any, Any]) -> None:
            self.__array_interface__, self.base, self.alive = array.__array_interface__, base, array

    one, two = np.arange(8), np.arange(8, 16)
    for array, base in ((one, two), (two, one)):
        address = memory.adopt(np.asarray(Holder(array, base)), "odd")
        assert memory.view(address, 64).view(np.int64).tolist() == array.tolist()


@pytest.mark.parametrize("order", [1, -1])
def test_what_one_import_may_write_can_be_written_in_all(memory: GlobalMemory, order: int) -> None:
    host = np.zeros(8, np.uint8)
    readonly = host[:]
    readonly.flags.writeable = False
    for part in [readonly, host[2:4]][::order]:
        memory.adopt(part, "a part")
    memory.view(memory.table.starts[0], 8, writable=True)[:] = 1
    assert host.all()


def test_a_part_that_may_be_written_of_an_array_that_may_not(memory: GlobalMemory) -> None:
    host = np.zeros(8, np.uint8)
    part = host[2:4]
    host.flags.writeable = False
    memory.view(memory.adopt(part, "a part"), 2, writable=True)[:] = 1
    assert host.tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


def test_what_one_import_may_write_can_be_written(memory: GlobalMemory) -> None:
    host = np.zeros(8, np.uint8)
    readonly = host[:]
    readonly.flags.writeable = False
    address = memory.adopt(readonly, "readonly")
    assert not found(memory, address).writable
    memory.adopt(host, "writable")
    memory.view(address, 8, writable=True)[:] = 1
    assert host.all()


def test_an_array_made_writable_since_it_was_imported_is_refused(memory: GlobalMemory) -> None:
    host = np.zeros(8, np.uint8)
    host.flags.writeable = False
    memory.adopt(host, "readonly")
    host.flags.writeable = True
    with pytest.raises(InvalidArgument, match="for reading only"):
        memory.adopt(host, "writable")


def test_memory_of_the_device_that_comes_back_from_the_host_keeps_its_address(memory: GlobalMemory) -> None:
    address = memory.allocate(64)
    host = memory.view(address, 64, writable=True)
    assert memory.adopt(host[8:16], "back") == address + 8
    memory.free(address)
    assert memory.view(address + 8, 8).tolist() == [0xCD] * 8
    memory.free(address + 8)
    assert memory.bytes_in_use == 0
    assert memory.find(address) is None
