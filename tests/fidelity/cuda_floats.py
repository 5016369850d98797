"""Floating point: what is exact by definition, libm within its bound, halves, conversions."""
# ruff: noqa: E501  -- a kernel has its own lines

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from cases import Case, floats, integers

__all__ = ["CASES"]

N = 1024
_GRID: dict[str, Any] = {"grid": 4, "block": 256}
_F32, _F64 = np.float32, np.float64
_APPROX = (
    "ex2, lg2, sin, cos, rcp, rsqrt and sqrt .approx differ by 1 to 2 ulp from the device's, and what follows scales it"
)


def _arrays(count: int, dtype: Any, results: int, *, wild: bool = True, scale: float = 4.0, out: Any = None) -> Any:
    shape = N if results == 1 else (N, results)
    return lambda rng: [
        *(floats(rng, N, dtype, wild=wild, scale=scale) for _ in range(count)),
        np.zeros(shape, out or dtype),
    ]


def _each(function: Any) -> Any:
    """A function of Python's floats on an array, NaN where it has no answer."""

    def over(x: Any) -> Any:
        def one(v: Any) -> Any:
            try:
                return function(v)
            except (ValueError, OverflowError):
                return math.nan

        return np.array([one(float(v)) for v in x])

    return over


def _libm(
    name: str, body: str, expect: Any, *, kind: str = "f32", ulps: float = 4.0, scale: float = 4.0, results: int = 1,
    close: float = 3e-6, **more: Any,
) -> Case:  # fmt: skip
    dtype = _F32 if kind == "f32" else _F64
    return Case(name, f"const {kind}* x, {kind}* out", body, make=_arrays(1, dtype, results, wild=False, scale=scale),
                expect=lambda x, out: [expect(x.astype(_F64))], ulps=ulps,
                why=_APPROX if ulps else "", close=close, **more, **_GRID)  # fmt: skip


_ROUND = " ".join(
    f"out[12 * i + {3 * k}] = __fadd_{way}(a[i], b[i]); out[12 * i + {3 * k + 1}] = __fmul_{way}(a[i], b[i]);"
    f"out[12 * i + {3 * k + 2}] = __fdiv_{way}(a[i], b[i]);"
    for k, way in enumerate(("rn", "rz", "ru", "rd"))
)
_ROUND64 = _ROUND.replace("__f", "__d")
_FMA = " ".join(f"out[8 * i + {k}] = __fmaf_{way}(a[i], b[i], c[i]);" for k, way in enumerate(("rn", "rz", "ru", "rd")))
_FMA += " ".join(f"out[8 * i + {k + 4}] = __fsqrt_{way}(a[i]);" for k, way in enumerate(("rn", "rz", "ru", "rd")))
_FMA64 = _FMA.replace("__fmaf_", "__fma_").replace("__fsqrt", "__dsqrt")


def _basic(a: Any, b: Any, out: Any) -> Any:
    # -0 is below +0 for the device, and the same for NumPy.
    zeros = (a == 0) & (b == 0)
    low = np.where(zeros, np.where(np.signbit(a), a, b), np.fmin(a, b))
    high = np.where(zeros, np.where(np.signbit(a), b, a), np.fmax(a, b))
    return [np.stack([a + b, a - b, a * b, a / b, np.sqrt(a), -a, np.abs(a), low, high], -1)]


_BASIC = "".join(
    f"o[{k}] = {text};"
    for k, text in enumerate(
        ("x + y", "x - y", "x * y", "x / y", "sqrt(x)", "-x", "fabs(x)", "fmin(x, y)", "fmax(x, y)")
    )
)


def _rounded(x: Any, out: Any) -> Any:
    away = np.copysign(np.floor(np.abs(x.astype(_F64)) + 0.5), x)
    return [np.stack([np.floor(x), np.ceil(x), np.trunc(x), np.rint(x), away.astype(x.dtype)], -1)]


_ROUNDED = "out[5 * i] = floor(x[i]); out[5 * i + 1] = ceil(x[i]); out[5 * i + 2] = trunc(x[i]); out[5 * i + 3] = rint(x[i]); out[5 * i + 4] = round(x[i]);"


