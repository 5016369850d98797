"""Which variants serve each op, by kind of problem, element type, layout and language: found by asking them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ptxrt import ops
from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import PtxrtError
from ptxrt.ops.framework import Limits, Plan, Schedule
from ptxrt.runtime.layout import Shape, channels_last, contiguous

__all__ = ["Served", "served"]


class Served(NamedTuple):
    """What serves one kind of problem of an op.

    Attributes
    ----------
    op
        Its name.
    problem
        What sets this kind apart from the op's others, ``"training"``; empty where there is one kind alone.
    dtypes
        Element types, by name.
    layouts
        Of the first operand: ``"contiguous"``, ``"channels-last"``, ``"other"`` for any strides.
    ptx, hip
        Names of the variants in either language, in the order in which a plan asks them.
    """

    op: str
    problem: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    ptx: tuple[str, ...]
    hip: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """Each field as text."""
        return tuple(field if isinstance(field, str) else " ".join(field) for field in self)


Layout = Callable[[Shape], Shape]
"""The strides of a shape."""

Make = Callable[[Shape, ElementType, Layout], Any]
"""Makes a descriptor; None where the op's descriptor says nothing of layouts and this one is not contiguous."""

_LAYOUTS: dict[str, Layout] = {
    "contiguous": contiguous,
    "channels-last": channels_last,
    "other": lambda shape: tuple(2 * step for step in contiguous(shape)),
}
# A small one; many channels at few positions; few at many; wide rows: no variant refuses all of them for their size.
_SHAPES = ((2, 8, 8, 8), (4, 512, 7, 7), (2, 8, 256, 256), (2, 8, 2, 1024))
_LIMITS = Limits((2**31 - 1, 65535, 65535), 2**32 - 1, 1024, 226 << 10, 90, 16)


def _grid_sample(kind: Any) -> dict[str, list[Make]]:
    def make(*words: Any) -> Make:
        return lambda s, t, by: kind(s, (s[0], 6, 7, 2), t, *words, strides=by(s))

    def volume(*words: Any) -> Make:
        def descriptor(shape: Shape, dtype: ElementType, layout: Layout) -> Any:
            deep = (*shape[:2], 3, *shape[2:])
            return kind(deep, (deep[0], 2, 6, 7, 3), dtype, *words, strides=layout(deep))

        return descriptor

    def each(modes: tuple[str, ...], of: Callable[..., Make]) -> list[Make]:
        words = itertools.product(modes, ("zeros", "border", "reflection"), (False, True))
        return [of(*chosen) for chosen in words]

    first, *rest = each(("bilinear", "nearest"), make)
    return {
        "bilinear, zeros, align_corners=False": [first],
        "bilinear or nearest, each other padding and align_corners": rest,
        "bicubic": each(("bicubic",), make),
        "volumes, bilinear": each(("bilinear",), volume),
        "volumes, nearest": each(("nearest",), volume),
    }


def _rows(kind: Any) -> Make:
    """Make descriptors of ops on rows, which are contiguous."""
    return lambda s, t, by: kind(s, s[-1:], t) if by is contiguous else None


