"""How batch_norm runs eval where each thread has all that its values need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxrt.ops._batch_norm_problem import BatchNormDescriptor
from ptxrt.ops.framework import (
    ROUNDING_TARGETS,
    Config,
    KernelFamily,
    Launch,
    Limits,
    PrecisionGuarantee,
    Refusal,
    Role,
    Schedule,
    Variant,
    ceil_div,
    reciprocal,
)

__all__ = ["FAMILY", "Alone", "AloneConfig", "ChannelsLastAlone"]

_ARRAYS = "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, const P* mean_ptr, const P* var_ptr"
_SIZES = "u32 vectors, u32 units, u32 by_units"

FAMILY = KernelFamily(
    "batch_norm_alone",
    ("f32", "f16", "bf16"),
    {
        "batch_norm_eval_alone": Role(f"{_ARRAYS}, {_SIZES}, P eps", hip=True),
        "batch_norm_eval_alone_rows": Role(
            f"{_ARRAYS}, {_SIZES}, u32 units_shift, u32 channels, u32 by_channels, u32 channels_shift, P eps",
            hip=True,
        ),
    },
    op="batch_norm",
    targets=ROUNDING_TARGETS,
)

_TURNS, _MOST_THREADS = 2, 512  # vectors of a thread; threads of a block
_VECTORS = 1 << 31
_OPERANDS = ("x", "y", "weight", "bias", "running_mean", "running_var")
_GUARANTEE = PrecisionGuarantee("f32", "f64", deterministic=True, bit_stable_on_same_hardware=True)


@dataclass(frozen=True)
class AloneConfig(Config):
    """Knobs of a pass whose threads have all that their values need: a block's threads, about."""

    threads: int

    @classmethod
    def heuristic(cls, problem: Any) -> AloneConfig:
        """As measured on an H200."""
        del problem
        return cls(128)

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[AloneConfig]:
        """Return more, too."""
        del problem
        return cls(128), cls(256), cls(512)


def _refusal(problem: BatchNormDescriptor, config: AloneConfig, vectors: int) -> Refusal | None:
    if problem.dtype.name not in FAMILY.dtypes:
        return Refusal(f"there are no entries of {problem.dtype.name}")
    if not 0 < config.threads <= _MOST_THREADS:
        return Refusal(f"a block has 1 to {_MOST_THREADS} threads, not {config.threads}")
    most = _VECTORS - _TURNS * _MOST_THREADS
    return Refusal(f"{vectors} vectors are more than {most}") if vectors > most else None


def _launched(
    kind: str, problem: BatchNormDescriptor, language: str, vectors: int, threads: int, sizes: tuple[int | float, ...]
) -> Schedule:
    kernel = FAMILY.kernel(f"batch_norm_eval_alone{kind}", problem.dtype, language)
    grid = (ceil_div(vectors, _TURNS * threads),)
    return Schedule((Launch(kernel, grid, threads, (*_OPERANDS, *sizes)),), _GUARANTEE)


class Alone(Variant[BatchNormDescriptor, AloneConfig]):
    """In eval, of contiguous rows of whole vectors: a thread computes what the channels of its vectors need."""

    name = "alone"
    config_type = AloneConfig

    def schedule(self, problem: BatchNormDescriptor, config: AloneConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if problem.training:
            return Refusal("is for eval")
        units, rest = divmod(problem.hw, problem.vector)
        if rest or not units:
            return Refusal(f"rows of {problem.hw} values are not whole vectors of {problem.vector}")
        vectors = problem.batch * problem.channels * units
        if refusal := _refusal(problem, config, vectors):
            return refusal
        channels = problem.channels
        sizes = (vectors, units, *reciprocal(units), channels, *reciprocal(channels), problem.eps)
        return _launched("_rows", problem, self.language, vectors, config.threads, sizes)


class ChannelsLastAlone(Variant[BatchNormDescriptor, AloneConfig]):
    """In eval, of rows of channels: a thread has vectors of the same channels, and computes what they need."""

    name = "channels_last_alone"
    config_type = AloneConfig

    def schedule(self, problem: BatchNormDescriptor, config: AloneConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if problem.hw > 1 or problem.training:
            return Refusal("is for channels that lie side by side, in eval")
        units, rest = divmod(problem.channels, problem.vector)
        vectors = problem.batch * units
        if refusal := _refusal(problem, config, vectors):
            return refusal
        if rest or not 0 < units <= _MOST_THREADS:
            return Refusal(f"{problem.channels} channels are not 1 to {_MOST_THREADS} vectors of {problem.vector}")
        threads = units * max(1, config.threads // units)
        sizes = (vectors, units, ceil_div(1 << 20, units), problem.eps)
        return _launched("", problem, self.language, vectors, threads, sizes)
