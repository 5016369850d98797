"""Tiles for tensor cores: every form of mma.sync with drawn operands, on a GPU and on sim, bit for bit.

An operand is what the lanes of a warp hold, word by word, so nothing here knows which lane has which element.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import ptxrt

__all__ = ["DISTRIBUTIONS", "FORMS", "Comparison", "TileForm", "compare", "digest", "operands", "results", "text"]

Array = NDArray[np.unsignedinteger]
_U64 = np.uint64

_FIELDS = {
    "f16": (5, 10),
    "bf16": (8, 7),
    "tf32": (8, 23),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
    "f32": (8, 23),
    "f64": (11, 52),
}
"""Bits of exponent and fraction."""
_EXTREMES = {"s8": (0x80, 0x81, 0x7F, 0x7E), "u8": (0xFF, 0xFE, 0x00, 0x01), "s4": (0x88, 0x77, 0x78, 0x87),
             "u4": (0xFF, 0xEF, 0x0F, 0x00), "b1": (0xFF, 0xFE, 0x0F, 0x00), "s32": ()}  # fmt: skip
"""Of integers, bytes that hold the least and the largest."""

DISTRIBUTIONS = ("wide", "narrow", "mixed", "tiny", "floor", "huge", "special", "zeros", "cancelling")
"""How operands are drawn.

