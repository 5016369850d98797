"""grid_sample_backward in most modes, many points: vectors of a pixel's channels are added to sums in a workspace."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ptxrt.ops.framework import (
    Argument,
    Config,
    KernelFamily,
    KernelSpec,
    Launch,
    Limits,
    Refusal,
    Role,
    Schedule,
    Variant,
    Workspace,
)

if TYPE_CHECKING:
    from ptxrt.ops._grid_sample import GridSampleBackwardDescriptor

__all__ = ["FAMILY", "GeneralLast"]

_IMAGE, _VOLUME = "i32 ih, i32 iw, i32 oh, i32 ow", "i32 id, i32 ih, i32 iw, i32 od, i32 oh, i32 ow"
_ADDING = "const T* dout_ptr, const T* grid_ptr, const f32* values_ptr, f32* sums_ptr, T* dgrid_ptr, u32 shift"
_PLANE = "u32 shift, i32 n, i32 c, u64 plane"
_ROLES = {
    "spread": f"const T* input_ptr, f32* values_ptr, f32* sums_ptr, {_PLANE}",
    "collect": f"const f32* sums_ptr, T* dinput_ptr, {_PLANE}",
    **{
        mode: f"{_ADDING}, i32 n, i32 c, {sizes}, u32 padding, u32 align"
        for mode, sizes in (("bilinear", _IMAGE), ("bicubic", _IMAGE), ("volume_bilinear", _VOLUME))
    },
}
FAMILY = KernelFamily(
    "grid_sample_modes_last",
    ("f32", "f16", "bf16"),
    {f"grid_sample_modes_last_{name}": Role(signature, hip=True, target=90) for name, signature in _ROLES.items()},
    unnamed=None,
    op="grid_sample_backward",
)

_GRID_YZ = 65535
_THREADS = 128


class GeneralLast(Variant["GridSampleBackwardDescriptor", Config]):
    """Float atomics on sums of float32, channels of a pixel side by side, and x beside them."""

    name = "general_last"

    def suits(self, problem: GridSampleBackwardDescriptor) -> bool:
        """Where what two passes over all pixels cost comes back."""
        pixels, points = math.prod(problem.shape[2:]), problem.positions
        halves, hip = problem.dtype.size == 2, self.language == "hip"
        if problem.plain and (not halves if hip else points >= 4 * pixels):
            return False  # others are faster
        many = points >= _THREADS and problem.n * problem.c * points >= 1 << 19
        return 4 * points >= pixels and problem.c > 1 and (halves or many) and not problem.crowded

    def schedule(self, problem: GridSampleBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return three launches."""
        if problem.mode == "nearest" or problem.dtype.name not in FAMILY.dtypes or not problem.packed:
            return Refusal(f"takes {', '.join(FAMILY.dtypes)}, contiguous, bilinear or bicubic alone")
        # As measured on an H200: lanes that a point has in PTX, as a power of two; channels side by side are 4 << side.
        shift = min(max((problem.c - 1).bit_length() - 2, 0), 3 if problem.mode == "bicubic" else 2)
        side = min(shift, 1) if self.language == "hip" else shift
        plane, images = math.prod(problem.shape[2:]), min(problem.n, _GRID_YZ)
        chunks, workspace = -(-problem.c // (4 << side)), Workspace()
        count = problem.n * chunks * plane * (4 << side)
        values, sums = workspace.region("values", "f32", count), workspace.region("sums", "f32", count)

        def kernel(name: str) -> KernelSpec:
            return FAMILY.kernel(f"grid_sample_modes_last_{name}", problem.dtype, self.language)

        lanes = side + 2 if self.language == "hip" else shift  # there a lane has one channel at a time
        pixels, points = (-(-(count << by) // _THREADS) for count, by in ((plane, side), (problem.positions, lanes)))
        of_pixels, of_points = (pixels, min(chunks, _GRID_YZ), images), (points, 1, images)
        sizes = (side, problem.n, problem.c, plane)
        adding: tuple[Argument, ...] = (
            "grad_out",
            "grid",
            values,
            sums,
            "grad_grid",
            shift,
            *problem.sizes,
            *problem.padding,
        )
        steps = (
            Launch(kernel("spread"), of_pixels, _THREADS, ("x", values, sums, *sizes)),
            Launch(kernel(problem.way), of_points, _THREADS, adding),
            Launch(kernel("collect"), of_pixels, _THREADS, (sums, "grad_input", *sizes)),
        )
        return Schedule(steps, problem.guarantee(atomics=True), workspace)
