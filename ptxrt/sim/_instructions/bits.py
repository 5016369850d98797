"""Bits: and, or, xor, not, cnot, shifts, fields, counts, lop3, prmt."""

from __future__ import annotations

import numpy as np

from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Pair, Sink
from ptxrt.sim._text.types import TYPES, Array

__all__: list[str] = []

_BITS = ("b16", "b32", "b64")
_U32 = TYPES["u32"]
_REVERSED = np.array([int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8)


@instruction("and", "or", "xor")
def logic(op: Op) -> None:
    """Bitwise, and on predicates."""
    kind = op.type("pred", *_BITS)
    compute = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op.ins.name]
    op.lanewise(kind, (kind, kind), compute)


@instruction("not")
def invert(op: Op) -> None:
    """Bitwise, and on predicates."""
    kind = op.type("pred", *_BITS)
    op.lanewise(kind, (kind,), np.invert)


@instruction("cnot")
def cnot(op: Op) -> None:
    """``d = (a == 0)``."""
    kind = op.type(*_BITS)
    op.lanewise(kind, (kind,), lambda a: (a == 0).astype(kind.dtype))


def _amount(count: Array, dtype: np.dtype[np.generic]) -> Array:
    """Return shift counts in the type of what is shifted; NumPy shifts everything out at the width or more."""
    return np.asarray(np.minimum(count, np.uint32(64)).astype(dtype))


@instruction("shl", "shr")
def shift(op: Op) -> None:
    """Counts above the width shift everything out."""
    left = op.ins.name == "shl"
    kind = op.type(*_BITS) if left else op.type(*_BITS, "u16", "u32", "u64", "s16", "s32", "s64")
    compute = np.left_shift if left else np.right_shift
    op.lanewise(kind, (kind, _U32), lambda a, n: compute(a, _amount(n, a.dtype)))


def _ones(length: Array, dtype: np.dtype[np.generic]) -> Array:
    """Return so many ones at the low end."""
    one = dtype.type(1)
    return np.asarray(np.left_shift(one, _amount(length, dtype)) - one)


def _field(number: Array, bits: int) -> Array:
    """Return a position or a length: the low 8 bits, but of 64-bit fields all, as on an H200 (the ISA says 8 too)."""
    return np.asarray(number & np.uint32(0xFF) if bits == 32 else np.minimum(number, np.uint32(0xFF)))


@instruction("bfe")
def bfe(op: Op) -> None:
    """Extract a bit field; a signed one is extended from its top bit."""
    kind = op.type("u32", "u64", "s32", "s64")
    unsigned = np.dtype(f"u{kind.size}")
    top = kind.bits - 1

    def compute(a: Array, start: Array, length: Array) -> Array:
        pos, count = _field(start, kind.bits), _field(length, kind.bits)
        bits = a.view(unsigned)
        mask = _ones(count, unsigned)
        field = np.right_shift(bits, _amount(pos, unsigned)) & mask
        if not kind.signed:
            return np.asarray(field.view(kind.dtype))
        sign_at = np.minimum(pos + count - np.uint32(1), np.uint32(top))
        negative = (np.right_shift(bits, _amount(sign_at, unsigned)) & unsigned.type(1)).astype(np.bool_) & (count > 0)
        own = mask & np.right_shift(~unsigned.type(0), _amount(pos, unsigned))
        return np.asarray(np.where(negative, field | ~own, field).view(kind.dtype))

    op.lanewise(kind, (kind, _U32, _U32), compute)
    for place in (2, 3):
        op.bounded(place, 0, 255)


def _wraps(op: Op) -> bool:
    how = op.choice("clamp", "wrap")
    if how is None:
        op.fail(f"{op.ins.name} takes .clamp or .wrap")
    return how == "wrap"


@instruction("bmsk")
def bmsk(op: Op) -> None:
    """So many ones from a position on; .clamp stops both at 32, .wrap takes them modulo 32."""
    wraps = _wraps(op)
    kind = op.type("b32")

    def compute(start: Array, length: Array) -> Array:
        if wraps:
            start, length = start & np.uint32(31), length & np.uint32(31)
        return np.asarray(np.left_shift(_ones(length, kind.dtype), _amount(start, kind.dtype)))

    op.lanewise(kind, (kind, kind), compute)


