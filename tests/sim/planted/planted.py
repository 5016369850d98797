# ruff: noqa: E501
"""Kernels with one fault planted in each, and what makes them right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ptxrt.errors import SimFault

__all__ = ["START", "Planted"]

START = """.reg .u32 t, c, n, i, v, w, x, a, b, k; .reg .u64 p, g, h, o, z, d; .reg .pred q, e; .reg .f32 f; .reg .b16 s16;
.shared .align 16 .u32 s[64];
mov.u32 t, %tid.x; mov.u32 c, %ctaid.x; mov.u32 n, %ntid.x; mad.lo.u32 i, c, n, t; mul.wide.u32 o, i, 4;
ld.param.u64 p, [out]; add.u64 p, p, o; ld.param.u64 h, [in_a]; add.u64 g, h, o; ld.param.u64 z, [third];
mov.u32 a, s; mad.lo.u32 a, t, 4, a; mov.u32 v, 1; mov.u32 k, 0;
"""
"""Registers; i the number of the thread; p and g its cells of out (nobody has written) and in_a (0, 1, 2, ...); h the
start of in_a; z the third parameter; a its cell of the shared array s."""


@dataclass(frozen=True)
class Planted:
    """A fault, and its repair.

    Attributes
    ----------
    body
        The kernel after START; ``@@`` stands for `bad` or `good`. The line at fault ends in ``// FAULT``, the other
        one of a race in ``// OTHER``.
    error
        What the fault is reported as.
    thread, block
        Where; None where PTX does not determine it.
    words
        A part of the message.
    third
        What the third parameter is: see the test.
    """

    name: str
    error: type[SimFault]
    words: str
    body: str
    bad: str
    good: str
    thread: tuple[int, int, int] | None = (0, 0, 0)
    block: tuple[int, int, int] | None = (0, 0, 0)
    size: tuple[int, int] = (2, 32)
    third: str = "zeros"
    module: str = ""
    after: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name
