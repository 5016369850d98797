"""Random straight-line PTX over `forms.FORMS`: every result is stored, so that two devices can be compared by line.

A `Sequence` is one kernel. Each thread has its own inputs: for every class of operand some registers of special values,
some of random bits, some of near numbers (so that sums cancel and products meet a rounding's middle). Sources are
inputs, earlier results, or constants. A result that need not be equal bit for bit is no source of a later line; so the
first line in which a thread's results differ is the line at fault.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, field

import ml_dtypes
import numpy as np
from forms import FORMS, HEAD, Form, width
from numpy.typing import NDArray

import ptxrt

__all__ = ["EDGES", "THREADS", "Comparison", "Difference", "Drawing", "Drawn", "compare", "cover", "digests",
           "distance", "draw", "edges", "inputs", "results", "sequence"]  # fmt: skip

THREADS = 256
_INPUTS = 12
"""Input registers of each class."""

_CLASSES = ("i16", "f16", "bf16", "i32", "f32", "f16x2", "bf16x2", "i64", "f64", "angle", "count")
_BITS = {"i16": 16, "f16": 16, "bf16": 16, "i64": 64, "f64": 64}
_DTYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32),
           "f64": np.dtype(np.float64)}  # fmt: skip


def _class(kind: str) -> str:
    """Return the class of inputs that an operand of this kind is mostly drawn from."""
    if kind in _CLASSES:
        return kind
    return {"sel": "i32", "u16x2": "i32", "s16x2": "i32"}.get(kind, f"i{width(kind)}")


def _special_floats(name: str) -> np.ndarray:
    dtype = _DTYPES[name]
    info = ml_dtypes.finfo(dtype)
    tiny, top, eps = (float(x) for x in (info.smallest_subnormal, info.max, info.eps))
    least = float(info.smallest_normal)
    plain = [0.0, tiny, 3 * tiny, least - tiny, least, least + tiny, 1.0, 1 + eps, 1 - eps / 2, 0.5, 1.5, 2.5, 2.0, 3.0,
             top, top / 2, 127.5, 128.0, 255.5, 256.0, 0.1, 7.0, 1 / 3, float("inf"), 2.0**-24, 32767.5, 2048.0,
             2.0**31, 2.0**32, 2.0**63, 2.0**64, 65504.0, 65519.0, 65520.0, 2.0**-14, 2.0**-25, 1e-3]  # fmt: skip
    with np.errstate(all="ignore"):
        numbers = np.array(plain, np.float64).astype(dtype)
    numbers = np.concatenate((numbers, np.negative(numbers)))
    bits = numbers.view(f"u{dtype.itemsize}").astype(np.uint64)
    nans = {2: (0x7E00, 0xFE01, 0x7C01, 0x7FFF), 4: (0x7FC00000, 0xFFC12345, 0x7F800001, 0x7FFFFFFF)}.get(
        dtype.itemsize, (0x7FF8000000000000, 0xFFF8000000012345, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF)
    )
    return np.concatenate((bits, np.array((*nans, *nans), np.uint64)))


def _special_ints(bits: int) -> np.ndarray:
    whole = (1 << bits) - 1
    plain = [0, 1, 2, 3, 5, 7, 10, 31, 32, 33, 63, 64, 100, 127, 128, 255, 256, 32767, 32768, 65535, 65536,
             whole >> 1, (whole >> 1) + 1, whole, 0x5555555555555555, 0x8000000080000000, 0xFFFFFFFF,
             0x80000000, 0x7FFFFFFF, (1 << 53) + 1, (1 << 24) + 1, 0x00FF00FF00FF00FF]  # fmt: skip
    values = [value & whole for value in plain] + [-value & whole for value in plain]
    return np.array(values, np.uint64)


def _near(name: str, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Floats of few exponents and many, or few, bits: what sums and products round on."""
    exponents = rng.integers(-4, 5, shape).astype(np.float64)
    if name == "angle":
        return (rng.random(shape) * 2 - 1).astype(np.float32).view(np.uint32).astype(np.uint64)
    dtype = _DTYPES[name]
    numbers = (rng.random(shape) + 1) * np.exp2(exponents) * rng.choice([-1.0, 1.0], shape)
    few = np.rint(numbers * 8) / 8
    chosen = np.where(rng.random(shape) < 0.7, numbers, few).astype(dtype)
    return np.asarray(chosen.view(f"u{dtype.itemsize}"), np.uint64)


