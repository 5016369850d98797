"""Operand: one array of an op, as its plan checks it."""

from __future__ import annotations

from dataclasses import dataclass

from ptxrt.dtypes import ElementType
from ptxrt.runtime.layout import contiguous, span

__all__ = ["Operand"]


@dataclass(frozen=True)
class Operand:
    """One array of an op.

    Attributes
    ----------
    strides
        In elements; contiguous if left out.
    optional
        None may be passed.
    written
        The op writes it; only then must it not share memory with another operand.
    output
        It is written and comes back from a run, which allocates it where it is None.
    needs
        Name of the operand without which this output is None.
    absent
        Why it must be None in this problem, in words.
    in_place
        Names of the operands that it may be the very same array as.
    """

    name: str
    shape: tuple[int, ...]
    type: ElementType
    strides: tuple[int, ...] = ()
    optional: bool = False
    written: bool = False
    output: bool = False
    needs: str | None = None
    absent: str | None = None
    in_place: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "strides", self.strides or contiguous(self.shape))
        object.__setattr__(self, "written", self.written or self.output)
        object.__setattr__(self, "optional", self.optional or self.output)

    @property
    def nbytes(self) -> int:
        """Bytes from its first element to the end of its last."""
        return span(self.shape, self.strides) * self.type.size
