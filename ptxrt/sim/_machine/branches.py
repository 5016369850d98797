"""Where lanes go on: at a place in the code, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["GONE", "Target"]

GONE = -1
"""No lane goes on: all have exited, or wait."""


@dataclass(eq=False)
class Target:
    """A place in the code, known once everything before it is decoded."""

    block: int = GONE
