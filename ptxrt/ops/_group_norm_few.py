"""The variants of group_norm of few values: a vector a thread, and backward all images of a group in a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Argument,
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Role,
    Schedule,
    Variant,
    ceil_div,
)

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor, GroupNormDescriptor

    Problem: TypeAlias = GroupNormDescriptor | GroupNormBackwardDescriptor

__all__ = ["FAMILY", "Few", "FewBackward"]

_WARP = 32
_MANY_BLOCKS, _FEW_VECTORS = 256, 256
_AT_ONCE = 32 * 132  # blocks of a warp that run at a time, at most, on an H200
_IMAGES = 4  # of a block, where groups of a warp are more than that
_SHARE = "u32 groups, u32 per_group, u32 hw, u32 warps, u32 distance, u32 vectors, u32 per_width, P eps"
FAMILY = KernelFamily(
    "group_norm_few",
    ("f32", "f16", "bf16", "f64"),
    {
        "group_norm_few_kernel": Role(
            f"const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, {_SHARE}", hip=True
        ),
        "group_norm_few_images_kernel": Role(
            f"const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, u32 batch, {_SHARE}"
        ),
        "group_norm_backward_few_kernel": Role(
            "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, P*? gw_ptr, P* gb_ptr, "
            f"u32 batch, u32 per_warps, {_SHARE}",
            hip=True,
        ),
    },
    targets=ROUNDING_TARGETS,
    op="group_norm",
)


class Few(Variant["GroupNormDescriptor", Config]):
    """One launch, of a block a group, which reads it once; in PTX of a warp a group where these are short and many."""

    name = "few"

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Where a block's threads have a vector each: the fewer, the more blocks there are; in HIP of few values."""
        blocks, vectors = problem.batch * problem.groups, _vectors(problem)
        many = blocks >= _MANY_BLOCKS and vectors > _FEW_VECTORS
        some = self.language == "hip" and problem.elements > 1 << 14
        teams = some or many or (blocks >= 8 * _MANY_BLOCKS and vectors >= _FEW_VECTORS // 4)
        return _refusal(problem) is None and not (teams and problem.dtype.size < 8)

    def schedule(self, problem: GroupNormDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return the launch."""
        if refusal := _refusal(problem):
            return refusal
        warps, share = _share(problem)
        many = warps == 1 and problem.batch * problem.groups > _AT_ONCE and problem.batch >= _IMAGES
        images = _IMAGES if many and self.language == "ptx" else 1
        batch = (problem.batch,) if images > 1 else ()
        entry = f"group_norm_few_{'images_' if images > 1 else ''}kernel"
        kernel = FAMILY.kernel(entry, problem.dtype, self.language)
        arguments = ("x", "out", "weight", "bias", *batch, *share)
        grid = (problem.groups, ceil_div(problem.batch, images))
        return Schedule((Launch(kernel, grid, _WARP * warps * images, arguments),), problem.guarantee)


class FewBackward(Variant["GroupNormBackwardDescriptor", Config]):
    """One launch, of a block for a group of all images, which adds up the parameters' gradients too."""

    name = "few"

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Where a block's threads have a vector each."""
        return _refusal(problem) is None

    def schedule(self, problem: GroupNormBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return the launch."""
        if refusal := _refusal(problem):
            return refusal
        kernel = FAMILY.kernel("group_norm_backward_few_kernel", problem.dtype, self.language)
        warps, share = _share(problem)
        arrays = ("x", "grad_out", "grad_input", "weight", "grad_weight", "grad_bias")
        arguments = (*arrays, problem.batch, ceil_div(1 << 31, warps), *share)
        launch = Launch(kernel, (problem.groups,), _WARP * warps * problem.batch, arguments)
        return Schedule((launch,), problem.guarantee)


def _vectors(problem: Problem) -> int:
    return problem.group * problem.dtype.size // 16


def _refusal(problem: Problem) -> Refusal | None:
    """Return why a block cannot have a group of an image, backward of all images, or None."""
    backward = problem.op.endswith("_backward")
    images, wide = problem.batch if backward else 1, ("f32",) if backward else ("f32", "f16", "bf16")
    most = 1024 if problem.dtype.name in wide else 512
    if refusal := problem.refusal_of_vectors():
        return refusal
    if problem.batch * problem.groups >> 32:
        return Refusal(f"{problem.batch * problem.groups} groups of all images are more than {(1 << 32) - 1}")
    if _WARP * ceil_div(_vectors(problem), _WARP) * images > most:
        return Refusal(f"{images} x {problem.group} values are more than {most} vectors of 16 bytes")
    return problem.refusal(channels_last=False)


def _share(problem: Problem) -> tuple[int, tuple[Argument, ...]]:
    """Return the warps of a group of an image, and the arguments that say how a group is shared out."""
    vectors, per_group = _vectors(problem), problem.channels // problem.groups
    warps = ceil_div(vectors, _WARP)
    distance, per_width = 1 << (warps - 1).bit_length() >> 1, ceil_div(1 << 31, vectors // per_group)
    return warps, (problem.groups, per_group, problem.hw, warps, distance, vectors, per_width, problem.eps)
