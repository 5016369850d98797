"""Zeros by a launch, which the next one need not wait for as long as for a memset."""

from __future__ import annotations

from ptxrt.dtypes import BY_NAME
from ptxrt.ops.framework.kernels import KernelFamily, Role
from ptxrt.ops.framework.schedule import Launch, Region, ceil_div
from ptxrt.ops.framework.texts import FOLLOWING_TARGET

__all__ = ["FAMILY", "SMALL", "zeros"]

SMALL = range(1, (4 << 20) + 1)
"""How many bytes are made zeros so: of more, what is saved is nothing beside the time that they take."""

_THREADS = 256
FAMILY = KernelFamily(
    "zeros",
    ("f32",),  # of any type in fact, which it does not ask for
    {"zeros_kernel": Role("u8*? out_ptr, u64 count", target=FOLLOWING_TARGET)},
    op="grid_sample_backward",
    also=("batch_norm", "group_norm"),
)


def zeros(where: str | Region, nbytes: int) -> Launch:
    """Return the launch that makes so many bytes of an operand or a region zeros."""
    blocks = ceil_div(nbytes, 16 * _THREADS)
    return Launch(FAMILY.kernel("zeros_kernel", BY_NAME["f32"], "ptx"), (blocks,), _THREADS, (where, nbytes))
