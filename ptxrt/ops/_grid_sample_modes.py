"""grid_sample in every mode, of images and of volumes: the kernels that take what the faster ones do not."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ptxrt.dtypes import ElementType
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Argument,
    Config,
    KernelFamily,
    Launch,
    Limits,
    Refusal,
    Region,
    Role,
    Schedule,
    Variant,
    Workspace,
    Zero,
    blocks_in_hip,
    parameter_type,
)

if TYPE_CHECKING:
    from ptxrt.ops._grid_sample import GridSampleBackwardDescriptor, GridSampleDescriptor

__all__ = ["FAMILY", "General", "GeneralBackward", "GeneralFixedPoint"]

_PADDED = "u32 padding, u32 align, u64 image_stride, u64 channel_stride"
SIZES = {
    "": f"i32 n, i32 c, i32 ih, i32 iw, i32 oh, i32 ow, {_PADDED}, u64 row_stride, u64 column_stride",
    "volume_": "i32 n, i32 c, i32 id, i32 ih, i32 iw, i32 od, i32 oh, i32 ow, "
    f"{_PADDED}, u64 depth_stride, u64 row_stride, u64 column_stride",
}
_MODES = ("bilinear", "nearest", "bicubic", "volume_bilinear", "volume_nearest")
_READ = "const T* dout_ptr, const T* input_ptr, const T* grid_ptr"
_FIXED = "u64* sums_ptr, u32* flags_ptr, const u64* largest_ptr, i32 places"
_COLLECTED = "const u64* sums_ptr, const u32* flags_ptr, const u64* largest_ptr, i32 places"
_IN_PLACE = ("f32", "f64")  # whose grad_input is what atomics add to


def _roles() -> dict[str, Role]:
    roles: dict[str, str] = {}
    for mode in _MODES:
        sizes = SIZES["volume_" if mode.startswith("volume_") else ""]
        roles |= {
            mode: f"const T* input_ptr, const T* grid_ptr, T* output_ptr, {sizes}",
            f"backward_{mode}": f"{_READ}, P* dinput_ptr, T* dgrid_ptr, {sizes}",
            f"backward_fixed_{mode}": f"{_READ}, {_FIXED}, T* dgrid_ptr, {sizes}",
        }
    roles |= {
        "backward_clear": "u64* words_ptr, u64 count",
        "backward_largest": "const T* dout_ptr, u64* largest_ptr, u64 positions, u64 planes",
        "backward_collect": f"{_COLLECTED}, T* dinput_ptr, u64 count, u64 plane",
    }
    found = {f"grid_sample_modes_{name}": Role(signature, hip=True) for name, signature in roles.items()}
    rounding = Role("const P* sums_ptr, T* dinput_ptr, u64 count", hip=True, dtypes=("f16", "bf16"))
    return {**found, "grid_sample_modes_backward_round": rounding}


FAMILY = KernelFamily(
    "grid_sample_modes",
    ("f32", "f64", "f16", "bf16"),
    _roles(),
    unnamed=None,
    targets=ROUNDING_TARGETS,
    op="grid_sample",
)

_GRID_YZ = 65535
_THREADS = 256
_CHANNELS = (64, 32, 16, 8)  # that a thread of the forward takes, since what it knows of its point serves them all
_ENOUGH_BLOCKS = 2048
# Along x, y, z: the points of a tile, and from how many on a result is in tiles, as the kernels have it.
_TILES = {2: ((32, 128), (8, 32)), 3: ((16, 64), (4, 16), (4, 16))}
_MOST_PLACES = 30  # leaves 62 bits below the largest gradient


def _positions(problem: GridSampleDescriptor) -> tuple[int, int]:
    """Return how many blocks serve the positions of an image, of how many threads."""
    threads = min(_THREADS, 32 * -(-problem.positions // 32))
    return blocks_in_hip(problem.positions, threads), threads


def _tiles(problem: GridSampleDescriptor) -> tuple[int, int]:
    """Return how many blocks of the forward serve the positions of an image, of how many threads."""
    blocks, threads = _positions(problem)
    axes = tuple(zip(problem.grid_shape[-2:0:-1], _TILES[len(problem.shape) - 2], strict=True))
    if all(points >= large for points, (_, large) in axes):
        blocks = math.prod(-(-points // tile) for points, (tile, _) in axes)
        blocks = blocks_in_hip(blocks * threads, threads)
    return blocks, threads


def _sizes(problem: GridSampleDescriptor) -> tuple[Argument, ...]:
    """Return what every entry of a mode takes behind its arrays."""
    return (*problem.sizes, *problem.padding, *problem.strides)


def _role(problem: GridSampleDescriptor, what: str = "") -> str:
    return f"grid_sample_modes_{what}{problem.way}"


def _each(dtype: ElementType, language: str, role: str, count: int, *arguments: Argument) -> Launch:
    """Return a launch over `count` values, four a thread at least."""
    kernel = FAMILY.kernel(f"grid_sample_modes_backward_{role}", dtype, language)
    return Launch(kernel, (min(-(-count // (4 * _THREADS)), 4096),), _THREADS, arguments)


class General(Variant["GridSampleDescriptor", Config]):
    """A thread for each position and some channels, in every mode."""

    name = "general"

    def schedule(self, problem: GridSampleDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        blocks, threads = _tiles(problem)
        images = min(problem.n, _GRID_YZ)
        parts = [-(-problem.c // channels) for channels in _CHANNELS]
        enough = (count for count in parts if blocks * images * count >= _ENOUGH_BLOCKS)
        grid = (blocks, min(next(enough, parts[-1]), _GRID_YZ), images)
        kernel = FAMILY.kernel(_role(problem), problem.dtype, self.language)
        return Schedule((Launch(kernel, grid, threads, ("x", "grid", "out", *_sizes(problem))),), problem.guarantee())


class GeneralBackward(Variant["GridSampleBackwardDescriptor", Config]):
    """A thread for each position, float atomics on grad_input, or on float32 sums where that has 16 bits."""

    name = "general"

    def schedule(self, problem: GridSampleBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return zeros and a launch, and one that rounds the sums."""
        blocks, threads = _positions(problem)
        kernel = FAMILY.kernel(_role(problem, "backward_"), problem.dtype, self.language)
        grid = (blocks, 1, min(problem.n, _GRID_YZ))
        guarantee, workspace = problem.guarantee(atomics=True), Workspace()

        def adding(sums: str | Region) -> Launch:
            return Launch(kernel, grid, threads, ("grad_out", "x", "grid", sums, "grad_grid", *_sizes(problem)))

        if problem.dtype.name in _IN_PLACE:
            return Schedule((Zero("grad_input"), adding("grad_input")), guarantee)
        count = math.prod(problem.shape)
        words = workspace.region("sums", "u64", -(-count // 2))
        sums = words.part("sums", parameter_type(problem.dtype).name, 0, count)
        clear = _each(problem.dtype, self.language, "clear", words.count, words, words.count)
        rounding = _each(problem.dtype, self.language, "round", count, sums, "grad_input", count)
        return Schedule((clear, adding(sums), rounding), guarantee, workspace)


class GeneralFixedPoint(Variant["GridSampleBackwardDescriptor", Config]):
    """A thread for each position, integer atomics on sums of two words, scaled by their plane's largest gradient."""

    name = "general_fixed_point"

    def suits(self, problem: GridSampleBackwardDescriptor) -> bool:
        """Many points on few pixels, as for the faster one."""
        return problem.crowded

    def schedule(self, problem: GridSampleBackwardDescriptor, config: Config, limits: Limits) -> Schedule | Refusal:
        """Return four launches."""
        if problem.positions > 1 << _MOST_PLACES:
            return Refusal(f"{problem.positions} positions of an image leave a sum of integers too few bits")
        # A point gives a pixel one part, but for bicubic's padded taps, of which up to 16 are one pixel.
        folds = problem.mode == "bicubic" and problem.padding_mode != "zeros"
        places = (problem.positions - 1).bit_length() + (3 if folds else 0)
        count, plane = math.prod(problem.shape), math.prod(problem.shape[2:])
        planes, flag_words, workspace = problem.n * problem.c, -(-count // 2), Workspace()
        words = workspace.region("words", "u64", 2 * count + flag_words + planes)
        sums = words.part("sums", "u64", 0, 2 * count)
        flags = words.part("flags", "u32", 16 * count, count)
        largest = words.part("largest", "u64", 16 * count + 8 * flag_words, planes)
        blocks, threads = _positions(problem)
        fixed = (sums, flags, largest, places)
        find = Launch(
            FAMILY.kernel("grid_sample_modes_backward_largest", problem.dtype, self.language),
            (min(-(-problem.positions // (16 * _THREADS)), 4096), min(planes, _GRID_YZ)),
            _THREADS,
            ("grad_out", largest, problem.positions, planes),
        )
        add = Launch(
            FAMILY.kernel(_role(problem, "backward_fixed_"), problem.dtype, self.language),
            (blocks, 1, min(problem.n, _GRID_YZ)),
            threads,
            ("grad_out", "x", "grid", *fixed, "grad_grid", *_sizes(problem)),
        )
        steps = (
            _each(problem.dtype, self.language, "clear", words.count, words, words.count),
            find,
            add,
            _each(problem.dtype, self.language, "collect", count, *fixed, "grad_input", count, plane),
        )
        return Schedule(steps, problem.guarantee("2 x i64"), workspace)
