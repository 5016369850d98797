"""group_norm and its backward: normalise groups of channels, each image by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ptxrt.dtypes import BY_NAME, ElementType
from ptxrt.errors import ShapeMismatch
from ptxrt.ops._group_norm_cached import Cached
from ptxrt.ops._group_norm_cluster import InClusters, InClustersBackward
from ptxrt.ops._group_norm_few import Few, FewBackward
from ptxrt.ops._group_norm_grid import InGrid
from ptxrt.ops._group_norm_grid_backward import InGridBackward
from ptxrt.ops._group_norm_held import Held
from ptxrt.ops._group_norm_last import (
    ChannelsLast,
    ChannelsLastBackward,
    ChannelsLastClusters,
    ChannelsLastClustersBackward,
    ChannelsLastHeld,
    ChannelsLastSplit,
    ChannelsLastSplitBackward,
    ChannelsLastTickets,
    ChannelsLastTicketsBackward,
    WholeConfig,
)
from ptxrt.ops._group_norm_ring import InRings, InRingsBackward
from ptxrt.ops._group_norm_teams import InTeams
from ptxrt.ops._group_norm_teams_backward import InTeamsBackward
from ptxrt.ops._group_norm_tickets import InTickets, InTicketsBackward
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Config,
    F64Sums,
    ImageDescriptor,
    KernelFamily,
    KernelSpec,
    Launch,
    Limits,
    Operand,
    Plan,
    Refusal,
    Region,
    Role,
    Schedule,
    Variant,
    Workspace,
    blocks_in_hip,
    in_slices,
    number,
    parameter_type,
    plan_cache,
    refusal_of_warps,
    whole_number,
)
from ptxrt.runtime.array import DeviceArray
from ptxrt.runtime.interop import as_array
from ptxrt.runtime.protocols import DeviceArrayLike, StreamLike

__all__ = [
    "FAMILY",
    "GroupNormArgs",
    "GroupNormBackwardArgs",
    "GroupNormBackwardDescriptor",
    "GroupNormBackwardPlan",
    "GroupNormDescriptor",
    "GroupNormGradients",
    "GroupNormPlan",
    "group_norm",
    "group_norm_backward",
]

WARP = 32
_FEW_VALUES, _SOME_VALUES = 1 << 21, 1 << 23  # of which slices are smaller
_GRID_Y = 65535  # blocks take the images past it in turn

_SIZES = "u32 batch, u32 channels, u32 groups, u32 hw"
_ROLES = {
    "group_norm_kernel": f"const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, {_SIZES}, P eps",
    "group_norm_sums_kernel": f"const T* in_ptr, f64* sums_ptr, {_SIZES}, u32 slices, u64 length",
    "group_norm_split_kernel": "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, const f64* sums_ptr, "
    f"{_SIZES}, P eps, u32 slices, u64 length",
    "group_norm_backward_groups_kernel": "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, "
    f"f64* partials_ptr, f64* statistics_ptr, {_SIZES}, P eps, u32 slices, u32 length, u32 lanes",
    "group_norm_backward_sums_kernel": "const T* in_ptr, const T* go_ptr, f64* partials_ptr, "
    "u32 channels, u32 groups, u32 hw, u32 slices, u32 length, u32 lanes, u64 units",
    "group_norm_backward_statistics_kernel": "const T* in_ptr, const P*? w_ptr, const f64* partials_ptr, "
    f"f64* statistics_ptr, {_SIZES}, P eps, u32 slices",
    "group_norm_backward_parameters_kernel": "const f64* partials_ptr, const f64* statistics_ptr, P*? gw_ptr, "
    "P* gb_ptr, u32 batch, u32 channels, u32 groups, u32 slices",
    "group_norm_backward_kernel": "const T* in_ptr, const T* go_ptr, T* gi_ptr, const P*? w_ptr, "
    f"const f64* statistics_ptr, {_SIZES}, u32 slices, u64 length",
}
_IN_HIP = ("group_norm_kernel", "group_norm_backward_groups_kernel", "group_norm_backward_parameters_kernel")
_OF_ONE_WARP = (
    "group_norm_kernel",
    "group_norm_backward_groups_kernel",
    "group_norm_backward_statistics_kernel",
    "group_norm_backward_parameters_kernel",
    "group_norm_backward_kernel",
)
FAMILY = KernelFamily(
    "group_norm",
    ("f32", "f16", "bf16", "f64"),
    {name: Role(signature, hip=name in _IN_HIP) for name, signature in _ROLES.items()}
    # The same text with blocks of one warp, for groups of few values.
    | {f"{name}_small": Role(_ROLES[name], parameters={"warps": "1"}) for name in _OF_ONE_WARP},
    targets=ROUNDING_TARGETS,
)


@dataclass(frozen=True)
class _Problem(F64Sums, ImageDescriptor):
    """What forward and backward have in common."""

    shape: tuple[int, ...]
    groups: int
    dtype: ElementType = BY_NAME["f32"]
    eps: float = 1e-5
    strides: tuple[int, ...] = ()

    types = FAMILY.dtypes
    arrays: ClassVar[int]  # of x's shape, that are read

    def __post_init__(self) -> None:
        super().__post_init__()
        groups = whole_number(self.groups, self.op, "groups", 1)
        if self.channels % groups:
            raise ShapeMismatch(
                op=self.op,
                argument="groups",
                expected=f"a divisor of the {self.channels} channels of x",
                given=str(groups),
                fix="Every group holds equally many channels",
            )
        self._set(groups=groups, eps=number(self.eps, self.op, "eps", parameter_type(self.dtype)))

    @property
    def batch(self) -> int:
        """N: an image's positions belong together, in either layout."""
        return self.shape[0]

    @property
    def hw(self) -> int:
        """Product of the trailing axes, 1 if there are none."""
        return math.prod(self.shape[2:])

    @property
    def group(self) -> int:
        """Values in a group of an image."""
        return self.channels // self.groups * self.hw

    @property
    def group_bytes(self) -> int:
        """Of the arrays that are read."""
        return self.group * self.dtype.size * self.arrays

    @property
    def many_groups(self) -> bool:
        """Whether clusters of 16 blocks, of which a GPU has room for 7 or 14 at a time, fill it again and again."""
        return self.batch * self.groups >= 28

    @property
    def images(self) -> int:
        """Along y of a grid."""
        return min(self.batch, _GRID_Y)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """As the kernels take them."""
        return self.batch, self.channels, self.groups, self.hw

    def kernel(self, name: str, language: str, warps: int = 8) -> KernelSpec:
        """Return an entry for this element type; in PTX, one warp wide is another entry."""
        small = warps == 1 and language == "ptx"
        return FAMILY.kernel(f"{name}_small" if small else name, self.dtype, language)

    def grid(self, rows: int, threads: int, language: str) -> tuple[int, int]:
        """Return a block of so many threads for each row of each image; in HIP they may take turns."""
        return (blocks_in_hip(rows * threads, threads) if language == "hip" else rows), self.images

    def cluster_bytes(self, size: int) -> int:
        """Return what an entry for clusters of so many blocks has of shared memory for sums, at most."""
        return 8 * self.parts * 2 * self.arrays * (32 + size + 1)

    def refusal(self, *, channels_last: bool) -> Refusal | None:
        """Return why kernels for one layout do not take this problem, or None."""
        wanted = "channels-last" if channels_last else "contiguous"
        return None if self.channels_last == channels_last else Refusal(f"is for {wanted} arrays")

    def refusal_of_vectors(self) -> Refusal | None:
        """Return why kernels that take 16 bytes at a time, of one channel each, do not take this problem, or None."""
        if self.hw * self.dtype.size % 16:
            return Refusal(f"vectors of 16 bytes do not end where channels of {self.hw} values do")
        return None

    @property
    def warps(self) -> int:
        """Of a block that has a group: one for a small group, where such blocks are many."""
        return 1 if self.group <= 1 << 10 and self.batch * self.groups >= 1 << 11 else 8


