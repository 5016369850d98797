"""The backward of norms of few short rows in one launch.

In PTX a warp for each row, all of them in one cluster of blocks. In HIP, which has no clusters, blocks for rows, and
blocks for columns, each of which makes the statistics of all rows for itself.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import ClassVar

from ptxrt.dtypes import BY_NAME
from ptxrt.ops.framework.kernels import KernelFamily, Role
from ptxrt.ops.framework.rows import LEAST, WARP, RowsDescriptor, RowsVariant
from ptxrt.ops.framework.rows_held import GUARANTEE
from ptxrt.ops.framework.schedule import Config, Limits, Refusal, Schedule, ceil_div
from ptxrt.ops.framework.texts import ROUNDING_TARGETS

__all__ = ["ApartBackward", "FewBackward", "apart_family", "few_family"]

_BLOCKS, _WARPS, _VALUES = 8, 16, 16  # of the cluster; of a block; of a row that a lane has at most
_UNITS = 4  # of 16 bytes of a row: columns that a block has in HIP


def few_family(norm: str, gradients: str) -> KernelFamily:
    """Return the entries of a norm, `gradients` being their parameters for those of weights, ``"P*? gw_ptr, ..."``."""
    return _family(norm, "few", gradients, target=90)


def apart_family(norm: str, gradients: str) -> KernelFamily:
    """Return the entries of a norm in HIP, of the parameters of those in PTX."""
    return _family(norm, "apart", gradients, hip=True, ptx=False)


def _family(
    norm: str, name: str, gradients: str, *, target: int | None = None, hip: bool = False, ptx: bool = True
) -> KernelFamily:
    types = ("f32", "f16", "bf16")
    signature = (
        f"const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, {gradients}, u64 rows, u64 width, P eps, "
        "f64 per_value"
    )
    roles = {
        f"{norm}_{name}_backward_{slots}_kernel": Role(
            signature,
            hip=hip,
            ptx=ptx,
            parameters={"slots": str(slots)},
            dtypes=tuple(each for each in types if slots * 16 <= _VALUES * BY_NAME[each].size),
            target=target,
        )
        for slots in range(1, _VALUES // 4 + 1)
    }
    return KernelFamily(f"{norm}_{name}", types, roles, targets=ROUNDING_TARGETS, op=norm)


class _Few(RowsVariant[Config]):
    """One launch, whose blocks have 16 rows at a time.

    Attributes
    ----------
    rows, adder
        How many rows are added up at most, and by what.
    """

    rows: ClassVar[int]
    adder: ClassVar[str]

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where the device waits for a second launch longer than these blocks take for all rows."""
        rows, values = self.worth(problem)
        short = problem.rows <= rows and problem.rows * problem.width <= values
        return short and problem.width >= LEAST and self.refusal(problem) is None

    @abstractmethod
    def worth(self, problem: RowsDescriptor) -> tuple[int, int]:
        """Return how many rows and values are done before a second launch begins."""

    def refusal(self, problem: RowsDescriptor) -> Refusal | None:
        """Return why these blocks cannot do it, or None."""
        vector, most = 16 // problem.dtype.size, WARP * _VALUES
        if problem.dtype.name not in self.family.dtypes:
            return Refusal(f"there are no entries of {problem.dtype.name}")
        if problem.width % vector or problem.width > most:
            return Refusal(f"rows of {problem.width} values are not whole vectors of {vector}, up to {most} values")
        if problem.rows > self.rows:
            return Refusal(f"{self.adder} adds up {self.rows} rows, not {problem.rows}")
        return None

    def one_launch(self, problem: RowsDescriptor, blocks: int, shared_bytes: int = 0) -> Schedule:
        """Return it."""
        slots = ceil_div(problem.width * problem.dtype.size, 16 * WARP)
        launch = self.launch(f"backward_{slots}_kernel", problem, blocks, WARP * _WARPS, per_value=1 / problem.width)
        return Schedule((replace(launch, grid=(blocks,), shared_bytes=shared_bytes),), GUARANTEE)


class FewBackward(_Few):
    """A warp for each row, whose columns' sums meet in the shared memory of a cluster.

    Parameters
    ----------
    numbers
        How many sums a column has.
    """

    name = "few"
    rows, adder = 8 * _BLOCKS * _WARPS, "a cluster"  # a warp adds up at most 8

    def __init__(self, family: KernelFamily, numbers: int) -> None:
        super().__init__(family)
        self.numbers = numbers

    def worth(self, problem: RowsDescriptor) -> tuple[int, int]:
        """Two rows a warp."""
        return 2 * _BLOCKS * _WARPS, 1 << 17

    def schedule(self, problem: RowsDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        sums = self.numbers * problem.width
        shared = 4 * (_WARPS * sums + _BLOCKS * WARP * ceil_div(sums, WARP * _BLOCKS))
        return self.refusal(problem) or self.one_launch(problem, _BLOCKS, shared)


class ApartBackward(_Few):
    """In HIP: blocks for rows, and blocks for columns, which read all rows: the more values, the longer these take."""

    name = "apart"
    rows, adder = 256, "a block"

    def __init__(self, family: KernelFamily) -> None:
        super().__init__(family, "hip")

    def worth(self, problem: RowsDescriptor) -> tuple[int, int]:
        """All rows that a block adds up; of twice as many values where columns have one sum."""
        return self.rows, 1 << (16 if problem.op == "rms_norm_backward" else 15)

    def schedule(self, problem: RowsDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        of_columns = ceil_div(problem.width * problem.dtype.size, 16 * _UNITS)
        return self.refusal(problem) or self.one_launch(problem, of_columns + ceil_div(problem.rows, _WARPS))
