"""grid_sample_backward for few channels: vectors of a pixel's channels are added to sums in a workspace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxrt.ops.framework import Config, KernelFamily, Launch, Limits, Refusal, Role, Schedule, Variant, Workspace, Zero

if TYPE_CHECKING:
    from ptxrt.ops._grid_sample import GridSampleBackwardDescriptor

__all__ = ["FAMILY", "Quads"]

_SIZES = "i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow"
_GRADIENTS = "const T* dout_ptr, const T* input_ptr, const T* grid_ptr, T* dgrid_ptr, f32* sums_ptr"
FAMILY = KernelFamily(
    "grid_sample_quads",
    ("f32", "f16", "bf16"),
    {
        "grid_sample_backward_quads": Role(f"{_GRADIENTS}, {_SIZES}", target=90),
        "grid_sample_backward_collect_quads": Role(
            "const f32* sums_ptr, T* dinput_ptr, i32 n, i32 c, u64 plane", target=90
        ),
    },
    unnamed=None,
    op="grid_sample",
)

_GRID_YZ = 65535
_THREADS = 512


class Quads(Variant["GridSampleBackwardDescriptor", Config]):
    """Float atomics on sums of float32, a vector of 4 for each pixel."""

    name = "quads"

    def suits(self, problem: GridSampleBackwardDescriptor) -> bool:
        """Up to 4 channels, but not one, and where what two passes over all pixels cost comes back."""
        dense = 4 * problem.positions >= problem.ih * problem.iw and problem.positions >= 256
        return 2 <= problem.c <= 4 and dense and problem.n * problem.c * problem.positions >= 1 << 19

    def schedule(self, problem: GridSampleBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return zeros and two launches."""
        if refusal := problem.not_plain(FAMILY):
            return refusal
        workspace, plane, images = Workspace(), problem.ih * problem.iw, min(problem.n, _GRID_YZ)
        chunks = -(-problem.c // 4)
        sums = workspace.region("sums", "f32", problem.n * chunks * plane * 4)
        tiles = -(-problem.ow // 32) * -(-problem.oh // (_THREADS // 32))
        add = Launch(
            FAMILY.kernel("grid_sample_backward_quads", problem.dtype, self.language),
            (tiles, 1, images),
            _THREADS,
            ("grad_out", "x", "grid", "grad_grid", sums, *problem.sizes),
        )
        collect = Launch(
            FAMILY.kernel("grid_sample_backward_collect_quads", problem.dtype, self.language),
            (-(-plane // 1024), min(chunks, _GRID_YZ), images),
            256,
            (sums, "grad_input", problem.n, problem.c, plane),
        )
        return Schedule((Zero(sums), add, collect), problem.guarantee(atomics=True), workspace)