@dataclass(frozen=True)
class GroupNormDescriptor(_Problem):
    """A problem of group_norm: pure data, hashable.

    Parameters
    ----------
    shape
        Of x, ``[N, C, *]``.
    groups
        At least 1, and divides C.
    dtype
        Of x and y.
    eps
        Added to the variance; finite and at least 0.
    strides
        Of x and y, in elements: contiguous if left out, else that or channels-last.

    Raises
    ------
    ShapeMismatch, InvalidArgument, DTypeMismatch, LayoutError
    """

    op = "group_norm"
    arrays = 1

    def in_blocks(self, kernel: KernelSpec, threads: int) -> Schedule | Refusal:
        """Return the launch of a kernel in HIP whose blocks, of so many threads, have a group each."""
        blocks = blocks_in_hip(self.batch * self.groups * threads, threads)
        launch = Launch(kernel, (blocks,), threads, ("x", "out", "weight", "bias", *self.sizes, self.eps))
        return self.refusal(channels_last=False) or Schedule((launch,), self.guarantee)


@dataclass(frozen=True)
class GroupNormBackwardDescriptor(_Problem):
    """A problem of group_norm_backward; its fields are those of :class:`GroupNormDescriptor`."""

    op = "group_norm_backward"
    arrays = 2

    def workspace(self, slices: int) -> tuple[Workspace, Region, Region]:
        """Return the workspace: four sums a slice of each image's channels, and five statistics a group."""
        workspace = Workspace()
        partials = workspace.region("partials", "f64", 4 * self.parts * self.batch * self.channels * slices)
        statistics = workspace.region("statistics", "f64", 5 * self.parts * self.batch * self.groups)
        return workspace, partials, statistics

    def parts_of_channel(self, run: int) -> int:
        """Return in how many runs of so many vectors of 16 bytes a channel is, at most."""
        width = self.hw * self.dtype.size // 16
        return width // run if width % run == 0 else 1 if run % width == 0 else (width + run - 2) // run + 1

    def parameters_launch(self, language: str, slices: int, partials: Region, statistics: Region) -> Launch:
        """Return the launch that makes grad_weight and grad_bias."""
        warps = _few(self.batch * slices)
        kernel = self.kernel("group_norm_backward_parameters_kernel", language, warps)
        arrays = (partials, statistics, "grad_weight", "grad_bias")
        sizes = (self.batch, self.channels, self.groups, slices)
        blocks, _ = self.grid(self.channels, WARP * warps, language)
        return Launch(kernel, (blocks,), WARP * warps, (*arrays, *sizes))


