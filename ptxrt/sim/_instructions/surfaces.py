"""suld, sust, sured, suq: surfaces by their handles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.texels import Place, data_of, first_lane, geometry, per_image, place, query
from ptxrt.sim._instructions.vectors import elements, vector
from ptxrt.sim._machine.images import Bound, Image
from ptxrt.sim._machine.protocol import Getter, Machine
from ptxrt.sim._text.syntax import Sink
from ptxrt.sim._text.types import TYPES, Array, word_type

__all__: list[str] = []

_S32, _B32 = TYPES["s32"], TYPES["b32"]
_OUTSIDE = ("trap", "clamp", "zero")
_REDUCTIONS = {
    "add": (np.add, ("u32", "s32", "u64")),
    "min": (np.minimum, ("u32", "s32", "u64", "s64")),
    "max": (np.maximum, ("u32", "s32", "u64", "s64")),
    "and": (np.bitwise_and, ("b32",)),
    "or": (np.bitwise_or, ("b32",)),
}


@instruction("suld")
def suld(op: Op) -> None:
    """Load bytes, by a place along x in bytes."""
    if not op.flag("b"):
        op.fail("suld takes .b")
    shape, outside = geometry(op), _outside(op)
    op.flag("ca", "cg", "cs", "cv")
    count = _count(op)
    kind = op.type("b8", "b16", "b32", "b64")
    _check_width(op, kind.size * count)
    op.done(2)
    write = [op.dest(item, kind, wider=True) for item in elements(op, 0, count)]
    at = place(op, 1, shape, _S32)

    def step(m: Machine) -> None:
        def run(surface: Bound, values: list[Array], lanes: Array) -> list[Array]:
            image = surface.image
            first, inside = _first_byte(m, op, surface, values, lanes, kind.size * count, outside)
            words = data_of(m, op.ins, image, lanes).view(kind.dtype)
            index = first // kind.size
            return [np.where(inside, words[index + n], kind.dtype.type(0)) for n in range(count)]

        for one, value in zip(write, per_image(m, op.ins, shape, _readers(at), run), strict=True):
            one(m, value)

    op.emit(step)


@instruction("sust")
def sust(op: Op) -> None:
    """Store bytes, by a place along x in bytes; with .p numbers, by that of a texel."""
    formatted = _formatted(op)
    shape, outside = geometry(op), _outside(op)
    op.flag("wb", "cg", "cs", "wt")
    count = _count(op)
    kind = op.type("b32") if formatted else op.type("b8", "b16", "b32", "b64")
    _check_width(op, kind.size * count)
    op.done(2)
    items = elements(op, 1, count)
    if any(isinstance(item, Sink) for item in items):
        op.fail("a value to store is missing")
    read = [op.source(item, kind, wider=True) for item in items]
    at = place(op, 0, shape, _S32)
    axes = len(at.coordinates)

    def step(m: Machine) -> None:
        def run(surface: Bound, values: list[Array], lanes: Array) -> list[Array]:
            image = surface.image
            size = image.format.texel_bytes if formatted else kind.size * count
            given = values[1 + axes :]
            if formatted:
                given = [_converted(value, image) for value in given[: image.format.channels]]
            first, inside = _first_byte(m, op, surface, values, lanes, size, outside, scale=size if formatted else 1)
            for n, value in enumerate(given):
                words = data_of(m, op.ins, image, lanes).view(word_type(value.itemsize))
                index = first // value.itemsize + n
                word = value.view(words.dtype)
                mine, word, index = np.broadcast_arrays(inside, word, index)
                words[index[mine]] = word[mine]
            return []

        per_image(m, op.ins, shape, [*_readers(at), *read], run)

    op.emit(step)


@instruction("sured")
def sured(op: Op) -> None:
    """Add to what is there, or the like, one lane after the other."""
    formatted = _formatted(op)
    how = op.choice(*_REDUCTIONS)
    if how is None:
        op.fail(f"sured takes one of {', '.join(f'.{name}' for name in _REDUCTIONS)}")
    shape, outside = geometry(op), _outside(op)
    if shape.startswith("a"):
        op.fail(f"sured.{shape} is not there: sured takes .1d, .2d or .3d")
    combine, types = _REDUCTIONS[how]
    kind = op.type("b32") if formatted else op.type(*types)
    if kind.bits == 64 and how != "add":
        op.needs(f"sured.{how} of 64 bits", 50, (8, 1))
    op.done(2)
    read = op.source(1, kind)
    at = place(op, 0, shape, _S32)

    def step(m: Machine) -> None:
        def run(surface: Bound, values: list[Array], lanes: Array) -> list[Array]:
            image = surface.image
            dtype = image.format.dtype if formatted else kind.dtype
            if formatted and (image.format.texel_bytes != 4 or dtype.kind == "f"):
                m.fault(op.ins, f"sured.p on {surface}, whose texels are not integers of 4 bytes", int(lanes[0]))
            first, inside = _first_byte(m, op, surface, values, lanes, kind.size, outside, scale=4 if formatted else 1)
            words = data_of(m, op.ins, image, lanes).view(dtype)
            mine, index, value = np.broadcast_arrays(inside, first // kind.size, values[-1].view(dtype), lanes)[:3]
            combine.at(words, index[mine], value[mine])
            return []

        per_image(m, op.ins, shape, [*_readers(at), read], run)

    op.emit(step)


@instruction("suq")
def suq(op: Op) -> None:
    """Ask for the size of a surface."""
    query(op, {})


def _formatted(op: Op) -> bool:
    form = op.choice("b", "p")
    if form is None:
        op.fail(f"{op.ins.name} takes .b or .p")
    return form == "p"


def _outside(op: Op) -> str:
    found = op.choice(*_OUTSIDE)
    if found is None:
        op.fail(f"{op.ins.name} takes .trap, .clamp or .zero")
    return found


def _count(op: Op) -> int:
    count = vector(op)
    if count > 4:
        op.fail(f"{op.ins.name} takes .v2 or .v4")
    return count


def _check_width(op: Op, nbytes: int) -> None:
    if nbytes > 16:
        op.fail(f"{op.ins.opcode} moves {nbytes} bytes; 16 is the most")


def _readers(at: Place) -> list[Getter]:
    return [at.handle, at.layer, *at.coordinates]


def _first_byte(
    m: Machine,
    op: Op,
    surface: Bound,
    values: Sequence[Array],
    lanes: Array,
    size: int,
    outside: str,
    scale: int = 1,
) -> tuple[Array, Array]:
    """Return where among the image's bytes each lane's are, and whether they are there; else the first ones stand.

    Parameters
    ----------
    values
        The layer, and the coordinates: along x in units of `scale` bytes.
    size
        Bytes of an access, of which the place along x is a multiple.
    outside
        What is to be done about places outside.
    """
    image, form = surface.image, surface.image.format
    sizes = [form.row_bytes, form.height, form.depth][: form.axes]
    places = [value.astype(np.int64) for value in values[1 : 1 + form.axes]]
    places[0] = places[0] * scale
    bad = places[0] % size != 0
    if bad.any():
        at = int(places[0][bad.argmax()])
        problem = f"{op.ins.name} of {size} bytes at x = {at}, which is not a multiple of {size}"
        m.fault(op.ins, problem, first_lane(lanes, bad))
    extents = [size] + [1] * (form.axes - 1)
    if form.layered:
        places, sizes, extents = [*places, values[0].astype(np.int64)], [*sizes, form.depth], [*extents, 1]
    within = [(p >= 0) & (p + extent <= n) for p, n, extent in zip(places, sizes, extents, strict=True)]
    inside = np.logical_and.reduce(np.broadcast_arrays(*within))
    if outside == "clamp" and size <= form.row_bytes:
        most = [(n - extent) // extent * extent for n, extent in zip(sizes, extents, strict=True)]
        places = [np.clip(p, 0, n) for p, n in zip(places, most, strict=True)]
        inside = np.ones(1, np.bool_)
    elif outside != "zero" and not inside.all():
        lane = int(inside.argmin())
        where = ", ".join(str(int(p[lane if p.shape[0] > 1 else 0])) for p in places)
        words = "x in bytes" + "".join(f", {name}" for name in "yz"[: form.axes - 1]) + ", layer" * form.layered
        problem = f"{op.ins.name} of {size} bytes outside of {surface}, at {where} ({words})"
        m.fault(op.ins, problem, first_lane(lanes, ~inside))
    x, *rows = [np.where(inside, p, 0) for p in places]
    row = np.zeros(1, np.int64)
    for p, n in reversed(list(zip(rows, sizes[1:], strict=True))):
        row = row * n + p
    return row * image.pitch + x, inside


def _converted(value: Array, image: Image) -> Array:
    """Return 32 bits, which are a float, unsigned or signed number as the image's are, as a channel of it."""
    dtype = image.format.dtype
    wide = value.view(f"{dtype.kind}4")
    if dtype.kind == "f":
        most = np.finfo(dtype).max
        return np.where(np.isinf(wide), wide, np.clip(wide, -most, most)).astype(dtype)
    limits = np.iinfo(dtype)
    return np.asarray(np.clip(wide, limits.min, limits.max)).astype(dtype)