@instruction("szext")
def szext(op: Op) -> None:
    """Extend the low bits with zeros or their sign; .clamp stops their number at 32, .wrap takes it modulo 32."""
    wraps = _wraps(op)
    kind = op.type("u32", "s32")

    def compute(a: Array, number: Array) -> Array:
        count = number & np.uint32(31) if wraps else number
        mask = _ones(count, np.dtype(np.uint32))
        field = a.view(np.uint32) & mask
        if kind.signed:
            top = mask & ~(mask >> np.uint32(1))
            field = np.where((field & top) != 0, field | ~mask, field)
        return np.asarray(field.view(kind.dtype))

    op.lanewise(kind, (kind, _U32), compute)


@instruction("bfi")
def bfi(op: Op) -> None:
    """Insert the low bits of a into b."""
    kind = op.type("b32", "b64")

    def compute(a: Array, b: Array, start: Array, length: Array) -> Array:
        pos = _amount(_field(start, kind.bits), kind.dtype)
        mask = _ones(_field(length, kind.bits), kind.dtype)
        return np.asarray(((a & mask) << pos) | (b & ~(mask << pos)))

    op.lanewise(kind, (kind, kind, _U32, _U32), compute)
    for place in (3, 4):
        op.bounded(place, 0, 255)


def _highest(value: Array) -> Array:
    """Return the place of the highest bit as int64, -1 for zero."""
    if value.dtype.itemsize == 8:
        upper = (value >> np.uint64(32)).astype(np.float64)
        lower = (value & np.uint64(0xFFFFFFFF)).astype(np.float64)
        return np.asarray(np.where(upper > 0, np.frexp(upper)[1] + 31, np.frexp(lower)[1] - 1))
    return np.asarray(np.frexp(value.astype(np.float64))[1] - 1)


@instruction("bfind")
def bfind(op: Op) -> None:
    """Place of the highest bit that is not the sign, or 0xffffffff."""
    as_shift = op.flag("shiftamt")
    kind = op.type("u32", "u64", "s32", "s64")

    def compute(a: Array) -> Array:
        bits = a.view(f"u{kind.size}")
        if kind.signed:
            bits = np.where(a < 0, ~bits, bits)
        place = _highest(bits)
        if as_shift:
            place = np.asarray(np.where(place >= 0, kind.bits - 1 - place, place))
        return np.asarray(place.astype(np.int32).view(np.uint32))

    op.lanewise(_U32, (kind,), compute)


@instruction("clz")
def clz(op: Op) -> None:
    """Leading zeros."""
    kind = op.type("b32", "b64")
    op.lanewise(_U32, (kind,), lambda a: (kind.bits - 1 - _highest(a)).astype(np.uint32))


