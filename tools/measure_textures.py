"""Compare textures and surfaces of a GPU with those of sim, bit for bit: ``python tools/measure_textures.py``.

Each case is one image, one instruction and many places. A line says how many values of it differ, and by how much; with
``--out FILE.npz`` the places and both results of each case are stored. Linear filtering is drawn where a GPU's weights,
and the order of its sums, can be read off: sim's rules, which docs/sim.md lists, are what an H200 gave. The cases of
txq and suq are for drivers that take them; 580 does not.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from texels import PLACES, run, tex

import ptxrt

Array = np.ndarray[Any, Any]
INTEGERS = (np.uint8, np.int8, np.uint16, np.int16)


@dataclass
class Case:
    """One image, read or written at many places by one body.

    Attributes
    ----------
    image
        Its texels.
    body
        What the kernel of tests/texels.py does: it leaves its results in r0 to r3.
    places
        Of shape (n, axes), x first.
    how
        Arguments of the Texture; None for a Surface, whose texels are results, too.
    results
        What the words of a result are.
    common
        Arguments of the Texture or the Surface.
    words
        How many of r0 to r3 are compared.
    """

    name: str
    image: Array
    body: str
    places: Any
    how: dict[str, Any] | None = field(default_factory=dict)
    coordinate: str = "f32"
    results: Any = np.float32
    values: Any = 0
    layers: Any = 0
    common: dict[str, Any] = field(default_factory=dict)
    words: int = 1

    def on(self, device: str) -> Array:
        """Return the results on a device: shape (n, 4), behind them the texels of a surface."""
        if self.how is not None:
            with ptxrt.Texture(self.image, device, **self.how, **self.common) as texture:
                return self._run(texture)
        with ptxrt.Surface(self.image, device, **self.common) as surface:
            found = self._run(surface)
            texels = surface.to_host().astype(self.results).reshape(-1)
        rest = np.zeros(-texels.size % 4, texels.dtype)
        return np.concatenate([found, np.concatenate([texels, rest]).reshape(-1, 4)])

    def _run(self, bound: ptxrt.Texture | ptxrt.Surface) -> Array:
        found = run(bound, self.body, self.places, self.coordinate, self.layers, self.values)
        found[:, self.words :] = 0
        return found.view(self.results)


def around(values: Array, steps: int = 3) -> Array:
    """Return float32 numbers and their nearest neighbours."""
    found = [values.astype(np.float32)]
    for direction in (np.inf, -np.inf):
        at = found[0]
        for _ in range(steps):
            at = np.nextafter(at, np.float32(direction))
            found.append(at)
    return np.concatenate(found)


def column(values: Array) -> Array:
    """Return places along one axis."""
    return values.astype(np.float32)[:, None]


def cases(count: int) -> Iterator[Case]:
    """Yield the cases, with so many places where they are drawn."""
    rng = np.random.default_rng(12)
    ramp = np.array([0, 1], np.float32)
    line = rng.standard_normal(1021).astype(np.float32)
    flat, deep = rng.standard_normal((61, 97)).astype(np.float32), rng.standard_normal((13, 17, 19)).astype(np.float32)
    linear: dict[str, Any] = {"filter": "linear"}
    # Point filtering, where one texel gives way to the next.
    borders = around(np.arange(-3, 1025))
    yield Case("point, around whole numbers", line, tex("1d"), column(borders))
    for size in (7, 97, 1021):
        places = around(np.arange(-size, 2 * size + 1) / size)
        how = {"normalized_coords": True, "address_mode": "wrap"}
        yield Case(f"point, normalised, around k / {size}", line[:size], tex("1d"), column(places), how)
    odd = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e10, -1e10, -0.0, 1e-40, -1e-40])
    yield Case("point, NaN, infinite, huge", line, tex("1d"), column(odd))
    yield Case("linear, NaN, infinite, huge", line, tex("1d"), column(odd), linear)
    # Weights.
    steps = np.arange(4096) / 4096
    yield Case("linear, weights of a ramp", ramp, tex("1d"), column(0.5 + steps), linear)
    yield Case("linear, weights at 1000", np.arange(1021, dtype=np.float32), tex("1d"), column(1000.5 + steps), linear)
    yield Case("linear, weights of a negative ramp", -ramp, tex("1d"), column(0.5 + steps), linear)
    for size in (2, 7, 1021):
        how = {**linear, "normalized_coords": True}
        numbers = np.arange(size, dtype=np.float32)
        yield Case(f"linear, normalised, {size} texels", numbers, tex("1d"), column(np.arange(8192) / 8192), how)
    # Sums.
    drawn = rng.random((count, 3))
    whole = np.round(drawn * 256 * 20) / 256  # weights that all agree on
    large = (line * np.float32(1e30)).astype(np.float32)
    yield Case("linear 1D, drawn texels", line, tex("1d"), whole[:, :1] * 50, linear)
    yield Case("linear 1D, large texels", large, tex("1d"), whole[:, :1] * 50, linear)
    yield Case("linear 1D, float16", line.astype(np.float16), tex("1d"), whole[:, :1] * 50, linear)
    yield Case("linear 2D, drawn texels", flat, tex("2d"), whole[:, :2] * 3, linear)
    yield Case("linear 2D, drawn places", flat, tex("2d"), (drawn * [97, 61, 0])[:, :2], linear)
    yield Case("linear 3D, drawn texels", deep, tex("3d"), whole, linear)
    yield Case("linear, infinite texel of no weight", np.array([1, np.inf, 2], np.float32), tex("1d"),
               column(np.array([0.5, 1.5, 2.5, 0.75, 2.25])), linear)  # fmt: skip
    for mode in ("wrap", "mirror", "clamp", "border"):
        how = {**linear, "normalized_coords": True, "address_mode": mode}
        yield Case(f"linear 2D, {mode}", flat[:32, :64], tex("2d"), np.round(drawn[:, :2] * 3072) / 1024 - 1, how)
    # Integers as floats.
    for dtype in INTEGERS:
        limits = np.iinfo(dtype)
        every = np.linspace(limits.min, limits.max, min(65536, limits.max - limits.min + 1)).astype(dtype)
        places, how = column(np.arange(every.size) + 0.5), {"normalized_float": True}
        yield Case(f"{every.dtype} as float", every, tex("1d"), places, how)
        image = rng.integers(limits.min, limits.max, 1021, dtype=dtype, endpoint=True)
        yield Case(f"{every.dtype} as float, linear", image, tex("1d"), whole[:, :1] * 50, {**how, **linear})
    # What the manuals leave open.
    for channels in (1, 2):
        image = np.full((4, channels), 5, np.float32)
        common = {"channels": channels}
        yield Case(f"the rest of {channels} channels, floats", image, tex("1d"), [[0.5]], common=common, words=4)
        yield Case(f"the rest of {channels} channels, integers", image.astype(np.uint8), tex("1d", "u32"), [[0.5]],
                   results=np.uint32, common=common, words=4)  # fmt: skip
    gather = "tld4.r.2d.v4.f32.f32 {r0, r1, r2, r3}, [t, {a, b}];"
    numbered = np.arange(64, dtype=np.float32).reshape(8, 8)
    places = np.stack([4 + (np.arange(2049) / 2048), np.full(2049, 4.25)], axis=1)
    yield Case("gather, around half texels", numbered, gather, places, words=4)
    sizes = ("width", "height", "depth", "array_size")
    shapes: list[tuple[str, Array, dict[str, Any]]] = [
        ("1D", np.zeros(5, np.float32), {}),
        ("2D", np.zeros((3, 5), np.float32), {}),
        ("3D", np.zeros((2, 3, 5), np.float32), {}),
        ("1D, layered", np.zeros((2, 5), np.float32), {"layered": True}),
        ("2D, layered", np.zeros((2, 3, 5), np.float32), {"layered": True}),
    ]
    for name, image, common in shapes:
        body = " ".join(f"{{}}.{size}.b32 r{n}, [t];" for n, size in enumerate(sizes))
        yield Case(f"txq, {name}", image, body.replace("{}", "txq"), [[0]], results=np.uint32, common=common, words=4)
        yield Case(
            f"suq, {name}", image, body.replace("{}", "suq"), [[0]], None, results=np.uint32, common=common, words=4
        )
    # Surfaces.
    table = np.arange(15, dtype=np.uint32).reshape(3, 5)
    outside = [(-4, 0), (20, 0), (24, 2), (0, 3), (16, -1), (8, 1)]
    outside_by_two = [(-8, 0), (16, 0), (24, 2), (0, 3), (8, -1), (8, 1)]
    for clamp in ("clamp", "zero"):
        yield Case(f"suld.{clamp}", table, f"suld.b.2d.b32.{clamp} r0, [t, {{a, b}}];", outside, None, "s32", np.uint32)
        wide = f"suld.b.2d.v2.b32.{clamp} {{r0, r1}}, [t, {{a, b}}];"
        yield Case(f"suld.v2.{clamp}", table, wide, outside_by_two, None, "s32", np.uint32, words=2)
        yield Case(f"sust.{clamp}", table, f"sust.b.2d.b32.{clamp} [t, {{a, b}}], r0;", outside, None, "s32", np.uint32,
                   values=99)  # fmt: skip
    given = np.array([0, 1, 255, 256, 70000, 2**31, 2**32 - 5, 2**32 - 200], np.uint32)
    floats = np.array([0.1, -1e6, 65519, 65520, 1e-8, np.nan, np.inf, 3.0], np.float32).view(np.uint32)
    store, eight = "sust.p.1d.b32.trap [t, a], r0;", np.arange(8)[:, None]
    for name in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32"):
        kind = np.dtype(name).kind
        values = np.repeat((floats if kind == "f" else given)[:, None], 4, axis=1)
        yield Case(f"sust.p, {name}", np.zeros(8, name), store, eight, None, "s32", np.dtype(f"{kind}4"), values)
    for how_ in ("add.2d.u32", "min.2d.s32", "max.2d.u32", "and.2d.b32", "or.2d.b32"):
        body = f"sured.b.{how_}.trap [t, {PLACES['2d']}], r0;"
        many = [(4 * x, y) for y in range(3) for x in range(5)]
        yield Case(f"sured.{how_}", table, body, many, None, "s32", np.uint32, values=6)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases on both devices, print a table, store what was asked for; return 1 if something differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda:0", help="what is compared with sim (cuda:0)")
    parser.add_argument("--count", type=int, default=20000, help="places that are drawn, a case (20000)")
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument("--out", type=Path, help="an .npz file for the places and results of each case")
    how = parser.parse_args(arguments)
    stored: dict[str, Array] = {}
    differing = 0
    for case in cases(how.count):
        if not case.name.startswith(how.only):
            continue
        try:
            theirs, ours = case.on(how.device), case.on("sim:0")
        except ptxrt.PtxrtError as error:
            print(f"{case.name:42} {type(error).__name__}: {str(error).splitlines()[0]}")
            differing += 1
            continue
        stored |= {f"{case.name}/{name}": np.asarray(value) for name, value in
                   (("places", case.places), ("device", theirs), ("sim", ours))}  # fmt: skip
        differing += report(case, theirs, ours)
    if how.out:
        np.savez_compressed(how.out, **stored)  # type: ignore[arg-type]
    return int(differing > 0)


def report(case: Case, theirs: Array, ours: Array) -> bool:
    """Print how many values differ, and the first of them; return whether any does."""
    same = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
    wrong = np.argwhere(~same)
    largest = ""
    if len(wrong):
        with np.errstate(all="ignore"):
            distance = np.abs(theirs.astype(np.float64) - ours.astype(np.float64))
        largest = f"largest difference {np.nanmax(distance):.3g}"
    print(f"{case.name:42} {len(wrong):7} of {same.size:7} differ  {largest}")
    places = np.asarray(case.places)
    for row, part in wrong[:4]:
        at = places[row].tolist() if row < len(places) else f"texels {4 * (row - len(places))} on"
        print(f"    at {at}, r{part}: {theirs[row, part]!s} there, {ours[row, part]!s} on sim")
    return bool(len(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
