"""Every launch under all checks: on sim by PTXRT_SIM_CHECKS, on GPUs in shadow mode."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from ptxrt.check.shadowing import Shadow, shadow
from ptxrt.errors import InvalidArgument
from ptxrt.sim import CHECKS_VARIABLE, chosen_checks

__all__ = ["InvalidArgument", "checked", "chosen"]


def chosen(names: Iterable[str]) -> frozenset[str]:
    """Return which checks these names are, out of :data:`ptxrt.sim.CHECKS`; ``all`` is all of them, ``none`` none.

    Raises
    ------
    InvalidArgument
        For a name that there is not.
    """
    names = [*names]
    return frozenset() if names == ["none"] else chosen_checks(names)[0]


@contextmanager
def checked(names: Iterable[str] = ("all",)) -> Iterator[Shadow | None]:
    """Run launches under these checks, in processes that are started meanwhile too.

    Gives the :class:`ptxrt.check.shadowing.Shadow` of the GPUs, which counts their launches; None under no checks,
    which are those that a launch on sim makes where nobody says which, too.

    Raises
    ------
    InvalidArgument
        For a name that there is not.
    """
    checks = chosen(names)
    before = os.environ.get(CHECKS_VARIABLE)
    watched: AbstractContextManager[Shadow | None] = shadow(checks=checks) if checks else nullcontext()
    with watched as watching:
        os.environ[CHECKS_VARIABLE] = ",".join(sorted(checks)) or "none"
        try:
            yield watching
        finally:
            if before is None:
                os.environ.pop(CHECKS_VARIABLE, None)
            else:
                os.environ[CHECKS_VARIABLE] = before
