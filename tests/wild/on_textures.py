"""References of the kernels in from_nvrtc/ that read textures and write surfaces."""

from __future__ import annotations

import numpy as np
from wild import Bench, Result, Results, case

import ptxrt


@case("from_nvrtc/textures.ptx")
def sampled(bench: Bench) -> Results:
    """A picture turned by a shear of quarters: of whole numbers, all products and sums are exact."""
    height, width = 20, 36
    image = bench.rng.integers(-500, 500, (height, width)).astype(np.float32)
    j, i = np.mgrid[:height, :width]
    x, y = i + 0.25 * (j - height // 2), j - 0.25 * (i - width // 2)
    kernel = bench.load("sampled", "texture image, f32* y[720], i32 width, i32 height, f32 turn")
    results = {}
    for mode in ("clamp", "border"):
        wide = np.pad(image, 40, "edge" if mode == "clamp" else "constant").astype(float)

        def texel(column: np.ndarray, row: np.ndarray, of: np.ndarray = wide) -> np.ndarray:
            return np.asarray(of[row.astype(int) + 40, column.astype(int) + 40])

        left, top = np.floor(x), np.floor(y)
        rows = [texel(left, r) * (1 - x + left) + texel(left + 1, r) * (x - left) for r in (top, top + 1)]
        expected = {
            "point": texel(np.floor(x + 0.5), np.floor(y + 0.5)),
            "linear": rows[0] * (1 - y + top) + rows[1] * (y - top),
        }
        for filtered, reference in expected.items():
            out = bench.empty((height, width))
            with ptxrt.Texture(image, bench.device, address_mode=mode, filter=filtered) as texture:
                kernel.launch((5, 5), (8, 4), texture, out, width, height, 0.25)
                results[f"{mode}, {filtered}"] = Result(out.numpy(), reference.astype(np.float32))
    return results


@case("from_nvrtc/textures.ptx")
def gathered(bench: Bench) -> Results:
    image, y = bench.normal(6, 9), bench.empty((6, 9, 4))
    with ptxrt.Texture(image, bench.device) as texture:
        bench.load("gathered", "texture image, alignas(16) f32* y[216], i32 width").launch(6, 9, texture, y, 9)
        wide = np.pad(image, ((0, 1), (0, 1)), "edge")
        corners = (wide[1:, :-1], wide[1:, 1:], wide[:-1, 1:], wide[:-1, :-1])
        return {"y": Result(y.numpy(), np.stack(corners, 2))}


@case("from_nvrtc/textures.ptx")
def fetched(bench: Bench) -> Results:
    x, y = bench.normal(100), bench.empty(100)
    with ptxrt.Texture.from_memory(bench.put(x)) as texture:
        bench.load("fetched", "texture line, f32* y[n], i32 n").launch(4, 32, texture, y, 100)
        return {"y": Result(y.numpy(), x[::-1])}


@case("from_nvrtc/textures.ptx")
def through_volume(bench: Bench) -> Results:
    volume = bench.rng.integers(-99, 99, (5, 4, 6, 4)).astype(np.float32)
    y = bench.empty((4, 6, 4))
    with ptxrt.Texture(volume, bench.device, channels=4) as texture:
        bench.load("through_volume", "texture volume, alignas(16) f32* y[96], i32 depth").launch(
            1, (6, 4), texture, y, 5
        )
        return {"y": Result(y.numpy(), volume.sum(0))}


@case("from_nvrtc/textures.ptx")
def life(bench: Bench) -> Results:
    cells = bench.rng.integers(0, 2, (16, 24), np.int32)
    kernel = bench.load("life", "surface from, surface to")
    with ptxrt.Surface(cells, bench.device) as one, ptxrt.Surface(cells, bench.device) as other:
        for _ in range(2):
            kernel.launch((3, 2), (8, 8), one, other)
            kernel.launch((3, 2), (8, 8), other, one)
        out = one.to_host()
    for _ in range(4):
        wide = np.pad(cells, 1)
        around = sum(wide[1 + j : 17 + j, 1 + i : 25 + i] for j in (-1, 0, 1) for i in (-1, 0, 1)) - cells
        cells = ((around == 3) | (cells * around == 2)).astype(np.int32)
    return {"cells": Result(out, cells)}
