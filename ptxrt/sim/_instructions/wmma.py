"""wmma: matrices moved between memory and the lanes of a warp, and multiplied; ``wmma_layouts`` says who has what."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import numpy as np

from ptxrt.sim._instructions.addressing import address
from ptxrt.sim._instructions.matrix_moves import transposed
from ptxrt.sim._instructions.mma import values
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.tensor_cores import Kinds, multiply_add
from ptxrt.sim._instructions.vectors import fragment
from ptxrt.sim._instructions.warp import whole_warps
from ptxrt.sim._instructions.wmma_layouts import BITS, Layout, Piece, layout
from ptxrt.sim._machine.access import Access
from ptxrt.sim._machine.protocol import Getter, Machine, Setter
from ptxrt.sim._machine.words import read_words, write_words
from ptxrt.sim._text.syntax import Immediate, Operand
from ptxrt.sim._text.types import TYPES, Array, PtxType, word_type

__all__: list[str] = []

_Need = tuple[int, tuple[int, int]]
_Sizes = tuple[int, int, int]

_WIDE = ("m16n16k16", "m32n8k16", "m8n32k16")
_HALVES: dict[str, _Need] = {"m16n16k16": (70, (6, 0)), "m32n8k16": (70, (6, 1)), "m8n32k16": (70, (6, 1))}
_EIGHTHS: dict[str, _Need] = dict.fromkeys(_WIDE, (72, (6, 3)))
_FOURTHS: dict[str, _Need] = {"m8n8k32": (75, (6, 3))}
_FACTORS: dict[str, dict[str, _Need]] = {
    "f16": _HALVES,
    "bf16": dict.fromkeys(_WIDE, (80, (7, 0))),
    "tf32": {"m16n16k8": (80, (7, 0))},
    "f64": {"m8n8k4": (80, (7, 0))},
    **dict.fromkeys(("u8", "s8"), _EIGHTHS),
    **dict.fromkeys(("u4", "s4"), _FOURTHS),
    "b1": {"m8n8k128": (75, (6, 3))},
}
"""The shapes for each type of a and b, and the target and version that each wants, as ptxas has it."""

_SUMS: dict[str, dict[str, _Need]] = {
    "f16": _HALVES,
    "f32": {**_HALVES, **_FACTORS["tf32"]},
    "f64": _FACTORS["f64"],
    "s32": {**_EIGHTHS, **_FOURTHS, **_FACTORS["b1"]},
}
"""The same of c and d."""

_RESULTS = {"f16": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",)}
"""What sums there are of products of floats; those of integers are s32."""

_IN_MEMORY = {"f16": "f16", "bf16": "bf16", "tf32": "f32", "f32": "f32", "f64": "f64"}
"""The floating-point types of arrays that elements of these types are moved from and to."""

_REGISTERS = {"f16": TYPES["f16x2"], "f32": TYPES["f32"], "f64": TYPES["f64"]}
"""As what registers of an element's type must agree; those not named here are .b32, or integers."""


@instruction("wmma")
def wmma(op: Op) -> None:
    """``wmma.load``, ``wmma.store`` and ``wmma.mma``."""
    what = op.choice("load", "store", "mma")
    if what is None:
        op.fail("wmma takes .load, .store or .mma")
    if not op.flag("sync"):
        op.fail("wmma takes .sync")
    if op.flag("aligned") is not (op.builder.module.version >= (6, 3)):
        op.fail("wmma takes .aligned from .version 6.3 on, and only then")
    if what == "mma":
        _mma(op)
    else:
        _move(op, what)


def _modifiers(op: Op, names: tuple[str, ...], count: int, what: str) -> list[str]:
    """Return those modifiers that are among the names, which must be so many, in their order."""
    found = [name for name in op.ins.modifiers if name in names]
    if len(found) != count:
        op.fail(f"wmma takes {what}")
    for name in found:
        op.choice(name)
    return found


def _shape(op: Op, kind: str, shapes: dict[str, _Need]) -> _Sizes:
    """Return m, n and k; check that there is this shape for elements of this type."""
    given = next((name for name in op.ins.modifiers if re.fullmatch("m[0-9]+n[0-9]+k[0-9]+", name)), None)
    if given not in shapes:
        op.fail(f"wmma with .{kind} takes .{', .'.join(shapes)}, not {'.' + given if given else 'no shape'}")
    op.choice(given)
    op.needs(f"wmma.{given} of .{kind}", *shapes[given])
    m, n, k = map(int, re.findall("[0-9]+", given))
    return m, n, k


