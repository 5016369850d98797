"""Statistics and output of many groups in one launch, whose blocks draw tickets."""

from __future__ import annotations

from dataclasses import dataclass

from ptxrt.ops.framework.schedule import Region, Workspace, Zero

__all__ = ["Tickets"]

_BLOCKS = 1 << 10  # more than fit a device at a time; the same on each, so that the schedule is
_FIRST_GROUP = 32  # of the counters: as tickets.jinja has it


@dataclass(frozen=True)
class Tickets:
    """What a kernel made with ``tickets.jinja`` is given; the file tells how it works.

    Attributes
    ----------
    groups
        Of all images.
    slices
        Of a group.
    lag
        By so many groups the sums are ahead of the output; at least 1.
    """

    groups: int
    slices: int
    lag: int

    @property
    def blocks(self) -> int:
        """Of the launch, along x."""
        return min(2 * self.groups * self.slices, _BLOCKS)

    @property
    def scalars(self) -> tuple[int, int]:
        """The parameters `tickets` and `lead`."""
        return 2 * self.groups * self.slices, min(self.lag, self.groups) * self.slices

    def region(self, workspace: Workspace) -> tuple[Region, Zero]:
        """Return the counters, for `tickets_ptr`, and the step before the launch that makes them zero."""
        counters = workspace.region("tickets", "u32", _FIRST_GROUP + self.groups)
        return counters, Zero(counters)