@instruction("fns")
def fns(op: Op) -> None:
    """Place of the n-th one of a word, counted from a place on, upwards, or downwards for a negative n."""
    kind = op.type("b32")

    def compute(mask: Array, base: Array, offset: Array) -> Array:
        # Upwards all that is below the base is cleared; downwards the word is turned round first.
        down = offset < 0
        count = np.maximum(np.abs(offset.astype(np.int64)), 1)
        base = np.minimum(base, np.uint32(32))
        word = np.where(down, _REVERSED[mask.view(np.uint8)].view(np.uint32).byteswap(), mask)
        start = np.where(down, np.uint32(31) - np.minimum(base, np.uint32(31)), base)
        word = (word >> _amount(start, word.dtype)) << _amount(start, word.dtype)
        word, count, down, base, offset = np.broadcast_arrays(word, count, down, base, offset)
        places = np.cumsum((word[:, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1), axis=1) >= count[:, None]
        place = places.argmax(axis=1)
        found = places.any(axis=1) & (base < 32) & ((offset != 0) | (place == base))
        return np.where(found, np.where(down, 31 - place, place), -1).astype(np.int32).view(np.uint32)

    op.lanewise(kind, (kind, kind, TYPES["s32"]), compute)


@instruction("popc")
def popc(op: Op) -> None:
    """Number of ones."""
    kind = op.type("b32", "b64")

    def compute(a: Array) -> Array:
        halves = a.view(np.uint32).reshape(a.shape[0], -1)
        x = halves - ((halves >> np.uint32(1)) & np.uint32(0x55555555))
        x = (x & np.uint32(0x33333333)) + ((x >> np.uint32(2)) & np.uint32(0x33333333))
        x = (x + (x >> np.uint32(4))) & np.uint32(0x0F0F0F0F)
        return np.asarray(((x * np.uint32(0x01010101)) >> np.uint32(24)).sum(axis=1).astype(np.uint32))

    op.lanewise(_U32, (kind,), compute)


@instruction("brev")
def brev(op: Op) -> None:
    """Bits in reverse order."""
    kind = op.type("b32", "b64")
    op.lanewise(kind, (kind,), lambda a: _REVERSED[a.view(np.uint8)].view(kind.dtype).byteswap())


@instruction("lop3")
def lop3(op: Op) -> None:
    """Any logic of three operands, by its truth table; ``.or`` and ``.and`` with a predicate of the result."""
    joined = op.choice("or", "and")
    kind = op.type("b32")
    op.done(5 if joined is None else 6)
    table = op.integer(4)
    if not 0 <= table <= 255:
        op.fail(f"the truth table of lop3 is {table}, not within 0 to 255")

    def compute(a: Array, b: Array, c: Array) -> Array:
        result = np.zeros(1, kind.dtype)
        for row in range(8):
            if table >> row & 1:
                result = result | ((a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c))
        return result

    read = [op.source(place, kind) for place in (1, 2, 3)]
    if joined is None:
        op.compute(op.dest(0, kind), read, compute)
        return
    pair = op.operand(0)
    if not isinstance(pair, Pair):
        op.fail(f"lop3.{joined} gives d|p")
    if isinstance(pair.second, Sink):
        op.fail(f"lop3.{joined} gives a predicate, which cannot be left out")
    write, write_flag, read_flag = (
        op.dest(pair.first, kind),
        op.dest(pair.second, TYPES["pred"]),
        op.source(5, TYPES["pred"]),
    )
    join = np.logical_or if joined == "or" else np.logical_and

    def step(m: Machine) -> None:
        value = compute(*[one(m) for one in read])
        flag = join(value != 0, read_flag(m))
        write(m, value)
        write_flag(m, np.asarray(flag))

    op.emit(step)


_PRMT_TABLES = {
    "f4e": ((3, 2, 1, 0), (4, 3, 2, 1), (5, 4, 3, 2), (6, 5, 4, 3)),
    "b4e": ((5, 6, 7, 0), (6, 7, 0, 1), (7, 0, 1, 2), (0, 1, 2, 3)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((3, 2, 1, 0), (3, 2, 1, 1), (3, 2, 2, 2), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (1, 1, 1, 0), (2, 2, 1, 0), (3, 2, 1, 0)),
    "rc16": ((1, 0, 1, 0), (3, 2, 3, 2), (1, 0, 1, 0), (3, 2, 3, 2)),
}
"""Bytes from the highest to the lowest of the result, as the manual prints them."""


@instruction("prmt")
def prmt(op: Op) -> None:
    """Pick four bytes of eight; bit 3 of a selector spreads the byte's sign."""
    kind = op.type("b32")
    mode = op.choice(*_PRMT_TABLES)
    rows = _PRMT_TABLES.get(mode or "", ())

    def compute(a: Array, b: Array, selector: Array) -> Array:
        both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
        result = np.zeros(1, np.uint32)
        for place in range(4):
            if mode is None:
                code = (selector >> np.uint32(4 * place)) & np.uint32(15)
                number, spread = code & np.uint32(7), code > 7
            else:
                picks = np.array([row[3 - place] for row in rows], np.uint32)
                number, spread = picks[selector & np.uint32(3)], np.zeros(1, np.bool_)
            byte = ((both >> (number.astype(np.uint64) * np.uint64(8))) & np.uint64(0xFF)).astype(np.uint32)
            byte = np.where(spread, (byte >> np.uint32(7)) * np.uint32(0xFF), byte)
            result = result | (byte << np.uint32(8 * place))
        return result

    op.lanewise(kind, (kind, kind, kind), compute)


@instruction("shf")
def shf(op: Op) -> None:
    """Funnel shift: the upper half of b:a shifted left, or the lower half shifted right."""
    way = op.choice("l", "r")
    limit = op.choice("wrap", "clamp")
    kind = op.type("b32")
    if way is None or limit is None:
        op.fail("shf takes .l or .r, then .wrap or .clamp")

    def compute(a: Array, b: Array, count: Array) -> Array:
        n = np.minimum(count, np.uint32(32)) if limit == "clamp" else count & np.uint32(31)
        both = a.astype(np.uint64) | (b.astype(np.uint64) << np.uint64(32))
        if way == "r":
            return np.asarray((both >> n.astype(np.uint64)).astype(np.uint32))
        return np.asarray(((both << n.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32))

    op.lanewise(kind, (kind, kind, _U32), compute)
