"""How a block a channel runs batch_norm in training, which holds the channel's values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ptxrt.ops._batch_norm_choice import held_bytes, most_in_hip
from ptxrt.ops._batch_norm_problem import BACKWARD_IN_ONE, IN_ONE
from ptxrt.ops.framework import Argument, Config, KernelFamily, Launch, Refusal, Role, Schedule

__all__ = ["FAMILY", "ThreadsConfig", "held"]

# Threads of a block -> its entry.
_FORWARD = {128: "batch_norm_cached128", 256: "batch_norm_cached", 512: "batch_norm_cached512"}
_BACKWARD = {
    128: "batch_norm_backward_cached128",
    256: "batch_norm_backward_cached256",
    512: "batch_norm_backward_cached",
}
_IN_HIP = (_FORWARD[128], _FORWARD[256], _BACKWARD[128], _BACKWARD[512])
FAMILY = KernelFamily(
    "batch_norm_cached",
    ("f32", "f16", "bf16", "f64"),
    {
        entry: Role(signature, hip=entry in _IN_HIP, target=80)
        for entries, signature in ((_FORWARD, IN_ONE), (_BACKWARD, BACKWARD_IN_ONE))
        for entry in entries.values()
    },
    op="batch_norm",
)


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
    entry = (_BACKWARD if problem.arrays == 2 else _FORWARD).get(config.threads)
    if entry is None or (language == "hip" and entry not in _IN_HIP):
        return Refusal(f"no block of {config.threads} threads holds a channel")
    shared = held_bytes(problem, problem.arrays)
    if language == "hip":
        most = most_in_hip(problem, config.threads)
        if shared > most:
            return Refusal(f"{shared} bytes of values are more than {most}")
        shared = 0
    kernel = FAMILY.kernel(entry, problem.dtype, language)
    launch = Launch(kernel, (problem.channels,), config.threads, arguments, shared)
    return problem.without_statistics or Schedule((launch,), problem.guarantee)
