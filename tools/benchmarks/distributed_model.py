"""What batch_norm over ranks costs: bytes and microseconds, on any number of ranks, from what one host has measured.

An all-reduce of b bytes takes ``a + b / v`` on one host, by a fit. Each doubling of the hosts adds a hop up a tree and
one down, and the bytes pass a network port once in each direction. Hop and port are assumptions, which nothing here has
measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["GPUS_A_HOST", "HOP_US", "MOST_RANKS", "PORT", "Fit", "exact_bytes", "gathered_bytes"]

GPUS_A_HOST = 8
HOP_US = 5.0
"""Microseconds of a message between hosts: an assumption."""
PORT = 50e9
"""Bytes a second of a GPU's network port, in each direction: an assumption, of 400 Gb/s."""
MOST_RANKS = 4096


def exact_bytes(channels: int, dtype: str = "f32") -> int:
    """Return the bytes that one all-reduce adds up, forward or backward, on any number of ranks."""
    return 8 * channels * (10 if dtype == "f16" else 32)


def gathered_bytes(channels: int, ranks: int) -> int:
    """Return those that torch's SyncBatchNorm gathers forward: mean, deviation and count of each rank, in float32."""
    return 4 * (2 * channels + 1) * ranks


@dataclass(frozen=True)
class Fit:
    """An all-reduce on one host: microseconds of one without bytes, and bytes a second."""

    start_us: float
    speed: float

    @classmethod
    def of(cls, measured: Sequence[Mapping[str, Any]]) -> Fit:
        """Return that of rows with `bytes` and `us`, whose relative errors it keeps small."""
        sizes, times = (np.array([row[name] for row in measured], float) for name in ("bytes", "us"))
        both = np.stack([1 / times, sizes / times], 1)  # each row divided by its time
        start, slope = np.linalg.lstsq(both, np.ones(len(times)), rcond=None)[0]
        return cls(float(max(start, 0.0)), float(1e6 / max(slope, 1e-12)))

    def all_reduce_us(self, nbytes: float, ranks: int) -> float:
        """Return the microseconds on so many ranks, GPUS_A_HOST of them a host."""
        hosts = -(-ranks // GPUS_A_HOST)
        speed = self.speed if hosts == 1 else min(self.speed, PORT)
        return self.start_us + 2 * HOP_US * math.log2(hosts) + nbytes / speed * 1e6

    def all_gather_us(self, nbytes: float, ranks: int) -> float:
        """Return those of an all-gather that ends with so many bytes on each rank."""
        hosts = -(-ranks // GPUS_A_HOST)
        speed = self.speed if hosts == 1 else min(self.speed, PORT)
        return self.start_us + HOP_US * math.log2(hosts) + nbytes / speed * 1e6