class GroupNormArgs(NamedTuple):
    """Operands of :class:`GroupNormPlan`; without `out` the result is allocated."""

    x: DeviceArrayLike
    weight: DeviceArrayLike | None = None
    bias: DeviceArrayLike | None = None
    out: DeviceArrayLike | None = None


class GroupNormBackwardArgs(NamedTuple):
    """Operands of :class:`GroupNormBackwardPlan`; results that are left out are allocated."""

    grad_out: DeviceArrayLike
    x: DeviceArrayLike
    weight: DeviceArrayLike | None = None
    grad_input: DeviceArrayLike | None = None
    grad_weight: DeviceArrayLike | None = None
    grad_bias: DeviceArrayLike | None = None


class GroupNormGradients(NamedTuple):
    """What :func:`group_norm_backward` returns; `grad_weight` is None where there is no weight."""

    grad_input: DeviceArray
    grad_weight: DeviceArray | None
    grad_bias: DeviceArray


def _few(partial_sums: int) -> int:
    """Return the warps that add up so many: one does it as fast where they are few."""
    return 1 if partial_sums <= 4 * WARP else 8


# Forward --------------------------------------------------------------------------------------------------------------


class Whole(Variant[GroupNormDescriptor, WholeConfig]):
    """A block for each group of each image, which reads it twice."""

    name = "baseline"
    config_type = WholeConfig

    def schedule(self, problem: GroupNormDescriptor, config: WholeConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if refusal := refusal_of_warps(config.warps, problem.dtype, self.language):
            return refusal
        kernel = problem.kernel("group_norm_kernel", self.language, config.warps)
        arguments = ("x", "out", "weight", "bias", *problem.sizes, problem.eps)
        threads = WARP * config.warps
        grid = problem.grid(problem.groups, threads, self.language)
        return problem.refusal(channels_last=False) or Schedule(
            (Launch(kernel, grid, threads, arguments),), problem.guarantee
        )


@dataclass(frozen=True)
class SplitConfig(Config):
    """Knobs of several blocks for each group: the values of one, about."""

    values: int

    @classmethod
    def heuristic(cls, problem: _Problem) -> SplitConfig:
        """As measured on an H200: of fewer values more blocks."""
        few, some = problem.elements < _FEW_VALUES, problem.elements < _SOME_VALUES
        return cls(1 << (12 if few else 14 if problem.dtype.size == 2 and not some else 13))

    @classmethod
    def candidates(cls, problem: _Problem) -> Sequence[SplitConfig]:
        """Return slices from 16 to 128 KiB of float32."""
        del problem
        return tuple(cls(1 << bits) for bits in (12, 13, 14, 15))


class Split(Variant[GroupNormDescriptor, SplitConfig]):
    """Several blocks for each group: a pass for the sums of its slices, a pass that writes."""

    name = "split"
    config_type = SplitConfig

    def suits(self, problem: GroupNormDescriptor) -> bool:
        """Few large groups."""
        return problem.batch * problem.groups < 1 << 9 and problem.group > 1 << 14

    def schedule(self, problem: GroupNormDescriptor, config: SplitConfig, limits: Limits) -> Schedule | Refusal:
        """Return both launches."""
        slices, length = in_slices(problem.group, config.values, 1 << 10, 4 * WARP * 8)
        workspace = Workspace()
        sums = workspace.region("sums", "f64", 2 * problem.parts * problem.batch * problem.groups * (slices + 1))
        grid, cut = (problem.groups * slices, problem.images), (slices, length)
        arrays = ("x", "out", "weight", "bias", sums)
        first = problem.kernel("group_norm_sums_kernel", self.language)
        second = problem.kernel("group_norm_split_kernel", self.language)
        return problem.refusal(channels_last=False) or Schedule(
            (
                Launch(first, grid, 8 * WARP, ("x", sums, *problem.sizes, *cut)),
                Launch(second, grid, 8 * WARP, (*arrays, *problem.sizes, problem.eps, *cut)),
            ),
            problem.guarantee,
            workspace,
        )


class GroupNormPlan(Plan[GroupNormDescriptor, GroupNormArgs, DeviceArray]):
    """Plan of :func:`group_norm`; run it with :class:`GroupNormArgs`.

    Variants in both languages: ``few``, a vector a thread; ``teams``, where the registers of a part of a warp, of a
    warp or of a block hold a group, of any HW (in HIP, of 16 bits, where vectors do not end where channels do). In
    PTX: ``grid``, from sm_90, of large groups, each of which a block of every multiprocessor has a part of, one
    after another; ``cluster``, from sm_90, where a block or a cluster of blocks holds a group, and reads it once;
    ``ring``, likewise, where it holds a part, and reads the rest again; ``split``, several blocks for each group,
    where there are few large ones; ``baseline``, a block for each group of each image, or a warp where there are
    many small ones. In HIP: ``held`` and ``cached``, where a block's registers, or its shared memory, hold a group;
    ``tickets``, of large groups, one launch that reads a group again soon after its sums; ``baseline``. Of
    channels-last arrays: ``channels_last_held`` in PTX, from sm_90, one launch, whose blocks hold what they read
    last; in HIP ``channels_last_tickets``, one launch where values are neither few nor many; in both languages
    ``channels_last_split``, passes over rows of channels, and ``channels_last``, a block for each group of each
    image.
    """

    op = "group_norm"
    category = "normalization"
    descriptor_type = GroupNormDescriptor
    variants = (
        Few(),
        InGrid(),
        InClusters(),
        InRings(),
        InTeams(),
        Split(),
        Whole(),
        ChannelsLastClusters(),
        ChannelsLastHeld(),
        ChannelsLastSplit(),
        ChannelsLast(),
        ChannelsLastTickets("hip"),
        ChannelsLastSplit("hip"),
        Few("hip"),
        InTeams("hip"),
        Held("hip"),
        Cached("hip"),
        InTickets("hip"),
        Whole("hip"),
        ChannelsLast("hip"),
    )

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        vector = ((problem.channels,), parameter_type(problem.dtype))
        return (
            Operand("x", problem.shape, problem.dtype, problem.strides),
            Operand("weight", *vector, optional=True),
            Operand("bias", *vector, optional=True),
            Operand("out", problem.shape, problem.dtype, problem.strides, output=True, in_place=("x",)),
        )


# Backward -------------------------------------------------------------------------------------------------------------


class _Units(NamedTuple):
    """How the first sums are shared out: each channel of each image is cut into slices, each for so many lanes."""

    slices: int
    length: int
    lanes: int
    total: int


def _units(problem: _Problem, aim: int) -> _Units:
    slices, length = in_slices(problem.hw, aim, 1 << 12, 4 * WARP)
    lanes = next((lanes for lanes in (32, 16, 8, 4, 2) if lanes * 8 <= problem.hw), 1)
    return _Units(slices, length, lanes, problem.batch * problem.channels * slices)


@dataclass(frozen=True)
class WholeBackwardConfig(Config):
    """Knobs of a block for each group: its warps, 1 or 8, and the values of a unit, about."""

    warps: int
    unit: int

    @classmethod
    def heuristic(cls, problem: _Problem) -> WholeBackwardConfig:
        """Short units, so that all warps of the block have some: where there are channels enough, whole ones."""
        whole = problem.warps > 1 and problem.hw > 1 << 9 and problem.channels >= problem.warps * problem.groups
        return cls(problem.warps, 1 << (11 if whole else 9))

    @classmethod
    def candidates(cls, problem: _Problem) -> Sequence[WholeBackwardConfig]:
        """Return both widths, with units of 128 values to 2048."""
        del problem
        return tuple(cls(warps, 1 << bits) for warps in (8, 1) for bits in (7, 9, 11))


class WholeBackward(Variant[GroupNormBackwardDescriptor, WholeBackwardConfig]):
    """A block for each group of each image, which reads it twice: for the sums, and for grad_input."""

    name = "baseline"
    config_type = WholeBackwardConfig

    def schedule(
        self, problem: GroupNormBackwardDescriptor, config: WholeBackwardConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return the launch of the groups, and that of the parameters' gradients."""
        if refusal := refusal_of_warps(config.warps, problem.dtype, self.language):
            return refusal
        units = _units(problem, config.unit)
        workspace, partials, statistics = problem.workspace(units.slices)
        kernel = problem.kernel("group_norm_backward_groups_kernel", self.language, config.warps)
        arrays = ("x", "grad_out", "grad_input", "weight", partials, statistics)
        cut = (units.slices, units.length, units.lanes)
        arguments = (*arrays, *problem.sizes, problem.eps, *cut)
        threads = WARP * config.warps
        grid = problem.grid(problem.groups, threads, self.language)
        return problem.refusal(channels_last=False) or Schedule(
            (
                Launch(kernel, grid, threads, arguments),
                problem.parameters_launch(self.language, units.slices, partials, statistics),
            ),
            problem.guarantee,
            workspace,
        )


@dataclass(frozen=True)
class SplitBackwardConfig(Config):
    """Knobs of several blocks for each group: the values of a unit, and of a block that writes, about."""

    unit: int
    values: int

    @classmethod
    def heuristic(cls, problem: _Problem) -> SplitBackwardConfig:
        """As measured on an H200: of fewer values smaller units."""
        return cls(1 << (9 if problem.elements < _FEW_VALUES else 11), 1 << 12)

    @classmethod
    def candidates(cls, problem: _Problem) -> Sequence[SplitBackwardConfig]:
        """Return units of 512 values to 8192, and slices of 4096 and 16384."""
        del problem
        return tuple(cls(1 << unit, 1 << bits) for unit in (9, 11, 13) for bits in (12, 14))


class SplitBackward(Variant[GroupNormBackwardDescriptor, SplitBackwardConfig]):
    """A pass for the sums of all units, one launch that gathers them, a pass that writes grad_input."""

    name = "split"
    config_type = SplitBackwardConfig

    def suits(self, problem: GroupNormBackwardDescriptor) -> bool:
        """Large groups, or few of half of that."""
        return problem.group > 1 << (13 if problem.batch * problem.groups < 192 else 14)

    def schedule(
        self, problem: GroupNormBackwardDescriptor, config: SplitBackwardConfig, limits: Limits
    ) -> Schedule | Refusal:
        """Return four launches."""
        units = _units(problem, config.unit)
        slices, length = in_slices(problem.group, config.values, 1 << 20, 4 * WARP * 8)
        workspace, partials, statistics = problem.workspace(units.slices)
        gatherers = _few(problem.channels // problem.groups * units.slices)
        writers = 1 if problem.group <= 1 << 10 else 8

        def launch(name: str, blocks: int, images: int, warps: int, *arguments: Any) -> Launch:
            kernel = problem.kernel(f"group_norm_backward_{name}", self.language, warps)
            return Launch(kernel, (blocks, images), WARP * warps, arguments)

        cut = (units.slices, units.length, units.lanes, units.total)
        sums = ("x", "grad_out", partials, *problem.sizes[1:], *cut)
        gather = ("x", "weight", partials, statistics, *problem.sizes, problem.eps, units.slices)
        write = ("x", "grad_out", "grad_input", "weight", statistics, *problem.sizes, slices, length)
        return problem.refusal(channels_last=False) or Schedule(
            (
                launch("sums_kernel", -(-units.total * units.lanes // (8 * WARP)), 1, 8, *sums),
                launch("statistics_kernel", problem.groups, problem.images, gatherers, *gather),
                problem.parameters_launch(self.language, units.slices, partials, statistics),
                launch("kernel", problem.groups * slices, problem.images, writers, *write),
            ),
            problem.guarantee,
            workspace,
        )


class GroupNormBackwardPlan(Plan[GroupNormBackwardDescriptor, GroupNormBackwardArgs, GroupNormGradients]):
    """Plan of :func:`group_norm_backward`; run it with :class:`GroupNormBackwardArgs`.

    Variants: ``few``, which has a group's images in one block, and adds up grad_weight and grad_bias there;
    ``grid``, ``cluster`` and ``ring`` in PTX and ``tickets`` in HIP, as of :class:`GroupNormPlan`; ``teams``, each
    of which has its group of several images; ``split``, where groups are large: a pass for the sums, one for
    grad_input; ``baseline``, in which a block, or a warp where there are many small groups, reads its group of an
    image twice. In all but `few` one more launch adds up grad_weight and grad_bias from what each image, or some,
    give. Of channels-last arrays ``channels_last_tickets``, ``channels_last_split`` and ``channels_last``, as
    there.
    """

    op = "group_norm_backward"
    category = "normalization"
    descriptor_type = GroupNormBackwardDescriptor
    result_type = GroupNormGradients
    variants = (
        FewBackward(),
        InGridBackward(),
        InClustersBackward(),
        InRingsBackward(),
        InTeamsBackward(),
        SplitBackward(),
        WholeBackward(),
        ChannelsLastClustersBackward(),
        ChannelsLastSplitBackward(),
        ChannelsLastBackward(),
        ChannelsLastTicketsBackward("hip"),
        ChannelsLastSplitBackward("hip"),
        FewBackward("hip"),
        InTeamsBackward("hip"),
        InTicketsBackward("hip"),
        WholeBackward("hip"),
        ChannelsLastBackward("hip"),
    )

    def _operands(self) -> tuple[Operand, ...]:
        problem = self.descriptor
        vector = ((problem.channels,), parameter_type(problem.dtype))
        return (
            Operand("grad_out", problem.shape, problem.dtype, problem.strides),
            Operand("x", problem.shape, problem.dtype, problem.strides),
            Operand("weight", *vector, optional=True),
            Operand(
                "grad_input", problem.shape, problem.dtype, problem.strides, output=True, in_place=("grad_out", "x")
            ),
            Operand("grad_weight", *vector, output=True, needs="weight"),
            Operand("grad_bias", *vector, output=True),
        )


_plan = plan_cache(GroupNormPlan)
_backward_plan = plan_cache(GroupNormBackwardPlan)


def group_norm(
    x: DeviceArrayLike,
    weight: DeviceArrayLike | None,
    bias: DeviceArrayLike | None,
    groups: int,
    eps: float = 1e-5,
    *,
    out: DeviceArrayLike | None = None,
    stream: StreamLike | None = None,
) -> DeviceArray:
    """Normalise each group of channels of each image to mean 0 and deviation 1, then scale and shift.

    ``y[n, c, p] = (x[n, c, p] - mean) / sqrt(var + eps) * weight[c] + bias[c]``, with mean and biased variance over
    the C / groups channels of c's group and all their positions (Wu and He, Group Normalization, 2018).

    Parameters
    ----------
    x
        ``[N, C, *]``, float32, float64, float16 or bfloat16, contiguous or channels-last.
    weight, bias
        ``[C]``, or None for ones and zeros; float64 where x is, float32 for the rest.
    groups
        Divides C.
    eps
        Added to the variance.
    out
        Where to write, of x's shape and layout; it may be x.
    stream
        The device's default stream if left out.

    Returns
    -------
    DeviceArray
        y, of x's shape and layout; `out` if given.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    if type(x) is not DeviceArray:
        x = as_array(x, None, "group_norm", "x", stream)
    plan = _plan(x.device, x.shape, groups, x.dtype, eps, x.strides)
    return plan._run((x, weight, bias, out), stream)


def group_norm_backward(
    grad_out: DeviceArrayLike,
    x: DeviceArrayLike,
    weight: DeviceArrayLike | None,
    groups: int,
    eps: float = 1e-5,
    *,
    out: Sequence[DeviceArrayLike | None] | None = None,
    stream: StreamLike | None = None,
) -> GroupNormGradients:
    """Return the gradients of :func:`group_norm`.

    With ``xhat = (x - mean) / sqrt(var + eps)`` and ``d = grad_out * weight[c]``, means over the group::

        grad_input = (d - mean(d) - xhat * mean(d * xhat)) / sqrt(var + eps)
        grad_weight[c] = sum over n, p of grad_out * xhat
        grad_bias[c] = sum over n, p of grad_out

    the derivatives of its formula by the chain rule, mean and var being functions of x, and computed from it again.

    Parameters
    ----------
    grad_out, x
        ``[N, C, *]``, float32, float64, float16 or bfloat16, contiguous or channels-last, both alike.
    weight
        ``[C]``, or None for ones; float64 where x is, float32 for the rest.
    groups
        Divides C.
    eps
        Added to the variance.
    out
        (grad_input, grad_weight, grad_bias): where to write, or None for what is to be allocated. grad_input has
        x's layout, and may be grad_out or x; grad_weight is None if weight is.
    stream
        The device's default stream if left out.

    Returns
    -------
    tuple
        (grad_input, grad_weight, grad_bias): of x's shape, type and layout, and twice ``[C]`` of a weight's type;
        grad_weight is None if weight is. The latter two are zeros where x is empty.

    Raises
    ------
    ShapeMismatch, DTypeMismatch, DeviceMismatch, LayoutError, InvalidArgument
        Naming the operand; nothing has been launched then.
    """
    op = GroupNormBackwardPlan.op
    if type(x) is not DeviceArray:
        x = as_array(x, None, op, "x", stream)
    outputs = GroupNormBackwardPlan.unpacked(out)
    plan = _backward_plan(x.device, x.shape, groups, x.dtype, eps, x.strides)
    return plan._run((grad_out, x, weight, *outputs), stream)
