"""The ops at shapes of real networks, and at small ones, as data: what the benchmarks of the ops run.

Beside the list there are cases that nobody picked: :func:`drawn`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from benchmarks.measured import kernel_keys
from ptxrt import ops

__all__ = ["TYPES", "Case", "cases", "drawn", "keys"]

TYPES = ("f32", "f16", "bf16", "f64", "u8")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """An op at a shape.

    Attributes
    ----------
    op
        The function in ``ptxrt.ops``.
    shape, dtype
        Of x. layer_norm and rms_norm normalize its last axis.
    groups, training, factor
        What the op takes beside: of group_norm, batch_norm, upsample_nearest2d.
    size, mode, padding_mode
        Of grid_sample: the axes of its result behind C, and how it samples.
    channels_last
        Whether the arrays of x's shape lie so in memory.
    """

    op: str
    shape: Shape
    dtype: str = "f32"
    groups: int = 32
    training: bool = True
    factor: int = 2
    size: Shape = (1, 1)
    mode: str = "bilinear"
    padding_mode: str = "zeros"
    channels_last: bool = False

    def __str__(self) -> str:
        how = [word for word in (self.mode, self.padding_mode) if word not in ("bilinear", "zeros")]
        more = {
            "group_norm": [f"G{self.groups}"],
            "batch_norm": ["train" if self.training else "eval"],
            "local_response_norm": ["size 5"],
            "upsample_nearest2d": [f"x{self.factor}"],
            "grid_sample": ["to", "x".join(map(str, self.size)), *how],
        }.get(self.family, [])
        layout = ["channels-last"] if self.channels_last else []
        return " ".join(["x".join(map(str, self.shape)), self.dtype, *more, *layout])

    @property
    def family(self) -> str:
        """The file of its kernels."""
        return self.op.removesuffix("_backward")

    @property
    def result_shape(self) -> Shape:
        """Of what the op, of a backward its forward, returns first."""
        if self.family == "upsample_nearest2d":
            return (*self.shape[:2], *(length * self.factor for length in self.shape[2:]))
        return (*self.shape[:2], *self.size) if self.family == "grid_sample" else self.shape

    def small(self) -> Case:
        """Return it at a shape for the PTX machine."""
        length = {2: 64, 4: 4, 5: 2}[len(self.shape)]
        middle = tuple(min(channels, 32) for channels in self.shape[1:-1][:1])
        axes = (length,) * max(len(self.shape) - 2, 1)
        return replace(self, shape=(1 if middle else 4, *middle, *axes), size=axes)


def cases(only: str = "", types: Collection[str] = TYPES) -> Iterator[Case]:
    """Return the cases in these element types whose op and case, as they are printed, have `only` in them."""
    return (case for case in _cases() if case.dtype in types and only in f"{case.op} {case}")


def keys(case: Case, languages: Iterable[str]) -> list[str]:
    """Return what is measured by a case, as :mod:`benchmarks.measured` names it: all its op's kernels."""
    served = {
        (spec.family, spec.language)
        for spec in ops.kernels()
        if spec.op.removesuffix("_backward") == case.family and spec.dtype == case.dtype
    }
    wanted = set(languages)
    return [key for family, name in sorted(served) if name in wanted for key in kernel_keys(family, case.dtype, name)]


