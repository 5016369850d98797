"""Kernels that read and write textures and surfaces, and what they should give, place by place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

import ptxrt

Array = np.ndarray[Any, Any]
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
PLACES = {"1d": "{a}", "2d": "{a, b}", "3d": "{a, b, c, c}", "a1d": "{layer, a}", "a2d": "{layer, a, b, b}"}


def text(body: str, coordinate: str = "f32", params: str = ".param .u64 t_") -> str:
    """Return an entry k(t, places, out) in which thread i has the place i: a, b, c, and layer; it stores r0 to r3."""
    return f"""{HEAD}
.visible .entry k({params}, .param .u64 places, .param .u64 out)
{{
.reg .b64 t, p, o, at, d0, d1; .reg .b32 i, n, layer, r<8>; .reg .{coordinate} a, b, c; .reg .b16 h<4>; .reg .pred q;
ld.param.u64 t, [t_]; ld.param.u64 p, [places]; ld.param.u64 o, [out];
mov.u32 i, %tid.x; mov.u32 n, %ctaid.x; mad.lo.u32 i, n, 128, i; mul.wide.u32 at, i, 16;
add.u64 p, p, at; add.u64 o, o, at;
ld.global.{coordinate} a, [p]; ld.global.{coordinate} b, [p+4]; ld.global.{coordinate} c, [p+8];
ld.global.u32 layer, [p+12];
ld.global.v4.u32 {{r0, r1, r2, r3}}, [o];
{body}
st.global.v4.u32 [o], {{r0, r1, r2, r3}};
ret;
}}
"""


@cache
def kernel(device: ptxrt.Device, body: str, coordinate: str, kind: str = "texture") -> ptxrt.Kernel:
    """Return the kernel of a body, loaded."""
    source = ptxrt.KernelSource.ptx(text(body, coordinate))
    return ptxrt.load(source, "k", f"{kind} t, const u32* places, u32* out", device)


def run(
    bound: ptxrt.Texture | ptxrt.Surface,
    body: str,
    places: Any,
    coordinate: str = "f32",
    layers: Any = 0,
    values: Any = 0,
) -> Array:
    """Run a body for each place of shape (n, axes), x first, and return r0 to r3 of each as uint32."""
    device, dtype = bound.device, np.dtype({"f32": np.float32, "s32": np.int32}[coordinate])
    given = np.atleast_2d(np.asarray(places, dtype))
    count = len(given)
    padded = np.zeros((-(-count // 128) * 128, 4), np.uint32)
    padded[:count, : given.shape[1]] = given.view(np.uint32)
    padded[:count, 3] = layers
    start = np.zeros(padded.shape, np.uint32)
    start[:count] = values
    # The threads that fill the last block up do what the last one does.
    padded[count:], start[count:] = padded[count - 1], start[count - 1]
    out = ptxrt.to_device(start, device)
    kind = "texture" if isinstance(bound, ptxrt.Texture) else "surface"
    kernel(device, body, coordinate, kind).launch(len(padded) // 128, 128, bound, ptxrt.to_device(padded, device), out)
    return out.to_host()[:count]


def tex(geometry: str, kind: str = "f32", coordinate: str = "f32") -> str:
    """Return the read of a texture."""
    return f"tex.{geometry}.v4.{kind}.{coordinate} {{r0, r1, r2, r3}}, [t, {PLACES[geometry]}];"


def expected(
    image: Array,
    places: Any,
    mode: str | Sequence[str] = "clamp",
    filter: str = "point",
    normalized: bool = False,
    border: float = 0.0,
) -> Array:
    """Return what a texture of an image, shape (..., height, width, channels), gives at places of shape (n, axes).

    Integers are read as floats from 0 or -1 to 1. The border is that of images of floats.
    """
    axes = image.ndim - 1
    modes = [mode] * axes if isinstance(mode, str) else list(mode)
    return np.array([_one(image, place, modes, filter, normalized, border) for place in np.atleast_2d(places)])


def _one(image: Array, place: Any, modes: Sequence[str], filter: str, normalized: bool, border: float) -> list[float]:
    corners: list[list[int | None]] = []
    shares = []
    for coordinate, size, mode in zip(place, image.shape[-2::-1], modes, strict=True):
        x = Fraction(0 if abs(coordinate) < 2.0**-126 else float(coordinate))
        if mode == "wrap":
            x = Fraction(math.floor(x * 2**21) % 2**21, 2**21)
        x = x * size if normalized else x
        if filter == "point":
            corners.append([_texel(math.floor(x), size, mode)])
            continue
        # Steps of 1 / 256 from the first texel's centre, halves upwards.
        first, share = divmod(math.floor((x - Fraction(1, 2)) * 256 + Fraction(1, 2)), 256)
        near, far = _texel(first, size, mode), _texel(first + 1, size, mode)
        corners.append([near, far])
        shares.append(0 if near == far else share)
    found = []
    for corner in itertools.product(*corners):
        found.append([border] * image.shape[-1] if None in corner else image[corner[::-1]].tolist())
    if filter == "point":
        return found[0] if image.dtype.kind == "f" else [max(n / np.iinfo(image.dtype).max, -1.0) for n in found[0]]
    filtered = _floats if image.dtype.kind == "f" else _integers
    by = weights(shares)
    return [filtered([*zip(values, by, strict=True)], image.dtype.name) for values in zip(*found, strict=True)]


def weights(shares: Sequence[int]) -> list[int]:
    """Return the weights of the corners (x, y, z), z fastest, of the second texels' shares of 256 along x, y, z."""
    x, y, z = [*shares, 0, 0][:3]
    found: dict[tuple[int, ...], int] = {}
    for c, plane in enumerate((256 - z, z)):
        right = (plane * x + 128) // 256
        low_right = (right * y + 128) // 256
        low_left = ((plane - right) * y + 127) // 256
        found[0, 0, c], found[0, 1, c] = plane - right - low_left, low_left
        found[1, 0, c], found[1, 1, c] = right - low_right, low_right
    return [found[(*corner, 0, 0)[:3]] for corner in itertools.product((0, 1), repeat=len(shares))]


