"""The backward of norms of few short rows in one launch.

In PTX a warp for each row, all of them in one cluster of blocks. In HIP, which has no clusters, blocks for rows, and
blocks for columns, each of which makes the statistics of all rows for itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ptxrt.dtypes import BY_NAME
from ptxrt.ops.framework.kernels import KernelFamily, Role
from ptxrt.ops.framework.rows import WARP, RowsDescriptor, RowsVariant
from ptxrt.ops.framework.rows_held import GUARANTEE
from ptxrt.ops.framework.schedule import Config, Limits, Refusal, Schedule, ceil_div
from ptxrt.ops.framework.texts import ROUNDING_TARGETS

__all__ = ["FewBackward", "few_family"]

_BLOCKS, _WARPS, _VALUES = 8, 16, 16  # of the cluster; of a block; of a row that a lane has at most
_UNITS = 4  # in HIP: vectors of a row whose columns a block adds up


class _Bounds(NamedTuple):
    """Rows that the entries take; rows and values that are done before a second launch begins."""

    rows: int
    soon: int
    values: int


_BOUNDS = {
    # A warp adds up at most 8 rows, and 2 soon enough.
    "ptx": _Bounds(8 * _BLOCKS * _WARPS, 2 * _BLOCKS * _WARPS, 1 << 17),
    # Each block of columns reads all values.
    "hip": _Bounds(256, 256, 1 << 15),
}


def few_family(norm: str, gradients: str) -> KernelFamily:
    """Return the entries of a norm, `gradients` being their parameters for those of weights, ``"P*? gw_ptr, ..."``."""
    types = ("f32", "f16", "bf16")
    signature = (
        f"const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, {gradients}, u64 rows, u64 width, P eps, "
        "f64 per_value"
    )
    roles = {
        f"{norm}_few_backward_{slots}_kernel": Role(
            signature,
            hip=True,
            parameters={"slots": str(slots)},
            dtypes=tuple(name for name in types if slots * 16 <= _VALUES * BY_NAME[name].size),
            target=90,
        )
        for slots in range(1, _VALUES // 4 + 1)
    }
    return KernelFamily(f"{norm}_few", types, roles, targets=ROUNDING_TARGETS, op=norm)


class FewBackward(RowsVariant[Config]):
    """A warp for each row, whose columns' sums meet in the shared memory of a cluster; in HIP, blocks for columns.

    Parameters
    ----------
    numbers
        How many sums a column has.
    """

    name = "few"

    def __init__(self, family: KernelFamily, numbers: int, language: str = "ptx") -> None:
        super().__init__(family, language)
        self.numbers = numbers

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where the device waits for a second launch longer than a few blocks take for all rows."""
        bounds = _BOUNDS[self.language]
        short = problem.rows <= bounds.soon and problem.rows * problem.width <= bounds.values
        return short and problem.width >= 2 * WARP and self.refusal(problem) is None

    def refusal(self, problem: RowsDescriptor) -> Refusal | None:
        """Return why these blocks cannot do it, or None."""
        vector, most, rows = 16 // problem.dtype.size, WARP * _VALUES, _BOUNDS[self.language].rows
        if problem.dtype.name not in self.family.dtypes:
            return Refusal(f"there are no entries of {problem.dtype.name}")
        if problem.width % vector or problem.width > most:
            return Refusal(f"rows of {problem.width} values are not whole vectors of {vector}, up to {most} values")
        if problem.rows > rows:
            return Refusal(
                f"a {'cluster' if self.language == 'ptx' else 'block'} adds up {rows} rows, not {problem.rows}"
            )
        return None

    def schedule(self, problem: RowsDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := self.refusal(problem):
            return refusal
        vectors = problem.width * problem.dtype.size // 16
        sums = self.numbers * problem.width
        if self.language == "ptx":
            blocks, shared = _BLOCKS, 4 * (_WARPS * sums + _BLOCKS * WARP * ceil_div(sums, WARP * _BLOCKS))
        else:
            blocks, shared = ceil_div(vectors, _UNITS) + ceil_div(problem.rows, _WARPS), 0
        entry = f"backward_{ceil_div(vectors, WARP)}_kernel"
        launch = self.launch(entry, problem, blocks, WARP * _WARPS, per_value=1 / problem.width)
        return Schedule((replace(launch, grid=(blocks,), shared_bytes=shared),), GUARANTEE)
