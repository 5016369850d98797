"""How a texture turns coordinates into values: NVIDIA's programming guide, "Texture Fetching".

Texel i of an axis lies from i to i + 1. Point filtering takes the texel that the coordinate is in; linear filtering the
two whose centres it is between, as filtering.py says; tld4 gathers these texels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np

from ptxrt.images import AddressMode, ImageFormat, Sampling
from ptxrt.sim._machine.filtering import WHOLE, sum_of_floats, sum_of_integers, weights
from ptxrt.sim._text.types import Array

__all__ = ["Lookup", "fetched", "gathered", "numbers", "sampled"]

_FAR = float(1 << 30)
_WRAPPED = 1 << 21  # parts of a turn: normalised coordinates that wrap are cut to them


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
    by = weights([axis.part for axis in axes])
    integers = form.dtype.kind != "f"
    border = np.rint(np.multiply(how.border, np.iinfo(form.dtype).max)) if integers else how.border
    corners = []
    for steps in product((0, 1), repeat=len(axes)):
        places = [axis.at(step) for axis, step in zip(axes, steps, strict=True)]
        stored = _stored(texels, form, at.layer, places).astype(np.int64 if integers else np.float32)
        corners.append(_bordered(stored, border, places))
    found = np.stack(np.broadcast_arrays(*corners))
    if integers:
        return sum_of_integers(found, by, form.dtype)
    return sum_of_floats(found, by, form.dtype)


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
    """Return the four components of values of shape (lanes, channels): zeros for those that there are not."""
    there = [np.ascontiguousarray(column) for column in values.T]
    return there + [np.zeros(1, values.dtype)] * (4 - len(there))


class _Axis:
    """Where coordinates along one axis lead to: a texel, or two and the weight of the second."""

    def __init__(
        self, size: int, mode: AddressMode, coordinate: Array, offset: Array, *, normalized: bool, between: bool
    ) -> None:
        self._size, self._mode = size, mode
        subnormal = np.abs(coordinate) < np.finfo(np.float32).tiny
        exact = np.where(np.isnan(coordinate) | subnormal, 0, coordinate).astype(np.float64)
        if mode == "wrap":
            exact = np.floor(np.clip(exact, -_FAR, _FAR) * _WRAPPED) % _WRAPPED / _WRAPPED
        exact = np.clip(exact * size if normalized else exact, -_FAR, _FAR)
        # In steps of a weight. Between centres they are rounded, halves upwards: at most to the next centre.
        steps = np.floor((exact - 0.5) * WHOLE + 0.5 if between else exact * WHOLE).astype(np.int64)
        self._first, self._part = steps // WHOLE + offset, steps % WHOLE

    @property
    def part(self) -> Array:
        """The weight of the second texel, of 256; none where it is the first one."""
        return np.where(self.at(0) == self.at(1), 0, self._part)

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
    found = _as_read(_stored(texels, form, layer, places), how)
    return _bordered(found, how.border, places)


def _bordered(found: Array, border: Sequence[float] | Array, places: Sequence[Array]) -> Array:
    """Return texels, those outside as the border has them."""
    inside = np.logical_and.reduce(np.broadcast_arrays(*[place >= 0 for place in places]))
    if inside.all():
        return found
    return np.where(inside[:, None], found, np.array(border[: found.shape[1]]).astype(found.dtype))


def _stored(texels: Array, form: ImageFormat, layer: Array, places: Sequence[Array]) -> Array:
    """Return texels as they are in memory, any for those outside."""
    x, y, z = _filled([np.maximum(place, 0) for place in places])
    z = np.clip(layer.astype(np.int64), 0, form.depth - 1) if form.layered else z
    values: Array = texels[z, y, x]
    return values


def _as_read(values: Array, how: Sampling) -> Array:
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
