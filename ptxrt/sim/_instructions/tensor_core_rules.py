"""How the tensor cores of each architecture add products of floats: data alone, each row with its source.

One step adds c and so many products: each term is cut to ``bits`` fractional bits relative to the largest exponent
among them, the rest of the addition is exact, and the result is rounded once. docs/sim.md has the rule in full.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NONE", "WITHOUT_F8", "WITHOUT_M8N8K4", "Rule", "rule"]

NONE = -8192
"""The exponent of a zero, and the floor where there is none: below every exponent there is."""

_RECORDED = "recorded inputs and outputs of arXiv 2512.07004, compared in full (signs of zero not)"
_H200 = "drawn on an H200: 0 of 128 warps a form and distribution differ, in 9 distributions"
_MMA_SIM = "arXiv 2510.11909 (MMA-Sim), not compared"


@dataclass(frozen=True)
class Rule:
    """One row: a type of operands on one architecture and what comes after it.

    Attributes
    ----------
    bits
        Fractional bits that a term keeps, relative to the largest exponent of the step.
    products
        Products that one step adds; a longer K goes through the rounded results of several steps.
    floor, floor_f16
        The least that counts as the largest exponent, for results of f32 and of f16.
    source
        Who has seen it.
    fraction
        Fraction bits of an f32 result.
    """

    bits: int
    products: int
    floor: int
    floor_f16: int
    source: str
    fraction: int = 23


_TABLE: dict[str, dict[int, Rule]] = {
    "f16": {
        70: Rule(23, 4, NONE, -19, _RECORDED),
        75: Rule(24, 8, NONE, -20, f"{_MMA_SIM}; its floor by the pattern of the others"),
        80: Rule(24, 8, -132, -20, _RECORDED),
        90: Rule(25, 16, -133, -21, _H200),
    },
    "bf16": {
        80: Rule(24, 8, -132, -20, _RECORDED),
        90: Rule(25, 16, -133, -21, _H200),
    },
    "tf32": {
        80: Rule(24, 4, -132, -20, _RECORDED),
        90: Rule(25, 8, -133, -21, _H200),
    },
    "f8": {
        89: Rule(13, 16, NONE, NONE, f"{_MMA_SIM}; its floor unknown", fraction=13),
        120: Rule(25, 32, NONE, NONE, f"{_MMA_SIM}; its floor unknown"),
    },
}
"""By type of a and b (f8 for e4m3 and e5m2) and by the first architecture that it holds for."""

WITHOUT_F8 = range(90, 120)
"""Architectures for which the assembler makes f16 instructions of an mma of 8-bit floats: seen in what it gives,
and compared with an H200."""
WITHOUT_M8N8K4 = range(80, 1000)
"""And f32 instructions of m8n8k4."""


def rule(kind: str, arch: int) -> Rule:
    """Return the rule for operands of one type; of an architecture that has no row, that of the last before."""
    rows = _TABLE[kind]
    return rows[max(first for first in rows if first <= max(arch, min(rows)))]
