"""Images: what the descriptors of ops on ``[N, C, *]`` have in common."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from ptxrt.dtypes import ElementType, element_type
from ptxrt.errors import DTypeMismatch, ShapeMismatch
from ptxrt.runtime.layout import checked_shape

__all__ = ["Images"]


class Images:
    """Base of a descriptor, a frozen dataclass, whose fields `shape` and `dtype` are those of an array ``[N, C, *]``.

    Attributes
    ----------
    op, first
        For messages: the op, and the operand that has this shape and type.
    types
        Names of the element types that the op has.
    """

    op: ClassVar[str]
    first: ClassVar[str] = "x"
    types: ClassVar[tuple[str, ...]] = ("f32",)
    shape: tuple[int, ...]
    dtype: ElementType

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, self.op)
        if len(shape) < 2:
            raise ShapeMismatch(
                op=self.op, argument=self.first, expected="at least two axes, [N, C, *]", given=str(shape)
            )
        kind = element_type(self.dtype, op=self.op, argument=self.first)
        if kind.name not in self.types:
            expected = " or ".join(self.types)
            raise DTypeMismatch(op=self.op, argument=self.first, expected=expected, given=str(kind), fix="Convert it")
        self._set(shape=shape, dtype=kind)

    def _set(self, **fields: Any) -> None:
        """Set fields to what their checks have made of them."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @property
    def batch(self) -> int:
        """N."""
        return self.shape[0]

    @property
    def channels(self) -> int:
        """C."""
        return self.shape[1]

    @property
    def hw(self) -> int:
        """Product of the trailing axes, 1 if there are none."""
        return math.prod(self.shape[2:])

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)
