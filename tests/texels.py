"""Kernels that read and write textures and surfaces, and what they should give, place by place."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
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
    """Return what a texture of an image, shape (..., height, width, channels), gives at places of shape (n, axes)."""
    axes = image.ndim - 1
    sizes = image.shape[:axes][::-1]
    modes = [mode] * axes if isinstance(mode, str) else list(mode)
    return np.array([_one(image, place, sizes, modes, filter, normalized, border) for place in np.atleast_2d(places)])


def _one(
    image: Array,
    place: Any,
    sizes: Sequence[int],
    modes: Sequence[str],
    filter: str,
    normalized: bool,
    border: float,
) -> Any:
    corners = []
    for coordinate, size, mode in zip(map(float, place), sizes, modes, strict=True):
        x = coordinate * size if normalized else coordinate
        if filter == "point":
            corners.append([(_texel(math.floor(x), size, mode), 1.0)])
            continue
        x -= 0.5
        first = math.floor(x)
        weight = round((x - first) * 256) / 256
        corners.append([(_texel(first, size, mode), 1 - weight), (_texel(first + 1, size, mode), weight)])
    total = np.zeros(image.shape[-1])
    for corner in itertools.product(*corners):
        index = tuple(i for i, _ in corner)[::-1]
        value = np.full(image.shape[-1], border) if None in index else image[index]
        total = total + np.asarray(value, np.float64) * math.prod(w for _, w in corner)
    return total


def _texel(i: int, size: int, mode: str) -> int | None:
    if mode == "clamp":
        return min(max(i, 0), size - 1)
    if mode == "wrap":
        return i % size
    if mode == "mirror":
        around = i % (2 * size)
        return around if around < size else 2 * size - 1 - around
    return i if 0 <= i < size else None
