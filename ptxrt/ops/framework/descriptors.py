"""Descriptors, problems as pure data: what those of ops on ``[N, C, *]`` share, and the checks of fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from ptxrt.dtypes import BY_NAME, ElementType, element_type
from ptxrt.errors import DTypeMismatch, InvalidArgument, LayoutError, ShapeMismatch, shown
from ptxrt.ops.framework.schedule import PrecisionGuarantee, Refusal
from ptxrt.ops.framework.texts import parts_of
from ptxrt.runtime.layout import channels_last, checked_shape, contiguous, same_layout, whole_numbers

__all__ = ["Descriptor", "F64Sums", "ImageDescriptor", "checked_type", "number", "whole_number"]


class Descriptor(Protocol):
    """What a plan needs to know of its problem, whatever the op."""

    @property
    def dtype(self) -> ElementType:
        """The element type, of the first operand."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to compute: outputs that have elements all the same are zeros."""


class F64Sums:
    """Mixin of a descriptor whose kernels compute in f64, with sums of two f64 for f64 values."""

    dtype: ElementType

    @property
    def parts(self) -> int:
        """What a number of the workspace is made of: one f64, or two for f64 values, a high and a low part."""
        return parts_of(self.dtype)

    @property
    def guarantee(self) -> PrecisionGuarantee:
        """Sums are f64, or two of them for f64 values."""
        sums = "2 x f64" if self.parts == 2 else "f64"
        return PrecisionGuarantee("f64", sums, deterministic=True, bit_stable_on_same_hardware=True)


class ImageDescriptor:
    """Base of a descriptor, a frozen dataclass, whose `shape`, `dtype` and `strides` are of an array ``[N, C, *]``.

    The array is contiguous or channels-last, which is the memory of a contiguous ``[N, *, C]``; with one channel or one
    position that is the same, and called contiguous. `batch` and `hw` are what a kernel takes for contiguous arrays:
    where the positions of an image have nothing to do with each other, a channels-last ``[N, C, *]`` is a contiguous
    ``[N * HW, C]``.

    Attributes
    ----------
    op, first
        For messages: the op, and the operand that has this shape and type.
    types
        Names of the element types that the op has.
    strides
        In elements, of a channels-last array; empty for a contiguous one, which its own strides become too.
    """

    op: ClassVar[str]
    first: ClassVar[str] = "x"
    types: ClassVar[tuple[str, ...]]
    shape: tuple[int, ...]
    dtype: ElementType
    strides: tuple[int, ...]

    def __post_init__(self) -> None:
        shape = checked_shape(self.shape, self.op)
        if len(shape) < 2:
            raise ShapeMismatch(
                op=self.op, argument=self.first, expected="at least two axes, [N, C, *]", given=str(shape)
            )
        kind = checked_type(self.dtype, self.op, self.first, self.types)
        self._set(shape=shape, dtype=kind, strides=self._checked_strides(shape))

    def _set(self, **fields: Any) -> None:
        """Set fields to what their checks have made of them."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _checked_strides(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        packed, last = contiguous(shape), channels_last(shape)
        given = whole_numbers(self.strides)
        if given == ():
            return ()
        if given is not None and len(given) == len(shape):
            if same_layout(shape, given, packed):
                return ()
            if same_layout(shape, given, last):
                return last
        raise LayoutError(
            op=self.op,
            argument=self.first,
            expected=f"contiguous, strides {packed}, or channels-last, strides {last}",
            given=f"strides {shown(self.strides)}",
            fix="Copy it into a contiguous array",
        )

    @property
    def channels_last(self) -> bool:
        """Whether the channels lie side by side, and not contiguous."""
        return self.strides != ()

    @property
    def vector(self) -> int:
        """The values of 16 bytes."""
        return 16 // self.dtype.size

    @property
    def not_in_vectors(self) -> Refusal | None:
        """Why the channels of a position are not whole vectors, or None."""
        if self.hw == 1 and self.channels % self.vector == 0:
            return None
        return Refusal(f"takes channels that lie side by side, a multiple of {self.vector}")

    @property
    def batch(self) -> int:
        """N; N * HW of channels-last arrays, each of whose positions is an image."""
        return self.shape[0] * (math.prod(self.shape[2:]) if self.channels_last else 1)

    @property
    def channels(self) -> int:
        """C."""
        return self.shape[1]

    @property
    def hw(self) -> int:
        """Product of the trailing axes, 1 if there are none; 1 of channels-last arrays."""
        return 1 if self.channels_last else math.prod(self.shape[2:])

    @property
    def extents(self) -> tuple[int, int, int]:
        """N, C and the product of the trailing axes, in the order in which they lie in memory."""
        positions = math.prod(self.shape[2:])
        return (self.shape[0], *((positions, self.channels) if self.channels_last else (self.channels, positions)))

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def empty(self) -> bool:
        """Whether there are no elements."""
        return not self.elements


def checked_type(dtype: Any, op: str, argument: str, types: Sequence[str], between: str = " or ") -> ElementType:
    """Return `dtype` as one of the element types named in `types`; DTypeMismatch, which lists them, for others."""
    kind = element_type(dtype, op=op, argument=argument)
    if kind not in [BY_NAME[name] for name in types]:  # a struct may have the name of one
        expected = between.join(types)
        raise DTypeMismatch(op=op, argument=argument, expected=expected, given=str(kind), fix="Convert it")
    return kind


def whole_number(value: Any, op: str, argument: str, least: int) -> int:
    """Return `value` as an int of at least `least` and below 2**63; InvalidArgument for anything else."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not least <= value < 1 << 63:
        expected = f"a whole number from {least} to 2**63 - 1"
        raise InvalidArgument(op=op, argument=argument, expected=expected, given=shown(value))
    return int(value)


def number(value: Any, op: str, argument: str, kind: ElementType, *, signed: bool = False) -> float:
    """Return `value` as a float that is finite in `kind`, and at least 0 unless `signed`; else InvalidArgument."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    most = float(np.finfo(kind.numpy).max)
    least = -most if signed else 0.0
    plain = float(value) if isinstance(value, np.floating) else value  # to a float16 the bound would be infinity
    if not real or not least <= plain <= most:
        expected = f"a number from {least:g} to {most:g}"
        raise InvalidArgument(op=op, argument=argument, expected=expected, given=shown(value))
    return float(plain)