def _floats(corners: Sequence[tuple[float, int]], kind: str) -> float:
    fraction, digits = {"float16": (14, 11), "float32": (27, 24)}[kind]
    planes = [corners[0::2], corners[1::2]] if len(corners) == 8 else [corners]
    sums = []  # of each plane, an integer, and what 1 stands for
    for plane in planes:
        values = [(Fraction(value), weight) for value, weight in plane if weight]
        if any(value for value, _ in values):
            unit = Fraction(2) ** (_exponent(max(abs(value) for value, _ in values)) - fraction)
            sums.append((sum(int(value / unit) * weight for value, weight in values), unit))
    if not sums:
        return 0.0
    coarse = max(unit for _, unit in sums)
    exact = sum(math.floor(whole * unit / coarse) for whole, unit in sums) * coarse / 256
    if exact == 0:
        return 0.0
    step = Fraction(2) ** (_exponent(abs(exact)) + 1 - digits)
    rounded = math.floor(abs(exact) / step + Fraction(1, 2)) * step
    return float(rounded if exact > 0 else -rounded)


def _exponent(value: Fraction) -> int:
    """Return n where the value is from 2 ** n on, below 2 ** (n + 1)."""
    return math.frexp(float(value))[1] - 1


def _integers(corners: Sequence[tuple[float, int]], kind: str) -> float:
    total = int(sum(value * weight for value, weight in corners))
    if kind == "uint8":
        total *= 257
    if kind == "int8":
        total = 258 * total + 32 * (total // 4096)
    most = 65535 if kind.startswith("u") else 32767
    return float(np.float32(max((total + 128) // 256, -most) / most))


def _texel(i: int, size: int, mode: str) -> int | None:
    if mode == "clamp":
        return min(max(i, 0), size - 1)
    if mode == "wrap":
        return i % size
    if mode == "mirror":
        around = i % (2 * size)
        return around if around < size else 2 * size - 1 - around
    return i if 0 <= i < size else None
