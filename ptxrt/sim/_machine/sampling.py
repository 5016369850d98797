"""How a texture turns coordinates into values: NVIDIA's programming guide, "Texture Fetching".

Texel i of an axis lies from i to i + 1. Point filtering takes the texel that the coordinate is in; linear filtering the
two whose centres it is between, by weights of 8 fractional bits; tld4 gathers these texels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import product
from typing import NamedTuple

import numpy as np

from ptxrt.images import AddressMode, ImageFormat, Sampling
from ptxrt.sim._text.types import Array

__all__ = ["Lookup", "fetched", "gathered", "numbers", "sampled"]

_FAR = float(1 << 30)
_WEIGHT_STEPS = 256.0


class Lookup(NamedTuple):
    """Places in an image, by lane: the layer, and along x, y, z coordinates and numbers of texels to add."""

    layer: Array
    coordinates: Sequence[Array]
    offsets: Sequence[Array]


def sampled(texels: Array, form: ImageFormat, how: Sampling, at: Lookup) -> Array:
    """Return what a texture gives at float coordinates: shape (lanes, channels)."""
    axes = _axes(form, how, at, between=how.linear)
    if not how.linear:
        return _texels_at(texels, form, how, at.layer, [axis.at(0) for axis in axes])
    total = np.zeros((1, form.channels))
    for corner in product((0, 1), repeat=len(axes)):
        steps = list(zip(axes, corner, strict=True))
        weight = reduce(np.multiply, [axis.weight(step) for axis, step in steps])[:, None]
        values = _texels_at(texels, form, how, at.layer, [axis.at(step) for axis, step in steps])
        # A texel of no weight adds nothing, be it infinite.
        total = total + np.where(weight > 0, values.astype(np.float64) * weight, 0.0)
    return total.astype(np.float32)


def gathered(texels: Array, form: ImageFormat, how: Sampling, at: Lookup, channel: int) -> list[Array]:
    """Return one channel of the four texels that linear filtering would take, counter-clockwise from (0, 1)."""
    x, y = _axes(form, how, at, between=True)
    corners = ((0, 1), (1, 1), (1, 0), (0, 0))
    return [numbers(_texels_at(texels, form, how, at.layer, [x.at(a), y.at(b)]))[channel] for a, b in corners]


def fetched(texels: Array, form: ImageFormat, how: Sampling, at: Lookup) -> Array:
    """Return what a texture gives at texels by number, zeros outside: shape (lanes, channels)."""
    wanted = [place.astype(np.int64) + offset for place, offset in zip(at.coordinates, at.offsets, strict=True)]
    places = [_addressed(place, size, "border") for place, size in zip(wanted, _sizes(form), strict=False)]
    return _texels_at(texels, form, replace(how, border=(0.0,) * 4), at.layer, places)


def numbers(values: Array) -> list[Array]:
    """Return the four components of values of shape (lanes, channels): 0, 0, 0 and 1 for those that there are not."""
    there = [np.ascontiguousarray(column) for column in values.T]
    return there + [np.full(1, n, values.dtype) for n in (0, 0, 0, 1)[len(there) :]]


class _Axis:
    """Where coordinates along one axis lead to: a texel, or two and the weight of the second."""

    def __init__(
        self, size: int, mode: AddressMode, coordinate: Array, offset: Array, *, normalized: bool, between: bool
    ) -> None:
        self._size, self._mode = size, mode
        exact = np.nan_to_num(coordinate.astype(np.float64), nan=0.0, posinf=_FAR, neginf=-_FAR)
        exact = exact * size if normalized else exact
        exact = np.clip(exact - 0.5 if between else exact, -_FAR, _FAR)
        first = np.floor(exact)
        self._first = first.astype(np.int64) + offset
        self._part = np.rint((exact - first) * _WEIGHT_STEPS) / _WEIGHT_STEPS

    def weight(self, step: int) -> Array:
        return self._part if step else 1.0 - self._part

    def at(self, step: int) -> Array:
        """Return the texels' numbers, -1 where the border is."""
        return _addressed(self._first + step, self._size, self._mode)


def _axes(form: ImageFormat, how: Sampling, at: Lookup, *, between: bool) -> list[_Axis]:
    return [
        _Axis(size, mode, coordinate, offset, normalized=how.normalized_coords, between=between)
        for size, mode, coordinate, offset in zip(
            _sizes(form), how.address_modes, at.coordinates, at.offsets, strict=False
        )
    ]


def _addressed(place: Array, size: int, mode: AddressMode) -> Array:
    if mode == "wrap":
        return place % size
    if mode == "mirror":
        turn = place % (2 * size)
        return np.where(turn < size, turn, 2 * size - 1 - turn)
    if mode == "border":
        return np.where((place >= 0) & (place < size), place, -1)
    return np.clip(place, 0, size - 1)


def _sizes(form: ImageFormat) -> tuple[int, int, int]:
    return form.width, form.height, form.depth


def _texels_at(texels: Array, form: ImageFormat, how: Sampling, layer: Array, places: Sequence[Array]) -> Array:
    inside = np.logical_and.reduce(np.broadcast_arrays(*[place >= 0 for place in places]))
    found = _read(texels, form, how, layer, [np.maximum(place, 0) for place in places])
    if inside.all():
        return found
    border = np.array(how.border[: form.channels]).astype(found.dtype)
    return np.where(inside[:, None], found, border)


def _read(texels: Array, form: ImageFormat, how: Sampling, layer: Array, places: Sequence[Array]) -> Array:
    x, y, z = _filled(places)
    z = np.clip(layer.astype(np.int64), 0, form.depth - 1) if form.layered else z
    values: Array = texels[z, y, x]
    if values.dtype.kind == "f":
        return values.astype(np.float32)
    if how.normalized_float:
        most = np.iinfo(values.dtype).max
        return np.asarray(np.maximum(values.astype(np.float32) / np.float32(most), np.float32(-1)))
    return values.astype(np.int32 if values.dtype.kind == "i" else np.uint32)


def _filled(places: Sequence[Array]) -> Iterator[Array]:
    yield from places
    for _ in range(3 - len(places)):
        yield np.zeros(1, np.int64)
