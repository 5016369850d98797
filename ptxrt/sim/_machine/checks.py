"""The checks that a launch makes only when it is asked to, and their names."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ptxrt.errors import InvalidArgument

__all__ = ["CHECKS", "VARIABLE", "chosen"]

CHECKS = {
    "uninitialised": "reads of bytes of global or shared memory that nobody has written (MemoryFault)",
    "global-races": "data races in global memory between the threads of one launch (DataRace)",
    "shuffles": "shfl that reads a lane which takes no part, and .sync in a lane outside its own mask (SimFault)",
}
"""What each check finds, by its name. ``all`` stands for all of them."""

VARIABLE = "PTXRT_SIM_CHECKS"
"""The environment variable that turns checks on, their names separated by commas."""


def chosen(checks: Iterable[str] | None) -> frozenset[str]:
    """Return the names of the checks to make; None for those that the environment names.

    Raises
    ------
    InvalidArgument
        For a name that there is not.
    """
    op = "launch"
    if checks is None:
        text = os.environ.get(VARIABLE)
        if not text:
            return frozenset()
        op, checks = VARIABLE, [name.strip() for name in text.split(",") if name.strip()]
    names = frozenset([checks] if isinstance(checks, str) else checks)
    unknown = sorted(names - CHECKS.keys() - {"all"})
    if unknown:
        raise InvalidArgument(
            op=op, argument="checks", expected=f"names out of {', '.join(CHECKS)}, all", given=repr(unknown[0])
        )
    return frozenset(CHECKS) if "all" in names else names
