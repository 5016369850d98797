"""div, rcp, sqrt, rsqrt, sin, cos, lg2, ex2, tanh of floats.

The forms that round correctly do so; ``.approx`` and ``.full`` are computed in float64 and rounded once, so their error
is half a unit in the last place where a GPU's is one or two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ptxrt.sim._instructions.arithmetic_float import clean, elementwise
from ptxrt.sim._instructions.exact import div64, sqrt64
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
    if way == "approx":
        compute: Callable[..., Array] = _divide
    elif way in ("rn", "full"):
        compute = np.divide
    elif kind.name == _F32:
        compute = lambda a, b: div32(a, b, way)  # noqa: E731
    else:
        compute = lambda a, b: div64(a, b, way)  # noqa: E731
    op.lanewise(kind, (kind, kind), _finish(kind, compute, ftz, quotient=way not in ("approx", "full")))


def _divide(a: Array, b: Array) -> Array:
    """Return a / b as the GPU's approximation does: the reciprocal of a divisor above 2**126 is zero."""
    size = np.abs(b)
    huge = (size > np.float32(2.0**126)) & np.isfinite(b)
    return np.asarray(np.where(huge, a * np.copysign(np.float32(0), b), a / b))


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
        op.lanewise(kind, (kind,), lambda a: _upper_word(np.divide(one, _upper_word(a))))
        return
    if way in ("rn", "approx"):
        compute: Callable[..., Array] = lambda a: np.divide(one, a)  # noqa: E731
    elif kind.name == _F32:
        compute = lambda a: div32(one, a, way)  # noqa: E731
    else:
        compute = lambda a: div64(one, a, way)  # noqa: E731
    op.lanewise(kind, (kind,), _finish(kind, compute, ftz, quotient=way != "approx"))


def _upper_word(a: Array) -> Array:
    """Cut a float64 to its upper 32 bits, denormals to zero, as the approximate float64 instructions do."""
    cut = (a.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
    return np.asarray(np.where(np.abs(cut) < np.finfo(np.float64).tiny, np.copysign(0.0, cut), cut))


@instruction("sqrt")
def sqrt(op: Op) -> None:
    """Square root."""
    way = op.choice(*DIRECTIONS, "approx")
    ftz = op.flag("ftz")
    kind = op.type(_F32, _F64)
    way = _needs_rounding(op, kind, way)
    if kind.name == _F64 and (way == "approx" or ftz):
        op.fail("sqrt.f64 takes .rn .rz .rm or .rp, and no .ftz")
    if way in ("rn", "approx"):
        compute: Callable[..., Array] = np.sqrt
    elif kind.name == _F32:
        compute = lambda a: sqrt32(a, way)  # noqa: E731
    else:
        compute = lambda a: sqrt64(a, way)  # noqa: E731
    op.lanewise(kind, (kind,), _finish(kind, compute, ftz))


@instruction("rsqrt")
def rsqrt(op: Op) -> None:
    """``1 / sqrt(a)``."""
    if not op.flag("approx"):
        op.fail("rsqrt is rsqrt.approx")
    ftz = op.flag("ftz")
    kind = op.type(_F32, _F64)
    if kind.name == _F64:
        compute: Callable[..., Array] = lambda a: 1.0 / np.sqrt(a)  # noqa: E731
        op.lanewise(kind, (kind,), lambda a: _upper_word(compute(_upper_word(a))) if ftz else compute(a))
        return
    op.lanewise(kind, (kind,), _finish(kind, _in_double(lambda a: 1.0 / np.sqrt(a)), ftz))


_FUNCTIONS: dict[str, tuple[Callable[[Array], Array], tuple[str, ...]]] = {
    "sin": (np.sin, (_F32,)),
    "cos": (np.cos, (_F32,)),
    "lg2": (np.log2, (_F32,)),
    "ex2": (np.exp2, (_F32, "f16", "f16x2", "bf16", "bf16x2")),
    "tanh": (np.tanh, (_F32, "f16", "f16x2", "bf16", "bf16x2")),
}


@instruction(*_FUNCTIONS)
def approximate(op: Op) -> None:
    """sin, cos, 2-logarithm, power of 2, tanh."""
    if not op.flag("approx"):
        op.fail(f"{op.ins.name} is {op.ins.name}.approx")
    ftz = op.flag("ftz")
    function, types = _FUNCTIONS[op.ins.name]
    kind = op.type(*types)
    op.lanewise(kind, (kind,), _finish(kind, _in_double(function), ftz))
