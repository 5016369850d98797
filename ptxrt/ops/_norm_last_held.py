"""batch_norm in training and group_norm of channels-last arrays in one launch: blocks hold what they read last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ptxrt.ops._norm_last_tiles import TiledRows
from ptxrt.ops.framework import (
    Argument,
    Config,
    KernelFamily,
    Launch,
    Refusal,
    Role,
    Schedule,
    Workspace,
    Zero,
)

__all__ = ["FAMILY", "HeldConfig", "HeldRows"]

_THREADS = 512
_MOST_CHANNELS = 256  # of a tile: its groups' coefficients have so much room
_WIDTH = 256  # bytes of a tile's rows in f32, about: fewer channels leave fewer sums to each block

_LIST = "u32 rows, u32 channels, u32 per_group, P eps"
_CUT = "u32 slices, u32 across, u32 lanes, u32 kept, u32 fetched"
_SPACE = "f64* sums_ptr, u32* claims_ptr"
FAMILY = KernelFamily(
    "norm_last_held",
    ("f32", "f16", "bf16", "f64"),
    {
        "norm_last_held": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, P*? mean_ptr, P*? var_ptr, P*? rmean_ptr, "
            f"P*? rvar_ptr, {_SPACE}, {_LIST}, P momentum, {_CUT}",
            target=90,
        ),
    },
    op="batch_norm",
    also=("group_norm",),
)


@dataclass(frozen=True)
class HeldConfig(Config):
    """Knobs of one launch for channels-last arrays.

    Attributes
    ----------
    width
        Bytes of a tile's rows, about.
    blocks
        At most, unless there are more tiles: as many as a GPU runs at a time.
    kept
        Of a thread's vectors before those that it holds, so many stay in the L2 till they are read again.
    fetched
        So many before these it fetches while it waits.
    """

    width: int
    blocks: int
    kept: int
    fetched: int

    @classmethod
    def heuristic(cls, problem: Any) -> HeldConfig:
        """As measured on an H100, which has as many multiprocessors as an H200."""
        return cls(_WIDTH * problem.dtype.size // 4, 132, 24, 12)

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[HeldConfig]:
        """Return the heuristic's, and other widths."""
        best = cls.heuristic(problem)
        return best, replace(best, width=best.width // 2), replace(best, width=2 * best.width)


@dataclass(frozen=True)
class HeldRows(TiledRows):
    """Rows whose blocks hold what they read last."""

    config: HeldConfig

    @property
    def _units(self) -> int:
        count: int = self.problem.channels // self.problem.vector
        return count

    @property
    def across(self) -> int:
        """Vectors of a tile: whole groups, of about the config's width, in which most of a GPU's threads work."""
        vector, aim = self.problem.vector, self.config.width // 16
        base = self.base
        most = max(min(_MOST_CHANNELS // vector, 2 * aim, self._units), base)
        return max(range(base, most + 1, base), key=lambda across: (self._eighths(across), -abs(across - aim)))

    def _eighths(self, across: int) -> int:
        """Return which share of the threads works in tiles of so many vectors."""
        blocks = self._tiles(across) * self._slices(across)
        turns = -(-blocks // self.config.blocks)
        threads = self._units / (-(-self._units // across) * across) * (_THREADS // across * across / _THREADS)
        return round(8 * threads * blocks / (turns * self.config.blocks))

    def _tiles(self, across: int) -> int:
        return self.images * -(-self._units // across)

    def _slices(self, across: int) -> int:
        chunks = -(-self.rows // (_THREADS // across))
        return min(max(self.config.blocks // self._tiles(across), 1), chunks)

    @property
    def slices(self) -> int:
        """Of a tile's rows."""
        return self._slices(self.across)

    @property
    def tiles(self) -> int:
        """Of all images."""
        return self._tiles(self.across)

    def refusal(self) -> Refusal | None:
        """Return why the kernels do not take it, or None."""
        for name, count in (("channels", self.problem.channels), ("rows", self.rows)):
            if count >> 31:
                return Refusal(f"{name} = {count} is above {(1 << 31) - 1}")
        return self.refusal_of_tiles(_MOST_CHANNELS)

    def schedule(self, out: str, statistics: tuple[Argument, ...], momentum: float) -> Schedule:
        """Return zeros for the claims, and a launch."""
        problem, across, tiles, slices = self.problem, self.across, self.tiles, self.slices
        workspace = Workspace()
        sums = workspace.region("sums", "f64", 2 * problem.parts * self.images * problem.channels * slices)
        claims = workspace.region("claims", "u32", tiles * (slices + 2))
        groups = across * problem.vector // self.per_group
        lanes = min(32, 1 << (_THREADS // groups).bit_length() - 1)
        sizes = (self.rows, problem.channels, self.per_group, problem.eps, momentum)
        cut = (slices, across, lanes, self.config.kept, self.config.fetched)
        launch = Launch(
            FAMILY.kernel("norm_last_held", problem.dtype, "ptx"),
            (tiles * slices,),
            _THREADS,
            ("x", out, "weight", "bias", *statistics, sums, claims, *sizes, *cut),
            _shared_bytes(problem),
        )
        return Schedule((Zero(claims), launch), problem.guarantee, workspace)


def _shared_bytes(problem: Any) -> int:
    """Return what a block holds, and room for a number of each value that it has at a time."""
    slots = 24 if problem.dtype.size == 2 else 26
    count: int = _THREADS * (16 * slots + 8 * problem.vector * problem.parts)
    return count
