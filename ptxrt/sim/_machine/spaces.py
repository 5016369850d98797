"""Addresses of lanes to bytes, every one of them checked."""

from __future__ import annotations

from typing import NoReturn, cast

import numpy as np

from ptxrt.sim._machine.access import RANK_SHIFT, Access, Piece, window_of
from ptxrt.sim._machine.allocations import Allocation, Store
from ptxrt.sim._machine.memory import READ_ONLY_BIT
from ptxrt.sim._machine.protocol import Spaces
from ptxrt.sim._text.types import Array
from ptxrt.sim._text.windows import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW

__all__ = ["locate"]

_MASK64 = (1 << 64) - 1
_WINDOWS = {0: "global", 1: "shared::cluster", 2: "local", 4: "param"}
_UNDER_WAY = 2  # the mark of a byte to which a copy is under way; of one that is written 1, of any other 0
_SORTED_FROM = 16
"""From so many allocations on it is faster to sort the lanes by them than to look for those of each."""
_BASES = {"shared::cluster": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW}


def locate(m: Spaces, access: Access, address: Array) -> list[Piece]:
    """Return where the active lanes' bytes are.

    Parameters
    ----------
    address
        What the address register holds, of shape (active,) or (1,); ``access.offset`` is still to be added.

    Raises
    ------
    MemoryFault
        For the first lane whose access is outside, across an end, misaligned, or forbidden.
    """
    if access.space in ("shared", "shared::cluster"):
        return [_shared(m, access, address)]
    if access.space in ("global", "const"):
        pieces = _global(m, access, _as_u64(address))
        if access.float_type and m.elements:
            _check_elements(m, access, pieces)
        if m.watched:
            _watch(m, access, pieces)
        elif access.writes:
            for piece in pieces:
                cast(Allocation, piece.store).written = True  # nobody has looked which bytes
        if m.profile is not None:
            m.profile.global_access(m, access, pieces)
        return pieces
    if access.space == "generic":
        return _generic(m, access, _as_u64(address))
    return [_private(m, access, address)]


def _as_u64(address: Array) -> Array:
    if address.dtype == np.uint64:
        return address
    if address.dtype.itemsize == 8:
        return address.view(np.uint64)
    return address.view(f"u{address.dtype.itemsize}").astype(np.uint64)


def _lane(m: Spaces, place: int, lanes: int) -> int:
    """Return the lane behind a place among the addresses."""
    return int(m.active()[place if lanes > 1 or m.count == 1 else 0])


def _first(bad: Array) -> int:
    return int(bad.nonzero()[0][0])


def _as_offsets(address: Array, offset: int) -> Array:
    # A register of 32 bits may lie below the window by what the offset adds.
    place = (address.view(np.int32) if address.dtype.itemsize == 4 else address).astype(np.int64)
    return place + offset if offset else place


def _shared(m: Spaces, access: Access, address: Array) -> Piece:
    place = _as_offsets(address, access.offset)
    total = m.shape.shared_total
    size = access.size
    if int(place.min()) < 0 or int(place.max()) + size > total or int(np.bitwise_or.reduce(place)) & (size - 1):
        if access.space == "shared::cluster" and m.shape.cluster_blocks > 1:
            return _cluster(m, access, place)
        _bad_window(m, access, place, total, "shared")
    if m.races is not None:
        m.races.check(access, place)
    if m.cluster_races is not None:
        m.cluster_races.check(access, place, m.of_active(m.block))
    if m.profile is not None:
        m.profile.shared_access(m, access, place)
    at = place + m.of_active(m.block) * m.shared_stride if m.blocks > 1 else place
    if m.shared_marks is not None:
        _check_written(m, access, m.shared_marks, at, None, place)
        m.looked(access.size * m.count)
    return Piece(m.shared, at, None)