def _draw_class(name: str, rng: np.random.Generator) -> NDArray[np.uint64]:
    """Return inputs of a class as unsigned 64-bit words, (registers, threads)."""
    shape = (_INPUTS, THREADS)
    if name in ("f16x2", "bf16x2"):
        low, high = (_draw_class(name[:-2], rng) for _ in range(2))
        return np.asarray(low | high << np.uint64(16))
    if name == "count":
        counts = np.where(rng.random(shape) < 0.9, rng.integers(0, 70, shape), rng.integers(0, 2**32, shape))
        return counts.astype(np.uint64)
    if name == "angle":
        return ((rng.random(shape) * 2 - 1) * 3.14).astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = _BITS.get(name, 32)
    noise = rng.integers(0, 2**64, shape, dtype=np.uint64) & np.uint64((1 << bits) - 1)
    if name in _DTYPES:
        special, near, share = _special_floats(name), _near(name, rng, shape), (0.35, 0.75)
    else:
        special, share = _special_ints(bits), (0.35, 0.65)
        small = noise >> rng.integers(0, bits, shape).astype(np.uint64)
        near = np.where(rng.random(shape) < 0.5, small, (~small) & np.uint64((1 << bits) - 1))
    dice = rng.random(shape)
    return np.where(dice < share[0], rng.choice(special, shape), np.where(dice < share[1], near, noise))


def inputs(seed: int) -> np.ndarray:
    """Return the inputs of every thread as unsigned 64-bit words: (class, register, thread)."""
    rng = np.random.default_rng([seed, 1])
    return np.stack([_draw_class(name, rng) for name in _CLASSES])


@dataclass(frozen=True)
class Drawn:
    """One drawn form in its place.

    Attributes
    ----------
    form
        What it is an instance of.
    text
        The lines.
    slots
        Where its results are stored.
    sources
        For each source a slot, an input ``(class, register)``, or the text of a constant.
    """

    form: Form
    text: str
    slots: tuple[int, ...]
    sources: tuple[int | tuple[str, int] | str, ...]


@dataclass(frozen=True)
class Drawing:
    """A kernel ``drawn(const u64* in, u64* out)`` and what it consists of."""

    seed: int
    text: str
    drawn: tuple[Drawn, ...]
    slots: int
    given: np.ndarray | None = None
    """Inputs of its own in the place of drawn ones."""

    @property
    def words(self) -> np.ndarray:
        """The inputs of every thread, as unsigned 64-bit words: (class, register, thread)."""
        return inputs(self.seed) if self.given is None else self.given

    @property
    def instructions(self) -> int:
        """How many instructions were drawn: loads, stores and the like beside them are not counted."""
        return sum(one.form.instructions for one in self.drawn)


def _register(bits: int, number: int) -> str:
    return f"%{'p' if bits == 1 else f'b{bits}_'}{number}"


def _constant(kind: str, rng: np.random.Generator) -> str | None:
    """Return a constant of this kind as PTX writes it, or None where it has none."""
    if kind == "f32":
        return f"0f{int(rng.choice(_special_floats('f32'))):08X}"
    if kind == "f64":
        return f"0d{int(rng.choice(_special_floats('f64'))):016X}"
    if kind == "count":
        return str(int(rng.integers(0, 70)))
    if kind in ("u32", "s32", "b32", "u64", "s64", "b64"):
        value = int(rng.choice(_special_ints(width(kind))))
        return str(value - (1 << width(kind)) if kind[0] == "s" and value >> (width(kind) - 1) else value)
    return None


