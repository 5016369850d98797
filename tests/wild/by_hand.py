"""References of the kernels in handwritten/: habits of old compilers, LLVM, Go and Rust; rare forms."""

from __future__ import annotations

import numpy as np
from wild import Array, Bench, Result, Results, case, f32

SLICE = np.dtype([("start", "u8"), ("length", "u8")])
MAX, MIN = 2**31 - 1, -(2**31)


@case("handwritten/old.ptx")
def relief(bench: Bench) -> Results:
    kernel = bench.load("_Z6reliefPKfPfii", "const f32* x[n], f32* y[n], i32 n, i32 mode")
    x, y, marks = bench.normal(100), bench.empty(100), bench.empty(100)
    kernel.launch(2, 64, bench.put(x), y, 100, 0)
    kernel.launch(2, 64, bench.put(x), marks, 100, 1)
    left, middle, right = np.pad(x, 1)[:-2], x, np.pad(x, 1)[2:]
    # A quarter and a half are exact, so each fma rounds once.
    sums = f32(right * 0.25 + f32(middle * 0.5 + left * np.float64(0.25)).astype(float))
    return {"y": Result(y.numpy(), sums), "marks": Result(marks.numpy(), f32(sums > 0.5))}


@case("handwritten/old.ptx")
def absolute_differences(bench: Bench) -> Results:
    a, b = bench.rng.integers(-1000, 1000, (2, 32), np.int32)
    y = bench.empty(1, np.uint32)
    bench.load("_Z3sadPKiS0_Pj", "const i32* a[32], const i32* b[32], u32* y").launch(
        1, 32, bench.put(a), bench.put(b), y
    )
    return {"y": Result(y.numpy(), np.array([abs(a - b).sum()], np.uint32))}


@case("handwritten/rust.ptx")
def slices(bench: Bench) -> Results:
    kernel = bench.load("_ZN7kernels4axpy17h3a9f0c51d2b7e846E", "f32 a, Slice x, Slice y", {"Slice": SLICE})
    x, y = bench.normal(80), bench.normal(80)
    there, result = bench.put(x), bench.put(y)
    kernel.launch(3, 32, 0.5, (there.ptr, 80), (result.ptr, 80))
    return {"y": Result(result.numpy(), f32(0.5 * x.astype(float) + y))}


@case("handwritten/rust.ptx")
def arrays_by_value(bench: Bench) -> Results:
    kernel = bench.load("_ZN7kernels7rotated17hbd1f90aa64e2c715E", "Words x, u32* y[16], u32 by", {"Words": "V32"})
    x, y = bench.rng.integers(0, 2**32, 8, np.uint32), bench.empty(16, np.uint32)
    kernel.launch(1, 16, x.tobytes(), y, 3)
    return {"y": Result(y.numpy(), np.tile(np.roll(x, 3), 2))}


@case("handwritten/loaders.ptx")
def loaders(bench: Bench) -> Results:
    a, b = bench.normal(2, 500)
    c = bench.empty(500)
    bench.load("add", "const f32* a[n], const f32* b[n], f32* c[n], u32 n").launch(
        4, 128, bench.put(a), bench.put(b), c, 500
    )
    kernel = bench.load("mirrored", "f32* x, u32 width")
    kernel.variable("calls", np.uint32).fill(0)
    x = bench.normal(4, 50)
    there = bench.put(x)
    kernel.launch(4, 32, there, 50, shared_bytes=200)
    return {
        "add": Result(c.numpy(), a + b),
        "mirrored": Result(there.numpy(), f32(x[:, ::-1] * np.float32(1 / 3))),
        "calls": Result(kernel.variable("calls", np.uint32).numpy(), np.uint32(4)),
    }


