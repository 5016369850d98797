"""The forms of mma.sync, where the manual says that their elements lie, and a kernel that runs one on a device.

The formulas are written down as the PTX ISA has them, one form at a time, so that they can be compared by eye: g is the
group of a lane, t its number there, i the element of a fragment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

import ptxrt
from ptxrt import KernelSource

__all__ = ["BITS", "FORMS", "Form", "launched", "packed", "unpacked"]

Place = Callable[[int, int, int], tuple[int, int]]
"""Row and column by g, t and i."""

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "e4m3": 8, "e5m2": 8, "u8": 8, "s8": 8, "u4": 4,
        "s4": 4, "b1": 1, "s32": 32}  # fmt: skip
FLOATS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "f32": np.float32, "f64": np.float64,
          "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}  # fmt: skip


@dataclass(frozen=True)
class Form:
    m: int
    k: int
    kinds: tuple[str, str, str, str]
    a: Place
    b: Place
    c: Place
    target: int = 80
    version: str = "7.1"
    suffix: str = ""
    layouts: str = "row.col"
    quarters: bool = False
    sparse: str = ""
    selector: int = 0
    """How many lanes of a group hold metadata follows from the form; this is which of them do."""

    @property
    def name(self) -> str:
        return f"mma{self.sparse}.sync.aligned.m{self.m}n8k{self.k}.{self.layouts}.{'.'.join(self.kinds)}{self.suffix}"

    def __str__(self) -> str:
        return self.name.replace(".sync.aligned", "") + (f"/{self.selector}" if self.sparse else "")


def by_pairs(g: int, t: int, i: int) -> tuple[int, int]:
    """C of every form but m8n8k4 of f16: c0 and c1 in row g, c2 and c3 in row g + 8."""
    return (g if i < 2 else g + 8), t * 2 + (i & 1)


FORMS = [
    Form(16, 8, (d, kind, kind, d), target=75 if kind == "f16" else 80,
         a=lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1)),
         b=lambda g, t, i: (t * 2 + i, g), c=by_pairs)
    for d, kind in (("f16", "f16"), ("f32", "f16"), ("f32", "bf16"))
]  # fmt: skip
FORMS += [
    Form(16, 16, (d, kind, kind, d),
         a=lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (0 if i < 4 else 8)),
         b=lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g), c=by_pairs)
    for d, kind in (("f16", "f16"), ("f32", "f16"), ("f32", "bf16"))
]  # fmt: skip
FORMS += [
    Form(16, 4, ("f32", "tf32", "tf32", "f32"),
         a=lambda g, t, i: (g if i == 0 else g + 8, t), b=lambda g, t, i: (t, g), c=by_pairs),
    Form(16, 8, ("f32", "tf32", "tf32", "f32"),
         a=lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
         b=lambda g, t, i: (t if i == 0 else t + 4, g), c=by_pairs),
    Form(8, 4, ("f64",) * 4, a=lambda g, t, i: (g, t), b=lambda g, t, i: (t, g), c=by_pairs),
    Form(16, 4, ("f64",) * 4, target=90, version="7.8",
         a=lambda g, t, i: (g if i == 0 else g + 8, t), b=lambda g, t, i: (t, g), c=by_pairs),
    Form(16, 8, ("f64",) * 4, target=90, version="7.8",
         a=lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4),
         b=lambda g, t, i: (t if i == 0 else t + 4, g), c=by_pairs),
    Form(16, 16, ("f64",) * 4, target=90, version="7.8",
         a=lambda g, t, i: (g if i % 2 == 0 else g + 8, t + i // 2 * 4),
         b=lambda g, t, i: (i * 4 + t, g), c=by_pairs),
]  # fmt: skip
FORMS += [
    Form(16, k, (d, a, b, d), target=89, version="8.7", a=place_a, b=place_b, c=by_pairs)
    for d, a, b in (("f16", "e4m3", "e5m2"), ("f32", "e5m2", "e5m2"), ("f32", "e4m3", "e4m3"))
    for k, place_a, place_b in (
        (16, lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)), lambda g, t, i: (t * 4 + i, g)),
        (32, lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
         lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g)),
    )
]  # fmt: skip
for _a, _b, _suffix in (("u8", "u8", ""), ("s8", "u8", ""), ("u8", "s8", ".satfinite"), ("s8", "s8", "")):
    FORMS += [
        Form(8, 16, ("s32", _a, _b, "s32"), suffix=_suffix, target=75,
             a=lambda g, t, i: (g, t * 4 + i), b=lambda g, t, i: (t * 4 + i, g), c=by_pairs),
        Form(16, 16, ("s32", _a, _b, "s32"), suffix=_suffix,
             a=lambda g, t, i: (g if i < 4 else g + 8, t * 4 + (i & 3)),
             b=lambda g, t, i: (t * 4 + i, g), c=by_pairs),
        Form(16, 32, ("s32", _a, _b, "s32"), suffix=_suffix,
             a=lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (0 if i < 8 else 16)),
             b=lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g), c=by_pairs),
    ]  # fmt: skip
for _a, _b, _suffix in (("u4", "u4", ""), ("s4", "u4", ""), ("u4", "s4", ".satfinite"), ("s4", "s4", "")):
    FORMS += [
        Form(8, 32, ("s32", _a, _b, "s32"), suffix=_suffix, target=75,
             a=lambda g, t, i: (g, t * 8 + i), b=lambda g, t, i: (t * 8 + i, g), c=by_pairs),
        Form(16, 32, ("s32", _a, _b, "s32"), suffix=_suffix,
             a=lambda g, t, i: (g if i < 8 else g + 8, t * 8 + (i & 7)),
             b=lambda g, t, i: (t * 8 + i, g), c=by_pairs),
        Form(16, 64, ("s32", _a, _b, "s32"), suffix=_suffix,
             a=lambda g, t, i: (g if i < 8 or 16 <= i < 24 else g + 8, t * 8 + (i & 7) + (0 if i < 16 else 32)),
             b=lambda g, t, i: (t * 8 + (i & 7) + (0 if i < 8 else 32), g), c=by_pairs),
    ]  # fmt: skip
for _suffix in (".xor.popc", ".and.popc"):
    FORMS += [
        Form(8, 128, ("s32", "b1", "b1", "s32"), suffix=_suffix, target=75 if "xor" in _suffix else 80,
             a=lambda g, t, i: (g, t * 32 + i), b=lambda g, t, i: (t * 32 + i, g), c=by_pairs),
        Form(16, 128, ("s32", "b1", "b1", "s32"), suffix=_suffix,
             a=lambda g, t, i: (g if i < 32 else g + 8, t * 32 + (i & 31)),
             b=lambda g, t, i: (t * 32 + i, g), c=by_pairs),
        Form(16, 256, ("s32", "b1", "b1", "s32"), suffix=_suffix,
             a=lambda g, t, i: (g if i < 32 or 64 <= i < 96 else g + 8, t * 32 + (i & 31) + (0 if i < 64 else 128)),
             b=lambda g, t, i: (t * 32 + (i & 31) + (0 if i < 32 else 128), g), c=by_pairs),
    ]  # fmt: skip


def _upper(g: int) -> int:
    """Lanes 16 to 31 hold rows (or columns) 4 to 7 of the matrices of m8n8k4."""
    return 4 if g >= 4 else 0


_ROW_A: Place = lambda g, t, i: (t + _upper(g), i)  # noqa: E731
_COL_A: Place = lambda g, t, i: (i + _upper(g), t)  # noqa: E731
_ROW_B: Place = lambda g, t, i: (t, i + _upper(g))  # noqa: E731
_COL_B: Place = lambda g, t, i: (i, t + _upper(g))  # noqa: E731


def _quarter_f16(g: int, t: int, i: int) -> tuple[int, int]:
    return t + _upper(g), i


def _quarter_f32(g: int, t: int, i: int) -> tuple[int, int]:
    return (t & 1) + (i & 2) + _upper(g), (i & 4) + (t & 2) + (i & 1)


FORMS += [
    Form(8, 4, (d, "f16", "f16", c), target=70, version="6.4", layouts=f"{x}.{y}", quarters=True,
         a=_ROW_A if x == "row" else _COL_A, b=_ROW_B if y == "row" else _COL_B,
         c=_quarter_f32 if c == "f32" else _quarter_f16)
    for x in ("row", "col") for y in ("row", "col") for d, c in (("f16", "f16"), ("f32", "f32"), ("f32", "f16"))
]  # fmt: skip

# Sparse: of A the places among what is stored; of B the whole.
_CHUNK = {"f16": 4, "bf16": 4, "tf32": 2, "s8": 4, "u8": 4, "e4m3": 4, "e5m2": 4, "s4": 8, "u4": 8}


def _stored(per_register: int) -> Place:
    """A as of the dense form of half its K: registers go down, then along."""

    def place(g: int, t: int, i: int) -> tuple[int, int]:
        register, part = divmod(i, per_register)
        return g + register % 2 * 8, t * per_register + part + register // 2 * 4 * per_register

    return place


def _whole(per_register: int) -> Place:
    return lambda g, t, i: (t * per_register + i % per_register + i // per_register * 4 * per_register, g)


for _d, _a, _b, _k, _selectors in (
    ("f16", "f16", "f16", 16, 4), ("f32", "f16", "f16", 32, 2), ("f32", "bf16", "bf16", 16, 4),
    ("f32", "bf16", "bf16", 32, 2), ("f32", "tf32", "tf32", 8, 4), ("f32", "tf32", "tf32", 16, 2),
    ("s32", "s8", "u8", 32, 2), ("s32", "u8", "s8", 64, 1), ("s32", "s4", "u4", 64, 2), ("s32", "u4", "s4", 128, 1),
    ("f32", "e4m3", "e5m2", 64, 1),
):  # fmt: skip
    for _selector in range(_selectors):
        FORMS.append(
            Form(16, _k, (_d, _a, _b, _d), a=_stored(32 // BITS[_a]), b=_whole(32 // BITS[_b]), c=by_pairs,
                 target=89 if _a == "e4m3" else 80, version="8.5", selector=_selector,
                 sparse=".sp::ordered_metadata" if _selector % 2 == 0 else ".sp")
        )  # fmt: skip


def bits_of(kind: str, values: np.ndarray) -> np.ndarray:
    """Return whole numbers as the bits of a type, in unsigned integers."""
    if kind in FLOATS:
        return np.asarray(values.astype(FLOATS[kind]).view(f"u{BITS[kind] // 8}"))
    return np.asarray(values.astype(np.int64).view(np.uint64) & np.uint64((1 << BITS[kind]) - 1))


def packed(form: Form, kind: str, place: Place, matrices: np.ndarray) -> np.ndarray:
    """Return the registers of a warp, of shape (registers, 32), that hold (matrices, rows, columns)."""
    bits = bits_of(kind, matrices).astype(object)
    word = max(BITS[kind], 32)
    each = matrices.size // 32
    registers = np.zeros((each * BITS[kind] // word, 32), object)
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for i in range(each):
            at, shift = divmod(i * BITS[kind], word)
            registers[at, lane] |= bits[g % 4 if form.quarters else 0][place(g, t, i)] << shift
    return registers.astype(f"u{word // 8}")


def unpacked(form: Form, registers: np.ndarray) -> np.ndarray:
    """Return the matrices d of a warp by its registers."""
    kind = form.kinds[0]
    place = form.c
    if form.quarters:
        place = _quarter_f32 if kind == "f32" else _quarter_f16
    count = 4 if form.quarters else 1
    found = np.zeros((count, form.m, 8), np.float64)
    word = registers.itemsize * 8
    for lane in range(32):
        g, t = lane // 4, lane % 4
        for i in range(found.size // 32):
            at, shift = divmod(i * BITS[kind], word)
            bits = int(registers[at, lane]) >> shift & (1 << BITS[kind]) - 1
            held = np.array([bits], f"u{BITS[kind] // 8}").view(FLOATS.get(kind, np.int32))
            found[g % 4 if form.quarters else 0][place(g, t, i)] = held[0]
    return found


def text(form: Form, counts: tuple[int, int, int, int]) -> str:
    """Return a kernel in which each warp loads its registers, multiplies, and stores those of d."""
    wide = form.kinds[0] == "f64"
    move, size, letter = ("b64", 8, "x") if wide else ("b32", 4, "r")
    vectors, code, at = [], [], 0
    for count in counts:
        vectors.append([f"{letter}{at + i}" for i in range(count)])
        at += count
    for operand, names in (("pa", vectors[1]), ("pb", vectors[2]), ("pc", vectors[3])):
        # Registers of a warp lie one after the other, each 32 words.
        code.append(f"mad.wide.u32 o, warp, {len(names) * 32 * size}, {operand};")
        code.append(f"mad.wide.u32 o, lane, {size}, o;")
        code += [f"ld.global.{move} {name}, [o+{i * 32 * size}];" for i, name in enumerate(names)]
    operands = ", ".join("{" + ", ".join(names) + "}" for names in vectors)
    if form.sparse:
        code += ["mad.wide.u32 o, warp, 128, pm;", "mad.wide.u32 o, lane, 4, o;", "ld.global.b32 meta, [o];"]
        operands += f", meta, {form.selector}"
    code.append(f"{form.name} {operands};")
    code.append(f"mad.wide.u32 o, warp, {counts[0] * 32 * size}, pd;")
    code.append(f"mad.wide.u32 o, lane, {size}, o;")
    code += [f"st.global.{move} [o+{i * 32 * size}], {name};" for i, name in enumerate(vectors[0])]
    body = "\n".join(code)
    return f"""
