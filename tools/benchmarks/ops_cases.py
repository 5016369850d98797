"""The ops at shapes of real networks, as data: what the benchmarks of the ops run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

__all__ = ["Case", "cases"]


@dataclass(frozen=True)
class Case:
    """An op at a shape.

    Attributes
    ----------
    op
        The function in ``ptxrt.ops``.
    shape, dtype
        Of x.
    groups, training, factor, size
        What the op takes beside: of group_norm, batch_norm, upsample_nearest2d, and the size of grid_sample's result.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str = "f32"
    groups: int = 32
    training: bool = True
    factor: int = 2
    size: tuple[int, int] = (1, 1)

    def __str__(self) -> str:
        more = {
            "group_norm": f" G{self.groups}",
            "batch_norm": " train" if self.training else " eval",
            "local_response_norm": " size 5",
            "upsample_nearest2d": f" x{self.factor}",
            "grid_sample": f" to {self.size[0]}x{self.size[1]}",
        }.get(self.family, "")
        return f"{'x'.join(map(str, self.shape))} {self.dtype}{more}"

    @property
    def family(self) -> str:
        """The file of its kernels."""
        return self.op.removesuffix("_backward")

    def small(self) -> Case:
        """Return it at a shape for the PTX machine."""
        return replace(self, shape=(1, min(self.shape[1], 64), 8, 8), size=(8, 8))


def cases(only: str = "") -> Iterator[Case]:
    """Return the cases of the ops whose name begins with `only`."""
    return (case for case in _cases() if case.op.startswith(only))


def _cases() -> Iterator[Case]:
    shapes: tuple[tuple[int, ...], ...] = ((1, 128, 512, 512), (8, 320, 64, 64), (64, 64, 56, 56))
    for shape in (*shapes, (1, 512, 128, 128), (2, 1280, 16, 16)):
        yield Case("group_norm", shape)
    yield Case("group_norm", (2, 32, 8, 8), groups=8)
    for shape in shapes:
        yield Case("group_norm_backward", shape)
    wide = ((8, 21, 512, 512), (16, 256, 64, 64), (64, 1000, 7, 7))
    for op, shape in product(("softmax2d", "softmax2d_backward"), wide):
        yield Case(op, shape)
    for shape in ((32, 64, 112, 112), (32, 256, 56, 56), (128, 512, 7, 7), (256, 2048, 7, 7)):
        yield Case("batch_norm", shape)
    for shape in ((32, 64, 112, 112), (256, 2048, 7, 7)):
        yield Case("batch_norm", shape, training=False)
    for shape in ((32, 64, 112, 112), (32, 256, 56, 56), (256, 2048, 7, 7)):
        yield Case("batch_norm_backward", shape)
    yield Case("local_response_norm", (128, 96, 55, 55))
    yield Case("local_response_norm_backward", (128, 96, 55, 55))
    for shape, factor in (((8, 256, 64, 64), 2), ((1, 128, 512, 512), 2), ((4, 64, 135, 240), 3)):
        for dtype in ("f32", "f64", "f16", "u8"):
            yield Case("upsample_nearest2d", shape, dtype, factor=factor)
    for op in ("grid_sample", "grid_sample_backward"):
        for shape, size in (
            ((8, 64, 128, 128), (128, 128)),
            ((4, 3, 1024, 1024), (1024, 1024)),
            ((2, 256, 64, 64), (256, 256)),
        ):
            for dtype in ("f32", "f64"):
                yield Case(op, shape, dtype, size=size)
