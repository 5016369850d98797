"""Tiles of channels-last arrays, whole groups of channels in whole vectors: what variants that have them share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ptxrt.ops.framework import Refusal

__all__ = ["TiledRows"]


@dataclass(frozen=True)
class TiledRows:
    """A problem as the kernels see it: images of rows of channels, of which groups are normalised.

    Attributes
    ----------
    problem
        A descriptor of channels-last arrays: of it are the element type, channels and eps.
    config
        Of the variant.
    images, rows, per_group
        Rows of an image, and channels of a group.
    """

    problem: Any
    config: Any
    images: int
    rows: int
    per_group: int

    @property
    def base(self) -> int:
        """The fewest vectors of a tile."""
        vector: int = self.problem.vector
        return math.lcm(self.per_group, vector) // vector

    def refusal_of_tiles(self, most: int) -> Refusal | None:
        """Return why there are no tiles of at most so many channels, or None."""
        channels, vector = self.problem.channels, self.problem.vector
        if channels % vector:
            return Refusal(f"vectors of {vector} values do not end where rows of {channels} channels do")
        if (fewest := self.base * vector) > most:
            return Refusal(f"whole groups in whole vectors have {fewest} channels, above {most}")
        return None
