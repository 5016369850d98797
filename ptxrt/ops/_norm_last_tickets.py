"""batch_norm in training and group_norm of channels-last arrays in HIP, forward and backward: tickets for tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptxrt.ops._norm_last_tiles import TiledRows
from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Refusal, Region, Role, Tickets, Workspace, Zero

__all__ = ["FAMILY", "TicketRows", "TileTicketsConfig"]

_THREADS = 256
_MOST_CHANNELS = 128  # of a tile

_SPACE = "f64* sums_ptr, f64* shifts_ptr, u32* tickets_ptr"
_SIZES = "u32 rows, u32 channels, u32 per_group, P eps"
_CUT = (
    "u32 slices, u32 length, u32 tiles, u32 across, u32 adding, u32 gathering, u32 by_group, u32 by_slices, "
    "u32 by_tiles, u32 by_across, u32 tickets, u32 lead"
)
FAMILY = KernelFamily(
    "norm_last_tickets",
    ("f32", "f16", "bf16", "f64"),
    {
        "norm_last_tickets": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, P*? mean_ptr, P*? var_ptr, P*? rmean_ptr, "
            f"P*? rvar_ptr, {_SPACE}, {_SIZES}, P momentum, {_CUT}",
            hip=True,
            ptx=False,
        ),
        "norm_last_backward_tickets": Role(
            "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, const P*? mean_ptr, const P*? var_ptr, "
            f"P*? gw_ptr, P*? gb_ptr, f64*? statistics_ptr, {_SPACE}, {_SIZES}, {_CUT}",
            hip=True,
            ptx=False,
        ),
    },
    op="batch_norm",
    also=("batch_norm_backward", "group_norm", "group_norm_backward"),
)


@dataclass(frozen=True)
class TileTicketsConfig(Config):
    """Knobs of tickets for tiles of channels-last arrays.

    Attributes
    ----------
    width
        Bytes of a tile's rows, about: whole groups of channels.
    slices
        Of all tiles, about.
    lag
        By about so many bytes the sums are ahead of the output.
    """

    width: int
    slices: int
    lag: int

    @classmethod
    def heuristic(cls, problem: Any) -> TileTicketsConfig:
        """As measured on an H200: slices for one wave of blocks, or one a multiprocessor where they would be small.

        Three blocks of f32 forward fit a multiprocessor, two of others. Of 16 bits a tile has as many channels as of
        32, of many values twice as many.
        """
        narrow = problem.dtype.size == 2 and problem.elements < 1 << 21
        slices = 384 if problem.dtype.name == "f32" and problem.arrays == 1 else 256
        return cls(32 if narrow else 64, 128 if _bytes(problem) <= 2 << 20 else slices, 16 << 20)

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[TileTicketsConfig]:
        """Return the heuristic's, narrower and wider tiles, and more and fewer slices."""
        best = cls.heuristic(problem)
        widths = (replace(best, width=width) for width in (best.width // 2, 2 * best.width))
        return best, *widths, replace(best, slices=best.slices // 2), replace(best, slices=2 * best.slices)


@dataclass(frozen=True)
class TicketRows(TiledRows):
    """Rows whose tiles have tickets."""

    config: TileTicketsConfig

    @staticmethod
    def worth(problem: Any) -> bool:
        """Return whether values are neither few nor many, as measured on an H200."""
        return problem.elements >= 1 << 15 and _bytes(problem) <= 12 << 20

    @property
    def across(self) -> int:
        """Vectors of a tile: whole groups, of about the config's width."""
        vector: int = self.problem.vector
        most: int = min(_MOST_CHANNELS, self.problem.channels) // vector
        return self.base * max(min(self.config.width // 16, most) // self.base, 1)

    @property
    def tiles(self) -> int:
        """Of an image."""
        count: int = -(-self.problem.channels // (self.across * self.problem.vector))
        return count

    @property
    def length(self) -> int:
        """Rows of a slice, of which all of a block's threads have equally many."""
        slices = max(1, self.config.slices // (self.images * self.tiles))
        at_once = _THREADS // self.across
        return -(-self.rows // (slices * at_once)) * at_once

    @property
    def slices(self) -> int:
        """Of a tile's rows."""
        return -(-self.rows // self.length)

    def refusal(self) -> Refusal | None:
        """Return why the kernels do not take it, or None."""
        values = self.rows * self.problem.channels
        if values >> 31:
            return Refusal(f"an image has {values} values, above {(1 << 31) - 1}")
        if refusal := self.refusal_of_tiles(_MOST_CHANNELS):
            return refusal
        tiles, slices = self.tiles, self.slices
        count = self.images * tiles
        if max(max(count, self.per_group) * slices * slices, count * tiles) >> 31:  # where reciprocals are not exact
            return Refusal(f"{self.images} images have {tiles} tiles of {slices} slices each, which are too many")
        return None

    def sums(self, workspace: Workspace) -> Region:
        """Return where the sums of the slices are."""
        numbers = 2 * self.problem.arrays * self.images * self.problem.channels * self.slices
        return workspace.region("sums", "f64", self.problem.parts * numbers)

    def steps(
        self, workspace: Workspace, sums: Region, arrays: tuple[Argument, ...], *momentum: Argument
    ) -> tuple[Zero, Launch]:
        """Return zeros for the counters, and the launch of the entry that takes such arrays."""
        problem, tiles, across, slices = self.problem, self.tiles, self.across, self.slices
        tile_bytes = self.rows * across * 16 * problem.arrays
        tickets = Tickets(self.images * tiles, slices, -(-self.config.lag // tile_bytes))
        shifts = workspace.region("shifts", "f64", self.images * problem.channels)
        counters, zero = tickets.region(workspace)
        channels = across * problem.vector
        adding, gathering = min(5, _power(channels)), _power(channels // self.per_group)
        sizes = (self.rows, problem.channels, self.per_group, problem.eps, *momentum)
        cut = (slices, self.length, tiles, across, adding, gathering)
        reciprocals = (-(-(1 << 31) // count) for count in (self.per_group, slices, tiles, across))
        direction = "backward_" if problem.arrays == 2 else ""
        launch = Launch(
            FAMILY.kernel(f"norm_last_{direction}tickets", problem.dtype, "hip"),
            (tickets.scalars[0],),
            _THREADS,
            (*arrays, sums, shifts, counters, *sizes, *cut, *reciprocals, *tickets.scalars),
        )
        return zero, launch


def _bytes(problem: Any) -> int:
    count: int = problem.elements * problem.dtype.size * problem.arrays
    return count


def _power(count: int) -> int:
    """Return how many of a block's threads there are for each of so many: 2 to that power."""
    return (_THREADS // count).bit_length() - 1
