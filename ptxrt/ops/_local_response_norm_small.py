"""The variant of local_response_norm for few elements."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxrt.ops._local_response_norm_last import SIZES, refusal_of
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Role,
    Schedule,
    Variant,
)

if TYPE_CHECKING:
    from ptxrt.ops._local_response_norm import Problem

__all__ = ["FAMILY", "Small"]

_THREADS = 256
_FEW = 1 << 19  # elements
_SIGNATURES = {
    "forward": "const T* in_ptr, T* out_ptr, P* denom_ptr, u32 channels, u32 spatial, f64 factor, P beta, P k",
    "backward": "const T* in_ptr, const T* go_ptr, const P* denom_ptr, T* gi_ptr, u32 channels, u32 spatial, "
    "f64 factor, P beta",
}
FAMILY = KernelFamily(
    "local_response_norm_small",
    ("f32", "f16", "bf16"),
    {
        f"lrn_{way}_small_{size}": Role(text, parameters={"size": str(size), "by": "root"})
        for way, text in _SIGNATURES.items()
        for size in SIZES
    },
    targets=ROUNDING_TARGETS,
    op="local_response_norm",
)


class Small(Variant["Problem", Config]):
    """A thread an element, whose window is on its way at once."""

    name = "small"

    def suits(self, problem: Problem) -> bool:
        """Few elements, which take about as long as one thread waits, or few channels: as measured on an H200."""
        few = problem.channels <= (4 if problem.way == "forward" else 3)
        return problem.hw >= 16 and (few or problem.elements <= _FEW)

    def schedule(self, problem: Problem, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := refusal_of(problem):
            return refusal
        if problem.elements >> 32:
            return Refusal(f"{problem.elements} elements do not fit the kernel's u32")
        threads = min(_THREADS, -(-problem.hw // 32) * 32)
        alpha, beta = (float(np.float32(real)) for real in (problem.alpha, problem.beta))  # as other kernels have them
        factor = alpha / problem.size
        if problem.way == "backward":
            factor *= -2 * beta
        reals = (getattr(problem, name) for name in problem.reals if name != "alpha")
        arguments = (*problem.arrays, problem.channels, problem.hw, factor, *reals)
        kernel = FAMILY.kernel(f"lrn_{problem.way}_small_{problem.size}", problem.dtype, "ptx")
        grid = (-(-problem.hw // threads), problem.channels, problem.batch)
        return Schedule((Launch(kernel, grid, threads, arguments),), problem.guarantee)
