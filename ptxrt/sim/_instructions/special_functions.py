"""div, rcp, sqrt, rsqrt, sin, cos, lg2, ex2, tanh of floats.

The forms that round correctly do so; ``.approx`` and ``.full`` give what an H200 does, bit for bit: its interpolator's
results, in the sequences that ptxas makes around it. tanh and rsqrt.approx.f64 alone are computed in float64 and
rounded once.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.arithmetic_float import clean, elementwise
from ptxrt.sim._instructions.exact import div64, sqrt64
from ptxrt.sim._instructions.interpolator import (
    cosine,
    exp2,
    log2,
    reciprocal,
    reciprocal64,
    reciprocal_sqrt,
    reciprocal_sqrt64,
    sine,
    square_root,
)
from ptxrt.sim._instructions.op import Op, instruction
from ptxrt.sim._instructions.rounding import DIRECTIONS, div32, flush, flush_result, lift, narrow, sqrt32
from ptxrt.sim._text.types import Array, PtxType

__all__: list[str] = []

_F32, _F64 = "f32", "f64"


def _finish(kind: PtxType, compute: Callable[..., Array], ftz: bool, *, quotient: bool = False) -> Callable[..., Array]:
    """Wrap a computation with .ftz on the way in and out; a `quotient` rounds, and so may be tiny before it is not."""
    flushes = ftz and kind.name in (_F32, "bf16", "bf16x2")

    def whole(*values: Array) -> Array:
        if flushes:
            values = tuple(flush(value) for value in values)
        result = compute(*values)
        if flushes and quotient:
            *above, below = values
            factor = below.dtype.type(lift(below.dtype))
            larger = (above[0] * factor, below) if above else (below / factor,)
            return clean(flush_result(result, lambda: compute(*larger)))
        return clean(flush(result) if flushes else result)

    return elementwise(kind, whole)


def _lifting(a: Array) -> Array:
    """Return the factors that make normal numbers of denormals, which the interpolator takes for zeros."""
    return np.asarray(np.where(np.abs(a) < np.float32(2.0**-126), np.float32(2.0**24), np.float32(1)))


def _lowering(a: Array) -> Array:
    """Return the factors after which the reciprocal is no denormal, of which the interpolator makes zero."""
    return np.asarray(np.where(np.abs(a) > np.float32(2.0**126), np.float32(0.25), np.float32(1)))


def _in_double(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda a: narrow(function(a.astype(np.float64)), a.dtype)


def _needs_rounding(op: Op, kind: PtxType, way: str | None) -> str:
    if way is None:
        op.fail(f"{op.ins.name}.{kind.name} needs a rounding, .rn .rz .rm or .rp, or .approx")
    return way


@instruction("div", types=(_F32, _F64))
def div(op: Op) -> None:
    """``d = a / b``."""
    way = op.choice(*DIRECTIONS, "approx", "full")
    ftz = op.flag("ftz")
    kind = op.type(_F32, _F64)
    way = _needs_rounding(op, kind, way)
    if kind.name == _F64 and (way in ("approx", "full") or ftz):
        op.fail("div.f64 takes .rn .rz .rm or .rp, and no .ftz")
    if way in ("approx", "full"):
        compute: Callable[..., Array] = _approximate_quotient if way == "approx" else _full_quotient
    elif way == "rn":
        compute = np.divide
    elif kind.name == _F32:
        compute = lambda a, b: div32(a, b, way)  # noqa: E731
    else:
        compute = lambda a, b: div64(a, b, way)  # noqa: E731
    op.lanewise(kind, (kind, kind), _finish(kind, compute, ftz, quotient=way not in ("approx", "full")))


def _approximate_quotient(a: Array, b: Array) -> Array:
    factor = _lifting(b)
    return np.asarray(a * factor * reciprocal(b * factor))


def _full_quotient(a: Array, b: Array) -> Array:
    factor = _lifting(b) * _lowering(b)
    return np.asarray(a * factor * reciprocal(b * factor))


@instruction("rcp")
def rcp(op: Op) -> None:
    """``d = 1 / a``."""
    way = op.choice(*DIRECTIONS, "approx")
    ftz = op.flag("ftz")
    kind = op.type(_F32, _F64)
    way = _needs_rounding(op, kind, way)
    one = np.ones(1, kind.dtype)
    if kind.name == _F64 and way == "approx":
        if not ftz:
            op.fail("rcp.approx.f64 is rcp.approx.ftz.f64")
        op.lanewise(kind, (kind,), reciprocal64)
        return
    if way == "approx":
        compute: Callable[..., Array] = _approximate_reciprocal
    elif way == "rn":
        compute = lambda a: np.divide(one, a)  # noqa: E731
    elif kind.name == _F32:
        compute = lambda a: div32(one, a, way)  # noqa: E731
    else:
        compute = lambda a: div64(one, a, way)  # noqa: E731
    op.lanewise(kind, (kind,), _finish(kind, compute, ftz, quotient=way != "approx"))


def _approximate_reciprocal(a: Array) -> Array:
    factor = _lifting(a) * _lowering(a)
    return np.asarray(reciprocal(a * factor) * factor)


@instruction("sqrt")
def sqrt(op: Op) -> None:
    """Square root."""
    way = op.choice(*DIRECTIONS, "approx")
    ftz = op.flag("ftz")
    kind = op.type(_F32, _F64)
    way = _needs_rounding(op, kind, way)
    if kind.name == _F64 and (way == "approx" or ftz):
        op.fail("sqrt.f64 takes .rn .rz .rm or .rp, and no .ftz")
    if way == "approx":
        compute: Callable[..., Array] = _approximate_sqrt
    elif way == "rn":
        compute = np.sqrt
    elif kind.name == _F32:
        compute = lambda a: sqrt32(a, way)  # noqa: E731
    else:
        compute = lambda a: sqrt64(a, way)  # noqa: E731
    op.lanewise(kind, (kind,), _finish(kind, compute, ftz))


def _approximate_sqrt(a: Array) -> Array:
    factor = _lifting(a)
    return np.asarray(square_root(a * factor) / np.sqrt(factor))


@instruction("rsqrt")
def rsqrt(op: Op) -> None:
    """``1 / sqrt(a)``."""
    if not op.flag("approx"):
        op.fail("rsqrt is rsqrt.approx")
    ftz = op.flag("ftz")
    kind = op.type(_F32, _F64)
    if kind.name == _F64:
        op.lanewise(kind, (kind,), reciprocal_sqrt64 if ftz else lambda a: 1.0 / np.sqrt(a))
        return
    op.lanewise(kind, (kind,), _finish(kind, _approximate_rsqrt, ftz))


def _approximate_rsqrt(a: Array) -> Array:
    factor = _lifting(a)
    return np.asarray(reciprocal_sqrt(a * factor) * np.sqrt(factor))


def _log2(a: Array) -> Array:
    factor = _lifting(a)
    return np.asarray(log2(a * factor) - np.log2(factor))


def _exp2(a: Array) -> Array:
    """Return 2**a; below -126 as the square of 2**(a / 2), since the interpolator has no denormals."""
    low = a < np.float32(-126)
    if not low.any():
        return exp2(a)
    value = exp2(np.where(low, a * np.float32(0.5), a))
    return np.where(low, value * value, value)


def _in_single(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return a function of halves by way of float32, of whose result the lower bits are cut."""

    def cut(a: Array) -> Array:
        if a.dtype == np.float32:
            return function(a)
        value = function(a.astype(np.float32))
        if a.dtype == np.float16:
            result = value.astype(np.float16)
            above = result.astype(np.float32) > value
            return np.where(above & np.isfinite(result), np.nextafter(result, np.float16(0)), result)
        return (value.view(np.uint32) >> 16).astype(np.uint16).view(a.dtype)

    return cut


_FUNCTIONS: dict[str, tuple[Callable[[Array], Array], tuple[str, ...]]] = {
    "sin": (sine, (_F32,)),
    "cos": (cosine, (_F32,)),
    "lg2": (_log2, (_F32,)),
    "ex2": (_in_single(_exp2), (_F32, "f16", "f16x2", "bf16", "bf16x2")),
    "tanh": (_in_double(np.tanh), (_F32, "f16", "f16x2", "bf16", "bf16x2")),
}


@instruction(*_FUNCTIONS)
def approximate(op: Op) -> None:
    """sin, cos, 2-logarithm, power of 2, tanh."""
    if not op.flag("approx"):
        op.fail(f"{op.ins.name} is {op.ins.name}.approx")
    ftz = op.flag("ftz")
    function, types = _FUNCTIONS[op.ins.name]
    kind = op.type(*types)
    if ftz and (op.ins.name == "tanh" or kind.name.startswith("f16")):
        op.fail(f"{op.ins.name}.{kind.name} takes no .ftz")
    if op.ins.name == "ex2" and kind.name.startswith("bf16") and not ftz:
        op.fail(f"ex2.{kind.name} needs .ftz")
    op.lanewise(kind, (kind,), _finish(kind, function, ftz))