wide: any exponent. narrow: around 1. mixed: magnitudes 2**-9 to 2**9. tiny: subnormals and the least normal numbers.
floor: products around the least exponent that tensor cores align by. huge: products around the largest result.
special: one in 97 each an infinity, a NaN, a zero, a subnormal, the largest number. zeros: three of four, both signs.
cancelling: neighbours along k cancel.
"""


@dataclass(frozen=True)
class TileForm:
    """One form of ``mma.sync``.

    Attributes
    ----------
    name
        The opcode.
    d, a, b, c
        The types.
    words
        Of a, b, c and d, how many each lane holds.
    """

    name: str
    d: str
    a: str
    b: str
    c: str
    words: tuple[int, int, int, int]

    @property
    def sparse(self) -> bool:
        """Whether there is an operand of metadata."""
        return self.name.startswith("mma.sp")

    @property
    def floats(self) -> bool:
        """Whether it multiplies floating-point numbers."""
        return self.a in _FIELDS

    @property
    def distributions(self) -> tuple[str, ...]:
        """Those that make a difference; of integers two do."""
        return DISTRIBUTIONS if self.floats else ("wide", "huge")

    @property
    def word(self) -> int:
        """Bits of a word."""
        return 64 if self.a == "f64" else 32


def _forms() -> Iterator[TileForm]:
    def form(shape: str, types: tuple[str, str, str, str], words: tuple[int, int, int], *, flags: str = "",
             layouts: str = "row.col", kind: str = "mma", behind: str = "") -> TileForm:  # fmt: skip
        name = f"{kind}.sync.aligned.{shape}.{layouts}{flags}.{'.'.join(types)}{behind}"
        d, a, b, c = types
        return TileForm(name, d, a, b, c, (*words, words[2] * 2 if (d, c) == ("f32", "f16") else words[2]))

    for layouts in ("row.row", "row.col", "col.row", "col.col"):
        for d, c in (("f32", "f32"), ("f16", "f16"), ("f32", "f16")):
            yield form("m8n8k4", (d, "f16", "f16", c), (2, 2, 8 if c == "f32" else 4), layouts=layouts)
    for kind, more in (("mma", 1), ("mma.sp::ordered_metadata", 2)):
        for k, a, b in ((8 * more, 2, more), (16 * more, 4, 2 * more)):
            for d, factor in (("f32", "f16"), ("f16", "f16"), ("f32", "bf16")):
                yield form(f"m16n8k{k}", (d, factor, factor, d), (a, b, 4 if d == "f32" else 2), kind=kind)
        for k, a, b in ((4 * more, 2, more), (8 * more, 4, 2 * more)):
            yield form(f"m16n8k{k}", ("f32", "tf32", "tf32", "f32"), (a, b, 4), kind=kind)
    for shape, words in (
        ("m8n8k4", (1, 1, 2)),
        ("m16n8k4", (2, 1, 4)),
        ("m16n8k8", (4, 2, 4)),
        ("m16n8k16", (8, 4, 4)),
    ):
        yield form(shape, ("f64", "f64", "f64", "f64"), words)
    for x in ("e4m3", "e5m2"):
        for y in ("e4m3", "e5m2"):
            for d in ("f32", "f16"):
                for k, a, b in ((16, 2, 1), (32, 4, 2)):
                    yield form(f"m16n8k{k}", (d, x, y, d), (a, b, 4 if d == "f32" else 2))
            yield form("m16n8k64", ("f32", x, y, "f32"), (4, 4, 4), kind="mma.sp::ordered_metadata")
    for bits, k in ((8, 16), (4, 32)):
        for x in (f"s{bits}", f"u{bits}"):
            for y in (f"s{bits}", f"u{bits}"):
                for flags in ("", ".satfinite"):
                    types = ("s32", x, y, "s32")
                    yield form(f"m8n8k{k}", types, (1, 1, 2), flags=flags)
                    yield form(f"m16n8k{k}", types, (2, 1, 4), flags=flags)
                    yield form(f"m16n8k{2 * k}", types, (4, 2, 4), flags=flags)
                    for more, words in ((2, (2, 2, 4)), (4, (4, 4, 4))):
                        yield form(f"m16n8k{more * k}", types, words, flags=flags, kind="mma.sp::ordered_metadata")
    for operation in ("xor", "and"):
        for shape, words in (("m8n8k128", (1, 1, 2)), ("m16n8k128", (2, 1, 4)), ("m16n8k256", (4, 2, 4))):
            yield form(shape, ("s32", "b1", "b1", "s32"), words, behind=f".{operation}.popc")


FORMS = tuple(_forms())


def text(form: TileForm) -> str:
    """Return a kernel of which each warp multiplies one tile: ``k(a, b, c, metadata, d, tiles)``."""
    size, move = form.word // 8, f"b{form.word}"
    lines = [
        ".version 8.7\n.target sm_90\n.address_size 64",
        f".visible .entry k({', '.join(f'.param .u64 {name}' for name in 'abced')}, .param .u32 tiles)\n{{",
        ".reg .b32 %lane, %warp, %n, %e;  .reg .b64 %p, %o;  .reg .pred %q;",
        *(f".reg .{move} %{name}<{count}>;" for name, count in zip("abcd", form.words, strict=True)),
        "mov.u32 %lane, %tid.x;  shr.u32 %n, %lane, 5;  and.b32 %lane, %lane, 31;",
        "mov.u32 %warp, %ctaid.x;  mad.lo.u32 %warp, %warp, 8, %n;",
        "ld.param.u32 %n, [tiles];  setp.ge.u32 %q, %warp, %n;  @%q ret;",
    ]

    def place(name: str, count: int, nbytes: int) -> str:
        return (
            f"ld.param.u64 %p, [{name}];  mul.wide.u32 %o, %warp, {count * 32 * nbytes};  add.u64 %p, %p, %o;  "
            f"mul.wide.u32 %o, %lane, {nbytes};  add.u64 %p, %p, %o;"
        )

    for name, count in zip("abc", form.words, strict=False):
        lines.append(place(name, count, size))
        lines += [f"ld.global.{move} %{name}{i}, [%p+{i * 32 * size}];" for i in range(count)]
    if form.sparse:
        lines += [place("e", 1, 4), "ld.global.b32 %e, [%p];"]
    vectors = [
        "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"
        for name, count in zip("dabc", (form.words[3], *form.words[:3]), strict=True)
    ]
    lines.append(f"{form.name} {', '.join(vectors)}{', %e, 0x0' if form.sparse else ''};")
    lines.append(place("d", form.words[3], size))
    lines += [f"st.global.{move} [%p+{i * 32 * size}], %d{i};" for i in range(form.words[3])]
    return "\n".join([*lines, "ret;\n}\n"])


# -- drawing -------------------------------------------------------------------------------------------------------


def operands(form: TileForm, distribution: str, tiles: int, seed: int) -> list[Array]:
    """Return a, b, c of shape (tiles, words, 32), and the metadata of shape (tiles, 32)."""
    random = np.random.Generator(np.random.PCG64((seed, FORMS.index(form), DISTRIBUTIONS.index(distribution))))
    found = []
    for role, count in zip("abc", form.words, strict=False):
        kind = getattr(form, role)
        shape = (tiles, count, 32)
        if kind in _EXTREMES:
            found.append(_integers(random, kind, shape, distribution))
            continue
        bits = 1 + sum(_FIELDS[kind])
        parts = form.word // bits
        elements = _floats(random, kind, (*shape, parts), _exponents(kind, distribution, role, form.a), distribution)
        if distribution == "cancelling" and role in "ab" and parts > 1:
            elements[..., 1::2] = elements[..., 0::2] ^ _U64((role == "a") << (bits - 1))
        found.append(_packed(elements, form.word))
    found.append(_metadata(random, form, tiles))
    return found


def _words(random: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.frombuffer(random.bytes(8 * math.prod(shape)), np.uint64).reshape(shape)


def _packed(elements: Array, word: int) -> Array:
    bits = word // elements.shape[-1]
    shifts = np.arange(elements.shape[-1], dtype=np.uint64) * _U64(bits)
    return np.asarray(np.bitwise_or.reduce(elements << shifts, -1).astype(f"u{word // 8}"))


def _metadata(random: np.random.Generator, form: TileForm, tiles: int) -> Array:
    """Return nibbles that name two different elements of four in order, or of tf32 one of two."""
    choices = (0b0100, 0b1110) if form.a == "tf32" else (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110)
    drawn = _words(random, (tiles, 32, 8)) % _U64(len(choices))
    return _packed(np.array(choices, np.uint64)[drawn.astype(np.intp)], 32)


def _exponents(kind: str, distribution: str, role: str, factor: str) -> tuple[int, int]:
    """Return the least and the largest biased exponent to draw, before they are cut to those that there are."""
    width = _FIELDS[kind][0]
    bias, top = (1 << (width - 1)) - 1, (1 << width) - (1 if kind == "e4m3" else 2)
    factor_width, factor_fraction = _FIELDS[factor]
    factor_bias = (1 << (factor_width - 1)) - 1
    addend, large_range = role == "c", factor in ("bf16", "tf32", "f64")
    if distribution == "wide":
        span = 2 * factor_bias + 6
        return (bias - span, bias + span) if addend and kind != factor else (0, top)
    if distribution == "mixed":
        return (bias - 14, bias + 14) if addend else (bias - 9, bias + 9)
    if distribution == "tiny":
        least = bias - 2 * factor_bias
        return (least - 2 * factor_fraction - 4, least + 8) if addend and kind == "f32" else (0, 3)
    if distribution == "floor":
        if large_range:
            half = factor_bias // 2 + 1
            return (0, 14) if addend else (bias - half - 12, bias - half + 6)
        return (0, 8) if addend else (bias - factor_bias - 2, bias - factor_bias // 2)
    if distribution == "huge":
        if large_range:
            half = factor_bias // 2 + 1
            return (top - 3, top) if addend else (bias + half - 3, bias + half)
        return top - 4, top
    if distribution == "cancelling":
        return (bias - 20, bias + 2) if addend else (bias - 6, bias + 6)
    return bias - 3, bias + 3


def _floats(
    random: np.random.Generator, kind: str, shape: tuple[int, ...], exponents: tuple[int, int], distribution: str
) -> Array:
    """Return the bits of floating-point numbers."""
    width, fraction_bits = _FIELDS[kind]
    top = (1 << width) - (1 if kind == "e4m3" else 2)
    low, high = (min(max(value, 0), top) for value in exponents)
    drawn = _words(random, shape)
    more = _words(random, shape) if kind == "f64" else drawn >> _U64(32)
    sign = (drawn >> _U64(fraction_bits) & _U64(1)) << _U64(width + fraction_bits)
    fraction = drawn & _U64((1 << fraction_bits) - 1)
    if kind == "tf32" and distribution in ("narrow", "zeros", "cancelling"):
        fraction &= ~_U64(0x1FFF)
    exponent = _U64(low) + (more & _U64(0xFFFF)) % _U64(high - low + 1)
    number = sign | exponent << _U64(fraction_bits) | fraction
    choice = more >> _U64(16) & _U64(0xFFFF)
    if distribution == "special":
        infinity = _U64(((1 << width) - 1) << fraction_bits)
        largest = _U64(top << fraction_bits | (1 << fraction_bits) - 1)
        choice = choice % _U64(97)
        for i, value in enumerate((infinity, infinity | fraction | _U64(1), _U64(0), fraction, largest)):
            number = np.where(choice == i, sign | value, number)
    if distribution == "zeros":
        number = np.where(choice & _U64(3), sign, number)
    return np.asarray(number)


def _integers(random: np.random.Generator, kind: str, shape: tuple[int, ...], distribution: str) -> Array:
    """Return words of integers: any, or, where they are huge, made of the type's extremes."""
    drawn = np.frombuffer(random.bytes(4 * math.prod(shape)), np.uint32).reshape(shape)
    if distribution != "huge":
        return drawn
    if kind == "s32":
        return np.asarray(
            np.uint32(0x7FFFFFFF) + (drawn >> np.uint32(31)) + (drawn & np.uint32(0xFFF)) - np.uint32(0x800)
        )
    return np.asarray(np.array(_EXTREMES[kind], np.uint8)[drawn.view(np.uint8) & 3].view(np.uint32))


