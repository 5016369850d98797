"""``mma.sync``: a warp multiplies matrices that its lanes hold in registers."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ptxrt.sim._instructions import fragments
from ptxrt.sim._instructions.fragments import Fragment
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.sparsity import Sparsity, chosen
from ptxrt.sim._instructions.tensor_cores import Kinds, multiply_add
from ptxrt.sim._instructions.warp import whole_warps
from ptxrt.sim._machine.protocol import Machine
from ptxrt.sim._text.syntax import Immediate, Operand, Register, Tuple
from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__ = ["values"]

_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "e4m3": 8, "e5m2": 8, "u8": 8, "s8": 8, "u4": 4,
         "s4": 4, "b1": 1, "s32": 32}  # fmt: skip
_FAMILIES = {"e4m3": "f8", "e5m2": "f8", "u8": "i8", "s8": "i8", "u4": "i4", "s4": "i4"}

_Need = tuple[int, tuple[int, int]]
_DENSE: dict[str, dict[str, _Need]] = {
    "f16": {"m8n8k4": (70, (6, 4)), "m16n8k8": (75, (6, 5)), "m16n8k16": (80, (7, 0))},
    "bf16": {"m16n8k8": (80, (7, 0)), "m16n8k16": (80, (7, 0))},
    "tf32": {"m16n8k4": (80, (7, 0)), "m16n8k8": (80, (7, 0))},
    "f64": {"m8n8k4": (80, (7, 0)), **{f"m16n8k{k}": (90, (7, 8)) for k in (4, 8, 16)}},
    "f8": {"m16n8k16": (89, (8, 7)), "m16n8k32": (89, (8, 4))},
    "i8": {"m8n8k16": (75, (6, 5)), "m16n8k16": (80, (7, 0)), "m16n8k32": (80, (7, 0))},
    "i4": {"m8n8k32": (75, (6, 5)), "m16n8k32": (80, (7, 0)), "m16n8k64": (80, (7, 0))},
    "b1": {"m8n8k128": (75, (7, 0)), "m16n8k128": (80, (7, 0)), "m16n8k256": (80, (7, 0))},
}
"""By what a and b are made of, the shapes, and the target and version that each wants, as ptxas has it."""

_SPARSE: dict[str, dict[str, _Need]] = {
    **{kind: dict.fromkeys(shapes, (80, (7, 1))) for kind, shapes in (
        ("f16", ("m16n8k16", "m16n8k32")), ("bf16", ("m16n8k16", "m16n8k32")), ("tf32", ("m16n8k8", "m16n8k16")),
        ("i8", ("m16n8k32", "m16n8k64")), ("i4", ("m16n8k64", "m16n8k128")))},
    "f8": {"m16n8k64": (89, (8, 4))},
}  # fmt: skip

_RESULTS = {"f16": ("f16", "f32"), "f8": ("f16", "f32"), "bf16": ("f32",), "tf32": ("f32",), "f64": ("f64",)}

_FACTORS = {"f16": TYPES["f16x2"], "bf16": TYPES["bf16x2"], "tf32": TYPES["bf16x2"], "f64": TYPES["b64"]}
"""As what a register of a or b must agree; no register is .bf16x2, so that leaves .b32."""
_ADDENDS = {"f16": TYPES["f16x2"], "f32": TYPES["f32"], "s32": TYPES["s32"], "f64": TYPES["b64"]}


@dataclass(frozen=True)
class _Form:
    """What the modifiers say."""

    shape: str
    kinds: Kinds
    by_rows: tuple[bool, bool]
    """Whether a and b lie row by row; else column by column."""
    sparse: str | None
    """``sp`` or ``sp::ordered_metadata``."""

    @property
    def family(self) -> str:
        """What a and b are made of."""
        return _FAMILIES.get(self.kinds.a, self.kinds.a)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """m, n and k."""
        m, n, k = map(int, re.findall("[0-9]+", self.shape))
        return m, n, k

    def fragments(self) -> tuple[Fragment, Fragment, Fragment, Fragment]:
        """Return those of a, b, c and d."""
        m, n, k = self.sizes
        kinds = self.kinds
        factor, c, d = _BITS[kinds.a], _BITS[kinds.c], _BITS[kinds.d]
        if self.shape == "m8n8k4" and kinds.a == "f16":
            a, b = (make(by_rows=by) for make, by in zip(
                (fragments.quarter_left, fragments.quarter_right), self.by_rows, strict=True))  # fmt: skip
            return a, b, fragments.quarter_accumulator(c), fragments.quarter_accumulator(d)
        left = fragments.left(m, k // 2 if self.sparse else k, factor)
        return left, fragments.right(k, n, factor), fragments.accumulator(m, n, c), fragments.accumulator(m, n, d)


def _form(op: Op) -> _Form:
    """Read the modifiers, which may stand in any order, as with ptxas."""
    names = op.ins.modifiers
    for name in names:
        if name.startswith(("kind::", "block_scale", "scale_vec")):
            op.unsupported(f"mma.{name}")
    for name in ("sync", "aligned"):
        if not op.flag(name):
            op.fail(f"mma takes .{name}")
    shapes = [name for name in names if re.fullmatch("m[0-9]+n[0-9]+k[0-9]+", name)]
    layouts = [name for name in names if name in ("row", "col")]
    types = [name for name in names if name in _BITS]
    if (len(shapes), len(layouts), len(types)) != (1, 2, 4):
        op.fail("mma takes a shape, two layouts and the types of d, a, b and c")
    for name in (*shapes, *layouts, *types):
        op.choice(name)
    d, a, b, c = types
    operation = ""
    if a == "b1":
        operation = op.choice("xor", "and") or ""
        if not operation or not op.flag("popc"):
            op.fail("mma of .b1 takes .xor.popc or .and.popc")
    is_integer = a in ("u8", "s8", "u4", "s4")
    rounding = (op.choice("rn", "rz", "rm", "rp") if a == "f64" else None) or "rn"
    kinds = Kinds(d, a, b, c, is_integer and op.flag("satfinite"), operation, rounding)
    return _Form(shapes[0], kinds, (layouts[0] == "row", layouts[1] == "row"), op.choice("sp", "sp::ordered_metadata"))


def _check(op: Op, form: _Form) -> None:
    """Check that there is such a form, and that the text is new enough for it."""
    kinds, name = form.kinds, "mma.sp" if form.sparse else "mma"
    what = f"{name}.{form.shape} of .{kinds.a}"
    shapes = (_SPARSE if form.sparse else _DENSE).get(form.family, {})
    if form.family != _FAMILIES.get(kinds.b, kinds.b) or not shapes:
        op.fail(f"{name} does not multiply .{kinds.a} by .{kinds.b}")
    if form.shape == "m8n8k4" and kinds.a in ("bf16", "tf32"):
        op.unsupported(f"{what}, which the PTX manual does not describe")
    if form.shape not in shapes:
        op.fail(f"{name} of .{kinds.a} takes .{', .'.join(shapes)}, not .{form.shape}")
    quarters = form.shape == "m8n8k4" and kinds.a == "f16"
    results = ("f32",) if form.sparse and form.family == "f8" else _RESULTS.get(form.family, ("s32",))
    if kinds.d not in results or not (kinds.c == kinds.d or (quarters and (kinds.d, kinds.c) == ("f32", "f16"))):
        op.fail(f"{what} does not add .{kinds.c} to .{kinds.d}")
    if not quarters and form.by_rows != (True, False):
        op.fail(f"{what} takes .row.col")
    target, version = shapes[form.shape]
    if form.family == "f8" and kinds.d == "f16":
        version = (8, 7)
    if kinds.operation == "and":
        version = (7, 1)
        target = max(target, 80)
    op.needs(what, target, version)
    if form.sparse == "sp::ordered_metadata":
        op.needs(f"mma.{form.sparse}", target, (8, 5))


@instruction("mma")
def mma(op: Op) -> None:
    """``mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c``; of mma.sp ``, metadata, selector``."""
    form = _form(op)
    _check(op, form)
    op.done(6 if form.sparse else 4)
    kinds = form.kinds
    a, b, c, d = form.fragments()
    factor = _FACTORS.get(kinds.a, TYPES["b32"])
    read_a, read_b = _reader(op, 1, a, factor), _reader(op, 2, b, factor)
    read_c = _reader(op, 3, c, _ADDENDS[kinds.c])
    items, to = _vector(op, 0, d, _ADDENDS[kinds.d])
    writers = [op.dest(item, to) for item in items]

    choose = _chooser(op, form) if form.sparse else None

    def step(m: Machine) -> None:
        x, y = (values(kind, read(m)) for kind, read in ((kinds.a, read_a), (kinds.b, read_b)))
        if choose is not None:
            y = choose(m, y)
        result = multiply_add(kinds, x, y, values(kinds.c, read_c(m)), m.arch)
        for write, register in zip(writers, d.pack(result), strict=True):
            write(m, register.view(to.dtype))

    whole_warps(op, step)


def _chooser(op: Op, form: _Form) -> Callable[[Machine, Array], Array]:
    """Return what picks from b the elements that those of a compressed row meet."""
    if not isinstance(op.operand(4), Register):
        op.fail(f"{op.ins.opcode} takes a register of metadata as operand 5")
    sparsity = Sparsity(form.sizes[2], _BITS[form.kinds.a], form.sparse == "sp::ordered_metadata")
    metadata, selector = op.source(4, TYPES["b32"]), op.integer(5)
    if not 0 <= selector < sparsity.selectors:
        op.fail(f"{op.ins.opcode} takes a selector from 0 to {sparsity.selectors - 1}, not {selector}")
    return lambda m, b: chosen(b, sparsity.indices(op, m, m.spread(metadata(m)).view(np.uint32), selector))


def _vector(op: Op, place: int, fragment: Fragment, agreed: PtxType) -> tuple[tuple[Operand, ...], PtxType]:
    """Return the elements of an operand, and the type that they must agree with.

    As with ptxas, elements have one kind of type; .b32 and .b64 go with any, and make the whole vector one of bits.
    """
    operand = op.operand(place)
    if not isinstance(operand, Tuple) or len(operand.items) != fragment.registers:
        op.fail(f"{op.ins.opcode} takes a vector of {fragment.registers} as operand {place + 1}")
    kinds = {"s" if item.type.kind == "u" else item.type.kind for item in operand.items if isinstance(item, Register)}
    kinds |= {"f" if item.is_float else "s" for item in operand.items if isinstance(item, Immediate)}
    if len(kinds - {"b"}) > 1:
        op.fail(f"the elements of a vector of {op.ins.opcode} have one kind of type")
    return operand.items, TYPES["b64" if fragment.bits == 64 else "b32"] if "b" in kinds else agreed


def _reader(op: Op, place: int, fragment: Fragment, agreed: PtxType) -> Callable[[Machine], Array]:
    """Return what reads an operand's matrices."""
    items, wanted = _vector(op, place, fragment, agreed)
    getters = []
    for item in items:
        kind = wanted
        if isinstance(item, Immediate) and wanted.kind in ("b", "packed"):
            kind = TYPES[f"{'f' if item.is_float else 'b'}{wanted.bits}"]
        getters.append(op.source(item, kind))
    word = np.dtype(np.uint64 if fragment.bits == 64 else np.uint32)
    return lambda m: fragment.unpack([m.spread(read(m)).view(word) for read in getters])


def values(kind: str, bits: Array) -> Array:
    """Return signed integers as such."""
    if kind in ("s8", "s32"):
        bits = bits.view(np.int8 if kind == "s8" else np.int32)
    elif kind == "s4":
        bits = (bits.view(np.int8) ^ np.int8(8)) - np.int8(8)
    return bits
