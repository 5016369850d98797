"""The variant of local_response_norm for channels that lie side by side, whose threads take vectors of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxrt.ops.framework import ROUNDING_TARGETS, Config, KernelFamily, Limits, Refusal, Role, Schedule, Variant

if TYPE_CHECKING:
    from ptxrt.ops._local_response_norm import Problem

__all__ = ["FAMILY", "SIZES", "Last", "refusal_of"]

SIZES = (3, 5, 7, 9)
"""Window sizes that there are entries for."""

_THREADS = 256
_SIGNATURES = {
    "forward": "const T* in_ptr, T* out_ptr, P* denom_ptr, u32 vectors, u32 per_row, {}P alpha, P beta, P k",
    "backward": "const T* in_ptr, const T* go_ptr, const P* denom_ptr, T* gi_ptr, u32 vectors, u32 per_row, "
    "{}P alpha, P beta",
}
FAMILY = KernelFamily(
    "local_response_norm_last",
    ("f32", "f16", "bf16"),
    {
        f"lrn_{way}_last_{size}": Role(text.format(""), parameters={"size": str(size), "by": "root"})
        for way, text in _SIGNATURES.items()
        for size in SIZES
    }
    | {f"lrn_{way}_last": Role(text.format("u32 size, "), hip=True, ptx=False) for way, text in _SIGNATURES.items()},
    targets=ROUNDING_TARGETS,
    op="local_response_norm",
)


def refusal_of(problem: Problem) -> Refusal | None:
    """Return why entries for some windows, powers by roots and the family's types cannot run a problem, or None."""
    if problem.size in SIZES and problem.quarters and problem.dtype.name in FAMILY.dtypes:
        return None
    return Refusal(f"no kernel but for windows of {SIZES} and, not of f64, beta of 1 to 4 quarters")


class Last(Variant["Problem", Config]):
    """Threads that take 16 bytes of channels that lie side by side, and have their neighbours' terms."""

    name = "last"

    def schedule(self, problem: Problem, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := problem.not_in_vectors or refusal_of(problem):
            return refusal
        vector = problem.vector
        vectors = problem.elements // vector
        if vectors >= (1 << 32) - 1024:
            return Refusal(f"{vectors} vectors do not fit the kernel's u32")
        counts = (vectors, problem.channels // vector)
        blocks = -(-vectors // (_THREADS * 8 // vector - 2))
        if self.language == "hip":
            return problem.launch("last", self.language, blocks, *counts, problem.size, family=FAMILY)
        return problem.launch(f"last_{problem.size}", self.language, blocks, *counts, family=FAMILY)
