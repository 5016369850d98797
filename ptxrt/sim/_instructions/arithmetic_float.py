"""Floating-point arithmetic: add, sub, mul, fma, mad, min, max, abs, neg, copysign, testp; also on packed halves."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

from ptxrt.sim._instructions.exact import add64, fma64, mul64
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.rounding import (
    DIRECTIONS,
    canonical,
    flush,
    flush_result,
    fma32,
    lifted,
    rounded32,
    saturate,
)
from ptxrt.sim._text.types import TYPES, Array, PtxType

__all__ = ["FLOATS", "clean", "elementwise", "extreme"]

FLOATS = ("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
_PACKED = {"f16x2": np.dtype(np.float16), "bf16x2": np.dtype(ml_dtypes.bfloat16)}


def elementwise(kind: PtxType, compute: Callable[..., Array]) -> Callable[..., Array]:
    """Return `compute` for this type: on the two halves where it is packed."""
    half = _PACKED.get(kind.name)
    if half is None:
        return compute

    def packed(*values: Array) -> Array:
        result = compute(*[value.view(half).reshape(-1, 2) for value in values])
        return np.ascontiguousarray(result).reshape(-1).view(np.uint32)

    return packed


def clean(value: Array) -> Array:
    """Put the NaN that NVIDIA's arithmetic answers: 0x7fffffff, 0x7fff (float64 keeps its own)."""
    if value.dtype.itemsize == 2:
        bad = np.isnan(value)
        if bad.any():
            value.view(np.uint16)[bad] = 0x7FFF
        return value
    return canonical(value)


def finish(op: Op, kind: PtxType, compute: Callable[..., Array], *, ftz: bool, sat: bool) -> Callable[..., Array]:
    """Wrap a computation with .ftz on the way in and out, .sat and the canonical NaN."""
    if (ftz or sat) and kind.name == "f64":
        op.fail(f"{op.ins.name}.f64 takes neither .ftz nor .sat")

    if (ftz or sat) and kind.name.startswith("bf16"):
        op.fail(f"{op.ins.name}.{kind.name} takes neither .ftz nor .sat")

    def whole(*values: Array) -> Array:
        if ftz:
            values = tuple(flush(value) for value in values)
        result = compute(*values)
        if ftz and op.ins.name in ("mul", "fma", "mad"):
            result = flush_result(result, lambda: compute(*lifted(*values)))
        elif ftz:
            result = flush(result)
        return saturate(result) if sat else clean(result)

    return elementwise(kind, whole)


def _binary(name: str, kind: PtxType, direction: str) -> Callable[[Array, Array], Array]:
    plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[name]
    if direction == "rn":
        return plain
    if kind.name == "f32":
        return rounded32(plain, direction)
    if name == "mul":
        return lambda a, b: mul64(a, b, direction)
    if name == "sub":
        return lambda a, b: np.where(np.isnan(b), b + 0.0, add64(a, -b, direction))
    return lambda a, b: add64(a, b, direction)


@instruction("add", "sub", "mul", types=FLOATS)
def add(op: Op) -> None:
    """``d = a + b``, rounded once."""
    direction = op.choice(*DIRECTIONS) or "rn"
    ftz, sat = op.flag("ftz"), op.flag("sat")
    kind = op.type(*FLOATS)
    if direction != "rn" and kind.name not in ("f32", "f64"):
        op.fail(f"{op.ins.name}.{kind.name} rounds to nearest only")
    compute = finish(op, kind, _binary(op.ins.name, kind, direction), ftz=ftz, sat=sat)
    op.lanewise(kind, (kind, kind), compute)


@instruction("fma", "mad", types=FLOATS)
def fma(op: Op) -> None:
    """``d = a*b + c`` with one rounding."""
    direction = op.choice(*DIRECTIONS)
    ftz, sat, relu = op.flag("ftz"), op.flag("sat"), op.flag("relu")
    if op.ins.name == "fma" and op.flag("oob"):
        op.unsupported(op.ins.opcode)
    kind = op.type(*(FLOATS if op.ins.name == "fma" else ("f32", "f64")))
    if relu and (op.ins.name == "mad" or kind.name in ("f32", "f64") or sat):
        op.fail(f"{op.ins.name}.relu is fma of halves, without .sat")
    if direction is None:
        if op.ins.name == "fma" or op.builder.module.target_number >= 20:
            op.fail(f"{op.ins.name}.{kind.name} needs a rounding, .rn .rz .rm or .rp")
        direction = "rn"
    if kind.name not in ("f32", "f64") and direction != "rn":
        # ptxas takes .rz, .rm and .rp with .bf16, but on an H200 its code does not round so, and computes with .f16.
        op.fail(f"{op.ins.name}.{kind.name} rounds to nearest only")

    def compute(a: Array, b: Array, c: Array) -> Array:
        result = fma64(a, b, c, direction) if kind.name == "f64" else fma32(a, b, c, direction)
        return np.where(result <= 0, result.dtype.type(0), result) if relu else result

    op.lanewise(kind, (kind, kind, kind), finish(op, kind, compute, ftz=ftz, sat=sat))


