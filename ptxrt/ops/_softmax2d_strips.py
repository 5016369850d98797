"""The variant of softmax2d and its backward for few channels: a thread has neighbouring columns in its registers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

__all__ = ["FAMILY", "Strips", "StripsConfig"]

_ALONE = {2: (0, 1, 2, 4, 5, 8), 4: (0, 1, 2, 4, 5), 8: (0, 1)}
"""Columns of a thread -> the fours of channels that there are entries for; each holds three channels more."""

_SHARED = {2: (4, 5, 8), 4: (2, 4)}
"""The same where several threads share a column."""

_SPLIT = ((2, 5), (2, 8), (2, 4), (4, 4), (4, 2))
"""Those of these that are candidates, the first one the best."""

_F32 = {2: (0, 1), 4: (0, 1)}
"""The same for f32, a thread for each column."""

_IN_HIP = {2: (1, 4, 8), 4: (0, 1, 2), 8: (1,)}
"""Those for a thread a column that are in HIP, too."""

_SMALL = 1 << 18  # elements, of which `small` is faster
_THREADS = 256  # of a block, at most
_POINTERS = {
    "softmax2d": "const T* in_ptr, T* out_ptr",
    "softmax2d_backward": "const T* go_ptr, const T* y_ptr, T* gi_ptr",
}
_SIZES = ", u32 channels, u32 hw"
FAMILY = KernelFamily(
    "softmax2d_strips",
    ("f32", "f16", "bf16"),
    {
        f"{way}_{name}_{positions}_{groups}": Role(
            pointers + sizes,
            hip=name == "strips" and groups in _IN_HIP[positions],
            parameters={"sharing": sharing, "positions": str(positions), "groups": str(groups)},
            dtypes=() if name == "strips" and groups in _F32.get(positions, ()) else ("f16", "bf16"),
        )
        for way, pointers in _POINTERS.items()
        for name, sharing, sizes, held in (
            ("strips", "alone", _SIZES, _ALONE),
            ("shared_strips", "shared", _SIZES + ", u32 shift, u32 lanes, u32 share", _SHARED),
        )
        for positions, counts in held.items()
        for groups in counts
    },
    targets=ROUNDING_TARGETS,
    op="softmax2d",
)


def _groups(problem: ImageDescriptor, positions: int, lanes: int, language: str = "ptx") -> int | None:
    """Return the fewest fours of an entry that holds a thread's channels, or None where there is none."""
    held = (_F32 if problem.dtype.name == "f32" else _ALONE if lanes == 1 else _SHARED).get(positions, ())
    if language == "hip":
        held = tuple(groups for groups in held if groups in _IN_HIP[positions])
    share = ceil_div(problem.channels, lanes)
    return next((groups for groups in held if share // 4 <= groups), None)


@dataclass(frozen=True)
class StripsConfig(Config):
    """Knobs: the columns of a thread, the threads side by side in a block, and those that share a column."""

    positions: int
    across: int
    lanes: int = 1

    @classmethod
    def heuristic(cls, problem: ImageDescriptor) -> StripsConfig:
        """Return the first candidate: as many columns a thread as leave enough threads, few of many channels."""
        return cls.candidates(problem)[0]

    @classmethod
    def candidates(cls, problem: ImageDescriptor) -> Sequence[StripsConfig]:
        """Return each number of columns a thread, in blocks of two sizes; for many channels, threads that hold them."""
        alone = [positions for positions in _ALONE if _groups(problem, positions, 1) is not None]
        if not alone:
            each = [(p, 32, ceil_div(problem.channels, 4 * groups + 3)) for p, groups in _SPLIT]
            fitting = [cls(*knobs) for knobs in dict.fromkeys(each) if 32 * knobs[-1] <= _THREADS]
            return fitting or [cls(2, 32, _THREADS // 32)]
        limit, columns = (
            (8 if problem.channels <= 7 else 4 if problem.channels <= 11 else 2),
            problem.batch * problem.hw,
        )
        best = max(p for p in alone if p == 2 or (p <= limit and columns >= p << 17 and problem.hw % p == 0))
        across = 128
        while across > 32 and across * best > problem.hw:
            across //= 2
        order = sorted(alone, key=lambda positions: (positions != best, positions))
        return [cls(p, each) for p in order for each in dict.fromkeys((across, max(across // 2, 32)))]


class Strips(Variant[ImageDescriptor, StripsConfig]):
    """A thread for a few neighbouring columns, or several threads that have some of the channels each."""

    name = "strips"
    config_type = StripsConfig

    def __init__(self, way: str, arrays: tuple[str, ...], language: str = "ptx") -> None:
        super().__init__(language)
        self.way, self.arrays = way, arrays

    def suits(self, problem: ImageDescriptor) -> bool:
        """Few channels, of f32 very few, in rows of a warp's width; where threads share columns, many elements."""
        if problem.dtype.name == "f64" or problem.hw < 64 or (problem.channels >= 16 and problem.elements <= _SMALL):
            return False
        if problem.channels <= (7 if problem.dtype.name == "f32" else 35):
            return True
        few = problem.channels <= 23 * _THREADS // 32  # of more, threads have so many registers that warps are few
        return few and problem.dtype.size == 2 and problem.hw >= 1 << 8 and problem.elements >= 1 << 18

    def schedule(self, problem: ImageDescriptor, config: StripsConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        positions, across, lanes, dtype = config.positions, config.across, config.lanes, problem.dtype.name
        if dtype == "f64":
            return Refusal("is not for f64")
        if problem.hw < 32:
            return Refusal(f"{problem.hw} positions of an image are less than a warp has threads")
        if across.bit_count() != 1 or across < 32 or lanes < 1 or across * lanes > _THREADS:
            return Refusal(
                f"{across} x {lanes} threads are no power of two from 32 on, times lanes, of up to {_THREADS}"
            )
        if dtype == "f32" and lanes > 1:
            return Refusal("threads share columns of 16 bits alone")
        if self.language == "hip" and lanes > 1:
            return Refusal("threads share columns in PTX alone")
        if problem.hw > 1 << 31:
            return Refusal(f"{problem.hw} positions are more than {1 << 31}")
        share, groups = ceil_div(problem.channels, lanes), _groups(problem, positions, lanes, self.language)
        if groups is None:
            return Refusal(f"{share} channels of {positions} columns do not fit a thread's registers")
        name = "strips" if lanes == 1 else "shared_strips"
        kernel = FAMILY.kernel(f"{self.way}_{name}_{positions}_{groups}", problem.dtype, self.language)
        grid = (ceil_div(problem.hw, positions * across), problem.batch)
        shared = 8 * positions * across * lanes if lanes > 1 else 0
        sizes: tuple[int, ...] = (problem.channels, problem.hw)
        if lanes > 1:
            sizes += (across.bit_length() - 1, lanes, share)
        launch = Launch(kernel, grid, across * lanes, (*self.arrays, *sizes), shared)
        short = dtype != "f32" and self.way == "softmax2d"
        accumulator = "f32" if short else "2 x f32"
        return Schedule((launch,), PrecisionGuarantee("f32", accumulator, True, True))
