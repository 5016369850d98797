"""cvt: among integers, halves, float32 and float64; and cvta."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ptxrt.sim._instructions.arithmetic_float import clean
from ptxrt.sim._instructions.exact import add64
from ptxrt.sim._instructions.narrow_floats import eighths, to_tf32
from ptxrt.sim._instructions.op import Op, getter, instruction
from ptxrt.sim._instructions.rounding import flush, flush_result, lift, narrow, odd_sum, saturate
from ptxrt.sim._text.syntax import Symbol
from ptxrt.sim._text.types import TYPES, Array, PtxType
from ptxrt.sim._text.windows import LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW

__all__: list[str] = []

_INTS = ("u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64")
_FLOATS = ("f16", "bf16", "f32", "f64")
_PLAIN_FLOATS = frozenset(("tf32", "e4m3x2", "e5m2x2", "f16x2", "bf16x2"))
"""Those that cvt makes with neither .ftz nor .sat."""
_TO_INTEGRAL: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


def _pack(op: Op) -> None:
    """``cvt.pack.sat.u8.s32.b32 d, a, b, c``: b lowest, a above it, then c; of 16 bits a and b alone."""
    op.flag("pack")
    if not op.flag("sat"):
        op.fail("cvt.pack takes .sat")
    to = op.choice(*(f"{sign}{bits}" for sign in "us" for bits in (2, 4, 8, 16))) or ""
    if not to:
        op.fail("cvt.pack gives .u16, .s16, or .u8, .s8, .u4, .s4, .u2, .s2")
    bits, word = int(to[1:]), TYPES["s32"]
    low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    op.type("s32")
    if bits < 16:
        op.type("b32")

    def compute(a: Array, b: Array, *rest: Array) -> Array:
        found = rest[0].view(np.uint32) << np.uint32(2 * bits) if rest else np.zeros(1, np.uint32)
        for value, start in ((a, bits), (b, 0)):
            part = np.clip(value, low, high).view(np.uint32) & np.uint32((1 << bits) - 1)
            found = found | (part << np.uint32(start))
        return found

    op.lanewise(TYPES["b32"], (word, word) if bits == 16 else (word, word, TYPES["b32"]), compute)


@instruction("cvt")
def cvt(op: Op) -> None:
    """Convert; integers out of range wrap (.sat: stop at the end), floats to integers always stop at the end."""
    if op.ins.modifiers[:1] == ("pack",):
        _pack(op)
        return
    integral = op.choice(*_TO_INTEGRAL)
    direction = op.choice("rn", "rz", "rm", "rp", "rna")
    ftz, sat, relu = op.flag("ftz"), op.flag("sat"), op.flag("relu")
    given = op.ins.modifiers
    if (ftz or sat) and not _PLAIN_FLOATS.isdisjoint(given):
        op.fail(f"{op.ins.opcode} takes neither .ftz nor .sat")
    if "tf32" in given:
        to_tf32(op, direction, relu=relu)
        return
    if "e4m3x2" in given or "e5m2x2" in given:
        eighths(op, direction, relu=relu)
        return
    for exotic in ("rs", "e2m1x2", "e3m2x2", "e2m3x2", "ue8m0x2", "e4m3x4", "e5m2x4"):
        if exotic in given:
            op.unsupported(op.ins.opcode)
    satfinite = op.flag("satfinite")
    if satfinite:
        op.needs(f"{op.ins.name}.satfinite", 70, (8, 1))
    if "f16x2" in given or "bf16x2" in given:
        _pair(op, direction, relu=relu, satfinite=satfinite)
        return
    to = op.type(*_INTS, *_FLOATS)
    source = op.type(*_INTS, *_FLOATS)
    op.done(2)
    if direction == "rna":
        op.fail("cvt.rna gives .tf32")
    _check_types(op, to, source, ftz=ftz, sat=sat)
    if (relu or satfinite) and (to.bits != 16 or source.name != "f32" or direction not in ("rn", "rz") or ftz or sat):
        op.fail("cvt.relu and cvt.satfinite give a half of an .f32, with .rn or .rz alone")
    compute = _conversion(op, to, source, integral, direction, sat=sat)

    def whole(a: Array) -> Array:
        # An H200 rounds subnormal float32 to float16 as they are, .ftz or not.
        if ftz and source.name == "f32" and to.name != "f16":
            a = clean(np.array(flush(a)))
        result = compute(a)
        if ftz and to.name == "f32":
            larger = partial(compute, a * a.dtype.type(lift(a.dtype))) if source.name == "f64" else None
            result = flush(result) if larger is None else flush_result(result, larger)
            result = clean(np.array(result)) if source.name == "bf16" else result
        if sat and to.is_float:
            result = saturate(result)
        return _bounded(result, relu=relu, satfinite=satfinite)

    wider = "bf16" not in (to.name, source.name)
    special = not (to.is_float or source.is_float)
    op.compute(op.dest(0, to, wider=wider), [op.source(1, source, wider=wider, special=special)], whole)


def _check_types(op: Op, to: PtxType, source: PtxType, *, ftz: bool, sat: bool) -> None:
    """Check that .ftz and .sat stand where they mean something."""
    both = {to.name, source.name}
    if ftz and "f32" not in both:
        op.fail(f"cvt.{to.name}.{source.name} takes no .ftz")
    if sat and ("bf16" in both or _holds(to, source)):
        op.fail(f"cvt.{to.name}.{source.name} takes no .sat")
    if ftz and both == {"bf16", "f32"} and to.name == "f32":
        op.needs("cvt.ftz.f32.bf16", 90, (7, 8))


def _holds(to: PtxType, source: PtxType) -> bool:
    """Tell whether an integer type has all values of another."""
    if to.is_float or source.is_float:
        return False
    a, b = np.iinfo(to.dtype), np.iinfo(source.dtype)
    return bool(a.min <= b.min and b.max <= a.max)


def _bounded(value: Array, *, relu: bool, satfinite: bool) -> Array:
    """Put zero for what is negative, and the largest number of its sign for an infinity; a NaN stays."""
    if relu:
        value = np.where(value <= 0, value.dtype.type(0), value)
    if satfinite:
        # One step down from infinity.
        bits = value.view(np.uint16)
        value = np.where(np.isinf(value), bits - np.uint16(1), bits).view(value.dtype)
    return value


def _pair(op: Op, direction: str | None, *, relu: bool, satfinite: bool) -> None:
    """``cvt.rn.f16x2.f32 d, a, b``: a goes to the upper half, b to the lower."""
    to = op.type("f16x2", "bf16x2")
    source = op.type("f32")
    if direction not in ("rn", "rz"):
        op.fail("cvt to a pair of halves needs .rn or .rz")
    way = direction
    half = TYPES[to.name[:-2]]

    def compute(a: Array, b: Array) -> Array:
        parts = []
        for value in (a, b):
            part = clean(narrow(value.astype(np.float64), half.dtype, way))
            part = _bounded(part, relu=relu, satfinite=satfinite)
            parts.append(part.view(np.uint16).astype(np.uint32))
        return np.asarray(parts[0] << np.uint32(16) | parts[1])

    op.lanewise(to, (source, source), compute)


def _conversion(
    op: Op, to: PtxType, source: PtxType, integral: str | None, direction: str | None, *, sat: bool
) -> Callable[[Array], Array]:
    if not source.is_float and not to.is_float:
        if integral or direction:
            op.fail("no rounding between integers")
        return _int_to_int(to, source, sat)
    if not source.is_float:
        if integral or direction is None:
            op.fail(f"cvt.{to.name}.{source.name} needs a rounding, .rn .rz .rm or .rp")
        return _int_to_float(to, source, direction)
    if not to.is_float:
        if integral is None or direction:
            op.fail(f"cvt.{to.name}.{source.name} needs an integer rounding, .rni .rzi .rmi or .rpi")
        return _float_to_int(to, source, _TO_INTEGRAL[integral])
    if to is source:
        if direction:
            op.fail(f"cvt.{to.name}.{source.name} takes integer roundings only")
        if integral is None:
            return (lambda a: clean(np.copy(a))) if to.name == "f16" else np.copy
        whole = _TO_INTEGRAL[integral]
        return lambda a: clean(whole(a))
    if integral:
        op.fail(f"cvt.{to.name}.{source.name} takes no integer rounding")
    if to.bits > source.bits:
        if direction and source.name != "bf16":
            op.fail(f"cvt.{to.name}.{source.name} is exact and takes no rounding")
        if source.name == "bf16":
            return lambda a: a.astype(to.dtype)  # the upper half of the float32, NaN and all
        # The product makes a signalling NaN quiet, and leaves -0 alone.
        return lambda a: clean(a.astype(to.dtype)) if to.bits == 32 else a.astype(to.dtype) * 1.0
    if direction is None:
        if to.bits != source.bits:
            op.fail(f"cvt.{to.name}.{source.name} needs a rounding, .rn .rz .rm or .rp")
        direction = "rn"  # between the two kinds of halves
    # A NaN keeps the upper part of its payload on its way from float64.
    finish = clean if source.bits < 64 else np.asarray
    if to.name == "bf16" and source.bits == 64:
        return lambda a: _keep_payload(a, narrow(a * 1.0, to.dtype, direction))
    return lambda a: finish(narrow(a.astype(np.float64) * 1.0, to.dtype, direction))


def _keep_payload(wide: Array, narrowed: Array) -> Array:
    """Give a bfloat16 NaN the sign and the upper bits of the float64 it comes from."""
    bad = np.isnan(wide)
    if bad.any():
        bits = wide[bad].view(np.uint64)
        upper = (bits >> np.uint64(48) & np.uint64(0x8000)) | (bits >> np.uint64(45) & np.uint64(0x7F))
        narrowed.view(np.uint16)[bad] = upper.astype(np.uint16) | np.uint16(0x7FC0)
    return narrowed


def _int_to_int(to: PtxType, source: PtxType, sat: bool) -> Callable[[Array], Array]:
    if not sat:
        return lambda a: a.astype(to.dtype)
    low, high = np.iinfo(to.dtype).min, np.iinfo(to.dtype).max
    own = np.iinfo(source.dtype)
    least, most = source.dtype.type(max(low, own.min)), source.dtype.type(min(high, own.max))
    return lambda a: np.minimum(np.maximum(a, least), most).astype(to.dtype)


def _int_to_float(to: PtxType, source: PtxType, direction: str) -> Callable[[Array], Array]:
    if source.bits < 64 or (direction == "rn" and to.bits >= 32):
        if direction == "rn" and to.bits >= 32:
            return lambda a: a.astype(to.dtype)
        return lambda a: narrow(a.astype(np.float64), to.dtype, direction) if to.bits < 64 else a.astype(np.float64)

    def compute(a: Array) -> Array:
        upper = (a >> a.dtype.type(32)).astype(np.float64) * 2.0**32
        lower = (a & a.dtype.type(0xFFFFFFFF)).astype(np.float64)
        if to.bits == 64:
            return add64(upper, lower, direction)
        return narrow(odd_sum(upper, lower), to.dtype, direction)

    return compute


def _float_to_int(to: PtxType, source: PtxType, integral: Callable[[Array], Array]) -> Callable[[Array], Array]:
    low, high = np.iinfo(to.dtype).min, np.iinfo(to.dtype).max
    # NaN gives 0, but from or to 64 bits only the top bit, as an H200 does.
    top = 1 << (to.bits - 1) if 64 in (to.bits, source.bits) else 0
    nan = np.array([top], f"u{to.size}").view(to.dtype)

    def compute(a: Array) -> Array:
        value = integral(a.astype(np.float64))
        over, under = value >= float(high), value <= float(low)
        bad = np.isnan(value)
        inside = np.where(over | under | bad, 0.0, value).astype(to.dtype)
        result = np.where(over, to.dtype.type(high), np.where(under, to.dtype.type(low), inside))
        return np.where(bad, nan, result) if bad.any() else result

    return compute


_WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "global": 0, "const": 0}


@instruction("cvta")
def cvta(op: Op) -> None:
    """Address of a state space to generic address, or with .to back."""
    back = op.flag("to")
    space = op.choice(*_WINDOWS, "shared::cta", "shared::cluster", "param::entry")
    if space is None:
        op.fail("cvta names a state space")
    window = np.uint64(_WINDOWS[space.partition("::")[0]])
    kind = op.type("u64", "u32")
    if kind.bits == 32:
        op.fail("cvta.u32 belongs to .address_size 32")
    op.done(2)
    write = op.dest(0, kind)
    operand = op.operand(1)
    if isinstance(operand, Symbol):
        if back:
            op.fail("cvta.to takes a register")
        if operand.variable.space != space.partition("::")[0]:
            op.fail(f"{operand.variable.name} is in .{operand.variable.space}, not .{space}")
        read = getter(op.builder.symbol(operand, kind, generic=True), kind, kind)
        op.compute(write, [read], np.copy)
        return
    read = op.source(1, kind)
    if back:
        op.compute(write, [read], lambda a: a - window)
    else:
        op.compute(write, [read], lambda a: a + window)