_BIG: tuple[Shape, ...] = ((1, 128, 512, 512), (8, 320, 64, 64), (64, 64, 56, 56))
_WIDE: tuple[Shape, ...] = ((8, 21, 512, 512), (16, 256, 64, 64), (64, 1000, 7, 7))
_BATCHES: tuple[Shape, ...] = ((32, 64, 112, 112), (32, 256, 56, 56), (128, 512, 7, 7), (256, 2048, 7, 7))
_LRN: Shape = (128, 96, 55, 55)
_ROWS: tuple[Shape, ...] = ((4096, 4096), (32768, 768), (1024, 16384))
_SHORT_ROWS: Shape = (65536, 256)
_SAMPLED: tuple[tuple[Shape, Shape], ...] = (
    ((8, 64, 128, 128), (128, 128)),
    ((4, 3, 1024, 1024), (1024, 1024)),
    ((2, 256, 64, 64), (256, 256)),
)
_SCALED: tuple[tuple[Shape, int], ...] = (((8, 256, 64, 64), 2), ((1, 128, 512, 512), 2), ((4, 64, 135, 240), 3))
# What a launch costs more than its bytes.
_SMALL: tuple[Shape, ...] = ((1, 32, 8, 8), (2, 64, 16, 16))
_MIDDLE: tuple[Shape, ...] = ((8, 64, 32, 32), (4, 320, 32, 32))
_HALVES = ("f16", "bf16")
_FORWARD_AND_BACKWARD = ("", "_backward")


def _each(op: str, shapes: Iterable[Shape], types: Iterable[str] = ("f32",), **more: Any) -> Iterator[Case]:
    return (Case(op, shape, dtype, **more) for shape, dtype in product(shapes, types))


def _cases() -> Iterator[Case]:
    yield from _each("group_norm", (*_BIG, (1, 512, 128, 128), (2, 1280, 16, 16)))
    yield Case("group_norm", (2, 32, 8, 8), groups=8)
    yield from _each("group_norm", _BIG[:2], _HALVES)
    # Channels that are no whole vectors.
    yield Case("group_norm", (32, 512, 14, 14), "f16")
    yield Case("group_norm", (64, 512, 7, 7))
    yield from _each("group_norm", ((65536, 256, 1, 1),), ("f32", "f16"), groups=8)
    yield from _each("group_norm_backward", _BIG)
    yield from _each("group_norm_backward", _BIG[1:2], _HALVES)
    yield Case("group_norm_backward", (32, 1024, 14, 14), "f16")
    yield Case("group_norm_backward", (64, 512, 7, 7))
    yield from _each("group_norm_backward", ((65536, 256, 1, 1),), ("f32", "f16"), groups=8)
    for op in ("softmax2d", "softmax2d_backward"):
        yield from _each(op, _WIDE)
    yield from _each("softmax2d", _WIDE[1:], _HALVES)
    yield from _each("softmax2d_backward", _WIDE[1:2], _HALVES)
    for op in ("softmax2d", "softmax2d_backward"):
        yield from _each(op, [(8, 19, 256, 512), (2, 2, 512, 512)], ("f32", "f16"))
    yield from _each("batch_norm", _BATCHES)
    yield from _each("batch_norm", (_BATCHES[1], _BATCHES[3]), _HALVES)
    yield from _each("batch_norm", (_BATCHES[0], _BATCHES[1], _BATCHES[3]), training=False)
    yield from _each("batch_norm", _BATCHES[1:2], _HALVES, training=False)
    yield from _each("batch_norm_backward", _BATCHES)
    yield from _each("batch_norm_backward", _BATCHES[1:2], _HALVES)
    yield from _each("batch_norm_backward", (_BATCHES[1], _BATCHES[3]), training=False)
    for op in ("local_response_norm", "local_response_norm_backward"):
        yield from _each(op, [_LRN], ("f32", *_HALVES, "f64"))
    for op in ("layer_norm", "rms_norm"):
        yield from _each(op, _ROWS)
        yield from _each(op, _ROWS[:2], _HALVES)
        yield from _each(op, [_SHORT_ROWS], ("f32", "f16"))
        yield from _each(f"{op}_backward", _ROWS[:2])
        yield from _each(f"{op}_backward", _ROWS[:1], _HALVES)
    for turn in _FORWARD_AND_BACKWARD:
        yield Case(f"rms_norm{turn}", (131072, 128), "bf16")  # of heads of attention
        yield Case(f"layer_norm{turn}", (32768, 100), "f16")  # rows that are no whole vectors
    for op in ("group_norm", "layer_norm", "rms_norm", "softmax2d", "batch_norm"):
        shape = {"group_norm": _BIG[1], "softmax2d": _WIDE[1], "batch_norm": _BATCHES[1]}.get(op, _ROWS[0])
        for turn in _FORWARD_AND_BACKWARD:
            yield Case(op + turn, shape, "f64")
    for shape, factor in _SCALED:
        yield from _each("upsample_nearest2d", [shape], ("f32", "f64", "f16", "u8"), factor=factor)
        yield from _each("upsample_nearest2d_backward", [shape], factor=factor)
    yield Case("upsample_nearest2d", _SCALED[0][0], "bf16")
    yield from _each("upsample_nearest2d_backward", [_SCALED[0][0]], _HALVES)
    for turn in _FORWARD_AND_BACKWARD:
        yield Case(f"upsample_nearest2d{turn}", (16, 256, 20, 20), "f16")  # rows of x that are no whole vectors
    for turn in _FORWARD_AND_BACKWARD:
        for shape, size in _SAMPLED:
            yield from _each(f"grid_sample{turn}", [shape], ("f32", "f64"), size=size)
        for shape, size in _SAMPLED[:2]:
            yield from _each(f"grid_sample{turn}", [shape], _HALVES, size=size)
    # Layers of networks between the sizes above.
    for turn in _FORWARD_AND_BACKWARD:
        yield from _each(f"batch_norm{turn}", [(32, 1024, 14, 14), (1024, 1024)], ("f32", "f16"))
        yield Case(f"batch_norm{turn}", (256, 8192))
    for op in ("layer_norm", "rms_norm"):
        yield from _each(f"{op}_backward", [(8192, 768)], ("f32", "f16"))
    yield Case("layer_norm_backward", (32768, 48))
    yield from _modes()
    yield from _channels_last()
    yield from _small()


