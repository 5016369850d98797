"""mov, ld, st, ldu, prefetch, isspacep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxrt.sim._instructions.op import Getter, Op, getter, instruction
from ptxrt.sim._machine.element_types import float_type
from ptxrt.sim._machine.spaces import RANK_SHIFT, Access, locate, window_of
from ptxrt.sim._text.program import Address, Name, Operand, Register, Sink, Symbol, Tuple, Variable
from ptxrt.sim._text.types import TYPES, Array, PtxType, word_type

if TYPE_CHECKING:
    from ptxrt.sim._machine.code import Step
    from ptxrt.sim._machine.lanes import Lanes

__all__ = ["address", "elements", "hinted", "in_order", "is_passed", "read_words", "space_of", "vector", "write_words"]

_SPACES = ("global", "shared", "local", "const", "param", "shared::cta", "shared::cluster", "param::entry",
           "param::func")  # fmt: skip
_ORDERS = {
    "ld": ("weak", "volatile", "relaxed", "acquire", "mmio"),
    "st": ("weak", "volatile", "relaxed", "release", "mmio"),
    "atom": ("relaxed", "acquire", "release", "acq_rel"),
    "red": ("relaxed", "release"),
}
_STRONG = frozenset(("volatile", "relaxed", "acquire", "release", "mmio", "acq_rel"))
_SCOPES = ("cta", "cluster", "gpu", "sys")
_CACHE = {"ld": ("ca", "cg", "cs", "lu", "cv", "nc", "unified"), "ldu": ("unified",), "st": ("wb", "cg", "cs", "wt")}
_POLICY = "L2::cache_hint"
_HINTS = ("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate",
          "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B",
          _POLICY)  # fmt: skip
_TYPES = ("b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
_U64 = TYPES["u64"]


# -- mov ---------------------------------------------------------------------------------------------------------


@instruction("mov")
def mov(op: Op) -> None:
    """Copy; ``{a, b}`` on one side packs or unpacks."""
    count = vector(op)
    kind = op.type("pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
    op.done(2)
    to, source = op.operand(0), op.operand(1)
    if isinstance(source, Name) and source.text in op.decoder.module.functions:
        if kind.bits != 64 or not kind.is_int:
            op.fail(f"the address of the function {source.text} has 64 bits")
        value = np.array([op.decoder.module.function_address(source.text)], np.uint64).view(kind.dtype)
        op.compute(op.dest(0, kind), [getter(op.decoder.constant(value), kind, kind)], np.copy)
        return
    if count > 1:
        moves = zip(elements(op, 0, count), elements(op, 1, count), strict=True)
        both = [(op.dest(one, kind), op.source(other, kind)) for one, other in moves]

        def each(m: Lanes) -> None:
            # All are read before any is written: one may stand on both sides.
            for (write, _), value in zip(both, [np.copy(read(m)) for _, read in both], strict=True):
                write(m, value)

        op.emit(each)
    elif isinstance(source, Tuple):
        _pack(op, kind, source)
    elif isinstance(to, Tuple):
        _unpack(op, kind, to)
    else:
        op.compute(op.dest(0, kind), [op.source(1, kind, special=True)], np.copy)


def _parts(op: Op, kind: PtxType, operand: Tuple) -> PtxType:
    """Return the type of the elements of a pack."""
    count = len(operand.items)
    if kind.kind != "b" or count not in (2, 4) or kind.bits // count < 8:
        op.fail("a pack is mov.b16, .b32, .b64 or .b128 with 2 or 4 elements")
    _alike(op, operand)
    return TYPES[f"b{kind.bits // count}"]


def _alike(op: Op, operand: Tuple) -> None:
    names = {item.type.name for item in operand.items if isinstance(item, Register)}
    if len(names) > 1:
        op.fail(f"the elements of a vector have one type, not {' and '.join(f'.{name}' for name in sorted(names))}")


def _pack(op: Op, kind: PtxType, operand: Tuple) -> None:
    part = _parts(op, kind, operand)
    read = [op.source(item, part) for item in operand.items]

    def side_by_side(*values: Array) -> Array:
        return np.ascontiguousarray(np.stack(np.broadcast_arrays(*values), 1)).view(kind.dtype).reshape(-1)

    def compute(*values: Array) -> Array:
        result = np.zeros(1, kind.dtype)
        for place, value in enumerate(values):
            result = result | (value.astype(kind.dtype) << kind.dtype.type(place * part.bits))
        return result

    op.compute(op.dest(0, kind), read, side_by_side if kind.bits == 128 else compute)


def _unpack(op: Op, kind: PtxType, operand: Tuple) -> None:
    part = _parts(op, kind, operand)
    write = [op.dest(item, part) for item in operand.items]
    read = op.source(1, kind)

    def step(m: Lanes) -> None:
        value = read(m)
        if kind.bits == 128:
            for one, column in zip(write, np.copy(value).view(part.dtype).reshape(-1, len(write)).T, strict=True):
                one(m, np.ascontiguousarray(column))
            return
        for place, one in enumerate(write):
            one(m, (value >> kind.dtype.type(place * part.bits)).astype(part.dtype))

    op.emit(step)


def is_passed(op: Op, variable: Variable) -> bool:
    """Tell whether a variable is a parameter of a call, not of the entry."""
    function = op.decoder.frame.function
    return variable.space == "param" and not (function.is_entry and variable in function.params)


# -- memory ------------------------------------------------------------------------------------------------------


def is_strong(op: Op) -> bool:
    """Tell whether the access is ordered (volatile, relaxed, ...) and so does not race with others like it."""
    return not _STRONG.isdisjoint(op.ins.modifiers)


def in_order(op: Op, step: Step) -> Step:
    """Return the step with the fences that .release and .acquire are to the race models."""
    names = op.ins.modifiers
    releases = "release" in names or "acq_rel" in names
    acquires = "acquire" in names or "acq_rel" in names
    if not releases and not acquires:
        return step
    wide = "cta" not in names

    def ordered(m: Lanes) -> None:
        if releases:
            m.fence(wide=wide)
        step(m)
        if acquires:
            m.fence(wide=wide)

    return ordered


def _check_order(op: Op, orders: set[str], scope: str | None, space: str) -> None:
    """Check which order, scope and cache operator go together."""
    ordered = bool(orders - {"weak", "volatile"})
    if ordered and scope is None:
        op.fail(f"{op.ins.name}.{min(orders)} takes a scope: .cta, .cluster, .gpu or .sys")
    if scope is not None and not ordered:
        op.fail(f"{op.ins.name}.{scope} takes an order such as .relaxed")
    stem = space.partition("::")[0]
    if orders == {"volatile"} and stem == "local":
        op.needs(f"{op.ins.name}.volatile.local", 0, (9, 1))
    elif orders - {"weak"} and stem not in ("generic", "global", "shared"):
        op.fail(f"{op.ins.name}.{min(orders)} is for .global and .shared")
    if orders - {"weak"}:
        return
    while (cache := op.choice(*_CACHE[op.ins.name])) is not None:
        if cache == "nc" and space != "global":
            op.fail("ld.nc is for .global")


def space_of(op: Op) -> str:
    """Return the state space named by the modifiers, or ``generic``; steps over ordering and cache modifiers."""
    space = op.choice(*_SPACES)
    name = op.ins.name
    orders = {order for order in _ORDERS.get(name, ()) if op.flag(order)}
    scope = op.choice(*_SCOPES)
    while op.flag(*_HINTS):
        pass
    if name in ("ld", "st"):
        _check_order(op, orders, scope, space or "generic")
    else:
        op.flag(*_CACHE.get(name, ()))
    return space if space == "shared::cluster" else (space or "generic").partition("::")[0]


def hinted(op: Op, operands: int, space: str) -> None:
    """Check the number of operands: one more, a cache policy, with .L2::cache_hint."""
    if _POLICY not in op.ins.modifiers:
        op.done(operands)
        return
    op.done(operands + 1)
    if space not in ("generic", "global"):
        op.fail(f"{op.ins.name} takes .{_POLICY} in .global only")
    op.source(operands, TYPES["b64"])


@instruction("createpolicy")
def createpolicy(op: Op) -> None:
    """A cache policy: a value that means nothing here."""
    how = op.choice("fractional", "range", "cvt")
    kind = op.type("b64")
    while op.flag(*_HINTS, "L2::evict_unchanged", "L2", "global"):
        pass
    write = op.dest(0, kind)
    if how == "fractional":
        op.done(1, 2)
        if len(op.ins.operands) == 2:
            op.source(1, TYPES["f32"])
    elif how == "range":
        op.done(4)
        address(op, 1, "global")
        for place in (2, 3):
            op.source(place, TYPES["u32"])
    elif how == "cvt":
        op.done(2)
        op.source(1, kind)
    else:
        op.fail("createpolicy takes .fractional, .range or .cvt")
    op.emit(lambda m: write(m, np.zeros(1, kind.dtype)))


def address(op: Op, place: int, space: str) -> tuple[Getter, int]:
    """Return the reader of an address register (or of a variable's address) and the constant offset."""
    operand = op.operand(place)
    if isinstance(operand, Symbol) and operand.indexed:
        operand = Address(operand.variable, operand.addend)
    if not isinstance(operand, Address):
        op.fail(f"{op.ins.name} takes an address in brackets as operand {place + 1}")
    base = operand.base
    if isinstance(base, Register):
        kind = base.type
        if not kind.is_int or kind.bits > 64:
            op.fail(f"{base.name} is .{kind.name} and cannot hold an address")
        if kind.bits < 64 and space in ("generic", "global", "const", "param"):
            op.fail(f"{base.name} is .{kind.name}; an address of .{space} has 64 bits")
        return getter(op.decoder.register(base), kind, kind), operand.offset
    if isinstance(base, Variable):
        # Parameters have no generic address without cvta.
        if space.partition("::")[0] != base.space and (space != "generic" or base.space == "param"):
            op.fail(f"{base.name} is in .{base.space}, and {op.ins.opcode} is for .{space}")
        slot = op.decoder.symbol(Symbol(base, 0), _U64, generic=space == "generic")
        return getter(slot, _U64, _U64), operand.offset
    if space != "local":
        op.fail("a number can be an address in .local only")
    return getter(op.decoder.constant(np.zeros(1, np.uint64)), _U64, _U64), operand.offset


def read_words(m: Lanes, access: Access, where: Array, word: int) -> list[Array]:
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


def write_words(m: Lanes, access: Access, where: Array, values: list[Array]) -> None:
    """Write unsigned words for each active lane; of lanes that write to one address the last wins."""
    word = values[0].dtype.itemsize
    shift = word.bit_length() - 1
    for piece in locate(m, access, where):
        words = piece.store.words(word)
        index = piece.at >> shift if shift else piece.at
        for place, value in enumerate(values):
            part = value if piece.lanes is None or value.shape[0] == 1 else value[piece.lanes]
            words[index + place if place else index] = part[-1:] if index.shape[0] == 1 else part


def vector(op: Op) -> int:
    """Return how many elements the modifier .v2, .v4 or .v8 says; 1 for none."""
    given = op.choice("v2", "v4", "v8")
    return int(given[1:]) if given else 1


def elements(op: Op, place: int, count: int) -> tuple[Operand, ...]:
    """Return the elements of an operand that is a vector, or the operand itself where `count` is 1."""
    operand = op.operand(place)
    if count == 1:
        if isinstance(operand, Tuple) and len(operand.items) == 1:
            return operand.items
        return (operand,)
    if not isinstance(operand, Tuple) or len(operand.items) != count:
        op.fail(f"{op.ins.opcode} takes a vector of {count} elements")
    _alike(op, operand)
    return operand.items


def _check_width(op: Op, kind: PtxType, count: int, space: str) -> None:
    module = op.decoder.module
    newer = module.target_number >= 100 and module.version >= (8, 8)
    wide = newer and kind.size >= 4 and space in ("generic", "global")
    if kind.size * count > (32 if wide else 16) or (count == 8 and kind.size != 4):
        op.fail(
            f"{op.ins.opcode} moves {kind.size * count} bytes; 16 is the most "
            "(32 in .global from .target sm_100 and .version 8.8 on)"
        )


def _passed(op: Op, place: int, space: str) -> tuple[Getter, int] | None:
    """Return address and offset in local memory where the operand is a parameter of a call: those live there."""
    operand = op.operand(place)
    if space != "param" or not isinstance(operand, Address) or not isinstance(operand.base, Variable):
        return None
    if not is_passed(op, operand.base):
        return None
    return getter(op.decoder.home(operand.base), _U64, _U64), operand.offset


def _moved(kind: PtxType, count: int) -> str:
    """Return the floating-point type that ld and st name; none for a vector, in which compilers move any bytes."""
    return float_type(kind) if count == 1 else ""


@instruction("ld", "ldu")
def ld(op: Op) -> None:
    """Load one value or a vector."""
    space = space_of(op)
    count = vector(op)
    kind = op.type(*_TYPES)
    if kind.bits == 128:
        op.needs(op.ins.opcode, 70, (8, 3))
    hinted(op, 2, space)
    _check_width(op, kind, count, space)
    write = [op.dest(item, kind, wider=True) for item in elements(op, 0, count)]
    passed = _passed(op, 1, space)
    where, offset = passed or address(op, 1, space)
    if passed:
        space = "local"
    access = op.decoder.access(
        op.ins, space, kind.size * count, kind.size, False, offset, strong=is_strong(op), float_type=_moved(kind, count)
    )
    word, dtype = kind.size, kind.dtype
    if count == 1:
        single = write[0]
        op.emit(in_order(op, lambda m: single(m, read_words(m, access, where(m), word)[0].view(dtype))))
        return

    def step(m: Lanes) -> None:
        for one, value in zip(write, read_words(m, access, where(m), word), strict=True):
            one(m, value.view(dtype))

    op.emit(in_order(op, step))


@instruction("st")
def st(op: Op) -> None:
    """Store one value or a vector."""
    space = space_of(op)
    count = vector(op)
    kind = op.type(*_TYPES)
    if kind.bits == 128:
        op.needs(op.ins.opcode, 70, (8, 3))
    hinted(op, 2, space)
    _check_width(op, kind, count, space)
    items = elements(op, 1, count)
    if any(isinstance(item, Sink) for item in items):
        op.fail("a value to store is missing")
    read = [op.source(item, kind, wider=True) for item in items]
    passed = _passed(op, 0, space)
    if space in ("const", "param") and not passed:
        op.fail(f"st cannot write to .{space}")
    where, offset = passed or address(op, 0, space)
    if passed:
        space = "local"
    access = op.decoder.access(
        op.ins, space, kind.size * count, kind.size, True, offset, strong=is_strong(op), float_type=_moved(kind, count)
    )
    unsigned = word_type(kind.size)

    def step(m: Lanes) -> None:
        write_words(m, access, where(m), [one(m).view(unsigned) for one in read])

    op.emit(in_order(op, step))


@instruction("prefetch", "prefetchu")
def prefetch(op: Op) -> None:
    """Nothing to do: there are no caches."""
    space = space_of(op)
    op.flag("L1", "L2", "tensormap")
    op.done(1)
    address(op, 0, space)


@instruction("isspacep")
def isspacep(op: Op) -> None:
    """Tell whether a generic address is in a state space."""
    space = op.choice(*_SPACES)
    if space is None:
        op.fail("isspacep names a state space")
    op.done(2)
    write, read = op.dest(0, TYPES["pred"]), op.source(1, _U64)
    if space in ("shared", "shared::cta"):

        def own(m: Lanes) -> None:
            value = read(m)
            rank = (value >> np.uint64(RANK_SHIFT) & np.uint64(0xFF)).astype(np.int64) - 1
            here = m.of_active(m.block) % m.job.shape.cluster_blocks
            write(m, (window_of(value) == 1) & ((rank < 0) | (rank == here)))

        op.emit(own)
    elif space == "const":

        def constant(m: Lanes) -> None:
            value = read(m)
            found = np.zeros(value.shape[0], np.bool_)
            for variable, base in m.job.addresses.items():
                if variable.space == "const":
                    found |= (value >= np.uint64(base)) & (value < np.uint64(base + variable.size))
            write(m, found)

        op.emit(constant)
    else:
        number = {"shared::cluster": 1, "local": 2, "param": 4}.get(
            space.partition("::")[0] if "param" in space else space, 0
        )
        op.compute(write, [read], lambda a: window_of(a) == np.uint64(number))
