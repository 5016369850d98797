"""What batch_norm and group_norm launch for channels-last arrays: sums of each channel, a pass that writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Argument,
    Config,
    KernelFamily,
    Launch,
    Refusal,
    Region,
    Role,
    Workspace,
)

__all__ = ["FAMILY", "LastConfig", "Rows"]

_THREADS = 256
_FINISHERS = 128
_AT_ONCE = 4  # rows that a thread loads before it uses the first, at most

_ROWS = "u32 rows, u32 channels"
_CUT = "u32 slices, u32 across"
_BATCH_STATISTICS = "P*? mean_ptr, P*? var_ptr, P*? rmean_ptr, P*? rvar_ptr"
_SIGNATURES = {
    "sums": f"const T* in_ptr, f64* sums_ptr, {_ROWS}, u32 per_group, {_CUT}",
    "finish": f"const T* in_ptr, const P*? w_ptr, const P*? b_ptr, {_BATCH_STATISTICS}, const f64* sums_ptr, "
    f"f64* coefficients_ptr, {_ROWS}, u32 per_group, P eps, P momentum, u32 slices",
    "write": f"const T* in_ptr, T* out_ptr, const f64* coefficients_ptr, {_ROWS}, {_CUT}",
    "eval": "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, const P* mean_ptr, const P* var_ptr, "
    f"{_ROWS}, P eps, {_CUT}",
    "backward_sums": f"const T* in_ptr, const T* go_ptr, const P*? mean_ptr, f64* sums_ptr, {_ROWS}, u32 per_group, "
    f"{_CUT}",
    "backward_finish": "const T* in_ptr, const P*? w_ptr, const P*? mean_ptr, const P*? var_ptr, P*? gw_ptr, "
    f"P*? gb_ptr, f64*? statistics_ptr, const f64* sums_ptr, f64* coefficients_ptr, {_ROWS}, u32 per_group, P eps, "
    "u32 training, u32 slices",
    "backward_write": f"const T* in_ptr, const T* go_ptr, T* gi_ptr, const f64* coefficients_ptr, {_ROWS}, {_CUT}",
}
FAMILY = KernelFamily(
    "norm_last",
    ("f32", "f16", "bf16", "f64"),
    {f"norm_last_{name}": Role(signature, hip=True) for name, signature in _SIGNATURES.items()},
    targets=ROUNDING_TARGETS,
    op="batch_norm",
    also=("batch_norm_backward", "group_norm", "group_norm_backward"),
)


@dataclass(frozen=True)
class LastConfig(Config):
    """Knobs of the passes over channels-last arrays.

    Attributes
    ----------
    across
        Vectors of 16 bytes, side by side, that a block has at most.
    added, written
        Blocks that add up, and that write, about: as many as run at a time are the best.
    """

    across: int
    added: int
    written: int

    @classmethod
    def heuristic(cls, problem: Any) -> LastConfig:
        """As measured on H100s and H200s: two to four blocks for each multiprocessor; in eval more, of fewer rows."""
        if problem.op == "batch_norm" and not getattr(problem, "training", True):
            size, few = problem.dtype.size, problem.elements <= 1 << 21
            return cls((2 if size == 2 else 8) if few else 16, 256, {2: 396, 4: 1 << 20, 8: 1 << 12}[size])
        if problem.dtype.name != "f32":
            return cls(8 if problem.dtype.size == 2 else 16, 256, 256)
        return cls(16, 512 if problem.op in ("batch_norm", "group_norm") else 256, 384)

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[LastConfig]:
        """Return the heuristic's, wider blocks, and more that write."""
        best = cls.heuristic(problem)
        return best, replace(best, across=2 * best.across), replace(best, written=2 * best.written)