def _cluster(m: Spaces, access: Access, place: Array) -> Piece:
    """Shared memory of another block of the cluster, as mapa gives its addresses: 1 + rank in the upper byte.

    Of the race models that of clusters alone looks at such accesses.
    """
    rank, inside = (place >> RANK_SHIFT) - 1, place & ((1 << RANK_SHIFT) - 1)
    total, size, blocks = m.shape.shared_total, access.size, m.shape.cluster_blocks
    outside = (place < 0) | (rank >= blocks) | (inside + size > total)
    bad = outside | ((inside & (size - 1)) != 0)
    if bad.any():
        first = _first(bad)
        _bad_window(m, access, np.where(outside, place, inside)[first : first + 1], total, "shared",
                    _lane(m, first, place.shape[0]))  # fmt: skip
    own = m.of_active(m.block)
    block = np.where(rank < 0, own, own // blocks * blocks + rank)
    gone = np.bincount(m.block, minlength=m.blocks)[block] == 0
    if gone.any():
        first = _first(gone)
        m.memory_fault(
            access.ins,
            f"{access.verb} of {size} bytes of the shared memory of a block whose threads have all exited",
            _lane(m, first, place.shape[0]),
            int(place[first if place.shape[0] > 1 else 0]),
            size,
            m.layout.nearest("shared", int(inside[first if place.shape[0] > 1 else 0]), m.shape.shared_total),
        )
    if m.cluster_races is not None:
        m.cluster_races.check(access, inside, block, mapped=True)
    at = inside + block * m.shared_stride
    if m.shared_marks is not None:
        _check_written(m, access, m.shared_marks, at, None, place)
        m.looked(access.size * m.count)
    return Piece(m.shared, at, None)


def _watch(m: Spaces, access: Access, pieces: list[Piece]) -> None:
    """Make the checks of global memory that cost time."""
    for piece in pieces:
        allocation = cast(Allocation, piece.store)
        if m.marks:
            marks = allocation.marks()
            if marks is not None:
                _check_written(m, access, marks, piece.at, piece.lanes, piece.at, allocation)
        elif access.writes:
            allocation.written = True
        if m.global_races is not None:
            m.global_races.check(m, access, allocation, piece.at, piece.lanes)
    m.looked(access.size * m.count)


def _check_written(
    m: Spaces, access: Access, marks: Store, at: Array, lanes: Array | None, place: Array,
    allocation: Allocation | None = None,
) -> None:  # fmt: skip
    """Check that every byte read has been written, and that no copy to any is under way; mark those written now."""
    word = min(access.size, 8)
    full = 0x0101010101010101 & ((1 << 8 * word) - 1)
    under_way = _UNDER_WAY * full
    reads = access.atomic or not access.writes
    looks = reads or (allocation is None and not access.arrives)  # copies are under way to shared memory alone
    words, first = marks.words(word), at // word
    for index in (first + step for step in range(access.size // word)):
        if looks:
            found = words[index]
            wrong = found != full if reads else (found & under_way) != 0
            if wrong.any():
                lane = _first(wrong)
                _no_value(m, access, lane, at, lanes, place, allocation, bool(int(found[lane]) & under_way))
        if access.writes:
            words[index] = under_way if access.pending else full


def _no_value(
    m: Spaces, access: Access, lane: int, at: Array, lanes: Array | None, place: Array, allocation: Allocation | None,
    under_way: bool,
) -> NoReturn:  # fmt: skip
    """Raise MemoryFault for bytes that nobody has written, or to which a copy is under way, of a lane of `at`."""
    address = int(place[lane if place.shape[0] > 1 else 0])
    if allocation is None:
        near = m.layout.nearest("shared", address & ((1 << RANK_SHIFT) - 1), m.shape.shared_total)
    else:
        address += allocation.base
        near = m.memory.describe(address)
    what = "shared" if allocation is None else "global"
    why = "that nobody has written, or not all of them"
    if under_way:
        why = "to which an asynchronous copy is under way: its thread has to wait for it first"
    known = lane if lanes is None else int(lanes[lane])
    m.memory_fault(access.ins, f"{access.verb} of {access.size} bytes of {what} memory {why}",
                   _lane(m, known, at.shape[0]), address, access.size, near, m.off_switch)  # fmt: skip


def _private(m: Spaces, access: Access, address: Array) -> Piece:
    """Local memory is a lane's own; parameters are the same for all."""
    place = _as_offsets(address, access.offset)
    total = m.layout.local_bytes if access.space == "local" else m.params.bytes.size
    size = access.size
    if int(place.min()) < 0 or int(place.max()) + size > total or int(np.bitwise_or.reduce(place)) & (size - 1):
        _bad_window(m, access, place, total, access.space)
    if access.space == "param":
        if access.writes:
            m.memory_fault(access.ins, "write to a parameter", _lane(m, 0, 1), int(place[0]), size, "kernel parameters")
        return Piece(m.params, place, None)
    return Piece(m.local, place + m.of_active(m.origin) * m.layout.local_stride, None)


def _bad_window(m: Spaces, access: Access, place: Array, total: int, space: str, lane: int | None = None) -> None:
    size = access.size
    outside = (place < 0) | (place + size > total)
    bad = outside | ((place & (size - 1)) != 0)
    first = _first(bad)
    at = int(place[first])
    if not outside[first]:
        problem = f"{access.verb} of {size} bytes at {space} address {at:#x}, which is not a multiple of {size}"
    else:
        problem = f"{access.verb} of {size} bytes outside the {total} bytes of {space} memory"
    lane = _lane(m, first, place.shape[0]) if lane is None else lane
    m.memory_fault(access.ins, problem, lane, at, size, m.layout.nearest(space, at, m.shape.shared_total))


def _global(m: Spaces, access: Access, address: Array) -> list[Piece]:
    offset, size = access.offset, access.size
    low = int(address.min()) + offset
    high = int(address.max()) + offset
    alias = low & READ_ONLY_BIT
    allocation = m.memory.find(low - alias)
    if (
        allocation is None
        or high - alias + size > allocation.end
        or (access.writes and (alias or allocation.is_const or not allocation.writable))
        or (access.space == "const" and not allocation.is_const)
    ):
        return _scattered(m, access, address)
    index = address - np.uint64((allocation.base + alias - offset) & _MASK64)
    # Bases are multiples of 512, so that the offset is aligned where the address is.
    if size > 1 and int(np.bitwise_or.reduce(index)) & (size - 1):
        return _scattered(m, access, address)
    return [Piece(allocation, index.view(np.int64), None)]


def _scattered(m: Spaces, access: Access, address: Array) -> list[Piece]:
    """The general way: each lane may be in an allocation of its own, or at fault."""
    exact = address + np.uint64(access.offset & _MASK64)
    alias = (exact & np.uint64(READ_ONLY_BIT)) != 0
    plain = exact & np.uint64(READ_ONLY_BIT ^ _MASK64)
    table = m.memory.table
    live, bounds = table.allocations, table.bounds
    size = access.size
    if not live:
        _bad_global(m, access, plain, 0, None, False)
    place = np.searchsorted(bounds.starts, plain, side="right").astype(np.int64) - 1
    inside = place >= 0
    place = np.maximum(place, 0)
    ends = bounds.ends[place]
    inside &= (plain < ends) & (ends - plain >= np.uint64(size))
    bad = ~inside | ((plain & np.uint64(size - 1)) != 0)
    const = bounds.is_const[place]
    if access.writes:
        bad |= alias | const | ~bounds.writable[place]
    if access.space == "const":
        bad |= ~const
    index = (plain - bounds.bases[place]).view(np.int64)
    if bad.any():
        if access.float_type and m.elements:
            # With elements of another size than the array's an access leaves it before long: this is the reason.
            _check_elements(m, access, _pieces(live, np.where(inside, place, -1), index, np.unique(place[inside])))
        first = _first(bad)
        _bad_global(m, access, plain, first, live[int(place[first])] if inside[first] else None, bool(alias[first]))
    if address.shape[0] == 1:
        return [Piece(live[int(place[0])], index, None)]
    return _pieces(live, place, index, np.unique(place))


def _pieces(live: list[Allocation], place: Array, index: Array, numbers: Array) -> list[Piece]:
    """Return the pieces in the allocations of these numbers; `place` has each lane's."""
    if numbers.shape[0] < _SORTED_FROM:
        lanes = [(place == number).nonzero()[0] for number in numbers]
    else:  # as after malloc in each lane
        order = place.argsort(kind="stable")
        ordered = place[order]
        begins, ends = ordered.searchsorted(numbers, "left"), ordered.searchsorted(numbers, "right")
        lanes = [order[begin:end] for begin, end in zip(begins, ends, strict=True)]
    return [Piece(live[int(number)], index[which], which) for number, which in zip(numbers, lanes, strict=True)]


def _check_elements(m: Spaces, access: Access, pieces: list[Piece]) -> None:
    """Check that the access has the floating-point type that the signature declares for the array."""
    for piece in pieces:
        allocation = cast(Allocation, piece.store)
        elements = m.elements.get(allocation)
        found = None if elements is None else elements.contradicted(access.float_type, piece.at)
        if found is None:
            continue
        place, array = found
        address = allocation.base + int(piece.at[place])
        lane = place if piece.lanes is None else int(piece.lanes[place])
        m.memory_fault(
            access.ins,
            f"{access.verb} of .{access.float_type} in {array.name}, which the signature declares as {array.element}*",
            _lane(m, lane, m.count if piece.lanes is not None else piece.at.shape[0]),
            address,
            access.size,
            m.memory.describe(address),
            fix=f"Access {array.element} elements in the text, or declare {access.float_type}* in the signature",
        )


def _bad_global(m: Spaces, access: Access, plain: Array, first: int, inside: Allocation | None, alias: bool) -> None:
    at, size = int(plain[first]), access.size
    memory = m.memory
    start = memory.find(at)
    if inside is None and start is not None and at < start.end:
        problem = f"{access.verb} of {size} bytes across the end of an allocation"
    elif inside is None:
        problem = f"{access.verb} of {size} bytes outside every allocation"
        if at < 4096:
            problem += " (a null pointer?)"
    elif at & (size - 1):
        problem = f"{access.verb} of {size} bytes at an address that is not a multiple of {size}"
    elif access.space == "const" and not inside.is_const:
        problem = f"{access.verb} of .const memory at an address that is not in it"
    elif inside.is_const:
        problem = f"{access.verb} to .const memory"
    elif alias:
        problem = f"{access.verb} through a pointer that the Signature calls const"
    else:
        problem = f"{access.verb} to memory that the host lent for reading only"
    m.memory_fault(access.ins, problem, _lane(m, first, plain.shape[0]), at, size, memory.describe(at))


def _generic(m: Spaces, access: Access, address: Array) -> list[Piece]:
    # Which window it is, the whole address tells: the register alone may lie outside.
    low = int(address.min()) + access.offset
    high = int(address.max()) + access.offset
    if low >> 56 == high >> 56:
        space = _WINDOWS.get(low >> 56 & 7, "global")
        part = access._replace(space=space)
        if space == "global":
            return locate(m, part, address)
        return locate(m, part, address - np.uint64(_BASES[space]))
    window = window_of(address + np.uint64(access.offset & _MASK64))
    found = []
    outer_idx, outer_count, written = m.idx, m.count, m.written
    active = m.active()
    for number in np.unique(window):
        lanes = (window == number).nonzero()[0]
        space = _WINDOWS.get(int(number), "global")
        m.idx, m.count = active[lanes], lanes.shape[0]
        if written is not None:
            m.written = [value if value.shape[0] == 1 else value[lanes] for value in written]
        part = access._replace(space=space)
        inside = address[lanes] - np.uint64(_BASES.get(space, 0))
        for piece in locate(m, part, inside):
            within = lanes if piece.lanes is None else lanes[piece.lanes]
            found.append(Piece(piece.store, piece.at, within))
    m.idx, m.count, m.written = outer_idx, outer_count, written
    return found