def sequence(forms: Many[Form], seed: int, *, chained: bool = True) -> Drawing:
    """Return a kernel with these forms in this order, its operands drawn; earlier results among them if `chained`."""
    rng = np.random.default_rng([seed, 2])
    body: list[str] = []
    drawn: list[Drawn] = []
    made: dict[int, list[tuple[str, int]]] = {1: [], 16: [], 32: [], 64: []}
    loaded: dict[tuple[str, int], str] = {}
    numbers = {1: 0, 16: 0, 32: 0, 64: 0}
    slots = 0

    def new(bits: int) -> str:
        numbers[bits] += 1
        return _register(bits, numbers[bits] - 1)

    def source(kind: str, *, constant: bool) -> tuple[str, int | tuple[str, int] | str]:
        if kind == "imm8":
            number = str(int(rng.integers(0, 256)))
            return number, number
        bits = width(kind)
        if constant and rng.random() < 0.08 and (text := _constant(kind, rng)) is not None:
            return text, text
        if made[bits] and (kind == "pred" or (kind not in ("count", "angle") and rng.random() < 0.25)):
            return made[bits][int(rng.integers(len(made[bits])))]
        if kind == "pred":
            name, slot = "i32", int(rng.integers(_INPUTS))
            word, _ = load(name, slot)
            flag = new(1)
            body.append(f"setp.lt.s32 {flag}, {word}, 100;")
            return flag, (f"{name} < 100", slot)
        other = [name for name in _CLASSES if _BITS.get(name, 32) == bits and name not in ("count", "angle")]
        own = _class(kind)
        name = own if rng.random() < 0.9 or own in ("count", "angle") else str(rng.choice(other))
        slot = int(rng.integers(_INPUTS))
        return load(name, slot)

    def load(name: str, slot: int) -> tuple[str, tuple[str, int]]:
        if (name, slot) not in loaded:
            bits = _BITS.get(name, 32)
            loaded[name, slot] = new(bits)
            at = 8 * THREADS * (_CLASSES.index(name) * _INPUTS + slot)
            body.append(f"ld.global.b{bits} {loaded[name, slot]}, [%in+{at}];")
        return loaded[name, slot], (name, slot)

    for form in forms:
        picked = [
            source(kind, constant=form.instructions == 1 and place > 0) for place, kind in enumerate(form.sources)
        ]
        results = [new(width(kind)) for kind in form.results]
        names = {f"d{i}": name for i, name in enumerate(results)} | {
            f"s{i}": name for i, (name, _) in enumerate(picked)
        }
        lines = "\n".join(line.format(**names) for line in form.lines)
        body.append(lines)
        places = tuple(range(slots, slots + len(results)))
        slots += len(results)
        drawn.append(Drawn(form, lines, places, tuple(origin for _, origin in picked)))
        for place, name, kind in zip(places, results, form.results, strict=True):
            bits = width(kind)
            if bits == 1:
                word = new(32)
                body.append(f"selp.b32 {word}, 1, 0, {name};\nst.global.b32 [%out+{8 * THREADS * place}], {word};")
            else:
                body.append(f"st.global.b{bits} [%out+{8 * THREADS * place}], {name};")
            if chained and form.bound is None:
                made[bits].append((name, place))
    declared = "\n".join(
        f".reg .{'pred' if bits == 1 else f'b{bits}'} {_register(bits, 0)[:-1]}<{count}>;"
        for bits, count in numbers.items()
        if count
    )
    joined = "\n".join(body)
    text = f"""{HEAD}.visible .entry drawn(.param .u64 in, .param .u64 out)
{{
.reg .b32 %thread;
.reg .b64 %in, %out, %at;
{declared}
mov.u32 %thread, %tid.x;
mul.wide.u32 %at, %thread, 8;
ld.param.u64 %in, [in];
ld.param.u64 %out, [out];
add.u64 %in, %in, %at;
add.u64 %out, %out, %at;
{joined}
ret;
}}
"""
    return Drawing(seed, text, tuple(drawn), slots)


def draw(count: int, *, each: int = 50, seed: int = 2026) -> Iterator[Drawing]:
    """Yield kernels of at least `count` drawn instructions in all; each form comes up equally often."""
    rng = np.random.default_rng([seed, 3])
    deck: list[Form] = []
    total = number = 0
    while total < count:
        chosen: list[Form] = []
        while sum(form.instructions for form in chosen) < each:
            if not deck:
                deck = [FORMS[i] for i in rng.permutation(len(FORMS))]
            chosen.append(deck.pop())
        made = sequence(chosen, seed * 100_000 + number)
        number += 1
        total += made.instructions
        yield made