@dataclass(frozen=True)
class Rows:
    """A problem as the kernels see it: images of rows of channels, of which groups are normalised.

    Attributes
    ----------
    problem
        A descriptor of channels-last arrays: of it are the element type, channels and eps.
    config, language
        Of the variant.
    images, rows, per_group
        Rows of an image, and channels of a group.
    """

    problem: Any
    config: LastConfig
    language: str
    images: int
    rows: int
    per_group: int

    def _launch(self, name: str, blocks: int, threads: int, *arguments: Argument) -> Launch:
        kernel = FAMILY.kernel(f"norm_last_{name}", self.problem.dtype, self.language)
        return Launch(kernel, (blocks,), threads, arguments)

    def _cut(self, blocks: int) -> tuple[int, tuple[int, int]]:
        """Return how many blocks a pass has, of about so many; and slices and across."""
        channels, vector = self.problem.channels, self.problem.vector
        unit = vector if channels % vector == 0 else 1
        units, most = channels // unit, min(self.config.across * vector // unit, _THREADS // vector)
        tiles = -(-units // most)
        across = -(-units // tiles)
        chunks = -(-self.rows // (_AT_ONCE * (_THREADS // across)))
        slices = min(max(blocks // (self.images * tiles), 1), chunks)
        return self.images * slices * tiles, (slices, across)

    def refusal(self) -> Refusal | None:
        """Return why the kernels do not take it, or None."""
        for name, count in (("channels", self.problem.channels), ("rows", self.rows)):
            if count >> 31:
                return Refusal(f"{name} = {count} is above {(1 << 31) - 1}")
        return None

    def over(self, name: str, blocks: int, *arguments: Argument) -> Launch:
        """Return the launch of a pass over all values, by about so many blocks."""
        blocks, cut = self._cut(blocks)
        return self._launch(name, blocks, _THREADS, *arguments, *cut)

    @property
    def slices(self) -> int:
        """Of an image, in the pass that adds up."""
        return self._cut(self.config.added)[1][0]

    def sums(self, workspace: Workspace, count: int) -> Region:
        """Return where the sums of the slices are: so many numbers of each channel."""
        numbers = count * self.images * self.problem.channels * self.slices
        return workspace.region("sums", "f64", self.problem.parts * numbers)

    def forward(
        self, workspace: Workspace, out: str, statistics: tuple[Argument, ...], momentum: float
    ) -> tuple[Launch, ...]:
        """Return three launches: sums, what follows from them, results; of x, weight and bias."""
        problem, sizes = self.problem, (self.rows, self.problem.channels)
        sums = self.sums(workspace, 2)
        coefficients = self.coefficients(workspace, 2 * problem.parts + 1)
        arrays = ("x", "weight", "bias", *statistics, sums, coefficients)
        finish = (*arrays, *sizes, self.per_group, problem.eps, momentum, self.slices)
        return (
            self.over("sums", self.config.added, "x", sums, *sizes, self.per_group),
            self._launch("finish", self.groups, _FINISHERS, *finish),
            self.over("write", self.config.written, "x", out, coefficients, *sizes),
        )

    def backward(
        self,
        workspace: Workspace,
        sums: Region,
        given: tuple[Argument, Argument],
        gradients: tuple[Argument, Argument, Argument],
        *,
        training: bool = True,
    ) -> tuple[Launch, ...]:
        """Return three launches: sums, what follows from them, grad_input.

        `given` are mean and variance or nulls, and `gradients` those of weight and bias or nulls, and the statistics
        that group_norm makes its own of. Without training grad_input does not depend on x.
        """
        problem, sizes = self.problem, (self.rows, self.problem.channels)
        coefficients = self.coefficients(workspace, 3 if problem.parts == 1 else 8)
        arrays = ("x", "weight", *given, *gradients, sums, coefficients)
        finish = (*arrays, *sizes, self.per_group, problem.eps, int(training), self.slices)
        write = ("x", "grad_out", "grad_input") if training else ("grad_out", "grad_input")
        return (
            self.over("backward_sums", self.config.added, "x", "grad_out", given[0], sums, *sizes, self.per_group),
            self._launch("backward_finish", self.groups, _FINISHERS, *finish),
            self.over("backward_write" if training else "write", self.config.written, *write, coefficients, *sizes),
        )

    @property
    def groups(self) -> int:
        """Of all images."""
        count: int = self.images * (self.problem.channels // self.per_group)
        return count

    def coefficients(self, workspace: Workspace, count: int) -> Region:
        """Return where so many f64 of each channel are."""
        return workspace.region("coefficients", "f64", count * self.images * self.problem.channels)