def _clip_to(x: Any, kind: Any) -> Any:
    info = np.iinfo(kind)
    whole = np.trunc(x.astype(_F64))
    inside = np.where((whole >= float(info.min)) & (whole <= float(info.max)), whole, 0.0)
    whole = np.where(whole >= float(info.max), 0.0, inside).astype(kind)
    return np.where(x >= float(info.max), info.max, np.where(x <= float(info.min), info.min, whole))


def _to_ints(x: Any, out: Any) -> Any:
    parts = [_clip_to(x, kind) for kind in (np.int32, np.uint32, np.int64, np.uint64)]
    return [
        np.stack(
            [
                part.astype(np.uint64) if part.dtype.kind == "u" else part.astype(np.int64).view(np.uint64)
                for part in parts
            ],
            -1,
        )
    ]


_TO_INTS = "o[0] = (long long)(int)v; o[1] = (unsigned)v; o[2] = (long long)v; o[3] = (unsigned long long)v;"


def _dot_of_products(a: Any, b: Any, out: Any) -> Any:
    total = np.zeros(N, _F32)
    for k in range(8):
        total = total + np.roll(a, -k) * np.roll(b, -k)
    return [total]


def _half(name: str) -> np.dtype[Any]:
    kinds: dict[str, np.dtype[Any]] = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
    return kinds[name]


def _halves(rng: np.random.Generator, kind: str, count: int, results: int, out: Any = np.uint16) -> list[Any]:
    arrays = []
    for _ in range(count):
        with np.errstate(over="ignore"):
            x = floats(rng, N, scale=3.0).astype(_half(kind))
        arrays.append(x.view(np.uint16))
    return [*arrays, np.zeros((N, results), out)]


def _half_op(op: str, kind: str, sources: int) -> str:
    operands = ", ".join(f'"h"({name}[i])' for name in "abc"[:sources])
    slots = ", ".join(f"%{k}" for k in range(1, sources + 1))
    return f'{{ unsigned short r; asm("{op}.{kind} %0, {slots};" : "=h"(r) : {operands}); *o++ = r; }}'


def _half_case(kind: str) -> Case:
    ops = [("add.rn", 2), ("sub.rn", 2), ("mul.rn", 2), ("fma.rn", 3), ("min", 2), ("max", 2), ("abs", 1), ("neg", 1)]
    ops += [("add.rn.sat", 2), ("mul.rn.ftz", 2)] if kind == "f16" else [("fma.rn.relu", 3)]
    body = f"unsigned short* o = out + {len(ops)} * i;" + "".join(_half_op(op, kind, count) for op, count in ops)

    return Case(f"halves_{kind}", "const u16* a, const u16* b, const u16* c, u16* out", body,
                make=lambda rng: _halves(rng, kind, 3, len(ops)), **_GRID)  # fmt: skip


_FROM_FLOAT = [("rn", "f16"), ("rz", "f16"), ("rm", "f16"), ("rp", "f16"), ("rn", "bf16"), ("rz", "bf16")]


def _matmul(a: Any, b: Any, out: Any) -> Any:
    n = 64
    a, b, total = a.reshape(n, n), b.reshape(n, n), np.zeros((n, n), a.dtype)
    for k in range(n):
        total = total + a[:, k : k + 1] * b[k]
    return [total.reshape(-1)]


_TILES = """__shared__ {0} s[16][16], t[16][17];
const int row = blockIdx.y * 16 + threadIdx.y, column = blockIdx.x * 16 + threadIdx.x;
{0} sum = 0;
for (int k = 0; k < 64; k += 16) {{
    s[threadIdx.y][threadIdx.x] = a[row * 64 + k + threadIdx.x];
    t[threadIdx.y][threadIdx.x] = b[(k + threadIdx.y) * 64 + column];
    __syncthreads();
    for (int j = 0; j < 16; j++) sum += s[threadIdx.y][j] * t[j][threadIdx.x];
    __syncthreads();
}}
out[row * 64 + column] = sum;"""


def _tiles(kind: str, ctype: str, dtype: Any) -> Case:
    return Case(f"matmul_{kind}", f"const {kind}* a, const {kind}* b, {kind}* out", _TILES.format(ctype), (4, 4), (16, 16),
                lambda rng: [floats(rng, 4096, dtype, wild=False), floats(rng, 4096, dtype, wild=False), np.zeros(4096, dtype)],
                _matmul)  # fmt: skip