def _check_layouts(op: Op, kind: str, of: dict[str, str]) -> None:
    """Check that factors of less than 8 bits lie as they must: a row by row, b column by column."""
    for role, only in (("a", "row"), ("b", "col")):
        if BITS[kind] < 8 and of.get(role, only) != only:
            op.fail(f"wmma takes {role} of .{kind} as .{only}")


# -- load and store ------------------------------------------------------------------------------------------------


def _move(op: Op, what: str) -> None:
    """Move a matrix between memory and registers."""
    writes = what == "store"
    (role,) = _modifiers(op, ("d",) if writes else ("a", "b", "c"), 1, "which matrix: .load.a, .b or .c, or .store.d")
    (order,) = _modifiers(op, ("row", "col"), 1, "one layout: .row or .col")
    kinds = _FACTORS if role in "ab" else _SUMS
    (kind,) = _modifiers(op, tuple(kinds), 1, f"one type of {role}: .{', .'.join(kinds)}")
    sizes = _shape(op, kind, kinds[kind])
    _check_layouts(op, kind, {role: order})
    by_rows = order == "row"

    def held(arch: int) -> Layout:
        return layout(role if role in "ab" else "c", sizes, kind, arch, by_rows=by_rows)

    space = "shared" if op.flag("shared", "shared::cta") else "global" if op.flag("global") else "generic"
    op.done(2, 3)
    where, offset = address(op, 0 if writes else 1, space)
    stride = op.source(2 if len(op.ins.operands) == 3 else Immediate(held(90).shape[by_rows], False), TYPES["u32"])
    items = fragment(op, 1 if writes else 0, held(90).registers)
    # Which architecture it will be is not known yet: any that the text is for.
    archs = [90, *(arch for arch in (72, 75) if arch >= op.builder.module.target_number)]
    least = min(piece.size for arch in archs for piece in held(arch).pieces)
    access = op.builder.access(op.ins, space, least, least, writes, offset, float_type=_IN_MEMORY.get(kind, ""))
    places = _Places(access, where, stride, kind)
    if writes:
        _emit_store(op, held, [_source(op, item, kind) for item in items], places)
    else:
        _emit_load(op, held, [_dest(op, item, kind) for item in items], places)


class _Places:
    """Where the lanes find the pieces of a matrix: in memory and in their registers."""

    def __init__(self, access: Access, where: Getter, stride: Getter, kind: str) -> None:
        self.register = word_type(8 if kind == "f64" else 4)
        self._access, self._where, self._stride, self._bits = access, where, stride, BITS[kind]

    def each(self, m: Machine, pieces: list[Piece]) -> Iterator[tuple[Access, Array, int, list[tuple[int, int]]]]:
        """Yield, for each piece, the access, the lanes' addresses, the bytes of a word, and where its words are.

        A word is in a register, from a bit on.
        """
        base = self._where(m)
        base = (base.view(np.int32) if base.itemsize == 4 else base).astype(np.int64)
        stride = self._stride(m).astype(np.int64) * self._bits // 8
        warps, size = m.count // 32, self.register.itemsize
        for piece in pieces:
            word = min(piece.size, size)
            words = [divmod(byte, size) for byte in range(piece.first, piece.first + piece.size, word)]
            at = base + np.tile(piece.across, warps) * stride + np.tile(piece.along, warps)
            yield self._access._replace(size=piece.size), at, word, [(one, 8 * byte) for one, byte in words]


def _emit_load(op: Op, held: Callable[[int], Layout], write: list[Setter], places: _Places) -> None:
    def step(m: Machine) -> None:
        matrix, kind = held(m.arch), places.register.type
        registers = np.zeros((len(matrix.rows), m.count), kind)
        for access, at, word, words in places.each(m, matrix.pieces):
            for (register, bit), value in zip(words, read_words(m, access, at, word), strict=True):
                registers[register] |= value.astype(kind) << kind(bit)
        if matrix.turned:
            registers = transposed(registers)
        for place, one in enumerate(write):
            one(m, registers[place % len(registers)].copy())

    whole_warps(op, step)


def _emit_store(op: Op, held: Callable[[int], Layout], read: list[Getter], places: _Places) -> None:
    def step(m: Machine) -> None:
        matrix, kind = held(m.arch), places.register.type
        registers = np.stack([m.spread(one(m)).view(kind) for one in read])
        if matrix.turned:
            registers = transposed(registers)
        for access, at, word, words in places.each(m, matrix.pieces):
            values = [(registers[register] >> kind(bit)).astype(word_type(word)) for register, bit in words]
            write_words(m, access, at, values)

    whole_warps(op, step)