def _modes() -> Iterator[Case]:
    shape, size = _SAMPLED[0]
    for turn in _FORWARD_AND_BACKWARD:
        for how in ({"mode": "bicubic"}, {"padding_mode": "border"}, {"padding_mode": "reflection"}):
            yield from _each(f"grid_sample{turn}", [shape], size=size, **how)
        yield Case(f"grid_sample{turn}", (2, 16, 64, 64, 64), size=(64, 64, 64))
    yield Case("grid_sample", shape, size=size, mode="nearest")


def _channels_last() -> Iterator[Case]:
    for turn in _FORWARD_AND_BACKWARD:
        yield Case(f"group_norm{turn}", _BIG[1], channels_last=True)
        yield Case(f"batch_norm{turn}", _BATCHES[1], channels_last=True)
        yield from _each(f"batch_norm{turn}", [(32, 2048, 7, 7)], ("f32", "f16"), channels_last=True)
        yield Case(f"softmax2d{turn}", _WIDE[1], channels_last=True)
        yield Case(f"local_response_norm{turn}", _LRN, channels_last=True)
    yield Case("group_norm", _BIG[0], channels_last=True)
    yield Case("batch_norm", _BATCHES[3], channels_last=True)
    yield Case("batch_norm", _BATCHES[1], training=False, channels_last=True)
    for op in ("group_norm", "batch_norm"):
        yield Case(op, _BIG[1] if op == "group_norm" else _BATCHES[1], "f16", channels_last=True)
    shape, size = _SAMPLED[0]
    yield Case("grid_sample", shape, size=size, channels_last=True)
    for shape in _MIDDLE:
        for turn in _FORWARD_AND_BACKWARD:
            yield Case(f"group_norm{turn}", shape, channels_last=True)
            yield Case(f"batch_norm{turn}", shape, channels_last=True)
        yield Case("batch_norm", shape, training=False, channels_last=True)
        yield Case("group_norm", shape, "f16", channels_last=True)


