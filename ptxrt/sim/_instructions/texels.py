"""What the instructions of textures and surfaces have in common: the handle, and the place in the image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ptxrt.sim._instructions.op import Op
from ptxrt.sim._machine.images import Bound, Image
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._text.syntax import Address, Instruction, Operand, Register, Texel, Tuple, Variable
from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__ = ["Place", "data_of", "first_lane", "geometry", "per_image", "place", "query", "vector_items"]

_AXES = {"1d": 1, "2d": 2, "3d": 3, "a1d": 1, "a2d": 2}
_NOT_RUN = ("cube", "acube", "2dms", "a2dms")
_U32, _U64, _B32 = TYPES["u32"], TYPES["u64"], TYPES["b32"]

Run = Callable[[Bound, list[Array], Array], list[Array]]


class Place(NamedTuple):
    """The readers of ``[handle, {layer, x, y}]``; without layers that is 0."""

    handle: Getter
    layer: Getter
    coordinates: list[Getter]


def geometry(op: Op) -> str:
    """Return the modifier that says how many axes the image has, and whether it has layers."""
    cube = op.choice(*_NOT_RUN)
    if cube is not None:
        op.unsupported(f"{op.ins.name}.{cube}")
    found = op.choice(*_AXES)
    if found is None:
        op.fail(f"{op.ins.name} takes one of {', '.join(f'.{name}' for name in _AXES)}")
    return found


def vector_items(op: Op, operand: Operand, count: int) -> tuple[Operand, ...]:
    """Return the first `count` elements of a vector of 1, 2 or 4; one value stands for a vector of 1."""
    items = operand.items if isinstance(operand, Tuple) else (operand,)
    if len(items) not in (1, 2, 4) or len(items) < count:
        op.fail(f"{op.ins.opcode} takes a vector of {4 if count == 3 else count} elements there, not of {len(items)}")
    return items[:count]


def place(op: Op, index: int, shape: str, kind: PtxType) -> Place:
    """Return the readers of a place in an image, of coordinates of this type."""
    operand = op.operand(index)
    if not isinstance(operand, Texel):
        op.fail(f"{op.ins.name} takes a handle and coordinates, [t, {{x, y}}], as operand {index + 1}")
    if len(operand.items) > 1:
        op.unsupported(f"{op.ins.name} with a sampler of its own")
    layers = int(shape.startswith("a"))
    items = vector_items(op, operand.items[0], layers + _AXES[shape])
    layer = op.source(items[0], _U32) if layers else lambda m: np.zeros(1, np.uint32)
    return Place(_handle(op, operand.handle), layer, [op.source(item, kind) for item in items[layers:]])


def _handle(op: Op, operand: Register | Variable | None) -> Getter:
    if isinstance(operand, Variable) and operand.space == "global":
        op.unsupported(f"{op.ins.name} of a variable, .texref or .surfref")
    if not isinstance(operand, Register) or not operand.type.is_int:
        op.fail(f"{op.ins.name} takes a handle, which is a register of 64 bits")
    return op.source(operand, _U64)


def per_image(m: Machine, ins: Instruction, shape: str | None, read: Sequence[Getter], run: Run) -> list[Array]:
    """Return what `run` gives for each image that the active lanes' handles stand for, put together by lanes.

    Parameters
    ----------
    shape
        The geometry that each image must have; None for any.
    read
        The readers of the handle and of the instruction's other operands.
    run
        Takes an image, its lanes' operands but the handle, each of shape (lanes,) or (1,), and the numbers of these
        lanes among all present; gives the results.
    """
    handles, *operands = [one(m) for one in read]
    active = m.active()
    numbers = np.unique(handles)
    results: list[Array] = []
    for number in numbers:
        mine = (handles == number).nonzero()[0]
        lanes = active if numbers.shape[0] == 1 else active[mine]
        found = _bound(m, ins, int(number), int(lanes[0]))
        if shape not in (None, found.image.format.geometry):
            m.fault(ins, f"{ins.name}.{shape} of {found}, which is .{found.image.format.geometry}", int(lanes[0]))
        if numbers.shape[0] == 1:
            return run(found, operands, lanes)
        part = run(found, [value if value.shape[0] == 1 else value[mine] for value in operands], lanes)
        results = results or [np.zeros(handles.shape[0], value.dtype) for value in part]
        for whole, value in zip(results, part, strict=True):
            whole[mine] = value
    return results


def _bound(m: Machine, ins: Instruction, number: int, lane: int) -> Bound:
    """Return what a handle stands for; a fault where it is none, or one of the other kind."""
    found = m.memory.handles.find(number)
    if isinstance(found, Bound) and found.is_texture is ins.name.startswith("t"):
        return found
    problem = f"which is {found}" if isinstance(found, Bound) else found
    return m.fault(ins, f"{ins.name} with {number:#x}, {problem}", lane)


def first_lane(lanes: Array, bad: Array) -> int:
    """Return the first lane, among all present, of which `bad` is true: of shape (lanes,), or (1,) for all alike."""
    return int(lanes[int(bad.argmax())])


def data_of(m: Machine, ins: Instruction, image: Image, lanes: Array) -> Array:
    """Return the bytes that an image takes; a fault where they were freed."""
    allocation = m.memory.find(image.address)
    if allocation is None or image.address + image.nbytes > allocation.end:
        near = m.memory.describe(image.address)
        problem = "texture of an array that was freed"
        m.memory_fault(ins, problem, int(lanes[0]), image.address, image.nbytes, near)
    start = image.address - allocation.base
    return allocation.bytes[start : start + image.nbytes]


def query(op: Op, answers: dict[str, Callable[[Bound], int]]) -> None:
    """Emit ``txq.width.b32 d, [t]``, which `answers` have besides the sizes."""
    known: dict[str, Callable[[Bound], int]] = {
        "width": lambda of: of.image.format.width,
        "height": lambda of: of.image.format.height,
        "depth": lambda of: 0 if of.image.format.layered else of.image.format.depth,
        "array_size": lambda of: of.image.format.depth if of.image.format.layered else 0,
        **answers,
    }
    asked = op.choice(*known)
    if asked is None:
        op.unsupported(op.ins.opcode)
    level = op.flag("level")
    if level and (op.ins.name == "suq" or asked not in ("width", "height", "depth")):
        op.fail(f"{op.ins.name}.level asks a texture for .width, .height or .depth")
    op.type("b32")
    op.done(3 if level else 2)
    if level:
        op.source(2, _B32)
    operand = op.operand(1)
    if not isinstance(operand, Address) or operand.offset:
        op.fail(f"{op.ins.name} takes a handle in brackets as operand 2")
    write, read = op.dest(0, _B32), _handle(op, operand.base)

    def step(m: Machine) -> None:
        def run(found: Bound, operands: list[Array], lanes: Array) -> list[Array]:
            return [np.full(1, known[asked](found), np.uint32)]

        write(m, per_image(m, op.ins, None, [read], run)[0])

    op.emit(step)
