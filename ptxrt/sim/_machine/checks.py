"""The checks that cost time: their names, which of them a launch makes, and for how long."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ptxrt.errors import InvalidArgument, shown

__all__ = ["BY_DEFAULT", "CHECKS", "OFF_SWITCH", "VARIABLE", "Allowance", "chosen"]

CHECKS = {
    "uninitialised": "reads of bytes of global or shared memory that nobody has written, and accesses to bytes to "
    "which a copy is under way (MemoryFault)",
    "global-races": "data races in global memory between the threads of one launch (DataRace)",
    "shuffles": "shfl that reads a lane which takes no part, and .sync in a lane outside its own mask (SimFault)",
}
"""What each check finds, by its name. ``all`` stands for all of them."""

BY_DEFAULT = frozenset({"uninitialised", "global-races"})
"""What a launch checks, within an Allowance, where nobody has said what it is to check."""

VARIABLE = "PTXRT_SIM_CHECKS"
"""The environment variable that says which checks to make, their names separated by commas, or ``none``."""

OFF_SWITCH = f"{VARIABLE}=none turns this check off, {VARIABLE}=all every one on"

_BYTES = 1 << 24
_BYTES_OF_A_CHECK = 4096


class Allowance:
    """How much the checks by default may still look at in a launch, so that they cost it under a second.

    They look at the accesses in the order in which they come, and end where it is spent. An access of a group of lanes
    costs its bytes, and as much more as the calls behind it take.
    """

    def __init__(self) -> None:
        self._left = _BYTES

    def spend(self, nbytes: int) -> bool:
        """Count an access that was looked at, and return whether the next one may be looked at too."""
        self._left -= nbytes + _BYTES_OF_A_CHECK
        return self.there_is

    @property
    def there_is(self) -> bool:
        """Whether it is not spent yet."""
        return self._left > 0


def chosen(checks: Iterable[str] | None) -> tuple[frozenset[str], Allowance | None]:
    """Return the names of the checks to make, and how much they may look at: None for all that there is.

    Parameters
    ----------
    checks
        Names; None for those that the environment names, and where it names none those by default.

    Raises
    ------
    InvalidArgument
        For a name that there is not.
    """
    op = "launch"
    if checks is None:
        text = os.environ.get(VARIABLE, "").strip()
        if not text:
            return BY_DEFAULT, Allowance()
        op, checks = VARIABLE, [name.strip() for name in text.split(",") if name.strip()]
        if checks == ["none"]:
            return frozenset(), None
    names = [*checks] if isinstance(checks, Iterable) and not isinstance(checks, str) else [checks]
    for name in names:
        if not isinstance(name, str) or name not in (*CHECKS, "all"):
            known = f"names out of {', '.join(CHECKS)}, all" + (", none" if op == VARIABLE else "")
            raise InvalidArgument(op=op, argument="checks", expected=known, given=shown(name))
    return frozenset(CHECKS if "all" in names else names), None
