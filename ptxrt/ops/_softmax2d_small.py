"""The variant of softmax2d and its backward for few values, which take as long as one thread waits."""

from __future__ import annotations

from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Config,
    ImageDescriptor,
    KernelFamily,
    Launch,
    Limits,
    PrecisionGuarantee,
    Refusal,
    Role,
    Schedule,
    Variant,
    ceil_div,
)

__all__ = ["FAMILY", "Small"]

_MOST = (32, 64, 128)  # channels that an entry takes
_COLUMNS, _THREADS = 8, 128  # of a block
_POINTERS = {
    "softmax2d": "const T* in_ptr, T* out_ptr",
    "softmax2d_backward": "const T* go_ptr, const T* y_ptr, T* gi_ptr",
}
FAMILY = KernelFamily(
    "softmax2d_small",
    ("f32", "f16", "bf16"),
    {
        f"{way}_small_{most}": Role(pointers + ", u32 channels, u32 hw", parameters={"most": str(most)})
        for way, pointers in _POINTERS.items()
        for most in _MOST
    },
    targets=ROUNDING_TARGETS,
    op="softmax2d",
)
_FEW = 1 << 19  # elements


class Small(Variant[ImageDescriptor, Config]):
    """Warps of neighbouring columns, several threads a column, whose registers hold all values."""

    name = "small"

    def __init__(self, way: str, arrays: tuple[str, ...]) -> None:
        super().__init__()
        self.way, self.arrays = way, arrays

    def suits(self, problem: ImageDescriptor) -> bool:
        """Few elements, as measured on an H200; of images of a few positions few, which are a block each."""
        few = problem.hw >= 16 or problem.batch <= 1 << 8
        return few and 16 <= problem.channels <= _MOST[-1] and problem.elements <= _FEW

    def schedule(self, problem: ImageDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        most = next((most for most in _MOST if problem.channels <= most), None)
        if problem.dtype.name == "f64":
            return Refusal("is not for f64")
        if most is None:
            return Refusal(f"{problem.channels} channels are more than {_MOST[-1]}")
        if problem.elements >> 32:
            return Refusal(f"{problem.elements} elements are more than {(1 << 32) - 1}")
        kernel = FAMILY.kernel(f"{self.way}_small_{most}", problem.dtype, self.language)
        grid = (ceil_div(problem.hw, _COLUMNS), problem.batch)
        launch = Launch(kernel, grid, _THREADS, (*self.arrays, problem.channels, problem.hw))
        guarantee = PrecisionGuarantee("f32", "f64", deterministic=True, bit_stable_on_same_hardware=True)
        return Schedule((launch,), guarantee)
