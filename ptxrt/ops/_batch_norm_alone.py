"""How batch_norm runs eval of channels-last arrays: each thread has all that its values need."""

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
)

__all__ = ["FAMILY", "AloneConfig", "ChannelsLastAlone"]

FAMILY = KernelFamily(
    "batch_norm_alone",
    ("f32", "f16", "bf16"),
    {
        "batch_norm_eval_alone": Role(
            "const T* in_ptr, T* out_ptr, const P*? w_ptr, const P*? b_ptr, const P* mean_ptr, const P* var_ptr, "
            "u32 vectors, u32 units, u32 by_units, P eps",
            hip=True,
        )
    },
    op="batch_norm",
    targets=ROUNDING_TARGETS,
)

_TURNS, _MOST_THREADS = 2, 512  # vectors of a thread; threads of a block
_VECTORS = 1 << 31
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


class ChannelsLastAlone(Variant[BatchNormDescriptor, AloneConfig]):
    """In eval, of rows of channels: a thread has vectors of the same channels, and computes what they need."""

    name = "channels_last_alone"
    config_type = AloneConfig

    def suits(self, problem: BatchNormDescriptor) -> bool:
        """Wherever it can do it."""
        return not isinstance(self._units(problem), Refusal)

    def schedule(self, problem: BatchNormDescriptor, config: AloneConfig, limits: Limits) -> Schedule | Refusal:
        """Return one launch."""
        if isinstance(units := self._units(problem), Refusal):
            return units
        if not 0 < config.threads <= _MOST_THREADS:
            return Refusal(f"a block has 1 to {_MOST_THREADS} threads, not {config.threads}")
        threads = units * max(1, config.threads // units)
        vectors = problem.batch * units
        arrays = ("x", "y", "weight", "bias", "running_mean", "running_var")
        sizes = (vectors, units, ceil_div(1 << 20, units), problem.eps)
        kernel = FAMILY.kernel("batch_norm_eval_alone", problem.dtype, self.language)
        return Schedule(
            (Launch(kernel, (ceil_div(vectors, _TURNS * threads),), threads, (*arrays, *sizes)),), _GUARANTEE
        )

    def _units(self, problem: BatchNormDescriptor) -> int | Refusal:
        """Return how many vectors a row has."""
        if problem.hw > 1 or problem.training:
            return Refusal("is for channels that lie side by side, in eval")
        if problem.dtype.name not in FAMILY.dtypes:
            return Refusal(f"there are no entries of {problem.dtype.name}")
        units, rest = divmod(problem.channels, problem.vector)
        if rest or not 0 < units <= _MOST_THREADS:
            return Refusal(f"{problem.channels} channels are not 1 to {_MOST_THREADS} vectors of {problem.vector}")
        if problem.batch * units >= _VECTORS:
            return Refusal(f"{problem.batch * units} vectors are more than {_VECTORS - 1}")
        return units