def extreme(a: Array, b: Array, *, smaller: bool, nan: bool) -> Array:
    """Return the smaller or larger: -0 below +0; of a number and a NaN the number, or with `nan` the NaN."""
    if nan:
        result = np.minimum(a, b) if smaller else np.maximum(a, b)
    else:
        result = np.fmin(a, b) if smaller else np.fmax(a, b)
        bad = np.isnan(result)
        if bad.any():
            # A signalling NaN, too, loses against a number.
            result = np.where(bad, np.where(np.isnan(a), b, a), result)
    zero = result == 0
    if zero.any():
        both = zero & (a == b)
        first = np.signbit(a) if smaller else ~np.signbit(a)
        result = np.where(both, np.where(first, a, b), result)
    return np.asarray(result)


@instruction("min", "max", types=FLOATS)
def minimum(op: Op) -> None:
    """The smaller or larger of two, or of three."""
    ftz, nan = op.flag("ftz"), op.flag("NaN")
    xorsign, magnitudes = op.flag("xorsign"), op.flag("abs")
    kind = op.type(*FLOATS)
    if nan and kind.name == "f64":
        op.fail(f"{op.ins.name}.f64 takes no .NaN")
    if xorsign != magnitudes or (xorsign and kind.name == "f64"):
        op.fail(f"{op.ins.name} takes .xorsign and .abs together, and not with .f64")
    if xorsign:
        op.needs(f"{op.ins.name}.xorsign.abs", 86, (7, 2))
    smaller = op.ins.name == "min"
    sources = 3 if len(op.ins.operands) == 4 and kind.name == "f32" and not xorsign else 2
    if sources == 3:
        op.needs(f"{op.ins.name} of three values", 100, (8, 8))

    def plain(*values: Array) -> Array:
        result = extreme(values[0], values[1], smaller=smaller, nan=nan)
        return result if sources == 2 else extreme(result, values[2], smaller=smaller, nan=nan)

    def signed(*values: Array) -> Array:
        negative = np.logical_xor.reduce(np.broadcast_arrays(*[np.signbit(value) for value in values]))
        size = plain(*[np.abs(value) for value in values])
        return np.where(negative, -size, size)

    compute = signed if xorsign else plain

    op.lanewise(kind, (kind,) * sources, finish(op, kind, compute, ftz=ftz, sat=False))


@instruction("abs", "neg", types=FLOATS)
def absolute(op: Op) -> None:
    """The sign bit cleared or turned; a NaN becomes the canonical one (float64: stays as it is)."""
    ftz = op.flag("ftz")
    kind = op.type(*FLOATS)
    compute = np.abs if op.ins.name == "abs" else np.negative
    if kind.name != "f64":
        op.lanewise(kind, (kind,), finish(op, kind, compute, ftz=ftz, sat=False))
    elif ftz:
        op.fail(f"{op.ins.name}.f64 takes no .ftz")
    else:
        op.lanewise(kind, (kind,), lambda a: np.where(np.isnan(a), a + 0.0, compute(a)))


@instruction("copysign")
def copysign(op: Op) -> None:
    """``d`` = b with the sign of a."""
    kind = op.type("f32", "f64")
    op.lanewise(kind, (kind, kind), lambda a, b: np.copysign(b, a))


@instruction("testp")
def testp(op: Op) -> None:
    """A property of a number."""
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: np.isfinite(a) & ((a == 0) | (np.abs(a) >= np.finfo(a.dtype).tiny)),
        "subnormal": lambda a: (a != 0) & (np.abs(a) < np.finfo(a.dtype).tiny),
    }
    which = op.choice(*tests)
    kind = op.type("f32", "f64")
    if which is None:
        op.fail(f"testp takes one of .{' .'.join(tests)}")
    op.lanewise(TYPES["pred"], (kind,), tests[which])
