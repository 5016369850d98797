"""The names that are declared between braces, ranges of registers among them."""

from __future__ import annotations

from ptxrt.sim._text.syntax import Register, Tuple, Variable
from ptxrt.sim._text.types import PtxType

__all__ = ["MAX_DIGITS", "Scope", "is_member", "registers"]

MAX_DIGITS = 10
"""Of the number of registers that ``%r<...>`` declares."""


class Scope:
    """The names declared between one pair of braces."""

    def __init__(self, number: int, parent: Scope | None) -> None:
        self.number = number
        self.parent = parent
        self.names: dict[str, Register | Variable | Tuple] = {}
        self.ranges: dict[str, tuple[int, PtxType, int]] = {}
        """By stem, how many there are, their type, and the elements of each."""
        self.labels: set[str] = set()

    def find(self, name: str) -> Register | Variable | Tuple | None:
        """Return what `name` means here; members of a range such as %f<8> come to be at their first use."""
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        scope: Scope | None = self
        while scope is not None:
            found = scope.names.get(name)
            if found is not None:
                return found
            # A stem may itself end in digits (%x1<4> declares %x10 to %x13), so every split is tried.
            for cut in range(len(stem), len(name) if digits else 0):
                span = scope.ranges.get(name[:cut])
                if span is not None and is_member(name, name[:cut], span[0]):
                    return scope.names.setdefault(name, registers(name, *span[1:]))
            scope = scope.parent
        return None


def registers(name: str, kind: PtxType, lanes: int) -> Register | Tuple:
    """Return a register, or a vector of so many."""
    if lanes == 1:
        return Register(name, kind)
    return Tuple(tuple(Register(f"{name}.{axis}", kind) for axis in "xyzw"[:lanes]))


def is_member(name: str, stem: str, count: int) -> bool:
    """Whether a range of `count` registers declares `name`."""
    number = name[len(stem) :]
    if not name.startswith(stem) or not number.isdecimal() or len(number) > MAX_DIGITS:
        return False
    return str(int(number)) == number and int(number) < count