# -- mma -----------------------------------------------------------------------------------------------------------


def _mma(op: Op) -> None:
    """``wmma.mma.op.popc.sync.aligned.alayout.blayout.shape.dtype{.atype.btype}.ctype{.satfinite} d, a, b, c``."""
    first, second = _modifiers(op, ("row", "col"), 2, "the layouts of a and b")
    types = [name for name in op.ins.modifiers if name in BITS]
    _modifiers(
        op, tuple(BITS), 2 if len(types) == 2 else 4, "the types of d and c for .f16, of d, a, b and c otherwise"
    )
    d, a, b, c = types if len(types) == 4 else (types[0], "f16", "f16", types[1])
    if a != b or a not in _FACTORS or (a == "f16") is (len(types) == 4):
        op.fail(f"wmma.mma does not multiply .{a} by .{b}")
    if not {d, c} <= set(_RESULTS.get(a, ("s32",))):
        op.fail(f"wmma.mma of .{a} does not add .{c} to .{d}")
    sizes = _shape(op, a, _FACTORS[a])
    _check_layouts(op, a, {"a": first, "b": second})
    kinds = Kinds(d, a, b, c, *_what_else(op, a))
    op.done(4)

    def of(role: str, arch: int) -> Layout:
        by_rows = {"a": first, "b": second}.get(role) == "row"
        return layout(role[0], sizes, {"a": a, "b": a, "c": c, "cd": d}[role], arch, by_rows=by_rows)

    reads = {role: [_source(op, item, kind) for item in fragment(op, place, of(role, 90).registers)]
             for place, (role, kind) in enumerate((("a", a), ("b", b), ("c", c)), 1)}  # fmt: skip
    write = [_dest(op, item, d) for item in fragment(op, 0, of("cd", 90).registers)]
    register = word_type(8 if a == "f64" else 4)

    def unpacked(m: Machine, role: str) -> Array:
        held = of(role, m.arch)
        return held.fragment.unpack([m.spread(one(m)).view(register) for one in reads[role][: len(held.rows)]])

    def step(m: Machine) -> None:
        x, y, z = (values(kind, unpacked(m, role)) for role, kind in (("a", a), ("b", b), ("c", c)))
        result = _product(kinds, x, y, z, m.arch)
        for one, value in zip(write, of("cd", m.arch).fragment.pack(result), strict=True):
            one(m, value)

    whole_warps(op, step)


def _what_else(op: Op, kind: str) -> tuple[bool, str, str]:
    """Return whether sums saturate, the operation of .b1, and the rounding of .f64."""
    saturates = kind != "b1" and op.flag("satfinite")
    if saturates and BITS[kind] > 8:
        if kind == "f16" and op.builder.module.version < (6, 5):
            op.unsupported("wmma.mma.satfinite of floats")
        op.fail(f"wmma.mma of .{kind} takes no .satfinite")
    operation = ""
    if kind == "b1":
        operation = op.choice("xor", "and") or ""
        if not operation or not op.flag("popc"):
            op.fail("wmma.mma of .b1 takes .xor.popc or .and.popc")
        if operation == "and":
            op.needs("wmma.mma.and", 80, (7, 1))
    rounding = op.choice("rn", "rz", "rm", "rp") if kind == "f64" else None
    return saturates, operation, rounding or "rn"


def _product(kinds: Kinds, a: Array, b: Array, c: Array, arch: int) -> Array:
    """Return d. Of .tf32 ptxas makes two instructions with four products each, on any architecture."""
    most = 4 if kinds.a == "tf32" else a.shape[2]
    for k in range(0, a.shape[2], most):
        c = multiply_add(kinds, a[:, :, k : k + most], b[:, k : k + most], c, arch)
    return c


# -- registers -----------------------------------------------------------------------------------------------------


def _type(kind: str) -> PtxType:
    return _REGISTERS.get(kind, TYPES["s32"])


def _source(op: Op, item: Operand, kind: str) -> Getter:
    wanted = _type(kind)
    return op.source(item, TYPES["b32"] if isinstance(item, Immediate) and wanted.kind == "packed" else wanted)


def _dest(op: Op, item: Operand, kind: str) -> Setter:
    wanted = _type(kind)
    write = op.dest(item, wanted)
    return lambda m, value: write(m, value.view(wanted.dtype))