# -- comparing -----------------------------------------------------------------------------------------------------


def results(form: TileForm, device: ptxrt.Device, given: list[Array]) -> Array:
    """Return what a device computes, of shape (tiles, words, 32)."""
    word, tiles = form.word, given[0].shape[0]
    signature = f"const u{word}* a, const u{word}* b, const u{word}* c, const u32* e, u{word}* d, u32 tiles"
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(text(form)), "k", signature, device=device)
    d = ptxrt.empty((tiles, form.words[3], 32), np.dtype(f"u{word // 8}"), device=device)
    d.fill(0xCD)
    kernel.launch(-(-tiles // 8), 256, *(ptxrt.to_device(one, device=device) for one in given), d, tiles)
    return np.asarray(d.numpy())


@dataclass(frozen=True)
class Comparison:
    """How results on two devices compare: elements of d, how many differ, and the first that does."""

    values: int
    different: int
    example: str


def compare(
    form: TileForm, distribution: str, tiles: int, seed: int, one: ptxrt.Device, other: ptxrt.Device
) -> Comparison:
    """Compare the results of drawn tiles; of float64 any NaN equals any other."""
    given = operands(form, distribution, tiles, seed)
    first, second = (_elements(form, results(form, device, given)) for device in (one, other))
    differ = first != second
    if form.d == "f64":
        differ &= ~(np.isnan(first.view(np.float64)) & np.isnan(second.view(np.float64)))
    example = ""
    if differ.any():
        at = tuple(map(int, np.argwhere(differ)[0]))
        example = f"{distribution}, seed {seed}, at {at}: {first[at]:#x}, {second[at]:#x}"
    return Comparison(first.size, int(differ.sum()), example)


def _elements(form: TileForm, words: Array) -> Array:
    return words.view(np.uint16) if form.d == "f16" else words


def digest(form: TileForm, device: ptxrt.Device) -> str:
    """Return the digest of a few tiles of each distribution, one NaN for all of float64."""
    total = hashlib.sha256()
    for distribution in form.distributions:
        found = results(form, device, operands(form, distribution, 2 if form.a == "f64" else 8, 0))
        if form.d == "f64":
            found = np.where(np.isnan(found.view(np.float64)), _U64(0x7FF8 << 48), found)
        total.update(np.ascontiguousarray(found).tobytes())
    return total.hexdigest()[:12]