_PROBLEMS: dict[str, dict[str, list[Make]]] = {
    "batch_norm": {
        "training": [lambda s, t, by: ops.BatchNormDescriptor(s, True, t, strides=by(s))],
        "eval": [lambda s, t, by: ops.BatchNormDescriptor(s, False, t, strides=by(s))],
    },
    "batch_norm_backward": {
        "training": [lambda s, t, by: ops.BatchNormBackwardDescriptor(s, True, t, strides=by(s))],
        "training, statistics given": [
            lambda s, t, by: ops.BatchNormBackwardDescriptor(s, True, t, handed=True, strides=by(s))
        ],
        "eval": [lambda s, t, by: ops.BatchNormBackwardDescriptor(s, False, t, strides=by(s))],
    },
    "grid_sample": _grid_sample(ops.GridSampleDescriptor),
    "grid_sample_backward": _grid_sample(ops.GridSampleBackwardDescriptor),
    "group_norm": {"": [lambda s, t, by: ops.GroupNormDescriptor(s, 4, t, strides=by(s))]},
    "group_norm_backward": {"": [lambda s, t, by: ops.GroupNormBackwardDescriptor(s, 4, t, strides=by(s))]},
    "local_response_norm": {"": [lambda s, t, by: ops.LocalResponseNormDescriptor(s, 5, t, strides=by(s))]},
    "local_response_norm_backward": {
        "": [lambda s, t, by: ops.LocalResponseNormBackwardDescriptor(s, 5, t, strides=by(s))]
    },
    "layer_norm": {"": [_rows(ops.LayerNormDescriptor)]},
    "layer_norm_backward": {"": [_rows(ops.LayerNormBackwardDescriptor)]},
    "rms_norm": {"": [_rows(ops.RmsNormDescriptor)]},
    "rms_norm_backward": {"": [_rows(ops.RmsNormBackwardDescriptor)]},
    "softmax2d": {"": [lambda s, t, by: ops.Softmax2dDescriptor(s, t, strides=by(s))]},
    "softmax2d_backward": {"": [lambda s, t, by: ops.Softmax2dBackwardDescriptor(s, t, strides=by(s))]},
    "upsample_nearest2d": {
        "": [lambda s, t, by: ops.UpsampleNearest2dDescriptor(s, by(s), 2 * s[2], 2 * s[3], t)],
    },
    "upsample_nearest2d_backward": {
        "": [lambda s, t, by: ops.UpsampleNearest2dBackwardDescriptor(s, by(s), s[2] // 2, s[3] // 2, t)],
    },
}


def served() -> list[Served]:
    """Return what serves each op, by the op's name; what no variant serves is not there.

    What differs by a problem's size alone is one kind of problem: of its variants a plan selects the first that suits
    the size.
    """
    return [row for plan in ops.plans() for row in _served(plan)]


def _served(plan: type[Plan[Any, Any, Any]]) -> Iterator[Served]:
    """Give the rows of an op: types with the same variants in one, and of these the layouts."""
    for problem, makes in _PROBLEMS[plan.op].items():
        cells = {
            (dtype, layout): tuple(_variants(plan, makes, dtype, layout, language) for language in ("ptx", "hip"))
            for dtype in BY_NAME
            for layout in _LAYOUTS
        }
        by_layout: dict[tuple[str, Any], list[str]] = {}  # (layout, variants) -> types
        for (dtype, layout), found in cells.items():
            if any(found):
                by_layout.setdefault((layout, found), []).append(dtype)
        by_types: dict[tuple[tuple[str, ...], Any], list[str]] = {}
        for (layout, found), dtypes in by_layout.items():
            by_types.setdefault((tuple(dtypes), found), []).append(layout)
        for (dtypes_, (ptx, hip)), layouts in by_types.items():
            yield Served(plan.op, problem, dtypes_, tuple(layouts), ptx, hip)


def _variants(
    plan: type[Plan[Any, Any, Any]], makes: list[Make], dtype: str, layout: str, language: str
) -> tuple[str, ...]:
    """Return the variants that take a problem of this kind, in each of its modes, at one of the shapes at least."""
    found = []
    for variant in plan.variants:
        if variant.language == language and all(
            any(_takes(variant, make, shape, dtype, layout) for shape in _SHAPES) for make in makes
        ):
            found.append(variant.name)
    return tuple(found)


def _takes(variant: Any, make: Make, shape: Shape, dtype: str, layout: str) -> bool:
    try:
        problem = make(shape, BY_NAME[dtype], _LAYOUTS[layout])
    except PtxrtError:
        return False
    if problem is None:
        return False
    schedule = variant.schedule(problem, variant.heuristic(problem), _LIMITS)
    return isinstance(schedule, Schedule) and schedule.refusal(_LIMITS) is None