def _small() -> Iterator[Case]:
    for shape in _SMALL:
        row = (shape[0] * shape[1], 256)
        # A backward at one of the shapes.
        for turn in _FORWARD_AND_BACKWARD if shape == _SMALL[1] else ("",):
            yield Case(f"group_norm{turn}", shape, groups=16)
            for op in ("softmax2d", "batch_norm", "local_response_norm", "upsample_nearest2d"):
                yield Case(op + turn, shape)
            yield Case(f"batch_norm{turn}", shape, training=False)
            yield Case(f"grid_sample{turn}", shape, size=shape[2:])
            for op in ("layer_norm", "rms_norm"):
                yield Case(op + turn, row)


# Cases that are drawn -------------------------------------------------------------------------------------------------

_FAMILIES = (
    "group_norm", "softmax2d", "batch_norm", "local_response_norm", "layer_norm", "rms_norm", "upsample_nearest2d",
    "grid_sample",
)  # fmt: skip
_LEAST, _MOST = 1 << 14, 1 << 24  # elements of x
_IMAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 1024)
_CHANNELS = (
    1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 192, 256, 320, 384, 480, 512, 640, 768, 1024, 1280, 1536, 2048,
)  # fmt: skip
_SIDES = (
    1, 2, 3, 4, 7, 8, 10, 12, 13, 14, 16, 20, 24, 27, 28, 32, 40, 48, 55, 56, 64, 80, 96, 112, 128, 160, 224, 256, 512,
)  # fmt: skip
_COUNTS = (1, 2, 8, 32, 64, 128, 197, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
_WIDTHS = (
    16, 32, 48, 64, 80, 96, 100, 128, 192, 256, 320, 384, 512, 640, 768, 1000, 1024, 1280, 1536, 2048, 3072, 4096, 5120,
    8192, 11008, 12288, 16384, 32768,
)  # fmt: skip
_DRAWN_TYPES = ("f32", "f32", "f32", "f16", "f16", "bf16", "f64")  # as often


def drawn(seed: int, only: Collection[str] = ()) -> Iterator[Case]:
    """Yield cases without end, of some ops or of all: sizes as networks have them, and others beside these."""
    rng = random.Random(seed)
    names = [family + turn for family in _FAMILIES for turn in _FORWARD_AND_BACKWARD]
    names = [name for name in names if name in (only or names)]
    while True:
        op, dtype, side = rng.choice(names), rng.choice(_DRAWN_TYPES), rng.choice(_SIDES)
        images = (rng.choice(_IMAGES), rng.choice(_CHANNELS), side, side if rng.random() < 0.8 else rng.choice(_SIDES))
        rows = op.startswith(("layer_norm", "rms_norm"))
        case = Case(op, (rng.choice(_COUNTS), rng.choice(_WIDTHS)) if rows else images, dtype)
        if _LEAST <= math.prod(case.shape) <= _MOST:
            case = _finished(rng, case)
            if math.prod(case.result_shape) <= _MOST:
                yield case


def _finished(rng: random.Random, case: Case) -> Case:
    """Return the case with what its op takes beside a shape and a type."""
    if case.family == "group_norm":
        able = [count for count in (1, 4, 8, 16, 32, 32, case.shape[1]) if case.shape[1] % count == 0]
        case = replace(case, groups=rng.choice(able))
    if case.family == "batch_norm":
        case = replace(case, training=rng.random() < 0.8)
    if case.family == "grid_sample":
        factor = rng.choice((0.5, 1, 1, 2))
        mode, padding = rng.choice(("bilinear",) * 4 + ("bicubic",)), rng.choice(("zeros", "zeros", "zeros", "border"))
        size = tuple(max(1, int(factor * length)) for length in case.shape[2:])
        case = replace(case, size=size, mode=mode, padding_mode=padding)
    # torch's gradient of batch_norm in eval takes no channels-last arrays.
    layouts = case.family in ("group_norm", "softmax2d", "local_response_norm")
    layouts |= case.family == "batch_norm" and case.training
    return replace(case, channels_last=layouts and rng.random() < 0.4)
