"""The backward of norms of few short rows in one launch: a warp for each row, all of them in one cluster of blocks."""

from __future__ import annotations

from dataclasses import replace

from ptxrt.dtypes import BY_NAME
from ptxrt.ops.framework.kernels import KernelFamily, Role
from ptxrt.ops.framework.rows import WARP, RowsDescriptor, RowsVariant
from ptxrt.ops.framework.rows_held import GUARANTEE
from ptxrt.ops.framework.schedule import Config, Limits, Refusal, Schedule
from ptxrt.ops.framework.texts import ROUNDING_TARGETS

__all__ = ["FewBackward", "few_family"]

_BLOCKS, _WARPS, _VALUES = 8, 16, 16  # of the cluster; of a block; of a row that a lane has at most
_ROWS = 8 * _BLOCKS * _WARPS  # of which a warp adds up at most 8
_WORTH, _TURNS = 1 << 17, 2  # values of a problem, and rows of a warp, which are done before a second launch begins


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
            parameters={"slots": str(slots)},
            dtypes=tuple(name for name in types if slots * 16 <= _VALUES * BY_NAME[name].size),
            target=90,
        )
        for slots in range(1, _VALUES // 4 + 1)
    }
    return KernelFamily(f"{norm}_few", types, roles, targets=ROUNDING_TARGETS, op=norm)


class FewBackward(RowsVariant[Config]):
    """A warp for each row, whose columns' sums meet in the shared memory of a cluster.

    Parameters
    ----------
    numbers
        How many sums a column has.
    """

    name = "few"

    def __init__(self, family: KernelFamily, numbers: int) -> None:
        super().__init__(family)
        self.numbers = numbers

    def suits(self, problem: RowsDescriptor) -> bool:
        """Where the device waits for a second launch longer than a cluster takes for all rows."""
        short = problem.rows <= _TURNS * _BLOCKS * _WARPS and problem.rows * problem.width <= _WORTH
        return short and problem.width >= 2 * WARP and self.refusal(problem) is None

    def refusal(self, problem: RowsDescriptor) -> Refusal | None:
        """Return why a cluster cannot do it, or None."""
        vector, most = 16 // problem.dtype.size, WARP * _VALUES
        if problem.dtype.name not in self.family.dtypes:
            return Refusal(f"there are no entries of {problem.dtype.name}")
        if problem.width % vector or problem.width > most:
            return Refusal(f"rows of {problem.width} values are not whole vectors of {vector}, up to {most} values")
        if problem.rows > _ROWS:
            return Refusal(f"a cluster adds up {_ROWS} rows, not {problem.rows}")
        return None

    def schedule(self, problem: RowsDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := self.refusal(problem):
            return refusal
        slots = -(-problem.width * problem.dtype.size // (16 * WARP))
        sums = self.numbers * problem.width
        shared = 4 * (_WARPS * sums + _BLOCKS * WARP * -(-sums // (WARP * _BLOCKS)))
        entry = f"backward_{slots}_kernel"
        launch = self.launch(entry, problem, _BLOCKS, WARP * _WARPS, per_value=1 / problem.width)
        return Schedule((replace(launch, shared_bytes=shared),), GUARANTEE)
