"""The functions that a GPU's driver brings: vprintf and __assertfail, C++'s printf and assert; malloc, and free."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ptxrt.sim._instructions.c_format import Argument, FormatError, arguments, formatted
from ptxrt.sim._instructions.op import Op
from ptxrt.sim._machine.access import Access, window_of
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._machine.words import read_words
from ptxrt.sim._text.types import Array

__all__ = ["SYSTEM"]


def _vprintf(op: Op, given: Sequence[Getter]) -> Getter:
    """Print by a format at one address, with the arguments that lie at another, each aligned to its size."""
    read_format, read_arguments = given
    byte = op.builder.access(op.ins, "generic", 1, 1, False, 0)

    def run(m: Machine) -> Array:
        idx, count, lanes = m.idx, m.count, m.active()
        formats, place = read_format(m), m.spread(read_arguments(m)).view(np.uint64)
        texts = _strings(m, byte, formats.view(np.uint64))
        printed: list[bytes] = [b""] * count
        result = np.full(count, -1, np.int32)
        for text in dict.fromkeys(texts):
            if text is None:  # a null pointer
                continue
            those = np.array([lane for lane, own in enumerate(texts) if own == text])
            m.activate(lanes[those])
            try:
                columns = _arguments(m, byte, text, place[those])
                for lane, *values in zip(those.tolist(), *columns, strict=True):
                    printed[lane] = formatted(text, values)
            except FormatError as error:
                m.fault(op.ins, f"printf: {error}", int(m.active()[0]))
            result[those] = len(columns)
        m.idx, m.count = idx, count
        for block, text in zip(m.of_active(m.block).tolist(), printed, strict=True):
            m.printed.add(block, text)
        return result

    return run


def _arguments(m: Machine, byte: Access, text: bytes, place: Array) -> list[list[Argument]]:
    """Return the values of each argument, over the active lanes."""
    wanted = arguments(text)
    if wanted and not place.all():
        lane = int(m.active()[int((place == 0).nonzero()[0][0])])
        shown = text.decode(errors="backslashreplace")
        m.fault(byte.ins, f"printf: the format {shown!r} wants arguments, and there are none", lane)
    columns: list[list[Argument]] = []
    offset = 0
    for dtype, is_string in wanted:
        size = np.dtype(dtype).itemsize
        offset = -(-offset // size) * size
        where = place + np.uint64(offset)
        (words,) = read_words(m, byte._replace(size=size), where, size)
        values = m.spread(words).view(dtype)
        columns.append(list(_strings(m, byte, values)) if is_string else values.tolist())
        offset += size
    return columns


def _strings(m: Machine, byte: Access, where: Array) -> list[bytes | None]:
    """Return the string that each active lane's address points to, None for a null pointer."""
    idx, count, lanes = m.idx, m.count, m.active()
    if window_of(where[:1])[0] == 0 and (where == where[0]).all():  # one string, in memory that all lanes share
        lanes = lanes[:1]
    where = np.broadcast_to(where[: lanes.size], lanes.shape)
    found = [bytearray() for _ in lanes]
    live = where.nonzero()[0]
    length = 0
    while live.size:
        m.activate(lanes[live])
        values = m.spread(read_words(m, byte, where[live] + np.uint64(length), 1)[0])
        for lane, value in zip(live.tolist(), values.tolist(), strict=True):
            if value:
                found[lane].append(value)
        live = live[values != 0]
        length += 1
    m.idx, m.count = idx, count
    texts = [bytes(text) if at else None for text, at in zip(found, where.tolist(), strict=True)]
    return texts * (count // len(texts))


def _assertfail(op: Op, given: Sequence[Getter]) -> Getter:
    """Fail with the condition, the file, the line and the function of the first active lane."""
    condition, file, line, function, _ = given
    byte = op.builder.access(op.ins, "generic", 1, 1, False, 0)

    def run(m: Machine) -> Array:
        failed = m.count
        number = m.spread(line(m)).view(np.uint32)
        words = [m.spread(read(m)).view(np.uint64)[:1] for read in (condition, file, function)]
        m.activate(m.active()[:1])
        texts = [(_strings(m, byte, word)[0] or b"").decode(errors="replace") for word in words]
        m.assertion(op.ins, texts[0], file=texts[1], line=int(number[0]), function=texts[2], threads=failed)

    return run


def _malloc(op: Op, given: Sequence[Getter]) -> Getter:
    """Give each lane memory of its own, which lives until it is freed, also over launches; 0 where there is no more."""
    (size,) = given
    return lambda m: np.array(m.memory.allocate_heap(m.spread(size(m)).view(np.uint64).tolist()), np.uint64)


def _free(op: Op, given: Sequence[Getter]) -> Getter:
    """Free what malloc gave; a null pointer is nothing to free."""
    (where,) = given

    def run(m: Machine) -> Array:
        addresses = m.spread(where(m)).view(np.uint64)
        wrong = m.memory.free_heap(addresses.tolist())
        if wrong is not None:
            address = int(addresses[wrong])
            m.memory_fault(
                op.ins, "free of an address that malloc has not given, or that is free already",
                int(m.active()[wrong]), address, 0, m.memory.describe(address),
            )  # fmt: skip
        return addresses

    return run


SYSTEM: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[[Op, Sequence[Getter]], Getter]]] = {
    "vprintf": ((8, 8), (4,), _vprintf),
    "malloc": ((8,), (8,), _malloc),
    "free": ((8,), (), _free),
    "__assertfail": ((8, 8, 4, 8, 8), (), _assertfail),
}
"""By name: the sizes of the parameters and of the results, and what runs a call."""