def cover(*, each: int = 50, seed: int = 7) -> Iterator[Drawing]:
    """Yield kernels in which every form comes up once."""
    return draw(sum(form.instructions for form in FORMS), each=each, seed=seed)


def _plain(one: Drawn) -> bool:
    """Tell whether every source is an input of its own."""
    return len(set(one.sources)) == len(one.sources) and all(isinstance(origin, tuple) for origin in one.sources)


def edges() -> Iterator[Drawing]:
    """Yield one kernel for each form of `EDGES`, its first threads having those operands."""
    for name, rows in EDGES.items():
        (form,) = (form for form in FORMS if form.name == name)
        drawing = next(one for one in (sequence([form], seed) for seed in range(1000)) if _plain(one.drawn[0]))
        words = inputs(drawing.seed)
        for place, at in enumerate(drawing.drawn[0].sources):
            assert isinstance(at, tuple)
            words[_CLASSES.index(at[0]), at[1], : len(rows)] = [row[place] for row in rows]
        yield Drawing(drawing.seed, drawing.text, drawing.drawn, drawing.slots, words)


def digests(device: ptxrt.Device, options: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Return the digests of each exact form's results: a table for each kernel, with that of what was drawn.

    Every form comes up once, and no result is a source. A float64 NaN counts as one whatever its payload.
    """
    found = []
    for number in range(0, len(FORMS), 50):
        drawing = sequence(FORMS[number : number + 50], number, chained=False)
        values = results(drawing, device, options)
        one = {"drawn": _digest(drawing.text.encode() + drawing.words.tobytes())}
        for line in drawing.drawn:
            if line.form.bound is None:
                rows = values[list(line.slots)]
                if "f64" in line.form.results:
                    rows = np.where(_nan64(rows), np.uint64(0x7FF8000000000000), rows)
                one[line.form.name] = _digest(rows.tobytes())
        found.append(one)
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def results(drawing: Drawing, device: ptxrt.Device, options: tuple[str, ...] = ()) -> np.ndarray:
    """Run it; return what each thread stored, as unsigned 64-bit words: (slot, thread)."""
    kernel = ptxrt.load(ptxrt.KernelSource.ptx(drawing.text), "drawn", "const u64* in, u64* out", device, options)
    out = ptxrt.zeros((drawing.slots, THREADS), np.uint64, device)
    kernel.launch(1, THREADS, ptxrt.to_device(drawing.words, device), out)
    return out.to_host()


# Edges --------------------------------------------------------------------------------------------------------------


def _f32(value: float) -> int:
    return int(np.float32(value).view(np.uint32))


def _f64(value: float) -> int:
    return int(np.float64(value).view(np.uint64))


def _f16(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


def _edges() -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    # Results just below the least normal number, which rounding would carry up to it: .ftz looks before or after?
    for way in ("rn", "rz", "rm", "rp"):
        found[f"fma.{way}.ftz.f32"] = [
            (_f32(2.0**-75), _f32(-sign * 2.0**-k), _f32(sign * 2.0**-126))
            for k in (75, 76, 77, 90)
            for sign in (1, -1)
        ]
        below = [(_f32(sign * 2.0**-63 * (1 + 2.0**-23)), _f32(2.0**-63 * (1 - 2.0**-23))) for sign in (1, -1)]
        found[f"mul.{way}.ftz.f32"] = [
            *below,
            (_f32(-1 + 2.0**-24), _f32(2.0**-126)),
            (_f32(1 - 2.0**-24), _f32(2.0**-126)),
        ]
        quotients: list[tuple[int, ...]] = [
            (_f32(sign * 2.0**-100), _f32(2.0**26 * (1 + 2.0**-23))) for sign in (1, -1)
        ]
        found[f"div.{way}.ftz.f32"] = quotients
        found[f"rcp.{way}.ftz.f32"] = [(_f32(sign * 2.0**126 * (1 + 2.0**-23)),) for sign in (1, -1)]
        found[f"cvt.{way}.ftz.f32.f64"] = [
            (_f64(sign * 2.0**-126 * (1 - 2.0**-k)),) for k in (23, 24, 25, 26, 40) for sign in (1, -1)
        ]
    found["fma.rn.ftz.f16"] = [
        (_f16(2.0**-13), _f16(-sign * 2.0**-k), _f16(sign * 2.0**-14)) for k in (12, 13, 14) for sign in (1, -1)
    ]
    found["mul.rn.ftz.f16"] = [
        (_f16(sign * 2.0**-7 * (1 + 2.0**-10)), _f16(2.0**-7 * (1 - 2.0**-10))) for sign in (1, -1)
    ]
    # Which of two NaN goes on.
    nans = (0x7FF8000000000000, 0xFFF8000000012345, 0x7FF0000000000777, 0xFFF0000000000999, 0x7FFFFFFFFFFFFFFF)
    pairs: list[tuple[int, ...]] = [(a, b) for a in nans for b in nans if a != b]
    for name in ("add.rn.f64", "sub.rn.f64", "mul.rn.f64", "div.rn.f64", "min.f64", "max.f64"):
        found[name] = pairs
    one = _f64(1.5)
    found["fma.rn.f64"] = [t for a, b in pairs for t in ((a, b, one), (a, one, b), (one, a, b), (a, b, nans[4]))]
    # Fields that begin or end outside of the register.
    word = 0x948D51EF7635DA3D
    counts = [
        (pos, length)
        for pos in (0, 5, 63, 64, 255, 256, 261, 2**31, 2**32 - 1)
        for length in (0, 7, 64, 255, 256, 260, 2**32 - 1)
    ]
    for kind in ("u64", "s64"):
        found[f"bfe.{kind}"] = [(word, pos, length) for pos, length in counts]
    found["bfi.b64"] = [(word, 0x1234, pos, length) for pos, length in counts]
    for kind in ("u32", "s32"):
        found[f"bfe.{kind}"] = [(word & 0xFFFFFFFF, pos, length) for pos, length in counts]
    found["bfi.b32"] = [(word & 0xFFFFFFFF, 0x1234, pos, length) for pos, length in counts]
    return found


EDGES = _edges()
"""Operands that chance seldom draws: for a form's name, rows of its sources as words."""


# Comparison ---------------------------------------------------------------------------------------------------------


@dataclass
class Difference:
    """One line whose results differ although its sources are the same.

    Attributes
    ----------
    drawn
        The line.
    threads
        In how many threads.
    operands, sim, other
        The sources and both results of the first of those threads, in hexadecimal.
    ulps
        The worst distance; infinite where a NaN or an infinity stands against another value.
    """

    drawn: Drawn
    threads: int
    operands: list[str]
    sim: list[str]
    other: list[str]
    ulps: float


def _parts(words: np.ndarray, kind: str) -> tuple[np.ndarray, str]:
    """Return the numbers of a result, one or two a word, and the type of each."""
    if kind.endswith("x2"):
        return np.stack((words & np.uint64(0xFFFF), words >> np.uint64(16)), -1), kind[:-2]
    return words[..., None], kind


def distance(a: np.ndarray, b: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance of results in units of the last place, and absolutely; of two NaN it is 0."""
    a, kind_of = _parts(a, kind)
    b, _ = _parts(b, kind)
    dtype = _DTYPES[kind_of]
    size = dtype.itemsize
    with np.errstate(all="ignore"):
        x, y = (np.ascontiguousarray(word.astype(f"u{size}")).view(dtype).astype(np.float64) for word in (a, b))
    bits = [np.ascontiguousarray(word.astype(f"u{size}")).view(f"i{size}").astype(np.int64) for word in (a, b)]
    order = [np.where(one < 0, -(one & np.int64((1 << (8 * size - 1)) - 1)), one) for one in bits]
    # The difference of two int64 of one sign is exact; of two signs it is large, and its float64 near enough.
    steps = np.where((order[0] < 0) == (order[1] < 0), np.abs(order[0] - order[1]).astype(np.float64),
                     np.abs(order[0].astype(np.float64) - order[1].astype(np.float64)))  # fmt: skip
    odd = ~(np.isfinite(x) & np.isfinite(y))
    same = (np.isnan(x) & np.isnan(y)) | (x == y)
    with np.errstate(all="ignore"):
        steps = np.where(same, 0.0, np.where(odd, np.inf, steps)).max(-1)
        far = np.where(same, 0.0, np.where(odd, np.inf, np.abs(x - y))).max(-1)
    return steps, far


def _nan64(words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.asarray((words & np.uint64(0x7FFFFFFFFFFFFFFF)) > np.uint64(0x7FF0000000000000))


def _free(one: Drawn, mine: np.ndarray, other: np.ndarray, words: dict[str, np.ndarray]) -> np.ndarray:
    """Return where two results are NaN of which PTX does not say which: of a float64 operation on two NaN."""
    nans = np.zeros(THREADS, np.int64)
    for kind, origin in zip(one.form.sources, one.sources, strict=True):
        if kind != "f64":
            continue
        if isinstance(origin, str):
            # ptxas may negate a constant and subtract it.
            nans += 2 * bool(_nan64(np.array([int(origin[2:], 16)], np.uint64))[0])
        else:
            nans += _nan64(mine[origin] if isinstance(origin, int) else words[origin[0]][origin[1]])
    slot = one.slots[0]
    return (nans > 1) & _nan64(mine[slot]) & _nan64(other[slot]) & (one.form.results == ("f64",))


@dataclass
class Comparison:
    """How two devices' results of one drawing compare.

    Attributes
    ----------
    differences
        Lines that differ and should not.
    worst
        The largest distance of each form that has a bound.
    free
        Results that are another NaN, where PTX does not say which.
    """

    differences: list[Difference] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)
    free: int = 0


def compare(drawing: Drawing, mine: np.ndarray, other: np.ndarray) -> Comparison:
    """Compare results with another device's; a line counts only in the threads in which its sources are equal."""
    words = dict(zip(_CLASSES, drawing.words, strict=True))
    equal = mine == other
    report = Comparison()
    worst = report.worst
    for one in drawing.drawn:
        fair = np.ones(THREADS, np.bool_)
        for origin in one.sources:
            if isinstance(origin, int):
                fair &= equal[origin]
        bound = one.form.bound
        wrong = np.zeros(THREADS, np.bool_)
        far = 0.0
        for slot, kind in zip(one.slots, one.form.results, strict=True):
            if bound is None:
                unequal = ~equal[slot] & fair
                if unequal.any():
                    free = unequal & _free(one, mine, other, words)
                    report.free += int(free.sum())
                    wrong |= unequal & ~free
                continue
            ulps, absolute = distance(mine[slot], other[slot], kind)
            inside = (ulps <= bound.ulps) | (absolute <= bound.absolute)
            far = max(far, float(ulps[fair & inside & (absolute > bound.absolute)].max(initial=0)))
            wrong |= ~inside & fair
        if bound is not None:
            worst[one.form.name] = max(far, worst.get(one.form.name, 0.0))
        if wrong.any():
            at = int(wrong.nonzero()[0][0])
            spread = 0.0
            for slot, kind in zip(one.slots, one.form.results, strict=True):
                if kind.removesuffix("x2") in _DTYPES:
                    spread = max(spread, float(distance(mine[slot], other[slot], kind)[0][wrong].max()))
            operands = [
                f"{mine[origin][at]:#x}" if isinstance(origin, int)
                else origin if isinstance(origin, str)
                else f"{words[origin[0]][origin[1]][at]:#x}" if origin[0] in words
                else f"({origin[0]}) {words['i32'][origin[1]][at]:#x}"
                for origin in one.sources
            ]  # fmt: skip
            report.differences.append(
                Difference(
                    one,
                    int(wrong.sum()),
                    operands,
                    [f"{mine[slot][at]:#x}" for slot in one.slots],
                    [f"{other[slot][at]:#x}" for slot in one.slots],
                    spread,
                )
            )
    return report
