"""The variants of group_norm and its backward for channels-last arrays; the configs that those for others have too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
    Workspace,
)

if TYPE_CHECKING:
    from ptxrt.ops._group_norm import GroupNormBackwardDescriptor, GroupNormDescriptor

    Problem: TypeAlias = GroupNormDescriptor | GroupNormBackwardDescriptor

__all__ = [
    "FAMILY",
    "ChannelsLast",
    "ChannelsLastBackward",
    "ChannelsLastSplit",
    "ChannelsLastSplitBackward",
    "SplitConfig",
    "WholeConfig",
]

WARP = 32
_VECTOR_BYTES = 16
_MOST_SLICES = 1 << 10

_SIZES = "u32 batch, u32 channels, u32 groups, u32 hw"
_SLICES = "u32 slices, u32 length, u32 lanes"
_WHOLE = {
    "group_norm_last_kernel": "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, "
    f"{_SIZES}, P eps, u32 lanes",
    "group_norm_last_backward_groups_kernel": "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, "
    f"f64* partials_ptr, f64* statistics_ptr, {_SIZES}, P eps, u32 lanes",
}
_SPLIT = {
    "group_norm_last_sums_kernel": f"const T* in_ptr, f64* sums_ptr, {_SIZES}, {_SLICES}",
    "group_norm_last_split_kernel": "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, "
    f"const f64* sums_ptr, {_SIZES}, P eps, {_SLICES}",
    "group_norm_last_backward_sums_kernel": "const T* in_ptr, const T* go_ptr, const P*? w_ptr, f64* partials_ptr, "
    f"f64* sums_ptr, {_SIZES}, {_SLICES}",
    "group_norm_last_backward_kernel": "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, "
    f"f64* statistics_ptr, const f64* sums_ptr, {_SIZES}, P eps, {_SLICES}",
}
FAMILY = KernelFamily(
    "group_norm_last",
    ("f32", "f16", "bf16", "f64"),
    {name: Role(signature, hip=True) for name, signature in _WHOLE.items()}
    | {name: Role(signature) for name, signature in _SPLIT.items()}
    # The same text with blocks of one warp, for groups of few values.
    | {f"{name}_small": Role(signature, parameters={"warps": "1"}) for name, signature in _WHOLE.items()},
    targets=ROUNDING_TARGETS,
    op="group_norm",
)


def _lanes(problem: Problem, language: str) -> int:
    """Return how many threads share a row of a group, of which at most a quarter has nothing to do."""
    units, vector = problem.channels // problem.groups, _VECTOR_BYTES // problem.dtype.size
    if language == "ptx" and units % vector == 0:
        units //= vector
    return next(lanes for lanes in (32, 16, 8, 4, 2, 1) if 4 * units >= 3 * lanes * -(-units // lanes))


def _cut(problem: Problem, values: int) -> tuple[int, int]:
    """Return how many slices a group's rows are cut into, and their length: of so many values, about."""
    rows = max(values * problem.groups // problem.channels, 1)
    length = -(-problem.hw // min(-(-problem.hw // rows), _MOST_SLICES))
    return -(-problem.hw // length), length


@dataclass(frozen=True)
class WholeConfig(Config):
    """Knobs of a block for each group: its warps, 1 or 8."""

    warps: int

    @classmethod
    def heuristic(cls, problem: Problem) -> WholeConfig:
        """One warp for a small group, where there are many."""
        return cls(problem.warps)

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[WholeConfig]:
        """Return both widths."""
        del problem
        return cls(8), cls(1)


def _whole(problem: Problem, name: str, language: str, warps: int, *arrays: Argument) -> Launch:
    """Return the launch of an entry whose blocks have a group each; on AMD they may take several in turn."""
    small = warps == 1 and language == "ptx"
    kernel = FAMILY.kernel(f"{name}_small" if small else name, problem.dtype, language)
    grid = problem.grid(problem.groups, WARP * warps, language)
    return Launch(kernel, grid, WARP * warps, (*arrays, *problem.sizes, problem.eps, _lanes(problem, language)))


class ChannelsLast(Variant["GroupNormDescriptor", WholeConfig]):
    """A block for each group of each image, which reads it twice."""

    name = "channels_last"
    config_type = WholeConfig

    def schedule(self, problem: GroupNormDescriptor, config: WholeConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        arrays = ("x", "out", "weight", "bias")
        launch = _whole(problem, "group_norm_last_kernel", self.language, config.warps, *arrays)
        return problem.refusal(channels_last=True) or Schedule((launch,), problem.guarantee)


class ChannelsLastBackward(Variant["GroupNormBackwardDescriptor", WholeConfig]):
    """A block for each group of each image, which reads it twice: for the sums, and for grad_input."""

    name = "channels_last"
    config_type = WholeConfig

    def schedule(self, problem: GroupNormBackwardDescriptor, config: WholeConfig, limits: Limits) -> Schedule | Refusal:
        """Return the launch of the groups, and that of the parameters' gradients."""
        workspace, partials, statistics = problem.workspace(1)
        arrays = ("x", "grad_out", "grad_input", "weight", partials, statistics)
        launch = _whole(problem, "group_norm_last_backward_groups_kernel", self.language, config.warps, *arrays)
        parameters = problem.parameters_launch(self.language, 1, partials, statistics)
        return problem.refusal(channels_last=True) or Schedule((launch, parameters), problem.guarantee, workspace)


@dataclass(frozen=True)
class SplitConfig(Config):
    """Knobs of several blocks for each group: the values of one, about."""

    values: int

    @classmethod
    def heuristic(cls, problem: Problem) -> SplitConfig:
        """As measured on an H200."""
        del problem
        return cls(1 << 13)

    @classmethod
    def candidates(cls, problem: Problem) -> Sequence[SplitConfig]:
        """Return slices from 16 to 128 KiB of float32."""
        del problem
        return tuple(cls(1 << bits) for bits in (12, 13, 14, 15))


class ChannelsLastSplit(Variant["GroupNormDescriptor", SplitConfig]):
    """Several blocks for each group: a pass for the sums of its slices, a pass that writes."""

    name = "channels_last_split"
    config_type = SplitConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Few large groups."""
        return problem.batch * problem.groups < 1 << 9 and problem.group >= 1 << 15

    def schedule(self, problem: GroupNormDescriptor, config: SplitConfig, limits: Limits) -> Schedule | Refusal:
        """Return both launches."""
        slices, length = _cut(problem, config.values)
        workspace = Workspace()
        sums = workspace.region("sums", "f64", 2 * problem.parts * problem.batch * problem.groups * (slices + 1))
        cut = (slices, length, _lanes(problem, self.language))
        arrays = ("x", "out", "weight", "bias", sums)
        steps = (
            _slices(problem, "sums_kernel", self.language, slices, "x", sums, *problem.sizes, *cut),
            _slices(problem, "split_kernel", self.language, slices, *arrays, *problem.sizes, problem.eps, *cut),
        )
        return problem.refusal(channels_last=True) or Schedule(steps, problem.guarantee, workspace)


class ChannelsLastSplitBackward(Variant["GroupNormBackwardDescriptor", SplitConfig]):
    """Several blocks for each group: a pass for the sums of its slices, a pass that writes grad_input."""

    name = "channels_last_split"
    config_type = SplitConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Few large groups."""
        return problem.batch * problem.groups < 1 << 9 and problem.group >= 1 << 15

    def schedule(self, problem: GroupNormBackwardDescriptor, config: SplitConfig, limits: Limits) -> Schedule | Refusal:
        """Return three launches."""
        slices, length = _cut(problem, config.values)
        workspace, partials, statistics = problem.workspace(slices)
        sums = workspace.region("sums", "f64", 4 * problem.parts * problem.batch * problem.groups * (slices + 1))
        cut = (slices, length, _lanes(problem, self.language))
        add = ("x", "grad_out", "weight", partials, sums, *problem.sizes, *cut)
        write = ("x", "grad_out", "grad_input", "weight", statistics, sums, *problem.sizes, problem.eps, *cut)
        steps = (
            _slices(problem, "backward_sums_kernel", self.language, slices, *add),
            _slices(problem, "backward_kernel", self.language, slices, *write),
            problem.parameters_launch(self.language, slices, partials, statistics),
        )
        return problem.refusal(channels_last=True) or Schedule(steps, problem.guarantee, workspace)


def _slices(problem: Problem, name: str, language: str, slices: int, *arguments: Argument) -> Launch:
    """Return the launch of an entry whose blocks have a slice of a group each."""
    kernel = FAMILY.kernel(f"group_norm_last_{name}", problem.dtype, language)
    return Launch(kernel, (problem.groups * slices, problem.images), 8 * WARP, arguments)
