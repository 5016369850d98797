"""Norms of short rows, several of a warp at a time: their sums meet at once, and a lane finishes one of them."""

from __future__ import annotations

from typing import NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.ops.framework.kernels import KernelFamily, Role
from ptxrt.ops.framework.rows import WARP, RowsDescriptor, RowsVariant
from ptxrt.ops.framework.rows_held import GUARANTEE
from ptxrt.ops.framework.schedule import Config, Limits, Refusal, Schedule, blocks_in_hip, ceil_div
from ptxrt.ops.framework.texts import ROUNDING_TARGETS

__all__ = ["Share", "TogetherForward", "shares", "together_family"]

_LANES = (32, 16, 8, 4)  # that have a row
_SLOTS = {2: 4, 4: 3}  # vectors of a row that a lane has at most, by the bytes of a value
_ROWS = {1: 4, 2: 4, 3: 2, 4: 2}  # of a lane, by the vectors of each: as many as keep the memory busy on an H200
_MANY_ROWS, _MANY = 1 << 11, 1 << 19  # rows, and values in all, from which on several at a time pay
_IN_TURN, _STAGES = 2, 3  # vectors of 16 bits up to which warps take turns; lots that they have room for
_MULTIPROCESSORS = 132  # of an H200; warps of each, by a lane's vectors: of rows of a warp, of shorter ones
_WARPS = {"layer_norm": {1: (16, 16), 2: (12, 12)}, "rms_norm": {1: (28, 20), 2: (16, 16)}}


class Share(NamedTuple):
    """How a row is shared out: to so many lanes, as many vectors of 16 bytes, `slots`, to each."""

    lanes: int
    slots: int

    @property
    def rows(self) -> int:
        """Of a lane; no more than lanes have sums for."""
        return min(_ROWS[self.slots], self.lanes // 2)

    @property
    def entry(self) -> str:
        """Its name behind the family's."""
        return f"{self.slots}_rows{self.lanes}_kernel"


def shares(dtype: ElementType) -> list[Share]:
    """Return those that there are entries of: as many lanes as share a row evenly."""
    slots = range(1, _SLOTS[dtype.size] + 1)
    return [Share(lanes, some) for lanes in _LANES for some in slots if lanes == WARP or some % 2]


def together_family(norm: str, kernel: str) -> KernelFamily:
    """Return the entries of a norm, ``kernel="const T* in_ptr, ..."`` being that of its forward in `held`."""
    of_type = {name: shares(BY_NAME[name]) for name in ("f32", "f16", "bf16")}
    roles = {
        f"{norm}_together_{share.entry}": Role(
            kernel,
            parameters={"lanes": str(share.lanes), "slots": str(share.slots), "count": str(share.rows)}
            | ({"stages": str(_STAGES)} if share.slots <= _IN_TURN else {}),
            dtypes=tuple(name for name, some in of_type.items() if share in some),
        )
        for share in of_type["f16"]
    }
    return KernelFamily(f"{norm}_together", tuple(of_type), roles, targets={**ROUNDING_TARGETS, "f16": 80}, op=norm)


class TogetherForward(RowsVariant[Config]):
    """A warp a block, which has several rows at a time; of 16 bits and few vectors it stays, and takes rows in turn."""

    name = "together"

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where rows are many."""
        many = problem.rows >= _MANY_ROWS and problem.rows * problem.width >= _MANY
        return many and not isinstance(self._share(problem), Refusal)

    def schedule(self, problem: RowsDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if isinstance(share := self._share(problem), Refusal):
            return share
        blocks = ceil_div(problem.rows, WARP // share.lanes * share.rows)
        if blocks > (most := blocks_in_hip(blocks * WARP, WARP)):
            return Refusal(f"{blocks} blocks are more than {most}, and none of them takes turns")
        if problem.dtype.size == 2 and share.slots <= _IN_TURN:
            blocks = min(blocks, _MULTIPROCESSORS * _WARPS[problem.op][share.slots][share.lanes < WARP])
        launch = self.launch(share.entry, problem, blocks, WARP, per_value=1 / problem.width)
        return Schedule((launch,), GUARANTEE)

    def _share(self, problem: RowsDescriptor) -> Share | Refusal:
        """Return how a row is shared out: to as many lanes as can be."""
        if problem.dtype.name not in self.family.dtypes:
            return Refusal(f"there are no entries of {problem.dtype.name}")
        vectors, rest = divmod(problem.width * problem.dtype.size, 16)
        lanes = next((lanes for lanes in _LANES if not rest and vectors and not vectors % lanes), None)
        if lanes is None:
            return Refusal(f"{_LANES[-1]} lanes or more cannot share vectors of rows of {problem.width} values evenly")
        if (share := Share(lanes, vectors // lanes)) not in shares(problem.dtype):
            return Refusal(f"a lane has up to {_SLOTS[problem.dtype.size]} vectors of a row, not {share.slots}")
        return share
