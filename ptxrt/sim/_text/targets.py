"""Which versions of PTX there are, which targets, and the first version that knows each target, as ptxas has them."""

from __future__ import annotations

__all__ = ["TARGETS", "VERSIONS", "parameter_bytes", "since"]

_MINORS = {3: range(1, 3), 4: range(4), 5: range(2), 6: range(6), 7: range(9), 8: range(9), 9: range(6)}

VERSIONS = frozenset((major, minor) for major, minors in _MINORS.items() for minor in minors)
"""Those that ptxas still compiles to a binary that can be linked."""

_SINCE = {
    (3, 1): "10 11 12 13 20 21 30 35",
    (4, 0): "32 50",
    (4, 1): "37 52",
    (4, 2): "53",
    (5, 0): "60 61 62",
    (5, 1): "70",
    (6, 1): "72",
    (6, 2): "82",
    (6, 3): "75",
    (7, 0): "80",
    (7, 1): "86",
    (7, 4): "87",
    (7, 8): "89 90",
    (8, 0): "90a",
    (8, 6): "100 100a 101 101a",
    (8, 7): "120 120a",
    (8, 8): "100f 101f 103 103a 103f 120f 121 121a 121f",
    (9, 0): "88 110 110a 110f",
    (9, 4): "107 107a 107f",
}

TARGETS = {target: version for version, targets in _SINCE.items() for target in targets.split()}
"""The first version that knows a target, by what follows ``sm_`` or ``compute_``."""


def since(target: str) -> tuple[int, int] | None:
    """Return the first version that knows ``sm_90a`` or ``compute_90a``; None for a target that there is not."""
    return TARGETS.get(target.partition("_")[2])


def parameter_bytes(version: tuple[int, int], target: str) -> int:
    """Return how many bytes the parameters of an entry may have (tried with every version and nvJitLink 13.5)."""
    number = int(target.partition("_")[2].rstrip("af"))
    return 32764 if version >= (8, 1) and number >= 70 else 4352
