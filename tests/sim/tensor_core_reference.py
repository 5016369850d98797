"""What a tensor core computes, in Python's integers and fractions: slow, and as the rule is written in docs/sim.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

__all__ = ["NAN", "Rule", "sum_of_products"]

# By type: bits, fraction bits, bias.
FORMATS = {"f16": (16, 10, 15), "bf16": (16, 7, 127), "f32": (32, 23, 127), "e4m3": (8, 3, 7), "e5m2": (8, 2, 15)}
NAN = {"f16": 0x7FFF, "f32": 0x7FFFFFFF}

Rule = tuple[int, int, int | None, int]
"""Fractional bits, products a step, the floor (None for none), fraction bits of an f32 result."""

Number = tuple[Fraction | float, int]
"""A value, an infinity and NaN as a float, and the exponent by which it is aligned."""


def number(kind: str, bits: int) -> Number:
    if kind == "tf32":
        kind, bits = "f32", bits & ~0x1FFF
    width, fraction, bias = FORMATS[kind]
    sign = -1 if bits >> width - 1 else 1
    exponent = bits >> fraction & (1 << width - 1 - fraction) - 1
    low = bits & (1 << fraction) - 1
    top = (1 << width - 1 - fraction) - 1
    if kind == "e4m3":
        if (exponent, low) == (15, 7):
            return math.nan, 0
    elif exponent == top:
        return (math.nan if low else sign * math.inf), 0
    if exponent == 0:
        return Fraction(sign * low) * Fraction(2) ** (1 - bias - fraction), 1 - bias
    return Fraction(sign * (low + (1 << fraction))) * Fraction(2) ** (exponent - bias - fraction), exponent - bias


def toward_zero(value: Fraction) -> int:
    return abs(value.numerator) // value.denominator * (1 if value >= 0 else -1)


def log2(value: Fraction) -> int:
    """The exponent of the largest power of two that is not above a positive value."""
    found = value.numerator.bit_length() - value.denominator.bit_length()
    return found if Fraction(2) ** found <= value else found - 1


def rounded(value: Fraction, kind: str, fraction: int) -> int:
    """The bits of a number: f32 toward zero, infinity where it is too large; f16 to nearest even; +0 alone."""
    sign = (1 << FORMATS[kind][0] - 1) if value < 0 else 0
    size = abs(value)
    if size == 0:
        return 0
    bias = FORMATS[kind][2]
    exponent = max(log2(size), 1 - bias)
    scaled = size / Fraction(2) ** (exponent - fraction)
    whole = round(scaled) if kind == "f16" else toward_zero(scaled)
    # Carries go up into the exponent by themselves; so does the leading bit, which a subnormal number does not have.
    bits = (exponent + bias - 1 << fraction) + whole
    bits = min(2 * bias + 1 << fraction, bits)
    return (sign | bits << (FORMATS[kind][1] - fraction)) if bits else 0


def step(a: Sequence[Number], b: Sequence[Number], c: Number, to: str, rule: Rule) -> int:
    bits, _, floor, fraction = rule
    specials = [float(x[0]) * float(y[0]) for x, y in zip(a, b, strict=True)
                if isinstance(x[0], float) or isinstance(y[0], float)]  # fmt: skip
    specials += [c[0]] if isinstance(c[0], float) else []
    if specials:
        total = math.fsum(specials) if not (math.inf in specials and -math.inf in specials) else math.nan
        if math.isnan(total):
            return NAN[to]
        width, low, bias = FORMATS[to]
        return (2 * bias + 1 << low) | (1 << width - 1 if total < 0 else 0)
    terms = [(Fraction(x[0]) * Fraction(y[0]), x[1] + y[1]) for x, y in zip(a, b, strict=True)]
    terms.append((Fraction(c[0]), c[1]))
    exponents = [exponent for value, exponent in terms if value] + ([] if floor is None else [floor])
    if not exponents:
        return 0
    unit = Fraction(2) ** (max(exponents) - bits)
    return rounded(sum(toward_zero(value / unit) for value, _ in terms) * unit, to, 10 if to == "f16" else fraction)


def sum_of_products(kinds: Sequence[str], a: Sequence[int], b: Sequence[int], c: int, rule: Rule) -> int:
    """Return the bits of one element of d; the types are those of d, a, b and c, and c is of d's."""
    to, kind_a, kind_b, _ = kinds
    left, right = [number(kind_a, x) for x in a], [number(kind_b, x) for x in b]
    for start in range(0, len(a), rule[1]):
        part = slice(start, start + rule[1])
        c = step(left[part], right[part], number(to, c), to, rule)
    return c