@case("handwritten/loaders.ptx")
def jump_table(bench: Bench) -> Results:
    out = bench.empty(32, np.uint64)
    bench.load("mix", "u64* out[32]").launch(1, 32, out)
    expected = []
    for lane in range(32):
        case_, word = lane % 4, 2**64
        start = (lane + 100, ~lane % word, lane.bit_count() * 7, 0x80000001 | 3 << 32)[case_]
        total = start + word - 16
        joined = (case_ << 32 | lane) << 31 >> 32 & 0xFFFFFFFF
        value = (total % word ^ 0xFFFF0000) + int((joined >> 16) * 0.5 + 1.25)
        expected.append(((value % word ^ total // word << 63) + 42) % word)
    return {"out": Result(out.numpy(), np.array(expected, np.uint64))}


@case("handwritten/vectors.ptx")
def vectors_to_functions(bench: Bench) -> Results:
    x, y = bench.normal(2, 20, 4)
    z = bench.empty((20, 3))
    bench.load("vectors", "alignas(16) const f32* x[80], alignas(16) const f32* y[80], f32* z[60]").launch(
        1, 20, bench.put(x), bench.put(y), z
    )
    wide, other = x.astype(np.longdouble), y.astype(np.longdouble)  # in which a fused product and sum are exact

    def fused(column: int, with_column: int, add: Array) -> Array:
        return f32(wide[:, column] * other[:, with_column] + add)

    dot = f32(x[:, 0] * y[:, 0])
    for axis in (1, 2, 3):
        dot = fused(axis, axis, dot)
    columns = [fused(0, 0, -f32(x[:, 1] * y[:, 1])), fused(0, 1, f32(x[:, 1] * y[:, 0])), dot]
    return {"z": Result(z.numpy(), np.stack(columns, 1))}


@case("handwritten/sibling.ptx")
def beside_a_sibling(bench: Bench) -> Results:
    x = bench.normal(100)
    there = bench.put(x)
    bench.load("scaled", "f32* x[n], f32 a, u32 n").launch(4, 32, there, 1.25, 100)
    return {"x": Result(there.numpy(), f32(x * np.float32(1.25)))}


@case("handwritten/reserved.ptx")
def reserved(bench: Bench) -> Results:
    y = bench.empty(1, np.uint32)
    bench.load("reserved", "u32* y").launch(1, 1, y)
    return {"y": Result(y.numpy(), np.array([7], np.uint32))}


@case("handwritten/comments.ptx")
def comments(bench: Bench) -> Results:
    x, y = bench.normal(32), bench.empty(32)
    bench.load("squares", "const f32* x, f32* y").launch(1, 32, bench.put(x), y)
    return {"y": Result(y.numpy(), x * x)}


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (value >> bits - 1 << bits)


def _halves(a: int, bits: int, *, signed: bool) -> list[int]:
    parts = [a >> bits * i & (1 << bits) - 1 for i in range(32 // bits)]
    return [_signed(part, bits) for part in parts] if signed else parts


def _joined(parts: list[int], bits: int) -> int:
    return sum((part & (1 << bits) - 1) << bits * i for i, part in enumerate(parts))


def _video(a: int, b: int, c: int) -> list[int]:
    """The 16 results of the kernel `video`, by the rules of the PTX manual."""
    sa, sb, sc = (_signed(v, 32) for v in (a, b, c))
    bytes_a, bytes_b = (_halves(v, 8, signed=True) for v in (a, b))
    halves_a, halves_b = (_halves(v, 16, signed=True) for v in (a, b))
    low_a, low_b = (_halves(v, 8, signed=False) for v in (a, b))
    low = low_b[0]
    shift = min(low, 32)
    lower = min(bytes_a[0], bytes_b[3])
    floats = [np.array([v], np.uint32).view(np.float16) for v in (a, b)]
    less = floats[0] < floats[1]
    return [
        bytes_a[1] + halves_b[1],
        min(max(a - sb, MIN), MAX),
        abs(sa - sb) + c,
        c & 0xFF00FFFF | (lower & 0xFF) << 16,
        max(a & 0xFFFF, b >> 16, c),
        sa >> min(low, 31),
        (a >> (low_b[1] & 31)) + c,
        (a >> 16) << shift,
        (halves_a[0] * halves_b[1] + sc) >> 7,
        int(sa < b),
        _joined([min(max(p + q, -(2**15)), 2**15 - 1) for p, q in zip(halves_a, halves_b, strict=True)], 16),
        sum(p + q for p, q in zip(low_a, low_b, strict=True)) + c,
        _joined([(p + q + 1) >> 1 for p, q in zip(low_a, low_b, strict=True)], 8),
        _joined([min(max(v, -(2**15)), 2**15 - 1) for v in (sb, sa)], 16),
        _joined([min(max(v, 0), 255) for v in (sb, sa)] + [c & 0xFF, c >> 8 & 0xFF], 8),
        _joined([0x3C00 if one else 0 for one in less], 16),
    ]


@case("handwritten/video.ptx")
def video(bench: Bench) -> Results:
    words = bench.rng.integers(0, 2**32, (3, 64), np.uint32)
    words[:, 32:] = bench.rng.integers(-40, 40, (3, 32)).astype(np.int32).view(np.uint32)
    out = bench.empty((64, 16), np.uint32)
    arrays = [bench.put(one) for one in words]
    bench.load("video", "const u32* x[64], const u32* y[64], const u32* z[64], u32* out[1024]").launch(
        1, 64, *arrays, out
    )
    expected = [[value & 0xFFFFFFFF for value in _video(*map(int, column))] for column in words.T]
    return {"out": Result(out.numpy(), np.array(expected, np.uint32))}
