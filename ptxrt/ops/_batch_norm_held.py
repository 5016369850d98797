"""How a block a channel runs batch_norm in training, which holds the channel's values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxrt.ops._batch_norm_choice import held_bytes, most_in_hip
from ptxrt.ops.framework import Argument, Config, Launch, Refusal, Schedule

__all__ = ["HOLDING", "IN_HIP", "ThreadsConfig", "held"]

HOLDING = {
    "cached": {128: "cached128", 256: "cached", 512: "cached512"},
    "backward_cached": {128: "backward_cached128", 256: "backward_cached256", 512: "backward_cached"},
}
"""Forward and backward: threads of a block -> its entry."""
IN_HIP = ("cached", "cached128", "backward_cached", "backward_cached128")
"""Of these entries, those that are in HIP, too."""


@dataclass(frozen=True)
class ThreadsConfig(Config):
    """The knob of blocks that hold a channel: their threads."""

    threads: int

    @classmethod
    def candidates(cls, problem: Any) -> Sequence[ThreadsConfig]:
        """Return all numbers of threads, of which HIP has some."""
        return cls(128), cls(256), cls(512)


def held(problem: Any, language: str, config: ThreadsConfig, arguments: tuple[Argument, ...]) -> Schedule | Refusal:
    """Return a launch of a block a channel, which has the values of its arrays in shared memory."""
    name = HOLDING["backward_cached" if problem.arrays == 2 else "cached"].get(config.threads)
    if name is None or (language == "hip" and name not in IN_HIP):
        return Refusal(f"no block of {config.threads} threads holds a channel")
    shared = held_bytes(problem, problem.arrays)
    if language == "hip":
        most = most_in_hip(problem, config.threads)
        if shared > most:
            return Refusal(f"{shared} bytes of values are more than {most}")
        shared = 0
    launch = Launch(problem.kernel(name, language), (problem.channels,), config.threads, arguments, shared)
    return problem.without_statistics or Schedule((launch,), problem.guarantee)
