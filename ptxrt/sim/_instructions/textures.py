"""tex, tld4, txq: reads of textures by their handles."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.images import Sampling
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.texels import data_of, first_lane, geometry, per_image, place, query, vector_items
from ptxrt.sim._instructions.vectors import alike, vector
from ptxrt.sim._machine.images import Bound, Image
from ptxrt.sim._machine.protocol import Getter, Machine, Setter
from ptxrt.sim._machine.sampling import Lookup, fetched, gathered, numbers, sampled
from ptxrt.sim._text.syntax import Pair, Register, Tuple
from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__: list[str] = []

Read = Callable[[Array, Image, Sampling, Lookup], list[Array]]

_F32, _S32, _PRED = TYPES["f32"], TYPES["s32"], TYPES["pred"]


@instruction("tex")
def tex(op: Op) -> None:
    """Read a texture at coordinates, or texels by their numbers."""
    how = op.choice("level", "grad", "base")
    shape, count = geometry(op), vector(op)
    kind = op.type("f32", "u32", "s32", "f16", "f16x2")
    coordinate = op.type("f32", "s32")
    if count != (2 if kind.kind == "packed" else 4):
        op.fail(f"tex of .{kind.name} gives .v{2 if kind.kind == 'packed' else 4}")
    last = 2 + {"level": 1, "grad": 2}.get(how or "", 0)
    op.done(last, last + 2)
    # There is one level, whichever is asked for.
    if how == "level":
        op.source(2, coordinate)
    if how == "grad":
        _gradients(op, shape)
    look = sampled if coordinate.is_float else fetched

    def read(texels: Array, image: Image, sampling: Sampling, at: Lookup) -> list[Array]:
        return numbers(look(texels, image.format, sampling, at))

    _lookup(op, shape, kind, coordinate, last, read)


@instruction("tld4")
def tld4(op: Op) -> None:
    """Read one channel of the four texels around a place."""
    channel = op.choice("r", "g", "b", "a")
    if channel is None:
        op.fail("tld4 takes a channel: .r, .g, .b or .a")
    shape, count = geometry(op), vector(op)
    kind, coordinate = op.type("f32", "u32", "s32"), op.type("f32")
    if shape not in ("2d", "a2d") or count != 4:
        op.fail("tld4 takes .2d or .a2d, and gives .v4")
    op.done(2, 4)

    def read(texels: Array, image: Image, sampling: Sampling, at: Lookup) -> list[Array]:
        return gathered(texels, image.format, sampling, at, "rgba".index(channel))

    _lookup(op, shape, kind, coordinate, 2, read)


@instruction("txq")
def txq(op: Op) -> None:
    """Ask for the size of a texture, or how it is read."""
    query(
        op,
        {
            "num_mipmap_levels": lambda of: 1,
            "normalized_coords": lambda of: int(of.sampling is not None and of.sampling.normalized_coords),
        },
    )


def _lookup(op: Op, shape: str, kind: PtxType, coordinate: PtxType, last: int, read: Read) -> None:
    """Emit a read of four components; the numbers of texels to add, if there are any, are the operand `last`."""
    write = _results(op, kind)
    at = place(op, 1, shape, coordinate)
    axes = len(at.coordinates)
    operands = [at.handle, at.layer, *at.coordinates, *_offsets(op, last, axes)]

    def step(m: Machine) -> None:
        def run(texture: Bound, values: list[Array], lanes: Array) -> list[Array]:
            image, sampling = texture.image, texture.sampling or Sampling()
            _check(m, op, texture, kind, coordinate, lanes)
            lookup = Lookup(values[0], values[1 : 1 + axes], values[1 + axes :])
            data = data_of(m, op.ins, image, lanes)
            if image.is_memory and m.marks:
                _check_written(m, op, image, lookup, lanes)
            return _as_kind(read(image.texels(data), image, sampling, lookup), kind)

        for one, value in zip(write, per_image(m, op.ins, shape, operands, run), strict=True):
            one(m, value)

    op.emit(step)


def _results(op: Op, kind: PtxType) -> list[Setter]:
    """Return the writers of the components; and of a predicate, whether the texels are in memory, which they are."""
    operand = op.operand(0)
    there: list[Setter] = []
    if isinstance(operand, Pair):
        op.needs(f"{op.ins.name} with a predicate", 60, (7, 1))
        there = [op.dest(operand.second, _PRED)]
        operand = operand.first
    count = 2 if kind.kind == "packed" else 4
    if not isinstance(operand, Tuple) or len(operand.items) != count:
        op.fail(f"{op.ins.opcode} takes a vector of {count} registers for its result")
    alike(op, operand)
    components = [op.dest(item, kind) for item in operand.items]
    if not there:
        return components

    def last(m: Machine, value: Array) -> None:
        components[-1](m, value)
        there[0](m, np.ones(1, np.bool_))

    return [*components[:-1], last]


def _gradients(op: Op, shape: str) -> None:
    """Check the two vectors of .grad; with one level they make no difference."""
    for index in (2, 3):
        operand = op.operand(index)
        if not isinstance(operand, Tuple):
            op.fail("tex.grad takes two vectors behind the coordinates")
        axes = int(shape[-2])
        if len(operand.items) > (4 if axes == 3 else axes):
            op.fail(f"tex.grad.{shape} takes two vectors of {axes}, not of {len(operand.items)}")
        for item in vector_items(op, operand, axes):
            op.source(item, _F32)


def _offsets(op: Op, index: int, axes: int) -> list[Getter]:
    """Return the readers of the numbers of texels to add, zeros where there are none."""
    if len(op.ins.operands) <= index:
        return [lambda m: np.zeros(1, np.int32)] * axes
    operand = op.operand(index)
    if len(op.ins.operands) > index + 1 or (isinstance(operand, Register) and operand.type.is_float):
        op.unsupported(f"{op.ins.name} that compares depths")
    op.needs(f"{op.ins.name} with an offset", 30, (4, 3))
    return [op.source(item, _S32) for item in vector_items(op, operand, axes)]


def _check(m: Machine, op: Op, texture: Bound, kind: PtxType, coordinate: PtxType, lanes: Array) -> None:
    """Check that a texture can be read as the instruction does it."""
    floats = texture.reads_floats
    if floats is not (kind.kind in ("f", "packed")):
        what = "floats" if floats else "integers"
        m.fault(op.ins, f"{op.ins.name} of .{kind.name} values from {texture}, which gives {what}", int(lanes[0]))
    if texture.image.is_memory and coordinate.is_float:
        problem = f"{op.ins.name} at float coordinates of {texture}, which is memory that tex1Dfetch alone reads"
        m.fault(op.ins, problem, int(lanes[0]))
    if not coordinate.is_float and texture.image.format.geometry == "1d" and not texture.image.is_memory:
        problem = (
            f"{op.ins.name} at whole coordinates of {texture}, which a GPU reads as 0: make it by Texture.from_memory"
        )
        m.fault(op.ins, problem, int(lanes[0]))


def _check_written(m: Machine, op: Op, image: Image, at: Lookup, lanes: Array) -> None:
    allocation = m.memory.find(image.address)
    marks = None if allocation is None else allocation.marks()
    if allocation is None or marks is None:
        return
    number, size = at.coordinates[0].astype(np.int64) + at.offsets[0], image.format.texel_bytes
    inside = (number >= 0) & (number < image.format.width)
    start = image.address - allocation.base
    written: Array = marks.bytes[start : start + image.nbytes].reshape(-1, size).min(axis=1)
    bad = inside & (written[np.where(inside, number, 0)] == 0)
    if bad.any():
        address = image.address + int(number[int(bad.argmax())]) * size
        problem = f"read of {size} bytes of global memory that nobody has written, or not all of them"
        lane = first_lane(lanes, bad)
        m.memory_fault(op.ins, problem, lane, address, size, m.memory.describe(address), m.off_switch)


def _as_kind(values: list[Array], kind: PtxType) -> list[Array]:
    """Return four components as the instruction's type; packed, two in each result."""
    if kind.kind == "packed":
        low_high = [value.astype(np.float16).view(np.uint16).astype(np.uint32) for value in values]
        return [low_high[i] | low_high[i + 1] << np.uint32(16) for i in (0, 2)]
    return [value.astype(kind.dtype) if kind.is_float else value.view(kind.dtype) for value in values]