_HALF_DOT = """float sum = 0;
for (int k = 0; k < 64; k++) {
    float x, y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(a[blockIdx.x * 64 + k]));
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(b[k * 64 + threadIdx.x]));
    sum = fmaf(x, y, sum);
}
unsigned short h;
asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(sum));
out[blockIdx.x * 64 + threadIdx.x] = h;"""


def _half_product(a: Any, b: Any, out: Any) -> Any:
    # A product of two halves is exact in float32, so that fma is the product and one rounding.
    x, y = (v.view(np.float16).astype(_F32).reshape(64, 64) for v in (a, b))
    total = np.zeros((64, 64), _F32)
    for k in range(64):
        total = total + x[:, k : k + 1] * y[k]
    return [total.astype(np.float16).view(np.uint16).reshape(-1)]


def _packed(a: Any, b: Any, out: Any) -> Any:
    x, y = (v.view(np.float16) for v in (a, b))
    return [np.ascontiguousarray(x * y).view(np.uint32)]


_BITS = "out[4 * i] = __float_as_uint(x[i]) + 1; out[4 * i + 1] = isnan(x[i]); out[4 * i + 2] = isinf(x[i]); out[4 * i + 3] = signbit(x[i]);"

CASES = (
    Case("float_basics", "const f32* a, const f32* b, f32* out",
         "float x = a[i], y = b[i], *o = out + 9 * i;" + _BASIC.replace("fabs", "fabsf").replace("sqrt", "sqrtf"),
         make=_arrays(2, _F32, 9), expect=_basic, **_GRID),
    Case("double_basics", "const f64* a, const f64* b, f64* out", "double x = a[i], y = b[i], *o = out + 9 * i;" + _BASIC,
         make=_arrays(2, _F64, 9), expect=_basic, **_GRID),
    Case("float_directed", "const f32* a, const f32* b, f32* out", _ROUND, make=_arrays(2, _F32, 12), **_GRID),
    Case("double_directed", "const f64* a, const f64* b, f64* out", _ROUND64, make=_arrays(2, _F64, 12), **_GRID),
    Case("float_fma_and_root", "const f32* a, const f32* b, const f32* c, f32* out", _FMA, make=_arrays(3, _F32, 8), **_GRID),
    Case("double_fma_and_root", "const f64* a, const f64* b, const f64* c, f64* out", _FMA64, make=_arrays(3, _F64, 8),
         **_GRID),
    Case("float_ftz", "const f32* a, const f32* b, f32* out",
         "float x = a[i] * 1e-30f, y = b[i] * 1e-8f, *o = out + 4 * i; o[0] = x * y; o[1] = x + y; o[2] = fmaf(x, y, x); o[3] = x - x * 0.5f;",
         make=_arrays(2, _F32, 4), options=("--ftz=true",), **_GRID),
    Case("float_rounding", "const f32* x, f32* out", _ROUNDED.replace("(x", "f(x"), make=_arrays(1, _F32, 5), expect=_rounded,
         **_GRID),
    Case("double_rounding", "const f64* x, f64* out", _ROUNDED, make=_arrays(1, _F64, 5), expect=_rounded, **_GRID),
    Case("float_remainders", "const f32* a, const f32* b, f32* out",
         "out[3 * i] = fmodf(a[i], b[i]); out[3 * i + 1] = remainderf(a[i], b[i]); out[3 * i + 2] = fdimf(a[i], b[i]);",
         make=_arrays(2, _F32, 3), **_GRID),
    Case("double_modulo", "const f64* a, const f64* b, f64* out", "out[i] = fmod(a[i], b[i]);",
         make=_arrays(2, _F64, 1), expect=lambda a, b, out: [np.fmod(a, b)], **_GRID),
    Case("float_parts", "const f32* x, f32* out",
         "int e; float w; out[5 * i] = frexpf(x[i], &e); out[5 * i + 1] = isfinite(x[i]) ? e : 0; out[5 * i + 2] = modff(x[i], &w); out[5 * i + 3] = w;"
         "out[5 * i + 4] = ldexpf(x[i], 5) + scalbnf(x[i], -140);",
         make=_arrays(1, _F32, 5), **_GRID),
    Case("float_neighbours", "const f32* a, const f32* b, f32* out",
         "out[3 * i] = nextafterf(a[i], b[i]); out[3 * i + 1] = copysignf(a[i], b[i]); out[3 * i + 2] = fmaf(a[i], b[i], 1.0f);",
         make=_arrays(2, _F32, 3), **_GRID),
    Case("float_bits", "const f32* x, u32* out", _BITS, make=_arrays(1, _F32, 4, out=np.uint32),
         expect=lambda x, out: [np.stack([x.view(np.uint32) + 1, np.isnan(x), np.isinf(x), np.signbit(x)], -1)], **_GRID),
    Case("float_comparisons", "const f32* a, const f32* b, u32* out",
         "float x = a[i], y = b[i]; unsigned m = 0; if (x < y) m |= 1; if (x <= y) m |= 2; if (x == y) m |= 4; if (x != y) m |= 8; if (!(x < y)) m |= 16;"
         "if (x >= y) m |= 32; if (x != x || y != y) m |= 64; if (x < y || x > y) m |= 128; out[i] = m;",
         make=_arrays(2, _F32, 1, out=np.uint32),
         expect=lambda a, b, out: [(a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * ~(a < b) + 32 * (a >= b)
                                   + 64 * (np.isnan(a) | np.isnan(b)) + 128 * ((a < b) | (a > b))], **_GRID),
    Case("float_to_integers", "const f32* x, u64* out", "float v = x[i] * 1e9f; unsigned long long* o = out + 4 * i;" + _TO_INTS,
         make=_arrays(1, _F32, 4, wild=True, out=np.uint64), **_GRID),
    Case("double_to_integers", "const f64* x, u64* out", "double v = x[i] * 3e18; unsigned long long* o = out + 4 * i;" + _TO_INTS,
         make=_arrays(1, _F64, 4, wild=False, out=np.uint64),
         expect=lambda x, out: _to_ints(x * 3e18, out), **_GRID),
    Case("rounded_to_integers", "const f32* x, i32* out",
         "float v = x[i]; out[5 * i] = __float2int_rn(v); out[5 * i + 1] = __float2int_ru(v); out[5 * i + 2] = __float2int_rd(v);"
         "out[5 * i + 3] = (int)__float2uint_rn(v); out[5 * i + 4] = (int)lrintf(v);",
         make=_arrays(1, _F32, 5, out=np.int32), **_GRID),
    Case("integers_to_floats", "const i64* a, f32* out",
         "long long x = a[i]; out[6 * i] = x; out[6 * i + 1] = (unsigned long long)x; out[6 * i + 2] = (int)x; out[6 * i + 3] = __ll2float_rz(x);"
         "out[6 * i + 4] = __ll2float_ru(x); out[6 * i + 5] = __uint2float_rd((unsigned)x);",
         make=lambda rng: [integers(rng, N, np.int64), np.zeros((N, 6), _F32)], **_GRID),
    Case("integers_to_doubles", "const i64* a, f64* out",
         "long long x = a[i]; out[4 * i] = x; out[4 * i + 1] = (unsigned long long)x; out[4 * i + 2] = (int)x; out[4 * i + 3] = __ll2double_rd(x);",
         make=lambda rng: [integers(rng, N, np.int64), np.zeros((N, 4), _F64)], **_GRID),
    Case("doubles_to_floats", "const f64* x, f32* out",
         "double v = x[i] * 1e-30 * x[i]; out[4 * i] = v; out[4 * i + 1] = __double2float_rz(v); out[4 * i + 2] = __double2float_ru(x[i]); out[4 * i + 3] = __double2float_rd(x[i]);",
         make=_arrays(1, _F64, 4, out=_F32), **_GRID),
    Case("double_words", "const f64* x, f64* out",
         "out[2 * i] = __hiloint2double(__double2hiint(x[i]) ^ 0x100, __double2loint(x[i])); out[2 * i + 1] = __longlong_as_double(__double_as_longlong(x[i]) ^ 1);",
         make=_arrays(1, _F64, 2, wild=False), **_GRID),
    _half_case("f16"),
    _half_case("bf16"),
    Case("floats_to_halves", "const f32* x, u16* out",
         f"unsigned short* o = out + {len(_FROM_FLOAT)} * i;"
         + "".join(f'asm("cvt.{way}.{kind}.f32 %0, %1;" : "=h"(o[{k}]) : "f"(x[i]));' for k, (way, kind) in enumerate(_FROM_FLOAT)),
         make=lambda rng: [floats(rng, N, scale=3e4), np.zeros((N, len(_FROM_FLOAT)), np.uint16)], **_GRID),
    Case("packed_halves", "const u32* a, const u32* b, u32* out",
         'asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(out[i]) : "r"(a[i]), "r"(b[i]));',
         make=lambda rng: [*(rng.standard_normal(2 * N).astype(np.float16).view(np.uint32) for _ in range(2)), np.zeros(N, np.uint32)],
         expect=_packed, **_GRID),
    Case("matmul_f16", "const u16* a, const u16* b, u16* out", _HALF_DOT, 64, 64,
         lambda rng: [*(rng.standard_normal(4096).astype(np.float16).view(np.uint16) for _ in range(2)), np.zeros(4096, np.uint16)],
         _half_product),
    _tiles("f32", "float", _F32),
    _tiles("f64", "double", _F64),
    Case("matmul_with_contraction", "const f32* a, const f32* b, f32* out", _TILES.format("float"), (4, 4), (16, 16),
         lambda rng: [floats(rng, 4096, wild=False), floats(rng, 4096, wild=False), np.zeros(4096, _F32)], _matmul,
         options=("--fmad=true",), close=2e-2),
    Case("compensated_sum", "const f32* x, f32* out",
         "float sum = 0, rest = 0; for (int k = 0; k < 64; k++) { float y = x[(i * 7 + k) & 1023] - rest, t = sum + y; rest = (t - sum) - y; sum = t; } out[i] = sum;",
         make=_arrays(1, _F32, 1, wild=False), **_GRID),
    Case("horner_polynomial", "const f64* x, f64* out",
         "double v = x[i], r = 0; for (int k = 12; k >= 0; k--) r = fma(r, v, 1.0 / (k + 1)); out[i] = r;",
         make=_arrays(1, _F64, 1, wild=False, scale=1.0), **_GRID),
    Case("newton_root", "const f64* x, f64* out",
         "double v = fabs(x[i]) + 1e-3, r = v; for (int k = 0; k < 40; k++) r = 0.5 * (r + v / r); out[i] = r;",
         make=_arrays(1, _F64, 1, wild=False), expect=lambda x, out: [np.sqrt(np.abs(x) + 1e-3)], close=1e-14, **_GRID),
    Case("mandelbrot", "i32* out",
         "float cx = -2.0f + 3.0f * (i & 31) / 32, cy = -1.5f + 3.0f * (i >> 5) / 32, x = 0, y = 0; int n = 0;"
         "while (x * x + y * y < 4.0f && n < 100) { float t = x * x - y * y + cx; y = 2 * x * y + cy; x = t; n++; } out[i] = n;",
         make=lambda rng: [np.zeros(N, np.int32)], **_GRID),
    _libm("libm_expf", "out[i] = expf(x[i]);", np.exp),
    _libm("libm_exp2f_expm1f", "out[2 * i] = exp2f(x[i]); out[2 * i + 1] = expm1f(x[i]);",
          lambda x: np.stack([np.exp2(x), np.expm1(x)], -1), results=2),
    _libm("libm_logf", "float v = fabsf(x[i]); out[3 * i] = logf(v); out[3 * i + 1] = log2f(v); out[3 * i + 2] = log1pf(v);",
          lambda x: np.stack([np.log(np.abs(x)), np.log2(np.abs(x)), np.log1p(np.abs(x))], -1), results=3),
    _libm("libm_sincosf", "float s, c; sincosf(x[i] * 100.0f, &s, &c); out[3 * i] = s; out[3 * i + 1] = c; out[3 * i + 2] = tanf(x[i]);",
          lambda x: np.stack([np.sin(v := (x.astype(_F32) * _F32(100)).astype(_F64)), np.cos(v), np.tan(x)], -1), results=3, close=3e-6),
    _libm("libm_large_angles", "out[i] = sinf(x[i] * 1e7f);",
          lambda x: np.sin((x.astype(_F32) * _F32(1e7)).astype(_F64)), close=3e-6),
    _libm("libm_arcs", "float v = x[i] * 0.1f; out[4 * i] = asinf(v); out[4 * i + 1] = acosf(v); out[4 * i + 2] = atanf(x[i]); out[4 * i + 3] = atan2f(x[i], v - 1);",
          lambda x: np.stack([np.arcsin(v := (x.astype(_F32) * _F32(0.1)).astype(_F64)), np.arccos(v), np.arctan(x),
                              np.arctan2(x, (v.astype(_F32) - _F32(1)).astype(_F64))], -1), results=4, close=1e-4),
    _libm("libm_hyperbolic", "out[4 * i] = sinhf(x[i]); out[4 * i + 1] = coshf(x[i]); out[4 * i + 2] = tanhf(x[i]); out[4 * i + 3] = asinhf(x[i]);",
          lambda x: np.stack([np.sinh(x), np.cosh(x), np.tanh(x), np.arcsinh(x)], -1), results=4),
    _libm("libm_powf", "out[i] = powf(fabsf(x[i]), 1.7f);", lambda x: np.abs(x) ** float(_F32(1.7))),
    _libm("libm_roots", "out[3 * i] = cbrtf(x[i]); out[3 * i + 1] = hypotf(x[i], 3.0f); out[3 * i + 2] = rsqrtf(fabsf(x[i]));",
          lambda x: np.stack([np.cbrt(x), np.hypot(x, 3), 1 / np.sqrt(np.abs(x))], -1), results=3),
    _libm("libm_erff", "out[2 * i] = erff(x[i]); out[2 * i + 1] = erfcf(x[i] * 0.3f);",
          lambda x: np.stack([_each(math.erf)(x), _each(math.erfc)(x.astype(_F32) * _F32(0.3))], -1), results=2, close=1e-5),
    _libm("libm_gamma", "out[2 * i] = tgammaf(fabsf(x[i]) + 0.5f); out[2 * i + 1] = lgammaf(fabsf(x[i]) + 3.0f);",
          lambda x: np.stack([_each(math.gamma)(np.abs(x.astype(_F32)) + _F32(0.5)), _each(math.lgamma)(np.abs(x.astype(_F32)) + _F32(3))], -1),
          results=2, close=2e-5, ulps=16.0),
    _libm("fast_math", "float v = x[i]; out[4 * i] = __expf(v); out[4 * i + 1] = __logf(fabsf(v)); out[4 * i + 2] = __sinf(v); out[4 * i + 3] = __fdividef(v, 3.0f);",
          lambda x: np.stack([np.exp(x), np.log(np.abs(x)), np.sin(x), x / 3], -1), results=4, close=2e-3, scale=1.0, absolute=2.0**-20),
    _libm("double_exp_log", "out[3 * i] = exp(x[i]); out[3 * i + 1] = log(fabs(x[i])); out[3 * i + 2] = log10(fabs(x[i]) + 1);",
          lambda x: np.stack([np.exp(x), np.log(np.abs(x)), np.log10(np.abs(x) + 1)], -1), kind="f64", ulps=1.0, close=1e-14, results=3),
    _libm("double_sin_cos", "out[2 * i] = sin(x[i] * 1e9); out[2 * i + 1] = cos(x[i]);",
          lambda x: np.stack([np.sin(x * 1e9), np.cos(x)], -1), kind="f64", ulps=1.0, close=1e-12, results=2),
    _libm("double_pow", "out[2 * i] = pow(fabs(x[i]), 1.7); out[2 * i + 1] = pow(x[i], 3.0);",
          lambda x: np.stack([np.abs(x) ** 1.7, x**3], -1), kind="f64", ulps=1.0, close=1e-14, results=2),
    _libm("double_special", "out[4 * i] = erf(x[i]); out[4 * i + 1] = tgamma(fabs(x[i]) + 0.5); out[4 * i + 2] = atan2(x[i], 2.0); out[4 * i + 3] = tanh(x[i]);",
          lambda x: np.stack([_each(math.erf)(x), _each(math.gamma)(np.abs(x) + 0.5), np.arctan2(x, 2), np.tanh(x)], -1),
          kind="f64", ulps=2.0, close=1e-13, results=4),
    _libm("double_roots", "double v = fabs(x[i]); out[3 * i] = rsqrt(v); out[3 * i + 1] = cbrt(x[i]); out[3 * i + 2] = hypot(x[i], 5.0);",
          lambda x: np.stack([1 / np.sqrt(np.abs(x)), np.cbrt(x), np.hypot(x, 5)], -1), kind="f64", ulps=1.0, close=1e-14, results=3),
)  # fmt: skip
"""The kernels of this file."""