.version {form.version}
.target sm_{form.target}
.address_size 64
.visible .entry multiply(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 m, .param .u64 d)
{{
.reg .b64 pa, pb, pc, pm, pd, o;
.reg .b32 warp, lane, meta, r<{at}>;
.reg .b64 x<{at}>;
ld.param.u64 pa, [a]; ld.param.u64 pb, [b]; ld.param.u64 pc, [c]; ld.param.u64 pm, [m]; ld.param.u64 pd, [d];
mov.u32 warp, %tid.x;
and.b32 lane, warp, 31;
shr.u32 warp, warp, 5;
{body}
ret;
}}
"""


def launched(
    form: Form, device: ptxrt.Device, a: np.ndarray, b: np.ndarray, c: np.ndarray, m: np.ndarray
) -> np.ndarray:
    """Return the registers of d, of shape (warps, registers, 32), as those of a, b and c are given."""
    registers = {"f16": 2, "f32": 1, "s32": 1, "f64": 1}[form.kinds[0]]
    count = (4 if form.quarters else 1) * form.m * 8 // (32 * registers)
    source = KernelSource.ptx(text(form, (count, a.shape[1], b.shape[1], c.shape[1])))
    element = "u64" if a.itemsize == 8 else "u32"
    signature = f"const {element}* a, const {element}* b, const {element}* c, const u32* m, {element}* d"
    kernel = ptxrt.load(source, "multiply", signature, device)
    d = ptxrt.zeros((len(a), count, 32), element, device)
    given = [ptxrt.to_device(np.ascontiguousarray(one), device) for one in (a, b, c, m)]
    kernel.launch(1, 32 * len(a), *given, d)
    return d.to_host()
