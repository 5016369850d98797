"""Every form of arithmetic, logic, comparison and conversion that the PTX machine is held to: opcode and operands.

A `Form` has the kinds of its results and its sources; a kind is a PTX type, or what an operand must be beside that
(``count``: a shift's amount, ``imm8``: a constant to 255,
``word``: a register of 32 bits, never a constant). Forms that belong together, as carry chains do, are one
`Form` of several lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from video_forms import video

__all__ = ["FORMS", "HEAD", "Bound", "Form", "width"]

HEAD = ".version 8.6\n.target sm_90\n.address_size 64\n"

_INTS = ("u16", "s16", "u32", "s32", "u64", "s64")
_ROUNDINGS = ("rn", "rz", "rm", "rp")
_WIDTHS = {
    "count": 32,
    "angle": 32,
    "sel": 32,
    "tf32": 32,
    "e4m3x2": 16,
    "e5m2x2": 16,
    "imm8": 0,
    "pred": 1,
    "word": 32,
}


def width(kind: str) -> int:
    """Return how many bits the register of an operand of this kind has."""
    if kind in _WIDTHS:
        return _WIDTHS[kind]
    bits, _, packed = kind.lstrip("busf").partition("x")
    return max(16, int(bits) * int(packed or 1))


@dataclass(frozen=True)
class Bound:
    """How far a result may be from the device's, and by whose word.

    Attributes
    ----------
    ulps
        Units in the last place of the result's type.
    absolute
        Or within this much, of finite results.
    why
        What the PTX ISA or the hardware leaves open.
    """

    ulps: float
    why: str
    absolute: float = 0.0


@dataclass(frozen=True)
class Form:
    """An instruction with its modifiers.

    Attributes
    ----------
    name
        As counted in the table: the opcode, for a chain its opcodes.
    lines
        Templates in which {d0}, {d1} are results and {s0}, {s1}, ... sources.
    results, sources
        The kind of each.
    bound
        None where the result is the same bit for bit.
    """

    name: str
    lines: tuple[str, ...]
    results: tuple[str, ...]
    sources: tuple[str, ...]
    bound: Bound | None = None

    @property
    def instructions(self) -> int:
        """How many instructions it is."""
        return len(self.lines)


def _form(opcode: str, result: str, *sources: str, bound: Bound | None = None) -> Form:
    operands = ", ".join(["{d0}", *(f"{{s{i}}}" for i in range(len(sources)))])
    return Form(opcode, (f"{opcode} {operands};",), (result,), sources, bound)


def _joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)


def _integers() -> Iterator[Form]:
    for kind in _INTS:
        for name in ("add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"):
            yield _form(f"{name}.{kind}", kind, kind, kind)
        for name in ("mad.lo", "mad.hi", "sad"):
            yield _form(f"{name}.{kind}", kind, kind, kind, kind)
        if kind[1:] != "64":
            wide = f"{kind[0]}{2 * width(kind)}"
            yield _form(f"mul.wide.{kind}", wide, kind, kind)
            yield _form(f"mad.wide.{kind}", wide, kind, kind, wide)
        if kind[0] == "s":
            yield _form(f"abs.{kind}", kind, kind)
            yield _form(f"neg.{kind}", kind, kind)
    for name in ("add", "sub"):
        yield _form(f"{name}.sat.s32", "s32", "s32", "s32")
    yield _form("mad.hi.sat.s32", "s32", "s32", "s32", "s32")
    for kind, part in product(("u32", "s32"), ("lo", "hi")):
        yield _form(f"mul24.{part}.{kind}", kind, kind, kind)
        yield _form(f"mad24.{part}.{kind}", kind, kind, kind, kind)
    for a, b in product(("u32", "s32"), repeat=2):
        result = "s32" if "s32" in (a, b) else "u32"
        yield _form(f"dp4a.{a}.{b}", result, a, b, result)
        for half in ("lo", "hi"):
            yield _form(f"dp2a.{half}.{a}.{b}", result, a, b, result)
    for kind in ("u16x2", "s16x2"):
        for name in ("add", "min", "max"):
            yield _form(f"{name}.{kind}", "b32", "b32", "b32")
    for name, kind in product(("min", "max"), ("s32", "s16x2")):
        yield _form(f"{name}.relu.{kind}", "b32", "b32", "b32")


def _chains() -> Iterator[Form]:
    for kind in ("u32", "s32", "u64", "s64"):
        for first, second in (("add.cc", "addc"), ("sub.cc", "subc")):
            two_ops = (
                f"{first}.{kind} {{d0}}, {{s0}}, {{s1}};",
                f"{second}.cc.{kind} {{d1}}, {{s2}}, {{s3}};",
                f"{second}.{kind} {{d2}}, {{s4}}, {{s5}};",
            )
            yield Form(f"{first}+{second}.cc+{second}.{kind}", two_ops, (kind,) * 3, (kind,) * 6)
        lines = (
            f"mad.lo.cc.{kind} {{d0}}, {{s0}}, {{s1}}, {{s2}};",
            f"madc.hi.cc.{kind} {{d1}}, {{s0}}, {{s1}}, {{s3}};",
            f"madc.lo.cc.{kind} {{d2}}, {{s4}}, {{s5}}, {{s0}};",
            f"madc.hi.{kind} {{d3}}, {{s4}}, {{s5}}, {{s3}};",
        )
        yield Form(f"mad.lo.cc+madc.{kind}", lines, (kind,) * 4, (kind,) * 6)


def _bits() -> Iterator[Form]:
    for kind in ("pred", "b16", "b32", "b64"):
        for name in ("and", "or", "xor"):
            yield _form(f"{name}.{kind}", kind, kind, kind)
        yield _form(f"not.{kind}", kind, kind)
    for kind in ("b16", "b32", "b64"):
        yield _form(f"cnot.{kind}", kind, kind)
        yield _form(f"shl.{kind}", kind, kind, "count")
    for kind in ("b16", "b32", "b64", *_INTS):
        yield _form(f"shr.{kind}", kind, kind, "count")
    for kind in ("u32", "s32", "u64", "s64"):
        yield _form(f"bfe.{kind}", kind, kind, "count", "count")
        yield _form(f"bfind.{kind}", "u32", kind)
        yield _form(f"bfind.shiftamt.{kind}", "u32", kind)
    for kind in ("b32", "b64"):
        yield _form(f"bfi.{kind}", kind, kind, kind, "count", "count")
        yield _form(f"popc.{kind}", "u32", kind)
        yield _form(f"clz.{kind}", "u32", kind)
        yield _form(f"brev.{kind}", kind, kind)
    yield _form("lop3.b32", "b32", "b32", "b32", "b32", "imm8")
    for mode in ("", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"):
        yield _form(_joined("prmt.b32", mode), "b32", "b32", "b32", "sel")
    for way, limit in product("lr", ("wrap", "clamp")):
        yield _form(f"shf.{way}.{limit}.b32", "b32", "b32", "b32", "count")
    for mode in ("clamp", "wrap"):
        yield _form(f"bmsk.{mode}.b32", "b32", "count", "count")
        for kind in ("u32", "s32"):
            yield _form(f"szext.{mode}.{kind}", kind, kind, "count")
    pack = ("mov.b32 {d0}, {{{s0}, {s1}}};", "mov.b64 {d1}, {{{s2}, {s3}}};")
    yield Form("mov.b32+mov.b64 pack", pack, ("b32", "b64"), ("b16", "b16", "b32", "b32"))
    unpack = ("mov.b32 {{{d0}, {d1}}}, {s0};", "mov.b64 {{{d2}, {d3}}}, {s1};")
    yield Form("mov.b32+mov.b64 unpack", unpack, ("b16", "b16", "b32", "b32"), ("b32", "b64"))


def _floats() -> Iterator[Form]:
    for name, way, ftz, sat in product(("add", "sub", "mul"), _ROUNDINGS, ("", "ftz"), ("", "sat")):
        yield _form(_joined(name, way, ftz, sat, "f32"), "f32", "f32", "f32")
    for name, way, ftz, sat in product(("fma", "mad"), _ROUNDINGS, ("", "ftz"), ("", "sat")):
        yield _form(_joined(name, way, ftz, sat, "f32"), "f32", "f32", "f32", "f32")
    for way in _ROUNDINGS:
        for name in ("add", "sub", "mul"):
            yield _form(f"{name}.{way}.f64", "f64", "f64", "f64")
        for name in ("fma", "mad"):
            yield _form(f"{name}.{way}.f64", "f64", "f64", "f64", "f64")
    # Without a rounding: .rn, and free to be contracted; mul is left out, so that there is nothing to contract.
    for name, kind in product(("add", "sub"), ("f32", "f64", "f16", "bf16")):
        yield _form(f"{name}.{kind}", kind, kind, kind)
    for kind in ("f16", "f16x2"):
        for name, ftz, sat in product(("add", "sub", "mul"), ("", "ftz"), ("", "sat")):
            yield _form(_joined(name, "rn", ftz, sat, kind), kind, kind, kind)
        for ftz, end in product(("", "ftz"), ("", "sat", "relu")):
            yield _form(_joined("fma.rn", ftz, end, kind), kind, kind, kind, kind)
    for kind in ("bf16", "bf16x2"):
        for name in ("add", "sub", "mul"):
            yield _form(f"{name}.rn.{kind}", kind, kind, kind)
        for end in ("", "relu"):
            yield _form(_joined("fma.rn", end, kind), kind, kind, kind, kind)
    for kind in ("f32", "f64", "f16", "f16x2", "bf16", "bf16x2"):
        flush = ("", "ftz") if kind in ("f32", "f16", "f16x2") else ("",)
        for ftz in flush:
            for name in ("abs", "neg"):
                yield _form(_joined(name, ftz, kind), kind, kind)
            for name, nan in product(("min", "max"), ("",) if kind == "f64" else ("", "NaN")):
                yield _form(_joined(name, ftz, nan, kind), kind, kind, kind)
                if kind != "f64":
                    yield _form(_joined(name, ftz, nan, "xorsign.abs", kind), kind, kind, kind)
    for kind in ("f32", "f64"):
        yield _form(f"copysign.{kind}", kind, kind, kind)
        for test in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
            yield _form(f"testp.{test}.{kind}", "pred", kind)
    for way in _ROUNDINGS:
        for ftz in ("", "ftz"):
            yield _form(_joined("div", way, ftz, "f32"), "f32", "f32", "f32")
            yield _form(_joined("rcp", way, ftz, "f32"), "f32", "f32")
            yield _form(_joined("sqrt", way, ftz, "f32"), "f32", "f32")
        yield _form(f"div.{way}.f64", "f64", "f64", "f64")
        yield _form(f"rcp.{way}.f64", "f64", "f64")
        yield _form(f"sqrt.{way}.f64", "f64", "f64")


_ISA = "the PTX ISA states "


def _approximations() -> Iterator[Form]:
    for ftz in ("", "ftz"):
        for name in ("div.approx", "div.full"):
            yield _form(_joined(name, ftz, "f32"), "f32", "f32", "f32")
        for name in ("rcp", "sqrt", "rsqrt", "lg2", "ex2"):
            yield _form(_joined(name, "approx", ftz, "f32"), "f32", "f32")
        for name in ("sin", "cos"):
            yield _form(_joined(name, "approx", ftz, "f32"), "f32", "angle")
    yield _form("tanh.approx.f32", "f32", "f32", bound=Bound(2**13, _ISA + "a relative 2**-11"))
    yield _form("rsqrt.approx.f64", "f64", "f64", bound=Bound(16, "the PTX ISA states a relative 2**-22.5 or so"))
    for name in ("rcp", "rsqrt"):
        yield _form(f"{name}.approx.ftz.f64", "f64", "f64")
    for kind in ("f16", "f16x2"):
        yield _form(f"ex2.approx.{kind}", kind, kind)
        yield _form(f"tanh.approx.{kind}", kind, kind, bound=Bound(2, _ISA + "an absolute 2**-10.987", 2.0**-10.9))
    for kind in ("bf16", "bf16x2"):
        yield _form(f"ex2.approx.ftz.{kind}", kind, kind)
        yield _form(f"tanh.approx.{kind}", kind, kind, bound=Bound(1, _ISA + "an absolute 2**-8", 2.0**-8))


_EQUAL = ("eq", "ne")
_ORDER = ("lt", "le", "gt", "ge")
_NAN = ("equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def _comparisons() -> Iterator[Form]:
    floats = ("f32", "f64", "f16", "bf16")
    for kind in ("b16", "b32", "b64", *_INTS, *floats):
        names = [*_EQUAL, *(() if kind in ("b16", "b32", "b64") else _ORDER)]
        names += ("lo", "ls", "hi", "hs") if kind[0] == "u" else ()
        names += _NAN if kind in floats else ()
        flush = ("", "ftz") if kind in ("f32", "f16") else ("",)
        # Of halves there is one predicate only, not the pair p|q.
        flags, count = ("{d0}", 1) if kind in ("f16", "bf16") else ("{d0}|{d1}", 2)
        for name, ftz in product(names, flush):
            opcode = _joined("setp", name, ftz, kind)
            yield Form(opcode, (f"{opcode} {flags}, {{s0}}, {{s1}};",), ("pred",) * count, (kind, kind))
        for place, name in enumerate(names):
            opcode = _joined("setp", name, ("and", "or", "xor")[place % 3], kind)
            line = f"{opcode} {flags}, {{s0}}, {{s1}}, {{s2}};"
            yield Form(opcode, (line,), ("pred",) * count, (kind, kind, "pred"))
        for place, name in enumerate(names):
            if kind in ("f16", "bf16"):
                results = ["f16" if kind == "f16" else "bf16", "u32", "s32", "u16", "s16"]
            else:
                results = ["u32", "s32", "f32"]
            result = results[place % len(results)]
            yield _form(_joined("set", name, flush[place % len(flush)], result, kind), result, kind, kind)
            yield _form(_joined("set", name, ("xor", "and", "or")[place % 3], result, kind), result, kind, kind, "pred")
    for kind in ("b16", "b32", "b64", *_INTS, "f32", "f64"):
        yield _form(f"selp.{kind}", kind, kind, kind, "pred")
        for ftz, sign in (("", "s32"), ("", "f32"), ("ftz", "f32")):
            yield _form(_joined("slct", ftz, kind, sign), kind, kind, kind, sign)


def _range(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _conversions() -> Iterator[Form]:
    ints = ("u8", "s8", *_INTS)
    floats = ("f16", "bf16", "f32", "f64")
    for to, source in product(ints, ints):
        yield _form(f"cvt.{to}.{source}", to, source)
        (low, high), (least, most) = _range(to), _range(source)
        if least < low or most > high:
            yield _form(f"cvt.sat.{to}.{source}", to, source)
    for to, source, way in product(floats, ints, _ROUNDINGS):
        if to == "bf16" and source in ("u8", "s8"):
            continue
        yield _form(f"cvt.{way}.{to}.{source}", to, source)
        if to != "bf16" and way == "rn":
            yield _form(f"cvt.rn.sat.{to}.{source}", to, source)
    for to, source, way in product(ints, floats, ("rni", "rzi", "rmi", "rpi")):
        if source == "bf16" and to in ("u8", "s8"):
            continue
        for ftz, sat in product(("", "ftz") if source == "f32" else ("",), ("",) if source == "bf16" else ("", "sat")):
            yield _form(_joined("cvt", way, ftz, sat, to, source), to, source)
    for kind, way in product(floats, ("rni", "rzi", "rmi", "rpi")):
        for ftz, sat in product(("", "ftz") if kind == "f32" else ("",), ("",) if kind == "bf16" else ("", "sat")):
            yield _form(_joined("cvt", way, ftz, sat, kind, kind), kind, kind)
    for kind, ftz in (("f32", ""), ("f32", "ftz"), ("f64", ""), ("f16", "")):
        yield _form(_joined("cvt", ftz, "sat", kind, kind), kind, kind)
        yield _form(_joined("cvt", ftz, kind, kind), kind, kind)
    for to, source in (("f32", "f16"), ("f64", "f16"), ("f64", "f32"), ("f32", "bf16"), ("f64", "bf16")):
        for ftz, sat in product(
            ("", "ftz") if "f32" in (to, source) else ("",), ("",) if source == "bf16" else ("", "sat")
        ):
            yield _form(_joined("cvt", ftz, sat, to, source), to, source)
    narrowing = (("f16", "f32"), ("f16", "f64"), ("f32", "f64"), ("bf16", "f32"), ("bf16", "f64"), ("bf16", "f16"),
                 ("f16", "bf16"))  # fmt: skip
    for (to, source), way in product(narrowing, _ROUNDINGS):
        for ftz, sat in product(
            ("", "ftz") if "f32" in (to, source) else ("",), ("",) if "bf16" in (to, source) else ("", "sat")
        ):
            yield _form(_joined("cvt", way, ftz, sat, to, source), to, source)
    for to, way in product(("f16", "bf16", "f16x2", "bf16x2"), ("rn", "rz")):
        sources = ("f32",) * (2 if to.endswith("x2") else 1)
        yield _form(f"cvt.{way}.relu.{to}.f32", to, *sources)
        if len(sources) == 2:
            yield _form(f"cvt.{way}.{to}.f32", to, *sources)
    for eighths, relu in product(("e4m3x2", "e5m2x2"), ("", "relu")):
        yield _form(_joined("cvt.rn.satfinite", relu, eighths, "f32"), eighths, "f32", "f32")
        yield _form(_joined("cvt.rn.satfinite", relu, eighths, "f16x2"), eighths, "f16x2")
        yield _form(_joined("cvt.rn", relu, "f16x2", eighths), "f16x2", eighths)
    for way, end in (("rna", ""), ("rna", "satfinite"), ("rn", ""), ("rz", ""), ("rn", "relu"), ("rz", "relu")):
        yield _form(_joined("cvt", way, end, "tf32", "f32"), "tf32", "f32")


def _later() -> Iterator[Form]:
    """What came to the machine later; behind the others, so that what is drawn of those stays as it was recorded."""
    for kind in ("u32", "s32", "u64", "s64"):
        # The flag of a difference is a carry, so that chains may have both.
        mixed = (("sub.cc", "addc", "subc"), ("add.cc", "subc", "addc"), ("mad.lo.cc", "subc", "madc.lo"))
        for first, second, third in mixed:
            lines = (
                f"{first}.{kind} {{d0}}, {{s0}}, {{s1}}{', {s2}' if first[0] == 'm' else ''};",
                f"{second}.cc.{kind} {{d1}}, {{s2}}, {{s3}};",
                f"{third}.{kind} {{d2}}, {{s4}}, {{s5}}{', {s0}' if third[0] == 'm' else ''};",
            )
            yield Form(f"{first}+{second}.cc+{third}.{kind}", lines, (kind,) * 3, (kind,) * 6)
    for kind in ("u16", "s16"):
        yield _form(f"cvt.pack.sat.{kind}.s32", "b32", "s32", "s32")
    for kind in ("u8", "s8", "u4", "s4", "u2", "s2"):
        yield _form(f"cvt.pack.sat.{kind}.s32.b32", "b32", "s32", "s32", "b32")
    within = ("and.b32 {d0}, {s1}, 31;", "shr.s32 {d1}, {s2}, 27;", "fns.b32 {d2}, {s0}, {d0}, {d1};")
    yield Form("and+shr+fns.b32", within, ("b32",) * 3, ("b32", "b32", "s32"))
    for kind in ("f16x2", "bf16x2"):
        for turn, how in enumerate((*_EQUAL, *_ORDER, *_NAN)):
            ftz = "ftz" if kind == "f16x2" and turn % 2 else ""
            mix = ("and", "or", "xor")[turn % 3]
            result = (kind, "u32", "s32")[turn % 3]
            yield _form(_joined("set", how, ftz, result, kind), "b32", kind, kind)
            yield _form(_joined("set", how, mix, ftz, kind, kind), "b32", kind, kind, "pred")
            opcode = _joined("setp", how, ftz, kind)
            yield Form(opcode, (f"{opcode} {{d0}}|{{d1}}, {{s0}}, {{s1}};",), ("pred",) * 2, (kind, kind))
            opcode = _joined("setp", how, mix, ftz, kind)
            line = f"{opcode} {{d0}}|{{d1}}, {{s0}}, {{s1}}, {{s2}};"
            yield Form(opcode, (line,), ("pred",) * 2, (kind, kind, "pred"))
    for name, line, sources in video():
        yield Form(name, (line,), ("b32",), ("word",) * sources)


# Good PTX that the machine refuses as Unsupported, or does not know the type of.
_NOT_RUN = re.compile(r"xorsign|^mad\.hi\.sat|[us]16x2|^(min|max)\.relu")


def _all() -> tuple[Form, ...]:
    parts = (_integers(), _chains(), _bits(), _floats(), _approximations(), _comparisons(), _conversions(), _later())
    found = {form.name: form for part in parts for form in part if not _NOT_RUN.search(form.name)}
    return tuple(found.values())


FORMS = _all()
"""Every form, in a fixed order; each once."""
